//! The building blocks of cases: memory, buffers and programs that release their objects on drop.

#![expect(unsafe_code, reason = "host memory is mapped to the device by address")]

use std::time::Duration;

use gaudi_seam::{
    CbCreate, CbHandle, CsAnswer, CsRequest, CsSeq, DeviceVa, Errno, Error, HostVa, KernelIo,
    KernelIoExt as _, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest, QueueId, RawMapping, Result,
    SharedIo, WaitAnswer, WaitStatus,
};
use gaudi_spec::gaudi2::packet::{CpDma, Fence, LinDma, MsgLong, MsgShort, Nop, Packet};
use gaudi_spec::gaudi2::sync::{Compare, FIRST_USER_MONITOR, FIRST_USER_SOB, MonArm, MonConfig, SobUpdate};
use gaudi_spec::gaudi2::{qman, queue};
use gaudi_sys::PAGE;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus};
use gaudi_uapi::memory::MemFlags;

use crate::bench::Bench;
use crate::verdict::{Failure, Verdict, equal, refused};

/// Longer than any program of a case, and shorter than the driver's timeout of submissions.
pub(crate) const LONG: Duration = Duration::from_secs(10);
/// A page as a length.
pub(crate) const PAGE_LEN: usize = PAGE as usize;

/// Returns the address `bytes` further.
pub fn offset(address: DeviceVa, bytes: u64) -> DeviceVa {
    DeviceVa(address.0.wrapping_add(bytes))
}

/// Returns bytes that differ by position and by seed.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| {
            (at as u8)
                .wrapping_mul(31)
                .wrapping_add((at >> 8) as u8)
                .wrapping_add(seed)
        })
        .collect()
}

/// An allocation of device memory, freed on drop.
pub(crate) struct Allocation {
    io: SharedIo,
    pub(crate) handle: MemHandle,
    released: bool,
}

impl Allocation {
    pub(crate) fn new(io: &SharedIo, size: u64) -> Result<Self> {
        Self::with(io, size, MemFlags::NONE)
    }

    pub(crate) fn with(io: &SharedIo, size: u64, flags: MemFlags) -> Result<Self> {
        let request = MemAlloc {
            size,
            page_size: 0,
            flags,
        };
        Self::of(io, request)
    }

    pub(crate) fn of(io: &SharedIo, request: MemAlloc) -> Result<Self> {
        let handle = io.mem_alloc(request)?;
        Ok(Self {
            io: io.clone(),
            handle,
            released: false,
        })
    }

    /// Frees it now. If that is refused, drop frees it again.
    pub(crate) fn free(&mut self) -> Result<()> {
        let answer = self.io.mem_free(self.handle);
        self.released |= answer.is_ok();
        answer
    }

    /// Leaves it to the close of the node.
    pub(crate) fn leave(mut self) {
        self.released = true;
    }

    pub(crate) fn map(&self) -> Result<Mapped> {
        self.map_at(None, false)
    }

    pub(crate) fn map_at(&self, hint: Option<DeviceVa>, forced: bool) -> Result<Mapped> {
        let va = self.io.mem_map_device(MapDevice {
            handle: self.handle,
            hint,
            flags: hint_flags(forced),
        })?;
        Ok(Mapped::new(&self.io, va))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.released {
            // The bench's ledger reports what could not be freed.
            let _ = self.io.mem_free(self.handle);
        }
    }
}

/// A mapping, unmapped on drop.
pub(crate) struct Mapped {
    io: SharedIo,
    pub(crate) va: DeviceVa,
    released: bool,
}

impl Mapped {
    fn new(io: &SharedIo, va: DeviceVa) -> Self {
        Self {
            io: io.clone(),
            va,
            released: false,
        }
    }

    /// Unmaps it now. If that is refused, drop unmaps it again.
    pub(crate) fn unmap(&mut self) -> Result<()> {
        let answer = self.io.mem_unmap(self.va);
        self.released |= answer.is_ok();
        answer
    }

    /// Leaves it to the close of the node.
    pub(crate) fn leave(mut self) {
        self.released = true;
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.released {
            let _ = self.io.mem_unmap(self.va);
        }
    }
}

fn hint_flags(forced: bool) -> MemFlags {
    match forced {
        true => MemFlags::FORCE_HINT,
        false => MemFlags::NONE,
    }
}

/// Device memory, allocated and mapped. Fields drop in order: the mapping first.
pub(crate) struct Dram {
    pub(crate) mapping: Mapped,
    pub(crate) allocation: Allocation,
}

impl Dram {
    pub(crate) fn new(io: &SharedIo, size: u64) -> Result<Self> {
        let allocation = Allocation::new(io, size)?;
        let mapping = allocation.map()?;
        Ok(Self { mapping, allocation })
    }

    pub(crate) fn va(&self) -> DeviceVa {
        self.mapping.va
    }
}

/// Host memory mapped to the device. Fields drop in order: the mapping before the memory.
pub(crate) struct Host {
    pub(crate) mapping: Mapped,
    pub(crate) memory: RawMapping,
    pub(crate) va: DeviceVa,
}

impl Host {
    /// Allocates zeroed memory and maps all of it.
    pub(crate) fn new(io: &SharedIo, len: usize) -> std::result::Result<Self, Failure> {
        let memory = RawMapping::anonymous(len, true)?;
        Self::of(io, memory, 0, len, None, false)
    }

    /// Maps a part of `memory` from an offset that need not be aligned; `va` is the address of that
    /// byte.
    pub(crate) fn of(
        io: &SharedIo,
        memory: RawMapping,
        from: usize,
        len: usize,
        hint: Option<DeviceVa>,
        forced: bool,
    ) -> std::result::Result<Self, Failure> {
        let start = memory.at(from, len)?;
        let request = MapHost {
            address: HostVa(start.as_ptr().expose_provenance() as u64),
            size: len as u64,
            hint,
            flags: hint_flags(forced),
        };
        // SAFETY: the memory lives in `self`, which drops the mapping first, and no reference to it
        // exists.
        let va = unsafe { io.mem_map_host(request) }?;
        let mapping = Mapped::new(io, va);
        Ok(Self { mapping, memory, va })
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> std::result::Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes)?;
        Ok(bytes)
    }
}

/// Tries to map a range of host memory that may be invalid, and unmaps it at once.
pub(crate) fn try_map_host(io: &dyn KernelIo, request: MapHost) -> Result<()> {
    // SAFETY: the driver must refuse the invalid range. If it accepts the range, no work that could
    // access it is submitted before the unmap below.
    let mapped = unsafe { io.mem_map_host(request) }?;
    io.mem_unmap(mapped)
}

/// A command buffer mapped to the device, destroyed on drop.
pub(crate) struct Buffer {
    io: SharedIo,
    pub(crate) handle: CbHandle,
    pub(crate) va: DeviceVa,
    pub(crate) len: u32,
}

impl Buffer {
    /// Creates a buffer with a program.
    pub(crate) fn new(io: &SharedIo, program: Program) -> std::result::Result<Self, Failure> {
        Self::of_bytes(io, &program.bytes())
    }

    pub(crate) fn of_bytes(io: &SharedIo, bytes: &[u8]) -> std::result::Result<Self, Failure> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let handle = io.cb_create(CbCreate {
            size: len,
            map_to_device: true,
        })?;
        let mut this = Self {
            io: io.clone(),
            handle,
            va: DeviceVa(0),
            len,
        };
        this.va = io
            .cb_info(handle, true)?
            .device_va
            .ok_or_else(|| Failure::new("device address of a mapped command buffer", "one", "none"))?;
        let memory = io.mmap(MmapRequest {
            offset: handle.0,
            len: bytes.len().max(1).next_multiple_of(PAGE_LEN),
        })?;
        memory.write(0, bytes)?;
        Ok(this)
    }

    pub(crate) fn chunk(&self, queue: QueueId) -> HlCsChunk {
        HlCsChunk::user(queue.0, self.va.0, self.len)
    }

    pub(crate) fn submit(&self, queue: QueueId) -> Result<CsSeq> {
        submit(&*self.io, &[self.chunk(queue)]).map(|answer| answer.seq)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = self.io.cb_destroy(self.handle);
    }
}

pub(crate) fn submit(io: &dyn KernelIo, chunks: &[HlCsChunk]) -> Result<CsAnswer> {
    io.submit(&CsRequest {
        execute: chunks,
        ..CsRequest::default()
    })
}

/// As [`submit`], with flags and an optional timeout in seconds.
pub(crate) fn submit_with(
    io: &dyn KernelIo,
    chunks: &[HlCsChunk],
    flags: CsFlags,
    timeout_s: Option<u32>,
) -> Result<CsSeq> {
    let custom = timeout_s.map_or(CsFlags::NONE, |_| CsFlags::CUSTOM_TIMEOUT);
    io.submit(&CsRequest {
        execute: chunks,
        flags: flags | custom,
        timeout_s: timeout_s.unwrap_or(0),
        ..CsRequest::default()
    })
    .map(|answer| answer.seq)
}

/// Waits for a submission that nothing delays, and checks that it completes.
pub(crate) fn finish(io: &dyn KernelIo, seq: CsSeq) -> Verdict {
    equal(
        "the wait for a submission that nothing delays",
        io.wait_cs(seq, LONG)?.status,
        WaitStatus::Completed,
    )
}

/// Runs a program and waits for its completion.
pub(crate) fn run(io: &SharedIo, queue: QueueId, program: Program) -> Verdict {
    let buffer = Buffer::new(io, program)?;
    finish(&**io, buffer.submit(queue)?)
}

/// A gate that holds a stream until another stream opens it: fence 2 of the held stream, released
/// by a monitor on a sync object.
pub(crate) struct Gate {
    io: SharedIo,
    buffer: Buffer,
    opener: Buffer,
    held: Option<CsSeq>,
}

impl Gate {
    /// The sync object and the monitor that only gates use.
    pub(crate) const SOB: u32 = FIRST_USER_SOB;
    pub(crate) const MONITOR: u32 = FIRST_USER_MONITOR;

    /// Holds the stream `held` until [`Gate::open`].
    pub(crate) fn shut(io: &SharedIo, held: QueueId) -> std::result::Result<Self, Failure> {
        let program = Program::new()
            .wait_for(held, Self::MONITOR, Self::SOB, 1)?
            .sob(Self::SOB, SobUpdate::set(0))?;
        let mut gate = Self {
            io: io.clone(),
            buffer: Buffer::new(io, program)?,
            opener: Buffer::new(io, Program::new().sob(Self::SOB, SobUpdate::add_signed(1))?)?,
            held: None,
        };
        gate.held = Some(gate.buffer.submit(held)?);
        Ok(gate)
    }

    /// Returns the held submission.
    pub(crate) fn seq(&self) -> CsSeq {
        // A shut gate has a submission; no submission has number 0.
        self.held.unwrap_or(CsSeq(0))
    }

    /// Releases the stream and waits for the held submission.
    pub(crate) fn open(mut self) -> Verdict {
        self.release()
    }

    fn release(&mut self) -> Verdict {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        let opened = self.opener.submit(queue::PDMA_1_0)?;
        finish(&*self.io, opened)?;
        finish(&*self.io, held)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // A failed case must not leave the stream held.
        let _ = self.release();
    }
}

/// A command buffer's packets.
#[derive(Debug, Default)]
pub struct Program(Vec<u8>);

/// A program, or the number that no packet reaches.
pub type Built = std::result::Result<Program, Failure>;

fn out_of_reach(what: &str, number: u32) -> Failure {
    Failure::new(format!("{what} {number}"), "in reach of a packet", "out of reach")
}

impl Program {
    /// Returns an empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a NOP.
    pub fn nop(mut self) -> Self {
        self.0.extend(Nop::EMPTY.to_bytes());
        self
    }

    /// Adds an engine barrier: later packets wait for the engine.
    pub fn barrier(mut self) -> Self {
        self.0.extend(Nop::EMPTY.with_engine_barrier(true).to_bytes());
        self
    }

    /// Adds a LIN_DMA packet.
    pub fn dma(mut self, packet: LinDma) -> Self {
        self.0.extend(packet.to_bytes());
        self
    }

    /// Adds a copy of `size` bytes.
    pub fn copy(self, to: DeviceVa, from: DeviceVa, size: u32) -> Self {
        self.dma(LinDma::copy(to, from, size))
    }

    /// Adds a packet.
    pub fn packet(mut self, packet: Packet<'_>) -> Self {
        packet.emit(|bytes| self.0.extend(bytes));
        self
    }

    /// Adds raw bytes, for packets that the encoders do not support.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// Adds a CP_DMA packet.
    pub fn cp_dma(mut self, packet: CpDma) -> Self {
        self.0.extend(packet.to_bytes());
        self
    }

    /// Adds a MSG_LONG packet.
    pub fn long(mut self, packet: MsgLong) -> Self {
        self.0.extend(packet.to_bytes());
        self
    }

    /// Adds a MSG_SHORT packet.
    ///
    /// # Errors
    /// `number` is out of reach of a packet.
    pub fn short(mut self, packet: Option<MsgShort>, what: &str, number: u32) -> Built {
        let packet = packet.ok_or_else(|| out_of_reach(what, number))?;
        self.0.extend(packet.to_bytes());
        Ok(self)
    }

    /// Adds an update of a sync object.
    ///
    /// # Errors
    /// No packet reaches it.
    pub fn sob(self, sob: u32, update: SobUpdate) -> Built {
        self.short(MsgShort::sob(sob, update), "sync object", sob)
    }

    /// Adds a wait until fence `id` is at least `target`, which then falls by `by`.
    ///
    /// # Errors
    /// There is no such fence.
    pub fn fence(mut self, id: u8, target: u8, by: u8) -> Built {
        let fence = Fence::new(id, target, by).ok_or_else(|| out_of_reach("fence", u32::from(id)))?;
        self.0.extend(fence.to_bytes());
        Ok(self)
    }

    /// Arms a monitor that writes `data` to `to` when the comparison of the sync object with
    /// `value` holds.
    ///
    /// # Errors
    /// No packet reaches one of the two.
    pub fn monitor(
        self,
        monitor: u32,
        (sob, compare, value): (u32, Compare, u16),
        to: DeviceVa,
        data: u32,
    ) -> Built {
        let what = "monitor";
        self.short(
            MsgShort::monitor_config(monitor, MonConfig::for_sob(sob)),
            what,
            monitor,
        )?
        .short(MsgShort::monitor_address_low(monitor, to), what, monitor)?
        .short(MsgShort::monitor_address_high(monitor, to), what, monitor)?
        .short(MsgShort::monitor_data(monitor, data), what, monitor)?
        .short(
            MsgShort::monitor_arm(monitor, MonArm::for_sob(sob, compare, value)),
            what,
            monitor,
        )
    }

    /// Holds the queue that runs this until the sync object is at least `value`: a monitor releases
    /// fence 2 of the queue.
    ///
    /// # Errors
    /// No packet reaches one of them, or the queue has no fences.
    pub fn wait_for(self, queue: QueueId, monitor: u32, sob: u32, value: u16) -> Built {
        let release = fence_address(queue, 2)?;
        self.monitor(monitor, (sob, Compare::AtLeast, value), release, 1)?
            .fence(2, 1, 1)
    }

    /// Returns the packets.
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }
}

pub(crate) fn fence_address(queue: QueueId, fence: u32) -> std::result::Result<DeviceVa, Failure> {
    queue::row(queue)
        .and_then(|row| qman::fence_address(&row, fence))
        .ok_or_else(|| out_of_reach("queue", queue.0))
}

/// Device memory with methods that write and read it by DMA.
pub(crate) struct Window<'a> {
    io: &'a SharedIo,
    pub(crate) memory: Dram,
    pub(crate) host: Host,
}

impl<'a> Window<'a> {
    pub(crate) fn new(io: &'a SharedIo, size: u64) -> std::result::Result<Self, Failure> {
        Ok(Self {
            io,
            memory: Dram::new(io, size)?,
            host: Host::new(io, 4 * PAGE_LEN)?,
        })
    }

    pub(crate) fn at(&self, at: u64) -> DeviceVa {
        offset(self.memory.va(), at)
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Verdict {
        self.host.memory.write(0, bytes)?;
        run(
            self.io,
            queue::PDMA_0_0,
            Program::new().copy(self.at(at), self.host.va, bytes.len() as u32),
        )
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> std::result::Result<Vec<u8>, Failure> {
        self.host.memory.fill(0, len, 0xdd)?;
        run(
            self.io,
            queue::PDMA_0_0,
            Program::new().copy(self.host.va, self.at(at), len as u32),
        )?;
        self.host.bytes(0, len)
    }
}

/// Runs a program that never ends until the driver aborts it, then reopens the device.
///
/// The wait ends with `ETIMEDOUT` at the submission's timeout. A fault that the firmware reports
/// resets the device at once (gaudi2.c:gaudi2_handle_eqe).
pub(crate) fn never_ends(bench: &mut Bench, io: SharedIo, what: &str, bytes: &[u8]) -> Verdict {
    let buffer = Buffer::of_bytes(&io, bytes)?;
    let seq = submit_with(&*io, &[buffer.chunk(queue::PDMA_0_0)], CsFlags::NONE, Some(1))?;
    let answer = io.wait_cs(seq, LONG);
    drop((buffer, io));
    bench.reopen()?;
    if is_aborted(&answer) {
        return Ok(());
    }
    refused(what, answer, Errno::ETIMEDOUT)
}

/// Whether a reset ended a wait: the driver aborts a wait that began before the reset, and refuses
/// one that begins during it. Which of the two happens is a race with the firmware.
pub(crate) fn is_aborted(answer: &Result<WaitAnswer>) -> bool {
    let errno = answer.as_ref().err().and_then(Error::errno);
    [Some(Errno::EIO), Some(Errno::EBUSY)].contains(&errno)
}

/// Waits until the device is in reset, at most 10 seconds of this machine's clock.
pub(crate) fn wait_until_reset(io: &SharedIo) -> Verdict {
    for _ in 0..1000 {
        if io.query::<HlInfoDeviceStatus>()?.status == DeviceStatus::IN_RESET {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Failure::new(
        "the device's status",
        "a reset",
        "operational for 10 s",
    ))
}
