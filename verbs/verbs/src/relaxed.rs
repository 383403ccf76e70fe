//! [`OrderedMr`]: a relaxed-ordering region with a strict one of the same memory.

use gaudi_dmabuf::Window;
use gaudi_seam::{CloseError, Result};

use crate::access::Access;
use crate::context::Pd;
use crate::mr::Mr;
use crate::wr::MrAddr;

/// Whether writes of peers may pass one another on their way to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum WriteOrder {
    /// In order, by one region.
    #[default]
    Strict,
    /// Bulk data may pass. Flags and atomics use a second, strict region of the same memory. Faster
    /// for accelerator memory, and if ordering is expensive in the root complex.
    Relaxed,
}

/// A range of memory registered for bulk data and for flags, by one region or two.
#[derive(Debug)]
pub struct OrderedMr {
    bulk: Mr,
    strict: Option<Mr>,
}

impl Pd {
    /// Registers a window of a dma-buf with an ordering. With [`WriteOrder::Relaxed`], the bulk
    /// region has `RELAXED_ORDERING` and never `REMOTE_ATOMIC`: an atomic by its key is refused,
    /// not reordered.
    ///
    /// # Errors
    /// As [`reg_dmabuf_mr`](Self::reg_dmabuf_mr).
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
    /// Returns the region for bulk data.
    pub fn bulk(&self) -> &Mr {
        &self.bulk
    }

    /// Returns the region for flags and atomics, which must not pass earlier writes.
    pub fn strict(&self) -> &Mr {
        self.strict.as_ref().unwrap_or(&self.bulk)
    }

    /// Deregisters both, or returns those that could not be deregistered.
    ///
    /// # Errors
    /// The first error of [`Mr::close`].
    pub fn close(self) -> Result<(), CloseError<Vec<Mr>>> {
        let (mut left, mut first) = (Vec::new(), None);
        for mr in [Some(self.bulk), self.strict].into_iter().flatten() {
            if let Err(CloseError { object: mr, error }) = mr.close() {
                left.push(mr);
                first = first.or(Some(error));
            }
        }
        first.map_or(Ok(()), |error| Err(CloseError::new(left, error)))
    }
}
