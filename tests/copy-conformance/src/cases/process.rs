//! Fork children and threads.

use std::sync::Mutex;

use gaudi_copy::{AllocOptions, Attached, Error, ErrorKind, Local, MemoryType, Transport, memory_types};

use crate::suite::{cases, in_child, pattern, read_back, write};

/// The number of the first check that is false, from 1; 0 if all are true.
fn first_false(checks: &[bool]) -> i32 {
    checks
        .iter()
        .position(|check| !check)
        .map_or(0, |at| at as i32 + 1)
}

fn forked<T, E: Into<Error>>(answer: Result<T, E>) -> bool {
    answer.map_err(|error| error.into().kind()).err() == Some(ErrorKind::Forked)
}

cases! { "processes";
    fn fork_child_calls_fail_with_forked(fixture) {
        let domain = fixture.domain();
        let device = domain.alloc(4096, AllocOptions::EXPORTED).expect("allocated");
        let host = domain.alloc_host(4096).expect("allocated");
        let mut transport = Transport::new(&domain).expect("a transport");
        let target = Attached::to(&device);
        transport.put_short(b"before", &target, device.address()).expect("posted");
        transport.flush_wait(gaudi_copy::Deadline::NEVER).expect("flushed");
        let info = domain.mem_query(device.address(), 1).expect("found");
        let code = in_child(|| {
            let mut byte = [0];
            first_false(&[
                forked(domain.query()),
                forked(domain.device().map(drop)),
                forked(domain.alloc(1, AllocOptions::default())),
                forked(domain.alloc_host(1)),
                forked(domain.mem_query(device.address(), 1)),
                forked(domain.dmabuf(&info)),
                forked(domain.pack(&device)),
                forked(domain.register_device(device.address(), 1)),
                forked(domain.free(device.clone())),
                forked(domain.deregister(host.clone())),
                forked(domain.clone().close()),
                forked(Transport::new(&domain)),
                forked(transport.put_short(b"x", &target, device.address())),
                forked(transport.put_bcopy(1, |_| 1, &target, device.address())),
                forked(transport.get_short(&mut byte, &target, device.address())),
                forked(transport.get_bcopy(1, |_| {}, &target, device.address(), None)),
                forked(transport.put_zcopy(&[Local::all(&host)], &target, device.address(), None)),
                forked(transport.get_zcopy(&[Local::all(&host)], &target, device.address(), None)),
                forked(transport.progress()),
                forked(transport.flush(None)),
                forked(transport.flush_wait(gaudi_copy::Deadline::NEVER)),
                forked(host.write(0, b"x")),
                memory_types().lookup(device.address(), 1).kind == MemoryType::Device,
                memory_types().lookup(host.address(), 1).kind == MemoryType::Host,
                memory_types().stats().ranges == 0,
            ])
        });
        assert_eq!(code, 0, "check {code} in the child");
        assert_eq!(read_back(&domain, &device, 0, 6), b"before");
    }
    fn fork_child_makes_its_own_domain(fixture) [Closed] {
        let parents = {
            let domain = fixture.domain();
            let memory = domain.alloc(4096, AllocOptions::PRIVATE).expect("allocated");
            memory.address()
        };
        let types = memory_types();
        assert_eq!(types.lookup(parents, 1).kind, MemoryType::Host, "it is freed");
        let device = fixture.domain().query().expect("queried").device;
        types.insert(0x5000_0000_0000_0000, 100, device).expect("inserted");
        let is_inherited = || {
            let typed = types.lookup(0x5000_0000_0000_0063, 1);
            (typed.kind, typed.device) == (MemoryType::Device, None)
        };
        let code = in_child(|| {
            let first = is_inherited();
            let domain = fixture.domain();
            let memory = domain.alloc(4096, AllocOptions::PRIVATE).expect("allocated");
            let typed = types.lookup(memory.address() + 4095, 1);
            write(&domain, &memory, 0, &pattern(4096, 2));
            let seen = read_back(&domain, &memory, 0, 4096);
            let key = domain.pack(&memory).expect("packed").to_bytes();
            let checks = [
                first && is_inherited(),
                typed.device == Some(memory.device()),
                seen == pattern(4096, 2),
                Attached::unpack(&key).is_ok(),
                domain.free(memory).is_ok(),
                types.stats().ranges == 0 && is_inherited(),
                domain.close().is_ok(),
            ];
            first_false(&checks)
        });
        assert!(types.remove(0x5000_0000_0000_0000));
        assert_eq!(code, 0, "check {code} in the child");
    }
    fn fork_childs_drops_spare_parent(fixture) {
        let domain = fixture.domain();
        let device = domain.alloc(4096, AllocOptions::EXPORTED).expect("allocated");
        let host = domain.alloc_host(4096).expect("allocated");
        let transport = Transport::new(&domain).expect("a transport");
        write(&domain, &device, 0, &pattern(4096, 1));
        let mut all = Some((domain, device, host, transport));
        let code = in_child(|| {
            drop(all.take());
            0
        });
        assert_eq!(code, 0);
        let (domain, device, ..) = all.take().expect("the parent's");
        assert_eq!(read_back(&domain, &device, 0, 4096), pattern(4096, 1));
    }
    fn threads_allocate_and_free(fixture) {
        let domain = fixture.domain();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let domain = &domain;
                scope.spawn(move || {
                    for round in 0..50 {
                        let len = 1 + (thread * 977 + round * 131) % 9000;
                        let memory = domain.alloc(len, AllocOptions::PRIVATE).expect("allocated");
                        let info = domain.mem_query(memory.address() + len - 1, 1).expect("found");
                        assert_eq!((info.base, info.len), (memory.address(), len));
                        domain.free(memory).expect("freed");
                    }
                });
            }
        });
    }
    fn threads_copy_through_own_transports(fixture) {
        let domain = fixture.domain();
        let device = domain.alloc(4 * 4096, AllocOptions::PRIVATE).expect("allocated");
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (domain, device) = (&domain, &device);
                scope.spawn(move || {
                    let mut transport = Transport::new(domain).expect("a transport");
                    let target = Attached::to(device);
                    let at = device.address() + thread * 4096;
                    for round in 0..20 {
                        let bytes = pattern(2048, (thread * 40 + round) as u8);
                        transport.put_short(&bytes, &target, at).expect("posted");
                        transport.flush_wait(gaudi_copy::Deadline::NEVER).expect("flushed");
                        let mut seen = vec![0; 2048];
                        transport.get_short(&mut seen, &target, at).expect("read");
                        assert_eq!(seen, bytes);
                    }
                });
            }
        });
    }
    fn transport_moves_to_other_thread(fixture) {
        let domain = fixture.domain();
        let device = domain.alloc(64, AllocOptions::PRIVATE).expect("allocated");
        let mut transport = Transport::new(&domain).expect("a transport");
        transport.put_short(b"moved", &Attached::to(&device), device.address()).expect("posted");
        std::thread::scope(|scope| {
            scope.spawn(move || drop(transport)).join().expect("dropped");
        });
        assert_eq!(read_back(&domain, &device, 0, 5), b"moved");
    }
    fn one_thread_opens_for_all(fixture) {
        let domain = fixture.domain();
        let devices = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| devices.lock().expect("no panic").push(domain.device().expect("open").id()));
            }
        });
        let devices = devices.into_inner().expect("no panic");
        assert!(devices.iter().all(|id| *id == devices[0]), "{devices:?}");
    }
}
