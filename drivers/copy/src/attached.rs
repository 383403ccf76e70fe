//! The remote end of a copy: memory that a key names.

use std::fmt;
use std::sync::{Arc, Weak};

use gaudi_device::{DeviceId, Error, ErrorKind, Result};
use gaudi_sys::Errno;

use crate::domain::MemoryDomain;
use crate::key::{HostKey, ProcessKey};
use crate::kind::MemoryType;
use crate::memory::{Memory, Shared};

/// An attached key.
///
/// It does not keep memory of this process alive: the memory can be freed, and operations fail with
/// `NotFound` then.
pub struct Attached {
    target: Target,
    kind: MemoryType,
    address: u64,
    len: u64,
    device: DeviceId,
}

enum Target {
    /// Memory of this process, and its number.
    Weak(Weak<Shared>, u64),
    /// Memory of another process, registered with a domain of this one.
    Own(Memory),
}

impl Attached {
    /// Attaches memory of this process, without a key.
    pub fn to(memory: &Memory) -> Self {
        Self {
            target: Target::Weak(Arc::downgrade(&memory.shared), memory.shared.known.id),
            kind: memory.kind(),
            address: memory.address(),
            len: memory.len(),
            device: memory.device(),
        }
    }

    /// Attaches a key that this process packed.
    ///
    /// # Errors
    /// - `Protocol`: a field is invalid, or the key does not describe its memory.
    /// - `AccessDenied`: another process packed the key.
    /// - `NotFound`: the memory was freed.
    pub fn unpack(key: &[u8]) -> Result<Self> {
        Self::of_key(&ProcessKey::parse(key)?)
    }

    /// As [`unpack`](Self::unpack), of a parsed key.
    ///
    /// # Errors
    /// `AccessDenied`, `NotFound` or `Protocol`, as [`unpack`](Self::unpack).
    pub fn of_key(key: &ProcessKey) -> Result<Self> {
        Ok(Self::to(&key.find()?))
    }

    /// Attaches memory of another process of this machine: registers its dma-buf with a domain.
    /// Addresses are those of the process that sent the key.
    ///
    /// # Errors
    /// As [`MemoryDomain::register_dmabuf`]: `Unsupported` for memory that a processor cannot map,
    /// such as that of a real card, which a NIC can register.
    pub fn of_host(domain: &MemoryDomain, key: &HostKey) -> Result<Self> {
        let memory = domain.register_dmabuf(key.window())?;
        Ok(Self {
            kind: MemoryType::Host,
            address: key.address(),
            len: key.len(),
            device: memory.device(),
            target: Target::Own(memory),
        })
    }

    /// Returns how the engines see the memory: memory of another process is host memory to them.
    pub fn kind(&self) -> MemoryType {
        self.kind
    }

    /// Returns the first address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory has at least one byte")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the memory, and the offset of a range in it.
    pub(crate) fn resolve(&self, operation: &'static str, address: u64, len: u64) -> Result<(Memory, u64)> {
        let offset = address
            .checked_sub(self.address)
            .filter(|offset| offset.checked_add(len).is_some_and(|end| end <= self.len));
        let Some(offset) = offset else {
            return Err(self.outside(operation, address, len));
        };
        match &self.target {
            Target::Own(memory) => Ok((memory.clone(), offset)),
            Target::Weak(shared, id) => match shared.upgrade() {
                Some(shared) => Ok((Memory { shared }, offset)),
                // A free that the driver refused leaves memory with the same number.
                None => match Memory::by_id(*id) {
                    Some(memory) => Ok((memory, offset)),
                    None => Err(self.freed(operation)),
                },
            },
        }
    }

    #[cold]
    fn outside(&self, operation: &'static str, address: u64, len: u64) -> Error {
        Error::from_errno(operation, Errno::EFAULT)
            .on(self.device)
            .because("the range leaves the memory of the key")
            .saw(
                format!("{len} bytes at {address:#x}"),
                format!("within {} bytes at {:#x}", self.len, self.address),
            )
    }

    #[cold]
    fn freed(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::NotFound, operation)
            .on(self.device)
            .because("the memory of the key was freed")
            .showing(format!("{:#x}", self.address))
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attached({} {:#x} + {:#x})", self.kind, self.address, self.len)
    }
}
