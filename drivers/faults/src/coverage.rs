//! [`Coverage`]: counts of faults by verdict and operation or event of a NIC, and why some pairs
//! never meet.

use std::collections::BTreeMap;

use gaudi_seam::Operation;
use gaudi_seam::fault::{NicEvent, Target, Verdict};

use crate::case::Where;
use crate::record::{DeviceState, Met};
use crate::words::Vocabulary;
use crate::world::Outcome;

/// The faults of many runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    met: BTreeMap<Met, u64>,
    /// The runs in which a rule for an event of a NIC injected a fault, by the verdict's form and
    /// the event's name.
    nic: BTreeMap<(&'static str, &'static str), u64>,
    places: [Place; Where::ALL.len()],
}

/// The cases of a place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// The cases.
    pub cases: u64,
    /// Those with a fault.
    pub with_faults: u64,
}

/// One verdict and one event of a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicPair {
    /// The form of the verdict.
    pub verdict: &'static str,
    /// The event.
    pub event: NicEvent,
    /// The runs in which a rule injected the fault.
    pub runs: u64,
    /// Why the pair never meets. `None` if it can meet.
    pub never: Option<String>,
}

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
    pub fn add(&mut self, outcome: &Outcome) {
        for &met in &outcome.met {
            *self.met.entry(met).or_default() += 1;
        }
        for &rule in &outcome.nic_fired {
            if let Target::Nic(event) = rule.target {
                *self
                    .nic
                    .entry((rule.verdict.kind().form, event.name()))
                    .or_default() += 1;
            }
        }
    }

    /// Counts a case of a place, and adds its faults.
    pub fn add_case(&mut self, place: Where, outcome: &Outcome) {
        let count = &mut self.places[place as usize];
        count.cases += 1;
        count.with_faults += u64::from(outcome.has_fault());
        self.add(outcome);
    }

    /// The cases of each place that [`add_case`](Self::add_case) counted.
    pub fn places(&self) -> impl Iterator<Item = (Where, Place)> {
        let count = |place: Where| (place, self.places[place as usize]);
        Where::ALL.into_iter().map(count)
    }

    /// Adds the faults of other runs.
    pub fn merge(&mut self, other: &Self) {
        for (&met, count) in &other.met {
            *self.met.entry(met).or_default() += count;
        }
        for (&pair, count) in &other.nic {
            *self.nic.entry(pair).or_default() += count;
        }
        for (own, other) in self.places.iter_mut().zip(other.places) {
            own.cases += other.cases;
            own.with_faults += other.with_faults;
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
                    self.met.get(&met).copied().unwrap_or(0)
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

    /// Every verdict with every event of a NIC.
    pub fn nic_pairs(&self) -> Vec<NicPair> {
        let events = NicEvent::ALL.iter().copied();
        Verdict::KINDS
            .iter()
            .flat_map(|kind| events.clone().map(move |event| (kind, event)))
            .map(|(kind, event)| NicPair {
                verdict: kind.form,
                event,
                runs: self.nic.get(&(kind.form, event.name())).copied().unwrap_or(0),
                never: match kind.example.meets(Target::Nic(event)) {
                    Err(reason) => Some(reason.to_string()),
                    Ok(()) if matches!(kind.example, Verdict::Flip(_)) => {
                        Some("a message with other bytes has no expected effect".to_owned())
                    }
                    Ok(()) => None,
                },
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
    let mut drawn = Vocabulary::WITH_DESCRIPTORS.verdicts.iter();
    drawn.any(|drawn| drawn.kind().form == example.kind().form)
}
