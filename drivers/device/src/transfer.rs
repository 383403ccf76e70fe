//! Bytes of the program to and from device memory, and host memory that is mapped for it: chunks are staged or pinned while the ones
//! before are on the bus.

#![expect(unsafe_code, reason = "only the caller knows how long foreign memory lives")]

use std::collections::VecDeque;
use std::ptr::NonNull;

use gaudi_seam::Result;

use crate::buffer::Buffer;
use crate::cache::{CacheStats, Hit, pages_of};
use crate::completion::Completion;
use crate::context::lock;
use crate::device::Device;
use crate::host::HostMapping;
use crate::location::Location;
use crate::memory::HostBuffer;

/// Staging memory in flight, and kept, at most.
const STAGES: usize = 4;
/// Pinned pieces in flight at most: one is copied while the next is pinned.
const PINNED: usize = 2;

impl Device {
    /// The mapping of a host buffer: kept from an earlier call, or made now and kept.
    pub fn map(&self, buffer: &HostBuffer) -> Result<HostMapping> {
        const OP: &str = "Device::map";
        let (context, cache) = (self.context(), &self.inner.cache);
        context.here(OP)?;
        if cache.is_off() {
            return HostMapping::of(context, buffer.memory(), buffer.len());
        }
        let start = buffer.as_ptr().addr().get();
        // A mapping of foreign memory that happens to lie around it does not keep the buffer's pages.
        let kept = || {
            let hit = cache.find(start, buffer.len())?;
            hit.mapping.keeps(buffer.memory()).then_some(hit.mapping)
        };
        if let Some(mapping) = kept() {
            return Ok(mapping);
        }
        let _pinning = cache.pinning();
        // Who waited for the turn may find what he came for.
        if let Some(mapping) = kept() {
            return Ok(mapping);
        }
        let mapping = HostMapping::of(context, buffer.memory(), buffer.len())?;
        buffer.known_to(cache);
        // The pages are the buffer's alone, and so is the rest of the last one.
        if let Some((start, end)) = pages_of(start, buffer.len()) {
            cache.keep(start, end, &mapping);
        }
        Ok(mapping)
    }

    /// Host memory of somebody else, to copy from or to: mapped already by an earlier call whose range holds it, or mapped now with the
    /// pages around it, and kept for the next call. `InvalidInput` for no bytes.
    ///
    /// # Safety
    /// Until [`forget`](Self::forget) of the range has returned `Ok`, or the device is closed:
    /// - `len` bytes from `start` stay mapped in this process, readable and writable: no `munmap`, no `free` that may give the pages back
    ///   to the kernel, no `mremap`, no `mprotect`;
    /// - while a copy runs that uses them, and while a location of them is copied through, no reference to them is made or used.
    pub unsafe fn register_cached(&self, start: NonNull<u8>, len: usize) -> Result<Location> {
        const OP: &str = "Device::register_cached";
        let (context, cache) = (self.context(), &self.inner.cache);
        context.here(OP)?;
        if len == 0 {
            // The page around no bytes is promised by nobody.
            return Err(context.wrong(OP, "a host mapping needs at least one byte"));
        }
        let at = start.addr().get();
        let hit = match cache.find(at, len) {
            Some(hit) => hit,
            None => {
                let _pinning = cache.pinning();
                match cache.find(at, len) {
                    Some(hit) => hit,
                    None => {
                        let (first, end) = cache
                            .span(at, len)
                            .ok_or_else(|| context.wrong(OP, "the range leaves the address space"))?;
                        let pages = start.map_addr(|_| std::num::NonZero::new(first).unwrap_or(start.addr()));
                        // SAFETY: the caller promises his bytes until they are forgotten, and those of the ranges around them were
                        // promised likewise and are not forgotten meanwhile (`pinning`); a page stays as long as any byte of it does.
                        let mapping = unsafe { HostMapping::foreign(context, pages, end - first) }?;
                        if cache.is_off() {
                            cache.pass(first, end, &mapping);
                        } else {
                            cache.keep(first, end, &mapping);
                        }
                        Hit {
                            mapping,
                            offset: (at - first) as u64,
                        }
                    }
                }
            }
        };
        Ok(Location::in_mapping(&hit.mapping, hit.offset, len as u64))
    }

    /// Unmaps host memory that [`register_cached`](Self::register_cached) mapped. Call it before
    /// the memory is freed or reused.
    ///
    /// After an error the device may still access the memory: call it again. The cache does not
    /// return the memory in the meantime.
    ///
    /// # Errors
    /// - `InUse`: locations or copies in flight hold it, or a queue was dropped before its copy of
    ///   the memory ended, and the copy may still run.
    /// - The driver's own error: it refused to unmap, also in an earlier attempt. In a reset it is
    ///   `DeviceLost`.
    pub fn forget(&self, start: NonNull<u8>, len: usize) -> Result<()> {
        let context = self.context();
        context.here("Device::forget")?;
        context.settle();
        let again = |start, end| context.unmap_stranded(start, end);
        let answer = self.inner.cache.forget(start.addr().get(), len, again);
        answer.map_err(|error| error.on(context.id))
    }

    /// What the cache of host mappings did.
    pub fn cache_stats(&self) -> CacheStats {
        if self.context().owner.is_foreign() {
            // A thread of the parent may have held the cache's lock at the fork.
            return CacheStats::default();
        }
        self.inner.cache.stats()
    }

    /// Copies memory of the program into device memory, by engine and without staging: pinned a piece at a time, and unpinned before the
    /// call returns. Worth it from a few megabytes on; for memory that is used again, [`register_cached`](Self::register_cached).
    ///
    /// # Safety
    /// As [`register`](Self::register), until the call returns; where it returns an error, until the device is closed.
    pub unsafe fn write_from(&self, to: &Buffer, offset: u64, start: NonNull<u8>, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.pinned(to, offset, start, len, |device, part, host| {
                device.copy(part, host)
            })
        }
    }

    /// Copies device memory into memory of the program; the counterpart of [`write_from`](Self::write_from).
    ///
    /// # Safety
    /// As [`write_from`](Self::write_from).
    pub unsafe fn read_into(&self, from: &Buffer, offset: u64, start: NonNull<u8>, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.pinned(from, offset, start, len, |device, part, host| {
                device.copy(host, part)
            })
        }
    }

    /// # Safety
    /// As [`write_from`](Self::write_from).
    unsafe fn pinned(
        &self,
        buffer: &Buffer,
        offset: u64,
        start: NonNull<u8>,
        len: usize,
        copy: impl Fn(&Self, Location, Location) -> Result<Completion>,
    ) -> Result<()> {
        self.context().here("copy")?;
        let whole = buffer.at(offset..offset.saturating_add(len as u64))?;
        let finish = |(completion, host): (Completion, HostMapping)| -> Result<()> {
            completion.wait(self.context().options.patience)?;
            host.close().map_err(|(_, error)| error)
        };
        let (mut done, mut in_flight) = (0, VecDeque::with_capacity(PINNED));
        while done < len {
            if in_flight.len() == PINNED {
                in_flight.pop_front().map_or(Ok(()), finish)?;
            }
            let part = self.context().options.pin_bytes.min(len - done);
            // SAFETY: the part lies in the range that the caller promises.
            let at = unsafe { start.add(done) };
            // SAFETY: as above.
            let host = unsafe { HostMapping::foreign(self.context(), at, part) }?;
            let completion = copy(self, whole.part(done as u64, part as u64), (&host).into())?;
            in_flight.push_back((completion, host));
            done += part;
        }
        in_flight.into_iter().try_for_each(finish)
    }

    /// Copies bytes of the program into device memory and waits until they are there: through staging memory, which the processor
    /// fills ([`Stats::cpu_copied_bytes`](crate::Stats::cpu_copied_bytes)) while the pieces before are on the bus.
    pub fn write(&self, to: &Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
        self.context().here("Device::write")?;
        let end = offset.saturating_add(bytes.len() as u64);
        to.at(offset..end)?;
        let mut in_flight = VecDeque::new();
        let mut at = offset;
        for part in bytes.chunks(self.context().options.staging_bytes) {
            let stage = if in_flight.len() < STAGES {
                self.stage()?
            } else {
                self.finish(&mut in_flight)?
            };
            stage.write(0, part)?;
            self.context().stats.cpu_copied_bytes.add(part.len() as u64);
            let len = part.len() as u64;
            let completion = self.copy(to.at(at..at + len)?, stage.at(..len)?)?;
            in_flight.push_back((completion, stage));
            at += len;
        }
        while !in_flight.is_empty() {
            let stage = self.finish(&mut in_flight)?;
            self.unstage(stage);
        }
        Ok(())
    }

    /// Copies device memory into bytes of the program; the counterpart of [`write`](Self::write).
    pub fn read(&self, from: &Buffer, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.context().here("Device::read")?;
        let end = offset.saturating_add(bytes.len() as u64);
        from.at(offset..end)?;
        let size = self.context().options.staging_bytes;
        let mut in_flight = VecDeque::new();
        let (mut asked, mut got) = (0, 0);
        while got < bytes.len() {
            while asked < bytes.len() && in_flight.len() < STAGES {
                let len = size.min(bytes.len() - asked);
                let stage = self.stage()?;
                let at = offset + asked as u64;
                let completion = self.copy(stage.at(..len as u64)?, from.at(at..at + len as u64)?)?;
                in_flight.push_back((completion, stage));
                asked += len;
            }
            let stage = self.finish(&mut in_flight)?;
            let len = size.min(bytes.len() - got);
            stage.read(0, &mut bytes[got..got + len])?;
            self.context().stats.cpu_copied_bytes.add(len as u64);
            self.unstage(stage);
            got += len;
        }
        Ok(())
    }

    fn stage(&self) -> Result<HostMapping> {
        if let Some(stage) = lock(&self.inner.staging).pop() {
            return Ok(stage);
        }
        self.alloc_host(self.context().options.staging_bytes)
    }

    fn unstage(&self, stage: HostMapping) {
        let mut staging = lock(&self.inner.staging);
        if staging.len() < STAGES {
            staging.push(stage);
        }
    }

    fn finish(&self, in_flight: &mut VecDeque<(Completion, HostMapping)>) -> Result<HostMapping> {
        match in_flight.pop_front() {
            Some((completion, stage)) => {
                completion.wait(self.context().options.patience)?;
                Ok(stage)
            }
            None => self.stage(),
        }
    }
}
