//! The record model: one [`Event`] for each action of a traced process that a tracer observes.
//!
//! Times are nanoseconds of CLOCK_MONOTONIC. Process and thread ids are those of the tracer's pid
//! namespace; `pid` is the thread group. Strings of the traced process are bytes, because a path or
//! a name need not be UTF-8.

/// An event of a traced process. A capture stores events in the order of their ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An ioctl.
    Ioctl(IoctlRecord),
    /// A file descriptor was created, except by dup(2).
    Open(OpenRecord),
    /// close(2), or the close of a descriptor by exec(2).
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
    /// write(2) of an RDMA command.
    Write(WriteRecord),
    /// munmap(2) of a range that overlaps a mapping of [`Event::Mmap`].
    Munmap {
        /// When it ended.
        time_ns: u64,
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// First address.
        address: u64,
        /// Length in bytes.
        length: u64,
        /// 0 or -errno.
        result: i64,
    },
    /// A process or thread started, executed a program or exited.
    Process(ProcessRecord),
    /// Events are missing at this position.
    Lost {
        /// When the tracer detected the loss.
        time_ns: u64,
        /// The number of missing events.
        count: u64,
        /// Why they are missing.
        cause: LostCause,
    },
    /// An event that is not a system call: an injected fault, a lost device.
    Mark(MarkRecord),
    /// Content of memory that the device can write.
    Data(DataRecord),
}

impl Event {
    /// Returns when the event began, or when it happened if it has no duration.
    pub fn time_ns(&self) -> u64 {
        match self {
            Self::Ioctl(ioctl) => ioctl.time_ns,
            Self::Open(open) => open.time_ns,
            Self::Mmap(mmap) => mmap.time_ns,
            Self::Write(write) => write.time_ns,
            Self::Process(process) => process.time_ns,
            Self::Mark(mark) => mark.time_ns,
            Self::Data(data) => data.time_ns,
            Self::Close { time_ns, .. }
            | Self::Dup { time_ns, .. }
            | Self::Munmap { time_ns, .. }
            | Self::Lost { time_ns, .. } => *time_ns,
        }
    }

    /// Returns the process and thread id; `None` for [`Event::Lost`].
    pub fn thread(&self) -> Option<(u32, u32)> {
        Some(match self {
            Self::Ioctl(ioctl) => (ioctl.pid, ioctl.tid),
            Self::Open(open) => (open.pid, open.tid),
            Self::Mmap(mmap) => (mmap.pid, mmap.tid),
            Self::Write(write) => (write.pid, write.tid),
            Self::Process(process) => (process.pid, process.tid),
            Self::Mark(mark) => (mark.pid, mark.tid),
            Self::Data(data) => (data.pid, data.tid),
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
    /// From entry to exit, in nanoseconds. 0 if the thread died in the call.
    pub duration_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The descriptor.
    pub fd: i32,
    /// The device number (`st_rdev`) of the descriptor's file; `None` if unknown or not a device.
    pub device: Option<DeviceNumber>,
    /// The request number that the program passed.
    pub request: u32,
    /// The third argument: the address of the argument struct, or an integer.
    pub argument: u64,
    /// Whether the call used the 32-bit ABI, whose structs have other layouts.
    pub compat: bool,
    /// The return value of the kernel, or -errno.
    pub result: i64,
    /// The argument struct at entry. Shorter than the size in the request number if it could not be
    /// read.
    pub input: Vec<u8>,
    /// The argument struct at exit.
    pub output: Vec<u8>,
    /// The memory that pointers in the argument refer to.
    pub memory: Vec<Memory>,
}

/// A range of the traced process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The address in the traced process.
    pub address: u64,
    /// When the range was read.
    pub at: Moment,
    /// The bytes read.
    pub bytes: Vec<u8>,
    /// The length of the range in bytes. Larger than `bytes` if the copy was truncated.
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
    /// The major number, which identifies the driver.
    pub major: u32,
    /// The minor number, which identifies the device.
    pub minor: u32,
}

impl DeviceNumber {
    /// Splits `st_rdev` of stat(2), like `gnu_dev_major` and `gnu_dev_minor`.
    pub const fn from_rdev(rdev: u64) -> Self {
        Self {
            major: (rdev >> 8 & 0xfff | rdev >> 32 & 0xffff_f000) as u32,
            minor: (rdev & 0xff | rdev >> 12 & 0xffff_ff00) as u32,
        }
    }
}

/// A new file descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRecord {
    /// When the system call was entered; for an inherited descriptor, when the tracer found it.
    pub time_ns: u64,
    /// From entry to exit, in nanoseconds; 0 for an inherited descriptor.
    pub duration_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// How the descriptor was created.
    pub source: FdSource,
    /// The path that the program passed, or the target of `/proc/PID/fd`. Empty if neither is
    /// known.
    pub path: Vec<u8>,
    /// The flags of open(2).
    pub flags: u32,
    /// The device number of the file; `None` if unknown or not a device.
    pub device: Option<DeviceNumber>,
    /// The descriptor, or -errno.
    pub result: i64,
}

/// How a process obtained a file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FdSource {
    /// open(2), openat(2), openat2(2) or creat(2).
    Open,
    /// Open when tracing began.
    Inherited,
    /// Received over a socket (`SCM_RIGHTS`).
    Received,
    /// pidfd_getfd(2).
    Taken,
    /// Created by another system call: memfd_create(2), eventfd(2), socket(2).
    Created,
}

/// A mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MmapRecord {
    /// When it was entered.
    pub time_ns: u64,
    /// From entry to exit, in nanoseconds.
    pub duration_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The address that the program passed.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// `PROT_*`.
    pub protection: u32,
    /// `MAP_*`.
    pub flags: u32,
    /// The descriptor.
    pub fd: i32,
    /// The device number of the descriptor's file; `None` if unknown or not a device.
    pub device: Option<DeviceNumber>,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The address, or -errno.
    pub result: i64,
}

/// A process or thread started, executed a program or exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// When it happened.
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
        /// The process that created it; 0 if it was created before tracing began.
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

/// Memory that the device can write and that has changed. A range longer than an event is recorded
/// in several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRecord {
    /// When it was read.
    pub time_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The memory. At [`Moment::Entry`] it was read before the thread's next ioctl, at
    /// [`Moment::Exit`] after its last one.
    pub memory: Memory,
}

/// An event that is not a system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRecord {
    /// When it happened.
    pub time_ns: u64,
    /// The process that it affects; 0 if none.
    pub pid: u32,
    /// The thread that it affects; 0 if none.
    pub tid: u32,
    /// The kind of event.
    pub kind: MarkKind,
    /// A one-line description, such as the rule of an injected fault.
    pub text: Vec<u8>,
}

/// write(2) to an RDMA device (`/dev/infiniband/uverbsN`): a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteRecord {
    /// When it was entered.
    pub time_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The descriptor.
    pub fd: i32,
    /// The device of the descriptor.
    pub device: Option<DeviceNumber>,
    /// The number of bytes written, or -errno.
    pub result: i64,
    /// The command at entry, and the response at exit.
    pub memory: Vec<Memory>,
}

/// Why events are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LostCause {
    /// The recorder did not report it.
    #[default]
    Unknown,
    /// The buffer between the traced program and the tracer was full.
    BufferFull,
    /// The kernel skipped the tracer's eBPF program, which a preempted thread was running on the
    /// same CPU. The count is an upper bound: it includes calls that are not recorded.
    Skipped,
    /// More threads were traced at the same time than the tracer has room for.
    TooManyThreads,
}

impl LostCause {
    /// All causes, in the order of [`Losses`].
    pub const ALL: [Self; 4] = [
        Self::Unknown,
        Self::BufferFull,
        Self::Skipped,
        Self::TooManyThreads,
    ];

    /// Returns the name in the JSON form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::BufferFull => "buffer_full",
            Self::Skipped => "skipped",
            Self::TooManyThreads => "too_many_threads",
        }
    }
}

/// Numbers of missing events by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses([u64; 4]);

impl Losses {
    /// Counts missing events.
    pub fn add(&mut self, cause: LostCause, count: u64) {
        let sum = &mut self.0[cause as usize];
        *sum = sum.saturating_add(count);
    }

    /// Returns the number of events missing for a cause.
    pub fn of(&self, cause: LostCause) -> u64 {
        self.0[cause as usize]
    }

    /// Returns the number of events missing for any cause.
    pub fn total(&self) -> u64 {
        self.0.iter().copied().fold(0, u64::saturating_add)
    }
}

/// The kind of a [`MarkRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkKind {
    /// A fault was injected into the preceding event.
    Fault,
    /// The device was lost.
    DeviceLost,
    /// The device was reset.
    Reset,
    /// A comment of the user or the tracer.
    Note,
}
