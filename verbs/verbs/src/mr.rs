//! [`Mr`]: memory that a NIC may touch.

#![expect(
    unsafe_code,
    reason = "registering host memory is a promise about memory that outlives the call"
)]

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_dmabuf::{Identity, Window};
use gaudi_seam::{DeviceVa, Error, ErrorKind, HostVa, RawMapping, Result};
use gaudi_sys::fork::OwnerProcess;

use crate::access::Access;
use crate::context::Pd;
use crate::holders::{Hold, Holders};
use crate::provider::{Device, DmaBufMr, NewMr, PdHandle};
use crate::reaper::{self, Closing};
use crate::wr::{Lkey, MrAddr, MrHandle, RemoteRegion, Rkey, Sge};
use crate::{forked, invalid};

const PAGE: u64 = gaudi_sys::PAGE;

/// Whether a region still reaches its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MrState {
    /// It does.
    Live,
    /// Something happened that may have taken the memory: a reset of the device, an access error of a queue pair that used it.
    Suspect,
    /// The memory is gone: its exporter took it back, or a [`RegionGroup`](crate::RegionGroup) deregistered it. Every use of its keys
    /// fails. It can only be closed.
    Revoked,
}

impl MrState {
    fn of(value: u8) -> Self {
        match value {
            0 => Self::Live,
            1 => Self::Suspect,
            _ => Self::Revoked,
        }
    }
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
    /// As `inner` has them: beside the pointer, so that whoever builds work requests reads no other memory.
    lkey: Lkey,
    rkey: Rkey,
    /// Small here, since a hit of the cache is a cache line with all of this in it.
    body: Box<Body>,
}

struct Body {
    inner: Arc<MrInner>,
    pd: Pd,
}

/// What a region is, shared with whoever must find it, and deregister it when its device goes: the context's book and each
/// [`RegionGroup`](crate::RegionGroup). They see it until it is deregistered, also while its [`Mr`] is being dropped, and it keeps
/// neither domain nor context.
pub(crate) struct MrInner {
    id: u64,
    new: NewMr,
    iova: MrAddr,
    len: u64,
    access: Access,
    of_dmabuf: bool,
    pd: PdHandle,
    nic: Arc<str>,
    owner: OwnerProcess,
    state: AtomicU8,
    /// Held while it is deregistered, which can take seconds; nothing once it is.
    registered: Mutex<Option<Registered>>,
    memory: Mutex<Option<Memory>>,
    /// The memory windows that were bound to it.
    windows: Arc<Holders>,
}

/// What goes with the registration. The [`Mr`] keeps domain and context until then.
struct Registered {
    device: Arc<dyn Device>,
    _hold: Hold,
}

/// What a region stands on.
enum Memory {
    /// The caller answers for it.
    Promised,
    /// Raw memory of this process.
    Mapping(#[expect(dead_code, reason = "held so that the memory stays mapped")] Arc<RawMapping>),
    /// Boxed, so that a region stays small.
    DmaBuf(Box<Window>),
}

/// What can be told of a region without holding it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionInfo {
    /// The NIC's name.
    pub nic: String,
    /// The address of the first byte, as the keys see it.
    pub iova: MrAddr,
    /// Bytes.
    pub len: u64,
    /// Its local key.
    pub lkey: Lkey,
    /// Its remote key.
    pub rkey: Rkey,
    /// What it allows.
    pub access: Access,
    /// Which way the registration went.
    pub path: RegPath,
    /// Whether it still reaches its memory, as far as this process knows.
    pub state: MrState,
    /// Where it stands on a dma-buf: which.
    pub dmabuf: Option<Identity>,
}

impl fmt::Display for RegionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nic,
            iova,
            len,
            rkey,
            state,
            ..
        } = self;
        write!(f, "{nic}: {len} bytes at {iova}, rkey {rkey}, {state:?}")
    }
}

impl Pd {
    /// `ibv_reg_mr_iova`: registers a mapping; addresses of the region count from the mapping's own address.
    pub fn reg_mapping(&self, mapping: Arc<RawMapping>, access: Access) -> Result<Mr> {
        let address = HostVa(mapping.as_ptr().as_ptr().expose_provenance() as u64);
        let len = mapping.len() as u64;
        // SAFETY: the region holds the mapping until it is deregistered, and gives it up for good where that fails; nobody can make
        // a reference into a `RawMapping`, which is always readable and writable.
        unsafe { self.register_host(address, len, address.into(), access, Memory::Mapping(mapping)) }
    }

    /// `ibv_reg_mr_iova`: registers `len` bytes of this process at `address`; addresses of the region count from `iova`.
    ///
    /// # Safety
    /// Until [`Mr::close`] has returned `Ok`, or the region was dropped without a logged error:
    /// - the range stays mapped: readable, and writable where `access` lets the NIC write;
    /// - no Rust reference to it is made or used while work that touches it may run.
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
        self.check_mr(OPERATION, len, iova)?;
        if address.checked_add(len).is_none() {
            return Err(invalid(OPERATION, "the range leaves the address space"));
        }
        if address.get() % PAGE != iova.0 % PAGE {
            // ib_uverbs_reg_mr, uverbs_cmd.c.
            return Err(
                invalid(OPERATION, "iova and the address differ within a page").saw(
                    format!("iova {iova}, address {address}"),
                    format!("the same value modulo {PAGE}"),
                ),
            );
        }
        let device = self.context().device(OPERATION)?;
        // SAFETY: the caller promises exactly what the provider asks for.
        let new = unsafe { device.reg_mr(self.handle(), address, len, iova, access) }?;
        Ok(self.mr(new, iova, len, access, memory))
    }

    /// `ibv_reg_dmabuf_mr`: registers a window of a dma-buf; addresses of the region count from `iova`. For device memory that is best
    /// the device address of the window's first byte, see [`reg_device_mr`](Self::reg_device_mr).
    ///
    /// `InvalidInput` where `iova` and the window's offset differ modulo 4096 (the kernel refuses that: uverbs_std_types_mr.c), or where
    /// `access` has what a dma-buf cannot have. `Unsupported` where the NIC cannot register dma-bufs, or cannot reach this exporter's.
    pub fn reg_dmabuf_mr(&self, window: &Window, iova: MrAddr, access: Access) -> Result<Mr> {
        const OPERATION: &str = "ibv_reg_dmabuf_mr";
        access.check_dmabuf(OPERATION)?;
        self.context().check_dmabuf(OPERATION)?;
        self.check_mr(OPERATION, window.len(), iova)?;
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
        let memory = Memory::DmaBuf(Box::new(window.clone()));
        Ok(self.mr(new, iova, window.len(), access, memory))
    }

    /// As [`reg_dmabuf_mr`](Self::reg_dmabuf_mr), with addresses that are the device's own: `exported` is the device address of the
    /// dma-buf's first byte. Both ends then speak of the same addresses as the device.
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

    fn check_mr(&self, operation: &'static str, len: u64, iova: MrAddr) -> Result<()> {
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
        let context = self.context();
        let id = context.next_region();
        let name = format!("Mr({len} bytes at {iova}, lkey {})", new.lkey);
        let inner = Arc::new(MrInner {
            id,
            new,
            iova,
            len,
            access,
            of_dmabuf: matches!(memory, Memory::DmaBuf(_)),
            pd: self.handle(),
            nic: context.shared_name(),
            owner: OwnerProcess::current(),
            state: AtomicU8::new(MrState::Live as u8),
            registered: Mutex::new(Some(Registered {
                device: context.shared_device(),
                _hold: self.hold(name),
            })),
            memory: Mutex::new(Some(memory)),
            windows: Arc::default(),
        });
        context.enter_region(id, inner.clone());
        Mr {
            lkey: inner.new.lkey,
            rkey: inner.new.rkey,
            body: Box::new(Body {
                inner,
                pd: self.clone(),
            }),
        }
    }
}

impl Mr {
    /// For work requests of this end.
    #[inline]
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// For the peer.
    #[inline]
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// As the provider names it.
    pub fn handle(&self) -> MrHandle {
        self.body.inner.new.handle
    }

    /// The address of the first byte, as the keys see it.
    pub fn addr(&self) -> MrAddr {
        self.body.inner.iova
    }

    /// Bytes; never 0.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a region is never empty, by construction"
    )]
    pub fn len(&self) -> u64 {
        self.body.inner.len
    }

    /// What it allows.
    pub fn access(&self) -> Access {
        self.body.inner.access
    }

    /// Its domain.
    pub fn pd(&self) -> &Pd {
        &self.body.pd
    }

    /// The window that it stands on, where it is one and still registered.
    pub fn window(&self) -> Option<Window> {
        self.body.inner.window()
    }

    /// Which way the registration went.
    pub fn path(&self) -> RegPath {
        self.body.inner.new.path
    }

    /// Whether it still reaches its memory, as far as anything tells: the region's own state, fed by [`mark`](Self::mark), by
    /// [`RegionGroup`](crate::RegionGroup)s and by [async events](crate::Context::get_async_event), and what the provider knows.
    pub fn state(&self) -> Result<MrState> {
        let own = self.body.inner.state();
        if own == MrState::Revoked {
            return Ok(own);
        }
        let device = self.body.pd.context().device("memory region state")?;
        let known = device.mr_state(self.body.inner.new.handle)?;
        if known == Some(MrState::Revoked) {
            self.body.inner.mark(MrState::Revoked);
        }
        Ok(known.unwrap_or(MrState::Live).max(own))
    }

    /// Says that something happened to the memory. Only makes the state worse: what is `Revoked` stays so.
    pub fn mark(&self, state: MrState) {
        self.body.inner.mark(state);
    }

    /// A suspicion proved wrong: `Suspect` is `Live` again. Whether it was tells the answer.
    pub fn clear_suspicion(&self) -> bool {
        self.body
            .inner
            .state
            .compare_exchange(
                MrState::Suspect as u8,
                MrState::Live as u8,
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    /// What can be told of it.
    pub fn info(&self) -> RegionInfo {
        self.body.inner.info()
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
            addr: self.body.inner.iova,
            len: self.body.inner.len,
            rkey: self.rkey(),
        }
    }

    /// `ibv_dereg_mr`: returns once the NIC touches the memory no more, or gives the region back with the reason: `InUse` with their
    /// names where memory windows are bound to it and the NIC minds. Fine on a region that was deregistered with its group.
    ///
    /// Slow where it is the last hold on a closed device: its reset then runs inside this call (1 s and more). Where that must not
    /// happen on this thread there is [`close_later`](Self::close_later).
    pub fn close(self) -> Result<(), (Self, Error)> {
        match self.body.inner.dereg() {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    /// [`close`](Self::close) on a thread of its own, one for the process, started by the first call: for latency-critical threads.
    ///
    /// Regions go one after the other. The keys die on that thread, not when this returns. A region that cannot be deregistered is
    /// told by [`Closing::wait`] and in the log.
    pub fn close_later(self) -> Closing {
        reaper::close_later(self)
    }

    pub(crate) fn shared(&self) -> &Arc<MrInner> {
        &self.body.inner
    }

    /// Returns the list of memory windows that are bound to it.
    pub(crate) fn windows(&self) -> &Arc<Holders> {
        &self.body.inner.windows
    }
}

impl MrInner {
    fn registered(&self) -> MutexGuard<'_, Option<Registered>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> MutexGuard<'_, Option<Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn window(&self) -> Option<Window> {
        match &*self.memory() {
            Some(Memory::DmaBuf(window)) => Some((**window).clone()),
            _ => None,
        }
    }

    pub(crate) fn state(&self) -> MrState {
        MrState::of(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn mark(&self, state: MrState) {
        self.state.fetch_max(state as u8, Ordering::AcqRel);
    }

    pub(crate) fn is_registered(&self) -> bool {
        // A region that is being deregistered has its memory until that is done.
        self.memory().is_some()
    }

    /// Whether an access error of a queue pair of this domain may mean this region.
    pub(crate) fn is_suspicious_in(&self, pd: PdHandle) -> bool {
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        self.of_dmabuf && self.pd == pd && self.access.intersects(remote)
    }

    pub(crate) fn info(&self) -> RegionInfo {
        RegionInfo {
            nic: (*self.nic).to_owned(),
            iova: self.iova,
            len: self.len,
            lkey: self.new.lkey,
            rkey: self.new.rkey,
            access: self.access,
            path: self.new.path,
            state: self.state(),
            dmabuf: self.window().map(|window| window.dmabuf().identity()),
        }
    }

    /// Deregisters, once: whoever comes second waits for the first.
    pub(crate) fn dereg(&self) -> Result<()> {
        const OPERATION: &str = "ibv_dereg_mr";
        const HELP: &str = "close the windows or bind them elsewhere first";
        if self.owner.is_foreign() {
            // Before any lock: who held one at the fork does not exist here.
            return Err(forked(OPERATION));
        }
        let mut registered = self.registered();
        let Some(Registered { device, .. }) = &*registered else {
            return Ok(());
        };
        if let Err(error) = device.dereg_mr(self.new.handle) {
            if self.windows.len() == 0 {
                return Err(error);
            }
            let in_use = self.windows.in_use(OPERATION, "the region", 0, HELP);
            return Err(match error.errno() {
                Some(errno) => in_use.with_errno(errno).with_kind(ErrorKind::InUse),
                None => in_use,
            });
        }
        let ended = registered.take();
        self.mark(MrState::Revoked);
        let memory = self.memory().take();
        drop(registered);
        // Outside the locks: a dma-buf that goes may take its time.
        drop((memory, ended));
        Ok(())
    }

    /// The region stays registered, and nobody can end it any more.
    fn give_up(&self) {
        let left = self.registered().take();
        let memory = self.memory().take();
        drop(left);
        keep_mapped(memory);
    }
}

/// The NIC may still write to a mapping: it must stay for as long as the process does.
fn keep_mapped(memory: Option<Memory>) {
    match memory {
        Some(memory @ Memory::Mapping(_)) => std::mem::forget(memory),
        other => drop(other),
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.body.inner.owner.is_foreign() {
            // The region is the parent's, and who held a lock at the fork does not exist here: nothing may be waited for. A descriptor
            // is let go where that is to be had.
            if let Ok(mut memory) = self.body.inner.memory.try_lock() {
                keep_mapped(memory.take());
            }
            return;
        }
        let freed = self.body.inner.dereg();
        if freed.is_err() {
            self.body.inner.give_up();
        }
        let context = self.body.pd.context();
        context.forget_region(self.body.inner.id);
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
            self.body.inner.state(),
        )?;
        if let Some(window) = self.window() {
            write!(f, ", {window:?}")?;
        }
        f.write_str(")")
    }
}
