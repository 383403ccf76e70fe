//! Definitions of the header of Linux 6.1 that later headers changed or removed.

use zerocopy::FromZeros as _;

use crate::info::HlInfoRazwiEvent;
use crate::limits::HL_RAZWI_NA_ENG_ID;
use crate::memory::HlMemIn;

/// The cause of a RAZWI record of Linux 6.1: no mapping (`HL_RAZWI_PAGE_FAULT`).
pub const HL_RAZWI_PAGE_FAULT: u8 = 0;
/// The cause of a RAZWI record of Linux 6.1: an access that is not allowed
/// (`HL_RAZWI_MMU_ACCESS_ERROR`).
pub const HL_RAZWI_MMU_ACCESS_ERROR: u8 = 1;

c_structs! {
    /// 24 bytes, with another meaning behind `addr` than [`HlInfoRazwiEvent`]'s.
    pub struct HlInfoRazwiEvent61 = "struct hl_info_razwi_event" of "misc/habanalabs.h" {
        /// When.
        pub timestamp: i64,
        /// The address that was refused.
        #[print(Hex)] pub addr: u64,
        /// The engine that made the access; `u16::MAX` if it has no number.
        pub engine_id_1: u16,
        /// Another engine that may have made it; `u16::MAX` for none.
        pub engine_id_2: u16,
        /// 1 if the engine has no number.
        pub no_engine_id: u8,
        /// [`HL_RAZWI_PAGE_FAULT`], [`HL_RAZWI_MMU_ACCESS_ERROR`], or `u8::MAX`.
        pub error_type: u8,
        /// Zero.
        pub pad: [u8; 2],
    }
}

impl From<HlInfoRazwiEvent61> for HlInfoRazwiEvent {
    /// The record in today's form. What kind of access it was is not known; the cause is lost,
    /// since today's record of a page fault is another one ([`crate::info::HlPageFaultInfo`]).
    fn from(old: HlInfoRazwiEvent61) -> Self {
        let mut event = Self::new_zeroed();
        (event.timestamp, event.addr) = (old.timestamp, old.addr);
        // All zero is a record of nothing.
        let known = [old.engine_id_1, old.engine_id_2];
        let engines = known
            .into_iter()
            .filter(|&id| id != HL_RAZWI_NA_ENG_ID && old.timestamp != 0);
        for id in engines {
            event.engine_id[usize::from(event.num_of_possible_engines)] = id;
            event.num_of_possible_engines += 1;
        }
        event
    }
}

c_structs! {
    /// `hl_mem_in.export_dmabuf_fd` of `misc/habanalabs.h`: the allocation's handle where today the
    /// mapped address stands.
    pub struct HlMemInExportDmabufFd61 in HlMemIn.arg as export_dmabuf_fd of "misc/habanalabs.h" {
        /// Handle from ALLOC (Gaudi: physical DRAM address).
        #[print(Hex)] pub handle: u64,
        /// Bytes; counts on Gaudi only.
        pub mem_size: u64,
    }
}
