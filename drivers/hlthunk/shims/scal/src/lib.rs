//! libscal.so: a shim with the functions that UCX's `gaudi_gdr` calls, over libhl-thunk.so.
//!
//! - *One pool*: `global_hbm`, a single mapping of the device's free memory except for one page, so
//!   that one dma-buf covers it. The last page is left for the program's own allocations.
//! - *A handle belongs to one open of the device*, identified by the file and the driver's open
//!   count. After the device is closed and reopened, the old handle is not found.
//! - *Handles are numbers*: an invalid handle is rejected and not dereferenced.
//! - *No configuration file is read*, and no firmware is loaded.

#![expect(unsafe_code, reason = "the C functions of libscal.so")]

mod pool;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use gaudi_hlthunk_client::guard;

use pool::{Failure, Pool};

const SUCCESS: c_int = 0;
const FAILURE: c_int = -1;
const INVALID_PARAM: c_int = -4;
const OUT_OF_MEMORY: c_int = -5;
const NOT_FOUND: c_int = -11;

/// The name of the pool.
const GLOBAL_HBM: &CStr = c"global_hbm";

/// `scal_handle_t` and `scal_pool_handle_t`: a number, never dereferenced.
type Handle = *mut c_void;

/// `scal_memory_pool_infoV2`
#[repr(C)]
pub struct ScalMemoryPoolInfoV2 {
    scal: Handle,
    name: *const c_char,
    idx: c_uint,
    device_base_address: u64,
    host_base_address: *mut c_void,
    core_base_address: u32,
    total_size: u64,
    free_size: u64,
    device_base_allocated_address: u64,
}

/// Runs the body of a C function and converts its result to the library's codes.
fn result(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    guard(FAILURE, || match body() {
        Ok(()) => SUCCESS,
        Err(Failure::Invalid) => INVALID_PARAM,
        Err(Failure::NotFound) => NOT_FOUND,
        Err(Failure::OutOfMemory) => OUT_OF_MEMORY,
        Err(Failure::Other(why)) => {
            eprintln!("libscal.so (shim of gaudi-hal): {why}");
            FAILURE
        }
    })
}

/// Writes an output argument.
///
/// # Safety
/// - `to` is NULL or valid for writes.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::Invalid);
    }
    // SAFETY: not NULL, so valid for writes.
    unsafe { to.write(value) };
    Ok(())
}

/// `scal_init`: allocates the pool from the device's memory. A second call for the same open of the
/// device returns the same handle, which must then be destroyed twice.
///
/// # Safety
/// - `scal` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn scal_init(
    fd: c_int,
    _config_file_path: *const c_char,
    scal: *mut Handle,
    _firmware: *mut c_void,
) -> c_int {
    result(|| {
        if scal.is_null() {
            return Err(Failure::Invalid);
        }
        let id = pool::create(fd)?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(scal, scal_handle(id)) }
    })
}

/// `scal_destroy`: drops a reference to the pool, which is freed with the last one.
#[unsafe(no_mangle)]
pub extern "C" fn scal_destroy(scal: Handle) {
    result(|| pool::destroy(scal_id(scal)?));
}

/// `scal_get_handle_from_fd`: returns the handle of an open device, for any descriptor of it.
///
/// # Safety
/// - `scal` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn scal_get_handle_from_fd(fd: c_int, scal: *mut Handle) -> c_int {
    // SAFETY: guaranteed by the caller.
    result(|| pool::find(fd).and_then(|id| unsafe { put(scal, scal_handle(id)) }))
}

/// `scal_get_pool_handle_by_name`: returns the pool `global_hbm`.
///
/// # Safety
/// - `pool_name` is NULL or a C string.
/// - `pool` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn scal_get_pool_handle_by_name(
    scal: Handle,
    pool_name: *const c_char,
    pool: *mut Handle,
) -> c_int {
    result(|| {
        let id = scal_id(scal)?;
        pool::get(id)?;
        if pool_name.is_null() {
            return Err(Failure::Invalid);
        }
        // SAFETY: a C string, guaranteed by the caller.
        if unsafe { CStr::from_ptr(pool_name) } != GLOBAL_HBM {
            return Err(Failure::NotFound);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { put(pool, pool_handle(id)) }
    })
}

/// `scal_pool_get_infoV2`: returns the address and size of the pool. The shim does not allocate
/// from the pool, so all of it is free.
///
/// # Safety
/// - `info` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn scal_pool_get_infoV2(pool: Handle, info: *mut ScalMemoryPoolInfoV2) -> c_int {
    result(|| {
        let id = pool_id(pool)?;
        let Pool { base, bytes, .. } = pool::get(id)?;
        let answer = ScalMemoryPoolInfoV2 {
            scal: scal_handle(id),
            name: GLOBAL_HBM.as_ptr(),
            idx: 0,
            device_base_address: base,
            host_base_address: std::ptr::null_mut(),
            core_base_address: 0,
            total_size: bytes,
            free_size: bytes,
            device_base_allocated_address: base,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { put(info, answer) }
    })
}

/// Even numbers from 2 are devices; the next odd number is the device's pool.
fn scal_handle(id: usize) -> Handle {
    std::ptr::without_provenance_mut(2 * id)
}

fn pool_handle(id: usize) -> Handle {
    std::ptr::without_provenance_mut(2 * id + 1)
}

fn scal_id(handle: Handle) -> Result<usize, Failure> {
    match handle.addr() {
        number if number % 2 == 0 => Ok(number / 2),
        _ => Err(Failure::Invalid),
    }
}

fn pool_id(handle: Handle) -> Result<usize, Failure> {
    match handle.addr() {
        number if number % 2 == 1 => Ok(number / 2),
        _ => Err(Failure::Invalid),
    }
}
