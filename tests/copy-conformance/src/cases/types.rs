//! The types of addresses.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gaudi_copy::{AllocOptions, ErrorKind, MemoryEvent, MemoryEvents, MemoryType, memory_types};

use crate::suite::{cases, kind};

#[derive(Default)]
struct Log(Mutex<Vec<MemoryEvent>>);

impl MemoryEvents for Log {
    fn on_event(&self, event: MemoryEvent) {
        self.0.lock().expect("no panic").push(event);
    }
}

/// Ends the other threads of a case, also after a panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

cases! { "memory types";
    fn device_memory_is_typed_at_any_address(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(10_000, AllocOptions::default()).expect("allocated");
        for offset in [0, 1, 4096, 9_999] {
            let typed = memory_types().lookup(memory.address() + offset, 1);
            assert_eq!((typed.kind, typed.device), (MemoryType::Device, Some(memory.device())));
        }
        assert_eq!(memory_types().lookup(memory.address(), 10_001).kind, MemoryType::Host);
    }
    fn host_memory_is_host(fixture) {
        let domain = fixture.domain();
        let host = domain.alloc_host(64).expect("allocated");
        let typed = memory_types().lookup(host.address(), 64);
        assert_eq!((typed.kind, typed.device), (MemoryType::Host, None));
        assert_eq!(memory_types().lookup(0, 1).kind, MemoryType::Host);
    }
    fn freed_device_memory_is_host(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(64, AllocOptions::default()).expect("allocated");
        let address = memory.address();
        domain.free(memory).expect("freed");
        assert_eq!(memory_types().lookup(address, 1).kind, MemoryType::Host);
    }
    fn each_card_is_named(fixture) [Second] {
        let (domain, other) = (fixture.domain(), fixture.other());
        let a = domain.alloc(64, AllocOptions::default()).expect("allocated");
        let b = other.alloc(64, AllocOptions::default()).expect("allocated");
        assert_eq!(memory_types().lookup(a.address(), 64).device, Some(a.device()));
        assert_eq!(memory_types().lookup(b.address(), 64).device, Some(b.device()));
        assert_ne!(a.device(), b.device());
    }
    fn events_surround_life(fixture) {
        let log = Arc::new(Log::default());
        let listener: Arc<dyn MemoryEvents> = log.clone();
        memory_types().subscribe(&listener);
        let domain = fixture.domain();
        let memory = domain.alloc(64, AllocOptions::default()).expect("allocated");
        let (address, len, device) = (memory.address(), 64, memory.device());
        domain.free(memory).expect("freed");
        drop(domain.alloc_host(64).expect("host memory has no events"));
        let seen = log.0.lock().expect("no panic");
        assert!(matches!(seen[..], [MemoryEvent::Alloc { .. }, MemoryEvent::Free { .. }]), "{seen:?}");
        match seen[0] {
            MemoryEvent::Alloc { address: a, len: l, device: d } => assert_eq!((a, l, d), (address, len, device)),
            ref other => panic!("{other:?}"),
        }
    }
    fn failed_free_announces_memory_again(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        let info = domain.mem_query(memory.address(), 1).expect("found");
        let window = domain.window(&info).expect("exported");
        let log = Arc::new(Log::default());
        let listener: Arc<dyn MemoryEvents> = log.clone();
        memory_types().subscribe(&listener);
        let (memory, _) = domain.free(memory).expect_err("in use").into_parts();
        assert_eq!(log.0.lock().expect("no panic").len(), 2, "Free, then Alloc");
        assert_eq!(memory_types().lookup(memory.address(), 1).kind, MemoryType::Device);
        drop((window, listener));
        domain.free(memory).expect("freed");
    }
    fn announced_memory_is_typed(fixture) {
        let domain = fixture.domain();
        let device = domain.query().expect("queried").device;
        let types = memory_types();
        types.insert(0x5000_0000_0000_0000, 100, device).expect("inserted");
        assert_eq!(types.lookup(0x5000_0000_0000_0063, 1).device, Some(device));
        let seen = kind(types.insert(0x5000_0000_0000_0063, 1, device));
        assert_eq!(seen, ErrorKind::InUse);
        assert!(types.remove(0x5000_0000_0000_0000));
    }
    fn threads_never_see_wrong_type(fixture) {
        let domain = fixture.domain();
        let keep = domain.alloc(4096, AllocOptions::PRIVATE).expect("allocated");
        let stop = AtomicBool::new(false);
        let looked = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            for _ in 0..2 {
                scope.spawn(|| {
                    let _stop = StopOnDrop(&stop);
                    let local = 0_u8;
                    while !stop.load(Ordering::Relaxed) {
                        let typed = memory_types().lookup(keep.address() + 4095, 1);
                        assert_eq!(typed.device, Some(keep.device()));
                        let host = std::ptr::from_ref(&local).addr() as u64;
                        assert_eq!(memory_types().lookup(host, 1).kind, MemoryType::Host);
                        looked.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..300 {
                let memory = domain.alloc(4096, AllocOptions::PRIVATE).expect("allocated");
                assert_eq!(memory_types().lookup(memory.address(), 4096).kind, MemoryType::Device);
                domain.free(memory).expect("freed");
            }
            while looked.load(Ordering::Relaxed) < 1000 && !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
    }
    fn tables_count_what_is_left(fixture) {
        let before = memory_types().stats();
        let domain = fixture.domain();
        let memory = domain.alloc(100, AllocOptions::default()).expect("allocated");
        let during = memory_types().stats();
        assert_eq!((during.ranges, during.bytes), (before.ranges + 1, before.bytes + 100));
        drop(memory);
        let after = memory_types().stats();
        assert_eq!((after.ranges, after.removed), (before.ranges, before.removed + 1));
    }
}
