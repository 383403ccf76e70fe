//! The whole chain on a real kernel: memory of a modelled card, exported by the real driver, as a memory region of the lab's NIC, reached by
//! RDMA, and looked at by the card's own DMA engine.

mod opened;

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use gaudi_device::{Buffer, Deadline, Device};
use gaudi_lab::nic::{Nic, pattern, run};
use gaudi_lab::rxe::{Build, skips};
use gaudi_lab::uverbs::{DmaBufRegion, Region, Request, access, status};
use gaudi_lab::{card, kernel};
use gaudi_seam::{ErrorKind, ExportRequest, MapDevice, MemAlloc, SharedIo};
use gaudi_sys::{Errno, PAGE};
use gaudi_uapi::memory::MemFlags;
use nix::libc::{O_CLOEXEC, O_RDWR};

use opened::{TIMEOUT, open, spec};

const LEN: usize = 64 * PAGE as usize;

fn register(nic: &Nic, fd: i32) -> Result<Region, Errno> {
    nic.context.register_dmabuf(&DmaBufRegion {
        offset: 0,
        length: LEN as u64,
        iova: 0,
        fd,
        access: access::ALL,
    })
}

/// What lies in the card's memory, by its DMA engine.
fn seen(device: &Device, buffer: &Buffer) -> Vec<u8> {
    let host = device.alloc_host(LEN).expect("host memory");
    device
        .copy(&host, buffer)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("down");
    let mut bytes = vec![0; LEN];
    host.read(0, &mut bytes).expect("inside");
    bytes
}

/// Puts bytes there, by the same.
fn put(device: &Device, buffer: &Buffer, bytes: &[u8]) {
    let host = device.alloc_host(LEN).expect("host memory");
    host.write(0, bytes).expect("inside");
    device
        .copy(buffer, &host)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("up");
}

/// Before 7.0 Debian's kernels have no peer-to-peer DMA, and the driver gives its memory to nobody.
fn without_peers(nic: &Nic, fd: i32) -> bool {
    if kernel() >= (7, 0) {
        return false;
    }
    assert_eq!(register(nic, fd), Err(Errno::EPERM), "common/memory.c:1724");
    true
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn rdma_reaches_the_cards_memory() {
    if skips("rdma_reaches_the_cards_memory") {
        return;
    }
    let (device, nic) = (open(), Nic::open(Build::Patched));
    let buffer = device.alloc_exclusive(LEN as u64).expect("a page of its own");
    let export = buffer.export(..).expect("the driver exports it");
    let fd = export.as_fd().as_raw_fd();
    if without_peers(&nic, fd) {
        return;
    }
    let region = register(&nic, fd).expect("the NIC reaches the card's BAR");
    let rkey = region.rkey;
    let host = nic.host(LEN);
    let mut pair = nic.pair();

    // Zeros first, then a write whose ends lie within pages: it is there, and nothing else is.
    put(&device, &buffer, &vec![0; LEN]);
    let (at, len) = (4091, 100_003);
    host.pattern(1).expect("inside");
    let write = Request::Write {
        remote: at as u64,
        rkey,
    };
    assert_eq!(run(&mut pair, host.local(0, len), write).status, status::SUCCESS);
    let mut wanted = vec![0; LEN];
    wanted[at..at + len].copy_from_slice(&pattern(1, len));
    assert!(
        seen(&device, &buffer) == wanted,
        "the DMA engine sees what RDMA wrote, and nothing more"
    );

    // What the DMA engine puts there RDMA reads.
    let sent = pattern(2, LEN);
    put(&device, &buffer, &sent);
    host.memory.fill(0, LEN, 0).expect("inside");
    let read = Request::Read { remote: 0, rkey };
    assert_eq!(run(&mut pair, host.local(0, LEN), read).status, status::SUCCESS);
    assert!(
        host.bytes(0, LEN).expect("inside") == sent,
        "RDMA reads what the DMA engine wrote"
    );

    // An atomic in the card's memory.
    let mut counted = vec![0; LEN];
    counted[..8].copy_from_slice(&41u64.to_ne_bytes());
    put(&device, &buffer, &counted);
    let add = Request::FetchAndAdd {
        remote: 0,
        rkey,
        add: 1,
    };
    assert_eq!(run(&mut pair, host.local(0, 8), add).status, status::SUCCESS);
    assert_eq!(
        host.bytes(0, 8).expect("inside"),
        41u64.to_ne_bytes(),
        "the old value"
    );
    assert_eq!(seen(&device, &buffer)[..8], 42u64.to_ne_bytes(), "the new one");

    // Past the region's end nothing is reached.
    let past = Request::Write {
        remote: LEN as u64 - 8,
        rkey,
    };
    assert_eq!(nic.run(host.local(0, 16), past), status::REM_ACCESS_ERR);
    nic.context.deregister(region).expect("a region ends");
}

/// Device memory, mapped and exported, without anything of ours around it.
fn exported(io: &SharedIo) -> (std::os::fd::OwnedFd, gaudi_seam::DeviceVa, gaudi_seam::MemHandle) {
    let handle = io
        .mem_alloc(MemAlloc {
            size: LEN as u64,
            page_size: 0,
            flags: MemFlags::NONE,
        })
        .expect("device memory");
    let va = io
        .mem_map_device(MapDevice {
            handle,
            hint: None,
            flags: MemFlags::NONE,
        })
        .expect("mapped");
    let fd = io
        .export_dmabuf(ExportRequest {
            address: va,
            size: LEN as u64,
            offset: 0,
            flags: (O_RDWR | O_CLOEXEC) as u32,
        })
        .expect("exported");
    (fd, va, handle)
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn what_a_region_holds_is_taken_back_by_its_end_alone() {
    if skips("what_a_region_holds_is_taken_back_by_its_end_alone") {
        return;
    }
    drop(open());
    let nic = Nic::open(Build::Patched);
    let io = reopen();
    let (fd, va, handle) = exported(&io);
    if without_peers(&nic, fd.as_raw_fd()) {
        return;
    }
    let region = register(&nic, fd.as_raw_fd()).expect("a region");
    let refused = |what: &str, answer: gaudi_seam::Result<()>| {
        let error = answer.expect_err(what);
        assert_eq!(error.errno(), Some(Errno::EINVAL), "{what}: {error}");
    };
    refused("unmapped while exported", io.mem_unmap(va));
    refused("freed while mapped", io.mem_free(handle));
    drop(fd);
    refused("unmapped while a region holds the dma-buf", io.mem_unmap(va));
    nic.context.deregister(region).expect("a region ends");
    io.mem_unmap(va).expect("nobody holds it");
    io.mem_free(handle).expect("nor this");

    // Left behind by a close: the region alone keeps the card from the next user.
    let (fd, ..) = exported(&io);
    let region = register(&nic, fd.as_raw_fd()).expect("a region");
    drop(fd);
    drop(io);
    for _ in 0..10 {
        let error = gaudi_hal::open(&spec()).map(drop).expect_err("the card is held");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        std::thread::sleep(Duration::from_millis(200));
    }
    nic.context.deregister(region).expect("a region ends");
    drop(reopen());
}

/// The compute node, as soon as the driver gives it.
fn reopen() -> SharedIo {
    card::load(&[TIMEOUT]);
    let begin = Instant::now();
    loop {
        match gaudi_hal::open(&spec()) {
            Ok(io) => return io,
            Err(error) => assert!(
                begin.elapsed() < Duration::from_secs(120),
                "the card opens: {error}"
            ),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
