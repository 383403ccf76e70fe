//! Operations on memory: allocate, write, compare, close.

use gaudi_device::{Device, Location};
use gaudi_seam::Operation;
use gaudi_seam::{CloseError, Errno, Error, ErrorKind, Result};

use crate::watchers::Refusal;

use super::{At, BUFFERS, HOSTS, LANES, Memory, VIEW, World};

/// The maximum bytes of a shared-page buffer or a host mapping.
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
            untracked: false,
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
            self.check_no_overlap(buffer.address().0, buffer.len());
            self.buffers[slot] = Some(self.memory(buffer, None));
        }
    }

    /// Checks that a new buffer shares no byte with another.
    fn check_no_overlap(&self, at: u64, len: u64) {
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
            self.check_no_overlap(buffer.address().0, buffer.len());
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

    /// Returns the expected state of a memory.
    pub(super) fn known(&mut self, at: At) -> Option<Known<'_>> {
        match at {
            At::Buffer(slot) => self.buffers[slot].as_mut().map(Known::of),
            At::Host(slot) => self.hosts[slot].as_mut().map(Known::of),
        }
    }

    pub(super) fn all_memory(&self) -> Vec<At> {
        (0..BUFFERS)
            .map(At::Buffer)
            .chain((0..HOSTS).map(At::Host))
            .collect()
    }

    /// Compares the bytes of a memory with the expected ones, if they are known and no copy runs.
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
                // Pages outside the view are checked through their own exports.
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
                "{at:?} of {} bytes differs from byte {place} on: expected {:#04x}, saw {:#04x}",
                wanted.len(),
                wanted[place],
                seen[place]
            ));
        }
    }

    /// Checks all memory with known bytes, and the canaries in any case.
    pub(super) fn check_all(&mut self) {
        for at in self.all_memory() {
            self.check(at);
        }
        if let Some((view, _, base)) = &self.view {
            for (canary, bytes) in &self.canaries {
                let mut seen = vec![0; bytes.len()];
                let offset = canary.address().0 - base;
                if view.read(offset as usize, &mut seen).is_err() || seen != *bytes {
                    self.violated(format!("device memory of another user changed: {canary:?}"));
                }
            }
        }
        if let Some((host, bytes)) = &self.host_canary {
            let mut seen = vec![0; bytes.len()];
            if host.read(0, &mut seen).is_err() || seen != *bytes {
                self.violated(format!("host memory of another user changed: {host:?}"));
            }
        }
    }

    pub(super) fn close_buffer(&mut self, device: &Device, slot: usize) {
        let Some(memory) = self.buffers[slot].take() else {
            return;
        };
        let answer = memory.object.close();
        let own = self.in_use_errors();
        match answer {
            // While work runs, the close may also release other memory, and that may be refused.
            Ok(()) if own.is_empty() => {
                // A buffer that may be unmapped is freed first; the driver refuses that if it is
                // mapped.
                let needs = match memory.unmapped {
                    true => &[Operation::MemUnmap][..],
                    false => &[Operation::MemUnmap, Operation::MemFree],
                };
                self.judge("Buffer::close", &Ok(()), needs, &[]);
            }
            Ok(()) => {}
            Err(CloseError { object, error }) => {
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

    /// Checks that the stack rejects a fill of unmapped memory, which would cause a page fault.
    fn refused_where_unmapped(&self, device: &Device, unmapped: Location) {
        let calls = self.record.lock().all_calls;
        match device.fill(unmapped, 0) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {}
            other => self.violated(format!(
                "a fill of unmapped memory: expected InvalidInput, saw {other:?}"
            )),
        }
        if self.record.lock().all_calls != calls {
            self.violated("a fill of unmapped memory reached the driver".to_owned());
        }
    }

    /// Whether a close that failed with `error` unmapped the buffer, or may have: the driver
    /// refuses to free a mapped allocation with `EINVAL`.
    fn unmapped_and_not_freed(&self, error: &Error) -> bool {
        let is_cause = |refusal: &Refusal| (refusal.kind, refusal.errno) == (error.kind(), error.errno());
        match self.record.lock().refusals[..] {
            [.., unmap, free] if unmap.operation == Operation::MemUnmap => {
                free.operation == Operation::MemFree && free.errno != Some(Errno::EINVAL) && is_cause(&unmap)
            }
            [.., free] => free.operation == Operation::MemFree && is_cause(&free),
            [] => false,
        }
    }

    /// Whether a close that failed with `error` unmapped host memory, or may have.
    fn may_be_unmapped(&self, error: &Error) -> bool {
        self.record.lock().refusals.last().is_some_and(|refusal| {
            refusal.operation == Operation::MemUnmap
                && (refusal.kind, refusal.errno) == (error.kind(), error.errno())
        })
    }

    pub(super) fn close_host(&mut self, device: &Device, slot: usize) {
        let Some(memory) = self.hosts[slot].take() else {
            return;
        };
        let answer = memory.object.close();
        let own = self.in_use_errors();
        match answer {
            Ok(()) => self.judge("HostMapping::close", &Ok(()), &[], &[]),
            Err(CloseError { object, error }) => {
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

    /// Returns the errors that a close may report because of running work or an export.
    fn in_use_errors(&self) -> &'static [ErrorKind] {
        let busy = self.pending.iter().any(|pending| pending.ended != Some(Ok(())));
        let exported = !self.held.is_empty();
        match busy || self.untracked_work || exported || self.record.lock().work_may_run() {
            true => &[ErrorKind::InUse],
            false => &[],
        }
    }
}

/// References to the expected state of a memory.
pub(super) struct Known<'a> {
    pub(super) id: u64,
    pub(super) content: &'a mut Option<Vec<u8>>,
    pub(super) reads: &'a mut [u32; LANES],
    pub(super) writes: &'a mut [u32; LANES],
    pub(super) untracked: &'a mut bool,
}

impl<'a> Known<'a> {
    fn of<T>(memory: &'a mut Memory<T>) -> Self {
        Self {
            id: memory.id,
            content: &mut memory.content,
            reads: &mut memory.reads,
            writes: &mut memory.writes,
            untracked: &mut memory.untracked,
        }
    }
}
