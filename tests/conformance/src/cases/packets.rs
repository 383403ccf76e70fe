//! Packets from end to end: messages, sync objects, monitors, fences, and invalid packets.

use gaudi_seam::{DeviceVa, QueueId, SharedIo, WaitStatus};
use gaudi_spec::gaudi2::packet::{CpDma, LinDma, MsgLong, Nop};
use gaudi_spec::gaudi2::sync::{Compare, FIRST_USER_MONITOR, FIRST_USER_SOB, SobUpdate};
use gaudi_spec::gaudi2::{DRAM_VA, queue};

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{
    Buffer, Gate, Host, PAGE_LEN, Program, Window, fence_address, finish, never_ends, offset, pattern, run,
};
use crate::verdict::{Failure, Verdict, equal, same_bytes};

cases! {
    "nop.does-nothing", "include/gaudi2/gaudi2_packets.h:packet_nop" => nop;
    "msg-long.host-memory", "include/gaudi2/gaudi2_packets.h:packet_msg_long" => long_host;
    "msg-long.device-memory", "include/gaudi2/gaudi2_packets.h:packet_msg_long" => long_device;
    "msg-long.releases-a-fence", "include/gaudi2/gaudi2_packets.h:packet_msg_long" => long_fence;
    "cp-dma.runs-in-order", "include/gaudi2/gaudi2_packets.h:packet_cp_dma" => handed_down;
    "arb-point.goes-on", "include/gaudi2/gaudi2_packets.h:packet_arb_point" => arbitration_point;
    "stop.is-given-up", "include/gaudi2/gaudi2_packets.h:packet_stop" => stopped [Lifecycle, Reset];
    "sync.signal-before-wait", "gaudi2/gaudi2.c:gaudi2_gen_wait_cb" => signal_first;
    "sync.wait-before-signal", "gaudi2/gaudi2.c:gaudi2_gen_wait_cb" => wait_first;
    "sync.chain-of-three-streams", "gaudi2/gaudi2.c:gaudi2_gen_wait_cb" => chain;
    "sync.counts-up-to-its-target", "include/gaudi2/gaudi2_packets.h:GAUDI2_PKT_SHORT_VAL_MON_SYNC_VAL_SHIFT" => counts_up;
    "sync.compares-for-equality", "include/gaudi2/gaudi2_packets.h:GAUDI2_PKT_SHORT_VAL_MON_MODE_SHIFT" => equality;
    "sync.monitor-writes-host-memory", "gaudi2/gaudi2.c:gaudi2_gen_wait_cb" => monitor_to_host;
    "sync.monitor-fires-once", "gaudi2/gaudi2.c:gaudi2_gen_wait_cb" => monitor_once;
    "fence.holds-its-stream-only", "include/gaudi2/gaudi2_packets.h:packet_fence" => fence_holds;
    "fence.takes-off-what-it-says", "include/gaudi2/gaudi2_packets.h:GAUDI2_PKT_FENCE_CFG_DEC_VAL_SHIFT" => fence_decrement;
    "packet.unknown-opcode", "common/command_submission.c:cs_timedout" => unknown_opcode [Lifecycle, Reset];
    "packet.cut-short", "common/command_submission.c:cs_timedout" => cut_short [Lifecycle, Reset];
}

const Q: QueueId = queue::PDMA_0_0;
const DOWN: QueueId = queue::PDMA_1_0;
/// Sync objects and monitors of this file; gates use the first of each.
const SOB: u32 = FIRST_USER_SOB + 8;
const MONITOR: u32 = FIRST_USER_MONITOR + 8;

fn nop(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let program = Program::new().nop().nop().long(MsgLong::new(target.va, 1)).nop();
    run(&io, Q, program)?;
    same_bytes("a store among NOPs", &target.bytes(0, 4)?, &1_u32.to_le_bytes())
}

fn long_host(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.fill(0, 16, 0xcc)?;
    run(
        &io,
        Q,
        Program::new().long(MsgLong::new(offset(target.va, 4), 0x0102_0304)),
    )?;
    let expected = [[0xcc; 4], 0x0102_0304_u32.to_le_bytes(), [0xcc; 4]].concat();
    same_bytes("a word among others", &target.bytes(0, 12)?, &expected)
}

fn long_device(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    window.write(0, &[0xcc; 12])?;
    run(
        &io,
        Q,
        Program::new().long(MsgLong::new(window.at(4), 0x0102_0304)),
    )?;
    let expected = [[0xcc; 4], 0x0102_0304_u32.to_le_bytes(), [0xcc; 4]].concat();
    same_bytes("a word among others", &window.read(0, 12)?, &expected)
}

fn long_fence(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let held = Buffer::new(&io, Program::new().fence(1, 2, 2)?)?;
    let seq = held.submit(Q)?;
    let release = MsgLong::new(fence_address(Q, 1)?, 1);
    run(&io, DOWN, Program::new().long(release).long(release))?;
    finish(&*io, seq)
}

/// Returns the program that sets a sync object, and the program that then stores a word.
fn signaller_and_waiter(io: &SharedIo, word: DeviceVa) -> Result<(Buffer, Buffer), Failure> {
    let signal = Program::new().sob(SOB, SobUpdate::add_signed(1))?;
    let wait = Program::new()
        .wait_for(DOWN, MONITOR, SOB, 1)?
        .sob(SOB, SobUpdate::set(0))?
        .long(MsgLong::new(word, 0x600d));
    Ok((Buffer::new(io, signal)?, Buffer::new(io, wait)?))
}

fn in_this_order(bench: &mut Bench, signal_first: bool) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let (signal, wait) = signaller_and_waiter(&io, target.va)?;
    let seqs = if signal_first {
        [signal.submit(Q)?, wait.submit(DOWN)?]
    } else {
        [wait.submit(DOWN)?, signal.submit(Q)?]
    };
    for seq in seqs.into_iter().rev() {
        finish(&*io, seq)?;
    }
    finish(&*io, seqs[0])?;
    same_bytes(
        "what the waiting stream stored",
        &target.bytes(0, 4)?,
        &0x600d_u32.to_le_bytes(),
    )
}

fn signal_first(bench: &mut Bench) -> Verdict {
    in_this_order(bench, true)
}

fn wait_first(bench: &mut Bench) -> Verdict {
    in_this_order(bench, false)
}

fn chain(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    window.host.memory.write(0, &pattern(256, 18))?;
    let back = offset(window.host.va, 4096);
    let edma = queue::edma(0, 0).unwrap_or(Q);
    let add = SobUpdate::add_signed(1);
    // Barriers, because a signal must not overtake the copy before it.
    let up = Program::new()
        .copy(window.at(0), window.host.va, 256)
        .barrier()
        .sob(SOB, add)?;
    let across = Program::new()
        .wait_for(edma, MONITOR, SOB, 1)?
        .copy(window.at(4096), window.at(0), 256)
        .barrier()
        .sob(SOB + 8, add)?;
    let down = Program::new()
        .wait_for(DOWN, MONITOR + 1, SOB + 8, 1)?
        .copy(back, window.at(4096), 256)
        .sob(SOB, SobUpdate::set(0))?
        .sob(SOB + 8, SobUpdate::set(0))?;
    let buffers = [
        Buffer::new(&io, down)?,
        Buffer::new(&io, across)?,
        Buffer::new(&io, up)?,
    ];
    let seqs = [
        buffers[0].submit(DOWN)?,
        buffers[1].submit(edma)?,
        buffers[2].submit(Q)?,
    ];
    seqs.into_iter().rev().try_for_each(|seq| finish(&*io, seq))?;
    same_bytes(
        "bytes through three streams",
        &window.host.bytes(PAGE_LEN, 256)?,
        &pattern(256, 18),
    )
}

fn counts_up(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let wait = Program::new()
        .wait_for(DOWN, MONITOR, SOB, 3)?
        .sob(SOB, SobUpdate::set(0))?;
    let wait = Buffer::new(&io, wait)?;
    let held = wait.submit(DOWN)?;
    for number in 1..=3 {
        let answer = io.wait_cs(held, std::time::Duration::ZERO)?;
        equal(
            &format!("a wait for 3 before signal {number}"),
            answer.status,
            WaitStatus::Busy,
        )?;
        run(&io, Q, Program::new().sob(SOB, SobUpdate::add_signed(1))?)?;
    }
    finish(&*io, held)
}

fn equality(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let watch = (SOB, Compare::Equal, 2);
    run(&io, Q, Program::new().monitor(MONITOR, watch, target.va, 0x600d)?)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(3))?)?;
    let above = target.bytes(0, 4)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(2))?)?;
    let at = target.bytes(0, 4)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(0))?)?;
    same_bytes("what a monitor for == 2 writes at 3", &above, &[0; 4])?;
    same_bytes("what it writes at 2", &at, &0x600d_u32.to_le_bytes())
}

fn monitor_to_host(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let watch = (SOB, Compare::AtLeast, 5);
    let program = Program::new()
        .monitor(MONITOR, watch, offset(target.va, 8), 0xfeed)?
        .sob(SOB, SobUpdate::set(4))?;
    run(&io, Q, program)?;
    let before = target.bytes(8, 4)?;
    run(&io, DOWN, Program::new().sob(SOB, SobUpdate::add_signed(7))?)?;
    let after = target.bytes(8, 4)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(0))?)?;
    same_bytes("what a monitor for 5 writes at 4", &before, &[0; 4])?;
    same_bytes("what it writes at 11", &after, &0xfeed_u32.to_le_bytes())
}

fn monitor_once(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let watch = (SOB, Compare::AtLeast, 1);
    run(&io, Q, Program::new().monitor(MONITOR, watch, target.va, 7)?)?;
    let add = || Program::new().sob(SOB, SobUpdate::add_signed(1));
    run(&io, Q, add()?)?;
    let first = target.bytes(0, 4)?;
    target.memory.fill(0, 4, 0)?;
    run(&io, Q, add()?)?;
    let second = target.bytes(0, 4)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(0))?)?;
    same_bytes("what an armed monitor writes", &first, &7_u32.to_le_bytes())?;
    same_bytes(
        "what it writes when it has fired and is not armed again",
        &second,
        &[0; 4],
    )
}

fn fence_holds(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let gate = Gate::shut(&io, Q)?;
    let store = |at: u64| Program::new().long(MsgLong::new(offset(target.va, at), 1));
    let behind = Buffer::new(&io, store(0))?;
    let seq = behind.submit(Q)?;
    // The other stream of the same engine continues.
    let beside = run(&io, queue::PDMA_0_1, store(4));
    let seen = target.bytes(0, 8);
    gate.open()?;
    finish(&*io, seq)?;
    beside?;
    same_bytes(
        "stores behind and beside a closed fence",
        &seen?,
        &[0, 0, 0, 0, 1, 0, 0, 0],
    )?;
    same_bytes("the store behind it when it is open", &target.bytes(0, 1)?, &[1])
}

fn fence_decrement(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let add = |by| fence_address(Q, 1).map(|at| Program::new().long(MsgLong::new(at, by)));
    run(&io, DOWN, add(5)?)?;
    // The counter is 5: the fences take 3, then 2. A fence would wait forever if the one before it
    // took more.
    run(&io, Q, Program::new().fence(1, 5, 3)?.fence(1, 2, 2)?)?;
    let last = Buffer::new(&io, Program::new().fence(1, 1, 1)?)?;
    let seq = last.submit(Q)?;
    let answer = io.wait_cs(seq, std::time::Duration::from_millis(20));
    run(&io, DOWN, add(1)?)?;
    finish(&*io, seq)?;
    equal(
        "a fence of which nothing is left",
        answer?.status,
        WaitStatus::Busy,
    )
}

fn unknown_opcode(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    // The header does not define opcodes 0 and 0x1f.
    never_ends(bench, io, "a buffer of zeros, which is opcode 0", &[0; 16])?;
    let io = bench.io()?;
    let bytes = [0, 0, 0, 0, 0, 0, 0, 0x1f];
    never_ends(bench, io, "opcode 0x1f", &bytes)
}

fn cut_short(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let copy = LinDma::copy(DRAM_VA.start, DRAM_VA.start, 64).to_bytes();
    let mut bytes = Nop::new().to_bytes().to_vec();
    bytes.extend_from_slice(&copy[..16]);
    never_ends(bench, io, "a buffer that ends inside a packet", &bytes)
}

fn handed_down(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    let bytes = pattern(4096, 3);
    window.write(0, &bytes)?;
    let lower = Buffer::new(&io, Program::new().copy(window.at(8192), window.at(0), 4096))?;
    let upper = Program::new()
        .cp_dma(CpDma::new(lower.va, lower.len))
        .barrier()
        .copy(window.at(16384), window.at(8192), 4096);
    run(&io, queue::PDMA_0_0, upper)?;
    same_bytes(
        "what a lower buffer copied, copied on",
        &window.read(16384, 4096)?,
        &bytes,
    )
}

fn arbitration_point(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let point = [0, 0, 0, 0, 0, 0, 0, 0x0c];
    run(&io, queue::PDMA_0_0, Program::new().raw(&point).nop().raw(&point))
}

fn stopped(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    never_ends(bench, io, "what a STOP ended", &[0, 0, 0, 0, 0, 0, 0, 0x0b])
}
