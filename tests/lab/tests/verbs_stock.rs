//! libibverbs on the kernel's own soft-RoCE, which registers no dma-bufs: the probe reports no and
//! why, bytes are staged.

mod common;
mod ibv;

use common::{heap, read, write};
use gaudi_lab::nic::pattern;
use gaudi_lab::rxe::{Build, skips_verbs};
use gaudi_seam::ErrorKind;
use gaudi_sys::{Errno, PAGE};
use gaudi_verbs::provider::Device;
use gaudi_verbs::{Context, DmaBufSupport, MrAddr, SendOp};

use ibv::{ALL, Nic, refused, succeeded};

const LEN: usize = 4 * PAGE as usize;

macro_rules! nic {
    ($test:literal) => {{
        if skips_verbs($test) {
            return;
        }
        Nic::open(Build::Stock)
    }};
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn probe_of_stock_rxe_gives_the_reason() {
    let nic = nic!("probe_of_stock_rxe_gives_the_reason");
    let DmaBufSupport::No(why) = nic.device.query_device().expect("it answers").dmabuf else {
        panic!("stock rxe has no dma-buf regions");
    };
    assert!(
        why.contains("ibv_reg_dmabuf_mr answers EOPNOTSUPP"),
        "the library: {why}"
    );
    assert!(
        why.contains("the kernel's ioctl answers EOPNOTSUPP"),
        "and the kernel: {why}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn dmabuf_region_of_stock_rxe_is_unsupported() {
    let nic = nic!("dmabuf_region_of_stock_rxe_is_unsupported");
    let buffer = heap().allocate(LEN as u64).expect("a buffer");
    let window = buffer.whole().expect("a window");
    let error = refused(
        nic.window(&window, 0, ALL),
        ErrorKind::Unsupported,
        Errno::EOPNOTSUPP,
    );
    assert!(error.to_string().contains("no way to register"), "{error}");
    assert!(buffer.attached().is_empty(), "and nothing holds the buffer");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn registration_fails_early_with_probes_reason() {
    let nic = nic!("registration_fails_early_with_probes_reason");
    let context = Context::open(nic.device.clone()).expect("a context");
    let pd = context.alloc_pd().expect("a domain");
    let buffer = heap().allocate(LEN as u64).expect("a buffer");
    let window = buffer.whole().expect("a window");
    let error = pd.reg_dmabuf_mr(&window, MrAddr(0), ALL).expect_err("it cannot");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.to_string().contains("the kernel's ioctl answers"),
        "{error}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn staged_dmabuf_bytes_arrive() {
    let nic = nic!("staged_dmabuf_bytes_arrive");
    let (from, to) = (
        heap()
            .allocate(LEN as u64)
            .expect("a buffer")
            .whole()
            .expect("a window"),
        heap()
            .allocate(LEN as u64)
            .expect("a buffer")
            .whole()
            .expect("a window"),
    );
    write(&from, 0, &pattern(31, LEN));
    let (leaving, arriving) = (nic.host(LEN), nic.host(LEN));
    leaving.memory.write(0, &read(&from, 0, LEN)).expect("inside");
    let (here, _there) = nic.pair();
    succeeded(
        &here.run(&[leaving.sge(0, LEN)], SendOp::Write(arriving.remote(0))),
        "a write of the staging buffer",
    );
    write(&to, 0, &arriving.bytes(0, LEN));
    assert!(read(&to, 0, LEN) == pattern(31, LEN), "each byte came through");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn stock_rxe_reaches_host_memory() {
    let nic = nic!("stock_rxe_reaches_host_memory");
    let (from, to) = (nic.host(LEN), nic.host(LEN));
    from.pattern(7);
    let (here, _there) = nic.pair();
    succeeded(
        &here.run(&[from.sge(3, 9001)], SendOp::Write(to.remote(5))),
        "a write",
    );
    assert!(to.bytes(5, 9001) == pattern(7, LEN)[3..3 + 9001], "each byte");
    succeeded(
        &here.run(&[to.sge(10_000, 100)], SendOp::Read(from.remote(0))),
        "a read",
    );
    assert!(to.bytes(10_000, 100) == pattern(7, 100), "each byte");
}
