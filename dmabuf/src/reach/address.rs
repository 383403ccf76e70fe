//! A PCI function's address as sysfs writes it.

use std::fmt;
use std::str::FromStr;

/// Domain, bus, device and function, printed as `0000:b3:00.0`.
///
/// Domains behind Intel's VMD, where NVMe disks are, begin at 0x10000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device: 5 bits.
    pub device: u8,
    /// Function: 3 bits.
    pub function: u8,
}

/// What was to be an address is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadAddress;

impl fmt::Display for BadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a PCI address; wanted the form 0000:b3:00.0")
    }
}

impl std::error::Error for BadAddress {}

impl FromStr for Address {
    type Err = BadAddress;

    /// `dddd:bb:dd.f` with four to eight digits of domain, or `bb:dd.f` in domain 0; hexadecimal.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let (place, function) = text.rsplit_once('.').ok_or(BadAddress)?;
        let (place, device) = place.rsplit_once(':').ok_or(BadAddress)?;
        let (domain, bus) = place.rsplit_once(':').unwrap_or(("0000", place));
        let hex = |part: &str, digits: std::ops::RangeInclusive<usize>, most: u32| {
            let whole = digits.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
            let value = u32::from_str_radix(part, 16).ok();
            value.filter(|&value| whole && value <= most).ok_or(BadAddress)
        };
        let byte = |part, digits, most| hex(part, digits..=digits, most).map(|value| value as u8);
        Ok(Self {
            domain: hex(domain, 4..=8, u32::MAX)?,
            bus: byte(bus, 2, 0xff)?,
            device: byte(device, 2, 0x1f)?,
            function: byte(function, 1, 7)?,
        })
    }
}

impl fmt::Display for Address {
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

impl From<gaudi_seam::PciAddress> for Address {
    fn from(address: gaudi_seam::PciAddress) -> Self {
        Self {
            domain: address.domain,
            bus: address.bus,
            device: address.device,
            function: address.function,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed_as_sysfs_does() {
        for text in ["0000:b3:00.0", "10000:e0:1f.7", "ffffffff:ff:1f.7"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("b3:00.0".parse::<Address>().unwrap().to_string(), "0000:b3:00.0");
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
            assert_eq!(wrong.parse::<Address>(), Err(BadAddress), "{wrong:?}");
        }
    }
}
