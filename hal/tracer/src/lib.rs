//! Records the requests of any process to the driver, as [`gaudi_capture`] events.
//!
//! - **Tier A** ([`Tier::Preload`]): a library in the program, which writes to rings in shared
//!   memory. Adds less than a microsecond per ioctl; observes what goes through libc.
//! - **Tier B** ([`Tier::Bpf`]): eBPF programs on the system call tracepoints. Adds less than a
//!   microsecond per ioctl; needs root, or CAP_BPF and CAP_PERFMON.
//! - **Tier C** ([`Tier::Ptrace`]): ptrace(2), with a seccomp filter in spawned programs. Adds tens
//!   of microseconds per ioctl; works for any user.
//! - **One recorder**: tiers B and C pass completed calls to the same code, which introduces each
//!   descriptor before its first use and orders events by their end.
//! - **One table of pointers**: tier B compiles it to instructions, tier C interprets it.
//! - **Loss is an event**: dropped events are counted and reported at their position.
//!
//! docs/src/explanation/trace.md compares what the tiers can observe.

mod bpf;
mod calls;
mod error;
mod options;
mod process;
mod ptrace;
mod recorder;
mod rings;
mod spawn;
mod tracer;

pub use error::{BpfRefusal, Error, ErrorKind};
pub use options::{Backend, DeviceMatch, Options, Summary, Tier};
pub use tracer::{Item, StopHandle, Tracer};

/// `ERESTARTSYS` of include/linux/errno.h: a signal interrupted the call, which is restarted or
/// fails with EINTR. A record contains it as -512.
pub const ERESTARTSYS: i32 = 512;
