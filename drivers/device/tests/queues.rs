//! Producers: order, sync objects, timeouts, descriptors.

mod seam;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use gaudi_device::{Buffer, Completion, Deadline, Device, ErrorKind, Options, Queue, QueueId, Sob};
use gaudi_seam::{CloseError, Errno, Error, WaitAnswer, WaitStatus};
use gaudi_spec::gaudi2::queue::{CPU, PDMA_0_0, PDMA_0_1, PDMA_1_0, edma};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use seam::Seam;

fn open(name: &str) -> Device {
    Device::open(&format!("mock:gaudi2?name={name}").parse().expect("a spec")).expect("the mock opens")
}

/// A submission that waits until `sob` is at least 1.
fn held(queue: &mut Queue, sob: &Sob) -> Completion {
    queue
        .set(sob, 0)
        .and_then(|queue| queue.wait(sob, 1))
        .and_then(|queue| queue.submit())
        .expect("submitted")
}

fn release(device: &Device, sob: &Sob) {
    let _ = device
        .queue(PDMA_1_0)
        .and_then(|mut queue| queue.signal(sob, 1).and_then(|queue| queue.submit()))
        .expect("submitted");
}

fn readable(fd: &impl std::os::fd::AsFd, timeout: u16) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(timeout)).expect("poll works") > 0
}

#[test]
fn handles_cross_threads() {
    fn send<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    send::<Queue>();
    shared::<Device>();
    shared::<Buffer>();
    shared::<gaudi_device::HostMapping>();
    shared::<Completion>();
}

#[test]
fn sync_objects_order_three_engines() {
    let device = open("pipeline");
    let (a, b) = (device.alloc(4096).expect("a"), device.alloc(4096).expect("b"));
    let (up, down) = (
        device.alloc_host(4096).expect("up"),
        device.alloc_host(4096).expect("down"),
    );
    let (here, there) = (device.sob().expect("one"), device.sob().expect("another"));
    assert_ne!(here.index(), there.index(), "two sync objects");
    let mut first = device.queue(PDMA_0_1).expect("a queue");
    let mut middle = device.queue(edma(0, 1).expect("an engine")).expect("a queue");
    let mut last = device.queue(PDMA_1_0).expect("a queue");
    first
        .set(&here, 0)
        .and_then(|queue| queue.set(&there, 0))
        .and_then(|queue| queue.submit())
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("done");
    for round in 1..=20_u16 {
        up.fill(0, 4096, round as u8).expect("filled");
        down.fill(0, 4096, 0).expect("cleared");
        // Submitted backwards, so that only the waits can put them right.
        let end = last
            .wait(&there, round)
            .and_then(|queue| queue.copy(&down, &b))
            .and_then(|queue| queue.submit())
            .expect("submitted");
        let _ = middle
            .wait(&here, round)
            .and_then(|queue| queue.copy(&b, &a))
            .and_then(|queue| queue.signal(&there, 1))
            .and_then(|queue| queue.submit())
            .expect("submitted");
        assert_eq!(
            end.poll(),
            Ok(false),
            "round {round}: the last waits for the first"
        );
        let _ = first
            .copy(&a, &up)
            .and_then(|queue| queue.signal(&here, 1))
            .and_then(|queue| queue.submit())
            .expect("submitted");
        end.wait(Duration::from_secs(20)).expect("done");
        let mut seen = [0; 4096];
        down.read(0, &mut seen).expect("read");
        assert_eq!(seen, [round as u8; 4096], "round {round} came through all three");
    }
}

#[test]
fn zero_timeout_is_would_block() {
    let mut options = Options::default();
    options.command_buffers = 3;
    let io = gaudi_hal::open(&"mock:gaudi2?name=timeout".parse().expect("a spec")).expect("open");
    let device = Device::with_options(io, options).expect("a device");
    let sob = device.sob().expect("a sync object");
    let buffer = device.alloc(64).expect("a buffer");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let first = held(&mut queue, &sob);
    queue.set_timeout(Duration::ZERO);
    for _ in 0..2 {
        let _ = queue
            .memset(&buffer, 1)
            .and_then(|queue| queue.submit())
            .expect("two more fit the ring");
    }
    let error = queue.memset(&buffer, 2).expect_err("the ring is full");
    assert_eq!(
        (error.kind(), error.evidence()),
        (ErrorKind::WouldBlock, None),
        "and the answer carries no box"
    );
    assert_eq!(first.poll(), Ok(false), "nothing was waited for");
    release(&device, &sob);
    first.wait(Duration::from_secs(20)).expect("released");
    queue
        .memset(&buffer, 2)
        .and_then(|queue| queue.submit())
        .expect("there is room again")
        .wait(Duration::from_secs(20))
        .expect("done");
}

#[test]
fn full_driver_is_awaited_without_spinning() {
    let mut options = Options::default();
    options.timeout = Duration::from_millis(100);
    let spec: gaudi_device::DeviceSpec = "mock:gaudi2?name=full".parse().expect("a spec");
    let device = Device::with_options(gaudi_hal::open(&spec).expect("open"), options).expect("a device");
    let sob = device.sob().expect("a sync object");
    let buffer = device.alloc(64).expect("a buffer");
    let mut holder = device.queue(PDMA_0_1).expect("a queue");
    let first = held(&mut holder, &sob);
    for _ in 0..62 {
        let _ = holder
            .memset(&buffer, 1)
            .and_then(|queue| queue.submit())
            .expect("the driver holds 64");
    }
    // The 64th in flight; it will be the one to release the others when its own wait ends.
    let mut other = device.queue(PDMA_0_0).expect("a queue");
    let gate = device.sob().expect("a sync object");
    let _ = other
        .set(&gate, 0)
        .and_then(|queue| queue.submit())
        .expect("the 64th");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut third = device.queue(edma(0, 1).expect("an engine")).expect("a queue");
            // The 64th finished at once, but the driver looks at the submission 64 before, and that
            // one is held.
            third.set_timeout(Duration::from_millis(80));
            let begin = Instant::now();
            let error = third
                .memset(&buffer, 7)
                .and_then(|queue| queue.submit())
                .expect_err("no room");
            assert!(
                matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock),
                "the timeout passed: {error}"
            );
            assert!(
                begin.elapsed() >= Duration::from_millis(80),
                "it was patient for {:?}",
                begin.elapsed()
            );
            let waits = device.stats().full_waits;
            assert!(waits < 80, "it slept between {waits} tries");
            assert!(third.pending() > 0, "the command is still there");
            done.store(true, Ordering::Relaxed);
        });
    });
    assert!(done.load(Ordering::Relaxed), "the third producer got its answer");
    // No thread signals them: a close abandons the work after the timeout.
    drop((first, holder, other, sob, gate, buffer, device));
    Device::open(&spec).expect("the node was closed all the same");
}

#[test]
fn queues_without_users_are_refused() {
    let device = open("refused");
    for (id, kind) in [
        (QueueId(2), ErrorKind::Unsupported),
        (CPU, ErrorKind::Unsupported),
        (QueueId(9999), ErrorKind::InvalidInput),
    ] {
        assert_eq!(
            device.queue(id).map(drop).map_err(|error| error.kind()),
            Err(kind),
            "queue {id}"
        );
    }
    let host = device.alloc_host(64).expect("a mapping");
    let buffer = device.alloc(64).expect("a buffer");
    let mut internal = device.queue(edma(1, 0).expect("an engine")).expect("a queue");
    assert_eq!(
        internal
            .copy(&buffer, &host)
            .map(drop)
            .map_err(|error| error.kind()),
        Err(ErrorKind::Unsupported),
        "an internal engine does not reach the host"
    );
    let sob = device.sob().expect("a sync object");
    assert_eq!(
        internal
            .wait(&sob, 0x8000)
            .map(drop)
            .map_err(|error| error.kind()),
        Err(ErrorKind::InvalidInput),
        "15 bits"
    );
    assert_eq!(internal.pending(), 0, "nothing of it stays");
    assert_eq!(
        internal.submit().expect("nothing to do").sequence(),
        None,
        "no commands, no submission"
    );
    let mut full = Ok(());
    for _ in 0..1000 {
        if let Err(error) = internal.copy(buffer.at(..8).expect("in"), buffer.at(8..16).expect("in")) {
            full = Err(error);
            break;
        }
    }
    let error = full.expect_err("a command buffer ends");
    assert!(
        error.to_string().contains("no room"),
        "the error names it: {error}"
    );
    internal
        .submit()
        .expect("what fitted is submitted")
        .wait(Deadline::NEVER)
        .expect("done");
}

#[test]
fn event_fd_is_readable_after_work() {
    let device = open("eventfd");
    let sobs: Vec<_> = (0..3).map(|_| device.sob().expect("a sync object")).collect();
    let queues = [PDMA_0_1, edma(0, 1).expect("edma"), edma(1, 1).expect("edma")];
    let mut queues = queues.map(|id| device.queue(id).expect("a queue"));
    let held: Vec<_> = queues
        .iter_mut()
        .zip(&sobs)
        .map(|(queue, sob)| held(queue, sob))
        .collect();
    let fds: Vec<_> = held
        .iter()
        .map(|completion| completion.event_fd().expect("a descriptor"))
        .collect();
    assert!(fds.iter().all(|fd| !readable(fd, 20)), "nothing is done yet");
    for n in [1, 0, 2] {
        release(&device, &sobs[n]);
        assert!(readable(&fds[n], 10_000), "descriptor {n} is readable");
        assert_eq!(held[n].poll(), Ok(true), "and its work is done");
    }
    let late = held[0].event_fd().expect("a descriptor");
    assert!(readable(&late, 0), "finished work is signalled at once");
    drop((held, queues, sobs));
    // The waiter thread drops its last completion after it has signalled the descriptor.
    let begin = Instant::now();
    let mut open = Some(device);
    while let Some(device) = open.take() {
        if let Err(CloseError { object, error }) = device.close() {
            assert!(
                begin.elapsed() < Duration::from_secs(10),
                "the waiter holds nothing: {error}"
            );
            open = Some(object);
        }
    }
}

#[test]
fn aborted_submissions_memory_is_not_reused() {
    let spec: gaudi_device::DeviceSpec = "mock:gaudi2?name=givenup".parse().expect("a spec");
    let control = gaudi_hal::control(&spec).expect("a control node");
    let mut options = Options::default();
    options.timeout = Duration::from_millis(20);
    let io = gaudi_hal::open(&spec).expect("the mock opens");
    let device = Device::with_options(io, options).expect("opened");
    let sob = device.sob().expect("one");
    let index = sob.index();
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let completion = held(&mut queue, &sob);
    drop((completion, queue, sob));
    let ledger = gaudi_hal::mock_ledger(&spec).expect("the mock is there");
    assert_eq!(
        ledger.command_buffers, 1,
        "the engine may still fetch from the ring"
    );
    let other = device.sob().expect("another");
    assert_ne!(
        other.index(),
        index,
        "the packet that waits may still speak of it"
    );
    drop(other);
    device.close().expect("an aborted submission holds no device");
    drop(control);
}

#[test]
fn close_fails_while_dropped_queues_copy_runs() {
    let mut options = Options::default();
    options.timeout = Duration::from_millis(20);
    let spec = "mock:gaudi2?name=leftalone".parse().expect("a spec");
    let io = gaudi_hal::open(&spec).expect("the mock opens");
    let device = Device::with_options(io, options).expect("opened");
    let (buffer, host) = (
        device.alloc(4096).expect("a buffer"),
        device.alloc_host(4096).expect("a mapping"),
    );
    let other = device.alloc(4096).expect("it holds the page");
    let (sob, address) = (device.sob().expect("one"), buffer.address());
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let completion = queue
        .set(&sob, 0)
        .and_then(|queue| queue.wait(&sob, 1))
        .and_then(|queue| queue.copy(&buffer, &host))
        .and_then(|queue| queue.submit())
        .expect("submitted");
    drop((completion, queue));
    let (buffer, error) = buffer
        .close()
        .expect_err("an engine may still write there")
        .into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    drop(buffer);
    let (host, error) = host
        .close()
        .expect_err("an engine may still read there")
        .into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    drop(host);
    let ledger = gaudi_hal::mock_ledger(&spec).expect("the mock is there");
    // Pages of device memory, of host memory, and the ring of the dropped producer.
    assert!(ledger.mappings >= 2, "host memory stays mapped: {ledger:?}");
    let next = device.alloc(4096).expect("a buffer");
    assert_ne!(
        next.address(),
        address,
        "the late copy writes to no reused memory"
    );
    drop(other);
}

/// `submit` returns within its timeout, however often a call is interrupted.
#[test]
fn interrupted_submit_keeps_its_deadline() {
    let device = open("eintr+fault=submit:error=EINTR");
    let buffer = device.alloc(64).expect("a buffer");
    let (answers, answer) = channel();
    // A thread of its own, which a submit without an end would not join.
    thread::spawn(move || {
        let mut queue = device.queue(PDMA_0_1).expect("a queue");
        for timeout in [Duration::from_millis(50), Duration::ZERO] {
            queue.set_timeout(timeout);
            let submitted = queue.memset(&buffer, 1).and_then(|queue| queue.submit());
            let _ = answers.send(submitted.map(drop).map_err(|error| error.kind()));
        }
    });
    for wanted in [ErrorKind::TimedOut, ErrorKind::WouldBlock] {
        let kind = answer.recv_timeout(Duration::from_secs(30)).expect("it returns");
        assert_eq!(kind, Err(wanted));
    }
}

#[test]
fn interrupted_submit_is_repeated() {
    let device = open("eintr-once+fault=submit:when=1..3:error=EINTR");
    let buffer = device.alloc(64).expect("a buffer");
    let filled = device.fill(&buffer, 1).expect("the fourth call is performed");
    filled.wait(Duration::from_secs(30)).expect("filled");
}

/// A wait of at most 10 s is one call of the driver. A signal that interrupts the last call is not
/// the end of the time.
#[test]
fn interrupted_wait_is_repeated() {
    let device = open("eintr-wait+fault=wait_cs:when=1:error=EINTR");
    let buffer = device.alloc(64).expect("a buffer");
    let filled = device.fill(&buffer, 1).expect("submitted");
    filled
        .wait(Duration::from_secs(9))
        .expect("the deadline is 9 s away");
}

#[test]
fn timed_out_submit_names_blocking_submission() {
    let io = gaudi_hal::open(&"mock:gaudi2?name=blocking".parse().expect("a spec")).expect("open");
    let mut options = Options::default();
    // The waiting queue is dropped in the end, and waits as long.
    options.timeout = Duration::from_millis(50);
    let device = Device::with_options(io, options).expect("a device");
    let sob = device.sob().expect("a sync object");
    let buffer = device.alloc(64).expect("a buffer");
    let mut first = device.queue(PDMA_0_1).expect("a queue");
    let waiting = held(&mut first, &sob);
    let mut other = device.queue(edma(0, 1).expect("an engine")).expect("a queue");
    for _ in 0..63 {
        let _ = other
            .memset(&buffer, 1)
            .and_then(|queue| queue.submit())
            .expect("63 more are accepted");
    }
    // The submissions of a dropped queue count too.
    drop(other);
    let mut signaller = device.queue(PDMA_1_0).expect("a queue");
    signaller.set_timeout(Duration::from_millis(50));
    let error = signaller
        .signal(&sob, 1)
        .and_then(|queue| queue.submit())
        .expect_err("the place of the waiting submission is needed");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let seq = waiting.sequence().expect("a submission");
    assert!(
        error.to_string().contains(&format!("submission {seq} must end")),
        "{error}"
    );
    signaller.set_timeout(Duration::ZERO);
    let error = signaller.submit().expect_err("still no place");
    assert_eq!((error.kind(), error.evidence()), (ErrorKind::WouldBlock, None));
}

/// The descriptor is signalled after the waiter has released the work's queue, so that a caller
/// that wakes can close everything.
#[test]
fn event_fd_is_signalled_after_release() {
    let spec: gaudi_device::DeviceSpec = "mock:gaudi2?name=signalled+fault=cb_destroy:when=1:delay=500ms"
        .parse()
        .expect("a spec");
    let control = gaudi_hal::control(&spec).expect("a control node");
    let device = Device::open(&spec).expect("the mock opens");
    let sob = device.sob().expect("a sync object");
    let mut signaller = device.queue(PDMA_1_0).expect("a queue");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let completion = held(&mut queue, &sob);
    let event = completion.event_fd().expect("a descriptor");
    // The waiter holds the last handle of the queue's ring.
    drop((completion, queue));
    let _ = signaller
        .signal(&sob, 1)
        .and_then(|queue| queue.submit())
        .expect("submitted");
    assert!(readable(&event, 30_000), "the work ends");
    assert_eq!(
        gaudi_hal::mock_ledger(&spec).expect("the mock").command_buffers,
        1,
        "the signaller's ring alone is left"
    );
    drop(control);
}

#[test]
fn event_fd_is_signalled_on_failure() {
    let device = open("failed&clock=virtual");
    let sob = device.sob().expect("a sync object");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let completion = held(&mut queue, &sob);
    let event = completion.event_fd().expect("a descriptor");
    assert!(readable(&event, 30_000), "the driver's timeout ends the work");
    let error = completion.poll().expect_err("no signal came");
    assert_eq!(error.kind(), ErrorKind::Hung, "{error}");
}

#[test]
fn dropped_sync_object_is_allocated_again() {
    let device = open("sobs");
    let first = device.sob().expect("a sync object");
    let index = first.index();
    drop(first);
    let second = device.sob().expect("a sync object");
    assert_eq!(second.index(), index, "the lowest free one is taken");
}

/// `wait` returns at its deadline, however often a call is interrupted.
#[test]
fn interrupted_wait_keeps_its_deadline() {
    let spec = "mock:gaudi2?name=eintr-always+fault=wait_cs:error=EINTR";
    let io = gaudi_hal::open(&spec.parse().expect("a spec")).expect("the mock opens");
    let mut options = Options::default();
    // The queue is dropped in the end, and waits as long.
    options.timeout = Duration::from_millis(50);
    let device = Device::with_options(io, options).expect("a device");
    let buffer = device.alloc(64).expect("a buffer");
    let (answers, answer) = channel();
    // A thread of its own, which a wait without an end would not join.
    thread::spawn(move || {
        let filled = device.fill(&buffer, 1).expect("submitted");
        let waited = filled.wait(Duration::from_millis(50));
        let _ = answers.send(waited.map_err(|error| error.kind()));
    });
    let kind = answer.recv_timeout(Duration::from_secs(30)).expect("it returns");
    assert_eq!(kind, Err(ErrorKind::TimedOut));
}

/// Each queue that waits takes a monitor, of which a die core has 2048.
#[test]
fn dropped_queues_monitor_is_allocated_again() {
    let device = open("monitors");
    let sob = device.sob().expect("a sync object");
    for nth in 0..=2048 {
        let mut queue = device.queue(PDMA_0_1).expect("a queue");
        let waited = queue.set(&sob, 1).and_then(|queue| queue.wait(&sob, 1).map(drop));
        waited.unwrap_or_else(|error| panic!("queue {nth}: {error}"));
        let submitted = queue.submit().expect("submitted");
        submitted.wait(Duration::from_secs(20)).expect("done");
    }
}

/// The waiter polls its completions without its lock. One that is added meanwhile is not lost.
#[test]
fn event_fd_made_during_poll_is_signalled() {
    let spec = "mock:gaudi2?name=added".parse().expect("a spec");
    let (device, seam) = Seam::open(&spec, Options::default());
    let (one, other) = (device.sob(), device.sob());
    let (one, other) = (one.expect("a sync object"), other.expect("a sync object"));
    let (mut first, mut second) = (device.queue(PDMA_0_1), device.queue(PDMA_0_0));
    let first = held(first.as_mut().expect("a queue"), &one);
    let second = held(second.as_mut().expect("a queue"), &other);
    let (polls, polled) = channel();
    let (go_on, may_go_on) = channel::<()>();
    seam.set(|hooks| {
        hooks.wait_cs = Some(Box::new(move |io, (seq, timeout)| {
            if timeout.is_zero() && thread::current().name() == Some("gaudi-waiter") {
                let _ = polls.send(());
                // Returns at once after the sender is dropped.
                let _ = may_go_on.recv();
            }
            io.wait_cs(seq, timeout)
        }));
    });
    let early = first.event_fd().expect("a descriptor");
    polled
        .recv_timeout(Duration::from_secs(30))
        .expect("the waiter polls");
    let late = second.event_fd().expect("a descriptor");
    drop(go_on);
    release(&device, &other);
    assert!(readable(&late, 30_000), "the second ends");
    assert!(!readable(&early, 0), "the first is still held");
    release(&device, &one);
    assert!(readable(&early, 30_000), "the first ends");
}

/// The driver aborts a context as a whole: after a failure every later submission of the queue
/// fails, and every call reports the first error.
#[test]
fn failure_covers_all_later_submissions() {
    const WAIT: &str = "HL_IOCTL_WAIT_CS";
    let spec = "mock:gaudi2?name=covers".parse().expect("a spec");
    let (device, seam) = Seam::open(&spec, Options::default());
    let sob = device.sob().expect("a sync object");
    let buffer = device.alloc(64).expect("a buffer");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let oldest = held(&mut queue, &sob);
    let mut more = || {
        let queue = queue.memset(&buffer, 1).expect("there is room");
        queue.submit().expect("submitted")
    };
    let (middle, newest) = (more(), more());
    let (entered, waits) = channel();
    let (go_on, may_go_on) = channel::<()>();
    seam.set(|hooks| {
        hooks.wait_cs = Some(Box::new(move |_, _| {
            let _ = entered.send(());
            let _ = may_go_on.recv();
            Err(Error::from_errno(WAIT, Errno::ETIMEDOUT).with_kind(ErrorKind::Hung))
        }));
    });
    let failed = oldest.sequence();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| newest.wait(Duration::from_secs(30)));
        waits.recv_timeout(Duration::from_secs(30)).expect("it waits");
        seam.set(|hooks| {
            hooks.wait_cs = Some(Box::new(move |_, (seq, _)| {
                if Some(seq.0) == failed {
                    return Err(Error::from_errno(WAIT, Errno::EIO).with_kind(ErrorKind::DeviceLost));
                }
                Ok(WaitAnswer {
                    status: WaitStatus::Completed,
                    gone: false,
                    timestamp_ns: None,
                })
            }));
        });
        let error = oldest.poll().expect_err("it was aborted");
        assert_eq!(error.errno(), Some(Errno::EIO), "{error}");
        drop(go_on);
        let error = waiting.join().expect("no panic").expect_err("it was aborted too");
        assert_eq!(error.errno(), Some(Errno::EIO), "the first error: {error}");
        let error = middle.poll().expect_err("it lies between both");
        assert_eq!(error.errno(), Some(Errno::EIO), "{error}");
    });
    seam.set(|hooks| hooks.wait_cs = None);
    release(&device, &sob);
}

/// A close releases the objects of ended submissions. Its first question to the driver fails for
/// another reason, and its second one reports that the submission failed.
#[test]
fn released_failure_is_reported_by_drain() {
    const WAIT: &str = "HL_IOCTL_WAIT_CS";
    let spec = "mock:gaudi2?name=reaped".parse().expect("a spec");
    let (device, seam) = Seam::open(&spec, Options::default());
    let buffer = device.alloc(64).expect("a buffer");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let completion = queue
        .memset(&buffer, 1)
        .and_then(|queue| queue.submit())
        .expect("submitted");
    let mut answers = [Errno::EINVAL, Errno::ETIMEDOUT].into_iter();
    seam.set(|hooks| {
        hooks.wait_cs = Some(Box::new(move |_, _| {
            let errno = answers.next().unwrap_or(Errno::ETIMEDOUT);
            Err(Error::from_errno(WAIT, errno))
        }));
    });
    buffer.close().expect("its submission has ended");
    seam.set(|hooks| hooks.wait_cs = None);
    let error = device.drain(Deadline::NEVER).expect_err("the submission failed");
    assert_eq!(error.errno(), Some(Errno::ETIMEDOUT), "{error}");
    let error = completion.poll().expect_err("it failed");
    assert_eq!(error.kind(), ErrorKind::Hung, "{error}");
}

/// The waiter may hold the last handle of a queue, whose drop waits for what is in flight.
#[test]
fn dropped_queue_delays_no_event_fd() {
    let device = open("late-drop");
    let sobs = [(); 3].map(|()| device.sob().expect("a sync object"));
    let mut first = device.queue(PDMA_0_0).expect("a queue");
    let completion = held(&mut first, &sobs[0]);
    let event = completion.event_fd().expect("a descriptor");
    let blocked = held(&mut first, &sobs[1]);
    drop((first, completion, blocked));
    let mut second = device.queue(PDMA_0_1).expect("a queue");
    let other = held(&mut second, &sobs[2]).event_fd().expect("a descriptor");
    release(&device, &sobs[0]);
    assert!(readable(&event, 5_000), "its submission has ended");
    release(&device, &sobs[2]);
    assert!(readable(&other, 5_000), "it is another queue's");
    release(&device, &sobs[1]);
    drop((second, sobs));
    let until = Instant::now() + Duration::from_secs(30);
    let mut closed = device.close();
    while let Err(CloseError {
        object: device,
        error,
    }) = closed
    {
        assert!(Instant::now() < until, "the first queue is dropped: {error}");
        closed = device.close();
    }
}

/// Objects of ended submissions are released a few at a time, here of three submissions at once.
#[test]
fn every_object_of_ended_submissions_is_released() {
    const SOBS: usize = 20;
    let device = open("many-sobs");
    let mut queue = device.queue(PDMA_0_0).expect("a queue");
    let sob = || device.sob().expect("a sync object");
    let lowest = || {
        let sobs: Vec<_> = (0..SOBS).map(|_| sob()).collect();
        sobs.iter().map(Sob::index).collect::<Vec<_>>()
    };
    let first = lowest();
    let submitted = [SOBS - 1, 0, 1].map(|held| {
        for _ in 0..held {
            queue.set(&sob(), 0).expect("room");
        }
        queue.fence().expect("room");
        queue.submit().expect("submitted")
    });
    submitted[2].wait(Deadline::NEVER).expect("ends");
    assert_eq!(lowest(), first, "the lowest free ones are taken");
}

/// A queue has 4096 entries. Each is free again once its submission has ended.
#[test]
fn queue_reuses_its_entries() {
    let device = open("entries");
    let mut queue = device.queue(PDMA_0_0).expect("a queue");
    queue.set_timeout(Duration::from_secs(1));
    let sob = device.sob().expect("a sync object");
    for number in 0..4200 {
        let submitted = queue.set(&sob, 0).and_then(|queue| queue.submit());
        let submitted = submitted.unwrap_or_else(|error| panic!("submission {number}: {error}"));
        submitted.wait(Deadline::NEVER).expect("ends");
    }
}
