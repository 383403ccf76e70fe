//! Exports a Gaudi's memory. The driver's rules, which differ by chip, are checked first.

use std::fmt;
use std::ops::Range;

use gaudi_seam::{DeviceVa, Errno, Error, ErrorKind, ExportRequest, KernelIo, Result};
use gaudi_sys::PAGE;
use gaudi_uapi::info::HlInfoHwIpInfo;

use super::OPEN_FLAGS;
use crate::buffer::DmaBuf;
use crate::part::{Part, wrong};

const OPERATION: &str = "HL_MEM_OP_EXPORT_DMABUF_FD";

/// PCI device numbers of the chip whose device memory has no virtual addresses (habanalabs_drv.c
/// `PCI_IDS_GAUDI`, `_GAUDI_SEC`).
const GAUDI: [u32; 2] = [0x1000, 0x1010];

/// What a driver exports, and how a request names it. If a driver exports only whole mappings,
/// exporting a part fails with `Unsupported`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// A part of a mapping, by the mapping's address and an offset: Goya, Gaudi2 (memory.c
    /// `export_dmabuf_from_addr` with `dram_supports_virtual_memory`), and Gaudi3 by its header.
    Mapping,
    /// A range of physical addresses inside the users' device memory, with no offset: Gaudi.
    Physical {
        /// The users' device memory.
        user: Range<u64>,
    },
}

impl Rule {
    /// Returns the rule of a device, by what it reports.
    pub fn of(hw: &HlInfoHwIpInfo) -> Self {
        let user = hw.dram_base_address..hw.dram_base_address.saturating_add(hw.dram_size);
        Self::for_chip(hw.device_id, user)
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

/// A range of device memory, and how its driver exports it.
#[derive(Debug, Clone)]
pub struct DeviceRange {
    rule: Rule,
    address: DeviceVa,
    all: Part,
}

impl DeviceRange {
    /// Describes the `len` bytes at `address`: a whole mapping, at the address that
    /// `HL_MEM_OP_MAP` returned (Gaudi: physical addresses). `len` is a multiple of the device
    /// page, so mostly more than was allocated.
    ///
    /// # Errors
    /// `InvalidInput`: `len` is 0.
    pub fn new(rule: Rule, address: DeviceVa, len: u64) -> Result<Self> {
        let all = Part::window(len, 0, len)?;
        Ok(Self { rule, address, all })
    }

    pub(crate) fn all(&self) -> Part {
        self.all
    }

    /// Exports the `len` bytes from `offset` as a dma-buf, close-on-exec, readable and writable.
    /// Both are multiples of 4096.
    ///
    /// # Errors
    /// - `InvalidInput`: the range is empty, not made of whole pages or leaves the memory, or the
    ///   memory breaks another rule of the driver. The driver logs its refusals at debug level only
    ///   (memory.c:`export_dmabuf_from_addr`), so its rules are checked here first, with its errno.
    /// - `Busy`: the device is not operational.
    /// - `Protocol`: the driver's dma-buf has another size.
    /// - The driver's own error, with the rules that only the driver can check.
    #[track_caller]
    pub fn export(&self, io: &dyn KernelIo, offset: u64, len: u64) -> Result<DmaBuf> {
        let part = Part::pages(OPERATION, self.all.len(), offset, len);
        self.export_part(io, part.map_err(|error| error.on(io.node().device))?)
    }

    /// Exports whole pages of the memory.
    #[track_caller]
    pub(crate) fn export_part(&self, io: &dyn KernelIo, part: Part) -> Result<DmaBuf> {
        let device = io.node().device;
        let request = self.request(part).map_err(|error| error.on(device))?;
        let fd = io
            .export_dmabuf(request)
            .map_err(|error| explain(&self.rule, error))?;
        let dmabuf = DmaBuf::from_fd(fd).map_err(|error| error.on(device))?;
        if dmabuf.size() != part.len() {
            return Err(Error::new(ErrorKind::Protocol, OPERATION)
                .because("the export has another size than was asked for")
                .saw(dmabuf.size(), part.len())
                .on(device));
        }
        Ok(dmabuf)
    }

    /// Returns the request that names the part by the rule, or the rule that the memory breaks.
    fn request(&self, part: Part) -> Result<ExportRequest> {
        let (address, offset) = match &self.rule {
            Rule::Mapping if !self.address.is_aligned(PAGE) => {
                let (cause, wanted) = (
                    "the mapping's address is not page aligned",
                    format!("a multiple of {PAGE}"),
                );
                return Err(wrong(OPERATION, cause, self.address, wanted));
            }
            Rule::Mapping => (self.address, part.offset()),
            Rule::Physical { user } if self.address.0 < user.start => {
                let cause = "the address lies before the users' device memory";
                return Err(wrong(OPERATION, cause, self.address, &self.rule));
            }
            Rule::Physical { user } => {
                // An address beyond the last one is beyond the users' memory too.
                let address = self.address.0.saturating_add(part.offset());
                Part::pages(OPERATION, user.end, address, part.len())?;
                (DeviceVa(address), 0)
            }
        };
        Ok(ExportRequest {
            address,
            size: part.len(),
            offset,
            flags: OPEN_FLAGS,
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

    fn request(address: u64, len: u64) -> Result<ExportRequest> {
        let rule = Rule::Physical { user: USER };
        let memory = DeviceRange::new(rule, DeviceVa(address), len)?;
        memory.request(memory.all())
    }

    fn refused(address: u64, len: u64) -> String {
        let error = request(address, len).unwrap_err();
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
    fn physical_ranges_stay_inside_user_memory() {
        let asked = request(0x2000_1000, 8192).unwrap();
        assert_eq!(
            (asked.address, asked.size, asked.offset),
            (DeviceVa(0x2000_1000), 8192, 0)
        );
        assert!(request(USER.end - 4096, 4096).is_ok());
        assert!(refused(0x1fff_f000, 4096).contains("before the users'"));
        assert!(refused(0x2000_0800, 4096).contains("not page aligned"));
        assert!(refused(USER.end - 4096, 8192).contains("leaves"));
        assert!(refused(u64::MAX - 4095, 8192).contains("leaves"));
        assert!(refused(USER.start, 0).contains("no bytes"));
    }

    #[test]
    fn physical_parts_are_named_by_address() {
        let memory = DeviceRange::new(Rule::Physical { user: USER }, DeviceVa(USER.start), 1 << 20).unwrap();
        let part = Part::pages(OPERATION, 1 << 20, 8192, 4096).unwrap();
        let request = memory.request(part).unwrap();
        assert_eq!((request.address, request.offset), (DeviceVa(0x2000_2000), 0));
    }
}
