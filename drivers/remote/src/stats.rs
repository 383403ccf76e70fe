//! What was moved, and by whom.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one [`Nic`](crate::Nic), over all its endpoints.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Count,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* }
            }
        }
    };
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }
}

counters! {
    /// Payload that the processor copied here: that of [`Endpoint::put_bytes`](crate::Endpoint::put_bytes) and
    /// [`get_bytes`](crate::Endpoint::get_bytes), nothing else. 0 where buffers are put and got.
    cpu_copied_bytes,
    /// Payload that DMA engines of this node copied between device memory and the stage.
    engine_bytes,
    /// Payload that this NIC wrote to peers, at our asking.
    nic_put_bytes,
    /// Payload that this NIC read from peers, at our asking.
    nic_got_bytes,
    /// Regions registered: of buffers, host memory, stages and messages.
    registrations,
    /// Regions deregistered.
    deregistrations,
    /// Chunks that went through a stage of this node.
    staged_chunks,
    /// Reads that only made earlier writes visible.
    flushes,
    /// Requests for a region of a buffer that one was kept for.
    cache_hits,
    /// Regions of buffers that were made and kept.
    cache_misses,
    /// Kept regions that made room for others.
    cache_evictions,
    /// Kept regions that went with their buffer or its device, or were forgotten.
    cache_invalidations,
    /// Regions of buffers that are kept now, used or idle.
    cached_regions,
    /// Regions that were deregistered because their device was lost, or given up.
    revoked,
}
