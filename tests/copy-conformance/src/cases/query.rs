//! Queries by address.

use gaudi_copy::{AllocOptions, ErrorKind, Memory, MemoryDomain, MemoryType};
use gaudi_sys::{RawMapping, fd};

use super::register::{foreign, mapping, register};
use crate::suite::{Case, Fixture, cases, kind};

/// Bytes of the memory of a boundary case: neither a page nor a cache line.
const LEN: u64 = 4096 + 100;

/// Memory to query, with what must outlive it.
struct Subject {
    domain: MemoryDomain,
    memory: Memory,
    kind: MemoryType,
    _parent: Option<Memory>,
    _map: Option<RawMapping>,
}

fn allocated(fixture: &Fixture, options: AllocOptions) -> Subject {
    let domain = fixture.domain();
    let memory = domain.alloc(LEN, options).expect("allocated");
    Subject {
        domain,
        memory,
        kind: MemoryType::Device,
        _parent: None,
        _map: None,
    }
}

fn private(fixture: &Fixture) -> Subject {
    allocated(fixture, AllocOptions::PRIVATE)
}

fn exported(fixture: &Fixture) -> Subject {
    allocated(fixture, AllocOptions::EXPORTED)
}

fn pinned(fixture: &Fixture) -> Subject {
    let domain = fixture.domain();
    let memory = domain.alloc_host(LEN as usize).expect("allocated");
    Subject {
        domain,
        memory,
        kind: MemoryType::Host,
        _parent: None,
        _map: None,
    }
}

fn registered(fixture: &Fixture) -> Subject {
    let (domain, map) = (fixture.domain(), mapping(5 * 4096));
    let memory = register(&domain, &map, 4096 + 1, LEN as usize);
    Subject {
        domain,
        memory,
        kind: MemoryType::Host,
        _parent: None,
        _map: Some(map),
    }
}

fn dmabuf(fixture: &Fixture) -> Subject {
    let domain = fixture.domain();
    let (window, view) = foreign(4 * 4096);
    let memory = domain
        .register_dmabuf(&window.window(77, LEN).expect("a part"))
        .expect("registered");
    Subject {
        domain,
        memory,
        kind: MemoryType::Host,
        _parent: None,
        _map: Some(view),
    }
}

impl Subject {
    /// The query of a range that lies inside finds the whole memory.
    fn finds(&self, offset: u64, len: u64) {
        let address = self.memory.address() + offset;
        let info = self.domain.mem_query(address, len).expect("found");
        assert_eq!((info.base, info.len), (self.memory.address(), LEN));
        assert_eq!((info.kind, info.device), (self.kind, self.memory.device()));
    }

    /// The query of any other range fails.
    fn misses(&self, address: u64, len: u64, wanted: ErrorKind) {
        assert_eq!(
            kind(self.domain.mem_query(address, len)),
            wanted,
            "{len} at {address:#x}"
        );
    }
}

fn pooled(fixture: &Fixture) -> Subject {
    allocated(fixture, AllocOptions::POOLED)
}

macro_rules! boundaries {
    ($($subject:ident: $first:ident $last:ident $whole:ident $none:ident $interior:ident $before:ident $after:ident $past:ident $wrap:ident,)*) => {
        /// Every boundary of each kind of memory.
        pub(super) const BOUNDARIES: &[Case] = &[
            $(Case::new("boundaries", stringify!($first), "drivers/copy", |fixture| $subject(fixture).finds(0, 1)),
            Case::new("boundaries", stringify!($last), "drivers/copy", |fixture| $subject(fixture).finds(LEN - 1, 1)),
            Case::new("boundaries", stringify!($whole), "drivers/copy", |fixture| $subject(fixture).finds(0, LEN)),
            Case::new("boundaries", stringify!($none), "drivers/copy", |fixture| {
                let subject = $subject(fixture);
                subject.finds(0, 0);
                subject.finds(LEN - 1, 0);
            }),
            Case::new("boundaries", stringify!($interior), "drivers/copy", |fixture| {
                let subject = $subject(fixture);
                for offset in [1, 63, 127, 128, 2047, 4095, 4096, LEN - 2] {
                    subject.finds(offset, 2);
                    subject.finds(offset, LEN - offset);
                }
            }),
            Case::new("boundaries", stringify!($before), "drivers/copy", |fixture| {
                let subject = $subject(fixture);
                let base = subject.memory.address();
                subject.misses(base - 1, 1, ErrorKind::NotFound);
                subject.misses(base - 1, LEN, ErrorKind::NotFound);
                subject.misses(base - 1, LEN + 2, ErrorKind::NotFound);
            }),
            Case::new("boundaries", stringify!($after), "drivers/copy", |fixture| {
                let subject = $subject(fixture);
                subject.misses(subject.memory.address() + LEN, 1, ErrorKind::NotFound);
                subject.misses(subject.memory.address() + LEN, 0, ErrorKind::NotFound);
            }),
            Case::new("boundaries", stringify!($past), "drivers/copy", |fixture| {
                let subject = $subject(fixture);
                let base = subject.memory.address();
                subject.misses(base, LEN + 1, ErrorKind::InvalidInput);
                subject.misses(base + LEN - 1, 2, ErrorKind::InvalidInput);
                subject.misses(base + 1, LEN, ErrorKind::InvalidInput);
            }),
            Case::new("boundaries", stringify!($wrap), "drivers/copy", |fixture| {
                let subject = $subject(fixture);
                subject.misses(subject.memory.address(), u64::MAX, ErrorKind::InvalidInput);
                subject.misses(u64::MAX, 2, ErrorKind::InvalidInput);
            }),)*
        ];
    };
}

boundaries! {
    private: private_first_byte_is_found private_last_byte_is_found private_whole_range_is_found
        private_empty_range_counts_as_byte private_interior_finds_whole private_byte_before_is_missed
        private_byte_after_is_missed private_range_past_end_is_refused private_wrapping_range_is_refused,
    exported: exported_first_byte_is_found exported_last_byte_is_found exported_whole_range_is_found
        exported_empty_range_counts_as_byte exported_interior_finds_whole exported_byte_before_is_missed
        exported_byte_after_is_missed exported_range_past_end_is_refused exported_wrapping_range_is_refused,
    pooled: pooled_first_byte_is_found pooled_last_byte_is_found pooled_whole_range_is_found
        pooled_empty_range_counts_as_byte pooled_interior_finds_whole pooled_byte_before_is_missed
        pooled_byte_after_is_missed pooled_range_past_end_is_refused pooled_wrapping_range_is_refused,
    pinned: pinned_first_byte_is_found pinned_last_byte_is_found pinned_whole_range_is_found
        pinned_empty_range_counts_as_byte pinned_interior_finds_whole pinned_byte_before_is_missed
        pinned_byte_after_is_missed pinned_range_past_end_is_refused pinned_wrapping_range_is_refused,
    registered: registered_first_byte_is_found registered_last_byte_is_found registered_whole_range_is_found
        registered_empty_range_counts_as_byte registered_interior_finds_whole registered_byte_before_is_missed
        registered_byte_after_is_missed registered_range_past_end_is_refused registered_wrapping_range_is_refused,
    dmabuf: dmabuf_first_byte_is_found dmabuf_last_byte_is_found dmabuf_whole_range_is_found
        dmabuf_empty_range_counts_as_byte dmabuf_interior_finds_whole dmabuf_byte_before_is_missed
        dmabuf_byte_after_is_missed dmabuf_range_past_end_is_refused dmabuf_wrapping_range_is_refused,
}

cases! { "queries";
    fn query_before_any_memory_opens_nothing(fixture) [Closed] {
        let domain = fixture.domain();
        assert_eq!(kind(domain.mem_query(0x1000, 8)), ErrorKind::NotFound);
        assert!(!domain.is_open());
    }
    fn stack_address_is_not_found(fixture) {
        let (domain, local) = (fixture.domain(), 0_u64);
        let _memory = domain.alloc(64, AllocOptions::default()).expect("allocated");
        let address = std::ptr::from_ref(&local).addr() as u64;
        assert_eq!(kind(domain.mem_query(address, 8)), ErrorKind::NotFound);
    }
    fn freed_memory_is_not_found(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(64, AllocOptions::default()).expect("allocated");
        let address = memory.address();
        domain.free(memory).expect("freed");
        assert_eq!(kind(domain.mem_query(address, 1)), ErrorKind::NotFound);
    }
    fn neighbours_are_told_apart(fixture) {
        let domain = fixture.domain();
        let alloc = || domain.alloc(128, AllocOptions::PRIVATE).expect("allocated");
        let memories = [alloc(), alloc(), alloc()];
        for memory in &memories {
            for offset in [0, 127] {
                let info = domain.mem_query(memory.address() + offset, 1).expect("found");
                assert_eq!((info.base, info.len), (memory.address(), 128));
            }
        }
        let low = memories.iter().map(Memory::address).min().expect("three");
        assert_eq!(kind(domain.mem_query(low, 129)), ErrorKind::InvalidInput, "two are not one");
    }
    fn dmabuf_offset_is_that_of_address(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(3 * 4096, AllocOptions::EXPORTED).expect("allocated");
        for offset in [0, 1, 4095, 4096, 8191, 3 * 4096 - 1] {
            let info = domain.mem_query(memory.address() + offset, 1).expect("found");
            let part = domain.dmabuf(&info).expect("a dma-buf");
            assert_eq!(part.len, 1);
            let whole = domain.mem_query(memory.address(), 1).expect("found");
            let start = domain.dmabuf(&whole).expect("a dma-buf");
            assert_eq!(part.offset - start.offset, offset);
            assert_eq!(fd::file_id(&part.fd), fd::file_id(&start.fd), "one export");
        }
    }
    fn dmabuf_descriptor_is_the_callers(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(4096, AllocOptions::EXPORTED).expect("allocated");
        let info = domain.mem_query(memory.address(), 4096).expect("found");
        let (one, two) = (domain.dmabuf(&info).expect("one"), domain.dmabuf(&info).expect("two"));
        drop(one);
        assert!(fd::file_id(&two.fd).is_ok(), "the second stays open");
        drop(two);
        domain.free(memory).expect("closed descriptors hold nothing");
    }
    fn open_descriptor_holds_memory(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        let info = domain.mem_query(memory.address(), 4096).expect("found");
        let part = domain.dmabuf(&info).expect("a dma-buf");
        let (memory, error) = domain.free(memory).expect_err("the descriptor holds it").into_parts();
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        drop(part);
        domain.free(memory).expect("freed");
    }
    fn private_memory_has_no_dmabuf(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(4096, AllocOptions::PRIVATE).expect("allocated");
        let info = domain.mem_query(memory.address(), 1).expect("found");
        assert_eq!(kind(domain.dmabuf(&info)), ErrorKind::InvalidInput);
    }
    fn pinned_host_memory_has_no_dmabuf(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc_host(4096).expect("allocated");
        let info = domain.mem_query(memory.address(), 1).expect("found");
        assert_eq!(kind(domain.dmabuf(&info)), ErrorKind::Unsupported);
    }
    fn registered_dmabuf_returns_itself(fixture) {
        let domain = fixture.domain();
        let (window, _view) = foreign(8192);
        let memory = domain.register_dmabuf(&window.window(100, 5000).expect("a part")).expect("registered");
        let info = domain.mem_query(memory.address() + 10, 20).expect("found");
        let part = domain.dmabuf(&info).expect("a dma-buf");
        assert_eq!((part.offset, part.len), (110, 20));
        assert_eq!(fd::file_id(&part.fd), fd::file_id(window.dmabuf()));
    }
    fn dmabuf_of_freed_memory_is_not_found(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        let info = domain.mem_query(memory.address(), 1).expect("found");
        domain.free(memory).expect("freed");
        assert_eq!(kind(domain.dmabuf(&info)), ErrorKind::NotFound);
    }
    fn advise_exports_once(fixture) {
        let domain = fixture.domain();
        let memory = domain.alloc(4096, AllocOptions::default()).expect("allocated");
        let before = gaudi_dmabuf::stats().live;
        domain.advise(memory.address(), 4096).expect("advised");
        domain.advise(memory.address() + 1, 5).expect("advised again");
        assert_eq!(gaudi_dmabuf::stats().live, before + 1);
        domain.free(memory).expect("the advice does not hold the memory");
        assert_eq!(gaudi_dmabuf::stats().live, before);
    }
    fn advise_accepts_memory_without_export(fixture) {
        let domain = fixture.domain();
        let private = domain.alloc(64, AllocOptions::PRIVATE).expect("allocated");
        let host = domain.alloc_host(64).expect("allocated");
        domain.advise(private.address(), 64).expect("advised");
        domain.advise(host.address(), 64).expect("advised");
        assert_eq!(kind(domain.advise(8, 8)), ErrorKind::NotFound);
    }
}
