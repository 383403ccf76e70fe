//! [`Cq`]: a completion queue.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, Error, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::context::Context;
use crate::handle::CqHandle;
use crate::holders::{Hold, Holders};
use crate::provider::CompletionQueue;
use crate::wc::WorkCompletion;

/// A completion queue with a completion channel of its own. Clones share it; any thread may poll.
#[derive(Clone)]
pub struct Cq {
    inner: Arc<CqInner>,
}

struct CqInner {
    handle: CqHandle,
    live: bool,
    queue: Arc<dyn CompletionQueue>,
    depth: u32,
    holders: Arc<Holders>,
    _hold: Hold,
    context: Context,
}

impl Context {
    /// Creates a completion queue with room for `depth` completions.
    ///
    /// Work that completes while the queue is full is lost and the queue is broken: `depth` must
    /// cover all work that can be outstanding.
    ///
    /// # Errors
    /// `InvalidInput` if `depth` is 0 or exceeds the NIC's limit; the provider's errno.
    pub fn create_cq(&self, depth: u32) -> Result<Cq> {
        const OPERATION: &str = "ibv_create_cq";
        let limit = u64::from(self.attr().max_cqe);
        self.check_limit(
            OPERATION,
            "a completion queue cannot be so deep",
            depth.into(),
            limit,
        )?;
        let (handle, queue) = self.device(OPERATION)?.create_cq(depth)?;
        let inner = CqInner {
            handle,
            live: true,
            queue,
            depth,
            holders: Arc::default(),
            _hold: self.hold(format!("Cq({}, depth {depth})", handle.0)),
            context: self.clone(),
        };
        Ok(Cq {
            inner: Arc::new(inner),
        })
    }
}

impl Cq {
    /// Returns the provider's handle, which an [`AsyncEvent`](crate::AsyncEvent) carries.
    pub fn handle(&self) -> CqHandle {
        self.inner.handle
    }

    pub(crate) fn hold(&self, name: String) -> Hold {
        self.inner.holders.hold(name)
    }

    /// Returns the NIC.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Returns its capacity.
    pub fn depth(&self) -> u32 {
        self.inner.depth
    }

    /// Takes completions (`ibv_poll_cq`) and returns their number. Never blocks.
    ///
    /// # Errors
    /// `Io` (`EOVERFLOW`) if the queue has overflowed and all completions that it kept are polled.
    /// A NIC of libibverbs reports that only by the event `CQ_ERR`. Until a caller takes that
    /// ([`Context::get_async_event`]), the queue stays empty.
    pub fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize> {
        self.inner.context.check_process("ibv_poll_cq")?;
        self.inner.queue.poll(into)
    }

    /// Makes the next completion signal [`event_fd`](Self::event_fd) (`ibv_req_notify_cq`). Poll
    /// again afterwards: an earlier completion does not signal.
    ///
    /// # Errors
    /// The errno of `ibv_req_notify_cq`; `Forked` in a fork child.
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.inner.context.check_process("ibv_req_notify_cq")?;
        self.inner.queue.req_notify(solicited_only)
    }

    /// Returns a descriptor for poll(2) and epoll(7) that is readable while an event is pending.
    /// Call [`ack_event`](Self::ack_event) instead of reading it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.inner.queue.event_fd()
    }

    /// Takes the pending event (`ibv_get_cq_event`, `ibv_ack_cq_events`).
    ///
    /// # Errors
    /// The errno of `ibv_get_cq_event`; `Forked` in a fork child.
    pub fn ack_event(&self) -> Result<()> {
        self.inner.context.check_process("ibv_get_cq_event")?;
        self.inner.queue.ack_event()
    }

    /// Waits for at least one completion: polls, and sleeps on the event descriptor.
    ///
    /// Only one thread may wait for a queue: two would take each other's events.
    ///
    /// # Errors
    /// `TimedOut`; as [`poll`](Self::poll).
    pub fn wait(&self, into: &mut [WorkCompletion], timeout: Duration) -> Result<usize> {
        const OPERATION: &str = "completion queue wait";
        let deadline = Instant::now().checked_add(timeout);
        loop {
            match self.poll(into)? {
                0 => self.req_notify(false)?,
                count => return Ok(count),
            }
            // A completion before the request signals nothing.
            match self.poll(into)? {
                0 => {}
                count => return Ok(count),
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::timed_out(OPERATION));
            }
            let left = left.map_or(PollTimeout::NONE, |left| {
                // A time above the maximum only wakes early.
                PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
            });
            match poll(
                &mut [PollFd::new(self.event_fd().as_fd(), PollFlags::POLLIN)],
                left,
            ) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => self.ack_event()?,
                Err(errno) => return Err(Error::from_errno(OPERATION, errno)),
            }
        }
    }

    /// Destroys the queue (`ibv_destroy_cq`), or returns it.
    ///
    /// # Errors
    /// `InUse` (`EBUSY`) with the names of the queue pairs and clones that hold it.
    pub fn close(self) -> Result<(), (Self, Error)> {
        const OPERATION: &str = "ibv_destroy_cq";
        let mut inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let clones = Arc::strong_count(&inner)
                    .saturating_sub(1)
                    .saturating_sub(inner.holders.len());
                let error = inner.holders.in_use(
                    OPERATION,
                    "the completion queue",
                    clones,
                    "close the queue pairs first",
                );
                return Err((Self { inner }, error));
            }
        };
        match inner.destroy() {
            Ok(()) => Ok(()),
            Err(error) => {
                let inner = Arc::new(inner);
                Err((Self { inner }, error))
            }
        }
    }
}

impl CqInner {
    fn destroy(&mut self) -> Result<()> {
        self.context.device("ibv_destroy_cq")?.destroy_cq(self.handle)?;
        self.live = false;
        Ok(())
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if self.live {
            let freed = self.destroy();
            self.context.report(freed);
        }
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Cq({} of {}, depth {})",
            self.inner.handle.0,
            self.inner.context.name(),
            self.inner.depth
        )
    }
}
