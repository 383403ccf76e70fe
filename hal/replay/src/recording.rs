//! [`Recording`]: a capture as a list of opens and their calls.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use gaudi_capture::gcap::{ReadError, ReadErrorKind, Reader};
use gaudi_capture::record::{
    DataRecord, Event, FdSource, IoctlRecord, MarkKind, Memory, MmapRecord, Moment, OpenRecord, ProcessChange,
};
use gaudi_capture::text::{self, TextError, TextErrorKind};
use gaudi_seam::{Errno, ErrorKind, NodeKind};
use gaudi_uapi::Ioctl;

use crate::key::Key;

/// The most bytes of records that a replay holds in memory.
pub const MOST_BYTES: u64 = 1 << 30;
/// The memory of a record besides its arguments, for the limit.
const RECORD_BYTES: u64 = 256;
/// The cost of an open file at a fork, for the limit.
const FILE_BYTES: u64 = 8;
/// Open files of a process are numbered by the kernel's `int`; a capture could name any number.
const MOST_FILES: usize = 1 << 20;

/// A recorded call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) key: Key,
    pub(crate) of: CallRecord,
    /// The kind and the cause of the error, if the recorder knew them.
    pub(crate) error: Option<(ErrorKind, String)>,
}

#[derive(Debug)]
pub(crate) enum CallRecord {
    Ioctl(IoctlRecord),
    Mmap(MmapRecord),
}

impl CallRecord {
    /// The errno of a failed call.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Ioctl(ioctl) => errno_of(ioctl.result),
            Self::Mmap(mmap) => errno_of(mmap.result),
        }
    }
}

fn errno_of(result: i64) -> Option<Errno> {
    let raw = i32::try_from(result.checked_neg()?).ok()?;
    (1..4096).contains(&raw).then(|| Errno::from_raw(raw))
}

/// A recorded open of a node, and the calls on it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) kind: NodeKind,
    /// N of `accelN`.
    pub(crate) index: u32,
    /// The errno of an open that failed, with the kind and the cause if the recorder knew them.
    pub(crate) failed: Option<(Errno, Option<(ErrorKind, String)>)>,
    pub(crate) calls: Vec<Call>,
}

/// A capture in memory: what a replay answers from.
#[derive(Debug, Default)]
pub struct Recording {
    pub(crate) sessions: Vec<Session>,
    /// INFO calls of every session: session and call.
    pub(crate) queries: HashMap<Key, (usize, usize)>,
    /// Whether the capture has the memory that the device wrote.
    pub(crate) has_data: bool,
    /// Events that the recorder lost.
    pub(crate) lost: u64,
}

/// Which node a path names. `None` for other files.
fn node_of(path: &[u8]) -> Option<(NodeKind, u32)> {
    const PREFIXES: [(&str, NodeKind); 4] = [
        ("/dev/accel/accel_controlD", NodeKind::Control),
        ("/dev/accel/accel", NodeKind::Compute),
        ("/dev/hl_controlD", NodeKind::Control),
        ("/dev/hl", NodeKind::Compute),
    ];
    let path = std::str::from_utf8(path).ok()?;
    PREFIXES.iter().find_map(|&(prefix, kind)| {
        let number = path.strip_prefix(prefix)?;
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        Some((kind, digits.then(|| number.parse().ok())??))
    })
}

/// What the descriptors of recorded processes refer to.
#[derive(Debug, Default)]
struct Files {
    /// The descriptor table of each process that shares another's.
    tables: HashMap<u32, u32>,
    /// Sessions by table and descriptor.
    open: HashMap<(u32, i32), usize>,
}

impl Files {
    fn table(&self, pid: u32) -> u32 {
        self.tables.get(&pid).copied().unwrap_or(pid)
    }

    fn get(&self, pid: u32, fd: i32) -> Option<usize> {
        self.open.get(&(self.table(pid), fd)).copied()
    }

    fn set(&mut self, pid: u32, fd: i32, session: Option<usize>) {
        let at = (self.table(pid), fd);
        match session {
            Some(session) if self.open.len() < MOST_FILES => {
                self.open.insert(at, session);
            }
            _ => {
                self.open.remove(&at);
            }
        }
    }

    fn fork(&mut self, parent: u32, child: u32, shares: bool) {
        let table = self.table(parent);
        if parent == child || self.tables.len() >= MOST_FILES {
            return;
        }
        if shares {
            self.tables.insert(child, table);
            return;
        }
        let inherited: Vec<_> = self
            .open
            .iter()
            .filter(|((of, _), _)| *of == table)
            .map(|(&(_, fd), &session)| (fd, session))
            .collect();
        for (fd, session) in inherited {
            self.set(child, fd, Some(session));
        }
    }
}

/// Reads events into a [`Recording`].
#[derive(Debug, Default)]
struct Loader {
    recording: Recording,
    files: Files,
    /// The last call of each thread, for the notes that follow it.
    last: HashMap<u32, Last>,
    /// Changed memory of each thread before its next ioctl.
    changed: HashMap<u32, Vec<Memory>>,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
enum Last {
    Open(usize),
    Call(usize, usize),
}

impl Loader {
    fn event(&mut self, event: Event) {
        match event {
            Event::Open(open) => self.open(&open),
            Event::Close {
                pid, fd, result: 0, ..
            } => self.files.set(pid, fd, None),
            Event::Dup { pid, fd, result, .. } => {
                if let Ok(new) = i32::try_from(result) {
                    if new >= 0 {
                        let session = self.files.get(pid, fd);
                        self.files.set(pid, new, session);
                    }
                }
            }
            Event::Process(process) => {
                if let ProcessChange::Start {
                    parent, shares_files, ..
                } = process.change
                {
                    // The limit bounds the time, too: a fork looks at all open files.
                    let cost = RECORD_BYTES + FILE_BYTES * self.files.open.len() as u64;
                    self.bytes = self.bytes.saturating_add(cost);
                    self.files.fork(parent, process.pid, shares_files);
                }
            }
            Event::Ioctl(ioctl) => self.ioctl(ioctl),
            Event::Mmap(mmap) => {
                if let Some(session) = self.files.get(mmap.pid, mmap.fd) {
                    let key = Key::mmap(mmap.offset, mmap.length);
                    self.call(session, mmap.tid, key, CallRecord::Mmap(mmap));
                }
            }
            Event::Data(data) => self.data(data),
            Event::Mark(mark) if mark.kind == MarkKind::Note => self.note(mark.tid, &mark.text),
            Event::Lost { count, .. } => self.recording.lost = self.recording.lost.saturating_add(count),
            Event::Close { .. } | Event::Munmap { .. } | Event::Write(_) | Event::Mark(_) => {}
        }
    }

    fn session(&mut self, kind: NodeKind, index: u32, failed: Option<Errno>) -> usize {
        self.bytes += RECORD_BYTES;
        self.recording.sessions.push(Session {
            kind,
            index,
            failed: failed.map(|errno| (errno, None)),
            calls: Vec::new(),
        });
        self.recording.sessions.len() - 1
    }

    fn open(&mut self, open: &OpenRecord) {
        let fd = i32::try_from(open.result).unwrap_or(-1);
        let Some((kind, index)) = node_of(&open.path) else {
            self.files.set(open.pid, fd, None);
            return;
        };
        let known = self
            .files
            .get(open.pid, fd)
            .filter(|_| open.source == FdSource::Inherited);
        let known = known.and_then(|number| self.recording.sessions.get(number));
        // After exec, preload introduces descriptors again that it had introduced before.
        if known.is_some_and(|session| (session.kind, session.index) == (kind, index)) {
            return;
        }
        let failed = errno_of(open.result);
        // A missing node was probed, not opened.
        if matches!(failed, Some(Errno::ENOENT | Errno::ENOTDIR)) {
            return;
        }
        let session = self.session(kind, index, failed);
        if failed.is_none() {
            self.files.set(open.pid, fd, Some(session));
        }
        self.last.insert(open.tid, Last::Open(session));
    }

    fn ioctl(&mut self, ioctl: IoctlRecord) {
        let Some(which) = Ioctl::of_request(ioctl.request).filter(|_| !ioctl.compat) else {
            return;
        };
        let Some(key) = Key::of_record(which, &ioctl) else {
            return;
        };
        let session = match self.files.get(ioctl.pid, ioctl.fd) {
            Some(session) => session,
            // Opened before tracing began. DRM's numbers belong to other drivers, too.
            None if ioctl.device.is_some() || ioctl.result >= 0 => {
                let session = self.session(NodeKind::Compute, 0, None);
                self.files.set(ioctl.pid, ioctl.fd, Some(session));
                session
            }
            None => return,
        };
        self.call(session, ioctl.tid, key, CallRecord::Ioctl(ioctl));
    }

    /// Adds changed memory to the ioctl of its thread, as memory that the driver wrote.
    fn data(&mut self, data: DataRecord) {
        let DataRecord { tid, memory, .. } = data;
        let size = size_of::<Memory>() + memory.bytes.len();
        self.bytes = self.bytes.saturating_add(size as u64);
        let is_before = memory.at == Moment::Entry;
        let memory = Memory {
            at: Moment::Exit,
            ..memory
        };
        if is_before {
            self.changed.entry(tid).or_default().push(memory);
            return;
        }
        if let Some(&Last::Call(session, call)) = self.last.get(&tid) {
            if let CallRecord::Ioctl(ioctl) = &mut self.recording.sessions[session].calls[call].of {
                ioctl.memory.push(memory);
            }
        }
    }

    fn call(&mut self, session: usize, tid: u32, key: Key, mut of: CallRecord) {
        let pieces = match &of {
            CallRecord::Ioctl(ioctl) => {
                let pieces = ioctl.memory.iter();
                let pieces = pieces.map(|piece| (size_of::<Memory>() + piece.bytes.len()) as u64);
                pieces.sum::<u64>() + (ioctl.input.len() + ioctl.output.len()) as u64
            }
            CallRecord::Mmap(_) => 0,
        };
        if let CallRecord::Ioctl(ioctl) = &mut of {
            // In the order of time: the driver's bytes are later. They are counted already.
            let mut memory = self.changed.remove(&tid).unwrap_or_default();
            memory.append(&mut ioctl.memory);
            ioctl.memory = memory;
        }
        // A node has a second copy of the key (`Context`).
        let size = RECORD_BYTES + 2 * key.size() + pieces;
        self.bytes = self.bytes.saturating_add(size);
        let calls = &mut self.recording.sessions[session].calls;
        let number = calls.len();
        if key.is_info() && of.errno().is_none() {
            self.recording.queries.insert(key.clone(), (session, number));
        }
        calls.push(Call { key, of, error: None });
        self.last.insert(tid, Last::Call(session, number));
    }

    /// A note of the record layer: `error KIND CAUSE`.
    fn note(&mut self, tid: u32, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        let Some((kind, cause)) = text.strip_prefix("error ").and_then(|rest| rest.split_once(' ')) else {
            return;
        };
        let Some(kind) = ErrorKind::of_name(kind) else {
            return;
        };
        self.bytes = self.bytes.saturating_add(cause.len() as u64);
        let error = Some((kind, cause.to_owned()));
        let sessions = &mut self.recording.sessions;
        match self.last.get(&tid) {
            Some(&Last::Open(session)) => {
                if let Some(failed) = &mut sessions[session].failed {
                    failed.1 = error;
                }
            }
            Some(&Last::Call(session, call)) => sessions[session].calls[call].error = error,
            None => {}
        }
    }
}

impl Loader {
    fn end(self, facts: &[(String, String)]) -> Recording {
        let mut facts = facts.iter();
        Recording {
            has_data: facts.any(|(name, value)| name == "data" && value == "1"),
            ..self.recording
        }
    }
}

impl Recording {
    /// Reads a capture in binary form. A capture that ends early, as of a killed program, is read
    /// up to there.
    ///
    /// # Errors
    /// - The reader's errors, with the offset in the file, except `Truncated`.
    /// - `TooLong`: the records need more than [`MOST_BYTES`] of memory.
    pub fn read(input: impl Read) -> Result<Self, ReadError> {
        Self::read_up_to(input, MOST_BYTES)
    }

    fn read_up_to(input: impl Read, most: u64) -> Result<Self, ReadError> {
        let mut reader = Reader::new(input)?;
        let mut loader = Loader::default();
        while let Some(event) = reader.next() {
            match event {
                Ok(event) => loader.event(event),
                Err(error) if error.kind == ReadErrorKind::Truncated => break,
                Err(error) => return Err(error),
            }
            if loader.bytes > most {
                return Err(ReadError::new(ReadErrorKind::TooLong, reader.offset()));
            }
        }
        Ok(loader.end(reader.facts()))
    }

    /// Reads a capture in text form.
    ///
    /// # Errors
    /// - The reader's errors, with the line.
    /// - `TooLong`: the records need more than [`MOST_BYTES`] of memory.
    pub fn read_text(input: impl BufRead) -> Result<Self, TextError> {
        let mut reader = text::Reader::new(input)?;
        let mut loader = Loader::default();
        let mut events = 0;
        for event in reader.by_ref() {
            loader.event(event?);
            events += 1;
            if loader.bytes > MOST_BYTES {
                return Err(TextError {
                    kind: TextErrorKind::TooLong,
                    line: events,
                    problem: format!("the first {events} events need more than {MOST_BYTES} bytes"),
                });
            }
        }
        Ok(loader.end(reader.facts()))
    }

    pub(crate) fn load(path: &Path) -> Result<Arc<Self>, LoadError> {
        let file = File::open(path).map_err(LoadError::Open)?;
        let mut file = BufReader::new(file);
        let start = file.fill_buf().map_err(LoadError::Open)?;
        let recording = match start.starts_with(text::MAGIC) {
            true => Self::read_text(file).map_err(LoadError::Text)?,
            false => Self::read(file).map_err(LoadError::Read)?,
        };
        Ok(Arc::new(recording))
    }

    /// The number of recorded opens of compute nodes and control nodes, and of calls on them.
    pub fn counts(&self) -> (usize, usize) {
        let calls = self.sessions.iter().map(|session| session.calls.len()).sum();
        (self.sessions.len(), calls)
    }
}

/// Why a capture is not a recording.
#[derive(Debug)]
pub(crate) enum LoadError {
    Open(std::io::Error),
    Read(ReadError),
    Text(TextError),
}

#[cfg(test)]
mod tests {
    use gaudi_capture::gcap::{Compression, Writer};
    use gaudi_capture::record::{FdSource, MarkRecord, ProcessRecord};
    use gaudi_uapi::cs::{HlCsArgs, HlCsChunk};
    use zerocopy::{FromZeros as _, IntoBytes as _};

    use super::*;

    const LIMIT: u64 = 1 << 20;

    fn open(fd: i64) -> Event {
        Event::Open(OpenRecord {
            time_ns: 0,
            duration_ns: 0,
            pid: 1,
            tid: 1,
            source: FdSource::Open,
            path: b"/dev/accel/accel0".to_vec(),
            flags: 0,
            device: None,
            result: fd,
        })
    }

    fn start(pid: u32) -> Event {
        let change = ProcessChange::Start {
            parent: 1,
            shares_files: false,
            name: Vec::new(),
        };
        Event::Process(ProcessRecord {
            time_ns: 0,
            pid,
            tid: pid,
            change,
        })
    }

    fn ioctl(which: Ioctl, input: Vec<u8>, memory: Vec<Memory>) -> Event {
        Event::Ioctl(IoctlRecord {
            pid: 1,
            tid: 1,
            fd: 3,
            request: gaudi_uapi::era::Era::AccelDrm
                .request(which)
                .expect("an ioctl of this era"),
            input,
            memory,
            ..IoctlRecord::default()
        })
    }

    /// Whether a capture is rejected for its length.
    fn is_too_long(events: impl IntoIterator<Item = Event>) -> bool {
        let mut writer = Writer::new(Vec::new(), &[], Compression::None).unwrap();
        for event in events {
            writer.write(&event).unwrap();
        }
        let bytes = writer.finish().unwrap();
        match Recording::read_up_to(&bytes[..], LIMIT) {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.kind, ReadErrorKind::TooLong);
                true
            }
        }
    }

    fn opened(rest: impl IntoIterator<Item = Event>) -> impl IntoIterator<Item = Event> {
        [open(3)].into_iter().chain(rest)
    }

    #[test]
    fn notes_count_towards_the_limit() {
        let note = |len: usize| {
            let text = [b"error io ".to_vec(), vec![b'x'; len]].concat();
            Event::Mark(MarkRecord {
                time_ns: 0,
                pid: 1,
                tid: 1,
                kind: MarkKind::Note,
                text,
            })
        };
        let known = ErrorKind::of_name("io").is_some();
        assert!(known, "the note names a kind");
        assert!(!is_too_long(opened((0..100).map(|_| note(16)))));
        assert!(is_too_long(opened((0..100).map(|_| note(1 << 14)))));
    }

    #[test]
    fn changed_memory_counts_towards_the_limit() {
        let data = |at: Moment, len: usize| {
            Event::Data(DataRecord {
                time_ns: 0,
                pid: 1,
                tid: 1,
                memory: Memory {
                    address: 0,
                    at,
                    bytes: vec![0; len],
                    whole: u64::MAX,
                },
            })
        };
        // Before an ioctl that may never come, and after one.
        for at in [Moment::Entry, Moment::Exit] {
            assert!(!is_too_long(opened((0..100).map(|_| data(at, 16)))));
            assert!(is_too_long(opened((0..100).map(|_| data(at, 1 << 14)))));
        }
    }

    #[test]
    fn changed_memory_joins_its_ioctl_in_order() {
        let data = |at: Moment, byte: u8| {
            Event::Data(DataRecord {
                time_ns: 0,
                pid: 1,
                tid: 1,
                memory: Memory {
                    address: 0x1000,
                    at,
                    bytes: vec![byte],
                    whole: 1,
                },
            })
        };
        let query = ioctl(Ioctl::Info, vec![0; 24], Vec::new());
        let mut loader = Loader::default();
        for event in [open(3), data(Moment::Entry, 1), query, data(Moment::Exit, 2)] {
            loader.event(event);
        }
        let CallRecord::Ioctl(record) = &loader.recording.sessions[0].calls[0].of else {
            panic!("an ioctl");
        };
        let bytes: Vec<u8> = record.memory.iter().map(|piece| piece.bytes[0]).collect();
        assert_eq!(bytes, [1, 2], "what changed before the call comes first");
        assert!(record.memory.iter().all(|piece| piece.at == Moment::Exit));
    }

    #[test]
    fn forks_count_towards_the_limit() {
        let files = || (3..1003).map(open);
        assert!(!is_too_long(files().chain((2..10).map(start))));
        assert!(is_too_long(files().chain((2..600).map(start))));
    }

    #[test]
    fn keys_and_pieces_count_towards_the_limit() {
        let chunks = vec![HlCsChunk::new_zeroed(); 512];
        let mut args = HlCsArgs::new_zeroed();
        args.0[1] = 0x1000;
        args.as_mut_bytes()[28..32].copy_from_slice(&512_u32.to_le_bytes());
        let submit = || {
            let piece = Memory {
                address: 0x1000,
                at: Moment::Entry,
                bytes: chunks.as_bytes().to_vec(),
                whole: 0,
            };
            ioctl(Ioctl::Cs, args.as_bytes().to_vec(), vec![piece])
        };
        // The bytes alone are below the limit.
        let count = LIMIT / size_of_val(&*chunks) as u64 - 2;
        assert!(is_too_long(opened((0..count).map(|_| submit()))));
        let pieces = || {
            let empty = Memory {
                address: 0,
                at: Moment::Exit,
                bytes: Vec::new(),
                whole: 0,
            };
            ioctl(Ioctl::Info, vec![0; 24], vec![empty; 1000])
        };
        assert!(is_too_long(opened((0..100).map(|_| pieces()))));
        let info = || ioctl(Ioctl::Info, vec![0; 24], Vec::new());
        assert!(!is_too_long(opened((0..100).map(|_| info()))));
    }
}
