//! A C program's pointers, which are read and written here alone.

#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a C program's pointers are read and written here alone; the accesses of one block have one reason"
)]

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use gaudi_sys::Errno;

use crate::guard::Failure;

/// A structure of C's layout whose first field is its size, a `u32`. All its bytes are numbers or
/// arrays of them, so zeros and any other bytes are a value.
pub(crate) trait Sized32: Copy + Default {
    /// Its bytes in the first release that has it.
    const FIRST: usize;
}

/// The longest structure that a later release may have.
const MOST: usize = 4096;

/// Reads the size of a structure, at least `first`.
unsafe fn size_of_struct(pointer: *const u8, first: usize) -> Result<usize, Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid("a structure is NULL"));
    }
    // SAFETY: not null, so it has its size by the caller's promise.
    let size = unsafe { pointer.cast::<u32>().read_unaligned() } as usize;
    if size < first {
        let message = format!("a structure has size {size}; set it to sizeof, which is {first} or more");
        return Err(Failure::invalid(message));
    }
    if size > MOST {
        let message = format!("a structure has size {size}, more than {MOST}");
        return Err(Failure::new(Errno::E2BIG, message));
    }
    Ok(size)
}

/// Reads a structure of the program. Bytes that this release does not know must be 0; those that an
/// older program does not have are 0.
///
/// # Errors
/// `EINVAL`: NULL or short. `E2BIG`: too long, or an unknown field is set.
///
/// # Safety
/// It is null, or valid for reads of the bytes that its first field counts.
pub(crate) unsafe fn read<T: Sized32>(pointer: *const T) -> Result<T, Failure> {
    let known = size_of::<T>();
    // SAFETY: guaranteed by the caller.
    let size = unsafe { size_of_struct(pointer.cast(), T::FIRST) }?;
    for at in known..size {
        // SAFETY: inside the structure.
        if unsafe { pointer.cast::<u8>().add(at).read() } != 0 {
            let message = format!("byte {at} of a structure is set, and this library does not know it");
            return Err(Failure::new(Errno::E2BIG, message));
        }
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: not null and long enough; any bytes are a value.
    Ok(unsafe {
        std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast(), size.min(known));
        value.assume_init()
    })
}

/// Checks a structure that the function fills.
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// It is null, or valid for reads and writes of the bytes that its first field counts.
pub(crate) unsafe fn out<T: Sized32>(pointer: *mut T) -> Result<Out<T>, Failure> {
    // SAFETY: guaranteed by the caller.
    let size = unsafe { size_of_struct(pointer.cast_const().cast(), T::FIRST) }?;
    Ok(Out { pointer, size })
}

/// A place for a structure.
pub(crate) struct Out<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Sized32> Out<T> {
    /// Writes the fields that the program's structure has, and zeros for those that this release
    /// does not know. The size stays the program's.
    pub(crate) fn put(self, value: T) {
        let first = self.pointer.cast::<u8>();
        let known = size_of::<T>().min(self.size);
        let from = (&raw const value).cast::<u8>();
        // SAFETY: `out` checked the place by the caller's promise; the size is the first field.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(4), first.add(4), known - 4);
            first.add(known).write_bytes(0, self.size - known);
        }
    }
}

/// A place for a number.
pub(crate) struct Place<T>(*mut T);

/// Checks a place for a number.
///
/// # Errors
/// `EINVAL`: it is NULL.
///
/// # Safety
/// It is null, or valid for writes.
pub(crate) unsafe fn place<T: Copy>(pointer: *mut T) -> Result<Place<T>, Failure> {
    match pointer.is_null() {
        true => Err(Failure::invalid("the place of a result is NULL")),
        false => Ok(Place(pointer)),
    }
}

impl<T: Copy> Place<T> {
    pub(crate) fn put(self, value: T) {
        // SAFETY: `place` checked it by the caller's promise.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// Returns the text of a C string; `None` if it is NULL.
///
/// # Errors
/// `EINVAL`: it is not UTF-8.
///
/// # Safety
/// It is null, or a C string.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so a C string by the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Failure::invalid("a text is not UTF-8")),
    }
}

/// Copies bytes of the program.
///
/// # Errors
/// `EINVAL`: NULL, or more than `most`.
///
/// # Safety
/// It is null, or valid for reads of `len` bytes.
pub(crate) unsafe fn bytes(pointer: *const u8, len: u64, most: usize) -> Result<Vec<u8>, Failure> {
    if pointer.is_null() || len > most as u64 {
        let message = format!("{len} bytes at {pointer:p}, wanted at most {most}");
        return Err(Failure::invalid(message));
    }
    // SAFETY: not null, so valid by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len as usize) }.to_vec())
}

/// Writes bytes to a place of the program that has `room` bytes.
///
/// # Errors
/// `EINVAL`: NULL. `ENOSPC`: there are fewer.
///
/// # Safety
/// It is null, or valid for writes of `room` bytes.
pub(crate) unsafe fn fill(pointer: *mut u8, room: u64, bytes: &[u8]) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid("the place of a key is NULL"));
    }
    if room < bytes.len() as u64 {
        let message = format!("the place of a key has {room} bytes, wanted {}", bytes.len());
        return Err(Failure::new(Errno::ENOSPC, message));
    }
    // SAFETY: not null, so valid by the caller's promise; memory of this library is not the place.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer, bytes.len()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure that got `later` in its second release.
    #[repr(C)]
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    struct Grown {
        size: u32,
        old: u32,
        later: u64,
    }

    impl Sized32 for Grown {
        const FIRST: usize = 8;
    }

    fn errno<T>(answer: Result<T, Failure>) -> Option<Errno> {
        answer.err().map(|failure| failure.errno)
    }

    #[test]
    fn structure_of_another_release_is_read_and_written() {
        // A newer program's structure has 8 bytes more.
        for size in [8_u32, 16, 24] {
            let mut place = [size, 5, 6, 0, 0, 0, 9, 9];
            let pointer = place.as_mut_ptr().cast::<Grown>();
            // SAFETY: the place has the bytes.
            let seen = unsafe { read(pointer.cast_const()) }.expect("read");
            let later = if size > 8 { 6 } else { 0 };
            let old = 5;
            assert_eq!(seen, Grown { size, old, later });
            place[4..6].fill(7);
            // SAFETY: as above.
            let out = unsafe { out(place.as_mut_ptr().cast::<Grown>()) }.expect("a place");
            out.put(Grown {
                old: 1,
                later: 2,
                ..seen
            });
            let wanted = match size {
                8 => [8, 1, 6, 0, 7, 7, 9, 9],
                16 => [16, 1, 2, 0, 7, 7, 9, 9],
                _ => [24, 1, 2, 0, 0, 0, 9, 9],
            };
            assert_eq!(place, wanted, "nothing past the program's structure is written");
        }
    }

    #[test]
    fn short_long_and_unknown_structures_fail() {
        for (size, set, wanted) in [
            (7, 0, Errno::EINVAL),
            (4097, 0, Errno::E2BIG),
            (24, 1, Errno::E2BIG),
        ] {
            let place = [size, 0, 0, 0, 0, set];
            // SAFETY: the place has the bytes that are read.
            let answer = unsafe { read(place.as_ptr().cast::<Grown>()) };
            assert_eq!(errno(answer), Some(wanted), "size {size}");
        }
    }
}
