//! The functions of UCX that the plugin calls, for tests without UCX.

#![allow(unsafe_code, reason = "functions with C's signatures")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard};

use gaudi_sys::lock;
use nix::libc;

use crate::abi::{
    BASE_EP, BASE_IFACE, Class, Function, IfaceAttr, ListLink, MdAttr, MemTypeEvent, UcsStatus,
};
use crate::library::{self, Parsers, Ucx};
use crate::status::OK;
use crate::{cards, release};

/// Makes the process one with a UCX of the newest release and two mocks. The tests that use them
/// run one at a time.
pub(crate) fn install() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    library::set(ucx);
    cards::set(&["mock?name=stub", "mock?name=stub2"]);
    lock(&ALONE)
}

fn ucx() -> Ucx {
    let class = |size| {
        let class = Class {
            name: null(),
            size,
            superclass: null(),
            init: NONE,
            cleanup: NONE,
        };
        &raw const *Box::leak(Box::new(class))
    };
    let list = || &raw mut *Box::leak(Box::new(ListLink::UNLINKED));
    Ucx {
        release: release::find(1, 23).expect("a known release"),
        calloc,
        component_register: take_component,
        tl_register: take_transport,
        components_list: list(),
        md_base_query: zero,
        iface_base_query: zero_iface,
        iface_init,
        iface_class: class(BASE_IFACE),
        ep_init,
        ep_class: class(BASE_EP),
        class_cleanup,
        estimate_perf: NONE,
        is_connected: NONE,
        rkey_compare: NONE,
        query_v2: Some(NONE),
        find_system_device,
        name_system_device,
        event_enter: nothing,
        event_leave: nothing,
        event_dispatch,
        event_installers: list(),
        md_config_table: null(),
        iface_config_table: null(),
        parsers: Parsers {
            read_table: NONE,
            clone_table: NONE,
            release_table: NONE,
            help_table: NONE,
            read_bandwidth: NONE,
            write_bandwidth: NONE,
            read_time: NONE,
            write_time: NONE,
            clone_double: NONE,
            read_bool: NONE,
            write_bool: NONE,
            clone_int: NONE,
            release_nop: NONE,
            help_generic: NONE,
            doc_nop: NONE,
        },
    }
}

const NONE: Function = Function(null());

unsafe extern "C" fn calloc(count: usize, size: usize, _name: *const c_char) -> *mut c_void {
    // SAFETY: calloc takes every size.
    unsafe { libc::calloc(count, size) }
}

unsafe extern "C" fn take_component(_component: *mut c_void) {}

unsafe extern "C" fn take_transport(_component: *mut c_void, _transport: *mut c_void) {}

unsafe extern "C" fn zero(attr: *mut MdAttr) {
    // SAFETY: the plugin passes its caller's structure, of integers.
    unsafe { attr.write(MaybeUninit::zeroed().assume_init()) };
}

unsafe extern "C" fn zero_iface(_iface: *mut c_void, attr: *mut IfaceAttr) {
    // SAFETY: the plugin passes its caller's structure, of numbers.
    unsafe { attr.write(MaybeUninit::zeroed().assume_init()) };
}

#[allow(clippy::too_many_arguments, reason = "UCX's signature")]
unsafe extern "C" fn iface_init(
    _iface: *mut c_void,
    _class: *const Class,
    _initialized: *mut c_int,
    _ops: *const c_void,
    _internal: *const c_void,
    _md: *mut c_void,
    _worker: *mut c_void,
    _params: *const c_void,
    _config: *const c_void,
) -> UcsStatus {
    OK
}

unsafe extern "C" fn ep_init(
    _ep: *mut c_void,
    _class: *const Class,
    _initialized: *mut c_int,
    _iface: *mut c_void,
) -> UcsStatus {
    OK
}

unsafe extern "C" fn class_cleanup(_class: *const Class, _object: *mut c_void, _limit: c_int) {}

unsafe extern "C" fn find_system_device(_bus: *const c_void, number: *mut u8) -> UcsStatus {
    // SAFETY: the plugin passes a valid pointer.
    unsafe { *number = 3 };
    OK
}

unsafe extern "C" fn name_system_device(_number: u8, name: *const c_char, _priority: c_uint) -> UcsStatus {
    // SAFETY: the plugin passes a terminated string.
    assert!(!unsafe { CStr::from_ptr(name) }.is_empty(), "a name");
    OK
}

unsafe extern "C" fn nothing() {}

unsafe extern "C" fn event_dispatch(_kind: c_int, event: *mut MemTypeEvent) {
    assert_ne!(event, null_mut(), "an event");
}
