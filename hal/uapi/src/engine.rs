//! Engine numbers of Gaudi2 and Gaudi3 (`enum gaudi2_engine_id`): bit numbers of
//! [`crate::info::HlInfoHwIdle`]'s mask.

open_enum! {
    /// An engine of Gaudi2, `GAUDI2_*`. The header's `GAUDI2_ENGINE_ID_SIZE` is left out: it grew
    /// with the list.
    pub struct Gaudi2EngineId(u32), "GAUDI2_" {
        V6_1 DCORE0_ENGINE_ID_EDMA_0 = 0, V6_1 DCORE0_ENGINE_ID_EDMA_1 = 1,
        V6_1 DCORE0_ENGINE_ID_MME = 2,
        V6_1 DCORE0_ENGINE_ID_TPC_0 = 3, V6_1 DCORE0_ENGINE_ID_TPC_1 = 4, V6_1 DCORE0_ENGINE_ID_TPC_2 = 5,
        V6_1 DCORE0_ENGINE_ID_TPC_3 = 6, V6_1 DCORE0_ENGINE_ID_TPC_4 = 7, V6_1 DCORE0_ENGINE_ID_TPC_5 = 8,
        V6_1 DCORE0_ENGINE_ID_DEC_0 = 9, V6_1 DCORE0_ENGINE_ID_DEC_1 = 10,
        V6_1 DCORE1_ENGINE_ID_EDMA_0 = 11, V6_1 DCORE1_ENGINE_ID_EDMA_1 = 12,
        V6_1 DCORE1_ENGINE_ID_MME = 13,
        V6_1 DCORE1_ENGINE_ID_TPC_0 = 14, V6_1 DCORE1_ENGINE_ID_TPC_1 = 15,
        V6_1 DCORE1_ENGINE_ID_TPC_2 = 16, V6_1 DCORE1_ENGINE_ID_TPC_3 = 17,
        V6_1 DCORE1_ENGINE_ID_TPC_4 = 18, V6_1 DCORE1_ENGINE_ID_TPC_5 = 19,
        V6_1 DCORE1_ENGINE_ID_DEC_0 = 20, V6_1 DCORE1_ENGINE_ID_DEC_1 = 21,
        V6_1 DCORE2_ENGINE_ID_EDMA_0 = 22, V6_1 DCORE2_ENGINE_ID_EDMA_1 = 23,
        V6_1 DCORE2_ENGINE_ID_MME = 24,
        V6_1 DCORE2_ENGINE_ID_TPC_0 = 25, V6_1 DCORE2_ENGINE_ID_TPC_1 = 26,
        V6_1 DCORE2_ENGINE_ID_TPC_2 = 27, V6_1 DCORE2_ENGINE_ID_TPC_3 = 28,
        V6_1 DCORE2_ENGINE_ID_TPC_4 = 29, V6_1 DCORE2_ENGINE_ID_TPC_5 = 30,
        V6_1 DCORE2_ENGINE_ID_DEC_0 = 31, V6_1 DCORE2_ENGINE_ID_DEC_1 = 32,
        V6_1 DCORE3_ENGINE_ID_EDMA_0 = 33, V6_1 DCORE3_ENGINE_ID_EDMA_1 = 34,
        V6_1 DCORE3_ENGINE_ID_MME = 35,
        V6_1 DCORE3_ENGINE_ID_TPC_0 = 36, V6_1 DCORE3_ENGINE_ID_TPC_1 = 37,
        V6_1 DCORE3_ENGINE_ID_TPC_2 = 38, V6_1 DCORE3_ENGINE_ID_TPC_3 = 39,
        V6_1 DCORE3_ENGINE_ID_TPC_4 = 40, V6_1 DCORE3_ENGINE_ID_TPC_5 = 41,
        V6_1 DCORE3_ENGINE_ID_DEC_0 = 42, V6_1 DCORE3_ENGINE_ID_DEC_1 = 43,
        V6_1 DCORE0_ENGINE_ID_TPC_6 = 44,
        V6_1 ENGINE_ID_PDMA_0 = 45, V6_1 ENGINE_ID_PDMA_1 = 46,
        V6_1 ENGINE_ID_ROT_0 = 47, V6_1 ENGINE_ID_ROT_1 = 48,
        V6_1 PCIE_ENGINE_ID_DEC_0 = 49, V6_1 PCIE_ENGINE_ID_DEC_1 = 50,
        V6_1 ENGINE_ID_NIC0_0 = 51, V6_1 ENGINE_ID_NIC0_1 = 52, V6_1 ENGINE_ID_NIC1_0 = 53,
        V6_1 ENGINE_ID_NIC1_1 = 54, V6_1 ENGINE_ID_NIC2_0 = 55, V6_1 ENGINE_ID_NIC2_1 = 56,
        V6_1 ENGINE_ID_NIC3_0 = 57, V6_1 ENGINE_ID_NIC3_1 = 58, V6_1 ENGINE_ID_NIC4_0 = 59,
        V6_1 ENGINE_ID_NIC4_1 = 60, V6_1 ENGINE_ID_NIC5_0 = 61, V6_1 ENGINE_ID_NIC5_1 = 62,
        V6_1 ENGINE_ID_NIC6_0 = 63, V6_1 ENGINE_ID_NIC6_1 = 64, V6_1 ENGINE_ID_NIC7_0 = 65,
        V6_1 ENGINE_ID_NIC7_1 = 66, V6_1 ENGINE_ID_NIC8_0 = 67, V6_1 ENGINE_ID_NIC8_1 = 68,
        V6_1 ENGINE_ID_NIC9_0 = 69, V6_1 ENGINE_ID_NIC9_1 = 70, V6_1 ENGINE_ID_NIC10_0 = 71,
        V6_1 ENGINE_ID_NIC10_1 = 72, V6_1 ENGINE_ID_NIC11_0 = 73, V6_1 ENGINE_ID_NIC11_1 = 74,
        V7 ENGINE_ID_PCIE = 75,
        V7 ENGINE_ID_PSOC = 76,
        V7 ENGINE_ID_ARC_FARM = 77,
        V7 ENGINE_ID_KDMA = 78,
    }
}

impl Gaudi2EngineId {
    /// How many there are: `GAUDI2_ENGINE_ID_SIZE` of Linux 7.3.
    pub const SIZE: u32 = Self::ENGINE_ID_KDMA.0 + 1;

    /// Whether `HL_ENGINE_STALL` and `HL_ENGINE_RESUME` take it: EDMAs, MMEs, and the TPCs of the
    /// die cores (gaudi2.c:gaudi2_set_engine_modes). They lie in the same order in each die core,
    /// before its decoders.
    pub const fn has_modes(self) -> bool {
        const DCORE: u32 =
            Gaudi2EngineId::DCORE1_ENGINE_ID_EDMA_0.0 - Gaudi2EngineId::DCORE0_ENGINE_ID_EDMA_0.0;
        self.0 < Self::DCORE0_ENGINE_ID_TPC_6.0 && self.0 % DCORE < Self::DCORE0_ENGINE_ID_DEC_0.0
    }
}

numbered_enum! {
    /// An engine of Gaudi3, `GAUDI3_*`, gaudi3 header (`enum gaudi3_engine_id`).
    pub struct Gaudi3EngineId, "GAUDI3_", Gaudi3 {
        "HDCORE0_ENGINE_ID_DEC_" [0 1] "", "HDCORE1_ENGINE_ID_DEC_" [0 1] "",
        "HDCORE2_ENGINE_ID_DEC_" [0 1] "", "HDCORE3_ENGINE_ID_DEC_" [0 1] "",
        "HDCORE4_ENGINE_ID_DEC_" [0 1] "", "HDCORE5_ENGINE_ID_DEC_" [0 1] "",
        "HDCORE6_ENGINE_ID_DEC_" [0 1] "", "HDCORE7_ENGINE_ID_DEC_" [0 1] "",
        "HDCORE1_ENGINE_ID_EDMA_" [0 1] "", "HDCORE3_ENGINE_ID_EDMA_" [0 1] "",
        "HDCORE4_ENGINE_ID_EDMA_" [0 1] "", "HDCORE6_ENGINE_ID_EDMA_" [0 1] "",
        "HDCORE" [0 1 2 3 4 5 6 7] "_ENGINE_ID_MME_0", "HDCORE0_ENGINE_ID_TPC_" [0 1 2 3 4 5 6 7] "",
        "HDCORE1_ENGINE_ID_TPC_" [0 1 2 3 4 5 6 7] "", "HDCORE2_ENGINE_ID_TPC_" [0 1 2 3 4 5 6 7] "",
        "HDCORE3_ENGINE_ID_TPC_" [0 1 2 3 4 5 6 7] "", "HDCORE4_ENGINE_ID_TPC_" [0 1 2 3 4 5 6 7] "",
        "HDCORE5_ENGINE_ID_TPC_" [0 1 2 3 4 5 6 7] "", "HDCORE6_ENGINE_ID_TPC_" [0 1 2 3 4 5 6 7] "",
        "HDCORE7_ENGINE_ID_TPC_" [0 1 2 3 4 5 6 7] "", "HDCORE" [0 2 5 7] "_ENGINE_ID_TPC_8",
        "DIE0_ENGINE_ID_NIC_" [0 1 2 3 4 5] "", "DIE1_ENGINE_ID_NIC_" [0 1 2 3 4 5] "",
        "HDCORE1_ENGINE_ID_ROT_" [0 1] "", "HDCORE3_ENGINE_ID_ROT_" [0 1] "",
        "HDCORE4_ENGINE_ID_ROT_" [0 1] "", "HDCORE6_ENGINE_ID_ROT_" [0 1] "",
        "DIE0_ENGINE_ID_PDMA_0_CH_" [0 1 2 3 4 5] "", "DIE0_ENGINE_ID_PDMA_1_CH_" [0 1 2 3 4 5] "",
        "DIE1_ENGINE_ID_PDMA_0_CH_" [0 1 2 3 4 5] "", "DIE1_ENGINE_ID_PDMA_1_CH_" [0 1 2 3 4 5] "",
        "HDCORE" [0 1 2 3 4 5 6 7] "_ENGINE_ID_STLB", "HDCORE" [0 1 2 3 4 5 6 7] "_ENGINE_ID_SM",
        "HDCORE0_ENGINE_ID_ARCF_" [0 1] "", "HDCORE1_ENGINE_ID_ARCF_" [0 1] "",
        "HDCORE2_ENGINE_ID_ARCF_" [0 1] "", "HDCORE3_ENGINE_ID_ARCF_" [0 1] "",
        "HDCORE4_ENGINE_ID_ARCF_" [0 1] "", "HDCORE5_ENGINE_ID_ARCF_" [0 1] "",
        "HDCORE6_ENGINE_ID_ARCF_" [0 1] "", "HDCORE7_ENGINE_ID_ARCF_" [0 1] "",
        "DIE" [0 1] "_ENGINE_ID_PCIE", "DIE" [0 1] "_ENGINE_ID_ETR_PSOC",
        "DIE" [0 1] "_ENGINE_ID_ETR_NIC", "DIE0_ENGINE_ID_PDMA_" [0 1] "_DUP",
        "DIE1_ENGINE_ID_PDMA_" [0 1] "_DUP",
    }
}
