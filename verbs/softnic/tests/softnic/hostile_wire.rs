//! Attacks of a peer that writes whatever it likes to its cable.
//!
//! The attacker holds: the far end of a cable; the number of the queue pair that is connected to it and
//! its first message number; the key and the address of one region that it was offered (`OFFER` bytes of
//! device memory; read, write and atomic, by its queue pair). The attacker may write any bytes at any
//! time, read or not read the answers, and close the cable. It knows the numbers of other queue pairs.
//!
//! The victim's other memory is registered, in the same domain, with all rights, under a key that the
//! attacker was not given, and is full of `SECRET`. Every attack ends with an error or a counted drop;
//! nothing outside the offer is read or written, and the victim's NIC keeps working.

use std::net::Shutdown;

use gaudi_seam::ErrorKind;
use gaudi_softnic::SoftNic;
use gaudi_verbs::provider::{Device, MwType, QpHandle, QpState};
use gaudi_verbs::{Access, Mr, MrAddr, QpAddress, QpInit, Qpn, WcStatus};

use crate::node::*;
use crate::peer::*;

/// Bytes of device memory that the attacker was offered, from the start of the window.
const OFFER: u64 = 65_536;
const SECRET: u8 = 0x5e;
/// What the attacker writes.
const EVIL: u8 = 0xee;

const RIGHTS: Access = FULL.union(Access::REMOTE_ATOMIC);

/// A victim and its attacker.
struct Attack {
    // Before the node's own objects, which it stands on.
    offer: Mr,
    a: Node,
    peer: Peer,
    /// Everything that the attacker has received.
    loot: Vec<u8>,
}

impl Attack {
    fn new() -> Self {
        Self::with_rights(RIGHTS)
    }

    fn with_rights(rights: Access) -> Self {
        let (a, peer) = against_a_peer(rights);
        Self::on(a, peer)
    }

    fn on(mut a: Node, peer: Peer) -> Self {
        let window = a.window.window(0, OFFER).unwrap();
        let offer = a.pd.reg_dmabuf_mr(&window, MrAddr(DEVICE_VA), RIGHTS).unwrap();
        a.host.fill(0, HOST, SECRET).unwrap();
        let rest = DEVICE as usize - OFFER as usize;
        a.device.fill(OFFER as usize, rest, SECRET).unwrap();
        // One receive, into memory that the attacker may fill by sends.
        a.qp.post_recv(50)
            .post(&[a.device_mr.sge(0, 64).unwrap()])
            .unwrap();
        Self {
            offer,
            a,
            peer,
            loot: Vec::new(),
        }
    }

    fn frame(&self, kind: u8, msn: u64) -> Frame {
        Frame::new(kind, self.a.qp.qpn().0, msn)
    }

    /// A frame about the offer.
    fn aimed(&self, kind: u8, msn: u64) -> Frame {
        self.frame(kind, msn).at(DEVICE_VA, self.offer.rkey().0)
    }

    fn send(&mut self, frame: Frame) {
        self.peer.send(frame, EVIL);
    }

    fn hears(&mut self, kind: u8, status: u8, msn: u64) -> Vec<u8> {
        let payload = self.peer.hears(kind, status, msn);
        self.loot.extend(&payload);
        payload
    }

    fn state(&self) -> QpState {
        self.a.nic.query_qp(QpHandle(self.a.qp.qpn().0)).unwrap()
    }

    /// Nothing but the offer was read or written.
    #[track_caller]
    fn harmless(&mut self) {
        let rest = DEVICE as usize - OFFER as usize;
        let intact = |bytes: Vec<u8>| bytes.iter().all(|byte| *byte == SECRET);
        assert!(intact(bytes_of(&self.a.host, 0, HOST)), "host memory was written");
        assert!(
            intact(bytes_of(&self.a.device, OFFER as usize, rest)),
            "device memory outside the offer was written"
        );
        let leaked = self.loot.windows(4).any(|bytes| bytes == [SECRET; 4]);
        assert!(!leaked, "memory outside the offer was read");
    }

    /// The queue pair still serves the offer; message `msn` is the next.
    #[track_caller]
    fn survives(mut self, msn: u64) {
        assert_eq!(self.state(), QpState::RTS);
        let write = self.aimed(WRITE, msn).of(8);
        self.send(write);
        self.hears(ACK, 0, msn);
        self.harmless();
        assert!(self.a.nic.cable_error().is_none());
    }

    /// The queue pair refused message `msn` and is in error; the cable and the NIC are not.
    #[track_caller]
    fn ends_refused(mut self, status: u8, msn: u64) {
        self.hears(NAK, status, msn);
        self.a.completes(50, WcStatus::WR_FLUSH_ERR);
        assert_eq!(self.state(), QpState::ERR);
        self.harmless();
        assert!(self.a.nic.cable_error().is_none());
    }

    /// The cable is down because of what the attacker sent.
    #[track_caller]
    fn loses_the_cable(mut self, kind: ErrorKind) {
        until("the end of the cable", || self.a.nic.cable_error().is_some());
        assert_eq!(self.a.nic.cable_error().unwrap().kind(), kind);
        self.a.completes(50, WcStatus::WR_FLUSH_ERR);
        let rest = self.peer.rest();
        self.loot.extend(rest);
        self.harmless();
    }

    fn dropped(&self) -> u64 {
        self.a.nic.counters().dropped
    }
}

// Numbers of queue pairs and messages.

#[test]
fn forged_destination_qpn_is_refused() {
    let mut attack = Attack::new();
    let qpn = attack.a.qp.qpn().0;
    for dst in [0, 1, qpn ^ 1, qpn ^ 0x80_0000, 0xff_ffff] {
        let forged = Frame {
            dst,
            ..attack.aimed(WRITE, 0).of(64)
        };
        attack.send(forged);
        attack.hears(NAK, NO_PEER, 0);
    }
    assert_eq!(bytes_of(&attack.a.device, 0, 64), [0; 64]);
    attack.survives(0);
}

#[test]
fn forged_source_qpn_is_refused() {
    let mut attack = Attack::new();
    for src in [0, PEER_QPN + 1, attack.a.qp.qpn().0] {
        for kind in [WRITE, READ, SEND, NOP] {
            let frame = Frame {
                src,
                ..attack.aimed(kind, 0)
            };
            attack.send(if kind == NOP { frame } else { frame.of(64) });
            attack.hears(NAK, NO_PEER, 0);
        }
    }
    assert_eq!(bytes_of(&attack.a.device, 0, 64), [0; 64]);
    attack.survives(0);
}

#[test]
fn frames_over_another_cable_are_refused() {
    let nic = SoftNic::unplugged("softnic0", Default::default()).unwrap();
    let mut owner = Peer::plugged_into(&nic);
    owner.raw(&hello([1; 16]));
    let mut thief = Peer::plugged_into(&nic);
    thief.raw(&hello([2; 16]));
    let mut a = Node::new(nic);
    a.qp.connect(&PEER, RIGHTS).unwrap();
    let mut attack = Attack::on(a, thief);
    let local = [attack.a.device_mr.sge(0, 8).unwrap()];
    attack
        .a
        .qp
        .post_send(1)
        .read(&local, attack.offer.remote().at(0, 8).unwrap())
        .post()
        .unwrap();
    let (asked, _) = owner.receive();
    for kind in [WRITE, READ, SEND, SEND_INV] {
        let frame = attack.aimed(kind, 0).of(64);
        attack.send(frame);
        attack.hears(NAK, NO_PEER, 0);
    }
    // Answers over the wrong cable complete nothing.
    let dropped = attack.dropped();
    let msn = asked.msn;
    let answers = [attack.frame(ACK, msn), attack.frame(READ_RESPONSE, msn).of(8)];
    for answer in answers {
        attack.send(answer);
    }
    let refusal = attack.frame(NAK, msn).refusing(NO_PEER);
    attack.send(refusal);
    until("the drops", || attack.dropped() - dropped == 3);
    attack.a.nothing_completes();
    assert_eq!(bytes_of(&attack.a.device, 0, 64), [0; 64]);
    attack.harmless();
    let right = attack.frame(READ_RESPONSE, msn).of(8);
    owner.send(right, 1);
    attack.a.completes(1, WcStatus::SUCCESS);
}

#[test]
fn requests_outside_psn_window_are_dropped() {
    let mut attack = Attack::new();
    let dropped = attack.dropped();
    let msns = [1 << 13, 1 << 23, (1 << 24) - 1, 1 << 40, u64::MAX - 1, u64::MAX];
    for msn in msns {
        for kind in [WRITE, READ, SEND, SEND_INV, FETCH_ADD] {
            let total = if kind == FETCH_ADD { 16 } else { 64 };
            let frame = attack.aimed(kind, msn).of(total);
            attack.send(frame);
        }
    }
    until("the drops", || {
        attack.dropped() - dropped == 5 * msns.len() as u64
    });
    assert_eq!(bytes_of(&attack.a.device, 0, 64), [0; 64]);
    attack.survives(0);
}

#[test]
fn requests_before_first_psn_are_dropped() {
    let nic = SoftNic::unplugged("softnic0", Default::default()).unwrap();
    let peer = Peer::plugged_into(&nic);
    let mut a = Node::new(nic);
    let psn = gaudi_verbs::Psn(100);
    a.qp.connect(&QpAddress { psn, ..PEER }, RIGHTS).unwrap();
    let mut attack = Attack::on(a, peer);
    let dropped = attack.dropped();
    for msn in [0, 50, 99] {
        for kind in [WRITE, READ, SEND] {
            let frame = attack.aimed(kind, msn).of(64);
            attack.send(frame);
        }
    }
    until("the drops", || attack.dropped() - dropped == 9);
    attack.survives(100);
}

#[test]
fn gap_in_window_asks_for_the_missing_message() {
    let mut attack = Attack::new();
    let (first, late) = (attack.aimed(WRITE, 0).of(8), attack.aimed(WRITE, 2).of(64));
    attack.send(first);
    attack.hears(ACK, 0, 0);
    attack.send(late);
    attack.hears(NAK, GAP, 1);
    assert_eq!(bytes_of(&attack.a.device, 8, 56), [0; 56]);
    attack.survives(1);
}

// Answers.

#[test]
fn answers_to_unsent_psn_are_dropped() {
    let mut attack = Attack::new();
    let dropped = attack.dropped();
    for msn in [0, 1, 1 << 23, u64::MAX] {
        let (ack, data) = (attack.frame(ACK, msn), attack.frame(READ_RESPONSE, msn).of(64));
        attack.send(ack);
        attack.send(data);
        for code in CODES {
            let refusal = attack.frame(NAK, msn).refusing(code);
            attack.send(refusal);
        }
    }
    until("the drops", || attack.dropped() - dropped == 4 * 9);
    attack.survives(0);
}

/// A queue pair with one outstanding request, and the number of that message.
fn outstanding(read: bool) -> (Attack, u64) {
    let mut attack = Attack::new();
    let local = [attack.a.device_mr.sge(0, 64).unwrap()];
    let post = attack.a.qp.post_send(1);
    let from = attack.offer.remote().at(0, 64).unwrap();
    if read {
        post.read(&local, from)
    } else {
        post.write(&local, from)
    }
    .post()
    .unwrap();
    let (asked, _) = attack.peer.receive();
    assert_eq!(asked.kind, if read { READ } else { WRITE });
    (attack, asked.msn)
}

#[test]
fn read_response_to_a_write_is_a_bad_response() {
    let (mut attack, msn) = outstanding(false);
    let answer = attack.frame(READ_RESPONSE, msn).of(64);
    attack.send(answer);
    attack.a.completes(1, WcStatus::BAD_RESP_ERR);
    attack.a.completes(50, WcStatus::WR_FLUSH_ERR);
    attack.harmless();
}

#[test]
fn read_response_of_another_length_is_a_bad_response() {
    for (total, offset, payload) in [(65, 0, 65), (63, 0, 63), (8, 0, 8), (CHUNK, 0, CHUNK), (0, 0, 0)] {
        let (mut attack, msn) = outstanding(true);
        let answer = attack.frame(READ_RESPONSE, msn).part(total, offset, payload);
        attack.send(answer);
        attack.a.completes(1, WcStatus::BAD_RESP_ERR);
        assert_eq!(bytes_of(&attack.a.device, 0, 64), [0; 64]);
        attack.harmless();
    }
}

#[test]
fn read_response_out_of_order_is_dropped() {
    let (mut attack, msn) = outstanding(true);
    let dropped = attack.dropped();
    for (offset, payload) in [(32, 16), (1, 8), (16, 16)] {
        let answer = attack.frame(READ_RESPONSE, msn).part(64, offset, payload);
        attack.send(answer);
    }
    until("the drops", || attack.dropped() - dropped == 3);
    assert_eq!(bytes_of(&attack.a.device, 0, 64), [0; 64]);
    let whole = attack.frame(READ_RESPONSE, msn).of(64);
    attack.send(whole);
    attack.a.completes(1, WcStatus::SUCCESS);
    attack.survives(0);
}

#[test]
fn read_response_after_reset_is_dropped() {
    let (mut attack, msn) = outstanding(true);
    attack
        .a
        .qp
        .modify(&gaudi_verbs::provider::QpTransition::Reset)
        .unwrap();
    let dropped = attack.dropped();
    let answer = attack.frame(READ_RESPONSE, msn).of(64);
    attack.send(answer);
    until("the drop", || attack.dropped() - dropped == 1);
    assert_eq!(bytes_of(&attack.a.device, 0, 64), [0; 64]);
    attack.harmless();
}

#[test]
fn ack_of_a_read_without_data_repeats_the_read() {
    let (mut attack, msn) = outstanding(true);
    let ack = attack.frame(ACK, msn);
    attack.send(ack);
    attack.hears(READ, 0, msn);
    attack.a.nothing_completes();
    let whole = attack.frame(READ_RESPONSE, msn).of(64);
    attack.send(whole);
    attack.a.completes(1, WcStatus::SUCCESS);
    attack.survives(0);
}

// Keys, bounds and rights.

#[test]
fn keys_near_the_offered_one_are_refused() {
    let key = Attack::new().offer.rkey().0;
    let steps = [1, 0x100, 0x9e37_79b1, 0x8000_0000u32];
    for (index, step) in steps.into_iter().enumerate() {
        let mut attack = Attack::new();
        let own = attack.offer.rkey().0;
        let forged = if index % 2 == 0 {
            own.wrapping_add(step)
        } else {
            own ^ step
        };
        let kind = if index < 2 { WRITE } else { READ };
        let frame = attack.frame(kind, 0).at(attack.a.host_mr.addr().0, forged).of(64);
        attack.send(frame);
        attack.ends_refused(ACCESS, 0);
    }
    // A key of a NIC that is closed, and no key at all.
    for forged in [key, 0] {
        let mut attack = Attack::new();
        let frame = attack.aimed(WRITE, 0).at(DEVICE_VA, forged).of(64);
        attack.send(frame);
        attack.ends_refused(ACCESS, 0);
    }
}

#[test]
fn ranges_beyond_the_region_are_refused() {
    for (addr, len) in [
        (DEVICE_VA - 1, 64),
        (DEVICE_VA + OFFER - 63, 64),
        (DEVICE_VA + OFFER, 1),
        (DEVICE_VA, OFFER as u32 + 1),
        (u64::MAX - 3, 64),
        (0, 64),
    ] {
        for kind in [WRITE, READ] {
            let mut attack = Attack::new();
            let frame = attack.frame(kind, 0).at(addr, attack.offer.rkey().0).of(len);
            attack.send(frame);
            attack.ends_refused(ACCESS, 0);
        }
    }
}

#[test]
fn address_that_wraps_in_a_later_frame_is_refused() {
    let mut attack = Attack::new();
    // The whole message would end beyond the address space; its first part alone would not.
    let start = 0u64.wrapping_sub(u64::from(CHUNK));
    let frame = attack.frame(WRITE, 0).at(start, attack.offer.rkey().0);
    attack.send(frame.part(2 * CHUNK, 0, CHUNK));
    attack.ends_refused(ACCESS, 0);
}

#[test]
fn message_longer_than_announced_loses_the_cable() {
    for (total, offset, payload) in [
        (64, 0, 65),
        (64, 64, 1),
        (64, 32, 33),
        (64, u32::MAX, 64),
        (0, 0, 1),
    ] {
        let mut attack = Attack::new();
        let frame = attack.aimed(WRITE, 0).part(total, offset, payload);
        attack.peer.raw(&frame.bytes());
        attack.loses_the_cable(ErrorKind::Protocol);
    }
}

#[test]
fn message_that_changes_in_the_middle_is_refused() {
    let foreign = |attack: &Attack| attack.a.host_mr.rkey().0 ^ 1;
    for change in 0..6 {
        let mut attack = Attack::new();
        let first = attack.aimed(WRITE, 0).part(64, 0, 32);
        let next = attack.aimed(WRITE, 0).part(64, 32, 32);
        attack.send(first);
        let next = match change {
            0 => next.at(DEVICE_VA + 8, next.rkey),
            1 => next.at(next.raddr, foreign(&attack)),
            2 => Frame {
                total: 1 << 20,
                ..next
            },
            3 => Frame {
                kind: WRITE_IMM,
                ..next
            },
            4 => Frame { imm: 1, ..next },
            _ => Frame { flags: 1, ..next },
        };
        attack.send(next);
        attack.ends_refused(INVALID_REQUEST, 0);
    }
}

#[test]
fn operation_without_the_right_is_refused() {
    for (rights, kind) in [
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, READ),
        (Access::LOCAL_WRITE | Access::REMOTE_READ, WRITE),
        (Access::LOCAL_WRITE | Access::REMOTE_READ, WRITE_IMM),
        (FULL, FETCH_ADD),
        (FULL, COMPARE_SWAP),
    ] {
        let mut attack = Attack::with_rights(rights);
        let total = if kind >= FETCH_ADD { 16 } else { 64 };
        let frame = attack.aimed(kind, 0).of(total);
        attack.send(frame);
        attack.hears(NAK, INVALID_REQUEST, 0);
        assert_eq!(bytes_of(&attack.a.device, 0, 64), [0; 64]);
        attack.harmless();
    }
}

#[test]
fn unaligned_atomics_are_refused() {
    for offset in 1..8 {
        for kind in [FETCH_ADD, COMPARE_SWAP] {
            let mut attack = Attack::new();
            let key = attack.offer.rkey().0;
            let frame = attack.frame(kind, 0).at(DEVICE_VA + offset, key).of(16);
            attack.send(frame);
            attack.ends_refused(INVALID_REQUEST, 0);
        }
    }
}

#[test]
fn atomics_outside_the_region_are_refused() {
    for addr in [DEVICE_VA - 8, DEVICE_VA + OFFER, u64::MAX - 7] {
        let mut attack = Attack::new();
        let frame = attack.frame(FETCH_ADD, 0).at(addr, attack.offer.rkey().0).of(16);
        attack.send(frame);
        attack.ends_refused(ACCESS, 0);
    }
}

#[test]
fn repeated_atomic_is_done_once() {
    let mut attack = Attack::new();
    let frame = attack.aimed(FETCH_ADD, 0).of(16);
    for _ in 0..3 {
        // Three times the same message: each is answered with what the first one found.
        attack.peer.send(frame, 1);
        assert_eq!(attack.hears(READ_RESPONSE, 0, 0), [0; 8]);
    }
    assert_eq!(bytes_of(&attack.a.device, 0, 8), [1; 8]);
    attack.survives(1);
}

#[test]
fn repeated_read_of_a_dead_region_gets_no_data() {
    let (a, peer) = against_a_peer(RIGHTS);
    let mut attack = Attack::on(a, peer);
    let read = attack.aimed(READ, 0).of(64);
    attack.send(read);
    attack.hears(READ_RESPONSE, 0, 0);
    let dropped = attack.dropped();
    let Attack {
        offer, a, mut peer, ..
    } = attack;
    offer.close().unwrap();
    a.device.fill(0, 64, SECRET).unwrap();
    peer.send(read, 0);
    until("the drop", || a.nic.counters().dropped > dropped);
    let late = Frame { msn: 1, ..read };
    peer.send(late, 0);
    // The refusal is the next answer: the repeated read got none.
    peer.hears(NAK, ACCESS, 1);
}

// Windows.

#[test]
fn foreign_windows_are_not_invalidated() {
    let mut attack = Attack::new();
    let domain = attack.a.context.alloc_pd().unwrap();
    let mut owner = domain.create_qp(&QpInit::new(&attack.a.cq)).unwrap();
    owner
        .connect(
            &QpAddress {
                qpn: Qpn(0x78),
                ..PEER
            },
            RIGHTS,
        )
        .unwrap();
    let mr = domain
        .reg_mapping(attack.a.host.clone(), RIGHTS | Access::MW_BIND)
        .unwrap();
    let mut mw = domain.alloc_mw(MwType::Type2).unwrap();
    let bind = owner
        .post_send(1)
        .bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_READ);
    let window = bind.post().unwrap();
    let (nop, _) = attack.peer.receive();
    attack.send(Frame {
        src: 0x78,
        ..Frame::new(ACK, owner.qpn().0, nop.msn)
    });
    attack.a.completes(1, WcStatus::SUCCESS);
    let frame = attack.frame(SEND_INV, 0).at(0, window.rkey.0).of(8);
    attack.send(frame);
    attack.hears(ACK, 0, 0);
    attack.a.completes(50, WcStatus::REM_INV_REQ_ERR);
    attack.harmless();
    // The owner's peer still reads through it.
    let read = Frame::new(READ, owner.qpn().0, 0).at(window.addr.0, window.rkey.0);
    attack.peer.send(Frame { src: 0x78, ..read }.of(8), 0);
    assert_eq!(attack.peer.hears(READ_RESPONSE, 0, 0), [SECRET; 8]);
}

#[test]
fn region_key_is_not_invalidated_by_a_send() {
    let mut attack = Attack::new();
    let frame = attack.aimed(SEND_INV, 0).of(8);
    attack.send(frame);
    attack.hears(ACK, 0, 0);
    attack.a.completes(50, WcStatus::REM_INV_REQ_ERR);
    assert!(attack.a.nic.mr_state(attack.offer.handle()).is_ok());
    attack.harmless();
}

#[test]
fn window_of_another_queue_pair_is_refused() {
    let mut attack = Attack::new();
    let mut owner = attack.a.pd.create_qp(&QpInit::new(&attack.a.cq)).unwrap();
    owner
        .connect(
            &QpAddress {
                qpn: Qpn(0x78),
                ..PEER
            },
            RIGHTS,
        )
        .unwrap();
    let access = RIGHTS | Access::MW_BIND;
    let mr = attack.a.pd.reg_mapping(attack.a.host.clone(), access).unwrap();
    let mut mw = attack.a.pd.alloc_mw(MwType::Type2).unwrap();
    let bind = owner
        .post_send(1)
        .bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_READ);
    let window = bind.post().unwrap();
    let (nop, _) = attack.peer.receive();
    attack.send(Frame {
        src: 0x78,
        ..Frame::new(ACK, owner.qpn().0, nop.msn)
    });
    attack.a.completes(1, WcStatus::SUCCESS);
    let frame = attack.frame(READ, 0).at(window.addr.0, window.rkey.0).of(8);
    attack.send(frame);
    attack.ends_refused(ACCESS, 0);
}

// Addresses.

#[test]
fn gid_of_a_live_cable_is_not_taken_over() {
    let nic = SoftNic::unplugged("softnic0", Default::default()).unwrap();
    // The thief's cable is the older one: it comes first wherever cables are searched.
    let mut thief = Peer::plugged_into(&nic);
    let mut owner = Peer::plugged_into(&nic);
    owner.raw(&hello([1; 16]));
    until("the hello", || nic.counters().rx.control_frames == 1);
    thief.raw(&hello([1; 16]));
    until("the refusal", || nic.cable_error().is_some());
    assert_eq!(nic.cable_error().unwrap().kind(), ErrorKind::Protocol);
    let mut a = Node::new(nic);
    a.qp.connect(&PEER, RIGHTS).unwrap();
    let local = [a.host_mr.sge(0, 8).unwrap()];
    a.qp.post_send(1).send(&local).post().unwrap();
    assert_eq!(owner.receive().0.kind, SEND);
    // The NIC's hello may have left before the cable went down.
    assert!(thief.rest().len() <= HEADER, "the thief receives other frames");
}

#[test]
fn gid_of_the_victim_is_not_taken_over() {
    let mut attack = Attack::new();
    let own = hello(attack.a.nic.gid().0);
    attack.peer.raw(&own);
    attack.loses_the_cable(ErrorKind::Protocol);
}

#[test]
fn gid_is_not_changed_later() {
    let mut attack = Attack::new();
    attack.peer.raw(&hello([1; 16]));
    attack.peer.raw(&hello([3; 16]));
    attack.loses_the_cable(ErrorKind::Protocol);
}

#[test]
fn datagrams_with_a_wrong_qkey_or_target_are_dropped() {
    let mut attack = Attack::new();
    let mut ud = attack.a.pd.create_ud_qp(&QpInit::new(&attack.a.cq)).unwrap();
    ud.activate(0x1234).unwrap();
    let room = [attack.a.device_mr.sge(1024, 2048).unwrap()];
    ud.post_recv(60).post(&room).unwrap();
    let rc = attack.a.qp.qpn().0;
    for (dst, qkey, total) in [
        (ud.qpn().0, 0x1235, 64),
        (ud.qpn().0, 0, 64),
        (rc, 0x1234, 64),
        (0xff_fffe, 0x1234, 64),
        // It does not fit behind the route header.
        (ud.qpn().0, 0x1234, 2048 - 39),
    ] {
        let datagram = Frame {
            dst,
            ..attack.frame(DATAGRAM, 0).at(0, qkey).of(total)
        };
        attack.send(datagram);
    }
    // A connection's request to a datagram queue pair.
    let request = Frame {
        dst: ud.qpn().0,
        ..attack.aimed(WRITE, 0).of(64)
    };
    attack.send(request);
    attack.hears(NAK, NO_PEER, 0);
    assert_eq!(attack.a.nic.counters().datagrams_dropped, 5);
    attack.a.nothing_completes();
    assert_eq!(bytes_of(&attack.a.device, 1024, 2048), [0; 2048]);
    attack.survives(0);
}

// Malformed frames.

#[test]
fn malformed_frames_of_every_kind_lose_the_cable() {
    for kind in KINDS {
        for fault in 0..8 {
            let mut attack = Attack::new();
            let total = if matches!(kind, FETCH_ADD | COMPARE_SWAP) {
                16
            } else {
                64
            };
            let mut frame = attack.aimed(kind, 0).of(total);
            if kind == NAK {
                frame.status = NO_PEER;
            }
            let mut bytes = frame.bytes();
            match fault {
                0 => bytes[0] ^= 1,
                1 => bytes[4] = 3,
                2 => bytes[6] |= 8,
                3 => bytes[7] = 99,
                4 => bytes[11] = 1,
                5 => bytes[15] = 1,
                6 => bytes[55] = 1,
                _ => bytes[51] = 0x80,
            }
            attack.peer.raw(&bytes);
            attack.loses_the_cable(ErrorKind::Protocol);
        }
    }
}

#[test]
fn unknown_kinds_lose_the_cable() {
    for kind in (0..=255).filter(|kind| !KINDS.contains(kind)).step_by(16) {
        let mut attack = Attack::new();
        let frame = attack.aimed(kind, 0);
        attack.peer.raw(&frame.bytes());
        attack.loses_the_cable(ErrorKind::Protocol);
    }
}

#[test]
fn payload_where_none_belongs_loses_the_cable() {
    for kind in [READ, ACK, NOP, HELLO] {
        for (offset, payload) in [(0, 8), (8, 0)] {
            let mut attack = Attack::new();
            let frame = attack.aimed(kind, 0).part(64, offset, payload);
            attack.peer.raw(&frame.bytes());
            attack.loses_the_cable(ErrorKind::Protocol);
        }
    }
    for total in [0, 8, 15, 17, 64] {
        let mut attack = Attack::new();
        let frame = attack.aimed(FETCH_ADD, 0).of(total);
        attack.peer.raw(&frame.bytes());
        attack.loses_the_cable(ErrorKind::Protocol);
    }
}

#[test]
fn oversized_frames_and_messages_lose_the_cable() {
    for (total, payload) in [
        ((1 << 30) + 1, 8),
        (u32::MAX, CHUNK),
        (CHUNK + 1, CHUNK + 1),
        (u32::MAX, u32::MAX),
    ] {
        let mut attack = Attack::new();
        let frame = attack.aimed(WRITE, 0).part(total, 0, payload);
        attack.peer.raw(&frame.bytes());
        attack.loses_the_cable(ErrorKind::Protocol);
    }
    let mut attack = Attack::new();
    let frame = attack.frame(DATAGRAM, 0).of(4097);
    attack.peer.raw(&frame.bytes());
    attack.loses_the_cable(ErrorKind::Protocol);
}

#[test]
fn truncated_headers_end_the_connection() {
    for len in [1, 4, 8, 16, 40, 55] {
        let mut attack = Attack::new();
        let bytes = attack.aimed(WRITE, 0).of(64).bytes();
        attack.peer.raw(&bytes[..len]);
        attack.peer.socket.shutdown(Shutdown::Write).unwrap();
        attack.loses_the_cable(ErrorKind::Disconnected);
    }
}

#[test]
fn truncated_payload_of_every_kind_ends_the_connection() {
    for kind in KINDS {
        let (mut attack, msn) = if kind == READ_RESPONSE {
            outstanding(true)
        } else {
            (Attack::new(), 0)
        };
        let total = if matches!(kind, FETCH_ADD | COMPARE_SWAP) {
            16
        } else {
            64
        };
        let frame = attack.aimed(kind, msn).of(total);
        if !frame.carries() {
            continue;
        }
        let mut bytes = frame.bytes().to_vec();
        bytes.resize(HEADER + total as usize - 1, EVIL);
        attack.peer.raw(&bytes);
        attack.peer.socket.shutdown(Shutdown::Write).unwrap();
        until("the end of the cable", || attack.a.nic.cable_error().is_some());
        assert_eq!(
            attack.a.nic.cable_error().unwrap().kind(),
            ErrorKind::Disconnected
        );
        if kind == READ_RESPONSE {
            attack.a.completes(1, WcStatus::RETRY_EXC_ERR);
        }
        attack.a.completes(50, WcStatus::WR_FLUSH_ERR);
        if kind == FETCH_ADD || kind == COMPARE_SWAP {
            assert_eq!(
                bytes_of(&attack.a.device, 0, 8),
                [0; 8],
                "half an atomic was done"
            );
        }
        attack.harmless();
    }
}

// Floods.

#[test]
fn flood_of_reads_is_bounded_and_refused() {
    let mut attack = Attack::new();
    attack.a.device.fill(0, OFFER as usize, 0x11).unwrap();
    // The attacker takes no answer off the cable until it has asked 64 times.
    for msn in 0..64 {
        let read = attack.aimed(READ, msn).of(OFFER as u32);
        attack.send(read);
    }
    until("the requests", || attack.a.nic.counters().rx.control_frames == 64);
    let mut answered = 0;
    loop {
        let (frame, payload) = attack.peer.receive();
        attack.loot.extend(payload);
        if frame.kind == NAK {
            assert_eq!(frame.status, INVALID_REQUEST);
            break;
        }
        answered += 1;
    }
    assert!(answered < 64, "{answered} answers");
    attack.a.completes(50, WcStatus::WR_FLUSH_ERR);
    attack.harmless();
}

#[test]
fn flood_of_repeated_reads_is_bounded() {
    let mut attack = Attack::new();
    attack.a.device.fill(0, OFFER as usize, 0x11).unwrap();
    for msn in 0..16 {
        let read = attack.aimed(READ, msn).of(8);
        attack.send(read);
        attack.hears(READ_RESPONSE, 0, msn);
    }
    let dropped = attack.dropped();
    for round in 0..200 {
        let again = attack.aimed(READ, round % 16).of(OFFER as u32);
        attack.send(again);
    }
    until("the requests", || attack.dropped() - dropped == 200);
    let end = attack.aimed(WRITE, 16).of(8);
    attack.send(end);
    let mut answered = 0;
    while attack.peer.receive().0.kind == READ_RESPONSE {
        answered += 1;
    }
    assert!(answered < 200, "{answered} answers to 200 repetitions");
    attack.survives(17);
}

#[test]
fn flood_of_gaps_is_answered_once() {
    let mut attack = Attack::new();
    let first = attack.aimed(WRITE, 0).of(8);
    attack.send(first);
    attack.hears(ACK, 0, 0);
    let dropped = attack.dropped();
    for msn in 2..1002 {
        let late = attack.aimed(WRITE, msn).of(8);
        attack.send(late);
    }
    until("the drops", || attack.dropped() - dropped == 1000);
    attack.hears(NAK, GAP, 1);
    attack.survives(1);
}

#[test]
fn sends_beyond_the_receive_are_refused() {
    for kind in [SEND, SEND_IMM, SEND_INV] {
        let mut attack = Attack::new();
        let frame = attack.frame(kind, 0).of(65);
        attack.send(frame);
        attack.hears(NAK, INVALID_REQUEST, 0);
        attack.a.completes(50, WcStatus::LOC_LEN_ERR);
        assert_eq!(bytes_of(&attack.a.device, 0, 128), [0; 128]);
        attack.harmless();
    }
}

#[test]
fn sends_without_a_receive_touch_nothing() {
    let mut attack = Attack::new();
    let first = attack.frame(SEND, 0).of(64);
    attack.send(first);
    attack.hears(ACK, 0, 0);
    attack.a.completes(50, WcStatus::SUCCESS);
    let before = bytes_of(&attack.a.device, 0, OFFER as usize);
    for kind in [SEND, SEND_IMM, SEND_INV, WRITE_IMM] {
        let frame = attack.aimed(kind, 1).of(64);
        attack.send(frame);
        attack.hears(NAK, NOT_READY, 1);
    }
    assert!(bytes_of(&attack.a.device, 0, OFFER as usize) == before);
    attack.survives(1);
}
