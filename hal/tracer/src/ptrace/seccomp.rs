//! The seccomp filter of spawned programs (classic BPF): only calls that may be recorded stop; all
//! others run at full speed.

#![expect(unsafe_code, reason = "seccomp(2) takes an address and has no wrapper")]

use std::io;

use nix::errno::Errno;
use nix::libc;

use crate::calls::{AUDIT_ARCH, COMPAT_IOCTL, Call, DUPLICATES, MAP_ANONYMOUS, NUMBERS, X32_IOCTL};
use crate::options::Options;

/// Offsets in `struct seccomp_data`: the number, the architecture, the low half of an argument.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + index * 8
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const BIT_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const TRACE: u32 = libc::SECCOMP_RET_TRACE;

/// The filter in the kernel's format.
#[derive(Clone, Debug)]
pub(crate) struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// Builds the filter for the calls that `options` selects.
    pub(crate) fn new(options: &Options) -> Self {
        let mut filter = Self(Vec::new());
        let ioctl = filter.ioctl_block(&options.types);
        filter.push(LOAD, ARCH);
        let mut other = Self(Vec::new());
        other.push(LOAD, NUMBER);
        other.when(COMPAT_IOCTL, &ioctl);
        other.push(RETURN, ALLOW);
        filter.unless(AUDIT_ARCH, &other.0);
        filter.push(LOAD, NUMBER);
        filter.when(X32_IOCTL, &ioctl);
        for &(call, number) in NUMBERS {
            let Ok(number) = u32::try_from(number) else {
                continue;
            };
            match call {
                Call::Ioctl => filter.when(number, &ioctl),
                _ if !options.files => {}
                Call::Fcntl => {
                    let mut block = Self(Vec::new());
                    block.push(LOAD, argument(1));
                    for command in DUPLICATES {
                        block.when(command, &[statement(RETURN, TRACE)]);
                    }
                    block.push(RETURN, ALLOW);
                    filter.when(number, &block.0);
                }
                Call::Mmap => {
                    let block = [
                        statement(LOAD, argument(3)),
                        jump(BIT_SET, MAP_ANONYMOUS, 0, 1),
                        statement(RETURN, ALLOW),
                        statement(RETURN, TRACE),
                    ];
                    filter.when(number, &block);
                }
                _ => filter.when(number, &[statement(RETURN, TRACE)]),
            }
        }
        filter.push(RETURN, ALLOW);
        filter
    }

    /// Builds the block that selects ioctls by their type byte.
    fn ioctl_block(&self, types: &[u8]) -> Vec<libc::sock_filter> {
        debug_assert!(self.0.is_empty(), "the block ends the filter");
        let mut block = Self(vec![statement(LOAD, argument(1)), statement(AND, 0xff00)]);
        for &kind in types {
            block.when(u32::from(kind) << 8, &[statement(RETURN, TRACE)]);
        }
        block.push(RETURN, ALLOW);
        block.0
    }

    fn push(&mut self, code: u16, value: u32) {
        self.0.push(statement(code, value));
    }

    /// Runs `block`, which returns, if the accumulator equals `value`.
    fn when(&mut self, value: u32, block: &[libc::sock_filter]) {
        // A conditional jump reaches 255 instructions. A longer block needs an unconditional jump.
        match u8::try_from(block.len()) {
            Ok(length) => self.0.push(jump(EQUAL, value, 0, length)),
            Err(_) => {
                self.0.push(jump(EQUAL, value, 1, 0));
                let always = (libc::BPF_JMP | libc::BPF_JA) as u16;
                self.0.push(statement(always, block.len() as u32));
            }
        }
        self.0.extend_from_slice(block);
    }

    /// Runs `block`, which returns, if the accumulator differs from `value`.
    fn unless(&mut self, value: u32, block: &[libc::sock_filter]) {
        self.0.push(jump(EQUAL, value, 1, 0));
        let always = (libc::BPF_JMP | libc::BPF_JA) as u16;
        // Jump to the block, past the jump that skips it.
        self.0.push(statement(always, 1));
        self.0.push(statement(always, block.len() as u32));
        self.0.extend_from_slice(block);
    }

    /// Installs the filter for this thread and its descendants. Sets no_new_privs if the thread
    /// lacks CAP_SYS_ADMIN. Async-signal-safe: callable between fork(2) and execve(2).
    pub(crate) fn install(&self) -> io::Result<()> {
        match self.try_install() {
            Err(Errno::EACCES | Errno::EPERM) => {
                nix::sys::prctl::set_no_new_privs()?;
                Ok(self.try_install()?)
            }
            answer => Ok(answer?),
        }
    }

    fn try_install(&self) -> Result<(), Errno> {
        let program = libc::sock_fprog {
            len: libc::c_ushort::try_from(self.0.len()).map_err(|_| Errno::EINVAL)?,
            filter: self.0.as_ptr().cast_mut(),
        };
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        // SAFETY: the program has `len` instructions, which the kernel copies.
        let answer = unsafe { libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) };
        Errno::result(answer).map(drop)
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

const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the filter's result for a call. Interprets the classic BPF instructions that the
    /// filter uses.
    fn answer(filter: &Filter, arch: u32, number: u32, arguments: [u32; 6]) -> u32 {
        let word = |at: u32| match at {
            NUMBER => number,
            ARCH => arch,
            _ => arguments[(at as usize - 16) / 8],
        };
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = filter.0[at];
            at += 1;
            match step.code {
                LOAD => accumulator = word(step.k),
                AND => accumulator &= step.k,
                EQUAL => at += usize::from(if accumulator == step.k { step.jt } else { step.jf }),
                BIT_SET => {
                    at += usize::from(if accumulator & step.k != 0 {
                        step.jt
                    } else {
                        step.jf
                    });
                }
                RETURN => return step.k,
                _ => at += step.k as usize,
            }
        }
    }

    #[test]
    fn only_recorded_calls_stop() {
        let options = Options {
            types: vec![b'H', b'd'],
            ..Options::default()
        };
        let filter = Filter::new(&options);
        let of = |call: i64, arguments| answer(&filter, AUDIT_ARCH, call as u32, arguments);
        let ioctl = |request: u32| of(libc::SYS_ioctl, [3, request, 0, 0, 0, 0]);
        assert_eq!(ioctl(0xc018_4801), TRACE, "type 'H'");
        assert_eq!(ioctl(0xc018_6440), TRACE, "type 'd'");
        assert_eq!(ioctl(0x5401), ALLOW, "TCGETS");
        assert_eq!(of(libc::SYS_getppid, [0; 6]), ALLOW);
        assert_eq!(of(libc::SYS_openat, [0; 6]), TRACE);
        assert_eq!(of(libc::SYS_fcntl, [3, libc::F_GETFL as u32, 0, 0, 0, 0]), ALLOW);
        assert_eq!(of(libc::SYS_fcntl, [3, libc::F_DUPFD as u32, 0, 0, 0, 0]), TRACE);
        assert_eq!(of(libc::SYS_mmap, [0, 0, 0, MAP_ANONYMOUS, u32::MAX, 0]), ALLOW);
        assert_eq!(of(libc::SYS_mmap, [0, 0, 0, 1, 3, 0]), TRACE);
        let i386 = 0x4000_0003;
        assert_eq!(answer(&filter, i386, 54, [3, 0xc018_4801, 0, 0, 0, 0]), TRACE);
        assert_eq!(answer(&filter, i386, 54, [3, 0x5401, 0, 0, 0, 0]), ALLOW);
        assert_eq!(
            answer(&filter, i386, libc::SYS_ioctl as u32, [0; 6]),
            ALLOW,
            "lchown"
        );
        let bare = Filter::new(&Options {
            files: false,
            ..options
        });
        assert_eq!(answer(&bare, AUDIT_ARCH, libc::SYS_openat as u32, [0; 6]), ALLOW);
    }
}
