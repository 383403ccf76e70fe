//! Keys in three scopes.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use gaudi_copy::key::{self, NicRegion, ProcessKey, RemoteAccess, RemoteKey};
use gaudi_copy::{AllocOptions, Attached, ErrorKind, Memory, MemoryDomain};

use crate::suite::{cases, in_child, kind, pattern, read_back, write};

const TIMEOUT: Duration = Duration::from_secs(10);

fn device(domain: &MemoryDomain) -> Memory {
    domain.alloc(4096, AllocOptions::default()).expect("allocated")
}

fn region(memory: &Memory) -> NicRegion {
    NicRegion {
        address: memory.address() + 96,
        len: 4000,
        iova: 0x7000,
        rkey: 0xabcd,
        access: RemoteAccess {
            write: true,
            read: true,
            atomic: false,
        },
        gid: *b"0123456789abcdef",
        node: 42,
    }
}

/// Changes each byte of a key in turn. `refuses` returns whether the change is refused or harmless.
fn sweep(bytes: &[u8], refuses: impl Fn(&[u8]) -> bool) {
    for at in 0..bytes.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut changed = bytes.to_vec();
            changed[at] ^= change;
            assert!(refuses(&changed), "byte {at} xor {change:#x} is refused");
        }
    }
}

cases! { "keys";
    fn process_key_attaches_its_memory(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let bytes = domain.pack(&memory).expect("packed").to_bytes();
        let attached = Attached::unpack(&bytes).expect("attached");
        assert_eq!((attached.address(), attached.len()), (memory.address(), 4096));
        assert_eq!(attached.kind(), memory.kind());
    }
    fn process_key_has_documented_bytes(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let bytes = domain.pack(&memory).expect("packed").to_bytes();
        assert_eq!(&bytes[..8], b"gcpykey\0");
        assert_eq!(bytes[8..16], [1, 0, 1, 2, 64, 0, 0, 0]);
        assert_eq!(bytes[32..40], memory.address().to_le_bytes());
        assert_eq!(bytes[40..48], 4096_u64.to_le_bytes());
        assert_eq!(bytes[48..52], std::process::id().to_le_bytes());
        assert_eq!(bytes[52..], [0; 12]);
    }
    fn process_key_round_trips(fixture) {
        let domain = fixture.domain();
        let host = domain.alloc_host(100).expect("allocated");
        let key = domain.pack(&host).expect("packed");
        let parsed = ProcessKey::parse(&key.to_bytes()).expect("parsed");
        assert_eq!(parsed, key);
        assert_eq!((parsed.address(), parsed.len(), parsed.kind()), (host.address(), 100, host.kind()));
    }
    fn every_changed_byte_of_process_key_is_refused(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let bytes = domain.pack(&memory).expect("packed").to_bytes();
        sweep(&bytes, |changed| Attached::unpack(changed).is_err());
    }
    fn process_key_of_wrong_length_is_refused(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let bytes = domain.pack(&memory).expect("packed").to_bytes();
        for len in [0, 1, 63] {
            assert_eq!(kind(Attached::unpack(&bytes[..len])), ErrorKind::Protocol, "{len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(kind(Attached::unpack(&longer)), ErrorKind::Protocol);
    }
    fn process_key_of_freed_memory_is_not_found(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let bytes = domain.pack(&memory).expect("packed").to_bytes();
        domain.free(memory).expect("freed");
        assert_eq!(kind(Attached::unpack(&bytes)), ErrorKind::NotFound);
        let again = device(&domain);
        assert_eq!(kind(Attached::unpack(&bytes)), ErrorKind::NotFound, "the address is reused");
        drop(again);
    }
    fn process_key_in_other_process_is_denied(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let bytes = domain.pack(&memory).expect("packed").to_bytes();
        let code = in_child(|| i32::from(kind(Attached::unpack(&bytes)) != ErrorKind::AccessDenied));
        assert_eq!(code, 0);
    }
    fn pack_of_other_domains_memory_is_refused(fixture) [Second] {
        let (domain, other) = (fixture.domain(), fixture.other());
        let memory = device(&domain);
        assert_eq!(kind(other.pack(&memory)), ErrorKind::InvalidInput);
    }
    fn attached_key_does_not_hold_memory(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let attached = Attached::to(&memory);
        domain.free(memory).expect("freed");
        let mut transport = gaudi_copy::Transport::new(&domain).expect("a transport");
        let seen = kind(transport.put_short(b"x", &attached, attached.address()));
        assert_eq!(seen, ErrorKind::NotFound);
    }
    fn host_key_passes_memory_to_other_process(fixture) [CpuExport] {
        let domain = fixture.domain();
        let memory = device(&domain);
        write(&domain, &memory, 0, &pattern(4096, 3));
        let info = domain.mem_query(memory.address(), 4096).expect("found");
        let window = domain.window(&info).expect("exported");
        let (here, there) = UnixStream::pair().expect("a socket");
        key::send(&here, &memory, &window, TIMEOUT).expect("sent");
        let code = in_child(|| {
            let key = key::receive(&there, TIMEOUT).expect("received");
            let fields = key.address() == memory.address() && key.len() == 4096 && key.kind() == memory.kind();
            let cpu = key.window().attach_cpu("child").expect("mapped");
            let mut bytes = vec![0; 4096];
            cpu.read(0, &mut bytes).expect("read");
            let same = bytes == pattern(4096, 3);
            cpu.write(10, b"from the child").expect("written");
            i32::from(!fields) + 2 * i32::from(!same)
        });
        assert_eq!(code, 0);
        assert_eq!(read_back(&domain, &memory, 10, 14), b"from the child");
        drop(window);
        domain.free(memory).expect("the child's descriptor is closed");
    }
    fn host_key_is_attached_by_own_domain(fixture) [CpuExport] {
        let domain = fixture.domain();
        let memory = device(&domain);
        let info = domain.mem_query(memory.address(), 4096).expect("found");
        let window = domain.window(&info).expect("exported");
        let (here, there) = UnixStream::pair().expect("a socket");
        key::send(&here, &memory, &window, TIMEOUT).expect("sent");
        let key = key::receive(&there, TIMEOUT).expect("received");
        let attached = Attached::of_host(&domain, &key).expect("attached");
        let source = device(&domain);
        write(&domain, &source, 0, &pattern(4096, 9));
        let mut transport = gaudi_copy::Transport::new(&domain).expect("a transport");
        let local = gaudi_copy::Local::at(&source, 0, 100).expect("inside");
        transport.put_zcopy(&[local], &attached, memory.address() + 50, None).expect("posted");
        transport.flush_wait(gaudi_copy::Deadline::NEVER).expect("flushed");
        assert_eq!(read_back(&domain, &memory, 50, 100), pattern(4096, 9)[..100]);
    }
    fn part_of_memory_is_not_sent(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let info = domain.mem_query(memory.address(), 100).expect("found");
        let window = domain.window(&info).expect("exported");
        let (here, _there) = UnixStream::pair().expect("a socket");
        assert_eq!(kind(key::send(&here, &memory, &window, TIMEOUT)), ErrorKind::InvalidInput);
    }
    fn silent_peer_times_out(fixture) {
        let _ = fixture;
        let (_here, there) = UnixStream::pair().expect("a socket");
        let seen = kind(key::receive(&there, Duration::from_millis(20)));
        assert_eq!(seen, ErrorKind::TimedOut);
    }
    fn closed_peer_is_disconnected(fixture) {
        let _ = fixture;
        let (here, there) = UnixStream::pair().expect("a socket");
        drop(here);
        assert_eq!(kind(key::receive(&there, TIMEOUT)), ErrorKind::Disconnected);
    }
    fn dmabuf_without_key_is_refused(fixture) {
        use std::io::Write as _;
        let domain = fixture.domain();
        let memory = device(&domain);
        let info = domain.mem_query(memory.address(), 4096).expect("found");
        let window = domain.window(&info).expect("exported");
        let key = domain.pack(&memory).expect("packed").to_bytes();
        // A process key, noise, and half a key in place of the host key.
        for (bytes, wanted) in [
            (&key[..], ErrorKind::Protocol),
            (&[7; 64], ErrorKind::Protocol),
            (&key[..32], ErrorKind::Disconnected),
        ] {
            let (mut here, there) = UnixStream::pair().expect("a socket");
            gaudi_dmabuf::send(&here, &window, TIMEOUT).expect("sent");
            here.write_all(bytes).expect("sent");
            drop(here);
            assert_eq!(kind(key::receive(&there, TIMEOUT)), wanted);
        }
        drop(window);
        domain.free(memory).expect("no refused message keeps a descriptor");
    }
    fn remote_key_round_trips(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let key = RemoteKey::pack(&memory, region(&memory)).expect("packed");
        let parsed = RemoteKey::parse(&key.to_bytes()).expect("parsed");
        assert_eq!(parsed, key);
        assert_eq!((*parsed.region(), parsed.kind()), (region(&memory), memory.kind()));
    }
    fn remote_key_has_documented_bytes(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let bytes = RemoteKey::pack(&memory, region(&memory)).expect("packed").to_bytes();
        assert_eq!(bytes[8..16], [1, 0, 3, 2, 128, 0, 0, 0]);
        assert_eq!(bytes[48..56], 0x7000_u64.to_le_bytes());
        assert_eq!(bytes[56..64], [0xcd, 0xab, 0, 0, 3, 0, 0, 0]);
        assert_eq!(&bytes[64..80], b"0123456789abcdef");
        assert_eq!(bytes[80..88], 42_u64.to_le_bytes());
        assert_eq!(bytes[92..], [0; 36]);
    }
    fn remote_key_translates_addresses(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let region = region(&memory);
        let key = RemoteKey::pack(&memory, region).expect("packed");
        assert_eq!(key.iova(region.address, 4000).expect("the whole"), 0x7000);
        assert_eq!(key.iova(region.address + 3999, 1).expect("the last byte"), 0x7000 + 3999);
        for (address, len) in [(region.address - 1, 1), (region.address + 4000, 1), (region.address, 4001), (u64::MAX, 2)] {
            assert_eq!(kind(key.iova(address, len)), ErrorKind::BadAddress);
        }
        let last = NicRegion { iova: u64::MAX - 3999, ..region };
        let last = RemoteKey::pack(&memory, last).expect("up to the last address");
        assert_eq!(kind(last.iova(region.address + 4000, 0)), ErrorKind::BadAddress);
    }
    fn remote_region_outside_memory_is_refused(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let good = region(&memory);
        for (address, len, iova) in [
            (memory.address() - 1, 10, 0),
            (memory.address() + 97, 4000, 0),
            (memory.address(), 0, 0),
            (memory.address(), u64::MAX, 0),
            (memory.address(), 10, u64::MAX - 5),
        ] {
            let bad = NicRegion { address, len, iova, ..good };
            assert_eq!(kind(RemoteKey::pack(&memory, bad)), ErrorKind::InvalidInput, "{bad:?}");
        }
    }
    fn fixed_fields_of_remote_key_are_checked(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let bytes = RemoteKey::pack(&memory, region(&memory)).expect("packed").to_bytes();
        for at in (0..16).chain(61..64).chain(92..128) {
            let mut changed = bytes;
            changed[at] ^= 0x80;
            assert_eq!(kind(RemoteKey::parse(&changed)), ErrorKind::Protocol, "byte {at}");
        }
        for (at, word) in [(16, 0), (24, 0), (40, 0), (40, u64::MAX), (48, u64::MAX)] {
            let mut changed = bytes;
            changed[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
            assert_eq!(kind(RemoteKey::parse(&changed)), ErrorKind::Protocol, "word {at}");
        }
        assert_eq!(kind(RemoteKey::parse(&bytes[..127])), ErrorKind::Protocol);
    }
    fn scopes_are_not_confused(fixture) {
        let domain = fixture.domain();
        let memory = device(&domain);
        let process = domain.pack(&memory).expect("packed").to_bytes();
        let remote = RemoteKey::pack(&memory, region(&memory)).expect("packed").to_bytes();
        assert_eq!(kind(RemoteKey::parse(&process)), ErrorKind::Protocol);
        assert_eq!(kind(ProcessKey::parse(&remote)), ErrorKind::Protocol);
        assert_eq!(kind(ProcessKey::parse(&remote[..64])), ErrorKind::Protocol);
    }
    fn random_bytes_are_refused(fixture) {
        let _ = fixture;
        let mut random = gaudi_sys::random::SplitMix64::new(7);
        let mut bytes = [0; 128];
        for _ in 0..10_000 {
            random.fill(&mut bytes);
            assert!(ProcessKey::parse(&bytes[..64]).is_err() && RemoteKey::parse(&bytes).is_err());
        }
    }
}
