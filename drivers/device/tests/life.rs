//! Lifetimes: what holds what, in which order it is freed, and that nothing is left.

use std::time::{Duration, Instant};

use gaudi_device::{CloseError, Deadline, Device, DeviceSpec, ErrorKind};
use gaudi_hal::{Ledger, SharedIo, mock_ledger};

const PAGE: u64 = 768 << 20;

/// A mock, and a control node that keeps it and its ledger when the device closes.
fn open(spec: &str) -> (Device, DeviceSpec, SharedIo) {
    let spec: DeviceSpec = spec.parse().expect("a spec");
    let control = gaudi_hal::control(&spec).expect("a control node");
    (Device::open(&spec).expect("the mock opens"), spec, control)
}

fn ledger(spec: &DeviceSpec) -> Ledger {
    mock_ledger(spec).expect("the mock is there")
}

#[test]
fn small_buffers_share_pages() {
    let (device, spec, _control) = open("mock:gaudi2?name=pages");
    let mut buffers: Vec<_> = (1..200_u64)
        .map(|len| device.alloc(len).expect("a buffer"))
        .collect();
    assert_eq!(
        ledger(&spec).allocations,
        1,
        "199 buffers are pieces of one allocation"
    );
    let mut ends: Vec<_> = buffers
        .iter()
        .map(|buffer| (buffer.address().0, buffer.len()))
        .collect();
    ends.sort_unstable();
    for pair in ends.windows(2) {
        assert!(
            pair[0].0 + pair[0].1.next_multiple_of(128) <= pair[1].0,
            "{pair:?} share no cache line"
        );
    }
    assert!(
        buffers.iter().all(|buffer| buffer.address().is_aligned(128)),
        "all start on a cache line"
    );
    let aligned = device.alloc_aligned(1, 1 << 20).expect("a buffer");
    assert!(aligned.address().is_aligned(1 << 20), "the alignment is larger");
    buffers.truncate(1);
    drop(aligned);
    assert_eq!(ledger(&spec).dram_bytes, PAGE, "one buffer still holds the page");
    buffers.pop().expect("one").close().expect("closed");
    assert_eq!(
        (ledger(&spec).allocations, ledger(&spec).dram_bytes),
        (0, 0),
        "an empty page is freed"
    );
    let large = device.alloc(PAGE + 1).expect("two pages");
    let small = device.alloc(1000).expect("a piece of the second");
    assert_eq!(
        ledger(&spec).dram_bytes,
        2 * PAGE,
        "the rest of the second page is used"
    );
    drop((large, small));
    device.close().expect("no other holder");
    assert!(
        ledger(&spec).is_clean(),
        "all memory is freed: {:?}",
        ledger(&spec)
    );
}

#[test]
fn every_drop_order_frees_everything() {
    for order in 0..6 {
        let (device, spec, _control) = open("mock:gaudi2?name=order&order=stepped");
        let buffer = device.alloc(5000).expect("a buffer");
        let host = device.alloc_host(5000).expect("a mapping");
        let queue = device
            .queue(gaudi_spec::gaudi2::queue::PDMA_0_1)
            .expect("a queue");
        let completion = device.copy(&buffer, &host).expect("submitted");
        // In stepped order the copy is still in flight here.
        assert_eq!(ledger(&spec).in_flight, 1, "nothing ran yet");
        match order {
            0 => drop((device, buffer, host, queue, completion)),
            1 => drop((completion, queue, host, buffer, device)),
            2 => drop((buffer, host, device, completion, queue)),
            3 => drop((host, completion, device, queue, buffer)),
            4 => drop((queue, device, completion, buffer, host)),
            _ => drop((device, completion, host, queue, buffer)),
        }
        assert!(
            ledger(&spec).is_clean(),
            "order {order}: all memory is freed: {:?}",
            ledger(&spec)
        );
    }
}

#[test]
fn copy_outlives_handles_of_its_ends() {
    let (device, spec, _control) = open("mock:gaudi2?name=outlive&order=stepped");
    let (from, to) = (
        device.alloc(4096).expect("a buffer"),
        device.alloc(4096).expect("a buffer"),
    );
    let host = device.alloc_host(4096).expect("a mapping");
    host.fill(0, 4096, 0x3c).expect("filled");
    let _ = device.copy(&from, &host).expect("submitted");
    assert_eq!(ledger(&spec).in_flight, 1, "the copy has not begun");
    drop(host);
    assert!(ledger(&spec).mappings > 1, "the mapping stays for the copy");
    device.drain(Deadline::NEVER).expect("the copy is done");
    assert_eq!(
        ledger(&spec).mappings,
        1,
        "what the copy held is freed when it is found done; the page of the buffers is left"
    );
    let dropped = device.alloc(4096).expect("a buffer");
    let address = dropped.address();
    let _ = device.fill(&dropped, 1).expect("submitted");
    drop(dropped);
    assert_ne!(
        device.alloc(4096).expect("a buffer").address(),
        address,
        "memory that an engine still fills is not reused"
    );
    let dropped = device.alloc(4096).expect("a buffer");
    let address = dropped.address();
    let _ = device.copy(&dropped, &to).expect("submitted");
    drop(dropped);
    assert_ne!(
        device.alloc(4096).expect("a buffer").address(),
        address,
        "and neither is what one copies into"
    );
    let completion = device.copy(&to, &from).expect("submitted");
    drop(from);
    // A buffer made now must not get the bytes that the copy still reads.
    let other = device.alloc(4096).expect("a buffer");
    device
        .fill(&other, 0xff)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("done");
    completion.wait(Deadline::NEVER).expect("done");
    let mut seen = [0; 4096];
    device.read(&to, 0, &mut seen).expect("read");
    assert_eq!(seen, [0x3c; 4096], "both copies read their sources");
}

/// Another thread's wait finds a copy done, and blocks in the driver while it releases what the
/// copy held.
#[test]
fn close_succeeds_after_wait() {
    let (device, spec, _control) = open("mock:gaudi2?name=letgo+fault=mem_unmap:when=1:delay=400ms");
    let dropped = device.alloc_exclusive(4096).expect("pages");
    let host = device.alloc_host(4096).expect("a mapping");
    let copy = device.copy(&dropped, &host).expect("submitted");
    // The pages go with the copy, before the mapping does.
    drop(dropped);
    std::thread::scope(|scope| {
        scope.spawn(|| copy.wait(Deadline::NEVER).expect("done"));
        std::thread::sleep(Duration::from_millis(100));
        copy.wait(Deadline::NEVER).expect("done");
        if let Err(error) = host.close() {
            panic!("no handle of the program holds it: {error}");
        }
    });
    drop(copy);
    device.close().expect("no other holder");
    assert!(ledger(&spec).is_clean(), "all memory is freed");
}

#[test]
fn failed_close_names_holders() {
    let (device, spec, _control) = open("mock:gaudi2?name=early&order=stepped");
    let buffer = device.alloc(4096).expect("a buffer");
    let host = device.alloc_host(4096).expect("a mapping");
    let completion = device.copy(&buffer, &host).expect("submitted");

    let clone = buffer.clone();
    let (buffer, error) = buffer
        .close()
        .expect_err("a clone and a copy hold it")
        .into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse);
    // Looking whether the copy is done lets a stepped mock go on, so it may be done by now.
    assert!(
        error.to_string().contains("handles or locations"),
        "the error counts holders by kind: {error}"
    );
    drop(clone);
    completion.wait(Deadline::NEVER).expect("done");
    drop(completion);

    let second = device.clone();
    let (device, error) = device.close().expect_err("a clone holds it").into_parts();
    assert!(
        error.to_string().contains("1 other handles of the device"),
        "the clone is reported: {error}"
    );
    drop(second);
    let (device, error) = device
        .close()
        .expect_err("buffer and mapping hold it")
        .into_parts();
    assert!(
        error.to_string().contains("1 × buffer") && error.to_string().contains("1 × host mapping"),
        "both are named: {error}"
    );
    device
        .copy(&host, &buffer)
        .expect("the device still works")
        .wait(Deadline::NEVER)
        .expect("done");
    buffer.close().expect("no other holder");
    host.close().expect("no other holder");
    device.close().expect("no other holder");
    assert!(ledger(&spec).is_clean(), "all memory is freed");
    Device::open(&spec).expect("the node is free again");
}

#[test]
fn failed_close_names_windows() {
    let (device, spec, _control) = open("mock:gaudi2?name=windows");
    let buffer = device.alloc_exclusive(100_000).expect("pages");
    let whole = buffer.window(..).expect("a window");
    let odd = buffer.window(4097..4100).expect("any bytes");
    assert_eq!(
        whole.dmabuf().identity(),
        odd.dmabuf().identity(),
        "what lives and covers the range is used again"
    );
    assert_eq!((odd.offset(), odd.len()), (4097, 3));
    assert!(ledger(&spec).exported);
    let error = buffer.window(99_999..=100_000).expect_err("one byte too far");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    drop(whole);
    let (buffer, error) = buffer.close().expect_err("a window lives").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(
        error.to_string().contains("life.rs"),
        "the error names the call: {error}"
    );
    drop(odd);
    buffer.close().expect("no other holder");
    assert_eq!(ledger(&spec).allocations, 0);
}

#[test]
fn failed_close_names_export() {
    let (device, spec, _control) = open("mock:gaudi2?name=export");
    let error = device
        .alloc(8192)
        .expect("a buffer")
        .export(..)
        .expect_err("it shares its page");
    assert!(
        error.help().is_some_and(|help| help.contains("alloc_exclusive")),
        "the help names alloc_exclusive: {error:?}"
    );
    let buffer = device.alloc_exclusive(10_000).expect("pages");
    let part = buffer.export(4096..8192).expect("a page of it");
    assert_eq!(part.size(), 4096);
    drop(part);
    assert_eq!(
        buffer.export(..).map(|dmabuf| dmabuf.size()),
        Ok(12_288),
        "the last page whole"
    );
    for wrong in [1..4097, 0..10_000, 4096..4096, 8192..16_384] {
        assert_eq!(
            buffer
                .export(wrong.clone())
                .map(|dmabuf| dmabuf.size())
                .map_err(|error| error.kind()),
            Err(ErrorKind::InvalidInput),
            "{wrong:?}"
        );
    }
    let fd = buffer.export(..).expect("a dma-buf");
    let (buffer, error) = buffer.close().expect_err("the export lives").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error:?}");
    drop(buffer);
    assert_eq!(
        ledger(&spec).allocations,
        1,
        "dropping does not take the pages away from the importer"
    );
    let (device, error) = device.close().expect_err("the pages wait").into_parts();
    assert!(
        error.to_string().contains("could not be unmapped"),
        "the export is suspected: {error}"
    );
    drop(fd);
    device.close().expect("the pages are freed with the dma-buf");
    assert!(
        ledger(&spec).is_clean(),
        "all memory is freed: {:?}",
        ledger(&spec)
    );
}

#[test]
fn slow_is_timed_out_not_hung() {
    let (device, spec, _control) = open("mock:gaudi2?name=hung&clock=virtual");
    let sob = device.sob().expect("a sync object");
    let mut queue = device
        .queue(gaudi_spec::gaudi2::queue::PDMA_0_1)
        .expect("a queue");
    let completion = queue
        .set(&sob, 0)
        .and_then(|queue| queue.wait(&sob, 1))
        .and_then(|queue| queue.submit())
        .expect("submitted");
    assert_eq!(completion.poll(), Ok(false), "there was no signal");
    let slow = completion.wait(Duration::from_millis(100)).expect_err("slow");
    assert_eq!(slow.kind(), ErrorKind::TimedOut, "the caller's deadline: {slow}");
    assert_eq!(slow.evidence(), None, "a deadline carries no box");
    let hung = completion.wait(Deadline::NEVER).expect_err("hung");
    assert_eq!(hung.kind(), ErrorKind::Hung, "the driver's timeout: {hung}");
    assert_eq!(
        completion.poll().map_err(|error| error.kind()),
        Err(ErrorKind::Hung),
        "a second poll returns the same"
    );
    let lost = device.alloc_host(4096).expect_err("the device is lost");
    assert!(
        matches!(lost.kind(), ErrorKind::DeviceLost | ErrorKind::Busy),
        "it needs a reset: {lost}"
    );
    drop((completion, queue, sob, device));
    let device = Device::open(&spec).expect("the reset came with the close");
    device.alloc(1).expect("it works again");
}

#[test]
fn wait_keeps_its_deadline() {
    let (device, _spec, _control) = open("mock:gaudi2?name=slow");
    let sob = device.sob().expect("a sync object");
    let mut holder = device
        .queue(gaudi_spec::gaudi2::queue::PDMA_0_1)
        .expect("a queue");
    let held = holder
        .set(&sob, 0)
        .and_then(|queue| queue.wait(&sob, 3))
        .and_then(|queue| queue.submit())
        .expect("submitted");
    let begin = Instant::now();
    let error = held.wait(Duration::from_millis(30)).expect_err("slow");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(
        begin.elapsed() >= Duration::from_millis(30),
        "not before its time: {:?}",
        begin.elapsed()
    );
    let mut signaller = device
        .queue(gaudi_spec::gaudi2::queue::PDMA_1_0)
        .expect("a queue");
    let _ = signaller
        .signal(&sob, 3)
        .and_then(|queue| queue.submit())
        .expect("submitted");
    held.wait(Duration::from_secs(20)).expect("released");
}

#[test]
fn refused_close_can_be_repeated() {
    let (device, spec, _control) = open("mock:gaudi2?name=again+fault=mem_unmap:when=1:error=EINVAL");
    let (first, second) = (
        device.alloc(1000).expect("a buffer"),
        device.alloc(1000).expect("a buffer"),
    );
    let address = second.address();
    first
        .close()
        .expect("the page is still in use: the driver is not called");
    let (second, error) = second.close().expect_err("the driver refuses once").into_parts();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(ledger(&spec).allocations, 1, "the page is still there");
    let third = device.alloc(1 << 20).expect("a piece of the same page");
    assert_eq!(ledger(&spec).allocations, 1, "the page is used again");
    assert_ne!(third.address(), address, "and the piece is still the buffer's");
    assert!(
        third.address().0.abs_diff(address.0) < PAGE,
        "{third:?} lies in the page of {second:?}"
    );
    third.close().expect("the page is still in use");
    second.close().expect("the second close succeeds");
    assert_eq!(ledger(&spec).allocations, 0, "all memory is freed");
    device.close().expect("no other holder");
}

#[test]
fn next_close_frees_unmapped_memory() {
    for exclusive in [false, true] {
        let (device, spec, _control) = open(&format!(
            "mock:gaudi2?name=unfreed-{exclusive}+fault=mem_free:when=1:error=EIO"
        ));
        let buffer = match exclusive {
            true => device.alloc_exclusive(1000),
            false => device.alloc(1000),
        }
        .expect("a buffer");
        let (buffer, error) = buffer.close().expect_err("the driver refuses once").into_parts();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(
            (ledger(&spec).allocations, ledger(&spec).mappings),
            (1, 0),
            "unmapped, but there"
        );
        let host = device.alloc_host(1000).expect("a mapping");
        for refused in [
            device.copy(&buffer, &host).map(|_| ()),
            device.fill(&buffer, 1).map(|_| ()),
        ] {
            let error = refused.expect_err("an engine would fault there");
            assert!(
                error.kind() == ErrorKind::InvalidInput && error.to_string().contains("can no longer access"),
                "{error}"
            );
        }
        drop(host);
        buffer.close().expect("the second close succeeds");
        assert_eq!(ledger(&spec).allocations, 0, "Ok means that it is freed");
        device.close().expect("no other holder");
    }
}

#[test]
fn second_close_frees_memory() {
    let (device, spec, _control) = open("mock:gaudi2?name=second+fault=mem_unmap:when=1:error=EINVAL");
    let buffer = device.alloc(1000).expect("a buffer");
    let (buffer, _) = buffer.close().expect_err("the driver refuses once").into_parts();
    buffer.close().expect("the second close succeeds");
    assert_eq!(ledger(&spec).allocations, 0, "Ok means that it is freed");
    device.close().expect("no other holder");
}

/// What the flush does to the bus is the driver's and the chip's: the mock has no posted writes to
/// push. Here is that it is asked for, and what a refusal becomes.
#[test]
fn flush_is_one_call() {
    let (device, ..) = open("mock:gaudi2?name=flush+fault=submit:when=2:error=EOPNOTSUPP");
    device.flush_pci_hbw_writes().expect("Gaudi2 has the register");
    let error = device.flush_pci_hbw_writes().expect_err("a chip without it");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let buffer = device.alloc(4096).expect("a buffer");
    let filled = device
        .fill(&buffer, 1)
        .expect("it takes no place of a submission");
    assert!(filled.sequence().is_some_and(|seq| seq <= 1), "{filled:?}");
    filled.wait(Deadline::NEVER).expect("filled");
}

/// A status query holds the device for as long as its call, without a handle that a close could
/// name.
#[test]
fn close_outlasts_status_queries_of_threads() {
    let (device, spec, _control) = open("mock:gaudi2?name=query");
    let buffer = device.alloc(1).expect("a buffer");
    let status = std::sync::Mutex::new(buffer.status_handle());
    let stop = std::sync::atomic::AtomicBool::new(false);
    drop((buffer, device));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let handle = status.lock().expect("no panic").clone();
                while let Ok(Some(_)) = handle.query() {}
            }
        });
        let mut failed = None;
        for round in 0..500 {
            let device = match Device::open(&spec) {
                Ok(device) => device,
                Err(error) => {
                    failed = Some((round, error));
                    break;
                }
            };
            let buffer = device.alloc(1).expect("a buffer");
            *status.lock().expect("no panic") = buffer.status_handle();
            buffer.close().expect("no other handle");
            if let Err(error) = device.close() {
                failed = Some((round, error.error));
                break;
            }
        }
        // Before any panic: the scope waits for its thread.
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(
            failed, None,
            "a query ends soon, and after a close the node is closed"
        );
    });
}

#[test]
fn close_is_in_use_while_query_hangs() {
    let (device, spec, _control) = open("mock:gaudi2?name=query-hangs+fault=info:when=3..999:delay=1500ms");
    let buffer = device.alloc(1).expect("a buffer");
    let status = buffer.status_handle();
    drop(buffer);
    let (begun, has_begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let query = scope.spawn(move || {
            begun.send(()).expect("the test waits");
            status.query()
        });
        has_begun.recv().expect("the thread runs");
        let mut device = Some(device);
        // The query may not have begun when the first close is called: then that close succeeds.
        let begin = Instant::now();
        while let Some(open) = device.take() {
            match open.close() {
                Ok(()) => break,
                Err(CloseError { object: again, error }) => {
                    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
                    assert!(begin.elapsed() < Duration::from_secs(30), "the query ends");
                    device = Some(again);
                }
            }
        }
        query.join().expect("no panic").expect("asked");
    });
    Device::open(&spec).expect("after a close the node is closed");
}

/// A dma-buf keeps dropped pages allocated. The next allocation frees them once the dma-buf is
/// closed.
#[test]
fn alloc_frees_pages_once_export_closed() {
    let (device, spec, _control) = open("mock:gaudi2?name=lingering");
    let buffer = device.alloc_exclusive(4096).expect("pages");
    let export = buffer.export(..).expect("a dma-buf");
    drop(buffer);
    assert_eq!(ledger(&spec).allocations, 1, "the dma-buf holds the pages");
    drop(export);
    let next = device.alloc_exclusive(4096).expect("pages");
    assert_eq!(ledger(&spec).allocations, 1, "the allocation freed the pages");
    drop(next);
    assert_eq!(ledger(&spec).allocations, 0);
    device.close().expect("nothing is left");
}

#[test]
fn host_mapping_rejects_bytes_past_its_end() {
    let (device, ..) = open("mock:gaudi2?name=past");
    let (host, other) = (device.alloc_host(4096), device.alloc_host(4096));
    let (host, other) = (host.expect("a mapping"), other.expect("a mapping"));
    let mut two = [0; 2];
    let answers = [
        host.read(4095, &mut two),
        host.write(4095, &two),
        host.fill(4095, 2, 0),
        host.fill(u64::MAX, 1, 0),
        host.copy_on_cpu(4095, &other, 0, 2),
        host.copy_on_cpu(0, &other, 4095, 2),
    ];
    for (at, answer) in answers.into_iter().enumerate() {
        let kind = answer.map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::BadAddress), "call {at}");
    }
    host.read(4094, &mut two).expect("the last two bytes");
}

#[test]
fn failed_map_frees_the_allocation() {
    let (device, spec, _control) = open("mock:gaudi2?name=mapfails+fault=mem_map_device:when=1..2:error=EIO");
    for exclusive in [false, true] {
        let answer = match exclusive {
            true => device.alloc_exclusive(4096),
            false => device.alloc(4096),
        };
        answer.expect_err("the map fails");
        assert_eq!(ledger(&spec).allocations, 0, "exclusive: {exclusive}");
    }
    let buffer = device.alloc(4096).expect("the third map works");
    buffer.close().expect("no other handle");
}

#[test]
fn failed_queue_destroys_its_command_buffer() {
    for fault in ["cb_info:when=1:error=EIO", "mmap:when=1:error=ENOMEM"] {
        let name = fault.split(':').next().expect("an operation");
        let (device, spec, _control) = open(&format!("mock:gaudi2?name=queue-{name}+fault={fault}"));
        let id = gaudi_spec::gaudi2::queue::PDMA_0_1;
        device.queue(id).map(drop).expect_err(fault);
        assert_eq!(ledger(&spec).command_buffers, 0, "{fault}");
        drop(device.queue(id).expect("the second works"));
        device.close().expect("no handle is left");
    }
}
