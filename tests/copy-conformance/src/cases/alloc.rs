//! Attributes, allocation and release.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gaudi_copy::{AllocOptions, DeviceSpec, Error, ErrorKind, Export, MemoryDomain, MemoryType, Transport};

use crate::suite::{cases, kind, pattern, read_back, write};

cases! { "allocation";
    fn query_opens_no_compute_node(fixture) [Closed] {
        let domain = fixture.domain();
        let attributes = domain.query().expect("queried");
        assert!(!domain.is_open(), "the compute node is closed");
        assert!(attributes.alloc.device && attributes.register.host && attributes.detect.device);
        assert!(attributes.dmabuf.device && !attributes.dmabuf.host);
        assert!(attributes.device_bytes > 0 && attributes.device_page_bytes > 0);
    }
    fn new_domain_opens_nothing(fixture) [Closed] {
        let domain = fixture.domain();
        assert!(!domain.is_open());
        assert_eq!(domain.target(), &fixture.spec);
    }
    fn transport_opens_nothing_by_itself(fixture) [Closed] {
        let domain = fixture.domain();
        let transport = Transport::new(&domain).expect("a transport");
        assert!(transport.domain().is_same(&domain) && !domain.is_open());
    }
    fn first_allocation_opens_compute_node(fixture) [Closed] {
        let domain = fixture.domain();
        let memory = domain.alloc(1, AllocOptions::PRIVATE).expect("allocated");
        assert!(domain.is_open());
        domain.free(memory).expect("freed");
    }
    fn first_registration_opens_compute_node(fixture) [Closed] {
        let domain = fixture.domain();
        let memory = domain.alloc_host(1).expect("allocated");
        assert!(domain.is_open());
        domain.free(memory).expect("freed");
    }
    fn query_works_while_compute_node_is_open(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        let attributes = domain.query().expect("queried");
        assert_eq!(attributes.device, memory.device());
        assert!(attributes.free_device_bytes < Some(attributes.device_bytes));
        assert_eq!(memory.address() & !0xffff_ffff_ffff, attributes.device_base.0 & !0xffff_ffff_ffff);
    }
    fn missing_card_fails_query(fixture) {
        let _ = fixture;
        let spec: DeviceSpec = "kernel:255".parse().expect("a spec");
        let domain = MemoryDomain::with_config(&spec, gaudi_copy::Config::default());
        let seen = kind(domain.query());
        assert!(matches!(seen, ErrorKind::NotFound | ErrorKind::Unsupported), "{seen:?}");
        assert!(domain.alloc(1, AllocOptions::default()).is_err());
    }
    fn domains_of_one_target_share_card(fixture) {
        let (one, two) = (fixture.domain(), fixture.domain());
        assert!(one.is_same(&two));
        let memory = one.alloc(64, AllocOptions::default()).expect("allocated");
        two.mem_query(memory.address(), 64).expect("found by the other");
        two.free(memory).expect("freed by the other");
    }
    fn private_memory_is_device_memory(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(100, AllocOptions::PRIVATE).expect("allocated");
        assert_eq!((memory.kind(), memory.len()), (MemoryType::Device, 100));
        domain.free(memory).expect("freed");
    }
    fn private_memories_share_a_page(fixture) {
        let domain = fixture.domain();
        let alloc = || domain.alloc(4096, AllocOptions::PRIVATE).expect("allocated");
        let (a, b) = (alloc(), alloc());
        assert!(a.address().abs_diff(b.address()) < 1 << 20);
    }
    fn content_survives_other_allocations(fixture) {
        let domain = fixture.domain();
        let alloc = || domain.alloc(3000, AllocOptions::PRIVATE).expect("allocated");
        let (a, b, c) = (alloc(), alloc(), alloc());
        for (memory, seed) in [(&a, 1), (&b, 2), (&c, 3)] {
            write(&domain, memory, 0, &pattern(3000, seed));
        }
        domain.free(b).expect("freed");
        assert_eq!(read_back(&domain, &a, 0, 3000), pattern(3000, 1));
        assert_eq!(read_back(&domain, &c, 0, 3000), pattern(3000, 3));
    }
    fn zero_bytes_are_refused(fixture) {
        let domain = fixture.domain();
        for export in [Export::Never, Export::OnDemand, Export::OnAlloc] {
            let options = AllocOptions { export, ..AllocOptions::PRIVATE };
            assert_eq!(kind(domain.alloc(0, options)), ErrorKind::InvalidInput);
        }
        assert_eq!(kind(domain.alloc_host(0)), ErrorKind::InvalidInput);
    }
    fn alignment_is_honoured(fixture) {
        let domain = fixture.domain();
        for shift in [0, 7, 12, 16, 20] {
            let options = AllocOptions { align: 1 << shift, ..AllocOptions::PRIVATE };
            let memory = domain.alloc(1, options).expect("allocated");
            assert_eq!(memory.address() % (1 << shift), 0, "1 << {shift}");
            domain.free(memory).expect("freed");
        }
    }
    fn invalid_alignment_is_refused(fixture) {
        let domain = fixture.domain();
        for align in [3, 4097, 1 << 21, u64::MAX] {
            for export in [Export::Never, Export::OnDemand] {
                let options = AllocOptions { align, export, ..AllocOptions::PRIVATE };
                assert_eq!(kind(domain.alloc(1, options)), ErrorKind::InvalidInput, "{align}");
            }
        }
    }
    fn too_large_allocation_fails(fixture) {
        let domain = fixture.domain();
        let bytes = domain.query().expect("queried").device_bytes;
        for len in [bytes + 1, 1 << 60, u64::MAX] {
            for options in [AllocOptions::PRIVATE, AllocOptions::default(), AllocOptions::EXPORTED] {
                let seen = kind(domain.alloc(len, options));
                let wanted = [ErrorKind::OutOfDeviceMemory, ErrorKind::InvalidInput];
                assert!(wanted.contains(&seen), "{len}: {seen:?}");
            }
        }
        let memory = domain.alloc(1, AllocOptions::default()).expect("the card still works");
        domain.free(memory).expect("freed");
    }
    fn exported_allocation_has_dmabuf_at_once(fixture) {
        let domain = fixture.domain();
        let before = gaudi_dmabuf::stats().live;
        let memory = domain.alloc(4096, AllocOptions::EXPORTED).expect("allocated");
        assert_eq!(gaudi_dmabuf::stats().live, before + 1);
        domain.free(memory).expect("the memory's own export does not hold it");
        assert_eq!(gaudi_dmabuf::stats().live, before);
    }
    fn on_demand_allocation_exports_nothing(fixture) {
        let domain = fixture.domain();
        let before = gaudi_dmabuf::stats().live;
        let memory = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        assert_eq!(gaudi_dmabuf::stats().live, before);
        domain.free(memory).expect("freed");
    }
    fn pooled_memories_share_one_export(fixture) {
        let domain = fixture.domain();
        let alloc = || domain.alloc(1000, AllocOptions::POOLED).expect("allocated");
        let (a, b) = (alloc(), alloc());
        let window = |memory: &gaudi_copy::Memory| {
            let info = domain.mem_query(memory.address() + 3, 10).expect("found");
            domain.window(&info).expect("exported")
        };
        let (one, two) = (window(&a), window(&b));
        assert_eq!(one.dmabuf().identity(), two.dmabuf().identity());
        let apart = a.address().abs_diff(b.address());
        assert_eq!(one.offset().abs_diff(two.offset()), apart, "the offset is that of the address");
        assert_eq!((one.len(), two.len()), (10, 10));
    }
    fn pooled_window_shows_its_bytes(fixture) [CpuExport] {
        let domain = fixture.domain();
        let other = domain.alloc(5000, AllocOptions::POOLED).expect("allocated");
        let memory = domain.alloc(777, AllocOptions::POOLED).expect("allocated");
        write(&domain, &other, 0, &[0xee; 2000]);
        write(&domain, &memory, 0, &pattern(777, 5));
        let info = domain.mem_query(memory.address(), 777).expect("found");
        let window = domain.window(&info).expect("exported");
        let cpu = window.attach_cpu("test").expect("mapped");
        let mut bytes = vec![0; 777];
        cpu.read(0, &mut bytes).expect("read");
        assert_eq!(bytes, pattern(777, 5));
    }
    fn freed_pooled_memory_waits_for_its_window(fixture) {
        let domain = fixture.domain();
        let alloc = || domain.alloc(4096, AllocOptions::POOLED).expect("allocated");
        let (memory, _other) = (alloc(), alloc());
        let info = domain.mem_query(memory.address(), 1).expect("found");
        let window = domain.window(&info).expect("exported");
        let address = memory.address();
        domain.free(memory).expect("freed");
        let pool = domain.device().expect("open").pool_stats();
        assert_eq!(pool.quarantined_bytes, 4096);
        let next = alloc();
        assert_ne!(next.address(), address, "an importer may still access it");
        drop(window);
        let again = alloc();
        assert_eq!(again.address(), address, "the best fit is the freed range");
    }
    fn empty_page_is_kept_until_trim(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(64, AllocOptions::POOLED).expect("allocated");
        domain.free(memory).expect("freed");
        let device = domain.device().expect("open");
        let pool = device.pool_stats();
        assert_eq!((pool.allocations, pool.empty_allocations), (1, 1));
        assert_eq!(pool.free_bytes, pool.held_bytes);
        assert_eq!(device.trim(), Ok(pool.held_bytes));
        assert_eq!(device.pool_stats().held_bytes, 0);
    }
    fn kept_page_is_freed_for_other_memory(fixture) {
        let domain = fixture.domain();
        drop(domain.alloc(64, AllocOptions::POOLED).expect("allocated"));
        let attributes = domain.query().expect("queried");
        let all = domain.alloc(attributes.device_bytes, AllocOptions::PRIVATE).expect("the whole card");
        domain.free(all).expect("freed");
    }
    fn address_hint_is_used(fixture) {
        let domain = fixture.domain();
        let attributes = domain.query().expect("queried");
        let hint = attributes.device_base.checked_add(attributes.device_page_bytes * 5);
        let options = AllocOptions { hint, ..AllocOptions::default() };
        let memory = domain.alloc(4096, options).expect("allocated");
        assert_eq!(Some(memory.address()), hint.map(|hint| hint.0));
        domain.free(memory).expect("freed");
    }
    fn host_memory_is_zeroed(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc_host(5000).expect("allocated");
        let mut bytes = vec![1; 5000];
        memory.read(0, &mut bytes).expect("read");
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert_eq!(memory.kind(), MemoryType::Host);
        domain.free(memory).expect("freed");
    }
    fn host_memory_is_read_and_written(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc_host(5000).expect("allocated");
        memory.write(4990, &pattern(10, 9)).expect("written");
        let mut bytes = [0; 10];
        memory.read(4990, &mut bytes).expect("read");
        assert_eq!(bytes[..], pattern(10, 9));
        assert_eq!(kind(memory.write(4991, &bytes)), ErrorKind::BadAddress);
        assert_eq!(kind(memory.read(u64::MAX, &mut bytes)), ErrorKind::BadAddress);
    }
    fn processor_does_not_read_device_memory(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        assert_eq!(kind(memory.read(0, &mut [0; 4])), ErrorKind::Unsupported);
        assert_eq!(kind(memory.write(0, &[0; 4])), ErrorKind::Unsupported);
        assert_eq!(kind(memory.read(4096, &mut [0; 1])), ErrorKind::BadAddress);
    }
    fn free_with_clone_returns_memory(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(64, AllocOptions::default()).expect("allocated");
        let clone = memory.clone();
        let (memory, error) = domain.free(memory).expect_err("in use").into_parts();
        assert_eq!(error.kind(), ErrorKind::InUse);
        drop(clone);
        domain.mem_query(memory.address(), 64).expect("it is still found");
        domain.free(memory).expect("freed");
    }
    fn free_with_open_dmabuf_returns_memory(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        let info = domain.mem_query(memory.address(), 1).expect("found");
        let window = domain.window(&info).expect("exported");
        let (memory, error) = domain.free(memory).expect_err("in use").into_parts();
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        let again = domain.mem_query(memory.address(), 1).expect("it is found again");
        assert_eq!(again.base, memory.address());
        drop(window);
        domain.free(memory).expect("freed");
    }
    fn free_by_other_domain_is_refused(fixture) [Second] {
        let (domain, other) = (fixture.domain(), fixture.other());
        let memory = domain.alloc(64, AllocOptions::default()).expect("allocated");
        let (memory, error) = other.free(memory).expect_err("not its own").into_parts();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        domain.free(memory).expect("freed");
    }
    fn drop_frees_memory(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(64, AllocOptions::default()).expect("allocated");
        let address = memory.address();
        drop(memory);
        assert_eq!(kind(domain.mem_query(address, 1)), ErrorKind::NotFound);
    }
    fn close_with_memory_returns_domain(fixture) [Closed] {
        let domain = fixture.domain();
        let memory = domain.alloc(64, AllocOptions::default()).expect("allocated");
        let (domain, error) = domain.close().expect_err("in use").into_parts();
        assert_eq!(error.kind(), ErrorKind::InUse);
        domain.free(memory).expect("freed");
        domain.close().map_err(Error::from).expect("closed");
    }
    fn close_succeeds_beside_other_lookups(fixture) [Second, Closed] {
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Each looks through the cards of the process.
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    drop(fixture.other());
                }
            });
            for _ in 0..2000 {
                let domain = fixture.domain();
                let closed = domain.close().map_err(Error::from);
                if closed.is_err() {
                    is_done.store(true, Ordering::Relaxed);
                }
                closed.expect("only this thread has the domain");
            }
            is_done.store(true, Ordering::Relaxed);
        });
    }
    fn closed_card_opens_again(fixture) [Closed] {
        let domain = fixture.domain();
        drop(domain.alloc(64, AllocOptions::default()).expect("allocated"));
        domain.close().map_err(Error::from).expect("closed");
        let domain = fixture.domain();
        drop(domain.alloc(64, AllocOptions::default()).expect("allocated again"));
    }
    fn memory_outlives_domain_handle(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc_host(64).expect("allocated");
        drop(domain);
        memory.write(0, b"still").expect("written");
        let domain = fixture.domain();
        assert!(domain.is_open(), "the card is the same");
        domain.free(memory).expect("freed");
    }
    fn two_cards_have_distinct_addresses(fixture) [Second] {
        let (domain, other) = (fixture.domain(), fixture.other());
        for options in [AllocOptions::PRIVATE, AllocOptions::default()] {
            let a = domain.alloc(4096, options).expect("allocated");
            let b = other.alloc(4096, options).expect("allocated");
            assert!(a.address().abs_diff(b.address()) >= 4096);
            assert_eq!(kind(domain.mem_query(b.address(), 1)), ErrorKind::NotFound);
            other.mem_query(b.address(), 1).expect("found by its own");
        }
    }
}
