//! Libraries with hl-thunk's functions, loaded at run time: this project's, and the vendor's where
//! `PEER_HLTHUNK` names it.

#![expect(unsafe_code, reason = "functions of a library that is loaded at run time")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr::NonNull;

use gaudi_uapi::cs::HlCsChunk;

/// The variable that names the library.
pub const VARIABLE: &str = "PEER_HLTHUNK";

/// `struct hlthunk_cs_in` of hlthunk.h.
#[repr(C)]
struct CsIn {
    chunks_restore: *const c_void,
    chunks_execute: *const c_void,
    num_chunks_restore: u32,
    num_chunks_execute: u32,
    flags: u32,
}

/// `struct hlthunk_cs_out` of hlthunk.h.
#[repr(C)]
struct CsOut {
    seq: u64,
    status: u32,
}

type Submit = unsafe extern "C" fn(c_int, *mut CsIn, *mut CsOut) -> c_int;
type Wait = unsafe extern "C" fn(c_int, u64, u64, *mut u32) -> c_int;

/// The library's two functions of the hot path.
#[derive(Debug, Clone, Copy)]
pub struct HlThunk {
    submit: Submit,
    wait: Wait,
}

/// A library with hl-thunk's functions, loaded for as long as the program runs.
#[derive(Debug, Clone)]
pub struct Library {
    handle: NonNull<c_void>,
    path: PathBuf,
}

impl Library {
    /// Loads the peer.
    ///
    /// # Errors
    /// What would provide it.
    pub fn peer() -> Result<Self, String> {
        let path = std::env::var_os(VARIABLE)
            .ok_or_else(|| format!("{VARIABLE}=path/to/libhl-thunk.so names none"))?;
        Self::load(path.into())
    }

    /// Loads this project's library, which cargo built with this program.
    ///
    /// # Errors
    /// Where it is missing.
    pub fn ours() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        // Beside this program may lie what an older build installed from; tests are in `deps`.
        let built = program.with_file_name("deps").join("libhl_thunk.so");
        match built.is_file() {
            true => Self::load(built),
            false => Self::load(program.with_file_name("libhl_thunk.so")),
        }
    }

    fn load(path: PathBuf) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| format!("{} has a zero in it", path.display()))?;
        // SAFETY: a string that ends in zero; what the library does when it is loaded is the user's
        // choice.
        let handle = unsafe { nix::libc::dlopen(name.as_ptr(), nix::libc::RTLD_NOW) };
        let handle = NonNull::new(handle).ok_or_else(|| format!("{} cannot be loaded", path.display()))?;
        Ok(Self { handle, path })
    }

    /// Returns the address of a function.
    ///
    /// # Errors
    /// The function that the library lacks.
    pub fn function(&self, symbol: &CStr) -> Result<NonNull<c_void>, String> {
        // SAFETY: the handle is of a library that is never closed.
        let address = unsafe { nix::libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) };
        NonNull::new(address).ok_or_else(|| format!("{} has no {symbol:?}", self.path.display()))
    }
}

impl HlThunk {
    /// Loads the peer.
    ///
    /// # Errors
    /// What would provide it.
    pub fn load() -> Result<Self, String> {
        let library = Library::peer()?;
        let (submit, wait) = (
            library.function(c"hlthunk_command_submission")?,
            library.function(c"hlthunk_wait_for_cs")?,
        );
        Ok(Self {
            // SAFETY: hlthunk.h declares it so.
            submit: unsafe { std::mem::transmute::<*mut c_void, Submit>(submit.as_ptr()) },
            // SAFETY: as above.
            wait: unsafe { std::mem::transmute::<*mut c_void, Wait>(wait.as_ptr()) },
        })
    }

    /// Submits one chunk (`hlthunk_command_submission`). Returns the sequence number.
    ///
    /// # Errors
    /// What the call returned.
    #[inline]
    pub fn submit(&self, fd: c_int, chunk: &HlCsChunk) -> Result<u64, c_int> {
        let mut request = CsIn {
            chunks_restore: std::ptr::null(),
            chunks_execute: std::ptr::from_ref(chunk).cast(),
            num_chunks_restore: 0,
            num_chunks_execute: 1,
            flags: 0,
        };
        let mut answer = CsOut { seq: 0, status: 0 };
        // SAFETY: both structs are as the header has them; the stub does not follow the chunks'
        // address.
        match unsafe { (self.submit)(fd, &raw mut request, &raw mut answer) } {
            0 => Ok(answer.seq),
            other => Err(other),
        }
    }

    /// Waits for a submission (`hlthunk_wait_for_cs`). Returns the status.
    ///
    /// # Errors
    /// What the call returned.
    #[inline]
    pub fn wait(&self, fd: c_int, seq: u64, timeout_us: u64) -> Result<u32, c_int> {
        let mut status = 0;
        // SAFETY: the status is written and nothing else.
        match unsafe { (self.wait)(fd, seq, timeout_us, &raw mut status) } {
            0 => Ok(status),
            other => Err(other),
        }
    }
}
