//! Memory of a domain: allocated by it, or registered with it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use gaudi_device::{Buffer, CloseError, DeviceId, Error, ErrorKind, Location, Result};
use gaudi_dmabuf::{CpuAttachment, Window};
use gaudi_seam::Errno;
use gaudi_sys::{PerProcess, lock};

use crate::card::{Card, Known};
use crate::kind::MemoryType;

/// Memory that a domain allocated or registered.
///
/// A clone is the same memory. [`MemoryDomain::free`](crate::MemoryDomain::free) and
/// [`MemoryDomain::deregister`](crate::MemoryDomain::deregister) report what holds it; the drop of
/// the last handle frees it too.
#[derive(Clone)]
pub struct Memory {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) card: Arc<Card>,
    pub(crate) device: DeviceId,
    pub(crate) known: Known,
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// Whether the domain's tables have it.
    is_listed: bool,
    /// `None` once it is freed. The first field of those that hold the device, see `Drop`.
    pub(crate) backing: Option<Backing>,
    /// A dma-buf that stays open until the memory is freed.
    export: OnceLock<Window>,
}

/// What the memory is.
pub(crate) enum Backing {
    /// Device or host memory of the domain.
    Allocated(Location),
    /// Memory of the caller, or a part of device memory.
    Registered(Location),
    /// A dma-buf of another exporter. The engines use the location; without one, the processor
    /// copies.
    Dmabuf {
        engines: Option<Location>,
        cpu: CpuAttachment,
    },
}

/// Memory of this process by number, for keys.
static LIVE: PerProcess<Mutex<BTreeMap<u64, Weak<Shared>>>> = PerProcess::new();

/// What becomes memory.
pub(crate) struct Parts {
    pub(crate) card: Arc<Card>,
    pub(crate) device: DeviceId,
    pub(crate) kind: MemoryType,
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) backing: Backing,
}

impl Backing {
    /// Whether the memory is allocated, and not registered.
    fn is_allocated(&self) -> bool {
        matches!(self, Self::Allocated(_))
    }
}

impl Memory {
    /// Adds memory to the tables.
    ///
    /// # Errors
    /// `InUse`: another card's memory has the addresses.
    pub(crate) fn new(parts: Parts, export: Option<Window>) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Parts {
            card,
            device,
            kind,
            address,
            len,
            backing,
        } = parts;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut shared = Shared {
            card,
            device,
            known: Known { id, kind },
            address,
            len,
            is_listed: false,
            backing: Some(backing),
            export: export.map_or_else(OnceLock::new, OnceLock::from),
        };
        shared.list()?;
        let shared = Arc::new(shared);
        lock(LIVE.get()).insert(id, Arc::downgrade(&shared));
        Ok(Self { shared })
    }

    /// Returns live memory by its number.
    pub(crate) fn by_id(id: u64) -> Option<Self> {
        let shared = lock(LIVE.get()).get(&id)?.upgrade()?;
        Some(Self { shared })
    }

    /// Returns the type of the memory.
    pub fn kind(&self) -> MemoryType {
        self.shared.known.kind
    }

    /// Returns the first address: of the device for device memory, of this process for host memory.
    pub fn address(&self) -> u64 {
        self.shared.address
    }

    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory has at least one byte")]
    pub fn len(&self) -> u64 {
        self.shared.len
    }

    /// Returns the card.
    pub fn device(&self) -> DeviceId {
        self.shared.device
    }

    /// Whether both are handles of the same memory.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Copies bytes into host memory with the processor.
    ///
    /// # Errors
    /// - `Unsupported`: it is device memory. A [`Transport`](crate::Transport) copies.
    /// - `BadAddress`: the range leaves the memory.
    /// - `Forked`.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        const OP: &str = "Memory::write";
        self.inside(OP, offset, bytes.len() as u64)?;
        match self.shared.location() {
            Some(location) => match location.in_host() {
                Some((mapping, start)) => mapping.write(start + offset, bytes),
                None => Err(self.not_host(OP)),
            },
            None => self
                .cpu(OP)?
                .write(offset as usize, bytes)
                .map_err(|errno| self.failed(OP, errno)),
        }
    }

    /// Copies bytes out of host memory with the processor.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        const OP: &str = "Memory::read";
        self.inside(OP, offset, bytes.len() as u64)?;
        match self.shared.location() {
            Some(location) => match location.in_host() {
                Some((mapping, start)) => mapping.read(start + offset, bytes),
                None => Err(self.not_host(OP)),
            },
            None => self
                .cpu(OP)?
                .read(offset as usize, bytes)
                .map_err(|errno| self.failed(OP, errno)),
        }
    }

    fn cpu(&self, operation: &'static str) -> Result<&CpuAttachment> {
        self.shared.card.check_process(operation)?;
        match &self.shared.backing {
            Some(Backing::Dmabuf { cpu, .. }) => Ok(cpu),
            _ => Err(self.not_host(operation)),
        }
    }

    fn failed(&self, operation: &'static str, errno: Errno) -> Error {
        Error::from_errno(operation, errno).on(self.device())
    }

    fn not_host(&self, operation: &'static str) -> Error {
        Error::unsupported(operation, "the processor does not access device memory")
            .on(self.device())
            .helped_by("copy with a Transport")
    }

    fn inside(&self, operation: &'static str, offset: u64, len: u64) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len()) {
            return Ok(());
        }
        Err(self
            .failed(operation, Errno::EFAULT)
            .because("the range leaves the memory")
            .saw(
                format!("{len} bytes at {offset}"),
                format!("within {} bytes", self.len()),
            ))
    }

    /// Frees or deregisters the memory.
    ///
    /// # Errors
    /// `InUse`, `Forked`, or the driver's own error, with the memory.
    pub(crate) fn close(self, operation: &'static str) -> Result<(), CloseError<Self>> {
        if let Err(error) = self.shared.card.check_process(operation) {
            return Err(CloseError::new(self, error));
        }
        let device = self.device();
        let mut shared = match Arc::try_unwrap(self.shared) {
            Ok(shared) => shared,
            Err(shared) => {
                let others = Arc::strong_count(&shared).saturating_sub(1);
                let error = Error::new(ErrorKind::InUse, operation)
                    .on(device)
                    .because(format!("{others} other handles of the memory exist"))
                    .helped_by("drop the clones, and wait for the operations that use it");
                return Err(CloseError::new(Self { shared }, error));
            }
        };
        let is_exported = shared.export.get().is_some();
        match shared.close() {
            Ok(()) => Ok(()),
            Err(error) => {
                // It stays the caller's. If the driver has unmapped it, other memory may have its
                // addresses.
                let is_mapped = shared.location().is_some_and(|location| location.is_mapped());
                if is_mapped {
                    if let Err(second) = shared.list().and_then(|()| shared.export_again(is_exported)) {
                        tracing::error!("device {device}: memory at {:#x}: {second}", shared.address);
                    }
                }
                let id = shared.known.id;
                let shared = Arc::new(shared);
                if is_mapped {
                    lock(LIVE.get()).insert(id, Arc::downgrade(&shared));
                }
                Err(CloseError::new(Self { shared }, error))
            }
        }
    }
}

impl Shared {
    fn list(&mut self) -> Result<()> {
        let allocated = self.backing.as_ref().is_some_and(Backing::is_allocated);
        if allocated {
            self.card.add(self.address, self.len, self.known, self.device)?;
        } else {
            self.card.register(self.address, self.len, self.known);
        }
        self.is_listed = true;
        Ok(())
    }

    /// Removes the memory from the tables. No lookup that starts later finds it.
    fn unlist(&mut self) {
        if !std::mem::take(&mut self.is_listed) {
            return;
        }
        let allocated = self.backing.as_ref().is_some_and(Backing::is_allocated);
        if allocated {
            self.card.remove(self.address, self.len, self.known);
        } else {
            self.card.deregister(self.address, self.len, self.known);
        }
        lock(LIVE.get()).remove(&self.known.id);
    }

    /// The memory as the engines see it; `None` if only the processor can access it.
    pub(crate) fn location(&self) -> Option<&Location> {
        match self.backing.as_ref()? {
            Backing::Allocated(location) | Backing::Registered(location) => Some(location),
            Backing::Dmabuf { engines, .. } => engines.as_ref(),
        }
    }

    /// The device memory behind the memory, and the offset of its first byte.
    pub(crate) fn buffer(&self) -> Option<(&Buffer, u64)> {
        match self.backing.as_ref()? {
            Backing::Allocated(location) | Backing::Registered(location) => location.in_device(),
            Backing::Dmabuf { .. } => None,
        }
    }

    /// The dma-buf that was registered.
    pub(crate) fn registered_dmabuf(&self) -> Option<&Window> {
        match self.backing.as_ref()? {
            Backing::Dmabuf { cpu, .. } => Some(cpu.window()),
            _ => None,
        }
    }

    /// Keeps a dma-buf open until the memory is freed.
    pub(crate) fn keep(&self, window: Window) {
        // An earlier one stays.
        let _ = self.export.set(window);
    }

    /// Exports the memory again whose close failed, if it was exported before the close.
    fn export_again(&self, was_exported: bool) -> Result<()> {
        if let Some((buffer, start)) = self.buffer().filter(|_| was_exported) {
            self.keep(buffer.window(start..start + self.len)?);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.unlist();
        drop(self.export.take());
        let (backing, answer) = match self.backing.take() {
            None => return Ok(()),
            Some(Backing::Allocated(location)) => match free(location) {
                Ok(()) => return Ok(()),
                Err((location, error)) => (Backing::Allocated(location), error),
            },
            Some(Backing::Registered(location)) => match unmap(location) {
                Ok(()) => return Ok(()),
                Err((location, error)) => (Backing::Registered(location), error),
            },
            Some(Backing::Dmabuf { engines: None, .. }) => return Ok(()),
            Some(Backing::Dmabuf {
                engines: Some(location),
                cpu,
            }) => match unmap(location) {
                Ok(()) => return Ok(()),
                Err((location, error)) => {
                    let engines = Some(location);
                    (Backing::Dmabuf { engines, cpu }, error)
                }
            },
        };
        self.backing = Some(backing);
        Err(answer)
    }
}

/// Frees memory of the domain.
fn free(location: Location) -> Result<(), (Location, Error)> {
    let Some((buffer, _)) = location.in_device() else {
        return unmap(location);
    };
    let buffer = buffer.clone();
    drop(location);
    buffer.close().map_err(|error| {
        let (buffer, error) = error.into_parts();
        (Location::from(&buffer), error)
    })
}

/// Unmaps host memory. Device memory is only released.
fn unmap(location: Location) -> Result<(), (Location, Error)> {
    let Some((mapping, offset)) = location.in_host() else {
        return Ok(());
    };
    let (mapping, len) = (mapping.clone(), location.len());
    drop(location);
    mapping.close().map_err(|error| {
        let (mapping, error) = error.into_parts();
        match mapping.at(offset..offset + len) {
            Ok(location) => (location, error),
            Err(_) => unreachable!("the location was inside the mapping"),
        }
    })
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.card.owner.is_foreign() {
            return;
        }
        // Before the fields drop, which frees the memory: its addresses may be reused then.
        self.unlist();
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Memory({} {:#x} + {:#x} on {})",
            self.kind(),
            self.address(),
            self.len(),
            self.device()
        )
    }
}
