//! dma-buf, udmabuf, dma-heap, sync_file and VFIO's export: `linux/dma-buf.h`, `linux/udmabuf.h`,
//! `linux/dma-heap.h`, `linux/sync_file.h`, `linux/vfio.h`.

use crate::ioctl::{ioc, iow, iowr};
use crate::memory::OpenFlags;
use crate::vfio::VfioFeatureFlags;

/// Brackets CPU access to a mapped dma-buf.
pub const DMA_BUF_IOCTL_SYNC: u32 = iow(b'b', 0, size_of::<DmaBufSync>());
/// Sets the name that `/proc` shows; the argument is the address of a text, not a struct.
pub const DMA_BUF_SET_NAME_B: u32 = iow(b'b', 1, size_of::<u64>());
/// Takes a dma-buf's fences out as a sync_file (Linux 6.0).
pub const DMA_BUF_IOCTL_EXPORT_SYNC_FILE: u32 = iowr(b'b', 2, size_of::<DmaBufExportSyncFile>());
/// Adds a sync_file's fence to a dma-buf (Linux 6.0).
pub const DMA_BUF_IOCTL_IMPORT_SYNC_FILE: u32 = iow(b'b', 3, size_of::<DmaBufImportSyncFile>());
/// Makes a dma-buf of a sealed memfd's pages; on `/dev/udmabuf`.
pub const UDMABUF_CREATE: u32 = iow(b'u', 0x42, size_of::<UdmabufCreate>());
/// The same with a list of ranges behind the head.
pub const UDMABUF_CREATE_LIST: u32 = iow(b'u', 0x43, size_of::<UdmabufCreateList>());
/// Allocates a dma-buf; on a node of `/dev/dma_heap`.
pub const DMA_HEAP_IOCTL_ALLOC: u32 = iowr(b'H', 0, size_of::<DmaHeapAllocationData>());
/// Merges two sync_files.
pub const SYNC_IOC_MERGE: u32 = iowr(b'>', 3, size_of::<SyncMergeData>());
/// Asks for a sync_file's fences.
pub const SYNC_IOC_FILE_INFO: u32 = iowr(b'>', 4, size_of::<SyncFileInfo>());

/// The file system that dma-bufs live in since Linux 5.3, as statfs(2) names it (linux/magic.h).
pub const DMA_BUF_MAGIC: u32 = 0x444d_4142;

/// The longest dma-buf name with its zero, in bytes (`DMA_BUF_NAME_LEN`).
pub const DMA_BUF_NAME_LEN: usize = 32;

flags! {
    /// `dma_buf_sync.flags`, `DMA_BUF_SYNC_*`. START is the absence of END.
    pub struct DmaBufSyncFlags(u64), "DMA_BUF_SYNC_" {
        V6_1 READ = 0x1,
        V6_1 WRITE = 0x2,
        V6_1 END = 0x4,
    }
}

flags! {
    /// The accesses whose fences a sync_file stands for, `DMA_BUF_SYNC_*`.
    pub struct DmaBufSyncDirection(u32), "DMA_BUF_SYNC_" {
        V6_1 READ = 0x1,
        V6_1 WRITE = 0x2,
    }
}

impl DmaBufSyncFlags {
    /// Reads and writes (`DMA_BUF_SYNC_RW`).
    pub const RW: Self = Self(Self::READ.0 | Self::WRITE.0);
    /// The start of an access (`DMA_BUF_SYNC_START`): no bit.
    pub const START: Self = Self(0);
}

c_structs! {
    pub struct DmaBufSync = "struct dma_buf_sync" of "linux/dma-buf.h" {
        /// Direction, and START or END.
        pub flags: DmaBufSyncFlags,
    }

    pub struct DmaBufExportSyncFile = "struct dma_buf_export_sync_file" of "linux/dma-buf.h" {
        /// `DMA_BUF_SYNC_READ`, `_WRITE` or both.
        pub flags: DmaBufSyncDirection,
        /// Out: the sync_file.
        pub fd: i32,
    }

    pub struct DmaBufImportSyncFile = "struct dma_buf_import_sync_file" of "linux/dma-buf.h" {
        /// `DMA_BUF_SYNC_READ`, `_WRITE` or both.
        pub flags: DmaBufSyncDirection,
        /// The sync_file.
        pub fd: i32,
    }
}

flags! {
    /// `udmabuf_create.flags`, `UDMABUF_FLAGS_*`.
    pub struct UdmabufFlags(u32), "UDMABUF_FLAGS_" {
        V6_1 CLOEXEC = 0x1,
    }
}

c_structs! {
    /// The ioctl returns the dma-buf's fd.
    pub struct UdmabufCreate = "struct udmabuf_create" of "linux/udmabuf.h" {
        /// A memfd sealed against shrinking and not against writing.
        pub memfd: u32,
        /// Flags.
        pub flags: UdmabufFlags,
        /// First byte, page-aligned.
        #[print(Hex)] pub offset: u64,
        /// Bytes, page-aligned.
        pub size: u64,
    }

    pub struct UdmabufCreateItem = "struct udmabuf_create_item" of "linux/udmabuf.h" {
        /// A memfd sealed against shrinking and not against writing.
        pub memfd: u32,
        /// Zero.
        pub __pad: u32,
        /// First byte, page-aligned.
        #[print(Hex)] pub offset: u64,
        /// Bytes, page-aligned.
        pub size: u64,
    }

    /// The head; `count` items follow in memory.
    pub struct UdmabufCreateList = "struct udmabuf_create_list" of "linux/udmabuf.h" {
        /// Flags.
        pub flags: UdmabufFlags,
        /// Items behind the head.
        pub count: u32,
    }

    pub struct DmaHeapAllocationData = "struct dma_heap_allocation_data" of "linux/dma-heap.h" {
        /// Bytes wanted.
        pub len: u64,
        /// Out: the dma-buf.
        pub fd: u32,
        /// open(2) flags of the fd: `O_CLOEXEC` and the access mode.
        pub fd_flags: OpenFlags,
        /// Zero: no flags are defined.
        pub heap_flags: u64,
    }

    pub struct SyncMergeData = "struct sync_merge_data" of "linux/sync_file.h" {
        /// Name of the new fence.
        #[print(Text)] pub name: [u8; 32],
        /// The second sync_file.
        pub fd2: i32,
        /// Out: the merged sync_file.
        pub fence: i32,
        /// Zero.
        pub flags: u32,
        /// Zero.
        pub pad: u32,
    }

    pub struct SyncFenceInfo = "struct sync_fence_info" of "linux/sync_file.h" {
        /// Name of the timeline.
        #[print(Text)] pub obj_name: [u8; 32],
        /// Name of its driver.
        #[print(Text)] pub driver_name: [u8; 32],
        /// 0 active, 1 signalled, negative an error.
        pub status: i32,
        /// Zero.
        pub flags: u32,
        /// Nanoseconds at the change of status.
        pub timestamp_ns: u64,
    }

    pub struct SyncFileInfo = "struct sync_file_info" of "linux/sync_file.h" {
        /// Name of the fence.
        #[print(Text)] pub name: [u8; 32],
        /// 0 active, 1 signalled, negative an error.
        pub status: i32,
        /// Zero.
        pub flags: u32,
        /// In: room at `sync_fence_info`. Out: fences in the file.
        pub num_fences: u32,
        /// Zero.
        pub pad: u32,
        /// Address of an array of [`SyncFenceInfo`].
        #[print(Hex)] pub sync_fence_info: u64,
    }
}

/// `VFIO_DEVICE_FEATURE`: reads, sets or probes a feature of a VFIO device (`linux/vfio.h`, Linux
/// 5.7).
pub const VFIO_DEVICE_FEATURE: u32 = ioc(0, b';', 100 + 17, 0);
/// Exports ranges of a device's region as a dma-buf (Linux 6.19).
pub const VFIO_DEVICE_FEATURE_DMA_BUF: u32 = 11;

c_structs! {
    /// The head; the feature's data follows in memory.
    pub struct VfioDeviceFeature = "struct vfio_device_feature" of "linux/vfio.h" {
        /// Bytes of head and data.
        pub argsz: u32,
        /// The feature's number in the low half, what is asked of it in the high half.
        pub flags: VfioFeatureFlags,
    }

    pub struct VfioRegionDmaRange = "struct vfio_region_dma_range" of "linux/vfio.h" {
        /// First byte in the region, page-aligned.
        #[print(Hex)] pub offset: u64,
        /// Bytes, page-aligned, not 0.
        pub length: u64,
    }

    /// The head; `nr_ranges` ranges follow in memory. The ioctl returns the dma-buf's fd.
    pub struct VfioDeviceFeatureDmaBuf = "struct vfio_device_feature_dma_buf" of "linux/vfio.h" {
        /// The region: a BAR's number.
        pub region_index: u32,
        /// open(2) flags of the fd.
        pub open_flags: u32,
        /// Zero.
        pub flags: u32,
        /// Ranges behind the head.
        pub nr_ranges: u32,
    }
}
