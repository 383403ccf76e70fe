//! Device memory and mappings (driver common/memory.c).

use std::ptr::NonNull;

use gaudi_model::HostRange;
use gaudi_seam::{
    DeviceVa, Errno, Error, ErrorKind, MapDevice, MapHost, MemAlloc, MemHandle, RawMapping, Result,
};
use gaudi_spec::addr::DevicePa;
use gaudi_spec::gaudi2;
use gaudi_sys::{PAGE, pin};
use gaudi_uapi::memory::MemFlags;

use crate::buffer;
use crate::export::Exported;
use crate::open::{Context, Device, State};
use crate::va::{Hint, VaSpace};

const HUGE_PAGE: u64 = gaudi2::HOST_HUGE_VA.page;
/// The driver's own command buffers (gaudi2P.h `HOST_SPACE_INTERNAL_CB_SZ`).
const INTERNAL_CB_SIZE: u64 = 2 << 20;

/// One allocation of device memory (`struct hl_vm_phys_pg_pack`).
#[derive(Debug)]
pub(crate) struct Allocation {
    pages: Vec<usize>,
    mapped: u32,
}

impl Allocation {
    pub(crate) fn pages(&self) -> &[usize] {
        &self.pages
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.pages.len() as u64 * gaudi2::DRAM_PAGE
    }
}

/// One mapping (`struct hl_vm_hash_node`), keyed by the address that MAP returned.
#[derive(Debug)]
pub(crate) enum Mapping {
    Device {
        handle: u32,
        /// What was exported from this mapping and may live (`hl_vm_hash_node.export_cnt`).
        exports: Vec<Exported>,
    },
    Host {
        block: DeviceVa,
        /// Whole pages.
        size: u64,
        /// Bytes that were asked for.
        len: u64,
        /// Of an import: the memory, mapped here for as long as the chip reaches it.
        imported: Option<RawMapping>,
    },
}

/// The three address ranges of a context.
#[derive(Debug)]
pub(crate) struct VaSpaces {
    dram: VaSpace,
    host: VaSpace,
    huge: VaSpace,
}

impl VaSpaces {
    /// The ranges of a new context, and where the user's and the driver's command buffers lie: the driver takes their addresses first (command_buffer.c:516),
    /// then those of its own buffers (gaudi2.c:11161).
    pub(crate) fn new() -> Option<(Self, DeviceVa, DeviceVa)> {
        let mut host = VaSpace::new(gaudi2::HOST_VA, gaudi2::HOST_VA.page, gaudi2::HOST_VA_RESERVED);
        let no_hint = Hint {
            address: None,
            forced: false,
        };
        let buffers = host.take(buffer::POOL_SIZE, PAGE, no_hint)?;
        let drivers = host.take(INTERNAL_CB_SIZE, PAGE, no_hint)?;
        let spaces = Self {
            dram: VaSpace::new(gaudi2::DRAM_VA, gaudi2::DRAM_PAGE, gaudi2::DRAM_VA_RESERVED),
            host,
            huge: VaSpace::new(gaudi2::HOST_HUGE_VA, HUGE_PAGE, gaudi2::HOST_HUGE_VA_RESERVED),
        };
        Some((spaces, buffers, drivers))
    }

    /// Addresses for small pages of host memory.
    pub(crate) fn take_host(&mut self, size: u64, hint: Hint) -> Option<DeviceVa> {
        self.host.take(size, PAGE, hint)
    }

    /// Whether no user mapping takes an address of device memory or a huge page any more.
    pub(crate) fn are_whole(&self) -> bool {
        self.dram.is_whole() && self.huge.is_whole()
    }
}

/// The physical address of a page that users may have.
pub(crate) fn page_address(page: usize) -> DevicePa {
    DevicePa(gaudi2::ASIC.dram_user_base().0 + page as u64 * gaudi2::DRAM_PAGE)
}

impl Device {
    pub(crate) fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        const OP: &str = "HL_MEM_OP_ALLOC";
        let mut state = self.lock();
        self.operational(&mut state, OP)?;
        let refuse = |why: &str| Err(self.refusal(OP, Errno::EINVAL).because(why.to_owned()));
        // memory.c:2214, :36
        if request.size == 0 {
            return refuse("the size is 0");
        }
        // memory.c:104, :107: rounding up wraps, and what is left is 0 pages.
        if request.size.checked_add(gaudi2::DRAM_PAGE - 1).is_none() {
            return refuse("the size wraps when it is rounded up to pages");
        }
        // memory.c:38: Gaudi2 has one page size and does not look at the one asked for (`supports_user_set_page_size` is not set).
        let pages = request.size.div_ceil(gaudi2::DRAM_PAGE);
        let contiguous = request.flags.contains(MemFlags::CONTIGUOUS);
        let taken = usize::try_from(pages)
            .ok()
            .and_then(|pages| state.pages.take(pages, contiguous));
        let Some(pages) = taken else {
            // memory.c:112, :155
            return Err(self
                .refusal(OP, Errno::ENOMEM)
                .with_kind(ErrorKind::OutOfDeviceMemory)
                .because(if contiguous {
                    "no run of free pages is long enough"
                } else {
                    "not enough pages are free"
                })
                .saw(
                    format!("{} free pages of 768 MiB", state.pages.free()),
                    format!("{pages}"),
                ));
        };
        let handle = lowest_free(&state);
        let allocation = Allocation { pages, mapped: 0 };
        if let Some(context) = state.context.as_mut() {
            context.dram_bytes += allocation.bytes();
        }
        state.allocations.insert(handle, allocation);
        Ok(MemHandle(u64::from(handle)))
    }

    pub(crate) fn mem_free(&self, handle: MemHandle) -> Result<()> {
        const OP: &str = "HL_MEM_OP_FREE";
        let mut state = self.lock();
        self.operational(&mut state, OP)?;
        // memory.c:353: the upper half of the handle is not looked at.
        let key = low_half(handle);
        let Some(allocation) = state.allocations.get(&key) else {
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because(format!("no allocation has handle {}", handle.0)));
        };
        if allocation.mapped > 0 {
            // memory.c:368
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .with_kind(ErrorKind::InUse)
                .because(format!("handle {} is mapped", handle.0))
                .helped_by("unmap it first"));
        }
        if let Some(allocation) = state.allocations.remove(&key) {
            if let Some(context) = state.context.as_mut() {
                context.dram_bytes = context.dram_bytes.saturating_sub(allocation.bytes());
            }
            state.discard(&allocation);
        }
        Ok(())
    }

    pub(crate) fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        const OP: &str = "HL_MEM_OP_MAP";
        let mut guard = self.lock();
        self.operational(&mut guard, OP)?;
        let state = &mut *guard;
        let handle = low_half(request.handle);
        let (Some(allocation), Some(context)) = (state.allocations.get_mut(&handle), state.context.as_mut())
        else {
            // memory.c:1138
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because(format!("no allocation has handle {}", request.handle.0)));
        };
        let hint = Hint {
            address: request.hint,
            forced: request.flags.contains(MemFlags::FORCE_HINT),
        };
        let size = allocation.bytes();
        let Some(start) = context.va.dram.take(size, gaudi2::DRAM_PAGE, hint) else {
            return Err(self.no_address(OP, size, hint));
        };
        // One range of the MMU for each page: pages of one allocation need not lie in a row.
        let addresses = (0_u64..).map(|index| start.checked_add(index * gaudi2::DRAM_PAGE));
        for (va, &page) in addresses.zip(&allocation.pages) {
            let mapped = va.map(|va| {
                state
                    .chip
                    .mmu_map_device(va, page_address(page), gaudi2::DRAM_PAGE)
            });
            debug_assert!(
                matches!(mapped, Some(Ok(()))),
                "an address that was free cannot be mapped: {mapped:?}"
            );
        }
        allocation.mapped += 1;
        let exports = Vec::new();
        context
            .mappings
            .insert(start.0, Mapping::Device { handle, exports });
        Ok(start)
    }

    /// # Safety
    /// As `KernelIo::mem_map_host`.
    #[expect(
        unsafe_code,
        reason = "the caller's promise about the range is handed on to the chip"
    )]
    pub(crate) unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        const OP: &str = "HL_MEM_OP_MAP (HL_MEM_USERPTR)";
        self.operational(&mut self.lock(), OP)?;
        let (address, size) = (request.address.0, request.size);
        let end = address
            .checked_add(size)
            .and_then(|end| end.checked_next_multiple_of(PAGE));
        let (Some(end), true) = (end, size > 0) else {
            // memory.c:2385, :2394
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a range of host memory needs bytes and must not wrap")
                .saw(format!("{address:#x} + {size}"), "at least 1 byte"));
        };
        // Gigabytes take seconds, so nobody waits for the device meanwhile.
        // memory.c:2330: pin_user_pages that fails at once says why, one that fails half-way is ENOMEM.
        if let Err(errno) = pin::populate_for_write(address, 1)
            .and_then(|()| pin::populate_for_write(address, size).map_err(|_| Errno::ENOMEM))
        {
            let refusal = self.refusal(OP, errno);
            return Err(match errno {
                Errno::EOPNOTSUPP => refusal
                    .because("the mock pins memory with MADV_POPULATE_WRITE, which this kernel lacks")
                    .helped_by("use Linux 5.14 or later"),
                _ => refusal
                    .because(format!(
                        "host memory {address:#x} + {size} is not all mapped and writable"
                    ))
                    .helped_by("map memory that this process may write to"),
            });
        }
        let start = address / PAGE * PAGE;
        let (span, inside) = (end - start, address - start);
        // memory.c:866: huge pages only where every piece is aligned and whole. Contiguity of physical memory cannot be seen from
        // here, so alignment decides alone.
        let huge = address % HUGE_PAGE == 0 && size % HUGE_PAGE == 0;
        let hint = Hint {
            address: request.hint,
            forced: request.flags.contains(MemFlags::FORCE_HINT),
        };
        if hint.forced && hint.address.is_some_and(|va| va.0 != 0) && inside != 0 {
            // memory.c:1187
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a forced hint needs memory that starts on a page")
                .saw(format!("{address:#x}"), "a multiple of 4096"));
        }
        let pointer = usize::try_from(start)
            .ok()
            .map(std::ptr::with_exposed_provenance_mut);
        let range = match (pointer.and_then(NonNull::new), usize::try_from(span)) {
            // SAFETY: the caller promises that the range stays mapped and unreferenced until it is unmapped;
            // whole pages of it were just made present, and `drop_mapping` drops the chip's range before
            // that promise ends.
            (Some(pointer), Ok(span)) => unsafe { HostRange::new(pointer, span) },
            _ => return Err(self.refusal(OP, Errno::EFAULT)),
        };
        let mut guard = self.lock();
        self.operational(&mut guard, OP)?;
        let state = &mut *guard;
        let Some(context) = state.context.as_mut() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        // memory.c:1108
        let (space, align) = match (huge, address % HUGE_PAGE) {
            (true, _) => (&mut context.va.huge, HUGE_PAGE),
            (false, 0) => (&mut context.va.host, HUGE_PAGE),
            (false, _) => (&mut context.va.host, PAGE),
        };
        let Some(block) = space.take(span, align, hint) else {
            return Err(self.no_address(OP, span, hint));
        };
        if let Err(error) = state.chip.mmu_map_host(block, range) {
            // The driver's list of free addresses has the doorbell's, which it mapped itself: its tables tell (common/mmu/mmu_v2_hr.c:238).
            space.give(block, span);
            return Err(self.refusal(OP, Errno::EINVAL).because(error.to_string()));
        }
        let va = DeviceVa(block.0 + inside);
        context.mappings.insert(
            va.0,
            Mapping::Host {
                block,
                size: span,
                len: size,
                imported: None,
            },
        );
        Ok(va)
    }

    pub(crate) fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        const OP: &str = "HL_MEM_OP_UNMAP";
        let mut guard = self.lock();
        self.operational(&mut guard, OP)?;
        let state = &mut *guard;
        let Some(mut context) = state.context.take() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        let answer = match context.mappings.get(&address.0) {
            // memory.c:1290
            None => Err(self
                .refusal(OP, Errno::EINVAL)
                .because(format!("{address} is not an address that MAP returned"))),
            Some(Mapping::Device { exports, .. })
                if exports
                    .iter()
                    .any(|export| export.is_held(state.chip.dram().memfd())) =>
            {
                // memory.c:1297
                Err(self
                    .refusal(OP, Errno::EINVAL)
                    .with_kind(ErrorKind::InUse)
                    .because(format!("{address} is exported"))
                    .helped_by(
                        "deregister its memory regions and close its dma-bufs, in every process, first",
                    ))
            }
            Some(_) => Ok(()),
        };
        if answer.is_ok() {
            if let Some(mapping) = context.mappings.remove(&address.0) {
                state.drop_mapping(&mut context, address.0, mapping);
            }
        }
        state.context = Some(context);
        answer
    }

    /// The answer to a request that the driver refuses.
    pub(crate) fn refusal(&self, operation: &'static str, errno: Errno) -> Error {
        Error::from_errno(operation, errno).on(self.id)
    }

    pub(crate) fn no_address(&self, operation: &'static str, size: u64, hint: Hint) -> Error {
        // memory.c:1202
        let error = self
            .refusal(operation, Errno::ENOMEM)
            .with_kind(ErrorKind::OutOfDeviceMemory);
        match hint.address {
            Some(address) if hint.forced => {
                error.because(format!("{size} bytes cannot be mapped at {address}"))
            }
            _ => error.because(format!("no {size} device addresses in a row are free")),
        }
    }
}

impl State {
    /// Unmaps from the chip and gives the addresses back.
    pub(crate) fn drop_mapping(&mut self, context: &mut Context, va: u64, mapping: Mapping) {
        match mapping {
            Mapping::Device { handle, .. } => {
                let Some(allocation) = self.allocations.get_mut(&handle) else {
                    return;
                };
                let pages = allocation.pages.len() as u64;
                allocation.mapped = allocation.mapped.saturating_sub(1);
                for index in 0..pages {
                    self.chip.mmu_unmap(DeviceVa(va + index * gaudi2::DRAM_PAGE));
                }
                context.va.dram.give(DeviceVa(va), pages * gaudi2::DRAM_PAGE);
            }
            Mapping::Host {
                block,
                size,
                imported,
                ..
            } => {
                self.chip.mmu_unmap(block);
                // Not before: the chip reached it.
                drop(imported);
                let huge = gaudi2::HOST_HUGE_VA.contains(block, size);
                let space = if huge {
                    &mut context.va.huge
                } else {
                    &mut context.va.host
                };
                space.give(block, size);
            }
        }
    }

    /// Frees an allocation's pages and their host memory; they read as zeros afterwards.
    pub(crate) fn discard(&mut self, allocation: &Allocation) {
        for &page in &allocation.pages {
            if let Err(errno) = self.chip.dram().discard(page_address(page), gaudi2::DRAM_PAGE) {
                // Not a process's doing: the memory's seals are fixed, and a range of it can always be zeroed.
                debug_assert!(false, "a page is outside of device memory: {errno}");
            }
        }
        self.pages.give(&allocation.pages);
    }
}

fn low_half(handle: MemHandle) -> u32 {
    u32::try_from(handle.0 & 0xffff_ffff).unwrap_or_default()
}

/// As `idr_alloc(.., 1, 0, ..)`: the lowest free number from 1.
fn lowest_free(state: &State) -> u32 {
    (1..)
        .zip(state.allocations.keys())
        .find(|(number, key)| number != *key)
        .map_or_else(
            || {
                u32::try_from(state.allocations.len())
                    .unwrap_or(u32::MAX)
                    .saturating_add(1)
            },
            |(number, _)| number,
        )
}
