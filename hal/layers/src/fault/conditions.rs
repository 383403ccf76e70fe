//! [`Conditions`]: the states that schedules name, from the operations that passed.

use std::collections::BTreeSet;

use gaudi_seam::fault::State;
use gaudi_seam::{AnyAnswer, AnyRequest, CsSeq, DeviceVa, WaitStatus};

/// The objects of each kind that are stored. Beyond, the oldest is forgotten.
const MOST: usize = 4096;

/// What passed since the first rule that needs it was armed.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    mapped: BTreeSet<DeviceVa>,
    exported: BTreeSet<DeviceVa>,
    /// Submissions whose completion was not reported.
    in_flight: BTreeSet<CsSeq>,
    /// Those that a compute reset aborted.
    aborted: BTreeSet<CsSeq>,
    pub(super) was_reset: bool,
}

impl Conditions {
    pub(super) fn holds(&self, state: State) -> bool {
        match state {
            State::Exported => !self.exported.is_empty(),
            State::Mapped => !self.mapped.is_empty(),
            State::Busy => !self.in_flight.is_empty(),
            State::AfterReset => self.was_reset,
        }
    }

    /// Records an operation that succeeded.
    pub(super) fn record(&mut self, request: AnyRequest<'_>, answer: AnyAnswer<'_>) {
        match (request, answer) {
            (
                AnyRequest::MemMapDevice(_) | AnyRequest::MemMapHost(_) | AnyRequest::RegisterDmabuf(_),
                AnyAnswer::DeviceVa(&va),
            ) => insert(&mut self.mapped, va),
            (AnyRequest::MemUnmap(unmap), _) => {
                self.mapped.remove(&unmap.0);
                // The driver does not unmap exported memory, so no export is left.
                self.exported.remove(&unmap.0);
            }
            (AnyRequest::ExportDmabuf(export), _) => insert(&mut self.exported, export.address),
            (AnyRequest::Submit(request), AnyAnswer::Cs(taken)) if request.is_numbered() => {
                insert(&mut self.in_flight, taken.seq);
            }
            (AnyRequest::WaitCs(wait), AnyAnswer::Wait(done)) if done.status == WaitStatus::Completed => {
                self.in_flight.remove(&wait.seq);
            }
            (AnyRequest::WaitMultiCs(wait), AnyAnswer::MultiWait(done)) => {
                let bits = (0..32).filter(|bit| done.completion_map >> bit & 1 == 1);
                for seq in bits.filter_map(|bit| wait.seqs.get(bit)) {
                    self.in_flight.remove(seq);
                }
            }
            _ => {}
        }
    }

    /// A compute reset aborts what is in flight.
    pub(super) fn abort(&mut self) {
        self.was_reset = true;
        let mut aborted = std::mem::take(&mut self.in_flight);
        self.aborted.append(&mut aborted);
        while self.aborted.len() > MOST {
            self.aborted.pop_first();
        }
    }

    /// Whether a compute reset aborted one of these submissions.
    pub(super) fn is_aborted(&self, seqs: &[CsSeq]) -> bool {
        !self.aborted.is_empty() && seqs.iter().any(|seq| self.aborted.contains(seq))
    }

    /// Whether a compute reset aborted anything.
    pub(super) fn has_aborted(&self) -> bool {
        !self.aborted.is_empty()
    }
}

fn insert<T: Ord>(set: &mut BTreeSet<T>, value: T) {
    if set.len() == MOST {
        set.pop_first();
    }
    set.insert(value);
}
