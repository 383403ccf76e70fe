//! Memory: made, filled, compared, given back.

use gaudi_device::{Device, Location};
use gaudi_seam::Operation;
use gaudi_seam::{Errno, Error, ErrorKind, Result};

use crate::book::Met;

use super::{At, BUFFERS, HOSTS, LANES, Memory, VIEW, World};

/// The most bytes of a piece or a mapping.
const LARGEST: u64 = 5000;

fn length(c: u16) -> u64 {
    match c % 3 {
        0 => 1 + u64::from(c / 3) % 200,
        _ => 1 + u64::from(c) % LARGEST,
    }
}

impl World {
    fn memory<T>(&mut self, object: T, content: Option<Vec<u8>>) -> Memory<T> {
        Memory {
            object,
            id: self.id(),
            content,
            reads: [0; LANES],
            writes: [0; LANES],
            loose: false,
            unmapped: false,
        }
    }

    pub(super) fn alloc(&mut self, device: &Device, slot: usize, c: u16, b: u16) {
        if self.buffers[slot].is_some() {
            return;
        }
        let align = 1 << (b % 12);
        let answer = device.alloc_aligned(length(c), align);
        self.judge(
            "Device::alloc",
            &answer,
            &[Operation::MemAlloc, Operation::MemMapDevice],
            &[],
        );
        if let Ok(buffer) = answer {
            if buffer.address().0 % align != 0 {
                self.violated(format!("{buffer:?} is not aligned to {align}"));
            }
            self.apart(buffer.address().0, buffer.len());
            self.buffers[slot] = Some(self.memory(buffer, None));
        }
    }

    /// No two buffers share a byte.
    fn apart(&self, at: u64, len: u64) {
        let mapped = self.buffers.iter().flatten().filter(|memory| !memory.unmapped);
        let others = mapped.map(|memory| &memory.object);
        for other in others.chain(self.canaries.iter().map(|(canary, _)| canary)) {
            if at < other.address().0 + other.len() && other.address().0 < at + len {
                self.violated(format!("a new buffer at {at:#x} + {len} lies in {other:?}"));
            }
        }
    }

    pub(super) fn alloc_exclusive(&mut self, device: &Device, slot: usize, c: u16) {
        if self.buffers[slot].is_some() {
            return;
        }
        let answer = device.alloc_exclusive(4096 * (1 + u64::from(c % 2)));
        self.judge(
            "Device::alloc_exclusive",
            &answer,
            &[Operation::MemAlloc, Operation::MemMapDevice],
            &[],
        );
        if let Ok(buffer) = answer {
            self.apart(buffer.address().0, buffer.len());
            self.buffers[slot] = Some(self.memory(buffer, None));
        }
    }

    pub(super) fn alloc_host(&mut self, device: &Device, slot: usize, c: u16) {
        if self.hosts[slot].is_some() {
            return;
        }
        let len = length(c) as usize;
        let answer = device.alloc_host(len);
        self.judge("Device::alloc_host", &answer, &[Operation::MemMapHost], &[]);
        if let Ok(host) = answer {
            self.hosts[slot] = Some(self.memory(host, Some(vec![0; len])));
        }
    }

    pub(super) fn host_write(&mut self, slot: usize, c: u16) {
        let Some(len) = self.hosts[slot]
            .as_ref()
            .filter(|host| host.is_idle())
            .map(|host| host.object.len())
        else {
            return;
        };
        let start = u64::from(c) % len;
        let bytes = self.bytes((len - start) as usize);
        let trusts = self.trusts();
        let Some(host) = self.hosts[slot].as_mut() else {
            return;
        };
        let answer = host.object.write(start, &bytes);
        match &mut host.content {
            Some(content) => content[start as usize..].copy_from_slice(&bytes),
            None if start == 0 && trusts => host.content = Some(bytes),
            None => {}
        }
        if let Err(error) = answer {
            self.violated(format!("writing to host memory failed: {error:?}"));
        }
    }

    pub(super) fn length_at(&self, at: At) -> Option<u64> {
        match at {
            At::Buffer(slot) => self.buffers[slot]
                .as_ref()
                .filter(|memory| !memory.unmapped)
                .map(|memory| memory.object.len()),
            At::Host(slot) => self.hosts[slot]
                .as_ref()
                .filter(|memory| !memory.unmapped)
                .map(|memory| memory.object.len()),
        }
    }

    pub(super) fn location(&self, at: At, start: u64, len: u64) -> Result<Location> {
        let nothing = || Error::new(ErrorKind::NotFound, "location");
        match at {
            At::Buffer(slot) => self.buffers[slot]
                .as_ref()
                .ok_or_else(nothing)?
                .object
                .at(start..start + len),
            At::Host(slot) => self.hosts[slot]
                .as_ref()
                .ok_or_else(nothing)?
                .object
                .at(start..start + len),
        }
    }

    /// What is known of a memory: number, bytes, and who reads and writes it.
    pub(super) fn known(&mut self, at: At) -> Option<Known<'_>> {
        match at {
            At::Buffer(slot) => self.buffers[slot].as_mut().map(Known::of),
            At::Host(slot) => self.hosts[slot].as_mut().map(Known::of),
        }
    }

    pub(super) fn every(&self) -> Vec<At> {
        (0..BUFFERS)
            .map(At::Buffer)
            .chain((0..HOSTS).map(At::Host))
            .collect()
    }

    /// Compares what a memory holds with what it must hold, if that is known and nothing is under way.
    pub(super) fn check(&mut self, at: At) {
        if !self.trusts() {
            return;
        }
        match at {
            At::Host(slot) => {
                let Some(host) = self.hosts[slot].as_ref().filter(|host| host.is_idle()) else {
                    return;
                };
                let Some(content) = &host.content else { return };
                let mut seen = vec![0; content.len()];
                let answer = host.object.read(0, &mut seen);
                self.compare(at, content, &seen, answer);
            }
            At::Buffer(slot) => {
                let Some(buffer) = self.buffers[slot].as_ref().filter(|buffer| buffer.is_idle()) else {
                    return;
                };
                let (Some(content), Some((view, _, base))) = (&buffer.content, &self.view) else {
                    return;
                };
                let offset = buffer.object.address().0.wrapping_sub(*base);
                // Pages of its own, and pages that came later, lie elsewhere; their exports show them.
                if offset.saturating_add(content.len() as u64) > VIEW {
                    return;
                }
                let mut seen = vec![0; content.len()];
                let answer = view
                    .read(offset as usize, &mut seen)
                    .map_err(|errno| Error::from_errno("view", errno));
                self.compare(at, content, &seen, answer);
            }
        }
    }

    fn compare(&self, at: At, wanted: &[u8], seen: &[u8], answer: Result<()>) {
        if let Err(error) = answer {
            self.violated(format!("{at:?} cannot be read: {error:?}"));
        } else if let Some(place) = wanted.iter().zip(seen).position(|(wanted, seen)| wanted != seen) {
            self.violated(format!(
                "{at:?} of {} bytes differs from byte {place} on: saw {:#04x}, wanted {:#04x}",
                wanted.len(),
                seen[place],
                wanted[place]
            ));
        }
    }

    /// Everything that is known, and the canaries whatever happened.
    pub(super) fn check_all(&mut self) {
        for at in self.every() {
            self.check(at);
        }
        if let Some((view, _, base)) = &self.view {
            for (canary, bytes) in &self.canaries {
                let mut seen = vec![0; bytes.len()];
                let offset = canary.address().0 - base;
                if view.read(offset as usize, &mut seen).is_err() || seen != *bytes {
                    self.violated(format!("others' device memory was changed: {canary:?}"));
                }
            }
        }
        if let Some((host, bytes)) = &self.host_canary {
            let mut seen = vec![0; bytes.len()];
            if host.read(0, &mut seen).is_err() || seen != *bytes {
                self.violated(format!("others' host memory was changed: {host:?}"));
            }
        }
    }

    pub(super) fn close_buffer(&mut self, device: &Device, slot: usize) {
        let Some(memory) = self.buffers[slot].take() else {
            return;
        };
        let answer = memory.object.close();
        let own = self.may_be_held();
        match answer {
            // With work under way, others' memory may be let go on the way, and refused.
            Ok(()) if own.is_empty() => {
                // What may be unmapped is freed first: the driver refuses that if it is mapped.
                let needs = match memory.unmapped {
                    true => &[Operation::MemUnmap][..],
                    false => &[Operation::MemUnmap, Operation::MemFree],
                };
                self.judge("Buffer::close", &Ok(()), needs, &[]);
            }
            Ok(()) => {}
            Err((object, error)) => {
                let not_freed = self.unmapped_and_not_freed(&error);
                self.judge::<()>("Buffer::close", &Err(error), &[], own);
                let mut memory = Memory { object, ..memory };
                if not_freed {
                    (memory.unmapped, memory.content) = (true, None);
                    self.refused_where_unmapped(device, (&memory.object).into());
                }
                self.buffers[slot] = Some(memory);
            }
        }
    }

    /// An engine that were sent to an address that is nobody's would fault: the stack does not send it.
    fn refused_where_unmapped(&self, device: &Device, unmapped: Location) {
        let calls = self.book.lock().all_calls;
        match device.fill(unmapped, 0) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {}
            other => self.violated(format!("a fill of what is unmapped: {other:?}")),
        }
        if self.book.lock().all_calls != calls {
            self.violated("the driver was asked to fill what is unmapped".to_owned());
        }
    }

    /// Whether a close that failed with `error` unmapped the buffer, or may have: the driver refuses
    /// with `EINVAL` to free what is mapped.
    fn unmapped_and_not_freed(&self, error: &Error) -> bool {
        let is_cause = |met: &Met| (met.kind, met.errno) == (error.kind(), error.errno());
        match self.book.lock().met[..] {
            [.., unmap, free] if unmap.operation == Operation::MemUnmap => {
                free.operation == Operation::MemFree && free.errno != Some(Errno::EINVAL) && is_cause(&unmap)
            }
            [.., free] => free.operation == Operation::MemFree && is_cause(&free),
            [] => false,
        }
    }

    /// Whether a close that failed with `error` unmapped host memory, or may have.
    fn may_be_unmapped(&self, error: &Error) -> bool {
        self.book.lock().met.last().is_some_and(|met| {
            met.operation == Operation::MemUnmap && (met.kind, met.errno) == (error.kind(), error.errno())
        })
    }

    pub(super) fn close_host(&mut self, device: &Device, slot: usize) {
        let Some(memory) = self.hosts[slot].take() else {
            return;
        };
        let answer = memory.object.close();
        let own = self.may_be_held();
        match answer {
            Ok(()) => self.judge("HostMapping::close", &Ok(()), &[], &[]),
            Err((object, error)) => {
                let unmapped = memory.unmapped || self.may_be_unmapped(&error);
                self.judge::<()>("HostMapping::close", &Err(error), &[], own);
                if unmapped {
                    self.refused_where_unmapped(device, (&object).into());
                }
                self.hosts[slot] = Some(Memory {
                    object,
                    unmapped,
                    ..memory
                });
            }
        }
    }

    /// A close may find somebody who holds on: work under way, or an export.
    fn may_be_held(&self) -> &'static [ErrorKind] {
        let busy = self.pending.iter().any(|pending| pending.ended != Some(Ok(())));
        let exported = !self.held.is_empty();
        match busy || self.loose_ends || exported || self.book.lock().work_may_run() {
            true => &[ErrorKind::InUse],
            false => &[],
        }
    }
}

/// What is known of a memory.
pub(super) struct Known<'a> {
    pub(super) id: u64,
    pub(super) content: &'a mut Option<Vec<u8>>,
    pub(super) reads: &'a mut [u32; LANES],
    pub(super) writes: &'a mut [u32; LANES],
    pub(super) loose: &'a mut bool,
}

impl<'a> Known<'a> {
    fn of<T>(memory: &'a mut Memory<T>) -> Self {
        Self {
            id: memory.id,
            content: &mut memory.content,
            reads: &mut memory.reads,
            writes: &mut memory.writes,
            loose: &mut memory.loose,
        }
    }
}
