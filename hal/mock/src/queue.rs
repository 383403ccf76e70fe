//! Submissions (command_submission.c).

use std::time::Duration;

use gaudi_seam::engine::Job;
use gaudi_seam::{
    CsAnswer, CsRequest, CsSeq, DeviceVa, Errno, Error, Operation, Order, QueueId, Result, rules,
};
use gaudi_spec::Asic;
use gaudi_spec::asic::{QueueType, VaRange};
use gaudi_uapi::cs::{CsChunkFlags, CsFlags, HlCsChunk};

use crate::engines;
use crate::open::Device;
use crate::state::State;
use crate::submissions::{Deadline, Record};
use crate::sync_stream::{NO_SEQ, answer};

const OP: Operation = Operation::Submit;

impl Device {
    pub(crate) fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        let mut guard = self.enter(OP)?;
        if !request.is_sound() {
            // Not an answer of the driver: such a request has no ioctl.
            let error = self
                .refusal(OP, Errno::EINVAL)
                .because("the flags name another command to engines than the argument holds, or there are chunks too")
                .saw(request.flags, request.argument.flags());
            return Err(match request.types().count_ones() {
                0 | 1 => error,
                _ => error.with_rule(OP, &rules::submit::TYPES),
            });
        }
        self.check_rules(&request, None)?;
        // command_submission.c:hl_cs_ctx_switch: the chip has no context switch, so a restore phase
        // runs only on request.
        if request.cs_flags().contains(CsFlags::FORCE_RESTORE) && !request.restore.is_empty() {
            let restore = CsRequest {
                execute: request.restore,
                ..CsRequest::default()
            };
            let seq = self.execute(&mut guard, &restore)?.seq;
            drop(guard);
            let limit = Duration::from_secs(CsRequest::TIMEOUT_S);
            // command_submission.c:hl_cs_ctx_switch
            self.wait_cs(seq, limit)
                .map_err(|error| self.refuse(OP, &rules::submit::RESTORE).showing(error))?;
            guard = self.enter(OP)?;
        }
        let state = &mut *guard;
        match CsFlags(request.types()) {
            CsFlags::NONE => self.execute(state, request),
            _ if request.is_sync_stream() => self.submit_signal_or_wait(state, request),
            CsFlags::RESERVE_SIGNALS_ONLY => self.reserve_signals(state, request.argument.word()),
            CsFlags::UNRESERVE_SIGNALS_ONLY => self.unreserve_signals(state, request.argument.word()),
            // command_submission.c:hl_cs_ioctl: a read of a register, which has nothing to wait for
            // here.
            CsFlags::FLUSH_PCI_HBW_WRITES => Ok(answer(NO_SEQ, 0)),
            _ => engines::command(self.asic, request.argument)
                .map(|()| answer(NO_SEQ, 0))
                .map_err(|error| error.on(self.id)),
        }
    }

    /// Jobs that the user wrote (command_submission.c:cs_ioctl_default).
    fn execute(&self, state: &mut State, request: &CsRequest<'_>) -> Result<CsAnswer> {
        // The driver counts too many chunks as a rejected submission (command_submission.c
        // `hl_cs_copy_chunk_array`); the kernel backend rejects them itself.
        self.check_rules(&request, Some(state))?;
        let seq = self.begin(state, request, request.execute.len() as u32)?;
        // All chunks are checked before any is queued. A rejected submission uses its number
        // (command_submission.c:cs_ioctl_default).
        let refused = request.execute.iter().find_map(|chunk| self.check(chunk).err());
        if let Some((error, parsing)) = refused {
            let drops = &mut state.context().submissions.drops;
            drops.parsing += u64::from(parsing);
            drops.validation += u64::from(!parsing);
            return Err(self.abandon(state, seq, error));
        }
        self.queue(state, seq, request.execute)?;
        Ok(answer(CsSeq(seq), 0))
    }

    /// A number and a record (command_submission.c:allocate_cs).
    pub(crate) fn begin(&self, state: &mut State, request: &CsRequest<'_>, jobs: u32) -> Result<u64> {
        let submissions = &mut state.context().submissions;
        // command_submission.c:allocate_cs
        let seq = submissions.next;
        let slot = submissions.slot(seq);
        if submissions.records[slot]
            .as_ref()
            .is_some_and(|record| !record.done)
        {
            submissions.drops.max_in_flight += 1;
            return Err(self.refuse(OP, &rules::submit::IN_FLIGHT));
        }
        let timeout_s = request.driver_timeout_s();
        submissions.next += 1;
        submissions.records[slot] = Some(Record {
            seq,
            jobs,
            ended: Vec::new(),
            done: false,
            error: None,
            wants_timestamp: request.flags.contains(CsFlags::TIMESTAMP),
            timestamp: 0,
            limit: timeout_s.saturating_mul(1_000_000_000),
            deadline: Deadline::Unset,
            resets: !request.flags.contains(CsFlags::SKIP_RESET_ON_TIMEOUT),
            signals: request.flags.contains(CsFlags::SIGNAL),
            sob: None,
        });
        Ok(seq)
    }

    /// Ends a submission that was begun and cannot be queued.
    pub(crate) fn abandon(&self, state: &mut State, seq: u64, error: Error) -> Error {
        let State { context, clock, .. } = state;
        if let Some(context) = context {
            context
                .submissions
                .finish(seq, || clock.now_ns(), Some(Errno::EBUSY));
        }
        error
    }

    /// Refuses a submission with `EAGAIN` if its queue has no free entry.
    pub(crate) fn has_room(&self, state: &mut State, seq: u64, queue: QueueId) -> Result<()> {
        match state.entries.has_room(queue) {
            true => Ok(()),
            false => Err(self.queue_full(state, seq)),
        }
    }

    fn queue_full(&self, state: &mut State, seq: u64) -> Error {
        state.context().submissions.drops.queue_full += 1;
        self.abandon(state, seq, self.refuse(OP, &rules::submit::QUEUE_FULL))
    }

    /// Queues a submission's jobs, all or none (hw_queue.c `hl_hw_queue_schedule_cs`), and starts
    /// them.
    pub(crate) fn queue(&self, state: &mut State, seq: u64, chunks: &[HlCsChunk]) -> Result<()> {
        if !state.entries.take(chunks) {
            return Err(self.queue_full(state, seq));
        }
        let (context, engine) = state.parts();
        let jobs = &mut context.submissions.jobs;
        jobs.clear();
        jobs.extend(chunks.iter().map(|chunk| Job {
            queue: QueueId(chunk.queue_index),
            va: DeviceVa(chunk.cb_handle),
            len: chunk.cb_size,
        }));
        if let Err(error) = engine.submit(seq, jobs) {
            debug_assert!(false, "the queues of submission {seq} had room: {error}");
            let error = self.refusal(OP, Errno::EINVAL).because(error.to_string());
            return Err(self.abandon(state, seq, error));
        }
        // A stepped mock leaves the work to waits.
        if self.spec.order == Order::Running {
            state.advance();
            self.wakeups.wake();
        }
        // After the run: what completed in it needs no timer, and the clock is not read for it.
        let State { context, clock, .. } = state;
        if let Some(context) = context {
            context.submissions.time_the_oldest(|| clock.now_ns());
        }
        Ok(())
    }

    /// One chunk (command_submission.c:validate_queue_index, gaudi2.c:gaudi2_validate_cb_address);
    /// with the error, whether it counts as a parsing one.
    fn check(&self, chunk: &HlCsChunk) -> std::result::Result<(), (Error, bool)> {
        let queue = QueueId(chunk.queue_index);
        let refuse = |rule, parsing| Err((self.refuse(OP, rule).showing(queue), parsing));
        let row = match (self.asic.queue)(queue) {
            None => return refuse(&rules::submit::UNKNOWN_QUEUE, false),
            Some(row) if row.kind != QueueType::Hardware => {
                return refuse(&rules::submit::DRIVER_QUEUE, false);
            }
            Some(row) => row,
        };
        if !chunk.cs_chunk_flags.contains(CsChunkFlags::USER_ALLOC_CB) {
            return refuse(&rules::submit::KERNEL_BUFFER, false);
        }
        if !row.user {
            return refuse(&rules::submit::QUEUE_DISABLED, true);
        }
        let (va, size) = (DeviceVa(chunk.cb_handle), u64::from(chunk.cb_size));
        if size == 0 || !holds_command_buffer(self.asic, va, size) {
            let error = self.refuse(OP, &rules::submit::BUFFER_ADDRESS);
            return Err((error.showing(format!("{va} + {size}")), true));
        }
        Ok(())
    }
}

/// Whether a command buffer may lie at an address: the driver checks ranges only, not what is
/// mapped in them (gaudi2.c `gaudi2_validate_cb_address`).
fn holds_command_buffer(asic: &Asic, va: DeviceVa, size: u64) -> bool {
    let physical = |base: u64, size: u64| VaRange {
        start: DeviceVa(base),
        end: DeviceVa(base + size),
        page: 4096,
    };
    [asic.host_va, asic.dram_va, asic.host_huge_va]
        .iter()
        .any(|range| range.contains(va, size))
        || physical(asic.sram_base.0, asic.sram_size).contains(va, size)
        || physical(asic.dram_user_base().0, asic.dram_user_size()).contains(va, size)
}
