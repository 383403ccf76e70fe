//! [`Target`]: the operations or events that a rule matches.

use std::fmt;

use super::piece::{Piece, Wrong};
use crate::operation::Operation;

/// The operations of the driver, or the events of a chip or a NIC, that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// `*`: every operation.
    Any,
    /// One operation.
    Only(Operation),
    /// An event of the chip.
    Chip(ChipEvent),
    /// An event of a NIC.
    Nic(NicEvent),
}

macro_rules! events {
    ($(#[$doc:meta])* $name:ident $place:literal { $($(#[$what:meta])* $variant:ident $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$what])* $variant,)*
        }

        impl $name {
            /// Every event.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in a plan.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($place, ".", $text),)*
                }
            }

            /// The event of that name.
            pub fn of_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|event| event.name() == name)
            }
        }
    };
}

events! {
    /// An event of the modelled chip.
    ChipEvent "chip" {
        /// A command processor executes a packet.
        Packet "packet",
        /// A DMA engine moves a chunk: the part of a transfer that lies in one page or mapping.
        Dma "dma",
        /// A packet or an engine writes to a sync object.
        Sob "sob",
        /// The chip raises an interrupt vector.
        Interrupt "interrupt",
        /// The MMU translates an address.
        PageWalk "walk",
        /// A command buffer completes.
        Completion "completion",
        /// The driver resets the chip.
        Reset "reset",
        /// The driver sends a packet to the firmware.
        Firmware "firmware",
    }
}

events! {
    /// An event of the software NIC.
    NicEvent "nic" {
        /// The program posts a send request, reads, writes and atomics included.
        Post "post",
        /// The NIC sends a packet: a frame of at most 256 KiB.
        Packet "packet",
        /// The NIC completes a work request.
        Completion "completion",
        /// A peer's request uses a memory region.
        Region "region",
        /// The program changes the state of a queue pair.
        State "state",
    }
}

impl Target {
    /// Whether the rule matches this operation.
    pub fn matches(self, operation: Operation) -> bool {
        match self {
            Self::Only(only) => only == operation,
            Self::Any => true,
            Self::Chip(_) | Self::Nic(_) => false,
        }
    }

    /// Whether it is an operation, or `*`.
    pub const fn is_operation(self) -> bool {
        matches!(self, Self::Any | Self::Only(_))
    }

    /// Whether it is an event of the chip.
    pub const fn is_chip(self) -> bool {
        matches!(self, Self::Chip(_))
    }

    /// Whether it is an event of a NIC.
    pub const fn is_nic(self) -> bool {
        matches!(self, Self::Nic(_))
    }

    /// Every target: `*`, the operations, the events of the chip and of the NIC.
    pub fn all() -> impl Iterator<Item = Self> {
        let operations = Operation::ALL.iter().copied().map(Self::Only);
        let chip = ChipEvent::ALL.iter().copied().map(Self::Chip);
        let nic = NicEvent::ALL.iter().copied().map(Self::Nic);
        std::iter::once(Self::Any)
            .chain(operations)
            .chain(chip)
            .chain(nic)
    }

    /// The name in a plan.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "*",
            Self::Only(operation) => operation.name(),
            Self::Chip(event) => event.name(),
            Self::Nic(event) => event.name(),
        }
    }

    pub(super) fn parse(piece: Piece<'_>) -> Result<Self, Wrong> {
        match Self::all().find(|target| target.name() == piece.text) {
            Some(target) => Ok(target),
            None => {
                let known: Vec<_> = Self::all().skip(1).map(Self::name).collect();
                piece.wrong(
                    "an unknown operation or event",
                    format!("known: {}, *", known.join(", ")),
                )
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
