//! Machines of a few files each.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use super::machine::version_of;
use super::*;

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
fn machine_without_card_is_warned_only() {
    let machine = Fixture::new();
    machine.file("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n");
    assert_eq!(machine.verdict("card"), Some(Verdict::Warn));
    assert_eq!(machine.verdict("driver"), None);
}

#[test]
fn card_without_driver_fails_with_modprobe() {
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
        .file("dev/udmabuf", "")
        .file("dev/dma_heap/system", "");
    machine.file("proc/sys/kernel/osrelease", "7.2.13\n").file(
        "boot/config-7.2.13",
        "CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_PCI_P2PDMA=y\n",
    );
    machine
        .file("sys/class/infiniband/mlx5_0/device/vendor", "0x15b3")
        .file("usr/lib64/libibverbs.so.1", "");
    symlink(
        "../../../../bus/pci/drivers/mlx5_core",
        machine.0.path().join("sys/class/infiniband/mlx5_0/device/driver"),
    )
    .unwrap();
    machine.file(
        "sys/kernel/mm/transparent_hugepage/enabled",
        "always [madvise] never\n",
    );
    machine.file("sys/module/hl_open_flag/refcnt", "0");
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
fn missing_rights_name_the_group() {
    use std::os::unix::fs::PermissionsExt as _;
    let machine = Fixture::new();
    machine
        .card("0000:b3:00.0", Some("habanalabs"))
        .file("dev/accel/accel0", "")
        .file("dev/udmabuf", "");
    for node in ["dev/accel/accel0", "dev/udmabuf"] {
        let mode = fs::Permissions::from_mode(0o660);
        fs::set_permissions(machine.0.path().join(node), mode).unwrap();
    }
    let group = fs::metadata(machine.0.path().join("dev/accel/accel0"))
        .unwrap()
        .gid();
    let status = |uid: u32, groups: &str| {
        format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t9\t9\t9\t9\nGroups:\t{groups}\n")
    };
    machine.file("etc/group", &format!("users:x:4:\nrender:x:{group}:\n"));
    machine.file("proc/self/status", &status(54321, "4 5"));
    let checks = Machine {
        root: machine.0.path().to_owned(),
    }
    .checks();
    let check = checks.iter().find(|check| check.name == "permissions").unwrap();
    assert_eq!(check.verdict, Verdict::Fail, "{check:?}");
    assert!(
        check.found.contains("/dev/accel/accel0") && check.found.contains("group render"),
        "{check:?}"
    );
    assert_eq!(
        check.remedy.as_deref(),
        Some("sudo usermod -aG render $USER, then log in again")
    );
    assert_eq!(machine.verdict("udmabuf"), Some(Verdict::Warn));
    machine.file("proc/self/status", &status(54321, &format!("4 {group}")));
    assert_eq!(
        machine.verdict("permissions"),
        Some(Verdict::Ok),
        "a member of the group may"
    );
    machine.file("proc/self/status", &status(0, ""));
    assert_eq!(machine.verdict("permissions"), Some(Verdict::Ok), "root may");
}

#[test]
fn reserved_pages_are_counted_by_their_size() {
    let machine = Fixture::new();
    let folder = "sys/kernel/mm/hugepages/hugepages-2048kB";
    machine
        .file(&format!("{folder}/nr_hugepages"), "8\n")
        .file(&format!("{folder}/free_hugepages"), "5\n");
    let checks = Machine {
        root: machine.0.path().to_owned(),
    }
    .checks();
    let check = checks.iter().find(|check| check.name == "hugepages").unwrap();
    assert_eq!(
        check.found,
        "8 of 2 MiB reserved, 5 free; transparent ones: not there"
    );
}

#[test]
fn nic_without_dmabuf_support_is_reported() {
    let machine = Fixture::new();
    machine.file("sys/class/infiniband/rxe0/node_type", "1: CA");
    assert_eq!(
        machine.verdict("rdma nics"),
        Some(Verdict::Warn),
        "rxe is software"
    );
}

#[test]
fn driver_of_old_kernel_is_warned_about() {
    assert_eq!(version_of("6.12.0-1-amd64"), Some((6, 12)));
    assert_eq!(version_of("unknown"), None);
    let machine = Fixture::new();
    machine
        .card("0000:b3:00.0", Some("habanalabs"))
        .file("sys/module/habanalabs/version", "1.18.0\n")
        .file("proc/sys/kernel/osrelease", "6.1.0-9-amd64\n");
    assert_eq!(machine.verdict("driver"), Some(Verdict::Warn));
}

#[test]
fn rejected_open_names_the_open_flag() {
    let machine = Fixture::new();
    machine
        .card("0000:b3:00.0", Some("habanalabs"))
        .file("sys/module/habanalabs/refcnt", "0")
        .file("dev/accel/accel_controlD0", "");
    let verdict = |release: &str| {
        machine.file("proc/sys/kernel/osrelease", release);
        machine.verdict("open flag")
    };
    assert_eq!(
        verdict("7.3.4"),
        None,
        "without a compute node there is nothing to open"
    );
    machine.file("dev/accel/accel0", "");
    for (release, wanted) in [
        ("6.11.9", None),
        ("6.12.117", Some(Verdict::Warn)),
        ("7.3.4", Some(Verdict::Warn)),
        ("7.4.0", None),
    ] {
        assert_eq!(verdict(release), wanted, "{release}");
    }
    let checks = Machine {
        root: machine.0.path().to_owned(),
    };
    machine.file("proc/sys/kernel/osrelease", "7.3.4");
    let checks = checks.checks();
    let check = checks.iter().find(|check| check.name == "open flag").unwrap();
    assert!(check.found.contains("FOP_UNSIGNED_OFFSET"), "{check:?}");
    assert!(
        check.remedy.as_deref().unwrap().contains("how-to/open-flag.md"),
        "{check:?}"
    );
    let log = "4,812,9313001,-;WARNING: drivers/gpu/drm/drm_file.c:322 at drm_open_helper+0x137/0x160";
    machine.file("dev/kmsg", log);
    assert_eq!(verdict("7.3.4"), Some(Verdict::Fail), "the log has the warning");
    machine.file("sys/module/hl_open_flag/refcnt", "0");
    assert_eq!(verdict("7.3.4"), Some(Verdict::Ok), "the module sets the flag");
    fs::remove_dir_all(machine.0.path().join("sys/module/hl_open_flag")).unwrap();
    machine.file("sys/module/habanalabs/version", "1.20.0");
    assert_eq!(verdict("7.3.4"), None, "the vendor's driver has no such check");
}

#[test]
fn foreign_driver_of_card_is_named() {
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
fn unknown_peer_to_peer_differs_from_missing() {
    let machine = Fixture::new();
    machine.file("proc/sys/kernel/osrelease", "6.12.0\n");
    assert_eq!(machine.verdict("peer-to-peer"), Some(Verdict::Warn));
    machine.file("boot/config-6.12.0", "# CONFIG_PCI_P2PDMA is not set\n");
    assert_eq!(machine.verdict("peer-to-peer"), Some(Verdict::Warn));
    machine.file("boot/config-6.12.0", "CONFIG_PCI_P2PDMA=y\n");
    assert_eq!(machine.verdict("peer-to-peer"), Some(Verdict::Ok));
}

#[test]
fn compressed_kernel_configuration_is_read() {
    // `printf 'CONFIG_PCI_P2PDMA=y\n' | gzip -n`
    const CONFIG: [u8; 40] = [
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x73, 0xf6, 0xf7, 0x73, 0xf3, 0x74, 0x8f,
        0x0f, 0x70, 0xf6, 0x8c, 0x0f, 0x30, 0x0a, 0x70, 0xf1, 0x75, 0xb4, 0xad, 0xe4, 0x02, 0x00, 0x2d, 0xad,
        0x3a, 0x09, 0x14, 0x00, 0x00, 0x00,
    ];
    let machine = Fixture::new();
    machine.file("proc/sys/kernel/osrelease", "6.12.0\n");
    assert_eq!(
        machine.verdict("peer-to-peer"),
        Some(Verdict::Warn),
        "no file has the option"
    );
    fs::write(machine.0.path().join("proc/config.gz"), CONFIG).unwrap();
    assert_eq!(machine.verdict("peer-to-peer"), Some(Verdict::Ok));
    assert_eq!(
        machine.verdict("dma-buf"),
        Some(Verdict::Fail),
        "the option is not in the file"
    );
}

#[test]
fn capability_lifts_the_memlock_limit() {
    let small = Ok(Limit::Bytes(8 << 20));
    assert_eq!(memlock(small, false).verdict, Verdict::Warn);
    assert_eq!(memlock(small, true).verdict, Verdict::Ok);
    for (mask, map, lifts) in [
        ("000001ffffffffff", "0 0 4294967295", true),
        ("0000000000000000", "0 0 4294967295", false),
        ("000001ffffffbfff", "0 0 4294967295", false),
        // Root of a container with a user namespace.
        ("000001ffffffffff", "0 100000 65536", false),
        ("garbage", "0 0 4294967295", false),
    ] {
        let fixture = Fixture::new();
        fixture.file("proc/self/status", &format!("Name:\tx\nCapEff:\t{mask}\n"));
        fixture.file("proc/self/uid_map", &format!("         {map}\n"));
        let machine = Machine {
            root: fixture.0.path().to_owned(),
        };
        assert_eq!(machine.pins_without_limit(), lifts, "{mask} {map}");
    }
}
