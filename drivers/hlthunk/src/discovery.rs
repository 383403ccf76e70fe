//! The devices that a program can open: those of the machine, or the one that `GAUDI_DEVICE`
//! selects.
//!
//! The vendor's 2023 library tries 256 indices and looks up addresses in sysfs by the minor number.
//! With the driver's DRM interface, control nodes have their own minors, and `pci_addr` is in the
//! PCI device's directory, so that search fails on Linux 7.3. This module finds control nodes by
//! name and reads both sysfs layouts ([`Driver`]).

use std::ffi::c_int;
use std::os::fd::IntoRawFd as _;

use gaudi_hal::{Driver, Environment, ErrorKind};
use gaudi_seam::{BackendSpec, DeviceSpec, KernelIoExt as _, KernelSelector, NodeKind, PciAddress};
use gaudi_sys::{Errno, uninterrupted};
use gaudi_uapi::info::HlInfoHwIpInfo;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::device;
use crate::env::{errno_of, selection};
use crate::info::query;
use crate::types::HlthunkDeviceName;

/// A device that a program may try to open.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// The number N in the names of its nodes.
    pub(crate) index: u32,
    /// `None` for a device of the driver, whose node is opened by its path.
    spec: Option<DeviceSpec>,
}

fn driver() -> Driver {
    #[cfg(test)]
    if let Some(driver) = crate::stub::machine() {
        return driver;
    }
    Driver::new()
}

/// Returns the devices, ordered by index.
///
/// # Errors
/// `EINVAL`: an environment variable is invalid.
pub(crate) fn candidates() -> Result<Vec<Candidate>, Errno> {
    let selection = selection()?;
    let mut device = selection.device.unwrap_or(DeviceSpec {
        backend: BackendSpec::Kernel(KernelSelector::FirstFree),
        layers: Vec::new(),
    });
    device.layers.extend(selection.layers);
    let selector = match &device.backend {
        BackendSpec::Kernel(selector) => *selector,
        BackendSpec::Map(index) => KernelSelector::Bus(bus_in_table(*index)?),
        BackendSpec::Mock(mock) => {
            let index = mock.index;
            let spec = Some(device);
            return Ok(vec![Candidate { index, spec }]);
        }
        // Opening the device fails with the cause.
        _ => {
            let spec = Some(device);
            return Ok(vec![Candidate { index: 0, spec }]);
        }
    };
    let machine = driver();
    let mut indices = machine.indices();
    match selector {
        KernelSelector::FirstFree => {}
        KernelSelector::Index(index) => indices = vec![index],
        KernelSelector::Bus(bus) => indices.retain(|&index| machine.pci_address(index) == Some(bus)),
        KernelSelector::Module(id) => indices.retain(|&index| {
            let of_driver = Candidate { index, spec: None };
            of_driver.identify().is_ok_and(|hw| hw.module_id == id)
        }),
    }
    let of_index = |index| Candidate {
        index,
        spec: (!device.layers.is_empty()).then(|| DeviceSpec {
            backend: BackendSpec::Kernel(KernelSelector::Index(index)),
            layers: device.layers.clone(),
        }),
    };
    Ok(indices.into_iter().map(of_index).collect())
}

/// Returns the devices among which a program that names none gets the first free one: those that
/// `HABANA_VISIBLE_DEVICES` and `HABANA_VISIBLE_MODULES` show.
///
/// # Errors
/// `EINVAL`: an environment variable is invalid. `ENOENT`: the variables hide every device.
pub(crate) fn visible_candidates() -> Result<Vec<Candidate>, Errno> {
    let mut all = candidates()?;
    let visible = Environment::of_process().visible();
    let visible = visible.map_err(|error| errno_of(&error))?;
    let is_chosen = selection()?
        .device
        .is_some_and(|device| device.backend != BackendSpec::Kernel(KernelSelector::FirstFree));
    if is_chosen || visible.is_all() {
        return Ok(all);
    }
    let machine = driver();
    let indices: Vec<_> = all.iter().map(|candidate| candidate.index).collect();
    let shown = visible.among(&indices, |index| machine.module_id(index));
    let shown = shown.map_err(|error| errno_of(&error))?;
    all.retain(|candidate| shown.contains(&candidate.index));
    Ok(all)
}

/// Returns the device with an index. The device of the machine may not exist: then its open fails.
///
/// # Errors
/// - `ENOENT`: the environment selects another device.
/// - `EINVAL`: an environment variable is invalid.
pub(crate) fn with_index(index: c_int) -> Result<Candidate, Errno> {
    let index = u32::try_from(index).map_err(|_| Errno::ENOENT)?;
    let selection = selection()?;
    if selection.device.is_none() && selection.layers.is_empty() {
        return Ok(Candidate { index, spec: None });
    }
    let mut all = candidates()?.into_iter();
    all.find(|candidate| candidate.index == index)
        .ok_or(Errno::ENOENT)
}

/// Returns the device at a PCI address, in the notation of the vendor's library: `dddd:bb:dd.f`, or
/// without the domain, which is then 0. Characters after the twelfth are ignored.
///
/// # Errors
/// - `ENODEV`: no device has the address.
/// - `EINVAL`: an environment variable is invalid.
pub(crate) fn at_bus(text: &[u8]) -> Result<Candidate, Errno> {
    let text = std::str::from_utf8(text).map_err(|_| Errno::ENODEV)?;
    let whole = match text.len() {
        7 => format!("0000:{text}"),
        _ => text.to_owned(),
    };
    let wanted: PciAddress = whole.parse().map_err(|_| Errno::ENODEV)?;
    let mut all = candidates()?.into_iter();
    all.find(|candidate| candidate.address() == Some(wanted))
        .ok_or(Errno::ENODEV)
}

fn bus_in_table(index: u32) -> Result<PciAddress, Errno> {
    let table = Environment::of_process()
        .table()
        .map_err(|error| errno_of(&error))?;
    let entry = table.ok_or(Errno::ENOENT)?.entry(index);
    entry.map(|entry| entry.bus).map_err(|error| errno_of(&error))
}

impl Candidate {
    /// Returns the PCI address. Mocks use domain `ffff`, with the index as bus number.
    pub(crate) fn address(&self) -> Option<PciAddress> {
        match self.spec.as_ref().map(|spec| &spec.backend) {
            None | Some(BackendSpec::Kernel(_)) => driver().pci_address(self.index),
            Some(BackendSpec::Mock(mock)) => format!("ffff:{:02x}:00.0", mock.index & 0xff).parse().ok(),
            Some(_) => None,
        }
    }

    /// Opens a node of the device. The descriptor is close-on-exec.
    ///
    /// # Errors
    /// The errno of open(2), or of the virtual node's open.
    pub(crate) fn open(&self, kind: NodeKind) -> Result<c_int, Errno> {
        let Some(spec) = &self.spec else {
            let machine = driver();
            let path = machine.path(machine.node(self.index, kind));
            let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
            return uninterrupted(|| nix::fcntl::open(&path, flags, Mode::empty()))
                .map(|fd| fd.into_raw_fd());
        };
        device::open_virtual(spec, kind, self.address())
    }

    /// Queries the hardware information through the device's control node.
    ///
    /// # Errors
    /// The errors of the open and of `HL_INFO_HW_IP_INFO`.
    pub(crate) fn identify(&self) -> Result<HlInfoHwIpInfo, Errno> {
        let Some(spec) = &self.spec else {
            let control = self.open(NodeKind::Control)?;
            let answer = query(control, 0);
            // close(2) of an open descriptor has no error that matters here.
            let _ = device::close(control);
            return answer;
        };
        // Leave out the layers: faults apply to the program's own calls, and traces show only
        // those.
        let bare = DeviceSpec::bare(spec.backend.clone());
        let control = gaudi_hal::control(&bare).map_err(|error| errno_of(&error))?;
        let answer = control.query::<HlInfoHwIpInfo>();
        answer.map_err(|error| match error.kind() {
            ErrorKind::DeviceLost => Errno::ENODEV,
            _ => errno_of(&error),
        })
    }
}

/// Returns the name of a chip, as in the 2023 library, which ignores revisions.
pub(crate) fn name_of(device_id: u32) -> HlthunkDeviceName {
    match device_id {
        0x0001 => HlthunkDeviceName::GOYA,
        0x1000 | 0x1010 => HlthunkDeviceName::GAUDI,
        0x1020 => HlthunkDeviceName::GAUDI2,
        _ => HlthunkDeviceName::INVALID,
    }
}

/// Returns whether a device matches a requested name. The Gaudi3 header has names for three
/// revisions of Gaudi2.
pub(crate) fn is_named(hw: &HlInfoHwIpInfo, name: HlthunkDeviceName) -> bool {
    let revision = match name {
        HlthunkDeviceName::GAUDI2B => 2,
        HlthunkDeviceName::GAUDI2C => 3,
        HlthunkDeviceName::GAUDI2D => 4,
        _ => return name_of(hw.device_id) == name,
    };
    name_of(hw.device_id) == HlthunkDeviceName::GAUDI2 && hw.revision_id == revision
}

/// Returns the PCI address of the device whose node has a device number (`st_rdev` of fstat(2)).
pub(crate) fn address_of_node(major: u32, minor: u32) -> Option<PciAddress> {
    let machine = driver();
    let node = machine.node_of(major.into(), minor.into())?;
    machine.pci_address(node.index)
}
