//! Attacks of a peer that writes any bytes to its cable.
//!
//! The attacker holds: the far end of a cable; the number of the queue pair that is connected to it
//! and its first message number; the key and the address of one offered region (`OFFER`
//! bytes of device memory; read, write and atomic, by its queue pair). The attacker may write any
//! bytes at any time, read or not read the answers, and close the cable. It knows the numbers of
//! other queue pairs.
//!
//! The victim's other memory is registered, in the same domain, with all rights, under a key that
//! the attacker does not have, and is filled with `SECRET`. Every attack ends with an error or a
//! counted drop; nothing outside the offer is read or written, and the victim's NIC keeps working.

mod answers;
mod frames;
mod memory;
mod ports;

use gaudi_seam::ErrorKind;
use gaudi_verbs::provider::{Device, QpHandle, QpState};
use gaudi_verbs::{Access, Mr, MrAddr, WcStatus};

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
    // Dropped before the node's own objects, which it uses.
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
