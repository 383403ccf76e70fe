//! The memory domain `gaudi_copy`: the functions of `uct_md_ops_t`.

#![allow(unsafe_code, reason = "functions that UCX calls with C's pointers")]

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::os::fd::IntoRawFd as _;

use crate::abi::{
    Component, DEREG_FIELD_MEMH, DeregParams, Function, Linear, MEM_FLAG_REGISTRABLE, MEMORY_TYPE_HOST, Md,
    MdAttr, MdOps, MemAttr, UcsStatus, md_flag, mem_attr_field as field,
};
use crate::cards::{Card, cards};
use crate::config::DomainConfig;
use crate::handles::{self, Memory};
use crate::library::ucx;
use crate::release::Release;
use crate::status::{Status, caught, guarded};
use crate::{counters, events, memory, topology};

/// An open memory domain. UCX holds the pointer to its first field.
#[repr(C)]
struct Domain {
    md: Md,
    card: &'static Card,
    registration: f64,
}

struct Ops(MdOps);

// SAFETY: a constant table of functions.
unsafe impl Sync for Ops {}

static OPS: Ops = Ops(ops(mem_alloc as *const c_void));
static OPS_SYSTEM_DEVICE: Ops = Ops(ops(mem_alloc_on as *const c_void));

const fn ops(mem_alloc: *const c_void) -> MdOps {
    MdOps {
        close: Function(close as *const c_void),
        query: Function(query as *const c_void),
        mem_alloc: Function(mem_alloc),
        mem_free: Function(mem_free as *const c_void),
        mem_advise: Function(unsupported as *const c_void),
        mem_reg: Function(mem_reg as *const c_void),
        mem_dereg: Function(mem_dereg as *const c_void),
        mem_query: Function(mem_query as *const c_void),
        mkey_pack: Function(mkey_pack as *const c_void),
        mem_attach: Function(unsupported as *const c_void),
        detect_memory_type: Function(detect_memory_type as *const c_void),
        mem_elem_pack: Function(unsupported as *const c_void),
        mem_elem_release: Function(nothing as *const c_void),
    }
}

/// The table for a release.
fn ops_of(release: &Release) -> &'static MdOps {
    match release.has_system_device_arguments {
        true => &OPS_SYSTEM_DEVICE.0,
        false => &OPS.0,
    }
}

/// Any function that this plugin does not offer: `UCS_ERR_UNSUPPORTED`, as a status, as a size and
/// as a pointer.
pub(crate) extern "C" fn unsupported() -> isize {
    Status::Unsupported as isize
}

/// A function that does nothing.
pub(crate) extern "C" fn nothing() {}

/// The domain behind UCX's pointer.
///
/// # Safety
/// `md` is null or a pointer that [`open`] gave and [`close`] has not taken.
unsafe fn domain<'a>(md: *mut Md) -> Result<&'a Domain, Status> {
    // SAFETY: guaranteed by the caller; `md` is the first field.
    unsafe { md.cast::<Domain>().as_ref() }.ok_or(Status::InvalidParam)
}

/// The card of an open domain.
///
/// # Errors
/// `InvalidParam`: `md` is null.
///
/// # Safety
/// As [`domain`].
pub(crate) unsafe fn card(md: *mut Md) -> Result<&'static Card, Status> {
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { domain(md) }?.card)
}

/// Opens the memory domain of the card with this name.
///
/// # Safety
/// `name` is a terminated string, `config` null or the domain's configuration, `into` valid.
pub(crate) unsafe extern "C" fn open(
    component: *mut Component,
    name: *const c_char,
    config: *const DomainConfig,
    into: *mut *mut Md,
) -> UcsStatus {
    guarded("md_open", || {
        if name.is_null() || into.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: guaranteed by the caller.
        let name = unsafe { CStr::from_ptr(name) };
        let named = |card: &&Card| card.domain.as_bytes() == name.to_bytes();
        let card = cards().iter().find(named).ok_or(Status::NoDevice)?;
        // SAFETY: guaranteed by the caller.
        let config = unsafe { config.as_ref() };
        if config.is_some_and(|config| config.prints_stats != 0) {
            counters::print_at_end();
        }
        let registration = config.map_or(0.0, |config| config.registration);
        let domain = Box::new(Domain {
            md: Md {
                ops: ops_of(ucx().release),
                component,
            },
            card,
            registration,
        });
        // SAFETY: guaranteed by the caller.
        unsafe { *into = Box::into_raw(domain).cast() };
        Ok(())
    })
}

/// # Safety
/// `md` is null or a pointer that [`open`] gave, and is not used afterwards.
unsafe extern "C" fn close(md: *mut Md) {
    caught("md_close", || {
        if !md.is_null() {
            // SAFETY: `open` made the box, and UCX closes a domain once.
            drop(unsafe { Box::from_raw(md.cast::<Domain>()) });
        }
    });
}

/// # Safety
/// `md` as in [`domain`]; `attr` is null or UCX's structure.
unsafe extern "C" fn query(md: *mut Md, attr: *mut MdAttr) -> UcsStatus {
    guarded("md_query", || {
        // SAFETY: guaranteed by the caller.
        let domain = unsafe { domain(md) }?;
        if attr.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: UCX's own function, which fills in its whole structure.
        unsafe { (ucx().md_base_query)(attr) };
        // SAFETY: guaranteed by the caller; UCX's structure is at least as large.
        let attr = unsafe { &mut *attr };
        let (host, device) = (1 << MEMORY_TYPE_HOST, 1 << ucx().release.memory_type);
        attr.flags = md_flag::ALLOC | md_flag::REG;
        attr.reg_mem_types = host | device;
        attr.cache_mem_types = device;
        attr.alloc_mem_types = device;
        attr.access_mem_types = host | device;
        attr.detect_mem_types = device;
        attr.dmabuf_mem_types = device;
        attr.max_alloc = u64::MAX;
        attr.max_reg = usize::MAX;
        attr.reg_cost = Linear {
            constant: domain.registration,
            slope: 0.0,
        };
        attr.rkey_packed_size = size_of::<memory::Key>();
        Ok(())
    })
}

/// Allocates, in releases without a system device among the arguments.
///
/// # Safety
/// As [`allocate`].
unsafe extern "C" fn mem_alloc(
    md: *mut Md,
    len: *mut usize,
    address: *mut *mut c_void,
    mem_type: u32,
    _flags: c_uint,
    _name: *const c_char,
    memh: *mut *mut c_void,
) -> UcsStatus {
    // SAFETY: guaranteed by the caller.
    guarded("mem_alloc", || unsafe {
        allocate(md, len, address, mem_type, memh)
    })
}

/// Allocates, in releases with a system device among the arguments.
///
/// # Safety
/// As [`allocate`].
unsafe extern "C" fn mem_alloc_on(
    md: *mut Md,
    len: *mut usize,
    address: *mut *mut c_void,
    mem_type: u32,
    _system_device: u8,
    _flags: c_uint,
    _name: *const c_char,
    memh: *mut *mut c_void,
) -> UcsStatus {
    // SAFETY: guaranteed by the caller.
    guarded("mem_alloc", || unsafe {
        allocate(md, len, address, mem_type, memh)
    })
}

/// # Safety
/// `md` as in [`domain`]; the other pointers are null or valid.
unsafe fn allocate(
    md: *mut Md,
    len: *mut usize,
    address: *mut *mut c_void,
    mem_type: u32,
    memh: *mut *mut c_void,
) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    let domain = unsafe { domain(md) }?;
    if len.is_null() || address.is_null() || memh.is_null() {
        return Err(Status::InvalidParam);
    }
    if mem_type != ucx().release.memory_type {
        return Err(Status::Unsupported);
    }
    // SAFETY: not null, and valid by the caller's guarantee.
    let bytes = unsafe { *len } as u64;
    let (base, bytes) = memory::alloc(domain.card, bytes)?;
    events::allocated(base, bytes, domain.card);
    // SAFETY: as above.
    unsafe {
        *len = bytes as usize;
        *address = base as *mut c_void;
        *memh = handles::add(Memory::Allocated(base));
    }
    Ok(())
}

/// Frees the allocation at an address, after its event.
///
/// # Errors
/// `InvalidParam`: there is none. `Busy`: another thread uses it.
pub(crate) fn release(base: u64) -> Result<(), Status> {
    let allocation = memory::find(base).filter(|allocation| allocation.base() == base);
    let allocation = allocation.ok_or(Status::InvalidParam)?;
    let (len, card) = (allocation.len(), allocation.card);
    drop(allocation);
    events::freed(base, len, card);
    memory::free(base).inspect_err(|_| {
        // The memory is still allocated, unless another thread freed it.
        if memory::find(base).is_some() {
            events::allocated(base, len, card);
        }
    })
}

/// # Safety
/// None: a handle is a number.
unsafe extern "C" fn mem_free(_md: *mut Md, memh: *mut c_void) -> UcsStatus {
    guarded("mem_free", || {
        let memory = handles::remove(memh, |memory| matches!(memory, Memory::Allocated(_)))?;
        match memory {
            Memory::Allocated(base) => release(base).inspect_err(|status| {
                // Memory that is still there can be freed again.
                if *status != Status::InvalidParam {
                    handles::restore(memh, memory);
                }
            }),
            Memory::Registered(..) => Err(Status::InvalidParam),
        }
    })
}

/// Registers a range. The engines map host memory at its first copy, and device memory is mapped
/// already.
///
/// # Safety
/// `memh` is null or valid.
unsafe extern "C" fn mem_reg(
    _md: *mut Md,
    address: *mut c_void,
    len: usize,
    _params: *const c_void,
    memh: *mut *mut c_void,
) -> UcsStatus {
    guarded("mem_reg", || {
        let (address, len) = (address as u64, len as u64);
        if memh.is_null() || address == 0 || len == 0 || address.checked_add(len).is_none() {
            return Err(Status::InvalidParam);
        }
        if let Some(allocation) = memory::find(address) {
            if len > allocation.len() - (address - allocation.base()) {
                return Err(Status::OutOfRange);
            }
        }
        // SAFETY: guaranteed by the caller.
        unsafe { *memh = handles::add(Memory::Registered(address, len)) };
        Ok(())
    })
}

/// # Safety
/// `params` is null or UCX's structure.
unsafe extern "C" fn mem_dereg(_md: *mut Md, params: *const DeregParams) -> UcsStatus {
    guarded("mem_dereg", || {
        // SAFETY: guaranteed by the caller.
        let params = unsafe { params.as_ref() }.ok_or(Status::InvalidParam)?;
        if params.field_mask & DEREG_FIELD_MEMH == 0 {
            return Err(Status::InvalidParam);
        }
        handles::remove(params.memh, |memory| matches!(memory, Memory::Registered(..))).map(drop)
    })
}

/// # Safety
/// `attr` is null or UCX's structure.
unsafe extern "C" fn mem_query(
    _md: *mut Md,
    address: *const c_void,
    _len: usize,
    attr: *mut MemAttr,
) -> UcsStatus {
    guarded("mem_query", || {
        // SAFETY: guaranteed by the caller; fields are written only if the mask has them.
        let mask = unsafe { attr.as_ref() }.ok_or(Status::InvalidParam)?.field_mask;
        let card = memory::card_of(address as u64).ok_or(Status::InvalidAddress)?;
        let whole = match mask & (field::BASE_ADDRESS | field::ALLOC_LENGTH) {
            0 => None,
            _ => Some(memory::describe(address as u64).ok_or(Status::InvalidAddress)?),
        };
        let export = match mask & (field::DMABUF_FD | field::DMABUF_OFFSET) {
            0 => None,
            _ => {
                let allocation = memory::find(address as u64).ok_or(Status::InvalidAddress)?;
                Some(memory::export(&allocation, address as u64)?)
            }
        };
        // SAFETY: each field is in a structure of a release whose mask has its bit.
        unsafe {
            if mask & field::MEM_TYPE != 0 {
                (*attr).mem_type = ucx().release.memory_type;
            }
            if mask & field::SYS_DEV != 0 {
                (*attr).sys_dev = topology::system_device(card);
            }
            if let Some(whole) = whole {
                if mask & field::BASE_ADDRESS != 0 {
                    (*attr).base_address = whole.base as *mut c_void;
                }
                if mask & field::ALLOC_LENGTH != 0 {
                    (*attr).alloc_length = whole.len as usize;
                }
            }
            if mask & field::MEM_FLAGS != 0 {
                (*attr).mem_flags = MEM_FLAG_REGISTRABLE;
            }
            if let Some((fd, offset)) = export {
                if mask & field::DMABUF_OFFSET != 0 {
                    (*attr).dmabuf_offset = offset as usize;
                }
                if mask & field::DMABUF_FD != 0 {
                    // UCX closes it.
                    (*attr).dmabuf_fd = fd.into_raw_fd();
                }
            }
        }
        Ok(())
    })
}

/// # Safety
/// `into` is null or valid.
unsafe extern "C" fn detect_memory_type(
    _md: *mut Md,
    address: *const c_void,
    _len: usize,
    into: *mut u32,
) -> UcsStatus {
    guarded("detect_memory_type", || {
        if into.is_null() {
            return Err(Status::InvalidParam);
        }
        memory::card_of(address as u64).ok_or(Status::InvalidAddress)?;
        // SAFETY: guaranteed by the caller.
        unsafe { *into = ucx().release.memory_type };
        Ok(())
    })
}

/// Packs the key of a registration, for this process.
///
/// # Safety
/// `key` is null or has as many bytes as `query` reports.
unsafe extern "C" fn mkey_pack(
    _md: *mut Md,
    memh: *mut c_void,
    _address: *mut c_void,
    _len: usize,
    _params: *const c_void,
    key: *mut memory::Key,
) -> UcsStatus {
    guarded("mkey_pack", || {
        let (Memory::Allocated(address) | Memory::Registered(address, _)) = handles::get(memh)?;
        if key.is_null() {
            return Err(Status::InvalidParam);
        }
        let packed = memory::pack(address)?;
        // SAFETY: guaranteed by the caller; the type has no alignment.
        unsafe { key.write(packed) };
        Ok(())
    })
}
