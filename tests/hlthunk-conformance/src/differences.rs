//! Inherent differences between the mock and the driver: the only table of exceptions.

use crate::bench::Backend;
use crate::case::Case;

/// The expected outcome of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// The case passes.
    Pass,
    /// The backend can never run the case, for this reason.
    Unsupported(&'static str),
    /// The case is skipped until this condition holds.
    Skip(&'static str),
}

use Backend::{Driver, Mock};

const NO_SHORT_FORM: &str = "a mock's bus id has domain ffff, which no card has; the short form is of domain 0 \
                             (common/sysfs.c:pci_addr_show)";

/// The case, the backend that cannot run it, and the reason: the driver's function that decides it,
/// or a property of the mock's descriptor.
const NEVER: &[(&str, Backend, &str)] = &[
    ("open.by-short-bus-id-opens-the-device", Mock, NO_SHORT_FORM),
    ("open.control.by-short-bus-id-alone-opens", Mock, NO_SHORT_FORM),
    ("open.discovery.index-from-short-bus-id", Mock, NO_SHORT_FORM),
    (
        "buffer.mmap-wrong-length-is-invalid",
        Mock,
        "a memfd can be mapped with any length; the driver rejects it (common/memory_mgr.c:hl_mem_mgr_mmap)",
    ),
    (
        "buffer.mmap-twice-is-invalid",
        Mock,
        "a memfd can be mapped twice; the driver rejects it (common/memory_mgr.c:hl_mem_mgr_mmap)",
    ),
    (
        "buffer.mmap-unknown-handle-is-invalid",
        Mock,
        "a memfd can be mapped at any offset; the driver rejects it (common/memory_mgr.c:hl_mem_mgr_mmap)",
    ),
    (
        "buffer.mmap-after-destroy-is-invalid",
        Mock,
        "a memfd can be mapped at any offset; the driver rejects it (common/memory_mgr.c:hl_mem_mgr_mmap)",
    ),
    (
        "process.fork-child-uses-inherited-device",
        Mock,
        "the mock consists of memory and threads of the process that opened it: ENODEV in a fork child",
    ),
    (
        "process.fork-child-is-refused-with-enodev",
        Driver,
        "a fork child shares the driver's open file (common/habanalabs_drv.c:hl_device_open)",
    ),
    (
        "process.opened-by-exec-child-is-busy",
        Mock,
        "each process has its own mock; the driver has one user (common/habanalabs_drv.c:hl_device_open)",
    ),
];

/// The case, which is skipped before kernel 7, and what would run it.
const FROM_7: &[(&str, &str)] = &[
    (
        "process.many-opens-and-closes",
        "kernel 7.3 or later: 30 resets of the card take minutes in a guest",
    ),
    (
        "process.kill-inside-calls-leaves-nothing",
        "kernel 7.3 or later: 12 resets of the card take minutes in a guest",
    ),
    (
        "process.reset-kills-its-user",
        "kernel 7.3 or later: a hard reset of the card takes minutes in a guest",
    ),
    (
        "interrupt.timestamp-registration-outlives-its-process",
        "kernel 7.3 or later: 6.12 frees DMA memory with interrupts off \
         (common/command_submission.c:hl_release_pending_user_interrupts)",
    ),
];

/// Cases that run only if their name is an argument, and what would run them.
const BY_NAME: &[(&str, &str)] = &[(
    "process.kill-inside-every-call-leaves-nothing",
    "the case's name as an argument of the test program: a reset of the card for each of 143 functions",
)];

/// The running kernel's major version, or 0.
pub(crate) fn major() -> u32 {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release
        .split('.')
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// Returns the expected outcome of a case on a backend.
pub(crate) fn expectation(backend: Backend, case: &Case) -> Expectation {
    if let Some(row) = NEVER.iter().find(|row| row.0 == case.id && row.1 == backend) {
        return Expectation::Unsupported(row.2);
    }
    if case.group == "c" && !crate::cases::is_compiled() {
        return Expectation::Skip("cc(1) where the tests are built");
    }
    if let Some(row) = BY_NAME.iter().find(|row| row.0 == case.id) {
        if !std::env::args().any(|argument| argument == row.0) {
            return Expectation::Skip(row.1);
        }
    }
    match FROM_7.iter().find(|row| row.0 == case.id) {
        Some((_, need)) if backend == Driver && major() < 7 => Expectation::Skip(need),
        _ => Expectation::Pass,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_names_a_case() {
        let ids = NEVER
            .iter()
            .map(|row| row.0)
            .chain(FROM_7.iter().chain(BY_NAME).map(|row| row.0));
        for id in ids {
            assert!(
                crate::cases::all().any(|case| case.id == id),
                "unknown case {id:?} in the table of differences"
            );
        }
    }
}
