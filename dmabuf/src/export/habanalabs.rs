//! Exports a Gaudi's memory. The driver's rules, which differ by chip, are checked first.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;

use gaudi_seam::{DeviceVa, Errno, Error, ErrorKind, ExportRequest, KernelIo, KernelIoExt as _, Result};
use gaudi_sys::PAGE;
use gaudi_uapi::info::HlInfoHwIpInfo;
use nix::fcntl::OFlag;

use super::check_pages;
use crate::buffer::DmaBuf;

const OPERATION: &str = "HL_MEM_OP_EXPORT_DMABUF_FD";

/// PCI device numbers of the chip whose device memory has no virtual addresses (habanalabs_drv.c `PCI_IDS_GAUDI`, `_GAUDI_SEC`).
const GAUDI: [u32; 2] = [0x1000, 0x1010];

/// A part of one device memory mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Export {
    /// The address that `HL_MEM_OP_MAP` returned: the start of the mapping.
    pub mapping: DeviceVa,
    /// Bytes of the mapping; a multiple of the device page, so mostly more than was asked for.
    pub mapping_len: u64,
    /// First byte, from the start of the mapping; a multiple of 4096.
    pub offset: u64,
    /// Bytes; a multiple of 4096, not 0.
    pub len: u64,
}

/// What a driver exports, and how a request names it. If a driver exports only whole mappings, exporting a part fails with `Unsupported`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// A part of a mapping, by the mapping's address and an offset: Goya, Gaudi2 (memory.c `export_dmabuf_from_addr` with
    /// `dram_supports_virtual_memory`), and Gaudi3 by its header.
    Mapping,
    /// A range of physical addresses inside the users' device memory, with no offset: Gaudi.
    Physical {
        /// The users' device memory.
        user: Range<u64>,
    },
}

impl Rule {
    /// Returns the rule of an open device, by the chip that it reports.
    pub fn of(io: &dyn KernelIo) -> Result<Self> {
        let hw: HlInfoHwIpInfo = io.query()?;
        let user = hw.dram_base_address..hw.dram_base_address.saturating_add(hw.dram_size);
        Ok(Self::for_chip(hw.device_id, user))
    }

    /// Returns the rule of a chip by its PCI device number.
    pub fn for_chip(device: u32, user: Range<u64>) -> Self {
        if GAUDI.contains(&device) {
            Self::Physical { user }
        } else {
            Self::Mapping
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapping => f.write_str("a mapping's address and an offset"),
            Self::Physical { user } => {
                write!(f, "physical addresses within {:#x}..{:#x}", user.start, user.end)
            }
        }
    }
}

/// What is to leave the device, named as its [`Rule`] wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A part of a mapping.
    Mapping(Export),
    /// A range of physical device memory.
    Physical {
        /// First byte; page-aligned.
        address: u64,
        /// Bytes; a multiple of 4096, not 0.
        len: u64,
    },
}

impl Source {
    fn len(&self) -> u64 {
        match *self {
            Self::Mapping(Export { len, .. }) | Self::Physical { len, .. } => len,
        }
    }
}

/// Exports a part of a mapping as a dma-buf, close-on-exec, readable and writable: [`export_by`] with [`Rule::Mapping`].
#[track_caller]
pub fn export(io: &dyn KernelIo, export: Export) -> Result<DmaBuf> {
    export_by(io, &Rule::Mapping, Source::Mapping(export))
}

/// Exports device memory as a dma-buf, close-on-exec, readable and writable.
///
/// The driver logs its refusals at debug level only (memory.c, `export_dmabuf_from_addr` and its checks), so its rules are checked
/// here first, with its errno. Rules that only it can check are listed in the error when it refuses.
#[track_caller]
pub fn export_by(io: &dyn KernelIo, rule: &Rule, source: Source) -> Result<DmaBuf> {
    let device = io.node().device;
    let request = rule.check(source).map_err(|error| error.on(device))?;
    let fd: OwnedFd = io.export_dmabuf(request).map_err(|error| explain(rule, error))?;
    let dmabuf = DmaBuf::from_fd(fd).map_err(|error| error.on(device))?;
    if dmabuf.size() != source.len() {
        return Err(Error::new(ErrorKind::Protocol, OPERATION)
            .because("the export has another size than was asked for")
            .saw(dmabuf.size(), source.len())
            .on(device));
    }
    Ok(dmabuf)
}

impl Rule {
    /// The request that says it to the driver, or which of its rules it breaks: `InvalidInput` with the driver's `EINVAL`.
    pub fn check(&self, source: Source) -> Result<ExportRequest> {
        let wrong = |cause: &str, seen: String, wanted: String| {
            Err(Error::from_errno(OPERATION, Errno::EINVAL)
                .because(cause)
                .saw(seen, wanted))
        };
        let (address, size, offset) = match (self, source) {
            (Self::Mapping, Source::Mapping(export)) => {
                if !export.mapping.is_aligned(PAGE) {
                    return wrong(
                        "the mapping's address is not page aligned",
                        export.mapping.to_string(),
                        format!("a multiple of {PAGE}"),
                    );
                }
                // The driver adds offset and size without looking for overflow; here it is refused.
                check_pages(OPERATION, export.offset, export.len, export.mapping_len)?;
                (export.mapping, export.len, export.offset)
            }
            (Self::Physical { user }, Source::Physical { address, len }) => {
                if address < user.start {
                    return wrong(
                        "the address lies before the users' device memory",
                        format!("{address:#x}"),
                        self.to_string(),
                    );
                }
                if address % PAGE != 0 {
                    return wrong(
                        "the address is not page aligned",
                        format!("{address:#x}"),
                        format!("a multiple of {PAGE}"),
                    );
                }
                check_pages(OPERATION, address, len, user.end)?;
                (DeviceVa(address), len, 0)
            }
            (_, source) => {
                let seen = match source {
                    Source::Mapping(_) => "a part of a mapping",
                    Source::Physical { .. } => "physical addresses",
                };
                return wrong(
                    "this chip and driver export by another rule",
                    seen.to_owned(),
                    self.to_string(),
                );
            }
        };
        let flags = u32::try_from((OFlag::O_CLOEXEC | OFlag::O_RDWR).bits()).unwrap_or(0);
        Ok(ExportRequest {
            address,
            size,
            offset,
            flags,
        })
    }
}

/// Adds what the driver's bare errno can still mean once the checks above have passed.
fn explain(rule: &Rule, error: Error) -> Error {
    if error.cause().is_some() {
        return error;
    }
    match error.errno() {
        Some(Errno::EINVAL) => error
            .because("the driver refused a request that looks right")
            .helped_by(match rule {
                Rule::Mapping => {
                    "the address must be one that HL_MEM_OP_MAP returned for device memory, and every page of that mapping must lie \
                     inside the DRAM BAR"
                }
                Rule::Physical { .. } => "the range must lie inside the DRAM BAR",
            }),
        Some(Errno::EBUSY) => error
            .because("the device is not operational")
            .helped_by("wait until its status is operational again"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Range<u64> = 0x2000_0000..0x8_0000_0000;

    fn refused(rule: &Rule, source: Source) -> String {
        let error = rule.check(source).unwrap_err();
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::InvalidInput, Some(Errno::EINVAL)),
            "{error}"
        );
        error.to_string()
    }

    #[test]
    fn each_chip_has_its_rule() {
        for device in [0x1000, 0x1010] {
            assert_eq!(
                Rule::for_chip(device, USER),
                Rule::Physical { user: USER },
                "{device:#x}"
            );
        }
        for device in [0x0001, 0x1020, 0x1060] {
            assert_eq!(Rule::for_chip(device, USER), Rule::Mapping, "{device:#x}");
        }
    }

    #[test]
    fn physical_ranges_stay_inside_the_users_memory_and_have_no_offset() {
        let rule = Rule::Physical { user: USER };
        let source = |address, len| Source::Physical { address, len };
        let request = rule.check(source(0x2000_1000, 8192)).unwrap();
        assert_eq!(
            (request.address, request.size, request.offset),
            (DeviceVa(0x2000_1000), 8192, 0)
        );
        assert!(rule.check(source(USER.end - 4096, 4096)).is_ok());
        assert!(refused(&rule, source(0x1fff_f000, 4096)).contains("before the users'"));
        assert!(refused(&rule, source(0x2000_0800, 4096)).contains("not page aligned"));
        assert!(refused(&rule, source(USER.end - 4096, 8192)).contains("leaves"));
        assert!(refused(&rule, source(u64::MAX - 4095, 8192)).contains("leaves"));
        assert!(refused(&rule, source(USER.start, 0)).contains("nothing"));
    }

    #[test]
    fn what_is_named_in_another_way_is_refused_by_the_rule_in_words() {
        let physical = Source::Physical {
            address: USER.start,
            len: 4096,
        };
        assert!(refused(&Rule::Mapping, physical).contains("wanted a mapping's address"));
        let mapping = Source::Mapping(Export {
            mapping: DeviceVa(4096),
            mapping_len: 4096,
            offset: 0,
            len: 4096,
        });
        assert!(refused(&Rule::Physical { user: USER }, mapping).contains("wanted physical addresses"));
    }
}
