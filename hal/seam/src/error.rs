//! [`Error`]: one type for the framework, with a kind to branch on, evidence and the errno.

use std::fmt;

use gaudi_sys::Errno;

use crate::device_id::DeviceId;
use crate::error_kind::ErrorKind;
use crate::operation::Operation;
use crate::rule::{Rule, Subject};

/// `Result` with the framework's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

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
        Self::of(kind, None, None, Origin::Name(operation))
    }

    /// An error of `operation` with the usual kind of an errno.
    pub fn from_errno(operation: &'static str, errno: Errno) -> Self {
        let kind = ErrorKind::of_errno(errno);
        Self::of(kind, Some(errno), None, Origin::Name(operation))
    }

    /// An error of `operation` that a rule of the driver explains. Allocates nothing.
    pub fn from_rule(operation: Operation, rule: &'static Rule) -> Self {
        debug_assert!(
            rule.subject.has(operation),
            "{} is not a rule of {operation}",
            rule.id
        );
        Self::of_rule(Some(operation), rule)
    }

    /// An open that failed for a rule of the driver. Allocates nothing.
    pub fn of_open(rule: &'static Rule) -> Self {
        debug_assert!(
            matches!(rule.subject, Subject::Open(_)),
            "{} is not a rule of open",
            rule.id
        );
        Self::of_rule(None, rule)
    }

    fn of_rule(operation: Option<Operation>, rule: &'static Rule) -> Self {
        Self::of(
            rule.kind(operation),
            Some(rule.errno),
            operation,
            Origin::Rule(rule),
        )
    }

    /// `Unsupported`, with the reason.
    pub fn unsupported(operation: &'static str, why: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, operation)
            .with_errno(Errno::EOPNOTSUPP)
            .because(why)
    }

    /// `WouldBlock`, with no allocation.
    pub const fn would_block(operation: &'static str) -> Self {
        let origin = Origin::Name(operation);
        Self::of(ErrorKind::WouldBlock, Some(Errno::EAGAIN), None, origin)
    }

    /// `TimedOut`, with no allocation.
    pub const fn timed_out(operation: &'static str) -> Self {
        Self::new(ErrorKind::TimedOut, operation)
    }

    const fn of(kind: ErrorKind, errno: Option<Errno>, operation: Option<Operation>, origin: Origin) -> Self {
        Self {
            kind,
            errno,
            operation,
            device: None,
            origin,
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
        let evidence = self.evidence.as_deref();
        match evidence.and_then(|evidence| Some((evidence.seen.as_deref()?, evidence.wanted.as_deref()))) {
            Some((seen, Some(wanted))) => write!(f, " (saw {seen}, wanted {wanted})")?,
            Some((seen, None)) => write!(f, " (saw {seen})")?,
            None => {}
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
    use crate::device_id::Backend;
    use crate::rules;

    #[test]
    fn error_prints_a_sentence_and_errno() {
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
    fn rule_gives_errno_kind_and_advice() {
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
