//! Copies to and from memory that another thread, another process or a device may change at the
//! same time.
//!
//! - *Every access to the shared side is a relaxed atomic*: words where the shared side is aligned,
//!   bytes at its edges, and bytes in copies from 4 KiB on, by the processor's string instructions
//!   if they are fast. Two threads of this process that access one range get a mixture of old and
//!   new bytes, and not undefined behaviour as with `memcpy`.
//! - *The price*, measured in release on x86-64 with fast string instructions: none against
//!   `memcpy` from 4 KiB on; a third to two thirds of its speed below.
//! - *Beyond the language*: its model has no other process and no device, and
//!   none for atomics of two sizes that meet (the edge of one copy in the middle of another). There
//!   the processor's rule is relied on, that an aligned access of up to 8 bytes is one access, and
//!   the compiler's, that it does not look into an atomic.
//! - *A copy orders nothing*: a reader that must see all of it waits for a completion, a lock or a
//!   loaded word first.

#![expect(
    unsafe_code,
    reason = "shared memory is reached through raw pointers: a reference to it would promise that it does not change"
)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();
/// Words that one turn of a loop moves: a bound that the compiler sees, so that it unrolls.
const BLOCK: usize = 8;
/// Bytes that go through private memory at a time, where both sides are shared.
const STAGE: usize = 4096;

/// The smallest copy that uses string instructions: below, starting one takes longer than the copy
/// by words.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 4096;

/// Bytes of a page. Processors compare a load with earlier stores by the address within a page.
const PAGE: usize = 4096;
/// How far the target is behind the source, modulo a page, where a copy from the first byte on is
/// slow.
const BEHIND: std::ops::Range<usize> = 1..32;

/// Whether a copy from the first byte on would be slow. For these distances, and no others, `rep
/// movsb` takes 10 to 15 times as long on an AMD Zen 3, and so does `memcpy` of glibc 2.36: each
/// load seems to read what a store before it wrote. malloc(3) places large memory 16 bytes into a
/// page, so a copy from the start of a page into it is of this kind.
fn is_slow_forwards(to: *const u8, from: *const u8) -> bool {
    BEHIND.contains(&(to.addr().wrapping_sub(from.addr()) % PAGE))
}

/// Copies by `rep movsb`, from the first byte to the last. Returns false, and copies nothing, if it
/// would be slow: for few bytes, a target that is a little [behind](is_slow_forwards) the source,
/// and on processors without fast string instructions (CPUID `ERMS`), including emulated ones.
///
/// # Safety
/// - `len` bytes at `from` are readable, and `len` bytes at `to` are writable, while this runs.
/// - No byte of `to` is read through `from` after it was written: the ranges are disjoint, or `to`
///   is before `from`.
/// - Another access of this process to a shared side at the same time is atomic.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_long(to: *mut u8, from: *const u8, len: usize) -> bool {
    if len < LONG || is_slow_forwards(to, from) || !std::arch::is_x86_feature_detected!("ermsb") {
        return false;
    }
    // SAFETY: the caller's promise. Each byte is read once and written once, in no order that
    // another thread may rely on, which is what relaxed atomic loads and stores of bytes do. The
    // direction flag is clear on entry (Rust reference, inline assembly).
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
    true
}

/// Sets bytes by `rep stosb`, as [`copy_long`] copies them.
///
/// # Safety
/// - As [`copy_long`] for `to`.
#[cfg(target_arch = "x86_64")]
unsafe fn fill_long(to: *mut u8, value: u8, len: usize) -> bool {
    if len < LONG || !std::arch::is_x86_feature_detected!("ermsb") {
        return false;
    }
    // SAFETY: as in `copy_long`.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            in("al") value,
            options(nostack, preserves_flags),
        );
    }
    true
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_long(_: *mut u8, _: *const u8, _: usize) -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn fill_long(_: *mut u8, _: u8, _: usize) -> bool {
    false
}

/// Calls `byte` for each byte of shared memory before its first aligned word and after its last,
/// and `word` for each word between, with their offsets: from the first on, or `BACKWARDS`.
///
/// # Safety
/// - `len` bytes at `at` are mapped while this runs;
/// - no exclusive reference to them is used meanwhile, in this process.
#[inline(always)]
unsafe fn walk<const BACKWARDS: bool>(
    at: NonNull<u8>,
    len: usize,
    byte: impl Fn(&AtomicU8, usize),
    word: impl Fn(&AtomicU64, usize),
) {
    let head = at.align_offset(WORD).min(len);
    let words = (len - head) / WORD;
    let blocks = words / BLOCK;
    let (blocks_end, words_end) = (head + blocks * BLOCK * WORD, head + words * WORD);
    let one = |offset| {
        let place = at.as_ptr().wrapping_add(offset);
        // SAFETY: the byte lies in the range, and an atomic may be shared.
        byte(unsafe { AtomicU8::from_ptr(place) }, offset);
    };
    let eight = |offset| {
        let place = at.as_ptr().wrapping_add(offset).cast::<u64>();
        // SAFETY: the word lies in the range and is aligned, and an atomic may be shared.
        word(unsafe { AtomicU64::from_ptr(place) }, offset);
    };
    if BACKWARDS {
        (words_end..len).rev().for_each(one);
        (blocks_end..words_end).step_by(WORD).rev().for_each(eight);
        for block in (0..blocks).rev() {
            for index in (0..BLOCK).rev() {
                eight(head + (block * BLOCK + index) * WORD);
            }
        }
        (0..head).rev().for_each(one);
    } else {
        (0..head).for_each(one);
        for block in 0..blocks {
            for index in 0..BLOCK {
                eight(head + (block * BLOCK + index) * WORD);
            }
        }
        (blocks_end..words_end).step_by(WORD).for_each(eight);
        (words_end..len).for_each(one);
    }
}

/// Copies private bytes into shared memory.
///
/// # Safety
/// - `from.len()` bytes from `to` are mapped and writable while this runs;
/// - no reference to them is made or used meanwhile, in this process.
pub unsafe fn copy_in(to: NonNull<u8>, from: &[u8]) {
    let source = from.as_ptr();
    // SAFETY: the caller's promise; a private slice and shared memory are disjoint.
    if unsafe { copy_long(to.as_ptr(), source, from.len()) } {
        return;
    }
    let byte = |place: &AtomicU8, at| {
        // SAFETY: a byte of the range has one of `from` at the same offset.
        place.store(unsafe { source.wrapping_add(at).read() }, Ordering::Relaxed);
    };
    let word = |place: &AtomicU64, at| {
        let source = source.wrapping_add(at).cast::<u64>();
        // SAFETY: as above, for eight bytes.
        place.store(unsafe { source.read_unaligned() }, Ordering::Relaxed);
    };
    if is_slow_forwards(to.as_ptr(), source) {
        // SAFETY: the caller's promise.
        unsafe { walk::<true>(to, from.len(), byte, word) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { walk::<false>(to, from.len(), byte, word) }
    }
}

/// Copies shared memory into private bytes.
///
/// # Safety
/// - `into.len()` bytes from `from` are mapped, readable and writable while this runs;
/// - no exclusive reference to them is made or used meanwhile, in this process.
pub unsafe fn copy_out(from: NonNull<u8>, into: &mut [u8]) {
    let target = into.as_mut_ptr();
    // SAFETY: the caller's promise; a private slice and shared memory are disjoint.
    if unsafe { copy_long(target, from.as_ptr(), into.len()) } {
        return;
    }
    let byte = |place: &AtomicU8, at| {
        // SAFETY: a byte of the range has one of `into` at the same offset.
        unsafe { target.wrapping_add(at).write(place.load(Ordering::Relaxed)) };
    };
    let word = |place: &AtomicU64, at| {
        let target = target.wrapping_add(at).cast::<u64>();
        // SAFETY: as above, for eight bytes.
        unsafe { target.write_unaligned(place.load(Ordering::Relaxed)) };
    };
    if is_slow_forwards(target, from.as_ptr()) {
        // SAFETY: the caller's promise.
        unsafe { walk::<true>(from, into.len(), byte, word) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { walk::<false>(from, into.len(), byte, word) }
    }
}

/// Sets bytes of shared memory.
///
/// # Safety
/// - As [`copy_in`], of `len` bytes.
pub unsafe fn fill(to: NonNull<u8>, len: usize, value: u8) {
    // SAFETY: the caller's promise.
    if unsafe { fill_long(to.as_ptr(), value, len) } {
        return;
    }
    let word = u64::from_ne_bytes([value; WORD]);
    let byte = |place: &AtomicU8, _| place.store(value, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { walk::<false>(to, len, byte, |place, _| place.store(word, Ordering::Relaxed)) }
}

/// Copies shared memory to shared memory; the ranges may overlap.
///
/// # Safety
/// - As [`copy_in`] for `to` and [`copy_out`] for `from`, of `len` bytes each.
pub unsafe fn copy_within(to: NonNull<u8>, from: NonNull<u8>, len: usize) {
    let distance = to.addr().get().wrapping_sub(from.addr().get());
    // SAFETY: the caller's promise; `to` lies before `from`, which wraps, or behind its end.
    if distance >= len && unsafe { copy_long(to.as_ptr(), from.as_ptr(), len) } {
        return;
    }
    let mut stage = [0; STAGE];
    // From the side where no byte is written before it was read.
    let backwards = to.addr() > from.addr();
    let mut done = 0;
    while done < len {
        let part = STAGE.min(len - done);
        let offset = if backwards { len - done - part } else { done };
        let (stage, _) = stage.split_at_mut(part);
        // SAFETY: the part lies within the range that the caller promises.
        let source = unsafe { from.add(offset) };
        // SAFETY: as above.
        let target = unsafe { to.add(offset) };
        // SAFETY: the caller's promise, of a part.
        unsafe { copy_out(source, stage) };
        // SAFETY: as above.
        unsafe { copy_in(target, stage) };
        done += part;
    }
}

#[cfg(test)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a place and a copy to it have one reason to be right"
)]
mod tests {
    use super::*;

    const LEN: usize = 3 * STAGE;

    fn start(bytes: &mut [u8]) -> NonNull<u8> {
        NonNull::from(bytes).cast()
    }

    fn counted() -> Vec<u8> {
        (0..LEN).map(|index| (index % 251) as u8).collect()
    }

    #[test]
    fn copies_are_exact_at_every_alignment() {
        let source = counted();
        for (shift, skew) in (0..9).flat_map(|shift| (0..9).map(move |skew| (shift, skew))) {
            for len in (0..150).chain([4095, 4096, 5001]) {
                let mut shared = vec![0xee_u8; LEN];
                let mut wanted = shared.clone();
                let at = start(&mut shared);
                // SAFETY: all ranges lie inside the vector, which is only reached through `at`
                // meanwhile.
                unsafe { copy_in(at.add(shift), &source[skew..skew + len]) };
                wanted[shift..shift + len].copy_from_slice(&source[skew..skew + len]);
                assert_eq!(shared, wanted, "copy_in of {len} bytes at {shift} from {skew}");
                let mut got = vec![0; len + skew];
                let at = start(&mut shared);
                // SAFETY: as above.
                unsafe { copy_out(at.add(shift), &mut got[skew..]) };
                assert_eq!(
                    got[skew..],
                    wanted[shift..shift + len],
                    "copy_out of {len} bytes at {shift}"
                );
                // SAFETY: as above.
                unsafe { fill(at.add(shift), len, 7) };
                wanted[shift..shift + len].fill(7);
                assert_eq!(shared, wanted, "fill of {len} bytes at {shift}");
            }
        }
    }

    #[test]
    fn targets_behind_their_source_receive_all() {
        let mut bytes = vec![0; 8 * PAGE];
        let first = start(&mut bytes);
        let page = first.as_ptr().align_offset(PAGE);
        let source = counted();
        for behind in 0..2 * BEHIND.end {
            for len in [1, 100, PAGE - 1, PAGE, 2 * PAGE + 77] {
                let (from, to) = (page, page + 4 * PAGE + behind);
                bytes.fill(0xee);
                bytes[from..from + len].copy_from_slice(&source[..len]);
                let mut wanted = bytes.clone();
                wanted.copy_within(from..from + len, to);
                let (low, high) = bytes.split_at_mut(page + 3 * PAGE);
                let at = to - low.len();
                // SAFETY: the range lies inside the half, which nothing else reaches meanwhile.
                unsafe { copy_in(start(high).add(at), &low[from..from + len]) };
                assert_eq!(bytes, wanted, "copy_in of {len} bytes {behind} behind");
                bytes[to..to + len].fill(0xee);
                let (low, high) = bytes.split_at_mut(page + 3 * PAGE);
                // SAFETY: as above.
                unsafe { copy_out(start(low).add(from), &mut high[at..at + len]) };
                assert_eq!(bytes, wanted, "copy_out of {len} bytes {behind} behind");
            }
        }
    }

    #[test]
    fn overlapping_ranges_move_as_memmove_moves_them() {
        for (to, from) in [(0, 1), (1, 0), (100, 4000), (4000, 100), (5, 5), (13, 4096)] {
            let (mut shared, mut wanted) = (counted(), counted());
            let len = LEN - 4096; // long enough for string instructions
            let at = start(&mut shared);
            // SAFETY: both ranges lie inside the vector, which is only reached through `at`
            // meanwhile.
            unsafe { copy_within(at.add(to), at.add(from), len) };
            wanted.copy_within(from..from + len, to);
            assert_eq!(shared, wanted, "{len} bytes from {from} to {to}");
        }
    }

    /// How the copies compare with `memcpy`: `cargo test --release -p gaudi-sys -- --ignored
    /// --nocapture speed`.
    #[test]
    #[ignore = "a measurement: cargo test --release -p gaudi-sys -- --ignored --nocapture"]
    fn speed_against_memcpy() {
        const BIG: usize = 64 << 20;
        let best = |work: &mut dyn FnMut()| {
            let once = |_| {
                let since = std::time::Instant::now();
                work();
                since.elapsed().as_secs_f64()
            };
            BIG as f64 / 1e9 / (0..9).map(once).fold(f64::MAX, f64::min)
        };
        let (private, mut shared) = (vec![1_u8; BIG], vec![2_u8; BIG + 8]);
        let mut back = vec![3_u8; BIG];
        for shift in [0, 3, 16, 40] {
            let memcpy =
                best(&mut || shared[shift..shift + BIG].copy_from_slice(std::hint::black_box(&private)));
            let memset = best(&mut || shared[shift..shift + BIG].fill(std::hint::black_box(9)));
            let at = start(&mut shared);
            // SAFETY: the ranges lie inside the vector, which is only reached through `at`
            // meanwhile.
            let (into, out, set) = unsafe {
                (
                    best(&mut || copy_in(at.add(shift), std::hint::black_box(&private))),
                    best(&mut || copy_out(at.add(shift), std::hint::black_box(&mut back))),
                    best(&mut || fill(at.add(shift), BIG, std::hint::black_box(9))),
                )
            };
            println!(
                "at {shift}, GB/s: memcpy {memcpy:.1}, in {into:.1}, out {out:.1}; memset {memset:.1}, fill {set:.1}"
            );
        }
    }
}
