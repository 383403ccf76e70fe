//! Events and records of errors: `HL_INFO_GET_EVENTS`, `HL_INFO_REGISTER_EVENTFD`.

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
use crate::case::cases;
use crate::rig::{
    Buffer, Dram, Host, LONG, PAGE_LEN, Program, finish, is_aborted, offset, run, submit_with,
    wait_until_reset,
};
use crate::verdict::{Failure, Verdict, equal, holds, invalid, refused};

const Q: gaudi_seam::QueueId = queue::PDMA_0_0;

cases! {
    "events.register", "common/habanalabs_ioctl.c:eventfd_register" => register;
    "events.register-twice", "common/habanalabs_ioctl.c:eventfd_register" => register_twice;
    "events.register-no-eventfd", "common/habanalabs_ioctl.c:eventfd_register" => register_other;
    "events.unregister-unregistered", "common/habanalabs_ioctl.c:eventfd_unregister" => unregister;
    "events.control-node", "common/habanalabs_ioctl.c:hl_info_ioctl_control" => on_control;
    "events.answer-without-room", "common/habanalabs_ioctl.c:events_info" => without_room;
    "events.none", "common/habanalabs_ioctl.c:events_info" => none;
    "events.timeout.told-without-eventfd", "common/device.c:hl_device_cond_reset" => timeout_unregistered [Reset];
    "events.timeout.told-by-eventfd", "common/device.c:hl_notifier_event_send" => timeout_registered [Reset];
    "events.timeout.reset-waits-for-user", "common/device.c:hl_device_cond_reset" => reset_waits [Reset];
    "events.timeout.told-without-reset", "common/command_submission.c:cs_timedout" => timeout_skipped;
    "events.tpc-assert", "common/irq.c:handle_tpc_interrupt" => tpc_assert [Reset];
    "events.event-queue-error", "common/irq.c:hl_irq_eq_error_interrupt_thread_handler" => event_queue_error [Reset];
    "events.page-fault.of-host", "common/device.c:hl_capture_page_fault" => fault_of_host [Reset];
    "events.page-fault.of-device-memory", "gaudi2/gaudi2.c:gaudi2_handle_page_error" => fault_of_device [Reset];
    "events.page-fault.mappings-without-room", "common/habanalabs_ioctl.c:user_mappings_info" => mappings_without_room [Reset];
    "events.page-fault.first-one-stays", "common/device.c:hl_capture_page_fault" => first_fault_stays [Reset];
    "events.page-fault.of-a-monitor", "gaudi2/gaudi2.c:gaudi2_handle_sm_err" => fault_of_monitor [Reset];
    "events.undefined-opcode.of-a-stream", "gaudi2/gaudi2.c:gaudi2_handle_eqe" => opcode_of_stream [Reset];
    "events.undefined-opcode.of-the-lower-processor", "gaudi2/gaudi2.c:handle_lower_qman_data_on_err" => opcode_of_lower [Reset];
    "events.engine-error-without-room", "common/habanalabs_ioctl.c:engine_err_info" => engine_without_room [Reset];
    "events.records-empty", "common/habanalabs_ioctl.c:page_fault_info" => records_empty;
}

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
        // The driver holds its own reference.
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
    invalid("a second eventfd", again)
}

fn register_other(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let (end, _other) =
        UnixStream::pair().map_err(|error| Failure::new("a pair of sockets", "one", error.to_string()))?;
    invalid("a socket as an eventfd", io.register_events(end.as_fd()))?;
    invalid("ending what did not begin", io.unregister_events())
}

fn unregister(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    invalid("ending what never began", io.unregister_events())?;
    let fd = eventfd()?;
    io.register_events(fd.as_fd())?;
    io.unregister_events()?;
    invalid("ending it twice", io.unregister_events())
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
        invalid(
            &format!("events in {room} bytes"),
            io.info(InfoRequest::new(InfoOp::GET_EVENTS), &mut vec![0; room]),
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

/// Submits a program that never ends, with a timeout of one second.
fn hang(io: &SharedIo) -> Result<(Buffer, CsSeq), Failure> {
    let buffer = Buffer::new(io, Program::new().fence(2, 1, 1)?)?;
    let seq = submit_with(&**io, &[buffer.chunk(Q)], CsFlags::NONE, Some(1))?;
    Ok((buffer, seq))
}

const TIMEOUT: NotifierEvents = NotifierEvents(NotifierEvents::CS_TIMEOUT.0 | NotifierEvents::DEVICE_RESET.0);

fn timeout_unregistered(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let (buffer, seq) = hang(&io)?;
    refused(
        "the wait for an aborted submission",
        io.wait_cs(seq, LONG),
        Errno::ETIMEDOUT,
    )?;
    equal("the events after a timeout", events(&io)?, TIMEOUT)?;
    equal(
        "the events of the second query",
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
        "the wait for an aborted submission of a user with an eventfd",
        io.wait_cs(seq, LONG),
        Errno::EIO,
    )?;
    let [is_readable] = readable([fd.as_fd()], Duration::from_secs(5))?;
    holds("the eventfd is readable", is_readable, "not readable")?;
    equal("times it was signalled", fd.read()?, 1)?;
    equal("the events after a timeout", events(&io)?, TIMEOUT)?;
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
    refused(
        "the wait for an aborted submission",
        io.wait_cs(seq, LONG),
        Errno::EIO,
    )?;
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
    // A timeout does not request a hard reset (common/device.c:hl_device_reset), but the running
    // submission holds a reference to the context.
    equal("resets after the close", resets(&*io)?, before + 1)?;
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
        "the events after a timeout without a reset",
        events(&io)?,
        NotifierEvents::CS_TIMEOUT,
    )?;
    io.unregister_events()?;
    run(&io, queue::PDMA_1_0, Program::new().sob(sob, SobUpdate::set(1))?)?;
    finish(&*io, seq)?;
    run(&io, queue::PDMA_1_0, Program::new().sob(sob, SobUpdate::set(0))?)?;
    drop((held, io));
    // The driver reports only the first timeout of a user.
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
    let reported = events(&io)?;
    drop((buffer, io));
    bench.reopen()?;
    holds("the submission that rang is aborted", is_aborted(&answer), answer)?;
    equal("the reported events", reported, expected)
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

/// Opens a device for `body`, which causes errors, and closes it in any case.
fn session(bench: &mut Bench, body: impl FnOnce(&SharedIo) -> Verdict) -> Verdict {
    let io = bench.reopen()?;
    let verdict = body(&io);
    drop(io);
    bench.reopen()?;
    verdict
}

/// Runs programs that each cause a page fault, calls `look`, and waits until the driver aborts the
/// first one.
fn faulty(io: &SharedIo, programs: &[Vec<u8>], look: impl FnOnce() -> Verdict) -> Verdict {
    let mut held = Vec::new();
    for (bytes, queue) in programs.iter().zip([Q, queue::PDMA_1_0]) {
        let buffer = Buffer::of_bytes(io, bytes)?;
        // Long enough for the checks, even on a slow machine.
        let seq = submit_with(&**io, &[buffer.chunk(queue)], CsFlags::NONE, Some(3))?;
        // One at a time, so that the order of the faults is known.
        let answer = io.wait_cs(seq, Duration::from_millis(100))?;
        equal(
            "the status of a submission with a page fault",
            answer.status,
            WaitStatus::Busy,
        )?;
        wait_until_recorded(io)?;
        held.push((buffer, seq));
    }
    look()?;
    let given_up = held.first().map(|(_, seq)| io.wait_cs(*seq, LONG));
    holds(
        "the wait for an aborted submission with a page fault",
        given_up.as_ref().is_some_and(Result::is_err),
        given_up,
    )
}

/// Waits until the firmware has reported an engine's error to the driver.
fn wait_until_recorded(io: &SharedIo) -> Verdict {
    for _ in 0..100 {
        if io.query::<HlInfoEngineErrEvent>()?.timestamp > 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Failure::new("the record of an engine's error", "one", "none"))
}

/// Runs a program that stops a queue manager, which resets the device at once, and calls `look`.
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
            equal("the events after a page fault", events(io)?, FAULT)?;
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
        // The monitor's write is not part of the submission, which may complete before the reset.
        let ended = io.wait_cs(seq, LONG);
        holds(
            "the submission that armed the monitor ends or is aborted",
            ended
                .as_ref()
                .is_ok_and(|answer| answer.status == WaitStatus::Completed)
                || is_aborted(&ended),
            &ended,
        )?;
        wait_until_recorded(io)?;
        wait_until_reset(io)?;
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
            "the events of both errors",
            events(io)?,
            FAULT | NotifierEvents::DEVICE_RESET,
        )
    })
}

/// Returns a packet with an undefined opcode.
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
                "the engine of the stream with the undefined opcode",
                u32::from(error.engine_id),
                Gaudi2EngineId::ENGINE_ID_PDMA_0.0,
            )?;
            holds(
                "errors of it, and when",
                error.error_count > 0 && error.timestamp > 0,
                error,
            )?;
            equal(
                "the events after an error of a stream",
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
                "the events after an undefined opcode",
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
    // An empty record fits any size, but an answer of size 0 has no address
    // (common/habanalabs_ioctl.c:user_mappings_info).
    for op in [
        InfoOp::USER_MAPPINGS,
        InfoOp::HW_ERR_EVENT,
        InfoOp::FW_ERR_EVENT,
        InfoOp::USER_ENGINE_ERR_EVENT,
    ] {
        io.info(InfoRequest::new(op), &mut [0])?;
        invalid(
            &format!("{op} without room for an answer"),
            io.info(InfoRequest::new(op), &mut []),
        )?;
    }
    Ok(())
}
