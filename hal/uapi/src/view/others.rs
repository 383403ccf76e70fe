//! Ioctls that programs use beside the driver's own.

use super::Count::{Bytes, Elements};
use super::{At, Part, Pointee, Pointer, Shape, Way, all, only};
use crate::dmabuf::{
    DMA_BUF_IOCTL_EXPORT_SYNC_FILE, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, DMA_BUF_IOCTL_SYNC, DMA_HEAP_IOCTL_ALLOC,
    DmaBufExportSyncFile, DmaBufImportSyncFile, DmaBufSync, DmaHeapAllocationData, SYNC_IOC_FILE_INFO,
    SYNC_IOC_MERGE, SyncFenceInfo, SyncFileInfo, SyncMergeData, UDMABUF_CREATE, UDMABUF_CREATE_LIST,
    UdmabufCreate, UdmabufCreateItem, UdmabufCreateList, VfioDeviceFeature,
};
use crate::drm::{
    DRM_IOCTL_VERSION, DrmAuth, DrmGemClose, DrmGemFlink, DrmGemOpen, DrmGetCap, DrmPrimeHandle,
    DrmSetClientCap, DrmSetVersion, DrmSyncobjArray, DrmSyncobjCreate, DrmSyncobjDestroy,
    DrmSyncobjTimelineArray, DrmUnique, DrmVersion,
};
use crate::era::DRM_IOCTL_BASE;
use crate::ioctl::{READ, WRITE, ioc};
use crate::vfio::{
    self, VfioDeviceInfo, VfioDmaMap, VfioDmaUnmap, VfioGroupStatus, VfioIommuInfo, VfioIrqInfo, VfioIrqSet,
    VfioPciHotReset, VfioPciHotResetInfo, VfioRegionInfo,
};
use crate::{CStruct, Print};

/// An ioctl with one meaning.
#[derive(Clone, Copy, Debug)]
pub struct OtherIoctl {
    /// The name in C.
    pub name: &'static str,
    /// The request number.
    pub request: u32,
    /// The argument at entry.
    pub input: Shape,
    /// What the kernel fills.
    pub output: &'static [Part],
    /// The only node that has it, if another device has the same number.
    pub node: Option<&'static str>,
}

/// The node of VFIO's containers.
const CONTAINER: &str = "/dev/vfio/vfio";

/// The ioctls of dma-buf, udmabuf, dma-heap, sync_file, DRM and VFIO whose argument is a struct of
/// this crate.
pub const OTHERS: &[OtherIoctl] = &[
    OtherIoctl {
        name: "DMA_BUF_IOCTL_SYNC",
        request: DMA_BUF_IOCTL_SYNC,
        input: takes(&[all(&DmaBufSync::LAYOUT)], &[]),
        output: &[],
        node: None,
    },
    OtherIoctl {
        name: "DMA_BUF_IOCTL_EXPORT_SYNC_FILE",
        request: DMA_BUF_IOCTL_EXPORT_SYNC_FILE,
        input: takes(&[only(&DmaBufExportSyncFile::LAYOUT, "flags")], &[]),
        output: &[only(&DmaBufExportSyncFile::LAYOUT, "fd")],
        node: None,
    },
    OtherIoctl {
        name: "DMA_BUF_IOCTL_IMPORT_SYNC_FILE",
        request: DMA_BUF_IOCTL_IMPORT_SYNC_FILE,
        input: takes(&[all(&DmaBufImportSyncFile::LAYOUT)], &[]),
        output: &[],
        node: None,
    },
    OtherIoctl {
        name: "UDMABUF_CREATE",
        request: UDMABUF_CREATE,
        input: takes(&[all(&UdmabufCreate::LAYOUT)], &[]),
        output: &[],
        node: None,
    },
    OtherIoctl {
        name: "UDMABUF_CREATE_LIST",
        request: UDMABUF_CREATE_LIST,
        input: takes(
            &[all(&UdmabufCreateList::LAYOUT)],
            &[Pointer {
                at: At::Behind,
                ..Pointer::new(
                    "list",
                    Pointee::Struct(&UdmabufCreateItem::LAYOUT),
                    Elements("count"),
                    Way::In,
                )
            }],
        ),
        output: &[],
        node: None,
    },
    OtherIoctl {
        name: "DMA_HEAP_IOCTL_ALLOC",
        request: DMA_HEAP_IOCTL_ALLOC,
        input: takes(
            &[
                only(&DmaHeapAllocationData::LAYOUT, "len"),
                only(&DmaHeapAllocationData::LAYOUT, "fd_flags"),
                only(&DmaHeapAllocationData::LAYOUT, "heap_flags"),
            ],
            &[],
        ),
        output: &[only(&DmaHeapAllocationData::LAYOUT, "fd")],
        node: None,
    },
    OtherIoctl {
        name: "SYNC_IOC_MERGE",
        request: SYNC_IOC_MERGE,
        input: takes(
            &[
                only(&SyncMergeData::LAYOUT, "name"),
                only(&SyncMergeData::LAYOUT, "fd2"),
            ],
            &[],
        ),
        output: &[only(&SyncMergeData::LAYOUT, "fence")],
        node: None,
    },
    OtherIoctl {
        name: "SYNC_IOC_FILE_INFO",
        request: SYNC_IOC_FILE_INFO,
        input: takes(
            &[
                only(&SyncFileInfo::LAYOUT, "num_fences"),
                only(&SyncFileInfo::LAYOUT, "sync_fence_info"),
            ],
            &[Pointer {
                filled: Some("num_fences"),
                ..Pointer::new(
                    "sync_fence_info",
                    Pointee::Struct(&SyncFenceInfo::LAYOUT),
                    Elements("num_fences"),
                    Way::Out,
                )
            }],
        ),
        output: &[
            only(&SyncFileInfo::LAYOUT, "name"),
            only(&SyncFileInfo::LAYOUT, "status"),
            only(&SyncFileInfo::LAYOUT, "num_fences"),
        ],
        node: None,
    },
    OtherIoctl {
        name: "DRM_IOCTL_VERSION",
        request: DRM_IOCTL_VERSION,
        input: takes(
            &[
                only(&DrmVersion::LAYOUT, "name_len"),
                only(&DrmVersion::LAYOUT, "name"),
                only(&DrmVersion::LAYOUT, "date_len"),
                only(&DrmVersion::LAYOUT, "date"),
                only(&DrmVersion::LAYOUT, "desc_len"),
                only(&DrmVersion::LAYOUT, "desc"),
            ],
            &[
                text("name", "name_len"),
                text("date", "date_len"),
                text("desc", "desc_len"),
            ],
        ),
        output: &[
            only(&DrmVersion::LAYOUT, "version_major"),
            only(&DrmVersion::LAYOUT, "version_minor"),
            only(&DrmVersion::LAYOUT, "version_patchlevel"),
        ],
        node: None,
    },
    drm(
        "DRM_IOCTL_GET_UNIQUE",
        READ | WRITE,
        0x01,
        &DrmUnique::LAYOUT,
        UNIQUE,
        UNIQUE_LEN,
    ),
    drm("DRM_IOCTL_GET_MAGIC", READ, 0x02, &DrmAuth::LAYOUT, &[], MAGIC),
    drm(
        "DRM_IOCTL_SET_VERSION",
        READ | WRITE,
        0x07,
        &DrmSetVersion::LAYOUT,
        &[],
        SET_VERSION,
    ),
    drm("DRM_IOCTL_GEM_CLOSE", WRITE, 0x09, &DrmGemClose::LAYOUT, &[], &[]),
    drm(
        "DRM_IOCTL_GEM_FLINK",
        READ | WRITE,
        0x0a,
        &DrmGemFlink::LAYOUT,
        &[],
        FLINK,
    ),
    drm(
        "DRM_IOCTL_GEM_OPEN",
        READ | WRITE,
        0x0b,
        &DrmGemOpen::LAYOUT,
        &[],
        OPEN,
    ),
    drm(
        "DRM_IOCTL_GET_CAP",
        READ | WRITE,
        0x0c,
        &DrmGetCap::LAYOUT,
        &[],
        VALUE,
    ),
    drm(
        "DRM_IOCTL_SET_CLIENT_CAP",
        WRITE,
        0x0d,
        &DrmSetClientCap::LAYOUT,
        &[],
        &[],
    ),
    drm("DRM_IOCTL_AUTH_MAGIC", WRITE, 0x11, &DrmAuth::LAYOUT, &[], &[]),
    drm(
        "DRM_IOCTL_PRIME_HANDLE_TO_FD",
        READ | WRITE,
        0x2d,
        &DrmPrimeHandle::LAYOUT,
        &[],
        PRIME_FD,
    ),
    drm(
        "DRM_IOCTL_PRIME_FD_TO_HANDLE",
        READ | WRITE,
        0x2e,
        &DrmPrimeHandle::LAYOUT,
        &[],
        PRIME_HANDLE,
    ),
    drm(
        "DRM_IOCTL_SYNCOBJ_CREATE",
        READ | WRITE,
        0xbf,
        &DrmSyncobjCreate::LAYOUT,
        &[],
        SYNCOBJ,
    ),
    drm(
        "DRM_IOCTL_SYNCOBJ_DESTROY",
        READ | WRITE,
        0xc0,
        &DrmSyncobjDestroy::LAYOUT,
        &[],
        &[],
    ),
    drm(
        "DRM_IOCTL_SYNCOBJ_RESET",
        READ | WRITE,
        0xc4,
        &DrmSyncobjArray::LAYOUT,
        SYNCOBJS,
        &[],
    ),
    drm(
        "DRM_IOCTL_SYNCOBJ_SIGNAL",
        READ | WRITE,
        0xc5,
        &DrmSyncobjArray::LAYOUT,
        SYNCOBJS,
        &[],
    ),
    drm(
        "DRM_IOCTL_SYNCOBJ_QUERY",
        READ | WRITE,
        0xcb,
        &DrmSyncobjTimelineArray::LAYOUT,
        QUERIED,
        &[],
    ),
    drm(
        "DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL",
        READ | WRITE,
        0xcd,
        &DrmSyncobjTimelineArray::LAYOUT,
        TIMELINE,
        &[],
    ),
    vfio("VFIO_GROUP_GET_STATUS", 3, &VfioGroupStatus::LAYOUT, GROUP),
    vfio("VFIO_DEVICE_GET_INFO", 7, &VfioDeviceInfo::LAYOUT, DEVICE),
    vfio("VFIO_DEVICE_GET_REGION_INFO", 8, &VfioRegionInfo::LAYOUT, REGION),
    vfio("VFIO_DEVICE_GET_IRQ_INFO", 9, &VfioIrqInfo::LAYOUT, IRQ),
    vfio("VFIO_DEVICE_SET_IRQS", 10, &VfioIrqSet::LAYOUT, &[]),
    of_container("VFIO_IOMMU_GET_INFO", 12, &VfioIommuInfo::LAYOUT, IOMMU),
    of_container("VFIO_IOMMU_MAP_DMA", 13, &VfioDmaMap::LAYOUT, &[]),
    of_container("VFIO_IOMMU_UNMAP_DMA", 14, &VfioDmaUnmap::LAYOUT, UNMAPPED),
    vfio(
        "VFIO_DEVICE_GET_PCI_HOT_RESET_INFO",
        12,
        &VfioPciHotResetInfo::LAYOUT,
        HOT_RESET,
    ),
    vfio("VFIO_DEVICE_PCI_HOT_RESET", 13, &VfioPciHotReset::LAYOUT, &[]),
    vfio("VFIO_DEVICE_FEATURE", 17, &VfioDeviceFeature::LAYOUT, &[]),
];

const MAGIC: &[Part] = &[only(&DrmAuth::LAYOUT, "magic")];
const SET_VERSION: &[Part] = &[all(&DrmSetVersion::LAYOUT)];
const FLINK: &[Part] = &[only(&DrmGemFlink::LAYOUT, "name")];
const OPEN: &[Part] = &[
    only(&DrmGemOpen::LAYOUT, "handle"),
    only(&DrmGemOpen::LAYOUT, "size"),
];
const VALUE: &[Part] = &[only(&DrmGetCap::LAYOUT, "value")];
const PRIME_FD: &[Part] = &[only(&DrmPrimeHandle::LAYOUT, "fd")];
const PRIME_HANDLE: &[Part] = &[only(&DrmPrimeHandle::LAYOUT, "handle")];
const SYNCOBJ: &[Part] = &[only(&DrmSyncobjCreate::LAYOUT, "handle")];
const UNIQUE_LEN: &[Part] = &[only(&DrmUnique::LAYOUT, "unique_len")];
const UNIQUE: &[Pointer] = &[text("unique", "unique_len")];
const HANDLES: Pointer = Pointer::new(
    "handles",
    Pointee::Numbers {
        size: 4,
        print: Print::Plain,
    },
    Elements("count_handles"),
    Way::In,
);
const SYNCOBJS: &[Pointer] = &[HANDLES];
const fn points(way: Way) -> Pointer {
    Pointer::new(
        "points",
        Pointee::Numbers {
            size: 8,
            print: Print::Plain,
        },
        Elements("count_handles"),
        way,
    )
}
const QUERIED: &[Pointer] = &[HANDLES, points(Way::Out)];
const TIMELINE: &[Pointer] = &[HANDLES, points(Way::In)];

const GROUP: &[Part] = &[only(&VfioGroupStatus::LAYOUT, "flags")];
const DEVICE: &[Part] = &[all(&VfioDeviceInfo::LAYOUT)];
const REGION: &[Part] = &[all(&VfioRegionInfo::LAYOUT)];
const IRQ: &[Part] = &[
    only(&VfioIrqInfo::LAYOUT, "flags"),
    only(&VfioIrqInfo::LAYOUT, "count"),
];
const IOMMU: &[Part] = &[all(&VfioIommuInfo::LAYOUT)];
const UNMAPPED: &[Part] = &[only(&VfioDmaUnmap::LAYOUT, "size")];
const HOT_RESET: &[Part] = &[only(&VfioPciHotResetInfo::LAYOUT, "count")];

/// A DRM core ioctl.
const fn drm(
    name: &'static str,
    direction: u32,
    number: u8,
    base: &'static CStruct,
    pointers: &'static [Pointer],
    output: &'static [Part],
) -> OtherIoctl {
    OtherIoctl {
        name,
        request: ioc(direction, DRM_IOCTL_BASE, number, base.size),
        input: Shape {
            base,
            parts: &[],
            pointers,
        },
        output,
        node: None,
    }
}

/// A VFIO ioctl of a group or a device.
const fn vfio(name: &'static str, number: u8, base: &'static CStruct, output: &'static [Part]) -> OtherIoctl {
    OtherIoctl {
        name,
        request: vfio::request(number),
        input: Shape {
            base,
            parts: &[],
            pointers: &[],
        },
        output,
        node: None,
    }
}

/// A VFIO ioctl of a container.
const fn of_container(
    name: &'static str,
    number: u8,
    base: &'static CStruct,
    output: &'static [Part],
) -> OtherIoctl {
    OtherIoctl {
        node: Some(CONTAINER),
        ..vfio(name, number, base, output)
    }
}

const fn takes(parts: &'static [Part], pointers: &'static [Pointer]) -> Shape {
    Shape {
        base: parts[0].of,
        parts,
        pointers,
    }
}

/// A text that the kernel fills, and its length.
const fn text(name: &'static str, len: &'static str) -> Pointer {
    Pointer {
        filled: Some(len),
        ..Pointer::new(name, Pointee::Text, Bytes(len), Way::Out)
    }
}
