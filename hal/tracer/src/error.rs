//! Errors, with the command that grants the missing permission.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// The reason why tracing failed.
#[derive(Debug)]
pub struct Error {
    /// The step that failed.
    pub kind: ErrorKind,
    /// The error of the failed system call, if any.
    pub source: Option<io::Error>,
}

/// The step that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The program could not be started.
    Spawn,
    /// The process does not exist, or another debugger traces it.
    Attach {
        /// The process or thread.
        pid: u32,
    },
    /// Tier B cannot run on this system.
    BpfRefused(BpfRefusal),
    /// Tier C cannot run on this system: ptrace(2) is not permitted.
    PtraceRefused,
    /// Tier A has no library to load into programs.
    NoLibrary,
    /// The tier does not support an option.
    Unsupported(&'static str),
    /// A system call failed unexpectedly.
    System(&'static str),
}

/// The reason why tier B cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BpfRefusal {
    /// bpf(2) needs CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8).
    Permission {
        /// The value of `kernel.unprivileged_bpf_disabled`, if it can be read.
        unprivileged_bpf_disabled: Option<u8>,
    },
    /// The kernel lacks bpf(2), the ring buffer map (Linux 5.8) or raw tracepoints (4.17).
    NoKernelSupport(&'static str),
    /// The kernel has no BTF (`CONFIG_DEBUG_INFO_BTF`), or its BTF lacks a required field.
    NoTypes(&'static str),
    /// The tracer runs in a pid namespace, but the eBPF programs see pids of the initial namespace.
    PidNamespace,
    /// The verifier rejected a program. This is a bug in this crate.
    Rejected {
        /// The program's name.
        program: &'static str,
        /// The end of the verifier's log.
        log: String,
    },
    /// The directory is not in a cgroup2 hierarchy.
    NoCgroup,
}

impl BpfRefusal {
    /// Returns the command that grants the missing permission, if there is one.
    pub fn grant(&self) -> Option<&'static str> {
        match self {
            Self::Permission { .. } => Some(
                "sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep \"$(command -v gaudi)\"  \
                 (or run it with sudo)",
            ),
            Self::PidNamespace => Some("run it in the host's pid namespace (docker: --pid=host)"),
            _ => None,
        }
    }
}

impl fmt::Display for BpfRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permission {
                unprivileged_bpf_disabled,
            } => {
                f.write_str("EPERM: CAP_BPF and CAP_PERFMON are missing")?;
                match unprivileged_bpf_disabled {
                    Some(value) => write!(f, " (kernel.unprivileged_bpf_disabled = {value})"),
                    None => Ok(()),
                }
            }
            Self::NoKernelSupport(what) => write!(f, "the kernel has no {what}"),
            Self::NoTypes(what) => write!(f, "the kernel does not describe {what} (BTF)"),
            Self::PidNamespace => f.write_str("the tracer does not run in the host's pid namespace"),
            Self::Rejected { program, log } => write!(f, "the verifier rejected {program}: {log}"),
            Self::NoCgroup => f.write_str("the directory is not in a cgroup2 hierarchy"),
        }
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, source: impl Into<Option<io::Error>>) -> Self {
        Self {
            kind,
            source: source.into(),
        }
    }

    pub(crate) fn system(call: &'static str, errno: Errno) -> Self {
        Self::new(ErrorKind::System(call), io::Error::from(errno))
    }

    pub(crate) fn refused(refusal: BpfRefusal) -> Self {
        Self::new(ErrorKind::BpfRefused(refusal), None)
    }

    /// Returns the command that grants the missing permission, if there is one.
    pub fn grant(&self) -> Option<&'static str> {
        match &self.kind {
            ErrorKind::BpfRefused(refusal) => refusal.grant(),
            ErrorKind::PtraceRefused | ErrorKind::Attach { .. } => {
                Some("sudo sysctl kernel.yama.ptrace_scope=0  (or run it with sudo)")
            }
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ErrorKind::Spawn => f.write_str("cannot start the program")?,
            ErrorKind::Attach { pid } => write!(f, "cannot trace process {pid}")?,
            ErrorKind::BpfRefused(refusal) => write!(f, "cannot use eBPF: {refusal}")?,
            ErrorKind::NoLibrary => f.write_str(
                "cannot find libgaudi_trace.so beside this program or in ../lib/gaudi; \
                 GAUDI_TRACE_LIBRARY=FILE names it",
            )?,
            ErrorKind::PtraceRefused => f.write_str("ptrace(2) is not permitted")?,
            ErrorKind::Unsupported(what) => write!(f, "{what} is not supported by this tier")?,
            ErrorKind::System(call) => write!(f, "{call} failed")?,
        }
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        match self.grant() {
            Some(command) => write!(f, "; to grant it: {command}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
