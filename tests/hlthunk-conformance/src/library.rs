//! [`Library`]: `libhl-thunk.so`, loaded with dlopen(3), and the prototypes of its functions.
//!
//! Prototypes are those of the vendor's public header (hlthunk.h). An output parameter is
//! `Option<&mut T>`, where `None` is NULL. Pointers to arrays are raw, like all pointers of
//! `Table`.

#![expect(unsafe_code, reason = "assigns types to the symbols of a C library")]

use std::env;
use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;

use gaudi_uapi::debug::HlDebugArgs;
use gaudi_uapi::info::{HlInfoArgs, HlInfoCsCounters};
use nix::errno::Errno;

use crate::types::*;

/// The environment variable with the path of the library to test.
pub const VARIABLE: &str = "GAUDI_HLTHUNK_LIBRARY";
/// The SONAME of the library.
pub const SONAME: &str = "libhl-thunk.so";

/// The C type of an argument.
pub(crate) trait Argument {
    type C;

    fn into_c(self) -> Self::C;
}

impl<T> Argument for Option<&mut T> {
    type C = *mut T;

    fn into_c(self) -> *mut T {
        self.map_or(ptr::null_mut(), ptr::from_mut)
    }
}

impl<T> Argument for Option<&T> {
    type C = *const T;

    fn into_c(self) -> *const T {
        self.map_or(ptr::null(), ptr::from_ref)
    }
}

macro_rules! as_they_are {
    ($($type:ty),*) => {$(
        impl Argument for $type {
            type C = Self;

            fn into_c(self) -> Self {
                self
            }
        }
    )*};
}

as_they_are!(bool, c_int, u32, u64, usize);
as_they_are!(*const c_char, *mut c_char, *mut c_void, *const u32, *mut u32);

/// Declares the functions by their symbol names without the prefix `hlthunk_`.
macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions as C declares them. While the process has a virtual node, a pointer may be
        /// dangling, except for functions that must dereference it: `hlthunk_free`.
        #[derive(Clone, Copy)]
        pub(crate) struct Table {
            $($name: extern "C" fn($(<$type as Argument>::C),*) $(-> $result)?,)*
        }

        #[expect(clippy::too_many_arguments, reason = "the C functions, as hlthunk.h documents them")]
        impl Table {
            $(
                /// Clears errno first, so that errno is set by this call.
                pub(crate) fn $name(&self, $($arg: <$type as Argument>::C),*) $(-> $result)? {
                    Errno::clear();
                    (self.$name)($($arg),*)
                }
            )*
        }

        /// Every symbol that the library must export.
        pub const SYMBOLS: &[&str] = &[$(concat!("hlthunk_", stringify!($name))),*];

        impl Table {
            fn load(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        let symbol = concat!("hlthunk_", stringify!($name), "\0");
                        // SAFETY: the prototype is the public header's; every type here has its
                        // layout and its ABI.
                        unsafe { *library.get(symbol.as_bytes())? }
                    },)*
                })
            }
        }

        #[expect(clippy::too_many_arguments, reason = "the C functions, as hlthunk.h documents them")]
        impl Library {
            $(
                /// Clears errno first, so that errno is set by this call.
                pub fn $name(&self, $($arg: $type),*) $(-> $result)? {
                    self.table.$name($($arg.into_c()),*)
                }
            )*
        }
    };
}

/// The loaded library. It is never unloaded, because it may have threads.
pub struct Library {
    table: Table,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(SONAME)
    }
}

impl Library {
    /// Loads the library of [`VARIABLE`]. Otherwise loads the one that cargo built next to this
    /// program, or the one that the dynamic linker finds by name.
    ///
    /// # Errors
    /// The dynamic linker's message: the library or one of its functions is missing.
    pub fn load() -> Result<&'static Self, String> {
        let path = path();
        // SAFETY: the library's initializers have no preconditions, and it is never unloaded.
        let library = unsafe { libloading::Library::new(&path) };
        let library = library.map_err(|error| format!("{}: {error}", path.display()))?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        let table = Table::load(library).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Box::leak(Box::new(Self { table })))
    }

    /// Returns the functions with raw pointers.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }
}

/// Returns the path that [`Library::load`] opens.
pub fn path() -> PathBuf {
    if let Some(path) = env::var_os(VARIABLE) {
        return path.into();
    }
    let own = env::current_exe().unwrap_or_default();
    let beside = own.with_file_name("libhl_thunk.so");
    if beside.exists() { beside } else { SONAME.into() }
}

functions! {
    // Open, close, discovery.
    open(device_name: u32, busid: *const c_char) -> c_int;
    open_by_module_id(module_id: u32) -> c_int;
    open_control(dev_id: c_int, busid: *const c_char) -> c_int;
    open_control_by_name(device_name: u32, busid: *const c_char) -> c_int;
    open_control_by_module_id(module_id: u32) -> c_int;
    open_control_by_bus_id(busid: *const c_char) -> c_int;
    close(fd: c_int) -> c_int;
    get_device_count(device_name: u32) -> c_int;
    get_device_id_from_fd(fd: c_int) -> u32;
    get_device_name_from_fd(fd: c_int) -> u32;
    get_pci_bus_id_from_fd(fd: c_int, pci_bus_id: *mut c_char, len: c_int) -> c_int;
    get_device_index_from_pci_bus_id(busid: *const c_char) -> c_int;
    get_version() -> *mut c_char;
    malloc(size: usize) -> *mut c_void;
    free(pt: *mut c_void);

    // Info.
    get_info(fd: c_int, info: Option<&mut HlInfoArgs>) -> c_int;
    get_hw_ip_info(fd: c_int, hw_ip: Option<&mut HwIpInfo>) -> c_int;
    get_open_stats(fd: c_int, open_stats: Option<&mut OpenStatsInfo>) -> c_int;
    get_hw_asic_status(fd: c_int, status: Option<&mut HwAsicStatus>) -> c_int;
    get_dram_usage(fd: c_int, dram_usage: Option<&mut DramUsageInfo>) -> c_int;
    get_device_status_info(fd: c_int) -> c_int;
    is_device_idle(fd: c_int) -> bool;
    get_busy_engines_mask(fd: c_int, info: Option<&mut EnginesIdleInfo>) -> c_int;
    get_engine_status(fd: c_int, buffer: *mut c_char, size: u32, actual: Option<&mut c_int>) -> c_int;
    get_pll_frequency(fd: c_int, index: u32, frequency: Option<&mut PllFrequencyInfo>) -> c_int;
    get_device_utilization(fd: c_int, period_ms: u32, rate: Option<&mut u32>) -> c_int;
    get_hw_events_arr(fd: c_int, aggregate: bool, size: u32, events: *mut u32) -> c_int;
    get_clk_rate(fd: c_int, current: Option<&mut u32>, maximum: Option<&mut u32>) -> c_int;
    get_reset_count_info(fd: c_int, info: Option<&mut ResetCountInfo>) -> c_int;
    get_time_sync_info(fd: c_int, info: Option<&mut TimeSyncInfo>) -> c_int;
    get_sync_manager_info(fd: c_int, dcore: c_int, info: Option<&mut SyncManagerInfo>) -> c_int;
    get_dev_memalloc_page_orders(fd: c_int, bitmask: Option<&mut u64>) -> c_int;
    get_cs_counters_info(fd: c_int, info: Option<&mut HlInfoCsCounters>) -> c_int;
    get_pci_counters_info(fd: c_int, info: Option<&mut PciCountersInfo>) -> c_int;
    get_clk_throttle_info(fd: c_int, info: Option<&mut ClkThrottleInfo>) -> c_int;
    get_total_energy_consumption_info(fd: c_int, info: Option<&mut u64>) -> c_int;
    get_power_info(fd: c_int, info: Option<&mut u64>) -> c_int;
    get_dram_replaced_rows_info(fd: c_int, info: Option<&mut DramReplacedRowsInfo>) -> c_int;
    get_dram_pending_rows_info(fd: c_int, out: Option<&mut u32>) -> c_int;
    get_sec_attest_info(fd: c_int, nonce: u32, info: Option<&mut SecAttestInfo>) -> c_int;
    fw_send_generic_request(fd: c_int, buffer: *mut c_void, size: u32, sub_opcode: u32) -> c_int;

    // Memory.
    device_memory_alloc(fd: c_int, size: u64, page_size: u64, contiguous: bool, shared: bool) -> u64;
    device_memory_free(fd: c_int, handle: u64) -> c_int;
    device_memory_map(fd: c_int, handle: u64, hint: u64) -> u64;
    host_memory_map(fd: c_int, address: *mut c_void, hint: u64, size: u64) -> u64;
    host_memory_map_flags(fd: c_int, address: *mut c_void, hint: u64, size: u64, flags: u32) -> u64;
    memory_unmap(fd: c_int, device_va: u64) -> c_int;
    device_memory_export_dmabuf_fd(fd: c_int, address: u64, size: u64, flags: u32) -> c_int;
    device_mapped_memory_export_dmabuf_fd(fd: c_int, address: u64, size: u64, offset: u64, flags: u32) -> c_int;
    get_hw_block(fd: c_int, address: u64, size: Option<&mut u32>, handle: Option<&mut u64>) -> c_int;
    allocate_timestamp_elements(fd: c_int, elements: u32, handle: Option<&mut u64>) -> c_int;

    // Command buffers.
    request_command_buffer(fd: c_int, size: u32, handle: Option<&mut u64>) -> c_int;
    request_mapped_command_buffer(fd: c_int, size: u32, handle: Option<&mut u64>) -> c_int;
    get_mapped_cb_device_va_by_handle(fd: c_int, handle: u64, device_va: Option<&mut u64>) -> c_int;
    destroy_command_buffer(fd: c_int, handle: u64) -> c_int;
    get_cb_usage_count(fd: c_int, handle: u64, count: Option<&mut u32>) -> c_int;

    // Submissions.
    command_submission(fd: c_int, input: Option<&CsIn>, output: Option<&mut CsOut>) -> c_int;
    command_submission_timeout(fd: c_int, input: Option<&CsIn>, output: Option<&mut CsOut>, timeout: u32) -> c_int;
    staged_command_submission(fd: c_int, sequence: u64, input: Option<&CsIn>, output: Option<&mut CsOut>) -> c_int;
    staged_command_submission_timeout(fd: c_int, sequence: u64, input: Option<&CsIn>, output: Option<&mut CsOut>, timeout: u32) -> c_int;
    staged_command_submission_encaps_signals(fd: c_int, handle: u64, input: Option<&CsIn>, output: Option<&mut CsOut>) -> c_int;
    cs_flush_pci_hbw_writes(fd: c_int) -> c_int;
    engine_cores_set_mode(fd: c_int, cores: *const u32, count: u32, mode: u32) -> c_int;
    engines_command(fd: c_int, engines: *const u32, count: u32, command: u32) -> c_int;

    // Signals.
    signal_submission(fd: c_int, input: Option<&SignalIn>, output: Option<&mut SignalOut>) -> c_int;
    signal_submission_timeout(fd: c_int, input: Option<&SignalIn>, output: Option<&mut SignalOut>, timeout: u32) -> c_int;
    wait_for_signal(fd: c_int, input: Option<&WaitIn>, output: Option<&mut WaitOut>) -> c_int;
    wait_for_signal_timeout(fd: c_int, input: Option<&WaitIn>, output: Option<&mut WaitOut>, timeout: u32) -> c_int;
    wait_for_collective_signal(fd: c_int, input: Option<&WaitIn>, output: Option<&mut WaitOut>) -> c_int;
    wait_for_collective_signal_timeout(fd: c_int, input: Option<&WaitIn>, output: Option<&mut WaitOut>, timeout: u32) -> c_int;
    reserve_encaps_signals(fd: c_int, input: Option<&SigResIn>, output: Option<&mut SigResOut>) -> c_int;
    unreserve_encaps_signals(fd: c_int, handle: Option<&ReserveSigHandle>, status: Option<&mut u32>) -> c_int;
    wait_for_reserved_encaps_signals(fd: c_int, input: Option<&WaitIn>, output: Option<&mut WaitOut>) -> c_int;
    wait_for_reserved_encaps_collective_signals(fd: c_int, input: Option<&WaitIn>, output: Option<&mut WaitOut>) -> c_int;

    // Waits.
    wait_for_cs(fd: c_int, seq: u64, timeout_us: u64, status: Option<&mut u32>) -> c_int;
    wait_for_cs_with_timestamp(fd: c_int, seq: u64, timeout_us: u64, status: Option<&mut u32>, timestamp: Option<&mut u64>) -> c_int;
    wait_for_multi_cs(fd: c_int, input: Option<&WaitMultiCsIn>, output: Option<&mut WaitMultiCsOut>) -> c_int;
    wait_for_multi_cs_with_timestamp(fd: c_int, input: Option<&WaitMultiCsIn>, output: Option<&mut WaitMultiCsOut>, timestamp: Option<&mut u64>) -> c_int;
    wait_for_interrupt(fd: c_int, address: *mut c_void, target: u64, interrupt: u32, timeout_us: u64, status: Option<&mut u32>) -> c_int;
    wait_for_interrupt_with_timestamp(fd: c_int, address: *mut c_void, target: u64, interrupt: u32, timeout_us: u64, status: Option<&mut u32>, timestamp: Option<&mut u64>) -> c_int;
    wait_for_interrupt_by_handle(fd: c_int, handle: u64, offset: u64, target: u64, interrupt: u32, timeout_us: u64, status: Option<&mut u32>) -> c_int;
    wait_for_interrupt_by_handle_with_timestamp(fd: c_int, handle: u64, offset: u64, target: u64, interrupt: u32, timeout_us: u64, status: Option<&mut u32>, timestamp: Option<&mut u64>) -> c_int;
    register_timestamp_interrupt(fd: c_int, interrupt: u32, handle: u64, offset: u64, target: u64, timestamps: u64, timestamps_offset: u64) -> c_int;

    // Events.
    notifier_create(fd: c_int) -> c_int;
    notifier_release(fd: c_int, handle: c_int) -> c_int;
    notifier_recv(fd: c_int, handle: c_int, events: Option<&mut u64>, count: Option<&mut u64>, flags: u32, timeout: u32) -> c_int;
    get_event_record(fd: c_int, event: u32, record: Option<&mut Room>) -> c_int;
    get_page_fault_info(fd: c_int, info: Option<&mut PageFaultInfo>, mappings: u32) -> c_int;

    // Debug, profiler, deprecated.
    debug(fd: c_int, debug: Option<&mut HlDebugArgs>) -> c_int;
    profiler_start(fd: c_int) -> c_int;
    profiler_stop(fd: c_int) -> c_int;
    profiler_get_trace(fd: c_int, buffer: *mut c_void, size: Option<&mut u64>, entries: Option<&mut u64>) -> c_int;
    profiler_destroy();
    debugfs_open(fd: c_int, debugfs: Option<&mut Debugfs>) -> c_int;
    debugfs_read(debugfs: Option<&mut Debugfs>, address: u64, value: Option<&mut u32>) -> c_int;
    debugfs_write(debugfs: Option<&mut Debugfs>, address: u64, value: u32) -> c_int;
    debugfs_close(debugfs: Option<&mut Debugfs>) -> c_int;
    deprecated_func1(fd: c_int, seq: u64, timeout_us: u64, status: Option<&mut u32>, timestamp: Option<&mut u64>) -> c_int;
    deprecated_func2(fd: c_int, interrupt: u32, handle: u64, offset: u64, target: u64, timestamps: u64, timestamps_offset: u64) -> c_int;
    deprecated_func3(fd: c_int, elements: u32, handle: Option<&mut u64>) -> c_int;

    // Functions that only the header of the Gaudi3 release declares.
    get_device_index_from_module_id(module_id: u32) -> c_int;
    get_mac_addr_info(fd: c_int, info: Option<&mut Room>) -> c_int;
    get_habana_link_state(fd: c_int, input: Option<&mut Room>, output: Option<&mut Room>) -> c_int;
    get_habana_link_statistics(fd: c_int, input: Option<&mut Room>, output: Option<&mut Room>) -> c_int;
    get_time_sync_per_die_info(fd: c_int, die: u32, info: Option<&mut Room>) -> c_int;
    get_dev_info_signed(fd: c_int, nonce: u32, info: Option<&mut Room>) -> c_int;
    nic_get_ports_masks(fd: c_int, output: Option<&mut Room>) -> c_int;
    device_memory_read_block_experimental(fd: c_int, buffer: *mut u32, address: u64, size: u32, flags: u32) -> c_int;
    nic_xe_device_memory_alloc(fd: c_int, vm: u32, size: u64) -> u64;
    nic_xe_device_memory_free(fd: c_int, handle: u64) -> c_int;
    nic_xe_memory_map(fd: c_int, vm: u32, handle: u64, host: *mut c_void, device_va: u64, size: u64) -> c_int;
    nic_xe_memory_unmap(fd: c_int, vm: u32, device_va: u64, size: u64) -> c_int;
    nic_xe_vm_create(fd: c_int, vm: Option<&mut u32>, vm_fd: Option<&mut c_int>) -> c_int;
    nic_xe_vm_destroy(fd: c_int, vm: u32, vm_fd: c_int) -> c_int;
    alloc_coll_conn(fd: c_int, input: Option<&mut Room>, conn: Option<&mut u32>) -> c_int;
    alloc_conn(fd: c_int, port: u32, conn: Option<&mut u32>) -> c_int;
    destroy_conn(fd: c_int, port: u32, conn: u32) -> c_int;
    nic_alloc_user_db_fifo(fd: c_int, port: u32, id: Option<&mut u32>) -> c_int;
    nic_cq_create(fd: c_int, entries: u32, handle: Option<&mut u64>) -> c_int;
    nic_cq_destroy(fd: c_int, handle: u64) -> c_int;
    nic_cq_update_consumed_entries(fd: c_int, handle: u64, entries: u32) -> c_int;
    nic_cq_wait(fd: c_int, handle: u64, status: Option<&mut u32>, pi: Option<&mut u32>, cqes: Option<&mut u32>, timeout_us: u64) -> c_int;
    nic_dump_qp(fd: c_int, port: u32, qpn: u32, req: u32, buffer: *mut c_char, size: u32) -> c_int;
    nic_eq_poll(fd: c_int, port: u32, output: Option<&mut Room>) -> c_int;
    nic_user_ccq_set(fd: c_int, input: Option<&mut Room>, output: Option<&mut Room>) -> c_int;
    nic_user_ccq_unset(fd: c_int, port: u32) -> c_int;
    nic_user_cq_id_alloc(fd: c_int, input: Option<&mut Room>, output: Option<&mut Room>) -> c_int;
    nic_user_cq_id_set(fd: c_int, input: Option<&mut Room>, output: Option<&mut Room>) -> c_int;
    nic_user_cq_id_unset(fd: c_int, input: Option<&mut Room>) -> c_int;
    nic_user_cq_set(fd: c_int, port: u32, address: u64, cqes: u32) -> c_int;
    nic_user_cq_unset(fd: c_int, port: u32) -> c_int;
    nic_user_cq_update_ci(fd: c_int, port: u32, ci: u32) -> c_int;
    nic_user_db_fifo_set(fd: c_int, input: Option<&mut Room>, output: Option<&mut Room>) -> c_int;
    nic_user_db_fifo_unset(fd: c_int, port: u32, id: u32) -> c_int;
    nic_user_encap_alloc(fd: c_int, port: u32, id: Option<&mut u32>) -> c_int;
    nic_user_encap_set(fd: c_int, config: Option<&mut Room>) -> c_int;
    nic_user_encap_unset(fd: c_int, port: u32, id: u32) -> c_int;
    nic_user_get_app_params(fd: c_int, port: u32, output: Option<&mut Room>) -> c_int;
    nic_user_set_app_params(fd: c_int, port: u32, input: Option<&mut Room>) -> c_int;
    nic_wq_arr_set(fd: c_int, input: Option<&mut Room>, output: Option<&mut Room>) -> c_int;
    nic_wq_arr_unset(fd: c_int, port: u32, kind: u32) -> c_int;
    set_requester_conn_ctx(fd: c_int, port: u32, conn: u32, input: Option<&mut Room>, output: Option<&mut Room>) -> c_int;
    set_responder_conn_ctx(fd: c_int, port: u32, conn: u32, context: Option<&mut Room>) -> c_int;
}
