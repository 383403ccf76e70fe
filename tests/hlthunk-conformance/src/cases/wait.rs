//! Waits for submissions.

use gaudi_conformance::{Failure, Program, Verdict, equal, holds};
use gaudi_uapi::cs::CsFlags;
use nix::errno::Errno;

use crate::answer::{fails, ok, refused, rejected};
use crate::bench::Bench;
use crate::card::{BUSY, Buffer, COMPLETED, Card, Gate, LONG, Q, address_of};
use crate::case::cases;
use crate::types::{WaitMultiCsIn, WaitMultiCsOut};

cases! { "wait":
    "done-is-completed", "client:hl-thunk/tests/hlthunk_tests.c:hltests_wait_for_cs" => done;
    "done-is-completed-again", "common/command_submission.c:hl_wait_for_fence" => done_again;
    "poll-of-done-is-completed", "common/command_submission.c:hl_wait_for_fence" => poll_done;
    "poll-while-running-is-busy", "client:hl-thunk/tests/hlthunk_tests.c:hltests_wait_for_cs" => poll_running;
    "timeout-is-busy", "common/command_submission.c:hl_wait_for_fence" => timeout;
    "longest-timeout", "common/command_submission.c:hl_wait_for_fence" => longest;
    "long-gone-is-completed", "client:hl-thunk/tests/command_submission.c:test_wait_for_cs_with_timestamp_status_gone" => gone;
    "number-zero-is-completed", "common/command_submission.c:hl_wait_for_fence" => zero;
    "future-number-is-invalid", "common/context.c:hl_ctx_get_fence_locked" => future;
    "null-status-is-invalid", "hlthunk.h:hlthunk_wait_for_cs" => null_status;
    "from-another-thread", "common/command_submission.c:hl_wait_for_fence" => other_thread;
    "two-threads-wait-for-one", "common/command_submission.c:hl_wait_for_fence" => two_threads;
    "foreign-descriptor-is-enotty", "hlthunk.h:hlthunk_wait_for_cs" => on_foreign;
    "refused-takes-a-number", "common/command_submission.c:allocate_cs" => refused_number;
    "timestamp.is-the-completion's", "client:hl-thunk/tests/command_submission.c:test_wait_for_cs_with_timestamp" => timestamp;
    "timestamp.is-ordered", "common/command_submission.c:cs_do_release" => timestamp_ordered;
    "timestamp.not-asked-for-is-untouched", "common/command_submission.c:hl_cs_wait_ioctl" => timestamp_none;
    "timestamp.of-busy-is-untouched", "common/command_submission.c:hl_cs_wait_ioctl" => timestamp_busy;
    "timestamp.null-is-invalid", "hlthunk.h:hlthunk_wait_for_cs_with_timestamp" => timestamp_null;
    "multi.is-not-permitted", "common/command_submission.c:hl_multi_cs_wait_ioctl" => multi;
    "multi.of-unmapped-numbers-is-not-permitted", "common/command_submission.c:hl_multi_cs_wait_ioctl" => multi_fault;
    "multi.null-is-invalid", "hlthunk.h:hlthunk_wait_for_multi_cs" => multi_null;
    "multi.timestamp-is-cleared", "hlthunk.h:hlthunk_wait_for_multi_cs_with_timestamp" => multi_timestamp;
}

fn nop(card: Card) -> Result<Buffer, Failure> {
    Buffer::new(card, Program::new().nop())
}

fn ended(card: Card) -> Result<u64, Failure> {
    let buffer = nop(card)?;
    let seq = buffer.submit(Q)?;
    card.finish(seq)?;
    Ok(seq)
}

fn done(bench: &mut Bench) -> Verdict {
    ended(bench.card()?).map(drop)
}

fn done_again(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let seq = ended(card)?;
    for _ in 0..3 {
        card.finish(seq)?;
    }
    Ok(())
}

fn poll_done(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let seq = ended(card)?;
    equal("a poll", card.wait(seq, 0)?, COMPLETED)
}

fn poll_running(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    for _ in 0..20 {
        equal("a poll while it runs", card.wait(gate.seq(), 0)?, BUSY)?;
    }
    gate.open()
}

fn timeout(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    equal("a wait of 20 ms", card.wait(gate.seq(), 20_000)?, BUSY)?;
    gate.open()
}

fn longest(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let seq = ended(card)?;
    equal(
        "an infinite wait for a completed submission",
        card.wait(seq, u64::MAX)?,
        COMPLETED,
    )
}

fn gone(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let seq = ended(card)?;
    let buffer = nop(card)?;
    for _ in 0..64 {
        card.finish(buffer.submit(Q)?)?;
    }
    equal(
        "a wait for the 65th last submission",
        card.wait(seq, LONG)?,
        COMPLETED,
    )
}

fn zero(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    equal("a wait for sequence number 0", card.wait(0, LONG)?, COMPLETED)
}

fn future(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let last = ended(card)?;
    for number in [last + 1, last + 1000, u64::MAX] {
        let mut status = 0;
        let code = card.hl.wait_for_cs(card.fd, number, 0, Some(&mut status));
        refused(
            &format!("a wait for {number} when {last} is the last"),
            code,
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn null_status(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    rejected(
        "a wait with a NULL status",
        card.hl.wait_for_cs(card.fd, 1, 0, None),
        Errno::EINVAL,
    )
}

fn other_thread(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    let seq = gate.seq();
    let waited = std::thread::scope(|scope| {
        let waiter = scope.spawn(move || card.wait(seq, LONG));
        let opened = gate.open();
        (opened, waiter.join())
    });
    waited.0?;
    match waited.1 {
        Ok(status) => equal("the waiter's status", status?, COMPLETED),
        Err(_) => Err(Failure::new("the waiter", "an end", "a panic")),
    }
}

fn two_threads(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    let seq = gate.seq();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..2)
            .map(|_| scope.spawn(move || card.wait(seq, LONG)))
            .collect();
        gate.open()?;
        for waiter in waiters {
            let status = waiter
                .join()
                .map_err(|_| Failure::new("a waiter", "an end", "a panic"))?;
            equal("a waiter's status", status?, COMPLETED)?;
        }
        Ok(())
    })
}

fn on_foreign(bench: &mut Bench) -> Verdict {
    use std::os::fd::AsRawFd as _;
    let file = super::open::foreign()?;
    let (hl, fd) = (bench.hl, file.as_raw_fd());
    let (mut status, mut time) = (0, 0);
    refused(
        "a wait",
        hl.wait_for_cs(fd, 1, 0, Some(&mut status)),
        Errno::ENOTTY,
    )?;
    let code = hl.wait_for_cs_with_timestamp(fd, 1, 0, Some(&mut status), Some(&mut time));
    refused("a wait with a timestamp", code, Errno::ENOTTY)?;
    let mut out = WaitMultiCsOut::default();
    let code = hl.wait_for_multi_cs(fd, Some(&WaitMultiCsIn::default()), Some(&mut out));
    refused("a multi-CS wait", code, Errno::ENOTTY)?;
    refused(
        "a wait on descriptor -1",
        hl.wait_for_cs(-1, 1, 0, Some(&mut status)),
        Errno::EBADF,
    )
}

fn refused_number(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let first = ended(card)?;
    let nowhere = gaudi_uapi::cs::HlCsChunk::user(gaudi_spec::gaudi2::queue::COUNT, 0, 8);
    refused(
        "no such queue",
        card.try_submit(&[nowhere], CsFlags::NONE).0,
        Errno::EINVAL,
    )?;
    equal("the sequence number after a failure", ended(card)?, first + 2)?;
    equal(
        "a wait for the failed submission",
        card.wait(first + 1, 0)?,
        COMPLETED,
    )
}

fn stamped(card: Card, flags: CsFlags) -> Result<(u32, u64), Failure> {
    let buffer = nop(card)?;
    let (code, out) = card.try_submit(&[buffer.chunk(Q)], flags);
    ok("the submission", code)?;
    let (mut status, mut time) = (u32::MAX, 7);
    let code = card
        .hl
        .wait_for_cs_with_timestamp(card.fd, out.seq, LONG, Some(&mut status), Some(&mut time));
    ok("hlthunk_wait_for_cs_with_timestamp", code)?;
    Ok((status, time))
}

fn timestamp(bench: &mut Bench) -> Verdict {
    let (status, time) = stamped(bench.card()?, CsFlags::TIMESTAMP)?;
    equal("the status", status, COMPLETED)?;
    holds("the timestamp is written", time > 7, time)
}

fn timestamp_ordered(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut last = 0;
    for _ in 0..10 {
        let (_, time) = stamped(card, CsFlags::TIMESTAMP)?;
        holds("timestamps are ordered", time >= last, (last, time))?;
        last = time;
    }
    Ok(())
}

fn timestamp_none(bench: &mut Bench) -> Verdict {
    equal(
        "status and time",
        stamped(bench.card()?, CsFlags::NONE)?,
        (COMPLETED, 7),
    )
}

fn timestamp_busy(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut_with(card, CsFlags::TIMESTAMP)?;
    let (mut status, mut time) = (u32::MAX, 7);
    let code = card
        .hl
        .wait_for_cs_with_timestamp(card.fd, gate.seq(), 0, Some(&mut status), Some(&mut time));
    gate.open()?;
    ok("the poll", code)?;
    equal("status and time", (status, time), (BUSY, 7))
}

fn timestamp_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (hl, fd, mut status, mut time) = (card.hl, card.fd, 0, 0);
    rejected(
        "a NULL status",
        hl.wait_for_cs_with_timestamp(fd, 0, 0, None, Some(&mut time)),
        Errno::EINVAL,
    )?;
    rejected(
        "a NULL timestamp",
        hl.wait_for_cs_with_timestamp(fd, 0, 0, Some(&mut status), None),
        Errno::EINVAL,
    )
}

fn several(numbers: &[u64]) -> WaitMultiCsIn {
    WaitMultiCsIn {
        seq: address_of(numbers),
        timeout_us: LONG,
        seq_len: numbers.len() as u32,
    }
}

fn multi(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let seq = ended(card)?;
    for numbers in [&[][..], &[seq], &[seq, seq + 1]] {
        let mut out = WaitMultiCsOut {
            seq_set: 7,
            completed: 8,
            ..WaitMultiCsOut::default()
        };
        let code = card
            .hl
            .wait_for_multi_cs(card.fd, Some(&several(numbers)), Some(&mut out));
        refused(
            &format!("a wait for any of {}", numbers.len()),
            code,
            Errno::EPERM,
        )?;
        equal(
            "the completion mask after a failure",
            (out.seq_set, out.completed),
            (7, 8),
        )?;
    }
    Ok(())
}

fn multi_fault(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let input = WaitMultiCsIn {
        seq: 16,
        timeout_us: 0,
        seq_len: 2,
    };
    let code = card
        .hl
        .wait_for_multi_cs(card.fd, Some(&input), Some(&mut WaitMultiCsOut::default()));
    refused("numbers at an unmapped address", code, Errno::EPERM)
}

fn multi_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (hl, fd) = (card.hl, card.fd);
    let (input, mut out, mut time) = (WaitMultiCsIn::default(), WaitMultiCsOut::default(), 0);
    rejected(
        "a NULL input",
        hl.wait_for_multi_cs(fd, None, Some(&mut out)),
        Errno::EINVAL,
    )?;
    rejected(
        "a NULL output",
        hl.wait_for_multi_cs(fd, Some(&input), None),
        Errno::EINVAL,
    )?;
    let code = hl.wait_for_multi_cs_with_timestamp(fd, Some(&input), Some(&mut out), None);
    rejected("a NULL timestamp", code, Errno::EINVAL)?;
    fails(
        "a NULL input, with timestamp",
        hl.wait_for_multi_cs_with_timestamp(fd, None, Some(&mut out), Some(&mut time)),
    )
}

fn multi_timestamp(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut time = 7;
    let numbers = [1];
    let code = card.hl.wait_for_multi_cs_with_timestamp(
        card.fd,
        Some(&several(&numbers)),
        Some(&mut WaitMultiCsOut::default()),
        Some(&mut time),
    );
    refused("a multi-CS wait with a timestamp", code, Errno::EPERM)?;
    equal("the timestamp after a failure", time, 0)
}
