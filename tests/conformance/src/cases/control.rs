//! Commands to engines, debugging, blocks of registers.

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
use crate::case::cases;
use crate::rig::{Buffer, PAGE_LEN, Program, submit_with};
use crate::verdict::{Verdict, equal, invalid, refused};

cases! {
    "reset.refuses-everything", "common/memory.c:hl_mem_ioctl" => reset_refuses [Clock, Reset];
    "engines.cores.run-and-halt", "gaudi2/gaudi2.c:gaudi2_set_engine_cores" => run_and_halt;
    "engines.cores.not-there", "gaudi2/gaudi2.c:gaudi2_set_engine_cores" => cores_not_there;
    "engines.cores.how-many", "common/command_submission.c:cs_ioctl_engine_cores" => cores_how_many;
    "engines.cores.command", "common/command_submission.c:cs_ioctl_engine_cores" => cores_command;
    "engines.stall-and-resume", "gaudi2/gaudi2.c:gaudi2_set_engine_modes" => stall;
    "engines.how-many", "common/command_submission.c:cs_ioctl_engines" => engines_how_many;
    "engines.no-such-command", "common/command_submission.c:cs_ioctl_engines" => engines_command;
    "engines.command-zero", "gaudi2/gaudi2.c:gaudi2_set_engines" => engines_command_zero;
    "engines.cannot-be-stalled", "gaudi2/gaudi2.c:gaudi2_set_engine_modes" => engines_unstallable;
    "debug.mode", "common/device.c:hl_device_set_debug_mode" => debug_mode;
    "debug.mode.twice", "common/device.c:hl_device_set_debug_mode" => debug_twice;
    "debug.mode.off-when-off", "common/device.c:hl_device_set_debug_mode" => debug_off;
    "debug.mode.ends-with-its-user", "common/context.c:hl_ctx_fini" => debug_ends [Lifecycle];
    "debug.outside-mode", "common/habanalabs_ioctl.c:hl_debug_ioctl" => debug_outside;
    "debug.unknown-operation", "common/habanalabs_ioctl.c:hl_debug_ioctl" => debug_unknown;
    "debug.every-component", "gaudi2/gaudi2_coresight.c:gaudi2_debug_coresight" => debug_components;
    "debug.no-such-component", "gaudi2/gaudi2_coresight.c:gaudi2_config_stm" => debug_no_component;
    "debug.without-parameters", "gaudi2/gaudi2_coresight.c:gaudi2_config_stm" => debug_no_parameters;
    "debug.trace-buffer", "gaudi2/gaudi2_coresight.c:gaudi2_config_etr" => debug_trace_buffer;
    "debug.too-many-events", "gaudi2/gaudi2_coresight.c:gaudi2_config_spmu" => debug_events;
    "debug.answer-too-large", "common/habanalabs_ioctl.c:debug_coresight" => debug_answer;
    "block.every-address", "gaudi2/gaudi2.c:gaudi2_get_hw_block_id" => every_block;
    "block.no-such-address", "gaudi2/gaudi2.c:gaudi2_get_hw_block_id" => no_such_block;
    "block.mmap.memory", "gaudi2/gaudi2.c:gaudi2_block_mmap" => block_memory;
    "block.mmap.wrong-length", "gaudi2/gaudi2.c:gaudi2_block_mmap" => block_length;
    "block.mmap.no-such-number", "gaudi2/gaudi2.c:gaudi2_block_mmap" => block_number;
}

const NONE: u64 = u64::MAX;

/// Every operation except INFO and mmap checks the device's status first.
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
            invalid(
                &format!("a command to {} cores", cores.len()),
                io.submit(&CsRequest::engine_cores(cores, command)),
            )?;
        }
    }
    Ok(())
}

fn cores_command(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for command in [0, EngineCommand::STALL.0, EngineCommand::RESUME.0, 5, u32::MAX] {
        invalid(
            &format!("command {command} to a core"),
            io.submit(&CsRequest::engine_cores(&[0], EngineCommand(command))),
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
        invalid(
            &format!("{command} to {count} engines"),
            io.submit(&CsRequest::engines(&many[..count], command)),
        )?;
    }
    io.submit(&CsRequest::engines(&many[..most], EngineCommand::RESUME))
        .map(drop)?;
    Ok(())
}

fn engines_command(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for command in [5, u32::MAX] {
        invalid(
            &format!("command {command}"),
            io.submit(&CsRequest::engines(&[], EngineCommand(command))),
        )?;
    }
    Ok(())
}

fn engines_command_zero(bench: &mut Bench) -> Verdict {
    let request = CsRequest::engines(&[3], EngineCommand(0));
    invalid("command 0", bench.io()?.submit(&request))
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
        invalid(
            &format!("a stall of {engine}"),
            io.submit(&CsRequest::engines(&[engine.0], EngineCommand::STALL)),
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

/// Runs `case` in debug mode, and leaves the mode.
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
        invalid(&format!("debug operation {op}"), answer)?;
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
                // The counters are zero if nothing is traced; the ETR reports its buffer, to which
                // it wrote
                // nothing (gaudi2/gaudi2_coresight.c:gaudi2_config_etr).
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
                invalid(
                    &format!("{op} {index}"),
                    debug(&**io, op, index, true, &[0; 96], &mut []),
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
            invalid(
                &format!("{op} without parameters"),
                debug(&**io, op, 0, true, &[], &mut []),
            )?;
        }
        Ok(())
    })
}

fn debug_trace_buffer(bench: &mut Bench) -> Verdict {
    in_mode(bench, |io| {
        let sram = gaudi_spec::gaudi2::SRAM_BASE.0;
        for (address, size) in [(sram, 0), (0, 4096), (sram - 1, 4096), (u64::MAX, 4096)] {
            invalid(
                &format!("a trace buffer at {address:#x} + {size}"),
                debug(
                    &**io,
                    DebugOp::ETR,
                    0,
                    true,
                    etr(address, size).as_bytes(),
                    &mut [],
                ),
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
        invalid(
            "seven events of an SPMU",
            debug(&**io, DebugOp::SPMU, 0, true, seven.as_bytes(), &mut []),
        )?;
        invalid(
            "the counts of seven events",
            debug(&**io, DebugOp::SPMU, 0, false, &[], &mut [0; 72]),
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
    // Inside a block, the first die core's sync manager, which belongs to the driver, and an
    // address without a block.
    let dcore0 = gaudi_spec::gaudi2::CFG_BASE.0 + u64::from(gaudi_spec::gaudi2::sync::OBJS);
    for address in [first + 0x1000, dcore0, 0, u64::MAX] {
        invalid(&format!("a block at {address:#x}"), io.map_block(address))?;
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
                invalid(
                    &format!("{len} bytes of block {}", block.number),
                    io.mmap(MmapRequest { offset, len }),
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
        invalid(
            &format!("block {number}"),
            io.mmap(MmapRequest {
                offset,
                len: PAGE_LEN,
            }),
        )?;
    }
    Ok(())
}
