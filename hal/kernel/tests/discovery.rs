//! Finding and opening devices, on fixtures of `/dev` and `/sys`.

mod listing;
mod machine;
mod recorder;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use gaudi_seam::{Era, ErrorKind, KernelIo, KernelSelector, NodeKind};
use gaudi_sys::Errno;
use gaudi_uapi::info::HlInfoHwIpInfo;
use listing::list;
use machine::Machine;
use recorder::{Behind, Reply, words};
use zerocopy::{FromZeros, IntoBytes};

fn hw_ip(module_id: u32) -> Reply {
    let mut info = HlInfoHwIpInfo::new_zeroed();
    (info.module_id, info.device_id) = (module_id, 0x1020);
    info.card_name[..5].copy_from_slice(b"HL225");
    Reply::Info(info.as_bytes().to_vec(), 0)
}

#[test]
fn listing_uses_control_nodes_only() {
    let machine = Machine::with(&[(10, "0000:b3:00.0"), (2, "0000:19:00.0")]);
    machine.accel(0, "0000:00:0b.0", "intel_vpu");
    machine.recorder.reply([
        hw_ip(3),
        Reply::Info(words(&[0, 0]), 0),
        Reply::Info(words(&[5, 0, 9, 0, 1, 0]), 0),
    ]);
    machine.recorder.refuse("accel_controlD10", Errno::EACCES);
    let list = list(&machine.driver);
    let shown: Vec<_> = list
        .iter()
        .map(|l| (l.index, l.pci.map(|p| p.to_string())))
        .collect();
    let expected = [
        (2, Some("0000:19:00.0".to_owned())),
        (10, Some("0000:b3:00.0".to_owned())),
    ];
    assert_eq!(
        shown, expected,
        "by number, with PCI addresses, without the other driver's device"
    );
    let identity = list[0].identity.as_ref().unwrap();
    assert_eq!(
        (identity.hw_ip.card_name_text(), identity.hw_ip.module_id),
        ("HL225", 3)
    );
    assert_eq!(
        (
            identity.open_stats.open_counter,
            identity.open_stats.is_compute_ctx_active
        ),
        (5, 1)
    );
    let failure = list[1].identity.as_ref().unwrap_err();
    assert_eq!(
        failure.kind(),
        ErrorKind::PermissionDenied,
        "a failure is shown in its place: {failure}"
    );
    assert_eq!(
        machine.opened(),
        ["accel_controlD2", "accel_controlD10"],
        "no compute node was opened"
    );
}

#[test]
fn a_machine_without_devices_lists_none() {
    let machine = Machine::bare(Behind::Driver(Era::AccelDrm));
    assert!(list(&machine.driver).is_empty(), "no /dev/accel is no error");
    machine.accel(0, "0000:00:0b.0", "intel_vpu");
    assert!(
        list(&machine.driver).is_empty(),
        "another driver's device is not ours"
    );
}

#[test]
fn devices_open_by_number_bus_and_module() {
    let machine = Machine::with(&[(0, "0000:19:00.0"), (1, "0000:b3:00.0")]);
    let node = |selector, kind| machine.driver.open(selector, kind).unwrap().node().clone();
    let opened = node(KernelSelector::Index(1), NodeKind::Compute);
    assert_eq!((opened.device.index, opened.kind), (1, NodeKind::Compute));
    assert!(
        opened.name.ends_with("/dev/accel/accel1"),
        "the node's name is its path: {}",
        opened.name
    );
    assert_eq!(machine.opened(), ["accel1"]);

    let bus = KernelSelector::Bus("0000:b3:00.0".parse().unwrap());
    assert_eq!(node(bus, NodeKind::Control).device.index, 1);
    assert_eq!(
        machine.opened(),
        ["accel_controlD1"],
        "sysfs alone finds a PCI address"
    );

    machine.recorder.reply([hw_ip(7), hw_ip(3)]);
    assert_eq!(node(KernelSelector::Module(3), NodeKind::Compute).device.index, 1);
    assert_eq!(
        machine.opened(),
        ["accel_controlD0", "accel_controlD1", "accel1"],
        "modules are asked by control nodes"
    );
}

#[test]
fn device_replaced_during_open_is_not_found() {
    let machine = Machine::with(&[(1, "0000:b3:00.0")]);
    let link = machine.root.path().join("sys/class/accel/accel1/device");
    let other = machine.dir("sys/devices/pci0000:b0/0000:19:00.0");
    machine.recorder.at_open(move || {
        // The card was unplugged, and the next one got its number.
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
    });
    let bus = KernelSelector::Bus("0000:b3:00.0".parse().unwrap());
    let error = machine.fails(bus, NodeKind::Compute);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("0000:19:00.0"), "{error}");
    let opened = machine.driver.open(KernelSelector::Index(1), NodeKind::Compute);
    opened.expect("opening by number accepts any card with that number");
}

#[test]
fn first_free_device_opens() {
    let machine = Machine::with(&[(0, "0000:19:00.0"), (1, "0000:b3:00.0")]);
    machine.recorder.refuse("accel0", Errno::EBUSY);
    let opened = machine
        .driver
        .open(KernelSelector::FirstFree, NodeKind::Compute)
        .unwrap();
    assert_eq!(opened.node().device.index, 1);
    machine.recorder.refuse("accel1", Errno::EAGAIN);
    let error = machine.fails(KernelSelector::FirstFree, NodeKind::Compute);
    assert_eq!(
        (error.kind(), error.device().unwrap().index),
        (ErrorKind::Busy, 0),
        "the first error is returned"
    );
}

#[test]
fn first_of_given_devices_opens() {
    let machine = Machine::with(&[(0, "0000:19:00.0"), (1, "0000:b3:00.0"), (2, "0000:cc:00.0")]);
    let open = |indices: &[u32]| machine.driver.open_first_of(indices, NodeKind::Compute);
    assert_eq!(open(&[2, 1]).unwrap().node().device.index, 2);
    machine.recorder.refuse("accel2", Errno::EBUSY);
    assert_eq!(open(&[2, 1]).unwrap().node().device.index, 1);
    assert_eq!(open(&[2]).err().unwrap().kind(), ErrorKind::Busy);
    assert_eq!(open(&[]).err().unwrap().kind(), ErrorKind::NotFound);
    machine.recorder.reply([hw_ip(7)]);
    assert_eq!(machine.driver.module_id(1), Ok(7));
}

#[test]
fn missing_device_error_lists_present_ones() {
    let machine = Machine::with(&[(0, "0000:19:00.0"), (1, "0000:b3:00.0")]);
    machine.recorder.refuse("accel5", Errno::ENOENT);
    let text = |selector| {
        let error = machine.fails(selector, NodeKind::Compute);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        error.to_string()
    };
    assert!(text(KernelSelector::Index(5)).contains("wanted accel0, accel1"));
    assert!(
        text(KernelSelector::Bus("0000:aa:00.0".parse().unwrap())).contains("[0000:19:00.0, 0000:b3:00.0]")
    );
    machine.recorder.reply([hw_ip(7), hw_ip(3)]);
    assert!(text(KernelSelector::Module(9)).contains("one of [7, 3]"));
}

#[test]
fn other_drivers_are_not_opened() {
    let machine = Machine::with(&[(0, "0000:19:00.0")]);
    machine.accel(1, "0000:00:0b.0", "intel_vpu");
    let error = machine.fails(KernelSelector::Index(1), NodeKind::Compute);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.to_string().contains("saw intel_vpu, wanted habanalabs"),
        "{error}"
    );
    assert_eq!(machine.opened(), [""; 0], "its node was not opened");
}

#[test]
fn each_open_errno_has_its_kind() {
    let cases = [
        (
            NodeKind::Compute,
            Errno::EBUSY,
            ErrorKind::Busy,
            "another process",
        ),
        (NodeKind::Compute, Errno::EAGAIN, ErrorKind::InReset, "in reset"),
        (
            NodeKind::Compute,
            Errno::EPERM,
            ErrorKind::DeviceLost,
            "not operational",
        ),
        (
            NodeKind::Compute,
            Errno::EINVAL,
            ErrorKind::Unsupported,
            "FOP_UNSIGNED_OFFSET",
        ),
        (NodeKind::Compute, Errno::ENODEV, ErrorKind::NotFound, "removed"),
        (NodeKind::Control, Errno::EPERM, ErrorKind::DeviceLost, "disabled"),
        (NodeKind::Control, Errno::ENXIO, ErrorKind::NotFound, "left over"),
        (
            NodeKind::Control,
            Errno::EMFILE,
            ErrorKind::TooManyFiles,
            "cannot open",
        ),
    ];
    for (kind, errno, wanted, text) in cases {
        let machine = Machine::with(&[(0, "0000:19:00.0")]);
        machine.recorder.refuse("accel0", errno);
        machine.recorder.refuse("accel_controlD0", errno);
        let error = machine.fails(KernelSelector::Index(0), kind);
        assert_eq!((error.kind(), error.errno()), (wanted, Some(errno)), "{error}");
        assert!(error.to_string().contains(text), "`{text}` is in: {error}");
        assert_eq!(error.device().unwrap().to_string(), "accel0");
    }
}

#[test]
fn foreign_node_names_its_driver() {
    let machine = Machine::with(&[(0, "0000:19:00.0")]);
    machine.recorder.refuse("accel0", Errno::EACCES);
    let path = machine.root.path().join("dev/accel/accel0");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let error = machine.fails(KernelSelector::Index(0), NodeKind::Compute);
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::PermissionDenied, Some(Errno::EACCES))
    );
    let text = error.to_string();
    assert!(
        text.contains("with mode 0600") && text.contains("you are in:"),
        "owner, mode and groups: {text}"
    );
    assert!(
        error.help().unwrap().contains("udev"),
        "no group has the node: a rule must give it to one"
    );
}
