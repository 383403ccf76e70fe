//! The boundary of a C function: its failure value, errno, panics, and thread cancellation.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use gaudi_sys::Errno;
use gaudi_sys::cancel::Uncancelled;

/// Runs the body of a C function. On failure sets errno and returns `failure(errno)`.
#[inline]
pub(crate) fn guarded<T>(failure: impl FnOnce(Errno) -> T, body: impl FnOnce() -> Result<T, Errno>) -> T {
    // A panic leaves no inconsistent state: the crate's locks recover from poison.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => fail(failure, errno),
        Err(panic) => {
            // Dropping the payload may panic again.
            std::mem::forget(panic);
            fail(failure, Errno::EIO)
        }
    }
}

/// As [`guarded`], for a body with cancellation points: functions such as open(2) and write(2), in
/// which glibc unwinds the stack of a thread that pthread_cancel(3) has cancelled.
pub(crate) fn uncancelled<T>(failure: impl FnOnce(Errno) -> T, body: impl FnOnce() -> Result<T, Errno>) -> T {
    let _uncancelled = Uncancelled::begin();
    guarded(failure, body)
}

/// Not inlined, and does not unwind: a caller has nothing left to do, and keeps nothing for it.
#[cold]
#[inline(never)]
extern "C" fn fail<T>(failure: impl FnOnce(Errno) -> T, errno: Errno) -> T {
    // Set errno last, because any other call may change it.
    let value = failure(errno);
    errno.set();
    value
}

/// Returns `-errno`.
pub(crate) fn negative_errno(errno: Errno) -> c_int {
    -(errno as c_int)
}

/// Returns `-1`.
pub(crate) fn minus_one(_: Errno) -> c_int {
    -1
}

/// Returns 0, false or `()`. Only errno reports the cause.
pub(crate) fn nothing<T: Default>(_: Errno) -> T {
    T::default()
}

/// Returns NULL.
pub(crate) fn null<T>(_: Errno) -> *mut T {
    null_mut()
}

/// Declares C functions. `as F` names the function of [`guard`](crate::guard) that computes the
/// failure value. In the body, pointer arguments have the type [`Pointer`](crate::pointer::Pointer)
/// or [`Source`](crate::pointer::Source).
///
/// `uncancelled:` before the functions: their bodies have cancellation points.
///
/// `via SLOT of ORIGINAL`: a profiler can replace the function. ORIGINAL contains the body and does
/// not call a profiler. `after F` calls F before the profiler is looked up.
macro_rules! exports {
    (uncancelled: $($functions:tt)*) => {
        exports! { [uncancelled] $($functions)* }
    };
    ([$guard:ident]) => {};
    (
        [$guard:ident]
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $value:ty)? as $failure:ident $body:block
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// - A pointer argument is null or valid for the function's reads and writes.
        #[expect(unsafe_code, reason = "a function of the C ABI, with a fixed name and C's pointers")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $value)? {
            $(
                // SAFETY: guaranteed by the caller.
                let $arg = unsafe { $crate::pointer::Argument::received($arg) };
            )*
            $crate::guard::$guard($crate::guard::$failure, move || $body)
        }

        exports! { [$guard] $($rest)* }
    };
    (
        [$guard:ident]
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $value:ty)? as $failure:ident
            via $slot:ident of $original:ident $(after $before:path)? $body:block
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// - A pointer argument is null or valid for the function's reads and writes.
        #[expect(unsafe_code, reason = "a function of the C ABI, with a fixed name and C's pointers")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $value)? {
            $($before();)?
            if let Some(hook) = $crate::shim_table::hook!($slot) {
                // SAFETY: the profiler's function has the slot's type; the caller guarantees the
                // arguments.
                return unsafe { hook($($arg),*) };
            }
            // SAFETY: guaranteed by the caller.
            unsafe { $original($($arg),*) }
        }

        /// The function, bypassing the profiler.
        ///
        /// # Safety
        /// As the exported function.
        #[expect(unsafe_code, reason = "a profiler calls it from C")]
        pub(crate) unsafe extern "C" fn $original($($arg: $type),*) $(-> $value)? {
            $(
                // SAFETY: guaranteed by the caller.
                let $arg = unsafe { $crate::pointer::Argument::received($arg) };
            )*
            $crate::guard::$guard($crate::guard::$failure, move || $body)
        }

        exports! { [$guard] $($rest)* }
    };
    ($($functions:tt)*) => {
        exports! { [guarded] $($functions)* }
    };
}
