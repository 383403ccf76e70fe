//! Keys, bounds, rights and windows.

use gaudi_verbs::provider::MwType;
use gaudi_verbs::{QpAddress, QpInit, Qpn};

use super::*;

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
fn wrapping_address_in_later_frame_is_refused() {
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
fn message_changed_midway_is_refused() {
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
        // The same message three times: each is answered with the result of the first.
        attack.peer.send(frame, 1);
        assert_eq!(attack.hears(READ_RESPONSE, 0, 0), [0; 8]);
    }
    assert_eq!(bytes_of(&attack.a.device, 0, 8), [1; 8]);
    attack.survives(1);
}

#[test]
fn repeated_read_of_dead_region_fails() {
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
fn send_does_not_invalidate_region_key() {
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
