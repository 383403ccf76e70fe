//! vfork(2) and clone(2), whose children share the memory, and with it the state of the thread.

#![allow(
    unsafe_code,
    reason = "replaces functions of libc, one of which returns twice"
)]

use std::ffi::{c_int, c_void};

use gaudi_ring::{Child, Session};
use nix::libc;

use crate::author::with;
use crate::next::{Next, call_next, errno, set_errno};

static VFORK: Next = Next::new(c"vfork");
static CLONE: Next = Next::new(c"clone");

/// Resolves both functions.
pub(crate) fn resolve() {
    VFORK.resolve();
    CLONE.resolve();
}

/// Prepares the thread's state for a child that shares it.
fn share(child: Child) {
    if let Some(session) = Session::get() {
        let saved = errno();
        with(session, |_, _| ());
        session.share(child);
        set_errno(saved);
    }
}

/// Returns the address of libc's vfork(3).
#[cfg(all(naked, any(target_arch = "x86_64", target_arch = "aarch64")))]
extern "C" fn before_vfork() -> *mut c_void {
    share(Child::Waited);
    VFORK.get()
}

/// vfork(2) of libc. The child returns on the parent's stack, so no frame of this function can be
/// on it: it jumps.
///
/// # Safety
/// As vfork(2).
#[cfg(all(naked, target_arch = "x86_64"))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> c_int {
    std::arch::naked_asm!(
        "endbr64",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "jmp rax",
        before = sym before_vfork,
    )
}

/// vfork(2) of libc, as above.
///
/// # Safety
/// As vfork(2).
#[cfg(all(naked, target_arch = "aarch64"))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> c_int {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, -16]!",
        "bl {before}",
        "ldp x29, x30, [sp], 16",
        "mov x16, x0",
        "br x16",
        before = sym before_vfork,
    )
}

/// clone(2) of libc. The last three arguments are optional; this function passes on whatever is in
/// their places.
///
/// # Safety
/// As clone(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn clone(
    function: *mut c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    if flags & libc::CLONE_VM != 0 && flags & libc::CLONE_SETTLS == 0 {
        share(match flags & libc::CLONE_FILES {
            0 => Child::Concurrent,
            _ => Child::SameFiles,
        });
    }
    call_next!(
        CLONE,
        fn(*mut c_void, *mut c_void, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_void) -> c_int,
        function,
        stack,
        flags,
        argument,
        parent_tid,
        tls,
        child_tid
    )
}
