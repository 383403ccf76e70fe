//! An asymmetric memory barrier: cheap for a hit, expensive for a removal.
//!
//! [`light`] is a compiler fence. [`heavy`] makes every running thread of the process execute a
//! full barrier (membarrier(2), `MEMBARRIER_CMD_PRIVATE_EXPEDITED`, Linux 4.14). `light` in one
//! thread and `heavy` in another order memory as two sequentially consistent fences do. If the
//! kernel lacks the call, and under loom, both are such fences. [`is_free`] returns whether `light`
//! is a compiler fence; it is valid after [`prepare`].
//!
//! Gain: 2.9 with 1 000 entries and 1.5 with 100 000, for 1 and 2 threads.

#[cfg(not(loom))]
mod with_kernel {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    use nix::libc;

    /// include/uapi/linux/membarrier.h
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    /// Set before the first record exists, so before `light` or `heavy` runs; never changed.
    static EXPEDITED: AtomicBool = AtomicBool::new(false);

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes numbers and touches no memory of the caller.
        let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        answer == 0
    }

    static ONCE: OnceLock<()> = OnceLock::new();

    pub(in crate::raw) fn prepare() {
        ONCE.get_or_init(|| {
            EXPEDITED.store(membarrier(REGISTER_PRIVATE_EXPEDITED), Ordering::SeqCst);
        });
    }

    /// Makes both barriers fences. Returns `false` if [`prepare`] ran before.
    pub(in crate::raw) fn prepare_fences() -> bool {
        ONCE.get_or_init(|| ());
        !is_free()
    }

    pub(in crate::raw) fn is_free() -> bool {
        EXPEDITED.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::raw) fn light() {
        if is_free() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Returns whether the barrier was executed. The kernel does not refuse after a successful
    /// registration, but a system call filter installed later may.
    #[must_use]
    pub(in crate::raw) fn heavy() -> bool {
        fence(Ordering::SeqCst);
        if !is_free() {
            return true;
        }
        membarrier(PRIVATE_EXPEDITED)
            || membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED)
    }
}

#[cfg(loom)]
mod with_kernel {
    use std::sync::atomic::Ordering;

    use crate::sync::fence;

    pub(in crate::raw) fn prepare() {}

    pub(in crate::raw) fn prepare_fences() -> bool {
        true
    }

    pub(in crate::raw) fn is_free() -> bool {
        false
    }

    pub(in crate::raw) fn light() {
        fence(Ordering::SeqCst);
    }

    #[must_use]
    pub(in crate::raw) fn heavy() -> bool {
        fence(Ordering::SeqCst);
        true
    }
}

pub(super) use with_kernel::{heavy, is_free, light, prepare, prepare_fences};
