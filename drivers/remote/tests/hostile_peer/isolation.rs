//! Attacks on memory that was not offered to the attacker: by keys and addresses of others, guessed, stale, or out of range.

use gaudi_remote::Rights;
use gaudi_verbs::{MrAddr, Rkey, WcStatus};

use crate::attacker::{LEN, Scene, at};
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
