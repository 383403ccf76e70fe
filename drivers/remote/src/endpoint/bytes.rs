//! Puts and gets of slices, through a registered scratch buffer.

use std::sync::Arc;

use gaudi_device::{Deadline, HostBuffer};
use gaudi_seam::Result;

use super::{Endpoint, Transfer, same_length};
use crate::local::{Allocation, Local};
use crate::offer::RemoteRange;

/// Bytes that [`Endpoint::put_bytes`] and [`Endpoint::get_bytes`] move at a time.
const BYTES: usize = 256 << 10;

impl Endpoint {
    /// Puts a slice and waits until it is complete. The processor copies the bytes once
    /// ([`NicStats::cpu_copied_bytes`](crate::NicStats)).
    ///
    /// After `TimedOut` the part that is in flight continues, from memory that is not used for
    /// anything else meanwhile; its result is discarded.
    ///
    /// # Errors
    /// As [`put`](Self::put) and [`wait`](Self::wait).
    pub fn put_bytes(
        &mut self,
        bytes: &[u8],
        to: impl Into<RemoteRange>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let (to, deadline, scratch) = (to.into(), deadline.into(), self.scratch()?);
        same_length("put_bytes", bytes.len() as u64, &to)?;
        let mut at = to.range.start;
        for part in bytes.chunks(BYTES) {
            scratch.write(0, part)?;
            self.nic.counters().cpu_copied_bytes.add(part.len() as u64);
            let end = at + part.len() as u64;
            let put = self.put(Local::host(&scratch, 0..part.len())?, to.remote.at(at..end)?)?;
            self.wait_with_scratch(put, deadline)?;
            at = end;
        }
        Ok(())
    }

    /// Gets bytes into a slice; the counterpart of [`put_bytes`](Self::put_bytes).
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`wait`](Self::wait).
    pub fn get_bytes(
        &mut self,
        into: &mut [u8],
        from: impl Into<RemoteRange>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let (from, deadline, scratch) = (from.into(), deadline.into(), self.scratch()?);
        same_length("get_bytes", into.len() as u64, &from)?;
        let mut at = from.range.start;
        for part in into.chunks_mut(BYTES) {
            let end = at + part.len() as u64;
            let get = self.get(Local::host(&scratch, 0..part.len())?, from.remote.at(at..end)?)?;
            self.wait_with_scratch(get, deadline)?;
            scratch.read(0, part)?;
            self.nic.counters().cpu_copied_bytes.add(part.len() as u64);
            at = end;
        }
        Ok(())
    }

    /// Waits for a transfer of the scratch buffer. If the transfer continues after that, it owns
    /// the buffer until it is complete: the next call must not write what the NIC still reads, nor
    /// read what it still writes.
    fn wait_with_scratch(&mut self, transfer: Transfer, deadline: Deadline) -> Result<()> {
        let waited = self.wait(transfer, deadline);
        if waited.is_err() {
            if let Some(scratch) = self.scratch.take() {
                self.scratch = self.requester.abandon(transfer.id, scratch);
            }
        }
        waited.map(drop)
    }

    /// Returns a scratch buffer that no transfer uses.
    fn scratch(&mut self) -> Result<Arc<HostBuffer>> {
        self.check_process("scratch memory")?;
        // `put` and `get` report an error of the connection.
        let _ = self.requester.progress();
        while let Some(back) = self.requester.take_released() {
            if self.scratch.is_none() {
                self.scratch = Some(back);
            } else {
                self.regions.forget(&self.nic, &Allocation::Host(back))?;
            }
        }
        let scratch = match self.scratch.take() {
            Some(scratch) => scratch,
            None => Arc::new(HostBuffer::new(BYTES)?),
        };
        self.scratch = Some(Arc::clone(&scratch));
        Ok(scratch)
    }
}
