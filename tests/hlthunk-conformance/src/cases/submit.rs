//! Submissions and engine commands.

use std::ptr;

use gaudi_conformance::{Program, Verdict, equal, holds, offset, same_bytes};
use gaudi_harness::UNMAPPED;
use gaudi_spec::QueueId;
use gaudi_spec::gaudi2::packet::MsgLong;
use gaudi_spec::gaudi2::{self, block, queue};
use gaudi_uapi::cs::{CsFlags, EngineCommand, HlCsChunk};
use gaudi_uapi::engine::Gaudi2EngineId as Id;
use nix::errno::Errno;

use crate::answer::{fails, ok, refused, rejected};
use crate::bench::Bench;
use crate::card::{BUSY, Buffer, Card, Gate, Host, OTHER, PAGE, Q, Window, chunk, submission};
use crate::case::cases;
use crate::types::{CsIn, CsOut, Room, record};

cases! { "submit":
    "one-nop", "client:hl-thunk/tests/command_submission.c:test_cs_nop" => one_nop;
    "16-chunks", "client:hl-thunk/tests/command_submission.c:test_cs_nop_16PQE" => |bench| nops(bench, 16);
    "64-chunks", "client:hl-thunk/tests/command_submission.c:test_cs_nop_64PQE" => |bench| nops(bench, 64);
    "512-chunks", "common/command_submission.c:hl_cs_copy_chunk_array" => |bench| nops(bench, 512);
    "no-chunk-is-invalid", "common/command_submission.c:hl_cs_sanity_checks" => no_chunk;
    "513-chunks-is-invalid", "common/command_submission.c:hl_cs_copy_chunk_array" => too_many;
    "sequence-numbers-increase", "common/command_submission.c:allocate_cs" => increases;
    "several-queues", "common/command_submission.c:cs_ioctl_default" => several_queues;
    "same-buffer-many-times", "common/command_submission.c:cs_ioctl_default" => same_buffer;
    "buffer-in-host-memory", "client:synapse/driver_device.cpp:submitCommandBuffers" => in_host_memory;
    "buffer-in-device-memory", "client:hl-thunk/tests/sync_manager.c:test_sm_pingpong_common_cp_from_sram" => in_device_memory;
    "buffer-in-sram", "client:hl-thunk/tests/sync_manager.c:test_sm_pingpong_upper_cp_from_sram" => in_sram;
    "unaligned-buffer", "client:hl-thunk/tests/command_buffer.c:test_cb_unalign" => unaligned;
    "message-to-host-memory", "client:hl-thunk/tests/command_submission.c:test_cs_msg_long" => msg_long;
    "2000-messages", "client:hl-thunk/tests/command_submission.c:test_cs_msg_long_2000" => msg_long_2000;
    "null-input-is-invalid", "hlthunk.h:hlthunk_command_submission" => null_input;
    "null-output-submits-nothing", "hlthunk.h:hlthunk_command_submission" => null_output;
    "null-chunks-are-a-fault", "common/command_submission.c:hl_cs_copy_chunk_array" => null_chunks;
    "unmapped-chunks-are-a-fault", "common/command_submission.c:hl_cs_copy_chunk_array" => unmapped_chunks;
    "unknown-queue-is-invalid", "common/command_submission.c:validate_queue_index" => unknown_queue;
    "driver's-queue-is-invalid", "common/command_submission.c:validate_queue_index" => driver_queue;
    "disabled-queue-is-invalid", "gaudi2/gaudi2.c:gaudi2_validate_cb_address" => disabled_queue;
    "kernel-buffer-is-invalid", "common/command_submission.c:validate_queue_index" => kernel_buffer;
    "address-outside-is-a-fault", "gaudi2/gaudi2.c:gaudi2_validate_cb_address" => outside;
    "address-past-end-is-a-fault", "common/habanalabs.h:hl_mem_area_inside_range" => past_end;
    "size-zero-is-a-fault", "common/habanalabs.h:hl_mem_area_inside_range" => size_zero;
    "one-bad-chunk-runs-nothing", "common/command_submission.c:cs_ioctl_default" => bad_chunk;
    "types-are-exclusive", "common/command_submission.c:hl_cs_sanity_checks" => exclusive;
    "refusal-leaves-output-untouched", "hlthunk.h:hlthunk_command_submission" => untouched;
    "output-has-sequence-and-status", "hlthunk.h:hlthunk_cs_out" => output;
    "timeout-of-its-own", "common/command_submission.c:hl_cs_ioctl" => own_timeout;
    "timeout-zero-is-the-driver's", "hlthunk.h:hlthunk_command_submission_timeout" => zero_timeout;
    "timeout-without-reset-is-reported", "common/command_submission.c:cs_timedout" => timeout_reported;
    "restore-runs-first-when-forced", "common/command_submission.c:hl_cs_ctx_switch" => restore_forced;
    "restore-is-left-out-otherwise", "common/command_submission.c:hl_cs_ctx_switch" => restore_ignored;
    "restore-of-unmapped-chunks-is-a-fault", "common/command_submission.c:hl_cs_copy_chunk_array" => restore_fault;
    "staged-without-flag-is-invalid", "hlthunk.h:hlthunk_staged_command_submission" => staged_without_flag;
    "staged-is-not-permitted", "common/command_submission.c:hl_cs_sanity_checks" => staged;
    "staged-with-signals-is-not-permitted", "common/command_submission.c:hl_cs_sanity_checks" => staged_signals;
    "staged-null-is-invalid", "hlthunk.h:hlthunk_staged_command_submission" => staged_null;
    "flush-of-pci-writes", "common/command_submission.c:cs_ioctl_flush_pci_hbw_writes" => flush;
    "queue-order-is-kept", "common/hw_queue.c:hl_hw_queue_schedule_cs" => order;
    "foreign-descriptor-is-enotty", "hlthunk.h:hlthunk_command_submission" => on_foreign;
    "closed-descriptor-is-ebadf", "hlthunk.h:hlthunk_command_submission" => on_closed;
    "cores.run-and-halt", "gaudi2/gaudi2.c:gaudi2_set_engine_cores" => cores;
    "cores.other-mode-is-invalid", "hlthunk.h:hlthunk_engine_cores_set_mode" => cores_mode;
    "cores.count-has-limits", "common/command_submission.c:cs_ioctl_engine_cores" => cores_count;
    "cores.null-is-invalid", "hlthunk.h:hlthunk_engine_cores_set_mode" => cores_null;
    "cores.unmapped-ids-are-a-fault", "common/command_submission.c:cs_ioctl_engine_cores" => cores_fault;
    "engines.stall-and-resume", "client:scal/scal_gaudi2.cpp:init" => engines;
    "engines.run-and-halt-cores", "gaudi2/gaudi2.c:gaudi2_set_engines" => engines_cores;
    "engines.unstallable-is-invalid", "gaudi2/gaudi2.c:gaudi2_set_engine_modes" => unstallable;
    "engines.unknown-command-is-invalid", "hlthunk.h:hlthunk_engines_command" => engines_command;
    "engines.count-has-limits", "common/command_submission.c:cs_ioctl_engines" => engines_count;
    "engines.null-is-invalid", "hlthunk.h:hlthunk_engines_command" => engines_null;
}

fn nop(card: Card) -> Result<Buffer, gaudi_conformance::Failure> {
    Buffer::new(card, Program::new().nop())
}

/// Returns a chunk with an unmapped buffer: the driver checks only its address range.
fn somewhere(queue: u32) -> HlCsChunk {
    chunk(QueueId(queue), gaudi2::HOST_VA.start, 8)
}

fn refuse(card: Card, what: &str, chunks: &[HlCsChunk], errno: Errno) -> Verdict {
    let (code, _) = card.try_submit(chunks, CsFlags::NONE);
    refused(what, code, errno)
}

fn one_nop(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    card.finish(buffer.submit(Q)?)
}

fn nops(bench: &mut Bench, count: usize) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    card.finish(card.submit(&vec![buffer.chunk(Q); count])?)
}

fn no_chunk(bench: &mut Bench) -> Verdict {
    refuse(bench.card()?, "a submission of 0 chunks", &[], Errno::EINVAL)
}

fn too_many(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    refuse(card, "513 chunks", &vec![buffer.chunk(Q); 513], Errno::EINVAL)
}

fn increases(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    let first = buffer.submit(Q)?;
    for nth in 1..10 {
        equal("a sequence number", buffer.submit(OTHER)?, first + nth)?;
    }
    (0..10).try_for_each(|nth| card.finish(first + nth))
}

/// Returns programs that each write one word of host memory.
fn marks(card: Card, count: u32) -> Result<(Host, Vec<Buffer>), gaudi_conformance::Failure> {
    let target = Host::new(card, PAGE)?;
    let buffers: Result<Vec<_>, _> = (0..count)
        .map(|nth| {
            let word = offset(target.va, u64::from(nth) * 4);
            Buffer::new(card, Program::new().long(MsgLong::new(word, nth + 1)))
        })
        .collect();
    Ok((target, buffers?))
}

fn several_queues(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let queues = [Q, queue::PDMA_0_1, OTHER, queue::edma(0, 1).unwrap_or(Q)];
    let (target, buffers) = marks(card, 4)?;
    let chunks: Vec<_> = buffers
        .iter()
        .zip(queues)
        .map(|(buffer, queue)| buffer.chunk(queue))
        .collect();
    card.finish(card.submit(&chunks)?)?;
    let expected: Vec<u8> = (1..=4_u32).flat_map(u32::to_le_bytes).collect();
    same_bytes(
        "the word of each of four queues",
        &target.bytes(0, 16)?,
        &expected,
    )
}

fn same_buffer(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    let seqs: Result<Vec<_>, _> = (0..20).map(|_| buffer.submit(Q)).collect();
    seqs?.into_iter().try_for_each(|seq| card.finish(seq))
}

/// Runs a program at an address, and checks the word that it stores.
fn run_at(card: Card, va: gaudi_spec::DeviceVa, len: u32, target: &Host) -> Verdict {
    card.finish(card.submit(&[chunk(Q, va, len)])?)?;
    same_bytes(
        "the word that the program stored",
        &target.bytes(0, 4)?,
        &77_u32.to_le_bytes(),
    )
}

fn store_77(target: &Host) -> Vec<u8> {
    Program::new().long(MsgLong::new(target.va, 77)).bytes()
}

fn in_host_memory(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (target, code) = (Host::new(card, PAGE)?, Host::new(card, PAGE)?);
    let bytes = store_77(&target);
    code.memory.write(0, &bytes)?;
    run_at(card, code.va, bytes.len() as u32, &target)
}

fn in_device_memory(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let target = Host::new(card, PAGE)?;
    let window = Window::new(card, PAGE)?;
    let bytes = store_77(&target);
    window.write(4096, &bytes)?;
    run_at(card, window.at(4096), bytes.len() as u32, &target)
}

fn in_sram(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (target, up) = (Host::new(card, PAGE)?, Host::new(card, PAGE)?);
    let bytes = store_77(&target);
    up.memory.write(0, &bytes)?;
    let sram = gaudi_spec::DeviceVa(gaudi2::SRAM_BASE.0 + 0x20_0000);
    card.run(Q, Program::new().copy(sram, up.va, bytes.len() as u32))?;
    run_at(card, sram, bytes.len() as u32, &target)
}

fn unaligned(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for from in [8, 120, 4088] {
        let (target, code) = (Host::new(card, PAGE)?, Host::new(card, 2 * PAGE)?);
        let bytes = store_77(&target);
        code.memory.write(from, &bytes)?;
        run_at(card, offset(code.va, from as u64), bytes.len() as u32, &target)?;
    }
    Ok(())
}

fn msg_long(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (target, buffers) = marks(card, 1)?;
    card.finish(buffers[0].submit(Q)?)?;
    same_bytes("the message", &target.bytes(0, 4)?, &1_u32.to_le_bytes())
}

fn msg_long_2000(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let target = Host::new(card, 2 * PAGE)?;
    let message = |nth: u32| MsgLong::new(offset(target.va, u64::from(nth) * 4), nth);
    let program = (0..2000).fold(Program::new(), |program, nth| program.long(message(nth)));
    card.run(Q, program)?;
    let expected: Vec<u8> = (0..2000_u32).flat_map(u32::to_le_bytes).collect();
    same_bytes("2000 messages", &target.bytes(0, 8000)?, &expected)
}

fn null_input(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut out = CsOut::default();
    rejected(
        "a NULL input",
        card.hl.command_submission(card.fd, None, Some(&mut out)),
        Errno::EINVAL,
    )?;
    let code = card
        .hl
        .command_submission_timeout(card.fd, None, Some(&mut out), 1);
    rejected("a NULL input with a timeout", code, Errno::EINVAL)
}

fn null_output(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    let chunks = [buffer.chunk(Q)];
    let input = submission(&chunks, &[], CsFlags::NONE);
    let first = card.submit(&chunks)?;
    rejected(
        "a NULL output",
        card.hl.command_submission(card.fd, Some(&input), None),
        Errno::EINVAL,
    )?;
    let code = card.hl.command_submission_timeout(card.fd, Some(&input), None, 1);
    rejected("a NULL output with a timeout", code, Errno::EINVAL)?;
    let second = card.submit(&chunks)?;
    card.finish(second)?;
    equal("the sequence number after two failures", second, first + 1)
}

fn try_chunks(card: Card, address: u64, count: u32) -> i32 {
    let input = CsIn {
        chunks_execute: address,
        num_chunks_execute: count,
        ..CsIn::default()
    };
    card.hl
        .command_submission(card.fd, Some(&input), Some(&mut CsOut::default()))
}

fn null_chunks(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let code = try_chunks(card, 0, 1);
    fails("a NULL chunk", code)
}

fn unmapped_chunks(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for address in [16, UNMAPPED, 0xffff_8000_0000_0000, u64::MAX - 63] {
        refused(
            &format!("a chunk at {address:#x}"),
            try_chunks(card, address, 1),
            Errno::EFAULT,
        )?;
    }
    Ok(())
}

fn queues_fail(bench: &mut Bench, queues: &[u32]) -> Verdict {
    let card = bench.card()?;
    for &queue in queues {
        let what = format!("queue {queue}");
        refuse(card, &what, &[somewhere(queue)], Errno::EINVAL)?;
    }
    Ok(())
}

fn unknown_queue(bench: &mut Bench) -> Verdict {
    queues_fail(bench, &[queue::COUNT, 1000, u32::MAX])
}

fn driver_queue(bench: &mut Bench) -> Verdict {
    queues_fail(bench, &[queue::CPU.0])
}

fn disabled_queue(bench: &mut Bench) -> Verdict {
    queues_fail(bench, &[2, 3, 5, 6, 7, 156, 251])
}

fn kernel_buffer(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    let kernel = HlCsChunk::kernel(Q.0, buffer.cb.handle, buffer.len);
    refuse(card, "a chunk with a handle", &[kernel], Errno::EINVAL)
}

fn outside(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for va in [
        0,
        4096,
        gaudi2::DRAM_PHYS_BASE.0,
        gaudi2::DRAM_VA.end.0,
        u64::MAX - 8,
    ] {
        let chunk = HlCsChunk::user(Q.0, va, 8);
        refuse(card, &format!("a buffer at {va:#x}"), &[chunk], Errno::EFAULT)?;
    }
    Ok(())
}

fn past_end(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for end in [gaudi2::DRAM_VA.end.0, gaudi2::HOST_HUGE_VA.end.0] {
        let chunk = HlCsChunk::user(Q.0, end - 8, 16);
        refuse(card, &format!("a buffer past {end:#x}"), &[chunk], Errno::EFAULT)?;
    }
    Ok(())
}

fn size_zero(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    refuse(
        card,
        "a buffer of 0 bytes",
        &[chunk(Q, buffer.va, 0)],
        Errno::EFAULT,
    )
}

fn bad_chunk(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (target, buffers) = marks(card, 2)?;
    let chunks = [buffers[0].chunk(Q), buffers[1].chunk(QueueId(2))];
    refuse(
        card,
        "a submission whose second chunk is invalid",
        &chunks,
        Errno::EINVAL,
    )?;
    card.run(Q, Program::new().nop())?;
    same_bytes("the target of the first chunk", &target.bytes(0, 8)?, &[0; 8])
}

fn exclusive(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let kinds = [
        CsFlags::SIGNAL,
        CsFlags::WAIT,
        CsFlags::COLLECTIVE_WAIT,
        CsFlags::RESERVE_SIGNALS_ONLY,
    ];
    for pair in kinds.windows(2) {
        let flags = pair[0] | pair[1];
        let (code, _) = card.try_submit(&[somewhere(Q.0)], flags);
        refused(&format!("a submission with flags {flags}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn untouched(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let chunks = [somewhere(queue::COUNT)];
    let input = submission(&chunks, &[], CsFlags::NONE);
    let mut out = CsOut {
        seq: 7,
        status: 8,
        ..CsOut::default()
    };
    refused(
        "an unknown queue",
        card.hl.command_submission(card.fd, Some(&input), Some(&mut out)),
        Errno::EINVAL,
    )?;
    equal("the output after a failure", (out.seq, out.status), (7, 8))
}

fn output(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    let chunks = [buffer.chunk(Q)];
    let input = submission(&chunks, &[], CsFlags::NONE);
    let mut out = CsOut {
        seq: u64::MAX,
        status: u32::MAX,
        ..CsOut::default()
    };
    ok(
        "the submission",
        card.hl.command_submission(card.fd, Some(&input), Some(&mut out)),
    )?;
    card.finish(out.seq)?;
    equal("the status, HL_CS_STATUS_SUCCESS", out.status, 0)
}

fn timed(
    card: Card,
    chunks: &[HlCsChunk],
    flags: CsFlags,
    seconds: u32,
) -> Result<u64, gaudi_conformance::Failure> {
    let input = submission(chunks, &[], flags);
    let mut out = CsOut::default();
    let code = card
        .hl
        .command_submission_timeout(card.fd, Some(&input), Some(&mut out), seconds);
    ok("hlthunk_command_submission_timeout", code)?;
    Ok(out.seq)
}

fn own_timeout(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    for seconds in [1, 100] {
        card.finish(timed(card, &[buffer.chunk(Q)], CsFlags::NONE, seconds)?)?;
    }
    Ok(())
}

fn zero_timeout(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    card.finish(timed(card, &[buffer.chunk(Q)], CsFlags::NONE, 0)?)
}

fn timeout_reported(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut_timed(card, CsFlags::SKIP_RESET_ON_TIMEOUT, 1)?;
    let (seq, status) = (gate.seq(), card.wait(gate.seq(), 3_000_000));
    let mut event = Room::default();
    let code = card
        .hl
        .get_event_record(card.fd, record::CS_TIMEOUT, Some(&mut event));
    gate.open()?;
    ok("hlthunk_get_event_record", code)?;
    equal("the sequence number in the timeout record", event.0[1], seq)?;
    equal(
        "a wait for a timed-out submission before the reset",
        status?,
        BUSY,
    )
}

/// Runs a restore phase that copies a byte to the source of a copy in the execute phase. Returns
/// whether the restore phase ran.
fn restore(bench: &mut Bench, flags: CsFlags) -> Result<bool, gaudi_conformance::Failure> {
    let card = bench.card()?;
    let window = Window::new(card, PAGE)?;
    window.write(0, &[1; 64])?;
    window.write(4096, &[2; 64])?;
    let first = Buffer::new(card, Program::new().copy(window.at(0), window.at(4096), 64))?;
    let second = Buffer::new(card, Program::new().copy(window.at(8192), window.at(0), 64))?;
    let (execute, before) = ([second.chunk(OTHER)], [first.chunk(Q)]);
    let input = submission(&execute, &before, flags);
    let mut out = CsOut::default();
    ok(
        "the submission",
        card.hl.command_submission(card.fd, Some(&input), Some(&mut out)),
    )?;
    card.finish(out.seq)?;
    Ok(window.read(8192, 1)? == [2])
}

fn restore_forced(bench: &mut Bench) -> Verdict {
    equal(
        "the restore phase runs first",
        restore(bench, CsFlags::FORCE_RESTORE)?,
        true,
    )
}

fn restore_ignored(bench: &mut Bench) -> Verdict {
    equal(
        "the restore phase is skipped",
        restore(bench, CsFlags::NONE)?,
        false,
    )
}

fn restore_fault(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    let chunks = [buffer.chunk(Q)];
    let input = CsIn {
        chunks_restore: 16,
        num_chunks_restore: 1,
        ..submission(&chunks, &[], CsFlags::FORCE_RESTORE)
    };
    let code = card
        .hl
        .command_submission(card.fd, Some(&input), Some(&mut CsOut::default()));
    refused("restore chunks at an unmapped address", code, Errno::EFAULT)
}

fn staged_without_flag(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    let chunks = [buffer.chunk(Q)];
    let input = submission(&chunks, &[], CsFlags::NONE);
    let (hl, fd, mut out) = (card.hl, card.fd, CsOut::default());
    let what = "a stage without its flag";
    rejected(
        what,
        hl.staged_command_submission(fd, 0, Some(&input), Some(&mut out)),
        Errno::EINVAL,
    )?;
    let code = hl.staged_command_submission_timeout(fd, 0, Some(&input), Some(&mut out), 1);
    rejected(what, code, Errno::EINVAL)?;
    let code = hl.staged_command_submission_encaps_signals(fd, 0, Some(&input), Some(&mut out));
    rejected(what, code, Errno::EINVAL)
}

const FIRST_STAGE: CsFlags = CsFlags(CsFlags::STAGED_SUBMISSION.0 | CsFlags::STAGED_SUBMISSION_FIRST.0);

fn staged(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    let chunks = [buffer.chunk(Q)];
    let (hl, fd, mut out) = (card.hl, card.fd, CsOut::default());
    for flags in [FIRST_STAGE, CsFlags::STAGED_SUBMISSION] {
        let input = submission(&chunks, &[], flags);
        let code = hl.staged_command_submission(fd, 0, Some(&input), Some(&mut out));
        refused("a staged submission", code, Errno::EPERM)?;
        let code = hl.staged_command_submission_timeout(fd, 0, Some(&input), Some(&mut out), 1);
        refused("a staged submission with a timeout", code, Errno::EPERM)?;
    }
    Ok(())
}

fn staged_signals(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = nop(card)?;
    let chunks = [buffer.chunk(Q)];
    let input = submission(&chunks, &[], FIRST_STAGE);
    let code = card.hl.staged_command_submission_encaps_signals(
        card.fd,
        1,
        Some(&input),
        Some(&mut CsOut::default()),
    );
    refused("a stage with signals", code, Errno::EPERM)
}

fn staged_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (hl, fd, mut out) = (card.hl, card.fd, CsOut::default());
    let input = CsIn {
        flags: FIRST_STAGE.0,
        ..CsIn::default()
    };
    fails(
        "a NULL input",
        hl.staged_command_submission(fd, 0, None, Some(&mut out)),
    )?;
    fails(
        "a NULL output",
        hl.staged_command_submission(fd, 0, Some(&input), None),
    )?;
    fails(
        "a NULL input, with timeout",
        hl.staged_command_submission_timeout(fd, 0, None, Some(&mut out), 1),
    )?;
    fails(
        "a NULL output, with timeout",
        hl.staged_command_submission_timeout(fd, 0, Some(&input), None, 1),
    )?;
    fails(
        "a NULL input, with signals",
        hl.staged_command_submission_encaps_signals(fd, 0, None, Some(&mut out)),
    )?;
    fails(
        "a NULL output, with signals",
        hl.staged_command_submission_encaps_signals(fd, 0, Some(&input), None),
    )
}

fn flush(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    ok(
        "hlthunk_cs_flush_pci_hbw_writes",
        card.hl.cs_flush_pci_hbw_writes(card.fd),
    )
}

fn order(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let target = Host::new(card, PAGE)?;
    let store = |value| Buffer::new(card, Program::new().long(MsgLong::new(target.va, value)));
    let all: Result<Vec<_>, _> = (1..=20).map(store).collect();
    let all = all?;
    let seqs: Result<Vec<_>, _> = all.iter().map(|buffer| buffer.submit(Q)).collect();
    seqs?.into_iter().try_for_each(|seq| card.finish(seq))?;
    same_bytes(
        "the last of 20 stores",
        &target.bytes(0, 4)?,
        &20_u32.to_le_bytes(),
    )
}

fn all(card: Card, errno: Errno) -> Verdict {
    let (hl, fd) = (card.hl, card.fd);
    let chunks = [somewhere(Q.0)];
    let plain = submission(&chunks, &[], CsFlags::NONE);
    let stage = submission(&chunks, &[], FIRST_STAGE);
    let mut out = CsOut::default();
    refused(
        "submission",
        hl.command_submission(fd, Some(&plain), Some(&mut out)),
        errno,
    )?;
    refused(
        "timed",
        hl.command_submission_timeout(fd, Some(&plain), Some(&mut out), 1),
        errno,
    )?;
    refused(
        "staged",
        hl.staged_command_submission(fd, 0, Some(&stage), Some(&mut out)),
        errno,
    )?;
    refused("flush", hl.cs_flush_pci_hbw_writes(fd), errno)?;
    let one = [0];
    refused(
        "cores",
        hl.engine_cores_set_mode(fd, one.as_ptr(), 1, EngineCommand::CORE_HALT.0),
        errno,
    )?;
    refused(
        "engines",
        hl.engines_command(fd, one.as_ptr(), 1, EngineCommand::STALL.0),
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
    all(Card { hl: bench.hl, fd: -1 }, Errno::EBADF)
}

fn set_cores(card: Card, cores: &[u32], mode: u32) -> i32 {
    card.hl
        .engine_cores_set_mode(card.fd, cores.as_ptr(), cores.len() as u32, mode)
}

fn command(card: Card, engines: &[u32], command: u32) -> i32 {
    card.hl
        .engines_command(card.fd, engines.as_ptr(), engines.len() as u32, command)
}

fn cores(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let all: Vec<u32> = (0..block::ARCS).collect();
    for mode in [EngineCommand::CORE_RUN, EngineCommand::CORE_HALT] {
        for cores in [&all[..1], &all] {
            ok(
                &format!("{mode} of {} cores", cores.len()),
                set_cores(card, cores, mode.0),
            )?;
        }
    }
    Ok(())
}

fn cores_mode(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for mode in [0, EngineCommand::STALL.0, EngineCommand::RESUME.0, 5, u32::MAX] {
        rejected(
            &format!("mode {mode}"),
            set_cores(card, &[0], mode),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn cores_count(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let many = vec![0; block::ARCS as usize + 1];
    for cores in [&many[..0], &many] {
        let code = set_cores(card, cores, EngineCommand::CORE_HALT.0);
        refused(&format!("{} cores", cores.len()), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn cores_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let code = card
        .hl
        .engine_cores_set_mode(card.fd, ptr::null(), 1, EngineCommand::CORE_HALT.0);
    rejected("a NULL array of cores", code, Errno::EINVAL)
}

fn cores_fault(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let nowhere = ptr::without_provenance(16);
    let code = card
        .hl
        .engine_cores_set_mode(card.fd, nowhere, 1, EngineCommand::CORE_HALT.0);
    refused("cores at an unmapped address", code, Errno::EFAULT)?;
    let code = card
        .hl
        .engines_command(card.fd, nowhere, 1, EngineCommand::STALL.0);
    refused("engines at an unmapped address", code, Errno::EFAULT)
}

fn engines(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let all = [
        Id::DCORE0_ENGINE_ID_TPC_0.0,
        Id::DCORE3_ENGINE_ID_TPC_5.0,
        Id::DCORE2_ENGINE_ID_MME.0,
    ];
    for which in [EngineCommand::STALL, EngineCommand::RESUME] {
        ok(&format!("{which}"), command(card, &all, which.0))?;
    }
    Ok(())
}

fn engines_cores(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for which in [EngineCommand::CORE_RUN, EngineCommand::CORE_HALT] {
        ok(&format!("{which}"), command(card, &[0, 1], which.0))?;
    }
    Ok(())
}

fn unstallable(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for engine in [
        Id::DCORE0_ENGINE_ID_DEC_0,
        Id::ENGINE_ID_PDMA_0,
        Id::ENGINE_ID_NIC0_0,
        Id(1000),
    ] {
        let code = command(card, &[engine.0], EngineCommand::STALL.0);
        refused(&format!("a stall of {engine}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn engines_command(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for which in [0, 5, u32::MAX] {
        rejected(
            &format!("command {which}"),
            command(card, &[3], which),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn engines_count(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let most = Id::ENGINE_ID_KDMA.0 as usize + 1;
    let many = vec![Id::DCORE0_ENGINE_ID_TPC_0.0; most + 1];
    for count in [0, most + 1] {
        let code = command(card, &many[..count], EngineCommand::RESUME.0);
        refused(&format!("{count} engines"), code, Errno::EINVAL)?;
    }
    ok(
        "as many engines as there are",
        command(card, &many[..most], EngineCommand::RESUME.0),
    )
}

fn engines_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let code = card
        .hl
        .engines_command(card.fd, ptr::null(), 1, EngineCommand::STALL.0);
    rejected("a NULL array of engines", code, Errno::EINVAL)?;
    holds("the device still works", card.usage().is_ok(), ())
}
