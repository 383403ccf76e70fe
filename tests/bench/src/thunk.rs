//! The C functions of this project's libhl-thunk.so, beside the vendor's library.
//!
//! - *Both are loaded with dlopen(3)* and called through the address of the function, as a C
//!   program calls them. Both call this program's `ioctl` (`stub.rs`).
//! - *Counts are of the functions linked into the program*, so that the program's allocator counts.

#![expect(unsafe_code, reason = "functions of libraries that are loaded at run time")]

use std::ffi::{c_int, c_ulong, c_void};
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use gaudi_uapi::Ioctl;

use crate::harness::{Made, Row, Work};
use crate::peer::Library;
use crate::rows::above_a_call;
use crate::stub;

/// A function that both libraries have.
pub struct Call {
    /// Its name in hlthunk.h.
    pub name: &'static str,
    request: c_ulong,
    linked: *const c_void,
    repeated: fn(*const c_void) -> Work<'static>,
    find: fn(&Library) -> Result<NonNull<c_void>, String>,
}

// SAFETY: the pointer is the address of a function.
unsafe impl Sync for Call {}

impl Call {
    /// Calls the function that is linked into this program.
    pub fn linked(&self) -> Work<'static> {
        (self.repeated)(self.linked)
    }

    fn of(&self, library: &Library) -> Result<Work<'static>, String> {
        let function = (self.find)(library)?;
        Ok((self.repeated)(function.as_ptr()))
    }
}

/// A result that is looked at, as by a program.
trait Answer {
    fn is_failure(&self) -> bool;
}

impl Answer for c_int {
    fn is_failure(&self) -> bool {
        *self < 0
    }
}

impl Answer for u64 {
    fn is_failure(&self) -> bool {
        *self == 0
    }
}

/// A descriptor that the caller closes.
#[repr(transparent)]
struct Descriptor(c_int);

impl Answer for Descriptor {
    fn is_failure(&self) -> bool {
        // SAFETY: the function opened it, and nothing else knows its number.
        self.0 < 0 || unsafe { nix::libc::close(self.0) } != 0
    }
}

/// What `in` and `out` of any function point to. The stub follows no address in it.
static ROOM: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

fn input() -> *mut c_void {
    ROOM.as_ptr().cast_mut().cast()
}

fn output() -> *mut c_void {
    ROOM[128..].as_ptr().cast_mut().cast()
}

macro_rules! calls {
    ($($ioctl:ident $function:ident($($argument:expr => $type:ty),*) -> $answer:ty;)*) => {
        /// The functions that are compared.
        pub const CALLS: &[Call] = &[$(Call {
            name: stringify!($function),
            request: stub::request(Ioctl::$ioctl),
            linked: hl_thunk::$function as *const c_void,
            find: |library| {
                let name = concat!(stringify!($function), "\0").as_bytes();
                library.function(std::ffi::CStr::from_bytes_with_nul(name).map_err(|error| error.to_string())?)
            },
            repeated: |address| {
                type Function = unsafe extern "C" fn(c_int, $($type),*) -> $answer;
                // SAFETY: hlthunk.h declares it so.
                let function = unsafe { std::mem::transmute::<*const c_void, Function>(address) };
                Box::new(move |count| {
                    let function = black_box(function);
                    for _ in 0..count {
                        // SAFETY: pointers are to memory that is larger than any struct of the
                        // header, and that this thread alone uses.
                        let answer = unsafe { function(0, $(black_box($argument)),*) };
                        if answer.is_failure() {
                            failed(stringify!($function));
                        }
                    }
                })
            },
        },)*];
    };
}

#[cold]
fn failed(function: &str) -> ! {
    panic!("the stub answers every request, but {function} fails");
}

calls! {
    Cs hlthunk_command_submission(input() => *mut c_void, output() => *mut c_void) -> c_int;
    Cs hlthunk_signal_submission(input() => *mut c_void, output() => *mut c_void) -> c_int;
    WaitCs hlthunk_wait_for_cs(7 => u64, 1_000_000 => u64, output() => *mut c_void) -> c_int;
    WaitCs hlthunk_wait_for_interrupt(
        input() => *mut c_void, 1 => u64, 0 => u32, 1_000_000 => u64, output() => *mut c_void
    ) -> c_int;
    Memory hlthunk_device_memory_alloc(4096 => u64, 0 => u64, true => bool, false => bool) -> u64;
    Memory hlthunk_device_memory_map(7 => u64, 0 => u64) -> u64;
    Memory hlthunk_host_memory_map(input() => *mut c_void, 0 => u64, 4096 => u64) -> u64;
    Memory hlthunk_memory_unmap(7 => u64) -> c_int;
    Memory hlthunk_device_memory_free(7 => u64) -> c_int;
    Memory hlthunk_device_mapped_memory_export_dmabuf_fd(
        7 => u64, 4096 => u64, 0 => u64, 0o2_000_002 => u32
    ) -> c_int;
    Cb hlthunk_request_command_buffer(4096 => u32, output() => *mut c_void) -> c_int;
    Cb hlthunk_destroy_command_buffer(7 => u64) -> c_int;
    Info hlthunk_get_info(input() => *mut c_void) -> c_int;
    Info hlthunk_get_hw_ip_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_device_status_info() -> c_int;
    Info hlthunk_get_clk_rate(output() => *mut c_void, input() => *mut c_void) -> c_int;
    Info hlthunk_notifier_create() -> Descriptor;
}

/// The rows, one for each function.
///
/// # Errors
/// This project's library is missing.
pub fn rows() -> Made<Vec<Row<'static>>> {
    let (ours, peer) = (Library::ours()?, Library::peer());
    let row = |call: &Call| {
        let theirs = peer
            .as_ref()
            .map_err(String::clone)
            .and_then(|peer| call.of(peer));
        Ok(above_a_call(
            call.name,
            call.of(&ours)?,
            "the vendor's function",
            theirs,
            call.request,
        ))
    };
    CALLS.iter().map(row).collect()
}
