//! Arguments of C functions: numbers as they are, pointers as [`Pointer`] and [`Source`].

#![expect(
    unsafe_code,
    reason = "a C program's pointers are read and written here alone"
)]

use std::ffi::{c_char, c_int, c_void};

use gaudi_sys::Errno;

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
    /// `EINVAL`: the pointer is null.
    #[inline]
    pub(crate) fn read(self) -> Result<T, Errno> {
        self.check()?;
        // SAFETY: not null, so valid by the type's promise.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// # Errors
    /// `EINVAL`: the pointer is null.
    #[inline]
    pub(crate) fn write(self, value: T) -> Result<(), Errno> {
        self.check()?;
        // SAFETY: not null, so valid by the type's promise.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the elements of an array. The caller promised at least as many.
    ///
    /// # Errors
    /// `EINVAL`: the pointer is null.
    pub(crate) fn write_all(self, values: &[T]) -> Result<(), Errno> {
        self.check()?;
        // SAFETY: not null, so valid by the type's promise; a C array of these elements. Bytes,
        // because the array may be misaligned.
        unsafe {
            std::ptr::copy_nonoverlapping(
                values.as_ptr().cast::<u8>(),
                self.0.cast::<u8>(),
                size_of_val(values),
            );
        }
        Ok(())
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
        Self(unsafe { nix::libc::calloc(1, size) })
    }

    /// Frees memory of the C allocator.
    pub(crate) fn free(self) {
        // SAFETY: null, or of the C allocator by the promise of `hlthunk_free`'s caller.
        unsafe { nix::libc::free(self.0) };
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
    /// `EINVAL`: the pointer is null.
    pub(crate) fn read(&self) -> Result<T, Errno> {
        if self.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not null, so valid by the type's promise.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl Source<c_char> {
    /// The first `N` characters of a C string, fewer if it ends before; reads no byte behind them.
    ///
    /// # Errors
    /// `EINVAL`: the pointer is null.
    pub(crate) fn text<const N: usize>(&self) -> Result<Vec<u8>, Errno> {
        if self.is_null() {
            return Err(Errno::EINVAL);
        }
        let mut text = Vec::with_capacity(N);
        while text.len() < N {
            // SAFETY: not null, so a C string by the type's promise, which no byte before ended.
            let at = unsafe { self.0.add(text.len()) };
            // SAFETY: a byte of the string, or its end.
            let byte = unsafe { at.read() };
            if byte == 0 {
                break;
            }
            text.push(byte as u8);
        }
        Ok(text)
    }
}
