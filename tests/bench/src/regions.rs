//! The cache of memory regions beside UCX's: a hit, from lookup to letting go.

#![expect(unsafe_code, reason = "memory is registered by address")]

use std::hint::black_box;
use std::rc::Rc;

use gaudi_seam::HostVa;
use gaudi_softnic::SoftNic;
use gaudi_sys::RawMapping;
use gaudi_verbs::{Access, CacheLimits, Context, MrAddr, MrCache, MrKey};

use crate::harness::{Goal, Laps, Made, Row};
use crate::threads::{Lap, processors, together};
use crate::ucx::{Cache, Queries, Rcache};

pub(crate) const BYTES: u64 = 64 << 10;
pub(crate) const STRIDE: u64 = 128 << 10;
pub(crate) const LENGTH: u64 = 4 << 10;
pub(crate) const QUERIES: usize = 1 << 16;
/// Where the regions begin, as their keys count them.
pub(crate) const BASE: u64 = 0x7f00_0000_0000;
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// Regions of a software NIC, in a cache, and what is asked of it.
pub struct Regions {
    cache: MrCache,
    queries: Queries,
    /// Where every region lies: nothing is moved, and the addresses of the keys are made up. After
    /// the cache, which goes first.
    _memory: RawMapping,
}

/// Random ones, the same in every run.
pub(crate) fn queries(regions: u64) -> Queries {
    let mut seed = 0x1234_5678_9abc_def1_u64;
    let mut random = |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let offsets = (0..QUERIES).map(|_| random(regions) * STRIDE + random((BYTES - LENGTH) / 64) * 64);
    Queries {
        regions,
        bytes: BYTES,
        stride: STRIDE,
        length: LENGTH,
        offsets: offsets.collect(),
    }
}

impl Regions {
    /// Registers `regions` regions.
    ///
    /// # Errors
    /// The library's first error.
    pub fn new(regions: u64) -> Made<Self> {
        let (nic, _other) = SoftNic::pair(Default::default())?;
        let pd = Context::open(nic)?.alloc_pd()?;
        let limits = CacheLimits {
            entries: usize::MAX,
            bytes: u64::MAX,
        };
        let cache = MrCache::new(&pd, limits);
        let memory = RawMapping::anonymous(BYTES as usize, false)?;
        let address = HostVa(memory.as_ptr().as_ptr().expose_provenance() as u64);
        for region in 0..regions {
            let addr = MrAddr(BASE + region * STRIDE);
            cache.get_or_register(&Self::key(addr, BYTES), |pd, key| {
                // SAFETY: the mapping is dropped after the cache, which deregisters; no code makes
                // a reference to it.
                unsafe { pd.reg_mr(address, BYTES, key.addr, key.access) }
            })?;
        }
        Ok(Self {
            cache,
            queries: queries(regions),
            _memory: memory,
        })
    }

    fn key(addr: MrAddr, len: u64) -> MrKey {
        MrKey {
            generation: 1,
            addr,
            len,
            access: ACCESS,
        }
    }

    /// So many hits, from a query on; how many there were.
    pub fn hit(&self, first: usize, count: u32) -> u32 {
        let (mut hits, mut keys) = (0, 0_u64);
        let mut queries = self.queries.offsets.iter().cycle().skip(first);
        for _ in 0..count {
            let Some(offset) = queries.next() else { break };
            if let Some(mr) = self.cache.get(&Self::key(MrAddr(BASE + offset), LENGTH)) {
                keys = keys.wrapping_add(u64::from(mr.lkey().0));
                hits += 1;
            }
        }
        black_box(keys);
        hits
    }

    /// Hits by one thread on each processor; returns the smallest number of a thread.
    fn hit_by(&self, processors: &[usize], count: u32) -> (u32, Lap) {
        let part = QUERIES / processors.len().max(1);
        let (hits, lap) = together(processors, |thread| self.hit(part * thread, count));
        (hits.into_iter().min().unwrap_or(0), lap)
    }
}

/// Returns the rows, by number of regions and of threads.
///
/// # Errors
/// The library's first error.
pub fn rows() -> Made<Vec<Row<'static>>> {
    let mut rows = Vec::new();
    for regions in [1000, 100_000] {
        let ours = Rc::new(Regions::new(regions)?);
        let theirs = Rcache::start(Cache::Regions, &ours.queries)
            .map(|rcache| Rc::new(std::cell::RefCell::new(rcache)));
        let version = theirs.as_ref().map(|theirs| theirs.borrow().version.clone());
        for threads in [1, 2] {
            let ours = Rc::clone(&ours);
            let on: Vec<usize> = processors().into_iter().cycle().take(threads).collect();
            let laps = Laps::default();
            let (our_laps, their_laps, their_on) = (laps.clone(), laps.clone(), on.clone());
            let version = version.clone().unwrap_or_default();
            rows.push(Row {
                name: match threads {
                    1 => format!("region cache, hit and let go: {regions} regions"),
                    _ => format!("region cache, {threads} threads: {regions} regions"),
                },
                peer: "ucs_rcache_get + put".into(),
                ours: Box::new(move |count| {
                    let (hits, lap) = ours.hit_by(&on, count);
                    debug_assert_eq!(hits, count, "every query is a hit");
                    our_laps.set(lap);
                    black_box(hits);
                }),
                theirs: theirs.clone().map(|theirs| {
                    Box::new(move |count: u32| {
                        let lap = theirs.borrow_mut().run(&their_on, count);
                        debug_assert!(lap.is_ok(), "the peer answers: {lap:?}");
                        their_laps.set(lap.unwrap_or_default());
                    }) as crate::harness::Work<'_>
                }),
                probe: None,
                laps: Some(laps),
                bytes: 0,
                goal: Goal::AtLeast(if threads == 1 { 2.0 } else { 5.0 }),
                note: Box::new(move || version.clone()),
            });
        }
    }
    Ok(rows)
}
