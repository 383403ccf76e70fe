#![allow(unused)]

use gaudi_verbs::{Qp, Sge};

fn f(qp: &mut Qp, here: Sge) {
    qp.post_send(1).write(&[here], here);
}

fn main() {}
