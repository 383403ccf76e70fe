//! The kernel ABI as data.
#![no_std]
#![forbid(unsafe_code)]
/// CS.
pub mod cs {
    /// `struct hl_cs_chunk`.
    #[derive(Debug, Clone, Copy, Default)]
    #[repr(C)]
    pub struct HlCsChunk(pub [u64; 8]);
}
/// Eras.
pub mod era {
    /// Era.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Era {
        /// Newest.
        AccelDrm,
    }
}
/// INFO.
pub mod info {
    /// `HL_INFO_*`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InfoOp(pub u32);
}
