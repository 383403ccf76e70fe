//! Attacks on the requesting end: forged offers and answers.

use std::io::Write as _;
use std::time::Duration;

use gaudi_device::Buffer;
use gaudi_remote::{Error, ErrorKind, Remote, Transfer};
use gaudi_verbs::{Message as _, MrAddr, RemoteRegion, Rkey};

use crate::attacker::{DONE, LEN, MESSAGE, OFFER, Scene, frame, message};
use crate::nodes::{MAX_WAIT, Setup, noise};

/// An offer in its wire format.
#[derive(Clone, Copy)]
struct Forged {
    rights: u8,
    len: u64,
    staged: u8,
    region: RemoteRegion,
    chunk: u32,
    depth: u32,
    step: u8,
    reasons: u8,
}

impl Forged {
    /// A stage of four slots in the attacker's memory.
    fn slots(scene: &Scene) -> Self {
        let own = scene.attacker.own();
        Self {
            rights: 3,
            len: 4096,
            staged: 1,
            region: RemoteRegion {
                addr: MrAddr(own.addr.0 + 0x10000),
                len: 0x10000,
                rkey: own.rkey,
            },
            chunk: 4096,
            depth: 4,
            step: 255,
            reasons: 0,
        }
    }

    /// Memory that the attacker's NIC serves by itself.
    fn direct(scene: &Scene) -> Self {
        Self {
            staged: 0,
            chunk: 0,
            depth: 0,
            step: 0,
            ..Self::slots(scene)
        }
    }

    fn body(&self, nic: &[u8]) -> Vec<u8> {
        let mut body = 0_u32.to_le_bytes().to_vec();
        body.push(self.rights);
        body.extend(self.len.to_le_bytes());
        body.push(self.staged);
        body.extend(self.region.encode());
        body.extend(self.chunk.to_le_bytes());
        body.extend(self.depth.to_le_bytes());
        body.push(self.step);
        body.extend((nic.len() as u16).to_le_bytes());
        body.extend(nic);
        body.extend([0, 0, self.reasons]);
        body
    }
}

/// Sends an offer. Returns the victim's result.
fn offered(scene: &mut Scene, body: &[u8]) -> Result<Remote, Error> {
    scene
        .attacker
        .stream
        .write_all(&frame(OFFER, body))
        .expect("sent");
    scene.victim.endpoint.receive_offer(MAX_WAIT)
}

/// The victim's transfer of 4096 bytes with the attacker's slots, as far as its first request.
fn requested(name: &str, put: bool) -> (Scene, Buffer, Transfer) {
    let mut scene = Scene::new(name, &Setup::direct());
    let memory = scene.victim.buffer(4096, 5);
    let body = Forged::slots(&scene).body(b"nic");
    let remote = offered(&mut scene, &body).expect("a good offer");
    let end = &mut scene.victim.endpoint;
    let transfer = if put {
        end.put(&memory, &remote)
    } else {
        end.get(&memory, &remote)
    };
    let request = scene.attacker.message(MAX_WAIT).expect("a request");
    assert_eq!(request[0], if put { 1 } else { 2 });
    (scene, memory, transfer.expect("begun"))
}

/// The victim gets a message: its transfer ends with an error of this kind, and its memory is as it
/// was.
fn answered(name: &str, bytes: &[u8], kind: ErrorKind) {
    for put in [true, false] {
        let (mut scene, memory, transfer) = requested(&format!("{name}-{put}"), put);
        scene.attacker.answer(bytes);
        let error = scene.victim.endpoint.wait(transfer, MAX_WAIT).expect_err("a lie");
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(scene.victim.bytes(&memory) == noise(5, 4096), "{name}");
        drop(memory);
        scene.end();
    }
}

fn failure(name: &str) -> [u8; MESSAGE] {
    let mut bytes = message(DONE, 0, 0, 0, 0);
    bytes[32..32 + name.len()].copy_from_slice(name.as_bytes());
    bytes
}

#[test]
fn answer_for_idle_slot_ends_connection() {
    answered("idle-slot", &message(DONE, 3, 0, 0, 0), ErrorKind::Protocol);
    answered("no-slot", &message(DONE, 255, 0, 0, 0), ErrorKind::Protocol);
}

#[test]
fn unknown_answer_ends_the_connection() {
    answered("request", &message(1, 0, 0, 0, 4096), ErrorKind::Protocol);
    answered("zeros", &[0; MESSAGE], ErrorKind::Protocol);
}

#[test]
fn truncated_answer_ends_the_connection() {
    answered("short", &message(DONE, 0, 0, 0, 0)[..63], ErrorKind::Protocol);
}

#[test]
fn oversized_answer_ends_the_connection() {
    answered("long", &[DONE; MESSAGE + 1], ErrorKind::Io);
}

#[test]
fn repeated_answer_ends_the_connection() {
    let (mut scene, memory, transfer) = requested("repeated", true);
    scene.attacker.answer(&message(DONE, 0, 0, 0, 0));
    scene.victim.endpoint.wait(transfer, MAX_WAIT).expect("answered");
    scene.attacker.answer(&message(DONE, 0, 0, 0, 0));
    let body = Forged::slots(&scene).body(b"nic");
    let remote = offered(&mut scene, &body).expect("a good offer");
    let put = scene.victim.endpoint.put(&memory, &remote);
    let error = put
        .and_then(|put| scene.victim.endpoint.wait(put, MAX_WAIT))
        .expect_err("an answer that no request has");
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    drop(memory);
    scene.end();
}

#[test]
fn peer_failure_fails_only_the_peer() {
    for name in [
        "device_lost",
        "in_reset",
        "hung",
        "timed_out",
        "forked",
        "no such kind",
    ] {
        let (mut scene, memory, transfer) = requested(&format!("fails-{}", name.replace(' ', "-")), true);
        scene.attacker.answer(&failure(name));
        let error = scene
            .victim
            .endpoint
            .wait(transfer, MAX_WAIT)
            .expect_err("it failed");
        assert!(
            matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::Io),
            "{name}: {error}"
        );
        let done = scene
            .victim
            .device
            .fill(&memory, 1)
            .and_then(|done| done.wait(MAX_WAIT));
        done.expect("the victim's device works");
        drop(memory);
        scene.end();
    }
}

#[test]
fn silent_peer_costs_the_callers_timeout_only() {
    let (mut scene, memory, transfer) = requested("silent", false);
    let error = scene
        .victim
        .endpoint
        .wait(transfer, Duration::from_millis(300))
        .expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    scene
        .attacker
        .stream
        .shutdown(std::net::Shutdown::Both)
        .expect("closed");
    let error = scene
        .victim
        .endpoint
        .wait(transfer, MAX_WAIT)
        .expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    assert!(scene.victim.bytes(&memory) == noise(5, 4096));
    drop(memory);
    scene.end();
}

#[test]
fn forged_region_fails_the_transfer() {
    for case in 0..3 {
        let mut scene = Scene::new(&format!("forged-region-{case}"), &Setup::direct());
        let mut forged = Forged::direct(&scene);
        match case {
            0 => forged.region.rkey = Rkey(forged.region.rkey.0 ^ 1),
            1 => forged.region.addr = MrAddr(0x1000),
            // More than the attacker registered.
            _ => (forged.len, forged.region.len) = (2 << 20, 2 << 20),
        }
        let memory = scene.victim.buffer(forged.len, 5);
        let body = forged.body(b"nic");
        let remote = offered(&mut scene, &body).expect("well formed");
        let get = scene.victim.endpoint.get(&memory, &remote).expect("begun");
        let error = scene
            .victim
            .endpoint
            .wait(get, MAX_WAIT)
            .expect_err("refused by the NIC");
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
        drop(memory);
        scene.end();
    }
}

#[test]
fn impossible_offers_end_the_connection() {
    type Change = fn(&mut Forged);
    let changes: [(&str, Change); 9] = [
        ("rights", |offer| offer.rights = 4),
        ("way", |offer| offer.staged = 2),
        ("no-chunk", |offer| offer.chunk = 0),
        ("large-chunk", |offer| offer.chunk = u32::MAX),
        ("no-depth", |offer| offer.depth = 0),
        ("deep", |offer| offer.depth = 17),
        ("outside", |offer| offer.region.len = 3 * 4096),
        ("wraps", |offer| offer.region.addr = MrAddr(u64::MAX - 4096)),
        ("reasons", |offer| offer.reasons = 255),
    ];
    for (name, change) in changes {
        let mut scene = Scene::new(&format!("offer-{name}"), &Setup::direct());
        let mut forged = Forged::slots(&scene);
        change(&mut forged);
        let error = offered(&mut scene, &forged.body(b"nic")).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Protocol, "{name}: {error}");
        scene.end();
    }
}

#[test]
fn offer_beyond_its_region_ends_connection() {
    let mut scene = Scene::new("offer-longer", &Setup::direct());
    let forged = Forged {
        len: 0x10001,
        ..Forged::direct(&scene)
    };
    let error = offered(&mut scene, &forged.body(b"nic")).expect_err("a lie");
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    scene.end();
}

#[test]
fn offer_of_whole_address_space_cannot_overflow() {
    let mut scene = Scene::new("offer-huge", &Setup::direct());
    let forged = Forged {
        len: u64::MAX,
        ..Forged::slots(&scene)
    };
    let remote = offered(&mut scene, &forged.body(b"nic")).expect("slots may serve any length");
    let memory = scene.victim.buffer(LEN, 5);
    let last = remote.at(u64::MAX - LEN..u64::MAX).expect("in it");
    let put = scene.victim.endpoint.put(&memory, last).expect("begun");
    let error = scene
        .victim
        .endpoint
        .wait(put, Duration::from_millis(300))
        .expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    drop((remote, memory));
    scene.end();
}

#[test]
fn text_of_an_offer_controls_no_terminal() {
    let mut scene = Scene::new("offer-text", &Setup::direct());
    let body = Forged::slots(&scene).body(b"\x1b[2J\x07\x9b\xff\n");
    let remote = offered(&mut scene, &body).expect("a good offer");
    let shown = format!("{} {remote:?}", remote.report());
    assert!(!shown.contains(char::is_control), "{shown:?}");
    scene.end();
}

#[test]
fn flood_of_offers_registers_nothing() {
    let mut scene = Scene::new("offer-flood", &Setup::direct());
    let body = Forged::slots(&scene).body(b"nic");
    let before = scene.nic().stats().registrations;
    for _ in 0..1000 {
        drop(offered(&mut scene, &body).expect("a good offer"));
    }
    assert_eq!(scene.nic().stats().registrations, before);
    scene.end();
}
