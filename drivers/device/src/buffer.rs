//! Device memory: allocated, mapped, and freed with the last handle.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gaudi_dmabuf::export::habanalabs::DeviceRange;
use gaudi_dmabuf::{DmaBuf, Exports, Window};
use gaudi_seam::{CloseError, DeviceId, DeviceVa, Errno, Error, ErrorKind, Result};
use gaudi_sys::PAGE;
use gaudi_uapi::memory::MemFlags;

use crate::context::Context;
use crate::export_user::ExportUser;
use crate::heap::{Allocation, DevicePages, Placement};
use crate::shared::{lock, unwrap_last};
use crate::status::StatusHandle;
use crate::unfinished::Unfinished;

/// Device memory, mapped into the device's address space. Its content is undefined until it is
/// written.
///
/// A clone is the same memory. Copies in flight hold a clone, so the memory of a running copy is
/// not freed. [`close`](Self::close) reports what still holds the buffer.
#[derive(Clone)]
pub struct Buffer {
    region: Arc<Region>,
}

struct Region {
    context: Arc<Context>,
    generation: u64,
    va: DeviceVa,
    len: u64,
    /// `None` once it is freed.
    allocation: Option<Allocation>,
    is_exported: AtomicBool,
    /// The exports that windows share. Created with the first window.
    exports: OnceLock<Exports>,
    unfinished: Unfinished,
}

const EXPORTED: &str = "deregister its memory regions, then close its descriptors, in every process";
const EXPORT: &str = "HL_MEM_OP_EXPORT_DMABUF_FD";
const CLOSE: &str = "Buffer::close";

/// Returns offset and length of a range within `len` bytes of `what`.
///
/// # Errors
/// `InvalidInput`: the range is not inside.
pub(crate) fn resolve(
    context: &Context,
    operation: &'static str,
    what: &str,
    range: impl RangeBounds<u64> + fmt::Debug,
    len: u64,
) -> Result<(u64, u64)> {
    let bounds = || {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1)?,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => len,
        };
        (start <= end && end <= len).then(|| (start, end - start))
    };
    bounds().ok_or_else(|| {
        context
            .invalid(operation, format!("the range leaves the {what}"))
            .saw(format!("{range:?}"), format!("within 0..{len}"))
    })
}

impl Buffer {
    /// Allocates a piece of shared pages.
    ///
    /// # Errors
    /// `OutOfDeviceMemory`, or the driver's own error.
    pub(crate) fn piece(context: &Arc<Context>, len: u64, align: u64, exportable: bool) -> Result<Self> {
        let piece = with_retry(context, |context| {
            lock(&context.heap).alloc(&context.io, len, align, exportable)
        })?;
        Ok(Self::new(context, piece.va, len, Allocation::Piece(piece)))
    }

    /// Allocates whole pages.
    ///
    /// # Errors
    /// As [`piece`](Self::piece).
    pub(crate) fn pages(context: &Arc<Context>, len: u64, placement: Placement) -> Result<Self> {
        let pages = with_retry(context, |context| {
            let mut heap = lock(&context.heap);
            // Contiguous pages make one segment for an importer. A fragmented device has only
            // others.
            match heap.alloc_pages(&context.io, len, MemFlags::CONTIGUOUS, placement) {
                Err(error) if error.kind() == ErrorKind::OutOfDeviceMemory => {
                    // Empty pages that the pool keeps may be what is missing.
                    heap.trim(&context.io);
                    heap.alloc_pages(&context.io, len, MemFlags::NONE, placement)
                }
                answer => answer,
            }
        })?;
        Ok(Self::new(context, pages.va, len, Allocation::Pages(pages)))
    }

    fn new(context: &Arc<Context>, va: DeviceVa, len: u64, allocation: Allocation) -> Self {
        /// Counts for the whole process, so that users of several devices need no second number.
        static GENERATION: AtomicU64 = AtomicU64::new(1);
        context.live.buffers.fetch_add(1, Ordering::Relaxed);
        Self {
            region: Arc::new(Region {
                context: Arc::clone(context),
                generation: GENERATION.fetch_add(1, Ordering::Relaxed),
                va,
                len,
                allocation: Some(allocation),
                is_exported: AtomicBool::new(false),
                exports: OnceLock::new(),
                unfinished: Unfinished::default(),
            }),
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.region.context
    }

    /// Whether both are handles of the same allocation.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
    }

    /// Keeps the memory mapped and unused until a submission has ended whose queue is dropped
    /// before that.
    pub(crate) fn wait_for(&self, seq: u64) {
        self.region.unfinished.add(seq);
    }

    /// Whether the device can access the memory. `false` after a close that unmapped it and could
    /// not free it.
    pub(crate) fn is_mapped(&self) -> bool {
        let allocation = self.region.allocation.as_ref();
        allocation.is_some_and(Allocation::is_mapped)
    }

    /// Returns the device that has the memory.
    pub fn device(&self) -> DeviceId {
        self.region.context.id
    }

    /// Returns the requested number of bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a buffer has at least one byte: an allocation of 0 bytes is refused"
    )]
    pub fn len(&self) -> u64 {
        self.region.len
    }

    /// Returns the device address of the first byte.
    pub fn address(&self) -> DeviceVa {
        self.region.va
    }

    /// Returns the number of this allocation, from 1 upwards. No other allocation of this process
    /// has it, on any device, before or later: a key for caches, since addresses are reused.
    pub fn generation(&self) -> u64 {
        self.region.generation
    }

    /// Exports a part of the buffer as a dma-buf. Start and length must be multiples of 4096; a
    /// range without an end includes the whole last page.
    ///
    /// Only a buffer with pages of its own can be exported: an importer can access whole pages for
    /// as long as it holds the dma-buf.
    ///
    /// While the dma-buf is open, in any process, the buffer's pages stay allocated and the device
    /// stays open, even if the buffer is dropped. [`close`](Self::close) reports it.
    ///
    /// # Errors
    /// - `InvalidInput`: the range is not inside or not aligned, or the buffer shares its pages.
    /// - `Forked`, or the driver's own error.
    pub fn export(&self, range: impl RangeBounds<u64> + fmt::Debug) -> Result<DmaBuf> {
        let context = &self.region.context;
        let pages = self.exportable()?;
        let within = match range.end_bound() {
            Bound::Unbounded => self.len().next_multiple_of(PAGE),
            _ => self.len(),
        };
        let (offset, len) = resolve(context, EXPORT, "buffer", range, within)?;
        let dmabuf = self.range_of(pages)?.export(&*context.io, offset, len)?;
        self.region.is_exported.store(true, Ordering::Relaxed);
        Ok(dmabuf)
    }

    /// Returns a window of a dma-buf for any bytes of the buffer: of an open dma-buf that covers
    /// the range, otherwise of a new one of the pages around it.
    ///
    /// A buffer of [`Device::alloc_exportable`](crate::Device::alloc_exportable) returns a window
    /// of the one export of its pages; a close or drop does not reuse the memory while that export
    /// lives in this process. For others the limits of [`export`](Self::export) apply, and
    /// [`close`](Self::close) reports the holders of windows in this process.
    ///
    /// # Errors
    /// As [`export`](Self::export).
    #[track_caller]
    pub fn window(&self, range: impl RangeBounds<u64> + fmt::Debug) -> Result<Window> {
        let context = &self.region.context;
        context.check_process(EXPORT)?;
        let (offset, len) = resolve(context, EXPORT, "buffer", range, self.len())?;
        if let Some(Allocation::Piece(piece)) = &self.region.allocation {
            if let Some(window) = piece.window(&*context.io, offset, len) {
                let window = window?;
                self.region.is_exported.store(true, Ordering::Relaxed);
                return Ok(window);
            }
        }
        let pages = self.exportable()?;
        let exports = match self.region.exports.get() {
            Some(exports) => exports,
            None => {
                let made = Exports::new(self.range_of(pages)?);
                self.region.exports.get_or_init(|| made)
            }
        };
        let window = exports.window(&*context.io, offset, len)?;
        self.region.is_exported.store(true, Ordering::Relaxed);
        Ok(window)
    }

    /// Whether windows of the buffer exist or existed: export users are called before it is freed.
    pub(crate) fn has_windows(&self) -> bool {
        self.region.exports.get().is_some()
    }

    fn range_of(&self, pages: &DevicePages) -> Result<DeviceRange> {
        DeviceRange::new(self.region.context.export_rule.clone(), pages.va, pages.len)
    }

    fn exportable(&self) -> Result<&DevicePages> {
        let context = &self.region.context;
        context.check_process(EXPORT)?;
        match &self.region.allocation {
            Some(Allocation::Pages(pages)) if pages.is_mapped() => Ok(pages),
            Some(Allocation::Pages(_)) | None => {
                Err(context.invalid(EXPORT, "the buffer's address has another owner"))
            }
            Some(Allocation::Piece(_)) => Err(context
                .invalid(EXPORT, "the buffer shares its pages with others")
                .helped_by("allocate it with Device::alloc_exclusive")),
        }
    }

    /// Returns a handle for the status of the buffer's device.
    pub fn status_handle(&self) -> StatusHandle {
        StatusHandle::new(self.context())
    }

    /// Adds a user of the exported memory of the buffer's device. It is called before such memory
    /// is freed. The device holds a weak reference. Adding a user again has no effect.
    pub fn add_export_user(&self, user: &Arc<dyn ExportUser>) {
        if !self.context().owner.is_foreign() {
            self.context().export_users.add(user);
        }
    }

    /// Frees the memory, or returns the buffer with the error, so that the caller can repeat the
    /// call.
    ///
    /// If the driver unmapped the memory and did not free it, the buffer can only be closed again.
    ///
    /// # Errors
    /// - `InUse`: other handles, locations, copies in flight or, for an exported buffer, a dma-buf
    ///   hold it.
    /// - `InUse`: a queue was dropped before a copy of the buffer ended. The memory stays allocated
    ///   until the copy has ended.
    /// - `DeviceLost`, `InReset`: the device was reset before that. The driver frees the memory
    ///   when the device closes.
    /// - `Forked`, or the driver's own error.
    pub fn close(self) -> Result<(), CloseError<Self>> {
        if let Err(error) = self.region.context.check_process(CLOSE) {
            return Err(CloseError::new(self, error));
        }
        self.region.context.queues.reap();
        match unwrap_last(self.region) {
            Ok(mut region) => region.free().map_err(|error| {
                let region = Arc::new(region);
                CloseError::new(Self { region }, error)
            }),
            Err((region, others)) => {
                let buffer = Self { region };
                let error = buffer.in_use(others);
                Err(CloseError::new(buffer, error))
            }
        }
    }

    fn in_use(&self, others: usize) -> Error {
        let context = &self.region.context;
        let in_flight = context.queues.holds(self.generation());
        let mut cause = format!(
            "{others} others hold the buffer: {} handles or locations, {in_flight} of copies in flight",
            // Copies may have started since `others` was counted.
            others.saturating_sub(in_flight)
        );
        // A registration of memory holds a handle and a window: the window names it.
        let windows = self.region.windows();
        if !windows.is_empty() {
            cause.push_str(&format!("; windows of it live: {}", windows.join("; ")));
        }
        context
            .in_use(CLOSE, self.region.with_export_users(cause))
            .helped_by("wait for the copies' completions and drop the other handles")
    }
}

/// Allocates, and once more after the memory of ended copies is released.
fn with_retry<T>(context: &Context, alloc: impl Fn(&Context) -> Result<T>) -> Result<T> {
    match alloc(context) {
        Err(error) if error.kind() == ErrorKind::OutOfDeviceMemory => {
            context.queues.reap();
            alloc(context)
        }
        answer => answer,
    }
}

impl Region {
    /// Asks export users to release the memory: the driver refuses to free it before.
    fn release_exports(&self) {
        if self.exports.get().is_some() && self.allocation.is_some() {
            self.context.export_users.release(self.generation);
        }
    }

    /// The live windows of the buffer, in words.
    fn windows(&self) -> Vec<String> {
        self.exports.get().map_or_else(Vec::new, Exports::held)
    }

    /// Appends to a cause what export users report; nothing if the memory has no windows.
    fn with_export_users(&self, cause: String) -> String {
        match self.exports.get() {
            Some(_) => self.context.with_export_users(cause),
            None => cause,
        }
    }

    fn free(&mut self) -> Result<()> {
        self.release_exports();
        let context = &self.context;
        let windows = self.windows();
        if !windows.is_empty() {
            let cause = format!(
                "windows of the buffer at {} live: {}",
                self.va,
                windows.join("; ")
            );
            let error = context.in_use(CLOSE, self.with_export_users(cause));
            return Err(error.helped_by(EXPORTED));
        }
        self.unfinished.check(&*context.io, context.id, CLOSE)?;
        let Some(mut allocation) = self.allocation.take() else {
            unreachable!("a freed buffer is not returned to the caller");
        };
        self.mark(&mut allocation);
        let freed = lock(&context.heap).free(&context.io, allocation);
        freed.map_err(|(allocation, error)| {
            let is_mapped = allocation.is_mapped();
            self.allocation = Some(allocation);
            if is_mapped { self.explain(error) } else { error }
        })
    }

    /// Records in a piece whether windows of it were made.
    fn mark(&self, allocation: &mut Allocation) {
        if let Allocation::Piece(piece) = allocation {
            piece.is_exported = self.is_exported.load(Ordering::Relaxed);
        }
    }

    /// The driver refuses to unmap an exported mapping with `EINVAL` (`memory.c:unmap_device_va`).
    fn explain(&self, error: Error) -> Error {
        if !self.is_exported.load(Ordering::Relaxed) || error.errno() != Some(Errno::EINVAL) {
            return error;
        }
        error
            .with_kind(ErrorKind::InUse)
            .because(self.with_export_users(format!("a dma-buf of the buffer at {} lives", self.va)))
            .helped_by(EXPORTED)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.context.live.buffers.fetch_sub(1, Ordering::Relaxed);
        if self.context.owner.is_foreign() {
            return;
        }
        self.release_exports();
        let Some(mut allocation) = self.allocation.take() else {
            return;
        };
        self.mark(&mut allocation);
        let unfinished = self.unfinished.take();
        let discarded = lock(&self.context.heap).discard(&self.context.io, allocation, unfinished);
        if let Err(error) = discarded.map_err(|error| self.explain(error)) {
            tracing::warn!(
                "device {}: {} bytes at {} are not freed yet: {error}",
                self.context.id,
                self.len,
                self.va
            );
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer({} + {:#x} on {})",
            self.region.va, self.region.len, self.region.context.id
        )
    }
}
