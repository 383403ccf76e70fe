//! The real system calls, on files that stand where nodes would.
#![expect(
    unsafe_code,
    reason = "fork(2) is what the last case is about, and the name of a driver goes to an address"
)]

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use gaudi_kernel::{Driver, Kernel, Syscalls, System};
use gaudi_seam::{CbHandle, ErrorKind, InfoRequest, KernelIo, KernelSelector, MmapRequest, NodeKind};
use gaudi_sys::{Errno, RawMapping, SysResult};
use gaudi_uapi::drm::{DRIVER_NAME, DRM_IOCTL_VERSION, DrmVersion};
use gaudi_uapi::info::InfoOp;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

/// The real system calls, but the files say that they are habanalabs' nodes.
struct Named;

impl Syscalls for Named {
    fn open(&self, path: &Path) -> SysResult<OwnedFd> {
        System.open(path)
    }

    unsafe fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, args: &mut [u8]) -> SysResult<()> {
        if request == DRM_IOCTL_VERSION {
            let mut version = DrmVersion::read_from_bytes(args).map_err(|_| Errno::EINVAL)?;
            let to = std::ptr::with_exposed_provenance_mut::<u8>(version.name as usize);
            // SAFETY: the caller promised that `name` is writable for `name_len` bytes, which are
            // 32.
            unsafe { std::ptr::copy_nonoverlapping(DRIVER_NAME.as_ptr(), to, DRIVER_NAME.len()) };
            version.name_len = DRIVER_NAME.len() as u64;
            args.copy_from_slice(version.as_bytes());
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { System.ioctl(fd, request, args) }
    }

    fn mmap(&self, fd: BorrowedFd<'_>, offset: u64, len: usize) -> SysResult<RawMapping> {
        System.mmap(fd, offset, len)
    }
}

fn files() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let nodes = root.path().join("dev/accel");
    fs::create_dir_all(&nodes).unwrap();
    symlink("/dev/null", nodes.join("accel_controlD0")).unwrap();
    fs::write(nodes.join("accel0"), [7; 8192]).unwrap();
    root
}

fn open() -> (TempDir, Kernel<Named>) {
    let root = files();
    let driver = Driver::at(root.path(), Arc::new(Named));
    let kernel = driver.open(KernelSelector::Index(0), NodeKind::Compute).unwrap();
    (root, kernel)
}

#[test]
fn regular_file_answers_enotty() {
    let (_root, kernel) = open();
    let error = kernel.cb_destroy(CbHandle(1)).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Unsupported, Some(Errno::ENOTTY))
    );
}

#[test]
fn regular_file_is_rejected_at_open() {
    let root = files();
    let driver = Driver::at(root.path(), Arc::new(System));
    for (kind, index, wanted) in [
        (
            NodeKind::Compute,
            0,
            (ErrorKind::Unsupported, Some(Errno::ENOTTY)),
        ),
        (
            NodeKind::Control,
            0,
            (ErrorKind::Unsupported, Some(Errno::ENOTTY)),
        ),
        (NodeKind::Compute, 1, (ErrorKind::NotFound, Some(Errno::ENOENT))),
    ] {
        let error = driver.open(KernelSelector::Index(index), kind).unwrap_err();
        assert_eq!((error.kind(), error.errno()), wanted, "{error}");
    }
    let list = driver.list();
    assert_eq!(list.len(), 1, "the control node is listed");
    assert_eq!(
        list[0].identity.as_ref().unwrap_err().errno(),
        Some(Errno::ENOTTY)
    );
}

#[test]
fn mmap_maps_the_node() {
    let (_root, kernel) = open();
    let mapping = kernel
        .mmap(MmapRequest {
            offset: 4096,
            len: 4096,
        })
        .unwrap();
    let mut bytes = [0; 4];
    mapping.read(4092, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4], "the file's bytes are seen");
}

/// Whatever this machine has, the list and the nodes in `/dev` are of one mind, and each device is
/// reported whole or with a reason and a next step.
#[test]
fn diagnosis_matches_this_machines_nodes() {
    let names = |folder: &str, prefix: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let numbers = names.filter_map(|name| name.strip_prefix(prefix)?.parse().ok());
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        numbers
    };
    let accel = names("/dev/accel", "accel_controlD");
    let nodes = if accel.is_empty() {
        names("/dev", "hl_controlD")
    } else {
        accel
    };

    let driver = Driver::new();
    let list = driver.list();
    let listed: Vec<_> = list.iter().map(|device| device.index).collect();
    assert_eq!(listed, nodes, "each control node is one device");
    for device in list {
        match device.identity {
            Ok(identity) => assert!(
                !identity.hw_ip.card_name_text().is_empty() && identity.hw_ip.device_id != 0,
                "accel{} has a name and a PCI id",
                device.index
            ),
            Err(error) => assert!(
                error.errno().is_some() && error.device().is_some(),
                "accel{}: {error:?}",
                device.index
            ),
        }
    }
    if nodes.is_empty() {
        let error = driver
            .open(KernelSelector::FirstFree, NodeKind::Control)
            .expect_err("there is no node");
        assert!(error.help().is_some(), "no device is no dead end: {error:?}");
        let loaded = Path::new("/sys/module/habanalabs").exists();
        assert_eq!(
            error.to_string().contains("not loaded"),
            !loaded,
            "loaded or not, as sysfs has it: {error}"
        );
    }
}

#[test]
fn a_fork_child_is_refused() {
    let (_root, kernel) = open();
    // SAFETY: the child only calls methods that allocate little and leaves with _exit; no lock of
    // this test is held.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let info = kernel.info(InfoRequest::new(InfoOp::DEVICE_STATUS), &mut [0; 8]);
            let calls = [info.map(drop), kernel.cb_destroy(CbHandle(1))];
            let refused = calls
                .into_iter()
                .all(|c| c.is_err_and(|e| e.kind() == ErrorKind::Forked));
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { nix::libc::_exit(i32::from(!refused)) }
        }
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None).unwrap();
            assert_eq!(
                ended,
                WaitStatus::Exited(child, 0),
                "each call of the child was ErrorKind::Forked"
            );
            let error = kernel.cb_destroy(CbHandle(1)).unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::Unsupported,
                "the parent goes on as before: {error}"
            );
        }
    }
}
