//! What CP_DMA hands to the lower command processor, and packets that end or share a stream.

mod rig;

use gaudi_model::{Access, Event, Held, PageFault, RunOutcome, StopReason, Unsupported};
use gaudi_spec::gaudi2::packet::{CpDma, DecodeError, Opcode, Packet};
use gaudi_spec::gaudi2::queue::{PDMA_0_0, PDMA_0_1};
use gaudi_spec::gaudi2::sync::SobUpdate;
use gaudi_spec::gaudi2::{qman, queue};
use gaudi_spec::{DevicePa, DeviceVa};

use rig::{BUDGET, HOST, Program, Rig, va};

/// Where the tests put what is handed down: below the rig's command buffers.
const LOWER: usize = 4096;
const STOP: [u32; 2] = [0, 0xb << 24];
const ARB_POINT: [u32; 2] = [0, 0xc << 24];
const UNDEFINED: [u32; 2] = [0, 0x1f << 24];

fn put(rig: &Rig, at: usize, program: Program) -> (DeviceVa, usize) {
    let bytes = program.bytes();
    rig.host.write(at, &bytes).expect("inside host memory");
    (va(HOST, at), bytes.len())
}

#[test]
fn lower_cp_runs_in_order() {
    let mut rig = Rig::new();
    let word = va(HOST, 0);
    let (first, first_len) = put(&rig, LOWER, Program::new().long(word, 1).long(va(HOST, 4), 2));
    let (second, second_len) = put(
        &rig,
        LOWER + 256,
        Program::new().long(word, 3).sob(1000, SobUpdate::set(7)),
    );
    let program = Program::new()
        .cp_dma(first, first_len)
        .nop()
        .cp_dma(second, second_len)
        .long(va(HOST, 8), 4);
    rig.run_ok(PDMA_0_0, program);
    assert_eq!(
        [0, 4, 8].map(|at| rig.host_bytes(at, 4)[0]),
        [3, 2, 4],
        "the second buffer overwrote the first's word, and the stream went on after both"
    );
    assert_eq!(
        rig.value(0, 1000),
        Some(7),
        "MSG_SHORT reaches the sync manager from below"
    );
    assert_eq!(
        rig.chip.counters().packets,
        8,
        "packets of both processors are counted"
    );
    assert_eq!(
        rig.chip.counters().command_buffers,
        1,
        "what is handed down is no command buffer of the queue"
    );
}

#[test]
fn buffer_may_end_with_cp_dma() {
    let mut rig = Rig::new();
    let (at, len) = put(&rig, LOWER, Program::new().long(va(HOST, 0), 9));
    rig.push(PDMA_0_0, 1, &Program::new().cp_dma(at, len).bytes());
    rig.push(
        PDMA_0_0,
        2,
        &Program::new().cp_dma(at, 0).long(va(HOST, 4), 8).bytes(),
    );
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    let done = [1, 2].map(|tag| Event::CbDone { queue: PDMA_0_0, tag });
    assert_eq!(
        rig.events(),
        done,
        "each ends once, and handing nothing down is nothing"
    );
    assert_eq!((rig.host_bytes(0, 1), rig.host_bytes(4, 1)), (vec![9], vec![8]));
}

#[test]
fn longer_than_one_fetch_is_run_whole() {
    let mut rig = Rig::new();
    let many = (0..200).fold(Program::new(), |program, nth| {
        program.long(va(HOST, nth * 4), nth as u32 + 1)
    });
    let (at, len) = put(&rig, LOWER, many);
    rig.run_ok(PDMA_0_0, Program::new().cp_dma(at, len).cp_dma(at, len));
    let last = rig.host_bytes(199 * 4, 4);
    assert_eq!(last, 200u32.to_le_bytes(), "the last of 3200 bytes was executed");
    assert_eq!(rig.chip.counters().packets, 402);
}

#[test]
fn invalid_lower_opcode_reports_its_address() {
    let mut rig = Rig::new();
    let (at, len) = put(&rig, LOWER, Program::new().nop().words(&UNDEFINED));
    rig.push(PDMA_0_0, 5, &Program::new().nop().cp_dma(at, len).bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    let [Event::Stop(stop)] = rig.events()[..] else {
        panic!("the stream stops, and nothing else happens");
    };
    assert_eq!(
        (stop.queue, stop.tag, stop.offset),
        (PDMA_0_0, 5, 8),
        "the offset is that in the lower buffer"
    );
    assert_eq!(stop.lower, Some((at, len as u32)));
    assert!(
        matches!(stop.reason, StopReason::Malformed(DecodeError::UnknownOpcode(_))),
        "an opcode without a packet, seen {stop}"
    );
}

#[test]
fn cp_dma_source_must_be_mapped() {
    let mut rig = Rig::new();
    let hole = DeviceVa(0xfff0_7000_0000_0000);
    rig.push(PDMA_0_0, 6, &Program::new().cp_dma(hole, 64).bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    let fault = PageFault {
        queue: PDMA_0_0,
        tag: 6,
        offset: 0,
        address: hole,
        access: Access::Fetch,
    };
    assert_eq!(rig.events(), [Event::PageFault(fault)]);
}

#[test]
fn lower_cp_rejects_cp_dma() {
    let mut rig = Rig::new();
    let (at, len) = put(&rig, LOWER, Program::new().cp_dma(va(HOST, 0), 8));
    rig.push(PDMA_0_0, 1, &Program::new().cp_dma(at, len).bytes());
    rig.chip.run(BUDGET);
    let [Event::Stop(stop)] = rig.events()[..] else {
        panic!("it is answered by name");
    };
    assert_eq!(stop.reason, StopReason::Unsupported(Unsupported::LowerProcessor));
}

#[test]
fn lower_cp_has_own_fences() {
    let mut rig = Rig::new();
    let (at, len) = put(&rig, LOWER, Program::new().fence(1, 1, 1).long(va(HOST, 0), 1));
    // The stream goes on beside what it handed down, up to a barrier.
    let upper = Program::new().cp_dma(at, len).long(va(HOST, 4), 2);
    let behind = Program::new().barrier().long(va(HOST, 8), 3);
    rig.push(PDMA_0_0, 1, &upper.bytes());
    rig.push(PDMA_0_0, 2, &Program::new().nop().bytes());
    rig.push(PDMA_0_0, 3, &behind.bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    assert_eq!(rig.events(), [], "no buffer is done before what it handed down");
    let seen = |rig: &Rig| [0, 4, 8].map(|at| rig.host_bytes(at, 1)[0]);
    assert_eq!(seen(&rig), [0, 2, 0]);
    assert_eq!(
        rig.chip.held(PDMA_0_0),
        Some(Held::Fence { id: 1, target: 1 }),
        "the state of what it waits for"
    );
    let row = queue::row(PDMA_0_0).unwrap();
    let own = rig::fence_address(PDMA_0_0, 1);
    rig.chip.write32(DevicePa(own.0), 1).unwrap();
    assert_eq!(
        rig.chip.run(BUDGET),
        RunOutcome::Blocked,
        "not the stream's fence"
    );
    let below = qman::lower_fence_address(&row, 1).unwrap();
    rig.chip.write32(DevicePa(below.0), 1).unwrap();
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    assert_eq!(seen(&rig), [1, 2, 3]);
    let done = [1, 2, 3].map(|tag| Event::CbDone { queue: PDMA_0_0, tag });
    assert_eq!(rig.events(), done, "in their order");
}

#[test]
fn four_streams_share_the_lower_processor() {
    let mut rig = Rig::new();
    let (held, held_len) = put(&rig, LOWER, Program::new().fence(0, 1, 1));
    let (store, store_len) = put(&rig, LOWER + 64, Program::new().long(va(HOST, 0), 7));
    rig.push(PDMA_0_0, 1, &Program::new().cp_dma(held, held_len).bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    // More than it holds: the other stream waits for room.
    let many = (0..12).fold(Program::new(), |program, _| program.cp_dma(store, store_len));
    rig.push(PDMA_0_1, 2, &many.bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    assert_eq!(rig.host_bytes(0, 1), [0], "behind the first stream's fence");
    let below = qman::lower_fence_address(&queue::row(PDMA_0_1).unwrap(), 0).unwrap();
    rig.chip.write32(DevicePa(below.0), 1).unwrap();
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    assert_eq!(rig.host_bytes(0, 1), [7]);
    assert_eq!(rig.events().len(), 2);
    assert_eq!(rig.chip.counters().packets, 2 + 12 + 12);
}

#[test]
fn self_pushed_commands_run_after_the_buffer() {
    let mut rig = Rig::new();
    let (first, first_len) = put(&rig, LOWER, Program::new().long(va(HOST, 0), 1));
    let (second, second_len) = put(&rig, LOWER + 64, Program::new().long(va(HOST, 0), 2));
    let own = |at, len: usize| CpDma::new(at, len as u32).with_upper_cp(true);
    let upper = Program::new()
        .packet(Packet::CpDma(own(first, first_len)))
        .packet(Packet::CpDma(own(second, second_len)))
        .long(va(HOST, 0), 3);
    rig.push(PDMA_0_0, 1, &upper.bytes());
    rig.push(
        PDMA_0_0,
        2,
        &Program::new().copy(va(HOST, 4), va(HOST, 0), 4).bytes(),
    );
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    assert_eq!(
        (rig.host_bytes(0, 1), rig.host_bytes(4, 1)),
        (vec![2], vec![2]),
        "after the buffer, before the next"
    );
    assert_eq!(rig.events().len(), 2, "and is no command buffer of the queue");
    let many = (0..4).fold(Program::new(), |program, _| {
        program.packet(Packet::CpDma(own(first, first_len)))
    });
    rig.push(PDMA_0_0, 3, &many.bytes());
    rig.chip.run(BUDGET);
    let [Event::Stop(stop)] = rig.events()[..] else {
        panic!("a fourth is too many");
    };
    assert_eq!((stop.reason, stop.offset), (StopReason::UpperOverflow, 48));
}

#[test]
fn a_stop_ends_its_stream_alone() {
    let mut rig = Rig::new();
    rig.push(
        PDMA_0_0,
        1,
        &Program::new().words(&STOP).long(va(HOST, 0), 1).bytes(),
    );
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    assert_eq!(rig.chip.held(PDMA_0_0), Some(Held::Halted));
    let [Event::Stop(stop)] = rig.events()[..] else {
        panic!("a STOP is logged");
    };
    assert_eq!((stop.reason, stop.offset), (StopReason::Asked, 0));
    rig.run_beside(PDMA_0_1, Program::new().long(va(HOST, 4), 2));
    assert_eq!(
        (rig.host_bytes(0, 1), rig.host_bytes(4, 1)),
        (vec![0], vec![2]),
        "what follows it does not run"
    );
}

#[test]
fn arb_point_lets_the_stream_continue() {
    let mut rig = Rig::new();
    rig.run_ok(
        PDMA_0_0,
        Program::new()
            .words(&ARB_POINT)
            .long(va(HOST, 0), 5)
            .words(&ARB_POINT),
    );
    assert_eq!(rig.host_bytes(0, 1), [5]);
    assert_eq!(Opcode::of(ARB_POINT[1]), Opcode::ARB_POINT);
}
