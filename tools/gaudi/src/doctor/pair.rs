//! `gaudi doctor --nic NIC --device DEVICE`: tries what a transfer needs, step by step, and
//! explains what fails.
//!
//! It opens the card's compute node, as a transfer does: the card must be free.

use std::sync::Arc;
use std::time::Instant;

use gaudi::dmabuf::Window;
use gaudi::dmabuf::reach::{Folder, Reach, Topology};
use gaudi::verbs::{self, Access, Context, DmaBufSupport, MrAddr, Pd, PortState};
use gaudi::{BackendSpec, Buffer, Device, DeviceSpec, Errno, Error, KernelSelector};
use gaudi_sys::RawMapping;

use super::errors::{Step, explain};
use super::{Check, fail, ok, warn};
use crate::nic::{SOFTNIC, with_provider};
use crate::topo::card_of_index;

/// Bytes that are exported and registered.
const BYTES: u64 = 1 << 20;
/// The next step for an errno without a known remedy.
const LOG: &str = "the kernel's log (dmesg) may have more";

/// Returns the checks. A step that needs a failed one is left out.
pub(super) fn checks(nic: &str, spec: &DeviceSpec) -> Vec<Check> {
    let mut checks = Vec::new();
    // A failed card does not imply a failed NIC: both are checked.
    let memory = memory(spec, &mut checks);
    let opened = open_nic(nic, &mut checks);
    if let Some(reach) = reach(nic, spec) {
        checks.push(reach);
    }
    let pd = opened
        .as_ref()
        .and_then(|(context, _cable)| tried(&mut checks, "domain", Step::Nic, context.alloc_pd()));
    let mut staged = pd.as_ref().is_some_and(|pd| host(pd, &mut checks));
    let mut direct = false;
    if let (Some(pd), Some(memory)) = (&pd, &memory) {
        direct = register(pd, &memory.buffer, &memory.window, &mut checks);
        staged &= memory.device.alloc_host(1 << 20).is_ok();
    }
    checks.push(verdict(direct, staged && memory.is_some()));
    checks
}

fn number(error: &Error) -> i32 {
    match error.errno() {
        // 524 is the kernel's ENOTSUPP, which has no errno: the error has it in its text.
        Some(Errno::EOPNOTSUPP) if error.to_string().contains("524") => 524,
        Some(errno) => errno as i32,
        None => 0,
    }
}

/// Device memory to register. The fields are in the order of their drop: a buffer must outlive its
/// export.
struct Exported {
    window: Window,
    buffer: Buffer,
    device: Device,
}

/// Returns the check of a failed step, with the causes of its errno.
fn explained(step: Step, error: &Error) -> Check {
    let meanings = explain(step, number(error));
    if let [one] = meanings.as_slice() {
        return fail(format!("{error}: {}", one.cause), one.remedy.unwrap_or(LOG));
    }
    let each = (1..).zip(&meanings).map(|(at, meaning)| match meaning.remedy {
        Some(remedy) => format!("({at}) {}: {remedy}", meaning.cause),
        None => format!("({at}) {}", meaning.cause),
    });
    let remedy = each.collect::<Vec<_>>().join("; ");
    match meanings.is_empty() {
        true => fail(error.to_string(), error.help().unwrap_or(LOG)),
        false => fail(error.to_string(), remedy),
    }
}

/// Returns the result of a step. A failure is added to the list.
fn tried<T>(checks: &mut Vec<Check>, name: &'static str, step: Step, result: Result<T, Error>) -> Option<T> {
    result
        .inspect_err(|error| checks.push(explained(step, error).named(name)))
        .ok()
}

fn memory(spec: &DeviceSpec, checks: &mut Vec<Check>) -> Option<Exported> {
    let device = tried(checks, "device", Step::Open, Device::open(spec))?;
    checks.push(ok(format!("{spec} opens ({})", device.id().backend.name())).named("device"));
    let exported = device.alloc_exclusive(BYTES).and_then(|buffer| {
        let window = buffer.window(..)?;
        Ok((buffer, window))
    });
    let (buffer, window) = tried(checks, "export", Step::Export, exported)?;
    let exporter = window.dmabuf().exporter();
    let found = format!("{} bytes at {} as {exporter}", window.len(), buffer.address());
    checks.push(ok(found).named("export"));
    Some(Exported {
        window,
        buffer,
        device,
    })
}

/// Opens the NIC; for a software NIC also the other end of its cable, which must stay open.
fn open_nic(name: &str, checks: &mut Vec<Check>) -> Option<(Context, Option<Context>)> {
    let opened = match name {
        SOFTNIC => verbs::software_pair().map(|(nic, other)| (nic, Some(other))),
        _ => verbs::open(name).map(|nic| (nic, None)),
    };
    let (context, other) = tried(checks, "NIC", Step::Nic, opened)?;
    let attr = context.attr();
    let found = format!("{} opens", with_provider(name, &attr.provider));
    let port = match context.query_port() {
        Ok(port) if port.state == PortState::ACTIVE => {
            ok(format!("{found}, port {} {}", port.port_num, port.state))
        }
        Ok(port) => warn(
            format!("{found}, port {} is {}", port.port_num, port.state),
            "ip link set its interface up, and look at the cable: rdma link",
        ),
        Err(error) => warn(format!("{found}; its port cannot be queried: {error}"), "dmesg"),
    };
    let dmabuf = match &attr.dmabuf {
        DmaBufSupport::Yes => ok("the NIC looks for the dma-buf of a descriptor"),
        DmaBufSupport::No(why) => fail(
            why.clone(),
            "a NIC with mlx5, efa, irdma, bnxt_re, ionic or mana: gaudi nics lists those of this machine",
        ),
    };
    checks.extend([port.named("NIC"), dmabuf.named("dma-buf support")]);
    Some((context, other))
}

/// Returns the answer to expect from the kernel, by the machine's PCI tree. `None` if one of the
/// two is not a PCI function.
fn reach(nic: &str, spec: &DeviceSpec) -> Option<Check> {
    let topology = Topology::read(&Folder::new("/"));
    let card = match spec.backend {
        BackendSpec::Kernel(KernelSelector::Bus(bus)) => bus,
        BackendSpec::Kernel(KernelSelector::Index(index)) => card_of_index(&topology, index)?,
        _ => return None,
    };
    let mut importers = topology.importers.iter();
    let importer = importers.find(|importer| importer.rdma.iter().any(|name| name == nic))?;
    let check = match topology.reach(card, importer) {
        Reach::Reachable(route) => ok(route.to_string()),
        Reach::Refused(refusal) => fail(refusal.to_string(), refusal.remedy()),
        Reach::Unknown(what) => warn(
            format!("not read: {}", what.join(", ")),
            "sudo gaudi topo reads it",
        ),
    };
    Some(check.named("reach"))
}

/// Checks the registration of host memory, which a stage needs.
fn host(pd: &Pd, checks: &mut Vec<Check>) -> bool {
    let mapping = RawMapping::anonymous(1 << 20, true).map_err(|errno| Error::from_errno("mmap", errno));
    let registered = mapping.and_then(|mapping| pd.reg_mapping(Arc::new(mapping), Access::LOCAL_WRITE));
    let closed = registered.and_then(|mr| mr.close().map_err(Error::from));
    let closed = tried(checks, "host memory", Step::Host, closed);
    checks.extend(closed.map(|()| ok("1 MiB registered, then deregistered").named("host memory")));
    closed.is_some()
}

fn register(pd: &Pd, buffer: &Buffer, window: &Window, checks: &mut Vec<Check>) -> bool {
    let start = Instant::now();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let registered = pd.reg_dmabuf_mr(window, MrAddr::from(buffer.address()), access);
    let took = start.elapsed().as_secs_f64() * 1e3;
    let closed = registered.and_then(|mr| {
        let path = mr.path();
        mr.close()?;
        Ok(path)
    });
    let path = tried(checks, "registration", Step::Registration, closed);
    checks.extend(path.map(|path| {
        let found = format!(
            "{BYTES} bytes by {} in {took:.2} ms, then deregistered",
            path.name()
        );
        ok(found).named("registration")
    }));
    path.is_some()
}

fn verdict(direct: bool, staged: bool) -> Check {
    let remedy = "the lines above show what prevents it";
    let check = match (direct, staged) {
        (true, _) => ok("straight between the NIC and the card's memory"),
        (false, true) => warn(
            "staged: through host memory, by the card's engines and the NIC",
            remedy,
        ),
        (false, false) => fail("neither straight nor staged", remedy),
    };
    check.named("transfers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(checks: &[Check], name: &str) -> String {
        let check = checks.iter().find(|check| check.name == name);
        let check = check.unwrap_or_else(|| panic!("{name} is checked: {checks:?}"));
        format!(
            "{:?} {} / {}",
            check.verdict,
            check.found,
            check.remedy.as_deref().unwrap_or("-")
        )
    }

    #[test]
    fn mock_and_softnic_need_no_fix() {
        let checks = checks(SOFTNIC, &"mock:gaudi2?name=doctor-pair".parse().unwrap());
        assert!(
            checks
                .iter()
                .all(|check| check.verdict == super::super::Verdict::Ok),
            "{checks:?}"
        );
        assert!(of(&checks, "registration").contains("by software"), "{checks:?}");
    }

    #[test]
    fn missing_card_does_not_hide_nic() {
        let checks = checks(SOFTNIC, &"kernel:63".parse().unwrap());
        assert!(of(&checks, "device").starts_with("Fail"), "{checks:?}");
        assert!(of(&checks, "NIC").starts_with("Ok"), "{checks:?}");
        assert!(of(&checks, "transfers").starts_with("Fail"), "{checks:?}");
    }

    #[test]
    fn refused_export_is_explained() {
        let spec = "mock:gaudi2?name=doctor-export+fault=export_dmabuf:error=EINVAL";
        let checks = checks(SOFTNIC, &spec.parse().unwrap());
        let export = of(&checks, "export");
        assert!(
            export.contains("EINVAL") && export.contains("multiple of 4096"),
            "{export}"
        );
        assert!(of(&checks, "transfers").starts_with("Fail"), "{checks:?}");
    }

    #[test]
    fn each_number_of_a_registration_is_explained() {
        for (errno, word) in [
            (Errno::EOPNOTSUPP, "mlx5"),
            (Errno::EPERM, "gaudi topo"),
            (Errno::EINVAL, "count the region from the device address"),
            (Errno::EFAULT, "dma-buf"),
            (Errno::ENOMEM, "max_mr"),
        ] {
            let error = Error::from_errno("ibv_reg_dmabuf_mr", errno);
            let check = explained(Step::Registration, &error);
            let remedy = check.remedy.unwrap();
            assert!(remedy.contains(word), "{errno}: {remedy}");
        }
        let ours = Error::unsupported("x", "the driver answered 524, the kernel's own ENOTSUPP");
        let check = explained(Step::Registration, &ours);
        assert!(check.remedy.unwrap().contains("read it as EOPNOTSUPP"));
        let host = explained(Step::Host, &Error::from_errno("ibv_reg_mr", Errno::ENOMEM));
        assert!(host.found.contains("RLIMIT_MEMLOCK") && host.remedy.unwrap().contains("ulimit -l"));
    }
}
