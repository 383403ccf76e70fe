#![allow(unused)]

use gaudi_verbs::{AddressHandle, Qpn, RemoteAddr, UdQp};

fn f(qp: &mut UdQp, to: &AddressHandle, there: RemoteAddr) {
    qp.post_send(1, to, Qpn(2), 3).write(&[], there);
}

fn main() {}
