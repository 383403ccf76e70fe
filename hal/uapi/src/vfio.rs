//! VFIO ioctls, which a tracer decodes (`linux/vfio.h`). Their numbers contain no size: the first
//! word of the argument is its size.

use crate::NumberBits;
use crate::ioctl::ioc;

/// The number of a VFIO ioctl (`_IO(VFIO_TYPE, VFIO_BASE + n)`).
pub const fn request(number: u8) -> u32 {
    ioc(0, b';', 100 + number, 0)
}

flags! {
    /// `vfio_group_status.flags`, `VFIO_GROUP_FLAGS_*`.
    pub struct VfioGroupFlags(u32), "VFIO_GROUP_FLAGS_" {
        V6_1 VIABLE = 0x1,
        V6_1 CONTAINER_SET = 0x2,
    }
}

flags! {
    /// `vfio_device_info.flags`, `VFIO_DEVICE_FLAGS_*`.
    pub struct VfioDeviceFlags(u32), "VFIO_DEVICE_FLAGS_" {
        V6_1 RESET = 0x1,
        V6_1 PCI = 0x2,
        V6_1 PLATFORM = 0x4,
        V6_1 AMBA = 0x8,
        V6_1 CCW = 0x10,
        V6_1 AP = 0x20,
        V6_1 FSL_MC = 0x40,
        V6_1 CAPS = 0x80,
    }
}

flags! {
    /// `vfio_region_info.flags`, `VFIO_REGION_INFO_FLAG_*`.
    pub struct VfioRegionFlags(u32), "VFIO_REGION_INFO_FLAG_" {
        V6_1 READ = 0x1,
        V6_1 WRITE = 0x2,
        V6_1 MMAP = 0x4,
        V6_1 CAPS = 0x8,
    }
}

flags! {
    /// `vfio_irq_info.flags`, `VFIO_IRQ_INFO_*`.
    pub struct VfioIrqFlags(u32), "VFIO_IRQ_INFO_" {
        V6_1 EVENTFD = 0x1,
        V6_1 MASKABLE = 0x2,
        V6_1 AUTOMASKED = 0x4,
        V6_1 NORESIZE = 0x8,
    }
}

flags! {
    /// `vfio_irq_set.flags`, `VFIO_IRQ_SET_*`.
    pub struct VfioIrqSetFlags(u32), "VFIO_IRQ_SET_" {
        V6_1 DATA_NONE = 0x1,
        V6_1 DATA_BOOL = 0x2,
        V6_1 DATA_EVENTFD = 0x4,
        V6_1 ACTION_MASK = 0x8,
        V6_1 ACTION_UNMASK = 0x10,
        V6_1 ACTION_TRIGGER = 0x20,
    }
}

flags! {
    /// `vfio_device_feature.flags`, `VFIO_DEVICE_FEATURE_*`. The low half is the feature's number.
    pub struct VfioFeatureFlags(u32), "VFIO_DEVICE_FEATURE_" {
        V6_1 GET = 0x10000,
        V6_1 SET = 0x20000,
        V6_1 PROBE = 0x40000,
    }
    number NumberBits {
        name: "feature",
        mask: 0xffff,
        names: &[],
    }
}

flags! {
    /// `vfio_iommu_type1_info.flags`, `VFIO_IOMMU_INFO_*`.
    pub struct VfioIommuFlags(u32), "VFIO_IOMMU_INFO_" {
        V6_1 PGSIZES = 0x1,
        V6_1 CAPS = 0x2,
    }
}

flags! {
    /// `vfio_iommu_type1_dma_map.flags`, `VFIO_DMA_MAP_FLAG_*`.
    pub struct VfioDmaMapFlags(u32), "VFIO_DMA_MAP_FLAG_" {
        V6_1 READ = 0x1,
        V6_1 WRITE = 0x2,
        V6_1 VADDR = 0x4,
    }
}

flags! {
    /// `vfio_iommu_type1_dma_unmap.flags`, `VFIO_DMA_UNMAP_FLAG_*`.
    pub struct VfioDmaUnmapFlags(u32), "VFIO_DMA_UNMAP_FLAG_" {
        V6_1 GET_DIRTY_BITMAP = 0x1,
        V6_1 ALL = 0x2,
        V6_1 VADDR = 0x4,
    }
}

c_structs! {
    pub struct VfioGroupStatus = "struct vfio_group_status" of "linux/vfio.h" {
        /// Bytes of the struct.
        pub argsz: u32,
        /// Out: flags.
        pub flags: VfioGroupFlags,
    }

    /// Linux 6.6 made its padding a field.
    pub struct VfioDeviceInfo = "struct vfio_device_info" of "linux/vfio.h" {
        /// In: bytes of the caller's struct. Out: bytes that the answer needs.
        pub argsz: u32,
        /// Out: flags.
        pub flags: VfioDeviceFlags,
        /// Out: the number of regions.
        pub num_regions: u32,
        /// Out: the number of interrupt indexes.
        pub num_irqs: u32,
        /// Out: offset of the first capability.
        pub cap_offset: u32,
    }

    pub struct VfioRegionInfo = "struct vfio_region_info" of "linux/vfio.h" {
        /// In: bytes of the caller's struct. Out: bytes that the answer needs.
        pub argsz: u32,
        /// Out: flags.
        pub flags: VfioRegionFlags,
        /// The region.
        pub index: u32,
        /// Out: offset of the first capability.
        pub cap_offset: u32,
        /// Out: its bytes.
        pub size: u64,
        /// Out: its offset in the device's file.
        #[print(Hex)] pub offset: u64,
    }

    pub struct VfioIrqInfo = "struct vfio_irq_info" of "linux/vfio.h" {
        /// Bytes of the struct.
        pub argsz: u32,
        /// Out: flags.
        pub flags: VfioIrqFlags,
        /// The interrupt index.
        pub index: u32,
        /// Out: its interrupts.
        pub count: u32,
    }

    /// The head; the interrupts' data follows in memory.
    pub struct VfioIrqSet = "struct vfio_irq_set" of "linux/vfio.h" {
        /// Bytes of head and data.
        pub argsz: u32,
        /// The action and the type of the data.
        pub flags: VfioIrqSetFlags,
        /// The interrupt index.
        pub index: u32,
        /// The first interrupt.
        pub start: u32,
        /// The number of interrupts.
        pub count: u32,
    }

    /// The head; devices follow in memory.
    pub struct VfioPciHotResetInfo = "struct vfio_pci_hot_reset_info" of "linux/vfio.h" {
        /// Bytes of head and devices.
        pub argsz: u32,
        /// Flags.
        pub flags: u32,
        /// Out: the number of devices.
        pub count: u32,
    }

    /// The head; descriptors of groups follow in memory.
    pub struct VfioPciHotReset = "struct vfio_pci_hot_reset" of "linux/vfio.h" {
        /// Bytes of head and descriptors.
        pub argsz: u32,
        /// Flags.
        pub flags: u32,
        /// The number of descriptors.
        pub count: u32,
    }

    /// Without its end, where versions differ.
    pub struct VfioIommuInfo = "struct vfio_iommu_type1_info" of "linux/vfio.h" {
        /// In: bytes of the caller's struct. Out: bytes that the answer needs.
        pub argsz: u32,
        /// Out: flags.
        pub flags: VfioIommuFlags,
        /// Out: bit mask of page sizes.
        #[print(Hex)] pub iova_pgsizes: u64,
    }

    pub struct VfioDmaMap = "struct vfio_iommu_type1_dma_map" of "linux/vfio.h" {
        /// Bytes of the struct.
        pub argsz: u32,
        /// Accesses of the device.
        pub flags: VfioDmaMapFlags,
        /// Address in the process.
        #[print(Hex)] pub vaddr: u64,
        /// Address for the device.
        #[print(Hex)] pub iova: u64,
        /// Bytes.
        pub size: u64,
    }

    pub struct VfioDmaUnmap = "struct vfio_iommu_type1_dma_unmap" of "linux/vfio.h" {
        /// Bytes of the struct, and of a bitmap behind it.
        pub argsz: u32,
        /// Flags.
        pub flags: VfioDmaUnmapFlags,
        /// Address for the device.
        #[print(Hex)] pub iova: u64,
        /// In: bytes to unmap. Out: bytes unmapped.
        pub size: u64,
    }
}
