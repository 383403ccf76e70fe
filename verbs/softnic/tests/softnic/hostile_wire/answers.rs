//! Forged numbers of queue pairs and messages, and answers without a request.

use gaudi_softnic::SoftNic;
use gaudi_verbs::QpAddress;

use super::*;

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
fn window_gap_requests_the_missing_message() {
    let mut attack = Attack::new();
    let (first, late) = (attack.aimed(WRITE, 0).of(8), attack.aimed(WRITE, 2).of(64));
    attack.send(first);
    attack.hears(ACK, 0, 0);
    attack.send(late);
    attack.hears(NAK, GAP, 1);
    assert_eq!(bytes_of(&attack.a.device, 8, 56), [0; 56]);
    attack.survives(1);
}

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

#[test]
fn read_response_to_write_is_bad() {
    let (mut attack, msn) = outstanding(false);
    let answer = attack.frame(READ_RESPONSE, msn).of(64);
    attack.send(answer);
    attack.a.completes(1, WcStatus::BAD_RESP_ERR);
    attack.a.completes(50, WcStatus::WR_FLUSH_ERR);
    attack.harmless();
}

#[test]
fn read_response_of_wrong_length_is_bad() {
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
fn ack_of_read_without_data_retries() {
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
