//! [`ChunkFault`]: the fault of a chunk that a DMA engine moves.

use std::cell::RefCell;

use gaudi_seam::fault::{ChipEvent, EventFields, Verdict};
use gaudi_spec::DeviceVa;

use crate::gaudi2::bus::{Bus, Fault, step};
use crate::gaudi2::event::{Access, FaultCause};
use crate::gaudi2::faults::{ChipFaults, Struck};

/// The fault of a chunk that a DMA engine moves.
#[derive(Debug)]
pub(crate) struct ChunkFault {
    struck: Struck,
    to: DeviceVa,
    /// The bytes before the move.
    before: Vec<u8>,
}

impl Bus {
    /// Counts a chunk that a DMA engine is about to write. Returns its fault; a page fault and
    /// a refusal are errors.
    #[inline]
    pub(crate) fn chunk(&self, to: DeviceVa, len: u64) -> Result<Option<ChunkFault>, Fault> {
        match &self.faults {
            None => Ok(None),
            Some(faults) => self.chunk_fault(faults, to, len),
        }
    }

    #[cold]
    fn chunk_fault(
        &self,
        faults: &RefCell<ChipFaults>,
        to: DeviceVa,
        len: u64,
    ) -> Result<Option<ChunkFault>, Fault> {
        let fields = EventFields {
            queue: faults.borrow().queue.into(),
            address: to.get(),
            size: len,
            ..EventFields::default()
        };
        let Some(struck) = faults.borrow_mut().meet(ChipEvent::Dma, fields) else {
            return Ok(None);
        };
        let cause = match struck.verdict() {
            Verdict::PageFault => Some(FaultCause::NotMapped),
            Verdict::Razwi => Some(FaultCause::Refused),
            _ => None,
        };
        if let Some(cause) = cause {
            struck.happened();
            return Err(Fault {
                address: to,
                access: Access::Write,
                cause,
            });
        }
        let mut before = vec![0; usize::try_from(len).unwrap_or_default()];
        faults.borrow_mut().in_hook = true;
        // The move fails at bytes that cannot be read, and reports the fault.
        let (count, _) = self.read(to, &mut before, Access::Write);
        faults.borrow_mut().in_hook = false;
        before.truncate(count);
        Ok(Some(ChunkFault { struck, to, before }))
    }

    /// Corrupts the bytes of a moved chunk as its rule specifies.
    pub(crate) fn corrupt(&self, chunk: Option<ChunkFault>) -> Result<(), Fault> {
        let (Some(chunk), Some(faults)) = (chunk, &self.faults) else {
            return Ok(());
        };
        faults.borrow_mut().in_hook = true;
        let corrupted = self.corrupt_bytes(chunk);
        faults.borrow_mut().in_hook = false;
        corrupted
    }

    fn corrupt_bytes(&self, ChunkFault { struck, to, before }: ChunkFault) -> Result<(), Fault> {
        let first = match struck.verdict() {
            Verdict::Flip(bit) => bit / 8,
            Verdict::Torn(bytes) => bytes,
            _ => 0,
        };
        let at = usize::try_from(first).unwrap_or(usize::MAX);
        // The chunk ends before the first corrupted byte, so the rule does not fire.
        let Some(rest) = before.get(at..).filter(|rest| !rest.is_empty()) else {
            return Ok(());
        };
        let from = step(to, first, Access::Write)?;
        match struck.verdict() {
            Verdict::Flip(bit) => {
                let mut byte = [0];
                if let Some(fault) = self.read(from, &mut byte, Access::Write).1 {
                    return Err(fault);
                }
                self.write(from, &[byte[0] ^ 1 << (bit % 8)])?;
            }
            _ => self.write(from, rest)?,
        }
        struck.happened();
        Ok(())
    }
}
