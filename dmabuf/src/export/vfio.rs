//! vfio-pci: a dma-buf of a BAR's ranges, without CPU access (drivers/vfio/pci/vfio_pci_dmabuf.c).

use std::os::fd::AsFd;

use gaudi_seam::{Errno, Error, Result};
use gaudi_sys::PAGE;
use gaudi_sys::dmabuf::{vfio_export, vfio_probe};
use gaudi_uapi::dmabuf::VfioRegionDmaRange;

use crate::buffer::DmaBuf;
use crate::part::{Part, wrong};

const OPERATION: &str = "VFIO_DEVICE_FEATURE_DMA_BUF";
/// The highest BAR's number; the expansion ROM, which follows, cannot be exported.
const LAST_BAR: u32 = 5;

/// Exports ranges of a BAR of `bar_len` bytes as one dma-buf, in this order. `device` is an open
/// VFIO device.
///
/// Importers must support revocation: vfio-pci revokes the memory when the device is reset or
/// closed, and when its memory is switched off.
///
/// # Errors
/// - `Unsupported`: the kernel is older than Linux 6.19 or was built without peer-to-peer DMA.
/// - `InvalidInput`: a range is empty, not made of whole pages or leaves the BAR.
/// - `NotFound`: the device has no such BAR.
#[track_caller]
pub fn export(device: impl AsFd, bar: u32, bar_len: u64, ranges: &[VfioRegionDmaRange]) -> Result<DmaBuf> {
    check(bar, bar_len, ranges)?;
    vfio_probe(&device).map_err(|errno| match errno {
        Errno::ENOTTY | Errno::EOPNOTSUPP | Errno::EINVAL => {
            Error::unsupported(OPERATION, "this VFIO device exports no dma-bufs")
                .with_errno(errno)
                .helped_by(
                    "use Linux 6.19 or later with CONFIG_VFIO_PCI_DMABUF, and a device bound to vfio-pci",
                )
        }
        errno => Error::from_errno(OPERATION, errno),
    })?;
    let fd = vfio_export(&device, bar, ranges).map_err(|errno| explain(bar, errno))?;
    DmaBuf::from_fd(fd)
}

fn check(bar: u32, bar_len: u64, ranges: &[VfioRegionDmaRange]) -> Result<()> {
    let wrong = |cause, seen: String, wanted| Err(wrong(OPERATION, cause, seen, wanted));
    if bar > LAST_BAR {
        return wrong("only BARs can be exported", format!("region {bar}"), "0 to 5");
    }
    if ranges.is_empty() {
        return wrong("nothing to export", "no range".into(), "at least one");
    }
    let mut total = 0_u64;
    for range in ranges {
        Part::pages(OPERATION, bar_len, range.offset, range.length)?;
        total = total.saturating_add(range.length);
    }
    // validate_dmabuf_input: the highest bit of a length has another meaning there.
    if total >= 1 << 63 {
        return wrong(
            "the ranges are too many",
            format!("{total} bytes"),
            "fewer than 2^63",
        );
    }
    Ok(())
}

fn explain(bar: u32, errno: Errno) -> Error {
    let error = Error::from_errno(OPERATION, errno);
    match errno {
        Errno::ENODEV => error
            .with_kind(gaudi_seam::ErrorKind::NotFound)
            .because(format!("the device has no BAR {bar}, or it is not memory"))
            .helped_by("lspci -vv -s BDF shows its regions"),
        Errno::EINVAL => error.because("vfio-pci refused a request that looks right").saw(
            format!("BAR {bar}"),
            format!("memory in whole pages of {PAGE}, with which peer-to-peer DMA is possible"),
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_seam::ErrorKind;

    const RIGHT: VfioRegionDmaRange = VfioRegionDmaRange {
        offset: PAGE,
        length: PAGE,
    };

    #[test]
    fn wrong_ranges_are_refused_before_the_ioctl() {
        let refused = |bar, ranges: &[VfioRegionDmaRange]| {
            let error = check(bar, 4 * PAGE, ranges).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        };
        refused(6, &[RIGHT]);
        refused(0, &[]);
        refused(0, &[RIGHT, VfioRegionDmaRange { length: 0, ..RIGHT }]);
        refused(0, &[VfioRegionDmaRange { offset: 8, ..RIGHT }]);
        refused(
            0,
            &[VfioRegionDmaRange {
                length: 4 * PAGE,
                ..RIGHT
            }],
        );
        assert!(check(5, 4 * PAGE, &[RIGHT; 8]).is_ok(), "ranges may overlap");
    }

    #[test]
    fn non_vfio_device_exports_nothing() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let error = export(
            &null,
            0,
            PAGE,
            &[VfioRegionDmaRange {
                offset: 0,
                length: PAGE,
            }],
        )
        .unwrap_err();
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::Unsupported, Some(Errno::ENOTTY))
        );
    }
}
