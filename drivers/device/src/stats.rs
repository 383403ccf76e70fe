//! Counters of a device's work.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines `Stats`, with this documentation, and the `Counters` that it is a snapshot of.
#[doc(hidden)]
#[macro_export]
macro_rules! counters {
    ($(#[$of:meta])* $stats:ident: $($(#[$doc:meta])* $name:ident,)*) => {
        $(#[$of])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct $stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: $crate::Count,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> $stats {
                $stats { $($name: self.$name.get(),)* }
            }
        }
    };
}

/// A counter that any thread may increment.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds to the value.
    pub fn add(&self, amount: u64) {
        // A submission changes two or three of the counters.
        if amount > 0 {
            self.0.fetch_add(amount, Ordering::Relaxed);
        }
    }
}

counters! {
    /// Counters of all queues of a device since it was opened.
    Stats:
    /// Command submissions that the driver accepted.
    submissions,
    /// LIN_DMA packets in the submissions.
    lin_dma_packets,
    /// Bytes copied from host to device memory.
    bytes_to_device,
    /// Bytes copied from device to host memory.
    bytes_to_host,
    /// Bytes copied within device memory.
    bytes_in_device,
    /// Bytes filled.
    bytes_filled,
    /// Bytes that the processor copied to and from staging memory, for
    /// [`Device::write`](crate::Device::write) and [`Device::read`](crate::Device::read).
    cpu_copied_bytes,
    /// How often a submission waited because the driver had no room.
    full_waits,
}
