//! Submitting and waiting on a stub kernel, and the functions of libhl-thunk: one ioctl each, and
//! nothing allocated. Counted, not timed.

#![expect(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use gaudi_bench::regions::Regions;
use gaudi_bench::rows::{idle_layer, submit_one};
use gaudi_bench::stub;
use gaudi_bench::thunk::CALLS;
use gaudi_seam::{CsSeq, SharedIo, WaitStatus};
use gaudi_uapi::cs::HlCsChunk;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations and calls of a thousand operations.
fn counted(mut operation: impl FnMut()) -> (u64, u64) {
    operation();
    let before = (ALLOCATIONS.get(), stub::calls());
    (0..1000).for_each(|_| operation());
    (ALLOCATIONS.get() - before.0, stub::calls() - before.1)
}

// One test: the stub counts for the whole process.
#[test]
fn every_call_is_one_ioctl() {
    let chunk = HlCsChunk::user(0, 0x1000_0000, 64);
    let submit = |io: &SharedIo| {
        let seq = submit_one(&**io, &chunk).expect("the stub answers");
        assert_eq!(seq, CsSeq(7), "the stub's number");
    };
    let wait = |io: &SharedIo, timeout| {
        let answer = io.wait_cs(CsSeq(7), timeout).expect("the stub answers");
        assert_eq!(answer.status, WaitStatus::Completed, "the stub's status");
    };
    let bare = stub::kernel().expect("a stub kernel");
    let layered = idle_layer(stub::kernel().expect("a stub kernel"));
    for (name, io) in [("bare", bare), ("with a layer that is off", layered)] {
        assert_eq!(
            counted(|| submit(&io)),
            (0, 1000),
            "submit, {name}: allocations, calls"
        );
        assert_eq!(
            counted(|| wait(&io, Duration::ZERO)),
            (0, 1000),
            "poll, {name}: allocations, calls"
        );
        let second = Duration::from_secs(1);
        assert_eq!(
            counted(|| wait(&io, second)),
            (0, 1000),
            "wait, {name}: allocations, calls"
        );
    }
    for call in CALLS {
        let mut once = call.linked();
        assert_eq!(
            counted(|| once(1)),
            (0, 1000),
            "{}: allocations, calls",
            call.name
        );
    }
    let vector = || drop(std::hint::black_box(vec![1_u8; 100]));
    assert_eq!(counted(vector), (1000, 0), "the counters count");
}

#[test]
fn region_cache_hit_allocates_nothing() {
    let regions = Regions::new(1000).expect("a software NIC");
    let hits = || assert_eq!(regions.hit(5, 100), 100, "every query is a hit");
    assert_eq!(counted(hits).0, 0, "allocations of a hundred thousand hits");
}
