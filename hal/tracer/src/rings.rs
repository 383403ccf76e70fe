//! Tier A: the program records itself, in rings that this process drains. The preload library
//! `libgaudi_trace.so` records the calls of libc; a program that embeds this project's library
//! records its devices of every backend.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use gaudi_capture::Encoded;
use gaudi_capture::record::{Losses, LostCause};
use gaudi_ring::{Drain, Filter, Pull, Sizes, VARIABLE};
use nix::errno::Errno;

use crate::error::{Error, ErrorKind};
use crate::options::Options;
use crate::process;

/// The library's file name.
const LIBRARY: &str = "libgaudi_trace.so";
/// The environment variable that names the library, if it is not beside this program.
const LIBRARY_VARIABLE: &str = "GAUDI_TRACE_LIBRARY";
/// Threads that have rings at the same time.
const RINGS: usize = 256;
/// Bytes that are read before their events are passed on.
const BATCH: usize = 4 << 20;
/// Bytes of records that are held back for the sake of their order.
const MAX_HELD: usize = 64 << 20;
/// Records of one read after which the next read does not wait.
pub(crate) const MANY: usize = 4096;
/// Interval between checks for dead threads.
const LOOK_FOR_DEAD: Duration = Duration::from_millis(20);

/// A session's rings, and events that are read but not yet passed on.
#[derive(Debug)]
pub(crate) struct Rings {
    drain: Drain,
    /// The records read, and each one checked, with its range.
    bytes: Vec<u8>,
    records: Vec<(Encoded<'static>, usize, usize)>,
    /// Bytes of all records that were read.
    pulled: u64,
    /// Whether the last read left records in a ring.
    is_behind: bool,
    looked: Instant,
    /// When this process started: before every owner of a ring.
    start: Option<u64>,
    /// The owner of each ring, and its thread by the numbers of this process: a program in another
    /// PID namespace writes its own.
    threads: HashMap<usize, ((u32, u32), u32)>,
    /// The [mark](process::mark_of) of the session's memory.
    mark: String,
    /// A process of the session, if none has a ring.
    process: Option<u32>,
    pub(crate) events: u64,
    pub(crate) ioctls: u64,
    pub(crate) cut: u64,
    pub(crate) unreadable: u64,
    pub(crate) lost: Losses,
    /// Rings that were found corrupt since the last [`Item::Lost`] for one.
    rejected: u64,
    /// Descriptions of corrupt rings.
    pub(crate) corrupt: Vec<String>,
}

/// A ring, and the process and thread that wrote themselves as its owner.
type Owned = (usize, (u32, u32));

/// What [`Rings::read`] passes on.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    Event(Encoded<'a>),
    Lost(LostCause, u64),
}

/// Returns the path of the preload library: `GAUDI_TRACE_LIBRARY`, or the file beside this program,
/// in `deps` (a test's), or in `../lib`.
pub(crate) fn library() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
        return Ok(path.into());
    }
    let program = std::env::current_exe().map_err(|error| Error::new(ErrorKind::NoLibrary, error))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = ["", "deps", "../lib/gaudi", "../lib"];
    let mut found = places.iter().map(|place| folder.join(place).join(LIBRARY));
    found
        .find(|path| path.is_file())
        .ok_or_else(|| Error::new(ErrorKind::NoLibrary, std::io::Error::from(Errno::ENOENT)))
}

impl Rings {
    pub(crate) fn new(options: &Options, preload: bool) -> Result<Self, Error> {
        let filter = Filter {
            types: options.types.clone(),
            devices: options.devices.iter().map(|row| (row.major, row.minor)).collect(),
            files: options.files,
            preload,
            data: options.data,
            command_buffers: options.command_buffers,
        };
        // Each thread has a ring, so that one is a fraction of the one that tier B has.
        let sizes = Sizes::new(RINGS, options.ring_bytes as usize / 8);
        let drain = Drain::new(sizes, &filter).map_err(|errno| Error::system("memfd_create(2)", errno))?;
        let mark = process::mark_of(drain.memory()).map_err(|errno| Error::system("fstat(2)", errno))?;
        Ok(Self {
            drain,
            start: process::start(std::process::id()),
            threads: HashMap::new(),
            mark,
            process: None,
            bytes: Vec::new(),
            records: Vec::new(),
            pulled: 0,
            is_behind: false,
            looked: Instant::now(),
            events: 0,
            ioctls: 0,
            cut: 0,
            unreadable: 0,
            lost: Losses::default(),
            rejected: 0,
            corrupt: Vec::new(),
        })
    }

    /// Names the session to a program that another tier traces: only programs that embed this
    /// project's library, on devices that no driver serves, write to its rings.
    pub(crate) fn beside(command: &mut Command, options: &Options) -> Result<Self, Error> {
        let rings = Self::new(options, false)?;
        command.env(VARIABLE, rings.drain.variable());
        Ok(rings)
    }

    /// Starts a program whose environment names the session and the preload library.
    pub(crate) fn spawn(mut command: Command, options: &Options) -> Result<(Self, Child), Error> {
        if options.cgroup.is_some() {
            return Err(Error::new(ErrorKind::Unsupported("a cgroup"), None));
        }
        if options.command_buffers.is_some() {
            return Err(Error::new(
                ErrorKind::Unsupported("reading command buffers"),
                None,
            ));
        }
        let library = library()?;
        let rings = Self::new(options, true)?;
        let own = |name: &str| {
            let set = command.get_envs().find(|row| row.0 == name);
            set.map_or_else(|| std::env::var_os(name), |row| row.1.map(OsString::from))
        };
        let mut preload = library.into_os_string();
        if let Some(others) = own("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        command
            .env("LD_PRELOAD", preload)
            .env(VARIABLE, rings.drain.variable());
        let child = crate::spawn::spawn(command, || Ok(()), |_| Ok(()))?;
        Ok((rings, child))
    }

    /// Returns whether a thread has a ring.
    pub(crate) fn has_owner(&self) -> bool {
        self.drain.owned().next().is_some()
    }

    /// Returns whether a process can still make records: a fork child that has not made its first
    /// one has no ring.
    pub(crate) fn has_process(&mut self) -> bool {
        let variable = format!("{VARIABLE}={}", self.drain.variable());
        let mark = &self.mark;
        let is_of_session =
            |&pid: &u32| process::has_variable(pid, &variable) || process::has_mapped(pid, mark);
        let own = std::process::id();
        let is_candidate = |&pid: &u32| pid != own && process::start(pid) >= self.start;
        self.process = self.process.filter(is_of_session).or_else(|| {
            let mut all = process::all().into_iter();
            all.find(|pid| is_candidate(pid) && is_of_session(pid))
        });
        self.process.is_some()
    }

    /// Reads records and passes on those that ended up to a time, in the order of their ends.
    /// Returns how many were read.
    pub(crate) fn read(&mut self, limit: u64, mut pass: impl FnMut(Item<'_>) -> bool) -> usize {
        // A record that ends later than this is held back: one of another thread can precede it.
        let now = process::now_ns();
        self.drain.update_clock();
        self.is_behind = false;
        let mut until = now.min(limit);
        let held = self.records.len();
        let owned: Vec<Owned> = self.drain.owned().collect();
        let share = (BATCH / owned.len().max(1)).max(1 << 16);
        for &(ring, _) in &owned {
            until = until.min(self.read_ring(ring, share, now));
        }
        let read = self.records.len() - held;
        if self.bytes.len() > MAX_HELD {
            until = u64::MAX;
        }
        // What was read has ended, whatever the program wrote as its time.
        let latest = process::now_ns();
        for row in &mut self.records {
            row.0.end_ns = row.0.end_ns.min(latest);
        }
        self.records.sort_by_key(|row| row.0.end_ns);
        let ready = self.records.partition_point(|row| row.0.end_ns <= until);
        for &(event, start, len) in &self.records[..ready] {
            let event = event.bind(&self.bytes[start..start + len]);
            self.events += 1;
            if let Some((cut, unreadable)) = event.ioctl {
                self.ioctls += 1;
                self.cut += u64::from(cut);
                self.unreadable += u64::from(unreadable);
            }
            pass(Item::Event(event));
        }
        self.keep(ready);
        let (without_ring, unfit) = self.drain.lost();
        self.lose(LostCause::TooManyThreads, without_ring, &mut pass);
        self.lose(LostCause::BufferFull, unfit, &mut pass);
        if self.looked.elapsed() > LOOK_FOR_DEAD {
            self.looked = Instant::now();
            self.release(&mut pass);
        }
        let rejected = std::mem::take(&mut self.rejected);
        self.lose(LostCause::Unknown, rejected, &mut pass);
        read
    }

    /// As [`read`](Self::read), until each ring was empty. Ends after as many reads as there are
    /// rings, because a program can fill them again.
    pub(crate) fn read_all(&mut self, limit: u64, mut pass: impl FnMut(Item<'_>) -> bool) {
        for _ in 0..RINGS {
            self.read(limit, &mut pass);
            if !self.is_behind {
                break;
            }
        }
    }

    /// Keeps the records from an index on.
    fn keep(&mut self, from: usize) {
        if from == self.records.len() {
            self.records.clear();
            self.bytes.clear();
            return;
        }
        let mut kept = Vec::new();
        self.records.drain(..from);
        for row in &mut self.records {
            let bytes = &self.bytes[row.1..row.1 + row.2];
            row.1 = kept.len();
            kept.extend_from_slice(bytes);
        }
        self.bytes = kept;
    }

    /// Reads up to `share` bytes of a ring. Returns the time up to which its records are complete.
    fn read_ring(&mut self, ring: usize, share: usize, now: u64) -> u64 {
        let first = self.bytes.len();
        let mut last = now;
        while self.bytes.len() - first < share {
            let start = self.bytes.len();
            let problem = match self.drain.pull(ring, &mut self.bytes) {
                Ok(Pull::Empty) => return now,
                Ok(Pull::Record) => match self.check(start) {
                    Ok(event) => {
                        last = event.end_ns;
                        let event = event.unbound();
                        self.pulled += (self.bytes.len() - start) as u64;
                        self.records.push((event, start, self.bytes.len() - start));
                        continue;
                    }
                    Err(problem) => format!("ring {ring}: invalid record: {problem}"),
                },
                Err(corrupt) => corrupt.to_string(),
            };
            self.bytes.truncate(start);
            self.drain.reject(ring);
            if self.corrupt.len() < 16 {
                self.corrupt.push(problem);
            }
            self.rejected += 1;
            return now;
        }
        self.is_behind = true;
        last.min(now)
    }

    /// Converts the times of the record at `start` and checks it.
    fn check(&mut self, start: usize) -> Result<Encoded<'_>, &'static str> {
        let drain = &self.drain;
        Encoded::convert_times(&mut self.bytes[start..], |time| drain.time_ns(time));
        Encoded::new(&self.bytes[start..])
    }

    /// Returns whether the owner of a ring is alive.
    fn is_alive(&mut self, (ring, owner): Owned) -> bool {
        let known = self.threads.get(&ring).filter(|known| known.0 == owner);
        let thread = known.map(|&(_, thread)| thread).or_else(|| {
            let (pid, tid) = owner;
            // The numbers of another PID namespace are mostly those of older processes here.
            let is_newer = process::start(tid) >= self.start;
            let thread = match process::is_alive(tid) && is_newer {
                true => tid,
                false => process::thread_below(pid, tid)?,
            };
            self.threads.insert(ring, (owner, thread));
            Some(thread)
        });
        thread.is_some_and(process::is_alive)
    }

    /// Releases the rings of dead threads.
    fn release(&mut self, pass: &mut impl FnMut(Item<'_>) -> bool) {
        let owned: Vec<Owned> = self.drain.owned().collect();
        for owned in owned {
            if self.is_alive(owned) {
                continue;
            }
            let (ring, _) = owned;
            self.threads.remove(&ring);
            // It died after the last read, possibly with records in its ring.
            let at = self.records.len();
            self.read_ring(ring, BATCH, u64::MAX);
            if self.records.len() == at && self.drain.release(ring) {
                self.lose(LostCause::Unknown, 1, pass);
            }
        }
    }

    fn lose(&mut self, cause: LostCause, count: u64, pass: &mut impl FnMut(Item<'_>) -> bool) {
        if count > 0 {
            self.lost.add(cause, count);
            pass(Item::Lost(cause, count));
        }
    }

    /// Passes on what is still held.
    pub(crate) fn finish(&mut self, mut pass: impl FnMut(Item<'_>) -> bool) {
        self.drain.close();
        // Writers stop now. A program that fills the rings in another way must not delay the end.
        let end = self.pulled.saturating_add(self.drain.capacity());
        while (self.read(u64::MAX, &mut pass) > 0 || !self.records.is_empty()) && self.pulled <= end {}
    }
}
