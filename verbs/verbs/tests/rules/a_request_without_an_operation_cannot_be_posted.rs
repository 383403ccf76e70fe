#![allow(unused)]

use gaudi_verbs::Qp;

fn f(qp: &mut Qp) {
    qp.post_send(1).post();
}

fn main() {}
