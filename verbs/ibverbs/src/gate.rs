//! [`Gate`]: keeps a queue alive while a thread uses it.

use std::sync::atomic::{AtomicU8, Ordering};

use gaudi_sys::fork::OwnerProcess;

const OPEN: u8 = 0;
const BUSY: u8 = 1;
const SHUT: u8 = 2;

/// A lock that can be shut for good. Entering takes one exchange, leaving one store. A thread that
/// is inside at a fork does not exist in the child: the child cannot enter, and does not wait.
#[derive(Debug)]
pub(crate) struct Gate(AtomicU8, OwnerProcess);

impl Default for Gate {
    fn default() -> Self {
        Self(AtomicU8::new(OPEN), OwnerProcess::current())
    }
}

/// A thread inside a gate. Leaves it on drop.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    /// Enters the gate, or returns `None` if it is shut.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let mut spins = 0_u32;
        loop {
            match self
                .0
                .compare_exchange_weak(OPEN, BUSY, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Some(Inside(self)),
                Err(SHUT) => return None,
                Err(_) if self.1.is_foreign() => return None,
                Err(_) => wait(&mut spins),
            }
        }
    }

    /// Shuts the gate once no thread is inside. Returns false if it was shut before, and in a fork
    /// child if a thread of the parent is inside.
    pub(crate) fn shut(&self) -> bool {
        let mut spins = 0_u32;
        loop {
            match self
                .0
                .compare_exchange_weak(OPEN, SHUT, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(SHUT) => return false,
                Err(_) if self.1.is_foreign() => return false,
                Err(_) => wait(&mut spins),
            }
        }
    }

    /// Opens a shut gate again, after a failed destroy.
    pub(crate) fn reopen(&self) {
        self.0.store(OPEN, Ordering::Release);
    }
}

/// Waits for a thread inside, which posts or polls. That is short, unless it lost its processor.
fn wait(spins: &mut u32) {
    *spins += 1;
    if *spins % 64 == 0 {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(OPEN, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![expect(unsafe_code, reason = "fork(2) is what is tested")]

    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    use std::sync::atomic::AtomicU32;

    #[test]
    fn fork_child_does_not_wait_for_gate() {
        let gate = Gate::default();
        let inside = gate.enter();
        // SAFETY: the child only uses the gate and leaves by _exit; the alarm ends it if it
        // hangs.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                // SAFETY: as described above.
                unsafe { nix::libc::alarm(10) };
                let through = gate.enter().is_some() || gate.shut();
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { nix::libc::_exit(i32::from(through)) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(
                    waitpid(child, None),
                    Ok(WaitStatus::Exited(child, 0)),
                    "it does not wait"
                );
            }
        }
        drop(inside);
        assert!(gate.shut(), "the parent's gate is as it was");
    }

    #[test]
    fn gate_admits_one_thread_until_shut() {
        let (gate, inside, turns) = (Gate::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(_inside) = gate.enter() {
                        assert_eq!(
                            inside.fetch_add(1, Ordering::Relaxed),
                            0,
                            "no other thread is inside"
                        );
                        turns.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
            while turns.load(Ordering::Relaxed) < 1000 {
                std::thread::yield_now();
            }
            assert!(gate.shut(), "it was open");
            assert_eq!(
                inside.load(Ordering::Relaxed),
                0,
                "no thread is inside a shut gate"
            );
        });
        assert!(!gate.shut(), "it is shut once");
        gate.reopen();
        assert!(gate.enter().is_some(), "and can be opened again");
    }
}
