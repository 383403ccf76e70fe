//! [`Regions`]: registered memory by key, and [`Claim`]s that keep it registered while a thread
//! moves bytes.

#![expect(
    unsafe_code,
    reason = "a region of host memory is an address that its owner promised to keep mapped"
)]

use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use gaudi_dmabuf::{CpuAccess, CpuAttachment, Directions};
use gaudi_seam::{HostVa, Result};
use gaudi_sys::shared::copy_in;
use gaudi_verbs::provider::MrState;
use gaudi_verbs::{Access, Sge};

use crate::error::defect;
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
    /// Returns a piece of the NIC's own memory, which must not move while the piece is used.
    pub(crate) fn of_bytes(bytes: &mut [u8]) -> Self {
        Self {
            len: bytes.len(),
            at: NonNull::from(bytes).cast(),
        }
    }

    /// Splits after `at` bytes, or at the end if the piece is shorter.
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
        // SAFETY: readable, as the caller promises. Atomic, since peers may write it at any time.
        (self.len > 0).then(|| unsafe { AtomicU8::from_ptr(self.at.as_ptr()) }.load(Ordering::Relaxed))
    }

    /// Appends a copy of its bytes.
    ///
    /// # Safety
    /// - The piece is mapped and readable.
    pub(crate) unsafe fn append_to(self, bytes: &mut Vec<u8>) {
        let mut rest = self;
        // Byte by byte: the memory may be mapped without write access, which `copy_out` needs.
        // SAFETY: a part of a readable piece.
        while let Some(byte) = unsafe { rest.first_byte() } {
            bytes.push(byte);
            rest = rest.split(1).1;
        }
    }
}

/// Copies bytes into pieces of registered memory, one after the other.
///
/// # Safety
/// - Each piece is memory of this process that stays mapped and writable until this returns, and to
///   which no reference exists. Others may access it at the same time, by atomics.
pub(crate) unsafe fn scatter(pieces: &[Piece], mut bytes: &[u8]) {
    for piece in pieces {
        let (part, rest) = bytes.split_at(piece.len.min(bytes.len()));
        // SAFETY: the part is no longer than the piece, which is writable memory without
        // references, as the caller promises.
        unsafe { copy_in(piece.at, part) };
        bytes = rest;
    }
}

/// An atomic operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AtomicOp {
    FetchAdd(u64),
    CompareSwap { compare: u64, swap: u64 },
}

/// Performs it, atomically for everything that shares the memory. Returns the old value, or `None`
/// if the address is not aligned.
///
/// # Safety
/// - The piece is mapped and writable memory, to which only references of atomics exist.
pub(crate) unsafe fn atomic(piece: Piece, op: AtomicOp) -> Option<u64> {
    let at = piece.at.as_ptr().cast::<u64>();
    if !at.is_aligned() || piece.len != 8 {
        return None;
    }
    // SAFETY: aligned and 8 bytes long, as checked above. Mapped and writable, as the caller
    // promises.
    let cell = unsafe { AtomicU64::from_ptr(at) };
    Some(match op {
        AtomicOp::FetchAdd(add) => cell.fetch_add(add, Ordering::SeqCst),
        AtomicOp::CompareSwap { compare, swap } => cell
            .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|was| was),
    })
}

/// The memory of a region.
#[derive(Debug)]
enum Memory {
    /// A range of this process, which its owner keeps mapped.
    Host(NonNull<u8>),
    /// A window of a dma-buf, accessed only through the attachment.
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

// SAFETY: the address is used only by system calls and atomics, which any thread may do. Its owner
// promised that no Rust reference to it is used meanwhile.
unsafe impl Send for Region {}
// SAFETY: as above. A region itself never changes.
unsafe impl Sync for Region {}

impl Region {
    /// Returns a region of a range of this process, or `None` for the null address.
    ///
    /// # Safety
    /// Until the region is dropped:
    /// - `len` bytes at `address` stay mapped: readable, and writable where `access` has
    ///   `LOCAL_WRITE`;
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

    /// Returns a region of a window of a dma-buf.
    pub(crate) fn dmabuf(pd: u32, attachment: CpuAttachment, iova: u64, access: Access) -> Self {
        Self {
            len: attachment.window().len(),
            memory: Memory::DmaBuf(attachment),
            iova,
            access,
            pd,
        }
    }

    /// Returns the range from `addr`, if it lies in the region, and domain and rights allow it.
    fn piece(&self, pd: u32, addr: u64, len: u64, need: Access) -> Option<Piece> {
        let offset = addr.checked_sub(self.iova)?;
        let end = offset.checked_add(len)?;
        if self.pd != pd || end > self.len || !self.access.contains(need) {
            return None;
        }
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let at = match &self.memory {
            // SAFETY: the offset was just proved to stay inside the registered range, or one past
            // it.
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

/// An access of a peer: a key, its domain and queue pair, the range, and the right that it needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    pub(crate) key: u32,
    pub(crate) pd: u32,
    pub(crate) qpn: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) need: Access,
}

#[derive(Debug)]
struct Slot {
    region: Arc<Region>,
    /// Claims that threads hold.
    users: u32,
    /// Being deregistered: new claims fail.
    dying: bool,
    /// The exporter revoked the memory: new claims fail.
    revoked: bool,
}

impl Slot {
    fn is_usable(&self) -> bool {
        !self.dying && !self.revoked
    }
}

/// All regions of a NIC by key.
#[derive(Debug)]
pub(crate) struct Regions {
    slots: HashMap<u32, Slot>,
    pub(crate) windows: Windows,
    keys: Keys,
}

/// Memory that a thread moves, and the regions that stay registered until the claim is released.
///
/// A thread reuses one claim, so that claiming allocates nothing.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) pieces: Vec<Piece>,
    held: Vec<(u32, Arc<Region>)>,
    /// Bytes outside of regions: inline data, operands, answers to atomics. Boxed, since they must
    /// not move.
    own: Box<[u8; MAX_INLINE as usize]>,
}

// SAFETY: only the thread that holds the claim uses the addresses, and regions are `Send`.
unsafe impl Send for Claim {}

/// Regions of one frame: one per element, and one more if a datagram's route header ends inside an
/// element.
const MAX_HELD: usize = MAX_SGE as usize + 1;

/// CPU access to every claimed dma-buf. Ends on drop.
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

    /// Adds a copy of bytes that lie in no region.
    pub(crate) fn push_own(&mut self, bytes: &[u8]) {
        match self.own.get_mut(..bytes.len()) {
            Some(copy) => {
                copy.copy_from_slice(bytes);
                self.pieces.push(Piece::of_bytes(copy));
            }
            None => defect("more own bytes than inline data can have"),
        }
    }

    /// Returns whether any of it is the memory of a dma-buf.
    pub(crate) fn is_device_memory(&self) -> bool {
        let device = |region: &Region| matches!(region.memory, Memory::DmaBuf(_));
        self.held.iter().any(|(_, region)| device(region))
    }

    /// Begins CPU access to all claimed memory.
    ///
    /// # Errors
    /// The errno of `DMA_BUF_IOCTL_SYNC`.
    pub(crate) fn begin(&self, directions: Directions) -> Result<Guards<'_>> {
        let mut guards: Guards<'_> = std::array::from_fn(|_| None);
        for (guard, (_, region)) in guards.iter_mut().zip(&self.held) {
            *guard = region.begin(directions)?;
        }
        Ok(guards)
    }
}

impl Regions {
    /// No regions. `seed` is that of keys that repeat.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self {
            slots: HashMap::new(),
            windows: Windows::default(),
            keys: Keys::new(seed),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Registers a region. Returns the key, which is both lkey and rkey.
    ///
    /// # Errors
    /// The errno of getrandom(2).
    pub(crate) fn insert(&mut self, region: Region) -> Result<u32> {
        loop {
            let key = self.keys.draw()?;
            if key == 0 || self.slots.contains_key(&key) || self.windows.names(key) {
                continue;
            }
            let slot = Slot {
                region: Arc::new(region),
                users: 0,
                dying: false,
                revoked: false,
            };
            self.slots.insert(key, slot);
            return Ok(key);
        }
    }

    /// Returns a key for a new window. No region's key and no other window's has its upper 24 bits.
    ///
    /// # Errors
    /// The errno of getrandom(2).
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

    /// Binds a window, if domains and rights allow it (rxe_check_bind_mw). Returns whether it did.
    pub(crate) fn bind(&mut self, handle: u32, old: u32, rkey: u32, pd: u32, view: View) -> bool {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if view.len > 0 {
            let mut need = Access::MW_BIND;
            need.set(Access::LOCAL_WRITE, view.access.intersects(writes));
            if !self.allows(view.mr, pd, view.addr, view.len, need) {
                return false;
            }
        }
        self.windows.bind(handle, old, rkey, pd, view)
    }

    /// Returns the region that a peer's key reaches, and the right that the region must still
    /// grant, or `None` if a window forbids the access.
    fn resolve(&self, reach: Reach) -> Option<(u32, Access)> {
        let Reach { key, addr, need, .. } = reach;
        if !self.windows.names(key) {
            return Some((key, need));
        }
        let view = self.windows.view(key, reach.pd, reach.qpn)?;
        let offset = addr.checked_sub(view.addr)?;
        let inside = offset.checked_add(reach.len).is_some_and(|end| end <= view.len);
        (inside && view.access.contains(need)).then_some((view.mr, Access::empty()))
    }

    /// Returns whether a peer may access the whole range. An empty range needs no key.
    pub(crate) fn allows_peer(&self, reach: Reach) -> bool {
        let Reach { pd, addr, len, .. } = reach;
        let allows = |(key, need)| self.allows(key, pd, addr, len, need);
        len == 0 || self.resolve(reach).is_some_and(allows)
    }

    /// Claims a range for a peer. Returns false, and claims nothing, if that is not allowed.
    pub(crate) fn claim_peer(&mut self, claim: &mut Claim, reach: Reach) -> bool {
        let Reach { pd, addr, len, .. } = reach;
        let resolved = self.resolve(reach);
        resolved.is_some_and(|(key, need)| self.claim(claim, key, pd, addr, len, need))
    }

    /// Makes new claims of a region fail. Returns whether a thread still holds one, or `None` if
    /// there is no such region.
    pub(crate) fn kill(&mut self, key: u32) -> Option<bool> {
        let slot = self.slots.get_mut(&key)?;
        slot.dying = true;
        Some(slot.users > 0)
    }

    /// Removes a killed region.
    pub(crate) fn remove(&mut self, key: u32) -> Option<Arc<Region>> {
        self.slots.remove(&key).map(|slot| slot.region)
    }

    /// Returns the state of a region, or `None` if there is none.
    pub(crate) fn state(&self, key: u32) -> Option<MrState> {
        let slot = self.slots.get(&key).filter(|slot| !slot.dying)?;
        Some(if slot.revoked {
            MrState::Revoked
        } else {
            MrState::Live
        })
    }

    /// Returns the key of the region that an access of a peer would use.
    pub(crate) fn region_of(&self, reach: Reach) -> Option<u32> {
        let (key, _) = self.resolve(reach)?;
        self.slots.get(&key).filter(|slot| slot.is_usable()).map(|_| key)
    }

    /// Makes every later use of a region fail, as if the exporter revoked its memory.
    pub(crate) fn revoke(&mut self, key: u32) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.revoked = true;
        }
    }

    /// Returns whether the whole range may be accessed.
    pub(crate) fn allows(&self, key: u32, pd: u32, addr: u64, len: u64, need: Access) -> bool {
        let slot = self.slots.get(&key).filter(|slot| slot.is_usable());
        slot.is_some_and(|slot| slot.region.piece(pd, addr, len, need).is_some())
    }

    /// Returns whether all elements may be accessed. An empty element needs no key.
    pub(crate) fn allow_all(&self, pd: u32, sges: &[Sge], need: Access) -> bool {
        sges.iter()
            .all(|sge| sge.length == 0 || self.allows(sge.lkey.0, pd, sge.addr.0, sge.length.into(), need))
    }

    /// Claims a range of a region. Returns false, and claims nothing, if that is not allowed.
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
        let slot = self.slots.get_mut(&key).filter(|slot| slot.is_usable());
        let found = slot.and_then(|slot| Some((slot.region.piece(pd, addr, len, need)?, slot)));
        let Some((piece, slot)) = found else {
            return false;
        };
        slot.users += 1;
        claim.pieces.push(piece);
        claim.held.push((key, slot.region.clone()));
        true
    }

    /// Claims a part of the concatenated elements. Returns false, and claims nothing, if some of it
    /// is not allowed.
    pub(crate) fn claim_part(
        &mut self,
        claim: &mut Claim,
        sges: &[Sge],
        pd: u32,
        part: Range<u32>,
        need: Access,
    ) -> bool {
        let (mut skip, mut left) = (u64::from(part.start), part.len() as u64);
        for sge in sges {
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let part = (length - skip).min(left);
            let addr = sge.addr.checked_add(skip);
            if !addr.is_some_and(|addr| self.claim(claim, sge.lkey.0, pd, addr.0, part, need)) {
                break;
            }
            skip = 0;
            left -= part;
            if left == 0 {
                return true;
            }
        }
        if left > 0 {
            self.release(claim);
        }
        left == 0
    }

    /// Releases a claim.
    pub(crate) fn release(&mut self, claim: &mut Claim) {
        claim.pieces.clear();
        for (key, _) in claim.held.drain(..) {
            match self.slots.get_mut(&key) {
                Some(slot) if slot.users > 0 => slot.users -= 1,
                _ => defect("a claimed region was deregistered"),
            }
        }
    }
}
