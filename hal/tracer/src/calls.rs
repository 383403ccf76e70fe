//! The system calls that both tiers trace, and the location of their arguments on this
//! architecture.

use nix::libc;

/// A traced system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Call {
    Ioctl = 1,
    /// open(2): path, flags.
    Open,
    /// creat(2): path.
    Creat,
    /// openat(2) and openat2(2): directory, path, flags or the address of `struct open_how`.
    OpenAt,
    OpenAt2,
    Close,
    CloseRange,
    Dup,
    /// dup2(2) and dup3(2), which first close the new descriptor.
    DupTo,
    /// fcntl(2) with a command that duplicates a descriptor.
    Fcntl,
    Mmap,
    Munmap,
    RecvMsg,
    PidfdGetfd,
    /// write(2) to an RDMA device. Tier B only: a stop for each write costs tier C too much, and a
    /// seccomp filter does not see what a descriptor is.
    Write,
}

/// System call numbers of this architecture. A call can have several.
pub(crate) const NUMBERS: &[(Call, i64)] = &[
    (Call::Ioctl, libc::SYS_ioctl),
    (Call::OpenAt, libc::SYS_openat),
    (Call::OpenAt2, libc::SYS_openat2),
    (Call::Close, libc::SYS_close),
    (Call::CloseRange, libc::SYS_close_range),
    (Call::Dup, libc::SYS_dup),
    (Call::DupTo, libc::SYS_dup3),
    (Call::Fcntl, libc::SYS_fcntl),
    (Call::Mmap, libc::SYS_mmap),
    (Call::Munmap, libc::SYS_munmap),
    (Call::RecvMsg, libc::SYS_recvmsg),
    (Call::PidfdGetfd, libc::SYS_pidfd_getfd),
    #[cfg(target_arch = "x86_64")]
    (Call::Open, libc::SYS_open),
    #[cfg(target_arch = "x86_64")]
    (Call::Creat, libc::SYS_creat),
    #[cfg(target_arch = "x86_64")]
    (Call::DupTo, libc::SYS_dup2),
];

/// The call that tier B follows if RDMA devices are recorded.
pub(crate) const WRITE: (Call, i64) = (Call::Write, libc::SYS_write);

impl Call {
    /// All calls, ordered by discriminant.
    const ALL: [Self; 15] = [
        Self::Ioctl,
        Self::Open,
        Self::Creat,
        Self::OpenAt,
        Self::OpenAt2,
        Self::Close,
        Self::CloseRange,
        Self::Dup,
        Self::DupTo,
        Self::Fcntl,
        Self::Mmap,
        Self::Munmap,
        Self::RecvMsg,
        Self::PidfdGetfd,
        Self::Write,
    ];

    pub(crate) fn from_kind(kind: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|&call| call as u16 == kind)
    }

    pub(crate) fn of_number(nr: u64) -> Option<Self> {
        NUMBERS
            .iter()
            .find(|row| u64::try_from(row.1) == Ok(nr))
            .map(|row| row.0)
    }

    /// Returns the index of the argument that is the address of a path.
    pub(crate) const fn path(self) -> Option<usize> {
        match self {
            Self::Open | Self::Creat => Some(0),
            Self::OpenAt | Self::OpenAt2 => Some(1),
            _ => None,
        }
    }

    /// Returns the index of the descriptor argument that decides whether the call is recorded.
    pub(crate) const fn fd(self) -> Option<usize> {
        match self {
            Self::Ioctl | Self::Close | Self::Dup | Self::DupTo | Self::Fcntl | Self::Write => Some(0),
            Self::Mmap => Some(4),
            _ => None,
        }
    }

    /// Returns the flags of an open. For openat2(2) they must already be in the third argument.
    pub(crate) const fn open_flags(self, arguments: [u64; 6]) -> u32 {
        match self {
            Self::Open => arguments[1] as u32,
            Self::OpenAt | Self::OpenAt2 => arguments[2] as u32,
            Self::Creat => (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u32,
            _ => 0,
        }
    }

    /// Returns whether the call returns a new descriptor.
    pub(crate) const fn opens(self) -> bool {
        self.path().is_some() || matches!(self, Self::PidfdGetfd)
    }
}

/// The fcntl(2) commands that duplicate a descriptor.
pub(crate) const DUPLICATES: [u32; 2] = [libc::F_DUPFD as u32, libc::F_DUPFD_CLOEXEC as u32];
/// The flag of an mmap(2) without a file.
pub(crate) const MAP_ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;
/// ioctl(2) in this architecture's 32-bit ABI (i386 and ARM EABI: `unistd_32.h`).
pub(crate) const COMPAT_IOCTL: u32 = 54;

/// `AUDIT_ARCH_*` of linux/audit.h.
#[cfg(target_arch = "x86_64")]
pub(crate) const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(crate) const AUDIT_ARCH: u32 = 0xc000_00b7;

/// ioctl(2) of the x32 ABI (`__X32_SYSCALL_BIT + 514`). Its `AUDIT_ARCH` is that of x86-64.
pub(crate) const X32_IOCTL: u32 = 0x4000_0000 + 514;

/// Offsets in `struct pt_regs` and the task's flags, for the eBPF programs.
#[cfg(target_arch = "x86_64")]
pub(crate) mod registers {
    /// The range of `struct pt_regs` that contains all fields below: from `bp` to `orig_ax`.
    pub(crate) const START: i32 = 32;
    pub(crate) const LEN: i32 = 96;
    /// `di`, `si`, `dx`, `r10`, `r8`, `r9`: the offsets of the arguments from [`START`].
    pub(crate) const ARGUMENTS: [i16; 6] = [80, 72, 64, 24, 40, 32];
    /// `bx`, `cx`, `dx`: the arguments of a 32-bit call.
    pub(crate) const COMPAT: [i16; 3] = [8, 56, 64];
    /// `orig_ax`, which the system call does not change; the offset from the start of the struct.
    pub(crate) const NUMBER: i32 = 120;
    /// The field of `struct thread_info` that marks a 32-bit call (`TS_COMPAT`).
    pub(crate) const COMPAT_FIELD: &str = "status";
    pub(crate) const COMPAT_BIT: i32 = 2;
}
#[cfg(target_arch = "aarch64")]
pub(crate) mod registers {
    pub(crate) const START: i32 = 0;
    pub(crate) const LEN: i32 = 48;
    pub(crate) const ARGUMENTS: [i16; 6] = [0, 8, 16, 24, 32, 40];
    pub(crate) const COMPAT: [i16; 3] = [0, 8, 16];
    /// `syscallno`; the following four bytes are padding.
    pub(crate) const NUMBER: i32 = 280;
    /// `TIF_32BIT`.
    pub(crate) const COMPAT_FIELD: &str = "flags";
    pub(crate) const COMPAT_BIT: i32 = 1 << 22;
}
