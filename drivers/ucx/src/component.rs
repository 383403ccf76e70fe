//! The component `gaudi_copy` and its registration.

#![allow(unsafe_code, reason = "objects that libuct links into its lists")]

use std::ffi::{c_uint, c_void};
use std::ptr::{null, null_mut};

use crate::abi::{Component, ConfigEntry, Function, ListLink, MD_NAME, MdResource, Transport, UcsStatus};
use crate::cards::{COMPONENT, cards};
use crate::config::{self, DomainConfig, TransportConfig};
use crate::domain::{self, nothing, unsupported};
use crate::library::{Ucx, ucx};
use crate::status::{Status, guarded};
use crate::{list, memory, transport};

fn bytes<const COUNT: usize>(text: &[u8]) -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    for (to, from) in bytes[..COUNT - 1].iter_mut().zip(text) {
        *to = *from;
    }
    bytes
}

/// Registers component and transport with libuct, unless a copy of this library did it. Returns
/// whether this one did.
pub(crate) fn register(ucx: &Ucx) -> bool {
    if is_registered(ucx) {
        return false;
    }
    let unpack = match ucx.release.has_system_device_arguments {
        true => rkey_unpack_with as *const c_void,
        false => rkey_unpack as *const c_void,
    };
    let entry = |name, size, table| ConfigEntry {
        name,
        prefix: config::PREFIX,
        table,
        size,
        list: ListLink::UNLINKED,
        flags: 0,
    };
    let component = Box::leak(Box::new(Component {
        name: bytes(COMPONENT.as_bytes()),
        query_md_resources: Function(query_md_resources as *const c_void),
        md_open: Function(domain::open as *const c_void),
        cm_open: Function(unsupported as *const c_void),
        rkey_unpack: Function(unpack),
        rkey_ptr: Function(unsupported as *const c_void),
        rkey_release: Function(rkey_release as *const c_void),
        rkey_compare: ucx.rkey_compare,
        md_config: entry(
            c"Gaudi memory domain".as_ptr(),
            size_of::<DomainConfig>(),
            config::domain(ucx).as_ptr(),
        ),
        cm_config: ConfigEntry {
            prefix: c"".as_ptr(),
            ..entry(null(), 0, null())
        },
        tl_list: ListLink::UNLINKED,
        list: ListLink::UNLINKED,
        flags: 0,
        md_vfs_init: Function(nothing as *const c_void),
    }));
    let transport = Box::leak(Box::new(Transport {
        name: bytes(transport::NAME),
        query_devices: Function(transport::query_devices as *const c_void),
        iface_open: Function(transport::open as *const c_void),
        config: entry(
            c"Gaudi transport".as_ptr(),
            size_of::<TransportConfig>(),
            config::transport(ucx).as_ptr(),
        ),
        list: ListLink::UNLINKED,
    }));
    let component: *mut Component = component;
    // SAFETY: a new object, of which no list has a link.
    unsafe { list::make_empty(&raw mut (*component).tl_list) };
    // SAFETY: both live as long as the process and have the release's layout.
    unsafe {
        (ucx.component_register)(component.cast());
        (ucx.tl_register)(component.cast(), (transport as *mut Transport).cast());
    }
    true
}

/// Whether the list of components has one of this name. The plugin may be loaded under several
/// names and from several files.
fn is_registered(ucx: &Ucx) -> bool {
    let head = ucx.components_list;
    let offset = std::mem::offset_of!(Component, list);
    let wanted: [u8; 16] = bytes(COMPONENT.as_bytes());
    // SAFETY: libuct's list of components, which changes only while libraries load.
    let mut link = unsafe { (*head).next };
    while link != head && !link.is_null() {
        let component = link.cast::<u8>().wrapping_sub(offset).cast::<Component>();
        // SAFETY: the link is a field of a component.
        if unsafe { (*component).name } == wanted {
            return true;
        }
        // SAFETY: as above.
        link = unsafe { (*link).next };
    }
    false
}

/// One resource for each card.
///
/// # Safety
/// The pointers are null or valid.
pub(crate) unsafe extern "C" fn query_md_resources(
    _component: *mut Component,
    resources: *mut *mut MdResource,
    count: *mut c_uint,
) -> UcsStatus {
    guarded("query_md_resources", || {
        if resources.is_null() || count.is_null() {
            return Err(Status::InvalidParam);
        }
        let cards = cards();
        let number = c_uint::try_from(cards.len()).map_err(|_| Status::NoResource)?;
        let mut array: *mut MdResource = null_mut();
        if number > 0 {
            let size = size_of::<MdResource>();
            // SAFETY: UCX's allocator, as UCX frees the array.
            array = unsafe { (ucx().calloc)(cards.len(), size, c"gaudi domains".as_ptr()) }.cast();
            if array.is_null() {
                return Err(Status::NoMemory);
            }
        }
        for (index, card) in cards.iter().enumerate() {
            let name = bytes::<MD_NAME>(card.domain.as_bytes());
            // SAFETY: the array has an element for each card.
            unsafe { array.add(index).write(MdResource { name }) };
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            *resources = array;
            *count = number;
        }
        Ok(())
    })
}

/// The key that UCX passes to the transport, which needs none: it finds memory by its address.
const KEY: usize = 1;

/// # Safety
/// The pointers are null or valid.
unsafe extern "C" fn rkey_unpack(
    _component: *mut Component,
    buffer: *const memory::Key,
    key: *mut usize,
    handle: *mut *mut c_void,
) -> UcsStatus {
    // SAFETY: guaranteed by the caller.
    guarded("rkey_unpack", || unsafe { give_key(buffer, key, handle) })
}

/// # Safety
/// The pointers are null or valid.
pub(crate) unsafe extern "C" fn rkey_unpack_with(
    _component: *mut Component,
    buffer: *const memory::Key,
    _params: *const c_void,
    key: *mut usize,
    handle: *mut *mut c_void,
) -> UcsStatus {
    // SAFETY: guaranteed by the caller.
    guarded("rkey_unpack", || unsafe { give_key(buffer, key, handle) })
}

/// # Safety
/// The pointers are null or valid.
unsafe fn give_key(
    buffer: *const memory::Key,
    key: *mut usize,
    handle: *mut *mut c_void,
) -> Result<(), Status> {
    if buffer.is_null() || key.is_null() || handle.is_null() {
        return Err(Status::InvalidParam);
    }
    // SAFETY: guaranteed by the caller; the type has no alignment.
    memory::check_key(&unsafe { buffer.read() })?;
    // SAFETY: guaranteed by the caller.
    unsafe {
        *key = KEY;
        *handle = null_mut();
    }
    Ok(())
}

extern "C" fn rkey_release(_component: *mut Component, _key: usize, _handle: *mut c_void) -> UcsStatus {
    0
}
