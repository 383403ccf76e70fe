//! The one DRM ioctl that is used: `DRM_IOCTL_VERSION` (`drm/drm.h`), which names a node's driver.

use crate::era::DRM_IOCTL_BASE;
use crate::ioctl::iowr;

/// The driver name that [`DrmVersion`] brings for our nodes.
pub const DRIVER_NAME: &str = "habanalabs";

/// `DRM_IOCTL_VERSION` on a 64-bit machine.
pub const DRM_IOCTL_VERSION: u32 = iowr(DRM_IOCTL_BASE, 0, size_of::<DrmVersion>());

c_structs! {
    /// On a 64-bit machine. Texts are not zero-terminated.
    pub struct DrmVersion = "struct drm_version" of "drm/drm.h" {
        /// Major version.
        pub version_major: i32,
        /// Minor version.
        pub version_minor: i32,
        /// Patch level.
        pub version_patchlevel: i32,
        /// What C pads with.
        #[c()] pub pad: u32,
        /// In: bytes at `name`. Out: length of the name.
        pub name_len: u64,
        /// Address of a buffer for the name.
        #[print(Hex)] pub name: u64,
        /// In: bytes at `date`. Out: length of the date.
        pub date_len: u64,
        /// Address of a buffer for the date.
        #[print(Hex)] pub date: u64,
        /// In: bytes at `desc`. Out: length of the description.
        pub desc_len: u64,
        /// Address of a buffer for the description.
        #[print(Hex)] pub desc: u64,
    }
}
