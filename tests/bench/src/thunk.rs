//! The C functions of this project's libhl-thunk.so, beside the vendor's library.
//!
//! - *Both are loaded with dlopen(3)* and called through the address of the function, as a C
//!   program calls them. Both call this program's `ioctl` (`stub.rs`).
//! - *Counts are of the functions linked into the program*, so that the program's allocator counts.
//! - *Every function that is one ioctl* has a row. Those that make several system calls have none:
//!   opens, `get_hw_asic_status`, `get_page_fault_info`, the receipt of events, and debugfs.

#![expect(unsafe_code, reason = "functions of libraries that are loaded at run time")]

use std::ffi::{c_int, c_ulong, c_void};
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use gaudi_uapi::Ioctl;
use gaudi_uapi::cs::{CsFlags, EngineCommand};
use hl_thunk::{HlthunkCsIn, HlthunkWaitForSignalData, HlthunkWaitIn, HlthunkWaitMultiCsIn};

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

impl Answer for bool {
    /// Both values are answers.
    fn is_failure(&self) -> bool {
        false
    }
}

impl Answer for u32 {
    /// A device id: the stub leaves the structs of INFO at 0.
    fn is_failure(&self) -> bool {
        false
    }
}

/// What `in` and `out` of most functions point to: each half is larger than any struct of the
/// header. The stub follows no address in it.
static ROOM: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

fn input() -> *mut c_void {
    ROOM.as_ptr().cast_mut().cast()
}

fn output() -> *mut c_void {
    ROOM[2048..].as_ptr().cast_mut().cast()
}

/// An argument that the libraries only read.
struct Constant<T>(T);

// SAFETY: nothing writes to it, or to what it points to.
unsafe impl<T> Sync for Constant<T> {}

impl<T> Constant<T> {
    const fn pointer(&'static self) -> *mut c_void {
        (&raw const self.0).cast_mut().cast()
    }
}

/// `in` of a stage of a submission.
static STAGE: Constant<HlthunkCsIn> = Constant(HlthunkCsIn {
    chunks_restore: std::ptr::null_mut(),
    chunks_execute: std::ptr::null_mut(),
    num_chunks_restore: 0,
    num_chunks_execute: 1,
    flags: CsFlags::STAGED_SUBMISSION.0,
});

/// The one signal of [`WAIT`].
static SIGNAL: Constant<HlthunkWaitForSignalData> = Constant(HlthunkWaitForSignalData {
    signal_seq_arr: std::ptr::null_mut(),
    signal_seq_nr: 1,
    queue_index: 0,
    flags: 0,
    collective_engine_id: 0,
    encaps_signal_offset: 0,
});

/// `in` of a wait for a signal.
static WAIT: Constant<HlthunkWaitIn> = Constant(HlthunkWaitIn {
    chunks_restore: std::ptr::null_mut(),
    num_chunks_restore: 0,
    hlthunk_wait_for_signal: SIGNAL.pointer().cast(),
    num_wait_for_signal: 1,
    flags: 0,
});

/// `in` of a wait for several submissions.
static SUBMISSIONS: Constant<HlthunkWaitMultiCsIn> = Constant(HlthunkWaitMultiCsIn {
    seq: std::ptr::null_mut(),
    timeout_us: 1_000_000,
    seq_len: 1,
});

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
    Cs hlthunk_command_submission_timeout(
        input() => *mut c_void, output() => *mut c_void, 5 => u32
    ) -> c_int;
    Cs hlthunk_staged_command_submission(
        7 => u64, STAGE.pointer() => *mut c_void, output() => *mut c_void
    ) -> c_int;
    Cs hlthunk_staged_command_submission_timeout(
        7 => u64, STAGE.pointer() => *mut c_void, output() => *mut c_void, 5 => u32
    ) -> c_int;
    Cs hlthunk_staged_command_submission_encaps_signals(
        7 => u64, STAGE.pointer() => *mut c_void, output() => *mut c_void
    ) -> c_int;
    Cs hlthunk_signal_submission(input() => *mut c_void, output() => *mut c_void) -> c_int;
    Cs hlthunk_signal_submission_timeout(input() => *mut c_void, output() => *mut c_void, 5 => u32) -> c_int;
    Cs hlthunk_wait_for_signal(WAIT.pointer() => *mut c_void, output() => *mut c_void) -> c_int;
    Cs hlthunk_wait_for_signal_timeout(
        WAIT.pointer() => *mut c_void, output() => *mut c_void, 5 => u32
    ) -> c_int;
    Cs hlthunk_wait_for_collective_signal(WAIT.pointer() => *mut c_void, output() => *mut c_void) -> c_int;
    Cs hlthunk_wait_for_collective_signal_timeout(
        WAIT.pointer() => *mut c_void, output() => *mut c_void, 5 => u32
    ) -> c_int;
    Cs hlthunk_wait_for_reserved_encaps_signals(
        WAIT.pointer() => *mut c_void, output() => *mut c_void
    ) -> c_int;
    Cs hlthunk_wait_for_reserved_encaps_collective_signals(
        WAIT.pointer() => *mut c_void, output() => *mut c_void
    ) -> c_int;
    Cs hlthunk_reserve_encaps_signals(input() => *mut c_void, output() => *mut c_void) -> c_int;
    Cs hlthunk_unreserve_encaps_signals(input() => *mut c_void, output() => *mut c_void) -> c_int;
    Cs hlthunk_cs_flush_pci_hbw_writes() -> c_int;
    Cs hlthunk_engine_cores_set_mode(
        input() => *mut c_void, 1 => u32, EngineCommand::CORE_RUN.0 => u32
    ) -> c_int;
    Cs hlthunk_engines_command(
        input() => *mut c_void, 1 => u32, EngineCommand::CORE_RUN.0 => u32
    ) -> c_int;
    WaitCs hlthunk_wait_for_cs(7 => u64, 1_000_000 => u64, output() => *mut c_void) -> c_int;
    WaitCs hlthunk_wait_for_cs_with_timestamp(
        7 => u64, 1_000_000 => u64, output() => *mut c_void, input() => *mut c_void
    ) -> c_int;
    WaitCs hlthunk_wait_for_multi_cs(SUBMISSIONS.pointer() => *mut c_void, output() => *mut c_void) -> c_int;
    WaitCs hlthunk_wait_for_multi_cs_with_timestamp(
        SUBMISSIONS.pointer() => *mut c_void, output() => *mut c_void, input() => *mut c_void
    ) -> c_int;
    WaitCs hlthunk_wait_for_interrupt(
        input() => *mut c_void, 1 => u64, 0 => u32, 1_000_000 => u64, output() => *mut c_void
    ) -> c_int;
    WaitCs hlthunk_wait_for_interrupt_with_timestamp(
        input() => *mut c_void, 1 => u64, 0 => u32, 1_000_000 => u64, output() => *mut c_void, input() => *mut c_void
    ) -> c_int;
    WaitCs hlthunk_wait_for_interrupt_by_handle(
        7 => u64, 0 => u64, 1 => u64, 0 => u32, 1_000_000 => u64, output() => *mut c_void
    ) -> c_int;
    WaitCs hlthunk_wait_for_interrupt_by_handle_with_timestamp(
        7 => u64, 0 => u64, 1 => u64, 0 => u32, 1_000_000 => u64, output() => *mut c_void, input() => *mut c_void
    ) -> c_int;
    WaitCs hlthunk_register_timestamp_interrupt(
        0 => u32, 7 => u64, 0 => u64, 1 => u64, 7 => u64, 0 => u64
    ) -> c_int;
    Memory hlthunk_device_memory_alloc(4096 => u64, 0 => u64, true => bool, false => bool) -> u64;
    Memory hlthunk_device_memory_map(7 => u64, 0 => u64) -> u64;
    Memory hlthunk_host_memory_map(input() => *mut c_void, 0 => u64, 4096 => u64) -> u64;
    Memory hlthunk_host_memory_map_flags(input() => *mut c_void, 0 => u64, 4096 => u64, 0 => u32) -> u64;
    Memory hlthunk_memory_unmap(7 => u64) -> c_int;
    Memory hlthunk_device_memory_free(7 => u64) -> c_int;
    Memory hlthunk_device_memory_export_dmabuf_fd(7 => u64, 4096 => u64, 0 => u32) -> c_int;
    Memory hlthunk_device_mapped_memory_export_dmabuf_fd(
        7 => u64, 4096 => u64, 0 => u64, 0o2_000_002 => u32
    ) -> c_int;
    Memory hlthunk_get_hw_block(7 => u64, input() => *mut c_void, output() => *mut c_void) -> c_int;
    Memory hlthunk_allocate_timestamp_elements(1 => u32, output() => *mut c_void) -> c_int;
    Cb hlthunk_request_command_buffer(4096 => u32, output() => *mut c_void) -> c_int;
    Cb hlthunk_request_mapped_command_buffer(4096 => u32, output() => *mut c_void) -> c_int;
    Cb hlthunk_get_mapped_cb_device_va_by_handle(7 => u64, output() => *mut c_void) -> c_int;
    Cb hlthunk_get_cb_usage_count(7 => u64, output() => *mut c_void) -> c_int;
    Cb hlthunk_destroy_command_buffer(7 => u64) -> c_int;
    Debug hlthunk_debug(input() => *mut c_void) -> c_int;
    Info hlthunk_get_info(input() => *mut c_void) -> c_int;
    Info hlthunk_get_device_id_from_fd() -> u32;
    Info hlthunk_get_device_name_from_fd() -> u32;
    Info hlthunk_get_device_status_info() -> c_int;
    Info hlthunk_is_device_idle() -> bool;
    Info hlthunk_get_hw_ip_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_open_stats(output() => *mut c_void) -> c_int;
    Info hlthunk_get_dram_usage(output() => *mut c_void) -> c_int;
    Info hlthunk_get_busy_engines_mask(output() => *mut c_void) -> c_int;
    Info hlthunk_get_reset_count_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_time_sync_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_dev_memalloc_page_orders(output() => *mut c_void) -> c_int;
    Info hlthunk_get_cs_counters_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_pci_counters_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_clk_throttle_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_total_energy_consumption_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_power_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_dram_replaced_rows_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_dram_pending_rows_info(output() => *mut c_void) -> c_int;
    Info hlthunk_get_clk_rate(output() => *mut c_void, input() => *mut c_void) -> c_int;
    Info hlthunk_get_engine_status(output() => *mut c_void, 1024 => u32, input() => *mut c_void) -> c_int;
    Info hlthunk_get_pll_frequency(0 => u32, output() => *mut c_void) -> c_int;
    Info hlthunk_get_device_utilization(100 => u32, output() => *mut c_void) -> c_int;
    Info hlthunk_get_hw_events_arr(false => bool, 1024 => u32, output() => *mut c_void) -> c_int;
    Info hlthunk_get_sync_manager_info(0 => c_int, output() => *mut c_void) -> c_int;
    Info hlthunk_get_sec_attest_info(7 => u32, output() => *mut c_void) -> c_int;
    Info hlthunk_get_event_record(1 => u32, output() => *mut c_void) -> c_int;
    Info hlthunk_fw_send_generic_request(output() => *mut c_void, 1024 => u32, 0 => u32) -> c_int;
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
