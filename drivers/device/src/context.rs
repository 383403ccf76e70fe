//! What everything of one open device shares: the seam, the facts, the counts, and the memory that the driver gave.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use gaudi_dmabuf::export::habanalabs::Rule;
use gaudi_seam::{DeviceId, Error, ErrorKind, KernelIoExt as _, Result, SharedIo};
use gaudi_spec::Asic;
use gaudi_sys::fork::OwnerProcess;
use gaudi_uapi::info::{HlInfoHwIpInfo, HlInfoSyncManager};

use crate::asic::{self, CopyQueues};
use crate::calls::Calls;
use crate::device::Options;
use crate::heap::Heap;
use crate::host::Stranded;
use crate::keeper::Keeper;
use crate::lane::Lane;
use crate::owners::Owners;
use crate::ranges::FreeRanges;
use crate::stats::Counters;
use crate::waiter::Waiter;

/// Shared by every object of a device; the last one closes the node.
pub(crate) struct Context {
    /// First, so that the node closes before what its mappings stood on goes.
    pub(crate) io: SharedIo,
    pub(crate) id: DeviceId,
    pub(crate) owner: OwnerProcess,
    pub(crate) asic: &'static Asic,
    pub(crate) queues: CopyQueues,
    /// Internal DMA engines that work, a bit each.
    pub(crate) edma_mask: u32,
    pub(crate) options: Options,
    pub(crate) stats: Counters,
    /// Bytes of the page in which the driver gives device memory.
    pub(crate) page_bytes: u64,
    pub(crate) owners: Arc<Owners>,
    /// How the driver exports device memory.
    pub(crate) export_rule: Rule,
    pub(crate) heap: Mutex<Heap>,
    pub(crate) sync: Mutex<SyncPool>,
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) live: Live,
    /// Status queries of threads without a handle of the device. Shared with the status handles.
    pub(crate) calls: Arc<Calls>,
    /// The highest sequence number that any submission got.
    newest: AtomicU64,
    /// Every producer, to find who holds memory.
    lanes: Mutex<Vec<Weak<Lane>>>,
    /// Host memory that the driver refused to unmap: it stays until the driver is asked again, at the latest when the node is closed.
    pub(crate) stranded: Mutex<Vec<Stranded>>,
    /// Who stands on exported memory.
    pub(crate) keepers: Mutex<Vec<Weak<dyn Keeper>>>,
}

/// Objects that are alive, for the error of a close that comes too early.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) buffers: AtomicUsize,
    pub(crate) mappings: AtomicUsize,
    pub(crate) queues: AtomicUsize,
    pub(crate) sobs: AtomicUsize,
}

/// Sync objects and monitors of die core 0 that nobody uses.
#[derive(Debug)]
pub(crate) struct SyncPool {
    pub(crate) sobs: FreeRanges,
    pub(crate) first_sob: u32,
    pub(crate) monitors: FreeRanges,
    pub(crate) first_monitor: u32,
}

/// A mutex whose holder panicked is still good: each critical section leaves it whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What nobody else holds any more; or how many others do. Counted once: they may let go at any time.
pub(crate) fn alone<T>(mut held: Arc<T>) -> std::result::Result<T, (Arc<T>, usize)> {
    loop {
        match Arc::try_unwrap(held) {
            Ok(value) => return Ok(value),
            Err(shared) => held = shared,
        }
        match Arc::strong_count(&held) - 1 {
            0 => {}
            others => return Err((held, others)),
        }
    }
}

impl Context {
    pub(crate) fn new(io: SharedIo, options: impl FnOnce(&Asic) -> Result<Options>) -> Result<Arc<Self>> {
        let id = io.node().device;
        let hw: HlInfoHwIpInfo = io.query()?;
        let asic = asic::find(hw.device_id).map_err(|error| error.on(id))?;
        let options = options(asic).map_err(|error| error.on(id))?;
        let page = asic::page_bytes(&hw);
        let sync: HlInfoSyncManager = io.query()?;
        let (first_sob, first_monitor) = (sync.first_available_sync_object, sync.first_available_monitor);
        let left = |all: u32, first: u32| FreeRanges::new(u64::from(all.saturating_sub(first)));
        let owners = Arc::<Owners>::default();
        let heap = Heap::new(id, page, u64::from(asic.cache_line), Arc::clone(&owners));
        Ok(Arc::new(Self {
            id,
            owner: OwnerProcess::current(),
            asic,
            queues: CopyQueues::of(&hw),
            edma_mask: hw.edma_enabled_mask,
            options,
            stats: Counters::default(),
            page_bytes: page,
            owners,
            export_rule: Rule::of(&hw),
            heap: Mutex::new(heap),
            sync: Mutex::new(SyncPool {
                sobs: left(asic.sync.sobs, first_sob),
                first_sob,
                monitors: left(asic.sync.monitors, first_monitor),
                first_monitor,
            }),
            waiter: Arc::default(),
            live: Live::default(),
            calls: Arc::default(),
            newest: AtomicU64::new(0),
            lanes: Mutex::default(),
            stranded: Mutex::default(),
            keepers: Mutex::default(),
            io,
        }))
    }

    /// `Forked` in a child of the process that opened the device: its descriptors, mappings and locks are the parent's.
    pub(crate) fn here(&self, operation: &'static str) -> Result<()> {
        if !self.owner.is_foreign() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Forked, operation)
            .on(self.id)
            .because("the object belongs to the parent of this process")
            .helped_by("open the device after the fork"))
    }

    pub(crate) fn wrong(&self, operation: &'static str, cause: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, operation)
            .on(self.id)
            .because(cause)
    }

    pub(crate) fn saw_submission(&self, seq: u64) {
        self.newest.fetch_max(seq, Ordering::Relaxed);
    }

    /// The submission whose end makes room for one more in this process: the driver keeps a fixed number in flight and looks at the
    /// one that many before (command_submission.c:970). `None` while fewer were made.
    pub(crate) fn oldest_in_flight(&self) -> Option<u64> {
        let newest = self.newest.load(Ordering::Relaxed);
        (newest + 1)
            .checked_sub(u64::from(self.asic.max_pending_cs))
            .filter(|&seq| seq > 0)
    }

    pub(crate) fn enlist(&self, lane: &Arc<Lane>) {
        let mut lanes = lock(&self.lanes);
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        lock(&self.lanes).iter().filter_map(Weak::upgrade).collect()
    }

    /// Lets go of the memory that finished submissions held.
    pub(crate) fn settle(&self) {
        for lane in self.lanes() {
            lane.reap();
        }
    }

    /// Unmaps what of a range of this process the driver refused to unmap before, and says why where it refuses again.
    pub(crate) fn unmap_stranded(&self, start: usize, end: usize) -> Result<()> {
        // Refusals are rare enough to be told to the driver under their lock; who asks for a range must find what others ask for too.
        let mut answer = Ok(());
        lock(&self.stranded).retain_mut(|stranded| {
            if !stranded.lies_in(start, end) {
                return true;
            }
            let refused = stranded.unmap(self);
            let stays = refused.is_err();
            answer = std::mem::replace(&mut answer, Ok(())).and(refused);
            stays
        });
        answer
    }

    /// Releases the host memory whose device address has another owner: the driver has unmapped it.
    pub(crate) fn release_unmapped(&self) {
        lock(&self.stranded).retain(Stranded::is_mapped);
    }

    /// Waits until every submission is done, or `patience` is over.
    pub(crate) fn drain(&self, patience: Duration) {
        for lane in self.lanes() {
            // What failed is done too; it is reported to who waits for it.
            let _ = lane.drain(patience.into());
        }
    }

    /// Who holds the device, in words; empty where nobody does.
    pub(crate) fn holders(&self) -> Vec<String> {
        let exports = lock(&self.heap).lingering();
        [
            (self.live.buffers.load(Ordering::Relaxed), "buffer"),
            (self.live.mappings.load(Ordering::Relaxed), "host mapping"),
            (
                self.live.queues.load(Ordering::Relaxed),
                "queue (or completion of one)",
            ),
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
        let mut mapped = std::mem::take(&mut *lock(&self.stranded));
        mapped.retain_mut(|stranded| stranded.unmap(self).is_err());
        let stranded = self.stranded.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The device reaches this memory until the node closes: it must be dropped after `io`.
        *stranded = mapped;
        if Arc::strong_count(&self.io) > 1 {
            // Somebody else keeps the node open, and the device its reach.
            if !stranded.is_empty() {
                tracing::error!(
                    "device {}: {} pieces of host memory stay mapped until the last user of the node closes it",
                    self.id,
                    stranded.len()
                );
            }
            std::mem::take(stranded).into_iter().for_each(std::mem::forget);
        }
        let heap = self.heap.get_mut().unwrap_or_else(PoisonError::into_inner);
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
