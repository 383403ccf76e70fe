//! [`Error`]: one type for the framework, with a kind to branch on, evidence and the errno.

use std::fmt;

use gaudi_sys::Errno;

use crate::io::Backend;
use crate::operation::Operation;
use crate::rules::{Rule, Subject};

/// `Result` with the framework's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, for code that decides what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is invalid: a size, an alignment, a handle, a combination (`EINVAL`). Do not
    /// repeat it.
    InvalidInput,
    /// This backend, chip or kernel does not have the operation (`EOPNOTSUPP`, `ENOTTY`).
    Unsupported,
    /// No such device, handle or file (`ENOENT`, `ENODEV` at open).
    NotFound,
    /// The user lacks the permission (`EPERM`, `EACCES`).
    PermissionDenied,
    /// Another user has the device or the object (`EBUSY`). Try again after its release.
    Busy,
    /// An export, a mapping or a region still uses the object. Release that first.
    InUse,
    /// The operation would have to wait, and did nothing (`EAGAIN`). Try again after progress.
    WouldBlock,
    /// The caller's deadline passed; the work continues.
    TimedOut,
    /// The work ran into the driver's timeout (`ETIMEDOUT`); a reset follows.
    Hung,
    /// The device was reset, removed or disabled (`ENODEV`, `EIO`). All its objects are invalid.
    DeviceLost,
    /// The device is in reset (`EAGAIN` at open). Try again.
    InReset,
    /// There is no host memory, or it cannot be pinned (`ENOMEM`).
    OutOfMemory,
    /// There is no device memory (`ENOMEM` of an allocation on the device).
    OutOfDeviceMemory,
    /// An address is not mapped (`EFAULT`).
    BadAddress,
    /// The process has no free file descriptor (`EMFILE`, `ENFILE`).
    TooManyFiles,
    /// The object belongs to the parent process of this fork child.
    Forked,
    /// A key, a bound or an access right forbids the remote operation.
    AccessDenied,
    /// The peer closed the connection or died.
    Disconnected,
    /// The peer violated the protocol.
    Protocol,
    /// Data is corrupt: a digest or a comparison failed.
    Corrupt,
    /// Any other I/O error; see the errno.
    Io,
}

impl ErrorKind {
    /// The kind's name in messages and JSON: `snake_case`, stable.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid_input",
            Self::Unsupported => "unsupported",
            Self::NotFound => "not_found",
            Self::PermissionDenied => "permission_denied",
            Self::Busy => "busy",
            Self::InUse => "in_use",
            Self::WouldBlock => "would_block",
            Self::TimedOut => "timed_out",
            Self::Hung => "hung",
            Self::DeviceLost => "device_lost",
            Self::InReset => "in_reset",
            Self::OutOfMemory => "out_of_memory",
            Self::OutOfDeviceMemory => "out_of_device_memory",
            Self::BadAddress => "bad_address",
            Self::TooManyFiles => "too_many_files",
            Self::Forked => "forked",
            Self::AccessDenied => "access_denied",
            Self::Disconnected => "disconnected",
            Self::Protocol => "protocol",
            Self::Corrupt => "corrupt",
            Self::Io => "io",
        }
    }

    /// The kind with this [`name`](Self::name). `None` if there is none.
    pub fn of_name(name: &str) -> Option<Self> {
        const ALL: [ErrorKind; 21] = [
            ErrorKind::InvalidInput,
            ErrorKind::Unsupported,
            ErrorKind::NotFound,
            ErrorKind::PermissionDenied,
            ErrorKind::Busy,
            ErrorKind::InUse,
            ErrorKind::WouldBlock,
            ErrorKind::TimedOut,
            ErrorKind::Hung,
            ErrorKind::DeviceLost,
            ErrorKind::InReset,
            ErrorKind::OutOfMemory,
            ErrorKind::OutOfDeviceMemory,
            ErrorKind::BadAddress,
            ErrorKind::TooManyFiles,
            ErrorKind::Forked,
            ErrorKind::AccessDenied,
            ErrorKind::Disconnected,
            ErrorKind::Protocol,
            ErrorKind::Corrupt,
            ErrorKind::Io,
        ];
        ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The usual kind of an errno, for any operation.
    pub fn of_errno(errno: Errno) -> Self {
        match errno {
            Errno::EINVAL | Errno::E2BIG | Errno::ERANGE | Errno::EOVERFLOW | Errno::EBADF => {
                Self::InvalidInput
            }
            Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::ENOSYS => Self::Unsupported,
            Errno::ENOENT | Errno::ENXIO => Self::NotFound,
            Errno::EPERM | Errno::EACCES => Self::PermissionDenied,
            Errno::EBUSY => Self::Busy,
            Errno::EAGAIN => Self::WouldBlock,
            Errno::ETIMEDOUT => Self::Hung,
            Errno::ENODEV => Self::DeviceLost,
            Errno::ENOMEM => Self::OutOfMemory,
            Errno::EFAULT => Self::BadAddress,
            Errno::EMFILE | Errno::ENFILE => Self::TooManyFiles,
            Errno::EPIPE | Errno::ECONNRESET | Errno::ECONNABORTED | Errno::ENOTCONN => Self::Disconnected,
            Errno::EPROTO | Errno::EBADMSG => Self::Protocol,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().replace('_', " "))
    }
}

/// A device, in errors and tables. Small enough to be stored inline.
///
/// Two mocks of one index and different names are two devices. `Display` gives `accel3`, `mock0`
/// or, for a mock with a name, `mock0?name=foo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The kind of backend.
    pub backend: Backend,
    /// N of `accelN`, or the mock's index in its process.
    pub index: u32,
    /// The name of a mock, as its spec has it. The second reference makes this one pointer wide.
    name: Option<&'static &'static str>,
}

impl DeviceId {
    /// A device without a name.
    pub const fn new(backend: Backend, index: u32) -> Self {
        Self {
            backend,
            index,
            name: None,
        }
    }

    pub(crate) const fn named(self, name: Option<&'static &'static str>) -> Self {
        Self { name, ..self }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.backend {
            Backend::Kernel => write!(f, "accel{}", self.index),
            Backend::Mock => write!(f, "mock{}", self.index),
        }?;
        self.name.map_or(Ok(()), |name| write!(f, "?name={name}"))
    }
}

/// The evidence of an error, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The cause in one clause, without the operation's name.
    pub cause: String,
    /// The invalid value, if one value is the cause.
    pub seen: Option<String>,
    /// The valid value or range.
    pub wanted: Option<String>,
    /// The next step.
    pub help: Option<String>,
}

/// The failure of an operation.
///
/// `Display` prints operation, device, cause, seen and wanted values, and the errno's name in one
/// line; [`Error::help`] returns the next step.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    errno: Option<Errno>,
    /// The operation of an error that names a rule.
    operation: Option<Operation>,
    device: Option<DeviceId>,
    origin: Origin,
    evidence: Option<Box<Evidence>>,
}

/// What failed: as small as a name, so that an error with a rule needs no allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Name(&'static str),
    Rule(&'static Rule),
}

impl Error {
    /// An error of `operation` with its kind only.
    pub const fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self {
            kind,
            errno: None,
            operation: None,
            device: None,
            origin: Origin::Name(operation),
            evidence: None,
        }
    }

    /// An error of `operation` with the usual kind of an errno.
    pub fn from_errno(operation: &'static str, errno: Errno) -> Self {
        Self {
            kind: ErrorKind::of_errno(errno),
            errno: Some(errno),
            operation: None,
            device: None,
            origin: Origin::Name(operation),
            evidence: None,
        }
    }

    /// An error of `operation` that a rule of the driver explains. Allocates nothing.
    pub fn from_rule(operation: Operation, rule: &'static Rule) -> Self {
        debug_assert!(
            rule.subject.has(operation),
            "{} is not a rule of {operation}",
            rule.id
        );
        Self {
            kind: rule.kind(Some(operation)),
            errno: Some(rule.errno),
            operation: Some(operation),
            device: None,
            origin: Origin::Rule(rule),
            evidence: None,
        }
    }

    /// An open that failed for a rule of the driver. Allocates nothing.
    pub fn of_open(rule: &'static Rule) -> Self {
        debug_assert!(
            matches!(rule.subject, Subject::Open(_)),
            "{} is not a rule of open",
            rule.id
        );
        Self {
            kind: rule.kind(None),
            errno: Some(rule.errno),
            operation: None,
            device: None,
            origin: Origin::Rule(rule),
            evidence: None,
        }
    }

    /// `Unsupported`, with the reason.
    pub fn unsupported(operation: &'static str, why: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, operation)
            .with_errno(Errno::EOPNOTSUPP)
            .because(why)
    }

    /// `WouldBlock`, with no allocation.
    pub const fn would_block(operation: &'static str) -> Self {
        Self {
            kind: ErrorKind::WouldBlock,
            errno: Some(Errno::EAGAIN),
            operation: None,
            device: None,
            origin: Origin::Name(operation),
            evidence: None,
        }
    }

    /// `TimedOut`, with no allocation.
    pub const fn timed_out(operation: &'static str) -> Self {
        Self {
            kind: ErrorKind::TimedOut,
            errno: None,
            operation: None,
            device: None,
            origin: Origin::Name(operation),
            evidence: None,
        }
    }

    /// Sets the kind.
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the errno.
    pub fn with_errno(mut self, errno: Errno) -> Self {
        self.errno = Some(errno);
        self
    }

    /// Sets the device.
    pub fn on(mut self, device: DeviceId) -> Self {
        self.device = Some(device);
        self
    }

    /// Sets the cause, one clause.
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.evidence_mut().cause = cause.into();
        self
    }

    /// Sets the value that was seen and the valid ones.
    pub fn saw(mut self, seen: impl fmt::Display, wanted: impl fmt::Display) -> Self {
        let evidence = self.evidence_mut();
        evidence.seen = Some(seen.to_string());
        evidence.wanted = Some(wanted.to_string());
        self
    }

    /// Sets the value that was seen.
    pub fn showing(mut self, seen: impl fmt::Display) -> Self {
        self.evidence_mut().seen = Some(seen.to_string());
        self
    }

    /// Names the rule that an error of `operation` comes from; its kind, cause and help stay.
    pub fn with_rule(mut self, operation: Operation, rule: &'static Rule) -> Self {
        self.operation = Some(operation);
        self.origin = Origin::Rule(rule);
        self
    }

    /// Sets the next step.
    pub fn helped_by(mut self, help: impl Into<String>) -> Self {
        self.evidence_mut().help = Some(help.into());
        self
    }

    fn evidence_mut(&mut self) -> &mut Evidence {
        self.evidence.get_or_insert_default()
    }

    /// The kind, to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The errno of the kernel, or of the mock in its place.
    pub fn errno(&self) -> Option<Errno> {
        self.errno
    }

    /// The failed operation, in the spelling of the kernel or of rdma-core.
    pub fn operation(&self) -> &'static str {
        match (self.origin, self.operation) {
            (Origin::Name(name), _) => name,
            (Origin::Rule(_), Some(operation)) => operation.kernel_name(),
            (Origin::Rule(_), None) => "open",
        }
    }

    /// The rule of the driver that the request broke, where it is known.
    pub fn rule(&self) -> Option<&'static Rule> {
        match self.origin {
            Origin::Rule(rule) => Some(rule),
            Origin::Name(_) => None,
        }
    }

    /// The cause in one clause, without the operation's name: the rule's condition unless
    /// [`because`](Self::because) gave another.
    pub fn cause(&self) -> Option<&str> {
        let given = self.evidence.as_deref().map(|evidence| &*evidence.cause);
        given
            .filter(|cause| !cause.is_empty())
            .or(self.rule().map(|rule| rule.condition))
    }

    /// The device, if the error concerns one.
    pub fn device(&self) -> Option<DeviceId> {
        self.device
    }

    /// What was added to the error: cause, seen, wanted and help.
    pub fn evidence(&self) -> Option<&Evidence> {
        self.evidence.as_deref()
    }

    /// The next step, if known.
    pub fn help(&self) -> Option<&str> {
        let given = self
            .evidence
            .as_ref()
            .and_then(|evidence| evidence.help.as_deref());
        given.or(self.rule().and_then(|rule| rule.advice))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation())?;
        if let Some(device) = self.device {
            write!(f, " on device {device}")?;
        }
        match self.cause() {
            Some(cause) => write!(f, ": {cause}")?,
            None => write!(f, ": {}", self.kind)?,
        }
        if let Some(evidence) = self.evidence.as_deref() {
            match (&evidence.seen, &evidence.wanted) {
                (Some(seen), Some(wanted)) => write!(f, " (saw {seen}, wanted {wanted})")?,
                (Some(seen), None) => write!(f, " (saw {seen})")?,
                (None, Some(wanted)) => write!(f, " (wanted {wanted})")?,
                (None, None) => {}
            }
        }
        if let Some(errno) = self.errno {
            write!(f, " [{errno:?}]")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)?;
        if let Some(help) = self.help() {
            write!(f, "; help: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    #[test]
    fn an_error_reads_as_a_sentence_and_keeps_its_errno() {
        let error = Error::from_errno("HL_MEM_OP_EXPORT_DMABUF_FD", Errno::EINVAL)
            .on(DeviceId::new(Backend::Mock, 0))
            .because("the offset is not page aligned")
            .saw("0x123", "a multiple of 4096")
            .helped_by("round the offset down and export more");
        assert_eq!(
            error.to_string(),
            "HL_MEM_OP_EXPORT_DMABUF_FD on device mock0: the offset is not page aligned (saw 0x123, wanted a multiple of 4096) [EINVAL]"
        );
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::InvalidInput, Some(Errno::EINVAL))
        );
        assert_eq!(error.help(), Some("round the offset down and export more"));
    }

    #[test]
    fn a_rule_gives_operation_errno_kind_cause_and_help() {
        let error = Error::from_rule(Operation::MemFree, &rules::map::FREE_MAPPED);
        assert_eq!(
            error.to_string(),
            "HL_MEM_OP_FREE: the memory is still mapped [EINVAL]"
        );
        assert_eq!(
            (error.kind(), error.help()),
            (ErrorKind::InUse, Some("unmap it first"))
        );
        assert_eq!(error.rule().map(|rule| rule.id), Some("memory.free.while-mapped"));
        assert!(error.evidence().is_none(), "a rule alone carries no box");
        let error = error.because("handle 7 is mapped").helped_by("unmap 7");
        assert_eq!(
            (error.cause(), error.help()),
            (Some("handle 7 is mapped"), Some("unmap 7"))
        );
    }

    #[test]
    fn the_two_hot_kinds_carry_no_box() {
        assert!(Error::would_block("HL_IOCTL_CS").evidence().is_none());
        assert!(Error::timed_out("HL_IOCTL_WAIT_CS").evidence().is_none());
        assert!(
            size_of::<Error>() <= 48,
            "an error stays small: {}",
            size_of::<Error>()
        );
    }
}
