//! The destination of a trace: one write for each line. Its errors are counted, not returned.

use std::fmt;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::record::{End, Record};

/// A file that takes whole lines.
///
/// Each line is one write, unbuffered: the file is complete up to the moment of a kill. A line that
/// cannot be written is counted, and the first is logged; later lines are tried again, because a
/// disk may get space.
pub(super) struct Sink(Mutex<State>);

struct State {
    session: u64,
    file: Box<dyn Write + Send>,
    operations: u64,
    lost: u64,
    /// A line was written in part: the next one begins with a newline.
    torn: bool,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}

impl Sink {
    pub(super) fn new(session: u64, file: Box<dyn Write + Send>) -> Self {
        Self(Mutex::new(State {
            session,
            file,
            operations: 0,
            lost: 0,
            torn: false,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the first line.
    pub(super) fn begin(&self, header: &Record) {
        let mut state = self.lock();
        state.write(&header.to_line());
    }

    /// Writes an operation. The lines of one thread are in order.
    pub(super) fn operation(&self, record: &Record) {
        let line = record.to_line();
        let mut state = self.lock();
        state.operations += 1;
        if !state.write(&line) {
            state.lost += 1;
        }
    }

    /// Writes the last line.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        let end = Record::End(End {
            session: state.session,
            operations: state.operations,
            lost: state.lost,
        });
        state.write(&end.to_line());
        if state.lost > 0 {
            tracing::warn!(
                lost = state.lost,
                of = state.operations,
                "the trace is not complete"
            );
        }
    }
}

impl State {
    /// Whether the whole line is in the file.
    fn write(&mut self, line: &[u8]) -> bool {
        let first_failure = self.lost == 0 && !self.torn;
        let result = match self.torn {
            true => self.file.write_all(b"\n").map(|()| self.torn = false),
            false => Ok(()),
        };
        let result = result.and_then(|()| {
            // A line counts as truncated until it is complete.
            self.torn = true;
            self.file.write_all(line)
        });
        match result {
            Ok(()) => {
                self.torn = false;
                true
            }
            Err(error) => {
                if first_failure {
                    tracing::error!(%error, "a line of the trace cannot be written; operations continue, and lost lines are counted");
                }
                false
            }
        }
    }
}
