#![allow(unused)]

use gaudi_verbs::{Access, Mr, Mw, Qp};

fn f(first: &mut Qp, second: &mut Qp, mw: &mut Mw, mr: &Mr) {
    let one = first.post_send(1).bind_mw(mw, mr, 0, 1, Access::empty());
    let two = second.post_send(2).bind_mw(mw, mr, 0, 1, Access::empty());
    one.post();
}

fn main() {}
