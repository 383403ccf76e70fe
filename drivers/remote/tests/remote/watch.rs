//! Regions that go in time: a device that is reset while endpoints hold regions of it, kept
//! regions, and what blocks a close.

use std::time::{Duration, Instant};

use gaudi_device::Device;
use gaudi_remote::{CacheLimits, Endpoint, EndpointOptions, ErrorKind, Nic, Rights};
use gaudi_verbs::MrState;

use crate::nodes::{MAX_WAIT, Node, Setup, noise, pair, pair_on};

const LEN: u64 = 1 << 20;

/// Deadline it is so. A bound for a defect, no measure.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < MAX_WAIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Resets a device whose first submission fills a buffer, by its second.
fn reset(device: &Device, buffer: &gaudi_device::Buffer) {
    let error = device
        .fill(buffer, 1)
        .and_then(|done| done.wait(MAX_WAIT))
        .expect_err("the fault resets");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
}

#[test]
fn reset_deregisters_without_a_call() {
    let b_spec = "mock:gaudi2?name=watch-b+fault=submit:when=2:reset";
    let (mut a, mut b) = pair_on(
        "mock:gaudi2?name=watch-a",
        b_spec,
        &Setup::direct(),
        &Setup::direct(),
    );
    let (from, own) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &own, Rights::BOTH);
    // One of each kind: the peer's, and one that the NIC keeps.
    let kept = b.device.alloc_exclusive(LEN).expect("device memory");
    b.endpoint.report(&kept).expect("registered");
    assert_eq!(b.live(), 3, "the asking end's messages, the offer, the kept one");
    reset(&b.device, &own);
    until("the regions go by themselves", || b.live() == 1);
    until("and are counted", || b.nic.stats().revoked == 2);
    assert_eq!(b.nic.stats().cached_regions, 0);
    assert!(b.nic.blockers(b.device.id()).own.is_empty());
    // This end reports the reason; the peer's NIC reports the dead region, or the hang-up does.
    let again = b.endpoint.offer(&own, Rights::PUT).expect_err("the end is over");
    assert_eq!(again.kind(), ErrorKind::DeviceLost, "{again}");
    assert!(again.to_string().contains("IN_RESET"), "{again}");
    let put = a.endpoint.put(&from, &remote);
    let error = put
        .and_then(|put| a.endpoint.wait(put, MAX_WAIT))
        .expect_err("the region is deregistered");
    assert!(
        matches!(error.kind(), ErrorKind::AccessDenied | ErrorKind::Disconnected),
        "{error}"
    );
    // Nothing is left that would hold the reset up: the node closes, and opens again.
    let Node {
        endpoint,
        nic,
        provider,
        device,
        ..
    } = b;
    endpoint.close().expect("closed");
    assert_eq!(provider.live.load(std::sync::atomic::Ordering::Relaxed), 0);
    let stats = nic.stats();
    assert_eq!(stats.registrations, stats.deregistrations);
    drop((own, kept, device));
    let device = Device::open(&b_spec.parse().expect("a spec")).expect("it is reset and closed");
    device.alloc_exclusive(LEN).expect("it works");
}

#[test]
fn lost_device_is_not_staged() {
    let b_spec = "mock:gaudi2?name=watch-stage-b+fault=submit:when=2:reset";
    let (mut a, mut b) = pair_on(
        "mock:gaudi2?name=watch-stage-a",
        b_spec,
        &Setup::direct(),
        &Setup::direct(),
    );
    let own = b.buffer(LEN, 2);
    // A piece is staged, so the slots exist: staging needs nothing more of the device.
    let piece = b.device.alloc(LEN).expect("a piece");
    b.offer_to(&mut a, &piece, Rights::PUT);
    reset(&b.device, &own);
    // Most often before the NIC's thread has seen the reset: the export itself fails.
    let error = b.endpoint.offer(&own, Rights::PUT).expect_err("no path is left");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
}

#[test]
fn reset_of_local_device_ends_the_wait() {
    let a_spec = "mock:gaudi2?name=watch-wait+fault=submit:when=2:reset";
    let (mut a, mut b) = pair_on(
        a_spec,
        "mock:gaudi2?name=watch-wait-b+fault=submit:when=2:delay=1500ms",
        &Setup::direct(),
        &Setup::staged().chunks(64 << 10, 4),
    );
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    // The peer's engine takes its time; meanwhile our device goes, in another thread of ours.
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let (device, buffer) = (a.device.clone(), from.clone());
    let other = std::thread::spawn(move || reset(&device, &buffer));
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    other.join().expect("reset");
    let next = a.endpoint.put(&from, &remote).expect_err("it is over");
    assert_eq!(next.kind(), ErrorKind::DeviceLost, "{next}");
    until("the kept region went", || a.nic.stats().cached_regions == 0);
}

#[test]
fn revoke_deregisters_only_that_device() {
    let (mut a, mut b) = pair("revoke", &Setup::direct(), &Setup::direct());
    let to = b.buffer(LEN, 2);
    b.offer_to(&mut a, &to, Rights::BOTH);
    let kept = b.buffer(LEN, 3);
    b.endpoint.report(&kept).expect("registered");
    let blockers = b.nic.blockers(b.device.id());
    assert_eq!(blockers.own.len(), 2, "{blockers}");
    assert!(
        blockers
            .own
            .iter()
            .all(|region| region.state == MrState::Live && region.len == LEN)
    );
    assert_eq!(b.nic.revoke(b.device.id()).expect("deregistered"), 2);
    assert_eq!(b.live(), 1, "host memory stays");
    assert_eq!(b.nic.revoke(b.device.id()).expect("nothing to do"), 0);
    for buffer in [to, kept] {
        buffer.close().expect("the buffer is not in use");
    }
}

#[test]
fn close_names_the_blocking_regions() {
    let (mut a, mut b) = pair("blockers", &Setup::direct(), &Setup::direct());
    let to = b.buffer(LEN, 2);
    b.offer_to(&mut a, &to, Rights::PUT);
    let region = b.nic.blockers(b.device.id()).own.remove(0);
    let (to, error) = to.close().expect_err("its region lives").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    let named = |error: &gaudi_remote::Error| {
        let text = format!("{error} {:?}", error.evidence());
        assert!(text.contains("held by 1 regions of this process"), "{text}");
        assert!(
            text.contains(&format!("{} bytes at {}", region.len, region.iova)),
            "{text}"
        );
        assert!(text.contains(&region.rkey.to_string()), "{text}");
    };
    named(&error);
    let (device, error) = b.device.close().expect_err("a buffer lives").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    named(&error);
    // Without regions there is nothing to report.
    b.endpoint.forget(&to).expect("deregistered");
    let (device, error) = device.close().expect_err("the endpoint has it").into_parts();
    assert!(!error.to_string().contains("of this process"), "{error}");
    to.close().expect("free");
    drop(device);
}

#[test]
fn endpoints_share_a_region_until_free() {
    let (mut a, mut b) = pair("shared", &Setup::direct(), &Setup::direct());
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    a.endpoint.wait(put, MAX_WAIT).expect("put");
    let made = a.provider.tried.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(made, 1);
    // Another connection of the same two NICs.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let (nic, device) = (b.nic.clone(), b.device.clone());
    let other = std::thread::spawn(move || {
        Endpoint::over(theirs, &nic, Some(&device), EndpointOptions::default()).expect("node B")
    });
    let mut second =
        Endpoint::over(ours, &a.nic, Some(&a.device), EndpointOptions::default()).expect("node A");
    let mut second_b = other.join().expect("no panic");
    second_b.offer(&to, Rights::BOTH).expect("offered");
    let remote = second.receive_offer(MAX_WAIT).expect("received");
    a.endpoint.close().expect("the first goes");
    let put = second.put(&from, &remote).expect("begun");
    second.wait(put, MAX_WAIT).expect("put");
    assert_eq!(b.bytes(&to), noise(1, LEN as usize));
    assert_eq!(
        a.provider.tried.load(std::sync::atomic::Ordering::Relaxed),
        made,
        "it was registered once for both"
    );
    let stats = a.nic.stats();
    assert_eq!(
        (stats.cache_hits, stats.cache_misses, stats.cached_regions),
        (1, 1, 1),
        "{stats:?}"
    );
    second.close().expect("closed");
    assert_eq!(a.nic.stats().cached_regions, 1, "the buffer lives");
    // Our own free, by a drop: the region goes first, so that nothing lingers, and the next at its
    // address is no hit.
    let address = from.address();
    drop(from);
    assert_eq!(a.nic.stats().cached_regions, 0);
    assert_eq!(a.provider.live.load(std::sync::atomic::Ordering::Relaxed), 0);
    let next = a.device.alloc_exclusive(LEN).expect("again");
    assert_eq!(next.address(), address, "the driver gives the address again");
    next.close().expect("the buffer is not in use");
    a.device.close().expect("nothing lingers");
}

#[test]
fn uncached_nic_deregisters_at_next_registration() {
    let (a, b) = pair("no-cache", &Setup::direct(), &Setup::direct());
    let limits = CacheLimits { entries: 0, bytes: 0 };
    let nic = Nic::with_cache(a.nic.context(), limits).expect("a NIC");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let (nic_b, device_b) = (b.nic.clone(), b.device.clone());
    let other = std::thread::spawn(move || {
        Endpoint::over(theirs, &nic_b, Some(&device_b), EndpointOptions::default()).expect("node B")
    });
    let mut end = Endpoint::over(ours, &nic, Some(&a.device), EndpointOptions::default()).expect("node A");
    let _other = other.join().expect("no panic");
    let buffer = a.buffer(LEN, 1);
    end.report(&buffer).expect("registered");
    end.close().expect("closed");
    buffer.close().expect("free");
    let stats = nic.stats();
    assert_eq!(stats.registrations, stats.deregistrations);
    assert_eq!(stats.cached_regions, 0);
}
