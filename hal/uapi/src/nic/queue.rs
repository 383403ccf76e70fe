//! Queues of work and of completions, in memory of the user or of the driver.

open_enum! {
    /// What an array of work queues is for (`enum hl_nic_mem_type`).
    pub struct NicMemType(u32), "HL_NIC_USER_" {
        Gaudi3 WQ_SEND = 0,
        Gaudi3 WQ_RECV = 1,
        Gaudi3 COLL_WQ_SEND = 2,
        Gaudi3 COLL_WQ_RECV = 3,
        Gaudi3 COLL_SCALE_OUT_WQ_SEND = 4,
        Gaudi3 COLL_SCALE_OUT_WQ_RECV = 5,
    }
}

open_enum! {
    /// Where an array of work queues lies (`enum hl_nic_mem_id`).
    pub struct NicMemId(u32), "HL_NIC_MEM_" {
        Gaudi3 HOST = 1,
        Gaudi3 DEVICE = 2,
    }
}

open_enum! {
    /// The completed side, requester or responder: `hl_nic_cqe.type`.
    pub struct NicCqeType(u8), "HL_NIC_CQE_TYPE_" {
        Gaudi3 REQ = 0,
        Gaudi3 RES = 1,
    }
}

c_structs! {
    /// An entry of a completion queue.
    pub struct HlNicCqe = "struct hl_nic_cqe", Gaudi3 {
        /// The union: `requester.wqe_index`, `responder.msg_id` or `qp_err.syndrome`.
        #[c("requester.wqe_index", "responder.msg_id", "qp_err.syndrome")] pub what: u32,
        /// The port.
        pub port: u32,
        /// Queue-pair number.
        pub qp_number: u32,
        /// [`NicMemType`].
        #[c("type")] pub kind: u8,
        /// 1 for an error.
        pub is_err: u8,
        /// Zero.
        pub pad: [u8; 2],
    }

    /// Sets an array of work queues.
    pub struct HlNicUserWqArrSetIn = "struct hl_nic_user_wq_arr_set_in", Gaudi3 {
        /// Address of the memory.
        #[print(Hex)] pub addr: u64,
        /// The port.
        pub port: u32,
        /// Work queues in the array.
        pub num_of_wqs: u32,
        /// Entries of each.
        pub num_of_wq_entries: u32,
        /// [`NicMemType`].
        #[c("type")] pub kind: u32,
        /// Where the memory lies: [`NicMemId`].
        pub mem_id: u32,
        /// Bytes of a send entry: [`NicSwqGranularity`](super::NicSwqGranularity).
        pub swq_granularity: u8,
        /// Zero.
        pub pad: [u8; 3],
    }

    /// Where the array is.
    pub struct HlNicUserWqArrSetOut = "struct hl_nic_user_wq_arr_set_out", Gaudi3 {
        /// mmap handle of the memory.
        #[print(Hex)] pub mem_handle: u64,
    }

    /// Gives the array back.
    pub struct HlNicUserWqArrUnsetIn = "struct hl_nic_user_wq_arr_unset_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// [`NicMemType`].
        #[c("type")] pub kind: u32,
    }

    /// Sets a completion queue (Gaudi).
    pub struct HlNicUserCqSetIn = "struct hl_nic_user_cq_set_in", Gaudi3 {
        /// Address of the memory.
        #[print(Hex)] pub addr: u64,
        /// The port.
        pub port: u32,
        /// Entries wanted.
        pub num_of_cqes: u32,
    }

    /// Gives it back (Gaudi).
    pub struct HlNicUserCqUnsetIn = "struct hl_nic_user_cq_unset_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Zero.
        pub pad: u32,
    }

    /// Reports the consumed entries (Gaudi).
    pub struct HlNicUserCqUpdateCiIn = "struct hl_nic_user_cq_update_ci_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Consumer index.
        pub ci: u32,
    }

    /// Asks for the number of a completion queue.
    pub struct HlNicAllocUserCqIdIn = "struct hl_nic_alloc_user_cq_id_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Zero.
        pub pad: u32,
    }

    /// The number.
    pub struct HlNicAllocUserCqIdOut = "struct hl_nic_alloc_user_cq_id_out", Gaudi3 {
        /// The number of the object.
        pub id: u32,
        /// Zero.
        pub pad: u32,
    }

    /// Sets a completion queue.
    pub struct HlNicUserCqIdSetIn = "struct hl_nic_user_cq_id_set_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Entries wanted.
        pub num_of_cqes: u32,
        /// The number of the object.
        pub id: u32,
        /// Zero.
        pub pad: u32,
    }

    /// Where its parts are.
    pub struct HlNicUserCqIdSetOut = "struct hl_nic_user_cq_id_set_out", Gaudi3 {
        /// mmap handle of the memory.
        #[print(Hex)] pub mem_handle: u64,
        /// mmap handle of the producer index.
        #[print(Hex)] pub pi_handle: u64,
        /// mmap handle of the registers.
        #[print(Hex)] pub regs_handle: u64,
        /// Where in that mapping the registers start.
        #[print(Hex)] pub regs_offset: u32,
        /// Zero.
        pub pad: u32,
    }

    /// Gives it back.
    pub struct HlNicUserCqIdUnsetIn = "struct hl_nic_user_cq_id_unset_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// The number of the object.
        pub id: u32,
    }

    /// Sets a congestion-control queue.
    pub struct HlNicUserCcqSetIn = "struct hl_nic_user_ccq_set_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Entries wanted.
        pub num_of_entries: u32,
    }

    /// Where its parts are.
    pub struct HlNicUserCcqSetOut = "struct hl_nic_user_ccq_set_out", Gaudi3 {
        /// mmap handle of the memory.
        #[print(Hex)] pub mem_handle: u64,
        /// mmap handle of the producer index.
        #[print(Hex)] pub pi_handle: u64,
        /// The number of the object.
        pub id: u32,
        /// Zero.
        pub pad: u32,
    }

    /// Gives it back.
    pub struct HlNicUserCcqUnsetIn = "struct hl_nic_user_ccq_unset_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Zero.
        pub pad: u32,
    }
}
