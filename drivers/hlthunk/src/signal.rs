//! Signals, and submissions that wait for them (Gaudi): `HL_IOCTL_CS`.

use std::ffi::c_int;

use gaudi_sys::Errno;
use gaudi_uapi::cs::{CsFlags, CsStatus, HlCsChunk, HlCsIn, HlCsInReserve, HlCsOut, HlCsOutReserve};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::pointer::Pointer;
use crate::submit::{submit, with_chunks};
use crate::types::{
    HlthunkSigResIn, HlthunkSigResOut, HlthunkSignalIn, HlthunkSignalOut, HlthunkWaitIn, HlthunkWaitOut,
    ReserveSigHandle,
};

/// Submits a request. Fails if the driver's status is not a success.
#[inline]
fn submit_checked(fd: c_int, request: HlCsIn) -> Result<HlCsOut, Errno> {
    let answer = submit(fd, request)?;
    match answer.status {
        CsStatus::SUCCESS => Ok(answer),
        _ => Err(Errno::EINVAL),
    }
}

/// Submits one chunk whose packets the driver generates.
#[inline]
fn submit_chunk(
    fd: c_int,
    restore: (u64, u32),
    chunk: &HlCsChunk,
    flags: u32,
    timeout: u32,
) -> Result<HlCsOut, Errno> {
    let execute = std::ptr::from_ref(chunk).expose_provenance() as u64;
    submit_checked(fd, with_chunks(restore, (execute, 1), flags, timeout))
}

#[inline(always)]
fn signal(
    fd: c_int,
    from: Pointer<HlthunkSignalIn>,
    out: Pointer<HlthunkSignalOut>,
    timeout: u32,
) -> Result<c_int, Errno> {
    let from = from.read()?;
    out.check()?;
    let chunk = HlCsChunk {
        queue_index: from.queue_index,
        ..HlCsChunk::default()
    };
    let restore = (from.chunks_restore as u64, from.num_chunks_restore);
    let flags = from.flags | CsFlags::SIGNAL.0;
    let answer = submit_chunk(fd, restore, &chunk, flags, timeout)?;
    out.write(HlthunkSignalOut {
        seq: answer.seq(),
        status: answer.status.0,
        sob_base_addr_offset: answer.sob_base_addr_offset,
        sob_count_before_submission: answer.sob_count_before_submission,
    })?;
    Ok(0)
}

/// The kind of signal that a submission waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A signal from [`hlthunk_signal_submission`].
    Signal,
    /// Reserved signals.
    Reserved,
}

#[inline(always)]
fn wait_for(
    fd: c_int,
    from: Pointer<HlthunkWaitIn>,
    out: Pointer<HlthunkWaitOut>,
    timeout: u32,
    (kind, wait): (Kind, CsFlags),
) -> Result<c_int, Errno> {
    let from = from.read()?;
    out.check()?;
    if from.num_wait_for_signal != 1 {
        return Err(Errno::EINVAL);
    }
    let signal = from.signals().read()?;
    if signal.signal_seq_nr != 1 {
        return Err(Errno::EINVAL);
    }
    let mut flags = from.flags | wait.0;
    // The word is the address of a list, or the handle of the reservation. The driver's struct has
    // a union here as well.
    let mut chunk = HlCsChunk {
        cb_handle: signal.signal_seq_arr as u64,
        queue_index: signal.queue_index,
        cb_size: 1,
        ..HlCsChunk::default()
    };
    if kind == Kind::Reserved {
        chunk.cb_size = signal.encaps_signal_offset;
        flags |= CsFlags::ENCAP_SIGNALS.0;
    }
    if wait == CsFlags::COLLECTIVE_WAIT {
        chunk.collective_engine_id = signal.collective_engine_id;
    }
    let restore = (from.chunks_restore as u64, from.num_chunks_restore);
    let answer = submit_chunk(fd, restore, &chunk, flags, timeout)?;
    out.write(HlthunkWaitOut {
        seq: answer.seq(),
        status: answer.status.0,
    })?;
    Ok(0)
}

exports! {
    /// Submits a signal on a queue.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null, or the driver reported a failed status. Otherwise `-errno`
    /// of the driver.
    fn hlthunk_signal_submission(
        fd: c_int,
        input: *mut HlthunkSignalIn,
        out: *mut HlthunkSignalOut,
    ) -> c_int as negative_errno via fp_hlthunk_signal_submission of signal_original {
        signal(fd, input, out, 0)
    }

    /// As [`hlthunk_signal_submission`], with a timeout in seconds; 0 selects the driver's default.
    ///
    /// # Errors
    /// As [`hlthunk_signal_submission`].
    fn hlthunk_signal_submission_timeout(
        fd: c_int,
        input: *mut HlthunkSignalIn,
        out: *mut HlthunkSignalOut,
        timeout: u32,
    ) -> c_int as negative_errno via fp_hlthunk_signal_submission_timeout of signal_timeout_original {
        signal(fd, input, out, timeout)
    }

    /// Submits a wait for one signal on a queue.
    ///
    /// # Errors
    /// `-EINVAL`: `in`, its signal or `out` is null, the number of signals is not 1, or the driver
    /// reported a failed status. Otherwise `-errno` of the driver.
    fn hlthunk_wait_for_signal(
        fd: c_int,
        input: *mut HlthunkWaitIn,
        out: *mut HlthunkWaitOut,
    ) -> c_int as negative_errno via fp_hlthunk_wait_for_signal of wait_for_signal_original {
        wait_for(fd, input, out, 0, (Kind::Signal, CsFlags::WAIT))
    }

    /// As [`hlthunk_wait_for_signal`], with a timeout in seconds; 0 selects the driver's default.
    ///
    /// # Errors
    /// As [`hlthunk_wait_for_signal`].
    fn hlthunk_wait_for_signal_timeout(
        fd: c_int,
        input: *mut HlthunkWaitIn,
        out: *mut HlthunkWaitOut,
        timeout: u32,
    ) -> c_int as negative_errno via fp_hlthunk_wait_for_signal_timeout of wait_for_signal_timeout_original {
        wait_for(fd, input, out, timeout, (Kind::Signal, CsFlags::WAIT))
    }

    /// Submits a wait for one signal on the queues of a collective.
    ///
    /// # Errors
    /// As [`hlthunk_wait_for_signal`].
    fn hlthunk_wait_for_collective_signal(
        fd: c_int,
        input: *mut HlthunkWaitIn,
        out: *mut HlthunkWaitOut,
    ) -> c_int as negative_errno via fp_hlthunk_wait_for_collective_sig of wait_for_collective_original {
        wait_for(fd, input, out, 0, (Kind::Signal, CsFlags::COLLECTIVE_WAIT))
    }

    /// As [`hlthunk_wait_for_collective_signal`], with a timeout in seconds; 0 selects the driver's
    /// default.
    ///
    /// # Errors
    /// As [`hlthunk_wait_for_signal`].
    fn hlthunk_wait_for_collective_signal_timeout(
        fd: c_int,
        input: *mut HlthunkWaitIn,
        out: *mut HlthunkWaitOut,
        timeout: u32,
    ) -> c_int as negative_errno
        via fp_hlthunk_wait_for_collective_sig_timeout of wait_for_collective_timeout_original
    {
        wait_for(fd, input, out, timeout, (Kind::Signal, CsFlags::COLLECTIVE_WAIT))
    }

    /// Submits a wait for reserved signals on a queue.
    ///
    /// # Errors
    /// As [`hlthunk_wait_for_signal`].
    fn hlthunk_wait_for_reserved_encaps_signals(
        fd: c_int,
        input: *mut HlthunkWaitIn,
        out: *mut HlthunkWaitOut,
    ) -> c_int as negative_errno
        via fp_hlthunk_wait_for_reserved_encaps_signals of wait_for_reserved_original
    {
        wait_for(fd, input, out, 0, (Kind::Reserved, CsFlags::WAIT))
    }

    /// Submits a wait for reserved signals on the queues of a collective.
    ///
    /// # Errors
    /// As [`hlthunk_wait_for_signal`].
    fn hlthunk_wait_for_reserved_encaps_collective_signals(
        fd: c_int,
        input: *mut HlthunkWaitIn,
        out: *mut HlthunkWaitOut,
    ) -> c_int as negative_errno
        via fp_hlthunk_wait_for_collective_reserved_encap_sig of wait_for_collective_reserved_original
    {
        wait_for(fd, input, out, 0, (Kind::Reserved, CsFlags::COLLECTIVE_WAIT))
    }

    /// Reserves signals on a queue.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null, or the driver reported a failed status. Otherwise `-errno`
    /// of the driver.
    fn hlthunk_reserve_encaps_signals(
        fd: c_int,
        input: *mut HlthunkSigResIn,
        out: *mut HlthunkSigResOut,
    ) -> c_int as negative_errno via fp_hlthunk_reserve_signals of reserve_original {
        let from = input.read()?;
        out.check()?;
        let reserve = HlCsInReserve {
            encaps_signals_count: from.count,
            encaps_signals_q_idx: from.queue_index,
        };
        let mut request = HlCsIn {
            num_chunks_execute: 1,
            cs_flags: CsFlags::RESERVE_SIGNALS_ONLY,
            ..HlCsIn::default()
        };
        request.signal.as_mut_bytes().copy_from_slice(reserve.as_bytes());
        let answer = submit_checked(fd, request)?;
        let reserved = HlCsOutReserve::read_from_bytes(answer.arg.as_bytes()).map_err(|_| Errno::EIO)?;
        out.write(HlthunkSigResOut {
            handle: ReserveSigHandle {
                id: reserved.handle_id,
                sob_base_addr_offset: answer.sob_base_addr_offset,
                count: reserved.count,
            },
            status: answer.status.0,
        })?;
        Ok(0)
    }

    /// Releases reserved signals that were not used.
    ///
    /// # Errors
    /// As [`hlthunk_reserve_encaps_signals`].
    fn hlthunk_unreserve_encaps_signals(
        fd: c_int,
        handle: *mut ReserveSigHandle,
        status: *mut u32,
    ) -> c_int as negative_errno via fp_hlthunk_unreserve_signals of unreserve_original {
        let handle = handle.read()?;
        status.check()?;
        let request = HlCsIn {
            signal: [handle.id.into()],
            num_chunks_execute: 1,
            cs_flags: CsFlags::UNRESERVE_SIGNALS_ONLY,
            ..HlCsIn::default()
        };
        let answer = submit_checked(fd, request)?;
        status.write(answer.status.0).map(|()| 0)
    }
}
