//! [`EndpointOptions`].

use std::time::Duration;

use gaudi_seam::{Error, ErrorKind, Result};

use crate::message::SLOTS;
use crate::path::Policy;

/// The options of an endpoint. The defaults suit transfers of any size.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointOptions {
    /// Whether device memory must be registered through its dma-buf.
    pub policy: Policy,
    /// Bytes of a chunk of staged transfers: a multiple of 4096, at most 64 MiB. The smaller of
    /// both ends' values is used.
    pub chunk_bytes: u32,
    /// Chunks of a staged transfer in flight: 1 to 16. With 1 each step waits for the one before.
    pub depth: u32,
    /// Timeout for the peer: once for its stream, in `connect` and `accept`, once for the messages
    /// that connect the queue pairs, and in `offer` for a peer that does not read.
    pub connect_timeout: Duration,
    /// Timeout of the serving end for one copy of its engine; afterwards the connection ends. It is
    /// longer than the driver's own timeout (30 s), so that a hung engine is reported as `Hung`.
    /// Also the timeout of [`Endpoint::forget`](crate::Endpoint::forget).
    pub copy_timeout: Duration,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            policy: Policy::Try,
            chunk_bytes: 256 << 10,
            depth: 8,
            connect_timeout: Duration::from_secs(30),
            copy_timeout: Duration::from_secs(60),
        }
    }
}

impl EndpointOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: &str, seen: u32, wanted: String| {
            Err(Error::new(ErrorKind::InvalidInput, "endpoint options")
                .because(format!("the option {what} is wrong"))
                .saw(seen, wanted))
        };
        if self.chunk_bytes == 0 || self.chunk_bytes % 4096 != 0 || self.chunk_bytes > 64 << 20 {
            return wrong(
                "chunk_bytes",
                self.chunk_bytes,
                "a multiple of 4096, at most 67108864".into(),
            );
        }
        if self.depth == 0 || self.depth as usize > SLOTS {
            return wrong("depth", self.depth, format!("1 to {SLOTS}"));
        }
        Ok(())
    }
}
