//! What is expected of a case on a backend, where that is not simply to pass.

use gaudi_seam::BackendSpec;

use crate::case::{Case, Tag};

/// What a runner expects of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// To pass.
    Pass,
    /// Never to be run here, for good: why.
    Unsupported(&'static str),
    /// Not to be run here yet: what would un-skip it.
    Skip(&'static str),
    /// To fail, as a gap that is known: which. Passing is then the failure.
    Fail(&'static str),
}

/// Gaps of the mock. Serving one of them makes its case pass, and its row must go.
const MOCK_GAPS: &[(&str, &str)] = &[];

/// What a dma-buf of the driver never does.
const KERNEL_NEVER: &[(&str, &str)] = &[
    (
        "export.shows-device-memory",
        "a dma-buf of habanalabs has no mmap (common/memory.c:1851): only another device can read it",
    ),
    (
        "export.shows-the-window-asked-for",
        "a dma-buf of habanalabs has no mmap (common/memory.c:1851): only another device can read it",
    ),
    (
        "export.writes-reach-the-engine",
        "a dma-buf of habanalabs has no mmap (common/memory.c:1851): only another device can write it",
    ),
];

/// How much memory a machine with the driver must have free for a case, in bytes; and what it is for.
const KERNEL_MEMORY: &[(&str, u64, &str)] = &[(
    "buffer.create.no-address-left",
    5 << 30,
    "5 GiB of free memory: the driver's addresses for command buffers are 4 GiB, and it backs each (in the lab: GAUDI_LAB_MEMORY=8G)",
)];

/// Whether a case can run on a card in use elsewhere on the machine: it neither resets the card, nor
/// closes it, nor takes gigabytes of the machine's memory.
pub fn is_gentle(case: &Case) -> bool {
    let takes_memory = KERNEL_MEMORY.iter().any(|row| row.0 == case.id);
    !case.has(Tag::Lifecycle) && !case.has(Tag::Reset) && !takes_memory
}

/// Bytes that the machine could give (proc(5), `MemAvailable`); what cannot be read is none.
fn available() -> u64 {
    let table = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let row = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = row.and_then(|row| row.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// What is expected of a case on a backend.
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
                    "the device as kernel:N: the driver kills whoever opened a card that it resets (common/device.c:1443), and the \
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
    fn every_row_names_a_case() {
        let needs = KERNEL_MEMORY.iter().map(|(id, _, need)| (*id, *need));
        for (id, why) in MOCK_GAPS.iter().chain(KERNEL_NEVER).copied().chain(needs) {
            assert!(
                crate::cases::all().any(|case| case.id == id),
                "the table of exceptions has {id:?} ({why}), which is no case"
            );
        }
    }
}
