//! Blocks of registers that a user may map (memory.c:map_block, memory.c:hl_hw_block_mmap).
//!
//! Only blocks of plain memory can be mapped: those of the ARC processors (DCCM), which run nothing
//! here. A register has effects when it is written, and a mapping of memory has none. Every other
//! block has the driver's handle and size, and its mmap fails with `Unsupported`.

use std::collections::BTreeMap;

use gaudi_seam::{Error, MmapRequest, Operation, RawMapping, Result, rules};
use gaudi_spec::Asic;
use gaudi_spec::asic::BlockKind;
use gaudi_sys::{Memfd, PAGE};

/// The type bits in a block's handle (habanalabs.h:HL_MMAP_TYPE_BLOCK, shifted by a page).
pub(crate) const TYPE_BLOCK: u64 = 0x4 << 59;
/// The bits of the number in a handle (habanalabs.h:HL_MMAP_OFFSET_VALUE_MASK).
const NUMBER: u64 = 0x1fff_ffff_ffff / PAGE;

/// The mapped memory of ARC processors. The driver scrubs it between two users, so it lives as long
/// as the context.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    memory: BTreeMap<u32, Memfd>,
}

impl Blocks {
    pub(crate) fn mmap(&mut self, asic: &Asic, request: MmapRequest) -> Result<RawMapping> {
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
        if !matches!(block.kind, BlockKind::Dccm(_)) {
            return Err(Error::unsupported(
                OP.kernel_name(),
                format!(
                    "the mock does not map registers into a process ({:?})",
                    block.kind
                ),
            )
            .helped_by("write them with MSG_SHORT, MSG_LONG or WREG packets of a command buffer"));
        }
        let failed = |errno| Error::from_errno(OP.kernel_name(), errno);
        let memory = match self.memory.entry(number) {
            std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Memfd::sparse(c"gaudi-mock-dccm", u64::from(block.size)).map_err(failed)?)
            }
        };
        RawMapping::of_fd(&*memory, 0, request.len).map_err(failed)
    }
}
