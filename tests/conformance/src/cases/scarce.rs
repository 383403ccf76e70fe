//! Exhausted resources: addresses for command buffers, a queue's entries and sync objects,
//! descriptors, answer sizes, the time of a restore phase.

use std::time::Duration;

use gaudi_seam::{CbCreate, CbHandle, CsRequest, Errno, ExportRequest, InfoRequest, QueueId};
use gaudi_spec::gaudi2::queue;
use gaudi_sys::limits::without_descriptors;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::info::InfoOp;

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Buffer, Dram, Gate, PAGE_LEN, Program, finish, submit, submit_with, wait_until_reset};
use crate::verdict::{Failure, Verdict, equal, invalid, refused};

cases! {
    "buffer.create.no-address-left", "common/command_buffer.c:cb_map_mem" => no_address;
    "signal.both-objects-in-use", "common/command_submission.c:hl_cs_signal_sob_wraparound_handler" => both_objects [Lifecycle, Reset];
    "submit.entries-are-freed-at-the-end", "common/irq.c:cs_finish" => entries_freed_at_end;
    "export.no-descriptor-left", "common/memory.c:export_dmabuf" => no_descriptor;
    "info.engine-status.longer-than-its-room", "common/habanalabs_ioctl.c:engine_status_info" => engine_status;
    "info.firmware-request.without-room", "common/habanalabs_ioctl.c:send_fw_generic_request" => firmware_request;
    "submit.restore-hangs", "common/command_submission.c:hl_cs_ctx_switch" => restore [Lifecycle, Reset];
    "reset.refuses-questions-to-the-chip", "common/habanalabs_ioctl.c:_hl_info_ioctl" => questions [Lifecycle, Reset];
}

/// Above what Gaudi2's pool of addresses holds of the largest buffers
/// (command_buffer.c:CB_VA_POOL_SIZE, 4 GiB).
const TOO_MANY: usize = (4 << 30) / 0x20_0000 + 1;
/// `HL_MAX_CB_SIZE`, rounded up to pages of 4 KiB.
const LARGEST: u32 = 0x20_0000 - 32;

fn no_address(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let create = |size| {
        io.cb_create(CbCreate {
            size,
            map_to_device: true,
        })
    };
    let mut handles: Vec<CbHandle> = Vec::new();
    let refusal = loop {
        match create(LARGEST) {
            Ok(handle) if handles.len() < TOO_MANY => handles.push(handle),
            other => break other,
        }
    };
    let verdict = refused(
        "a mapped command buffer when the addresses are used up",
        refusal,
        Errno::ENOMEM,
    );
    // A buffer without an address can still be created, and a released address can be reused.
    let unmapped = io.cb_create(CbCreate {
        size: LARGEST,
        map_to_device: false,
    });
    let last = handles.pop().map_or(Ok(()), |last| io.cb_destroy(last));
    let again = create(LARGEST);
    handles.extend(again.as_ref().ok().copied());
    handles.extend(unmapped.as_ref().ok().copied());
    for handle in handles {
        io.cb_destroy(handle)?;
    }
    verdict?;
    last?;
    unmapped?;
    again?;
    Ok(())
}

/// The maximum value of a sync object (habanalabs.h:HL_MAX_SOB_VAL).
const END: u32 = 1 << 15;

fn both_objects(bench: &mut Bench) -> Verdict {
    // A queue whose sync objects no other case signals.
    const QUEUE: QueueId = queue::PDMA_1_0;
    let io = bench.reopen()?;
    let signal = || {
        let chunk = HlCsChunk {
            queue_index: QUEUE.0,
            ..HlCsChunk::default()
        };
        io.submit(&CsRequest {
            execute: &[chunk],
            flags: CsFlags::SIGNAL,
            ..CsRequest::default()
        })
    };
    let reserve = |count| io.submit(&CsRequest::reserve_signals(count, QUEUE));
    finish(&*io, signal()?.seq)?;
    // The first object counts from 2 now and the second from 0. These reservations exhaust and hold
    // both.
    reserve(END - 3)?;
    let second = reserve(END - 1)?.reservation();
    let refusals = [reserve(1).map(drop), signal().map(drop)];
    // The driver releases the newest. The other one holds a reference to the closed context, which
    // a hard reset releases.
    io.submit(&CsRequest::unreserve_signals(second.handle))?;
    drop(io);
    bench.reopen()?;
    let [reserving, signalling] = refusals;
    invalid("reserving where both objects are held", reserving)?;
    invalid("a signal where both objects are held", signalling)
}

/// Jobs that ended keep their queue entries until the whole submission has ended.
fn entries_freed_at_end(bench: &mut Bench) -> Verdict {
    const Q: QueueId = queue::PDMA_0_0;
    const OTHER: QueueId = queue::PDMA_1_0;
    let io = bench.io()?;
    let gate = Gate::shut(&io, Q)?;
    let nop = Buffer::new(&io, Program::new().nop())?;
    // One job of each waits behind the gate; 8 × 511 run on the other queue. The driver's test of
    // the queue took 1 of its 4096 entries (gaudi2.c `gaudi2_test_queues`), so that 7 remain.
    let mut held = vec![nop.chunk(OTHER); 512];
    held[0] = nop.chunk(Q);
    let seqs = (0..8)
        .map(|_| submit(&*io, &held).map(|answer| answer.seq))
        .collect::<gaudi_seam::Result<Vec<_>>>()?;
    // A stream runs its jobs in order: after this one, all jobs of the other queue have run.
    let ran = nop.submit(OTHER).map_err(Failure::from);
    let ran = ran.and_then(|seq| finish(&*io, seq));
    let answer = submit(&*io, &[nop.chunk(OTHER); 8]);
    let refusal = refused("8 chunks where 7 fit", answer, Errno::EAGAIN);
    gate.open()?;
    ran?;
    refusal?;
    seqs.into_iter().try_for_each(|seq| finish(&*io, seq))?;
    let all = submit(&*io, &[nop.chunk(OTHER); 8])?;
    finish(&*io, all.seq)
}

fn no_descriptor(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    let request = ExportRequest {
        address: memory.va(),
        size: PAGE_LEN as u64,
        offset: 0,
        // O_RDWR | O_CLOEXEC
        flags: 0o2_000_002,
    };
    let answer = without_descriptors(|| io.export_dmabuf(request))?;
    refused("an export without a descriptor for it", answer, Errno::EMFILE)?;
    // The refused export holds no reference: the export succeeds later, and the mapping is
    // released.
    io.export_dmabuf(request).map(drop)?;
    Ok(())
}

fn engine_status(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    refused(
        "the status of every engine in 1 KiB",
        io.info(InfoRequest::new(InfoOp::ENGINE_STATUS), &mut [0; 1024]),
        Errno::ENOMEM,
    )
}

fn firmware_request(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    refused(
        "a request to firmware without room",
        io.info(InfoRequest::new(InfoOp::FW_GENERIC_REQ), &mut []),
        Errno::ENOMEM,
    )
}

fn restore(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let hang = Buffer::new(&io, Program::new().fence(2, 1, 1)?)?;
    let fine = Buffer::new(&io, Program::new().nop())?;
    let request = CsRequest {
        execute: &[fine.chunk(queue::PDMA_0_1)],
        restore: &[hang.chunk(queue::PDMA_0_0)],
        flags: CsFlags::FORCE_RESTORE,
        ..CsRequest::default()
    };
    let answer = io.submit(&request);
    // The driver waits for the restore phase as long as its timeout of submissions. If the wait
    // ends first, it ignores that (command_submission.c:hl_cs_ctx_switch checks only errors), and
    // the reset follows; after the reset, the other half of the submission is refused
    // (hw_queue.c:hl_hw_queue_schedule_cs).
    let answer = match answer {
        Ok(_) if !bench.is_mock() => wait_until_reset(bench.control()),
        Err(error) if !bench.is_mock() && error.errno() == Some(Errno::EPERM) => {
            wait_until_reset(bench.control())
        }
        answer => refused("a submission whose restore phase hangs", answer, Errno::ENOEXEC),
    };
    drop((hang, fine, io));
    bench.reopen()?;
    answer
}

fn questions(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let hang = Buffer::new(&io, Program::new().fence(2, 1, 1)?)?;
    let seq = submit_with(&*io, &[hang.chunk(queue::PDMA_0_0)], CsFlags::NONE, Some(1))?;
    let late = io.wait_cs(seq, Duration::from_secs(5));
    let of_chip = [
        InfoOp::HW_IDLE,
        InfoOp::CLK_RATE,
        InfoOp::TIME_SYNC,
        InfoOp::POWER,
        InfoOp::ENGINE_STATUS,
        InfoOp::DRAM_PENDING_ROWS,
    ];
    // Answers that do not need the firmware.
    let of_driver = [
        InfoOp::HW_IP_INFO,
        InfoOp::DEVICE_STATUS,
        InfoOp::RESET_COUNT,
        InfoOp::OPEN_STATS,
        InfoOp::DRAM_USAGE,
        InfoOp::CS_TIMEOUT_EVENT,
    ];
    let ask = |op| (op, io.info(InfoRequest::new(op), &mut [0; 4096]));
    let (refusals, answers) = (of_chip.map(ask), of_driver.map(ask));
    drop((hang, io));
    bench.reopen()?;
    refused("the wait into the limit", late, Errno::ETIMEDOUT)?;
    for (op, answer) in refusals {
        refused(&format!("{op} in a reset"), answer, Errno::EBUSY)?;
    }
    for (op, answer) in answers {
        equal(
            &format!("{op} in a reset is answered"),
            answer.err().and_then(|error| error.errno()),
            None,
        )?;
    }
    let io = bench.io()?;
    let fine = Buffer::new(&io, Program::new().nop())?;
    finish(
        &*io,
        submit_with(&*io, &[fine.chunk(queue::PDMA_0_0)], CsFlags::NONE, None)?,
    )
}
