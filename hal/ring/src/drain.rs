//! [`Drain`]: the tracer's side of a session.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use crate::clock::{Clock, has_counter};
use crate::layout::{
    AT_COMMAND_BUFFERS, AT_DEVICE_COUNT, AT_DEVICES, AT_FLAGS, AT_LOST, AT_MAGIC, AT_NONCE, AT_OPEN,
    AT_OWNERS, AT_RING_BYTES, AT_RINGS, AT_TYPES, Filter, KIND, MAGIC, MAX_DEVICES, PAD, RECORD, RING_HEAD,
    RING_LOST, RING_PAGE, RING_TAIL, Sizes,
};
use crate::map::Map;

/// Bytes after which the reader publishes its position.
const PUBLISH: u64 = 1 << 14;

/// The memory of a session, and the position of the reader in each ring.
#[derive(Debug)]
pub struct Drain {
    memory: OwnedFd,
    map: Map,
    sizes: Sizes,
    nonce: u64,
    rings: Vec<Cursor>,
    /// Set if times in records are values of the processor's counter.
    clock: Option<Clock>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    at: u64,
    published: u64,
    lost: u64,
    is_corrupt: bool,
}

/// A ring whose content is not what its writers write: the program overwrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// The ring.
    pub ring: usize,
    /// The process and thread that own it, as the memory records them.
    pub owner: (u32, u32),
    /// The position in the ring in bytes.
    pub position: u64,
    /// The word at the position.
    pub word: u64,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ring,
            owner: (pid, tid),
            position,
            word,
        } = self;
        write!(
            f,
            "ring {ring} (process {pid}, thread {tid}): invalid record header {word:#018x} at byte {position}: \
             the traced program overwrote it"
        )
    }
}

/// The result of reading from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    /// The ring has no complete record.
    Empty,
    /// The bytes of a record were appended.
    Record,
}

fn session_number() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    let random = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    random.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Drain {
    /// Creates the memory of a session.
    ///
    /// # Errors
    /// - `EINVAL`: the filter has more than [`MAX_DEVICES`] devices.
    /// - Those of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn new(sizes: Sizes, filter: &Filter) -> Result<Self, Errno> {
        if filter.devices.len() > MAX_DEVICES {
            return Err(Errno::EINVAL);
        }
        let nonce = session_number()?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memory = memfd_create(c"gaudi-ring", flags)?;
        ftruncate(&memory, sizes.total().try_into().map_err(|_| Errno::EFBIG)?)?;
        // A writer cannot change the size, so no access to the mapping faults.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
        let map = Map::new(&memory, sizes.total())?;
        let put = |at: usize, value: u64| map.word(at).store(value, Ordering::Relaxed);
        put(AT_NONCE, nonce);
        put(AT_RINGS, sizes.rings as u64);
        put(AT_RING_BYTES, sizes.ring_bytes as u64);
        let clock = has_counter().then(Clock::new);
        let flags = [filter.files, filter.preload, clock.is_some(), filter.data];
        let bits = flags
            .iter()
            .enumerate()
            .map(|(bit, &flag)| u64::from(flag) << bit);
        put(AT_FLAGS, bits.sum());
        put(AT_COMMAND_BUFFERS, filter.command_buffers.unwrap_or(0));
        for &kind in &filter.types {
            map.word(AT_TYPES + usize::from(kind / 64) * 8)
                .fetch_or(1 << (kind % 64), Ordering::Relaxed);
        }
        put(AT_DEVICE_COUNT, filter.devices.len() as u64);
        for (index, &(major, minor)) in filter.devices.iter().enumerate() {
            let minor = minor.unwrap_or(u32::MAX);
            put(AT_DEVICES + 8 * index, u64::from(major) << 32 | u64::from(minor));
        }
        put(AT_OPEN, 1);
        map.word(AT_MAGIC).store(MAGIC, Ordering::Release);
        Ok(Self {
            memory,
            map,
            sizes,
            nonce,
            rings: vec![Cursor::default(); sizes.rings],
            clock,
        })
    }

    /// Prepares the conversion of times in the records that are read next.
    pub fn update_clock(&mut self) {
        if let Some(clock) = &mut self.clock {
            clock.update();
        }
    }

    /// Returns a time of a record in nanoseconds of CLOCK_MONOTONIC.
    #[inline]
    pub fn time_ns(&self, time: u64) -> u64 {
        self.clock.map_or(time, |clock| clock.ns(time))
    }

    /// Returns the value of [`VARIABLE`](crate::VARIABLE) for the processes of the session.
    pub fn variable(&self) -> String {
        let (pid, fd) = (std::process::id(), self.memory.as_raw_fd());
        format!("{pid}:{fd}:{:016x}", self.nonce)
    }

    /// Returns the file of the memory.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Returns the number of bytes that all rings hold.
    pub fn capacity(&self) -> u64 {
        (self.sizes.rings * self.sizes.ring_bytes) as u64
    }

    /// Returns the rings that have an owner: the ring, its process and its thread.
    pub fn owned(&self) -> impl Iterator<Item = (usize, (u32, u32))> + '_ {
        let owner = |index: usize| self.map.word(AT_OWNERS + 8 * index).load(Ordering::Acquire);
        (0..self.sizes.rings).filter_map(move |index| match owner(index) {
            0 => None,
            owner => Some((index, ((owner >> 32) as u32, owner as u32))),
        })
    }

    /// Appends the next record of a ring to `out`.
    ///
    /// # Errors
    /// The ring is corrupt. It is not read again.
    pub fn pull(&mut self, ring: usize, out: &mut Vec<u8>) -> Result<Pull, Corrupt> {
        let size = self.sizes.ring_bytes as u64;
        let data = self.sizes.ring(ring) + RING_PAGE;
        let Some(cursor) = self.rings.get_mut(ring).filter(|cursor| !cursor.is_corrupt) else {
            return Ok(Pull::Empty);
        };
        let mut pads = 0;
        loop {
            let into = (cursor.at & (size - 1)) as usize;
            let word = self.map.word(data + into).load(Ordering::Acquire);
            if word == 0 {
                if cursor.published != cursor.at {
                    cursor.published = cursor.at;
                    let tail = self.map.word(self.sizes.ring(ring) + RING_TAIL);
                    tail.store(cursor.at, Ordering::Release);
                }
                return Ok(Pull::Empty);
            }
            let (kind, len) = (word & KIND, (word & !KIND) as usize);
            let padded = len.next_multiple_of(8);
            let left = self.sizes.ring_bytes - into - 8;
            let fits = match kind {
                RECORD => len <= self.sizes.longest() && padded <= left,
                // Two in a row would let a writer keep this loop busy.
                PAD => len == left && pads == 0,
                _ => false,
            };
            if !fits {
                cursor.is_corrupt = true;
                let owner = self.map.word(AT_OWNERS + 8 * ring).load(Ordering::Relaxed);
                return Err(Corrupt {
                    ring,
                    owner: ((owner >> 32) as u32, owner as u32),
                    position: cursor.at,
                    word,
                });
            }
            self.map.word(data + into).store(0, Ordering::Relaxed);
            let start = out.len();
            if kind == RECORD {
                self.map.take(data + into + 8, padded, out);
                out.truncate(start + len);
            }
            cursor.at += 8 + padded as u64;
            if cursor.at - cursor.published >= PUBLISH {
                cursor.published = cursor.at;
                let tail = self.map.word(self.sizes.ring(ring) + RING_TAIL);
                tail.store(cursor.at, Ordering::Release);
            }
            pads += 1;
            if kind == RECORD {
                return Ok(Pull::Record);
            }
        }
    }

    /// Marks a ring as corrupt: the bytes of a record were not a record.
    pub fn reject(&mut self, ring: usize) {
        if let Some(cursor) = self.rings.get_mut(ring) {
            cursor.is_corrupt = true;
        }
    }

    /// Returns the numbers of records that were lost since the last call: those of threads without
    /// a ring, and those that did not fit in their ring.
    pub fn lost(&mut self) -> (u64, u64) {
        let without_ring = self.map.word(AT_LOST).swap(0, Ordering::Relaxed);
        let mut unfit = 0_u64;
        for (ring, cursor) in self.rings.iter_mut().enumerate() {
            if self.map.word(AT_OWNERS + 8 * ring).load(Ordering::Relaxed) == 0 {
                continue;
            }
            let counted = self
                .map
                .word(self.sizes.ring(ring) + RING_LOST)
                .load(Ordering::Relaxed);
            unfit = unfit.saturating_add(counted.saturating_sub(cursor.lost));
            cursor.lost = counted;
        }
        (without_ring, unfit)
    }

    /// Releases the ring of a dead thread after its records were read. Returns whether the thread
    /// died inside a write, whose record is lost.
    pub fn release(&mut self, ring: usize) -> bool {
        let Some(cursor) = self.rings.get_mut(ring) else {
            return false;
        };
        let page = self.sizes.ring(ring);
        let head = self.map.word(page + RING_HEAD);
        let was_cut = head.load(Ordering::Acquire) != cursor.at;
        if was_cut || cursor.is_corrupt {
            // The bytes of the unfinished record are no valid header.
            self.map.zero(page + RING_PAGE, self.sizes.ring_bytes);
            // A writer checks its positions against the ring's size, so any pair is safe.
            head.store(cursor.at, Ordering::Relaxed);
        }
        self.map
            .word(page + RING_TAIL)
            .store(cursor.at, Ordering::Release);
        let is_corrupt = std::mem::take(&mut cursor.is_corrupt);
        cursor.published = cursor.at;
        self.map.word(AT_OWNERS + 8 * ring).store(0, Ordering::Release);
        was_cut && !is_corrupt
    }

    /// Ends the session: writers drop their records from now on, uncounted.
    pub fn close(&self) {
        self.map.word(AT_OPEN).store(0, Ordering::Release);
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.close();
    }
}
