//! Errors on purpose: a private operation of INFO. A mock serves it; a driver refuses it as it
//! refuses every unknown operation (`EINVAL`, habanalabs_ioctl.c `_hl_info_ioctl`).

use super::InfoOp;

impl InfoOp {
    /// Injects the [`MockFault`] whose number is the argument word. The word of the answer is the
    /// number of the event that the mock counted; 0 if it counted none.
    pub const MOCK_FAULT: Self = Self(u32::from_be_bytes(*b"MOCK"));
}

/// An error that a mock makes on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MockFault {
    /// No error: shows that the node is a mock's.
    None,
    /// An error that the chip corrected.
    NonFatalEvent,
    /// An error for which the driver resets the chip.
    FatalEvent,
    /// The firmware does not answer.
    LossOfHeartbeat,
    /// The chip throttles its clocks because of the temperature.
    ThermalEvent,
    /// It no longer does.
    ThermalEventEnd,
}

impl MockFault {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::NonFatalEvent,
        Self::FatalEvent,
        Self::LossOfHeartbeat,
        Self::ThermalEvent,
        Self::ThermalEventEnd,
    ];

    /// Returns the fault of an argument word; `None` if there is none of that number.
    pub fn of(word: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| *fault as u32 == word)
    }
}
