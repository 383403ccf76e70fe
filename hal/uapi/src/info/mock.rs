//! Error injection: a private operation of INFO. The mock implements it; the driver rejects it like
//! every unknown operation (`EINVAL`, habanalabs_ioctl.c:_hl_info_ioctl).

use super::InfoOp;

impl InfoOp {
    /// Injects the [`MockFault`] whose number is the argument word. The answer's word is the number
    /// of the event that the mock recorded, or 0 if it recorded none.
    pub const MOCK_FAULT: Self = Self(u32::from_be_bytes(*b"MOCK"));
}

/// An error that a mock injects on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MockFault {
    /// No error. Succeeds only on a mock.
    None,
    /// An error that the chip corrected.
    NonFatalEvent,
    /// An error for which the driver resets the chip.
    FatalEvent,
    /// The firmware does not respond.
    LossOfHeartbeat,
    /// Thermal clock throttling starts.
    ThermalEvent,
    /// Thermal clock throttling ends.
    ThermalEventEnd,
    /// A DMA engine writes to a protected register (RAZWI). The driver resets the chip.
    Razwi,
}

impl MockFault {
    /// All faults, ordered by number.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::NonFatalEvent,
        Self::FatalEvent,
        Self::LossOfHeartbeat,
        Self::ThermalEvent,
        Self::ThermalEventEnd,
        Self::Razwi,
    ];

    /// Returns the fault of an argument word; `None` if there is none of that number.
    pub fn of(word: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| *fault as u32 == word)
    }
}
