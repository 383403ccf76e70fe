//! Peers that die or misbehave, cables that go down, devices that are reset, buffers that are
//! freed: truthful errors, nothing left.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gaudi_hal::mock_ledger;
use gaudi_remote::{Endpoint, EndpointOptions, ErrorKind, Rights};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::Context;

use crate::nodes::{MAX_WAIT, Node, Setup, noise, pair, pair_on};

const LEN: u64 = 1 << 20;

fn staged() -> Setup {
    Setup::staged().chunks(64 << 10, 4)
}

/// Ends a node and proves that nothing of it is left: no region, no memory of the device.
fn end(node: Node, buffers: Vec<gaudi_device::Buffer>) {
    let Node {
        endpoint,
        nic,
        provider,
        device,
        ..
    } = node;
    endpoint.close().expect("closed");
    let live = || provider.live.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(
        live(),
        nic.stats().cached_regions.try_into().unwrap_or(i64::MAX),
        "every region but what the NIC keeps for live buffers was deregistered"
    );
    for buffer in buffers {
        buffer.close().expect("the buffer is not in use");
    }
    assert_eq!(live(), 0, "every region was deregistered");
    let stats = nic.stats();
    assert_eq!(stats.registrations, stats.deregistrations);
    assert_eq!(stats.cached_regions, 0);
    device.close().expect("the device is not in use");
}

#[test]
fn every_close_releases_everything() {
    for (name, a, b) in [
        ("direct", Setup::direct(), Setup::direct()),
        ("staged", staged(), staged()),
    ] {
        let (mut a, mut b) = pair(&format!("left-{name}"), &a, &b);
        let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        let put = a.endpoint.put(&from, &remote).expect("begun");
        a.endpoint.wait(put, MAX_WAIT).expect("put");
        end(a, vec![from]);
        end(b, vec![to]);
    }
}

#[test]
fn forget_releases_the_buffer() {
    let (mut a, mut b) = pair("forget", &Setup::direct(), &Setup::direct());
    let to = b.buffer(LEN, 2);
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let (to, error) = to.close().expect_err("its region lives").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    b.endpoint.forget(&to).expect("deregistered");
    to.close().expect("free");
    // The peer's next access is refused by the NIC, which ends the connection.
    let from = a.buffer(LEN, 1);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    let again = a.endpoint.put(&from, &remote).expect_err("it is over");
    assert_eq!(
        again.kind(),
        ErrorKind::AccessDenied,
        "the first cause stays: {again}"
    );
}

#[test]
fn forgotten_staged_buffer_is_rejected() {
    let (mut a, mut b) = pair("withdrawn", &Setup::direct(), &staged());
    let (withdrawn, stays) = (b.buffer(LEN, 2), b.buffer(LEN, 3));
    let from = a.buffer(LEN, 1);
    let remote_withdrawn = b.offer_to(&mut a, &withdrawn, Rights::BOTH);
    let remote_stays = b.offer_to(&mut a, &stays, Rights::BOTH);
    b.endpoint.forget(&withdrawn).expect("forgotten");
    withdrawn.close().expect("free");
    let put = a.endpoint.put(&from, &remote_withdrawn).expect("begun");
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    let put = a.endpoint.put(&from, &remote_stays).expect("begun");
    a.endpoint.wait(put, MAX_WAIT).expect("the other is still there");
    assert_eq!(b.bytes(&stays), noise(1, LEN as usize));
}

#[test]
fn missing_rights_are_rejected_before_sending() {
    let (mut a, mut b) = pair("rights", &Setup::direct(), &Setup::direct());
    let (ours, theirs) = (a.buffer(4096, 1), b.buffer(4096, 2));
    let put_only = b.offer_to(&mut a, &theirs, Rights::PUT);
    let get_only = b.offer_to(&mut a, &theirs, Rights::GET);
    for error in [
        a.endpoint.get(&ours, &put_only).expect_err("not to get"),
        a.endpoint.put(&ours, &get_only).expect_err("not to put"),
        a.endpoint
            .flush_remote(&put_only, MAX_WAIT)
            .expect_err("not to read"),
    ] {
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    }
    let get = a.endpoint.get(&ours, &get_only).expect("begun");
    a.endpoint.wait(get, MAX_WAIT).expect("the connection is whole");
}

#[test]
fn ranges_outside_the_buffer_are_rejected() {
    let (mut a, mut b) = pair("ranges", &Setup::direct(), &Setup::direct());
    let (ours, theirs) = (a.buffer(4096, 1), b.buffer(4096, 2));
    let remote = b.offer_to(&mut a, &theirs, Rights::BOTH);
    assert_eq!(
        remote.at(4000..4097).expect_err("beyond").kind(),
        ErrorKind::InvalidInput
    );
    let error = a
        .endpoint
        .put(ours.at(..5).expect("in it"), remote.at(0..6).expect("in it"))
        .expect_err("5 are not 6");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let (mut c, mut d) = pair("ranges2", &Setup::direct(), &Setup::direct());
    let theirs = d.buffer(4096, 1);
    let foreign = d.offer_to(&mut c, &theirs, Rights::BOTH);
    let error = a.endpoint.put(&ours, &foreign).expect_err("another connection's");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    // Both have begun one transfer.
    let memory = c.buffer(4096, 3);
    let other = c.endpoint.put(&memory, &foreign).expect("begun");
    let own = a.endpoint.put(&ours, &remote).expect("begun");
    let error = a
        .endpoint
        .wait(other, MAX_WAIT)
        .expect_err("another connection's");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    a.endpoint.wait(own, MAX_WAIT).expect("its own is still there");
    c.endpoint.wait(other, MAX_WAIT).expect("and so is the other");
}

/// Whatever dies, the transfer ends soon, as `Disconnected`, and this end lets everything go.
#[test]
fn peer_death_disconnects_and_releases_everything() {
    for (name, setup_a, setup_b) in [
        ("direct", Setup::direct(), Setup::direct()),
        ("staged", staged(), staged()),
        ("half", Setup::direct(), staged()),
    ] {
        let (mut a, mut b) = pair(&format!("dies-{name}"), &setup_a, &setup_b);
        let (from, to) = (a.buffer(32 * LEN, 1), b.buffer(32 * LEN, 2));
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        let put = a.endpoint.put(&from, &remote).expect("begun");
        let started = Instant::now();
        // All of it at once: endpoint, NIC, socket.
        std::thread::scope(|scope| {
            scope.spawn(move || drop((b, to)));
            let answer = a.endpoint.wait(put, MAX_WAIT);
            // It may have been through before.
            if let Err(error) = answer {
                assert_eq!(error.kind(), ErrorKind::Disconnected, "{name}: {error}");
            }
        });
        assert!(started.elapsed() < MAX_WAIT, "{name}: no wait for a dead peer");
        let error = a
            .endpoint
            .put(&from, &remote)
            .and_then(|put| a.endpoint.wait(put, MAX_WAIT))
            .expect_err("there is no peer");
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{name}: {error}");
        end(a, vec![from]);
    }
}

/// The peer's NIC answers and its program hangs up while its engine is at work: only the socket
/// reports it.
#[test]
fn peer_that_hangs_up_before_answering_disconnects() {
    let b = "mock:gaudi2?name=owes-b+fault=submit:when=2:delay=3s";
    let (mut a, mut b) = pair_on("mock:gaudi2?name=owes-a", b, &Setup::direct(), &staged());
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    b.stream.shutdown(std::net::Shutdown::Both).expect("hung up");
    let started = Instant::now();
    let error = a
        .endpoint
        .wait(put, MAX_WAIT)
        .expect_err("no answer comes in time");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    assert!(
        error.to_string().contains("owes an answer"),
        "by the socket: {error}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "before the engine was done"
    );
}

#[test]
fn lost_peer_device_deregisters_its_regions() {
    // The first submission fills the buffer, the second is the first chunk that is stored for A.
    let b = "mock:gaudi2?name=lost-b+fault=submit:when=2:reset";
    let (mut a, mut b) = pair_on("mock:gaudi2?name=lost-a", b, &Setup::direct(), &Setup::direct());
    let (from, own) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    // A piece is staged, a buffer with pages of its own is not: both kinds of region live.
    let piece = b.device.alloc(LEN).expect("a piece");
    b.offer_to(&mut a, &own, Rights::BOTH);
    let remote = b.offer_to(&mut a, &piece, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "it is the peer's: {error}");
    assert!(error.to_string().contains("device lost there"), "{error}");
    // Ours is whole, and so is what is registered of it.
    let again = a
        .endpoint
        .put(&from, &remote)
        .expect_err("the connection is over");
    assert_eq!(again.kind(), ErrorKind::Disconnected, "{again}");
    assert_eq!(a.live(), 2, "the messages and the buffer");
    // Without a call of B's program: the reset must not wait for it.
    let started = Instant::now();
    while b.live() > 1 && started.elapsed() < MAX_WAIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(b.live(), 1, "only the asking end's messages are still registered");
    let later = b.endpoint.offer(&own, Rights::PUT).expect_err("the end is over");
    assert_eq!(later.kind(), ErrorKind::DeviceLost, "{later}");
}

#[test]
fn lost_local_device_fails_transfer_and_deregisters() {
    let a = "mock:gaudi2?name=lost-here+fault=submit:when=7:reset";
    let (mut a, mut b) = pair_on(a, "mock:gaudi2?name=lost-there", &staged(), &Setup::direct());
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote);
    let error = put
        .and_then(|put| a.endpoint.wait(put, MAX_WAIT))
        .expect_err("lost at the sixth chunk");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    let again = a.endpoint.put(&from, &remote).expect_err("it is over");
    assert_eq!(again.kind(), ErrorKind::DeviceLost, "{again}");
    a.endpoint.close().expect("everything goes all the same");
    assert_eq!(a.provider.live.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn refused_copy_fails_only_its_transfer() {
    let b = "mock:gaudi2?name=refused-b+fault=submit:when=2:error=ENOMEM";
    let (mut a, mut b) = pair_on("mock:gaudi2?name=refused-a", b, &Setup::direct(), &staged());
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("refused once");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::OutOfMemory, Some(gaudi_seam::Errno::ENOMEM)),
        "{error}"
    );
    let put = a.endpoint.put(&from, &remote).expect("begun");
    a.endpoint.wait(put, MAX_WAIT).expect("the next is whole");
    assert_eq!(b.bytes(&to), noise(1, LEN as usize));
}

/// The fault hits the third submission: a chunk between this node's memory and its stage.
#[test]
fn failed_copy_to_local_stage_fails_transfer() {
    for put in [true, false] {
        let a = format!("mock:gaudi2?name=own-stage-{put}-a+fault=submit:when=3:error=ENOMEM");
        let b = format!("mock:gaudi2?name=own-stage-{put}-b");
        let (mut a, mut b) = pair_on(&a, &b, &staged(), &Setup::direct());
        let (ours, theirs) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
        let remote = b.offer_to(&mut a, &theirs, Rights::BOTH);
        let end = &mut a.endpoint;
        let begun = if put {
            end.put(&ours, &remote)
        } else {
            end.get(&ours, &remote)
        };
        let error = begun
            .and_then(|transfer| end.wait(transfer, MAX_WAIT))
            .expect_err("a chunk was not copied");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        let put = end.put(&ours, &remote).expect("begun");
        end.wait(put, MAX_WAIT).expect("the connection is whole");
    }
}

/// A peer that closes the connection may have sent its answer before. Late answers are lost, so at
/// least one of several must be received.
#[test]
fn answer_sent_before_hang_up_is_received() {
    let taken = (0..10).any(|round| {
        let b = format!("mock:gaudi2?name=grace-{round}-b+fault=submit:when=2:delay=30ms");
        let a = format!("mock:gaudi2?name=grace-{round}-a");
        let (mut a, mut b) = pair_on(&a, &b, &Setup::direct(), &staged());
        let (from, to) = (a.buffer(64 << 10, 1), b.buffer(64 << 10, 2));
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        let put = a.endpoint.put(&from, &remote).expect("begun");
        b.stream.shutdown(std::net::Shutdown::Both).expect("hung up");
        a.endpoint.wait(put, MAX_WAIT).is_ok()
    });
    assert!(taken, "every answer was lost");
}

#[test]
fn prepare_for_reset_deregisters_at_once() {
    let (mut a, mut b) = pair("given-up", &Setup::direct(), &Setup::direct());
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    b.endpoint.device_lost().expect("deregistered");
    assert_eq!(b.live(), 1, "only the asking end's messages are still registered");
    to.close().expect("the buffer is not in use");
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("the service has ended");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
}

/// Requested chunks are never answered then: the hang-up ends the wait.
#[test]
fn prepare_for_reset_ends_staged_transfers() {
    let b = "mock:gaudi2?name=given-up-staged+fault=submit:when=3:delay=300ms";
    let (mut a, mut b) = pair_on("mock:gaudi2?name=asks", b, &Setup::direct(), &staged());
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    b.endpoint.device_lost().expect("abandoned");
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    assert_eq!(b.live(), 1, "only the asking end's messages are still registered");
}

#[test]
fn unexpected_message_is_rejected() {
    let (nic, _other) = SoftNic::pair(SoftNicConfig::default()).expect("two NICs");
    let nic = gaudi_remote::Nic::new(&Context::open(nic).expect("open")).expect("a NIC");
    let meet = |bytes: &[u8], hang_up: bool| {
        let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
        theirs.write_all(bytes).expect("sent");
        let keep = (!hang_up).then_some(theirs);
        let mut options = EndpointOptions::default();
        options.connect_timeout = Duration::from_millis(200);
        let error = Endpoint::over(ours, &nic, None, options).expect_err("no peer");
        drop(keep);
        error.kind()
    };
    assert_eq!(meet(b"GET / HTTP/1.1\r\n\r\n", false), ErrorKind::Protocol);
    assert_eq!(
        meet(b"gvr\0\x02\0\x01\0\0\0\0\0", false),
        ErrorKind::Protocol,
        "version 2"
    );
    assert_eq!(
        meet(b"gvr\0\x01\0\x01\0\xff\xff\xff\xff", false),
        ErrorKind::Protocol,
        "4 GiB"
    );
    assert_eq!(
        meet(b"gvr\0\x01\0\x01\0\x03\0\0\0abc", false),
        ErrorKind::Protocol,
        "too short"
    );
    assert_eq!(meet(b"", true), ErrorKind::Disconnected);
    assert_eq!(meet(b"gvr\0\x01", true), ErrorKind::Disconnected);
    assert_eq!(
        meet(b"gvr\0", false),
        ErrorKind::TimedOut,
        "it stops in the middle"
    );
    let stats = nic.stats();
    assert_eq!(stats.registrations, stats.deregistrations);
}

/// Half a message is no step that could be taken again: the next would read its rest as a head.
#[test]
fn truncated_message_ends_connection() {
    let (mut a, mut b) = pair("middle", &Setup::direct(), &Setup::direct());
    let to = b.buffer(4096, 2);
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let nothing = a
        .endpoint
        .receive_offer(Duration::from_millis(10))
        .expect_err("none");
    assert_eq!(nothing.kind(), ErrorKind::TimedOut, "{nothing}");
    let second = b.offer_to(&mut a, &to, Rights::PUT);
    assert_eq!(
        second.len(),
        4096,
        "no message was lost by the wait that timed out"
    );
    b.stream.write_all(b"gvr\0\x01").expect("sent");
    let error = a
        .endpoint
        .receive_offer(Duration::from_millis(10))
        .expect_err("half");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    // The peer goes on as if nothing were.
    b.endpoint.offer(&to, Rights::GET).expect("sent");
    let from = a.buffer(4096, 1);
    for error in [
        a.endpoint.receive_offer(MAX_WAIT).expect_err("out of step"),
        a.endpoint.put(&from, &remote).expect_err("and over"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
        assert!(error.to_string().contains("middle"), "{error}");
    }
}

#[test]
fn wait_times_out_while_transfer_continues() {
    let (mut a, mut b) = pair("slow", &staged(), &staged());
    let (from, to) = (a.buffer(16 * LEN, 1), b.buffer(16 * LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let error = a.endpoint.wait(put, Duration::ZERO).expect_err("not yet");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    a.endpoint.wait(put, MAX_WAIT).expect("it goes on");
    assert_eq!(b.bytes(&to), noise(1, 16 * LEN as usize));
    let twice = a.endpoint.wait(put, MAX_WAIT).expect_err("taken before");
    assert_eq!(twice.kind(), ErrorKind::NotFound);
}

#[test]
fn both_mocks_end_without_allocations() {
    let specs =
        ["mock:gaudi2?name=ledger-a", "mock:gaudi2?name=ledger-b"].map(|text| text.parse().expect("a spec"));
    let _control = specs
        .each_ref()
        .map(|spec| gaudi_hal::control(spec).expect("a control node"));
    {
        let (mut a, mut b) = pair("ledger", &Setup::direct(), &staged());
        let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        let put = a.endpoint.put(&from, &remote).expect("begun");
        a.endpoint.wait(put, MAX_WAIT).expect("put");
        // Dropped, in the order of the fields, with everything still registered.
    }
    for spec in &specs {
        let ledger = mock_ledger(spec).expect("the mock is there");
        assert_eq!((ledger.allocations, ledger.dram_bytes), (0, 0), "{spec}");
    }
}

/// RoCE v2 goes over one family of IP.
#[test]
fn address_family_mismatch_fails_before_sending() {
    let meet = |a: &str, b: &str| {
        let setup = |address: &str| Setup {
            address: Some(address.parse().expect("an address")),
            ..Setup::direct()
        };
        let (nic_a, nic_b) = SoftNic::pair(SoftNicConfig::default()).expect("two NICs");
        let (stream_a, stream_b) = UnixStream::pair().expect("two sockets");
        let (a, b) = (setup(a), setup(b));
        std::thread::scope(|scope| {
            let b = scope
                .spawn(|| crate::nodes::node("mock:gaudi2?name=family-b", nic_b, stream_b, &b).map(drop));
            let a = crate::nodes::node("mock:gaudi2?name=family-a", nic_a, stream_a, &a).map(drop);
            (a, b.join().expect("no panic"))
        })
    };
    for address in ["::ffff:10.0.0.1", "fe80::1", "2001:db8::1"] {
        let (a, b) = meet(address, address);
        assert!(a.is_ok() && b.is_ok(), "{address}: {a:?} {b:?}");
    }
    let (a, b) = meet("::ffff:10.0.0.1", "fe80::1");
    let errors = [a, b].into_iter().filter_map(Result::err);
    let errors: Vec<_> = errors
        .filter(|error| error.kind() == ErrorKind::Unsupported)
        .collect();
    assert!(!errors.is_empty());
    for error in errors {
        assert!(
            error.help().is_some_and(|help| help.contains("GID index")),
            "{error:?}"
        );
    }
}
