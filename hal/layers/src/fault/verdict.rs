//! [`Verdict`]: the fault of a rule, its text and its effect.

use std::fmt;
use std::time::Duration;

use gaudi_seam::Errno;

/// The fault of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The operation is not performed and returns this errno.
    Error(Errno),
    /// The operation is performed after this time.
    Delay(Duration),
    /// The submission is performed, but its completion is never reported.
    Lose,
    /// The operation is not performed, and the device is in reset from now on.
    Reset,
}

/// A problem and the valid form; the caller adds the rule.
pub(super) type Wrong = (String, String);

pub(super) fn wrong<T>(problem: impl Into<String>, wanted: impl Into<String>) -> Result<T, Wrong> {
    Err((problem.into(), wanted.into()))
}

pub(super) const VERDICTS: &str = "wanted error=ERRNO, delay=DURATION, lose or reset";

impl Verdict {
    /// The verdict that a part of a rule writes. `None` if the part is not one.
    pub(super) fn parse(key: &str, value: Option<&str>) -> Result<Option<Self>, Wrong> {
        Ok(Some(match (key, value) {
            ("error", Some(value)) => Self::Error(parse_errno(value)?),
            ("delay", Some(value)) => Self::Delay(parse_delay(value)?),
            ("lose", None) => Self::Lose,
            ("reset", None) => Self::Reset,
            _ => return Ok(None),
        }))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(errno) => write!(f, "error={errno:?}"),
            Self::Delay(delay) => {
                let ns = crate::time::nanoseconds(*delay);
                let (unit, size) = UNITS
                    .into_iter()
                    .find(|(_, size)| ns % size == 0)
                    .unwrap_or(("ns", 1));
                write!(f, "delay={}{unit}", ns / size)
            }
            Self::Lose => f.write_str("lose"),
            Self::Reset => f.write_str("reset"),
        }
    }
}

/// What the verdicts on one operation amount to. `M` is the mark of a rule.
#[derive(Debug)]
pub(super) struct Effects<M> {
    pub(super) delay: Duration,
    pub(super) refused: Option<(Errno, M)>,
    pub(super) lost: Option<M>,
    pub(super) resets: bool,
}

impl<M> Default for Effects<M> {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            refused: None,
            lost: None,
            resets: false,
        }
    }
}

impl<M> Effects<M> {
    /// Adds a verdict: delays add up, and the first other one decides. Returns whether its fault
    /// has happened. A loss happens once the driver has accepted the submission.
    pub(super) fn add(&mut self, verdict: Verdict, mark: M) -> bool {
        let is_decided = self.refused.is_some() || self.lost.is_some() || self.resets;
        match verdict {
            Verdict::Delay(more) => self.delay = self.delay.saturating_add(more),
            _ if is_decided => return false,
            Verdict::Error(errno) => self.refused = Some((errno, mark)),
            Verdict::Lose => self.lost = Some(mark),
            Verdict::Reset => self.resets = true,
        }
        verdict != Verdict::Lose
    }
}

/// The longest delay.
const LONGEST: Duration = Duration::from_secs(3600);
/// Above every errno of Linux.
const ERRNO_END: i32 = 134;

fn parse_errno(text: &str) -> Result<Errno, Wrong> {
    let known = (1..ERRNO_END)
        .map(Errno::from_raw)
        .filter(|errno| *errno != Errno::UnknownErrno)
        .find(|errno| format!("{errno:?}") == text);
    match known {
        Some(errno) => Ok(errno),
        None => {
            let names: Vec<_> = gaudi_uapi::errno::NAMES.iter().map(|(name, _)| *name).collect();
            wrong(
                "an unknown errno",
                format!("the driver answers {}", names.join(", ")),
            )
        }
    }
}

const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)];

fn parse_delay(text: &str) -> Result<Duration, Wrong> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let Some((_, ns)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return wrong("a delay without a known unit", "write 10ms; known: ns, us, ms, s");
    };
    // `LONGEST` is less than 584 years.
    let most = u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX) / ns;
    Ok(Duration::from_nanos(number(digits, 0, most)? * ns))
}

pub(super) fn number(text: &str, least: u64, most: u64) -> Result<u64, Wrong> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let value = text
        .parse()
        .ok()
        .filter(|value| digits && (least..=most).contains(value));
    match value {
        Some(value) => Ok(value),
        None => wrong(
            format!(
                "{:?} is no number in range",
                text.chars().take(24).collect::<String>()
            ),
            format!("wanted a decimal number from {least} to {most}"),
        ),
    }
}
