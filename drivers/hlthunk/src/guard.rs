//! The boundary of a C function: its failure value, errno, and the end of every panic.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gaudi_sys::Errno;

/// Runs the body of a C function. On failure sets errno and returns what `failure` makes of it.
#[inline]
pub(crate) fn guarded<T>(failure: impl FnOnce(Errno) -> T, body: impl FnOnce() -> Result<T, Errno>) -> T {
    // No state is left half changed: the crate's locks recover from poison.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => fail(failure, errno),
        Err(panic) => {
            // Dropping a payload may panic again.
            std::mem::forget(panic);
            fail(failure, Errno::EIO)
        }
    }
}

#[cold]
fn fail<T>(failure: impl FnOnce(Errno) -> T, errno: Errno) -> T {
    // Last, because any call before may change errno.
    let value = failure(errno);
    errno.set();
    value
}

/// `-errno`.
pub(crate) fn negative_errno(errno: Errno) -> c_int {
    -(errno as c_int)
}

/// `-1`.
pub(crate) fn minus_one(_: Errno) -> c_int {
    -1
}

/// 0, false or nothing at all; the cause is in errno only.
pub(crate) fn nothing<T: Default>(_: Errno) -> T {
    T::default()
}

/// NULL.
pub(crate) fn null<T>(_: Errno) -> *mut T {
    std::ptr::null_mut()
}

/// Declares C functions. `as F` names the function of [`guard`](crate::guard) that makes the
/// failure value. In the body a pointer argument is a [`Pointer`](crate::pointer::Pointer) or a
/// [`Source`](crate::pointer::Source).
///
/// `via SLOT of ORIGINAL`: a profiler may replace the function. It gets the address of ORIGINAL,
/// which has the body and calls no profiler. `after F` calls F before the profiler is looked up.
macro_rules! exports {
    () => {};
    (
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $value:ty)? as $failure:ident $body:block
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// - A pointer argument is null or valid for what the function reads and writes there.
        #[expect(unsafe_code, reason = "a function of the C ABI, with a fixed name and C's pointers")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $value)? {
            $(
                // SAFETY: the caller's promise.
                let $arg = unsafe { $crate::pointer::Argument::received($arg) };
            )*
            $crate::guard::guarded($crate::guard::$failure, move || $body)
        }

        exports! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $value:ty)? as $failure:ident
            via $slot:ident of $original:ident $(after $before:path)? $body:block
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// - A pointer argument is null or valid for what the function reads and writes there.
        #[expect(unsafe_code, reason = "a function of the C ABI, with a fixed name and C's pointers")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $value)? {
            $($before();)?
            if let Some(hook) = $crate::shim_table::hook!($slot) {
                // SAFETY: the profiler's function has the slot's type; the caller's promise.
                return unsafe { hook($($arg),*) };
            }
            // SAFETY: the caller's promise.
            unsafe { $original($($arg),*) }
        }

        /// The function without a profiler.
        ///
        /// # Safety
        /// As of the exported function.
        #[expect(unsafe_code, reason = "a profiler calls it from C")]
        pub(crate) unsafe extern "C" fn $original($($arg: $type),*) $(-> $value)? {
            $(
                // SAFETY: the caller's promise.
                let $arg = unsafe { $crate::pointer::Argument::received($arg) };
            )*
            $crate::guard::guarded($crate::guard::$failure, move || $body)
        }

        exports! { $($rest)* }
    };
}
