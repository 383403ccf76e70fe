//! What all objects of one open device share: the node, its properties, and its resources.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gaudi_dmabuf::export::habanalabs::Rule;
use gaudi_seam::{DeviceId, Error, ErrorKind, KernelIoExt as _, Result, SharedIo};
use gaudi_spec::Asic;
use gaudi_sys::fork::OwnerProcess;
use gaudi_uapi::info::{HlInfoHwIpInfo, HlInfoSyncManager};

use crate::active_queues::ActiveQueues;
use crate::asic::{self, CopyQueues, Encoder};
use crate::calls::Calls;
use crate::export_user::ExportUsers;
use crate::heap::Heap;
use crate::options::Options;
use crate::owners::Owners;
use crate::shared::{exclusive, lock};
use crate::stats::Counters;
use crate::stranded::StrandedMappings;
use crate::sync_pool::SyncPool;
use crate::waiter::Waiter;

/// Shared by all objects of a device. The node closes with the last reference.
pub(crate) struct Context {
    /// The first field, so that the node closes before stranded memory is freed.
    pub(crate) io: SharedIo,
    pub(crate) id: DeviceId,
    pub(crate) owner: OwnerProcess,
    pub(crate) asic: &'static Asic,
    pub(crate) encoder: Encoder,
    pub(crate) copy_queues: CopyQueues,
    /// The enabled internal DMA engines, one bit for each.
    pub(crate) edma_mask: u32,
    pub(crate) options: Options,
    pub(crate) stats: Counters,
    /// Bytes of the page in which the driver allocates device memory.
    pub(crate) page_bytes: u64,
    pub(crate) owners: Arc<Owners>,
    /// How the driver exports device memory.
    pub(crate) export_rule: Rule,
    pub(crate) heap: Mutex<Heap>,
    pub(crate) sobs: SyncPool,
    pub(crate) monitors: SyncPool,
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) live: Live,
    /// Calls without a handle of the device. Shared with the status handles.
    pub(crate) calls: Arc<Calls>,
    pub(crate) queues: ActiveQueues,
    pub(crate) stranded: StrandedMappings,
    pub(crate) export_users: ExportUsers,
}

/// Live objects, for the error of a close that fails because of them.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) buffers: AtomicUsize,
    pub(crate) mappings: AtomicUsize,
    pub(crate) queues: AtomicUsize,
    pub(crate) sobs: AtomicUsize,
}

impl Context {
    pub(crate) fn new(io: SharedIo, options: Options) -> Result<Arc<Self>> {
        let id = io.node().device;
        let hw: HlInfoHwIpInfo = io.query()?;
        let (asic, encoder) = asic::find(hw.device_id).map_err(|error| error.on(id))?;
        let options = options.checked(asic).map_err(|error| error.on(id))?;
        let page_bytes = asic::page_bytes(&hw);
        let sync: HlInfoSyncManager = io.query()?;
        let owners = Arc::<Owners>::default();
        let lowest = match options.memory_offset {
            0 => None,
            // A hint is a multiple of the page after the first address
            // (`memory.c:get_va_block`).
            offset => offset
                .checked_next_multiple_of(page_bytes.max(1))
                .and_then(|offset| hw.dram_base_address.checked_add(offset)),
        };
        let grain = u64::from(asic.cache_line);
        let heap = Heap::new(
            id,
            page_bytes,
            grain,
            Arc::clone(&owners),
            lowest,
            (Rule::of(&hw), options.kept_allocations),
        );
        Ok(Arc::new(Self {
            id,
            owner: OwnerProcess::current(),
            asic,
            encoder,
            copy_queues: CopyQueues::new(asic, hw.edma_enabled_mask),
            edma_mask: hw.edma_enabled_mask,
            options,
            stats: Counters::default(),
            page_bytes,
            owners,
            export_rule: Rule::of(&hw),
            heap: Mutex::new(heap),
            sobs: SyncPool::sobs(id, asic, &sync),
            monitors: SyncPool::monitors(id, asic, &sync),
            waiter: Arc::default(),
            live: Live::default(),
            calls: Arc::default(),
            queues: ActiveQueues::default(),
            stranded: StrandedMappings::default(),
            export_users: ExportUsers::default(),
            io,
        }))
    }

    /// Checks that this process opened the device: the descriptors, mappings and locks of a fork
    /// child are its parent's.
    ///
    /// # Errors
    /// `Forked`.
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        if !self.owner.is_foreign() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Forked, operation)
            .on(self.id)
            .because("the object belongs to the parent of this process")
            .helped_by("open the device after the fork"))
    }

    pub(crate) fn invalid(&self, operation: &'static str, cause: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, operation)
            .on(self.id)
            .because(cause)
    }

    pub(crate) fn in_use(&self, operation: &'static str, cause: impl Into<String>) -> Error {
        Error::new(ErrorKind::InUse, operation).on(self.id).because(cause)
    }

    /// Retries to unmap host memory in a range of this process that the driver refused to unmap.
    ///
    /// # Errors
    /// The driver's error for the first mapping that it refuses again.
    pub(crate) fn unmap_stranded(&self, range: (usize, usize)) -> Result<()> {
        self.stranded.unmap(range, &*self.io, self.id, &self.owners)
    }

    /// Appends to an error's cause what the users of exported memory report.
    pub(crate) fn with_export_users(&self, cause: String) -> String {
        self.export_users.describe(self.id, cause)
    }

    /// Describes the objects that hold the device; empty if there are none.
    pub(crate) fn holders(&self) -> Vec<String> {
        const QUEUES: &str = "queue (or completion of one)";
        let exports = lock(&self.heap).lingering();
        [
            (self.live.buffers.load(Ordering::Relaxed), "buffer"),
            (self.live.mappings.load(Ordering::Relaxed), "host mapping"),
            (self.live.queues.load(Ordering::Relaxed), QUEUES),
            (self.live.sobs.load(Ordering::Relaxed), "sync object"),
            (exports, "allocation that could not be unmapped (exported?)"),
        ]
        .into_iter()
        .filter(|&(count, _)| count > 0)
        .map(|(count, name)| format!("{count} × {name}"))
        .collect()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.owner.is_foreign() {
            return;
        }
        self.waiter.stop();
        // The device can access what stays until the node closes: the memory is dropped after `io`.
        let stranded = self.stranded.unmap_all(&*self.io, self.id, &self.owners);
        if Arc::strong_count(&self.io) > 1 {
            // The node stays open, and the device can still access the memory.
            if stranded > 0 {
                tracing::error!(
                    "device {}: {stranded} pieces of host memory stay mapped until the last user of the node closes it",
                    self.id
                );
            }
            self.stranded.leak();
        }
        let heap = exclusive(&mut self.heap);
        heap.trim(&self.io);
        heap.retry_lingering(&self.io);
        let lingering = heap.lingering();
        if lingering > 0 {
            tracing::warn!(
                "device {}: closed with {lingering} allocations that could not be unmapped; it stays busy while dma-bufs of them live",
                self.id
            );
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.id)
            .finish_non_exhaustive()
    }
}
