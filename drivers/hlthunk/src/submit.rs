//! Submissions and commands to engines: `HL_IOCTL_CS`.
//!
//! `in` and `out` are checked before the driver is called: a submission without a place for its
//! number could not be waited for.

use std::ffi::c_int;

use gaudi_sys::Errno;
use gaudi_uapi::Ioctl;
use gaudi_uapi::cs::{CsFlags, EngineCommand, HlCsArgs, HlCsIn, HlCsInChunks, HlCsOut};

use crate::device;
use crate::pointer::Pointer;
use crate::types::{HlthunkCsIn, HlthunkCsOut};

/// The request with the chunks of `restore` and `execute`: address and number each.
#[inline]
pub(crate) fn with_chunks(restore: (u64, u32), execute: (u64, u32), flags: u32, timeout: u32) -> HlCsIn {
    let mut request = HlCsIn {
        num_chunks_restore: restore.1,
        num_chunks_execute: execute.1,
        cs_flags: CsFlags(flags),
        ..HlCsIn::default()
    };
    request.set_chunks(HlCsInChunks {
        chunks_restore: restore.0,
        chunks_execute: execute.0,
    });
    if timeout != 0 {
        request.cs_flags |= CsFlags::CUSTOM_TIMEOUT;
        request.timeout = timeout;
    }
    request
}

/// Passes a request to the driver. Submits once: `EAGAIN` means that nothing was submitted.
#[inline]
pub(crate) fn submit(fd: c_int, request: HlCsIn) -> Result<HlCsOut, Errno> {
    let mut args = HlCsArgs::from(request);
    device::ioctl(fd, Ioctl::Cs, &mut args)?;
    Ok(args.answer())
}

#[inline]
fn request(from: HlthunkCsIn, timeout: u32) -> HlCsIn {
    with_chunks(
        (from.chunks_restore as u64, from.num_chunks_restore),
        (from.chunks_execute as u64, from.num_chunks_execute),
        from.flags,
        timeout,
    )
}

/// The request is a few registers only where this is inlined.
#[inline(always)]
fn submit_into(fd: c_int, request: HlCsIn, out: Pointer<HlthunkCsOut>) -> Result<c_int, Errno> {
    let answer = submit(fd, request)?;
    out.write(HlthunkCsOut {
        seq: answer.seq(),
        status: answer.status.0,
        sob_count_before_submission: answer.sob_count_before_submission,
    })?;
    Ok(0)
}

/// As [`submit_into`]: inlined in both callers.
#[inline(always)]
fn submit_chunks(
    fd: c_int,
    from: Pointer<HlthunkCsIn>,
    out: Pointer<HlthunkCsOut>,
    timeout: u32,
) -> Result<c_int, Errno> {
    let from = from.read()?;
    out.check()?;
    submit_into(fd, request(from, timeout), out)
}

/// A part of a submission whose parts come in several calls.
fn submit_stage(
    fd: c_int,
    sequence: u64,
    from: Pointer<HlthunkCsIn>,
    out: Pointer<HlthunkCsOut>,
    timeout: u32,
) -> Result<c_int, Errno> {
    let from = from.read()?;
    out.check()?;
    if !CsFlags(from.flags).contains(CsFlags::STAGED_SUBMISSION) {
        return Err(Errno::EINVAL);
    }
    let mut request = request(from, timeout);
    request.signal = [sequence];
    submit_into(fd, request, out)
}

exports! {
    /// Submits chunks, and returns the submission's number. Waits while a queue is full.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null. `-errno` of the driver.
    fn hlthunk_command_submission(
        fd: c_int,
        input: *mut HlthunkCsIn,
        out: *mut HlthunkCsOut,
    ) -> c_int as negative_errno
        via fp_hlthunk_command_submission of command_submission_original
    {
        submit_chunks(fd, input, out, 0)
    }

    /// As [`hlthunk_command_submission`], with a timeout in seconds; 0 for the driver's.
    ///
    /// # Errors
    /// As [`hlthunk_command_submission`].
    fn hlthunk_command_submission_timeout(
        fd: c_int,
        input: *mut HlthunkCsIn,
        out: *mut HlthunkCsOut,
        timeout: u32,
    ) -> c_int as negative_errno via fp_hlthunk_command_submission_timeout of command_submission_timeout_original {
        submit_chunks(fd, input, out, timeout)
    }

    /// Submits a stage of the submission `sequence`, which the first stage returned.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null, or `HL_CS_FLAGS_STAGED_SUBMISSION` is missing. `-errno` of
    /// the driver.
    fn hlthunk_staged_command_submission(
        fd: c_int,
        sequence: u64,
        input: *mut HlthunkCsIn,
        out: *mut HlthunkCsOut,
    ) -> c_int as negative_errno via fp_hlthunk_staged_command_submission of staged_original {
        submit_stage(fd, sequence, input, out, 0)
    }

    /// As [`hlthunk_staged_command_submission`], with a timeout in seconds; 0 for the driver's.
    ///
    /// # Errors
    /// As [`hlthunk_staged_command_submission`].
    fn hlthunk_staged_command_submission_timeout(
        fd: c_int,
        sequence: u64,
        input: *mut HlthunkCsIn,
        out: *mut HlthunkCsOut,
        timeout: u32,
    ) -> c_int as negative_errno via fp_hlthunk_staged_cs_timeout of staged_timeout_original {
        submit_stage(fd, sequence, input, out, timeout)
    }

    /// Submits a stage that signals reserved signals.
    ///
    /// # Errors
    /// As [`hlthunk_staged_command_submission`].
    fn hlthunk_staged_command_submission_encaps_signals(
        fd: c_int,
        handle_id: u64,
        input: *mut HlthunkCsIn,
        out: *mut HlthunkCsOut,
    ) -> c_int as negative_errno via fp_hlthunk_staged_cs_encaps_signals of staged_encaps_original {
        let from = input.read()?;
        out.check()?;
        if !CsFlags(from.flags).contains(CsFlags::STAGED_SUBMISSION) {
            return Err(Errno::EINVAL);
        }
        let mut request = request(from, 0);
        // The driver reads 32 bits of the handle there.
        request.signal = [handle_id & 0xffff_ffff];
        request.cs_flags |= CsFlags::ENCAP_SIGNALS;
        submit_into(fd, request, out)
    }

    /// Flushes writes of the device over PCI.
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_cs_flush_pci_hbw_writes(fd: c_int) -> c_int as negative_errno {
        let request = HlCsIn {
            cs_flags: CsFlags::FLUSH_PCI_HBW_WRITES,
            ..HlCsIn::default()
        };
        submit(fd, request).map(|_| 0)
    }

    /// Halts or runs engine cores.
    ///
    /// # Errors
    /// `-EINVAL`: no ids, or another mode. `-errno` of the driver.
    fn hlthunk_engine_cores_set_mode(
        fd: c_int,
        core_ids: *const u32,
        num_cores: u32,
        mode: u32,
    ) -> c_int as negative_errno {
        let ids = core_ids.checked_address()?;
        let command = EngineCommand(mode);
        if !matches!(command, EngineCommand::CORE_RUN | EngineCommand::CORE_HALT) {
            return Err(Errno::EINVAL);
        }
        submit(fd, HlCsIn::engine_cores(ids, num_cores, command)).map(|_| 0)
    }

    /// Halts, runs, stalls or resumes engines.
    ///
    /// # Errors
    /// `-EINVAL`: no ids, or another command. `-errno` of the driver.
    fn hlthunk_engines_command(
        fd: c_int,
        engine_ids: *const u32,
        num_engines: u32,
        command: u32,
    ) -> c_int as negative_errno {
        let ids = engine_ids.checked_address()?;
        let command = EngineCommand(command);
        if !(EngineCommand::CORE_HALT.0..=EngineCommand::RESUME.0).contains(&command.0) {
            return Err(Errno::EINVAL);
        }
        submit(fd, HlCsIn::engines(ids, num_engines, command)).map(|_| 0)
    }
}
