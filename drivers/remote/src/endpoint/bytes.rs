//! Bytes of the program, by a scratch buffer that the NIC reaches.

use std::sync::Arc;

use gaudi_device::HostBuffer;
use gaudi_seam::{Error, ErrorKind, Result};

use super::{Endpoint, Transfer, Until, lock};
use crate::offer::RemoteRange;
use crate::region::{Held, Local};

/// Bytes that [`Endpoint::put_bytes`] and [`Endpoint::get_bytes`] move at a time.
const BYTES: usize = 256 << 10;

impl Endpoint {
    /// Puts bytes of the program and waits for it. The processor copies them once ([`Stats::cpu_copied_bytes`](crate::Stats)).
    ///
    /// After `TimedOut` the part that was under way goes on by itself, from memory that is no one else's meanwhile; its result is told
    /// to nobody.
    pub fn put_bytes(
        &mut self,
        bytes: &[u8],
        to: impl Into<RemoteRange>,
        until: impl Into<Until>,
    ) -> Result<()> {
        let (to, until, scratch) = (to.into(), until.into(), self.scratch()?);
        same_length("put_bytes", bytes.len(), &to)?;
        let mut at = to.range.start;
        for part in bytes.chunks(BYTES) {
            scratch.write(0, part)?;
            self.nic.counters().cpu_copied_bytes.add(part.len() as u64);
            let end = at + part.len() as u64;
            let put = self.put(Local::host(&scratch, 0..part.len())?, to.remote.at(at..end)?)?;
            self.wait_with_scratch(put, until)?;
            at = end;
        }
        Ok(())
    }

    /// Gets bytes for the program; the counterpart of [`put_bytes`](Self::put_bytes).
    pub fn get_bytes(
        &mut self,
        into: &mut [u8],
        from: impl Into<RemoteRange>,
        until: impl Into<Until>,
    ) -> Result<()> {
        let (from, until, scratch) = (from.into(), until.into(), self.scratch()?);
        same_length("get_bytes", into.len(), &from)?;
        let mut at = from.range.start;
        for part in into.chunks_mut(BYTES) {
            let end = at + part.len() as u64;
            let get = self.get(Local::host(&scratch, 0..part.len())?, from.remote.at(at..end)?)?;
            self.wait_with_scratch(get, until)?;
            scratch.read(0, part)?;
            self.nic.counters().cpu_copied_bytes.add(part.len() as u64);
            at = end;
        }
        Ok(())
    }

    /// Waits for a transfer of the scratch buffer. Where it goes on after that, the buffer is the transfer's until it is done: the next
    /// call must not write what the NIC still reads, nor read what it still writes.
    fn wait_with_scratch(&mut self, transfer: Transfer, until: Until) -> Result<()> {
        let waited = self.wait(transfer, until);
        if waited.is_err() {
            if let Some(scratch) = self.scratch.take() {
                self.scratch = self.asker.abandon(transfer.id, scratch);
            }
        }
        waited.map(drop)
    }

    /// A scratch buffer that no transfer uses.
    fn scratch(&mut self) -> Result<Arc<HostBuffer>> {
        self.check_process("scratch memory")?;
        let _ = self.asker.progress();
        while let Some(back) = self.asker.given_back() {
            if self.scratch.is_none() {
                self.scratch = Some(back);
            } else {
                lock(&self.regions).forget(&self.nic, &Held::Host(back))?;
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

fn same_length(what: &'static str, local: usize, remote: &RemoteRange) -> Result<()> {
    if local as u64 == remote.len() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, what)
        .because("both ends of a transfer have the same length")
        .saw(local, remote.len()))
}
