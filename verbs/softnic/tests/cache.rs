//! The cache of memory regions over the software NIC: which lookups hit, which regions are evicted,
//! and that nothing stays registered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gaudi_dmabuf::DmaBuf;
use gaudi_seam::RawMapping;
use gaudi_softnic::SoftNic;
use gaudi_sys::{Memfd, standin};
use gaudi_verbs::{
    Access, CacheLimits, CachedMr, Context, ErrorKind, Mr, MrAddr, MrCache, MrKey, Pd, Result,
};
use proptest::prelude::*;

const BYTES: u64 = 64 << 10;
const WRITE: Access = Access::LOCAL_WRITE;
const REMOTE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const NO_LIMIT: CacheLimits = CacheLimits {
    entries: usize::MAX,
    bytes: u64::MAX,
};

/// Device memory behind one dma-buf, 64 pieces of 64 KiB.
struct Rig {
    nic: Arc<SoftNic>,
    pd: Pd,
    memory: DmaBuf,
}

const VA: u64 = 0x1001_0018_0000_0000;

impl Rig {
    fn new() -> Self {
        let (nic, _other) = SoftNic::pair(Default::default()).expect("two NICs");
        let pd = Context::open(nic.clone())
            .expect("open")
            .alloc_pd()
            .expect("a domain");
        let memory = Memfd::sparse(standin::MEMFD_NAME, 64 * BYTES).expect("memory");
        let window = standin::export(
            &memory,
            standin::Window {
                offset: 0,
                len: 64 * BYTES,
            },
        )
        .expect("a window");
        let memory = DmaBuf::from_fd(window).expect("a stand-in");
        Self { nic, pd, memory }
    }

    fn cache(&self, limits: CacheLimits) -> MrCache {
        MrCache::new(&self.pd, limits)
    }

    /// Registers the piece that a key begins in.
    fn register(&self, pd: &Pd, key: &MrKey) -> Result<Mr> {
        let piece = (key.addr.0 - VA) / BYTES * BYTES;
        let window = self.memory.window(piece, BYTES)?;
        pd.reg_dmabuf_mr(&window, MrAddr(VA + piece), key.access)
    }

    fn get(&self, cache: &MrCache, key: &MrKey) -> CachedMr {
        cache
            .get_or_register(key, |pd, key| self.register(pd, key))
            .expect("registered")
    }

    fn registered(&self) -> usize {
        self.memory.attachments().len()
    }
}

/// `len` bytes at `offset` of a piece.
fn key(generation: u64, piece: u64, offset: u64, len: u64) -> MrKey {
    MrKey {
        generation,
        addr: MrAddr(VA + piece * BYTES + offset),
        len,
        access: WRITE,
    }
}

#[test]
fn range_inside_region_hits() {
    let rig = Rig::new();
    let cache = rig.cache(NO_LIMIT);
    assert!(cache.get(&key(1, 3, 0, 8)).is_none(), "nothing is kept yet");
    let first = rig.get(&cache, &key(1, 3, 100, 8));
    for inside in [
        key(1, 3, 0, BYTES),
        key(1, 3, BYTES - 1, 1),
        key(1, 3, 4096, 4096),
    ] {
        let hit = cache.get(&inside).expect("a hit");
        assert_eq!(
            (hit.lkey(), hit.rkey()),
            (first.lkey(), first.rkey()),
            "{inside:?}"
        );
        let sge = hit.sge_at(inside.addr, 1).expect("inside");
        assert_eq!((sge.addr, sge.lkey), (inside.addr, first.lkey()));
    }
    for other in [
        key(2, 3, 0, 8),
        key(1, 2, 0, 8),
        key(1, 3, BYTES - 1, 2),
        MrKey {
            access: REMOTE,
            ..key(1, 3, 0, 8)
        },
    ] {
        assert!(cache.get(&other).is_none(), "no hit for {other:?}");
    }
    let beside = first.sge_at(MrAddr(VA), 8).expect_err("before the region");
    assert_eq!(beside.kind(), ErrorKind::InvalidInput);
    let stats = cache.stats();
    assert_eq!(
        (stats.hits, stats.misses, stats.entries, stats.bytes),
        (3, 1, 1, BYTES)
    );
    assert_eq!(rig.registered(), 1);
}

#[test]
fn other_rights_or_generation_miss() {
    let rig = Rig::new();
    let cache = rig.cache(NO_LIMIT);
    let narrow = rig.get(&cache, &key(1, 0, 0, 8));
    let wide = rig.get(
        &cache,
        &MrKey {
            access: REMOTE,
            ..key(1, 0, 0, 8)
        },
    );
    let later = rig.get(&cache, &key(2, 0, 0, 8));
    assert_eq!(
        (narrow.access(), wide.access()),
        (WRITE, REMOTE),
        "no more rights than asked for"
    );
    assert!(narrow.rkey() != wide.rkey() && narrow.rkey() != later.rkey());
    assert_eq!(cache.get(&key(1, 0, 5, 1)).expect("a hit").rkey(), narrow.rkey());
    assert_eq!(cache.get(&key(2, 0, 5, 1)).expect("a hit").rkey(), later.rkey());
    let done = cache.invalidate_generation(1);
    assert_eq!((done.closed, done.in_use), (0, 2), "both are in use");
    drop((narrow, wide));
    assert_eq!(rig.registered(), 1, "the last users deregistered them");
    assert!(
        cache.get(&key(2, 0, 5, 1)).is_some(),
        "another allocation is none of it"
    );
}

#[test]
fn invalidated_region_lives_until_last_user() {
    let rig = Rig::new();
    let cache = rig.cache(NO_LIMIT);
    let mr = rig.get(&cache, &key(1, 0, 0, 8));
    let again = mr.clone();
    drop(rig.get(&cache, &key(1, 1, 0, 8)));
    assert!(mr.is_current());
    let done = cache.invalidate_range(Some(1), MrAddr(VA), 2 * BYTES);
    assert_eq!(
        (done.closed, done.in_use, done.refused.len()),
        (1, 1, 0),
        "the idle region is evicted"
    );
    assert!(!mr.is_current(), "the user can know");
    assert!(cache.get(&key(1, 0, 0, 8)).is_none(), "it is no longer found");
    assert_eq!(
        (rig.registered(), mr.state().is_ok()),
        (1, true),
        "its keys stay good"
    );
    let new = rig.get(&cache, &key(1, 0, 0, 8));
    assert!(new.rkey() != mr.rkey(), "a new request gets another region");
    drop(mr);
    assert_eq!(rig.registered(), 2, "a clone is a user");
    // In whatever thread it ends.
    std::thread::spawn(move || drop(again)).join().expect("no panic");
    assert_eq!(rig.registered(), 1, "the last user deregistered it");
    let stats = cache.stats();
    assert_eq!((stats.invalidations, stats.evictions, stats.entries), (2, 0, 1));
}

#[test]
fn least_recently_used_regions_are_evicted() {
    let limits = [
        CacheLimits {
            entries: 3,
            bytes: u64::MAX,
        },
        CacheLimits {
            entries: usize::MAX,
            bytes: 3 * BYTES,
        },
    ];
    for limits in limits {
        let rig = Rig::new();
        let cache = rig.cache(limits);
        let held = rig.get(&cache, &key(1, 0, 0, 8));
        for piece in [1, 2, 1, 3] {
            drop(rig.get(&cache, &key(1, piece, 0, 8)));
        }
        assert!(cache.get(&key(1, 2, 0, 8)).is_none(), "2 was longest unused");
        for piece in [0, 1, 3] {
            assert!(cache.get(&key(1, piece, 0, 8)).is_some(), "{piece} stays");
        }
        let stats = cache.stats();
        assert_eq!((stats.evictions, stats.entries, stats.bytes), (1, 3, 3 * BYTES));
        assert_eq!(rig.registered(), 3, "what was evicted is deregistered");
        // All in use: the limits give way, and are kept again with the next miss.
        let more: Vec<_> = (0..6)
            .map(|piece| rig.get(&cache, &key(1, piece, 0, 8)))
            .collect();
        assert_eq!((cache.stats().entries, rig.registered()), (6, 6));
        drop((more, held));
        drop(rig.get(&cache, &key(1, 9, 0, 8)));
        assert_eq!((cache.stats().entries, rig.registered()), (3, 3));
    }
}

#[test]
fn unusable_region_is_removed() {
    let rig = Rig::new();
    let cache = rig.cache(NO_LIMIT);
    let other = rig.pd.context().alloc_pd().expect("a domain");
    let wanted = key(1, 0, 0, 8);
    let wide = MrKey {
        access: REMOTE,
        ..wanted
    };
    type Register<'a> = &'a dyn Fn(&Pd) -> Result<Mr>;
    let wrong: [(&str, Register<'_>); 3] = [
        ("another domain", &|_| rig.register(&other, &wanted)),
        ("other rights", &|pd| rig.register(pd, &wide)),
        ("does not contain", &|pd| rig.register(pd, &key(1, 5, 0, 8))),
    ];
    for (what, register) in wrong {
        let error = cache
            .get_or_register(&wanted, |pd, _| register(pd))
            .expect_err(what);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    for (addr, len) in [(VA, 0), (u64::MAX, 2)] {
        let key = MrKey {
            addr: MrAddr(addr),
            len,
            ..wanted
        };
        assert!(cache.get(&key).is_none());
        let error = cache
            .get_or_register(&key, |pd, key| rig.register(pd, key))
            .expect_err("no range");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!((rig.registered(), cache.stats().entries), (0, 0), "none was kept");
    let failed = cache.get_or_register(&wanted, |_, _| {
        Err(gaudi_verbs::Error::new(ErrorKind::OutOfMemory, "ibv_reg_mr"))
    });
    assert_eq!(failed.expect_err("the maker's").kind(), ErrorKind::OutOfMemory);
    assert!(
        cache
            .get_or_register(&wanted, |pd, key| rig.register(pd, key))
            .is_ok(),
        "and the next one is made"
    );
}

#[test]
fn host_memory_is_cached_by_address() {
    let rig = Rig::new();
    let cache = rig.cache(NO_LIMIT);
    let memory = Arc::new(RawMapping::anonymous(1 << 20, false).expect("memory"));
    let start = memory.as_ptr().as_ptr().addr() as u64;
    let key = |offset| MrKey {
        generation: 0,
        addr: MrAddr(start + offset),
        len: 64,
        access: WRITE,
    };
    let mr = cache
        .get_or_register(&key(5000), |pd, key| pd.reg_mapping(memory.clone(), key.access))
        .expect("registered");
    assert_eq!(cache.get(&key(0)).expect("a hit").lkey(), mr.lkey());
    assert_eq!(cache.get(&key((1 << 20) - 64)).expect("a hit").lkey(), mr.lkey());
    drop(mr);
    assert_eq!(Arc::strong_count(&memory), 2, "the region holds its memory");
    let done = cache.invalidate_range(None, MrAddr(start + 77), 1);
    assert_eq!(
        (done.closed, Arc::strong_count(&memory)),
        (1, 1),
        "and lets it go"
    );
}

#[test]
fn close_names_regions_in_use() {
    let rig = Rig::new();
    let cache = rig.cache(NO_LIMIT);
    let held = rig.get(&cache, &key(1, 0, 0, 8));
    drop(rig.get(&cache, &key(1, 1, 0, 8)));
    let (cache, error) = cache.close().expect_err("one is in use").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    assert_eq!((rig.registered(), cache.stats().entries), (1, 0));
    drop(held);
    cache.close().expect("nothing is left");
    assert_eq!(rig.registered(), 0);
    // Dropping does the same, but for the report; what is in use outlives the cache.
    let cache = rig.cache(NO_LIMIT);
    let held = rig.get(&cache, &key(1, 0, 0, 8));
    drop(rig.get(&cache, &key(1, 1, 0, 8)));
    drop(cache);
    assert_eq!((rig.registered(), held.is_current()), (1, true));
    drop(held);
    assert_eq!(rig.registered(), 0);
    let Rig { nic, pd, .. } = rig;
    pd.close().expect("no region holds it");
    drop(nic);
}

#[derive(Debug, Clone)]
enum Step {
    Get {
        generation: u64,
        piece: u64,
        offset: u64,
        wide: bool,
        hold: bool,
    },
    Generation(u64),
    Range(u64, u64),
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3_u64, 0..8_u64, 0..BYTES, any::<bool>(), any::<bool>())
            .prop_map(|(generation, piece, offset, wide, hold)| Step::Get { generation, piece, offset, wide, hold }),
        1 => (0..3_u64).prop_map(Step::Generation),
        1 => (0..8 * BYTES, 1..3 * BYTES).prop_map(|(at, len)| Step::Range(at, len)),
        3 => any::<usize>().prop_map(Step::Drop),
    ]
}

proptest! {
    #![proptest_config(gaudi_random::config(48))]

    /// Whatever was asked for and taken away: a region is the right one, is registered for as long
    /// as anybody has it, and no longer.
    #[test]
    fn any_use_is_right(entries in 1_usize..6, steps in prop::collection::vec(step(), 1..60)) {
        let rig = Rig::new();
        let cache = rig.cache(CacheLimits { entries, bytes: u64::MAX });
        let mut held: Vec<(CachedMr, MrKey)> = Vec::new();
        for step in steps {
            let misses = cache.stats().misses;
            match step {
                Step::Get { generation, piece, offset, wide, hold } => {
                    let access = if wide { REMOTE } else { WRITE };
                    let wanted = MrKey { access, ..key(generation, piece, offset, 1) };
                    let mr = rig.get(&cache, &wanted);
                    prop_assert_eq!((mr.access(), mr.addr()), (access, MrAddr(VA + piece * BYTES)));
                    prop_assert!(mr.is_current());
                    if hold {
                        held.push((mr, wanted));
                    }
                }
                Step::Generation(generation) => {
                    let done = cache.invalidate_generation(generation);
                    prop_assert!(done.refused.is_empty());
                    for (mr, key) in &held {
                        prop_assert!(key.generation != generation || !mr.is_current(), "{:?}", key);
                    }
                }
                Step::Range(at, len) => {
                    let done = cache.invalidate_range(None, MrAddr(VA + at), len);
                    prop_assert!(done.refused.is_empty());
                    for (mr, _) in &held {
                        let (start, end) = (mr.addr().0 - VA, mr.addr().0 - VA + mr.len());
                        prop_assert!(end <= at || at + len <= start || !mr.is_current());
                    }
                }
                Step::Drop(which) if !held.is_empty() => drop(held.swap_remove(which % held.len())),
                Step::Drop(_) => {}
            }
            for (mr, _) in &held {
                prop_assert!(mr.state().is_ok(), "what is held is registered");
            }
            let mut stale: Vec<u32> = held.iter().filter(|(mr, _)| !mr.is_current()).map(|(mr, _)| mr.rkey().0).collect();
            stale.sort_unstable();
            stale.dedup();
            prop_assert_eq!(rig.registered(), cache.stats().entries + stale.len(), "cached, or in use");
            // A miss enforces the limits; released regions stay cached until the next miss.
            prop_assert!(cache.stats().misses == misses || cache.stats().entries <= entries + held.len() + 1);
        }
        held.clear();
        prop_assert!(cache.close().is_ok());
        prop_assert_eq!(rig.registered(), 0);
    }
}

/// An allocation is freed by one thread while another's miss throws its region out: when the
/// invalidation returns, the region is deregistered.
#[test]
fn invalidation_waits_for_eviction() {
    let rig = Rig::new();
    let cache = rig.cache(CacheLimits {
        entries: 1,
        bytes: u64::MAX,
    });
    let (freed, other) = (key(1, 0, 0, 8), key(2, 1, 0, 8));
    for round in 0..gaudi_random::cases(400) {
        drop(rig.get(&cache, &freed));
        let before = cache.stats().evictions;
        std::thread::scope(|scope| {
            let miss = scope.spawn(|| drop(rig.get(&cache, &other)));
            // Not by a hit: what is in use is not evicted.
            while cache.stats().evictions == before && !miss.is_finished() {
                std::hint::spin_loop();
            }
            let done = cache.invalidate_generation(1);
            assert_eq!((done.closed, done.in_use), (0, 0), "it left the cache before");
            let left = rig.registered();
            assert!(
                left <= 1,
                "round {round}: {left} regions, of which the other's is one"
            );
            miss.join().expect("no panic");
        });
        let _ = cache.invalidate_all();
    }
}

#[test]
fn hits_continue_while_regions_change() {
    let rig = Arc::new(Rig::new());
    let cache = Arc::new(rig.cache(CacheLimits {
        entries: 6,
        bytes: u64::MAX,
    }));
    let stop = Arc::new(AtomicBool::new(false));
    let users: Vec<_> = (0..2_u64)
        .map(|user| {
            let (rig, cache, stop) = (Arc::clone(&rig), Arc::clone(&cache), Arc::clone(&stop));
            std::thread::spawn(move || {
                let (mut at, mut kept) = (user, Vec::new());
                for _ in 0..gaudi_random::cases(1500) {
                    at = at
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let wanted = key((at >> 50) % 2, (at >> 33) % 10, (at >> 40) % BYTES, 1);
                    let mr = rig.get(&cache, &wanted);
                    assert_eq!(mr.addr().0, wanted.addr.0 / BYTES * BYTES, "the right one");
                    assert!(mr.state().is_ok(), "and registered");
                    kept.push(mr);
                    if kept.len() > 4 {
                        kept.clear();
                    }
                }
                stop.store(true, Ordering::Relaxed);
            })
        })
        .collect();
    let mut rounds = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let done = cache.invalidate_generation(rounds % 2);
        assert!(done.refused.is_empty(), "{done:?}");
        rounds += 1;
        std::thread::yield_now();
    }
    for user in users {
        user.join().expect("no panic");
    }
    let stats = cache.stats();
    println!("{rounds} invalidations beside {stats:?}");
    let cache = Arc::into_inner(cache).expect("the only owner");
    cache.close().expect("no region is in use");
    assert_eq!(rig.registered(), 0, "nothing stays registered");
}
