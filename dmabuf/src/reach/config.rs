//! PCI configuration space, as far as reachability needs it.
//!
//! Offsets and bits are those of include/uapi/linux/pci_regs.h.

/// Bytes of a conventional function (`PCI_CFG_SPACE_SIZE`).
const CONVENTIONAL: u64 = 256;
/// Bytes of a PCI Express function (`PCI_CFG_SPACE_EXP_SIZE`).
pub(super) const EXTENDED: usize = 4096;
/// Bytes that everyone may read (drivers/pci/pci-sysfs.c `pci_read_config`).
const FOR_ALL: usize = 64;

const STATUS: usize = 0x06;
/// The function has a list of capabilities (`PCI_STATUS_CAP_LIST`).
const STATUS_CAP_LIST: u16 = 0x10;
const CAPABILITY_LIST: usize = 0x34;
/// PCI Express (`PCI_CAP_ID_EXP`).
const CAP_ID_EXP: u8 = 0x10;
/// Flags of the PCI Express capability (`PCI_EXP_FLAGS`): bits 4 to 7 are the type.
const EXP_FLAGS: usize = 2;
/// Access Control Services (`PCI_EXT_CAP_ID_ACS`).
const EXT_CAP_ID_ACS: u32 = 0x0d;
const ACS_CAP: usize = 4;
const ACS_CTRL: usize = 6;
/// P2P Request Redirect (`PCI_ACS_RR`), P2P Completion Redirect (`PCI_ACS_CR`), P2P Egress Control
/// (`PCI_ACS_EC`).
const ACS_REDIRECT: u16 = 0x04 | 0x08 | 0x20;

/// Access Control Services of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acs {
    /// The function has none.
    Absent,
    /// It has, with these registers.
    Present {
        /// What it can do (`PCI_ACS_CAP`).
        capability: u16,
        /// What is switched on (`PCI_ACS_CTRL`).
        control: u16,
    },
    /// Its configuration space could not be read that far, and why.
    Unread(String),
}

impl Acs {
    /// Whether it sends peer-to-peer packets up to the root (p2pdma.c `pci_bridge_has_acs_redir`);
    /// nothing where unread.
    pub fn redirects(&self) -> Option<bool> {
        match self {
            Self::Absent => Some(false),
            Self::Present { control, .. } => Some(control & ACS_REDIRECT != 0),
            Self::Unread(_) => None,
        }
    }
}

/// The type of a PCI Express function (`PCI_EXP_FLAGS_TYPE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortType {
    /// A root port.
    RootPort,
    /// The upper port of a switch.
    Upstream,
    /// A lower port of a switch.
    Downstream,
    /// An endpoint or another type, by its number.
    Other(u8),
}

/// What was read from configuration space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Access Control Services.
    pub acs: Acs,
    /// The PCI Express type; nothing for a conventional function or where unread.
    pub port: Option<PortType>,
    /// Whether the function has the 4096 bytes of PCI Express; `None` if unknown.
    pub express: Option<bool>,
}

impl Config {
    /// Nothing could be read, and why.
    pub fn unread(why: impl Into<String>) -> Self {
        Self {
            acs: Acs::Unread(why.into()),
            port: None,
            express: None,
        }
    }

    /// Parses the bytes that were read and the size that the file reports.
    pub fn parse(bytes: &[u8], size: u64) -> Self {
        let unread = |why: String, express| Self {
            express,
            ..Self::unread(why)
        };
        if bytes.len() < FOR_ALL {
            let why = format!("config has {} bytes, wanted {FOR_ALL} at least", bytes.len());
            return unread(why, None);
        }
        if word(bytes, 0) == Some(0xffff) {
            return unread(
                "config is all ones: the function sleeps or was removed".into(),
                None,
            );
        }
        if size == CONVENTIONAL {
            let port = port_type(bytes);
            return Self {
                acs: Acs::Absent,
                port,
                express: Some(false),
            };
        }
        let express = (size >= EXTENDED as u64).then_some(true);
        if bytes.len() < EXTENDED {
            let why = format!(
                "{} of {EXTENDED} bytes of config were readable: root reads all",
                bytes.len()
            );
            return unread(why, express);
        }
        if is_padded(bytes) {
            let why =
                "config ends after 64 bytes and is padded with zeros: a copy that an ordinary user made";
            return unread(why.into(), express);
        }
        Self {
            acs: acs(bytes),
            port: port_type(bytes),
            express,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

fn double(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The first of the conventional capabilities.
fn first(bytes: &[u8]) -> Option<usize> {
    (word(bytes, STATUS)? & STATUS_CAP_LIST != 0).then_some(())?;
    let at = usize::from(bytes.get(CAPABILITY_LIST)? & !3);
    (at >= FOR_ALL).then_some(at)
}

/// Whether an archiver padded the file with zeros because it was shorter than its size in sysfs.
/// Then the capability list points to zeros only.
fn is_padded(bytes: &[u8]) -> bool {
    first(bytes).is_some_and(|_| bytes[FOR_ALL..].iter().all(|&byte| byte == 0))
}

fn port_type(bytes: &[u8]) -> Option<PortType> {
    let mut at = first(bytes)?;
    // As many as fit (drivers/pci/pci.h PCI_FIND_CAP_TTL): a loop ends.
    for _ in 0..48 {
        if *bytes.get(at)? == CAP_ID_EXP {
            return Some(match word(bytes, at + EXP_FLAGS)? >> 4 & 0xf {
                4 => PortType::RootPort,
                5 => PortType::Upstream,
                6 => PortType::Downstream,
                other => PortType::Other(other as u8),
            });
        }
        at = usize::from(bytes.get(at + 1)? & !3);
        if at < FOR_ALL {
            return None;
        }
    }
    None
}

/// drivers/pci/pci.c `pci_find_next_ext_capability`.
fn acs(bytes: &[u8]) -> Acs {
    let found = || {
        let mut at = CONVENTIONAL as usize;
        for _ in 0..(EXTENDED - CONVENTIONAL as usize) / 8 {
            let header = double(bytes, at)?;
            if header & 0xffff == EXT_CAP_ID_ACS {
                return Some(Acs::Present {
                    capability: word(bytes, at + ACS_CAP)?,
                    control: word(bytes, at + ACS_CTRL)?,
                });
            }
            at = (header >> 20 & 0xffc) as usize;
            if at < CONVENTIONAL as usize {
                return None;
            }
        }
        None
    };
    found().unwrap_or(Acs::Absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root port with ACS behind another extended capability.
    fn port(control: u16) -> Vec<u8> {
        let mut bytes = vec![0; EXTENDED];
        bytes[0x06] = 0x10;
        bytes[0x34] = 0x40;
        bytes[0x40..0x44].copy_from_slice(&[0x10, 0, 0x42, 0]);
        bytes[0x100..0x104].copy_from_slice(&0x1481_0001_u32.to_le_bytes());
        bytes[0x148..0x14c].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        bytes[0x14c] = 0x1f;
        bytes[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        bytes
    }

    #[test]
    fn each_redirecting_bit_counts_and_no_other() {
        for (control, is) in [
            (0, false),
            (0x01, false),
            (0x04, true),
            (0x08, true),
            (0x10, false),
            (0x20, true),
            (0x1d, true),
        ] {
            let config = Config::parse(&port(control), 4096);
            assert_eq!(config.acs.redirects(), Some(is), "control {control:#x}");
            assert_eq!(config.port, Some(PortType::RootPort));
        }
    }

    #[test]
    fn unread_config_is_not_absent() {
        let whole = port(0x1d);
        for (bytes, size) in [
            (&whole[..64], 4096),
            (&whole[..256], 4096),
            (&whole[..10], 256),
            (&[0xff; 4096][..], 4096),
            (&[][..], 0),
        ] {
            let config = Config::parse(bytes, size);
            assert_eq!(
                config.acs.redirects(),
                None,
                "{} of {size} bytes: {config:?}",
                bytes.len()
            );
        }
        let mut padded = whole[..64].to_vec();
        padded.resize(4096, 0);
        assert_eq!(
            Config::parse(&padded, 4096).acs.redirects(),
            None,
            "an archiver's zeros are no answer"
        );
        assert_eq!(
            Config::parse(&whole[..64], 256).acs,
            Acs::Absent,
            "a conventional function has no place for it"
        );
    }

    #[test]
    fn lists_that_run_in_circles_end() {
        let mut bytes = port(0);
        bytes[0x41] = 0x40;
        bytes[0x40] = 0x01;
        bytes[0x148..0x14c].copy_from_slice(&0x1001_0001_u32.to_le_bytes());
        let config = Config::parse(&bytes, 4096);
        assert_eq!((config.acs, config.port), (Acs::Absent, None));
    }
}
