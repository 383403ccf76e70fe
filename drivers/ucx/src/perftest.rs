//! Device memory for ucx_perftest's option `-m`.

#![allow(unsafe_code, reason = "functions that ucx_perftest calls with C's pointers")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use libloading::os::unix::Library;

use crate::abi::{AllocatedMemory, Function, PerfAllocator, SYSTEM_DEVICE_UNKNOWN, UcsStatus};
use crate::cards::cards;
use crate::domain;
use crate::handles::{self, Memory};
use crate::library::{Ucx, ucx};
use crate::status::{OK, Status, caught, guarded};
use crate::{copy, events, memory};

/// ucx_perftest's array of allocators by memory type, which its executable exports.
const ALLOCATORS: &[u8] = b"ucx_perf_mem_type_allocators";

/// Adds the allocator, if the program is ucx_perftest.
pub(crate) fn install(ucx: &Ucx) {
    let program = Library::this();
    // SAFETY: ucx_perftest declares an array of pointers; a program without it has no such symbol.
    let array = unsafe { program.get::<*mut *const PerfAllocator>(ALLOCATORS) };
    let Ok(array) = array.map(|symbol| *symbol) else {
        return;
    };
    let allocator = Box::leak(Box::new(PerfAllocator {
        mem_type: ucx.release.memory_type,
        init: Function(init as *const c_void),
        uct_alloc: Function(uct_alloc as *const c_void),
        uct_free: Function(uct_free as *const c_void),
        memcpy: Function(memcpy as *const c_void),
        memset: Function(memset as *const c_void),
    }));
    // SAFETY: the array has an entry for each memory type of the release.
    unsafe { *array.add(ucx.release.memory_type as usize) = allocator };
}

extern "C" fn init(_context: *mut c_void) -> UcsStatus {
    guarded("perftest init", || match cards().is_empty() {
        true => Err(Status::NoDevice),
        false => Ok(()),
    })
}

/// # Safety
/// `memory` is null or ucx_perftest's structure.
unsafe extern "C" fn uct_alloc(
    _context: *const c_void,
    len: usize,
    _flags: c_uint,
    memory: *mut AllocatedMemory,
) -> UcsStatus {
    guarded("perftest uct_alloc", || {
        if memory.is_null() {
            return Err(Status::InvalidParam);
        }
        let card = cards().first().ok_or(Status::NoDevice)?;
        let (base, bytes) = memory::alloc(card, len as u64)?;
        events::allocated(base, bytes, card);
        // SAFETY: guaranteed by the caller; the last field exists where the release has it.
        unsafe {
            (*memory).address = base as *mut c_void;
            (*memory).length = len;
            (*memory).mem_type = ucx().release.memory_type;
            (*memory).md = null_mut();
            (*memory).memh = handles::add(Memory::Registered(base, len as u64));
            if ucx().release.has_system_device_arguments {
                (*memory).sys_dev = SYSTEM_DEVICE_UNKNOWN;
            }
        }
        Ok(())
    })
}

/// # Safety
/// `memory` is null or what [`uct_alloc`] filled in.
unsafe extern "C" fn uct_free(_context: *const c_void, memory: *mut AllocatedMemory) {
    caught("perftest uct_free", || {
        // SAFETY: guaranteed by the caller.
        let Some(memory) = (unsafe { memory.as_ref() }) else {
            return;
        };
        // The function returns nothing. Both reject a structure that names no live memory.
        let _ = handles::remove(memory.memh, |memory| matches!(memory, Memory::Registered(..)));
        let _ = domain::release(memory.address as u64);
    });
}

/// # Safety
/// Both are memory of `len` bytes, on the host or the device.
unsafe extern "C" fn memcpy(
    dst: *mut c_void,
    _dst_type: c_uint,
    src: *const c_void,
    _src_type: c_uint,
    len: usize,
) {
    guarded("perftest memcpy", || {
        // SAFETY: guaranteed by the caller.
        unsafe { copy::uncounted(dst as u64, src as u64, len as u64) }
    });
}

/// # Safety
/// `dst` is device memory of `len` bytes.
unsafe extern "C" fn memset(dst: *mut c_void, value: c_int, len: usize) -> *mut c_void {
    let byte = value as u8; // as memset(3)
    let status = guarded("perftest memset", || match len {
        0 => Ok(()),
        _ => memory::fill(dst as u64, byte, len as u64),
    });
    match status {
        OK => dst,
        _ => null_mut(),
    }
}
