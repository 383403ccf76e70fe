//! The record model: what a tracer sees of a traced process, one [`Event`] for each.
//!
//! Times are CLOCK_MONOTONIC in nanoseconds. Process and thread ids are those of the tracer's pid
//! namespace; `pid` is the thread group. Texts of the traced process are bytes: a path or a name
//! need not be UTF-8.

/// One event of a traced process. A capture holds events in the order in which they ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An ioctl.
    Ioctl(IoctlRecord),
    /// A file descriptor came into being, except by dup(2).
    Open(OpenRecord),
    /// close(2), also of a descriptor that exec(2) closed.
    Close {
        /// When it ended.
        time_ns: u64,
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The descriptor.
        fd: i32,
        /// 0 or -errno.
        result: i64,
    },
    /// dup(2), dup2(2), dup3(2), and fcntl(2) with `F_DUPFD` or `F_DUPFD_CLOEXEC`.
    Dup {
        /// When it ended.
        time_ns: u64,
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The old descriptor.
        fd: i32,
        /// The new descriptor, whose earlier file is closed, or -errno.
        result: i64,
    },
    /// mmap(2) of a file.
    Mmap(MmapRecord),
    /// munmap(2) of a range that an [`Event::Mmap`] mapped at least in part.
    Munmap {
        /// When it ended.
        time_ns: u64,
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
        /// 0 or -errno.
        result: i64,
    },
    /// A process or thread started, executed a program or exited.
    Process(ProcessRecord),
    /// Events are missing here.
    Lost {
        /// When the tracer noticed.
        time_ns: u64,
        /// How many.
        count: u64,
    },
    /// What no system call shows: an injected fault, a lost device.
    Mark(MarkRecord),
}

impl Event {
    /// When it began; of an event that has no duration, when it took place.
    pub fn time_ns(&self) -> u64 {
        match self {
            Self::Ioctl(ioctl) => ioctl.time_ns,
            Self::Open(open) => open.time_ns,
            Self::Mmap(mmap) => mmap.time_ns,
            Self::Process(process) => process.time_ns,
            Self::Mark(mark) => mark.time_ns,
            Self::Close { time_ns, .. }
            | Self::Dup { time_ns, .. }
            | Self::Munmap { time_ns, .. }
            | Self::Lost { time_ns, .. } => *time_ns,
        }
    }

    /// The process and the thread; none for [`Event::Lost`].
    pub fn thread(&self) -> Option<(u32, u32)> {
        Some(match self {
            Self::Ioctl(ioctl) => (ioctl.pid, ioctl.tid),
            Self::Open(open) => (open.pid, open.tid),
            Self::Mmap(mmap) => (mmap.pid, mmap.tid),
            Self::Process(process) => (process.pid, process.tid),
            Self::Mark(mark) => (mark.pid, mark.tid),
            Self::Close { pid, tid, .. } | Self::Dup { pid, tid, .. } | Self::Munmap { pid, tid, .. } => {
                (*pid, *tid)
            }
            Self::Lost { .. } => return None,
        })
    }
}

/// An ioctl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlRecord {
    /// When it was entered.
    pub time_ns: u64,
    /// From entry to exit. 0 if the thread died inside.
    pub duration_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The descriptor.
    pub fd: i32,
    /// The device of the descriptor's file, if it is known and a device (`st_rdev`).
    pub device: Option<DeviceNumber>,
    /// The request number as the program passed it.
    pub request: u32,
    /// The third argument: the address of the argument struct, or a plain number.
    pub argument: u64,
    /// Whether a program of the 32-bit ABI made the call, whose structs have other layouts.
    pub compat: bool,
    /// The value that the kernel returned, or -errno.
    pub result: i64,
    /// The argument struct at entry. Shorter than the request number says if it could not be read.
    pub input: Vec<u8>,
    /// The argument struct at exit.
    pub output: Vec<u8>,
    /// What pointers of the argument led to.
    pub memory: Vec<Memory>,
}

/// A piece of the traced process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Its address in the traced process.
    pub address: u64,
    /// When it was read.
    pub at: Moment,
    /// The bytes that were read.
    pub bytes: Vec<u8>,
    /// The bytes that there were to read; more than `bytes` has if the piece was cut.
    pub whole: u64,
}

/// When a tracer read memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moment {
    /// Before the kernel ran the system call.
    Entry,
    /// After it.
    Exit,
}

/// A device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The major number, which names the driver.
    pub major: u32,
    /// The minor number, which names the device.
    pub minor: u32,
}

impl DeviceNumber {
    /// Takes `st_rdev` of stat(2) apart, as `gnu_dev_major` and `gnu_dev_minor` do.
    pub const fn from_rdev(rdev: u64) -> Self {
        Self {
            major: (rdev >> 8 & 0xfff | rdev >> 32 & 0xffff_f000) as u32,
            minor: (rdev & 0xff | rdev >> 12 & 0xffff_ff00) as u32,
        }
    }
}

/// A file descriptor that came into being.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRecord {
    /// When the system call was entered; for an inherited descriptor, when the tracer saw it.
    pub time_ns: u64,
    /// From entry to exit; 0 for an inherited descriptor.
    pub duration_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// How it came.
    pub source: FdSource,
    /// The path that the program passed, or what `/proc/PID/fd` shows. Empty if neither is known.
    pub path: Vec<u8>,
    /// The flags of open(2).
    pub flags: u32,
    /// The device of the file, if it is known and a device.
    pub device: Option<DeviceNumber>,
    /// The descriptor, or -errno.
    pub result: i64,
}

/// How a file descriptor came into a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FdSource {
    /// open(2), openat(2), openat2(2) or creat(2).
    Open,
    /// The process had it when tracing began.
    Inherited,
    /// It came over a socket (`SCM_RIGHTS`).
    Received,
    /// pidfd_getfd(2).
    Taken,
    /// Another system call made it: memfd_create(2), eventfd(2), socket(2).
    Created,
}

/// A mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MmapRecord {
    /// When it was entered.
    pub time_ns: u64,
    /// From entry to exit.
    pub duration_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The address that the program passed.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// `PROT_*`.
    pub protection: u32,
    /// `MAP_*`.
    pub flags: u32,
    /// The descriptor.
    pub fd: i32,
    /// The device of the descriptor's file, if it is known and a device.
    pub device: Option<DeviceNumber>,
    /// Bytes into the file.
    pub offset: u64,
    /// The address, or -errno.
    pub result: i64,
}

/// A process or thread started, executed a program or exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// When.
    pub time_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// What happened.
    pub change: ProcessChange,
}

/// What happened to a process or thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessChange {
    /// Tracing of it began, or a traced thread created it.
    Start {
        /// The process that created it; 0 if it ran before tracing began.
        parent: u32,
        /// Whether it shares the descriptor table of `parent` (`CLONE_FILES`).
        shares_files: bool,
        /// The thread's name (`/proc/PID/comm`).
        name: Vec<u8>,
    },
    /// It executed a program.
    Exec {
        /// The program's path.
        path: Vec<u8>,
    },
    /// It exited.
    Exit {
        /// The status of wait(2).
        status: u32,
    },
}

/// What no system call shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRecord {
    /// When.
    pub time_ns: u64,
    /// The process that it concerns; 0 for none.
    pub pid: u32,
    /// The thread that it concerns; 0 for none.
    pub tid: u32,
    /// What it marks.
    pub kind: MarkKind,
    /// One line, such as the rule of an injected fault.
    pub text: Vec<u8>,
}

/// What a mark stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkKind {
    /// A fault was injected into the event before.
    Fault,
    /// The device was lost.
    DeviceLost,
    /// The device was reset.
    Reset,
    /// A remark of the user or of the tracer.
    Note,
}
