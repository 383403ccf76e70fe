//! No caller holds the device for long: slow work of one does not delay the others.

#![expect(unsafe_code, reason = "host memory is pinned by address")]

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_seam::{
    CbCreate, Clock, CqCounter, CsRequest, CsSeq, DeviceVa, Errno, HostVa, InterruptId, KernelIo,
    KernelIoExt as _, MapDevice, MapHost, MemAlloc, MmapRequest, MockSpec, Order, QueueId, RawMapping,
    TimestampRegistration, WaitStatus,
};
use gaudi_spec::gaudi2::packet::{Fence, LinDma, MsgLong};
use gaudi_spec::gaudi2::{DRAM_PAGE, qman, queue};
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::HlInfoDeviceStatus;
use gaudi_uapi::memory::MemFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::gettid;

fn open(name: &str) -> Arc<dyn KernelIo> {
    let spec = MockSpec {
        name: name.to_owned(),
        ..MockSpec::default()
    };
    gaudi_mock::open(&spec).unwrap()
}

/// Submits a command buffer of these bytes to the first queue.
fn submit(io: &dyn KernelIo, bytes: &[u8]) -> CsSeq {
    submit_to(io, queue::PDMA_0_0, bytes)
}

fn submit_to(io: &dyn KernelIo, queue: QueueId, bytes: &[u8]) -> CsSeq {
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
    memory.write(0, bytes).unwrap();
    let request = CsRequest {
        execute: &[HlCsChunk::user(queue.0, va.0, bytes.len() as u32)],
        ..CsRequest::default()
    };
    io.submit(&request).unwrap().seq
}

/// Device memory to fill.
fn device_memory(io: &dyn KernelIo) -> DeviceVa {
    let flags = MemFlags::NONE;
    let size = DRAM_PAGE;
    let page_size = 0;
    let handle = io
        .mem_alloc(MemAlloc {
            size,
            page_size,
            flags,
        })
        .unwrap();
    let hint = None;
    io.mem_map_device(MapDevice { handle, hint, flags }).unwrap()
}

#[test]
fn full_eventfd_does_not_block_the_device() {
    let full = u64::MAX - 1;
    let eventfd = EventFd::from_value_and_flags(0, EfdFlags::empty()).unwrap();
    nix::unistd::write(&eventfd, &full.to_ne_bytes()).unwrap();
    let reader = eventfd.as_fd().try_clone_to_owned().unwrap();
    let (sender, receiver) = mpsc::channel();
    let user = thread::spawn(move || {
        let io = open("held-eventfd");
        io.register_events(eventfd.as_fd()).unwrap();
        // No program: the engine's error is reported to registered eventfds.
        submit(&*io, &[0xff; 64]);
        sender.send(()).unwrap();
    });
    let answered = receiver.recv_timeout(Duration::from_secs(20));
    // Lets a writer go that waits after all, so that the test ends.
    let mut count = [0; 8];
    nix::unistd::read(&reader, &mut count).unwrap();
    user.join().unwrap();
    answered.expect("the submission came back");
    // As eventfd_signal() leaves a full counter, or as it was where this kernel has no Linux AIO.
    assert!(
        [u64::MAX, full].contains(&u64::from_ne_bytes(count)),
        "{count:x?}"
    );
}

#[test]
fn non_eventfd_is_not_registered() {
    let io = open("held-file");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(io.register_events(file.as_fd()).is_err());
}

#[test]
fn others_are_answered_while_memory_is_pinned() {
    const LEN: usize = 128 << 20;
    let io = open("held-pinning");
    let pinning = AtomicBool::new(false);
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut best = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                io.query::<HlInfoDeviceStatus>().unwrap();
                if pinning.load(Ordering::Acquire) {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        // On a busy machine the other thread may have no turn meanwhile.
        for _ in 0..40 {
            let memory = RawMapping::anonymous(LEN, false).unwrap();
            let request = MapHost {
                address: HostVa(memory.as_ptr().as_ptr().expose_provenance() as u64),
                size: LEN as u64,
                hint: None,
                flags: MemFlags::NONE,
            };
            answers.store(0, Ordering::Relaxed);
            pinning.store(true, Ordering::Release);
            // SAFETY: the memory outlives its mapping, and no reference to it exists.
            let va = unsafe { io.mem_map_host(request) };
            pinning.store(false, Ordering::Release);
            io.mem_unmap(va.unwrap()).unwrap();
            best = answers.load(Ordering::Relaxed).max(best);
            if best > 100 {
                break;
            }
        }
        over.store(true, Ordering::Release);
    });
    assert!(best > 100, "{best} answers while 128 MiB were pinned");
}

/// Waits until a thread of this process sleeps in the kernel.
fn until_asleep(thread: i32) {
    let begin = Instant::now();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        // proc_pid_stat(5): the state follows the name, which stands in parentheses.
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        if state == Some('S') {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{stat}");
        thread::yield_now();
    }
}

#[test]
fn completion_wakes_sleeping_waiter() {
    let io = open("held-wake");
    let row = queue::row(queue::PDMA_0_0).unwrap();
    let release = qman::fence_address(&row, 2).unwrap();
    for _ in 0..3 {
        let held = submit(&*io, &Fence::new(2, 1, 1).unwrap().to_bytes());
        let (sender, receiver) = mpsc::channel();
        let (answer, took) = thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                sender.send(gettid().as_raw()).unwrap();
                io.wait_cs(held, Duration::from_secs(60))
            });
            until_asleep(receiver.recv().unwrap());
            let begin = Instant::now();
            submit_to(&*io, queue::PDMA_1_0, &MsgLong::new(release, 1).to_bytes());
            (waiter.join().unwrap(), begin.elapsed())
        });
        assert_eq!(answer.unwrap().status, WaitStatus::Completed);
        // Unwoken, it sleeps until the submission's own limit of 30 s.
        assert!(took < Duration::from_secs(15), "woken after {took:?}");
    }
}

#[test]
fn gigabytes_are_moved_in_slices() {
    for order in [Order::Running, Order::Stepped] {
        let spec = MockSpec {
            name: format!("held-bytes-{order:?}"),
            order,
            clock: Clock::Virtual,
            ..MockSpec::default()
        };
        let io = gaudi_mock::open(&spec).unwrap();
        let to = device_memory(&*io);
        let fill = LinDma::memset(to, 0x5a, 64 << 20).to_bytes();
        let seq = submit(&*io, &fill.repeat(12));
        let polled = io.wait_cs(seq, Duration::ZERO).unwrap();
        assert_eq!(
            polled.status,
            WaitStatus::Busy,
            "{order:?}: two slices are no 768 MiB"
        );
        let waited = io.wait_cs(seq, Duration::from_secs(10)).unwrap();
        assert_eq!(
            waited.status,
            WaitStatus::Completed,
            "{order:?}: a wait does the rest"
        );
    }
}

/// A destroyed buffer lives as long as the user has it mapped, and munmap takes no lock of the
/// mock's.
#[test]
fn destroyed_buffer_may_be_unmapped_at_any_time() {
    let io = open("unmapped");
    let buffer = io.ts_alloc(1).expect("a buffer of one");
    for _ in 0..500 {
        let request = CbCreate {
            size: 4096,
            map_to_device: false,
        };
        let handle = io.cb_create(request).expect("a command buffer");
        let mapping = io.mmap(MmapRequest {
            offset: handle.0,
            len: 4096,
        });
        let mapping = mapping.expect("its mapping");
        io.cb_destroy(handle).expect("its handle");
        let registration = TimestampRegistration {
            interrupt: InterruptId::ANY_CQ,
            counter: CqCounter { handle, offset: 0 },
            target: 0,
            buffer,
            index: 0,
        };
        let munmap = thread::spawn(move || drop(mapping));
        while io.cb_info(handle, false).is_ok() && io.register_timestamp(&registration).is_ok() {}
        munmap.join().expect("no panic");
        let error = io.cb_info(handle, false).expect_err("nothing holds it");
        assert_eq!(error.errno(), Some(Errno::EINVAL));
    }
}
