#![allow(unused)]

use gaudi_verbs::{AddressHandle, Mr, Qp, Qpn, RemoteAddr, Result, Sge, Srq, UdQp};

#[allow(dead_code)]
fn f(qp: &mut Qp, ud: &mut UdQp, srq: &mut Srq, mr: &Mr, to: RemoteAddr, ah: &AddressHandle, was: &Sge) -> Result<()> {
    qp.post_send(1).signaled(false).write(&[mr.sge(0, 8)?], to).post()?;
    qp.post_send(2).write_inline(b"flag", to).post()?;
    qp.post_send(3).fence(true).fetch_add(was, to, 1).post()?;
    qp.post_send(4).flush_remote(was, to).post()?;
    qp.post_recv(5).post(&[])?;
    srq.post_recv(6).post(&[mr.sge(8, 8)?])?;
    ud.post_send(7, ah, Qpn(2), 3).send_inline(b"datagram").post()
}

fn main() {}
