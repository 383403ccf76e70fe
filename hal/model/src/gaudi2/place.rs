//! What an engine's address means.

use crate::span::Span;

/// Which side of PCI memory lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Device,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    Memory(Span<'a>, Side),
    /// A register: the offset in the configuration space.
    Register(u32),
    Doorbell,
}
