//! The real driver on two modelled Gaudi2 at once.
//!
//! Cards are numbered by the driver.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use gaudi_device::{Buffer, Deadline, Device, HostBuffer};
use gaudi_lab::nic::{Nic, pattern, run};
use gaudi_lab::rxe::{Build, skips};
use gaudi_lab::uverbs::{DmaBufRegion, Local, Request, access, status};
use gaudi_lab::{card, kernel};
use gaudi_seam::DeviceSpec;
use gaudi_sys::Errno;

/// Bytes of a buffer.
const LEN: usize = 1 << 20;

/// Both cards; each is open as soon as the driver is done with its last user.
fn both() -> [Device; 2] {
    card::load(&[]);
    ["kernel:0", "kernel:1"].map(|text| {
        let spec: DeviceSpec = text.parse().expect("a spec");
        let begin = Instant::now();
        loop {
            match Device::open(&spec) {
                Ok(device) => break device,
                Err(error) => assert!(
                    begin.elapsed() < Duration::from_secs(120),
                    "{text} opens: {error}"
                ),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    })
}

/// A page of its own in the card's memory, with a pattern, put there by its engine; and where it is
/// in the card's memory on the host.
fn filled(number: u8, device: &Device, seed: u8) -> (Buffer, u64) {
    let buffer = device.alloc_exclusive(LEN as u64).expect("device memory");
    let place = card::place(number, |mark| device.write(&buffer, 0, mark).expect("marked"));
    device.write(&buffer, 0, &pattern(seed, LEN)).expect("filled");
    (buffer, place)
}

/// That a card's memory holds these bytes, by its own engine and on the host.
fn holds(number: u8, device: &Device, (buffer, place): &(Buffer, u64), wanted: &[u8]) {
    let mut seen = vec![0; wanted.len()];
    device.read(buffer, 0, &mut seen).expect("read");
    assert!(seen == wanted, "card {number}, by its engine");
    assert!(
        card::hbm(number, *place, wanted.len()) == wanted,
        "card {number}, on the host"
    );
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn two_cards_hold_bytes_of_their_own() {
    let devices = both();
    // Both are written before either is read.
    let buffers = [filled(0, &devices[0], 0x5a), filled(1, &devices[1], 0xc3)];
    for (number, seed) in [(0, 0x5a), (1, 0xc3)] {
        let card = usize::from(number);
        holds(number, &devices[card], &buffers[card], &pattern(seed, LEN));
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn bytes_cross_cards_through_host_memory() {
    const MANY: usize = 8 << 20;
    let devices = both();
    let host = HostBuffer::new(MANY).expect("host memory");
    let mapped = devices
        .each_ref()
        .map(|device| device.map(&host).expect("mapped"));
    let buffers = devices
        .each_ref()
        .map(|device| device.alloc(MANY as u64).expect("device memory"));
    let copied = |device: &Device, to: gaudi_device::Location, from: gaudi_device::Location| {
        device
            .copy(to, from)
            .expect("submitted")
            .wait(Deadline::NEVER)
            .expect("copied");
    };
    // Each way once: what the other card held before is not what is wanted.
    for (from, to, seed) in [(0, 1, 7), (1, 0, 8)] {
        let sent = pattern(seed, MANY);
        devices[from].write(&buffers[from], 0, &sent).expect("filled");
        host.write(0, &vec![0; MANY]).expect("inside");
        copied(&devices[from], (&mapped[from]).into(), (&buffers[from]).into());
        copied(&devices[to], (&buffers[to]).into(), (&mapped[to]).into());
        let mut got = vec![0; MANY];
        devices[to].read(&buffers[to], 0, &mut got).expect("read");
        assert!(got == sent, "from card {from} to card {to}");
    }
}

/// Probe, export, region, RDMA write, read and atomic on each card, between the two, by one NIC.
#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn bytes_cross_cards_by_rdma() {
    if skips("bytes_cross_cards_by_rdma") {
        return;
    }
    let (devices, nic) = (both(), Nic::open(Build::Patched));
    let buffers = [filled(0, &devices[0], 1), filled(1, &devices[1], 2)];
    let regions = buffers.each_ref().map(|(buffer, _)| {
        let export = buffer.export(..).expect("the driver exports it");
        nic.context.register_dmabuf(&DmaBufRegion {
            offset: 0,
            length: LEN as u64,
            iova: 0,
            fd: export.as_fd().as_raw_fd(),
            access: access::ALL,
        })
    });
    if kernel() < (7, 0) {
        // common/memory.c:hl_map_dmabuf
        let refused = regions.map(|region| region.err());
        assert_eq!(refused, [Some(Errno::EPERM); 2], "no peer-to-peer DMA");
        return;
    }
    let regions = regions.map(|region| region.expect("the NIC reaches the card's BAR"));
    let mut pair = nic.pair();
    let local = |card: usize, address: u64, length: u32| Local {
        address,
        length,
        lkey: regions[card].lkey,
    };
    let mut wanted = [pattern(1, LEN), pattern(2, LEN)];
    // Odd ends; each card's engine and the host see these bytes and no others changed.
    for (from, to) in [(0, 1), (1, 0)] {
        let (at, taken, len) = (4091 + to, 17 + from, 300_003);
        let write = Request::Write {
            remote: at as u64,
            rkey: regions[to].rkey,
        };
        let done = run(&mut pair, local(from, taken as u64, len as u32), write);
        assert_eq!(done.status, status::SUCCESS, "a write from card {from}");
        let moved = wanted[from][taken..taken + len].to_vec();
        wanted[to][at..at + len].copy_from_slice(&moved);

        let (into, at, len) = (600_001 + from, 5 + to, 99_999);
        let read = Request::Read {
            remote: at as u64,
            rkey: regions[to].rkey,
        };
        let done = run(&mut pair, local(from, into as u64, len as u32), read);
        assert_eq!(done.status, status::SUCCESS, "a read into card {from}");
        let moved = wanted[to][at..at + len].to_vec();
        wanted[from][into..into + len].copy_from_slice(&moved);

        // The old value goes into the one card, the new one stays in the other.
        let (place, old) = (1_000_000, 900_000);
        let add = Request::FetchAndAdd {
            remote: place as u64,
            rkey: regions[to].rkey,
            add: 77,
        };
        let done = run(&mut pair, local(from, old as u64, 8), add);
        assert_eq!(done.status, status::SUCCESS, "an addition in card {to}");
        let word: [u8; 8] = wanted[to][place..place + 8].try_into().expect("eight bytes");
        let sum = u64::from_ne_bytes(word).wrapping_add(77);
        wanted[to][place..place + 8].copy_from_slice(&sum.to_ne_bytes());
        wanted[from][old..old + 8].copy_from_slice(&word);
    }
    for (number, wanted) in [0u8, 1].into_iter().zip(&wanted) {
        let card = usize::from(number);
        holds(number, &devices[card], &buffers[card], wanted);
    }
    for region in regions {
        nic.context.deregister(region).expect("a region ends");
    }
}
