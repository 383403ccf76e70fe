//! dma-bufs of the kernel, as `gaudi-dmabuf` sees them: udmabuf and the system heap.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gaudi_dmabuf::{Directions, DmaBuf, ErrorKind, Exporter, receive, send};
use gaudi_lab::{kernel, memfd};
use gaudi_sys::dmabuf::{sync_end, sync_start, udmabuf_create, udmabuf_open};
use gaudi_sys::{Errno, Memfd, PAGE, RawMapping, heap};
use gaudi_uapi::dmabuf::DmaBufSyncFlags;
use nix::fcntl::SealFlag;
use nix::libc::{O_CLOEXEC, O_RDONLY, O_RDWR};

const MIB: u64 = 1 << 20;

/// Eight pages whose every 32-bit word is its own offset.
fn memory() -> Memfd {
    let memory = Memfd::sparse(c"lab", 8 * PAGE).expect("a memory file");
    let mapping = RawMapping::of_fd(&memory, 0, 8 * PAGE as usize).expect("it can be mapped");
    for offset in (0..8 * PAGE as usize).step_by(4) {
        mapping
            .write(offset, &(offset as u32).to_le_bytes())
            .expect("inside");
    }
    memory
}

fn udmabuf(memory: &Memfd, offset: u64, size: u64) -> Result<OwnedFd, Errno> {
    udmabuf_create(
        udmabuf_open().expect("every lab kernel has udmabuf built in"),
        memory,
        offset,
        size,
    )
}

fn from_heap(len: u64) -> DmaBuf {
    let heap = heap::open("system").expect("every lab kernel has the system heap built in");
    let fd = heap::allocate(&heap, len, (O_RDWR | O_CLOEXEC) as u32, 0).expect("a heap buffer");
    DmaBuf::from_fd(fd).expect("it is a dma-buf")
}

fn word(buffer: &DmaBuf, offset: usize) -> u32 {
    let cpu = buffer
        .whole()
        .and_then(|window| window.attach_cpu("reader"))
        .expect("a CPU view");
    let access = cpu.begin(Directions::Read).expect("access begins");
    let mut bytes = [0; 4];
    cpu.read(offset, &mut bytes).expect("inside");
    access.end().expect("access ends");
    u32::from_le_bytes(bytes)
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn udmabuf_has_the_size_of_its_window() {
    let buffer =
        DmaBuf::from_fd(udmabuf(&memory(), 2 * PAGE, 4 * PAGE).expect("a udmabuf")).expect("a dma-buf");
    assert_eq!(buffer.exporter(), &Exporter::Udmabuf, "fdinfo names its exporter");
    assert_eq!(
        buffer.size(),
        4 * PAGE,
        "its size is the window's, not the file's"
    );
    assert_eq!(
        buffer.identity().start,
        0,
        "a real dma-buf has an inode of its own"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn udmabuf_shares_pages_with_its_file() {
    let memory = memory();
    let buffer =
        DmaBuf::from_fd(udmabuf(&memory, 2 * PAGE, 4 * PAGE).expect("a udmabuf")).expect("a dma-buf");
    assert_eq!(
        word(&buffer, 16),
        2 * PAGE as u32 + 16,
        "the window begins at the third page"
    );
    let cpu = buffer
        .whole()
        .and_then(|window| window.attach_cpu("writer"))
        .expect("a CPU view");
    let access = cpu.begin(Directions::ReadWrite).expect("access begins");
    cpu.write(PAGE as usize, b"written through the dma-buf")
        .expect("inside");
    access.end().expect("access ends");
    let mut seen = [0; 27];
    RawMapping::of_fd(&memory, 3 * PAGE, PAGE as usize)
        .and_then(|mapping| mapping.read(0, &mut seen))
        .expect("the file is mapped");
    assert_eq!(
        &seen, b"written through the dma-buf",
        "file and dma-buf share their pages"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn udmabuf_outlives_file_and_device_node() {
    let fd = {
        let memory = memory();
        udmabuf(&memory, 0, 8 * PAGE).expect("a udmabuf")
    };
    let buffer = DmaBuf::from_fd(fd).expect("a dma-buf");
    assert_eq!(
        word(&buffer, 5 * PAGE as usize),
        5 * PAGE as u32,
        "the pages are held by the dma-buf"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn udmabuf_rejects_odd_and_empty_windows() {
    let memory = memory();
    for (offset, size, why) in [
        (0, 0, "no bytes"),
        (0, PAGE - 1, "a size that is no page multiple"),
        (1, PAGE, "an offset that is no page multiple"),
        (0, 9 * PAGE, "more than the file"),
        (8 * PAGE, PAGE, "an offset at the file's end"),
        (u64::MAX - PAGE + 1, PAGE, "a sum that wraps"),
        (PAGE, u64::MAX - PAGE + 1, "a size that wraps"),
    ] {
        let answer = udmabuf(&memory, offset, size).map(drop);
        assert_eq!(
            answer,
            Err(Errno::EINVAL),
            "{why}: {size} bytes at {offset:#x} are refused"
        );
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn udmabuf_limit_is_absent_on_7_x() {
    const LIMIT: &str = "/sys/module/udmabuf/parameters/size_limit_mb";
    let read = || std::fs::read_to_string(LIMIT).expect("the limit can be read");
    let default = if kernel() < (7, 0) { "64" } else { "2147483647" };
    assert_eq!(
        read().trim(),
        default,
        "MiB; what callers must read before they believe in a number"
    );
    std::fs::write(LIMIT, "64").expect("root sets the limit");
    let memory = Memfd::sparse(c"large", 65 * MIB).expect("a sparse file");
    let largest = udmabuf(&memory, 0, 64 * MIB).map(drop);
    let too_large = udmabuf(&memory, 0, 64 * MIB + PAGE).map(drop);
    std::fs::write(LIMIT, default).expect("root sets it back");
    assert_eq!(largest, Ok(()), "64 MiB are allowed");
    assert_eq!(too_large, Err(Errno::EINVAL), "a page more is refused");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn udmabuf_needs_sealed_writable_files() {
    let device = udmabuf_open().expect("udmabuf is built in");
    let shrink = SealFlag::F_SEAL_SHRINK;
    let ask = |seals| {
        let file = memfd::sealed(PAGE, seals).expect("a memory file");
        memfd::udmabuf(&device, &file, 0, PAGE).map(drop)
    };
    assert_eq!(ask(shrink), Ok(()), "sealed against shrinking is enough");
    assert_eq!(
        ask(SealFlag::empty()),
        Err(Errno::EINVAL),
        "a file that can shrink is refused"
    );
    assert_eq!(
        ask(shrink | SealFlag::F_SEAL_WRITE),
        Err(Errno::EINVAL),
        "a file that cannot be written is refused"
    );
    let null = File::open("/dev/null").expect("/dev/null");
    let answer = memfd::udmabuf(&device, &null, 0, PAGE).map(drop);
    assert!(
        matches!(answer, Err(Errno::EBADFD | Errno::EBADF | Errno::EINVAL)),
        "what is no memory file is refused, saw {answer:?}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn exports_differ_and_duplicates_are_equal() {
    let memory = memory();
    let fd = udmabuf(&memory, 0, PAGE).expect("a udmabuf");
    let duplicate = gaudi_sys::fd::duplicate(&fd).expect("a duplicate");
    let other = udmabuf(&memory, 0, PAGE).expect("another of the same pages");
    let identity = |fd| DmaBuf::from_fd(fd).expect("a dma-buf").identity();
    let (first, second, third) = (identity(fd), identity(duplicate), identity(other));
    assert_eq!(first, second, "dup(2) makes no new buffer");
    assert_ne!(first, third, "the same pages exported twice are two buffers");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn cpu_access_nests_in_each_direction() {
    let buffer = DmaBuf::from_fd(udmabuf(&memory(), 0, PAGE).expect("a udmabuf")).expect("a dma-buf");
    let cpu = buffer
        .whole()
        .and_then(|window| window.attach_cpu("cpu"))
        .expect("a CPU view");
    let outer = cpu.begin(Directions::ReadWrite).expect("the outer access begins");
    for directions in [Directions::Read, Directions::Write, Directions::ReadWrite] {
        let inner = cpu
            .begin(directions)
            .unwrap_or_else(|error| panic!("{directions:?}: {error}"));
        inner
            .end()
            .unwrap_or_else(|error| panic!("{directions:?}: {error}"));
    }
    outer.end().expect("the outer access ends");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn sync_refuses_no_direction_and_other_descriptors() {
    let fd = udmabuf(&memory(), 0, PAGE).expect("a udmabuf");
    assert_eq!(
        sync_start(&fd, DmaBufSyncFlags::START),
        Err(Errno::EINVAL),
        "an access has a direction"
    );
    let null = File::open("/dev/null").expect("/dev/null");
    assert_eq!(
        sync_end(&null, DmaBufSyncFlags::READ),
        Err(Errno::ENOTTY),
        "a file is no dma-buf"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn mapping_past_the_end_is_refused() {
    let fd = udmabuf(&memory(), 0, 2 * PAGE).expect("a udmabuf");
    let past = RawMapping::of_fd(&fd, PAGE, 2 * PAGE as usize).map(drop);
    assert_eq!(
        past,
        Err(Errno::EINVAL),
        "our window check stands before the kernel's own"
    );
    let buffer = DmaBuf::from_fd(fd).expect("a dma-buf");
    let error = buffer
        .window(PAGE, 2 * PAGE)
        .expect_err("the window leaves the buffer");
    assert_eq!(
        error.kind(),
        ErrorKind::InvalidInput,
        "and it is refused with a reason: {error}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn memfd_is_not_a_dma_buf() {
    let file = memfd::sealed(PAGE, SealFlag::F_SEAL_SHRINK).expect("a memory file");
    let error = DmaBuf::from_fd(file).expect_err("udmabuf was never asked");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "saw {error}");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn window_passed_by_socket_keeps_identity() {
    let buffer = DmaBuf::from_fd(udmabuf(&memory(), 0, 4 * PAGE).expect("a udmabuf")).expect("a dma-buf");
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    send(
        &near,
        &buffer.window(PAGE, 2 * PAGE).expect("a window"),
        Duration::from_secs(5),
    )
    .expect("it is sent");
    let came = receive(&far, Duration::from_secs(60)).expect("it comes");
    assert_eq!(
        came.dmabuf().identity(),
        buffer.identity(),
        "an inode is the same in every process"
    );
    assert_eq!(
        (came.offset(), came.len()),
        (PAGE, 2 * PAGE),
        "the window travels with it"
    );
    assert_eq!(
        came.dmabuf().exporter(),
        &Exporter::Udmabuf,
        "the receiver asks the kernel, not the sender"
    );
    drop(buffer);
    assert_eq!(
        word(came.dmabuf(), PAGE as usize),
        PAGE as u32,
        "it lives while the receiver holds it"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn kernel_lists_live_buffer_with_exporter() {
    let list = || std::fs::read_to_string("/sys/kernel/debug/dma_buf/bufinfo").expect("debugfs is mounted");
    let buffer = from_heap(3 * PAGE);
    let inode = buffer.identity().file.inode;
    let row = |list: &str| {
        list.lines()
            .find(|line| line.contains(&format!("{inode:08}")))
            .map(str::to_owned)
    };
    let seen = row(&list()).unwrap_or_else(|| panic!("inode {inode} is in bufinfo"));
    assert!(seen.contains("system"), "its exporter is shown: {seen}");
    drop(buffer);
    assert_eq!(row(&list()), None, "a closed buffer is not listed");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn the_system_heap_gives_zeroed_whole_pages() {
    let buffer = from_heap(PAGE + 1);
    assert_eq!(
        buffer.size(),
        2 * PAGE,
        "a size is rounded up to pages, and the dma-buf reports that size"
    );
    assert_eq!(
        buffer.exporter(),
        &Exporter::SystemHeap,
        "fdinfo names its exporter"
    );
    for offset in (0..2 * PAGE as usize).step_by(4) {
        assert_eq!(
            word(&buffer, offset),
            0,
            "no other process's bytes at {offset:#x}"
        );
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn heap_buffer_keeps_cpu_writes() {
    let buffer = from_heap(MIB);
    let cpu = buffer
        .whole()
        .and_then(|window| window.attach_cpu("writer"))
        .expect("a CPU view");
    let access = cpu.begin(Directions::Write).expect("access begins");
    cpu.write(MIB as usize - 4, &0xfeed_cafe_u32.to_le_bytes())
        .expect("inside");
    access.end().expect("access ends");
    drop(cpu);
    assert_eq!(
        word(&buffer, MIB as usize - 4),
        0xfeed_cafe,
        "a second mapping sees the first one's bytes"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn heap_rejects_bad_length_and_flags() {
    let heap = heap::open("system").expect("the system heap is built in");
    let good = (O_RDWR | O_CLOEXEC) as u32;
    let ask = |len, fd_flags, heap_flags| heap::allocate(&heap, len, fd_flags, heap_flags).map(drop);
    assert_eq!(ask(0, good, 0), Err(Errno::EINVAL), "no bytes");
    assert_eq!(
        ask(PAGE, 0x8000_0000, 0),
        Err(Errno::EINVAL),
        "a flag of no open(2)"
    );
    assert_eq!(ask(PAGE, good, 1 << 63), Err(Errno::EINVAL), "a flag of no heap");
    // There is no other limit: a length beyond memory is no ENOMEM, it brings the OOM killer upon
    // the caller.
    assert_eq!(
        ask(u64::MAX, good, 0),
        Err(Errno::EINVAL),
        "a length that wraps when it is rounded up"
    );
    assert_eq!(
        heap::open("no-such-heap").map(drop),
        Err(Errno::ENOENT),
        "a heap by another name"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn read_only_heap_buffer_maps_read_only() {
    let heap = heap::open("system").expect("the system heap is built in");
    let fd = heap::allocate(&heap, PAGE, (O_RDONLY | O_CLOEXEC) as u32, 0).expect("a heap buffer");
    let mapped = RawMapping::of_fd(fd.as_fd(), 0, PAGE as usize).map(drop);
    assert_eq!(mapped, Err(Errno::EACCES), "the descriptor's own mode decides");
}
