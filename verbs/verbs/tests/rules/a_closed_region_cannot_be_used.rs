#![allow(unused)]

use gaudi_verbs::Mr;

fn f(mr: Mr) {
    mr.close().unwrap();
    mr.lkey();
}

fn main() {}
