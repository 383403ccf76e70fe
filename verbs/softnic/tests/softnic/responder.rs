//! The rules of a connection, frame by frame: windows of message numbers and reads, refusals that
//! request a retry, and memory that is released while frames are in flight.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use gaudi_verbs::provider::{Device, MwType, QpHandle, QpState, QpTransition};
use gaudi_verbs::{Access, MrAddr, Mtu, Psn, Qp, QpAddress, QpInit, Qpn, WcStatus};

use crate::node::*;
use crate::peer::*;

const MIB: u32 = 1 << 20;

/// How a queue pair is connected to the peer.
#[derive(Clone, Copy)]
struct Way {
    /// Of the peer's queue pair.
    qpn: u32,
    /// First message of the peer, and of ours.
    psn: u32,
    reads: u8,
    rnr_retry: u8,
    /// Without progress, before everything is sent again; how often that.
    timeout: Duration,
    retry_cnt: u8,
}

const WAY: Way = Way {
    qpn: PEER_QPN,
    psn: 0,
    reads: 16,
    rnr_retry: 3,
    // Long enough that no test ends by it.
    timeout: MAX_WAIT,
    retry_cnt: 7,
};
const RNR_TIMER: Duration = Duration::from_millis(20);

fn join(qp: &mut Qp, way: Way) {
    let remote = QpAddress {
        qpn: Qpn(way.qpn),
        psn: Psn(way.psn),
        ..PEER
    };
    qp.modify(&QpTransition::Init { access: FULL }).unwrap();
    qp.modify(&QpTransition::ReadyToReceive {
        remote,
        path_mtu: Mtu::MTU_4096,
        max_dest_rd_atomic: way.reads,
        min_rnr_timer: RNR_TIMER,
    })
    .unwrap();
    qp.modify(&QpTransition::ReadyToSend {
        sq_psn: Psn(way.psn),
        max_rd_atomic: way.reads,
        timeout: way.timeout,
        retry_cnt: way.retry_cnt,
        rnr_retry: way.rnr_retry,
    })
    .unwrap();
}

/// A node with a cable to a peer; its queue pair is connected `way`.
fn joined(way: Way) -> (Node, Peer) {
    let nic = gaudi_softnic::SoftNic::unplugged("softnic0", Default::default()).unwrap();
    let peer = Peer::plugged_into(&nic);
    let mut a = Node::new(nic);
    join(&mut a.qp, way);
    (a, peer)
}

fn is_in_error(a: &Node, qpn: u32) -> bool {
    a.nic.query_qp(QpHandle(qpn)).unwrap() == QpState::ERR
}

/// A write of 5 bytes arrives and is acknowledged as message `msn`.
fn serves_write(a: &Node, peer: &mut Peer, msn: u64) {
    let write = Frame::new(WRITE, a.qp.qpn().0, msn);
    peer.send(write.at(DEVICE_VA + 77, a.device_mr.rkey().0).of(5), 0xc3);
    peer.hears(ACK, 0, msn);
    assert_eq!(bytes_of(&a.device, 77, 5), [0xc3; 5]);
}

#[test]
fn dereg_returns_after_frame_in_flight() {
    let (a, mut peer) = joined(WAY);
    let (len, half) = (200_000, 100_000);
    let write = Frame::new(WRITE, a.qp.qpn().0, 0).at(DEVICE_VA, a.device_mr.rkey().0);
    let mut bytes = write.of(len).bytes().to_vec();
    bytes.resize(HEADER + half, 0xab);
    peer.raw(&bytes);
    until("the first half", || bytes_of(&a.device, half - 1, 1) == [0xab]);
    let Node {
        nic,
        device_mr,
        device,
        qp,
        ..
    } = a;
    let handle = device_mr.handle();
    let there = nic.clone();
    let sender = std::thread::spawn(move || {
        // The rest comes once the key is dead, hence while deregistration waits.
        until("deregistration", || there.mr_state(handle).is_err());
        peer.raw(&vec![0xab; len as usize - half]);
        peer
    });
    device_mr.close().unwrap();
    assert_eq!(
        bytes_of(&device, len as usize - 1, 1),
        [0xab],
        "deregistration returned while a frame was being written"
    );
    drop((sender.join().unwrap(), qp));
}

#[test]
fn dying_key_is_refused_while_dereg_waits() {
    let nic = gaudi_softnic::SoftNic::unplugged("softnic0", Default::default()).unwrap();
    let mut peers = [1u8, 2].map(|number| {
        let mut peer = Peer::plugged_into(&nic);
        peer.raw(&hello([number; 16]));
        peer
    });
    let mut a = Node::new(nic);
    join(&mut a.qp, WAY);
    let mut remote = PEER;
    remote.gid.0 = [2; 16];
    // A refusal ends a connection: one for each kind of access.
    let others: Vec<Qp> = [WRITE, READ, FETCH_ADD]
        .map(|_| {
            let mut qp = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
            qp.connect(&remote, FULL | Access::REMOTE_ATOMIC).unwrap();
            qp
        })
        .into();
    let [by_write, by_read, by_atomic] = [0, 1, 2].map(|index| others[index].qpn().0);
    let access = FULL | Access::REMOTE_ATOMIC;
    let mr = a.pd.reg_dmabuf_mr(&a.window, MrAddr(DEVICE_VA), access).unwrap();
    let key = mr.rkey().0;
    let write = Frame::new(WRITE, a.qp.qpn().0, 0).at(DEVICE_VA, key);
    let mut bytes = write.of(1000).bytes().to_vec();
    bytes.resize(HEADER + 500, 0xab);
    peers[0].raw(&bytes);
    until("the first half", || bytes_of(&a.device, 499, 1) == [0xab]);
    let Node {
        nic,
        device_mr,
        device,
        qp,
        ..
    } = a;
    let handle = mr.handle();
    let there = nic.clone();
    let sender = std::thread::spawn(move || {
        until("deregistration", || there.mr_state(handle).is_err());
        for (kind, qpn, len) in [
            (WRITE, by_write, 8),
            (READ, by_read, 8),
            (FETCH_ADD, by_atomic, 16),
        ] {
            let late = Frame::new(kind, qpn, 0).at(DEVICE_VA + 4096, key);
            peers[1].send(late.of(len), 0xcd);
            peers[1].hears(NAK, ACCESS, 0);
        }
        peers[0].raw(&[0xab; 500]);
        peers
    });
    mr.close().unwrap();
    let peers = sender.join().expect("the dead key is refused");
    assert_eq!(bytes_of(&device, 4096, 8), [0; 8]);
    drop((peers, qp, others, device_mr));
}

#[test]
fn frames_after_rnr_nak_report_no_gap() {
    let (mut a, mut peer) = joined(WAY);
    let (qpn, key) = (a.qp.qpn().0, a.device_mr.rkey().0);
    serves_write(&a, &mut peer, 0);
    for round in 0..2 {
        peer.send(Frame::new(SEND, qpn, 1).of(8), 1);
        peer.send(Frame::new(WRITE, qpn, 2).at(DEVICE_VA, key).of(8), 2);
        peer.send(Frame::new(WRITE, qpn, 3).at(DEVICE_VA, key).of(8), 3);
        peer.hears(NAK, NOT_READY, 1);
        if round == 1 {
            break;
        }
    }
    until("the skipped writes", || a.nic.counters().rx.write.messages == 5);
    assert_eq!(a.nic.counters().dropped, 4);
    a.qp.post_recv(9).post(&[a.host_mr.sge(0, 8).unwrap()]).unwrap();
    peer.send(Frame::new(SEND, qpn, 1).of(8), 1);
    // The next answer is the acknowledgement and not a sequence error.
    peer.hears(ACK, 0, 1);
    a.completes(9, WcStatus::SUCCESS);
}

#[test]
fn rnr_nak_carries_the_timer_in_microseconds() {
    let (a, mut peer) = joined(WAY);
    peer.send(Frame::new(SEND, a.qp.qpn().0, 0).of(8), 1);
    let (nak, _) = peer.receive();
    assert_eq!((nak.kind, nak.status), (NAK, NOT_READY));
    assert_eq!(Duration::from_micros(nak.imm.into()), RNR_TIMER);
}

/// Every part of an answer is a sign of life, or a long read from a slow peer would time out.
#[test]
fn read_data_in_parts_restarts_the_timeout() {
    // A machine that stalls between two parts exceeds the timeout.
    assert!((0..5).any(|_| read_in_parts_in_time()), "five runs with a stall");
}

/// Returns false if the parts did not come in time.
fn read_in_parts_in_time() -> bool {
    let (mut a, mut peer) = joined(Way {
        timeout: Duration::from_secs(4),
        retry_cnt: 0,
        ..WAY
    });
    let qpn = a.qp.qpn().0;
    let local = [a.host_mr.sge(0, MIB).unwrap()];
    let from = a.device_mr.remote().at(0, MIB.into()).unwrap();
    a.qp.post_send(1).read(&local, from).post().unwrap();
    peer.hears(READ, 0, 0);
    let mut longest = Duration::ZERO;
    for part in 0..MIB / CHUNK {
        let begin = Instant::now();
        // Together longer than the timeout, each far shorter.
        std::thread::sleep(Duration::from_millis(1300));
        let frame = Frame::new(READ_RESPONSE, qpn, 0).part(MIB, part * CHUNK, CHUNK);
        peer.send(frame, 0x33);
        longest = longest.max(begin.elapsed());
    }
    if longest > Duration::from_secs(3) {
        return false;
    }
    a.completes(1, WcStatus::SUCCESS);
    assert_eq!(a.nic.counters().retransmissions, 0);
    true
}

#[test]
fn write_that_ends_outside_writes_nothing() {
    let (a, mut peer) = joined(WAY);
    let write = Frame::new(WRITE, a.qp.qpn().0, 0);
    // The first frame lies in the region; the message does not.
    let start = DEVICE_VA + DEVICE - u64::from(CHUNK);
    let write = write.at(start, a.device_mr.rkey().0);
    peer.send(write.part(2 * CHUNK, 0, CHUNK), 0xee);
    peer.hears(NAK, ACCESS, 0);
    let at = DEVICE as usize - CHUNK as usize;
    assert!(
        bytes_of(&a.device, at, CHUNK as usize)
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn reset_unbinds_windows_of_the_queue_pair() {
    let (mut a, mut peer) = joined(WAY);
    let qpn = a.qp.qpn().0;
    let mr = a.pd.reg_mapping(a.host.clone(), FULL | Access::MW_BIND).unwrap();
    let mut mw = a.pd.alloc_mw(MwType::Type2).unwrap();
    let bind =
        a.qp.post_send(1)
            .bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE);
    let window = bind.post().unwrap();
    peer.hears(NOP, 0, 0);
    peer.send(Frame::new(ACK, qpn, 0), 0);
    a.completes(1, WcStatus::SUCCESS);
    a.qp.modify(&QpTransition::Reset).unwrap();
    join(&mut a.qp, WAY);
    let write = Frame::new(WRITE, qpn, 0).at(window.addr.0, window.rkey.0);
    peer.send(write.of(8), 0xaa);
    peer.hears(NAK, ACCESS, 0);
    assert_eq!(bytes_of(&a.host, 0, 8), [0; 8]);
}

#[test]
fn srq_limit_event_fires_below_the_limit() {
    let (a, mut peer) = joined(WAY);
    let mut srq = a.pd.create_srq(4, 1).unwrap();
    let mut init = QpInit::new(&a.cq);
    init.srq = Some(&srq);
    let mut qp = a.pd.create_qp(&init).unwrap();
    join(&mut qp, Way { qpn: 0x78, ..WAY });
    for wr_id in 0..4 {
        srq.post_recv(wr_id)
            .post(&[a.host_mr.sge(0, 8).unwrap()])
            .unwrap();
    }
    srq.arm_limit(3).unwrap();
    let events: Vec<usize> = (0..3)
        .map(|msn| {
            let send = Frame::new(SEND, qp.qpn().0, msn).of(8);
            peer.send(Frame { src: 0x78, ..send }, 1);
            peer.hears(ACK, 0, msn);
            std::iter::from_fn(|| a.context.get_async_event().unwrap()).count()
        })
        .collect();
    // Three receives are left after the first message, two after the second.
    assert_eq!(events, [0, 1, 0]);
}

#[test]
fn second_gap_is_reported_too() {
    let (a, mut peer) = joined(WAY);
    let (qpn, key) = (a.qp.qpn().0, a.device_mr.rkey().0);
    let write = |msn| Frame::new(WRITE, qpn, msn).at(DEVICE_VA, key).of(8);
    for msn in [0, 2, 4] {
        peer.send(write(msn), 1);
        peer.hears(ACK, 0, msn);
        peer.send(write(msn + 2), 1);
        peer.hears(NAK, GAP, msn + 1);
        peer.send(write(msn + 1), 1);
        peer.hears(ACK, 0, msn + 1);
    }
}

#[test]
fn rnr_retries_count_per_message() {
    let (mut a, mut peer) = joined(WAY);
    let qpn = a.qp.qpn().0;
    let local = [a.host_mr.sge(0, 8).unwrap()];
    for msn in 0..4 {
        a.qp.post_send(msn).send(&local).post().unwrap();
        for _ in 0..WAY.rnr_retry {
            peer.hears(SEND, 0, msn);
            peer.send(Frame::new(NAK, qpn, msn).refusing(NOT_READY), 0);
        }
        peer.hears(SEND, 0, msn);
        peer.send(Frame::new(ACK, qpn, msn), 0);
        a.completes(msn, WcStatus::SUCCESS);
    }
    a.qp.post_send(4).send(&local).post().unwrap();
    for _ in 0..=WAY.rnr_retry {
        peer.hears(SEND, 0, 4);
        peer.send(Frame::new(NAK, qpn, 4).refusing(NOT_READY), 0);
    }
    a.completes(4, WcStatus::RNR_RETRY_EXC_ERR);
}

#[test]
fn reads_above_max_dest_rd_atomic_are_refused() {
    for reads in [1, 4, 16] {
        let (a, mut peer) = joined(Way { reads, ..WAY });
        a.device.fill(0, DEVICE as usize, 0x11).unwrap();
        let read = |msn| {
            Frame::new(READ, a.qp.qpn().0, msn)
                .at(DEVICE_VA, a.device_mr.rkey().0)
                .of(MIB)
        };
        // Nothing is taken off the cable meanwhile: the first answer does not fit into it.
        for msn in 0..=u64::from(reads) {
            peer.send(read(msn), 0);
        }
        for msn in 0..u64::from(reads) {
            for _ in 0..MIB / CHUNK {
                assert!(peer.hears(READ_RESPONSE, 0, msn).iter().all(|byte| *byte == 0x11));
            }
        }
        peer.hears(NAK, INVALID_REQUEST, reads.into());
        until("the error", || is_in_error(&a, a.qp.qpn().0));
    }
}

/// A read that is repeated while its answer is queued, and one whose answer has left, do not use up
/// the reads that the peer may have outstanding.
#[test]
fn repeated_reads_are_not_outstanding_twice() {
    let (a, mut peer) = joined(Way { reads: 2, ..WAY });
    let (qpn, key) = (a.qp.qpn().0, a.device_mr.rkey().0);
    let read = |msn, len| Frame::new(READ, qpn, msn).at(DEVICE_VA, key).of(len);
    peer.send(read(0, 8), 0);
    peer.hears(READ_RESPONSE, 0, 0);
    peer.send(read(1, MIB), 0);
    peer.send(read(0, 8), 0);
    peer.send(read(0, 8), 0);
    peer.send(read(1, MIB), 0);
    peer.send(read(2, 8), 0);
    for _ in 0..MIB / CHUNK {
        peer.hears(READ_RESPONSE, 0, 1);
    }
    peer.hears(READ_RESPONSE, 0, 0);
    peer.hears(READ_RESPONSE, 0, 2);
    assert!(!is_in_error(&a, qpn));
}

#[test]
fn requester_keeps_max_rd_atomic_reads_outstanding() {
    let (mut a, mut peer) = joined(Way { reads: 2, ..WAY });
    let mut other = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    join(&mut other, Way { qpn: 0x78, ..WAY });
    let local = [a.host_mr.sge(0, 8).unwrap()];
    let from = a.device_mr.remote().at(0, 8).unwrap();
    // The first message of a connection travels alone.
    for (qp, src) in [(&mut a.qp, PEER_QPN), (&mut other, 0x78)] {
        qp.post_send(0).signaled(false).send(&local).post().unwrap();
        peer.hears(SEND, 0, 0);
        peer.send(
            Frame {
                src,
                ..Frame::new(ACK, qp.qpn().0, 0)
            },
            0,
        );
    }
    until("the acknowledgements", || a.nic.counters().rx.control_frames == 2);
    for wr_id in 1..=5 {
        a.qp.post_send(wr_id).read(&local, from).post().unwrap();
    }
    for wr_id in 1..=20 {
        other
            .post_send(wr_id)
            .signaled(false)
            .send(&local)
            .post()
            .unwrap();
    }
    let (mut reads, mut sends) = (0, 0);
    while sends < 20 {
        // Queue pairs take turns, so that a third read would be among these frames.
        match peer.receive().0.kind {
            READ => reads += 1,
            _ => sends += 1,
        }
    }
    assert_eq!(reads, 2, "reads on their way before the first is answered");
    peer.send(Frame::new(READ_RESPONSE, a.qp.qpn().0, 1).of(8), 7);
    peer.hears(READ, 0, 3);
    a.completes(1, WcStatus::SUCCESS);
}

#[test]
fn late_request_of_earlier_connection_is_dropped() {
    let (mut a, mut peer) = joined(Way {
        psn: 1_000_000,
        ..WAY
    });
    let (qpn, key) = (a.qp.qpn().0, a.device_mr.rkey().0);
    serves_write(&a, &mut peer, 1_000_000);
    for (psn, late) in [(50_000u32, 1_000_001u64), (3_000_000, 50_001)] {
        a.qp.modify(&QpTransition::Reset).unwrap();
        join(&mut a.qp, Way { psn, ..WAY });
        let dropped = a.nic.counters().dropped;
        for kind in [WRITE, READ, SEND, SEND_INV, FETCH_ADD, NOP] {
            let total = match kind {
                FETCH_ADD => 16,
                NOP => 0,
                _ => 64,
            };
            peer.send(Frame::new(kind, qpn, late).at(DEVICE_VA, key).of(total), 0xee);
        }
        serves_write(&a, &mut peer, psn.into());
        assert_eq!(a.nic.counters().dropped - dropped, 6, "late frames count");
        assert_eq!(bytes_of(&a.device, 0, 64), [0; 64]);
    }
}

#[test]
fn late_answer_of_earlier_connection_is_dropped() {
    let (mut a, mut peer) = joined(Way {
        psn: 1_000_000,
        ..WAY
    });
    let qpn = a.qp.qpn().0;
    let local = [a.host_mr.sge(0, 8).unwrap()];
    for (psn, late) in [(50_000u32, 1_000_001u64), (3_000_000, 50_001)] {
        a.qp.modify(&QpTransition::Reset).unwrap();
        join(&mut a.qp, Way { psn, ..WAY });
        a.qp.post_send(1).send(&local).post().unwrap();
        peer.hears(SEND, 0, psn.into());
        let dropped = a.nic.counters().dropped;
        peer.send(Frame::new(ACK, qpn, late), 0);
        for code in CODES {
            peer.send(Frame::new(NAK, qpn, late).refusing(code), 0);
        }
        peer.send(Frame::new(READ_RESPONSE, qpn, late).of(8), 0xee);
        peer.send(Frame::new(ACK, qpn, psn.into()), 0);
        a.completes(1, WcStatus::SUCCESS);
        assert_eq!(a.nic.counters().dropped - dropped, 9, "late frames count");
        assert_eq!(bytes_of(&a.host, 0, 8), [0; 8]);
    }
}

/// Both ends reset and reconnect while frames of the old connection are still on the cable.
#[test]
fn reconnected_queue_pairs_survive_late_frames() {
    let (mut a, mut b) = pair();
    let local = [a.host_mr.sge(0, 4096).unwrap()];
    let to = b.device_mr.remote().at(0, 4096).unwrap();
    for round in 0..40 {
        for wr_id in 0..32 {
            a.qp.post_send(wr_id)
                .signaled(false)
                .write(&local, to)
                .post()
                .unwrap();
        }
        a.qp.modify(&QpTransition::Reset).unwrap();
        b.qp.modify(&QpTransition::Reset).unwrap();
        connect(&mut a.qp, &mut b.qp);
        a.qp.post_send(1000 + round).write(&local, to).post().unwrap();
        a.completes(1000 + round, WcStatus::SUCCESS);
    }
}

#[test]
fn to_error_drops_queued_reads() {
    let (mut a, mut peer) = joined(WAY);
    let (qpn, key) = (a.qp.qpn().0, a.device_mr.rkey().0);
    a.device.fill(0, DEVICE as usize, 0x11).unwrap();
    for msn in 0..4 {
        peer.send(Frame::new(READ, qpn, msn).at(DEVICE_VA, key).of(MIB), 0);
    }
    // The first frame of the first answer is on its way and does not fit into the cable.
    until("the requests", || a.nic.counters().rx.control_frames == 4);
    until("the first answer", || a.nic.counters().tx.read.bytes > 0);
    let nic = a.nic.clone();
    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            a.qp.to_error().unwrap();
            // The owner takes its memory back.
            a.device.fill(0, DEVICE as usize, 0x22).unwrap();
        });
        until("the error", || {
            nic.query_qp(QpHandle(qpn)).unwrap() == QpState::ERR
        });
        let mut received = Vec::new();
        loop {
            let (frame, payload) = peer.receive();
            received.extend(payload);
            if frame.kind == NAK {
                assert_eq!((frame.status, frame.msn), (NO_PEER, 3));
                return received;
            }
        }
    });
    assert!(
        received.iter().all(|byte| *byte == 0x11),
        "memory changed since was read"
    );
    assert_eq!(received.len(), CHUNK as usize, "no further frame was sent");
}

/// A refusal takes its turn behind the reads before it; the receives are flushed with it, not
/// earlier.
#[test]
fn refusal_flushes_after_earlier_reads() {
    let (mut a, mut peer) = joined(WAY);
    let (qpn, key) = (a.qp.qpn().0, a.device_mr.rkey().0);
    a.qp.post_recv(5).post(&[a.host_mr.sge(0, 8).unwrap()]).unwrap();
    a.device.fill(0, DEVICE as usize, 0x11).unwrap();
    for msn in 0..2 {
        peer.send(Frame::new(READ, qpn, msn).at(DEVICE_VA, key).of(MIB), 0);
    }
    peer.send(Frame::new(WRITE, qpn, 2).at(DEVICE_VA - 1, key).of(8), 0);
    let (refilled, may_drain) = mpsc::channel();
    let peer = &mut peer;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            // A NIC that flushes too early is given the time to do so; a right one waits for this
            // reader.
            let _ = may_drain.recv_timeout(Duration::from_millis(300));
            for msn in 0..2 {
                for _ in 0..MIB / CHUNK {
                    let payload = peer.hears(READ_RESPONSE, 0, msn);
                    assert!(payload.iter().all(|byte| *byte == 0x11), "memory changed since");
                }
            }
            peer.hears(NAK, ACCESS, 2);
        });
        a.completes(5, WcStatus::WR_FLUSH_ERR);
        a.device.fill(0, DEVICE as usize, 0x22).unwrap();
        let _ = refilled.send(());
        reader.join().expect("reads before the refusal are answered");
    });
}

/// A send that is flushed no longer reads its buffer.
#[test]
fn flush_waits_for_frame_being_sent() {
    let (mut a, mut peer) = joined(WAY);
    let qpn = a.qp.qpn().0;
    a.host.fill(0, HOST, 0x11).unwrap();
    let local = [a.host_mr.sge(0, CHUNK).unwrap()];
    a.qp.post_send(1).send(&local).post().unwrap();
    until("the frame", || a.nic.counters().tx.send.bytes > 0);
    // The frame fills the cable. A refusal ends the connection from the other direction.
    peer.send(Frame::new(WRITE, qpn, 0).at(0, 1).of(8), 0);
    until("the error", || is_in_error(&a, qpn));
    let (refilled, may_drain) = mpsc::channel();
    let peer = &mut peer;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let _ = may_drain.recv_timeout(Duration::from_millis(300));
            peer.hears(SEND, 0, 0)
        });
        a.completes(1, WcStatus::WR_FLUSH_ERR);
        a.host.fill(0, HOST, 0x22).unwrap();
        let _ = refilled.send(());
        let payload = reader.join().unwrap();
        assert!(
            payload.iter().all(|byte| *byte == 0x11),
            "a flushed send was still read"
        );
    });
}

/// A window of type 2 is bound through one queue pair; a send over another one must not invalidate
/// it.
#[test]
fn send_with_inv_needs_binding_qp() {
    let (mut a, mut peer) = joined(WAY);
    let mut other = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    join(&mut other, Way { qpn: 0x78, ..WAY });
    let mr = a.pd.reg_mapping(a.host.clone(), FULL | Access::MW_BIND).unwrap();
    let mut mw = a.pd.alloc_mw(MwType::Type2).unwrap();
    let window =
        a.qp.post_send(1)
            .bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE)
            .post()
            .unwrap();
    peer.hears(NOP, 0, 0);
    peer.send(Frame::new(ACK, a.qp.qpn().0, 0), 0);
    a.completes(1, WcStatus::SUCCESS);
    other
        .post_recv(2)
        .post(&[a.host_mr.sge(8192, 8).unwrap()])
        .unwrap();
    let inv = Frame::new(SEND_INV, other.qpn().0, 0).at(0, window.rkey.0);
    peer.send(Frame { src: 0x78, ..inv }.of(8), 9);
    a.completes(2, WcStatus::REM_INV_REQ_ERR);
    peer.hears(ACK, 0, 0);
    let write = Frame::new(WRITE, a.qp.qpn().0, 0).at(window.addr.0, window.rkey.0);
    peer.send(write.of(8), 0xaa);
    peer.hears(ACK, 0, 0);
    assert_eq!(bytes_of(&a.host, 0, 8), [0xaa; 8], "the window still works");
}

#[test]
fn local_inv_needs_the_windows_domain() {
    let (mut a, mut peer) = joined(WAY);
    let domain = a.context.alloc_pd().unwrap();
    let mr = domain
        .reg_mapping(a.host.clone(), FULL | Access::MW_BIND)
        .unwrap();
    let mut owner = domain.create_qp(&QpInit::new(&a.cq)).unwrap();
    join(&mut owner, Way { qpn: 0x78, ..WAY });
    let mut mw = domain.alloc_mw(MwType::Type2).unwrap();
    let window = owner
        .post_send(1)
        .bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE)
        .post()
        .unwrap();
    peer.hears(NOP, 0, 0);
    peer.send(
        Frame {
            src: 0x78,
            ..Frame::new(ACK, owner.qpn().0, 0)
        },
        0,
    );
    a.completes(1, WcStatus::SUCCESS);
    a.qp.post_send(2).local_inv(window.rkey).post().unwrap();
    a.completes(2, WcStatus::LOC_QP_OP_ERR);
    let write = Frame::new(WRITE, owner.qpn().0, 0).at(window.addr.0, window.rkey.0);
    peer.send(Frame { src: 0x78, ..write }.of(8), 0xaa);
    peer.hears(ACK, 0, 0);
    drop((owner, mw, mr));
}
