//! Waits for user interrupts, and timestamps.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering;

use gaudi_conformance::{Failure, Program, Verdict, equal, holds, offset};
use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::packet::MsgLong;
use gaudi_spec::gaudi2::{DOORBELL_VA, USER_INTERRUPTS};
use gaudi_sys::RawMapping;
use nix::errno::Errno;

use crate::answer::{ok, refused, rejected};
use crate::bench::Bench;
use crate::card::{BUSY, Buffer, COMPLETED, Card, Cb, Gate, Host, LONG, PAGE, Q, address_in};
use crate::case::cases;

cases! { "interrupt":
    "reached-already", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr" => reached;
    "poll-not-reached-is-busy", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr" => poll;
    "timeout-is-busy", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr" => timeout;
    "doorbell-ends-the-wait", "client:hl-thunk/tests/command_submission.c:test_wait_for_interrupt" => doorbell;
    "any-interrupt", "client:scal/scal_gaudi2.cpp:Host_Fence" => any;
    "from-another-thread", "client:hl-thunk/tests/command_submission.c:test_wait_for_interrupt_multi_thread" => other_thread;
    "first-and-last-number", "common/command_submission.c:hl_interrupt_wait_ioctl" => first_and_last;
    "unknown-number-is-invalid", "common/command_submission.c:hl_interrupt_wait_ioctl" => unknown_number;
    "unmapped-address-is-a-fault", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr" => fault;
    "null-address-is-invalid", "hlthunk.h:hlthunk_wait_for_interrupt" => null_address;
    "null-status-is-invalid", "hlthunk.h:hlthunk_wait_for_interrupt" => null_status;
    "null-timestamp-is-allowed", "hlthunk.h:hlthunk_wait_for_interrupt_with_timestamp" => null_timestamp;
    "timestamp-of-reached-is-now", "hlthunk.h:hlthunk_wait_for_interrupt_with_timestamp" => timestamp;
    "timestamp-of-busy-is-untouched", "hlthunk.h:hlthunk_wait_for_interrupt_with_timestamp" => timestamp_busy;
    "foreign-descriptor-is-enotty", "hlthunk.h:hlthunk_wait_for_interrupt" => on_foreign;
    "handle.reached-already", "common/command_submission.c:_hl_interrupt_wait_ioctl" => handle_reached;
    "handle.poll-not-reached-is-busy", "common/command_submission.c:_hl_interrupt_wait_ioctl" => handle_poll;
    "handle.counted-by-the-device", "client:scal/scal_gaudi2.cpp:CompletionGroup" => handle_counted;
    "handle.unknown-handle-is-invalid", "common/command_submission.c:_hl_interrupt_wait_ioctl" => handle_unknown;
    "handle.offset-past-end-is-invalid", "common/command_submission.c:_hl_interrupt_wait_ioctl" => handle_past_end;
    "handle.null-status-is-invalid", "hlthunk.h:hlthunk_wait_for_interrupt_by_handle" => handle_null_status;
    "register.reached-is-stamped-at-once", "common/command_submission.c:_hl_interrupt_ts_reg_ioctl" => stamped_at_once;
    "register.stamped-at-the-interrupt", "client:hl-thunk/tests/command_submission.c:test_timestamp_registration" => stamped;
    "register.unknown-buffer-is-invalid", "common/command_submission.c:_hl_interrupt_ts_reg_ioctl" => stamp_no_buffer;
    "register.element-past-end-is-invalid", "common/command_submission.c:validate_and_get_ts_record" => stamp_no_element;
    "register.unknown-interrupt-is-invalid", "common/command_submission.c:hl_interrupt_wait_ioctl" => stamp_no_interrupt;
    "timestamp-registration-outlives-its-process", "common/command_submission.c:hl_release_pending_user_interrupts" => stamp_left;
}

const FIRST: u32 = USER_INTERRUPTS.start as u32;
/// `UINT_MAX`: the interrupt of any completion queue.
const ANY: u32 = u32::MAX;

/// A word of host memory mapped on the device.
struct Word {
    card: Card,
    host: Host,
}

impl Word {
    fn new(card: Card) -> Result<Self, Failure> {
        let host = Host::new(card, PAGE)?;
        Ok(Self { card, host })
    }

    fn set(&self, value: u64) -> Verdict {
        Ok(self.host.memory.write(0, &value.to_le_bytes())?)
    }

    fn address(&self) -> *mut c_void {
        address_in(&self.host.memory, 0)
    }

    fn wait(&self, interrupt: u32, target: u64, timeout: u64) -> Result<u32, Failure> {
        let mut status = u32::MAX;
        let (hl, fd) = (self.card.hl, self.card.fd);
        let code = hl.wait_for_interrupt(fd, self.address(), target, interrupt, timeout, Some(&mut status));
        ok("hlthunk_wait_for_interrupt", code)?;
        Ok(status)
    }

    /// Returns a program that sets the word and raises the interrupt.
    fn ring(&self, value: u32, interrupt: u32) -> Program {
        ring(self.host.va, value, interrupt)
    }
}

fn ring(word: DeviceVa, value: u32, interrupt: u32) -> Program {
    Program::new()
        .long(MsgLong::new(word, value))
        .long(MsgLong::new(DOORBELL_VA, interrupt).with_message_barrier(true))
}

fn reached(bench: &mut Bench) -> Verdict {
    let word = Word::new(bench.card()?)?;
    word.set(9)?;
    for (target, timeout) in [(0, 0), (8, LONG), (9, 0), (9, LONG), (9, u64::MAX)] {
        equal(
            "a wait for a value already reached",
            word.wait(FIRST, target, timeout)?,
            COMPLETED,
        )?;
    }
    Ok(())
}

fn poll(bench: &mut Bench) -> Verdict {
    let word = Word::new(bench.card()?)?;
    word.set(9)?;
    for target in [10, u64::MAX] {
        equal(
            "a poll for a value not yet reached",
            word.wait(FIRST, target, 0)?,
            BUSY,
        )?;
    }
    Ok(())
}

fn timeout(bench: &mut Bench) -> Verdict {
    let word = Word::new(bench.card()?)?;
    equal(
        "a wait of 20 ms without an interrupt",
        word.wait(FIRST, 1, 20_000)?,
        BUSY,
    )
}

fn rung(card: Card, word: &Word, wait_for: u32, raise: u32) -> Verdict {
    word.set(0)?;
    let buffer = Buffer::new(card, word.ring(7, raise))?;
    let seq = buffer.submit(Q)?;
    let status = word.wait(wait_for, 7, LONG);
    card.finish(seq)?;
    equal(
        &format!("the wait for interrupt {wait_for:#x}"),
        status?,
        COMPLETED,
    )
}

fn doorbell(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let word = Word::new(card)?;
    for number in [FIRST, FIRST + 1, u32::from(USER_INTERRUPTS.end) - 1] {
        rung(card, &word, number, number)?;
    }
    Ok(())
}

fn any(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    rung(card, &Word::new(card)?, ANY, FIRST + 5)
}

fn other_thread(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let word = Word::new(card)?;
    let gate = Gate::shut(card)?;
    let buffer = Buffer::new(card, word.ring(3, FIRST))?;
    let seq = buffer.submit(Q)?;
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| gate.open().and_then(|()| card.finish(seq)));
        let status = word.wait(FIRST, 3, LONG);
        let opened = opener
            .join()
            .map_err(|_| Failure::new("the opening thread", "an end", "a panic"))?;
        opened?;
        equal("the waiter's status", status?, COMPLETED)
    })
}

fn first_and_last(bench: &mut Bench) -> Verdict {
    let word = Word::new(bench.card()?)?;
    word.set(1)?;
    for number in [0, 9, FIRST, u32::from(USER_INTERRUPTS.end) - 1] {
        equal(
            &format!("a wait for interrupt {number}"),
            word.wait(number, 1, 0)?,
            COMPLETED,
        )?;
    }
    Ok(())
}

fn unknown_number(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let word = Word::new(card)?;
    for number in [10, FIRST - 1, u32::from(USER_INTERRUPTS.end), 128, 0xffd] {
        let mut status = 0;
        let code = card
            .hl
            .wait_for_interrupt(card.fd, word.address(), 0, number, LONG, Some(&mut status));
        refused(&format!("a wait for interrupt {number}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn fault(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for address in [8, 0xffff_8000_0000_0000, usize::MAX] {
        for timeout in [0, LONG] {
            let mut status = 0;
            let to = ptr::without_provenance_mut(address);
            let code = card
                .hl
                .wait_for_interrupt(card.fd, to, 1, FIRST, timeout, Some(&mut status));
            refused(&format!("a user address of {address:#x}"), code, Errno::EFAULT)?;
        }
    }
    Ok(())
}

fn null_address(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut status = 0;
    let code = card
        .hl
        .wait_for_interrupt(card.fd, ptr::null_mut(), 0, FIRST, 0, Some(&mut status));
    rejected("a NULL user address", code, Errno::EINVAL)
}

fn null_status(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let word = Word::new(card)?;
    let (hl, fd, at) = (card.hl, card.fd, word.address());
    rejected(
        "a NULL status",
        hl.wait_for_interrupt(fd, at, 0, FIRST, 0, None),
        Errno::EINVAL,
    )?;
    let code = hl.wait_for_interrupt_with_timestamp(fd, at, 0, FIRST, 0, None, Some(&mut 0));
    rejected("a NULL status, with timestamp", code, Errno::EINVAL)
}

fn null_timestamp(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let word = Word::new(card)?;
    let mut status = u32::MAX;
    let (hl, fd, at) = (card.hl, card.fd, word.address());
    ok(
        "a NULL timestamp",
        hl.wait_for_interrupt_with_timestamp(fd, at, 0, FIRST, 0, Some(&mut status), None),
    )?;
    equal("the status", status, COMPLETED)
}

fn timed(card: Card, word: &Word, target: u64) -> Result<(u32, u64), Failure> {
    let (mut status, mut time) = (u32::MAX, 7);
    let (hl, fd, at) = (card.hl, card.fd, word.address());
    let code =
        hl.wait_for_interrupt_with_timestamp(fd, at, target, FIRST, 0, Some(&mut status), Some(&mut time));
    ok("hlthunk_wait_for_interrupt_with_timestamp", code)?;
    Ok((status, time))
}

fn timestamp(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (status, time) = timed(card, &Word::new(card)?, 0)?;
    equal("the status", status, COMPLETED)?;
    holds("the timestamp is the current time", time > 7, time)
}

fn timestamp_busy(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    equal("status and time", timed(card, &Word::new(card)?, 1)?, (BUSY, 7))
}

fn on_foreign(bench: &mut Bench) -> Verdict {
    use std::os::fd::AsRawFd as _;
    let file = super::open::foreign()?;
    let (hl, fd) = (bench.hl, file.as_raw_fd());
    let mut word = 0_u64;
    let at = (&raw mut word).cast();
    let mut status = 0;
    refused(
        "a wait",
        hl.wait_for_interrupt(fd, at, 0, FIRST, 0, Some(&mut status)),
        Errno::ENOTTY,
    )?;
    let code = hl.wait_for_interrupt_by_handle(fd, 4096, 0, 0, FIRST, 0, Some(&mut status));
    refused("a wait by handle", code, Errno::ENOTTY)?;
    let code = hl.register_timestamp_interrupt(fd, FIRST, 4096, 0, 0, 4096, 0);
    refused("a registration", code, Errno::ENOTTY)
}

/// A page of counters mapped in the process and on the device.
struct Counters {
    card: Card,
    view: RawMapping,
    cb: Cb,
    va: DeviceVa,
}

impl Counters {
    fn new(card: Card) -> Result<Self, Failure> {
        let cb = Cb::mapped(card, PAGE as u32)?;
        let (view, va) = (cb.view(PAGE)?, cb.va()?);
        Ok(Self { card, view, cb, va })
    }

    fn try_wait(&self, handle: u64, nth: u64, target: u64, timeout: u64) -> (i32, u32) {
        let mut status = u32::MAX;
        let (hl, fd) = (self.card.hl, self.card.fd);
        let code =
            hl.wait_for_interrupt_by_handle(fd, handle, nth, target, FIRST, timeout, Some(&mut status));
        (code, status)
    }

    fn wait(&self, nth: u64, target: u64, timeout: u64) -> Result<u32, Failure> {
        let (code, status) = self.try_wait(self.cb.handle, nth, target, timeout);
        ok("hlthunk_wait_for_interrupt_by_handle", code)?;
        Ok(status)
    }

    fn set(&self, nth: usize, value: u64) -> Verdict {
        Ok(self.view.write(8 * nth, &value.to_le_bytes())?)
    }

    /// Sets a counter with the engine and raises the interrupt.
    fn ring(&self, nth: u64, value: u32) -> Verdict {
        self.card.run(Q, ring(offset(self.va, 8 * nth), value, FIRST))
    }
}

fn handle_reached(bench: &mut Bench) -> Verdict {
    let counters = Counters::new(bench.card()?)?;
    counters.set(3, 9)?;
    for (target, timeout) in [(0, 0), (9, LONG)] {
        equal(
            "a wait for a counter already at its target",
            counters.wait(3, target, timeout)?,
            COMPLETED,
        )?;
    }
    let (mut status, mut time) = (u32::MAX, 0);
    let (hl, fd) = (counters.card.hl, counters.card.fd);
    let code = hl.wait_for_interrupt_by_handle_with_timestamp(
        fd,
        counters.cb.handle,
        3,
        9,
        FIRST,
        0,
        Some(&mut status),
        Some(&mut time),
    );
    ok("the wait with a timestamp", code)?;
    equal("the status with a timestamp", status, COMPLETED)?;
    holds("the timestamp is the current time", time > 0, time)
}

fn handle_poll(bench: &mut Bench) -> Verdict {
    let counters = Counters::new(bench.card()?)?;
    equal("a poll of the last counter", counters.wait(511, 1, 0)?, BUSY)
}

fn handle_counted(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let counters = Counters::new(card)?;
    let program = ring(offset(counters.va, 40), 7, FIRST);
    let buffer = Buffer::new(card, program)?;
    let seq = buffer.submit(Q)?;
    let status = counters.wait(5, 7, LONG);
    card.finish(seq)?;
    equal(
        "a wait for a counter that the device increments",
        status?,
        COMPLETED,
    )
}

fn handle_unknown(bench: &mut Bench) -> Verdict {
    let counters = Counters::new(bench.card()?)?;
    for handle in [0, counters.cb.handle + (9 << 12), u64::MAX] {
        let (code, _) = counters.try_wait(handle, 0, 0, 0);
        refused(&format!("counters at {handle:#x}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn handle_past_end(bench: &mut Bench) -> Verdict {
    let counters = Counters::new(bench.card()?)?;
    for nth in [512, 1 << 20] {
        let (code, _) = counters.try_wait(counters.cb.handle, nth, 0, 0);
        refused(&format!("counter {nth} of 512"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn handle_null_status(bench: &mut Bench) -> Verdict {
    let counters = Counters::new(bench.card()?)?;
    let (hl, fd, handle) = (counters.card.hl, counters.card.fd, counters.cb.handle);
    let code = hl.wait_for_interrupt_by_handle(fd, handle, 0, 0, FIRST, 0, None);
    rejected("a NULL status", code, Errno::EINVAL)
}

/// A buffer of 16 timestamps, and its mapping.
struct Stamps {
    card: Card,
    handle: u64,
    view: RawMapping,
}

impl Stamps {
    fn new(card: Card) -> Result<Self, Failure> {
        let mut handle = 0;
        ok(
            "timestamps",
            card.hl
                .allocate_timestamp_elements(card.fd, 16, Some(&mut handle)),
        )?;
        let view = card.mmap(handle, PAGE)?;
        Ok(Self { card, handle, view })
    }

    fn register(&self, counters: &Counters, nth: u64, target: u64, index: u64) -> i32 {
        let (hl, fd) = (self.card.hl, self.card.fd);
        hl.register_timestamp_interrupt(fd, FIRST, counters.cb.handle, nth, target, self.handle, index)
    }

    fn read(&self, index: usize) -> Result<u64, Failure> {
        Ok(self.view.load_u64(8 * index, Ordering::Acquire)?)
    }
}

/// Creates counters and timestamps in a new session, because only the close frees them.
fn both(bench: &mut Bench) -> Result<(Counters, Stamps), Failure> {
    let card = bench.unused()?;
    Ok((Counters::new(card)?, Stamps::new(card)?))
}

fn stamped_at_once(bench: &mut Bench) -> Verdict {
    let (counters, stamps) = both(bench)?;
    counters.set(1, 4)?;
    ok("the registration", stamps.register(&counters, 1, 4, 2))?;
    let (before, written) = (stamps.read(1)?, stamps.read(2)?);
    drop((counters, stamps));
    bench.close()?;
    holds("the time is written immediately", written > 0, written)?;
    equal("the element before it", before, 0)
}

fn stamped(bench: &mut Bench) -> Verdict {
    let (counters, stamps) = both(bench)?;
    ok("the registration", stamps.register(&counters, 1, 4, 0))?;
    let before = stamps.read(0)?;
    counters.ring(1, 4)?;
    // The driver takes the timestamp when it handles the interrupt.
    for _ in 0..1000 {
        if stamps.read(0)? > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let written = stamps.read(0)?;
    drop((counters, stamps));
    bench.close()?;
    equal("the element before the interrupt", before, 0)?;
    holds("the time of the interrupt is written", written > 0, written)
}

fn stamp_no_buffer(bench: &mut Bench) -> Verdict {
    let (counters, stamps) = both(bench)?;
    let (hl, fd) = (stamps.card.hl, stamps.card.fd);
    let unknown = stamps.handle + (9 << 12);
    let code = hl.register_timestamp_interrupt(fd, FIRST, counters.cb.handle, 0, 1, unknown, 0);
    let verdict = refused("a timestamp in an unknown buffer", code, Errno::EINVAL);
    drop((counters, stamps));
    bench.close().and(verdict)
}

fn stamp_no_element(bench: &mut Bench) -> Verdict {
    let (counters, stamps) = both(bench)?;
    let verdict = refused(
        "element 16 of 16",
        stamps.register(&counters, 0, 1, 16),
        Errno::EINVAL,
    );
    drop((counters, stamps));
    bench.close().and(verdict)
}

fn stamp_no_interrupt(bench: &mut Bench) -> Verdict {
    let (counters, stamps) = both(bench)?;
    let (hl, fd) = (stamps.card.hl, stamps.card.fd);
    let number = u32::from(USER_INTERRUPTS.end);
    let code = hl.register_timestamp_interrupt(fd, number, counters.cb.handle, 0, 1, stamps.handle, 0);
    let verdict = refused("a timestamp of an invalid interrupt", code, Errno::EINVAL);
    drop((counters, stamps));
    bench.close().and(verdict)
}

fn stamp_left(bench: &mut Bench) -> Verdict {
    let (counters, stamps) = both(bench)?;
    ok("the registration", stamps.register(&counters, 1, 4, 0))?;
    drop((counters, stamps));
    bench.close()?;
    bench.card()?.usage().map(drop)
}
