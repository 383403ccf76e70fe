//! Two nodes of one guest: endpoints of gaudi-remote over rxe0, a mock's memory behind real
//! dma-bufs at both ends.

#![allow(dead_code, reason = "each program of tests takes what it needs")]

use std::os::unix::net::UnixStream;
use std::time::Duration;

use gaudi_device::{Buffer, Device};
use gaudi_lab::rxe::{self, Build};
use gaudi_remote::{Done, Endpoint, EndpointOptions, Local, Nic, Policy, Remote, RemoteRange, Rights};
use gaudi_verbs::Context;

/// Longer than any transfer takes on a slow machine; waits end by events.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(120);
/// Bytes of the buffers: several pages and several chunks of a stage.
pub(crate) const LEN: u64 = 1 << 20;

/// One node. The endpoint stands before what it uses, as in a program.
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    pub(crate) nic: Nic,
    pub(crate) device: Device,
}

/// Sets `rxe0` up with a build of the driver.
pub(crate) fn rxe0(build: Build) {
    rxe::device(build, "rxe0", "eth0", "10.77.0.1");
}

/// An opened `rxe0` with a domain of its own.
pub(crate) fn nic() -> Nic {
    let context = Context::open(gaudi_ibverbs::open("rxe0").expect("the NIC opens")).expect("a context");
    Nic::new(&context).expect("a domain")
}

pub(crate) fn with(policy: Policy) -> EndpointOptions {
    let mut options = EndpointOptions::default();
    // Several chunks for each buffer, of which some wait for a slot.
    (options.policy, options.chunk_bytes, options.depth) = (policy, 64 << 10, 4);
    options.connect_timeout = MAX_WAIT;
    options
}

pub(crate) fn device(spec: &str) -> Device {
    Device::open(&spec.parse().expect("a spec")).expect("a mock")
}

/// A node on this device, at this end of a socket.
pub(crate) fn node(spec: &str, stream: UnixStream, policy: Policy) -> Node {
    let (nic, device) = (nic(), device(spec));
    let endpoint = Endpoint::over(stream, &nic, Some(&device), with(policy)).expect("an endpoint");
    Node {
        endpoint,
        nic,
        device,
    }
}

/// Two connected nodes on these devices.
pub(crate) fn pair_on(specs: [&str; 2], policies: [Policy; 2]) -> (Node, Node) {
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    std::thread::scope(|scope| {
        let there = scope.spawn(|| node(specs[1], theirs, policies[1]));
        let here = node(specs[0], ours, policies[0]);
        (here, there.join().expect("no panic"))
    })
}

/// Two connected nodes on mocks of the test's own name.
pub(crate) fn pair(name: &str, policies: [Policy; 2]) -> (Node, Node) {
    let specs = ["a", "b"].map(|end| format!("mock:gaudi2?name={name}-{end}"));
    pair_on([&specs[0], &specs[1]], policies)
}

/// Bytes of which no two pages are alike.
pub(crate) fn noise(seed: u8, len: u64) -> Vec<u8> {
    let mut state = u64::from(seed) << 32 | 0x9e37_79b9;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(next).collect()
}

impl Node {
    /// Device memory with pages of its own, full of noise.
    pub(crate) fn buffer(&self, seed: u8) -> Buffer {
        let buffer = self.device.alloc_exclusive(LEN).expect("device memory");
        self.device.write(&buffer, 0, &noise(seed, LEN)).expect("filled");
        buffer
    }

    pub(crate) fn bytes(&self, buffer: &Buffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.len() as usize];
        self.device.read(buffer, 0, &mut bytes).expect("read back");
        bytes
    }

    /// We offer, the other hears of it.
    pub(crate) fn offer_to(&mut self, other: &mut Self, buffer: &Buffer) -> Remote {
        self.endpoint.offer(buffer, Rights::BOTH).expect("offered");
        other.endpoint.receive_offer(MAX_WAIT).expect("received")
    }

    pub(crate) fn put(&mut self, from: impl Into<Local>, to: impl Into<RemoteRange>) -> Done {
        let put = self.endpoint.put(from, to).expect("begun");
        self.endpoint.wait(put, MAX_WAIT).expect("put")
    }

    pub(crate) fn get(&mut self, into: impl Into<Local>, from: impl Into<RemoteRange>) -> Done {
        let get = self.endpoint.get(into, from).expect("begun");
        self.endpoint.wait(get, MAX_WAIT).expect("got")
    }

    /// Ends in order; nothing may be left.
    pub(crate) fn end(self, buffers: Vec<Buffer>) {
        let Self {
            endpoint,
            nic,
            device,
        } = self;
        endpoint.close().expect("closed");
        // What the NIC keeps of a buffer goes with the buffer.
        for buffer in buffers {
            buffer.close().expect("the buffer is not in use");
        }
        let stats = nic.stats();
        assert_eq!(
            (stats.registrations, stats.cached_regions),
            (stats.deregistrations, 0),
            "every region was deregistered"
        );
        device.close().expect("the device is not in use");
    }
}

/// Puts and gets whole and odd ranges, and looks at each byte: those that were named, and those
/// beside them.
pub(crate) fn there_and_back(a: &mut Node, b: &mut Node) -> (Buffer, Buffer) {
    let (ours, theirs) = (a.buffer(1), b.buffer(2));
    let remote = b.offer_to(a, &theirs);
    let mut here = noise(1, LEN);
    let mut there = noise(2, LEN);

    for (at, from, len) in [
        (1, 4095, 3),
        (70_001, 65_535, 131_075),
        (LEN - 1, 0, 1),
        (0, LEN - 7, 7),
    ] {
        let local = ours.at(from..from + len).expect("inside");
        a.put(local, remote.at(at..at + len).expect("inside"));
        let (at, from, len) = (at as usize, from as usize, len as usize);
        there[at..at + len].copy_from_slice(&here[from..from + len]);
        assert!(
            b.bytes(&theirs) == there,
            "put of {len} at {at}: these bytes and no others"
        );
    }
    for (into, at, len) in [(3, 4093, 4099), (200_001, 1, 99_999), (LEN - 5, LEN - 5, 5)] {
        let local = ours.at(into..into + len).expect("inside");
        a.get(local, remote.at(at..at + len).expect("inside"));
        let (into, at, len) = (into as usize, at as usize, len as usize);
        here[into..into + len].copy_from_slice(&there[at..at + len]);
        assert!(
            a.bytes(&ours) == here,
            "get of {len} into {into}: these bytes and no others"
        );
    }
    a.put(&ours, &remote);
    assert!(b.bytes(&theirs) == here, "all of it");
    (ours, theirs)
}
