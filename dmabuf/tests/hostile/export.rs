//! What an importer can do to the exporter.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use gaudi_dmabuf::MESSAGE_BYTES;
use gaudi_sys::socket::receive_with_fds;
use gaudi_sys::{Errno, standin};
use nix::fcntl::SealFlag;

use crate::victim::{Role, Victim, is_errno, release, seal};

/// Starts an exporter and takes the stand-in that it sends.
fn imported() -> (Victim, OwnedFd) {
    let victim = Victim::start(Role::Export);
    let mut bytes = [0; MESSAGE_BYTES];
    let (count, mut fds) = receive_with_fds(&victim.socket, &mut bytes).expect("a window comes");
    assert_eq!((count, fds.len()), (MESSAGE_BYTES, 1));
    (victim, fds.remove(0))
}

fn every_seal(fd: BorrowedFd<'_>) -> [nix::Result<()>; 5] {
    [
        SealFlag::F_SEAL_FUTURE_WRITE,
        SealFlag::F_SEAL_WRITE,
        SealFlag::F_SEAL_SHRINK,
        SealFlag::F_SEAL_GROW,
        SealFlag::F_SEAL_SEAL,
    ]
    .map(|flag| seal(fd, flag))
}

#[test]
fn importer_cannot_seal_device_memory() {
    let (victim, fd) = imported();
    if standin::window(&fd).expect("/proc").is_none() {
        // A real dma-buf has no seals.
        assert!(
            every_seal(fd.as_fd())
                .iter()
                .all(|answer| is_errno(*answer, Errno::EINVAL))
        );
    } else {
        for answer in every_seal(fd.as_fd()) {
            assert!(is_errno(answer, Errno::EPERM), "{answer:?}");
        }
    }
    release(fd);
    // The next allocation gets the same pages: they are zeros, and they can be discarded again.
    victim.after_close().is("done", "none").contains("kept=0");
}

#[test]
fn importer_cannot_resize_device_memory() {
    let (victim, fd) = imported();
    for len in [0, 4096, 1 << 40] {
        let answer = nix::unistd::ftruncate(&fd, len);
        assert!(answer.is_err(), "{len}: {answer:?}");
    }
    release(fd);
    victim.after_close().is("done", "none").contains("kept=0");
}

#[test]
fn held_memory_is_in_use() {
    let (victim, fd) = imported();
    let report = victim.after_close();
    report.is("close", "in_use");
    drop(fd);
}

#[test]
fn released_memory_closes_on_retry() {
    let (mut victim, fd) = imported();
    victim.go_on();
    victim.hears(b'b');
    release(fd);
    victim.go_on();
    victim.report().is("done", "none").contains("kept=0");
}

#[test]
fn duplicates_and_mappings_keep_buffer_held() {
    let (victim, fd) = imported();
    let map = gaudi_sys::RawMapping::of_fd(&fd, 0, 4096).expect("it maps");
    drop(fd);
    victim.after_close().is("close", "in_use");
    drop(map);
}

#[test]
fn buffer_queued_to_its_importer_is_held() {
    let (victim, fd) = imported();
    let (a, b) = std::os::unix::net::UnixStream::pair().expect("a socket");
    gaudi_sys::socket::send_with_fds(&a, b"x", &[fd.as_fd()]).expect("it is sent");
    drop(fd);
    victim.after_close().is("close", "in_use");
    drop((a, b));
}

#[test]
fn importer_that_dies_releases_the_memory() {
    let (victim, fd) = imported();
    release(fd);
    victim.after_close().is("done", "none").contains("kept=0");
}

#[test]
fn peer_that_reads_nothing_times_out() {
    Victim::start(Role::SendToFull).report().is("send", "timed_out");
}

#[test]
fn peer_that_closes_is_disconnected() {
    let victim = Victim::start(Role::SendToClosed);
    victim
        .socket
        // Half a shutdown does not wake a sender whose socket is already full.
        .shutdown(std::net::Shutdown::Both)
        .expect("the socket is open");
    victim.report().is("send", "disconnected");
}
