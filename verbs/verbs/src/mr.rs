//! [`Mr`]: memory that a NIC may touch.

#![expect(
    unsafe_code,
    reason = "registering host memory is a promise about memory that outlives the call"
)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use gaudi_dmabuf::Window;
use gaudi_seam::{Error, HostVa, RawMapping, Result};

use crate::access::Access;
use crate::context::Pd;
use crate::invalid;
use crate::provider::{DmaBufMr, NewMr};
use crate::wr::{Lkey, MrAddr, RemoteRegion, Rkey, Sge};

const PAGE: u64 = gaudi_sys::PAGE;

/// Whether a region still reaches its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MrState {
    /// It does.
    Live,
    /// Something happened that may have taken the memory: a reset of the device, an access error of a queue pair that used it.
    Suspect,
    /// The exporter took the memory back: every use of its keys fails. It can only be closed.
    Revoked,
}

/// Which way a registration went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegPath {
    /// Host memory, by its address.
    Host,
    /// `ibv_reg_dmabuf_mr` of the NIC's library.
    DmaBuf,
    /// `ibv_reg_mr_ex` with a dma-buf.
    DmaBufEx,
    /// `mlx5dv_reg_dmabuf_mr` with data direct: past the root complex.
    DataDirect,
    /// The kernel's ioctl, where the NIC's library has no such operation.
    RawUverbs,
    /// A software NIC, through a mapping of the dma-buf.
    Software,
}

impl RegPath {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "ibv_reg_mr_iova",
            Self::DmaBuf => "ibv_reg_dmabuf_mr",
            Self::DmaBufEx => "ibv_reg_mr_ex",
            Self::DataDirect => "mlx5dv_reg_dmabuf_mr (data direct)",
            Self::RawUverbs => "uverbs ioctl REG_DMABUF_MR",
            Self::Software => "software",
        }
    }
}

/// A memory region. Its memory and its domain live as long as it does.
pub struct Mr {
    new: NewMr,
    live: bool,
    iova: MrAddr,
    len: u64,
    access: Access,
    pd: Pd,
    memory: ManuallyDrop<Memory>,
}

/// What a region stands on.
enum Memory {
    /// The caller answers for it.
    Promised,
    /// Raw memory of this process.
    Mapping(#[expect(dead_code, reason = "held so that the memory stays mapped")] Arc<RawMapping>),
    /// Boxed, so that a region stays small enough to hand back in an error.
    DmaBuf(Box<Window>),
}

impl Pd {
    /// `ibv_reg_mr_iova`: registers a mapping; addresses of the region count from the mapping's own address.
    pub fn reg_mapping(&self, mapping: Arc<RawMapping>, access: Access) -> Result<Mr> {
        let address = HostVa(mapping.as_ptr().as_ptr().expose_provenance() as u64);
        let len = mapping.len() as u64;
        // SAFETY: the region holds the mapping until it is deregistered, and gives it up for good where that fails; nobody can make
        // a reference into a `RawMapping`, which is always readable and writable.
        let mut mr = unsafe { self.reg_mr(address, len, address.into(), access) }?;
        mr.memory = ManuallyDrop::new(Memory::Mapping(mapping));
        Ok(mr)
    }

    /// `ibv_reg_mr_iova`: registers `len` bytes of this process at `address`; addresses of the region count from `iova`.
    ///
    /// # Safety
    /// Until [`Mr::close`] has returned `Ok`, or the region was dropped without a logged error:
    /// - the range stays mapped: readable, and writable where `access` lets the NIC write;
    /// - no Rust reference to it is made or used while work that touches it may run.
    pub unsafe fn reg_mr(&self, address: HostVa, len: u64, iova: MrAddr, access: Access) -> Result<Mr> {
        const OPERATION: &str = "ibv_reg_mr_iova";
        self.check_mr(OPERATION, len, iova, access)?;
        if address.checked_add(len).is_none() {
            return Err(invalid(OPERATION, "the range leaves the address space"));
        }
        let device = self.context().device(OPERATION)?;
        // SAFETY: the caller promises exactly what the provider asks for.
        let new = unsafe { device.reg_mr(self.handle(), address, len, iova, access) }?;
        Ok(self.mr(new, iova, len, access, Memory::Promised))
    }

    /// `ibv_reg_dmabuf_mr`: registers a window of a dma-buf; addresses of the region count from `iova`. For device memory that is best
    /// the device address of the window's first byte: then both ends speak of the same addresses as the device.
    ///
    /// `InvalidInput` where `iova` and the window's offset differ modulo 4096 (the kernel refuses that: uverbs_std_types_mr.c).
    /// `Unsupported` where the NIC cannot register dma-bufs, or cannot reach this exporter's.
    pub fn reg_dmabuf_mr(&self, window: &Window, iova: MrAddr, access: Access) -> Result<Mr> {
        const OPERATION: &str = "ibv_reg_dmabuf_mr";
        self.context().check_dmabuf(OPERATION)?;
        self.check_mr(OPERATION, window.len(), iova, access)?;
        if window.offset() % PAGE != iova.0 % PAGE {
            return Err(invalid(
                OPERATION,
                "iova and the offset in the dma-buf differ within a page",
            )
            .saw(
                format!("iova {iova}, offset {:#x}", window.offset()),
                format!("the same value modulo {PAGE}"),
            ));
        }
        let device = self.context().device(OPERATION)?;
        let new = device.reg_dmabuf_mr(&DmaBufMr {
            pd: self.handle(),
            window,
            iova,
            access,
        })?;
        Ok(self.mr(
            new,
            iova,
            window.len(),
            access,
            Memory::DmaBuf(Box::new(window.clone())),
        ))
    }

    fn check_mr(&self, operation: &'static str, len: u64, iova: MrAddr, access: Access) -> Result<()> {
        access.check(operation)?;
        let limit = self.context().attr().max_mr_size;
        self.context()
            .check_limit(operation, "a region cannot have so many bytes", len, limit)?;
        if iova.checked_add(len).is_none() {
            return Err(invalid(operation, "iova and length leave the address space")
                .saw(format!("{len} bytes at {iova}"), "an end below 2^64"));
        }
        Ok(())
    }

    fn mr(&self, new: NewMr, iova: MrAddr, len: u64, access: Access, memory: Memory) -> Mr {
        Mr {
            new,
            live: true,
            iova,
            len,
            access,
            pd: self.clone(),
            memory: ManuallyDrop::new(memory),
        }
    }
}

impl Mr {
    /// For work requests of this end.
    pub fn lkey(&self) -> Lkey {
        self.new.lkey
    }

    /// For the peer.
    pub fn rkey(&self) -> Rkey {
        self.new.rkey
    }

    /// The address of the first byte, as the keys see it.
    pub fn addr(&self) -> MrAddr {
        self.iova
    }

    /// Bytes; never 0.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a region is never empty, by construction"
    )]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What it allows.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The window that it stands on, where it is one.
    pub fn window(&self) -> Option<&Window> {
        match &*self.memory {
            Memory::DmaBuf(window) => Some(window),
            Memory::Promised | Memory::Mapping(_) => None,
        }
    }

    /// Which way the registration went.
    pub fn path(&self) -> RegPath {
        self.new.path
    }

    /// Whether it still reaches its memory, as far as anything tells.
    pub fn state(&self) -> Result<MrState> {
        let known = self
            .pd
            .context()
            .device("memory region state")?
            .mr_state(self.new.handle)?;
        Ok(known.unwrap_or(MrState::Live))
    }

    /// The `length` bytes at `offset` as a local element. `InvalidInput` where they leave the region.
    pub fn sge(&self, offset: u64, length: u32) -> Result<Sge> {
        let addr = self.remote().at(offset, u64::from(length))?.addr;
        Ok(Sge {
            addr,
            length,
            lkey: self.lkey(),
        })
    }

    /// What the peer needs in order to reach it.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            addr: self.iova,
            len: self.len,
            rkey: self.rkey(),
        }
    }

    /// `ibv_dereg_mr`: returns once the NIC touches the memory no more, or gives the region back with the reason.
    ///
    /// Slow where it is the last hold on a closed device: its reset then runs inside this call (1 s and more).
    pub fn close(mut self) -> Result<(), (Self, Error)> {
        match self.dereg() {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    fn dereg(&mut self) -> Result<()> {
        self.pd
            .context()
            .device("ibv_dereg_mr")?
            .dereg_mr(self.new.handle)?;
        self.live = false;
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let freed = if self.live { self.dereg() } else { Ok(()) };
        if freed.is_ok() || self.window().is_some() {
            // SAFETY: dropped here only, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
        // Otherwise the NIC may still write to the mapping: it must stay for as long as the process does.
        self.pd.context().report(freed);
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            iova, len, access, ..
        } = self;
        write!(
            f,
            "Mr({len} bytes at {iova}, lkey {}, rkey {}, {access:?}",
            self.lkey(),
            self.rkey()
        )?;
        if let Some(window) = self.window() {
            write!(f, ", {window:?}")?;
        }
        f.write_str(")")
    }
}
