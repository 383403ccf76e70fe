//! Asynchronous events of a NIC are read and acted upon.

use std::time::{Duration, Instant};

use gaudi_remote::{ErrorKind, Rights};
use gaudi_verbs::provider::CqHandle;
use gaudi_verbs::{AsyncElement, AsyncEvent, AsyncEventType, MrState};

use crate::nodes::{MAX_WAIT, Node, Setup, pair, pair_on};

const LEN: u64 = 64 << 10;

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < MAX_WAIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn raise(node: &Node, event_type: AsyncEventType, element: AsyncElement) {
    node.provider.events.make(AsyncEvent { event_type, element });
}

/// Lost completions never come: only the event reports them.
#[test]
fn cq_overflow_ends_only_its_endpoint() {
    let b = "mock:gaudi2?name=overflow-b+fault=submit:when=2:delay=2s";
    let serving = Setup::staged().chunks(64 << 10, 4);
    let (mut a, mut b) = pair_on("mock:gaudi2?name=overflow-a", b, &Setup::direct(), &serving);
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let foreign = AsyncElement::Cq(CqHandle(u32::MAX));
    raise(&a, AsyncEventType::CQ_ERR, foreign);
    raise(&a, AsyncEventType::PORT_ERR, AsyncElement::Port(1));
    until("events are read without a call", || !a.provider.events.wait());
    let early = a
        .endpoint
        .wait(put, Duration::from_millis(10))
        .expect_err("not yet");
    assert_eq!(
        early.kind(),
        ErrorKind::TimedOut,
        "none of these is its own: {early}"
    );
    let own = a.provider.cqs.lock().expect("no panic")[0];
    raise(&a, AsyncEventType::CQ_ERR, AsyncElement::Cq(own));
    let error = a.endpoint.wait(put, MAX_WAIT).expect_err("over");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("CQ_ERR"), "{error}");
    let next = a.endpoint.put(&from, &remote).expect_err("it is over");
    assert!(next.to_string().contains("CQ_ERR"), "{next}");
}

#[test]
fn failed_nic_ends_endpoints_and_taints_regions() {
    let (mut a, mut b) = pair("nic-fatal", &Setup::direct(), &Setup::direct());
    let to = b.buffer(LEN, 2);
    b.offer_to(&mut a, &to, Rights::BOTH);
    raise(&b, AsyncEventType::DEVICE_FATAL, AsyncElement::Device);
    until("it is taken", || !b.provider.events.wait());
    until("the end hears of it", || {
        b.endpoint.offer(&to, Rights::GET).is_err()
    });
    let error = b.endpoint.offer(&to, Rights::GET).expect_err("over");
    assert_eq!(error.kind(), ErrorKind::Io, "the NIC and not the card: {error}");
    let regions = b.nic.context().regions();
    assert!(
        regions.iter().all(|region| region.state == MrState::Suspect),
        "{regions:?}"
    );
}

/// The software NIC reports a key that does not allow an access, as other NICs do.
#[test]
fn access_error_taints_offered_regions() {
    let (mut a, mut b) = pair("suspect", &Setup::direct(), &Setup::direct());
    let (withdrawn, stays) = (b.buffer(LEN, 2), b.buffer(LEN, 3));
    let remote = b.offer_to(&mut a, &withdrawn, Rights::BOTH);
    b.offer_to(&mut a, &stays, Rights::BOTH);
    b.endpoint.forget(&withdrawn).expect("forgotten");
    let from = a.buffer(LEN, 1);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    a.endpoint.wait(put, MAX_WAIT).expect_err("refused");
    until("the event was taken", || {
        let regions = b.nic.context().regions();
        regions.iter().any(|region| region.state == MrState::Suspect)
    });
}
