//! [`RecordFile`]: the capture that the nodes of this process write.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gaudi_capture::gcap::{Compression, MAGIC, Writer};
use gaudi_capture::record::{Event, LostCause};
use gaudi_seam::{Error, ErrorKind, Node, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::{clock, lock};

use super::ring::RingFile;
use crate::file::{Form, LayerFile};

const FORM: Form = Form {
    noun: "capture",
    check: |mut file: &File| {
        let mut head = [0; MAGIC.len()];
        match file.read(&mut head) {
            Ok(0) => Ok(()),
            Ok(_) if head == MAGIC => Ok(()),
            Ok(_) => Err("it does not start like a .gcap file".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    },
};

/// The first descriptor number in records: none of standard input, output and error.
const FIRST_FD: i32 = 3;

/// A capture, shared by the nodes of this process that name it.
#[derive(Debug, Clone)]
pub(crate) enum RecordFile {
    /// In a file.
    File(Arc<Shared>),
    /// In the rings of a tracer.
    Ring(RingFile),
}

/// A capture in a file.
#[derive(Debug)]
pub(crate) struct Shared {
    writer: Mutex<Writer<BufWriter<LayerFile>>>,
    path: PathBuf,
    has_data: bool,
    is_named: AtomicBool,
    next_fd: AtomicI32,
    /// Events that could not be written since the last one that was.
    lost: AtomicU64,
    /// Bytes of changed memory that did not fit in their record.
    cut: AtomicU64,
    owner: OwnerProcess,
}

/// The captures of this process. They stay open until the process ends, so that a node that is
/// opened later continues the capture: a capture is one session.
static OPEN: Mutex<BTreeMap<PathBuf, Arc<Shared>>> = Mutex::new(BTreeMap::new());

/// The time, process and thread of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) time_ns: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
}

impl RecordFile {
    /// Opens the capture that the argument of `+record` names: `FILE`, or `FILE,data`.
    ///
    /// # Errors
    /// Those of [`LayerFile::open`], and `InvalidInput` if this process records to the file with
    /// another option.
    pub(crate) fn open(argument: &str) -> Result<Self> {
        let (path, has_data) = match argument.strip_suffix(",data") {
            Some(path) => (path, true),
            None => (argument, false),
        };
        let path = Path::new(path);
        let file = LayerFile::open(path, &FORM)?;
        let failed = |error: std::io::Error| {
            let cause = format!("the capture file {} cannot be written", path.display());
            crate::file_error::failed(&error, cause)
        };
        let whole = std::fs::canonicalize(path).map_err(failed)?;
        let mut open = lock(&OPEN);
        if let Some(known) = open.get(&whole).filter(|known| !known.owner.is_foreign()) {
            if known.has_data != has_data {
                return Err(Error::new(ErrorKind::InvalidInput, "open")
                    .because(format!(
                        "this process records to {} already, with another option",
                        path.display()
                    ))
                    .helped_by("write the same +record for every device"));
            }
            return Ok(Self::File(Arc::clone(known)));
        }
        let fact = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let program = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let facts = [
            fact("program", &program.collect::<Vec<_>>().join(" ")),
            fact("tier", "layer"),
            fact("data", if has_data { "1" } else { "0" }),
            fact("by", concat!("gaudi-layers ", env!("CARGO_PKG_VERSION"))),
        ];
        let writer = Writer::new(BufWriter::new(file), &facts, Compression::None).map_err(failed)?;
        let shared = Arc::new(Shared {
            writer: Mutex::new(writer),
            path: whole.clone(),
            has_data,
            is_named: AtomicBool::new(false),
            next_fd: AtomicI32::new(FIRST_FD),
            lost: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            owner: OwnerProcess::current(),
        });
        open.insert(whole, Arc::clone(&shared));
        Ok(Self::File(shared))
    }

    pub(crate) fn has_data(&self) -> bool {
        match self {
            Self::File(file) => file.has_data,
            Self::Ring(rings) => rings.has_data(),
        }
    }

    /// Returns a descriptor number that no other node of the capture has.
    pub(crate) fn next_fd(&self) -> i32 {
        match self {
            Self::File(file) => file.next_fd.fetch_add(1, Ordering::Relaxed),
            Self::Ring(_) => RingFile::next_fd(),
        }
    }

    /// Writes the name of the first device as a fact, which a tracer's rings have no place for.
    pub(crate) fn name_device(&self, node: &Node) {
        let Self::File(file) = self else {
            return;
        };
        if !file.is_named.swap(true, Ordering::Relaxed) {
            let facts = [("device".to_owned(), node.name.clone())];
            // A file that cannot be written is reported at the next event.
            let _ = lock(&file.writer).facts(&facts);
        }
    }

    /// Returns the time, which is that of [`stamp`](Self::stamp).
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::File(_) => clock::monotonic_ns(),
            Self::Ring(ring) => ring.now(),
        }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        if let Self::Ring(ring) = self {
            return ring.stamp();
        }
        Stamp {
            time_ns: clock::monotonic_ns(),
            pid: std::process::id(),
            // A thread id is positive.
            tid: u32::try_from(nix::unistd::gettid().as_raw()).unwrap_or(0),
        }
    }

    /// Appends an event. Each event reaches the file, so that a crash loses none that has ended.
    pub(crate) fn write(&self, event: &Event) {
        let file = match self {
            Self::File(file) => file,
            Self::Ring(ring) => return ring.write(event),
        };
        let mut writer = lock(&file.writer);
        let lost = file.lost.load(Ordering::Relaxed);
        if lost > 0 {
            let time_ns = event.time_ns();
            let written = writer.write(&Event::Lost {
                time_ns,
                count: lost,
                cause: LostCause::Unknown,
            });
            if written.is_ok() {
                file.lost.store(0, Ordering::Relaxed);
            }
        }
        if let Err(error) = writer.write(event).and_then(|()| writer.flush()) {
            if file.lost.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(%error, "events are lost: cannot write the capture {}", file.path.display());
            }
        }
    }

    /// Counts changed memory that did not fit in its record.
    pub(crate) fn count_cut(&self, bytes: u64) {
        let Self::File(file) = self else {
            return;
        };
        if bytes > 0 && file.cut.fetch_add(bytes, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "the capture {} lacks changed memory: an operation changed more than {} bytes",
                file.path.display(),
                super::memory::MOST,
            );
        }
    }
}
