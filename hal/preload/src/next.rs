//! The functions that this library's functions hide (dlsym(3), `RTLD_NEXT`).

#![allow(unsafe_code, reason = "the dynamic loader returns addresses of functions")]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use nix::libc;

/// The next function of a name. The constructor resolves each, because dlsym(3) takes locks.
#[derive(Debug)]
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Returns the function's address; null if no library has it.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.resolve() } else { found }
    }

    #[cold]
    pub(crate) fn resolve(&self) -> *mut c_void {
        // SAFETY: the name is terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the next function of a name. Fails with ENOSYS if there is none.
macro_rules! call_next {
    ($next:expr, fn($($kind:ty),*) -> $result:ty, $($argument:expr),*) => {{
        let address = $next.get();
        if address.is_null() {
            crate::next::set_errno(nix::libc::ENOSYS);
            -1 as $result
        } else {
            type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
            // SAFETY: the function has this name, and therefore this signature.
            let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(address) };
            // SAFETY: the program passed these arguments to the function of this name.
            unsafe { function($($argument),*) }
        }
    }};
}
pub(crate) use call_next;

pub(crate) fn errno() -> i32 {
    nix::errno::Errno::last_raw()
}

pub(crate) fn set_errno(value: i32) {
    nix::errno::Errno::set_raw(value);
}

/// Returns a call's result as the kernel does: -errno instead of -1.
pub(crate) fn kernel_result(result: i64) -> i64 {
    if result == -1 { -i64::from(errno()) } else { result }
}
