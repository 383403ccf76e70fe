//! [`Coverage`]: counts of faults by verdict, operation and state, and why some pairs never meet.

use std::collections::BTreeMap;

use gaudi_seam::Operation;
use gaudi_seam::fault::{Target, Verdict};

use crate::record::{DeviceState, Met};
use crate::words::Vocabulary;

/// The faults of many runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<Met, u64>);

/// One verdict and one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The form of the verdict.
    pub verdict: &'static str,
    /// The operation.
    pub operation: Operation,
    /// The faults in each state, in the order of [`DeviceState::ALL`].
    pub faults: [u64; DeviceState::ALL.len()],
    /// Why the pair never meets. `None` if it can meet.
    pub never: Option<String>,
}

impl Coverage {
    /// Adds the faults of a run.
    pub fn add(&mut self, met: &[Met]) {
        for &met in met {
            *self.0.entry(met).or_default() += 1;
        }
    }

    /// Adds the faults of other runs.
    pub fn merge(&mut self, other: &Self) {
        for (&met, count) in &other.0 {
            *self.0.entry(met).or_default() += count;
        }
    }

    /// Every verdict with every operation.
    pub fn pairs(&self) -> Vec<Pair> {
        let operations = Operation::ALL.iter().copied();
        Verdict::KINDS
            .iter()
            .flat_map(|kind| operations.clone().map(move |operation| (kind, operation)))
            .map(|(kind, operation)| {
                let faults = DeviceState::ALL.map(|state| {
                    let verdict = kind.form;
                    let met = Met {
                        verdict,
                        operation,
                        state,
                    };
                    self.0.get(&met).copied().unwrap_or(0)
                });
                let never = match kind.example.meets(Target::Only(operation)) {
                    Err(reason) => Some(reason.to_string()),
                    Ok(()) if !Vocabulary::WITH_DESCRIPTORS.operations.contains(&operation) => {
                        Some("the sequences do not request the operation".to_owned())
                    }
                    Ok(()) if !is_drawn(kind.example) => {
                        Some("an answer with other bytes has no expected effect".to_owned())
                    }
                    Ok(()) => None,
                };
                Pair {
                    verdict: kind.form,
                    operation,
                    faults,
                    never,
                }
            })
            .collect()
    }

    /// The pairs that can meet and have not met.
    pub fn missing(&self) -> Vec<Pair> {
        let mut pairs = self.pairs();
        pairs.retain(|pair| pair.never.is_none() && pair.faults.iter().all(|&count| count == 0));
        pairs
    }
}

/// Whether random plans have a verdict of this kind.
fn is_drawn(example: Verdict) -> bool {
    Vocabulary::WITH_DESCRIPTORS
        .verdicts
        .iter()
        .any(|drawn| match (*drawn, example) {
            (Verdict::Full(one), Verdict::Full(other)) => one == other,
            (one, other) => std::mem::discriminant(&one) == std::mem::discriminant(&other),
        })
}
