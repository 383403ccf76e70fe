//! Exhausted resources: addresses for command buffers, a queue's entries and sync objects, descriptors, room for an answer, the time of a restore phase.

use std::time::Duration;

use gaudi_seam::{
    CbCreate, CbHandle, CsRequest, Errno, ExportRequest, InfoRequest, KernelIoExt as _, QueueId,
};
use gaudi_spec::gaudi2::queue;
use gaudi_sys::limits::without_descriptors;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus, InfoOp};

use crate::bench::Bench;
use crate::case::{Case, Failure, Tag, Verdict, equal, refused};
use crate::rig::{Buffer, Dram, Gate, PAGE_LEN, Program, finish, submit, submit_with};

pub(crate) static CASES: &[Case] = &[
    Case::gaudi2(
        "buffer.create.no-address-left",
        "common/command_buffer.c:38",
        no_address,
    ),
    Case::gaudi2(
        "signal.both-objects-in-use",
        "common/command_submission.c:1830",
        both_objects,
    )
    .tagged(&[Tag::Lifecycle, Tag::Reset]),
    Case::gaudi2(
        "submit.entries-are-freed-at-the-end",
        "common/irq.c:cs_finish",
        entries_freed_at_end,
    ),
    Case::gaudi2("export.no-descriptor-left", "common/memory.c:1866", no_descriptor),
    Case::gaudi2(
        "info.engine-status.longer-than-its-room",
        "common/habanalabs_ioctl.c:831",
        engine_status,
    ),
    Case::gaudi2(
        "info.firmware-request.without-room",
        "common/habanalabs_ioctl.c:981",
        firmware_request,
    ),
    Case::gaudi2(
        "submit.restore-hangs",
        "common/command_submission.c:1759",
        restore,
    )
    .tagged(&[Tag::Lifecycle, Tag::Reset]),
    Case::gaudi2(
        "reset.refuses-questions-to-the-chip",
        "common/habanalabs_ioctl.c:1096",
        questions,
    )
    .tagged(&[Tag::Lifecycle, Tag::Reset]),
];

/// Above what Gaudi2's pool of addresses holds of the largest buffers (command_buffer.c:14: 4 GiB).
const TOO_MANY: usize = (4 << 30) / 0x20_0000 + 1;
/// `HL_MAX_CB_SIZE`, of which the driver takes pages of 4 KiB.
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
    // One that needs no address is made still, and an address that is given back serves again.
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

/// Where a sync object's value ends (habanalabs.h `HL_MAX_SOB_VAL`).
const END: u32 = 1 << 15;

fn both_objects(bench: &mut Bench) -> Verdict {
    // A queue whose objects no other case raises.
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
    // The first object counts from 2 now and the second from 0; these leave both at their ends, and held.
    reserve(END - 3)?;
    let second = reserve(END - 1)?.reservation();
    let refusals = [reserve(1).map(drop), signal().map(drop)];
    // The driver takes back the newest. What is left holds a context that its user has closed, which a hard reset ends.
    io.submit(&CsRequest::unreserve_signals(second.handle))?;
    drop(io);
    bench.reopen()?;
    let [reserving, signalling] = refusals;
    refused("reserving where both objects are held", reserving, Errno::EINVAL)?;
    refused("a signal where both objects are held", signalling, Errno::EINVAL)
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
    // A stream runs its jobs in order: when this one has run, all of the other queue's have.
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
    // It holds nothing: with descriptors the same export succeeds, and without it the mapping goes.
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
    // The driver's wait for the restore phase is as long as its limit on any submission. Where the wait ends first, it takes no notice of
    // that (command_submission.c:1771 looks for errors alone), and the reset comes a moment later; where it has come, the other half of the
    // submission is refused (hw_queue.c:657).
    let answer = match answer {
        Ok(_) if !bench.is_mock() => until_reset(bench),
        Err(error) if !bench.is_mock() && error.errno() == Some(Errno::EPERM) => until_reset(bench),
        answer => refused("a submission whose restore phase hangs", answer, Errno::ENOEXEC),
    };
    drop((hang, fine, io));
    bench.reopen()?;
    answer
}

fn until_reset(bench: &Bench) -> Verdict {
    for _ in 0..1000 {
        if bench.control().query::<HlInfoDeviceStatus>()?.status == DeviceStatus::IN_RESET {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    equal(
        "the status of a device that hangs",
        DeviceStatus::OPERATIONAL,
        DeviceStatus::IN_RESET,
    )
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
    // What the driver knows by itself.
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
