//! Callbacks of a program for device memory that appears and disappears.

#![allow(
    unsafe_code,
    reason = "functions of the C ABI, which call a program's function"
)]

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use gaudi_copy::{MemoryEvent, MemoryEvents, memory_types};
use gaudi_sys::{Errno, lock};

use crate::abi::CType;
use crate::guard::Failure;
use crate::handles::{Object, Table};
use crate::layouts::{Event, GAUDI_COPY_EVENT_ALLOC, GAUDI_COPY_EVENT_FREE};
use crate::pointer;

/// A program's function for events.
pub type Callback = Option<unsafe extern "C" fn(event: *const Event, user: *mut c_void)>;

impl CType for Callback {
    fn declare(name: &str) -> String {
        format!("void (*{name})(const struct gaudi_copy_event *event, void *user)")
    }
}

struct Listener {
    callback: unsafe extern "C" fn(*const Event, *mut c_void),
    user: *mut c_void,
    calls: Mutex<Calls>,
    ended: Condvar,
    /// What the cache of memory types refers to.
    this: Mutex<Option<Arc<dyn MemoryEvents>>>,
}

#[derive(Default)]
struct Calls {
    is_closed: bool,
    /// Threads in the callback, each as often as it is.
    threads: Vec<ThreadId>,
}

// SAFETY: `user` is passed to the callback alone, which the program promised to make thread-safe.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

static LISTENERS: Table<Listener> = Table::new();

impl Object for Listener {
    const KIND: u8 = 3;
    const NAME: &'static str = "listener";
}

impl MemoryEvents for Listener {
    fn on_event(&self, event: MemoryEvent) {
        let (kind, address, len, device) = match event {
            MemoryEvent::Alloc { address, len, device } => (GAUDI_COPY_EVENT_ALLOC, address, len, device),
            MemoryEvent::Free { address, len, device } => (GAUDI_COPY_EVENT_FREE, address, len, device),
            _ => return,
        };
        let event = Event {
            kind,
            address,
            len,
            device: device.index,
            ..Event::default()
        };
        let this = thread::current().id();
        let mut calls = lock(&self.calls);
        if calls.is_closed {
            return;
        }
        calls.threads.push(this);
        drop(calls);
        // SAFETY: the program promised that both are valid until `gaudi_copy_unsubscribe` returns,
        // which waits for this call.
        unsafe { (self.callback)(&raw const event, self.user) };
        let mut calls = lock(&self.calls);
        if let Some(at) = calls.threads.iter().position(|thread| *thread == this) {
            calls.threads.swap_remove(at);
        }
        drop(calls);
        self.ended.notify_all();
    }
}

c_functions! { FUNCTIONS:
    /// Calls `callback` with `user` for each allocation and each free of device memory of this
    /// process, in the thread that allocates or frees. The callback must not free memory, and must
    /// not end by longjmp(3) or an exception.
    ///
    /// EINVAL: `callback` is NULL.
    fn gaudi_copy_subscribe(callback: Callback, user: *mut c_void, listener: *mut u64) {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { pointer::place(listener) }?;
        let callback = callback.ok_or_else(|| Failure::invalid("the callback is NULL"))?;
        let listener = Arc::new(Listener {
            callback,
            user,
            calls: Mutex::default(),
            ended: Condvar::new(),
            this: Mutex::default(),
        });
        let handle = LISTENERS.add(Arc::clone(&listener))?;
        let events: Arc<dyn MemoryEvents> = listener.clone();
        memory_types().subscribe(&events);
        // A circle, which `gaudi_copy_unsubscribe` opens.
        *lock(&listener.this) = Some(events);
        place.put(handle);
        Ok(())
    }

    /// Ends the calls of a callback. When the function returns, none runs and none will.
    ///
    /// EDEADLK: this thread is in the callback.
    fn gaudi_copy_unsubscribe(listener: u64) {
        let known = LISTENERS.get(listener)?;
        if lock(&known.calls).threads.contains(&thread::current().id()) {
            return Err(Failure::new(Errno::EDEADLK, "a callback cannot end its own calls"));
        }
        LISTENERS.remove(listener, |_| Ok(()))?;
        lock(&known.this).take();
        let mut calls = lock(&known.calls);
        calls.is_closed = true;
        while !calls.threads.is_empty() {
            calls = known.ended.wait(calls).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}
