//! Memory of a modelled card as a memory region of the lab's NIC, and processes that hold one.

#![allow(dead_code, reason = "each program of tests takes what it needs")]

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gaudi_device::{Buffer, Deadline, Device};
use gaudi_lab::nic::{Nic, pattern, run};
use gaudi_lab::rxe::{Build, skips};
use gaudi_lab::uverbs::{DmaBufRegion, Region, Request, access, status};
use gaudi_lab::{card, kernel, skip};
use gaudi_seam::{DeviceVa, ExportRequest, MapDevice, MemAlloc, MemHandle, SharedIo};
use gaudi_sys::socket::{receive_with_fds, send_with_fds};
use gaudi_sys::{Errno, PAGE};
use gaudi_uapi::memory::MemFlags;
use nix::libc::{O_CLOEXEC, O_RDWR};

use crate::common::{Other, await_notice, notify};
use crate::first_card::{Break, TIMEOUT, break_card, spec};

/// Bytes of a region.
pub(crate) const LEN: usize = 64 * PAGE as usize;
/// What a holder is asked for, a byte each: a write into its region, and its end.
const WRITE: u8 = b'w';
const END: u8 = b'd';

pub(crate) fn register(nic: &Nic, fd: i32) -> Result<Region, Errno> {
    register_bytes(nic, fd, LEN)
}

pub(crate) fn register_bytes(nic: &Nic, fd: i32, len: usize) -> Result<Region, Errno> {
    nic.context.register_dmabuf(&DmaBufRegion {
        offset: 0,
        length: len as u64,
        iova: 0,
        fd,
        access: access::ALL,
    })
}

/// What lies in the card's memory, by its DMA engine.
pub(crate) fn seen(device: &Device, buffer: &Buffer) -> Vec<u8> {
    let len = usize::try_from(buffer.len()).expect("a length");
    let host = device.alloc_host(len).expect("host memory");
    device
        .copy(&host, buffer)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("down");
    let mut bytes = vec![0; len];
    host.read(0, &mut bytes).expect("inside");
    bytes
}

/// Puts bytes there, by the same.
pub(crate) fn put(device: &Device, buffer: &Buffer, bytes: &[u8]) {
    let host = device.alloc_host(bytes.len()).expect("host memory");
    host.write(0, bytes).expect("inside");
    device
        .copy(buffer, &host)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("up");
}

/// Before 7.0 Debian's kernels have no peer-to-peer DMA, and the driver exports to no device.
pub(crate) fn without_peers(nic: &Nic, fd: i32) -> bool {
    if kernel() >= (7, 0) {
        return false;
    }
    assert_eq!(register(nic, fd), Err(Errno::EPERM), "common/memory.c:1724");
    true
}

/// Device memory, mapped and exported, without anything of ours around it.
pub(crate) fn exported(io: &SharedIo) -> (OwnedFd, DeviceVa, MemHandle) {
    exported_bytes(io, LEN)
}

pub(crate) fn exported_bytes(io: &SharedIo, len: usize) -> (OwnedFd, DeviceVa, MemHandle) {
    let size = len as u64;
    let handle = io
        .mem_alloc(MemAlloc {
            size,
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
            size,
            offset: 0,
            flags: (O_RDWR | O_CLOEXEC) as u32,
        })
        .expect("exported");
    (fd, va, handle)
}

/// Whether a test must be skipped, since this kernel has no peer-to-peer DMA; counts it, with the
/// reason.
pub(crate) fn skips_peers(test: &str) -> bool {
    let need = "Linux 7.0 or newer: Debian's older kernels have no peer-to-peer DMA (CONFIG_PCI_P2PDMA)";
    skips(test) || (kernel() < (7, 0) && skip(test, need))
}

/// The compute node, as soon as the driver gives it; how long that took.
pub(crate) fn reopened() -> (SharedIo, Duration) {
    card::load(&[TIMEOUT]);
    let begin = Instant::now();
    loop {
        match gaudi_hal::open(&spec()) {
            Ok(io) => return (io, begin.elapsed()),
            Err(error) => assert!(
                begin.elapsed() < Duration::from_secs(120),
                "the card opens: {error}"
            ),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn reopen() -> SharedIo {
    reopened().0
}

/// Another process with only a region of the card's memory.
pub(crate) struct Holder(Other);

impl Holder {
    /// Before the card is open here: a child has what its parent has.
    pub(crate) fn new() -> Self {
        Self(Other::new(hold))
    }

    /// It makes a region of a dma-buf, and keeps no descriptor.
    pub(crate) fn take(&self, dmabuf: OwnedFd) {
        send_with_fds(&self.0.socket, b"x", &[dmabuf.as_fd()]).expect("it goes");
        assert!(self.hears(), "a region");
    }

    /// It writes into the region by RDMA; whether that succeeded.
    pub(crate) fn writes(&self) -> bool {
        self.ask(WRITE);
        self.hears()
    }

    /// It ends the region; how long that took.
    pub(crate) fn ends(self) -> Duration {
        let begin = Instant::now();
        self.ask(END);
        assert!(self.hears(), "the region ends");
        let took = begin.elapsed();
        self.0.agrees();
        took
    }

    fn ask(&self, what: u8) {
        let mut socket = &self.0.socket;
        socket.write_all(&[what]).expect("it listens");
    }

    fn hears(&self) -> bool {
        let (mut socket, mut answer) = (&self.0.socket, [0]);
        socket.read_exact(&mut answer).expect("it answers");
        answer == [1]
    }
}

/// Another process that has the card and has exported memory of it; only it is killed where the
/// driver kills the card's user.
pub(crate) struct Owner(Other);

impl Owner {
    /// The owner, and what it has exported. It keeps no descriptor of that.
    pub(crate) fn new() -> (Self, OwnedFd) {
        let other = Other::new(|socket| {
            let io = reopen();
            let (fd, ..) = exported(&io);
            send_with_fds(socket, b"x", &[fd.as_fd()]).expect("it goes");
            drop(fd);
            if !await_notice(socket) {
                return true;
            }
            break_card(&io, Break::Hang);
            std::thread::sleep(Duration::from_secs(600));
            false
        });
        let (_, fds) = receive_with_fds(&other.socket, &mut [0]).expect("a descriptor comes");
        let fd = fds.into_iter().next().expect("one");
        (Self(other), fd)
    }

    /// It submits what never ends, and is killed by the driver for that.
    pub(crate) fn hangs(self) {
        notify(&self.0.socket);
        self.0.dies();
    }

    /// It is killed from outside.
    pub(crate) fn kill(self) {
        drop(self.0);
    }
}

/// The holder's work.
fn hold(socket: &UnixStream) -> bool {
    let nic = Nic::open(Build::Patched);
    let (_, fds) = receive_with_fds(socket, &mut [0]).expect("a descriptor comes");
    let mut region = fds.first().and_then(|fd| register(&nic, fd.as_raw_fd()).ok());
    drop(fds);
    let rkey = region.as_ref().map_or(0, |region| region.rkey);
    let host = nic.host(LEN);
    host.pattern(9).expect("inside");
    let answer = |good: bool| {
        let mut socket = socket;
        socket.write_all(&[u8::from(good)]).expect("the other listens");
    };
    answer(region.is_some());
    let mut asked = [0];
    let mut from = socket;
    while from.read_exact(&mut asked).is_ok() {
        match asked {
            [WRITE] => {
                let write = Request::Write { remote: 0, rkey };
                answer(nic.run(host.local(0, LEN), write) == status::SUCCESS);
            }
            _ => {
                let region = region.take();
                answer(region.is_some_and(|region| nic.context.deregister(region).is_ok()));
                return true;
            }
        }
    }
    true
}

/// A new user has the card, the NIC reaches its memory, and the DMA engine sees what RDMA wrote
/// there.
pub(crate) fn whole_chain_works() {
    let (device, nic) = (crate::first_card::open(), Nic::open(Build::Patched));
    let buffer = device.alloc_exclusive(LEN as u64).expect("a page of its own");
    let export = buffer.export(..).expect("exported");
    let region = register(&nic, export.as_fd().as_raw_fd()).expect("a region");
    let host = nic.host(LEN);
    host.pattern(3).expect("inside");
    let (remote, rkey) = (0, region.rkey);
    let done = run(
        &mut nic.pair(),
        host.local(0, LEN),
        Request::Write { remote, rkey },
    );
    assert_eq!(done.status, status::SUCCESS);
    assert!(
        seen(&device, &buffer) == pattern(3, LEN),
        "the DMA engine sees what RDMA wrote"
    );
    nic.context.deregister(region).expect("a region ends");
    drop(export);
}
