//! Copies, fills and comparisons in a sequence.

use gaudi_device::Completion;
use gaudi_seam::Result;

use crate::bytes::Bytes;
use crate::invariant::Invariant;
use crate::rig::{At, LANES, NEEDS, OWN, Pending, Rig};

impl Rig<'_, '_> {
    /// Waits for copies of other lanes that use the same memory. Returns whether none remains.
    pub(crate) fn finish_others(&mut self, lane: usize, from: Option<At>, to: At) -> bool {
        for patient in [true, false] {
            let others = |counts: &[u32; LANES]| (0..LANES).any(|other| other != lane && counts[other] > 0);
            let from_met = from
                .and_then(|from| self.known(from))
                .is_some_and(|(_, known)| known.untracked || others(&known.writes));
            let to_met = self
                .known(to)
                .is_some_and(|(_, known)| known.untracked || others(&known.writes) || others(&known.reads));
            if !from_met && !to_met {
                return true;
            }
            if patient {
                self.drain();
                self.run.record.begin();
            }
        }
        false
    }

    pub(crate) fn host_write(&mut self, slot: usize, c: u16) {
        let len = match &self.hosts[slot] {
            Some(host) if host.known.is_idle() => host.object.len(),
            _ => return,
        };
        let start = u64::from(c) % len;
        let bytes = self.bytes(c, len - start);
        let trusts = self.trusts();
        let Some(host) = &mut self.hosts[slot] else { return };
        let answer = host.object.write(start, &bytes);
        match &mut host.known.content {
            Some(content) => content[start as usize..].copy_from_slice(&bytes),
            None if start == 0 && trusts => host.known.content = Some(bytes),
            None => {}
        }
        if let Err(error) = answer {
            let what = format!("writing to host memory failed: {error}");
            self.violated(Invariant::TruthfulErrors, what);
        }
    }

    pub(crate) fn copy(&mut self, to: At, from: At, c: u16) {
        let (Some(to_len), Some(from_len)) = (self.len(to), self.len(from)) else {
            return;
        };
        if to == from {
            return;
        }
        let most = to_len.min(from_len);
        let len = match c % 4 {
            0 => most,
            _ => u64::from(c) % (most + 1),
        };
        let start = u64::from(c / 7) % (to_len - len + 1);
        let from_start = u64::from(c / 11) % (from_len - len + 1);
        let lane = match (to, from) {
            (At::Buffer(_), At::Host(_)) => 0,
            (At::Host(_), _) => 1,
            _ => 2,
        };
        if !self.finish_others(lane, Some(from), to) {
            return;
        }
        let range = from_start as usize..(from_start + len) as usize;
        let pool = &self.run.pool;
        let bytes = self
            .known(from)
            .and_then(|(_, known)| known.content.as_ref()?.get(range).map(|bytes| pool.copy(bytes)));
        let ends = (
            self.location(to, start, len),
            self.location(from, from_start, len),
        );
        let (Ok(dst), Ok(src)) = ends else { return };
        let answer = self.device.copy(dst, src);
        self.record_transfer("Device::copy", answer, (lane, Some(from), to), start, len, bytes);
    }

    pub(crate) fn fill(&mut self, to: At, c: u16) {
        let Some(all) = self.len(to) else { return };
        let len = match c % 3 {
            0 => u64::from(c) % (all + 1),
            _ => all,
        };
        let start = u64::from(c / 5) % (all - len + 1);
        let lane = match to {
            At::Buffer(_) => 2,
            At::Host(_) => 1,
        };
        if !self.finish_others(lane, None, to) {
            return;
        }
        let Ok(dst) = self.location(to, start, len) else {
            return;
        };
        let value = (c >> 8) as u8;
        let answer = self.device.fill(dst, value);
        let bytes = Some(self.run.pool.filled(value, len as usize));
        self.record_transfer("Device::fill", answer, (lane, None, to), start, len, bytes);
    }

    pub(crate) fn record_transfer(
        &mut self,
        what: &str,
        answer: Result<Completion>,
        (lane, from, to): (usize, Option<At>, At),
        start: u64,
        len: u64,
        bytes: Option<Bytes>,
    ) {
        self.judge(what, &answer, NEEDS, OWN);
        let trusts = self.trusts();
        let Ok(completion) = answer else {
            // Some of its submissions may run, and only a drain waits for them.
            self.untracked_work = true;
            for at in from.into_iter().chain([to]) {
                if let Some((_, known)) = self.known(at) {
                    known.untracked = true;
                }
            }
            if let Some((_, known)) = self.known(to) {
                known.content = None;
            }
            return;
        };
        if len == 0 {
            return;
        }
        let reads = from.and_then(|from| self.known(from)).map(|(id, known)| {
            known.reads[lane] += 1;
            id
        });
        let whole = self.len(to) == Some(len);
        let Some((id, known)) = self.known(to) else { return };
        let range = start as usize..(start + len) as usize;
        match (bytes.filter(|_| trusts), &mut known.content) {
            (Some(bytes), Some(content)) => content[range].copy_from_slice(&bytes),
            (Some(bytes), none) if whole => *none = Some(bytes),
            (_, content) => *content = None,
        }
        known.writes[lane] += 1;
        self.pending.push(Pending {
            completion,
            lane,
            reads,
            writes: id,
            ended: None,
        });
    }

    pub(crate) fn write(&mut self, slot: usize, c: u16) {
        let at = At::Buffer(slot);
        let Some(all) = self.len(at) else { return };
        if !self.finish_others(0, None, at) {
            return;
        }
        let start = u64::from(c) % all;
        let bytes = self.bytes(c, all - start);
        let Some(buffer) = self.buffers[slot].as_ref().map(|one| one.object.clone()) else {
            return;
        };
        let answer = self.device.write(&buffer, start, &bytes);
        self.judge("Device::write", &answer, NEEDS, OWN);
        let trusts = self.trusts();
        self.untracked_work |= answer.is_err();
        let Some((_, known)) = self.known(at) else { return };
        match answer {
            Ok(()) => match &mut known.content {
                Some(content) => content[start as usize..].copy_from_slice(&bytes),
                none if start == 0 && trusts => *none = Some(bytes),
                _ => {}
            },
            Err(_) => (known.content, known.untracked) = (None, true),
        }
    }

    pub(crate) fn read(&mut self, slot: usize) {
        let Some(buffer) = &self.buffers[slot] else { return };
        let known = &buffer.known;
        if known.unmapped || known.untracked || known.writes != [0; LANES] {
            return;
        }
        let mut seen = self.run.pool.filled(0, buffer.object.len() as usize);
        let answer = self.device.read(&buffer.object, 0, &mut seen);
        self.judge("Device::read", &answer, NEEDS, OWN);
        if answer.is_err() {
            // A part of the read may still run.
            self.untracked_work = true;
        } else if self.trusts() {
            self.compare(At::Buffer(slot), known.content.as_deref(), &seen);
        }
        let failed = answer.is_err();
        if let Some((_, known)) = self.known(At::Buffer(slot)) {
            known.untracked |= failed;
        }
    }

    pub(crate) fn check(&mut self, at: At) {
        match at {
            At::Buffer(slot) => self.read(slot),
            At::Host(slot) => {
                let Some(host) = &self.hosts[slot] else { return };
                if !host.known.is_idle() || !self.trusts() {
                    return;
                }
                let mut seen = self.run.pool.filled(0, host.object.len() as usize);
                if host.object.read(0, &mut seen).is_ok() {
                    self.compare(at, host.known.content.as_deref(), &seen);
                }
            }
        }
    }
}
