//! dma-bufs as regions of libibverbs on the lab's patched soft-RoCE: udmabuf, the system heap, the
//! mock's memory, a PCI BAR.

mod common;
mod ibv;
#[path = "ibv/memory.rs"]
mod memory;

use std::os::fd::AsFd;

use common::{is_gone, listed};
use gaudi_dmabuf::{DmaBuf, Hold, Window};
use gaudi_lab::kernel;
use gaudi_lab::nic::pattern;
use gaudi_lab::rxe::Build;
use gaudi_lab::vfio::Exclusive;
use gaudi_seam::ErrorKind;
use gaudi_sys::{Errno, Memfd, PAGE, RawMapping};
use gaudi_uapi::memory::MemFlags;
use gaudi_verbs::provider::{Device, NewMr};
use gaudi_verbs::{Access, AsyncElement, AsyncEventType, DmaBufSupport, RegPath, SendOp, WcStatus};

use ibv::{ALL, Nic, at, bytes, inside, refused, skips, succeeded};
use memory::device_memory::DeviceMemory;
use memory::{LEN, Memory, bar, of_heap, of_mock, of_udmabuf};

macro_rules! nic {
    ($test:literal) => {{
        if skips($test) {
            return;
        }
        Nic::open(Build::Patched)
    }};
}

/// Places and lengths that begin and end inside, at and across pages.
const RANGES: [(usize, usize); 9] = [
    (0, 1),
    (1, 7),
    (4095, 2),
    (4093, 4099),
    (1, 4095),
    (12_345, 9_999),
    (0, 65_536),
    (65_535, 1),
    (3, 65_530),
];

/// Writes into and reads from every range.
fn one_sided(nic: &Nic, window: &Window, view: &RawMapping) {
    let mr = nic.window(window, 0, ALL).expect("it is registered");
    assert_eq!(
        mr.path,
        RegPath::RawUverbs,
        "librxe has no operation, the kernel has"
    );
    let host = nic.host(LEN);
    let (here, there) = nic.pair();
    for (turn, (place, len)) in RANGES.into_iter().enumerate() {
        let mut wanted = bytes(view, 0, LEN);
        host.pattern(turn as u8 + 1);
        let to = at(&mr, place as u64);
        succeeded(&here.run(&[host.sge(0, len)], SendOp::Write(to)), "a write");
        wanted[place..place + len].copy_from_slice(&pattern(turn as u8 + 1, len));
        assert!(
            bytes(view, 0, LEN) == wanted,
            "{len} bytes at {place} are written, and no other"
        );
        host.clear();
        succeeded(&here.run(&[host.sge(0, len)], SendOp::Read(to)), "a read");
        assert!(
            host.bytes(0, len) == wanted[place..place + len],
            "{len} bytes at {place} are read"
        );
    }
    there.close();
    here.close();
    nic.device.dereg_mr(mr.handle).expect("it ends");
    refused(
        nic.device.dereg_mr(mr.handle),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
}

/// Sends into and from it, and writes with a number.
fn two_sided(nic: &Nic, window: &Window, view: &RawMapping) {
    let mr = nic.window(window, 0, ALL).expect("it is registered");
    let host = nic.host(LEN);
    let (here, there) = nic.pair();
    host.pattern(101);
    there.receive(1, &[inside(&mr, 4091, 6000)]);
    succeeded(
        &here.run(&[host.sge(1, 5001)], SendOp::SendImm(5)),
        "a send into it",
    );
    let got = there.wait();
    assert_eq!((got.byte_len, got.imm_data), (5001, Some(5)), "{got:?}");
    assert!(bytes(view, 4091, 5001) == pattern(101, 5002)[1..], "it arrives");
    host.clear();
    there.receive(2, &[host.sge(0, 6000)]);
    succeeded(
        &here.run(&[inside(&mr, 4091, 5001)], SendOp::Send),
        "a send from it",
    );
    assert_eq!(there.wait().byte_len, 5001);
    assert!(
        host.bytes(0, 5001) == pattern(101, 5002)[1..],
        "and is sent from there"
    );
    there.receive(3, &[]);
    succeeded(
        &here.run(&[host.sge(0, 100)], SendOp::WriteImm(at(&mr, 9), 77)),
        "a write with a number",
    );
    assert_eq!(there.wait().imm_data, Some(77));
    assert!(bytes(view, 9, 100) == host.bytes(0, 100), "and its bytes");
    there.close();
    here.close();
    nic.device.dereg_mr(mr.handle).expect("it ends");
}

fn atomics(nic: &Nic, window: &Window, view: &RawMapping) {
    let mr = nic.window(window, 0, ALL).expect("it is registered");
    let old = nic.host(4096);
    let (here, there) = nic.pair();
    let place = 3 * PAGE - 8;
    let word = |bytes: Vec<u8>| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    view.write(place as usize, &41_u64.to_ne_bytes()).expect("inside");
    let to = at(&mr, place);
    let add = SendOp::FetchAdd { to, add: 1 };
    succeeded(&here.run(&[old.sge(0, 8)], add), "an addition");
    assert_eq!(
        (word(old.bytes(0, 8)), word(bytes(view, place as usize, 8))),
        (41, 42)
    );
    for left in [7, 7] {
        let swap = SendOp::CompareSwap {
            to,
            compare: 42,
            swap: 7,
        };
        succeeded(
            &here.run(&[old.sge(0, 8)], swap),
            "a swap, whether it happens or not",
        );
        assert_eq!(word(bytes(view, place as usize, 8)), left);
    }
    // What comes back of an atomic can lie in a dma-buf too.
    succeeded(&here.run(&[inside(&mr, 64, 8)], add), "an addition");
    assert_eq!(word(bytes(view, 64, 8)), 7, "the old value");
    there.close();
    here.close();
    nic.device.dereg_mr(mr.handle).expect("it ends");
}

macro_rules! every_memory {
    ($($work:ident: $udmabuf:ident, $heap:ident, $mock:ident, $bar:ident;)*) => {
        $(
            #[test]
            #[ignore = "runs in a guest: cargo xtask lab test"]
            fn $udmabuf() {
                if skips(stringify!($udmabuf)) {
                    return;
                }
                let memory = of_udmabuf();
                $work(&Nic::open(Build::Patched), &memory.window, &memory.view);
            }

            #[test]
            #[ignore = "runs in a guest: cargo xtask lab test"]
            fn $heap() {
                if skips(stringify!($heap)) {
                    return;
                }
                let memory = of_heap();
                $work(&Nic::open(Build::Patched), &memory.window, &memory.view);
            }

            #[test]
            #[ignore = "runs in a guest: cargo xtask lab test"]
            fn $mock() {
                if skips(stringify!($mock)) {
                    return;
                }
                let memory = of_mock(stringify!($mock));
                $work(&Nic::open(Build::Patched), &memory.window, &memory.view);
            }

            #[test]
            #[ignore = "runs in a guest: cargo xtask lab test"]
            fn $bar() {
                if kernel() < (7, 0) || skips(stringify!($bar)) {
                    return;
                }
                let nic = Nic::open(Build::Patched);
                let function = Exclusive::open();
                let (window, view) = bar(&function);
                $work(&nic, &window, &view);
            }
        )*
    };
}

every_memory! {
    one_sided: every_range_of_a_udmabuf_is_written_and_read, every_range_of_a_heaps_buffer_is_written_and_read,
        every_range_of_the_mocks_memory_is_written_and_read, every_range_of_a_pci_bar_is_written_and_read;
    two_sided: messages_come_into_and_leave_a_udmabuf, messages_come_into_and_leave_a_heaps_buffer,
        messages_come_into_and_leave_the_mocks_memory, messages_come_into_and_leave_a_pci_bar;
    atomics: atomics_change_a_udmabuf, atomics_change_a_heaps_buffer, atomics_change_the_mocks_memory,
        atomics_change_a_pci_bar;
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn probe_accepts_nic_of_capable_kernel() {
    let nic = nic!("probe_accepts_nic_of_capable_kernel");
    let attr = nic.device.query_device().expect("it answers");
    assert_eq!(
        attr.dmabuf,
        DmaBufSupport::Yes,
        "though librxe has no such operation"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn the_probe_leaves_nothing_behind() {
    let nic = nic!("the_probe_leaves_nothing_behind");
    let before = ibv::descriptors();
    for _ in 0..3 {
        let other = Nic::named("rxe0");
        other.device.query_device().expect("it probes");
        // Its domain is the only one: the probe's own is deallocated.
        other.device.dealloc_pd(other.pd).expect("it is empty");
    }
    drop(nic);
    assert!(
        ibv::descriptors() <= before + 8,
        "other tests come and go, contexts do not stay"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn bytes_go_from_one_dmabuf_to_another() {
    let nic = nic!("bytes_go_from_one_dmabuf_to_another");
    let (from, to) = (of_heap(), of_udmabuf());
    from.view.write(0, &pattern(9, LEN)).expect("inside");
    let (source, sink) = (
        nic.window(&from.window, 0, Access::empty())
            .expect("as a source it needs no right"),
        nic.window(&to.window, 0, ALL).expect("a region"),
    );
    let (here, _there) = nic.pair();
    let sges = [inside(&source, 1, 30_000)];
    succeeded(&here.run(&sges, SendOp::Write(at(&sink, 3))), "a write");
    assert!(
        bytes(&to.view, 3, 30_000) == pattern(9, LEN)[1..30_001],
        "each byte"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn unaligned_window_covers_exactly_its_bytes() {
    let nic = nic!("unaligned_window_covers_exactly_its_bytes");
    let memory = of_udmabuf();
    let host = nic.host(LEN);
    host.pattern(9);
    let window = memory.window.dmabuf().window(0x3123, 0x5000).expect("inside");
    let iova = 0x1001_0000_0000_0123;
    let mr = nic.window(&window, iova, ALL).expect("a window at an odd byte");
    let write = |place: u64, len: usize| nic.run(&[host.sge(0, len)], SendOp::Write(at(&mr, place))).status;
    assert_eq!(write(iova, 0x5000), WcStatus::SUCCESS, "the whole window");
    let seen = bytes(&memory.view, 0, LEN);
    assert!(seen[..0x3123].iter().all(|byte| *byte == 0), "nothing before it");
    assert!(seen[0x3123..0x8123] == pattern(9, 0x5000)[..], "all of it");
    assert!(seen[0x8123..].iter().all(|byte| *byte == 0), "nothing after it");
    for (what, place, len) in [
        ("a byte before", iova - 1, 1),
        ("across the beginning", iova - 1, 2),
        ("a byte after", iova + 0x5000, 1),
        ("across the end", iova + 0x4fff, 2),
        ("by its offset in the buffer", 0x3123, 8),
    ] {
        assert_eq!(write(place, len), WcStatus::REM_ACCESS_ERR, "{what}");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn other_address_in_page_is_explained() {
    let nic = nic!("other_address_in_page_is_explained");
    let memory = of_udmabuf();
    for (offset, iova) in [(0, 1), (1, 0), (0x123, 0x1124)] {
        let window = memory.window.dmabuf().window(offset, PAGE).expect("inside");
        let error = refused(
            nic.window(&window, iova, ALL),
            ErrorKind::InvalidInput,
            Errno::EINVAL,
        );
        let message = error.to_string();
        assert!(
            message.contains("page offsets"),
            "the reason is among those: {message}"
        );
        assert!(
            message.contains("uverbs ioctl"),
            "and which way it went: {message}"
        );
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn rights_that_the_kernel_refuses_are_refused() {
    let nic = nic!("rights_that_the_kernel_refuses_are_refused");
    let memory = of_udmabuf();
    let bits = |flag| ALL | Access::from_bits_retain(flag);
    for (what, access) in [
        ("a peer's right to write without the own", Access::REMOTE_WRITE),
        ("a peer's atomics without the own right", Access::REMOTE_ATOMIC),
        ("pages on demand", bits(1 << 6)), // IBV_ACCESS_ON_DEMAND
        ("windows on it", ALL | Access::MW_BIND),
        ("addresses from zero", bits(1 << 5)), // IBV_ACCESS_ZERO_BASED
        ("huge pages", bits(1 << 7)),          // IBV_ACCESS_HUGETLB
        ("an unknown flag", bits(1 << 31)),
    ] {
        let error = nic.window(&memory.window, 0, access).expect_err(what);
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::InvalidInput, Some(Errno::EINVAL)),
            "{what}: {error}"
        );
    }
    let relaxed = nic.window(&memory.window, 0, ALL | Access::RELAXED_ORDERING);
    nic.device
        .dereg_mr(relaxed.expect("relaxed ordering is a wish").handle)
        .expect("it ends");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn dmabuf_region_enforces_its_access() {
    let nic = nic!("dmabuf_region_enforces_its_access");
    let memory = of_udmabuf();
    let host = nic.host(4096);
    let status = |mr: &NewMr, op: fn(gaudi_verbs::RemoteAddr) -> SendOp| {
        nic.run(&[host.sge(0, 8)], op(at(mr, 0))).status
    };
    let reader = nic
        .window(&memory.window, 0, Access::REMOTE_READ)
        .expect("a region");
    assert_eq!(status(&reader, SendOp::Read), WcStatus::SUCCESS, "it may be read");
    assert_eq!(
        status(&reader, SendOp::Write),
        WcStatus::REM_ACCESS_ERR,
        "and not be written"
    );
    let writer = nic
        .window(&memory.window, 0, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
        .expect("two regions of one buffer");
    assert_eq!(
        status(&writer, SendOp::Write),
        WcStatus::SUCCESS,
        "it may be written"
    );
    assert_eq!(
        status(&writer, SendOp::Read),
        WcStatus::REM_ACCESS_ERR,
        "and not be read"
    );
    let local = nic.window(&memory.window, 0, Access::empty()).expect("a region");
    let done = nic.run(&[inside(&local, 0, 8)], SendOp::Read(host.remote(0)));
    assert_eq!(
        done.status,
        WcStatus::LOC_PROT_ERR,
        "nor written from here: {done:?}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn region_keeps_closed_buffer() {
    let nic = nic!("region_keeps_closed_buffer");
    let Memory { window, view, .. } = of_udmabuf();
    let host = nic.host(4096);
    host.pattern(3);
    let inode = window.dmabuf().identity().file.inode;
    let mr = nic.window(&window, 0, ALL).expect("a region");
    drop(window);
    assert!(listed(inode).is_some(), "the region holds the dma-buf");
    let done = nic.run(&[host.sge(0, 100)], SendOp::Write(at(&mr, 77)));
    succeeded(&done, "without a descriptor of ours");
    assert!(
        bytes(&view, 77, 100) == pattern(3, 100),
        "and it is the same memory"
    );
    nic.device.dereg_mr(mr.handle).expect("it ends");
    assert!(is_gone(inode), "and gives the dma-buf back");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn buffer_lists_registered_nics() {
    let nic = nic!("buffer_lists_registered_nics");
    let memory = of_udmabuf();
    let buffer = memory.window.dmabuf();
    let mr = nic.window(&memory.window, 0x1000, ALL).expect("a region");
    let held = buffer.attached();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(held[0].hold, Hold::Region);
    assert!(
        held[0].name.contains("rxe0") && held[0].name.contains("0x1000"),
        "which NIC, and where: {held:?}"
    );
    nic.device.dereg_mr(mr.handle).expect("it ends");
    assert!(buffer.attached().is_empty(), "no NIC is attached");
    nic.window(&memory.window, 1, ALL)
        .expect_err("refused by the kernel");
    assert!(
        buffer.attached().is_empty(),
        "a region that was not made holds nothing"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn closed_context_releases_everything() {
    let nic = nic!("closed_context_releases_everything");
    let Memory { window, .. } = of_udmabuf();
    let inode = window.dmabuf().identity().file.inode;
    let _mr = nic.window(&window, 0, ALL).expect("a region");
    drop(window);
    refused(nic.device.dealloc_pd(nic.pd), ErrorKind::InUse, Errno::EBUSY);
    assert!(listed(inode).is_some(), "held");
    drop(nic);
    assert!(is_gone(inode), "given back");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn dead_process_releases_everything() {
    let _nic = nic!("dead_process_releases_everything");
    let Memory { window, .. } = of_udmabuf();
    let inode = window.dmabuf().identity().file.inode;
    ibv::in_child(|| {
        // The child's own context: libibverbs' state of the parent has no object yet.
        let nic = Nic::named("rxe0");
        let child = DmaBuf::from_fd(
            window
                .dmabuf()
                .as_fd()
                .try_clone_to_owned()
                .expect("a descriptor"),
        );
        let whole = child.expect("a dma-buf").whole().expect("a window");
        nic.window(&whole, 0, ALL).expect("a region");
        // Nothing is ended: _exit follows.
        std::mem::forget(nic);
    });
    drop(window);
    assert!(is_gone(inode), "the kernel ended the child's region");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn stand_in_is_rejected_as_dmabuf() {
    let nic = nic!("stand_in_is_rejected_as_dmabuf");
    let memory = Memfd::sparse(gaudi_sys::standin::MEMFD_NAME, LEN as u64).expect("a memory file");
    let whole = gaudi_sys::standin::Window {
        offset: 0,
        len: LEN as u64,
    };
    let fd = gaudi_sys::standin::export(&memory, whole).expect("a stand-in");
    let buffer = DmaBuf::from_fd(fd).expect("the project takes it for one");
    let error = nic
        .window(&buffer.whole().expect("a window"), 0, ALL)
        .expect_err("the kernel does not");
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
    assert!(error.to_string().contains("stand-in"), "{error}");
    assert!(
        error.help().is_some_and(|help| help.contains("udmabuf")),
        "what would do: {error:?}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn closed_device_memory_waits_for_region() {
    let nic = nic!("closed_device_memory_waits_for_region");
    let spec = "mock:gaudi2?name=verbs-close&dram=3GiB".parse().expect("a spec");
    let io = gaudi_hal::open(&spec).expect("a mock");
    let memory = DeviceMemory::new(io, 768 << 20, MemFlags::NONE).expect("device memory");
    let window = memory.window(0, LEN as u64).expect("an export");
    let mr = nic.window(&window, 0, ALL).expect("a region");
    drop(window);
    let (memory, error) = memory.close().expect_err("a region stands on it").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    assert!(format!("{error}").contains("rxe0"), "the NIC is named: {error}");
    nic.device.dereg_mr(mr.handle).expect("it ends");
    memory.close().expect("then it goes");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_thousand_registrations_leave_nothing_behind() {
    let nic = nic!("a_thousand_registrations_leave_nothing_behind");
    let memory = of_udmabuf();
    let before = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    for turn in 0..1000_u64 {
        let len = (turn % 16 + 1) * PAGE;
        let window = memory.window.dmabuf().window(0, len).expect("inside");
        let mr = nic.window(&window, turn << 12, ALL).expect("a region");
        nic.device.dereg_mr(mr.handle).expect("it ends");
    }
    let after = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    assert!(
        after < before + 500,
        "other tests come and go: {before} then {after}"
    );
    assert!(memory.window.dmabuf().attached().is_empty());
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn virtual_interface_registers_pages_not_bars() {
    let _pci = nic!("virtual_interface_registers_pages_not_bars");
    gaudi_lab::modprobe("dummy");
    let _ = gaudi_lab::run(&["ip", "link", "add", "dummy6", "type", "dummy"]);
    let nic = Nic::over(Build::Patched, "rxe6", "dummy6", "10.77.6.1");
    assert_eq!(nic.device.info().pci, None, "it has no function");
    let memory = of_udmabuf();
    one_sided(&nic, &memory.window, &memory.view);
    if kernel() < (7, 0) {
        return;
    }
    let function = Exclusive::open();
    let (window, _view) = bar(&function);
    let error = refused(
        nic.window(&window, 0, ALL),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    assert!(
        error.to_string().contains("reach each other"),
        "the reason is among those: {error}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn revoked_bar_is_never_accessed() {
    if kernel() < (7, 0) {
        return;
    }
    let nic = nic!("revoked_bar_is_never_accessed");
    let function = Exclusive::open();
    let (window, view) = bar(&function);
    let host = nic.host(LEN);
    let write = |mr: &NewMr| nic.run(&[host.sge(0, 4096)], SendOp::Write(at(mr, 0))).status;
    let mr = nic.window(&window, 0, ALL).expect("a region");
    assert_eq!(write(&mr), WcStatus::SUCCESS, "as long as the memory is there");
    function.memory(false).expect("off");
    assert_eq!(write(&mr), WcStatus::REM_ACCESS_ERR, "then it is invalid");
    let error = refused(nic.window(&window, 0, ALL), ErrorKind::DeviceLost, Errno::ENODEV);
    assert!(error.to_string().contains("revoked the memory"), "{error}");
    function.memory(true).expect("on");
    assert_eq!(write(&mr), WcStatus::REM_ACCESS_ERR, "what was revoked stays so");
    assert_eq!(
        nic.device.mr_state(mr.handle).expect("it answers"),
        None,
        "user space gets no event"
    );
    let again = nic.window(&window, 0, ALL).expect("a new region");
    assert_eq!(write(&again), WcStatus::SUCCESS, "it works");
    nic.device
        .dereg_mr(mr.handle)
        .expect("a revoked region ends like any other");
    nic.device
        .dereg_mr(again.handle)
        .expect("and so does the new one");
    drop(view);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn revoked_region_fails_its_queue_pair() {
    if kernel() < (7, 0) {
        return;
    }
    let nic = nic!("revoked_region_fails_its_queue_pair");
    let function = Exclusive::open();
    let (window, _view) = bar(&function);
    let host = nic.host(4096);
    let mr = nic.window(&window, 0, ALL).expect("a region");
    let (here, there) = nic.pair();
    succeeded(&here.run(&[host.sge(0, 8)], SendOp::Write(at(&mr, 0))), "before");
    function.memory(false).expect("off");
    let done = here.run(&[host.sge(0, 8)], SendOp::Write(at(&mr, 0)));
    assert_eq!(done.status, WcStatus::REM_ACCESS_ERR, "the requester: {done:?}");
    let fd = nic.device.async_fd().expect("events");
    loop {
        let ready = gaudi_sys::poll::readable([fd], ibv::MAX_WAIT).expect("a descriptor");
        assert!(ready[0], "an event comes");
        let event = nic.device.get_async_event().expect("it is read").expect("one");
        if event.event_type == AsyncEventType::QP_ACCESS_ERR {
            assert_eq!(event.element, AsyncElement::Qp(there.handle), "the responder");
            break;
        }
    }
    function.memory(true).expect("on");
    nic.device.dereg_mr(mr.handle).expect("it ends");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn bar_is_revoked_under_writes() {
    if kernel() < (7, 0) {
        return;
    }
    let nic = nic!("bar_is_revoked_under_writes");
    let function = Exclusive::open();
    let (window, _view) = bar(&function);
    let host = nic.host(LEN);
    for turn in 0..10_u64 {
        let mr = nic.window(&window, 0, ALL).expect("a region");
        let (here, there) = nic.pair();
        for wr_id in 0..8 {
            here.post(wr_id, &[host.sge(0, LEN)], SendOp::Write(at(&mr, 0)))
                .expect("room");
        }
        std::thread::sleep(std::time::Duration::from_millis(turn));
        function.memory(false).expect("off");
        let mut refused = 0;
        for _ in 0..8 {
            let done = here.wait();
            match done.status {
                WcStatus::SUCCESS => assert_eq!(refused, 0, "after a refusal nothing is written"),
                WcStatus::REM_ACCESS_ERR | WcStatus::WR_FLUSH_ERR => refused += 1,
                other => panic!("request {} ended with {other}", done.wr_id),
            }
        }
        function.memory(true).expect("on");
        there.close();
        here.close();
        nic.device.dereg_mr(mr.handle).expect("it ends");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn closed_function_revokes_region_memory() {
    if kernel() < (7, 0) {
        return;
    }
    let nic = nic!("closed_function_revokes_region_memory");
    let function = Exclusive::open();
    let (window, view) = bar(&function);
    let host = nic.host(4096);
    let mr = nic.window(&window, 0, ALL).expect("a region");
    drop(view);
    drop(function);
    let done = nic.run(&[host.sge(0, 8)], SendOp::Write(at(&mr, 0)));
    assert_eq!(done.status, WcStatus::REM_ACCESS_ERR, "{done:?}");
    nic.device.dereg_mr(mr.handle).expect("it ends");
}
