//! Rules of the driver that no case meets, and why.

/// Why no case meets a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The kernel has no memory for a small object of its own: no request can cause that.
    KernelMemory,
    /// The seam passes slices and structs, so the driver never gets a wrong address or padding.
    Typed,
    /// A signal arrives in the wait: the mock has no signals, and the kernel backend retries.
    Signal,
    /// Gaudi2 never reaches the check: an earlier check decides.
    Chip,
    /// Only a card with disabled engines (binning) meets it; the mock's card has all engines.
    Binned,
    /// The line checks an invariant of the kernel itself.
    Never,
    /// Another thread must act between two lines of the driver.
    Race,
    /// The card must be removed, fail, or be starting.
    Card,
    /// It needs a second user: a mock's device is private to a process.
    OneProcess,
    /// Only another device's driver requests it.
    Importer,
    /// The kernel must lack the flag that DRM requires of a driver: then no open succeeds.
    OpenFlag,
}

impl Why {
    /// Returns the reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::KernelMemory => "the kernel must run out of memory for its own objects",
            Self::Typed => {
                "the seam passes typed values: no wrong address of an answer and no padding can be given"
            }
            Self::Signal => {
                "a signal must arrive in the wait; the kernel backend retries (tests of `gaudi-kernel`)"
            }
            Self::Chip => "Gaudi2 never reaches this check",
            Self::Binned => "a card with engines switched off (binning); the mock's has all",
            Self::Never => "a check of an invariant of the kernel itself",
            Self::Race => "another thread must act between two lines of the driver",
            Self::Card => "the card must be removed, be started, or fail",
            Self::OneProcess => "memory of another context: one process has a mock's device at a time",
            Self::OpenFlag => "a kernel without the open flag, on which no open succeeds",
            Self::Importer => "only another device's driver requests it",
        }
    }
}

macro_rules! unmet {
    ($($why:ident [$($id:literal)*];)*) => {
        /// The reason for each rule that no case meets, by id.
        pub const UNMET: &[(&str, Why)] = &[$($(($id, Why::$why),)*)*];
    };
}

unmet! {
    KernelMemory [
        "open.file-memory"
        "open.context-memory"
        "open.control.file-memory"
        "ioctl.memory"
        "info.attestation.memory"
        "info.signed.memory"
        "buffer.create.memory"
        "submit.chunks-memory"
        "submit.memory"
        "submit.job-memory"
        "signal.numbers-memory"
        "signal.job-memory"
        "signal.reserve.memory"
        "signal.reserve.no-handle-left"
        "engines.cores.memory"
        "engines.memory"
        "wait.interrupt.memory"
        "memory.alloc.memory"
        "memory.alloc.no-handle-left"
        "memory.map.record-memory"
        "memory.map-host.memory"
        "block.mmap.memory"
        "export.memory"
    ];
    Typed [
        "ioctl.pointer"
        "info.padding"
        "info.user-mappings.pointer"
        "info.engine-error.pointer"
        "info.firmware-request.pointer"
        "buffer.operation"
        "submit.padding"
        "submit.chunks-pointer"
        "engines.cores.pointer"
        "engines.pointer"
        "wait.multi.padding"
        "memory.operation"
        "debug.input"
        "debug.output"
    ];
    Signal [
        "wait.signal"
    ];
    Chip [
        "info.event-counters"
        "buffer.create.not-mappable"
        "submit.chip-without-signals"
        "submit.queue-type"
        "submit.buffer-of-the-user"
        "submit.unknown-buffer"
        "submit.timestamp"
        "submit.parser"
        "submit.internal-queue"
        "submit.scheduled-queue-type"
        "submit.context-switch"
        "submit.flush-unsupported"
        "signal.collective.no-port"
        "engines.cores.unsupported"
        "engines.unsupported"
        "wait.multi.too-many"
        "wait.multi.pointer"
        "wait.interrupt.unsupported"
        "memory.alloc.page-size"
        "block.unsupported"
        "export.outside-the-bar"
        "export.physical-offset"
    ];
    Binned [
        "submit.binned-queue"
        "wait.interrupt.decoder-off"
    ];
    Never [
        "memory.unmap.type"
        "memory.unmap.record"
        "block.mmap.address"
    ];
    Race [
        "open.scrubbing"
        "open.last-session"
        "buffer.create.reset-since"
        "submit.failed-since"
        "wait.interrupt.address-lost"
    ];
    Card [
        "open.not-operational"
        "open.removed"
        "open.control.left-over"
        "open.control.disabled"
        "ioctl.removed"
        "info.utilization.power"
        "info.hw-error.pointer"
        "info.hw-error.room"
        "info.fw-error.pointer"
        "info.fw-error.room"
        "engines.cores.silent"
        "debug.locked"
        "mmap.removed"
    ];
    OneProcess [
        "memory.map.not-shared"
    ];
    Importer [
        "attach.peer-to-peer"
        "attach.segments"
    ];
    OpenFlag [
        "open.unsigned-offset"
    ];
}
