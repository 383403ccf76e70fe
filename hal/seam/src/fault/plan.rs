//! [`Plan`] and [`Rule`]: their text.

use std::fmt;
use std::str::FromStr;

use super::filter::{EventFields, Field, Filter};
use super::piece::{Piece, PlanError, Wrong};
use super::schedule::{Schedule, State};
use super::target::Target;
use super::verdict::Verdict;
use crate::operation::AnyRequest;

/// The most rules in a plan: every operation and event checks each of them.
const MOST_RULES: usize = 1024;

/// A rule: matcher, schedule and verdict. `Display` prints the line that it parses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The operations or events that the rule matches.
    pub target: Target,
    /// The fields that they must have.
    pub filter: Filter,
    /// The matches that get the fault.
    pub schedule: Schedule,
    /// The fault.
    pub verdict: Verdict,
}

impl Rule {
    /// A rule for everything that `target` matches.
    pub fn new(target: Target, verdict: Verdict) -> Self {
        Self {
            target,
            filter: Filter::NONE,
            schedule: Schedule::ALWAYS,
            verdict,
        }
    }

    /// Whether the rule matches a request to a device. Its schedule counts the matches.
    pub fn matches(&self, device: u32, request: AnyRequest<'_>) -> bool {
        self.target.matches(request.operation()) && self.filter.passes(device, request)
    }

    /// Whether the rule matches an event of a chip or a NIC. Its schedule counts the matches.
    pub fn matches_event(&self, target: Target, event: &EventFields) -> bool {
        self.target == target && self.filter.passes_event(event)
    }

    /// Whether the nth match gets the fault.
    pub fn strikes(&self, n: u64) -> bool {
        self.schedule.hits(n)
    }

    fn parse(text: Piece<'_>, default_seed: u64) -> Result<Self, Wrong> {
        let mut parts = text.split(':');
        // `split` returns at least one part.
        let target = Target::parse(parts.next().unwrap_or(text))?;
        let mut rule = Self::new(target, Verdict::Lose);
        let (mut verdict, mut percent, mut seed) = (None, None, None);
        let mut names = Vec::new();
        for part in parts {
            let (key, value) = part.split_once("=");
            let name = match (key.text, value) {
                ("when", Some(value)) => {
                    rule.schedule.set_matches(value)?;
                    "when"
                }
                ("while" | "after", Some(_)) => {
                    rule.schedule.state = Some(State::parse(part)?);
                    "state"
                }
                ("p", Some(value)) => {
                    percent = Some(value.number(0, 100)?);
                    "p"
                }
                ("seed", Some(value)) => {
                    seed = Some((part, value.number(0, u64::MAX)?));
                    "seed"
                }
                (key, value) => match value.and_then(|value| rule.filter.set(key, value)) {
                    Some(field) => {
                        let field = field?;
                        check_field(part, field, target)?;
                        field.name()
                    }
                    None => {
                        let Some(parsed) = Verdict::parse(part)? else {
                            return unknown(part, target);
                        };
                        // A second verdict is reported as such.
                        if let (Err(reason), None) = (parsed.meets(target), verdict) {
                            return part.wrong(
                                format!("{part_text} cannot happen to {target}", part_text = part.quoted()),
                                reason,
                            );
                        }
                        verdict = Some(parsed);
                        "verdict"
                    }
                },
            };
            if names.contains(&name) {
                let wanted = "each part stands once, and a rule has one verdict";
                return part.wrong(format!("a second {name}"), wanted);
            }
            names.push(name);
        }
        let Some(verdict) = verdict else {
            return text.wrong("no verdict", format!("wanted one of {}", Verdict::forms()));
        };
        match (rule.schedule.state, target) {
            (Some(_), Target::Nic(_)) => {
                return text.wrong(
                    "a state of the device in a rule for the NIC",
                    "leave out while= or after=",
                );
            }
            (Some(state), Target::Chip(_)) if state != State::AfterReset => {
                return text.wrong(
                    "a state of the driver in a rule for the chip",
                    "leave out while=; after=reset can stay",
                );
            }
            _ => {}
        }
        rule.verdict = verdict;
        match (percent.and_then(|percent| u8::try_from(percent).ok()), seed) {
            (Some(percent), seed) => {
                let seed = seed.map_or(default_seed, |(_, seed)| seed);
                rule.schedule = rule.schedule.with_chance(percent, seed);
            }
            (None, Some((part, _))) => {
                return part.wrong("a seed without p=", "only a choice has a seed: p=PERCENT:seed=N");
            }
            (None, None) => {}
        }
        Ok(rule)
    }
}

fn check_field(part: Piece<'_>, field: Field, target: Target) -> Result<(), Wrong> {
    if field.is_of(target) {
        return Ok(());
    }
    let known = Field::ALL.into_iter().filter(|field| field.is_of(target));
    let known: Vec<_> = known.map(Field::name).collect();
    let wanted = match known[..] {
        [] => "it has none to filter by".to_owned(),
        _ => format!("known: {}", known.join(", ")),
    };
    part.wrong(format!("{target} has no {}", field.name()), wanted)
}

fn unknown(part: Piece<'_>, target: Target) -> Result<Rule, Wrong> {
    let met = Verdict::KINDS
        .iter()
        .filter(|kind| kind.example.meets(target).is_ok());
    let met: Vec<_> = met.map(|kind| kind.form).collect();
    let fields = Field::ALL.into_iter().filter(|field| field.is_of(target));
    let fields: String = fields.map(|field| format!("{}=, ", field.name())).collect();
    part.wrong(
        format!("unknown part {}", part.quoted()),
        format!(
            "known for {target}: when=, {}, {fields}while=, after=, p=, seed=",
            met.join(", ")
        ),
    )
}

/// Rules, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The rules. Every rule checks each operation or event; delays add up, and the first other
    /// verdict decides.
    pub rules: Vec<Rule>,
}

impl Plan {
    /// Returns the rules whose targets a place executes, in order.
    #[must_use]
    pub fn of(&self, is_executed: impl Fn(Target) -> bool) -> Self {
        let rules = self.rules.iter().copied();
        Self {
            rules: rules.filter(|rule| is_executed(rule.target)).collect(),
        }
    }

    /// Parses a plan; rules with a percentage and without a seed get `seed`.
    ///
    /// # Errors
    /// The first invalid rule, or one too many.
    pub fn seeded(text: &str, seed: u64) -> Result<Self, PlanError> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let whole = Piece::line(line).before('#');
            for rule in whole.split(';').map(Piece::trim) {
                if rule.text.is_empty() {
                    continue;
                }
                let parsed = match rules.len() {
                    MOST_RULES => rule.wrong("too many rules", format!("at most {MOST_RULES}")),
                    _ => Rule::parse(rule, seed),
                };
                rules.push(parsed.map_err(|wrong| wrong.in_line(number + 1, line))?);
            }
        }
        Ok(Self { rules })
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        Self::seeded(text, 0)
    }
}

impl FromStr for Rule {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let rule = Piece::line(text).trim();
        Self::parse(rule, 0).map_err(|wrong| wrong.in_line(1, text))
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
        write!(f, "{}{}", self.target, self.filter)?;
        self.schedule.print_matches(f)?;
        write!(f, ":{}", self.verdict)?;
        self.schedule.print_chance(f)
    }
}
