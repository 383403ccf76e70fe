//! The index of a `.gcap` file: the offsets and times of groups of consecutive events.
//!
//! A writer appends it at the end, followed by a trailer with its offset. If the writer was killed,
//! the index is rebuilt from the frames.

use std::io::{Read, Seek, SeekFrom};

use crate::bytes::In;
use crate::gcap::{FrameKind, ReadError, ReadErrorKind, Reader};

/// The first bytes of the trailer. Read as a frame's length, they exceed the limit.
pub(crate) const TRAILER_MAGIC: [u8; 8] = *b"\xffGCAPEND";
/// Length of the trailer in bytes: the magic and the offset of the index.
const TRAILER: u64 = 16;

/// A group of consecutive events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The offset of the first frame.
    pub offset: u64,
    /// The number of the first event, counted from 0.
    pub event: u64,
    /// The start time of the first event, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
}

/// The offsets of groups of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// The groups, in file order.
    pub entries: Vec<Entry>,
    /// The number of events in the file.
    pub events: u64,
    /// Whether the writer finished the file.
    pub is_finished: bool,
}

pub(crate) fn put(entries: &[Entry], events: u64, out: &mut Vec<u8>) {
    out.extend(events.to_le_bytes());
    for entry in entries {
        for number in [entry.offset, entry.event, entry.time_ns] {
            out.extend(number.to_le_bytes());
        }
    }
}

pub(crate) fn trailer(index: u64) -> [u8; TRAILER as usize] {
    let mut trailer = [0; TRAILER as usize];
    trailer[..8].copy_from_slice(&TRAILER_MAGIC);
    trailer[8..].copy_from_slice(&index.to_le_bytes());
    trailer
}

impl Index {
    /// Reads the index of a finished file. For an unfinished file, reads all complete frames
    /// instead.
    ///
    /// # Errors
    /// - `Io`, `NotACapture`, `Version`.
    /// - `Malformed`, `Checksum`: the index is invalid.
    pub fn read<F: Read + Seek>(mut file: F) -> Result<Self, ReadError> {
        match Self::at_end(&mut file)? {
            Some(index) => Ok(index),
            None => Self::rebuild(file),
        }
    }

    fn at_end<F: Read + Seek>(file: &mut F) -> Result<Option<Self>, ReadError> {
        let end = file
            .seek(SeekFrom::End(0))
            .map_err(|error| ReadError::io(error, 0))?;
        let Some(at) = end.checked_sub(TRAILER) else {
            return Ok(None);
        };
        let mut trailer = [0; TRAILER as usize];
        let read = file
            .seek(SeekFrom::Start(at))
            .and_then(|_| file.read_exact(&mut trailer));
        read.map_err(|error| ReadError::io(error, at))?;
        if trailer[..8] != TRAILER_MAGIC {
            return Ok(None);
        }
        let offset = u64::from_le_bytes(*trailer[8..].first_chunk().expect("the trailer has 16 bytes"));
        let malformed = |problem| ReadError::new(ReadErrorKind::Malformed(problem), at);
        if offset >= at {
            return Err(malformed("the trailer's offset is past the trailer"));
        }
        file.seek(SeekFrom::Start(offset))
            .map_err(|error| ReadError::io(error, offset))?;
        let Some((FrameKind::Index, payload)) = Reader::resume(file, offset).frame()? else {
            return Err(malformed("the trailer's offset is not an index frame"));
        };
        let mut input = In::new(&payload);
        let wrong = |_| ReadError::new(ReadErrorKind::Malformed("the index ends inside an entry"), offset);
        let events = input.u64().map_err(wrong)?;
        let mut entries = Vec::new();
        while !input.is_empty() {
            let mut next = || input.u64().map_err(wrong);
            let (place, event, time_ns) = (next()?, next()?, next()?);
            if place >= offset || event >= events {
                let kind = ReadErrorKind::Malformed("an index entry is past the events");
                return Err(ReadError::new(kind, offset));
            }
            entries.push(Entry {
                offset: place,
                event,
                time_ns,
            });
        }
        Ok(Some(Self {
            entries,
            events,
            is_finished: true,
        }))
    }

    fn rebuild<F: Read + Seek>(mut file: F) -> Result<Self, ReadError> {
        file.rewind().map_err(|error| ReadError::io(error, 0))?;
        let mut reader = Reader::new(std::io::BufReader::new(file))?;
        let mut index = Self {
            entries: Vec::new(),
            events: 0,
            is_finished: false,
        };
        while let Some(Ok(event)) = reader.next() {
            // One entry per group, with the size that the writer uses.
            let offset = reader.event_offset();
            let last = index.entries.last();
            if last.is_none_or(|last: &Entry| offset - last.offset >= crate::gcap::STRETCH) {
                index.entries.push(Entry {
                    offset,
                    event: index.events,
                    time_ns: event.time_ns(),
                });
            }
            index.events += 1;
        }
        Ok(index)
    }
}

/// Returns a reader that starts at an index entry.
///
/// # Errors
/// The error of the file's seek.
pub fn seek<F: Read + Seek>(mut file: F, entry: Entry) -> std::io::Result<Reader<F>> {
    file.seek(SeekFrom::Start(entry.offset))?;
    Ok(Reader::resume(file, entry.offset))
}
