//! Predicates, scalars, lists of command buffers, registers by WREG packets, and the arbiter.

mod rig;

use gaudi_model::{Event, RunOutcome, StopReason, StreamState, Unsupported};
use gaudi_spec::gaudi2::packet::{
    ArbPoint, CbList, CpDma, EndianSwap, LinDma, LoadAndExe, MsgLong, MsgShort, Packet, Wait, Wreg32,
    Wreg64Long, Wreg64Short, WregBulk,
};
use gaudi_spec::gaudi2::qman::{self, ArbCfg};
use gaudi_spec::gaudi2::queue::{self, PDMA_0_0, PDMA_0_1, PDMA_1_0};
use gaudi_spec::gaudi2::sync::{SOB_OBJ, SobUpdate, objs_address};
use gaudi_spec::{DevicePa, DeviceVa, QueueId};

use rig::{BUDGET, DRAM, HOST, Program, Rig, va};

fn register(queue: QueueId, offset: u32) -> DevicePa {
    let row = queue::row(queue).expect("a queue");
    DevicePa(qman::address(&row, offset).expect("a queue manager").0)
}

fn load(packet: LoadAndExe) -> Packet<'static> {
    Packet::LoadAndExe(packet)
}

fn stop_of(rig: &mut Rig, program: Program) -> StopReason {
    rig.push(PDMA_0_0, 1, &program.bytes());
    rig.chip.run(BUDGET);
    match rig.events()[..] {
        [Event::Stop(stop)] => stop.reason,
        ref events => panic!("one stop, not {events:?}"),
    }
}

#[test]
fn predicates_load_as_bits_or_words() {
    let mut rig = Rig::new();
    let store = |at: usize, predicate: u8| {
        let packet = MsgLong::new(va(HOST, at), 1).with_predicate(predicate);
        Packet::MsgLong(packet.expect("in range"))
    };
    rig.host
        .write(4096, &(1u32 << 10 | 1 << 31).to_le_bytes())
        .unwrap();
    let mut words = [0; 128];
    (words[11 * 4], words[10 * 4]) = (1, 2);
    rig.host.write(8192, &words).unwrap();
    let program = Program::new()
        .packet(store(0, 0))
        .packet(store(1, 10))
        .packet(load(LoadAndExe::predicate_bits(va(HOST, 4096))))
        .packet(store(2, 10))
        .packet(store(3, 31))
        .packet(store(4, 11))
        .packet(load(LoadAndExe::predicates(va(HOST, 8192))))
        .packet(store(5, 10))
        .packet(store(6, 11))
        .packet(store(7, 0));
    rig.run_ok(PDMA_0_0, program);
    // Each store writes four bytes, of which the first is 1.
    assert_eq!(
        rig.host_bytes(0, 8),
        [1, 0, 1, 1, 0, 0, 1, 1],
        "predicate 0 always holds, the others as loaded; a word counts by its bit 0"
    );
    let at = register(PDMA_0_0, qman::PRED);
    assert_eq!(rig.chip.read32(at), Ok(1 << 11 | 1), "predicate 0 is not loaded");
    assert_eq!(
        rig.chip.read32(register(PDMA_0_0, qman::PRED + 4)),
        Ok(1),
        "another stream has its own"
    );
    rig.chip.write32(at, 1 << 5).unwrap();
    rig.run_ok(
        PDMA_0_0,
        Program::new().packet(store(16, 5)).packet(store(17, 11)),
    );
    assert_eq!(rig.host_bytes(16, 2), [1, 0], "the register is what decides");
}

#[test]
fn false_predicate_skips_its_packets() {
    let mut rig = Rig::new();
    let mut room = [0; 24];
    let bulk = WregBulk::build(&mut room, 0xb8bc, &[1, 2], 9).expect("in range");
    let skipped = |packet: Option<Packet<'static>>| packet.expect("in range");
    let program = Program::new()
        .packet(Packet::WregBulk(bulk))
        .packet(skipped(Wreg32::new(0, 1).with_predicate(9).map(Packet::Wreg32)))
        .packet(skipped(
            ArbPoint::acquire(1)
                .and_then(|p| p.with_predicate(9))
                .map(Packet::ArbPoint),
        ))
        .packet(skipped(
            CpDma::new(DeviceVa(0), 8).with_predicate(9).map(Packet::CpDma),
        ))
        .packet(skipped(
            CbList::new(DeviceVa(0), DeviceVa(0))
                .with_predicate(9)
                .map(Packet::CbList),
        ))
        .packet(skipped(
            LoadAndExe::scalars(DeviceVa(0))
                .with_predicate(9)
                .map(Packet::LoadAndExe),
        ))
        .packet(skipped(
            Wreg64Short::new(0, 0, 0)
                .and_then(|p| p.with_predicate(9))
                .map(Packet::Wreg64Short),
        ))
        .words(&[2 << 30 | 1 << 16, 8 << 24 | 9])
        .words(&[0, 6 << 24 | 9]);
    rig.run_ok(PDMA_0_0, program);
}

#[test]
fn scalars_hold_a_packet_that_is_executed() {
    let mut rig = Rig::new();
    let message = MsgLong::new(va(HOST, 0), 0x600d).to_bytes();
    rig.host.write(4096, &message).unwrap();
    let signal = MsgShort::sob(500, SobUpdate::add_signed(1)).expect("in reach");
    rig.host
        .write(8192, &[[0; 8], signal.to_bytes()].concat())
        .unwrap();
    let program = Program::new()
        .packet(load(LoadAndExe::scalars(va(HOST, 4096)).and_execute(false)))
        .packet(load(LoadAndExe::scalars(va(HOST, 8192))))
        .packet(load(LoadAndExe::execute(true)))
        .packet(load(LoadAndExe::execute(true)));
    rig.run_ok(PDMA_0_0, program);
    assert_eq!(rig.host_bytes(0, 4), 0x600d_u32.to_le_bytes());
    assert_eq!(
        rig.chip.sob(0, 500),
        Some(2),
        "scalars 2 and 3 are a packet of 8 bytes"
    );

    let nested = load(LoadAndExe::execute(false));
    let mut bytes = vec![0; nested.len()];
    nested
        .emit(&mut gaudi_spec::gaudi2::packet::SliceSink::new(&mut bytes))
        .unwrap();
    rig.host.write(4096, &bytes).unwrap();
    let program = Program::new().packet(load(LoadAndExe::scalars(va(HOST, 4096)).and_execute(false)));
    assert_eq!(
        stop_of(&mut rig, program),
        StopReason::Unsupported(Unsupported::Nested)
    );
    let mut rig = Rig::new();
    rig.host
        .write(4096, &LinDma::copy(HOST, HOST, 0).to_bytes()[..16])
        .unwrap();
    let program = Program::new().packet(load(LoadAndExe::scalars(va(HOST, 4096)).and_execute(false)));
    assert!(
        matches!(stop_of(&mut rig, program), StopReason::Malformed(_)),
        "24 bytes do not fit into four scalars"
    );
}

#[test]
fn list_runs_the_chosen_buffer() {
    // As hl-thunk's test_cs_cb_list: each buffer signals, raises the index, and starts the next.
    const LENGTH: usize = 10;
    let mut rig = Rig::new();
    let (index, table, buffers) = (va(HOST, 0), 4096, 8192);
    let list = CbList::new(va(HOST, table), index);
    for nth in 0..LENGTH {
        let mut program = Program::new().sob(500, SobUpdate::add_signed(1));
        if nth + 1 < LENGTH {
            program = program.long(index, nth as u32 + 1).packet(Packet::CbList(list));
        }
        let bytes = program.bytes();
        rig.host.write(buffers + nth * 256, &bytes).unwrap();
        let entry = CpDma::new(va(HOST, buffers + nth * 256), bytes.len() as u32).on_upper(true);
        rig.host.write(table + nth * 16, &entry.to_bytes()).unwrap();
    }
    rig.run_ok(
        PDMA_0_0,
        Program::new().long(index, 0).packet(Packet::CbList(list)),
    );
    assert_eq!(rig.chip.sob(0, 500), Some(LENGTH as u16));

    rig.host.write(table, &[0; 7]).unwrap();
    rig.host.write(table + 7, &[0xa]).unwrap();
    let program = Program::new().long(index, 0).packet(Packet::CbList(list));
    assert!(
        matches!(
            stop_of(&mut rig, program),
            StopReason::Unsupported(Unsupported::Entry(_))
        ),
        "an entry is a CP_DMA"
    );
}

#[test]
fn own_registers_are_written_by_offset() {
    let mut rig = Rig::new();
    let sob = objs_address(0, SOB_OBJ, 500).unwrap();
    let mut room = [0; 16];
    let bulk = WregBulk::build(&mut room, 0xb8bc, &[sob.0 >> 32 | (sob.0 & 0xffff_ffff) << 32], 0);
    rig.host.write(4096, &0x8000_0005_u32.to_le_bytes()).unwrap();
    let program = Program::new()
        .packet(Packet::WregBulk(bulk.expect("in range")))
        .packet(load(LoadAndExe::scalars(va(HOST, 4096))))
        .packet(Packet::Wreg32(Wreg32::from_scalar(0xb8c4, 0).expect("in range")))
        .dma(LinDma::memset(DRAM, 0, 64).with_write_completion(true))
        .packet(Packet::Wreg32(Wreg32::new(0xb8c4, 0x8000_0001)))
        .dma(LinDma::memset(DRAM, 0, 64).with_write_completion(true));
    rig.run_ok(PDMA_1_0, program);
    assert_eq!(rig.chip.sob(0, 500), Some(6), "5 from a scalar, then 1");
    assert_eq!(
        rig.chip.read32(register(PDMA_0_0, 0x18bc)),
        Ok(0),
        "the other engine's registers are its own"
    );
    assert!(matches!(
        stop_of(
            &mut rig,
            Program::new().packet(Packet::Wreg32(Wreg32::new(0xc000, 1)))
        ),
        StopReason::UnknownRegister(_)
    ));
}

#[test]
fn register_writes_start_a_transfer() {
    let mut rig = Rig::new();
    let data: Vec<u8> = (0..100).collect();
    rig.host.write(64, &data).unwrap();
    let wide = |packet: Option<Wreg64Short>| Packet::Wreg64Short(packet.expect("in range"));
    let long = |packet: Option<Wreg64Long>| Packet::Wreg64Long(packet.expect("in range"));
    let program = Program::new()
        .packet(long(Wreg64Long::absolute(0xa910, va(HOST, 128).0)))
        .packet(wide(Wreg64Short::new(0xb8d8, 2, -64)))
        .packet(long(Wreg64Long::relative(0xb8e0, 2, 0x1000)))
        .packet(long(
            Wreg64Long::absolute(0xb8e8, 100).map(|packet| packet.with_halves(true, false)),
        ))
        .packet(Packet::Wreg32(Wreg32::new(0xb8ec, qman::COMMIT_LINEAR)));
    rig.run_ok(PDMA_0_0, program);
    assert_eq!(rig.host_bytes(128 + 0x1000, 100), data);
    assert_eq!(
        rig.chip.read32(register(PDMA_0_0, 0xa910 - 0xa000)),
        Ok(va(HOST, 128).0 as u32)
    );
    let program = Program::new().packet(Packet::Wreg32(Wreg32::new(0xb8ec, 0)));
    assert_eq!(
        stop_of(&mut rig, program),
        StopReason::Unsupported(Unsupported::DmaConversion),
        "a transfer that is not linear"
    );
}

#[test]
fn bytes_are_turned_round_in_groups() {
    for (swap, group) in [
        (EndianSwap::Two, 2),
        (EndianSwap::Four, 4),
        (EndianSwap::Eight, 8),
    ] {
        let mut rig = Rig::new();
        let data: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
        rig.host.write(4096, &data).unwrap();
        rig.run_ok(
            PDMA_0_0,
            Program::new().dma(LinDma::copy(DRAM, va(HOST, 4096), 9_999).with_swap(swap)),
        );
        let mut wanted = data[..9_999].to_vec();
        wanted.chunks_exact_mut(group).for_each(<[u8]>::reverse);
        assert_eq!(rig.dram_bytes(0, 9_999), wanted, "groups of {group}");
        assert_eq!(rig.dram_bytes(9_999, 1), [0], "not a byte beside it");
        assert_eq!(rig.chip.counters().host_to_device, 9_999);
    }
}

#[test]
fn wait_packet_adds_to_its_fence() {
    let mut rig = Rig::new();
    let wait = Packet::Wait(Wait::new(100, 3, 2).expect("in range"));
    rig.run_ok(PDMA_0_0, Program::new().packet(wait).fence(3, 2, 2));
}

/// Two streams ask at once for the arbiter, and each copies its number to the same byte; the last
/// one stays.
fn arbitrated(cfg: ArbCfg, priorities: [u32; 2]) -> u8 {
    let mut rig = Rig::new();
    rig.chip
        .write32(register(PDMA_0_0, qman::ARB_CFG), cfg.into_bits())
        .unwrap();
    for (stream, queue) in [(0, PDMA_0_0), (1, PDMA_0_1)] {
        let acquire = ArbPoint::acquire(priorities[stream]).expect("in range");
        let program = Program::new()
            .packet(Packet::ArbPoint(acquire))
            .long(va(HOST, 0), stream as u32 + 1)
            .packet(Packet::ArbPoint(ArbPoint::release()));
        rig.push(queue, stream as u64, &program.bytes());
    }
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    rig.host_bytes(0, 1)[0]
}

#[test]
fn arbiter_prefers_higher_priority() {
    let cfg = ArbCfg::new().with_enable(true).with_is_master(true);
    assert_eq!(arbitrated(cfg, [2, 1]), 2, "stream 1 is last");
    assert_eq!(arbitrated(cfg, [1, 2]), 1, "stream 0 is last");
    assert_eq!(
        arbitrated(ArbCfg::new(), [1, 2]),
        2,
        "switched off it orders nothing"
    );
}

#[test]
fn grant_lasts_until_release() {
    let mut rig = Rig::new();
    let at = register(PDMA_0_0, qman::ARB_CFG);
    let on = ArbCfg::new().with_enable(true).with_is_master(true);
    rig.chip.write32(at, on.into_bits()).unwrap();
    let acquire = Packet::ArbPoint(ArbPoint::acquire(0).expect("in range"));
    rig.run_ok(PDMA_0_0, Program::new().packet(acquire));
    rig.push(
        PDMA_0_1,
        1,
        &Program::new().packet(acquire).long(va(HOST, 0), 1).bytes(),
    );
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    assert_eq!(rig.chip.stream_state(PDMA_0_1), Some(StreamState::Arbitrated));
    rig.run_beside(PDMA_1_0, Program::new().packet(acquire));
    rig.chip.write32(at, 0).unwrap();
    assert_eq!(
        rig.chip.run(BUDGET),
        RunOutcome::Idle,
        "a disabled arbiter blocks no stream"
    );
    assert_eq!(rig.host_bytes(0, 1), [1]);
    assert!(
        rig.chip
            .write32(at, ArbCfg::new().with_enable(true).into_bits())
            .is_err(),
        "a follower is not modelled"
    );
}
