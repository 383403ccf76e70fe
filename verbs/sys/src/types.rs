//! Structs of `infiniband/verbs.h`, field by field.

#![allow(
    missing_docs,
    reason = "fields are the header's own, under its names; rdma-core's man pages say what they mean"
)]
#![expect(
    unsafe_code,
    reason = "a struct that is all zero is made without naming each of its fields"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `union ibv_gid`: 16 bytes in network order.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

/// `__be64`: a number in network order.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct be64(pub u64);

impl be64 {
    /// The number.
    pub const fn get(self) -> u64 {
        u64::from_be(self.0)
    }
}

/// `IBV_SYSFS_NAME_MAX`.
pub const IBV_SYSFS_NAME_MAX: usize = 64;
/// `IBV_SYSFS_PATH_MAX`.
pub const IBV_SYSFS_PATH_MAX: usize = 256;

/// An operation that this project does not call.
pub type Unused = Option<unsafe extern "C" fn()>;

/// The remote side of a send.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_wr {
    pub rdma: ibv_wr_rdma,
    pub atomic: ibv_wr_atomic,
    pub ud: ibv_wr_ud,
}

/// Writes and reads.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// Atomics.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// Datagrams.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_wr_ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// Bind of a window.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wr_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

/// The object of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_event_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut c_void,
    pub port_num: c_int,
}

/// Port attributes of the first libibverbs, the beginning of [`ibv_port_attr`].
#[derive(Debug)]
pub enum _compat_ibv_port_attr {}

/// Passes the structs of verbs.h to a macro: the definitions, or the check against the headers in
/// tests/abi.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_struct {
    ($then:ident) => { $then! {
    "verbs.h";

    /// A row of a port's table of addresses.
    struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    /// Attributes of a device.
    struct ibv_device_attr {
        fw_ver: [c_char; 64],
        node_guid: be64,
        sys_image_guid: be64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: u32,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    /// Attributes of a port.
    struct ibv_port_attr older &[(44, 52)]; {
        state: u32,
        max_mtu: u32,
        active_mtu: u32,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
        active_speed_ex: u32 | since 56,
    }

    /// An asynchronous event.
    struct ibv_async_event {
        element: ibv_async_event_element,
        event_type: u32,
    }

    /// A completion.
    struct ibv_wc {
        wr_id: u64,
        status: u32,
        opcode: u32,
        vendor_err: u32,
        byte_len: u32,
        imm_data_or_invalidated_rkey: u32 = "imm_data",
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    /// Range and rights of a window.
    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// A protection domain.
    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    /// A memory region.
    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// A memory region to register, of any kind.
    struct ibv_mr_init_attr since 65 {
        length: usize | since 65,
        access: c_int | since 65,
        comp_mask: u64 | since 65,
        iova: u64 | since 65,
        addr: *mut c_void | since 65,
        fd: c_int | since 65,
        fd_offset: u64 | since 65,
        dmah: *mut c_void | since 65,
        buf: *mut c_void | since 65,
    }

    /// A memory window.
    struct ibv_mw prefix true {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
    }

    /// A route.
    struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// A route to a peer.
    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// An address handle.
    struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }

    /// Capacity of a shared receive queue.
    struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// A shared receive queue to create.
    struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    /// Capacity of a queue pair.
    struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    /// A queue pair to create.
    struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: u32,
        sq_sig_all: c_int,
    }

    /// Attributes of a queue pair.
    struct ibv_qp_attr {
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }

    /// A part of a local region.
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// A work request of the send queue.
    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: u32,
        send_flags: c_uint,
        imm_data_or_invalidate_rkey: u32 = "imm_data",
        wr: ibv_send_wr_wr,
        remote_srqn: u32 = "qp_type.xrc.remote_srqn",
        bind_mw: ibv_wr_bind_mw,
    }

    /// A work request of a receive queue.
    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    /// A shared receive queue.
    struct ibv_srq prefix true {
        context: *mut ibv_context,
        srq_context: *mut c_void,
    }

    /// A queue pair.
    struct ibv_qp prefix true {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
    }

    /// A completion channel.
    struct ibv_comp_channel prefix true {
        context: *mut ibv_context,
        fd: c_int,
    }

    /// A completion queue.
    struct ibv_cq prefix true {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
    }

    /// A device, before it is opened. The two functions at its beginning are unused.
    struct ibv_device {
        dummy1: Unused = "_ops._dummy1",
        dummy2: Unused = "_ops._dummy2",
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; IBV_SYSFS_NAME_MAX],
        dev_name: [c_char; IBV_SYSFS_NAME_MAX],
        dev_path: [c_char; IBV_SYSFS_PATH_MAX],
        ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
    }

    /// The provider's operations of the data path. Fields named `compat` are unused, and several
    /// fields of C each.
    struct ibv_context_ops {
        compat_control: [Unused; 7] = "",
        alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, u32) -> *mut ibv_mw>,
        bind_mw: Unused,
        dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
        compat_create_cq: [Unused; 1] = "",
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        compat_queues: [Unused; 7] = "",
        post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        compat_queue_pairs: [Unused; 4] = "",
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        compat_routes: [Unused; 5] = "",
    }

    /// An open device.
    struct ibv_context prefix true {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
    }
    }};
}

for_each_struct!(c_structs);
