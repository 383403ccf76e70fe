//! What happens when a process has no descriptors left; alone in its program, since the limit is the process's.

use std::fs::File;

use gaudi_lab::heap;
use gaudi_sys::dmabuf::{udmabuf_create, udmabuf_open};
use gaudi_sys::{Errno, Memfd, PAGE};
use nix::libc::{O_CLOEXEC, O_RDWR};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn without_a_free_descriptor_an_export_is_emfile_and_leaks_nothing() {
    let device = udmabuf_open().expect("udmabuf is built in");
    let heap = heap::open("system").expect("the system heap is built in");
    let memory = Memfd::sparse(c"lab", PAGE).expect("a memory file");
    let hard = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit").1;
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).expect("a lower limit");
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    let list = || std::fs::read_to_string("/sys/kernel/debug/dma_buf/bufinfo");
    drop(taken.pop());
    let before = list().expect("debugfs is mounted");
    taken.push(File::open("/dev/null").expect("the last descriptor"));
    let udmabuf = udmabuf_create(&device, &memory, 0, PAGE).map(drop);
    let buffer = heap::allocate(&heap, PAGE, (O_RDWR | O_CLOEXEC) as u32, 0).map(drop);
    drop(taken);
    assert_eq!(udmabuf, Err(Errno::EMFILE), "udmabuf has no number to give");
    assert_eq!(buffer, Err(Errno::EMFILE), "nor has the heap");
    assert_eq!(
        list().expect("debugfs is mounted"),
        before,
        "no buffer stays behind without a descriptor"
    );
    let again = udmabuf_create(&device, &memory, 0, PAGE).map(drop);
    assert_eq!(again, Ok(()), "with a free descriptor it works again");
}
