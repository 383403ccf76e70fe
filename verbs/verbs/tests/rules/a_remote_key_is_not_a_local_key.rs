#![allow(unused)]

use gaudi_verbs::{MrAddr, Rkey, Sge};

fn main() {
    let sge = Sge { addr: MrAddr(0), length: 1, lkey: Rkey(7) };
}
