//! Calls that use an open device without holding a handle of it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::shared::lock;

/// Counts running calls. Blocks new ones while the device closes: otherwise a thread that calls
/// repeatedly would keep the device open.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    /// Closes that wait for the running calls to end.
    closing: usize,
    /// Calls that wait for a close to end.
    waiting: usize,
}

/// A running call.
pub(crate) struct Call<'a>(&'a Calls);

/// No call begins while it lives.
pub(crate) struct Closing<'a>(&'a Calls);

impl Calls {
    /// Begins a call. Waits while the device closes.
    pub(crate) fn begin(&self) -> Call<'_> {
        let mut state = lock(&self.state);
        state.waiting += 1;
        let waited = self.changed.wait_while(state, |state| state.closing > 0);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state.running += 1;
        Call(self)
    }

    /// Blocks new calls, and waits for the running ones until `end`.
    pub(crate) fn close(&self, end: Instant) -> Closing<'_> {
        let mut state = lock(&self.state);
        state.closing += 1;
        let left = end.saturating_duration_since(Instant::now());
        let waited = self
            .changed
            .wait_timeout_while(state, left, |state| state.running > 0);
        drop(waited);
        Closing(self)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.running -= 1;
        let is_awaited = state.closing > 0;
        drop(state);
        // A wake-up is a system call, and in most calls no close waits.
        if is_awaited {
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.closing -= 1;
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.0.changed.notify_all();
        }
    }
}
