//! Changes between check and use, and the receiver's limits.

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

use gaudi_sys::Errno;
use nix::fcntl::{FallocateFlags, SealFlag, fallocate};
use nix::libc::F_UNLCK;
use nix::sys::memfd::MFdFlags;

use crate::object::{forged, stand_in};
use crate::victim::{Message, Role, Victim, is_errno, lock, seal};

const LEN: u64 = 4 << 20;

fn punch(fd: std::os::fd::BorrowedFd<'_>) -> nix::Result<()> {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(fd, flags, 0, LEN as i64)
}

#[test]
fn truncation_after_the_check_fails() {
    let fd = forged(MFdFlags::empty(), SealFlag::F_SEAL_SHRINK).expect("a memfd");
    let mut victim = Victim::start(Role::Receive);
    let message = Message::about(fd.as_fd(), LEN);
    victim.pass(&message.bytes(), &[fd.as_fd()]).expect("it is sent");
    victim.has_received();
    assert!(is_errno(nix::unistd::ftruncate(&fd, 0), Errno::EPERM), "the seal");
    nix::unistd::ftruncate(&fd, 2 * LEN as i64).expect("a larger file harms no mapping");
    victim.go_on();
    victim.after_close().is("done", "none");
}

#[test]
fn map_fails_if_sealed_after_check() {
    for seals in [SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_FUTURE_WRITE] {
        let fd = forged(MFdFlags::empty(), SealFlag::F_SEAL_SHRINK).expect("a memfd");
        let mut victim = Victim::start(Role::Receive);
        let message = Message::about(fd.as_fd(), LEN);
        victim.pass(&message.bytes(), &[fd.as_fd()]).expect("it is sent");
        victim.has_received();
        seal(fd.as_fd(), seals).expect("the memfd is the attacker's");
        victim.go_on();
        victim.after_close().is("map", "permission_denied");
    }
}

#[test]
fn holes_punched_while_mapped_read_zeros() {
    let fd = forged(MFdFlags::empty(), SealFlag::F_SEAL_SHRINK).expect("a memfd");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                punch(fd.as_fd()).expect("no seal forbids it");
            }
        });
        let victim = Victim::start(Role::Receive);
        let message = Message::about(fd.as_fd(), LEN);
        victim.pass(&message.bytes(), &[fd.as_fd()]).expect("it is sent");
        let report = victim.after_close();
        ended.store(true, Ordering::Relaxed);
        report.is("done", "none").contains("first=0");
    });
}

#[test]
fn lock_changed_after_the_check_moves_nothing() {
    let fd = stand_in(LEN);
    let mut victim = Victim::start(Role::Receive);
    let message = Message::about(fd.as_fd(), LEN);
    victim.pass(&message.bytes(), &[fd.as_fd()]).expect("it is sent");
    victim.has_received();
    lock(fd.as_fd(), F_UNLCK, 0, 0).expect("the description is shared");
    lock(fd.as_fd(), nix::libc::F_RDLCK, 1 << 40, 1 << 20).expect("a lock past the end");
    victim.go_on();
    victim.after_close().is("done", "none");
}

#[test]
fn full_descriptor_table_is_too_many_files() {
    let fd = stand_in(LEN);
    let bytes = Message::about(fd.as_fd(), LEN).bytes();
    let victim = Victim::start(Role::Full);
    victim.pass(&bytes, &[fd.as_fd()]).expect("it is sent");
    victim.after_close().is("receive", "too_many_files");
}

#[test]
fn last_descriptor_taken_is_too_many_files() {
    // The window's descriptor takes the last free number: the checks behind it can open nothing.
    let fd = stand_in(LEN);
    let bytes = Message::about(fd.as_fd(), LEN).bytes();
    let victim = Victim::start(Role::Last);
    victim.pass(&bytes, &[fd.as_fd()]).expect("it is sent");
    victim.after_close().is("receive", "too_many_files");
}

#[test]
fn descriptors_past_the_last_free_one_close() {
    let fd = stand_in(LEN);
    let bytes = Message::about(fd.as_fd(), LEN).bytes();
    let victim = Victim::start(Role::Last);
    victim.pass(&bytes, &[fd.as_fd(); 3]).expect("it is sent");
    victim.after_close().is("receive", "too_many_files");
}
