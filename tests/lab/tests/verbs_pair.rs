//! libibverbs between two guests. Both run this program; each test has two halves that meet over
//! TCP.

mod guests;
mod ibv;

use gaudi_dmabuf::Udmabuf;
use gaudi_lab::rxe::{self, Build};
use gaudi_lab::side;
use gaudi_sys::{Memfd, RawMapping};
use gaudi_verbs::provider::Device;

use guests::{LEN, meet, work};
use ibv::{ALL, Nic, any, bytes, skips};

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_guests_share_host_memory() {
    if rxe::skips_verbs("two_guests_share_host_memory") {
        return;
    }
    let mut stream = meet(7101);
    let nic = Nic::over(any(), "rxe1", "eth1", side().address());
    let memory = nic.host(LEN);
    let view = |at, len| memory.bytes(at, len);
    work(&mut stream, &nic, &[&view], memory.iova.0, memory.mr.rkey);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_guests_share_a_dmabuf() {
    if skips("two_guests_share_a_dmabuf") {
        return;
    }
    let mut stream = meet(7102);
    let nic = Nic::over(Build::Patched, "rxe1", "eth1", side().address());
    let memory = Memfd::sparse(c"lab", LEN as u64).expect("a memory file");
    let view = RawMapping::of_fd(&memory, 0, LEN).expect("it can be mapped");
    let buffer = Udmabuf::open()
        .and_then(|device| device.export(&memory, 0, LEN as u64))
        .expect("a udmabuf");
    let window = buffer.whole().expect("a window");
    let iova = 0x1001_0000_0000_0000;
    let mr = nic.window(&window, iova, ALL).expect("a region");
    let look = |at, len| bytes(&view, at, len);
    work(&mut stream, &nic, &[&look], iova, mr.rkey);
    nic.device.dereg_mr(mr.handle).expect("it ends");
}
