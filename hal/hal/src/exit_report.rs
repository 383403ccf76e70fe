//! [`ExitReport`]: the mocks and their memory that a process has not released when it exits, for
//! `gaudi faults run -- CMD`.

#![expect(unsafe_code, reason = "atexit(3) is reachable through libc only")]

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::OnceLock;

use gaudi_mock::Ledger;
use gaudi_sys::fork::OwnerProcess;
use serde::{Deserialize, Serialize};

use crate::secure::is_secure;

/// The environment variable that names the file to which a process appends an [`ExitReport`] at
/// its exit, as one line of JSON. The file must exist.
pub const EXIT_REPORT_VARIABLE: &str = "GAUDI_MOCK_EXIT_REPORT";

/// How `/proc` names the memory files of mocks and of stand-ins for dma-bufs.
const FILES: &str = "/memfd:gaudi";
/// The memory of a tracer, which a traced process maps until its end.
const RING: &str = "/memfd:gaudi-ring";
/// Maximum number of bytes that are read from `/proc/self/maps`.
const MOST_MAPS: u64 = 64 << 20;

/// A mock that is open, or held open by an export, when its process exits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenMock {
    /// Its spec.
    pub spec: String,
    /// Allocations of device memory.
    pub allocations: usize,
    /// Bytes of device memory in them.
    pub dram_bytes: u64,
    /// Mappings of device and host memory.
    pub mappings: usize,
    /// Command buffers.
    pub command_buffers: usize,
    /// Submissions that have not completed.
    pub in_flight: usize,
    /// Whether an export exists.
    pub exported: bool,
}

/// The mocks and their memory that a process holds. All is zero or empty if it released everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitReport {
    /// The process.
    pub pid: u32,
    /// Mocks that are not closed.
    pub open: Vec<OpenMock>,
    /// Descriptors of memory of mocks and of exports.
    pub descriptors: usize,
    /// Mappings of such memory.
    pub mapped: usize,
}

impl ExitReport {
    /// Whether the process released everything.
    pub fn is_clean(&self) -> bool {
        self.open.is_empty() && self.descriptors == 0 && self.mapped == 0
    }

    fn of_process() -> Self {
        let open = gaudi_mock::list().into_iter().filter_map(|spec| {
            let ledger: Ledger = gaudi_mock::ledger(&spec)?;
            Some(OpenMock {
                spec: spec.to_string(),
                allocations: ledger.allocations,
                dram_bytes: ledger.dram_bytes,
                mappings: ledger.mappings,
                command_buffers: ledger.command_buffers,
                in_flight: ledger.in_flight,
                exported: ledger.exported,
            })
        });
        let open = open.collect();
        Self {
            pid: std::process::id(),
            open,
            descriptors: descriptors(),
            mapped: mapped(),
        }
    }
}

fn is_ours(name: &str) -> bool {
    name.starts_with(FILES) && !name.starts_with(RING)
}

/// Counts descriptors of memory files. 0 without `/proc`.
fn descriptors() -> usize {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets
        .filter(|target| is_ours(&target.to_string_lossy()))
        .count()
}

/// Counts mappings of memory files. 0 without `/proc`.
fn mapped() -> usize {
    let mut text = Vec::new();
    let read = File::open("/proc/self/maps").and_then(|file| file.take(MOST_MAPS).read_to_end(&mut text));
    if read.is_err() {
        return 0;
    }
    let text = String::from_utf8_lossy(&text);
    let names = text
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    names.filter(|name| is_ours(name)).count()
}

/// The process that registered the report; a fork child does not write it.
static OWNER: OnceLock<Option<OwnerProcess>> = OnceLock::new();

/// Registers the report with the first mock of a process, if the environment asks for one.
pub(crate) fn register() {
    OWNER.get_or_init(|| {
        if is_secure() || std::env::var_os(EXIT_REPORT_VARIABLE).is_none() {
            return None;
        }
        // SAFETY: the handler is a function without arguments that stays for the process's life.
        let registered = unsafe { nix::libc::atexit(write) };
        (registered == 0).then(OwnerProcess::current)
    });
}

extern "C" fn write() {
    let is_own = OWNER
        .get()
        .is_some_and(|owner| owner.is_some_and(|owner| !owner.is_foreign()));
    let Some(path) = std::env::var_os(EXIT_REPORT_VARIABLE).filter(|_| is_own) else {
        return;
    };
    // The process ends and cannot report a failure. Its parent then finds no report.
    let _ = append(Path::new(&path));
}

fn append(path: &Path) -> std::io::Result<()> {
    // Counted before this function opens a file of its own.
    let mut line = serde_json::to_vec(&ExitReport::of_process())?;
    line.push(b'\n');
    // A pipe without a reader must not stop the exit.
    let flags = nix::libc::O_NONBLOCK;
    let mut file = OpenOptions::new().append(true).custom_flags(flags).open(path)?;
    file.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_tracer_is_no_leak() {
        assert!(is_ours("/memfd:gaudi-mock (deleted)") && is_ours("/memfd:gaudi2-sram (deleted)"));
        assert!(!is_ours("/memfd:gaudi-ring (deleted)") && !is_ours("/dev/null"));
    }
}
