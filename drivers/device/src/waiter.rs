//! The thread that signals completions on eventfds: at most one for each open device.

use std::any::Any;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use gaudi_seam::{Errno, Error, Result};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::shared::lock;

/// How long the thread waits for the oldest before it polls the others.
const TURN: Duration = Duration::from_millis(2);

/// Work in flight. It holds the device open.
pub(crate) trait Pending: Send {
    /// Whether the work is done or has failed. Does not wait.
    fn has_ended(&self) -> bool;

    /// Waits until the work has ended or the time has passed.
    fn wait(&self, time: Duration);

    /// Drops the handle. Returns what must be dropped in another thread, because its drop waits for
    /// submissions in flight.
    fn into_slow_drop(self: Box<Self>) -> Option<Box<dyn Any + Send>>;
}

#[derive(Default)]
pub(crate) struct Waiter {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    added: Vec<Watched>,
    running: bool,
    stop: bool,
}

struct Watched {
    work: Box<dyn Pending>,
    signal: Box<dyn FnOnce() + Send>,
}

const OP: &str = "eventfd";

impl Waiter {
    /// Returns an eventfd that becomes readable when the work has ended.
    ///
    /// # Errors
    /// The error of `eventfd` or `clone`: no descriptor or thread is left.
    pub(crate) fn event_fd(self: &Arc<Self>, work: Box<dyn Pending>) -> Result<OwnedFd> {
        let (event, theirs) = pair()?;
        if work.has_ended() {
            signal(&event);
        } else {
            self.add(work, Box::new(move || signal(&event)))?;
        }
        Ok(theirs)
    }

    /// Calls `signal` in the thread when the work has ended.
    ///
    /// # Errors
    /// The error of `clone`: no thread is left.
    pub(crate) fn add(
        self: &Arc<Self>,
        work: Box<dyn Pending>,
        signal: Box<dyn FnOnce() + Send>,
    ) -> Result<()> {
        let mut state = lock(&self.state);
        if !state.running {
            let waiter = Arc::clone(self);
            thread::Builder::new()
                .name("gaudi-waiter".into())
                .spawn(move || waiter.run())
                .map_err(|error| Error::from_errno("clone", gaudi_sys::fd::errno_of(error)))?;
            state.running = true;
        }
        state.added.push(Watched { work, signal });
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Ends the thread. The device closes, so no work is pending: work holds the device open.
    pub(crate) fn stop(&self) {
        let mut state = lock(&self.state);
        state.stop = true;
        let is_running = state.running;
        drop(state);
        // Most devices have no thread, and then the drop makes no system call.
        if is_running {
            self.wake.notify_one();
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        lock(&self.state).running
    }

    fn run(&self) {
        let mut pending: Vec<Watched> = Vec::new();
        loop {
            let mut state = lock(&self.state);
            if pending.is_empty() {
                state = self
                    .wake
                    .wait_while(state, |state| state.added.is_empty() && !state.stop)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            pending.append(&mut state.added);
            // A poll calls the driver and may free memory: not under the lock.
            drop(state);
            let Some(oldest) = pending.first() else {
                return;
            };
            oldest.work.wait(TURN);
            let (ended, rest): (Vec<_>, Vec<_>) =
                pending.into_iter().partition(|watched| watched.work.has_ended());
            pending = rest;
            for Watched { work, signal } in ended {
                // The queue is released before the signal, so that a caller that wakes up can close
                // everything. Other descriptors must be signalled while its drop waits.
                if let Some(slow) = work.into_slow_drop() {
                    drop_in_thread(slow);
                }
                signal();
            }
        }
    }
}

/// Returns an eventfd that is readable already.
///
/// # Errors
/// The error of `eventfd`.
pub(crate) fn signalled_fd() -> Result<OwnedFd> {
    let (event, theirs) = pair()?;
    signal(&event);
    Ok(theirs)
}

/// One eventfd, for the thread and for the caller.
fn pair() -> Result<(EventFd, OwnedFd)> {
    let errno = |errno: Errno| Error::from_errno(OP, errno);
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(errno)?;
    let theirs = event
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| errno(gaudi_sys::fd::errno_of(error)))?;
    Ok((event, theirs))
}

/// The eventfd is written once, so it has room.
fn signal(event: &EventFd) {
    if let Err(errno) = event.write(1) {
        tracing::error!("writing an eventfd: {errno}");
    }
}

fn drop_in_thread(slow: Box<dyn Any + Send>) {
    let spawned = thread::Builder::new()
        .name("gaudi-drain".into())
        .spawn(move || drop(slow));
    if let Err(error) = spawned {
        // The failed spawn dropped it, and this thread waited.
        tracing::warn!("no thread to drop a queue in: {error}");
    }
}
