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

/// What a machine with the driver must have for a case.
const KERNEL_NEEDS: &[(&str, &str)] = &[(
    "buffer.create.no-address-left",
    "5 GiB of memory for the driver: its addresses for command buffers are 4 GiB, and each is backed",
)];

/// What is expected of a case on a backend.
pub fn expectation(backend: &BackendSpec, case: &Case) -> Expectation {
    let find = |table: &[(&str, &'static str)]| table.iter().find(|row| row.0 == case.id).map(|row| row.1);
    match backend {
        BackendSpec::Mock(_) => find(MOCK_GAPS).map_or(Expectation::Pass, Expectation::Fail),
        BackendSpec::Kernel(_) | BackendSpec::Map(_) => {
            if let Some(why) = find(KERNEL_NEVER) {
                return Expectation::Unsupported(why);
            }
            if let Some(need) = find(KERNEL_NEEDS) {
                return Expectation::Skip(need);
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
        for (id, why) in MOCK_GAPS.iter().chain(KERNEL_NEVER) {
            assert!(
                crate::cases::all().any(|case| case.id == *id),
                "the table of exceptions has {id:?} ({why}), which is no case"
            );
        }
    }
}
