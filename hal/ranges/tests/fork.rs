//! A fork child can drop a map and pins of its parent, while the parent's other threads are in the
//! middle of everything.
#![cfg(not(loom))]
#![expect(unsafe_code, reason = "fork(2) is what is tested")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gaudi_ranges::{RangeMap, Span};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

#[test]
fn fork_child_drops_maps_and_pins() {
    let busy = Arc::new(RangeMap::new());
    let stop = Arc::new(AtomicBool::new(false));
    let span = Span::new(0x1000, 64).expect("a range");
    // Locks, sections and hazards are held at most moments.
    let threads = [true, false].map(|changes| {
        let (busy, stop) = (Arc::clone(&busy), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let pin = busy.get(span, [0, 0]);
                if changes {
                    drop(busy.insert(span, [0, 0], vec![1_u8]));
                    drop(busy.remove(Span::ALL, |_| true));
                }
                drop(pin);
            }
        })
    });
    for _ in 0..400 {
        let map = RangeMap::new();
        drop(map.insert(span, [0, 0], vec![7_u8; 100]));
        let pins = [map.get(span, [0, 0]), map.get(span, [0, 0])];
        // SAFETY: the child drops, looks at memory of its own, and leaves by _exit; the allocator
        // works after a fork.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                // SAFETY: a number goes in; a child that hangs is ended by the signal.
                unsafe { nix::libc::alarm(20) };
                drop(map);
                let lives = pins.iter().flatten().all(|pin| pin[99] == 7);
                drop(pins);
                // SAFETY: ends the child without the parent's exit handlers.
                unsafe { nix::libc::_exit(i32::from(!lives)) }
            }
            ForkResult::Parent { child } => {
                let ended = waitpid(child, None).expect("the child ends");
                assert!(matches!(ended, WaitStatus::Exited(_, 0)), "{ended:?}");
            }
        }
        let removed = map.remove(Span::ALL, |_| true);
        assert!(
            removed.len() == 1 && pins.iter().flatten().all(|pin| pin[99] == 7),
            "the parent's are its own"
        );
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no panic");
    }
}
