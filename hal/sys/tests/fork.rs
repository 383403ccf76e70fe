//! Fork children: a mapping may be a hole there, or another mapping; a lock may stay locked.

#![expect(unsafe_code, reason = "fork(2), and mappings at fixed addresses")]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_sys::{Errno, Event, Memfd, RawMapping};
use nix::libc;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

const LEN: usize = 8192;

/// Runs `child` in a fork child. Returns how the child ended.
fn in_child(child: impl FnOnce() -> i32) -> WaitStatus {
    // SAFETY: the test has one thread at work, and the child ends without returning.
    match unsafe { fork() }.expect("fork works") {
        ForkResult::Child => {
            let code = child();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => waitpid(child, None).expect("the child ends"),
    }
}

/// A mapping that the kernel does not copy to a fork child, as the driver's command buffers.
fn uncopied() -> RawMapping {
    let file = Memfd::sparse(c"uncopied", LEN as u64).expect("a file");
    let mapping = RawMapping::of_fd(&file, 0, LEN).expect("mapped");
    let start = mapping.as_ptr().as_ptr().cast::<c_void>();
    // SAFETY: the range is the mapping's, and only a fork child notices.
    let answer = unsafe { libc::madvise(start, LEN, libc::MADV_DONTFORK) };
    assert_eq!(answer, 0, "MADV_DONTFORK");
    mapping
}

#[test]
fn access_in_fork_child_is_efault() {
    let mapping = uncopied();
    let status = in_child(|| {
        let answers = [
            mapping.read(0, &mut [0]),
            mapping.write(0, &[1]),
            mapping.fill(0, 1, 1),
            mapping.copy_from(0, &mapping, 1, 1),
            mapping.load_u32(0, Ordering::Relaxed).map(drop),
            mapping.at(0, 1).map(drop),
        ];
        let wrong = answers.iter().position(|&answer| answer != Err(Errno::EFAULT));
        wrong.map_or(0, |at| at as i32 + 1)
    });
    assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
    mapping.write(0, &[1]).expect("the parent's is mapped");
}

#[test]
fn drop_in_fork_child_spares_new_mapping() {
    let mut mapping = Some(uncopied());
    let start = mapping.as_ref().expect("a mapping").as_ptr();
    let status = in_child(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: nothing is mapped there in the child, and the call fails otherwise.
        let own = unsafe { libc::mmap(start.as_ptr().cast(), LEN, protection, flags, -1, 0) };
        if own == libc::MAP_FAILED || !ptr::eq(own, start.as_ptr().cast()) {
            return 1;
        }
        // SAFETY: the child's own mapping.
        unsafe { start.write_volatile(7) };
        drop(mapping.take());
        // SAFETY: as above, if the drop left it alone.
        let seen = unsafe { start.read_volatile() };
        i32::from(seen != 7) * 2
    });
    assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
}

/// An eventfd that another process may have made.
fn foreign() -> Event {
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("an eventfd");
    Event::of(event.into()).expect("it is one")
}

/// The parent signals in another thread at the time of the fork.
#[test]
fn signal_in_fork_child_takes_no_lock() {
    let ended = AtomicBool::new(false);
    let stuck = thread::scope(|scope| {
        scope.spawn(|| {
            let event = foreign();
            while !ended.load(Ordering::Relaxed) {
                event.signal().expect("signalled");
            }
        });
        let event = foreign();
        let stuck = (0..200).find(|_| {
            // SAFETY: the child takes no lock but those of malloc(3), which survives a fork, and
            // ends without returning.
            match unsafe { fork() }.expect("fork works") {
                ForkResult::Child => {
                    let code = i32::from(event.signal().is_err());
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(code) }
                }
                ForkResult::Parent { child } => {
                    let until = Instant::now() + Duration::from_secs(10);
                    while Instant::now() < until {
                        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
                            Ok(WaitStatus::StillAlive) => thread::sleep(Duration::from_micros(200)),
                            status => return status != Ok(WaitStatus::Exited(child, 0)),
                        }
                    }
                    // SAFETY: takes numbers; the child is not waited for yet, so the number is its
                    // own.
                    let _ = unsafe { libc::kill(child.as_raw(), libc::SIGKILL) };
                    waitpid(child, None).expect("the child ends");
                    true
                }
            }
        });
        ended.store(true, Ordering::Relaxed);
        stuck
    });
    assert_eq!(stuck, None, "a child did not signal");
}
