//! Arguments of C functions: numbers as they are, pointers as [`Pointer`] and [`Source`].
//!
//! A null pointer is `EINVAL`. In a process with virtual nodes the kernel copies what a pointer
//! leads to, so an invalid address is `EFAULT`; otherwise it is a fault, as in any C library,
//! because the copy is a system call.

#![expect(
    unsafe_code,
    reason = "a C program's pointers are read and written here alone"
)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

use gaudi_sys::Errno;
use nix::libc;

use crate::device::has_virtual_nodes;
use crate::types::{HlthunkPageFaultInfo, HlthunkUserMapping, HlthunkWaitForSignalData, HlthunkWaitIn};

/// The type that an argument has inside the library.
pub(crate) trait Argument {
    type Inner;

    /// # Safety
    /// - A pointer, and each pointer in the struct behind it, is null, or valid for reads
    ///   and writes of its type during the C call.
    unsafe fn received(self) -> Self::Inner;
}

/// A `T *` of a C program, null or valid during the call. It may be misaligned.
pub(crate) struct Pointer<T>(*mut T);

/// A `const T *` of a C program, null or valid during the call. It may be misaligned.
pub(crate) struct Source<T>(*const T);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

impl<T> Argument for *mut T {
    type Inner = Pointer<T>;

    #[inline]
    unsafe fn received(self) -> Pointer<T> {
        Pointer(self)
    }
}

impl<T> Argument for *const T {
    type Inner = Source<T>;

    #[inline]
    unsafe fn received(self) -> Source<T> {
        Source(self)
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Argument for $type {
            type Inner = Self;

            #[inline]
            unsafe fn received(self) -> Self {
                self
            }
        }
    )*};
}

numbers!(c_int, u32, u64, usize, bool);
numbers!(
    crate::types::HlthunkDeviceName,
    crate::types::HlthunkEventRecordId
);

impl<T> Pointer<T> {
    /// # Errors
    /// `EINVAL`: the pointer is null.
    #[inline]
    pub(crate) fn check(self) -> Result<Self, Errno> {
        if self.is_null() {
            Err(Errno::EINVAL)
        } else {
            Ok(self)
        }
    }

    #[inline]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address, for the kernel.
    #[inline]
    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl<T: Copy> Pointer<T> {
    /// # Errors
    /// - `EINVAL`: the pointer is null.
    /// - `EFAULT`: see the module.
    #[inline]
    pub(crate) fn read(self) -> Result<T, Errno> {
        Source(self.0.cast_const()).read()
    }

    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub(crate) fn write(self, value: T) -> Result<(), Errno> {
        self.check()?;
        if has_virtual_nodes() {
            // An array of its own: elsewhere the value stays in registers.
            return self.write_by_kernel(&[value]);
        }
        // SAFETY: not null, so valid by the type's promise.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Lets `fill` write a large value to its place. A value of [`write`](Self::write) is copied
    /// once more, because the compiler cannot know that the program's memory is not the source.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn write_by(self, fill: impl FnOnce(&mut MaybeUninit<T>) -> &mut T) -> Result<(), Errno> {
        self.check()?;
        if has_virtual_nodes() || !self.0.is_aligned() {
            return self.write(*fill(&mut MaybeUninit::uninit()));
        }
        // SAFETY: not null, so valid by the type's promise; aligned.
        fill(unsafe { &mut *self.0.cast::<MaybeUninit<T>>() });
        Ok(())
    }

    /// Writes the elements of an array. The caller promised at least as many.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub(crate) fn write_all(self, values: &[T]) -> Result<(), Errno> {
        self.check()?;
        if has_virtual_nodes() {
            return self.write_by_kernel(values);
        }
        let (from, to) = (values.as_ptr().cast::<u8>(), self.0.cast::<u8>());
        // SAFETY: not null, so valid by the type's promise; a C array of these elements. Bytes,
        // because the array may be misaligned.
        unsafe { std::ptr::copy_nonoverlapping(from, to, size_of_val(values)) };
        Ok(())
    }

    /// Not inlined: in a process without virtual nodes it would be most of each function.
    #[cold]
    #[inline(never)]
    fn write_by_kernel(self, values: &[T]) -> Result<(), Errno> {
        let from = values.as_ptr().cast_mut().cast::<u8>();
        // The kernel reads `from` only.
        copied(Direction::Out, from, self.0.cast::<u8>(), size_of_val(values))
    }
}

impl Pointer<c_void> {
    /// The same address, of another type.
    pub(crate) fn cast<T>(self) -> Pointer<T> {
        Pointer(self.0.cast())
    }

    pub(crate) fn into_raw(self) -> *mut c_void {
        self.0
    }

    /// Zeroed memory of calloc(3), or null.
    pub(crate) fn allocated(size: usize) -> Self {
        // SAFETY: calloc takes numbers.
        Self(unsafe { libc::calloc(1, size) })
    }

    /// Frees memory of the C allocator.
    pub(crate) fn free(self) {
        // SAFETY: null, or of the C allocator by the promise of `hlthunk_free`'s caller.
        unsafe { libc::free(self.0) };
    }
}

impl HlthunkWaitIn {
    /// Where the signals are: the declared element type is not the real one.
    #[inline]
    pub(crate) fn signals(&self) -> Pointer<HlthunkWaitForSignalData> {
        Pointer(self.hlthunk_wait_for_signal.cast())
    }
}

impl HlthunkPageFaultInfo {
    /// Where the caller wants the mappings.
    pub(crate) fn mappings(&self) -> Pointer<HlthunkUserMapping> {
        Pointer(self.mappings_buf)
    }
}

impl<T> Source<T> {
    #[inline]
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The address, for the kernel. `EINVAL` if it is null.
    #[inline]
    pub(crate) fn checked_address(&self) -> Result<u64, Errno> {
        if self.is_null() {
            return Err(Errno::EINVAL);
        }
        Ok(self.0.expose_provenance() as u64)
    }
}

impl<T: Copy> Source<T> {
    /// # Errors
    /// - `EINVAL`: the pointer is null.
    /// - `EFAULT`: see the module.
    #[inline]
    pub(crate) fn read(&self) -> Result<T, Errno> {
        if self.is_null() {
            return Err(Errno::EINVAL);
        }
        // Not two returns: the value would be built in memory, where the kernel's copy is.
        let value = if has_virtual_nodes() {
            self.read_by_kernel()?
        } else {
            // SAFETY: not null, so valid by the type's promise.
            unsafe { self.0.read_unaligned() }
        };
        Ok(value)
    }

    /// Not inlined, as `write_by_kernel`.
    #[cold]
    #[inline(never)]
    fn read_by_kernel(&self) -> Result<T, Errno> {
        let mut value = MaybeUninit::<T>::uninit();
        let to = value.as_mut_ptr().cast::<u8>();
        // The kernel writes `to` only.
        copied(Direction::In, to, self.0.cast_mut().cast::<u8>(), size_of::<T>())?;
        // SAFETY: filled with the bytes of the caller's value.
        Ok(unsafe { value.assume_init() })
    }
}

/// From which side bytes are copied.
enum Direction {
    /// From the program.
    In,
    /// To the program.
    Out,
}

/// Copies between memory of the library and a program's address (process_vm_readv(2)).
///
/// # Errors
/// `EFAULT`: the address is not of this process, or cannot be accessed so.
#[cold]
#[inline(never)]
fn copied(direction: Direction, ours: *mut u8, theirs: *mut u8, len: usize) -> Result<(), Errno> {
    let range = |base: *mut u8| libc::iovec {
        iov_base: base.cast(),
        iov_len: len,
    };
    let (local, remote) = (range(ours), range(theirs));
    let call = match direction {
        Direction::In => libc::process_vm_readv,
        Direction::Out => libc::process_vm_writev,
    };
    let process = nix::unistd::getpid().as_raw();
    // SAFETY: `ours` is memory of the callers here; the kernel checks `theirs`.
    let done = unsafe { call(process, &raw const local, 1, &raw const remote, 1, 0) };
    match usize::try_from(done) {
        Ok(done) if done == len => Ok(()),
        Ok(_) => Err(Errno::EFAULT),
        Err(_) => Err(Errno::last()),
    }
}

impl Source<c_char> {
    /// The first `N` characters of a C string, fewer if it ends before; reads no byte behind them.
    ///
    /// # Errors
    /// - `EINVAL`: the pointer is null.
    /// - `EFAULT`: see the module.
    pub(crate) fn text<const N: usize>(&self) -> Result<Vec<u8>, Errno> {
        if self.is_null() {
            return Err(Errno::EINVAL);
        }
        let mut text = Vec::with_capacity(N);
        while text.len() < N {
            let byte = Source(self.0.wrapping_add(text.len())).read()?;
            if byte == 0 {
                break;
            }
            text.push(byte as u8);
        }
        Ok(text)
    }
}
