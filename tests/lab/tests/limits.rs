//! What happens when a process has no descriptors or no addresses left; alone in its program, since
//! limits are the process's.

mod common;

use std::fs::File;
use std::os::unix::net::UnixStream;

use common::{LONG, alone, buffer, counted, heap, refused, udmabuf};
use gaudi_dmabuf::{DmaBuf, ErrorKind, receive, send};
use gaudi_sys::dmabuf::{udmabuf_create, udmabuf_open};
use gaudi_sys::{Errno, Memfd, PAGE};
use nix::libc::{O_CLOEXEC, O_RDWR};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// What a process does without a free descriptor. `keep` descriptors are left to it.
fn exhausted<T>(keep: usize, work: impl FnOnce() -> T) -> T {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit");
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).expect("a lower limit");
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken.truncate(taken.len() - keep);
    let answer = work();
    drop(taken);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("the old limit");
    answer
}

fn list() -> String {
    std::fs::read_to_string("/sys/kernel/debug/dma_buf/bufinfo").expect("debugfs is mounted")
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn export_without_free_descriptor_is_emfile() {
    let _alone = alone();
    let device = udmabuf_open().expect("udmabuf is built in");
    let heap = gaudi_sys::heap::open("system").expect("the system heap is built in");
    let memory = Memfd::sparse(c"lab", PAGE).expect("a memory file");
    let before = list();
    let (udmabuf, buffer) = exhausted(0, || {
        (
            udmabuf_create(&device, &memory, 0, PAGE).map(drop),
            gaudi_sys::heap::allocate(&heap, PAGE, (O_RDWR | O_CLOEXEC) as u32, 0).map(drop),
        )
    });
    assert_eq!(udmabuf, Err(Errno::EMFILE), "udmabuf has no number to give");
    assert_eq!(buffer, Err(Errno::EMFILE), "nor has the heap");
    assert_eq!(list(), before, "no buffer stays behind without a descriptor");
    let again = udmabuf_create(&device, &memory, 0, PAGE).map(drop);
    assert_eq!(again, Ok(()), "with a free descriptor it works again");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn exporters_return_emfile() {
    let _alone = alone();
    let (heap, udmabuf, memory) = (heap(), udmabuf(), counted(1));
    let before = list();
    let (one, two) = exhausted(0, || (heap.allocate(PAGE), udmabuf.export(&memory, 0, PAGE)));
    refused(one, ErrorKind::TooManyFiles, "EMFILE");
    refused(two, ErrorKind::TooManyFiles, "EMFILE");
    assert_eq!(list(), before, "nothing stays behind");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_fence_needs_a_descriptor() {
    let _alone = alone();
    let buffer = buffer(1);
    let answer = exhausted(0, || {
        buffer.export_fence(gaudi_dmabuf::Directions::Read).map(drop)
    });
    refused(answer, ErrorKind::TooManyFiles, "EMFILE");
    buffer
        .export_fence(gaudi_dmabuf::Directions::Read)
        .expect("with a free descriptor it works again");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn receive_without_free_descriptor_leaks_nothing() {
    let _alone = alone();
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let buffer = buffer(1);
    let inode = buffer.identity().file.inode;
    send(&near, &buffer.whole().expect("a window"), LONG).expect("it goes");
    let answer = exhausted(0, || receive(&far, LONG));
    refused(answer, ErrorKind::TooManyFiles, "EMFILE");
    drop(buffer);
    assert_eq!(common::listed(inode), None, "the excess descriptor is closed");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fetch_needs_two_descriptors_keeps_one() {
    let _alone = alone();
    let buffer = buffer(1);
    let offer = buffer
        .whole()
        .and_then(|window| window.offer())
        .expect("an offer");
    for free in [0, 1] {
        refused(
            exhausted(free, || offer.fetch()),
            ErrorKind::TooManyFiles,
            "EMFILE",
        );
    }
    offer.fetch().expect("with free descriptors it works");
    assert_eq!(
        gaudi_sys::fd::references(&buffer),
        Ok(1),
        "what was fetched is closed again"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn unreadable_descriptor_is_closed() {
    let _alone = alone();
    let buffer = heap().allocate(PAGE).expect("a heap buffer");
    let twin = gaudi_sys::fd::duplicate(&buffer).expect("a duplicate");
    // What it is stands in /proc, which takes a descriptor to read.
    let answer = exhausted(0, || DmaBuf::from_fd(twin));
    refused(answer, ErrorKind::TooManyFiles, "EMFILE");
    assert_eq!(gaudi_sys::fd::references(&buffer), Ok(1), "it does not leak");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn mapping_without_address_space_is_enomem() {
    let _alone = alone();
    let buffer = heap().allocate(64 << 20).expect("a heap buffer");
    let window = buffer.whole().expect("a window");
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).expect("the limit");
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages: u64 = statm
        .split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .expect("a number");
    setrlimit(Resource::RLIMIT_AS, pages * PAGE + (32 << 20), hard).expect("a lower limit");
    let answer = window.attach_cpu("too large");
    setrlimit(Resource::RLIMIT_AS, soft, hard).expect("the old limit");
    refused(answer, ErrorKind::OutOfMemory, "ENOMEM");
    assert!(
        buffer.attachments().is_empty(),
        "a refused device is not attached"
    );
    window.attach_cpu("fits").expect("with addresses it works again");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn many_buffers_leave_no_trace() {
    let _alone = alone();
    let (before, memory, udmabuf) = (gaudi_dmabuf::stats(), counted(1), udmabuf());
    let start = list();
    for _ in 0..20 {
        let held: Vec<_> = (0..20)
            .map(|_| udmabuf.export(&memory, 0, PAGE).expect("a udmabuf"))
            .collect();
        assert_eq!(gaudi_dmabuf::stats().live, before.live + held.len() as u64);
    }
    let after = gaudi_dmabuf::stats();
    assert_eq!((after.live, after.bytes), (before.live, before.bytes));
    assert!(
        after.most_live >= 20 && after.most_bytes >= 20 * PAGE,
        "{after:?}"
    );
    assert_eq!(list(), start, "the kernel has none either");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn live_buffer_is_found_by_its_line() {
    let _alone = alone();
    let buffer = heap().allocate(PAGE).expect("a heap buffer");
    let line = line!() - 1;
    let leaks = gaudi_dmabuf::leaks();
    let inode = buffer.identity().file.inode;
    let leak = leaks.iter().find(|leak| leak.inode == inode).expect("it lives");
    assert!(leak.place.contains(&format!("limits.rs:{line}")), "{leak}");
    assert_eq!((leak.exporter, leak.bytes), ("system heap", PAGE));
}
