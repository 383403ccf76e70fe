//! The table of functions that a profiler can replace (`struct hlthunk_functions_pointers`).

#![expect(unsafe_code, reason = "the table belongs to a profiler, behind a C pointer")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use gaudi_uapi::debug::HlDebugArgs;
use gaudi_uapi::info::HlInfoCsCounters;

use crate::types::*;

macro_rules! table {
    ($($slot:ident: fn($($arg:ident: $type:ty),*) $(-> $value:ty)?,)*) => {
        /// `struct hlthunk_functions_pointers` of the Gaudi3 header. The 2023 header lacks the last
        /// two slots, so they are never read from a profiler's table.
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        #[allow(missing_docs, non_snake_case, reason = "the fields' names are C's")]
        pub struct HlthunkFunctionsPointers {
            $(pub $slot: Option<unsafe extern "C" fn($($arg: $type),*) $(-> $value)?>,)*
        }

        /// The names of the slots, in order.
        #[cfg(test)]
        pub(crate) const SLOTS: &[&str] = &[$(stringify!($slot)),*];
    };
}

table! {
    fp_hlthunk_command_submission: fn(fd: c_int, input: *mut HlthunkCsIn, out: *mut HlthunkCsOut) -> c_int,
    fp_hlthunk_open: fn(device_name: HlthunkDeviceName, busid: *const c_char) -> c_int,
    fp_hlthunk_close: fn(fd: c_int) -> c_int,
    fp_hlthunk_profiler_start: fn(fd: c_int) -> c_int,
    fp_hlthunk_profiler_stop: fn(fd: c_int) -> c_int,
    fp_hlthunk_profiler_get_trace: fn(fd: c_int, buffer: *mut c_void, size: *mut u64, num_entries: *mut u64) -> c_int,
    fp_hlthunk_device_memory_alloc: fn(fd: c_int, size: u64, page_size: u64, contiguous: bool, shared: bool) -> u64,
    fp_hlthunk_device_memory_free: fn(fd: c_int, handle: u64) -> c_int,
    fp_hlthunk_device_memory_map: fn(fd: c_int, handle: u64, hint_addr: u64) -> u64,
    fp_hlthunk_host_memory_map: fn(fd: c_int, host_virt_addr: *mut c_void, hint_addr: u64, host_size: u64) -> u64,
    fp_hlthunk_memory_unmap: fn(fd: c_int, device_virt_addr: u64) -> c_int,
    fp_hlthunk_debug: fn(fd: c_int, debug: *mut HlDebugArgs) -> c_int,
    fp_hlthunk_request_command_buffer: fn(fd: c_int, cb_size: u32, cb_handle: *mut u64) -> c_int,
    fp_hlthunk_destroy_command_buffer: fn(fd: c_int, cb_handle: u64) -> c_int,
    fp_hlthunk_wait_for_cs: fn(fd: c_int, seq: u64, timeout_us: u64, status: *mut u32) -> c_int,
    fp_hlthunk_get_device_name_from_fd: fn(fd: c_int) -> HlthunkDeviceName,
    fp_hlthunk_get_pci_bus_id_from_fd: fn(fd: c_int, pci_bus_id: *mut c_char, len: c_int) -> c_int,
    fp_hlthunk_get_device_index_from_pci_bus_id: fn(busid: *const c_char) -> c_int,
    fp_hlthunk_malloc: fn(size: usize) -> *mut c_void,
    fp_hlthunk_free: fn(pt: *mut c_void),
    fp_hlthunk_signal_submission: fn(fd: c_int, input: *mut HlthunkSignalIn, out: *mut HlthunkSignalOut) -> c_int,
    fp_hlthunk_wait_for_signal: fn(fd: c_int, input: *mut HlthunkWaitIn, out: *mut HlthunkWaitOut) -> c_int,
    fp_hlthunk_get_time_sync_info: fn(fd: c_int, info: *mut HlthunkTimeSyncInfo) -> c_int,
    fp_hlthunk_get_cs_counters_info: fn(fd: c_int, info: *mut HlInfoCsCounters) -> c_int,
    fp_hlthunk_profiler_destroy: fn(),
    fp_hlthunk_request_mapped_command_buffer: fn(fd: c_int, cb_size: u32, cb_handle: *mut u64) -> c_int,
    fp_hlthunk_wait_for_collective_sig: fn(fd: c_int, input: *mut HlthunkWaitIn, out: *mut HlthunkWaitOut) -> c_int,
    fp_hlthunk_deprecated_func1: fn(fd: c_int, seq: u64, timeout_us: u64, status: *mut u32, timestamp: *mut u64) -> c_int,
    fp_hlthunk_get_cb_usage_count: fn(fd: c_int, cb_handle: u64, usage_cnt: *mut u32) -> c_int,
    fp_hlthunk_staged_command_submission: fn(fd: c_int, sequence: u64, input: *mut HlthunkCsIn, out: *mut HlthunkCsOut) -> c_int,
    fp_hlthunk_get_hw_block: fn(fd: c_int, block_address: u64, block_size: *mut u32, handle: *mut u64) -> c_int,
    fp_hlthunk_wait_for_interrupt: fn(fd: c_int, addr: *mut c_void, target_value: u64, interrupt_id: u32, timeout_us: u64, status: *mut u32) -> c_int,
    fp_hlthunk_device_memory_export_dmabuf_fd: fn(fd: c_int, handle: u64, size: u64, flags: u32) -> c_int,
    fp_hlthunk_command_submission_timeout: fn(fd: c_int, input: *mut HlthunkCsIn, out: *mut HlthunkCsOut, timeout: u32) -> c_int,
    fp_hlthunk_signal_submission_timeout: fn(fd: c_int, input: *mut HlthunkSignalIn, out: *mut HlthunkSignalOut, timeout: u32) -> c_int,
    fp_hlthunk_wait_for_signal_timeout: fn(fd: c_int, input: *mut HlthunkWaitIn, out: *mut HlthunkWaitOut, timeout: u32) -> c_int,
    fp_hlthunk_wait_for_collective_sig_timeout: fn(fd: c_int, input: *mut HlthunkWaitIn, out: *mut HlthunkWaitOut, timeout: u32) -> c_int,
    fp_hlthunk_staged_cs_timeout: fn(fd: c_int, sequence: u64, input: *mut HlthunkCsIn, out: *mut HlthunkCsOut, timeout: u32) -> c_int,
    fp_hlthunk_reserve_signals: fn(fd: c_int, input: *mut HlthunkSigResIn, out: *mut HlthunkSigResOut) -> c_int,
    fp_hlthunk_unreserve_signals: fn(fd: c_int, handle: *mut ReserveSigHandle, status: *mut u32) -> c_int,
    fp_hlthunk_staged_cs_encaps_signals: fn(fd: c_int, sequence: u64, input: *mut HlthunkCsIn, out: *mut HlthunkCsOut) -> c_int,
    fp_hlthunk_wait_for_reserved_encaps_signals: fn(fd: c_int, input: *mut HlthunkWaitIn, out: *mut HlthunkWaitOut) -> c_int,
    fp_hlthunk_wait_for_collective_reserved_encap_sig: fn(fd: c_int, input: *mut HlthunkWaitIn, out: *mut HlthunkWaitOut) -> c_int,
    fp_hlthunk_host_memory_map_flags: fn(fd: c_int, host_virt_addr: *mut c_void, hint_addr: u64, host_size: u64, flags: u32) -> u64,
    fp_get_dram_replaced_rows_info: fn(fd: c_int, info: *mut HlthunkDramReplacedRowsInfo) -> c_int,
    fp_get_dram_pending_rows_info: fn(fd: c_int, out: *mut u32) -> c_int,
    fp_DEPRECATED1: fn(fd: c_int, addr: *mut c_void, target_value: u64, engine_id: u32, timeout_us: u64, status: *mut u32, timestamp: *mut u64) -> c_int,
    fp_hlthunk_wait_for_interrupt_by_handle: fn(fd: c_int, cq_counters_handle: u64, cq_counters_offset: u64, target_value: u64, interrupt_id: u32, timeout_us: u64, status: *mut u32) -> c_int,
    fp_hlthunk_get_mapped_cb_device_va_by_handle: fn(fd: c_int, cb_handle: u64, device_va: *mut u64) -> c_int,
    fp_hlthunk_get_pll_frequency: fn(fd: c_int, index: u32, frequency: *mut HlthunkPllFrequencyInfo) -> c_int,
    fp_hlthunk_deprecated_func2: fn(fd: c_int, interrupt_id: u32, cq_counters_handle: u64, cq_counters_offset: u64, target_value: u64, timestamp_handle: u64, timestamp_offset: u64) -> c_int,
    fp_hlthunk_deprecated_func3: fn(fd: c_int, num_elements: u32, handle: *mut u64) -> c_int,
    fp_hlthunk_device_mapped_memory_export_dmabuf_fd: fn(fd: c_int, addr: u64, size: u64, offset: u64, flags: u32) -> c_int,
    fp_hlthunk_get_time_sync_per_die_info: fn(fd: c_int, die_index: u32, info: *mut HlthunkTimeSyncInfo) -> c_int,
    fp_hlthunk_get_hw_ip_info: fn(fd: c_int, hw_ip: *mut HlthunkHwIpInfo) -> c_int,
}

/// The table that a profiler returned; null without a profiler.
static TABLE: AtomicPtr<HlthunkFunctionsPointers> = AtomicPtr::new(null_mut());

/// Returns the profiler's table.
#[inline]
pub(crate) fn installed() -> Option<*const HlthunkFunctionsPointers> {
    let table = TABLE.load(Ordering::Acquire);
    (!table.is_null()).then_some(table.cast_const())
}

/// Returns a slot of the profiler's table; `None` without a profiler, or if the slot is null.
macro_rules! hook {
    ($slot:ident) => {
        // SAFETY: a profiler returned the table, and its library is never unloaded. The 2023 header
        // has the slot.
        $crate::shim_table::installed().and_then(|table| unsafe { (*table).$slot })
    };
}
pub(crate) use hook;

/// Sets the profiler's table; null removes it.
///
/// # Safety
/// - `table` is null, or has the slots of the 2023 header and lives until the process exits.
pub(crate) unsafe fn install(table: *mut HlthunkFunctionsPointers) {
    TABLE.store(table, Ordering::Release);
}
