//! DRM core ioctls on a 64-bit machine (`drm/drm.h`). Only [`DRM_IOCTL_VERSION`], which names a
//! node's driver, is used; a tracer decodes the others.

use crate::era::DRM_IOCTL_BASE;
use crate::ioctl::iowr;
use crate::memory::OpenFlags;

/// The driver name that [`DrmVersion`] brings for our nodes.
pub const DRIVER_NAME: &str = "habanalabs";

/// `DRM_IOCTL_VERSION`.
pub const DRM_IOCTL_VERSION: u32 = iowr(DRM_IOCTL_BASE, 0, size_of::<DrmVersion>());

open_enum! {
    /// `drm_get_cap.capability`, `DRM_CAP_*`.
    pub struct DrmCap(u64), "DRM_CAP_" {
        V6_1 DUMB_BUFFER = 0x1,
        V6_1 VBLANK_HIGH_CRTC = 0x2,
        V6_1 DUMB_PREFERRED_DEPTH = 0x3,
        V6_1 DUMB_PREFER_SHADOW = 0x4,
        V6_1 PRIME = 0x5,
        V6_1 TIMESTAMP_MONOTONIC = 0x6,
        V6_1 ASYNC_PAGE_FLIP = 0x7,
        V6_1 CURSOR_WIDTH = 0x8,
        V6_1 CURSOR_HEIGHT = 0x9,
        V6_1 ADDFB2_MODIFIERS = 0x10,
        V6_1 PAGE_FLIP_TARGET = 0x11,
        V6_1 CRTC_IN_VBLANK_EVENT = 0x12,
        V6_1 SYNCOBJ = 0x13,
        V6_1 SYNCOBJ_TIMELINE = 0x14,
    }
}

open_enum! {
    /// `drm_set_client_cap.capability`, `DRM_CLIENT_CAP_*`.
    pub struct DrmClientCap(u64), "DRM_CLIENT_CAP_" {
        V6_1 STEREO_3D = 1,
        V6_1 UNIVERSAL_PLANES = 2,
        V6_1 ATOMIC = 3,
        V6_1 ASPECT_RATIO = 4,
        V6_1 WRITEBACK_CONNECTORS = 5,
    }
}

flags! {
    /// `drm_syncobj_create.flags`, `DRM_SYNCOBJ_CREATE_*`.
    pub struct DrmSyncobjCreateFlags(u32), "DRM_SYNCOBJ_CREATE_" {
        V6_1 SIGNALED = 0x1,
    }
}

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

    pub struct DrmUnique = "struct drm_unique" of "drm/drm.h" {
        /// In: bytes at `unique`. Out: length of the bus id.
        pub unique_len: u64,
        /// Address of a buffer for the bus id.
        #[print(Hex)] pub unique: u64,
    }

    pub struct DrmAuth = "struct drm_auth" of "drm/drm.h" {
        /// The client's token.
        #[print(Hex)] pub magic: u32,
    }

    pub struct DrmSetVersion = "struct drm_set_version" of "drm/drm.h" {
        /// Major version of the core; -1 leaves it.
        pub drm_di_major: i32,
        /// Minor version of the core.
        pub drm_di_minor: i32,
        /// Major version of the driver; -1 leaves it.
        pub drm_dd_major: i32,
        /// Minor version of the driver.
        pub drm_dd_minor: i32,
    }

    pub struct DrmGemClose = "struct drm_gem_close" of "drm/drm.h" {
        /// The buffer.
        pub handle: u32,
        /// Zero.
        pub pad: u32,
    }

    pub struct DrmGemFlink = "struct drm_gem_flink" of "drm/drm.h" {
        /// The buffer.
        pub handle: u32,
        /// Out: its global name.
        pub name: u32,
    }

    pub struct DrmGemOpen = "struct drm_gem_open" of "drm/drm.h" {
        /// The global name of a buffer.
        pub name: u32,
        /// Out: the buffer.
        pub handle: u32,
        /// Out: its bytes.
        pub size: u64,
    }

    pub struct DrmGetCap = "struct drm_get_cap" of "drm/drm.h" {
        /// What is queried.
        pub capability: DrmCap,
        /// Out: its value.
        pub value: u64,
    }

    pub struct DrmSetClientCap = "struct drm_set_client_cap" of "drm/drm.h" {
        /// What is set.
        pub capability: DrmClientCap,
        /// Its value.
        pub value: u64,
    }

    pub struct DrmPrimeHandle = "struct drm_prime_handle" of "drm/drm.h" {
        /// The buffer.
        pub handle: u32,
        /// open(2) flags of the dma-buf's fd.
        pub flags: OpenFlags,
        /// The dma-buf.
        pub fd: i32,
    }

    pub struct DrmSyncobjCreate = "struct drm_syncobj_create" of "drm/drm.h" {
        /// Out: the sync object.
        pub handle: u32,
        /// Flags.
        pub flags: DrmSyncobjCreateFlags,
    }

    pub struct DrmSyncobjDestroy = "struct drm_syncobj_destroy" of "drm/drm.h" {
        /// The sync object.
        pub handle: u32,
        /// Zero.
        pub pad: u32,
    }

    pub struct DrmSyncobjArray = "struct drm_syncobj_array" of "drm/drm.h" {
        /// Address of the sync objects.
        #[print(Hex)] pub handles: u64,
        /// Their number.
        pub count_handles: u32,
        /// Zero.
        pub pad: u32,
    }

    pub struct DrmSyncobjTimelineArray = "struct drm_syncobj_timeline_array" of "drm/drm.h" {
        /// Address of the sync objects.
        #[print(Hex)] pub handles: u64,
        /// Address of a point of each.
        #[print(Hex)] pub points: u64,
        /// Their number.
        pub count_handles: u32,
        /// Flags of a query.
        pub flags: u32,
    }
}
