//! Copies of bytes of the program, for callers that wait.

#![expect(unsafe_code, reason = "bytes that a copy fills until the flush")]

use gaudi_copy::{AllocOptions, Attached, Copier, Deadline, DeviceSpec, MemoryDomain, Transport};

#[test]
fn bytes_of_several_pieces_come_back() {
    let spec: DeviceSpec = "mock:gaudi2?name=pieces".parse().expect("a spec");
    let domain = MemoryDomain::new(&spec).expect("a domain");
    let config = *domain.config();
    for len in [1, config.short_bytes + 1, 3 * config.bcopy_bytes + 77] {
        let memory = domain
            .alloc(len as u64, AllocOptions::default())
            .expect("device memory");
        let (remote, address) = (Attached::to(&memory), memory.address());
        let sent: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut got = vec![0; len];
        let mut transport = Transport::new(&domain).expect("a transport");
        transport.write_bytes(&sent, &remote, address).expect("accepted");
        transport.flush_wait(Deadline::NEVER).expect("written");
        // SAFETY: nothing accesses `got` before the flush.
        unsafe { transport.read_bytes(&mut got, &remote, address) }.expect("accepted");
        transport.flush_wait(Deadline::NEVER).expect("read");
        assert!(got == sent, "{len} bytes");
        let end = address + memory.len() - len as u64 + 1;
        transport
            .write_bytes(&sent, &remote, end)
            .expect_err("the last piece leaves the memory");
    }
}

#[test]
fn copier_reaches_memory_of_another_card() {
    let domain = |index: u32| {
        let spec = format!("mock:gaudi2?name=copier&index={index}");
        MemoryDomain::new(&spec.parse().expect("a spec")).expect("a domain")
    };
    let (own, other) = (Copier::new(&domain(0)), domain(1));
    for len in [8, 100_000] {
        let memory = other
            .alloc(len as u64, AllocOptions::default())
            .expect("device memory");
        let (remote, address) = (Attached::to(&memory), memory.address());
        let sent: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
        let (mut got, mut again) = (vec![0; len], vec![0; len]);
        let bytes = len as u64;
        let start = |bytes: &[u8]| bytes.as_ptr().addr() as u64;
        // SAFETY: the vectors have `len` bytes each, and nothing else uses them.
        unsafe { own.copy(address, start(&sent), bytes) }.expect("to the other card");
        // SAFETY: as above.
        unsafe { own.copy(got.as_mut_ptr().expose_provenance() as u64, address, bytes) }.expect("from it");
        assert!(got == sent, "{len} bytes");
        let other_bytes: Vec<u8> = sent.iter().map(|byte| !byte).collect();
        // SAFETY: as above.
        unsafe { own.put(&remote, address, start(&other_bytes), bytes) }.expect("by a key");
        // SAFETY: as above.
        unsafe {
            own.get(
                again.as_mut_ptr().expose_provenance() as u64,
                &remote,
                address,
                bytes,
            )
        }
        .expect("by a key");
        assert!(again == other_bytes, "{len} bytes by a key");
        other
            .free(memory)
            .map_err(|failure| failure.into_parts().1)
            .expect("no copy holds the memory");
    }
    other
        .close()
        .map_err(|failure| failure.into_parts().1)
        .expect("no transport holds the other card");
}
