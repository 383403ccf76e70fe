//! Records what any process asks of the driver, as [`gaudi_capture`] events.
//!
//! - **Tier B** ([`Tier::Bpf`]): eBPF programs on the system call tracepoints. Some hundred
//!   nanoseconds an ioctl; root, or CAP_BPF and CAP_PERFMON.
//! - **Tier C** ([`Tier::Ptrace`]): ptrace(2), with a seccomp filter in spawned programs. Some ten
//!   microseconds an ioctl; any user.
//! - **One recorder**: both tiers pass finished calls to the same code, which introduces each
//!   descriptor before its first use and orders events by their end.
//! - **One table of pointers**: tier B turns it into instructions, tier C follows it as it is.
//! - **Loss is an event**: what a tier drops is counted and reported in place.
//!
//! docs/src/explanation/trace.md compares what the tiers see and miss.

mod bpf;
mod calls;
mod error;
mod options;
mod pointers;
mod process;
mod ptrace;
mod recorder;
mod spawn;
mod tracer;

pub use error::{BpfRefusal, Error, ErrorKind};
pub use options::{Backend, DeviceMatch, Options, Summary, Tier};
pub use tracer::{StopHandle, Tracer};

/// `ERESTARTSYS` of include/linux/errno.h: a signal interrupted the call, and it will be restarted
/// or fail with EINTR. A record has it as -512.
pub const ERESTARTSYS: i32 = 512;
