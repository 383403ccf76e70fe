//! [`SoftCq`]: a bounded ring of completions and an eventfd.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::lock;
use gaudi_verbs::WorkCompletion;
use gaudi_verbs::provider::CompletionQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// A completion queue of a [`SoftNic`](crate::SoftNic).
pub(crate) struct SoftCq {
    /// The number that events carry.
    pub(crate) handle: u32,
    ring: Mutex<Ring>,
    event: EventFd,
}

struct Ring {
    entries: VecDeque<WorkCompletion>,
    depth: usize,
    /// Completions that signal the eventfd, if any do.
    armed: Option<Armed>,
    overrun: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    Any,
    Solicited,
}

impl SoftCq {
    pub(crate) fn new(handle: u32, depth: usize) -> Result<Self> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| Error::from_errno("ibv_create_comp_channel", errno))?;
        let ring = Ring {
            entries: VecDeque::with_capacity(depth),
            depth,
            armed: None,
            overrun: false,
        };
        Ok(Self {
            handle,
            ring: Mutex::new(ring),
            event,
        })
    }

    /// Adds a completion. Returns false if the queue is full: the completion is lost, and the queue
    /// is broken.
    pub(crate) fn push(&self, completion: WorkCompletion, solicited: bool) -> bool {
        let mut ring = lock(&self.ring);
        if ring.overrun || ring.entries.len() >= ring.depth {
            ring.overrun = true;
        } else {
            ring.entries.push_back(completion);
        }
        // An error signals like a solicited completion.
        let wakes = match ring.armed {
            Some(Armed::Any) => true,
            Some(Armed::Solicited) => solicited || !completion.is_success() || ring.overrun,
            None => false,
        };
        if wakes {
            ring.armed = None;
            // Cannot fail: each request to be notified adds 1 to the counter.
            let _ = self.event.write(1);
        }
        !ring.overrun
    }
}

impl CompletionQueue for SoftCq {
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize> {
        let mut ring = lock(&self.ring);
        let count = into.len().min(ring.entries.len());
        for (place, completion) in into.iter_mut().zip(ring.entries.drain(..count)) {
            *place = completion;
        }
        if count == 0 && ring.overrun {
            return Err(Error::new(ErrorKind::Io, "ibv_poll_cq")
                .with_errno(Errno::EOVERFLOW)
                .because("more work completed than the queue has room for: completions are lost")
                .saw("an overrun", format!("at most {} at a time", ring.depth))
                .helped_by("make the queue as deep as all queues that complete in it together"));
        }
        Ok(count)
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        let mut ring = lock(&self.ring);
        // A later request does not narrow an earlier one.
        if !solicited_only {
            ring.armed = Some(Armed::Any);
        } else if ring.armed.is_none() {
            ring.armed = Some(Armed::Solicited);
        }
        if ring.overrun {
            // Fails only if the counter is full, and the descriptor is readable then.
            let _ = self.event.write(1);
        }
        Ok(())
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn ack_event(&self) -> Result<()> {
        match self.event.read() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(Error::from_errno("ibv_get_cq_event", errno)),
        }
    }
}

impl fmt::Debug for SoftCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = lock(&self.ring);
        write!(f, "SoftCq({} of {})", ring.entries.len(), ring.depth)
    }
}
