//! The acquired device, and all resources that the process holds on it.

use std::collections::BTreeMap;
use std::ffi::c_int;

use gaudi_hlthunk_client::HlThunk;
use gaudi_spec::{ASICS, Asic};
use gaudi_uapi::info::HlInfoHwIpInfo;
use nix::errno::Errno;

use crate::engine::{Engine, HostMemory, Source};
use crate::heap::Heap;
use crate::lookup::Range;
use crate::scal::{Pool, Scal};
use crate::status::{SynStatus, report};

/// `synDmaDir`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    HostToDram,
    DramToHost,
    DramToDram,
}

/// An acquired device.
pub(crate) struct Device {
    thunk: &'static HlThunk,
    pub(crate) fd: c_int,
    pub(crate) module: u32,
    pub(crate) ip: HlInfoHwIpInfo,
    pub(crate) heap: Heap,
    engine: Engine,
    /// Memory of `synHostMalloc`, by address.
    host: BTreeMap<u64, HostMemory>,
    /// The last job of each stream, indexed by the stream's number.
    streams: Vec<Option<u64>>,
    pool: Pool,
}

/// A descriptor that is closed on drop, until the device is complete.
struct Opened<'a>(&'a HlThunk, c_int);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // Report the failure that caused the drop.
        let _ = self.0.close(self.1);
    }
}

impl Device {
    pub(crate) fn acquire(thunk: &'static HlThunk, module: u32) -> Result<Self, SynStatus> {
        let opened = thunk.open_by_module_id(module).map_err(|errno| match errno {
            Errno::EBUSY | Errno::EAGAIN => SynStatus::Busy,
            _ => SynStatus::NoDeviceFound,
        })?;
        let opened = Opened(thunk, opened);
        let fd = opened.1;
        let ip: HlInfoHwIpInfo = thunk.info(fd)?;
        let asic = chip(&ip).ok_or_else(|| {
            report(format_args!("unsupported chip {:#x}", ip.device_id));
            SynStatus::Unsupported
        })?;
        let scal = Scal::get().map_err(|why| {
            report(why);
            SynStatus::Fail
        })?;
        let pool = scal.pool(fd).map_err(|result| match result {
            // SCAL_OUT_OF_MEMORY
            -5 => SynStatus::OutOfDeviceMemory,
            _ => SynStatus::Fail,
        })?;
        let device = Self {
            thunk,
            fd,
            module,
            ip,
            heap: Heap::new(pool.base, pool.bytes),
            engine: Engine::new(thunk, fd, asic)?,
            host: BTreeMap::new(),
            streams: Vec::new(),
            pool,
        };
        std::mem::forget(opened);
        Ok(device)
    }

    /// Waits for all work, frees all resources and closes the device.
    pub(crate) fn release(self) -> Result<(), SynStatus> {
        let closed = self.engine.close();
        let mut freed = Ok(());
        for memory in self.host.into_values() {
            freed = freed.and(memory.free(self.thunk, self.fd));
        }
        drop(self.pool);
        self.thunk.close(self.fd)?;
        freed?;
        closed
    }

    /// Allocates from the pool, at address `wanted` unless it is 0.
    pub(crate) fn alloc(&mut self, bytes: u64, wanted: u64) -> Result<u64, SynStatus> {
        if bytes == 0 {
            return Err(SynStatus::InvalidArgument);
        }
        let wanted = (wanted != 0).then_some(wanted);
        self.heap.take(bytes, wanted).ok_or(SynStatus::OutOfDeviceMemory)
    }

    /// Frees an allocation after all jobs have completed, because a job could still write to it.
    pub(crate) fn free(&mut self, address: u64) -> Result<(), SynStatus> {
        if !self.heap.holds(address, 1) {
            return Err(SynStatus::InvalidArgument);
        }
        self.engine.drain()?;
        match self.heap.give(address) {
            true => Ok(()),
            false => Err(SynStatus::InvalidArgument),
        }
    }

    pub(crate) fn alloc_host(&mut self, bytes: u64) -> Result<*mut u8, SynStatus> {
        let memory = HostMemory::new(self.thunk, self.fd, bytes)?;
        let start = memory.start();
        self.host.insert(start.addr().get() as u64, memory);
        Ok(start.as_ptr())
    }

    pub(crate) fn free_host(&mut self, address: u64) -> Result<(), SynStatus> {
        if !self.host.contains_key(&address) {
            return Err(SynStatus::InvalidArgument);
        }
        self.engine.drain()?;
        let memory = self.host.remove(&address).ok_or(SynStatus::InvalidArgument)?;
        Ok(memory.free(self.thunk, self.fd)?)
    }

    /// Creates a stream and returns its number.
    pub(crate) fn create_stream(&mut self) -> usize {
        self.streams.push(None);
        self.streams.len() - 1
    }

    /// Returns the last job of a stream.
    pub(crate) fn last_job(&self, stream: usize) -> Result<Option<u64>, SynStatus> {
        self.streams
            .get(stream)
            .copied()
            .ok_or(SynStatus::InvalidArgument)
    }

    /// Releases the resources of job `seq` and all earlier jobs, which have completed.
    pub(crate) fn ended(&mut self, seq: u64) {
        self.engine.ended(seq);
    }

    pub(crate) fn fill(&mut self, stream: usize, at: u64, byte: u8, bytes: u64) -> Result<(), SynStatus> {
        self.last_job(stream)?;
        if !self.heap.holds(at, bytes) {
            return Err(SynStatus::InvalidArgument);
        }
        if bytes > 0 {
            let seq = self.engine.submit(at, Source::Fill(byte), bytes, None)?;
            self.streams[stream] = Some(seq);
        }
        Ok(())
    }

    /// Copies between device memory of the pool and host memory. Host memory that `synHostMalloc`
    /// did not allocate is mapped until the copy has completed.
    ///
    /// # Safety
    /// - No reference to the host memory exists until the stream is synchronized.
    pub(crate) unsafe fn copy(
        &mut self,
        stream: usize,
        src: u64,
        bytes: u64,
        dst: u64,
        direction: Direction,
    ) -> Result<(), SynStatus> {
        self.last_job(stream)?;
        let (host, in_pool) = match direction {
            Direction::HostToDram => (Some(src), self.heap.holds(dst, bytes)),
            Direction::DramToHost => (Some(dst), self.heap.holds(src, bytes)),
            Direction::DramToDram => (None, self.heap.holds(dst, bytes) && self.heap.holds(src, bytes)),
        };
        if !in_pool {
            return Err(SynStatus::InvalidArgument);
        }
        if bytes == 0 {
            return Ok(());
        }
        let mut mapped = None;
        let host = match host {
            None => 0,
            // SAFETY: guaranteed by the caller.
            Some(start) => unsafe { self.host_address(start, bytes, &mut mapped) }?,
        };
        let (dst, src) = match direction {
            Direction::HostToDram => (dst, host),
            Direction::DramToHost => (host, src),
            Direction::DramToDram => (dst, src),
        };
        let submitted = self.engine.submit(dst, Source::Copy(src), bytes, mapped);
        if let (Err(_), Some(address)) = (submitted, mapped) {
            // Report the first failure.
            let _ = self.thunk.unmap(self.fd, address);
        }
        self.streams[stream] = Some(submitted?);
        Ok(())
    }

    /// Returns the device address of host memory. Maps it if `synHostMalloc` did not allocate it.
    ///
    /// # Safety
    /// - As [`copy`](Self::copy).
    unsafe fn host_address(
        &self,
        start: u64,
        bytes: u64,
        mapped: &mut Option<u64>,
    ) -> Result<u64, SynStatus> {
        let below = self.host.range(..=start).next_back();
        if let Some(address) = below.and_then(|(_, memory)| memory.device(start, bytes)) {
            return Ok(address);
        }
        let end = start.checked_add(bytes).ok_or(SynStatus::InvalidArgument)?;
        // SAFETY: guaranteed by the caller.
        let address = unsafe { self.thunk.map_host(self.fd, start..end) };
        let address = address.map_err(|_| SynStatus::MappingNotFound)?;
        *mapped = Some(address);
        Ok(address)
    }

    /// Exports a range of one allocation. Returns `None` if the range is not in the pool.
    pub(crate) fn export(&self, range: Range) -> Option<Result<c_int, Errno>> {
        let offset = range.start.checked_sub(self.heap.base())?;
        if offset >= self.heap.bytes() {
            return None;
        }
        if !self.heap.holds(range.start, range.bytes) {
            return Some(Err(Errno::EINVAL));
        }
        Some(self.thunk.export(self.fd, self.heap.base(), range.bytes, offset))
    }
}

/// Returns the description of the device's chip.
fn chip(ip: &HlInfoHwIpInfo) -> Option<&'static Asic> {
    ASICS
        .into_iter()
        .find(|asic| u32::from(asic.device) == ip.device_id)
}
