//! [`Access`]: rights of a region or a queue pair.

use gaudi_seam::Result;

use crate::invalid;

bitflags::bitflags! {
    /// The supported flags of `enum ibv_access_flags`. A dma-buf region cannot have `MW_BIND`
    /// (uverbs_std_types_mr.c).
    ///
    /// Without flags, only the local NIC may read.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The local NIC may write: needed for receives and for the target of a read.
        const LOCAL_WRITE = 1;
        /// The peer may write.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read.
        const REMOTE_READ = 1 << 2;
        /// The peer may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region: host memory only.
        const MW_BIND = 1 << 4;
        /// Writes may pass one another on the bus. A provider may ignore it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Refuses flags that every provider and the kernel refuse.
    pub(crate) fn check(self, operation: &'static str) -> Result<()> {
        if !Self::all().contains(self) {
            return Err(invalid(operation, "unknown access flags").saw(
                format!("{:#x}", self.bits()),
                format!("bits of {:#x}", Self::all().bits()),
            ));
        }
        // ib_check_mr_access, rdma/ib_verbs.h.
        if self.intersects(Self::REMOTE_WRITE | Self::REMOTE_ATOMIC) && !self.contains(Self::LOCAL_WRITE) {
            return Err(
                invalid(operation, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")
                    .saw(format!("{self:?}"), "LOCAL_WRITE among them"),
            );
        }
        Ok(())
    }

    /// As [`check`](Self::check), for a dma-buf.
    pub(crate) fn check_dmabuf(self, operation: &'static str) -> Result<()> {
        if self.contains(Self::MW_BIND) {
            return Err(
                invalid(operation, "the kernel registers no dma-buf for memory windows").saw(
                    format!("{self:?}"),
                    format!("within {:?}", Self::all().difference(Self::MW_BIND)),
                ),
            );
        }
        self.check(operation)
    }

    /// As [`check`](Self::check), for a queue pair, where `LOCAL_WRITE` has no meaning.
    pub(crate) fn check_remote(self, operation: &'static str) -> Result<()> {
        self.union(Self::LOCAL_WRITE).check(operation)
    }
}
