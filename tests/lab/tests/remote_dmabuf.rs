//! Endpoints on the lab's patched soft-RoCE: device memory goes from dma-buf to dma-buf, and what
//! lives says so.

mod common;
mod nodes;

use common::{Other, alone};
use gaudi_lab::rxe::{Build, skips, skips_verbs};
use gaudi_remote::{Endpoint, ErrorKind, Local, MemoryPath, Policy, Rights};
use gaudi_verbs::RegPath;
use nodes::{LEN, MAX_WAIT, Node, nic, node, noise, pair, pair_on, rxe0, there_and_back, with};

const REQUIRE: [Policy; 2] = [Policy::Require; 2];

/// librxe has no operation for it; the kernel of the patched build does.
const DIRECT: MemoryPath = MemoryPath::DmaBuf(RegPath::RawUverbs);

macro_rules! patched {
    ($test:literal) => {{
        if skips_verbs($test) || skips($test) {
            return;
        }
        let guard = alone();
        rxe0(Build::Patched);
        guard
    }};
}

fn untouched_by_processors(node: &Node) {
    let stats = node.nic.stats();
    assert_eq!(
        (stats.cpu_copied_bytes, stats.staged_chunks, stats.engine_bytes),
        (0, 0, 0),
        "neither a processor nor an engine copied: {stats:?}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn odd_ranges_round_trip_exactly() {
    let _alone = patched!("odd_ranges_round_trip_exactly");
    let (mut a, mut b) = pair("odd", REQUIRE);
    let (ours, theirs) = there_and_back(&mut a, &mut b);
    a.end(vec![ours]);
    b.end(vec![theirs]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn put_and_get_are_copied_by_nic() {
    let _alone = patched!("put_and_get_are_copied_by_nic");
    let (mut a, mut b) = pair("alone", REQUIRE);
    let (from, back, to) = (a.buffer(3), a.buffer(4), b.buffer(5));
    let remote = b.offer_to(&mut a, &to);
    let put = a.put(&from, &remote);
    let get = a.get(&back, &remote);
    assert_eq!((put.bytes, put.local, put.remote), (LEN, DIRECT, DIRECT));
    assert_eq!((get.bytes, get.local, get.remote), (LEN, DIRECT, DIRECT));
    assert!(b.bytes(&to) == noise(3, LEN) && a.bytes(&back) == noise(3, LEN));
    let stats = a.nic.stats();
    assert_eq!(
        (stats.nic_put_bytes, stats.nic_got_bytes),
        (LEN, LEN),
        "{stats:?}"
    );
    for node in [&a, &b] {
        untouched_by_processors(node);
    }
    a.end(vec![from, back]);
    b.end(vec![to]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn report_names_the_ioctl_at_both_ends() {
    let _alone = patched!("report_names_the_ioctl_at_both_ends");
    let (mut a, mut b) = pair("report", [Policy::Try; 2]);
    let (ours, theirs) = (a.buffer(1), b.buffer(2));
    let offered = b.endpoint.offer(&theirs, Rights::PUT).expect("offered");
    let received = a.endpoint.receive_offer(MAX_WAIT).expect("received");
    let own = a.endpoint.report(&ours).expect("registered");
    for report in [&offered, received.report(), &own] {
        assert_eq!((report.path, report.failed.len()), (DIRECT, 0), "{report}");
        assert_eq!(report.nic, "rxe0");
        assert!(
            report.to_string().contains("uverbs ioctl REG_DMABUF_MR"),
            "{report}"
        );
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn flush_reads_after_writes_if_permitted() {
    let _alone = patched!("flush_reads_after_writes_if_permitted");
    let (mut a, mut b) = pair("flush", REQUIRE);
    let (from, to) = (a.buffer(1), b.buffer(2));
    let remote = b.offer_to(&mut a, &to);
    a.put(&from, &remote);
    a.endpoint.flush_remote(&remote, MAX_WAIT).expect("flushed");
    assert_eq!(a.nic.stats().flushes, 1);
    assert!(b.bytes(&to) == noise(1, LEN));
    b.endpoint.offer(&to, Rights::PUT).expect("offered");
    let blind = a.endpoint.receive_offer(MAX_WAIT).expect("received");
    let error = a
        .endpoint
        .flush_remote(&blind, MAX_WAIT)
        .expect_err("a flush reads");
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn many_concurrent_puts_arrive() {
    let _alone = patched!("many_concurrent_puts_arrive");
    let (mut a, mut b) = pair("many", REQUIRE);
    let (from, to) = (a.buffer(1), b.buffer(2));
    let remote = b.offer_to(&mut a, &to);
    const PART: u64 = LEN / 64;
    // Each part goes to the mirror of its place.
    let puts: Vec<_> = (0..64)
        .map(|part| {
            let at = (63 - part) * PART;
            let local = from.at(part * PART..(part + 1) * PART).expect("inside");
            a.endpoint
                .put(local, remote.at(at..at + PART).expect("inside"))
                .expect("begun")
        })
        .collect();
    for put in puts.into_iter().rev() {
        a.endpoint.wait(put, MAX_WAIT).expect("put");
    }
    let parts = noise(1, LEN);
    let mirrored: Vec<u8> = parts.chunks(PART as usize).rev().flatten().copied().collect();
    assert!(b.bytes(&to) == mirrored);
    untouched_by_processors(&a);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_processes_put_and_get() {
    let _alone = patched!("two_processes_put_and_get");
    let other = Other::new(|socket| {
        let stream = socket.try_clone().expect("a clone");
        let mut b = node("mock:gaudi2?name=two-b", stream, Policy::Require);
        let to = b.buffer(2);
        b.endpoint.offer(&to, Rights::BOTH).expect("offered");
        let word = b.endpoint.receive_offer(MAX_WAIT).expect("received");
        // Whole when A has got it back: A's offer comes after that.
        let arrived = b.bytes(&to) == noise(1, LEN);
        b.put(to.at(0..4).expect("inside"), word.at(0..4).expect("inside"));
        hear_offer(&mut b);
        b.end(vec![to]);
        arrived
    });
    let stream = other.socket.try_clone().expect("a clone");
    let mut a = node("mock:gaudi2?name=two-a", stream, Policy::Require);
    let (from, back) = (a.buffer(1), a.buffer(9));
    let remote = a.endpoint.receive_offer(MAX_WAIT).expect("received");
    a.put(&from, &remote);
    a.endpoint.flush_remote(&remote, MAX_WAIT).expect("flushed");
    a.get(&back, &remote);
    assert!(a.bytes(&back) == noise(1, LEN), "what was put is what is got");
    a.endpoint.offer(&back, Rights::BOTH).expect("offered");
    a.endpoint.offer(&from, Rights::GET).expect("offered");
    untouched_by_processors(&a);
    other.agrees();
    a.end(vec![from, back]);
}

fn hear_offer(node: &mut Node) {
    node.endpoint.receive_offer(MAX_WAIT).expect("the last word");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn killed_peer_ends_puts_without_leaks() {
    let _alone = patched!("killed_peer_ends_puts_without_leaks");
    let other = Other::new(|socket| {
        let stream = socket.try_clone().expect("a clone");
        let mut b = node("mock:gaudi2?name=killed-b", stream, Policy::Require);
        let to = b.buffer(2);
        b.endpoint.offer(&to, Rights::BOTH).expect("offered");
        // Deadline the end of the process.
        std::thread::sleep(MAX_WAIT);
        false
    });
    let stream = other.socket.try_clone().expect("a clone");
    let mut a = node("mock:gaudi2?name=killed-a", stream, Policy::Require);
    let from = a.buffer(1);
    let remote = a.endpoint.receive_offer(MAX_WAIT).expect("received");
    a.put(&from, &remote);
    let puts: Vec<_> = (0..8)
        .map(|_| a.endpoint.put(&from, &remote).expect("begun"))
        .collect();
    drop(other);
    let mut failed = 0;
    for put in puts {
        if let Err(error) = a.endpoint.wait(put, MAX_WAIT) {
            assert!(
                matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::AccessDenied),
                "{error}"
            );
            failed += 1;
        }
    }
    assert!(failed > 0, "eight puts of a slow NIC are not over at once");
    let late = a.endpoint.put(&from, &remote).expect_err("it is over");
    assert!(!late.to_string().is_empty());
    a.end(vec![from]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn dmabuf_and_staged_ends_agree() {
    let _alone = patched!("dmabuf_and_staged_ends_agree");
    for (name, policies) in [
        ("direct-staged", [Policy::Require, Policy::Never]),
        ("staged-direct", [Policy::Never, Policy::Require]),
    ] {
        let (mut a, mut b) = pair(name, policies);
        let (ours, theirs) = there_and_back(&mut a, &mut b);
        for (node, policy) in [(&a, policies[0]), (&b, policies[1])] {
            let stats = node.nic.stats();
            assert_eq!(
                stats.engine_bytes > 0,
                policy == Policy::Never,
                "{name}: {stats:?}"
            );
            assert_eq!(stats.cpu_copied_bytes, 0, "{name}: {stats:?}");
        }
        a.end(vec![ours]);
        b.end(vec![theirs]);
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn never_stages_although_the_nic_could() {
    let _alone = patched!("never_stages_although_the_nic_could");
    let (mut a, mut b) = pair("never", [Policy::Never; 2]);
    let (ours, theirs) = there_and_back(&mut a, &mut b);
    let report = a.endpoint.report(&ours).expect("a report");
    assert!(report.path.is_staged(), "{report}");
    assert!(report.to_string().contains("the policy is `never`"), "{report}");
    assert!(
        a.nic.remembered(ours.device()).is_none(),
        "nothing was tried, nothing failed"
    );
    a.end(vec![ours]);
    b.end(vec![theirs]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn shared_pages_are_staged_alone() {
    let _alone = patched!("shared_pages_are_staged_alone");
    let (mut a, mut b) = pair("shares", [Policy::Try; 2]);
    let (from, own) = (a.buffer(1), b.buffer(2));
    let piece = b.device.alloc(LEN).expect("a piece");
    let remote = b.offer_to(&mut a, &piece);
    assert!(
        remote.report().to_string().contains("shares its pages"),
        "{}",
        remote.report()
    );
    assert!(a.put(&from, &remote).remote.is_staged());
    assert!(b.bytes(&piece) == noise(1, LEN));
    let remote = b.offer_to(&mut a, &own);
    assert_eq!(a.put(&from, &remote).remote, DIRECT);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn program_bytes_are_copied_once() {
    let _alone = patched!("program_bytes_are_copied_once");
    let (mut a, mut b) = pair("program", REQUIRE);
    let to = b.buffer(2);
    let remote = b.offer_to(&mut a, &to);
    let bytes = noise(7, 300_001);
    let range = || remote.at(11..300_012).expect("inside");
    a.endpoint.put_bytes(&bytes, range(), MAX_WAIT).expect("put");
    let mut back = vec![0; bytes.len()];
    a.endpoint.get_bytes(&mut back, range(), MAX_WAIT).expect("got");
    assert!(back == bytes);
    assert_eq!(a.nic.stats().cpu_copied_bytes, 2 * 300_001);
    assert_eq!(
        b.nic.stats().cpu_copied_bytes,
        0,
        "the peer's memory is device memory"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn host_memory_goes_into_device_memory() {
    let _alone = patched!("host_memory_goes_into_device_memory");
    let (mut a, mut b) = pair("from-host", REQUIRE);
    let to = b.buffer(2);
    let remote = b.offer_to(&mut a, &to);
    let host = std::sync::Arc::new(gaudi_device::HostBuffer::new(LEN as usize).expect("host memory"));
    host.write(0, &noise(6, LEN)).expect("inside");
    let done = a.put(
        Local::host(&host, 5..70_000).expect("inside"),
        remote.at(9..70_004).expect("inside"),
    );
    assert_eq!((done.local, done.remote), (MemoryPath::Host, DIRECT));
    let mut wanted = noise(2, LEN);
    wanted[9..70_004].copy_from_slice(&noise(6, LEN)[5..70_000]);
    assert!(b.bytes(&to) == wanted);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn buffer_with_region_is_not_released() {
    let _alone = patched!("buffer_with_region_is_not_released");
    let (mut a, mut b) = pair("held", REQUIRE);
    let (from, to) = (a.buffer(1), b.buffer(2));
    let remote = b.offer_to(&mut a, &to);
    a.put(&from, &remote);
    let (to, error) = to.close().expect_err("its region lives").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    assert!(error.to_string().contains("rxe0"), "it names the region: {error}");
    b.endpoint.forget(&to).expect("deregistered");
    to.close().expect("free");
    // The kernel refuses requests to a deregistered region, which ends the connection.
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    a.end(vec![from]);
    b.end(vec![]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn closed_device_is_busy_until_last_region() {
    let _alone = patched!("closed_device_is_busy_until_last_region");
    let (mut a, mut b) = pair("busy", REQUIRE);
    let (from, to) = (a.buffer(1), b.buffer(2));
    let remote = b.offer_to(&mut a, &to);
    a.put(&from, &remote);
    let Node {
        endpoint,
        nic: _nic,
        device,
    } = b;
    drop(to);
    let (device, error) = device.close().expect_err("a region lives").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    drop(device);
    let again = || gaudi_device::Device::open(&"mock:gaudi2?name=busy-b".parse().expect("a spec"));
    let error = again().map(drop).expect_err("the region holds it");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    // As with the real driver, the region's memory is there for the peer all the same.
    a.put(&from, &remote);
    endpoint.close().expect("the last region goes");
    again().map(drop).expect("it is free");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn prepare_for_reset_leaves_no_regions() {
    let _alone = patched!("prepare_for_reset_leaves_no_regions");
    let (mut a, mut b) = pair("given-up", REQUIRE);
    let (from, to) = (a.buffer(1), b.buffer(2));
    let remote = b.offer_to(&mut a, &to);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    b.endpoint.device_lost().expect("deregistered");
    to.close().expect("the buffer is not in use");
    let ended = a.endpoint.wait(put, MAX_WAIT);
    let next = a.endpoint.put(&from, &remote);
    let error = ended
        .map(drop)
        .and_then(|()| next.and_then(|put| a.endpoint.wait(put, MAX_WAIT)).map(drop))
        .expect_err("the service has ended");
    assert!(
        matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::AccessDenied),
        "{error}"
    );
    a.end(vec![from]);
    b.end(vec![]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn engine_reset_deregisters_without_a_call() {
    let _alone = patched!("engine_reset_deregisters_without_a_call");
    // The first submission fills the buffer, the second is the first chunk that is stored for A.
    let specs = [
        "mock:gaudi2?name=reset-a",
        "mock:gaudi2?name=reset-b+fault=submit:when=2:reset",
    ];
    let (mut a, mut b) = pair_on(specs, [Policy::Try; 2]);
    let (from, own) = (a.buffer(1), b.buffer(2));
    let piece = b.device.alloc(LEN).expect("a piece");
    b.offer_to(&mut a, &own);
    let remote = b.offer_to(&mut a, &piece);
    let before = b.nic.stats().deregistrations;
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("it is removed");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "it is the peer's: {error}");
    let begin = std::time::Instant::now();
    while b.nic.stats().deregistrations == before && begin.elapsed() < MAX_WAIT {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(b.nic.stats().deregistrations > before, "its region went");
    // The connection ends before its regions are deregistered; the reason is known after that.
    let mut later = b.endpoint.offer(&own, Rights::PUT).expect_err("the end is over");
    while later.kind() == ErrorKind::Disconnected && begin.elapsed() < MAX_WAIT {
        std::thread::sleep(std::time::Duration::from_millis(5));
        later = b.endpoint.offer(&own, Rights::PUT).expect_err("the end is over");
    }
    assert_eq!(later.kind(), ErrorKind::DeviceLost, "{later}");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn missing_rights_are_rejected_before_sending() {
    let _alone = patched!("missing_rights_are_rejected_before_sending");
    let (mut a, mut b) = pair("rights", REQUIRE);
    let (ours, theirs) = (a.buffer(1), b.buffer(2));
    b.endpoint.offer(&theirs, Rights::GET).expect("offered");
    let remote = a.endpoint.receive_offer(MAX_WAIT).expect("received");
    let error = a.endpoint.put(&ours, &remote).expect_err("not to put");
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    a.get(&ours, &remote);
    assert!(a.bytes(&ours) == noise(2, LEN), "the connection is whole");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn nodes_meet_over_tcp() {
    let _alone = patched!("nodes_meet_over_tcp");
    let _ = gaudi_lab::run(&["ip", "link", "set", "lo", "up"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    let other = std::thread::spawn(move || {
        let (nic, device) = (nic(), nodes::device("mock:gaudi2?name=tcp-b"));
        let endpoint =
            Endpoint::accept(&listener, &nic, Some(&device), with(Policy::Require)).expect("accepted");
        Node {
            endpoint,
            nic,
            device,
        }
    });
    let (nic, device) = (nic(), nodes::device("mock:gaudi2?name=tcp-a"));
    let endpoint = Endpoint::connect(address, &nic, Some(&device), with(Policy::Require)).expect("connected");
    let mut a = Node {
        endpoint,
        nic,
        device,
    };
    let mut b = other.join().expect("no panic");
    assert_eq!((a.endpoint.peer(), b.endpoint.peer()), ("rxe0", "rxe0"));
    let (ours, theirs) = there_and_back(&mut a, &mut b);
    a.end(vec![ours]);
    b.end(vec![theirs]);
}
