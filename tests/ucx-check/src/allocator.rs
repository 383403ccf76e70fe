//! Host memory, and device memory of the plugin's allocator for ucx_perftest.

#![allow(unsafe_code, reason = "functions of the plugin")]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null;

/// What went wrong.
pub(crate) type Failure = String;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Device,
}

/// `ucx_perf_allocator_t`.
#[repr(C)]
struct Allocator {
    mem_type: c_uint,
    init: extern "C" fn(*mut c_void) -> i8,
    alloc: extern "C" fn(*const c_void, usize, c_uint, *mut Allocated) -> i8,
    free: extern "C" fn(*const c_void, *mut Allocated),
    memcpy: extern "C" fn(*mut c_void, c_uint, *const c_void, c_uint, usize),
    memset: extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void,
}

/// `uct_allocated_memory_t`.
#[repr(C)]
pub(crate) struct Allocated {
    address: *mut c_void,
    length: usize,
    method: c_uint,
    mem_type: c_uint,
    md: *mut c_void,
    memh: *mut c_void,
    sys_dev: u64,
}

/// Memory types of any release, and room.
const TYPES: usize = 32;

#[repr(transparent)]
struct Array(UnsafeCell<[*const Allocator; TYPES]>);

// SAFETY: the plugin writes while it loads, before this program reads.
unsafe impl Sync for Array {}

/// What ucx_perftest exports, so that the plugin takes this program for it.
#[used]
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that the plugin looks up")]
static ucx_perf_mem_type_allocators: Array = Array(UnsafeCell::new([null(); TYPES]));

fn allocator() -> Result<&'static Allocator, Failure> {
    // SAFETY: see `Array`.
    let array = unsafe { &*ucx_perf_mem_type_allocators.0.get() };
    let found = array.iter().find(|entry| !entry.is_null());
    // SAFETY: the plugin's allocator lives as long as the process.
    let found = found.and_then(|entry| unsafe { entry.as_ref() });
    found.ok_or_else(|| "the plugin is not loaded, or has no card".to_owned())
}

/// Memory of either place.
pub(crate) enum Memory {
    Host(UnsafeCell<Vec<u8>>),
    Device(Box<UnsafeCell<Allocated>>),
}

impl Memory {
    pub(crate) fn new(place: Place, len: usize) -> Result<Self, Failure> {
        if place == Place::Host {
            return Ok(Self::Host(UnsafeCell::new(vec![0; len])));
        }
        let allocator = allocator()?;
        let mut allocated = Box::new(UnsafeCell::new(Allocated {
            address: std::ptr::null_mut(),
            length: 0,
            method: 0,
            mem_type: 0,
            md: std::ptr::null_mut(),
            memh: std::ptr::null_mut(),
            sys_dev: 0,
        }));
        match (allocator.alloc)(null(), len, 0, allocated.get_mut()) {
            0 => Ok(Self::Device(allocated)),
            status => Err(format!("the plugin's allocator: status {status} for {len} bytes")),
        }
    }

    /// The first byte's address.
    pub(crate) fn address(&self) -> *mut u8 {
        match self {
            // SAFETY: the vector does not move while `self` is borrowed.
            Self::Host(bytes) => unsafe { (*bytes.get()).as_mut_ptr() },
            // SAFETY: written once, by the allocator.
            Self::Device(allocated) => unsafe { (*allocated.get()).address.cast() },
        }
    }

    /// Bytes that were allocated.
    pub(crate) fn len(&self) -> usize {
        match self {
            // SAFETY: as in `address`.
            Self::Host(bytes) => unsafe { (&*bytes.get()).len() },
            // SAFETY: as in `address`.
            Self::Device(allocated) => unsafe { (*allocated.get()).length },
        }
    }

    fn copy(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Failure> {
        match self {
            // SAFETY: both ranges are valid and distinct: one is this memory.
            Self::Host(_) => unsafe { std::ptr::copy_nonoverlapping(src, dst, len) },
            Self::Device(_) => {
                let allocator = allocator()?;
                (allocator.memcpy)(dst.cast(), allocator.mem_type, src.cast(), 0, len);
            }
        }
        Ok(())
    }

    pub(crate) fn write(&self, start: usize, bytes: &[u8]) -> Result<(), Failure> {
        assert!(start + bytes.len() <= self.len(), "the range is inside");
        self.copy(self.address().wrapping_add(start), bytes.as_ptr(), bytes.len())
    }

    pub(crate) fn read(&self, start: usize, len: usize) -> Result<Vec<u8>, Failure> {
        assert!(start + len <= self.len(), "the range is inside");
        let mut bytes = vec![0; len];
        self.copy(bytes.as_mut_ptr(), self.address().wrapping_add(start), len)?;
        Ok(bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let (Self::Device(allocated), Ok(allocator)) = (self, allocator()) {
            (allocator.free)(null(), allocated.get_mut());
        }
    }
}
