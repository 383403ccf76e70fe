//! Exports of device memory in a sequence, in a world with real descriptors.

use gaudi_device::DmaBuf;
use gaudi_seam::{ErrorKind, Operation};

use crate::invariant::Invariant;
use crate::rig::{At, Known, Memory, Rig, length};

/// Exports that a sequence holds at most.
const EXPORTS: usize = 3;

/// An export of a whole buffer.
pub(crate) struct Export {
    dmabuf: DmaBuf,
    /// The number of the buffer.
    of: u64,
}

impl Rig<'_, '_> {
    pub(crate) fn alloc_exclusive(&mut self, slot: usize, c: u16) {
        if self.buffers[slot].is_some() {
            return;
        }
        let answer = self.device.alloc_exclusive(length(c));
        let needs = [Operation::MemAlloc, Operation::MemMapDevice];
        // The card has few of such pages.
        self.run.judge_memory(
            "Device::alloc_exclusive",
            &answer,
            &needs,
            &[ErrorKind::OutOfDeviceMemory],
        );
        if let Ok(object) = answer {
            self.has_own_pages = true;
            self.buffers[slot] = Some(Memory {
                object,
                id: self.id(),
                known: Known::default(),
                cached: None,
            });
        }
    }

    pub(crate) fn export(&mut self, slot: usize) {
        let Some(buffer) = &self.buffers[slot] else { return };
        if self.exports.len() == EXPORTS || buffer.known.unmapped {
            return;
        }
        let (of, answer) = (buffer.id, buffer.object.export(..));
        // Buffers that share their pages cannot be exported.
        let own = [ErrorKind::InvalidInput];
        self.run
            .judge_memory("Buffer::export", &answer, &[Operation::ExportDmabuf], &own);
        if let Ok(dmabuf) = answer {
            self.exports.push(Export { dmabuf, of });
        }
    }

    /// Compares the bytes of an export with those of its buffer.
    pub(crate) fn read_export(&mut self, a: u16) {
        let Some(index) = usize::from(a).checked_rem(self.exports.len()) else {
            return;
        };
        let export = &self.exports[index];
        let is_same = |one: &&Option<Memory<_>>| one.as_ref().is_some_and(|one| one.id == export.of);
        let slot = self.buffers.iter().position(|one| is_same(&one));
        let Some((slot, Some(buffer))) = slot.map(|slot| (slot, &self.buffers[slot])) else {
            return;
        };
        let Some(wanted) = buffer.known.content.as_ref().filter(|_| self.trusts()) else {
            return;
        };
        if !buffer.known.is_idle() {
            return;
        }
        let mut seen = self.run.pool.filled(0, wanted.len());
        let read = export
            .dmabuf
            .whole()
            .and_then(|window| window.attach_cpu("faults"))
            .and_then(|attached| {
                let read = attached.read(0, &mut seen);
                read.map_err(|errno| gaudi_seam::Error::from_errno("read", errno))
            });
        match read {
            Ok(()) => self.compare(At::Buffer(slot), Some(wanted), &seen),
            Err(error) => self.violated(
                Invariant::TruthfulErrors,
                format!("reading an export failed: {error}"),
            ),
        }
    }

    pub(crate) fn drop_export(&mut self, a: u16) {
        if let Some(index) = usize::from(a).checked_rem(self.exports.len()) {
            self.exports.swap_remove(index);
        }
    }

    /// Whether an export of a buffer is open.
    pub(crate) fn is_exported(&self, id: u64) -> bool {
        self.exports.iter().any(|export| export.of == id)
    }
}
