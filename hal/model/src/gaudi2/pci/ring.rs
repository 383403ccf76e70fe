//! A ring of command buffers in memory.

use gaudi_spec::QueueId;
use gaudi_spec::gaudi2::queue;

/// A stream's ring.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    /// Its queue manager's registers; 0 where it has none.
    pub(crate) qman: u32,
    pub(crate) stream: u32,
    // Entries taken, modulo twice their number, as the driver counts them.
    pub(crate) fetched: u32,
    // More were announced than were taken.
    pub(crate) waits: bool,
}

/// A ring for each queue.
pub(crate) fn all() -> Vec<Ring> {
    let ring = |id| {
        let row = queue::row(QueueId(id));
        Ring {
            qman: row.map_or(0, |row| row.qman),
            stream: row.map_or(0, |row| u32::from(row.stream)),
            ..Ring::default()
        }
    };
    (0..queue::COUNT).map(ring).collect()
}

impl Ring {
    pub(crate) fn reset(&mut self) {
        (self.fetched, self.waits) = (0, false);
    }

    /// Whether it has a register of a table.
    pub(crate) fn has(&self, table: u32, register: u32) -> bool {
        self.qman != 0 && self.register(table) == register
    }

    pub(crate) fn register(&self, table: u32) -> u32 {
        self.qman + table + self.stream * 4
    }
}
