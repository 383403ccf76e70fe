//! Blocking copies between addresses of the process, for programs that have no handles of memory:
//! those of the C library.

#![expect(unsafe_code, reason = "host memory that a caller names by its address")]

use std::sync::{Arc, Mutex};

use gaudi_device::{Deadline, Error, ErrorKind, Result};
use gaudi_ranges::Span;
use gaudi_sys::{Errno, lock};

use crate::attached::Attached;
use crate::card::Card;
use crate::domain::MemoryDomain;
use crate::kind::MemoryType;
use crate::local::Local;
use crate::memory::Memory;
use crate::staged;
use crate::transport::Transport;
use crate::types::memory_types;

const OP: &str = "gaudi_copy copy";

/// No program's memory is at or above this address, on any processor that the driver supports.
const USER_END: u64 = 1 << 56;

/// Copies by address. Each thread that copies has a transport of its own, which is used again. A
/// copy between memory of the program and another card's makes a transport of that card.
pub struct Copier {
    domain: MemoryDomain,
    idle: Mutex<Vec<Transport>>,
}

/// The end of a copy that is not the remote end.
enum Side {
    /// Memory of a domain, and the offset of the first byte.
    Known(Memory, u64),
    /// Other memory of the program.
    Plain(u64),
}

impl Copier {
    /// Returns a copier of a domain. The first copy opens the compute node.
    pub fn new(domain: &MemoryDomain) -> Self {
        Self {
            domain: domain.clone(),
            idle: Mutex::default(),
        }
    }

    /// Returns the domain.
    pub fn domain(&self) -> &MemoryDomain {
        &self.domain
    }

    /// Returns the domain, and drops the transports.
    pub fn into_domain(self) -> MemoryDomain {
        drop(self.idle);
        self.domain
    }

    /// Copies `len` bytes from `src` to `dst`, and waits for them. At least one of them is device
    /// memory of a domain of this process.
    ///
    /// # Errors
    /// - `Unsupported`: both are host memory.
    /// - `InvalidInput`: a range leaves its memory, or the ranges overlap.
    /// - `BadAddress`: an address is neither known device memory nor one of a program.
    /// - `Forked`, or the failure of the copy.
    ///
    /// # Safety
    /// An address that is not memory of a domain is `len` bytes of the program. Nothing else writes
    /// them during the call, and nothing reads them if they are at `dst`.
    pub unsafe fn copy(&self, dst: u64, src: u64, len: u64) -> Result<()> {
        self.domain.card.check_process(OP)?;
        if len == 0 {
            return Ok(());
        }
        let (to, from) = (self.side(dst, len)?, self.side(src, len)?);
        let is_device =
            |side: &Side| matches!(side, Side::Known(memory, _) if memory.kind() == MemoryType::Device);
        if is_device(&to) {
            let Side::Known(memory, _) = &to else {
                unreachable!("device memory is known");
            };
            // SAFETY: guaranteed by the caller.
            return unsafe { self.run(true, &Attached::to(memory), dst, &from, len) };
        }
        match &from {
            Side::Known(memory, _) if memory.kind() == MemoryType::Device => {
                // SAFETY: guaranteed by the caller.
                unsafe { self.run(false, &Attached::to(memory), src, &to, len) }
            }
            _ => Err(staged::host_to_host()),
        }
    }

    /// Copies `len` bytes at `src` to memory that a key names, and waits for them.
    ///
    /// # Errors
    /// As [`copy`](Self::copy); `BadAddress`: the range leaves the memory of the key; `NotFound`:
    /// that memory was freed.
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    pub unsafe fn put(&self, remote: &Attached, address: u64, src: u64, len: u64) -> Result<()> {
        self.domain.card.check_process(OP)?;
        if len == 0 {
            return Ok(());
        }
        let from = self.side(src, len)?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.run(true, remote, address, &from, len) }
    }

    /// Copies `len` bytes of memory that a key names to `dst`, and waits for them.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    pub unsafe fn get(&self, dst: u64, remote: &Attached, address: u64, len: u64) -> Result<()> {
        self.domain.card.check_process(OP)?;
        if len == 0 {
            return Ok(());
        }
        let to = self.side(dst, len)?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.run(false, remote, address, &to, len) }
    }

    fn side(&self, address: u64, len: u64) -> Result<Side> {
        let invalid = |cause: &str| {
            Error::new(ErrorKind::InvalidInput, OP)
                .because(cause)
                .saw(format!("{len} bytes at {address:#x}"), "memory of the program")
        };
        let span = Span::new(address, len).filter(|_| address != 0 && isize::try_from(len).is_ok());
        let span = span.ok_or_else(|| invalid("the range is NULL or leaves the address space"))?;
        if let Some((whole, known)) = self.domain.card.find(span) {
            if let Some(memory) = Memory::by_id(known.id) {
                return Ok(Side::Known(memory, address - whole.start()));
            }
        }
        if memory_types().lookup(address, 1).kind == MemoryType::Device {
            return match Card::find_any(span).and_then(|(whole, id)| Some((whole, Memory::by_id(id)?))) {
                Some((whole, memory)) => Ok(Side::Known(memory, address - whole.start())),
                None => Err(invalid("the range leaves its memory, or no domain allocated it")),
            };
        }
        if span.last() >= USER_END {
            return Err(Error::from_errno(OP, Errno::EFAULT)
                .because("no memory has the address")
                .saw(span, "memory of a domain or of the program"));
        }
        Ok(Side::Plain(address))
    }

    /// Another card's domain, if only its engines copy between the two ends.
    fn other(&self, remote: &Attached, address: u64, near: &Side, len: u64) -> Result<Option<MemoryDomain>> {
        if matches!(near, Side::Known(..)) || remote.kind() == MemoryType::Host {
            return Ok(None);
        }
        let (memory, _) = remote.resolve(OP, address, len)?;
        let card = Arc::clone(&memory.shared.card);
        Ok(Some(MemoryDomain { card }).filter(|other| !other.is_same(&self.domain)))
    }

    /// Copies between the remote and the local end. A failed transport is dropped, which waits: no
    /// copy is in flight when the call returns.
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    unsafe fn run(&self, is_put: bool, remote: &Attached, address: u64, near: &Side, len: u64) -> Result<()> {
        let other = self.other(remote, address, near, len)?;
        let mut transport = match &other {
            Some(other) => Transport::new(other)?,
            None => {
                let idle = lock(&self.idle).pop();
                match idle {
                    Some(transport) => transport,
                    None => Transport::new(&self.domain)?,
                }
            }
        };
        match near {
            Side::Known(memory, offset) => {
                let local = [Local::at(memory, *offset, len)?];
                transport.accepted(|transport| match is_put {
                    true => transport.put_zcopy(&local, remote, address, None).map(drop),
                    false => transport.get_zcopy(&local, remote, address, None).map(drop),
                })?;
            }
            // Neither end is memory that an engine of this process can reach.
            Side::Plain(_) if remote.kind() == MemoryType::Host => return Err(staged::host_to_host()),
            Side::Plain(start) if is_put => {
                // SAFETY: `len` bytes of the program, by the caller's promise; `side` checked them.
                let bytes = unsafe { std::slice::from_raw_parts(*start as *const u8, len as usize) };
                transport.write_bytes(bytes, remote, address)?;
            }
            Side::Plain(start) => {
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts_mut(*start as *mut u8, len as usize) };
                // SAFETY: the flush below follows, or the transport is dropped.
                unsafe { transport.read_bytes(bytes, remote, address) }?;
            }
        }
        transport.flush_wait(Deadline::NEVER)?;
        // An idle transport of another card would keep that open.
        if other.is_none() {
            lock(&self.idle).push(transport);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Copier({:?})", self.domain)
    }
}
