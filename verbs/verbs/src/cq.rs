//! [`Cq`]: a completion queue.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{CloseError, Error, Result};
use gaudi_sys::Deadline;

use crate::context::Context;
use crate::handle::CqHandle;
use crate::holders::Hold;
use crate::object::Object;
use crate::provider::CompletionQueue;
use crate::wc::WorkCompletion;

/// A completion queue with a completion channel of its own. Clones share it; any thread may poll.
#[derive(Clone)]
pub struct Cq(Arc<Object<CqHandle, Context, Parts>>);

struct Parts {
    queue: Arc<dyn CompletionQueue>,
    depth: u32,
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
        let limit = self.attr().max_cqe.into();
        let what = "a completion queue cannot be so deep";
        self.check_limit(OPERATION, what, depth.into(), limit)?;
        let (handle, queue) = self.device(OPERATION)?.create_cq(depth)?;
        let name = format!("Cq({}, depth {depth})", handle.0);
        let parts = Parts { queue, depth };
        Ok(Cq(Arc::new(Object::new(handle, self.clone(), name, parts))))
    }
}

impl Cq {
    /// Returns the provider's handle, which an [`AsyncEvent`](crate::AsyncEvent) carries.
    pub fn handle(&self) -> CqHandle {
        self.0.handle
    }

    pub(crate) fn hold(&self, name: String) -> Hold {
        self.0.hold(name)
    }

    /// Returns the NIC.
    pub fn context(&self) -> &Context {
        &self.0.parent
    }

    /// Returns its capacity.
    pub fn depth(&self) -> u32 {
        self.0.parts.depth
    }

    /// Takes completions (`ibv_poll_cq`) and returns their number. Never blocks.
    ///
    /// # Errors
    /// `Io` (`EOVERFLOW`) if the queue has overflowed and all completions that it kept are polled.
    /// A NIC of libibverbs reports that only by the event `CQ_ERR`. Until a caller takes that
    /// ([`Context::get_async_event`]), the queue stays empty.
    pub fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize> {
        self.context().check_process("ibv_poll_cq")?;
        self.0.parts.queue.poll(into)
    }

    /// Makes the next completion signal [`event_fd`](Self::event_fd) (`ibv_req_notify_cq`). Poll
    /// again afterwards: an earlier completion does not signal.
    ///
    /// # Errors
    /// The errno of `ibv_req_notify_cq`; `Forked` in a fork child.
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.context().check_process("ibv_req_notify_cq")?;
        self.0.parts.queue.req_notify(solicited_only)
    }

    /// Returns a descriptor for poll(2) and epoll(7) that is readable while an event is pending.
    /// Call [`ack_event`](Self::ack_event) instead of reading it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.parts.queue.event_fd()
    }

    /// Takes the pending event (`ibv_get_cq_event`, `ibv_ack_cq_events`).
    ///
    /// # Errors
    /// The errno of `ibv_get_cq_event`; `Forked` in a fork child.
    pub fn ack_event(&self) -> Result<()> {
        self.context().check_process("ibv_get_cq_event")?;
        self.0.parts.queue.ack_event()
    }

    /// Waits for at least one completion: polls, and sleeps on the event descriptor.
    ///
    /// Only one thread may wait for a queue: two would take each other's events.
    ///
    /// # Errors
    /// `TimedOut`; as [`poll`](Self::poll).
    pub fn wait(&self, into: &mut [WorkCompletion], timeout: Duration) -> Result<usize> {
        const OPERATION: &str = "completion queue wait";
        let deadline = Deadline::from(timeout);
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
            let left = deadline.remaining(Duration::MAX);
            if left.is_zero() {
                return Err(Error::timed_out(OPERATION));
            }
            if self.0.parts.queue.wait_event(left)? {
                self.ack_event()?;
            }
        }
    }

    /// Destroys the queue (`ibv_destroy_cq`), or returns it.
    ///
    /// # Errors
    /// `InUse` (`EBUSY`) with the names of the queue pairs and clones that hold it.
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let closed = self
            .0
            .close("the completion queue", "close the queue pairs first");
        closed.map_err(|failed| failed.map(Self))
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, depth) = (self.context().name(), self.depth());
        write!(f, "Cq({} of {name}, depth {depth})", self.handle().0)
    }
}
