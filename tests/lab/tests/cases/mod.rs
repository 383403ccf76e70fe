//! The conformance cases on the real driver of a modelled card.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gaudi_conformance::{Case, Outcome};
use gaudi_harness::Watch;
use gaudi_lab::{card, say, skip};

use super::first_card::{open, spec};

/// The deadline of a case: ten times what the slowest takes on two cores.
const CASE_LIMIT: Duration = Duration::from_secs(300);

/// Runs conformance cases: those whose ids the command line names by their dots, otherwise all.
/// Counts what does not run, with its reason.
pub(crate) fn conformance(what: &str, takes: fn(&Case) -> bool) {
    drop(open());
    let named: Vec<_> = std::env::args().filter(|word| word.contains('.')).collect();
    let is_named = |case: &Case| named.is_empty() || named.iter().any(|word| case.id.contains(word.as_str()));
    let (mut failed, mut slow) = (Vec::new(), Vec::new());
    let mut counts = BTreeMap::new();
    let begin = Instant::now();
    let watch = Watch::in_guest();
    let chosen = gaudi_conformance::cases::all().filter(|case| takes(case) && is_named(case));
    // The runner takes each case from the iterator as it begins.
    let chosen = chosen.inspect(|case| watch.begin(case.id, CASE_LIMIT));
    let report = gaudi_conformance::run(&spec(), chosen, |row| {
        *counts.entry(row.outcome.word()).or_insert(0) += 1;
        slow.push((Duration::from_micros(row.took_us as u64), row.id));
        match &row.outcome {
            Outcome::Failed(failure) => {
                let log = card::log();
                let mut end: Vec<_> = log.lines().rev().take(12).collect();
                end.reverse();
                let end = end.join("\n  ");
                failed.push(format!("{} ({}): {failure}\n  {end}", row.id, row.source));
            }
            Outcome::Skipped { need: why } | Outcome::Unsupported { why } => {
                skip(&format!("conformance {}", row.id), why);
            }
            Outcome::Passed | Outcome::ExpectedFailure { .. } => {}
        }
    });
    watch.end();
    report.expect("the cases run");
    slow.sort_unstable();
    say(&format!(
        "conformance on {}, {what}: {counts:?} in {:.0} s; the slowest {:?}",
        spec(),
        begin.elapsed().as_secs_f64(),
        slow.iter().rev().take(5).collect::<Vec<_>>()
    ));
    assert!(
        failed.is_empty(),
        "cases that the real driver answers otherwise:\n{}",
        failed.join("\n")
    );
}
