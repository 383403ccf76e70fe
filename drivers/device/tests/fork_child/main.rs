//! A fork child that misuses this crate's API.
//!
//! The attacker is a fork child. It holds a copy of every handle of its parent: devices, buffers,
//! host mappings and host buffers, queues at every point of their life, completions, sync objects,
//! exported dma-bufs, event descriptors and the seam below. It may call every safe method, in any
//! order, drop the handles in any order, fork again, panic, and end by `exit` or `_exit`. Threads
//! of the parent may hold any lock at the fork. Each attack ends within 30 s: every call is
//! `Forked`, no signal kills the child, the parent's objects and the driver's ledger are unchanged,
//! and the parent's copies move the bytes that the parent submitted.

#![expect(unsafe_code, reason = "fork(2), and foreign host memory")]

mod rig;
#[path = "../seam/mod.rs"]
mod seam;

use std::io::Write as _;
use std::os::fd::{AsFd as _, FromRawFd as _};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use gaudi_device::{
    Buffer, Completion, Deadline, Device, DeviceId, DeviceSpec, DmaBuf, Error, ErrorKind, ExportUser,
    HostBuffer, HostMapping, Options, Queue, Result, Sob,
};
use gaudi_hal::{Ledger, SharedIo, mock_ledger};
use gaudi_spec::gaudi2::queue::{PDMA_0_1, edma};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use self::rig::{Checks, DEADLINE, LEN, Loot, Parent, held, in_child, readable, take};
use self::seam::Seam;

/// Maps anonymous memory until every hole of the child's is filled that a command buffer of the
/// parent's left, and fills the memory.
fn fill_holes() -> Vec<gaudi_sys::RawMapping> {
    let filled = (0..64).map(|_| {
        let mapping = gaudi_sys::RawMapping::anonymous(256 << 10, true).expect("memory");
        mapping.fill(0, 256 << 10, 0xab).expect("filled");
        mapping
    });
    filled.collect()
}

fn are_filled(mappings: &[gaudi_sys::RawMapping]) -> bool {
    mappings.iter().all(|mapping| {
        let mut seen = vec![0; mapping.len()];
        mapping.read(0, &mut seen).is_ok() && seen.iter().all(|&byte| byte == 0xab)
    })
}

#[test]
fn calls_on_device_are_forked() {
    Parent::new("device").withstands(|checks, loot, _| checks.device(held(loot)));
}

#[test]
fn calls_on_host_memory_are_forked() {
    Parent::new("host").withstands(|checks, loot, _| checks.host(held(loot)));
}

#[test]
fn commands_of_idle_queue_are_forked() {
    Parent::new("idle").withstands(|checks, loot, _| {
        let loot = held(loot);
        checks.queue(&mut loot.idle, &loot.buffer, &loot.host, &loot.sob);
    });
}

#[test]
fn commands_in_open_slot_are_forked() {
    Parent::new("open").withstands(|checks, loot, _| {
        let loot = held(loot);
        checks.queue(&mut loot.open, &loot.buffer, &loot.host, &loot.sob);
    });
}

#[test]
fn fork_child_clears_and_refills_open_slot() {
    Parent::new("clear").withstands(|checks, loot, _| {
        let loot = held(loot);
        loot.open.clear();
        checks.holds("pending", loot.open.pending() == 0);
        checks.queue(&mut loot.open, &loot.buffer, &loot.host, &loot.sob);
    });
}

#[test]
fn commands_behind_waiting_submission_are_forked() {
    Parent::new("waiting").withstands(|checks, loot, _| {
        let loot = held(loot);
        loot.waiting.set_timeout(Duration::ZERO);
        checks.queue(&mut loot.waiting, &loot.buffer, &loot.host, &loot.sob);
    });
}

#[test]
fn pending_completion_is_forked() {
    Parent::new("pending").withstands(|checks, loot, _| checks.completion(&held(loot).pending));
}

#[test]
fn finished_completion_is_forked() {
    Parent::new("done").withstands(|checks, loot, _| checks.completion(&held(loot).done));
}

#[test]
fn dropped_open_queue_spares_childs_memory() {
    Parent::new("drop-open").withstands(|checks, loot, _| {
        let mut loot = take(loot);
        let own = fill_holes();
        loot.open.clear();
        drop(loot.open);
        checks.holds("the child's memory is its own", are_filled(&own));
    });
}

#[test]
fn dropped_queue_in_flight_spares_childs_memory() {
    Parent::new("drop-waiting").withstands(|checks, loot, _| {
        let loot = take(loot);
        let own = fill_holes();
        drop(loot.waiting);
        drop(loot.pending);
        checks.holds("the child's memory is its own", are_filled(&own));
    });
}

#[test]
fn drop_of_everything_spares_parent() {
    Parent::new("drop-all").withstands(|checks, loot, _| {
        let own = fill_holes();
        drop(take(loot));
        checks.holds("the child's memory is its own", are_filled(&own));
    });
}

#[test]
fn drop_in_reverse_order_spares_parent() {
    Parent::new("drop-reverse").withstands(|checks, loot, _| {
        let loot = take(loot);
        drop((loot.device, loot.cached, loot.host_buffer, loot.host));
        drop((loot.done, loot.pending, loot.waiting, loot.open, loot.idle));
        drop((loot.dmabuf, loot.pages, loot.buffer, loot.sob));
        checks.holds("the child has its own memory", are_filled(&fill_holes()));
    });
}

#[test]
fn close_of_everything_is_forked() {
    Parent::new("close-all").withstands(|checks, loot, _| {
        let loot = take(loot);
        for buffer in [loot.buffer, loot.pages] {
            checks.refused("Buffer::close", buffer.close());
        }
        for mapping in [loot.host, loot.cached] {
            checks.refused("HostMapping::close", mapping.close());
        }
        drop((
            loot.idle,
            loot.open,
            loot.waiting,
            loot.pending,
            loot.done,
            loot.sob,
        ));
        drop((loot.host_buffer, loot.dmabuf));
        checks.refused("Device::close", loot.device.close());
    });
}

#[test]
fn clones_in_child_hold_nothing() {
    Parent::new("clones").withstands(|_, loot, _| {
        let loot = held(loot);
        for _ in 0..1000 {
            drop((loot.device.clone(), loot.buffer.clone(), loot.host.clone()));
            drop((loot.sob.clone(), loot.pending.clone(), loot.pages.at(..)));
        }
        // Never dropped: the parent's counts are its own.
        std::mem::forget((loot.device.clone(), loot.buffer.clone(), loot.sob.clone()));
    });
}

#[test]
fn child_ends_by_exit_with_handles() {
    Parent::new("exit").withstands(|checks, loot, _| {
        checks.everything(held(loot));
        if checks.failed == 0 {
            std::process::exit(0);
        }
    });
}

#[test]
fn child_ends_at_once_with_handles() {
    // SAFETY: ends the child at once.
    Parent::new("end").withstands(|_, _, _| unsafe { libc::_exit(0) });
}

#[test]
fn child_panics_and_unwinds_handles() {
    Parent::new("panic").withstands(|checks, loot, _| {
        let loot = take(loot);
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _dropped_by_unwinding = loot;
            std::panic::resume_unwind(Box::new("as asked"));
        }));
        checks.holds("it unwinds", answer.is_err());
    });
}

#[test]
fn grandchild_is_forked_too() {
    Parent::new("grandchild").withstands(|checks, loot, _| {
        let answer = in_child(|| {
            let mut checks = Checks::default();
            checks.everything(held(loot));
            drop(take(loot));
            checks.failed
        });
        checks.holds(&format!("the grandchild: {answer:?}"), answer == Ok(0));
        checks.everything(held(loot));
        drop(take(loot));
    });
}

#[test]
fn many_children_in_turn_are_forked() {
    let mut parent = Parent::new("many");
    for _ in 0..10 {
        parent.endures(|checks, loot, _| {
            checks.everything(held(loot));
            drop(take(loot));
        });
    }
    parent.works();
}

#[test]
fn seam_below_is_forked() {
    Parent::new("seam").withstands(|checks, loot, _| {
        let loot = held(loot);
        let io = loot.device.io();
        checks.forked("mem_unmap", io.mem_unmap(loot.buffer.address()));
        let seq = gaudi_seam::CsSeq(loot.pending.sequence().unwrap_or(1));
        checks.forked("wait_cs", io.wait_cs(seq, Duration::ZERO));
        checks.forked(
            "submit",
            io.submit(&gaudi_seam::CsRequest::flush_pci_hbw_writes()),
        );
        checks.forked("register_events", io.register_events(loot.dmabuf.as_fd()));
    });
}

#[test]
fn device_of_parent_opens_no_second_time() {
    Parent::new("reopen").withstands(|checks, _, spec| {
        let kind = Device::open(spec).map(drop).map_err(|error| error.kind());
        let is_refused = matches!(kind, Err(ErrorKind::Busy | ErrorKind::Forked));
        checks.holds(&format!("open returned {kind:?}"), is_refused);
    });
}

#[test]
fn inherited_dmabuf_is_dropped_alone() {
    let mut parent = Parent::new("dmabuf");
    let window = parent.loot().dmabuf.whole().expect("a window");
    let second = parent.loot().pages.window(..100).expect("a window");
    parent.endures(|checks, loot, _| {
        checks.forked("attach", window.attach_cpu("child"));
        let loot = take(loot);
        drop((loot.dmabuf, loot.pages));
    });
    assert_eq!(window.len() + second.len(), 4196);
    drop((window, second));
    parent.works();
}

#[test]
fn event_fd_of_parent_fires_after_child() {
    let mut parent = Parent::new("eventfd");
    let event = parent.loot().pending.event_fd().expect("a descriptor");
    parent.endures(|checks, loot, _| {
        checks.completion(&held(loot).pending);
        drop(take(loot));
    });
    assert!(!readable(&event, 0), "the submission waits");
    let loot = parent.loot();
    let _ = loot
        .idle
        .signal(&loot.sob, 1)
        .and_then(|queue| queue.submit())
        .expect("submitted");
    assert!(readable(&event, 30_000), "the parent's thread signals it");
}

#[test]
fn cached_mapping_is_dropped_alone() {
    Parent::new("cached").withstands(|checks, loot, _| {
        let loot = take(loot);
        drop((loot.cached, loot.host_buffer));
        checks.forked("alloc_host", loot.device.alloc_host(1));
        drop(loot.device);
    });
}

#[derive(Debug)]
struct Nothing;

impl ExportUser for Nothing {
    fn release(&self, _: u64) {}

    fn describe(&self, _: DeviceId) -> Option<String> {
        None
    }
}

/// A thread of the parent that holds the device's locks until it is released: it frees pages, and
/// the driver does not answer.
fn stuck_in_driver(parent: &mut Parent) -> (thread::JoinHandle<()>, Sender<()>) {
    let (reached, is_reached): (Sender<()>, Receiver<()>) = channel();
    let (go_on, may_go_on) = channel();
    parent.seam.set(|hooks| {
        hooks.mem_unmap = Some(Box::new(move |io, address| {
            let _ = reached.send(());
            let _ = may_go_on.recv_timeout(2 * DEADLINE);
            io.mem_unmap(address)
        }));
    });
    let pages = parent.loot().device.alloc_exclusive(LEN as u64).expect("pages");
    parent.before = mock_ledger(&parent.spec).expect("the mock");
    let thread = thread::spawn(move || drop(pages));
    is_reached.recv().expect("the thread holds the lock");
    (thread, go_on)
}

#[test]
fn lock_held_at_fork_blocks_no_call() {
    let mut parent = Parent::new("lock");
    let (thread, go_on) = stuck_in_driver(&mut parent);
    let user: Arc<dyn ExportUser> = Arc::new(Nothing);
    parent.endures(|checks, loot, _| {
        checks.everything(held(loot));
        held(loot).pages.add_export_user(&user);
        drop(take(loot));
    });
    go_on.send(()).expect("the thread waits");
    thread.join().expect("the pages are freed");
    parent.seam.set(|hooks| hooks.mem_unmap = None);
    parent.works();
}

#[test]
fn submit_at_fork_blocks_no_call() {
    let mut parent = Parent::new("submitting");
    let (reached, is_reached) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    parent.seam.set(|hooks| {
        hooks.submit = Some(Box::new(move |_, ()| {
            let _ = reached.send(());
            let _ = may_go_on.lock().expect("one thread").recv_timeout(2 * DEADLINE);
            Ok(None)
        }));
    });
    let loot = parent.loot();
    let (device, buffer, host) = (loot.device.clone(), loot.buffer.clone(), loot.host.clone());
    let thread = thread::spawn(move || {
        let copy = device.copy(&buffer, &host).expect("submitted");
        copy.wait(DEADLINE).expect("done");
    });
    is_reached.recv().expect("the thread submits");
    parent.endures(|checks, loot, _| {
        checks.everything(held(loot));
        drop(take(loot));
    });
    go_on.send(()).expect("the thread waits");
    drop(go_on);
    thread.join().expect("the copy is done");
    parent.seam.set(|hooks| hooks.submit = None);
    parent.works();
}

#[test]
fn fork_amid_calls_of_threads_is_forked() {
    let mut parent = Parent::new("threads");
    let stop = AtomicBool::new(false);
    let device = parent.loot().device.clone();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let kept = HostBuffer::new(LEN).expect("host memory");
                while !stop.load(Ordering::Relaxed) {
                    // Each takes another lock. None submits: the pending submission leaves room for
                    // 63.
                    drop((device.sob(), device.alloc(64), device.alloc_host(LEN)));
                    drop((device.map(&kept), device.cache_stats()));
                }
            });
        }
        for _ in 0..10 {
            let loot = &mut parent.loot;
            let answer = in_child(|| {
                let mut checks = Checks::default();
                checks.everything(held(loot));
                drop(take(loot));
                checks.failed
            });
            assert_eq!(answer, Ok(0));
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(device);
    parent.works();
}

#[test]
fn parent_closes_device_while_child_lives() {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let mut parent = Parent::new("outlived");
    // SAFETY: the child waits for its parent, uses the test's objects alone and ends.
    let child = match unsafe { fork() }.expect("fork works") {
        ForkResult::Child => {
            drop(ours);
            let mut checks = Checks::default();
            let ended = gaudi_sys::poll::readable([theirs.as_fd()], 2 * DEADLINE);
            checks.holds("the parent closes the device", ended == Ok([true]));
            parent.loot().dmabuf.set_name("child").ok();
            checks.everything(parent.loot());
            drop(parent.loot.take());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(checks.failed) }
        }
        ForkResult::Parent { child } => child,
    };
    let loot = parent.loot();
    let _ = loot
        .idle
        .signal(&loot.sob, 1)
        .and_then(|queue| queue.submit())
        .expect("submitted");
    let Loot { device, .. } = parent.loot.take().expect("the parent's own");
    // Its exported pages stay allocated while the child holds the dma-buf.
    drop(device);
    ours.write_all(b"x").expect("the child hears");
    assert_eq!(
        waitpid(child, None).expect("the child ends"),
        WaitStatus::Exited(child, 0)
    );
    Device::open(&parent.spec).expect("the node is free again");
}
