//! Rules of CS and WAIT_CS.

use gaudi_spec::Asic;
use gaudi_spec::asic::QueueId;
use gaudi_sys::Errno;
use gaudi_uapi::cs::{CsFlags, EngineCommand};
use gaudi_uapi::limits::{HL_MAX_JOBS_PER_CS, HL_WAIT_MULTI_CS_LIST_MAX_LEN};

use crate::operation::{AnyRequest, Operation};
use crate::request::{CqCounter, CsArgument, CsRequest, CsSeq, InterruptWait, InterruptWord};
use crate::rule::{Condition, Rule, Subject, rows};
use crate::state::DriverState;

/// The first value that a sync object does not have (habanalabs.h `HL_MAX_SOB_VAL`).
const SOB_VALUES: u32 = 1 << 15;

/// The number and the queue of a reservation of signals.
fn reserves(request: &CsRequest<'_>) -> Option<(u32, QueueId)> {
    let word = request.argument.word();
    let reserves = request.types() == CsFlags::RESERVE_SIGNALS_ONLY.0;
    reserves.then_some((word as u32, QueueId((word >> 32) as u32)))
}

/// Whether a command names at least one engine and at most `most`.
fn names(ids: &[u32], most: u32) -> bool {
    (1..=most as usize).contains(&ids.len())
}

fn is_to_cores(command: EngineCommand) -> bool {
    [EngineCommand::CORE_HALT, EngineCommand::CORE_RUN].contains(&command)
}

fn sets_mode(command: EngineCommand) -> bool {
    [EngineCommand::STALL, EngineCommand::RESUME].contains(&command)
}

/// The engines without modes that a command names.
fn unstallable(asic: &Asic, engines: &[u32], command: EngineCommand) -> impl Iterator<Item = u32> {
    let engines = engines.iter().copied().filter(move |_| sets_mode(command));
    engines.filter(|&engine| (asic.engines.stallable)(engine).is_none())
}

/// Returns the first sequence number that was not yet submitted.
fn future(seqs: &[CsSeq], driver: &dyn DriverState) -> Option<String> {
    let last = driver.last_submission();
    let seq = seqs.iter().find(|seq| seq.0 > last)?;
    Some(format!("{} of {last}", seq.0))
}

/// Returns the counter in a command buffer that a wait watches.
fn watched(wait: &InterruptWait) -> Option<CqCounter> {
    match wait.word {
        InterruptWord::User(_) => None,
        InterruptWord::KernelCq(counter) => Some(counter),
    }
}

/// Returns the handle of a counter whose buffer does not exist.
fn lost(counter: CqCounter, driver: &dyn DriverState) -> Option<String> {
    let CqCounter { handle, .. } = counter;
    driver
        .buffer(handle)
        .is_none()
        .then(|| format!("{:#x}", handle.0))
}

/// Returns the index of a counter if it is past the end of its buffer.
fn counter_behind(counter: CqCounter, driver: &dyn DriverState) -> Option<String> {
    behind(counter.offset, driver.buffer(counter.handle)?.counters)
}

fn behind(index: u64, len: u64) -> Option<String> {
    (index >= len).then(|| format!("{index} of {len}"))
}

rows! {
    /// Rules of every submission.
    mod submit {
        PADDING "submit.padding" [Submit] EINVAL ; rare;
            "padding is not 0", "common/command_submission.c:hl_cs_sanity_checks";
        STAGES "submit.in-stages" [Submit] EPERM
            "this chip has no staged submissions", "common/command_submission.c:hl_cs_sanity_checks"
            early |Submit(request), _| request.cs_flags().contains(CsFlags::STAGED_SUBMISSION) => request.cs_flags();
        TYPES "submit.types-are-exclusive" [Submit] EINVAL
            "types of submission that exclude one another",
            "common/command_submission.c:hl_cs_sanity_checks"
            early |Submit(request), _| request.types().count_ones() > 1 => request.cs_flags();
        NO_SIGNALS "submit.chip-without-signals" [Submit] EINVAL ; rare;
            "this chip has no signals", "common/command_submission.c:hl_cs_sanity_checks";
        NO_CHUNKS "submit.no-chunks" [Submit] EINVAL
            "the submission has no chunks", "common/command_submission.c:hl_cs_sanity_checks"
            early |Submit(request), _| request.types() == 0 && request.execute.is_empty() => 0;
        TOO_MANY_CHUNKS "submit.too-many-chunks" [Submit] EINVAL
            "the submission has more than 512 chunks", "common/command_submission.c:hl_cs_copy_chunk_array"
            late |Submit(request), _| request.types() == 0 && request.execute.len() > HL_MAX_JOBS_PER_CS as usize
                => request.execute.len();
        CHUNKS_MEMORY "submit.chunks-memory" [Submit] ENOMEM ; rare;
            "the kernel has no memory for the chunks", "common/command_submission.c:hl_cs_copy_chunk_array";
        CHUNKS_POINTER "submit.chunks-pointer" [Submit] EFAULT ; rare;
            "the chunks cannot be read", "common/command_submission.c:hl_cs_copy_chunk_array";
        IN_FLIGHT "submit.too-many-in-flight" [Submit] EAGAIN
            "too many submissions are in flight", "common/command_submission.c:allocate_cs";
        MEMORY "submit.memory" [Submit] ENOMEM ; rare;
            "the kernel has no memory for the submission", "common/command_submission.c:allocate_cs";
        UNKNOWN_QUEUE "submit.unknown-queue" [Submit] EINVAL
            "no such queue", "common/command_submission.c:validate_queue_index";
        QUEUE_TYPE "submit.queue-type" [Submit] EINVAL ; rare;
            "the queue's type is not one of a queue", "common/command_submission.c:validate_queue_index";
        BINNED_QUEUE "submit.binned-queue" [Submit] EINVAL ; rare;
            "the queue is binned", "common/command_submission.c:validate_queue_index";
        DRIVER_QUEUE "submit.queue-of-the-driver" [Submit] EINVAL
            "the queue is the driver's own", "common/command_submission.c:validate_queue_index";
        USER_BUFFER "submit.buffer-of-the-user" [Submit] EINVAL ; rare;
            "the queue takes command buffers of the kernel only",
            "common/command_submission.c:validate_queue_index";
        KERNEL_BUFFER "submit.buffer-of-the-kernel" [Submit] EINVAL
            "the queue does not take this kind of command buffer (Gaudi2 takes user buffers only)",
            "common/command_submission.c:validate_queue_index",
            "pass its device address with HL_CS_CHUNK_FLAGS_USER_ALLOC_CB";
        UNKNOWN_BUFFER "submit.unknown-buffer" [Submit] EINVAL ; rare;
            "no such command buffer, or cb_size is below 8 or above the buffer's size",
            "common/command_submission.c:get_cb_from_cs_chunk";
        JOB_MEMORY "submit.job-memory" [Submit] ENOMEM ; rare;
            "the kernel has no memory for a job", "common/command_submission.c:cs_ioctl_default";
        TIMESTAMP "submit.timestamp" [Submit] EINVAL ; rare;
            "a timestamp is requested, and no queue completes", "common/command_submission.c:cs_ioctl_default";
        QUEUE_DISABLED "submit.queue-not-enabled" [Submit] EINVAL
            "the queue is not enabled", "gaudi2/gaudi2.c:gaudi2_validate_cb_address";
        BUFFER_ADDRESS "submit.buffer-address" [Submit] EFAULT
            "no command buffer can lie at this address", "gaudi2/gaudi2.c:gaudi2_validate_cb_address";
        PARSER "submit.parser" [Submit] EINVAL ; rare;
            "a command buffer of the kernel where the MMU is off", "gaudi2/gaudi2.c:gaudi2_cs_parser";
        QUEUE_FULL "submit.queue-full" [Submit] EAGAIN
            "the queue is full", "common/hw_queue.c:hw_queue_sanity_checks";
        QUEUE_TOO_SMALL "submit.internal-queue" [Submit] ENOMEM ; rare;
            "more jobs than an internal queue can ever hold", "common/hw_queue.c:int_queue_sanity_checks";
        FAILED_SINCE "submit.failed-since" [Submit] EPERM ; rare;
            "the device stopped being operational while the jobs were queued",
            "common/hw_queue.c:hl_hw_queue_schedule_cs";
        SCHEDULED_TYPE "submit.scheduled-queue-type" [Submit] EINVAL ; rare;
            "the queue's type is not one of a queue", "common/hw_queue.c:hl_hw_queue_schedule_cs";
        RESTORE "submit.restore-failed" [Submit] ENOEXEC
            "the restore phase failed", "common/command_submission.c:hl_cs_ctx_switch";
        CONTEXT_SWITCH "submit.context-switch" [Submit] ETIMEDOUT ; rare;
            "the context switch took too long", "common/command_submission.c:hl_cs_ctx_switch";
        FLUSH "submit.flush-unsupported" [Submit] EOPNOTSUPP for "HL_CS_FLAGS_FLUSH_PCI_HBW_WRITES" ; rare;
            "this chip cannot flush its PCI writes",
            "common/command_submission.c:cs_ioctl_flush_pci_hbw_writes";
    }

    /// Rules of signals, waits for signals and reservations.
    mod signal {
        NUMBER_OF_CHUNKS "signal.number-of-chunks" [Submit] EINVAL
            "a signal or a wait for a signal needs exactly one chunk",
            "common/command_submission.c:hl_cs_sanity_checks"
            early |Submit(request), _| request.is_sync_stream() && request.execute.len() != 1 => request.execute.len();
        SEVERAL "signal.wait-for-several" [Submit] EINVAL for "HL_CS_FLAGS_WAIT"
            "a wait is for one signal", "common/command_submission.c:cs_ioctl_extract_signal_seq";
        NUMBERS_MEMORY "signal.numbers-memory" [Submit] ENOMEM for "HL_CS_FLAGS_WAIT" ; rare;
            "the kernel has no memory for the numbers",
            "common/command_submission.c:cs_ioctl_extract_signal_seq";
        NUMBER_ADDRESS "signal.number-address" [Submit] EFAULT for "HL_CS_FLAGS_WAIT"
            "the signal's number cannot be read", "common/command_submission.c:cs_ioctl_extract_signal_seq";
        OBJECTS_IN_USE "signal.both-objects-in-use" [Submit] EINVAL for "HL_CS_FLAGS_SIGNAL"
            "both sync objects of the queue are in use",
            "common/command_submission.c:hl_cs_signal_sob_wraparound_handler";
        JOB_MEMORY "signal.job-memory" [Submit] ENOMEM for "HL_CS_FLAGS_SIGNAL" ; rare;
            "the kernel has no memory for a job",
            "common/command_submission.c:cs_ioctl_signal_wait_create_jobs";
        UNKNOWN_QUEUE "signal.no-such-queue" [Submit] EINVAL for "HL_CS_FLAGS_SIGNAL"
            "no such queue", "common/command_submission.c:cs_ioctl_signal_wait";
        QUEUE "signal.queue" [Submit] EINVAL for "HL_CS_FLAGS_SIGNAL"
            "the queue takes no signals", "common/command_submission.c:cs_ioctl_signal_wait";
        RESERVE_COUNT "signal.reserve.too-many" [Submit] EINVAL for "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY"
            "more signals than a sync object counts", "common/command_submission.c:cs_ioctl_reserve_signals"
            early |Submit(request), _| reserves(request).is_some_and(|(count, _)| count >= SOB_VALUES)
                => request.argument.word() as u32;
        RESERVE_UNKNOWN_QUEUE "signal.reserve.no-such-queue" [Submit] EINVAL
            for "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY"
            "no such queue", "common/command_submission.c:cs_ioctl_reserve_signals"
            early |Submit(request), asic|
                reserves(request).is_some_and(|(_, queue)| (asic.queue)(queue).is_none())
                => request.argument.word() >> 32;
        RESERVE_QUEUE "signal.reserve.queue" [Submit] EINVAL for "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY"
            "the queue takes no signals", "common/command_submission.c:cs_ioctl_reserve_signals"
            early |Submit(request), asic|
                reserves(request).is_some_and(|(_, queue)| (asic.sync_stream.stream)(queue).is_none())
                => request.argument.word() >> 32;
        RESERVE_MEMORY "signal.reserve.memory" [Submit] ENOMEM for "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY" ; rare;
            "the kernel has no memory for a reservation",
            "common/command_submission.c:cs_ioctl_reserve_signals";
        RESERVE_HANDLES "signal.reserve.no-handle-left" [Submit] EINVAL
            for "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY" ; rare;
            "the handles of reservations are used up",
            "common/command_submission.c:cs_ioctl_reserve_signals";
        RESERVE_OBJECTS_IN_USE "signal.reserve.both-objects-in-use" [Submit] EINVAL
            for "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY"
            "both sync objects of the queue are in use",
            "common/command_submission.c:cs_ioctl_reserve_signals";
        UNRESERVE_TAKEN "signal.unreserve.out-of-step" [Submit] EINVAL
            for "HL_CS_FLAGS_UNRESERVE_SIGNALS_ONLY"
            "signals were submitted since the reservation",
            "common/command_submission.c:cs_ioctl_unreserve_signals";
        UNRESERVE_UNKNOWN "signal.unreserve.unknown" [Submit] EINVAL for "HL_CS_FLAGS_UNRESERVE_SIGNALS_ONLY"
            "no such reservation", "common/command_submission.c:cs_ioctl_unreserve_signals";
        COLLECTIVE_MASTER "signal.collective.not-the-master" [Submit] EINVAL for "HL_CS_FLAGS_COLLECTIVE_WAIT"
            "the queue is not a collective's master", "common/command_submission.c:cs_ioctl_signal_wait";
        COLLECTIVE_PORTS "signal.collective.no-port" [Submit] EINVAL for "HL_CS_FLAGS_COLLECTIVE_WAIT" ; rare;
            "the queue is a collective's master, and the chip has no NIC port",
            "common/command_submission.c:cs_ioctl_signal_wait";
        RESERVATION_UNUSED "signal.wait.reservation-unused" [Submit] EINVAL for "HL_CS_FLAGS_WAIT"
            "no submission uses the reservation", "common/command_submission.c:cs_ioctl_signal_wait";
        NOT_A_SIGNAL "signal.wait.not-a-signal" [Submit] EINVAL for "HL_CS_FLAGS_WAIT"
            "the number is not a signal's", "common/command_submission.c:cs_ioctl_signal_wait";
        FUTURE "signal.wait.future-number" [Submit] EINVAL for "HL_CS_FLAGS_WAIT"
            "no such submission yet: the number is above the last one submitted",
            "common/context.c:hl_ctx_get_fence_locked";
    }

    /// Rules of commands to engines.
    mod engines {
        CORES_UNSUPPORTED "engines.cores.unsupported" [Submit] EPERM
            for "HL_CS_FLAGS_ENGINE_CORE_COMMAND" ; rare;
            "this chip has no engine modes", "common/command_submission.c:cs_ioctl_engine_cores";
        CORES_COUNT "engines.cores.how-many" [Submit] EINVAL for "HL_CS_FLAGS_ENGINE_CORE_COMMAND"
            "the command names no cores, or more than the chip has",
            "common/command_submission.c:cs_ioctl_engine_cores"
            early |Submit(CsRequest { argument: CsArgument::EngineCores { cores, .. }, .. }), asic|
                !names(cores, asic.engines.cores) => cores.len();
        CORES_COMMAND "engines.cores.command" [Submit] EINVAL for "HL_CS_FLAGS_ENGINE_CORE_COMMAND"
            "the command is not one to cores", "common/command_submission.c:cs_ioctl_engine_cores"
            early |Submit(CsRequest { argument: CsArgument::EngineCores { command, .. }, .. }), _|
                !is_to_cores(*command) => command;
        CORES_MEMORY "engines.cores.memory" [Submit] ENOMEM for "HL_CS_FLAGS_ENGINE_CORE_COMMAND" ; rare;
            "the kernel has no memory for the ids", "common/command_submission.c:cs_ioctl_engine_cores";
        CORES_POINTER "engines.cores.pointer" [Submit] EFAULT for "HL_CS_FLAGS_ENGINE_CORE_COMMAND" ; rare;
            "the ids cannot be read", "common/command_submission.c:cs_ioctl_engine_cores";
        CORES_SILENT "engines.cores.silent" [Submit] EPERM for "HL_CS_FLAGS_ENGINE_CORE_COMMAND" ; rare;
            "a core does not answer", "gaudi2/gaudi2.c:gaudi2_set_engine_cores";
        UNSUPPORTED "engines.unsupported" [Submit] EPERM for "HL_CS_FLAGS_ENGINES_COMMAND" ; rare;
            "this chip has no engine modes", "common/command_submission.c:cs_ioctl_engines";
        UNKNOWN_COMMAND "engines.no-such-command" [Submit] EINVAL for "HL_CS_FLAGS_ENGINES_COMMAND"
            "no such command to engines", "common/command_submission.c:cs_ioctl_engines"
            early |Submit(CsRequest { argument: CsArgument::Engines { command, .. }, .. }), _|
                command.0 > EngineCommand::RESUME.0 => command;
        COUNT "engines.how-many" [Submit] EINVAL for "HL_CS_FLAGS_ENGINES_COMMAND"
            "the command names no engines, or more than the chip has",
            "common/command_submission.c:cs_ioctl_engines"
            early |Submit(CsRequest { argument: CsArgument::Engines { engines, command }, .. }), asic|
                !names(engines, if is_to_cores(*command) { asic.engines.cores } else { asic.engines.count })
                => engines.len();
        MEMORY "engines.memory" [Submit] ENOMEM for "HL_CS_FLAGS_ENGINES_COMMAND" ; rare;
            "the kernel has no memory for the ids", "common/command_submission.c:cs_ioctl_engines";
        POINTER "engines.pointer" [Submit] EFAULT for "HL_CS_FLAGS_ENGINES_COMMAND" ; rare;
            "the ids cannot be read", "common/command_submission.c:cs_ioctl_engines";
        STALL "engines.cannot-be-stalled" [Submit] EINVAL for "HL_CS_FLAGS_ENGINES_COMMAND"
            "this engine cannot be stalled", "gaudi2/gaudi2.c:gaudi2_set_engine_modes"
            early |Submit(CsRequest { argument: CsArgument::Engines { engines, command }, .. }), asic|
                unstallable(asic, engines, *command).next().is_some()
                => unstallable(asic, engines, *command).map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
        COMMAND_ZERO "engines.command-zero" [Submit] EINVAL for "HL_CS_FLAGS_ENGINES_COMMAND"
            "command 0 is not a command to engines", "gaudi2/gaudi2.c:gaudi2_set_engines"
            early |Submit(CsRequest { argument: CsArgument::Engines { command, .. }, .. }), _|
                !is_to_cores(*command) && !sets_mode(*command) => command;
    }

    /// Rules of WAIT_CS.
    mod wait {
        NOT_OPERATIONAL "wait.not-operational" [WaitCs WaitMultiCs WaitInterrupt RegisterTimestamp] EBUSY
            "the device is not operational, or waits to be released after an error",
            "common/command_submission.c:hl_wait_ioctl", "close it and open it again";
        FUTURE "wait.future-number" [WaitCs WaitMultiCs] EINVAL
            "no such submission yet: the number is above the last one submitted",
            "common/context.c:hl_ctx_get_fence_locked"
            state |WaitCs(wait), driver| future(&[wait.seq], driver),
            state |WaitMultiCs(wait), driver| future(wait.seqs, driver);
        TIMEOUT "wait.submission-timed-out" [WaitCs WaitMultiCs] ETIMEDOUT
            "the submission ran into its timeout on the device", "common/command_submission.c:cs_do_release";
        ABORTED "wait.submission-aborted" [WaitCs WaitMultiCs] EIO
            "the submission was aborted, usually because the device was reset",
            "common/command_submission.c:cs_do_release";
        SIGNAL "wait.signal" [WaitCs WaitMultiCs WaitInterrupt] EINTR
            "a signal came", "common/command_submission.c:hl_cs_wait_ioctl, and the other waits";
        MULTI_PADDING "wait.multi.padding" [WaitMultiCs] EINVAL ; rare;
            "padding is not 0", "common/command_submission.c:hl_multi_cs_wait_ioctl";
        MULTI_UNSUPPORTED "wait.multi.unsupported" [WaitMultiCs] EPERM
            "this chip cannot wait for several submissions",
            "common/command_submission.c:hl_multi_cs_wait_ioctl",
            "wait for one after the other, or have a monitor watch them";
        MULTI_TOO_MANY "wait.multi.too-many" [WaitMultiCs] EINVAL
            "more than 32 submissions", "common/command_submission.c:hl_multi_cs_wait_ioctl"
            early |WaitMultiCs(wait), _| wait.seqs.len() > HL_WAIT_MULTI_CS_LIST_MAX_LEN => wait.seqs.len();
        MULTI_POINTER "wait.multi.pointer" [WaitMultiCs] EFAULT ; rare;
            "the numbers cannot be read", "common/command_submission.c:hl_multi_cs_wait_ioctl";
        NO_INTERRUPTS "wait.interrupt.unsupported" [WaitInterrupt RegisterTimestamp] EPERM ; rare;
            "this chip has no interrupts for users", "common/command_submission.c:hl_interrupt_wait_ioctl";
        DECODER "wait.interrupt.decoder-off" [WaitInterrupt RegisterTimestamp] EINVAL ; rare;
            "the interrupt belongs to a disabled decoder",
            "common/command_submission.c:hl_interrupt_wait_ioctl";
        UNKNOWN_INTERRUPT "wait.interrupt.no-such-number" [WaitInterrupt RegisterTimestamp] EINVAL
            "no such interrupt", "common/command_submission.c:hl_interrupt_wait_ioctl";
        WORD "wait.interrupt.no-such-address" [WaitInterrupt] EFAULT
            "the counter's address cannot be read",
            "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr";
        WORD_LOST "wait.interrupt.address-lost" [WaitInterrupt] EFAULT ; rare;
            "the counter's address can no longer be read after an interrupt",
            "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr";
        WAITER_MEMORY "wait.interrupt.memory" [WaitInterrupt RegisterTimestamp] ENOMEM ; rare;
            "the kernel has no memory for the waiter",
            "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr, _hl_interrupt_wait_ioctl";
        UNKNOWN_COUNTERS "wait.counter.no-such-buffer" [WaitInterrupt] EINVAL
            "no such buffer of counters", "common/command_submission.c:_hl_interrupt_wait_ioctl"
            state |WaitInterrupt(wait), driver| watched(wait).and_then(|counter| lost(counter, driver));
        COUNTER_INDEX "wait.counter.index" [WaitInterrupt] EINVAL
            "the counter's index is past the end of the buffer",
            "common/command_submission.c:_hl_interrupt_wait_ioctl",
            "pass the counter's index, not its byte offset"
            state |WaitInterrupt(wait), driver|
                watched(wait).and_then(|counter| counter_behind(counter, driver));
        COUNTER_ABORTED "wait.counter.aborted-by-reset" [WaitInterrupt] EIO
            "the wait was aborted by a reset", "common/command_submission.c:_hl_interrupt_wait_ioctl";
        TIMESTAMP_COUNTERS "wait.timestamp.no-such-counters" [RegisterTimestamp] EINVAL
            "no such buffer of counters", "common/command_submission.c:_hl_interrupt_ts_reg_ioctl"
            state |RegisterTimestamp(request), driver| lost(request.counter, driver);
        TIMESTAMP_COUNTER_INDEX "wait.timestamp.counter-index" [RegisterTimestamp] EINVAL
            "the counter's index is past the end of the buffer",
            "common/command_submission.c:_hl_interrupt_ts_reg_ioctl",
            "pass the counter's index, not its byte offset"
            state |RegisterTimestamp(request), driver| counter_behind(request.counter, driver);
        TIMESTAMP_BUFFER "wait.timestamp.no-such-buffer" [RegisterTimestamp] EINVAL
            "no such timestamps buffer", "common/command_submission.c:_hl_interrupt_ts_reg_ioctl"
            state |RegisterTimestamp(request), driver|
                driver.timestamps(request.buffer).is_none() => format!("{:#x}", request.buffer.0);
        TIMESTAMP_INDEX "wait.timestamp.index" [RegisterTimestamp] EINVAL
            "the timestamp's index is past the end of the buffer",
            "common/command_submission.c:validate_and_get_ts_record"
            state |RegisterTimestamp(request), driver|
                driver.timestamps(request.buffer).and_then(|len| behind(request.index, len.into()));
    }
}
