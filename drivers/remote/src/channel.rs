//! [`Channel`]: a queue pair, and the memory of the messages on it.

use std::sync::Arc;

use gaudi_device::HostBuffer;
use gaudi_seam::{Error, Result};
use gaudi_verbs::{Access, Cq, Pd, Qp, QpInit, Sge, WcOpcode, WorkCompletion};

use crate::local::Allocation;
use crate::message::{BYTES, SLOTS};
use crate::nic::Nic;
use crate::registered::Registered;
use crate::stream::protocol;

/// The kind of a work request, in the second byte of its number; the slot is in the first. Above
/// them is a number that no other work request has.
pub(crate) const KIND: u64 = 0xff << 8;
pub(crate) const DATA: u64 = 1 << 8;
pub(crate) const MESSAGE: u64 = 2 << 8;
pub(crate) const RECEIVE: u64 = 3 << 8;

/// A queue pair and its messages. The queue pair is dropped first, then what it used.
pub(crate) struct Channel {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    /// `None` until it is opened.
    messages: Option<Messages>,
    /// Receives that were posted when it was opened.
    posted: usize,
    /// The number of the newest work request.
    newest: u64,
    /// The work request of each kind and slot that has not completed; 0 without one.
    pending: [[u64; SLOTS]; 3],
}

/// Registered memory: a message to send and one to receive for each slot, and a few bytes for
/// flushes.
struct Messages {
    registered: Registered,
    memory: Arc<HostBuffer>,
}

const OUT: usize = 0;
const IN: usize = SLOTS * BYTES;
const FLUSH: usize = 2 * SLOTS * BYTES;
const ALL: usize = FLUSH + 64;

/// Returns the slot of a work request of this crate.
pub(crate) fn slot_of(completion: &WorkCompletion) -> usize {
    (completion.wr_id & 0xff) as usize
}

impl Channel {
    pub(crate) fn new(pd: &Pd) -> Result<Self> {
        // For each slot two work requests and a receive, and two flushes.
        let (sends, receives) = (2 * SLOTS as u32 + 2, SLOTS as u32);
        let cq = pd.context().create_cq(sends + receives)?;
        let qp = pd.create_qp(&QpInit {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpInit::new(&cq)
        })?;
        Ok(Self {
            qp,
            cq,
            messages: None,
            posted: 0,
            newest: 0,
            pending: [[0; SLOTS]; 3],
        })
    }

    /// Registers the messages and posts every receive: the peer may send from now on. If it fails,
    /// it can be called again.
    pub(crate) fn open(&mut self, nic: &Nic, pd: &Pd) -> Result<()> {
        if self.messages.is_none() {
            let memory = Arc::new(HostBuffer::new(ALL)?);
            let allocation = Allocation::Host(Arc::clone(&memory));
            let registered = Registered::host(nic, pd, allocation, 0..ALL as u64, Access::LOCAL_WRITE)?;
            self.messages = Some(Messages { registered, memory });
        }
        while self.posted < SLOTS {
            self.receive(self.posted)?;
            self.posted += 1;
        }
        Ok(())
    }

    fn messages(&self) -> &Messages {
        match &self.messages {
            Some(messages) => messages,
            None => unreachable!("both ends open a channel before they use its messages"),
        }
    }

    fn sge(&self, at: usize, len: usize) -> Result<Sge> {
        self.messages().registered.mr().sge(at as u64, len as u32)
    }

    fn receive(&mut self, slot: usize) -> Result<()> {
        let place = self.sge(IN + slot * BYTES, BYTES)?;
        let wr = self.number(RECEIVE, slot);
        self.qp.post_recv(wr).post(&[place])
    }

    /// Returns the number of the next work request of a kind and a slot.
    pub(crate) fn number(&mut self, kind: u64, slot: usize) -> u64 {
        self.newest += 1;
        let number = self.newest << 16 | kind | slot as u64;
        if let Some(pending) = self.pending(number) {
            *pending = number;
        }
        number
    }

    fn pending(&mut self, number: u64) -> Option<&mut u64> {
        let kind = usize::try_from((number & KIND) >> 8).ok()?.checked_sub(1)?;
        let slot = usize::try_from(number & 0xff).ok()?;
        self.pending.get_mut(kind)?.get_mut(slot)
    }

    /// Whether a completion is the first one of its work request. The second one of a NIC that
    /// reports it twice would otherwise complete the slot's next work request.
    pub(crate) fn is_first(&mut self, completion: &WorkCompletion) -> bool {
        let number = completion.wr_id;
        let pending = self.pending(number).filter(|pending| **pending == number);
        let is_first = pending.map(|pending| *pending = 0).is_some();
        if !is_first {
            tracing::warn!(number, "the NIC reported a completion twice");
        }
        is_first
    }

    /// Sends the message of a slot.
    pub(crate) fn send(&mut self, slot: usize, bytes: &[u8; BYTES]) -> Result<()> {
        let at = OUT + slot * BYTES;
        self.messages().memory.write(at, bytes)?;
        let element = self.sge(at, BYTES)?;
        let wr = self.number(MESSAGE, slot);
        self.qp.post_send(wr).send(&[element]).post()
    }

    /// Returns a message that was received, and posts its receive again.
    pub(crate) fn take(&mut self, completion: &WorkCompletion) -> Result<[u8; BYTES]> {
        let slot = slot_of(completion);
        let mut bytes = [0; BYTES];
        self.messages().memory.read(IN + slot * BYTES, &mut bytes)?;
        self.receive(slot)?;
        if completion.opcode != WcOpcode::RECV || completion.byte_len as usize != BYTES {
            return Err(protocol("a message of the wrong size").saw(completion.byte_len, BYTES));
        }
        Ok(bytes)
    }

    /// Returns the destination of the read of a flush.
    pub(crate) fn flush(&self) -> Result<Sge> {
        self.sge(FLUSH, 1)
    }

    /// Ends the traffic, and deregisters the messages.
    pub(crate) fn stop(&mut self) {
        // If this fails, `close` destroys the queue pair all the same.
        let _ = self.qp.to_error();
        self.messages = None;
    }

    /// Destroys the queue pair, then releases what it used.
    pub(crate) fn close(self) -> Result<()> {
        let first = self.qp.close().map_err(Error::from);
        drop(self.messages);
        first.and(self.cq.close().map_err(Error::from))
    }
}
