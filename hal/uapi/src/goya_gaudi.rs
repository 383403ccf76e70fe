//! Numbers of Goya and Gaudi: queues, engines, PLLs and what else their header fixes.
//!
//! Both chips take command buffers of the kernel on the queues that reach the host (`enum
//! hl_queue_type` EXT) and addresses of packets on the others (INT).

open_enum! {
    /// `hl_cs_chunk.queue_index` on Goya, `GOYA_QUEUE_ID_*`.
    pub struct GoyaQueue(u32), "GOYA_QUEUE_ID_" {
        V6_1 DMA_0 = 0, V6_1 DMA_1 = 1, V6_1 DMA_2 = 2, V6_1 DMA_3 = 3, V6_1 DMA_4 = 4, V6_1 CPU_PQ = 5,
        V6_1 MME = 6, V6_1 TPC0 = 7, V6_1 TPC1 = 8, V6_1 TPC2 = 9, V6_1 TPC3 = 10, V6_1 TPC4 = 11,
        V6_1 TPC5 = 12, V6_1 TPC6 = 13, V6_1 TPC7 = 14, V6_1 SIZE = 15,
    }
}

open_enum! {
    /// `hl_cs_chunk.queue_index` on Gaudi, `GAUDI_QUEUE_ID_*`: engine, then stream 0 to 3.
    pub struct GaudiQueue(u32), "GAUDI_QUEUE_ID_" {
        V6_1 DMA_0_0 = 0, V6_1 DMA_0_1 = 1, V6_1 DMA_0_2 = 2, V6_1 DMA_0_3 = 3, V6_1 DMA_1_0 = 4,
        V6_1 DMA_1_1 = 5, V6_1 DMA_1_2 = 6, V6_1 DMA_1_3 = 7, V6_1 CPU_PQ = 8, V6_1 DMA_2_0 = 9,
        V6_1 DMA_2_1 = 10, V6_1 DMA_2_2 = 11, V6_1 DMA_2_3 = 12, V6_1 DMA_3_0 = 13, V6_1 DMA_3_1 = 14,
        V6_1 DMA_3_2 = 15, V6_1 DMA_3_3 = 16, V6_1 DMA_4_0 = 17, V6_1 DMA_4_1 = 18, V6_1 DMA_4_2 = 19,
        V6_1 DMA_4_3 = 20, V6_1 DMA_5_0 = 21, V6_1 DMA_5_1 = 22, V6_1 DMA_5_2 = 23, V6_1 DMA_5_3 = 24,
        V6_1 DMA_6_0 = 25, V6_1 DMA_6_1 = 26, V6_1 DMA_6_2 = 27, V6_1 DMA_6_3 = 28, V6_1 DMA_7_0 = 29,
        V6_1 DMA_7_1 = 30, V6_1 DMA_7_2 = 31, V6_1 DMA_7_3 = 32, V6_1 MME_0_0 = 33, V6_1 MME_0_1 = 34,
        V6_1 MME_0_2 = 35, V6_1 MME_0_3 = 36, V6_1 MME_1_0 = 37, V6_1 MME_1_1 = 38, V6_1 MME_1_2 = 39,
        V6_1 MME_1_3 = 40, V6_1 TPC_0_0 = 41, V6_1 TPC_0_1 = 42, V6_1 TPC_0_2 = 43, V6_1 TPC_0_3 = 44,
        V6_1 TPC_1_0 = 45, V6_1 TPC_1_1 = 46, V6_1 TPC_1_2 = 47, V6_1 TPC_1_3 = 48, V6_1 TPC_2_0 = 49,
        V6_1 TPC_2_1 = 50, V6_1 TPC_2_2 = 51, V6_1 TPC_2_3 = 52, V6_1 TPC_3_0 = 53, V6_1 TPC_3_1 = 54,
        V6_1 TPC_3_2 = 55, V6_1 TPC_3_3 = 56, V6_1 TPC_4_0 = 57, V6_1 TPC_4_1 = 58, V6_1 TPC_4_2 = 59,
        V6_1 TPC_4_3 = 60, V6_1 TPC_5_0 = 61, V6_1 TPC_5_1 = 62, V6_1 TPC_5_2 = 63, V6_1 TPC_5_3 = 64,
        V6_1 TPC_6_0 = 65, V6_1 TPC_6_1 = 66, V6_1 TPC_6_2 = 67, V6_1 TPC_6_3 = 68, V6_1 TPC_7_0 = 69,
        V6_1 TPC_7_1 = 70, V6_1 TPC_7_2 = 71, V6_1 TPC_7_3 = 72, V6_1 NIC_0_0 = 73, V6_1 NIC_0_1 = 74,
        V6_1 NIC_0_2 = 75, V6_1 NIC_0_3 = 76, V6_1 NIC_1_0 = 77, V6_1 NIC_1_1 = 78, V6_1 NIC_1_2 = 79,
        V6_1 NIC_1_3 = 80, V6_1 NIC_2_0 = 81, V6_1 NIC_2_1 = 82, V6_1 NIC_2_2 = 83, V6_1 NIC_2_3 = 84,
        V6_1 NIC_3_0 = 85, V6_1 NIC_3_1 = 86, V6_1 NIC_3_2 = 87, V6_1 NIC_3_3 = 88, V6_1 NIC_4_0 = 89,
        V6_1 NIC_4_1 = 90, V6_1 NIC_4_2 = 91, V6_1 NIC_4_3 = 92, V6_1 NIC_5_0 = 93, V6_1 NIC_5_1 = 94,
        V6_1 NIC_5_2 = 95, V6_1 NIC_5_3 = 96, V6_1 NIC_6_0 = 97, V6_1 NIC_6_1 = 98, V6_1 NIC_6_2 = 99,
        V6_1 NIC_6_3 = 100, V6_1 NIC_7_0 = 101, V6_1 NIC_7_1 = 102, V6_1 NIC_7_2 = 103, V6_1 NIC_7_3 = 104,
        V6_1 NIC_8_0 = 105, V6_1 NIC_8_1 = 106, V6_1 NIC_8_2 = 107, V6_1 NIC_8_3 = 108, V6_1 NIC_9_0 = 109,
        V6_1 NIC_9_1 = 110, V6_1 NIC_9_2 = 111, V6_1 NIC_9_3 = 112, V6_1 SIZE = 113,
    }
}

open_enum! {
    /// An engine of Goya, `GOYA_ENGINE_ID_*`: a bit number of [`crate::info::HlInfoHwIdle`]'s mask.
    pub struct GoyaEngineId(u32), "GOYA_ENGINE_ID_" {
        V6_1 DMA_0 = 0, V6_1 DMA_1 = 1, V6_1 DMA_2 = 2, V6_1 DMA_3 = 3, V6_1 DMA_4 = 4, V6_1 MME_0 = 5,
        V6_1 TPC_0 = 6, V6_1 TPC_1 = 7, V6_1 TPC_2 = 8, V6_1 TPC_3 = 9, V6_1 TPC_4 = 10, V6_1 TPC_5 = 11,
        V6_1 TPC_6 = 12, V6_1 TPC_7 = 13,
    }
}

open_enum! {
    /// An engine of Gaudi, `GAUDI_ENGINE_ID_*`: a bit number of [`crate::info::HlInfoHwIdle`]'s
    /// mask.
    pub struct GaudiEngineId(u32), "GAUDI_ENGINE_ID_" {
        V6_1 DMA_0 = 0, V6_1 DMA_1 = 1, V6_1 DMA_2 = 2, V6_1 DMA_3 = 3, V6_1 DMA_4 = 4, V6_1 DMA_5 = 5,
        V6_1 DMA_6 = 6, V6_1 DMA_7 = 7, V6_1 MME_0 = 8, V6_1 MME_1 = 9, V6_1 MME_2 = 10, V6_1 MME_3 = 11,
        V6_1 TPC_0 = 12, V6_1 TPC_1 = 13, V6_1 TPC_2 = 14, V6_1 TPC_3 = 15, V6_1 TPC_4 = 16, V6_1 TPC_5 = 17,
        V6_1 TPC_6 = 18, V6_1 TPC_7 = 19, V6_1 NIC_0 = 20, V6_1 NIC_1 = 21, V6_1 NIC_2 = 22, V6_1 NIC_3 = 23,
        V6_1 NIC_4 = 24, V6_1 NIC_5 = 25, V6_1 NIC_6 = 26, V6_1 NIC_7 = 27, V6_1 NIC_8 = 28, V6_1 NIC_9 = 29,
    }
}

open_enum! {
    /// `enum hl_goya_pll_index`: `hl_info_args.pll_index` on Goya.
    pub struct GoyaPll(u32), "HL_GOYA_" {
        V6_1 CPU_PLL = 0, V6_1 IC_PLL = 1, V6_1 MC_PLL = 2, V6_1 MME_PLL = 3, V6_1 PCI_PLL = 4,
        V6_1 EMMC_PLL = 5, V6_1 TPC_PLL = 6,
    }
}

open_enum! {
    /// `enum hl_gaudi_pll_index`: `hl_info_args.pll_index` on Gaudi.
    pub struct GaudiPll(u32), "HL_GAUDI_" {
        V6_1 CPU_PLL = 0, V6_1 PCI_PLL = 1, V6_1 SRAM_PLL = 2, V6_1 HBM_PLL = 3, V6_1 NIC_PLL = 4,
        V6_1 DMA_PLL = 5, V6_1 MESH_PLL = 6, V6_1 MME_PLL = 7, V6_1 TPC_PLL = 8, V6_1 IF_PLL = 9,
    }
}

open_enum! {
    /// `enum gaudi_dcores`: `hl_info_args.dcore_id` on Gaudi. The header's order is not that of the
    /// names.
    pub struct GaudiDcore(u32), "HL_GAUDI_" {
        V6_1 WS_DCORE = 0, V6_1 WN_DCORE = 1, V6_1 EN_DCORE = 2, V6_1 ES_DCORE = 3,
    }
}

open_enum! {
    /// `enum hl_goya_dma_direction`: the software field `dma_dir` of Goya's LIN_DMA packet.
    pub struct GoyaDmaDirection(u32), "HL_DMA_" {
        V6_1 HOST_TO_DRAM = 0, V6_1 HOST_TO_SRAM = 1, V6_1 DRAM_TO_SRAM = 2, V6_1 SRAM_TO_DRAM = 3,
        V6_1 SRAM_TO_HOST = 4, V6_1 DRAM_TO_HOST = 5, V6_1 DRAM_TO_DRAM = 6, V6_1 SRAM_TO_SRAM = 7,
    }
}
