//! Opening, closing and finding devices.

use std::ffi::{c_char, c_int, c_void};

use gaudi_seam::NodeKind;
use gaudi_sys::Errno;
use gaudi_uapi::info::HlInfoHwIpInfo;
use nix::libc;

use crate::device::{self, Found};
use crate::discovery::{at_bus, candidates, is_named, name_of, visible_candidates, with_index};
use crate::info::query;
use crate::pointer::{Pointer, Source};
use crate::profiler;
use crate::types::HlthunkDeviceName;

/// Length of a PCI address in bytes, without the NUL.
const ADDRESS_LEN: usize = 12;

fn open_at_bus(busid: &Source<c_char>, kind: NodeKind) -> Result<c_int, Errno> {
    let text = busid.text::<ADDRESS_LEN>()?;
    let device = at_bus(&text).map_err(|_| Errno::EINVAL)?;
    device.open(kind)
}

/// Opens the first device with a name that can be opened. Identifies devices through their control
/// nodes, because a compute node may be in use.
///
/// Returns the errno of the last open that failed; `ENOENT` only if there is no other errno.
fn open_by_name(name: HlthunkDeviceName, kind: NodeKind) -> Result<c_int, Errno> {
    let mut last = Errno::ENOENT;
    for device in visible_candidates()? {
        let fits = match name {
            HlthunkDeviceName::DONT_CARE => Ok(true),
            _ => device.identify().map(|hw| is_named(&hw, name)),
        };
        let opened = match fits {
            Ok(true) => device.open(kind),
            Ok(false) => continue,
            Err(errno) => Err(errno),
        };
        match opened {
            Ok(fd) => return Ok(fd),
            Err(Errno::ENOENT) => {}
            Err(errno) => last = errno,
        }
    }
    Err(last)
}

fn with_module_id(id: u32, missing: Errno) -> Result<crate::discovery::Candidate, Errno> {
    let mut all = candidates()?.into_iter();
    all.find(|device| device.identify().is_ok_and(|hw| hw.module_id == id))
        .ok_or(missing)
}

/// Returns the failure value of an open function: -1 by name, `-errno` by address.
pub(crate) fn opened(by_address: bool, answer: Result<c_int, Errno>) -> c_int {
    answer.unwrap_or_else(|errno| {
        errno.set();
        if by_address { -(errno as c_int) } else { -1 }
    })
}

exports! {
    uncancelled:

    /// Opens the compute node of the device at a PCI address, or of the first device with a name
    /// that is not in use. Returns the descriptor, which is close-on-exec.
    ///
    /// # Errors
    /// - By name: -1 and errno: `ENOENT` if there is no such device; `EBUSY`, `EAGAIN`, `EPERM` and
    ///   other errors of the driver's open.
    /// - By address: `-EINVAL` if no device has the address, otherwise `-errno` of the driver's
    ///   open.
    fn hlthunk_open(device_name: HlthunkDeviceName, busid: *const c_char) -> c_int as minus_one
        via fp_hlthunk_open of open_original after profiler::load
    {
        if busid.is_null() {
            return open_by_name(device_name, NodeKind::Compute);
        }
        Ok(opened(true, open_at_bus(&busid, NodeKind::Compute)))
    }

    /// Opens the compute node of the device with a module id.
    ///
    /// # Errors
    /// -1 and `ENODEV` if no device has the id; otherwise `-errno` of the driver's open.
    fn hlthunk_open_by_module_id(module_id: u32) -> c_int as minus_one {
        let device = with_module_id(module_id, Errno::ENODEV)?;
        profiler::load();
        Ok(profiler::open(&device, |device| opened(true, device.open(NodeKind::Compute))))
    }

    /// Opens the control node of the device at a PCI address, or with an index.
    ///
    /// # Errors
    /// `-errno`: `EINVAL` for an unknown address, otherwise the error of open(2).
    fn hlthunk_open_control(dev_id: c_int, busid: *const c_char) -> c_int as negative_errno {
        if busid.is_null() {
            return with_index(dev_id)?.open(NodeKind::Control);
        }
        open_at_bus(&busid, NodeKind::Control)
    }

    /// Opens the control node of the device at a PCI address, or of the first device with a name.
    ///
    /// # Errors
    /// As [`hlthunk_open`].
    fn hlthunk_open_control_by_name(
        device_name: HlthunkDeviceName,
        busid: *const c_char,
    ) -> c_int as minus_one {
        if busid.is_null() {
            return open_by_name(device_name, NodeKind::Control);
        }
        Ok(opened(true, open_at_bus(&busid, NodeKind::Control)))
    }

    /// Opens the control node of the device with a module id.
    ///
    /// # Errors
    /// `-EBADF`: no device has the id.
    fn hlthunk_open_control_by_module_id(module_id: u32) -> c_int as negative_errno {
        with_module_id(module_id, Errno::EBADF)?.open(NodeKind::Control)
    }

    /// Opens the control node of the device at a PCI address.
    ///
    /// # Errors
    /// `-EINVAL`: `busid` is null. `-EBADF`: no device has the address.
    fn hlthunk_open_control_by_bus_id(busid: *const c_char) -> c_int as negative_errno {
        let text = busid.text::<ADDRESS_LEN>()?;
        at_bus(&text).map_err(|_| Errno::EBADF)?.open(NodeKind::Control)
    }

    /// Closes a descriptor (close(2)). The device is released with the last duplicate, mapping and
    /// exported dma-buf.
    ///
    /// # Errors
    /// -1 and errno of close(2).
    fn hlthunk_close(fd: c_int) -> c_int as minus_one via fp_hlthunk_close of close_original {
        device::close(fd).map(|()| 0)
    }

    /// Returns the number of devices with a name, including those in use.
    ///
    /// # Errors
    /// `-EINVAL`: the name is invalid.
    fn hlthunk_get_device_count(device_name: HlthunkDeviceName) -> c_int as negative_errno {
        if device_name == HlthunkDeviceName::INVALID || device_name.0 >= HlthunkDeviceName::MAX.0 {
            return Err(Errno::EINVAL);
        }
        // A device whose control node fails cannot be opened, so it is not counted.
        let fits = |hw: HlInfoHwIpInfo| {
            device_name == HlthunkDeviceName::DONT_CARE || is_named(&hw, device_name)
        };
        let devices = candidates()?;
        let count = devices.iter().filter(|device| device.identify().is_ok_and(fits)).count();
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    }

    /// Returns the PCI device id of a node's device.
    ///
    /// # Errors
    /// Returns 0 and sets errno.
    fn hlthunk_get_device_id_from_fd(fd: c_int) -> u32 as nothing {
        query::<HlInfoHwIpInfo>(fd, 0).map(|hw| hw.device_id)
    }

    /// Returns the name of a node's device.
    ///
    /// # Errors
    /// `HLTHUNK_DEVICE_INVALID`. errno is set if the query failed.
    fn hlthunk_get_device_name_from_fd(fd: c_int) -> HlthunkDeviceName as nothing {
        query::<HlInfoHwIpInfo>(fd, 0).map(|hw| name_of(hw.device_id))
    }

    /// Writes the PCI address of a node's device (compute or control) as a string: 12 characters
    /// and a NUL, at most `len` bytes.
    ///
    /// # Errors
    /// `-EINVAL`: `pci_bus_id` is null, or `len` is negative. -1 and errno: `EBADF`; `ENODEV` if
    /// `fd` is not a node of the driver.
    fn hlthunk_get_pci_bus_id_from_fd(
        fd: c_int,
        pci_bus_id: *mut c_char,
        len: c_int,
    ) -> c_int as minus_one {
        let (false, Ok(len)) = (pci_bus_id.is_null(), usize::try_from(len)) else {
            return Ok(opened(true, Err(Errno::EINVAL)));
        };
        let mut text: Vec<c_char> = address_of(fd)?.bytes().take(ADDRESS_LEN).map(|byte| byte as c_char).collect();
        text.push(0);
        text.truncate(len);
        pci_bus_id.write_all(&text).map(|()| 0)
    }

    /// Returns the index of the device at a PCI address.
    ///
    /// # Errors
    /// `-EINVAL`: `busid` is null. -1 and `ENODEV`: no device has the address.
    fn hlthunk_get_device_index_from_pci_bus_id(busid: *const c_char) -> c_int as minus_one {
        if busid.is_null() {
            return Ok(opened(true, Err(Errno::EINVAL)));
        }
        let device = at_bus(&busid.text::<ADDRESS_LEN>()?)?;
        Ok(c_int::try_from(device.index).unwrap_or(c_int::MAX))
    }

    /// Returns the index of the device with a module id (Gaudi3 header).
    ///
    /// # Errors
    /// -1 and `ENODEV`: no device has the id.
    fn hlthunk_get_device_index_from_module_id(module_id: u32) -> c_int as minus_one {
        let device = with_module_id(module_id, Errno::ENODEV)?;
        Ok(c_int::try_from(device.index).unwrap_or(c_int::MAX))
    }

    /// Returns the version as a string, which the caller frees with [`hlthunk_free`].
    ///
    /// # Errors
    /// NULL and `ENOMEM`.
    fn hlthunk_get_version() -> *mut c_char as null {
        // The vendor's driver version that this library is compatible with, then our version.
        let text = concat!("1.10.0-gaudi-hal-", env!("CARGO_PKG_VERSION"), "\0");
        let version = zeroed(text.len())?;
        let bytes: Vec<c_char> = text.bytes().map(|byte| byte as c_char).collect();
        version.cast::<c_char>().write_all(&bytes)?;
        Ok(version.into_raw().cast())
    }

    /// Allocates `size` zeroed bytes.
    ///
    /// # Errors
    /// NULL and `ENOMEM`.
    fn hlthunk_malloc(size: usize) -> *mut c_void as null {
        zeroed(size).map(Pointer::into_raw)
    }

    /// Frees memory of [`hlthunk_malloc`]. NULL is allowed.
    fn hlthunk_free(pt: *mut c_void) as nothing {
        pt.free();
        Ok(())
    }
}

/// Allocates with C's allocator, because a program may call free(3) on the memory.
fn zeroed(size: usize) -> Result<Pointer<c_void>, Errno> {
    let memory = Pointer::allocated(size);
    if memory.is_null() {
        Err(Errno::ENOMEM)
    } else {
        Ok(memory)
    }
}

pub(crate) fn address_of(fd: c_int) -> Result<String, Errno> {
    let address = match device::find(fd)? {
        Found::Virtual(entry) => entry.address,
        Found::Raw => {
            let number = device::stat(fd)?.st_rdev;
            crate::discovery::address_of_node(libc::major(number), libc::minor(number))
        }
    };
    address.map(|address| address.to_string()).ok_or(Errno::ENODEV)
}
