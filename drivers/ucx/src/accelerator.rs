//! Open MPI 5.0's accelerator component: `mca_accelerator_gaudi.so` is another name of this
//! library.
//!
//! Open MPI needs it to pack derived datatypes and to stage device memory itself. The component
//! offers itself only if UCX has this copy of the library, whose allocations it knows, and to
//! Open MPI 5.0 only. Copies are complete when their call returns, so streams and events are empty
//! objects.

#![allow(unsafe_code, reason = "functions that Open MPI calls with C's pointers")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use nix::libc;

use crate::cards::{Card, cards};
use crate::library;
use crate::memory::{self, Allocation};
use crate::opal::{
    BAD_PARAM, Class, Component, ComponentBase, ERROR, Handle, Module, NO_DEVICE, NOT_SUPPORTED,
    OUT_OF_RESOURCE, PciAttr, SUCCESS,
};
use crate::status::{Status, caught};
use crate::{copy, domain, events, load, log};

/// What Open MPI looks up in the file `mca_accelerator_gaudi.so`.
#[used]
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that Open MPI looks up")]
pub(crate) static mca_accelerator_gaudi_component: Shared<Component> = Shared(Component {
    base: ComponentBase::named(b"gaudi", [0, 1, 0]),
    data: [0; 9],
    init,
    finalize,
});

static MODULE: Shared<Module> = Shared(Module {
    check_addr,
    create_stream,
    create_event,
    record_event: event_recorded,
    query_event: event_done,
    mem_copy_async,
    mem_copy,
    mem_move,
    mem_alloc,
    mem_release,
    get_address_range,
    host_register: host_range,
    host_unregister,
    get_device,
    get_device_pci_attr,
    device_can_access_peer,
    get_buffer_id,
});

/// A table of functions.
#[repr(transparent)]
pub(crate) struct Shared<T>(T);

// SAFETY: constant.
unsafe impl<T> Sync for Shared<T> {}

extern "C" fn init() -> *const Module {
    let table = || {
        let is_offered = load::is_registered() && is_supported(library::opal().map(|opal| opal.version));
        is_offered.then_some(&raw const MODULE.0)
    };
    caught("accelerator_init", table).flatten().unwrap_or(null())
}

/// Whether the table of functions is that of an Open MPI of this version. Logs an error otherwise:
/// later tables have other functions in these places, under the same version of the framework.
fn is_supported(version: Option<&str>) -> bool {
    let is_known = version.is_some_and(|version| version.starts_with("5.0."));
    if !is_known {
        let version = version.unwrap_or("of an unknown version");
        log::error(&format!(
            "Open MPI {version} is not supported: it gets no accelerator component; supported is 5.0"
        ));
    }
    is_known
}

extern "C" fn finalize(_module: *const Module) {}

/// Runs the body of a function that Open MPI calls. A panic is logged and becomes an error.
fn guarded(function: &str, body: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    match caught(function, body) {
        Some(Ok(answer) | Err(answer)) => answer,
        None => ERROR,
    }
}

/// Open MPI's error for a status.
fn error(status: Status) -> c_int {
    match status {
        Status::NoMemory | Status::NoResource => OUT_OF_RESOURCE,
        Status::InvalidParam | Status::InvalidAddress | Status::OutOfRange => BAD_PARAM,
        Status::Unsupported => NOT_SUPPORTED,
        _ => ERROR,
    }
}

fn card(device: c_int) -> Result<&'static Card, c_int> {
    let index = usize::try_from(device).map_err(|_| BAD_PARAM)?;
    cards().get(index).ok_or(BAD_PARAM)
}

fn found(address: *const c_void) -> Result<Allocation, c_int> {
    memory::find(address as u64).ok_or(BAD_PARAM)
}

/// 1 for device memory, 0 for host memory.
///
/// # Safety
/// `device` and `flags` are null or valid.
unsafe extern "C" fn check_addr(address: *const c_void, device: *mut c_int, flags: *mut u64) -> c_int {
    guarded("check_addr", || {
        let allocation = memory::find(address as u64);
        let index = allocation.as_ref().map(|allocation| allocation.card.index());
        // SAFETY: guaranteed by the caller.
        let (device, flags) = unsafe { (device.as_mut(), flags.as_mut()) };
        if let Some(device) = device {
            *device = index.map_or(NO_DEVICE, |index| index as c_int); // a few cards
        }
        if let Some(flags) = flags {
            *flags = 0;
        }
        Ok(c_int::from(allocation.is_some()))
    })
}

/// Makes an object of one of Open MPI's classes, as its macro `OBJ_NEW` does.
///
/// # Safety
/// `class` is null or a class whose objects have the size of [`Handle`] and no constructor; `into`
/// is null or valid.
unsafe fn new(class: Option<*mut Class>, into: *mut *mut Handle) -> Result<c_int, c_int> {
    let opal = library::opal().ok_or(NOT_SUPPORTED)?;
    let class = class.filter(|_| !into.is_null()).ok_or(BAD_PARAM)?;
    // SAFETY: guaranteed by the caller; initializing a class again does nothing.
    let has_layout = unsafe {
        (opal.initialize)(class);
        (*class).size == size_of::<Handle>() && (*(*class).constructors).0.is_null()
    };
    if !has_layout {
        return Err(NOT_SUPPORTED);
    }
    // Open MPI frees the object with free(3).
    // SAFETY: any size may be asked for.
    let object = unsafe { libc::malloc(size_of::<Handle>()) }.cast::<Handle>();
    if object.is_null() {
        return Err(OUT_OF_RESOURCE);
    }
    let value = Handle {
        class,
        references: 1,
        own: null_mut(),
    };
    // SAFETY: memory of that size; `into` is valid by the caller's guarantee.
    unsafe {
        object.write(value);
        *into = object;
    }
    Ok(SUCCESS)
}

/// # Safety
/// `into` is null or valid.
unsafe extern "C" fn create_stream(_device: c_int, into: *mut *mut Handle) -> c_int {
    guarded("create_stream", || {
        let class = library::opal().map(|opal| opal.stream);
        // SAFETY: Open MPI's own class, whose objects `Handle` describes.
        unsafe { new(class, into) }
    })
}

/// # Safety
/// `into` is null or valid.
unsafe extern "C" fn create_event(_device: c_int, into: *mut *mut Handle) -> c_int {
    guarded("create_event", || {
        let class = library::opal().map(|opal| opal.event);
        // SAFETY: Open MPI's own class, whose objects `Handle` describes.
        unsafe { new(class, into) }
    })
}

extern "C" fn event_recorded(_device: c_int, _event: *mut Handle, _stream: *mut Handle) -> c_int {
    SUCCESS
}

extern "C" fn event_done(_device: c_int, _event: *mut Handle) -> c_int {
    SUCCESS
}

/// # Safety
/// As [`copy::any`].
unsafe extern "C" fn mem_copy_async(
    _dst_device: c_int,
    _src_device: c_int,
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    _stream: *mut Handle,
    _kind: c_uint,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { moved("mem_copy_async", dst, src, len) }
}

/// # Safety
/// As [`copy::any`].
unsafe extern "C" fn mem_copy(
    _dst_device: c_int,
    _src_device: c_int,
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    _kind: c_uint,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { moved("mem_copy", dst, src, len) }
}

/// # Safety
/// As [`copy::any`].
unsafe extern "C" fn mem_move(
    _dst_device: c_int,
    _src_device: c_int,
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    _kind: c_uint,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { moved("mem_move", dst, src, len) }
}

/// # Safety
/// As [`copy::any`].
unsafe fn moved(function: &str, dst: *mut c_void, src: *const c_void, len: usize) -> c_int {
    guarded(function, || {
        // SAFETY: guaranteed by the caller.
        let answer = unsafe { copy::any(dst as u64, src as u64, len as u64) };
        answer.map(|()| SUCCESS).map_err(error)
    })
}

/// # Safety
/// `into` is null or valid.
unsafe extern "C" fn mem_alloc(device: c_int, into: *mut *mut c_void, len: usize) -> c_int {
    guarded("mem_alloc", || {
        // Open MPI asks for memory of no particular card with this number.
        let card = card(if device == NO_DEVICE { 0 } else { device })?;
        if into.is_null() {
            return Err(BAD_PARAM);
        }
        let (base, bytes) = memory::alloc(card, len as u64).map_err(error)?;
        events::allocated(base, bytes, card);
        // SAFETY: guaranteed by the caller.
        unsafe { *into = base as *mut c_void };
        Ok(SUCCESS)
    })
}

extern "C" fn mem_release(_device: c_int, address: *mut c_void) -> c_int {
    guarded("mem_release", || {
        if address.is_null() {
            return Ok(SUCCESS);
        }
        domain::release(address as u64).map_err(error)?;
        Ok(SUCCESS)
    })
}

/// # Safety
/// `base` and `len` are null or valid.
unsafe extern "C" fn get_address_range(
    _device: c_int,
    address: *const c_void,
    base: *mut *mut c_void,
    len: *mut usize,
) -> c_int {
    guarded("get_address_range", || {
        let allocation = found(address)?;
        // SAFETY: guaranteed by the caller.
        let (base, len) = unsafe { (base.as_mut(), len.as_mut()) };
        if let Some(base) = base {
            *base = allocation.base() as *mut c_void;
        }
        if let Some(len) = len {
            *len = allocation.len() as usize;
        }
        Ok(SUCCESS)
    })
}

/// Host memory needs no preparation: the transport pins it when it copies.
extern "C" fn host_range(_device: c_int, _address: *mut c_void, _len: usize) -> c_int {
    SUCCESS
}

extern "C" fn host_unregister(_device: c_int, _address: *mut c_void) -> c_int {
    SUCCESS
}

/// The card that `mem_alloc` takes if none is named.
///
/// # Safety
/// `device` is null or valid.
unsafe extern "C" fn get_device(device: *mut c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    match unsafe { device.as_mut() } {
        Some(device) => {
            *device = 0;
            SUCCESS
        }
        None => BAD_PARAM,
    }
}

/// # Safety
/// `into` is null or valid.
unsafe extern "C" fn get_device_pci_attr(device: c_int, into: *mut PciAttr) -> c_int {
    guarded("get_device_pci_attr", || {
        let bus = card(device)?.bus.ok_or(NOT_SUPPORTED)?;
        // SAFETY: guaranteed by the caller.
        let into = unsafe { into.as_mut() }.ok_or(BAD_PARAM)?;
        *into = PciAttr {
            domain: u16::try_from(bus.domain).map_err(|_| NOT_SUPPORTED)?,
            bus: bus.bus,
            device: bus.device,
            function: bus.function,
        };
        Ok(SUCCESS)
    })
}

/// No card accesses the memory of another one by an address of this process.
///
/// # Safety
/// `access` is null or valid.
unsafe extern "C" fn device_can_access_peer(access: *mut c_int, one: c_int, other: c_int) -> c_int {
    guarded("device_can_access_peer", || {
        card(one)?;
        card(other)?;
        // SAFETY: guaranteed by the caller.
        *unsafe { access.as_mut() }.ok_or(BAD_PARAM)? = c_int::from(one == other);
        Ok(SUCCESS)
    })
}

/// # Safety
/// `id` is null or valid.
unsafe extern "C" fn get_buffer_id(_device: c_int, address: *const c_void, id: *mut u64) -> c_int {
    guarded("get_buffer_id", || {
        let allocation = found(address)?;
        // SAFETY: guaranteed by the caller.
        *unsafe { id.as_mut() }.ok_or(BAD_PARAM)? = allocation.number;
        Ok(SUCCESS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub;

    #[test]
    fn other_open_mpi_gets_no_component() {
        for version in ["5.0.0", "5.0.7", "5.0.10rc1"] {
            assert!(is_supported(Some(version)), "{version}");
        }
        for version in ["", "4.1.8", "5.0", "5.1.0", "5.1.0a1", "6.0.0", "15.0.1", "50.1"] {
            assert!(!is_supported(Some(version)), "{version}");
        }
        assert!(!is_supported(None), "unknown");
    }

    #[test]
    fn release_of_null_succeeds() {
        let _alone = stub::install();
        assert_eq!(mem_release(0, null_mut()), SUCCESS, "as accelerator.h requires");
        assert_eq!(
            mem_release(0, 4096 as *mut c_void),
            BAD_PARAM,
            "not device memory"
        );
    }
}
