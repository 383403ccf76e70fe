//! Attacks on the serving end: requests for staged copies.

use std::time::{Duration, Instant};

use gaudi_device::Buffer;
use gaudi_remote::{ErrorKind, Rights};
use gaudi_verbs::WcStatus;

use crate::attacker::{FETCH, LEN, MESSAGE, STORE, Scene, Seen, message};
use crate::nodes::{MAX_WAIT, Setup, noise};

/// A stage of four slots of 64 KiB.
fn setup() -> Setup {
    Setup::staged().chunks(64 << 10, 4)
}

/// The scene, a buffer with `noise(4, LEN)` that is offered to the attacker, and the offer.
fn scene(name: &str, rights: Rights) -> (Scene, Buffer, Seen) {
    let mut scene = Scene::new(name, &setup());
    let memory = scene.victim.buffer(LEN, 4);
    let seen = scene.offer(&memory, rights).expect("offered");
    (scene, memory, seen)
}

/// Checks that nothing was stored, and ends the scene.
fn end(scene: Scene, memory: Buffer) {
    assert!(
        scene.victim.bytes(&memory) == noise(4, LEN as usize),
        "nothing was stored"
    );
    drop(memory);
    scene.end();
}

/// Sends what breaks the protocol: the victim ends the connection and reports why.
fn breaks_protocol(name: &str, bytes: &[u8]) {
    let (mut scene, memory, _) = scene(name, Rights::BOTH);
    scene.attacker.send(bytes);
    let error = scene.until_error();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert_eq!(scene.attacker.message(Duration::ZERO), None, "no answer");
    end(scene, memory);
}

/// Sends a well-formed request that is not allowed: the answer is an error, and the connection
/// continues.
fn is_denied(name: &str, rights: Rights, requests: &[[u8; MESSAGE]]) {
    let (mut scene, memory, seen) = scene(name, rights);
    // Bytes that a forbidden store would leave.
    let slot = seen.region.at(0, LEN).expect("in it");
    assert_eq!(
        scene.attacker.write(&vec![0xee; LEN as usize], slot),
        WcStatus::SUCCESS
    );
    for request in requests {
        let answer = scene.attacker.request(request);
        assert_eq!(answer, "access_denied", "{request:02x?}");
    }
    let (_, slots) = scene.attacker.read(slot, LEN as u32);
    assert!(
        slots.iter().all(|byte| *byte == 0xee),
        "nothing was fetched into the slot"
    );
    if rights.get {
        let answer = scene.attacker.request(&message(FETCH, 1, seen.id, 0, 4096));
        assert_eq!(answer, "", "what is allowed is still served");
    }
    end(scene, memory);
}

#[test]
fn unknown_request_ends_the_connection() {
    breaks_protocol("unknown", &message(9, 0, 0, 0, 1));
    breaks_protocol("nothing", &[0; MESSAGE]);
    breaks_protocol("answer", &message(3, 0, 0, 0, 0));
}

#[test]
fn reserved_bytes_end_the_connection() {
    for at in [2, 3, 24, 63] {
        let mut bytes = message(STORE, 0, 0, 0, 4096);
        bytes[at] = 1;
        breaks_protocol(&format!("reserved-{at}"), &bytes);
    }
}

#[test]
fn slot_outside_the_stage_ends_the_connection() {
    breaks_protocol("slot-4", &message(STORE, 4, 0, 0, 4096));
    breaks_protocol("slot-255", &message(FETCH, 255, 0, 0, 4096));
}

#[test]
fn length_beyond_a_slot_ends_the_connection() {
    breaks_protocol("longer", &message(STORE, 0, 0, 0, (64 << 10) + 1));
    breaks_protocol("longest", &message(FETCH, 0, 0, 0, u64::MAX));
}

#[test]
fn truncated_request_ends_the_connection() {
    let whole = message(STORE, 0, 0, 0, 4096);
    for len in [1, 4, 63] {
        breaks_protocol(&format!("short-{len}"), &whole[..len]);
    }
}

#[test]
fn oversized_request_ends_the_connection() {
    for len in [MESSAGE + 1, 4096] {
        let (mut scene, memory, _) = scene(&format!("long-{len}"), Rights::BOTH);
        let mut bytes = vec![0; len];
        bytes[..MESSAGE].copy_from_slice(&message(STORE, 0, 0, 0, 4096));
        scene.attacker.send(&bytes);
        // The NIC refuses what its receive cannot take.
        let error = scene.until_error();
        assert!(
            matches!(error.kind(), ErrorKind::Io | ErrorKind::Protocol),
            "{error}"
        );
        end(scene, memory);
    }
}

#[test]
fn unknown_offers_are_denied() {
    // The accomplice's offer has number 0 at its own endpoint, as the attacker's has here.
    let requests = [1, 77, u32::MAX].map(|offer| message(STORE, 0, offer, 0, 4096));
    is_denied("unknown-offer", Rights::BOTH, &requests);
}

#[test]
fn offers_of_another_peer_are_denied() {
    let mut scene = Scene::new("others-offer", &setup());
    // The attacker was offered nothing: no service runs for it, and its message finds no receive.
    scene.attacker.send(&message(FETCH, 0, 0, 0, 4096));
    assert_eq!(scene.attacker.message(Duration::from_secs(2)), None);
    scene.end();
}

#[test]
fn ranges_outside_the_memory_are_denied() {
    let requests = [
        message(STORE, 0, 0, LEN - 4095, 4096),
        message(STORE, 0, 0, LEN, 1),
        message(STORE, 0, 0, 1 << 62, 4096),
        message(FETCH, 0, 0, u64::MAX, 4096),
        message(FETCH, 0, 0, u64::MAX - 4095, 4096),
        message(FETCH, 0, 0, 0, 0),
    ];
    is_denied("ranges", Rights::BOTH, &requests);
}

#[test]
fn store_needs_the_right_to_put() {
    is_denied("store", Rights::GET, &[message(STORE, 0, 0, 0, 4096)]);
}

#[test]
fn fetch_needs_the_right_to_get() {
    is_denied("fetch", Rights::PUT, &[message(FETCH, 0, 0, 0, 4096)]);
}

#[test]
fn slot_is_requested_once_before_its_answer() {
    let (mut scene, memory, seen) = scene("twice", Rights::GET);
    // One place receives answers to each slot: the third request finds the second answer unsent.
    for _ in 0..32 {
        scene.attacker.send(&message(FETCH, 0, seen.id, 0, 4096));
    }
    let mut answers = 0;
    while scene.attacker.message(Duration::from_millis(500)).is_some() {
        answers += 1;
    }
    // In step with the answers it is served; ahead of them it is not.
    if answers < 32 {
        let error = scene.until_error();
        assert!(
            matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Disconnected),
            "{error}"
        );
    }
    end(scene, memory);
}

#[test]
fn flood_of_requests_costs_bounded_memory() {
    let (mut scene, memory, seen) = scene("flood", Rights::GET);
    let started = Instant::now();
    let mut sent = 0;
    // The attacker has sixteen receives for answers, and posts no more.
    while sent < 800
        && scene
            .attacker
            .try_send(&message(FETCH, (sent % 4) as u8, seen.id, 0, 4096))
    {
        sent += 1;
    }
    assert!(sent >= 16, "{sent}");
    // At most one copy for each slot at a time, and one answer: the service ends where more comes.
    let error = scene.until_error();
    assert!(
        matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Disconnected),
        "{error}"
    );
    assert!(started.elapsed() < MAX_WAIT);
    assert!(
        scene.nic().stats().staged_chunks <= sent,
        "no copy without a request"
    );
    end(scene, memory);
}

#[test]
fn slots_end_where_the_stage_does() {
    let (mut scene, memory, seen) = scene("slots-end", Rights::BOTH);
    let beyond = gaudi_verbs::RemoteAddr {
        addr: gaudi_verbs::MrAddr(seen.region.addr.0 + seen.region.len),
        rkey: seen.region.rkey,
    };
    let (status, bytes) = scene.attacker.read(beyond, 64);
    assert_eq!(status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(bytes, [0; 64]);
    end(scene, memory);
}

/// The attacker overwrites a slot while it is stored: only its own bytes arrive, in the range that
/// it was offered.
#[test]
fn slot_changed_during_store_stays_inside_offer() {
    let mut scene = Scene::new("race", &setup());
    let memory = scene.victim.buffer(2 * LEN, 4);
    let part = memory.at(..LEN).expect("in it");
    scene.victim.endpoint.offer(&part, Rights::PUT).expect("offered");
    let seen = scene.attacker.hear_offer();
    let slot = seen.region.at(0, LEN).expect("in it");
    for round in 0..8 {
        scene.attacker.send(&message(STORE, 0, seen.id, 0, LEN));
        let status = scene.attacker.write(&vec![round; LEN as usize], slot);
        assert_eq!(status, WcStatus::SUCCESS);
        assert!(scene.attacker.message(MAX_WAIT).is_some(), "stored");
    }
    assert!(
        scene.victim.bytes(&memory)[LEN as usize..] == noise(4, 2 * LEN as usize)[LEN as usize..],
        "the rest is as it was"
    );
    drop(memory);
    scene.end();
}
