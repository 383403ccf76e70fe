//! [`Gate`]: keeps a queue alive while it is used.

use std::sync::atomic::{AtomicU8, Ordering};

const OPEN: u8 = 0;
const BUSY: u8 = 1;
const SHUT: u8 = 2;

/// Lets one through at a time, and none once it is shut. One exchange in, one store out.
#[derive(Debug, Default)]
pub(crate) struct Gate(AtomicU8);

/// Who is through; the gate opens again when it is dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    /// Through, or nothing where the gate is shut for good.
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
                Err(_) => wait(&mut spins),
            }
        }
    }

    /// Waits until nobody is inside, and lets none in any more. False where it was shut before.
    pub(crate) fn shut(&self) -> bool {
        let mut spins = 0_u32;
        loop {
            match self
                .0
                .compare_exchange_weak(OPEN, SHUT, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(SHUT) => return false,
                Err(_) => wait(&mut spins),
            }
        }
    }

    /// Lets through again: what was to go has stayed.
    pub(crate) fn reopen(&self) {
        self.0.store(OPEN, Ordering::Release);
    }
}

/// Who is inside posts or polls, which is short; but it may have lost its processor.
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
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn one_is_inside_at_a_time_and_none_after_it_is_shut() {
        let (gate, inside, turns) = (Gate::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(_inside) = gate.enter() {
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "nobody else is inside");
                        turns.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
            while turns.load(Ordering::Relaxed) < 1000 {
                std::thread::yield_now();
            }
            assert!(gate.shut(), "it was open");
            assert_eq!(inside.load(Ordering::Relaxed), 0, "nobody is inside a shut gate");
        });
        assert!(!gate.shut(), "it is shut once");
        gate.reopen();
        assert!(gate.enter().is_some(), "and can be opened again");
    }
}
