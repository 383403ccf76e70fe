//! Queue numbers of Gaudi2 (`enum gaudi2_queue_id`): engine, then stream 0 to 3.
//!
//! The 7.3 driver accepts every number below CPU_PQ, with command buffers of the user only
//! (gaudi2.c:gaudi2_set_fixed_properties), but it switches on few of the PDMA streams: `PDMA_0_0`,
//! `PDMA_0_1` and `PDMA_1_0` (gaudi2_masks.h `PDMA0_QMAN_ENABLE`). A job on another PDMA stream
//! runs into its timeout. EDMA queues lie in DRAM.

queue_enum! {
    /// `hl_cs_chunk.queue_index` on Gaudi2, `GAUDI2_QUEUE_ID_*`.
    pub struct Gaudi2Queue, "GAUDI2_QUEUE_ID_" {
        streams {
            "PDMA_0" = 0, "PDMA_1" = 4, "DCORE0_EDMA_0" = 8, "DCORE0_EDMA_1" = 12, "DCORE0_MME_0" = 16,
            "DCORE0_TPC_0" = 20, "DCORE0_TPC_1" = 24, "DCORE0_TPC_2" = 28, "DCORE0_TPC_3" = 32,
            "DCORE0_TPC_4" = 36, "DCORE0_TPC_5" = 40, "DCORE0_TPC_6" = 44, "DCORE1_EDMA_0" = 48,
            "DCORE1_EDMA_1" = 52, "DCORE1_MME_0" = 56, "DCORE1_TPC_0" = 60, "DCORE1_TPC_1" = 64,
            "DCORE1_TPC_2" = 68, "DCORE1_TPC_3" = 72, "DCORE1_TPC_4" = 76, "DCORE1_TPC_5" = 80,
            "DCORE2_EDMA_0" = 84, "DCORE2_EDMA_1" = 88, "DCORE2_MME_0" = 92, "DCORE2_TPC_0" = 96,
            "DCORE2_TPC_1" = 100, "DCORE2_TPC_2" = 104, "DCORE2_TPC_3" = 108, "DCORE2_TPC_4" = 112,
            "DCORE2_TPC_5" = 116, "DCORE3_EDMA_0" = 120, "DCORE3_EDMA_1" = 124, "DCORE3_MME_0" = 128,
            "DCORE3_TPC_0" = 132, "DCORE3_TPC_1" = 136, "DCORE3_TPC_2" = 140, "DCORE3_TPC_3" = 144,
            "DCORE3_TPC_4" = 148, "DCORE3_TPC_5" = 152, "NIC_0" = 156, "NIC_1" = 160, "NIC_2" = 164,
            "NIC_3" = 168, "NIC_4" = 172, "NIC_5" = 176, "NIC_6" = 180, "NIC_7" = 184, "NIC_8" = 188,
            "NIC_9" = 192, "NIC_10" = 196, "NIC_11" = 200, "NIC_12" = 204, "NIC_13" = 208, "NIC_14" = 212,
            "NIC_15" = 216, "NIC_16" = 220, "NIC_17" = 224, "NIC_18" = 228, "NIC_19" = 232, "NIC_20" = 236,
            "NIC_21" = 240, "NIC_22" = 244, "NIC_23" = 248, "ROT_0" = 252, "ROT_1" = 256,
        }
        others { "CPU_PQ" = 260, "SIZE" = 261, }
    }
}
