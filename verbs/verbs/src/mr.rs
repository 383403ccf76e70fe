//! [`Mr`]: memory that a NIC may access.

#![expect(
    unsafe_code,
    reason = "registering host memory is a promise about memory that outlives the call"
)]

use std::fmt;
use std::sync::Arc;

use gaudi_dmabuf::Window;
use gaudi_seam::{CloseError, DeviceVa, HostVa, RawMapping, Result};

use crate::access::Access;
use crate::context::Pd;
use crate::handle::MrHandle;
use crate::invalid;
use crate::object::Parent;
use crate::provider::{DmaBufMr, MrState, NewMr, RegPath};
use crate::region::{Memory, Region, RegionInfo, Registered};
use crate::wr::{Lkey, MrAddr, RemoteRegion, Rkey, Sge};

const PAGE: u64 = gaudi_sys::PAGE;

/// A memory region. Its memory and its domain live as long as it does.
pub struct Mr {
    /// Copies of the region's keys, so that building a work request reads no other memory.
    lkey: Lkey,
    rkey: Rkey,
    /// Boxed, so that a cache hit needs one cache line.
    body: Box<Body>,
}

struct Body {
    /// Number of the region in its context.
    id: u64,
    region: Arc<Region>,
    pd: Pd,
}

impl Pd {
    /// Registers a mapping (`ibv_reg_mr_iova`). Addresses of the region are those of the mapping.
    ///
    /// # Errors
    /// As [`reg_mr`](Self::reg_mr).
    pub fn reg_mapping(&self, mapping: Arc<RawMapping>, access: Access) -> Result<Mr> {
        let address = HostVa(mapping.as_ptr().as_ptr().expose_provenance() as u64);
        let len = mapping.len() as u64;
        // SAFETY: the region holds the mapping until it is deregistered, and leaks it if that
        // fails. There are no references into a `RawMapping`, which is always readable and
        // writable.
        unsafe { self.register_host(address, len, address.into(), access, Memory::Mapping(mapping)) }
    }

    /// Registers `len` bytes of this process at `address` (`ibv_reg_mr_iova`). Addresses of the
    /// region count from `iova`.
    ///
    /// # Errors
    /// `InvalidInput` if `iova` and `address` differ modulo 4096, or for rights or a length that
    /// the NIC does not allow; the errno of `ibv_reg_mr_iova`.
    ///
    /// # Safety
    /// Until [`Mr::close`] has returned `Ok`, or the region was dropped without a logged error:
    /// - the range stays mapped: readable, and writable if `access` lets the NIC write;
    /// - no Rust reference to it is created or used while work that accesses it may run.
    pub unsafe fn reg_mr(&self, address: HostVa, len: u64, iova: MrAddr, access: Access) -> Result<Mr> {
        // SAFETY: as the caller promises.
        unsafe { self.register_host(address, len, iova, access, Memory::Promised) }
    }

    /// # Safety
    /// - As [`reg_mr`](Self::reg_mr), until the region is deregistered.
    unsafe fn register_host(
        &self,
        address: HostVa,
        len: u64,
        iova: MrAddr,
        access: Access,
        memory: Memory,
    ) -> Result<Mr> {
        const OPERATION: &str = "ibv_reg_mr_iova";
        access.check(OPERATION)?;
        self.check_mr(OPERATION, len, iova, "the address", address.get())?;
        if address.checked_add(len).is_none() {
            return Err(invalid(OPERATION, "the range leaves the address space"));
        }
        let device = self.context().device(OPERATION)?;
        // SAFETY: the caller promises what the provider requires.
        let new = unsafe { device.reg_mr(self.handle(), address, len, iova, access) }?;
        Ok(self.mr(new, iova, len, access, memory))
    }

    /// Registers a window of a dma-buf (`ibv_reg_dmabuf_mr`). Addresses of the region count from
    /// `iova`. For device memory use [`reg_device_mr`](Self::reg_device_mr).
    ///
    /// # Errors
    /// - `InvalidInput` if `iova` and the window's offset differ modulo 4096
    ///   (uverbs_std_types_mr.c), or for rights that a dma-buf cannot have.
    /// - `Unsupported` if the NIC cannot register dma-bufs, or cannot reach this exporter's.
    pub fn reg_dmabuf_mr(&self, window: &Window, iova: MrAddr, access: Access) -> Result<Mr> {
        const OPERATION: &str = "ibv_reg_dmabuf_mr";
        access.check_dmabuf(OPERATION)?;
        self.context().check_dmabuf(OPERATION)?;
        self.check_mr(
            OPERATION,
            window.len(),
            iova,
            "the offset in the dma-buf",
            window.offset(),
        )?;
        let device = self.context().device(OPERATION)?;
        let new = device.reg_dmabuf_mr(&DmaBufMr {
            pd: self.handle(),
            window,
            iova,
            access,
        })?;
        let memory = Memory::DmaBuf(Box::new(window.clone()));
        Ok(self.mr(new, iova, window.len(), access, memory))
    }

    /// As [`reg_dmabuf_mr`](Self::reg_dmabuf_mr), with device addresses: `exported` is the device
    /// address of the dma-buf's first byte. Both ends then use the addresses of the device.
    ///
    /// # Errors
    /// As [`reg_dmabuf_mr`](Self::reg_dmabuf_mr).
    pub fn reg_device_mr(&self, window: &Window, exported: DeviceVa, access: Access) -> Result<Mr> {
        let iova = MrAddr::from(exported)
            .checked_add(window.offset())
            .ok_or_else(|| {
                invalid("ibv_reg_dmabuf_mr", "the window leaves the device's addresses").saw(
                    format!("offset {:#x} of an export at {exported}", window.offset()),
                    "an end below 2^64",
                )
            })?;
        self.reg_dmabuf_mr(window, iova, access)
    }

    /// Checks length and `iova` of a region whose memory begins at `start`.
    fn check_mr(
        &self,
        operation: &'static str,
        len: u64,
        iova: MrAddr,
        what: &str,
        start: u64,
    ) -> Result<()> {
        let limit = self.context().attr().max_mr_size;
        self.context()
            .check_limit(operation, "a region cannot have so many bytes", len, limit)?;
        if iova.checked_add(len).is_none() {
            return Err(invalid(operation, "iova and length leave the address space")
                .saw(format!("{len} bytes at {iova}"), "an end below 2^64"));
        }
        if start % PAGE != iova.0 % PAGE {
            // ib_uverbs_reg_mr, uverbs_cmd.c; uverbs_std_types_mr.c.
            return Err(
                invalid(operation, &format!("iova and {what} differ within a page")).saw(
                    format!("iova {iova}, {what} {start:#x}"),
                    format!("the same value modulo {PAGE}"),
                ),
            );
        }
        Ok(())
    }

    fn mr(&self, new: NewMr, iova: MrAddr, len: u64, access: Access, memory: Memory) -> Mr {
        let context = self.context();
        let info = RegionInfo {
            nic: context.name().to_owned(),
            iova,
            len,
            lkey: new.lkey,
            rkey: new.rkey,
            access,
            path: new.path,
            state: MrState::Live,
            dmabuf: None,
        };
        let registered = Registered {
            device: context.shared_device(),
            _hold: self.hold(format!("Mr({len} bytes at {iova}, lkey {})", new.lkey)),
        };
        let region = Region::new(new.handle, info, self.handle(), registered, memory);
        let region = Arc::new(region);
        Mr {
            lkey: new.lkey,
            rkey: new.rkey,
            body: Box::new(Body {
                id: context.enter_region(region.clone()),
                region,
                pd: self.clone(),
            }),
        }
    }
}

impl Mr {
    /// Returns the key for work requests of this end.
    #[inline]
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// Returns the key for the peer.
    #[inline]
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Returns the provider's handle.
    pub fn handle(&self) -> MrHandle {
        self.region().handle
    }

    /// Returns the address of the first byte, as the keys count it.
    pub fn addr(&self) -> MrAddr {
        self.region().info.iova
    }

    /// Returns the length in bytes, which is never 0.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a region is never empty, by construction"
    )]
    pub fn len(&self) -> u64 {
        self.region().info.len
    }

    /// Returns the rights.
    pub fn access(&self) -> Access {
        self.region().info.access
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.body.pd
    }

    /// Returns the window of a dma-buf region, unless it is deregistered.
    pub fn window(&self) -> Option<Window> {
        self.region().window()
    }

    /// Returns how it was registered.
    pub fn path(&self) -> RegPath {
        self.region().info.path
    }

    /// Returns whether it still reaches its memory. The sources are [`mark`](Self::mark),
    /// [`RegionGroup`](crate::RegionGroup)s, [async events](crate::Context::get_async_event) and
    /// the provider.
    ///
    /// # Errors
    /// `Forked` in a fork child; the provider's error.
    pub fn state(&self) -> Result<MrState> {
        let own = self.region().state();
        if own == MrState::Revoked {
            return Ok(own);
        }
        let device = self.body.pd.context().device("memory region state")?;
        // libibverbs has no such query.
        let known = device.mr_state(self.handle())?.unwrap_or(MrState::Live);
        if known == MrState::Revoked {
            self.mark(known);
        }
        Ok(known.max(own))
    }

    /// Records that something happened to the memory. Only makes the state worse: a `Revoked`
    /// region stays so.
    pub fn mark(&self, state: MrState) {
        self.region().mark(state);
    }

    /// Makes a `Suspect` region `Live` again. Returns whether it was `Suspect`.
    pub fn clear_suspicion(&self) -> bool {
        self.region().clear_suspicion()
    }

    /// Returns a snapshot of the region.
    pub fn info(&self) -> RegionInfo {
        self.region().info()
    }

    /// Returns the `length` bytes at `offset` as a local element.
    ///
    /// # Errors
    /// `InvalidInput` if they leave the region.
    pub fn sge(&self, offset: u64, length: u32) -> Result<Sge> {
        let addr = self.remote().at(offset, u64::from(length))?.addr;
        Ok(Sge {
            addr,
            length,
            lkey: self.lkey(),
        })
    }

    /// Returns what the peer needs to access the region.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            addr: self.addr(),
            len: self.len(),
            rkey: self.rkey(),
        }
    }

    /// Deregisters the region (`ibv_dereg_mr`), or returns it with the reason. Afterwards the NIC
    /// does not access the memory. Succeeds if a group deregistered it before.
    ///
    /// Slow if it is the last reference to a closed device: the device's reset then runs inside
    /// this call (1 s and more). [`close_later`](Self::close_later) does it on another thread.
    ///
    /// # Errors
    /// `InUse` with their names if memory windows are bound to it and the NIC refuses; `Forked` in
    /// a fork child.
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let freed = self.region().dereg();
        freed.map_err(|error| CloseError::new(self, error))
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.body.region
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let region = self.region();
        if region.abandon_in_child() {
            return;
        }
        let freed = region.dereg();
        if freed.is_err() {
            region.abandon();
        }
        let context = self.body.pd.context();
        context.forget_region(self.body.id);
        context.report(freed);
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Mr({} bytes at {}, lkey {}, rkey {}, {:?}, {:?}",
            self.len(),
            self.addr(),
            self.lkey(),
            self.rkey(),
            self.access(),
            self.region().state(),
        )?;
        if let Some(window) = self.window() {
            write!(f, ", {window:?}")?;
        }
        f.write_str(")")
    }
}
