#![allow(unused)]

use gaudi_verbs::{Qp, RemoteAddr};

fn f(qp: &mut Qp, to: RemoteAddr) {
    let first = qp.post_send(1);
    let second = qp.post_send(2);
    first.write(&[], to);
}

fn main() {}
