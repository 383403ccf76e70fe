//! Every struct of gaudi-uapi that a header defines: size, fields, and since when.

use std::mem::offset_of;

use gaudi_uapi::{Since, cb, cs, debug, dmabuf, drm, info, legacy, memory, wait};

use crate::headers::Header;
use crate::push_assert;

/// One struct and its counterpart in C.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The type in C: `struct hl_cb_in`, or the outer struct for a view of a part of it.
    pub c_type: &'static str,
    /// Our size in bytes; nothing for a view whose counterpart in C has no name.
    pub size: Option<usize>,
    /// The size in Linux 6.1, where it was another; `Some(None)` if 6.1 does not have the struct.
    pub size_6_1: Option<Option<usize>>,
    /// The fields.
    pub fields: Vec<Field>,
    /// The headers that define it.
    pub home: &'static [Header],
}

/// One field under one of its names in C.
#[derive(Clone, Debug)]
pub struct Field {
    /// The path in C: `alloc.mem_size`.
    pub c_path: &'static str,
    /// Bytes from the start of the C type.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// The oldest header with this name.
    pub since: Since,
    /// Our type, which the generated header is written from.
    pub rust_type: &'static str,
}

impl Layout {
    fn size_in(&self, header: Header) -> Option<usize> {
        match (header, self.size_6_1) {
            (Header::Misc, Some(size)) => size,
            _ => self.size,
        }
    }

    /// Appends what a header must agree to.
    pub(crate) fn assert_in(&self, header: Header, c: &mut String) {
        let absent = header == Header::Misc && self.size_6_1 == Some(None);
        if absent || !self.home.contains(&header) {
            return;
        }
        let c_type = self.c_type;
        if let Some(size) = self.size_in(header) {
            push_assert(
                c,
                &format!("sizeof({c_type}) == {size}"),
                &format!("sizeof {c_type}"),
            );
        }
        for Field {
            c_path,
            offset,
            size,
            since,
            ..
        } in &self.fields
        {
            if header.knows(*since) {
                let what = format!("{c_type} {c_path}");
                push_assert(
                    c,
                    &format!("offsetof({c_type}, {c_path}) == {offset}"),
                    &format!("offset of {what}"),
                );
                let condition = format!("sizeof((({c_type} *)0)->{c_path}) == {size}");
                push_assert(c, &condition, &format!("size of {what}"));
            }
        }
    }
}

/// Size and type of a field.
pub(crate) fn field_shape<T, F>(_: fn(&T) -> &F) -> (usize, &'static str) {
    (size_of::<F>(), std::any::type_name::<F>())
}

/// One [`Layout`]. `Type = "c type"`, then the fields, each with other names in C in brackets if it
/// has any (`[]`: no name). A field that 6.1 does not have, or has at that place with another
/// meaning, stands behind `v7`. `in Outer, at field, c "type"` makes a view of a union: offsets
/// count from the outer struct.
macro_rules! layout {
    (
        $type:path $(= $c_type:literal)? $(, 6.1: $old:expr)? $(, in $outer:path, at $at:ident, c $outer_c:literal)?;
        { $($field:ident $([$($name:literal),*])?),* $(,)? }
        $(v7 { $($new:ident $([$($new_name:literal),*])?),* $(,)? })?
    ) => {{
        // Without `..`: every field has its row.
        fn _complete(value: &$type) {
            let $type { $($field: _,)* $($($new: _,)*)? } = value;
        }
        let (base, c_type) = place!($($c_type)? $($outer, $at, $outer_c)?);
        let size = optional!($({ let _ = $c_type; size_of::<$type>() })?);
        let size_6_1 = optional!($($old)?);
        let mut fields = Vec::new();
        $(for &c_path in names!($field $([$($name),*])?) {
            let offset = base + offset_of!($type, $field);
            let (size, rust_type) = field_shape(|v: &$type| &v.$field);
            fields.push(Field { c_path, offset, size, since: Since::V6_1, rust_type });
        })*
        $($(for &c_path in names!($new $([$($new_name),*])?) {
            let offset = base + offset_of!($type, $new);
            let (size, rust_type) = field_shape(|v: &$type| &v.$new);
            fields.push(Field { c_path, offset, size, since: Since::V7, rust_type });
        })*)?
        Layout { c_type, size, size_6_1, fields, home: DRIVER }
    }};
}

macro_rules! place {
    ($c_type:literal) => {
        (0, $c_type)
    };
    ($outer:path, $at:ident, $c_type:literal) => {
        (offset_of!($outer, $at), $c_type)
    };
}

macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

macro_rules! names {
    ($field:ident) => { &[stringify!($field)] };
    ($field:ident [$($name:literal),*]) => { &[$($name),*] as &[&'static str] };
}

mod gaudi3;

pub use gaudi3::gaudi3_layouts;

/// Where most structs are defined.
const DRIVER: &[Header] = &[Header::Misc, Header::Accel6, Header::Accel7];

/// Only in headers of Linux 7.
const ABSENT: Option<usize> = None;

/// Every layout.
pub fn layouts() -> Vec<Layout> {
    let mut all = requests_and_answers();
    all.extend(info_device());
    all.extend(info_events());
    all.extend(debug_params());
    all.extend(of_6_1());
    all.extend(dmabuf_and_drm());
    all
}

/// What only the header of Linux 6.1 has.
fn of_6_1() -> Vec<Layout> {
    let mut all = vec![
        layout!(legacy::HlInfoRazwiEvent61 = "struct hl_info_razwi_event"; {
            timestamp, addr, engine_id_1, engine_id_2, no_engine_id, error_type, pad
        }),
        layout!(legacy::HlMemInExportDmabufFd61, in memory::HlMemIn, at arg, c "struct hl_mem_in"; {
            handle["export_dmabuf_fd.handle"], mem_size["export_dmabuf_fd.mem_size"]
        }),
        Layout {
            c_type: "struct hl_info_hw_ip_info",
            size: None,
            size_6_1: None,
            // Two of today's reserved fields.
            fields: vec![Field {
                c_path: "pad2",
                offset: offset_of!(info::HlInfoHwIpInfo, reserved1),
                size: 2,
                since: Since::V6_1,
                rust_type: "u16",
            }],
            home: DRIVER,
        },
    ];
    all.iter_mut().for_each(|layout| layout.home = &[Header::Misc]);
    all
}

fn requests_and_answers() -> Vec<Layout> {
    vec![
        layout!(cb::HlCbIn = "struct hl_cb_in"; { cb_handle, op, cb_size, ctx_id, flags }),
        layout!(cb::HlCbOut = "struct hl_cb_out"; { arg["cb_handle", "device_va"] }),
        layout!(cb::HlCbOutUsage, in cb::HlCbOut, at arg, c "struct hl_cb_out"; { usage_cnt, pad }),
        union_args::<cb::HlCbArgs>("union hl_cb_args"),
        layout!(cs::HlCsChunk = "struct hl_cs_chunk"; {
            cb_handle["cb_handle", "signal_seq_arr", "encaps_signal_seq"], queue_index,
            cb_size["cb_size", "num_signal_seq_arr", "encaps_signal_offset"], cs_chunk_flags,
            collective_engine_id, pad
        }),
        layout!(cs::HlCsIn = "struct hl_cs_in"; {
            arg[], signal["seq"], num_chunks_restore, num_chunks_execute, timeout, cs_flags, ctx_id, pad
        }),
        layout!(cs::HlCsInChunks, in cs::HlCsIn, at arg, c "struct hl_cs_in"; { chunks_restore, chunks_execute }),
        layout!(cs::HlCsInEngineCores, in cs::HlCsIn, at arg, c "struct hl_cs_in"; {
            engine_cores, num_engine_cores, core_command
        }),
        layout!(cs::HlCsInEngines, in cs::HlCsIn, at arg, c "struct hl_cs_in"; {} v7 {
            engines, num_engines, engine_command
        }),
        layout!(cs::HlCsInReserve, in cs::HlCsIn, at signal, c "struct hl_cs_in"; {
            encaps_signals_count, encaps_signals_q_idx
        }),
        Layout {
            c_type: "struct hl_cs_in",
            size: None,
            size_6_1: None,
            fields: vec![Field {
                c_path: "encaps_sig_handle_id",
                offset: offset_of!(cs::HlCsIn, signal),
                size: size_of::<u32>(),
                since: Since::V6_1,
                rust_type: "u32",
            }],
            home: DRIVER,
        },
        layout!(cs::HlCsOut = "struct hl_cs_out"; {
            arg["seq"], status, sob_base_addr_offset, sob_count_before_submission, pad
        }),
        layout!(cs::HlCsOutReserve, in cs::HlCsOut, at arg, c "struct hl_cs_out"; { handle_id, count }),
        union_args::<cs::HlCsArgs>("union hl_cs_args"),
        layout!(wait::HlWaitCsIn = "struct hl_wait_cs_in"; {
            arg[], ctx_id, flags, arg2["interrupt_timeout_us"], cq_counters_offset, timestamp_handle,
            timestamp_offset
        }),
        layout!(wait::HlWaitCsInCs, in wait::HlWaitCsIn, at arg, c "struct hl_wait_cs_in"; { seq, timeout_us }),
        layout!(wait::HlWaitCsInInterrupt, in wait::HlWaitCsIn, at arg, c "struct hl_wait_cs_in"; {
            addr["addr", "cq_counters_handle"], target
        }),
        layout!(wait::HlWaitCsInMulti, in wait::HlWaitCsIn, at arg2, c "struct hl_wait_cs_in"; { seq_arr_len, pad }),
        layout!(wait::HlWaitCsOut = "struct hl_wait_cs_out"; {
            status, flags, timestamp_nsec, cs_completion_map, pad
        }),
        union_args::<wait::HlWaitCsArgs>("union hl_wait_cs_args"),
        layout!(memory::HlMemIn = "struct hl_mem_in"; { arg[], op, flags, ctx_id, num_of_elements }),
        layout!(memory::HlMemInAlloc, in memory::HlMemIn, at arg, c "struct hl_mem_in"; {
            mem_size["alloc.mem_size"], page_size["alloc.page_size"]
        }),
        layout!(memory::HlMemInFree, in memory::HlMemIn, at arg, c "struct hl_mem_in"; { handle["free.handle"] }),
        layout!(memory::HlMemInMapDevice, in memory::HlMemIn, at arg, c "struct hl_mem_in"; {
            hint_addr["map_device.hint_addr"], handle["map_device.handle"]
        }),
        layout!(memory::HlMemInMapHost, in memory::HlMemIn, at arg, c "struct hl_mem_in"; {
            host_virt_addr["map_host.host_virt_addr"], hint_addr["map_host.hint_addr"],
            mem_size["map_host.mem_size"]
        }),
        layout!(memory::HlMemInMapBlock, in memory::HlMemIn, at arg, c "struct hl_mem_in"; {
            block_addr["map_block.block_addr"]
        }),
        layout!(memory::HlMemInUnmap, in memory::HlMemIn, at arg, c "struct hl_mem_in"; {
            device_virt_addr["unmap.device_virt_addr"]
        }),
        layout!(memory::HlMemInExportDmabufFd, in memory::HlMemIn, at arg, c "struct hl_mem_in"; {
            mem_size["export_dmabuf_fd.mem_size"]
        } v7 {
            addr["export_dmabuf_fd.addr"], offset["export_dmabuf_fd.offset"]
        }),
        layout!(memory::HlMemOut = "struct hl_mem_out"; { arg[] }),
        layout!(memory::HlMemOutBlock, in memory::HlMemOut, at arg, c "struct hl_mem_out"; {
            block_handle["block_handle", "device_virt_addr", "handle"], block_size, pad
        }),
        Layout {
            c_type: "struct hl_mem_out",
            size: None,
            size_6_1: None,
            fields: vec![Field {
                c_path: "fd",
                offset: 0,
                size: size_of::<i32>(),
                since: Since::V6_1,
                rust_type: "i32",
            }],
            home: DRIVER,
        },
        union_args::<memory::HlMemArgs>("union hl_mem_args"),
        layout!(info::HlInfoArgs = "struct hl_info_args"; {
            return_pointer, return_size, op,
            arg["dcore_id", "ctx_id", "period_ms", "pll_index", "eventfd", "user_buffer_actual_size",
                "sec_attest_nonce"],
            pad
        }),
        Layout {
            c_type: "struct hl_info_args",
            size: None,
            size_6_1: None,
            fields: ["array_size", "fw_sub_opcode"]
                .map(|c_path| Field {
                    c_path,
                    offset: offset_of!(info::HlInfoArgs, arg),
                    size: size_of::<u32>(),
                    since: Since::V7,
                    rust_type: "u32",
                })
                .to_vec(),
            home: DRIVER,
        },
        layout!(debug::HlDebugArgs = "struct hl_debug_args"; {
            input_ptr, output_ptr, input_size, output_size, op, reg_idx, enable, ctx_id
        }),
    ]
}

/// An argument buffer: its size, and both members at its start.
fn union_args<T>(c_type: &'static str) -> Layout {
    Layout {
        c_type,
        size: Some(size_of::<T>()),
        size_6_1: None,
        fields: Vec::new(),
        home: DRIVER,
    }
}

fn info_device() -> Vec<Layout> {
    vec![
        layout!(info::HlInfoHwIpInfo = "struct hl_info_hw_ip_info", 6.1: Some(256); {
            sram_base_address, dram_base_address, dram_size, sram_size, num_of_events, device_id, module_id,
            decoder_enabled_mask, first_available_interrupt_id, server_type, cpld_version, psoc_pci_pll_nr,
            psoc_pci_pll_nf, psoc_pci_pll_od, psoc_pci_pll_div_factor, tpc_enabled_mask, dram_enabled,
            security_enabled, mme_master_slave_mode, cpucp_version, card_name, tpc_enabled_mask_ext,
            dram_page_size, edma_enabled_mask, number_of_user_interrupts, device_mem_alloc_default_page_size
        } v7 {
            reserved1, reserved2, reserved3, reserved4, reserved5, reserved6, reserved7, revision_id,
            tpc_interrupt_id, rotator_enabled_mask, reserved9, engine_core_interrupt_reg_addr,
            reserved_dram_size
        }),
        layout!(info::HlInfoDramUsage = "struct hl_info_dram_usage"; { dram_free_mem, ctx_dram_mem }),
        layout!(info::HlInfoHwIdle = "struct hl_info_hw_idle", 6.1: Some(24); {
            is_idle, busy_engines_mask
        } v7 {
            busy_engines_mask_ext
        }),
        layout!(info::HlInfoDeviceStatus = "struct hl_info_device_status"; { status, pad }),
        layout!(info::HlInfoDeviceUtilization = "struct hl_info_device_utilization"; { utilization, pad }),
        layout!(info::HlInfoClkRate = "struct hl_info_clk_rate"; { cur_clk_rate_mhz, max_clk_rate_mhz }),
        layout!(info::HlInfoResetCount = "struct hl_info_reset_count"; { hard_reset_cnt, soft_reset_cnt }),
        layout!(info::HlInfoTimeSync = "struct hl_info_time_sync", 6.1: Some(16); {
            device_time, host_time
        } v7 {
            tsc_time
        }),
        layout!(info::HlInfoPciCounters = "struct hl_info_pci_counters"; {
            rx_throughput, tx_throughput, replay_cnt
        }),
        layout!(info::HlInfoClkThrottle = "struct hl_info_clk_throttle"; {
            clk_throttling_reason, pad, clk_throttling_timestamp_us, clk_throttling_duration_ns
        }),
        layout!(info::HlInfoEnergy = "struct hl_info_energy"; { total_energy_consumption }),
        layout!(info::HlPllFrequencyInfo = "struct hl_pll_frequency_info"; { output }),
        layout!(info::HlOpenStatsInfo = "struct hl_open_stats_info"; {
            open_counter, last_open_period_ms, is_compute_ctx_active, compute_ctx_in_release, pad
        }),
        layout!(info::HlPowerInfo = "struct hl_power_info"; { power }),
        layout!(info::HlInfoSyncManager = "struct hl_info_sync_manager"; {
            first_available_sync_object, first_available_monitor, first_available_cq, reserved
        }),
        layout!(info::HlInfoCsCounters = "struct hl_info_cs_counters"; {
            total_out_of_mem_drop_cnt, ctx_out_of_mem_drop_cnt, total_parsing_drop_cnt, ctx_parsing_drop_cnt,
            total_queue_full_drop_cnt, ctx_queue_full_drop_cnt, total_device_in_reset_drop_cnt,
            ctx_device_in_reset_drop_cnt, total_max_cs_in_flight_drop_cnt, ctx_max_cs_in_flight_drop_cnt,
            total_validation_drop_cnt, ctx_validation_drop_cnt
        }),
        layout!(info::HlInfoDevMemallocPageSizes = "struct hl_info_dev_memalloc_page_sizes"; {
            page_order_bitmask
        }),
        layout!(info::HlInfoSecAttest = "struct hl_info_sec_attest"; {
            nonce, pcr_quote_len, pub_data_len, certificate_len, pcr_num_reg, pcr_reg_len, quote_sig_len,
            pcr_data, pcr_quote, quote_sig, public_data, certificate, pad0
        }),
        layout!(info::HlInfoSigned = "struct hl_info_signed", 6.1: ABSENT; {
            nonce, pub_data_len, certificate_len, info_sig_len, public_data, certificate, info_sig,
            dev_info_len, dev_info, pad
        }),
    ]
}

fn info_events() -> Vec<Layout> {
    vec![
        layout!(info::HlInfoLastErrOpenDevTime = "struct hl_info_last_err_open_dev_time"; { timestamp }),
        layout!(info::HlInfoCsTimeoutEvent = "struct hl_info_cs_timeout_event"; { timestamp, seq }),
        layout!(info::HlInfoRazwiEvent = "struct hl_info_razwi_event", 6.1: Some(24); {
            timestamp, addr
        } v7 {
            engine_id, num_of_possible_engines, flags, pad
        }),
        layout!(info::HlInfoUndefinedOpcodeEvent = "struct hl_info_undefined_opcode_event"; {
            timestamp, cb_addr_streams, cq_addr, cq_size, cb_addr_streams_len, engine_id, stream_id
        }),
        layout!(info::HlInfoHwErrEvent = "struct hl_info_hw_err_event", 6.1: ABSENT; {
            timestamp, event_id, pad
        }),
        layout!(info::HlInfoFwErrEvent = "struct hl_info_fw_err_event", 6.1: ABSENT; {
            timestamp, err_type, event_id, pad
        }),
        layout!(info::HlInfoEngineErrEvent = "struct hl_info_engine_err_event", 6.1: ABSENT; {
            timestamp, engine_id, error_count, pad
        }),
        layout!(info::HlPageFaultInfo = "struct hl_page_fault_info", 6.1: ABSENT; {
            timestamp, addr, engine_id, pad
        }),
        layout!(info::HlUserMapping = "struct hl_user_mapping", 6.1: ABSENT; { dev_va, size }),
    ]
}

fn debug_params() -> Vec<Layout> {
    vec![
        layout!(debug::HlDebugParamsEtr = "struct hl_debug_params_etr"; {
            buffer_address, buffer_size, sink_mode, pad
        }),
        layout!(debug::HlDebugParamsEtf = "struct hl_debug_params_etf"; {
            buffer_address, buffer_size, sink_mode, pad
        }),
        layout!(debug::HlDebugParamsStm = "struct hl_debug_params_stm"; { he_mask, sp_mask, id, frequency }),
        layout!(debug::HlDebugParamsBmon = "struct hl_debug_params_bmon"; {
            start_addr0, addr_mask0, start_addr1, addr_mask1, bw_win, win_capture, id, control, start_addr2,
            end_addr2, start_addr3, end_addr3
        }),
        layout!(debug::HlDebugParamsSpmu = "struct hl_debug_params_spmu"; {
            event_types, event_types_num, pmtrc_val, trc_ctrl_host_val, trc_en_host_val
        }),
    ]
}

fn dmabuf_and_drm() -> Vec<Layout> {
    let mut dmabuf = vec![
        layout!(dmabuf::DmaBufSync = "struct dma_buf_sync"; { flags }),
        layout!(dmabuf::DmaBufExportSyncFile = "struct dma_buf_export_sync_file"; { flags, fd }),
        layout!(dmabuf::DmaBufImportSyncFile = "struct dma_buf_import_sync_file"; { flags, fd }),
        layout!(dmabuf::UdmabufCreate = "struct udmabuf_create"; { memfd, flags, offset, size }),
        layout!(dmabuf::UdmabufCreateItem = "struct udmabuf_create_item"; { memfd, __pad, offset, size }),
        layout!(dmabuf::UdmabufCreateList = "struct udmabuf_create_list"; { flags, count }),
        layout!(dmabuf::DmaHeapAllocationData = "struct dma_heap_allocation_data"; {
            len, fd, fd_flags, heap_flags
        }),
        layout!(dmabuf::SyncMergeData = "struct sync_merge_data"; { name, fd2, fence, flags, pad }),
        layout!(dmabuf::SyncFenceInfo = "struct sync_fence_info"; {
            obj_name, driver_name, status, flags, timestamp_ns
        }),
        layout!(dmabuf::SyncFileInfo = "struct sync_file_info"; {
            name, status, flags, num_fences, pad, sync_fence_info
        }),
    ];
    dmabuf
        .iter_mut()
        .for_each(|layout| layout.home = &[Header::DmaBuf]);
    let mut drm = layout!(drm::DrmVersion = "struct drm_version"; {
        version_major, version_minor, version_patchlevel, pad[], name_len, name, date_len, date, desc_len, desc
    });
    drm.home = &[Header::Drm];
    dmabuf.push(drm);
    dmabuf
}
