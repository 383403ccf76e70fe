//! The transport `gaudi`: copies by the DMA engines between memory of this process.
//!
//! An endpoint reaches only its own interface. UCX uses it to stage device memory for transports
//! that move host memory.

#![allow(unsafe_code, reason = "functions that UCX calls with C's pointers")]

use std::collections::hash_map::RandomState;
use std::ffi::{c_int, c_uint, c_void};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::OnceLock;

use crate::abi::{
    BASE_EP, BASE_IFACE, Completion, DEVICE_NAME, DEVICE_TYPE_ACC, DeviceResource, EP_FIELD_IFACE, EpParams,
    Function, IfaceAttr, IfaceOp, IfaceOps, Internal, Iov, Linear, Md, REACHABLE_FIELD_IFACE_ADDR,
    ReachableParams, UcsStatus, iface_flag,
};
use crate::config::TransportConfig;
use crate::copy;
use crate::domain::{self, nothing, unsupported};
use crate::library::{Ucx, ucx};
use crate::release::Release;
use crate::status::{OK, Status, caught, guarded, passed};
use crate::topology;

/// The name in `UCX_TLS`.
pub(crate) const NAME: &[u8] = b"gaudi";

/// An interface. UCX holds the pointer to its first field.
#[repr(C, align(16))]
struct Iface {
    base: [u8; BASE_IFACE],
    /// Random, and so different in every process and interface.
    id: u64,
    bandwidth: f64,
    latency: f64,
    overhead: f64,
}

/// An endpoint. UCX holds the pointer to its first field.
#[repr(C, align(16))]
struct Ep {
    base: [u8; BASE_EP],
}

pub(crate) struct Tables {
    pub(crate) ops: IfaceOps,
    internal: Vec<Function>,
}

// SAFETY: constant tables of functions.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

/// The functions that UCX calls.
pub(crate) fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| Tables {
        ops: ops(),
        internal: internal(ucx().release, ucx()),
    })
}

fn ops() -> IfaceOps {
    let mut ops = [Function(unsupported as *const c_void); 50];
    for (op, function) in [
        (IfaceOp::EpPutShort, put_short as *const c_void),
        (IfaceOp::EpPutZcopy, put_zcopy as *const c_void),
        (IfaceOp::EpGetShort, get_short as *const c_void),
        (IfaceOp::EpGetZcopy, get_zcopy as *const c_void),
        (IfaceOp::EpPendingAdd, pending_add as *const c_void),
        (IfaceOp::EpPendingPurge, nothing as *const c_void),
        (IfaceOp::EpFlush, flush as *const c_void),
        (IfaceOp::EpFence, zero as *const c_void),
        (IfaceOp::EpCreate, ep_create as *const c_void),
        (IfaceOp::EpDestroy, ep_destroy as *const c_void),
        (IfaceOp::IfaceFlush, flush as *const c_void),
        (IfaceOp::IfaceFence, zero as *const c_void),
        (IfaceOp::IfaceProgressEnable, nothing as *const c_void),
        (IfaceOp::IfaceProgressDisable, nothing as *const c_void),
        (IfaceOp::IfaceProgress, zero as *const c_void),
        (IfaceOp::IfaceClose, close as *const c_void),
        (IfaceOp::IfaceQuery, query as *const c_void),
        (IfaceOp::IfaceGetDeviceAddress, zero as *const c_void),
        (IfaceOp::IfaceGetAddress, get_address as *const c_void),
        (IfaceOp::IfaceIsReachable, is_reachable as *const c_void),
    ] {
        ops[op as usize] = Function(function);
    }
    IfaceOps(ops)
}

fn internal(release: &Release, ucx: &Ucx) -> Vec<Function> {
    let function = |internal: &Internal| match internal {
        Internal::EstimatePerf => ucx.estimate_perf,
        Internal::VfsRefresh => Function(nothing as *const c_void),
        Internal::ReachableV2 => Function(is_reachable_v2 as *const c_void),
        Internal::Connected => ucx.is_connected,
        // Found with every release that calls it, or the release is refused.
        Internal::QueryV2 => ucx.query_v2.unwrap_or(Function(unsupported as *const c_void)),
        Internal::Query
        | Internal::Invalidate
        | Internal::ConnectToEp
        | Internal::MemElementPack
        | Internal::DeviceEp
        | Internal::PutSgl
        | Internal::GetSgl
        | Internal::OutstandingPurge => Function(unsupported as *const c_void),
    };
    release.internal.iter().map(function).collect()
}

extern "C" fn zero() -> c_uint {
    0
}

/// The card behind a domain is the transport's one device.
///
/// # Safety
/// `md` is an open domain; the other pointers are null or valid.
pub(crate) unsafe extern "C" fn query_devices(
    md: *mut Md,
    devices: *mut *mut DeviceResource,
    count: *mut c_uint,
) -> UcsStatus {
    guarded("query_devices", || {
        // SAFETY: guaranteed by the caller.
        let card = unsafe { domain::card(md) }?;
        if devices.is_null() || count.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: UCX's allocator, as UCX frees the array.
        let array = unsafe { (ucx().calloc)(1, size_of::<DeviceResource>(), c"gaudi devices".as_ptr()) };
        let resource = array.cast::<DeviceResource>();
        if resource.is_null() {
            return Err(Status::NoMemory);
        }
        let value = DeviceResource {
            name: text(&card.device),
            kind: DEVICE_TYPE_ACC,
            system_device: topology::system_device(card),
        };
        // SAFETY: memory of that size; the results are valid by the caller's guarantee.
        unsafe {
            resource.write(value);
            *devices = resource;
            *count = 1;
        }
        Ok(())
    })
}

fn text(name: &str) -> [u8; DEVICE_NAME] {
    let mut bytes = [0; DEVICE_NAME];
    for (to, from) in bytes[..DEVICE_NAME - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bytes
}

/// Opens an interface.
///
/// # Safety
/// The pointers are null or UCX's objects.
pub(crate) unsafe extern "C" fn open(
    md: *mut Md,
    worker: *mut c_void,
    params: *const c_void,
    config: *const TransportConfig,
    into: *mut *mut c_void,
) -> UcsStatus {
    passed("iface_open", || {
        // SAFETY: guaranteed by the caller.
        let values = unsafe { config.as_ref() }.ok_or(Status::InvalidParam)?;
        if md.is_null() || worker.is_null() || params.is_null() || into.is_null() {
            return Err(Status::InvalidParam.into());
        }
        let iface = Box::into_raw(Box::new(Iface {
            base: [0; BASE_IFACE],
            id: identity(),
            bandwidth: values.bandwidth,
            latency: values.latency,
            overhead: values.overhead,
        }));
        let (ucx, tables) = (ucx(), tables());
        let mut initialized: c_int = 1;
        // SAFETY: `iface` begins with as many bytes as UCX's class has (`check_sizes`); the tables
        // have the release's layout and live as long as the process.
        let status = unsafe {
            (ucx.iface_init)(
                iface.cast(),
                ucx.iface_class,
                &raw mut initialized,
                (&raw const tables.ops).cast(),
                tables.internal.as_ptr().cast(),
                md.cast(),
                worker,
                params,
                config.cast(),
            )
        };
        if status != OK {
            // SAFETY: the classes that were initialized, in the reverse order, as UCX does it.
            unsafe { (ucx.class_cleanup)(ucx.iface_class, iface.cast(), initialized) };
            // SAFETY: the box from above, which UCX does not have.
            drop(unsafe { Box::from_raw(iface) });
            return Err(status);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { *into = iface.cast() };
        Ok(())
    })
}

/// A number that no other interface of any process has.
fn identity() -> u64 {
    // The standard library seeds a hasher from the system's random numbers, and the process's
    // number makes a fork child's differ.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

/// # Safety
/// `iface` is null or a pointer that [`open`] gave, and is not used afterwards.
unsafe extern "C" fn close(iface: *mut Iface) {
    caught("iface_close", || {
        if iface.is_null() {
            return;
        }
        // SAFETY: an initialized object of the class.
        unsafe { (ucx().class_cleanup)(ucx().iface_class, iface.cast(), -1) };
        // SAFETY: `open` made the box, and UCX closes an interface once.
        drop(unsafe { Box::from_raw(iface) });
    });
}

/// # Safety
/// `iface` is null or open, `attr` null or UCX's structure.
unsafe extern "C" fn query(iface: *mut Iface, attr: *mut IfaceAttr) -> UcsStatus {
    guarded("iface_query", || {
        // SAFETY: guaranteed by the caller.
        let values = unsafe { iface.as_ref() }.ok_or(Status::InvalidParam)?;
        if attr.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: UCX's own function, which fills in the whole structure.
        unsafe { (ucx().iface_base_query)(iface.cast(), attr) };
        // SAFETY: guaranteed by the caller.
        let attr = unsafe { &mut *attr };
        attr.flags = iface_flag::CONNECT_TO_IFACE
            | iface_flag::PUT_SHORT
            | iface_flag::PUT_ZCOPY
            | iface_flag::GET_SHORT
            | iface_flag::GET_ZCOPY
            | iface_flag::PENDING;
        attr.iface_addr_len = size_of::<u64>();
        for cap in [&mut attr.put, &mut attr.get] {
            cap.max_short = u32::MAX as usize;
            cap.max_zcopy = usize::MAX;
            cap.opt_zcopy_align = 1;
            cap.align_mtu = 1;
            cap.max_iov = MAX_IOV;
        }
        attr.am.opt_zcopy_align = 1;
        attr.am.align_mtu = 1;
        attr.am.max_iov = 1;
        attr.latency = Linear {
            constant: values.latency,
            slope: 0.0,
        };
        attr.bandwidth_dedicated = values.bandwidth;
        attr.overhead = values.overhead;
        Ok(())
    })
}

/// Most entries of one zcopy.
const MAX_IOV: usize = 16;

/// # Safety
/// `iface` is null or open, `address` null or as long as `query` reports.
unsafe extern "C" fn get_address(iface: *mut Iface, address: *mut c_void) -> UcsStatus {
    guarded("iface_get_address", || {
        // SAFETY: guaranteed by the caller.
        let iface = unsafe { iface.as_ref() }.ok_or(Status::InvalidParam)?;
        if address.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: guaranteed by the caller; the address need not be aligned.
        unsafe { address.cast::<u64>().write_unaligned(iface.id) };
        Ok(())
    })
}

/// # Safety
/// `iface` is null or open, `address` null or an address of this transport.
unsafe fn reaches(iface: *const Iface, address: *const c_void) -> c_int {
    // SAFETY: guaranteed by the caller.
    let Some(iface) = (unsafe { iface.as_ref() }) else {
        return 0;
    };
    if address.is_null() {
        return 0;
    }
    // SAFETY: guaranteed by the caller; the address need not be aligned.
    let id = unsafe { address.cast::<u64>().read_unaligned() };
    c_int::from(id == iface.id)
}

/// # Safety
/// As [`reaches`].
unsafe extern "C" fn is_reachable(
    iface: *const Iface,
    _device: *const c_void,
    address: *const c_void,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    caught("iface_is_reachable", || unsafe { reaches(iface, address) }).unwrap_or(0)
}

/// # Safety
/// As [`reaches`]; `params` is null or UCX's structure.
unsafe extern "C" fn is_reachable_v2(iface: *const Iface, params: *const ReachableParams) -> c_int {
    let reached = caught("iface_is_reachable_v2", || {
        // SAFETY: guaranteed by the caller.
        let params = unsafe { params.as_ref() }?;
        let has_address = params.field_mask & REACHABLE_FIELD_IFACE_ADDR != 0;
        // SAFETY: guaranteed by the caller.
        has_address.then(|| unsafe { reaches(iface, params.iface_addr) })
    });
    reached.flatten().unwrap_or(0)
}

/// # Safety
/// The pointers are null or UCX's objects.
unsafe extern "C" fn ep_create(params: *const EpParams, into: *mut *mut Ep) -> UcsStatus {
    passed("ep_create", || {
        // SAFETY: guaranteed by the caller.
        let params = unsafe { params.as_ref() }.ok_or(Status::InvalidParam)?;
        if into.is_null() || params.field_mask & EP_FIELD_IFACE == 0 || params.iface.is_null() {
            return Err(Status::InvalidParam.into());
        }
        let ucx = ucx();
        let ep = Box::into_raw(Box::new(Ep { base: [0; BASE_EP] }));
        let mut initialized: c_int = 1;
        // SAFETY: `ep` begins with as many bytes as UCX's class has (`check_sizes`).
        let status = unsafe { (ucx.ep_init)(ep.cast(), ucx.ep_class, &raw mut initialized, params.iface) };
        if status != OK {
            // SAFETY: the classes that were initialized, in the reverse order, as UCX does it.
            unsafe { (ucx.class_cleanup)(ucx.ep_class, ep.cast(), initialized) };
            // SAFETY: the box from above, which UCX does not have.
            drop(unsafe { Box::from_raw(ep) });
            return Err(status);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { *into = ep };
        Ok(())
    })
}

/// # Safety
/// `ep` is null or a pointer that [`ep_create`] gave, and is not used afterwards.
unsafe extern "C" fn ep_destroy(ep: *mut Ep) {
    caught("ep_destroy", || {
        if ep.is_null() {
            return;
        }
        // SAFETY: an initialized object of the class.
        unsafe { (ucx().class_cleanup)(ucx().ep_class, ep.cast(), -1) };
        // SAFETY: `ep_create` made the box, and UCX destroys an endpoint once.
        drop(unsafe { Box::from_raw(ep) });
    });
}

/// # Safety
/// `buffer` has `len` bytes, or is an address of device memory.
unsafe extern "C" fn put_short(
    _ep: *mut Ep,
    buffer: *const c_void,
    len: c_uint,
    remote: u64,
    _rkey: usize,
) -> UcsStatus {
    guarded("ep_put_short", || {
        // SAFETY: guaranteed by the caller.
        unsafe { copy::copy(remote, buffer as u64, u64::from(len)) }
    })
}

/// # Safety
/// `buffer` has `len` bytes, or is an address of device memory.
unsafe extern "C" fn get_short(
    _ep: *mut Ep,
    buffer: *mut c_void,
    len: c_uint,
    remote: u64,
    _rkey: usize,
) -> UcsStatus {
    guarded("ep_get_short", || {
        // SAFETY: guaranteed by the caller.
        unsafe { copy::copy(buffer as u64, remote, u64::from(len)) }
    })
}

/// # Safety
/// `iov` has `count` entries, whose buffers are memory of the process.
unsafe extern "C" fn put_zcopy(
    _ep: *mut Ep,
    iov: *const Iov,
    count: usize,
    remote: u64,
    _rkey: usize,
    _completion: *mut Completion,
) -> UcsStatus {
    // UCS_OK: the copy is complete, and UCX does not wait for the completion.
    guarded("ep_put_zcopy", || {
        // SAFETY: guaranteed by the caller.
        unsafe {
            each(iov, count, remote, |local, remote, len, handle| {
                copy::registered(remote, local, len, handle)
            })
        }
    })
}

/// # Safety
/// As [`put_zcopy`].
unsafe extern "C" fn get_zcopy(
    _ep: *mut Ep,
    iov: *const Iov,
    count: usize,
    remote: u64,
    _rkey: usize,
    _completion: *mut Completion,
) -> UcsStatus {
    guarded("ep_get_zcopy", || {
        // SAFETY: guaranteed by the caller.
        unsafe {
            each(iov, count, remote, |local, remote, len, handle| {
                copy::registered(local, remote, len, handle)
            })
        }
    })
}

/// Calls `copy` with local address, remote address, length and local handle of each piece.
///
/// # Safety
/// `iov` is null or has `count` entries.
unsafe fn each(
    iov: *const Iov,
    count: usize,
    mut remote: u64,
    mut copy: impl FnMut(u64, u64, u64, *mut c_void) -> Result<(), Status>,
) -> Result<(), Status> {
    if count == 0 {
        return Ok(());
    }
    if iov.is_null() || count > MAX_IOV {
        return Err(Status::InvalidParam);
    }
    // SAFETY: guaranteed by the caller.
    let entries = unsafe { std::slice::from_raw_parts(iov, count) };
    for entry in entries {
        let len = entry.length as u64;
        if len == 0 {
            continue;
        }
        for index in 0..u64::from(entry.count) {
            let step = index.checked_mul(entry.stride as u64);
            let local = step.and_then(|step| (entry.buffer as u64).checked_add(step));
            copy(local.ok_or(Status::InvalidParam)?, remote, len, entry.memh)?;
            remote = remote.checked_add(len).ok_or(Status::InvalidParam)?;
        }
    }
    Ok(())
}

/// No operation waits for a resource, so the caller tries again at once.
extern "C" fn pending_add() -> c_int {
    Status::Busy as c_int
}

/// Every operation is complete when its call returns.
extern "C" fn flush() -> c_int {
    c_int::from(OK)
}
