//! Interrupts the tracing thread in waitpid(2), which has no timeout: a real-time signal with a
//! handler that does nothing.

#![expect(unsafe_code, reason = "nix has neither real-time signals nor tgkill(2)")]

use std::sync::{Mutex, OnceLock, PoisonError};

use nix::errno::Errno;
use nix::libc;

/// The signal: programs count real-time signals from the lowest, so the second highest is free.
fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 1
}

extern "C" fn nothing(_: libc::c_int) {}

/// The thread that waits, if one does.
#[derive(Debug, Default)]
pub(crate) struct Waiter(Mutex<Option<libc::pid_t>>);

/// While it lives, the thread can be interrupted.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Waiter);

/// Installs the handler, for as long as the process lives: other tracers may use it.
fn install() -> Result<(), Errno> {
    // SAFETY: a sigaction of zeros is the default action without flags, and so without SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int) = nothing;
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    // SAFETY: the struct outlives the call, and the handler is async-signal-safe.
    Errno::result(unsafe { libc::sigaction(signal(), &raw const action, std::ptr::null_mut()) }).map(drop)
}

impl Waiter {
    /// The calling thread is about to wait.
    pub(crate) fn enter(&self) -> Result<Waiting<'_>, Errno> {
        static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
        (*INSTALLED.get_or_init(install))?;
        let tid = nix::unistd::gettid().as_raw();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(tid);
        Ok(Waiting(self))
    }

    /// Interrupts the thread that waits. Returns whether there was one.
    pub(crate) fn interrupt(&self) -> bool {
        // The lock is held for the call, so that the thread exists and the handler is there.
        let waiter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tid) = *waiter else {
            return false;
        };
        let pid = nix::unistd::getpid().as_raw();
        // SAFETY: takes numbers; the handler touches nothing.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal()) };
        true
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
