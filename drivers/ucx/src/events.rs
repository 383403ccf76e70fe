//! Allocation events, without which UCX takes device addresses for host memory.

#![allow(unsafe_code, reason = "calls libucm, which calls back")]

use std::ffi::{c_int, c_void};
use std::sync::Once;

use crate::abi::{
    EventHandler, EventInstaller, Function, ListLink, MEM_FLAG_REGISTRABLE, MemTypeEvent, UcsStatus, event,
};
use crate::cards::Card;
use crate::library::{Ucx, ucx};
use crate::status::{OK, caught};
use crate::{list, memory, topology};

fn of(address: u64, len: u64, card: &Card) -> MemTypeEvent {
    MemTypeEvent {
        address: address as *mut c_void,
        size: usize::try_from(len).unwrap_or(usize::MAX), // 64-bit targets alone
        mem_type: ucx().release.memory_type,
        sys_dev: topology::system_device(card),
        mem_flags: MEM_FLAG_REGISTRABLE,
        rest: [0; 3],
    }
}

fn dispatch(kind: c_int, address: u64, len: u64, card: &Card) {
    let mut event = of(address, len, card);
    let ucx = ucx();
    // SAFETY: libucm's own order of calls; the event is as large as its union.
    unsafe {
        (ucx.event_enter)();
        (ucx.event_dispatch)(kind, &raw mut event);
        (ucx.event_leave)();
    }
}

/// Reports memory that was allocated.
pub(crate) fn allocated(address: u64, len: u64, card: &Card) {
    dispatch(event::MEM_TYPE_ALLOC, address, len, card);
}

/// Reports memory that is about to be freed.
pub(crate) fn freed(address: u64, len: u64, card: &Card) {
    dispatch(event::MEM_TYPE_FREE, address, len, card);
}

/// Adds the installer to libucm's list, so that handlers which are added later learn of earlier
/// allocations.
pub(crate) fn install(ucx: &Ucx) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let installer = Box::leak(Box::new(EventInstaller {
            install: Function(installs as *const c_void),
            get_existing_alloc: Function(existing as *const c_void),
            list: ListLink::UNLINKED,
        }));
        let link: *mut ListLink = &raw mut installer.list;
        // SAFETY: both links are valid for the process's life, and the list is changed only while
        // libraries load, under the loader's lock.
        unsafe { list::push_back(ucx.event_installers, link) };
    });
}

/// There is nothing to hook: every allocation is ours.
extern "C" fn installs(_events: c_int) -> UcsStatus {
    OK
}

/// Reports the live allocations to one handler.
///
/// # Safety
/// `handler` is valid.
unsafe extern "C" fn existing(handler: *mut EventHandler) {
    caught("get_existing_alloc", || {
        if handler.is_null() {
            return;
        }
        // SAFETY: guaranteed by the caller.
        let (call, arg) = unsafe { ((*handler).cb, (*handler).arg) };
        let Some(call) = call else { return };
        for (address, len, card) in memory::all() {
            let mut event = of(address, len, card);
            // SAFETY: the handler's own callback and argument.
            unsafe { call(event::MEM_TYPE_ALLOC, &raw mut event, arg) };
        }
    });
}
