//! Child processes of the test program that repeat one call until they are killed.

use std::env;
use std::io::Write as _;

use gaudi_conformance::{Failure, Program, Verdict};

use crate::answer::{number, ok};
use crate::bench::Bench;
use crate::card::{Buffer, Card, Cb, Dram, Gate, Host, LONG, Memory, PAGE, Q, own};
use crate::library::Library;

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

fn repeat(call: &str) -> Verdict {
    let unknown = || Failure::new("the call", "one of the list", call);
    let work = CALLS.iter().find(|row| row.0 == call).ok_or_else(unknown)?.1;
    let library = Library::load().map_err(|error| Failure::new("the library", "loaded", error))?;
    let mut bench = Bench::new(library);
    let card = bench.card()?;
    let mut output = std::io::stdout().lock();
    let written = output.write_all(b"ready\n").and_then(|()| output.flush());
    written.map_err(|error| Failure::new("the child's output", "written", error.to_string()))?;
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
