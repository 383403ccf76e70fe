//! Endpoints on the kernel's own soft-RoCE, which registers no dma-bufs: each policy, and what is
//! said and remembered.

mod common;
mod nodes;

use common::{Other, alone};
use gaudi_lab::rxe::{Build, skips_verbs};
use gaudi_remote::{Endpoint, Error, ErrorKind, Policy, Rights};
use gaudi_seam::Errno;
use gaudi_verbs::DmaBufSupport;
use nodes::{LEN, MAX_WAIT, Node, device, nic, node, noise, pair, rxe0, there_and_back, with};

macro_rules! stock {
    ($test:literal) => {{
        if skips_verbs($test) {
            return;
        }
        let guard = alone();
        rxe0(Build::Stock);
        guard
    }};
}

/// The kernel's answer, with the words of the probe.
#[track_caller]
fn tells_why(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error
            .to_string()
            .contains("the kernel's ioctl answers EOPNOTSUPP"),
        "{error}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn probe_rejects_the_endpoints_nic() {
    let _alone = stock!("probe_rejects_the_endpoints_nic");
    let nic = nic();
    let DmaBufSupport::No(why) = &nic.context().attr().dmabuf else {
        panic!("stock rxe has no dma-buf regions");
    };
    assert!(why.contains("the kernel's ioctl answers EOPNOTSUPP"), "{why}");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn require_fails_and_stages_nothing() {
    let _alone = stock!("require_fails_and_stages_nothing");
    let (mut a, mut b) = pair("require", [Policy::Require; 2]);
    let (ours, theirs) = (a.buffer(1), b.buffer(2));
    let offer = b.endpoint.offer(&theirs, Rights::BOTH).expect_err("no detour");
    let report = a.endpoint.report(&ours).expect_err("no detour");
    for error in [&offer, &report] {
        tells_why(error);
        assert!(error.to_string().contains("dma-buf region required"), "{error}");
        assert!(error.help().is_some(), "it has a next step: {error:?}");
    }
    for node in [&a, &b] {
        assert_eq!(node.nic.stats().engine_bytes, 0);
    }
    a.end(vec![ours]);
    b.end(vec![theirs]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn try_stages_and_each_byte_is_right() {
    let _alone = stock!("try_stages_and_each_byte_is_right");
    let (mut a, mut b) = pair("try", [Policy::Try; 2]);
    let (ours, theirs) = there_and_back(&mut a, &mut b);
    for node in [&a, &b] {
        let stats = node.nic.stats();
        assert!(stats.engine_bytes > 0 && stats.staged_chunks > 0, "{stats:?}");
        assert_eq!(stats.cpu_copied_bytes, 0, "engines copy: {stats:?}");
    }
    a.end(vec![ours]);
    b.end(vec![theirs]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn report_gives_the_reason_at_both_ends() {
    let _alone = stock!("report_gives_the_reason_at_both_ends");
    let (mut a, mut b) = pair("why", [Policy::Try; 2]);
    let (ours, theirs) = (a.buffer(1), b.buffer(2));
    let offered = b.endpoint.offer(&theirs, Rights::PUT).expect("staged");
    let received = a.endpoint.receive_offer(MAX_WAIT).expect("received");
    let own = a.endpoint.report(&ours).expect("staged");
    for report in [&offered, received.report(), &own] {
        assert!(report.path.is_staged(), "{report}");
        tells_why(&report.failed[0].error);
        assert!(!report.failed[0].remembered, "{report}");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn never_stages_without_asking() {
    let _alone = stock!("never_stages_without_asking");
    let (mut a, mut b) = pair("never", [Policy::Never; 2]);
    let (ours, theirs) = there_and_back(&mut a, &mut b);
    let report = a.endpoint.report(&ours).expect("a report");
    assert!(report.to_string().contains("the policy is `never`"), "{report}");
    assert!(
        !report.to_string().contains("EOPNOTSUPP"),
        "no registration was tried: {report}"
    );
    assert!(a.nic.remembered(ours.device()).is_none());
    a.end(vec![ours]);
    b.end(vec![theirs]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn failure_is_cached_for_nic_and_accelerator() {
    let _alone = stock!("failure_is_cached_for_nic_and_accelerator");
    let (_a, mut b) = pair("once", [Policy::Try; 2]);
    let buffers = [b.buffer(1), b.buffer(2), b.buffer(3)];
    let id = buffers[0].device();
    let mut offer = |index: usize| {
        let report = b.endpoint.offer(&buffers[index], Rights::PUT).expect("staged");
        tells_why(&report.failed[0].error);
        report.failed[0].remembered
    };
    assert!(!offer(0), "the first is tried");
    assert!(offer(1), "the second is not");
    // Another accelerator, and another opening of the NIC, are other pairs.
    let other = device("mock:gaudi2?name=once-other&index=1");
    assert!(b.nic.remembered(other.id()).is_none());
    assert!(nic().remembered(id).is_none());
    tells_why(&b.nic.remembered(id).expect("it is remembered"));
    b.nic.forget(id);
    let third = b.endpoint.offer(&buffers[2], Rights::PUT).expect("staged");
    assert!(!third.failed[0].remembered, "tried again");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn without_engines_both_reasons_are_reported() {
    let _alone = stock!("without_engines_both_reasons_are_reported");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let other = std::thread::spawn(move || node("mock:gaudi2?name=bare-b", theirs, Policy::Try));
    let device = device("mock:gaudi2?name=bare-a");
    let mut endpoint = Endpoint::over(ours, &nic(), None, with(Policy::Try)).expect("an endpoint");
    let _b = other.join().expect("no panic");
    let buffer = device.alloc_exclusive(LEN).expect("device memory");
    let error = endpoint.offer(&buffer, Rights::PUT).expect_err("no way at all");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("without a device"), "{error}");
    let help = error.help().expect("the first reason too");
    assert!(help.contains("EOPNOTSUPP"), "{help}");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_processes_stage_for_one_another() {
    let _alone = stock!("two_processes_stage_for_one_another");
    let other = Other::new(|socket| {
        let stream = socket.try_clone().expect("a clone");
        let mut b = node("mock:gaudi2?name=two-b", stream, Policy::Try);
        let to = b.buffer(2);
        b.endpoint.offer(&to, Rights::BOTH).expect("offered");
        // A offers when it has put and got: what B serves meanwhile needs no call.
        b.endpoint.receive_offer(MAX_WAIT).expect("received");
        let arrived = b.bytes(&to) == noise(1, LEN);
        b.endpoint.close().expect("closed");
        arrived
    });
    let stream = other.socket.try_clone().expect("a clone");
    let mut a = node("mock:gaudi2?name=two-a", stream, Policy::Try);
    let (from, back) = (a.buffer(1), a.buffer(9));
    let remote = a.endpoint.receive_offer(MAX_WAIT).expect("received");
    let done = a.put(&from, &remote);
    assert!(done.local.is_staged() && done.remote.is_staged(), "{done:?}");
    assert_eq!(done.bytes, LEN);
    a.get(&back, &remote);
    assert!(a.bytes(&back) == noise(1, LEN), "what was put is what is got");
    a.endpoint.offer(&back, Rights::GET).expect("offered");
    other.agrees();
    a.end(vec![from, back]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn forget_releases_staged_buffer() {
    let _alone = stock!("forget_releases_staged_buffer");
    let (mut a, mut b) = pair("withdrawn", [Policy::Try; 2]);
    let (from, withdrawn, stays) = (a.buffer(1), b.buffer(2), b.buffer(3));
    let remotes = [b.offer_to(&mut a, &withdrawn), b.offer_to(&mut a, &stays)];
    let (withdrawn, error) = withdrawn.close().expect_err("it is offered").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    b.endpoint.forget(&withdrawn).expect("forgotten");
    withdrawn.close().expect("free");
    let put = a.endpoint.put(&from, &remotes[0]).expect("begun");
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    a.put(&from, &remotes[1]);
    assert!(b.bytes(&stays) == noise(1, LEN), "the connection lives");
    a.end(vec![from]);
    b.end(vec![stays]);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn staged_put_is_visible_without_flush() {
    let _alone = stock!("staged_put_is_visible_without_flush");
    let (mut a, mut b): (Node, Node) = pair("visible", [Policy::Try; 2]);
    let (from, to) = (a.buffer(1), b.buffer(2));
    let remote = b.offer_to(&mut a, &to);
    a.put(&from, &remote);
    a.endpoint
        .flush_remote(&remote, MAX_WAIT)
        .expect("nothing to flush");
    assert_eq!(a.nic.stats().flushes, 0);
    assert!(b.bytes(&to) == noise(1, LEN));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn kernel_refusal_keeps_its_errno() {
    let _alone = stock!("kernel_refusal_keeps_its_errno");
    let (_a, mut b) = pair("errno", [Policy::Try; 2]);
    let buffer = b.buffer(1);
    let report = b.endpoint.offer(&buffer, Rights::PUT).expect("staged");
    assert_eq!(
        report.failed[0].error.errno(),
        Some(Errno::EOPNOTSUPP),
        "{report}"
    );
}
