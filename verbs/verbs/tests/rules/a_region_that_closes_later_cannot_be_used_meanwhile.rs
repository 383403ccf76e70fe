#![allow(unused)]

use gaudi_verbs::Mr;

fn f(mr: Mr) {
    let closing = Mr::close_later(mr);
    mr.rkey();
}

fn main() {}
