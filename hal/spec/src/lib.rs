//! The silicon as data.
#![no_std]
#![forbid(unsafe_code)]
pub mod addr;
/// Gaudi2.
pub mod gaudi2 {
    /// Bytes of HBM.
    pub const DRAM_SIZE: u64 = 96 << 30;
    /// Bytes of a page.
    pub const DRAM_PAGE: u64 = 768 << 20;
    /// Bytes the driver keeps.
    pub const DRAM_RESERVED: u64 = DRAM_PAGE;
}
