//! A window over a socket: what arrives is what the descriptor is, and nothing leaks.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gaudi_dmabuf::{ErrorKind, MESSAGE_BYTES, receive, send};
use gaudi_sys::socket::{receive_with_fds, send_with_fds};
use proptest::prelude::*;

use crate::{buffer, is_exported, memory};

const SOON: Duration = Duration::from_secs(60);

/// The message that [`send`] would send.
fn message(window: &gaudi_dmabuf::Window) -> [u8; MESSAGE_BYTES] {
    let (a, b) = UnixStream::pair().unwrap();
    send(&a, window, SOON).unwrap();
    let mut bytes = [0; MESSAGE_BYTES];
    let (count, _) = receive_with_fds(&b, &mut bytes).unwrap();
    assert_eq!(count, MESSAGE_BYTES);
    bytes
}

#[test]
fn received_window_outlives_the_sender() {
    let memory = memory();
    let (a, b) = UnixStream::pair().unwrap();
    let window = buffer(&memory, 8192, 12288).window(5, 4000).unwrap();
    send(&a, &window, SOON).unwrap();
    let cpu = window.attach_cpu("sender").unwrap();
    cpu.write(7, b"seen").unwrap();
    let identity = window.dmabuf().identity();
    drop((cpu, window));
    let got = receive(&b, SOON).unwrap();
    assert_eq!((got.offset(), got.len()), (5, 4000));
    assert_eq!(got.dmabuf().identity(), identity);
    let mut text = [0; 4];
    got.attach_cpu("receiver").unwrap().read(7, &mut text).unwrap();
    assert_eq!(&text, b"seen");
    assert!(is_exported(&memory));
    drop(got);
    assert!(!is_exported(&memory), "the receiver held the last reference");
}

#[test]
fn windows_follow_one_another_on_one_socket() {
    let memory = memory();
    let (a, b) = UnixStream::pair().unwrap();
    let buffer = buffer(&memory, 0, 65536);
    for index in 1..=5 {
        send(&a, &buffer.window(index, index).unwrap(), SOON).unwrap();
    }
    for index in 1..=5 {
        let got = receive(&b, SOON).unwrap();
        assert_eq!((got.offset(), got.len()), (index, index));
    }
}

#[test]
fn a_message_in_parts_is_put_together() {
    let memory = memory();
    let window = buffer(&memory, 4096, 4096).whole().unwrap();
    let bytes = message(&window);
    let (mut a, b) = UnixStream::pair().unwrap();
    send_with_fds(&a, &bytes[..1], &[window.dmabuf().as_fd()]).unwrap();
    let writer = std::thread::spawn(move || {
        for part in bytes[1..].chunks(7) {
            a.write_all(part).unwrap();
        }
        a
    });
    assert_eq!(receive(&b, SOON).unwrap().len(), 4096);
    writer.join().unwrap();
}

#[test]
fn wrong_message_closes_its_descriptor() {
    let memory = memory();
    let right = message(&buffer(&memory, 4096, 8192).whole().unwrap());
    for (what, at, value) in [
        ("magic", 0, 0xff),
        ("version", 8, 2),
        ("length", 10, 63),
        ("exporter", 12, 1),
        ("inode", 16, right[16] ^ 1),
        ("start", 25, right[25] ^ 1),
        ("size", 33, 0x40),
        ("offset", 40, 1),
        ("length of the window", 49, 0x21),
        ("reserved", 63, 1),
    ] {
        let mut wrong = right;
        wrong[at] = value;
        let (a, b) = UnixStream::pair().unwrap();
        let passed = crate::export_fd(&memory, 4096, 8192);
        send_with_fds(&a, &wrong, &[passed.as_fd()]).unwrap();
        drop(passed);
        let error = receive(&b, SOON).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Protocol, "{what}: {error}");
        assert!(!is_exported(&memory), "{what}: the descriptor leaked");
    }
}

#[test]
fn no_descriptor_or_two_are_refused() {
    let memory = memory();
    let window = buffer(&memory, 4096, 4096).whole().unwrap();
    let bytes = message(&window);
    let fd = window.dmabuf().as_fd();
    for fds in [&[][..], &[fd, fd], &[fd; 4]] {
        let (a, b) = UnixStream::pair().unwrap();
        send_with_fds(&a, &bytes, fds).unwrap();
        let error = receive(&b, SOON).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{} descriptors", fds.len());
    }
}

#[test]
fn silent_peer_times_out_closed_one_disconnects() {
    let (a, b) = UnixStream::pair().unwrap();
    let start = Instant::now();
    let error = receive(&b, Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(start.elapsed() >= Duration::from_millis(20));
    drop(a);
    assert_eq!(receive(&b, SOON).unwrap_err().kind(), ErrorKind::Disconnected);
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    /// Arbitrary bytes, or a right message with some changed, with any number of descriptors: an
    /// answer comes, and nothing stays open.
    #[test]
    fn arbitrary_messages_never_panic_hang_or_leak(
        noise in prop::collection::vec(any::<u8>(), 1..200),
        changes in prop::option::of(prop::collection::vec((0..MESSAGE_BYTES, any::<u8>()), 0..4)),
        fds in 0usize..4,
    ) {
        let memory = memory();
        let window = buffer(&memory, 4096, 8192).whole().unwrap();
        let bytes = match changes {
            None => noise,
            Some(changes) => {
                let mut bytes = message(&window).to_vec();
                for (at, value) in changes {
                    bytes[at] = value;
                }
                bytes
            }
        };
        let (a, b) = UnixStream::pair().unwrap();
        let passed: Vec<BorrowedFd<'_>> = vec![window.dmabuf().as_fd(); fds];
        send_with_fds(&a, &bytes, &passed).unwrap();
        drop(passed);
        drop((a, window));
        if let Ok(got) = receive(&b, SOON) {
            prop_assert!(got.offset() + got.len() <= 8192);
        }
        drop(b);
        prop_assert!(!is_exported(&memory), "a descriptor stayed open");
    }
}

#[test]
fn send_to_full_socket_times_out() {
    let memory = memory();
    let window = buffer(&memory, 0, 4096).whole().unwrap();
    let (a, _b) = UnixStream::pair().unwrap();
    while gaudi_sys::socket::try_send_with_fds(&a, &[0; 4096], &[]).is_ok() {}
    let since = Instant::now();
    let error = loop {
        // What room is left takes some.
        if let Err(error) = send(&a, &window, Duration::from_millis(30)) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(
        since.elapsed() >= Duration::from_millis(30),
        "it was given its time"
    );
    drop(window);
}

#[test]
fn offer_holds_no_descriptor() {
    let memory = memory();
    let window = buffer(&memory, 4096, 8192).whole().unwrap();
    let offer = window.offer().unwrap();
    match offer.fetch() {
        Ok(fetched) => assert_eq!(fetched.len(), 8192),
        // A container may forbid pidfd_getfd(2).
        Err(error) => assert!(
            [ErrorKind::PermissionDenied, ErrorKind::Unsupported].contains(&error.kind()),
            "{error}"
        ),
    }
    drop(window);
    assert!(!is_exported(&memory), "the window's descriptor was the only one");
    // Another file may have the number by now.
    offer.fetch().expect_err("the descriptor is closed");
}

extern "C" fn ignore(_: i32) {}

/// Waits until a thread of this process sleeps in the kernel.
fn until_asleep(thread: i32) {
    let begin = Instant::now();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        // proc_pid_stat(5): the state follows the name, which stands in parentheses.
        if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')) {
            return;
        }
        assert!(begin.elapsed() < SOON, "{stat}");
        std::thread::yield_now();
    }
}

/// A signal handler without `SA_RESTART` interrupts each wait for a part of the message.
#[test]
#[expect(unsafe_code, reason = "sigaction(2) and tgkill(2)")]
fn interrupted_receive_returns_the_whole_window() {
    use nix::libc::{SIGUSR2, SYS_tgkill, c_int, sigaction, sighandler_t, syscall};
    // SAFETY: a sigaction of zeros has no flags and an empty mask.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(c_int) as sighandler_t;
    // SAFETY: the handler does nothing, and no other test of this program uses the signal.
    let installed = unsafe { sigaction(SIGUSR2, &raw const action, std::ptr::null_mut()) };
    assert_eq!(installed, 0);
    let memory = memory();
    let window = buffer(&memory, 4096, 8192).window(5, 4000).unwrap();
    let bytes = message(&window);
    let (a, b) = UnixStream::pair().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let receiving = std::thread::spawn(move || {
        sender.send(nix::unistd::gettid().as_raw()).unwrap();
        receive(&b, SOON)
    });
    let thread = receiver.recv().unwrap();
    let fd = window.dmabuf().as_fd();
    let parts = [
        (&bytes[..10], &[fd][..]),
        (&bytes[10..40], &[]),
        (&bytes[40..], &[]),
    ];
    for (part, fds) in parts {
        until_asleep(thread);
        // SAFETY: takes three numbers and touches no memory.
        unsafe { syscall(SYS_tgkill, std::process::id(), thread, SIGUSR2) };
        send_with_fds(&a, part, fds).unwrap();
    }
    let got = receiving
        .join()
        .unwrap()
        .expect("the wait goes on after a signal");
    assert_eq!((got.offset(), got.len()), (5, 4000));
}
