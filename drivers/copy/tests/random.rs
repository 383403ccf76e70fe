//! Random allocations, releases, queries, exports and keys against a reference.
//!
//! `GAUDI_COPY_STEPS` sets the number of steps.

use std::collections::BTreeMap;

use gaudi_copy::{AllocOptions, Attached, Error, ErrorKind, Memory, MemoryDomain, MemoryType, memory_types};
use gaudi_sys::random::SplitMix64;

const STEPS: u64 = 20_000;

/// Live memory by first address, and its key.
type Live = BTreeMap<u64, (Memory, [u8; 64])>;

/// What the reference says of a range: the memory that contains it, or whether it starts in one.
fn around(live: &Live, address: u64, len: u64) -> Result<(u64, u64), ErrorKind> {
    match live.range(..=address).next_back() {
        Some((&base, (memory, _))) if address - base < memory.len() => {
            if address - base + len <= memory.len() {
                Ok((base, memory.len()))
            } else {
                Err(ErrorKind::InvalidInput)
            }
        }
        _ => Err(ErrorKind::NotFound),
    }
}

#[test]
fn random_steps_match_reference() {
    let steps = std::env::var("GAUDI_COPY_STEPS")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = gaudi_random::seed();
    println!("seed={seed}");
    let mut random = SplitMix64::new(seed);
    let domain =
        MemoryDomain::new(&"mock:gaudi2?name=copyrandom".parse().expect("a spec")).expect("a domain");
    let mut live = Live::new();
    let mut freed: Vec<[u8; 64]> = Vec::new();
    for step in 0..steps.unwrap_or(STEPS) {
        match random.below(10) {
            0..=2 if live.len() < 300 => {
                let base = 1 << random.below(20);
                let len = base + random.below(base);
                let memory = match random.below(3) {
                    0 => domain.alloc(len, AllocOptions::PRIVATE),
                    1 => domain.alloc(len, AllocOptions::POOLED),
                    _ => domain.alloc_host(len.min(1 << 14) as usize),
                };
                let memory = memory.expect("allocated");
                let key = domain.pack(&memory).expect("packed").to_bytes();
                live.insert(memory.address(), (memory, key));
            }
            3 | 4 if !live.is_empty() => {
                let at = random.below(live.len() as u64) as usize;
                let address = *live.keys().nth(at).expect("below the number");
                let (memory, key) = live.remove(&address).expect("it is live");
                domain.free(memory).expect("freed");
                freed.push(key);
            }
            5 if !freed.is_empty() => {
                let key = freed.swap_remove(random.below(freed.len() as u64) as usize);
                let seen = Attached::unpack(&key).map_err(|error| error.kind()).err();
                assert_eq!(
                    seen,
                    Some(ErrorKind::NotFound),
                    "step {step}: a key of freed memory"
                );
            }
            _ if !live.is_empty() => {
                let at = random.below(live.len() as u64) as usize;
                let (&base, (memory, key)) = live.iter().nth(at).expect("below the number");
                // Around either end, or anywhere inside.
                let address = match random.below(3) {
                    0 => base + random.below(3) - 1,
                    1 => base + memory.len() + random.below(3) - 2,
                    _ => base + random.below(memory.len()),
                };
                let len = 1 + random.below(4);
                let seen = domain.mem_query(address, len);
                let info = seen
                    .as_ref()
                    .map(|info| (info.base, info.len))
                    .map_err(Error::kind);
                assert_eq!(
                    info,
                    around(&live, address, len),
                    "step {step}: {len} at {address:#x}"
                );
                if let Ok(info) = &seen {
                    let typed = memory_types().lookup(address, len).kind;
                    assert_eq!(typed, info.kind, "step {step}");
                    let whole = domain.mem_query(info.base, info.len).expect("found");
                    match (domain.window(info), domain.window(&whole)) {
                        (Ok(window), Ok(start)) => {
                            assert_eq!(
                                window.offset() - start.offset(),
                                address - info.base,
                                "step {step}"
                            );
                            assert_eq!(
                                window.dmabuf().identity(),
                                start.dmabuf().identity(),
                                "step {step}"
                            );
                        }
                        (Err(error), Err(_)) if info.kind == MemoryType::Host => {
                            assert_eq!(error.kind(), ErrorKind::Unsupported, "step {step}");
                        }
                        (answer, _) => {
                            let kind = answer.expect_err("private memory").kind();
                            assert_eq!(kind, ErrorKind::InvalidInput, "step {step}");
                        }
                    }
                }
                let attached = Attached::unpack(key).expect("a key of live memory");
                assert_eq!(
                    (attached.address(), attached.len()),
                    (base, memory.len()),
                    "step {step}"
                );
            }
            _ => {}
        }
    }
    for (_, (memory, _)) in live {
        domain.free(memory).expect("freed");
    }
    assert_eq!(memory_types().stats().ranges, 0, "no range is left");
    domain.close().map_err(Error::from).expect("nothing is left");
}

#[test]
fn kept_pages_serve_large_allocations() {
    const WHOLE: u64 = 2 * (768 << 20);
    let spec = "mock:gaudi2?name=copykept&dram=1536MiB".parse().expect("a spec");
    let domain = MemoryDomain::new(&spec).expect("a domain");
    let all = domain.alloc(WHOLE, AllocOptions::default()).expect("all memory");
    domain.free(all).expect("freed");
    let small = domain
        .alloc(1, AllocOptions::POOLED)
        .expect("a page, which is kept");
    domain.free(small).expect("freed");
    let all = domain
        .alloc(WHOLE, AllocOptions::default())
        .expect("the kept page too");
    domain.free(all).expect("freed");
}
