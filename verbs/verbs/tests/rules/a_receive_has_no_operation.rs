#![allow(unused)]

use gaudi_verbs::Qp;

fn f(qp: &mut Qp) {
    qp.post_recv(1).send(&[]);
}

fn main() {}
