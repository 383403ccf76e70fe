//! What is neither memory nor work: commands to engines, debugging, blocks of registers.

use std::time::Duration;

use gaudi_seam::{
    CbCreate, CbHandle, CqCounter, CsRequest, DebugRequest, DeviceVa, Errno, ExportRequest, HostVa,
    InterruptId, InterruptWait, InterruptWord, KernelIo, MapDevice, MemAlloc, MemHandle, MmapRequest,
    SharedIo, TimestampRegistration, TsHandle,
};
use gaudi_spec::gaudi2::block::{self, BlockKind};
use gaudi_spec::gaudi2::queue;
use gaudi_uapi::cs::{CsFlags, EngineCommand};
use gaudi_uapi::debug::{DebugOp, HlDebugParamsEtr, HlDebugParamsSpmu};
use gaudi_uapi::engine::Gaudi2EngineId as Id;
use gaudi_uapi::memory::MemFlags;
use zerocopy::IntoBytes as _;

use crate::bench::Bench;
use crate::case::{Case, Tag, Verdict, equal, refused};
use crate::rig::{Buffer, PAGE_LEN, Program, submit_with};

pub(crate) static CASES: &[Case] = &[
    Case::gaudi2("reset.refuses-everything", "common/memory.c:2209", reset_refuses)
        .tagged(&[Tag::Clock, Tag::Reset]),
    Case::gaudi2("engines.cores.run-and-halt", "gaudi2/gaudi2.c:5025", run_and_halt),
    Case::gaudi2("engines.cores.not-there", "gaudi2/gaudi2.c:5031", cores_not_there),
    Case::gaudi2(
        "engines.cores.how-many",
        "common/command_submission.c:2473",
        cores_how_many,
    ),
    Case::gaudi2(
        "engines.cores.command",
        "common/command_submission.c:2478",
        cores_command,
    ),
    Case::gaudi2("engines.stall-and-resume", "gaudi2/gaudi2.c:5123", stall),
    Case::gaudi2(
        "engines.how-many",
        "common/command_submission.c:2520",
        engines_how_many,
    ),
    Case::gaudi2(
        "engines.no-such-command",
        "common/command_submission.c:2511",
        engines_command,
    ),
    Case::gaudi2(
        "engines.command-zero",
        "gaudi2/gaudi2.c:5180",
        engines_command_zero,
    ),
    Case::gaudi2(
        "engines.cannot-be-stalled",
        "gaudi2/gaudi2.c:5159",
        engines_unstallable,
    ),
    Case::gaudi2("debug.mode", "common/device.c:1246", debug_mode),
    Case::gaudi2("debug.mode.twice", "common/device.c:1242", debug_twice),
    Case::gaudi2("debug.mode.off-when-off", "common/device.c:1227", debug_off),
    Case::gaudi2(
        "debug.mode.ends-with-its-user",
        "common/context.c:111",
        debug_ends,
    )
    .tagged(&[Tag::Lifecycle]),
    Case::gaudi2(
        "debug.outside-mode",
        "common/habanalabs_ioctl.c:1208",
        debug_outside,
    ),
    Case::gaudi2(
        "debug.unknown-operation",
        "common/habanalabs_ioctl.c:1220",
        debug_unknown,
    ),
    Case::gaudi2(
        "debug.every-component",
        "gaudi2/gaudi2_coresight.c:2545",
        debug_components,
    ),
    Case::gaudi2(
        "debug.no-such-component",
        "gaudi2/gaudi2_coresight.c:1982",
        debug_no_component,
    ),
    Case::gaudi2(
        "debug.without-parameters",
        "gaudi2/gaudi2_coresight.c:2009",
        debug_no_parameters,
    ),
    Case::gaudi2(
        "debug.trace-buffer",
        "gaudi2/gaudi2_coresight.c:2244",
        debug_trace_buffer,
    ),
    Case::gaudi2(
        "debug.too-many-events",
        "gaudi2/gaudi2_coresight.c:2479",
        debug_events,
    ),
    Case::gaudi2(
        "debug.answer-too-large",
        "common/habanalabs_ioctl.c:232",
        debug_answer,
    ),
    Case::gaudi2("block.every-address", "gaudi2/gaudi2.c:11591", every_block),
    Case::gaudi2("block.no-such-address", "gaudi2/gaudi2.c:11602", no_such_block),
    Case::gaudi2("block.mmap.memory", "gaudi2/gaudi2.c:11625", block_memory),
    Case::gaudi2("block.mmap.wrong-length", "gaudi2/gaudi2.c:11621", block_length),
    Case::gaudi2("block.mmap.no-such-number", "gaudi2/gaudi2.c:11615", block_number),
];

const NONE: u64 = u64::MAX;

/// Every operation but INFO and mmap looks at the device's status first.
fn reset_refuses(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let hang = Buffer::new(&io, Program::new().fence(2, 1, 1)?)?;
    let seq = submit_with(&*io, &[hang.chunk(queue::PDMA_0_0)], CsFlags::NONE, Some(1))?;
    refused(
        "the wait into the limit",
        io.wait_cs(seq, Duration::from_secs(5)),
        Errno::ETIMEDOUT,
    )?;
    let word = InterruptWord::User(HostVa(8));
    let counter = CqCounter {
        handle: hang.handle,
        offset: 0,
    };
    let answers = [
        io.cb_create(CbCreate {
            size: 1,
            map_to_device: false,
        })
        .map(drop),
        io.cb_destroy(CbHandle(0)),
        io.cb_info(hang.handle, false).map(drop),
        io.submit(&CsRequest::jobs(&[])).map(drop),
        io.wait_cs(seq, Duration::ZERO).map(drop),
        io.wait_multi_cs(&[seq], Duration::ZERO).map(drop),
        io.wait_interrupt(&InterruptWait {
            interrupt: InterruptId(0),
            word,
            target: 0,
            timeout: Duration::ZERO,
        })
        .map(drop),
        io.register_timestamp(&TimestampRegistration {
            interrupt: InterruptId(0),
            counter,
            target: 0,
            buffer: TsHandle(0),
            index: 0,
        }),
        io.mem_alloc(MemAlloc {
            size: 1,
            page_size: 0,
            flags: MemFlags::NONE,
        })
        .map(drop),
        io.mem_free(MemHandle(0)),
        io.mem_map_device(MapDevice {
            handle: MemHandle(0),
            hint: None,
            flags: MemFlags::NONE,
        })
        .map(drop),
        io.mem_unmap(DeviceVa(0)),
        io.ts_alloc(1).map(drop),
        io.map_block(0).map(drop),
        io.export_dmabuf(ExportRequest {
            address: DeviceVa(0),
            size: 0,
            offset: 0,
            flags: 0,
        })
        .map(drop),
        set_mode(&*io, true),
    ];
    drop((hang, io));
    bench.reopen()?;
    for (nth, answer) in answers.into_iter().enumerate() {
        refused(
            &format!("operation {nth} of the list in a reset"),
            answer,
            Errno::EBUSY,
        )?;
    }
    Ok(())
}

fn run_and_halt(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let all: Vec<u32> = (0..block::ARCS).collect();
    for command in [EngineCommand::CORE_RUN, EngineCommand::CORE_HALT] {
        for cores in [&all[..1], &all] {
            let answer = io.submit(&CsRequest::engine_cores(cores, command))?;
            equal("the number of what is no submission", answer.seq.0, NONE)?;
            io.submit(&CsRequest::engines(cores, command))?;
        }
    }
    Ok(())
}

fn cores_not_there(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let request = CsRequest::engine_cores(&[block::ARCS, u32::MAX], EngineCommand::CORE_HALT);
    io.submit(&request).map(drop)?;
    Ok(())
}

fn cores_how_many(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let many = vec![0; block::ARCS as usize + 1];
    for cores in [&many[..0], &many] {
        for command in [EngineCommand::CORE_HALT, EngineCommand(9)] {
            refused(
                &format!("a command to {} cores", cores.len()),
                io.submit(&CsRequest::engine_cores(cores, command)),
                Errno::EINVAL,
            )?;
        }
    }
    Ok(())
}

fn cores_command(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for command in [0, EngineCommand::STALL.0, EngineCommand::RESUME.0, 5, u32::MAX] {
        refused(
            &format!("command {command} to a core"),
            io.submit(&CsRequest::engine_cores(&[0], EngineCommand(command))),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn stall(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let engines = [
        Id::DCORE0_ENGINE_ID_TPC_0.0,
        Id::DCORE3_ENGINE_ID_TPC_5.0,
        Id::DCORE2_ENGINE_ID_MME.0,
    ];
    for command in [EngineCommand::STALL, EngineCommand::RESUME] {
        let answer = io.submit(&CsRequest::engines(&engines, command))?;
        equal("the number of what is no submission", answer.seq.0, NONE)?;
    }
    Ok(())
}

fn engines_how_many(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let most = Id::ENGINE_ID_KDMA.0 as usize + 1;
    let many = vec![Id::DCORE0_ENGINE_ID_TPC_0.0; most + 1];
    for (count, command) in [
        (0, EngineCommand::STALL),
        (most + 1, EngineCommand::RESUME),
        (block::ARCS as usize + 1, EngineCommand::CORE_RUN),
    ] {
        refused(
            &format!("{command} to {count} engines"),
            io.submit(&CsRequest::engines(&many[..count], command)),
            Errno::EINVAL,
        )?;
    }
    io.submit(&CsRequest::engines(&many[..most], EngineCommand::RESUME))
        .map(drop)?;
    Ok(())
}

fn engines_command(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for command in [5, u32::MAX] {
        refused(
            &format!("command {command}"),
            io.submit(&CsRequest::engines(&[], EngineCommand(command))),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn engines_command_zero(bench: &mut Bench) -> Verdict {
    let request = CsRequest::engines(&[3], EngineCommand(0));
    refused("command 0", bench.io()?.submit(&request), Errno::EINVAL)
}

fn engines_unstallable(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for engine in [
        Id::DCORE0_ENGINE_ID_DEC_0,
        Id::DCORE0_ENGINE_ID_TPC_6,
        Id::ENGINE_ID_PDMA_0,
        Id::ENGINE_ID_NIC0_0,
        Id(1000),
    ] {
        refused(
            &format!("a stall of {engine}"),
            io.submit(&CsRequest::engines(&[engine.0], EngineCommand::STALL)),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn debug(
    io: &dyn KernelIo,
    op: DebugOp,
    reg_idx: u32,
    enable: bool,
    input: &[u8],
    output: &mut [u8],
) -> gaudi_seam::Result<()> {
    io.debug(DebugRequest {
        op,
        reg_idx,
        enable,
        input,
        output,
    })
}

fn set_mode(io: &dyn KernelIo, on: bool) -> gaudi_seam::Result<()> {
    debug(io, DebugOp::SET_MODE, 0, on, &[], &mut [])
}

/// In debug mode, and out of it again.
fn in_mode(bench: &mut Bench, case: impl FnOnce(&SharedIo) -> Verdict) -> Verdict {
    let io = bench.io()?;
    set_mode(&*io, true)?;
    let verdict = case(&io);
    set_mode(&*io, false)?;
    verdict
}

const CONFIGURED: [DebugOp; 7] = [
    DebugOp::ETR,
    DebugOp::ETF,
    DebugOp::STM,
    DebugOp::FUNNEL,
    DebugOp::BMON,
    DebugOp::SPMU,
    DebugOp::TIMESTAMP,
];

fn debug_mode(bench: &mut Bench) -> Verdict {
    in_mode(bench, |_| Ok(()))?;
    in_mode(bench, |_| Ok(()))
}

fn debug_twice(bench: &mut Bench) -> Verdict {
    in_mode(bench, |io| {
        refused("debug mode in debug mode", set_mode(&**io, true), Errno::EFAULT)
    })
}

fn debug_off(bench: &mut Bench) -> Verdict {
    refused(
        "no debug mode outside it",
        set_mode(&*bench.io()?, false),
        Errno::EFAULT,
    )
}

fn debug_ends(bench: &mut Bench) -> Verdict {
    set_mode(&*bench.io()?, true)?;
    bench.reopen()?;
    in_mode(bench, |_| Ok(()))
}

fn debug_outside(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for op in CONFIGURED {
        refused(
            &format!("{op} outside debug mode"),
            debug(&*io, op, 0, false, &[], &mut []),
            Errno::EFAULT,
        )?;
    }
    Ok(())
}

fn debug_unknown(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for op in [8, u32::MAX] {
        let answer = debug(&*io, DebugOp(op), 0, true, &[], &mut []);
        refused(&format!("debug operation {op}"), answer, Errno::EINVAL)?;
    }
    Ok(())
}

fn etr(buffer_address: u64, buffer_size: u64) -> HlDebugParamsEtr {
    HlDebugParamsEtr {
        buffer_address,
        buffer_size,
        ..HlDebugParamsEtr::default()
    }
}

fn debug_components(bench: &mut Bench) -> Verdict {
    in_mode(bench, |io| {
        let spmu = [0u8; 96];
        let etr = etr(gaudi_spec::gaudi2::SRAM_BASE.0, 4096);
        for enable in [true, false] {
            for op in CONFIGURED {
                let input = if op == DebugOp::ETR { etr.as_bytes() } else { &spmu };
                // The counters are zeroed bytes where nothing is traced; the ETR says where its buffer is, of which it wrote nothing
                // (gaudi2/gaudi2_coresight.c:2278).
                let mut output = [0xff; 64];
                debug(&**io, op, 1, enable, input, &mut output)?;
                let mut wanted = [0; 64];
                if op == DebugOp::ETR && !enable {
                    wanted[..8].copy_from_slice(&etr.buffer_address.to_le_bytes());
                }
                equal(&format!("the answer of {op}"), output, wanted)?;
            }
        }
        Ok(())
    })
}

fn debug_no_component(bench: &mut Bench) -> Verdict {
    in_mode(bench, |io| {
        for (op, first) in [
            (DebugOp::STM, 139),
            (DebugOp::ETF, 141),
            (DebugOp::FUNNEL, 141),
            (DebugOp::BMON, 385),
            (DebugOp::SPMU, 137),
        ] {
            debug(&**io, op, first - 1, false, &[], &mut [])?;
            for index in [first, u32::MAX] {
                refused(
                    &format!("{op} {index}"),
                    debug(&**io, op, index, true, &[0; 96], &mut []),
                    Errno::EINVAL,
                )?;
            }
        }
        Ok(())
    })
}

fn debug_no_parameters(bench: &mut Bench) -> Verdict {
    in_mode(bench, |io| {
        for op in [
            DebugOp::STM,
            DebugOp::ETF,
            DebugOp::ETR,
            DebugOp::BMON,
            DebugOp::SPMU,
        ] {
            refused(
                &format!("{op} without parameters"),
                debug(&**io, op, 0, true, &[], &mut []),
                Errno::EINVAL,
            )?;
        }
        Ok(())
    })
}

fn debug_trace_buffer(bench: &mut Bench) -> Verdict {
    in_mode(bench, |io| {
        let sram = gaudi_spec::gaudi2::SRAM_BASE.0;
        for (address, size) in [(sram, 0), (0, 4096), (sram - 1, 4096), (u64::MAX, 4096)] {
            refused(
                &format!("a trace buffer at {address:#x} + {size}"),
                debug(
                    &**io,
                    DebugOp::ETR,
                    0,
                    true,
                    etr(address, size).as_bytes(),
                    &mut [],
                ),
                Errno::EINVAL,
            )?;
        }
        Ok(())
    })
}

fn debug_events(bench: &mut Bench) -> Verdict {
    in_mode(bench, |io| {
        let seven = HlDebugParamsSpmu {
            event_types_num: 7,
            ..HlDebugParamsSpmu::default()
        };
        refused(
            "seven events of an SPMU",
            debug(&**io, DebugOp::SPMU, 0, true, seven.as_bytes(), &mut []),
            Errno::EINVAL,
        )?;
        refused(
            "the counts of seven events",
            debug(&**io, DebugOp::SPMU, 0, false, &[], &mut [0; 72]),
            Errno::EINVAL,
        )?;
        debug(&**io, DebugOp::SPMU, 0, false, &[], &mut [0; 64])?;
        Ok(())
    })
}

fn debug_answer(bench: &mut Bench) -> Verdict {
    in_mode(bench, |io| {
        let mut large = vec![0; (4 << 20) + 1];
        let answer = debug(&**io, DebugOp::TIMESTAMP, 0, false, &[], &mut large);
        refused("an answer of more than 4 MiB", answer, Errno::ENOMEM)
    })
}

fn every_block(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for block in (0..block::COUNT).filter_map(block::block) {
        let answer = io.map_block(block.address.0)?;
        equal(
            &format!("handle and size of block {}", block.number),
            (answer.handle, answer.size),
            (0x4 << 59 | (u64::from(block.number) << 12), block.size),
        )?;
    }
    Ok(())
}

fn no_such_block(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let first = block::block(0).map_or(0, |block| block.address.0);
    // Inside a block, the first die core's sync manager, which is the driver's, and nothing at all.
    let dcore0 = gaudi_spec::gaudi2::CFG_BASE.0 + u64::from(gaudi_spec::gaudi2::sync::OBJS);
    for address in [first + 0x1000, dcore0, 0, u64::MAX] {
        refused(
            &format!("a block at {address:#x}"),
            io.map_block(address),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn block_memory(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let Some(arc) = (0..block::COUNT)
        .filter_map(block::block)
        .find(|block| matches!(block.kind, BlockKind::Dccm(5)))
    else {
        return equal("an ARC's memory", false, true);
    };
    let handle = io.map_block(arc.address.0)?.handle;
    let map = || {
        io.mmap(MmapRequest {
            offset: handle,
            len: arc.size as usize,
        })
    };
    let (one, other) = (map()?, map()?);
    one.write(arc.size as usize - 4, b"ring")?;
    let mut seen = [0; 4];
    other.read(arc.size as usize - 4, &mut seen)?;
    equal("what another mapping of the block reads", &seen, b"ring")
}

fn block_length(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for block in [0, 4, 80, 447].into_iter().filter_map(block::block) {
        let offset = io.map_block(block.address.0)?.handle;
        for len in [block.size as usize - PAGE_LEN, block.size as usize + PAGE_LEN] {
            if len > 0 {
                refused(
                    &format!("{len} bytes of block {}", block.number),
                    io.mmap(MmapRequest { offset, len }),
                    Errno::EINVAL,
                )?;
            }
        }
    }
    Ok(())
}

fn block_number(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for number in [block::COUNT, 0xffff] {
        let offset = 0x4 << 59 | (u64::from(number) << 12);
        refused(
            &format!("block {number}"),
            io.mmap(MmapRequest {
                offset,
                len: PAGE_LEN,
            }),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}
