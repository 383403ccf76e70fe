//! The C structs of hlthunk.h with the vendor's layouts. A pointer in a struct is a u64 address.
//!
//! Independent of the library's own definitions, which `tests/hlthunk-abi` compares with the table
//! of facts: an error in either shows as a wrong value here.

#![expect(missing_docs, reason = "hlthunk.h documents names and meanings")]

use zerocopy::{FromBytes, Immutable, IntoBytes};

macro_rules! structs {
    ($($(#[$meta:meta])* $name:ident = $size:literal { $($(#[$doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, FromBytes, Immutable)]
            #[repr(C)]
            pub struct $name { $($(#[$doc])* pub $field: $type,)* }

            const _: () = assert!(size_of::<$name>() == $size);

            impl Default for $name {
                fn default() -> Self {
                    zerocopy::FromZeros::new_zeroed()
                }
            }
        )*
    };
}

/// A buffer for the largest struct that a function fills, if no case reads its fields.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Room(pub [u64; 1024]);

impl Default for Room {
    fn default() -> Self {
        Self([0; 1024])
    }
}

structs! {
    HwIpInfo = 336 {
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
        cpucp_version: [u8; 128],
        module_id: u32,
        card_name: [u8; 16],
        decoder_enabled_mask: u32,
        mme_master_slave_mode: u8,
        tpc_enabled_mask_ext: u64,
        dram_page_size: u64,
        first_available_interrupt_id: u16,
        edma_enabled_mask: u32,
        server_type: u16,
        reserved1: u64,
        number_of_user_interrupts: u16,
        device_mem_alloc_default_page_size: u64,
        reserved2: u64,
        reserved3: u8,
        reserved4: u8,
        reserved5: u64,
        reserved6: u32,
        reserved7: u8,
        security_enabled: u8,
        revision_id: u8,
        tpc_interrupt_id: u16,
        engine_core_interrupt_reg_addr: u64,
        rotator_enabled_mask: u32,
        reserved8: u32,
        reserved_dram_size: u64,
    }
    DramUsageInfo = 16 {
        dram_free_mem: u64,
        ctx_dram_mem: u64,
    }
    EnginesIdleInfo = 40 {
        is_idle: u32,
        pad: u32,
        mask: [u64; 4],
    }
    PllFrequencyInfo = 8 {
        output: [u16; 4],
    }
    ResetCountInfo = 8 {
        hard_reset_count: u32,
        soft_reset_count: u32,
    }
    /// As in 2023; the Gaudi3 release appended a field of 8 bytes.
    TimeSyncInfo = 16 {
        device_time: u64,
        host_time: u64,
    }
    SyncManagerInfo = 16 {
        first_available_sync_object: u32,
        first_available_monitor: u32,
        first_available_cq: u32,
        reserved: u32,
    }
    PciCountersInfo = 24 {
        rx_throughput: u64,
        tx_throughput: u64,
        replay_cnt: u32,
    }
    ClkThrottleInfo = 40 {
        reason_bitmask: u32,
        start_timestamp_us: [u64; 2],
        duration_ns: [u64; 2],
    }
    OpenStatsInfo = 24 {
        open_counter: u64,
        last_open_period_ms: u64,
        is_compute_ctx_active: u8,
        compute_ctx_in_release: u8,
    }
    HwAsicStatus = 96 {
        throttle: ClkThrottleInfo,
        open_stats: OpenStatsInfo,
        power: u64,
        status: u32,
        timestamp_sec: u64,
        valid: u8,
    }
    DramRowInfo = 8 {
        dram_idx: u8,
        pc: u8,
        sid: u8,
        bank_idx: u8,
        row_addr: u16,
        replaced_row_cause: u8,
        pad: u8,
    }
    DramReplacedRowsInfo = 264 {
        num_replaced_rows: u16,
        pad: [u8; 6],
        replaced_rows: [DramRowInfo; 32],
    }
    SecAttestInfo = 3592 {
        nonce: u32,
        pcr_quote_len: u16,
        pub_data_len: u16,
        certificate_len: u16,
        pcr_num_reg: u8,
        pcr_reg_len: u8,
        quote_sig_len: u8,
        pcr_data: [u8; 256],
        pcr_quote: [u8; 510],
        quote_sig: [u8; 255],
        public_data: [u8; 510],
        certificate: [u8; 2046],
    }
    CsIn = 32 {
        chunks_restore: u64,
        chunks_execute: u64,
        num_chunks_restore: u32,
        num_chunks_execute: u32,
        flags: u32,
    }
    CsOut = 16 {
        seq: u64,
        status: u32,
        sob_count_before_submission: u16,
    }
    SignalIn = 24 {
        chunks_restore: u64,
        num_chunks_restore: u32,
        queue_index: u32,
        flags: u32,
    }
    SignalOut = 24 {
        seq: u64,
        status: u32,
        sob_base_addr_offset: u32,
        sob_count_before_submission: u16,
    }
    SigResIn = 8 {
        queue_index: u32,
        count: u32,
    }
    ReserveSigHandle = 12 {
        id: u32,
        sob_base_addr_offset: u32,
        count: u32,
    }
    SigResOut = 16 {
        handle: ReserveSigHandle,
        status: u32,
    }
    WaitForSignalData = 32 {
        /// The address of the array of sequence numbers, or the number of an encapsulated signal.
        signal_seq: u64,
        signal_seq_nr: u32,
        queue_index: u32,
        flags: u32,
        collective_engine_id: u32,
        encaps_signal_offset: u32,
    }
    WaitIn = 32 {
        chunks_restore: u64,
        num_chunks_restore: u32,
        wait_for_signal: u64,
        num_wait_for_signal: u32,
        flags: u32,
    }
    WaitOut = 16 {
        seq: u64,
        status: u32,
    }
    WaitMultiCsIn = 24 {
        seq: u64,
        timeout_us: u64,
        seq_len: u32,
    }
    WaitMultiCsOut = 12 {
        status: u32,
        seq_set: u32,
        completed: u8,
    }
    PageFaultInfo = 32 {
        timestamp: i64,
        addr: u64,
        engine_id: u16,
        num_of_mappings: u32,
        mappings_buf: u64,
    }
    Debugfs = 44 {
        addr_fd: i32,
        data_fd: i32,
        clk_gate_fd: i32,
        clk_gate_val: [u8; 32],
    }
}

/// `enum hlthunk_device_name`: the values on which both releases agree.
pub mod name {
    pub const GOYA: u32 = 0;
    pub const GAUDI: u32 = 2;
    pub const INVALID: u32 = 3;
    pub const DONT_CARE: u32 = 4;
    pub const GAUDI2: u32 = 5;
    /// `HLTHUNK_DEVICE_MAX` of the Gaudi3 release, the larger of the two.
    pub const MAX: u32 = 12;
}

/// `enum hlthunk_event_record_id`.
pub mod record {
    pub const OPEN_DEV: u32 = 0;
    pub const CS_TIMEOUT: u32 = 1;
    pub const RAZWI: u32 = 2;
    pub const UNDEFINED_OPCODE: u32 = 3;
    pub const HW_ERR: u32 = 4;
    pub const FW_ERR: u32 = 5;
    pub const ENGINE: u32 = 6;
}
