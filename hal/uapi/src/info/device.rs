//! What the device is and how it is.

use crate::limits::{
    HL_BUSY_ENGINES_MASK_EXT_SIZE, HL_CLK_THROTTLE_TYPE_MAX, HL_INFO_CARD_NAME_MAX_LEN,
    HL_INFO_VERSION_MAX_LEN, HL_PLL_NUM_OUTPUTS,
};

open_enum! {
    /// `enum hl_device_status`.
    pub struct DeviceStatus(u32), "HL_DEVICE_STATUS_" {
        V6_1 OPERATIONAL = 0,
        V6_1 IN_RESET = 1,
        V6_1 MALFUNCTION = 2,
        V6_1 NEEDS_RESET = 3,
        V6_1 IN_DEVICE_CREATION = 4,
        V6_1 IN_RESET_AFTER_DEVICE_RELEASE = 5,
    }
}

open_enum! {
    /// `enum hl_server_type`.
    pub struct ServerType(u16), "HL_SERVER_" {
        V6_1 TYPE_UNKNOWN = 0,
        V6_1 GAUDI_HLS1 = 1,
        V6_1 GAUDI_HLS1H = 2,
        V6_1 GAUDI_TYPE1 = 3,
        V6_1 GAUDI_TYPE2 = 4,
        V6_1 GAUDI2_HLS2 = 5,
        Gaudi3 GAUDI3_HLS3_DEPRECATED = 6,
        V7 GAUDI2_TYPE1 = 7,
        Gaudi3 GAUDI3_HLS3_FULLSCALE_IN = 8,
        Gaudi3 GAUDI3_HLS3_FULLSCALE_OUT = 9,
        Gaudi3 GAUDI3_HLS3_FULL_OAM_3PORTS_SCALE_OUT = 10,
        Gaudi3 GAUDI3_HLS3_FULL_OAM_6PORTS_SCALE_OUT = 11,
        Gaudi3 GAUDI3_HLS3_SINGLEPORT_OAM_FULLSCALE_OUT = 12,
    }
}

flags! {
    /// `hl_info_clk_throttle.clk_throttling_reason`, `HL_CLK_THROTTLE_*`.
    pub struct ClkThrottle(u32), "HL_CLK_THROTTLE_" {
        V6_1 POWER = 0x1,
        V6_1 THERMAL = 0x2,
    }
}

open_enum! {
    /// `enum hl_clk_throttling_type`: an index into the times of [`HlInfoClkThrottle`].
    pub struct ClkThrottleType(u32), "HL_CLK_THROTTLE_TYPE_" {
        V6_1 POWER = 0,
        V6_1 THERMAL = 1,
    }
}

open_enum! {
    /// `enum hl_gaudi2_pll_index`: `hl_info_args.pll_index` on Gaudi2.
    pub struct Gaudi2Pll(u32), "HL_GAUDI2_" {
        V6_1 CPU_PLL = 0,
        V6_1 PCI_PLL = 1,
        V6_1 SRAM_PLL = 2,
        V6_1 HBM_PLL = 3,
        V6_1 NIC_PLL = 4,
        V6_1 DMA_PLL = 5,
        V6_1 MESH_PLL = 6,
        V6_1 MME_PLL = 7,
        V6_1 TPC_PLL = 8,
        V6_1 IF_PLL = 9,
        V6_1 VID_PLL = 10,
        V6_1 MSS_PLL = 11,
    }
}

/// The text of a zero-padded field, up to its first zero; bytes that are not UTF-8 end it.
fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let bytes = &bytes[..end];
    match core::str::from_utf8(bytes) {
        Ok(text) => text,
        // `valid_up_to` is a valid length.
        Err(e) => core::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
    }
}

c_structs! {
    /// 304 bytes; 256 in Linux 6.1.
    pub struct HlInfoHwIpInfo = "struct hl_info_hw_ip_info", 6.1: 256 {
        /// First SRAM address that users may use.
        #[print(Hex)] pub sram_base_address: u64,
        /// First DRAM address that users may use (Gaudi2: virtual).
        #[print(Hex)] pub dram_base_address: u64,
        /// DRAM bytes for users.
        pub dram_size: u64,
        /// SRAM bytes for users.
        pub sram_size: u32,
        /// Length of the event counters' array.
        pub num_of_events: u32,
        /// PCI device id.
        #[print(Hex)] pub device_id: u32,
        /// Place of the card in its server (OCP).
        pub module_id: u32,
        /// Decoders that work.
        #[print(Hex)] pub decoder_enabled_mask: u32,
        /// First interrupt id for users.
        pub first_available_interrupt_id: u16,
        /// Kind of server.
        pub server_type: ServerType,
        /// CPLD version of the board.
        pub cpld_version: u32,
        /// PCI PLL: NR.
        pub psoc_pci_pll_nr: u32,
        /// PCI PLL: NF.
        pub psoc_pci_pll_nf: u32,
        /// PCI PLL: OD.
        pub psoc_pci_pll_od: u32,
        /// PCI PLL: divider.
        pub psoc_pci_pll_div_factor: u32,
        /// TPCs that work (Goya, Gaudi).
        #[print(Hex)] pub tpc_enabled_mask: u8,
        /// 1 if there is DRAM.
        pub dram_enabled: u8,
        /// 1 if the device is secured.
        pub security_enabled: u8,
        /// 1 if MMEs work as master and slave.
        pub mme_master_slave_mode: u8,
        /// Firmware version; [`Self::cpucp_version_text`].
        #[print(Text)] pub cpucp_version: [u8; HL_INFO_VERSION_MAX_LEN],
        /// Card name; [`Self::card_name_text`].
        #[print(Text)] pub card_name: [u8; HL_INFO_CARD_NAME_MAX_LEN],
        /// TPCs that work (Gaudi2).
        #[print(Hex)] pub tpc_enabled_mask_ext: u64,
        /// Bytes of a physical DRAM page.
        pub dram_page_size: u64,
        /// EDMA engines that work.
        #[print(Hex)] pub edma_enabled_mask: u32,
        /// Interrupts for users.
        pub number_of_user_interrupts: u16,
        /// Reserved; in the gaudi3 header `interposer_version`.
        #[since(V7)] #[c("reserved1", Gaudi3 "interposer_version")] pub reserved1: u8,
        /// Reserved; in the gaudi3 header `substrate_version`.
        #[since(V7)] #[c("reserved2", Gaudi3 "substrate_version")] pub reserved2: u8,
        /// Reserved; in the gaudi3 header `pdma_user_owned_ch_mask`, DMA channels for users.
        #[since(V7)] #[c("reserved3", Gaudi3 "pdma_user_owned_ch_mask")] pub reserved3: u64,
        /// Bytes of a page when an allocation asks for page size 0.
        pub device_mem_alloc_default_page_size: u64,
        /// Reserved; in the gaudi3 header `nic_ports_mask`, ports that work.
        #[since(V7)] #[c("reserved4", Gaudi3 "nic_ports_mask")] pub reserved4: u64,
        /// Reserved; in the gaudi3 header `nic_ports_external_mask`, ports out of the server.
        #[since(V7)] #[c("reserved5", Gaudi3 "nic_ports_external_mask")] pub reserved5: u64,
        /// Reserved; in the gaudi3 header `mme_enabled_mask`.
        #[since(V7)] #[c("reserved6", Gaudi3 "mme_enabled_mask")] pub reserved6: u32,
        /// Reserved; in the gaudi3 header `odp_supported`.
        #[since(V7)] #[c("reserved7", Gaudi3 "odp_supported")] pub reserved7: u8,
        /// PCI revision.
        #[since(V7)] pub revision_id: u8,
        /// Interrupt with which a TPC calls the host.
        #[since(V7)] pub tpc_interrupt_id: u16,
        /// Rotators that work (Gaudi3).
        #[since(V7)] #[print(Hex)] pub rotator_enabled_mask: u32,
        /// Reserved; in the gaudi3 header `sched_arc_enabled_mask`.
        #[since(V7)] #[c("reserved9", Gaudi3 "sched_arc_enabled_mask")] pub reserved9: u32,
        /// Register with which an engine core calls the firmware.
        #[since(V7)] #[print(Hex)] pub engine_core_interrupt_reg_addr: u64,
        /// DRAM bytes that driver and firmware keep.
        #[since(V7)] pub reserved_dram_size: u64,
    }
}

impl HlInfoHwIpInfo {
    /// The firmware version, up to its first zero.
    pub fn cpucp_version_text(&self) -> &str {
        text(&self.cpucp_version)
    }

    /// The card name, up to its first zero.
    pub fn card_name_text(&self) -> &str {
        text(&self.card_name)
    }
}

c_structs! {
    pub struct HlInfoDramUsage = "struct hl_info_dram_usage" {
        /// Free bytes.
        pub dram_free_mem: u64,
        /// Bytes that the calling context uses.
        pub ctx_dram_mem: u64,
    }

    /// 40 bytes; 24 in Linux 6.1.
    pub struct HlInfoHwIdle = "struct hl_info_hw_idle", 6.1: 24 {
        /// 1 if all engines are idle.
        pub is_idle: u32,
        /// Busy engines 0 to 31.
        #[print(Hex)] pub busy_engines_mask: u32,
        /// Busy engines by id: [`crate::engine::Gaudi2EngineId`].
        #[since(V7)] #[print(Hex)] pub busy_engines_mask_ext: [u64; HL_BUSY_ENGINES_MASK_EXT_SIZE],
    }

    pub struct HlInfoDeviceStatus = "struct hl_info_device_status" {
        /// The status.
        pub status: DeviceStatus,
        /// Zero.
        pub pad: u32,
    }

    pub struct HlInfoDeviceUtilization = "struct hl_info_device_utilization" {
        /// Percent.
        pub utilization: u32,
        /// Zero.
        pub pad: u32,
    }

    pub struct HlInfoClkRate = "struct hl_info_clk_rate" {
        /// MHz now.
        pub cur_clk_rate_mhz: u32,
        /// MHz at most.
        pub max_clk_rate_mhz: u32,
    }

    /// Resets since the driver was loaded.
    pub struct HlInfoResetCount = "struct hl_info_reset_count" {
        /// Hard resets.
        pub hard_reset_cnt: u32,
        /// Resets of the compute engines alone, without those of ordinary closes (driver
        /// device.c:hl_device_reset).
        pub soft_reset_cnt: u32,
    }

    /// 24 bytes; 16 in Linux 6.1.
    pub struct HlInfoTimeSync = "struct hl_info_time_sync", 6.1: 16 {
        /// The device's counter.
        pub device_time: u64,
        /// Nanoseconds of the host's raw monotonic clock.
        pub host_time: u64,
        /// The host's time-stamp counter.
        #[since(V7)] pub tsc_time: u64,
    }

    pub struct HlInfoPciCounters = "struct hl_info_pci_counters" {
        /// KB/s received.
        pub rx_throughput: u64,
        /// KB/s sent.
        pub tx_throughput: u64,
        /// Replays.
        pub replay_cnt: u64,
    }

    pub struct HlInfoClkThrottle = "struct hl_info_clk_throttle" {
        /// Why the clock is low now.
        pub clk_throttling_reason: ClkThrottle,
        /// Zero.
        pub pad: u32,
        /// Microseconds at the start, by reason.
        pub clk_throttling_timestamp_us: [u64; HL_CLK_THROTTLE_TYPE_MAX],
        /// Nanoseconds it took, by reason.
        pub clk_throttling_duration_ns: [u64; HL_CLK_THROTTLE_TYPE_MAX],
    }

    pub struct HlInfoEnergy = "struct hl_info_energy" {
        /// As the firmware counts it.
        pub total_energy_consumption: u64,
    }

    pub struct HlPllFrequencyInfo = "struct hl_pll_frequency_info" {
        /// MHz of each output.
        pub output: [u16; HL_PLL_NUM_OUTPUTS],
    }

    pub struct HlOpenStatsInfo = "struct hl_open_stats_info" {
        /// Successful opens of the compute node.
        pub open_counter: u64,
        /// Milliseconds that the last opener stayed.
        pub last_open_period_ms: u64,
        /// 1 if the compute node is open.
        pub is_compute_ctx_active: u8,
        /// 1 if the last opener is being cleaned up.
        pub compute_ctx_in_release: u8,
        /// Zero.
        pub pad: [u8; 6],
    }

    pub struct HlPowerInfo = "struct hl_power_info" {
        /// As the firmware counts it.
        pub power: u64,
    }

    /// The objects of the dcore asked for.
    pub struct HlInfoSyncManager = "struct hl_info_sync_manager" {
        /// First sync object for users.
        pub first_available_sync_object: u32,
        /// First monitor for users.
        pub first_available_monitor: u32,
        /// First completion queue for users.
        pub first_available_cq: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// Submissions dropped, in total and of this context.
    pub struct HlInfoCsCounters = "struct hl_info_cs_counters" {
        /// No memory.
        pub total_out_of_mem_drop_cnt: u64,
        /// No memory, this context.
        pub ctx_out_of_mem_drop_cnt: u64,
        /// Bad packets.
        pub total_parsing_drop_cnt: u64,
        /// Bad packets, this context.
        pub ctx_parsing_drop_cnt: u64,
        /// Queue full.
        pub total_queue_full_drop_cnt: u64,
        /// Queue full, this context.
        pub ctx_queue_full_drop_cnt: u64,
        /// Device in reset.
        pub total_device_in_reset_drop_cnt: u64,
        /// Device in reset, this context.
        pub ctx_device_in_reset_drop_cnt: u64,
        /// Too many in flight.
        pub total_max_cs_in_flight_drop_cnt: u64,
        /// Too many in flight, this context.
        pub ctx_max_cs_in_flight_drop_cnt: u64,
        /// Bad request.
        pub total_validation_drop_cnt: u64,
        /// Bad request, this context.
        pub ctx_validation_drop_cnt: u64,
    }

    pub struct HlInfoDevMemallocPageSizes = "struct hl_info_dev_memalloc_page_sizes" {
        /// Bit n: pages of 2^n bytes are allowed.
        #[print(Hex)] pub page_order_bitmask: u64,
    }
}
