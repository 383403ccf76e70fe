//! Posting and polling through libibverbs allocate nothing: counted, in a program of its own.

#![expect(
    unsafe_code,
    reason = "the program's allocator counts, and hands on to the system's"
)]

mod ibv;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gaudi_lab::rxe::skips_verbs;
use gaudi_verbs::provider::{CompletionQueue, QueuePair};
use gaudi_verbs::{Payload, RecvWr, SendOp, WorkCompletion};

use ibv::{Nic, any, request};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while it does something. C's own are not counted: they are the
/// library's.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    work();
    COUNT.with(Cell::get) - before
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(Box::new(7))), 1, "one box");
    assert_eq!(allocations(|| ()), 0, "nothing");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn posts_and_polls_allocate_nothing() {
    if skips_verbs("posts_and_polls_allocate_nothing") {
        return;
    }
    let nic = Nic::open(any());
    let host = nic.host(1 << 16);
    let (here, there) = nic.pair();
    let (sends, receives): (&dyn QueuePair, &dyn QueuePair) = (&*here.queue, &*there.queue);
    let (sent, received): (&dyn CompletionQueue, &dyn CompletionQueue) = (&*here.cq, &*there.cq);
    let sges = [host.sge(0, 64), host.sge(100, 64)];
    let into = [host.sge(4096, 4096)];
    let poll_one = |cq: &dyn CompletionQueue| {
        let mut some = [WorkCompletion::EMPTY; 32];
        while cq.poll(&mut some).expect("whole") == 0 {
            std::thread::yield_now();
        }
        assert!(some[0].is_success(), "{:?}", some[0]);
    };
    let remote = host.remote(8192);
    let ops = [
        SendOp::Write(remote),
        SendOp::Read(remote),
        SendOp::WriteImm(remote, 1),
        SendOp::Send,
        SendOp::SendImm(2),
    ];
    let seen = allocations(|| {
        for _ in 0..20 {
            for op in ops {
                let takes = !matches!(op, SendOp::Write(_) | SendOp::Read(_));
                if takes {
                    receives
                        .post_recv(&RecvWr {
                            wr_id: 1,
                            sges: &into,
                        })
                        .expect("room");
                }
                sends
                    .post_send(&request(2, Payload::Sges(&sges), op))
                    .expect("room");
                poll_one(sent);
                if takes {
                    poll_one(received);
                }
            }
            sends
                .post_send(&request(3, Payload::Inline(&[7; 32]), SendOp::Write(remote)))
                .expect("room");
            poll_one(sent);
            sent.req_notify(false).expect("it can be asked");
            sent.ack_event().expect("none");
        }
    });
    assert_eq!(seen, 0, "120 requests and their completions");
    // A full queue is no success, and is met all the time: it allocates nothing either.
    let mut full = None;
    let seen = allocations(|| {
        while full.is_none() {
            full = receives
                .post_recv(&RecvWr {
                    wr_id: 1,
                    sges: &into,
                })
                .err();
        }
    });
    assert_eq!(seen, 0, "a refused post");
}
