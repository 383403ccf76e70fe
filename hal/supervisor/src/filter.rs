//! The seccomp filter of the program (classic BPF): which system calls are passed to the
//! supervisor.

#![expect(unsafe_code, reason = "seccomp(2) takes an address and has no wrapper")]

use std::os::fd::{FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::libc;

/// Offsets in `struct seccomp_data`: the number, the architecture, the low half of argument 1.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const REQUEST: u32 = 24;

/// linux/audit.h
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// The type bytes of the driver's ioctls, of all eras.
const TYPES: [u8; 2] = [b'H', b'd'];

/// A system call that is passed to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Ioctl,
    Open,
    OpenAt,
    OpenAt2,
    Stat,
    Lstat,
    Fstat,
    StatAt,
    Statx,
    Access,
    AccessAt,
    ReadLink,
    ReadLinkAt,
    GetDents,
}

/// Each call's number.
const CALLS: &[(libc::c_long, Call)] = &[
    (libc::SYS_ioctl, Call::Ioctl),
    (libc::SYS_openat, Call::OpenAt),
    (libc::SYS_openat2, Call::OpenAt2),
    (libc::SYS_fstat, Call::Fstat),
    (libc::SYS_newfstatat, Call::StatAt),
    (libc::SYS_statx, Call::Statx),
    (libc::SYS_faccessat, Call::AccessAt),
    (libc::SYS_faccessat2, Call::AccessAt),
    (libc::SYS_readlinkat, Call::ReadLinkAt),
    (libc::SYS_getdents64, Call::GetDents),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, Call::Open),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, Call::Stat),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, Call::Lstat),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_access, Call::Access),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_readlink, Call::ReadLink),
];

/// Returns the call of a number.
pub(crate) fn call_of(number: i32) -> Option<Call> {
    let found = CALLS
        .iter()
        .find(|(known, _)| *known == libc::c_long::from(number));
    found.map(|(_, call)| *call)
}

/// The filter in the kernel's format.
#[derive(Clone, Debug)]
pub(crate) struct Filter(Vec<libc::sock_filter>);

impl Filter {
    pub(crate) fn new() -> Self {
        let mut filter = vec![
            statement(LOAD, ARCH),
            jump(AUDIT_ARCH, 1, 0),
            statement(RETURN, ALLOW),
            statement(LOAD, NUMBER),
        ];
        let mut ioctl = vec![statement(LOAD, REQUEST), statement(AND, 0xff00)];
        for kind in TYPES {
            ioctl.push(jump(u32::from(kind) << 8, 0, 1));
            ioctl.push(statement(RETURN, NOTIFY));
        }
        ioctl.push(statement(RETURN, ALLOW));
        for &(number, call) in CALLS {
            let block = match call {
                Call::Ioctl => &ioctl[..],
                _ => &[statement(RETURN, NOTIFY)],
            };
            // Numbers of system calls and lengths of blocks are small.
            filter.push(jump(number as u32, 0, block.len() as u8));
            filter.extend_from_slice(block);
        }
        filter.push(statement(RETURN, ALLOW));
        Self(filter)
    }

    /// Installs the filter for this thread and its descendants, and returns the descriptor that
    /// receives the calls. Async-signal-safe: callable between fork(2) and execve(2).
    pub(crate) fn install(&self) -> Result<OwnedFd, Errno> {
        nix::sys::prctl::set_no_new_privs()?;
        let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        // A signal would restart a call that is being served (Linux 5.19).
        let killable = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
        match self.try_install(listener | killable) {
            Err(Errno::EINVAL) => self.try_install(listener),
            answer => answer,
        }
    }

    fn try_install(&self, flags: libc::c_ulong) -> Result<OwnedFd, Errno> {
        let program = libc::sock_fprog {
            len: libc::c_ushort::try_from(self.0.len()).map_err(|_| Errno::EINVAL)?,
            filter: self.0.as_ptr().cast_mut(),
        };
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        // SAFETY: the program has `len` instructions, which the kernel copies.
        let answer = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
        let number = libc::c_int::try_from(Errno::result(answer)?).map_err(|_| Errno::EBADF)?;
        // SAFETY: a successful call returns a new descriptor that only this process owns.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

const fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

const fn jump(k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: EQUAL,
        jt,
        jf,
        k,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the instructions that the filter uses.
    fn answer(arch: u32, number: i64, request: u32) -> u32 {
        let filter = Filter::new().0;
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = filter[at];
            at += 1;
            match step.code {
                LOAD => {
                    accumulator = match step.k {
                        NUMBER => number as u32,
                        ARCH => arch,
                        _ => request,
                    }
                }
                AND => accumulator &= step.k,
                EQUAL => at += usize::from(if accumulator == step.k { step.jt } else { step.jf }),
                _ => return step.k,
            }
        }
    }

    #[test]
    fn only_served_calls_are_passed() {
        let of = |number, request| answer(AUDIT_ARCH, number, request);
        assert_eq!(of(libc::SYS_ioctl, 0xc018_4801), NOTIFY);
        assert_eq!(of(libc::SYS_ioctl, 0xc018_6440), NOTIFY);
        assert_eq!(of(libc::SYS_ioctl, 0x5401), ALLOW, "TCGETS");
        assert_eq!(of(libc::SYS_openat, 0), NOTIFY);
        assert_eq!(of(libc::SYS_statx, 0), NOTIFY);
        assert_eq!(of(libc::SYS_read, 0), ALLOW);
        assert_eq!(of(libc::SYS_mmap, 0), ALLOW);
        assert_eq!(answer(0x4000_0003, libc::SYS_openat, 0), ALLOW, "32-bit programs");
    }
}
