//! Written payload that is not visible yet: what a bus between a NIC and device memory may do to it.
//!
//! A write's acknowledgement says that the NIC has taken the bytes. On their way into an accelerator's memory they may still be in
//! flight, and arrive in another order. Only a read on the same queue pair pushes them out ([`SendPost::flush_remote`]).
//!
//! [`SendPost::flush_remote`]: gaudi_verbs::SendPost::flush_remote

#![expect(unsafe_code, reason = "claimed memory is written to")]

use gaudi_verbs::Access;

use crate::core::{Core, Shared};
use crate::fault::Rng;
use crate::region::{Claim, scatter};
use crate::wire::Header;

/// Bytes that are kept back at most: what a bus holds is bounded, and so is what a peer can make us keep.
const MOST: usize = 8 << 20;

/// One frame's payload.
#[derive(Debug)]
struct Write {
    qpn: u32,
    pd: u32,
    key: u32,
    addr: u64,
    bytes: Vec<u8>,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Pending {
    writes: Vec<Write>,
    /// Of all of them.
    bytes: usize,
    rng: Rng,
}

impl Pending {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            writes: Vec::new(),
            bytes: 0,
            rng: Rng::new(seed),
        }
    }

    fn take(&mut self, index: usize) -> Write {
        let write = self.writes.remove(index);
        self.bytes -= write.bytes.len();
        write
    }
}

impl Core {
    /// Keeps a write's payload back, and lets some of what was kept before go, in any order.
    pub(crate) fn hold_back(&mut self, header: &Header, bytes: Vec<u8>) {
        let pd = self.qps.get(&header.dst_qpn).map(|qp| qp.pd);
        let (Some(pending), Some(pd)) = (&mut self.pending, pd) else {
            return;
        };
        pending.bytes += bytes.len();
        pending.writes.push(Write {
            qpn: header.dst_qpn,
            pd,
            key: header.rkey,
            addr: header.raddr.wrapping_add(header.offset.into()),
            bytes,
        });
        // Not the newest: whoever looks right after a write's completion is to see nothing of it.
        let mut going = pending.rng.below(2) == 0;
        while let Some(pending) = &mut self.pending {
            let old = pending.writes.len() as u64 - 1;
            if old == 0 || !(going || pending.bytes > MOST) {
                break;
            }
            going = false;
            let index = pending.rng.below(old) as usize;
            let write = pending.take(index);
            self.let_go(&write);
        }
    }

    /// Makes everything visible that came through a queue pair, or all of it.
    pub(crate) fn flush_pending(&mut self, qpn: Option<u32>) {
        let Some(pending) = &mut self.pending else {
            return;
        };
        let mut going = Vec::new();
        let mut index = 0;
        while index < pending.writes.len() {
            if qpn.is_none_or(|qpn| pending.writes[index].qpn == qpn) {
                going.push(pending.take(index));
            } else {
                index += 1;
            }
        }
        for write in &going {
            self.let_go(write);
        }
    }

    fn let_go(&mut self, write: &Write) {
        let mut claim = Claim::new();
        let len = write.bytes.len() as u64;
        let right = Access::REMOTE_WRITE;
        let Write {
            qpn, pd, key, addr, ..
        } = *write;
        if self
            .regions
            .claim_peer(&mut claim, key, pd, qpn, addr, len, right)
        {
            if let Ok(guards) = claim.begin(gaudi_dmabuf::Directions::Write) {
                // SAFETY: the claim keeps the region registered, hence mapped and writable, until it is released below.
                unsafe { scatter(&claim.pieces, &write.bytes) };
                drop(guards);
            }
        }
        self.regions.release(&mut claim);
    }
}

impl Shared {
    /// Whether payload is to be kept back.
    pub(crate) fn holds_back(&self, core: &Core, header: &Header, claim: &Claim) -> bool {
        use crate::wire::Kind;
        core.pending.is_some()
            && matches!(header.kind, Kind::Write | Kind::WriteImm)
            && claim.is_device_memory()
    }
}
