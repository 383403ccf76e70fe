//! [`RingFile`]: the rings of a tracer outside of this process, in place of a file.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use gaudi_capture::record::{DataRecord, Event, IoctlRecord, Memory, Moment};
use gaudi_ring::Session;

use super::file::Stamp;

/// The first descriptor number in records: the program's own descriptors are below it, and a tracer
/// records those as well.
const FIRST_FD: i32 = 1_000_000;
static NEXT_FD: AtomicI32 = AtomicI32::new(FIRST_FD);

/// The most bytes of changed memory in an event.
const MOST_DATA: usize = 64 << 10;

/// The tracer's library, which records the ioctls of libc.
const PRELOAD: &str = "libgaudi_trace.so";

/// The rings of the session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingFile(&'static Session);

impl RingFile {
    /// Returns the session that `value` names, unless the tracer records the node in another way:
    /// the ioctls of a node that the `driver` serves.
    pub(crate) fn open(value: &str, driver: bool) -> Option<Self> {
        let session = Session::attach(Some(value))?;
        let is_recorded = driver && is_recorded_as_ioctls(session.filter().preload, is_preloaded());
        (!is_recorded).then_some(Self(session))
    }

    pub(crate) fn next_fd() -> i32 {
        NEXT_FD.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn stamp(self) -> Stamp {
        let thread = self.0.with(|_, author| (author.pid, author.tid));
        let (pid, tid) = thread.unwrap_or_else(|| (std::process::id(), 0));
        Stamp {
            time_ns: self.0.now(),
            pid,
            tid,
        }
    }

    /// Returns the time of [`stamp`](Self::stamp).
    pub(crate) fn now(self) -> u64 {
        self.0.now()
    }

    /// Whether the tracer wants the memory that operations changed.
    pub(crate) fn has_data(self) -> bool {
        self.0.filter().data
    }

    /// Writes an event to the thread's ring. A record that does not fit is counted as lost. Changed
    /// memory of an ioctl that does not fit follows it in events of its own.
    pub(crate) fn write(self, event: &Event) {
        let bytes = gaudi_capture::encode(event);
        match event {
            Event::Ioctl(ioctl) if bytes.len() > self.0.longest() => {
                let is_input = |piece: &&Memory| piece.at == Moment::Entry;
                let memory = ioctl.memory.iter().filter(is_input).cloned().collect();
                self.put(&gaudi_capture::encode(&Event::Ioctl(IoctlRecord {
                    memory,
                    ..ioctl.clone()
                })));
                for piece in ioctl.memory.iter().filter(|piece| piece.at == Moment::Exit) {
                    self.put_data(ioctl, piece);
                }
            }
            _ => self.put(&bytes),
        }
    }

    fn put_data(self, ioctl: &IoctlRecord, piece: &Memory) {
        for (index, bytes) in piece.bytes.chunks(MOST_DATA).enumerate() {
            self.put(&gaudi_capture::encode(&Event::Data(DataRecord {
                // Later than the ioctl's end, also after the tracer has rounded both.
                time_ns: self.0.now(),
                pid: ioctl.pid,
                tid: ioctl.tid,
                memory: Memory {
                    address: piece.address.saturating_add((index * MOST_DATA) as u64),
                    at: Moment::Exit,
                    bytes: bytes.to_vec(),
                    whole: bytes.len() as u64,
                },
            })));
        }
    }

    fn put(self, bytes: &[u8]) {
        // Counted as lost if the thread has no ring.
        let _ = self.0.with(|local, _| {
            if let Some(mut reserved) = self.0.reserve(local, bytes.len()) {
                reserved.put(bytes);
                reserved.publish();
            }
        });
    }
}

/// Returns whether the tracer sees the ioctls of a driver's node: from outside, or by its library
/// in this process, which a program without the dynamic loader does not load.
fn is_recorded_as_ioctls(by_preload: bool, is_preloaded: bool) -> bool {
    !by_preload || is_preloaded
}

fn is_preloaded() -> bool {
    static LOADED: OnceLock<bool> = OnceLock::new();
    *LOADED.get_or_init(|| {
        let maps = std::fs::read_to_string("/proc/self/maps");
        maps.is_ok_and(|text| text.lines().any(|line| line.ends_with(PRELOAD)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctls_of_driver_are_recorded_once() {
        assert!(is_recorded_as_ioctls(false, false), "from outside");
        assert!(is_recorded_as_ioctls(true, true), "by the library");
        assert!(
            !is_recorded_as_ioctls(true, false),
            "a static program records itself"
        );
    }
}
