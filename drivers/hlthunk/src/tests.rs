//! The driver request of each function, on every interface, and each function's failures.

#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the functions under test are C's; each call passes memory that the test owns, or an address that only the stub of a driver sees"
)]

mod layouts;
mod machines;
mod records;
mod requests;
mod waits;

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::rc::Rc;

use gaudi_sys::Errno;
use gaudi_uapi::{Era, Ioctl};
use zerocopy::IntoBytes as _;

use crate::stub::with_kernel;

/// A descriptor number that no test uses.
const FD: c_int = 1_000_000;

/// A call that reached the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    fd: c_int,
    ioctl: Ioctl,
    words: Vec<u64>,
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().expect("8 bytes"));
    bytes.chunks(8).map(word).collect()
}

/// Runs `test` on a driver of one interface, which rejects other request numbers. `answer` receives
/// the argument and writes the driver's answer to it. Returns the calls that the driver accepted.
fn on_driver<T>(
    era: Era,
    mut answer: impl FnMut(Ioctl, &mut [u64]) -> Result<(), Errno> + 'static,
    test: impl FnOnce() -> T,
) -> (T, Vec<Seen>) {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&seen);
    let kernel = move |fd, request, bytes: &mut [u8]| {
        let ioctl = Ioctl::ALL
            .into_iter()
            .find(|&ioctl| era.request(ioctl) == Some(request));
        let ioctl = ioctl.ok_or(Errno::ENOTTY)?;
        let mut argument = words(bytes);
        log.borrow_mut().push(Seen {
            fd,
            ioctl,
            words: argument.clone(),
        });
        let result = answer(ioctl, &mut argument);
        bytes.copy_from_slice(argument.as_bytes());
        result
    };
    let value = with_kernel(kernel, test);
    (value, seen.take())
}

/// As [`on_driver`], with the current interface.
fn on_today<T>(
    answer: impl FnMut(Ioctl, &mut [u64]) -> Result<(), Errno> + 'static,
    test: impl FnOnce() -> T,
) -> (T, Vec<Seen>) {
    on_driver(Era::AccelDrm, answer, test)
}

fn errno() -> Errno {
    Errno::last()
}

#[test]
fn panic_becomes_eio() {
    let value = crate::guard::guarded(crate::guard::negative_errno, || {
        std::panic::panic_any("a bug");
    });
    assert_eq!(value, -(Errno::EIO as c_int));
    assert_eq!(errno(), Errno::EIO);
}

#[test]
fn panicking_driver_becomes_eio() {
    let (value, _) = on_today(
        |_, _| panic!("a bug"),
        || unsafe { crate::hlthunk_device_memory_alloc(FD, 1, 0, false, false) },
    );
    assert_eq!((value, errno()), (0, Errno::EIO));
}

#[test]
fn panic_in_repeated_call_becomes_eio() {
    let mut tries = 0;
    let driver = move |_, _: &mut _| {
        tries += 1;
        assert!(tries == 1, "a bug");
        Err(Errno::EINTR)
    };
    let (value, _) = on_today(driver, || unsafe { crate::hlthunk_get_device_id_from_fd(FD) });
    assert_eq!((value, errno()), (0, Errno::EIO));
}

#[test]
fn interface_is_found_once() {
    for era in [Era::AccelH, Era::AccelDrm, Era::HlMisc] {
        let tries = Rc::new(RefCell::new(0));
        let count = Rc::clone(&tries);
        let kernel = move |_, request, _: &mut [u8]| {
            *count.borrow_mut() += 1;
            let known = era.request(Ioctl::Memory) == Some(request);
            known.then_some(()).ok_or(Errno::ENOTTY)
        };
        with_kernel(kernel, || unsafe {
            assert_eq!(crate::hlthunk_memory_unmap(FD, 1), 0, "{era}");
            let first = tries.replace(0);
            assert!(first <= 2, "{era}: {first} calls");
            assert_eq!(crate::hlthunk_memory_unmap(FD, 1), 0, "{era}");
            assert_eq!(*tries.borrow(), 1, "{era}: the interface is remembered");
        });
    }
}

#[test]
fn foreign_descriptor_is_enotty() {
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&null);
    let mut status = 7;
    unsafe {
        assert_eq!(
            crate::hlthunk_wait_for_cs(fd, 1, 0, &raw mut status),
            -(Errno::ENOTTY as c_int)
        );
        assert_eq!(errno(), Errno::ENOTTY);
        assert_eq!(
            crate::hlthunk_destroy_command_buffer(-1, 1),
            -(Errno::EBADF as c_int)
        );
        assert_eq!(
            crate::hlthunk_nic_user_ccq_unset(fd, 0),
            -(Errno::ENOTTY as c_int)
        );
    }
    assert_eq!(status, 7, "the status is not written");
}

#[test]
fn invalid_struct_address_is_efault() {
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&null);
    unsafe {
        // /dev/null rejects the request number before anything reads the argument.
        assert_eq!(
            crate::hlthunk_get_info(fd, std::ptr::without_provenance_mut(8)),
            -(Errno::ENOTTY as c_int)
        );
        assert_eq!(
            crate::hlthunk_debug(fd, std::ptr::null_mut()),
            -(Errno::ENOTTY as c_int)
        );
    }
}

#[test]
fn deprecated_functions_are_eperm() {
    let null = std::ptr::null_mut();
    unsafe {
        assert_eq!(
            crate::hlthunk_deprecated_func1(FD, 0, 0, null, std::ptr::null_mut()),
            -1
        );
        assert_eq!(errno(), Errno::EPERM);
        assert_eq!(crate::hlthunk_deprecated_func2(FD, 0, 0, 0, 0, 0, 0), -1);
        assert_eq!(crate::hlthunk_deprecated_func3(FD, 0, std::ptr::null_mut()), -1);
    }
}

#[test]
fn unserved_functions_are_eopnotsupp() {
    let wanted = -(Errno::EOPNOTSUPP as c_int);
    unsafe {
        let null = std::ptr::null_mut;
        assert_eq!(crate::hlthunk_get_mac_addr_info(FD, std::ptr::null_mut()), wanted);
        assert_eq!(crate::hlthunk_nic_cq_create(FD, 0, std::ptr::null_mut()), wanted);
        assert_eq!(crate::hlthunk_nic_cq_destroy(FD, 0), wanted);
        assert_eq!(
            crate::hlthunk_nic_cq_wait(FD, 0, null(), null(), null(), 0),
            wanted
        );
        assert_eq!(crate::hlthunk_nic_cq_update_consumed_entries(FD, 0, 0), wanted);
        assert_eq!(
            crate::hlthunk_nic_xe_vm_create(FD, null(), std::ptr::null_mut()),
            wanted
        );
        assert_eq!(crate::hlthunk_nic_xe_vm_destroy(FD, 0, 0), wanted);
        assert_eq!(crate::hlthunk_nic_xe_device_memory_alloc(FD, 0, 0), 0);
        assert_eq!(errno(), Errno::EOPNOTSUPP);
        assert_eq!(crate::hlthunk_nic_xe_device_memory_free(FD, 0), wanted);
        assert_eq!(
            crate::hlthunk_nic_xe_memory_map(FD, 0, 0, std::ptr::null_mut(), 0, 0),
            wanted
        );
        assert_eq!(crate::hlthunk_nic_xe_memory_unmap(FD, 0, 0, 0), wanted);
        assert_eq!(crate::hlthunk_profiler_start(FD), -1);
        assert_eq!(crate::hlthunk_profiler_stop(FD), -1);
        assert_eq!(
            crate::hlthunk_profiler_get_trace(
                FD,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut()
            ),
            -1
        );
    }
}

/// Descriptors that differ from those of a closed struct.
fn debugfs(fds: [c_int; 3], saved: &[u8]) -> crate::HlthunkDebugfs {
    let mut clk_gate_val = [0; 32];
    for (to, &from) in clk_gate_val.iter_mut().zip(saved) {
        *to = from as std::ffi::c_char;
    }
    let [addr_fd, data_fd, clk_gate_fd] = fds;
    crate::HlthunkDebugfs {
        addr_fd,
        data_fd,
        clk_gate_fd,
        clk_gate_val,
    }
}

fn descriptors(files: &crate::HlthunkDebugfs) -> [c_int; 3] {
    [files.addr_fd, files.data_fd, files.clk_gate_fd]
}

#[test]
fn failed_debugfs_open_leaves_nothing_open() {
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let mut files = debugfs([7, 8, 9], b"");
    let code = unsafe { crate::hlthunk_debugfs_open(null.as_raw_fd(), &raw mut files) };
    assert_eq!(code, -(Errno::ENODEV as c_int));
    assert_eq!(descriptors(&files), [-1; 3]);
}

#[test]
fn debugfs_close_restores_clock_gating_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("clk_gate");
    let file = |name: &str| {
        std::fs::File::create(dir.path().join(name))
            .expect("a file")
            .into_raw_fd()
    };
    let mut files = debugfs(["addr", "data32", "clk_gate"].map(file), b"1\n");
    assert_eq!(unsafe { crate::hlthunk_debugfs_close(&raw mut files) }, 0);
    assert_eq!(std::fs::read(&path).expect("the file"), b"1\n\0");
    assert_eq!(descriptors(&files), [-1; 3], "a second close finds none");
    assert_eq!(unsafe { crate::hlthunk_debugfs_close(&raw mut files) }, 0);
    assert_eq!(std::fs::read(&path).expect("the file"), b"1\n\0");
}

#[test]
fn unreadable_event_descriptor_is_eperm() {
    let (mut events, mut count) = (7, 7);
    let code = unsafe { crate::hlthunk_notifier_recv(FD, FD, &raw mut events, &raw mut count, 0, 0) };
    assert_eq!((code, count), (-(Errno::EPERM as c_int), 0));
}

#[test]
fn memory_is_zeroed_and_freed() {
    unsafe {
        let memory = crate::hlthunk_malloc(64).cast::<u8>();
        assert!(!memory.is_null());
        assert_eq!(std::slice::from_raw_parts(memory, 64), [0; 64]);
        crate::hlthunk_free(memory.cast());
        crate::hlthunk_free(std::ptr::null_mut());
        // The optimizer may take an allocation that nothing reads for a success.
        let too_much = std::hint::black_box(crate::hlthunk_malloc(usize::MAX));
        assert!(too_much.is_null());
        assert_eq!(errno(), Errno::ENOMEM);
        let version = crate::hlthunk_get_version();
        let text = std::ffi::CStr::from_ptr(version).to_str().expect("text");
        assert!(text.starts_with("1.10.0-"), "{text}");
        crate::hlthunk_free(version.cast());
    }
}
