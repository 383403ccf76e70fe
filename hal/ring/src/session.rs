//! [`Session`]: the writer's side, one for each process.
//!
//! A page that fork(2) wipes (`MADV_WIPEONFORK`) holds the process's epoch, so one load detects a
//! fork child, however it was made. Its threads then claim rings of their own in the same mapping.
//! A child that shares the memory (vfork(2), clone(2) with `CLONE_VM`) shares the ring as well: the
//! caller marks such calls ([`Session::share`]), and each record's thread id is checked afterwards.

#![allow(
    unsafe_code,
    reason = "shared memory, thread-local state and system calls of signal handlers"
)]

use std::cell::Cell;
use std::fs::OpenOptions;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

use crate::clock::{counter, monotonic_ns};
use crate::layout::{
    AT_COMMAND_BUFFERS, AT_DEVICE_COUNT, AT_DEVICES, AT_FLAGS, AT_LOST, AT_MAGIC, AT_NONCE, AT_OPEN,
    AT_OWNERS, AT_RING_BYTES, AT_RINGS, AT_TYPES, Filter, MAGIC, MAX_DEVICES, PAD, RECORD, RING_HEAD,
    RING_LOST, RING_PAGE, RING_TAIL, SCRATCH, Sizes,
};
use crate::map::Map;

/// Maximum time that a writer waits for space, and the time between two looks.
const WAIT_NS: u64 = 200_000_000;
const WAIT_STEP_NS: libc::c_long = 200_000;
/// Records that a thread without a ring drops before it looks for one again.
const LOOK_AGAIN: u32 = 256;
/// Cache lines of a record that are requested ahead: those of an ioctl with a small argument.
const PREFETCHED: u64 = 4;

/// The rings of this process.
#[derive(Debug)]
pub struct Session {
    map: Map,
    sizes: Sizes,
    filter: Filter,
    types: [u64; 4],
    has_counter: bool,
    /// A page with the epoch: 0 in a fork child.
    epoch: NonNull<AtomicU64>,
    epochs: AtomicU64,
    pid: AtomicU32,
    parent: AtomicU32,
}

// SAFETY: the epoch's page is never unmapped, and is accessed with atomics.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

static SESSION: OnceLock<Option<Session>> = OnceLock::new();

/// A child that shares the memory of the thread that creates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Child {
    /// The thread waits until the child has left the memory: vfork(2).
    Waited = 1,
    /// The thread runs beside the child, which has descriptors of its own.
    Concurrent = 2,
    /// As `Concurrent`, with the same descriptors (`CLONE_FILES`).
    SameFiles = 4,
}

/// The state of a thread. Signal handlers of the thread use it too.
#[derive(Debug)]
pub struct Local {
    epoch: Cell<u64>,
    /// The ring's number plus 1; 0 without a ring.
    ring: Cell<usize>,
    tid: Cell<u32>,
    /// A set of [`Child`], for the calls whose children share this state.
    shared: Cell<u8>,
    /// The last child that used this state.
    child: Cell<(u32, u32)>,
    scratch: Cell<usize>,
    tail: Cell<u64>,
    drops: Cell<u32>,
    /// Whether the last wait for space timed out.
    is_full: Cell<bool>,
}

thread_local! {
    // Without a destructor and with a constant value: the first use runs no code.
    static LOCAL: Local = const {
        Local {
            epoch: Cell::new(0),
            ring: Cell::new(0),
            tid: Cell::new(0),
            shared: Cell::new(0),
            child: Cell::new((0, 0)),
            scratch: Cell::new(0),
            tail: Cell::new(0),
            drops: Cell::new(0),
            is_full: Cell::new(false),
        }
    };
}

/// The process and thread of a record, and which of the two the tracer does not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Author {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Set for the first record of a process: the process that created it, or 0.
    pub new_process: Option<u32>,
    /// Whether this is the first record of a thread.
    pub is_new_thread: bool,
    /// Whether it shares its memory with the process that created it.
    pub is_guest: bool,
}

fn system_id(number: libc::c_long) -> u32 {
    // SAFETY: getpid(2) and gettid(2) have no arguments and do not fail.
    unsafe { libc::syscall(number) as u32 }
}

impl Session {
    /// Returns the session that the environment variable `value` names, which is opened at the
    /// first call. Returns `None` if it has ended or cannot be mapped.
    ///
    /// The caller has ignored the environment under `AT_SECURE`. Not async-signal-safe.
    pub fn attach(value: Option<&str>) -> Option<&'static Self> {
        SESSION
            .get_or_init(|| value.and_then(|value| Self::open(value).ok()))
            .as_ref()
    }

    /// Returns the session that [`attach`](Self::attach) has opened. Async-signal-safe.
    #[inline]
    pub fn get() -> Option<&'static Self> {
        SESSION.get()?.as_ref()
    }

    fn open(value: &str) -> Result<Self, Errno> {
        let mut fields = value.split(':');
        let mut field = || fields.next().ok_or(Errno::EINVAL);
        let number = |text: &str| text.parse::<u32>().map_err(|_| Errno::EINVAL);
        let (pid, fd) = (number(field()?)?, number(field()?)?);
        let nonce = u64::from_str_radix(field()?, 16).map_err(|_| Errno::EINVAL)?;
        let path = format!("/proc/{pid}/fd/{fd}");
        let failed = |error: std::io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        // The numbers can belong to another program by now, whose file must not be opened.
        let target = std::fs::read_link(&path).map_err(failed)?;
        if !target
            .as_os_str()
            .to_string_lossy()
            .starts_with("/memfd:gaudi-ring")
        {
            return Err(Errno::ENOENT);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        let sealed = libc::F_SEAL_SHRINK;
        if fcntl(&file, FcntlArg::F_GET_SEALS)? & sealed == 0 {
            return Err(Errno::EINVAL);
        }
        let len = usize::try_from(file.metadata().map_err(failed)?.len()).map_err(|_| Errno::EFBIG)?;
        if len < AT_OWNERS + RING_PAGE {
            return Err(Errno::EINVAL);
        }
        let map = Map::new(&file, len)?;
        drop(file);
        let word = |at: usize| map.word(at).load(Ordering::Acquire);
        if word(AT_MAGIC) != MAGIC || word(AT_NONCE) != nonce || word(AT_OPEN) == 0 {
            return Err(Errno::ENOENT);
        }
        let sizes = Sizes::of_header(word(AT_RINGS), word(AT_RING_BYTES)).ok_or(Errno::EINVAL)?;
        if sizes.total() != len {
            return Err(Errno::EINVAL);
        }
        let types: [u64; 4] = std::array::from_fn(|index| word(AT_TYPES + 8 * index));
        let count = usize::try_from(word(AT_DEVICE_COUNT))
            .unwrap_or(0)
            .min(MAX_DEVICES);
        let devices = (0..count).map(|index| {
            let row = word(AT_DEVICES + 8 * index);
            (
                (row >> 32) as u32,
                Some(row as u32).filter(|&minor| minor != u32::MAX),
            )
        });
        let flags = word(AT_FLAGS);
        let filter = Filter {
            types: (0..=u8::MAX).filter(|&kind| has_type(&types, kind)).collect(),
            devices: devices.collect(),
            files: flags & 1 != 0,
            preload: flags & 2 != 0,
            data: flags & 8 != 0,
            command_buffers: Some(word(AT_COMMAND_BUFFERS)).filter(|&bytes| bytes != 0),
        };
        let page = NonZeroUsize::new(4096).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other mapping.
        let epoch = unsafe { mmap_anonymous(None, page, protection, MapFlags::MAP_PRIVATE) }?;
        // SAFETY: the page is the one mapped above.
        unsafe { madvise(epoch, page.get(), MmapAdvise::MADV_WIPEONFORK) }?;
        let this = Self {
            map,
            sizes,
            filter,
            types,
            has_counter: flags & 4 != 0,
            epoch: epoch.cast(),
            epochs: AtomicU64::new(0),
            pid: AtomicU32::new(0),
            parent: AtomicU32::new(0),
        };
        this.begin_process();
        Ok(this)
    }

    /// Returns what is recorded.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Returns whether ioctls of a type byte are recorded.
    #[inline]
    pub fn records_type(&self, kind: u8) -> bool {
        has_type(&self.types, kind)
    }

    /// Returns whether the devices of the filter include one.
    pub fn records_device(&self, major: u32, minor: u32) -> bool {
        let rows = &self.filter.devices;
        rows.is_empty()
            || rows
                .iter()
                .any(|row| row.0 == major && row.1.is_none_or(|only| only == minor))
    }

    #[inline]
    fn epoch(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped and aligned for the process's life, and zero or an epoch.
        unsafe { self.epoch.as_ref() }
    }

    /// Sets the process's id and epoch. Threads of a new fork child can call it at the same time.
    #[cold]
    fn begin_process(&self) -> u64 {
        let old = self.pid.load(Ordering::Relaxed);
        let pid = system_id(libc::SYS_getpid);
        if self
            .pid
            .compare_exchange(old, pid, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            self.parent.store(old, Ordering::Relaxed);
        }
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed) + 1;
        match self
            .epoch()
            .compare_exchange(0, epoch, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => epoch,
            Err(current) => current,
        }
    }

    /// Calls `record` with the thread's state and the author of the next record. The call is
    /// skipped if the thread has no ring: the record is counted as lost.
    #[inline]
    pub fn with<R>(&self, record: impl FnOnce(&Local, Author) -> R) -> Option<R> {
        LOCAL
            .try_with(|local| {
                let mut epoch = self.epoch().load(Ordering::Relaxed);
                let mut author = Author {
                    pid: self.pid.load(Ordering::Relaxed),
                    tid: local.tid.get(),
                    new_process: None,
                    is_new_thread: false,
                    is_guest: false,
                };
                if epoch != local.epoch.get() {
                    if epoch == 0 {
                        epoch = self.begin_process();
                    }
                    author = self.begin_thread(local, epoch);
                }
                if local.ring.get() == 0 && !self.look_again(local) {
                    return None;
                }
                if local.shared.get() != 0 {
                    author = self.check_author(local, author);
                }
                Some(record(local, author))
            })
            .ok()
            .flatten()
    }

    #[cold]
    fn begin_thread(&self, local: &Local, epoch: u64) -> Author {
        // A handler of this thread that interrupts this function begins the thread itself.
        let tid = system_id(libc::SYS_gettid);
        let pid = self.pid.load(Ordering::Relaxed);
        local.ring.set(0);
        local.tid.set(tid);
        local.scratch.set(0);
        local.shared.set(0);
        local.epoch.set(epoch);
        let parent = self.parent.swap(u32::MAX, Ordering::Relaxed);
        self.claim(local, pid, tid);
        Author {
            pid,
            tid,
            new_process: Some(parent).filter(|&parent| parent != u32::MAX),
            is_new_thread: true,
            is_guest: false,
        }
    }

    /// Finds a ring for the thread.
    fn claim(&self, local: &Local, pid: u32, tid: u32) -> bool {
        let owner = u64::from(pid) << 32 | u64::from(tid);
        for index in 0..self.sizes.rings {
            let word = self.map.word(AT_OWNERS + 8 * index);
            if word.load(Ordering::Relaxed) == 0
                && word
                    .compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                local
                    .tail
                    .set(self.page(index, RING_TAIL).load(Ordering::Acquire));
                local.is_full.set(false);
                local.ring.set(index + 1);
                return true;
            }
        }
        false
    }

    #[cold]
    fn look_again(&self, local: &Local) -> bool {
        let drops = local.drops.get().wrapping_add(1);
        local.drops.set(drops);
        if drops % LOOK_AGAIN == 0 && self.claim(local, self.pid.load(Ordering::Relaxed), local.tid.get()) {
            return true;
        }
        self.map.word(AT_LOST).fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Finds out which of the threads that share this state makes the record.
    #[cold]
    fn check_author(&self, local: &Local, author: Author) -> Author {
        let tid = system_id(libc::SYS_gettid);
        if tid == local.tid.get() {
            if local.shared.get() == Child::Waited as u8 {
                // The parent runs, so the child of vfork(2) has left the memory.
                local.shared.set(0);
            }
            return author;
        }
        let pid = system_id(libc::SYS_getpid);
        let is_new = local.child.replace((pid, tid)) != (pid, tid);
        Author {
            pid,
            tid,
            new_process: Some(author.pid).filter(|_| is_new),
            is_new_thread: is_new,
            is_guest: true,
        }
    }

    #[inline]
    fn page(&self, ring: usize, field: usize) -> &AtomicU64 {
        self.map.word(self.sizes.ring(ring) + field)
    }

    /// Marks that the next call of this thread creates a child that shares its memory. The thread
    /// has called [`with`](Self::with): otherwise the child would begin it, under its own id.
    pub fn share(&self, child: Child) {
        let _ = LOCAL.try_with(|local| local.shared.set(local.shared.get() | child as u8));
    }

    /// Returns whether the calling thread may share its state with a child.
    #[inline]
    pub fn is_shared(&self) -> bool {
        LOCAL.try_with(|local| local.shared.get() != 0).unwrap_or(true)
    }

    /// Returns whether the caller is a child that shares the memory, but not the descriptors, of
    /// the process that created it.
    pub fn has_own_files(&self) -> bool {
        let is_child = |local: &Local| {
            let shared = local.shared.get();
            shared != 0
                && shared & Child::SameFiles as u8 == 0
                && system_id(libc::SYS_gettid) != local.tid.get()
        };
        LOCAL.try_with(is_child).unwrap_or(false)
    }

    /// Lends `len` bytes of the ring's scratch memory to `body`. Lends nothing (an empty slice) if
    /// they are not free.
    pub fn scratch<R>(&self, local: &Local, len: usize, body: impl FnOnce(&mut [u8]) -> R) -> R {
        let top = local.scratch.get();
        let ring = local.ring.get();
        if ring == 0 || len > SCRATCH.saturating_sub(top) {
            return body(&mut []);
        }
        let base = self.sizes.ring(ring - 1) + RING_PAGE + self.sizes.ring_bytes + top;
        local.scratch.set(top + len.next_multiple_of(64));
        let bytes = self.map.bytes(base, len);
        // SAFETY: the range is inside the mapping. The thread owns its scratch memory; a signal
        // handler takes the part above. The tracer does not access it.
        let result = body(unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr(), len) });
        local.scratch.set(top);
        result
    }

    /// Returns the time for a record, which the tracer converts to nanoseconds.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.has_counter {
            counter()
        } else {
            monotonic_ns()
        }
    }

    /// Requests the memory of the thread's next record for writing. The tracer's processor has
    /// written there last, so the stores would wait for it.
    #[inline]
    pub fn prefetch(&self, local: &Local) {
        let Some(ring) = local.ring.get().checked_sub(1) else {
            return;
        };
        let head = self.page(ring, RING_HEAD).load(Ordering::Relaxed);
        let data = self.sizes.ring(ring) + RING_PAGE;
        for line in 0..PREFETCHED {
            let into = head.wrapping_add(line * 64) & (self.sizes.ring_bytes as u64 - 1);
            prefetch(self.map.bytes(data + into as usize, 1));
        }
    }

    /// Returns the maximum length of a record in bytes.
    pub fn longest(&self) -> usize {
        self.sizes.longest()
    }

    /// Reserves a record of `len` bytes. Returns `None` if the record is lost, or if the session
    /// has ended.
    ///
    /// Waits for space up to 200 ms. After a wait that timed out, records are dropped until a
    /// quarter of the ring is free.
    #[inline]
    pub fn reserve(&self, local: &Local, len: usize) -> Option<Reserved<'_>> {
        let ring = local.ring.get().checked_sub(1)?;
        let size = self.sizes.ring_bytes as u64;
        if self.map.word(AT_OPEN).load(Ordering::Relaxed) == 0 {
            return None;
        }
        if len > self.sizes.longest() {
            self.lose(ring);
            return None;
        }
        let need = 8 + len.next_multiple_of(8) as u64;
        let page = self.page(ring, RING_HEAD);
        let mut head = page.load(Ordering::Relaxed);
        loop {
            // Another part of the program can overwrite the position.
            if head % 8 != 0 {
                self.lose(ring);
                return None;
            }
            let into = head & (size - 1);
            let pad = if size - into < need { size - into } else { 0 };
            let next = head.wrapping_add(pad + need);
            if next.wrapping_sub(local.tail.get()) > size && !self.wait(local, ring, next) {
                self.lose(ring);
                return None;
            }
            match page.compare_exchange_weak(head, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    let data = self.sizes.ring(ring) + RING_PAGE;
                    if pad != 0 {
                        let header = PAD | (pad - 8);
                        self.map
                            .word(data + into as usize)
                            .store(header, Ordering::Release);
                    }
                    let at = data + (head.wrapping_add(pad) & (size - 1)) as usize;
                    return Some(Reserved {
                        session: self,
                        header: at,
                        len,
                        at: 0,
                    });
                }
                Err(current) => head = current,
            }
        }
    }

    /// Waits until the tracer has read so much that the ring reaches to `next`.
    #[cold]
    fn wait(&self, local: &Local, ring: usize, next: u64) -> bool {
        let size = self.sizes.ring_bytes as u64;
        let tail = self.page(ring, RING_TAIL);
        // Not counted in steps: on a busy machine, each takes longer than its sleep.
        let end = monotonic_ns() + WAIT_NS;
        loop {
            let now = tail.load(Ordering::Acquire);
            local.tail.set(now);
            let used = next.wrapping_sub(now);
            let limit = if local.is_full.get() {
                size - size / 4
            } else {
                size
            };
            if used <= limit {
                local.is_full.set(false);
                return true;
            }
            if local.is_full.get() || self.map.word(AT_OPEN).load(Ordering::Relaxed) == 0 {
                return false;
            }
            if monotonic_ns() >= end {
                local.is_full.set(true);
                return false;
            }
            let pause = libc::timespec {
                tv_sec: 0,
                tv_nsec: WAIT_STEP_NS,
            };
            // SAFETY: clock_nanosleep(2) reads the timespec; the remaining time is not requested.
            unsafe {
                libc::syscall(
                    libc::SYS_clock_nanosleep,
                    libc::CLOCK_MONOTONIC,
                    0,
                    &raw const pause,
                    0_usize,
                )
            };
        }
    }

    fn lose(&self, ring: usize) {
        self.page(ring, RING_LOST).fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch(at: NonNull<u8>) {
    // SAFETY: a hint, which neither faults nor changes memory; processors without it ignore it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at.as_ptr(), options(nostack, preserves_flags));
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch(_: NonNull<u8>) {}

fn has_type(types: &[u64; 4], kind: u8) -> bool {
    types[usize::from(kind / 64)] >> (kind % 64) & 1 != 0
}

/// A reserved record. [`publish`](Self::publish) ends it; otherwise its ring cannot be read on.
#[derive(Debug)]
pub struct Reserved<'a> {
    session: &'a Session,
    header: usize,
    len: usize,
    at: usize,
}

impl Reserved<'_> {
    /// Appends bytes. Ignores them if they exceed the reserved length.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        // The length of a field is known to the compiler, which copies it with one instruction.
        let len = bytes.len();
        if len > self.len - self.at {
            return;
        }
        let to = self.session.map.bytes(self.header + 8 + self.at, len);
        // SAFETY: the range is inside the mapping, and this record's until it is published.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), len) };
        self.at += len;
    }

    /// Publishes the record.
    #[inline]
    pub fn publish(self) {
        let header = RECORD | self.len as u64;
        self.session
            .map
            .word(self.header)
            .store(header, Ordering::Release);
    }
}
