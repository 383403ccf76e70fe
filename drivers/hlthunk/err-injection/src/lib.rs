//! libhl-thunk-err_injection.so: errors on purpose, on a mock.
//!
//! - *The channel is one INFO operation* ([`InfoOp::MOCK_FAULT`]) through `hlthunk_get_info`, so it
//!   passes the layers around the mock as every call does. A driver does not know it.
//! - *On hardware every function returns `-ENOTSUP`*: the vendor's library injects through debugfs
//!   of the driver and through registers, which is not a client's part.
//! - *Functions whose error is fatal close the descriptor*, as the vendor's do: also when they
//!   fail, if the descriptor is a device's. They return once the device opens again.
//! - *A node of the mock stays open after such a function*, so that its counts of resets and events
//!   outlive the close.

#![expect(unsafe_code, reason = "the C functions of libhl-thunk-err_injection.so")]

mod endless;

use std::ffi::{CString, c_int};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gaudi_hlthunk_client::{HlThunk, guard};
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus, InfoOp, MockFault};
use nix::errno::Errno;

/// How long a device may take to open again. The vendor's library waits as long.
const RESET: Duration = Duration::from_secs(60);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// The control node that keeps the last mock that was reset.
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

/// Makes an error on a mock, and returns the number of the event that the mock counted.
fn inject(thunk: &HlThunk, fd: c_int, fault: MockFault) -> Result<u32, Errno> {
    match thunk.info_of(fd, InfoOp::MOCK_FAULT, fault as u32, &mut []) {
        // The driver's answer to an operation that it does not know.
        Err(Errno::EINVAL) => Err(Errno::ENOTSUP),
        answer => answer,
    }
}

/// Makes an error for which the driver resets the device, and closes the descriptor.
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

/// Opens the device's control node in place of the last that was kept.
fn keep(thunk: &HlThunk, bus_id: Option<&CString>) {
    let node = bus_id.and_then(|bus_id| thunk.open_control(bus_id).ok());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(old) = std::mem::replace(&mut *kept, node) {
        // A program that closed every descriptor closed this one, too.
        let _ = thunk.close(old);
    }
}

/// Waits until the device can be opened and is not in reset.
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

/// Injects an error, and stores the number of its event.
///
/// # Safety
/// - `event_num` can be written.
unsafe fn put_event(event_num: *mut c_int, event: u32) {
    // Events are numbered in 16 bits.
    // SAFETY: as the caller promises.
    unsafe { event_num.write(event as c_int) };
}

/// `hlthunk_err_inject_endless_command`: submits a command that never ends. Returns 0 when the
/// driver timed it out, which resets the device.
#[unsafe(no_mangle)]
pub extern "C" fn hlthunk_err_inject_endless_command(fd: c_int) -> c_int {
    result(|thunk| {
        inject(thunk, fd, MockFault::None)?;
        endless::submit(thunk, fd)
    })
}

/// `hlthunk_err_inject_non_fatal_event`: an event for which the driver does not reset the device.
///
/// # Safety
/// - `event_num` is NULL, or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hlthunk_err_inject_non_fatal_event(fd: c_int, event_num: *mut c_int) -> c_int {
    result(|thunk| {
        if event_num.is_null() {
            return Err(Errno::EINVAL);
        }
        let event = inject(thunk, fd, MockFault::NonFatalEvent)?;
        // SAFETY: it can be written, as it is not NULL.
        unsafe { put_event(event_num, event) };
        Ok(())
    })
}

/// `hlthunk_err_inject_fatal_event`: an event for which the driver resets the device. Closes `fd`.
///
/// # Safety
/// - `event_num` is NULL, or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hlthunk_err_inject_fatal_event(fd: c_int, event_num: *mut c_int) -> c_int {
    result(|thunk| {
        if event_num.is_null() {
            return Err(Errno::EINVAL);
        }
        let event = inject_fatal(thunk, fd, MockFault::FatalEvent)?;
        // SAFETY: it can be written, as it is not NULL.
        unsafe { put_event(event_num, event) };
        Ok(())
    })
}

/// `hlthunk_err_inject_loss_of_heartbeat`: the firmware stops to answer, and the driver resets the
/// device. Closes `fd`.
#[unsafe(no_mangle)]
pub extern "C" fn hlthunk_err_inject_loss_of_heartbeat(fd: c_int) -> c_int {
    result(|thunk| inject_fatal(thunk, fd, MockFault::LossOfHeartbeat).map(drop))
}

/// `hlthunk_err_inject_thermal_event`: the clocks are throttled because of the temperature.
#[unsafe(no_mangle)]
pub extern "C" fn hlthunk_err_inject_thermal_event(fd: c_int) -> c_int {
    result(|thunk| inject(thunk, fd, MockFault::ThermalEvent).map(drop))
}

/// `hlthunk_err_eject_thermal_event`: they no longer are.
#[unsafe(no_mangle)]
pub extern "C" fn hlthunk_err_eject_thermal_event(fd: c_int) -> c_int {
    result(|thunk| inject(thunk, fd, MockFault::ThermalEventEnd).map(drop))
}
