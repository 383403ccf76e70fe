//! [`Cq`]: where work completes.

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
    /// As the provider names it: what an [`AsyncEvent`](crate::AsyncEvent) is about.
    pub fn handle(&self) -> CqHandle {
        self.inner.handle
    }

    pub(crate) fn hold(&self, name: String) -> Hold {
        self.inner.holders.hold(name)
    }

    /// The NIC.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Completions that it has room for.
    pub fn depth(&self) -> u32 {
        self.inner.depth
    }

    /// `ibv_poll_cq`: moves what is there into `into` and says how many. Never blocks.
    ///
    /// `Io` (`EOVERFLOW`) where the queue has overflowed, once all that it kept was polled. A NIC of libibverbs tells that by the event
    /// `CQ_ERR` alone, so that somebody must take the events ([`Context::get_async_event`]): a thread that waits on
    /// [`Context::async_fd`], or each waiter whose patience ends. Until then such a queue is silent.
    pub fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize> {
        self.inner.context.check_process("ibv_poll_cq")?;
        self.inner.queue.poll(into)
    }

    /// `ibv_req_notify_cq`: makes the next completion raise an event on [`event_fd`](Self::event_fd). Poll once more afterwards: what
    /// came before raises none.
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.inner.context.check_process("ibv_req_notify_cq")?;
        self.inner.queue.req_notify(solicited_only)
    }

    /// Readable while an event is pending; for poll(2), epoll(7) and their like. Do not read it: see [`ack_event`](Self::ack_event).
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.inner.queue.event_fd()
    }

    /// `ibv_get_cq_event` and `ibv_ack_cq_events`: takes the pending event.
    pub fn ack_event(&self) -> Result<()> {
        self.inner.context.check_process("ibv_get_cq_event")?;
        self.inner.queue.ack_event()
    }

    /// Polls, and sleeps on the event descriptor while nothing is there. At least one completion, or `TimedOut`.
    ///
    /// One waiter a queue: two would take each other's events.
    pub fn wait(&self, into: &mut [WorkCompletion], timeout: Duration) -> Result<usize> {
        const OPERATION: &str = "completion queue wait";
        let deadline = Instant::now().checked_add(timeout);
        loop {
            match self.poll(into)? {
                0 => self.req_notify(false)?,
                count => return Ok(count),
            }
            // Once more: what completed before the request raises no event.
            match self.poll(into)? {
                0 => {}
                count => return Ok(count),
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::timed_out(OPERATION));
            }
            let left = left.map_or(PollTimeout::NONE, |left| {
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

    /// `ibv_destroy_cq`, or gives the queue back: `InUse` with the names of the queue pairs and clones that hold it (`EBUSY` as
    /// the kernel would say).
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
