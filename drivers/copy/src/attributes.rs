//! What a memory domain offers, and what it costs.

use gaudi_device::{DeviceId, DeviceVa};
use gaudi_seam::PciAddress;

use crate::kind::TypeSet;

/// A linear cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Nanoseconds of any call.
    pub fixed_ns: u64,
    /// Picoseconds for each byte.
    pub per_byte_ps: u64,
}

/// Costs of copies, which come from configuration: no field is a measurement of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Costs {
    /// Nanoseconds of the processor to start a copy.
    pub overhead_ns: u64,
    /// Nanoseconds until the first byte has arrived.
    pub latency_ns: u64,
    /// Bytes for each second of a long copy.
    pub bandwidth_bytes_per_second: u64,
    /// Registration of memory.
    pub registration: Cost,
}

/// What a memory domain offers. Each capability is one that a call honours.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// Backend and index of the card.
    pub device: DeviceId,
    /// The node's path, or the mock's spec.
    pub node: String,
    /// The chip's name; `None` if no table has the device: then nothing can be allocated.
    pub asic: Option<&'static str>,
    /// Position on the server's board.
    pub module_id: u32,
    /// PCI address; `None` for a mock, and if sysfs does not have it.
    pub bus: Option<PciAddress>,
    /// Types that [`alloc`](crate::MemoryDomain::alloc) returns.
    pub alloc: TypeSet,
    /// Types that [`register`](crate::MemoryDomain::register) and
    /// [`register_device`](crate::MemoryDomain::register_device) accept.
    pub register: TypeSet,
    /// Types that [`mem_query`](crate::MemoryDomain::mem_query) detects.
    pub detect: TypeSet,
    /// Types that can be exported as a dma-buf.
    pub dmabuf: TypeSet,
    /// Whether dma-bufs of other exporters can be registered, if a processor can map them.
    pub register_dmabuf: bool,
    /// Bytes of device memory for users.
    pub device_bytes: u64,
    /// Free bytes of device memory; `None` if the driver does not report them.
    pub free_device_bytes: Option<u64>,
    /// The page of device memory in bytes.
    pub device_page_bytes: u64,
    /// The first address of device memory.
    pub device_base: DeviceVa,
    /// Bytes of a key of this process.
    pub process_key_bytes: usize,
    /// Bytes of a key for a NIC of another node.
    pub remote_key_bytes: usize,
    /// Costs of registration and copies.
    pub costs: Costs,
}
