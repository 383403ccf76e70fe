//! Device memory and mappings (memory.c).

use std::ptr::NonNull;

use gaudi_seam::engine::HostRange;
use gaudi_seam::{
    BlockMapping, DeviceVa, Errno, Error, ErrorKind, MapDevice, MapHost, MemAlloc, MemFree, MemHandle,
    MemUnmap, Operation, Result, rules,
};
use gaudi_sys::{PAGE, pin};
use gaudi_uapi::memory::MemFlags;

use crate::address_space::{Allocation, Mapping, page_address};
use crate::block::{self, TYPE_BLOCK};
use crate::driver_state::low_half;
use crate::layout;
use crate::open::Device;
use crate::pages::lowest_free;
use crate::state::{NO_CONTEXT, State};
use crate::va::Hint;

impl Device {
    pub(crate) fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        let mut state = self.admit(&request)?;
        // memory.c:set_alloc_page_size: Gaudi2 has one page size and ignores the requested one
        // (`supports_user_set_page_size` is not set).
        let pages = request.size.div_ceil(self.asic.dram_page);
        let contiguous = request.flags.contains(MemFlags::CONTIGUOUS);
        let taken = usize::try_from(pages)
            .ok()
            .and_then(|pages| state.pages.take(pages, contiguous));
        let Some(pages) = taken else {
            // memory.c:alloc_device_memory
            let rule = match contiguous {
                true => &rules::map::NO_RUN,
                false => &rules::map::TOO_FEW_PAGES,
            };
            let free = format!(
                "{} free pages of {} MiB",
                state.pages.free(),
                self.asic.dram_page >> 20
            );
            return Err(self.refuse(Operation::MemAlloc, rule).saw(free, pages));
        };
        let handle = lowest_free(|handle| state.allocations.contains_key(&handle));
        let allocation = Allocation { pages, mapped: 0 };
        state.context().dram_bytes += allocation.bytes(self.asic);
        state.allocations.insert(handle, allocation);
        Ok(MemHandle(u64::from(handle)))
    }

    pub(crate) fn mem_free(&self, handle: MemHandle) -> Result<()> {
        let mut state = self.admit(&MemFree(handle))?;
        let allocation = state.allocations.remove(&low_half(handle));
        let allocation = allocation.expect("the rules allow handles of allocations");
        state.context().dram_bytes -= allocation.bytes(self.asic);
        state.discard(&allocation);
        Ok(())
    }

    pub(crate) fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        const OP: Operation = Operation::MemMapDevice;
        let mut guard = self.admit(&request)?;
        let state = &mut *guard;
        let handle = low_half(request.handle);
        let State {
            allocations,
            context: Some(context),
            engine,
            ..
        } = state
        else {
            unreachable!("{NO_CONTEXT}");
        };
        let allocation = allocations.get_mut(&handle);
        let allocation = allocation.expect("the rules allow handles of allocations");
        let hint = Hint::new(request.hint, request.flags);
        let page_size = self.asic.dram_page;
        let size = allocation.bytes(self.asic);
        let Some(start) = context.va.dram.take(size, page_size, hint) else {
            return Err(self.no_address(OP, size, hint));
        };
        // One range of the MMU for each page: pages of one allocation need not be adjacent.
        for (va, &page) in (start.0..).step_by(page_size as usize).zip(&allocation.pages) {
            let mapped = engine.map_device(DeviceVa(va), page_address(self.asic, page), page_size);
            debug_assert_eq!(mapped, Ok(()), "the address {va:#x} was free");
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
        const OP: Operation = Operation::MemMapHost;
        drop(self.admit(&request)?);
        let huge_page = self.asic.host_huge_va.page;
        let (address, size) = (request.address.0, request.size);
        let end = request.end().expect("the rule on its size was checked");
        // Not under the device's lock: pinning gigabytes takes seconds. If pin_user_pages fails at
        // the first page, the driver returns its errno, otherwise ENOMEM
        // (memory.c:get_user_memory).
        if let Err(errno) = pin::populate_for_write(address, 1)
            .and_then(|()| pin::populate_for_write(address, size).map_err(|_| Errno::ENOMEM))
        {
            let rule = match errno {
                Errno::ENOMEM => &rules::map::HOST_HALF,
                _ if address >> 63 != 0 => &rules::map::HOST_KERNEL,
                _ => &rules::map::HOST_PAGES,
            };
            return Err(match errno {
                Errno::EOPNOTSUPP => self
                    .refusal(OP, errno)
                    .because("the mock pins memory with MADV_POPULATE_WRITE, which this kernel lacks")
                    .helped_by("use Linux 5.14 or later"),
                _ => self.refuse(OP, rule).showing(format!("{address:#x} + {size}")),
            });
        }
        let start = address / PAGE * PAGE;
        let (span, inside) = (end - start, address - start);
        // memory.c:init_phys_pg_pack_from_userptr: huge pages only where every piece is aligned and
        // whole. Contiguity of physical memory cannot be seen from here, so alignment decides
        // alone.
        let huge = address % huge_page == 0 && size % huge_page == 0;
        let hint = Hint::new(request.hint, request.flags);
        if hint.forced && hint.address.is_some_and(|va| va.0 != 0) && inside != 0 {
            // memory.c:map_device_va
            let error = self.refuse(OP, &rules::map::FORCED_HINT);
            return Err(error.showing(format!("{address:#x}")));
        }
        let pointer = usize::try_from(start)
            .ok()
            .map(std::ptr::with_exposed_provenance_mut);
        let range = match (pointer.and_then(NonNull::new), usize::try_from(span)) {
            // SAFETY: the caller promises that the range stays mapped and unreferenced until it is
            // unmapped; whole pages of it were just made present, and `drop_mapping` drops the
            // chip's range before that promise ends.
            (Some(pointer), Ok(span)) => unsafe { HostRange::new(pointer, span) },
            _ => return Err(self.refuse(OP, &rules::map::HOST_PAGES)),
        };
        let mut guard = self.enter(OP)?;
        let (context, engine) = guard.parts();
        // memory.c:map_device_va
        let (space, align) = match (huge, address % huge_page) {
            (true, _) => (&mut context.va.huge, huge_page),
            (false, 0) => (&mut context.va.host, huge_page),
            (false, _) => (&mut context.va.host, PAGE),
        };
        let Some(block) = space.take(span, align, hint) else {
            return Err(self.no_address(OP, span, hint));
        };
        if let Err(error) = engine.map_host(block, range) {
            // The driver's list of free addresses holds that of the doorbell, which the driver
            // itself mapped: its page tables show it (mmu_v2_hr.c `_hl_mmu_v2_hr_map`).
            space.give(block, span);
            return Err(self.refuse(OP, &rules::map::HOST_MAPPED).showing(error));
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
        self.admit(&MemUnmap(address))?.unmap(address);
        Ok(())
    }

    pub(crate) fn no_address(&self, operation: Operation, size: u64, hint: Hint) -> Error {
        // memory.c:map_device_va
        let error = match operation {
            Operation::RegisterDmabuf => self
                .refusal(operation, Errno::ENOMEM)
                .with_kind(ErrorKind::OutOfDeviceMemory),
            _ if hint.wraps(size) => self.refuse(operation, &rules::map::HINT_WRAPS),
            _ => self.refuse(operation, &rules::map::NO_ADDRESS),
        };
        match hint.address {
            Some(address) if hint.forced => error.showing(format!("{size} bytes at {address}")),
            _ => error.showing(format!("{size} bytes")),
        }
    }

    pub(crate) fn map_block(&self, address: u64) -> Result<BlockMapping> {
        const OP: Operation = Operation::MapBlock;
        let has_offsets = self.enter(OP)?.context().buffers.has_offsets();
        // gaudi2.c:gaudi2_get_hw_block_id
        let Some(found) = (self.asic.blocks.at)(address) else {
            let error = self.refuse(OP, &rules::block::UNKNOWN);
            return Err(error.showing(format!("{address:#x}")));
        };
        let handle = match has_offsets {
            true => block::offset(&found).unwrap_or(layout::UNMAPPABLE),
            false => TYPE_BLOCK | (u64::from(found.number) * PAGE),
        };
        Ok(BlockMapping {
            handle,
            size: found.size,
        })
    }
}
