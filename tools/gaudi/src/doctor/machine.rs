//! The checks of a machine's files.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use gaudi::dmabuf::reach::{Folder, kernel_option};
use gaudi_spec::gaudi2::VENDOR;
use gaudi_sys::limits;

use super::{Check, Verdict, devices, fail, memlock, mock, ok, open_flag, warn};
use crate::machine::Machine;
use crate::nics::WITH_DMABUF;

type CheckOf = fn(&Machine) -> Check;

/// The checks that every machine has, by name.
const CHECKS: [(&str, CheckOf); 8] = [
    ("hugepages", Machine::hugepages),
    ("iommu", Machine::iommu),
    ("dma-buf", Machine::dmabuf),
    ("peer-to-peer", Machine::p2pdma),
    ("udmabuf", Machine::udmabuf),
    ("dma-heaps", Machine::heaps),
    ("rdma nics", Machine::nics),
    ("libibverbs", Machine::libibverbs),
];

impl Machine {
    pub(super) fn checks(&self) -> Vec<Check> {
        let cards = self.cards();
        let mut checks = vec![self.card(&cards).named("card")];
        if !cards.is_empty() {
            checks.extend([
                self.driver().named("driver"),
                self.binding(&cards).named("binding"),
                self.nodes().named("nodes"),
                self.permissions().named("permissions"),
            ]);
            checks.extend(open_flag::check(self).map(|check| check.named("open flag")));
        }
        if self.is_this() {
            checks.extend(devices());
            checks.push(memlock(limits::memlock(), self.pins_without_limit()).named("memlock"));
        }
        checks.extend(CHECKS.map(|(name, check)| check(self).named(name)));
        if self.is_this() {
            checks.push(mock().named("mock"));
        }
        checks
    }

    /// Returns the Gaudis on the PCI bus, each with its driver.
    fn cards(&self) -> Vec<(String, Option<String>)> {
        let vendor = format!("{VENDOR:#06x}");
        let devices = self
            .names("/sys/bus/pci/devices")
            .into_iter()
            .filter_map(|device| {
                let folder = format!("/sys/bus/pci/devices/{device}");
                let is_card = self.read(&format!("{folder}/vendor")).as_deref() == Some(&vendor);
                is_card.then(|| (device, self.link_name(&format!("{folder}/driver"))))
            });
        devices.collect()
    }

    fn card(&self, cards: &[(String, Option<String>)]) -> Check {
        let addresses: Vec<&str> = cards.iter().map(|(address, _)| address.as_str()).collect();
        match cards.len() {
            0 => warn("no Gaudi on the PCI bus", "to go on without one: -d mock:gaudi2"),
            count => ok(format!("{count} on the PCI bus: {}", addresses.join(", "))),
        }
    }

    fn driver(&self) -> Check {
        let release = self.read("/proc/sys/kernel/osrelease");
        let release = release.as_deref().unwrap_or("unknown");
        if !self.path("/sys/module/habanalabs").exists() {
            let found = format!("habanalabs is not loaded (Linux {release})");
            return fail(found, "sudo modprobe habanalabs");
        }
        // The vendor's build has a version; mainline's has that of its kernel.
        let found = match self.read("/sys/module/habanalabs/version") {
            Some(version) => format!("habanalabs {version} is loaded (Linux {release})"),
            None => format!("habanalabs is loaded, of Linux {release}"),
        };
        match version_of(release) {
            Some(version) if version < (6, 12) => warn(
                format!(
                    "{found}: its interface is older than that of Linux 6.12, which this program supports best"
                ),
                "use a kernel from 6.12 on",
            ),
            _ => ok(found),
        }
    }

    fn binding(&self, cards: &[(String, Option<String>)]) -> Check {
        let mut others = Vec::new();
        for (address, driver) in cards {
            match driver.as_deref() {
                Some("habanalabs") => {}
                other => others.push(format!("{address} has {}", other.unwrap_or("no driver"))),
            }
        }
        if others.is_empty() {
            return ok("habanalabs has every card");
        }
        let remedy = "echo ADDRESS | sudo tee /sys/bus/pci/drivers/habanalabs/bind; the kernel's log has the cause of a failed probe";
        fail(others.join(", "), remedy)
    }

    fn nodes(&self) -> Check {
        if self.path("/dev/hl0").exists() {
            let found = "/dev/hlN: an interface of Linux 6.2 and before";
            return fail(found, "use a kernel from 6.12 on");
        }
        let names = self.names("/dev/accel");
        let control = names
            .iter()
            .filter(|name| name.starts_with("accel_controlD"))
            .count();
        let found = format!("{} compute, {control} control in /dev/accel", compute_nodes(self));
        match control {
            0 => fail(
                found,
                "sudo udevadm trigger --subsystem-match=accel; see the kernel's log",
            ),
            _ => ok(found),
        }
    }

    /// Whether this user may open the nodes: by their mode, owner and group.
    fn permissions(&self) -> Check {
        let user = self.user();
        let nodes = self.names("/dev/accel").into_iter();
        let closed = nodes.filter(|name| name.starts_with("accel")).filter_map(|name| {
            let path = format!("/dev/accel/{name}");
            let node = fs::metadata(self.path(&path)).ok()?;
            (!user.may_use(&node)).then_some((path, node))
        });
        let closed: Vec<(String, fs::Metadata)> = closed.collect();
        let Some((path, node)) = closed.first() else {
            return ok("this user may open every node");
        };
        let group = self.group_name(node.gid());
        let found = format!(
            "this user may not open {path}{}: owner {}, group {}, mode {:o}",
            match closed.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            },
            node.uid(),
            group.as_deref().unwrap_or("without a name"),
            node.mode() & 0o7777
        );
        // The group's bits, for reading and writing.
        match group {
            Some(group) if node.mode() & 0o060 == 0o060 && group != "root" => fail(
                found,
                format!("sudo usermod -aG {group} $USER, then log in again"),
            ),
            _ => fail(
                found,
                "echo 'SUBSYSTEM==\"accel\", GROUP=\"render\", MODE=\"0660\"' | sudo tee /etc/udev/rules.d/80-accel.rules; \
                 sudo udevadm trigger --subsystem-match=accel; sudo usermod -aG render $USER",
            ),
        }
    }

    /// Returns the value of a key in `/proc/self/status`; empty if it is missing.
    fn status(&self, key: &str) -> String {
        let status = self.read("/proc/self/status").unwrap_or_default();
        let value = status.lines().find_map(|line| line.strip_prefix(key));
        value.unwrap_or_default().trim().to_owned()
    }

    fn user(&self) -> User {
        let numbers = |key: &str| -> Vec<u32> {
            let value = self.status(key);
            value
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect()
        };
        // Real, effective, saved, filesystem: files are opened with the last one.
        let mut groups = numbers("Groups:");
        groups.extend(numbers("Gid:").get(3));
        User {
            id: numbers("Uid:").get(3).copied(),
            groups,
        }
    }

    /// Whether `RLIMIT_MEMLOCK` does not hold for this process: `CAP_IPC_LOCK` in the first user
    /// namespace (mm/mlock.c:can_do_mlock).
    pub(super) fn pins_without_limit(&self) -> bool {
        const CAP_IPC_LOCK: u64 = 1 << 14;
        let effective = u64::from_str_radix(&self.status("CapEff:"), 16);
        // Another namespace has a map of fewer numbers.
        let map = self.read("/proc/self/uid_map");
        let is_first = map.is_some_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
        is_first && effective.is_ok_and(|mask| mask & CAP_IPC_LOCK != 0)
    }

    fn group_name(&self, id: u32) -> Option<String> {
        let groups = self.read("/etc/group")?;
        groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
            (number.parse() == Ok(id)).then(|| name.to_owned())
        })
    }

    fn hugepages(&self) -> Check {
        let pages = [("2048kB", "2 MiB"), ("1048576kB", "1 GiB")].into_iter();
        let reserved = pages.filter_map(|(folder, name)| {
            let count = |file| self.number(&format!("/sys/kernel/mm/hugepages/hugepages-{folder}/{file}"));
            let (all, free) = (count("nr_hugepages")?, count("free_hugepages")?);
            (all > 0).then(|| format!("{all} of {name} reserved, {free} free"))
        });
        let reserved: Vec<String> = reserved.collect();
        let transparent = self.read("/sys/kernel/mm/transparent_hugepage/enabled");
        // The word in brackets is the setting in force.
        let holds = transparent
            .as_deref()
            .and_then(|words| words.split(['[', ']']).nth(1));
        let holds = holds.unwrap_or("not there");
        match (reserved.is_empty(), holds) {
            (true, "never" | "not there") => warn(
                "none, and no transparent ones: every 4 KiB of pinned memory takes an entry of the card's MMU",
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled, or sudo sysctl vm.nr_hugepages=512",
            ),
            (true, _) => ok(format!("none reserved; transparent ones: {holds}")),
            (false, _) => ok(format!("{}; transparent ones: {holds}", reserved.join(", "))),
        }
    }

    fn iommu(&self) -> Check {
        match self.names("/sys/kernel/iommu_groups").len() {
            0 => ok("off: peer-to-peer needs no rule of it"),
            groups => warn(
                format!(
                    "on, {groups} groups: card and NIC reach one another only where translation and ACS let them"
                ),
                "for direct peer-to-peer: iommu=pt on the kernel's command line",
            ),
        }
    }

    /// Whether the running kernel has an option; `lacking` if it lacks it.
    fn option(&self, option: &str, lacking: Check) -> Check {
        let release = self.read("/proc/sys/kernel/osrelease");
        match kernel_option(&Folder::new(&self.root), release.as_deref(), option) {
            Ok(found) if found.is_set => ok(format!("the kernel has {option} ({})", found.source)),
            Ok(_) => lacking,
            Err(files) => warn(
                format!(
                    "whether the kernel has {option} is unknown: cannot read {}",
                    files.join(", ")
                ),
                "look up the configuration of this kernel's build",
            ),
        }
    }

    fn dmabuf(&self) -> Check {
        let lacking = fail(
            "the kernel lacks CONFIG_DMA_SHARED_BUFFER: no memory can be shared between card and NIC",
            "use a kernel with it: every distribution's has it",
        );
        let check = self.option("CONFIG_DMA_SHARED_BUFFER", lacking);
        // These drivers cannot be built without it.
        let is_needed = self.path("/sys/module/habanalabs").exists() || self.path("/dev/udmabuf").exists();
        match check.verdict {
            Verdict::Warn if is_needed => ok("the kernel has it: a driver that needs it is there"),
            _ => check,
        }
    }

    fn p2pdma(&self) -> Check {
        let lacking = warn(
            "the kernel lacks CONFIG_PCI_P2PDMA: a NIC's registration of card memory is refused (EPERM)",
            "use a kernel with it (Debian's from 7.2 on)",
        );
        self.option("CONFIG_PCI_P2PDMA", lacking)
    }

    fn udmabuf(&self) -> Check {
        let Ok(node) = fs::metadata(self.path("/dev/udmabuf")) else {
            let remedy = "sudo modprobe udmabuf; without it host memory has no dma-buf, and a mock's exports are stand-ins";
            return warn("no /dev/udmabuf", remedy);
        };
        if !self.user().may_use(&node) {
            return warn(
                format!(
                    "this user may not open /dev/udmabuf (mode {:o})",
                    node.mode() & 0o7777
                ),
                "sudo chgrp kvm /dev/udmabuf && sudo chmod 660 /dev/udmabuf && sudo usermod -aG kvm $USER",
            );
        }
        match self.read("/sys/module/udmabuf/parameters/size_limit_mb") {
            Some(limit) => ok(format!("/dev/udmabuf, {limit} MiB each at most")),
            None => ok("/dev/udmabuf"),
        }
    }

    fn heaps(&self) -> Check {
        let heaps = self.names("/dev/dma_heap");
        if heaps.is_empty() {
            return warn("none", "use a kernel with CONFIG_DMABUF_HEAPS_SYSTEM");
        }
        ok(heaps.join(", "))
    }

    /// Checks for NICs whose drivers take dma-bufs.
    fn nics(&self) -> Check {
        let nics = self.names("/sys/class/infiniband");
        if nics.is_empty() {
            let remedy =
                "load the NIC's driver, or for a trial: sudo rdma link add rxe0 type rxe netdev IFACE";
            return warn("none", remedy);
        }
        let mut able = false;
        let found = nics.iter().map(|nic| {
            let driver = self.link_name(&format!("/sys/class/infiniband/{nic}/device/driver"));
            let takes = driver
                .as_deref()
                .is_some_and(|driver| WITH_DMABUF.contains(&driver));
            able |= takes;
            let driver = driver.as_deref().unwrap_or("software");
            format!("{nic} ({driver}, {} dma-buf)", if takes { "takes" } else { "no" })
        });
        let found = found.collect::<Vec<_>>().join(", ");
        if able {
            return ok(found);
        }
        let drivers = WITH_DMABUF.join(", ");
        warn(
            found,
            format!("card memory goes through host memory; NICs that take dma-bufs: {drivers}"),
        )
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
            Some(folder) => ok(format!("{folder}/libibverbs.so.1")),
            None => warn("not installed", "sudo apt install libibverbs1 ibverbs-providers"),
        }
    }
}

/// Returns the number of compute nodes.
pub(super) fn compute_nodes(machine: &Machine) -> usize {
    let names = machine.names("/dev/accel");
    let numbers = names.iter().filter_map(|name| name.strip_prefix("accel"));
    numbers.filter(|number| number.parse::<u32>().is_ok()).count()
}

/// Returns major and minor version of a kernel's release.
pub(super) fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The user and groups that open a file.
struct User {
    /// `None` if it is unknown: then no file is reported as closed to the user.
    id: Option<u32>,
    groups: Vec<u32>,
}

impl User {
    /// Whether the file's mode lets the user read and write. Lists of access rights (acl(5)) show
    /// in the group's bits only.
    fn may_use(&self, file: &fs::Metadata) -> bool {
        let bits = match self.id {
            None | Some(0) => return true,
            Some(id) if id == file.uid() => file.mode() >> 6,
            Some(_) if self.groups.contains(&file.gid()) => file.mode() >> 3,
            Some(_) => file.mode(),
        };
        bits & 0o6 == 0o6
    }
}
