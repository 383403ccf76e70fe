//! The chip across PCI, driven as a driver drives it: by registers, rings in memory, page tables
//! and packets to the firmware.

mod card;

use std::sync::Arc;

use gaudi_model::ModelError;
use gaudi_model::pci::{Note, PciChip, PciConfig};
use gaudi_seam::fault::ChipRules;
use gaudi_spec::gaudi2::firmware::{self, boot, command, info, packet};
use gaudi_spec::gaudi2::mmu::{self, Stacks};
use gaudi_spec::gaudi2::packet::{LinDma, MsgLong};
use gaudi_spec::gaudi2::sync::{MonArm, MonConfig};
use gaudi_spec::gaudi2::{
    CFG_BAR, CFG_BASE, DCORE_STRIDE, DRAM_BAR, DRAM_PHYS_BASE, DRAM_VA, HOST_VA, MSIX_BAR, PCIE_MSIX, qman,
    queue, router, sync,
};
use gaudi_spec::{BarOffset, DeviceVa};
use gaudi_sys::RawMapping;

use card::{DOORBELL, FILL, HOST, HOST_LEN, REGISTERS, Rig, SRAM};

#[test]
fn firmware_loads_after_its_message() {
    let mut rig = Rig::new();
    assert_eq!(rig.read(firmware::BOOT_STATUS), boot::WAITING_FOR_BOOT_FIT);
    assert_eq!(rig.read(firmware::HW_STATE), 0, "it is not in use yet");
    let place = rig.command(command::PREP_DESC, 0x500) & 0x3ff_ffff;
    let mut magic = [0; 4];
    let at = BarOffset(SRAM + u64::from(place) * 4);
    rig.chip.bar_read(CFG_BAR.0, at, &mut magic);
    assert_eq!(
        u32::from_le_bytes(magic),
        firmware::DESC_MAGIC,
        "the descriptor is at the answered offset"
    );
    // A message of the driver's, where an image belongs: why it resets.
    let image = BarOffset(0x80_0000);
    rig.chip
        .bar_write(DRAM_BAR, image, &(firmware::MSG_MAGIC | 3).to_le_bytes());
    rig.command(command::DATA_RDY, 0);
    rig.command(command::EXEC, 0);
    assert_eq!(
        rig.read(firmware::BOOT_STATUS),
        boot::WAITING_FOR_BOOT_FIT,
        "no image was started"
    );
    rig.boot();
    rig.write(firmware::GIC_HOST_HALT, 0x229);
    assert_eq!(
        rig.read(firmware::BOOT_STATUS),
        boot::WAITING_FOR_BOOT_FIT,
        "a reset starts over"
    );
    rig.boot();
}

#[test]
fn card_with_five_hbms_ends_there() {
    for (dram, binned) in [(80 << 30, 1 << 5), (96 << 30, 0)] {
        let mut rig = Rig::of(PciConfig {
            dram,
            ..PciConfig::default()
        });
        rig.boot();
        rig.queues();
        rig.ask(0, packet::INFO_GET, HOST + 0x6000, info::SIZE as u32);
        let size = rig.bytes(HOST + 0x6000 + info::DRAM_SIZE as u64, 8);
        assert_eq!(size, u64::to_le_bytes(dram));
        let mask = rig.bytes(HOST + 0x6000 + info::DRAM_BINNING_MASK as u64, 1);
        assert_eq!(mask, [binned], "the driver counts stacks by it");
        let has = rig.chip.dram().len();
        assert!(has >= dram && has - dram < 768 << 20, "{has} bytes of {dram}");
    }
}

#[test]
fn the_firmware_answers_packets_and_sends_events() {
    let mut rig = Rig::new();
    rig.boot();
    rig.queues();
    assert_eq!(
        rig.ask(0, packet::TEST, 0xfe8c_e7a5, 0),
        (0xfe8c_e7a5, 0),
        "a test comes back"
    );
    let (len, rc) = rig.ask(1, packet::INFO_GET, HOST + 0x6000, info::SIZE as u32);
    assert_eq!((len, rc), (info::SIZE as u64, 0));
    assert_eq!(rig.bytes(HOST + 0x6000 + info::CARD_NAME as u64, 5), b"HL225");
    assert_eq!(
        rig.ask(2, 200, 7, 0).1,
        packet::RC_INVALID,
        "what it does not know it refuses"
    );
    assert_eq!(rig.ask(3, packet::ENABLE_PCI_ACCESS, DOORBELL, 0).1, 0);
    assert!(
        !rig.chip.send_event(1255, &[0; 7]),
        "the driver does not listen yet"
    );
    rig.write(firmware::GIC_HOST_INTS, 0x22a);
    assert!(rig.chip.send_event(1255, &[5; 7]));
    assert_eq!(rig.chip.next_interrupt(), Some(0), "the event queue's vector");
    assert_eq!(rig.host_word(HOST + 0x4004), firmware::event_word(1255, 1));
    assert_eq!(rig.host_word(HOST + 0x4008), 5, "its data");
    rig.chip.hang_firmware();
    rig.write(firmware::PQ_PI, 5);
    rig.write(firmware::GIC_HOST_PI_UPD, 1);
    assert_eq!(
        rig.chip.counters().packets,
        4,
        "a firmware that hangs answers nothing"
    );
}

#[test]
fn a_ring_is_fetched_executed_and_completed() {
    let mut rig = Rig::new();
    rig.boot();
    rig.queues();
    rig.ask(0, packet::ENABLE_PCI_ACCESS, DOORBELL, 0);
    // Monitor 5 reports the end of sync object 5's job with a word in a completion queue and an
    // interrupt.
    let objs = sync::OBJS;
    let glbl = sync::GLBL;
    rig.write64(glbl + sync::CQ_BASE_L, glbl + sync::CQ_BASE_H, HOST + 0x7000);
    rig.write(glbl + sync::CQ_SIZE_LOG2, 12);
    rig.write64(glbl + sync::CQ_LBW_ADDR_L, glbl + sync::CQ_LBW_ADDR_H, DOORBELL);
    rig.write(glbl + sync::CQ_LBW_DATA, 21);
    rig.write(glbl + 0x30, 0x1_0000);
    rig.write(
        objs + sync::MON_CONFIG + 5 * 4,
        MonConfig::new().with_cq_en(true).with_lbw_en(true).into_bits(),
    );
    rig.write(objs + sync::MON_PAY_DATA + 5 * 4, 0xc000_0005);
    rig.write(
        objs + sync::MON_ARM + 5 * 4,
        MonArm::for_sob(5, sync::Compare::Equal, 2).into_bits(),
    );
    let ring = HOST + 0x9000;
    rig.ring(0, ring);
    // Nine jobs on a ring of eight: it goes round.
    let cb = HOST + 0xa000;
    let target = HOST + 0xb000;
    let bytes = MsgLong::new(DeviceVa(target), 0x1234).to_bytes();
    rig.put(cb, &bytes);
    let doorbell = queue::row(queue::PDMA_0_0).expect("a queue").qman + qman::PQ_PI;
    for job in 0..9u32 {
        rig.entry(ring, u64::from(job % 8), cb, 16, if job < 2 { 5 } else { 6 });
        rig.write(doorbell, job + 1);
    }
    assert_eq!(rig.host_word(target), 0x1234, "the message was written");
    assert_eq!(
        (rig.sob(5), rig.sob(6)),
        (2, 7),
        "each end counts on its sync object"
    );
    assert_eq!(
        rig.read(doorbell - qman::PQ_PI + qman::PQ_CI),
        9,
        "and in the ring"
    );
    assert_eq!(
        rig.host_word(HOST + 0x7000),
        0xc000_0005,
        "the completion queue's entry"
    );
    assert_eq!(rig.chip.next_interrupt(), Some(21), "and its interrupt");
    assert_eq!(rig.chip.next_interrupt(), None);
}

/// Page tables of the user's context for pages of device memory: user's addresses and pages of the
/// HBM by number.
fn map_hbm(rig: &mut Rig, pages: &[(u64, u64)]) {
    let tables = DRAM_PHYS_BASE.get() + 0x10_0000;
    for &(va, nth) in pages {
        let scrambled = Stacks::ALL.scramble(va);
        for (hop, &shift) in (0u64..).zip(&mmu::HMMU_SHIFTS) {
            let entry = 0x10_0000 + hop * mmu::TABLE + (scrambled >> shift & 0x1ff) * 8;
            let value = if hop == 3 {
                // A page of 768 MiB takes 1 GiB of scrambled addresses.
                (DRAM_PHYS_BASE.get() + (nth << 30)) | mmu::PRESENT | mmu::LAST
            } else {
                (tables + (hop + 1) * mmu::TABLE) | mmu::PRESENT
            };
            rig.chip
                .bar_write(DRAM_BAR, BarOffset(entry), &value.to_le_bytes());
        }
    }
    rig.table(mmu::HMMU_STLB, tables);
}

#[test]
fn copies_across_hbm_pages_follow_page_tables() {
    const PAGE: u64 = 768 << 20;
    let mut rig = Rig::new();
    rig.boot();
    let hbm = DRAM_VA.start.get();
    // Neither page of the HBM is beside the other.
    map_hbm(&mut rig, &[(hbm, 3), (hbm + PAGE, 1)]);
    let host = HOST_VA.start.get();
    rig.map_host(host, HOST + 0xc000);
    rig.give();
    let ring = HOST + 0x9000;
    rig.ring(0, ring);
    let edge = hbm + PAGE - 32;
    let copy = |(to, from)| LinDma::copy(DeviceVa(to), DeviceVa(from), 64).to_bytes();
    let copies = [
        (edge, host + 0x100),
        // From its end: the ranges overlap. And back.
        (edge + 8, edge),
        (host + 0x200, edge + 8),
        (edge, edge + 8),
    ];
    let bytes = copies.map(copy).concat();
    rig.put(HOST + 0xc000, &bytes);
    let sent: Vec<u8> = (1..=64).collect();
    rig.put(HOST + 0xc100, &sent);
    rig.entry(ring, 0, host, 96, 7);
    rig.write(
        queue::row(queue::PDMA_0_0).expect("a queue").qman + qman::PQ_PI,
        1,
    );
    assert_eq!(rig.sob(7), 1, "the job is done");
    assert_eq!(
        rig.bytes(HOST + 0xc200, 64),
        sent,
        "the copy from the end is whole"
    );
    for (at, wanted) in [(4 * PAGE - 32, &sent[..32]), (PAGE, &sent[32..])] {
        let mut seen = [0; 32];
        rig.chip.bar_read(DRAM_BAR, BarOffset(at), &mut seen);
        assert_eq!(seen, wanted, "{at:#x} of the memory BAR");
    }
    for outside in [4 * PAGE, PAGE - 32] {
        let mut seen = [0; 32];
        rig.chip.bar_read(DRAM_BAR, BarOffset(outside), &mut seen);
        assert_eq!(seen, [0; 32], "{outside:#x} of the memory BAR is in neither page");
    }
}

#[test]
fn engines_translate_by_their_context() {
    let mut rig = Rig::new();
    rig.boot();
    let hbm = DRAM_VA.start.get();
    map_hbm(&mut rig, &[(hbm, 1)]);
    let host = HOST_VA.start.get();
    rig.map_host(host, HOST + 0xc000);
    rig.give();
    let ring = HOST + 0x9000;
    rig.ring(0, ring);
    // 64 bytes over the edge of the first 48 MiB: two pieces of the HBM, one of the user's
    // addresses.
    let edge = hbm + (48 << 20) - 32;
    let copy = |(to, from)| LinDma::copy(DeviceVa(to), DeviceVa(from), 64).to_bytes();
    let copies = [
        (edge, host + 0x100),
        (host + 0x200, edge),
        // From its end: the ranges overlap. And back.
        (edge + 8, edge),
        (edge, edge + 8),
    ];
    let bytes = copies.map(copy).concat();
    rig.put(HOST + 0xc000, &bytes);
    let sent: Vec<u8> = (1..=64).collect();
    rig.put(HOST + 0xc100, &sent);
    rig.entry(ring, 0, host, 96, 7);
    let doorbell = queue::row(queue::PDMA_0_0).expect("a queue").qman + qman::PQ_PI;
    rig.write(doorbell, 1);
    assert_eq!(rig.sob(7), 1, "the job is done");
    assert_eq!(
        rig.bytes(HOST + 0xc200, 64),
        sent,
        "what went to the card came back"
    );
    let mut seen = [0; 64];
    rig.chip
        .bar_read(DRAM_BAR, BarOffset((768 << 20) + (48 << 20) - 32), &mut seen);
    assert_eq!(
        seen[..],
        sent,
        "it lies in a row in the memory BAR, where the page is"
    );
    // An address without an entry: the stream halts, and the card reports the cause.
    while rig.chip.next_note().is_some() {}
    rig.entry(ring, 1, host + 0x1000, 16, 7);
    rig.write(doorbell, 2);
    assert_eq!(rig.sob(7), 1, "nothing more is done");
    let faulted =
        std::iter::from_fn(|| rig.chip.next_note()).any(|note| note.to_string().contains("no mapping"));
    assert!(faulted, "a page fault is reported");
    let mmu = mmu::PMMU_STLB - mmu::MMU_BEFORE_STLB;
    assert_eq!(rig.read(mmu + mmu::SPI_SEI_CAUSE), 1, "the MMU has the cause");
    assert_eq!(
        [
            mmu::PAGE_ERROR_VALID,
            mmu::PAGE_ERROR_VA_63_32,
            mmu::PAGE_ERROR_VA_31_0
        ]
        .map(|offset| rig.read(mmu + offset)),
        [1, (host >> 32) as u32, host as u32 + 0x1000],
        "and the address"
    );
    assert_ne!(
        rig.read(doorbell - qman::PQ_PI + qman::GLBL_STS0),
        qman::IDLE,
        "the queue manager is not idle"
    );
}

#[test]
fn unknown_registers_are_stored_and_logged_once() {
    let mut rig = Rig::new();
    while rig.chip.next_note().is_some() {}
    let unknown = 0x5f0_0000;
    rig.write(unknown, 7);
    assert_eq!(rig.read(unknown), 7, "it keeps its word");
    assert_eq!(rig.chip.unknown_registers().collect::<Vec<_>>(), [(unknown, 2)]);
    assert_eq!(rig.chip.next_note(), Some(Note::UnknownRegister(unknown, true)));
    assert_eq!(rig.chip.next_note(), None, "logged once");
    rig.chip
        .bar_read(CFG_BAR.0, BarOffset(REGISTERS + 1), &mut [0; 4]);
    rig.chip.bar_write(CFG_BAR.0, BarOffset(u64::MAX), &[0; 4]);
    rig.chip.bar_write(6, BarOffset(0), &[0; 4]);
    assert_eq!(rig.chip.counters().odd, 3, "what is no register is counted");
}

#[test]
fn impossible_cards_and_mappings_are_refused() {
    for bar in [0, 3 << 30, 1 << 29, 1 << 38, u64::MAX] {
        let config = PciConfig {
            dram_bar: bar,
            ..PciConfig::default()
        };
        assert!(matches!(PciChip::new(config), Err(ModelError::Bar(_))), "{bar}");
    }
    for dram in [0, 1, 4 << 30, 80 << 20, (80 << 30) + 1, 112 << 30, u64::MAX] {
        let config = PciConfig {
            dram,
            ..PciConfig::default()
        };
        assert!(matches!(PciChip::new(config), Err(ModelError::Dram(_))), "{dram}");
    }
    let mut rig = Rig::new();
    let more = |len| Arc::new(RawMapping::anonymous(len, false).expect("memory"));
    assert!(
        rig.chip.dma_map(HOST + 0x1000, more(4096)).is_err(),
        "shown already"
    );
    assert!(
        rig.chip.dma_map(HOST - 0x1000, more(0x2000)).is_err(),
        "from below too"
    );
    assert!(
        rig.chip.dma_map(u64::MAX - 5, more(4096)).is_err(),
        "it leaves the space"
    );
    assert!(rig.chip.dma_map(0, more(0)).is_err(), "nothing");
    assert_eq!(
        rig.chip.dma_unmap(HOST, 4096),
        0,
        "a part of a range is not taken away"
    );
    assert_eq!(rig.chip.dma_unmap(0, u64::MAX), HOST_LEN as u64);
    rig.write(firmware::GIC_HOST_PI_UPD, 1);
}

#[test]
fn dma_mappings_touch_and_never_overlap() {
    let mut rig = Rig::new();
    let page = || Arc::new(RawMapping::anonymous(4096, false).expect("memory"));
    let end = HOST + HOST_LEN as u64;
    for (iova, fits) in [
        (HOST - 4096 + 1, false),
        (end - 1, false),
        (HOST, false),
        (HOST - 4096, true),
        (end, true),
    ] {
        assert_eq!(rig.chip.dma_map(iova, page()).is_ok(), fits, "{iova:#x}");
    }
    assert_eq!(rig.chip.dma_unmap(end, 4095), 0, "a part of a mapping");
    assert_eq!(rig.chip.dma_unmap(end, 4096), 4096, "exactly one");
    assert_eq!(
        rig.chip.dma_unmap(HOST - 4096, 4096 + HOST_LEN as u64),
        4096 + HOST_LEN as u64,
        "two at once"
    );
}

#[test]
fn reset_clears_the_last_guest() {
    let mut rig = Rig::new();
    let whole = usize::try_from(rig.chip.bar_size(MSIX_BAR.0)).expect("small");
    rig.chip.bar_write(MSIX_BAR.0, BarOffset(0), &vec![0x5a; whole]);
    rig.chip.bar_write(DRAM_BAR, BarOffset(0), b"secret");
    rig.write(qman::KDMA + qman::SRC_BASE_LO, 7);
    rig.boot();
    rig.queues();
    rig.ask(0, packet::ENABLE_PCI_ACCESS, DOORBELL, 0);
    rig.chip.reset();
    rig.kdma_fill(HOST + 0x2000, 4, (DOORBELL, 50));
    rig.write(qman::KDMA + qman::COMMIT, FILL);
    assert_eq!(rig.chip.next_interrupt(), None, "the doorbell is memory again");
    assert_eq!(rig.host_word(DOORBELL), 50);
    rig.chip.reset();
    let mut table = vec![1; whole];
    rig.chip.bar_read(MSIX_BAR.0, BarOffset(0), &mut table);
    assert!(
        table.iter().all(|&byte| byte == 0),
        "the table of vectors is empty"
    );
    let mut memory = [1; 6];
    rig.chip.bar_read(DRAM_BAR, BarOffset(0), &mut memory);
    assert_eq!(memory, [0; 6]);
    assert_eq!(rig.read(qman::KDMA + qman::SRC_BASE_LO), 0);
}

fn armed(rig: &mut Rig, plan: &str) -> Arc<ChipRules> {
    let rules = Arc::new(ChipRules::new(0, &plan.parse().expect(plan), |_| ()));
    rig.chip.attach_faults(&rules);
    rules
}

#[test]
fn hanging_firmware_hangs_after_reset_too() {
    let mut rig = Rig::new();
    let rules = armed(&mut rig, "chip.firmware:hang");
    for times in 1..3 {
        rig.boot();
        rig.queues();
        rig.write(firmware::PQ_PI, 1);
        rig.write(firmware::GIC_HOST_PI_UPD, 1);
        rig.chip.run(1000);
        assert_eq!(rig.chip.counters().packets, 0, "no packet is answered");
        assert_eq!(rules.counts()[0].fired, times);
        rig.chip.reset();
    }
}

/// Errors of the chip reach the driver as the firmware's events, or as its silence.
#[test]
fn chip_errors_reach_the_driver() {
    let mut rig = Rig::new();
    let plan = "chip.sob:when=1:ecc;chip.sob:when=2:ecc=fatal;chip.sob:when=3:heartbeat";
    let rules = armed(&mut rig, plan);
    rig.boot();
    rig.queues();
    rig.ask(0, packet::ENABLE_PCI_ACCESS, DOORBELL, 0);
    rig.write(firmware::GIC_HOST_INTS, 0x22a);
    let events = gaudi_spec::gaudi2::ASIC.events;
    let object = CFG_BASE.get() + u64::from(sync::OBJS + 100 * 4);
    for (nth, event) in [(1, events.corrected_error), (2, events.uncorrected_error)] {
        fire(&mut rig, 1, 7, object, 1);
        rig.chip.run(1000);
        let at = HOST + 0x4004 + (nth - 1) * firmware::EVENT as u64;
        assert_eq!(rig.host_word(at), firmware::event_word(event, nth as u16));
    }
    fire(&mut rig, 1, 7, object, 1);
    rig.chip.run(1000);
    let answered = rig.chip.counters().packets;
    rig.write(firmware::PQ_PI, 2);
    rig.write(firmware::GIC_HOST_PI_UPD, 1);
    rig.chip.run(1000);
    assert_eq!(rig.chip.counters().packets, answered, "the firmware is silent");
    assert!(rules.counts().iter().all(|count| count.fired == 1));
}

#[test]
fn refused_write_reaches_the_driver() {
    let (mut rig, va) = with_user_page();
    armed(&mut rig, "chip.dma:when=1..2:razwi");
    rig.give();
    let copy = LinDma::copy(DeviceVa(va + 0x200), DeviceVa(va + 0x100), 64).to_bytes();
    rig.put(HOST + 0xc000, &copy);
    let router = 0x414_2000;
    for stream in 0..2 {
        let ring = HOST + 0x9000 + u64::from(stream) * 0x100;
        rig.ring(stream, ring);
        rig.entry(ring, 0, va, copy.len(), 7);
        let row = queue::row(queue::PDMA_0_0).expect("a queue");
        rig.write(row.qman + qman::PQ_PI + stream * 4, 1);
        let event = rig.host_word(HOST + 0x4004 + u64::from(stream) * firmware::EVENT as u64);
        assert_eq!(event >> 16 & 0xfff, 540, "PDMA_CH0_AXI_ERR_RSP");
        assert_eq!(rig.read(router + router::WRITE_REFUSED), 1);
        assert_eq!(rig.read(router + router::WRITE_ADDRESS_31_0), va as u32 + 0x200);
        assert_eq!(rig.read(router + router::WRITE_ADDRESS_63_32), (va >> 32) as u32);
        rig.write(router + router::WRITE_REFUSED, 1);
        assert_eq!(
            rig.read(router + router::WRITE_REFUSED),
            0,
            "the driver clears it"
        );
    }
    assert_eq!(rig.sob(7), 0, "neither job completes");
}

#[test]
fn internal_engines_have_routers_of_their_own() {
    let of = |nth| router::of(&queue::row(queue::edma(nth, 0).expect("an EDMA")).expect("a row"));
    let blocks: Vec<_> = (0..8).map(|nth| of(nth).expect("a router")).collect();
    assert_eq!(
        blocks,
        [
            0x4e4_6000, 0x4e4_2000, 0x4e5_6000, 0x4e5_2000, 0x4e6_2000, 0x4e6_6000, 0x4e7_2000, 0x4e7_6000
        ]
    );
    assert!(
        blocks
            .iter()
            .all(|block| router::is_write_refused(block + router::WRITE_REFUSED))
    );
    for register in [0x4e4_a170, 0x4e8_2170, 0x414_2174] {
        assert!(!router::is_write_refused(register), "{register:#x}");
    }
}

/// Has a monitor of a die core write `data` to an address at once.
fn fire(rig: &mut Rig, dcore: u32, monitor: u32, to: u64, data: u32) {
    let objs = sync::OBJS + dcore * DCORE_STRIDE + monitor * 4;
    rig.write64(objs + sync::MON_PAY_ADDRL, objs + sync::MON_PAY_ADDRH, to);
    rig.write(objs + sync::MON_PAY_DATA, data);
    rig.write(objs + sync::MON_CONFIG, MonConfig::new().into_bits());
    let arm = MonArm::for_sob(0, sync::Compare::AtLeast, 0);
    rig.write(objs + sync::MON_ARM, arm.into_bits());
}

/// A card with a page of the user's at the start of the host's addresses.
fn with_user_page() -> (Rig, u64) {
    let mut rig = Rig::new();
    rig.boot();
    rig.queues();
    rig.ask(0, packet::ENABLE_PCI_ACCESS, DOORBELL, 0);
    rig.write(firmware::GIC_HOST_INTS, 0x22a);
    let va = HOST_VA.start.get();
    rig.map_host(va, HOST + 0xc000);
    (rig, va)
}

#[test]
fn outer_die_monitors_use_interface_asid() {
    let (mut rig, va) = with_user_page();
    // As gaudi2.c `gaudi2_mmu_dcore_prepare` writes it: the bus interface holds the user's context.
    rig.write(sync::GLBL + sync::ASID_NONE_SEC_PRIV, 1);
    for dcore in 1..sync::DCORES {
        let core = dcore * DCORE_STRIDE;
        rig.write(sync::GLBL + sync::MSTR_IF_AXUSER + core, 0x1_0001);
        rig.write(sync::GLBL + sync::MSTR_IF_AXUSER + qman::AXUSER_MMU_BP + core, 0);
        // A context without page tables, which counts on die core 0 only.
        rig.write(sync::GLBL + sync::ASID_NONE_SEC_PRIV + core, 7);
    }
    for dcore in 0..sync::DCORES {
        fire(
            &mut rig,
            dcore,
            sync::FIRST_USER_MONITOR,
            va + u64::from(dcore) * 4,
            dcore + 1,
        );
        assert_eq!(
            rig.host_word(HOST + 0xc000 + u64::from(dcore) * 4),
            dcore + 1,
            "die core {dcore}"
        );
    }
    rig.write(sync::GLBL + sync::ASID_NONE_SEC_PRIV, 7);
    fire(&mut rig, 0, sync::FIRST_USER_MONITOR, va + 0x100, 9);
    assert_eq!(
        rig.host_word(HOST + 0xc100),
        0,
        "die core 0 uses its own register"
    );
}

#[test]
fn monitor_faults_reach_the_driver() {
    let (mut rig, va) = with_user_page();
    for dcore in 0..sync::DCORES {
        let register = match dcore {
            0 => sync::GLBL + sync::ASID_NONE_SEC_PRIV,
            _ => sync::GLBL + sync::MSTR_IF_AXUSER + dcore * DCORE_STRIDE,
        };
        rig.write(register, 1);
        fire(&mut rig, dcore, sync::FIRST_USER_MONITOR, va + 0x5000, 1);
        let mmu = mmu::PMMU_STLB - mmu::MMU_BEFORE_STLB;
        assert_eq!(rig.read(mmu + mmu::SPI_SEI_CAUSE), 1, "a page fault");
        assert_eq!(
            rig.read(mmu + mmu::PAGE_ERROR_VA_31_0),
            va as u32 + 0x5000,
            "its address"
        );
        let cause = sync::GLBL + sync::SM_SEI_CAUSE + dcore * DCORE_STRIDE;
        assert_eq!(
            rig.read(cause) & sync::SEI_CAUSE,
            sync::SEI_WRITE_ERROR,
            "the sync manager's error of die core {dcore}"
        );
        rig.write(cause, 0);
        assert_eq!(rig.read(cause), 0, "the driver clears it");
        // The fault comes first: the sync manager detects it by the response to its write.
        let event = |nth: u64| rig.host_word(HOST + 0x4004 + (u64::from(dcore) * 2 + nth) * 64) >> 16 & 0xfff;
        assert_eq!(
            [event(0), event(1)],
            [
                firmware::event::PMMU_PAGE_FAULT,
                firmware::event::SM0_AXI_ERROR + dcore as u16
            ]
            .map(u32::from)
        );
    }
    // One of the driver's own passes the MMU by: no page fault.
    rig.write(sync::GLBL + sync::ASID_SEC, 0x1_0000);
    let events = rig.chip.counters().events;
    fire(&mut rig, 0, 3, HOST + 0x1000_0000, 1);
    assert_eq!(
        rig.chip.counters().events,
        events + 1,
        "the sync manager's error alone"
    );
}

#[test]
fn the_msix_block_raises_interrupts() {
    let (mut rig, _) = with_user_page();
    rig.write(PCIE_MSIX, 50);
    assert_eq!(rig.chip.next_interrupt(), Some(50), "by a register");
    rig.write(sync::GLBL + sync::ASID_NONE_SEC_PRIV, 1);
    let block = CFG_BASE.get() + u64::from(PCIE_MSIX);
    fire(&mut rig, 0, sync::FIRST_USER_MONITOR, block, 51);
    assert_eq!(rig.chip.next_interrupt(), Some(51), "by a monitor");
    rig.write(PCIE_MSIX, 128);
    assert_eq!(rig.chip.next_interrupt(), None, "there are 128 vectors");
    assert_eq!(rig.read(PCIE_MSIX), 0, "it holds no word");
}
