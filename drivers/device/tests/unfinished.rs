//! A queue that is dropped before its copies have ended: the engine may run them later, and they
//! must not write to reused memory.

mod seam;

use std::time::Duration;

use gaudi_device::{
    Buffer, Completion, Deadline, Device, DeviceSpec, ErrorKind, HostMapping, Location, Options, Queue, Sob,
};
use gaudi_hal::{SharedIo, mock_ledger};
use gaudi_spec::gaudi2::queue::{PDMA_0_1, PDMA_1_0};

const LEN: u64 = 4096;

/// A device whose queues wait 20 ms when dropped, and a control node that reads its ledger.
fn open(name: &str) -> (Device, DeviceSpec, SharedIo) {
    let spec: DeviceSpec = format!("mock:gaudi2?name={name}").parse().expect("a spec");
    let control = gaudi_hal::control(&spec).expect("a control node");
    let mut options = Options::default();
    options.timeout = Duration::from_millis(20);
    let io = gaudi_hal::open(&spec).expect("the mock opens");
    let device = Device::with_options(io, options).expect("a device");
    (device, spec, control)
}

/// Submits a copy that begins when `sob` is 1.
fn copy_later(
    queue: &mut Queue,
    sob: &Sob,
    dst: impl Into<Location>,
    src: impl Into<Location>,
) -> Completion {
    queue
        .set(sob, 0)
        .and_then(|queue| queue.wait(sob, 1))
        .and_then(|queue| queue.copy(dst, src))
        .and_then(|queue| queue.submit())
        .expect("submitted")
}

/// Sets `sob` to 1 and waits until the driver reports that submission `seq` has ended.
fn run(device: &Device, sob: &Sob, seq: u64) {
    device
        .queue(PDMA_1_0)
        .and_then(|mut queue| queue.signal(sob, 1)?.submit())
        .expect("submitted")
        .wait(Duration::from_secs(20))
        .expect("signalled");
    let answer = device
        .io()
        .wait_cs(gaudi_seam::CsSeq(seq), Duration::from_secs(20))
        .expect("the driver answers");
    assert_eq!(answer.status, gaudi_seam::WaitStatus::Completed);
}

#[test]
fn late_copy_spares_next_exclusive_buffer() {
    let (device, spec, _control) = open("late-exclusive");
    let host = device.alloc_host(LEN as usize).expect("a mapping");
    host.fill(0, LEN as usize, 0xee).expect("filled");
    let first = device.alloc_exclusive(LEN).expect("pages");
    let sob = device.sob().expect("a sync object");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let copy = copy_later(&mut queue, &sob, &first, &host);
    let seq = copy.sequence().expect("a submission");
    drop((copy, queue, first));

    let second = device.alloc_exclusive(LEN).expect("other pages");
    device
        .fill(&second, 0x11)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("filled");
    run(&device, &sob, seq);
    let mut seen = [0; LEN as usize];
    device.read(&second, 0, &mut seen).expect("read");
    assert_eq!(seen, [0x11; LEN as usize], "the late copy does not write here");

    // The submission has ended: the next allocation frees the pages.
    let third = device.alloc_exclusive(LEN).expect("pages");
    assert_eq!(mock_ledger(&spec).expect("the mock").allocations, 2);
    drop((second, third, host, sob));
    device.close().expect("no handle is left");
    assert!(mock_ledger(&spec).expect("the mock").is_clean());
}

#[test]
fn close_names_unfinished_submission() {
    let (device, spec, _control) = open("late-named");
    let host = device.alloc_host(LEN as usize).expect("a mapping");
    let sob = device.sob().expect("a sync object");
    let pages = device.alloc_exclusive(LEN).expect("pages");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let copy = copy_later(&mut queue, &sob, &pages, &host);
    let seq = copy.sequence().expect("a submission");
    drop((copy, queue));
    let (pages, error) = pages
        .close()
        .expect_err("an engine may still write to it")
        .into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    assert!(
        error.to_string().contains(&format!("submission {seq} ")),
        "{error}"
    );
    run(&device, &sob, seq);
    pages.close().expect("the submission has ended");
    assert_eq!(mock_ledger(&spec).expect("the mock").allocations, 0);
}

#[test]
fn late_copy_spares_next_piece() {
    let (device, spec, _control) = open("late-piece");
    let host = device.alloc_host(LEN as usize).expect("a mapping");
    host.fill(0, LEN as usize, 0xee).expect("filled");
    let first = device.alloc(LEN).expect("a buffer");
    let address = first.address();
    let sob = device.sob().expect("a sync object");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let copy = copy_later(&mut queue, &sob, &first, &host);
    let seq = copy.sequence().expect("a submission");
    drop((copy, queue));
    let (first, error) = first
        .close()
        .expect_err("an engine may still write to it")
        .into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    drop(first);
    let second = device.alloc(LEN).expect("a buffer");
    assert_ne!(second.address(), address, "the late copy writes there");
    run(&device, &sob, seq);
    drop((device.alloc_exclusive(LEN).expect("pages"), second));
    assert_eq!(
        mock_ledger(&spec).expect("the mock").allocations,
        0,
        "the submission has ended: its piece is freed"
    );
    drop((host, sob));
    device.close().expect("no handle is left");
}

#[test]
fn host_mapping_closes_once_late_copy_ended() {
    let (device, _spec, _control) = open("late-host");
    let host = device.alloc_host(LEN as usize).expect("a mapping");
    let buffer = device.alloc(LEN).expect("a buffer");
    let sob = device.sob().expect("a sync object");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let copy = copy_later(&mut queue, &sob, &host, &buffer);
    let seq = copy.sequence().expect("a submission");
    drop((copy, queue));
    let (host, error) = host
        .close()
        .expect_err("an engine may still write to it")
        .into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    run(&device, &sob, seq);
    host.close().expect("the submission has ended");
    buffer.close().expect("likewise");
    drop(sob);
    device.close().expect("no handle is left");
}

#[test]
fn device_closes_with_unfinished_copy() {
    let (device, spec, _control) = open("late-close");
    let host = device.alloc_host(LEN as usize).expect("a mapping");
    let (pages, piece) = (device.alloc_exclusive(LEN), device.alloc(LEN));
    let (pages, piece) = (pages.expect("pages"), piece.expect("a buffer"));
    let sob = device.sob().expect("a sync object");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let copy = copy_later(&mut queue, &sob, &pages, &host);
    let second = queue
        .copy(&piece, &host)
        .and_then(|queue| queue.submit())
        .expect("submitted");
    drop((copy, second, queue, pages, piece, host, sob));
    device.close().expect("closing the node ends the submission");
    assert!(mock_ledger(&spec).expect("the mock").is_clean());
}

/// With device events registered, the driver does not reset the card after a timeout until its user
/// closes it or a watchdog expires. It answers waits with `EBUSY`, and the engines still run
/// (`device.c:hl_device_cond_reset`).
#[test]
fn timeout_with_events_keeps_memory() {
    let (device, _spec, _control) = open("late-events&clock=virtual");
    let events = gaudi_seam::Event::new().expect("an eventfd");
    device
        .io()
        .register_events(std::os::fd::AsFd::as_fd(&events))
        .expect("registered");
    let (host, seen) = (device.alloc_host(LEN as usize), device.alloc_host(LEN as usize));
    let (host, seen) = (host.expect("a mapping"), seen.expect("a mapping"));
    host.fill(0, LEN as usize, 0xee).expect("filled");
    let first = device.alloc_exclusive(LEN).expect("pages");
    let sob = device.sob().expect("a sync object");
    let (mut queue, mut other) = (device.queue(PDMA_0_1), device.queue(PDMA_1_0));
    let (queue, other) = (queue.as_mut().expect("a queue"), other.as_mut().expect("a queue"));
    let copy = copy_later(queue, &sob, &first, &host);
    let error = copy.wait(Deadline::NEVER).expect_err("it times out");
    assert!(
        matches!(error.kind(), ErrorKind::Hung | ErrorKind::DeviceLost),
        "{error}"
    );
    assert_eq!(
        events.take(),
        Ok(1),
        "the timeout is an event, and no reset follows yet"
    );
    drop(first);
    let second = device.alloc_exclusive(LEN).expect("other pages");
    // The driver refuses waits, and the mock runs what it can before `submit` returns.
    let _ = other
        .memset(&second, 0x1111_1111)
        .and_then(|queue| queue.submit())
        .expect("submitted");
    let _ = other
        .signal(&sob, 1)
        .and_then(|queue| queue.submit())
        .expect("submitted");
    let _ = other
        .copy(&seen, &second)
        .and_then(|queue| queue.submit())
        .expect("submitted");
    let mut bytes = [0; LEN as usize];
    seen.read(0, &mut bytes).expect("read");
    assert_eq!(bytes, [0x11; LEN as usize], "the late copy does not write here");
}

/// A copy whose queue is dropped, on a device that refuses each wait for it: the device's seam,
/// pages, mapping, and the submission.
fn copy_with_refused_waits(
    name: &str,
    refusal: fn() -> gaudi_seam::Error,
) -> (Device, seam::Seam, Buffer, HostMapping, u64) {
    let spec = format!("mock:gaudi2?name={name}").parse().expect("a spec");
    let mut options = Options::default();
    options.timeout = Duration::from_millis(20);
    let (device, seam) = seam::Seam::open(&spec, options);
    let host = device.alloc_host(LEN as usize).expect("a mapping");
    let pages = device.alloc_exclusive(LEN).expect("pages");
    let sob = device.sob().expect("a sync object");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let copy = copy_later(&mut queue, &sob, &pages, &host);
    let seq = copy.sequence().expect("a submission");
    seam.set(|hooks| hooks.wait_cs = Some(Box::new(move |_, _| Err(refusal()))));
    drop((copy, queue));
    (device, seam, pages, host, seq)
}

/// `ENODEV`: the device is removed, and no engine runs any more.
#[test]
fn removed_device_frees_memory_of_dropped_queue() {
    let (_device, _, pages, host, _) = copy_with_refused_waits("late-removed", || {
        gaudi_seam::Error::from_errno("HL_IOCTL_WAIT_CS", gaudi_seam::Errno::ENODEV)
    });
    pages.close().expect("nothing writes to it any more");
    host.close().expect("nothing reads from it any more");
}

/// A query for the copy's end is repeated if a signal interrupts it.
#[test]
fn signals_keep_no_memory_of_dropped_queue() {
    let interrupted = || gaudi_seam::Error::from_errno("HL_IOCTL_WAIT_CS", gaudi_seam::Errno::EINTR);
    let (_device, seam, pages, host, _) = copy_with_refused_waits("late-signals", interrupted);
    let asked = std::sync::atomic::AtomicU32::new(0);
    seam.set(|hooks| {
        hooks.wait_cs = Some(Box::new(move |_, _| {
            match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 4 {
                3 => Err(gaudi_seam::Error::from_errno(
                    "HL_IOCTL_WAIT_CS",
                    gaudi_seam::Errno::ENODEV,
                )),
                _ => Err(interrupted()),
            }
        }));
    });
    pages.close().expect("nothing writes to it any more");
    host.close().expect("nothing reads from it any more");
}

/// After a reset the driver refuses waits on this node for as long as it is open.
#[test]
fn close_after_reset_reports_lost_device() {
    let (device, _, pages, host, seq) = copy_with_refused_waits("late-reset", || {
        let refused = gaudi_seam::Error::from_errno("HL_IOCTL_WAIT_CS", gaudi_seam::Errno::EBUSY);
        refused.with_kind(ErrorKind::DeviceLost)
    });
    let (pages, of_pages) = pages.close().expect_err("an engine may write to it").into_parts();
    let (host, of_host) = host.close().expect_err("an engine may read it").into_parts();
    for error in [of_pages, of_host] {
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        assert_eq!(
            error.errno(),
            Some(gaudi_seam::Errno::EBUSY),
            "the driver's errno"
        );
        assert!(
            error.to_string().contains(&format!("submission {seq} ")),
            "{error}"
        );
    }
    drop((pages, host));
    device
        .close()
        .expect("memory of a reset device does not keep it open");
}

/// The monitor of a dropped queue is still armed. A queue that programs it again would take the
/// signal away from the late copy.
#[test]
fn dropped_queues_monitor_stays_armed() {
    let (device, _spec, _control) = open("late-monitor");
    let buffer = device.alloc(LEN).expect("a buffer");
    let host = device.alloc_host(LEN as usize).expect("a mapping");
    let (sob, other) = (device.sob(), device.sob());
    let (sob, other) = (sob.expect("a sync object"), other.expect("a sync object"));
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let copy = copy_later(&mut queue, &sob, &buffer, &host);
    let seq = copy.sequence().expect("a submission");
    drop((copy, queue));
    let engine = gaudi_spec::gaudi2::queue::edma(0, 1).expect("an engine");
    let mut second = device.queue(engine).expect("a queue");
    let waiting = second
        .set(&other, 0)
        .and_then(|queue| queue.wait(&other, 1))
        .and_then(|queue| queue.submit())
        .expect("submitted");
    run(&device, &sob, seq);
    assert_eq!(waiting.poll(), Ok(false), "its own sync object is 0");
    run(&device, &other, waiting.sequence().expect("a submission"));
}
