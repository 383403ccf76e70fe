//! Interrupts the tracing thread in waitpid(2), which has no timeout, with a real-time signal whose
//! handler does nothing.

#![expect(unsafe_code, reason = "nix has neither real-time signals nor tgkill(2)")]

use std::sync::{Mutex, OnceLock, PoisonError};

use nix::errno::Errno;
use nix::libc;

/// The second highest real-time signal: programs usually allocate real-time signals from the
/// lowest.
fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 1
}

extern "C" fn nothing(_: libc::c_int) {}

/// The thread id of the waiting thread, if any.
#[derive(Debug, Default)]
pub(crate) struct Waiter(Mutex<Option<libc::pid_t>>);

/// Guard: the thread can be interrupted while this value exists.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Waiter);

/// Installs the handler. It stays installed, because other tracers of this process may use it.
fn install() -> Result<(), Errno> {
    // SAFETY: a zeroed sigaction is the default action without flags, so SA_RESTART is not set.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int) = nothing;
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    // SAFETY: the struct outlives the call, and the handler is async-signal-safe.
    Errno::result(unsafe { libc::sigaction(signal(), &raw const action, std::ptr::null_mut()) }).map(drop)
}

impl Waiter {
    /// Marks the calling thread as waiting.
    pub(crate) fn enter(&self) -> Result<Waiting<'_>, Errno> {
        static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
        (*INSTALLED.get_or_init(install))?;
        let tid = nix::unistd::gettid().as_raw();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(tid);
        Ok(Waiting(self))
    }

    /// Interrupts the waiting thread. Returns false if no thread is waiting.
    pub(crate) fn interrupt(&self) -> bool {
        // The lock is held during the call, so the thread and the handler exist.
        let waiter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tid) = *waiter else {
            return false;
        };
        let pid = nix::unistd::getpid().as_raw();
        // SAFETY: all arguments are integers; the handler accesses no memory.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal()) };
        true
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
