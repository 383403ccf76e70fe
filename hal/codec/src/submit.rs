//! Submissions and multi-CS waits: requests with lists in the caller's memory.

#![expect(unsafe_code, reason = "see `Wire::answer`")]

use std::time::Duration;

use gaudi_seam::{
    AnyRequest, CsAnswer, CsArgument, CsRequest, CsSeq, Errno, MultiWaitAnswer, QueueId, Request as _,
    WaitMultiCs,
};
use gaudi_uapi::Ioctl;
use gaudi_uapi::cs::{
    CsFlags, CsStatus, HlCsArgs, HlCsChunk, HlCsIn, HlCsInChunks, HlCsInEngineCores, HlCsInEngines, HlCsOut,
};
use gaudi_uapi::limits::{HL_MAX_JOBS_PER_CS, HL_WAIT_MULTI_CS_LIST_MAX_LEN};
use gaudi_uapi::wait::{HlWaitCsArgs, HlWaitCsIn, HlWaitCsInMulti, WaitCsFlags};

use crate::answer::{Reply, front};
use crate::memory::{UserMemory, read_list};
use crate::wire::{Visitor, Wire, address};

/// Limit of an engine list, above the number of engines of every chip.
const MOST_ENGINES: u32 = 1 << 12;

/// Converts a length to the driver's `u32`. A longer list becomes `u32::MAX`, which the driver
/// rejects.
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Returns the argument of a submission of chunks, without the fields of its `CsArgument`.
#[inline]
pub fn jobs(request: &CsRequest<'_>) -> HlCsIn {
    let (execute, restore) = (request.execute, request.restore);
    let mut input = HlCsIn {
        num_chunks_restore: restore.len() as u32,
        num_chunks_execute: execute.len() as u32,
        timeout: request.timeout_s,
        cs_flags: request.flags,
        ..HlCsIn::default()
    };
    input.set_chunks(HlCsInChunks {
        chunks_restore: address(restore),
        chunks_execute: address(execute),
    });
    input
}

impl<'a> Wire for &'a CsRequest<'a> {
    type Args = HlCsArgs;
    const IOCTL: Ioctl = Ioctl::Cs;

    /// The first union holds [`CsRequest::argument`]. If the request is not
    /// [sound](CsRequest::is_sound), its flags can make the driver read that union as another type.
    fn encode(&mut self) -> HlCsArgs {
        let mut input = match self.argument {
            CsArgument::EngineCores { cores, command } => {
                HlCsIn::engine_cores(address(cores), count(cores.len()), command)
            }
            CsArgument::Engines { engines, command } => {
                HlCsIn::engines(address(engines), count(engines.len()), command)
            }
            _ => jobs(self),
        };
        input.signal = [self.argument.word()];
        input.timeout = self.timeout_s;
        input.cs_flags = self.cs_flags();
        input.into()
    }

    unsafe fn answer(&self, args: &HlCsArgs) -> Result<CsAnswer, Errno> {
        // SAFETY: the caller meets the same requirements.
        unsafe { Reply::read(&args.0, self.view()) }
    }

    fn set_answer(&self, answer: CsAnswer, args: &mut HlCsArgs) {
        answer.write(&mut args.0, self.view());
    }

    /// common/command_submission.c:hl_cs_ioctl: every errno except `EAGAIN` overwrites the request.
    fn set_failure(&self, errno: Errno, args: &mut HlCsArgs) -> Result<(), Errno> {
        if errno == Errno::EAGAIN {
            return Err(errno);
        }
        // The driver checks the device before the type of the submission.
        let reserves = self.types() == CsFlags::RESERVE_SIGNALS_ONLY.0 && errno != Errno::EBUSY;
        args.set_answer(HlCsOut {
            arg: [if reserves { 0 } else { u64::MAX }],
            status: CsStatus(-(errno as i32) as u32),
            ..HlCsOut::default()
        });
        Err(errno)
    }
}

fn argument(input: &HlCsIn) -> CsArgument<'static> {
    let (flags, word) = (input.cs_flags, input.signal[0]);
    let handle = word as u32;
    let encapsulated = CsArgument::Encapsulated { handle };
    match flags {
        _ if flags.contains(CsFlags::RESERVE_SIGNALS_ONLY) => CsArgument::ReserveSignals {
            count: handle,
            queue: QueueId((word >> 32) as u32),
        },
        _ if flags.contains(CsFlags::UNRESERVE_SIGNALS_ONLY) => CsArgument::UnreserveSignals { handle },
        _ if flags.contains(encapsulated.flags()) => encapsulated,
        _ if flags.contains(CsFlags::STAGED_SUBMISSION)
            && !flags.contains(CsFlags::STAGED_SUBMISSION_FIRST) =>
        {
            CsArgument::Stage { seq: CsSeq(word) }
        }
        _ => CsArgument::None,
    }
}

/// Reads the lists that the flags select (common/command_submission.c:hl_cs_ioctl).
pub(crate) fn decode_cs<V: Visitor>(
    input: HlCsIn,
    memory: &dyn UserMemory,
    visitor: V,
) -> Result<V::Output, Errno> {
    if input.pad != [0; 4] {
        return Err(Errno::EINVAL);
    }
    let flags = input.cs_flags;
    let mut request = CsRequest {
        flags,
        timeout_s: input.timeout,
        argument: argument(&input),
        ..CsRequest::default()
    };
    if flags.contains(CsFlags::ENGINES_COMMAND) {
        let HlCsInEngines {
            engines,
            num_engines,
            engine_command: command,
        } = front(&input.arg);
        let engines = &*read_list(memory, engines, num_engines, MOST_ENGINES)?;
        request.argument = CsArgument::Engines { engines, command };
        return Ok(visitor.visit(&request));
    }
    if flags.contains(CsFlags::ENGINE_CORE_COMMAND) {
        let HlCsInEngineCores {
            engine_cores,
            num_engine_cores,
            core_command: command,
        } = front(&input.arg);
        let cores = &*read_list(memory, engine_cores, num_engine_cores, MOST_ENGINES)?;
        request.argument = CsArgument::EngineCores { cores, command };
        return Ok(visitor.visit(&request));
    }
    // The driver does not read chunks for an invalid combination of types, or for a type without
    // chunks.
    let most = match (request.is_sync_stream(), request.types().count_ones()) {
        (true, 1) => 1,
        (false, 0) => HL_MAX_JOBS_PER_CS,
        _ => return Ok(visitor.visit(&request)),
    };
    let chunks: HlCsInChunks = front(&input.arg);
    let execute: Vec<HlCsChunk> = read_list(memory, chunks.chunks_execute, input.num_chunks_execute, most)?;
    let restore = read_list(
        memory,
        chunks.chunks_restore,
        input.num_chunks_restore,
        HL_MAX_JOBS_PER_CS,
    );
    // common/command_submission.c:hl_cs_ctx_switch reads the restore chunks only if the restore
    // phase runs.
    let restore: Vec<HlCsChunk> = match restore {
        Err(_) if !flags.contains(CsFlags::FORCE_RESTORE) => Vec::new(),
        restore => restore?,
    };
    (request.execute, request.restore) = (&execute, &restore);
    Ok(visitor.visit(&request))
}

impl Wire for WaitMultiCs<'_> {
    type Args = HlWaitCsArgs;
    const IOCTL: Ioctl = Ioctl::WaitCs;

    /// A list of more than 255 numbers is truncated to 255, which the driver also rejects.
    fn encode(&mut self) -> HlWaitCsArgs {
        let len = u8::try_from(self.seqs.len()).unwrap_or(u8::MAX);
        HlWaitCsIn::multi_cs(address(self.seqs), len, crate::rows::micros(self.timeout)).into()
    }

    unsafe fn answer(&self, args: &HlWaitCsArgs) -> Result<MultiWaitAnswer, Errno> {
        // SAFETY: the caller meets the same requirements.
        unsafe { Reply::read(&args.0, AnyRequest::WaitMultiCs(self)) }
    }

    fn set_answer(&self, answer: MultiWaitAnswer, args: &mut HlWaitCsArgs) {
        answer.write(&mut args.0, AnyRequest::WaitMultiCs(self));
    }
}

/// The flags select the request as in common/command_submission.c:hl_wait_ioctl.
pub(crate) fn is_multi(input: &HlWaitCsIn) -> bool {
    !input.flags.contains(WaitCsFlags::INTERRUPT) && input.flags.contains(WaitCsFlags::MULTI_CS)
}

pub(crate) fn decode_multi<V: Visitor>(
    input: HlWaitCsIn,
    memory: &dyn UserMemory,
    visitor: V,
) -> Result<V::Output, Errno> {
    let multi: HlWaitCsInMulti = front(&input.arg2);
    if multi.pad != [0; 7] {
        return Err(Errno::EINVAL);
    }
    const MOST: u32 = HL_WAIT_MULTI_CS_LIST_MAX_LEN as u32;
    let numbers: Vec<u64> = read_list(memory, input.arg[0], multi.seq_arr_len.into(), MOST)?;
    let seqs: Vec<CsSeq> = numbers.into_iter().map(CsSeq).collect();
    Ok(visitor.visit(WaitMultiCs {
        seqs: &seqs,
        timeout: Duration::from_micros(input.arg[1]),
    }))
}
