//! The vendor's profiler: `libhl_shim.so` can replace functions.
//!
//! - The library is looked up once, at the first open, unless `HABANA_SHIM_DISABLE` is 1.
//! - The profiler receives a table of functions that bypass it, and returns its own table.
//! - The library is never unloaded, because another thread may be executing it.
//!   [`hlthunk_profiler_destroy`] and the exit of the process call its `ShimFinish`.

#![expect(unsafe_code, reason = "dlopen(3), dlsym(3) and functions of another library")]

use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use gaudi_sys::cancel::Uncancelled;
use gaudi_sys::{Errno, lock};
use nix::libc;

use crate::command_buffer::*;
use crate::debug::*;
use crate::discovery::Candidate;
use crate::gaudi3::hlthunk_get_time_sync_per_die_info;
use crate::info::*;
use crate::memory::*;
use crate::open::*;
use crate::shim_table::{HlthunkFunctionsPointers, hook, install};
use crate::signal::*;
use crate::submit::*;
use crate::types::HlthunkDeviceName;
use crate::wait::*;

/// `SHIM_API_HLTHUNK` of `enum shim_api_type`.
const API: c_int = 1;

type GetFunctions =
    unsafe extern "C" fn(c_int, *mut HlthunkFunctionsPointers) -> *mut HlthunkFunctionsPointers;
type Finish = unsafe extern "C" fn(c_int);

/// `ShimFinish` of the installed profiler.
static FINISH: Mutex<Option<Finish>> = Mutex::new(None);
/// Whether the profiler was looked up.
static SEARCHED: AtomicBool = AtomicBool::new(false);

/// Loads the profiler on the first call.
pub(crate) fn load() {
    if SEARCHED.load(Ordering::Acquire) {
        return;
    }
    let _uncancelled = Uncancelled::begin();
    let mut finish = lock(&FINISH);
    if SEARCHED.load(Ordering::Acquire) {
        return;
    }
    if std::env::var_os("HABANA_SHIM_DISABLE").is_none_or(|value| value != "1") {
        *finish = find();
    }
    SEARCHED.store(true, Ordering::Release);
}

/// Loads the profiler and installs its table. Returns its `ShimFinish`.
fn find() -> Option<Finish> {
    // SAFETY: a C string; the administrator or user trusts the constructors of an installed
    // library.
    let library = unsafe { libc::dlopen(c"libhl_shim.so".as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the handle is open, and the name is a C string.
    let get = unsafe { libc::dlsym(library, c"ShimGetFunctions".as_ptr()) };
    if get.is_null() {
        // SAFETY: no function of the library was called.
        unsafe { libc::dlclose(library) };
        return None;
    }
    // SAFETY: the handle is open, and the name is a C string.
    let finish = unsafe { libc::dlsym(library, c"ShimFinish".as_ptr()) };
    // SAFETY: the profiler interface defines this function type; null becomes `None`.
    let finish = unsafe { std::mem::transmute::<*mut c_void, Option<Finish>>(finish) };
    // SAFETY: the profiler interface defines this function type, and the pointer is not null.
    let get = unsafe { std::mem::transmute::<*mut c_void, GetFunctions>(get) };
    // Leak the table, because a profiler may keep a pointer to it and write to it.
    let table = Box::leak(Box::new(ORIGINALS));
    // SAFETY: by the profiler interface, it returns null, this table, or a table that it owns.
    let replaced = unsafe { get(API, table) };
    // SAFETY: by the profiler interface, the table has all slots of the 2023 header and stays
    // loaded.
    unsafe { install(replaced) };
    static AT_EXIT: std::sync::Once = std::sync::Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: `at_exit` takes no arguments and stays loaded. If this fails, the profile lacks
        // its end.
        let _ = unsafe { libc::atexit(at_exit) };
    });
    finish
}

extern "C" fn at_exit() {
    destroy();
}

fn destroy() {
    let finish = lock(&FINISH).take();
    // SAFETY: null removes the table.
    unsafe { install(null_mut()) };
    SEARCHED.store(false, Ordering::Release);
    if let Some(finish) = finish {
        // SAFETY: the profiler interface allows one call per ShimGetFunctions.
        unsafe { finish(API) };
    }
}

/// Opens a device by its address, through the profiler.
pub(crate) fn open(device: &Candidate, directly: impl FnOnce(&Candidate) -> c_int) -> c_int {
    let address = device
        .address()
        .and_then(|address| CString::new(address.to_string()).ok());
    match (hook!(fp_hlthunk_open), address) {
        // SAFETY: the profiler's function has the slot's type; the address is a C string.
        (Some(open), Some(address)) => unsafe { open(HlthunkDeviceName::DONT_CARE, address.as_ptr()) },
        _ => directly(device),
    }
}

/// All functions, bypassing the profiler. `fp_DEPRECATED1` is null, as in the vendor's table.
const ORIGINALS: HlthunkFunctionsPointers = HlthunkFunctionsPointers {
    fp_hlthunk_command_submission: Some(command_submission_original),
    fp_hlthunk_open: Some(open_original),
    fp_hlthunk_close: Some(close_original),
    fp_hlthunk_profiler_start: Some(start_original),
    fp_hlthunk_profiler_stop: Some(stop_original),
    fp_hlthunk_profiler_get_trace: Some(get_trace_original),
    fp_hlthunk_device_memory_alloc: Some(hlthunk_device_memory_alloc),
    fp_hlthunk_device_memory_free: Some(hlthunk_device_memory_free),
    fp_hlthunk_device_memory_map: Some(hlthunk_device_memory_map),
    fp_hlthunk_host_memory_map: Some(host_memory_map_original),
    fp_hlthunk_memory_unmap: Some(memory_unmap_original),
    fp_hlthunk_debug: Some(hlthunk_debug),
    fp_hlthunk_request_command_buffer: Some(hlthunk_request_command_buffer),
    fp_hlthunk_destroy_command_buffer: Some(hlthunk_destroy_command_buffer),
    fp_hlthunk_wait_for_cs: Some(hlthunk_wait_for_cs),
    fp_hlthunk_get_device_name_from_fd: Some(hlthunk_get_device_name_from_fd),
    fp_hlthunk_get_pci_bus_id_from_fd: Some(hlthunk_get_pci_bus_id_from_fd),
    fp_hlthunk_get_device_index_from_pci_bus_id: Some(hlthunk_get_device_index_from_pci_bus_id),
    fp_hlthunk_malloc: Some(hlthunk_malloc),
    fp_hlthunk_free: Some(hlthunk_free),
    fp_hlthunk_signal_submission: Some(signal_original),
    fp_hlthunk_wait_for_signal: Some(wait_for_signal_original),
    fp_hlthunk_get_time_sync_info: Some(hlthunk_get_time_sync_info),
    fp_hlthunk_get_cs_counters_info: Some(hlthunk_get_cs_counters_info),
    fp_hlthunk_profiler_destroy: Some(destroy_original),
    fp_hlthunk_request_mapped_command_buffer: Some(hlthunk_request_mapped_command_buffer),
    fp_hlthunk_wait_for_collective_sig: Some(wait_for_collective_original),
    fp_hlthunk_deprecated_func1: Some(hlthunk_deprecated_func1),
    fp_hlthunk_get_cb_usage_count: Some(hlthunk_get_cb_usage_count),
    fp_hlthunk_staged_command_submission: Some(staged_original),
    fp_hlthunk_get_hw_block: Some(get_hw_block_original),
    fp_hlthunk_wait_for_interrupt: Some(hlthunk_wait_for_interrupt),
    fp_hlthunk_device_memory_export_dmabuf_fd: Some(hlthunk_device_memory_export_dmabuf_fd),
    fp_hlthunk_command_submission_timeout: Some(command_submission_timeout_original),
    fp_hlthunk_signal_submission_timeout: Some(signal_timeout_original),
    fp_hlthunk_wait_for_signal_timeout: Some(wait_for_signal_timeout_original),
    fp_hlthunk_wait_for_collective_sig_timeout: Some(wait_for_collective_timeout_original),
    fp_hlthunk_staged_cs_timeout: Some(staged_timeout_original),
    fp_hlthunk_reserve_signals: Some(reserve_original),
    fp_hlthunk_unreserve_signals: Some(unreserve_original),
    fp_hlthunk_staged_cs_encaps_signals: Some(staged_encaps_original),
    fp_hlthunk_wait_for_reserved_encaps_signals: Some(wait_for_reserved_original),
    fp_hlthunk_wait_for_collective_reserved_encap_sig: Some(wait_for_collective_reserved_original),
    fp_hlthunk_host_memory_map_flags: Some(host_memory_map_flags_original),
    fp_get_dram_replaced_rows_info: Some(replaced_rows_original),
    fp_get_dram_pending_rows_info: Some(pending_rows_original),
    fp_DEPRECATED1: None,
    fp_hlthunk_wait_for_interrupt_by_handle: Some(hlthunk_wait_for_interrupt_by_handle),
    fp_hlthunk_get_mapped_cb_device_va_by_handle: Some(mapped_cb_device_va_original),
    fp_hlthunk_get_pll_frequency: Some(hlthunk_get_pll_frequency),
    fp_hlthunk_deprecated_func2: Some(hlthunk_deprecated_func2),
    fp_hlthunk_deprecated_func3: Some(hlthunk_deprecated_func3),
    fp_hlthunk_device_mapped_memory_export_dmabuf_fd: Some(hlthunk_device_mapped_memory_export_dmabuf_fd),
    fp_hlthunk_get_time_sync_per_die_info: Some(hlthunk_get_time_sync_per_die_info),
    fp_hlthunk_get_hw_ip_info: Some(hlthunk_get_hw_ip_info),
};

exports! {
    /// Starts profiling. Only a profiler implements it.
    ///
    /// # Errors
    /// -1 without a profiler.
    fn hlthunk_profiler_start(_fd: c_int) -> c_int as minus_one via fp_hlthunk_profiler_start of start_original {
        Err(Errno::EOPNOTSUPP)
    }

    /// Stops profiling. Only a profiler implements it.
    ///
    /// # Errors
    /// -1 without a profiler.
    fn hlthunk_profiler_stop(_fd: c_int) -> c_int as minus_one via fp_hlthunk_profiler_stop of stop_original {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns a profile. Only a profiler implements it.
    ///
    /// # Errors
    /// -1 without a profiler.
    fn hlthunk_profiler_get_trace(
        _fd: c_int,
        _buffer: *mut c_void,
        _size: *mut u64,
        _num_entries: *mut u64,
    ) -> c_int as minus_one via fp_hlthunk_profiler_get_trace of get_trace_original {
        Err(Errno::EOPNOTSUPP)
    }
}

exports! {
    uncancelled:

    /// Unregisters the profiler. The next open looks it up again.
    fn hlthunk_profiler_destroy() as nothing via fp_hlthunk_profiler_destroy of destroy_original {
        destroy();
        Ok(())
    }
}
