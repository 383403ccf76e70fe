//! Queue numbers of Gaudi2 (`enum gaudi2_queue_id`): engine, then stream 0 to 3.
//!
//! The 7.3 driver accepts every number below CPU_PQ, with command buffers of the user only
//! (gaudi2.c:gaudi2_set_fixed_properties), but it switches on few of the PDMA streams: `PDMA_0_0`,
//! `PDMA_0_1` and `PDMA_1_0` (gaudi2_masks.h `PDMA0_QMAN_ENABLE`). A job on another PDMA stream
//! runs into its timeout. EDMA queues lie in DRAM.

numbered_enum! {
    /// `hl_cs_chunk.queue_index` on Gaudi2, `GAUDI2_QUEUE_ID_*`.
    pub struct Gaudi2Queue, "GAUDI2_QUEUE_ID_", V6_1 {
        "PDMA_0_" [0 1 2 3] "", "PDMA_1_" [0 1 2 3] "", "DCORE0_EDMA_0_" [0 1 2 3] "",
        "DCORE0_EDMA_1_" [0 1 2 3] "", "DCORE0_MME_0_" [0 1 2 3] "", "DCORE0_TPC_0_" [0 1 2 3] "",
        "DCORE0_TPC_1_" [0 1 2 3] "", "DCORE0_TPC_2_" [0 1 2 3] "", "DCORE0_TPC_3_" [0 1 2 3] "",
        "DCORE0_TPC_4_" [0 1 2 3] "", "DCORE0_TPC_5_" [0 1 2 3] "", "DCORE0_TPC_6_" [0 1 2 3] "",
        "DCORE1_EDMA_0_" [0 1 2 3] "", "DCORE1_EDMA_1_" [0 1 2 3] "", "DCORE1_MME_0_" [0 1 2 3] "",
        "DCORE1_TPC_0_" [0 1 2 3] "", "DCORE1_TPC_1_" [0 1 2 3] "", "DCORE1_TPC_2_" [0 1 2 3] "",
        "DCORE1_TPC_3_" [0 1 2 3] "", "DCORE1_TPC_4_" [0 1 2 3] "", "DCORE1_TPC_5_" [0 1 2 3] "",
        "DCORE2_EDMA_0_" [0 1 2 3] "", "DCORE2_EDMA_1_" [0 1 2 3] "", "DCORE2_MME_0_" [0 1 2 3] "",
        "DCORE2_TPC_0_" [0 1 2 3] "", "DCORE2_TPC_1_" [0 1 2 3] "", "DCORE2_TPC_2_" [0 1 2 3] "",
        "DCORE2_TPC_3_" [0 1 2 3] "", "DCORE2_TPC_4_" [0 1 2 3] "", "DCORE2_TPC_5_" [0 1 2 3] "",
        "DCORE3_EDMA_0_" [0 1 2 3] "", "DCORE3_EDMA_1_" [0 1 2 3] "", "DCORE3_MME_0_" [0 1 2 3] "",
        "DCORE3_TPC_0_" [0 1 2 3] "", "DCORE3_TPC_1_" [0 1 2 3] "", "DCORE3_TPC_2_" [0 1 2 3] "",
        "DCORE3_TPC_3_" [0 1 2 3] "", "DCORE3_TPC_4_" [0 1 2 3] "", "DCORE3_TPC_5_" [0 1 2 3] "",
        "NIC_0_" [0 1 2 3] "", "NIC_1_" [0 1 2 3] "", "NIC_2_" [0 1 2 3] "", "NIC_3_" [0 1 2 3] "",
        "NIC_4_" [0 1 2 3] "", "NIC_5_" [0 1 2 3] "", "NIC_6_" [0 1 2 3] "", "NIC_7_" [0 1 2 3] "",
        "NIC_8_" [0 1 2 3] "", "NIC_9_" [0 1 2 3] "", "NIC_10_" [0 1 2 3] "", "NIC_11_" [0 1 2 3] "",
        "NIC_12_" [0 1 2 3] "", "NIC_13_" [0 1 2 3] "", "NIC_14_" [0 1 2 3] "", "NIC_15_" [0 1 2 3] "",
        "NIC_16_" [0 1 2 3] "", "NIC_17_" [0 1 2 3] "", "NIC_18_" [0 1 2 3] "", "NIC_19_" [0 1 2 3] "",
        "NIC_20_" [0 1 2 3] "", "NIC_21_" [0 1 2 3] "", "NIC_22_" [0 1 2 3] "", "NIC_23_" [0 1 2 3] "",
        "ROT_0_" [0 1 2 3] "", "ROT_1_" [0 1 2 3] "", "CPU_PQ" [""] "", "SIZE" [""] "",
    }
}
