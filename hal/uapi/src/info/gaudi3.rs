//! What only the Gaudi3 release's header asks of a device.

open_enum! {
    /// `enum hl_gaudi3_pll_index`: `hl_info_args.pll_index` on Gaudi3.
    pub struct Gaudi3Pll(u32), "HL_GAUDI3_" {
        Gaudi3 CPU_PLL = 0,
        Gaudi3 PCI_PLL = 1,
        Gaudi3 HBM_PLL = 2,
        Gaudi3 NIC_PLL = 3,
        Gaudi3 DMA_PLL = 4,
        Gaudi3 MESH_PLL = 5,
        Gaudi3 MME_PLL = 6,
        Gaudi3 TPC_PLL = 7,
        Gaudi3 VID_PLL = 8,
        Gaudi3 D2D_PLL = 9,
        Gaudi3 CS_PLL = 10,
        Gaudi3 C2C_PLL = 11,
        Gaudi3 NCH_PLL = 12,
        Gaudi3 C2M_PLL = 13,
    }
}

/// The most counters of a link (`HABANA_LINK_CNT_MAX_NUM`).
pub const HABANA_LINK_CNT_MAX_NUM: usize = 256;
/// Bytes of a counter's name (`HABANA_LINK_STR_LEN`).
pub const HABANA_LINK_STR_LEN: usize = 32;
/// The most MAC addresses of a device (`HL_INFO_MAC_ADDR_MAX_NUM`).
pub const HL_INFO_MAC_ADDR_MAX_NUM: usize = 128;

c_structs! {
    /// The link whose number the argument word carries (C: `habana_link_id`).
    pub struct HlInfoHabanaLinkState = "struct hl_info_habana_link_state", Gaudi3 {
        /// 1 if the link is up.
        pub up: u8,
        /// Zero.
        pub pad: [u8; 7],
    }

    /// Goes in and out at `return_pointer`.
    pub struct HlInfoHabanaLinkCounters = "struct hl_info_habana_link_counters", Gaudi3 {
        /// Address of a buffer for the counters' names, [`HABANA_LINK_STR_LEN`] bytes each.
        #[print(Hex)] pub str_buf_ptr: u64,
        /// Address of a buffer for their values, 8 bytes each.
        #[print(Hex)] pub val_buf_ptr: u64,
        /// Out: how many there are.
        pub num_of_stat: u32,
        /// Zero.
        pub pad: u32,
    }

    /// [`super::HlInfoTimeSync`] of one die.
    pub struct HlInfoTimeSyncPerDie = "struct hl_info_time_sync_per_die", Gaudi3 {
        /// In: which die.
        pub die_index: u32,
        /// Zero.
        pub pad: u32,
        /// The die's counter.
        pub device_time: u64,
        /// Nanoseconds of the host's raw monotonic clock.
        pub host_time: u64,
        /// The host's time-stamp counter.
        pub tsc_time: u64,
    }

    /// What the module was loaded with.
    pub struct HlInfoModuleParams = "struct hl_info_module_params", Gaudi3 {
        /// TPCs that work.
        #[print(Hex)] pub tpc_mask: u64,
        /// Huge pages of host memory.
        pub gaudi_huge_page_optimization: u32,
        /// Seconds until a submission counts as hung.
        pub timeout_locked: u32,
        /// 1 if a hung submission resets the device.
        pub reset_on_lockup: u32,
        /// 1 on an emulator.
        pub pldm: u32,
        /// 1 if the MMU is on.
        pub mmu_enable: u32,
        /// 1 if clocks are gated.
        pub clock_gating: u32,
        /// 1 if MMEs are on.
        pub mme_enable: u32,
        /// Ports that are on.
        #[print(Hex)] pub nic_ports_mask: u32,
        /// 1 if DRAM is on.
        pub dram_enable: u32,
        /// 1 if the management processor is on.
        pub cpu_enable: u32,
        /// 1 if a reset takes the PCI link down.
        pub reset_pcilink: u32,
        /// 1 if the driver sets the PLLs.
        pub config_pll: u32,
        /// 1 if the management processor's queues are on.
        pub cpu_queues_enable: u32,
        /// 1 if the driver loads firmware.
        pub fw_loading: u32,
        /// 1 if the heartbeat is watched.
        pub heartbeat: u32,
        /// 1 if AXI is drained.
        pub axi_drain: u32,
        /// 1 if security is on.
        pub security_enable: u32,
        /// 1 if SRAM is scrambled.
        pub sram_scrambler_enable: u32,
        /// 1 if DRAM is scrambled.
        pub dram_scrambler_enable: u32,
        /// 1 if the cache is on.
        pub cache_enabled: u32,
        /// 1 if HBM has ECC.
        pub hbm_ecc_enable: u32,
        /// 1 in compatibility mode.
        pub compatibility_mode: u32,
        /// 1 if firmware events reset the device.
        pub hard_reset_on_fw_events: u32,
        /// Decoders that are on.
        #[print(Hex)] pub decoder_mask: u32,
        /// Rotators that are on.
        #[print(Hex)] pub rotator_mask: u32,
        /// 1 if freed pages are scrubbed.
        pub dram_page_scrub: u32,
        /// More about clock gating.
        pub clock_gating_ext: u32,
        /// More about firmware loading.
        pub fw_loading_ext: u32,
        /// Lanes of a port.
        pub nic_lanes_per_port: u32,
        /// What C pads with.
        #[c()] pub pad: u32,
    }
}
