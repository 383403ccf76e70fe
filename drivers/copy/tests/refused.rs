//! A free that the driver refuses loses nothing of the memory.

use gaudi_copy::{
    AllocOptions, Attached, Deadline, DeviceSpec, ErrorKind, Local, Memory, MemoryDomain, Transport,
};
use gaudi_hal::mock_ledger;

/// A domain, its memory, and a refused free of that: a descriptor of its dma-buf is open.
fn refuse(domain: &MemoryDomain, options: AllocOptions, between: impl FnOnce(&Memory)) -> Memory {
    let memory = domain.alloc(4096, options).expect("device memory");
    between(&memory);
    let info = domain.mem_query(memory.address(), 1).expect("known");
    let part = domain.dmabuf(&info).expect("exported");
    let (memory, error) = domain.free(memory).expect_err("the dma-buf is open").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    drop(part.fd);
    memory
}

#[test]
fn key_works_after_a_refused_free() {
    let spec: DeviceSpec = "mock:gaudi2?name=refused-key".parse().expect("a spec");
    let domain = MemoryDomain::new(&spec).expect("a domain");
    let host = domain.alloc_host(4096).expect("host memory");
    let mut attached = None;
    let memory = refuse(&domain, AllocOptions::default(), |memory| {
        let key = domain.pack(memory).expect("packed");
        attached = Some(Attached::unpack(&key.to_bytes()).expect("attached"));
    });
    let attached = attached.expect("attached");
    let mut transport = Transport::new(&domain).expect("a transport");
    transport
        .put_zcopy(&[Local::all(&host)], &attached, attached.address(), None)
        .expect("the memory is not freed");
    transport.flush_wait(Deadline::NEVER).expect("copied");
    domain
        .free(memory)
        .map_err(|failure| failure.into_parts().1)
        .expect("freed");
    let error = transport
        .put_zcopy(&[Local::all(&host)], &attached, attached.address(), None)
        .expect_err("the memory is freed");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn export_stays_after_a_refused_free() {
    let spec: DeviceSpec = "mock:gaudi2?name=refused-export".parse().expect("a spec");
    let domain = MemoryDomain::new(&spec).expect("a domain");
    let is_exported = || mock_ledger(&spec).expect("the mock").exported;
    let memory = refuse(&domain, AllocOptions::EXPORTED, |_| {});
    assert!(is_exported(), "the export of the allocation");
    domain
        .free(memory)
        .map_err(|failure| failure.into_parts().1)
        .expect("freed");
    assert!(!is_exported(), "after the free");
}
