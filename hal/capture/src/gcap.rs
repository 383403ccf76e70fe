//! The `.gcap` file (docs/src/reference/gcap.md has it byte by byte).
//!
//! - **Append-only.** A file is a head and frames. A frame has its length and a checksum, so a
//!   reader gets every event up to the last whole frame, however the writer ended.
//! - **An index at the end** ([`crate::index`]), when the writer finished. A reader in order needs
//!   none.
//! - **Compression by block.** A compressed frame holds several events, which a crash loses
//!   together.

use std::fmt;
use std::io::{self, Read, Write};

use flate2::Crc;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::bytes::{self, In, Malformed};
use crate::index;
use crate::record::Event;

/// The first bytes of a file. The bytes around the name break if a tool converts line ends.
pub const MAGIC: [u8; 8] = *b"\x89GCAP\r\n\x1a";
/// The version of the format. It increases if a reader of the old form would misread a file.
pub const VERSION: u16 = 1;
/// Bytes of a file's head.
pub const HEAD: u64 = 16;
/// Bytes in front of a frame's payload.
pub const FRAME_HEAD: u64 = 12;
/// The longest payload of a frame, and the longest event in a compressed one, in bytes.
pub const MAX_PAYLOAD: usize = 1 << 24;
/// A compressed frame is written when its events have this many bytes.
const BLOCK: usize = 1 << 18;

const FRAME_HEAD_LEN: usize = FRAME_HEAD as usize;

/// What a frame holds.
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
    /// The file could not be read; the error's source has the reason.
    Io,
    /// The file does not begin as a capture does.
    NotACapture,
    /// The file has a version of the format that this reader does not know.
    Version(u16),
    /// The file ends within a frame: the writer was killed, or still writes.
    Truncated,
    /// The checksum of a frame is wrong.
    Checksum,
    /// A frame or an event is longer than the format allows.
    TooLong,
    /// A frame's payload is not what its kind says.
    Malformed(&'static str),
}

/// A capture that cannot be read any further.
#[derive(Debug)]
pub struct ReadError {
    /// What is wrong.
    pub kind: ReadErrorKind,
    /// Where: bytes from the start of the file. In a compressed frame, the start of the frame.
    pub offset: u64,
    source: Option<io::Error>,
}

impl ReadError {
    pub(crate) fn new(kind: ReadErrorKind, offset: u64) -> Self {
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
            ReadErrorKind::NotACapture => f.write_str("not a .gcap file: it does not begin with its magic"),
            ReadErrorKind::Version(version) => write!(
                f,
                "capture of version {version}; this reader knows up to {VERSION}"
            ),
            ReadErrorKind::Truncated => write!(f, "capture, byte {offset}: the file ends within a frame"),
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

/// Whether a writer compresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// A frame for each event: a crash loses the last one at most.
    #[default]
    None,
    /// Blocks of events, each deflated (RFC 1951): a crash loses the last block at most.
    Deflate,
}

/// Writes a capture.
///
/// Every frame is one `write_all`, or a few of a file that is not buffered. A writer that is
/// dropped without [`finish`](Self::finish) leaves out the last block and the index.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    at: u64,
    compression: Compression,
    /// Frames that begin a stretch of events.
    marks: Vec<index::Entry>,
    events: u64,
    /// The payload in work: of one event, or the block.
    payload: Vec<u8>,
    /// The time of the block's first event, and how many it has.
    block: (u64, u64),
}

/// An index entry stands for about so many bytes of the file.
pub(crate) const STRETCH: u64 = 1 << 18;

impl<W: Write> Writer<W> {
    /// Writes the head and the facts: names and values about the session. The format's page lists
    /// the names that readers know.
    ///
    /// # Errors
    /// Those of `out`, and `InvalidInput` if the facts are longer than [`MAX_PAYLOAD`].
    pub fn new(out: W, facts: &[(String, String)], compression: Compression) -> io::Result<Self> {
        let mut writer = Self {
            out,
            at: 0,
            compression,
            marks: Vec::new(),
            events: 0,
            payload: Vec::new(),
            block: (0, 0),
        };
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        head.extend([0; 6]);
        writer.put(&head)?;
        writer.facts(facts)?;
        Ok(writer)
    }

    /// Appends facts, such as totals that are known at the end.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn facts(&mut self, facts: &[(String, String)]) -> io::Result<()> {
        if facts.is_empty() {
            return Ok(());
        }
        self.flush_block()?;
        bytes::put_facts(facts, &mut self.payload);
        self.frame(FrameKind::Facts)
    }

    /// Appends an event.
    ///
    /// # Errors
    /// Those of the output, and `InvalidInput` if the event is longer than [`MAX_PAYLOAD`]; the
    /// capture is then as before.
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
                // The length of the event, once it is known.
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

    /// Writes what is not written yet, so that a reader sees every event.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.flush_block()?;
        self.out.flush()
    }

    /// Writes the index and returns the output.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush_block()?;
        let at = self.at;
        index::put(&self.marks, self.events, &mut self.payload);
        self.frame(FrameKind::Index)?;
        self.put(&index::trailer(at))?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Removes an event that is too long from the payload.
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

    /// Writes the payload as a frame and empties it.
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
    let problem = format!("an event or its facts are longer than {MAX_PAYLOAD} bytes");
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

/// A frame's head: length, kind, zeros, and the checksum of these and the payload.
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

/// Reads a capture in order.
///
/// As an iterator it returns the events. The first error is the last item: `Truncated` at the end
/// of a file whose writer was killed.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// The offset of the next frame.
    at: u64,
    facts: Vec<(String, String)>,
    /// The events of a compressed frame, the frame's offset, and where the next event is.
    block: Vec<u8>,
    block_at: u64,
    block_next: usize,
    /// The first event, which was read to find the facts in front of it.
    first: Option<Result<Event, ReadError>>,
    done: bool,
    /// The frame of the event that was read last.
    event_at: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the head, and the facts in front of the first event.
    ///
    /// # Errors
    /// `Io`, `NotACapture`, `Version`, and `Truncated` if the file ends within the head.
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

    /// A reader whose input is at the frame at `offset`.
    pub(crate) fn resume(input: R, offset: u64) -> Self {
        Self {
            input,
            at: offset,
            facts: Vec::new(),
            block: Vec::new(),
            block_at: 0,
            block_next: 0,
            first: None,
            done: false,
            event_at: 0,
        }
    }

    /// The facts of the session that were read so far: from the start all that the writer knew at
    /// the beginning, and behind the last event those that it knew at the end.
    pub fn facts(&self) -> &[(String, String)] {
        &self.facts
    }

    /// The offset of the next frame: how far the file is good.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// The offset of the frame of the event that the iterator returned last.
    pub(crate) fn event_offset(&self) -> u64 {
        self.event_at
    }

    fn error(&self, kind: ReadErrorKind) -> ReadError {
        ReadError::new(kind, self.at)
    }

    /// Fills `buffer` as far as the input goes.
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

    /// The next frame; none at the end. `at` moves behind it.
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
            u32::from_le_bytes(*word.expect("the head has three words"))
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
            return Err(self.error(ReadErrorKind::Malformed("the kind of the frame is unknown")));
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
                FrameKind::Facts => self.facts.extend(bytes::facts(&payload).map_err(wrong)?),
                FrameKind::Index => {}
                FrameKind::Deflated => {
                    // An event that completes a block can be as long as the longest.
                    let most = (BLOCK + 4 + MAX_PAYLOAD) as u64;
                    let mut block = Vec::new();
                    let inflated = DeflateDecoder::new(&payload[..])
                        .take(most + 1)
                        .read_to_end(&mut block);
                    if inflated.is_err() {
                        let kind = ReadErrorKind::Malformed("the block cannot be inflated");
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

    /// The next event of the compressed frame.
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
