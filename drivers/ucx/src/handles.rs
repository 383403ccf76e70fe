//! Memory handles that UCX holds: numbers, so that an invalid one is an error and not a fault.

#![allow(unsafe_code, reason = "pins memory that UCX registered by address")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gaudi_sys::{PerProcess, lock};

use crate::cards::Card;
use crate::status::Status;

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// An allocation of the memory domain, by its address.
    Allocated(u64),
    /// A registered range: address and length in bytes.
    Registered(u64, u64),
}

/// A live handle.
struct Handle {
    memory: Memory,
    pinned: Pinned,
}

/// Whether a card's engines can access registered host memory. The first large copy pins it: UCX
/// also registers memory of its own that no copy uses.
enum Pinned {
    NotYet,
    /// By the card with this index.
    By(usize, gaudi_copy::Memory),
    /// The driver refused.
    Never,
}

/// The live handles. Those of a parent are not live in its fork child.
static HANDLES: PerProcess<Mutex<HashMap<usize, Handle>>> = PerProcess::new();
/// The last handle of the process and of its parents: a fork child reuses no number.
static LAST: AtomicUsize = AtomicUsize::new(0);

fn insert(number: usize, memory: Memory) {
    let pinned = Pinned::NotYet;
    lock(HANDLES.get()).insert(number, Handle { memory, pinned });
}

/// Makes a handle, which is never null.
pub(crate) fn add(memory: Memory) -> *mut c_void {
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    insert(number, memory);
    number as *mut c_void
}

/// Returns what a live handle stands for.
///
/// # Errors
/// `InvalidParam`: not a live handle.
pub(crate) fn get(handle: *mut c_void) -> Result<Memory, Status> {
    let handles = lock(HANDLES.get());
    let handle = handles.get(&(handle as usize));
    handle.map(|handle| handle.memory).ok_or(Status::InvalidParam)
}

/// Ends a handle. Returns what it stood for.
///
/// # Errors
/// `InvalidParam`: not a live handle, or not of the wanted kind.
pub(crate) fn remove(handle: *mut c_void, is_wanted: fn(&Memory) -> bool) -> Result<Memory, Status> {
    let mut live = lock(HANDLES.get());
    let number = handle as usize;
    if !live.get(&number).is_some_and(|handle| is_wanted(&handle.memory)) {
        return Err(Status::InvalidParam);
    }
    let handle = live.remove(&number);
    // Unpins the memory, which is a system call.
    drop(live);
    handle.map(|handle| handle.memory).ok_or(Status::InvalidParam)
}

/// The host memory of a registration as the card's engines access it. Pins it at the first call.
/// `None` if the handle is not of `len` bytes of host memory at `address`, or the driver refuses
/// to pin it.
///
/// # Safety
/// The memory of a live registration is mapped, readable and writable.
pub(crate) unsafe fn pinned(
    handle: *mut c_void,
    card: &Card,
    address: u64,
    len: u64,
) -> Option<gaudi_copy::Memory> {
    let number = handle as usize;
    let (start, bytes) = {
        let handles = lock(HANDLES.get());
        let handle = handles.get(&number)?;
        let Memory::Registered(start, bytes) = handle.memory else {
            return None;
        };
        if address.checked_sub(start)?.checked_add(len)? > bytes {
            return None;
        }
        match &handle.pinned {
            Pinned::By(index, memory) if *index == card.index() => return Some(memory.clone()),
            // Another card's engines have it. Two cards that copy to one registration are rare.
            Pinned::By(..) | Pinned::Never => return None,
            Pinned::NotYet => (start, bytes),
        }
    };
    let first = NonNull::new(start as *mut u8)?;
    // SAFETY: guaranteed by the caller. A copy uses the memory within a call of UCX, which owns it.
    let made = unsafe { card.memory().ok()?.register(first, usize::try_from(bytes).ok()?) };
    let pinned = match &made {
        Ok(memory) => Pinned::By(card.index(), memory.clone()),
        Err(_) => Pinned::Never,
    };
    // Not under the lock until here: pinning is a long system call. The handle may have ended.
    if let Some(handle) = lock(HANDLES.get()).get_mut(&number) {
        handle.pinned = pinned;
    }
    made.ok()
}

/// Makes an ended handle live again: what it stands for could not be freed.
pub(crate) fn restore(handle: *mut c_void, memory: Memory) {
    insert(handle as usize, memory);
}

#[cfg(test)]
mod tests {
    use nix::libc;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;
    use crate::cards::cards;
    use crate::stub;

    #[test]
    fn registered_host_memory_is_pinned_once() {
        let _alone = stub::install();
        let card = &cards()[0];
        let bytes = vec![0_u8; 1 << 20];
        let (start, len) = (bytes.as_ptr() as u64, bytes.len() as u64);
        let handle = add(Memory::Registered(start, len));
        // SAFETY: the memory lives until the end of the test, and is not used otherwise.
        let pinned = |handle, address, len| unsafe { pinned(handle, card, address, len) };
        let first = pinned(handle, start + 5, 100).expect("pinned");
        assert_eq!((first.address(), first.len()), (start, len), "the whole range");
        let again = pinned(handle, start, len).expect("pinned");
        assert!(again.is_same(&first), "once");
        assert!(pinned(handle, start + 1, len).is_none(), "it leaves the range");
        assert!(
            pinned(handle, start - 1, 8).is_none(),
            "it begins before the range"
        );
        assert!(pinned(handle, start + 1, u64::MAX).is_none(), "it wraps");
        let allocated = add(Memory::Allocated(start));
        assert!(pinned(allocated, start, 8).is_none(), "not a registration");
        assert!(remove(handle, |_| true).is_ok() && remove(allocated, |_| true).is_ok());
        assert!(pinned(handle, start, len).is_none(), "the handle has ended");
    }

    #[test]
    fn fork_child_has_handles_of_its_own() {
        let inherited = add(Memory::Registered(4096, 8));
        // As a thread of the parent may hold it at the fork.
        let held = lock(HANDLES.get());
        // SAFETY: the child allocates, which the C library allows, and ends itself.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                // SAFETY: ends a child that waits for the lock.
                unsafe { libc::alarm(20) };
                let is_unknown = get(inherited) == Err(Status::InvalidParam);
                let own = add(Memory::Registered(8192, 8));
                let is_known = own != inherited && get(own) == Ok(Memory::Registered(8192, 8));
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!(is_unknown && is_known))) }
            }
            ForkResult::Parent { child } => {
                let ended = waitpid(child, None);
                assert_eq!(ended, Ok(WaitStatus::Exited(child, 0)), "at once");
            }
        }
        drop(held);
        assert_eq!(get(inherited), Ok(Memory::Registered(4096, 8)));
    }

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
