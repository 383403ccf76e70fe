//! GIDs and datagrams.

use gaudi_softnic::SoftNic;
use gaudi_verbs::QpInit;

use super::*;

#[test]
fn gid_of_live_cable_is_kept() {
    let nic = SoftNic::unplugged("softnic0", Default::default()).unwrap();
    // The attacker's cable is the older one, so searches of cables find it first.
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
fn gid_of_victim_is_kept() {
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
fn misaddressed_datagrams_are_dropped() {
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
