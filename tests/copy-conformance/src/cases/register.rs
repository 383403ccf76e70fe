//! Registration of host memory, device memory and dma-bufs.

#![expect(unsafe_code, reason = "registration promises how long memory lives")]

use std::ptr::NonNull;

use gaudi_copy::{
    AllocOptions, Attached, Deadline, ErrorKind, Local, Memory, MemoryDomain, MemoryType, Transport,
};
use gaudi_dmabuf::{DmaBuf, Window};
use gaudi_sys::{Memfd, RawMapping, standin};

use crate::suite::{cases, kind, pattern, read_back, write};

/// Registers a part of a mapping, which outlives it in every case.
pub(super) fn register(domain: &MemoryDomain, map: &RawMapping, at: usize, len: usize) -> Memory {
    let start = map.at(at, len).expect("inside");
    // SAFETY: the caller's mapping outlives the registration, and no reference to it is made.
    unsafe { domain.register(start, len) }.expect("registered")
}

pub(super) fn mapping(len: usize) -> RawMapping {
    RawMapping::anonymous(len, false).expect("memory")
}

/// A window of a dma-buf stand-in.
pub(super) fn foreign(len: u64) -> (Window, RawMapping) {
    let memfd = Memfd::sparse(standin::MEMFD_NAME, len).expect("a memfd");
    let fd = standin::export(&memfd, standin::Window { offset: 0, len }).expect("a stand-in");
    let view = RawMapping::of_fd(&memfd, 0, len as usize).expect("a mapping");
    (
        DmaBuf::from_fd(fd).expect("a buffer").whole().expect("a window"),
        view,
    )
}

fn put(domain: &MemoryDomain, from: &Memory, to: &Memory) {
    let mut transport = Transport::new(domain).expect("a transport");
    let target = Attached::to(to);
    transport
        .put_zcopy(&[Local::all(from)], &target, to.address(), None)
        .expect("posted");
    transport.flush_wait(Deadline::NEVER).expect("flushed");
}

cases! { "registration";
    fn host_memory_of_any_alignment(fixture) {
        let (domain, map) = (fixture.domain(), mapping(3 * 4096));
        let device = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        for (at, len) in [(0, 4096), (1, 1), (4095, 2), (17, 3000), (8191, 4096)] {
            let host = register(&domain, &map, at, len);
            let bytes = pattern(len, at as u8);
            map.write(at, &bytes).expect("written");
            put(&domain, &host, &device);
            assert_eq!(read_back(&domain, &device, 0, len), bytes, "{len} bytes at {at}");
            domain.deregister(host).expect("deregistered");
        }
    }
    fn same_bytes_are_registered_twice(fixture) {
        let (domain, map) = (fixture.domain(), mapping(4096));
        let (one, two) = (register(&domain, &map, 0, 4096), register(&domain, &map, 0, 4096));
        domain.deregister(one).expect("one is not held by the other");
        let device = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        map.write(0, &pattern(4096, 4)).expect("written");
        put(&domain, &two, &device);
        assert_eq!(read_back(&domain, &device, 0, 4096), pattern(4096, 4));
        domain.deregister(two).expect("deregistered");
    }
    fn overlapping_ranges_deregister_in_any_order(fixture) {
        let (domain, map) = (fixture.domain(), mapping(4 * 4096));
        let a = register(&domain, &map, 0, 6000);
        let b = register(&domain, &map, 3000, 6000);
        let c = register(&domain, &map, 100, 10);
        domain.deregister(a).expect("the first");
        let at = map.at(3000, 1).expect("inside").addr().get() as u64;
        domain.mem_query(at, 6000).expect("the second is still found");
        domain.deregister(c).expect("the inner");
        domain.deregister(b).expect("the last");
        assert_eq!(kind(domain.mem_query(at, 1)), ErrorKind::NotFound);
    }
    fn reused_address_has_new_pages(fixture) {
        let domain = fixture.domain();
        let device = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        for seed in 0..4 {
            let map = mapping(4096);
            let host = register(&domain, &map, 0, 4096);
            map.write(0, &pattern(4096, seed)).expect("written");
            put(&domain, &host, &device);
            assert_eq!(read_back(&domain, &device, 0, 4096), pattern(4096, seed));
            domain.deregister(host).expect("deregistered");
        }
    }
    fn empty_range_is_refused(fixture) {
        let (domain, map) = (fixture.domain(), mapping(4096));
        // SAFETY: no byte is promised.
        let answer = unsafe { domain.register(map.as_ptr(), 0) };
        assert_eq!(kind(answer), ErrorKind::InvalidInput);
    }
    fn wrapping_range_is_refused(fixture) {
        let (domain, map) = (fixture.domain(), mapping(4096));
        // SAFETY: the call refuses the range and uses no byte of it.
        let answer = unsafe { domain.register(map.as_ptr(), usize::MAX) };
        assert_eq!(kind(answer), ErrorKind::InvalidInput);
    }
    fn unmapped_range_is_refused(fixture) {
        let domain = fixture.domain();
        // The open device maps nothing more that would fill the hole.
        domain.device().expect("open");
        let hole = RawMapping::anonymous_sparse(1 << 30).expect("memory");
        let start = hole.at(1 << 29, 4096).expect("inside");
        drop(hole);
        // SAFETY: the driver checks the pages, and the call fails.
        let answer = unsafe { domain.register(start, 4096) };
        let seen = kind(answer);
        assert!(matches!(seen, ErrorKind::BadAddress | ErrorKind::OutOfMemory), "{seen:?}");
    }
    fn device_address_is_no_host_memory(fixture) {
        let domain = fixture.domain();
        let device = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        let pointer = std::ptr::without_provenance_mut(device.address() as usize);
        let start = NonNull::new(pointer).expect("not null");
        // SAFETY: the call refuses the address and uses no byte of it.
        let answer = unsafe { domain.register(start, 64) };
        assert_eq!(kind(answer), ErrorKind::Unsupported);
    }
    fn deregister_with_clone_returns_memory(fixture) {
        let (domain, map) = (fixture.domain(), mapping(4096));
        let host = register(&domain, &map, 0, 4096);
        let clone = host.clone();
        let (host, error) = domain.deregister(host).expect_err("in use").into_parts();
        assert_eq!(error.kind(), ErrorKind::InUse);
        drop(clone);
        domain.deregister(host).expect("deregistered");
    }
    fn part_of_device_memory_is_registered(fixture) {
        let domain = fixture.domain();
        let device = domain.alloc(8192, AllocOptions::default()).expect("allocated");
        write(&domain, &device, 0, &pattern(8192, 7));
        let part = domain.register_device(device.address() + 100, 50).expect("registered");
        assert_eq!((part.kind(), part.len()), (MemoryType::Device, 50));
        assert_eq!(read_back(&domain, &part, 0, 50), pattern(8192, 7)[100..150]);
        domain.deregister(part).expect("deregistered");
    }
    fn registered_device_memory_holds_allocation(fixture) {
        let domain = fixture.domain();
        let device = domain.alloc(8192, AllocOptions::default()).expect("allocated");
        let part = domain.register_device(device.address(), 8192).expect("registered");
        let (device, error) = domain.free(device).expect_err("in use").into_parts();
        assert_eq!(error.kind(), ErrorKind::InUse);
        domain.deregister(part).expect("deregistered");
        domain.free(device).expect("freed");
    }
    fn device_range_past_end_is_refused(fixture) {
        let domain = fixture.domain();
        let device = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        let seen = kind(domain.register_device(device.address() + 4000, 97));
        assert_eq!(seen, ErrorKind::InvalidInput);
        let seen = kind(domain.register_device(device.address() + (1 << 39), 1));
        assert_eq!(seen, ErrorKind::NotFound);
    }
    fn host_address_is_no_device_memory(fixture) {
        let domain = fixture.domain();
        let host = domain.alloc_host(4096).expect("allocated");
        assert_eq!(kind(domain.register_device(host.address(), 64)), ErrorKind::NotFound);
    }
    fn foreign_dmabuf_is_source_and_target(fixture) {
        let domain = fixture.domain();
        let (window, view) = foreign(8192);
        let memory = domain.register_dmabuf(&window).expect("registered");
        let device = domain.alloc(8192, AllocOptions::default()).expect("allocated");
        view.write(0, &pattern(8192, 3)).expect("written");
        put(&domain, &memory, &device);
        assert_eq!(read_back(&domain, &device, 0, 8192), pattern(8192, 3));
        write(&domain, &device, 0, &pattern(8192, 5));
        let mut transport = Transport::new(&domain).expect("a transport");
        let target = Attached::to(&device);
        transport
            .get_zcopy(&[Local::all(&memory)], &target, device.address(), None)
            .expect("posted");
        transport.flush_wait(Deadline::NEVER).expect("flushed");
        let mut bytes = vec![0; 8192];
        view.read(0, &mut bytes).expect("read");
        assert_eq!(bytes, pattern(8192, 5));
        domain.deregister(memory).expect("deregistered");
    }
    fn window_of_dmabuf_is_registered(fixture) {
        let domain = fixture.domain();
        let (window, view) = foreign(8192);
        let memory = domain.register_dmabuf(&window.window(1000, 3000).expect("a part")).expect("registered");
        memory.write(0, &pattern(3000, 2)).expect("written");
        let mut bytes = vec![0; 3000];
        view.read(1000, &mut bytes).expect("read");
        assert_eq!(bytes, pattern(3000, 2));
        domain.deregister(memory).expect("deregistered");
    }
    fn registered_dmabuf_is_attached(fixture) {
        let domain = fixture.domain();
        let (window, _view) = foreign(4096);
        let memory = domain.register_dmabuf(&window).expect("registered");
        assert_eq!(window.dmabuf().attachments(), ["gaudi_copy"]);
        domain.deregister(memory).expect("deregistered");
        assert!(window.dmabuf().attachments().is_empty());
    }
    fn own_export_is_registered_by_processor_map(fixture) [CpuExport] {
        let domain = fixture.domain();
        let device = domain.alloc(4096, AllocOptions::EXPORTED).expect("allocated");
        write(&domain, &device, 0, &pattern(4096, 8));
        let info = domain.mem_query(device.address(), 4096).expect("found");
        let window = domain.window(&info).expect("exported");
        let memory = domain.register_dmabuf(&window).expect("registered");
        let mut bytes = vec![0; 4096];
        memory.read(0, &mut bytes).expect("read");
        assert_eq!(bytes, pattern(4096, 8));
        domain.deregister(memory).expect("deregistered");
        drop(window);
        domain.free(device).expect("freed");
    }
    fn deregister_by_other_domain_is_refused(fixture) [Second] {
        let (domain, other, map) = (fixture.domain(), fixture.other(), mapping(4096));
        let host = register(&domain, &map, 0, 4096);
        let (host, error) = other.deregister(host).expect_err("not its own").into_parts();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        domain.deregister(host).expect("deregistered");
    }
    fn memory_is_registered_with_two_cards(fixture) [Second] {
        let (domain, other, map) = (fixture.domain(), fixture.other(), mapping(4096));
        let (a, b) = (register(&domain, &map, 0, 4096), register(&other, &map, 0, 4096));
        map.write(0, &pattern(4096, 6)).expect("written");
        for (domain, host) in [(&domain, &a), (&other, &b)] {
            let device = domain.alloc(4096, AllocOptions::default()).expect("allocated");
            put(domain, host, &device);
            assert_eq!(read_back(domain, &device, 0, 4096), pattern(4096, 6));
        }
    }
}
