//! Device memory in pieces: the chip's page has hundreds of megabytes, so buffers share pages.

use std::sync::Arc;

use gaudi_dmabuf::export::habanalabs::{DeviceRange, Rule};
use gaudi_dmabuf::{Exports, Window};
use gaudi_seam::{
    DeviceId, DeviceVa, Errno, Error, ErrorKind, KernelIo, MapDevice, MemAlloc, MemHandle, Result, SharedIo,
};
use gaudi_uapi::memory::MemFlags;

use crate::free_ranges::FreeRanges;
use crate::owners::{Owner, Owners};
use crate::unfinished::Submissions;

const UNMAP: &str = "HL_MEM_OP_UNMAP";

/// Which pages an allocation of the driver has, and where they are mapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Placement {
    /// The page in bytes: one of those that the driver reports, or 0 for its default.
    pub page_bytes: u64,
    /// The address at which the driver maps the memory, if the address is free and a multiple of
    /// the page. Otherwise the driver chooses.
    pub hint: Option<DeviceVa>,
}

/// Pages of one allocation of the driver.
#[derive(Debug)]
pub(crate) struct DevicePages {
    pub(crate) handle: MemHandle,
    pub(crate) va: DeviceVa,
    pub(crate) len: u64,
    mapping: Mapping,
    /// Submissions of dropped queues that may still write to the pages.
    unfinished: Submissions,
}

/// Whether the device can access pages.
#[derive(Debug)]
enum Mapping {
    Mapped(Owner),
    /// An unmap and a free failed, and neither error shows whether the device can still access
    /// the pages.
    Unknown(Owner),
    Unmapped,
}

impl DevicePages {
    /// Whether the device can access the pages at their address.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(&self.mapping, Mapping::Mapped(owner) if owner.owns())
    }
}

/// Counters of the pages that buffers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// Allocations of the driver.
    pub allocations: u64,
    /// Those without a buffer.
    pub empty_allocations: u64,
    /// Bytes of all allocations.
    pub held_bytes: u64,
    /// Bytes of them that no buffer has.
    pub free_bytes: u64,
    /// The most bytes that a buffer can have without a new allocation.
    pub largest_free_bytes: u64,
    /// Bytes of dropped buffers that an importer or a submission may still access.
    pub quarantined_bytes: u64,
}

/// Pages and their free ranges.
#[derive(Debug)]
struct Chunk {
    pages: DevicePages,
    owner: Owner,
    free: FreeRanges,
    /// The exports of all its pieces; `None` if no piece can be exported.
    exports: Option<Arc<Exports>>,
}

/// A piece of a chunk.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) va: DeviceVa,
    chunk: MemHandle,
    /// Bytes from the chunk's start.
    at: u64,
    span: u64,
    owner: Owner,
    /// The exports of its chunk, and the bytes of the chunk.
    exports: Option<(Arc<Exports>, u64)>,
    /// Whether windows of the piece were made.
    pub(crate) is_exported: bool,
}

impl Piece {
    /// Returns a window of the chunk's export for a part of the piece; `None` if the piece cannot
    /// be exported.
    pub(crate) fn window(&self, io: &dyn KernelIo, offset: u64, len: u64) -> Option<Result<Window>> {
        let (exports, chunk) = self.exports.as_ref()?;
        // One export serves all pieces.
        let whole = exports.window(io, 0, *chunk);
        Some(whole.and_then(|whole| whole.window(self.at + offset, len)))
    }
}

/// Memory of one buffer.
#[derive(Debug)]
pub(crate) enum Allocation {
    Piece(Piece),
    /// Pages of its own, or those of a piece whose chunk was unmapped and not freed.
    Pages(DevicePages),
}

impl Allocation {
    /// Whether the device can access the memory at its address.
    pub(crate) fn is_mapped(&self) -> bool {
        match self {
            Self::Piece(piece) => piece.owner.owns(),
            Self::Pages(pages) => pages.is_mapped(),
        }
    }
}

/// The device memory of one open device.
#[derive(Debug)]
pub(crate) struct Heap {
    device: DeviceId,
    page: u64,
    grain: u64,
    /// Oldest first.
    chunks: Vec<Chunk>,
    /// Pages that could not be unmapped, because a dma-buf of them lives or a submission may still
    /// write to them, or not freed. They are never allocated again. Each allocation of pages
    /// retries.
    lingering: Vec<DevicePages>,
    /// Freed pieces that submissions of dropped queues may still write to, and exported ones while
    /// an export of their chunk lives: an importer may still access them.
    unfinished: Vec<(Piece, Submissions)>,
    /// Empty chunks that stay allocated.
    kept: usize,
    /// How an exportable chunk is exported.
    rule: Rule,
    owners: Arc<Owners>,
    /// The lowest address for pages without a hint; `None` if the driver chooses.
    lowest: Option<u64>,
}

impl Heap {
    /// `page`: the driver's page; `grain`: no two pieces share this many aligned bytes.
    pub(crate) fn new(
        device: DeviceId,
        page: u64,
        grain: u64,
        owners: Arc<Owners>,
        lowest: Option<u64>,
        (rule, kept): (Rule, usize),
    ) -> Self {
        Self {
            device,
            page: page.max(1),
            grain: grain.max(1),
            chunks: Vec::new(),
            lingering: Vec::new(),
            unfinished: Vec::new(),
            kept,
            rule,
            owners,
            lowest,
        }
    }

    /// Allocates `len` bytes at a multiple of `align`: from the free range that fits best in the
    /// oldest chunk with room, otherwise from new pages. Exportable memory has chunks of its own.
    ///
    /// # Errors
    /// `OutOfDeviceMemory`, or the driver's own error.
    pub(crate) fn alloc(&mut self, io: &SharedIo, len: u64, align: u64, exportable: bool) -> Result<Piece> {
        let too_large = || Error::new(ErrorKind::OutOfDeviceMemory, "HL_MEM_OP_ALLOC");
        let span = len.checked_next_multiple_of(self.grain).ok_or_else(too_large)?;
        let align = align.max(self.grain);
        let piece = |chunk: &mut Chunk| {
            let at = chunk.free.take(span, align)?;
            Some(Piece {
                va: chunk.pages.va.checked_add(at)?,
                chunk: chunk.pages.handle,
                at,
                span,
                owner: chunk.owner.clone(),
                exports: chunk.exports.clone().map(|exports| (exports, chunk.pages.len)),
                is_exported: false,
            })
        };
        if !self.unfinished.is_empty() {
            self.retry_unfinished(io);
        }
        // The oldest chunk with room, not the best fit of all: the youngest empty sooner. Random
        // buffers then hold 7 pages where the best fit or classes of sizes hold 8.
        let mapped = self.chunks.iter_mut().filter(|chunk| chunk.owner.owns());
        let mut of_kind = mapped.filter(|chunk| chunk.exports.is_some() == exportable);
        if let Some(piece) = of_kind.find_map(piece) {
            return Ok(piece);
        }
        let pages = match self.alloc_pages(io, span, MemFlags::NONE, Placement::default()) {
            Err(error) if error.kind() == ErrorKind::OutOfDeviceMemory && self.trim(io) > 0 => {
                self.alloc_pages(io, span, MemFlags::NONE, Placement::default())?
            }
            answer => answer?,
        };
        let Mapping::Mapped(owner) = &pages.mapping else {
            unreachable!("new pages are mapped");
        };
        let exports = if exportable {
            let range = DeviceRange::new(self.rule.clone(), pages.va, pages.len)?;
            Some(Arc::new(Exports::new(range)))
        } else {
            None
        };
        let mut chunk = Chunk {
            owner: owner.clone(),
            free: FreeRanges::new(pages.len),
            exports,
            pages,
        };
        match piece(&mut chunk) {
            Some(piece) => {
                self.chunks.push(chunk);
                Ok(piece)
            }
            None => {
                self.free_pages(io, chunk.pages)?;
                Err(too_large())
            }
        }
    }

    /// Frees the chunks that have no piece. Returns their bytes.
    pub(crate) fn trim(&mut self, io: &SharedIo) -> u64 {
        let before = self.held();
        // The last piece of a chunk may wait for an export that closed since.
        self.retry_unfinished(io);
        let mut freed = before - self.held();
        while let Some(index) = self.chunks.iter().position(|chunk| chunk.free.is_whole()) {
            let pages = self.chunks.remove(index).pages;
            let len = pages.len;
            // On an error the pages linger.
            if self.free_pages(io, pages).is_ok() {
                freed += len;
            }
        }
        freed
    }

    /// Bytes of all chunks.
    fn held(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.pages.len).sum()
    }

    /// Returns the counters of the shared pages.
    pub(crate) fn stats(&self) -> PoolStats {
        let mut stats = PoolStats {
            held_bytes: self.held(),
            ..PoolStats::default()
        };
        for chunk in &self.chunks {
            stats.free_bytes += chunk.free.bytes();
            stats.largest_free_bytes = stats.largest_free_bytes.max(chunk.free.largest());
            stats.allocations += 1;
            stats.empty_allocations += u64::from(chunk.free.is_whole());
        }
        stats.quarantined_bytes = self.unfinished.iter().map(|(piece, _)| piece.span).sum();
        stats
    }

    /// Whether an importer may still access a freed piece.
    fn is_held(piece: &Piece) -> bool {
        let is_live = |(exports, _): &(Arc<Exports>, u64)| exports.is_live();
        piece.is_exported && piece.exports.as_ref().is_some_and(is_live)
    }

    /// Frees memory.
    ///
    /// # Errors
    /// The driver's own error, or `InUse` if a submission may still write to the memory, with what
    /// is left of the allocation: the caller can repeat the call.
    pub(crate) fn free(
        &mut self,
        io: &SharedIo,
        allocation: Allocation,
    ) -> std::result::Result<(), (Allocation, Error)> {
        match allocation {
            Allocation::Piece(piece) if Self::is_held(&piece) => {
                self.unfinished.push((piece, Submissions::default()));
                Ok(())
            }
            Allocation::Piece(piece) => self
                .free_piece(io, &piece)
                .map_err(|error| (self.restore(piece), error)),
            Allocation::Pages(pages) => {
                let handle = pages.handle;
                self.free_pages(io, pages)
                    .map_err(|error| (Allocation::Pages(self.take_lingering(handle)), error))
            }
        }
    }

    /// Frees memory that no handle refers to once the submissions have ended. Each allocation of
    /// pages retries what is not freed yet.
    ///
    /// # Errors
    /// As [`free`](Self::free). The memory is not allocated again before it is freed.
    pub(crate) fn discard(
        &mut self,
        io: &SharedIo,
        allocation: Allocation,
        mut submissions: Submissions,
    ) -> Result<()> {
        match allocation {
            Allocation::Piece(piece) if submissions.have_ended(&**io) && !Self::is_held(&piece) => {
                self.free_piece(io, &piece)
            }
            Allocation::Piece(piece) => {
                self.unfinished.push((piece, submissions));
                Ok(())
            }
            Allocation::Pages(mut pages) => {
                pages.unfinished.append(submissions);
                self.free_pages(io, pages)
            }
        }
    }

    /// Frees a piece. The last piece of a chunk frees the pages.
    fn free_piece(&mut self, io: &SharedIo, piece: &Piece) -> Result<()> {
        let of_piece = |chunk: &Chunk| chunk.pages.handle == piece.chunk;
        let Some(index) = self.chunks.iter().position(of_piece) else {
            unreachable!("a piece lies in a chunk until it is freed");
        };
        let chunk = &mut self.chunks[index];
        chunk.free.release(piece.at, piece.span);
        if !chunk.free.is_whole() {
            return Ok(());
        }
        let is_empty = |chunk: &&Chunk| chunk.free.is_whole();
        if self.chunks.iter().filter(is_empty).count() <= self.kept {
            return Ok(());
        }
        let chunk = self.chunks.remove(index);
        self.free_pages(io, chunk.pages)
    }

    /// Undoes a [`free_piece`](Self::free_piece) that failed.
    fn restore(&mut self, piece: Piece) -> Allocation {
        let pages = self.take_lingering(piece.chunk);
        if !pages.is_mapped() {
            return Allocation::Pages(pages);
        }
        // The failed call emptied the chunk: no other piece is allocated.
        let (mut free, end) = (FreeRanges::taken(pages.len), piece.at + piece.span);
        for (start, len) in [(0, piece.at), (end, pages.len.saturating_sub(end))] {
            if len > 0 {
                free.release(start, len);
            }
        }
        self.chunks.push(Chunk {
            pages,
            owner: piece.owner.clone(),
            free,
            exports: piece.exports.clone().map(|(exports, _)| exports),
        });
        Allocation::Piece(piece)
    }

    /// Allocates and maps whole pages.
    ///
    /// # Errors
    /// The driver's own error.
    pub(crate) fn alloc_pages(
        &mut self,
        io: &SharedIo,
        len: u64,
        flags: MemFlags,
        placement: Placement,
    ) -> Result<DevicePages> {
        self.retry_lingering(io);
        let handle = io.mem_alloc(MemAlloc {
            size: len,
            page_size: placement.page_bytes,
            flags,
        })?;
        // The driver rounds up too, and rejects a length that overflows.
        let whole = len.checked_next_multiple_of(self.page).unwrap_or(len);
        // The driver maps elsewhere if the hint is in use.
        let lowest = || {
            let at = self.owners.gap(self.lowest?, whole, self.page)?;
            Some(DeviceVa(at))
        };
        let hint = placement.hint.or_else(lowest);
        let mapped = self.owners.map(whole, || {
            io.mem_map_device(MapDevice {
                handle,
                hint,
                flags: MemFlags::NONE,
            })
        });
        match mapped {
            Ok((va, owner)) => Ok(DevicePages {
                handle,
                va,
                len: whole,
                mapping: Mapping::Mapped(owner),
                unfinished: Submissions::default(),
            }),
            Err(error) => {
                let pages = DevicePages {
                    handle,
                    va: DeviceVa(0),
                    len,
                    mapping: Mapping::Unmapped,
                    unfinished: Submissions::default(),
                };
                if let Err(second) = self.free_pages(io, pages) {
                    tracing::error!(
                        "device {}: pages that were not mapped are not freed yet, and the next allocation retries: {second}",
                        self.device
                    );
                }
                Err(error)
            }
        }
    }

    /// Unmaps and frees whole pages. On an error they linger.
    ///
    /// # Errors
    /// `InUse`: a submission may still write to them. The driver's own error otherwise.
    fn free_pages(&mut self, io: &SharedIo, mut pages: DevicePages) -> Result<()> {
        // If the address were unmapped and mapped again, the submission would write to another
        // buffer.
        let ended = pages.unfinished.check(&**io, self.device, UNMAP);
        let answer = ended.and_then(|()| self.unmap_and_free(io, &mut pages));
        if answer.is_err() {
            self.lingering.push(pages);
        }
        answer
    }

    /// An unmap that returns an error may still have unmapped the pages, and the address may have
    /// another owner by the next call. The handle still names these pages: the driver refuses to
    /// free it with `EINVAL` while it is mapped (`memory.c:free_device_memory`).
    fn unmap_and_free(&self, io: &SharedIo, pages: &mut DevicePages) -> Result<()> {
        if let Mapping::Unknown(owner) = &pages.mapping {
            match io.mem_free(pages.handle) {
                Err(error) if error.errno() == Some(Errno::EINVAL) => {
                    pages.mapping = Mapping::Mapped(owner.clone());
                }
                answer => {
                    if answer.is_ok() {
                        self.owners.release(pages.va, owner);
                    }
                    return answer;
                }
            }
        }
        if let Mapping::Mapped(owner) = &pages.mapping {
            if let Err(error) = self.owners.unmap(&**io, pages.va, owner) {
                return match io.mem_free(pages.handle) {
                    Ok(()) => {
                        tracing::warn!(
                            "device {}: unmapping {} failed after the driver had unmapped it: {error}",
                            self.device,
                            pages.va
                        );
                        self.owners.release(pages.va, owner);
                        Ok(())
                    }
                    Err(free) if free.errno() == Some(Errno::EINVAL) => Err(error),
                    Err(_) => {
                        pages.mapping = Mapping::Unknown(owner.clone());
                        Err(error)
                    }
                };
            }
            pages.mapping = Mapping::Unmapped;
        }
        io.mem_free(pages.handle)
    }

    /// Removes pages that were just not freed, so that the caller can repeat it.
    fn take_lingering(&mut self, handle: MemHandle) -> DevicePages {
        let index = self.lingering.iter().rposition(|pages| pages.handle == handle);
        let Some(index) = index else {
            unreachable!("pages that are not freed linger");
        };
        self.lingering.swap_remove(index)
    }

    /// Frees the pieces that nothing accesses any more.
    fn retry_unfinished(&mut self, io: &SharedIo) {
        for (piece, mut submissions) in std::mem::take(&mut self.unfinished) {
            if submissions.have_ended(&**io) && !Self::is_held(&piece) {
                // On an error the pages linger and are retried.
                let _ = self.free_piece(io, &piece);
            } else {
                self.unfinished.push((piece, submissions));
            }
        }
    }

    /// Retries what could not be freed.
    pub(crate) fn retry_lingering(&mut self, io: &SharedIo) {
        self.retry_unfinished(io);
        for pages in std::mem::take(&mut self.lingering) {
            // On an error the pages linger again.
            let _ = self.free_pages(io, pages);
        }
    }

    /// How many allocations could not be freed, except those that a submission may still write to.
    /// Most wait for their exports to close.
    pub(crate) fn lingering(&self) -> usize {
        self.lingering
            .iter()
            .filter(|pages| pages.unfinished.is_empty())
            .count()
    }
}
