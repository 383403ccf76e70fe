//! One direction of copies: its queue, the open submission, and the operations in flight.
//!
//! A queue executes in order, so a submission that has ended ends all operations before it.

use std::collections::VecDeque;

use gaudi_device::{
    Completion as Submitted, Deadline, Device, Direction, Error, ErrorKind, Location, Queue, Result,
};

use crate::chunk::{Chunks, Place};
use crate::completion::Completion;
use crate::config::Config;

/// Receives the bytes of a get.
pub(crate) type Unpack = Box<dyn FnOnce(&[u8]) + Send>;

/// Bytes of a chunk at least.
const CHUNK: usize = 64 << 10;

pub(crate) struct Lane {
    queue: Queue,
    chunks: Option<Chunks>,
    /// Number of the open submission. Those below are submitted.
    number: u64,
    /// Packets, chunk and used bytes of the open submission.
    packets: usize,
    chunk: Option<u32>,
    used: usize,
    in_flight: VecDeque<Submission>,
    ends: VecDeque<End>,
    outstanding: usize,
}

struct Submission {
    number: u64,
    submitted: Submitted,
    chunk: Option<u32>,
}

/// What happens when a submission has ended.
struct End {
    number: u64,
    unpack: Option<(Place, Unpack)>,
    completion: Option<Completion>,
}

impl Lane {
    pub(crate) fn new(device: &Device, direction: Direction, config: &Config) -> Result<Self> {
        Ok(Self {
            queue: device.copy_queue(direction)?,
            chunks: None,
            number: 0,
            packets: 0,
            chunk: None,
            used: 0,
            in_flight: VecDeque::with_capacity(config.outstanding),
            ends: VecDeque::with_capacity(config.outstanding * 2),
            outstanding: config.outstanding,
        })
    }

    /// Whether anything is submitted or waits to be.
    pub(crate) fn is_busy(&self) -> bool {
        self.packets > 0 || !self.in_flight.is_empty()
    }

    /// Packets of the open submission.
    pub(crate) fn open_packets(&self) -> usize {
        self.packets
    }

    /// Makes room for one submission.
    ///
    /// # Errors
    /// `WouldBlock`: as many are in flight as the configuration allows.
    #[inline]
    pub(crate) fn room(&mut self) -> Result<()> {
        if self.in_flight.len() < self.outstanding {
            return Ok(());
        }
        self.progress();
        if self.in_flight.len() < self.outstanding {
            return Ok(());
        }
        Err(Error::would_block("gaudi_cpy"))
    }

    /// Reserves bytes for the open submission. Call [`room`](Self::room) first.
    ///
    /// # Errors
    /// `WouldBlock`: no chunk is free. The error of the first allocation of the chunks.
    pub(crate) fn reserve(&mut self, device: &Device, config: &Config, len: usize) -> Result<Place> {
        if self.chunks.is_none() {
            let bytes = config
                .bcopy_bytes
                .max(config.short_bytes)
                .max(CHUNK)
                .next_multiple_of(4096);
            // One more than submissions in flight: the open one.
            self.chunks = Some(Chunks::new(device, self.outstanding + 1, bytes)?);
        }
        let Some(bytes) = self.chunks.as_ref().map(Chunks::bytes) else {
            unreachable!("the chunks were allocated");
        };
        if self.packets == 0 {
            // A pack that returned 0, or panicked, reserved bytes that no packet copies.
            self.used = 0;
        }
        if self.chunk.is_some() && self.used + len > bytes {
            self.submit()?;
            self.room()?;
        }
        let Some(chunks) = &mut self.chunks else {
            unreachable!("the chunks were allocated");
        };
        let chunk = match self.chunk {
            Some(chunk) => chunk,
            None => {
                self.used = 0;
                chunks.take().ok_or_else(|| Error::would_block("gaudi_cpy"))?
            }
        };
        self.chunk = Some(chunk);
        let place = Place {
            chunk,
            offset: self.used,
            len,
        };
        // The next bytes start on a word, so that the processor copies words.
        self.used = (self.used + len).next_multiple_of(8);
        Ok(place)
    }

    pub(crate) fn chunks(&mut self) -> &mut Chunks {
        match &mut self.chunks {
            Some(chunks) => chunks,
            None => unreachable!("`reserve` allocated the chunks"),
        }
    }

    /// Adds a copy to the open submission.
    ///
    /// # Errors
    /// As [`Queue::copy`].
    pub(crate) fn copy(&mut self, dst: Location, src: Location) -> Result<()> {
        self.queue.copy(dst, src)?;
        self.packets += 1;
        Ok(())
    }

    /// Adds copies of parts. Submits as often as the command buffer is full, and waits for room
    /// then: parts that are copied cannot be taken back.
    ///
    /// # Errors
    /// As [`Queue::copy_parts`] and [`Queue::submit`].
    pub(crate) fn copy_parts(
        &mut self,
        dst: &Location,
        src: &Location,
        mut parts: &[(u64, u64, u64)],
    ) -> Result<()> {
        while !parts.is_empty() {
            let added = self.queue.copy_parts(dst, src, parts)?;
            self.packets += added;
            parts = parts.get(added..).unwrap_or_default();
            if !parts.is_empty() {
                if self.in_flight.len() >= self.outstanding {
                    self.wait_oldest()?;
                }
                self.submit()?;
            }
        }
        Ok(())
    }

    /// Discards what was added since the last submission.
    pub(crate) fn discard(&mut self) {
        self.queue.clear();
        self.packets = 0;
        let number = self.number;
        while self.ends.back().is_some_and(|end| end.number == number) {
            self.ends.pop_back();
        }
        if let (Some(chunk), Some(chunks)) = (self.chunk.take(), &mut self.chunks) {
            chunks.give(chunk);
        }
    }

    /// Ends `completion` with the open submission.
    pub(crate) fn on_end(&mut self, completion: Option<&Completion>) {
        if let Some(completion) = completion {
            self.ends.push_back(End {
                number: self.number,
                unpack: None,
                completion: Some(completion.clone()),
            });
        }
    }

    /// Unpacks a place, and ends `completion`, with the open submission.
    pub(crate) fn unpack_on_end(&mut self, place: Place, unpack: Unpack, completion: Option<&Completion>) {
        self.ends.push_back(End {
            number: self.number,
            unpack: Some((place, unpack)),
            completion: completion.cloned(),
        });
    }

    /// Ends `completion` with everything that is in flight. Returns whether anything is.
    pub(crate) fn on_idle(&mut self, completion: &Completion) -> bool {
        let Some(newest) = self.in_flight.back() else {
            return false;
        };
        self.ends.push_back(End {
            number: newest.number,
            unpack: None,
            completion: Some(completion.clone()),
        });
        true
    }

    /// Submits what was added.
    ///
    /// # Errors
    /// As [`Queue::submit`]. The operations of the open submission have ended with the error.
    pub(crate) fn submit(&mut self) -> Result<()> {
        if self.packets == 0 {
            return Ok(());
        }
        match self.queue.submit() {
            Ok(submitted) => {
                self.push(submitted);
                Ok(())
            }
            Err(error) => {
                let number = self.number;
                self.queue.clear();
                self.packets = 0;
                if let (Some(chunk), Some(chunks)) = (self.chunk.take(), &mut self.chunks) {
                    chunks.give(chunk);
                }
                let at = self.ends.iter().position(|end| end.number == number);
                for end in self.ends.split_off(at.unwrap_or(self.ends.len())) {
                    if let Some(completion) = end.completion {
                        completion.end(Err(error.clone()));
                    }
                }
                self.number += 1;
                Err(error)
            }
        }
    }

    /// Records a submission that another owner made, which ends `completion`.
    pub(crate) fn push_other(&mut self, submitted: Submitted, completion: Option<&Completion>) {
        self.on_end(completion);
        self.push(submitted);
    }

    fn push(&mut self, submitted: Submitted) {
        self.in_flight.push_back(Submission {
            number: self.number,
            submitted,
            chunk: self.chunk.take(),
        });
        self.packets = 0;
        self.number += 1;
    }

    /// Ends the operations of submissions that have ended. Returns how many submissions.
    pub(crate) fn progress(&mut self) -> usize {
        let mut ended = 0;
        while let Some(oldest) = self.in_flight.front() {
            match oldest.submitted.poll() {
                Ok(true) => self.end_oldest(Ok(())),
                Err(error) if is_failure(&error) => self.end_oldest(Err(error)),
                // Engines may still use the chunk. The next call asks again.
                Ok(false) | Err(_) => break,
            }
            ended += 1;
        }
        ended
    }

    fn end_oldest(&mut self, result: Result<()>) {
        let Some(oldest) = self.in_flight.pop_front() else {
            return;
        };
        while self.ends.front().is_some_and(|end| end.number <= oldest.number) {
            let Some(end) = self.ends.pop_front() else {
                unreachable!("the list has a first entry");
            };
            if let (Some((place, unpack)), Some(chunks), Ok(())) = (end.unpack, &mut self.chunks, &result) {
                unpack(chunks.slice(place));
            }
            if let Some(completion) = end.completion {
                completion.end(result.clone());
            }
        }
        if let (Some(chunk), Some(chunks)) = (oldest.chunk, &mut self.chunks) {
            chunks.give(chunk);
        }
    }

    fn wait_oldest(&mut self) -> Result<()> {
        if let Some(oldest) = self.in_flight.front() {
            match oldest.submitted.wait(Deadline::NEVER) {
                Err(error) if !is_failure(&error) => return Err(error),
                answer => {
                    self.end_oldest(answer.clone());
                    answer?;
                }
            }
        }
        Ok(())
    }

    /// Submits, and waits until nothing is in flight.
    ///
    /// # Errors
    /// - `TimedOut`: the deadline passed.
    /// - The failure of a submission.
    /// - Another error of the wait: the operations stay in flight.
    pub(crate) fn drain(&mut self, deadline: Deadline) -> Result<()> {
        // A submission that fails does not end those before it.
        let submitted = self.submit();
        submitted.and(self.wait_all(deadline))
    }

    fn wait_all(&mut self, deadline: Deadline) -> Result<()> {
        let Some(newest) = self.in_flight.back() else {
            return Ok(());
        };
        // The newest ends last.
        match newest.submitted.wait(deadline) {
            Err(error) if !is_failure(&error) => Err(error),
            answer => {
                self.end_all(&answer);
                answer
            }
        }
    }

    /// Ends all that is in flight.
    pub(crate) fn end_all(&mut self, answer: &Result<()>) {
        while !self.in_flight.is_empty() {
            self.end_oldest(answer.clone());
        }
    }
}

/// Whether a submission has failed. After any other error of a wait, engines may still work on it.
fn is_failure(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Hung | ErrorKind::DeviceLost | ErrorKind::Io
    )
}
