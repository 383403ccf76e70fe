//! One copy between two addresses of the process.

#![allow(unsafe_code, reason = "host memory that UCX passes by address")]

use std::ffi::c_void;

use crate::memory::{self, Allocation, Copy, Direction};
use crate::status::Status;
use crate::{counters, handles};

/// Copies `len` bytes, waits for the copy and counts it.
///
/// # Errors
/// - `InvalidParam`: a host address is null or its range wraps.
/// - `OutOfRange`: the range leaves its allocation.
/// - `Unsupported`: both are host memory.
///
/// # Safety
/// An address that is not device memory of this process is host memory of `len` bytes. Nothing else
/// writes it now, and nothing reads it if it is `dst`.
pub(crate) unsafe fn copy(dst: u64, src: u64, len: u64) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { counted(Copy::plan(dst, src, len)?, dst, src, len) }
}

/// As [`copy`], with UCX's handle of the host memory, if it has one. A long copy then needs no
/// staging: the engines access the memory.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`]. The memory of a live handle is mapped, readable and writable.
pub(crate) unsafe fn registered(dst: u64, src: u64, len: u64, handle: *mut c_void) -> Result<(), Status> {
    let plan = Copy::plan(dst, src, len)?;
    let (device, offset, host, direction) = match &plan {
        Copy::ToDevice(to, offset) => (to, offset, src, Direction::ToDevice),
        Copy::FromDevice(from, offset) => (from, offset, dst, Direction::FromDevice),
        // SAFETY: guaranteed by the caller.
        Copy::Empty | Copy::Between { .. } => return unsafe { counted(plan, dst, src, len) },
    };
    // SAFETY: guaranteed by the caller.
    let Some(memory) = (unsafe { pinned(device, handle, host, len) }) else {
        // SAFETY: guaranteed by the caller.
        return unsafe { counted(plan, dst, src, len) };
    };
    memory::direct(device, *offset, &memory, (host, len), direction)?;
    counters::copied(len, false);
    Ok(())
}

/// # Safety
/// As [`handles::pinned`].
unsafe fn pinned(
    device: &Allocation,
    handle: *mut c_void,
    host: u64,
    len: u64,
) -> Option<gaudi_copy::Memory> {
    if !memory::is_long(device, len) {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { handles::pinned(handle, device.card, host, len) }
}

/// As [`copy`], but does not count the copy.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn uncounted(dst: u64, src: u64, len: u64) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { run(Copy::plan(dst, src, len)?, dst, src, len) }
}

/// As [`run`], and counts a copy that succeeded.
///
/// # Safety
/// As [`run`].
unsafe fn counted(plan: Copy, dst: u64, src: u64, len: u64) -> Result<(), Status> {
    let is_staged = plan.is_staged();
    // SAFETY: guaranteed by the caller.
    unsafe { run(plan, dst, src, len) }?;
    if len > 0 {
        counters::copied(len, is_staged);
    }
    Ok(())
}

/// # Safety
/// As [`copy`]; `plan` is that of the other arguments.
unsafe fn run(plan: Copy, dst: u64, src: u64, len: u64) -> Result<(), Status> {
    let bytes = usize::try_from(len).map_err(|_| Status::InvalidParam)?;
    match plan {
        Copy::Empty => Ok(()),
        Copy::ToDevice(to, offset) => {
            check(src, bytes)?;
            // SAFETY: guaranteed by the caller.
            let from = unsafe { std::slice::from_raw_parts(src as *const u8, bytes) };
            memory::write(&to, offset, from)
        }
        Copy::FromDevice(from, offset) => {
            check(dst, bytes)?;
            // SAFETY: guaranteed by the caller.
            let to = unsafe { std::slice::from_raw_parts_mut(dst as *mut u8, bytes) };
            memory::read(&from, offset, to)
        }
        Copy::Between { dst, src } => memory::between(&dst, &src, len),
    }
}

/// Bytes of a piece of a copy between overlapping ranges.
const PIECE: u64 = 1 << 20;

/// As [`copy`], also within host memory, and between ranges that overlap.
///
/// # Errors
/// As [`copy`], without `Unsupported`.
///
/// # Safety
/// As [`copy`], except that the ranges may overlap.
pub(crate) unsafe fn any(dst: u64, src: u64, len: u64) -> Result<(), Status> {
    let (on_device, from_device) = (memory::find(dst).is_some(), memory::find(src).is_some());
    if !on_device && !from_device {
        let bytes = usize::try_from(len).map_err(|_| Status::InvalidParam)?;
        if bytes > 0 {
            check(dst, bytes)?;
            check(src, bytes)?;
            // SAFETY: guaranteed by the caller; the ranges may overlap.
            unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, bytes) };
        }
        return Ok(());
    }
    let distance = dst.abs_diff(src);
    if !(on_device && from_device) || distance >= len {
        // SAFETY: guaranteed by the caller.
        return unsafe { copy(dst, src, len) };
    }
    // Through host memory, in the order in which no piece overwrites what a later one reads.
    let mut piece = vec![0_u8; len.min(PIECE) as usize];
    let mut done = 0;
    while distance > 0 && done < len {
        let count = (piece.len() as u64).min(len - done);
        let at = if dst < src { done } else { len - done - count };
        let host = piece.as_mut_ptr() as u64;
        // SAFETY: the piece has `count` bytes, and the device ranges are the caller's.
        unsafe {
            uncounted(host, src + at, count)?;
            uncounted(dst + at, host, count)?;
        }
        done += count;
    }
    if distance > 0 {
        counters::copied(len, true);
    }
    Ok(())
}

/// Whether a host range can be a slice.
fn check(address: u64, bytes: usize) -> Result<(), Status> {
    let end = address.checked_add(bytes as u64);
    match address != 0 && end.is_some() && isize::try_from(bytes).is_ok() {
        true => Ok(()),
        false => Err(Status::InvalidParam),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cards::cards;
    use crate::stub;

    /// What a call adds to the numbers of copies, copied bytes and staged bytes, and its answer.
    fn added(call: impl FnOnce() -> Result<(), Status>) -> ([u64; 3], Result<(), Status>) {
        let before = counters::copies();
        let answer = call();
        let after = counters::copies();
        ([0, 1, 2].map(|at| after[at] - before[at]), answer)
    }

    #[test]
    fn counters_count_copies_that_happened() {
        let _alone = stub::install();
        let [first, second] = [0, 1].map(|index| memory::alloc(&cards()[index], 4 << 20).expect("memory").0);
        let mut bytes = vec![7_u8; 100];
        let host = bytes.as_mut_ptr() as u64;
        // SAFETY: `host` has 100 bytes, which only these calls access, and no call copies more.
        let copied = |dst, src, len| added(|| unsafe { copy(dst, src, len) });
        // SAFETY: as above.
        let moved = |dst, src, len| added(|| unsafe { any(dst, src, len) });
        assert_eq!(copied(first, host, 100), ([1, 100, 100], Ok(())), "to the device");
        assert_eq!(copied(first, host, 0), ([0; 3], Ok(())), "no bytes");
        let out_of_range = Err(Status::OutOfRange);
        assert_eq!(copied(first, host, 5 << 20), ([0; 3], out_of_range), "too long");
        assert_eq!(copied(first, 0, 100), ([0; 3], Err(Status::InvalidParam)), "null");
        let unsupported = Err(Status::Unsupported);
        assert_eq!(copied(host, host + 50, 50), ([0; 3], unsupported), "host to host");
        let (half, mib) = (first + (2 << 20), 1 << 20);
        assert_eq!(copied(half, first, mib), ([1, mib, 0], Ok(())), "on a card");
        assert_eq!(
            copied(second, first, mib),
            ([1, mib, mib], Ok(())),
            "between cards"
        );
        assert_eq!(moved(half, first, mib), ([1, mib, 0], Ok(())), "apart");
        assert_eq!(
            moved(first + 128, first, mib),
            ([1, mib, mib], Ok(())),
            "overlapping"
        );
        assert_eq!(moved(first, first, mib), ([0; 3], Ok(())), "onto itself");
        for base in [first, second] {
            memory::free(base).expect("freed");
        }
    }

    #[test]
    fn long_copy_of_pinned_memory_is_not_staged() {
        let _alone = stub::install();
        let len = 1 << 20;
        let base = memory::alloc(&cards()[0], len).expect("memory").0;
        let bytes = vec![7_u8; len as usize];
        let host = bytes.as_ptr() as u64;
        let handle = handles::add(handles::Memory::Registered(host, len));
        // SAFETY: `host` has `len` bytes, which only these calls access.
        let copied = |dst, len| added(|| unsafe { registered(dst, host, len, handle) });
        assert_eq!(copied(base, len), ([1, len, 0], Ok(())), "pinned");
        assert_eq!(copied(base, 8), ([1, 8, 8], Ok(())), "short");
        assert_eq!(copied(base, 0), ([0; 3], Ok(())), "no bytes");
        assert!(handles::remove(handle, |_| true).is_ok(), "live");
        memory::free(base).expect("freed");
    }
}
