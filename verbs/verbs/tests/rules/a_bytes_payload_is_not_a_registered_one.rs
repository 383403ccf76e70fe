#![allow(unused)]

use gaudi_verbs::{Qp, RemoteAddr};

fn f(qp: &mut Qp, to: RemoteAddr) {
    qp.post_send(1).write(b"no region", to);
}

fn main() {}
