//! Calls libscal.so, which owns the pool of device memory. A program that requests `global_hbm`
//! from libscal (UCX) gets the pool that `synDeviceMalloc` allocates from.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::os::unix::Library;

type Handle = *mut c_void;

/// `scal_memory_pool_infoV2`
#[repr(C)]
struct PoolInfo {
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

/// The functions of libscal that this library calls.
pub(crate) struct Scal {
    init: unsafe extern "C" fn(c_int, *const c_char, *mut Handle, *mut c_void) -> c_int,
    destroy: unsafe extern "C" fn(Handle),
    pool: unsafe extern "C" fn(Handle, *const c_char, *mut Handle) -> c_int,
    info: unsafe extern "C" fn(Handle, *mut PoolInfo) -> c_int,
}

/// The pool of a device. Dropping it frees the pool in libscal.
pub(crate) struct Pool {
    scal: &'static Scal,
    handle: usize,
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: libscal returned the handle, and validates it.
        unsafe { (self.scal.destroy)(std::ptr::with_exposed_provenance_mut(self.handle)) };
    }
}

impl Scal {
    /// # Errors
    /// The loader's message.
    pub(crate) fn get() -> Result<&'static Self, String> {
        static FOUND: OnceLock<Scal> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Ok(found);
        }
        let load = || -> Result<Self, libloading::Error> {
            // SAFETY: the library's initializers have no preconditions.
            let library = unsafe { Library::new("libscal.so") }?;
            // SAFETY: the types match the prototypes in scal.h.
            let init = unsafe { library.get(b"scal_init\0") };
            // SAFETY: as above.
            let destroy = unsafe { library.get(b"scal_destroy\0") };
            // SAFETY: as above.
            let pool = unsafe { library.get(b"scal_get_pool_handle_by_name\0") };
            // SAFETY: as above.
            let info = unsafe { library.get(b"scal_pool_get_infoV2\0") };
            let found = Self {
                init: *init?,
                destroy: *destroy?,
                pool: *pool?,
                info: *info?,
            };
            // The functions are called until the process exits, so the library must stay loaded.
            let _ = library.into_raw();
            Ok(found)
        };
        load()
            .map(|found| FOUND.get_or_init(|| found))
            .map_err(|error| error.to_string())
    }

    /// Creates the pool of an open device.
    ///
    /// # Errors
    /// The first result of libscal other than `SCAL_SUCCESS`.
    pub(crate) fn pool(&'static self, fd: c_int) -> Result<Pool, c_int> {
        const NAME: &CStr = c"global_hbm";
        let none = std::ptr::null_mut();
        let mut scal: Handle = none;
        let succeeded = |result: c_int| if result == 0 { Ok(()) } else { Err(result) };
        // SAFETY: an empty path selects libscal's default, and the handle outlives the call.
        succeeded(unsafe { (self.init)(fd, c"".as_ptr(), &raw mut scal, none) })?;
        let mut pool = Pool {
            scal: self,
            handle: scal.expose_provenance(),
            base: 0,
            bytes: 0,
        };
        let mut handle: Handle = none;
        // SAFETY: the name is a C string, and the handle outlives the call.
        succeeded(unsafe { (self.pool)(scal, NAME.as_ptr(), &raw mut handle) })?;
        let mut info = PoolInfo {
            scal: none,
            name: std::ptr::null(),
            idx: 0,
            device_base_address: 0,
            host_base_address: none,
            core_base_address: 0,
            total_size: 0,
            free_size: 0,
            device_base_allocated_address: 0,
        };
        // SAFETY: the struct outlives the call.
        succeeded(unsafe { (self.info)(handle, &raw mut info) })?;
        // The mapping starts at the second address, and exports are relative to it. This
        // workspace's libscal reports the same value for both.
        (pool.base, pool.bytes) = (info.device_base_address, info.total_size);
        Ok(pool)
    }
}
