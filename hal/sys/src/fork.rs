//! Which process made an object: a counter that every `fork` child sees raised.
//!
//! A process id costs a system call on each check; the counter costs one relaxed load. Children
//! made by a bare `clone` system call do not pass through libc's handlers and are not seen: they
//! must not use the objects of their parent.

#![expect(unsafe_code, reason = "pthread_atfork is reachable through libc only")]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static HOOK: Once = Once::new();

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that made an object. Unequal in every fork child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerProcess(u32);

impl OwnerProcess {
    /// The calling process.
    pub fn current() -> Self {
        HOOK.call_once(|| {
            // SAFETY: the handler only adds to an atomic, which is async-signal-safe, as a child
            // handler must be.
            let answer = unsafe { nix::libc::pthread_atfork(None, None, Some(in_child)) };
            assert_eq!(
                answer, 0,
                "pthread_atfork(3) fails only without memory for one handler"
            );
        });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// No process: [`is_foreign`](Self::is_foreign) is true in every process.
    pub const fn none() -> Self {
        // No process has forked so often.
        Self(u32::MAX)
    }

    /// Whether another process made the object: the calling process is a fork child of it.
    #[inline]
    pub fn is_foreign(self) -> bool {
        GENERATION.load(Ordering::Relaxed) != self.0
    }
}
