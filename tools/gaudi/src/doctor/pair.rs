//! `gaudi doctor --nic NIC --device DEVICE`: tries what a transfer needs, step by step, and
//! explains what fails.
//!
//! It opens the card's compute node, as a transfer does: the card must be free.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use gaudi_device::{Buffer, Device};
use gaudi_dmabuf::Window;
use gaudi_dmabuf::reach::{Folder, Reach, Topology};
use gaudi_seam::{BackendSpec, DeviceSpec, Error, KernelSelector};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_sys::RawMapping;
use gaudi_verbs::{Access, Context, DmaBufSupport, Mr, MrAddr, Pd, PortState};

use super::errors::{Meaning, Step, explain};
use super::{Check, fail, ok, warn};
use crate::nic::{SOFTNIC, with_provider};

/// Bytes that are exported and registered.
const BYTES: u64 = 1 << 20;

/// The list, as far as each step needs the one before.
pub(super) fn checks(nic: &str, spec: &DeviceSpec) -> Vec<Check> {
    let mut checks = Vec::new();
    // A card that fails says nothing of the NIC: both are looked at.
    let memory = memory(spec, &mut checks);
    let opened = open_nic(nic, &mut checks);
    if let Some(reach) = reach(nic, spec) {
        checks.push(reach);
    }
    let pd = opened
        .as_ref()
        .and_then(|(context, _cable)| domain(context, &mut checks));
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
        // The provider tells the kernel's own number in words.
        Some(gaudi_seam::Errno::EOPNOTSUPP) if error.to_string().contains("524") => 524,
        Some(errno) => errno as i32,
        None => 0,
    }
}

/// Device memory to register, in the order in which it goes: a buffer is not given back while its
/// export lives.
struct Exported {
    window: Window,
    buffer: Buffer,
    device: Device,
}

/// A step that failed, with what its number may mean.
fn explained(name: &'static str, step: Step, error: &Error) -> Check {
    let meanings = explain(step, number(error));
    let mends = |meanings: &[&Meaning]| {
        let mut told: Vec<String> = Vec::new();
        for (at, meaning) in meanings.iter().enumerate() {
            let head = if meanings.len() > 1 {
                format!("({}) {}: ", at + 1, meaning.cause)
            } else {
                String::new()
            };
            told.push(format!("{head}{}", meaning.mend));
        }
        told.join("; ")
    };
    let (found, mend) = match meanings.as_slice() {
        [] => (
            error.to_string(),
            error
                .help()
                .unwrap_or("the kernel's log (dmesg) may say more")
                .to_owned(),
        ),
        [one] => (format!("{error}: {}", one.cause), mends(&meanings)),
        _ => (error.to_string(), mends(&meanings)),
    };
    fail(name, found, mend)
}

fn memory(spec: &DeviceSpec, checks: &mut Vec<Check>) -> Option<Exported> {
    let device = match Device::open(spec) {
        Ok(device) => device,
        Err(error) => {
            checks.push(explained("device", Step::Open, &error));
            return None;
        }
    };
    checks.push(ok(
        "device",
        format!("{spec} opens ({})", device.id().backend.name()),
    ));
    let exported = device.alloc_exclusive(BYTES).and_then(|buffer| {
        let window = buffer.window(..)?;
        Ok((buffer, window))
    });
    match exported {
        Ok((buffer, window)) => {
            checks.push(ok(
                "export",
                format!(
                    "{} bytes at {} as {}",
                    window.len(),
                    buffer.address(),
                    window.dmabuf().exporter()
                ),
            ));
            Some(Exported {
                window,
                buffer,
                device,
            })
        }
        Err(error) => {
            checks.push(explained("export", Step::Export, &error));
            None
        }
    }
}

/// The NIC, and what must live beside one in software.
fn open_nic(name: &str, checks: &mut Vec<Check>) -> Option<(Context, Option<Arc<SoftNic>>)> {
    let opened = if name == SOFTNIC {
        SoftNic::pair(SoftNicConfig::default())
            .and_then(|(nic, other)| Ok((Context::open(nic)?, Some(other))))
    } else {
        gaudi_ibverbs::open(name).and_then(|nic| Ok((Context::open(nic)?, None)))
    };
    let (context, other) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            checks.push(explained("NIC", Step::Nic, &error));
            return None;
        }
    };
    let attr = context.attr();
    let found = format!("{} opens", with_provider(name, &attr.provider));
    checks.push(match context.query_port() {
        Ok(port) if port.state == PortState::ACTIVE => {
            ok("NIC", format!("{found}, port {} {}", port.port_num, port.state))
        }
        Ok(port) => warn(
            "NIC",
            format!("{found}, port {} is {}", port.port_num, port.state),
            "ip link set its interface up, and look at the cable: rdma link",
        ),
        Err(error) => warn("NIC", format!("{found}; its port is not told: {error}"), "dmesg"),
    });
    checks.push(match &attr.dmabuf {
        DmaBufSupport::Yes => ok("dma-buf support", "the NIC looks for the dma-buf of a descriptor"),
        DmaBufSupport::No(why) => fail(
            "dma-buf support",
            why.clone(),
            "a NIC with mlx5, efa, irdma, bnxt_re, ionic or mana: gaudi nics tells which of this machine has it",
        ),
    });
    Some((context, other))
}

/// What the kernel will answer, by the machine's tree. Nothing where one of the two is no PCI
/// function of it.
fn reach(nic: &str, spec: &DeviceSpec) -> Option<Check> {
    let topology = Topology::read(&Folder::new("/"));
    let card = match &spec.backend {
        BackendSpec::Kernel(KernelSelector::Bus(bus)) => Some(*bus),
        BackendSpec::Kernel(KernelSelector::Index(index)) => topology
            .accelerators()
            .find(|card| {
                card.accelerators
                    .iter()
                    .any(|name| *name == format!("accel{index}") || *name == format!("hl{index}"))
            })
            .map(|card| card.address),
        _ => None,
    }?;
    let importer = topology
        .importers
        .iter()
        .find(|importer| importer.rdma.iter().any(|name| name == nic))?;
    Some(match topology.reach(card, importer) {
        Reach::Reachable(route) => ok("reach", route.to_string()),
        Reach::Refused(refusal) => fail("reach", refusal.to_string(), refusal.mend()),
        Reach::Unknown(what) => warn(
            "reach",
            format!("not read: {}", what.join(", ")),
            "sudo gaudi topo reads it",
        ),
    })
}

fn domain(context: &Context, checks: &mut Vec<Check>) -> Option<Pd> {
    match context.alloc_pd() {
        Ok(pd) => Some(pd),
        Err(error) => {
            checks.push(explained("domain", Step::Nic, &error));
            None
        }
    }
}

/// Host memory, which a stage needs.
fn host(pd: &Pd, checks: &mut Vec<Check>) -> bool {
    let mapping = match RawMapping::anonymous(1 << 20, true) {
        Ok(mapping) => Arc::new(mapping),
        Err(errno) => {
            checks.push(explained(
                "host memory",
                Step::Host,
                &Error::from_errno("mmap", errno),
            ));
            return false;
        }
    };
    let registered = pd.reg_mapping(mapping, Access::LOCAL_WRITE);
    match registered.and_then(|mr| mr.close().map_err(|(_, error)| error)) {
        Ok(()) => {
            checks.push(ok("host memory", "1 MiB registered, then deregistered"));
            true
        }
        Err(error) => {
            checks.push(explained("host memory", Step::Host, &error));
            false
        }
    }
}

fn register(pd: &Pd, buffer: &Buffer, window: &Window, checks: &mut Vec<Check>) -> bool {
    let start = Instant::now();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let registered = pd.reg_dmabuf_mr(window, MrAddr::from(buffer.address()), access);
    let took = start.elapsed();
    let closed = registered.and_then(|mr: Mr| {
        let path = mr.path();
        mr.close().map_err(|(_, error)| error)?;
        Ok(path)
    });
    match closed {
        Ok(path) => {
            checks.push(ok(
                "registration",
                format!(
                    "{BYTES} bytes by {} in {:.2} ms, then deregistered",
                    path.name(),
                    took.as_secs_f64() * 1e3
                ),
            ));
            true
        }
        Err(error) => {
            checks.push(explained("registration", Step::Registration, &error));
            false
        }
    }
}

fn verdict(direct: bool, staged: bool) -> Check {
    match (direct, staged) {
        (true, _) => ok("transfers", "straight between the NIC and the card's memory"),
        (false, true) => warn(
            "transfers",
            "staged: through host memory, by the card's engines and the NIC",
            "the lines above tell what is in the way",
        ),
        (false, false) => fail(
            "transfers",
            "neither straight nor staged",
            "the lines above tell what is in the way",
        ),
    }
}

/// The meanings of one number, or of all.
pub(super) fn meanings(wanted: &str) -> Result<Vec<&'static Meaning>> {
    let found = super::errors::named(wanted);
    if found.is_empty() {
        let mut names: Vec<&str> = super::errors::MEANINGS
            .iter()
            .map(|meaning| meaning.errno)
            .collect();
        names.sort_unstable();
        names.dedup();
        return Err(crate::exit::Usage(format!(
            "{wanted:?} is no errno that is explained here: {}",
            names.join(", ")
        ))
        .into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_seam::Errno;

    fn of(checks: &[Check], name: &str) -> String {
        let check = checks.iter().find(|check| check.name == name);
        let check = check.unwrap_or_else(|| panic!("{name} is checked: {checks:?}"));
        format!(
            "{:?} {} / {}",
            check.verdict,
            check.found,
            check.mend.as_deref().unwrap_or("-")
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
            let check = explained(
                "registration",
                Step::Registration,
                &Error::from_errno("ibv_reg_dmabuf_mr", errno),
            );
            let mend = check.mend.unwrap();
            assert!(mend.contains(word), "{errno}: {mend}");
        }
        let ours = Error::unsupported("x", "the driver answered 524, the kernel's own ENOTSUPP");
        let check = explained("registration", Step::Registration, &ours);
        assert!(check.mend.unwrap().contains("read it as EOPNOTSUPP"));
        let host = explained(
            "host memory",
            Step::Host,
            &Error::from_errno("ibv_reg_mr", Errno::ENOMEM),
        );
        assert!(host.found.contains("RLIMIT_MEMLOCK") && host.mend.unwrap().contains("ulimit -l"));
    }
}
