//! Copies and fills: command buffers with LIN_DMA packets on one queue of the device.
//!
//! All streams share the queue, which executes jobs in order; each job ends with a barrier. So
//! copies of both directions in a stream stay in order, and a completed job implies that all
//! earlier jobs have completed.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use gaudi_hlthunk_client::{CsEnd, HlThunk};
use gaudi_spec::asic::QueueEngine;
use gaudi_spec::gaudi2::packet::{LinDma, Nop};
use gaudi_spec::{Asic, DeviceVa, QueueId};
use gaudi_uapi::cs::HlCsChunk;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::status::SynStatus;

/// Maximum number of jobs in flight. The driver allows 64 per device.
const JOBS: usize = 32;
/// Size of a job's command buffer in bytes.
const BUFFER: usize = 4096;
/// Maximum number of bytes that one packet copies.
const MOST: u64 = 1 << 30;
/// Maximum number of packets in a job.
const PACKETS: u64 = ((BUFFER - Nop::LEN) / LinDma::LEN) as u64;
/// Timeout of one wait in microseconds. The driver's timeout ends a hung job.
const WAIT: u64 = 1_000_000;

/// Host memory that the device can access.
pub(crate) struct HostMemory {
    start: NonNull<u8>,
    bytes: usize,
    device: u64,
}

// SAFETY: the struct owns the memory, which is accessed through raw pointers only.
unsafe impl Send for HostMemory {}

impl HostMemory {
    pub(crate) fn new(thunk: &HlThunk, fd: c_int, bytes: u64) -> Result<Self, SynStatus> {
        let bytes = usize::try_from(bytes).ok().and_then(NonZeroUsize::new);
        let bytes = bytes.ok_or(SynStatus::InvalidArgument)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new anonymous mapping replaces no other.
        let start = unsafe { mmap_anonymous(None, bytes, protection, MapFlags::MAP_PRIVATE) };
        let start = start.map_err(|_| SynStatus::OutOfHostMemory)?;
        let mut memory = Self {
            start: start.cast(),
            bytes: bytes.get(),
            device: 0,
        };
        // SAFETY: no reference to the memory exists.
        match unsafe { thunk.map_host(fd, memory.address()..memory.address() + memory.bytes as u64) } {
            Ok(device) => {
                memory.device = device;
                Ok(memory)
            }
            Err(errno) => {
                memory.unmap_of_host();
                Err(errno.into())
            }
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// Returns the device address of a range; `None` if the range is outside this memory.
    pub(crate) fn device(&self, start: u64, bytes: u64) -> Option<u64> {
        let offset = start.checked_sub(self.address())?;
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes as u64).then_some(self.device + offset)
    }

    /// Frees the memory. No job in flight may use it.
    pub(crate) fn free(self, thunk: &HlThunk, fd: c_int) -> Result<(), Errno> {
        let unmapped = thunk.unmap(fd, self.device);
        self.unmap_of_host();
        unmapped
    }

    fn unmap_of_host(&self) {
        // SAFETY: this struct owns the mapping, and its owner drops the struct now.
        let unmapped = unsafe { munmap(self.start.cast(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "the mapping exists");
    }
}

/// A job in flight.
struct Job {
    seq: u64,
    /// A mapping of host memory that only this job uses.
    mapped: Option<u64>,
}

/// The source of a job's data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Copy(u64),
    Fill(u8),
}

/// The queue, its command buffers and the jobs in flight.
pub(crate) struct Engine {
    thunk: &'static HlThunk,
    fd: c_int,
    queue: QueueId,
    buffers: HostMemory,
    /// The index of the next job's command buffer.
    next: usize,
    jobs: VecDeque<Job>,
}

impl Engine {
    /// Creates an engine. Returns `Unsupported` if the chip has no queue between host and device.
    pub(crate) fn new(thunk: &'static HlThunk, fd: c_int, asic: &Asic) -> Result<Self, SynStatus> {
        let mut rows = (0..asic.queue_count).filter_map(|number| (asic.queue)(QueueId(number)));
        let row = rows.find(|row| row.user && row.engine == QueueEngine::Pdma);
        Ok(Self {
            thunk,
            fd,
            queue: row.ok_or(SynStatus::Unsupported)?.id,
            buffers: HostMemory::new(thunk, fd, (JOBS * BUFFER) as u64)?,
            next: 0,
            jobs: VecDeque::with_capacity(JOBS),
        })
    }

    /// Submits a job and returns its sequence number. `mapped` is unmapped when the job has
    /// completed; on failure the caller still owns it.
    pub(crate) fn submit(
        &mut self,
        destination: u64,
        source: Source,
        bytes: u64,
        mapped: Option<u64>,
    ) -> Result<u64, SynStatus> {
        if bytes.div_ceil(MOST) > PACKETS {
            return Err(SynStatus::InvalidArgument);
        }
        if self.jobs.len() == JOBS {
            let oldest = self.jobs[0].seq;
            self.wait(oldest)?;
        }
        let mut packets = Vec::with_capacity(BUFFER);
        for done in (0..bytes).step_by(MOST as usize) {
            let size = (bytes - done).min(MOST) as u32;
            let at = DeviceVa(destination + done);
            let packet = match source {
                Source::Copy(from) => LinDma::copy(at, DeviceVa(from + done), size),
                Source::Fill(byte) => LinDma::memset(at, u32::from_ne_bytes([byte; 4]), size),
            };
            packets.extend_from_slice(&packet.to_bytes());
        }
        let barrier = Nop::EMPTY.with_engine_barrier(true).with_message_barrier(true);
        packets.extend_from_slice(&barrier.to_bytes());

        let offset = self.next * BUFFER;
        let slot = self.buffers.start.as_ptr().wrapping_add(offset);
        // SAFETY: the slot has BUFFER bytes, at least the packets' length; the last job that used
        // it has completed.
        unsafe { slot.copy_from_nonoverlapping(packets.as_ptr(), packets.len()) };
        let address = self.buffers.device + offset as u64;
        let chunk = HlCsChunk::user(self.queue.0, address, packets.len() as u32);
        let submitted = self.thunk.submit(self.fd, chunk, None);
        let seq = submitted.map_err(|_| SynStatus::CommandSubmissionFailure)?;
        self.next = (self.next + 1) % JOBS;
        self.jobs.push_back(Job { seq, mapped });
        Ok(seq)
    }

    /// Waits for a job and all earlier jobs.
    pub(crate) fn wait(&mut self, seq: u64) -> Result<(), SynStatus> {
        let ended = wait(self.thunk, self.fd, seq);
        self.ended(seq);
        ended
    }

    /// Releases the resources of job `seq` and all earlier jobs, which have completed.
    pub(crate) fn ended(&mut self, seq: u64) {
        let ended = self.jobs.partition_point(|job| job.seq <= seq);
        for address in self.jobs.drain(..ended).filter_map(|job| job.mapped) {
            // Fails while the device is in reset. Closing the device unmaps the memory.
            let _ = self.thunk.unmap(self.fd, address);
        }
    }

    /// Waits for all jobs.
    pub(crate) fn drain(&mut self) -> Result<(), SynStatus> {
        self.jobs
            .back()
            .map(|job| job.seq)
            .map_or(Ok(()), |seq| self.wait(seq))
    }

    /// Waits for all jobs, then frees the command buffers.
    pub(crate) fn close(mut self) -> Result<(), SynStatus> {
        let drained = self.drain();
        self.buffers.free(self.thunk, self.fd)?;
        drained
    }
}

/// Waits for a job without holding the library's lock.
pub(crate) fn wait(thunk: &HlThunk, fd: c_int, seq: u64) -> Result<(), SynStatus> {
    loop {
        match thunk.wait(fd, seq, WAIT)? {
            CsEnd::Completed => return Ok(()),
            CsEnd::Failed => return Err(SynStatus::DeviceReset),
            CsEnd::Busy => {}
        }
    }
}
