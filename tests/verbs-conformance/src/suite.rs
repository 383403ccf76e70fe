//! Cases over a [`Fixture`], and running them.

use std::time::Instant;

use gaudi_harness::survive;

use crate::fixture::{Feature, Fixture};

/// A case. Its group is the topic, its tags are the features that the provider must have.
pub type Case = gaudi_harness::Case<Feature, fn(&Fixture)>;
/// Outcome of a case.
pub type Outcome = gaudi_harness::Outcome<String>;
/// A case and its outcome.
pub type Row = gaudi_harness::Row<String>;
/// Outcomes of a run.
pub type Report = gaudi_harness::Report<String>;

/// Runs one case.
pub fn run_case(case: &Case, fixture: &Fixture) -> Row {
    let begin = Instant::now();
    let lack = case.tags.iter().find_map(|feature| fixture.lack(*feature));
    let outcome = match lack {
        Some(why) => Outcome::Unsupported {
            why: why.to_owned().into(),
        },
        None => {
            // Events that are left belong to the case before.
            crate::bench::drain_events(fixture);
            survive(|| (case.run)(fixture)).map_or_else(Outcome::Failed, |()| Outcome::Passed)
        }
    };
    Row {
        id: case.id,
        group: case.group,
        source: case.source,
        outcome,
        took_us: begin.elapsed().as_micros(),
    }
}

/// Declares the cases of a topic: functions of a fixture, whose names are sentences.
macro_rules! cases {
    ($topic:literal; $($(#[$meta:meta])* fn $name:ident($fixture:ident) $([$($need:ident),*])? $body:block)*) => {
        /// The cases of this topic.
        pub(crate) const CASES: &[$crate::suite::Case] = &[
            $($crate::suite::Case::new($topic, stringify!($name), "", $name)
                .tagged(&[$($($crate::fixture::Feature::$need),*)?]),)*
        ];

        $($(#[$meta])* fn $name($fixture: &$crate::fixture::Fixture) $body)*
    };
}

pub(crate) use cases;
