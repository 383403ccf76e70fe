#![allow(unused)]

use gaudi_verbs::UdQp;

fn f(qp: &mut UdQp) {
    qp.post_send(1).send(&[]).post();
}

fn main() {}
