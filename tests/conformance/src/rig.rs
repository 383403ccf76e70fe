//! What cases are made of: memory, buffers and programs that give back what they took.

#![expect(unsafe_code, reason = "host memory is mapped to the device by address")]

use std::time::Duration;

use gaudi_seam::{
    CbCreate, CbHandle, CsAnswer, CsRequest, CsSeq, DeviceVa, Errno, Error, HostVa, KernelIo, MapDevice,
    MapHost, MemAlloc, MemHandle, MmapRequest, QueueId, RawMapping, Result, SharedIo, WaitAnswer, WaitStatus,
};
use gaudi_spec::gaudi2::packet::{CpDma, Encoder, Fence, Full, LinDma, MsgLong, MsgShort, Nop, Packet, Sink};
use gaudi_spec::gaudi2::sync::{Compare, FIRST_USER_MONITOR, FIRST_USER_SOB, MonArm, MonConfig, SobUpdate};
use gaudi_spec::gaudi2::{qman, queue};
use gaudi_sys::PAGE;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::memory::MemFlags;

use crate::bench::Bench;
use crate::case::{Failure, Verdict, equal, refused};

/// Longer than any program of a case takes, and shorter than the driver's own limit on a submission.
pub(crate) const LONG: Duration = Duration::from_secs(10);
/// A page as a length.
pub(crate) const PAGE_LEN: usize = PAGE as usize;

/// An address so many bytes further.
pub(crate) fn offset(address: DeviceVa, bytes: u64) -> DeviceVa {
    DeviceVa(address.0.wrapping_add(bytes))
}

/// Bytes that differ from one place to the next and from one seed to the next.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| {
            (at as u8)
                .wrapping_mul(31)
                .wrapping_add((at >> 8) as u8)
                .wrapping_add(seed)
        })
        .collect()
}

/// Device memory that is allocated.
pub(crate) struct Allocation {
    io: SharedIo,
    pub(crate) handle: MemHandle,
    gone: bool,
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
            gone: false,
        })
    }

    /// Frees now; where that is refused, once more when it goes.
    pub(crate) fn free(&mut self) -> Result<()> {
        let answer = self.io.mem_free(self.handle);
        self.gone |= answer.is_ok();
        answer
    }

    /// Leaves it to the close of the node.
    pub(crate) fn leave(mut self) {
        self.gone = true;
    }

    pub(crate) fn map(&self) -> Result<Mapped> {
        self.map_at(None, false)
    }

    pub(crate) fn map_at(&self, hint: Option<DeviceVa>, forced: bool) -> Result<Mapped> {
        let va = self.io.mem_map_device(MapDevice {
            handle: self.handle,
            hint,
            flags: if forced {
                MemFlags::FORCE_HINT
            } else {
                MemFlags::NONE
            },
        })?;
        Ok(Mapped {
            io: self.io.clone(),
            va,
            gone: false,
        })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.gone {
            // The bench's ledger tells what could not be given back.
            let _ = self.io.mem_free(self.handle);
        }
    }
}

/// A mapping that is unmapped when it goes.
pub(crate) struct Mapped {
    io: SharedIo,
    pub(crate) va: DeviceVa,
    gone: bool,
}

impl Mapped {
    /// Unmaps now; where that is refused, once more when it goes.
    pub(crate) fn unmap(&mut self) -> Result<()> {
        let answer = self.io.mem_unmap(self.va);
        self.gone |= answer.is_ok();
        answer
    }

    /// Leaves it to the close of the node.
    pub(crate) fn leave(mut self) {
        self.gone = true;
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.gone {
            let _ = self.io.mem_unmap(self.va);
        }
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

/// Host memory that the device sees. Fields drop in order: the mapping before the memory.
pub(crate) struct Host {
    pub(crate) mapping: Mapped,
    pub(crate) memory: RawMapping,
    pub(crate) va: DeviceVa,
}

impl Host {
    /// Fresh zeroed memory, all of it mapped.
    pub(crate) fn new(io: &SharedIo, len: usize) -> std::result::Result<Self, Failure> {
        let memory = RawMapping::anonymous(len, true)?;
        Self::of(io, memory, 0, len, None, false)
    }

    /// A part of some memory, mapped from an offset that need not be aligned; `va` is where that byte is.
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
            flags: if forced {
                MemFlags::FORCE_HINT
            } else {
                MemFlags::NONE
            },
        };
        // SAFETY: the memory lives in `self`, which drops the mapping first; nobody makes references to the memory.
        let va = unsafe { io.mem_map_host(request) }?;
        let mapping = Mapped {
            io: io.clone(),
            va,
            gone: false,
        };
        Ok(Self { mapping, memory, va })
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> std::result::Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes)?;
        Ok(bytes)
    }
}

/// Maps a range of host memory that may be fit for it or not, and unmaps it at once.
pub(crate) fn try_map_host(io: &dyn KernelIo, request: MapHost) -> Result<()> {
    // SAFETY: the range is not fit for a device, which is what the caller asks the driver to see; where it is taken all the same, it
    // is unmapped at once and no work that could touch it is submitted meanwhile.
    let taken = unsafe { io.mem_map_host(request) }?;
    io.mem_unmap(taken)
}

/// A command buffer that the device sees, destroyed when it goes.
pub(crate) struct Buffer {
    io: SharedIo,
    pub(crate) handle: CbHandle,
    pub(crate) va: DeviceVa,
    pub(crate) len: u32,
}

impl Buffer {
    /// A buffer with a program in it.
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

/// As [`submit`], with a limit of so many seconds and other flags.
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

/// Waits for the end of a submission that has no reason to be slow.
pub(crate) fn finish(io: &dyn KernelIo, seq: CsSeq) -> Verdict {
    equal(
        "a submission that nothing holds up",
        io.wait_cs(seq, LONG)?.status,
        WaitStatus::Completed,
    )
}

/// Runs a program to its end.
pub(crate) fn run(io: &SharedIo, queue: QueueId, program: Program) -> Verdict {
    let buffer = Buffer::new(io, program)?;
    finish(&**io, buffer.submit(queue)?)
}

/// A stream that a gate holds until another stream opens it: fence 2 of the stream, released by a monitor on a sync object.
pub(crate) struct Gate {
    io: SharedIo,
    buffer: Buffer,
    opener: Buffer,
    held: Option<CsSeq>,
}

impl Gate {
    /// The sync object and the monitor that gates use; other programs take others.
    pub(crate) const SOB: u32 = FIRST_USER_SOB;
    pub(crate) const MONITOR: u32 = FIRST_USER_MONITOR;

    /// Holds `held` from now on; `opener` will let it go.
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

    /// The submission that is held.
    pub(crate) fn seq(&self) -> CsSeq {
        // Number 0 is no submission's; a gate that is shut has one.
        self.held.unwrap_or(CsSeq(0))
    }

    /// Lets the stream go on and waits until it has.
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
        // A case that failed meanwhile must not leave the stream held.
        let _ = self.release();
    }
}

/// A command buffer's packets.
#[derive(Debug)]
pub(crate) struct Program(Encoder<Bytes>);

#[derive(Debug, Default)]
struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) -> std::result::Result<(), Full> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

pub(crate) type Built = std::result::Result<Program, Failure>;

fn out_of_reach(what: &str, number: u32) -> Failure {
    Failure::new(format!("{what} {number}"), "in reach of a packet", "out of reach")
}

impl Program {
    pub(crate) fn new() -> Self {
        Self(Encoder::new(Bytes::default()))
    }

    pub(crate) fn nop(mut self) -> Self {
        let _ = self.0.nop(Nop::new());
        self
    }

    /// What follows waits for the engine.
    pub(crate) fn barrier(mut self) -> Self {
        let _ = self.0.nop(Nop::new().with_engine_barrier(true));
        self
    }

    pub(crate) fn dma(mut self, packet: LinDma) -> Self {
        let _ = self.0.lin_dma(packet);
        self
    }

    pub(crate) fn copy(self, to: DeviceVa, from: DeviceVa, size: u32) -> Self {
        self.dma(LinDma::copy(to, from, size))
    }

    /// Any packet.
    pub(crate) fn packet(mut self, packet: Packet<'_>) -> Self {
        let _ = self.0.packet(&packet);
        self
    }

    /// Bytes that are no packet that the encoders know.
    pub(crate) fn raw(self, bytes: &[u8]) -> Self {
        let mut sink = self.0.into_sink();
        sink.0.extend_from_slice(bytes);
        Self(Encoder::new(sink))
    }

    pub(crate) fn cp_dma(mut self, packet: CpDma) -> Self {
        let _ = self.0.cp_dma(packet);
        self
    }

    pub(crate) fn long(mut self, packet: MsgLong) -> Self {
        let _ = self.0.msg_long(packet);
        self
    }

    pub(crate) fn short(mut self, packet: Option<MsgShort>, what: &str, number: u32) -> Built {
        let _ = self
            .0
            .msg_short(packet.ok_or_else(|| out_of_reach(what, number))?);
        Ok(self)
    }

    pub(crate) fn sob(self, sob: u32, update: SobUpdate) -> Built {
        self.short(MsgShort::sob(sob, update), "sync object", sob)
    }

    pub(crate) fn fence(mut self, id: u8, target: u8, by: u8) -> Built {
        let fence = Fence::new(id, target, by).ok_or_else(|| out_of_reach("fence", u32::from(id)))?;
        let _ = self.0.fence(fence);
        Ok(self)
    }

    /// Sets a monitor up that writes `data` to `to` when the sync object compares with `value`.
    pub(crate) fn monitor(
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

    /// Holds the queue that runs this until the sync object is at or above `value`: by a monitor that releases its fence 2.
    pub(crate) fn wait_for(self, queue: QueueId, monitor: u32, sob: u32, value: u16) -> Built {
        let release = fence_address(queue, 2)?;
        self.monitor(monitor, (sob, Compare::AtLeast, value), release, 1)?
            .fence(2, 1, 1)
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0.into_sink().0
    }
}

pub(crate) fn fence_address(queue: QueueId, fence: u32) -> std::result::Result<DeviceVa, Failure> {
    queue::row(queue)
        .and_then(|row| qman::fence_address(&row, fence))
        .ok_or_else(|| out_of_reach("queue", queue.0))
}

/// Puts bytes into device memory, and reads them, by DMA.
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

/// Runs a program that must never end until the driver gives it up, then closes.
///
/// With a limit of its own it ends in `ETIMEDOUT`. A fault that the firmware tells the driver of resets the device at once (gaudi2.c:10596).
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

/// Whether a wait was ended by a reset: one that began before it is aborted, and one that begins in it is refused. Which of the two is a
/// race with the firmware.
pub(crate) fn is_aborted(answer: &Result<WaitAnswer>) -> bool {
    let errno = answer.as_ref().err().and_then(Error::errno);
    [Some(Errno::EIO), Some(Errno::EBUSY)].contains(&errno)
}
