//! One error type for the whole framework: a kind to branch on, evidence to act on, and the errno that the kernel gave.

use std::fmt;

use gaudi_sys::Errno;

use crate::io::Backend;
use crate::operation::Operation;
use crate::rules::{Rule, Subject};

/// `Result` with the framework's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for code that must decide what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong: a size, an alignment, a handle, a combination (`EINVAL`). Repeating it cannot help.
    InvalidInput,
    /// This backend, chip or kernel does not have the operation (`EOPNOTSUPP`, `ENOTTY`). Another path must be taken.
    Unsupported,
    /// No such device, handle or file (`ENOENT`, `ENODEV` at open).
    NotFound,
    /// The user may not do this (`EPERM`, `EACCES`).
    PermissionDenied,
    /// Somebody else has the device or the object (`EBUSY`). Waiting for them helps.
    Busy,
    /// The object is still held: an export, a mapping or a region stands on it. Release that first.
    InUse,
    /// Nothing was done because it would have had to wait (`EAGAIN`). Ask again after progress.
    WouldBlock,
    /// The caller's own deadline passed; the work goes on. Slow, not broken.
    TimedOut,
    /// The driver gave the work up after its own timeout (`ETIMEDOUT`); a reset follows.
    Hung,
    /// The device was reset, removed or disabled under us (`ENODEV`, `EIO`). Every object of it is gone.
    DeviceLost,
    /// The device is being reset (`EAGAIN` at open). It comes back.
    InReset,
    /// Host memory ran out or could not be pinned (`ENOMEM`).
    OutOfMemory,
    /// Device memory ran out (`ENOMEM` of an allocation on the device).
    OutOfDeviceMemory,
    /// An address is not mapped (`EFAULT`).
    BadAddress,
    /// The process has no descriptor left (`EMFILE`, `ENFILE`).
    TooManyFiles,
    /// The object belongs to the parent of this fork child.
    Forked,
    /// A key, a bound or an access right forbids the remote operation.
    AccessDenied,
    /// The peer is gone.
    Disconnected,
    /// The peer sent something that the protocol does not allow.
    Protocol,
    /// Data is not what it must be: a digest or a comparison failed.
    Corrupt,
    /// An I/O error with no better name; see the errno.
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

    /// The kind of a [`name`](Self::name); `None` where no kind has it.
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

    /// The kind that an errno means when nothing more is known of the operation.
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

/// Which device an error speaks of: small enough to stand inline.
///
/// Two mocks of one index and different names are two devices. `Display` gives `accel3`, `mock0` or,
/// for a mock with a name, `mock0?name=foo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// What kind of device it is.
    pub backend: Backend,
    /// N of `accelN`, or the mock's index in its process.
    pub index: u32,
    /// The name of a mock as its spec writes it. The second reference keeps the id at one pointer.
    name: Option<&'static &'static str>,
}

impl DeviceId {
    /// The device of that index, without a name.
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

/// What was found and what would have been right, for a person.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The cause in one clause, without the operation's name.
    pub cause: String,
    /// The value that was seen, where one value is to blame.
    pub seen: Option<String>,
    /// The value or range that would have been right.
    pub wanted: Option<String>,
    /// What to do next.
    pub help: Option<String>,
}

/// An operation that failed.
///
/// `Display` gives operation, device, cause, seen and wanted, and the errno's name, in one line; [`Error::help`] gives the next step.
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
    /// An error of `operation` with nothing but its kind.
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

    /// An error of `operation` as an errno tells it.
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
        debug_assert!(rule.subject.has(operation), "{} is not a rule of {operation}", rule.id);
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
        debug_assert!(matches!(rule.subject, Subject::Open(_)), "{} is not a rule of open", rule.id);
        Self {
            kind: rule.kind(None),
            errno: Some(rule.errno),
            operation: None,
            device: None,
            origin: Origin::Rule(rule),
            evidence: None,
        }
    }

    /// The operation is not there, and never was: by name.
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

    /// Sets a kind that says more than the errno alone.
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// Keeps the errno.
    pub fn with_errno(mut self, errno: Errno) -> Self {
        self.errno = Some(errno);
        self
    }

    /// Names the device.
    pub fn on(mut self, device: DeviceId) -> Self {
        self.device = Some(device);
        self
    }

    /// Says the cause in one clause.
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.evidence_mut().cause = cause.into();
        self
    }

    /// Says which value was seen and which would have been right.
    pub fn saw(mut self, seen: impl fmt::Display, wanted: impl fmt::Display) -> Self {
        let evidence = self.evidence_mut();
        evidence.seen = Some(seen.to_string());
        evidence.wanted = Some(wanted.to_string());
        self
    }

    /// Shows the value that was seen, where what would have been right is in the cause.
    pub fn showing(mut self, seen: impl fmt::Display) -> Self {
        self.evidence_mut().seen = Some(seen.to_string());
        self
    }

    /// Names the rule that an error of `operation` comes from; its cause and help stay.
    pub fn with_rule(mut self, operation: Operation, rule: &'static Rule) -> Self {
        self.operation = Some(operation);
        self.origin = Origin::Rule(rule);
        self
    }

    /// Says what to do next.
    pub fn helped_by(mut self, help: impl Into<String>) -> Self {
        self.evidence_mut().help = Some(help.into());
        self
    }

    fn evidence_mut(&mut self) -> &mut Evidence {
        self.evidence.get_or_insert_default()
    }

    /// What went wrong, to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What the kernel (or the mock, as the driver would) answered.
    pub fn errno(&self) -> Option<Errno> {
        self.errno
    }

    /// The operation that failed, in the kernel's or rdma-core's spelling where it is theirs.
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

    /// The device, where it is about one.
    pub fn device(&self) -> Option<DeviceId> {
        self.device
    }

    /// What was added to the error: cause, seen, wanted and help.
    pub fn evidence(&self) -> Option<&Evidence> {
        self.evidence.as_deref()
    }

    /// What to do next, where it is known.
    pub fn help(&self) -> Option<&str> {
        let given = self.evidence.as_ref().and_then(|evidence| evidence.help.as_deref());
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
        assert_eq!((error.kind(), error.help()), (ErrorKind::InUse, Some("unmap it first")));
        assert_eq!(error.rule().map(|rule| rule.id), Some("memory.free.while-mapped"));
        assert!(error.evidence().is_none(), "a rule alone carries no box");
        let error = error.because("handle 7 is mapped").helped_by("unmap 7");
        assert_eq!((error.cause(), error.help()), (Some("handle 7 is mapped"), Some("unmap 7")));
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
