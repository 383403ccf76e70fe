//! Gaudi accelerators from user space: device memory and copies, dma-buf, RDMA, and transfers
//! between the memory of two nodes.
//!
//! | to | start with | feature |
//! |---|---|---|
//! | open a card, or a mock without one | [`Device::open`], [`DeviceSpec`], [`list()`] | `kernel`, `mock` |
//! | allocate, copy and fill memory | [`Device`], [`Buffer`], [`HostMapping`] | |
//! | wait for a copy | [`Completion`], [`Deadline`] | `async` for `.await` |
//! | chain copies on one queue | [`Queue`], [`Sob`] | |
//! | trace a device, or inject faults | [`layers`] | `layers` |
//! | share device memory with another driver or process | [`dmabuf`] | `dmabuf` |
//! | drive a NIC: regions, queue pairs, completion queues | [`verbs`] | `verbs` |
//! | move bytes between two nodes | [`remote::Endpoint`] | `remote` |
//! | embed a memory domain and a copy transport | [`copy::MemoryDomain`] | `copy` |
//! | test code under injected faults | `faults::check` | `faults` |
//! | wait for descriptors, pass them, read clocks | [`sys`] | |
//!
//! Every call returns one [`Error`]: [`kind`](Error::kind) to branch on, the errno, and the cause.
//! The features above are on by default; `async` and `faults` are not.
//!
//! ```
//! use gaudi::{Deadline, Device};
//!
//! let device = Device::open(&"mock:gaudi2?name=front".parse()?)?;
//! let (buffer, host) = (device.alloc(4096)?, device.alloc_host(4096)?);
//! host.write(0, b"hello")?;
//! device.copy(&buffer, &host)?.wait(Deadline::NEVER)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! From device to device, over dma-bufs and two NICs (`examples/device_to_device.rs`):
#![cfg_attr(feature = "remote", doc = "```no_run")]
#![cfg_attr(not(feature = "remote"), doc = "```ignore")]
#![doc = include_str!("../examples/device_to_device.rs")]
//! ```
//!
//! `examples/epoll.rs` waits for a completion beside other descriptors, and `examples/reset.rs`
//! detects a reset, drops what it lost and opens the device again.

#[cfg(feature = "async")]
pub use gaudi_device::CompletionFuture;
pub use gaudi_device::{
    Buffer, CacheStats, CloseError, Completion, Deadline, Device, DeviceId, DeviceSpec, DeviceStatus,
    DeviceVa, Direction, Error, ErrorKind, Fallback, HostBuffer, HostMapping, Info, Location, Options, Pages,
    Placement, Queue, QueueId, Result, Sob, Stats, StatusHandle, Telemetry,
};
pub use gaudi_hal::{Environment, Listed, choose, list, open};
pub use gaudi_seam::{Backend, BackendSpec, Errno, KernelSelector, LayerSpec, PciAddress};

/// System calls for programs around a device: waiting for descriptors, passing them between
/// processes, clocks and random numbers.
pub mod sys {
    pub use gaudi_sys::{clock, fd, poll, random, socket};
}

/// Traces and injected faults: layers of a [`DeviceSpec`], and the handles that count and arm
/// faults.
///
/// A spec names its layers after a plus sign: `mock:gaudi2+fault=submit:when=2:error=EIO`.
/// [`Device::fault_handles`] returns the handles of an open device.
#[cfg(feature = "layers")]
pub mod layers {
    #[doc(inline)]
    pub use gaudi_hal::layers::*;
}

/// Device memory as dma-bufs: export, windows, import, passing to another process, and
/// [`reach`](dmabuf::reach): which NIC reaches which card.
///
/// [`Buffer::export`] and [`Buffer::window`] return this module's types.
#[cfg(feature = "dmabuf")]
pub mod dmabuf {
    #[doc(inline)]
    pub use gaudi_dmabuf::*;
}

/// RDMA in rdma-core's terms: protection domains, memory regions, queue pairs, completion queues.
#[cfg(feature = "verbs")]
pub mod verbs {
    use std::sync::Arc;

    #[doc(inline)]
    pub use gaudi_verbs::*;

    /// The NICs of libibverbs, which is opened at run time.
    pub mod ibverbs {
        #[doc(inline)]
        pub use gaudi_ibverbs::*;
    }

    /// A NIC in software: its cable is a socket, and a processor performs its transfers.
    pub mod softnic {
        #[doc(inline)]
        pub use gaudi_softnic::*;
    }

    /// Opens a NIC of libibverbs by its name, such as `mlx5_0`.
    ///
    /// # Errors
    /// - `NotFound`: there is no such NIC, or no libibverbs.
    /// - `PermissionDenied`: the user may not open its device file.
    pub fn open(name: &str) -> Result<Context> {
        Context::open(ibverbs::open(name)?)
    }

    /// Opens two software NICs that are joined by a cable.
    ///
    /// # Errors
    /// `TooManyFiles`, `OutOfMemory`: the process has no descriptor or thread left.
    pub fn software_pair() -> Result<(Context, Context)> {
        let (one, other) = softnic::SoftNic::pair(softnic::SoftNicConfig::default())?;
        Ok((Context::open(one as Arc<_>)?, Context::open(other as Arc<_>)?))
    }
}

/// Property tests of code on a device under injected faults, with named invariants.
#[cfg(feature = "faults")]
pub mod faults {
    #[doc(inline)]
    pub use gaudi_faults::*;
    pub use gaudi_hal::{EXIT_REPORT_VARIABLE, ExitReport, OpenMock};
}

/// Transfers between the memory of two nodes: [`Endpoint`](remote::Endpoint) offers, puts and gets.
#[cfg(feature = "remote")]
pub mod remote {
    #[doc(inline)]
    pub use gaudi_remote::*;
}

/// A memory domain and a copy transport for communication libraries: allocation, registration,
/// queries by address, keys, puts and gets.
#[cfg(feature = "copy")]
pub mod copy {
    #[doc(inline)]
    pub use gaudi_copy::*;
}
