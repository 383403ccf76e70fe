//! Submission: `HL_IOCTL_CS`.

use std::time::Duration;

use gaudi_seam::{
    CbCreate, CsRequest, CsSeq, DeviceVa, Errno, ErrorKind, KernelIoExt as _, MemAlloc, QueueId, SharedIo,
    WaitStatus,
};
use gaudi_spec::gaudi2::packet::MsgLong;
use gaudi_spec::gaudi2::sync::SobUpdate;
use gaudi_spec::gaudi2::{self, queue};
use gaudi_uapi::cs::{CsChunkFlags, CsFlags, HlCsChunk};
use gaudi_uapi::info::{
    DeviceStatus, HlInfoCsCounters, HlInfoCsTimeoutEvent, HlInfoDeviceStatus, HlInfoHwIpInfo,
    HlInfoResetCount,
};
use gaudi_uapi::memory::MemFlags;

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Buffer, Gate, Host, LONG, PAGE_LEN, Program, finish, offset, run, submit, submit_with};
use crate::verdict::{Failure, Verdict, equal, holds, invalid, refused, same_bytes};

cases! {
    "submit.no-chunks", "common/command_submission.c:hl_cs_sanity_checks" => no_chunks;
    "submit.too-many-chunks", "common/command_submission.c:hl_cs_copy_chunk_array" => too_many_chunks;
    "submit.most-chunks", "common/command_submission.c:hl_cs_copy_chunk_array" => most_chunks;
    "submit.unknown-queue", "common/command_submission.c:validate_queue_index" => unknown_queue;
    "submit.queue-of-the-driver", "common/command_submission.c:validate_queue_index" => driver_queue;
    "submit.queue-not-enabled", "gaudi2/gaudi2.c:gaudi2_validate_cb_address" => queue_not_enabled;
    "submit.buffer-of-the-kernel", "common/command_submission.c:validate_queue_index" => kernel_buffer;
    "submit.address-outside-every-range", "gaudi2/gaudi2.c:gaudi2_validate_cb_address" => address_outside;
    "submit.address-past-the-end", "common/habanalabs.h:hl_mem_area_inside_range" => address_past_end;
    "submit.size-zero", "common/habanalabs.h:hl_mem_area_inside_range" => size_zero;
    "submit.sequence-increases", "common/command_submission.c:allocate_cs" => sequence_increases;
    "submit.refused-takes-a-number", "common/command_submission.c:allocate_cs" => refused_takes_number;
    "submit.malformed-takes-no-number", "common/command_submission.c:cs_ioctl_default" => malformed_takes_none;
    "submit.types-are-exclusive", "common/command_submission.c:hl_cs_sanity_checks" => types_exclusive;
    "submit.several-queues", "common/command_submission.c:cs_ioctl_default" => several_queues;
    "submit.one-bad-chunk-runs-nothing", "common/command_submission.c:cs_ioctl_default" => bad_chunk;
    "submit.same-buffer-many-times", "common/command_submission.c:cs_ioctl_default" => same_buffer;
    "submit.queue-full", "common/hw_queue.c:hw_queue_sanity_checks" => queue_full;
    "submit.timeout.without-reset", "common/command_submission.c:cs_timedout" => timeout_without_reset [Clock];
    "submit.sixty-five-in-flight", "common/command_submission.c:allocate_cs" => in_flight [Lifecycle, Reset];
    "submit.timeout.late", "common/command_submission.c:cs_do_release" => timeout_late [Lifecycle, Reset, Clock];
    "submit.timeout.beside-a-late-one", "common/command_submission.c:cs_do_release" => timeout_beside [Lifecycle, Reset, Clock];
    "submit.timeout.device-is-lost", "common/memory.c:hl_mem_ioctl" => timeout_device_lost [Lifecycle, Reset];
    "submit.timeout.comes-back", "common/device.c:hl_device_reset" => timeout_comes_back [Lifecycle, Reset];
    "submit.timeout.is-recorded", "common/command_submission.c:cs_timedout" => timeout_recorded [Lifecycle, Reset];
    "submit.timeout.record-ends-at-open", "common/device.c:hl_enable_err_info_capture" => timeout_record_ends [Lifecycle, Reset];
    "submit.timeout.of-the-oldest-alone", "common/hw_queue.c:hl_hw_queue_schedule_cs" => timeout_of_oldest [Lifecycle, Reset, Clock];
    "submit.timeout.starts-when-oldest", "common/command_submission.c:cs_handle_tdr" => timeout_starts [Lifecycle, Reset, Clock];
    "submit.signal-and-wait", "common/command_submission.c:hl_cs_ioctl" => signal_and_wait;
}

const Q: QueueId = queue::PDMA_0_0;

fn no_chunks(bench: &mut Bench) -> Verdict {
    invalid("a submission of 0 chunks", submit(&*bench.io()?, &[]))
}

fn too_many_chunks(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let chunks = vec![buffer.chunk(Q); 513];
    invalid("a submission of 513 chunks", submit(&*io, &chunks))
}

fn most_chunks(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let chunks = vec![buffer.chunk(Q); 512];
    finish(&*io, submit(&*io, &chunks)?.seq)
}

/// Returns a chunk with an unmapped buffer: the driver checks only its range.
fn somewhere(queue: u32) -> HlCsChunk {
    HlCsChunk::user(queue, gaudi2::HOST_VA.start.0, 8)
}

fn unknown_queue(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for queue in [queue::COUNT, 1000, u32::MAX] {
        let what = format!("queue {queue}, which there is not");
        invalid(&what, submit(&*io, &[somewhere(queue)]))?;
    }
    Ok(())
}

fn driver_queue(bench: &mut Bench) -> Verdict {
    let chunk = somewhere(queue::CPU.0);
    invalid(
        "the management processor's queue",
        submit(&*bench.io()?, &[chunk]),
    )
}

fn queue_not_enabled(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    // Streams of the PCI engines that belong to the ARC, and the NICs' queues without the NIC
    // driver.
    for queue in [2, 3, 5, 6, 7, 156, 200, 251] {
        let what = format!("queue {queue}, which is not enabled");
        invalid(&what, submit(&*io, &[somewhere(queue)]))?;
    }
    Ok(())
}

fn kernel_buffer(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let chunk = HlCsChunk::kernel(Q.0, buffer.handle.0, buffer.len);
    invalid(
        "a chunk without HL_CS_CHUNK_FLAGS_USER_ALLOC_CB",
        submit(&*io, &[chunk]),
    )?;
    let chunk = HlCsChunk {
        cs_chunk_flags: CsChunkFlags::USER_ALLOC_CB,
        ..chunk
    };
    refused(
        "a handle in an address's place",
        submit(&*io, &[chunk]),
        Errno::EFAULT,
    )
}

fn address_outside(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let driver = gaudi2::DRAM_PHYS_BASE.0;
    for va in [
        0,
        4096,
        driver,
        gaudi2::DRAM_VA.end.0,
        gaudi2::HOST_VA.start.0 - 8,
        u64::MAX - 8,
    ] {
        refused(
            &format!("a command buffer at {va:#x}"),
            submit(&*io, &[HlCsChunk::user(Q.0, va, 8)]),
            Errno::EFAULT,
        )?;
    }
    Ok(())
}

fn address_past_end(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for end in [
        gaudi2::DRAM_VA.end.0,
        gaudi2::HOST_HUGE_VA.end.0,
        gaudi2::SRAM_BASE.0 + gaudi2::SRAM_SIZE,
    ] {
        refused(
            &format!("a command buffer whose second half lies past {end:#x}"),
            submit(&*io, &[HlCsChunk::user(Q.0, end - 8, 16)]),
            Errno::EFAULT,
        )?;
    }
    Ok(())
}

fn size_zero(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let chunk = HlCsChunk::user(Q.0, buffer.va.0, 0);
    refused(
        "a command buffer of 0 bytes",
        submit(&*io, &[chunk]),
        Errno::EFAULT,
    )
}

fn sequence_increases(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let first = buffer.submit(Q)?;
    for number in 1..10 {
        let next = buffer.submit(queue::PDMA_1_0)?;
        equal("a sequence number", next.0, first.0 + number)?;
    }
    for number in 0..10 {
        finish(&*io, CsSeq(first.0 + number))?;
    }
    Ok(())
}

fn refused_takes_number(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let first = buffer.submit(Q)?;
    finish(&*io, first)?;
    invalid(
        "a queue that there is not",
        submit(&*io, &[somewhere(queue::COUNT)]),
    )?;
    let next = buffer.submit(Q)?;
    finish(&*io, next)?;
    equal("the number after a refused submission", next.0, first.0 + 2)?;
    let answer = io.wait_cs(CsSeq(first.0 + 1), Duration::ZERO)?;
    equal("a wait for the refused one", answer.status, WaitStatus::Completed)
}

fn malformed_takes_none(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let first = buffer.submit(Q)?;
    finish(&*io, first)?;
    invalid("no chunk", submit(&*io, &[]))?;
    invalid("513 chunks", submit(&*io, &vec![buffer.chunk(Q); 513]))?;
    let next = buffer.submit(Q)?;
    finish(&*io, next)?;
    equal("the number after both", next.0, first.0 + 1)
}

fn types_exclusive(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let kinds = [
        CsFlags::SIGNAL,
        CsFlags::WAIT,
        CsFlags::COLLECTIVE_WAIT,
        CsFlags::RESERVE_SIGNALS_ONLY,
        CsFlags::UNRESERVE_SIGNALS_ONLY,
        CsFlags::ENGINE_CORE_COMMAND,
        CsFlags::ENGINES_COMMAND,
        CsFlags::FLUSH_PCI_HBW_WRITES,
    ];
    for pair in kinds.windows(2) {
        let flags = pair[0] | pair[1];
        invalid(
            &format!("a submission that is {flags}"),
            submit_with(&*io, &[somewhere(Q.0)], flags, None),
        )?;
    }
    Ok(())
}

/// Returns programs that each write one word of host memory.
fn marks(io: &SharedIo, count: u32) -> Result<(Host, Vec<Buffer>), Failure> {
    let target = Host::new(io, PAGE_LEN)?;
    let buffers = (0..count)
        .map(|number| {
            let word = offset(target.va, u64::from(number) * 4);
            Buffer::new(io, Program::new().long(MsgLong::new(word, number + 1)))
        })
        .collect::<Result<_, _>>()?;
    Ok((target, buffers))
}

fn several_queues(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let edma = queue::edma(0, 1).unwrap_or(Q);
    let queues = [Q, queue::PDMA_0_1, queue::PDMA_1_0, edma];
    let (target, buffers) = marks(&io, 4)?;
    let chunks: Vec<_> = buffers
        .iter()
        .zip(queues)
        .map(|(buffer, queue)| buffer.chunk(queue))
        .collect();
    finish(&*io, submit(&*io, &chunks)?.seq)?;
    let expected: Vec<u8> = (1..=4_u32).flat_map(u32::to_le_bytes).collect();
    same_bytes(
        "one word of each of four queues",
        &target.bytes(0, 16)?,
        &expected,
    )
}

fn bad_chunk(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let (target, buffers) = marks(&io, 2)?;
    let chunks = [buffers[0].chunk(Q), buffers[1].chunk(QueueId(2))];
    invalid("a submission whose second chunk is bad", submit(&*io, &chunks))?;
    run(&io, Q, Program::new().nop())?;
    same_bytes(
        "what its first chunk would have stored",
        &target.bytes(0, 8)?,
        &[0; 8],
    )
}

fn same_buffer(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let seqs = (0..20).map(|_| buffer.submit(Q)).collect::<Result<Vec<_>, _>>()?;
    seqs.into_iter().try_for_each(|seq| finish(&*io, seq))
}

fn queue_full(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let gate = Gate::shut(&io, Q)?;
    let nop = Buffer::new(&io, Program::new().nop())?;
    let target = Host::new(&io, PAGE_LEN)?;
    let mark = Buffer::new(&io, Program::new().long(MsgLong::new(target.va, 1)))?;
    let drops = || {
        io.query::<HlInfoCsCounters>()
            .map(|counters| counters.ctx_queue_full_drop_cnt)
    };
    let before = drops()?;
    // The driver's test of the queue took 1 of 4096 entries for good
    // (gaudi2/gaudi2.c:gaudi2_test_queues), the gate takes another; 7 × 512 + 300 more leave 210.
    let mut seqs = Vec::new();
    for count in [512, 512, 512, 512, 512, 512, 512, 300] {
        seqs.push(submit(&*io, &vec![nop.chunk(Q); count])?.seq);
    }
    let mut chunks = vec![mark.chunk(Q); 211];
    let answer = submit(&*io, &chunks);
    let refusal = refused("211 chunks where 210 fit", answer, Errno::EAGAIN);
    // Open the gate first, so that a failure below does not leave submissions behind it.
    chunks.pop();
    let fits = submit(&*io, &vec![nop.chunk(Q); 210]).map(|answer| answer.seq);
    gate.open()?;
    refusal?;
    seqs.push(fits?);
    seqs.into_iter().try_for_each(|seq| finish(&*io, seq))?;
    same_bytes(
        "what the refused submission would have stored",
        &target.bytes(0, 4)?,
        &[0; 4],
    )?;
    equal("refusals because of a full queue", drops()?, before + 1)
}

/// Returns a program that never ends.
fn stuck() -> Result<Program, Failure> {
    Program::new().fence(0, 1, 1)
}

fn in_flight(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, stuck()?)?;
    let first = submit_with(&*io, &[buffer.chunk(Q)], CsFlags::NONE, Some(2))?;
    for _ in 1..64 {
        buffer.submit(Q)?;
    }
    let answer = buffer.submit(Q);
    let kind = answer.as_ref().err().map(gaudi_seam::Error::kind);
    let counters: HlInfoCsCounters = io.query()?;
    refused("the 65th submission in flight", answer, Errno::EAGAIN)?;
    equal("the kind of that error", kind, Some(ErrorKind::WouldBlock))?;
    holds(
        "it is counted",
        counters.ctx_max_cs_in_flight_drop_cnt > 0,
        counters,
    )?;
    refused(
        "the submission that never ends",
        io.wait_cs(first, LONG),
        Errno::ETIMEDOUT,
    )?;
    drop((buffer, io));
    bench.reopen().map(drop)
}

/// Submits a program that never ends with a timeout of one second, and waits until the driver
/// aborts it.
fn hang(io: &SharedIo) -> Verdict {
    let buffer = Buffer::new(io, stuck()?)?;
    let seq = submit_with(&**io, &[buffer.chunk(Q)], CsFlags::NONE, Some(1))?;
    let early = io.wait_cs(seq, Duration::from_millis(100))?;
    equal(
        "a wait that ends before the limit",
        early.status,
        WaitStatus::Busy,
    )?;
    let answer = io.wait_cs(seq, LONG);
    let kind = answer.as_ref().err().map(gaudi_seam::Error::kind);
    refused("a wait for a submission past its limit", answer, Errno::ETIMEDOUT)?;
    equal("the kind of that error", kind, Some(ErrorKind::Hung))
}

fn timeout_late(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    hang(&io)?;
    drop(io);
    bench.reopen().map(drop)
}

fn timeout_beside(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, stuck()?)?;
    submit_with(&*io, &[buffer.chunk(Q)], CsFlags::NONE, Some(1))?;
    let other = buffer.submit(queue::PDMA_1_0)?;
    let answer = io.wait_cs(other, LONG);
    let kind = answer.as_ref().err().map(gaudi_seam::Error::kind);
    refused(
        "a wait for a submission that the reset for another one ends",
        answer,
        Errno::EIO,
    )?;
    equal("the kind of that error", kind, Some(ErrorKind::DeviceLost))?;
    drop((buffer, io));
    bench.reopen().map(drop)
}

fn timeout_device_lost(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let chunk = buffer.chunk(Q);
    hang(&io)?;
    let busy = Errno::EBUSY;
    refused(
        "HL_IOCTL_CS on a device that is reset",
        submit(&*io, &[chunk]),
        busy,
    )?;
    refused("HL_IOCTL_WAIT_CS", io.wait_cs(CsSeq(1), Duration::ZERO), busy)?;
    let alloc = MemAlloc {
        size: 1,
        page_size: 0,
        flags: MemFlags::NONE,
    };
    refused("HL_MEM_OP_ALLOC", io.mem_alloc(alloc), busy)?;
    refused("HL_MEM_OP_UNMAP", io.mem_unmap(DeviceVa(4096)), busy)?;
    let create = CbCreate {
        size: 1,
        map_to_device: false,
    };
    refused("HL_CB_OP_CREATE", io.cb_create(create), busy)?;
    refused(
        "HL_INFO_HW_IDLE",
        io.query::<gaudi_uapi::info::HlInfoHwIdle>(),
        busy,
    )?;
    let status = bench.control().query::<HlInfoDeviceStatus>()?.status;
    equal(
        "the status as the control node reports it",
        status,
        DeviceStatus::IN_RESET,
    )?;
    let info: HlInfoHwIpInfo = io.query()?;
    equal("the identity of a device that is reset", info.device_id, 0x1020)?;
    drop((buffer, io));
    bench.reopen().map(drop)
}

fn timeout_comes_back(bench: &mut Bench) -> Verdict {
    let before = bench.control().query::<HlInfoResetCount>()?.hard_reset_cnt;
    let io = bench.io()?;
    hang(&io)?;
    drop(io);
    let io = bench.reopen()?;
    let after = bench.control().query::<HlInfoResetCount>()?.hard_reset_cnt;
    equal("hard resets", after, before + 1)?;
    run(&io, Q, Program::new().nop())
}

fn timeout_recorded(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    run(&io, Q, Program::new().nop())?;
    hang(&io)?;
    let event: HlInfoCsTimeoutEvent = bench.control().query()?;
    equal(
        "the submission that timed out, as the record has it",
        event.seq,
        2,
    )?;
    holds("the record has a time", event.timestamp > 0, event)?;
    drop(io);
    bench.reopen().map(drop)
}

fn timeout_record_ends(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    hang(&io)?;
    drop(io);
    let io = bench.reopen()?;
    let event: HlInfoCsTimeoutEvent = io.query()?;
    equal(
        "the record after the next open",
        event,
        HlInfoCsTimeoutEvent::default(),
    )
}

fn timeout_of_oldest(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, stuck()?)?;
    let oldest = submit_with(&*io, &[buffer.chunk(Q)], CsFlags::NONE, Some(3))?;
    let younger = submit_with(&*io, &[buffer.chunk(queue::PDMA_1_0)], CsFlags::NONE, Some(1))?;
    let past_its_limit = io.wait_cs(younger, Duration::from_millis(1500))?;
    equal(
        "a younger submission past its own limit of a second",
        past_its_limit.status,
        WaitStatus::Busy,
    )?;
    refused(
        "the oldest, past its limit of three",
        io.wait_cs(oldest, LONG),
        Errno::ETIMEDOUT,
    )?;
    drop((buffer, io));
    bench.reopen().map(drop)
}

fn timeout_starts(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let gate = Gate::shut(&io, Q)?;
    let buffer = Buffer::new(&io, stuck()?)?;
    let seq = submit_with(&*io, &[buffer.chunk(queue::PDMA_0_1)], CsFlags::NONE, Some(1))?;
    let status = |timeout| io.wait_cs(seq, timeout).map(|answer| answer.status);
    equal(
        "a submission past its limit while an older one runs",
        status(Duration::from_millis(1500))?,
        WaitStatus::Busy,
    )?;
    gate.open()?;
    equal(
        "half of its limit after it became the oldest",
        status(Duration::from_millis(500))?,
        WaitStatus::Busy,
    )?;
    refused("all of its limit after", io.wait_cs(seq, LONG), Errno::ETIMEDOUT)?;
    drop((buffer, io));
    bench.reopen().map(drop)
}

fn timeout_without_reset(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let program = Program::new().wait_for(Q, Gate::MONITOR + 1, Gate::SOB + 1, 1)?;
    let buffer = Buffer::new(&io, program.sob(Gate::SOB + 1, SobUpdate::set(0))?)?;
    let flags = CsFlags::SKIP_RESET_ON_TIMEOUT;
    let seq = submit_with(&*io, &[buffer.chunk(Q)], flags, Some(1))?;
    let answer = io.wait_cs(seq, Duration::from_secs(3));
    let status = io.query::<HlInfoDeviceStatus>();
    let event = io.query::<HlInfoCsTimeoutEvent>();
    // Open the gate first, so that a failure below does not leave the stream held.
    run(
        &io,
        queue::PDMA_1_0,
        Program::new().sob(Gate::SOB + 1, SobUpdate::add_signed(1))?,
    )?;
    equal("a wait past the limit", answer?.status, WaitStatus::Busy)?;
    equal("the device's status", status?.status, DeviceStatus::OPERATIONAL)?;
    equal(
        "the submission that timed out, as the record has it",
        event?.seq,
        seq.0,
    )?;
    finish(&*io, seq)
}

fn signal_and_wait(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let chunk = HlCsChunk {
        queue_index: Q.0,
        ..HlCsChunk::default()
    };
    let request = CsRequest {
        execute: &[chunk],
        flags: CsFlags::SIGNAL,
        ..CsRequest::default()
    };
    finish(&*io, io.submit(&request)?.seq)
}
