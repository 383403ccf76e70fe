//! What the driver keeps of errors and whom it tells: `HL_INFO_GET_EVENTS`, `HL_INFO_REGISTER_EVENTFD`, records of errors.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gaudi_seam::{CsSeq, Errno, InfoRequest, KernelIo, KernelIoExt as _, SharedIo, WaitStatus};
use gaudi_spec::gaudi2::packet::{CpDma, MsgLong};
use gaudi_spec::gaudi2::sync::{Compare, FIRST_USER_MONITOR, FIRST_USER_SOB, SobUpdate};
use gaudi_spec::gaudi2::{DOORBELL_VA, DRAM_VA, HOST_VA, queue};
use gaudi_sys::poll::readable;
use gaudi_uapi::cs::CsFlags;
use gaudi_uapi::engine::Gaudi2EngineId;
use gaudi_uapi::info::{
    DeviceStatus, HlInfoDeviceStatus, HlInfoEngineErrEvent, HlInfoHwErrEvent, HlInfoRazwiEvent,
    HlInfoResetCount, HlInfoUndefinedOpcodeEvent, HlPageFaultInfo, InfoOp, NotifierEvents,
};
use nix::sys::eventfd::EventFd;

use crate::bench::Bench;
use crate::case::{Case, Failure, Tag, Verdict, equal, holds, refused};
use crate::rig::{Buffer, Dram, Host, LONG, PAGE_LEN, Program, finish, is_aborted, offset, run, submit_with};

const RESET: &[Tag] = &[Tag::Reset];
const Q: gaudi_seam::QueueId = queue::PDMA_0_0;

pub(crate) static CASES: &[Case] = &[
    Case::gaudi2("events.register", "common/habanalabs_ioctl.c:772", register),
    Case::gaudi2(
        "events.register-twice",
        "common/habanalabs_ioctl.c:774",
        register_twice,
    ),
    Case::gaudi2(
        "events.register-no-eventfd",
        "common/habanalabs_ioctl.c:780",
        register_other,
    ),
    Case::gaudi2(
        "events.unregister-unregistered",
        "common/habanalabs_ioctl.c:794",
        unregister,
    ),
    Case::gaudi2(
        "events.control-node",
        "common/habanalabs_ioctl.c:1169",
        on_control,
    ),
    Case::gaudi2(
        "events.answer-without-room",
        "common/habanalabs_ioctl.c:143",
        without_room,
    ),
    Case::gaudi2("events.none", "common/habanalabs_ioctl.c:147", none),
    Case::gaudi2(
        "events.timeout.told-without-eventfd",
        "common/device.c:2092",
        timeout_unregistered,
    )
    .tagged(RESET),
    Case::gaudi2(
        "events.timeout.told-by-eventfd",
        "common/device.c:2106",
        timeout_registered,
    )
    .tagged(RESET),
    Case::gaudi2(
        "events.timeout.reset-waits-for-user",
        "common/device.c:2079",
        reset_waits,
    )
    .tagged(RESET),
    Case::gaudi2(
        "events.timeout.told-without-reset",
        "common/command_submission.c:893",
        timeout_skipped,
    ),
    Case::gaudi2("events.tpc-assert", "common/irq.c:401", tpc_assert).tagged(RESET),
    Case::gaudi2("events.event-queue-error", "common/irq.c:481", event_queue_error).tagged(RESET),
    Case::gaudi2("events.page-fault.of-host", "common/device.c:2779", fault_of_host).tagged(RESET),
    Case::gaudi2(
        "events.page-fault.of-device-memory",
        "gaudi2/gaudi2.c:9379",
        fault_of_device,
    )
    .tagged(RESET),
    Case::gaudi2(
        "events.page-fault.mappings-without-room",
        "common/habanalabs_ioctl.c:878",
        mappings_without_room,
    )
    .tagged(RESET),
    Case::gaudi2(
        "events.page-fault.first-one-stays",
        "common/device.c:2784",
        first_fault_stays,
    )
    .tagged(RESET),
    Case::gaudi2(
        "events.page-fault.of-a-monitor",
        "gaudi2/gaudi2.c:gaudi2_handle_sm_err",
        fault_of_monitor,
    )
    .tagged(RESET),
    Case::gaudi2(
        "events.undefined-opcode.of-a-stream",
        "gaudi2/gaudi2.c:10181",
        opcode_of_stream,
    )
    .tagged(RESET),
    Case::gaudi2(
        "events.undefined-opcode.of-the-lower-processor",
        "gaudi2/gaudi2.c:8291",
        opcode_of_lower,
    )
    .tagged(RESET),
    Case::gaudi2(
        "events.engine-error-without-room",
        "common/habanalabs_ioctl.c:935",
        engine_without_room,
    )
    .tagged(RESET),
    Case::gaudi2(
        "events.records-empty",
        "common/habanalabs_ioctl.c:854",
        records_empty,
    ),
];

fn events(io: &SharedIo) -> Result<NotifierEvents, Failure> {
    let mut word = [0xff; 8];
    io.info(InfoRequest::new(InfoOp::GET_EVENTS), &mut word)?;
    Ok(NotifierEvents(u64::from_le_bytes(word)))
}

fn eventfd() -> Result<EventFd, Failure> {
    Ok(EventFd::new()?)
}

fn register(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for _ in 0..2 {
        let fd = eventfd()?;
        io.register_events(fd.as_fd())?;
        // The driver has its own reference.
        drop(fd);
        io.unregister_events()?;
    }
    Ok(())
}

fn register_twice(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let (first, second) = (eventfd()?, eventfd()?);
    io.register_events(first.as_fd())?;
    let again = io.register_events(second.as_fd());
    io.unregister_events()?;
    refused("a second eventfd", again, Errno::EINVAL)
}

fn register_other(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let (end, _other) =
        UnixStream::pair().map_err(|error| Failure::new("a pair of sockets", "one", error.to_string()))?;
    refused(
        "a socket as an eventfd",
        io.register_events(end.as_fd()),
        Errno::EINVAL,
    )?;
    refused("ending what did not begin", io.unregister_events(), Errno::EINVAL)
}

fn unregister(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    refused("ending what never began", io.unregister_events(), Errno::EINVAL)?;
    let fd = eventfd()?;
    io.register_events(fd.as_fd())?;
    io.unregister_events()?;
    refused("ending it twice", io.unregister_events(), Errno::EINVAL)
}

fn on_control(bench: &mut Bench) -> Verdict {
    let io = bench.open_control()?;
    let fd = eventfd()?;
    refused("an eventfd", io.register_events(fd.as_fd()), Errno::EOPNOTSUPP)?;
    refused("ending it", io.unregister_events(), Errno::EOPNOTSUPP)?;
    refused(
        "asking what happened",
        io.info(InfoRequest::new(InfoOp::GET_EVENTS), &mut [0; 8]),
        Errno::EOPNOTSUPP,
    )
}

fn without_room(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for room in [0, 1, 7] {
        refused(
            &format!("events in {room} bytes"),
            io.info(InfoRequest::new(InfoOp::GET_EVENTS), &mut vec![0; room]),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn none(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    equal(
        "events where nothing happened",
        events(&io)?,
        NotifierEvents::NONE,
    )
}

/// A submission that never ends, given up after a second.
fn hang(io: &SharedIo) -> Result<(Buffer, CsSeq), Failure> {
    let buffer = Buffer::new(io, Program::new().fence(2, 1, 1)?)?;
    let seq = submit_with(&**io, &[buffer.chunk(Q)], CsFlags::NONE, Some(1))?;
    Ok((buffer, seq))
}

const TIMEOUT: NotifierEvents = NotifierEvents(NotifierEvents::CS_TIMEOUT.0 | NotifierEvents::DEVICE_RESET.0);

fn timeout_unregistered(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let (buffer, seq) = hang(&io)?;
    refused("what is given up", io.wait_cs(seq, LONG), Errno::ETIMEDOUT)?;
    equal("what a timeout tells", events(&io)?, TIMEOUT)?;
    equal(
        "what it tells the second time",
        events(&io)?,
        NotifierEvents::NONE,
    )?;
    drop((buffer, io));
    bench.reopen().map(drop)
}

fn timeout_registered(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let fd = eventfd()?;
    io.register_events(fd.as_fd())?;
    let (buffer, seq) = hang(&io)?;
    refused(
        "what is given up, of a user that is told",
        io.wait_cs(seq, LONG),
        Errno::EIO,
    )?;
    let [told] = readable([fd.as_fd()], Duration::from_secs(5))?;
    holds("the eventfd is readable", told, "it is not")?;
    equal("times it was signalled", fd.read()?, 1)?;
    equal("what a timeout tells", events(&io)?, TIMEOUT)?;
    drop((buffer, io));
    bench.reopen().map(drop)
}

fn reset_waits(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let resets = |io: &dyn KernelIo| io.query::<HlInfoResetCount>().map(|count| count.hard_reset_cnt);
    let before = resets(&*io)?;
    let fd = eventfd()?;
    io.register_events(fd.as_fd())?;
    let (buffer, seq) = hang(&io)?;
    refused("what is given up", io.wait_cs(seq, LONG), Errno::EIO)?;
    equal(
        "the device's status until its user goes",
        io.query::<HlInfoDeviceStatus>()?.status,
        DeviceStatus::OPERATIONAL,
    )?;
    refused("a wait until then", io.wait_cs(seq, Duration::ZERO), Errno::EBUSY)?;
    let next = submit_with(&*io, &[buffer.chunk(queue::PDMA_1_0)], CsFlags::NONE, None)?;
    holds("a submission until then is taken", next > seq, next)?;
    equal("resets until then", resets(&*io)?, before)?;
    drop((buffer, io));
    bench.close();
    let io = bench.reopen()?;
    // The flags of a timeout ask for no hard reset (common/device.c:1704), but what still runs holds the context (:621).
    equal("resets when it has gone", resets(&*io)?, before + 1)?;
    equal("events of a new user", events(&io)?, NotifierEvents::NONE)
}

fn timeout_skipped(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let fd = eventfd()?;
    io.register_events(fd.as_fd())?;
    let (sob, monitor) = (FIRST_USER_SOB + 16, FIRST_USER_MONITOR + 16);
    let held = Buffer::new(&io, Program::new().wait_for(Q, monitor, sob, 1)?)?;
    let seq = submit_with(&*io, &[held.chunk(Q)], CsFlags::SKIP_RESET_ON_TIMEOUT, Some(1))?;
    let answer = io.wait_cs(seq, Duration::from_secs(2))?;
    equal("what is late and spared", answer.status, WaitStatus::Busy)?;
    equal("times the eventfd was signalled", fd.read()?, 1)?;
    equal(
        "what a timeout without a reset tells",
        events(&io)?,
        NotifierEvents::CS_TIMEOUT,
    )?;
    io.unregister_events()?;
    run(&io, queue::PDMA_1_0, Program::new().sob(sob, SobUpdate::set(1))?)?;
    finish(&*io, seq)?;
    run(&io, queue::PDMA_1_0, Program::new().sob(sob, SobUpdate::set(0))?)?;
    drop((held, io));
    // Only the first timeout of a user is told.
    bench.reopen().map(drop)
}

fn alarm(bench: &mut Bench, vector: u32, expected: NotifierEvents) -> Verdict {
    let io = bench.reopen()?;
    let buffer = Buffer::new(
        &io,
        Program::new()
            .long(MsgLong::new(DOORBELL_VA, vector))
            .fence(2, 1, 1)?,
    )?;
    let seq = buffer.submit(Q)?;
    let answer = io.wait_cs(seq, LONG);
    let told = events(&io)?;
    drop((buffer, io));
    bench.reopen()?;
    holds("the submission that rang is aborted", is_aborted(&answer), answer)?;
    equal("what the driver tells", told, expected)
}

fn tpc_assert(bench: &mut Bench) -> Verdict {
    alarm(
        bench,
        46,
        NotifierEvents::TPC_ASSERT | NotifierEvents::USER_ENGINE_ERR | NotifierEvents::DEVICE_RESET,
    )
}

fn event_queue_error(bench: &mut Bench) -> Verdict {
    alarm(
        bench,
        47,
        NotifierEvents::DEVICE_UNAVAILABLE | NotifierEvents::DEVICE_RESET,
    )
}

/// A device whose user meets errors: opened for it, and closed after it, whatever came of it.
fn session(bench: &mut Bench, body: impl FnOnce(&SharedIo) -> Verdict) -> Verdict {
    let io = bench.reopen()?;
    let verdict = body(&io);
    drop(io);
    bench.reopen()?;
    verdict
}

/// Runs programs that each meet a page fault, looks at what is recorded, and waits until the driver gives the first one up.
fn faulty(io: &SharedIo, programs: &[Vec<u8>], look: impl FnOnce() -> Verdict) -> Verdict {
    let mut held = Vec::new();
    for (bytes, queue) in programs.iter().zip([Q, queue::PDMA_1_0]) {
        let buffer = Buffer::of_bytes(io, bytes)?;
        // Long enough to look, on a slow machine too.
        let seq = submit_with(&**io, &[buffer.chunk(queue)], CsFlags::NONE, Some(3))?;
        // One at a time: which stream meets its fault first is then known.
        let answer = io.wait_cs(seq, Duration::from_millis(100))?;
        equal("what met a fault", answer.status, WaitStatus::Busy)?;
        until_told(io)?;
        held.push((buffer, seq));
    }
    look()?;
    let given_up = held.first().map(|(_, seq)| io.wait_cs(*seq, LONG));
    holds(
        "what met a fault is given up",
        given_up.as_ref().is_some_and(Result::is_err),
        given_up,
    )
}

/// Waits until the firmware has told the driver of an engine's error.
fn until_told(io: &SharedIo) -> Verdict {
    for _ in 0..100 {
        if io.query::<HlInfoEngineErrEvent>()?.timestamp > 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Failure::new("the record of an engine's error", "one", "none"))
}

/// Runs a program that a queue manager stops at, which resets the device at once, and looks at what is recorded.
fn stopped(io: &SharedIo, bytes: &[u8], look: impl FnOnce() -> Verdict) -> Verdict {
    let buffer = Buffer::of_bytes(io, bytes)?;
    let seq = buffer.submit(Q)?;
    let answer = io.wait_cs(seq, LONG);
    holds(
        "the submission that a queue manager stopped at is aborted",
        is_aborted(&answer),
        answer,
    )?;
    equal(
        "the device's status after that",
        io.query::<HlInfoDeviceStatus>()?.status,
        DeviceStatus::IN_RESET,
    )?;
    look()
}

fn event_count(io: &SharedIo, op: InfoOp, event: usize) -> Result<u32, Failure> {
    let mut counts = vec![0; 1329 * 4];
    io.info(InfoRequest::new(op), &mut counts)?;
    let at = counts.get(event * 4..).and_then(|rest| rest.first_chunk());
    Ok(at.map_or(0, |word| u32::from_le_bytes(*word)))
}

fn mappings(io: &SharedIo) -> Result<Vec<(u64, u64)>, Failure> {
    let mut bytes = vec![0; 4096];
    let count = io.info(InfoRequest::new(InfoOp::USER_MAPPINGS), &mut bytes)? as usize;
    let word = |at: usize| {
        bytes
            .get(at..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |word| u64::from_le_bytes(*word))
    };
    Ok((0..count)
        .map(|nth| (word(nth * 16), word(nth * 16 + 8)))
        .collect())
}

const FAULT: NotifierEvents =
    NotifierEvents(NotifierEvents::USER_ENGINE_ERR.0 | NotifierEvents::PAGE_FAULT.0);

fn fault_of_host(bench: &mut Bench) -> Verdict {
    session(bench, |io| {
        let host = Host::new(io, 3 * PAGE_LEN)?;
        let hole = offset(HOST_VA.start, 0x7000_0000_1000);
        let before = event_count(io, InfoOp::HW_EVENTS_AGGREGATE, 768)?;
        let program = Program::new().copy(hole, host.va, 64).bytes();
        faulty(io, &[program], || {
            let fault: HlPageFaultInfo = io.query()?;
            equal("the address of the fault", fault.addr, hole.0)?;
            holds("its time", fault.timestamp > 0, fault)?;
            equal(
                "the host memory that was mapped then",
                mappings(io)?,
                vec![(host.va.0, 3 * PAGE_LEN as u64)],
            )?;
            equal("what a page fault tells", events(io)?, FAULT)?;
            for op in [InfoOp::HW_EVENTS, InfoOp::HW_EVENTS_AGGREGATE] {
                holds(
                    &format!("{op} counts the fault of the PCI engines' MMU"),
                    event_count(io, op, 768)? > 0,
                    before,
                )?;
            }
            let error: HlInfoEngineErrEvent = io.query()?;
            equal("the engine of an MMU's error", error.engine_id, u16::MAX)
        })
    })
}

fn fault_of_device(bench: &mut Bench) -> Verdict {
    session(bench, |io| {
        let host = Host::new(io, PAGE_LEN)?;
        let memory = Dram::new(io, 1)?;
        let hole = offset(DRAM_VA.start, 0x300_1234_5678);
        let program = Program::new().copy(host.va, hole, 64).bytes();
        let mapped = memory.va().0;
        faulty(io, &[program], || {
            let fault: HlPageFaultInfo = io.query()?;
            equal("the 64 MiB of the fault", fault.addr, hole.0 >> 26 << 26)?;
            equal(
                "the device memory that was mapped then",
                mappings(io)?,
                vec![(mapped, 768 << 20)],
            )
        })
    })
}

fn mappings_without_room(bench: &mut Bench) -> Verdict {
    session(bench, |io| {
        let host = Host::new(io, PAGE_LEN)?;
        let hole = offset(HOST_VA.start, 0x7000_0000_1000);
        let program = Program::new().copy(hole, host.va, 64).bytes();
        faulty(io, &[program], || {
            for room in [1, 15] {
                refused(
                    &format!("one mapping in {room} bytes"),
                    io.info(InfoRequest::new(InfoOp::USER_MAPPINGS), &mut vec![0; room]),
                    Errno::ENOMEM,
                )?;
            }
            Ok(())
        })
    })
}

fn first_fault_stays(bench: &mut Bench) -> Verdict {
    session(bench, |io| {
        let host = Host::new(io, PAGE_LEN)?;
        let hole = |nth: u64| offset(HOST_VA.start, 0x7000_0000_1000 + nth * 0x10_0000);
        let programs = (0..2)
            .map(|nth| Program::new().copy(hole(nth), host.va, 64).bytes())
            .collect::<Vec<_>>();
        faulty(io, &programs, || {
            equal(
                "the address of the first of two faults",
                io.query::<HlPageFaultInfo>()?.addr,
                hole(0).0,
            )
        })
    })
}

/// `GAUDI2_EVENT_SM0_AXI_ERROR_RESPONSE`; the other die cores' follow.
const SM0_AXI_ERROR: usize = 612;

/// A monitor's write to an unmapped address is a page fault of the PCI engines' MMU and an error of
/// the die core's sync manager, for which the driver resets the device.
fn fault_of_monitor(bench: &mut Bench) -> Verdict {
    session(bench, |io| {
        let hole = offset(HOST_VA.start, 0x7000_0000_2000);
        let (sob, monitor) = (FIRST_USER_SOB + 16, FIRST_USER_MONITOR + 16);
        let program = Program::new()
            .monitor(monitor, (sob, Compare::AtLeast, 1), hole, 7)?
            .sob(sob, SobUpdate::set(1))?;
        let events_of = |event| event_count(io, InfoOp::HW_EVENTS_AGGREGATE, event);
        let before = events_of(SM0_AXI_ERROR)?;
        let buffer = Buffer::new(io, program)?;
        let seq = buffer.submit(Q)?;
        // The monitor's write is none of the submission's work: it may end before the reset.
        let ended = io.wait_cs(seq, LONG);
        holds(
            "the submission that armed the monitor ends or is aborted",
            ended
                .as_ref()
                .is_ok_and(|answer| answer.status == WaitStatus::Completed)
                || is_aborted(&ended),
            &ended,
        )?;
        until_told(io)?;
        until_reset(io)?;
        equal(
            "the address of the fault",
            io.query::<HlPageFaultInfo>()?.addr,
            hole.0,
        )?;
        holds(
            "the fault of the PCI engines' MMU is counted",
            events_of(768)? > 0,
            events_of(768)?,
        )?;
        equal(
            "errors of the sync manager of die core 0",
            events_of(SM0_AXI_ERROR)?,
            before + 1,
        )?;
        let error: HlInfoEngineErrEvent = io.query()?;
        equal("the engine of the first error", error.engine_id, u16::MAX)?;
        equal(
            "what the two errors tell",
            events(io)?,
            FAULT | NotifierEvents::DEVICE_RESET,
        )
    })
}

/// Waits until the driver has begun to reset the device.
fn until_reset(io: &SharedIo) -> Verdict {
    for _ in 0..1000 {
        if io.query::<HlInfoDeviceStatus>()?.status == DeviceStatus::IN_RESET {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Failure::new(
        "the device's status",
        "a reset",
        "operational for 10 s",
    ))
}

/// A packet with an opcode that no packet has.
fn undefined() -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes[7] = 0x1f;
    bytes
}

fn opcode_of_stream(bench: &mut Bench) -> Verdict {
    session(bench, |io| {
        stopped(io, &undefined(), || {
            let error: HlInfoEngineErrEvent = io.query()?;
            equal(
                "the engine whose stream met no packet",
                u32::from(error.engine_id),
                Gaudi2EngineId::ENGINE_ID_PDMA_0.0,
            )?;
            holds(
                "errors of it, and when",
                error.error_count > 0 && error.timestamp > 0,
                error,
            )?;
            equal(
                "what an error of a stream tells",
                events(io)?,
                NotifierEvents::USER_ENGINE_ERR | NotifierEvents::DEVICE_RESET,
            )?;
            equal(
                "the record of undefined opcodes, which is the lower command processor's",
                io.query::<HlInfoUndefinedOpcodeEvent>()?.timestamp,
                0,
            )
        })
    })
}

fn opcode_of_lower(bench: &mut Bench) -> Verdict {
    session(bench, |io| {
        let lower = Buffer::of_bytes(io, &Program::new().nop().raw(&undefined()).bytes())?;
        let upper = Program::new().cp_dma(CpDma::new(lower.va, lower.len)).bytes();
        stopped(io, &upper, || {
            let record: HlInfoUndefinedOpcodeEvent = io.query()?;
            holds("the time of an undefined opcode", record.timestamp > 0, record)?;
            equal(
                "what the lower command processor ran, and whose it is",
                (record.cq_addr, record.cq_size, record.stream_id, record.engine_id),
                (lower.va.0, lower.len, 4, Gaudi2EngineId::ENGINE_ID_PDMA_0.0),
            )?;
            equal(
                "what an undefined opcode tells",
                events(io)?,
                NotifierEvents::USER_ENGINE_ERR
                    | NotifierEvents::UNDEFINED_OPCODE
                    | NotifierEvents::DEVICE_RESET,
            )
        })
    })
}

fn engine_without_room(bench: &mut Bench) -> Verdict {
    session(bench, |io| {
        stopped(io, &undefined(), || {
            refused(
                "an engine's error in 15 bytes",
                io.info(InfoRequest::new(InfoOp::USER_ENGINE_ERR_EVENT), &mut [0; 15]),
                Errno::ENOMEM,
            )
        })
    })
}

fn records_empty(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    equal("a page fault", io.query::<HlPageFaultInfo>()?.timestamp, 0)?;
    equal("a refused access", io.query::<HlInfoRazwiEvent>()?.timestamp, 0)?;
    equal("a hardware error", io.query::<HlInfoHwErrEvent>()?.timestamp, 0)?;
    equal(
        "an engine's error",
        io.query::<HlInfoEngineErrEvent>()?.timestamp,
        0,
    )?;
    equal(
        "an undefined opcode",
        io.query::<HlInfoUndefinedOpcodeEvent>()?.timestamp,
        0,
    )?;
    // An empty record has no size that could be too small, but an answer without room has no address (common/habanalabs_ioctl.c:869).
    for op in [
        InfoOp::USER_MAPPINGS,
        InfoOp::HW_ERR_EVENT,
        InfoOp::FW_ERR_EVENT,
        InfoOp::USER_ENGINE_ERR_EVENT,
    ] {
        io.info(InfoRequest::new(op), &mut [0])?;
        refused(
            &format!("{op} without room for an answer"),
            io.info(InfoRequest::new(op), &mut []),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}
