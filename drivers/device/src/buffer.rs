//! Device memory: allocated, mapped, and given back by the last who holds it.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gaudi_dmabuf::export::habanalabs::DeviceRange;
use gaudi_dmabuf::{DmaBuf, Exports, Window};
use gaudi_seam::{DeviceId, DeviceVa, Errno, Error, ErrorKind, Result};
use gaudi_sys::PAGE;
use gaudi_uapi::memory::MemFlags;

use crate::context::{Context, alone, lock};
use crate::heap::{Pages, Piece, Restored};
use crate::location::Location;
use crate::unfinished::Unfinished;

/// Device memory, mapped into the device's address space. Its content is undefined until something is copied in.
///
/// A handle: a clone is the same memory. Copies in flight hold a clone, so dropping the last handle of the program never takes memory
/// away from a running engine; it goes back when the copy is done. [`close`](Self::close) says who still holds on.
#[derive(Clone)]
pub struct Buffer {
    region: Arc<Region>,
}

struct Region {
    context: Arc<Context>,
    generation: u64,
    va: DeviceVa,
    len: u64,
    home: Home,
    exported: AtomicBool,
    /// What windows share; made with the first.
    exports: OnceLock<Exports>,
    unfinished: Unfinished,
}

enum Home {
    Piece(Piece),
    Pages(Pages),
    /// The driver did not free the pages, and the device might no longer be able to access them. The
    /// buffer can only be closed again.
    Unmapped(Pages),
    Freed,
}

const EXPORTED: &str = "deregister its memory regions, then close its descriptors, in every process";
const EXPORT: &str = "HL_MEM_OP_EXPORT_DMABUF_FD";

/// The bytes of a range within `len`.
pub(crate) fn resolve(range: impl RangeBounds<u64>, len: u64) -> Option<(u64, u64)> {
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
}

impl Buffer {
    pub(crate) fn piece(context: &Arc<Context>, len: u64, align: u64) -> Result<Self> {
        let piece = with_room(context, |context| {
            lock(&context.heap).take(&context.io, len, align)
        })?;
        Ok(Self::new(context, piece.va, len, Home::Piece(piece)))
    }

    pub(crate) fn pages(context: &Arc<Context>, len: u64) -> Result<Self> {
        let pages = with_room(context, |context| {
            let mut heap = lock(&context.heap);
            // Pages in a row make one segment for whoever imports them; a fragmented device gives what it has.
            match heap.take_pages(&context.io, len, MemFlags::CONTIGUOUS) {
                Err(error) if error.kind() == ErrorKind::OutOfDeviceMemory => {
                    heap.take_pages(&context.io, len, MemFlags::NONE)
                }
                answer => answer,
            }
        })?;
        Ok(Self::new(context, pages.va, len, Home::Pages(pages)))
    }

    fn new(context: &Arc<Context>, va: DeviceVa, len: u64, home: Home) -> Self {
        /// Of the process, so that what keeps things of several devices needs no second number.
        static GENERATION: AtomicU64 = AtomicU64::new(1);
        context.live.buffers.fetch_add(1, Ordering::Relaxed);
        Self {
            region: Arc::new(Region {
                context: Arc::clone(context),
                generation: GENERATION.fetch_add(1, Ordering::Relaxed),
                va,
                len,
                home,
                exported: AtomicBool::new(false),
                exports: OnceLock::new(),
                unfinished: Unfinished::default(),
            }),
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.region.context
    }

    /// Whether both are handles of one allocation.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
    }

    /// Keeps the memory mapped and unused until a submission has ended whose queue is dropped
    /// before that.
    pub(crate) fn wait_for(&self, seq: u64) {
        self.region.unfinished.add(seq);
    }

    /// Whether the device reaches the memory. `false` after a close that unmapped it and could not
    /// free it.
    pub(crate) fn is_mapped(&self) -> bool {
        match &self.region.home {
            Home::Piece(piece) => piece.is_mapped(),
            Home::Pages(pages) => pages.is_mapped(),
            Home::Unmapped(_) | Home::Freed => false,
        }
    }

    /// The device whose memory it is.
    pub fn device(&self) -> DeviceId {
        self.region.context.id
    }

    /// Bytes that were asked for.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a buffer has at least one byte: an allocation of none is refused"
    )]
    pub fn len(&self) -> u64 {
        self.region.len
    }

    /// Where the device sees the first byte.
    pub fn address(&self) -> DeviceVa {
        self.region.va
    }

    /// Which allocation it is: a number, from 1 upwards, that no other allocation of this process has, on no device and at no time. For
    /// whoever keeps things by address, since an address is given again.
    pub fn generation(&self) -> u64 {
        self.region.generation
    }

    /// Whether the buffer has its pages for itself ([`Device::alloc_exclusive`](crate::Device::alloc_exclusive)).
    pub fn is_exclusive(&self) -> bool {
        matches!(self.region.home, Home::Pages(_))
    }

    /// A part of the buffer, to copy from or to. `InvalidInput` where the range leaves it.
    pub fn at(&self, range: impl RangeBounds<u64> + fmt::Debug) -> Result<Location> {
        let seen = format!("{range:?}");
        let (offset, len) = resolve(range, self.len()).ok_or_else(|| {
            self.region
                .context
                .wrong("Buffer::at", "the range leaves the buffer")
                .saw(&seen, format!("within 0..{}", self.len()))
        })?;
        Ok(Location::in_buffer(self, offset, len))
    }

    /// A dma-buf of a part of the buffer; start and length must be multiples of 4096, and a range without an end takes in the last
    /// page whole.
    ///
    /// Only a buffer with pages of its own can be exported: the importer keeps access for as long as it holds the dma-buf, and a
    /// neighbour's bytes, or the next owner's, must not lie there.
    ///
    /// While the dma-buf lives, here or in any process, the buffer's pages stay allocated and the device stays open, even if the buffer
    /// is dropped; [`close`](Self::close) says so.
    pub fn export(&self, range: impl RangeBounds<u64> + fmt::Debug) -> Result<DmaBuf> {
        let context = &self.region.context;
        let pages = self.exportable()?;
        let within = match range.end_bound() {
            Bound::Unbounded => self.len().next_multiple_of(PAGE),
            _ => self.len(),
        };
        let seen = format!("{range:?}");
        let (offset, len) = resolve(range, within).ok_or_else(|| {
            context
                .wrong(EXPORT, "the range leaves the buffer")
                .saw(&seen, format!("within 0..{within}"))
        })?;
        let dmabuf = self.range_of(pages)?.export(&*context.io, offset, len)?;
        self.region.exported.store(true, Ordering::Relaxed);
        Ok(dmabuf)
    }

    /// A part of the buffer, any bytes of it, as a window of a dma-buf: one that lives and covers the range, else a new one of the pages
    /// that the range lies in. What can be exported, and what that holds, is as with [`export`](Self::export); here
    /// [`close`](Self::close) names who in this process holds which window.
    #[track_caller]
    pub fn window(&self, range: impl RangeBounds<u64> + fmt::Debug) -> Result<Window> {
        let context = &self.region.context;
        let pages = self.exportable()?;
        let seen = format!("{range:?}");
        let (offset, len) = resolve(range, self.len()).ok_or_else(|| {
            context
                .wrong(EXPORT, "the range leaves the buffer")
                .saw(&seen, format!("within 0..{}", self.len()))
        })?;
        let exports = match self.region.exports.get() {
            Some(exports) => exports,
            None => {
                let made = Exports::new(self.range_of(pages)?);
                self.region.exports.get_or_init(|| made)
            }
        };
        let window = exports.window(&*context.io, offset, len)?;
        self.region.exported.store(true, Ordering::Relaxed);
        Ok(window)
    }

    /// Whether the buffer was exported: its keepers are called before it is freed.
    pub(crate) fn is_exported(&self) -> bool {
        self.region.exports.get().is_some()
    }

    fn range_of(&self, pages: &Pages) -> Result<DeviceRange> {
        DeviceRange::new(self.region.context.export_rule.clone(), pages.va, pages.len)
    }

    fn exportable(&self) -> Result<&Pages> {
        let context = &self.region.context;
        context.here(EXPORT)?;
        let Home::Pages(pages) = &self.region.home else {
            return Err(context
                .wrong(EXPORT, "the buffer shares its pages with others")
                .helped_by("allocate it with Device::alloc_exclusive"));
        };
        if !pages.is_mapped() {
            return Err(context.wrong(EXPORT, "the buffer's address has another owner"));
        }
        Ok(pages)
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
    /// - The driver's own error.
    pub fn close(self) -> Result<(), (Self, Error)> {
        if let Err(error) = self.region.context.here("Buffer::close") {
            return Err((self, error));
        }
        self.region.context.settle();
        match alone(self.region) {
            Ok(mut region) => match region.release() {
                Ok(()) => Ok(()),
                Err(error) => Err((
                    Self {
                        region: Arc::new(region),
                    },
                    error,
                )),
            },
            Err((region, others)) => {
                let buffer = Self { region };
                let error = buffer.held(others);
                Err((buffer, error))
            }
        }
    }

    fn held(&self, others: usize) -> Error {
        let context = &self.region.context;
        let in_flight: usize = context.lanes().iter().map(|lane| lane.holds(self)).sum();
        let mut cause = format!(
            "{others} others hold the buffer: {} handles or locations, {in_flight} of copies in flight",
            others.saturating_sub(in_flight)
        );
        // Whoever registers memory keeps a handle of it: the region is the one to name.
        let windows = self.region.exports.get().map(Exports::held).unwrap_or_default();
        if !windows.is_empty() {
            cause.push_str(&format!("; windows of it live: {}", windows.join("; ")));
        }
        Error::new(ErrorKind::InUse, "Buffer::close")
            .on(context.id)
            .because(self.region.with_keepers(cause))
            .helped_by("wait for the copies' completions and drop the other handles")
    }
}

/// Tries again after what finished copies held has gone.
fn with_room<T>(context: &Arc<Context>, take: impl Fn(&Context) -> Result<T>) -> Result<T> {
    let full = |answer: &Result<T>| {
        answer
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::OutOfDeviceMemory)
    };
    let first = take(context);
    if !full(&first) {
        return first;
    }
    context.settle();
    take(context)
}

impl Region {
    /// What other parts of the program keep of the memory goes first: it would be refused to us.
    fn tell_keepers(&self) {
        if self.exports.get().is_some() && !matches!(self.home, Home::Freed) {
            self.context.freeing(self.generation);
        }
    }

    /// A cause, with who stands on exported memory.
    fn with_keepers(&self, cause: String) -> String {
        if self.exports.get().is_none() {
            return cause;
        }
        self.context.with_keepers(cause)
    }

    fn release(&mut self) -> Result<()> {
        self.tell_keepers();
        let context = &self.context;
        let held = self.exports.get().map(Exports::held).unwrap_or_default();
        if !held.is_empty() {
            return Err(Error::new(ErrorKind::InUse, "Buffer::close")
                .on(context.id)
                .because(self.with_keepers(format!(
                    "windows of the buffer at {} live: {}",
                    self.va,
                    held.join("; ")
                )))
                .helped_by(EXPORTED));
        }
        let mut unfinished = self.unfinished.take();
        if !unfinished.have_ended(&*context.io) {
            let error = unfinished.in_use(context.id, "Buffer::close");
            self.unfinished.restore(unfinished);
            return Err(error);
        }
        let mut heap = lock(&context.heap);
        match std::mem::replace(&mut self.home, Home::Freed) {
            Home::Piece(piece) => heap.give(&context.io, &piece).inspect_err(|_| {
                // The piece stays this buffer's, to be closed again.
                match heap.restore(&piece) {
                    Restored::Piece => self.home = Home::Piece(piece),
                    Restored::Pages(pages) => self.home = Home::Unmapped(pages),
                    Restored::Nothing => {}
                }
            }),
            Home::Pages(pages) | Home::Unmapped(pages) => {
                let handle = pages.handle;
                let answer = heap.give_pages(&context.io, pages);
                // The pages stay this buffer's, to be closed again.
                let kept = heap.take_back(handle);
                drop(heap);
                let mapped = kept.as_ref().is_some_and(Pages::is_mapped);
                if let Some(pages) = kept {
                    self.home = if mapped {
                        Home::Pages(pages)
                    } else {
                        Home::Unmapped(pages)
                    };
                }
                answer.map_err(|error| if mapped { self.explain(error) } else { error })
            }
            Home::Freed => Ok(()),
        }
    }

    fn explain(&self, error: Error) -> Error {
        // The driver's answer for a mapping that is exported (memory.c:1297); every other has a cause of its own.
        if !self.exported.load(Ordering::Relaxed) || error.errno() != Some(Errno::EINVAL) {
            return error;
        }
        error
            .with_kind(ErrorKind::InUse)
            .because(self.with_keepers(format!("a dma-buf of the buffer at {} lives", self.va)))
            .helped_by(EXPORTED)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let context = &self.context;
        context.live.buffers.fetch_sub(1, Ordering::Relaxed);
        if context.owner.is_foreign() {
            return;
        }
        let context = Arc::clone(context);
        self.tell_keepers();
        let mut unfinished = self.unfinished.take();
        let mut heap = lock(&context.heap);
        let answer = match std::mem::replace(&mut self.home, Home::Freed) {
            Home::Piece(piece) if unfinished.have_ended(&*context.io) => heap.give(&context.io, &piece),
            Home::Piece(piece) => {
                heap.give_later(piece, unfinished);
                Ok(())
            }
            Home::Pages(mut pages) | Home::Unmapped(mut pages) => {
                pages.wait_for(unfinished);
                heap.give_pages(&context.io, pages)
            }
            Home::Freed => Ok(()),
        };
        drop(heap);
        if let Err(error) = answer.map_err(|error| self.explain(error)) {
            tracing::warn!(
                "device {}: {} bytes at {} were not given back: {error}",
                context.id,
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
