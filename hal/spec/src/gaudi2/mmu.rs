//! The MMUs: their registers, the shape of their page tables, and how device addresses are
//! scrambled.
//!
//! One MMU stands before PCI (PMMU, page tables in host memory), sixteen before the HBM (HMMU,
//! tables in the HBM itself). A context has a number (ASID) and in each MMU a first table of its
//! own.

use super::map::{DCORE_STRIDE, DRAM_PHYS_BASE, HOST_HUGE_VA, HOST_VA, VA_HBM_SPACE_END};
use crate::addr::DeviceVa;

/// Configuration offset of the PMMU's `STLB` block (gaudi2_blocks_linux_driver.h
/// `mmPMMU_HBW_STLB_BASE`).
pub const PMMU_STLB: u32 = 0x4d0_1000;
/// … and of the first HMMU's (`mmDCORE0_HMMU0_STLB_BASE`).
pub const HMMU_STLB: u32 = 0x408_1000;
/// HMMUs of a die core (gaudi2.h `NUM_OF_HMMU_PER_DCORE`), and the distance from one to the next.
pub const HMMUS: u32 = 4;
const HMMU_STRIDE: u32 = 0x1_0000;

/// `STLB_BUSY`: a write with [`BUSY`] takes the three words below as a context's first table, and
/// reads so while that lasts.
pub const STLB_BUSY: u32 = 0x0;
/// The bit of it (driver gaudi2.c `gaudi2_mmu_update_asid_hop0_addr`).
pub const BUSY: u32 = 1 << 31;
/// `STLB_ASID`.
pub const STLB_ASID: u32 = 0x4;
/// `STLB_HOP0_PA43_12`: bits 43..12 of the first table's address.
pub const STLB_HOP0_PA43_12: u32 = 0x8;
/// `STLB_HOP0_PA63_44`.
pub const STLB_HOP0_PA63_44: u32 = 0xc;
/// `STLB_INV_ALL_START`: bit 0 starts an invalidation, and is clear when it is done.
pub const STLB_INV_ALL_START: u32 = 0x34;
/// `STLB_SRAM_INIT`: reads 0 when the memory of the TLB is ready.
pub const STLB_SRAM_INIT: u32 = 0x4c;
/// `STLB_MEM_CACHE_INVALIDATION` (PMMU): a write starts it.
pub const STLB_MEM_CACHE_INVALIDATION: u32 = 0x50;
/// `STLB_MEM_CACHE_INV_STATUS`: bit 0 when it is done, cleared by the driver.
pub const STLB_MEM_CACHE_INV_STATUS: u32 = 0x54;
/// `STLB_RANGE_CACHE_INVALIDATION`: as [`STLB_INV_ALL_START`], of a range.
pub const STLB_RANGE_CACHE_INVALIDATION: u32 = 0x8c;

/// From an MMU's `STLB` block back to its `MMU` block, which reports faults.
pub const MMU_BEFORE_STLB: u32 = 0x1000;
/// `MMU_SPI_SEI_CAUSE`: bit 0 is a page fault (dcore0_hmmu0_mmu_regs.h; driver gaudi2.c
/// `gaudi2_mmu_spi_sei`).
pub const SPI_SEI_CAUSE: u32 = 0x30;
/// `MMU_PAGE_ERROR_CAPTURE`: bits 63..32 of the address that had no mapping.
pub const PAGE_ERROR_VA_63_32: u32 = 0x34;
/// `MMU_PAGE_ERROR_CAPTURE_VA`: bits 31..0.
pub const PAGE_ERROR_VA_31_0: u32 = 0x38;
/// `MMU_ACCESS_PAGE_ERROR_VALID`: bit 0 keeps the two until the driver clears it.
pub const PAGE_ERROR_VALID: u32 = 0x44;

/// Contexts that an MMU can hold (dcore0_hmmu0_stlb_masks.h `STLB_ASID_ASID_MASK`).
pub const ASIDS: u32 = 1024;
/// The driver's own context (driver habanalabs.h `HL_KERNEL_ASID_ID`).
pub const KERNEL_ASID: u16 = 0;

/// Bytes in a table: 512 entries (driver mmu_general.h `HOP_TABLE_SIZE_512_PTE`).
pub const TABLE: u64 = 4096;
/// An entry leads somewhere (mmu_general.h `PAGE_PRESENT_MASK`).
pub const PRESENT: u64 = 1;
/// It leads to memory, not to the next table (mmu_general.h `LAST_MASK`).
pub const LAST: u64 = 1 << 11;
/// The address in it (mmu_general.h `HOP_PHYS_ADDR_MASK`).
pub const ADDRESS: u64 = !0xfff;
/// The lowest bit of the address that selects an entry, for each table of the PMMU in turn
/// (mmu_v2_0.h, hop 4 for 2 MiB and hop 5 for 4 KiB pages).
pub const PMMU_SHIFTS: [u32; 6] = [57, 48, 39, 30, 21, 12];
/// … of an HMMU (driver gaudi2.c `gaudi2_set_fixed_properties`: four hops, 1 GiB pages).
pub const HMMU_SHIFTS: [u32; 4] = [57, 48, 39, 30];

/// Which MMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mmu {
    /// Before PCI.
    Pci,
    /// Before the HBM: 0..16.
    Hbm(u32),
}

/// The MMU whose `STLB` block an offset lies in, and the offset in it.
pub fn stlb(register: u32) -> Option<(Mmu, u32)> {
    let in_block = |base: u32| register.checked_sub(base).filter(|&offset| offset < 0x1000);
    if let Some(offset) = in_block(PMMU_STLB) {
        return Some((Mmu::Pci, offset));
    }
    let (dcore, rest) = (
        register.checked_sub(HMMU_STLB)? / DCORE_STRIDE,
        register.checked_sub(HMMU_STLB)? % DCORE_STRIDE,
    );
    let (nth, offset) = (rest / HMMU_STRIDE, rest % HMMU_STRIDE);
    let known = dcore < super::sync::DCORES && nth < HMMUS && offset < 0x1000;
    known.then_some((Mmu::Hbm(dcore * HMMUS + nth), offset))
}

const MIB: u64 = 1 << 20;
const SLOT_BITS: u32 = 26;
const LOW: u64 = (1 << 48) - 1;

/// The stacks of HBM that work. Pages, addresses and the scrambler count by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacks(u64);

impl Stacks {
    /// All six.
    pub const ALL: Self = Self(6);
    /// One was switched off for its defects; the driver takes no second (gaudi2P.h
    /// `MAX_FAULTY_HBMS`).
    pub const BINNED: Self = Self(5);

    /// Those that have so many bytes in all; `None` where no card has.
    pub const fn of_size(bytes: u64) -> Option<Self> {
        if bytes == Self::ALL.size() {
            Some(Self::ALL)
        } else if bytes == Self::BINNED.size() {
            Some(Self::BINNED)
        } else {
            None
        }
    }

    /// Bytes in all, 16 GiB each (driver gaudi2.c:gaudi2_set_dram_properties).
    pub const fn size(self) -> u64 {
        self.0 * 16 * 1024 * MIB
    }

    /// Bytes of a page of device memory (driver gaudi2.c:gaudi2_set_dram_properties: 8 MiB of each
    /// stack, ×16 round a TLB defect).
    pub const fn page(self) -> u64 {
        self.0 * 8 * MIB * 16
    }

    /// Bytes that lie in a row behind the scrambler: 8 MiB of each stack (driver
    /// gaudi2.c:gaudi2_mmu_scramble_addr `gaudi2_mmu_scramble_addr`).
    pub const fn stripe(self) -> u64 {
        self.0 * 8 * MIB
    }

    /// The MMU that translates an address; `None` where no MMU does. Device memory is mapped after
    /// the physical range, rounded up to pages (driver gaudi2.c:gaudi2_set_dram_properties).
    pub fn mmu(self, va: DeviceVa) -> Option<Mmu> {
        let first = DRAM_PHYS_BASE.get() + self.size().next_multiple_of(self.page());
        if va >= HOST_VA.start && va < HOST_HUGE_VA.end {
            Some(Mmu::Pci)
        } else if va.get() >= first && va < VA_HBM_SPACE_END {
            Some(Mmu::Hbm(0))
        } else {
            None
        }
    }

    /// The address that HMMU tables know: each stripe takes a place of 64 MiB, so that tables count
    /// in powers of two (driver gaudi2.c:gaudi2_mmu_scramble_addr).
    pub const fn scramble(self, address: u64) -> u64 {
        let low = address & LOW;
        address & !LOW | (low / self.stripe()) << SLOT_BITS | (low % self.stripe())
    }

    /// The way back; `None` for an address in the rest of a place that nothing is put to.
    pub const fn descramble(self, address: u64) -> Option<u64> {
        let low = address & LOW;
        let rest = low & ((1 << SLOT_BITS) - 1);
        if rest >= self.stripe() {
            return None;
        }
        Some(address & !LOW | ((low >> SLOT_BITS) * self.stripe() + rest))
    }

    /// Bytes from an address to where its stripe ends.
    pub const fn to_stripe_end(self, address: u64) -> u64 {
        self.stripe() - (address & LOW) % self.stripe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gaudi2::map::{DRAM_PAGE, DRAM_SIZE, DRAM_VA};

    const ALL: Stacks = Stacks::ALL;
    const STRIPE: u64 = ALL.stripe();

    #[test]
    fn a_scrambled_address_comes_back() {
        for address in [
            0,
            1,
            STRIPE - 1,
            STRIPE,
            767 << 20,
            0x1001_0018_0000_0000,
            0x1001_0017_ffff_ffff,
        ] {
            assert_eq!(
                ALL.descramble(ALL.scramble(address)),
                Some(address),
                "{address:#x}"
            );
        }
        assert_eq!(ALL.scramble(STRIPE), 64 << 20, "48 MiB take a place of 64");
        assert_eq!(ALL.scramble(768 << 20), 1 << 30, "a page of 768 MiB takes 1 GiB");
        assert_eq!(
            ALL.descramble(STRIPE),
            None,
            "nothing is put to the last quarter of a place"
        );
        assert_eq!(ALL.to_stripe_end(STRIPE + 1), STRIPE - 1);
    }

    #[test]
    fn one_hbm_less_shrinks_pages() {
        assert_eq!((ALL.size(), ALL.page()), (DRAM_SIZE, DRAM_PAGE));
        assert_eq!(ALL.mmu(DeviceVa(DRAM_VA.start.get() - 1)), None);
        let five = Stacks::BINNED;
        assert_eq!((five.size(), five.page()), (80 << 30, 640 << 20));
        assert_eq!(five.scramble(640 << 20), 1 << 30, "a page takes 1 GiB as well");
        assert_eq!(five.descramble(five.scramble(123 << 30)), Some(123 << 30));
        assert_eq!(five.descramble(40 << 20), None, "behind a stripe of 40 MiB");
        let first = DRAM_PHYS_BASE.get() + (80 << 30);
        assert_eq!(
            five.mmu(DeviceVa(first)),
            Some(Mmu::Hbm(0)),
            "right after the memory"
        );
        assert_eq!(five.mmu(DeviceVa(first - 1)), None);
        let sizes = [80 << 30, 96 << 30, 64 << 30, 0].map(Stacks::of_size);
        assert_eq!(sizes, [Some(five), Some(ALL), None, None]);
    }

    #[test]
    fn blocks_are_those_of_the_header() {
        assert_eq!(
            stlb(0x4d0_1034),
            Some((Mmu::Pci, 0x34)),
            "mmPMMU_HBW_STLB_INV_ALL_START"
        );
        assert_eq!(
            stlb(0x408_1000),
            Some((Mmu::Hbm(0), 0)),
            "mmDCORE0_HMMU0_STLB_BUSY"
        );
        assert_eq!(
            stlb(0x46b_1004),
            Some((Mmu::Hbm(15), 4)),
            "the last of die core 3: mmDCORE3_HMMU3_STLB_ASID"
        );
        assert_eq!(stlb(0x408_2000), None, "the block behind it");
        assert_eq!(stlb(0x40c_1000), None, "a die core has four");
        assert_eq!(ALL.mmu(DeviceVa(0x1001_0018_0000_0000)), Some(Mmu::Hbm(0)));
        assert_eq!(ALL.mmu(DeviceVa(0xfff0_0000_0000_0000)), Some(Mmu::Pci));
        assert_eq!(ALL.mmu(DRAM_PHYS_BASE_VA), None, "a physical address");
    }

    const DRAM_PHYS_BASE_VA: DeviceVa = DeviceVa(DRAM_PHYS_BASE.0);
}
