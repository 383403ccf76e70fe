//! Relaxed ordering with a strict companion.

use gaudi_dmabuf::Window;
use gaudi_seam::{Error, Result};

use crate::access::Access;
use crate::context::Pd;
use crate::mr::Mr;
use crate::wr::MrAddr;

/// How writes of peers may pass one another on their way into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum WriteOrder {
    /// In order: one region does for everything.
    #[default]
    Strict,
    /// Bulk data may pass; flags and atomics go through a second region of the same memory, which is strict. Faster on machines whose
    /// root complex orders writes dearly, and on accelerator memory.
    Relaxed,
}

/// One range of memory registered for bulk data and for flags: the same region twice, or two.
#[derive(Debug)]
pub struct OrderedMr {
    bulk: Mr,
    strict: Option<Mr>,
}

impl Pd {
    /// [`reg_dmabuf_mr`](Self::reg_dmabuf_mr) with a policy. Under [`WriteOrder::Relaxed`] the bulk region carries `RELAXED_ORDERING`
    /// and never `REMOTE_ATOMIC`: an atomic by its key is refused, not misordered.
    pub fn reg_dmabuf_ordered(
        &self,
        window: &Window,
        iova: MrAddr,
        access: Access,
        order: WriteOrder,
    ) -> Result<OrderedMr> {
        let strict_access = access.difference(Access::RELAXED_ORDERING);
        if order == WriteOrder::Strict {
            let bulk = self.reg_dmabuf_mr(window, iova, strict_access)?;
            return Ok(OrderedMr { bulk, strict: None });
        }
        let relaxed = access.difference(Access::REMOTE_ATOMIC) | Access::RELAXED_ORDERING;
        Ok(OrderedMr {
            bulk: self.reg_dmabuf_mr(window, iova, relaxed)?,
            strict: Some(self.reg_dmabuf_mr(window, iova, strict_access)?),
        })
    }
}

impl OrderedMr {
    /// For bulk data.
    pub fn bulk(&self) -> &Mr {
        &self.bulk
    }

    /// For flags and atomics, which must not pass what was written before them.
    pub fn strict(&self) -> &Mr {
        self.strict.as_ref().unwrap_or(&self.bulk)
    }

    /// Deregisters both, or gives back what could not be.
    pub fn close(self) -> Result<(), (Vec<Mr>, Error)> {
        let (mut left, mut first) = (Vec::new(), None);
        for mr in [Some(self.bulk), self.strict].into_iter().flatten() {
            if let Err((mr, error)) = mr.close() {
                left.push(mr);
                first = first.or(Some(error));
            }
        }
        match first {
            None => Ok(()),
            Some(error) => Err((left, error)),
        }
    }
}
