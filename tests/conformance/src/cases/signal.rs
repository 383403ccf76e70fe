//! Signals through the driver: `HL_CS_FLAGS_SIGNAL`, `HL_CS_FLAGS_WAIT` and reservations.

use std::time::{Duration, Instant};

use gaudi_harness::UNMAPPED;
use gaudi_seam::{CsAnswer, CsRequest, CsSeq, Errno, Error, KernelIo, KernelIoExt as _, QueueId, WaitStatus};
use gaudi_spec::gaudi2::queue;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::info::HlInfoCsCounters;

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Buffer, Gate, LONG, Program, Window, finish, submit};
use crate::verdict::{Failure, Verdict, equal, invalid, refused};

cases! {
    "signal.counts", "common/hw_queue.c:init_signal_cs" => counts;
    "signal.holds-a-waiter", "common/hw_queue.c:init_wait_cs" => holds_a_waiter;
    "signal.wait-for-what-is-done", "common/command_submission.c:cs_ioctl_signal_wait" => wait_for_done;
    "signal.wait-for-what-is-gone", "common/command_submission.c:cs_ioctl_signal_wait" => wait_for_gone;
    "signal.wait-for-no-signal", "common/command_submission.c:cs_ioctl_signal_wait" => wait_for_other;
    "signal.wait-for-the-future", "common/context.c:hl_ctx_get_fence_locked" => wait_for_future;
    "signal.wait-for-several", "common/command_submission.c:hl_cs_signal_sob_wraparound_handler" => wait_for_several;
    "signal.wait-for-no-address", "common/command_submission.c:cs_ioctl_extract_signal_seq" => wait_no_address;
    "signal.number-of-chunks", "common/command_submission.c:hl_cs_sanity_checks" => number_of_chunks;
    "signal.no-such-queue", "common/command_submission.c:cs_ioctl_signal_wait" => no_queue;
    "signal.queue-without-signals", "common/command_submission.c:cs_ioctl_signal_wait" => queue_without;
    "signal.collective", "common/command_submission.c:cs_ioctl_signal_wait" => collective;
    "signal.reserve", "common/command_submission.c:cs_ioctl_reserve_signals" => reserve;
    "signal.ended-frees-its-object", "common/command_submission.c:cs_release_sob_reset_handler" => ended_frees_object;
    "signal.queue-full-takes-no-value", "common/hw_queue.c:hl_hw_queue_schedule_cs" => full_takes_no_value;
    "signal.reserve-too-many", "common/command_submission.c:cs_ioctl_reserve_signals" => reserve_too_many;
    "signal.reserve-of-no-queue", "common/command_submission.c:cs_ioctl_reserve_signals" => reserve_no_queue;
    "signal.unreserve-unknown", "common/command_submission.c:cs_ioctl_unreserve_signals" => unreserve_unknown;
    "signal.unreserve-out-of-step", "common/command_submission.c:cs_ioctl_unreserve_signals" => unreserve_out_of_step;
    "signal.wait-for-unused-reservation", "common/command_submission.c:cs_ioctl_signal_wait" => wait_unused_reservation;
    "submit.in-stages", "common/command_submission.c:hl_cs_sanity_checks" => in_stages;
    "submit.flush-of-pci-writes", "common/command_submission.c:cs_ioctl_flush_pci_hbw_writes" => flush_pci;
    "submit.restore-when-forced", "common/command_submission.c:hl_cs_ctx_switch" => restore_forced;
    "submit.restore-not-forced", "common/command_submission.c:hl_cs_ctx_switch" => restore_ignored;
}

const NONE: CsSeq = CsSeq(u64::MAX);
const HELD: QueueId = queue::PDMA_0_0;
const OTHER: QueueId = queue::PDMA_0_1;

fn on(queue: u32) -> HlCsChunk {
    HlCsChunk {
        queue_index: queue,
        ..HlCsChunk::default()
    }
}

fn make(io: &dyn KernelIo, flags: CsFlags, chunks: &[HlCsChunk]) -> Result<CsAnswer, Error> {
    io.submit(&CsRequest::jobs(chunks).with_flags(flags))
}

fn signal(io: &dyn KernelIo, queue: QueueId) -> Result<CsAnswer, Error> {
    make(io, CsFlags::SIGNAL, &[on(queue.0)])
}

/// Submits a wait for a signal, whose number the driver reads from process memory.
fn wait_for(io: &dyn KernelIo, queue: QueueId, number: u64) -> Result<CsAnswer, Error> {
    let number = Box::new(number);
    let address = std::ptr::from_ref(&*number).expose_provenance() as u64;
    let chunk = HlCsChunk {
        cb_handle: address,
        cb_size: 1,
        ..on(queue.0)
    };
    make(io, CsFlags::WAIT, &[chunk])
}

fn counts(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    for nth in 1..=5 {
        let answer = signal(&*io, HELD)?;
        equal(
            "the count that a signal returns",
            answer.sob_count_before_submission,
            nth,
        )?;
        equal(
            "where the sync object lies, which this chip does not report",
            answer.sob_base_addr_offset,
            0,
        )?;
        finish(&*io, answer.seq)?;
    }
    let other = signal(&*io, OTHER)?;
    finish(&*io, other.seq)?;
    equal(
        "another queue counts by itself",
        other.sob_count_before_submission,
        1,
    )
}

/// A queue changes to its other sync object only if no signal holds that one.
fn ended_frees_object(bench: &mut Bench) -> Verdict {
    // More signals than the remaining count of an object that counted one.
    const ALL: u32 = (1 << 15) - 1;
    let io = bench.reopen()?;
    finish(&*io, signal(&*io, HELD)?.seq)?;
    // To the other object and back to the signal's.
    for turn in 0..2 {
        let reserve = || io.submit(&CsRequest::reserve_signals(ALL, HELD));
        // The driver wakes waiters shortly before the submission releases its object.
        let begin = Instant::now();
        let mut reserved = reserve();
        while reserved.is_err() && begin.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(1));
            reserved = reserve();
        }
        let Ok(reserved) = reserved else {
            return Err(Failure::new(
                format!("a reservation of {ALL} signals, turn {turn}"),
                "success",
                format!("{reserved:?}"),
            ));
        };
        io.submit(&CsRequest::unreserve_signals(reserved.reservation().handle))?;
    }
    Ok(())
}

fn full_takes_no_value(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let gate = Gate::shut(&io, HELD)?;
    let nop = Buffer::new(&io, Program::new().nop())?;
    // The driver's test of the queue and the gate use one of the 4096 entries each.
    let mut seqs = Vec::new();
    for count in [512, 512, 512, 512, 512, 512, 512, 510] {
        seqs.push(submit(&*io, &vec![nop.chunk(HELD); count])?.seq);
    }
    let refusal = refused("a signal on a full queue", signal(&*io, HELD), Errno::EAGAIN);
    gate.open()?;
    refusal?;
    seqs.into_iter().try_for_each(|seq| finish(&*io, seq))?;
    let gate = Gate::shut(&io, HELD)?;
    let signalled = signal(&*io, HELD)?;
    let waiting = wait_for(&*io, OTHER, signalled.seq.0)?.seq;
    gate.open()?;
    equal(
        "the count of the first signal",
        signalled.sob_count_before_submission,
        1,
    )?;
    finish(&*io, signalled.seq)?;
    finish(&*io, waiting)
}

fn holds_a_waiter(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let gate = Gate::shut(&io, HELD)?;
    let signalled = signal(&*io, HELD)?.seq;
    let waiting = wait_for(&*io, OTHER, signalled.0)?.seq;
    for _ in 0..20 {
        let answer = io.wait_cs(waiting, Duration::ZERO)?;
        equal("the waiter before the signal", answer.status, WaitStatus::Busy)?;
    }
    gate.open()?;
    finish(&*io, signalled)?;
    finish(&*io, waiting)
}

fn wait_for_done(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let signalled = signal(&*io, HELD)?.seq;
    finish(&*io, signalled)?;
    let answer = wait_for(&*io, OTHER, signalled.0)?;
    equal("the number of a wait for what is done", answer.seq, NONE)?;
    invalid("waiting for that number", io.wait_cs(answer.seq, LONG))
}

fn wait_for_gone(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let signalled = signal(&*io, HELD)?.seq;
    finish(&*io, signalled)?;
    for _ in 0..64 {
        finish(&*io, signal(&*io, HELD)?.seq)?;
    }
    for number in [0, signalled.0] {
        equal(
            "the number of a wait for what is long done",
            wait_for(&*io, OTHER, number)?.seq,
            NONE,
        )?;
    }
    Ok(())
}

fn wait_for_other(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let counters = || {
        io.query::<HlInfoCsCounters>()
            .map(|counters| counters.ctx_validation_drop_cnt)
    };
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let seq = buffer.submit(HELD)?;
    finish(&*io, seq)?;
    let before = counters()?;
    invalid("a wait for what is no signal", wait_for(&*io, OTHER, seq.0))?;
    equal("refusals that were counted", counters()? - before, 1)
}

fn wait_for_future(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let last = signal(&*io, HELD)?.seq;
    finish(&*io, last)?;
    for number in [last.0 + 1, u64::MAX] {
        invalid("a wait for a signal to come", wait_for(&*io, OTHER, number))?;
    }
    Ok(())
}

fn wait_for_several(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for count in [0, 2, u32::MAX] {
        let chunk = HlCsChunk {
            cb_size: count,
            ..on(OTHER.0)
        };
        invalid(
            &format!("a wait for {count} signals"),
            make(&*io, CsFlags::WAIT, &[chunk]),
        )?;
    }
    Ok(())
}

fn wait_no_address(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for address in [0, UNMAPPED, u64::MAX - 7] {
        let chunk = HlCsChunk {
            cb_handle: address,
            cb_size: 1,
            ..on(OTHER.0)
        };
        refused(
            "a wait with an invalid address of the signal's number",
            make(&*io, CsFlags::WAIT, &[chunk]),
            Errno::EFAULT,
        )?;
    }
    Ok(())
}

fn number_of_chunks(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for flags in [CsFlags::SIGNAL, CsFlags::WAIT, CsFlags::COLLECTIVE_WAIT] {
        for chunks in [0, 2, 3] {
            invalid(
                &format!("{flags} with {chunks} chunks"),
                make(&*io, flags, &vec![on(HELD.0); chunks]),
            )?;
        }
    }
    Ok(())
}

fn no_queue(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for queue in [queue::COUNT, u32::MAX] {
        invalid(
            "a signal on a queue that is not there",
            make(&*io, CsFlags::SIGNAL, &[on(queue)]),
        )?;
    }
    Ok(())
}

/// The first and last queues of the NICs, and those of the management processor.
const WITHOUT: [u32; 3] = [156, 251, 260];

fn queue_without(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for queue in WITHOUT {
        for flags in [CsFlags::SIGNAL, CsFlags::WAIT] {
            invalid(
                &format!("{flags} on queue {queue}"),
                make(&*io, flags, &[on(queue)]),
            )?;
        }
    }
    Ok(())
}

fn collective(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for queue in [HELD.0, 8, 20, 252] {
        invalid(
            &format!("a collective wait on queue {queue}"),
            make(&*io, CsFlags::COLLECTIVE_WAIT, &[on(queue)]),
        )?;
    }
    Ok(())
}

fn reservation(io: &dyn KernelIo, count: u32, queue: u32) -> Result<(u32, u32), Error> {
    let answer = io
        .submit(&CsRequest::reserve_signals(count, QueueId(queue)))?
        .reservation();
    Ok((answer.handle, answer.count))
}

fn release_reservation(io: &dyn KernelIo, handle: u32) -> Result<CsAnswer, Error> {
    io.submit(&CsRequest::unreserve_signals(handle))
}

fn reserve(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let first = reservation(&*io, 10, HELD.0)?;
    equal("handle and count of 10 signals", first, (1, 11))?;
    let second = reservation(&*io, 5, HELD.0)?;
    equal("of 5 more", second, (2, 16))?;
    release_reservation(&*io, second.0)?;
    release_reservation(&*io, first.0)?;
    let signalled = signal(&*io, HELD)?;
    equal(
        "the count of the first signal after all reservations were released",
        signalled.sob_count_before_submission,
        1,
    )?;
    finish(&*io, signalled.seq)
}

fn reserve_too_many(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for count in [1 << 15, u32::MAX] {
        invalid(&format!("{count} signals"), reservation(&*io, count, HELD.0))?;
    }
    Ok(())
}

fn reserve_no_queue(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for queue in WITHOUT.into_iter().chain([queue::COUNT, u32::MAX]) {
        invalid(&format!("signals of queue {queue}"), reservation(&*io, 1, queue))?;
    }
    Ok(())
}

fn unreserve_unknown(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (handle, _) = reservation(&*io, 1, HELD.0)?;
    release_reservation(&*io, handle)?;
    for handle in [0, handle, 77] {
        invalid(
            "giving back what is not reserved",
            release_reservation(&*io, handle),
        )?;
    }
    Ok(())
}

fn unreserve_out_of_step(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (first, _) = reservation(&*io, 4, HELD.0)?;
    let (second, _) = reservation(&*io, 4, HELD.0)?;
    invalid(
        "giving back what others were reserved after",
        release_reservation(&*io, first),
    )?;
    release_reservation(&*io, second)?;
    release_reservation(&*io, first).map(drop)?;
    Ok(())
}

fn wait_unused_reservation(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let wait = |number| {
        let chunk = HlCsChunk {
            cb_handle: number,
            ..on(OTHER.0)
        };
        make(&*io, CsFlags::WAIT | CsFlags::ENCAP_SIGNALS, &[chunk])
    };
    equal("a wait where nothing is reserved", wait(u64::MAX)?.seq, NONE)?;
    let (handle, _) = reservation(&*io, 4, HELD.0)?;
    equal(
        "a wait for a submission that uses no reservation",
        wait(1)?.seq,
        NONE,
    )?;
    invalid("a wait for what no submission uses", wait(u64::MAX))?;
    release_reservation(&*io, handle).map(drop)?;
    Ok(())
}

fn in_stages(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    for more in [
        CsFlags::NONE,
        CsFlags::STAGED_SUBMISSION_FIRST,
        CsFlags::STAGED_SUBMISSION_LAST,
        CsFlags::STAGED_SUBMISSION_FIRST | CsFlags::ENCAP_SIGNALS,
    ] {
        refused(
            "a submission in stages",
            make(&*io, CsFlags::STAGED_SUBMISSION | more, &[buffer.chunk(HELD)]),
            Errno::EPERM,
        )?;
    }
    Ok(())
}

fn flush_pci(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let answer = io.submit(&CsRequest::flush_pci_hbw_writes())?;
    equal("the number of what is no submission", answer.seq, NONE)
}

/// Copies a byte in the restore phase to the source of a copy in the execution phase. Returns
/// whether the restore phase ran first.
fn restore(bench: &mut Bench, flags: CsFlags) -> Result<bool, Failure> {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    window.write(0, &[1; 64])?;
    window.write(4096, &[2; 64])?;
    let first = Buffer::new(&io, Program::new().copy(window.at(0), window.at(4096), 64))?;
    let second = Buffer::new(&io, Program::new().copy(window.at(8192), window.at(0), 64))?;
    let answer = io.submit(&CsRequest {
        execute: &[second.chunk(queue::PDMA_1_0)],
        restore: &[first.chunk(HELD)],
        flags,
        ..CsRequest::default()
    })?;
    finish(&*io, answer.seq)?;
    Ok(window.read(8192, 1)? == [2])
}

fn restore_forced(bench: &mut Bench) -> Verdict {
    equal(
        "what was restored comes first",
        restore(bench, CsFlags::FORCE_RESTORE)?,
        true,
    )
}

fn restore_ignored(bench: &mut Bench) -> Verdict {
    equal(
        "what is to be restored is left out",
        restore(bench, CsFlags::NONE)?,
        false,
    )
}
