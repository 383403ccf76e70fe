//! Allocating, mapping, closing and dropping memory in a sequence.

use gaudi_device::{HostBuffer, HostMapping};
use gaudi_seam::{CloseError, ErrorKind, Operation};

use crate::invariant::Invariant;
use crate::rig::{Known, Memory, Rig, length};

impl Rig<'_, '_> {
    pub(crate) fn alloc(&mut self, slot: usize, b: u16, c: u16) {
        if self.buffers[slot].is_some() {
            return;
        }
        let align = 1 << (b % 12);
        let answer = self.device.alloc_aligned(length(c), align);
        let needs = [Operation::MemAlloc, Operation::MemMapDevice];
        self.run
            .judge_memory("Device::alloc", &answer, &needs, self.full());
        let Ok(buffer) = answer else { return };
        let (at, len) = (buffer.address().0, buffer.len());
        if at % align != 0 {
            let what = format!("{buffer:?} is not aligned to {align}");
            self.violated(Invariant::ForeignBytes, what);
        }
        let mapped = self.buffers.iter().flatten().filter(|one| !one.known.unmapped);
        for other in mapped.map(|memory| &memory.object) {
            if at < other.address().0 + other.len() && other.address().0 < at + len {
                let what = format!("a new buffer at {at:#x} + {len} lies in {other:?}");
                self.violated(Invariant::ForeignBytes, what);
            }
        }
        self.buffers[slot] = Some(Memory {
            object: buffer,
            id: self.id(),
            known: Known::default(),
            cached: None,
        });
    }

    pub(crate) fn add_host(&mut self, slot: usize, object: HostMapping, cached: Option<HostBuffer>) {
        let content = Some(self.run.pool.filled(0, object.len() as usize));
        let known = Known {
            content,
            ..Known::default()
        };
        let id = self.id();
        self.hosts[slot] = Some(Memory {
            object,
            id,
            known,
            cached,
        });
    }

    pub(crate) fn alloc_host(&mut self, slot: usize, c: u16) {
        if self.hosts[slot].is_some() {
            return;
        }
        let answer = self.device.alloc_host(length(c) as usize);
        self.run
            .judge_memory("Device::alloc_host", &answer, &[Operation::MemMapHost], &[]);
        if let Ok(host) = answer {
            self.add_host(slot, host, None);
        }
    }

    pub(crate) fn map(&mut self, slot: usize, c: u16) {
        if self.hosts[slot].is_some() {
            return;
        }
        let Ok(memory) = HostBuffer::new(length(c) as usize) else {
            return;
        };
        let answer = self.device.map(&memory);
        self.run
            .judge_memory("Device::map", &answer, &[Operation::MemMapHost], &[]);
        if let Ok(host) = answer {
            self.add_host(slot, host, Some(memory));
        }
    }

    pub(crate) fn drop_cached(&mut self, slot: usize) {
        if let Some(host) = &mut self.hosts[slot] {
            host.cached = None;
        }
    }

    fn has_running_work(&self) -> bool {
        let busy = self.pending.iter().any(|pending| pending.ended != Some(Ok(())));
        busy || self.untracked_work || self.run.record.lock().work_may_run()
    }

    /// The errors that a close may report because of running work.
    pub(crate) fn in_use(&self) -> &'static [ErrorKind] {
        match self.has_running_work() {
            true => &[ErrorKind::InUse],
            false => &[],
        }
    }

    /// The errors that an allocation may report because the card is full. A dropped buffer with
    /// pages of its own keeps them while a copy uses them or an export of them is open.
    fn full(&self) -> &'static [ErrorKind] {
        match self.has_own_pages && (!self.exports.is_empty() || self.has_running_work()) {
            true => &[ErrorKind::OutOfDeviceMemory],
            false => &[],
        }
    }

    pub(crate) fn close_buffer(&mut self, slot: usize) {
        let Some(memory) = self.buffers[slot].take() else {
            return;
        };
        let mut own = self.in_use();
        if self.is_exported(memory.id) {
            own = &[ErrorKind::InUse];
        }
        match memory.object.close() {
            Ok(()) if own.is_empty() && !memory.known.unmapped => {
                self.judge("Buffer::close", &Ok(()), &[Operation::MemFree], &[]);
            }
            Ok(()) => {}
            Err(CloseError { object, error }) => {
                self.judge::<()>("Buffer::close", &Err(error), &[], own);
                let known = Known {
                    unmapped: true,
                    content: None,
                    ..memory.known
                };
                self.buffers[slot] = Some(Memory {
                    object,
                    known,
                    ..memory
                });
            }
        }
    }

    pub(crate) fn close_host(&mut self, slot: usize) {
        let Some(memory) = self.hosts[slot].take() else {
            return;
        };
        let mut own = self.in_use();
        if memory.cached.is_some() {
            // The cache holds the mapping as well.
            own = &[ErrorKind::InUse];
        }
        match memory.object.close() {
            Ok(()) => {}
            Err(CloseError { object, error }) => {
                self.judge::<()>("HostMapping::close", &Err(error), &[], own);
                let known = Known {
                    unmapped: true,
                    content: None,
                    ..memory.known
                };
                self.hosts[slot] = Some(Memory {
                    object,
                    known,
                    ..memory
                });
            }
        }
    }
}
