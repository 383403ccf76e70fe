//! vgem: a DRM driver without hardware, whose buffers take fences that a program signals
//! (drivers/gpu/drm/vgem).

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer; the structs are plain data and live across the call"
)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use gaudi_dmabuf::DmaBuf;
use gaudi_sys::SysResult;

/// `struct drm_mode_create_dumb` of `drm/drm_mode.h`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct CreateDumb {
    height: u32,
    width: u32,
    bpp: u32,
    flags: u32,
    handle: u32,
    pitch: u32,
    size: u64,
}

/// `struct drm_prime_handle` of `drm/drm.h`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct PrimeHandle {
    handle: u32,
    flags: u32,
    fd: i32,
}

/// `struct drm_vgem_fence_attach` of `drm/vgem_drm.h`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct FenceAttach {
    handle: u32,
    flags: u32,
    out_fence: u32,
    pad: u32,
}

/// `struct drm_vgem_fence_signal` of `drm/vgem_drm.h`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct FenceSignal {
    fence: u32,
    flags: u32,
}

mod raw {
    nix::ioctl_readwrite!(prime_handle_to_fd, b'd', 0x2d, super::PrimeHandle);
    nix::ioctl_readwrite!(create_dumb, b'd', 0xb2, super::CreateDumb);
    nix::ioctl_readwrite!(fence_attach, b'd', 0x41, super::FenceAttach);
    nix::ioctl_write_ptr!(fence_signal, b'd', 0x42, super::FenceSignal);
}

/// One buffer of vgem, and what fences it.
pub(crate) struct Vgem {
    device: File,
    handle: u32,
    pub(crate) buffer: DmaBuf,
}

/// A fence that waits for [`Vgem::signal`]; the driver gives it up after ten seconds.
#[derive(Clone, Copy)]
pub(crate) struct Pending(u32);

impl Vgem {
    /// A buffer of one page or more.
    pub(crate) fn new() -> Self {
        gaudi_lab::modprobe("vgem");
        let device = File::options()
            .read(true)
            .write(true)
            .open(node())
            .expect("root opens vgem's node");
        let mut dumb = CreateDumb {
            height: 32,
            width: 32,
            bpp: 32,
            ..CreateDumb::default()
        };
        // SAFETY: the device is open and the argument is a live `struct drm_mode_create_dumb`.
        unsafe { raw::create_dumb(device.as_raw_fd(), &raw mut dumb) }.expect("a dumb buffer");
        let mut prime = PrimeHandle {
            handle: dumb.handle,
            flags: (nix::libc::O_CLOEXEC | nix::libc::O_RDWR) as u32,
            fd: -1,
        };
        // SAFETY: the device is open and the argument is a live `struct drm_prime_handle`.
        unsafe { raw::prime_handle_to_fd(device.as_raw_fd(), &raw mut prime) }.expect("its dma-buf");
        // SAFETY: the kernel has just put a new descriptor there, owned by no other object.
        let fd = unsafe { OwnedFd::from_raw_fd(prime.fd) };
        Self {
            device,
            handle: dumb.handle,
            buffer: DmaBuf::from_fd(fd).expect("a dma-buf"),
        }
    }

    /// Work begins that writes, or else reads, the buffer.
    pub(crate) fn fence(&self, writes: bool) -> SysResult<Pending> {
        let mut attach = FenceAttach {
            handle: self.handle,
            flags: u32::from(writes),
            ..FenceAttach::default()
        };
        // SAFETY: the device is open and the argument is a live `struct drm_vgem_fence_attach`.
        unsafe { raw::fence_attach(self.device.as_raw_fd(), &raw mut attach) }?;
        Ok(Pending(attach.out_fence))
    }

    /// That work is done.
    pub(crate) fn signal(&self, pending: Pending) -> SysResult<()> {
        let signal = FenceSignal {
            fence: pending.0,
            flags: 0,
        };
        // SAFETY: the device is open and the argument is a live `struct drm_vgem_fence_signal`.
        unsafe { raw::fence_signal(self.device.as_raw_fd(), &signal) }.map(drop)
    }
}

/// The node of the one DRM device whose driver is vgem.
fn node() -> String {
    let cards = std::fs::read_dir("/sys/class/drm").expect("DRM is loaded");
    for card in cards.flatten() {
        let name = card.file_name().to_string_lossy().into_owned();
        let device = std::fs::read_link(card.path().join("device"));
        let is_vgem = device.is_ok_and(|device| device.to_string_lossy().contains("vgem"));
        if is_vgem && name.starts_with("card") {
            return format!("/dev/dri/{name}");
        }
    }
    panic!("vgem is loaded and has a card");
}
