//! [`Rig`]: the objects of a sequence, and their expected state.

use gaudi_device::{Buffer, Completion, Device, HostBuffer, HostMapping, Location};
use gaudi_seam::{Error, ErrorKind, Operation, Result};

use crate::bytes::{Bytes, LARGEST};
use crate::exports::Export;
use crate::invariant::Invariant;
use crate::record::Refusal;
use crate::world::Run;

const BUFFERS: usize = 4;
const HOSTS: usize = 4;
/// Copies to the device, to the host, and within the device. Those of one lane run in the order of
/// their calls.
pub(crate) const LANES: usize = 3;
/// Operations whose refusal a copy must report. A failed wait for room belongs to an earlier one.
pub(crate) const NEEDS: &[Operation] = &[
    Operation::Submit,
    Operation::CbCreate,
    Operation::CbInfo,
    Operation::Mmap,
];

/// The library's own deadline ends these calls, after long delays of their waits.
pub(crate) const OWN: &[ErrorKind] = &[ErrorKind::TimedOut];

/// A buffer or mapping with its expected state.
pub(crate) struct Memory<T> {
    pub(crate) object: T,
    pub(crate) id: u64,
    pub(crate) known: Known,
    /// The memory of a mapping that the cache made.
    pub(crate) cached: Option<HostBuffer>,
}

#[derive(Default)]
pub(crate) struct Known {
    /// The expected bytes, if they are known.
    pub(crate) content: Option<Bytes>,
    /// Copies in flight that read it and that write it, by lane.
    pub(crate) reads: [u32; LANES],
    pub(crate) writes: [u32; LANES],
    /// A submission without a completion may still access it.
    pub(crate) untracked: bool,
    /// A failed close may have unmapped it.
    pub(crate) unmapped: bool,
}

impl Known {
    /// Whether no copy may access the memory.
    pub(crate) fn is_idle(&self) -> bool {
        !self.untracked && self.reads == [0; LANES] && self.writes == [0; LANES]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Buffer(usize),
    Host(usize),
}

pub(crate) struct Pending {
    pub(crate) completion: Completion,
    pub(crate) lane: usize,
    pub(crate) reads: Option<u64>,
    pub(crate) writes: u64,
    pub(crate) ended: Option<std::result::Result<(), ErrorKind>>,
}

/// The objects of a sequence.
pub(crate) struct Rig<'a, 'r> {
    /// Dropped before the buffers: the driver does not unmap exported memory.
    pub(crate) exports: Vec<Export>,
    pub(crate) run: &'a Run<'r>,
    pub(crate) device: &'r Device,
    pub(crate) buffers: [Option<Memory<Buffer>>; BUFFERS],
    pub(crate) hosts: [Option<Memory<HostMapping>>; HOSTS],
    pub(crate) pending: Vec<Pending>,
    pub(crate) next: u64,
    pub(crate) untracked_work: bool,
    /// Whether a buffer had pages of its own, of which the card has few.
    pub(crate) has_own_pages: bool,
}

/// Returns the slot that a word chooses among those that hold something, or among the empty ones.
pub(crate) fn among<T>(slots: &[Option<T>], word: u16, is_held: bool) -> usize {
    let fits = |slot: &&(usize, &Option<T>)| slot.1.is_some() == is_held;
    let fitting = slots.iter().enumerate().filter(|slot| fits(&slot));
    match fitting.clone().count() {
        0 => usize::from(word) % slots.len(),
        count => fitting
            .map(|(slot, _)| slot)
            .nth(usize::from(word) % count)
            .unwrap_or(0),
    }
}

/// Bytes of a buffer or a mapping.
pub(crate) fn length(c: u16) -> u64 {
    match c % 3 {
        0 => 1 + u64::from(c / 3) % 200,
        _ => 1 + u64::from(c) % LARGEST as u64,
    }
}

impl Run<'_> {
    /// Checks the result of an operation that may report the end of a submission. An error must
    /// come from the driver or a fault in this operation, or have ended a submission earlier. A
    /// success must not hide the refusal of an operation in `needs`.
    pub(crate) fn judge<T>(&self, what: &str, answer: &Result<T>, needs: &[Operation], own: &[ErrorKind]) {
        self.judge_by(what, answer, needs, own, true);
    }

    /// As [`judge`](Self::judge), for an operation on memory, which reports the end of no
    /// submission.
    pub(crate) fn judge_memory<T>(
        &self,
        what: &str,
        answer: &Result<T>,
        needs: &[Operation],
        own: &[ErrorKind],
    ) {
        self.judge_by(what, answer, needs, own, false);
    }

    fn judge_by<T>(
        &self,
        what: &str,
        answer: &Result<T>,
        needs: &[Operation],
        own: &[ErrorKind],
        reports_ends: bool,
    ) {
        if answer.is_ok() && !self.record.is_refused() {
            return;
        }
        let mut record = self.record.lock();
        match answer {
            Err(error) if record.met.is_empty() && !own.contains(&error.kind()) => {
                let text = format!("{what} failed, and no fault was injected: {error}");
                record.violated(Invariant::TruthfulErrors, text);
            }
            Err(error) => {
                let (kind, errno) = (error.kind(), error.errno());
                let is_cause = |refusal: &Refusal| refusal.kind == kind && refusal.errno == errno;
                let ended = record.ended.iter().filter(|_| reports_ends);
                let mut causes = record.refusals.iter().chain(ended);
                if !own.contains(&kind) && !causes.any(is_cause) {
                    let text = format!(
                        "{what} failed with an error that no call returned: {error}; the refusals: {:?}",
                        record.refusals
                    );
                    record.violated(Invariant::TruthfulErrors, text);
                }
            }
            Ok(_) => {
                // An allocation is retried after the heap has freed its unused memory.
                let may_be_ignored =
                    |refusal: &Refusal| refusal.is_retried() || refusal.kind == ErrorKind::OutOfDeviceMemory;
                let hidden = record
                    .refusals
                    .iter()
                    .find(|refusal| needs.contains(&refusal.operation) && !may_be_ignored(refusal));
                if let Some(refusal) = hidden.copied() {
                    record.violated(
                        Invariant::TruthfulErrors,
                        format!("{what} succeeded despite {refusal:?}"),
                    );
                }
            }
        }
    }
}

impl<'a, 'r> Rig<'a, 'r> {
    pub(crate) fn new(run: &'a Run<'r>) -> Self {
        Self {
            exports: Vec::new(),
            run,
            device: run.device,
            buffers: Default::default(),
            hosts: Default::default(),
            pending: Vec::new(),
            next: 0,
            untracked_work: false,
            has_own_pages: false,
        }
    }

    pub(crate) fn violated(&self, invariant: Invariant, what: String) {
        self.run.record.lock().violated(invariant, what);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.run.record.has_failed()
    }

    /// Whether memory may be compared: no answer reported the end of work that still runs.
    pub(crate) fn trusts(&self) -> bool {
        !self.run.record.has_false_end()
    }

    /// As [`Run::judge`].
    pub(crate) fn judge<T>(&self, what: &str, answer: &Result<T>, needs: &[Operation], own: &[ErrorKind]) {
        self.run.judge(what, answer, needs, own);
    }

    pub(crate) fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn bytes(&self, word: u16, len: u64) -> Bytes {
        let word = word.wrapping_add((self.next as u16).wrapping_mul(257));
        self.run.pool.random(word, len as usize)
    }

    pub(crate) fn known(&mut self, at: At) -> Option<(u64, &mut Known)> {
        match at {
            At::Buffer(slot) => self.buffers[slot].as_mut().map(|one| (one.id, &mut one.known)),
            At::Host(slot) => self.hosts[slot].as_mut().map(|one| (one.id, &mut one.known)),
        }
    }

    pub(crate) fn len(&self, at: At) -> Option<u64> {
        match at {
            At::Buffer(slot) => {
                let one = self.buffers[slot].as_ref()?;
                (!one.known.unmapped).then(|| one.object.len())
            }
            At::Host(slot) => {
                let one = self.hosts[slot].as_ref()?;
                (!one.known.unmapped).then(|| one.object.len())
            }
        }
    }

    pub(crate) fn location(&self, at: At, start: u64, len: u64) -> Result<Location> {
        let missing = || Error::new(ErrorKind::NotFound, "location");
        let range = start..start + len;
        match at {
            At::Buffer(slot) => self.buffers[slot].as_ref().ok_or_else(missing)?.object.at(range),
            At::Host(slot) => self.hosts[slot].as_ref().ok_or_else(missing)?.object.at(range),
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = At> + use<> {
        let hosts = (0..HOSTS).map(At::Host);
        (0..BUFFERS).map(At::Buffer).chain(hosts)
    }

    pub(crate) fn compare(&self, at: At, wanted: Option<&[u8]>, seen: &[u8]) {
        let Some(wanted) = wanted.filter(|wanted| *wanted != seen) else {
            return;
        };
        let place = wanted.iter().zip(seen).position(|(wanted, seen)| wanted != seen);
        let place = place.unwrap_or(0);
        self.violated(
            Invariant::ForeignBytes,
            format!(
                "{at:?} of {} bytes differs from byte {place} on: expected {:#04x}, seen {:#04x}",
                wanted.len(),
                wanted[place],
                seen[place]
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use gaudi_seam::Errno;

    use super::*;
    use crate::record::DeviceState;
    use crate::world::{DEVICE, World};

    #[test]
    fn end_of_earlier_work_excuses_no_allocation() {
        let mut world = World::new(&DEVICE.parse().expect("a spec")).expect("made");
        let outcome = world.run_with(0, |run| {
            let failed: Result<()> = Err(Error::from_errno("test", Errno::EIO));
            let mut record = run.record.lock();
            record.met.push((Operation::WaitCs, DeviceState::Busy));
            record.ended.push(Refusal {
                operation: Operation::WaitCs,
                kind: failed.as_ref().expect_err("an error").kind(),
                errno: Some(Errno::EIO),
            });
            drop(record);
            run.judge("a copy", &failed, &[], &[]);
            assert!(!run.record.has_failed());
            run.judge_memory("an allocation", &failed, &[], &[]);
            Ok(())
        });
        let violations = outcome.expect("the device opens").violations;
        let seen: Vec<_> = violations.iter().map(|one| one.invariant).collect();
        assert_eq!(seen, [Invariant::TruthfulErrors], "{violations:?}");
    }
}
