//! [`Schedule`]: which matches of a rule get its fault.

use std::fmt;

use gaudi_sys::random::SplitMix64;

use super::piece::{Piece, Wrong};

/// The matches that get the fault: `first`, then every `step`th up to `last`, counted from 1, by
/// chance, and only in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Schedule {
    first: u64,
    last: u64,
    step: u64,
    /// The percentage of them that get it; above 100 is 100.
    pub percent: u8,
    /// The seed of this choice.
    pub seed: u64,
    /// The state in which matches are counted. `None` is every state.
    pub state: Option<State>,
}

/// A state of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Memory of the device is exported as a dma-buf.
    Exported,
    /// Memory is mapped for the device.
    Mapped,
    /// A submission was accepted, and its completion was not reported yet.
    Busy,
    /// The device was reset since the plan was armed.
    AfterReset,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Exported, Self::Mapped, Self::Busy, Self::AfterReset];

    /// The part of a rule that names the state.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Exported => "while=exported",
            Self::Mapped => "while=mapped",
            Self::Busy => "while=busy",
            Self::AfterReset => "after=reset",
        }
    }

    pub(super) fn parse(part: Piece<'_>) -> Result<Self, Wrong> {
        match Self::ALL.into_iter().find(|state| state.text() == part.text) {
            Some(state) => Ok(state),
            None => {
                let known = Self::ALL.map(Self::text).join(", ");
                part.wrong("an unknown state", format!("known: {known}"))
            }
        }
    }
}

impl Schedule {
    /// Every match.
    pub const ALWAYS: Self = Self {
        first: 1,
        last: u64::MAX,
        step: 1,
        percent: 100,
        seed: 0,
        state: None,
    };

    /// The nth match only; 0 means 1.
    pub fn nth(n: u64) -> Self {
        Self::range(n, n, 1)
    }

    /// Every `step`th match from `first` to `last`. 0 means 1; a `last` below `first` means
    /// `first`.
    pub fn range(first: u64, last: u64, step: u64) -> Self {
        let first = first.max(1);
        let last = last.max(first);
        let step = if last == first { 1 } else { step.max(1) };
        Self {
            first,
            last,
            step,
            ..Self::ALWAYS
        }
    }

    /// Only this percentage of the matches, chosen by `seed`.
    #[must_use]
    pub fn with_chance(self, percent: u8, seed: u64) -> Self {
        let percent = percent.min(100);
        Self {
            percent,
            // A rule that takes every match makes no choice.
            seed: if percent == 100 { 0 } else { seed },
            ..self
        }
    }

    /// Only the matches in a state.
    #[must_use]
    pub fn during(self, state: State) -> Self {
        let state = Some(state);
        Self { state, ..self }
    }

    /// Whether the nth match gets the fault.
    pub fn hits(self, n: u64) -> bool {
        let is_listed = n >= self.first && n <= self.last && (n - self.first) % self.step == 0;
        is_listed && (self.percent >= 100 || SplitMix64::nth(self.seed, n) % 100 < u64::from(self.percent))
    }

    /// Takes over the matches of a `when=`.
    pub(super) fn set_matches(&mut self, text: Piece<'_>) -> Result<(), Wrong> {
        let (range, step) = text.split_once("+");
        let (first, last) = range.split_once("..");
        let first = first.number(1, u64::MAX)?;
        let last = match (last, step) {
            (Some(last), _) => last.number(first, u64::MAX)?,
            (None, Some(_)) => u64::MAX,
            (None, None) => first,
        };
        let step = match step {
            None => 1,
            Some(step) if step.text.is_empty() => 1,
            Some(step) => step.number(1, u64::MAX)?,
        };
        let listed = Self::range(first, last, step);
        (self.first, self.last, self.step) = (listed.first, listed.last, listed.step);
        Ok(())
    }

    /// The parts before the verdict.
    pub(super) fn print_matches(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(state) = self.state {
            write!(f, ":{}", state.text())?;
        }
        match (self.first, self.last, self.step) {
            (1, u64::MAX, 1) => Ok(()),
            (first, last, _) if last == first => write!(f, ":when={first}"),
            (first, u64::MAX, 1) => write!(f, ":when={first}+"),
            (first, u64::MAX, step) => write!(f, ":when={first}+{step}"),
            (first, last, 1) => write!(f, ":when={first}..{last}"),
            (first, last, step) => write!(f, ":when={first}..{last}+{step}"),
        }
    }

    /// The parts after the verdict.
    pub(super) fn print_chance(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A plan has a default seed for rules without one.
        match self.percent {
            100.. => Ok(()),
            percent => write!(f, ":p={percent}:seed={}", self.seed),
        }
    }
}
