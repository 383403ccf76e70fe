//! Host memory that the device reads and writes: pinned, mapped, never a slice.

#![expect(
    unsafe_code,
    reason = "pinning promises the driver that memory stays; foreign memory is reached by pointer"
)]

use std::fmt;
use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use gaudi_seam::{DeviceVa, Errno, Error, ErrorKind, HostVa, MapHost, Result};
use gaudi_sys::shared;
use gaudi_uapi::memory::MemFlags;

use crate::buffer::resolve;
use crate::context::{Context, alone, lock};
use crate::location::Location;
use crate::memory::{self, Otherwise, Pages};
use crate::owners::Owner;
use crate::unfinished::{Submissions, Unfinished};

/// Host memory, pinned and mapped into the device's address space.
///
/// A handle: a clone is the same memory, and copies in flight hold one. The device may write at any time, so bytes go in and out by
/// copy only, never through a reference; what a read sees while a copy into the same range runs, the device's or another thread's, is
/// any mixture of old and new bytes ([`gaudi_sys::shared`]).
#[derive(Clone)]
pub struct HostMapping {
    pinned: Arc<Pinned>,
}

struct Pinned {
    context: Arc<Context>,
    va: DeviceVa,
    /// `None` once it was unmapped, or stranded.
    memory: Option<Arc<Memory>>,
    len: usize,
    owner: Owner,
    /// An unmap reported an error. Whether the device still reaches the memory is unknown.
    is_refused: bool,
    unfinished: Unfinished,
}

/// A mapping that this does not hold.
#[derive(Clone)]
pub(crate) struct WeakMapping(Weak<Memory>);

impl WeakMapping {
    /// Whether the device reaches the memory: until the driver has unmapped it, however long ago the last holder went.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl fmt::Debug for WeakMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "WeakMapping({})",
            if self.is_alive() { "alive" } else { "gone" }
        )
    }
}

/// What a mapping stands on, for as long as the device reaches it.
enum Memory {
    Owned(Arc<memory::Memory>),
    Foreign(Foreign),
}

/// Memory of somebody else who promised to keep it.
struct Foreign(NonNull<u8>);

// SAFETY: the pointer is only copied through, and whoever registered the memory promised that no reference to it is used meanwhile.
unsafe impl Send for Foreign {}
// SAFETY: as above; concurrent copies through it are relaxed atomics (`gaudi_sys::shared`).
unsafe impl Sync for Foreign {}

impl Memory {
    fn start(&self) -> NonNull<u8> {
        match self {
            Self::Owned(memory) => memory.map.as_ptr(),
            Self::Foreign(foreign) => foreign.0,
        }
    }
}

/// A mapping that outlived its last handle: the driver refused to unmap it, or an engine may still
/// write there.
pub(crate) struct Stranded {
    va: DeviceVa,
    memory: Arc<Memory>,
    len: usize,
    owner: Owner,
    unfinished: Submissions,
}

impl Stranded {
    /// Whether a byte of it lies in a range of this process.
    pub(crate) fn lies_in(&self, start: usize, end: usize) -> bool {
        let at = self.memory.start().addr().get();
        at < end && start < at.saturating_add(self.len)
    }

    /// Whether the device may still reach the memory.
    pub(crate) fn is_mapped(&self) -> bool {
        self.owner.owns()
    }

    /// Unmaps the memory; retries what failed before.
    pub(crate) fn unmap(&mut self, context: &Context) -> Result<()> {
        if !self.unfinished.have_ended(&*context.io) {
            return Err(self.unfinished.in_use(context.id, UNMAP));
        }
        context.owners.unmap_again(&*context.io, self.va, &self.owner)
    }
}

const UNMAP: &str = "HL_MEM_OP_UNMAP";
const OP: &str = "HL_MEM_OP_MAP (HL_MEM_USERPTR)";

impl HostMapping {
    /// Fresh zeroed pages of this process.
    pub(crate) fn owned(
        context: &Arc<Context>,
        len: usize,
        pages: Pages,
        otherwise: Otherwise,
    ) -> Result<Self> {
        context.here(OP)?;
        if len == 0 {
            return Err(context.wrong(OP, "a host mapping needs at least one byte"));
        }
        let memory = memory::Memory::new(len, pages, otherwise).map_err(|error| error.on(context.id))?;
        Self::of(context, &Arc::new(memory), len)
    }

    /// Memory that the mapping keeps.
    pub(crate) fn of(context: &Arc<Context>, memory: &Arc<memory::Memory>, len: usize) -> Result<Self> {
        // SAFETY: the value holds the memory, at least `len` bytes of it, and unmaps it from the device before it lets go (see Drop); no
        // reference to the memory is ever made.
        unsafe { Self::pin(context, Memory::Owned(Arc::clone(memory)), len) }
    }

    /// # Safety
    /// As [`Device::register`](crate::Device::register).
    pub(crate) unsafe fn foreign(context: &Arc<Context>, start: NonNull<u8>, len: usize) -> Result<Self> {
        context.here(OP)?;
        if len == 0 {
            return Err(context.wrong(OP, "a host mapping needs at least one byte"));
        }
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { Self::pin(context, Memory::Foreign(Foreign(start)), len) }
    }

    /// # Safety
    /// - `len` bytes from the memory's start stay mapped, readable and writable until the value has gone;
    /// - no reference to them is used meanwhile.
    unsafe fn pin(context: &Arc<Context>, memory: Memory, len: usize) -> Result<Self> {
        context.here(OP)?;
        let request = MapHost {
            address: HostVa(memory.start().as_ptr().expose_provenance() as u64),
            size: len as u64,
            hint: None,
            flags: MemFlags::NONE,
        };
        // SAFETY: the range stays as promised until `mem_unmap` returned: `Pinned` unmaps in its
        // Drop, before its memory is freed, and moves it to the context if the driver refuses.
        let map = || unsafe { context.io.mem_map_host(request) };
        let (va, owner) = context.owners.map(len as u64, map)?;
        context.release_unmapped();
        context.live.mappings.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            pinned: Arc::new(Pinned {
                context: Arc::clone(context),
                va,
                memory: Some(Arc::new(memory)),
                len,
                owner,
                is_refused: false,
                unfinished: Unfinished::default(),
            }),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.pinned.context
    }

    pub(crate) fn downgrade(&self) -> WeakMapping {
        WeakMapping(self.pinned.memory.as_ref().map_or_else(Weak::new, Arc::downgrade))
    }

    /// Whether both are handles of one mapping.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pinned, &other.pinned)
    }

    /// Whether anybody but the caller holds the mapping.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.pinned) > 1
    }

    /// Whether the mapping keeps this very memory.
    pub(crate) fn keeps(&self, memory: &Arc<memory::Memory>) -> bool {
        matches!(self.pinned.memory.as_deref(), Some(Memory::Owned(owned)) if Arc::ptr_eq(owned, memory))
    }

    /// Whether the device reaches the memory. `false` after a close that failed.
    pub(crate) fn is_mapped(&self) -> bool {
        let pinned = &*self.pinned;
        pinned.memory.is_some() && !pinned.is_refused && pinned.owner.owns()
    }

    /// Keeps the memory pinned and mapped until a submission has ended whose queue is dropped
    /// before that.
    pub(crate) fn wait_for(&self, seq: u64) {
        self.pinned.unfinished.add(seq);
    }

    /// The pages in which the memory lies; `None` of memory that was [registered](crate::Device::register), of which nobody told.
    pub fn pages(&self) -> Option<Pages> {
        match self.pinned.memory.as_deref() {
            Some(Memory::Owned(memory)) => Some(memory.pages),
            _ => None,
        }
    }

    /// Bytes in the mapping.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a mapping has at least one byte: none is refused"
    )]
    pub fn len(&self) -> u64 {
        self.pinned.len as u64
    }

    /// Where the device sees the first byte.
    pub fn address(&self) -> DeviceVa {
        self.pinned.va
    }

    /// The first byte in this process, for foreign functions. What is done through it must follow the rules of memory that a device
    /// changes: no reference, no slice.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.pinned
            .memory
            .as_ref()
            .map_or(NonNull::dangling(), |memory| memory.start())
    }

    /// A part of the mapping, to copy from or to. `InvalidInput` where the range leaves it.
    pub fn at(&self, range: impl RangeBounds<u64> + fmt::Debug) -> Result<Location> {
        let seen = format!("{range:?}");
        let (offset, len) = resolve(range, self.len()).ok_or_else(|| {
            self.context()
                .wrong("HostMapping::at", "the range leaves the mapping")
                .saw(&seen, format!("within 0..{}", self.len()))
        })?;
        Ok(Location::in_mapping(self, offset, len))
    }

    /// Copies bytes out. `BadAddress` where the range leaves the mapping.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = self.inside("HostMapping::read", offset, into.len())?;
        // SAFETY: the range lies in memory that stays mapped while `self` lives, and to which nobody makes a reference.
        unsafe { shared::copy_out(from, into) };
        Ok(())
    }

    /// Copies bytes in. `BadAddress` where the range leaves the mapping.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let to = self.inside("HostMapping::write", offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { shared::copy_in(to, from) };
        Ok(())
    }

    /// Sets bytes. `BadAddress` where the range leaves the mapping.
    pub fn fill(&self, offset: u64, len: usize, value: u8) -> Result<()> {
        let to = self.inside("HostMapping::fill", offset, len)?;
        // SAFETY: as in `read`.
        unsafe { shared::fill(to, len, value) };
        Ok(())
    }

    /// Copies between two mappings with the processor: the engines do not copy host memory to host memory.
    pub fn copy_on_cpu(&self, offset: u64, from: &Self, from_offset: u64, len: usize) -> Result<()> {
        const OP: &str = "HostMapping::copy_on_cpu";
        let (to, from) = (self.inside(OP, offset, len)?, from.inside(OP, from_offset, len)?);
        // SAFETY: as in `read`, of both ranges, which may overlap.
        unsafe { shared::copy_within(to, from, len) };
        Ok(())
    }

    fn inside(&self, operation: &'static str, offset: u64, len: usize) -> Result<NonNull<u8>> {
        self.pinned.context.here(operation)?;
        let start = usize::try_from(offset)
            .ok()
            .filter(|start| start.checked_add(len).is_some_and(|end| end <= self.pinned.len));
        let (Some(start), Some(memory)) = (start, &self.pinned.memory) else {
            return Err(Error::from_errno(operation, Errno::EFAULT)
                .on(self.pinned.context.id)
                .because("the range leaves the mapping")
                .saw(
                    format!("{len} bytes at {offset}"),
                    format!("within {} bytes", self.pinned.len),
                ));
        };
        // SAFETY: the offset stays inside (or one past) the memory, which is one allocated object of `len` bytes.
        Ok(unsafe { memory.start().add(start) })
    }

    /// Unmaps the memory, or returns the mapping with the error, so that the caller can repeat the
    /// call.
    ///
    /// After an error of the driver, the device might no longer be able to access the memory: copies
    /// of it are refused.
    ///
    /// # Errors
    /// - `InUse`: other handles, locations or copies in flight hold it.
    /// - `InUse`: a queue was dropped before a copy of the mapping ended. The memory stays pinned
    ///   and mapped until the copy has ended.
    /// - The driver's own error.
    pub fn close(self) -> Result<(), (Self, Error)> {
        if let Err(error) = self.pinned.context.here("HostMapping::close") {
            return Err((self, error));
        }
        self.pinned.context.settle();
        match alone(self.pinned) {
            Ok(mut pinned) => match pinned.unmap() {
                Ok(()) => Ok(()),
                Err(error) => Err((
                    Self {
                        pinned: Arc::new(pinned),
                    },
                    error,
                )),
            },
            Err((pinned, others)) => {
                let error = Error::new(ErrorKind::InUse, "HostMapping::close")
                    .on(pinned.context.id)
                    .because(format!(
                        "{others} others hold the mapping: handles, locations or copies in flight"
                    ))
                    .helped_by("wait for the copies' completions and drop the other handles");
                Err((Self { pinned }, error))
            }
        }
    }
}

impl Pinned {
    fn unmap(&mut self) -> Result<()> {
        if self.memory.is_none() {
            return Ok(());
        }
        let context = &*self.context;
        let mut unfinished = self.unfinished.take();
        if !unfinished.have_ended(&*context.io) {
            let error = unfinished.in_use(context.id, UNMAP);
            self.unfinished.restore(unfinished);
            return Err(error);
        }
        let answer = if self.is_refused {
            context.owners.unmap_again(&*context.io, self.va, &self.owner)
        } else {
            context.owners.unmap(&*context.io, self.va, &self.owner)
        };
        self.is_refused = answer.is_err();
        answer?;
        self.memory = None;
        Ok(())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.context.live.mappings.fetch_sub(1, Ordering::Relaxed);
        if self.context.owner.is_foreign() {
            // The child's copy of the pages is freed. The parent's stay pinned for the device.
            return;
        }
        if let Err(error) = self.unmap() {
            tracing::error!(
                "device {}: {} bytes of host memory at {} stay mapped: {error}",
                self.context.id,
                self.len,
                self.va
            );
            // The device may still reach the pages. Memory of this crate must not be reused before
            // the node closes, and `Device::forget` must not report the caller's memory as
            // unmapped.
            if let Some(memory) = self.memory.take() {
                lock(&self.context.stranded).push(Stranded {
                    va: self.va,
                    memory,
                    len: self.len,
                    owner: self.owner.clone(),
                    unfinished: self.unfinished.take(),
                });
            }
        }
    }
}

impl fmt::Debug for HostMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HostMapping({} + {:#x} on {})",
            self.pinned.va, self.pinned.len, self.pinned.context.id
        )
    }
}
