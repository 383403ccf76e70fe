//! Options of a tracer, and the summary of a run.

use std::fmt;
use std::process::ExitStatus;

use gaudi_capture::record::{DeviceNumber, Losses};

/// Options of a [`Tracer`](crate::Tracer).
#[derive(Clone, Debug)]
pub struct Options {
    /// The tier to use.
    pub backend: Backend,
    /// The type bytes of the ioctls to record (bits 15:8 of the request number).
    pub types: Vec<u8>,
    /// The devices whose ioctls and descriptors are recorded. If empty, every device. Different
    /// drivers share type bytes (every DRM driver uses `'d'`), so pass the device numbers of the
    /// driver's nodes.
    ///
    /// Applies to device nodes only: an ioctl on another file, such as a dma-buf, is selected by
    /// its type byte alone.
    pub devices: Vec<DeviceMatch>,
    /// RDMA devices (`/dev/infiniband/uverbsN`) whose commands by write(2) are recorded. Tier B
    /// only: tier A knows the devices by their paths, and tier C would stop the program at each
    /// write.
    pub rdma: Vec<DeviceMatch>,
    /// Whether to record opens, duplicates, closes, received descriptors and mappings as well.
    pub files: bool,
    /// Whether to read the command buffers of submissions, and up to how many bytes each. Tier C
    /// only: tier B follows one level of pointers.
    pub command_buffers: Option<u64>,
    /// Whether to record the memory that the device wrote. Tier A only: it must be read before the
    /// program continues.
    pub data: bool,
    /// Tier B: size of the buffer between kernel and tracer in bytes, rounded up to a power of two.
    /// Tier A: eight times the size of a thread's ring.
    pub ring_bytes: u32,
    /// Tier B: number of threads that can be in traced system calls at the same time without loss;
    /// about 10 KiB each.
    pub threads: u32,
    /// Tier B: also traces the processes in the cgroup (version 2) of this directory.
    pub cgroup: Option<std::path::PathBuf>,
}

impl Default for Options {
    /// Selects, on every device, the driver's ioctls of all eras and those of dma-buf, udmabuf,
    /// dma-heap, sync_file, VFIO and RDMA.
    fn default() -> Self {
        Self {
            backend: Backend::Auto,
            types: vec![b'H', b'd', b'b', b'u', b'>', b';', 0x1b],
            devices: Vec::new(),
            rdma: Vec::new(),
            files: true,
            command_buffers: None,
            data: false,
            ring_bytes: 32 << 20,
            threads: 1024,
            cgroup: None,
        }
    }
}

/// One device number, or all device numbers of a major number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMatch {
    /// The major number.
    pub major: u32,
    /// The minor number; `None` for all.
    pub minor: Option<u32>,
}

impl DeviceMatch {
    pub(crate) fn matches(self, device: DeviceNumber) -> bool {
        self.major == device.major && self.minor.is_none_or(|minor| minor == device.minor)
    }
}

/// The requested tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// [`Bpf`](Self::Bpf) if it is permitted and no option needs ptrace(2), otherwise
    /// [`Ptrace`](Self::Ptrace).
    #[default]
    Auto,
    /// Tier B: eBPF programs on the system call tracepoints.
    Bpf,
    /// Tier C: ptrace(2), with a seccomp filter in spawned programs.
    Ptrace,
    /// Tier A: a library in the spawned programs.
    Preload,
}

/// The tier in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Tier B.
    Bpf,
    /// Tier C.
    Ptrace,
    /// Tier A.
    Preload,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bpf => "eBPF",
            Self::Ptrace => "ptrace",
            Self::Preload => "preload",
        })
    }
}

impl Tier {
    /// Returns descriptions of what the tier cannot observe, one line each.
    pub const fn unseen(self) -> &'static [&'static str] {
        match self {
            Self::Bpf => &[
                "memory behind nested pointers, such as command buffers",
                "pointed-to memory above 4 KiB per call",
                "memory that was not resident at the time of the call",
                "calls that the program's own seccomp filter handles",
                "ioctls through io_uring",
            ],
            Self::Ptrace => &[
                "calls that the program's own seccomp filter rejects",
                "ioctls through io_uring",
                "programs that another debugger traces",
                "RDMA commands that write(2) passes",
            ],
            Self::Preload => &[
                "programs without the dynamic loader (static) or with other privileges",
                "direct system calls: syscall(), inline assembly, io_uring",
                "calls inside of libc, and of libraries loaded with RTLD_DEEPBIND",
                "calls that a killed thread had not finished",
                "exits of processes, and descriptors that exec closed",
            ],
        }
    }
}

/// Statistics of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// The tier in use. [`Tier::unseen`] lists what it cannot observe.
    pub tier: Tier,
    /// Number of events passed on, without [`Lost`](gaudi_capture::record::Event::Lost).
    pub events: u64,
    /// Number of ioctls among them.
    pub ioctls: u64,
    /// Numbers of lost events.
    pub lost: Losses,
    /// Number of memory ranges that were truncated.
    pub cut: u64,
    /// Number of arguments and memory ranges of which no byte could be read.
    pub unreadable: u64,
    /// Number of threads that could not be traced, because of another debugger or missing
    /// permission.
    pub not_followed: u64,
    /// Descriptions of rings that the traced program overwrote. The rest of such a ring is lost.
    pub corrupt: Vec<String>,
    /// The exit status of the spawned program; `None` if it is still running, or with
    /// [`attach`](crate::Tracer::attach).
    pub status: Option<ExitStatus>,
}
