//! Memory: `DRM_IOCTL_HL_MEMORY` — device memory, mappings, hardware blocks, dma-buf export,
//! timestamp buffers.

use zerocopy::{Immutable, IntoBytes};

use crate::words;

open_enum! {
    /// `hl_mem_in.op`, `HL_MEM_OP_*`.
    pub struct MemOp(u32), "HL_MEM_OP_" {
        V6_1 ALLOC = 0,
        V6_1 FREE = 1,
        V6_1 MAP = 2,
        V6_1 UNMAP = 3,
        V6_1 MAP_BLOCK = 4,
        V6_1 EXPORT_DMABUF_FD = 5,
        V6_1 TS_ALLOC = 6,
        Gaudi3 REG_DMABUF_FD = 99,
    }
}

flags! {
    /// `hl_mem_in.flags`, `HL_MEM_*`. For EXPORT_DMABUF_FD the field holds open(2) flags instead.
    pub struct MemFlags(u32), "HL_MEM_" {
        V6_1 CONTIGUOUS = 0x1,
        V6_1 SHARED = 0x2,
        V6_1 USERPTR = 0x4,
        V6_1 FORCE_HINT = 0x8,
        Gaudi3 ODP = 0x20,
        V6_1 PREFETCH = 0x40,
    }
}

flags! {
    /// The flags of open(2) that go with a dma-buf (`asm-generic/fcntl.h`).
    pub struct OpenFlags(u32), "O_" {
        V6_1 WRONLY = 0x1,
        V6_1 RDWR = 0x2,
        V6_1 CLOEXEC = 0x8_0000,
    }
}

c_structs! {
    pub struct HlMemIn = "struct hl_mem_in" {
        /// The union: one of the structs below, by the operation.
        #[c()] pub arg: [u64; 3],
        /// The operation.
        pub op: MemOp,
        /// Flags.
        pub flags: MemFlags,
        /// Not in use.
        pub ctx_id: u32,
        /// Elements of a timestamp buffer, for TS_ALLOC.
        pub num_of_elements: u32,
    }

    /// `hl_mem_in.alloc`.
    pub struct HlMemInAlloc in HlMemIn.arg as alloc {
        /// Bytes wanted; rounded up to the page.
        pub mem_size: u64,
        /// Bytes of a page, or 0 for the device's default.
        pub page_size: u64,
    }

    /// `hl_mem_in.free`.
    pub struct HlMemInFree in HlMemIn.arg as free {
        /// Handle from ALLOC.
        #[print(Hex)] pub handle: u64,
    }

    /// `hl_mem_in.map_device`.
    pub struct HlMemInMapDevice in HlMemIn.arg as map_device {
        /// Device address wished for, or 0.
        #[print(Hex)] pub hint_addr: u64,
        /// Handle from ALLOC.
        #[print(Hex)] pub handle: u64,
    }

    /// `hl_mem_in.map_host`.
    pub struct HlMemInMapHost in HlMemIn.arg as map_host {
        /// Address in the caller's process.
        #[print(Hex)] pub host_virt_addr: u64,
        /// Device address wished for, or 0.
        #[print(Hex)] pub hint_addr: u64,
        /// Bytes.
        pub mem_size: u64,
    }

    /// `hl_mem_in.map_block`.
    pub struct HlMemInMapBlock in HlMemIn.arg as map_block {
        /// Device address in configuration space.
        #[print(Hex)] pub block_addr: u64,
    }

    /// `hl_mem_in.unmap`.
    pub struct HlMemInUnmap in HlMemIn.arg as unmap {
        /// Device address from MAP.
        #[print(Hex)] pub device_virt_addr: u64,
    }

    /// `hl_mem_in.export_dmabuf_fd`. In Linux 6.1 the first word is `handle` and `offset` does not
    /// exist.
    pub struct HlMemInExportDmabufFd in HlMemIn.arg as export_dmabuf_fd {
        /// Device address exactly as MAP returned it (Gaudi: physical DRAM address).
        #[since(V7)] #[print(Hex)] pub addr: u64,
        /// Bytes to export.
        pub mem_size: u64,
        /// Where they start in the mapping (Gaudi: 0).
        #[since(V7)] #[print(Hex)] pub offset: u64,
    }

    /// `hl_mem_in.flags` for EXPORT_DMABUF_FD.
    pub struct HlMemInExportFlags in HlMemIn.flags {
        /// Flags of the fd.
        pub flags: OpenFlags,
    }

    /// `hl_mem_in.reg_dmabuf_fd`, gaudi3 header, where it is called experimental: makes a foreign
    /// dma-buf the device's to use.
    pub struct HlMemInRegDmabufFd in HlMemIn.arg as reg_dmabuf_fd, Gaudi3 {
        /// The dma-buf.
        pub fd: u64,
        /// Its bytes.
        pub length: u64,
    }
}

impl HlMemIn {
    // Inlined, as are the constructors: copying a struct just after its fields were written stalls
    // the processor for longer than the rest of a call takes.
    #[inline]
    fn new<T: IntoBytes + Immutable>(op: MemOp, flags: MemFlags, view: &T) -> Self {
        Self {
            arg: words::from_view(view),
            op,
            flags,
            ..Self::default()
        }
    }

    /// Allocates device memory. A page size of 0 takes the device's default.
    #[inline]
    pub fn alloc(mem_size: u64, page_size: u64, flags: MemFlags) -> Self {
        Self::new(MemOp::ALLOC, flags, &HlMemInAlloc { mem_size, page_size })
    }

    /// Frees device memory that is mapped nowhere.
    #[inline]
    pub fn free(handle: u64) -> Self {
        Self::new(MemOp::FREE, MemFlags::NONE, &HlMemInFree { handle })
    }

    /// Maps device memory. A hint of 0 lets the driver choose.
    #[inline]
    pub fn map_device(handle: u64, hint_addr: u64, flags: MemFlags) -> Self {
        Self::new(MemOp::MAP, flags, &HlMemInMapDevice { hint_addr, handle })
    }

    /// Pins and maps host memory; sets [`MemFlags::USERPTR`]. A hint of 0 lets the driver choose.
    #[inline]
    pub fn map_host(host_virt_addr: u64, mem_size: u64, hint_addr: u64, flags: MemFlags) -> Self {
        let view = HlMemInMapHost {
            host_virt_addr,
            hint_addr,
            mem_size,
        };
        Self::new(MemOp::MAP, flags | MemFlags::USERPTR, &view)
    }

    /// Takes a mapping away, of host or of device memory.
    #[inline]
    pub fn unmap(device_virt_addr: u64) -> Self {
        Self::new(MemOp::UNMAP, MemFlags::NONE, &HlMemInUnmap { device_virt_addr })
    }

    /// Asks for the mmap handle of a block of registers.
    #[inline]
    pub fn map_block(block_addr: u64) -> Self {
        Self::new(MemOp::MAP_BLOCK, MemFlags::NONE, &HlMemInMapBlock { block_addr })
    }

    /// Exports a part of a mapping as a dma-buf. `file_flags` are open(2) flags.
    #[inline]
    pub fn export_dmabuf_fd(addr: u64, mem_size: u64, offset: u64, file_flags: u32) -> Self {
        let view = HlMemInExportDmabufFd {
            addr,
            mem_size,
            offset,
        };
        Self::new(MemOp::EXPORT_DMABUF_FD, MemFlags(file_flags), &view)
    }

    /// Allocates a timestamp buffer.
    #[inline]
    pub fn ts_alloc(num_of_elements: u32) -> Self {
        Self {
            op: MemOp::TS_ALLOC,
            num_of_elements,
            ..Self::default()
        }
    }
}

c_structs! {
    /// One union, its meaning set by the request.
    pub struct HlMemOut = "struct hl_mem_out" {
        /// The union. In C: `device_virt_addr`, `handle`, `{block_handle, block_size, pad}`, or
        /// `fd`.
        #[c()] pub arg: [u64; 2],
    }

    /// The variant of [`HlMemOut`] after MAP_BLOCK: anonymous in `struct hl_mem_out`.
    pub struct HlMemOutBlock in HlMemOut.arg {
        /// The mmap offset.
        #[c("block_handle", "device_virt_addr", "handle")] #[print(Hex)] pub block_handle: u64,
        /// Bytes to mmap.
        pub block_size: u32,
        /// Zero.
        pub pad: u32,
    }

    /// The variant of [`HlMemOut`] after EXPORT_DMABUF_FD: anonymous in `struct hl_mem_out`.
    pub struct HlMemOutFd in HlMemOut.arg {
        /// The dma-buf.
        pub fd: i32,
    }
}

impl HlMemOut {
    /// After MAP.
    #[inline]
    pub fn device_virt_addr(&self) -> u64 {
        self.arg[0]
    }

    /// After ALLOC and TS_ALLOC. ALLOC on Gaudi succeeds with handle 0.
    #[inline]
    pub fn handle(&self) -> u64 {
        self.arg[0]
    }

    /// After MAP_BLOCK.
    #[inline]
    pub fn block(&self) -> HlMemOutBlock {
        words::to_view(&self.arg)
    }

    /// After EXPORT_DMABUF_FD.
    #[inline]
    pub fn fd(&self) -> i32 {
        words::to_view(&self.arg)
    }
}

args_union! {
    pub struct HlMemArgs[5] = "union hl_mem_args" { in: HlMemIn, out: HlMemOut }
}
