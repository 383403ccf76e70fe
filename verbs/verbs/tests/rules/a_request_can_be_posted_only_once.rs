#![allow(unused)]

use gaudi_verbs::{Qp, RemoteAddr, SendReady};

fn f(qp: &mut Qp, to: RemoteAddr) {
    let ready = qp.post_send(1).write(&[], to);
    let _ = SendReady::post(ready);
    let _ = SendReady::post(ready);
}

fn main() {}
