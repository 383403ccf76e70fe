//! Puts and gets of slices, through a registered scratch buffer.

use std::ops::Range;
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
        let (to, deadline) = (to.into(), deadline.into());
        self.in_parts(
            "put_bytes",
            bytes.len(),
            &to,
            |endpoint, scratch, local, remote, part| {
                scratch.write(0, &bytes[part])?;
                endpoint.count_copied(remote.len());
                let put = endpoint.put(local, remote)?;
                endpoint.wait_with_scratch(put, deadline)
            },
        )
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
        let (from, deadline) = (from.into(), deadline.into());
        self.in_parts(
            "get_bytes",
            into.len(),
            &from,
            |endpoint, scratch, local, remote, part| {
                let len = remote.len();
                let get = endpoint.get(local, remote)?;
                endpoint.wait_with_scratch(get, deadline)?;
                scratch.read(0, &mut into[part])?;
                endpoint.count_copied(len);
                Ok(())
            },
        )
    }

    /// Calls `each` with the scratch buffer and both ends of each part of a slice of `len` bytes.
    fn in_parts(
        &mut self,
        operation: &'static str,
        len: usize,
        remote: &RemoteRange,
        mut each: impl FnMut(&mut Self, &HostBuffer, Local, RemoteRange, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let scratch = self.scratch()?;
        same_length(operation, len as u64, remote)?;
        for start in (0..len).step_by(BYTES) {
            let part = start..len.min(start + BYTES);
            let (at, bytes) = (remote.range.start + start as u64, part.len() as u64);
            let local = Local::host(&scratch, 0..part.len())?;
            each(self, &scratch, local, remote.remote.at(at..at + bytes)?, part)?;
        }
        Ok(())
    }

    fn count_copied(&self, bytes: u64) {
        self.nic.counters().cpu_copied_bytes.add(bytes);
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
        while let Some(back) = self.requester.given_back() {
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
