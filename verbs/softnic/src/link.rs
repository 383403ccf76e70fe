//! [`Link`]: a cable as the NIC's state knows it.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use gaudi_seam::Error;
use gaudi_verbs::Gid;

use crate::cable::Cable;
use crate::qp::RecvEntry;
use crate::wire::{Header, Kind};

/// Limit of queued answers that belong to no queue pair.
const MAX_STRAYS: usize = 1024;

/// A cable, and what its two ends work on.
#[derive(Debug)]
pub(crate) struct Link {
    /// Owned by its threads, which close the descriptor of a dead cable when they end, or by the
    /// fabric.
    cable: Weak<Cable>,
    /// GID of the other end, once received.
    pub(crate) peer: Option<Gid>,
    /// Whether the other end has sent its GID.
    pub(crate) greeted: bool,
    /// Queue pairs that may have something to send, in turn.
    pub(crate) ready: VecDeque<u32>,
    /// Answers that belong to no queue pair.
    strays: VecDeque<Header>,
    /// Queue pair whose frame the sending thread moves.
    pub(crate) tx_qpn: Option<u32>,
    /// Queue pair whose frame the receiving thread moves.
    pub(crate) rx_qpn: Option<u32>,
    /// Receive of the datagram that is being received.
    pub(crate) datagram: Option<RecvEntry>,
    /// Why the cable is down.
    pub(crate) down: Option<Error>,
    pub(crate) tx_ended: bool,
}

impl Link {
    /// Returns a new link that first sends `hello`. Its list has room for `qps` queue pairs.
    pub(crate) fn new(cable: &Arc<Cable>, peer: Option<Gid>, hello: Header, qps: usize) -> Self {
        Self {
            cable: Arc::downgrade(cable),
            peer,
            greeted: false,
            ready: VecDeque::with_capacity(qps),
            strays: VecDeque::from([hello]),
            tx_qpn: None,
            rx_qpn: None,
            datagram: None,
            down: None,
            tx_ended: false,
        }
    }

    /// Returns whether the other end closed the cable. Frames sent before may still be unread.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.cable.upgrade().is_none_or(|cable| cable.is_hung_up())
    }

    /// Returns whether the cable leads to this port, and the other end has not closed it.
    pub(crate) fn holds(&self, gid: &Gid) -> bool {
        self.peer == Some(*gid) && self.down.is_none() && !self.is_hung_up()
    }

    /// Wakes both threads of the cable, for good.
    pub(crate) fn shut(&self) {
        if let Some(cable) = self.cable.upgrade() {
            cable.shut();
        }
    }

    /// Whether there may be a frame to send.
    pub(crate) fn has_work(&self) -> bool {
        !self.strays.is_empty() || !self.ready.is_empty()
    }

    pub(crate) fn next_stray(&mut self) -> Option<Header> {
        self.strays.pop_front()
    }

    /// Queues an answer that belongs to no queue pair. Returns false if the queue is full.
    pub(crate) fn push_stray(&mut self, answer: Header) -> bool {
        let has_room = self.strays.len() < MAX_STRAYS;
        if has_room {
            self.strays.push_back(answer);
        }
        has_room
    }

    /// Queues a refusal that belongs to no queue pair, unless one for the same queue pair is
    /// queued: one ends the connection, or requests everything again. Returns false if the queue
    /// is full.
    pub(crate) fn refuse_stray(&mut self, refusal: Header) -> bool {
        let same = |queued: &Header| {
            queued.kind == Kind::Nak && (queued.src_qpn, queued.dst_qpn) == (refusal.src_qpn, refusal.dst_qpn)
        };
        match self.strays.iter_mut().find(|queued| same(queued)) {
            Some(queued) => {
                // The peer still waits for the newest message.
                queued.msn = queued.msn.max(refusal.msn);
                true
            }
            None => self.push_stray(refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cable::memory::Memory;
    use crate::wire::NakCode;

    fn refusal(qpn: u32, msn: u64) -> Header {
        Header {
            nak: Some(NakCode::NoPeer),
            ..Header::new(Kind::Nak, qpn, 7, msn)
        }
    }

    #[test]
    fn stray_frames_are_bounded_per_qp() {
        let cable = Arc::new(Cable::Memory(Memory::looped()));
        let hello = Header::new(Kind::Hello, 0, 0, 0);
        let mut link = Link::new(&cable, None, hello, 0);
        for qpn in 1..MAX_STRAYS as u32 {
            assert!(link.refuse_stray(refusal(qpn, 1)), "{qpn} fits");
        }
        assert!(!link.push_stray(refusal(1, 1)), "the queue is full");
        assert!(!link.refuse_stray(refusal(0xff_ffff, 1)), "the queue is full");
        assert!(link.refuse_stray(refusal(1, 9)), "a queued refusal is updated");
        assert_eq!(link.next_stray(), Some(hello), "the GID goes first");
        assert_eq!(link.next_stray(), Some(refusal(1, 9)), "the newest message");
    }
}
