//! libSynapse.so: a shim with the functions that RDMA programs call, over libhl-thunk.so and
//! libscal.so.
//!
//! - *Only these functions*: those that libfabric, fabtests, NIXL and UCX call. perftest links the
//!   library without calling it. Graphs are neither compiled nor run.
//! - *One device* at a time, with identifier 0, and one pool: `synDeviceMalloc` allocates from a
//!   single mapping that starts at `globalHbmBaseAddress`, because fabtests exports relative to
//!   that address.
//! - *Streams are real*: a copy or a fill is a command buffer of LIN_DMA packets. All streams share
//!   one queue of the device.
//! - *Handles are numbers*: an invalid handle is rejected and not dereferenced.

#![allow(non_snake_case, reason = "the crate has the library's name")]
#![expect(unsafe_code, reason = "the C functions of libSynapse.so")]

mod device;
mod engine;
mod heap;
mod lookup;
mod scal;
mod status;

use std::ffi::{c_int, c_uchar, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gaudi_hlthunk_client::{HlThunk, guard};
use nix::errno::Errno;

use device::{Device, Direction};
pub use status::SynStatus;
use status::report;

/// `synStreamHandle`: a number, never dereferenced.
type Stream = *mut c_void;

/// The identifier of the device.
const DEVICE: u32 = 0;
/// UCX requests the acquired device without its identifier.
const ANY_DEVICE: u32 = u32::MAX;
/// `synDeviceGaudi2` of `synDeviceType`: the only chip that this library supports.
const DEVICE_TYPE: u32 = 4;

/// `synDeviceInfo`
#[repr(C)]
pub struct SynDeviceInfo {
    sram_base_address: u64,
    dram_base_address: u64,
    sram_size: u32,
    dram_size: u64,
    tpc_enabled_mask: u64,
    dram_enabled: u8,
    device_id: u32,
    fd: u32,
    device_type: u32,
}

/// `synDeviceInfoV2`
// guess: the last field is the one that the public header of 1.19 calls `reserved`; fabtests needs
// a newer header, which is not public.
#[repr(C)]
pub struct SynDeviceInfoV2 {
    first: SynDeviceInfo,
    device_index: u8,
    global_hbm_base_address: u64,
}

struct Library {
    thunk: Option<&'static HlThunk>,
    device: Option<Device>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library {
    thunk: None,
    device: None,
});

fn library() -> MutexGuard<'static, Library> {
    // A panic is a bug in this library. The device may be missing afterwards, which callers report.
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Library {
    fn thunk(&self) -> Result<&'static HlThunk, SynStatus> {
        self.thunk.ok_or(SynStatus::Uninitialized)
    }

    fn device(&mut self, id: u32) -> Result<&mut Device, SynStatus> {
        self.thunk()?;
        match (&mut self.device, id) {
            (Some(device), DEVICE) => Ok(device),
            (None, DEVICE) => Err(SynStatus::NoDeviceFound),
            _ => Err(SynStatus::InvalidArgument),
        }
    }
}

/// Runs the body of a C function and returns its status.
fn result(body: impl FnOnce() -> Result<(), SynStatus>) -> SynStatus {
    guard(SynStatus::Fail, || body().err().unwrap_or(SynStatus::Success))
}

/// Checks that an output argument is not NULL.
fn writable<T>(to: *mut T) -> Result<*mut T, SynStatus> {
    match to.is_null() {
        true => Err(SynStatus::InvalidArgument),
        false => Ok(to),
    }
}

/// `synInitialize`: loads libhl-thunk.so. A second call has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn synInitialize() -> SynStatus {
    result(|| {
        let thunk = HlThunk::get().map_err(|why| {
            report(why);
            SynStatus::Fail
        })?;
        library().thunk = Some(thunk);
        Ok(())
    })
}

/// `synDestroy`: waits for all work, and releases the device.
#[unsafe(no_mangle)]
pub extern "C" fn synDestroy() -> SynStatus {
    result(|| {
        let mut library = library();
        library.thunk()?;
        library.thunk = None;
        library.device.take().map_or(Ok(()), Device::release)
    })
}

/// `synDeviceGetCount`: returns the number of devices.
///
/// # Safety
/// - `count` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn synDeviceGetCount(count: *mut u32) -> SynStatus {
    result(|| {
        let thunk = library().thunk()?;
        let devices = thunk.device_count()?;
        // SAFETY: not NULL, so valid for writes.
        unsafe { writable(count)?.write(devices) };
        Ok(())
    })
}

/// `synDeviceAcquireByModuleId`: opens a device and allocates its memory.
///
/// # Safety
/// - `device_id` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn synDeviceAcquireByModuleId(device_id: *mut u32, module_id: u32) -> SynStatus {
    result(|| {
        let mut library = library();
        let thunk = library.thunk()?;
        let device_id = writable(device_id)?;
        if library.device.is_some() {
            return Err(SynStatus::DeviceAlreadyAcquired);
        }
        library.device = Some(Device::acquire(thunk, module_id)?);
        // SAFETY: not NULL, so valid for writes.
        unsafe { device_id.write(DEVICE) };
        Ok(())
    })
}

/// `synDeviceMalloc`: allocates device memory, at `wanted` unless it is 0.
///
/// # Safety
/// - `buffer` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn synDeviceMalloc(
    device_id: u32,
    size: u64,
    wanted: u64,
    _flags: u32,
    buffer: *mut u64,
) -> SynStatus {
    result(|| {
        let buffer = writable(buffer)?;
        let address = library().device(device_id)?.alloc(size, wanted)?;
        // SAFETY: not NULL, so valid for writes.
        unsafe { buffer.write(address) };
        Ok(())
    })
}

/// `synDeviceFree`: frees device memory after all work has completed.
#[unsafe(no_mangle)]
pub extern "C" fn synDeviceFree(device_id: u32, buffer: u64, _flags: u32) -> SynStatus {
    result(|| library().device(device_id)?.free(buffer))
}

/// `synHostMalloc`: allocates host memory that the device can access.
///
/// # Safety
/// - `buffer` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn synHostMalloc(
    device_id: u32,
    size: u64,
    _flags: u32,
    buffer: *mut *mut c_void,
) -> SynStatus {
    result(|| {
        let buffer = writable(buffer)?;
        let start = library().device(device_id)?.alloc_host(size)?;
        // SAFETY: not NULL, so valid for writes.
        unsafe { buffer.write(start.cast()) };
        Ok(())
    })
}

/// `synHostFree`: frees memory of `synHostMalloc` after all work has completed.
#[unsafe(no_mangle)]
pub extern "C" fn synHostFree(device_id: u32, buffer: *const c_void, _flags: u32) -> SynStatus {
    result(|| library().device(device_id)?.free_host(buffer.addr() as u64))
}

/// `synStreamCreateGeneric`: creates a stream.
///
/// # Safety
/// - `stream` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn synStreamCreateGeneric(
    stream: *mut Stream,
    device_id: u32,
    _flags: u32,
) -> SynStatus {
    result(|| {
        let stream = writable(stream)?;
        let number = library().device(device_id)?.create_stream();
        // SAFETY: not NULL, so valid for writes.
        unsafe { stream.write(std::ptr::without_provenance_mut(number + 1)) };
        Ok(())
    })
}

/// Converts a handle to a stream's number. NULL becomes a number that no stream has.
fn stream(handle: Stream) -> usize {
    handle.addr().wrapping_sub(1)
}

/// `synStreamSynchronize`: waits until all work of a stream has completed.
#[unsafe(no_mangle)]
pub extern "C" fn synStreamSynchronize(handle: Stream) -> SynStatus {
    result(|| {
        let (thunk, fd, seq) = {
            let mut library = library();
            let thunk = library.thunk()?;
            let device = library.device(DEVICE)?;
            match device.last_job(stream(handle))? {
                Some(seq) => (thunk, device.fd, seq),
                None => return Ok(()),
            }
        };
        // Release the lock, so that other threads can use the device during the wait.
        let ended = engine::wait(thunk, fd, seq);
        if let Ok(device) = library().device(DEVICE) {
            device.ended(seq);
        }
        ended
    })
}

/// `synMemsetD8Async`: fills device memory with a byte.
#[unsafe(no_mangle)]
pub extern "C" fn synMemsetD8Async(address: u64, value: c_uchar, count: usize, handle: Stream) -> SynStatus {
    result(|| {
        let mut library = library();
        library
            .device(DEVICE)?
            .fill(stream(handle), address, value, count as u64)
    })
}

/// `synMemCopyAsync`: copies between host and device memory.
///
/// # Safety
/// - The copy's host memory stays valid and is not accessed until the stream is synchronized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn synMemCopyAsync(
    handle: Stream,
    src: u64,
    size: u64,
    dst: u64,
    direction: c_int,
) -> SynStatus {
    result(|| {
        let direction = match direction {
            0 => Direction::HostToDram,
            1 => Direction::DramToHost,
            2 => Direction::DramToDram,
            _ => return Err(SynStatus::InvalidArgument),
        };
        let mut library = library();
        let device = library.device(DEVICE)?;
        // SAFETY: guaranteed by the caller.
        unsafe { device.copy(stream(handle), src, size, dst, direction) }
    })
}

/// Describes the acquired device.
fn describe(device_id: u32) -> Result<SynDeviceInfoV2, SynStatus> {
    let mut library = library();
    let id = if device_id == ANY_DEVICE {
        DEVICE
    } else {
        device_id
    };
    let device = library.device(id)?;
    let ip = &device.ip;
    let first = SynDeviceInfo {
        sram_base_address: ip.sram_base_address,
        dram_base_address: ip.dram_base_address,
        sram_size: ip.sram_size,
        dram_size: ip.dram_size,
        tpc_enabled_mask: ip.tpc_enabled_mask_ext,
        dram_enabled: ip.dram_enabled,
        device_id: DEVICE,
        // An open descriptor is not negative, so the cast preserves its value.
        fd: device.fd as u32,
        device_type: DEVICE_TYPE,
    };
    Ok(SynDeviceInfoV2 {
        first,
        // Module ids of a host are small.
        device_index: device.module as u8,
        global_hbm_base_address: device.heap.base(),
    })
}

/// `synDeviceGetInfo`: describes the acquired device, which the identifier -1 selects as well.
///
/// # Safety
/// - `info` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn synDeviceGetInfo(device_id: u32, info: *mut SynDeviceInfo) -> SynStatus {
    result(|| {
        let info = writable(info)?;
        let answer = describe(device_id)?.first;
        // SAFETY: not NULL, so valid for writes.
        unsafe { info.write(answer) };
        Ok(())
    })
}

/// `synDeviceGetInfoV2`: as `synDeviceGetInfo`, with the start address of the pool.
///
/// # Safety
/// - `info` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn synDeviceGetInfoV2(device_id: u32, info: *mut SynDeviceInfoV2) -> SynStatus {
    result(|| {
        let info = writable(info)?;
        let answer = describe(device_id)?;
        // SAFETY: not NULL, so valid for writes.
        unsafe { info.write(answer) };
        Ok(())
    })
}

/// `hcclLookupDMABuff`: exports device memory as a new dma-buf that starts at `address`. Returns 0
/// or a negative errno. On failure the descriptor is -1, because libfabric checks only the
/// descriptor.
///
/// # Safety
/// - `fd` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hcclLookupDMABuff(address: u64, size: u64, fd: *mut c_int) -> c_int {
    if fd.is_null() {
        return -(Errno::EINVAL as c_int);
    }
    let exported = guard(Err(Errno::EIO), || {
        let range = lookup::Range::new(address, size)?;
        let own = library().device.as_ref().and_then(|device| device.export(range));
        own.unwrap_or_else(|| {
            let thunk = HlThunk::get().map_err(|why| {
                report(why);
                Errno::ENODEV
            })?;
            lookup::export_of_process(thunk, range)
        })
    });
    // SAFETY: not NULL, so valid for writes.
    unsafe { fd.write(exported.unwrap_or(-1)) };
    exported.map_or_else(|errno| -(errno as c_int), |_| 0)
}
