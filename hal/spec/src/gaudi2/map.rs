//! Identity, memory map, BARs and interrupts.

use core::ops::Range;

use crate::addr::{DevicePa, DeviceVa};
use crate::asic::VaRange;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// PCI vendor Habana Labs (driver habanalabs_drv.c `PCI_VENDOR_ID_HABANALABS`).
pub const VENDOR: u16 = 0x1da3;
/// PCI device (driver habanalabs_drv.c `PCI_IDS_GAUDI2`).
pub const DEVICE: u16 = 0x1020;
/// PCI revisions of Gaudi2, 2B, 2C and 2D (driver habanalabs_drv.c `get_asic_type`); others are
/// refused.
pub const REVISIONS: Range<u8> = 1..5;
/// The card's name before firmware reports another (driver gaudi2P.h `GAUDI2_DEFAULT_CARD_NAME`).
pub const CARD_NAME: &str = "HL225";

/// Start of the configuration space (gaudi2.h `CFG_BASE`).
pub const CFG_BASE: DevicePa = DevicePa(0x1000_007f_f800_0000);
/// Bytes in it: 96 MiB registers, 32 MiB debug (gaudi2.h `CFG_SIZE`).
pub const CFG_SIZE: u64 = 0x800_0000;
/// Start of the SRAM (gaudi2.h `SRAM_BASE_ADDR`).
pub const SRAM_BASE: DevicePa = DevicePa(0x1000_ffff_fd00_0000);
/// Bytes in the SRAM, all of them the user's (gaudi2.h `SRAM_SIZE`, gaudi2P.h
/// `SRAM_USER_BASE_OFFSET` 0).
pub const SRAM_SIZE: u64 = 48 * MIB;
/// Start of the HBM (gaudi2.h `DRAM_PHYS_BASE`).
pub const DRAM_PHYS_BASE: DevicePa = DevicePa(0x1001_0000_0000_0000);
/// Bytes of HBM with all six stacks working, 16 GiB each (driver
/// gaudi2.c:gaudi2_set_dram_properties `num_functional_hbms
/// * SZ_16G`).
pub const DRAM_SIZE: u64 = 96 * GIB;
/// Bytes in a page of device memory: six stacks × 8 MiB, ×16 round a TLB defect (driver
/// gaudi2.c:gaudi2_set_dram_properties).
pub const DRAM_PAGE: u64 = 768 * MIB;
/// Bytes at the start of HBM for firmware, page tables and queues: one page (driver
/// gaudi2.c:gaudi2_set_dram_properties `dram_user_base_address`).
pub const DRAM_RESERVED: u64 = DRAM_PAGE;
/// Device addresses of device memory end before this (driver gaudi2P.h `VA_HBM_SPACE_END`).
pub const VA_HBM_SPACE_END: DeviceVa = DeviceVa(0x1002_0000_0000_0000);
/// Where a user's device memory is mapped: after the physical range rounded up to pages; shortened
/// so that scrambled addresses, which take 1 GiB for each 768 MiB, stay in the space (driver
/// gaudi2.c:gaudi2_set_dram_properties).
pub const DRAM_VA: VaRange = {
    let start = DRAM_PHYS_BASE.0 + DRAM_PAGE * DRAM_SIZE.div_ceil(DRAM_PAGE);
    VaRange {
        start: DeviceVa(start),
        end: DeviceVa(start + DRAM_PAGE * ((VA_HBM_SPACE_END.0 - start) / GIB)),
        page: GIB,
    }
};
/// Where host memory is mapped in 4 KiB pages (driver gaudi2P.h `VA_HOST_SPACE_PAGE_START`,
/// `_END`).
pub const HOST_VA: VaRange = VaRange {
    start: DeviceVa(0xfff0_0000_0000_0000),
    end: DeviceVa(0xfff0_8000_0000_0000),
    page: 4096,
};
/// Where host memory is mapped in 2 MiB pages (driver gaudi2P.h `VA_HOST_SPACE_HPAGE_START`,
/// `_END`).
pub const HOST_HUGE_VA: VaRange = VaRange {
    start: DeviceVa(0xfff0_8000_0000_0000),
    end: DeviceVa(0xfff1_0000_0000_0000),
    page: 2 * MIB,
};
/// Device memory addresses that an allocation hint may not take: ARC code lies there (gaudi2.h
/// `RESERVED_VA_RANGE_FOR_ARC_ON_HBM_START`, `_END`; the header's end is the last byte).
pub const DRAM_VA_RESERVED: Range<u64> = 0x1001_5000_0000_0000..0x1001_7000_0000_0000;
/// Host addresses that a hint may not take: doorbell page and ARC (gaudi2.h
/// `RESERVED_VA_FOR_VIRTUAL_MSIX_DOORBELL_START`, `RESERVED_VA_RANGE_FOR_ARC_ON_HOST_END`).
pub const HOST_VA_RESERVED: Range<u64> = 0xfff0_77ff_ffff_0000..0xfff0_8000_0000_0000;
/// The same in huge pages (gaudi2.h `RESERVED_VA_RANGE_FOR_ARC_ON_HOST_HPAGE_START`, `_END`).
pub const HOST_HUGE_VA_RESERVED: Range<u64> = 0xfff0_f800_0000_0000..0xfff1_0000_0000_0000;

/// Where a user context sees the interrupt doorbell: a 32-bit write of a vector number raises that
/// vector (gaudi2.h `RESERVED_VA_FOR_VIRTUAL_MSIX_DOORBELL_START`).
pub const DOORBELL_VA: DeviceVa = DeviceVa(0xfff0_77ff_ffff_0000);
/// Bytes that answer as the doorbell (the driver maps one page there, gaudi2.c
/// `map_virtual_msix_doorbell_memory`).
pub const DOORBELL_SIZE: u64 = 4096;

/// Configuration offset of the MSI-X block (gaudi2_blocks_linux_driver.h `mmPCIE_MSIX_BASE`). A
/// vector number written to its first word raises that vector. The driver leaves the block open to
/// users (gaudi2.c `gaudi2_execute_soft_reset`); hl-thunk's completion queues ring it
/// (`gaudi2_add_cq_config_pkt`).
pub const PCIE_MSIX: u32 = 0x4c1_7000;

/// BAR0: registers and SRAM, exact size required (gaudi2.h `SRAM_CFG_BAR_ID`, `CFG_BAR_SIZE`).
pub const CFG_BAR: (u8, u64) = (0, 256 * MIB);
/// BAR2: MSI-X table, exact size required (gaudi2.h `MSIX_BAR_ID`, `MSIX_BAR_SIZE`).
pub const MSIX_BAR: (u8, u64) = (2, 0x4000);
/// BAR4: HBM from its start, any power of two from 1 GiB (gaudi2.h `DRAM_BAR_ID`).
pub const DRAM_BAR: u8 = 4;

/// MSI-X vectors (gaudi2.h `GAUDI2_MSIX_ENTRIES`).
pub const INTERRUPTS: u16 = 128;
/// Vectors for users (gaudi2P.h `GAUDI2_IRQ_NUM_USER_FIRST`, `_LAST`).
pub const USER_INTERRUPTS: Range<u16> = 48..112;

/// Bytes in one LIN_DMA at most (driver gaudi2P.h `DMA_MAX_TRANSFER_SIZE`).
pub const MAX_DMA: u64 = u32::MAX as u64;
/// Bytes in a cache line (gaudi2.h `DEVICE_CACHE_LINE_SIZE`).
pub const CACHE_LINE: u32 = 128;
/// Command submissions in flight (driver gaudi2P.h `GAUDI2_MAX_PENDING_CS`).
pub const MAX_PENDING_CS: u32 = 64;
/// Entries of a hardware queue (driver common/habanalabs.h `HL_QUEUE_LENGTH`).
pub const QUEUE_DEPTH: u32 = 4096;
/// Distance from one die core's registers to the next's (driver gaudi2_regs.h `DCORE_OFFSET`).
pub const DCORE_STRIDE: u32 = 0x20_0000;
