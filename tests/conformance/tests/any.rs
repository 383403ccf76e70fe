//! Calls operations with arbitrary arguments through stacks of layers: no panic, hang or leak.
//!
//! `GAUDI_TEST_CASES=1000000 cargo test --release -p gaudi-conformance --test any -- --nocapture`
//! is the long run.

#![expect(unsafe_code, reason = "host memory is mapped to the device by address")]

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use gaudi_seam::{
    CbCreate, CbHandle, CqCounter, CsArgument, CsRequest, CsSeq, DebugRequest, DeviceSpec, DeviceVa,
    ExportRequest, HostVa, InfoRequest, InterruptId, InterruptWait, InterruptWord, KernelIo, MapDevice,
    MapHost, MemAlloc, MemHandle, MmapRequest, NicRequest, QueueId, RawMapping, TimestampRegistration,
    TsHandle,
};
use gaudi_spec::gaudi2::{self, block, queue};
use gaudi_uapi::cs::{CsChunkFlags, CsFlags, EngineCommand, HlCsChunk};
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::InfoOp;
use gaudi_uapi::memory::MemFlags;
use proptest::collection::vec;
use proptest::prelude::*;

/// The size of the only host memory that engines may access.
const ARENA: usize = 64 << 10;
/// Layers between the program and the mock; `{}` is the plan.
const STACKS: [&str; 6] = [
    "",
    concat!("+trace=", env!("CARGO_TARGET_TMPDIR"), "/any.trace"),
    "+fault={}",
    "+validate",
    concat!(
        "+fault={}+validate+trace=",
        env!("CARGO_TARGET_TMPDIR"),
        "/any.trace"
    ),
    "+validate+fault={}",
];
/// Fault plans under which the close can release everything.
const PLANS: [&str; 6] = [
    "*:p=10:error=EINVAL",
    "submit:lose",
    "submit:when=2:lose",
    "*:when=3+5:error=EBUSY",
    "wait_cs:delay=3s",
    "*:when=9:reset",
];

fn arena() -> &'static RawMapping {
    static MEMORY: OnceLock<RawMapping> = OnceLock::new();
    MEMORY.get_or_init(|| RawMapping::anonymous(ARENA, true).expect("64 KiB of memory"))
}

/// A number, or the answer of an earlier operation.
#[derive(Debug, Clone, Copy)]
enum Number {
    Plain(u64),
    /// The nth last answer plus an offset.
    Answer(u8, u64),
}

fn number() -> impl Strategy<Value = Number> {
    let round = (0..52u32, -2..3i64).prop_map(|(shift, more)| (1u64 << shift).wrapping_add_signed(more));
    prop_oneof![
        5 => (0..6u8).prop_map(|nth| Number::Answer(nth, 0)),
        1 => (0..6u8, 0..0x2000u64).prop_map(|(nth, more)| Number::Answer(nth, more)),
        2 => (0..5u64).prop_map(Number::Plain),
        2 => round.prop_map(Number::Plain),
        1 => any::<u64>().prop_map(Number::Plain),
        1 => Just(Number::Plain(u64::MAX)),
        1 => (0..block::COUNT + 2).prop_map(|number| {
            Number::Plain(block::block(number).map_or(0, |block| block.address.0))
        }),
        1 => Just(Number::Plain(gaudi2::DRAM_VA.start.0)),
        1 => Just(Number::Plain(gaudi2::SRAM_BASE.0)),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Call {
    Info(u32, u16, u32),
    CbCreate(Number, bool),
    CbDestroy(Number),
    CbInfo(Number, bool),
    Submit {
        flags: u32,
        chunks: [Number; 2],
        count: u8,
        queue: u32,
        size: Number,
        timeout: u32,
        argument: u8,
    },
    Engines {
        ids: [u32; 3],
        count: u8,
        command: u32,
        cores: bool,
    },
    WaitCs(Number, Number),
    WaitMulti(Number, u8),
    WaitInterrupt {
        id: u16,
        word: Number,
        offset: Option<Number>,
        target: Number,
        timeout: Number,
    },
    Timestamp {
        id: u16,
        word: Number,
        offset: Number,
        target: Number,
        buffer: Number,
        index: Number,
    },
    Alloc(Number, Number, u32),
    Free(Number),
    MapDevice(Number, Option<Number>, u32),
    /// An offset and size in the arena, or an address without memory.
    MapHost(u32, Number, Option<Number>, u32),
    Unmap(Number),
    TsAlloc(Number),
    MapBlock(Number),
    Export(Number, Number, Number, u32),
    Debug {
        op: u32,
        register: u32,
        enable: bool,
        input: u16,
        output: u16,
    },
    Nic(u32),
    Mmap(Number, Number),
    Write(u16, [u64; 4]),
    Munmap,
    Register(bool),
    Unregister,
}

fn call() -> impl Strategy<Value = Call> {
    let small = || prop_oneof![3 => 0..4u32, 1 => 0..0x2_0000u32, 1 => any::<u32>()];
    let flags = || prop_oneof![6 => Just(0u32), 3 => (0..17u32).prop_map(|bit| 1 << bit), 1 => any::<u32>()];
    let a_queue = prop_oneof![3 => 0..8u32, 2 => 0..queue::COUNT + 2, 1 => any::<u32>()];
    let id = || prop_oneof![2 => 0..12u16, 2 => 46..114u16, 2 => 0xffc..0x1002u16, 1 => any::<u16>()];
    let hint = || prop_oneof![3 => Just(None), 1 => number().prop_map(Some)];
    // Up to longer than the timeout of submissions, 30 s, so that virtual waits end.
    prop_oneof![
        3 => (prop_oneof![4 => 0..45u32, 1 => any::<u32>()], 0..2100u16, small()).prop_map(|(op, len, arg)| Call::Info(op, len, arg)),
        3 => (number(), any::<bool>()).prop_map(|(size, map)| Call::CbCreate(size, map)),
        1 => number().prop_map(Call::CbDestroy),
        2 => (number(), any::<bool>()).prop_map(|(handle, va)| Call::CbInfo(handle, va)),
        6 => (flags(), [number(), number()], 0..3u8, a_queue, number(), small(), 0..7u8)
            .prop_map(|(flags, chunks, count, queue, size, timeout, argument)| Call::Submit { flags, chunks, count, queue, size, timeout, argument }),
        1 => (any::<[u32; 3]>(), 0..4u8, 0..7u32, any::<bool>())
            .prop_map(|(ids, count, command, cores)| Call::Engines { ids: ids.map(|id| id % 90), count, command, cores }),
        3 => (number(), number()).prop_map(|(seq, timeout)| Call::WaitCs(seq, timeout)),
        1 => (number(), 0..40u8).prop_map(|(seq, count)| Call::WaitMulti(seq, count)),
        2 => (id(), number(), hint(), number(), number())
            .prop_map(|(id, word, offset, target, timeout)| Call::WaitInterrupt { id, word, offset, target, timeout }),
        1 => (id(), number(), number(), number(), number(), number())
            .prop_map(|(id, word, offset, target, buffer, index)| Call::Timestamp { id, word, offset, target, buffer, index }),
        3 => (number(), number(), flags()).prop_map(|(size, page, flags)| Call::Alloc(size, page, flags)),
        1 => number().prop_map(Call::Free),
        3 => (number(), hint(), flags()).prop_map(|(handle, hint, flags)| Call::MapDevice(handle, hint, flags)),
        3 => (0..ARENA as u32, number(), hint(), flags()).prop_map(|(at, size, hint, flags)| Call::MapHost(at, size, hint, flags)),
        2 => number().prop_map(Call::Unmap),
        1 => number().prop_map(Call::TsAlloc),
        1 => number().prop_map(Call::MapBlock),
        2 => (number(), number(), number(), any::<u32>()).prop_map(|(va, size, offset, flags)| Call::Export(va, size, offset, flags)),
        2 => (0..9u32, 0..400u32, any::<bool>(), 0..120u16, 0..120u16)
            .prop_map(|(op, register, enable, input, output)| Call::Debug { op, register, enable, input, output }),
        1 => any::<u32>().prop_map(Call::Nic),
        3 => (number(), number()).prop_map(|(offset, len)| Call::Mmap(offset, len)),
        2 => (0..512u16, any::<[u64; 4]>()).prop_map(|(at, words)| Call::Write(at, words)),
        1 => Just(Call::Munmap),
        1 => any::<bool>().prop_map(Call::Register),
        1 => Just(Call::Unregister),
    ]
}

/// The objects and answers of the program, newest first.
struct Program {
    answers: VecDeque<u64>,
    mappings: Vec<RawMapping>,
    exports: Vec<OwnedFd>,
}

impl Program {
    fn number(&self, number: Number) -> u64 {
        match number {
            Number::Plain(plain) => plain,
            Number::Answer(nth, more) => self
                .answers
                .get(usize::from(nth))
                .copied()
                .unwrap_or(1)
                .wrapping_add(more),
        }
    }

    fn keep<T>(&mut self, answer: gaudi_seam::Result<T>, number: impl Fn(T) -> u64) {
        if let Ok(answer) = answer {
            self.answers.push_front(number(answer));
            self.answers.truncate(6);
        }
    }

    fn make(&mut self, io: &dyn KernelIo, call: Call) {
        let n = |number| self.number(number);
        let time = |number| Duration::from_micros(self.number(number) & 0xfff_ffff_ffff);
        match call {
            Call::Info(op, len, arg) => {
                let mut answer = vec![0; len.into()];
                let request = InfoRequest { op: InfoOp(op), arg };
                let _ = io.info(request, &mut answer);
            }
            Call::CbCreate(size, map_to_device) => {
                let size = n(size) as u32;
                let answer = io.cb_create(CbCreate { size, map_to_device });
                self.keep(answer, |handle| handle.0);
            }
            Call::CbDestroy(handle) => _ = io.cb_destroy(CbHandle(n(handle))),
            Call::CbInfo(handle, va) => {
                let answer = io.cb_info(CbHandle(n(handle)), va);
                self.keep(answer, |info| info.device_va.map_or(0, |va| va.0));
            }
            Call::Submit {
                flags,
                chunks,
                count,
                queue,
                size,
                timeout,
                argument,
            } => {
                let user = if flags == 0 {
                    CsChunkFlags::USER_ALLOC_CB
                } else {
                    CsChunkFlags(flags & 1)
                };
                let chunks = chunks.map(|at| HlCsChunk {
                    cb_handle: n(at),
                    queue_index: queue,
                    cb_size: n(size) as u32,
                    cs_chunk_flags: user,
                    ..HlCsChunk::default()
                });
                let handle = n(size) as u32;
                let argument = match argument {
                    1 => CsArgument::Stage { seq: CsSeq(n(size)) },
                    2 => CsArgument::Encapsulated { handle },
                    3 => CsArgument::ReserveSignals {
                        count: handle,
                        queue: QueueId(queue),
                    },
                    4 => CsArgument::UnreserveSignals { handle },
                    _ => CsArgument::None,
                };
                let chunks = &chunks[..usize::from(count)];
                let answer = io.submit(&CsRequest {
                    execute: chunks,
                    restore: if timeout % 5 == 4 { chunks } else { &[] },
                    flags: CsFlags(flags),
                    timeout_s: timeout,
                    argument,
                });
                self.keep(answer, |answer| answer.seq.0);
            }
            Call::Engines {
                ids,
                count,
                command,
                cores,
            } => {
                let (ids, command) = (&ids[..usize::from(count)], EngineCommand(command));
                let request = match cores {
                    true => CsRequest::engine_cores(ids, command),
                    false => CsRequest::engines(ids, command),
                };
                let _ = io.submit(&request);
            }
            Call::WaitCs(seq, timeout) => _ = io.wait_cs(CsSeq(n(seq)), time(timeout)),
            Call::WaitMulti(seq, count) => {
                let seqs = vec![CsSeq(n(seq)); count.into()];
                let _ = io.wait_multi_cs(&seqs, Duration::from_secs(1));
            }
            Call::WaitInterrupt {
                id,
                word,
                offset,
                target,
                timeout,
            } => {
                let word = match offset {
                    None => InterruptWord::User(HostVa(n(word))),
                    Some(offset) => InterruptWord::KernelCq(CqCounter {
                        handle: CbHandle(n(word)),
                        offset: n(offset),
                    }),
                };
                let _ = io.wait_interrupt(&InterruptWait {
                    interrupt: InterruptId(id),
                    word,
                    target: n(target),
                    timeout: time(timeout),
                });
            }
            Call::Timestamp {
                id,
                word,
                offset,
                target,
                buffer,
                index,
            } => {
                let _ = io.register_timestamp(&TimestampRegistration {
                    interrupt: InterruptId(id),
                    counter: CqCounter {
                        handle: CbHandle(n(word)),
                        offset: n(offset),
                    },
                    target: n(target),
                    buffer: TsHandle(n(buffer)),
                    index: n(index),
                });
            }
            Call::Alloc(size, page_size, flags) => {
                let answer = io.mem_alloc(MemAlloc {
                    size: n(size),
                    page_size: n(page_size),
                    flags: MemFlags(flags),
                });
                self.keep(answer, |handle| handle.0);
            }
            Call::Free(handle) => _ = io.mem_free(MemHandle(n(handle))),
            Call::MapDevice(handle, hint, flags) => {
                let answer = io.mem_map_device(MapDevice {
                    handle: MemHandle(n(handle)),
                    hint: hint.map(|hint| DeviceVa(n(hint))),
                    flags: MemFlags(flags),
                });
                self.keep(answer, |va| va.0);
            }
            Call::MapHost(at, size, hint, flags) => {
                let start = arena().as_ptr().as_ptr().expose_provenance() as u64;
                let (at, size) = (u64::from(at), n(size));
                // A range outside the arena begins at an address without memory, or wraps.
                let (address, size) = match size {
                    size if at + size.min(ARENA as u64) <= ARENA as u64 && size <= ARENA as u64 => {
                        (start + at, size)
                    }
                    size if size > 1 << 62 => (start + at, size),
                    size => (at % 4096, size),
                };
                let request = MapHost {
                    address: HostVa(address),
                    size,
                    hint: hint.map(|hint| DeviceVa(n(hint))),
                    flags: MemFlags(flags),
                };
                // SAFETY: the arena is mapped while the process lives, and no reference to it
                // exists. Any
                // other range begins in the unmapped first page or wraps, and is
                // refused.
                let answer = unsafe { io.mem_map_host(request) };
                self.keep(answer, |va| va.0);
            }
            Call::Unmap(va) => _ = io.mem_unmap(DeviceVa(n(va))),
            Call::TsAlloc(elements) => {
                let answer = io.ts_alloc(n(elements) as u32);
                self.keep(answer, |handle| handle.0);
            }
            Call::MapBlock(address) => {
                let answer = io.map_block(n(address));
                self.keep(answer, |block| block.handle);
            }
            Call::Export(address, size, offset, flags) => {
                let answer = io.export_dmabuf(ExportRequest {
                    address: DeviceVa(n(address)),
                    size: n(size),
                    offset: n(offset),
                    flags,
                });
                self.exports.extend(answer);
            }
            Call::Debug {
                op,
                register,
                enable,
                input,
                output,
            } => {
                let (input, mut output) = (vec![7; input.into()], vec![0; output.into()]);
                let _ = io.debug(DebugRequest {
                    op: DebugOp(op),
                    reg_idx: register,
                    enable,
                    input: &input,
                    output: &mut output,
                });
            }
            Call::Nic(op) => {
                let _ = io.nic(NicRequest {
                    op,
                    input: &[1],
                    output: &mut [0; 4],
                });
            }
            Call::Mmap(offset, len) => {
                let len = n(len) as usize;
                self.mappings.extend(io.mmap(MmapRequest {
                    offset: n(offset),
                    len,
                }));
            }
            Call::Write(at, words) => {
                for (place, word) in words.into_iter().enumerate() {
                    if let Some(mapping) = self.mappings.last() {
                        let _ = mapping.write(8 * (usize::from(at) + place), &word.to_le_bytes());
                    }
                }
            }
            Call::Munmap => _ = self.mappings.pop(),
            Call::Register(good) => {
                let fd: OwnedFd = match good {
                    true => nix::sys::eventfd::EventFd::new().expect("an eventfd").into(),
                    false => std::fs::File::open("/dev/null")
                        .expect("every Linux has it")
                        .into(),
                };
                let _ = io.register_events(fd.as_fd());
            }
            Call::Unregister => _ = io.unregister_events(),
        }
    }
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn close_releases_everything_after_any_operations(
        calls in vec(call(), 1..24),
        stack in 0..STACKS.len(),
        plan in 0..PLANS.len(),
        stepped in any::<bool>(),
    ) {
        let order = if stepped { "stepped" } else { "running" };
        let bare = format!("mock:gaudi2?clock=virtual&order={order}&name=any-{order}");
        let bare: DeviceSpec = bare.parse().unwrap();
        let layered: DeviceSpec = format!("{bare}{}", STACKS[stack].replace("{}", &PLANS[plan].replace('+', "%2B"))).parse().unwrap();
        // Keeps the devices alive, so that a case finds the state that the previous one left.
        static DEVICES: OnceLock<[gaudi_seam::SharedIo; 2]> = OnceLock::new();
        DEVICES.get_or_init(|| ["running", "stepped"].map(|order| {
            let spec = format!("mock:gaudi2?clock=virtual&order={order}&name=any-{order}");
            gaudi_hal::control(&spec.parse().unwrap()).unwrap()
        }));
        let io = gaudi_hal::open(&layered).expect("the device is free after every close");
        let mut program = Program { answers: VecDeque::new(), mappings: Vec::new(), exports: Vec::new() };
        for &call in &calls {
            program.make(&*io, call);
        }
        drop(program);
        drop(io);
        let ledger = gaudi_hal::mock_ledger(&bare);
        prop_assert!(ledger.is_some_and(|ledger| ledger.is_clean()), "the ledger after the close: expected a clean one, saw {ledger:?}");
    }
}
