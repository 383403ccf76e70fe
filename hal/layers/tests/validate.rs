//! What is misuse, how it is reported, and that nothing else changes.

mod recorder;

use std::sync::Arc;
use std::time::Duration;

use gaudi_layers::validate::{Judgement, Policy, ValidateLayer};
use gaudi_seam::Operation;
use gaudi_seam::*;
use gaudi_spec::gaudi2;
use gaudi_uapi::cs::{CsFlags, EngineCommand, HlCsChunk};
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::engine::Gaudi2EngineId;
use recorder::{Recorder, alloc, map, map_host};

fn validated(policy: Policy) -> (Arc<Recorder>, ValidateLayer) {
    let below = Recorder::new();
    (below.clone(), ValidateLayer::new(below, policy))
}

fn submit(io: &dyn KernelIo, chunks: &[HlCsChunk]) -> Result<CsAnswer> {
    io.submit(&CsRequest {
        execute: chunks,
        ..CsRequest::default()
    })
}

fn export(io: &dyn KernelIo, address: DeviceVa, size: u64, offset: u64) -> Result<()> {
    let request = ExportRequest {
        address,
        size,
        offset,
        flags: 0,
    };
    io.export_dmabuf(request).map(drop)
}

/// Everything a program may do wrong, with the operation and a part of the message.
type Mistake = (&'static str, fn(&dyn KernelIo) -> Option<Error>, Operation);

const REFUSED: &[Mistake] = &[
    (
        "the memory is still mapped (saw 1, mapped at",
        |io| {
            let handle = alloc(io, 4096).ok()?;
            map(io, handle).ok()?;
            io.mem_free(handle).err()
        },
        Operation::MemFree,
    ),
    (
        "which was released already",
        |io| {
            let handle = alloc(io, 4096).ok()?;
            io.mem_free(handle).ok()?;
            io.mem_free(handle).err()
        },
        Operation::MemFree,
    ),
    (
        "which was released already",
        |io| {
            let handle = alloc(io, 4096).ok()?;
            io.mem_free(handle).ok()?;
            map(io, handle).err()
        },
        Operation::MemMapDevice,
    ),
    (
        "which was released already",
        |io| {
            let va = map_host(io, 0x7000, 4096).ok()?;
            io.mem_unmap(va).ok()?;
            io.mem_unmap(va).err()
        },
        Operation::MemUnmap,
    ),
    (
        "no mapping starts at this address (saw 0xfff0000100001000, inside the mapping at 0xfff0000100000000 of 8192 bytes)",
        |io| {
            let va = map_host(io, 0x7000, 8192).ok()?;
            io.mem_unmap(DeviceVa(va.0 + 4096)).err()
        },
        Operation::MemUnmap,
    ),
    (
        "the size is 0 or wraps round",
        |io| map_host(io, u64::MAX - 8, 4096).err(),
        Operation::MemMapHost,
    ),
    ("the size is 0", |io| alloc(io, 0).err(), Operation::MemAlloc),
    (
        "the offset is not a multiple of 4096 (saw 123)",
        |io| {
            let va = map(io, alloc(io, 8192).ok()?).ok()?;
            export(io, va, 4096, 123).err()
        },
        Operation::ExportDmabuf,
    ),
    (
        "the size is 0 or not a multiple of 4096 (saw 0)",
        |io| {
            let va = map(io, alloc(io, 8192).ok()?).ok()?;
            export(io, va, 0, 0).err()
        },
        Operation::ExportDmabuf,
    ),
    (
        "offset + size exceeds the mapping",
        |io| {
            let va = map(io, alloc(io, 8192).ok()?).ok()?;
            export(io, va, gaudi2::DRAM_PAGE, 4096).err()
        },
        Operation::ExportDmabuf,
    ),
    (
        ", inside the mapping at",
        |io| {
            let va = map(io, alloc(io, 8192).ok()?).ok()?;
            export(io, DeviceVa(va.0 + 4096), 4096, 0).err()
        },
        Operation::ExportDmabuf,
    ),
    (
        "the address maps host memory",
        |io| {
            let va = map_host(io, 0x7000, 4096).ok()?;
            export(io, va, 4096, 0).err()
        },
        Operation::ExportDmabuf,
    ),
    (
        "the size is above HL_MAX_CB_SIZE",
        |io| {
            io.cb_create(CbCreate {
                size: 2 << 20,
                map_to_device: false,
            })
            .err()
        },
        Operation::CbCreate,
    ),
    (
        "which was released already",
        |io| {
            let handle = io
                .cb_create(CbCreate {
                    size: 1,
                    map_to_device: false,
                })
                .ok()?;
            io.cb_destroy(handle).ok()?;
            io.cb_destroy(handle).err()
        },
        Operation::CbDestroy,
    ),
    (
        "it was made without MAP",
        |io| {
            let handle = io
                .cb_create(CbCreate {
                    size: 1,
                    map_to_device: false,
                })
                .ok()?;
            io.cb_info(handle, true).err()
        },
        Operation::CbInfo,
    ),
    (
        "the length must be the buffer's size",
        |io| {
            let handle = io
                .cb_create(CbCreate {
                    size: 4097,
                    map_to_device: false,
                })
                .ok()?;
            io.mmap(MmapRequest {
                offset: handle.0,
                len: 4096,
            })
            .err()
        },
        Operation::Mmap,
    ),
    (
        "the submission has no chunks",
        |io| submit(io, &[]).err(),
        Operation::Submit,
    ),
    (
        "types of submission that exclude one another (saw SIGNAL|WAIT)",
        |io| {
            let flags = CsFlags::SIGNAL | CsFlags::WAIT;
            io.submit(&CsRequest {
                flags,
                ..CsRequest::default()
            })
            .err()
        },
        Operation::Submit,
    ),
    (
        "no such submission yet: the number is above the last one submitted (saw 2 of 1)",
        |io| {
            let va = map_host(io, 0x7000, 4096).ok()?;
            submit(io, &[HlCsChunk::user(0, va.0, 64)]).ok()?;
            io.wait_cs(CsSeq(2), Duration::ZERO).err()
        },
        Operation::WaitCs,
    ),
    (
        "more than 32 submissions (saw 33)",
        |io| io.wait_multi_cs(&[CsSeq(1); 33], Duration::ZERO).err(),
        Operation::WaitMultiCs,
    ),
    (
        "more than 1048576 elements (saw 1048577)",
        |io| io.ts_alloc((1 << 20) + 1).err(),
        Operation::TsAlloc,
    ),
    (
        "the counter's index is past the end of the buffer (saw 512 of 512)",
        |io| {
            io.wait_interrupt(&InterruptWait {
                interrupt: InterruptId(48),
                word: InterruptWord::KernelCq(counter(io, 512)?),
                target: 1,
                timeout: Duration::ZERO,
            })
            .err()
        },
        Operation::WaitInterrupt,
    ),
    (
        "the counter's index is past the end of the buffer (saw 4096 of 512)",
        |io| register(io, 4096, None, 0).err(),
        Operation::RegisterTimestamp,
    ),
    (
        "the timestamp's index is past the end of the buffer (saw 8 of 8)",
        |io| register(io, 0, None, 8).err(),
        Operation::RegisterTimestamp,
    ),
    (
        "the command names no cores, or more than the chip has (saw 0)",
        |io| {
            io.submit(&CsRequest::engine_cores(&[], EngineCommand::CORE_RUN))
                .err()
        },
        Operation::Submit,
    ),
    (
        "the command is not one to cores (saw STALL)",
        |io| {
            io.submit(&CsRequest::engine_cores(&[0], EngineCommand::STALL))
                .err()
        },
        Operation::Submit,
    ),
    (
        "the command names no cores, or more than the chip has (saw 70)",
        |io| {
            io.submit(&CsRequest::engine_cores(&[0; 70], EngineCommand::CORE_RUN))
                .err()
        },
        Operation::Submit,
    ),
    (
        "the command names no engines, or more than the chip has (saw 80)",
        |io| {
            io.submit(&CsRequest::engines(&[2; 80], EngineCommand::STALL))
                .err()
        },
        Operation::Submit,
    ),
    (
        "this engine cannot be stalled (saw",
        |io| {
            let decoder = Gaudi2EngineId::DCORE1_ENGINE_ID_DEC_0.0;
            io.submit(&CsRequest::engines(&[2, decoder], EngineCommand::STALL))
                .err()
        },
        Operation::Submit,
    ),
];

/// A counter in a new command buffer of 512.
fn counter(io: &dyn KernelIo, offset: u64) -> Option<CqCounter> {
    let request = CbCreate {
        size: 4096,
        map_to_device: true,
    };
    let handle = io.cb_create(request).ok()?;
    Some(CqCounter { handle, offset })
}

/// Registers in a new buffer of 8 timestamps, or in the given one.
fn register(io: &dyn KernelIo, offset: u64, buffer: Option<TsHandle>, index: u64) -> Result<()> {
    io.register_timestamp(&TimestampRegistration {
        interrupt: InterruptId(48),
        counter: counter(io, offset).expect("good"),
        target: 1,
        buffer: match buffer {
            Some(buffer) => buffer,
            None => io.ts_alloc(8)?,
        },
        index,
    })
}

#[test]
fn unknown_timestamp_buffer_only_explains_a_refusal() {
    let (below, io) = validated(Policy::Refuse);
    register(&io, 511, None, 7).expect("the last of both");
    register(&io, 0, Some(TsHandle(0xabc)), 0).expect("made before the layer looked, perhaps");
    assert_eq!(io.findings(), []);
    below.refuse(Operation::RegisterTimestamp, Errno::EINVAL);
    let error = register(&io, 0, Some(TsHandle(0xabc)), 0).expect_err("the driver knows none");
    let expected = "no such timestamps buffer (saw 0xabc, which was not made here)";
    assert!(
        error.to_string().contains(expected),
        "{expected:?} must be reported: {error}"
    );
    assert_eq!(io.findings().len(), 1);
}

#[test]
fn strict_mode_rejects_before_the_driver() {
    for (expected, mistake, operation) in REFUSED {
        let (below, io) = validated(Policy::Refuse);
        let error = mistake(&io).unwrap_or_else(|| panic!("{expected}: the mistake must be refused"));
        assert!(
            error.to_string().contains(expected),
            "{expected:?} must be reported: {error}"
        );
        assert_eq!(
            error.errno(),
            Some(Errno::EINVAL),
            "{expected}: the driver's errno"
        );
        assert_eq!(error.operation(), operation.kernel_name());
        let findings = io.findings();
        let [finding] = findings.as_slice() else {
            panic!("{expected}: one finding was expected, saw {findings:?}")
        };
        assert_eq!(
            (finding.operation, finding.outcome),
            (*operation, Judgement::Stopped),
            "{finding}"
        );
        let reached = below.seen().iter().filter(|seen| *seen == operation).count();
        let good =
            usize::from(*expected == "which was released already" && *operation != Operation::MemMapDevice);
        assert_eq!(
            reached, good,
            "{expected}: the wrong one did not reach the driver"
        );
    }
}

/// A driver that refuses the nth operation of a kind, as the real one does.
#[test]
fn default_mode_explains_the_drivers_refusal() {
    let (below, io) = validated(Policy::Explain);
    let handle = alloc(&io, 4096).expect("good");
    let va = map(&io, handle).expect("good");
    below.refuse(Operation::MemFree, Errno::EINVAL);
    let error = io.mem_free(handle).expect_err("mapped");
    assert_eq!(
        error.to_string(),
        format!(
            "HL_MEM_OP_FREE on device mock0: the memory is still mapped (saw 1, mapped at {va}) [EINVAL]"
        )
    );
    assert_eq!(error.help(), Some("unmap it first"));
    assert_eq!(io.findings()[0].outcome, Judgement::Refused(Some(Errno::EINVAL)));
    assert_eq!(
        below.seen().last(),
        Some(&Operation::MemFree),
        "the driver was asked"
    );
    assert_eq!(
        io.leaks().allocations.len(),
        1,
        "what was not freed is still held"
    );

    below.refuse(Operation::MemFree, Errno::EBUSY);
    let error = io.mem_free(handle).expect_err("in reset");
    assert_eq!(
        error.to_string(),
        "HL_MEM_OP_FREE on device mock0: the driver says no [EBUSY]",
        "another errno has another cause, and is left alone"
    );
}

#[test]
fn accepted_mistake_is_reported() {
    for (expected, mistake, _) in REFUSED {
        let (_, io) = validated(Policy::Explain);
        assert!(
            mistake(&io).is_none(),
            "{expected}: nothing is refused that the driver accepts"
        );
        let findings = io.findings();
        assert_eq!(findings.len(), 1, "{expected}: {findings:?}");
        assert_eq!(findings[0].outcome, Judgement::Accepted);
        assert_eq!(findings[0].expected, Some(Errno::EINVAL));
    }
}

#[test]
fn undetected_mistake_is_reported_and_forwarded() {
    for policy in [Policy::Explain, Policy::Refuse] {
        let (below, io) = validated(policy);
        let va = map_host(&io, 0x7000, 4096).expect("good");
        submit(&io, &[HlCsChunk::user(0, va.0 + 4032, 64)]).expect("good: the last bytes of the mapping");
        assert_eq!(io.findings(), [], "nothing is wrong yet");
        submit(&io, &[HlCsChunk::user(0, va.0 + 4040, 64)]).expect("passed on");
        map_host(&io, 0x7ff8, 16).expect("passed on");
        let sentences: Vec<_> = io.findings().iter().map(ToString::to_string).collect();
        assert_eq!(
            sentences,
            [
                "submit: chunk 0 has its 64 bytes of commands at 0xfff0000100000fc8, which no mapping made here covers: the device \
                 will fault on it",
                "mem_map_host: host memory 0x7ff8 + 16 overlaps 0x7000 + 4096, which is mapped at 0xfff0000100000000: its pages are \
                 pinned twice",
            ]
        );
        assert!(
            io.findings()
                .iter()
                .all(|finding| finding.outcome == Judgement::Accepted)
        );
        assert_eq!(below.seen().len(), 4, "all of them reached the driver");
    }
}

#[test]
fn commands_may_lie_in_sram() {
    let (_, io) = validated(Policy::Refuse);
    let handle = io
        .cb_create(CbCreate {
            size: 4096,
            map_to_device: true,
        })
        .expect("good");
    let va = 0xfff0_0000_0000_0000 + (handle.0 & 0xff_ffff);
    submit(
        &io,
        &[
            HlCsChunk::user(0, va, 4096),
            HlCsChunk::user(0, gaudi2::SRAM_BASE.0, 8),
        ],
    )
    .expect("good");
    assert_eq!(io.findings(), [], "the layer asked where the buffer lies");
}

#[test]
fn uncertain_findings_need_a_refusal() {
    let (below, io) = validated(Policy::Refuse);
    let va = map(&io, alloc(&io, 8192).expect("good")).expect("good");
    export(&io, va, 4096, 4096).expect("good");
    below.refuse(Operation::MemUnmap, Errno::EINVAL);
    let error = io.mem_unmap(va).expect_err("the dma-buf lives");
    assert!(
        error
            .to_string()
            .contains("the memory is exported (saw 0x1001000200000000, exported 1 times)"),
        "{error}"
    );
    assert_eq!(io.findings().len(), 1);

    let (_, io) = validated(Policy::Refuse);
    let va = map(&io, alloc(&io, 8192).expect("good")).expect("good");
    export(&io, va, 4096, 4096).expect("good");
    io.mem_unmap(va).expect("the dma-buf is closed");
    io.mem_free(MemHandle(77)).expect("a handle of another context");
    assert_eq!(io.findings(), [], "nothing was wrong");
}

#[test]
fn refused_submission_consumes_a_number() {
    let (below, io) = validated(Policy::Refuse);
    let va = map_host(&io, 0x7000, 4096).expect("good");
    let chunks = [HlCsChunk::user(0, va.0, 64)];
    submit(&io, &chunks).expect("number 1");
    below.refuse(Operation::Submit, Errno::EAGAIN);
    submit(&io, &chunks).expect_err("full");
    io.wait_cs(CsSeq(2), Duration::ZERO).expect("it may be in use");
    io.wait_cs(CsSeq(3), Duration::ZERO).expect_err("it cannot be");
}

#[test]
fn reused_handles_are_valid_and_leaks_counted() {
    let (_, io) = validated(Policy::Refuse);
    assert!(io.leaks().is_empty());
    let handle = alloc(&io, 100).expect("good");
    let va = map(&io, handle).expect("good");
    io.mem_unmap(va).expect("good");
    io.mem_free(handle).expect("good");
    assert!(io.leaks().is_empty(), "all was given back: {}", io.leaks());
    let handle = alloc(&io, 100).expect("good");
    map(&io, handle).expect("good");
    io.cb_create(CbCreate {
        size: 1,
        map_to_device: false,
    })
    .expect("good");
    assert_eq!(
        io.leaks().to_string(),
        "1 allocations of 100 bytes in all (first: handle 5), 1 mappings (first: 0x1001000600000000), 1 command buffers (first: \
         0x1000000000007000)"
    );
    assert_eq!(io.findings(), []);
}

#[test]
fn correct_program_sees_no_difference() {
    let (below, io) = validated(Policy::Refuse);
    let unchecked = [
        Operation::Info,
        Operation::MapBlock,
        Operation::Debug,
        Operation::Nic,
    ];
    for (operation, error) in recorder::call_all(&io) {
        if unchecked.contains(&operation) {
            assert_eq!(error, None, "{operation} passes");
        }
    }
    assert!(unchecked.iter().all(|operation| below.seen().contains(operation)));
    assert_eq!(io.node().name, "mock:gaudi2", "the node is the one below");
}

#[test]
fn unrecorded_state_breaks_no_rule() {
    let (_, io) = validated(Policy::Refuse);
    io.unregister_events().expect("the driver decides");
    let enable = |enable| DebugRequest {
        op: DebugOp::SET_MODE,
        reg_idx: 0,
        enable,
        input: &[],
        output: &mut [],
    };
    io.debug(enable(false)).expect("the driver decides");
    io.debug(enable(true)).expect("the driver decides");
    let block = MmapRequest {
        offset: 0x4 << 59,
        len: 4096,
    };
    io.mmap(block).expect("the driver decides");
    assert_eq!(io.findings(), []);
}

/// An import may get the address of a mapping that went; its unmap is right.
#[test]
fn import_counts_as_mapping() {
    use std::os::fd::AsFd as _;
    let (_below, io) = validated(Policy::Refuse);
    let file = std::fs::File::open("/dev/null").expect("it is there");
    for _ in 0..2 {
        let address = io
            .register_dmabuf(RegisterDmabuf {
                dmabuf: file.as_fd(),
                len: 4096,
            })
            .expect("good");
        io.mem_unmap(address).expect("good");
        io.mem_unmap(address).expect_err("once is enough");
    }
}

#[test]
fn destroyed_cb_answers_info_while_referenced() {
    let (below, io) = validated(Policy::Refuse);
    let handle = io
        .cb_create(CbCreate {
            size: 4096,
            map_to_device: false,
        })
        .expect("good");
    io.cb_destroy(handle).expect("good");
    io.cb_info(handle, false).expect("a mapping may hold it");
    assert_eq!(io.findings(), []);
    io.cb_destroy(handle).expect_err("once is enough");
    below.refuse(Operation::CbInfo, Errno::EINVAL);
    let error = io.cb_info(handle, false).expect_err("nothing holds it");
    assert!(
        error.to_string().contains("which was released already"),
        "{error}"
    );
}

#[test]
fn control_node_is_not_checked() {
    let below = Recorder::with_node(NodeKind::Control);
    let io = ValidateLayer::new(below.clone(), Policy::Refuse);
    below.refuse(Operation::MemAlloc, Errno::ENOTTY);
    let error = alloc(&io, 0).expect_err("no memory here");
    assert_eq!(
        error.errno(),
        Some(Errno::ENOTTY),
        "the driver's reason comes first"
    );
    assert_eq!(io.findings(), []);
}
