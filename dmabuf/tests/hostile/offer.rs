//! Offers: process and descriptor numbers of the attacker's choice.

use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use gaudi_dmabuf::{DmaBuf, OFFER_BYTES};

use crate::object::stand_in;
use crate::victim::{Message, Report, Role, Victim};

const LEN: u64 = 16 << 12;

/// An offer's bytes, as [`gaudi_dmabuf::Offer`] documents them.
fn offer(message: Message, pid: u32, fd: u32) -> [u8; OFFER_BYTES] {
    let mut bytes = [0; OFFER_BYTES];
    let (head, tail) = bytes.split_at_mut(OFFER_BYTES - 8);
    head.copy_from_slice(&message.bytes());
    tail[..4].copy_from_slice(&pid.to_le_bytes());
    tail[4..].copy_from_slice(&fd.to_le_bytes());
    bytes
}

fn attack(bytes: [u8; OFFER_BYTES]) -> Report {
    let mut victim = Victim::start(Role::Fetch);
    victim.socket.write_all(&bytes).expect("it listens");
    victim.after_close()
}

#[test]
fn false_process_numbers_are_refused() {
    let fd = stand_in(LEN);
    let message = Message::about(fd.as_fd(), LEN);
    let number = fd.as_raw_fd() as u32;
    for (pid, kind) in [
        (0, "invalid_input"),
        (u32::MAX, "invalid_input"),
        (i32::MAX as u32, "disconnected"),
    ] {
        attack(offer(message, pid, number)).is("receive", kind);
    }
}

#[test]
fn closed_descriptor_is_not_found() {
    let fd = stand_in(LEN);
    let message = Message::about(fd.as_fd(), LEN);
    for number in [u32::MAX, i32::MAX as u32, 1 << 20] {
        attack(offer(message, std::process::id(), number)).is("receive", "not_found");
    }
}

#[test]
fn another_file_under_the_number_is_refused() {
    let fd = stand_in(LEN);
    let message = Message::about(fd.as_fd(), LEN);
    let null: OwnedFd = std::fs::File::open("/dev/null").expect("it opens").into();
    let other = stand_in(LEN);
    for number in [null.as_raw_fd(), other.as_raw_fd()] {
        attack(offer(message, std::process::id(), number as u32)).is("receive", "protocol");
    }
}

#[test]
fn descriptor_of_the_attacked_process_is_refused() {
    // Number 0 is the socket to the attacker.
    let mut victim = Victim::start(Role::Fetch);
    let message = Message::about(victim.socket.as_fd(), LEN);
    let bytes = offer(message, victim.process(), 0);
    victim.socket.write_all(&bytes).expect("it listens");
    victim.after_close().is("receive", "protocol");
}

#[test]
fn malformed_offer_fetches_nothing() {
    let fd = stand_in(LEN);
    let mut message = Message::about(fd.as_fd(), LEN);
    message.len = LEN + 1;
    attack(offer(message, std::process::id(), fd.as_raw_fd() as u32)).is("receive", "protocol");
}

#[test]
fn honest_offer_is_fetched() {
    let buffer = DmaBuf::from_fd(stand_in(LEN)).expect("a stand-in");
    let offer = buffer.whole().expect("bytes").offer().expect("an offer");
    let report = attack(offer.to_bytes());
    // Yama may forbid a child to trace its parent.
    if report.kind != "permission_denied" {
        report.is("done", "none");
    }
}
