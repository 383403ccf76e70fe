//! Descriptors that are not what a window needs.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use gaudi_dmabuf::DmaBuf;
use gaudi_sys::{Errno, Memfd, standin};
use nix::fcntl::{OFlag, SealFlag, open};
use nix::libc::{F_RDLCK, F_WRLCK};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

use crate::victim::{Message, Report, Role, Victim, lock, seal};

const LEN: u64 = 4 << 20;

/// A stand-in as our export makes it.
pub(crate) fn stand_in(len: u64) -> OwnedFd {
    let memory = Memfd::sparse(standin::MEMFD_NAME, len).expect("a memfd");
    standin::export(&memory, standin::Window { offset: 0, len }).expect("a stand-in")
}

pub(crate) fn buffer(len: u64) -> DmaBuf {
    DmaBuf::from_fd(stand_in(len)).expect("a stand-in")
}

/// A memfd with a stand-in's name and lock, with these flags and seals.
pub(crate) fn forged(flags: MFdFlags, seals: SealFlag) -> nix::Result<OwnedFd> {
    let file = memfd_create(
        standin::MEMFD_NAME,
        flags | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
    )?;
    nix::unistd::ftruncate(&file, LEN as i64)?;
    seal(file.as_fd(), seals)?;
    lock(file.as_fd(), F_RDLCK, 0, LEN as i64)?;
    Ok(file)
}

/// Another open file description of a file, opened through `/proc`.
fn again(fd: &OwnedFd, flags: OFlag) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    open(path.as_str(), flags | OFlag::O_CLOEXEC, Mode::empty()).expect("it opens")
}

/// Passes a descriptor with a message that fits it, and returns the report.
#[track_caller]
fn attack(fd: &OwnedFd) -> Report {
    let victim = Victim::start(Role::Receive);
    let message = Message::about(fd.as_fd(), LEN);
    victim.pass(&message.bytes(), &[fd.as_fd()]).expect("it is sent");
    victim.after_close()
}

#[track_caller]
fn is_refused(fd: &OwnedFd, words: &str) {
    attack(fd).is("receive", "protocol").contains(words);
}

#[test]
fn huge_page_memfd_is_refused() {
    // No huge pages are reserved: the first touch of its memory is a SIGBUS.
    match forged(MFdFlags::MFD_HUGETLB, SealFlag::F_SEAL_SHRINK) {
        Ok(file) => is_refused(&file, "tmpfs"),
        Err(errno) => panic!("this kernel makes no memfd with MFD_HUGETLB: {errno}"),
    }
}

#[test]
fn unsealed_memfd_is_refused() {
    let file = forged(MFdFlags::empty(), SealFlag::empty()).expect("a memfd");
    is_refused(&file, "F_SEAL_SHRINK");
}

#[test]
fn memfd_sealed_against_sealing_is_refused() {
    let file = forged(MFdFlags::empty(), SealFlag::F_SEAL_SEAL).expect("a memfd");
    is_refused(&file, "F_SEAL_SHRINK");
}

#[test]
fn memfd_sealed_against_growing_only_is_refused() {
    let file = forged(MFdFlags::empty(), SealFlag::F_SEAL_GROW).expect("a memfd");
    is_refused(&file, "F_SEAL_SHRINK");
}

#[test]
fn write_sealed_memfd_is_refused() {
    for seals in [SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_FUTURE_WRITE] {
        let file = forged(MFdFlags::empty(), SealFlag::F_SEAL_SHRINK | seals).expect("a memfd");
        is_refused(&file, "writ");
    }
}

#[test]
fn window_past_the_file_is_refused() {
    let file = forged(MFdFlags::empty(), SealFlag::empty()).expect("a memfd");
    nix::unistd::ftruncate(&file, LEN as i64 / 2).expect("no seal forbids it");
    seal(file.as_fd(), SealFlag::F_SEAL_SHRINK).expect("no seal forbids it");
    is_refused(&file, "leaves");
}

#[test]
fn lock_beyond_the_largest_offset_is_rejected() {
    for (start, len) in [(0, 0), (0, i64::MAX), (i64::MAX, 1), (4096, i64::MAX - 4096)] {
        let file = forged(MFdFlags::empty(), SealFlag::F_SEAL_SHRINK).expect("a memfd");
        lock(file.as_fd(), nix::libc::F_UNLCK, 0, 0).expect("it is ours");
        lock(file.as_fd(), F_RDLCK, start, len).expect("a lock");
        attack(&file).is("receive", "protocol");
    }
}

#[test]
fn memfd_without_a_lock_is_refused() {
    let file = forged(MFdFlags::empty(), SealFlag::F_SEAL_SHRINK).expect("a memfd");
    lock(file.as_fd(), nix::libc::F_UNLCK, 0, 0).expect("it is ours");
    is_refused(&file, "memfd:gaudi-standin");
    lock(file.as_fd(), F_WRLCK, 0, LEN as i64).expect("a lock");
    is_refused(&file, "memfd:gaudi-standin");
}

#[test]
fn read_only_stand_in_is_refused() {
    let file = forged(MFdFlags::empty(), SealFlag::F_SEAL_SHRINK).expect("a memfd");
    let reader = again(&file, OFlag::O_RDONLY);
    lock(reader.as_fd(), F_RDLCK, 0, LEN as i64).expect("a lock");
    is_refused(&reader, "read");
}

#[test]
fn path_descriptors_are_refused() {
    let file = forged(MFdFlags::empty(), SealFlag::F_SEAL_SHRINK).expect("a memfd");
    attack(&again(&file, OFlag::O_PATH)).is("receive", "protocol");
    let folder = open("/proc", OFlag::O_PATH, Mode::empty()).expect("a folder");
    attack(&folder).is("receive", "protocol");
}

#[test]
fn locked_regular_files_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared = std::path::Path::new("/dev/shm");
    for place in [folder.path(), shared] {
        let Ok(file) = tempfile::Builder::new()
            .prefix("memfd:gaudi-standin")
            .tempfile_in(place)
        else {
            panic!("{} is not writable", place.display());
        };
        let file: OwnedFd = file.into_file().into();
        nix::unistd::ftruncate(&file, LEN as i64).expect("a file");
        lock(file.as_fd(), F_RDLCK, 0, LEN as i64).expect("a lock");
        is_refused(&file, "not a dma-buf");
    }
}

#[test]
fn devices_folders_and_pipes_are_refused() {
    for path in ["/dev/zero", "/dev/null", "/proc", "/proc/self/mem"] {
        let file: OwnedFd = File::open(path).expect("it opens").into();
        is_refused(&file, "not a dma-buf");
    }
    let (reader, writer) = nix::unistd::pipe().expect("a pipe");
    is_refused(&reader, "pipe:");
    is_refused(&writer, "pipe:");
}

#[test]
fn kernel_objects_are_refused() {
    let event = gaudi_sys::Event::new().expect("an eventfd");
    is_refused(
        &gaudi_sys::fd::duplicate(&event).expect("a descriptor"),
        "eventfd",
    );
    let process = gaudi_sys::pidfd::open(std::process::id()).expect("a pidfd");
    is_refused(&process, "not a dma-buf");
    let epoll = nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::EPOLL_CLOEXEC);
    is_refused(&epoll.expect("an epoll").0, "eventpoll");
}

#[test]
fn sockets_and_its_own_socket_are_refused() {
    let victim = Victim::start(Role::Receive);
    let own = gaudi_sys::fd::duplicate(&victim.socket).expect("a descriptor");
    let message = Message::about(own.as_fd(), LEN);
    victim.pass(&message.bytes(), &[own.as_fd()]).expect("it is sent");
    victim.after_close().is("receive", "protocol").contains("socket:");
}

#[test]
fn huge_stand_in_is_used_or_refused() {
    // Sparse: all of an address space. It may be mapped or not; nothing may be allocated for each
    // of its pages.
    let memory = Memfd::sparse(standin::MEMFD_NAME, 1 << 46).expect("a sparse memfd");
    let window = standin::Window {
        offset: 0,
        len: 1 << 46,
    };
    let fd = standin::export(&memory, window).expect("a stand-in");
    let victim = Victim::start(Role::Receive);
    let message = Message::about(fd.as_fd(), 1 << 46);
    victim.pass(&message.bytes(), &[fd.as_fd()]).expect("it is sent");
    let report = victim.after_close();
    if report.step != "done" {
        report.is("map", "out_of_memory");
        assert_eq!(report.errno, Errno::ENOMEM as i32);
    }
    assert_eq!(report.leaked, 0, "{report:?}");
}
