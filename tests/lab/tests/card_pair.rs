//! Two guests with a card each: bytes go from card to card over the network between them, and are
//! looked at by the card's own engine, and on the host, past the driver.
//!
//! Both guests run this program; each test has two halves that meet. Where the kernel has no
//! peer-to-peer DMA the bytes are staged, and the report gives the reason.

mod first_card;
mod guests;
mod ibv;

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_device::{Buffer, Deadline, Device, HostBuffer};
use gaudi_ibverbs::OpenOptions;
use gaudi_lab::rxe::{self, Build};
use gaudi_lab::{Side, card, kernel, side};
use gaudi_remote::{Done, Endpoint, EndpointOptions, Local, MemoryPath, Nic, Policy, Remote, Rights};
use gaudi_seam::Errno;
use gaudi_verbs::{Context, RegPath};

use first_card::open;
use guests::{LATER, meet, work};
use ibv::{ALL, skips};

/// Longer than any transfer takes on a slow machine; waits end by events.
const MAX_WAIT: Duration = Duration::from_secs(240);
/// Bytes of a small buffer: what the host can look at whole.
const LEN: usize = 1 << 20;
/// Device memory goes from dma-buf to dma-buf: librxe has no operation for it, the kernel of the
/// patched build does.
const DIRECT: MemoryPath = MemoryPath::DmaBuf(RegPath::RawUverbs);

/// This guest's half. The endpoint stands before what it uses, as in a program.
struct Node {
    endpoint: Endpoint,
    nic: Nic,
    device: Device,
}

/// Device memory, and where it starts in the card's memory on the host.
struct Placed {
    buffer: Buffer,
    place: u64,
}

/// Debian's kernels have it from 7.0 on.
fn has_peers() -> bool {
    kernel() >= (7, 0)
}

fn the_other() -> Side {
    match side() {
        Side::A => Side::B,
        Side::B => Side::A,
    }
}

/// Which guest a pattern comes from, and which of its patterns it is.
fn seed(side: Side, round: u8) -> u8 {
    round * 2 + u8::from(side == Side::B)
}

/// Bytes of which no two pages are alike, made a page at a time: much slower code runs in a guest.
fn bytes_of(seed: u8, len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9 ^ u64::from(seed) << 40;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let page: Vec<u8> = (0..4096).map(next).collect();
    let mut all = page.repeat(len.div_ceil(4096));
    for (number, page) in all.chunks_mut(4096).enumerate() {
        page[..8].copy_from_slice(&(number as u64 ^ u64::from(seed) << 56).to_le_bytes());
    }
    all.truncate(len);
    all
}

impl Node {
    /// Meets the other guest: RoCE v2 and the endpoint's own words go over the same family of IP.
    fn connected(port: u16, address: fn(Side) -> &'static str) -> Self {
        let device = open();
        rxe::device(Build::Patched, "rxe1", "eth1", side().address());
        rxe::address("eth1", address(side()));
        let (index, _) = rxe::gid("rxe1", address(side()));
        let options = OpenOptions {
            gid_index: Some(index.into()),
            ..OpenOptions::default()
        };
        let opened = options.open("rxe1").expect("the NIC opens");
        let nic = Nic::new(&Context::open(opened).expect("a context")).expect("a domain");
        let mut options = EndpointOptions::default();
        options.connect_timeout = LATER;
        options.policy = if has_peers() { Policy::Require } else { Policy::Try };
        let at = |side| SocketAddr::new(address(side).parse::<IpAddr>().expect("an address"), port);
        let begin = Instant::now();
        let endpoint = match side() {
            Side::A => {
                let listener = TcpListener::bind(at(Side::A)).expect("a port");
                Endpoint::accept(&listener, &nic, Some(&device), options).expect("the other guest comes")
            }
            Side::B => loop {
                match Endpoint::connect(at(Side::A), &nic, Some(&device), options.clone()) {
                    Ok(endpoint) => break endpoint,
                    Err(error) => assert!(begin.elapsed() < LATER, "no one is there: {error}"),
                }
                std::thread::sleep(Duration::from_millis(200));
            },
        };
        Self {
            endpoint,
            nic,
            device,
        }
    }

    /// Device memory with pages of its own, zero so far.
    fn buffer(&self, len: usize) -> Placed {
        let buffer = self.device.alloc_exclusive(len as u64).expect("device memory");
        let place = card::place(0, |mark| self.device.write(&buffer, 0, mark).expect("marked"));
        let zeros = self.device.fill(&buffer, 0).expect("submitted");
        zeros.wait(Deadline::NEVER).expect("zeros");
        Placed { buffer, place }
    }

    fn fill(&self, placed: &Placed, bytes: &[u8]) {
        self.device.write(&placed.buffer, 0, bytes).expect("filled");
    }

    /// That a buffer holds these bytes and nothing else: by the card's engine all of it, and on the
    /// host all of it, or of a large one some pages of each MiB.
    fn holds(&self, placed: &Placed, wanted: &[u8], what: &str) {
        let mut seen = vec![0; wanted.len()];
        self.device.read(&placed.buffer, 0, &mut seen).expect("read");
        assert!(seen == wanted, "{what}: by the card's engine");
        let part = if wanted.len() > LEN { 8 << 10 } else { LEN };
        for (number, mebibyte) in wanted.chunks(LEN).enumerate() {
            // Elsewhere in each, its end in the last.
            let at = (number + 1) * (LEN - part) / wanted.len().div_ceil(LEN);
            let place = placed.place + (number * LEN + at) as u64;
            assert!(
                card::hbm(0, place, part) == mebibyte[at..at + part],
                "{what}: on the host, {part} bytes from {at} on in MiB {number}"
            );
        }
    }

    fn put(&mut self, from: impl Into<Local>, to: &Remote) -> Done {
        let put = self.endpoint.put(from, to).expect("begun");
        let done = self.endpoint.wait(put, MAX_WAIT).expect("put");
        // The peer's engine is to see it next.
        self.endpoint.flush_remote(to, MAX_WAIT).expect("flushed");
        done
    }

    fn get(&mut self, into: impl Into<Local>, from: &Remote) -> Done {
        let get = self.endpoint.get(into, from).expect("begun");
        self.endpoint.wait(get, MAX_WAIT).expect("got")
    }

    fn offer(&mut self, memory: impl Into<Local>) {
        let report = self.endpoint.offer(memory, Rights::BOTH).expect("offered");
        let refused = report.failed.first().and_then(|attempt| attempt.error.errno());
        // common/memory.c:hl_map_dmabuf
        let wanted = (!has_peers() && report.path != MemoryPath::Host).then_some(Errno::EPERM);
        assert_eq!(refused, wanted, "{report}");
    }

    fn heard(&mut self) -> Remote {
        self.endpoint.receive_offer(MAX_WAIT).expect("received")
    }

    /// Waits for the other guest: each sends an offer of one byte.
    fn rendezvous(&mut self) {
        let byte = Arc::new(HostBuffer::new(1).expect("host memory"));
        self.offer(&byte);
        self.heard();
    }

    /// Ends in order; nothing may be left. Both at the same time: whose peer goes first would see
    /// it hang up.
    fn end<const N: usize>(mut self, buffers: [Placed; N]) {
        self.rendezvous();
        let Self {
            endpoint,
            nic,
            device,
        } = self;
        endpoint.close().expect("closed");
        for buffer in buffers {
            buffer.buffer.close().expect("the buffer is not in use");
        }
        drop(nic);
        device.close().expect("the device is not in use");
    }
}

/// How device memory is reached here.
fn is_by_nic_alone(path: MemoryPath) -> bool {
    if has_peers() {
        path == DIRECT
    } else {
        path.is_staged()
    }
}

/// Each guest puts its card's bytes into the other's card and gets them back; host memory goes
/// there and comes back too.
fn there_and_back(port: u16, address: fn(Side) -> &'static str) {
    let mut node = Node::connected(port, address);
    let (ours, theirs) = (
        bytes_of(seed(side(), 0), LEN),
        bytes_of(seed(the_other(), 0), LEN),
    );
    let (from, to, back) = (node.buffer(LEN), node.buffer(LEN), node.buffer(LEN));
    node.fill(&from, &ours);
    node.offer(&to.buffer);
    let remote = node.heard();
    let done = node.put(&from.buffer, &remote);
    assert!(
        is_by_nic_alone(done.local) && is_by_nic_alone(done.remote),
        "from card to card: {done:?}"
    );
    node.rendezvous();
    node.holds(&to, &theirs, "what the other guest put");
    // What it put is what it gets: our bytes, out of its card.
    let done = node.get(&back.buffer, &remote);
    assert!(
        is_by_nic_alone(done.local) && is_by_nic_alone(done.remote),
        "{done:?}"
    );
    node.holds(&back, &ours, "our own, there and back");
    node.rendezvous();

    // Host memory into the other's card, and out of it; then host memory to host memory.
    let host = Arc::new(HostBuffer::new(LEN).expect("host memory"));
    let third = bytes_of(seed(side(), 1), LEN);
    host.write(0, &third).expect("inside");
    assert_eq!(node.put(&host, &remote).local, MemoryPath::Host);
    node.rendezvous();
    node.holds(
        &to,
        &bytes_of(seed(the_other(), 1), LEN),
        "what came from the other's host memory",
    );
    host.write(0, &vec![0; LEN]).expect("inside");
    assert_eq!(node.get(&host, &remote).local, MemoryPath::Host);
    let mut seen = vec![0; LEN];
    host.read(0, &mut seen).expect("inside");
    assert!(seen == third, "host memory, into a card and back");
    node.rendezvous();
    let target = Arc::new(HostBuffer::new(LEN).expect("host memory"));
    node.offer(&target);
    let remote = node.heard();
    let done = node.put(&host, &remote);
    assert_eq!((done.local, done.remote), (MemoryPath::Host, MemoryPath::Host));
    node.rendezvous();
    target.read(0, &mut seen).expect("inside");
    assert!(
        seen == bytes_of(seed(the_other(), 1), LEN),
        "from host memory to host memory"
    );

    let stats = node.nic.stats();
    assert_eq!(stats.cpu_copied_bytes, 0, "no processor copied: {stats:?}");
    assert_eq!(stats.engine_bytes == 0, has_peers(), "{stats:?}");
    node.end([from, to, back]);
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn card_with_five_hbms_has_80_gib() {
    card::load(&[first_card::TIMEOUT]);
    let log = card::log();
    assert!(log.contains("Found GAUDI2 device with 80GB DRAM"), "{log}");
    let device = open();
    let info = device.info().expect("info");
    let page = 640 << 20;
    assert_eq!(
        (info.dram_page_bytes, info.dram_bytes),
        (page, 127 * page),
        "{info:?}: all but the driver's page"
    );
    device.close().expect("it is not in use");
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn cards_of_two_guests_connect_over_ipv4() {
    if skips("cards_of_two_guests_connect_over_ipv4") {
        return;
    }
    there_and_back(7201, Side::address);
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn cards_of_two_guests_connect_over_ipv6() {
    if skips("cards_of_two_guests_connect_over_ipv6") {
        return;
    }
    there_and_back(7202, Side::address6);
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn one_guest_operates_on_the_others_card() {
    if skips("one_guest_operates_on_the_others_card") {
        return;
    }
    let device = open();
    let mut stream = meet(7203);
    let nic = ibv::Nic::over(Build::Patched, "rxe1", "eth1", side().address());
    let len = guests::LEN as u64;
    let buffer = device.alloc_exclusive(len).expect("device memory");
    let place = card::place(0, |mark| device.write(&buffer, 0, mark).expect("marked"));
    device
        .fill(&buffer, 0)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("filled");
    let window = buffer.window(..).expect("the driver exports it");
    let iova = 0x1001_0000_0000_0000;
    let registered = nic.window(&window, iova, ALL);
    if !has_peers() {
        let error = registered.expect_err("no peer-to-peer DMA");
        assert_eq!(error.errno(), Some(Errno::EPERM), "common/memory.c:1724");
        return;
    }
    let mr = registered.expect("the NIC reaches the card's BAR");
    let engine = |at: usize, len: usize| {
        let mut bytes = vec![0; len];
        device.read(&buffer, at as u64, &mut bytes).expect("read");
        bytes
    };
    let host = |at: usize, len: usize| {
        assert_eq!(card::hbm(0, place, 3), [0; 3], "what was not written stays");
        card::hbm(0, place + at as u64, len)
    };
    work(&mut stream, &nic, &[&engine, &host], iova, mr.rkey);
    gaudi_verbs::provider::Device::dereg_mr(&*nic.device, mr.handle).expect("the region ends");
    drop(window);
    buffer.close().expect("the buffer is not in use");
    device.close().expect("the device is not in use");
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn quarter_gibibyte_crosses_between_both_cards() {
    if skips("quarter_gibibyte_crosses_between_both_cards") {
        return;
    }
    let (part, rounds) = (64 << 20, 4);
    let mut node = Node::connected(7204, Side::address);
    let (from, to) = (node.buffer(part), node.buffer(part));
    node.offer(&to.buffer);
    let remote = node.heard();
    let mut seconds = 0.0;
    for round in 0..rounds {
        node.fill(&from, &bytes_of(seed(side(), round), part));
        node.rendezvous();
        let begin = Instant::now();
        node.put(&from.buffer, &remote);
        seconds += begin.elapsed().as_secs_f64();
        node.rendezvous();
        let theirs = bytes_of(seed(the_other(), round), part);
        node.holds(&to, &theirs, "what the other guest put");
    }
    let mebibytes = f64::from(rounds) * (part >> 20) as f64;
    // For the run's log: the harness keeps what a passed test prints to itself.
    let _ = writeln!(
        std::io::stderr(),
        "{mebibytes} MiB each way from card to card, both ways at once: {:.1} MiB/s each",
        mebibytes / seconds
    );
    node.end([from, to]);
}
