#![allow(unused)]

use gaudi_verbs::{Qp, RemoteAddr};

fn f(qp: &mut Qp, to: RemoteAddr) {
    let ready = qp.post_send(1).write(&[], to);
    ready.post();
    ready.post();
}

fn main() {}
