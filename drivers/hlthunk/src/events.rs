//! Device events: event descriptors and error records.

#![expect(
    unsafe_code,
    reason = "eventfd(2); poll(2), read(2) and close(2) of the program's descriptors, in a C function"
)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};

use gaudi_sys::Errno;
use gaudi_sys::cancel::Uncancelled;
use gaudi_uapi::Ioctl;
use gaudi_uapi::info::{
    HlInfoArgs, HlInfoFwErrEvent, HlInfoRazwiEvent, HlPageFaultInfo, HlUserMapping, InfoOp,
};
use gaudi_uapi::legacy::HlInfoRazwiEvent61;
use nix::libc;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::device;
use crate::guard::{guarded, negative_errno, uncancelled};
use crate::info::{ask, fill, query};
use crate::pointer::{Argument as _, Pointer};
use crate::types::{
    HlthunkEventRecordCriticalFwErr, HlthunkEventRecordCriticalHwErr, HlthunkEventRecordCsTimeout,
    HlthunkEventRecordEngineErr, HlthunkEventRecordId, HlthunkEventRecordOpenDevTime,
    HlthunkEventRecordRazwiEvent, HlthunkEventRecordUndefinedOpcode, HlthunkPageFaultInfo,
    HlthunkUserMapping,
};

/// Returns the RAZWI event. Before Linux 6.3 the struct was shorter, with the engines at other
/// offsets.
fn razwi(fd: c_int) -> Result<HlthunkEventRecordRazwiEvent, Errno> {
    let mut event: HlInfoRazwiEvent = query(fd, 0)?;
    let bytes = event.as_bytes();
    let (old, rest) = HlInfoRazwiEvent61::read_from_prefix(bytes).map_err(|_| Errno::EIO)?;
    // The current driver never reports engine ids with a count of 0.
    if event.num_of_possible_engines == 0 && bytes[16..24] != [0; 8] && rest.iter().all(|&byte| byte == 0) {
        event = old.into();
    }
    Ok(HlthunkEventRecordRazwiEvent {
        timestamp: event.timestamp,
        addr: event.addr,
        engine_id: event.engine_id,
        num_of_possible_engines: event.num_of_possible_engines,
        flags: event.flags.0,
    })
}

fn firmware_error(fd: c_int) -> Result<HlthunkEventRecordCriticalFwErr, Errno> {
    let event: HlInfoFwErrEvent = query(fd, 0)?;
    Ok(HlthunkEventRecordCriticalFwErr {
        timestamp: event.timestamp,
        err_type: event.err_type.0.into(),
        reported_err_id: event.event_id,
    })
}

/// Fills the caller's array. Returns the number of mappings that the driver recorded.
fn user_mappings(fd: c_int, into: Pointer<HlthunkUserMapping>, room: u32) -> Result<u32, (u32, Errno)> {
    let without_count = |errno| (u32::MAX, errno);
    if room == 0 {
        return Err(without_count(Errno::EINVAL));
    }
    let address = into.check().map_err(without_count)?.address();
    const { assert!(size_of::<HlthunkUserMapping>() == size_of::<HlUserMapping>()) };
    let size = room
        .checked_mul(size_of::<HlUserMapping>() as u32)
        .ok_or(without_count(Errno::EINVAL))?;
    // The driver also reports the number with a failure: ENOMEM if the array is too short.
    let mut args = HlInfoArgs::new(InfoOp::USER_MAPPINGS, address, size, 0);
    let answer = device::ioctl(fd, Ioctl::Info, &mut args);
    answer.map(|()| args.arg).map_err(|errno| (args.arg, errno))
}

/// Reads the counter of an event descriptor.
fn take(handle: c_int) -> Result<u64, Errno> {
    let mut count = 0_u64;
    let bytes = count.as_mut_bytes();
    loop {
        // SAFETY: the buffer is valid for the length that is passed.
        let read = unsafe { libc::read(handle, bytes.as_mut_ptr().cast(), bytes.len()) };
        match Errno::result(read) {
            Ok(8) => return Ok(count),
            Ok(_) => return Err(Errno::EINVAL),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Waits up to `timeout` milliseconds for events; a value above `INT_MAX` waits without a timeout.
/// Writes the events' bits and their number, which is 0 after a timeout. A cancellation point, as
/// poll(2) is: a program may end a thread that waits here with pthread_cancel(3).
///
/// # Errors
/// `-EINVAL`: `notifier_events` or `notifier_cnt` is null. `-EPERM` (-1): the descriptor cannot be
/// read. Otherwise `-errno` of poll(2) or of the driver.
///
/// # Safety
/// - A pointer argument is null or valid for the function's writes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn hlthunk_notifier_recv(
    fd: c_int,
    handle: c_int,
    notifier_events: *mut u64,
    notifier_cnt: *mut u64,
    _flags: u32,
    timeout: u32,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let events = unsafe { notifier_events.received() };
    // SAFETY: guaranteed by the caller.
    let number = unsafe { notifier_cnt.received() };
    let begun = guarded(negative_errno, || {
        events.check()?;
        number.write(0).map(|()| 0)
    });
    if begun != 0 {
        return begun;
    }
    let mut set = libc::pollfd {
        fd: handle,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `set` is one valid entry. A cancellation unwinds one frame of the library, this one,
    // which has nothing to drop.
    let ready = unsafe { poll(&raw mut set, 1, timeout as c_int) };
    uncancelled(negative_errno, || {
        if Errno::result(ready)? == 0 {
            return Ok(0);
        }
        let count = take(handle).map_err(|_| Errno::EPERM)?;
        fill(fd, InfoOp::GET_EVENTS, events, 0)?;
        number.write(count).map(|()| 0)
    })
}

unsafe extern "C-unwind" {
    /// poll(2) of the C library, which may end the thread by unwinding its stack.
    fn poll(entries: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
}

exports! {
    /// Creates an event descriptor that counts the device's events, and registers it.
    ///
    /// # Errors
    /// `-errno` of eventfd(2) or of the driver.
    fn hlthunk_notifier_create(fd: c_int) -> c_int as negative_errno {
        // SAFETY: eventfd(2) takes numbers.
        let handle = Errno::result(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
        // SAFETY: a new descriptor, which nothing else owns.
        let handle = unsafe { OwnedFd::from_raw_fd(handle) };
        match ask(fd, InfoOp::REGISTER_EVENTFD, 0, 0, handle.as_raw_fd() as u32) {
            Ok(_) => Ok(handle.into_raw_fd()),
            Err(errno) => {
                let _uncancelled = Uncancelled::begin();
                drop(handle);
                Err(errno)
            }
        }
    }
}

exports! {
    uncancelled:

    /// Deregisters and closes an event descriptor.
    ///
    /// # Errors
    /// `-errno` of the driver, or of close(2).
    fn hlthunk_notifier_release(fd: c_int, handle: c_int) -> c_int as negative_errno {
        ask(fd, InfoOp::UNREGISTER_EVENTFD, 0, 0, handle as u32)?;
        // SAFETY: the program passed its own descriptor to close.
        Errno::result(unsafe { libc::close(handle) })
    }
}

exports! {
    /// Writes the record of the first event of a kind since the compute node was opened. The kind
    /// determines the struct.
    ///
    /// # Errors
    /// `-EINVAL`: `buf` is null, or the kind is unknown. Otherwise `-errno` of the driver.
    fn hlthunk_get_event_record(
        fd: c_int,
        event_id: HlthunkEventRecordId,
        buf: *mut c_void,
    ) -> c_int as negative_errno {
        use HlthunkEventRecordId as Id;
        buf.check()?;
        match event_id {
            Id::OPEN_DEV => {
                let into = buf.cast::<HlthunkEventRecordOpenDevTime>();
                fill(fd, InfoOp::LAST_ERR_OPEN_DEV_TIME, into, 0)
            }
            Id::CS_TIMEOUT => fill(fd, InfoOp::CS_TIMEOUT_EVENT, buf.cast::<HlthunkEventRecordCsTimeout>(), 0),
            Id::RAZWI_EVENT => buf.cast().write(razwi(fd)?).map(|()| 0),
            Id::UNDEFINED_OPCODE => {
                let into = buf.cast::<HlthunkEventRecordUndefinedOpcode>();
                fill(fd, InfoOp::UNDEFINED_OPCODE_EVENT, into, 0)
            }
            Id::HW_ERR_OPCODE => {
                let into = buf.cast::<HlthunkEventRecordCriticalHwErr>();
                fill(fd, InfoOp::HW_ERR_EVENT, into, 0)
            }
            Id::FW_ERR_OPCODE => buf.cast().write(firmware_error(fd)?).map(|()| 0),
            Id::ENGINE_EVENT => {
                let into = buf.cast::<HlthunkEventRecordEngineErr>();
                fill(fd, InfoOp::USER_ENGINE_ERR_EVENT, into, 0)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Writes the first page fault and the mappings that existed at that time, at most
    /// `num_of_allocated_mappings`. `num_of_mappings` is their full number, even if the array is
    /// shorter, or `UINT32_MAX` if it is unknown.
    ///
    /// # Errors
    /// `-EINVAL`: `pf` or its array is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_page_fault_info(
        fd: c_int,
        pf: *mut HlthunkPageFaultInfo,
        num_of_allocated_mappings: u32,
    ) -> c_int as negative_errno {
        let mut report = pf.read()?;
        report.num_of_mappings = u32::MAX;
        pf.write(report)?;
        let fault: HlPageFaultInfo = query(fd, 0)?;
        report.addr = fault.addr;
        report.timestamp = fault.timestamp;
        report.engine_id = fault.engine_id;
        let mappings = user_mappings(fd, report.mappings(), num_of_allocated_mappings);
        report.num_of_mappings = mappings.unwrap_or_else(|(number, _)| number);
        pf.write(report)?;
        mappings.map(|_| 0).map_err(|(_, errno)| errno)
    }
}
