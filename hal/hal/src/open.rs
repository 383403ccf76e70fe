//! From a spec to seam 1.

#[cfg(feature = "layers")]
use gaudi_layers::fault::FaultHandle;
use gaudi_seam::{
    BackendSpec, DeviceSpec, Error, ErrorKind, KernelIo, KernelIoExt as _, KernelSelector, NodeKind,
    PciAddress, Result, SharedIo,
};
use gaudi_uapi::info::HlInfoHwIpInfo;

use crate::backend;
use crate::backend::layers::{Stack, time_of};
use crate::choose::{Environment, TABLE_VARIABLE, ring_variable};
use crate::program::{ProgramFile, User};
use crate::table::{MappingEntry, MappingTable};
use crate::visible::Visible;

/// A device of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The spec that opens it.
    pub spec: DeviceSpec,
    /// Its PCI address; `None` if sysfs does not have it.
    pub bus: Option<PciAddress>,
}

/// Opens the compute node, which allocates, copies and submits. It has one user at a time.
///
/// The spec's layers wrap the node, the leftmost innermost. See [`gaudi_layers::Stack`].
///
/// `map:N` is looked up in the process's `GAUDI_MAPPING_TABLE`; see [`open_in`].
///
/// # Errors
/// - `NotFound`: no such device, or the table has no such index.
/// - `Busy` (`EBUSY`): another user has the device open, or an export of it still exists.
/// - `InReset` (`EAGAIN`): the device is in reset.
/// - `PermissionDenied` (`EACCES`): this user may not open the node.
/// - `DeviceLost` (`EPERM`): the device is not operational.
/// - `InvalidInput`: a layer's option or the table is invalid, or an open mock has other options.
/// - `Unsupported`: this build or kernel cannot open the backend.
/// - `OutOfMemory`: the kernel or the mock has no memory for a context.
pub fn open(spec: &DeviceSpec) -> Result<SharedIo> {
    open_in(spec, &Environment::of_process())
}

/// As [`open`], in a given environment.
///
/// # Errors
/// As [`open`].
pub fn open_in(spec: &DeviceSpec, environment: &Environment) -> Result<SharedIo> {
    reach(spec, environment, NodeKind::Compute, User::Hal).map(|(io, _)| io)
}

/// Opens the control node, which serves information only. Any number of users can have it open.
///
/// # Errors
/// As [`open`], but neither `Busy` nor `InReset`.
pub fn control(spec: &DeviceSpec) -> Result<SharedIo> {
    control_in(spec, &Environment::of_process())
}

/// Returns the handles of the fault layers around a node that [`open`] or [`control`] returned,
/// innermost first. They count the faults of each rule of the spec, and arm others.
#[cfg(feature = "layers")]
pub fn fault_handles(io: &SharedIo) -> Vec<FaultHandle> {
    gaudi_layers::fault::handles(io)
}

/// As [`control`], in a given environment.
///
/// # Errors
/// As [`control`].
pub fn control_in(spec: &DeviceSpec, environment: &Environment) -> Result<SharedIo> {
    reach(spec, environment, NodeKind::Control, User::Hal).map(|(io, _)| io)
}

/// Opens the control node to describe the device to a program before it starts. As [`control`], but
/// without the spec's layers, and a replay does not count it as one of the recorded opens: those
/// are the program's.
///
/// # Errors
/// As [`control`].
pub fn describer(spec: &DeviceSpec) -> Result<SharedIo> {
    let environment = Environment::of_process();
    reach(spec, &environment, NodeKind::Control, User::Describer).map(|(io, _)| io)
}

/// Opens a node of either kind, and the file from which a descriptor for a program is made.
///
/// # Errors
/// As [`open`] for a compute node and [`control`] for a control node; and `TooManyFiles`
/// (`EMFILE`).
pub fn open_for_program(spec: &DeviceSpec, kind: NodeKind) -> Result<(SharedIo, ProgramFile)> {
    reach(spec, &Environment::of_process(), kind, User::Program)
}

/// Lists the devices of this machine in the order of their numbers, without opening a node. Mocks
/// are not listed.
pub fn list() -> Vec<Listed> {
    // Without a restriction, no device is asked.
    backend::kernel::list(&Visible::default()).unwrap_or_default()
}

/// Lists the devices of this machine that [`Visible`] shows, in the order of their numbers. Opens
/// control nodes if `HABANA_VISIBLE_MODULES` is set.
///
/// # Errors
/// - `InvalidInput`: a variable is invalid.
/// - `NotFound`: every device is hidden.
/// - The error of a device that did not report its module id, if no other device is visible.
pub fn list_visible(environment: &Environment) -> Result<Vec<Listed>> {
    backend::kernel::list(&environment.visible()?)
}

/// Returns the [`MappingTable`] of this machine: index, module id and PCI address of each device,
/// which their control nodes report. It prints as the text of `GAUDI_MAPPING_TABLE`.
///
/// # Errors
/// - `NotFound`: the machine has no device, or sysfs lacks the address of one.
/// - Those of [`control`] and of its `HL_INFO_HW_IP_INFO`, for any device.
pub fn mapping_table() -> Result<MappingTable> {
    let devices = list();
    if devices.is_empty() {
        // The open fails with the cause.
        backend::kernel::open(KernelSelector::FirstFree, NodeKind::Control, &Visible::default())?;
    }
    let entry = |device: &Listed| -> Result<MappingEntry> {
        let io = control(&device.spec)?;
        let bus = device.bus.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, TABLE_VARIABLE)
                .on(io.node().device)
                .because("sysfs does not have the device's PCI address")
                .helped_by("in a container, give it /sys too")
        })?;
        Ok(MappingEntry {
            index: io.node().device.index,
            module_id: io.query::<HlInfoHwIpInfo>()?.module_id,
            bus,
        })
    };
    MappingTable::new(devices.iter().map(entry).collect::<Result<_>>()?)
}

/// Returns what the user of a mock has not released; `None` if this process has no such mock.
#[cfg(feature = "mock")]
pub fn mock_ledger(spec: &DeviceSpec) -> Option<gaudi_mock::Ledger> {
    match &spec.backend {
        BackendSpec::Mock(mock) => gaudi_mock::ledger(mock),
        _ => None,
    }
}

fn reach(
    spec: &DeviceSpec,
    environment: &Environment,
    kind: NodeKind,
    user: User,
) -> Result<(SharedIo, ProgramFile)> {
    // Before the device: an open that fails later would cost a reset.
    let has_driver = matches!(spec.backend, BackendSpec::Kernel(_) | BackendSpec::Map(_));
    let ring = match user {
        User::Hal => ring_variable(),
        // The tracer sees the ioctls of the program, and only those are its calls.
        User::Program | User::Describer => None,
    };
    let layers = match user {
        User::Describer => &[][..],
        User::Hal | User::Program => &spec.layers[..],
    };
    let layers = Stack::prepare(layers)?.watched(ring.as_deref(), has_driver);
    let time = time_of(&spec.backend);
    let failed = |error| {
        layers.record_failed_open(kind, &error);
        error
    };
    match &spec.backend {
        BackendSpec::Kernel(selector) => {
            let opened = match selector {
                KernelSelector::FirstFree => environment
                    .visible()
                    .and_then(|visible| backend::kernel::open(*selector, kind, &visible)),
                _ => backend::kernel::open(*selector, kind, &Visible::default()),
            };
            opened.map_err(failed).and_then(|io| {
                let file = program_file(&io, user)?;
                Ok((layers.over_known(io, &time), file))
            })
        }
        BackendSpec::Map(index) => {
            let entry = table_entry(*index, environment)?;
            let opened = backend::kernel::open(KernelSelector::Bus(entry.bus), kind, &Visible::default())
                .map_err(failed);
            opened.and_then(|io| {
                verify(&*io, entry)?;
                let file = program_file(&io, user)?;
                Ok((layers.over_known(io, &time), file))
            })
        }
        BackendSpec::Mock(mock) => {
            #[cfg(feature = "mock")]
            crate::exit_report::register();
            let opened = backend::mock::open(mock, kind, user).map_err(failed);
            opened.map(|(io, file)| (layers.over(io, &time), file))
        }
        BackendSpec::Vfio(_) => Err(Error::unsupported(
            "open",
            "vfio backend: there is no driver for a function of vfio-pci yet; gaudi_vfio::open gives its DeviceIo",
        )),
        BackendSpec::Replay(replay) => {
            let opened = backend::replay::open(replay, kind, user).map_err(failed);
            opened.map(|(io, file)| (layers.over(io, &time), file))
        }
        other => Err(Error::unsupported(
            "open",
            format!("{other:?}: no such backend here"),
        )),
    }
}

fn program_file(io: &backend::kernel::Kernel, user: User) -> Result<ProgramFile> {
    match user {
        User::Hal | User::Describer => Ok(ProgramFile::None),
        User::Program => backend::kernel::duplicate(io).map(ProgramFile::Driver),
    }
}

fn table_entry(index: u32, environment: &Environment) -> Result<MappingEntry> {
    match environment.table()? {
        Some(table) => table.entry(index),
        None => Err(Error::new(ErrorKind::NotFound, "open")
            .because(format!("map:{index} needs {TABLE_VARIABLE}, which is not set"))),
    }
}

/// The table and the machine agree on which card this is; else the table is of another machine or
/// of before a card was moved.
fn verify(io: &dyn KernelIo, entry: MappingEntry) -> Result<()> {
    let module_id = io.query::<HlInfoHwIpInfo>()?.module_id;
    if module_id == entry.module_id {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, TABLE_VARIABLE)
        .on(io.node().device)
        .because(format!(
            "entry {} names {}, which is another module",
            entry.index, entry.bus
        ))
        .saw(
            format!("module {module_id}"),
            format!("module {}", entry.module_id),
        )
        .helped_by("make the table again on this machine"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gaudi_seam::{Backend, DeviceId, Era, InfoRequest, Node};

    use super::*;

    struct Card(Node);

    impl KernelIo for Card {
        fn node(&self) -> &Node {
            &self.0
        }

        fn info(&self, _: InfoRequest, answer: &mut [u8]) -> Result<u32> {
            // module_id of struct hl_info_hw_ip_info.
            answer[36..40].copy_from_slice(&3_u32.to_ne_bytes());
            Ok(0)
        }
    }

    fn card() -> SharedIo {
        Arc::new(Card(Node {
            kind: NodeKind::Control,
            device: DeviceId::new(Backend::Kernel, 2),
            era: Era::AccelDrm,
            name: "card".into(),
        }))
    }

    fn entry(module_id: u32) -> MappingEntry {
        MappingEntry {
            index: 0,
            module_id,
            bus: "0000:19:00.0".parse().expect("an address"),
        }
    }

    #[test]
    fn table_of_another_machine_is_rejected() {
        assert_eq!(verify(&*card(), entry(3)), Ok(()), "the same module passes");
        let error = verify(&*card(), entry(4)).expect_err("another module");
        assert_eq!(
            error.to_string(),
            "GAUDI_MAPPING_TABLE on device accel2: entry 0 names 0000:19:00.0, which is another module (saw module 3, wanted module 4)"
        );
    }

    #[test]
    fn unsupported_spec_is_named() {
        let spec = "vfio:0000:b3:00.0".parse().expect("a spec");
        let error = open_in(&spec, &Environment::default()).err().expect("not served");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("vfio backend"), "{error}");
    }
}
