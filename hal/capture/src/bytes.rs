//! The binary encoding of events and facts: the payloads of a `.gcap` file.
//!
//! Numbers are little-endian; a byte string starts with its length as a `u32`. A serde codec
//! (bincode, postcard) was rejected: the format is documented byte by byte, and a length in a
//! hostile file must not set the size of an allocation.

use crate::record::{
    DeviceNumber, Event, FdSource, IoctlRecord, MarkKind, MarkRecord, Memory, MmapRecord, Moment, OpenRecord,
    ProcessChange, ProcessRecord,
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

struct Out<'a>(&'a mut Vec<u8>);

impl Out<'_> {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        // The writer rejects an event above its own limit, which is far below 4 GiB.
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend(bytes);
    }

    fn thread(&mut self, time_ns: u64, pid: u32, tid: u32) {
        self.u64(time_ns);
        self.u32(pid);
        self.u32(tid);
    }

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

/// Appends an event.
pub(crate) fn put_event(event: &Event, out: &mut Vec<u8>) {
    let mut out = Out(out);
    match event {
        Event::Ioctl(ioctl) => {
            out.u8(tag::IOCTL);
            out.thread(ioctl.time_ns, ioctl.pid, ioctl.tid);
            out.u64(ioctl.duration_ns);
            out.u32(ioctl.fd as u32);
            out.device(ioctl.device);
            out.u32(ioctl.request);
            out.u64(ioctl.argument);
            out.u8(ioctl.compat.into());
            out.u64(ioctl.result as u64);
            out.bytes(&ioctl.input);
            out.bytes(&ioctl.output);
            out.u32(ioctl.memory.len() as u32);
            for memory in &ioctl.memory {
                out.u64(memory.address);
                out.u8((memory.at == Moment::Exit).into());
                out.u64(memory.whole);
                out.bytes(&memory.bytes);
            }
        }
        Event::Open(open) => {
            out.u8(tag::OPEN);
            out.thread(open.time_ns, open.pid, open.tid);
            out.u64(open.duration_ns);
            out.u8(place(&SOURCES, &open.source));
            out.u32(open.flags);
            out.device(open.device);
            out.u64(open.result as u64);
            out.bytes(&open.path);
        }
        Event::Close {
            time_ns,
            pid,
            tid,
            fd,
            result,
        } => {
            out.u8(tag::CLOSE);
            out.thread(*time_ns, *pid, *tid);
            out.u32(*fd as u32);
            out.u64(*result as u64);
        }
        Event::Dup {
            time_ns,
            pid,
            tid,
            fd,
            result,
        } => {
            out.u8(tag::DUP);
            out.thread(*time_ns, *pid, *tid);
            out.u32(*fd as u32);
            out.u64(*result as u64);
        }
        Event::Mmap(mmap) => {
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
        Event::Munmap {
            time_ns,
            pid,
            tid,
            address,
            length,
            result,
        } => {
            out.u8(tag::MUNMAP);
            out.thread(*time_ns, *pid, *tid);
            out.u64(*address);
            out.u64(*length);
            out.u64(*result as u64);
        }
        Event::Process(process) => {
            let mut head = |number| {
                out.u8(number);
                out.thread(process.time_ns, process.pid, process.tid);
            };
            match &process.change {
                ProcessChange::Start {
                    parent,
                    shares_files,
                    name,
                } => {
                    head(tag::START);
                    out.u32(*parent);
                    out.u8((*shares_files).into());
                    out.bytes(name);
                }
                ProcessChange::Exec { path } => {
                    head(tag::EXEC);
                    out.bytes(path);
                }
                ProcessChange::Exit { status } => {
                    head(tag::EXIT);
                    out.u32(*status);
                }
            }
        }
        Event::Lost { time_ns, count } => {
            out.u8(tag::LOST);
            out.u64(*time_ns);
            out.u64(*count);
        }
        Event::Mark(mark) => {
            out.u8(tag::MARK);
            out.thread(mark.time_ns, mark.pid, mark.tid);
            out.u8(place(&MARKS, &mark.kind));
            out.bytes(&mark.text);
        }
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

    pub(crate) fn event(&mut self) -> Result<Event, Malformed> {
        let at = self.at;
        let number = self.u8()?;
        let time_ns = self.u64()?;
        if number == tag::LOST {
            let count = self.u64()?;
            return Ok(Event::Lost { time_ns, count });
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
            let address = self.u64()?;
            let at = self.row(&[Moment::Entry, Moment::Exit])?;
            let whole = self.u64()?;
            let bytes = self.owned()?;
            all.push(Memory {
                address,
                at,
                bytes,
                whole,
            });
        }
        Ok(all)
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
