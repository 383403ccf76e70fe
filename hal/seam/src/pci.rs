//! [`PciAddress`]: the address of a PCI function.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Domain, bus, device and function, printed as sysfs does: `0000:b3:00.0`.
///
/// A domain has 32 bits: those behind Intel's VMD begin at 0x10000 (`10000:e1:00.0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device: 5 bits.
    pub device: u8,
    /// Function: 3 bits.
    pub function: u8,
}

/// The text is not a PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", Self::PROBLEM, Self::WANTED)]
pub struct InvalidPciAddress;

impl InvalidPciAddress {
    pub(crate) const PROBLEM: &str = "not a PCI address";
    pub(crate) const WANTED: &str = "wanted the form 0000:b3:00.0";
}

impl FromStr for PciAddress {
    type Err = InvalidPciAddress;

    /// Parses `dddd:bb:dd.f` with four to eight digits of domain, or `bb:dd.f` in domain 0;
    /// hexadecimal.
    fn from_str(text: &str) -> Result<Self, InvalidPciAddress> {
        let (slot, function) = text.rsplit_once('.').ok_or(InvalidPciAddress)?;
        let (bus, device) = slot.rsplit_once(':').ok_or(InvalidPciAddress)?;
        let (domain, bus) = bus.rsplit_once(':').unwrap_or(("0000", bus));
        let hex = |part: &str, digits: RangeInclusive<usize>, most: u64| {
            let value = gaudi_sys::parse::hexadecimal(part);
            value
                .filter(|value| digits.contains(&part.len()) && *value <= most)
                .ok_or(InvalidPciAddress)
        };
        Ok(Self {
            domain: hex(domain, 4..=8, u64::from(u32::MAX))? as u32,
            bus: hex(bus, 2..=2, 0xff)? as u8,
            device: hex(device, 2..=2, 0x1f)? as u8,
            function: hex(function, 1..=1, 7)? as u8,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_sysfs_does() {
        for text in ["0000:b3:00.0", "10000:e0:1f.7", "ffffffff:ff:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        assert_eq!(
            "b3:00.0".parse::<PciAddress>().unwrap().to_string(),
            "0000:b3:00.0"
        );
        for wrong in [
            "",
            ".",
            ":",
            "0000:b3:00",
            "0000:b3:20.0",
            "0000:b3:00.8",
            "+000:b3:00.0",
            "0000:b3:00.é",
            "123456789:00:00.0",
        ] {
            assert_eq!(wrong.parse::<PciAddress>(), Err(InvalidPciAddress), "{wrong:?}");
        }
    }
}
