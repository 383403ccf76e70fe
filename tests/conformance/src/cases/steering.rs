//! Packets that control a command processor, and packets that write its engine's registers.

use gaudi_seam::{DeviceVa, QueueId, SharedIo, WaitStatus};
use gaudi_spec::gaudi2::packet::{
    ArbPoint, CbList, CpDma, Fence, LinDma, LoadAndExe, MsgBase, MsgLong, MsgProt, MsgShort, Nop, Packet,
    Wait, Wreg32, Wreg64Long, Wreg64Short, WregBulk, WregBulkHead,
};
use gaudi_spec::gaudi2::qman::{self, ArbCfg};
use gaudi_spec::gaudi2::queue;
use gaudi_spec::gaudi2::sync::{Compare, FIRST_USER_MONITOR, FIRST_USER_SOB, MonArm, MonConfig, SobUpdate};

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{
    Buffer, Built, Gate, Host, PAGE_LEN, Program, fence_address, finish, never_ends, offset, pattern, run,
};
use crate::verdict::{Failure, Verdict, equal, same_bytes};

cases! {
    "predicate.bits", "include/gaudi2/gaudi2_packets.h:packet_load_and_exe" => predicate_bits;
    "predicate.words", "include/gaudi2/gaudi2_packets.h:packet_load_and_exe" => predicate_words;
    "predicate.register", "gaudi2/gaudi2_security.c:gaudi2_pb_pdma0_unsecured_regs" => predicate_register;
    "predicate.of-a-fence", "include/gaudi2/gaudi2_packets.h:GAUDI2_PKT_FENCE_CTL_PRED_SHIFT" => predicate_of_fence;
    "predicate.one-stream-s-own", "gaudi2/gaudi2_security.c:gaudi2_pb_pdma0_unsecured_regs" => predicate_of_stream;
    "load-and-exe.four-scalars", "include/gaudi2/gaudi2_packets.h:packet_load_and_exe" => four_scalars;
    "load-and-exe.upper-scalars", "include/gaudi2/gaudi2_packets.h:packet_load_and_exe" => upper_scalars;
    "cb-list.chain", "include/gaudi2/gaudi2_packets.h:packet_cb_list" => list_chain;
    "cp-dma.lower-fence", "include/gaudi2/gaudi2_packets.h:packet_cp_dma" => lower_fence;
    "cp-dma.barrier-waits-for-it", "include/gaudi2/gaudi2_packets.h:packet_cp_dma" => lower_barrier;
    "cp-dma.to-its-own-processor", "include/gaudi2/gaudi2_packets.h:packet_cp_dma" => pushed_to_itself;
    "cp-dma.too-many-to-its-own-processor", "gaudi2/gaudi2.c:gaudi2_qman_error_cause" => pushed_too_many [Lifecycle, Reset];
    "msg-prot.host-memory", "include/gaudi2/gaudi2_packets.h:packet_msg_prot" => prot;
    "msg-short.base-of-the-user", "include/gaudi2/gaudi2_packets.h:GAUDI2_PKT_SHORT_CTL_BASE_SHIFT" => user_base;
    "wait.adds-to-a-fence", "include/gaudi2/gaudi2_packets.h:packet_wait" => wait_packet;
    "barrier.every-packet-takes-them", "include/gaudi2/gaudi2_packets.h:GAUDI2_PKT_CTL_OPCODE_SHIFT" => barriers;
    "wreg-32.register", "include/gaudi2/gaudi2_packets.h:packet_wreg32" => wreg_32;
    "wreg-32.from-a-scalar", "include/gaudi2/gaudi2_packets.h:packet_wreg32" => wreg_scalar;
    "wreg-bulk.in-a-row", "include/gaudi2/gaudi2_packets.h:packet_wreg_bulk" => wreg_bulk;
    "wreg-64.base-plus-offset", "gaudi2/gaudi2_security.c:gaudi2_pb_pdma0_unsecured_regs" => wreg_64;
    "wreg-64.starts-a-transfer", "gaudi2/gaudi2_security.c:gaudi2_pb_pdma0_unsecured_regs" => transfer_by_registers;
    "wreg.no-such-register", "gaudi2/gaudi2.c:gaudi2_qman_error_cause" => unknown_register [Lifecycle, Reset];
    "arbiter.higher-priority-first", "gaudi2/gaudi2_security.c:gaudi2_pb_pdma0_unsecured_regs" => arbiter_priority;
    "arbiter.by-weight", "gaudi2/gaudi2_security.c:gaudi2_pb_pdma0_unsecured_regs" => arbiter_weight;
    "arbiter.grant-is-kept", "gaudi2/gaudi2_security.c:gaudi2_pb_pdma0_unsecured_regs" => arbiter_grant;
    "arbiter.off-between-contexts", "gaudi2/gaudi2.c:gaudi2_restore_user_qm_registers" => arbiter_between_contexts [Lifecycle];
}

const Q: QueueId = queue::PDMA_0_0;
const BESIDE: QueueId = queue::PDMA_0_1;
const OTHER: QueueId = queue::PDMA_1_0;
const SOB: u32 = FIRST_USER_SOB + 8;
const MONITOR: u32 = FIRST_USER_MONITOR + 8;
/// The offset of packet data in a page of host memory; results are at its start.
const DATA: usize = 1024;
/// Register offsets in WREG packets: the DMA core's context, and bases of WREG_64.
const CORE: u16 = 0xb000;
const BASES: u16 = 0xa000 + qman::WR64_BASE as u16;

const LOAD_SCALARS: LoadAndExe = LoadAndExe::EMPTY.with_load(true).with_scalars(true);

// Writes both registers.
fn wreg_64_long(register: u16, value: u64) -> Wreg64Long {
    let packet = Wreg64Long::EMPTY
        .with_dreg_offset(register / 4)
        .with_offset(value);
    packet.with_low(true).with_high(true)
}

fn in_range<T>(packet: Option<T>) -> Result<T, Failure> {
    packet.ok_or_else(|| Failure::new("fields of a packet", "in range", "out of range"))
}

fn register(queue: QueueId, offset: u32) -> Result<DeviceVa, Failure> {
    in_range(queue::row(queue).and_then(|row| qman::address(&row, offset)))
}

fn store(target: &Host, at: u64, value: u32) -> MsgLong {
    MsgLong::new(offset(target.va, at), value)
}

/// Clears the predicates, as after a reset.
fn no_predicates(target: &Host) -> Result<Program, Failure> {
    target.memory.fill(DATA, 4, 0)?;
    Ok(Program::new().packet(Packet::LoadAndExe(
        LoadAndExe::EMPTY
            .with_load(true)
            .with_consecutive(true)
            .with_source(offset(target.va, DATA as u64)),
    )))
}

/// Runs a load of predicate 10 and stores under predicates 10, 11 and 0; then clears them.
fn stores_under(io: &SharedIo, target: &Host, load: Program) -> Verdict {
    let under = |at, predicate| Packet::MsgLong(store(target, at, 1).with_predicate(predicate));
    let program = load.packet(under(0, 10)).packet(under(1, 11)).packet(under(2, 0));
    run(io, Q, program)?;
    let seen = target.bytes(0, 3)?;
    run(io, Q, no_predicates(target)?)?;
    same_bytes("stores under predicates 10, 11 and 0", &seen, &[1, 0, 1])
}

fn predicate_bits(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.write(DATA, &(1u32 << 10).to_le_bytes())?;
    let load = LoadAndExe::EMPTY
        .with_load(true)
        .with_consecutive(true)
        .with_source(offset(target.va, DATA as u64))
        .with_message_barrier(true);
    stores_under(&io, &target, Program::new().packet(Packet::LoadAndExe(load)))
}

fn predicate_words(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.write(DATA + 10 * 4, &[1])?;
    let load = LoadAndExe::EMPTY
        .with_load(true)
        .with_source(offset(target.va, DATA as u64))
        .with_message_barrier(true);
    stores_under(&io, &target, Program::new().packet(Packet::LoadAndExe(load)))
}

fn predicate_register(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let set = MsgLong::new(register(Q, qman::PRED)?, 1 | 1 << 10).with_message_barrier(true);
    stores_under(&io, &target, Program::new().long(set))
}

fn predicate_of_fence(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let fence = in_range(Fence::new(1, 1, 1))?.with_predicate(9);
    // Otherwise it would hold the stream forever.
    run(&io, Q, Program::new().packet(Packet::Fence(fence)))
}

fn predicate_of_stream(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.write(DATA, &(1u32 << 10).to_le_bytes())?;
    let load = LoadAndExe::EMPTY
        .with_load(true)
        .with_consecutive(true)
        .with_source(offset(target.va, DATA as u64));
    run(&io, BESIDE, Program::new().packet(Packet::LoadAndExe(load)))?;
    let under = store(&target, 0, 1).with_predicate(10);
    run(&io, Q, Program::new().long(under))?;
    let seen = target.bytes(0, 1)?;
    run(&io, BESIDE, no_predicates(&target)?)?;
    same_bytes("a store under what another stream loaded", &seen, &[0])
}

fn four_scalars(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.write(DATA, &store(&target, 0, 7).to_bytes())?;
    let load = LOAD_SCALARS
        .with_source(offset(target.va, DATA as u64))
        .with_message_barrier(true);
    let at_once = Program::new().packet(Packet::LoadAndExe(load.with_exe(true).with_upper(false)));
    run(&io, Q, at_once)?;
    let first = target.bytes(0, 1)?;
    target.memory.fill(0, 1, 0)?;
    let apart = Program::new()
        .packet(Packet::LoadAndExe(load))
        .packet(Packet::LoadAndExe(
            LoadAndExe::EMPTY.with_exe(true).with_upper(false),
        ));
    run(&io, Q, apart)?;
    same_bytes("a message loaded and executed at once", &first, &[7])?;
    same_bytes("one loaded first and executed then", &target.bytes(0, 1)?, &[7])
}

fn upper_scalars(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let signal = in_range(MsgShort::sob(SOB, SobUpdate::add_signed(1)))?;
    target.memory.write(DATA, &[[0; 8], signal.to_bytes()].concat())?;
    let load = LOAD_SCALARS
        .with_source(offset(target.va, DATA as u64))
        .with_exe(true)
        .with_upper(true);
    let held = Buffer::new(
        &io,
        Program::new()
            .wait_for(OTHER, MONITOR, SOB, 1)?
            .sob(SOB, SobUpdate::set(0))?,
    )?;
    let seq = held.submit(OTHER)?;
    run(&io, Q, Program::new().packet(Packet::LoadAndExe(load)))?;
    finish(&*io, seq)
}

fn list_chain(bench: &mut Bench) -> Verdict {
    const LENGTH: usize = 5;
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let (index, table, buffers) = (0, DATA, 2 * DATA);
    let list = CbList::new(offset(target.va, table as u64), offset(target.va, index));
    // Each buffer stores its number, raises the index and runs the next entry.
    for nth in 0..LENGTH {
        let mut program = Program::new().long(store(&target, 8 + nth as u64, nth as u32 + 1));
        if nth + 1 < LENGTH {
            let raise = store(&target, index, nth as u32 + 1).with_message_barrier(true);
            program = program.long(raise).packet(Packet::CbList(list));
        }
        let bytes = program.bytes();
        let at = buffers + nth * 128;
        target.memory.write(at, &bytes)?;
        let entry = CpDma::new(offset(target.va, at as u64), bytes.len() as u32).with_upper_cp(true);
        target.memory.write(table + nth * 16, &entry.to_bytes())?;
    }
    run(&io, Q, Program::new().packet(Packet::CbList(list)))?;
    same_bytes(
        "what the buffers of a list stored",
        &target.bytes(8, LENGTH)?,
        &[1, 2, 3, 4, 5],
    )
}

fn lower_fence(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let lower = Program::new().fence(1, 1, 1)?.long(store(&target, 0, 1));
    let lower = Buffer::new(&io, lower)?;
    // The stream continues beside it and releases it.
    let row = queue::row(Q);
    let fence = in_range(row.and_then(|row| qman::lower_fence_address(&row, 1)))?;
    let upper = Program::new()
        .cp_dma(CpDma::new(lower.va, lower.len))
        .long(store(&target, 4, 2))
        .long(MsgLong::new(fence, 1));
    run(&io, Q, upper)?;
    same_bytes(
        "stores below a fence and beside it",
        &target.bytes(0, 5)?,
        &[1, 0, 0, 0, 2],
    )
}

fn lower_barrier(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let lower = Program::new().fence(2, 1, 1)?.long(store(&target, 0, 1));
    let lower = Buffer::new(&io, lower)?;
    let copy = LinDma::copy(offset(target.va, 4), target.va, 4).with_engine_barrier(true);
    let upper = Program::new().cp_dma(CpDma::new(lower.va, lower.len)).dma(copy);
    let upper = Buffer::new(&io, upper)?;
    let seq = upper.submit(Q)?;
    let poll = io.wait_cs(seq, std::time::Duration::from_millis(20));
    let row = queue::row(Q);
    let fence = in_range(row.and_then(|row| qman::lower_fence_address(&row, 2)))?;
    run(&io, OTHER, Program::new().long(MsgLong::new(fence, 1)))?;
    finish(&*io, seq)?;
    equal(
        "a barrier before which something is held",
        poll?.status,
        WaitStatus::Busy,
    )?;
    same_bytes("what the copy behind it took", &target.bytes(4, 1)?, &[1])
}

fn own_buffers(target: &Host, at: usize, count: usize) -> Result<Program, Failure> {
    let bytes = Program::new().long(store(target, 0, 2)).bytes();
    target.memory.write(at, &bytes)?;
    let own = CpDma::new(offset(target.va, at as u64), bytes.len() as u32).with_upper_cp(true);
    Ok((0..count).fold(Program::new(), |program, _| program.cp_dma(own)))
}

fn pushed_to_itself(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    run(&io, Q, own_buffers(&target, DATA, 1)?.long(store(&target, 0, 1)))?;
    same_bytes(
        "a store pushed before another of the buffer, which runs after it",
        &target.bytes(0, 1)?,
        &[2],
    )
}

fn pushed_too_many(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let program = own_buffers(&target, DATA, 64)?.bytes();
    drop(target);
    never_ends(bench, io, "64 buffers pushed at once", &program)
}

fn prot(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let packet = MsgProt::EMPTY
        .with_address(offset(target.va, 4))
        .with_value(0x0102_0304);
    run(&io, Q, Program::new().packet(Packet::MsgProt(packet)))?;
    same_bytes(
        "a word by MSG_PROT",
        &target.bytes(0, 12)?,
        &[0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0],
    )
}

fn user_base(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let low = register(Q, qman::MSG_BASE_LO + 2 * qman::MSG_BASE_STRIDE)?;
    let high = offset(low, u64::from(qman::MSG_BASE_HI));
    let set = |base: u64| {
        Program::new()
            .long(MsgLong::new(low, base as u32))
            .long(MsgLong::new(high, (base >> 32) as u32).with_message_barrier(true))
    };
    let short = MsgShort::new(MsgBase::Second, 8, 0x600d);
    run(&io, Q, set(target.va.0).short(Some(short), "base", 2)?)?;
    let seen = target.bytes(8, 4)?;
    run(&io, Q, set(0))?;
    same_bytes("a word at a base of the user", &seen, &0x600d_u32.to_le_bytes())
}

fn wait_packet(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let wait = Wait::EMPTY.with_cycles(1000).with_id(3).with_increment(2);
    run(&io, Q, Program::new().packet(Packet::Wait(wait)).fence(3, 2, 2)?)
}

fn barriers(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.write(64, &pattern(16, 5))?;
    let copy = LinDma::copy(offset(target.va, 128), offset(target.va, 64), 16);
    let program = Program::new()
        .packet(Packet::Nop(
            Nop::EMPTY.with_engine_barrier(true).with_message_barrier(true),
        ))
        .dma(copy.with_engine_barrier(true).with_message_barrier(true))
        .long(
            store(&target, 0, 9)
                .with_engine_barrier(true)
                .with_message_barrier(true),
        )
        .packet(Packet::Fence(
            in_range(Fence::new(0, 0, 0))?
                .with_engine_barrier(true)
                .with_message_barrier(true),
        ));
    run(&io, Q, program)?;
    same_bytes("a store behind barriers", &target.bytes(0, 1)?, &[9])?;
    same_bytes("a copy behind barriers", &target.bytes(128, 16)?, &pattern(16, 5))
}

/// Returns the registers of a write completion: high address, low address, value.
fn completion(to: DeviceVa, value: u32) -> [(u16, u32); 3] {
    [
        (CORE + qman::WR_COMP_ADDR_HI as u16, (to.0 >> 32) as u32),
        (CORE + qman::WR_COMP_ADDR_LO as u16, to.0 as u32),
        (CORE + qman::WR_COMP_WDATA as u16, value),
    ]
}

/// Returns a small transfer that writes its completion.
fn completing_transfer(target: &Host) -> LinDma {
    LinDma::memset(offset(target.va, 256), 0, 64).with_write_completion(true)
}

fn write_registers(registers: &[(u16, u32)]) -> Program {
    registers.iter().fold(Program::new(), |program, &(at, value)| {
        program.packet(Packet::Wreg32(Wreg32::EMPTY.with_offset(at).with_value(value)))
    })
}

fn wreg_32(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let program = write_registers(&completion(target.va, 0x600d)).dma(completing_transfer(&target));
    run(&io, Q, program)?;
    same_bytes(
        "a completion where registers say",
        &target.bytes(0, 4)?,
        &0x600d_u32.to_le_bytes(),
    )
}

fn wreg_scalar(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.write(DATA + 8, &0x600d_u32.to_le_bytes())?;
    let load = LOAD_SCALARS
        .with_source(offset(target.va, DATA as u64))
        .with_message_barrier(true);
    let scalar = Wreg32::EMPTY
        .with_offset(CORE + qman::WR_COMP_WDATA as u16)
        .with_reg(true)
        .with_value(2);
    let program = write_registers(&completion(target.va, 1))
        .packet(Packet::LoadAndExe(load))
        .packet(Packet::Wreg32(scalar))
        .dma(completing_transfer(&target));
    run(&io, Q, program)?;
    same_bytes(
        "a completion with a scalar as its value",
        &target.bytes(0, 4)?,
        &0x600d_u32.to_le_bytes(),
    )
}

fn wreg_bulk(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let [(first, high), (_, low), _] = completion(target.va, 0);
    let mut room = [0; 16];
    let both = u64::from(high) | u64::from(low) << 32;
    let bulk = in_range(WregBulk::build(
        &mut room,
        WregBulkHead::EMPTY.with_offset(first).with_predicate(0),
        &[both],
    ))?;
    let value = Wreg32::EMPTY
        .with_offset(CORE + qman::WR_COMP_WDATA as u16)
        .with_value(0x77);
    let program = Program::new()
        .packet(Packet::WregBulk(bulk))
        .packet(Packet::Wreg32(value))
        .dma(completing_transfer(&target));
    run(&io, Q, program)?;
    same_bytes(
        "a completion at an address of one packet",
        &target.bytes(0, 1)?,
        &[0x77],
    )
}

fn wreg_64(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.write(64, &pattern(64, 9))?;
    let base = BASES + 3 * 8;
    let set = |value| Packet::Wreg64Long(wreg_64_long(base, value));
    // Base plus offset is written to another base, and from there to a transfer's source.
    let second = wreg_64_long(base + 8, 128).with_base(3).with_rel(true);
    let source = Wreg64Short::EMPTY
        .with_dreg_offset((CORE + qman::SRC_BASE_LO as u16) / 4)
        .with_base(4)
        .with_offset(-64);
    let program = Program::new()
        .packet(set(target.va.0))
        .packet(Packet::Wreg64Long(second.with_message_barrier(true)))
        .packet(Packet::Wreg64Short(source));
    let clear = wreg_64_long(base + 8, 0);
    let program = start(program, &target, 512, 64)?
        .packet(set(0))
        .packet(Packet::Wreg64Long(clear));
    run(&io, Q, program)?;
    same_bytes(
        "a transfer from a base plus 128 less 64",
        &target.bytes(512, 64)?,
        &pattern(64, 9),
    )
}

/// Sets the destination of a transfer and starts it.
fn start(program: Program, target: &Host, to: u64, size: u64) -> Built {
    let destination = wreg_64_long(CORE + qman::DST_BASE_LO as u16, offset(target.va, to).0);
    let size = wreg_64_long(CORE + qman::DST_TSIZE_0 as u16, size);
    let commit = Wreg32::EMPTY
        .with_offset(CORE + qman::COMMIT as u16)
        .with_value(qman::COMMIT_LINEAR);
    Ok(program
        .packet(Packet::Wreg64Long(destination))
        .packet(Packet::Wreg64Long(size.with_low(true).with_high(false)))
        .packet(Packet::Wreg32(commit)))
}

fn transfer_by_registers(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.write(64, &pattern(100, 3))?;
    let source = wreg_64_long(CORE + qman::SRC_BASE_LO as u16, offset(target.va, 64).0);
    let program = Program::new().packet(Packet::Wreg64Long(source));
    run(&io, Q, start(program, &target, 1000, 100)?)?;
    same_bytes(
        "a transfer that registers describe",
        &target.bytes(1000, 100)?,
        &pattern(100, 3),
    )
}

fn unknown_register(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    // Between the registers of the queue's ARC and its own the headers have no block
    // (gaudi2_blocks_linux_driver.h).
    let program = write_registers(&[(0x9000, 1)]).bytes();
    never_ends(bench, io, "a write to an undefined register", &program)
}

fn switch_arbiter(io: &SharedIo, cfg: ArbCfg, weights: [u32; 2]) -> Verdict {
    let mut program = Program::new();
    for (stream, weight) in weights.into_iter().enumerate() {
        let at = register(Q, qman::ARB_WRR_WEIGHT + stream as u32 * 4)?;
        program = program.long(MsgLong::new(at, weight));
    }
    let quiet = register(Q, qman::ARB_MST_QUIET_PER)?;
    let mode = register(Q, qman::ARB_CFG)?;
    run(
        io,
        OTHER,
        program
            .long(MsgLong::new(quiet, 0x10))
            .long(MsgLong::new(mode, cfg.into_bits())),
    )
}

/// Takes the grant `times` times. Each time it marks its turn in a shared record.
fn asks(target: &Host, priority: u32, times: usize, mark: u8) -> Built {
    let acquire = Packet::ArbPoint(ArbPoint::EMPTY.with_priority(priority));
    let release = Packet::ArbPoint(ArbPoint::EMPTY.with_release(true));
    let last = offset(target.va, 0);
    let program = Program::new().fence(1, 1, 1)?;
    // A shift register in memory: each turn moves its bytes up by one and writes a mark at the
    // start.
    Ok((0..times).fold(program, |program, _| {
        program
            .packet(acquire)
            .copy(offset(last, 64), last, 15)
            .copy(offset(last, 1), offset(last, 64), 15)
            .dma(LinDma::memset(last, u32::from_le_bytes([mark; 4]), 1))
            .packet(release)
    }))
}

/// Returns the order in which two streams had the grant.
fn order(
    io: &SharedIo,
    cfg: ArbCfg,
    weights: [u32; 2],
    priorities: [u32; 2],
    times: usize,
) -> Result<Vec<u8>, Failure> {
    let target = Host::new(io, PAGE_LEN)?;
    let cfg = cfg.with_enable(true).with_is_master(true);
    switch_arbiter(io, cfg, weights)?;
    let buffers = [
        Buffer::new(io, asks(&target, priorities[0], times, 1)?)?,
        Buffer::new(io, asks(&target, priorities[1], times, 2)?)?,
    ];
    let seqs = [buffers[0].submit(Q)?, buffers[1].submit(BESIDE)?];
    // One monitor releases both, so that neither requests the grant before the other can.
    let config = MonConfig::for_sob(SOB).with_extra_writes(1);
    let mut open = Program::new().short(MsgShort::monitor_config(MONITOR, config), "monitor", MONITOR)?;
    for (monitor, queue) in [(MONITOR, Q), (MONITOR + 1, BESIDE)] {
        let to = fence_address(queue, 1)?;
        open = open
            .short(MsgShort::monitor_address_low(monitor, to), "monitor", monitor)?
            .short(MsgShort::monitor_address_high(monitor, to), "monitor", monitor)?
            .short(MsgShort::monitor_data(monitor, 1), "monitor", monitor)?;
    }
    let arm = MonArm::for_sob(SOB, Compare::AtLeast, 1);
    let open = open
        .short(MsgShort::monitor_arm(MONITOR, arm), "monitor", MONITOR)?
        .sob(SOB, SobUpdate::set(1))?
        .sob(SOB, SobUpdate::set(0))?;
    run(io, OTHER, open)?;
    let ends = seqs.map(|seq| finish(&**io, seq));
    switch_arbiter(io, ArbCfg::new(), [0, 0])?;
    for end in ends {
        end?;
    }
    let mut marks = target.bytes(0, 2 * times)?;
    marks.reverse();
    Ok(marks)
}

fn arbiter_priority(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let first = order(&io, ArbCfg::new(), [0, 0], [2, 1], 1)?;
    let second = order(&io, ArbCfg::new(), [0, 0], [1, 2], 1)?;
    same_bytes("the order of grants, stream 0 above stream 1", &first, &[1, 2])?;
    same_bytes("the order of grants, stream 1 above stream 0", &second, &[2, 1])
}

fn arbiter_weight(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cfg = ArbCfg::new().with_by_weight(true);
    let seen = order(&io, cfg, [2, 1], [0, 0], 4)?;
    // The arbiter chooses which stream begins.
    let turns = |of: u8| seen.iter().take(6).filter(|&&mark| mark == of).count();
    equal(
        "turns of stream 0 and of stream 1 among the first six, at weights 2 and 1",
        (turns(1), turns(2)),
        (4, 2),
    )
}

fn arbiter_grant(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let on = ArbCfg::new().with_enable(true).with_is_master(true);
    switch_arbiter(&io, on, [0, 0])?;
    let acquire = Packet::ArbPoint(ArbPoint::EMPTY.with_priority(0));
    run(&io, Q, Program::new().packet(acquire))?;
    let second = Program::new()
        .packet(acquire)
        .long(store(&target, 0, 1))
        .packet(Packet::ArbPoint(ArbPoint::EMPTY.with_release(true)));
    let second = Buffer::new(&io, second)?;
    let seq = second.submit(BESIDE)?;
    let poll = io.wait_cs(seq, std::time::Duration::from_millis(20));
    run(
        &io,
        Q,
        Program::new().packet(Packet::ArbPoint(ArbPoint::EMPTY.with_release(true))),
    )?;
    let end = finish(&*io, seq);
    switch_arbiter(&io, ArbCfg::new(), [0, 0])?;
    end?;
    equal(
        "a stream that asks for a grant that another has",
        poll?.status,
        WaitStatus::Busy,
    )
}

fn arbiter_between_contexts(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let on = ArbCfg::new().with_enable(true).with_is_master(true);
    switch_arbiter(&io, on, [0, 0])?;
    let acquire = Packet::ArbPoint(ArbPoint::EMPTY.with_priority(0));
    run(&io, Q, Program::new().packet(acquire))?;
    drop(io);
    let io = bench.reopen()?;
    // With the arbiter still on, the second stream would wait for the first's grant.
    run(&io, BESIDE, Program::new().packet(acquire))?;
    let gate = Gate::shut(&io, Q)?;
    gate.open()
}
