//! Device memory by the piece: the chip's page is hundreds of megabytes, so pages are cut.

use gaudi_seam::{DeviceVa, Error, ErrorKind, MapDevice, MemAlloc, MemHandle, Result, SharedIo};
use gaudi_uapi::memory::MemFlags;

use crate::ranges::FreeRanges;

/// Pages that the driver gave in one allocation.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) handle: MemHandle,
    pub(crate) va: DeviceVa,
    pub(crate) len: u64,
    /// Whether the device still reaches them: `false` between an unmapping that succeeded and a freeing that did not.
    pub(crate) mapped: bool,
}

/// Pages and what of them is free.
#[derive(Debug)]
struct Chunk {
    pages: Pages,
    free: FreeRanges,
}

/// A piece of a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) va: DeviceVa,
    chunk: DeviceVa,
    span: u64,
}

/// What a failed return left.
#[derive(Debug)]
pub(crate) enum Restored {
    Piece,
    /// The pages of the piece, which the device does not reach any more; they are still to be freed.
    Unmapped(Pages),
    Nothing,
}

/// The device memory of one open device.
#[derive(Debug)]
pub(crate) struct Heap {
    page: u64,
    grain: u64,
    chunks: Vec<Chunk>,
    /// Pages that the driver refused to unmap, because a dma-buf of them lives, or to free: never given out again, tried again now and
    /// then.
    lingering: Vec<Pages>,
}

impl Heap {
    /// `page`: the driver's; `grain`: what no two pieces share.
    pub(crate) fn new(page: u64, grain: u64) -> Self {
        Self {
            page: page.max(1),
            grain: grain.max(1),
            chunks: Vec::new(),
            lingering: Vec::new(),
        }
    }

    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// `len` bytes at a multiple of `align`, from the first chunk that has them, else from new pages.
    pub(crate) fn take(&mut self, io: &SharedIo, len: u64, align: u64) -> Result<Piece> {
        let too_large = || Error::new(ErrorKind::OutOfDeviceMemory, "HL_MEM_OP_ALLOC");
        let span = len.checked_next_multiple_of(self.grain).ok_or_else(too_large)?;
        let align = align.max(self.grain);
        let found = self
            .chunks
            .iter_mut()
            .find_map(|chunk| chunk.free.take(span, align).map(|at| (chunk.pages.va, at)));
        let (chunk, at) = match found {
            Some(found) => found,
            None => {
                let pages = self.take_pages(io, span, MemFlags::NONE)?;
                let (va, mut free) = (pages.va, FreeRanges::new(pages.len));
                let Some(at) = free.take(span, align) else {
                    self.give_pages(io, pages)?;
                    return Err(too_large());
                };
                self.chunks.push(Chunk { pages, free });
                (va, at)
            }
        };
        let va = chunk.checked_add(at).ok_or_else(too_large)?;
        Ok(Piece { va, chunk, span })
    }

    /// Gives a piece back; the pages go back to the driver when nothing else is in them.
    pub(crate) fn give(&mut self, io: &SharedIo, piece: Piece) -> Result<()> {
        let Some(index) = self.chunks.iter().position(|chunk| chunk.pages.va == piece.chunk) else {
            return Ok(());
        };
        let Some(at) = piece.va.offset_from(piece.chunk) else {
            return Ok(());
        };
        let chunk = &mut self.chunks[index];
        chunk.free.give(at, piece.span);
        if !chunk.free.is_whole() {
            return Ok(());
        }
        let chunk = self.chunks.swap_remove(index);
        self.give_pages(io, chunk.pages)
    }

    /// Undoes a [`give`](Self::give) that failed, for whoever wants to try again himself: the piece is his again, or, where the driver
    /// unmapped the pages and did not free them, all of what is left.
    pub(crate) fn restore(&mut self, piece: Piece) -> Restored {
        let Some(at) = piece.va.offset_from(piece.chunk) else {
            return Restored::Nothing;
        };
        let Some(pages) = self.take_back(piece.chunk) else {
            return Restored::Nothing;
        };
        if !pages.mapped {
            return Restored::Unmapped(pages);
        }
        // The failed call emptied the chunk: the piece is all that is taken.
        let (mut free, end) = (FreeRanges::taken(pages.len), at + piece.span);
        for (start, len) in [(0, at), (end, pages.len.saturating_sub(end))] {
            if len > 0 {
                free.give(start, len);
            }
        }
        self.chunks.push(Chunk { pages, free });
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
        let mapped = io.mem_map_device(MapDevice {
            handle,
            hint: None,
            flags: MemFlags::NONE,
        });
        match mapped {
            Ok(va) => Ok(Pages {
                handle,
                va,
                len: len.checked_next_multiple_of(self.page).unwrap_or(len),
                mapped: true,
            }),
            Err(error) => {
                let pages = Pages {
                    handle,
                    va: DeviceVa(0),
                    len,
                    mapped: false,
                };
                if let Err(second) = self.give_pages(io, pages) {
                    tracing::error!("freeing what could not be mapped: {second}; it is tried again later");
                }
                Err(error)
            }
        }
    }

    /// Gives whole pages back to the driver, or keeps them where it refuses and says why.
    pub(crate) fn give_pages(&mut self, io: &SharedIo, mut pages: Pages) -> Result<()> {
        let answer = if pages.mapped {
            io.mem_unmap(pages.va).and_then(|()| {
                pages.mapped = false;
                io.mem_free(pages.handle)
            })
        } else {
            io.mem_free(pages.handle)
        };
        if answer.is_err() {
            self.lingering.push(pages);
        }
        answer
    }

    /// Pages that the driver refused to take back, for whoever wants to try again himself: the last of this address, since the driver may
    /// give that of pages which were unmapped and not freed to others.
    pub(crate) fn take_back(&mut self, va: DeviceVa) -> Option<Pages> {
        let index = self.lingering.iter().rposition(|pages| pages.va == va)?;
        Some(self.lingering.swap_remove(index))
    }

    /// Tries again what could not be given back.
    pub(crate) fn retry_lingering(&mut self, io: &SharedIo) {
        for pages in std::mem::take(&mut self.lingering) {
            // A refusal puts it back.
            let _ = self.give_pages(io, pages);
        }
    }

    /// How many allocations could not be given back; most wait for their exports to go.
    pub(crate) fn lingering(&self) -> usize {
        self.lingering.len()
    }
}
