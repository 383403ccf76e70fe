//! Two ioctls of a VFIO device whose errnos `vfio-ioctls` does not return (linux/vfio.h).
//!
//! Its `reset` returns nothing. Its `enable_irq` always starts at the first vector, and drops the
//! errno.

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer or nothing; the words live across the call"
)]

use std::os::fd::{AsFd, AsRawFd};

use gaudi_seam::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_TYPE,
};

mod ioctls {
    use super::{VFIO_BASE, VFIO_TYPE};
    nix::ioctl_write_ptr_bad!(
        vfio_device_set_irqs,
        nix::request_code_none!(VFIO_TYPE, VFIO_BASE + 10),
        u32
    );
    nix::ioctl_none!(vfio_device_reset, VFIO_TYPE, VFIO_BASE + 11);
}

/// Words of `struct vfio_irq_set` before its data.
const HEAD: usize = 5;

/// `VFIO_DEVICE_RESET`. `EINVAL` if the function cannot be reset alone, `EAGAIN` during another
/// reset.
pub(crate) fn reset(device: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the device is open for the whole call; there is no argument.
    unsafe { ioctls::vfio_device_reset(device.as_fd().as_raw_fd()) }.map(drop)
}

/// `VFIO_DEVICE_SET_IRQS` of MSI-X: makes the vectors from `start` on signal these eventfds; -1 is
/// none. `ENOSPC` if the machine has too few vectors.
pub(crate) fn set_msix(device: impl AsFd, start: u16, eventfds: &[i32]) -> Result<(), Errno> {
    let data = eventfds.iter().map(|fd| u32::from_ne_bytes(fd.to_ne_bytes()));
    set_irqs(device, VFIO_IRQ_SET_DATA_EVENTFD, start, data)
}

/// Switches MSI-X off (`VFIO_DEVICE_SET_IRQS` without data).
pub(crate) fn disable_msix(device: impl AsFd) -> Result<(), Errno> {
    set_irqs(device, VFIO_IRQ_SET_DATA_NONE, 0, [].into_iter())
}

fn set_irqs(
    device: impl AsFd,
    kind: u32,
    start: u16,
    data: impl ExactSizeIterator<Item = u32>,
) -> Result<(), Errno> {
    let count = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
    let bytes = u32::try_from((HEAD + data.len()) * size_of::<u32>()).map_err(|_| Errno::EINVAL)?;
    let flags = kind | VFIO_IRQ_SET_ACTION_TRIGGER;
    let mut words = vec![bytes, flags, VFIO_PCI_MSIX_IRQ_INDEX, u32::from(start), count];
    words.extend(data);
    // SAFETY: the device is open for the whole call; the words are a live `struct vfio_irq_set` of
    // `argsz` bytes.
    let answer = unsafe { ioctls::vfio_device_set_irqs(device.as_fd().as_raw_fd(), words.as_ptr()) }?;
    // vfio_pci_intrs.c `vfio_msi_enable` returns the number of vectors if there are too few.
    if answer > 0 { Err(Errno::ENOSPC) } else { Ok(()) }
}
