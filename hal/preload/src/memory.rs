//! Reads of the program's memory that cannot fault.

#![allow(unsafe_code, reason = "reads memory whose address the program passed")]

use std::cell::Cell;

use nix::libc;

use crate::stack;

const PAGE: u64 = 4096;
/// Pages in one process_vm_readv(2).
const VECTORS: usize = 32;
/// How often a thread looks for its stack.
const TRIES: u8 = 8;

thread_local! {
    /// The part of the thread's stack that is known to be mapped, and how often it was looked for.
    static STACK: (Cell<u64>, Cell<u64>, Cell<u8>) = const { (Cell::new(0), Cell::new(0), Cell::new(0)) };
}

/// Returns whether a range is above the current frame in the thread's own stack: the callers'
/// frames are there, so it is mapped for as long as they run. Other stacks, such as those of
/// coroutines and signal handlers, can end at any place above the frame.
#[inline]
fn is_stack(here: u64, address: u64, end: u64) -> bool {
    let is_known = STACK.try_with(|(low, high, _)| low.get() <= here && end <= high.get());
    here <= address && is_known == Ok(true)
}

/// Looks for the thread's stack if the current frame is outside of the known part.
#[cold]
fn look(here: u64) {
    let _ = STACK.try_with(|(low, high, tries)| {
        if (low.get() <= here && here < high.get()) || tries.get() == TRIES {
            return;
        }
        tries.set(tries.get() + 1);
        if let Some((from, to)) = stack::find(here) {
            low.set(from);
            high.set(to);
        }
    });
}

/// Copies the bytes at `address` into `to`. Returns the number of bytes before the first one that
/// cannot be read.
#[inline]
pub(crate) fn read(address: u64, to: &mut [u8]) -> usize {
    let here = std::ptr::from_ref(&address).addr() as u64;
    let Some(end) = address.checked_add(to.len() as u64).filter(|_| !to.is_empty()) else {
        return 0;
    };
    if !is_stack(here, address, end) {
        if here <= address {
            look(here);
        }
        return by_kernel(address, to);
    }
    let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the range is in the mapped part of this thread's stack, above the current frame.
    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    to.len()
}

#[cold]
fn by_kernel(mut address: u64, to: &mut [u8]) -> usize {
    let mut done = 0;
    while done < to.len() {
        let mut remote = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; VECTORS];
        let mut wanted = 0;
        let mut count = 0;
        // The kernel reads each vector completely or not at all.
        while count < VECTORS && done + wanted < to.len() {
            let len = (PAGE - address % PAGE).min((to.len() - done - wanted) as u64);
            remote[count] = libc::iovec {
                iov_base: std::ptr::without_provenance_mut(address as usize),
                iov_len: len as usize,
            };
            wanted += len as usize;
            count += 1;
            address = address.wrapping_add(len);
        }
        let local = libc::iovec {
            iov_base: to[done..].as_mut_ptr().cast(),
            iov_len: wanted,
        };
        // SAFETY: getpid(2) does not fail; a child of vfork(2) has the memory, but not the id.
        let pid = unsafe { libc::syscall(libc::SYS_getpid) };
        // SAFETY: the kernel writes up to `wanted` bytes into `to`, and reads the program's memory
        // itself.
        let read = unsafe {
            libc::syscall(
                libc::SYS_process_vm_readv,
                pid,
                &raw const local,
                1_usize,
                remote.as_ptr(),
                count,
                0_usize,
            )
        };
        let read = usize::try_from(read).unwrap_or(0);
        done += read;
        if read < wanted {
            break;
        }
    }
    done
}
