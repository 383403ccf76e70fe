//! The driver may unmap memory and report an error all the same (`memory.c:unmap_device_va` frees
//! the address, then returns the result of the MMU's cache invalidation). No retry may touch the
//! address's next owner.

mod seam;

use std::sync::mpsc;

use gaudi_device::{Buffer, Deadline, Device, DeviceSpec, ErrorKind, HostMapping, Options};
use gaudi_hal::{SharedIo, mock_ledger};
use gaudi_seam::{Errno, Error};

use self::seam::Seam;

const OP: &str = "HL_MEM_OP_UNMAP";

/// A mock, and a control node that reads its ledger after the device has closed.
fn open(name: &str) -> (Device, Seam, DeviceSpec, SharedIo) {
    let spec: DeviceSpec = format!("mock:gaudi2?name={name}").parse().expect("a spec");
    let control = gaudi_hal::control(&spec).expect("a control node");
    let (device, seam) = Seam::open(&spec, Options::default());
    (device, seam, spec, control)
}

/// The next `times` unmap calls unmap and report `EIO`.
fn unmap_and_fail(seam: &Seam, times: u32) {
    let mut left = times;
    seam.set(|hooks| {
        hooks.mem_unmap = Some(Box::new(move |io, address| {
            let answer = io.mem_unmap(address);
            if left == 0 {
                return answer;
            }
            left -= 1;
            answer.and(Err(Error::from_errno(OP, Errno::EIO)))
        }));
    });
}

/// The next unmap call does nothing and reports `EIO`.
fn fail_to_unmap(seam: &Seam) {
    let mut left = 1;
    seam.set(|hooks| {
        hooks.mem_unmap = Some(Box::new(move |io, address| {
            if left == 0 {
                return io.mem_unmap(address);
            }
            left -= 1;
            Err(Error::from_errno(OP, Errno::EIO))
        }));
    });
}

/// Copies a pattern to the buffer and back.
fn works(device: &Device, buffer: &Buffer) {
    let host = device.alloc_host(4096).expect("a mapping");
    host.fill(0, 4096, 0x5a).expect("filled");
    for (dst, src) in [
        (buffer.at(..4096).expect("in"), (&host).into()),
        ((&host).into(), buffer.at(..4096).expect("in")),
    ] {
        device
            .copy(dst, src)
            .expect("submitted")
            .wait(Deadline::NEVER)
            .expect("the device reaches both");
    }
    let mut seen = [0; 4096];
    host.read(0, &mut seen).expect("read");
    assert_eq!(seen, [0x5a; 4096]);
}

#[test]
fn close_frees_pages_of_failed_unmap() {
    for exclusive in [false, true] {
        let (device, seam, spec, _control) = open(&format!("unmap-error-{exclusive}"));
        let alloc = |len| match exclusive {
            true => device.alloc_exclusive(len).expect("a buffer"),
            false => device.alloc(len).expect("a buffer"),
        };
        let first = alloc(4096);
        let address = first.address();
        unmap_and_fail(&seam, 1);
        first.close().expect("the memory is unmapped and freed");
        assert_eq!(
            mock_ledger(&spec).expect("the mock").allocations,
            0,
            "Ok means that the handle is freed"
        );
        let second = alloc(4096);
        assert_eq!(second.address(), address, "the address has a new owner");
        works(&device, &second);
        second.close().expect("no other handle");
        device.close().expect("no handle is left");
        assert!(mock_ledger(&spec).expect("the mock").is_clean());
    }
}

#[test]
fn dropped_pages_never_unmap_the_next_owner() {
    for exclusive in [false, true] {
        let (device, seam, spec, _control) = open(&format!("unmap-drop-{exclusive}"));
        let alloc = |len| match exclusive {
            true => device.alloc_exclusive(len).expect("a buffer"),
            false => device.alloc(len).expect("a buffer"),
        };
        let first = alloc(4096);
        let address = first.address();
        unmap_and_fail(&seam, 1);
        drop(first);
        let second = alloc(4096);
        assert_eq!(second.address(), address, "the address has a new owner");
        // An allocation retries what failed before.
        let third = device.alloc_exclusive(4096).expect("other pages");
        works(&device, &second);
        drop((second, third));
        device.close().expect("no handle is left");
        assert!(mock_ledger(&spec).expect("the mock").is_clean());
    }
}

#[test]
fn close_after_foreign_unmap_spares_next_owner() {
    let (device, _seam, spec, _control) = open("unmap-foreign");
    let first = device.alloc_exclusive(4096).expect("pages");
    device
        .io()
        .mem_unmap(first.address())
        .expect("unmapped below the library");
    let second = device.alloc_exclusive(4096).expect("pages");
    assert_eq!(second.address(), first.address(), "the address has a new owner");
    let host = device.alloc_host(4096).expect("a mapping");
    let error = device
        .copy(&first, &host)
        .expect_err("it would write to the new owner");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    first.close().expect("the handle is freed");
    works(&device, &second);
    drop((second, host));
    device.close().expect("no handle is left");
    assert!(mock_ledger(&spec).expect("the mock").is_clean());
}

/// Pages that were unmapped below the library may have another owner: no piece of them is handed
/// out.
#[test]
fn alloc_avoids_pages_with_another_owner() {
    let (device, _seam, spec, _control) = open("unmap-foreign-piece");
    let first = device.alloc(4096).expect("a buffer");
    device
        .io()
        .mem_unmap(first.address())
        .expect("unmapped below the library");
    let second = device.alloc_exclusive(4096).expect("pages");
    assert_eq!(second.address(), first.address(), "the address has a new owner");
    let third = device.alloc(4096).expect("a buffer");
    works(&device, &second);
    works(&device, &third);
    let ahead = third.address().0.abs_diff(second.address().0);
    assert!(
        ahead >= 768 << 20,
        "{} lies in the new owner's page",
        third.address()
    );
    drop((first, second, third));
    device.close().expect("no handle is left");
    assert!(mock_ledger(&spec).expect("the mock").is_clean());
}

#[test]
fn close_after_foreign_unmap_frees_handle() {
    let (device, _seam, spec, _control) = open("unmap-foreign-alone");
    let first = device.alloc_exclusive(4096).expect("pages");
    device
        .io()
        .mem_unmap(first.address())
        .expect("unmapped below the library");
    first.close().expect("the handle is freed");
    assert_eq!(mock_ledger(&spec).expect("the mock").allocations, 0);
    device.close().expect("no handle is left");
}

#[test]
fn close_keeps_pages_that_stay_mapped() {
    let (device, seam, spec, _control) = open("unmap-refused");
    let buffer = device.alloc_exclusive(4096).expect("pages");
    fail_to_unmap(&seam);
    let (buffer, error) = buffer.close().expect_err("the driver refuses once").into_parts();
    assert_eq!(error.errno(), Some(Errno::EIO), "{error}");
    assert_eq!(mock_ledger(&spec).expect("the mock").allocations, 1);
    works(&device, &buffer);
    buffer.close().expect("the second time it is freed");
    assert_eq!(mock_ledger(&spec).expect("the mock").allocations, 0);
    device.close().expect("no handle is left");
}

#[test]
fn host_mapping_retry_spares_next_owner() {
    let (device, seam, spec, _control) = open("unmap-host");
    let first = device.alloc_host(4096).expect("a mapping");
    let address = first.address();
    unmap_and_fail(&seam, 1);
    let (first, error) = first
        .close()
        .expect_err("the driver reports an error")
        .into_parts();
    assert_eq!(error.errno(), Some(Errno::EIO), "{error}");
    let second = device.alloc_host(4096).expect("a mapping");
    assert_eq!(second.address(), address, "the address has a new owner");
    let buffer = device.alloc(4096).expect("a buffer");
    let error = device
        .copy(&buffer, &first)
        .expect_err("it would read the new owner's memory");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    first.close().expect("the driver unmapped it the first time");
    second.fill(0, 4096, 7).expect("filled");
    device
        .copy(&buffer, &second)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("the new owner is mapped");
    drop((second, buffer));
    device.close().expect("no handle is left");
    assert!(mock_ledger(&spec).expect("the mock").is_clean());
}

#[test]
fn dropped_host_mapping_spares_next_owner() {
    let (device, seam, _spec, _control) = open("unmap-host-drop");
    let take = || -> HostMapping { device.alloc_host(4096).expect("a mapping") };
    let first = take();
    let address = first.address();
    let buffer = device.alloc(4096).expect("a buffer");
    device
        .io()
        .mem_unmap(address)
        .expect("unmapped below the library");
    let second = take();
    assert_eq!(second.address(), address, "the address has a new owner");
    drop(first);
    unmap_and_fail(&seam, 1);
    device
        .copy(&buffer, &second)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("the new owner is mapped");
    drop(second);
    let third = take();
    assert_eq!(third.address(), address, "the address has a third owner");
    device
        .copy(&buffer, &third)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("the third owner is mapped");
}

/// After an unmap and a free that both fail, the device may not reach the memory any more.
#[test]
fn copy_fails_while_mapping_is_unknown() {
    let (device, seam, spec, _control) = open("unknown+fault=mem_free:when=1:error=EIO");
    let buffer = device.alloc_exclusive(4096).expect("pages");
    unmap_and_fail(&seam, 1);
    let (buffer, error) = buffer
        .close()
        .expect_err("the driver reports errors")
        .into_parts();
    assert_eq!(error.errno(), Some(Errno::EIO), "{error}");
    let error = device.fill(&buffer, 1).expect_err("an engine may fault there");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    buffer.close().expect("the handle is freed");
    assert_eq!(mock_ledger(&spec).expect("the mock").allocations, 0);
    device.close().expect("no handle is left");
}

/// Whether this process has memory at an address.
fn has_memory(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc(5)");
    maps.lines().any(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).expect("a number");
        range.is_some_and(|(start, end)| (number(start)..number(end)).contains(&address))
    })
}

/// The device reaches memory that it refuses to unmap until the node closes.
#[test]
fn refused_host_memory_outlives_the_node() {
    let (device, seam, _spec, _control) = open("unmap-close");
    let host = device.alloc_host(1 << 20).expect("a mapping");
    let address = host.as_ptr().as_ptr() as usize;
    let (seen, at_close) = mpsc::channel();
    seam.set(|hooks| {
        hooks.mem_unmap = Some(Box::new(|_, _| Err(Error::from_errno(OP, Errno::EIO))));
        hooks.close = Some(Box::new(move || {
            seen.send(has_memory(address)).expect("the test waits");
        }));
    });
    drop(host);
    drop(device);
    assert_eq!(
        at_close.recv(),
        Ok(true),
        "the memory is freed before the node closes"
    );
    assert!(!has_memory(address), "the memory is freed with the node");
}
