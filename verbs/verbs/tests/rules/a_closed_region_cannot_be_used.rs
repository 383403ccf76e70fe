#![allow(unused)]

use gaudi_verbs::Mr;

fn f(mr: Mr) {
    Mr::close(mr).unwrap();
    mr.lkey();
}

fn main() {}
