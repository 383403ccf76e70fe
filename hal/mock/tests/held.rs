//! Nobody holds the device for long: what takes a user's time does not take the others'.

#![expect(unsafe_code, reason = "host memory is pinned by address")]

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use gaudi_seam::{
    CbCreate, CsRequest, HostVa, KernelIo, KernelIoExt as _, MapHost, MmapRequest, MockSpec, RawMapping,
};
use gaudi_spec::gaudi2::queue;
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::HlInfoDeviceStatus;
use gaudi_uapi::memory::MemFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};

fn open(name: &str) -> Arc<dyn KernelIo> {
    let spec = MockSpec {
        name: name.to_owned(),
        ..MockSpec::default()
    };
    gaudi_mock::open(&spec).unwrap()
}

/// Puts bytes that are no program on a queue: the engine's error is told to whoever is registered.
fn fail(io: &dyn KernelIo) {
    let cb = io
        .cb_create(CbCreate {
            size: 4096,
            map_to_device: true,
        })
        .unwrap();
    let va = io.cb_info(cb, true).unwrap().device_va.unwrap();
    let memory = io
        .mmap(MmapRequest {
            offset: cb.0,
            len: 4096,
        })
        .unwrap();
    memory.write(0, &[0xff; 64]).unwrap();
    io.submit(&CsRequest {
        execute: &[HlCsChunk::user(queue::PDMA_0_0.0, va.0, 64)],
        ..CsRequest::default()
    })
    .unwrap();
}

#[test]
fn a_full_eventfd_that_waits_does_not_hold_the_device() {
    let full = u64::MAX - 1;
    let eventfd = EventFd::from_value_and_flags(0, EfdFlags::empty()).unwrap();
    nix::unistd::write(&eventfd, &full.to_ne_bytes()).unwrap();
    let reader = eventfd.as_fd().try_clone_to_owned().unwrap();
    let (sender, receiver) = mpsc::channel();
    let user = thread::spawn(move || {
        let io = open("held-eventfd");
        io.register_events(eventfd.as_fd()).unwrap();
        fail(&*io);
        sender.send(()).unwrap();
    });
    let answered = receiver.recv_timeout(Duration::from_secs(20));
    // Lets a writer go that waits after all, so that the test ends.
    let mut count = [0; 8];
    nix::unistd::read(&reader, &mut count).unwrap();
    user.join().unwrap();
    answered.expect("the submission came back");
    assert_eq!(u64::from_ne_bytes(count), full, "nothing was added to it");
}

#[test]
fn what_is_no_eventfd_is_not_registered() {
    let io = open("held-file");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(io.register_events(file.as_fd()).is_err());
}

#[test]
fn others_are_answered_while_memory_is_pinned() {
    const LEN: usize = 256 << 20;
    let io = open("held-pinning");
    let memory = RawMapping::anonymous(LEN, false).unwrap();
    let address = HostVa(memory.as_ptr().as_ptr().expose_provenance() as u64);
    // 0 before, 1 while the memory is pinned, 2 afterwards.
    let (phase, answers) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while phase.load(Ordering::Acquire) < 2 {
                io.query::<HlInfoDeviceStatus>().unwrap();
                if phase.load(Ordering::Acquire) == 1 {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        phase.store(1, Ordering::Release);
        let request = MapHost {
            address,
            size: LEN as u64,
            hint: None,
            flags: MemFlags::NONE,
        };
        // SAFETY: the memory outlives its mapping, and nobody refers to it.
        let va = unsafe { io.mem_map_host(request) };
        phase.store(2, Ordering::Release);
        io.mem_unmap(va.unwrap()).unwrap();
    });
    let answers = answers.into_inner();
    assert!(answers > 100, "{answers} answers while 256 MiB were pinned");
}
