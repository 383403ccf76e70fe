//! A transfer at the requesting end: the job, and its chunks in flight.

use std::sync::Arc;

use gaudi_device::{Completion, HostBuffer, Location};
use gaudi_seam::Error;
use gaudi_verbs::Sge;

use crate::offer::{OfferPath, Remote};
use crate::path::MemoryPath;

/// Bytes of one work request if nothing is staged.
const DIRECT: u64 = 64 << 20;

/// The result of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// Its length in bytes.
    pub bytes: u64,
    /// The path to this node's memory.
    pub local: MemoryPath,
    /// The path to the peer's memory.
    pub remote: MemoryPath,
    /// Number of work requests.
    pub chunks: u64,
}

/// One end of a job.
#[derive(Debug)]
pub(crate) enum LocalEnd {
    /// Memory with a region: the element of its first byte.
    Region(Sge),
    /// Memory that is staged.
    Staged(Location),
}

pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) put: bool,
    pub(crate) local: LocalEnd,
    pub(crate) remote: Remote,
    /// First byte of the peer's memory.
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) path: MemoryPath,
    /// Bytes of a chunk.
    pub(crate) chunk: u64,
    /// Bytes in chunks that were begun.
    pub(crate) begun: u64,
    pub(crate) in_flight: u32,
    pub(crate) chunks: u64,
    pub(crate) failed: Option<Error>,
    /// The memory of an abandoned job, which owns it until it is over.
    pub(crate) abandoned: Option<Arc<HostBuffer>>,
}

impl Job {
    pub(crate) fn is_over(&self) -> bool {
        self.in_flight == 0 && (self.begun == self.len || self.failed.is_some())
    }

    pub(crate) fn staged_at_peer(&self) -> bool {
        matches!(self.remote.offer.path, OfferPath::Slots { .. })
    }

    /// Returns the bytes of one work request.
    pub(crate) fn chunk_of(stage: Option<u32>, remote: &Remote, most: u32) -> u64 {
        let mut chunk = DIRECT.min(u64::from(most));
        if let Some(bytes) = stage {
            chunk = chunk.min(u64::from(bytes));
        }
        if let OfferPath::Slots { chunk: bytes, .. } = remote.offer.path {
            chunk = chunk.min(u64::from(bytes));
        }
        chunk.max(1)
    }
}

/// The step that a chunk is in.
pub(crate) enum Phase {
    /// This node's engine copies: out of memory into the slot (`fetches`), or back.
    Engine { copy: Completion, fetches: bool },
    /// The NIC writes, and if the peer stages, its engine stores.
    Writing,
    /// The peer's engine fills its slot.
    Asked,
    /// The NIC reads.
    Reading,
}

pub(crate) struct Chunk {
    pub(crate) job: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) phase: Phase,
    /// The message has left its place in memory.
    pub(crate) sent: bool,
    pub(crate) answered: bool,
}
