//! [`Verdict`]: the fault of a rule, and its text.

use std::fmt;
use std::time::Duration;

use gaudi_sys::Errno;

use super::piece::{Piece, Wrong};

/// The fault of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is not performed, and fails with this errno.
    Error(Errno),
    /// It is performed, and only this many bytes of its answer are written.
    Short(u64),
    /// It is performed after this time.
    Delay(Duration),
    /// A submission or a completion is performed and never reported. An interrupt, a packet or a
    /// write is lost.
    Lose,
    /// It happens twice.
    Duplicate,
    /// It happens after the next one of its kind.
    Reorder,
    /// It happens after this many further ones of its kind, or when the chip has nothing else to
    /// do.
    Late(u64),
    /// This bit of the bytes is inverted.
    Flip(u64),
    /// Only this many bytes of the write arrive; all are reported as written.
    Torn(u64),
    /// No byte of the write arrives; all are reported as written.
    Stale,
    /// The checksum of the packet is wrong, so the receiver drops it.
    Damage,
    /// It fails because the resource is exhausted.
    Full(Resource),
    /// The wait ends at its timeout, whatever has completed.
    Timeout,
    /// A signal interrupts the wait after half of its timeout: `EINTR`.
    Eintr,
    /// The access ends in a page fault.
    PageFault,
    /// An engine's access is illegal (RAZWI): it reads as zero, and a write is ignored. The driver
    /// resets the chip.
    Razwi,
    /// The chip reports an ECC error that it corrected.
    Ecc,
    /// The chip reports an ECC error that it did not correct: the driver resets it.
    FatalEcc,
    /// The firmware stops answering, and the driver resets the chip.
    Heartbeat,
    /// It is not performed, and the device is in reset until the node is opened again.
    Reset,
    /// It is not performed. Work in flight is aborted, and the device continues.
    ComputeReset,
    /// The device is removed: everything fails with `ENODEV` from now on.
    Remove,
    /// The exporter revokes the memory: later uses of the region are refused.
    Revoke,
    /// It never ends.
    Hang,
    /// The request completes with this status, and its queue pair enters the error state.
    Status(NicStatus),
    /// The port goes down.
    Down,
    /// The queue pair enters the error state.
    QpError,
}

/// What can be exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The queue.
    Queue,
    /// Memory.
    Memory,
    /// Addresses.
    Space,
    /// File descriptors.
    Fds,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 4] = [Self::Queue, Self::Memory, Self::Space, Self::Fds];

    /// The name in a plan.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Memory => "memory",
            Self::Space => "space",
            Self::Fds => "fds",
        }
    }
}

/// A status of a failed work request (`enum ibv_wc_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NicStatus {
    /// `IBV_WC_LOC_PROT_ERR`: the local buffer is not registered for the access.
    LocalProtection,
    /// `IBV_WC_REM_INV_REQ_ERR`: the peer does not accept the request.
    RemoteInvalidRequest,
    /// `IBV_WC_REM_ACCESS_ERR`: the peer's region does not allow the access.
    RemoteAccess,
    /// `IBV_WC_REM_OP_ERR`: the peer cannot access its own memory.
    RemoteOperation,
    /// `IBV_WC_RETRY_EXC_ERR`: the peer did not answer.
    RetryExceeded,
    /// `IBV_WC_RNR_RETRY_EXC_ERR`: the peer had no receive posted.
    RnrRetryExceeded,
}

impl NicStatus {
    /// Every status.
    pub const ALL: [Self; 6] = [
        Self::LocalProtection,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetryExceeded,
        Self::RnrRetryExceeded,
    ];

    /// The name in a plan, and in the header after `IBV_WC_`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LocalProtection => "LOC_PROT_ERR",
            Self::RemoteInvalidRequest => "REM_INV_REQ_ERR",
            Self::RemoteAccess => "REM_ACCESS_ERR",
            Self::RemoteOperation => "REM_OP_ERR",
            Self::RetryExceeded => "RETRY_EXC_ERR",
            Self::RnrRetryExceeded => "RNR_RETRY_EXC_ERR",
        }
    }
}

/// A kind of verdicts, for messages and tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerdictKind {
    /// Its form in a rule.
    pub form: &'static str,
    /// Its effect in one sentence.
    pub effect: &'static str,
    /// One verdict of the kind.
    pub example: Verdict,
}

macro_rules! kinds {
    ($($form:literal $example:expr, $effect:literal;)*) => {
        &[$(VerdictKind { form: $form, effect: $effect, example: $example },)*]
    };
}

impl Verdict {
    /// Every kind of verdicts.
    pub const KINDS: &'static [VerdictKind] = kinds! {
        "error=ERRNO" Self::Error(Errno::EIO), "is not performed and fails with this errno";
        "short=BYTES" Self::Short(4), "is performed, but only the first BYTES of its answer are written";
        "delay=TIME" Self::Delay(Duration::from_millis(1)), "is performed late; TIME is N and ns, us, ms or s";
        "lose" Self::Lose, "of a submission or completion: never reported; of others: it does not happen";
        "duplicate" Self::Duplicate, "happens twice";
        "reorder" Self::Reorder, "happens after the next of its kind";
        "late=N" Self::Late(1), "happens after N more of its kind, or once the chip is idle";
        "flip=BIT" Self::Flip(0), "bit BIT of its bytes is inverted";
        "torn=BYTES" Self::Torn(8), "only the first BYTES arrive; all are reported as written";
        "stale" Self::Stale, "no byte arrives; all are reported as written";
        "damage" Self::Damage, "arrives with a wrong checksum, so the receiver drops it";
        "full=queue" Self::Full(Resource::Queue), "fails because the queue is full";
        "full=memory" Self::Full(Resource::Memory), "fails because memory is exhausted";
        "full=space" Self::Full(Resource::Space), "fails because no address is free";
        "full=fds" Self::Full(Resource::Fds), "fails because no file descriptor is free";
        "timeout" Self::Timeout, "waits for its timeout and reports nothing completed";
        "eintr" Self::Eintr, "waits for half of its timeout and fails with EINTR";
        "page_fault" Self::PageFault, "ends in a page fault";
        "razwi" Self::Razwi, "an engine's access is illegal (RAZWI), for which the driver resets the chip";
        "ecc" Self::Ecc, "the chip reports a corrected ECC error, then it is performed";
        "ecc=fatal" Self::FatalEcc, "the chip reports an ECC error, for which the driver resets it";
        "heartbeat" Self::Heartbeat, "the firmware stops answering, for which the driver resets the chip";
        "reset" Self::Reset, "is not performed; the device is in reset until it is opened again";
        "reset=compute" Self::ComputeReset, "is not performed; work in flight is aborted, and the device continues";
        "remove" Self::Remove, "is not performed; everything fails with ENODEV from now on";
        "revoke" Self::Revoke, "the exporter revokes the memory: this and later uses of the region are refused";
        "hang" Self::Hang, "never ends";
        "status=STATUS" Self::Status(NicStatus::RemoteAccess), "completes with this status; its queue pair enters the error state";
        "down" Self::Down, "the port goes down";
        "qp_error" Self::QpError, "its queue pair enters the error state";
    };

    /// The kind of the verdict.
    pub fn kind(self) -> &'static VerdictKind {
        let same = |kind: &&VerdictKind| match (self, kind.example) {
            (Self::Full(own), Self::Full(other)) => own == other,
            (own, other) => std::mem::discriminant(&own) == std::mem::discriminant(&other),
        };
        let found = Self::KINDS.iter().find(same);
        found.unwrap_or_else(|| unreachable!("every verdict has a kind"))
    }

    /// The verdict that a part of a rule writes. `None` if the part is not one.
    pub(super) fn parse(part: Piece<'_>) -> Result<Option<Self>, Wrong> {
        let (key, value) = part.split_once("=");
        Ok(Some(match (key.text, value) {
            ("error", Some(value)) => Self::Error(parse_errno(value)?),
            ("short", Some(value)) => Self::Short(value.number(0, u64::MAX)?),
            ("delay", Some(value)) => Self::Delay(parse_delay(value)?),
            ("late", Some(value)) => Self::Late(value.number(1, MOST_LATE)?),
            ("flip", Some(value)) => Self::Flip(value.number(0, u64::MAX)?),
            ("torn", Some(value)) => Self::Torn(value.number(0, u64::MAX)?),
            ("full", Some(value)) => Self::Full(choice(
                value,
                "an unknown resource",
                Resource::ALL,
                Resource::name,
            )?),
            ("status", Some(value)) => Self::Status(choice(
                value,
                "an unknown status",
                NicStatus::ALL,
                NicStatus::name,
            )?),
            // The others are words.
            _ => {
                let mut words = Self::KINDS
                    .iter()
                    .filter(|kind| kind.example.to_string() == kind.form);
                return Ok(words.find(|kind| kind.form == part.text).map(|kind| kind.example));
            }
        }))
    }

    /// The forms of all verdicts.
    pub(super) fn forms() -> String {
        let forms: Vec<_> = Self::KINDS.iter().map(|kind| kind.form).collect();
        forms.join(", ")
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match *self {
            Self::Error(errno) => return write!(f, "error={errno:?}"),
            Self::Short(bytes) => return write!(f, "short={bytes}"),
            Self::Delay(delay) => {
                // A delay of a rule is at most an hour.
                let ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
                let (unit, size) = UNITS
                    .into_iter()
                    .find(|(_, size)| ns % size == 0)
                    .unwrap_or(("ns", 1));
                return write!(f, "delay={}{unit}", ns / size);
            }
            Self::Late(count) => return write!(f, "late={count}"),
            Self::Flip(bit) => return write!(f, "flip={bit}"),
            Self::Torn(bytes) => return write!(f, "torn={bytes}"),
            Self::Full(resource) => return write!(f, "full={}", resource.name()),
            Self::Status(status) => return write!(f, "status={}", status.name()),
            Self::Lose => "lose",
            Self::Duplicate => "duplicate",
            Self::Reorder => "reorder",
            Self::Stale => "stale",
            Self::Damage => "damage",
            Self::Timeout => "timeout",
            Self::Eintr => "eintr",
            Self::PageFault => "page_fault",
            Self::Razwi => "razwi",
            Self::Ecc => "ecc",
            Self::FatalEcc => "ecc=fatal",
            Self::Heartbeat => "heartbeat",
            Self::Reset => "reset",
            Self::ComputeReset => "reset=compute",
            Self::Remove => "remove",
            Self::Revoke => "revoke",
            Self::Hang => "hang",
            Self::Down => "down",
            Self::QpError => "qp_error",
        };
        f.write_str(word)
    }
}

/// The longest delay.
const LONGEST: Duration = Duration::from_secs(3600);
/// The most events that one may be late by: they are held meanwhile.
const MOST_LATE: u64 = 4096;
/// Above every errno of Linux.
const ERRNO_END: i32 = 134;

fn choice<T: Copy>(
    text: Piece<'_>,
    problem: &str,
    all: impl IntoIterator<Item = T> + Clone,
    name: fn(T) -> &'static str,
) -> Result<T, Wrong> {
    match all.clone().into_iter().find(|one| name(*one) == text.text) {
        Some(found) => Ok(found),
        None => {
            let known: Vec<_> = all.into_iter().map(name).collect();
            text.wrong(problem, format!("known: {}", known.join(", ")))
        }
    }
}

fn parse_errno(text: Piece<'_>) -> Result<Errno, Wrong> {
    let known = (1..ERRNO_END)
        .map(Errno::from_raw)
        .filter(|errno| *errno != Errno::UnknownErrno)
        .find(|errno| format!("{errno:?}") == text.text);
    match known {
        Some(errno) => Ok(errno),
        None => {
            let names: Vec<_> = gaudi_uapi::errno::NAMES.iter().map(|(name, _)| *name).collect();
            text.wrong(
                "an unknown errno",
                format!("the driver answers {}", names.join(", ")),
            )
        }
    }
}

const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)];

fn parse_delay(text: Piece<'_>) -> Result<Duration, Wrong> {
    let digits = text.before_suffix(|c: char| c.is_ascii_alphabetic());
    let unit = text.text.get(digits.text.len()..).unwrap_or_default();
    let Some((_, ns)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return text.wrong("a delay without a known unit", "write 10ms; known: ns, us, ms, s");
    };
    // `LONGEST` is less than 584 years.
    let most = u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX) / ns;
    Ok(Duration::from_nanos(digits.number(0, most)? * ns))
}
