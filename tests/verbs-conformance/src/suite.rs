//! What a case is, running them, and what became of each.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fixture::{Feature, Fixture};

/// A named (operation, precondition, outcome).
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// What it is about.
    pub topic: &'static str,
    /// Its function's name: the sentence with underscores.
    pub name: &'static str,
    /// What the provider must have.
    pub needs: &'static [Feature],
    pub(crate) run: fn(&Fixture),
}

impl Case {
    /// The sentence.
    pub fn sentence(&self) -> String {
        self.name.replace('_', " ")
    }
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not, and how.
    Failed(String),
    /// The provider lacks what it needs.
    Unsupported(String),
}

/// A case and what became of it.
#[derive(Debug, Clone)]
pub struct Row {
    /// The case.
    pub case: Case,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of all.
#[derive(Debug, Clone)]
pub struct Report {
    /// The fixture's name.
    pub name: String,
    /// In the order in which they ran.
    pub rows: Vec<Row>,
}

impl Report {
    /// How many passed, failed, and are unsupported.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |pick: fn(&Outcome) -> bool| self.rows.iter().filter(|row| pick(&row.outcome)).count();
        (
            count(|outcome| matches!(outcome, Outcome::Passed)),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::Unsupported(_))),
        )
    }

    /// Whether none failed, and any ran.
    pub fn is_good(&self) -> bool {
        let (passed, failed, _) = self.counts();
        passed > 0 && failed == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            match &row.outcome {
                Outcome::Passed => {}
                Outcome::Failed(how) => {
                    writeln!(f, "FAILED {}: {}: {how}", row.case.topic, row.case.sentence())?;
                }
                Outcome::Unsupported(why) => {
                    writeln!(
                        f,
                        "unsupported {}: {}: {why}",
                        row.case.topic,
                        row.case.sentence()
                    )?;
                }
            }
        }
        let (passed, failed, unsupported) = self.counts();
        writeln!(
            f,
            "{}: {passed} passed, {failed} failed, {unsupported} unsupported",
            self.name
        )
    }
}

/// Runs one case.
pub fn run_case(case: &Case, fixture: &Fixture) -> Row {
    let lack = case.needs.iter().find_map(|feature| fixture.lack(*feature));
    let outcome = match lack {
        Some(why) => Outcome::Unsupported(why.to_owned()),
        None => {
            // What events are left belongs to the case before.
            crate::bench::drain_events(fixture);
            match catch_unwind(AssertUnwindSafe(|| (case.run)(fixture))) {
                Ok(()) => Outcome::Passed,
                Err(panic) => Outcome::Failed(text_of(&*panic)),
            }
        }
    };
    Row { case: *case, outcome }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}

/// Runs the cases that `pick` picks.
pub fn run_where(fixture: &Fixture, pick: impl Fn(&Case) -> bool) -> Report {
    let rows = crate::cases::all()
        .filter(|case| pick(case))
        .map(|case| run_case(case, fixture));
    Report {
        name: fixture.name.clone(),
        rows: rows.collect(),
    }
}

/// Runs every case.
pub fn run(fixture: &Fixture) -> Report {
    run_where(fixture, |_| true)
}

/// Declares the cases of a topic: functions of a fixture, whose names are sentences.
macro_rules! cases {
    ($topic:literal; $($(#[$meta:meta])* fn $name:ident($fixture:ident) $([$($need:ident),*])? $body:block)*) => {
        /// The cases of this topic.
        pub(crate) const CASES: &[$crate::suite::Case] = &[
            $($crate::suite::Case {
                topic: $topic,
                name: stringify!($name),
                needs: &[$($($crate::fixture::Feature::$need),*)?],
                run: $name,
            },)*
        ];

        $($(#[$meta])* fn $name($fixture: &$crate::fixture::Fixture) $body)*
    };
}

pub(crate) use cases;
