//! The library's exporters on a real kernel: what they make, and that they refuse, with a reason,
//! what the kernel would refuse without.

mod common;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use common::{alone, buffer, counted, heap, read, refused, udmabuf, word, write};
use gaudi_dmabuf::export::{stand_in, udmabuf as sealed, vfio};
use gaudi_dmabuf::{Directions, DmaBuf, ErrorKind, Exporter, Heap};
use gaudi_lab::nic::Nic;
use gaudi_lab::rxe::{Build, skips};
use gaudi_lab::uverbs::{DmaBufRegion, Request, access, status};
use gaudi_lab::vfio::{BAR, BAR_LEN, Exclusive};
use gaudi_lab::{kernel, memfd};
use gaudi_sys::dmabuf::{UdmabufPart, udmabuf_create, udmabuf_create_list, udmabuf_open};
use gaudi_sys::{Errno, Memfd, PAGE, RawMapping};
use gaudi_uapi::dmabuf::VfioRegionDmaRange;
use nix::fcntl::SealFlag;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn heaps_are_found_by_name() {
    let names = Heap::list().expect("/dev/dma_heap is there");
    assert!(names.iter().any(|name| name == "system"), "saw {names:?}");
    for name in &names {
        let heap = Heap::open(name).expect("root opens every heap");
        assert_eq!(heap.name(), name);
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn missing_heap_error_lists_present_heaps() {
    let error = refused(Heap::open("nowhere"), ErrorKind::NotFound, "nowhere");
    assert!(error.to_string().contains("system"), "saw {error}");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn heap_memory_is_zeroed_and_rounded() {
    let buffer = heap().allocate(3 * PAGE + 1).expect("a heap buffer");
    assert_eq!(
        (buffer.size(), buffer.exporter()),
        (4 * PAGE, &Exporter::SystemHeap)
    );
    let whole = buffer.whole().expect("a window");
    assert_eq!(read(&whole, 0, 4 * PAGE as usize), vec![0; 4 * PAGE as usize]);
    write(&whole, 4 * PAGE as usize - 5, b"heap!");
    assert_eq!(read(&whole, 4 * PAGE as usize - 5, 5), b"heap!");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_heap_buffers_share_nothing() {
    let (one, two) = (
        heap().allocate(PAGE).expect("one"),
        heap().allocate(PAGE).expect("two"),
    );
    assert_ne!(one.identity(), two.identity());
    write(&one.whole().expect("a window"), 0, b"one");
    assert_eq!(read(&two.whole().expect("a window"), 0, 3), [0; 3]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn heap_rejects_empty_and_wrapping_size() {
    for wrong in [0, u64::MAX, u64::MAX - PAGE + 2, 1 << 63] {
        refused(
            heap().allocate(wrong),
            ErrorKind::InvalidInput,
            "no memory can have",
        );
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn heap_rejects_more_than_free_memory() {
    // The kernel has no such check: it would kill this process and others.
    for much in [16 * GIB, 1 << 50] {
        let error = refused(heap().allocate(much), ErrorKind::OutOfMemory, "MemAvailable");
        assert_eq!(error.errno(), Some(Errno::ENOMEM));
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn udmabuf_limits_match_module_parameters() {
    let _alone = alone();
    let limits = udmabuf().limits();
    let wanted = if kernel() < (7, 0) {
        64 * MIB
    } else {
        2_147_483_647 * MIB
    };
    assert_eq!(limits.bytes, Some(wanted), "size_limit_mb of this kernel");
    assert_eq!(limits.parts, Some(1024), "list_limit");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn window_maps_only_its_part() {
    let memory = counted(8);
    let buffer = udmabuf().export(&memory, 3 * PAGE, 2 * PAGE).expect("a udmabuf");
    assert_eq!((buffer.size(), buffer.exporter()), (2 * PAGE, &Exporter::Udmabuf));
    let whole = buffer.whole().expect("a window");
    assert_eq!(word(&whole, 0), 3 * PAGE as u32);
    assert_eq!(word(&whole, 2 * PAGE as usize - 4), 5 * PAGE as u32 - 4);
}

/// Each is refused by ours with its reason, and by the kernel without.
fn both_refuse(offset: u64, size: u64, reason: &str) {
    let memory = counted(4);
    refused(
        udmabuf().export(&memory, offset, size),
        ErrorKind::InvalidInput,
        reason,
    );
    let device = udmabuf_open().expect("udmabuf");
    let answer = udmabuf_create(&device, &memory, offset, size).map(drop);
    assert_eq!(
        answer,
        Err(Errno::EINVAL),
        "the kernel refuses {size} at {offset:#x} too"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn empty_window_is_rejected_as_by_kernel() {
    both_refuse(0, 0, "nothing to export");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn odd_offset_is_rejected_as_by_kernel() {
    both_refuse(512, PAGE, "offset is not page aligned");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn odd_size_is_rejected_as_by_kernel() {
    both_refuse(0, PAGE + 1, "size is not a multiple");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn window_past_eof_is_rejected_like_kernel() {
    both_refuse(3 * PAGE, 2 * PAGE, "leaves the memory");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn wrapping_window_is_rejected_as_by_kernel() {
    both_refuse(u64::MAX - PAGE + 1, PAGE, "leaves the memory");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn size_limit_error_names_its_parameter() {
    const LIMIT: &str = "/sys/module/udmabuf/parameters/size_limit_mb";
    let _alone = alone();
    let before = std::fs::read_to_string(LIMIT).expect("the limit can be read");
    std::fs::write(LIMIT, "1").expect("root sets it");
    let memory = Memfd::sparse(c"limit", 2 * MIB).expect("a file");
    let fits = udmabuf().export(&memory, 0, MIB).map(drop);
    let answer = udmabuf().export(&memory, 0, MIB + PAGE);
    let kernel = udmabuf_create(udmabuf_open().expect("udmabuf"), &memory, 0, MIB + PAGE).map(drop);
    std::fs::write(LIMIT, before.trim()).expect("root sets it back");
    fits.expect("the limit itself is allowed");
    refused(answer, ErrorKind::InvalidInput, "size_limit_mb");
    assert_eq!(kernel, Err(Errno::EINVAL), "the kernel refuses it too");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn huge_file_is_rejected_without_kernel_warning() {
    let _alone = alone();
    // 7.3 has no limit and answers such a request with a WARNING, which fails the whole run; 6.12
    // with its limit.
    let memory = Memfd::sparse(c"huge", 1 << 44).expect("a sparse file takes no memory");
    let wanted = if kernel() < (7, 0) {
        ErrorKind::InvalidInput
    } else {
        ErrorKind::OutOfMemory
    };
    let error = udmabuf()
        .export(&memory, 0, 1 << 44)
        .expect_err("16 TiB are nowhere");
    assert_eq!(error.kind(), wanted, "saw {error}");
    let error = udmabuf()
        .export(&memory, 0, 16 * GIB)
        .expect_err("16 GiB are not here");
    assert_eq!(error.kind(), wanted, "saw {error}");
}

fn part(memory: &Memfd, page: u64, pages: u64) -> UdmabufPart<'_> {
    UdmabufPart {
        memfd: memory,
        offset: page * PAGE,
        size: pages * PAGE,
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn list_joins_parts_in_order() {
    let memory = counted(8);
    let parts = [part(&memory, 6, 1), part(&memory, 0, 2), part(&memory, 3, 1)];
    let buffer = udmabuf().export_list(&parts).expect("a udmabuf");
    assert_eq!(buffer.size(), 4 * PAGE);
    let whole = buffer.whole().expect("a window");
    let pages: Vec<u32> = (0..4)
        .map(|page| word(&whole, page * PAGE as usize) / PAGE as u32)
        .collect();
    assert_eq!(pages, [6, 0, 1, 3]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_list_takes_parts_of_several_files() {
    let (one, two) = (counted(2), counted(4));
    let buffer = udmabuf()
        .export_list(&[part(&two, 3, 1), part(&one, 1, 1)])
        .expect("a udmabuf");
    let whole = buffer.whole().expect("a window");
    write(&whole, PAGE as usize, b"second file");
    let mut seen = [0; 11];
    let file = RawMapping::of_fd(&one, PAGE, PAGE as usize).expect("mapped");
    file.read(0, &mut seen).expect("inside");
    assert_eq!(&seen, b"second file");
    assert_eq!(word(&whole, 0), 3 * PAGE as u32);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn repeated_page_in_list_is_shared() {
    let memory = counted(2);
    let buffer = udmabuf()
        .export_list(&[part(&memory, 1, 1), part(&memory, 1, 1)])
        .expect("a udmabuf");
    let whole = buffer.whole().expect("a window");
    write(&whole, 8, b"both");
    assert_eq!(read(&whole, PAGE as usize + 8, 4), b"both");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn empty_list_is_rejected_as_by_kernel() {
    refused(
        udmabuf().export_list(&[]),
        ErrorKind::InvalidInput,
        "nothing to export",
    );
    let answer = udmabuf_create_list(udmabuf_open().expect("udmabuf"), &[]).map(drop);
    assert_eq!(answer, Err(Errno::EINVAL));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn list_with_one_bad_part_fails() {
    let memory = counted(2);
    let parts = [part(&memory, 0, 1), part(&memory, 2, 1)];
    refused(
        udmabuf().export_list(&parts),
        ErrorKind::InvalidInput,
        "leaves the memory",
    );
    let answer = udmabuf_create_list(udmabuf_open().expect("udmabuf"), &parts).map(drop);
    assert_eq!(answer, Err(Errno::EINVAL));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn list_limit_matches_module_parameter() {
    let memory = counted(1);
    let most = udmabuf().limits().parts.expect("list_limit") as usize;
    let parts = vec![part(&memory, 0, 1); most + 1];
    let largest = udmabuf().export_list(&parts[..most]).expect("the limit itself");
    assert_eq!(largest.size(), most as u64 * PAGE);
    refused(
        udmabuf().export_list(&parts),
        ErrorKind::InvalidInput,
        "list_limit",
    );
    let answer = udmabuf_create_list(udmabuf_open().expect("udmabuf"), &parts).map(drop);
    assert_eq!(answer, Err(Errno::EINVAL), "the kernel counts them too");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn udmabuf_keeps_pages_after_hole_punch() {
    let memory = counted(2);
    let buffer = udmabuf().export(&memory, 0, 2 * PAGE).expect("a udmabuf");
    memory.punch_hole(0, 2 * PAGE).expect("the seals allow it");
    let whole = buffer.whole().expect("a window");
    assert_eq!(
        word(&whole, PAGE as usize),
        PAGE as u32,
        "the buffer holds its pages"
    );
    let mut now = [0xff; 4];
    let file = RawMapping::of_fd(&memory, PAGE, PAGE as usize).expect("mapped");
    file.read(0, &mut now).expect("inside");
    assert_eq!(
        now, [0; 4],
        "the file has others: memory that is exported must not be punched"
    );
}

fn adopt(seals: SealFlag, len: u64) -> gaudi_dmabuf::Result<Memfd> {
    sealed::adopt(memfd::sealed(len, seals).expect("a memory file"))
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn foreign_file_is_accepted_where_udmabuf_accepts() {
    let memory = adopt(SealFlag::F_SEAL_SHRINK, 2 * PAGE).expect("sealed as it must be");
    assert_eq!(memory.len(), 2 * PAGE);
    udmabuf().export(&memory, PAGE, PAGE).expect("a udmabuf");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn shrinkable_foreign_file_is_rejected_by_seal() {
    refused(
        adopt(SealFlag::F_SEAL_GROW, PAGE),
        ErrorKind::InvalidInput,
        "F_SEAL_SHRINK",
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn unwritable_foreign_file_is_rejected_by_seal() {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE;
    refused(adopt(seals, PAGE), ErrorKind::InvalidInput, "F_SEAL_WRITE");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn regular_file_is_rejected() {
    let open = |path: &str| OwnedFd::from(std::fs::File::open(path).expect("it is there"));
    refused(
        sealed::adopt(open("/proc/version")),
        ErrorKind::InvalidInput,
        "memfd_create",
    );
    // The guest's root is a tmpfs. Its files have seals like a memfd's, but never the one that
    // udmabuf wants.
    refused(
        sealed::adopt(open("/proc/self/exe")),
        ErrorKind::InvalidInput,
        "F_SEAL_SHRINK",
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn stand_in_reports_itself_beside_real_ones() {
    let memory = stand_in::memory(4 * PAGE).expect("memory");
    let buffer = stand_in::export(&memory, PAGE, 2 * PAGE).expect("a stand-in");
    assert!(!buffer.exporter().is_dmabuf());
    assert!(format!("{buffer:?}").contains("no dma-buf"), "{buffer:?}");
    refused(
        buffer.export_fence(Directions::Read),
        ErrorKind::Unsupported,
        "no fences",
    );
    refused(buffer.set_name("name"), ErrorKind::Unsupported, "stand-in");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn stand_in_memory_exports_as_dma_buf() {
    let memory = stand_in::memory(4 * PAGE).expect("memory");
    let stand_in = stand_in::export(&memory, PAGE, PAGE).expect("a stand-in");
    let real = udmabuf()
        .export(&memory, PAGE, PAGE)
        .expect("its seals are udmabuf's");
    write(&stand_in.whole().expect("a window"), 0, b"same page");
    assert_eq!(read(&real.whole().expect("a window"), 0, 9), b"same page");
    assert_ne!(real.identity(), stand_in.identity());
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn name_appears_in_kernel_and_is_limited() {
    let buffer = buffer(1);
    buffer.set_name("weights of layer 7").expect("it fits");
    let notes = gaudi_sys::fd::fdinfo(&buffer).expect("proc is mounted");
    assert!(notes.contains("name:\tweights of layer 7"), "{notes}");
    buffer.set_name(&"n".repeat(31)).expect("31 bytes fit");
    refused(
        buffer.set_name(&"n".repeat(32)),
        ErrorKind::InvalidInput,
        "at most 31",
    );
    refused(
        buffer.set_name("a\0b"),
        ErrorKind::InvalidInput,
        "none of them zero",
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn only_vfio_devices_export_bars() {
    let range = VfioRegionDmaRange {
        offset: 0,
        length: PAGE,
    };
    let buffer = buffer(1);
    let error = refused(
        vfio::export(&buffer, 0, PAGE, &[range]),
        ErrorKind::Unsupported,
        "vfio-pci",
    );
    assert_eq!(error.errno(), Some(Errno::ENOTTY));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn bar_exports_for_devices_only() {
    let _alone = alone();
    let function = Exclusive::open();
    let ranges = [3, 1].map(|page| VfioRegionDmaRange {
        offset: page * PAGE,
        length: PAGE,
    });
    let answer = vfio::export(&function, BAR, BAR_LEN, &ranges);
    if kernel() < (7, 0) {
        let error = refused(answer, ErrorKind::Unsupported, "Linux 6.19");
        assert_eq!(error.errno(), Some(Errno::ENOTTY), "the feature is not known");
        return;
    }
    let buffer = answer.expect("two pages of the BAR leave");
    assert_eq!((buffer.size(), buffer.exporter()), (2 * PAGE, &Exporter::VfioPci));
    let window = buffer.whole().expect("a window");
    refused(
        window.attach_cpu("reader"),
        ErrorKind::Unsupported,
        "map the BAR through the device",
    );
    if skips("bar_exports_for_devices_only") {
        return;
    }
    let view = function
        .map(BAR, 0, 4 * PAGE as usize)
        .expect("vfio maps the BAR");
    for page in 0..4_u8 {
        view.fill(usize::from(page) * PAGE as usize, PAGE as usize, page + 1)
            .expect("inside");
    }
    let nic = Nic::open(Build::Patched);
    let host = nic.host(2 * PAGE as usize);
    let asked = DmaBufRegion {
        offset: 0,
        length: 2 * PAGE,
        iova: 0,
        fd: buffer.as_fd().as_raw_fd(),
        access: access::ALL,
    };
    let region = nic.context.register_dmabuf(&asked).expect("a region");
    let (remote, rkey) = (0, region.rkey);
    let done = nic.run(host.local(0, 2 * PAGE as usize), Request::Read { remote, rkey });
    assert_eq!(done, status::SUCCESS, "the NIC reads both pages");
    let seen = host.bytes(0, 2 * PAGE as usize).expect("inside");
    let wanted = [[4; PAGE as usize], [2; PAGE as usize]].concat();
    assert!(
        seen == wanted,
        "the ranges come in the order in which they were asked"
    );
    nic.context.deregister(region).expect("it ends");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn invalid_bar_is_rejected_with_reason() {
    let _alone = alone();
    let function = Exclusive::open();
    let range = VfioRegionDmaRange {
        offset: 0,
        length: PAGE,
    };
    // ivshmem-plain has registers in BAR 0 and memory in BAR 2.
    if kernel() < (7, 0) {
        // Whether there is such a BAR or not: the feature is not known.
        for bar in [BAR, 5] {
            let error = refused(
                vfio::export(&function, bar, PAGE, &[range]),
                ErrorKind::Unsupported,
                "Linux 6.19",
            );
            assert_eq!(error.errno(), Some(Errno::ENOTTY), "BAR {bar}");
        }
        return;
    }
    refused(
        vfio::export(&function, 5, PAGE, &[range]),
        ErrorKind::NotFound,
        "has no BAR 5",
    );
    // One that takes the BAR for longer than it is hears it from the kernel.
    let past = VfioRegionDmaRange {
        offset: BAR_LEN,
        length: PAGE,
    };
    let error = refused(
        vfio::export(&function, BAR, 2 * BAR_LEN, &[past]),
        ErrorKind::InvalidInput,
        "vfio-pci refused",
    );
    assert_eq!(error.errno(), Some(Errno::EINVAL));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_duplicate_descriptor_is_the_same_buffer() {
    let buffer = buffer(1);
    let twin = gaudi_sys::fd::duplicate(buffer.as_fd()).expect("a duplicate");
    let twin = DmaBuf::from_fd(twin).expect("a dma-buf");
    assert_eq!(twin.identity(), buffer.identity());
    assert_eq!(gaudi_sys::fd::references(&twin), Ok(2), "the kernel counts both");
    drop(buffer);
    assert_eq!(gaudi_sys::fd::references(&twin), Ok(1));
}
