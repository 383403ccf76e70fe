//! Lookups of the type of memory by its address, beside UCX's cache of memory types.

use std::cell::RefCell;
use std::hint::black_box;

use gaudi_copy::{MemoryType, MemoryTypeCache};
use gaudi_device::DeviceId;
use gaudi_seam::Backend;

use crate::harness::{Goal, Laps, Made, Row, Work};
use crate::regions::{BASE, BYTES, LENGTH, QUERIES, STRIDE, queries};
use crate::threads::{Lap, processors, together};
use crate::ucx::{Cache, Queries, Rcache};

const CARD: DeviceId = DeviceId::new(Backend::Mock, 3);
/// Beyond every region: memory of the host.
const HOST: u64 = 1 << 40;

/// Ranges of device memory, and the addresses to look up.
pub struct Types {
    cache: MemoryTypeCache,
    queries: Queries,
}

impl Types {
    /// Makes a cache of `regions` ranges, and queries of device memory or of host memory.
    ///
    /// # Errors
    /// The library's first error.
    pub fn new(regions: u64, of: MemoryType) -> Made<Self> {
        let cache = MemoryTypeCache::new(true);
        for region in 0..regions {
            cache.insert(BASE + region * STRIDE, BYTES, CARD)?;
        }
        let mut queries = queries(regions);
        if of == MemoryType::Host {
            queries.offsets.iter_mut().for_each(|offset| *offset += HOST);
        }
        Ok(Self { cache, queries })
    }

    /// Looks up `count` queries, from number `first` on. Returns how many found device memory.
    pub fn lookup(&self, first: usize, count: u32) -> u32 {
        let offsets = self.queries.offsets.as_slice();
        let (mut found, mut at) = (0, first);
        // The loop of the peer's program, so that both pay the same for it.
        for _ in 0..count {
            let typed = self.cache.lookup(BASE + offsets[at], LENGTH);
            found += u32::from(typed.kind == MemoryType::Device);
            at += 1;
            if at == offsets.len() {
                at = 0;
            }
        }
        black_box(found)
    }

    fn lookup_by(&self, processors: &[usize], count: u32) -> Lap {
        let part = QUERIES / processors.len().max(1);
        together(processors, |thread| self.lookup(part * thread, count)).1
    }
}

/// Returns the rows.
///
/// # Errors
/// The library's first error.
pub fn rows() -> Made<Vec<Row<'static>>> {
    let device = MemoryType::Device;
    Ok(vec![
        row("hit of 1000 ranges", 1000, device, 1, 2.0)?,
        row("hit of 100000 ranges, random", 100_000, device, 1, 2.0)?,
        row("host memory, 1000 ranges", 1000, MemoryType::Host, 1, 6.0)?,
        row("hit of 1000 ranges, 2 threads", 1000, device, 2, 10.0)?,
    ])
}

fn row(name: &str, regions: u64, of: MemoryType, threads: usize, goal: f64) -> Made<Row<'static>> {
    let ours = Types::new(regions, of)?;
    let theirs = Rcache::start(Cache::Types, &ours.queries);
    let version = theirs.as_ref().ok().map(|theirs| theirs.version.clone());
    let on: Vec<usize> = processors().into_iter().cycle().take(threads).collect();
    let laps = Laps::default();
    let (our_laps, their_laps, their_on) = (laps.clone(), laps.clone(), on.clone());
    let theirs = theirs.map(RefCell::new);
    Ok(Row {
        name: format!("memory type, {name}"),
        peer: "ucs_memtype_cache_lookup".into(),
        ours: Box::new(move |count| our_laps.set(ours.lookup_by(&on, count))),
        theirs: theirs.map(|theirs| {
            Box::new(move |count: u32| {
                let lap = theirs.borrow_mut().run(&their_on, count);
                debug_assert!(lap.is_ok(), "the peer answers: {lap:?}");
                their_laps.set(lap.unwrap_or_default());
            }) as Work<'_>
        }),
        probe: None,
        laps: Some(laps),
        bytes: 0,
        goal: Goal::AtLeast(goal),
        note: Box::new(move || version.clone().unwrap_or_default()),
    })
}
