//! What the dma-buf tests share: buffers of known content, child processes, and one test at a time.

#![allow(dead_code, reason = "each program of tests takes what it needs")]
#![expect(
    unsafe_code,
    reason = "fork(2) makes the other process that a test needs, kill(2) ends it"
)]

use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gaudi_dmabuf::{DmaBuf, Error, ErrorKind, Heap, Udmabuf, Window};
use gaudi_sys::{Memfd, PAGE, RawMapping};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Longer than anything here takes on a slow machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

static ALONE: Mutex<()> = Mutex::new(());

/// A fork child holds whatever its parent's threads hold, and limits and counts are the process's:
/// tests that care run one at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sealed memory file whose every 32-bit word is its own offset.
pub(crate) fn counted(pages: u64) -> Memfd {
    let len = pages * PAGE;
    let memory = Memfd::sparse(c"lab", len).expect("a memory file");
    let mapping = RawMapping::of_fd(&memory, 0, len as usize).expect("it can be mapped");
    for offset in (0..len as usize).step_by(4) {
        mapping
            .write(offset, &(offset as u32).to_le_bytes())
            .expect("inside");
    }
    memory
}

pub(crate) fn udmabuf() -> Udmabuf {
    Udmabuf::open().expect("every lab kernel has udmabuf built in")
}

/// A udmabuf of so many counted pages.
pub(crate) fn buffer(pages: u64) -> DmaBuf {
    udmabuf()
        .export(&counted(pages), 0, pages * PAGE)
        .expect("a udmabuf")
}

pub(crate) fn heap() -> Heap {
    Heap::open("system").expect("every lab kernel has the system heap built in")
}

/// Bytes of a window, read between the begin and the end of an access.
pub(crate) fn read(window: &Window, offset: usize, len: usize) -> Vec<u8> {
    let cpu = window.attach_cpu("reader").expect("a CPU view");
    let access = cpu.reading().expect("access begins");
    let mut bytes = vec![0; len];
    access.read(offset, &mut bytes).expect("inside");
    access.end().expect("access ends");
    bytes
}

pub(crate) fn write(window: &Window, offset: usize, bytes: &[u8]) {
    let cpu = window.attach_cpu("writer").expect("a CPU view");
    let access = cpu.writing().expect("access begins");
    access.write(offset, bytes).expect("inside");
    access.end().expect("access ends");
}

pub(crate) fn word(window: &Window, offset: usize) -> u32 {
    let bytes = read(window, offset, 4);
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

/// That it was refused in this way, for this reason.
#[track_caller]
pub(crate) fn refused<T>(answer: Result<T, Error>, kind: ErrorKind, reason: &str) -> Error {
    let error = answer
        .err()
        .unwrap_or_else(|| panic!("{reason:?} must be a reason to refuse"));
    assert_eq!(error.kind(), kind, "the kind of: {error}");
    let message = format!("{error}; {}", error.help().unwrap_or_default());
    assert!(message.contains(reason), "it must say {reason:?}: {message}");
    error
}

/// Another process, and a socket to it; killed with its handle.
pub(crate) struct Other {
    pub(crate) socket: UnixStream,
    pub(crate) pid: Pid,
    ended: bool,
}

impl Other {
    /// Forks. The child runs `body` with its end of the socket and exits with 0 if that returns
    /// true.
    pub(crate) fn new(work: impl FnOnce(&UnixStream) -> bool) -> Self {
        let (socket, peer) = UnixStream::pair().expect("a pair of sockets");
        // SAFETY: the child works on what it receives and leaves by _exit; libc keeps its allocator
        // usable over a fork.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                drop(socket);
                let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&peer)));
                let code = match answer {
                    Ok(true) => 0,
                    Ok(false) => 1,
                    Err(_) => 2,
                };
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { nix::libc::_exit(code) }
            }
            ForkResult::Parent { child } => Self {
                socket,
                pid: child,
                ended: false,
            },
        }
    }

    /// Waits until it exits; its body must have returned true.
    #[track_caller]
    pub(crate) fn agrees(mut self) {
        self.ended = true;
        let status = waitpid(self.pid, None).expect("the child ends");
        assert_eq!(
            status,
            WaitStatus::Exited(self.pid, 0),
            "the other process must find it so (1: it did not, 2: it failed)"
        );
    }
}

impl Other {
    /// Waits until it exits; a signal must have killed it.
    #[track_caller]
    pub(crate) fn dies(mut self) {
        self.ended = true;
        let status = waitpid(self.pid, None).expect("the child ends");
        assert!(
            matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)),
            "the other process must be killed: {status:?}"
        );
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        if !self.ended {
            // SAFETY: the child is ours and was not waited for: its number is no other's.
            let _ = unsafe { nix::libc::kill(self.pid.as_raw(), nix::libc::SIGKILL) };
            let _ = waitpid(self.pid, None);
        }
    }
}

/// Waits for a byte of the peer; the end of the stream is none.
pub(crate) fn await_notice(socket: &UnixStream) -> bool {
    use std::io::Read as _;
    let mut socket = socket;
    socket.read_exact(&mut [0]).is_ok()
}

pub(crate) fn notify(socket: &UnixStream) {
    use std::io::Write as _;
    let mut socket = socket;
    socket.write_all(b"x").expect("the peer listens");
}

/// The row of a buffer in the kernel's own list.
pub(crate) fn listed(inode: u64) -> Option<String> {
    let list = std::fs::read_to_string("/sys/kernel/debug/dma_buf/bufinfo").expect("debugfs is mounted");
    list.lines()
        .find(|line| line.contains(&format!("\t{inode:08}\t")))
        .map(str::to_owned)
}

/// Whether a buffer leaves the kernel's list. Another test's fork may have taken a descriptor of it
/// along, for as long as that child lives.
pub(crate) fn is_gone(inode: u64) -> bool {
    let begin = std::time::Instant::now();
    while listed(inode).is_some() {
        if begin.elapsed() > LONG {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
