//! Errors of the driver's waits end no operation.

use gaudi_copy::{Attached, Completion, Deadline, ErrorKind, Local, MemoryDomain, Transport};

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
