//! Finding devices on whole machines of each era, laid out from the manifests in `fixtures`.

mod machine;
mod recorder;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use gaudi_seam::{Era, Error, ErrorKind, KernelIo, KernelSelector, NodeKind};
use gaudi_sys::Errno;
use gaudi_uapi::info::HlInfoHwIpInfo;
use machine::Machine;
use recorder::{Behind, Reply, words};
use zerocopy::{FromZeros, IntoBytes};

const H: u32 = 0xc018_4801;
const DRM: u32 = 0xc018_6440;
const VERSION: u32 = 0xc040_6400;

/// Request numbers of the questions which interface a node speaks.
type Asks = &'static [u32];

/// Each machine with two cards: manifest, era, the devices' numbers, and what control and compute
/// nodes are asked at open.
const MACHINES: [(&str, Era, [u32; 2], Asks, Asks); 4] = [
    ("drm-7.3.txt", Era::AccelDrm, [0, 2], &[DRM], &[VERSION]),
    ("accel-h.txt", Era::AccelH, [0, 1], &[DRM, H], &[VERSION, H]),
    ("hl-6.5.txt", Era::HlMisc, [0, 1], &[], &[]),
    ("hl-6.1.txt", Era::HlMisc, [0, 1], &[], &[]),
];

fn hw_ip(module_id: u32) -> Reply {
    let mut info = HlInfoHwIpInfo::new_zeroed();
    info.module_id = module_id;
    // The 6.1 driver's struct is the first 256 bytes.
    Reply::Info(info.as_bytes()[..256].to_vec(), 0)
}

#[test]
fn control_nodes_list_devices_of_every_era() {
    for (manifest, era, numbers, asks, _) in MACHINES {
        let machine = Machine::of(manifest, Behind::Driver(era));
        for module in [3, 7] {
            machine.recorder.reply([
                hw_ip(module),
                Reply::Info(words(&[0, 0]), 0),
                Reply::Info(words(&[1, 0, 2, 0, 0, 0]), 0),
            ]);
        }
        let list = machine.driver.list();
        let seen: Vec<_> = list
            .iter()
            .map(|device| {
                let identity = device.identity.as_ref().expect(manifest);
                let bus = device.pci.map(|address| address.to_string());
                (device.index, bus, identity.era, identity.hw_ip.module_id)
            })
            .collect();
        let wanted = [
            (numbers[0], Some("0000:b3:00.0".to_owned()), era, 3),
            (numbers[1], Some("0000:b4:00.0".to_owned()), era, 7),
        ];
        assert_eq!(seen, wanted, "{manifest}");
        let control = if era == Era::HlMisc {
            "hl_controlD"
        } else {
            "accel_controlD"
        };
        assert_eq!(
            machine.opened(),
            numbers.map(|n| format!("{control}{n}")),
            "{manifest}: control nodes only"
        );
        assert_eq!(
            machine.recorder.probes(),
            [asks, asks].concat(),
            "{manifest}: each node is asked once which interface it speaks"
        );
    }
}

#[test]
fn devices_open_by_number_bus_and_module() {
    for (manifest, era, numbers, _, asks) in MACHINES {
        let machine = Machine::of(manifest, Behind::Driver(era));
        let second = KernelSelector::Index(numbers[1]);
        let bus = KernelSelector::Bus("0000:b4:00.0".parse().unwrap());
        for selector in [second, bus, KernelSelector::Module(7)] {
            if matches!(selector, KernelSelector::Module(_)) {
                machine.recorder.reply([hw_ip(3), hw_ip(7)]);
            }
            machine.recorder.probes();
            let kernel = machine.driver.open(selector, NodeKind::Compute).expect(manifest);
            let node = kernel.node();
            assert_eq!(
                (node.device.index, node.era),
                (numbers[1], era),
                "{manifest} by {selector:?}"
            );
            let name = if era == Era::HlMisc {
                "dev/hl"
            } else {
                "dev/accel/accel"
            };
            assert!(
                node.name.ends_with(&format!("{name}{}", numbers[1])),
                "{manifest}: the compute node was opened: {}",
                node.name
            );
            assert!(
                machine.recorder.probes().ends_with(asks),
                "{manifest}: what a compute node is asked"
            );
        }
        let first = machine.driver.open(KernelSelector::FirstFree, NodeKind::Compute);
        assert_eq!(
            first.expect(manifest).node().device.index,
            numbers[0],
            "{manifest}"
        );
    }
}

#[test]
fn sysfs_finds_module_without_control_node() {
    for (manifest, era, numbers, _, _) in MACHINES {
        let machine = Machine::of(manifest, Behind::Driver(era));
        for n in numbers {
            machine
                .recorder
                .refuse(&format!("accel_controlD{n}"), Errno::EACCES);
            machine.recorder.refuse(&format!("hl_controlD{n}"), Errno::EACCES);
        }
        let kernel = machine.driver.open(KernelSelector::Module(7), NodeKind::Compute);
        assert_eq!(
            kernel.expect(manifest).node().device.index,
            numbers[1],
            "{manifest}"
        );
        let error = machine.fails(KernelSelector::Module(9), NodeKind::Compute);
        assert!(
            error.to_string().contains("saw 9, wanted one of [3, 7]"),
            "{manifest}: {error}"
        );
    }
}

#[test]
fn device_number_resolves_by_name() {
    let cases = [
        ("drm-7.3.txt", (261, 2), Some("/dev/accel/accel2")),
        // Its own major, and a minor that is the compute node's too.
        ("drm-7.3.txt", (509, 2), Some("/dev/accel/accel_controlD2")),
        ("drm-7.3.txt", (509, 0), Some("/dev/accel/accel_controlD0")),
        ("drm-7.3.txt", (261, 1), None),
        ("drm-7.3.txt", (1, 3), None),
        ("drm-7.3.txt", (508, 1), None),
        ("accel-h.txt", (508, 3), Some("/dev/accel/accel_controlD1")),
        ("accel-h.txt", (508, 2), Some("/dev/accel/accel1")),
        ("hl-6.1.txt", (509, 1), Some("/dev/hl_controlD0")),
        ("hl-6.1.txt", (509, 2), Some("/dev/hl1")),
    ];
    for (manifest, (major, minor), wanted) in cases {
        let machine = Machine::of(manifest, Behind::File);
        let node = machine.driver.node_of(major, minor).map(|node| node.to_string());
        assert_eq!(node.as_deref(), wanted, "{manifest} {major}:{minor}");
    }
}

#[test]
fn accel_nodes_precede_old_names() {
    let machine = Machine::of("both-names.txt", Behind::Driver(Era::AccelDrm));
    assert_eq!(machine.driver.indices(), [0]);
    machine
        .driver
        .open(KernelSelector::Index(0), NodeKind::Control)
        .unwrap();
    assert_eq!(machine.opened(), ["accel_controlD0"]);
}

/// The error of opening node 0.
fn open_error(machine: &Machine, kind: NodeKind) -> (ErrorKind, String, String) {
    let by_number = machine.fails(KernelSelector::Index(0), kind);
    let parts = |error: &Error| {
        let help = error.help().expect("there is a next step").to_owned();
        (error.kind(), error.cause().unwrap().to_owned(), help)
    };
    parts(&by_number)
}

#[test]
fn each_missing_device_reason_has_next_step() {
    let cases = [
        (
            "others.txt",
            ErrorKind::NotFound,
            "the node belongs to another driver",
            "choose one of the devices that gaudi list shows",
        ),
        (
            "not-loaded.txt",
            ErrorKind::NotFound,
            "the habanalabs driver is not loaded, and there are cards",
            "modprobe habanalabs",
        ),
        (
            "no-card.txt",
            ErrorKind::NotFound,
            "the habanalabs driver is loaded and has no device",
            "lspci -nn -d 1da3:",
        ),
        (
            "no-device.txt",
            ErrorKind::NotFound,
            "the habanalabs driver is loaded and has no device",
            "take the card from the other driver",
        ),
        (
            "no-nodes.txt",
            ErrorKind::NotFound,
            "the driver has devices, but /dev/accel lacks their nodes",
            "--device=/dev/accel",
        ),
        (
            "hl-5.2.txt",
            ErrorKind::Unsupported,
            "this driver is too old to work with",
            "use a kernel from 6.1 on",
        ),
    ];
    for (manifest, kind, cause, help) in cases {
        let machine = Machine::of(manifest, Behind::Driver(Era::AccelDrm));
        assert!(
            machine.driver.list().is_empty(),
            "{manifest}: nothing to list is no error"
        );
        let (seen, cause_text, next) = open_error(&machine, NodeKind::Compute);
        assert_eq!((seen, cause_text.as_str()), (kind, cause), "{manifest}");
        assert!(next.contains(help), "{manifest}: {help:?} is in {next:?}");
        let first = machine.fails(KernelSelector::FirstFree, NodeKind::Compute);
        assert_eq!(first.kind(), kind, "{manifest}: first-free agrees: {first}");
        let bus = machine.fails(
            KernelSelector::Bus("0000:aa:00.0".parse().unwrap()),
            NodeKind::Control,
        );
        assert_eq!(bus.kind(), kind, "{manifest}: so does an address: {bus}");
    }
    let machine = Machine::bare(Behind::File);
    machine.recorder.be_strict();
    let (kind, cause, help) = open_error(&machine, NodeKind::Compute);
    assert_eq!(
        (kind, cause.as_str()),
        (ErrorKind::NotFound, "the habanalabs driver is not loaded")
    );
    assert!(help.contains("modprobe habanalabs"), "{help}");
}

#[test]
fn foreign_devices_are_reported() {
    let seen = |manifest| {
        let machine = Machine::of(manifest, Behind::Driver(Era::AccelDrm));
        let error = machine.fails(KernelSelector::FirstFree, NodeKind::Compute);
        error.evidence().unwrap().seen.clone().expect(manifest)
    };
    assert_eq!(
        seen("no-device.txt"),
        "0000:b3:00.0 (driver vfio-pci), 0000:b4:00.0 (no driver)",
        "the cards and their drivers"
    );
    assert_eq!(seen("not-loaded.txt"), "0000:b3:00.0 (no driver)");
    assert_eq!(seen("others.txt"), "accel0 of amdxdna");
    assert_eq!(seen("no-card.txt"), "no card of PCI vendor 1da3");
}

#[test]
fn missing_compute_node_is_named() {
    let machine = Machine::of("hl-6.1.txt", Behind::Driver(Era::HlMisc));
    machine.remove("dev/hl0");
    let (kind, cause, help) = open_error(&machine, NodeKind::Compute);
    assert_eq!(kind, ErrorKind::NotFound);
    assert_eq!(cause, "the device has its control node, but /dev/hl0 is missing");
    assert!(help.contains("--device=/dev/hl0"), "{help}");
}

#[test]
fn unreadable_folder_differs_from_empty() {
    let machine = Machine::of("drm-7.3.txt", Behind::Driver(Era::AccelDrm));
    fs::remove_dir_all(machine.root.path().join("sys/class")).unwrap();
    let mode = |path: &str, mode| {
        fs::set_permissions(machine.root.path().join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("", 0o755);
    mode("dev/accel", 0o311);
    // Root reads every folder: a thread reads as user `nobody`. For another user, this changes
    // nothing.
    let error = std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
            machine.fails(KernelSelector::FirstFree, NodeKind::Compute)
        });
        look.join().unwrap()
    });
    mode("dev/accel", 0o755);
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::PermissionDenied, Some(Errno::EACCES)),
        "{error}"
    );
    assert!(
        error.to_string().contains("with mode 0311"),
        "whose the folder is: {error}"
    );
}

#[test]
fn missing_open_flag_concerns_accel_nodes_only() {
    for (manifest, era, _, _, _) in MACHINES {
        let machine = Machine::of(manifest, Behind::Driver(era));
        for node in ["accel0", "hl0"] {
            machine.recorder.refuse(node, Errno::EINVAL);
        }
        let error = machine.fails(KernelSelector::Index(0), NodeKind::Compute);
        let names_flag = error.to_string().contains("FOP_UNSIGNED_OFFSET");
        assert_eq!(names_flag, era != Era::HlMisc, "{manifest}: {error}");
        assert_eq!(error.errno(), Some(Errno::EINVAL));
        if names_flag {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.help().unwrap().contains("control node"), "{error:?}");
        }
        machine
            .driver
            .open(KernelSelector::Index(0), NodeKind::Control)
            .expect("information works");
    }
}

#[test]
fn ancient_driver_gives_information_only() {
    let machine = Machine::of("hl-6.1.txt", Behind::Driver(Era::HlMisc));
    machine.write("proc/sys/kernel/osrelease", "5.10.0-33-amd64");
    let error = machine.fails(KernelSelector::Index(0), NodeKind::Compute);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("saw Linux 5.10, wanted 6.1 or newer"),
        "{error}"
    );
    assert!(machine.opened().is_empty(), "a failed open costs a reset");
    machine
        .driver
        .open(KernelSelector::Index(0), NodeKind::Control)
        .unwrap();
}

#[test]
fn foreign_nodes_are_identified_by_answer() {
    let machine = Machine::with(&[(0, "0000:19:00.0")]);
    fs::remove_dir_all(machine.root.path().join("sys")).unwrap();
    machine.recorder.put(Behind::Other("intel_vpu"));
    let error = machine.fails(KernelSelector::Index(0), NodeKind::Compute);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.to_string().contains("saw intel_vpu, wanted habanalabs"),
        "{error}"
    );
    machine
        .recorder
        .put(Behind::Other("a driver whose name is longer than any name is"));
    assert!(
        machine
            .fails(KernelSelector::Index(0), NodeKind::Compute)
            .to_string()
            .contains("a driver")
    );
    machine.recorder.put(Behind::File);
    for kind in [NodeKind::Compute, NodeKind::Control] {
        let error = machine.fails(KernelSelector::Index(0), kind);
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::Unsupported, Some(Errno::ENOTTY)),
            "{error}"
        );
    }
}

#[test]
fn device_in_reset_is_polled_with_delay() {
    let machine = Machine::with(&[(0, "0000:19:00.0")]);
    machine.recorder.refuse("accel0", Errno::EAGAIN);
    let open = |timeout| {
        machine
            .driver
            .open_within(KernelSelector::Index(0), NodeKind::Compute, timeout)
    };
    let error = open(Duration::from_millis(100)).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::InReset, Some(Errno::EAGAIN))
    );
    assert_eq!(
        machine.opened().len(),
        5,
        "pauses of 10, 20, 40 and 30 ms lie between five tries"
    );
    assert_eq!(open(Duration::ZERO).unwrap_err().kind(), ErrorKind::InReset);
    assert_eq!(machine.opened().len(), 1, "no timeout, one try");

    let recorder = &machine.recorder;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while recorder.take().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            recorder.allow("accel0");
        });
        let opened = open(Duration::from_secs(60));
        assert_eq!(opened.expect("the device came back").node().device.index, 0);
    });

    machine.recorder.refuse("accel0", Errno::EBUSY);
    machine.opened();
    let started = Instant::now();
    assert_eq!(open(Duration::from_secs(60)).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(machine.opened().len(), 1, "another user is not waited for");
    assert!(started.elapsed() < Duration::from_secs(30), "not for a minute");
}
