//! Ioctls that programs use beside the driver's own.

use super::Count::{Bytes, Elements};
use super::{At, Part, Pointee, Pointer, Shape, Way, all, only};
use crate::dmabuf::{
    DMA_BUF_IOCTL_EXPORT_SYNC_FILE, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, DMA_BUF_IOCTL_SYNC, DMA_HEAP_IOCTL_ALLOC,
    DmaBufExportSyncFile, DmaBufImportSyncFile, DmaBufSync, DmaHeapAllocationData, SYNC_IOC_FILE_INFO,
    SYNC_IOC_MERGE, SyncFenceInfo, SyncFileInfo, SyncMergeData, UDMABUF_CREATE, UDMABUF_CREATE_LIST,
    UdmabufCreate, UdmabufCreateItem, UdmabufCreateList,
};
use crate::drm::{DRM_IOCTL_VERSION, DrmVersion};

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
}

/// The ioctls of dma-buf, udmabuf, dma-heap, sync_file and DRM whose argument is a struct of this
/// crate.
pub const OTHERS: &[OtherIoctl] = &[
    OtherIoctl {
        name: "DMA_BUF_IOCTL_SYNC",
        request: DMA_BUF_IOCTL_SYNC,
        input: takes(&[all(&DmaBufSync::LAYOUT)], &[]),
        output: &[],
    },
    OtherIoctl {
        name: "DMA_BUF_IOCTL_EXPORT_SYNC_FILE",
        request: DMA_BUF_IOCTL_EXPORT_SYNC_FILE,
        input: takes(&[only(&DmaBufExportSyncFile::LAYOUT, "flags")], &[]),
        output: &[only(&DmaBufExportSyncFile::LAYOUT, "fd")],
    },
    OtherIoctl {
        name: "DMA_BUF_IOCTL_IMPORT_SYNC_FILE",
        request: DMA_BUF_IOCTL_IMPORT_SYNC_FILE,
        input: takes(&[all(&DmaBufImportSyncFile::LAYOUT)], &[]),
        output: &[],
    },
    OtherIoctl {
        name: "UDMABUF_CREATE",
        request: UDMABUF_CREATE,
        input: takes(&[all(&UdmabufCreate::LAYOUT)], &[]),
        output: &[],
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
    },
];

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
