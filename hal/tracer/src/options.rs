//! What is recorded, how, and what a run reports at its end.

use std::fmt;
use std::process::ExitStatus;

use gaudi_capture::record::DeviceNumber;

/// What a [`Tracer`](crate::Tracer) records, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tier to use.
    pub backend: Backend,
    /// The type bytes of the ioctls to record (bits 15:8 of the request number).
    pub types: Vec<u8>,
    /// The devices whose ioctls and descriptors are recorded. Empty: every device. Type bytes are
    /// shared (`'d'` by every DRM driver), so pass the numbers of the driver's nodes.
    ///
    /// It concerns device nodes only: an ioctl of another file, such as a dma-buf, is recorded by
    /// its type byte alone.
    pub devices: Vec<DeviceMatch>,
    /// Records opens, duplicates, closes, received descriptors and mappings as well.
    pub files: bool,
    /// Reads the command buffers of submissions, each up to this many bytes. Tier C only: tier B
    /// follows one level of pointers.
    pub command_buffers: Option<u64>,
    /// Tier B: bytes of the buffer between kernel and tracer, rounded up to a power of two.
    pub ring_bytes: u32,
    /// Tier B: threads that can be inside followed system calls without loss, some 10 KiB each.
    pub threads: u32,
    /// Tier B: records what runs in the cgroup (version 2) of this directory too.
    pub cgroup: Option<std::path::PathBuf>,
}

impl Default for Options {
    /// The driver's ioctls of all eras and those of dma-buf, udmabuf, dma-heap, sync_file, VFIO and
    /// RDMA, on every device.
    fn default() -> Self {
        Self {
            backend: Backend::Auto,
            types: vec![b'H', b'd', b'b', b'u', b'>', b';', 0x1b],
            devices: Vec::new(),
            files: true,
            command_buffers: None,
            ring_bytes: 32 << 20,
            threads: 1024,
            cgroup: None,
        }
    }
}

/// Device numbers: one, or all of a major number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMatch {
    /// The major number.
    pub major: u32,
    /// The minor number; none for every one.
    pub minor: Option<u32>,
}

impl DeviceMatch {
    pub(crate) fn matches(self, device: DeviceNumber) -> bool {
        self.major == device.major && self.minor.is_none_or(|minor| minor == device.minor)
    }
}

/// The tier that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// [`Bpf`](Self::Bpf) if it is allowed and nothing needs ptrace(2), otherwise
    /// [`Ptrace`](Self::Ptrace).
    #[default]
    Auto,
    /// Tier B: eBPF programs on the system call tracepoints.
    Bpf,
    /// Tier C: ptrace(2), with a seccomp filter in spawned programs.
    Ptrace,
}

/// The tier that records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Tier B.
    Bpf,
    /// Tier C.
    Ptrace,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bpf => "eBPF",
            Self::Ptrace => "ptrace",
        })
    }
}

impl Tier {
    /// What the tier cannot see, one line each.
    pub const fn unseen(self) -> &'static [&'static str] {
        match self {
            Self::Bpf => &[
                "memory that pointers of pointers lead to, such as command buffers",
                "more than 4 KiB of pointed-to memory a call",
                "memory that was not resident at the time of the call",
                "calls that a seccomp filter of the program answers",
                "ioctls through io_uring",
            ],
            Self::Ptrace => &[
                "calls that a seccomp filter of the program refuses",
                "ioctls through io_uring",
                "programs that another debugger traces",
            ],
        }
    }
}

/// What a run recorded and missed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// The tier that recorded. [`Tier::unseen`] lists what it cannot see.
    pub tier: Tier,
    /// Events passed on, without [`Lost`](gaudi_capture::record::Event::Lost).
    pub events: u64,
    /// Ioctls among them.
    pub ioctls: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Pieces of memory that were recorded in part.
    pub cut: u64,
    /// Arguments and pieces of which no byte could be read.
    pub unreadable: u64,
    /// Threads that could not be followed: a debugger traces them, or the tracer may not.
    pub not_followed: u64,
    /// How the spawned program ended; none if it still runs, or with
    /// [`attach`](crate::Tracer::attach).
    pub status: Option<ExitStatus>,
}
