//! Registered memory: what keys stand for, and the claims that keep it registered while a thread moves bytes.

#![expect(
    unsafe_code,
    reason = "a region of host memory is an address that somebody promised to keep mapped"
)]

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use gaudi_dmabuf::{CpuAccess, CpuAttachment, Directions};
use gaudi_seam::{HostVa, Result};
use gaudi_sys::shared::copy_in;
use gaudi_verbs::{Access, Sge};

use crate::keys::Keys;
use crate::window::{View, Windows};
use crate::{MAX_INLINE, MAX_SGE};

/// Bytes of registered memory: an address and a length, never a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) at: NonNull<u8>,
    pub(crate) len: usize,
}

impl Piece {
    /// A byte of our own.
    pub(crate) fn of_byte(byte: &mut u8) -> Self {
        Self {
            at: NonNull::from(byte),
            len: 1,
        }
    }

    /// Bytes of our own, which must stay where they are while the piece is used.
    pub(crate) fn of_bytes(bytes: &mut [u8]) -> Self {
        Self {
            len: bytes.len(),
            at: NonNull::from(bytes).cast(),
        }
    }

    /// The first `at` bytes and the rest; all of it and nothing where it is not so long.
    pub(crate) fn split(self, at: usize) -> (Self, Self) {
        let at = at.min(self.len);
        // SAFETY: `at` stays inside the piece or one past it.
        let rest = unsafe { self.at.add(at) };
        (
            Self { len: at, ..self },
            Self {
                at: rest,
                len: self.len - at,
            },
        )
    }

    /// # Safety
    /// - The piece is mapped and readable.
    pub(crate) unsafe fn first_byte(self) -> Option<u8> {
        // SAFETY: readable, as the caller promises; an atomic, since others may write it at any time.
        (self.len > 0).then(|| unsafe { AtomicU8::from_ptr(self.at.as_ptr()) }.load(Ordering::Relaxed))
    }
}

/// Copies bytes of our own into pieces of registered memory, one after the other, and says how many found no place.
///
/// # Safety
/// - Each piece is memory of this process that stays mapped and writable until this returns, and to which no reference exists. Others may
///   read and write it at the same time, by atomics.
pub(crate) unsafe fn scatter(pieces: &[Piece], mut bytes: &[u8]) -> usize {
    for piece in pieces {
        let (part, rest) = bytes.split_at(piece.len.min(bytes.len()));
        // SAFETY: the part is no longer than the piece, which is writable memory without references, as the caller promises.
        unsafe { copy_in(piece.at, part) };
        bytes = rest;
    }
    bytes.len()
}

/// What an atomic does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AtomicOp {
    FetchAdd(u64),
    CompareSwap { compare: u64, swap: u64 },
}

/// Does it, atomically against everybody who shares the memory, and says what was there. `None` where the address is not aligned.
///
/// # Safety
/// - The piece is 8 bytes of mapped and writable memory, to which no reference but of atomics exists.
pub(crate) unsafe fn atomic(piece: Piece, op: AtomicOp) -> Option<u64> {
    let at = piece.at.as_ptr().cast::<u64>();
    if !at.is_aligned() || piece.len != 8 {
        return None;
    }
    // SAFETY: aligned, as was just seen, and mapped and writable, as the caller promises.
    let cell = unsafe { AtomicU64::from_ptr(at) };
    Some(match op {
        AtomicOp::FetchAdd(add) => cell.fetch_add(add, Ordering::SeqCst),
        AtomicOp::CompareSwap { compare, swap } => cell
            .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|was| was),
    })
}

/// What a region stands on.
#[derive(Debug)]
enum Memory {
    /// A range of this process, kept mapped by who registered it.
    Host(NonNull<u8>),
    /// A window of a dma-buf, through our attachment to it and in no other way.
    DmaBuf(CpuAttachment),
}

/// One memory region.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Memory,
    iova: u64,
    len: u64,
    access: Access,
    pd: u32,
}

// SAFETY: the address is only handed to system calls and used by atomics, which may be made from any thread; who registered it promised
// that no Rust reference to it is used meanwhile.
unsafe impl Send for Region {}
// SAFETY: as above; a region itself never changes.
unsafe impl Sync for Region {}

impl Region {
    /// A range of this process. `None` for the null address.
    ///
    /// # Safety
    /// Until the region is dropped:
    /// - `len` bytes at `address` stay mapped: readable, and writable where `access` has `LOCAL_WRITE`;
    /// - no Rust reference to them is used while the NIC may touch them.
    pub(crate) unsafe fn host(pd: u32, address: HostVa, len: u64, iova: u64, access: Access) -> Option<Self> {
        let address = usize::try_from(address.get()).ok()?;
        let at = NonNull::new(std::ptr::with_exposed_provenance_mut(address))?;
        Some(Self {
            memory: Memory::Host(at),
            iova,
            len,
            access,
            pd,
        })
    }

    /// A window of a dma-buf.
    pub(crate) fn dmabuf(pd: u32, attachment: CpuAttachment, iova: u64, access: Access) -> Self {
        Self {
            len: attachment.window().len(),
            memory: Memory::DmaBuf(attachment),
            iova,
            access,
            pd,
        }
    }

    /// The bytes from `addr`, where they lie in the region, the region is of this domain, and it allows this.
    fn piece(&self, pd: u32, addr: u64, len: u64, need: Access) -> Option<Piece> {
        let offset = addr.checked_sub(self.iova)?;
        let end = offset.checked_add(len)?;
        if self.pd != pd || end > self.len || !self.access.contains(need) {
            return None;
        }
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let at = match &self.memory {
            // SAFETY: the offset was just proved to stay inside the registered range, or one past it.
            Memory::Host(base) => unsafe { base.add(offset) },
            Memory::DmaBuf(attachment) => attachment.at(offset, len).ok()?,
        };
        Some(Piece { at, len })
    }

    fn begin(&self, directions: Directions) -> Result<Option<CpuAccess<'_>>> {
        match &self.memory {
            Memory::Host(_) => Ok(None),
            Memory::DmaBuf(attachment) => attachment.begin(directions).map(Some),
        }
    }
}

#[derive(Debug)]
struct Slot {
    region: Arc<Region>,
    /// Claims that a thread works with now.
    users: u32,
    /// Being deregistered: not found by new claims.
    dying: bool,
}

/// All regions of a NIC by key.
#[derive(Debug)]
pub(crate) struct Regions {
    slots: HashMap<u32, Slot>,
    pub(crate) windows: Windows,
    keys: Keys,
}

/// The bytes that a thread is about to move, and the regions that it keeps registered until it gives them back.
///
/// One is made a thread and used again and again: claiming allocates nothing.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) pieces: Vec<Piece>,
    held: Vec<(u32, Arc<Region>)>,
    /// Bytes that stand in no region: inline data, operands, answers to atomics. Boxed, so that they stay where they are.
    own: Box<[u8; MAX_INLINE as usize]>,
}

// SAFETY: the addresses are used by the thread that holds the claim only; they are as free to move as the regions are.
unsafe impl Send for Claim {}

/// Regions that one frame may touch: one an element, and one more where a datagram's route header ends within an element.
const MAX_HELD: usize = MAX_SGE as usize + 1;

/// CPU access to every claimed dma-buf; ends on drop.
pub(crate) type Guards<'a> = [Option<CpuAccess<'a>>; MAX_HELD];

impl Claim {
    pub(crate) fn new() -> Self {
        Self {
            // A fault rule may cut one piece into three.
            pieces: Vec::with_capacity(MAX_HELD + 2),
            held: Vec::with_capacity(MAX_HELD),
            own: Box::new([0; MAX_INLINE as usize]),
        }
    }

    /// A piece of bytes of our own: what goes out and stands in no region.
    pub(crate) fn push_own(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(self.own.len());
        if let (Some(place), Some(bytes)) = (self.own.get_mut(..len), bytes.get(..len)) {
            place.copy_from_slice(bytes);
            self.pieces.push(Piece::of_bytes(place));
        }
    }

    /// Whether any of it is the memory of a dma-buf.
    pub(crate) fn is_device_memory(&self) -> bool {
        let device = |region: &Region| matches!(region.memory, Memory::DmaBuf(_));
        self.held.iter().any(|(_, region)| device(region))
    }

    /// Begins CPU access to all that is claimed.
    pub(crate) fn begin(&self, directions: Directions) -> Result<Guards<'_>> {
        let mut guards: Guards<'_> = std::array::from_fn(|_| None);
        for (guard, (_, region)) in guards.iter_mut().zip(&self.held) {
            *guard = region.begin(directions)?;
        }
        Ok(guards)
    }
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self {
            slots: HashMap::new(),
            windows: Windows::default(),
            keys: Keys::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Registers and returns the key, which is lkey and rkey at once.
    ///
    /// # Errors
    /// No random numbers are to be had.
    pub(crate) fn insert(&mut self, region: Region) -> Result<u32> {
        let key = loop {
            let key = self.keys.draw()?;
            let taken = self.slots.contains_key(&key) || self.windows.names(key);
            if key != 0 && !taken {
                break key;
            }
        };
        let slot = Slot {
            region: Arc::new(region),
            users: 0,
            dying: false,
        };
        self.slots.insert(key, slot);
        Ok(key)
    }

    /// Returns a key for a new window. No region's key and no other window's has its upper 24 bits.
    ///
    /// # Errors
    /// No random numbers are to be had.
    pub(crate) fn window_key(&mut self) -> Result<u32> {
        loop {
            let key = self.keys.draw()?;
            let name = key >> 8;
            let taken = self.windows.names(key) || self.slots.keys().any(|key| key >> 8 == name);
            if name != 0 && !taken {
                return Ok(key);
            }
        }
    }

    /// Binds a window, where both domains and the region's rights allow it (rxe_check_bind_mw).
    pub(crate) fn bind(&mut self, handle: u32, old: u32, rkey: u32, pd: u32, view: View) -> bool {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if view.len > 0 {
            let Some(slot) = self.slots.get(&view.mr).filter(|slot| !slot.dying) else {
                return false;
            };
            let need = if view.access.intersects(writes) {
                Access::MW_BIND | Access::LOCAL_WRITE
            } else {
                Access::MW_BIND
            };
            if slot.region.piece(pd, view.addr, view.len, need).is_none() {
                return false;
            }
        }
        self.windows.bind(handle, old, rkey, pd, view)
    }

    /// The region and the right that a peer's key comes down to, where the range may be used so through this queue pair.
    fn resolve(
        &self,
        key: u32,
        pd: u32,
        qpn: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Option<(u32, Access)> {
        if !self.windows.names(key) {
            return Some((key, need));
        }
        let view = self.windows.look(key, pd, qpn)?;
        let offset = addr.checked_sub(view.addr)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= view.len);
        (inside && view.access.contains(need)).then_some((view.mr, Access::empty()))
    }

    /// Whether a peer may use the whole range so.
    pub(crate) fn allows_peer(&self, key: u32, pd: u32, qpn: u32, addr: u64, len: u64, need: Access) -> bool {
        self.resolve(key, pd, qpn, addr, len, need)
            .is_some_and(|(key, need)| self.allows(key, pd, addr, len, need))
    }

    /// Claims one range for a peer. The claim is left as it was where that is not allowed.
    #[expect(
        clippy::too_many_arguments,
        reason = "a key, who uses it, the range and the right"
    )]
    pub(crate) fn claim_peer(
        &mut self,
        claim: &mut Claim,
        key: u32,
        pd: u32,
        qpn: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> bool {
        match self.resolve(key, pd, qpn, addr, len, need) {
            Some((key, need)) => self.claim(claim, key, pd, addr, len, need),
            None => false,
        }
    }

    /// Kills the key. `None` where there is no such region, else whether some thread still works with it.
    pub(crate) fn kill(&mut self, key: u32) -> Option<bool> {
        let slot = self.slots.get_mut(&key)?;
        slot.dying = true;
        Some(slot.users > 0)
    }

    /// Takes a killed region out.
    pub(crate) fn remove(&mut self, key: u32) -> Option<Arc<Region>> {
        self.slots.remove(&key).map(|slot| slot.region)
    }

    pub(crate) fn contains(&self, key: u32) -> bool {
        self.slots.get(&key).is_some_and(|slot| !slot.dying)
    }

    /// Whether the whole range may be used so.
    pub(crate) fn allows(&self, key: u32, pd: u32, addr: u64, len: u64, need: Access) -> bool {
        let slot = self.slots.get(&key).filter(|slot| !slot.dying);
        slot.is_some_and(|slot| slot.region.piece(pd, addr, len, need).is_some())
    }

    /// Whether all elements may be used so. An element of no bytes needs no key.
    pub(crate) fn allow_all(&self, pd: u32, sges: &[Sge], need: Access) -> bool {
        sges.iter()
            .all(|sge| sge.length == 0 || self.allows(sge.lkey.0, pd, sge.addr.0, sge.length.into(), need))
    }

    /// Claims one range of a region. The claim is left as it was where that is not allowed.
    pub(crate) fn claim(
        &mut self,
        claim: &mut Claim,
        key: u32,
        pd: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> bool {
        if len == 0 {
            return true;
        }
        let Some(slot) = self.slots.get_mut(&key).filter(|slot| !slot.dying) else {
            return false;
        };
        let Some(piece) = slot.region.piece(pd, addr, len, need) else {
            return false;
        };
        slot.users += 1;
        claim.pieces.push(piece);
        claim.held.push((key, slot.region.clone()));
        true
    }

    /// Claims `len` bytes at `offset` of what the elements make together. Nothing is claimed where any of it is not allowed.
    pub(crate) fn claim_part(
        &mut self,
        claim: &mut Claim,
        sges: &[Sge],
        pd: u32,
        offset: u32,
        len: u32,
        need: Access,
    ) -> bool {
        let (mut skip, mut left) = (u64::from(offset), u64::from(len));
        for sge in sges {
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let part = (length - skip).min(left);
            let allowed = match sge.addr.checked_add(skip) {
                Some(addr) => self.claim(claim, sge.lkey.0, pd, addr.0, part, need),
                None => false,
            };
            if !allowed {
                self.release(claim);
                return false;
            }
            skip = 0;
            left -= part;
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            self.release(claim);
        }
        left == 0
    }

    /// Gives everything back. Whether a region that is being deregistered became free.
    pub(crate) fn release(&mut self, claim: &mut Claim) -> bool {
        claim.pieces.clear();
        let mut freed = false;
        for (key, _) in claim.held.drain(..) {
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.users = slot.users.saturating_sub(1);
                freed |= slot.dying && slot.users == 0;
            }
        }
        freed
    }
}
