//! libscal.so as this library calls it: it owns the pool of device memory, so that programs which
//! ask libscal for `global_hbm` (UCX) get the pool from which `synDeviceMalloc` allocates.

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

/// The pool of a device. libscal frees it when this is dropped.
pub(crate) struct Pool {
    scal: &'static Scal,
    handle: usize,
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the handle is one of libscal, which checks it.
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
            // SAFETY: the types are those of the prototypes in scal.h.
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
            // The functions are called until the process ends, so the library stays loaded.
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
    /// The first result of libscal that is not `SCAL_SUCCESS`.
    pub(crate) fn pool(&'static self, fd: c_int) -> Result<Pool, c_int> {
        const NAME: &CStr = c"global_hbm";
        let none = std::ptr::null_mut();
        let mut scal: Handle = none;
        let succeeded = |result: c_int| if result == 0 { Ok(()) } else { Err(result) };
        // SAFETY: an empty path is libscal's default, and the handle lives during the call.
        succeeded(unsafe { (self.init)(fd, c"".as_ptr(), &raw mut scal, none) })?;
        let mut pool = Pool {
            scal: self,
            handle: scal.expose_provenance(),
            base: 0,
            bytes: 0,
        };
        let mut handle: Handle = none;
        // SAFETY: the name is a C string, and the handle lives during the call.
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
        // SAFETY: the struct lives during the call.
        succeeded(unsafe { (self.info)(handle, &raw mut info) })?;
        // The mapping begins at the second address, and an export is relative to it. In this
        // workspace's libscal both are the same.
        (pool.base, pool.bytes) = (info.device_base_address, info.total_size);
        Ok(pool)
    }
}
