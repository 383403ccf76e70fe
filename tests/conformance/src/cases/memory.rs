//! Device memory and mappings: `HL_IOCTL_MEMORY`.

use gaudi_seam::{
    DeviceVa, Errno, HostVa, KernelIoExt as _, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest,
    RawMapping, SharedIo,
};
use gaudi_spec::gaudi2::{DRAM_PAGE, DRAM_VA, HOST_HUGE_VA, HOST_VA};
use gaudi_sys::{Memfd, PAGE};
use gaudi_uapi::info::HlInfoDramUsage;
use gaudi_uapi::memory::MemFlags;

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Allocation, Dram, Host, PAGE_LEN, offset, try_map_host};
use crate::verdict::{Failure, Verdict, equal, holds, invalid, refused};

cases! {
    "memory.alloc.zero-bytes", "common/memory.c:hl_mem_ioctl" => alloc_zero;
    "memory.alloc.rounds-up", "common/memory.c:alloc_device_memory" => alloc_rounds_up;
    "memory.alloc.size-wraps", "common/memory.c:alloc_device_memory" => alloc_size_wraps;
    "memory.alloc.lowest-handle", "common/memory.c:alloc_device_memory" => alloc_lowest_handle;
    "memory.alloc.whole-memory", "common/memory.c:alloc_device_memory" => alloc_whole_memory;
    "memory.alloc.more-than-there-is", "common/memory.c:alloc_device_memory" => alloc_too_much;
    "memory.alloc.contiguous", "common/memory.c:alloc_device_memory" => alloc_contiguous;
    "memory.alloc.contiguous.no-run-left", "common/memory.c:alloc_device_memory" => alloc_no_run_left;
    "memory.alloc.page-size-is-ignored", "common/memory.c:set_alloc_page_size" => alloc_page_size;
    "memory.free.unknown-handle", "common/memory.c:free_device_memory" => free_unknown;
    "memory.free.while-mapped", "common/memory.c:free_device_memory" => free_while_mapped;
    "memory.free.twice", "common/memory.c:free_device_memory" => free_twice;
    "memory.free.upper-half-of-handle", "common/memory.c:free_device_memory" => free_upper_half;
    "memory.map.unknown-handle", "common/memory.c:map_device_va" => map_unknown;
    "memory.map.upper-half-of-handle", "common/memory.c:map_device_va" => map_upper_half;
    "memory.map.first-address", "gaudi2/gaudi2.c:gaudi2_set_dram_properties" => map_first_address;
    "memory.map.twice", "common/memory.c:map_device_va" => map_twice;
    "memory.map.smallest-hole-first", "common/memory.c:get_va_block" => map_smallest_hole;
    "memory.hint.free", "common/memory.c:get_va_block" => hint_free;
    "memory.hint.taken", "common/memory.c:get_va_block" => hint_taken;
    "memory.hint.misaligned", "common/memory.c:get_va_block" => hint_misaligned;
    "memory.hint.outside", "common/memory.c:get_va_block" => hint_outside;
    "memory.hint.wraps", "common/memory.c:get_va_block" => hint_wraps;
    "memory.hint.forced.free", "common/memory.c:get_va_block" => forced_free;
    "memory.hint.forced.taken", "common/memory.c:get_va_block" => forced_taken;
    "memory.hint.forced.misaligned", "common/memory.c:get_va_block" => forced_misaligned;
    "memory.hint.forced.no-address", "common/memory.c:get_va_block" => forced_no_address;
    "memory.unmap.unknown-address", "common/memory.c:unmap_device_va" => unmap_unknown;
    "memory.unmap.interior-address", "common/memory.c:get_vm_hash_node_locked" => unmap_interior;
    "memory.unmap.twice", "common/memory.c:unmap_device_va" => unmap_twice;
    "memory.map-host.keeps-offset", "common/memory.c:map_device_va" => host_keeps_offset;
    "memory.map-host.zero-bytes", "common/memory.c:hl_pin_host_memory" => host_zero;
    "memory.map-host.size-wraps", "common/memory.c:hl_pin_host_memory" => host_wraps;
    "memory.map-host.not-mapped", "common/memory.c:get_user_memory" => host_not_mapped;
    "memory.map-host.of-the-kernel", "common/memory.c:get_user_memory" => host_of_kernel;
    "memory.map-host.half-mapped", "common/memory.c:get_user_memory" => host_half_mapped;
    "memory.map-host.read-only", "common/memory.c:get_user_memory" => host_read_only;
    "memory.map-host.twice", "common/memory.c:map_device_va" => host_twice;
    "memory.map-host.hint.free", "common/memory.c:get_va_block" => host_hint;
    "memory.map-host.hint.forced.unaligned-memory", "common/memory.c:map_device_va" => host_forced_unaligned;
    "memory.timestamps-buffer", "common/memory.c:hl_mem_ioctl" => timestamps;
    "memory.timestamps-buffer.mapped", "common/memory_mgr.c:hl_mem_mgr_mmap" => timestamps_mapped;
    "memory.timestamps-buffer.of-nothing", "common/memory.c:hl_ts_alloc_buf" => timestamps_of_nothing;
}

fn usage(io: &SharedIo) -> Result<HlInfoDramUsage, Failure> {
    Ok(io.query()?)
}

fn alloc_zero(bench: &mut Bench) -> Verdict {
    invalid("an allocation of 0 bytes", Allocation::new(&bench.io()?, 0))
}

fn alloc_rounds_up(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for (size, pages) in [(1, 1), (DRAM_PAGE, 1), (DRAM_PAGE + 1, 2), (3 * DRAM_PAGE - 1, 3)] {
        let _memory = Allocation::new(&io, size)?;
        equal(
            &format!("bytes that an allocation of {size} takes"),
            usage(&io)?.ctx_dram_mem,
            pages * DRAM_PAGE,
        )?;
    }
    Ok(())
}

fn alloc_size_wraps(bench: &mut Bench) -> Verdict {
    // Rounding up wraps to 0 pages, which are refused like 0 bytes.
    for size in [u64::MAX, u64::MAX - DRAM_PAGE + 2] {
        invalid(
            &format!("an allocation of {size} bytes"),
            Allocation::new(&bench.io()?, size),
        )?;
    }
    Ok(())
}

fn alloc_lowest_handle(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memories = Vec::new();
    for number in 1..=3 {
        let memory = Allocation::new(&io, 1)?;
        equal("a handle", memory.handle, MemHandle(number))?;
        memories.push(memory);
    }
    memories.remove(1);
    let again = Allocation::new(&io, 1)?;
    equal(
        "the handle after 2 of 1, 2, 3 was freed",
        again.handle,
        MemHandle(2),
    )
}

fn alloc_whole_memory(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let free = usage(&io)?.dram_free_mem;
    let _all = Allocation::new(&io, free)?;
    equal("free memory when all is allocated", usage(&io)?.dram_free_mem, 0)?;
    refused("one byte more", Allocation::new(&io, 1), Errno::ENOMEM)
}

fn alloc_too_much(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let before = usage(&io)?;
    for flags in [MemFlags::NONE, MemFlags::CONTIGUOUS] {
        refused(
            "one byte more than there is",
            Allocation::with(&io, before.dram_free_mem + 1, flags),
            Errno::ENOMEM,
        )?;
        equal("the usage after the refused allocation", usage(&io)?, before)?;
    }
    let first = Allocation::new(&io, 1)?;
    equal("the handle after refused allocations", first.handle, MemHandle(1))
}

fn alloc_contiguous(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Allocation::with(&io, 4 * DRAM_PAGE, MemFlags::CONTIGUOUS)?;
    memory.map()?;
    equal(
        "bytes of four contiguous pages",
        usage(&io)?.ctx_dram_mem,
        4 * DRAM_PAGE,
    )
}

fn alloc_no_run_left(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let pages = usage(&io)?.dram_free_mem / DRAM_PAGE;
    let hole = Allocation::new(&io, 1)?;
    let _between = Allocation::new(&io, (pages - 2) * DRAM_PAGE)?;
    // Two pages are free now: the first and the last.
    drop(hole);
    refused(
        "two contiguous pages where no two free ones lie in a row",
        Allocation::with(&io, 2 * DRAM_PAGE, MemFlags::CONTIGUOUS),
        Errno::ENOMEM,
    )?;
    Allocation::new(&io, 2 * DRAM_PAGE)?;
    Ok(())
}

fn alloc_page_size(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for page_size in [1, 12_345, 2 << 20, 1 << 30] {
        let request = MemAlloc {
            size: 1,
            page_size,
            flags: MemFlags::NONE,
        };
        let _memory = Allocation::of(&io, request)?;
        equal(
            &format!("bytes taken where pages of {page_size} are asked for"),
            usage(&io)?.ctx_dram_mem,
            DRAM_PAGE,
        )?;
    }
    Ok(())
}

fn free_unknown(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let _memory = Allocation::new(&io, 1)?;
    for handle in [0, 2, u64::from(u32::MAX)] {
        invalid(
            &format!("freeing handle {handle}, which was not given"),
            io.mem_free(MemHandle(handle)),
        )?;
    }
    Ok(())
}

fn free_while_mapped(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    invalid("freeing memory that is mapped", memory.allocation.free())?;
    memory.mapping.unmap()?;
    Ok(memory.allocation.free()?)
}

fn free_twice(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Allocation::new(&io, 1)?;
    memory.free()?;
    invalid("freeing again", memory.free())
}

fn free_upper_half(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Allocation::new(&io, 1)?;
    io.mem_free(MemHandle(memory.handle.0 | 0xdead << 32))?;
    memory.leave();
    equal(
        "memory after a free with noise above bit 31",
        usage(&io)?.ctx_dram_mem,
        0,
    )
}

fn map_handle(io: &SharedIo, handle: u64) -> gaudi_seam::Result<DeviceVa> {
    io.mem_map_device(MapDevice {
        handle: MemHandle(handle),
        hint: None,
        flags: MemFlags::NONE,
    })
}

fn map_unknown(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for handle in [0, 1, u64::from(u32::MAX)] {
        invalid(
            &format!("mapping handle {handle}, which was not given"),
            map_handle(&io, handle),
        )?;
    }
    Ok(())
}

fn map_upper_half(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Allocation::new(&io, 1)?;
    let va = map_handle(&io, memory.handle.0 | 1 << 40)?;
    Ok(io.mem_unmap(va)?)
}

fn map_first_address(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let a = Dram::new(&io, 1)?;
    let b = Dram::new(&io, 1)?;
    equal("the first address of device memory", a.va(), DRAM_VA.start)?;
    equal("the next, one page on", b.va(), offset(DRAM_VA.start, DRAM_PAGE))
}

fn map_twice(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Allocation::new(&io, 1)?;
    let (mut a, mut b) = (memory.map()?, memory.map()?);
    holds("two mappings have two addresses", a.va != b.va, a.va)?;
    a.unmap()?;
    invalid("freeing while the second mapping is there", memory.free())?;
    b.unmap()?;
    Ok(memory.free()?)
}

fn map_smallest_hole(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Allocation::new(&io, 1)?;
    let first = memory.map()?;
    let va = first.va;
    let _second = memory.map()?;
    drop(first);
    let again = memory.map()?;
    equal(
        "the address of the smallest hole, which was unmapped",
        again.va,
        va,
    )
}

/// Returns an unused page-aligned address of device memory.
fn spare() -> DeviceVa {
    offset(DRAM_VA.start, 1000 * DRAM_PAGE)
}

fn hint_free(bench: &mut Bench) -> Verdict {
    let memory = Allocation::new(&bench.io()?, 1)?;
    let at = memory.map_at(Some(spare()), false)?;
    equal("the address where a free one is hinted at", at.va, spare())
}

fn hint_taken(bench: &mut Bench) -> Verdict {
    let memory = Allocation::new(&bench.io()?, 1)?;
    let first = memory.map_at(Some(spare()), false)?;
    let second = memory.map_at(Some(first.va), false)?;
    holds(
        "a hint at an address that is taken gives another one",
        second.va != first.va && DRAM_VA.contains(second.va, DRAM_PAGE),
        second.va,
    )
}

fn hint_misaligned(bench: &mut Bench) -> Verdict {
    let memory = Allocation::new(&bench.io()?, 1)?;
    let hint = offset(spare(), 4096);
    let at = memory.map_at(Some(hint), false)?;
    equal(
        "the address where a misaligned one is hinted at",
        at.va,
        DRAM_VA.start,
    )
}

fn hint_outside(bench: &mut Bench) -> Verdict {
    let memory = Allocation::new(&bench.io()?, 1)?;
    for hint in [DeviceVa(4096), HOST_VA.start, DRAM_VA.end] {
        let at = memory.map_at(Some(hint), false)?;
        holds(
            &format!("a hint at {hint}, outside device memory, gives an address inside"),
            DRAM_VA.contains(at.va, DRAM_PAGE),
            at.va,
        )?;
    }
    Ok(())
}

/// The driver's list of free addresses is damaged afterwards, until the close of the device.
fn hint_wraps(bench: &mut Bench) -> Verdict {
    let memory = Allocation::new(&bench.io()?, 1)?;
    refused(
        "a hint that wraps with the size",
        memory.map_at(Some(DeviceVa(u64::MAX)), false),
        Errno::ENOMEM,
    )?;
    drop(memory);
    let memory = Allocation::new(&bench.reopen()?, 1)?;
    let at = memory.map()?;
    equal("the first address of the next user", at.va, DRAM_VA.start)
}

fn forced_free(bench: &mut Bench) -> Verdict {
    let memory = Allocation::new(&bench.io()?, 1)?;
    for hint in [DRAM_VA.start, spare()] {
        let at = memory.map_at(Some(hint), true)?;
        equal("the address that was insisted on", at.va, hint)?;
    }
    Ok(())
}

fn forced_taken(bench: &mut Bench) -> Verdict {
    let memory = Allocation::new(&bench.io()?, 1)?;
    let first = memory.map_at(Some(spare()), true)?;
    refused(
        "insisting on an address that is taken",
        memory.map_at(Some(first.va), true),
        Errno::ENOMEM,
    )
}

fn forced_misaligned(bench: &mut Bench) -> Verdict {
    let memory = Allocation::new(&bench.io()?, 1)?;
    refused(
        "insisting on a misaligned address",
        memory.map_at(Some(offset(spare(), 4096)), true),
        Errno::ENOMEM,
    )
}

fn forced_no_address(bench: &mut Bench) -> Verdict {
    let memory = Allocation::new(&bench.io()?, 1)?;
    refused(
        "insisting on no address",
        memory.map_at(None, true),
        Errno::ENOMEM,
    )
}

fn unmap_unknown(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for va in [DeviceVa(0), DRAM_VA.start, HOST_VA.start, DeviceVa(u64::MAX)] {
        invalid(
            &format!("unmapping {va}, where nothing is mapped"),
            io.mem_unmap(va),
        )?;
    }
    Ok(())
}

fn unmap_interior(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 2 * DRAM_PAGE)?;
    let host = Host::new(&io, 2 * PAGE_LEN)?;
    for va in [
        offset(memory.va(), 1),
        offset(memory.va(), DRAM_PAGE),
        offset(host.va, PAGE),
    ] {
        invalid("unmapping an address inside a mapping", io.mem_unmap(va))?;
    }
    Ok(())
}

fn unmap_twice(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    memory.mapping.unmap()?;
    invalid("unmapping again", memory.mapping.unmap())
}

fn host_keeps_offset(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for (from, len) in [(0, 1), (5, 4090), (4095, 2), (100, 3 * PAGE_LEN)] {
        let memory = RawMapping::anonymous(5 * PAGE_LEN, true)?;
        let host = Host::of(&io, memory, from, len, None, false)?;
        equal(
            &format!("the place in its page of {len} bytes from {from}"),
            host.va.0 % PAGE,
            from as u64 % PAGE,
        )?;
        holds(
            "host memory is mapped where host memory goes",
            HOST_VA.contains(host.va, len as u64) || HOST_HUGE_VA.contains(host.va, len as u64),
            host.va,
        )?;
    }
    Ok(())
}

fn host(address: u64, size: u64) -> MapHost {
    MapHost {
        address: HostVa(address),
        size,
        hint: None,
        flags: MemFlags::NONE,
    }
}

fn address_of(memory: &RawMapping) -> u64 {
    memory.as_ptr().as_ptr().expose_provenance() as u64
}

fn host_zero(bench: &mut Bench) -> Verdict {
    let memory = RawMapping::anonymous(PAGE_LEN, true)?;
    invalid(
        "mapping 0 bytes of host memory",
        try_map_host(&*bench.io()?, host(address_of(&memory), 0)),
    )
}

fn host_wraps(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for (address, size) in [
        (u64::MAX - 100, 4096),
        (4096, u64::MAX - 100),
        (u64::MAX - 4096, 4096),
    ] {
        invalid(
            &format!("mapping {address:#x} + {size:#x}, which wraps"),
            try_map_host(&*io, host(address, size)),
        )?;
    }
    Ok(())
}

fn host_not_mapped(bench: &mut Bench) -> Verdict {
    // Nothing is mapped in the first page of a process (vm.mmap_min_addr).
    refused(
        "mapping memory that this process does not have",
        try_map_host(&*bench.io()?, host(0x10, 4096)),
        Errno::EFAULT,
    )
}

fn host_of_kernel(bench: &mut Bench) -> Verdict {
    // Above the user half of the address space.
    for address in [1 << 63, 0xffff_8000_0000_0000, u64::MAX - 2 * PAGE + 1] {
        refused(
            &format!("mapping {address:#x}"),
            try_map_host(&*bench.io()?, host(address, PAGE)),
            Errno::EFAULT,
        )?;
    }
    Ok(())
}

fn host_half_mapped(bench: &mut Bench) -> Verdict {
    // The second page of the mapping lies past the end of the file and cannot become present.
    let file = Memfd::sparse(c"gaudi-conformance-one-page", PAGE)?;
    let memory = RawMapping::of_fd(&file, 0, 2 * PAGE_LEN)?;
    refused(
        "mapping memory whose second page cannot be had",
        try_map_host(&*bench.io()?, host(address_of(&memory), 2 * PAGE)),
        Errno::ENOMEM,
    )
}

fn host_read_only(bench: &mut Bench) -> Verdict {
    static CONSTANT: [u8; 3 * PAGE_LEN] = [1; 3 * PAGE_LEN];
    let start = (&raw const CONSTANT).expose_provenance() as u64;
    refused(
        "mapping memory that may not be written",
        try_map_host(&*bench.io()?, host(start.next_multiple_of(PAGE), PAGE)),
        Errno::EFAULT,
    )
}

fn host_twice(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let a = Host::new(&io, PAGE_LEN)?;
    Ok(try_map_host(&*io, host(address_of(&a.memory), PAGE))?)
}

fn host_hint(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let hint = DeviceVa(0xfff0_4000_0000_0000);
    for forced in [false, true] {
        let memory = RawMapping::anonymous(PAGE_LEN, true)?;
        let host = Host::of(&io, memory, 0, PAGE_LEN, Some(hint), forced)?;
        equal("the address where a free one is hinted at", host.va, hint)?;
    }
    Ok(())
}

fn host_forced_unaligned(bench: &mut Bench) -> Verdict {
    let memory = RawMapping::anonymous(2 * PAGE_LEN, true)?;
    let request = MapHost {
        hint: Some(DeviceVa(0xfff0_4000_0000_0000)),
        flags: MemFlags::FORCE_HINT,
        ..host(address_of(&memory) + 8, PAGE)
    };
    invalid(
        "insisting on an address for memory that does not start on a page",
        try_map_host(&*bench.io()?, request),
    )
}

fn timestamps(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    io.ts_alloc(16)?;
    invalid(
        "more elements than a timestamps buffer has",
        io.ts_alloc(gaudi_uapi::limits::TS_MAX_ELEMENTS_NUM + 1),
    )?;
    // No operation frees it; the close does.
    bench.close();
    Ok(())
}

fn timestamps_mapped(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let handle = io.ts_alloc(1000)?;
    let map = |len| {
        io.mmap(MmapRequest {
            offset: handle.0,
            len,
        })
    };
    // 8000 bytes are two pages to mmap(2).
    drop(map(8000)?);
    for len in [PAGE_LEN, 3 * PAGE_LEN] {
        invalid("a part of a timestamps buffer", map(len))?;
    }
    let mapped = map(2 * PAGE_LEN)?;
    let mut times = vec![0xff; 8000];
    mapped.read(0, &mut times)?;
    holds(
        "no time is stamped yet",
        times.iter().all(|&byte| byte == 0),
        "one is",
    )?;
    mapped.write(7992, &[7; 8])?;
    invalid("the same mapped once more", map(2 * PAGE_LEN))?;
    drop(mapped);
    let again = map(2 * PAGE_LEN)?;
    again.read(0, &mut times)?;
    equal("the last element, mapped again", &times[7992..], &[7; 8][..])?;
    drop((again, io));
    bench.close();
    Ok(())
}

fn timestamps_of_nothing(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    refused("a timestamps buffer of nothing", io.ts_alloc(0), Errno::ENOMEM)
}
