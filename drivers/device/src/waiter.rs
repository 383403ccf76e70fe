//! The one thread that turns completions into readable descriptors.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use gaudi_seam::{Errno, Error, Result};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::completion::Completion;
use crate::context::{Context, lock};
use crate::lane::Lane;

/// How long the thread waits for the oldest before it looks at the others.
const TURN: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub(crate) struct Waiter {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: Vec<(Completion, Signal)>,
    running: bool,
    stop: bool,
}

/// What the thread signals when a completion has ended.
#[derive(Debug)]
enum Signal {
    Event(EventFd),
    #[cfg(feature = "async")]
    Task(crate::future::Task),
}

impl Signal {
    fn send(&self) {
        match self {
            // It is only ever written once, so it has room.
            Self::Event(event) => {
                if let Err(errno) = event.write(1) {
                    tracing::error!("writing an eventfd: {errno}");
                }
            }
            #[cfg(feature = "async")]
            Self::Task(task) => task.wake(),
        }
    }
}

/// Wakes `task` when `completion` has ended.
#[cfg(feature = "async")]
pub(crate) fn wake(completion: &Completion, context: &Arc<Context>, task: crate::future::Task) -> Result<()> {
    context.here("wake a task")?;
    context.waiter.add(completion.clone(), Signal::Task(task))
}

/// An eventfd that is written when `completion` has ended.
pub(crate) fn event_fd(completion: &Completion, context: Option<&Arc<Context>>) -> Result<OwnedFd> {
    const OP: &str = "eventfd";
    if let Some(context) = context {
        context.here(OP)?;
    }
    let errno = |errno: Errno| Error::from_errno(OP, errno);
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(errno)?;
    let theirs = event
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| errno(gaudi_sys::fd::errno_of(error)))?;
    let signal = Signal::Event(event);
    match context {
        Some(context) if !has_ended(completion) => context.waiter.add(completion.clone(), signal)?,
        _ => signal.send(),
    }
    Ok(theirs)
}

/// Success and failure alike: the descriptor's owner asks which.
fn has_ended(completion: &Completion) -> bool {
    !matches!(completion.poll(), Ok(false))
}

/// Drops a lane in a thread of its own: the drop waits for submissions in flight, up to
/// `Options::patience`, and other descriptors must be signalled meanwhile.
fn drop_elsewhere(lane: Lane) {
    let spawned = thread::Builder::new()
        .name("gaudi-drain".into())
        .spawn(move || drop(lane));
    if let Err(error) = spawned {
        // The lane is dropped: this thread waited.
        tracing::warn!("no thread to drop a queue in: {error}");
    }
}

impl Waiter {
    fn add(self: &Arc<Self>, completion: Completion, signal: Signal) -> Result<()> {
        let mut state = lock(&self.state);
        if !state.running {
            let waiter = Arc::clone(self);
            thread::Builder::new()
                .name("gaudi-waiter".into())
                .spawn(move || waiter.run())
                .map_err(|error| Error::from_errno("clone", gaudi_sys::fd::errno_of(error)))?;
            state.running = true;
        }
        state.pending.push((completion, signal));
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// The device closes: nothing is outstanding any more, because what is outstanding holds the device.
    pub(crate) fn stop(&self) {
        lock(&self.state).stop = true;
        self.wake.notify_one();
    }

    pub(crate) fn is_running(&self) -> bool {
        lock(&self.state).running
    }

    fn run(&self) {
        loop {
            let oldest = {
                let state = lock(&self.state);
                let state = self
                    .wake
                    .wait_while(state, |state| state.pending.is_empty() && !state.stop)
                    .unwrap_or_else(PoisonError::into_inner);
                match state.pending.first() {
                    Some((completion, _)) => completion.clone(),
                    None => return,
                }
            };
            let _ = oldest.wait(TURN);
            drop(oldest);
            // Asking goes to the driver and may free memory: not under the lock. Who is added meanwhile comes behind.
            let all = std::mem::take(&mut lock(&self.state).pending);
            let (ended, mut pending): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|(completion, _)| has_ended(completion));
            let mut state = lock(&self.state);
            pending.append(&mut state.pending);
            state.pending = pending;
            drop(state);
            for (completion, signal) in ended {
                // The queue is released before the signal, so that a caller that wakes can close
                // everything.
                if let Some(lane) = completion.into_busy() {
                    drop_elsewhere(lane);
                }
                signal.send();
            }
        }
    }
}
