//! The kernel's own soft-RoCE: real RDMA, and no dma-buf regions.

use gaudi_lab::nic::{Nic, pattern, run};
use gaudi_lab::rxe::Build;
use gaudi_lab::uverbs::{DmaBufRegion, Request, access, status};
use gaudi_sys::heap;
use gaudi_sys::{Errno, PAGE};
use nix::libc::{O_CLOEXEC, O_RDWR};
use std::os::fd::AsRawFd;

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn stock_soft_roce_has_no_dmabuf_regions() {
    let nic = Nic::open(Build::Stock);
    let heap = heap::open("system").expect("the system heap is built in");
    let buffer = heap::allocate(&heap, PAGE, (O_RDWR | O_CLOEXEC) as u32, 0).expect("a buffer");
    let mut asked = DmaBufRegion {
        offset: 0,
        length: PAGE,
        iova: 0,
        fd: buffer.as_raw_fd(),
        access: access::ALL,
    };
    assert_eq!(
        nic.context.register_dmabuf(&asked),
        Err(Errno::EOPNOTSUPP),
        "a good dma-buf"
    );
    asked.fd = -1;
    assert_eq!(
        nic.context.register_dmabuf(&asked),
        Err(Errno::EOPNOTSUPP),
        "a device that supports them answers the bad descriptor with EBADF"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn bytes_of_host_memory_go_both_ways() {
    let nic = Nic::open(Build::Stock);
    let (here, there) = (nic.host(4 * PAGE as usize), nic.host(4 * PAGE as usize));
    here.pattern(1).expect("inside");
    let mut pair = nic.pair();
    let (remote, rkey) = (there.address(5), there.region.rkey);
    let done = run(&mut pair, here.local(3, 9001), Request::Write { remote, rkey });
    assert_eq!(done.status, status::SUCCESS, "the write ends well");
    let wanted = pattern(1, 4 * PAGE as usize);
    assert!(
        there.bytes(5, 9001).expect("inside") == wanted[3..3 + 9001],
        "each byte arrived in its place"
    );
    let done = run(&mut pair, here.local(0, 100), Request::Read { remote, rkey });
    assert_eq!(done.status, status::SUCCESS, "the read ends well");
    assert!(
        here.bytes(0, 100).expect("inside") == wanted[3..103],
        "and brings them back"
    );
    let rkey = there.region.rkey ^ 0xff;
    let wrong = nic.run(here.local(0, 8), Request::Write { remote, rkey });
    assert_eq!(wrong, status::REM_ACCESS_ERR, "a wrong key is refused");
    let mut beyond = here.local(0, 8);
    beyond.address += 4 * PAGE;
    let rkey = there.region.rkey;
    assert_eq!(
        nic.run(beyond, Request::Write { remote, rkey }),
        status::WR_FLUSH_ERR,
        "rxe flushes a request whose source is refused"
    );
}
