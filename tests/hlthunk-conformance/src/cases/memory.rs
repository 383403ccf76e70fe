//! Device memory, host memory, register blocks and timestamps.

use std::ptr;

use gaudi_conformance::{Program, Verdict, equal, holds, pattern, same_bytes};
use gaudi_harness::UNMAPPED;
use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::{DRAM_VA, HOST_HUGE_VA, HOST_VA, block};
use gaudi_sys::{Memfd, RawMapping};
use gaudi_uapi::memory::MemFlags;
use nix::errno::Errno;

use crate::answer::{fails, handle, none, ok, refused, rejected};
use crate::bench::Bench;
use crate::card::{Card, DRAM_PAGE, Dram, Host, Mapped, Memory, PAGE, Q, Window, address_in};
use crate::case::cases;

cases! { "memory":
    "alloc.one-byte-takes-a-page", "common/memory.c:alloc_device_memory" => alloc_byte;
    "alloc.rounds-up-to-pages", "common/memory.c:alloc_device_memory" => alloc_rounds;
    "alloc.zero-bytes-is-invalid", "common/memory.c:hl_mem_ioctl" => alloc_zero;
    "alloc.wrapping-size-is-invalid", "common/memory.c:alloc_device_memory" => alloc_wraps;
    "alloc.more-than-there-is-is-enomem", "common/memory.c:alloc_device_memory" => alloc_too_much;
    "alloc.whole-memory", "client:hl-thunk/tests/memory.c:test_alloc_device_mem_until_full" => alloc_whole;
    "alloc.until-full-and-again", "client:hl-thunk/tests/memory.c:test_alloc_device_mem_until_full" => alloc_until_full;
    "alloc.page-size-is-ignored", "common/memory.c:set_alloc_page_size" => alloc_page_size;
    "alloc.contiguous", "common/memory.c:alloc_device_memory" => alloc_contiguous;
    "alloc.contiguous-without-a-run-is-enomem", "common/memory.c:alloc_device_memory" => alloc_no_run;
    "alloc.shared", "common/memory.c:alloc_device_memory" => alloc_shared;
    "alloc.handles-differ", "common/memory.c:alloc_device_memory" => alloc_handles;
    "free.unknown-handle-is-invalid", "common/memory.c:free_device_memory" => free_unknown;
    "free.while-mapped-is-invalid", "common/memory.c:free_device_memory" => free_mapped;
    "free.twice-is-invalid", "common/memory.c:free_device_memory" => free_twice;
    "map.two-mappings-have-two-addresses", "common/memory.c:map_device_va" => map_twice;
    "map.lies-in-device-range", "gaudi2/gaudi2.c:gaudi2_set_dram_properties" => map_range;
    "map.unknown-handle-is-invalid", "common/memory.c:map_device_va" => map_unknown;
    "map.freed-handle-is-invalid", "common/memory.c:map_device_va" => map_freed;
    "map.second-mapping-shows-the-same-bytes", "common/memory.c:map_device_va" => map_same_bytes;
    "hint.free-address-is-taken", "common/memory.c:get_va_block" => hint_free;
    "hint.taken-address-gives-another", "common/memory.c:get_va_block" => hint_taken;
    "hint.misaligned-is-ignored", "common/memory.c:get_va_block" => hint_misaligned;
    "hint.outside-is-ignored", "common/memory.c:get_va_block" => hint_outside;
    "hint.that-wraps-is-enomem", "common/memory.c:get_va_block" => hint_wraps;
    "hint.for-host-memory", "common/memory.c:get_va_block" => hint_host;
    "hint.forced-and-taken-is-enomem", "common/memory.c:get_va_block" => forced_taken;
    "hint.forced-for-unaligned-memory-is-invalid", "common/memory.c:map_device_va" => forced_unaligned;
    "unmap.unknown-address-is-invalid", "common/memory.c:unmap_device_va" => unmap_unknown;
    "unmap.interior-address-is-invalid", "common/memory.c:get_vm_hash_node_locked" => unmap_interior;
    "unmap.twice-is-invalid", "common/memory.c:unmap_device_va" => unmap_twice;
    "host.keeps-place-in-page", "client:hl-thunk/tests/memory.c:test_map_custom_size" => host_keeps_offset;
    "host.lies-in-host-range", "common/memory.c:map_device_va" => host_range;
    "host.zero-bytes-is-invalid", "common/memory.c:hl_pin_host_memory" => host_zero;
    "host.wrapping-size-is-invalid", "common/memory.c:hl_pin_host_memory" => host_wraps;
    "host.unmapped-address-is-a-fault", "common/memory.c:get_user_memory" => host_unmapped;
    "host.null-is-a-fault", "common/memory.c:get_user_memory" => host_null;
    "host.kernel-address-is-a-fault", "common/memory.c:get_user_memory" => host_kernel;
    "host.read-only-memory-is-a-fault", "common/memory.c:get_user_memory" => host_read_only;
    "host.half-mapped-is-enomem", "common/memory.c:get_user_memory" => host_half;
    "host.same-memory-twice", "common/memory.c:map_device_va" => host_twice;
    "host.both-functions-map", "hlthunk.h:hlthunk_host_memory_map" => host_both;
    "host.many-pages", "client:hl-thunk/tests/memory.c:test_map_bigger_than_4GB" => host_many;
    "host.unaligned-memory-is-copied", "client:hl-thunk/tests/dma.c:test_host_dma" => host_unaligned_copy;
    "host.heap-memory-is-mapped", "client:hl-thunk/tests/hlthunk_tests.c:hltests_allocate_host_mem" => host_heap;
    "dma.up-and-down-compare", "client:hl-thunk/tests/dma_dram.c:test_dma_dram" => dma_both_ways;
    "dma.sizes-compare", "client:hl-thunk/tests/dma_dram.c:test_dma_dram" => dma_sizes;
    "dma.between-device-pages", "client:hl-thunk/tests/dma_dram.c:test_dma_dram_frag_mem" => dma_across;
    "dma.sram-up-and-down-compare", "client:hl-thunk/tests/dma_sram.c:test_dma_sram" => dma_sram;
    "dma.second-user-reads-no-old-bytes", "common/memory.c:alloc_device_memory" => dma_second_mapping;
    "block.handle-and-size", "client:scal/scal_gaudi2.cpp:mapLBWBlock" => block_known;
    "block.memory-is-shared-by-mappings", "gaudi2/gaudi2.c:gaudi2_block_mmap" => block_memory;
    "block.unknown-address-is-invalid", "gaudi2/gaudi2.c:gaudi2_get_hw_block_id" => block_unknown;
    "block.null-is-invalid", "hlthunk.h:hlthunk_get_hw_block" => block_null;
    "timestamps.are-mapped-and-zero", "common/memory.c:hl_ts_mmap" => timestamps;
    "timestamps.of-nothing-is-enomem", "common/memory.c:hl_ts_alloc_buf" => timestamps_none;
    "timestamps.too-many-is-invalid", "common/memory.c:hl_mem_ioctl" => timestamps_many;
    "timestamps.null-fails", "hlthunk.h:hlthunk_allocate_timestamp_elements" => timestamps_null;
    "foreign-descriptor-is-enotty", "hlthunk.h:hlthunk_device_memory_alloc" => on_foreign;
    "closed-descriptor-is-ebadf", "hlthunk.h:hlthunk_device_memory_alloc" => on_closed;
}

/// An unused page-aligned address of device memory.
const SPARE: u64 = DRAM_VA.start.0 + 1000 * DRAM_PAGE;
/// An unused address of host memory.
const HOST_SPARE: u64 = 0xfff0_4000_0000_0000;

fn alloc(card: Card, size: u64, contiguous: bool) -> u64 {
    card.hl.device_memory_alloc(card.fd, size, 0, contiguous, false)
}

fn map_host(card: Card, address: u64, size: u64) -> u64 {
    let address = ptr::with_exposed_provenance_mut(address as usize);
    card.hl.host_memory_map(card.fd, address, 0, size)
}

fn alloc_byte(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let _memory = Memory::new(card, 1)?;
    equal("memory used by one byte", card.usage()?.ctx_dram_mem, DRAM_PAGE)
}

fn alloc_rounds(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for (size, pages) in [(DRAM_PAGE, 1), (DRAM_PAGE + 1, 2), (3 * DRAM_PAGE - 1, 3)] {
        let _memory = Memory::new(card, size)?;
        equal(
            &format!("memory used by {size} bytes"),
            card.usage()?.ctx_dram_mem,
            pages * DRAM_PAGE,
        )?;
    }
    Ok(())
}

fn alloc_zero(bench: &mut Bench) -> Verdict {
    none(
        "an allocation of 0 bytes",
        alloc(bench.card()?, 0, false),
        Errno::EINVAL,
    )
}

fn alloc_wraps(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for size in [u64::MAX, u64::MAX - DRAM_PAGE + 2] {
        none(
            &format!("an allocation of {size:#x} bytes"),
            alloc(card, size, false),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn alloc_too_much(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let before = card.usage()?;
    for contiguous in [false, true] {
        let size = before.dram_free_mem + 1;
        none(
            "one byte more than the free memory",
            alloc(card, size, contiguous),
            Errno::ENOMEM,
        )?;
        equal("the usage after a failed allocation", card.usage()?, before)?;
    }
    Ok(())
}

fn alloc_whole(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let _all = Memory::new(card, card.usage()?.dram_free_mem)?;
    equal("free memory", card.usage()?.dram_free_mem, 0)?;
    none("allocating one more byte", alloc(card, 1, false), Errno::ENOMEM)
}

fn alloc_until_full(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let pages = card.usage()?.dram_free_mem / DRAM_PAGE;
    for round in 0..2 {
        let all: Result<Vec<_>, _> = (0..pages).map(|_| Memory::new(card, DRAM_PAGE)).collect();
        let all = all?;
        none(
            &format!("one more page, round {round}"),
            alloc(card, 1, false),
            Errno::ENOMEM,
        )?;
        drop(all);
    }
    Ok(())
}

fn alloc_page_size(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for page in [1, 12_345, 2 << 20, DRAM_PAGE] {
        let _memory = Memory::with(card, 1, page, false, false)?;
        equal(
            &format!("memory used with a page size of {page}"),
            card.usage()?.ctx_dram_mem,
            DRAM_PAGE,
        )?;
    }
    Ok(())
}

fn alloc_contiguous(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let memory = Memory::with(card, 4 * DRAM_PAGE, 0, true, false)?;
    memory.map(0)?;
    equal(
        "memory used by four pages",
        card.usage()?.ctx_dram_mem,
        4 * DRAM_PAGE,
    )
}

fn alloc_no_run(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let pages = card.usage()?.dram_free_mem / DRAM_PAGE;
    let hole = Memory::new(card, 1)?;
    let _between = Memory::new(card, (pages - 2) * DRAM_PAGE)?;
    // Two pages are free: the first and the last.
    drop(hole);
    let none_left = alloc(card, 2 * DRAM_PAGE, true);
    none("two contiguous pages", none_left, Errno::ENOMEM)?;
    Memory::new(card, 2 * DRAM_PAGE).map(drop)
}

fn alloc_shared(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    Memory::with(card, 1, 0, false, true)?.map(0).map(drop)
}

fn alloc_handles(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let all: Result<Vec<_>, _> = (0..4).map(|_| Memory::new(card, 1)).collect();
    let handles: std::collections::BTreeSet<_> = all?.iter().map(|memory| memory.handle).collect();
    equal("distinct handles of four allocations", handles.len(), 4)
}

fn free_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for handle in [0, 1, 77, u64::from(u32::MAX)] {
        let code = card.hl.device_memory_free(card.fd, handle);
        refused(&format!("freeing handle {handle}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn free_mapped(bench: &mut Bench) -> Verdict {
    let mut dram = Dram::new(bench.card()?, 1)?;
    refused("freeing mapped memory", dram.memory.free(), Errno::EINVAL)?;
    ok("the unmap", dram.mapping.unmap())?;
    ok("the free", dram.memory.free())
}

fn free_twice(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut memory = Memory::new(card, 1)?;
    let handle = memory.handle;
    ok("the free", memory.free())?;
    refused(
        "the second free",
        card.hl.device_memory_free(card.fd, handle),
        Errno::EINVAL,
    )
}

fn map_twice(bench: &mut Bench) -> Verdict {
    let mut memory = Memory::new(bench.card()?, 1)?;
    let (mut a, mut b) = (memory.map(0)?, memory.map(0)?);
    holds("two mappings have two addresses", a.va != b.va, a.va)?;
    ok("the first unmap", a.unmap())?;
    refused(
        "freeing while the second mapping exists",
        memory.free(),
        Errno::EINVAL,
    )?;
    ok("the second unmap", b.unmap())?;
    ok("the free", memory.free())
}

fn map_range(bench: &mut Bench) -> Verdict {
    let dram = Dram::new(bench.card()?, 3 * DRAM_PAGE)?;
    let is_there =
        DRAM_VA.contains(dram.va(), 3 * DRAM_PAGE) && dram.va().0 % DRAM_PAGE == DRAM_VA.start.0 % DRAM_PAGE;
    holds(
        "the mapping is a page in the device memory range",
        is_there,
        dram.va(),
    )
}

fn map_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for handle in [0, 1, 77, u64::from(u32::MAX)] {
        let va = card.hl.device_memory_map(card.fd, handle, 0);
        none(&format!("mapping handle {handle}"), va, Errno::EINVAL)?;
    }
    Ok(())
}

fn map_freed(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut memory = Memory::new(card, 1)?;
    ok("the free", memory.free())?;
    none(
        "mapping freed memory",
        card.hl.device_memory_map(card.fd, memory.handle, 0),
        Errno::EINVAL,
    )
}

fn map_same_bytes(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let window = Window::new(card, PAGE)?;
    let bytes = pattern(256, 3);
    window.write(0, &bytes)?;
    let other = window.dram.memory.map(0)?;
    card.run(Q, Program::new().copy(window.host.va, other.va, 256))?;
    same_bytes(
        "bytes read through the second mapping",
        &window.host.bytes(0, 256)?,
        &bytes,
    )
}

fn hint_free(bench: &mut Bench) -> Verdict {
    let memory = Memory::new(bench.card()?, 1)?;
    equal("the address", memory.map(SPARE)?.va, DeviceVa(SPARE))
}

fn hint_taken(bench: &mut Bench) -> Verdict {
    let memory = Memory::new(bench.card()?, 1)?;
    let (first, second) = (memory.map(SPARE)?, memory.map(SPARE)?);
    holds("the second address differs", first.va != second.va, second.va)
}

fn hint_misaligned(bench: &mut Bench) -> Verdict {
    let memory = Memory::new(bench.card()?, 1)?;
    let at = memory.map(SPARE + 4096)?;
    equal("the address", at.va, DRAM_VA.start)
}

fn hint_outside(bench: &mut Bench) -> Verdict {
    let memory = Memory::new(bench.card()?, 1)?;
    // u64::MAX is covered by `hint_wraps`.
    for hint in [4096, HOST_VA.start.0, DRAM_VA.end.0] {
        let at = memory.map(hint)?;
        holds(
            &format!("hint {hint:#x} is ignored"),
            DRAM_VA.contains(at.va, DRAM_PAGE),
            at.va,
        )?;
    }
    Ok(())
}

/// Corrupts the driver's list of free addresses until the device is closed.
fn hint_wraps(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let memory = Memory::new(card, 1)?;
    let va = card.hl.device_memory_map(card.fd, memory.handle, u64::MAX);
    none("a hint that wraps with the size", va, Errno::ENOMEM)?;
    drop(memory);
    let memory = Memory::new(bench.reopen()?, 1)?;
    let at = memory.map(0)?;
    equal("the first address of the next user", at.va, DRAM_VA.start)
}

fn hint_host(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for flags in [MemFlags::NONE, MemFlags::FORCE_HINT] {
        let memory = RawMapping::anonymous(PAGE, true)?;
        let host = Host::of(card, memory, 0, PAGE as u64, HOST_SPARE, flags.0)?;
        equal("the address", host.va.0, HOST_SPARE)?;
    }
    Ok(())
}

fn forced_taken(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let memory = RawMapping::anonymous(PAGE, true)?;
    let first = Host::of(card, memory, 0, PAGE as u64, HOST_SPARE, MemFlags::FORCE_HINT.0)?;
    let start = address_in(&first.memory, 0);
    let va = card
        .hl
        .host_memory_map_flags(card.fd, start, HOST_SPARE, PAGE as u64, MemFlags::FORCE_HINT.0);
    none("forcing a hint that is in use", va, Errno::ENOMEM)
}

fn forced_unaligned(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let memory = RawMapping::anonymous(2 * PAGE, true)?;
    let start = address_in(&memory, 8);
    let va = card
        .hl
        .host_memory_map_flags(card.fd, start, HOST_SPARE, PAGE as u64, MemFlags::FORCE_HINT.0);
    none("forcing a hint for unaligned memory", va, Errno::EINVAL)
}

fn unmaps_fail(card: Card, addresses: &[u64]) -> Verdict {
    for &va in addresses {
        let what = format!("unmapping {va:#x}");
        refused(&what, card.hl.memory_unmap(card.fd, va), Errno::EINVAL)?;
    }
    Ok(())
}

fn unmap_unknown(bench: &mut Bench) -> Verdict {
    unmaps_fail(bench.card()?, &[0, DRAM_VA.start.0, HOST_VA.start.0, u64::MAX])
}

fn unmap_interior(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (dram, host) = (Dram::new(card, 2 * DRAM_PAGE)?, Host::new(card, 2 * PAGE)?);
    let inside_dram = [dram.address() + 1, dram.address() + DRAM_PAGE];
    unmaps_fail(card, &inside_dram)?;
    unmaps_fail(card, &[host.va.0 + PAGE as u64])
}

fn unmap_twice(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut dram = Dram::new(card, 1)?;
    let va = dram.address();
    ok("the unmap", dram.mapping.unmap())?;
    refused(
        "the second unmap",
        card.hl.memory_unmap(card.fd, va),
        Errno::EINVAL,
    )
}

fn host_keeps_offset(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for (from, len) in [(0, 1), (5, 4090), (4095, 2), (100, 3 * PAGE)] {
        let host = Host::of(
            card,
            RawMapping::anonymous(5 * PAGE, true)?,
            from,
            len as u64,
            0,
            0,
        )?;
        equal(
            &format!("the page offset of {len} bytes from {from}"),
            host.va.0 % 4096,
            from as u64 % 4096,
        )?;
    }
    Ok(())
}

fn host_range(bench: &mut Bench) -> Verdict {
    let host = Host::new(bench.card()?, 3 * PAGE)?;
    let len = 3 * PAGE as u64;
    let is_there = HOST_VA.contains(host.va, len) || HOST_HUGE_VA.contains(host.va, len);
    holds("the address is in the host range", is_there, host.va)
}

fn host_zero(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let memory = RawMapping::anonymous(PAGE, true)?;
    let va = card.hl.host_memory_map(card.fd, address_in(&memory, 0), 0, 0);
    none("mapping 0 bytes", va, Errno::EINVAL)
}

fn host_wraps(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for (address, size) in [(u64::MAX - 100, 4096), (4096, u64::MAX - 100)] {
        none(
            &format!("mapping {address:#x} + {size:#x}"),
            map_host(card, address, size),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn host_unmapped(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for address in [0x10, UNMAPPED] {
        none(
            &format!("mapping {address:#x}"),
            map_host(card, address, 4096),
            Errno::EFAULT,
        )?;
    }
    Ok(())
}

fn host_null(bench: &mut Bench) -> Verdict {
    none("mapping NULL", map_host(bench.card()?, 0, 4096), Errno::EFAULT)
}

fn host_kernel(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for address in [1 << 63, 0xffff_8000_0000_0000] {
        none(
            &format!("mapping {address:#x}"),
            map_host(card, address, 4096),
            Errno::EFAULT,
        )?;
    }
    Ok(())
}

fn host_read_only(bench: &mut Bench) -> Verdict {
    static CONSTANT: [u8; 3 * PAGE] = [1; 3 * PAGE];
    let start = crate::card::address_of(&CONSTANT).next_multiple_of(PAGE as u64);
    none(
        "mapping read-only memory",
        map_host(bench.card()?, start, PAGE as u64),
        Errno::EFAULT,
    )
}

fn host_half(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    // The second page is past the end of the file.
    let file = Memfd::sparse(c"hlthunk-one-page", PAGE as u64)?;
    let memory = RawMapping::of_fd(&file, 0, 2 * PAGE)?;
    let va = card
        .hl
        .host_memory_map(card.fd, address_in(&memory, 0), 0, 2 * PAGE as u64);
    none("mapping memory with a missing page", va, Errno::ENOMEM)
}

fn host_twice(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let first = Host::new(card, PAGE)?;
    let va = card
        .hl
        .host_memory_map(card.fd, address_in(&first.memory, 0), 0, PAGE as u64);
    let second = Mapped::new(card, handle("the second mapping", va)?);
    holds(
        "two mappings have two addresses",
        second.va != first.va,
        second.va,
    )
}

fn host_both(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let memory = RawMapping::anonymous(PAGE, true)?;
    let start = address_in(&memory, 0);
    let plain = card.hl.host_memory_map(card.fd, start, HOST_SPARE, PAGE as u64);
    let mut plain = Mapped::new(card, handle("hlthunk_host_memory_map", plain)?);
    ok("the unmap", plain.unmap())?;
    let flags = card
        .hl
        .host_memory_map_flags(card.fd, start, HOST_SPARE, PAGE as u64, 0);
    let flags = Mapped::new(card, handle("hlthunk_host_memory_map_flags", flags)?);
    equal("the address of both", flags.va, plain.va)
}

fn host_many(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let len = 16 << 20;
    let host = Host::new(card, len)?;
    let bytes = pattern(PAGE, 7);
    host.memory.write(len - PAGE, &bytes)?;
    let last = gaudi_conformance::offset(host.va, (len - PAGE) as u64);
    card.run(Q, Program::new().copy(host.va, last, PAGE as u32))?;
    same_bytes(
        "the last page, copied to the first",
        &host.bytes(0, PAGE)?,
        &bytes,
    )
}

fn host_unaligned_copy(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let memory = RawMapping::anonymous(4 * PAGE, true)?;
    let bytes = pattern(PAGE + 77, 5);
    memory.write(123, &bytes)?;
    let from = Host::of(card, memory, 123, bytes.len() as u64, 0, 0)?;
    let to = Host::of(
        card,
        RawMapping::anonymous(4 * PAGE, true)?,
        77,
        bytes.len() as u64,
        0,
        0,
    )?;
    card.run(Q, Program::new().copy(to.va, from.va, bytes.len() as u32))?;
    same_bytes("the copied bytes", &to.bytes(77, bytes.len())?, &bytes)?;
    same_bytes("the byte before", &to.bytes(76, 1)?, &[0])
}

fn host_heap(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    // malloc(3) memory, which is not page-aligned.
    let memory = card.hl.malloc(10_000);
    let va = card.hl.host_memory_map(card.fd, memory, 0, 10_000);
    let mapped = handle("mapping memory of the heap", va).map(|va| Mapped::new(card, va));
    let unmapped = mapped.and_then(|mut mapped| ok("the unmap", mapped.unmap()));
    card.hl.free(memory);
    unmapped
}

fn dma_both_ways(bench: &mut Bench) -> Verdict {
    let window = Window::new(bench.card()?, PAGE)?;
    let bytes = pattern(PAGE, 1);
    window.write(0, &bytes)?;
    same_bytes(
        "bytes copied to the device and back",
        &window.read(0, PAGE)?,
        &bytes,
    )
}

fn dma_sizes(bench: &mut Bench) -> Verdict {
    let window = Window::new(bench.card()?, 64 << 10)?;
    for len in [1, 3, 64, 4095, 4097, 64 << 10] {
        let bytes = pattern(len, len as u8);
        window.write(4096 - 7, &bytes)?;
        same_bytes(
            &format!("{len} bytes copied to the device and back"),
            &window.read(4096 - 7, len)?,
            &bytes,
        )?;
    }
    Ok(())
}

fn dma_across(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let dram = Dram::new(card, 2 * DRAM_PAGE)?;
    let (up, down) = (Host::new(card, 2 * PAGE)?, Host::new(card, 2 * PAGE)?);
    let bytes = pattern(2 * PAGE, 9);
    up.memory.write(0, &bytes)?;
    let middle = gaudi_conformance::offset(dram.va(), DRAM_PAGE - PAGE as u64);
    card.run(Q, Program::new().copy(middle, up.va, 2 * PAGE as u32))?;
    card.run(Q, Program::new().copy(down.va, middle, 2 * PAGE as u32))?;
    same_bytes("bytes across a page boundary", &down.bytes(0, 2 * PAGE)?, &bytes)
}

fn dma_sram(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (up, down) = (Host::new(card, 16 << 10)?, Host::new(card, 16 << 10)?);
    let bytes = pattern(16 << 10, 11);
    up.memory.write(0, &bytes)?;
    let sram = DeviceVa(gaudi_spec::gaudi2::SRAM_BASE.0 + 0x10_0000);
    card.run(Q, Program::new().copy(sram, up.va, 16 << 10))?;
    card.run(Q, Program::new().copy(down.va, sram, 16 << 10))?;
    same_bytes("bytes through the SRAM", &down.bytes(0, 16 << 10)?, &bytes)
}

fn dma_second_mapping(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let window = Window::new(card, PAGE)?;
    window.write(0, &[0x5a; 64])?;
    // Map other memory a second time: it must not alias these bytes.
    let other = Dram::new(card, 1)?;
    card.run(Q, Program::new().copy(other.va(), window.host.va, 64))?;
    window.write(0, &[0xa5; 64])?;
    card.run(Q, Program::new().copy(window.host.va, other.va(), 64))?;
    same_bytes("the other memory", &window.host.bytes(0, 64)?, &[0x5a; 64])
}

fn block_known(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for row in [0, 4, 80, 447].into_iter().filter_map(block::block) {
        let (mut size, mut value) = (0, 0);
        let code = card
            .hl
            .get_hw_block(card.fd, row.address.0, Some(&mut size), Some(&mut value));
        ok("hlthunk_get_hw_block", code)?;
        equal("the block's size", size, row.size)?;
        holds("the handle is not 0", value != 0, value)?;
    }
    Ok(())
}

fn block_memory(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let arc = (0..block::COUNT)
        .filter_map(block::block)
        .find(|row| matches!(row.kind, block::BlockKind::Dccm(5)));
    let Some(arc) = arc else {
        return equal("an ARC's memory", false, true);
    };
    let (mut size, mut value) = (0, 0);
    ok(
        "mapping the block",
        card.hl
            .get_hw_block(card.fd, arc.address.0, Some(&mut size), Some(&mut value)),
    )?;
    let (one, other) = (card.mmap(value, size as usize)?, card.mmap(value, size as usize)?);
    one.write(size as usize - 4, b"ring")?;
    let mut seen = [0; 4];
    other.read(size as usize - 4, &mut seen)?;
    equal("bytes read through the other mapping", &seen, b"ring")
}

fn block_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let first = block::block(0).map_or(0, |row| row.address.0);
    for address in [first + 0x1000, 0, u64::MAX] {
        let (mut size, mut value) = (7, 8);
        let code = card
            .hl
            .get_hw_block(card.fd, address, Some(&mut size), Some(&mut value));
        refused(&format!("a block at {address:#x}"), code, Errno::EINVAL)?;
        equal("size and handle after a failure", (size, value), (7, 8))?;
    }
    Ok(())
}

fn block_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (mut size, mut value) = (0, 0);
    rejected(
        "a NULL size pointer",
        card.hl.get_hw_block(card.fd, 0, None, Some(&mut value)),
        Errno::EINVAL,
    )?;
    rejected(
        "a NULL handle pointer",
        card.hl.get_hw_block(card.fd, 0, Some(&mut size), None),
        Errno::EINVAL,
    )
}

fn timestamps(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut value = 0;
    ok(
        "timestamps",
        card.hl
            .allocate_timestamp_elements(card.fd, 1000, Some(&mut value)),
    )?;
    let memory = card.mmap(value, 2 * PAGE)?;
    let mut times = [0xff; 8000];
    memory.read(0, &mut times)?;
    holds(
        "the timestamps are zero",
        times.iter().all(|&byte| byte == 0),
        "a timestamp is not zero",
    )?;
    memory.write(7992, &[7; 8])?;
    drop(memory);
    // Only the close of the device frees it.
    bench.close()
}

fn timestamps_none(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut value = 0;
    let code = card.hl.allocate_timestamp_elements(card.fd, 0, Some(&mut value));
    refused("0 timestamps", code, Errno::ENOMEM)
}

fn timestamps_many(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut value = 0;
    for count in [gaudi_uapi::limits::TS_MAX_ELEMENTS_NUM + 1, u32::MAX] {
        let code = card
            .hl
            .allocate_timestamp_elements(card.fd, count, Some(&mut value));
        refused(&format!("{count} timestamps"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn timestamps_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    fails(
        "timestamps with a NULL handle pointer",
        card.hl.allocate_timestamp_elements(card.fd, 1, None),
    )
}

/// Calls every function of this file on a descriptor.
fn all(card: Card, errno: Errno) -> Verdict {
    let (hl, fd) = (card.hl, card.fd);
    let memory = RawMapping::anonymous(PAGE, true)?;
    let start = address_in(&memory, 0);
    none("alloc", hl.device_memory_alloc(fd, 1, 0, false, false), errno)?;
    none("map", hl.device_memory_map(fd, 1, 0), errno)?;
    none("host map", hl.host_memory_map(fd, start, 0, 4096), errno)?;
    none(
        "host map with flags",
        hl.host_memory_map_flags(fd, start, 0, 4096, 0),
        errno,
    )?;
    refused("free", hl.device_memory_free(fd, 1), errno)?;
    refused("unmap", hl.memory_unmap(fd, 1), errno)?;
    let (mut size, mut value) = (0, 0);
    refused(
        "block",
        hl.get_hw_block(fd, 0, Some(&mut size), Some(&mut value)),
        errno,
    )?;
    refused(
        "timestamps",
        hl.allocate_timestamp_elements(fd, 1, Some(&mut value)),
        errno,
    )?;
    refused("export", hl.device_memory_export_dmabuf_fd(fd, 0, 4096, 0), errno)?;
    let flags = super::export::FLAGS;
    refused(
        "mapped export",
        hl.device_mapped_memory_export_dmabuf_fd(fd, 0, 4096, 0, flags),
        errno,
    )
}

fn on_foreign(bench: &mut Bench) -> Verdict {
    use std::os::fd::AsRawFd as _;
    let file = super::open::foreign()?;
    all(
        Card {
            hl: bench.hl,
            fd: file.as_raw_fd(),
        },
        Errno::ENOTTY,
    )
}

fn on_closed(bench: &mut Bench) -> Verdict {
    for fd in [-1, i32::MIN, i32::MAX] {
        all(Card { hl: bench.hl, fd }, Errno::EBADF)?;
    }
    Ok(())
}
