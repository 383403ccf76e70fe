//! Malformed frames and floods.

use std::net::Shutdown;

use super::*;

#[test]
fn every_malformed_frame_loses_the_cable() {
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
fn every_truncated_payload_ends_the_connection() {
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

#[test]
fn flood_of_reads_is_bounded_and_refused() {
    let mut attack = Attack::new();
    attack.a.device.fill(0, OFFER as usize, 0x11).unwrap();
    // The attacker reads no answer until it has sent 64 requests.
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
