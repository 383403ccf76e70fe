//! Debugging: `HL_IOCTL_DEBUG`, and registers through debugfs.

#![expect(
    unsafe_code,
    reason = "read(2), write(2) and close(2) of descriptor numbers in a C struct"
)]

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use gaudi_sys::{Errno, uninterrupted};
use gaudi_uapi::Ioctl;
use gaudi_uapi::debug::HlDebugArgs;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::stat::Mode;

use crate::device;
use crate::discovery::at_bus;
use crate::open::address_of;
use crate::types::HlthunkDebugfs;

/// A struct without open descriptors.
const CLOSED: HlthunkDebugfs = HlthunkDebugfs {
    addr_fd: -1,
    data_fd: -1,
    clk_gate_fd: -1,
    clk_gate_val: [0; 32],
};

/// Returns the debugfs directories of different driver versions: by PCI address (DRM), by index,
/// and under the old name.
fn directories(address: &str, index: u32) -> [PathBuf; 3] {
    let root = Path::new("/sys/kernel/debug");
    [
        root.join("accel").join(address),
        root.join(format!("accel/{index}")),
        root.join(format!("habanalabs/hl{index}")),
    ]
}

fn open(path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    uninterrupted(|| nix::fcntl::open(path, flags | OFlag::O_CLOEXEC, Mode::empty()))
}

/// Writes a C string including its NUL, which the driver's files expect.
fn write(fd: RawFd, text: &CStr) -> Result<(), Errno> {
    let bytes = text.to_bytes_with_nul();
    // SAFETY: the buffer is valid; the kernel checks the descriptor.
    uninterrupted(|| Errno::result(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) })).map(drop)
}

fn read(fd: RawFd, into: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the buffer is valid; the kernel checks the descriptor.
    let read =
        uninterrupted(|| Errno::result(unsafe { libc::pread(fd, into.as_mut_ptr().cast(), into.len(), 0) }))?;
    Ok(read as usize)
}

fn hexadecimal(value: u64) -> std::ffi::CString {
    std::ffi::CString::new(format!("{value:#x}")).expect("digits have no NUL")
}

fn opened(directory: &Path) -> Result<HlthunkDebugfs, Errno> {
    let denied = |_| Errno::EPERM;
    let addr = open(&directory.join("addr"), OFlag::O_WRONLY).map_err(denied)?;
    let data = open(&directory.join("data32"), OFlag::O_RDWR).map_err(denied)?;
    let clk_gate = open(&directory.join("clk_gate"), OFlag::O_RDWR).map_err(denied)?;
    let mut saved = [0_u8; 32];
    // The last byte stays NUL.
    read(clk_gate.as_raw_fd(), &mut saved[..31]).map_err(|_| Errno::EIO)?;
    write(clk_gate.as_raw_fd(), c"0").map_err(|_| Errno::EIO)?;
    Ok(HlthunkDebugfs {
        addr_fd: addr.into_raw_fd(),
        data_fd: data.into_raw_fd(),
        clk_gate_fd: clk_gate.into_raw_fd(),
        clk_gate_val: saved.map(|byte| byte as c_char),
    })
}

/// Closes a descriptor of the struct, if it is open.
fn close(fd: c_int) {
    if fd >= 0 {
        // The program may have closed the descriptor, which would make an `OwnedFd` abort.
        let _ = nix::unistd::close(fd);
    }
}

exports! {
    /// Passes a `struct hl_debug_args` to the driver.
    ///
    /// # Errors
    /// `-errno` of the driver; `-EFAULT` for an invalid address.
    fn hlthunk_debug(fd: c_int, debug: *mut HlDebugArgs) -> c_int as negative_errno {
        device::ioctl_at(fd, Ioctl::Debug, debug.address()).map(|()| 0)
    }
}

exports! {
    uncancelled:

    /// Opens the driver's files in debugfs and disables clock gating. On failure the struct
    /// contains no open descriptors.
    ///
    /// # Errors
    /// `-EINVAL`: `debugfs` is null. `-ENODEV`: `fd` is not a node of the driver. `-EPERM`: a file
    /// cannot be opened. `-EIO`: clock gating cannot be changed.
    fn hlthunk_debugfs_open(fd: c_int, debugfs: *mut HlthunkDebugfs) -> c_int as negative_errno {
        debugfs.write(CLOSED)?;
        let address = address_of(fd).map_err(|_| Errno::ENODEV)?;
        let index = at_bus(address.as_bytes()).map_err(|_| Errno::ENODEV)?.index;
        let directories = directories(&address, index);
        let directory = directories.iter().find(|path| path.is_dir()).ok_or(Errno::EPERM)?;
        debugfs.write(opened(directory)?).map(|()| 0)
    }

    /// Reads a 32-bit word of the device's address space.
    ///
    /// # Errors
    /// `-EINVAL`: `debugfs` or `val` is null, or the driver's text is not a number. Otherwise
    /// `-errno` of read(2) or write(2).
    fn hlthunk_debugfs_read(
        debugfs: *mut HlthunkDebugfs,
        full_address: u64,
        val: *mut u32,
    ) -> c_int as negative_errno {
        let files = debugfs.read()?;
        val.check()?;
        write(files.addr_fd, &hexadecimal(full_address))?;
        let mut text = [0_u8; 64];
        let len = read(files.data_fd, &mut text)?;
        let text = std::str::from_utf8(&text[..len]).map_err(|_| Errno::EINVAL)?;
        let digits = text.trim_end_matches('\0').trim();
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        let value = u32::from_str_radix(digits, 16).map_err(|_| Errno::EINVAL)?;
        val.write(value).map(|()| 0)
    }

    /// Writes a 32-bit word to the device's address space.
    ///
    /// # Errors
    /// `-EINVAL`: `debugfs` is null. Otherwise `-errno` of write(2).
    fn hlthunk_debugfs_write(
        debugfs: *mut HlthunkDebugfs,
        full_address: u64,
        val: u32,
    ) -> c_int as negative_errno {
        let files = debugfs.read()?;
        write(files.addr_fd, &hexadecimal(full_address))?;
        write(files.data_fd, &hexadecimal(val.into())).map(|()| 0)
    }

    /// Restores clock gating and closes the files. A second call has no effect.
    ///
    /// # Errors
    /// `-EINVAL`: `debugfs` is null. `-EIO`: clock gating cannot be changed.
    fn hlthunk_debugfs_close(debugfs: *mut HlthunkDebugfs) -> c_int as negative_errno {
        let files = debugfs.read()?;
        debugfs.write(CLOSED)?;
        close(files.addr_fd);
        close(files.data_fd);
        let saved = files.clk_gate_val.map(|byte| byte as u8);
        let written = match CStr::from_bytes_until_nul(&saved) {
            Ok(saved) if files.clk_gate_fd >= 0 => write(files.clk_gate_fd, saved),
            _ => Ok(()),
        };
        close(files.clk_gate_fd);
        written.map(|()| 0).map_err(|_| Errno::EIO)
    }

    /// Not supported.
    ///
    /// # Errors
    /// `-EPERM` always.
    fn hlthunk_deprecated_func1(
        _fd: c_int,
        _seq: u64,
        _timeout_us: u64,
        _status: *mut u32,
        _timestamp: *mut u64,
    ) -> c_int as negative_errno {
        Err(Errno::EPERM)
    }

    /// Not supported.
    ///
    /// # Errors
    /// `-EPERM` always.
    fn hlthunk_deprecated_func2(
        _fd: c_int,
        _interrupt_id: u32,
        _cq_counters_handle: u64,
        _cq_counters_offset: u64,
        _target_value: u64,
        _timestamp_handle: u64,
        _timestamp_offset: u64,
    ) -> c_int as negative_errno {
        Err(Errno::EPERM)
    }

    /// Not supported.
    ///
    /// # Errors
    /// `-EPERM` always.
    fn hlthunk_deprecated_func3(
        _fd: c_int,
        _num_elements: u32,
        _handle: *mut u64,
    ) -> c_int as negative_errno {
        Err(Errno::EPERM)
    }
}
