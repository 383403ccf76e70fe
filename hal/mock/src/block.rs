//! Blocks of registers that a user may map (memory.c:map_block, memory.c:hl_hw_block_mmap).
//!
//! Only blocks of plain memory can be mapped: those of the ARC processors (DCCM), which run nothing
//! here. A register has effects when it is written, and a mapping of memory has none. Every other
//! block has the driver's handle and size, and its mmap fails with `Unsupported`.

use gaudi_seam::{Error, MmapRequest, Operation, RawMapping, Result, rules};
use gaudi_spec::Asic;
use gaudi_spec::asic::{Block, BlockKind};
use gaudi_sys::{Memfd, PAGE};

use crate::layout;

/// The type bits in a block's handle (habanalabs.h:HL_MMAP_TYPE_BLOCK, shifted by a page).
pub(crate) const TYPE_BLOCK: u64 = 0x4 << 59;
/// The bits of the number in a handle (habanalabs.h:HL_MMAP_OFFSET_VALUE_MASK).
const NUMBER: u64 = 0x1fff_ffff_ffff / PAGE;

/// The offset of a block in the context's file; `None` if it cannot be mapped.
pub(crate) fn offset(block: &Block) -> Option<u64> {
    match block.kind {
        BlockKind::Dccm(_) => layout::block(block.number, block.size),
        _ => None,
    }
}

/// Maps a block. The driver scrubs the memory of ARC processors between two users, so it lies in
/// the file of the context.
pub(crate) fn mmap(asic: &Asic, file: Option<&Memfd>, request: MmapRequest) -> Result<RawMapping> {
    const OP: Operation = Operation::Mmap;
    // The driver keeps 32 bits of the number (memory.c:hl_hw_block_mmap).
    let number = ((request.offset / PAGE) & NUMBER) as u32;
    // gaudi2.c:gaudi2_block_mmap
    let Some(block) = (asic.blocks.block)(number) else {
        return Err(Error::from_rule(OP, &rules::block::MMAP_UNKNOWN).showing(number));
    };
    // gaudi2.c:gaudi2_block_mmap
    if request.whole_pages() != u64::from(block.size) {
        return Err(Error::from_rule(OP, &rules::block::MMAP_LENGTH).saw(request.len, block.size));
    }
    let Some(offset) = offset(&block) else {
        return Err(Error::unsupported(
            OP.kernel_name(),
            format!(
                "the mock does not map registers into a process ({:?})",
                block.kind
            ),
        )
        .helped_by("write them with MSG_SHORT, MSG_LONG or WREG packets of a command buffer"));
    };
    let Some(file) = file else {
        return Err(Error::unsupported(
            OP.kernel_name(),
            "a mock with private memory maps no blocks",
        ));
    };
    RawMapping::of_fd(file, offset, request.len).map_err(|errno| Error::from_errno(OP.kernel_name(), errno))
}
