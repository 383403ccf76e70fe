//! The hot path allocates nothing after warm-up: counted by the allocator itself.

#![expect(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gaudi_device::{Deadline, Device};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that ends has no counter any more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn submit_poll_and_wait_allocate_nothing() {
    let spec = "mock:gaudi2?name=hot".parse().expect("a spec");
    let device = Device::open(&spec).expect("the mock opens");
    let buffer = device.alloc(1 << 16).expect("a buffer");
    let host = device.alloc_host(1 << 16).expect("a mapping");
    let sob = device.sob().expect("a sync object");
    let mut queue = device
        .queue(gaudi_spec::gaudi2::queue::PDMA_0_1)
        .expect("a queue");
    let mut round = || {
        let completion = queue
            .set(&sob, 1)
            .and_then(|queue| queue.wait(&sob, 1))
            .and_then(|queue| queue.copy(&buffer, &host))
            .and_then(|queue| queue.memset(&buffer, 3))
            .and_then(|queue| queue.signal(&sob, 1))
            .and_then(|queue| queue.submit())
            .expect("submitted");
        while !completion.poll().expect("asked") {}
        let copy = device.copy(&host, &buffer).expect("submitted");
        copy.wait(Deadline::NEVER).expect("done");
    };
    // Every command buffer and every list of holders is used once.
    for _ in 0..200 {
        round();
    }
    let seen = allocations(|| (0..1000).for_each(|_| round()));
    assert_eq!(seen, 0, "1000 rounds of submit, poll and wait allocate nothing");
    assert!(
        allocations(|| drop(std::hint::black_box(vec![1_u8; 100]))) > 0,
        "the counter counts"
    );
}
