//! Written payload that is not visible yet, as on a bus between a NIC and device memory.
//!
//! A write's acknowledgement means that the NIC has the bytes. They may reach an accelerator's
//! memory later and in another order. Only a read on the same queue pair pushes them out
//! ([`SendPost::flush_remote`]).
//!
//! [`SendPost::flush_remote`]: gaudi_verbs::SendPost::flush_remote

#![expect(unsafe_code, reason = "claimed memory is written to")]

use gaudi_dmabuf::Directions;
use gaudi_sys::random::SplitMix64;

use crate::region::{Claim, Reach, Regions, scatter};

/// Limit of held-back payload, in bytes: a peer must not make this NIC hold any amount.
const MAX_BYTES: usize = 8 << 20;

/// The payload of one frame.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) to: Reach,
    pub(crate) bytes: Vec<u8>,
}

impl Write {
    /// Copies the payload into its region. A region that was deregistered meanwhile drops it, as
    /// a bus drops writes to memory that is no longer mapped.
    fn apply(&self, regions: &mut Regions) {
        let mut claim = Claim::new();
        if regions.claim_peer(&mut claim, self.to) {
            match claim.begin(Directions::Write) {
                Ok(_guards) => {
                    // SAFETY: the claim keeps the region registered, hence mapped and writable,
                    // until it is released below.
                    unsafe { scatter(&claim.pieces, &self.bytes) };
                }
                Err(error) => {
                    tracing::error!(%error, "softnic (software): held-back payload is lost: CPU access to the dma-buf failed");
                }
            }
        }
        regions.release(&mut claim);
    }
}

/// Held-back writes of a NIC.
#[derive(Debug)]
pub(crate) struct Pending {
    writes: Vec<Write>,
    /// Payload bytes of all writes.
    bytes: usize,
    rng: SplitMix64,
}

impl Pending {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            writes: Vec::new(),
            bytes: 0,
            rng: SplitMix64::new(seed),
        }
    }

    fn take(&mut self, index: usize) -> Write {
        let write = self.writes.remove(index);
        self.bytes -= write.bytes.len();
        write
    }

    /// Holds back a write's payload, and makes some earlier payload visible, in any order.
    pub(crate) fn hold_back(&mut self, regions: &mut Regions, write: Write) {
        self.bytes += write.bytes.len();
        self.writes.push(write);
        // The newest write stays, so that a reader right after its completion sees nothing of it.
        let mut releases = self.rng.below(2) == 0;
        loop {
            let older = self.writes.len() as u64 - 1;
            if older == 0 || !(releases || self.bytes > MAX_BYTES) {
                break;
            }
            releases = false;
            let index = self.rng.below(older) as usize;
            self.take(index).apply(regions);
        }
    }

    /// Makes the payload of one queue pair visible, or all payload if `qpn` is `None`.
    pub(crate) fn flush(&mut self, regions: &mut Regions, qpn: Option<u32>) {
        let due = |write: &Write| qpn.is_none_or(|qpn| write.to.qpn == qpn);
        while let Some(index) = self.writes.iter().position(due) {
            self.take(index).apply(regions);
        }
    }
}
