//! Device memory of the process: allocation, lookup by address, copies, exports.

#![allow(unsafe_code, reason = "bytes that a copy out of device memory fills")]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use gaudi_copy::key::PROCESS_KEY_BYTES;
use gaudi_copy::{
    AllocOptions, Attached, Deadline, ErrorKind, Export, Local, Memory, MemoryType, Transport, memory_types,
};
use gaudi_sys::PerProcess;

use crate::cards::{Card, cards};
use crate::counters;
use crate::status::{self, Status};

type Answer<T> = Result<T, Status>;

/// One live allocation.
#[derive(Clone)]
pub(crate) struct Allocation {
    memory: Memory,
    pub(crate) card: &'static Card,
    /// A number that no other allocation of the process has.
    pub(crate) number: u64,
}

impl Allocation {
    /// The device address of the first byte.
    pub(crate) fn base(&self) -> u64 {
        self.memory.address()
    }

    /// Bytes: the requested length in whole cache lines.
    pub(crate) fn len(&self) -> u64 {
        self.memory.len()
    }
}

static NUMBER: AtomicU64 = AtomicU64::new(1);
/// The live allocations by first address. A fork child has none of its parent's.
static LIVE: PerProcess<RwLock<BTreeMap<u64, Allocation>>> = PerProcess::new();

fn live() -> RwLockReadGuard<'static, BTreeMap<u64, Allocation>> {
    LIVE.get().read().unwrap_or_else(PoisonError::into_inner)
}

fn live_mut() -> RwLockWriteGuard<'static, BTreeMap<u64, Allocation>> {
    LIVE.get().write().unwrap_or_else(PoisonError::into_inner)
}

/// Allocations have whole cache lines and share none: UCX registers ranges that it rounds up.
const LINE: u64 = 128;

/// Allocates at least `len` bytes on a card. Returns the device address and the length.
///
/// # Errors
/// `InvalidParam`: `len` is 0. Otherwise the device's error.
pub(crate) fn alloc(card: &'static Card, len: u64) -> Answer<(u64, u64)> {
    if len == 0 {
        return Err(Status::InvalidParam);
    }
    let len = len.checked_next_multiple_of(LINE).ok_or(Status::NoMemory)?;
    let options = AllocOptions {
        align: LINE,
        export: Export::Pooled,
        ..AllocOptions::PRIVATE
    };
    let memory = card.memory().and_then(|domain| domain.alloc(len, options));
    let memory = memory.map_err(|error| status::of(&error))?;
    counters::allocated();
    card.id.get_or_init(|| memory.device());
    let base = memory.address();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    live_mut().insert(base, Allocation { memory, card, number });
    Ok((base, len))
}

/// Frees the allocation that begins at an address.
///
/// # Errors
/// `InvalidParam`: there is none. `Busy`: another thread uses it; it stays allocated.
pub(crate) fn free(base: u64) -> Answer<()> {
    let Allocation { memory, card, number } = live_mut().remove(&base).ok_or(Status::InvalidParam)?;
    let domain = card.memory().map_err(|error| status::of(&error))?;
    domain.free(memory).map_err(|failure| {
        let (memory, error) = failure.into_parts();
        let kept = Allocation { memory, card, number };
        // If the driver unmapped it, another thread may have allocated the address since.
        live_mut().entry(base).or_insert(kept);
        status::of(&error)
    })
}

/// The allocation that holds an address.
pub(crate) fn find(address: u64) -> Option<Allocation> {
    // Host memory, which UCX asks for most, ends here without a lock. So does memory in a fork
    // child.
    memory_types().lookup(address, 1).device?;
    let live = live();
    let (base, allocation) = live.range(..=address).next_back()?;
    (address - base < allocation.len()).then(|| allocation.clone())
}

/// The card whose memory holds an address. Takes no lock, and finds none in a fork child.
pub(crate) fn card_of(address: u64) -> Option<&'static Card> {
    let device = memory_types().lookup(address, 1).device?;
    cards().iter().find(|card| card.id.get() == Some(&device))
}

/// What a query reports of an allocation.
pub(crate) struct Described {
    pub(crate) base: u64,
    pub(crate) len: u64,
}

/// Describes the allocation that holds an address. As [`card_of`], takes no lock.
pub(crate) fn describe(address: u64) -> Option<Described> {
    let info = card_of(address)?.opened()?.mem_query(address, 1).ok()?;
    (info.kind == MemoryType::Device).then_some(Described {
        base: info.base,
        len: info.len,
    })
}

/// The bytes of a key: that of the library for device memory, zeros for host memory, which needs
/// none.
pub(crate) type Key = [u8; PROCESS_KEY_BYTES];

/// Packs the key of the memory at an address.
///
/// # Errors
/// As [`MemoryDomain::pack`](gaudi_copy::MemoryDomain::pack).
pub(crate) fn pack(address: u64) -> Answer<Key> {
    let Some(allocation) = find(address) else {
        return Ok([0; PROCESS_KEY_BYTES]);
    };
    let key = allocation
        .card
        .memory()
        .and_then(|domain| domain.pack(&allocation.memory));
    Ok(key.map_err(|error| status::of(&error))?.to_bytes())
}

/// Checks every field of a key.
///
/// # Errors
/// - `Unreachable`: another process packed the key.
/// - `InvalidAddress`: the memory was freed.
/// - `InvalidParam`: a field is invalid.
pub(crate) fn check_key(key: &Key) -> Answer<()> {
    if *key == [0; PROCESS_KEY_BYTES] {
        return Ok(());
    }
    match Attached::unpack(key).map_err(|error| error.kind()) {
        Ok(_) => Ok(()),
        Err(ErrorKind::AccessDenied) => Err(Status::Unreachable),
        Err(ErrorKind::NotFound) => Err(Status::InvalidAddress),
        Err(_) => Err(Status::InvalidParam),
    }
}

/// Every live allocation's address, length and card.
pub(crate) fn all() -> Vec<(u64, u64, &'static Card)> {
    live()
        .iter()
        .map(|(base, allocation)| (*base, allocation.len(), allocation.card))
        .collect()
}

/// A dma-buf that holds an address and the rest of its allocation, and the address's offset in it.
///
/// # Errors
/// As [`MemoryDomain::dmabuf`](gaudi_copy::MemoryDomain::dmabuf).
pub(crate) fn export(allocation: &Allocation, address: u64) -> Answer<(OwnedFd, u64)> {
    let rest = allocation.len() - (address - allocation.base());
    let domain = allocation.card.memory().map_err(|error| status::of(&error))?;
    let part = domain
        .mem_query(address, rest)
        .and_then(|info| domain.dmabuf(&info));
    let part = part.map_err(|error| status::of(&error))?;
    counters::exported();
    Ok((part.fd, part.offset))
}

/// One side of a copy.
enum Side {
    Device(Allocation, u64),
    Host,
}

impl Side {
    fn of(address: u64, len: u64) -> Answer<Self> {
        let Some(allocation) = find(address) else {
            return Ok(Self::Host);
        };
        let offset = address - allocation.base();
        match len <= allocation.len() - offset {
            true => Ok(Self::Device(allocation, offset)),
            false => Err(Status::OutOfRange),
        }
    }
}

/// What a copy moves.
pub(crate) enum Copy {
    /// Nothing to do.
    Empty,
    ToDevice(Allocation, u64),
    FromDevice(Allocation, u64),
    Between {
        dst: (Allocation, u64),
        src: (Allocation, u64),
    },
}

impl Copy {
    /// Finds what two addresses are.
    ///
    /// # Errors
    /// - `OutOfRange`: the range leaves its allocation.
    /// - `Unsupported`: both are host memory, which engines do not copy.
    pub(crate) fn plan(dst: u64, src: u64, len: u64) -> Answer<Self> {
        if len == 0 {
            return Ok(Self::Empty);
        }
        Ok(match (Side::of(dst, len)?, Side::of(src, len)?) {
            (Side::Device(dst, to), Side::Host) => Self::ToDevice(dst, to),
            (Side::Host, Side::Device(src, from)) => Self::FromDevice(src, from),
            (Side::Device(dst, to), Side::Device(src, from)) => Self::Between {
                dst: (dst, to),
                src: (src, from),
            },
            (Side::Host, Side::Host) => return Err(Status::Unsupported),
        })
    }

    /// Whether the bytes pass through host memory of the plugin.
    pub(crate) fn is_staged(&self) -> bool {
        match self {
            Self::Empty => false,
            Self::ToDevice(..) | Self::FromDevice(..) => true,
            Self::Between { dst, src } => dst.0.card.index() != src.0.card.index(),
        }
    }
}

/// Runs operations on a card's transport, and waits for them. A failure or a panic drops the
/// transport, which waits too: no copy is in flight when the call returns or unwinds.
fn wait(
    card: &'static Card,
    operations: impl FnOnce(&mut Transport) -> gaudi_copy::Result<()>,
) -> Answer<()> {
    let mut slot = gaudi_sys::lock(&card.transport);
    let run = || {
        let mut transport = match slot.take() {
            Some(transport) => transport,
            None => Transport::new(card.memory()?)?,
        };
        operations(&mut transport)?;
        transport.flush_wait(Deadline::NEVER)?;
        *slot = Some(transport);
        Ok(())
    };
    run().map_err(|error| status::of(&error))
}

/// The configuration of an allocation's domain.
fn config(allocation: &Allocation) -> Answer<&'static gaudi_copy::Config> {
    let domain = allocation.card.memory().map_err(|error| status::of(&error))?;
    Ok(domain.config())
}

/// Writes bytes of the program to device memory.
pub(crate) fn write(to: &Allocation, offset: u64, bytes: &[u8]) -> Answer<()> {
    let (target, address) = (Attached::to(&to.memory), to.base() + offset);
    wait(to.card, |transport| {
        transport.write_bytes(bytes, &target, address)
    })
}

/// The two directions of a copy between device memory and registered host memory.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    ToDevice,
    FromDevice,
}

/// Copies between device memory and host memory that the engines access.
pub(crate) fn direct(
    device: &Allocation,
    offset: u64,
    host: &Memory,
    (address, len): (u64, u64),
    direction: Direction,
) -> Answer<()> {
    let (remote, at) = (Attached::to(&device.memory), device.base() + offset);
    wait(device.card, |transport| {
        let local = [Local::of_address(host, address, len)?];
        transport.accepted(|transport| {
            let posted = match direction {
                Direction::ToDevice => transport.put_zcopy(&local, &remote, at, None),
                Direction::FromDevice => transport.get_zcopy(&local, &remote, at, None),
            };
            posted.map(drop)
        })
    })
}

/// Whether a copy of host memory is long enough to pin the memory for it.
pub(crate) fn is_long(allocation: &Allocation, len: u64) -> bool {
    config(allocation).is_ok_and(|config| len > config.bcopy_bytes as u64)
}

/// Reads device memory into bytes of the program.
pub(crate) fn read(from: &Allocation, offset: u64, bytes: &mut [u8]) -> Answer<()> {
    let (source, address) = (Attached::to(&from.memory), from.base() + offset);
    // SAFETY: `wait` flushes the transport or drops it, also when it unwinds.
    wait(from.card, |transport| unsafe {
        transport.read_bytes(bytes, &source, address)
    })
}

/// Copies between two places of device memory.
pub(crate) fn between(dst: &(Allocation, u64), src: &(Allocation, u64), len: u64) -> Answer<()> {
    let target = Attached::to(&dst.0.memory);
    let address = dst.0.base() + dst.1;
    wait(dst.0.card, |transport| {
        let local = [Local::at(&src.0.memory, src.1, len)?];
        transport.accepted(|transport| transport.put_zcopy(&local, &target, address, None).map(drop))
    })
}

/// Fills device memory with a byte.
pub(crate) fn fill(address: u64, value: u8, len: u64) -> Answer<()> {
    let Side::Device(allocation, offset) = Side::of(address, len)? else {
        return Err(Status::InvalidAddress);
    };
    let piece = vec![value; config(&allocation)?.bcopy_bytes.max(1)];
    let mut done = 0;
    while done < len {
        let count = (len - done).min(piece.len() as u64);
        write(&allocation, offset + done, &piece[..count as usize])?;
        done += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nix::libc;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;
    use crate::stub;

    #[test]
    fn fork_child_finds_no_memory() {
        let _alone = stub::install();
        let (base, _) = alloc(&cards()[0], 1).expect("device memory");
        assert!(
            find(base).is_some() && describe(base).is_some(),
            "the parent finds it"
        );
        let held = live_mut();
        // SAFETY: the child takes no lock that the parent holds, and ends itself.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                // SAFETY: ends a child that waits for the lock.
                unsafe { libc::alarm(20) };
                let is_found = find(base).is_some() || describe(base).is_some() || !all().is_empty();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(is_found.into()) }
            }
            ForkResult::Parent { child } => {
                let ended = waitpid(child, None);
                assert_eq!(ended, Ok(WaitStatus::Exited(child, 0)), "it finds none, at once");
            }
        }
        drop(held);
        free(base).expect("freed");
    }

    #[test]
    fn panic_leaves_no_copy_for_the_next() {
        let _alone = stub::install();
        let card = &cards()[0];
        let (base, len) = alloc(card, 4096).expect("device memory");
        let allocation = find(base).expect("live");
        let calls = Arc::new(AtomicU64::new(0));
        let count = calls.clone();
        let unwound = status::caught("test", || {
            wait(card, |transport| {
                let unpack = move |_: &[u8]| {
                    count.fetch_add(1, Ordering::Relaxed);
                };
                let source = Attached::to(&allocation.memory);
                transport.get_bcopy(len as usize, unpack, &source, base, None)?;
                panic!("a defect after a copy began")
            })
        });
        assert!(unwound.is_none(), "it panicked");
        let before = calls.load(Ordering::Relaxed);
        assert_eq!(wait(card, |_| Ok(())), Ok(()), "a later call works");
        let after = calls.load(Ordering::Relaxed);
        assert_eq!(after, before, "the later call does not end the copy");
        drop(allocation);
        free(base).expect("freed");
    }

    #[test]
    fn changed_key_is_refused() {
        let _alone = stub::install();
        let (base, _) = alloc(&cards()[0], 1).expect("device memory");
        let key = pack(base + 5).expect("a key");
        assert_eq!(check_key(&key), Ok(()));
        assert_eq!(pack(1), Ok([0; PROCESS_KEY_BYTES]), "host memory");
        for at in 0..key.len() {
            let mut changed = key;
            changed[at] ^= 1;
            assert!(check_key(&changed).is_err(), "byte {at}");
        }
        let mut other = key;
        other[16] ^= 1; // the nonce of the process
        assert_eq!(check_key(&other), Err(Status::Unreachable));
        free(base).expect("freed");
        assert_eq!(check_key(&key), Err(Status::InvalidAddress), "freed memory");
    }
}
