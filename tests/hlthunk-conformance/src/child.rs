//! Child processes of the test program that repeat one call until they are killed.

use std::env;
use std::io::Write as _;
use std::time::{Duration, Instant};

use gaudi_conformance::{Failure, Program, Verdict};
use gaudi_uapi::cs::CsFlags;

use crate::answer::{number, ok};
use crate::bench::Bench;
use crate::card::{Buffer, Card, Cb, Dram, Gate, Host, LONG, Memory, PAGE, Q, own};
use crate::library::Library;
use crate::random;

/// The argument that precedes a call's name.
pub(crate) const FLAG: &str = "--child";

/// The name of a call, and a function that performs it.
pub(crate) type Call = (&'static str, fn(Card) -> Verdict);

/// The calls in which children are killed.
pub(crate) const CALLS: &[Call] = &[
    ("info", |card| card.usage().map(drop)),
    ("alloc", |card| Memory::new(card, 1).map(drop)),
    ("map", |card| Dram::new(card, 1).map(drop)),
    ("host-map", |card| Host::new(card, 16 * PAGE).map(drop)),
    ("buffer", |card| Cb::mapped(card, 64 << 10).map(drop)),
    ("buffer-mmap", |card| {
        let cb = Cb::new(card, 4096)?;
        Ok(cb.view(PAGE)?.fill(0, PAGE, 1)?)
    }),
    ("submit", |card| {
        Buffer::new(card, Program::new().nop())?.submit(Q).map(drop)
    }),
    ("wait", |card| card.run(Q, Program::new().nop())),
    ("wait-held", |card| {
        let gate = Gate::shut(card)?;
        card.wait(gate.seq(), LONG).map(drop)
    }),
    ("wait-interrupt", |card| {
        let host = Host::new(card, PAGE)?;
        let at = crate::card::address_in(&host.memory, 0);
        ok(
            "a wait",
            card.hl.wait_for_interrupt(card.fd, at, 1, 48, LONG, Some(&mut 0)),
        )
    }),
    ("export", |card| {
        let dram = Dram::new(card, 1)?;
        let flags = crate::cases::EXPORT_FLAGS;
        let code = card
            .hl
            .device_mapped_memory_export_dmabuf_fd(card.fd, dram.address(), 4096, 0, flags);
        own("an export", code).map(drop)
    }),
    ("notifier", |card| {
        let handle = number("a notifier", card.hl.notifier_create(card.fd))?;
        ok("its release", card.hl.notifier_release(card.fd, handle))
    }),
];

/// A program that waits for the end of a reset, instead of closing the device for it. The driver
/// kills it after a second, and the mock does.
pub(crate) const WAIT_FOR_RESET: Call = ("wait-for-reset", |card| {
    std::mem::forget(Gate::shut_timed(card, CsFlags::NONE, 1)?);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
        // Neither answer ends the loop: EBUSY in reset, a number before.
        card.hl.is_device_idle(card.fd);
        card.hl.get_device_status_info(card.fd);
    }
    Err(Failure::new("the end of a reset", "SIGKILL", "60 s of polling"))
});

fn repeat(call: &str) -> Verdict {
    let unknown = || Failure::new("the call", "one of the list", call);
    let mut calls = CALLS.iter().chain([&WAIT_FOR_RESET]);
    let chosen = calls.find(|row| row.0 == call);
    if chosen.is_none() && !random::functions().any(|function| function == call) {
        return Err(unknown());
    }
    let library = Library::load().map_err(|error| Failure::new("the library", "loaded", error))?;
    let mut bench = Bench::new(library);
    let card = bench.card()?;
    let mut output = std::io::stdout().lock();
    let told = output.write_all(b"ready\n").and_then(|()| output.flush());
    told.map_err(|error| Failure::new("the child's output", "written", error.to_string()))?;
    let Some((_, work)) = chosen else {
        let ended = random::repeat(card, call);
        return ended.map_err(|error| Failure::new(call, "no end", error));
    };
    loop {
        work(card)?;
    }
}

/// Repeats the call that the command line names, and does not return. Returns if the command line
/// names none: the program is then not a child of a case.
pub fn serve() {
    let mut words = env::args().skip(1);
    if words.next().as_deref() != Some(FLAG) {
        return;
    }
    let call = words.next().unwrap_or_default();
    if let Err(failure) = repeat(&call) {
        eprintln!("child {call}: {failure}");
    }
    std::process::exit(1);
}
