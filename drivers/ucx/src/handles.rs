//! Memory handles that UCX holds: numbers, so that an invalid one is an error and not a fault.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex};

use gaudi_sys::lock;

use crate::status::Status;

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// An allocation of the memory domain, by its address.
    Allocated(u64),
    /// A registered range: address and length in bytes.
    Registered(u64, u64),
}

#[derive(Default)]
struct Handles {
    last: usize,
    live: HashMap<usize, Memory>,
}

static HANDLES: LazyLock<Mutex<Handles>> = LazyLock::new(Mutex::default);

/// Makes a handle, which is never null.
pub(crate) fn add(memory: Memory) -> *mut c_void {
    let mut handles = lock(&HANDLES);
    handles.last += 1;
    let number = handles.last;
    handles.live.insert(number, memory);
    number as *mut c_void
}

/// Returns what a live handle stands for.
///
/// # Errors
/// `InvalidParam`: not a live handle.
pub(crate) fn get(handle: *mut c_void) -> Result<Memory, Status> {
    let handles = lock(&HANDLES);
    let memory = handles.live.get(&(handle as usize)).copied();
    memory.ok_or(Status::InvalidParam)
}

/// Ends a handle. Returns what it stood for.
///
/// # Errors
/// `InvalidParam`: not a live handle, or not of the wanted kind.
pub(crate) fn remove(handle: *mut c_void, is_wanted: fn(&Memory) -> bool) -> Result<Memory, Status> {
    let mut handles = lock(&HANDLES);
    let number = handle as usize;
    match handles.live.get(&number) {
        Some(memory) if is_wanted(memory) => handles.live.remove(&number).ok_or(Status::InvalidParam),
        _ => Err(Status::InvalidParam),
    }
}

/// Makes an ended handle live again: what it stands for could not be freed.
pub(crate) fn restore(handle: *mut c_void, memory: Memory) {
    lock(&HANDLES).live.insert(handle as usize, memory);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_ends_once_and_by_its_kind() {
        let handle = add(Memory::Registered(4096, 8));
        assert!(!handle.is_null(), "UCX takes NULL for no handle");
        let is_allocated = |memory: &Memory| matches!(memory, Memory::Allocated(_));
        let is_registered = |memory: &Memory| matches!(memory, Memory::Registered(..));
        assert_eq!(
            remove(handle, is_allocated),
            Err(Status::InvalidParam),
            "of another kind"
        );
        assert_eq!(remove(handle, is_registered), Ok(Memory::Registered(4096, 8)));
        assert_eq!(
            remove(handle, is_registered),
            Err(Status::InvalidParam),
            "ended before"
        );
        restore(handle, Memory::Registered(4096, 8));
        assert!(remove(handle, is_registered).is_ok(), "live again");
    }
}
