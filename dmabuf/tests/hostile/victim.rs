//! The attacked process: this test program again, with the socket as its standard input.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gaudi_dmabuf::{Error, MESSAGE_BYTES, OFFER_BYTES, Offer, Result, Window, leaks, receive, send};
use gaudi_seam::{CloseError, DeviceSpec, Errno, SharedIo};
use gaudi_sys::dmabuf::udmabuf_open;
use gaudi_sys::limits::without_descriptors;
use gaudi_sys::poll::readable;
use gaudi_uapi::memory::MemFlags;
use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

use crate::device_memory::DeviceMemory;

/// The role of this program where it is the attacked process.
const ROLE: &str = "GAUDI_TEST_ATTACKED";
/// The time in which an attack must end.
const DEADLINE: Duration = Duration::from_secs(30);
/// The timeout that the attacked process passes to its calls, in every role but [`Role::Brief`].
const TIMEOUT: Duration = Duration::from_secs(20);
/// The timeout of a receiver whose peer never completes a message.
pub(crate) const BRIEF: Duration = Duration::from_millis(700);
/// What the attacked process prints before its report.
const REPORT: &str = "report:";
/// Held while a process is being spawned: until it executes its program, it has copies of all
/// descriptors.
static SPAWNING: Mutex<()> = Mutex::new(());
/// Bytes that the exporter offers, and their value.
pub(crate) const EXPORTED: u64 = 64 << 10;
pub(crate) const PATTERN: u8 = 0x5a;

/// What the attacked process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Receives a window, maps it, reads and writes each of its pages.
    Receive,
    /// As `Receive`, with the timeout [`BRIEF`].
    Brief,
    /// As `Receive`, without a free descriptor while it receives.
    Full,
    /// As `Receive`, with one free descriptor while it receives.
    Last,
    /// Fetches a window by an offer, and uses it as `Receive`.
    Fetch,
    /// Exports mock device memory, sends a window, waits for a byte, and frees the memory.
    Export,
    /// Sends a window to a peer that reads nothing.
    SendToFull,
    /// As `SendToFull`, and waits longer.
    SendToClosed,
}

impl Role {
    const ALL: [Self; 8] = [
        Self::Receive,
        Self::Brief,
        Self::Full,
        Self::Last,
        Self::Fetch,
        Self::Export,
        Self::SendToFull,
        Self::SendToClosed,
    ];

    fn name(self) -> String {
        format!("{self:?}")
    }
}

/// How an attack ended for the attacked process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// The last step: `receive`, `map`, `touch`, `send`, `close`, or `done` where no step failed.
    pub(crate) step: String,
    /// The name of the error's kind; `none` without an error.
    pub(crate) kind: String,
    /// The error's errno; 0 without one.
    pub(crate) errno: i32,
    /// Open descriptors after the attack, less those before.
    pub(crate) leaked: i64,
    /// The error's text, or what the role found.
    pub(crate) text: String,
}

impl Report {
    /// Asserts the step and the kind, and that no descriptor leaked.
    #[track_caller]
    pub(crate) fn is(&self, step: &str, kind: &str) -> &Self {
        assert_eq!((self.step.as_str(), self.kind.as_str()), (step, kind), "{self:?}");
        assert_eq!(self.leaked, 0, "descriptors leaked: {self:?}");
        self
    }

    /// Asserts that the text has these words.
    #[track_caller]
    pub(crate) fn contains(&self, words: &str) -> &Self {
        assert!(self.text.contains(words), "{words:?} is missing: {self:?}");
        self
    }
}

/// The attacked process, as its attacker sees it.
pub(crate) struct Victim {
    child: Child,
    pub(crate) socket: UnixStream,
    begin: Instant,
}

/// Drops a descriptor of which no new process has a copy.
pub(crate) fn release(fd: OwnedFd) {
    let _spawning = gaudi_sys::lock(&SPAWNING);
    drop(fd);
}

impl Victim {
    pub(crate) fn start(role: Role) -> Self {
        let (socket, theirs) = UnixStream::pair().expect("a socket");
        socket.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let spawning = gaudi_sys::lock(&SPAWNING);
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "victim::an_honest_window_is_used", "--nocapture"])
            .env(ROLE, role.name())
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        // `spawn` returns before exec(2) has closed the copies, so wait for the first output.
        let stdout = child.stdout.as_ref().expect("it is piped");
        let [is_running] = readable([stdout.as_fd()], DEADLINE).expect("a pipe");
        assert!(is_running, "the process prints that its test runs");
        drop(spawning);
        Self {
            child,
            socket,
            begin: Instant::now(),
        }
    }

    /// Its process number.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends bytes with descriptors, of any number.
    pub(crate) fn pass(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> nix::Result<usize> {
        let numbers: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        sendmsg::<UnixAddr>(
            self.socket.as_raw_fd(),
            &[std::io::IoSlice::new(bytes)],
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        )
    }

    /// Waits until the attacked process has received the window and not yet mapped it.
    pub(crate) fn has_received(&mut self) {
        self.hears(b'r');
    }

    /// Waits for this byte of the attacked process.
    pub(crate) fn hears(&mut self, wanted: u8) {
        let mut byte = [0];
        self.socket
            .read_exact(&mut byte)
            .expect("the attacked process goes on");
        assert_eq!(byte, [wanted]);
    }

    /// Lets the attacked process go on.
    pub(crate) fn go_on(&mut self) {
        self.socket.write_all(b"g").expect("the attacked process listens");
    }

    /// Ends the stream to the attacked process, and returns its report.
    pub(crate) fn after_close(self) -> Report {
        self.socket
            .shutdown(std::net::Shutdown::Write)
            .expect("the socket is open");
        self.report()
    }

    /// Returns the report, with the socket open until then.
    pub(crate) fn report(mut self) -> Report {
        let stdout = self.child.stdout.take().expect("it is piped");
        let mut reader = Reader {
            stdout,
            text: String::new(),
        };
        let ended = reader.read_until(self.begin + DEADLINE);
        if !ended {
            let _ = self.child.kill();
        }
        let status = self.child.wait().expect("the attacked process");
        let line = reader.text.lines().find_map(|line| {
            let at = line.find(REPORT)? + REPORT.len();
            line.get(at..)
        });
        let Some(line) = line.filter(|_| ended && status.success()) else {
            panic!(
                "the attacked process ended with {status} after {:?} (killed by this test: {}): {}",
                self.begin.elapsed(),
                !ended,
                reader.text
            );
        };
        let mut words = line.split_whitespace();
        let mut word = || words.next().expect("four words").to_owned();
        let (step, kind) = (word(), word());
        let (errno, leaked) = (
            word().parse().expect("a number"),
            word().parse().expect("a number"),
        );
        let text = words.collect::<Vec<_>>().join(" ");
        Report {
            step,
            kind,
            errno,
            leaked,
            text,
        }
    }
}

struct Reader {
    stdout: std::process::ChildStdout,
    text: String,
}

impl Reader {
    /// Reads to the end; whether it came before the deadline.
    fn read_until(&mut self, deadline: Instant) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).expect("a short time");
            let mut set = [PollFd::new(self.stdout.as_fd(), PollFlags::POLLIN)];
            if poll(&mut set, timeout).expect("poll") == 0 {
                return false;
            }
            let mut bytes = [0; 4096];
            match self.stdout.read(&mut bytes).expect("a pipe") {
                0 => return true,
                count => self.text.push_str(&String::from_utf8_lossy(&bytes[..count])),
            }
        }
    }
}

/// The message of [`send`], field by field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) exporter: u64,
    pub(crate) inode: u64,
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Message {
    /// What a peer claims of a descriptor to have it taken as a stand-in of `size` bytes.
    pub(crate) fn about(fd: BorrowedFd<'_>, size: u64) -> Self {
        let stat = nix::sys::stat::fstat(fd).expect("a descriptor");
        Self {
            exporter: 5,
            inode: stat.st_ino,
            start: 0,
            size,
            offset: 0,
            len: size,
        }
    }

    pub(crate) fn bytes(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let words = [
            u64::from_le_bytes(*b"gdmabuf\0"),
            1 | 64 << 16 | self.exporter << 32,
            self.inode,
            self.start,
            self.size,
            self.offset,
            self.len,
            0,
        ];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

#[test]
fn an_honest_window_is_used() {
    if let Some(role) = std::env::var_os(ROLE) {
        let role = Role::ALL.into_iter().find(|known| *known.name() == *role);
        return attacked(role.expect("a role"));
    }
    for role in [Role::Receive, Role::Brief] {
        let fd = crate::object::stand_in(8 << 12);
        let victim = Victim::start(role);
        let message = Message::about(fd.as_fd(), 8 << 12);
        victim.pass(&message.bytes(), &[fd.as_fd()]).expect("it is sent");
        victim.after_close().is("done", "none");
    }
}

fn open_descriptors() -> i64 {
    let count = std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    i64::try_from(count).expect("few")
}

/// The attacked process: plays its role and prints its report.
fn attacked(role: Role) {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("a socket");
    let mut socket = UnixStream::from(socket);
    // The first buffer makes what every later one shares.
    drop(crate::object::buffer(1 << 12));
    let spec: DeviceSpec = "mock:gaudi2?name=hostile&dram=768MiB".parse().expect("a spec");
    let io = (role == Role::Export).then(|| gaudi_hal::open(&spec).expect("a mock device"));
    let before = open_descriptors();
    let mut step = "receive";
    let answer = match role {
        Role::Receive | Role::Brief | Role::Full | Role::Last => {
            take(role, &socket).and_then(|window| touch(&window, &mut socket, &mut step))
        }
        Role::Fetch => {
            let mut offer = [0; OFFER_BYTES];
            socket.read_exact(&mut offer).expect("an offer");
            let window = Offer::from_bytes(&offer).fetch();
            window.and_then(|window| touch(&window, &mut socket, &mut step))
        }
        Role::Export => export(io.as_ref().expect("it is open"), &mut socket, &mut step),
        Role::SendToFull | Role::SendToClosed => {
            step = "send";
            let timeout = if role == Role::SendToFull { BRIEF } else { TIMEOUT };
            let window = crate::object::buffer(1 << 12).whole().expect("bytes");
            (0..1 << 20)
                .try_for_each(|_| send(&socket, &window, timeout))
                .map(|()| "it was sent".to_owned())
        }
    };
    // The mock keeps a descriptor of an export that others hold, where exports are real dma-bufs.
    let of_mock = role == Role::Export && answer.is_err() && udmabuf_open().is_ok();
    let leaked = open_descriptors() - before - i64::from(of_mock);
    assert!(leaks().is_empty(), "{:?}", leaks());
    let (step, kind, errno, text) = match answer {
        Ok(text) => ("done", "none", 0, text),
        Err(error) => {
            let errno = error.errno().map_or(0, |errno| errno as i32);
            (step, error.kind().name(), errno, error.to_string())
        }
    };
    println!(
        "{REPORT} {step} {kind} {errno} {leaked} {}",
        text.replace('\n', " ")
    );
}

fn take(role: Role, socket: &UnixStream) -> Result<Window> {
    match role {
        Role::Brief => receive(socket, BRIEF),
        Role::Full => without_descriptors(|| receive(socket, TIMEOUT)).expect("a limit"),
        Role::Last => {
            let last = std::fs::File::open("/dev/null").expect("a descriptor");
            without_descriptors(move || {
                drop(last);
                receive(socket, TIMEOUT)
            })
            .expect("a limit")
        }
        _ => receive(socket, TIMEOUT),
    }
}

/// Maps a window that came from the attacker, and reads and writes its pages; returns what the
/// first byte was.
fn touch(window: &Window, socket: &mut UnixStream, step: &mut &'static str) -> Result<String> {
    // The attacker may be dead or not listen.
    let _ = socket.write_all(b"r").and_then(|()| socket.read(&mut [0]));
    *step = "map";
    let cpu = window.attach_cpu("victim")?;
    *step = "touch";
    let failed = |errno: Errno| Error::from_errno("touch", errno);
    let len = usize::try_from(window.len()).expect("it is mapped");
    let mut first = None;
    // At most 64 pages from each end: a stand-in may be larger than the machine.
    let pages = (0..len).step_by(4096);
    for round in 0..50 {
        for at in pages.clone().take(64).chain(pages.clone().rev().take(64)) {
            let mut byte = [0];
            let access = cpu.editing()?;
            access.read(at, &mut byte).map_err(failed)?;
            first.get_or_insert(byte[0]);
            access.write(at, &[round]).map_err(failed)?;
            access.end()?;
        }
    }
    let _ = socket.write_all(b"t");
    Ok(format!("first={}", first.unwrap_or_default()))
}

/// Exports device memory to the attacker, frees it, and reads what the next allocation has.
fn export(io: &SharedIo, socket: &mut UnixStream, step: &mut &'static str) -> Result<String> {
    let memory = DeviceMemory::new(io.clone(), EXPORTED, MemFlags::CONTIGUOUS)?;
    let window = memory.window(0, EXPORTED)?;
    let cpu = window.attach_cpu("victim")?;
    let failed = |errno: Errno| Error::from_errno("touch", errno);
    cpu.write(0, &[PATTERN; EXPORTED as usize]).map_err(failed)?;
    *step = "send";
    send(&*socket, &window, TIMEOUT)?;
    drop((cpu, window));
    *step = "close";
    // The attacker has what it wants.
    let _ = socket.read(&mut [0]);
    let (memory, error) = match memory.close() {
        Ok(()) => (None, None),
        Err(CloseError {
            object: memory,
            error,
        }) => (Some(memory), Some(error)),
    };
    if let (Some(memory), Some(error)) = (memory, error) {
        let _ = socket.write_all(b"b").and_then(|()| socket.read(&mut [0]));
        // It is no longer in use, unless the attacker is still alive.
        memory.close().map_err(|_| error)?;
    }
    *step = "reuse";
    let next = DeviceMemory::new(io.clone(), EXPORTED, MemFlags::CONTIGUOUS)?;
    let cpu = next.window(0, EXPORTED)?.attach_cpu("next")?;
    let mut bytes = vec![0; EXPORTED as usize];
    cpu.read(0, &mut bytes).map_err(failed)?;
    let kept = bytes.iter().filter(|&&byte| byte != 0).count();
    drop(cpu);
    *step = "close";
    next.close()?;
    Ok(format!("kept={kept}"))
}

/// Whether errno is this one.
pub(crate) fn is_errno(answer: nix::Result<impl Sized>, wanted: Errno) -> bool {
    answer.is_err_and(|errno| errno == wanted)
}

/// Adds seals; the attacker's most used call.
pub(crate) fn seal(fd: BorrowedFd<'_>, seals: nix::fcntl::SealFlag) -> nix::Result<()> {
    nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_ADD_SEALS(seals)).map(drop)
}

/// The lock that makes a memfd a stand-in.
pub(crate) fn lock(fd: BorrowedFd<'_>, kind: i32, start: i64, len: i64) -> nix::Result<()> {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).map(drop)
}
