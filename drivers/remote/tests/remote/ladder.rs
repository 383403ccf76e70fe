//! The choice of path: which is used, what is reported of the others, what is cached.

use std::sync::atomic::Ordering;

use gaudi_remote::{ErrorKind, MemoryPath, Policy, Rights};
use gaudi_seam::Errno;
use gaudi_verbs::RegPath;

use crate::nodes::{MAX_WAIT, Setup, pair};

fn refusing(errno: Errno) -> Setup {
    Setup {
        refuse: Some(errno),
        ..Setup::direct()
    }
}

#[test]
fn best_path_is_used_without_failures() {
    let (mut a, mut b) = pair("best", &Setup::direct(), &Setup::direct());
    let (ours, theirs) = (a.buffer(4096, 1), b.buffer(4096, 1));
    let offered = b.endpoint.offer(&theirs, Rights::PUT).expect("offered");
    let received = a.endpoint.receive_offer(MAX_WAIT).expect("received");
    for report in [
        &offered,
        received.report(),
        &a.endpoint.report(&ours).expect("registered"),
    ] {
        assert_eq!(report.path, MemoryPath::DmaBuf(RegPath::Software), "{report}");
        assert!(report.failed.is_empty(), "{report}");
    }
}

#[test]
fn refusal_reaches_both_ends_with_errno() {
    for errno in [
        Errno::EOPNOTSUPP,
        Errno::EPERM,
        Errno::EINVAL,
        Errno::EFAULT,
        Errno::ENOMEM,
    ] {
        let (mut a, mut b) = pair("reported", &Setup::direct(), &refusing(errno));
        let theirs = b.buffer(4096, 1);
        let offered = b.endpoint.offer(&theirs, Rights::PUT).expect("staged instead");
        let received = a.endpoint.receive_offer(MAX_WAIT).expect("received");
        for report in [&offered, received.report()] {
            assert!(report.path.is_staged(), "{report}");
            let error = &report.failed[0].error;
            assert_eq!(error.errno(), Some(errno), "{report}");
            assert_eq!(error.kind(), ErrorKind::of_errno(errno), "{report}");
        }
    }
}

#[test]
fn required_dmabuf_fails_with_the_reason() {
    let mut setup = refusing(Errno::EPERM);
    setup.options.policy = Policy::Require;
    let (mut a, mut b) = pair("require", &setup, &setup);
    let (ours, theirs) = (a.buffer(4096, 1), b.buffer(4096, 1));
    let error = b.endpoint.offer(&theirs, Rights::PUT).expect_err("no detour");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::PermissionDenied, Some(Errno::EPERM))
    );
    assert!(error.help().is_some(), "{error:?}");
    assert!(a.endpoint.report(&ours).is_err());
    assert_eq!(b.nic.stats().engine_bytes, 0, "no stage was used");
}

#[test]
fn never_policy_skips_registration() {
    let mut setup = Setup::direct();
    setup.options.policy = Policy::Never;
    let (_a, mut b) = pair("never", &Setup::direct(), &setup);
    let theirs = b.buffer(4096, 1);
    let report = b.endpoint.offer(&theirs, Rights::PUT).expect("staged");
    assert!(report.path.is_staged());
    assert!(report.to_string().contains("the policy is `never`"), "{report}");
    assert_eq!(b.provider.tried.load(Ordering::Relaxed), 0);
}

#[test]
fn permanent_failure_is_cached_until_forgotten() {
    let (_a, mut b) = pair("once", &Setup::direct(), &refusing(Errno::EPERM));
    let tried = |b: &crate::nodes::Node| b.provider.tried.load(Ordering::Relaxed);
    let buffers = [b.buffer(4096, 1), b.buffer(4096, 2), b.buffer(4096, 3)];
    let first = b.endpoint.offer(&buffers[0], Rights::PUT).expect("staged");
    let second = b.endpoint.offer(&buffers[1], Rights::PUT).expect("staged");
    assert_eq!(
        (first.failed[0].remembered, second.failed[0].remembered),
        (false, true)
    );
    assert_eq!(
        second.failed[0].error.errno(),
        Some(Errno::EPERM),
        "the reason stays"
    );
    assert_eq!(tried(&b), 1);
    assert!(b.nic.remembered(buffers[0].device()).is_some());
    b.nic.forget(buffers[0].device());
    let third = b.endpoint.offer(&buffers[2], Rights::PUT).expect("staged");
    assert!(!third.failed[0].remembered);
    assert_eq!(tried(&b), 2);
}

#[test]
fn transient_failure_is_retried() {
    let (_a, mut b) = pair("passing", &Setup::direct(), &refusing(Errno::ENOMEM));
    for seed in 0..3 {
        let buffer = b.buffer(4096, seed);
        let report = b.endpoint.offer(&buffer, Rights::PUT).expect("staged");
        assert!(!report.failed[0].remembered);
    }
    assert_eq!(b.provider.tried.load(Ordering::Relaxed), 3);
}

#[test]
fn buffer_with_shared_pages_is_staged() {
    let (_a, mut b) = pair("piece", &Setup::direct(), &Setup::direct());
    let piece = b.device.alloc(4096).expect("a piece");
    let report = b.endpoint.offer(&piece, Rights::BOTH).expect("staged");
    assert!(report.path.is_staged());
    assert!(report.to_string().contains("shares its pages"), "{report}");
    let own = b.buffer(4096, 1);
    let report = b.endpoint.offer(&own, Rights::BOTH).expect("registered");
    assert_eq!(report.path, MemoryPath::DmaBuf(RegPath::Software));
}
