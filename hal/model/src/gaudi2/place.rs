//! The target of an engine's address.

use crate::span::Span;

/// The side of PCI on which memory lies.
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
