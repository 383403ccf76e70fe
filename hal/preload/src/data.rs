//! Memory that the device can write: host memory that the program maps to a device, and mappings of
//! a node. Before and after each call that changes memory, what has changed is recorded.
//!
//! - A hash of each unit detects changes: a copy would double the program's memory.
//! - One thread compares at a time. A signal handler inside of a comparison skips its own.
//! - Memory that cannot be read (unmapped, or a device's registers) is no longer compared.

#![allow(
    unsafe_code,
    reason = "anonymous memory for hashes, a buffer under a lock, and system calls of signal handlers"
)]

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use gaudi_capture::raw::{self, Piece, Stamp};
use gaudi_capture::record::Moment;
use gaudi_ring::{Author, Local, Session};
use gaudi_uapi::Ioctl;
use gaudi_uapi::memory::{HlMemIn, MemFlags, MemOp};
use nix::libc;

use crate::memory;
use crate::out::Out;

/// Maximum number of ranges that are compared.
const RANGES: usize = 1024;
/// Memory is compared and recorded in units of this many bytes.
const UNIT: usize = 4096;
/// Bytes that are read at a time: the maximum length of a record's content.
const STRIDE: usize = 16 * UNIT;
/// Maximum number of changed bytes that a comparison records.
const MOST: u64 = 64 << 20;
/// Maximum time that a thread waits for the comparison of another, in steps.
static WAIT_STEP: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 100_000,
};
const WAIT_STEPS: u32 = 2000;

/// A range of memory. `start` is 0 in a free row.
struct Range {
    start: AtomicU64,
    len: AtomicU64,
    /// The device address; 0 for a mapping of a node.
    va: AtomicU64,
    /// The hashes, and the number of words. They stay with the row, and are replaced if a longer
    /// range needs more.
    hashes: AtomicPtr<AtomicU64>,
    words: AtomicUsize,
}

static TABLE: [Range; RANGES] = [const {
    Range {
        start: AtomicU64::new(0),
        len: AtomicU64::new(0),
        va: AtomicU64::new(0),
        hashes: AtomicPtr::new(null_mut()),
        words: AtomicUsize::new(0),
    }
}; RANGES];
/// Rows from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The owner of the table and the buffer: process and thread, or 0.
static OWNER: AtomicU64 = AtomicU64::new(0);

struct Buffer(UnsafeCell<[u8; STRIDE]>);
// SAFETY: only the owner of the table accesses the buffer.
unsafe impl Sync for Buffer {}
static BUFFER: Buffer = Buffer(UnsafeCell::new([0; STRIDE]));

/// Whether a row was missing for a range.
static IS_FULL: AtomicBool = AtomicBool::new(false);

/// The record's destination and author.
#[derive(Clone, Copy)]
pub(crate) struct To<'a> {
    pub(crate) session: &'a Session,
    pub(crate) local: &'a Local,
    pub(crate) author: Author,
}

impl To<'_> {
    /// Records memory. Returns `false` if the record is lost.
    fn put(self, piece: Piece<'_>) -> bool {
        let Some(reserved) = self
            .session
            .reserve(self.local, raw::DATA_OVERHEAD + piece.bytes.len())
        else {
            return false;
        };
        let at = Stamp {
            time_ns: self.session.now(),
            pid: self.author.pid,
            tid: self.author.tid,
        };
        let mut out = Out(reserved);
        raw::data(&mut out, at, piece);
        out.0.publish();
        true
    }

    /// Records that the content of a range is missing.
    fn put_missing(self, address: u64, whole: u64, at: Moment) {
        self.put(Piece {
            address,
            at,
            whole,
            bytes: &[],
        });
    }
}

/// Calls `body` as the owner of the table. Skips it in a signal handler that interrupts the owner,
/// in a child that shares the memory, and after a wait that timed out.
fn locked(author: Author, body: impl FnOnce(&mut [u8; STRIDE])) {
    if author.is_guest {
        return;
    }
    let me = u64::from(author.pid) << 32 | u64::from(author.tid);
    for _ in 0..WAIT_STEPS {
        let owner = OWNER.load(Ordering::Relaxed);
        if owner == me {
            return;
        }
        // A fork child inherits the lock of a thread that it does not have.
        let is_free = owner == 0 || owner >> 32 != u64::from(author.pid);
        if is_free
            && OWNER
                .compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            // SAFETY: this thread owns the buffer until the store below; a signal handler of this
            // thread returns above.
            body(unsafe { &mut *BUFFER.0.get() });
            OWNER.store(0, Ordering::Release);
            return;
        }
        // Not nanosleep(3): a thread can be cancelled in it, but not in the call that is recorded.
        // SAFETY: the kernel reads the timespec; the remaining time is not requested.
        unsafe {
            libc::syscall(
                libc::SYS_nanosleep,
                &raw const WAIT_STEP,
                null_mut::<libc::timespec>(),
            )
        };
    }
}

/// Hashes a unit: four independent lanes, so that the multiplications overlap.
fn hash(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [1_u64, 2, 3, 4];
    let mut step = |lane: usize, word: u64| {
        lanes[lane] = (lanes[lane] ^ word).wrapping_mul(PRIME).rotate_left(29);
    };
    let mut chunks = bytes.chunks_exact(32);
    for chunk in &mut chunks {
        for (lane, word) in chunk.chunks_exact(8).enumerate() {
            step(
                lane,
                word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)),
            );
        }
    }
    for (lane, &byte) in chunks.remainder().iter().enumerate() {
        step(lane % 4, u64::from(byte) | 1 << 8);
    }
    lanes.iter().fold(bytes.len() as u64, |all, lane| {
        (all ^ lane).wrapping_mul(PRIME).rotate_left(31)
    })
}

impl Range {
    fn end(&self) {
        self.start.store(0, Ordering::Relaxed);
    }

    /// Returns the hashes of the range's units.
    fn hashes(&self) -> &[AtomicU64] {
        let (words, len) = (
            self.words.load(Ordering::Relaxed),
            self.len.load(Ordering::Relaxed),
        );
        let units = usize::try_from(len).unwrap_or(usize::MAX).div_ceil(UNIT);
        let first = self.hashes.load(Ordering::Relaxed);
        if first.is_null() || units > words {
            return &[];
        }
        // SAFETY: the row has memory of `words` words, which is never unmapped.
        unsafe { std::slice::from_raw_parts(first, units) }
    }

    /// Allocates memory for the hashes of `units` units. Returns `false` if mmap(2) fails.
    fn grow(&self, units: usize) -> bool {
        if units <= self.words.load(Ordering::Relaxed) {
            return true;
        }
        let words = units.next_power_of_two().max(512);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other mapping.
        let memory = unsafe {
            libc::syscall(
                libc::SYS_mmap,
                null_mut::<u8>(),
                words * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0_usize,
            )
        };
        let Ok(address) = usize::try_from(memory) else {
            return false;
        };
        self.hashes
            .store(std::ptr::with_exposed_provenance_mut(address), Ordering::Relaxed);
        self.words.store(words, Ordering::Relaxed);
        true
    }

    /// Reads the range, updates its hashes, and records the changed units if `to` is set. Returns
    /// the number of changed bytes that did not fit in `left`.
    fn compare(&self, buffer: &mut [u8; STRIDE], to: Option<(To<'_>, Moment)>, left: &mut u64) -> u64 {
        let (start, len) = (
            self.start.load(Ordering::Relaxed),
            self.len.load(Ordering::Relaxed),
        );
        let mut missing = 0;
        let mut done = 0;
        for hashes in self.hashes().chunks(STRIDE / UNIT) {
            let wanted = usize::try_from(len - done).map_or(STRIDE, |rest| rest.min(STRIDE));
            let address = start + done;
            let read = memory::read(address, &mut buffer[..wanted]);
            let mut run = 0..0;
            for (index, (unit, old)) in buffer[..read].chunks(UNIT).zip(hashes).enumerate() {
                let new = hash(unit);
                if new == old.load(Ordering::Relaxed) {
                    continue;
                }
                if to.is_some() {
                    let bytes = unit.len() as u64;
                    if bytes > *left {
                        // The old hash stays: a later comparison records the unit.
                        missing += bytes;
                        continue;
                    }
                    *left -= bytes;
                }
                old.store(new, Ordering::Relaxed);
                let from = index * UNIT;
                if run.end != from {
                    put(to, address, buffer, run);
                    run = from..from;
                }
                run.end = from + unit.len();
            }
            put(to, address, buffer, run);
            if read < wanted {
                self.end();
                break;
            }
            done += wanted as u64;
        }
        missing
    }
}

/// Records a run of changed bytes in the buffer, which has the memory at `address`.
fn put(to: Option<(To<'_>, Moment)>, address: u64, buffer: &[u8; STRIDE], run: std::ops::Range<usize>) {
    let Some((to, at)) = to.filter(|_| !run.is_empty()) else {
        return;
    };
    let (address, bytes) = (address + run.start as u64, &buffer[run]);
    let whole = bytes.len() as u64;
    to.put(Piece {
        address,
        at,
        whole,
        bytes,
    });
}

fn rows() -> &'static [Range] {
    &TABLE[..USED.load(Ordering::Relaxed).min(RANGES)]
}

/// Starts to compare a range.
fn add(to: To<'_>, start: u64, len: u64, va: u64) {
    // No mapping is longer, and the indices of its hashes do not overflow.
    if start == 0 || len == 0 || start.checked_add(len).is_none() || len > 1 << 46 {
        return;
    }
    locked(to.author, |buffer| {
        let is_free = |row: &Range| row.start.load(Ordering::Relaxed) == 0;
        let index = rows().iter().position(is_free).unwrap_or(rows().len());
        let units = usize::try_from(len).unwrap_or(usize::MAX).div_ceil(UNIT);
        let Some(row) = TABLE.get(index).filter(|row| row.grow(units)) else {
            if !IS_FULL.swap(true, Ordering::Relaxed) {
                to.put_missing(start, len, Moment::Exit);
            }
            return;
        };
        USED.fetch_max(index + 1, Ordering::Relaxed);
        row.len.store(len, Ordering::Relaxed);
        row.va.store(va, Ordering::Relaxed);
        row.start.store(start, Ordering::Relaxed);
        row.compare(buffer, None, &mut 0);
    });
}

/// Adds a mapping of a node. It replaces the ranges at its addresses.
pub(crate) fn mapped(to: To<'_>, start: u64, len: u64) {
    unmapped(to.author, start, len);
    add(to, start, len, 0);
}

/// Removes the mappings of nodes that munmap(2) removed.
pub(crate) fn unmapped(author: Author, start: u64, len: u64) {
    let end = start.saturating_add(len);
    locked(author, |_| {
        for row in rows().iter().filter(|row| row.va.load(Ordering::Relaxed) == 0) {
            let first = row.start.load(Ordering::Relaxed);
            let last = first.saturating_add(row.len.load(Ordering::Relaxed));
            if first != 0 && first < end && start < last {
                row.end();
            }
        }
    });
}

/// What a call does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// The device can have written.
    Writes,
    /// Host memory is mapped: its address and length.
    Maps(u64, u64),
    /// The mapping at a device address ends.
    Unmaps(u64),
}

/// Returns the effect of an ioctl, by its argument at entry.
pub(crate) fn effect(request: u32, input: &[u8]) -> Effect {
    match Ioctl::of_request(request) {
        Some(Ioctl::Cs | Ioctl::WaitCs) => Effect::Writes,
        Some(Ioctl::Memory) => {
            let long = |at: usize| {
                input
                    .get(at..)?
                    .first_chunk()
                    .map(|word| u64::from_le_bytes(*word))
            };
            let word = |at: usize| {
                input
                    .get(at..)?
                    .first_chunk()
                    .map(|word| u32::from_le_bytes(*word))
            };
            let arg = offset_of!(HlMemIn, arg);
            let operation = word(offset_of!(HlMemIn, op)).map(MemOp);
            let flags = word(offset_of!(HlMemIn, flags)).unwrap_or(0);
            match operation {
                Some(MemOp::UNMAP) => Effect::Unmaps(long(arg).unwrap_or(0)),
                Some(MemOp::MAP) if flags & MemFlags::USERPTR.0 != 0 => {
                    Effect::Maps(long(arg).unwrap_or(0), long(arg + 16).unwrap_or(0))
                }
                _ => Effect::None,
            }
        }
        _ => Effect::None,
    }
}

/// Records the memory that changed before a call or during it.
pub(crate) fn changes(to: To<'_>, effect: Effect, at: Moment) {
    if !matches!(effect, Effect::Writes | Effect::Unmaps(_)) || rows().is_empty() {
        return;
    }
    locked(to.author, |buffer| {
        let mut left = MOST;
        let mut missing = (0, 0);
        for row in rows() {
            let start = row.start.load(Ordering::Relaxed);
            if start == 0 {
                continue;
            }
            let bytes = row.compare(buffer, Some((to, at)), &mut left);
            if bytes > 0 {
                missing = (start, missing.1 + bytes);
            }
        }
        if missing.1 > 0 {
            to.put_missing(missing.0, missing.1, at);
        }
    });
}

/// Updates the ranges after a call.
pub(crate) fn ended(to: To<'_>, effect: Effect, output: &[u8]) {
    match effect {
        Effect::Maps(start, len) => {
            let va = output.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            add(to, start, len, va);
        }
        Effect::Unmaps(va) if va != 0 => locked(to.author, |_| {
            let of_va =
                |row: &&Range| row.start.load(Ordering::Relaxed) != 0 && row.va.load(Ordering::Relaxed) == va;
            if let Some(row) = rows().iter().find(of_va) {
                row.end();
            }
        }),
        _ => {}
    }
}
