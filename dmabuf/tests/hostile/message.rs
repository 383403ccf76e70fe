//! Forged messages, and control data that does not match them.

use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd};

use gaudi_dmabuf::MESSAGE_BYTES;
use nix::sys::socket::{MsgFlags, send};
use std::os::fd::AsRawFd as _;

use crate::object::stand_in;
use crate::victim::{BRIEF, Message, Report, Role, Victim, lock};

const LEN: u64 = 16 << 12;

/// Sends a message with a stand-in of [`LEN`] bytes, changed by `change`.
fn lie(change: impl FnOnce(&mut Message)) -> Report {
    let fd = stand_in(LEN);
    let mut message = Message::about(fd.as_fd(), LEN);
    change(&mut message);
    let victim = Victim::start(Role::Receive);
    victim.pass(&message.bytes(), &[fd.as_fd()]).expect("it is sent");
    victim.after_close()
}

#[test]
fn window_past_the_buffer_is_refused() {
    lie(|message| message.offset = 1).is("receive", "protocol");
    lie(|message| message.len = LEN + 1).is("receive", "protocol");
    lie(|message| message.len = 0).is("receive", "protocol");
}

#[test]
fn wrapping_windows_are_refused() {
    lie(|message| (message.offset, message.len) = (u64::MAX, 2)).is("receive", "protocol");
    lie(|message| (message.offset, message.len) = (u64::MAX - 4095, 4096)).is("receive", "protocol");
    lie(|message| (message.offset, message.len) = (4096, u64::MAX - 4095)).is("receive", "protocol");
}

#[test]
fn false_size_is_refused() {
    for size in [LEN + 4096, LEN - 1, u64::MAX] {
        lie(|message| (message.size, message.len) = (size, size)).is("receive", "protocol");
    }
}

#[test]
fn false_start_or_inode_is_refused() {
    lie(|message| message.start = 4096).is("receive", "protocol");
    lie(|message| message.inode += 1).is("receive", "protocol");
}

#[test]
fn false_exporter_is_refused() {
    for exporter in [0, 1, 2, 6, u64::from(u32::MAX)] {
        lie(|message| message.exporter = exporter).is("receive", "protocol");
    }
}

#[test]
fn second_window_of_the_lock_is_refused() {
    // Two locks: the receiver must not take one for the size and the other for the place.
    let fd = stand_in(LEN);
    lock(fd.as_fd(), nix::libc::F_UNLCK, 4096, 4096).expect("it splits in two");
    for (start, size) in [(8192, LEN - 8192), (0, LEN)] {
        let mut message = Message::about(fd.as_fd(), size);
        message.start = start;
        let victim = Victim::start(Role::Receive);
        victim.pass(&message.bytes(), &[fd.as_fd()]).expect("it is sent");
        victim.after_close().is("receive", "protocol");
    }
}

#[test]
fn message_without_a_descriptor_is_refused() {
    let fd = stand_in(LEN);
    let victim = Victim::start(Role::Receive);
    let bytes = Message::about(fd.as_fd(), LEN).bytes();
    victim.pass(&bytes, &[]).expect("it is sent");
    victim
        .after_close()
        .is("receive", "protocol")
        .contains("the message has no descriptor");
}

#[test]
fn too_many_descriptors_are_refused() {
    let fd = stand_in(LEN);
    let bytes = Message::about(fd.as_fd(), LEN).bytes();
    for count in [2, 4, 5, 64, 253] {
        let victim = Victim::start(Role::Receive);
        let fds: Vec<BorrowedFd<'_>> = vec![fd.as_fd(); count];
        victim.pass(&bytes, &fds).expect("it is sent");
        victim.after_close().is("receive", "protocol");
    }
}

#[test]
fn second_descriptor_in_later_part_is_refused() {
    let fd = stand_in(LEN);
    let bytes = Message::about(fd.as_fd(), LEN).bytes();
    let victim = Victim::start(Role::Receive);
    for part in bytes.chunks(16) {
        // The attacked process may have refused it by now.
        let _ = victim.pass(part, &[fd.as_fd()]);
    }
    victim
        .after_close()
        .is("receive", "protocol")
        .contains("exactly one descriptor");
}

#[test]
fn one_descriptor_serves_two_messages() {
    let fd = stand_in(LEN);
    let bytes = Message::about(fd.as_fd(), LEN).bytes();
    let victim = Victim::start(Role::Receive);
    let both = [bytes, bytes].concat();
    victim.pass(&both, &[fd.as_fd()]).expect("it is sent");
    // The second message has no descriptor of its own; the first is complete, and its bytes end
    // with it.
    victim.after_close().is("done", "none");
}

#[test]
fn closed_in_mid_message_is_disconnected() {
    let fd = stand_in(LEN);
    let bytes = Message::about(fd.as_fd(), LEN).bytes();
    for end in [1, MESSAGE_BYTES / 2, MESSAGE_BYTES - 1] {
        let victim = Victim::start(Role::Receive);
        victim.pass(&bytes[..end], &[fd.as_fd()]).expect("it is sent");
        victim.after_close().is("receive", "disconnected");
    }
}

#[test]
fn silent_peer_times_out() {
    let started = std::time::Instant::now();
    Victim::start(Role::Brief).report().is("receive", "timed_out");
    assert!(started.elapsed() >= BRIEF);
}

#[test]
fn trickling_peer_times_out() {
    let fd = stand_in(LEN);
    let bytes = Message::about(fd.as_fd(), LEN).bytes();
    let victim = Victim::start(Role::Brief);
    let mut socket = victim.socket.try_clone().expect("a descriptor");
    victim.pass(&bytes[..1], &[fd.as_fd()]).expect("it is sent");
    let trickle = std::thread::spawn(move || {
        for byte in &bytes[1..] {
            // Each byte comes well before the deadline, all of them well after it.
            std::thread::sleep(BRIEF / 2);
            if socket.write_all(&[*byte]).is_err() {
                break;
            }
        }
    });
    victim.report().is("receive", "timed_out");
    trickle.join().expect("the writer ends");
}

#[test]
fn out_of_band_byte_does_not_block() {
    // poll(2) reports the byte as readable; recvmsg(2) without MSG_OOB skips it and waits for the
    // next one.
    let victim = Victim::start(Role::Receive);
    send(victim.socket.as_raw_fd(), b"x", MsgFlags::MSG_OOB).expect("the kernel has MSG_OOB");
    victim.report().is("receive", "protocol").contains("out-of-band");
}

#[test]
fn out_of_band_byte_is_rejected() {
    let fd = stand_in(LEN);
    let bytes = Message::about(fd.as_fd(), LEN).bytes();
    let victim = Victim::start(Role::Receive);
    victim.pass(&bytes[..32], &[fd.as_fd()]).expect("it is sent");
    send(victim.socket.as_raw_fd(), b"x", MsgFlags::MSG_OOB).expect("the kernel has MSG_OOB");
    let report = victim.report();
    report.is("receive", "protocol");
}

#[test]
fn peer_that_sends_nothing_times_out() {
    // The attacked process holds the attacker's end while it waits for the rest: no end of file
    // comes when the attacker dies.
    let victim = Victim::start(Role::Brief);
    let own = victim.socket.try_clone().expect("a descriptor");
    victim.pass(b"g", &[own.as_fd()]).expect("it is sent");
    drop(own);
    victim.report().is("receive", "timed_out");
}

#[test]
fn noise_is_refused() {
    for byte in [0, 0x67, 0xff] {
        let fd = stand_in(LEN);
        let victim = Victim::start(Role::Receive);
        victim
            .pass(&[byte; MESSAGE_BYTES], &[fd.as_fd()])
            .expect("it is sent");
        victim.after_close().is("receive", "protocol");
    }
}
