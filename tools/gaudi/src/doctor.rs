//! `gaudi doctor`: what stands between this machine and a working card, each line with the command that mends it.
//!
//! It reads `/proc`, `/sys` and `/dev` and opens control nodes; it changes nothing and opens no compute node.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use gaudi_device::Info;
use gaudi_seam::{DeviceSpec, PciAddress};
use gaudi_spec::gaudi2::VENDOR;
use gaudi_sys::limits::{self, Limit};
use serde::Serialize;

use crate::args;
use crate::exit;
use crate::output::Output;

/// Pinned memory that a program with one card needs at least: less than this and registrations fail early.
const MEMLOCK_BYTES: u64 = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// One line of the list.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    /// The command or the change that mends it.
    mend: Option<String>,
}

#[derive(Serialize)]
struct Report {
    checks: Vec<Check>,
    failed: usize,
    warned: usize,
}

fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        name,
        verdict: Verdict::Ok,
        found: found.into(),
        mend: None,
    }
}

fn warn(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
    Check {
        name,
        verdict: Verdict::Warn,
        found: found.into(),
        mend: Some(mend.into()),
    }
}

fn fail(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
    Check {
        name,
        verdict: Verdict::Fail,
        found: found.into(),
        mend: Some(mend.into()),
    }
}

pub(crate) fn run(doctor: &args::Doctor, output: &mut Output) -> Result<u8> {
    let machine = Machine {
        root: doctor.root.clone().unwrap_or_else(|| PathBuf::from("/")),
    };
    let checks = machine.checks();
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let (failed, warned) = (count(Verdict::Fail), count(Verdict::Warn));
    if output.is_json() {
        output.document(
            "gaudi.doctor",
            &Report {
                checks,
                failed,
                warned,
            },
        )?;
    } else {
        for check in &checks {
            let word = match check.verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            output.line(format!("{word:<5} {:<14} {}", check.name, check.found))?;
            if let Some(mend) = &check.mend {
                output.line(format!("      {:<14} mend: {mend}", ""))?;
            }
        }
        output.line(format!("{failed} failed, {warned} warned"))?;
    }
    Ok(if failed > 0 { exit::FAILED } else { exit::DONE })
}

/// A machine's `/proc`, `/sys` and `/dev`, under a root of its own in tests.
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    fn read(&self, absolute: &str) -> Option<String> {
        fs::read_to_string(self.path(absolute))
            .ok()
            .map(|text| text.trim().to_owned())
    }

    fn names(&self, absolute: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(absolute)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Whether this is the machine that the program runs on: only then can it be asked more than its files tell.
    fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    fn checks(&self) -> Vec<Check> {
        let cards = self.cards();
        let mut checks = vec![self.card(&cards)];
        if !cards.is_empty() {
            checks.extend([self.driver(), self.binding(&cards), self.nodes()]);
        }
        if self.is_this() {
            checks.extend(devices());
            checks.push(memlock());
        }
        checks.extend([
            self.hugepages(),
            self.iommu(),
            self.p2pdma(),
            self.udmabuf(),
            self.nics(),
            self.libibverbs(),
        ]);
        if self.is_this() {
            checks.push(mock());
        }
        checks
    }

    /// Gaudis on the PCI bus, with the driver that has them.
    fn cards(&self) -> Vec<(String, Option<String>)> {
        let vendor = format!("{VENDOR:#06x}");
        let devices = self.names("/sys/bus/pci/devices").into_iter();
        devices
            .filter(|device| {
                self.read(&format!("/sys/bus/pci/devices/{device}/vendor"))
                    .as_deref()
                    == Some(&vendor)
            })
            .map(|device| {
                let link = fs::read_link(self.path(&format!("/sys/bus/pci/devices/{device}/driver"))).ok();
                let driver = link.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
                (device, driver)
            })
            .collect()
    }

    fn card(&self, cards: &[(String, Option<String>)]) -> Check {
        let addresses: Vec<&str> = cards.iter().map(|(address, _)| address.as_str()).collect();
        match cards.len() {
            0 => warn(
                "card",
                "no Gaudi on the PCI bus",
                "to go on without one: -d mock:gaudi2",
            ),
            count => ok(
                "card",
                format!("{count} on the PCI bus: {}", addresses.join(", ")),
            ),
        }
    }

    fn driver(&self) -> Check {
        let release = self
            .read("/proc/sys/kernel/osrelease")
            .unwrap_or_else(|| "unknown".to_owned());
        if self.path("/sys/module/habanalabs").exists() {
            return ok("driver", format!("habanalabs is loaded (Linux {release})"));
        }
        fail(
            "driver",
            format!("habanalabs is not loaded (Linux {release})"),
            "sudo modprobe habanalabs",
        )
    }

    fn binding(&self, cards: &[(String, Option<String>)]) -> Check {
        let others: Vec<String> = cards
            .iter()
            .filter(|(_, driver)| driver.as_deref() != Some("habanalabs"))
            .map(|(address, driver)| format!("{address} has {}", driver.as_deref().unwrap_or("no driver")))
            .collect();
        if others.is_empty() {
            return ok("binding", "habanalabs has every card");
        }
        let mend = "echo ADDRESS | sudo tee /sys/bus/pci/drivers/habanalabs/bind; the kernel's log says why a probe failed";
        fail("binding", others.join(", "), mend)
    }

    fn nodes(&self) -> Check {
        if self.path("/dev/hl0").exists() {
            return fail(
                "nodes",
                "/dev/hlN: an interface of Linux 6.2 and before",
                "use a kernel from 6.12 on",
            );
        }
        let names = self.names("/dev/accel");
        let control = names
            .iter()
            .filter(|name| name.starts_with("accel_controlD"))
            .count();
        let compute = names.iter().filter(|name| {
            name.strip_prefix("accel")
                .is_some_and(|n| n.parse::<u32>().is_ok())
        });
        let found = format!("{} compute, {control} control in /dev/accel", compute.count());
        if control == 0 {
            return fail(
                "nodes",
                found,
                "sudo udevadm trigger --subsystem-match=accel; see the kernel's log",
            );
        }
        ok("nodes", found)
    }

    fn hugepages(&self) -> Check {
        let pages = self
            .read("/proc/sys/vm/nr_hugepages")
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(0);
        let transparent = self
            .read("/sys/kernel/mm/transparent_hugepage/enabled")
            .unwrap_or_default();
        match (pages, transparent.contains("[never]") || transparent.is_empty()) {
            (0, true) => warn(
                "hugepages",
                "none, and no transparent ones: every 4 KiB of pinned memory takes an entry of the card's MMU",
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            ),
            (0, false) => ok("hugepages", format!("transparent: {transparent}")),
            (count, _) => ok(
                "hugepages",
                format!("{count} reserved; transparent: {transparent}"),
            ),
        }
    }

    fn iommu(&self) -> Check {
        match self.names("/sys/kernel/iommu_groups").len() {
            0 => ok("iommu", "off: peer-to-peer needs no rule of it"),
            groups => warn(
                "iommu",
                format!(
                    "on, {groups} groups: card and NIC reach one another only where translation and ACS let them"
                ),
                "for direct peer-to-peer: iommu=pt on the kernel's command line",
            ),
        }
    }

    fn p2pdma(&self) -> Check {
        let release = self
            .read("/proc/sys/kernel/osrelease")
            .unwrap_or_else(|| "unknown".to_owned());
        let config = self.read(&format!("/boot/config-{release}")).unwrap_or_default();
        let line = config.lines().find(|line| line.contains("CONFIG_PCI_P2PDMA"));
        match line {
            Some("CONFIG_PCI_P2PDMA=y") => ok("peer-to-peer", "the kernel has CONFIG_PCI_P2PDMA"),
            Some(_) => warn(
                "peer-to-peer",
                "the kernel lacks CONFIG_PCI_P2PDMA: a NIC's registration of card memory is refused (EPERM)",
                "use a kernel with it (Debian's from 7.2 on)",
            ),
            None => warn(
                "peer-to-peer",
                format!("no /boot/config-{release} to tell whether the kernel has CONFIG_PCI_P2PDMA"),
                "zgrep CONFIG_PCI_P2PDMA /proc/config.gz",
            ),
        }
    }

    fn udmabuf(&self) -> Check {
        let heaps = self.names("/dev/dma_heap");
        let heaps = if heaps.is_empty() {
            "no dma-heap".to_owned()
        } else {
            format!("dma-heaps: {}", heaps.join(", "))
        };
        if self.path("/dev/udmabuf").exists() {
            return ok("dma-buf", format!("udmabuf; {heaps}"));
        }
        let mend = "sudo modprobe udmabuf; without it host memory has no dma-buf, and a mock's exports are stand-ins";
        warn("dma-buf", format!("no /dev/udmabuf; {heaps}"), mend)
    }

    fn nics(&self) -> Check {
        let nics = self.names("/sys/class/infiniband");
        if nics.is_empty() {
            let mend = "load the NIC's driver, or for a trial: sudo rdma link add rxe0 type rxe netdev IFACE";
            return warn("rdma nics", "none", mend);
        }
        ok("rdma nics", nics.join(", "))
    }

    fn libibverbs(&self) -> Check {
        let folders = [
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/lib",
        ];
        let found = folders
            .iter()
            .find(|folder| self.path(&format!("{folder}/libibverbs.so.1")).exists());
        match found {
            Some(folder) => ok("libibverbs", format!("{folder}/libibverbs.so.1")),
            None => warn(
                "libibverbs",
                "not installed",
                "sudo apt install libibverbs1 ibverbs-providers",
            ),
        }
    }
}

/// What each card says of itself.
fn devices() -> Vec<Check> {
    let listed = gaudi_hal::list().into_iter();
    listed.map(|device| judge(&device.spec, device.bus)).collect()
}

fn judge(spec: &DeviceSpec, bus: Option<PciAddress>) -> Check {
    let place = bus.map_or_else(|| spec.to_string(), |bus| format!("{spec} ({bus})"));
    match gaudi_hal::control(spec).and_then(|io| Info::query(&*io)) {
        Ok(info) => {
            let found = format!(
                "{place}: {}, firmware {}, {}",
                info.card_name, info.firmware, info.status
            );
            match info.status {
                gaudi_uapi::info::DeviceStatus::OPERATIONAL => ok("device", found),
                _ => fail("device", found, "the kernel's log says why; a reset may help"),
            }
        }
        Err(error) => {
            let help = error.help().unwrap_or("the kernel's log may say more").to_owned();
            fail("device", format!("{place}: {error}"), help)
        }
    }
}

fn memlock() -> Check {
    match limits::memlock() {
        Ok(Limit::Unlimited) => ok("memlock", "unlimited"),
        Ok(Limit::Bytes(bytes)) if bytes >= MEMLOCK_BYTES => ok("memlock", format!("{} MiB", bytes >> 20)),
        Ok(Limit::Bytes(bytes)) => warn(
            "memlock",
            format!(
                "{} KiB may be pinned: registrations with a NIC fail with ENOMEM beyond",
                bytes >> 10
            ),
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service",
        ),
        Err(errno) => warn("memlock", format!("not told: {errno:?}"), "ulimit -l"),
    }
}

fn mock() -> Check {
    let answer = gaudi_hal::control(&DeviceSpec::mock()).and_then(|io| Info::query(&*io));
    match answer {
        Ok(_) => ok("mock", "mock:gaudi2 works here"),
        Err(error) => fail(
            "mock",
            error.to_string(),
            "it needs sparse memory files: check ulimit -v and memory cgroups",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Fixture(tempfile::TempDir);

    impl Fixture {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, path: &str, text: &str) -> &Self {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn card(&self, address: &str, driver: Option<&str>) -> &Self {
            let folder = format!("sys/bus/pci/devices/{address}");
            self.file(&format!("{folder}/vendor"), "0x1da3\n");
            if let Some(driver) = driver {
                symlink(
                    format!("../../drivers/{driver}"),
                    self.0.path().join(folder).join("driver"),
                )
                .unwrap();
            }
            self
        }

        fn verdict(&self, name: &str) -> Option<Verdict> {
            let machine = Machine {
                root: self.0.path().to_owned(),
            };
            machine
                .checks()
                .into_iter()
                .find(|check| check.name == name)
                .map(|check| check.verdict)
        }
    }

    #[test]
    fn a_machine_without_a_card_is_warned_and_not_asked_for_a_driver() {
        let machine = Fixture::new();
        machine.file("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n");
        assert_eq!(machine.verdict("card"), Some(Verdict::Warn));
        assert_eq!(machine.verdict("driver"), None);
    }

    #[test]
    fn a_card_without_its_driver_fails_with_the_way_to_load_it() {
        let machine = Fixture::new();
        machine.card("0000:b3:00.0", None);
        assert_eq!(
            (machine.verdict("driver"), machine.verdict("binding")),
            (Some(Verdict::Fail), Some(Verdict::Fail))
        );
        machine.file("sys/module/habanalabs/refcnt", "0");
        assert_eq!(machine.verdict("driver"), Some(Verdict::Ok));
        assert_eq!(
            machine.verdict("nodes"),
            Some(Verdict::Fail),
            "a driver without nodes"
        );
    }

    #[test]
    fn a_whole_machine_is_ok() {
        let machine = Fixture::new();
        machine
            .card("0000:b3:00.0", Some("habanalabs"))
            .file("sys/module/habanalabs/refcnt", "0");
        machine
            .file("dev/accel/accel0", "")
            .file("dev/accel/accel_controlD0", "")
            .file("dev/udmabuf", "");
        machine
            .file("proc/sys/kernel/osrelease", "7.2.13\n")
            .file("boot/config-7.2.13", "CONFIG_PCI_P2PDMA=y\n");
        machine
            .file("sys/class/infiniband/mlx5_0/node_type", "1: CA")
            .file("usr/lib64/libibverbs.so.1", "");
        machine.file(
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        );
        let checks = Machine {
            root: machine.0.path().to_owned(),
        }
        .checks();
        let bad: Vec<_> = checks
            .iter()
            .filter(|check| check.verdict != Verdict::Ok)
            .collect();
        assert!(bad.is_empty(), "{bad:?}");
    }

    #[test]
    fn a_card_that_another_driver_has_is_named() {
        let machine = Fixture::new();
        machine
            .card("0000:b3:00.0", Some("vfio-pci"))
            .file("sys/module/habanalabs/refcnt", "0");
        let checks = Machine {
            root: machine.0.path().to_owned(),
        }
        .checks();
        let binding = checks.iter().find(|check| check.name == "binding").unwrap();
        assert_eq!(
            (binding.verdict, binding.found.as_str()),
            (Verdict::Fail, "0000:b3:00.0 has vfio-pci")
        );
    }

    #[test]
    fn a_kernel_without_peer_to_peer_is_told_apart_from_one_that_does_not_tell() {
        let machine = Fixture::new();
        machine.file("proc/sys/kernel/osrelease", "6.12.0\n");
        assert_eq!(machine.verdict("peer-to-peer"), Some(Verdict::Warn));
        machine.file("boot/config-6.12.0", "# CONFIG_PCI_P2PDMA is not set\n");
        assert_eq!(machine.verdict("peer-to-peer"), Some(Verdict::Warn));
        machine.file("boot/config-6.12.0", "CONFIG_PCI_P2PDMA=y\n");
        assert_eq!(machine.verdict("peer-to-peer"), Some(Verdict::Ok));
    }
}
