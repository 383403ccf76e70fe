//! Attacks by the cable and by what the attacker does in the middle of a transfer.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gaudi_device::Buffer;
use gaudi_remote::{ErrorKind, Rights};
use gaudi_softnic::{SoftNic, SoftNicConfig, lossy_network};

use crate::attacker::nic_config;
use crate::nodes::{MAX_WAIT, Node, Setup, node, noise};
use crate::relay::Relay;

const LEN: u64 = 4 << 20;

/// The victim and a peer whose cable and control socket the attacker holds.
fn scene(name: &str, options: &str, setup: &Setup) -> (Node, Node, Relay) {
    let (relay, cable, theirs) = Relay::new();
    let nic = SoftNic::open("victim", cable, nic_config()).expect("a NIC");
    let peer = SoftNic::open("attacker", theirs, nic_config()).expect("a NIC");
    let (stream, their_stream) = UnixStream::pair().expect("two sockets");
    let spec = format!("mock:gaudi2?name=cable-{name}{options}");
    let their_spec = format!("mock:gaudi2?name=cable-{name}-attacker");
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| node(&their_spec, peer, their_stream, &Setup::direct()));
        let victim = node(&spec, nic, stream, setup).expect("the victim's node");
        (
            victim,
            peer.join().expect("no panic").expect("the attacker's node"),
            relay,
        )
    })
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < MAX_WAIT, "{what}");
        std::thread::yield_now();
    }
}

/// Closes the victim and its buffer, and checks that nothing of it is left.
fn end(victim: Node, buffer: Buffer, started: Instant) {
    let Node {
        endpoint,
        nic,
        provider,
        ..
    } = victim;
    let _ = endpoint.close();
    drop(buffer);
    assert_eq!(
        provider.live.load(std::sync::atomic::Ordering::Relaxed),
        0,
        "regions that live"
    );
    let stats = nic.stats();
    assert_eq!(stats.registrations, stats.deregistrations, "{stats:?}");
    assert!(started.elapsed() < MAX_WAIT, "it took {:?}", started.elapsed());
}

#[test]
fn no_byte_arrives_after_get_failed() {
    let started = Instant::now();
    let (mut victim, mut peer, relay) = scene("get", "", &Setup::direct());
    let (into, from) = (victim.buffer(LEN, 1), peer.buffer(LEN, 2));
    let remote = peer.offer_to(&mut victim, &from, Rights::BOTH);
    relay.to_victim.stall_after(100_000);
    let get = victim.endpoint.get(&into, &remote).expect("begun");
    until("the answer stalls", || relay.to_victim.is_stalled());
    peer.stream.shutdown(Shutdown::Both).expect("closed");
    let error = victim.endpoint.wait(get, MAX_WAIT).expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    let seen = victim.bytes(&into);
    relay.to_victim.release();
    relay.to_victim.drain();
    let changed = victim
        .bytes(&into)
        .iter()
        .zip(&seen)
        .filter(|(a, b)| a != b)
        .count();
    assert_eq!(changed, 0, "bytes that arrived after the error");
    end(victim, into, started);
}

#[test]
fn failed_put_reads_no_more_bytes() {
    let started = Instant::now();
    let (mut victim, mut peer, relay) = scene("put", "", &Setup::direct());
    let (from, to) = (victim.buffer(LEN, 1), peer.buffer(LEN, 2));
    let remote = peer.offer_to(&mut victim, &to, Rights::BOTH);
    relay.from_victim.stall_after(100_000);
    let put = victim.endpoint.put(&from, &remote).expect("begun");
    until("the write stalls", || relay.from_victim.is_stalled());
    peer.stream.shutdown(Shutdown::Both).expect("closed");
    let error = victim
        .endpoint
        .wait(put, MAX_WAIT)
        .expect_err("no acknowledgement");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    // The memory is the caller's again: what it writes now is not for the peer.
    victim
        .device
        .write(&from, 0, &[0xee; LEN as usize])
        .expect("written");
    relay.from_victim.release();
    relay.from_victim.drain();
    let leaked = relay
        .from_victim
        .passed()
        .windows(64)
        .any(|bytes| bytes == [0xee; 64]);
    assert!(!leaked, "bytes written after the error reached the peer");
    end(victim, from, started);
}

#[test]
fn failed_get_waits_for_engine_copies() {
    let started = Instant::now();
    let setup = Setup::staged().chunks(64 << 10, 2);
    // The second submission is the store of the first chunk: its completion is lost until the third
    // resets the device.
    let fault = "+fault=submit:when=2:lose;submit:when=3:reset";
    let (mut victim, mut peer, relay) = scene("stage", fault, &setup);
    let (into, from) = (victim.buffer(1 << 20, 1), peer.buffer(1 << 20, 2));
    let remote = peer.offer_to(&mut victim, &from, Rights::BOTH);
    relay.to_victim.stall_after(100_000);
    let get = victim.endpoint.get(&into, &remote).expect("begun");
    until("the answer stalls", || relay.to_victim.is_stalled());
    peer.stream.shutdown(Shutdown::Both).expect("closed");
    let error = victim
        .endpoint
        .wait(get, Duration::from_secs(1))
        .expect_err("the engine may still write");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let forgotten = victim
        .endpoint
        .forget(&into)
        .expect_err("the engine may still write");
    assert_eq!(forgotten.kind(), ErrorKind::InUse, "{forgotten}");
    // The reset ends the copy.
    let other = victim.device.alloc_exclusive(4096).expect("device memory");
    let lost = victim.device.fill(&other, 5).and_then(|done| done.wait(MAX_WAIT));
    assert_eq!(lost.expect_err("a reset").kind(), ErrorKind::DeviceLost);
    let error = victim.endpoint.wait(get, MAX_WAIT).expect_err("no answer");
    assert!(
        matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::DeviceLost),
        "{error}"
    );
    end(victim, into, started);
}

/// A transfer that the attacker disturbs while its answer is on the way ends with an error, and
/// this end can be closed.
fn disturbed(name: &str, stall: usize, disturb: impl FnOnce(&mut Relay)) {
    let started = Instant::now();
    let (mut victim, mut peer, mut relay) = scene(name, "", &Setup::direct());
    let (into, from) = (victim.buffer(LEN, 1), peer.buffer(LEN, 2));
    let remote = peer.offer_to(&mut victim, &from, Rights::BOTH);
    relay.to_victim.stall_after(stall);
    let get = victim.endpoint.get(&into, &remote).expect("begun");
    until("the answer stalls", || relay.to_victim.is_stalled());
    disturb(&mut relay);
    let error = victim.endpoint.wait(get, MAX_WAIT).expect_err("disturbed");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    end(victim, into, started);
}

#[test]
fn cut_cable_ends_the_transfer() {
    disturbed("cut", 100_000, |relay| relay.cut());
}

#[test]
fn stalled_frame_ends_the_transfer() {
    // No more bytes arrive: the NIC's own timeout of one frame ends it.
    disturbed("stalled", 100_000, |_| {});
}

#[test]
fn garbage_on_the_cable_ends_the_transfer() {
    // Before the first frame of the answer.
    disturbed("garbage", 0, |relay| relay.inject(&[0xa5; 4096]));
}

#[test]
fn wrong_cable_version_ends_transfer() {
    let mut header = [0; 56];
    header[..6].copy_from_slice(b"gsn\0\x01\x06");
    disturbed("version", 0, |relay| relay.inject(&header));
}

#[test]
fn oversized_frame_ends_transfer() {
    let mut header = [0; 56];
    header[..6].copy_from_slice(b"gsn\0\x02\x01");
    header[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    header[48..52].copy_from_slice(&u32::MAX.to_le_bytes());
    disturbed("oversized", 0, |relay| relay.inject(&header));
}

#[test]
fn trickled_frame_ends_the_transfer() {
    let mut header = [0; 56];
    // A message for a queue pair that does not exist, one byte at a time.
    header[..6].copy_from_slice(b"gsn\0\x02\x04");
    header[40..44].copy_from_slice(&4096_u32.to_le_bytes());
    header[48..52].copy_from_slice(&4096_u32.to_le_bytes());
    disturbed("trickled", 0, |relay| {
        relay.inject(&header);
        let mut socket = relay.victim_socket();
        std::thread::spawn(move || {
            // Deadline the victim's NIC closes the cable.
            while socket.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    });
}

/// The NIC drops frames with a wrong checksum and requests them again.
#[test]
fn damaged_frames_change_no_byte() {
    let started = Instant::now();
    let config = |seed| SoftNicConfig {
        faults: lossy_network(2, seed),
        ..nic_config()
    };
    let (cable, theirs) = UnixStream::pair().expect("two sockets");
    let nic = SoftNic::open("victim", cable, nic_config()).expect("a NIC");
    let peer = SoftNic::open("attacker", theirs, config(3)).expect("a NIC");
    let (stream, their_stream) = UnixStream::pair().expect("two sockets");
    let (mut victim, mut peer) = std::thread::scope(|scope| {
        let spec = "mock:gaudi2?name=cable-damaged-attacker";
        let peer = scope.spawn(move || node(spec, peer, their_stream, &Setup::direct()));
        let victim = node("mock:gaudi2?name=cable-damaged", nic, stream, &Setup::direct());
        (
            victim.expect("a node"),
            peer.join().expect("no panic").expect("a node"),
        )
    });
    let (into, from) = (victim.buffer(LEN, 1), peer.buffer(LEN, 2));
    let remote = peer.offer_to(&mut victim, &from, Rights::BOTH);
    let get = victim.endpoint.get(&into, &remote).expect("begun");
    if victim.endpoint.wait(get, MAX_WAIT).is_ok() {
        assert!(victim.bytes(&into) == noise(2, LEN as usize));
    }
    drop(peer);
    end(victim, into, started);
}
