//! `struct verbs_context`, and rows that the macro cannot make.

use std::ffi::{c_int, c_uint, c_void};

use super::*;
use crate::layout::{Constant, Field, Layout, Operation, Since, operation};

/// `struct verbs_context` from its end: it grows at its front, and an [`ibv_context`] is its last field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct verbs_context {
    pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> c_int>,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub read_counters: Unused,
    pub attach_counters_point_flow: Unused,
    pub create_counters: Unused,
    pub destroy_counters: Unused,
    pub reg_dm_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
    pub alloc_dm: Option<unsafe extern "C" fn(*mut ibv_context, *mut c_void) -> *mut ibv_dm>,
    pub free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub modify_flow_action_esp: Unused,
    pub destroy_flow_action: Unused,
    pub create_flow_action_esp: Unused,
    pub modify_qp_rate_limit: Unused,
    pub alloc_parent_domain: Unused,
    pub dealloc_td: Unused,
    pub alloc_td: Unused,
    pub modify_cq: Unused,
    pub post_srq_ops: Unused,
    pub destroy_rwq_ind_table: Unused,
    pub create_rwq_ind_table: Unused,
    pub destroy_wq: Unused,
    pub modify_wq: Unused,
    pub create_wq: Unused,
    pub query_rt_values: Unused,
    pub create_cq_ex: Unused,
    pub private: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub ibv_destroy_flow: Unused,
    pub abi_placeholder2: Unused,
    pub ibv_create_flow: Unused,
    pub abi_placeholder1: Unused,
    pub open_qp: Unused,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub get_srq_num: Unused,
    pub create_srq_ex: Unused,
    pub open_xrcd: Unused,
    pub close_xrcd: Unused,
    pub abi_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}

/// What the macro cannot say: offsets from the end of `verbs_context`, and paths into unions.
pub(crate) fn more_layouts() -> Vec<Layout> {
    use std::mem::offset_of;
    let field = |c_path, offset, size| Field {
        c_path,
        offset,
        size,
        since: Since(44),
    };
    macro_rules! from_end {
        ($($field:ident)*) => {
            vec![$(field(stringify!($field), offset_of!(verbs_context, $field), 8),)*]
        };
    }
    let mut tail = from_end!(
        query_port advise_mr alloc_null_mr reg_dm_mr alloc_dm free_dm query_rt_values create_cq_ex query_device_ex
        create_qp_ex get_srq_num create_srq_ex close_xrcd sz
    );
    tail.push(field(
        "context",
        offset_of!(verbs_context, context),
        size_of::<ibv_context>(),
    ));
    macro_rules! inside {
        ($outer:ident: $($path:literal => $($member:ident).+ : $size:expr;)*) => {
            vec![$(field($path, offset_of!($outer, $($member).+), $size),)*]
        };
    }
    let send = inside!(ibv_send_wr:
        "invalidate_rkey" => imm_data_or_invalidate_rkey: 4;
        "wr.rdma.remote_addr" => wr.rdma.remote_addr: 8;
        "wr.rdma.rkey" => wr.rdma.rkey: 4;
        "wr.atomic.remote_addr" => wr.atomic.remote_addr: 8;
        "wr.atomic.compare_add" => wr.atomic.compare_add: 8;
        "wr.atomic.swap" => wr.atomic.swap: 8;
        "wr.atomic.rkey" => wr.atomic.rkey: 4;
        "wr.ud.ah" => wr.ud.ah: 8;
        "wr.ud.remote_qpn" => wr.ud.remote_qpn: 4;
        "wr.ud.remote_qkey" => wr.ud.remote_qkey: 4;
        "bind_mw.mw" => bind_mw.mw: 8;
        "bind_mw.rkey" => bind_mw.rkey: 4;
        "bind_mw.bind_info" => bind_mw.bind_info: size_of::<ibv_mw_bind_info>();
        "bind_mw.bind_info.length" => bind_mw.bind_info.length: 8;
    );
    let done = inside!(ibv_wc: "invalidated_rkey" => imm_data_or_invalidated_rkey: 4;);
    let event = inside!(ibv_async_event:
        "element.qp" => element.qp: 8;
        "element.port_num" => element.port_num: 4;
    );
    let gid = vec![field("raw", 0, 16)];
    let row = |c_type, size, from_end, fields| Layout {
        c_type,
        header: "verbs.h",
        size,
        from_end,
        older: &[],
        since: Since(44),
        fields,
    };
    vec![
        row("struct verbs_context", size_of::<verbs_context>(), true, tail),
        row("struct ibv_send_wr", size_of::<ibv_send_wr>(), false, send),
        row("struct ibv_wc", size_of::<ibv_wc>(), false, done),
        row(
            "struct ibv_async_event",
            size_of::<ibv_async_event>(),
            false,
            event,
        ),
        row("union ibv_gid", size_of::<ibv_gid>(), false, gid),
    ]
}

/// The fields that are called, or could be.
pub(crate) const OPERATIONS: &[Operation] = {
    macro_rules! rows {
        ($($struct:ident: $($field:ident)*;)*) => {
            &[$($(operation(concat!("struct ", stringify!($struct)), stringify!($field), |all: &$struct| all.$field),)*)*]
        };
    }
    rows! {
        ibv_context_ops: alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv;
        verbs_context: query_port advise_mr alloc_null_mr reg_dm_mr free_dm query_device_ex create_qp_ex;
    }
};

/// Sizes of the header's arrays.
pub(crate) const CONSTANTS: &[Constant] = &[
    Constant {
        c_name: "IBV_SYSFS_NAME_MAX",
        value: IBV_SYSFS_NAME_MAX as u64,
        since: Since(44),
    },
    Constant {
        c_name: "IBV_SYSFS_PATH_MAX",
        value: IBV_SYSFS_PATH_MAX as u64,
        since: Since(44),
    },
];
