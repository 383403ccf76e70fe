//! The `.gcap` file format (docs/src/reference/gcap.md describes each byte).
//!
//! - **Append-only.** A file consists of a header and frames. Each frame has a length and a
//!   checksum, so a reader can read every event up to the last complete frame, even if the writer
//!   was killed.
//! - **An index at the end** ([`crate::index`]), if the writer finished. A sequential reader does
//!   not need it.
//! - **Compression by block.** A compressed frame holds several events; a crash loses all of them.

use std::fmt;
use std::io::{self, Read, Write};

use flate2::Crc;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::bytes::{self, Encoded, In, Malformed};
use crate::index;
use crate::record::Event;

/// The first bytes of a file. The bytes around the name change if a tool converts line endings.
pub const MAGIC: [u8; 8] = *b"\x89GCAP\r\n\x1a";
/// The version of the format. It increases when a reader of the old version would misread a file.
pub const VERSION: u16 = 1;
/// Length of a file's header in bytes.
pub const HEAD: u64 = 16;
/// Length of a frame's header in bytes.
pub const FRAME_HEAD: u64 = 12;
/// Maximum payload of a frame, and maximum length of an event in a compressed frame, in bytes.
pub const MAX_PAYLOAD: usize = 1 << 24;
/// A compressed frame is written when its events reach this length in bytes.
const BLOCK: usize = 1 << 18;

const FRAME_HEAD_LEN: usize = FRAME_HEAD as usize;

/// The contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Facts,
    Event,
    Deflated,
    Index,
}

impl FrameKind {
    const ALL: [Self; 4] = [Self::Facts, Self::Event, Self::Deflated, Self::Index];

    fn number(self) -> u8 {
        self as u8 + 1
    }

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// What is wrong with a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadErrorKind {
    /// The file could not be read. [`source`](std::error::Error::source) returns the cause.
    Io,
    /// The file does not start with [`MAGIC`].
    NotACapture,
    /// The file has a format version that this reader does not support.
    Version(u16),
    /// The file ends inside a frame: the writer was killed or is still writing.
    Truncated,
    /// A frame's checksum does not match.
    Checksum,
    /// A frame or an event exceeds the format's limit.
    TooLong,
    /// A frame's payload is invalid for its kind.
    Malformed(&'static str),
}

/// A capture that cannot be read past an offset.
#[derive(Debug)]
pub struct ReadError {
    /// What is wrong.
    pub kind: ReadErrorKind,
    /// The offset of the error in the file, in bytes. For a compressed frame, the start of the
    /// frame.
    pub offset: u64,
    source: Option<io::Error>,
}

impl ReadError {
    /// An error at an offset.
    pub fn new(kind: ReadErrorKind, offset: u64) -> Self {
        Self {
            kind,
            offset,
            source: None,
        }
    }

    pub(crate) fn io(error: io::Error, offset: u64) -> Self {
        Self {
            kind: ReadErrorKind::Io,
            offset,
            source: Some(error),
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = self.offset;
        match &self.kind {
            ReadErrorKind::Io => match &self.source {
                Some(error) => write!(f, "capture, byte {offset}: {error}"),
                None => write!(f, "capture, byte {offset}: the file could not be read"),
            },
            ReadErrorKind::NotACapture => f.write_str("not a .gcap file: wrong magic number"),
            ReadErrorKind::Version(version) => write!(
                f,
                "capture of version {version}; this reader knows up to {VERSION}"
            ),
            ReadErrorKind::Truncated => write!(f, "capture, byte {offset}: the file ends inside a frame"),
            ReadErrorKind::Checksum => write!(f, "capture, byte {offset}: the frame's checksum is wrong"),
            ReadErrorKind::TooLong => {
                write!(f, "capture, byte {offset}: longer than {MAX_PAYLOAD} bytes")
            }
            ReadErrorKind::Malformed(problem) => write!(f, "capture, byte {offset}: {problem}"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}

/// Whether a writer compresses events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// One frame per event: a crash loses at most the last event.
    #[default]
    None,
    /// Blocks of events, compressed with DEFLATE (RFC 1951): a crash loses at most the last block.
    Deflate,
}

/// Writes a capture.
///
/// Each frame is written with one `write_all`, or with several if the payload is written
/// separately. If the writer is dropped without [`finish`](Self::finish), the last block and the
/// index are missing.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    at: u64,
    compression: Compression,
    /// The frames at which index entries start.
    marks: Vec<index::Entry>,
    events: u64,
    /// The payload under construction: one event, or the block.
    payload: Vec<u8>,
    /// The bytes of the facts so far.
    facts_len: usize,
    /// The time of the block's first event, and the number of events in the block.
    block: (u64, u64),
}

/// Approximate number of bytes that an index entry covers.
pub(crate) const STRETCH: u64 = 1 << 18;

impl<W: Write> Writer<W> {
    /// Writes the header and the facts: names and values that describe the session.
    /// docs/src/reference/gcap.md lists the names that readers know.
    ///
    /// # Errors
    /// The errors of `out`, and `InvalidInput` if all facts of the file exceed [`MAX_PAYLOAD`].
    pub fn new(out: W, facts: &[(String, String)], compression: Compression) -> io::Result<Self> {
        let mut writer = Self {
            out,
            at: 0,
            compression,
            marks: Vec::new(),
            events: 0,
            payload: Vec::new(),
            facts_len: 0,
            block: (0, 0),
        };
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        head.extend([0; 6]);
        writer.put(&head)?;
        writer.facts(facts)?;
        Ok(writer)
    }

    /// Appends facts, such as totals that are known only at the end.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn facts(&mut self, facts: &[(String, String)]) -> io::Result<()> {
        if facts.is_empty() {
            return Ok(());
        }
        self.flush_block()?;
        bytes::put_facts(facts, &mut self.payload);
        let len = self.facts_len + self.payload.len();
        if len > MAX_PAYLOAD {
            self.payload.clear();
            return Err(too_long());
        }
        self.facts_len = len;
        self.frame(FrameKind::Facts)
    }

    /// Appends an event.
    ///
    /// # Errors
    /// The errors of the output, and `InvalidInput` if the event exceeds [`MAX_PAYLOAD`]. A
    /// rejected event leaves the capture unchanged.
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        let time_ns = event.time_ns();
        match self.compression {
            Compression::None => {
                bytes::put_event(event, &mut self.payload);
                self.check(0)?;
                self.mark(time_ns);
                self.events += 1;
                self.frame(FrameKind::Event)
            }
            Compression::Deflate => {
                let start = self.payload.len();
                // Placeholder for the event's length.
                self.payload.extend([0; 4]);
                bytes::put_event(event, &mut self.payload);
                self.check(start)?;
                let len = (self.payload.len() - start - 4) as u32;
                self.payload[start..start + 4].copy_from_slice(&len.to_le_bytes());
                if self.block.1 == 0 {
                    self.block.0 = time_ns;
                }
                self.block.1 += 1;
                if self.payload.len() >= BLOCK {
                    self.flush_block()?;
                }
                Ok(())
            }
        }
    }

    /// Appends an encoded event, as [`write`](Self::write) does with the decoded one.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_encoded(&mut self, event: &Encoded<'_>) -> io::Result<()> {
        if self.compression == Compression::Deflate {
            return self.write(&event.decode());
        }
        self.payload.extend_from_slice(event.payload());
        self.check(0)?;
        self.mark(event.time_ns);
        self.events += 1;
        self.frame(FrameKind::Event)
    }

    /// Writes all buffered events, so that a reader sees them.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.flush_block()?;
        self.out.flush()
    }

    /// Writes the index and returns the output.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush_block()?;
        let at = self.at;
        index::put(&self.marks, self.events, &mut self.payload);
        self.frame(FrameKind::Index)?;
        self.put(&index::trailer(at))?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Removes an event from the payload if it is too long.
    fn check(&mut self, start: usize) -> io::Result<()> {
        if self.payload.len() - start <= MAX_PAYLOAD {
            return Ok(());
        }
        self.payload.truncate(start);
        Err(too_long())
    }

    fn mark(&mut self, time_ns: u64) {
        let last = self.marks.last();
        if last.is_none_or(|last| self.at - last.offset >= STRETCH) {
            self.marks.push(index::Entry {
                offset: self.at,
                event: self.events,
                time_ns,
            });
        }
    }

    fn flush_block(&mut self) -> io::Result<()> {
        let (time_ns, count) = std::mem::take(&mut self.block);
        if count == 0 {
            return Ok(());
        }
        let mut deflate = DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        deflate.write_all(&self.payload)?;
        self.payload = deflate.finish()?;
        self.mark(time_ns);
        self.events += count;
        self.frame(FrameKind::Deflated)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Writes the payload as a frame and clears it.
    fn frame(&mut self, kind: FrameKind) -> io::Result<()> {
        if self.payload.len() > MAX_PAYLOAD {
            self.payload.clear();
            return Err(too_long());
        }
        let mut payload = std::mem::take(&mut self.payload);
        let done = self
            .put(&head(kind.number(), &payload))
            .and_then(|()| self.put(&payload));
        payload.clear();
        self.payload = payload;
        done
    }
}

fn too_long() -> io::Error {
    let problem = format!("an event, or all facts of a file, are longer than {MAX_PAYLOAD} bytes");
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

/// Returns a frame's header: length, kind, zeros, and the checksum of these fields and the payload.
fn head(kind: u8, payload: &[u8]) -> [u8; FRAME_HEAD_LEN] {
    let mut head = [0; FRAME_HEAD_LEN];
    head[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    head[4] = kind;
    let sum = checksum(&head[..8], payload);
    head[8..].copy_from_slice(&sum.to_le_bytes());
    head
}

fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(head);
    crc.update(payload);
    crc.sum()
}

/// Reads a capture sequentially.
///
/// The iterator returns the events. It ends with the first error, such as `Truncated` if the writer
/// was killed.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// The offset of the next frame.
    at: u64,
    facts: Vec<(String, String)>,
    /// Their bytes, of which all facts of a file have at most [`MAX_PAYLOAD`].
    facts_len: usize,
    /// The events of a compressed frame, the frame's offset, and the position of the next event.
    block: Vec<u8>,
    block_at: u64,
    block_next: usize,
    /// The first event, read ahead to find the facts before it.
    first: Option<Result<Event, ReadError>>,
    done: bool,
    /// The frame of the last event read.
    event_at: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header, and the facts before the first event.
    ///
    /// # Errors
    /// `Io`, `NotACapture`, `Version`, and `Truncated` if the file ends inside the header.
    pub fn new(input: R) -> Result<Self, ReadError> {
        let mut reader = Self::resume(input, 0);
        let mut head = [0; HEAD as usize];
        let got = reader.fill(&mut head)?;
        if got < MAGIC.len() || head[..MAGIC.len()] != MAGIC {
            return Err(ReadError::new(ReadErrorKind::NotACapture, 0));
        }
        if got < head.len() {
            return Err(ReadError::new(ReadErrorKind::Truncated, got as u64));
        }
        let version = u16::from_le_bytes([head[8], head[9]]);
        if version != VERSION {
            return Err(ReadError::new(ReadErrorKind::Version(version), 8));
        }
        reader.at = HEAD;
        reader.first = reader.event().transpose();
        reader.done = reader.first.is_none();
        Ok(reader)
    }

    /// Returns a reader whose input is positioned at the frame at `offset`.
    pub(crate) fn resume(input: R, offset: u64) -> Self {
        Self {
            input,
            at: offset,
            facts: Vec::new(),
            facts_len: 0,
            block: Vec::new(),
            block_at: 0,
            block_next: 0,
            first: None,
            done: false,
            event_at: 0,
        }
    }

    /// Returns the facts that were read so far: at first those written at the start of the session,
    /// and after the last event also those written at its end.
    pub fn facts(&self) -> &[(String, String)] {
        &self.facts
    }

    /// Returns the offset of the next frame: the file is valid up to there.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Returns the offset of the frame of the event that the iterator returned last.
    pub(crate) fn event_offset(&self) -> u64 {
        self.event_at
    }

    fn error(&self, kind: ReadErrorKind) -> ReadError {
        ReadError::new(kind, self.at)
    }

    /// Fills `buffer` until the input ends.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        let mut got = 0;
        while got < buffer.len() {
            match self.input.read(&mut buffer[got..]) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ReadError::io(error, self.at)),
            }
        }
        Ok(got)
    }

    /// Reads the next frame and advances `at`; `None` at the end.
    pub(crate) fn frame(&mut self) -> Result<Option<(FrameKind, Vec<u8>)>, ReadError> {
        let mut head = [0; FRAME_HEAD_LEN];
        match self.fill(&mut head)? {
            0 => return Ok(None),
            FRAME_HEAD_LEN => {}
            _ => return Err(self.error(ReadErrorKind::Truncated)),
        }
        if head[..8] == index::TRAILER_MAGIC {
            return Ok(None);
        }
        let [len, rest, sum] = [0, 4, 8].map(|at| {
            let word = head[at..].first_chunk();
            u32::from_le_bytes(*word.expect("the header has three words"))
        });
        let len = len as usize;
        if len > MAX_PAYLOAD {
            return Err(self.error(ReadErrorKind::TooLong));
        }
        let mut payload = Vec::new();
        let read = self.input.by_ref().take(len as u64).read_to_end(&mut payload);
        read.map_err(|error| ReadError::io(error, self.at))?;
        if payload.len() < len {
            return Err(self.error(ReadErrorKind::Truncated));
        }
        if checksum(&head[..8], &payload) != sum {
            return Err(self.error(ReadErrorKind::Checksum));
        }
        let kind = u8::try_from(rest).ok().and_then(FrameKind::of);
        let Some(kind) = kind else {
            return Err(self.error(ReadErrorKind::Malformed("unknown frame kind")));
        };
        self.at += FRAME_HEAD + len as u64;
        Ok(Some((kind, payload)))
    }

    fn event(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            if self.block_next < self.block.len() {
                return self.of_block().map(Some);
            }
            let at = self.at;
            let Some((kind, payload)) = self.frame()? else {
                return Ok(None);
            };
            let wrong = |Malformed { at: place, problem }| {
                let offset = at + FRAME_HEAD + place as u64;
                ReadError::new(ReadErrorKind::Malformed(problem), offset)
            };
            self.event_at = at;
            match kind {
                FrameKind::Event => return bytes::event(&payload).map(Some).map_err(wrong),
                FrameKind::Facts => {
                    self.facts_len += payload.len();
                    if self.facts_len > MAX_PAYLOAD {
                        return Err(ReadError::new(ReadErrorKind::TooLong, at));
                    }
                    self.facts.extend(bytes::facts(&payload).map_err(wrong)?);
                }
                FrameKind::Index => {}
                FrameKind::Deflated => {
                    // The event that completes a block may itself have the maximum length.
                    let most = (BLOCK + 4 + MAX_PAYLOAD) as u64;
                    let mut block = Vec::new();
                    let inflated = DeflateDecoder::new(&payload[..])
                        .take(most + 1)
                        .read_to_end(&mut block);
                    if inflated.is_err() {
                        let kind = ReadErrorKind::Malformed("invalid DEFLATE data");
                        return Err(ReadError::new(kind, at));
                    }
                    if block.len() as u64 > most {
                        return Err(ReadError::new(ReadErrorKind::TooLong, at));
                    }
                    (self.block, self.block_at, self.block_next) = (block, at, 0);
                }
            }
        }
    }

    /// Returns the next event of the compressed frame.
    fn of_block(&mut self) -> Result<Event, ReadError> {
        let at = self.block_at;
        let wrong = |Malformed { problem, .. }| ReadError::new(ReadErrorKind::Malformed(problem), at);
        let mut rest = In::new(&self.block[self.block_next..]);
        let payload = rest.bytes().map_err(wrong)?;
        self.block_next += 4 + payload.len();
        bytes::event(payload).map_err(wrong)
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = match self.first.take() {
            Some(first) => Some(first),
            None => self.event().transpose(),
        };
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}
