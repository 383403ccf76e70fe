//! What was moved, and by whom.

pub(crate) use gaudi_device::Count;

gaudi_device::counters! {
    /// Counts of one [`Nic`](crate::Nic), over all its endpoints.
    NicStats:
    /// Payload that the processor copied here: that of
    /// [`Endpoint::put_bytes`](crate::Endpoint::put_bytes) and
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
