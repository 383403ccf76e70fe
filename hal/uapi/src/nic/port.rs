//! Ports: what they can do, doorbell fifos, events and encapsulation.

use super::{HL_NIC_FNA_CMPL_ADDR_NUM, HL_NIC_USER_BP_OFFS_MAX};

open_enum! {
    /// What a doorbell fifo is for (`enum hl_nic_db_fifo_type`).
    pub struct NicDbFifoType(u8), "HL_NIC_DB_FIFO_TYPE_" {
        Gaudi3 DB = 0,
        Gaudi3 CC = 1,
        Gaudi3 COLL_OPS_SHORT = 2,
        Gaudi3 COLL_OPS_LONG = 3,
        Gaudi3 DWQ_LIN = 4,
        Gaudi3 DWQ_MS = 5,
        Gaudi3 COLL_DIR_OPS_SHORT = 6,
        Gaudi3 COLL_DIR_OPS_LONG = 7,
    }
}

open_enum! {
    /// How asking for an event went.
    pub struct NicEqPollStatus(u32), "HL_NIC_EQ_POLL_STATUS_" {
        Gaudi3 SUCCESS = 0,
        Gaudi3 EQ_EMPTY = 1,
        Gaudi3 ERR_UNSUPPORTED_OP = 2,
        Gaudi3 ERR_NO_SUCH_PORT = 3,
        Gaudi3 ERR_PORT_DISABLED = 4,
        Gaudi3 ERR_NO_SUCH_EQ = 5,
        Gaudi3 ERR_UNDEF = 6,
    }
}

open_enum! {
    /// What an event is about.
    pub struct NicEqEventType(u8), "HL_NIC_EQ_EVENT_TYPE_" {
        Gaudi3 CQ_ERR = 0,
        Gaudi3 QP_ERR = 1,
        Gaudi3 DB_FIFO_ERR = 2,
        Gaudi3 CCQ = 3,
        Gaudi3 WTD_SECURITY_ERR = 4,
        Gaudi3 NUMERICAL_ERR = 5,
        Gaudi3 LINK_STATUS = 6,
        Gaudi3 QP_ALIGN_COUNTERS = 7,
    }
}

open_enum! {
    /// How packets are wrapped (`enum hl_nic_encap_type`).
    pub struct NicEncapType(u8), "HL_NIC_ENCAP_" {
        Gaudi3 NONE = 0,
        Gaudi3 OVER_IPV4 = 1,
        Gaudi3 OVER_UDP = 2,
    }
}

c_structs! {
    /// Sets a port up for an application.
    pub struct HlNicSetUserAppParamsIn = "struct hl_nic_set_user_app_params_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Offsets of back-pressure sync objects.
        pub bp_offs: [u32; HL_NIC_USER_BP_OFFS_MAX],
        /// 1 for the advanced features.
        pub advanced: u8,
        /// Zero.
        pub pad1: u8,
        /// Bits of the fence-and-acknowledge mask.
        pub fna_mask_size: u8,
        /// Zero.
        pub pad2: u8,
        /// Offsets of the fence-and-acknowledge fifos.
        pub fna_fifo_offs: [u32; HL_NIC_FNA_CMPL_ADDR_NUM],
    }

    /// Asks what a port can do.
    pub struct HlNicGetUserAppParamsIn = "struct hl_nic_get_user_app_params_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Zero.
        pub pad: [u8; 4],
    }

    /// What a port can do.
    pub struct HlNicGetUserAppParamsOut = "struct hl_nic_get_user_app_params_out", Gaudi3 {
        /// Queue pairs at most.
        pub max_num_of_qps: u32,
        /// Queue pairs in use.
        pub num_allocated_qps: u32,
        /// The highest in use.
        pub max_allocated_qp_idx: u32,
        /// Entries of a completion queue at most.
        pub max_cq_size: u32,
        /// 1 for the advanced features.
        pub advanced: u8,
        /// Completion queues at most.
        pub max_num_of_cqs: u8,
        /// Doorbell fifos at most.
        pub max_num_of_db_fifos: u8,
        /// Encapsulations at most.
        pub max_num_of_encaps: u8,
        /// Speed of the port.
        pub speed: u32,
        /// The macro that the port is in.
        pub nic_macro_idx: u8,
        /// The port in its macro.
        pub nic_phys_port_idx: u8,
        /// Zero.
        pub pad: [u8; 2],
        /// Collective queue pairs out of the server at most.
        pub max_num_of_scale_out_coll_qps: u32,
        /// Collective queue pairs at most.
        pub max_num_of_coll_qps: u32,
        /// Distance of collective queue pairs.
        #[print(Hex)] pub coll_qps_offset: u32,
        /// The first collective queue pair out of the server.
        pub base_scale_out_coll_qp_idx: u32,
        /// The first collective queue pair.
        pub base_coll_qp_idx: u32,
    }

    /// Asks for a doorbell fifo.
    pub struct HlNicAllocUserDbFifoIn = "struct hl_nic_alloc_user_db_fifo_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Number wished for.
        pub id_hint: u32,
    }

    /// Its number.
    pub struct HlNicAllocUserDbFifoOut = "struct hl_nic_alloc_user_db_fifo_out", Gaudi3 {
        /// The number of the object.
        pub id: u32,
        /// Zero.
        pub pad: u32,
    }

    /// Sets a doorbell fifo.
    pub struct HlNicUserDbFifoSetIn = "struct hl_nic_user_db_fifo_set_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// The number of the object.
        pub id: u32,
        /// [`NicDbFifoType`].
        pub mode: u8,
        /// Ports that a direct operation is doubled to.
        pub dir_dup_ports_mask: u8,
        /// Zero.
        pub pad: [u8; 6],
        /// The first sync object.
        #[print(Hex)] pub base_sob_addr: u32,
        /// Sync objects.
        pub num_sobs: u32,
    }

    /// Where its parts are.
    pub struct HlNicUserDbFifoSetOut = "struct hl_nic_user_db_fifo_set_out", Gaudi3 {
        /// mmap handle of the consumer index.
        #[print(Hex)] pub ci_handle: u64,
        /// mmap handle of the registers.
        #[print(Hex)] pub regs_handle: u64,
        /// Where in that mapping the registers start.
        #[print(Hex)] pub regs_offset: u32,
        /// Zero.
        pub pad: u32,
        /// Bytes of the fifo.
        pub fifo_size: u32,
        /// Bytes at which it pushes back.
        pub fifo_bp_thresh: u32,
    }

    /// Gives it back.
    pub struct HlNicUserDbFifoUnsetIn = "struct hl_nic_user_db_fifo_unset_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// The number of the object.
        pub id: u32,
    }

    /// Asks for the next event.
    pub struct HlNicEqPollIn = "struct hl_nic_eq_poll_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Zero.
        pub pad: u32,
    }

    /// The event.
    pub struct HlNicEqPollOut = "struct hl_nic_eq_poll_out", Gaudi3 {
        /// [`NicEqPollStatus`].
        pub status: u32,
        /// What it happened to.
        pub idx: u32,
        /// More about it.
        pub ev_data: u32,
        /// [`NicEqEventType`].
        pub ev_type: u8,
        /// 1 if there are more.
        pub rest_occurred: u8,
        /// 1 for the requester.
        pub is_req: u8,
        /// Zero.
        pub pad: u8,
    }

    /// Asks for an encapsulation.
    pub struct HlNicUserEncapAllocIn = "struct hl_nic_user_encap_alloc_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Zero.
        pub pad: u32,
    }

    /// Its number.
    pub struct HlNicUserEncapAllocOut = "struct hl_nic_user_encap_alloc_out", Gaudi3 {
        /// The number of the object.
        pub id: u32,
        /// Zero.
        pub pad: u32,
    }

    /// Sets an encapsulation.
    pub struct HlNicUserEncapSetIn = "struct hl_nic_user_encap_set_in", Gaudi3 {
        /// Address of the tunnel header.
        pub tnl_hdr_ptr: u64,
        /// Its bytes.
        pub tnl_hdr_size: u32,
        /// The port.
        pub port: u32,
        /// The number of the object.
        pub id: u32,
        /// IPv4 address of the source.
        #[print(Hex)] pub ipv4_addr: u32,
        /// The union: `udp_dst_port` or `ip_proto`.
        #[c("udp_dst_port", "ip_proto")] pub proto: u16,
        /// [`NicEncapType`].
        pub encap_type: u8,
        /// Zero.
        pub pad: [u8; 5],
    }

    /// Gives it back.
    pub struct HlNicUserEncapUnsetIn = "struct hl_nic_user_encap_unset_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// The number of the object.
        pub id: u32,
    }
}
