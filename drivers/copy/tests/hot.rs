//! The steady state of a transport costs no allocation, mapping or page fault: counted by the
//! allocator, and by the kernel for this thread.

#![expect(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::io::Read;

use gaudi_copy::{
    AllocOptions, Attached, Deadline, Local, MemoryDomain, MemoryType, Transport, memory_types,
};
use nix::sys::resource::{UsageWho, getrusage};

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

/// Reads the process's mappings into `text`, which is large enough: memory that the reading
/// allocated would change them.
fn read_mappings(text: &mut String) {
    text.clear();
    let capacity = text.capacity();
    let mut maps = File::open("/proc/self/maps").expect("procfs");
    maps.read_to_string(text).expect("procfs");
    assert_eq!(text.capacity(), capacity, "the text did not grow");
}

/// Allocations and page faults of this thread.
fn costs() -> (u64, i64) {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("asked");
    (
        ALLOCATIONS.get(),
        usage.minor_page_faults() + usage.major_page_faults(),
    )
}

#[test]
fn steady_state_allocates_and_maps_nothing() {
    let spec = "mock:gaudi2?name=copyhot".parse().expect("a spec");
    let domain = MemoryDomain::new(&spec).expect("a domain");
    let device = domain.alloc(1 << 20, AllocOptions::default()).expect("allocated");
    let host = domain.alloc_host(1 << 20).expect("allocated");
    let mut transport = Transport::new(&domain).expect("a transport");
    let (target, at) = (Attached::to(&device), device.address());
    let whole = [Local::all(&host)];
    let pieces: Vec<_> = (0..16)
        .map(|piece| Local::at(&host, piece * 8192, 4096).expect("inside"))
        .collect();
    let mut bytes = [7; 64];
    let mut round = || {
        transport.put_short(&bytes, &target, at).expect("posted");
        transport
            .put_bcopy(4096, |buffer| buffer.len(), &target, at)
            .expect("posted");
        transport.put_zcopy(&whole, &target, at, None).expect("posted");
        transport.put_zcopy(&pieces, &target, at, None).expect("posted");
        transport.progress().expect("progress");
        transport.flush_wait(Deadline::NEVER).expect("flushed");
        transport.get_zcopy(&pieces, &target, at, None).expect("posted");
        transport
            .get_bcopy(4096, |bytes| assert_eq!(bytes.len(), 4096), &target, at, None)
            .expect("posted");
        transport.get_short(&mut bytes, &target, at).expect("read");
        transport.flush_wait(Deadline::NEVER).expect("flushed");
        assert_eq!(memory_types().lookup(at + 1, 1).kind, MemoryType::Device);
    };
    // Every command buffer, chunk and page is used once.
    for _ in 0..200 {
        round();
    }
    let mut texts = [String::with_capacity(1 << 20), String::with_capacity(1 << 20)];
    read_mappings(&mut texts[0]);
    // The kernel's reclaim of memory causes faults too: the fewest of three measurements count.
    let faults = (0..3).map(|_| {
        let before = costs();
        for _ in 0..1000 {
            round();
        }
        let after = costs();
        assert_eq!(after.0 - before.0, 0, "allocations of 1000 rounds");
        after.1 - before.1
    });
    assert_eq!(faults.min(), Some(0), "page faults of 1000 rounds");
    read_mappings(&mut texts[1]);
    assert_eq!(texts[1], texts[0], "the mappings stay");
    let before = costs();
    drop(std::hint::black_box(vec![1_u8; 8 << 20]));
    let after = costs();
    assert!(
        after.0 > before.0 && after.1 > before.1,
        "both counters count: {before:?} {after:?}"
    );
}
