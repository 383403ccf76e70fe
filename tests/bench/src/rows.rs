//! What is compared with what.

#![expect(unsafe_code, reason = "plain stores and plain copies are the peers")]

use std::rc::Rc;

use gaudi_device::{Deadline, Device, Options};
use gaudi_dmabuf::stats::Entry as Counted;
use gaudi_layers::fault::{FaultLayer, Plan};
use gaudi_layers::time::Monotonic;
use gaudi_model::{Cb, Chip, ChipConfig, HostRange, MemoryKind, Mode};
use gaudi_seam::{CsRequest, CsSeq, DeviceSpec, Engine as _, Error, KernelIo, SharedIo};
use gaudi_spec::gaudi2::packet::LinDma;
use gaudi_spec::gaudi2::{self, queue};
use gaudi_spec::{DevicePa, DeviceVa};
use gaudi_sys::{Memfd, RawMapping};
use gaudi_uapi::cs::HlCsChunk;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Goal, Made, Row, Work};
use crate::peer::HlThunk;
use crate::stub;

/// A row by name: made when it is its turn, so that no row pays for another.
pub struct Entry {
    /// The name for `--only`.
    pub name: &'static str,
    /// Makes it.
    pub make: fn() -> Made<Vec<Row<'static>>>,
}

/// Every row, in the order of the table.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "submit",
        make: submit,
    },
    Entry {
        name: "wait",
        make: wait,
    },
    Entry {
        name: "hlthunk",
        make: crate::thunk::rows,
    },
    Entry {
        name: "packets",
        make: packets,
    },
    Entry {
        name: "engine",
        make: engine,
    },
    Entry {
        name: "copy",
        make: copy,
    },
    Entry {
        name: "gaudi_cpy",
        make: crate::transport::rows,
    },
    Entry {
        name: "round-trip",
        make: round_trip,
    },
    Entry {
        name: "layer-off",
        make: layer_off,
    },
    Entry {
        name: "dma-buf",
        make: dmabuf,
    },
    Entry {
        name: "memory-types",
        make: crate::types::rows,
    },
    Entry {
        name: "regions",
        make: crate::regions::rows,
    },
    Entry {
        name: "remote",
        make: crate::remote::remote,
    },
    Entry {
        name: "faults",
        make: crate::faults::rows,
    },
];

pub(crate) fn nothing() -> Box<dyn Fn() -> String> {
    Box::new(String::new)
}

/// Submits one chunk and nothing else.
///
/// # Errors
/// The submission's error.
pub fn submit_one(io: &dyn KernelIo, chunk: &HlCsChunk) -> gaudi_seam::Result<CsSeq> {
    let request = CsRequest {
        execute: std::slice::from_ref(chunk),
        ..CsRequest::default()
    };
    io.submit(&request).map(|answer| answer.seq)
}

fn chunk() -> HlCsChunk {
    HlCsChunk::user(0, 0x1000_0000, 64)
}

/// What a program does with an answer: looks whether it is one, and uses it.
#[inline]
fn used<T, E: std::fmt::Debug>(answer: Result<T, E>) {
    match answer {
        Ok(answer) => _ = black_box(answer),
        Err(error) => wrong(&error),
    }
}

#[cold]
#[inline(never)]
fn wrong(error: &dyn std::fmt::Debug) -> ! {
    panic!("the stub answers: {error:?}");
}

/// Submissions through a backend.
pub fn submits(io: SharedIo) -> Work<'static> {
    Box::new(move |count| {
        let (io, chunk) = (black_box(&io), black_box(chunk()));
        for _ in 0..count {
            used(submit_one(&**io, &chunk));
        }
    })
}

/// Waits through a backend, each for a time that the compiler does not know.
pub fn waits(io: SharedIo, timeout: Duration) -> Work<'static> {
    Box::new(move |count| {
        let (io, timeout) = (black_box(&io), black_box(timeout));
        for _ in 0..count {
            used(
                io.wait_cs(black_box(CsSeq(7)), timeout)
                    .map(|answer| answer.status),
            );
        }
    })
}

/// Returns the peer's submissions.
///
/// # Errors
/// What would provide the peer.
pub fn peer_submits() -> Result<Work<'static>, String> {
    let thunk = HlThunk::load()?;
    Ok(Box::new(move |count| {
        let chunk = black_box(chunk());
        for _ in 0..count {
            used(thunk.submit(0, &chunk));
        }
    }))
}

/// Returns the peer's waits.
///
/// # Errors
/// What would provide the peer.
pub fn peer_waits(timeout: Duration) -> Result<Work<'static>, String> {
    let thunk = HlThunk::load()?;
    Ok(Box::new(move |count| {
        let us = black_box(timeout.as_micros() as u64);
        for _ in 0..count {
            used(thunk.wait(0, black_box(7), us));
        }
    }))
}

/// The stub's ioctl and nothing above it.
pub fn bare(request: std::ffi::c_ulong) -> Work<'static> {
    Box::new(move |count| {
        let mut words = [0_u64; 16];
        let argument = words.as_mut_ptr().cast();
        let (ioctl, request) = (stub::called(), black_box(request));
        for _ in 0..count {
            // SAFETY: the argument of this request is smaller than the 128 bytes that are there.
            black_box(unsafe { ioctl(0, request, argument) });
        }
    })
}

/// A row of user time: what both sides take above a bare call of the stub.
pub fn above_a_call(
    name: &str,
    ours: Work<'static>,
    peer: &str,
    theirs: Result<Work<'static>, String>,
    request: std::ffi::c_ulong,
) -> Row<'static> {
    Row {
        name: format!("{name}: user time above a bare call"),
        peer: peer.into(),
        ours,
        theirs,
        probe: Some(bare(request)),
        laps: None,
        bytes: 0,
        goal: Goal::AtMost(1.0),
        note: Box::new(|| "to reach: 0.6; a stub kernel answers".into()),
    }
}

fn submit() -> Made<Vec<Row<'static>>> {
    let ours = submits(stub::kernel()?);
    let peer = "hlthunk_command_submission";
    Ok(vec![above_a_call(
        "submit",
        ours,
        peer,
        peer_submits(),
        stub::SUBMIT,
    )])
}

fn wait() -> Made<Vec<Row<'static>>> {
    let kinds = [("poll", Duration::ZERO), ("wait of 1 s", Duration::from_secs(1))];
    let rows = kinds.map(|(name, timeout)| {
        let ours = waits(stub::kernel()?, timeout);
        let peer = "hlthunk_wait_for_cs";
        Ok(above_a_call(name, ours, peer, peer_waits(timeout), stub::WAIT))
    });
    rows.into_iter().collect()
}

const PACKETS: usize = 64;

fn packets() -> Made<Vec<Row<'static>>> {
    let mut ours = vec![0_u8; PACKETS * LinDma::LEN];
    let mut theirs = ours.clone();
    encode(&mut ours, 5);
    store(&mut theirs, 5);
    if ours != theirs {
        return Err("the plain stores write another packet than the encoder".into());
    }
    Ok(vec![Row {
        name: format!("building {PACKETS} LIN_DMA packets"),
        peer: "plain stores".into(),
        ours: Box::new(move |count| (0..count).for_each(|n| encode(black_box(&mut ours), u64::from(n)))),
        theirs: Ok(Box::new(move |count| {
            (0..count).for_each(|n| store(black_box(&mut theirs), u64::from(n)));
        })),
        probe: None,
        laps: None,
        bytes: 0,
        goal: Goal::AtMost(1.3),
        note: nothing(),
    }])
}

#[inline(never)]
fn encode(bytes: &mut [u8], n: u64) {
    for (at, packet) in (0..PACKETS as u64).zip(bytes.chunks_exact_mut(LinDma::LEN)) {
        let (to, from) = (DeviceVa(0x1000 * at + n), DeviceVa(0x8000_0000 + 0x1000 * at));
        packet.copy_from_slice(&LinDma::copy(to, from, 4096).to_bytes());
        black_box(true);
    }
}

/// The same packets, each as three words; the control word is that of the encoder.
#[inline(never)]
fn store(bytes: &mut [u8], n: u64) {
    let head = LinDma::copy(DeviceVa(0), DeviceVa(0), 4096).to_bytes();
    let head = u64::from_le_bytes(head[..8].try_into().unwrap_or_default());
    for (at, packet) in (0..PACKETS as u64).zip(bytes.chunks_exact_mut(LinDma::LEN)) {
        let words = [head, 0x8000_0000 + 0x1000 * at, 0x1000 * at + n];
        // SAFETY: a packet has three words; it need not be aligned.
        unsafe { packet.as_mut_ptr().cast::<[u64; 3]>().write_unaligned(words) };
        black_box(true);
    }
}

/// Returns host memory, and a file's memory as the chip's is: both sides of a plain copy.
///
/// # Errors
/// mmap(2)'s.
pub fn plain_copy(bytes: usize) -> Made<Work<'static>> {
    let from = RawMapping::anonymous(bytes, true)?;
    let file = Memfd::sparse(c"bench", bytes as u64)?;
    let to = RawMapping::of_fd(&file, 0, bytes)?;
    from.fill(0, bytes, 0x5a)?;
    to.fill(0, bytes, 0)?;
    Ok(Box::new(move |count| {
        for _ in 0..count {
            let (from, to) = (black_box(from.as_ptr()), black_box(to.as_ptr()));
            // SAFETY: both mappings have so many bytes and are apart; no other code has them.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), bytes) };
        }
    }))
}

const SIZES: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];

pub(crate) fn size_name(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    }
}

const HOST: DeviceVa = DeviceVa(0xfff0_0000_0010_0000);

/// Packets of one command buffer in the rows of the engine: enough that the row measures the
/// engine. What a command buffer costs beside its packets is in the rows of `copy()`, which submits
/// each packet alone at these sizes.
const STREAM: usize = 8;

/// A chip with host memory beside it. The chip goes first: it knows the memory by address.
/// The engine's memory: of this process, or shared with another.
#[derive(Clone, Copy)]
pub enum Memory {
    /// As the mock maps it.
    Pinned,
    /// As `vgaudi` maps a guest's.
    Guest,
}

struct Rig {
    chip: Chip,
    #[expect(dead_code, reason = "held for the chip")]
    host: Arc<RawMapping>,
    program: Cb,
}

impl Rig {
    fn new(bytes: usize, packets: usize, memory: Memory) -> Made<Self> {
        let len = bytes.next_multiple_of(4096) + 4096;
        let mut chip = Chip::new(ChipConfig {
            dram_user_bytes: gaudi2::DRAM_PAGE,
            mode: Mode::Running,
            memory: MemoryKind::Shared,
        })?;
        let host = Arc::new(RawMapping::anonymous(len, true)?);
        let dram = gaudi2::DRAM_VA.start;
        let packet = LinDma::copy(dram, HOST, u32::try_from(bytes)?).to_bytes();
        host.write(len - 4096, &packet.repeat(packets))?;
        let range = match memory {
            // SAFETY: the mapping outlives the chip, which precedes it in the struct; no references
            // to it are created.
            Memory::Pinned => unsafe { HostRange::new(host.as_ptr(), len) },
            Memory::Guest => HostRange::of_mapping(Arc::clone(&host)),
        };
        chip.map_host(HOST, range).map_err(|error| format!("{error:?}"))?;
        let at = DevicePa(gaudi2::DRAM_PHYS_BASE.0 + gaudi2::DRAM_RESERVED);
        chip.map_device(dram, at, gaudi2::DRAM_PAGE)
            .map_err(|error| format!("{error:?}"))?;
        Ok(Self {
            chip,
            host,
            program: Cb {
                va: DeviceVa(HOST.0 + (len - 4096) as u64),
                len: u32::try_from(LinDma::LEN * packets)?,
                tag: 1,
            },
        })
    }

    fn copy(&mut self) {
        let pushed = self.chip.push_cb(queue::PDMA_0_0, self.program);
        debug_assert!(pushed.is_ok(), "the queue has room: {pushed:?}");
        // 4 KiB that are moved cost as much as a packet.
        black_box(self.chip.run(1 << 20));
        while self.chip.next_event().is_some() {}
    }
}

/// Returns copies of the model's engine from host to device memory, with this number of packets in
/// a command buffer.
///
/// # Errors
/// The library's first error.
pub fn engine_copies(bytes: usize, packets: usize, memory: Memory) -> Made<Work<'static>> {
    let mut rig = Rig::new(bytes, packets, memory)?;
    Ok(Box::new(move |count| (0..count).for_each(|_| rig.copy())))
}

/// The same work, so many of it in one.
fn repeated(mut work: Work<'static>, times: u32) -> Work<'static> {
    Box::new(move |count| work(count * times))
}

fn engine() -> Made<Vec<Row<'static>>> {
    let kinds = [
        (Memory::Pinned, "", 0.9),
        (Memory::Guest, " with a guest's memory", 0.7),
    ];
    let rows = kinds.into_iter().flat_map(|(memory, with, goal)| {
        SIZES.map(|bytes| {
            Ok(Row {
                name: format!(
                    "the model's LIN_DMA of {}{with}, {STREAM} packets",
                    size_name(bytes)
                ),
                peer: "memcpy".into(),
                ours: engine_copies(bytes, STREAM, memory)?,
                theirs: Ok(repeated(plain_copy(bytes)?, STREAM as u32)),
                probe: None,
                laps: None,
                bytes: (bytes * STREAM) as u64,
                goal: Goal::AtLeast(goal),
                note: nothing(),
            })
        })
    });
    rows.collect()
}

fn mock(name: &str) -> Made<Device> {
    let spec: DeviceSpec = format!("mock:gaudi2?name=bench-{name}").parse()?;
    Ok(Device::open(&spec)?)
}

/// Copies of 64 bytes on a mock, each waited for, through `wrap`.
///
/// # Errors
/// Those of opening a mock.
pub fn mock_copies(wrap: impl Fn(SharedIo) -> SharedIo) -> Made<Work<'static>> {
    // valgrind maps no more memory.
    let spec: DeviceSpec = "mock:gaudi2?name=bench-counted&dram=768MiB".parse()?;
    let device = Device::with_options(wrap(gaudi_hal::open(&spec)?), Options::default())?;
    let (buffer, host) = (device.alloc(64)?, device.alloc_host(64)?);
    Ok(Box::new(move |count| {
        for _ in 0..count {
            let done = device
                .copy(&buffer, &host)
                .and_then(|copy| copy.wait(Deadline::NEVER));
            debug_assert!(done.is_ok(), "the copy ends: {done:?}");
            let _ = black_box(done);
        }
    }))
}

fn copy() -> Made<Vec<Row<'static>>> {
    let rows = SIZES.map(|bytes| {
        let device = Rc::new(mock(&format!("copy-{bytes}"))?);
        let (buffer, host) = (device.alloc(bytes as u64)?, device.alloc_host(bytes)?);
        host.fill(0, bytes, 0x5a)?;
        let counted = Rc::clone(&device);
        Ok(Row {
            name: format!("copy() and wait of {} (mock)", size_name(bytes)),
            peer: "memcpy".into(),
            ours: Box::new(move |count| {
                for _ in 0..count {
                    let done = device
                        .copy(&buffer, &host)
                        .and_then(|copy| copy.wait(Deadline::NEVER));
                    debug_assert!(done.is_ok(), "the copy ends: {done:?}");
                    let _ = black_box(done);
                }
            }),
            theirs: Ok(plain_copy(bytes)?),
            probe: None,
            laps: None,
            bytes: bytes as u64,
            goal: Goal::AtLeast(if bytes < 1 << 20 { 0.5 } else { 0.9 }),
            note: Box::new(move || {
                let stats = counted.stats();
                let per = |count: u64| count as f64 / stats.submissions.max(1) as f64;
                format!(
                    "{} LIN_DMA packets, {} submissions, {:.0} bytes each, {} by the processor",
                    stats.lin_dma_packets,
                    stats.submissions,
                    per(stats.bytes_to_device),
                    stats.cpu_copied_bytes
                )
            }),
        })
    });
    rows.into_iter().collect()
}

/// A real system call that does nothing.
pub(crate) fn real_call() -> Work<'static> {
    Box::new(|count| {
        let file = std::fs::File::open("/dev/null");
        let fd = file.as_ref().map_or(-1, std::os::fd::AsRawFd::as_raw_fd);
        let mut words = [0_u64; 16];
        for _ in 0..count {
            // SAFETY: no driver of /dev/null knows the request, and 128 bytes are there for one
            // that did.
            let answer =
                unsafe { nix::libc::syscall(nix::libc::SYS_ioctl, fd, 0xc040_6443_u64, words.as_mut_ptr()) };
            black_box(answer);
        }
    })
}

fn round_trip() -> Made<Vec<Row<'static>>> {
    let device = mock("trip")?;
    let mut queue = device.queue(queue::PDMA_0_1)?;
    Ok(vec![Row {
        name: "submit to completion (mock)".into(),
        peer: "a bare ioctl(2)".into(),
        ours: Box::new(move |count| {
            for _ in 0..count {
                let done = queue
                    .fence()
                    .and_then(|queue| queue.submit())
                    .and_then(|end| end.wait(Deadline::NEVER));
                debug_assert!(done.is_ok(), "a NOP ends: {done:?}");
                let _ = black_box(done);
            }
        }),
        theirs: Ok(real_call()),
        probe: None,
        laps: None,
        bytes: 0,
        goal: Goal::AtMost(10.0),
        note: nothing(),
    }])
}

/// A layer that has nothing to do, over a node whose type it knows, or over any.
pub fn idle_layer<K: KernelIo + ?Sized>(io: Arc<K>) -> SharedIo {
    Arc::new(FaultLayer::new(io, &Plan::default(), Arc::new(Monotonic::new())))
}

fn layer_off() -> Made<Vec<Row<'static>>> {
    Ok(vec![Row {
        name: "submit with a fault layer that is off".into(),
        peer: "submit with none".into(),
        ours: submits(idle_layer(stub::known_kernel()?)),
        theirs: Ok(submits(stub::kernel()?)),
        probe: None,
        laps: None,
        bytes: 0,
        goal: Goal::AtMost(1.1),
        note: Box::new(|| "one relaxed load and a branch; `--count` counts the instructions".into()),
    }])
}

/// What a program pays that holds a dma-buf by this stack's handle and not by a bare descriptor,
/// and what its being counted costs.
fn dmabuf() -> Made<Vec<Row<'static>>> {
    let device = mock("dmabuf")?;
    let buffer = device.alloc_exclusive(1 << 20)?;
    let fd = Rc::new(std::os::fd::AsFd::as_fd(&buffer.export(..)?).try_clone_to_owned()?);
    let held = buffer.export(..)?;
    let failed = |errno| Error::from_errno("dup", errno);
    gaudi_sys::fd::duplicate(&*fd).map_err(failed)?;
    let row = |name: &str, ours: Work<'static>| {
        let fd = Rc::clone(&fd);
        Row {
            name: name.into(),
            peer: "dup and close".into(),
            ours,
            theirs: Ok(Box::new(move |count| {
                for _ in 0..count {
                    let _ = black_box(gaudi_sys::fd::duplicate(&*fd));
                }
            })),
            probe: None,
            laps: None,
            bytes: 0,
            goal: Goal::AtMost(1.1),
            note: nothing(),
        }
    };
    let counted = Rc::clone(&fd);
    Ok(vec![
        row(
            "handle of a dma-buf, made and dropped with its descriptor",
            Box::new(move |count| {
                for _ in 0..count {
                    let handle = black_box(held.clone());
                    let own = gaudi_sys::fd::duplicate(&handle);
                    let _ = black_box(own);
                }
            }),
        ),
        row(
            "a descriptor with its entry in the ledger",
            Box::new(move |count| {
                for _ in 0..count {
                    let twin = black_box(gaudi_sys::fd::duplicate(&*counted));
                    let entry = black_box(Counted::new(4096));
                    drop((twin, entry));
                }
            }),
        ),
    ])
}
