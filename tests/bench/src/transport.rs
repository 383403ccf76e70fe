//! The copy transport and the pool of device memory, beside memcpy, a bare ioctl and mmap(2).

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use gaudi_copy::{AllocOptions, Attached, Deadline, Local, Memory, MemoryDomain, Result, Transport};
use gaudi_device::{Device, Fallback, Pages};
use gaudi_seam::DeviceSpec;
use gaudi_sys::random::SplitMix64;
use gaudi_sys::{PAGE, RawMapping, SysResult};

use crate::harness::{Goal, Made, Row, Work};
use crate::rows::{nothing, plain_copy, real_call, size_name};

/// The pieces of the scattered copy: 64 MiB. [`VARIABLE`] sets another number.
const PIECES: u64 = 16 << 10;
const PIECE: u64 = 4096;
/// Bytes between the first bytes of two pieces.
const STRIDE: u64 = 8192;
/// The variable with the number of pieces. 262144 are 1 GiB.
pub const VARIABLE: &str = "GAUDI_BENCH_PIECES";

/// Lengths of the pool's allocations.
const LENGTHS: usize = 512;

/// A transport with memory on both ends.
struct Ends {
    transport: RefCell<Transport>,
    device: Memory,
    host: Memory,
    target: Attached,
}

impl Ends {
    fn new(name: &str, device: u64, host: u64, pages: Pages) -> Made<Self> {
        let spec: DeviceSpec = format!("mock:gaudi2?name=bench-{name}").parse()?;
        let domain = MemoryDomain::new(&spec)?;
        let device = domain.alloc(device, AllocOptions::default())?;
        Ok(Self {
            transport: RefCell::new(Transport::new(&domain)?),
            target: Attached::to(&device),
            host: domain.alloc_host_in(host.try_into()?, pages, Fallback::Smaller)?,
            device,
        })
    }

    /// Puts host memory to the start of the device memory, and waits.
    fn put(&self, iov: &[Local<'_>]) -> Result<()> {
        let mut transport = self.transport.borrow_mut();
        transport.put_zcopy(iov, &self.target, self.device.address(), None)?;
        transport.flush_wait(Deadline::NEVER)
    }
}

/// Fails loudly: a copy that fails fast would look like a fast one.
fn done(answer: Result<()>) {
    if let Err(error) = answer {
        panic!("the mock copies: {error}");
    }
}

/// Returns the rows.
///
/// # Errors
/// The mock's error, or a variable that is no number.
pub fn rows() -> Made<Vec<Row<'static>>> {
    let mut rows = vec![
        zcopy(64 << 10, 0.5)?,
        zcopy(1 << 20, 0.9)?,
        zcopy(16 << 20, 0.9)?,
        short()?,
        scattered(Pages::Small, "small")?,
        scattered(Pages::Transparent, "huge")?,
    ];
    rows.extend(pool()?);
    Ok(rows)
}

fn zcopy(bytes: usize, goal: f64) -> Made<Row<'static>> {
    let ends = Ends::new(
        &format!("zcopy-{bytes}"),
        bytes as u64,
        bytes as u64,
        Pages::Small,
    )?;
    Ok(Row {
        name: format!("put zcopy of {} and flush (mock)", size_name(bytes)),
        peer: "memcpy".into(),
        ours: Box::new(move |count| {
            for _ in 0..count {
                done(ends.put(&[Local::all(&ends.host)]));
            }
        }),
        theirs: Ok(plain_copy(bytes)?),
        probe: None,
        laps: None,
        bytes: bytes as u64,
        goal: Goal::AtLeast(goal),
        note: nothing(),
    })
}

fn short() -> Made<Row<'static>> {
    let ends = Ends::new("short", PAGE, PAGE, Pages::Small)?;
    Ok(Row {
        name: "put short of 8 bytes, flush after all (mock)".into(),
        peer: "a bare ioctl(2)".into(),
        ours: Box::new(move |count| {
            let mut transport = ends.transport.borrow_mut();
            for number in 0..count {
                let at = ends.device.address() + u64::from(number % 512) * 8;
                let bytes = u64::from(number).to_le_bytes();
                while let Err(error) = transport.put_short(&bytes, &ends.target, at) {
                    assert_eq!(error.kind(), gaudi_copy::ErrorKind::WouldBlock, "{error}");
                    done(transport.progress().map(drop));
                }
            }
            done(transport.flush_wait(Deadline::NEVER));
        }),
        theirs: Ok(real_call()),
        probe: None,
        laps: None,
        bytes: 0,
        goal: Goal::AtMost(2.5),
        note: nothing(),
    })
}

/// The engine here is the processor: with small pages it walks its page tables for each piece.
fn scattered(pages: Pages, of: &str) -> Made<Row<'static>> {
    let pieces: u64 = match std::env::var(VARIABLE) {
        Ok(text) => text
            .parse()
            .map_err(|_| format!("{VARIABLE} is a number, saw {text:?}"))?,
        Err(_) => PIECES,
    };
    if !(1..=1 << 20).contains(&pieces) {
        return Err(format!("{VARIABLE} is 1 to 1048576, saw {pieces}").into());
    }
    let bytes = pieces * PIECE;
    let ends = Rc::new(Ends::new(&format!("pieces-{of}"), bytes, pieces * STRIDE, pages)?);
    let order = shuffled(pieces);
    let whole = Rc::clone(&ends);
    Ok(Row {
        name: format!(
            "put of {} as shuffled pieces of 4 KiB, {of} pages (mock)",
            size_name(bytes as usize)
        ),
        peer: "put of one piece".into(),
        ours: Box::new(move |count| {
            let local = |&piece: &u64| Local::at(&ends.host, piece * STRIDE, PIECE);
            let iov: Result<Vec<_>> = order.iter().map(local).collect();
            for _ in 0..count {
                done(iov.as_ref().map_err(Clone::clone).and_then(|iov| ends.put(iov)));
            }
        }),
        theirs: Ok(Box::new(move |count| {
            for _ in 0..count {
                done(Local::at(&whole.host, 0, bytes).and_then(|local| whole.put(&[local])));
            }
        })),
        probe: None,
        laps: None,
        bytes,
        goal: Goal::AtLeast(0.5),
        note: Box::new(move || {
            let source = match pages {
                Pages::Transparent => RawMapping::anonymous_transparent((pieces * STRIDE) as usize),
                _ => RawMapping::anonymous((pieces * STRIDE) as usize, true),
            };
            let note = source.and_then(|source| bare_loop(&shuffled(pieces), source));
            note.unwrap_or_else(|errno| format!("no memory for a bare loop: {errno}"))
        }),
    })
}

fn shuffled(count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    let mut random = SplitMix64::new(1);
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

/// What a loop of the copies that the engine uses makes of such pieces, without packets.
fn bare_loop(order: &[u64], source: RawMapping) -> SysResult<String> {
    let len = order.len() * PIECE as usize;
    let target = RawMapping::anonymous(len, true)?;
    source.fill(0, source.len(), 1)?;
    // The first of the rounds touches the pages.
    let [mut pieces, mut one] = [Duration::MAX; 2];
    for _ in 0..8 {
        let begin = Instant::now();
        for (nth, &piece) in order.iter().enumerate() {
            target.copy_from(
                nth * PIECE as usize,
                &source,
                (piece * STRIDE) as usize,
                PIECE as usize,
            )?;
        }
        pieces = pieces.min(begin.elapsed());
        let begin = Instant::now();
        target.copy_from(0, &source, 0, len)?;
        one = one.min(begin.elapsed());
    }
    let ratio = one.as_secs_f64() / pieces.as_secs_f64();
    Ok(format!(
        "a bare loop over such pieces has {ratio:.2} of the speed of one copy"
    ))
}

/// Allocations of one length, or log-uniform ones of 256 bytes to 64 MiB.
fn pool() -> Made<Vec<Row<'static>>> {
    let spec: DeviceSpec = "mock:gaudi2?name=bench-pool".parse()?;
    let mut random = SplitMix64::new(1);
    let mut length = || {
        let base = 256 << random.below(18);
        base + random.below(base)
    };
    let mixed: Vec<u64> = (0..LENGTHS).map(|_| length()).collect();
    let device = Rc::new(Device::open(&spec)?);
    // The pages stay allocated, and the free ranges are those of a pool in use.
    let held: Rc<Vec<_>> = Rc::new(
        mixed
            .iter()
            .map(|&len| device.alloc(len))
            .collect::<Result<_>>()?,
    );
    let kinds = [("1 MiB", vec![1 << 20]), ("256 B to 64 MiB, log-uniform", mixed)];
    let rows = kinds.into_iter().map(|(name, lengths)| {
        let (device, held, theirs) = (Rc::clone(&device), Rc::clone(&held), lengths.clone());
        Row {
            name: format!("pool: allocate and free {name} (mock)"),
            peer: "mmap, touch, munmap".into(),
            ours: Box::new(move |count| {
                for &len in lengths.iter().cycle().take(count as usize) {
                    done(
                        device
                            .alloc(len)
                            .and_then(|buffer| Ok(black_box(buffer).close()?)),
                    );
                }
                black_box(&held);
            }),
            theirs: Ok(touched(theirs)),
            probe: None,
            laps: None,
            bytes: 0,
            goal: Goal::AtMost(0.02),
            note: nothing(),
        }
    });
    Ok(rows.collect())
}

fn touched(lengths: Vec<u64>) -> Work<'static> {
    Box::new(move |count| {
        for &len in lengths.iter().cycle().take(count as usize) {
            let map = RawMapping::anonymous_sparse(len as usize).expect("host memory");
            for page in (0..len).step_by(PAGE as usize) {
                map.write(page as usize, &[1]).expect("inside");
            }
            black_box(map);
        }
    })
}
