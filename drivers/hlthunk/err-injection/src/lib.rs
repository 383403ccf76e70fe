//! libhl-thunk-err_injection.so: error injection for mocks.
//!
//! - *Faults are injected with one INFO operation* ([`InfoOp::MOCK_FAULT`]) through
//!   `hlthunk_get_info`, so the request passes the layers around the mock like any other. The
//!   driver does not implement it.
//! - *On hardware every function returns `-ENOTSUP`*: the vendor's library injects through the
//!   driver's debugfs and through registers, which need privileges that a client lacks.
//! - *Functions that cause a fatal error close the descriptor*, like the vendor's, even if they
//!   fail, provided that it is a device's. They return when the device can be opened again.
//! - *A control node of the mock stays open after such a function*, so that its reset and event
//!   counts survive the close.

#![expect(unsafe_code, reason = "the C functions of libhl-thunk-err_injection.so")]

mod endless;

use std::ffi::{CString, c_int};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gaudi_hlthunk_client::{HlThunk, guard};
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus, InfoOp, MockFault};
use nix::errno::Errno;

/// How long to wait until a reset device can be opened; the same as in the vendor's library.
const RESET: Duration = Duration::from_secs(60);
/// The interval between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// A control node of the mock that was reset last. Keeps the mock alive.
static KEPT: Mutex<Option<c_int>> = Mutex::new(None);

/// Runs the body of a C function.
fn result(body: impl FnOnce(&HlThunk) -> Result<(), Errno>) -> c_int {
    guard(-(Errno::EIO as c_int), || match HlThunk::get() {
        Ok(thunk) => body(thunk).map_or_else(|errno| -(errno as c_int), |()| 0),
        Err(why) => {
            eprintln!("libhl-thunk-err_injection.so (gaudi-hal): {why}");
            -(Errno::ENOTSUP as c_int)
        }
    })
}

/// Injects an error into a mock. Returns the event number that the mock recorded.
fn inject(thunk: &HlThunk, fd: c_int, fault: MockFault) -> Result<u32, Errno> {
    match thunk.info_of(fd, InfoOp::MOCK_FAULT, fault as u32, &mut []) {
        // The driver's error for an unknown operation.
        Err(Errno::EINVAL) => Err(Errno::ENOTSUP),
        answer => answer,
    }
}

/// Injects an error that makes the driver reset the device, and closes the descriptor.
fn inject_fatal(thunk: &HlThunk, fd: c_int, fault: MockFault) -> Result<u32, Errno> {
    let status: Result<HlInfoDeviceStatus, _> = thunk.info(fd);
    status?;
    let bus_id = thunk.bus_id(fd);
    let injected = inject(thunk, fd, fault);
    if injected.is_ok() {
        keep(thunk, bus_id.as_ref().ok());
    }
    let closed = thunk.close(fd);
    let event = injected?;
    closed?;
    wait_for_reset(thunk, bus_id?)?;
    Ok(event)
}

/// Opens the device's control node, and closes the previous one.
fn keep(thunk: &HlThunk, bus_id: Option<&CString>) {
    let node = bus_id.and_then(|bus_id| thunk.open_control(bus_id).ok());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(old) = std::mem::replace(&mut *kept, node) {
        // Fails if the program closed all descriptors, including this one.
        let _ = thunk.close(old);
    }
}

/// Waits until the device can be opened and is no longer in reset.
fn wait_for_reset(thunk: &HlThunk, bus_id: CString) -> Result<(), Errno> {
    let deadline = Instant::now() + RESET;
    loop {
        if let Ok(fd) = thunk.open(Some(&bus_id)) {
            let status: Result<HlInfoDeviceStatus, _> = thunk.info(fd);
            thunk.close(fd)?;
            if status?.status != DeviceStatus::IN_RESET {
                return Ok(());
            }
        }
        if Instant::now() >= deadline {
            return Err(Errno::ENXIO);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Stores an event number.
///
/// # Safety
/// - `event_num` is valid for writes.
unsafe fn put_event(event_num: *mut c_int, event: u32) {
    // Event numbers have 16 bits.
    // SAFETY: guaranteed by the caller.
    unsafe { event_num.write(event as c_int) };
}

/// `hlthunk_err_inject_endless_command`: submits a command that never completes. Returns 0 after
/// the driver has timed it out, which resets the device.
#[unsafe(no_mangle)]
pub extern "C" fn hlthunk_err_inject_endless_command(fd: c_int) -> c_int {
    result(|thunk| {
        inject(thunk, fd, MockFault::None)?;
        endless::submit(thunk, fd)
    })
}

/// `hlthunk_err_inject_non_fatal_event`: injects an event that does not cause a reset.
///
/// # Safety
/// - `event_num` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hlthunk_err_inject_non_fatal_event(fd: c_int, event_num: *mut c_int) -> c_int {
    result(|thunk| {
        if event_num.is_null() {
            return Err(Errno::EINVAL);
        }
        let event = inject(thunk, fd, MockFault::NonFatalEvent)?;
        // SAFETY: not NULL, so valid for writes.
        unsafe { put_event(event_num, event) };
        Ok(())
    })
}

/// `hlthunk_err_inject_fatal_event`: injects an event that causes a reset. Closes `fd`.
///
/// # Safety
/// - `event_num` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hlthunk_err_inject_fatal_event(fd: c_int, event_num: *mut c_int) -> c_int {
    result(|thunk| {
        if event_num.is_null() {
            return Err(Errno::EINVAL);
        }
        let event = inject_fatal(thunk, fd, MockFault::FatalEvent)?;
        // SAFETY: not NULL, so valid for writes.
        unsafe { put_event(event_num, event) };
        Ok(())
    })
}

/// `hlthunk_err_inject_loss_of_heartbeat`: the firmware stops responding, and the driver resets the
/// device. Closes `fd`.
#[unsafe(no_mangle)]
pub extern "C" fn hlthunk_err_inject_loss_of_heartbeat(fd: c_int) -> c_int {
    result(|thunk| inject_fatal(thunk, fd, MockFault::LossOfHeartbeat).map(drop))
}

/// `hlthunk_err_inject_thermal_event`: starts thermal clock throttling.
#[unsafe(no_mangle)]
pub extern "C" fn hlthunk_err_inject_thermal_event(fd: c_int) -> c_int {
    result(|thunk| inject(thunk, fd, MockFault::ThermalEvent).map(drop))
}

/// `hlthunk_err_eject_thermal_event`: ends thermal clock throttling.
#[unsafe(no_mangle)]
pub extern "C" fn hlthunk_err_eject_thermal_event(fd: c_int) -> c_int {
    result(|thunk| inject(thunk, fd, MockFault::ThermalEventEnd).map(drop))
}
