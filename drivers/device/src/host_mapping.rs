//! Host memory that the device reads and writes: pinned, mapped, never a slice.

#![expect(
    unsafe_code,
    reason = "a mapping promises the driver that the memory stays; its bytes are accessed by pointer"
)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use gaudi_seam::{CloseError, DeviceVa, Errno, Error, HostVa, MapHost, Result};
use gaudi_sys::shared;
use gaudi_uapi::memory::MemFlags;

use crate::context::Context;
use crate::owners::Owner;
use crate::pages::{Memory, Pages};
use crate::shared::unwrap_last;
use crate::stranded::{Foreign, Pinned, Stranded, UNMAP};
use crate::unfinished::Unfinished;

/// Host memory, pinned and mapped into the device's address space.
///
/// A clone is the same mapping, and copies in flight hold one. The device may write at any time, so
/// bytes are copied in and out, never referenced. A read during a copy into the same range returns
/// any mixture of old and new bytes ([`gaudi_sys::shared`]).
#[derive(Clone)]
pub struct HostMapping {
    mapped: Arc<Mapped>,
}

struct Mapped {
    context: Arc<Context>,
    va: DeviceVa,
    memory: Arc<Pinned>,
    len: usize,
    owner: Owner,
    state: State,
    unfinished: Unfinished,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Mapped,
    /// An unmap reported an error. The device may or may not be able to access the memory.
    Refused,
    Unmapped,
}

/// Memory that may be mapped, not held by this.
#[derive(Clone, Debug)]
pub(crate) struct WeakMapping(Weak<Pinned>);

impl WeakMapping {
    /// Whether the device may access the memory: until the driver has unmapped it, even if no
    /// handle of the mapping is left.
    pub(crate) fn is_mapped(&self) -> bool {
        self.0.strong_count() > 0
    }
}

const MAP: &str = "HL_MEM_OP_MAP (HL_MEM_USERPTR)";

impl HostMapping {
    /// Maps memory of this crate, which the mapping holds.
    ///
    /// # Errors
    /// `Forked`, or the driver's own error.
    pub(crate) fn owned(context: &Arc<Context>, memory: &Arc<Memory>, len: usize) -> Result<Self> {
        let memory = Pinned::Owned(Arc::clone(memory));
        // SAFETY: the mapping holds the memory, at least `len` bytes, until it is unmapped (see
        // Drop). No reference to the memory is ever made.
        unsafe { Self::new(context, memory, len) }
    }

    /// Maps memory of the caller.
    ///
    /// # Safety
    /// As [`Device::register`](crate::Device::register).
    ///
    /// # Errors
    /// As [`owned`](Self::owned).
    pub(crate) unsafe fn foreign(context: &Arc<Context>, start: NonNull<u8>, len: usize) -> Result<Self> {
        // SAFETY: the caller's promise is the same.
        let memory = Pinned::Foreign(unsafe { Foreign::new(start) });
        // SAFETY: as above.
        unsafe { Self::new(context, memory, len) }
    }

    /// # Safety
    /// - `len` bytes from the memory's start stay mapped, readable and writable until the value is
    ///   dropped;
    /// - no reference to them is used meanwhile.
    unsafe fn new(context: &Arc<Context>, memory: Pinned, len: usize) -> Result<Self> {
        context.check_process(MAP)?;
        let request = MapHost {
            address: HostVa(memory.start().as_ptr().expose_provenance() as u64),
            size: len as u64,
            hint: None,
            flags: MemFlags::NONE,
        };
        // SAFETY: the range stays as promised until `mem_unmap` returned: `Mapped` unmaps in its
        // Drop, before its memory is freed, and moves it to the context if the driver refuses.
        let map = || unsafe { context.io.mem_map_host(request) };
        let (va, owner) = context.owners.map(len as u64, map)?;
        context.stranded.release_unmapped();
        context.live.mappings.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            mapped: Arc::new(Mapped {
                context: Arc::clone(context),
                va,
                memory: Arc::new(memory),
                len,
                owner,
                state: State::Mapped,
                unfinished: Unfinished::default(),
            }),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.mapped.context
    }

    pub(crate) fn downgrade(&self) -> WeakMapping {
        WeakMapping(Arc::downgrade(&self.mapped.memory))
    }

    /// Whether both are handles of the same mapping.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mapped, &other.mapped)
    }

    /// Whether another handle of the mapping exists.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.mapped) > 1
    }

    /// Whether the mapping is one of this memory.
    pub(crate) fn maps(&self, memory: &Arc<Memory>) -> bool {
        matches!(&*self.mapped.memory, Pinned::Owned(owned) if Arc::ptr_eq(owned, memory))
    }

    /// Whether the device can access the memory. `false` after a close that failed.
    pub(crate) fn is_mapped(&self) -> bool {
        self.mapped.state == State::Mapped && self.mapped.owner.owns()
    }

    /// Keeps the memory pinned and mapped until a submission has ended whose queue is dropped
    /// before that.
    pub(crate) fn wait_for(&self, seq: u64) {
        self.mapped.unfinished.add(seq);
    }

    /// Returns the pages of the memory; `None` for [registered](crate::Device::register) memory.
    pub fn pages(&self) -> Option<Pages> {
        match &*self.mapped.memory {
            Pinned::Owned(memory) => Some(memory.pages),
            Pinned::Foreign(_) => None,
        }
    }

    /// Returns the number of bytes in the mapping.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a mapping has at least one byte: 0 bytes are refused"
    )]
    pub fn len(&self) -> u64 {
        self.mapped.len as u64
    }

    /// Returns the device address of the first byte.
    pub fn address(&self) -> DeviceVa {
        self.mapped.va
    }

    /// Returns the first byte in this process, for foreign functions. The device may write to the
    /// memory at any time: make no reference and no slice from it.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.mapped.memory.start()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// - `BadAddress`: the range leaves the mapping.
    /// - `Forked`.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = self.inside("HostMapping::read", offset, into.len())?;
        // SAFETY: the range lies in memory that stays mapped while `self` lives, and to which
        // no reference exists.
        unsafe { shared::copy_out(from, into) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let to = self.inside("HostMapping::write", offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { shared::copy_in(to, from) };
        Ok(())
    }

    /// Sets bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn fill(&self, offset: u64, len: usize, value: u8) -> Result<()> {
        let to = self.inside("HostMapping::fill", offset, len)?;
        // SAFETY: as in `read`.
        unsafe { shared::fill(to, len, value) };
        Ok(())
    }

    /// Copies between two mappings with the processor: the engines do not copy host memory to host
    /// memory.
    ///
    /// # Errors
    /// As [`read`](Self::read), for both ranges.
    pub fn copy_on_cpu(&self, offset: u64, from: &Self, from_offset: u64, len: usize) -> Result<()> {
        const OP: &str = "HostMapping::copy_on_cpu";
        let (to, from) = (self.inside(OP, offset, len)?, from.inside(OP, from_offset, len)?);
        // SAFETY: as in `read`, of both ranges, which may overlap.
        unsafe { shared::copy_within(to, from, len) };
        Ok(())
    }

    fn inside(&self, operation: &'static str, offset: u64, len: usize) -> Result<NonNull<u8>> {
        let mapped = &*self.mapped;
        mapped.context.check_process(operation)?;
        let start = usize::try_from(offset)
            .ok()
            .filter(|start| start.checked_add(len).is_some_and(|end| end <= mapped.len))
            .ok_or_else(|| {
                Error::from_errno(operation, Errno::EFAULT)
                    .on(mapped.context.id)
                    .because("the range leaves the mapping")
                    .saw(
                        format!("{len} bytes at {offset}"),
                        format!("within {} bytes", mapped.len),
                    )
            })?;
        // SAFETY: the offset is inside (or one past) the memory, one allocated object of `len`
        // bytes.
        Ok(unsafe { mapped.memory.start().add(start) })
    }

    /// Unmaps the memory, or returns the mapping with the error, so that the caller can repeat the
    /// call.
    ///
    /// After an error of the driver, the device might no longer be able to access the memory:
    /// copies of it are refused.
    ///
    /// # Errors
    /// - `InUse`: other handles, locations or copies in flight hold it.
    /// - `InUse`: a queue was dropped before a copy of the mapping ended. The memory stays pinned
    ///   and mapped until the copy has ended.
    /// - `DeviceLost`, `InReset`: the device was reset before that. The memory stays pinned until
    ///   the device closes.
    /// - `Forked`, or the driver's own error.
    pub fn close(self) -> Result<(), CloseError<Self>> {
        const OP: &str = "HostMapping::close";
        let context = &self.mapped.context;
        if let Err(error) = context.check_process(OP) {
            return Err(CloseError::new(self, error));
        }
        context.queues.reap();
        match unwrap_last(self.mapped) {
            Ok(mut mapped) => mapped.unmap().map_err(|error| {
                let mapped = Arc::new(mapped);
                CloseError::new(Self { mapped }, error)
            }),
            Err((mapped, others)) => {
                let cause =
                    format!("{others} others hold the mapping: handles, locations or copies in flight");
                let context = &mapped.context;
                let error = context
                    .in_use(OP, cause)
                    .helped_by("wait for the copies' completions and drop the other handles");
                Err(CloseError::new(Self { mapped }, error))
            }
        }
    }
}

impl Mapped {
    fn unmap(&mut self) -> Result<()> {
        let context = &*self.context;
        self.unfinished.check(&*context.io, context.id, UNMAP)?;
        let answer = match self.state {
            State::Mapped => context.owners.unmap(&*context.io, self.va, &self.owner),
            State::Refused => context.owners.unmap_again(&*context.io, self.va, &self.owner),
            State::Unmapped => return Ok(()),
        };
        self.state = match answer {
            Ok(()) => State::Unmapped,
            Err(_) => State::Refused,
        };
        answer
    }
}

impl Drop for Mapped {
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
            // The device may still access the pages. Memory of this crate must not be reused before
            // the node closes, and `Device::deregister` must not report the caller's memory as
            // unmapped.
            self.context.stranded.push(Stranded {
                va: self.va,
                memory: Arc::clone(&self.memory),
                len: self.len,
                owner: self.owner.clone(),
                unfinished: self.unfinished.take(),
            });
        }
    }
}

impl fmt::Debug for HostMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HostMapping({} + {:#x} on {})",
            self.mapped.va, self.mapped.len, self.mapped.context.id
        )
    }
}
