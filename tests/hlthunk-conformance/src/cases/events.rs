//! The notifier, and error records.

use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use gaudi_conformance::{Failure, Program, Verdict, equal, holds};
use gaudi_sys::poll::readable;
use gaudi_uapi::info::NotifierEvents;
use nix::errno::Errno;

use crate::answer::{fails, number, ok, refused, rejected};
use crate::bench::Bench;
use crate::card::{Buffer, Card, Q, borrow, own, submission};
use crate::case::cases;
use crate::types::{CsOut, PageFaultInfo, Room, record};

cases! { "events":
    "notifier.is-a-descriptor", "hlthunk.h:hlthunk_notifier_create" => create;
    "notifier.is-closed-on-exec", "hlthunk.h:hlthunk_notifier_create" => close_on_exec;
    "notifier.second-is-invalid", "common/habanalabs_ioctl.c:eventfd_register" => second;
    "notifier.refused-leaves-no-descriptor", "hlthunk.h:hlthunk_notifier_create" => refused_leaves_none;
    "notifier.again-after-release", "common/habanalabs_ioctl.c:eventfd_unregister" => again;
    "notifier.release-closes", "hlthunk.h:hlthunk_notifier_release" => release_closes;
    "notifier.release-of-none-is-invalid", "common/habanalabs_ioctl.c:eventfd_unregister" => release_none;
    "notifier.poll-has-nothing", "hlthunk.h:hlthunk_notifier_recv" => recv_nothing;
    "notifier.recv-waits-its-timeout", "hlthunk.h:hlthunk_notifier_recv" => recv_waits;
    "notifier.recv-into-null-is-invalid", "hlthunk.h:hlthunk_notifier_recv" => recv_null;
    "notifier.recv-of-bad-descriptor-fails", "hlthunk.h:hlthunk_notifier_recv" => recv_bad;
    "notifier.recv-of-own-signal-has-no-events", "hlthunk.h:hlthunk_notifier_recv" => recv_own_signal;
    "notifier.is-signalled-at-a-timeout", "common/device.c:hl_notifier_event_send" => signalled;
    "notifier.on-foreign-is-enotty", "hlthunk.h:hlthunk_notifier_create" => on_foreign;
    "record.open-time", "common/habanalabs_ioctl.c:last_err_open_dev_info" => open_time;
    "record.cs-timeout", "common/habanalabs_ioctl.c:cs_timeout_info" => |bench| answers(bench, record::CS_TIMEOUT);
    "record.razwi", "common/habanalabs_ioctl.c:razwi_info" => |bench| empty(bench, record::RAZWI);
    "record.undefined-opcode", "common/habanalabs_ioctl.c:undefined_opcode_info" => |bench| empty(bench, record::UNDEFINED_OPCODE);
    "record.hardware-error", "common/habanalabs_ioctl.c:hw_err_info" => |bench| empty(bench, record::HW_ERR);
    "record.firmware-error", "common/habanalabs_ioctl.c:fw_err_info" => |bench| empty(bench, record::FW_ERR);
    "record.unknown-is-invalid", "hlthunk.h:hlthunk_get_event_record" => unknown;
    "record.null-is-invalid", "hlthunk.h:hlthunk_get_event_record" => null;
    "record.on-foreign-is-enotty", "hlthunk.h:hlthunk_get_event_record" => record_foreign;
    "record.overruns-no-struct", "hlthunk.h:hlthunk_get_event_record" => overruns_nothing;
    "page-fault.none", "common/habanalabs_ioctl.c:page_fault_info" => page_fault;
    "page-fault.null-is-invalid", "hlthunk.h:hlthunk_get_page_fault_info" => page_fault_null;
    "page-fault.without-room-is-invalid", "hlthunk.h:hlthunk_get_page_fault_info" => page_fault_no_room;
}

/// A notifier, released on drop.
struct Notifier {
    card: Card,
    handle: c_int,
}

impl Notifier {
    fn new(card: Card) -> Result<Self, Failure> {
        let handle = number("hlthunk_notifier_create", card.hl.notifier_create(card.fd))?;
        Ok(Self { card, handle })
    }

    fn recv(&self, timeout: u32) -> Result<(u64, u64), Failure> {
        let (mut events, mut count) = (u64::MAX, u64::MAX);
        let (hl, fd) = (self.card.hl, self.card.fd);
        let code = hl.notifier_recv(fd, self.handle, Some(&mut events), Some(&mut count), 0, timeout);
        ok("hlthunk_notifier_recv", code)?;
        Ok((events, count))
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.card.hl.notifier_release(self.card.fd, self.handle);
    }
}

fn create(bench: &mut Bench) -> Verdict {
    let notifier = Notifier::new(bench.card()?)?;
    let link = gaudi_sys::fd::link(borrow(notifier.handle))?;
    equal(
        "the notifier's file",
        link.as_os_str().to_str(),
        Some("anon_inode:[eventfd]"),
    )
}

fn close_on_exec(bench: &mut Bench) -> Verdict {
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    let notifier = Notifier::new(bench.card()?)?;
    let flags = fcntl(borrow(notifier.handle), FcntlArg::F_GETFD)?;
    equal("the descriptor's flags", flags, FdFlag::FD_CLOEXEC.bits())
}

fn second(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let _first = Notifier::new(card)?;
    refused(
        "a second notifier",
        card.hl.notifier_create(card.fd),
        Errno::EINVAL,
    )
}

fn refused_leaves_none(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let _first = Notifier::new(card)?;
    let before = crate::bench::descriptors();
    for _ in 0..5 {
        fails("a second notifier", card.hl.notifier_create(card.fd))?;
    }
    equal("descriptors after refusals", crate::bench::descriptors(), before)
}

fn again(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for _ in 0..3 {
        drop(Notifier::new(card)?);
    }
    Ok(())
}

fn release_closes(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let handle = number("hlthunk_notifier_create", card.hl.notifier_create(card.fd))?;
    ok(
        "hlthunk_notifier_release",
        card.hl.notifier_release(card.fd, handle),
    )?;
    let gone = nix::fcntl::fcntl(borrow(handle), nix::fcntl::FcntlArg::F_GETFD);
    equal("the notifier's descriptor", gone, Err(nix::Error::EBADF))
}

fn release_none(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    refused(
        "releasing an unregistered notifier",
        card.hl.notifier_release(card.fd, -1),
        Errno::EINVAL,
    )
}

fn recv_nothing(bench: &mut Bench) -> Verdict {
    let notifier = Notifier::new(bench.card()?)?;
    let (_, count) = notifier.recv(0)?;
    equal("the event count of a poll", count, 0)?;
    let [is_readable] = readable([borrow(notifier.handle)], Duration::ZERO)?;
    equal("the descriptor is readable", is_readable, false)
}

fn recv_waits(bench: &mut Bench) -> Verdict {
    let notifier = Notifier::new(bench.card()?)?;
    let begin = Instant::now();
    let (_, count) = notifier.recv(50)?;
    equal("the event count after 50 ms", count, 0)?;
    holds(
        "the call waited 50 ms",
        begin.elapsed() >= Duration::from_millis(45),
        begin.elapsed(),
    )
}

fn recv_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let notifier = Notifier::new(card)?;
    let (hl, fd, handle, mut word) = (card.hl, card.fd, notifier.handle, 0);
    rejected(
        "a NULL events pointer",
        hl.notifier_recv(fd, handle, None, Some(&mut word), 0, 0),
        Errno::EINVAL,
    )?;
    rejected(
        "a NULL count pointer",
        hl.notifier_recv(fd, handle, Some(&mut word), None, 0, 0),
        Errno::EINVAL,
    )
}

fn recv_bad(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let closed = own("an eventfd", card.hl.notifier_create(card.fd))?;
    let handle = closed.as_raw_fd();
    drop::<OwnedFd>(closed);
    let (mut events, mut count) = (7, 7);
    let code = card
        .hl
        .notifier_recv(card.fd, handle, Some(&mut events), Some(&mut count), 0, 0);
    // The descriptor is closed: poll(2) reports that, and read(2) fails.
    let verdict = fails("receiving from a closed descriptor", code);
    let released = card.hl.notifier_release(card.fd, -1);
    verdict?;
    fails(
        "releasing a closed descriptor: deregisters it, then close(2) fails",
        released,
    )
}

fn recv_own_signal(bench: &mut Bench) -> Verdict {
    let notifier = Notifier::new(bench.card()?)?;
    let written = nix::unistd::write(borrow(notifier.handle), &3_u64.to_ne_bytes());
    equal("signalling the eventfd", written, Ok(8))?;
    equal("events and count", notifier.recv(1000)?, (0, 3))
}

fn signalled(bench: &mut Bench) -> Verdict {
    let card = bench.take()?;
    let notifier = Notifier::new(card)?;
    let fence = Program::new().fence(2, 1, 1)?;
    let hang = Buffer::new(card, fence)?;
    let chunks = [hang.chunk(Q)];
    let input = submission(&chunks, &[], gaudi_uapi::cs::CsFlags::NONE);
    let mut out = CsOut::default();
    let code = card
        .hl
        .command_submission_timeout(card.fd, Some(&input), Some(&mut out), 1);
    ok("a submission that never ends", code)?;
    let mut status = 0;
    let waited = card
        .hl
        .wait_for_cs(card.fd, out.seq, 60_000_000, Some(&mut status));
    let errno = Errno::last();
    let received = notifier.recv(10_000);
    let released = card.hl.notifier_release(card.fd, notifier.handle);
    std::mem::forget(notifier);
    drop(hang);
    // The driver resets the device when its user closes it.
    ok("hlthunk_close", card.hl.close(card.fd))?;
    bench.card()?;
    ok("releasing the notifier", released)?;
    equal(
        "the wait for an aborted submission",
        (waited, errno),
        (-(Errno::EIO as i32), Errno::EIO),
    )?;
    let expected = NotifierEvents::CS_TIMEOUT.0 | NotifierEvents::DEVICE_RESET.0;
    equal("events and count", received?, (expected, 1))
}

fn on_foreign(bench: &mut Bench) -> Verdict {
    let file = super::open::foreign()?;
    refused(
        "a notifier on /dev/null",
        bench.hl.notifier_create(file.as_raw_fd()),
        Errno::ENOTTY,
    )?;
    refused(
        "a release on /dev/null",
        bench.hl.notifier_release(file.as_raw_fd(), -1),
        Errno::ENOTTY,
    )?;
    refused(
        "a notifier on descriptor -1",
        bench.hl.notifier_create(-1),
        Errno::EBADF,
    )
}

fn ask(bench: &mut Bench, event: u32) -> Result<Room, Failure> {
    let card = bench.card()?;
    let mut room = Room::default();
    ok(
        "hlthunk_get_event_record",
        card.hl.get_event_record(card.fd, event, Some(&mut room)),
    )?;
    Ok(room)
}

fn open_time(bench: &mut Bench) -> Verdict {
    let room = ask(bench, record::OPEN_DEV)?;
    holds("the time of the last open is known", room.0[0] > 0, room.0[0])
}

fn answers(bench: &mut Bench, event: u32) -> Verdict {
    ask(bench, event).map(drop)
}

fn empty(bench: &mut Bench, event: u32) -> Verdict {
    equal("the timestamp without an error", ask(bench, event)?.0[0], 0)
}

fn unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for event in [100, u32::MAX] {
        let code = card
            .hl
            .get_event_record(card.fd, event, Some(&mut Room::default()));
        rejected(&format!("record {event}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for event in 0..=record::FW_ERR {
        rejected(
            "a record with a NULL buffer",
            card.hl.get_event_record(card.fd, event, None),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn record_foreign(bench: &mut Bench) -> Verdict {
    let file = super::open::foreign()?;
    for event in 0..=record::FW_ERR {
        let code = bench
            .hl
            .get_event_record(file.as_raw_fd(), event, Some(&mut Room::default()));
        refused("a record on /dev/null", code, Errno::ENOTTY)?;
    }
    Ok(())
}

fn overruns_nothing(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    // Sizes of the 2023 structs in words: open time, timeout, RAZWI, opcode, hardware, firmware.
    for (event, words) in (0..).zip([1, 2, 35, 36, 2, 2]) {
        let mut room = Room([u64::MAX; 1024]);
        ok(
            "the record",
            card.hl.get_event_record(card.fd, event, Some(&mut room)),
        )?;
        let behind = &room.0[words..];
        holds(
            &format!("words past the struct of record {event}"),
            behind.iter().all(|&word| word == u64::MAX),
            words,
        )?;
    }
    Ok(())
}

fn page_fault(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut mappings = [0_u64; 2 * 16];
    let mut info = PageFaultInfo {
        timestamp: 7,
        mappings_buf: crate::card::address_of_mut(&mut mappings),
        ..PageFaultInfo::default()
    };
    ok(
        "hlthunk_get_page_fault_info",
        card.hl.get_page_fault_info(card.fd, Some(&mut info), 16),
    )?;
    equal("the timestamp without a page fault", info.timestamp, 0)?;
    equal("the number of mappings", info.num_of_mappings, 0)
}

fn page_fault_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    rejected(
        "a page fault with a NULL struct",
        card.hl.get_page_fault_info(card.fd, None, 1),
        Errno::EINVAL,
    )
}

fn page_fault_no_room(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut info = PageFaultInfo::default();
    rejected(
        "a NULL array of mappings",
        card.hl.get_page_fault_info(card.fd, Some(&mut info), 4),
        Errno::EINVAL,
    )?;
    let mut one = [0_u64; 2];
    info.mappings_buf = crate::card::address_of_mut(&mut one);
    rejected(
        "an array of 0 mappings",
        card.hl.get_page_fault_info(card.fd, Some(&mut info), 0),
        Errno::EINVAL,
    )
}
