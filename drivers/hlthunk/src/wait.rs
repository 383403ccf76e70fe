//! Waiting for submissions and interrupts: `HL_IOCTL_WAIT_CS`.
//!
//! After a failure the vendor's library copies a status out of the request, where the driver has
//! not put one: the number of the submission, for example. Here the status is written only where
//! the driver reported one, or where its errno implies one.

use std::ffi::{c_int, c_void};

use gaudi_sys::Errno;
use gaudi_uapi::wait::{HlWaitCsArgs, HlWaitCsIn, HlWaitCsOut, WaitCsFlags, WaitCsStatus, WaitCsStatusFlags};

use crate::device;
use crate::pointer::Pointer;
use crate::types::{HlthunkWaitMultiCsIn, HlthunkWaitMultiCsOut};

/// The word of the argument that has the timeout of a wait for submissions.
const CS_TIMEOUT: usize = 1;
/// The word that has the timeout of a wait for an interrupt.
const INTERRUPT_TIMEOUT: usize = 3;

/// What the driver reported with a failure: it clears the whole argument before it fills it
/// (command_submission.c:hl_cs_wait_ioctl).
#[cold]
fn reported(request: HlWaitCsIn, args: &HlWaitCsArgs, timeout: usize, errno: Errno) -> Option<HlWaitCsOut> {
    let mut sent = HlWaitCsArgs::from(request);
    // Signals may have shortened it.
    sent.0[timeout] = args.0[timeout];
    if sent != *args {
        return Some(args.answer());
    }
    let status = match errno {
        Errno::ETIMEDOUT => WaitCsStatus::TIMEDOUT,
        Errno::EIO => WaitCsStatus::ABORTED,
        _ => return None,
    };
    Some(HlWaitCsOut {
        status,
        ..HlWaitCsOut::default()
    })
}

/// Waits, and writes what is reported. A failure makes the request again: a copy of it would cost
/// every call.
#[inline]
fn wait_into(
    fd: c_int,
    request: impl Fn() -> HlWaitCsIn,
    timeout: usize,
    status: Pointer<u32>,
    timestamp: Option<Pointer<u64>>,
) -> Result<c_int, Errno> {
    status.check()?;
    let mut args = HlWaitCsArgs::from(request());
    if let Err(errno) = device::wait(fd, &mut args, timeout) {
        if let Some(report) = reported(request(), &args, timeout, errno) {
            put(&report, status, timestamp)?;
        }
        return Err(errno);
    }
    // Not through a value of the whole answer: a load that is wider than the driver's last store
    // stalls the processor for longer than the rest of the call takes.
    put(&args.answer(), status, timestamp)?;
    Ok(0)
}

#[inline]
fn put(report: &HlWaitCsOut, status: Pointer<u32>, timestamp: Option<Pointer<u64>>) -> Result<(), Errno> {
    status.write(report.status.0)?;
    put_timestamp(report, timestamp)
}

#[inline]
fn put_timestamp(report: &HlWaitCsOut, timestamp: Option<Pointer<u64>>) -> Result<(), Errno> {
    match timestamp {
        Some(timestamp) if report.flags.contains(WaitCsStatusFlags::TIMESTAMP_VLD) => {
            timestamp.write(report.timestamp_nsec as u64)
        }
        _ => Ok(()),
    }
}

#[inline(always)]
fn wait_for_many(
    fd: c_int,
    from: Pointer<HlthunkWaitMultiCsIn>,
    out: Pointer<HlthunkWaitMultiCsOut>,
    timestamp: Option<Pointer<u64>>,
) -> Result<c_int, Errno> {
    let from = from.read()?;
    out.check()?;
    // The driver reads one byte of the number, as the vendor's library passes it.
    let request = || HlWaitCsIn::multi_cs(from.seq as u64, from.seq_len as u8, from.timeout_us);
    let mut args = HlWaitCsArgs::from(request());
    if let Err(errno) = device::wait(fd, &mut args, CS_TIMEOUT) {
        if let Some(report) = reported(request(), &args, CS_TIMEOUT, errno) {
            let before = out.read()?;
            put_many(&report, out, (before.seq_set, before.completed), timestamp)?;
        }
        return Err(errno);
    }
    // As in `wait_into`.
    let report = args.answer();
    let map = report.cs_completion_map;
    put_many(&report, out, (map, map.count_ones() as u8), timestamp)?;
    Ok(0)
}

#[inline]
fn put_many(
    report: &HlWaitCsOut,
    out: Pointer<HlthunkWaitMultiCsOut>,
    (seq_set, completed): (u32, u8),
    timestamp: Option<Pointer<u64>>,
) -> Result<(), Errno> {
    out.write(HlthunkWaitMultiCsOut {
        status: report.status.0,
        seq_set,
        completed,
    })?;
    put_timestamp(report, timestamp)
}

/// A timestamp that the program may leave out.
fn optional(timestamp: Pointer<u64>) -> Option<Pointer<u64>> {
    (!timestamp.is_null()).then_some(timestamp)
}

exports! {
    /// Waits until a submission has completed, or for `timeout_us` microseconds.
    ///
    /// # Errors
    /// `-EINVAL`: `status` is null. `-errno` of the driver.
    fn hlthunk_wait_for_cs(
        fd: c_int,
        seq: u64,
        timeout_us: u64,
        status: *mut u32,
    ) -> c_int as negative_errno {
        wait_into(fd, || HlWaitCsIn::cs(seq, timeout_us), CS_TIMEOUT, status, None)
    }

    /// As [`hlthunk_wait_for_cs`], with the time of the completion in ns, if the driver has it.
    ///
    /// # Errors
    /// `-EINVAL`: `status` or `timestamp` is null. `-errno` of the driver.
    fn hlthunk_wait_for_cs_with_timestamp(
        fd: c_int,
        seq: u64,
        timeout_us: u64,
        status: *mut u32,
        timestamp: *mut u64,
    ) -> c_int as negative_errno {
        let timestamp = timestamp.check()?;
        wait_into(fd, || HlWaitCsIn::cs(seq, timeout_us), CS_TIMEOUT, status, Some(timestamp))
    }

    /// Waits until one of several submissions has completed.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null. `-errno` of the driver.
    fn hlthunk_wait_for_multi_cs(
        fd: c_int,
        input: *mut HlthunkWaitMultiCsIn,
        out: *mut HlthunkWaitMultiCsOut,
    ) -> c_int as negative_errno {
        wait_for_many(fd, input, out, None)
    }

    /// As [`hlthunk_wait_for_multi_cs`], with the time of the first completion in ns; 0 if the
    /// driver does not have it.
    ///
    /// # Errors
    /// `-EINVAL`: `in`, `out` or `timestamp` is null. `-errno` of the driver.
    fn hlthunk_wait_for_multi_cs_with_timestamp(
        fd: c_int,
        input: *mut HlthunkWaitMultiCsIn,
        out: *mut HlthunkWaitMultiCsOut,
        timestamp: *mut u64,
    ) -> c_int as negative_errno {
        timestamp.write(0)?;
        wait_for_many(fd, input, out, Some(timestamp))
    }

    /// Waits until the value at `addr` reaches a target, which the driver checks at each interrupt.
    /// `UINT_MAX` selects any interrupt of a completion queue.
    ///
    /// # Errors
    /// `-EINVAL`: no address or place for the status. `-errno` of the driver.
    fn hlthunk_wait_for_interrupt(
        fd: c_int,
        addr: *mut c_void,
        target_value: u64,
        interrupt_id: u32,
        timeout_us: u64,
        status: *mut u32,
    ) -> c_int as negative_errno {
        let addr = addr.check()?.address();
        let request = || HlWaitCsIn::interrupt(interrupt_id as u16, addr, target_value, timeout_us);
        wait_into(fd, request, INTERRUPT_TIMEOUT, status, None)
    }

    /// As [`hlthunk_wait_for_interrupt`], with the time of the interrupt in ns.
    ///
    /// # Errors
    /// As [`hlthunk_wait_for_interrupt`].
    fn hlthunk_wait_for_interrupt_with_timestamp(
        fd: c_int,
        addr: *mut c_void,
        target_value: u64,
        interrupt_id: u32,
        timeout_us: u64,
        status: *mut u32,
        timestamp: *mut u64,
    ) -> c_int as negative_errno {
        let addr = addr.check()?.address();
        let request = || HlWaitCsIn::interrupt(interrupt_id as u16, addr, target_value, timeout_us);
        wait_into(fd, request, INTERRUPT_TIMEOUT, status, optional(timestamp))
    }

    /// Waits until a counter in a command buffer reaches a target.
    ///
    /// # Errors
    /// `-EINVAL`: `status` is null. `-errno` of the driver.
    fn hlthunk_wait_for_interrupt_by_handle(
        fd: c_int,
        cq_counters_handle: u64,
        cq_counters_offset: u64,
        target_value: u64,
        interrupt_id: u32,
        timeout_us: u64,
        status: *mut u32,
    ) -> c_int as negative_errno {
        let counter = (cq_counters_handle, cq_counters_offset);
        let request = || on_counter(interrupt_id, counter, target_value, timeout_us);
        wait_into(fd, request, INTERRUPT_TIMEOUT, status, None)
    }

    /// As [`hlthunk_wait_for_interrupt_by_handle`], with the time of the interrupt in ns.
    ///
    /// # Errors
    /// As [`hlthunk_wait_for_interrupt_by_handle`].
    fn hlthunk_wait_for_interrupt_by_handle_with_timestamp(
        fd: c_int,
        cq_counters_handle: u64,
        cq_counters_offset: u64,
        target_value: u64,
        interrupt_id: u32,
        timeout_us: u64,
        status: *mut u32,
        timestamp: *mut u64,
    ) -> c_int as negative_errno {
        let counter = (cq_counters_handle, cq_counters_offset);
        let request = || on_counter(interrupt_id, counter, target_value, timeout_us);
        wait_into(fd, request, INTERRUPT_TIMEOUT, status, optional(timestamp))
    }

    /// Makes the driver write the time to a timestamp buffer when a counter reaches a target.
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_register_timestamp_interrupt(
        fd: c_int,
        interrupt_id: u32,
        cq_counters_handle: u64,
        cq_counters_offset: u64,
        target_value: u64,
        timestamp_handle: u64,
        timestamp_offset: u64,
    ) -> c_int as negative_errno {
        let counter = (cq_counters_handle, cq_counters_offset);
        // Any time but 0, which would be a question without a registration.
        let mut request = on_counter(interrupt_id, counter, target_value, 0xff);
        request.flags |= WaitCsFlags::REGISTER_INTERRUPT;
        request.timestamp_handle = timestamp_handle;
        request.timestamp_offset = timestamp_offset;
        device::wait(fd, &mut HlWaitCsArgs::from(request), INTERRUPT_TIMEOUT).map(|()| 0)
    }
}

/// The low 12 bits of an interrupt's number are its place in the flags, so that `UINT_MAX` is the
/// whole mask.
fn on_counter(interrupt_id: u32, (handle, offset): (u64, u64), target: u64, timeout_us: u64) -> HlWaitCsIn {
    HlWaitCsIn::interrupt_on_counter(interrupt_id as u16, handle, offset, target, timeout_us)
}
