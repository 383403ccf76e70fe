//! The expected outcome of a case on a backend, if it is not to pass.

use gaudi_seam::BackendSpec;

use crate::case::{Case, Tag};

/// The expected outcome of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// The case passes.
    Pass,
    /// The backend can never run the case, for this reason.
    Unsupported(&'static str),
    /// The case is skipped until this condition holds.
    Skip(&'static str),
    /// The case fails because of this known gap. If it passes, that is a failure.
    Fail(&'static str),
}

/// Known gaps of the mock. Remove the row when the mock closes the gap.
const MOCK_GAPS: &[(&str, &str)] = &[];

/// Cases that a dma-buf of the driver can never pass.
const KERNEL_NEVER: &[(&str, &str)] = &[
    (
        "export.shows-device-memory",
        "a dma-buf of habanalabs has no mmap (common/memory.c:habanalabs_dmabuf_ops): only another device can read it",
    ),
    (
        "export.shows-the-window-asked-for",
        "a dma-buf of habanalabs has no mmap (common/memory.c:habanalabs_dmabuf_ops): only another device can read it",
    ),
    (
        "export.writes-reach-the-engine",
        "a dma-buf of habanalabs has no mmap (common/memory.c:habanalabs_dmabuf_ops): only another device can write it",
    ),
];

/// The free memory in bytes that a case needs on a machine with the driver, and the reason.
const KERNEL_MEMORY: &[(&str, u64, &str)] = &[(
    "buffer.create.no-address-left",
    5 << 30,
    "5 GiB of free memory: the driver's addresses for command buffers are 4 GiB, and it backs each (in the lab: GAUDI_LAB_MEMORY=8G)",
)];

/// Whether a case can run on a card in use elsewhere on the machine: it neither resets the card,
/// nor closes it, nor takes gigabytes of the machine's memory.
pub fn is_gentle(case: &Case) -> bool {
    let takes_memory = KERNEL_MEMORY.iter().any(|row| row.0 == case.id);
    !case.has(Tag::Lifecycle) && !case.has(Tag::Reset) && !takes_memory
}

/// Returns the available memory in bytes (proc(5), `MemAvailable`), or 0 if it cannot be read.
fn available() -> u64 {
    let table = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let row = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = row.and_then(|row| row.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Returns the expected outcome of a case on a backend.
pub fn expectation(backend: &BackendSpec, case: &Case) -> Expectation {
    let find = |table: &[(&str, &'static str)]| table.iter().find(|row| row.0 == case.id).map(|row| row.1);
    match backend {
        BackendSpec::Mock(_) => find(MOCK_GAPS).map_or(Expectation::Pass, Expectation::Fail),
        BackendSpec::Kernel(_) | BackendSpec::Map(_) => {
            if let Some(why) = find(KERNEL_NEVER) {
                return Expectation::Unsupported(why);
            }
            if let Some((_, bytes, need)) = KERNEL_MEMORY.iter().find(|row| row.0 == case.id) {
                if available() < *bytes {
                    return Expectation::Skip(need);
                }
            }
            if matches!(backend, BackendSpec::Map(_)) && case.has(Tag::Reset) {
                return Expectation::Skip(
                    "the device as kernel:N: the driver kills every process that has a card open that it resets (common/device.c:device_kill_open_processes), and the \
                     runner has others open that spec alone",
                );
            }
            Expectation::Pass
        }
        _ => Expectation::Pass,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exception_names_a_case() {
        let needs = KERNEL_MEMORY.iter().map(|(id, _, need)| (*id, *need));
        for (id, why) in MOCK_GAPS.iter().chain(KERNEL_NEVER).copied().chain(needs) {
            assert!(
                crate::cases::all().any(|case| case.id == id),
                "the table of exceptions has {id:?} ({why}), which is not a case"
            );
        }
    }
}
