//! What a device was asked to do, counted where it is done.

use std::sync::atomic::{AtomicU64, Ordering};

/// Makes `Stats`, with this documentation, and the `Counters` that it is a snapshot of.
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

/// One count, from any thread.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Its value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds to it.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }
}

counters! {
    /// Counts since the device was opened, by every queue of it.
    Stats:
    /// Command submissions that the driver took.
    submissions,
    /// LIN_DMA packets in them.
    lin_dma_packets,
    /// Bytes that they copy from host to device memory.
    bytes_to_device,
    /// Bytes that they copy from device to host memory.
    bytes_to_host,
    /// Bytes that they copy within device memory.
    bytes_in_device,
    /// Bytes that they fill.
    bytes_filled,
    /// Bytes that the processor moved for [`Device::write`](crate::Device::write) and [`Device::read`](crate::Device::read), to and
    /// from staging memory.
    cpu_copied_bytes,
    /// Times that the driver had no room and a submitter waited.
    full_waits,
}
