//! The real system calls, on files that stand where nodes would.
#![expect(unsafe_code, reason = "fork(2) is what the last case is about")]

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use gaudi_kernel::{Driver, Kernel, System};
use gaudi_seam::{CbHandle, ErrorKind, InfoRequest, KernelIo, KernelSelector, MmapRequest, NodeKind};
use gaudi_sys::Errno;
use gaudi_uapi::info::InfoOp;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use tempfile::TempDir;

fn open() -> (TempDir, Kernel) {
    let root = tempfile::tempdir().unwrap();
    let nodes = root.path().join("dev/accel");
    fs::create_dir_all(&nodes).unwrap();
    symlink("/dev/null", nodes.join("accel_controlD0")).unwrap();
    fs::write(nodes.join("accel0"), [7; 8192]).unwrap();
    let driver = Driver::at(root.path(), Arc::new(System));
    let kernel = driver.open(KernelSelector::Index(0), NodeKind::Compute).unwrap();
    (root, kernel)
}

#[test]
fn a_file_that_is_no_device_knows_no_ioctl() {
    let (root, kernel) = open();
    let error = kernel.cb_destroy(CbHandle(1)).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Unsupported, Some(Errno::ENOTTY))
    );
    let list = Driver::at(root.path(), Arc::new(System)).list();
    assert_eq!(list.len(), 1, "the control node is listed");
    assert_eq!(
        list[0].identity.as_ref().unwrap_err().errno(),
        Some(Errno::ENOTTY)
    );
    let error = Driver::at(root.path(), Arc::new(System))
        .open(KernelSelector::Index(1), NodeKind::Compute)
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::NotFound, Some(Errno::ENOENT))
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

#[test]
fn looking_at_this_machine_never_fails() {
    for device in Driver::new().list() {
        println!(
            "accel{}: {:?}",
            device.index,
            device.identity.map(|i| i.hw_ip.card_name_text().to_owned())
        );
    }
}

#[test]
fn a_fork_child_is_refused() {
    let (_root, kernel) = open();
    // SAFETY: the child only calls methods that allocate little and leaves with _exit; no lock of this test
    // is held.
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
