//! [`NicStats`].

pub(crate) use gaudi_device::Count;

gaudi_device::counters! {
    /// Counts of one [`Nic`](crate::Nic), over all its endpoints.
    NicStats:
    /// Payload that the processor copied here: that of
    /// [`Endpoint::put_bytes`](crate::Endpoint::put_bytes) and
    /// [`get_bytes`](crate::Endpoint::get_bytes), and nothing else.
    cpu_copied_bytes,
    /// Payload that DMA engines of this node copied between device memory and the stage.
    engine_bytes,
    /// Payload that this NIC wrote to peers for this node's requests.
    nic_put_bytes,
    /// Payload that this NIC read from peers for this node's requests.
    nic_got_bytes,
    /// Regions registered: of buffers, host memory, stages and messages.
    registrations,
    /// Regions deregistered.
    deregistrations,
    /// Chunks that went through a stage of this node.
    staged_chunks,
    /// Reads that only made earlier writes visible.
    flushes,
    /// Requests for a region of a buffer that the cache had.
    cache_hits,
    /// Regions of buffers that were registered and cached.
    cache_misses,
    /// Cached regions that were evicted.
    cache_evictions,
    /// Cached regions that were removed with their buffer or its device, or forgotten.
    cache_invalidations,
    /// Cached regions of buffers, used or idle.
    cached_regions,
    /// Regions that were deregistered because their device was lost or about to be reset.
    revoked,
}
