//! What went over the cable.

use crate::wire::{HEADER, Header, Kind};

/// Messages and payload of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Whole messages (their last frames). Messages that had to be sent again count again.
    pub messages: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

/// One direction.
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
    /// Atomics; their operands are the bytes.
    pub atomic: Count,
    /// Datagrams, those that are dropped at the receiver too.
    pub datagram: Count,
    /// Frames that carry no payload of an operation: read requests, acknowledgements, refusals.
    pub control_frames: u64,
    /// Everything, headers too.
    pub wire_bytes: u64,
}

impl Traffic {
    /// Bytes of payload of all operations.
    pub fn payload_bytes(&self) -> u64 {
        [
            self.write,
            self.write_imm,
            self.read,
            self.send,
            self.send_imm,
            self.send_inv,
            self.datagram,
        ]
        .iter()
        .fold(0, |sum, count| sum.saturating_add(count.bytes))
    }

    pub(crate) fn add(&mut self, header: &Header) {
        self.wire_bytes += HEADER as u64 + u64::from(header.payload);
        match self.count(header.kind) {
            Some(count) => {
                count.bytes += u64::from(header.payload);
                count.messages += u64::from(header.is_last());
            }
            None => self.control_frames += 1,
        }
    }

    /// A frame that was counted did not leave.
    pub(crate) fn take_back(&mut self, header: &Header) {
        self.wire_bytes -= HEADER as u64 + u64::from(header.payload);
        match self.count(header.kind) {
            Some(count) => {
                count.bytes -= u64::from(header.payload);
                count.messages -= u64::from(header.is_last());
            }
            None => self.control_frames -= 1,
        }
    }

    /// The counter of an operation; `None` for frames without a payload of one.
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

/// What one software NIC has moved since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Out of this NIC.
    pub tx: Traffic,
    /// Into this NIC; refused messages count too, since they came over the cable.
    pub rx: Traffic,
    /// Messages that were sent again because no answer came in time, or because the peer missed something.
    pub retransmissions: u64,
    /// Frames that were dropped: damaged, repeated, out of order, or outside the window of message
    /// numbers of their connection, as late frames of an earlier one are.
    pub dropped: u64,
    /// Datagrams that found no queue pair, no receive, no room, or another qkey.
    pub datagrams_dropped: u64,
    /// Frames that a fault rule lost, damaged, doubled or held back on their way out.
    pub faults: u64,
}
