//! Time of a wait: what is asked of the driver, what is left after a signal, and when to ask again.

use std::time::{Duration, Instant};

/// The longest time that one ioctl is asked for, in microseconds: an hour.
///
/// The 7.3 driver hands `timeout_us` to `usecs_to_jiffies`, whose parameter has 32 bits
/// (common/command_submission.c:2691): above 71 minutes it would wait for the remainder of the division only.
pub(crate) const LONGEST_US: u64 = 3_600_000_000;

/// What the first ioctl of a wait asks for at most. A wait that ends within it has not read the clock, which costs more than all else that
/// a wait does in user mode; one that does not, reads it from then on. So a wait that signals interrupt may last longer than it was asked
/// to by as much as had passed before the first signal: by this at most, and never by more than its timeout again.
const FIRST: Duration = Duration::from_millis(100);

/// What to ask for first, in microseconds, rounded up so that no wait becomes a poll; and whether it is the whole time, so that "busy" is
/// final.
#[inline]
pub(crate) fn first_us(timeout: Duration) -> (u64, bool) {
    // In this order a poll and a wait of seconds, the common calls, do no arithmetic.
    match (timeout.as_secs(), timeout.subsec_nanos()) {
        (1.., _) => (FIRST.as_micros() as u64, false),
        (0, 0) => (0, true),
        (0, nanos) if nanos > FIRST.subsec_nanos() => (FIRST.as_micros() as u64, false),
        #[expect(
            clippy::manual_div_ceil,
            reason = "with no remainder to look at it is one multiplication"
        )]
        (0, nanos) => (u64::from((nanos + 999) / 1000), true),
    }
}

/// What is left of a wait, cut into times that the driver can be asked for.
#[derive(Debug)]
pub(crate) struct Budget {
    started: Instant,
    timeout: Duration,
}

impl Budget {
    /// So much from now on.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            started: Instant::now(),
            timeout,
        }
    }

    /// What the first ioctl left, which has used up its time.
    pub(crate) fn after_first(timeout: Duration) -> Self {
        Self::new(timeout.saturating_sub(FIRST))
    }

    /// What to ask for now, as [`first_us`] says it.
    pub(crate) fn next(&self) -> (u64, bool) {
        slice(self.timeout.saturating_sub(self.started.elapsed()))
    }
}

/// Pauses between tries: each twice the last, from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`], within a budget.
#[derive(Debug)]
pub(crate) struct Backoff {
    left: Duration,
    pause: Duration,
}

/// The shortest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause: a close costs the device half a second or more.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

impl Backoff {
    /// Pauses that sum up to `patience`.
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            left: patience,
            pause: FIRST_PAUSE,
        }
    }

    /// How long to sleep before the next try; nothing when the patience is at its end. Never zero.
    pub(crate) fn next_pause(&mut self) -> Option<Duration> {
        let pause = self.pause.min(self.left);
        self.left -= pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        (!pause.is_zero()).then_some(pause)
    }
}

fn slice(left: Duration) -> (u64, bool) {
    // In 64 bits: a division of 128 would cost more than the rest of a poll.
    let part = u64::from(left.subsec_nanos().div_ceil(1000));
    let us = left.as_secs().saturating_mul(1_000_000).saturating_add(part);
    (us.min(LONGEST_US), us <= LONGEST_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_cut_to_an_hour() {
        assert_eq!(slice(Duration::ZERO), (0, true), "zero polls");
        assert_eq!(
            slice(Duration::from_nanos(1)),
            (1, true),
            "a nanosecond is a wait, not a poll"
        );
        assert_eq!(slice(Duration::from_millis(5)), (5000, true));
        assert_eq!(
            slice(Duration::from_secs(3600)),
            (LONGEST_US, true),
            "an hour is asked for at once"
        );
        assert_eq!(
            slice(Duration::from_secs(4295)),
            (LONGEST_US, false),
            "more than 2^32 us goes in slices"
        );
        assert_eq!(
            slice(Duration::MAX),
            (LONGEST_US, false),
            "for ever goes in slices"
        );
    }

    #[test]
    fn pauses_grow_and_end() {
        let pauses = |patience| {
            let mut backoff = Backoff::new(patience);
            std::iter::from_fn(|| backoff.next_pause()).collect::<Vec<_>>()
        };
        assert_eq!(pauses(Duration::ZERO), [], "no patience, no second try");
        let ms = |pauses: Vec<Duration>| pauses.iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!(
            ms(pauses(Duration::from_millis(100))),
            [10, 20, 40, 30],
            "the last pause is what is left"
        );
        let long = pauses(Duration::from_secs(10));
        assert_eq!(long.iter().sum::<Duration>(), Duration::from_secs(10));
        assert!(
            long.iter().all(|pause| *pause <= LONGEST_PAUSE),
            "a device that comes back is seen within half a second: {long:?}"
        );
        assert!(long.len() < 30, "ten seconds cost few tries: {}", long.len());
    }

    #[test]
    fn what_is_left_shrinks() {
        let ago = |timeout, seconds| Budget {
            started: Instant::now()
                .checked_sub(Duration::from_secs(seconds))
                .expect("the machine is up for longer"),
            timeout: Duration::from_secs(timeout),
        };
        let (left, all) = ago(3, 2).next();
        assert!(
            all && left <= 1_000_000,
            "one second at most is left of three, saw {left} us"
        );
        assert_eq!(
            ago(1, 2).next(),
            (0, true),
            "past the deadline a wait polls once more"
        );
    }

    #[test]
    fn the_first_time_is_short_or_whole() {
        assert_eq!(first_us(Duration::ZERO), (0, true), "zero polls");
        assert_eq!(
            first_us(Duration::from_nanos(1)),
            (1, true),
            "a nanosecond is a wait, not a poll"
        );
        assert_eq!(first_us(FIRST), (100_000, true), "all of it");
        let longer = FIRST + Duration::from_nanos(1);
        assert_eq!(first_us(longer), (100_000, false), "busy is not final");
        assert_eq!(first_us(Duration::MAX), (100_000, false));
        let (left, all) = Budget::after_first(Duration::from_secs(1)).next();
        assert!(
            all && left <= 900_000,
            "the first ioctl used its time up, saw {left} us"
        );
    }
}
