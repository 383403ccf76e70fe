//! Device memory by the piece: the chip's page is hundreds of megabytes, so pages are cut.

use std::sync::Arc;

use gaudi_seam::{
    DeviceId, DeviceVa, Errno, Error, ErrorKind, MapDevice, MemAlloc, MemHandle, Result, SharedIo,
};
use gaudi_uapi::memory::MemFlags;

use crate::owners::{Owner, Owners};
use crate::ranges::FreeRanges;
use crate::unfinished::Submissions;

const UNMAP: &str = "HL_MEM_OP_UNMAP";

/// Pages that the driver gave in one allocation.
#[derive(Debug)]
pub(crate) struct Pages {
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

impl Pages {
    /// Whether the device can access the pages at their address.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(&self.mapping, Mapping::Mapped(owner) if owner.owns())
    }

    /// Adds submissions that must end before the pages are unmapped.
    pub(crate) fn wait_for(&mut self, submissions: Submissions) {
        self.unfinished.append(submissions);
    }
}

/// Pages and what of them is free.
#[derive(Debug)]
struct Chunk {
    pages: Pages,
    owner: Owner,
    free: FreeRanges,
}

/// A piece of a chunk.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) va: DeviceVa,
    chunk: MemHandle,
    /// Bytes from the chunk's start.
    at: u64,
    span: u64,
    owner: Owner,
}

impl Piece {
    /// Whether the device reaches the piece at its address.
    pub(crate) fn is_mapped(&self) -> bool {
        self.owner.owns()
    }
}

/// What [`Heap::restore`] recovers.
#[derive(Debug)]
pub(crate) enum Restored {
    Piece,
    /// The pages of the piece. The device might no longer be able to access them; they must still be
    /// freed.
    Pages(Pages),
    Nothing,
}

/// The device memory of one open device.
#[derive(Debug)]
pub(crate) struct Heap {
    device: DeviceId,
    page: u64,
    grain: u64,
    chunks: Vec<Chunk>,
    /// Pages that could not be unmapped, because a dma-buf of them lives or a submission may still
    /// write to them, or not freed. They are never allocated again. Each allocation of pages
    /// retries.
    lingering: Vec<Pages>,
    /// Pieces that submissions of dropped queues may still write to.
    unfinished: Vec<(Piece, Submissions)>,
    owners: Arc<Owners>,
}

impl Heap {
    /// `page`: the driver's; `grain`: what no two pieces share.
    pub(crate) fn new(device: DeviceId, page: u64, grain: u64, owners: Arc<Owners>) -> Self {
        Self {
            device,
            page: page.max(1),
            grain: grain.max(1),
            chunks: Vec::new(),
            lingering: Vec::new(),
            unfinished: Vec::new(),
            owners,
        }
    }

    /// `len` bytes at a multiple of `align`, from the first chunk that has them, otherwise from new
    /// pages.
    pub(crate) fn take(&mut self, io: &SharedIo, len: u64, align: u64) -> Result<Piece> {
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
            })
        };
        let mut mapped = self.chunks.iter_mut().filter(|chunk| chunk.owner.owns());
        if let Some(piece) = mapped.find_map(piece) {
            return Ok(piece);
        }
        let pages = self.take_pages(io, span, MemFlags::NONE)?;
        let Mapping::Mapped(owner) = &pages.mapping else {
            unreachable!("new pages are mapped");
        };
        let mut chunk = Chunk {
            owner: owner.clone(),
            free: FreeRanges::new(pages.len),
            pages,
        };
        match piece(&mut chunk) {
            Some(piece) => {
                self.chunks.push(chunk);
                Ok(piece)
            }
            None => {
                self.give_pages(io, chunk.pages)?;
                Err(too_large())
            }
        }
    }

    /// Frees a piece. The last piece of a chunk frees the pages.
    pub(crate) fn give(&mut self, io: &SharedIo, piece: &Piece) -> Result<()> {
        let Some(index) = self
            .chunks
            .iter()
            .position(|chunk| chunk.pages.handle == piece.chunk)
        else {
            return Ok(());
        };
        let chunk = &mut self.chunks[index];
        chunk.free.give(piece.at, piece.span);
        if !chunk.free.is_whole() {
            return Ok(());
        }
        let chunk = self.chunks.swap_remove(index);
        self.give_pages(io, chunk.pages)
    }

    /// Frees a piece once the submissions have ended, which each allocation of pages checks.
    pub(crate) fn give_later(&mut self, piece: Piece, submissions: Submissions) {
        self.unfinished.push((piece, submissions));
    }

    /// Undoes a [`give`](Self::give) that failed, so that the caller can repeat it.
    pub(crate) fn restore(&mut self, piece: &Piece) -> Restored {
        let Some(pages) = self.take_back(piece.chunk) else {
            return Restored::Nothing;
        };
        if !pages.is_mapped() {
            return Restored::Pages(pages);
        }
        // The failed call emptied the chunk: the piece is all that is taken.
        let (mut free, end) = (FreeRanges::taken(pages.len), piece.at + piece.span);
        for (start, len) in [(0, piece.at), (end, pages.len.saturating_sub(end))] {
            if len > 0 {
                free.give(start, len);
            }
        }
        self.chunks.push(Chunk {
            pages,
            owner: piece.owner.clone(),
            free,
        });
        Restored::Piece
    }

    /// Whole pages, mapped.
    pub(crate) fn take_pages(&mut self, io: &SharedIo, len: u64, flags: MemFlags) -> Result<Pages> {
        self.retry_lingering(io);
        let handle = io.mem_alloc(MemAlloc {
            size: len,
            page_size: 0,
            flags,
        })?;
        let whole = len.checked_next_multiple_of(self.page).unwrap_or(len);
        let mapped = self.owners.map(whole, || {
            io.mem_map_device(MapDevice {
                handle,
                hint: None,
                flags: MemFlags::NONE,
            })
        });
        match mapped {
            Ok((va, owner)) => Ok(Pages {
                handle,
                va,
                len: whole,
                mapping: Mapping::Mapped(owner),
                unfinished: Submissions::default(),
            }),
            Err(error) => {
                let pages = Pages {
                    handle,
                    va: DeviceVa(0),
                    len,
                    mapping: Mapping::Unmapped,
                    unfinished: Submissions::default(),
                };
                if let Err(second) = self.give_pages(io, pages) {
                    tracing::error!("freeing what could not be mapped: {second}; it is tried again later");
                }
                Err(error)
            }
        }
    }

    /// Unmaps and frees whole pages. Keeps them and returns the error if the driver refuses.
    pub(crate) fn give_pages(&mut self, io: &SharedIo, mut pages: Pages) -> Result<()> {
        if !pages.unfinished.have_ended(&**io) {
            // If the address were unmapped and mapped again, the submission would write to another
            // buffer.
            let error = pages.unfinished.in_use(self.device, UNMAP);
            self.lingering.push(pages);
            return Err(error);
        }
        let answer = self.unmap_and_free(io, &mut pages);
        if answer.is_err() {
            self.lingering.push(pages);
        }
        answer
    }

    /// An unmap that returns an error may still have unmapped the pages, and the address may have
    /// another owner by the next call. The handle still names these pages: the driver refuses to
    /// free it with `EINVAL` while it is mapped (`memory.c:free_device_memory`).
    fn unmap_and_free(&self, io: &SharedIo, pages: &mut Pages) -> Result<()> {
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

    /// Removes pages that the driver refused to free, so that the caller can repeat it.
    pub(crate) fn take_back(&mut self, handle: MemHandle) -> Option<Pages> {
        let index = self.lingering.iter().rposition(|pages| pages.handle == handle)?;
        Some(self.lingering.swap_remove(index))
    }

    /// Retries what could not be freed.
    pub(crate) fn retry_lingering(&mut self, io: &SharedIo) {
        for (piece, mut submissions) in std::mem::take(&mut self.unfinished) {
            if submissions.have_ended(&**io) {
                // On an error the pages are lingering.
                let _ = self.give(io, &piece);
            } else {
                self.unfinished.push((piece, submissions));
            }
        }
        for pages in std::mem::take(&mut self.lingering) {
            // On an error the pages are lingering again.
            let _ = self.give_pages(io, pages);
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
