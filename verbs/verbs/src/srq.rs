//! [`Srq`]: a receive queue that several queue pairs share.

use std::fmt;
use std::sync::Arc;

use gaudi_seam::{CloseError, Error, Result};

use crate::context::Pd;
use crate::handle::SrqHandle;
use crate::object::Object;
use crate::provider::{SharedReceiveQueue, SrqRequest};
use crate::wr::{RecvWr, Sge, check_elements};

/// A shared receive queue. Queue pairs that use it ([`QpInit::srq`](crate::QpInit::srq)) have no
/// receive queue of their own.
pub struct Srq(Arc<SrqObject>);

pub(crate) type SrqObject = Object<SrqHandle, Pd, Parts>;

pub(crate) struct Parts {
    queue: Arc<dyn SharedReceiveQueue>,
    max_wr: u32,
    max_sge: u32,
}

impl Pd {
    /// Creates a queue for `max_wr` receives of `max_sge` elements each (`ibv_create_srq`).
    ///
    /// # Errors
    /// `InvalidInput` if a number exceeds the NIC's limit; `Unsupported` if the NIC has no such
    /// queues.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq> {
        const OPERATION: &str = "ibv_create_srq";
        let context = self.context();
        let attr = context.attr();
        if attr.max_srq == 0 {
            let why = "the NIC has no shared receive queues";
            return Err(Error::unsupported(OPERATION, why));
        }
        let what = "a shared receive queue cannot have so much room";
        context.check_limit(OPERATION, what, max_wr.into(), attr.max_srq_wr.into())?;
        let what = "a receive cannot have so many elements";
        context.check_limit(OPERATION, what, max_sge.into(), attr.max_sge.into())?;
        let (handle, queue) = context.device(OPERATION)?.create_srq(&SrqRequest {
            pd: self.handle(),
            max_wr,
            max_sge,
        })?;
        let parts = Parts {
            queue,
            max_wr,
            max_sge,
        };
        let name = format!("Srq({})", handle.0);
        Ok(Srq(Arc::new(Object::new(handle, self.clone(), name, parts))))
    }
}

impl Srq {
    /// Returns the provider's handle, which an [`AsyncEvent`](crate::AsyncEvent) carries.
    pub fn handle(&self) -> SrqHandle {
        self.0.handle
    }

    /// Returns its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.0.parent
    }

    /// Returns the requested capacity.
    pub fn max_wr(&self) -> u32 {
        self.0.parts.max_wr
    }

    /// Begins a receive. `wr_id` is returned in its completion, in the completion queue of the
    /// queue pair that receives.
    pub fn post_recv(&mut self, wr_id: u64) -> SrqRecvPost<'_> {
        SrqRecvPost { srq: self, wr_id }
    }

    /// Requests one `SRQ_LIMIT_REACHED` event once fewer than `limit` receives are left
    /// (`ibv_modify_srq` with `IBV_SRQ_LIMIT`). 0 disarms it.
    ///
    /// # Errors
    /// `InvalidInput` if `limit` exceeds the queue's capacity.
    pub fn arm_limit(&mut self, limit: u32) -> Result<()> {
        let device = self.pd().context().device("ibv_modify_srq")?;
        device.arm_srq(self.handle(), limit)
    }

    pub(crate) fn shared(&self) -> &Arc<SrqObject> {
        &self.0
    }

    /// Destroys the queue (`ibv_destroy_srq`), or returns it.
    ///
    /// # Errors
    /// `InUse` with the names of the queue pairs that use it.
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let closed = self
            .0
            .close("the shared receive queue", "close the queue pairs first");
        closed.map_err(|failed| failed.map(Self))
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({} of {})", self.handle().0, self.pd().context().name())
    }
}

/// A receive being built.
#[derive(Debug)]
#[must_use = "nothing is posted until `post` is called"]
pub struct SrqRecvPost<'q> {
    srq: &'q mut Srq,
    wr_id: u64,
}

impl SrqRecvPost<'_> {
    /// Posts the receive into local memory, which needs `LOCAL_WRITE` (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// `WouldBlock` (`ENOMEM`) if the queue is full; `InvalidInput` for more elements than it
    /// allows.
    pub fn post(self, into: &[Sge]) -> Result<()> {
        const OPERATION: &str = "ibv_post_srq_recv";
        self.srq.pd().context().check_process(OPERATION)?;
        let parts = &self.srq.0.parts;
        check_elements(OPERATION, into.len(), parts.max_sge, "max_sge")?;
        parts.queue.post_recv(&RecvWr {
            wr_id: self.wr_id,
            sges: into,
        })
    }
}
