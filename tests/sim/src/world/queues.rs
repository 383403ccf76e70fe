//! Operations on queues: copies, gates, waits. Each submission must end once, with one result.

use gaudi_device::{Completion, Deadline, Device};
use gaudi_seam::{ErrorKind, Operation, QueueId, Result};
use gaudi_spec::gaudi2::queue as queue_ids;

use super::{At, Gate, LANES, NO_DEADLINE, Pending, World, held};

const TO_DEVICE: usize = 0;
const TO_HOST: usize = 1;
const IN_DEVICE: usize = 2;
const OWN: usize = 3;
/// Operations whose refusal a copy must report. `WaitCs` is not one of them: a failed wait for
/// space belongs to an earlier submission.
const NEEDS: &[Operation] = &[
    Operation::Submit,
    Operation::CbCreate,
    Operation::CbInfo,
    Operation::Mmap,
];

fn edma(instance: u8, stream: u8) -> QueueId {
    queue_ids::edma(instance, stream).unwrap_or(queue_ids::PDMA_0_1)
}

/// A transfer: its source, its destination and the bytes it writes.
struct Transfer {
    lane: usize,
    from: Option<At>,
    to: At,
    start: u64,
    len: u64,
    /// The bytes that it writes, if known.
    bytes: Option<Vec<u8>>,
}

impl World {
    /// Waits for transfers on other lanes that use the same memory. Returns whether none remains.
    fn finish_conflicting_work(&mut self, device: &Device, lane: usize, from: Option<At>, to: At) -> bool {
        for patient in [true, false] {
            let others = |counts: &[u32; LANES]| {
                counts
                    .iter()
                    .enumerate()
                    .any(|(other, &count)| other != lane && count > 0)
            };
            let from_met = from
                .and_then(|from| self.known(from))
                .is_some_and(|known| *known.untracked || others(known.writes));
            let to_met = self
                .known(to)
                .is_some_and(|known| *known.untracked || others(known.writes) || others(known.reads));
            if !from_met && !to_met {
                return true;
            }
            if patient {
                self.drain(device);
                self.record.lock().begin(false);
            }
        }
        false
    }

    pub(super) fn copy(&mut self, device: &Device, to: At, from: At, c: u16) {
        let (Some(to_len), Some(from_len)) = (self.length_at(to), self.length_at(from)) else {
            return;
        };
        let most = to_len.min(from_len);
        let len = match c % 4 {
            0 => most,
            _ => u64::from(c) % (most + 1),
        };
        let start = u64::from(c / 7) % (to_len - len + 1);
        let from_start = u64::from(c / 11) % (from_len - len + 1);
        let lane = match (to, from) {
            (At::Buffer(_), At::Host(_)) => TO_DEVICE,
            (At::Host(_), _) => TO_HOST,
            _ => IN_DEVICE,
        };
        if to == from {
            return self.copy_onto_itself(device, to, len);
        }
        if !self.finish_conflicting_work(device, lane, Some(from), to) {
            return;
        }
        let bytes = self.content(from, from_start, len);
        let ends = (
            self.location(to, start, len),
            self.location(from, from_start, len),
        );
        let (Ok(dst), Ok(src)) = ends else {
            return self.violated(format!("a range inside {to:?} or {from:?} was refused"));
        };
        let answer = device.copy(dst, src);
        self.record_transfer(
            "Device::copy",
            answer,
            Transfer {
                lane,
                from: Some(from),
                to,
                start,
                len,
                bytes,
            },
            &[],
        );
    }

    fn copy_onto_itself(&mut self, device: &Device, at: At, len: u64) {
        let (Ok(dst), Ok(src)) = (self.location(at, 0, len), self.location(at, 0, len)) else {
            return;
        };
        match device.copy(dst, src) {
            Err(error) if len > 0 => {
                self.judge::<()>("Device::copy", &Err(error), &[], &[ErrorKind::InvalidInput]);
            }
            Ok(_) if len > 0 => self.violated("a copy of memory onto itself was accepted".to_owned()),
            _ => {}
        }
    }

    fn content(&mut self, at: At, start: u64, len: u64) -> Option<Vec<u8>> {
        let known = self.known(at)?;
        let range = start as usize..(start + len) as usize;
        known
            .content
            .as_ref()
            .and_then(|content| content.get(range))
            .map(<[u8]>::to_vec)
    }

    pub(super) fn fill(&mut self, device: &Device, to: At, c: u16) {
        let Some(all) = self.length_at(to) else { return };
        let len = match c % 3 {
            0 => u64::from(c) % (all + 1),
            _ => all,
        };
        let start = u64::from(c / 5) % (all - len + 1);
        let lane = match to {
            At::Buffer(_) => IN_DEVICE,
            At::Host(_) => TO_HOST,
        };
        if !self.finish_conflicting_work(device, lane, None, to) {
            return;
        }
        let Ok(dst) = self.location(to, start, len) else {
            return self.violated(format!("a range inside {to:?} was refused"));
        };
        let value = (c >> 8) as u8;
        let answer = device.fill(dst, value);
        let bytes = Some(vec![value; len as usize]);
        self.record_transfer(
            "Device::fill",
            answer,
            Transfer {
                lane,
                from: None,
                to,
                start,
                len,
                bytes,
            },
            &[],
        );
    }

    /// Records a transfer that was submitted, at least in part. Returns whether it succeeded.
    fn record_transfer(
        &mut self,
        what: &str,
        answer: Result<Completion>,
        transfer: Transfer,
        own: &[ErrorKind],
    ) -> bool {
        self.judge(what, &answer, NEEDS, own);
        let trusts = self.trusts();
        let (start, len) = (transfer.start as usize, transfer.len as usize);
        let lane = transfer.lane;
        let completion = match answer {
            Ok(completion) => completion,
            Err(_) => {
                // Some of its submissions may run, and only a drain waits for them.
                self.untracked_work = true;
                if let Some(known) = self.known(transfer.to) {
                    (*known.content, *known.untracked) = (None, true);
                }
                return false;
            }
        };
        if len == 0 {
            return true;
        }
        let reads = transfer
            .from
            .and_then(|from| self.known(from))
            .map(|known| (known.reads[lane] += 1, known.id).1);
        let writes = self.known(transfer.to).map(|known| {
            match (transfer.bytes.filter(|_| trusts), known.content.as_mut()) {
                (Some(bytes), Some(content)) => content[start..start + len].copy_from_slice(&bytes),
                (Some(bytes), None) if start == 0 => {
                    // Known only if the transfer covers the whole memory; checked below.
                    *known.content = Some(bytes);
                }
                _ => *known.content = None,
            }
            known.writes[lane] += 1;
            known.id
        });
        let all = self.length_at(transfer.to).unwrap_or(0);
        if let Some(known) = self.known(transfer.to) {
            known.content.take_if(|content| content.len() as u64 != all);
        }
        self.pending.push(Pending {
            completion,
            lane,
            reads,
            writes,
            ended: None,
        });
        true
    }

    /// Records the reported result of a submission, which must not change.
    fn end(&mut self, index: usize, how: std::result::Result<(), ErrorKind>) {
        let before = self.pending[index].ended;
        if let Some(before) = before {
            if before != how {
                let pending = &self.pending[index].completion;
                self.violated(format!("{pending:?} ended as {before:?} and then as {how:?}"));
            }
            return;
        }
        let pending = &mut self.pending[index];
        pending.ended = Some(how);
        let (lane, reads, writes) = (pending.lane, pending.reads, pending.writes);
        for at in self.all_memory() {
            let Some(known) = self.known(at) else { continue };
            if Some(known.id) == reads {
                known.reads[lane] = known.reads[lane].saturating_sub(1);
            }
            if Some(known.id) == writes {
                known.writes[lane] = known.writes[lane].saturating_sub(1);
            }
        }
        if how.is_err() {
            // The results of other transfers are unknown now.
            for at in self.all_memory() {
                if let Some(known) = self.known(at) {
                    *known.content = None;
                }
            }
        }
    }

    /// Checks the answer to a poll or a wait.
    fn record_answer(&mut self, index: usize, what: &str, answer: Result<bool>, was: StateBefore) {
        self.judge(what, &answer, &[Operation::WaitCs], &[]);
        match answer {
            Ok(true) => {
                if was.held {
                    let pending = &self.pending[index].completion;
                    self.violated(format!("{pending:?} is reported complete while a gate holds it"));
                }
                if was.lost {
                    let pending = &self.pending[index].completion;
                    self.violated(format!(
                        "{pending:?} is reported complete although its completion is lost"
                    ));
                }
                self.end(index, Ok(()));
            }
            Ok(false) => {
                if self.pending[index].ended == Some(Ok(())) {
                    self.violated("a completed submission is reported as running".to_owned());
                }
            }
            Err(error) => {
                let final_ = matches!(
                    error.kind(),
                    ErrorKind::Hung | ErrorKind::DeviceLost | ErrorKind::Io
                );
                if final_ {
                    self.end(index, Err(error.kind()));
                }
            }
        }
    }

    fn before(&self, index: usize) -> StateBefore {
        let record = self.record.lock();
        let seq = self.pending[index].completion.sequence().unwrap_or(0);
        StateBefore {
            held: record.driver.is_held(seq),
            lost: record.plan.is_lost(seq)
                && record
                    .driver
                    .after(seq)
                    .iter()
                    .all(|&later| record.plan.is_lost(later))
                && self.pending[index].ended.is_none(),
        }
    }

    pub(super) fn poll(&mut self, a: usize) {
        if self.pending.is_empty() {
            return;
        }
        let index = a % self.pending.len();
        let was = self.before(index);
        let answer = self.pending[index].completion.poll();
        self.record_answer(index, "Completion::poll", answer, was);
    }

    pub(super) fn wait(&mut self, a: usize, deadline: Deadline) {
        if self.pending.is_empty() {
            return;
        }
        let index = a % self.pending.len();
        let was = self.before(index);
        let answer = match self.pending[index].completion.wait(deadline) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::TimedOut && deadline != NO_DEADLINE => Ok(false),
            Err(error) => Err(error),
        };
        self.record_answer(index, "Completion::wait", answer, was);
    }

    pub(super) fn drain(&mut self, device: &Device) {
        let answer = device.drain(NO_DEADLINE);
        self.judge("Device::drain", &answer, &[Operation::WaitCs], &[]);
        let drained = answer.is_ok();
        for index in 0..self.pending.len() {
            self.record.lock().begin(false);
            let was = self.before(index);
            let answer = self.pending[index].completion.poll();
            // A failed submission has ended, too.
            if drained && matches!(answer, Ok(false)) && self.pending[index].ended.is_none() {
                let asked_again = self
                    .record
                    .lock()
                    .refusals
                    .iter()
                    .any(|refusal| refusal.errno.is_some());
                let pending = &self.pending[index].completion;
                if !asked_again {
                    self.violated(format!("{pending:?} is not complete after a drain: {answer:?}"));
                }
            }
            self.record_answer(index, "Completion::poll", answer, was);
        }
        self.pending.retain(|pending| pending.ended.is_none());
        if drained {
            self.untracked_work = false;
            for at in self.all_memory() {
                if let Some(known) = self.known(at) {
                    *known.untracked = false;
                }
            }
        }
    }

    pub(super) fn write(&mut self, device: &Device, slot: usize, c: u16) {
        let at = At::Buffer(slot);
        let Some(all) = self.length_at(at) else { return };
        if !self.finish_conflicting_work(device, TO_DEVICE, None, at) {
            return;
        }
        let start = u64::from(c) % all;
        let bytes = self.bytes((all - start) as usize);
        let Some(buffer) = self.buffers[slot].as_ref().map(|memory| memory.object.clone()) else {
            return;
        };
        let answer = device.write(&buffer, start, &bytes);
        self.judge("Device::write", &answer, NEEDS, &[]);
        let trusts = self.trusts();
        self.untracked_work |= answer.is_err();
        let Some(known) = self.known(at) else { return };
        match answer {
            Ok(()) => match known.content {
                Some(content) => content[start as usize..].copy_from_slice(&bytes),
                None if start == 0 && trusts => *known.content = Some(bytes),
                None => {}
            },
            Err(_) => (*known.content, *known.untracked) = (None, true),
        }
    }

    pub(super) fn read(&mut self, device: &Device, slot: usize, c: u16) {
        let at = At::Buffer(slot);
        let Some(all) = self.length_at(at) else { return };
        // Writes of other lanes may happen before or after the read.
        let busy = self
            .known(at)
            .is_none_or(|known| *known.untracked || known.writes != &[0; LANES]);
        if busy {
            return;
        }
        let start = u64::from(c) % all;
        let Some(buffer) = self.buffers[slot].as_ref().map(|memory| memory.object.clone()) else {
            return;
        };
        let mut seen = vec![0; (all - start) as usize];
        let answer = device.read(&buffer, start, &mut seen);
        self.judge("Device::read", &answer, NEEDS, &[]);
        if answer.is_err() {
            // A part of the read may still run.
            self.untracked_work = true;
            if let Some(known) = self.known(at) {
                *known.untracked = true;
            }
        }
        let wanted = self.content(at, start, all - start);
        if answer.is_ok() && self.trusts() && wanted.is_some_and(|wanted| wanted != seen) {
            self.violated(format!(
                "Device::read of {at:?} did not return the bytes that were written"
            ));
        }
    }

    pub(super) fn open_queue(&mut self, device: &Device, slot: usize, b: usize) {
        if self.queues[slot].is_some() {
            return;
        }
        let id = [queue_ids::PDMA_0_1, edma(3, 1), edma(7, 0), queue_ids::PDMA_0_1][b % 4];
        let answer = device.queue(id);
        self.judge(
            "Device::queue",
            &answer,
            &[Operation::CbCreate, Operation::CbInfo, Operation::Mmap],
            &[],
        );
        self.queues[slot] = answer.ok();
    }

    pub(super) fn queue_copy(&mut self, slot: usize, to: usize, b: usize, c: u16) {
        let to = At::Buffer(to);
        let from = match c % 2 {
            0 => At::Buffer(held(&self.buffers, b / 5)),
            _ => At::Host(held(&self.hosts, b / 5)),
        };
        let (Some(to_len), Some(from_len)) = (self.length_at(to), self.length_at(from)) else {
            return;
        };
        let (Some(device), lane) = (self.device.clone(), OWN + slot) else {
            return;
        };
        if to == from || !self.finish_conflicting_work(&device, lane, Some(from), to) {
            return;
        }
        let Some(mut queue) = self.queues[slot].take() else {
            return;
        };
        let len = to_len.min(from_len);
        let bytes = self.content(from, 0, len);
        let ends = (self.location(to, 0, len), self.location(from, 0, len));
        if let (Ok(dst), Ok(src)) = ends {
            let answer = queue.copy(dst, src).and_then(|queue| queue.submit());
            let transfer = Transfer {
                lane,
                from: Some(from),
                to,
                start: 0,
                len,
                bytes,
            };
            // One command buffer may be too short, and an internal engine cannot access host
            // memory.
            let own = [ErrorKind::InvalidInput, ErrorKind::Unsupported];
            if !self.record_transfer("Queue::submit", answer, transfer, &own) {
                queue.clear();
            }
        }
        self.queues[slot] = Some(queue);
    }

    /// Holds a queue until `open_gate`, or until the driver's timer.
    pub(super) fn gate(&mut self, device: &Device, slot: usize) {
        let Some(mut queue) = self.queues[slot].take() else {
            return;
        };
        if let Some(gate) = self.shut(device, &mut queue) {
            self.gates.push(gate);
        }
        self.queues[slot] = Some(queue);
    }

    fn shut(&mut self, device: &Device, queue: &mut gaudi_device::Queue) -> Option<Gate> {
        let sob = device.sob();
        self.judge("Device::sob", &sob, &[], &[]);
        let sob = sob.ok()?;
        if self.opener.is_none() {
            let opener = device.queue(edma(5, 2));
            self.judge("Device::queue", &opener, NEEDS, &[]);
            self.opener = opener.ok();
        }
        let opener = self.opener.as_mut()?;
        let set = opener.set(&sob, 0).and_then(|queue| queue.submit());
        if set.is_err() {
            opener.clear();
        }
        self.judge("Queue::submit", &set, NEEDS, &[]);
        let done = set.ok()?.wait(NO_DEADLINE);
        self.judge("Completion::wait", &done, &[Operation::WaitCs], &[]);
        done.ok()?;
        self.record.lock().begin(false);
        let number = {
            let mut record = self.record.lock();
            let number = record.driver.gates.len();
            record.driver.gates.push(false);
            record.driver.next_gate = Some(number);
            number
        };
        let answer = queue.wait(&sob, 1).and_then(|queue| queue.submit());
        self.record.lock().driver.next_gate = None;
        self.judge("Queue::submit", &answer, NEEDS, &[]);
        let Ok(completion) = answer else {
            queue.clear();
            return None;
        };
        self.pending.push(Pending {
            completion,
            lane: OWN,
            reads: None,
            writes: None,
            ended: None,
        });
        Some(Gate { number, sob })
    }

    pub(super) fn open_gate(&mut self, a: usize) {
        if self.gates.is_empty() {
            return;
        }
        let gate = self.gates.remove(a % self.gates.len());
        let Some(opener) = self.opener.as_mut() else {
            return;
        };
        let answer = opener.signal(&gate.sob, 1).and_then(|queue| queue.submit());
        if answer.is_err() {
            opener.clear();
        }
        self.judge("Queue::submit", &answer, NEEDS, &[]);
        match answer {
            Ok(completion) => {
                if let Some(open) = self.record.lock().driver.gates.get_mut(gate.number) {
                    *open = true;
                }
                self.pending.push(Pending {
                    completion,
                    lane: IN_DEVICE,
                    reads: None,
                    writes: None,
                    ended: None,
                });
            }
            Err(_) => self.gates.push(gate),
        }
    }

    /// Checks the device's count of submissions.
    pub(super) fn check_counts(&self, device: &Device) {
        let (counted, taken) = (device.stats().submissions, self.record.lock().taken);
        if counted != taken {
            self.violated(format!(
                "the device counts {counted} submissions, but the driver accepted {taken}"
            ));
        }
    }
}

/// The state of a submission before a poll or a wait.
#[derive(Debug, Clone, Copy)]
struct StateBefore {
    held: bool,
    lost: bool,
}
