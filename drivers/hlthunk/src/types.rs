//! The structs and enums of `hlthunk.h`, with the field names of C.
//!
//! If the 2023 and the Gaudi3 header name a field differently, the newer name is used; offsets are
//! equal. Two types differ in size, which their docs state.

use std::ffi::{c_char, c_int, c_void};

use gaudi_uapi::info::HL_INFO_MAC_ADDR_MAX_NUM;
use gaudi_uapi::limits::{
    HL_CLK_THROTTLE_TYPE_MAX, HL_INFO_CARD_NAME_MAX_LEN, HL_INFO_VERSION_MAX_LEN, HL_PLL_NUM_OUTPUTS,
    HL_RAZWI_MAX_NUM_OF_ENGINES_PER_RTR, MAX_QMAN_STREAMS_INFO, OPCODE_INFO_MAX_ADDR_SIZE,
    SEC_CERTIFICATE_BUF_SZ, SEC_DEV_INFO_BUF_SZ, SEC_PCR_DATA_BUF_SZ, SEC_PCR_QUOTE_BUF_SZ,
    SEC_PUB_DATA_BUF_SZ, SEC_SIGNATURE_BUF_SZ,
};
use gaudi_uapi::nic::{HL_NIC_FNA_CMPL_ADDR_NUM, HL_NIC_USER_BP_OFFS_MAX};

/// The limit of device indices that discovery tries (`HLTHUNK_MAX_MINOR`).
pub const HLTHUNK_MAX_MINOR: c_int = 256;
/// Number of words in the mask of busy engines.
pub const HLTHUNK_BUSY_ENGINES_MASK_SIZE: usize = 4;
/// Number of rows in [`HlthunkDramReplacedRowsInfo`].
pub const DRAM_ROW_REPLACE_MAX: usize = 32;
/// Length of a MAC address in bytes.
pub const ETH_ALEN: usize = 6;

macro_rules! c_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$vmeta])* #[allow(missing_docs, reason = "the name is C's")] pub const $variant: Self = Self($value);)*
        }
    };
}

c_enum! {
    /// `enum hlthunk_device_name`. The 2023 header has placeholders for GRECO, GAUDI_HL2000M,
    /// GAUDI3 and GAUDI2B, and ends at 9.
    HlthunkDeviceName {
        GOYA = 0,
        GRECO = 1,
        GAUDI = 2,
        INVALID = 3,
        DONT_CARE = 4,
        GAUDI2 = 5,
        GAUDI_HL2000M = 6,
        GAUDI3 = 7,
        GAUDI2B = 8,
        FS1 = 9,
        GAUDI2C = 10,
        GAUDI2D = 11,
        MAX = 12,
    }
}

impl Default for HlthunkDeviceName {
    fn default() -> Self {
        Self::INVALID
    }
}

c_enum! {
    /// `enum hlthunk_node_type`.
    HlthunkNodeType {
        PRIMARY = 0,
        CONTROL = 1,
        XE = 2,
        MAX = 3,
    }
}

c_enum! {
    /// `enum hlthunk_event_record_id`. The 2023 header ends at `FW_ERR_OPCODE`.
    HlthunkEventRecordId {
        OPEN_DEV = 0,
        CS_TIMEOUT = 1,
        RAZWI_EVENT = 2,
        UNDEFINED_OPCODE = 3,
        HW_ERR_OPCODE = 4,
        FW_ERR_OPCODE = 5,
        ENGINE_EVENT = 6,
    }
}

c_enum! {
    /// `enum hlthunk_dram_row_replace_cause`.
    HlthunkDramRowReplaceCause {
        DOUBLE_ECC_ERR = 0,
        MULTI_SINGLE_ECC_ERR = 1,
    }
}

c_enum! {
    /// `enum wq_types`.
    WqTypes {
        WRITE = 1,
        RENDEZVOUS_READ = 2,
        RENDEZVOUS_WRITE = 3,
    }
}

macro_rules! c_structs {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            #[allow(missing_docs, reason = "the fields' names are C's")]
            pub struct $name { $(pub $field: $type,)* }
        )*

        /// The name, size and fields (name, offset, size) of each struct.
        #[cfg(test)]
        pub(crate) const LAYOUTS: &[(&str, usize, &[(&str, usize, usize)])] = &[$((
            stringify!($name),
            size_of::<$name>(),
            &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>())),*],
        )),*];
    };
}

c_structs! {
    /// `struct hlthunk_hw_ip_info`.
    HlthunkHwIpInfo {
        sram_base_address: u64,
        dram_base_address: u64,
        dram_size: u64,
        sram_size: u32,
        num_of_events: u32,
        device_id: u32,
        cpld_version: u32,
        psoc_pci_pll_nr: u32,
        psoc_pci_pll_nf: u32,
        psoc_pci_pll_od: u32,
        psoc_pci_pll_div_factor: u32,
        tpc_enabled_mask: u16,
        dram_enabled: u8,
        cpucp_version: [u8; HL_INFO_VERSION_MAX_LEN],
        module_id: u32,
        card_name: [u8; HL_INFO_CARD_NAME_MAX_LEN],
        decoder_enabled_mask: u32,
        mme_master_slave_mode: u8,
        tpc_enabled_mask_ext: u64,
        dram_page_size: u64,
        first_available_interrupt_id: u16,
        edma_enabled_mask: u32,
        server_type: u16,
        pdma_user_owned_ch_mask: u64,
        number_of_user_interrupts: u16,
        device_mem_alloc_default_page_size: u64,
        nic_ports_mask: u64,
        interposer_version: u8,
        substrate_version: u8,
        nic_ports_external_mask: u64,
        mme_enabled_mask: u32,
        odp_supported: u8,
        security_enabled: u8,
        revision_id: u8,
        tpc_interrupt_id: u16,
        engine_core_interrupt_reg_addr: u64,
        rotator_enabled_mask: u32,
        sched_arc_enabled_mask: u32,
        reserved_dram_size: u64,
    }

    /// `struct hlthunk_dram_usage_info`.
    HlthunkDramUsageInfo {
        dram_free_mem: u64,
        ctx_dram_mem: u64,
    }

    /// `struct hlthunk_mac_addr`.
    HlthunkMacAddr {
        addr: [u8; ETH_ALEN],
    }

    /// `struct hlthunk_mac_addr_info`.
    HlthunkMacAddrInfo {
        array: [HlthunkMacAddr; HL_INFO_MAC_ADDR_MAX_NUM],
        mask: [u64; 2],
    }

    /// `struct hlthunk_engines_idle_info`.
    HlthunkEnginesIdleInfo {
        is_idle: u32,
        pad: u32,
        mask: [u64; HLTHUNK_BUSY_ENGINES_MASK_SIZE],
    }

    /// `struct hlthunk_pll_frequency_info`.
    HlthunkPllFrequencyInfo {
        output: [u16; HL_PLL_NUM_OUTPUTS],
    }

    /// `struct hlthunk_reset_count_info`.
    HlthunkResetCountInfo {
        hard_reset_count: u32,
        soft_reset_count: u32,
    }

    /// `struct hlthunk_time_sync_info`.
    HlthunkTimeSyncInfo {
        device_time: u64,
        host_time: u64,
        tsc_time: u64,
    }

    /// `struct hlthunk_sync_manager_info`.
    HlthunkSyncManagerInfo {
        first_available_sync_object: u32,
        first_available_monitor: u32,
        first_available_cq: u32,
        reserved: u32,
    }

    /// `struct hlthunk_pci_counters_info`.
    HlthunkPciCountersInfo {
        rx_throughput: u64,
        tx_throughput: u64,
        replay_cnt: u32,
    }

    /// `struct hlthunk_clk_throttle_info`.
    HlthunkClkThrottleInfo {
        clk_throttle_reason_bitmask: u32,
        clk_throttle_start_timestamp_us: [u64; HL_CLK_THROTTLE_TYPE_MAX],
        clk_throttle_duration_ns: [u64; HL_CLK_THROTTLE_TYPE_MAX],
    }

    /// `struct hlthunk_energy_info`.
    HlthunkEnergyInfo {
        total_energy_consumption: u64,
    }

    /// `struct hlthunk_power_info`.
    HlthunkPowerInfo {
        power: u64,
    }

    /// `struct hlthunk_cs_in`.
    HlthunkCsIn {
        chunks_restore: *mut c_void,
        chunks_execute: *mut c_void,
        num_chunks_restore: u32,
        num_chunks_execute: u32,
        flags: u32,
    }

    /// `struct hlthunk_cs_out`.
    HlthunkCsOut {
        seq: u64,
        status: u32,
        sob_count_before_submission: u16,
    }

    /// `struct hlthunk_signal_in`.
    HlthunkSignalIn {
        chunks_restore: *mut c_void,
        num_chunks_restore: u32,
        queue_index: u32,
        flags: u32,
    }

    /// `struct hlthunk_signal_out`.
    HlthunkSignalOut {
        seq: u64,
        status: u32,
        sob_base_addr_offset: u32,
        sob_count_before_submission: u16,
    }

    /// `struct hlthunk_sig_res_in`.
    HlthunkSigResIn {
        queue_index: u32,
        count: u32,
    }

    /// `struct reserve_sig_handle`.
    ReserveSigHandle {
        id: u32,
        sob_base_addr_offset: u32,
        count: u32,
    }

    /// `struct hlthunk_sig_res_out`.
    HlthunkSigResOut {
        handle: ReserveSigHandle,
        status: u32,
    }

    /// `struct hlthunk_wait_for_signal_data`.
    HlthunkWaitForSignalData {
        signal_seq_arr: *mut u64,
        signal_seq_nr: u32,
        queue_index: u32,
        flags: u32,
        collective_engine_id: u32,
        encaps_signal_offset: u32,
    }

    /// `struct hlthunk_wait_in`.
    HlthunkWaitIn {
        chunks_restore: *mut c_void,
        num_chunks_restore: u32,
        hlthunk_wait_for_signal: *mut u64,
        num_wait_for_signal: u32,
        flags: u32,
    }

    /// `struct hlthunk_wait_out`.
    HlthunkWaitOut {
        seq: u64,
        status: u32,
    }

    /// `struct hlthunk_requester_conn_ctx`.
    HlthunkRequesterConnCtx {
        deprecated: u32,
        dst_ip_addr: u32,
        dst_conn_id: u32,
        deprecated1: u32,
        last_index: u32,
        dst_mac_addr: [u8; ETH_ALEN],
        deprecated2: u8,
        priority: u8,
        deprecated3: u8,
        timer_granularity: u8,
        swq_granularity: u8,
        wq_type: u8,
        deprecated4: u8,
        cq_number: u8,
        wq_remote_log_size: u8,
        congestion_wnd: u32,
        mtu: u16,
        congestion_en: u8,
        encap_en: u8,
        encap_id: u8,
        loopback: u8,
        wq_size: u32,
        coll_lag_idx: u8,
        coll_last_in_lag: u8,
        compression_en: u8,
        remote_key: u32,
        sack_en: u8,
    }

    /// `struct hlthunk_requester_conn_ctx_out`.
    HlthunkRequesterConnCtxOut {
        swq_mem_handle: u64,
        rwq_mem_handle: u64,
    }

    /// `struct hlthunk_responder_conn_ctx`.
    HlthunkResponderConnCtx {
        deprecated: u32,
        dst_ip_addr: u32,
        dst_conn_id: u32,
        dst_mac_addr: [u8; ETH_ALEN],
        priority: u8,
        deprecated1: u8,
        deprecated2: u8,
        wq_peer_granularity: u8,
        cq_number: u8,
        deprecated3: u8,
        conn_peer: u32,
        rdv: u8,
        loopback: u8,
        wq_peer_size: u32,
        encap_en: u8,
        encap_id: u8,
        local_key: u32,
        sack_en: u8,
    }

    /// `struct hlthunk_nic_wq_arr_set_in`.
    HlthunkNicWqArrSetIn {
        port: u32,
        addr: u64,
        num_of_wqs: u32,
        num_of_wq_entries: u32,
        r#type: u32,
        mem_id: u32,
        swq_granularity: u8,
    }

    /// `struct hlthunk_nic_wq_arr_set_out`.
    HlthunkNicWqArrSetOut {
        handle: u64,
    }

    /// `struct hlthunk_nic_user_cq_id_alloc_in`.
    HlthunkNicUserCqIdAllocIn {
        port: u32,
    }

    /// `struct hlthunk_nic_user_cq_id_alloc_out`.
    HlthunkNicUserCqIdAllocOut {
        id: u32,
    }

    /// `struct hlthunk_nic_user_cq_id_set_in`.
    HlthunkNicUserCqIdSetIn {
        port: u32,
        num_of_cqes: u32,
        id: u32,
    }

    /// `struct hlthunk_nic_user_cq_id_set_out`.
    HlthunkNicUserCqIdSetOut {
        mem_handle: u64,
        pi_handle: u64,
        regs_handle: u64,
        regs_offset: u32,
    }

    /// `struct hlthunk_nic_user_cq_id_unset_in`.
    HlthunkNicUserCqIdUnsetIn {
        port: u32,
        id: u64,
    }

    /// `struct hlthunk_nic_alloc_coll_conn_in`.
    HlthunkNicAllocCollConnIn {
        is_scale_out: u8,
    }

    /// `struct hlthunk_encap_cfg`.
    HlthunkEncapCfg {
        tnl_hdr_ptr: usize,
        tnl_hdr_size: u32,
        port: u32,
        id: u32,
        src_ipv4_addr: u32,
        encap_type: u32,
        udp_dst_port: u16,
    }

    /// `struct hlthunk_open_stats_info`.
    HlthunkOpenStatsInfo {
        open_counter: u64,
        last_open_period_ms: u64,
        is_compute_ctx_active: u8,
        compute_ctx_in_release: u8,
    }

    /// `struct hlthunk_hw_asic_status`.
    HlthunkHwAsicStatus {
        throttle: HlthunkClkThrottleInfo,
        open_stats: HlthunkOpenStatsInfo,
        power: HlthunkPowerInfo,
        status: u32,
        timestamp_sec: u64,
        valid: u8,
    }

    /// `struct hlthunk_nic_user_set_app_params_in`.
    HlthunkNicUserSetAppParamsIn {
        advanced: u8,
        bp_offs: [u32; HL_NIC_USER_BP_OFFS_MAX],
        deprecated: u8,
        fna_mask_size: u8,
        fna_fifo_offs: [u32; HL_NIC_FNA_CMPL_ADDR_NUM],
    }

    /// `struct hlthunk_nic_user_get_app_params_out`.
    HlthunkNicUserGetAppParamsOut {
        max_num_of_qps: u32,
        num_allocated_qps: u32,
        max_allocated_qp_idx: u32,
        max_cq_size: u32,
        advanced: u8,
        max_num_of_cqs: u8,
        max_num_of_db_fifos: u8,
        max_num_of_encaps: u8,
        speed: u32,
        max_num_of_coll_qps: u32,
        coll_qps_offset: u32,
        base_coll_qp_idx: u32,
        base_scale_out_coll_qp_idx: u32,
        max_num_of_scale_out_coll_qps: u32,
    }

    /// `struct hlthunk_wait_multi_cs_in`.
    HlthunkWaitMultiCsIn {
        seq: *mut u64,
        timeout_us: u64,
        seq_len: u32,
    }

    /// `struct hlthunk_wait_multi_cs_out`.
    HlthunkWaitMultiCsOut {
        status: u32,
        seq_set: u32,
        completed: u8,
    }

    /// `struct hlthunk_nic_eq_poll_out`.
    HlthunkNicEqPollOut {
        poll_status: u32,
        idx: u32,
        ev_data: u32,
        ev_type: u8,
    }

    /// `struct hlthunk_get_habana_link_state_in`.
    HlthunkGetHabanaLinkStateIn {
        port: u32,
        pad: u32,
    }

    /// `struct hlthunk_get_habana_link_state_out`.
    HlthunkGetHabanaLinkStateOut {
        up: u8,
        pad: [u8; 7],
    }

    /// `struct hlthunk_get_habana_link_stat_in`.
    HlthunkGetHabanaLinkStatIn {
        port: u32,
    }

    /// `struct hlthunk_get_habana_link_stat_out`.
    HlthunkGetHabanaLinkStatOut {
        str_buf: *mut u8,
        val_buf: *mut u64,
        num_of_stat: u32,
    }

    /// `struct hlthunk_nic_get_ports_masks_out`.
    HlthunkNicGetPortsMasksOut {
        ports_mask: u64,
        ext_ports_mask: u64,
    }

    /// `struct hlthunk_dram_row_info`.
    HlthunkDramRowInfo {
        dram_idx: u8,
        pc: u8,
        sid: u8,
        bank_idx: u8,
        row_addr: u16,
        replaced_row_cause: u8,
        pad: u8,
    }

    /// `struct hlthunk_dram_replaced_rows_info`.
    HlthunkDramReplacedRowsInfo {
        num_replaced_rows: u16,
        pad: [u8; 6],
        replaced_rows: [HlthunkDramRowInfo; DRAM_ROW_REPLACE_MAX],
    }

    /// `struct hlthunk_event_record_open_dev_time`.
    HlthunkEventRecordOpenDevTime {
        timestamp: i64,
    }

    /// `struct hlthunk_event_record_cs_timeout`.
    HlthunkEventRecordCsTimeout {
        timestamp: i64,
        seq: u64,
    }

    /// `struct hlthunk_nic_user_ccq_set_in`.
    HlthunkNicUserCcqSetIn {
        port: u32,
        num_of_entries: u32,
    }

    /// `struct hlthunk_nic_user_ccq_set_out`.
    HlthunkNicUserCcqSetOut {
        ccq_handle: u64,
        ccq_pi_handle: u64,
    }

    /// `struct hlthunk_nic_user_db_fifo_set_in`.
    HlthunkNicUserDbFifoSetIn {
        port: u32,
        id: u32,
        base_sob_addr: u32,
        num_sobs: u32,
        mode: u8,
        dir_dup_ports_mask: u8,
    }

    /// `struct hlthunk_nic_user_db_fifo_set_out`.
    HlthunkNicUserDbFifoSetOut {
        ci_handle: u64,
        regs_handle: u64,
        fifo_size: u32,
        fifo_bp_thresh: u32,
        regs_offset: u32,
    }

    /// `struct hlthunk_event_record_razwi_event`.
    HlthunkEventRecordRazwiEvent {
        timestamp: i64,
        addr: u64,
        engine_id: [u16; HL_RAZWI_MAX_NUM_OF_ENGINES_PER_RTR],
        num_of_possible_engines: u16,
        flags: u8,
    }

    /// `struct hlthunk_event_record_undefined_opcode`.
    HlthunkEventRecordUndefinedOpcode {
        timestamp: i64,
        cb_addr_streams: [[u64; OPCODE_INFO_MAX_ADDR_SIZE]; MAX_QMAN_STREAMS_INFO],
        cq_addr: u64,
        cq_size: u32,
        cb_addr_streams_len: u32,
        engine_id: u32,
        stream_id: u32,
    }

    /// `struct hlthunk_event_record_critical_hw_err`.
    HlthunkEventRecordCriticalHwErr {
        timestamp: i64,
        event_id: u16,
    }

    /// `struct hlthunk_event_record_critical_fw_err`.
    HlthunkEventRecordCriticalFwErr {
        timestamp: i64,
        err_type: u32,
        reported_err_id: u16,
    }

    /// `struct hlthunk_event_record_engine_err`.
    HlthunkEventRecordEngineErr {
        timestamp: i64,
        engine_id: u16,
        error_count: u16,
    }

    /// `struct hlthunk_sec_attest_info`.
    HlthunkSecAttestInfo {
        nonce: u32,
        pcr_quote_len: u16,
        pub_data_len: u16,
        certificate_len: u16,
        pcr_num_reg: u8,
        pcr_reg_len: u8,
        quote_sig_len: u8,
        pcr_data: [u8; SEC_PCR_DATA_BUF_SZ],
        pcr_quote: [u8; SEC_PCR_QUOTE_BUF_SZ],
        quote_sig: [u8; SEC_SIGNATURE_BUF_SZ],
        public_data: [u8; SEC_PUB_DATA_BUF_SZ],
        certificate: [u8; SEC_CERTIFICATE_BUF_SZ],
    }

    /// `struct hlthunk_dev_info_signed`.
    HlthunkDevInfoSigned {
        nonce: u32,
        pub_data_len: u16,
        certificate_len: u16,
        info_sig_len: u8,
        public_data: [u8; SEC_PUB_DATA_BUF_SZ],
        certificate: [u8; SEC_CERTIFICATE_BUF_SZ],
        info_sig: [u8; SEC_SIGNATURE_BUF_SZ],
        dev_info_len: u16,
        dev_info: [u8; SEC_DEV_INFO_BUF_SZ],
    }

    /// `struct hlthunk_user_mapping`.
    HlthunkUserMapping {
        dev_va: u64,
        size: u64,
    }

    /// `struct hlthunk_page_fault_info`.
    HlthunkPageFaultInfo {
        timestamp: i64,
        addr: u64,
        engine_id: u16,
        num_of_mappings: u32,
        mappings_buf: *mut HlthunkUserMapping,
    }

    /// `struct hlthunk_debugfs`.
    HlthunkDebugfs {
        addr_fd: c_int,
        data_fd: c_int,
        clk_gate_fd: c_int,
        clk_gate_val: [c_char; 32],
    }
}
