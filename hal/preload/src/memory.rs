//! Reads of the program's memory that cannot fault.

#![allow(unsafe_code, reason = "reads memory whose address the program passed")]

use std::cell::Cell;

use nix::libc;

const PAGE: u64 = 4096;
/// Pages of the stack that were read, by their number.
const PAGES: usize = 16;
/// Only pages up to this distance above the stack pointer are read directly.
const NEAR: u64 = 1 << 20;
/// Pages in one process_vm_readv(2).
const VECTORS: usize = 32;

thread_local! {
    static READABLE: [Cell<u64>; PAGES] = const { [const { Cell::new(0) }; PAGES] };
}

/// Returns whether a page is a part of the stack in use that has been read before. It stays mapped:
/// a frame of a caller is in it or above.
#[inline]
fn is_stack(page: u64, readable: &[Cell<u64>; PAGES]) -> bool {
    readable[page as usize % PAGES].get() == page
}

/// Copies the bytes at `address` into `to`. Returns the number of bytes before the first one that
/// cannot be read.
#[inline]
pub(crate) fn read(address: u64, to: &mut [u8]) -> usize {
    let here = std::ptr::from_ref(&address).addr() as u64;
    let len = to.len() as u64;
    let Some(end) = address.checked_add(len).filter(|_| len > 0) else {
        return 0;
    };
    let is_near = address >= here && end <= here.saturating_add(NEAR) && len <= PAGE;
    if is_near {
        let (first, last) = (address / PAGE, (end - 1) / PAGE);
        let direct = READABLE.try_with(|pages| is_stack(first, pages) && is_stack(last, pages));
        if direct == Ok(true) {
            let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
            // SAFETY: both pages belong to the stack of this thread, above the current frame.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
            return to.len();
        }
    }
    let read = by_kernel(address, to);
    if is_near && read == to.len() {
        let _ = READABLE.try_with(|pages| {
            for page in [address / PAGE, (end - 1) / PAGE] {
                pages[page as usize % PAGES].set(page);
            }
        });
    }
    read
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
