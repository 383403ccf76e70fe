//! Sync streams: the two sync objects of a queue that its signals increment, and the driver's own
//! command buffers.

use std::collections::BTreeMap;

use gaudi_seam::engine::HostRange;
use gaudi_seam::{CsAnswer, CsSeq, DeviceVa, Engine, Errno, Error, ErrorKind, RawMapping, Result};
use gaudi_spec::Asic;
use gaudi_spec::asic::{Commands, SyncStreamRow};
use gaudi_uapi::cs::{CsStatus, HlCsChunk};

/// Sync objects of a queue (habanalabs.h `HL_RSVD_SOBS`).
const SOBS: u32 = 2;
/// One more than the highest value of a sync object (habanalabs.h `HL_MAX_SOB_VAL`).
const MAX_VALUE: u32 = 1 << 15;

/// The sequence number in an answer without a submission.
pub(crate) const NO_SEQ: CsSeq = CsSeq(u64::MAX);

/// The address of a sync object, which is 0 for this chip (gaudi2.c `gaudi2_get_sob_addr`), and a
/// count.
pub(crate) fn answer(seq: CsSeq, count: u16) -> CsAnswer {
    CsAnswer {
        seq,
        status: CsStatus::SUCCESS,
        sob_base_addr_offset: 0,
        sob_count_before_submission: count,
    }
}

/// One of a queue's two sync objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sob {
    /// The number of the queue's stream.
    pub(crate) stream: u32,
    /// 0 or 1.
    pub(crate) which: u8,
}

impl Sob {
    /// The number in the first sync manager.
    pub(crate) fn number(self, row: &SyncStreamRow) -> u32 {
        row.first_sob + self.stream * SOBS + u32::from(self.which)
    }
}

/// `struct hl_sync_stream_properties`
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    /// The value that the next signal gives the current object.
    pub(crate) next: u32,
    pub(crate) current: u8,
    /// Holders of each object; being current is one.
    pub(crate) holders: [u32; 2],
    need_reset: [bool; 2],
}

impl Stream {
    const NEW: Self = Self {
        next: 1,
        current: 0,
        holders: [1, 1],
        need_reset: [false, false],
    };

    /// Drops a holder. Returns whether it was the last: the object starts anew.
    pub(crate) fn put(&mut self, which: u8) -> bool {
        let which = usize::from(which % 2);
        self.holders[which] = self.holders[which].saturating_sub(1);
        let anew = self.holders[which] == 0;
        if anew {
            (self.holders[which], self.need_reset[which]) = (1, false);
        }
        anew
    }

    /// Takes `count` values, of the other object if the current one has too few left
    /// (command_submission.c `hl_cs_signal_sob_wraparound_handler`). `None` if the other is in use;
    /// otherwise whether it starts anew.
    pub(crate) fn take(&mut self, count: u32, reserved: bool) -> Option<bool> {
        let old = usize::from(self.current);
        if self.next.saturating_add(count) < MAX_VALUE {
            self.holders[old] += 1;
            self.next += count;
            return Some(false);
        }
        let other = self.current ^ 1;
        if self.holders[usize::from(other)] != 1 {
            return None;
        }
        self.next = if reserved { count + 1 } else { count };
        self.current = other;
        let anew = self.need_reset[usize::from(other)] && self.put(other);
        if reserved {
            self.need_reset[old] = true;
            self.holders[usize::from(other)] += 1;
        }
        Some(anew)
    }
}

/// Signals that were reserved (`struct hl_cs_encaps_sig_handle`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reservation {
    pub(crate) stream: u32,
    pub(crate) before: u32,
    pub(crate) count: u32,
}

/// The streams of all queues, and reservations.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Box<[Stream]>,
    pub(crate) reserved: BTreeMap<u32, Reservation>,
}

impl Signals {
    pub(crate) fn new(row: &SyncStreamRow) -> Self {
        Self {
            streams: (0..row.queues).map(|_| Stream::NEW).collect(),
            reserved: BTreeMap::new(),
        }
    }

    /// As [`new`](Self::new).
    pub(crate) fn restart(&mut self) {
        self.streams.fill(Stream::NEW);
        self.reserved.clear();
    }

    /// Whether signals are reserved; each reservation holds the context (command_submission.c
    /// `cs_ioctl_reserve_signals`).
    pub(crate) fn has_reserved(&self) -> bool {
        !self.reserved.is_empty()
    }

    /// The stream of a number that the chip's table gave.
    pub(crate) fn stream(&mut self, stream: u32) -> &mut Stream {
        &mut self.streams[stream as usize]
    }
}

/// The driver's own command buffers, one for each submission that can be in flight
/// (`internal_cb_pool`, gaudi2.c `gaudi2_internal_cb_pool_init`).
#[derive(Debug)]
pub(crate) struct DriverBuffers {
    memory: RawMapping,
    va: DeviceVa,
}

impl DriverBuffers {
    pub(crate) fn new(asic: &Asic, va: DeviceVa) -> Result<Self> {
        let len = Commands::MOST * asic.max_pending_cs as usize;
        let memory = RawMapping::anonymous(len, true).map_err(|_| Self::no_memory())?;
        Ok(Self { memory, va })
    }

    fn no_memory() -> Error {
        Error::new(ErrorKind::OutOfMemory, "open").because("no memory for the driver's command buffers")
    }

    /// Maps the memory for the device until [`release`](Self::release).
    #[expect(
        unsafe_code,
        reason = "the chip reads the driver's command buffers where they lie"
    )]
    pub(crate) fn map_to_device(&self, engine: &mut dyn Engine) -> Result<()> {
        let len = self.memory.len();
        let start = self.memory.at(0, len).map_err(|_| Self::no_memory())?;
        // SAFETY: the bytes are `memory`'s, to which nothing has a reference; `release` takes the
        // range off the chip before it goes.
        let range = unsafe { HostRange::new(start, len) };
        engine.map_host(self.va, range).map_err(|_| Self::no_memory())
    }

    pub(crate) fn release(&self, engine: &mut dyn Engine) {
        engine.unmap(self.va);
    }

    /// Writes the commands of the submission in `slot`. Returns the job that executes them.
    pub(crate) fn write(&self, slot: usize, commands: &Commands) -> std::result::Result<HlCsChunk, Errno> {
        let at = slot * Commands::MOST;
        let bytes = commands.as_bytes();
        self.memory.write(at, bytes)?;
        // `Commands::MOST` bytes at most.
        Ok(HlCsChunk::user(0, self.va.0 + at as u64, bytes.len() as u32))
    }
}

#[cfg(test)]
mod tests {
    use gaudi_seam::QueueId;

    use super::*;

    #[test]
    fn objects_lie_between_reserved_and_user_ones() {
        let asic = gaudi_spec::ASICS[0];
        let number = |queue, which| {
            let stream = (asic.sync_stream.stream)(QueueId(queue)).unwrap();
            Sob { stream, which }.number(&asic.sync_stream)
        };
        assert_eq!(number(0, 0), 85, "after those that are reserved for the chip");
        assert_eq!(
            number(259, 1) + 1,
            asic.sync.first_user_sob,
            "the last one before a user's"
        );
    }

    #[test]
    fn queue_changes_object_when_values_end() {
        let mut stream = Stream::NEW;
        for value in 1..MAX_VALUE - 1 {
            assert_eq!((stream.next, stream.current), (value, 0), "before signal {value}");
            assert_eq!(stream.take(1, false), Some(false));
        }
        assert_eq!(
            stream.take(1, false),
            Some(false),
            "the last value ends the object"
        );
        assert_eq!((stream.next, stream.current), (1, 1), "the other one is next");
        let holders = stream.holders[0];
        assert!(
            (1..holders).all(|_| !stream.put(0)),
            "as long as a signal holds it, it stays"
        );
        assert!(stream.put(0), "with its last signal it starts anew");
        // While the first is held again, it cannot be used.
        stream.holders[0] = 2;
        stream.next = MAX_VALUE - 1;
        assert_eq!(stream.take(1, false), None, "both are in use");
    }
}
