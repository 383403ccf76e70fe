#![allow(unused)]

use gaudi_verbs::Qp;

fn f(mut qp: Qp) {
    qp.close().unwrap();
    qp.post_recv(1);
}

fn main() {}
