//! A completion as a future, without a runtime.

use std::future::{Future, IntoFuture as _};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use gaudi::{Buffer, Device, ErrorKind, HostMapping};

const LEN: u64 = 1 << 20;

/// Unparks a thread and counts its calls.
struct Unpark(Thread, AtomicU32);

impl Unpark {
    fn here() -> Arc<Self> {
        Arc::new(Self(thread::current(), AtomicU32::new(0)))
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Unpark::here());
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(Duration::from_secs(60)),
        }
    }
}

fn open(spec: &str) -> (Device, Buffer, HostMapping) {
    let device = Device::open(&spec.parse().expect("a spec")).expect("the mock opens");
    let buffer = device.alloc(LEN).expect("memory");
    let host = device.alloc_host(LEN as usize).expect("host memory");
    (device, buffer, host)
}

#[test]
fn awaited_copies_have_moved_their_bytes() {
    let (device, buffer, host) = open("mock:gaudi2?name=future-copies");
    let got = block_on(async {
        host.fill(0, LEN as usize, 7)?;
        device.copy(&buffer, &host)?.await?;
        host.fill(0, LEN as usize, 0)?;
        device.copy(&host, &buffer)?.await?;
        let mut got = vec![0; LEN as usize];
        host.read(0, &mut got).map(|()| got)
    });
    assert!(got.expect("both copies succeed") == vec![7; LEN as usize]);
}

#[test]
fn aborted_copy_fails_the_future() {
    let (device, buffer, host) = open("mock:gaudi2?name=future-lost&clock=virtual+fault=submit:when=1:lose");
    let copy = device.copy(&buffer, &host).expect("submitted");
    let error = block_on(copy.into_future()).expect_err("its completion is lost");
    assert_eq!(error.kind(), ErrorKind::Hung, "{error}");
}

#[test]
fn moved_future_wakes_its_last_waker() {
    let (device, buffer, host) = open("mock:gaudi2?name=future-moved&clock=virtual+fault=submit:when=1:lose");
    let copy = device.copy(&buffer, &host).expect("submitted");
    let mut future = pin!(copy.into_future());
    let (first, second) = (Unpark::here(), Unpark::here());
    for unpark in [&first, &second] {
        let waker = Waker::from(Arc::clone(unpark));
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "its completion is lost");
    }
    while second.1.load(Ordering::SeqCst) == 0 {
        thread::park_timeout(Duration::from_secs(60));
    }
    assert_eq!(first.1.load(Ordering::SeqCst), 0, "only the last waker is woken");
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(_))), "{polled:?}");
}
