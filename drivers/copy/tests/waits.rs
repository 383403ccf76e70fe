//! Errors of the driver's waits end no operation, and those of a submission end it alone.

use gaudi_copy::{Attached, Completion, Config, Deadline, ErrorKind, Local, MemoryDomain, Posted, Transport};

/// A put of 4 KiB under a fault plan: the transport and the completion of the put.
fn put(plan: &str) -> (MemoryDomain, Transport, Completion) {
    let spec = format!(
        "mock:gaudi2?name=waits-{}+fault={plan}",
        plan.replace([':', '='], "-")
    );
    let domain = MemoryDomain::new(&spec.parse().expect("a spec")).expect("a domain");
    let device = domain.alloc(4096, Default::default()).expect("device memory");
    let host = domain.alloc_host(4096).expect("host memory");
    let mut transport = Transport::new(&domain).expect("a transport");
    let (completion, target) = (Completion::new(1), Attached::to(&device));
    transport
        .put_zcopy(&[Local::all(&host)], &target, target.address(), Some(&completion))
        .expect("a put");
    (domain, transport, completion)
}

#[test]
fn failed_wait_leaves_operation_in_progress() {
    let (_domain, mut transport, completion) = put("wait_cs:when=1:error=ENOMEM");
    let error = transport.flush_wait(Deadline::NEVER).expect_err("the wait fails");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(!completion.is_done(), "the submission still runs");
    transport
        .flush_wait(Deadline::NEVER)
        .expect("the next wait succeeds");
    assert_eq!(completion.result(), Some(Ok(())));
}

#[test]
fn failed_poll_leaves_operation_in_progress() {
    let (_domain, mut transport, completion) = put("wait_cs:when=1..3:error=ENOMEM");
    assert_eq!(transport.progress(), Ok(0));
    assert!(!completion.is_done(), "the submission still runs");
    while transport.progress() == Ok(0) {}
    assert_eq!(completion.result(), Some(Ok(())));
}

#[test]
fn drop_ends_operations_that_it_cannot_await() {
    let (_domain, transport, completion) = put("wait_cs:error=ENOMEM");
    drop(transport);
    let result = completion.result().expect("the drop ends the operation");
    assert_eq!(result.map_err(|error| error.kind()), Err(ErrorKind::OutOfMemory));
}

#[test]
fn drop_awaits_operations_before_a_failed_submission() {
    let (domain, mut transport, completion) = put("submit:when=2:error=ENOMEM");
    let device = domain.alloc(64, Default::default()).expect("device memory");
    transport
        .put_short(b"x", &Attached::to(&device), device.address())
        .expect("posted");
    drop(transport);
    assert_eq!(
        completion.result(),
        Some(Ok(())),
        "the first put was not ended early"
    );
}

#[test]
fn flush_awaits_operations_before_a_failed_submission() {
    let (domain, mut transport, completion) = put("submit:when=2:error=EIO");
    let device = domain.alloc(64, Default::default()).expect("device memory");
    transport
        .put_short(b"x", &Attached::to(&device), device.address())
        .expect("posted");
    transport
        .flush_wait(Deadline::NEVER)
        .expect_err("the second submission fails");
    assert_eq!(completion.result(), Some(Ok(())));
}

#[test]
fn failed_submission_of_get_is_reported_once() {
    let (domain, mut transport, _) = put("submit:when=2..3:error=ENOMEM");
    let device = domain.alloc(64, Default::default()).expect("device memory");
    let (target, completion) = (Attached::to(&device), Completion::new(1));
    let unpack = |_: &[u8]| panic!("the get fails");
    let posted = transport.get_bcopy(64, unpack, &target, target.address(), Some(&completion));
    assert_eq!(posted, Ok(Posted::InProgress));
    let result = completion.result().expect("it has ended");
    assert_eq!(result.map_err(|error| error.kind()), Err(ErrorKind::OutOfMemory));
    let error = transport
        .get_bcopy(64, unpack, &target, target.address(), None)
        .expect_err("nothing else has the error");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
}

#[test]
fn full_transport_would_block() {
    let spec = "mock:gaudi2?name=waits-full+fault=wait_cs:when=1:error=ENOMEM";
    let mut config = Config::default();
    config.outstanding = 1;
    let domain = MemoryDomain::with_config(&spec.parse().expect("a spec"), config);
    let device = domain.alloc(4096, Default::default()).expect("device memory");
    let host = domain.alloc_host(4096).expect("host memory");
    let mut transport = Transport::new(&domain).expect("a transport");
    let target = Attached::to(&device);
    let mut put = || transport.put_zcopy(&[Local::all(&host)], &target, target.address(), None);
    put().expect("there is room");
    let error = put().expect_err("the first put still runs");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    transport.flush_wait(Deadline::NEVER).expect("flushed");
    transport
        .put_zcopy(&[Local::all(&host)], &target, target.address(), None)
        .expect("there is room again");
    let stats = transport.stats();
    assert_eq!((stats.blocked, stats.operations), (1, 2));
}
