//! [`Counters`]: traffic over the cables.

use crate::wire::{HEADER, Header, Kind};

/// Messages and payload of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Whole messages, by their last frames. A retransmission counts again.
    pub messages: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

/// Traffic in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// `RDMA_WRITE`.
    pub write: Count,
    /// `RDMA_WRITE_WITH_IMM`.
    pub write_imm: Count,
    /// Answers to `RDMA_READ`.
    pub read: Count,
    /// `SEND`.
    pub send: Count,
    /// `SEND_WITH_IMM`.
    pub send_imm: Count,
    /// `SEND_WITH_INV`.
    pub send_inv: Count,
    /// Atomics. The bytes are their operands.
    pub atomic: Count,
    /// Datagrams, including those that the receiver drops.
    pub datagram: Count,
    /// Frames without payload: read requests, acknowledgements, refusals.
    pub control_frames: u64,
    /// All bytes, headers included.
    pub wire_bytes: u64,
}

impl Traffic {
    /// Returns the payload bytes of all operations except atomics.
    pub fn payload_bytes(&self) -> u64 {
        let sends = [self.send, self.send_imm, self.send_inv, self.datagram];
        let counts = [self.write, self.write_imm, self.read].into_iter().chain(sends);
        counts.fold(0, |sum, count| sum.saturating_add(count.bytes))
    }

    pub(crate) fn add(&mut self, header: &Header) {
        self.change(header, |count, by| *count += by);
    }

    /// Removes a frame that was counted and then not sent.
    pub(crate) fn remove(&mut self, header: &Header) {
        self.change(header, |count, by| *count -= by);
    }

    #[inline]
    fn change(&mut self, header: &Header, change: impl Fn(&mut u64, u64)) {
        change(&mut self.wire_bytes, HEADER as u64 + u64::from(header.payload));
        match self.count(header.kind) {
            Some(count) => {
                change(&mut count.bytes, header.payload.into());
                change(&mut count.messages, header.is_last().into());
            }
            None => change(&mut self.control_frames, 1),
        }
    }

    /// Returns the counter of an operation, or `None` for a control frame.
    fn count(&mut self, kind: Kind) -> Option<&mut Count> {
        Some(match kind {
            Kind::Write => &mut self.write,
            Kind::WriteImm => &mut self.write_imm,
            Kind::ReadResponse => &mut self.read,
            Kind::Send => &mut self.send,
            Kind::SendImm => &mut self.send_imm,
            Kind::SendInv => &mut self.send_inv,
            Kind::FetchAdd | Kind::CompareSwap => &mut self.atomic,
            Kind::Datagram => &mut self.datagram,
            Kind::ReadRequest | Kind::Ack | Kind::Nak | Kind::Nop | Kind::Hello => return None,
        })
    }
}

/// What a software NIC has moved since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Sent frames.
    pub tx: Traffic,
    /// Received frames, including those of refused messages.
    pub rx: Traffic,
    /// Messages sent again because an answer timed out, or the peer reported a gap.
    pub retransmissions: u64,
    /// Dropped frames: corrupt, duplicate, out of order, or outside the window of message numbers
    /// of their connection, as late frames of an earlier connection are.
    pub dropped: u64,
    /// Dropped datagrams: no queue pair, no receive, too little room, or another qkey.
    pub datagrams_dropped: u64,
    /// Frames into which a fault rule injected its fault.
    pub faults: u64,
}
