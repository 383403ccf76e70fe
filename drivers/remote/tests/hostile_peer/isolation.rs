//! Attacks on memory that was not offered to the attacker: by keys of others, guessed, narrower or
//! stale, and by addresses.

use gaudi_remote::Rights;
use gaudi_verbs::{MrAddr, Rkey, WcStatus};

use crate::attacker::{FETCH, LEN, STORE, Scene, at, message};
use crate::nodes::{Setup, noise};

fn staged() -> Setup {
    Setup::staged().chunks(4096, 4)
}

#[test]
fn key_of_another_peer_reads_nothing() {
    for (name, setup) in [("read-direct", Setup::direct()), ("read-staged", staged())] {
        let mut scene = Scene::new(name, &setup);
        let target = scene.seen.region.at(0, 4096).expect("in it");
        let (status, bytes) = scene.attacker.read(target, 4096);
        assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{name}");
        assert_eq!(bytes, vec![0; 4096], "{name}: nothing arrives");
        scene.end();
    }
}

#[test]
fn key_of_another_peer_writes_nothing() {
    for (name, setup) in [("write-direct", Setup::direct()), ("write-staged", staged())] {
        let mut scene = Scene::new(name, &setup);
        let target = scene.seen.region.at(0, 4096).expect("in it");
        let status = scene.attacker.write(&noise(3, 4096), target);
        assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{name}");
        scene.end();
    }
}

#[test]
fn key_of_another_peer_changes_nothing_atomically() {
    let mut scene = Scene::new("atomic-other", &Setup::direct());
    let target = scene.seen.region.at(0, 8).expect("in it");
    assert_ne!(scene.attacker.fetch_add(target), WcStatus::SUCCESS);
    scene.again(&Setup::direct());
    let first = u64::from_le_bytes(std::array::from_fn(|i| noise(7, 8)[i]));
    assert_ne!(scene.attacker.compare_swap(target, first), WcStatus::SUCCESS);
    scene.end();
}

#[test]
fn guessed_keys_open_nothing() {
    let setup = Setup::direct();
    let mut scene = Scene::new("guessed", &setup);
    let own = scene.victim.buffer(LEN, 2);
    for guess in 1..=24_u32 {
        let seen = scene.offer(&own, Rights::BOTH).expect("offered");
        // Its neighbours, and the next keys of a NIC that counts by a constant.
        let step: u32 = [1, 0x100, 0x9e37_79b1][guess as usize % 3];
        let rkey = Rkey(seen.region.rkey.0.wrapping_add(step.wrapping_mul(guess)));
        let (status, bytes) = scene.attacker.read(at(scene.seen.region.addr, rkey), 64);
        assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{rkey}");
        assert_eq!(bytes, [0; 64], "{rkey}");
        scene.again(&setup);
    }
    drop(own);
    scene.end();
}

#[test]
fn keys_of_unoffered_regions_open_nothing() {
    let setup = Setup::direct();
    let mut scene = Scene::new("unoffered", &setup);
    // Registered for the victim's own requests: a cached region and its messages.
    let private = scene.victim.buffer(LEN, 4);
    scene.victim.endpoint.report(&private).expect("registered");
    let regions = scene.nic().context().regions();
    assert!(
        regions.len() >= 4,
        "messages, the offer and the private buffer: {regions:?}"
    );
    for region in regions {
        for len in [8, region.len.min(4096)] {
            let (status, bytes) = scene.attacker.read(at(region.iova, region.rkey), len as u32);
            assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{region}");
            assert!(bytes.iter().all(|byte| *byte == 0), "{region}");
            scene.again(&setup);
        }
        let status = scene.attacker.write(&[9; 8], at(region.iova, region.rkey));
        assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{region}");
        scene.again(&setup);
    }
    assert!(scene.victim.bytes(&private) == noise(4, LEN as usize));
    drop(private);
    scene.end();
}

#[test]
fn addresses_outside_an_offer_fail() {
    let setup = Setup::direct();
    let mut scene = Scene::new("outside", &setup);
    let memory = scene.victim.buffer(4 * LEN, 4);
    for case in 0..7 {
        // A part in the middle: the memory around it is the victim's.
        let part = memory.at(LEN..2 * LEN).expect("in it");
        scene.victim.endpoint.offer(&part, Rights::BOTH).expect("offered");
        let region = scene.attacker.hear_offer().region;
        let (addr, len) = match case {
            0 => (region.addr.0 - 64, 64),
            1 => (region.addr.0 - 1, 64),
            2 => (region.addr.0 + LEN - 63, 64),
            3 => (region.addr.0 + LEN, 64),
            4 => (region.addr.0.wrapping_add(1 << 63), 64),
            5 => (u64::MAX - 8, 64),
            _ => (0, 64),
        };
        let target = at(MrAddr(addr), region.rkey);
        let (status, bytes) = scene.attacker.read(target, len);
        assert_eq!(status, WcStatus::REM_ACCESS_ERR, "read {case}");
        assert_eq!(bytes, [0; 64], "read {case}");
        scene.again(&setup);
        scene.victim.endpoint.offer(&part, Rights::BOTH).expect("offered");
        let rkey = scene.attacker.hear_offer().region.rkey;
        let status = scene.attacker.write(&[9; 64], at(MrAddr(addr), rkey));
        assert_eq!(status, WcStatus::REM_ACCESS_ERR, "write {case}");
        scene.again(&setup);
    }
    assert!(scene.victim.bytes(&memory) == noise(4, 4 * LEN as usize));
    drop(memory);
    scene.end();
}

#[test]
fn get_only_offer_cannot_be_written() {
    let setup = Setup::direct();
    let mut scene = Scene::new("get-only", &setup);
    let memory = scene.victim.buffer(LEN, 4);
    let seen = scene.offer(&memory, Rights::GET).expect("offered");
    let target = seen.region.at(0, 64).expect("in it");
    assert_eq!(scene.attacker.write(&[9; 64], target), WcStatus::REM_ACCESS_ERR);
    assert!(scene.victim.bytes(&memory) == noise(4, LEN as usize));
    drop(memory);
    scene.end();
}

#[test]
fn put_only_offer_cannot_be_read() {
    let mut scene = Scene::new("put-only", &Setup::direct());
    let memory = scene.victim.buffer(LEN, 4);
    let seen = scene.offer(&memory, Rights::PUT).expect("offered");
    let (status, bytes) = scene.attacker.read(seen.region.at(0, 64).expect("in it"), 64);
    assert_eq!(status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(bytes, [0; 64]);
    drop(memory);
    scene.end();
}

#[test]
fn read_write_offer_takes_no_atomics() {
    let setup = Setup::direct();
    let mut scene = Scene::new("atomics", &setup);
    let memory = scene.victim.buffer(LEN, 4);
    let word = u64::from_le_bytes(std::array::from_fn(|i| noise(4, 8)[i]));
    for swap in [false, true] {
        let seen = scene.offer(&memory, Rights::BOTH).expect("offered");
        let target = seen.region.at(0, 8).expect("in it");
        let status = if swap {
            scene.attacker.compare_swap(target, word)
        } else {
            scene.attacker.fetch_add(target)
        };
        assert_ne!(status, WcStatus::SUCCESS);
        scene.again(&setup);
    }
    assert!(scene.victim.bytes(&memory) == noise(4, LEN as usize));
    drop(memory);
    scene.end();
}

/// An offer must not be answered with the region of an earlier one that allows more.
#[test]
fn second_offer_has_its_own_rights() {
    let setup = Setup::direct();
    for (first, second, writes) in [
        (Rights::BOTH, Rights::GET, true),
        (Rights::PUT, Rights::GET, true),
        (Rights::BOTH, Rights::PUT, false),
    ] {
        let mut scene = Scene::new("rights", &setup);
        let memory = scene.victim.buffer(LEN, 4);
        let wide = scene.offer(&memory, first).expect("offered");
        let narrow = scene.offer(&memory, second).expect("offered");
        assert_ne!(
            wide.region.rkey, narrow.region.rkey,
            "each offer has a key of its own"
        );
        let target = narrow.region.at(0, 64).expect("in it");
        let status = if writes {
            scene.attacker.write(&[9; 64], target)
        } else {
            scene.attacker.read(target, 64).0
        };
        assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{first:?}, then {second:?}");
        assert!(scene.victim.bytes(&memory) == noise(4, LEN as usize));
        drop(memory);
        scene.end();
    }
}

#[test]
fn second_offer_has_its_own_bytes() {
    let mut scene = Scene::new("range", &Setup::direct());
    let memory = scene.victim.buffer(2 * LEN, 4);
    scene.offer(&memory, Rights::BOTH).expect("offered");
    let part = memory.at(..4096).expect("in it");
    scene.victim.endpoint.offer(&part, Rights::BOTH).expect("offered");
    let narrow = scene.attacker.hear_offer().region;
    assert_eq!(narrow.len, 4096);
    let beyond = at(MrAddr(narrow.addr.0 + 4096), narrow.rkey);
    let (status, bytes) = scene.attacker.read(beyond, 64);
    assert_eq!(status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(bytes, [0; 64]);
    drop(memory);
    scene.end();
}

#[test]
fn forgotten_offer_cannot_be_reached() {
    for (name, setup) in [("forgotten", Setup::direct()), ("forgotten-staged", staged())] {
        let mut scene = Scene::new(name, &setup);
        let memory = scene.victim.buffer(LEN, 4);
        let seen = scene.offer(&memory, Rights::BOTH).expect("offered");
        scene.victim.endpoint.forget(&memory).expect("forgotten");
        if name == "forgotten" {
            let target = seen.region.at(0, 64).expect("in it");
            let (status, bytes) = scene.attacker.read(target, 64);
            assert_eq!(status, WcStatus::REM_ACCESS_ERR);
            assert_eq!(bytes, [0; 64]);
        } else {
            for what in [STORE, FETCH] {
                let answer = scene.attacker.request(&message(what, 0, seen.id, 0, 4096));
                assert_eq!(answer, "access_denied");
            }
            let slot = seen.region.at(0, 4096).expect("in it");
            let (_, bytes) = scene.attacker.read(slot, 4096);
            assert_eq!(bytes, vec![0; 4096], "no byte of it is in the slot");
        }
        // A new offer has another key.
        scene.again(&setup);
        let again = scene.offer(&memory, Rights::GET).expect("offered");
        if name == "forgotten" {
            assert_ne!(again.region.rkey, seen.region.rkey);
        }
        assert!(scene.victim.bytes(&memory) == noise(4, LEN as usize));
        drop(memory);
        scene.end();
    }
}

#[test]
fn closed_endpoint_cannot_be_reached() {
    let setup = Setup::direct();
    let mut scene = Scene::new("closed", &setup);
    let memory = scene.victim.buffer(LEN, 4);
    let seen = scene.offer(&memory, Rights::BOTH).expect("offered");
    let (new, old) = scene.reconnect(&setup);
    old.close().expect("closed");
    let target = seen.region.at(0, 64).expect("in it");
    let (status, bytes) = scene.attacker.read(target, 64);
    assert_ne!(status, WcStatus::SUCCESS);
    assert_eq!(bytes, [0; 64]);
    // Nor by the next connection.
    scene.attacker = new;
    assert_eq!(scene.attacker.read(target, 64).0, WcStatus::REM_ACCESS_ERR);
    drop(memory);
    scene.end();
}

#[test]
fn requesting_queue_pair_serves_nothing() {
    let setup = Setup::direct();
    let mut scene = Scene::new("requesting", &setup);
    let memory = scene.victim.buffer(LEN, 4);
    for write in [false, true] {
        let seen = scene.offer(&memory, Rights::BOTH).expect("offered");
        // The key is good, the queue pair is the one with which the victim requests.
        std::mem::swap(&mut scene.attacker.asking, &mut scene.attacker.serving);
        let target = seen.region.at(0, 64).expect("in it");
        let status = if write {
            scene.attacker.write(&[9; 64], target)
        } else {
            scene.attacker.read(target, 64).0
        };
        assert_ne!(status, WcStatus::SUCCESS);
        scene.again(&setup);
    }
    assert!(scene.victim.bytes(&memory) == noise(4, LEN as usize));
    drop(memory);
    scene.end();
}

#[test]
fn invalidation_by_the_peer_closes_no_region() {
    let setup = Setup::staged().chunks(4096, 4);
    let mut scene = Scene::new("invalidate", &setup);
    let memory = scene.victim.buffer(LEN, 4);
    for other in [true, false] {
        let seen = scene.offer(&memory, Rights::BOTH).expect("offered");
        let key = if other {
            scene.seen.region.rkey
        } else {
            seen.region.rkey
        };
        scene.attacker.send_inv(&message(STORE, 0, seen.id, 0, 4096), key);
        let error = scene.until_error();
        assert!(!error.to_string().is_empty());
        scene.again(&setup);
    }
    // The other peer's slots are reached as before.
    let slot = scene.seen.region.at(0, 64).expect("in it");
    assert_eq!(scene.accomplice.read(slot, 64).0, WcStatus::SUCCESS);
    assert!(scene.victim.bytes(&memory) == noise(4, LEN as usize));
    drop(memory);
    scene.end();
}

/// Slots are host memory that other connections and programs had before.
#[test]
fn new_stage_holds_no_old_bytes() {
    let setup = staged();
    let mut scene = Scene::new("old-bytes", &setup);
    let memory = scene.victim.buffer(LEN, 4);
    for _ in 0..8 {
        let seen = scene.offer(&memory, Rights::GET).expect("offered");
        for slot in 0..4 {
            let place = seen.region.at(u64::from(slot) * 4096, 4096).expect("in it");
            let (status, bytes) = scene.attacker.read(place, 4096);
            assert_eq!(status, WcStatus::SUCCESS);
            assert_eq!(bytes, vec![0; 4096], "slot {slot}");
            let answer = scene.attacker.request(&message(FETCH, slot, seen.id, 0, 4096));
            assert_eq!(answer, "");
            assert!(
                scene.attacker.read(place, 4096).1 == noise(4, 4096),
                "what was asked for"
            );
        }
        scene.again(&setup);
    }
    drop(memory);
    scene.end();
}
