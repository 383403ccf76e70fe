//! Sync objects, monitors and completion queues beyond one object and one word.

use gaudi_seam::{DeviceVa, QueueId};
use gaudi_spec::gaudi2::packet::{MsgLong, MsgShort};
use gaudi_spec::gaudi2::sync::{
    CQ_BASE_H, CQ_BASE_L, CQ_INC_MODE, CQ_SIZE_LOG2, Compare, DCORES, FIRST_USER_CQ, FIRST_USER_MONITOR,
    FIRST_USER_SOB, GLBL, GROUP, LONG, MON_ARM, MON_CONFIG, MON_PAY_ADDRH, MON_PAY_ADDRL, MON_PAY_DATA,
    MonArm, MonConfig, OBJS, SOB_OBJ, SobUpdate, long_parts,
};
use gaudi_spec::gaudi2::{CFG_BASE, DCORE_STRIDE, queue};

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Built, Host, PAGE_LEN, Program, offset, run};
use crate::verdict::{Verdict, same_bytes};

const MASKS: &str = "include/gaudi2/asic_reg/dcore0_sync_mngr_objs_masks.h";

cases! {
    "sync.mask.all-that-are-watched", "include/gaudi2/asic_reg/dcore0_sync_mngr_objs_masks.h:DCORE0_SYNC_MNGR_OBJS_MON_ARM_MASK_SHIFT" => mask_all;
    "sync.mask.others-do-not-count", "include/gaudi2/asic_reg/dcore0_sync_mngr_objs_masks.h:DCORE0_SYNC_MNGR_OBJS_MON_ARM_MASK_SHIFT" => mask_others;
    "sync.monitor-writes-four-words", "include/gaudi2/asic_reg/dcore0_sync_mngr_objs_masks.h:DCORE0_SYNC_MNGR_OBJS_MON_CONFIG_WR_NUM_SHIFT" => four_words;
    "sync.long.compares-60-bits", "include/gaudi2/asic_reg/dcore0_sync_mngr_objs_masks.h:DCORE0_SYNC_MNGR_OBJS_MON_CONFIG_LONG_SOB_SHIFT" => long_compares;
    "sync.long.set-clears-three", "include/gaudi2/asic_reg/dcore0_sync_mngr_objs_masks.h:DCORE0_SYNC_MNGR_OBJS_SOB_OBJ_VAL_SHIFT" => long_set;
    "sync.long.add-carries", "include/gaudi2/asic_reg/dcore0_sync_mngr_objs_masks.h:DCORE0_SYNC_MNGR_OBJS_SOB_OBJ_VAL_SHIFT" => long_carries;
    "sync.monitors-of-each-die-core", "gaudi2/gaudi2.c:gaudi2_mmu_dcore_prepare" => each_die_core;
    "cq.ring-of-words", "include/gaudi2/asic_reg/dcore0_sync_mngr_glbl_masks.h:DCORE0_SYNC_MNGR_GLBL_CQ_INC_MODE_MODE_SHIFT" => ring [Lifecycle];
    "cq.counts", "include/gaudi2/asic_reg/dcore0_sync_mngr_glbl_masks.h:DCORE0_SYNC_MNGR_GLBL_CQ_INC_MODE_MODE_SHIFT" => counts;
}

const Q: QueueId = queue::PDMA_0_0;
/// The first group with only user objects, after those of other cases; monitors in groups of four.
const SOB: u32 = (FIRST_USER_SOB + 16).next_multiple_of(GROUP);
const MONITOR: u32 = (FIRST_USER_MONITOR + 16).next_multiple_of(LONG);
const CQ: u32 = FIRST_USER_CQ + 1;

fn short(program: Program, packet: Option<MsgShort>) -> Built {
    program.short(packet, MASKS, MONITOR)
}

/// Sets the data and the address that a monitor writes.
fn payload(program: Program, monitor: u32, to: DeviceVa, data: u32) -> Built {
    let program = short(program, MsgShort::monitor_address_low(monitor, to))?;
    let program = short(program, MsgShort::monitor_address_high(monitor, to))?;
    short(program, MsgShort::monitor_data(monitor, data))
}

fn group_monitor(to: DeviceVa, mask: u8) -> Built {
    let program = short(
        Program::new(),
        MsgShort::monitor_config(MONITOR, MonConfig::for_sob(SOB)),
    )?;
    let arm = MonArm::for_sob(SOB, Compare::AtLeast, 2).with_mask(mask);
    short(
        payload(program, MONITOR, to, 7)?,
        MsgShort::monitor_arm(MONITOR, arm),
    )
}

fn clear(count: u32) -> Built {
    (SOB..SOB + count).try_fold(Program::new(), |program, sob| program.sob(sob, SobUpdate::set(0)))
}

fn mask_all(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    run(&io, Q, group_monitor(target.va, 0)?)?;
    let mut seen = Vec::new();
    for sob in SOB..SOB + GROUP {
        seen.extend(target.bytes(0, 1)?);
        run(&io, Q, Program::new().sob(sob, SobUpdate::set(2))?)?;
    }
    seen.extend(target.bytes(0, 1)?);
    run(&io, Q, clear(GROUP)?)?;
    same_bytes(
        "what a monitor of eight objects wrote before each came true and after",
        &seen,
        &[0, 0, 0, 0, 0, 0, 0, 0, 7],
    )
}

fn mask_others(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    // The monitor watches objects 1 and 6; a set bit excludes an object.
    run(&io, Q, group_monitor(target.va, !(1 << 1 | 1 << 6))?)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(9))?)?;
    run(&io, Q, Program::new().sob(SOB + 1, SobUpdate::set(2))?)?;
    let before = target.bytes(0, 1)?;
    run(&io, Q, Program::new().sob(SOB + 6, SobUpdate::set(3))?)?;
    let after = target.bytes(0, 1)?;
    run(&io, Q, clear(GROUP)?)?;
    same_bytes("with one of two", &before, &[0])?;
    same_bytes("with both of two", &after, &[7])
}

fn four_words(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let config = MonConfig::for_sob(SOB).with_extra_writes(3);
    let mut program = short(Program::new(), MsgShort::monitor_config(MONITOR, config))?;
    for nth in 0..4 {
        let to = offset(target.va, u64::from(nth) * 8);
        program = payload(program, MONITOR + nth, to, nth + 1)?;
    }
    let arm = MonArm::for_sob(SOB, Compare::AtLeast, 1);
    let program = short(program, MsgShort::monitor_arm(MONITOR, arm))?
        .sob(SOB, SobUpdate::set(1))?
        .sob(SOB, SobUpdate::set(0))?;
    run(&io, Q, program)?;
    let seen = [0, 8, 16, 24].map(|at| target.bytes(at, 1));
    let seen: Result<Vec<_>, _> = seen.into_iter().collect();
    same_bytes("the words of one monitor", &seen?.concat(), &[1, 2, 3, 4])
}

/// Arms a long monitor on the objects, which writes 7 to the target and 8 next to it.
fn long_monitor(target: &Host, compare: Compare, value: u64) -> Built {
    let config = MonConfig::for_long_sob(SOB);
    let mut program = short(Program::new(), MsgShort::monitor_config(MONITOR, config))?;
    for nth in 0..2 {
        let to = offset(target.va, u64::from(nth) * 8);
        program = payload(program, MONITOR + nth, to, 7 + nth)?;
    }
    let arms = MonArm::for_long_sob(SOB, compare, value);
    for (arm, monitor) in arms.into_iter().zip(MONITOR..MONITOR + LONG).rev() {
        program = short(program, MsgShort::monitor_arm(monitor, arm))?;
    }
    Ok(program)
}

fn no_long_monitor() -> Built {
    short(
        clear(LONG)?,
        MsgShort::monitor_config(MONITOR, MonConfig::for_sob(SOB)),
    )
}

fn set_long(program: Program, value: u64) -> Built {
    let mut parts = long_parts(value).into_iter().zip(SOB..);
    parts.try_fold(program, |program, (part, sob)| {
        program.sob(sob, SobUpdate::set(part).with_long(sob == SOB))
    })
}

fn long_compares(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let value = 0xfff_e000_3fff_8100;
    run(&io, Q, set_long(Program::new(), value - 0x100)?)?;
    run(&io, Q, long_monitor(&target, Compare::Equal, value)?)?;
    let before = target.bytes(0, 9)?;
    run(
        &io,
        Q,
        Program::new().sob(SOB, SobUpdate::add_signed(0x100).with_long(true))?,
    )?;
    let after = target.bytes(0, 9)?;
    run(&io, Q, no_long_monitor()?)?;
    same_bytes("before the number is reached", &before, &[0; 9])?;
    same_bytes("after", &after, &[7, 0, 0, 0, 0, 0, 0, 0, 8])
}

fn long_set(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let program = Program::new()
        .sob(SOB + 1, SobUpdate::set(5))?
        .sob(SOB + 3, SobUpdate::set(5))?
        .sob(SOB, SobUpdate::set(9).with_long(true))?;
    run(&io, Q, program)?;
    run(&io, Q, long_monitor(&target, Compare::Equal, 9)?)?;
    let seen = target.bytes(0, 1)?;
    run(&io, Q, no_long_monitor()?)?;
    same_bytes("the number after its first object was set", &seen, &[7])
}

fn long_carries(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let add = |by: i16| Program::new().sob(SOB, SobUpdate::add_signed(by).with_long(true));
    run(&io, Q, set_long(Program::new(), (1 << 45) - 1)?)?;
    run(&io, Q, add(1)?)?;
    run(&io, Q, long_monitor(&target, Compare::Equal, 1 << 45)?)?;
    let up = target.bytes(0, 1)?;
    target.memory.fill(0, 1, 0)?;
    run(&io, Q, add(-1)?)?;
    run(&io, Q, long_monitor(&target, Compare::AtLeast, (1 << 45) - 1)?)?;
    let down = target.bytes(0, 1)?;
    run(&io, Q, no_long_monitor()?)?;
    same_bytes("2^45 - 1 and 1", &up, &[7])?;
    same_bytes("less 1 again", &down, &[7])
}

/// Monitors and completion queues of every die core write to the user's memory.
fn each_die_core(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    for dcore in 0..DCORES {
        let core = CFG_BASE.0 + u64::from(dcore * DCORE_STRIDE);
        let object = |table: u32, number: u32| DeviceVa(core + u64::from(OBJS + table + number * 4));
        let global = |table: u32| DeviceVa(core + u64::from(GLBL + table + CQ * 4));
        let place = |nth: u64| offset(target.va, u64::from(dcore) * 16 + nth * 8);
        let entry = place(1);
        let mut program = Program::new();
        for (register, value) in [
            (global(CQ_BASE_L), entry.0 as u32),
            (global(CQ_BASE_H), (entry.0 >> 32) as u32),
            (global(CQ_SIZE_LOG2), 2),
            (global(CQ_INC_MODE), 0),
        ] {
            program = program.long(MsgLong::new(register, value));
        }
        let direct = (MonConfig::for_sob(SOB), place(0), dcore + 1);
        let queued = (
            MonConfig::for_sob(SOB).with_cq_en(true),
            DeviceVa(CQ.into()),
            dcore + 5,
        );
        for (monitor, (config, to, data)) in (MONITOR..).zip([direct, queued]) {
            for (table, value) in [
                (MON_CONFIG, config.into_bits()),
                (MON_PAY_ADDRL, to.0 as u32),
                (MON_PAY_ADDRH, (to.0 >> 32) as u32),
                (MON_PAY_DATA, data),
                (MON_ARM, MonArm::for_sob(SOB, Compare::AtLeast, 1).into_bits()),
            ] {
                program = program.long(MsgLong::new(object(table, monitor), value));
            }
        }
        for update in [SobUpdate::set(1), SobUpdate::set(0)] {
            program = program.long(MsgLong::new(object(SOB_OBJ, SOB), update.into_bits()));
        }
        // The queue's monitor restores the mode that other cases expect.
        let plain = MonConfig::for_sob(SOB).into_bits();
        program = program.long(MsgLong::new(object(MON_CONFIG, MONITOR + 1), plain));
        run(&io, Q, program)?;
    }
    let seen = target.bytes(0, 64)?;
    let words: Vec<u8> = seen.into_iter().step_by(8).collect();
    same_bytes(
        "what monitors of four die cores wrote, and their completion queues",
        &words,
        &[1, 5, 2, 6, 3, 7, 4, 8],
    )
}

/// Returns a program whose monitor writes to the completion queue `times` times.
fn into_queue(target: &Host, mode: u32, size_log2: u32, times: u32) -> Built {
    let register = |table: u32| DeviceVa(CFG_BASE.0 + u64::from(GLBL + table + CQ * 4));
    let mut program = Program::new();
    for (table, value) in [
        (CQ_BASE_L, target.va.0 as u32),
        (CQ_BASE_H, (target.va.0 >> 32) as u32),
        (CQ_SIZE_LOG2, size_log2),
        (CQ_INC_MODE, mode),
    ] {
        program = program.long(MsgLong::new(register(table), value));
    }
    let config = MonConfig::for_sob(SOB).with_cq_en(true);
    program = short(program, MsgShort::monitor_config(MONITOR, config))?;
    let arm = MonArm::for_sob(SOB, Compare::Equal, 0);
    for nth in 0..times {
        program = payload(program, MONITOR, DeviceVa(u64::from(CQ)), nth + 1)?;
        program = short(program, MsgShort::monitor_arm(MONITOR, arm))?;
    }
    program = program.long(MsgLong::new(register(CQ_INC_MODE), 0));
    short(
        program,
        MsgShort::monitor_config(MONITOR, MonConfig::for_sob(SOB)),
    )
}

fn ring(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let target = Host::new(&io, PAGE_LEN)?;
    // Three entries in a queue of two.
    run(&io, Q, into_queue(&target, 0, 3, 3)?)?;
    same_bytes(
        "entries of a queue of 8 bytes",
        &target.bytes(0, 12)?,
        &[3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
    )
}

fn counts(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.write(0, &u64::from(u32::MAX).to_le_bytes())?;
    run(&io, Q, into_queue(&target, 1, 3, 3)?)?;
    same_bytes(
        "a counter to which 1, 2 and 3 were added",
        &target.bytes(0, 8)?,
        &(u64::from(u32::MAX) + 6).to_le_bytes(),
    )
}
