//! [`Region`]: the shared state of a memory region, which an [`Mr`](crate::Mr) owns.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use gaudi_dmabuf::{Identity, Window};
use gaudi_seam::{Errno, ErrorKind, RawMapping, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::lock;

use crate::access::Access;
use crate::forked;
use crate::handle::{MrHandle, PdHandle};
use crate::holders::{Hold, Holders};
use crate::provider::{Device, MrState, RegPath};
use crate::wr::{Lkey, MrAddr, Rkey};

/// A memory region as its [`Mr`](crate::Mr), its context and each
/// [`RegionGroup`](crate::RegionGroup) share it, so that the latter two can find and deregister it.
/// It holds neither domain nor context.
pub(crate) struct Region {
    pub(crate) handle: MrHandle,
    /// Without the current state and dma-buf: see [`info`](Self::info).
    pub(crate) info: RegionInfo,
    is_dmabuf: bool,
    pd: PdHandle,
    owner: OwnerProcess,
    state: AtomicU8,
    /// `None` once deregistered. Locked during deregistration, which can take seconds.
    registered: Mutex<Option<Registered>>,
    memory: Mutex<Option<Memory>>,
    /// The memory windows that were bound to it.
    pub(crate) windows: Arc<Holders>,
}

/// What lasts as long as the registration.
pub(crate) struct Registered {
    pub(crate) device: Arc<dyn Device>,
    /// Names the region to its domain.
    pub(crate) _hold: Hold,
}

/// The memory of a region.
pub(crate) enum Memory {
    /// Memory that the caller keeps mapped.
    Promised,
    /// Raw memory of this process.
    Mapping(#[expect(dead_code, reason = "held so that the memory stays mapped")] Arc<RawMapping>),
    /// Boxed, so that a region stays small.
    DmaBuf(Box<Window>),
}

/// A snapshot of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionInfo {
    /// Name of the NIC.
    pub nic: String,
    /// Address of the first byte, as the keys count it.
    pub iova: MrAddr,
    /// Length in bytes.
    pub len: u64,
    /// Local key.
    pub lkey: Lkey,
    /// Remote key.
    pub rkey: Rkey,
    /// Rights.
    pub access: Access,
    /// How it was registered.
    pub path: RegPath,
    /// Whether it still reaches its memory, as far as this process knows.
    pub state: MrState,
    /// The dma-buf of a dma-buf region.
    pub dmabuf: Option<Identity>,
}

impl fmt::Display for RegionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} bytes at {}", self.nic, self.len, self.iova)?;
        write!(f, ", rkey {}, {:?}", self.rkey, self.state)
    }
}

impl Region {
    pub(crate) fn new(
        handle: MrHandle,
        info: RegionInfo,
        pd: PdHandle,
        registered: Registered,
        memory: Memory,
    ) -> Self {
        Self {
            handle,
            info,
            is_dmabuf: matches!(memory, Memory::DmaBuf(_)),
            pd,
            owner: OwnerProcess::current(),
            state: AtomicU8::new(MrState::Live as u8),
            registered: Mutex::new(Some(registered)),
            memory: Mutex::new(Some(memory)),
            windows: Arc::default(),
        }
    }

    /// Returns the window of a registered dma-buf region.
    pub(crate) fn window(&self) -> Option<Window> {
        match &*lock(&self.memory) {
            Some(Memory::DmaBuf(window)) => Some((**window).clone()),
            _ => None,
        }
    }

    pub(crate) fn state(&self) -> MrState {
        // Only discriminants are stored.
        [MrState::Live, MrState::Suspect, MrState::Revoked][usize::from(self.state.load(Ordering::Acquire))]
    }

    /// Makes the state worse, never better.
    pub(crate) fn mark(&self, state: MrState) {
        self.state.fetch_max(state as u8, Ordering::AcqRel);
    }

    /// Makes a `Suspect` region `Live` again. Returns whether it was.
    pub(crate) fn clear_suspicion(&self) -> bool {
        let (from, to) = (MrState::Suspect as u8, MrState::Live as u8);
        let changed = self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        changed.is_ok()
    }

    pub(crate) fn is_registered(&self) -> bool {
        // A region that is being deregistered has its memory until that is done.
        lock(&self.memory).is_some()
    }

    /// Returns whether an access error of a queue pair of a domain may be about this region.
    pub(crate) fn is_suspicious_in(&self, pd: PdHandle) -> bool {
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        self.is_dmabuf && self.pd == pd && self.info.access.intersects(remote)
    }

    pub(crate) fn info(&self) -> RegionInfo {
        RegionInfo {
            state: self.state(),
            dmabuf: self.window().map(|window| window.dmabuf().identity()),
            ..self.info.clone()
        }
    }

    /// Deregisters the region, once: a second caller waits for the first.
    pub(crate) fn dereg(&self) -> Result<()> {
        const OPERATION: &str = "ibv_dereg_mr";
        const HELP: &str = "close the windows or bind them elsewhere first";
        if self.owner.is_foreign() {
            // Before any lock: a thread that held one at the fork does not exist here.
            return Err(forked(OPERATION));
        }
        let mut registered = lock(&self.registered);
        let Some(Registered { device, .. }) = &*registered else {
            // Its group deregistered it.
            return Ok(());
        };
        if let Err(error) = device.dereg_mr(self.handle) {
            if self.windows.len() == 0 {
                return Err(error);
            }
            let in_use = self.windows.in_use([OPERATION, "the region", HELP], 0);
            let errno = error.errno().unwrap_or(Errno::EBUSY);
            return Err(in_use.with_errno(errno).with_kind(ErrorKind::InUse));
        }
        let ended = registered.take();
        self.mark(MrState::Revoked);
        let memory = lock(&self.memory).take();
        drop(registered);
        // Outside the locks: releasing a dma-buf may be slow.
        drop((memory, ended));
        Ok(())
    }

    /// Drops what the region holds. Deregistration failed, and is not tried again.
    pub(crate) fn abandon(&self) {
        let left = lock(&self.registered).take();
        let memory = lock(&self.memory).take();
        drop(left);
        keep_mapped(memory);
    }

    /// Drops what a fork child's copy of the region holds, as far as no lock must be waited for.
    /// The region is the parent's. Returns false in the parent, and does nothing.
    pub(crate) fn abandon_in_child(&self) -> bool {
        let in_child = self.owner.is_foreign();
        if in_child {
            if let Ok(mut memory) = self.memory.try_lock() {
                keep_mapped(memory.take());
            }
        }
        in_child
    }
}

/// Drops memory, but leaks a mapping: the NIC may still write to it.
fn keep_mapped(memory: Option<Memory>) {
    match memory {
        Some(memory @ Memory::Mapping(_)) => std::mem::forget(memory),
        other => drop(other),
    }
}
