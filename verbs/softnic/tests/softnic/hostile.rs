//! Bytes from a peer that is none: whatever comes, the cable lives or goes down with a reason, and
//! nothing panics, hangs or is written where no key allows it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gaudi_seam::ErrorKind;
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::provider::{QpState, QpTransition};
use gaudi_verbs::{Gid, Mtu, Psn, Qp, QpInit, Qpn, WcStatus, WorkCompletion};
use proptest::prelude::*;

use crate::node::*;
use crate::peer::{HEADER, PEER, header, hello};

/// A node whose peer is the returned socket.
fn against_a_socket() -> (Node, UnixStream) {
    let (cable, peer) = UnixStream::pair().unwrap();
    let config = SoftNicConfig {
        stall_timeout: Duration::from_secs(20),
        ..SoftNicConfig::default()
    };
    let mut a = Node::new(SoftNic::open("softnic0", cable, config).unwrap());
    a.qp.connect(&PEER, FULL).unwrap();
    for wr_id in 0..8 {
        let into = a.host_mr.sge(wr_id * 1000, 1000).unwrap();
        a.qp.post_recv(wr_id).post(&[into]).unwrap();
    }
    (a, peer)
}

/// Sends `bytes`, closes, and expects the NIC to notice: everything that was posted ends.
fn ends_well(a: Node, mut peer: UnixStream, bytes: &[u8], sends: u64) {
    peer.set_write_timeout(Some(MAX_WAIT)).unwrap();
    let mut reader = peer.try_clone().unwrap();
    let drain = std::thread::spawn(move || {
        let mut scratch = [0; 4096];
        while matches!(reader.read(&mut scratch), Ok(count) if count > 0) {}
    });
    // The NIC may close first: that is one of the right answers.
    let _ = peer.write_all(bytes);
    let _ = peer.shutdown(std::net::Shutdown::Write);
    let mut wc = [WorkCompletion::EMPTY; 16];
    let mut ended = 0;
    while ended < 8 + sends {
        ended += a.cq.wait(&mut wc, MAX_WAIT).expect("all work ends") as u64;
    }
    while a.nic.cable_error().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(a);
    drain.join().unwrap();
}

#[test]
fn our_own_frames_are_understood() {
    let (a, mut peer) = against_a_socket();
    let mut bytes = header(1, a.qp.qpn().0, 0, DEVICE_VA + 3, a.device_mr.rkey().0, 5, 5);
    bytes.extend(b"hello");
    peer.write_all(&bytes).unwrap();
    let mut answer = [0; HEADER];
    peer.set_read_timeout(Some(MAX_WAIT)).unwrap();
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(answer[5], 14, "a NIC sends its hello first");
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(answer[5], 7, "an acknowledgement: the layout here is the NIC's");
    assert_eq!(bytes_of(&a.device, 3, 5), b"hello");
    drop(peer);
}

#[test]
fn invalid_frame_takes_cable_down() {
    let (a, mut peer) = against_a_socket();
    peer.write_all(&[0x55; HEADER]).unwrap();
    a.completes(0, WcStatus::WR_FLUSH_ERR);
    let error = a.nic.cable_error().expect("the cable is down");
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("not a frame"), "{error}");
}

#[test]
fn peer_stopped_inside_frame_times_out() {
    let (cable, mut peer) = UnixStream::pair().unwrap();
    let config = SoftNicConfig {
        stall_timeout: Duration::from_millis(50),
        ..SoftNicConfig::default()
    };
    let nic = SoftNic::open("softnic0", cable, config).unwrap();
    peer.write_all(b"gsn\0").unwrap();
    while nic.cable_error().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(nic.cable_error().unwrap().kind(), ErrorKind::Disconnected);
}

#[test]
fn requests_to_unknown_qps_are_bounded() {
    let (a, peer) = against_a_socket();
    let mut bytes = Vec::new();
    for qpn in 0..20_000 {
        bytes.extend(header(1, qpn, 0, 0, 0, 0, 0));
    }
    ends_well(a, peer, &bytes, 0);
}

#[test]
fn endless_read_requests_are_refused() {
    let (mut a, peer) = against_a_socket();
    let (qpn, rkey) = (a.qp.qpn().0, a.device_mr.rkey().0);
    let bytes: Vec<u8> = (0..2000)
        .flat_map(|msn| header(3, qpn, msn, DEVICE_VA, rkey, 1 << 20, 0))
        .collect();
    let local = [a.host_mr.sge(0, 100).unwrap()];
    a.qp.post_send(99).send(&local).post().unwrap();
    ends_well(a, peer, &bytes, 1);
}

proptest! {
    #![proptest_config(gaudi_random::config(200))]

    #[test]
    fn arbitrary_bytes_on_the_cable_end_well(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let (a, peer) = against_a_socket();
        ends_well(a, peer, &bytes, 0);
    }

    /// Frames that are nearly right: valid ones of all kinds with some bytes changed, answers to
    /// work that is outstanding among them.
    #[test]
    fn mutated_frames_touch_no_memory(
        frames in prop::collection::vec((1u8..15, 0u64..4, 0u32..3000, any::<bool>()), 1..12),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        sends in 0u64..4,
    ) {
        let (mut a, peer) = against_a_socket();
        let local = [a.host_mr.sge(100_000, 2000).unwrap()];
        for wr_id in 0..sends {
            let post = a.qp.post_send(100 + wr_id);
            let there = gaudi_verbs::RemoteAddr { addr: gaudi_verbs::MrAddr(0), rkey: gaudi_verbs::Rkey(1) };
            if wr_id % 2 == 0 { post.read(&local, there) } else { post.send(&local) }.post().unwrap();
        }
        let (qpn, rkey) = (a.qp.qpn().0, a.device_mr.rkey().0);
        let mut bytes = Vec::new();
        for (kind, msn, total, right_key) in frames {
            let carries = !matches!(kind, 3 | 7 | 8 | 13 | 14);
            let total = if matches!(kind, 10 | 11) { 16 } else { total };
            let payload = if carries { total } else { 0 };
            let mut frame = header(kind, qpn, msn, DEVICE_VA, if right_key { rkey } else { 1 }, total, payload);
            if kind == 8 {
                frame[7] = 1 + (total % 7) as u8;
            }
            bytes.extend(frame);
            bytes.extend(std::iter::repeat_n(0xee, payload as usize));
        }
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        // A change can move a write inside the region that the peer has the key of, never outside
        // it.
        let beyond = gaudi_sys::RawMapping::of_fd(&a.memory, DEVICE_START + DEVICE, 1 << 20).unwrap();
        ends_well(a, peer, &bytes, sends);
        prop_assert!(bytes_of(&beyond, 0, 1 << 20).iter().all(|byte| *byte == 0), "device memory outside the window was written");
    }
}

/// The stall clock runs for the frame, not from byte to byte.
#[test]
fn slow_peer_does_not_block_destroy() {
    let (cable, mut peer) = UnixStream::pair().unwrap();
    let config = SoftNicConfig {
        stall_timeout: Duration::from_millis(200),
        ..SoftNicConfig::default()
    };
    let mut a = Node::new(SoftNic::open("softnic0", cable, config).unwrap());
    a.qp.connect(&PEER, FULL).unwrap();
    let frame = header(
        1,
        a.qp.qpn().0,
        0,
        DEVICE_VA,
        a.device_mr.rkey().0,
        60_000,
        60_000,
    );
    peer.write_all(&frame).unwrap();
    let creeping = std::thread::spawn(move || {
        // A byte each 20 ms would take 20 minutes; the cable goes down long before.
        while peer.write_all(&[7]).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let nic = a.nic.clone();
    // The frame is in the middle of its payload once its header was counted.
    while nic.counters().rx.wire_bytes == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let since = std::time::Instant::now();
    drop(a);
    assert!(
        since.elapsed() < Duration::from_secs(10),
        "destroying waited {:?}",
        since.elapsed()
    );
    while nic.cable_error().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(nic.cable_error().unwrap().kind(), ErrorKind::Disconnected);
    creeping.join().unwrap();
}

/// Connects a queue pair that gives its peer up after two timeouts without an answer.
fn connect_impatiently(qp: &mut Qp, timeout: Duration) {
    let steps = [
        QpTransition::Init { access: FULL },
        QpTransition::ReadyToReceive {
            remote: PEER,
            path_mtu: Mtu::MTU_4096,
            max_dest_rd_atomic: 1,
            min_rnr_timer: Duration::ZERO,
        },
        QpTransition::ReadyToSend {
            sq_psn: Psn(0),
            max_rd_atomic: 1,
            timeout,
            retry_cnt: 1,
            rnr_retry: 0,
        },
    ];
    for step in &steps {
        qp.modify(step).unwrap();
    }
}

/// Frames for other queue pairs do not renew the timeout of a queue pair that waits.
#[test]
fn traffic_elsewhere_does_not_renew_timeout() {
    let (cable, mut peer) = UnixStream::pair().unwrap();
    let mut a = Node::new(SoftNic::open("softnic0", cable, SoftNicConfig::default()).unwrap());
    connect_impatiently(&mut a.qp, Duration::from_millis(100));
    let local = [a.host_mr.sge(0, 8).unwrap()];
    let unknown = gaudi_verbs::RemoteAddr {
        addr: gaudi_verbs::MrAddr(0),
        rkey: gaudi_verbs::Rkey(1),
    };
    a.qp.post_send(99).write(&local, unknown).post().unwrap();
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stop = ended.clone();
    let chat = std::thread::spawn(move || {
        let ack = header(7, 0x12_3456, 0, 0, 0, 0, 0);
        while !stop.load(std::sync::atomic::Ordering::Relaxed) && peer.write_all(&ack).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
        peer
    });
    a.completes(99, WcStatus::RETRY_EXC_ERR);
    assert_eq!(
        a.nic.cable_error().map(|error| error.to_string()),
        None,
        "the cable lives"
    );
    ended.store(true, std::sync::atomic::Ordering::Relaxed);
    drop(chat.join().unwrap());
}

/// A node with two peers that are none, each over a cable of its own, and each with a GID;
/// connected to the first.
fn against_two_sockets() -> (Node, [UnixStream; 2]) {
    let nic = SoftNic::unplugged("softnic0", SoftNicConfig::default()).unwrap();
    let peers = [1, 2].map(|number| {
        let (cable, mut peer) = UnixStream::pair().unwrap();
        nic.plug(cable).unwrap();
        peer.write_all(&hello([number; 16])).unwrap();
        peer.set_read_timeout(Some(MAX_WAIT)).unwrap();
        let mut greeting = [0; HEADER];
        peer.read_exact(&mut greeting).unwrap();
        peer
    });
    let mut a = Node::new(nic);
    a.qp.connect(&PEER, FULL).unwrap();
    (a, peers)
}

/// The message number of a frame.
fn number_of(frame: &[u8]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| frame[16 + index]))
}

/// Waits until the NIC has taken so many bytes off its cables.
fn has_read(nic: &SoftNic, bytes: u64) {
    while nic.counters().rx.wire_bytes < bytes {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn answer_must_use_the_requests_cable() {
    let (mut a, [mut asked, mut other]) = against_two_sockets();
    let local = [a.host_mr.sge(0, 8).unwrap()];
    a.qp.post_send(1).signaled(true).send(&local).post().unwrap();
    let mut request = [0; HEADER + 8];
    asked.read_exact(&mut request).unwrap();
    let before = a.nic.counters().rx.wire_bytes;
    let ack = header(7, a.qp.qpn().0, number_of(&request), 0, 0, 0, 0);
    other.write_all(&ack).unwrap();
    has_read(&a.nic, before + HEADER as u64);
    a.nothing_completes();
    asked.write_all(&ack).unwrap();
    a.completes(1, WcStatus::SUCCESS);
}

#[test]
fn answer_to_datagram_qp_is_ignored() {
    let (a, [mut peer, _other]) = against_two_sockets();
    let mut ud = a.pd.create_ud_qp(&QpInit::new(&a.cq)).unwrap();
    ud.activate(7).unwrap();
    let before = a.nic.counters().rx.wire_bytes;
    let mut ack = header(7, ud.qpn().0, 0, 0, 0, 0, 0);
    // As a datagram queue pair has no peer: number 0.
    ack[12..16].fill(0);
    peer.write_all(&ack).unwrap();
    has_read(&a.nic, before + HEADER as u64);
    assert_eq!(ud.state().unwrap(), QpState::RTS);
}

#[test]
fn restarted_message_is_refused() {
    let (a, mut peer) = against_a_socket();
    let (qpn, rkey) = (a.qp.qpn().0, a.device_mr.rkey().0);
    // The first half of a send takes a receive of 1000 bytes ...
    let mut bytes = header(4, qpn, 0, 0, 0, 1000, 500);
    bytes.extend([1; 500]);
    // ... and the same message is a long write then.
    bytes.extend(header(1, qpn, 0, DEVICE_VA, rkey, 100_000, 100_000));
    bytes.extend(vec![2; 100_000]);
    peer.write_all(&bytes).unwrap();
    a.completes(0, WcStatus::WR_FLUSH_ERR);
    assert!(
        bytes_of(&a.device, 0, 100_000).iter().all(|byte| *byte == 0),
        "nothing of it is written"
    );
}

#[test]
fn peer_sends_its_identity_once() {
    for twice in [true, false] {
        let (cable, mut peer) = UnixStream::pair().unwrap();
        let nic = SoftNic::open("softnic0", cable, SoftNicConfig::default()).unwrap();
        if twice {
            peer.write_all(&[hello([1; 16]), hello([1; 16])].concat())
                .unwrap();
        } else {
            peer.write_all(&hello(nic.gid().0)).unwrap();
        }
        while nic.cable_error().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(nic.cable_error().unwrap().kind(), ErrorKind::Protocol);
    }
}

struct Over<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Repetitions of an answer do not prove that the peer makes progress.
#[test]
fn repeated_answers_do_not_renew_timeout() {
    let (a, [mut peer, _other]) = against_two_sockets();
    let mut impatient = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    connect_impatiently(&mut impatient, Duration::from_secs(1));
    let local = [a.host_mr.sge(0, 8).unwrap()];
    impatient.post_send(1).signaled(true).send(&local).post().unwrap();
    let mut request = [0; HEADER + 8];
    peer.read_exact(&mut request).unwrap();
    let ack = header(7, impatient.qpn().0, 0, 0, 0, 0, 0);
    peer.write_all(&ack).unwrap();
    a.completes(1, WcStatus::SUCCESS);
    impatient.post_send(2).send(&local).post().unwrap();
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) && peer.write_all(&ack).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // However this ends, the other thread ends too: a request that is kept alive is a failure
        // here, and not a test without an end.
        let _over = Over(&ended);
        a.completes(2, WcStatus::RETRY_EXC_ERR);
    });
}

#[test]
fn datagrams_to_dead_cable_are_dropped() {
    let (a, [first, mut second]) = against_two_sockets();
    let mut ud = a.pd.create_ud_qp(&QpInit::new(&a.cq)).unwrap();
    ud.activate(7).unwrap();
    let ways = [1, 2].map(|number| a.pd.create_ah(&Gid([number; 16]), 0).unwrap());
    drop(first);
    while a.nic.cable_error().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let local = [a.host_mr.sge(0, 8).unwrap()];
    for (wr_id, way) in (1..).zip([0, 1, 0, 1]) {
        ud.post_send(wr_id, &ways[way], Qpn(3), 7)
            .signaled(true)
            .send(&local)
            .post()
            .unwrap();
        a.completes(wr_id, WcStatus::SUCCESS);
    }
    let mut frame = [0; HEADER + 8];
    second.read_exact(&mut frame).unwrap();
    second.read_exact(&mut frame).unwrap();
    assert_eq!(a.nic.counters().datagrams_dropped, 2, "to no receiver");
}

#[test]
fn new_cable_replaces_dead_one() {
    let (a, [first, _second]) = against_two_sockets();
    let dead = a.nic.counters().rx.wire_bytes;
    drop(first);
    while a.nic.cable_error().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (cable, mut again) = UnixStream::pair().unwrap();
    a.nic.plug(cable).unwrap();
    again.write_all(&hello([1; 16])).unwrap();
    has_read(&a.nic, dead + HEADER as u64);
    let mut qp = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    qp.connect(&PEER, FULL).expect("the new cable leads there");
    let local = [a.host_mr.sge(0, 8).unwrap()];
    qp.post_send(5).signaled(true).send(&local).post().unwrap();
    again.set_read_timeout(Some(MAX_WAIT)).unwrap();
    let mut frames = [0; HEADER + HEADER + 8];
    again.read_exact(&mut frames).unwrap();
    let msn = number_of(&frames[HEADER..]);
    again.write_all(&header(7, qp.qpn().0, msn, 0, 0, 0, 0)).unwrap();
    a.completes(5, WcStatus::SUCCESS);
}
