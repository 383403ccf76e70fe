//! Connections: queue pairs between two ports.

open_enum! {
    /// Bytes of an entry of a send queue (`enum hl_nic_swq_granularity`).
    pub struct NicSwqGranularity(u8), "HL_NIC_SWQE_" {
        Gaudi3 GRAN_32B = 0,
        Gaudi3 GRAN_64B = 1,
    }
}

c_structs! {
    /// Asks for a connection.
    pub struct HlNicAllocConnIn = "struct hl_nic_alloc_conn_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// Connection number wished for.
        pub hint: u32,
    }

    /// The connection.
    pub struct HlNicAllocConnOut = "struct hl_nic_alloc_conn_out", Gaudi3 {
        /// The connection.
        pub conn_id: u32,
        /// Zero.
        pub pad: u32,
    }

    /// The sending side of a connection.
    pub struct HlNicReqConnCtxIn = "struct hl_nic_req_conn_ctx_in", Gaudi3 {
        /// Not in use.
        pub reserved: u32,
        /// IPv4 address of the far side.
        #[print(Hex)] pub dst_ip_addr: u32,
        /// Connection number of the far side.
        pub dst_conn_id: u32,
        /// Not in use.
        pub deprecated1: u32,
        /// Index of the last entry of the send queue.
        pub last_index: u32,
        /// The port.
        pub port: u32,
        /// The connection.
        pub conn_id: u32,
        /// MAC address of the far side.
        pub dst_mac_addr: [u8; 6],
        /// Not in use.
        pub deprecated2: u8,
        /// Traffic priority.
        pub priority: u8,
        /// Not in use.
        pub deprecated3: u8,
        /// Granularity of the retransmission timer.
        pub timer_granularity: u8,
        /// Bytes of a send entry: [`NicSwqGranularity`].
        pub swq_granularity: u8,
        /// Kind of work queue.
        pub wq_type: u8,
        /// Not in use.
        pub deprecated4: u8,
        /// Completion queue.
        pub cq_number: u8,
        /// Logarithm of the far receive queue's size.
        pub wq_remote_log_size: u8,
        /// 1 for congestion control.
        pub congestion_en: u8,
        /// Congestion window.
        pub congestion_wnd: u32,
        /// Largest packet, in bytes.
        pub mtu: u16,
        /// 1 for encapsulation.
        pub encap_en: u8,
        /// The encapsulation.
        pub encap_id: u8,
        /// Entries of the send queue.
        pub wq_size: u32,
        /// 1 for loopback.
        pub loopback: u8,
        /// Index in the collective's link group.
        pub coll_lag_idx: u8,
        /// 1 for the last of the link group.
        pub coll_last_in_lag: u8,
        /// 1 for compression.
        pub compression_en: u8,
        /// Key of the far memory.
        #[print(Hex)] pub remote_key: u32,
        /// 1 for selective acknowledgement.
        pub sack_en: u8,
        /// Zero.
        pub pad: [u8; 7],
    }

    /// Where its queues are.
    pub struct HlNicReqConnCtxOut = "struct hl_nic_req_conn_ctx_out", Gaudi3 {
        /// mmap handle of the send queue.
        #[print(Hex)] pub swq_mem_handle: u64,
        /// mmap handle of the receive queue.
        #[print(Hex)] pub rwq_mem_handle: u64,
    }

    /// The receiving side of a connection.
    pub struct HlNicResConnCtxIn = "struct hl_nic_res_conn_ctx_in", Gaudi3 {
        /// Not in use.
        pub reserved: u32,
        /// IPv4 address of the far side.
        #[print(Hex)] pub dst_ip_addr: u32,
        /// Connection number of the far side.
        pub dst_conn_id: u32,
        /// The port.
        pub port: u32,
        /// The connection.
        pub conn_id: u32,
        /// MAC address of the far side.
        pub dst_mac_addr: [u8; 6],
        /// Traffic priority.
        pub priority: u8,
        /// Not in use.
        pub deprecated1: u8,
        /// Not in use.
        pub deprecated2: u8,
        /// Bytes of an entry of the far send queue.
        pub wq_peer_granularity: u8,
        /// Completion queue.
        pub cq_number: u8,
        /// Not in use.
        pub deprecated3: u8,
        /// The far connection of a pair.
        pub conn_peer: u32,
        /// 1 for rendezvous.
        pub rdv: u8,
        /// 1 for loopback.
        pub loopback: u8,
        /// 1 for encapsulation.
        pub encap_en: u8,
        /// The encapsulation.
        pub encap_id: u8,
        /// Entries of the far send queue.
        pub wq_peer_size: u32,
        /// Key of the own memory.
        #[print(Hex)] pub local_key: u32,
        /// 1 for selective acknowledgement.
        pub sack_en: u8,
        /// Zero.
        pub pad: [u8; 7],
    }

    /// Ends a connection.
    pub struct HlNicDestroyConnIn = "struct hl_nic_destroy_conn_in", Gaudi3 {
        /// The port.
        pub port: u32,
        /// The connection.
        pub conn_id: u32,
    }

    /// Asks for a connection of a collective.
    pub struct HlNicAllocCollConnIn = "struct hl_nic_alloc_coll_conn_in", Gaudi3 {
        /// 1 for a connection out of the server.
        pub is_scale_out: u8,
        /// Zero.
        pub pad: [u8; 7],
    }

    /// The connection.
    pub struct HlNicAllocCollConnOut = "struct hl_nic_alloc_coll_conn_out", Gaudi3 {
        /// The connection.
        pub conn_id: u32,
        /// Zero.
        pub pad: u32,
    }

    /// Asks for a queue pair's state as text.
    pub struct HlNicDumpQpIn = "struct hl_nic_dump_qp_in", Gaudi3 {
        /// Address of a buffer for text.
        #[print(Hex)] pub user_buf: u64,
        /// Its bytes.
        pub user_buf_size: u32,
        /// The port.
        pub port: u32,
        /// Queue-pair number.
        pub qpn: u32,
        /// 1 for the requester, 0 for the responder.
        pub req: u8,
        /// Zero.
        pub pad: [u8; 3],
    }
}
