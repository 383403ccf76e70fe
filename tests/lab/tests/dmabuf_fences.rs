//! Fences and CPU access: what waits for what, with work that a test begins and ends.

mod common;
mod vgem;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{LONG, buffer, heap, read, refused, word};
use gaudi_dmabuf::{CpuAttachment, Directions, DmaBuf, ErrorKind, Exporter, FenceStatus, SyncFile};
use gaudi_sys::dmabuf::{export_sync_file, import_sync_file};
use gaudi_sys::{Errno, PAGE};
use gaudi_uapi::dmabuf::DmaBufSyncFlags;
use vgem::Vgem;

/// How long something is watched that must not happen. A slow machine makes a test weaker, not
/// wrong.
const WATCHED: Duration = Duration::from_millis(200);

fn cpu(buffer: &DmaBuf) -> CpuAttachment {
    let window = buffer.whole().expect("a window");
    window.attach_cpu("cpu").expect("a CPU view")
}

/// That access of these directions begins after `release` only.
#[track_caller]
fn waits(buffer: &DmaBuf, directions: Directions, release: impl FnOnce()) {
    let (cpu, began) = (cpu(buffer), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let access = cpu.begin(directions).expect("access begins");
            began.store(true, Ordering::SeqCst);
            access.end().expect("access ends");
        });
        std::thread::sleep(WATCHED);
        let early = began.load(Ordering::SeqCst);
        release();
        waiter.join().expect("the fence signals");
        assert!(!early, "{directions:?} must wait for the work");
    });
}

/// That access of these directions begins while the work goes on.
#[track_caller]
fn passes(buffer: &DmaBuf, directions: Directions) {
    let cpu = cpu(buffer);
    cpu.begin(directions)
        .expect("access begins")
        .end()
        .expect("access ends");
}

fn status(buffer: &DmaBuf, directions: Directions) -> FenceStatus {
    let fence = buffer.export_fence(directions).expect("a sync_file");
    fence.status().expect("its status")
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn foreign_dma_buf_reports_its_exporter() {
    let vgem = Vgem::new();
    assert!(matches!(vgem.buffer.exporter(), Exporter::Unknown(name) if !name.is_empty()));
    assert!(vgem.buffer.exporter().is_dmabuf() && vgem.buffer.size() >= PAGE);
    assert_eq!(word(&vgem.buffer.whole().expect("a window"), 0), 0);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn idle_buffer_gives_signalled_fence() {
    for buffer in [
        buffer(1),
        heap().allocate(PAGE).expect("a heap buffer"),
        Vgem::new().buffer,
    ] {
        for directions in [Directions::Read, Directions::Write, Directions::ReadWrite] {
            assert_eq!(status(&buffer, directions), FenceStatus::Signalled, "{buffer:?}");
        }
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fence_times_out_then_signals() {
    let vgem = Vgem::new();
    let work = vgem.fence(true).expect("work begins");
    let fence = vgem.buffer.export_fence(Directions::Read).expect("a sync_file");
    assert_eq!(fence.status(), Ok(FenceStatus::Active));
    for short in [Duration::ZERO, Duration::from_millis(20)] {
        let error = fence.wait(short).expect_err("the work runs");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
    vgem.signal(work).expect("work ends");
    fence.wait(LONG).expect("it is done");
    assert_eq!(fence.status(), Ok(FenceStatus::Signalled));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_reader_waits_for_work_that_writes() {
    let vgem = Vgem::new();
    let work = vgem.fence(true).expect("work begins");
    waits(&vgem.buffer, Directions::Read, || {
        vgem.signal(work).expect("work ends");
    });
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_writer_waits_for_work_that_writes() {
    let vgem = Vgem::new();
    let work = vgem.fence(true).expect("work begins");
    waits(&vgem.buffer, Directions::Write, || {
        vgem.signal(work).expect("work ends");
    });
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn reader_does_not_wait_for_readers() {
    let vgem = Vgem::new();
    let work = vgem.fence(false).expect("work begins");
    passes(&vgem.buffer, Directions::Read);
    assert_eq!(vgem.signal(work), Ok(()), "it ran all the while");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_writer_waits_for_work_that_reads() {
    for directions in [Directions::Write, Directions::ReadWrite] {
        let vgem = Vgem::new();
        let work = vgem.fence(false).expect("work begins");
        waits(&vgem.buffer, directions, || vgem.signal(work).expect("work ends"));
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fence_depends_on_direction() {
    let vgem = Vgem::new();
    let work = vgem.fence(false).expect("work that reads begins");
    assert_eq!(status(&vgem.buffer, Directions::Read), FenceStatus::Signalled);
    assert_eq!(status(&vgem.buffer, Directions::Write), FenceStatus::Active);
    assert_eq!(status(&vgem.buffer, Directions::ReadWrite), FenceStatus::Active);
    vgem.signal(work).expect("work ends");
    assert_eq!(status(&vgem.buffer, Directions::Write), FenceStatus::Signalled);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn imported_fence_orders_another_buffer() {
    for target in [buffer(1), heap().allocate(PAGE).expect("a heap buffer")] {
        let vgem = Vgem::new();
        let work = vgem.fence(true).expect("work begins");
        let fence = vgem.buffer.export_fence(Directions::Read).expect("a sync_file");
        target
            .import_fence(&fence, Directions::Write)
            .expect("it is taken");
        assert_eq!(status(&target, Directions::Read), FenceStatus::Active);
        waits(&target, Directions::Read, || {
            vgem.signal(work).expect("work ends");
        });
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn read_fence_blocks_writers_only() {
    let (vgem, target) = (Vgem::new(), buffer(1));
    let work = vgem.fence(true).expect("work begins");
    let fence = vgem.buffer.export_fence(Directions::Read).expect("a sync_file");
    target
        .import_fence(&fence, Directions::Read)
        .expect("it is taken");
    passes(&target, Directions::Read);
    waits(&target, Directions::Write, || {
        vgem.signal(work).expect("work ends");
    });
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn merged_fence_needs_both() {
    let (one, two) = (Vgem::new(), Vgem::new());
    let (first, second) = (one.fence(true).expect("work"), two.fence(true).expect("work"));
    let fence = |vgem: &Vgem| vgem.buffer.export_fence(Directions::Read).expect("a sync_file");
    let both = fence(&one).merge(&fence(&two)).expect("merged");
    assert_eq!(both.fences().expect("its fences").len(), 2);
    one.signal(first).expect("the first ends");
    assert_eq!(both.status(), Ok(FenceStatus::Active), "one of two is not both");
    two.signal(second).expect("the second ends");
    both.wait(LONG).expect("both are done");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fence_names_its_driver() {
    let vgem = Vgem::new();
    let work = vgem.fence(true).expect("work begins");
    let fence = vgem.buffer.export_fence(Directions::Write).expect("a sync_file");
    let fences = fence.fences().expect("its fences");
    assert_eq!(fences.len(), 1, "{fence:?}");
    assert_eq!(
        (&*fences[0].driver, fences[0].status),
        ("vgem", FenceStatus::Active)
    );
    vgem.signal(work).expect("work ends");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_fence_outlives_its_buffer() {
    let vgem = Vgem::new();
    let work = vgem.fence(true).expect("work begins");
    let twin =
        DmaBuf::from_fd(gaudi_sys::fd::duplicate(&vgem.buffer).expect("a duplicate")).expect("a dma-buf");
    let fence = twin.export_fence(Directions::Read).expect("a sync_file");
    twin.close().expect("the handle is not in use");
    vgem.signal(work).expect("work ends");
    fence.wait(LONG).expect("it completes all the same");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn conflicting_work_is_refused_while_work_runs() {
    let vgem = Vgem::new();
    let work = vgem.fence(true).expect("work begins");
    assert_eq!(
        vgem.fence(false).err(),
        Some(Errno::EBUSY),
        "a reader of what is written"
    );
    vgem.signal(work).expect("work ends");
    let again = vgem.fence(false).expect("now it may");
    vgem.signal(again).expect("it ends");
    assert_eq!(vgem.signal(again), Err(Errno::ENOENT), "once");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fences_are_directional_sync_files() {
    let buffer = buffer(1);
    let none = DmaBufSyncFlags::START;
    assert_eq!(
        export_sync_file(&buffer, none).map(drop),
        Err(Errno::EINVAL),
        "no direction"
    );
    let fence = buffer.export_fence(Directions::Read).expect("a sync_file");
    assert_eq!(
        import_sync_file(&buffer, none, &fence),
        Err(Errno::EINVAL),
        "no direction"
    );
    let null = File::open("/dev/null").expect("/dev/null");
    let answer = import_sync_file(&buffer, DmaBufSyncFlags::READ, &null);
    assert_eq!(answer, Err(Errno::EINVAL), "no sync_file");
    assert_eq!(
        export_sync_file(&null, DmaBufSyncFlags::READ).map(drop),
        Err(Errno::ENOTTY),
        "no dma-buf"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn other_files_are_not_sync_files() {
    let null: OwnedFd = File::open("/dev/null").expect("/dev/null").into();
    refused(SyncFile::from_fd(null), ErrorKind::InvalidInput, "no sync_file");
    let dmabuf = gaudi_sys::fd::duplicate(buffer(1)).expect("a duplicate");
    refused(SyncFile::from_fd(dmabuf), ErrorKind::InvalidInput, "no sync_file");
    let fence = buffer(1).export_fence(Directions::Read).expect("a sync_file");
    let fd = gaudi_sys::fd::duplicate(&fence).expect("a duplicate");
    assert_eq!(
        SyncFile::from_fd(fd).expect("it is one").status(),
        Ok(FenceStatus::Signalled)
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn guards_cover_the_access_they_began() {
    let buffer = buffer(2);
    let cpu = cpu(&buffer);
    let writing = cpu.writing().expect("writing begins");
    writing.write(PAGE as usize - 2, b"edge").expect("inside");
    writing.end().expect("it ends");
    let editing = cpu.editing().expect("editing begins");
    let mut seen = [0; 4];
    editing.read(PAGE as usize - 2, &mut seen).expect("inside");
    editing.write(0, &seen).expect("inside");
    editing.end().expect("it ends");
    let reading = cpu.reading().expect("reading begins");
    reading.read(0, &mut seen).expect("inside");
    assert_eq!(&seen, b"edge");
    assert_eq!(
        reading.read(2 * PAGE as usize - 3, &mut seen),
        Err(Errno::EFAULT),
        "past the window"
    );
    reading.end().expect("it ends");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn unaligned_window_maps_at_its_byte() {
    let buffer = buffer(4);
    for (offset, len) in [(1, 1), (4095, 2), (4097, 8190), (12287, 4097), (0, 16384)] {
        let window = buffer.window(offset, len).expect("inside");
        let bytes = read(&window, 0, len as usize);
        let wanted: Vec<u8> = (offset..offset + len)
            .map(|at| ((at / 4 * 4) as u32).to_le_bytes()[(at % 4) as usize])
            .collect();
        assert_eq!(bytes, wanted, "{len} bytes at {offset}");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn mapping_outlives_every_descriptor() {
    let cpu = cpu(&heap().allocate(PAGE).expect("a heap buffer"));
    let inode = cpu.window().dmabuf().identity().file.inode;
    cpu.writing()
        .expect("writing begins")
        .write(0, b"kept")
        .expect("inside");
    assert!(common::listed(inode).is_some(), "the attachment holds it");
    let mut seen = [0; 4];
    cpu.reading()
        .expect("reading begins")
        .read(0, &mut seen)
        .expect("inside");
    assert_eq!(&seen, b"kept");
    drop(cpu);
    assert_eq!(common::listed(inode), None, "and lets it go");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn read_only_buffer_gives_no_cpu_view() {
    let node = gaudi_sys::heap::open("system").expect("the system heap");
    let flags = (nix::libc::O_RDONLY | nix::libc::O_CLOEXEC) as u32;
    let fd = gaudi_sys::heap::allocate(&node, PAGE, flags, 0).expect("a heap buffer");
    let buffer = DmaBuf::from_fd(fd).expect("a dma-buf");
    let window = buffer.whole().expect("a window");
    let error = window.attach_cpu("writer").expect_err("a view is for both");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::PermissionDenied, Some(Errno::EACCES))
    );
    assert!(
        buffer.attachments().is_empty(),
        "a refused device is not attached"
    );
}
