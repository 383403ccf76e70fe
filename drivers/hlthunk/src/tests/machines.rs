//! Discovery on machines with each layout of `/dev` and `/sys`.

use std::ffi::{CStr, CString, c_int};
use std::fs;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use gaudi_hal::{Driver, System};
use gaudi_sys::Errno;
use gaudi_uapi::Ioctl;
use gaudi_uapi::info::HlInfoHwIpInfo;
use nix::fcntl::{FcntlArg, fcntl};
use tempfile::TempDir;
use zerocopy::FromZeros as _;

use super::{errno, on_driver};
use crate::stub::with_machine;
use crate::*;

/// The layout of a driver's nodes and attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// `/dev/hlN`.
    Misc,
    /// `/dev/accel/accelN` of the vendor's driver before DRM.
    Accel,
    /// The current driver: `pci_addr` in the PCI device's directory.
    Drm,
}

const LAYOUTS: [Layout; 3] = [Layout::Misc, Layout::Accel, Layout::Drm];
const ADDRESSES: [&str; 2] = ["0000:19:00.0", "0001:b3:00.1"];

impl Layout {
    fn era(self) -> gaudi_uapi::Era {
        match self {
            Self::Misc => gaudi_uapi::Era::HlMisc,
            Self::Accel => gaudi_uapi::Era::AccelH,
            Self::Drm => gaudi_uapi::Era::AccelDrm,
        }
    }

    /// Creates a machine with two Gaudi2 of indices 0 and 3. Its character devices are regular
    /// files, so fstat(2) reports 0:0 for each, the number of the second device's control node.
    fn machine(self) -> TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path();
        let (dev, class, prefix) = match self {
            Self::Misc => ("dev", "sys/class/habanalabs", "hl"),
            _ => ("dev/accel", "sys/class/accel", "accel"),
        };
        fs::create_dir_all(root.join(dev)).expect("dev");
        fs::create_dir_all(root.join("sys/dev/char")).expect("char");
        for (index, address) in [0, 3].into_iter().zip(ADDRESSES) {
            for node in [format!("{prefix}{index}"), format!("{prefix}_controlD{index}")] {
                fs::write(root.join(dev).join(&node), "").expect("a node");
                fs::create_dir_all(root.join(class).join(&node)).expect("a class device");
            }
            let device = root.join(class).join(format!("{prefix}{index}"));
            let pci = root.join("sys/devices").join(address);
            fs::create_dir_all(&pci).expect("a PCI device");
            match self {
                Self::Drm => {
                    symlink(&pci, device.join("device")).expect("a link");
                    fs::write(pci.join("pci_addr"), format!("{address}\n")).expect("an attribute");
                }
                _ => fs::write(device.join("pci_addr"), format!("{address}\n")).expect("an attribute"),
            }
        }
        let control = root.join(class).join(format!("{prefix}_controlD3"));
        symlink(control, root.join("sys/dev/char/0:0")).expect("a link");
        dir
    }
}

fn driver(root: &Path) -> impl Fn() -> Driver + 'static {
    let root = root.to_owned();
    move || Driver::at(root.clone(), Arc::new(System))
}

/// Runs `test` on a machine with one kind of chip. The module id counts the queries.
fn on_machine<T>(layout: Layout, root: &Path, device_id: u32, test: impl FnOnce() -> T) -> T {
    let mut asked = 0;
    let answer = move |ioctl, argument: &mut [u64]| {
        assert_eq!(ioctl, Ioctl::Info);
        let mut hw = HlInfoHwIpInfo::new_zeroed();
        hw.device_id = device_id;
        hw.module_id = asked % 2 + 4;
        hw.revision_id = 2;
        asked += 1;
        unsafe { (argument[0] as *mut HlInfoHwIpInfo).write(hw) };
        Ok(())
    };
    with_machine(driver(root), || on_driver(layout.era(), answer, test).0)
}

fn path_of(fd: c_int) -> String {
    assert!(fd >= 0, "a descriptor, not {fd} ({})", errno());
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let flags = fcntl(&fd, FcntlArg::F_GETFD).expect("open");
    assert_eq!(flags, 1, "close-on-exec");
    let link = gaudi_sys::fd::link(&fd).expect("/proc");
    link.file_name()
        .expect("a name")
        .to_str()
        .expect("text")
        .to_owned()
}

const NONE: *const std::ffi::c_char = std::ptr::null();

#[test]
fn devices_are_found_in_every_layout() {
    for layout in LAYOUTS {
        let machine = layout.machine();
        let prefix = if layout == Layout::Misc { "hl" } else { "accel" };
        on_machine(layout, machine.path(), 0x1020, || unsafe {
            assert_eq!(
                hlthunk_get_device_count(HlthunkDeviceName::DONT_CARE),
                2,
                "{layout:?}"
            );
            assert_eq!(
                hlthunk_get_device_count(HlthunkDeviceName::GAUDI2),
                2,
                "{layout:?}"
            );
            assert_eq!(
                hlthunk_get_device_count(HlthunkDeviceName::GAUDI2B),
                2,
                "{layout:?}: revision 2"
            );
            assert_eq!(
                hlthunk_get_device_count(HlthunkDeviceName::GAUDI),
                0,
                "{layout:?}"
            );
            let invalid = -(Errno::EINVAL as c_int);
            assert_eq!(hlthunk_get_device_count(HlthunkDeviceName::INVALID), invalid);
            assert_eq!(hlthunk_get_device_count(HlthunkDeviceName::MAX), invalid);
            let first = format!("{prefix}0");
            assert_eq!(path_of(hlthunk_open(HlthunkDeviceName::DONT_CARE, NONE)), first);
            assert_eq!(path_of(hlthunk_open(HlthunkDeviceName::GAUDI2, NONE)), first);
            let control = |index| format!("{prefix}_controlD{index}");
            assert_eq!(path_of(hlthunk_open_control(3, NONE)), control(3));
            assert_eq!(
                path_of(hlthunk_open_control_by_name(HlthunkDeviceName::GAUDI2, NONE)),
                control(0)
            );
            for (index, address) in [0, 3].into_iter().zip(ADDRESSES) {
                let text = CString::new(address).expect("text");
                let busid = text.as_ptr();
                assert_eq!(
                    hlthunk_get_device_index_from_pci_bus_id(busid),
                    index,
                    "{layout:?}"
                );
                assert_eq!(
                    path_of(hlthunk_open(HlthunkDeviceName::DONT_CARE, busid)),
                    format!("{prefix}{index}")
                );
                assert_eq!(path_of(hlthunk_open_control(0, busid)), control(index));
                assert_eq!(path_of(hlthunk_open_control_by_bus_id(busid)), control(index));
                assert_eq!(
                    path_of(hlthunk_open_control_by_name(HlthunkDeviceName::GOYA, busid)),
                    control(index)
                );
            }
            assert_eq!(
                hlthunk_get_device_index_from_pci_bus_id(c"19:00.0".as_ptr()),
                0,
                "domain 0"
            );
        });
    }
}

#[test]
fn module_id_finds_devices() {
    let layout = Layout::Drm;
    let machine = layout.machine();
    on_machine(layout, machine.path(), 0x1020, || unsafe {
        assert_eq!(path_of(hlthunk_open_by_module_id(5)), "accel3");
        assert_eq!(path_of(hlthunk_open_control_by_module_id(4)), "accel_controlD0");
        assert_eq!(
            hlthunk_get_device_index_from_module_id(5),
            0,
            "the third search starts at 5"
        );
        assert_eq!(hlthunk_open_by_module_id(9), -1);
        assert_eq!(hlthunk_open_control_by_module_id(9), -(Errno::EBADF as c_int));
        assert_eq!(hlthunk_get_device_index_from_module_id(9), -1);
    });
}

#[test]
fn missing_device_fails_by_convention() {
    let layout = Layout::Drm;
    let machine = layout.machine();
    on_machine(layout, machine.path(), 0x1020, || unsafe {
        assert_eq!(hlthunk_open(HlthunkDeviceName::GAUDI, NONE), -1);
        assert_eq!(errno(), Errno::ENOENT);
        for busid in [c"0000:99:00.0", c"nonsense", c"", c"0000:19:00.\xff"] {
            let busid = busid.as_ptr();
            let invalid = -(Errno::EINVAL as c_int);
            assert_eq!(hlthunk_open(HlthunkDeviceName::DONT_CARE, busid), invalid);
            assert_eq!(errno(), Errno::EINVAL);
            assert_eq!(hlthunk_open_control(0, busid), invalid);
            assert_eq!(hlthunk_open_control_by_bus_id(busid), -(Errno::EBADF as c_int));
            assert_eq!(hlthunk_get_device_index_from_pci_bus_id(busid), -1);
        }
        for index in [1, -1, 256, c_int::MAX] {
            assert_eq!(
                hlthunk_open_control(index, NONE),
                -(Errno::ENOENT as c_int),
                "{index}"
            );
        }
    });
    fs::remove_file(machine.path().join("dev/accel/accel0")).expect("a node");
    fs::remove_file(machine.path().join("dev/accel/accel3")).expect("a node");
    fs::create_dir(machine.path().join("dev/accel/accel0")).expect("a folder");
    on_machine(layout, machine.path(), 0x1020, || unsafe {
        assert_eq!(hlthunk_open(HlthunkDeviceName::DONT_CARE, NONE), -1);
        assert_eq!(
            errno(),
            Errno::EISDIR,
            "the second device's ENOENT does not replace the errno"
        );
        let busid = c"0000:19:00.0".as_ptr();
        assert_eq!(
            hlthunk_open(HlthunkDeviceName::DONT_CARE, busid),
            -(Errno::EISDIR as c_int)
        );
    });
}

#[test]
fn descriptor_has_its_devices_address() {
    for layout in LAYOUTS {
        let machine = layout.machine();
        on_machine(layout, machine.path(), 0x1020, || unsafe {
            let opened = OwnedFd::from_raw_fd(hlthunk_open_control(3, NONE));
            // Other tests open descriptors with the lowest free number: this one stays closed.
            let fd = fcntl(&opened, FcntlArg::F_DUPFD_CLOEXEC(900)).expect("a high number");
            drop(opened);
            let mut text = [b'x' as std::ffi::c_char; 16];
            assert_eq!(
                hlthunk_get_pci_bus_id_from_fd(fd, text.as_mut_ptr(), 16),
                0,
                "{layout:?}"
            );
            assert_eq!(CStr::from_ptr(text.as_ptr()).to_str(), Ok(ADDRESSES[1]));
            let mut text = [b'x' as std::ffi::c_char; 16];
            assert_eq!(hlthunk_get_pci_bus_id_from_fd(fd, text.as_mut_ptr(), 12), 0);
            assert_eq!(
                text[11..13].iter().map(|&byte| byte as u8).collect::<Vec<_>>(),
                b"1x",
                "bytes past the length are unchanged"
            );
            assert_eq!(hlthunk_get_device_id_from_fd(fd), 0x1020);
            assert_eq!(hlthunk_get_device_name_from_fd(fd), HlthunkDeviceName::GAUDI2);
            assert_eq!(hlthunk_close(fd), 0);
            assert_eq!(hlthunk_close(fd), -1);
            assert_eq!(errno(), Errno::EBADF);
            assert_eq!(hlthunk_get_pci_bus_id_from_fd(fd, text.as_mut_ptr(), 13), -1);
            assert_eq!(errno(), Errno::EBADF);
        });
    }
}

#[test]
fn chips_have_names() {
    let names = [
        (0x0001, HlthunkDeviceName::GOYA),
        (0x1000, HlthunkDeviceName::GAUDI),
        (0x1010, HlthunkDeviceName::GAUDI),
        (0x1020, HlthunkDeviceName::GAUDI2),
        (0x1060, HlthunkDeviceName::INVALID),
        (0, HlthunkDeviceName::INVALID),
    ];
    let machine = Layout::Drm.machine();
    for (id, name) in names {
        let seen = on_machine(Layout::Drm, machine.path(), id, || unsafe {
            hlthunk_get_device_name_from_fd(super::FD)
        });
        assert_eq!(seen, name, "{id:#x}");
    }
}

#[test]
fn machine_without_devices_reports_none() {
    let empty = tempfile::tempdir().expect("a folder");
    on_machine(Layout::Drm, empty.path(), 0x1020, || unsafe {
        assert_eq!(hlthunk_get_device_count(HlthunkDeviceName::DONT_CARE), 0);
        assert_eq!(hlthunk_open(HlthunkDeviceName::DONT_CARE, NONE), -1);
        assert_eq!(errno(), Errno::ENOENT);
        assert_eq!(hlthunk_open_control(0, NONE), -(Errno::ENOENT as c_int));
    });
}
