//! What the peer asked for and this end takes back, ends or does not do.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gaudi_device::Device;
use gaudi_remote::{Endpoint, EndpointOptions, ErrorKind, Nic, Policy, Rights, Stream};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::Context;

use crate::nodes::{MAX_WAIT, Setup, noise, pair_on};

const LEN: u64 = 64 << 10;

fn staged() -> Setup {
    Setup::staged().chunks(64 << 10, 4)
}

/// Waits until the peer's NIC has written the one chunk, and a little longer: its engine is at work
/// then.
fn begun(node: &crate::nodes::Node) {
    let started = Instant::now();
    while node.nic.stats().nic_put_bytes < LEN && started.elapsed() < MAX_WAIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(300));
}

/// As [`begun`], until the engine of the other end has the copy, which is its second submission.
fn submitted(from: &crate::nodes::Node, to: &crate::nodes::Node) {
    begun(from);
    let started = Instant::now();
    while to.device.stats().submissions < 2 {
        assert!(started.elapsed() < MAX_WAIT, "the copy is submitted");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The next submission resets the device: else its close would wait for the lost one until the
/// driver gives it up.
fn end_the_hang(device: &Device, buffer: &gaudi_device::Buffer) {
    let done = device.fill(buffer, 1).and_then(|done| done.wait(MAX_WAIT));
    assert_eq!(done.expect_err("it resets").kind(), ErrorKind::DeviceLost);
}

/// Memory is the program's again when it is forgotten: nothing that was asked for before may land
/// in it.
#[test]
fn nothing_lands_in_memory_that_was_forgotten() {
    let b = "mock:gaudi2?name=lands-b+fault=submit:when=2:delay=2s";
    let (mut a, mut b) = pair_on("mock:gaudi2?name=lands-a", b, &Setup::direct(), &staged());
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    begun(&a);
    b.endpoint.forget(&to).expect("forgotten");
    let stored = b.nic.stats().engine_bytes;
    b.device
        .write(&to, 0, &noise(9, LEN as usize))
        .expect("its own bytes");
    // The store was on its way and is over, or it is refused.
    if a.endpoint.wait(put, MAX_WAIT).is_ok() {
        assert_eq!(
            stored, LEN,
            "the engine was through before the memory was forgotten"
        );
    }
    assert!(
        b.bytes(&to) == noise(9, LEN as usize),
        "what came after the forget stays"
    );
}

#[test]
fn memory_of_hung_engine_cannot_be_forgotten() {
    let b = "mock:gaudi2?name=hung-b+fault=submit:when=2:lose;submit:when=3:reset";
    let mut serving = staged();
    serving.options.copy_timeout = Duration::from_secs(1);
    let (mut a, mut b) = pair_on("mock:gaudi2?name=hung-a", b, &Setup::direct(), &serving);
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    submitted(&a, &b);
    // Twice: it stays withdrawn, and in use.
    for _ in 0..2 {
        let error = b.endpoint.forget(&to).expect_err("the engine has it");
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        assert!(error.to_string().contains("engine"), "{error}");
    }
    a.endpoint.wait(put, MAX_WAIT).expect_err("not copied");
    end_the_hang(&b.device, &to);
}

/// A hung engine is when a reset is wanted: nothing that stands in its way may wait for the engine.
#[test]
fn device_with_hung_engine_is_abandoned() {
    for (name, given_up) in [("lost", true), ("dropped", false)] {
        let b = format!("mock:gaudi2?name=hangs-{name}-b+fault=submit:when=2:lose;submit:when=3:reset");
        let a = format!("mock:gaudi2?name=hangs-{name}-a");
        let (mut a, mut b) = pair_on(&a, &b, &Setup::direct(), &staged());
        let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        let put = a.endpoint.put(&from, &remote).expect("begun");
        submitted(&a, &b);
        let started = Instant::now();
        if given_up {
            b.endpoint.device_lost().expect("abandoned");
            assert_eq!(b.live(), 1, "only the asking end's messages are still registered");
        }
        let crate::nodes::Node {
            endpoint,
            provider,
            stream,
            device,
            ..
        } = b;
        drop((endpoint, stream));
        assert_eq!(provider.live.load(Ordering::Relaxed), 0);
        // The driver's own timeout is 30 s.
        assert!(
            started.elapsed() < Duration::from_secs(15),
            "{name}: it waited for the engine"
        );
        let error = a.endpoint.wait(put, MAX_WAIT).expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
        end_the_hang(&device, &to);
    }
}

/// A socket whose descriptor cannot be duplicated for a while, as where the process has none left.
struct Moody {
    stream: UnixStream,
    refuses: Arc<AtomicBool>,
}

impl AsFd for Moody {
    #[expect(unsafe_code, reason = "a descriptor that is none")]
    fn as_fd(&self) -> BorrowedFd<'_> {
        if self.refuses.load(Ordering::Relaxed) {
            // SAFETY: no process has so many descriptors: this one is closed, and the call only
            // fails.
            unsafe { BorrowedFd::borrow_raw(i32::MAX - 1) }
        } else {
            self.stream.as_fd()
        }
    }
}

impl Read for Moody {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }
}

impl Write for Moody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Stream for Moody {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_timeout(timeout)
    }
}

#[test]
fn failed_service_start_allows_another_offer() {
    let (nic_a, nic_b) = SoftNic::pair(SoftNicConfig::default()).expect("two NICs");
    let [nic_a, nic_b] =
        [nic_a, nic_b].map(|nic| Nic::new(&Context::open(nic).expect("open")).expect("a NIC"));
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let refuses = Arc::new(AtomicBool::new(false));
    let stream = Moody {
        stream: theirs,
        refuses: Arc::clone(&refuses),
    };
    let device = Device::open(&"mock:gaudi2?name=starts".parse().expect("a spec")).expect("open");
    let mut options = EndpointOptions::default();
    options.policy = Policy::Never;
    let (mut a, mut b) = std::thread::scope(|scope| {
        let b = scope.spawn(|| Endpoint::over(stream, &nic_b, Some(&device), options));
        let a = Endpoint::over(ours, &nic_a, None, EndpointOptions::default()).expect("node A");
        (a, b.join().expect("no panic").expect("node B"))
    });
    let buffer = device.alloc_exclusive(4096).expect("device memory");
    refuses.store(true, Ordering::Relaxed);
    let error = b.offer(&buffer, Rights::BOTH).expect_err("no descriptor");
    assert!(error.errno().is_some(), "{error}");
    refuses.store(false, Ordering::Relaxed);
    b.offer(&buffer, Rights::BOTH).expect("offered");
    let remote = a.receive_offer(MAX_WAIT).expect("received");
    a.put_bytes(&[7; 4096], &remote, MAX_WAIT).expect("served");
    let mut got = [0; 4096];
    device.read(&buffer, 0, &mut got).expect("read back");
    assert_eq!(got, [7; 4096]);
}
