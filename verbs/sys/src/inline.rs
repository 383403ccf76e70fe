//! The static inline functions of `infiniband/verbs.h`.
//!
//! # Safety
//! What all functions here ask for: pointers are of live objects of libibverbs, and structs are
//! filled as the man page of the same name says.

#![expect(
    unsafe_code,
    reason = "operations of the data path are called through tables inside the library's own structs"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "one contract for all, at the top of the module"
)]

use std::ffi::c_int;
use std::mem::offset_of;

use nix::errno::Errno;

use crate::extended::verbs_context;
use crate::library::Symbols;
use crate::types::*;

/// An operation in the table of an object's context.
macro_rules! operation_of {
    ($object:expr, $operation:ident) => {{
        // SAFETY: the object is live.
        let context = unsafe { (*$object).context };
        // SAFETY: and so is its context.
        unsafe { (*context).ops.$operation }
    }};
}

const ABSENT: c_int = Errno::EOPNOTSUPP as c_int;

/// `ibv_post_send`.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    let post = operation_of!(qp, post_send);
    // SAFETY: the caller's promise is the operation's.
    post.map_or(ABSENT, |post| unsafe { post(qp, wr, bad) })
}

/// `ibv_post_recv`.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    let post = operation_of!(qp, post_recv);
    // SAFETY: the caller's promise is the operation's.
    post.map_or(ABSENT, |post| unsafe { post(qp, wr, bad) })
}

/// `ibv_post_srq_recv`.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let post = operation_of!(srq, post_srq_recv);
    // SAFETY: the caller's promise is the operation's.
    post.map_or(ABSENT, |post| unsafe { post(srq, wr, bad) })
}

/// `ibv_poll_cq`: how many, or a negative number.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    let poll = operation_of!(cq, poll_cq);
    // SAFETY: the caller's promise is the operation's.
    poll.map_or(-ABSENT, |poll| unsafe { poll(cq, entries, wc) })
}

/// `ibv_req_notify_cq`: an errno.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let notify = operation_of!(cq, req_notify_cq);
    // SAFETY: the caller's promise is the operation's.
    notify.map_or(ABSENT, |notify| unsafe { notify(cq, solicited_only) })
}

/// `ibv_alloc_mw`: NULL and errno.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> *mut ibv_mw {
    let Some(alloc) = operation_of!(pd, alloc_mw) else {
        Errno::EOPNOTSUPP.set();
        return std::ptr::null_mut();
    };
    // SAFETY: the caller's promise is the operation's.
    unsafe { alloc(pd, mw_type) }
}

/// `ibv_dealloc_mw`: an errno.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let dealloc = operation_of!(mw, dealloc_mw);
    // SAFETY: the caller's promise is the operation's.
    dealloc.map_or(ABSENT, |dealloc| unsafe { dealloc(mw) })
}

/// `verbs_get_ctx`: what lies before a context, where the library is not from before 2012.
unsafe fn verbs_get_ctx(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the context is live.
    let marker = unsafe { (*context).abi_compat };
    // __VERBS_ABI_IS_EXTENDED
    (marker.addr() == usize::MAX).then(|| {
        context
            .wrapping_byte_sub(offset_of!(verbs_context, context))
            .cast::<verbs_context>()
    })
}

/// `verbs_get_ctx_op`: an operation of a `verbs_context`, where the library is so new that it has
/// the field, and the provider fills it.
macro_rules! operation {
    ($context:expr, $field:ident) => {
        // SAFETY: the caller's context is live.
        (unsafe { verbs_get_ctx($context) }).and_then(|extended| {
            // From the field to the end: a longer struct has it, since it grows at its front.
            const TO_END: usize = size_of::<verbs_context>() - offset_of!(verbs_context, $field);
            // SAFETY: an extended context always has the size right before it.
            let size = unsafe { (*extended).sz };
            // SAFETY: the size says that the field is there.
            (size >= TO_END).then(|| unsafe { (*extended).$field }).flatten()
        })
    };
}

/// `ibv_query_port`: an errno. All of `attr` is written.
pub unsafe fn ibv_query_port(
    symbols: &Symbols,
    context: *mut ibv_context,
    port: u8,
    attr: &mut ibv_port_attr,
) -> c_int {
    *attr = ibv_port_attr::zeroed();
    match operation!(context, query_port) {
        // SAFETY: the context is live and the struct is as long as is said.
        Some(query) => unsafe { query(context, port, attr, size_of::<ibv_port_attr>()) },
        // SAFETY: the older struct is the beginning of this one.
        None => unsafe { (symbols.ibv_query_port)(context, port, (&raw mut *attr).cast()) },
    }
}

/// `ibv_query_device_ex`: an errno. All of `attr` is written.
pub unsafe fn ibv_query_device_ex(
    symbols: &Symbols,
    context: *mut ibv_context,
    attr: &mut ibv_device_attr_ex,
) -> c_int {
    *attr = ibv_device_attr_ex::zeroed();
    if let Some(query) = operation!(context, query_device_ex) {
        // SAFETY: the context is live, no input is fine, and the struct is as long as is said.
        let answer = unsafe { query(context, std::ptr::null(), attr, size_of::<ibv_device_attr_ex>()) };
        if ![Errno::EOPNOTSUPP as c_int, Errno::ENOSYS as c_int].contains(&answer) {
            return answer;
        }
    }
    *attr = ibv_device_attr_ex::zeroed();
    // SAFETY: the context is live and the struct is the caller's.
    unsafe { (symbols.ibv_query_device)(context, &raw mut attr.orig_attr) }
}
