#![allow(unused)]

use gaudi_verbs::{Access, QpAddress, UdQp};

fn f(qp: &mut UdQp, remote: &QpAddress) {
    qp.connect(remote, Access::empty());
}

fn main() {}
