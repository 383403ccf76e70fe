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
use crate::case::{Case, Failure, Verdict, equal, holds, refused};
use crate::rig::{Allocation, Dram, Host, PAGE_LEN, offset, try_map_host};

pub(crate) static CASES: &[Case] = &[
    Case::gaudi2("memory.alloc.zero-bytes", "common/memory.c:2214", alloc_zero),
    Case::gaudi2("memory.alloc.rounds-up", "common/memory.c:104", alloc_rounds_up),
    Case::gaudi2("memory.alloc.size-wraps", "common/memory.c:107", alloc_size_wraps),
    Case::gaudi2(
        "memory.alloc.lowest-handle",
        "common/memory.c:174",
        alloc_lowest_handle,
    ),
    Case::gaudi2(
        "memory.alloc.whole-memory",
        "common/memory.c:162",
        alloc_whole_memory,
    ),
    Case::gaudi2(
        "memory.alloc.more-than-there-is",
        "common/memory.c:165",
        alloc_too_much,
    ),
    Case::gaudi2("memory.alloc.contiguous", "common/memory.c:119", alloc_contiguous),
    Case::gaudi2(
        "memory.alloc.contiguous.no-run-left",
        "common/memory.c:124",
        alloc_no_run_left,
    ),
    Case::gaudi2(
        "memory.alloc.page-size-is-ignored",
        "common/memory.c:38",
        alloc_page_size,
    ),
    Case::gaudi2("memory.free.unknown-handle", "common/memory.c:365", free_unknown),
    Case::gaudi2(
        "memory.free.while-mapped",
        "common/memory.c:368",
        free_while_mapped,
    ),
    Case::gaudi2("memory.free.twice", "common/memory.c:377", free_twice),
    Case::gaudi2(
        "memory.free.upper-half-of-handle",
        "common/memory.c:358",
        free_upper_half,
    ),
    Case::gaudi2("memory.map.unknown-handle", "common/memory.c:1124", map_unknown),
    Case::gaudi2(
        "memory.map.upper-half-of-handle",
        "common/memory.c:1116",
        map_upper_half,
    ),
    Case::gaudi2(
        "memory.map.first-address",
        "gaudi2/gaudi2.c:2721",
        map_first_address,
    ),
    Case::gaudi2("memory.map.twice", "common/memory.c:1128", map_twice),
    Case::gaudi2(
        "memory.map.smallest-hole-first",
        "common/memory.c:672",
        map_smallest_hole,
    ),
    Case::gaudi2("memory.hint.free", "common/memory.c:678", hint_free),
    Case::gaudi2("memory.hint.taken", "common/memory.c:672", hint_taken),
    Case::gaudi2("memory.hint.misaligned", "common/memory.c:639", hint_misaligned),
    Case::gaudi2("memory.hint.outside", "common/memory.c:678", hint_outside),
    Case::gaudi2("memory.hint.forced.free", "common/memory.c:681", forced_free),
    Case::gaudi2("memory.hint.forced.taken", "common/memory.c:693", forced_taken),
    Case::gaudi2(
        "memory.hint.forced.misaligned",
        "common/memory.c:628",
        forced_misaligned,
    ),
    Case::gaudi2(
        "memory.hint.forced.no-address",
        "common/memory.c:693",
        forced_no_address,
    ),
    Case::gaudi2(
        "memory.unmap.unknown-address",
        "common/memory.c:1294",
        unmap_unknown,
    ),
    Case::gaudi2(
        "memory.unmap.interior-address",
        "common/memory.c:1256",
        unmap_interior,
    ),
    Case::gaudi2("memory.unmap.twice", "common/memory.c:1303", unmap_twice),
    Case::gaudi2(
        "memory.map-host.keeps-offset",
        "common/memory.c:1212",
        host_keeps_offset,
    ),
    Case::gaudi2("memory.map-host.zero-bytes", "common/memory.c:2380", host_zero),
    Case::gaudi2("memory.map-host.size-wraps", "common/memory.c:2389", host_wraps),
    Case::gaudi2(
        "memory.map-host.not-mapped",
        "common/memory.c:2337",
        host_not_mapped,
    ),
    Case::gaudi2(
        "memory.map-host.of-the-kernel",
        "common/memory.c:2323",
        host_of_kernel,
    ),
    Case::gaudi2(
        "memory.map-host.half-mapped",
        "common/memory.c:2340",
        host_half_mapped,
    ),
    Case::gaudi2(
        "memory.map-host.read-only",
        "common/memory.c:2330",
        host_read_only,
    ),
    Case::gaudi2("memory.map-host.twice", "common/memory.c:1175", host_twice),
    Case::gaudi2("memory.map-host.hint.free", "common/memory.c:678", host_hint),
    Case::gaudi2(
        "memory.map-host.hint.forced.unaligned-memory",
        "common/memory.c:1167",
        host_forced_unaligned,
    ),
    Case::gaudi2("memory.timestamps-buffer", "common/memory.c:2302", timestamps),
    Case::gaudi2(
        "memory.timestamps-buffer.mapped",
        "common/memory_mgr.c:271",
        timestamps_mapped,
    ),
    Case::gaudi2(
        "memory.timestamps-buffer.of-nothing",
        "common/memory.c:2125",
        timestamps_of_nothing,
    ),
];

fn usage(io: &SharedIo) -> Result<HlInfoDramUsage, Failure> {
    Ok(io.query()?)
}

fn alloc_zero(bench: &mut Bench) -> Verdict {
    refused(
        "an allocation of 0 bytes",
        Allocation::new(&bench.io()?, 0),
        Errno::EINVAL,
    )
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
    // Rounding up wraps to 0 pages, which is refused as 0 bytes are.
    for size in [u64::MAX, u64::MAX - DRAM_PAGE + 2] {
        refused(
            &format!("an allocation of {size} bytes"),
            Allocation::new(&bench.io()?, size),
            Errno::EINVAL,
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
        equal("what the refused allocation keeps", usage(&io)?, before)?;
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
    // Two pages are free now: the first, and the last.
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
        refused(
            &format!("freeing handle {handle}, which was not given"),
            io.mem_free(MemHandle(handle)),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn free_while_mapped(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    refused(
        "freeing memory that is mapped",
        memory.allocation.free(),
        Errno::EINVAL,
    )?;
    memory.mapping.unmap()?;
    Ok(memory.allocation.free()?)
}

fn free_twice(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Allocation::new(&io, 1)?;
    memory.free()?;
    refused("freeing again", memory.free(), Errno::EINVAL)
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
        refused(
            &format!("mapping handle {handle}, which was not given"),
            map_handle(&io, handle),
            Errno::EINVAL,
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
    refused(
        "freeing while the second mapping is there",
        memory.free(),
        Errno::EINVAL,
    )?;
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
        "an address that was given back, and is the smallest hole",
        again.va,
        va,
    )
}

/// A page-aligned address of device memory that nobody has.
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
        refused(
            &format!("unmapping {va}, where nothing is mapped"),
            io.mem_unmap(va),
            Errno::EINVAL,
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
        refused(
            "unmapping an address inside a mapping",
            io.mem_unmap(va),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn unmap_twice(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    memory.mapping.unmap()?;
    refused("unmapping again", memory.mapping.unmap(), Errno::EINVAL)
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
    refused(
        "mapping 0 bytes of host memory",
        try_map_host(&*bench.io()?, host(address_of(&memory), 0)),
        Errno::EINVAL,
    )
}

fn host_wraps(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for (address, size) in [
        (u64::MAX - 100, 4096),
        (4096, u64::MAX - 100),
        (u64::MAX - 4096, 4096),
    ] {
        refused(
            &format!("mapping {address:#x} + {size:#x}, which wraps"),
            try_map_host(&*io, host(address, size)),
            Errno::EINVAL,
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
    // Above the half of the address space that a process can have.
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
    // The second page of the mapping lies past the end of the file: nobody can make it present.
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
    refused(
        "insisting on an address for memory that does not start on a page",
        try_map_host(&*bench.io()?, request),
        Errno::EINVAL,
    )
}

fn timestamps(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    io.ts_alloc(16)?;
    refused(
        "more elements than a timestamps buffer has",
        io.ts_alloc(gaudi_uapi::limits::TS_MAX_ELEMENTS_NUM + 1),
        Errno::EINVAL,
    )?;
    // No operation frees one: the close does.
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
        refused("a part of a timestamps buffer", map(len), Errno::EINVAL)?;
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
    refused("the same mapped once more", map(2 * PAGE_LEN), Errno::EINVAL)?;
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
