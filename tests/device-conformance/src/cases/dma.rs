//! DMA to memory of this process.

use gaudi_seam::{DeviceIo, ErrorKind, Iova};
use gaudi_spec::gaudi2::{DRAM_PHYS_BASE, SRAM_BASE};

use crate::card::{Card, HOST, bytes, memory, pattern};

const PAGE: usize = 4096;

pub(crate) fn dma_reads_and_writes_mapped_memory(device: &dyn DeviceIo) {
    const LEN: usize = 4 * PAGE;
    let card = Card::new(device);
    let (up, down) = (memory(LEN), memory(LEN));
    card.map(HOST, &up);
    card.map(HOST + 0x10_0000, &down);
    for (seed, place) in [(3, SRAM_BASE.get()), (4, DRAM_PHYS_BASE.get() + 0x20_0000)] {
        let sent = pattern(seed, LEN);
        up.write(0, &sent).expect("in the memory");
        card.copy(place, HOST, LEN as u32);
        card.copy(HOST + 0x10_0000, place, LEN as u32);
        assert!(
            bytes(&down, 0, LEN) == sent,
            "the copy through {place:#x} returns the bytes"
        );
    }
    // Unaligned lengths and addresses.
    let odd = pattern(5, 1001);
    up.write(77, &odd).expect("in the memory");
    card.copy(SRAM_BASE.get() + 3, HOST + 77, 1001);
    card.copy(HOST + 0x10_0000 + 5, SRAM_BASE.get() + 3, 1001);
    assert_eq!(bytes(&down, 5, 1001), odd);
    assert_eq!(
        device.dma_unmap(Iova(HOST), 0x20_0000).expect("asked"),
        2 * LEN as u64
    );
}

pub(crate) fn transfer_crosses_mappings(device: &dyn DeviceIo) {
    const PARTS: usize = 3;
    const LEN: usize = 2 * PAGE;
    let card = Card::new(device);
    let parts = [0; PARTS].map(|_| memory(LEN));
    let sent = pattern(6, PARTS * LEN);
    for (part, (memory, piece)) in (0..).zip(parts.iter().zip(sent.chunks(LEN))) {
        memory.write(0, piece).expect("in the memory");
        card.map(HOST + part * LEN as u64, memory);
    }
    let whole = memory(PARTS * LEN);
    card.map(HOST + 0x10_0000, &whole);
    card.copy(SRAM_BASE.get(), HOST + 100, (PARTS * LEN - 200) as u32);
    card.copy(HOST + 0x10_0000, SRAM_BASE.get(), (PARTS * LEN - 200) as u32);
    assert!(bytes(&whole, 0, PARTS * LEN - 200) == sent[100..PARTS * LEN - 100]);
    assert_eq!(
        device.dma_unmap(Iova(0), u64::MAX).expect("asked"),
        (2 * PARTS * LEN) as u64 + 0x4000,
        "all mappings, with that of the status memory"
    );
}

pub(crate) fn dma_map_refuses_mapped_range(device: &dyn DeviceIo) {
    let card = Card::new(device);
    card.map(HOST, &memory(2 * PAGE));
    for (at, len) in [
        (HOST, 2 * PAGE),
        (HOST, PAGE),
        (HOST + PAGE as u64, PAGE),
        (HOST - PAGE as u64, 2 * PAGE),
        (HOST - PAGE as u64, 4 * PAGE),
    ] {
        let again = device
            .dma_map(Iova(at), memory(len))
            .expect_err("the range is mapped");
        assert_eq!(again.kind(), ErrorKind::Busy, "{at:#x}+{len:#x}: {again}");
    }
    for (at, len) in [
        (HOST + 0x10_0000, 0),
        (u64::MAX - 4095, PAGE),
        (u64::MAX - 4095, 2 * PAGE),
    ] {
        let wrong = device
            .dma_map(Iova(at), memory(len))
            .expect_err("an invalid range");
        assert_eq!(wrong.kind(), ErrorKind::InvalidInput, "{at:#x}+{len:#x}: {wrong}");
    }
    // The ranges beside it are free.
    card.map(HOST - PAGE as u64, &memory(PAGE));
    card.map(HOST + 2 * PAGE as u64, &memory(PAGE));
    assert_eq!(
        device
            .dma_unmap(Iova(HOST - PAGE as u64), 4 * PAGE as u64)
            .expect("asked"),
        4 * PAGE as u64
    );
}

pub(crate) fn dma_to_unmapped_memory_is_refused(device: &dyn DeviceIo) {
    let card = Card::new(device);
    let (unmapped, kept) = (memory(PAGE), memory(PAGE));
    unmapped.write(0, &pattern(7, PAGE)).expect("in the memory");
    kept.write(0, &pattern(8, PAGE)).expect("in the memory");
    card.map(HOST, &unmapped);
    card.map(HOST + PAGE as u64, &kept);
    // The first access fills the address caches on the way.
    card.copy(SRAM_BASE.get(), HOST, PAGE as u32);
    assert_eq!(
        device.dma_unmap(Iova(HOST), PAGE as u64).expect("asked"),
        PAGE as u64
    );
    card.start_copy(SRAM_BASE.get(), HOST, 64);
    assert!(
        card.is_refused(),
        "a read of an unmapped address does not complete"
    );
    card.start_copy(HOST, SRAM_BASE.get() + 0x1_0000, 64);
    assert!(card.is_refused(), "nor does a write");
    assert!(
        bytes(&unmapped, 0, PAGE) == pattern(7, PAGE),
        "the unmapped memory is unchanged"
    );
    card.copy(SRAM_BASE.get(), HOST + PAGE as u64, PAGE as u32);
    card.copy(HOST + PAGE as u64, SRAM_BASE.get(), PAGE as u32);
    assert!(
        bytes(&kept, 0, PAGE) == pattern(8, PAGE),
        "the other mapping still works"
    );
    // The case leaves no mapping behind.
    device.dma_unmap(Iova(HOST), 0x10_0000).expect("asked");
    let memory = std::sync::Arc::try_unwrap(kept);
    assert!(memory.is_ok(), "the device holds no unmapped memory");
}

pub(crate) fn dma_unmap_removes_whole_mappings_only(device: &dyn DeviceIo) {
    let card = Card::new(device);
    let mapped = memory(4 * PAGE);
    card.map(HOST, &mapped);
    for (at, len) in [
        (HOST, PAGE),
        (HOST + PAGE as u64, 8 * PAGE),
        (HOST - PAGE as u64, 4 * PAGE),
        (HOST + 0x10_0000, PAGE),
        (HOST, 0),
    ] {
        let taken = device.dma_unmap(Iova(at), len as u64).expect("asked");
        assert_eq!(taken, 0, "{at:#x}+{len:#x} contains no whole mapping");
    }
    mapped.write(0, &pattern(9, 4 * PAGE)).expect("in the memory");
    card.copy(SRAM_BASE.get(), HOST, 4 * PAGE as u32);
    let taken = device.dma_unmap(Iova(HOST - 0x1000), 0x10_0000).expect("asked");
    assert_eq!(taken, 4 * PAGE as u64, "within a larger range");
    assert_eq!(
        device.dma_unmap(Iova(HOST), 4 * PAGE as u64).expect("asked"),
        0,
        "it is no longer mapped"
    );
}

pub(crate) fn remapped_range_uses_new_memory(device: &dyn DeviceIo) {
    let card = Card::new(device);
    let seen = memory(PAGE);
    card.map(HOST + 0x10_0000, &seen);
    for turn in 0..8 {
        let other = memory(PAGE);
        other.write(0, &pattern(turn, PAGE)).expect("in the memory");
        card.map(HOST, &other);
        card.copy(SRAM_BASE.get(), HOST, PAGE as u32);
        card.copy(HOST + 0x10_0000, SRAM_BASE.get(), PAGE as u32);
        assert!(
            bytes(&seen, 0, PAGE) == pattern(turn, PAGE),
            "turn {turn}: the engine reads the new memory"
        );
        assert_eq!(
            device.dma_unmap(Iova(HOST), PAGE as u64).expect("asked"),
            PAGE as u64
        );
    }
    device.dma_unmap(Iova(HOST), 0x20_0000).expect("asked");
}
