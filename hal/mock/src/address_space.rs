//! A context's device memory and mappings (memory.c).

use std::os::fd::OwnedFd;

use gaudi_seam::{DeviceVa, RawMapping};
use gaudi_spec::{Asic, DevicePa};
use gaudi_sys::standin::{self, Window};
use gaudi_sys::{Memfd, PAGE, fd};

use crate::layout;
use crate::va::{Hint, VaSpace};

/// The driver's own command buffers (gaudi2P.h `HOST_SPACE_INTERNAL_CB_SZ`).
const INTERNAL_CB_SIZE: u64 = 2 << 20;

/// One allocation of device memory (`struct hl_vm_phys_pg_pack`).
#[derive(Debug)]
pub(crate) struct Allocation {
    /// Page numbers, counted from the first page for users.
    pub(crate) pages: Vec<usize>,
    /// The number of its mappings.
    pub(crate) mapped: u32,
}

impl Allocation {
    pub(crate) fn bytes(&self, asic: &Asic) -> u64 {
        self.pages.len() as u64 * asic.dram_page
    }
}

/// The physical address of a page that users may have.
pub(crate) fn page_address(asic: &Asic, page: usize) -> DevicePa {
    DevicePa(asic.dram_user_base().0 + page as u64 * asic.dram_page)
}

/// One mapping (`struct hl_vm_hash_node`), keyed by the address that MAP returned.
#[derive(Debug)]
pub(crate) enum Mapping {
    Device {
        handle: u32,
        /// Exports of this mapping that may still exist (`hl_vm_hash_node.export_cnt`).
        exports: Vec<Exported>,
    },
    Host {
        block: DeviceVa,
        /// Whole pages.
        size: u64,
        /// The requested bytes.
        len: u64,
        /// The memory of an import, mapped while the chip can access it.
        imported: Option<RawMapping>,
    },
}

/// The three address ranges of a context.
#[derive(Debug)]
pub(crate) struct VaSpaces {
    pub(crate) dram: VaSpace,
    pub(crate) host: VaSpace,
    pub(crate) huge: VaSpace,
}

impl VaSpaces {
    /// Returns the ranges of a new context, and the addresses of the user's and the driver's
    /// command buffers. The driver takes these first (command_buffer.c `hl_cb_va_pool_init`), then
    /// those (gaudi2.c `gaudi2_internal_cb_pool_init`).
    pub(crate) fn new(asic: &Asic) -> Option<(Self, DeviceVa, DeviceVa)> {
        let mut host = VaSpace::new(asic.host_va, asic.host_va.page, asic.host_va_reserved.clone());
        let buffers = host.take(layout::POOL_SIZE, PAGE, Hint::NONE)?;
        let drivers = host.take(INTERNAL_CB_SIZE, PAGE, Hint::NONE)?;
        let huge_page = asic.host_huge_va.page;
        let spaces = Self {
            dram: VaSpace::new(asic.dram_va, asic.dram_page, asic.dram_va_reserved.clone()),
            host,
            huge: VaSpace::new(asic.host_huge_va, huge_page, asic.host_huge_va_reserved.clone()),
        };
        Some((spaces, buffers, drivers))
    }

    /// Whether user mappings take no addresses of device memory and of huge pages.
    pub(crate) fn are_whole(&self) -> bool {
        self.dram.is_whole() && self.huge.is_whole()
    }
}

/// One export of a mapping (`struct hl_dmabuf_priv`), which may still exist.
#[derive(Debug)]
pub(crate) enum Exported {
    /// By its window of device memory. If two mappings of an allocation exported it, it counts for
    /// both as long as either lives.
    StandIn(Window),
    /// The mock's own descriptor of a real dma-buf. udmabuf does not report that the others are
    /// closed, but the kernel counts them.
    Real(OwnedFd),
}

impl Exported {
    /// Whether any process holds it besides the mock. If the kernel does not answer, it counts as
    /// held: reused memory would be worse than a device that stays busy.
    pub(crate) fn is_held(&self, memory: Option<&Memfd>) -> bool {
        match self {
            Self::StandIn(window) => {
                memory.is_some_and(|memory| standin::is_exported(memory, *window).unwrap_or(true))
            }
            Self::Real(fd) => fd::references(fd).map_or(true, |count| count > 1),
        }
    }

    pub(crate) fn is_window(&self, other: Window) -> bool {
        matches!(self, Self::StandIn(window) if *window == other)
    }
}
