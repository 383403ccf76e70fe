//! The binary encoding of events and facts: the payloads of a `.gcap` file.
//!
//! Numbers are little-endian; a byte string starts with its length as a `u32`. A serde codec
//! (bincode, postcard) was rejected: the format is documented byte by byte, and a length in a
//! hostile file must not set the size of an allocation.

use crate::record::{
    DataRecord, DeviceNumber, Event, FdSource, IoctlRecord, LostCause, MarkKind, MarkRecord, Memory,
    MmapRecord, Moment, OpenRecord, ProcessChange, ProcessRecord, WriteRecord,
};

/// A payload that does not decode to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// The position of the invalid byte in the payload.
    pub(crate) at: usize,
    pub(crate) problem: &'static str,
}

/// The first byte of an encoded event.
mod tag {
    pub(super) const IOCTL: u8 = 1;
    pub(super) const OPEN: u8 = 2;
    pub(super) const CLOSE: u8 = 3;
    pub(super) const DUP: u8 = 4;
    pub(super) const MMAP: u8 = 5;
    pub(super) const MUNMAP: u8 = 6;
    pub(super) const START: u8 = 7;
    pub(super) const EXEC: u8 = 8;
    pub(super) const EXIT: u8 = 9;
    pub(super) const LOST: u8 = 10;
    pub(super) const MARK: u8 = 11;
    pub(super) const DATA: u8 = 12;
    pub(super) const WRITE: u8 = 13;
}

const SOURCES: [FdSource; 5] = [
    FdSource::Open,
    FdSource::Inherited,
    FdSource::Received,
    FdSource::Taken,
    FdSource::Created,
];

const MARKS: [MarkKind; 4] = [
    MarkKind::Fault,
    MarkKind::DeviceLost,
    MarkKind::Reset,
    MarkKind::Note,
];

/// The destination of an encoder.
pub trait Sink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

struct Out<'a, S: ?Sized>(&'a mut S);

impl<S: Sink + ?Sized> Out<'_, S> {
    #[inline]
    fn u8(&mut self, value: u8) {
        self.0.put(&[value]);
    }

    #[inline]
    fn u32(&mut self, value: u32) {
        self.0.put(&value.to_le_bytes());
    }

    #[inline]
    fn u64(&mut self, value: u64) {
        self.0.put(&value.to_le_bytes());
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        // The writer rejects an event above its own limit, which is far below 4 GiB.
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.put(bytes);
    }

    #[inline]
    fn thread(&mut self, time_ns: u64, pid: u32, tid: u32) {
        self.u64(time_ns);
        self.u32(pid);
        self.u32(tid);
    }

    #[inline]
    fn piece(&mut self, piece: raw::Piece<'_>) {
        self.u64(piece.address);
        self.u8((piece.at == Moment::Exit).into());
        self.u64(piece.whole);
        self.bytes(piece.bytes);
    }

    #[inline]
    fn device(&mut self, device: Option<DeviceNumber>) {
        self.u8(device.is_some().into());
        if let Some(DeviceNumber { major, minor }) = device {
            self.u32(major);
            self.u32(minor);
        }
    }
}

/// Returns the index of a value in a table that contains every value.
fn place<T: PartialEq>(table: &[T], value: &T) -> u8 {
    let place = table.iter().position(|row| row == value);
    place.expect("the table contains every value") as u8
}

/// Encoders of single events. They do not allocate, so a signal handler can call them: the records
/// contain empty vectors, and the bytes of these fields are separate arguments.
pub mod raw {
    use super::{Out, SOURCES, place, tag};
    use crate::record::{IoctlRecord, MmapRecord, Moment, OpenRecord, WriteRecord};

    pub use super::Sink;

    /// The time, process and thread of an event.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Stamp {
        /// When it happened, in nanoseconds of CLOCK_MONOTONIC.
        pub time_ns: u64,
        /// The process.
        pub pid: u32,
        /// The thread.
        pub tid: u32,
    }

    /// A range of memory: the fields of [`Memory`](crate::record::Memory).
    #[derive(Clone, Copy, Debug)]
    pub struct Piece<'a> {
        /// The address in the traced process.
        pub address: u64,
        /// When the range was read.
        pub at: Moment,
        /// The length of the range in bytes.
        pub whole: u64,
        /// The bytes read.
        pub bytes: &'a [u8],
    }

    /// The maximum number of bytes of an encoded ioctl without the bytes of its vectors, for a
    /// number of pieces.
    pub const fn ioctl_overhead(pieces: usize) -> usize {
        71 + 21 * pieces
    }

    /// The number of bytes of encoded memory without its bytes.
    pub const DATA_OVERHEAD: usize = 38;

    /// Encodes an ioctl. Ignores the vectors of `ioctl`.
    #[inline]
    pub fn ioctl<'a, S: Sink + ?Sized>(
        out: &mut S,
        ioctl: &IoctlRecord,
        data: (&[u8], &[u8]),
        memory: impl ExactSizeIterator<Item = Piece<'a>>,
    ) {
        let mut out = Out(out);
        out.u8(tag::IOCTL);
        out.thread(ioctl.time_ns, ioctl.pid, ioctl.tid);
        out.u64(ioctl.duration_ns);
        out.u32(ioctl.fd as u32);
        out.device(ioctl.device);
        out.u32(ioctl.request);
        out.u64(ioctl.argument);
        out.u8(ioctl.compat.into());
        out.u64(ioctl.result as u64);
        out.bytes(data.0);
        out.bytes(data.1);
        out.u32(memory.len() as u32);
        for piece in memory {
            out.piece(piece);
        }
    }

    /// Encodes write(2). Ignores the memory of `write`.
    pub fn write<'a, S: Sink + ?Sized>(
        out: &mut S,
        write: &WriteRecord,
        memory: impl ExactSizeIterator<Item = Piece<'a>>,
    ) {
        let mut out = Out(out);
        out.u8(tag::WRITE);
        out.thread(write.time_ns, write.pid, write.tid);
        out.u64(write.duration_ns);
        out.u32(write.fd as u32);
        out.device(write.device);
        out.u64(write.result as u64);
        out.u32(memory.len() as u32);
        for piece in memory {
            out.piece(piece);
        }
    }

    /// Encodes a new descriptor. Ignores the path of `open`.
    pub fn open<S: Sink + ?Sized>(out: &mut S, open: &OpenRecord, path: &[u8]) {
        let mut out = Out(out);
        out.u8(tag::OPEN);
        out.thread(open.time_ns, open.pid, open.tid);
        out.u64(open.duration_ns);
        out.u8(place(&SOURCES, &open.source));
        out.u32(open.flags);
        out.device(open.device);
        out.u64(open.result as u64);
        out.bytes(path);
    }

    /// Encodes close(2).
    pub fn close<S: Sink + ?Sized>(out: &mut S, at: Stamp, fd: i32, result: i64) {
        number(out, tag::CLOSE, at, fd, result);
    }

    /// Encodes dup(2).
    pub fn dup<S: Sink + ?Sized>(out: &mut S, at: Stamp, fd: i32, result: i64) {
        number(out, tag::DUP, at, fd, result);
    }

    fn number<S: Sink + ?Sized>(out: &mut S, tag: u8, at: Stamp, fd: i32, result: i64) {
        let mut out = Out(out);
        out.u8(tag);
        out.thread(at.time_ns, at.pid, at.tid);
        out.u32(fd as u32);
        out.u64(result as u64);
    }

    /// Encodes mmap(2).
    pub fn mmap<S: Sink + ?Sized>(out: &mut S, mmap: &MmapRecord) {
        let mut out = Out(out);
        out.u8(tag::MMAP);
        out.thread(mmap.time_ns, mmap.pid, mmap.tid);
        out.u64(mmap.duration_ns);
        out.u64(mmap.address);
        out.u64(mmap.length);
        out.u32(mmap.protection);
        out.u32(mmap.flags);
        out.u32(mmap.fd as u32);
        out.device(mmap.device);
        out.u64(mmap.offset);
        out.u64(mmap.result as u64);
    }

    /// Encodes munmap(2) of a range: its address and length in bytes.
    pub fn munmap<S: Sink + ?Sized>(out: &mut S, at: Stamp, range: (u64, u64), result: i64) {
        let mut out = Out(out);
        out.u8(tag::MUNMAP);
        out.thread(at.time_ns, at.pid, at.tid);
        out.u64(range.0);
        out.u64(range.1);
        out.u64(result as u64);
    }

    /// Encodes changed memory.
    pub fn data<S: Sink + ?Sized>(out: &mut S, at: Stamp, piece: Piece<'_>) {
        let mut out = Out(out);
        out.u8(tag::DATA);
        out.thread(at.time_ns, at.pid, at.tid);
        out.piece(piece);
    }

    /// Encodes the start of a thread.
    pub fn start<S: Sink + ?Sized>(out: &mut S, at: Stamp, parent: u32, shares_files: bool, name: &[u8]) {
        let mut out = Out(out);
        out.u8(tag::START);
        out.thread(at.time_ns, at.pid, at.tid);
        out.u32(parent);
        out.u8(shares_files.into());
        out.bytes(name);
    }

    /// Encodes the execution of a program.
    pub fn exec<S: Sink + ?Sized>(out: &mut S, at: Stamp, path: &[u8]) {
        let mut out = Out(out);
        out.u8(tag::EXEC);
        out.thread(at.time_ns, at.pid, at.tid);
        out.bytes(path);
    }
}

/// Appends an event.
pub(crate) fn put_event(event: &Event, sink: &mut Vec<u8>) {
    let stamp = |time_ns: &u64, pid: &u32, tid: &u32| raw::Stamp {
        time_ns: *time_ns,
        pid: *pid,
        tid: *tid,
    };
    match event {
        Event::Ioctl(ioctl) => {
            let pieces = ioctl.memory.iter().map(piece_of);
            raw::ioctl(sink, ioctl, (&ioctl.input, &ioctl.output), pieces);
        }
        Event::Write(write) => raw::write(sink, write, write.memory.iter().map(piece_of)),
        Event::Open(open) => raw::open(sink, open, &open.path),
        Event::Close {
            time_ns,
            pid,
            tid,
            fd,
            result,
        } => raw::close(sink, stamp(time_ns, pid, tid), *fd, *result),
        Event::Dup {
            time_ns,
            pid,
            tid,
            fd,
            result,
        } => raw::dup(sink, stamp(time_ns, pid, tid), *fd, *result),
        Event::Mmap(mmap) => raw::mmap(sink, mmap),
        Event::Munmap {
            time_ns,
            pid,
            tid,
            address,
            length,
            result,
        } => raw::munmap(sink, stamp(time_ns, pid, tid), (*address, *length), *result),
        Event::Process(process) => {
            let at = stamp(&process.time_ns, &process.pid, &process.tid);
            match &process.change {
                ProcessChange::Start {
                    parent,
                    shares_files,
                    name,
                } => raw::start(sink, at, *parent, *shares_files, name),
                ProcessChange::Exec { path } => raw::exec(sink, at, path),
                ProcessChange::Exit { status } => {
                    let mut out = Out(sink);
                    out.u8(tag::EXIT);
                    out.thread(at.time_ns, at.pid, at.tid);
                    out.u32(*status);
                }
            }
        }
        Event::Lost {
            time_ns,
            count,
            cause,
        } => {
            let mut out = Out(sink);
            out.u8(tag::LOST);
            out.u64(*time_ns);
            out.u64(*count);
            // The first captures had no cause: its absence means that it is unknown.
            if *cause != LostCause::Unknown {
                out.u8(place(&LostCause::ALL, cause));
            }
        }
        Event::Mark(mark) => {
            let mut out = Out(sink);
            out.u8(tag::MARK);
            out.thread(mark.time_ns, mark.pid, mark.tid);
            out.u8(place(&MARKS, &mark.kind));
            out.bytes(&mark.text);
        }
        Event::Data(data) => {
            let at = stamp(&data.time_ns, &data.pid, &data.tid);
            raw::data(sink, at, piece_of(&data.memory));
        }
    }
}

fn piece_of(memory: &Memory) -> raw::Piece<'_> {
    raw::Piece {
        address: memory.address,
        at: memory.at,
        whole: memory.whole,
        bytes: &memory.bytes,
    }
}

/// Encodes an event.
pub fn encode(event: &Event) -> Vec<u8> {
    let mut payload = Vec::new();
    put_event(event, &mut payload);
    payload
}

/// An event in its encoded form.
///
/// Contains what a tracer needs to order and count events without decoding them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded<'a> {
    payload: &'a [u8],
    /// When it began, as [`Event::time_ns`].
    pub time_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// The process and thread.
    pub thread: (u32, u32),
    /// The numbers of truncated and of unreadable ranges; `None` if it is not an ioctl.
    pub ioctl: Option<(u32, u32)>,
}

impl<'a> Encoded<'a> {
    /// Checks an encoded event. Does not allocate for an ioctl.
    ///
    /// # Errors
    /// A description of the invalid field.
    pub fn new(payload: &'a [u8]) -> Result<Self, &'static str> {
        let mut input = In::new(payload);
        if payload.first() == Some(&tag::IOCTL) {
            return input.ioctl_summary().map_err(|wrong| wrong.problem);
        }
        let decoded = event(payload).map_err(|wrong| wrong.problem)?;
        let time_ns = decoded.time_ns();
        let duration_ns = match &decoded {
            Event::Open(open) => open.duration_ns,
            Event::Mmap(mmap) => mmap.duration_ns,
            Event::Write(write) => write.duration_ns,
            _ => 0,
        };
        Ok(Self {
            payload,
            time_ns,
            end_ns: time_ns.saturating_add(duration_ns),
            thread: decoded.thread().unwrap_or((0, 0)),
            ioctl: None,
        })
    }

    /// Converts the times in an encoded event in place, before it is checked.
    pub fn convert_times(payload: &mut [u8], convert: impl Fn(u64) -> u64) {
        const TIME: usize = 1;
        const DURATION: usize = TIME + 16;
        let Some(&kind) = payload.first() else {
            return;
        };
        let mut word = |at: usize, new: Option<u64>| {
            let bytes: Option<&mut [u8; 8]> = payload.get_mut(at..at + 8).and_then(|at| at.try_into().ok());
            // A payload that is too short is invalid, which the check reports.
            let bytes = bytes?;
            let old = u64::from_le_bytes(*bytes);
            if let Some(new) = new {
                *bytes = new.to_le_bytes();
            }
            Some(old)
        };
        let Some(time) = word(TIME, None) else {
            return;
        };
        let time_ns = convert(time);
        word(TIME, Some(time_ns));
        if matches!(kind, tag::IOCTL | tag::OPEN | tag::MMAP | tag::WRITE) {
            if let Some(duration) = word(DURATION, None) {
                let end_ns = convert(time.saturating_add(duration));
                word(DURATION, Some(end_ns.saturating_sub(time_ns)));
            }
        }
    }

    /// Returns the same event without its payload, to be [bound](Self::bind) to it later.
    pub fn unbound(self) -> Encoded<'static> {
        Encoded { payload: &[], ..self }
    }

    /// Returns the event with its payload: the one that was checked.
    pub fn bind(self, payload: &[u8]) -> Encoded<'_> {
        Encoded { payload, ..self }
    }

    /// Returns the payload of a `.gcap` frame.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the bytes of changed memory that the event lacks.
    pub fn missing_data(&self) -> u64 {
        match self.payload.first() {
            Some(&tag::DATA) => match self.decode() {
                Event::Data(DataRecord { memory, .. }) => {
                    memory.whole.saturating_sub(memory.bytes.len() as u64)
                }
                _ => 0,
            },
            _ => 0,
        }
    }

    /// Decodes the event.
    pub fn decode(&self) -> Event {
        event(self.payload).expect("the payload was checked")
    }
}

/// Appends facts.
pub(crate) fn put_facts(facts: &[(String, String)], out: &mut Vec<u8>) {
    let mut out = Out(out);
    for (name, value) in facts {
        out.bytes(name.as_bytes());
        out.bytes(value.as_bytes());
    }
}

pub(crate) struct In<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> In<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn wrong(&self, problem: &'static str) -> Malformed {
        Malformed { at: self.at, problem }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let rest = &self.bytes[self.at..];
        let taken = rest
            .get(..len)
            .ok_or_else(|| self.wrong("the payload ends inside a field"))?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let taken = self.take(N)?;
        Ok(*taken.first_chunk().expect("N bytes were taken"))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn bool(&mut self) -> Result<bool, Malformed> {
        let at = self.at;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed {
                at,
                problem: "a boolean is neither 0 nor 1",
            }),
        }
    }

    fn row<T: Copy>(&mut self, table: &[T]) -> Result<T, Malformed> {
        let at = self.at;
        let place = usize::from(self.u8()?);
        table.get(place).copied().ok_or(Malformed {
            at,
            problem: "unknown enumeration value",
        })
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    fn owned(&mut self) -> Result<Vec<u8>, Malformed> {
        self.bytes().map(<[u8]>::to_vec)
    }

    fn device(&mut self) -> Result<Option<DeviceNumber>, Malformed> {
        if !self.bool()? {
            return Ok(None);
        }
        let (major, minor) = (self.u32()?, self.u32()?);
        Ok(Some(DeviceNumber { major, minor }))
    }

    fn fd(&mut self) -> Result<i32, Malformed> {
        self.u32().map(|fd| fd as i32)
    }

    fn result(&mut self) -> Result<i64, Malformed> {
        self.u64().map(|result| result as i64)
    }

    /// Reads an ioctl without its bytes.
    fn ioctl_summary(&mut self) -> Result<Encoded<'a>, Malformed> {
        self.u8()?;
        let time_ns = self.u64()?;
        let thread = (self.u32()?, self.u32()?);
        let duration_ns = self.u64()?;
        self.fd()?;
        self.device()?;
        let request = self.u32()?;
        self.u64()?;
        self.bool()?;
        self.result()?;
        let input = self.bytes()?.len();
        self.bytes()?;
        let size = gaudi_uapi::ioctl::Parts::of(request).size;
        let (mut cut, mut unreadable) = (0, 0);
        match input {
            0 if size > 0 => unreadable += 1,
            read if read < size => cut += 1,
            _ => {}
        }
        for _ in 0..self.u32()? {
            self.u64()?;
            self.row(&[Moment::Entry, Moment::Exit])?;
            let whole = self.u64()?;
            match self.bytes()?.len() as u64 {
                0 => unreadable += 1,
                read if read < whole => cut += 1,
                _ => {}
            }
        }
        if !self.is_empty() {
            return Err(self.wrong("trailing bytes after the event"));
        }
        Ok(Encoded {
            payload: self.bytes,
            time_ns,
            end_ns: time_ns.saturating_add(duration_ns),
            thread,
            ioctl: Some((cut, unreadable)),
        })
    }

    pub(crate) fn event(&mut self) -> Result<Event, Malformed> {
        let at = self.at;
        let number = self.u8()?;
        let time_ns = self.u64()?;
        if number == tag::LOST {
            let count = self.u64()?;
            let cause = match self.is_empty() {
                true => LostCause::Unknown,
                // An explicit "unknown" would not be written back as it was.
                false => match self.row(&LostCause::ALL)? {
                    LostCause::Unknown => return Err(self.wrong("a cause of 0")),
                    cause => cause,
                },
            };
            return Ok(Event::Lost {
                time_ns,
                count,
                cause,
            });
        }
        let (pid, tid) = (self.u32()?, self.u32()?);
        let process = |change| {
            Event::Process(ProcessRecord {
                time_ns,
                pid,
                tid,
                change,
            })
        };
        Ok(match number {
            tag::IOCTL => Event::Ioctl(IoctlRecord {
                time_ns,
                pid,
                tid,
                duration_ns: self.u64()?,
                fd: self.fd()?,
                device: self.device()?,
                request: self.u32()?,
                argument: self.u64()?,
                compat: self.bool()?,
                result: self.result()?,
                input: self.owned()?,
                output: self.owned()?,
                memory: self.memory()?,
            }),
            tag::WRITE => Event::Write(WriteRecord {
                time_ns,
                pid,
                tid,
                duration_ns: self.u64()?,
                fd: self.fd()?,
                device: self.device()?,
                result: self.result()?,
                memory: self.memory()?,
            }),
            tag::OPEN => Event::Open(OpenRecord {
                time_ns,
                pid,
                tid,
                duration_ns: self.u64()?,
                source: self.row(&SOURCES)?,
                flags: self.u32()?,
                device: self.device()?,
                result: self.result()?,
                path: self.owned()?,
            }),
            tag::CLOSE => Event::Close {
                time_ns,
                pid,
                tid,
                fd: self.fd()?,
                result: self.result()?,
            },
            tag::DUP => Event::Dup {
                time_ns,
                pid,
                tid,
                fd: self.fd()?,
                result: self.result()?,
            },
            tag::MMAP => Event::Mmap(MmapRecord {
                time_ns,
                pid,
                tid,
                duration_ns: self.u64()?,
                address: self.u64()?,
                length: self.u64()?,
                protection: self.u32()?,
                flags: self.u32()?,
                fd: self.fd()?,
                device: self.device()?,
                offset: self.u64()?,
                result: self.result()?,
            }),
            tag::MUNMAP => Event::Munmap {
                time_ns,
                pid,
                tid,
                address: self.u64()?,
                length: self.u64()?,
                result: self.result()?,
            },
            tag::START => process(ProcessChange::Start {
                parent: self.u32()?,
                shares_files: self.bool()?,
                name: self.owned()?,
            }),
            tag::EXEC => process(ProcessChange::Exec { path: self.owned()? }),
            tag::EXIT => process(ProcessChange::Exit { status: self.u32()? }),
            tag::MARK => Event::Mark(MarkRecord {
                time_ns,
                pid,
                tid,
                kind: self.row(&MARKS)?,
                text: self.owned()?,
            }),
            tag::DATA => Event::Data(DataRecord {
                time_ns,
                pid,
                tid,
                memory: self.piece()?,
            }),
            _ => {
                let problem = "unknown event tag";
                return Err(Malformed { at, problem });
            }
        })
    }

    fn memory(&mut self) -> Result<Vec<Memory>, Malformed> {
        let count = self.u32()?;
        // Do not reserve memory for `count`, which is untrusted.
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.piece()?);
        }
        Ok(all)
    }

    fn piece(&mut self) -> Result<Memory, Malformed> {
        Ok(Memory {
            address: self.u64()?,
            at: self.row(&[Moment::Entry, Moment::Exit])?,
            whole: self.u64()?,
            bytes: self.owned()?,
        })
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let at = self.at;
        let bytes = self.owned()?;
        String::from_utf8(bytes).map_err(|_| Malformed {
            at,
            problem: "a fact is not UTF-8",
        })
    }
}

/// Reads a payload that contains exactly one event.
pub(crate) fn event(payload: &[u8]) -> Result<Event, Malformed> {
    let mut input = In::new(payload);
    let event = input.event()?;
    match input.is_empty() {
        true => Ok(event),
        false => Err(input.wrong("trailing bytes after the event")),
    }
}

/// Reads the facts in a payload.
pub(crate) fn facts(payload: &[u8]) -> Result<Vec<(String, String)>, Malformed> {
    let mut input = In::new(payload);
    let mut facts = Vec::new();
    while !input.is_empty() {
        facts.push((input.text()?, input.text()?));
    }
    Ok(facts)
}
