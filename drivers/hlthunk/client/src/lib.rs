//! Calls libhl-thunk.so, which is loaded at run time, for the libraries built on it.
//!
//! - *No link-time dependency*: uses the functions that are already in the process (a program can
//!   link the static library), otherwise those of `libhl-thunk.so`. A second copy of the library
//!   would not know the descriptors of the first.
//! - *Public functions only*, with the prototypes of the vendor's `hlthunk.h`.
//! - *One error convention*: the C functions use three, which become `Result<_, Errno>` here.

#![expect(unsafe_code, reason = "calls C functions that are looked up at run time")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::{HlInfoArgs, InfoAnswer, InfoOp};
use libloading::os::unix::Library;
use nix::errno::Errno;

const FILE: &str = "libhl-thunk.so";
/// `HLTHUNK_DEVICE_DONT_CARE` of `enum hlthunk_device_name`.
const DONT_CARE: c_int = 4;
/// Length of a PCI address as a string in bytes, including the NUL.
const BUS_ID: usize = 13;

/// `struct hlthunk_cs_in`
#[repr(C)]
struct CsIn {
    chunks_restore: *mut c_void,
    chunks_execute: *mut c_void,
    num_chunks_restore: u32,
    num_chunks_execute: u32,
    flags: u32,
}

/// `struct hlthunk_cs_out`
#[repr(C)]
#[derive(Default)]
struct CsOut {
    seq: u64,
    status: u32,
    sob_count_before_submission: u16,
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*) -> $answer:ty;)*) => {
        /// The functions of libhl-thunk that this crate calls.
        pub struct HlThunk {
            $($name: unsafe extern "C" fn($($argument),*) -> $answer,)*
        }

        impl HlThunk {
            fn of(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type matches the function's prototype in hlthunk.h.
                        let symbol = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *symbol?
                    },)*
                })
            }
        }
    };
}

functions! {
    open = "hlthunk_open"(c_int, *const c_char) -> c_int;
    open_by_module_id = "hlthunk_open_by_module_id"(u32) -> c_int;
    open_control_by_bus_id = "hlthunk_open_control_by_bus_id"(*const c_char) -> c_int;
    close = "hlthunk_close"(c_int) -> c_int;
    device_count = "hlthunk_get_device_count"(c_int) -> c_int;
    bus_id = "hlthunk_get_pci_bus_id_from_fd"(c_int, *mut c_char, c_int) -> c_int;
    info = "hlthunk_get_info"(c_int, *mut HlInfoArgs) -> c_int;
    alloc = "hlthunk_device_memory_alloc"(c_int, u64, u64, bool, bool) -> u64;
    free = "hlthunk_device_memory_free"(c_int, u64) -> c_int;
    map = "hlthunk_device_memory_map"(c_int, u64, u64) -> u64;
    map_host = "hlthunk_host_memory_map"(c_int, *mut c_void, u64, u64) -> u64;
    unmap = "hlthunk_memory_unmap"(c_int, u64) -> c_int;
    export = "hlthunk_device_mapped_memory_export_dmabuf_fd"(c_int, u64, u64, u64, u32) -> c_int;
    submit = "hlthunk_command_submission"(c_int, *mut CsIn, *mut CsOut) -> c_int;
    submit_timeout = "hlthunk_command_submission_timeout"(c_int, *mut CsIn, *mut CsOut, u32) -> c_int;
    wait_for_cs = "hlthunk_wait_for_cs"(c_int, u64, u64, *mut u32) -> c_int;
}

/// Converts a result that is 0 or a negative errno.
fn done(result: c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_raw(result.saturating_neg())),
    }
}

/// Converts the result of an open function: a descriptor, -1 with errno, or a negative errno.
fn opened(result: c_int) -> Result<c_int, Errno> {
    match result {
        0.. => Ok(result),
        -1 => Err(Errno::last()),
        _ => Err(Errno::from_raw(result.saturating_neg())),
    }
}

/// Converts a 64-bit result, where 0 is a failure with errno.
fn nonzero(result: u64) -> Result<u64, Errno> {
    match result {
        0 => Err(Errno::last()),
        _ => Ok(result),
    }
}

/// The result of a wait, as `hlthunk_wait_for_cs` reports it (`HL_WAIT_CS_STATUS_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsEnd {
    /// The submission completed.
    Completed,
    /// The submission has not completed.
    Busy,
    /// The submission timed out, or a reset aborted it.
    Failed,
}

impl HlThunk {
    /// Returns the functions. Looks them up on each call until the first success.
    ///
    /// # Errors
    /// The loader's message if libhl-thunk is neither in the process nor loadable.
    pub fn get() -> Result<&'static Self, String> {
        static FOUND: OnceLock<HlThunk> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Ok(found);
        }
        let found = Self::of(&Library::this()).or_else(|_| {
            // SAFETY: libhl-thunk's initializers have no preconditions.
            let library = unsafe { Library::new(FILE) }?;
            let found = Self::of(&library)?;
            // The functions are called until the process exits, so the library must stay loaded.
            let _ = library.into_raw();
            Ok(found)
        });
        found
            .map(|found| FOUND.get_or_init(|| found))
            .map_err(|error: libloading::Error| error.to_string())
    }

    /// Opens the device with a PCI address, or the first device that can be opened.
    ///
    /// # Errors
    /// As `hlthunk_open`.
    pub fn open(&self, bus_id: Option<&CStr>) -> Result<c_int, Errno> {
        let bus_id = bus_id.map_or(std::ptr::null(), CStr::as_ptr);
        Errno::clear();
        // SAFETY: the argument is NULL or a C string.
        opened(unsafe { (self.open)(DONT_CARE, bus_id) })
    }

    /// Opens the device with a module id.
    ///
    /// # Errors
    /// As `hlthunk_open_by_module_id`.
    pub fn open_by_module_id(&self, module: u32) -> Result<c_int, Errno> {
        Errno::clear();
        // SAFETY: the function has no preconditions.
        opened(unsafe { (self.open_by_module_id)(module) })
    }

    /// Opens the control node of the device with a PCI address.
    ///
    /// # Errors
    /// As `hlthunk_open_control_by_bus_id`.
    pub fn open_control(&self, bus_id: &CStr) -> Result<c_int, Errno> {
        Errno::clear();
        // SAFETY: the argument is a C string.
        opened(unsafe { (self.open_control_by_bus_id)(bus_id.as_ptr()) })
    }

    /// Closes a descriptor.
    ///
    /// # Errors
    /// `EBADF` if it is not open.
    pub fn close(&self, fd: c_int) -> Result<(), Errno> {
        Errno::clear();
        // SAFETY: the function has no preconditions.
        match unsafe { (self.close)(fd) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }

    /// Returns the number of devices.
    ///
    /// # Errors
    /// As `hlthunk_get_device_count`.
    pub fn device_count(&self) -> Result<u32, Errno> {
        // SAFETY: the function has no preconditions.
        let count = unsafe { (self.device_count)(DONT_CARE) };
        u32::try_from(count).map_err(|_| Errno::from_raw(count.saturating_neg()))
    }

    /// Returns the PCI address of an open device.
    ///
    /// # Errors
    /// `ENODEV` if the descriptor is not a device node, or the device's address is unknown.
    pub fn bus_id(&self, fd: c_int) -> Result<CString, Errno> {
        let mut text = [0_u8; BUS_ID];
        // SAFETY: the buffer has the length that is passed.
        let result = unsafe { (self.bus_id)(fd, text.as_mut_ptr().cast(), BUS_ID as c_int) };
        // This function does not follow a convention: it returns -1 with or without an errno.
        match CStr::from_bytes_until_nul(&text) {
            Ok(text) if result == 0 => Ok(text.to_owned()),
            _ => Err(Errno::ENODEV),
        }
    }

    /// Returns the answer to an INFO operation.
    ///
    /// # Errors
    /// As `hlthunk_get_info`.
    pub fn info<T: InfoAnswer>(&self, fd: c_int) -> Result<T, Errno> {
        let mut answer = T::new_zeroed();
        self.info_of(fd, T::OP, 0, answer.as_mut_bytes())?;
        Ok(answer)
    }

    /// Performs an INFO operation. Returns the argument word that the driver wrote.
    ///
    /// # Errors
    /// As `hlthunk_get_info`.
    pub fn info_of(&self, fd: c_int, op: InfoOp, word: u32, answer: &mut [u8]) -> Result<u32, Errno> {
        // All lengths here are sizes of structs.
        let (pointer, size) = (answer.as_mut_ptr() as u64, answer.len() as u32);
        let mut args = HlInfoArgs::new(op, pointer, size, word);
        // SAFETY: the driver writes at most `size` bytes to `answer`.
        done(unsafe { (self.info)(fd, &raw mut args) })?;
        Ok(args.arg)
    }

    /// Allocates device memory, physically contiguous if `contiguous`.
    ///
    /// # Errors
    /// As `hlthunk_device_memory_alloc`.
    pub fn alloc(&self, fd: c_int, bytes: u64, contiguous: bool) -> Result<u64, Errno> {
        // SAFETY: the function has no preconditions.
        nonzero(unsafe { (self.alloc)(fd, bytes, 0, contiguous, false) })
    }

    /// Frees device memory.
    ///
    /// # Errors
    /// As `hlthunk_device_memory_free`.
    pub fn free(&self, fd: c_int, handle: u64) -> Result<(), Errno> {
        // SAFETY: the function has no preconditions.
        done(unsafe { (self.free)(fd, handle) })
    }

    /// Maps device memory and returns its device address.
    ///
    /// # Errors
    /// As `hlthunk_device_memory_map`.
    pub fn map(&self, fd: c_int, handle: u64) -> Result<u64, Errno> {
        // SAFETY: the function has no preconditions.
        nonzero(unsafe { (self.map)(fd, handle, 0) })
    }

    /// Maps host memory and returns its device address.
    ///
    /// # Errors
    /// As `hlthunk_host_memory_map`: `EFAULT` if the range is not mapped memory.
    ///
    /// # Safety
    /// - The device reads and writes the range until it is unmapped. No reference to the range may
    ///   exist while commands that use it run.
    pub unsafe fn map_host(&self, fd: c_int, range: Range<u64>) -> Result<u64, Errno> {
        let (address, bytes) = (range.start as *mut c_void, range.end - range.start);
        // SAFETY: the driver checks the range; the caller is responsible for accesses to it.
        nonzero(unsafe { (self.map_host)(fd, address, 0, bytes) })
    }

    /// Unmaps the memory at a device address.
    ///
    /// # Errors
    /// As `hlthunk_memory_unmap`.
    pub fn unmap(&self, fd: c_int, address: u64) -> Result<(), Errno> {
        // SAFETY: the function has no preconditions.
        done(unsafe { (self.unmap)(fd, address) })
    }

    /// Exports part of the mapping that starts at `base` as a dma-buf.
    ///
    /// # Errors
    /// As `hlthunk_device_mapped_memory_export_dmabuf_fd`.
    pub fn export(&self, fd: c_int, base: u64, size: u64, offset: u64) -> Result<c_int, Errno> {
        // The library accepts only these flags.
        let flags = (nix::libc::O_RDWR | nix::libc::O_CLOEXEC) as u32;
        // SAFETY: the function has no preconditions.
        let result = unsafe { (self.export)(fd, base, size, offset, flags) };
        match result {
            0.. => Ok(result),
            _ => Err(Errno::from_raw(result.saturating_neg())),
        }
    }

    /// Submits a job with a timeout of `seconds`, or the driver's default. Returns its sequence
    /// number.
    ///
    /// # Errors
    /// As `hlthunk_command_submission`.
    pub fn submit(&self, fd: c_int, mut chunk: HlCsChunk, seconds: Option<u32>) -> Result<u64, Errno> {
        let mut input = CsIn {
            chunks_restore: std::ptr::null_mut(),
            chunks_execute: (&raw mut chunk).cast(),
            num_chunks_restore: 0,
            num_chunks_execute: 1,
            flags: 0,
        };
        let mut output = CsOut::default();
        let (input, out) = (&raw mut input, &raw mut output);
        done(match seconds {
            // SAFETY: both structs outlive the call, and the array has one chunk.
            Some(seconds) => unsafe { (self.submit_timeout)(fd, input, out, seconds) },
            // SAFETY: as above.
            None => unsafe { (self.submit)(fd, input, out) },
        })?;
        match output.status {
            0 => Ok(output.seq),
            _ => Err(Errno::EIO),
        }
    }

    /// Waits until a submission ends.
    ///
    /// # Errors
    /// As `hlthunk_wait_for_cs`, except that a failed submission is not an error.
    pub fn wait(&self, fd: c_int, seq: u64, timeout_us: u64) -> Result<CsEnd, Errno> {
        let mut status = u32::MAX;
        // SAFETY: `status` outlives the call.
        let result = unsafe { (self.wait_for_cs)(fd, seq, timeout_us, &raw mut status) };
        // After a failure the status may be unwritten.
        match (done(result), status) {
            (Ok(()), 0) => Ok(CsEnd::Completed),
            (Ok(()), 1) => Ok(CsEnd::Busy),
            (Ok(()), _) | (Err(Errno::ETIMEDOUT | Errno::EIO), _) => Ok(CsEnd::Failed),
            (Err(errno), _) => Err(errno),
        }
    }
}

/// Runs the body of a C function. If it panics, returns `failed`, so that the panic does not unwind
/// into C.
pub fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}
