#![allow(unused)]

use gaudi_verbs::Mr;

fn f(mr: Mr) {
    let closing = mr.close_later();
    mr.rkey();
}

fn main() {}
