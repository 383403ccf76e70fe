//! [`Uncancelled`]: Rust code in a thread that a C program may cancel.

#![expect(unsafe_code, reason = "pthread_setcancelstate(3)")]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// Defers the cancellation of this thread by pthread_cancel(3) until the drop: the first
/// cancellation point after it ends the thread.
///
/// Many functions of libc are cancellation points, in which glibc unwinds the stack of a cancelled
/// thread. A Rust function that catches panics cannot be unwound so: the process would abort.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
    /// The state belongs to the thread.
    _thread: PhantomData<*const ()>,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const DISABLE: c_int = 1;

impl Uncancelled {
    /// Disables the cancellation of this thread.
    #[must_use]
    pub fn begin() -> Self {
        let mut before = DISABLE;
        // SAFETY: a valid state, and a place for the previous one. Cannot fail.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self {
            before,
            _thread: PhantomData,
        }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that the thread had; the previous one may be null.
        unsafe { pthread_setcancelstate(self.before, null_mut()) };
    }
}
