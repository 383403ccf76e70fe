//! Waits: `HL_IOCTL_WAIT_CS`.

use std::time::Duration;

use gaudi_seam::{CsSeq, Errno, QueueId, SharedIo, WaitAnswer, WaitStatus};
use gaudi_spec::gaudi2::queue;
use gaudi_uapi::cs::CsFlags;

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Buffer, Gate, LONG, Program, finish, submit_with};
use crate::verdict::{Failure, Verdict, equal, holds, invalid, refused};

cases! {
    "wait.future-number", "common/context.c:hl_ctx_get_fence_locked" => future;
    "wait.number-zero", "common/command_submission.c:hl_wait_for_fence" => number_zero;
    "wait.done-is-told-again", "common/command_submission.c:hl_wait_for_fence" => done_again;
    "wait.done-is-gone-after-64", "common/context.c:hl_ctx_get_fence_locked" => gone_after_64;
    "wait.poll-while-running", "common/command_submission.c:hl_wait_for_fence" => poll_running;
    "wait.poll-when-done", "common/command_submission.c:hl_wait_for_fence" => poll_done;
    "wait.time-runs-out", "common/command_submission.c:hl_wait_for_fence" => time_runs_out [Clock];
    "wait.longest-timeout", "common/command_submission.c:hl_wait_for_fence" => longest [Clock];
    "wait.timestamp", "common/command_submission.c:hl_wait_for_fence" => timestamp [Clock];
    "wait.timestamps-are-in-order", "common/command_submission.c:cs_do_release" => timestamps_in_order [Clock];
    "wait.timestamp-not-asked-for", "common/command_submission.c:hl_cs_wait_ioctl" => no_timestamp;
    "wait.timestamp-outlives-record", "common/command_submission.c:hl_wait_for_fence" => timestamp_outlives [Clock];
    "wait.from-another-thread", "common/command_submission.c:hl_wait_for_fence" => other_thread [Clock];
    "wait.any-of-several", "common/command_submission.c:hl_multi_cs_wait_ioctl" => any_of_several;
}

const Q: QueueId = queue::PDMA_0_0;

fn nop(io: &SharedIo) -> Result<Buffer, Failure> {
    Buffer::new(io, Program::new().nop())
}

fn future(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let last = buffer.submit(Q)?;
    finish(&*io, last)?;
    for number in [last.0 + 1, last.0 + 1000, u64::MAX] {
        invalid(
            &format!("waiting for {number} when {} is the last", last.0),
            io.wait_cs(CsSeq(number), Duration::ZERO),
        )?;
    }
    Ok(())
}

fn number_zero(bench: &mut Bench) -> Verdict {
    let answer = bench.io()?.wait_cs(CsSeq(0), LONG)?;
    let expected = WaitAnswer {
        status: WaitStatus::Completed,
        gone: true,
        timestamp_ns: None,
    };
    equal("waiting for number 0, which no submission has", answer, expected)
}

fn done_again(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let seq = buffer.submit(Q)?;
    for time in ["first", "second", "third"] {
        let answer = io.wait_cs(seq, LONG)?;
        let seen = (answer.status, answer.gone);
        equal(
            &format!("the {time} wait for what is done"),
            seen,
            (WaitStatus::Completed, false),
        )?;
    }
    Ok(())
}

/// Runs `count` submissions and waits for each.
fn pass(io: &SharedIo, buffer: &Buffer, count: usize) -> Verdict {
    (0..count).try_for_each(|_| finish(&**io, buffer.submit(Q)?))
}

fn gone_after_64(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let seq = buffer.submit(Q)?;
    finish(&*io, seq)?;
    pass(&io, &buffer, 63)?;
    let answer = io.wait_cs(seq, LONG)?;
    equal(
        "whether its record was removed after 63 more submissions",
        answer.gone,
        false,
    )?;
    pass(&io, &buffer, 1)?;
    let answer = io.wait_cs(seq, LONG)?;
    let seen = (answer.status, answer.gone);
    equal(
        "the wait for it after 64 more",
        seen,
        (WaitStatus::Completed, true),
    )
}

fn poll_running(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let gate = Gate::shut(&io, Q)?;
    for _ in 0..20 {
        let answer = io.wait_cs(gate.seq(), Duration::ZERO)?;
        equal("a poll while it runs", answer.status, WaitStatus::Busy)?;
    }
    gate.open()
}

fn poll_done(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let seq = buffer.submit(Q)?;
    finish(&*io, seq)?;
    let answer = io.wait_cs(seq, Duration::ZERO)?;
    equal("a poll when it is done", answer.status, WaitStatus::Completed)
}

fn time_runs_out(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let gate = Gate::shut(&io, Q)?;
    let answer = io.wait_cs(gate.seq(), Duration::from_millis(20))?;
    let busy = WaitAnswer {
        status: WaitStatus::Busy,
        gone: false,
        timestamp_ns: None,
    };
    equal("a wait of 20 ms for what is held up", answer, busy)?;
    gate.open()
}

fn longest(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let seq = buffer.submit(Q)?;
    let answer = io.wait_cs(seq, Duration::MAX)?;
    equal(
        "a wait without end for what is done",
        answer.status,
        WaitStatus::Completed,
    )
}

fn stamped(io: &SharedIo, buffer: &Buffer) -> Result<CsSeq, Failure> {
    Ok(submit_with(&**io, &[buffer.chunk(Q)], CsFlags::TIMESTAMP, None)?)
}

fn timestamp(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let seq = stamped(&io, &buffer)?;
    let answer = io.wait_cs(seq, LONG)?;
    equal(
        "the wait",
        (answer.status, answer.gone),
        (WaitStatus::Completed, false),
    )?;
    holds(
        "the wait returns the time of completion",
        answer.timestamp_ns.is_some_and(|ns| ns > 0),
        answer,
    )?;
    equal(
        "the time that a second wait returns",
        io.wait_cs(seq, LONG)?.timestamp_ns,
        answer.timestamp_ns,
    )
}

fn timestamps_in_order(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let mut last = 0;
    for _ in 0..10 {
        let seq = stamped(&io, &buffer)?;
        let seen = io.wait_cs(seq, LONG)?.timestamp_ns.unwrap_or(0);
        holds(
            "a later submission of a stream has no earlier time",
            seen >= last,
            (last, seen),
        )?;
        last = seen;
    }
    Ok(())
}

fn no_timestamp(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let seq = buffer.submit(Q)?;
    equal(
        "the time of a submission that asked for none",
        io.wait_cs(seq, LONG)?.timestamp_ns,
        None,
    )
}

fn timestamp_outlives(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let seq = stamped(&io, &buffer)?;
    let first = io.wait_cs(seq, LONG)?.timestamp_ns;
    pass(&io, &buffer, 64)?;
    let answer = io.wait_cs(seq, LONG)?;
    equal(
        "the time after 64 more",
        (answer.gone, answer.timestamp_ns),
        (false, first),
    )?;
    let answer = io.wait_cs(seq, LONG)?;
    equal(
        "the time of a second wait, which only the first one returns",
        (answer.gone, answer.timestamp_ns),
        (true, None),
    )
}

fn other_thread(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let gate = Gate::shut(&io, Q)?;
    let seq = gate.seq();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| io.wait_cs(seq, Duration::from_secs(5)));
        let opened = gate.open();
        match waiter.join() {
            // On a virtual clock, the waiter's own wait may advance the time.
            Ok(answer) => answer.map(drop)?,
            Err(_) => return Err(Failure::new("a waiter in another thread", "an answer", "a panic")),
        }
        opened
    })?;
    finish(&*io, seq)
}

fn any_of_several(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let seq = buffer.submit(Q)?;
    finish(&*io, seq)?;
    for list in [&[][..], &[seq], &[seq, CsSeq(seq.0 + 1)]] {
        refused(
            &format!("a wait for any of {} submissions", list.len()),
            io.wait_multi_cs(list, LONG),
            Errno::EPERM,
        )?;
    }
    Ok(())
}
