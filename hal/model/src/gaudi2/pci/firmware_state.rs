//! The state of the firmware and of the kernel's DMA engine.

use gaudi_spec::gaudi2::packet::LinDma;

use super::sensors::Environment;

/// Ticks of the counter of time in a microsecond: the frequency that the firmware reports, MHz.
pub(crate) const TICKS_PER_US: u64 = 1000;
/// Other versions have this prefix.
pub(super) const FIRMWARE: &str = "hl-gaudi2-1.24.0-fw-61.0.2-sec-9 (gaudi-hal model)";

#[derive(Debug, Default)]
pub(super) struct Firmware {
    pub(super) boot: Boot,
    pub(super) environment: Environment,
    // Entries of the packet queue that were answered, modulo twice their number.
    pub(super) answered: u32,
    // Events sent; the next one's place and index.
    pub(super) sent: u32,
    // The driver can receive events.
    pub(super) events: bool,
    // The firmware hangs: it answers no packet.
    pub(super) hung: bool,
    // Packets were announced.
    pub(super) waits: bool,
}

/// The progress of loading.
#[derive(Debug, Default)]
pub(super) struct Boot {
    // A command was acknowledged and its end not reported.
    pub(super) pending: bool,
    pub(super) images: u32,
}

/// A transfer of the kernel's DMA engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) packet: LinDma,
    pub(super) completion: (u64, u32),
    pub(super) commit: u32,
    // Bytes that are done.
    pub(super) done: u64,
}
