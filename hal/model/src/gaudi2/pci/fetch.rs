//! Fetches ring entries for queue managers, and reports their completion.

use gaudi_seam::engine::PushError;
use gaudi_spec::gaudi2::{qman, queue};
use gaudi_spec::{DeviceVa, QueueId};

use super::chip::{Note, PciChip};
use crate::gaudi2::event::Event;
use crate::gaudi2::stream::Cb;

/// log2 of the most entries in a ring: its index counts to twice that number in a register.
const LARGEST: u32 = 20;

impl PciChip {
    /// A register was written that may be a ring's doorbell.
    pub(super) fn ring_register(&mut self, register: u32) {
        let is_of = |table: u32| (table..table + 4 * queue::STREAMS).contains(&(register & 0xfff));
        if is_of(qman::PQ_PI) {
            if let Some(ring) = self.rings.iter_mut().find(|ring| ring.has(qman::PQ_PI, register)) {
                ring.waits = true;
            }
        } else if is_of(qman::PQ_CI) {
            // The driver sets a ring up from its start.
            if let Some(ring) = self.rings.iter_mut().find(|ring| ring.has(qman::PQ_CI, register)) {
                ring.reset();
            }
        }
    }

    /// Fetches what was announced, as far as the queues have room: whether there was anything.
    pub(super) fn fetch_all(&mut self) -> bool {
        let before = self.counters.fetched;
        for id in 0..queue::COUNT {
            if self.rings[id as usize].waits {
                self.fetch(QueueId(id));
            }
        }
        self.counters.fetched != before
    }

    fn fetch(&mut self, queue: QueueId) {
        let ring = &self.rings[queue.0 as usize];
        let [base, high, size, pi] = [qman::PQ_BASE_LO, qman::PQ_BASE_HI, qman::PQ_SIZE, qman::PQ_PI]
            .map(|table| ring.register(table));
        let (enabled, stream, mut fetched) = (ring.qman + qman::GLBL_CFG0, ring.stream, ring.fetched);
        let base = self.kept_address(base, high);
        let entries = 1u32 << self.kept(size).min(LARGEST);
        let end = self.kept(pi) & (entries * 2 - 1);
        let mut waits = self.kept(enabled) >> stream & 1 != 0;
        while waits && fetched != end {
            let at = base.wrapping_add(u64::from(fetched & (entries - 1)) * qman::PQ_ENTRY);
            let mut entry = [0; qman::PQ_ENTRY as usize];
            if !self.load(at, &mut entry) {
                waits = false;
                break;
            }
            let word = u128::from_le_bytes(entry);
            let cb = Cb {
                va: DeviceVa(word as u64),
                len: (word >> 64) as u32,
                tag: (word >> 96) as u64,
            };
            match self.chip.push_cb(queue, cb) {
                Ok(()) => {
                    fetched = (fetched + 1) & (entries * 2 - 1);
                    self.counters.fetched += 1;
                }
                // Tried again when something of it is done.
                Err(PushError::Full) => break,
                Err(_) => waits = false,
            }
        }
        let ring = &mut self.rings[queue.0 as usize];
        (ring.fetched, ring.waits) = (fetched, waits && fetched != end);
    }

    /// Takes the engines' events: whether there was one.
    pub(super) fn take_events(&mut self) -> bool {
        let mut any = false;
        let begin = self.chip.moved;
        while let Some(event) = self.chip.next_event() {
            any = true;
            match event {
                Event::CbDone { queue, tag } => self.entry_done(queue, tag as u32),
                Event::Interrupt { vector } => self.raise(vector),
                event => {
                    self.report_to_driver(&event);
                    self.note(Note::Engine(event));
                }
            }
            // The end of an entry may have started a transfer, and there may be as many ends as
            // queues have room.
            if self.chip.moved != begin {
                self.long = true;
                break;
            }
        }
        any
    }

    fn entry_done(&mut self, queue: QueueId, ctl: u32) {
        let ring = &self.rings[queue.0 as usize];
        let [ci, size, word, low, high] = [
            qman::PQ_CI,
            qman::PQ_SIZE,
            qman::PQC_LBW_WDATA,
            qman::PQC_LBW_BASE_LO,
            qman::PQC_LBW_BASE_HI,
        ]
        .map(|table| ring.register(table));
        let cfg = ring.qman + qman::PQC_CFG;
        let entries = 1u32 << self.kept(size).min(LARGEST);
        let done = self.kept(ci).wrapping_add(1) & (entries * 2 - 1);
        self.keep(ci, done);
        if self.kept(cfg) & 1 != 0 {
            let at = self.kept_address(low, high);
            let word = self.kept(word);
            self.send(at.wrapping_add(u64::from(ctl >> 16 & 0xfff) * 4), word);
        }
    }
}
