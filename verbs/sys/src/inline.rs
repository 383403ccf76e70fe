//! The static inline functions of `infiniband/verbs.h`.
//!
//! # Safety
//! All functions require: pointers are of live objects of libibverbs, and structs are filled as the
//! man page of the same name describes.

#![expect(
    unsafe_code,
    reason = "operations of the data path are called through tables inside the library's own structs"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "one contract for all, at the top of the module"
)]

use std::ffi::c_int;
use std::ptr::null_mut;

use nix::errno::Errno;

use crate::library::Symbols;
use crate::types::*;

const ABSENT: c_int = Errno::EOPNOTSUPP as c_int;

/// Defines functions that call an operation in the table of their first argument's context.
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $name:ident = $operation:ident($object:ident: $object_type:ty $(, $argument:ident: $type:ty)*) -> $return:ty,
            or $absent:expr;
    )*) => {$(
        $(#[$doc])*
        #[inline]
        pub unsafe fn $name($object: $object_type $(, $argument: $type)*) -> $return {
            // SAFETY: the object is live.
            let context = unsafe { (*$object).context };
            // SAFETY: and so is its context.
            match unsafe { (*context).ops.$operation } {
                // SAFETY: the caller's promise is the operation's.
                Some(operation) => unsafe { operation($object $(, $argument)*) },
                None => $absent,
            }
        }
    )*};
}

operations! {
    /// `ibv_post_send`.
    ibv_post_send = post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int,
        or ABSENT;
    /// `ibv_post_recv`.
    ibv_post_recv = post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int,
        or ABSENT;
    /// `ibv_post_srq_recv`.
    ibv_post_srq_recv = post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int,
        or ABSENT;
    /// `ibv_poll_cq`: the number of completions, or a negative number.
    ibv_poll_cq = poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int, or -ABSENT;
    /// `ibv_req_notify_cq`: an errno.
    ibv_req_notify_cq = req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int, or ABSENT;
    /// `ibv_alloc_mw`: NULL and errno.
    ibv_alloc_mw = alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> *mut ibv_mw, or {
        Errno::EOPNOTSUPP.set();
        null_mut()
    };
    /// `ibv_dealloc_mw`: an errno.
    ibv_dealloc_mw = dealloc_mw(mw: *mut ibv_mw) -> c_int, or ABSENT;
}

/// `ibv_query_port` up to the field `flags`: an errno. The header's own function asks for the later
/// fields as well, through `verbs_context`.
pub unsafe fn ibv_query_port(
    symbols: &Symbols,
    context: *mut ibv_context,
    port: u8,
    attr: &mut ibv_port_attr,
) -> c_int {
    *attr = ibv_port_attr::zeroed();
    // SAFETY: the context is live, and the older struct is the beginning of this one.
    unsafe { (symbols.ibv_query_port)(context, port, (&raw mut *attr).cast()) }
}
