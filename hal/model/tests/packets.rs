//! What each packet does, with real bytes from the encoders.

mod rig;

use gaudi_model::{
    Access, Cb, Event, Held, PageFault, PushError, Reset, RunOutcome, StopReason, Unsupported,
};
use gaudi_seam::Engine as _;
use gaudi_spec::gaudi2::packet::{EndianSwap, LinDma, MsgBase, MsgShort, Opcode};
use gaudi_spec::gaudi2::queue::{PDMA_0_0, PDMA_0_1, PDMA_1_0};
use gaudi_spec::gaudi2::sync::{SOB_OBJ, SobUpdate, objs_address};
use gaudi_spec::gaudi2::{CFG_BASE, DRAM_PAGE, SRAM_BASE};
use gaudi_spec::{DevicePa, DeviceVa, QueueId};

use rig::{BUDGET, CBS, DRAM, DRAM_PA, HOST, HOST_BYTES, Program, Rig, va};

const SRAM: DeviceVa = DeviceVa(SRAM_BASE.0);

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

#[test]
fn nops_and_empty_buffers_complete_in_order() {
    let mut rig = Rig::new();
    let nops = Program::new().nop().nop().nop().bytes();
    rig.push(PDMA_0_0, 1, &nops);
    rig.push(PDMA_0_0, 2, &[]);
    rig.push(PDMA_0_0, 3, &nops);
    assert_eq!(rig.events(), [], "nothing executes before a run");
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    let done: Vec<_> = [1, 2, 3].map(|tag| Event::CbDone { queue: PDMA_0_0, tag }).into();
    assert_eq!(rig.events(), done);
    assert_eq!(
        (rig.chip.counters().packets, rig.chip.counters().command_buffers),
        (6, 3)
    );
}

#[test]
fn lin_dma_copies_in_every_direction() {
    let mut rig = Rig::new();
    let data = pattern(5000, 1);
    rig.host.write(3, &data).unwrap();
    let program = Program::new()
        .copy(va(DRAM, 77), va(HOST, 3), 5000)
        .copy(va(DRAM, 1 << 20), va(DRAM, 77), 5000)
        .copy(va(SRAM, 5), va(DRAM, 1 << 20), 5000)
        .copy(va(HOST, 10_001), va(SRAM, 5), 5000)
        .copy(va(HOST, 20_002), va(HOST, 10_001), 5000)
        .copy(va(HOST, 0), va(HOST, 50_000), 0);
    rig.run_ok(PDMA_0_0, program);
    assert_eq!(rig.dram_bytes(77, 5000), data, "host to device memory");
    assert_eq!(rig.host_bytes(10_001, 5000), data, "through SRAM and back");
    assert_eq!(rig.host_bytes(20_002, 5000), data, "within host memory");
    let counted = *rig.chip.counters();
    assert_eq!(
        (
            counted.host_to_device,
            counted.device_to_device,
            counted.device_to_host,
            counted.host_to_host
        ),
        (5000, 10_000, 5000, 5000)
    );
    assert_eq!(counted.lin_dma, 6, "a transfer of no bytes is a packet too");
}

#[test]
fn memset_repeats_its_pattern() {
    let mut rig = Rig::new();
    rig.run_ok(
        PDMA_1_0,
        Program::new().dma(LinDma::memset(va(HOST, 1), 0x4433_2211, 10_003)),
    );
    let want: Vec<u8> = (0..10_003).map(|i| [0x11, 0x22, 0x33, 0x44][i % 4]).collect();
    assert_eq!(rig.host_bytes(1, 10_003), want);
    assert_eq!(
        (rig.host_bytes(0, 1), rig.host_bytes(10_004, 1)),
        (vec![0], vec![0]),
        "not a byte beside it"
    );
    assert_eq!(rig.chip.counters().memset, 10_003);
}

#[test]
fn write_completion_uses_engine_registers() {
    let mut rig = Rig::new();
    let sob = objs_address(0, SOB_OBJ, 500).unwrap();
    for (register, value) in [
        (0x8bc, (sob.0 >> 32) as u32),
        (0x8c0, sob.0 as u32),
        (0x8c4, 0x8000_0003),
    ] {
        rig.chip
            .write32(CFG_BASE.checked_add(0x4c8_b000 + register).unwrap(), value)
            .unwrap();
    }
    let dma = LinDma::memset(DRAM, 0, 64).with_write_completion(true);
    rig.run_ok(PDMA_0_1, Program::new().dma(dma).dma(dma));
    assert_eq!(
        rig.value(0, 500),
        Some(6),
        "twice 3; stream 1 shares stream 0's engine"
    );
}

#[test]
fn messages_reach_memory_registers_and_the_doorbell() {
    let mut rig = Rig::new();
    let program = Program::new()
        .long(va(HOST, 8), 0x0102_0304)
        .long(va(HOST, 101), 0x0a0b_0c0d)
        .long(va(DRAM, 4), 7)
        .long(va(SRAM, 4), 9)
        .long(objs_address(2, SOB_OBJ, 8191).unwrap(), 5)
        .short(Some(MsgShort::new(MsgBase::Sobs, 4 * 600, 77)))
        .long(gaudi_spec::gaudi2::DOORBELL_VA, 48)
        .long(gaudi_spec::gaudi2::DOORBELL_VA, 48);
    rig.push(PDMA_0_0, 1, &program.bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    assert_eq!(
        rig.events(),
        [
            Event::Interrupt { vector: 48 },
            Event::CbDone {
                queue: PDMA_0_0,
                tag: 1
            }
        ],
        "an interrupt raised twice before it is taken is one"
    );
    assert_eq!(rig.host_bytes(8, 4), [4, 3, 2, 1]);
    assert_eq!(
        rig.host_bytes(100, 6),
        [0, 0xd, 0xc, 0xb, 0xa, 0],
        "an unaligned word"
    );
    assert_eq!(rig.dram_bytes(4, 4), [7, 0, 0, 0]);
    assert_eq!((rig.value(2, 8191), rig.value(0, 600)), (Some(5), Some(77)));
    rig.push(
        PDMA_0_0,
        2,
        &Program::new().long(gaudi_spec::gaudi2::DOORBELL_VA, 48).bytes(),
    );
    rig.chip.run(BUDGET);
    assert_eq!(
        rig.events()[0],
        Event::Interrupt { vector: 48 },
        "taken, it can be raised again"
    );
    assert_eq!(rig.chip.counters().interrupts, 3);
}

#[test]
fn unmapped_address_halts_the_stream() {
    let hole = va(HOST, HOST_BYTES);
    let cases = [
        (
            Program::new().nop().copy(DRAM, va(HOST, HOST_BYTES - 100), 200),
            hole,
            Access::Read,
            "source",
        ),
        (
            Program::new().nop().copy(va(HOST, HOST_BYTES - 100), DRAM, 200),
            hole,
            Access::Write,
            "destination",
        ),
        (
            Program::new().nop().long(DeviceVa(0), 1),
            DeviceVa(0),
            Access::Write,
            "message",
        ),
        (
            Program::new().nop().dma(LinDma::memset(DeviceVa(u64::MAX), 1, 2)),
            DeviceVa(u64::MAX),
            Access::Write,
            "end of the space",
        ),
        (
            Program::new()
                .nop()
                .copy(va(DRAM, DRAM_PAGE as usize - 8), DRAM, 16),
            va(DRAM, DRAM_PAGE as usize),
            Access::Write,
            "end of device memory",
        ),
    ];
    for (program, address, access, what) in cases {
        let mut rig = Rig::new();
        rig.push(PDMA_0_0, 5, &program.bytes());
        rig.push(PDMA_0_0, 6, &Program::new().nop().bytes());
        assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked, "{what}");
        let fault = PageFault {
            queue: PDMA_0_0,
            tag: 5,
            offset: 8,
            address,
            access,
        };
        assert_eq!(rig.events(), [Event::PageFault(fault)], "{what}");
        assert_eq!(rig.chip.held(PDMA_0_0), Some(Held::Halted));
        rig.run_beside(PDMA_1_0, Program::new().nop().fence(0, 0, 0));
    }
}

#[test]
fn bytes_copied_before_fault_stay() {
    let mut rig = Rig::new();
    rig.host.write(HOST_BYTES - 100, &[7; 100]).unwrap();
    rig.push(
        PDMA_0_0,
        1,
        &Program::new().copy(DRAM, va(HOST, HOST_BYTES - 100), 200).bytes(),
    );
    rig.chip.run(BUDGET);
    assert_eq!(rig.dram_bytes(0, 101), [&[7; 100][..], &[0]].concat());
}

#[test]
fn unmapped_command_buffer_faults() {
    let mut rig = Rig::new();
    let nops = Program::new().nop().nop().bytes();
    rig.host.write(HOST_BYTES - 16, &nops).unwrap();
    rig.chip
        .push_cb(
            PDMA_0_0,
            Cb {
                va: va(HOST, HOST_BYTES - 16),
                len: 64,
                tag: 1,
            },
        )
        .unwrap();
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    let (address, access) = (va(HOST, HOST_BYTES), Access::Fetch);
    let fault = PageFault {
        queue: PDMA_0_0,
        tag: 1,
        offset: 16,
        address,
        access,
    };
    assert_eq!(
        rig.events(),
        [Event::PageFault(fault)],
        "the two NOPs before it were executed"
    );
    assert_eq!(rig.chip.counters().packets, 2);
}

#[test]
fn invalid_packet_stops_its_stream() {
    let word = |opcode: u32, first: u32| [first.to_le_bytes(), (opcode << 24).to_le_bytes()].concat();
    let conversion = {
        let mut bytes = LinDma::copy(DRAM, HOST, 8).to_bytes().to_vec();
        bytes[4] |= 1 << 6;
        bytes
    };
    let cases = [
        (word(0x1f, 1), "opcode without a name"),
        (word(0xb, 1), "STOP"),
        (word(2, 9), "WREG_BULK of 80 bytes"),
        (word(2, 1), "WREG_BULK that ends too late"),
        (word(9, 1), "half a LIN_DMA"),
        (vec![1, 2, 3], "three bytes"),
        (conversion, "bf16"),
        (
            Program::new().long(DeviceVa(CFG_BASE.0), 1).bytes(),
            "register that is not there",
        ),
        (
            Program::new().copy(DeviceVa(CFG_BASE.0), HOST, 4).bytes(),
            "DMA to registers",
        ),
        (
            Program::new().long(gaudi_spec::gaudi2::DOORBELL_VA, 128).bytes(),
            "vector that is not there",
        ),
    ];
    for (bytes, what) in cases {
        let mut rig = Rig::new();
        let mut buffer = Program::new().nop().bytes();
        buffer.extend_from_slice(&bytes);
        rig.push(PDMA_0_0, 5, &buffer);
        assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked, "{what}");
        let events = rig.events();
        let [Event::Stop(stop)] = events[..] else {
            panic!("{what}: one stop, not {events:?}")
        };
        assert_eq!((stop.queue, stop.tag, stop.offset), (PDMA_0_0, 5, 8), "{what}");
        assert!(
            bytes.starts_with(stop.bytes()) && !stop.bytes().is_empty(),
            "{what}: its bytes, {stop}"
        );
        rig.run_beside(PDMA_1_0, Program::new().nop());
    }
    let mut rig = Rig::new();
    rig.push(PDMA_0_0, 5, &word(6, 0));
    rig.chip.run(BUDGET);
    let Some(Event::Stop(stop)) = rig.chip.next_event() else {
        panic!("REPEAT stops")
    };
    assert_eq!(
        stop.reason,
        StopReason::Unsupported(Unsupported::Packet(Opcode::REPEAT))
    );
    assert!(
        stop.to_string().contains("REPEAT"),
        "the text names the packet: {stop}"
    );
}

#[test]
fn dma_needs_a_queue_with_an_engine() {
    let mut rig = Rig::new();
    let tpc = QueueId(20);
    rig.push(tpc, 1, &Program::new().nop().copy(DRAM, HOST, 8).bytes());
    rig.chip.run(BUDGET);
    let Some(Event::Stop(stop)) = rig.chip.next_event() else {
        panic!("a stop")
    };
    assert_eq!(
        (stop.queue, stop.reason),
        (tpc, StopReason::Unsupported(Unsupported::NoDmaEngine))
    );
}

#[test]
fn full_queue_rejects_further_entries() {
    let mut rig = Rig::new();
    let cb = Cb {
        va: HOST,
        len: 0,
        tag: 0,
    };
    for queue in [2, 3, 5, 156, 260] {
        assert_eq!(
            rig.chip.push_cb(QueueId(queue), cb),
            Err(PushError::Disabled),
            "queue {queue}"
        );
    }
    assert_eq!(rig.chip.push_cb(QueueId(261), cb), Err(PushError::NoSuchQueue));
    for _ in 0..4096 {
        rig.chip.push_cb(PDMA_0_0, cb).unwrap();
    }
    assert_eq!(rig.chip.push_cb(PDMA_0_0, cb), Err(PushError::Full));
    rig.chip.run(BUDGET);
    assert_eq!(
        rig.chip.push_cb(PDMA_0_0, cb),
        Err(PushError::Full),
        "done but not taken still counts"
    );
    rig.chip.next_event().unwrap();
    assert_eq!(rig.chip.push_cb(PDMA_0_0, cb), Ok(()));
}

#[test]
fn buffer_changes_before_fetch_take_effect() {
    let mut rig = Rig::new();
    let far = 64;
    let mut program = Program::new().fence(0, 1, 1);
    for _ in 0..far {
        program = program.nop();
    }
    rig.push(PDMA_0_0, 1, &program.long(HOST, 1).bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    assert_eq!(rig.chip.held(PDMA_0_0), Some(Held::Fence { id: 0, target: 1 }));
    let changed = Program::new().long(HOST, 2).bytes();
    rig.host.write(CBS + 8 + far * 8, &changed).unwrap();
    rig.chip
        .write32(DevicePa(rig::fence_address(PDMA_0_0, 0).0), 1)
        .unwrap();
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    assert_eq!(
        rig.host_bytes(0, 4),
        [2, 0, 0, 0],
        "the chip read the bytes that were there when it came to them"
    );
}

#[test]
fn soft_reset_keeps_memory() {
    let mut rig = Rig::new();
    rig.push(
        PDMA_0_0,
        1,
        &Program::new()
            .long(DRAM, 3)
            .sob(500, SobUpdate::set(9))
            .fence(3, 1, 1)
            .bytes(),
    );
    rig.push(PDMA_1_0, 2, &[0; 8]);
    rig.chip.run(BUDGET);
    rig.chip.reset(Reset::Soft).unwrap();
    assert_eq!(rig.events(), [], "unread events are discarded");
    assert_eq!(rig.value(0, 500), Some(0));
    for queue in [PDMA_0_0, PDMA_1_0] {
        assert_eq!(
            (rig.chip.held(queue), rig.chip.queue_is_idle(queue)),
            (Some(Held::No), true),
            "queue {queue} is free again"
        );
    }
    assert_eq!(rig.dram_bytes(0, 1), [3], "memory stays");
    rig.run_ok(PDMA_0_0, Program::new().copy(HOST, DRAM, 4));
    rig.chip.reset(Reset::Hard).unwrap();
    assert_eq!(rig.dram_bytes(0, 1), [0], "a hard reset takes memory");
    rig.chip.map_device(HOST, DRAM_PA, 4096).expect("and mappings");
}

#[test]
fn discarded_memory_reads_as_zero() {
    let mut rig = Rig::new();
    rig.run_ok(PDMA_0_0, Program::new().dma(LinDma::memset(DRAM, 0x55, 8 << 20)));
    let before = rig.chip.dram().memfd().unwrap().resident().unwrap();
    assert!(before >= 8 << 20, "8 MiB written take 8 MiB, not {before}");
    rig.chip.dram().discard(DRAM_PA, 8 << 20).unwrap();
    assert_eq!(rig.dram_bytes(4096, 4), [0; 4]);
    assert!(
        rig.chip.dram().memfd().unwrap().resident().unwrap() < 1 << 20,
        "and are given back"
    );
    assert!(
        rig.chip.dram().discard(DRAM_PA, DRAM_PAGE + 1).is_err(),
        "a range past the end is refused"
    );
}

#[test]
fn long_transfer_runs_in_turns() {
    // Longer than three turns of 4 MiB, and of no even length.
    const LEN: usize = (13 << 20) + 5;
    let mut rig = Rig::new();
    let pa = |offset: usize| DevicePa(DRAM_PA.0 + offset as u64);
    let read = |rig: &Rig, at: usize| {
        let mut bytes = vec![0; LEN];
        rig.chip.dram().read(pa(at), &mut bytes).unwrap();
        bytes
    };
    let data: Vec<u8> = (0..LEN).map(|at| (at * 7 + at / 4096) as u8).collect();
    // Forwards and backwards over itself.
    for (from, to) in [(10_000, 3), (3, 10_000), (0, 32 << 20)] {
        rig.chip.dram().write(pa(from), &data).unwrap();
        let before = rig.chip.counters().device_to_device;
        rig.run_ok(PDMA_0_0, Program::new().copy(va(DRAM, to), va(DRAM, from), LEN));
        assert!(
            read(&rig, to) == data,
            "{from} to {to}: as if it had been read whole first"
        );
        let moved = rig.chip.counters().device_to_device - before;
        assert_eq!(moved, LEN as u64, "each byte once");
    }
    let swapped = LinDma::copy(va(DRAM, 64 << 20), va(DRAM, 32 << 20), LEN as u32);
    let swapped = swapped.with_swap(EndianSwap::Eight);
    rig.run_ok(PDMA_0_0, Program::new().dma(swapped));
    let mut turned = data.clone();
    turned.chunks_exact_mut(8).for_each(<[u8]>::reverse);
    assert!(read(&rig, 64 << 20) == turned, "groups stay whole");
    rig.run_ok(
        PDMA_0_0,
        Program::new().dma(LinDma::memset(va(DRAM, 1), 0x0403_0201, LEN as u32)),
    );
    let filled = read(&rig, 1);
    assert!(
        filled.iter().zip(0..).all(|(&byte, at)| byte == 1 + at as u8 % 4),
        "the pattern goes on"
    );
    assert_eq!(rig.chip.counters().lin_dma, 5, "five packets");
}

#[test]
fn skipped_bytes_count_on_the_budget() {
    let mut rig = Rig::new();
    let fill = LinDma::memset(DRAM, 9, 64 << 20);
    let program = Program::new().dma(fill).dma(LinDma::memset(DRAM, 8, 16));
    rig.push(PDMA_0_0, 1, &program.bytes());
    assert_eq!(rig.chip.run(2048), RunOutcome::Budget, "there is more");
    let moved = rig.chip.counters().memset;
    assert!((4 << 20..=12 << 20).contains(&moved), "{moved} bytes for 2048");
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    assert_eq!(rig.chip.counters().memset, (64 << 20) + 16);
}

/// Maps pages of device memory that do not lie in a row, at addresses in a row.
fn scatter(rig: &mut Rig, at: DeviceVa, pages: u64) {
    for page in 0..pages {
        let pa = DevicePa(DRAM_PA.get() + (pages - page) * 2 * 4096);
        rig.chip
            .map_device(DeviceVa(at.get() + page * 4096), pa, 4096)
            .expect("a free range");
    }
}

#[test]
fn copies_that_overlap_keep_every_source_byte() {
    const LEN: usize = 2 * 4096;
    let at = va(DRAM, usize::try_from(DRAM_PAGE).unwrap());
    // From one shared byte to all but one, up and down.
    for ahead in [1, 4095, 4096, LEN - 1] {
        for (from, to) in [(at, va(at, ahead)), (va(at, ahead), at)] {
            let mut rig = Rig::new();
            scatter(&mut rig, at, 4);
            let data = pattern(LEN, 9);
            rig.host.write(0, &data).unwrap();
            let program =
                Program::new()
                    .copy(from, HOST, LEN)
                    .copy(to, from, LEN)
                    .copy(va(HOST, LEN), to, LEN);
            rig.run_ok(PDMA_0_0, program);
            assert_eq!(rig.host_bytes(LEN, LEN), data, "{ahead} ahead, to {to}");
        }
    }
}

#[test]
fn transfers_fault_at_end_of_space() {
    let mut rig = Rig::new();
    let (first, last) = (DeviceVa(0), DeviceVa(u64::MAX - 4095));
    for (at, page) in [(first, 0), (last, 1)] {
        let pa = DevicePa(DRAM_PA.get() + page * 4096);
        rig.chip.map_device(at, pa, 4096).expect("a free range");
    }
    let bytes = Program::new()
        .dma(LinDma::memset(DeviceVa(u64::MAX - 15), 0x5a5a_5a5a, 64))
        .bytes();
    rig.push(PDMA_0_0, 1, &bytes);
    rig.chip.run(BUDGET);
    let fault = PageFault {
        queue: PDMA_0_0,
        tag: 1,
        offset: 0,
        address: DeviceVa(u64::MAX),
        access: Access::Write,
    };
    assert_eq!(rig.events(), [Event::PageFault(fault)]);
    assert_eq!(rig.dram_bytes(0, 64), [0; 64], "nothing wraps to the first page");
    assert_eq!(rig.dram_bytes(2 * 4096 - 16, 16), [0x5a; 16]);
}
