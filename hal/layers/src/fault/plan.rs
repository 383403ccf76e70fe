//! [`Plan`]: rules for faults as text, one line each.
//!
//! ```text
//! plan    = rule *((";" / newline) rule)          "#" begins a comment, to the end of the line
//! rule    = target *(":" part)                    parts in any order, each once; one verdict
//! target  = operation / "*"                       mem_alloc, submit, wait_cs, …
//! part    = "when=" schedule / verdict / "p=" PERCENT / "seed=" N
//! schedule = first [".." last] ["+" [step]]       which matching operations, counted from 1
//! verdict = "error=" ERRNO / "delay=" NUMBER ("ns" / "us" / "ms" / "s") / "lose" / "reset"
//! ```
//! `when=3` is the third only, `when=3..5` the third to the fifth, `when=3+` the third and all
//! after it, `when=3+2` the third, the fifth, the seventh; without `when` it is every one. `p=` is
//! the percentage of these that get the fault. Whether the nth does depends on `seed` and n alone,
//! so a rule means the same in every plan and, with one thread, in every run.

use std::fmt;
use std::str::FromStr;

use gaudi_seam::Operation;

use super::verdict::{VERDICTS, Verdict, Wrong, number, wrong};

/// The most rules in a plan: every operation checks each of them.
const MOST_RULES: usize = 1024;

/// The operations that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// One operation.
    Only(Operation),
    /// `*`: every operation.
    Any,
}

impl Target {
    /// Whether the rule matches this operation.
    pub fn matches(self, operation: Operation) -> bool {
        match self {
            Self::Only(only) => only == operation,
            Self::Any => true,
        }
    }
}

/// The matching operations that get the fault: `first`, then every `step`th up to `last`, counted
/// from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Schedule {
    first: u64,
    last: u64,
    step: u64,
}

impl Schedule {
    /// Every operation.
    pub const ALWAYS: Self = Self {
        first: 1,
        last: u64::MAX,
        step: 1,
    };

    /// The nth operation only; 0 means 1.
    pub fn nth(n: u64) -> Self {
        Self::range(n, n, 1)
    }

    /// Every `step`th operation from `first` to `last`. 0 means 1; a `last` below `first` means
    /// `first`.
    pub fn range(first: u64, last: u64, step: u64) -> Self {
        let first = first.max(1);
        let last = last.max(first);
        let step = if last == first { 1 } else { step.max(1) };
        Self { first, last, step }
    }

    /// Whether the nth operation is in the schedule.
    pub fn hits(self, n: u64) -> bool {
        n >= self.first && n <= self.last && (n - self.first) % self.step == 0
    }
}

/// A rule: target, schedule and verdict. `Display` prints the line that it parses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The operations that the rule matches.
    pub target: Target,
    /// The matching operations that get the fault.
    pub schedule: Schedule,
    /// The fault.
    pub verdict: Verdict,
    /// The percentage of them that get it.
    pub percent: u8,
    /// The seed of this choice.
    pub seed: u64,
}

impl Rule {
    /// A rule for every operation that `target` matches.
    pub fn new(target: Target, verdict: Verdict) -> Self {
        Self {
            target,
            schedule: Schedule::ALWAYS,
            verdict,
            percent: 100,
            seed: 0,
        }
    }

    /// Whether the nth matching operation gets the fault.
    pub fn strikes(&self, n: u64) -> bool {
        self.schedule.hits(n) && (self.percent >= 100 || mix(self.seed, n) % 100 < u64::from(self.percent))
    }
}

/// The nth number of a seed (splitmix64).
fn mix(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Rules, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The rules. Every rule checks each operation; delays add up, and the first other verdict
    /// decides.
    pub rules: Vec<Rule>,
}

/// An invalid plan: the rule, the problem, and the valid form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fault plan: {problem} in {rule:?}; {wanted}")]
pub struct PlanError {
    /// The invalid rule, shortened for a terminal.
    pub rule: String,
    /// The problem.
    pub problem: String,
    /// The valid form.
    pub wanted: String,
}

impl FromStr for Rule {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        Self::seeded(text, 0)
    }
}

impl Rule {
    fn seeded(text: &str, seed: u64) -> Result<Self, PlanError> {
        let text = text.trim();
        parse_rule(text, seed).map_err(|(problem, wanted)| PlanError {
            rule: text.chars().take(80).collect(),
            problem,
            wanted,
        })
    }
}

fn parse_rule(text: &str, default_seed: u64) -> Result<Rule, Wrong> {
    let mut parts = text.split(':');
    // `split` returns at least one part.
    let target = parse_target(parts.next().unwrap_or_default())?;
    let (mut schedule, mut verdict, mut percent, mut seed) = (None, None, None, None);
    for part in parts {
        let (key, value) = part
            .split_once('=')
            .map_or((part, None), |(key, value)| (key, Some(value)));
        let mut name = key;
        let again = match (key, value) {
            ("when", Some(value)) => schedule.replace(parse_schedule(value)?).is_some(),
            ("p", Some(value)) => percent.replace(parse_percent(value)?).is_some(),
            ("seed", Some(value)) => seed.replace(number(value, 0, u64::MAX)?).is_some(),
            _ => match Verdict::parse(key, value)? {
                Some(parsed) => {
                    name = "verdict";
                    verdict.replace(parsed).is_some()
                }
                None => {
                    let part: String = part.chars().take(40).collect();
                    let known = "known: when=, error=, delay=, lose, reset, p=, seed=";
                    return wrong(format!("unknown part {part:?}"), known);
                }
            },
        };
        if again {
            let wanted = "each part stands once, and a rule has one verdict";
            return wrong(format!("a second {name}"), wanted);
        }
    }
    let Some(verdict) = verdict else {
        return wrong("no verdict", VERDICTS);
    };
    if verdict == Verdict::Lose && target != Target::Only(Operation::Submit) {
        return wrong("only a submission can be lost", "write submit:lose");
    }
    Ok(Rule {
        target,
        schedule: schedule.unwrap_or(Schedule::ALWAYS),
        verdict,
        percent: percent.unwrap_or(100),
        // Only a choice has a seed.
        seed: seed.unwrap_or(percent.map_or(0, |_| default_seed)),
    })
}

fn parse_target(text: &str) -> Result<Target, Wrong> {
    if text == "*" {
        return Ok(Target::Any);
    }
    match Operation::of_name(text) {
        Some(operation) => Ok(Target::Only(operation)),
        None => {
            let known: Vec<_> = Operation::ALL.iter().map(|known| known.name()).collect();
            wrong("an unknown operation", format!("known: {}, *", known.join(", ")))
        }
    }
}

fn parse_schedule(text: &str) -> Result<Schedule, Wrong> {
    let (range, step) = text
        .split_once('+')
        .map_or((text, None), |(range, step)| (range, Some(step)));
    let (first, last) = range
        .split_once("..")
        .map_or((range, None), |(first, last)| (first, Some(last)));
    let first = number(first, 1, u64::MAX)?;
    let last = match (last, step) {
        (Some(last), _) => number(last, first, u64::MAX)?,
        (None, Some(_)) => u64::MAX,
        (None, None) => first,
    };
    let step = match step {
        None | Some("") => 1,
        Some(step) => number(step, 1, u64::MAX)?,
    };
    Ok(Schedule::range(first, last, step))
}

fn parse_percent(text: &str) -> Result<u8, Wrong> {
    number(text, 0, 100).map(|percent| u8::try_from(percent).unwrap_or(100))
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        Self::seeded(text, 0)
    }
}

impl Plan {
    /// Parses a plan; rules with a percentage and without a seed get `seed`.
    ///
    /// # Errors
    /// The first invalid rule, or one too many.
    pub fn seeded(text: &str, seed: u64) -> Result<Self, PlanError> {
        let mut rules = Vec::new();
        for line in text.lines() {
            // `split` returns at least one part.
            let line = line.split('#').next().unwrap_or_default();
            for rule in line.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
                if rules.len() == MOST_RULES {
                    return Err(PlanError {
                        rule: rule.chars().take(80).collect(),
                        problem: "too many rules".to_owned(),
                        wanted: format!("at most {MOST_RULES}"),
                    });
                }
                rules.push(Rule::seeded(rule, seed)?);
            }
        }
        Ok(Self { rules })
    }
}

impl fmt::Display for Plan {
    /// The rules on one line, joined by `;`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.rules.iter().enumerate() {
            let separator = if index == 0 { "" } else { ";" };
            write!(f, "{separator}{rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.target)?;
        if self.schedule != Schedule::ALWAYS {
            write!(f, ":when={}", self.schedule)?;
        }
        write!(f, ":{}", self.verdict)?;
        if self.percent != 100 {
            write!(f, ":p={}", self.percent)?;
        }
        if self.seed != 0 {
            write!(f, ":seed={}", self.seed)?;
        }
        Ok(())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only(operation) => f.write_str(operation.name()),
            Self::Any => f.write_str("*"),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, step } = *self;
        write!(f, "{first}")?;
        match (last, step) {
            (last, _) if last == first => Ok(()),
            (u64::MAX, 1) => f.write_str("+"),
            (u64::MAX, step) => write!(f, "+{step}"),
            (last, 1) => write!(f, "..{last}"),
            (last, step) => write!(f, "..{last}+{step}"),
        }
    }
}
