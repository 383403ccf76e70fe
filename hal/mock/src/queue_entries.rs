//! The entries of the queues.

use gaudi_seam::QueueId;
use gaudi_spec::Asic;
use gaudi_spec::asic::QueueEngine;
use gaudi_uapi::cs::HlCsChunk;

/// The number of used entries of each queue.
#[derive(Debug)]
pub(crate) struct QueueEntries {
    taken: Box<[u16]>,
    /// The entries that the driver's own tests take.
    tested: Box<[u16]>,
    depth: u16,
}

impl QueueEntries {
    /// The driver's test of a queue takes an entry that is never freed (gaudi2.c
    /// `gaudi2_test_queue`; `hl_hw_queue_inc_ci_kernel` is not called for it). It tests those of
    /// users but the EDMAs'.
    pub(crate) fn new(asic: &Asic) -> Self {
        let tested = (0..asic.queue_count).map(|id| {
            let row = (asic.queue)(QueueId(id));
            row.is_some_and(|row| row.user && row.engine != QueueEngine::Edma)
                .into()
        });
        let tested: Box<[u16]> = tested.collect();
        Self {
            taken: tested.clone(),
            tested,
            depth: u16::try_from(asic.queue_depth).expect("a queue has fewer than 2^16 entries"),
        }
    }

    /// After a reset, when the driver tests the queues again.
    pub(crate) fn restart(&mut self) {
        self.taken.copy_from_slice(&self.tested);
    }

    /// Whether a queue exists and has a free entry.
    pub(crate) fn has_room(&self, queue: QueueId) -> bool {
        let taken = self.taken.get(queue.0 as usize);
        taken.is_some_and(|&taken| taken < self.depth)
    }

    /// Takes an entry of its queue for each chunk, or none. Returns whether it took them.
    pub(crate) fn take(&mut self, chunks: &[HlCsChunk]) -> bool {
        for (index, chunk) in chunks.iter().enumerate() {
            match self.taken.get_mut(chunk.queue_index as usize) {
                Some(taken) if *taken < self.depth => *taken += 1,
                _ => {
                    for chunk in &chunks[..index] {
                        self.taken[chunk.queue_index as usize] -= 1;
                    }
                    return false;
                }
            }
        }
        true
    }

    /// Frees an entry of a queue.
    pub(crate) fn free(&mut self, queue: QueueId) {
        let taken = &mut self.taken[queue.0 as usize];
        debug_assert!(*taken > 0, "queue {queue} completed a job that has no entry");
        *taken = taken.saturating_sub(1);
    }
}
