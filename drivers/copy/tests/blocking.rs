//! Copies of bytes of the program, for callers that wait.

#![expect(unsafe_code, reason = "bytes that a copy fills until the flush")]

use gaudi_copy::{AllocOptions, Attached, Deadline, DeviceSpec, MemoryDomain, Transport};

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
