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

numbered_enum! {
    /// `hl_cs_chunk.queue_index` on Gaudi, `GAUDI_QUEUE_ID_*`: engine, then stream 0 to 3.
    pub struct GaudiQueue, "GAUDI_QUEUE_ID_", V6_1 {
        "DMA_0_" [0 1 2 3] "", "DMA_1_" [0 1 2 3] "", "CPU_PQ" [""] "", "DMA_2_" [0 1 2 3] "",
        "DMA_3_" [0 1 2 3] "", "DMA_4_" [0 1 2 3] "", "DMA_5_" [0 1 2 3] "", "DMA_6_" [0 1 2 3] "",
        "DMA_7_" [0 1 2 3] "", "MME_0_" [0 1 2 3] "", "MME_1_" [0 1 2 3] "", "TPC_0_" [0 1 2 3] "",
        "TPC_1_" [0 1 2 3] "", "TPC_2_" [0 1 2 3] "", "TPC_3_" [0 1 2 3] "", "TPC_4_" [0 1 2 3] "",
        "TPC_5_" [0 1 2 3] "", "TPC_6_" [0 1 2 3] "", "TPC_7_" [0 1 2 3] "", "NIC_0_" [0 1 2 3] "",
        "NIC_1_" [0 1 2 3] "", "NIC_2_" [0 1 2 3] "", "NIC_3_" [0 1 2 3] "", "NIC_4_" [0 1 2 3] "",
        "NIC_5_" [0 1 2 3] "", "NIC_6_" [0 1 2 3] "", "NIC_7_" [0 1 2 3] "", "NIC_8_" [0 1 2 3] "",
        "NIC_9_" [0 1 2 3] "", "SIZE" [""] "",
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
