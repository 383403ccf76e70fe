//! Waiting: `HL_IOCTL_WAIT_CS`.

use std::time::Duration;

use gaudi_seam::{CsSeq, Errno, QueueId, SharedIo, WaitAnswer, WaitStatus};
use gaudi_spec::gaudi2::queue;
use gaudi_uapi::cs::CsFlags;

use crate::bench::Bench;
use crate::case::{Case, Failure, Tag, Verdict, equal, holds, refused};
use crate::rig::{Buffer, Gate, LONG, Program, finish, submit_with};

const CLOCK: &[Tag] = &[Tag::Clock];

pub(crate) static CASES: &[Case] = &[
    Case::gaudi2("wait.future-number", "common/context.c:348", future),
    Case::gaudi2(
        "wait.number-zero",
        "common/command_submission.c:2678",
        number_zero,
    ),
    Case::gaudi2(
        "wait.done-is-told-again",
        "common/command_submission.c:2687",
        done_again,
    ),
    Case::gaudi2(
        "wait.done-is-gone-after-64",
        "common/context.c:351",
        gone_after_64,
    ),
    Case::gaudi2(
        "wait.poll-while-running",
        "common/command_submission.c:2687",
        poll_running,
    ),
    Case::gaudi2(
        "wait.poll-when-done",
        "common/command_submission.c:2687",
        poll_done,
    ),
    Case::gaudi2(
        "wait.time-runs-out",
        "common/command_submission.c:2707",
        time_runs_out,
    )
    .tagged(CLOCK),
    Case::gaudi2(
        "wait.longest-timeout",
        "common/command_submission.c:2691",
        longest,
    )
    .tagged(CLOCK),
    Case::gaudi2("wait.timestamp", "common/command_submission.c:2705", timestamp).tagged(CLOCK),
    Case::gaudi2(
        "wait.timestamps-are-in-order",
        "common/command_submission.c:798",
        timestamps_in_order,
    )
    .tagged(CLOCK),
    Case::gaudi2(
        "wait.timestamp-not-asked-for",
        "common/command_submission.c:3193",
        no_timestamp,
    ),
    Case::gaudi2(
        "wait.timestamp-outlives-record",
        "common/command_submission.c:2674",
        timestamp_outlives,
    )
    .tagged(CLOCK),
    Case::gaudi2(
        "wait.from-another-thread",
        "common/command_submission.c:2694",
        other_thread,
    )
    .tagged(CLOCK),
    Case::gaudi2(
        "wait.any-of-several",
        "common/command_submission.c:3025",
        any_of_several,
    ),
];

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
        refused(
            &format!("waiting for {number} when {} is the last", last.0),
            io.wait_cs(CsSeq(number), Duration::ZERO),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn number_zero(bench: &mut Bench) -> Verdict {
    let answer = bench.io()?.wait_cs(CsSeq(0), LONG)?;
    let gone = WaitAnswer {
        status: WaitStatus::Completed,
        gone: true,
        timestamp_ns: None,
    };
    equal("waiting for number 0, which no submission has", answer, gone)
}

fn done_again(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = nop(&io)?;
    let seq = buffer.submit(Q)?;
    for time in ["first", "second", "third"] {
        let answer = io.wait_cs(seq, LONG)?;
        let told = (answer.status, answer.gone);
        equal(
            &format!("the {time} wait for what is done"),
            told,
            (WaitStatus::Completed, false),
        )?;
    }
    Ok(())
}

/// Runs so many submissions, each to its end.
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
    equal("whether it is gone after 63 more", answer.gone, false)?;
    pass(&io, &buffer, 1)?;
    let answer = io.wait_cs(seq, LONG)?;
    let told = (answer.status, answer.gone);
    equal(
        "the wait for it after 64 more",
        told,
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
        "the time of completion is told",
        answer.timestamp_ns.is_some_and(|ns| ns > 0),
        answer,
    )?;
    equal(
        "the time told again",
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
    let told = io.wait_cs(seq, LONG)?.timestamp_ns;
    pass(&io, &buffer, 64)?;
    let answer = io.wait_cs(seq, LONG)?;
    equal(
        "the time after 64 more",
        (answer.gone, answer.timestamp_ns),
        (false, told),
    )?;
    let answer = io.wait_cs(seq, LONG)?;
    equal(
        "the time asked for again, which is told once",
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
            // On a virtual clock the waiter's own wait may be what lets the time pass.
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
