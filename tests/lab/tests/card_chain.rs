//! The whole chain on a real kernel: memory of a modelled card, exported by the real driver, as a
//! memory region of the lab's NIC, reached by RDMA, and looked at by the card's own DMA engine.

mod chain;
mod common;
mod first_card;

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use gaudi_lab::nic::{Nic, pattern, run};
use gaudi_lab::rxe::{Build, skips, skips_verbs};
use gaudi_lab::uverbs::{Request, status};
use gaudi_lab::{modprobe, say};
use gaudi_seam::ErrorKind;
use gaudi_sys::Errno;
use gaudi_sys::socket::{receive_with_fds, send_with_fds};

use chain::{LEN, exported, put, register, register_bytes, reopen, seen, skips_peers, without_peers};
use common::{Other, await_notice, notify};
use first_card::{open, perf, spec, wait_until_free};

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

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn region_resources_end_with_the_region() {
    if skips("region_resources_end_with_the_region") {
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
    io.mem_unmap(va).expect("it is not in use");
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

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn nic_without_pci_function_reaches_no_card() {
    if skips_peers("nic_without_pci_function_reaches_no_card") {
        return;
    }
    drop(open());
    modprobe("dummy");
    // loading the module made dummy0 only
    let _ = gaudi_lab::run(&["ip", "link", "add", "dummy7", "type", "dummy"]);
    let nowhere = Nic::over(Build::Patched, "rxe7", "dummy7", "10.77.7.1");
    let io = reopen();
    let (fd, va, handle) = exported(&io);
    // common/memory.c:hl_map_dmabuf, where vfio-pci answers EINVAL.
    assert_eq!(
        register(&nowhere, fd.as_raw_fd()).err(),
        Some(Errno::EPERM),
        "no PCI function is a peer"
    );
    drop(fd);
    io.mem_unmap(va).expect("a refused region holds nothing");
    io.mem_free(handle).expect("nor this");
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn gaudi_perf_reaches_a_cards_memory() {
    const TEST: &str = "gaudi_perf_reaches_a_cards_memory";
    if skips_verbs(TEST) || skips_peers(TEST) {
        return;
    }
    drop((open(), Nic::open(Build::Patched)));
    for op in ["write", "read"] {
        for devices in [["kernel:0", "mock:gaudi2"], ["mock:gaudi2", "kernel:0"]] {
            wait_until_free(&spec());
            perf(op, devices);
        }
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn quarter_gibibyte_goes_each_way() {
    if skips_peers("quarter_gibibyte_goes_each_way") {
        return;
    }
    const TURNS: u8 = 8;
    /// Bytes of a turn's window; eight of them go each way.
    const WINDOW: usize = 32 << 20;
    /// No two turns send the same.
    fn sent(noise: &[u8], turn: u8) -> Vec<u8> {
        let mut bytes = noise.to_vec();
        bytes.rotate_left(usize::from(turn) * 4099 + 1);
        bytes
    }
    let noise = pattern(7, 1 << 20).repeat(WINDOW >> 20);
    // The other process does all of the RDMA, and has nothing of the card but its region.
    let other = Other::new(|socket| {
        let nic = Nic::open(Build::Patched);
        let (_, fds) = receive_with_fds(socket, &mut [0]).expect("a descriptor comes");
        let region = register_bytes(&nic, fds[0].as_raw_fd(), WINDOW).expect("a region");
        drop(fds);
        let (remote, rkey) = (0, region.rkey);
        let (host, mut pair) = (nic.host(WINDOW), nic.pair());
        for turn in 0..TURNS {
            host.memory.write(0, &sent(&noise, turn)).expect("inside");
            let done = run(&mut pair, host.local(0, WINDOW), Request::Write { remote, rkey });
            assert_eq!(done.status, status::SUCCESS);
            notify(socket);
            assert!(await_notice(socket), "the card has something else there now");
            host.memory.fill(0, WINDOW, 0).expect("inside");
            let done = run(&mut pair, host.local(0, WINDOW), Request::Read { remote, rkey });
            assert_eq!(done.status, status::SUCCESS);
            let good = host.bytes(0, WINDOW).expect("inside") == sent(&noise, turn | 0x80);
            assert!(good, "turn {turn}: RDMA reads what the DMA engine put there");
            notify(socket);
        }
        nic.context.deregister(region).is_ok()
    });
    let device = open();
    let buffer = device.alloc_exclusive(WINDOW as u64).expect("device memory");
    let export = buffer.export(..).expect("exported");
    send_with_fds(&other.socket, b"x", &[export.as_fd()]).expect("it goes");
    drop(export);
    let begin = Instant::now();
    for turn in 0..TURNS {
        assert!(await_notice(&other.socket), "written");
        let good = seen(&device, &buffer) == sent(&noise, turn);
        assert!(good, "turn {turn}: the DMA engine sees what RDMA wrote");
        put(&device, &buffer, &sent(&noise, turn | 0x80));
        notify(&other.socket);
        assert!(await_notice(&other.socket), "read");
    }
    other.agrees();
    say(&format!(
        "{} MiB each way and compared in {:.1} s",
        (usize::from(TURNS) * WINDOW) >> 20,
        begin.elapsed().as_secs_f64()
    ));
}
