//! Signals between submissions.

use gaudi_conformance::{Failure, Verdict, equal};
use gaudi_spec::gaudi2::queue;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use nix::errno::Errno;

use crate::answer::{fails, ok, refused, rejected};
use crate::bench::Bench;
use crate::card::{BUSY, Buffer, Card, Gate, Q, address_of, chunk_on};
use crate::case::cases;
use crate::types::{
    CsOut, ReserveSigHandle, SigResIn, SigResOut, SignalIn, SignalOut, WaitForSignalData, WaitIn, WaitOut,
};

cases! { "signal":
    "counts-up", "common/hw_queue.c:init_signal_cs" => counts;
    "with-timeout", "hlthunk.h:hlthunk_signal_submission_timeout" => with_timeout;
    "holds-a-waiter", "client:hl-thunk/tests/sync_manager.c:test_signal_wait" => holds_waiter;
    "wait-with-timeout", "hlthunk.h:hlthunk_wait_for_signal_timeout" => wait_with_timeout;
    "wait-for-done-has-no-number", "common/command_submission.c:cs_ioctl_signal_wait" => wait_done;
    "wait-for-other-submission-is-invalid", "common/command_submission.c:cs_ioctl_signal_wait" => wait_other;
    "wait-for-future-is-invalid", "common/context.c:hl_ctx_get_fence_locked" => wait_future;
    "wait-for-several-is-invalid", "hlthunk.h:hlthunk_wait_in" => wait_several;
    "wait-for-unmapped-number-is-a-fault", "common/command_submission.c:cs_ioctl_extract_signal_seq" => wait_fault;
    "wait-with-null-data-fails", "hlthunk.h:hlthunk_wait_for_signal" => wait_null_data;
    "unknown-queue-is-invalid", "common/command_submission.c:cs_ioctl_signal_wait" => unknown_queue;
    "queue-without-signals-is-invalid", "common/command_submission.c:cs_ioctl_signal_wait" => queue_without;
    "collective-is-invalid", "common/command_submission.c:cs_ioctl_signal_wait" => collective;
    "reserve-and-release", "common/command_submission.c:cs_ioctl_reserve_signals" => reserve;
    "reserve-too-many-is-invalid", "common/command_submission.c:cs_ioctl_reserve_signals" => reserve_too_many;
    "reserve-of-no-queue-is-invalid", "common/command_submission.c:cs_ioctl_reserve_signals" => reserve_no_queue;
    "release-of-unknown-is-invalid", "common/command_submission.c:cs_ioctl_unreserve_signals" => release_unknown;
    "wait-for-unused-reservation", "common/command_submission.c:cs_ioctl_signal_wait" => wait_unused;
    "null-arguments-fail", "hlthunk.h:hlthunk_signal_submission" => null_arguments;
    "foreign-descriptor-is-enotty", "hlthunk.h:hlthunk_signal_submission" => on_foreign;
}

/// Not a sequence number of any submission.
const NONE: u64 = u64::MAX;
const WAITER: u32 = queue::PDMA_0_1.0;

fn on(queue: u32) -> SignalIn {
    SignalIn {
        queue_index: queue,
        ..SignalIn::default()
    }
}

fn try_signal(card: Card, queue: u32) -> (i32, SignalOut) {
    let mut out = SignalOut::default();
    (
        card.hl
            .signal_submission(card.fd, Some(&on(queue)), Some(&mut out)),
        out,
    )
}

fn signal(card: Card) -> Result<SignalOut, Failure> {
    let (code, out) = try_signal(card, Q.0);
    ok("hlthunk_signal_submission", code)?;
    Ok(out)
}

/// Calls `wait` with the input struct of a wait for one signal.
fn wait_data(data: &WaitForSignalData, wait: impl FnOnce(&WaitIn) -> i32) -> i32 {
    wait(&WaitIn {
        wait_for_signal: address_of(data),
        num_wait_for_signal: 1,
        ..WaitIn::default()
    })
}

fn data_of(number: &u64, queue: u32) -> WaitForSignalData {
    WaitForSignalData {
        signal_seq: address_of(number),
        signal_seq_nr: 1,
        queue_index: queue,
        ..WaitForSignalData::default()
    }
}

fn try_wait(card: Card, number: u64) -> (i32, WaitOut) {
    let mut out = WaitOut::default();
    let data = data_of(&number, WAITER);
    let code = wait_data(&data, |input| {
        card.hl.wait_for_signal(card.fd, Some(input), Some(&mut out))
    });
    (code, out)
}

fn wait(card: Card, number: u64) -> Result<u64, Failure> {
    let (code, out) = try_wait(card, number);
    ok("hlthunk_wait_for_signal", code)?;
    Ok(out.seq)
}

fn counts(bench: &mut Bench) -> Verdict {
    let card = bench.reopen()?;
    for nth in 1..=5 {
        let out = signal(card)?;
        equal("the count", out.sob_count_before_submission, nth)?;
        equal(
            "the sync object's offset, which this chip does not report",
            out.sob_base_addr_offset,
            0,
        )?;
        equal("the status", out.status, 0)?;
        card.finish(out.seq)?;
    }
    Ok(())
}

fn with_timeout(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut out = SignalOut::default();
    let code = card
        .hl
        .signal_submission_timeout(card.fd, Some(&on(Q.0)), Some(&mut out), 10);
    ok("hlthunk_signal_submission_timeout", code)?;
    card.finish(out.seq)
}

fn holds_waiter(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    let signalled = signal(card)?.seq;
    let waiting = wait(card, signalled)?;
    for _ in 0..20 {
        equal(
            "the waiting submission before the signal",
            card.wait(waiting, 0)?,
            BUSY,
        )?;
    }
    gate.open()?;
    card.finish(signalled)?;
    card.finish(waiting)
}

fn wait_with_timeout(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    let number = signal(card)?.seq;
    let mut out = WaitOut::default();
    let data = data_of(&number, WAITER);
    let code = wait_data(&data, |input| {
        card.hl
            .wait_for_signal_timeout(card.fd, Some(input), Some(&mut out), 20)
    });
    let accepted = ok("hlthunk_wait_for_signal_timeout", code);
    gate.open()?;
    accepted?;
    card.finish(number)?;
    card.finish(out.seq)
}

fn wait_done(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let number = signal(card)?.seq;
    card.finish(number)?;
    equal(
        "the sequence number of a wait for a completed signal",
        wait(card, number)?,
        NONE,
    )?;
    let code = card.hl.wait_for_cs(card.fd, NONE, 0, Some(&mut 0));
    refused("waiting for that number", code, Errno::EINVAL)
}

fn wait_other(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = Buffer::new(card, gaudi_conformance::Program::new().nop())?;
    let seq = buffer.submit(Q)?;
    card.finish(seq)?;
    refused(
        "a wait for a submission that is not a signal",
        try_wait(card, seq).0,
        Errno::EINVAL,
    )
}

fn wait_future(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let last = signal(card)?.seq;
    card.finish(last)?;
    for number in [last + 1, u64::MAX] {
        refused(
            "a wait for a future signal",
            try_wait(card, number).0,
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn wait_several(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let number = 1;
    let mut out = WaitOut::default();
    for count in [0, 2, u32::MAX] {
        let data = WaitForSignalData {
            signal_seq_nr: count,
            ..data_of(&number, WAITER)
        };
        let code = wait_data(&data, |input| {
            card.hl.wait_for_signal(card.fd, Some(input), Some(&mut out))
        });
        rejected(&format!("a wait for {count} numbers"), code, Errno::EINVAL)?;
        let data = data_of(&number, WAITER);
        let code = wait_data(&data, |input| {
            let input = WaitIn {
                num_wait_for_signal: count,
                ..*input
            };
            card.hl.wait_for_signal(card.fd, Some(&input), Some(&mut out))
        });
        rejected(&format!("a wait for {count} signals"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn wait_fault(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut out = WaitOut::default();
    for address in [0, 16, u64::MAX - 7] {
        let data = WaitForSignalData {
            signal_seq: address,
            signal_seq_nr: 1,
            queue_index: WAITER,
            ..WaitForSignalData::default()
        };
        let code = wait_data(&data, |input| {
            card.hl.wait_for_signal(card.fd, Some(input), Some(&mut out))
        });
        refused(&format!("a sequence number at {address:#x}"), code, Errno::EFAULT)?;
    }
    Ok(())
}

fn wait_null_data(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let input = WaitIn {
        num_wait_for_signal: 1,
        ..WaitIn::default()
    };
    let (hl, fd, mut out) = (card.hl, card.fd, WaitOut::default());
    fails("wait", hl.wait_for_signal(fd, Some(&input), Some(&mut out)))?;
    fails(
        "timed",
        hl.wait_for_signal_timeout(fd, Some(&input), Some(&mut out), 1),
    )?;
    fails(
        "collective",
        hl.wait_for_collective_signal(fd, Some(&input), Some(&mut out)),
    )?;
    fails(
        "reserved",
        hl.wait_for_reserved_encaps_signals(fd, Some(&input), Some(&mut out)),
    )
}

fn unknown_queue(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for queue in [queue::COUNT, u32::MAX] {
        refused(
            &format!("a signal on queue {queue}"),
            try_signal(card, queue).0,
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

/// Queues without a sync object: the first and last NIC queue, and the management processor's.
const WITHOUT: [u32; 3] = [156, 251, 260];

fn queue_without(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for queue in WITHOUT {
        refused(
            &format!("a signal on queue {queue}"),
            try_signal(card, queue).0,
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn collective(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let number = 1;
    let mut out = WaitOut::default();
    for queue in [Q.0, 8, 20] {
        let data = data_of(&number, queue);
        let (hl, fd) = (card.hl, card.fd);
        let code = wait_data(&data, |input| {
            hl.wait_for_collective_signal(fd, Some(input), Some(&mut out))
        });
        refused(
            &format!("a collective wait on queue {queue}"),
            code,
            Errno::EINVAL,
        )?;
        let code = wait_data(&data, |input| {
            hl.wait_for_collective_signal_timeout(fd, Some(input), Some(&mut out), 1)
        });
        refused("a collective wait with a timeout", code, Errno::EINVAL)?;
        let code = wait_data(&data, |input| {
            hl.wait_for_reserved_encaps_collective_signals(fd, Some(input), Some(&mut out))
        });
        fails("a collective wait for reserved signals", code)?;
    }
    Ok(())
}

fn try_reserve(card: Card, queue: u32, count: u32) -> (i32, SigResOut) {
    let input = SigResIn {
        queue_index: queue,
        count,
    };
    let mut out = SigResOut::default();
    (
        card.hl
            .reserve_encaps_signals(card.fd, Some(&input), Some(&mut out)),
        out,
    )
}

fn reserved(card: Card, count: u32) -> Result<ReserveSigHandle, Failure> {
    let (code, out) = try_reserve(card, Q.0, count);
    ok("hlthunk_reserve_encaps_signals", code)?;
    Ok(out.handle)
}

fn release(card: Card, handle: &ReserveSigHandle) -> i32 {
    card.hl
        .unreserve_encaps_signals(card.fd, Some(handle), Some(&mut 7))
}

fn reserve(bench: &mut Bench) -> Verdict {
    let card = bench.reopen()?;
    let first = reserved(card, 10)?;
    equal("id and count of 10 signals", (first.id, first.count), (1, 11))?;
    let second = reserved(card, 5)?;
    equal("of 5 more", (second.id, second.count), (2, 16))?;
    refused(
        "releasing the first before the second",
        release(card, &first),
        Errno::EINVAL,
    )?;
    ok("releasing the second", release(card, &second))?;
    ok("releasing the first", release(card, &first))?;
    let out = signal(card)?;
    equal("the count of the next signal", out.sob_count_before_submission, 1)?;
    card.finish(out.seq)
}

fn reserve_too_many(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for count in [1 << 15, u32::MAX] {
        refused(
            &format!("{count} signals"),
            try_reserve(card, Q.0, count).0,
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn reserve_no_queue(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for queue in WITHOUT.into_iter().chain([queue::COUNT, u32::MAX]) {
        refused(
            &format!("signals of queue {queue}"),
            try_reserve(card, queue, 1).0,
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn release_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for id in [0, 77, u32::MAX] {
        let handle = ReserveSigHandle {
            id,
            ..ReserveSigHandle::default()
        };
        refused(&format!("releasing {id}"), release(card, &handle), Errno::EINVAL)?;
    }
    Ok(())
}

fn wait_unused(bench: &mut Bench) -> Verdict {
    let card = bench.reopen()?;
    let try_wait = |number| {
        let data = WaitForSignalData {
            signal_seq: number,
            signal_seq_nr: 1,
            queue_index: WAITER,
            ..WaitForSignalData::default()
        };
        let mut out = WaitOut::default();
        let (hl, fd) = (card.hl, card.fd);
        let code = wait_data(&data, |input| {
            hl.wait_for_reserved_encaps_signals(fd, Some(input), Some(&mut out))
        });
        (code, out.seq)
    };
    let (code, seq) = try_wait(u64::MAX);
    ok("a wait without a reservation", code)?;
    equal("the sequence number without a reservation", seq, NONE)?;
    let handle = reserved(card, 4)?;
    let refusal = refused(
        "a wait for an unused reservation",
        try_wait(u64::MAX).0,
        Errno::EINVAL,
    );
    ok("the release", release(card, &handle))?;
    refusal
}

fn null_arguments(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (hl, fd) = (card.hl, card.fd);
    let mut out = SignalOut::default();
    fails(
        "a signal without input",
        hl.signal_submission(fd, None, Some(&mut out)),
    )?;
    fails(
        "a signal without output",
        hl.signal_submission(fd, Some(&on(Q.0)), None),
    )?;
    fails(
        "a signal with timeout, without input",
        hl.signal_submission_timeout(fd, None, Some(&mut out), 1),
    )?;
    fails(
        "a signal with timeout, without output",
        hl.signal_submission_timeout(fd, Some(&on(Q.0)), None, 1),
    )?;
    let mut waited = WaitOut::default();
    fails(
        "a wait without input",
        hl.wait_for_signal(fd, None, Some(&mut waited)),
    )?;
    fails(
        "a wait without output",
        hl.wait_for_signal(fd, Some(&WaitIn::default()), None),
    )?;
    fails(
        "a collective wait without input and output",
        hl.wait_for_collective_signal(fd, None, None),
    )?;
    fails(
        "a reservation without input",
        hl.reserve_encaps_signals(fd, None, Some(&mut SigResOut::default())),
    )?;
    let one = SigResIn {
        queue_index: Q.0,
        count: 1,
    };
    fails(
        "a reservation without output",
        hl.reserve_encaps_signals(fd, Some(&one), None),
    )?;
    fails(
        "a release without handle",
        hl.unreserve_encaps_signals(fd, None, Some(&mut 0)),
    )?;
    // None of the calls reserved a signal.
    let handle = ReserveSigHandle {
        id: 1,
        ..ReserveSigHandle::default()
    };
    fails(
        "a release without status",
        hl.unreserve_encaps_signals(fd, Some(&handle), None),
    )
}

fn on_foreign(bench: &mut Bench) -> Verdict {
    use std::os::fd::AsRawFd as _;
    let file = super::open::foreign()?;
    let card = Card {
        hl: bench.hl,
        fd: file.as_raw_fd(),
    };
    refused("a signal", try_signal(card, 0).0, Errno::ENOTTY)?;
    refused("a wait", try_wait(card, 1).0, Errno::ENOTTY)?;
    refused("a reservation", try_reserve(card, 0, 1).0, Errno::ENOTTY)?;
    refused(
        "a release",
        release(card, &ReserveSigHandle::default()),
        Errno::ENOTTY,
    )?;
    // Like a program that fills the chunk itself.
    let chunk: [HlCsChunk; 1] = [chunk_on(0)];
    let (code, _): (i32, CsOut) = card.try_submit(&chunk, CsFlags::SIGNAL);
    refused("a raw signal", code, Errno::ENOTTY)
}
