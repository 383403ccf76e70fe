#![allow(unused)]

use gaudi_verbs::Srq;

fn f(srq: &mut Srq) {
    let first = srq.post_recv(1);
    let second = srq.post_recv(2);
    first.post(&[]);
}

fn main() {}
