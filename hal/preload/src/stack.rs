//! The bounds of the calling thread's stack, from `/proc/self/maps`, without locks or memory of the
//! heap.

#![allow(unsafe_code, reason = "system calls of signal handlers")]

use nix::libc;

/// Longest line that is parsed: further bytes of it are ignored.
const LINE: usize = 160;

fn close(fd: libc::c_long) {
    // SAFETY: the descriptor is the one opened below. The libc function would be this library's.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Calls `each` with the lines of `/proc/self/maps` until it returns a value.
fn lines<R>(mut each: impl FnMut(&[u8]) -> Option<R>) -> Option<R> {
    // SAFETY: the path is terminated. The descriptor is closed before this function returns.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/proc/self/maps".as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return None;
    }
    let (mut line, mut len) = ([0_u8; LINE], 0);
    let mut buffer = [0_u8; 2048];
    loop {
        // SAFETY: the kernel writes into the buffer.
        let read = unsafe { libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) };
        let bytes = buffer.get(..usize::try_from(read).unwrap_or(0)).unwrap_or(&[]);
        if bytes.is_empty() {
            close(fd);
            return None;
        }
        for &byte in bytes {
            if byte != b'\n' {
                if let Some(at) = line.get_mut(len) {
                    *at = byte;
                    len += 1;
                }
                continue;
            }
            let found = each(&line[..len]);
            len = 0;
            if found.is_some() {
                close(fd);
                return found;
            }
        }
    }
}

/// Returns the range of a line of `/proc/self/maps`.
fn range(line: &[u8]) -> Option<(u64, u64)> {
    let text = line.split(|&byte| byte == b' ').next()?;
    let mut numbers = text.split(|&byte| byte == b'-').map(|digits| {
        let digits = std::str::from_utf8(digits).ok()?;
        u64::from_str_radix(digits, 16).ok()
    });
    Some((numbers.next()??, numbers.next()??))
}

/// Returns the mapped part of the thread's own stack if `here` is in it.
///
/// The first thread's stack has a name. That of another thread has a guard page below it and the
/// thread's control block at its top; the kernel can merge it with a mapping above.
pub(crate) fn find(here: u64) -> Option<(u64, u64)> {
    // SAFETY: pthread_self(3) has no arguments and does not fail.
    let block = unsafe { libc::pthread_self() } as u64;
    // SAFETY: no arguments; neither call fails.
    let id = |number| unsafe { libc::syscall(number) };
    let is_leader = id(libc::SYS_gettid) == id(libc::SYS_getpid);
    lines(|line| {
        let (low, high) = range(line)?;
        if !(low..high).contains(&here) {
            return None;
        }
        let is_first = line.ends_with(b"[stack]");
        let is_own = !is_leader && (here..high).contains(&block);
        // No other mapping has the address: end the search in any case.
        Some(match (is_first, is_own) {
            (true, _) => Some((low, high)),
            (false, true) => Some((low, block)),
            (false, false) => None,
        })
    })
    .flatten()
}
