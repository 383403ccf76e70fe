//! Constants and structures of the interface.

c_constants! { CONSTANTS:
    /// Host memory.
    GAUDI_COPY_HOST = 1;
    /// Device memory.
    GAUDI_COPY_DEVICE = 2;

    /// The first gaudi_copy_dmabuf exports the memory. It has pages of its own.
    GAUDI_COPY_EXPORT_ON_DEMAND = 0;
    /// The memory is not exported. It shares the driver's pages with other memory.
    GAUDI_COPY_EXPORT_NEVER = 1;
    /// As ON_DEMAND, in pages that it shares with other memory of this kind. Their dma-buf is one:
    /// an importer can access all of it, and memory that an importer holds can be freed.
    GAUDI_COPY_EXPORT_POOLED = 2;
    /// The allocation exports the memory, and fails if it cannot be exported.
    GAUDI_COPY_EXPORT_ON_ALLOC = 3;

    /// The memory was allocated. The program does not know its address yet.
    GAUDI_COPY_EVENT_ALLOC = 1;
    /// The memory is about to be freed. If that fails, GAUDI_COPY_EVENT_ALLOC follows.
    GAUDI_COPY_EVENT_FREE = 2;

    /// A key for the process that packed it.
    GAUDI_COPY_KEY_PROCESS = 1;
    /// A key that came over a socket from a process of this machine.
    GAUDI_COPY_KEY_HOST = 2;
    /// A key for a NIC of another node.
    GAUDI_COPY_KEY_REMOTE = 3;

    /// Bytes of a key for this process.
    GAUDI_COPY_PROCESS_KEY_BYTES = gaudi_copy::key::PROCESS_KEY_BYTES as u32;
    /// Bytes of a key for a NIC of another node.
    GAUDI_COPY_REMOTE_KEY_BYTES = gaudi_copy::key::REMOTE_KEY_BYTES as u32;

    /// A peer may write.
    GAUDI_COPY_REMOTE_WRITE = 1;
    /// A peer may read.
    GAUDI_COPY_REMOTE_READ = 2;
    /// A peer may use atomic operations.
    GAUDI_COPY_REMOTE_ATOMIC = 4;
}

c_structs! { STRUCTS:
    /// Options of an allocation.
    struct AllocOptions as gaudi_copy_alloc_options, first of 40 bytes {
        /// sizeof of the structure.
        size as size: u32,
        /// GAUDI_COPY_DEVICE or GAUDI_COPY_HOST.
        kind as type: u32,
        /// GAUDI_COPY_EXPORT_...; 0 for host memory.
        export as export_mode: u32,
        /// 0.
        flags as flags: u32,
        /// A power of two up to 1 MiB, of host memory up to 4096; 0 counts as 1.
        align as align: u64,
        /// The page of the driver in bytes; 0 for its default, and for host memory.
        page_bytes as page_bytes: u64,
        /// The wanted device address, a multiple of the page; 0 for any.
        hint as hint: u64,
    }

    /// The memory around an address.
    struct MemoryInfo as gaudi_copy_memory, first of 48 bytes {
        /// sizeof of the structure.
        size as size: u32,
        /// GAUDI_COPY_DEVICE or GAUDI_COPY_HOST.
        kind as type: u32,
        /// Its first address.
        base as base: u64,
        /// Its bytes.
        len as len: u64,
        /// The index of the card.
        device as device: u32,
        /// 1 if the bus fields are set: 0 for a mock.
        has_bus as has_bus: u32,
        /// PCI domain of the card.
        bus_domain as bus_domain: u32,
        /// PCI bus.
        bus as bus: u32,
        /// PCI device.
        bus_device as bus_device: u32,
        /// PCI function.
        bus_function as bus_function: u32,
    }

    /// A dma-buf of a range of memory, as ibv_reg_dmabuf_mr and FI_MR_DMABUF take it.
    struct Dmabuf as gaudi_copy_dmabuf, first of 32 bytes {
        /// sizeof of the structure.
        size as size: u32,
        /// A descriptor of the program, close-on-exec. Close it.
        fd as fd: i32,
        /// Bytes from the dma-buf's start to the address.
        offset as offset: u64,
        /// Bytes of the range.
        len as len: u64,
        /// The address of the range: the iova of a region.
        address as address: u64,
    }

    /// Device memory appeared, or is about to disappear.
    struct Event as gaudi_copy_event, first of 32 bytes {
        /// sizeof of the structure.
        size as size: u32,
        /// GAUDI_COPY_EVENT_...
        kind as event: u32,
        /// The first address.
        address as address: u64,
        /// Bytes.
        len as len: u64,
        /// The index of the card.
        device as device: u32,
        /// 0.
        reserved as reserved: u32,
    }

    /// A region of memory that the program registered with a NIC.
    struct NicRegion as gaudi_copy_nic_region, first of 64 bytes {
        /// sizeof of the structure.
        size as size: u32,
        /// The key that a peer's NIC sends.
        rkey as rkey: u32,
        /// The region's first byte, as the program sees it.
        address as address: u64,
        /// Bytes.
        len as len: u64,
        /// The address of its first byte for a NIC.
        iova as iova: u64,
        /// GUID of the NIC's node.
        node as node: u64,
        /// GID of the NIC's port.
        gid as gid: [u8; 16],
        /// GAUDI_COPY_REMOTE_...
        access as access: u32,
        /// 0.
        reserved as reserved: u32,
    }

    /// What an attached key names.
    struct KeyInfo as gaudi_copy_key_info, first of 32 bytes {
        /// sizeof of the structure.
        size as size: u32,
        /// GAUDI_COPY_KEY_...
        scope as scope: u32,
        /// GAUDI_COPY_DEVICE or GAUDI_COPY_HOST.
        kind as type: u32,
        /// 0.
        reserved as reserved: u32,
        /// The first address in the process that owns the memory.
        address as address: u64,
        /// Bytes.
        len as len: u64,
    }

    /// What this process did with the library.
    struct Counters as gaudi_copy_counters, first of 32 bytes {
        /// sizeof of the structure.
        size as size: u32,
        /// 0.
        reserved as reserved: u32,
        /// Copies: of gaudi_copy_copy, gaudi_copy_put and gaudi_copy_get.
        copies as copies: u64,
        /// Bytes of them.
        copied_bytes as copied_bytes: u64,
        /// Descriptors that gaudi_copy_dmabuf returned.
        exports as exports: u64,
    }
}
