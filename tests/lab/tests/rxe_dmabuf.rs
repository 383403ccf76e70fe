//! dma-bufs as memory regions of the lab's patched soft-RoCE: udmabuf, the system heap, and a PCI
//! BAR.
//!
//! Each is written and read by RDMA and looked at from its other side: the memory file behind a
//! udmabuf, a CPU mapping of the heap's buffer, the BAR as vfio maps it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use gaudi_lab::kernel;
use gaudi_lab::nic::{Host, Nic, pattern, run};
use gaudi_lab::rxe::{Build, skips};
use gaudi_lab::uverbs::{DmaBufRegion, Local, Region, Request, access, status};
use gaudi_lab::vfio::{self, Exclusive};
use gaudi_sys::dmabuf::{udmabuf_create, udmabuf_open};
use gaudi_sys::{Errno, Memfd, PAGE, RawMapping, heap};
use nix::libc::{O_CLOEXEC, O_RDWR};

const LEN: u64 = 16 * PAGE;

/// A dma-buf and the same memory from its other side.
struct Buffer {
    fd: OwnedFd,
    view: RawMapping,
    /// Keeps a BAR's function open.
    _function: Option<Exclusive>,
}

fn udmabuf() -> Buffer {
    let memory = Memfd::sparse(c"lab", LEN).expect("a memory file");
    let view = RawMapping::of_fd(&memory, 0, LEN as usize).expect("it can be mapped");
    let device = udmabuf_open().expect("udmabuf is built in");
    Buffer {
        fd: udmabuf_create(&device, &memory, 0, LEN).expect("a udmabuf"),
        view,
        _function: None,
    }
}

fn from_heap() -> Buffer {
    let heap = heap::open("system").expect("the system heap is built in");
    let fd = heap::allocate(&heap, LEN, (O_RDWR | O_CLOEXEC) as u32, 0).expect("a buffer");
    let view = RawMapping::of_fd(&fd, 0, LEN as usize).expect("a heap's buffer can be mapped");
    Buffer {
        fd,
        view,
        _function: None,
    }
}

/// Whether this kernel lets a BAR leave as a dma-buf; one that does not must say that it knows no
/// such feature.
fn bar_leaves() -> bool {
    if kernel() >= (7, 0) {
        return true;
    }
    let function = Exclusive::open();
    assert_eq!(
        function.export(vfio::BAR, 0, LEN).err(),
        Some(Errno::ENOTTY),
        "before 6.19 vfio-pci does not know the feature"
    );
    false
}

/// Sixteen pages in the middle of the BAR.
fn bar(function: Exclusive) -> Buffer {
    const AT: u64 = 1 << 20;
    let fd = function
        .export(vfio::BAR, AT, LEN)
        .expect("the BAR leaves as a dma-buf");
    let view = function
        .map(vfio::BAR, AT, LEN as usize)
        .expect("vfio maps the BAR");
    Buffer {
        fd,
        view,
        _function: Some(function),
    }
}

fn asked(fd: impl AsFd) -> DmaBufRegion {
    DmaBufRegion {
        offset: 0,
        length: LEN,
        iova: 0,
        fd: fd.as_fd().as_raw_fd(),
        access: access::ALL,
    }
}

fn bytes(view: &RawMapping, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    view.read(at, &mut bytes).expect("inside");
    bytes
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

/// Writes into, reads from, sends into, sends from, and runs atomics on a region over the whole
/// buffer.
fn every_byte(nic: &Nic, buffer: &Buffer) {
    let region = nic
        .context
        .register_dmabuf(&asked(&buffer.fd))
        .expect("the patched build registers it");
    let host = nic.host(LEN as usize);
    let mut pair = nic.pair();
    let rkey = region.rkey;
    for (turn, (at, len)) in RANGES.into_iter().enumerate() {
        let before = bytes(&buffer.view, 0, LEN as usize);
        host.pattern(turn as u8 + 1).expect("inside");
        let remote = at as u64;
        let done = run(&mut pair, host.local(0, len), Request::Write { remote, rkey });
        assert_eq!(done.status, status::SUCCESS, "a write of {len} bytes at {at}");
        let mut wanted = before;
        wanted[at..at + len].copy_from_slice(&pattern(turn as u8 + 1, len));
        assert!(
            bytes(&buffer.view, 0, LEN as usize) == wanted,
            "{len} bytes at {at} are written, and no other"
        );
        host.memory.fill(0, LEN as usize, 0).expect("inside");
        let done = run(&mut pair, host.local(0, len), Request::Read { remote, rkey });
        assert_eq!(done.status, status::SUCCESS, "a read of {len} bytes at {at}");
        assert!(
            host.bytes(0, len).expect("inside") == wanted[at..at + len],
            "{len} bytes at {at} are read"
        );
    }
    sends(nic, buffer, region, &host);
    atomics(nic, buffer, region, &host);
    nic.context.deregister(region).expect("a region ends");
    assert_eq!(nic.context.deregister(region), Err(Errno::ENOENT), "it ends once");
}

fn sends(nic: &Nic, buffer: &Buffer, region: Region, host: &Host) {
    let mut pair = nic.pair();
    let inside = |address: u64, length: u32| Local {
        address,
        length,
        lkey: region.lkey,
    };
    // Both ends are this queue pair: a send ends twice, once as a receive.
    let both = |pair: &mut gaudi_lab::uverbs::QueuePair<'_>, from: Local, into: Local| {
        pair.receive(1, into).expect("room");
        pair.post(2, from, Request::Send).expect("room");
        for _ in 0..2 {
            let done = pair.wait(gaudi_lab::nic::MAX_WAIT).expect("both ends");
            assert_eq!(done.status, status::SUCCESS, "request {} ends well", done.id);
            if done.id == 1 {
                assert_eq!(done.length, from.length, "the receive reports its length");
            }
        }
    };
    host.pattern(101).expect("inside");
    both(&mut pair, host.local(1, 5001), inside(4091, 6000));
    assert!(
        bytes(&buffer.view, 4091, 5001) == pattern(101, 5002)[1..],
        "a send arrives in the dma-buf"
    );
    host.memory.fill(0, LEN as usize, 0).expect("inside");
    both(&mut pair, inside(4091, 5001), host.local(0, 6000));
    assert!(
        host.bytes(0, 5001).expect("inside") == pattern(101, 5002)[1..],
        "and is sent from there"
    );
}

fn atomics(nic: &Nic, buffer: &Buffer, region: Region, host: &Host) {
    let mut pair = nic.pair();
    let rkey = region.rkey;
    let remote = 3 * PAGE - 8;
    buffer
        .view
        .write(remote as usize, &41_u64.to_ne_bytes())
        .expect("inside");
    let add = Request::FetchAndAdd { remote, rkey, add: 1 };
    let done = run(&mut pair, host.local(0, 8), add);
    assert_eq!(done.status, status::SUCCESS, "an addition");
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    assert_eq!(
        word(&host.bytes(0, 8).expect("inside")),
        41,
        "the old value comes back"
    );
    assert_eq!(
        word(&bytes(&buffer.view, remote as usize, 8)),
        42,
        "the new one is there"
    );
    for (expected, left) in [(42, 7), (42, 7)] {
        let new = 7;
        let swap = Request::CompareAndSwap {
            remote,
            rkey,
            expected,
            new,
        };
        let done = run(&mut pair, host.local(0, 8), swap);
        assert_eq!(done.status, status::SUCCESS, "a swap, whether it happens or not");
        assert_eq!(
            word(&bytes(&buffer.view, remote as usize, 8)),
            left,
            "what is there now"
        );
    }
    let add = Request::FetchAndAdd {
        remote: remote + 1,
        rkey,
        add: 1,
    };
    assert_eq!(
        nic.run(host.local(0, 8), add),
        status::REM_INV_REQ_ERR,
        "an atomic that is not aligned is refused"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn patched_build_reports_its_version() {
    if skips("patched_build_reports_its_version") {
        return;
    }
    let _nic = Nic::open(Build::Patched);
    let version = std::fs::read_to_string("/sys/module/rdma_rxe/version").expect("it has a version");
    assert_eq!(
        version.trim(),
        "gaudi-hal-lab-dmabuf",
        "it differs from Linux's own"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn rdma_reaches_every_byte_of_udmabuf() {
    if skips("rdma_reaches_every_byte_of_udmabuf") {
        return;
    }
    every_byte(&Nic::open(Build::Patched), &udmabuf());
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn rdma_reaches_every_byte_of_heap_buffer() {
    if skips("rdma_reaches_every_byte_of_heap_buffer") {
        return;
    }
    every_byte(&Nic::open(Build::Patched), &from_heap());
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn rdma_reaches_every_byte_of_bar() {
    if skips("rdma_reaches_every_byte_of_bar") {
        return;
    }
    if !bar_leaves() {
        return;
    }
    let function = Exclusive::open();
    every_byte(&Nic::open(Build::Patched), &bar(function));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn virtual_interface_registers_pages_not_bars() {
    if skips("virtual_interface_registers_pages_not_bars") {
        return;
    }
    let _pci = Nic::open(Build::Patched);
    gaudi_lab::modprobe("dummy");
    // loading the module made dummy0 only
    let _ = gaudi_lab::run(&["ip", "link", "add", "dummy7", "type", "dummy"]);
    let nic = Nic::over(Build::Patched, "rxe7", "dummy7", "10.77.7.1");
    every_byte(&nic, &udmabuf());
    if !bar_leaves() {
        return;
    }
    let function = Exclusive::open();
    let buffer = bar(function);
    assert_eq!(
        nic.context.register_dmabuf(&asked(&buffer.fd)),
        Err(Errno::EINVAL),
        "what is no PCI function has no way to a BAR"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn invalid_region_is_refused_with_errno() {
    if skips("invalid_region_is_refused_with_errno") {
        return;
    }
    let nic = Nic::open(Build::Patched);
    let buffer = udmabuf();
    let good = asked(&buffer.fd);
    let file = Memfd::sparse(c"lab", LEN).expect("a memory file");
    // No process has so many descriptors; a closed number could be reused by another test.
    let closed = i32::MAX;
    let cases: [(&str, DmaBufRegion, Errno); 14] = [
        (
            "no descriptor: the probe",
            DmaBufRegion { fd: -1, ..good },
            Errno::EBADF,
        ),
        (
            "a closed descriptor",
            DmaBufRegion { fd: closed, ..good },
            Errno::EBADF,
        ),
        (
            "a memory file",
            DmaBufRegion {
                fd: file.as_fd().as_raw_fd(),
                ..good
            },
            Errno::EINVAL,
        ),
        ("no bytes", DmaBufRegion { length: 0, ..good }, Errno::EINVAL),
        (
            "one byte past the end",
            DmaBufRegion {
                length: LEN + 1,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            "an offset past the end",
            DmaBufRegion {
                offset: LEN,
                length: PAGE,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            "a window across the end",
            DmaBufRegion { offset: PAGE, ..good },
            Errno::EINVAL,
        ),
        (
            "a window across the end of all numbers",
            DmaBufRegion {
                offset: PAGE,
                length: u64::MAX - PAGE + 1,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            "an iova across the end of all numbers",
            DmaBufRegion {
                iova: 0u64.wrapping_sub(PAGE),
                ..good
            },
            Errno::EINVAL,
        ),
        (
            "an iova elsewhere in the page",
            DmaBufRegion { iova: 1, ..good },
            Errno::EINVAL,
        ),
        (
            "an offset elsewhere in the page",
            DmaBufRegion {
                offset: 1,
                length: PAGE,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            "a peer's right to write without the own",
            DmaBufRegion {
                access: access::REMOTE_WRITE,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            "pages on demand",
            DmaBufRegion {
                access: access::ALL | access::ON_DEMAND,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            "a right that no one knows",
            DmaBufRegion {
                access: 1 << 31,
                ..good
            },
            Errno::EINVAL,
        ),
    ];
    for (what, region, wanted) in cases {
        assert_eq!(nic.context.register_dmabuf(&region), Err(wanted), "{what}");
    }
    let relaxed = DmaBufRegion {
        access: access::ALL | access::RELAXED_ORDERING,
        ..good
    };
    let region = nic
        .context
        .register_dmabuf(&relaxed)
        .expect("relaxed ordering is a wish");
    nic.context
        .deregister_by_write(region)
        .expect("the older way to end it");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn window_region_covers_exactly_its_bytes() {
    if skips("window_region_covers_exactly_its_bytes") {
        return;
    }
    let nic = Nic::open(Build::Patched);
    let buffer = udmabuf();
    let window = DmaBufRegion {
        offset: 0x3123,
        length: 0x5000,
        iova: 0x1_0000_0123,
        ..asked(&buffer.fd)
    };
    let region = nic
        .context
        .register_dmabuf(&window)
        .expect("a window at an odd byte");
    let host = nic.host(LEN as usize);
    host.pattern(9).expect("inside");
    let rkey = region.rkey;
    let write = |remote: u64, len: usize| nic.run(host.local(0, len), Request::Write { remote, rkey });
    assert_eq!(write(window.iova, 0x5000), status::SUCCESS, "the whole window");
    let seen = bytes(&buffer.view, 0, LEN as usize);
    assert!(seen[..0x3123].iter().all(|byte| *byte == 0), "nothing before it");
    assert!(seen[0x3123..0x8123] == pattern(9, 0x5000)[..], "all of it");
    assert!(seen[0x8123..].iter().all(|byte| *byte == 0), "nothing after it");
    assert_eq!(write(window.iova - 1, 1), status::REM_ACCESS_ERR, "a byte before");
    assert_eq!(
        write(window.iova + 0x5000, 1),
        status::REM_ACCESS_ERR,
        "a byte after"
    );
    assert_eq!(
        write(window.iova + 0x4fff, 2),
        status::REM_ACCESS_ERR,
        "across the end"
    );
    let reader = DmaBufRegion {
        access: access::REMOTE_READ,
        ..window
    };
    let region = nic
        .context
        .register_dmabuf(&reader)
        .expect("a second region of one dma-buf");
    let (remote, rkey) = (window.iova, region.rkey);
    assert_eq!(
        nic.run(host.local(0, 8), Request::Read { remote, rkey }),
        status::SUCCESS,
        "it may be read"
    );
    assert_eq!(
        nic.run(host.local(0, 8), Request::Write { remote, rkey }),
        status::REM_ACCESS_ERR,
        "and not be written"
    );
    let local = Local {
        address: window.iova,
        length: 8,
        lkey: region.lkey,
    };
    let (remote, rkey) = (host.address(0), host.region.rkey);
    assert_eq!(
        nic.run(local, Request::Write { remote, rkey }),
        status::SUCCESS,
        "as a source it needs no right"
    );
}

/// How many dma-bufs have this inode, by debugfs.
fn left(inode: &str) -> usize {
    // Another test's fork may have taken a descriptor along, for as long as that child lives.
    let begin = std::time::Instant::now();
    loop {
        let left = listed(inode);
        if left == 0 || begin.elapsed() > std::time::Duration::from_secs(30) {
            return left;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn listed(inode: &str) -> usize {
    let text = std::fs::read_to_string("/sys/kernel/debug/dma_buf/bufinfo").expect("debugfs is mounted");
    let wanted = format!("{inode:0>8}");
    let is_it = |line: &&str| line.split_whitespace().nth(5) == Some(wanted.as_str());
    text.lines().filter(is_it).count()
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn region_outlives_descriptor_and_frees_memory() {
    if skips("region_outlives_descriptor_and_frees_memory") {
        return;
    }
    let nic = Nic::open(Build::Patched);
    let host = nic.host(PAGE as usize);
    let Buffer { fd, view, .. } = udmabuf();
    let inode = nix::sys::stat::fstat(&fd).expect("a file").st_ino.to_string();
    let region = nic.context.register_dmabuf(&asked(&fd)).expect("a region");
    drop(fd);
    assert_eq!(listed(&inode), 1, "the region holds the dma-buf");
    host.pattern(3).expect("inside");
    let (remote, rkey) = (77, region.rkey);
    assert_eq!(
        nic.run(host.local(0, 100), Request::Write { remote, rkey }),
        status::SUCCESS,
        "without a descriptor"
    );
    assert!(
        bytes(&view, 77, 100) == pattern(3, 100),
        "and it is the same memory"
    );
    nic.context.deregister(region).expect("it ends");
    assert_eq!(left(&inode), 0, "and gives the dma-buf back");
    let Buffer { fd, .. } = udmabuf();
    let inode = nix::sys::stat::fstat(&fd).expect("a file").st_ino.to_string();
    let _ = nic.context.register_dmabuf(&asked(&fd)).expect("a region");
    drop(fd);
    drop(nic);
    assert_eq!(left(&inode), 0, "a context that ends gives back what it held");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn revoked_bar_is_never_accessed() {
    if skips("revoked_bar_is_never_accessed") || !bar_leaves() {
        return;
    }
    let nic = Nic::open(Build::Patched);
    let function = Exclusive::open();
    let mut buffer = bar(function);
    let host = nic.host(LEN as usize);
    let region = nic.context.register_dmabuf(&asked(&buffer.fd)).expect("a region");
    let write = |region: Region| {
        let (remote, rkey) = (0, region.rkey);
        nic.run(host.local(0, 4096), Request::Write { remote, rkey })
    };
    let function = |buffer: &Buffer, on: bool| {
        let function = buffer._function.as_ref().expect("a BAR has a function");
        function.memory(on).expect("its command register is written");
    };
    assert_eq!(write(region), status::SUCCESS, "as long as the memory is there");
    function(&buffer, false);
    assert_eq!(write(region), status::REM_ACCESS_ERR, "then it is invalid");
    assert_eq!(
        nic.context.register_dmabuf(&asked(&buffer.fd)),
        Err(Errno::ENODEV),
        "nor is there anything to register"
    );
    function(&buffer, true);
    assert_eq!(write(region), status::REM_ACCESS_ERR, "what was revoked stays so");
    let again = nic
        .context
        .register_dmabuf(&asked(&buffer.fd))
        .expect("a new region");
    assert_eq!(write(again), status::SUCCESS, "it works");
    nic.context
        .deregister(region)
        .expect("a revoked region ends like any other");
    let local = Local {
        address: 0,
        length: 64,
        lkey: again.lkey,
    };
    // In the hands of its driver no more: closing the function takes its memory back too.
    buffer.view = RawMapping::anonymous(0, false).expect("nothing");
    drop(buffer._function.take());
    assert_eq!(write(again), status::REM_ACCESS_ERR, "the function is closed");
    let (remote, rkey) = (host.address(0), host.region.rkey);
    assert_eq!(
        nic.run(local, Request::Write { remote, rkey }),
        status::WR_FLUSH_ERR,
        "as a source it is invalid too; rxe reports every refused source so"
    );
    assert_eq!(
        nic.run(local, Request::Read { remote, rkey }),
        status::LOC_PROT_ERR,
        "and as a destination, which rxe finds out later"
    );
    nic.context.deregister(again).expect("it ends");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn reset_revokes_the_bar() {
    if skips("reset_revokes_the_bar") || !bar_leaves() {
        return;
    }
    let nic = Nic::open(Build::Patched);
    let function = Exclusive::open();
    let buffer = bar(function);
    let function = buffer._function.as_ref().expect("a BAR has a function");
    let host = nic.host(LEN as usize);
    let write = |region: Region| {
        let (remote, rkey) = (0, region.rkey);
        nic.run(host.local(0, 4096), Request::Write { remote, rkey })
    };
    let region = nic.context.register_dmabuf(&asked(&buffer.fd)).expect("a region");
    assert_eq!(write(region), status::SUCCESS, "before the reset");
    function.reset().expect("a bridge above it resets its bus");
    assert_eq!(
        write(region),
        status::REM_ACCESS_ERR,
        "what was registered is revoked"
    );
    function.memory(true).expect("its command register is written");
    let again = nic
        .context
        .register_dmabuf(&asked(&buffer.fd))
        .expect("the same dma-buf can be registered anew");
    assert_eq!(write(again), status::SUCCESS, "and works");
    assert_eq!(write(region), status::REM_ACCESS_ERR, "the old region stays dead");
    for region in [region, again] {
        nic.context.deregister(region).expect("it ends");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn bar_is_revoked_under_writes() {
    if kernel() < (7, 0) || skips("bar_is_revoked_under_writes") {
        return;
    }
    let nic = Nic::open(Build::Patched);
    let function = Exclusive::open();
    let buffer = bar(function);
    let function = buffer._function.as_ref().expect("a BAR has a function");
    let host = nic.host(LEN as usize);
    let mut refused_in_all = 0;
    for turn in 0..10_u64 {
        let region = nic.context.register_dmabuf(&asked(&buffer.fd)).expect("a region");
        let mut pair = nic.pair();
        let (remote, rkey) = (0, region.rkey);
        for id in 0..8 {
            let write = Request::Write { remote, rkey };
            pair.post(id, host.local(0, LEN as usize), write).expect("room");
        }
        std::thread::sleep(std::time::Duration::from_millis(turn));
        function.memory(false).expect("off");
        let mut refused = 0;
        for _ in 0..8 {
            let done = pair.wait(gaudi_lab::nic::MAX_WAIT).expect("each request ends");
            match done.status {
                status::SUCCESS => assert_eq!(refused, 0, "after a refusal nothing is written"),
                status::REM_ACCESS_ERR | status::WR_FLUSH_ERR => refused += 1,
                other => panic!("request {} ended with {other}", done.id),
            }
        }
        refused_in_all += refused;
        assert_eq!(
            nic.run(host.local(0, 4096), Request::Write { remote, rkey }),
            status::REM_ACCESS_ERR,
            "turn {turn}: what comes after the memory went is refused in any case"
        );
        function.memory(true).expect("on");
        nic.context.deregister(region).expect("it ends");
    }
    assert!(refused_in_all > 0, "in ten turns some write was in flight");
}
