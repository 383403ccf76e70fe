//! A command processor: its buffers, the condition that it waits for, and its state.

use std::collections::VecDeque;

use gaudi_seam::engine::PushError;
use gaudi_spec::gaudi2::packet::MAX_FIXED;
use gaudi_spec::gaudi2::{CFG_BASE, QUEUE_DEPTH, qman, queue, sync};
use gaudi_spec::{DeviceVa, QueueId};

use crate::gaudi2::bus::{Bus, Fault, step};
use crate::gaudi2::event::Access;

/// Bytes of a command buffer fetched at once. Later bytes can still be changed.
const FETCH: usize = 256;
const QUEUES: u32 = queue::COUNT;
const QMANS: u32 = QUEUES.div_ceil(queue::STREAMS);
/// Command processors of the chip: one for each queue, and a lower one for each queue manager.
pub(crate) const PROCESSORS: u32 = QUEUES + QMANS;
/// Buffers in a lower processor's queue; a stream that passes down a further one waits. `source:
/// inferred` from the three bits of `CQ_IFIFO_STS_CNT`.
const HANDED_DOWN: usize = 7;
/// Buffers that a processor can push to itself before it starts one. `source: inferred` from the
/// two bits of `CP_CPDMA_UP_CRED_VAL`.
const PUSHED: usize = 3;

/// MSG_SHORT bases as the driver sets them when it initialises a queue manager
/// (gaudi2.c:gaudi2_init_qman_cp).
const BASES: [u64; qman::MSG_BASES as usize] = {
    let objs = CFG_BASE.0 + sync::OBJS as u64;
    [objs + sync::MON_PAY_ADDRL as u64, objs, 0, 0]
};

/// A command buffer: packets at a device address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cb {
    /// Its device address.
    pub va: DeviceVa,
    /// Bytes in it.
    pub len: u32,
    /// The tag in its completion event.
    pub tag: u64,
}

/// A command processor's number: a queue's own, or after those the lower one of a queue manager.
/// It is below [`PROCESSORS`]: queue numbers are checked where a caller gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cp(pub(crate) u32);

impl Cp {
    /// The processor of a queue.
    pub(crate) const fn of(queue: QueueId) -> Self {
        Self(queue.0)
    }

    /// The processor below the four of this one's queue manager.
    pub(crate) const fn lower(self) -> Self {
        Self(QUEUES + self.qman() as u32)
    }

    /// Its place among the processors.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether it is a lower one.
    pub(crate) const fn is_lower(self) -> bool {
        self.0 >= QUEUES
    }

    /// The number of its queue manager.
    pub(crate) const fn qman(self) -> usize {
        (if self.0 < QUEUES {
            self.0 / queue::STREAMS
        } else {
            self.0 - QUEUES
        }) as usize
    }

    /// The first queue of its queue manager.
    pub(crate) const fn first_queue(self) -> QueueId {
        QueueId(self.qman() as u32 * queue::STREAMS)
    }

    /// The stream in its queue manager; `None` of a lower one.
    pub(crate) const fn stream(self) -> Option<usize> {
        if self.is_lower() {
            None
        } else {
            Some((self.0 % queue::STREAMS) as usize)
        }
    }

    /// A processor of a queue manager by its first queue, as registers count them: four streams,
    /// then the lower one.
    pub(crate) const fn in_qman(first: QueueId, word: u32) -> Self {
        if word < queue::STREAMS {
            Self(first.0 + word)
        } else {
            Self(first.0).lower()
        }
    }
}

const WORDS: usize = PROCESSORS.div_ceil(64) as usize;

/// Some of the processors, a bit each.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Processors {
    words: [u64; WORDS],
    // Words that are not 0, a bit each: the first processor after another is found without a walk.
    some: u64,
}

impl Processors {
    pub(crate) fn set(&mut self, cp: Cp, among: bool) {
        let (at, bit) = (cp.index() / 64, 1 << (cp.0 % 64));
        let word = &mut self.words[at];
        *word = if among { *word | bit } else { *word & !bit };
        let some = 1 << at;
        self.some = if *word != 0 {
            self.some | some
        } else {
            self.some & !some
        };
    }

    pub(crate) fn get(&self, cp: Cp) -> bool {
        self.words[cp.index() / 64] >> (cp.0 % 64) & 1 != 0
    }

    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The first of them from `from` on, round the end.
    pub(crate) fn at_or_after(&self, from: u32) -> Option<Cp> {
        const { assert!(WORDS < 64, "a bit for each word") };
        if self.some == 0 {
            return None;
        }
        let first = |at: u32, word: u64| (word != 0).then(|| Cp(at * 64 + word.trailing_zeros()));
        let of_words = |some: u64| {
            let at = some.trailing_zeros();
            first(at, *self.words.get(at as usize)?)
        };
        let at = (from / 64).min(WORDS as u32);
        let here = self
            .words
            .get(at as usize)
            .map_or(0, |word| word & u64::MAX << (from % 64));
        first(at, here)
            .or_else(|| of_words(self.some & u64::MAX << (at + 1)))
            .or_else(|| of_words(self.some))
    }

    /// All of them, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = Cp> + use<> {
        let words = self.words;
        (0_u32..).zip(words).flat_map(|(at, mut word)| {
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some(Cp(at * 64 + bit))
            })
        })
    }

    /// The `nth` of them.
    pub(crate) fn nth(&self, mut nth: u32) -> Option<Cp> {
        for (&word, at) in self.words.iter().zip(0u32..) {
            if nth >= word.count_ones() {
                nth -= word.count_ones();
                continue;
            }
            let mut word = word;
            for _ in 0..nth {
                word &= word - 1;
            }
            return Some(Cp(at * 64 + word.trailing_zeros()));
        }
        None
    }
}

#[derive(Debug)]
struct Piece {
    // Where in the buffer in work the bytes lie.
    offset: u64,
    len: usize,
    bytes: [u8; FETCH],
}

/// The condition that a processor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Nothing: it can execute a packet, or has nothing to do.
    No,
    /// A fence counter that is below a value.
    Fence {
        /// The fence, 0..4.
        id: u8,
        /// The value.
        target: u8,
    },
    /// What it handed down to be done: an engine barrier.
    Below,
    /// Room in the lower processor.
    Room,
    /// The arbiter.
    Arbiter,
    /// A reset.
    Halted,
}

/// A command buffer, and the queue that it came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) cb: Cb,
    pub(crate) queue: QueueId,
}

/// A command buffer that was executed and whose completion is not reported yet.
#[derive(Clone, Copy, Debug)]
struct Retiring {
    tag: u64,
    // Buffers that it handed down and that are not done.
    below: u32,
}

#[derive(Debug)]
pub(crate) struct Processor {
    enabled: bool,
    queue: VecDeque<Entry>,
    // What CP_DMA packets pushed to this very processor; runs after the buffer in work and before
    // the next of the queue.
    pushed: VecDeque<Cb>,
    // The pushed buffer in work; without one it is the queue's head.
    current: Option<Cb>,
    // Command buffers queued, or done and not yet taken as an event.
    outstanding: u32,
    // The next packet of the buffer in work.
    offset: u64,
    /// Bytes of that packet's transfer that are done.
    pub(crate) moved: u64,
    held: Held,
    piece: Piece,
    // Of the queue's head; `retiring` has those of the buffers before it.
    below: u32,
    retiring: VecDeque<Retiring>,
    pub(crate) fences: [u16; qman::FENCES as usize],
    pub(crate) bases: [u64; qman::MSG_BASES as usize],
    /// A bit each; predicate 0 holds whatever its bit.
    pub(crate) predicates: u32,
    /// The predicates that LOAD_AND_EXE may change.
    pub(crate) loadable: u32,
    /// Four words.
    pub(crate) scalars: [u8; 16],
}

impl Processor {
    pub(crate) fn new(cp: Cp) -> Self {
        let row = queue::row(QueueId(cp.0)).filter(|_| !cp.is_lower());
        Self {
            enabled: row.is_some_and(|row| row.user),
            queue: VecDeque::new(),
            pushed: VecDeque::new(),
            current: None,
            outstanding: 0,
            offset: 0,
            moved: 0,
            held: Held::No,
            piece: Piece {
                offset: 0,
                len: 0,
                bytes: [0; FETCH],
            },
            below: 0,
            retiring: VecDeque::new(),
            fences: [0; qman::FENCES as usize],
            bases: BASES,
            predicates: 1,
            loadable: qman::PRED_UPEN_RESET,
            scalars: [0; 16],
        }
    }

    /// Restores the state after power-on. Keeps the capacity of the lists.
    pub(crate) fn reset(&mut self) {
        // Every field, so that a new one is not forgotten.
        let Self {
            enabled: _,
            queue,
            pushed,
            current,
            outstanding,
            offset,
            moved,
            held,
            piece,
            below,
            retiring,
            fences,
            bases,
            predicates,
            loadable,
            scalars,
        } = self;
        queue.clear();
        pushed.clear();
        retiring.clear();
        (*current, *outstanding, *offset, *moved) = (None, 0, 0, 0);
        (*held, *below) = (Held::No, 0);
        // Bytes beyond the length are not read.
        (piece.offset, piece.len) = (0, 0);
        (*fences, *bases) = ([0; qman::FENCES as usize], BASES);
        (*predicates, *loadable) = (1, qman::PRED_UPEN_RESET);
        *scalars = [0; 16];
    }

    /// Queues a user's command buffer.
    pub(crate) fn push(&mut self, entry: Entry) -> Result<(), PushError> {
        if !self.enabled {
            return Err(PushError::Disabled);
        }
        if self.outstanding >= QUEUE_DEPTH {
            return Err(PushError::Full);
        }
        self.outstanding += 1;
        self.queue.push_back(entry);
        Ok(())
    }

    /// Removes the command buffer that was queued last.
    pub(crate) fn take_back(&mut self) {
        if self.queue.pop_back().is_some() {
            self.outstanding -= 1;
        }
    }

    /// Whether another buffer can be handed down to it.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < HANDED_DOWN
    }

    /// Takes what another processor hands down.
    pub(crate) fn take(&mut self, entry: Entry) {
        self.queue.push_back(entry);
    }

    /// Notes that the buffer in work handed one down.
    pub(crate) fn hands_down(&mut self) {
        self.below += 1;
    }

    /// Notes that the oldest buffer handed down is done.
    pub(crate) fn done_below(&mut self) {
        match self.retiring.iter_mut().find(|entry| entry.below > 0) {
            Some(entry) => entry.below -= 1,
            None => {
                debug_assert!(self.below > 0, "a buffer below ended that was not handed down");
                self.below = self.below.saturating_sub(1);
            }
        }
    }

    /// Pushes a buffer to this processor itself; `false` where it has pushed too many.
    pub(crate) fn push_own(&mut self, cb: Cb) -> bool {
        let room = self.pushed.len() < PUSHED;
        if room {
            self.pushed.push_back(cb);
        }
        room
    }

    /// Whether something that it handed down is not done.
    pub(crate) fn waits_below(&self) -> bool {
        self.below > 0 || self.retiring.iter().any(|entry| entry.below > 0)
    }

    pub(crate) fn give_credit(&mut self) {
        // A reset forgets what is outstanding and discards its events.
        debug_assert!(
            self.outstanding > 0,
            "more command buffers ended than were pushed"
        );
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.retiring.is_empty()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.held == Held::No && !self.queue.is_empty()
    }

    pub(crate) fn held(&self) -> Held {
        self.held
    }

    pub(crate) fn hold(&mut self, held: Held) {
        self.held = held;
    }

    /// What the driver clears between two contexts.
    pub(crate) fn clear_fences(&mut self) {
        self.fences = [0; qman::FENCES as usize];
    }

    /// The queue whose work it does, and the tag of that.
    pub(crate) fn head(&self) -> Option<Entry> {
        self.queue.front().copied()
    }

    /// The buffer in work.
    pub(crate) fn current(&self) -> Option<Cb> {
        self.current.or_else(|| self.queue.front().map(|entry| entry.cb))
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The first `want` bytes of the next packet of `cb`, fetching where they are not there yet;
    /// and as many more as are there and fit. How many.
    pub(crate) fn peek(
        &mut self,
        bus: &Bus,
        cb: &Cb,
        want: usize,
        into: &mut [u8; MAX_FIXED],
    ) -> Result<usize, Fault> {
        let piece = &mut self.piece;
        let mut start = self
            .offset
            .checked_sub(piece.offset)
            .and_then(|start| usize::try_from(start).ok());
        if start
            .and_then(|start| start.checked_add(want))
            .is_none_or(|end| end > piece.len)
        {
            // At most `FETCH`, the length of `piece.bytes`.
            let left = u64::from(cb.len).saturating_sub(self.offset).min(FETCH as u64) as usize;
            let va = step(cb.va, self.offset, Access::Fetch)?;
            let (len, fault) = bus.read(va, piece.bytes.get_mut(..left).unwrap_or_default(), Access::Fetch);
            (piece.offset, piece.len, start) = (self.offset, len, Some(0));
            if let Some(fault) = fault.filter(|_| len < want) {
                piece.len = 0;
                return Err(fault);
            }
        }
        let there = start.and_then(|start| piece.bytes.get(start..piece.len));
        let Some(there) = there else { return Ok(0) };
        // A whole packet's length at once is a few moves, and what most packets have behind their
        // head.
        if let Some(all) = there.first_chunk() {
            *into = *all;
            return Ok(MAX_FIXED);
        }
        if let Some(to) = into.get_mut(..there.len()) {
            to.copy_from_slice(there);
        }
        Ok(there.len())
    }

    // Goes to the start of another buffer, of which nothing is fetched yet.
    fn go_to(&mut self, current: Option<Cb>) {
        (self.current, self.offset, self.piece.len) = (current, 0, 0);
    }

    /// Moves past a packet. Where that was the last of the queue's head and of what it pushed, the
    /// head.
    pub(crate) fn advance(&mut self, len: u64) -> Option<Entry> {
        self.offset += len;
        self.moved = 0;
        while self.offset >= u64::from(self.current()?.len) {
            match self.pushed.pop_front() {
                Some(cb) => self.go_to(Some(cb)),
                None => {
                    self.go_to(None);
                    return self.queue.pop_front();
                }
            }
        }
        None
    }

    /// Keeps an executed command buffer until what it handed down is done.
    pub(crate) fn retire(&mut self, tag: u64) {
        let below = std::mem::take(&mut self.below);
        self.retiring.push_back(Retiring { tag, below });
    }

    /// The tag of the next command buffer that is done, in their order.
    pub(crate) fn next_done(&mut self) -> Option<u64> {
        self.retiring.front().filter(|entry| entry.below == 0)?;
        self.retiring.pop_front().map(|entry| entry.tag)
    }

    /// An address of the buffer in work, so many bytes after the packet's start.
    pub(crate) fn address(&self, ahead: u64) -> Result<DeviceVa, Fault> {
        let start = self.current().map_or(DeviceVa(u64::MAX), |cb| cb.va);
        step(start, self.offset.saturating_add(ahead), Access::Fetch)
    }
}
