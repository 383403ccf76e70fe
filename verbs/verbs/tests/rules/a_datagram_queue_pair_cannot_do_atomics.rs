#![allow(unused)]

use gaudi_verbs::{AddressHandle, Qpn, RemoteAddr, Sge, UdQp};

fn f(qp: &mut UdQp, to: &AddressHandle, was: &Sge, there: RemoteAddr) {
    qp.post_send(1, to, Qpn(2), 3).fetch_add(was, there, 1);
}

fn main() {}
