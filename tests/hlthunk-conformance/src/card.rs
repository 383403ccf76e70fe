//! [`Card`]: the open device, and the objects of cases, which are released on drop.

#![expect(unsafe_code, reason = "the C ABI passes descriptors as integers")]

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;

use gaudi_conformance::{Failure, Program, Verdict, equal, offset};
use gaudi_spec::gaudi2::queue;
use gaudi_spec::gaudi2::sync::{FIRST_USER_MONITOR, FIRST_USER_SOB, SobUpdate};
use gaudi_spec::{DeviceVa, QueueId};
use gaudi_sys::{RawMapping, SysResult};
use gaudi_uapi::cs::{CsChunkFlags, CsFlags, HlCsChunk};
use gaudi_uapi::info::{HlInfoArgs, InfoAnswer, InfoOp};

use crate::answer::{handle, number, ok};
use crate::library::Library;
use crate::types::{CsIn, CsOut, DramUsageInfo};

/// Page size of this process in bytes.
pub(crate) const PAGE: usize = 4096;
/// Page size of device memory in bytes.
pub(crate) const DRAM_PAGE: u64 = gaudi_spec::gaudi2::DRAM_PAGE;
/// A timeout in microseconds, longer than any case's program and shorter than the driver's timeout.
pub(crate) const LONG: u64 = 10_000_000;

/// `HL_WAIT_CS_STATUS_COMPLETED`.
pub(crate) const COMPLETED: u32 = 0;
/// `HL_WAIT_CS_STATUS_BUSY`.
pub(crate) const BUSY: u32 = 1;

/// The queue that most cases use.
pub(crate) const Q: QueueId = queue::PDMA_0_0;
/// A queue of another DMA engine.
pub(crate) const OTHER: QueueId = queue::PDMA_1_0;

/// The library, and a descriptor of its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Card {
    /// The library.
    pub(crate) hl: &'static Library,
    /// The compute node's descriptor.
    pub(crate) fd: c_int,
}

/// Returns the address of a value, as an integer for the structs of the ABI.
pub(crate) fn address_of<T: ?Sized>(value: &T) -> u64 {
    ptr::from_ref(value).cast::<c_void>().expose_provenance() as u64
}

/// Returns the address of a value that the library fills.
pub(crate) fn address_of_mut<T>(value: &mut T) -> u64 {
    ptr::from_mut(value).expose_provenance() as u64
}

/// Returns the address of a mapping's byte.
pub(crate) fn address_in(memory: &RawMapping, at: usize) -> *mut c_void {
    memory.as_ptr().as_ptr().wrapping_add(at).cast()
}

/// Takes ownership of a descriptor that the library returned.
pub(crate) fn own(what: &str, code: c_int) -> Result<OwnedFd, Failure> {
    let fd = number(what, code)?;
    // SAFETY: the library returned the descriptor to this caller alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Borrows a descriptor that the caller keeps open during the borrow.
pub(crate) fn borrow<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: callers keep the descriptor open, and pass it only to system calls, which check it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Card {
    /// Maps a handle like a program does: mmap(2) of the descriptor at the handle.
    pub(crate) fn mmap(self, handle: u64, len: usize) -> SysResult<RawMapping> {
        RawMapping::of_fd(borrow(self.fd), handle, len)
    }

    /// Performs an INFO query with `hlthunk_get_info`.
    pub(crate) fn query<A: InfoAnswer>(self) -> Result<A, Failure> {
        let mut answer = A::new_zeroed();
        let to = address_of_mut(&mut answer);
        let mut args = HlInfoArgs::new(A::OP, to, size_of::<A>() as u32, 0);
        ok("hlthunk_get_info", self.hl.get_info(self.fd, Some(&mut args)))?;
        // The library wrote the answer through its address, so the compiler must reload it.
        std::hint::black_box(&mut answer);
        Ok(answer)
    }

    /// Performs an INFO query with a buffer of `room` bytes. Returns the library's result and the
    /// bytes.
    pub(crate) fn ask(self, op: InfoOp, arg: u32, room: usize) -> (c_int, Vec<u8>) {
        let answer = RawMapping::anonymous(room.max(1).next_multiple_of(PAGE), true);
        let answer = answer.expect("pages for an answer");
        let to = if room == 0 {
            0
        } else {
            address_in(&answer, 0).expose_provenance() as u64
        };
        let mut args = HlInfoArgs::new(op, to, room as u32, arg);
        let mut bytes = vec![0; room];
        let code = self.hl.get_info(self.fd, Some(&mut args));
        answer.read(0, &mut bytes).expect("inside");
        (code, bytes)
    }

    /// Returns the device memory usage of this user.
    pub(crate) fn usage(self) -> Result<DramUsageInfo, Failure> {
        let mut usage = DramUsageInfo::default();
        ok(
            "hlthunk_get_dram_usage",
            self.hl.get_dram_usage(self.fd, Some(&mut usage)),
        )?;
        Ok(usage)
    }

    /// Submits chunks with flags. Returns the library's result and its output struct.
    pub(crate) fn try_submit(self, chunks: &[HlCsChunk], flags: CsFlags) -> (c_int, CsOut) {
        let input = submission(chunks, &[], flags);
        let mut output = CsOut::default();
        let code = self
            .hl
            .command_submission(self.fd, Some(&input), Some(&mut output));
        (code, output)
    }

    /// Submits chunks. Returns the sequence number.
    pub(crate) fn submit(self, chunks: &[HlCsChunk]) -> Result<u64, Failure> {
        let (code, output) = self.try_submit(chunks, CsFlags::NONE);
        ok("hlthunk_command_submission", code)?;
        Ok(output.seq)
    }

    /// Waits for a submission. Returns the status.
    pub(crate) fn wait(self, seq: u64, timeout_us: u64) -> Result<u32, Failure> {
        let mut status = u32::MAX;
        ok(
            "hlthunk_wait_for_cs",
            self.hl.wait_for_cs(self.fd, seq, timeout_us, Some(&mut status)),
        )?;
        Ok(status)
    }

    /// Waits for a submission that nothing blocks, and checks that it completes.
    pub(crate) fn finish(self, seq: u64) -> Verdict {
        equal(
            "the status of a submission that nothing delays",
            self.wait(seq, LONG)?,
            COMPLETED,
        )
    }

    /// Runs a program and waits until it completes.
    pub(crate) fn run(self, queue: QueueId, program: Program) -> Verdict {
        let buffer = Buffer::new(self, program)?;
        self.finish(buffer.submit(queue)?)
    }
}

/// Returns the input struct of a submission.
pub(crate) fn submission(execute: &[HlCsChunk], restore: &[HlCsChunk], flags: CsFlags) -> CsIn {
    let address = |chunks: &[HlCsChunk]| if chunks.is_empty() { 0 } else { address_of(chunks) };
    CsIn {
        chunks_restore: address(restore),
        chunks_execute: address(execute),
        num_chunks_restore: restore.len() as u32,
        num_chunks_execute: execute.len() as u32,
        flags: flags.0,
    }
}

/// Returns a chunk with only a queue, which is sufficient for signals and waits.
pub(crate) fn chunk_on(queue: u32) -> HlCsChunk {
    HlCsChunk {
        queue_index: queue,
        ..HlCsChunk::default()
    }
}

/// Returns a chunk of a user's buffer.
pub(crate) fn chunk(queue: QueueId, va: DeviceVa, len: u32) -> HlCsChunk {
    HlCsChunk {
        cs_chunk_flags: CsChunkFlags::USER_ALLOC_CB,
        ..HlCsChunk::user(queue.0, va.0, len)
    }
}

/// An allocation of device memory, freed on drop.
#[derive(Debug)]
pub(crate) struct Memory {
    card: Card,
    /// Its handle.
    pub(crate) handle: u64,
    released: bool,
}

impl Memory {
    /// Allocates with the arguments of most clients: default page size, not contiguous, not shared.
    pub(crate) fn new(card: Card, size: u64) -> Result<Self, Failure> {
        Self::with(card, size, 0, false, false)
    }

    /// Allocates with all arguments.
    pub(crate) fn with(
        card: Card,
        size: u64,
        page: u64,
        contiguous: bool,
        shared: bool,
    ) -> Result<Self, Failure> {
        let value = card
            .hl
            .device_memory_alloc(card.fd, size, page, contiguous, shared);
        Ok(Self {
            card,
            handle: handle("hlthunk_device_memory_alloc", value)?,
            released: false,
        })
    }

    /// Maps the memory.
    pub(crate) fn map(&self, hint: u64) -> Result<Mapped, Failure> {
        let card = self.card;
        let va = card.hl.device_memory_map(card.fd, self.handle, hint);
        Ok(Mapped::new(card, handle("hlthunk_device_memory_map", va)?))
    }

    /// Frees the memory and returns the library's result. If it fails, drop retries.
    pub(crate) fn free(&mut self) -> c_int {
        let code = self.card.hl.device_memory_free(self.card.fd, self.handle);
        self.released |= code == 0;
        code
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.released {
            // The bench reports memory that could not be freed.
            self.card.hl.device_memory_free(self.card.fd, self.handle);
        }
    }
}

/// A mapping, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapped {
    card: Card,
    /// Its device address.
    pub(crate) va: DeviceVa,
    released: bool,
}

impl Mapped {
    /// Takes ownership of the mapping at an address.
    pub(crate) fn new(card: Card, va: u64) -> Self {
        Self {
            card,
            va: DeviceVa(va),
            released: false,
        }
    }

    /// Unmaps the memory and returns the library's result. If it fails, drop retries.
    pub(crate) fn unmap(&mut self) -> c_int {
        let code = self.card.hl.memory_unmap(self.card.fd, self.va.0);
        self.released |= code == 0;
        code
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.released {
            self.card.hl.memory_unmap(self.card.fd, self.va.0);
        }
    }
}

/// Device memory, allocated and mapped. Field order unmaps before freeing.
#[derive(Debug)]
pub(crate) struct Dram {
    /// The mapping.
    pub(crate) mapping: Mapped,
    /// The memory.
    pub(crate) memory: Memory,
}

impl Dram {
    /// Allocates and maps.
    pub(crate) fn new(card: Card, size: u64) -> Result<Self, Failure> {
        let memory = Memory::new(card, size)?;
        let mapping = memory.map(0)?;
        Ok(Self { mapping, memory })
    }

    /// Returns the device address.
    pub(crate) fn va(&self) -> DeviceVa {
        self.mapping.va
    }

    /// Returns the device address as an integer.
    pub(crate) fn address(&self) -> u64 {
        self.mapping.va.0
    }
}

/// Host memory mapped on the device. Field order unmaps before freeing.
#[derive(Debug)]
pub(crate) struct Host {
    _mapping: Mapped,
    /// The memory.
    pub(crate) memory: RawMapping,
    /// The device address of its first byte.
    pub(crate) va: DeviceVa,
}

impl Host {
    /// Maps zeroed memory.
    pub(crate) fn new(card: Card, len: usize) -> Result<Self, Failure> {
        let memory = RawMapping::anonymous(len, true)?;
        Self::of(card, memory, 0, len as u64, 0, 0)
    }

    /// Maps part of the memory, with a hint and flags.
    pub(crate) fn of(
        card: Card,
        memory: RawMapping,
        from: usize,
        len: u64,
        hint: u64,
        flags: u32,
    ) -> Result<Self, Failure> {
        let start = address_in(&memory, from);
        let va = card.hl.host_memory_map_flags(card.fd, start, hint, len, flags);
        let va = handle("hlthunk_host_memory_map_flags", va)?;
        Ok(Self {
            _mapping: Mapped::new(card, va),
            memory,
            va: DeviceVa(va),
        })
    }

    /// Reads bytes.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes)?;
        Ok(bytes)
    }
}

/// A command buffer, destroyed on drop.
#[derive(Debug)]
pub(crate) struct Cb {
    card: Card,
    /// Its handle.
    pub(crate) handle: u64,
    released: bool,
}

impl Cb {
    /// Creates a buffer that is not mapped on the device.
    pub(crate) fn new(card: Card, size: u32) -> Result<Self, Failure> {
        let mut value = 0;
        let code = card.hl.request_command_buffer(card.fd, size, Some(&mut value));
        ok("hlthunk_request_command_buffer", code)?;
        Ok(Self::of(card, value))
    }

    /// Creates a buffer that is mapped on the device.
    pub(crate) fn mapped(card: Card, size: u32) -> Result<Self, Failure> {
        let mut value = 0;
        let code = card
            .hl
            .request_mapped_command_buffer(card.fd, size, Some(&mut value));
        ok("hlthunk_request_mapped_command_buffer", code)?;
        Ok(Self::of(card, value))
    }

    fn of(card: Card, value: u64) -> Self {
        Self {
            card,
            handle: value,
            released: false,
        }
    }

    /// Maps the buffer in this process.
    pub(crate) fn view(&self, len: usize) -> SysResult<RawMapping> {
        self.card.mmap(self.handle, len)
    }

    /// Returns the device address of a mapped buffer.
    pub(crate) fn va(&self) -> Result<DeviceVa, Failure> {
        let mut va = 0;
        let code = self
            .card
            .hl
            .get_mapped_cb_device_va_by_handle(self.card.fd, self.handle, Some(&mut va));
        ok("hlthunk_get_mapped_cb_device_va_by_handle", code)?;
        Ok(DeviceVa(va))
    }

    /// Destroys the buffer and returns the library's result. Drop does not retry, because the
    /// handle may be reused.
    pub(crate) fn destroy(&mut self) -> c_int {
        self.released = true;
        self.card.hl.destroy_command_buffer(self.card.fd, self.handle)
    }
}

impl Drop for Cb {
    fn drop(&mut self) {
        if !self.released {
            self.card.hl.destroy_command_buffer(self.card.fd, self.handle);
        }
    }
}

/// A program in a command buffer that is mapped on the device and in this process.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// The mapping in this process, unmapped before the buffer is destroyed.
    pub(crate) view: RawMapping,
    /// The buffer.
    pub(crate) cb: Cb,
    /// The buffer's device address.
    pub(crate) va: DeviceVa,
    /// Length of the program in bytes.
    pub(crate) len: u32,
}

impl Buffer {
    /// Stores a program in a new command buffer.
    pub(crate) fn new(card: Card, program: Program) -> Result<Self, Failure> {
        let bytes = program.bytes();
        let len = bytes.len() as u32;
        let cb = Cb::mapped(card, len)?;
        let va = cb.va()?;
        let view = cb.view(bytes.len().max(1).next_multiple_of(PAGE))?;
        view.write(0, &bytes)?;
        Ok(Self { view, cb, va, len })
    }

    /// Returns the chunk that runs the program.
    pub(crate) fn chunk(&self, queue: QueueId) -> HlCsChunk {
        chunk(queue, self.va, self.len)
    }

    /// Submits the program. Returns the sequence number.
    pub(crate) fn submit(&self, queue: QueueId) -> Result<u64, Failure> {
        self.cb.card.submit(&[self.chunk(queue)])
    }
}

/// Blocks a stream until the gate opens: a fence that a monitor releases.
#[derive(Debug)]
pub(crate) struct Gate {
    card: Card,
    opener: Buffer,
    // Kept alive, because the engine reads the program until the gate opens.
    _held: Buffer,
    seq: Option<u64>,
}

impl Gate {
    /// Blocks [`Q`] until [`Gate::open`].
    pub(crate) fn shut(card: Card) -> Result<Self, Failure> {
        Self::shut_with(card, CsFlags::NONE)
    }

    /// As [`Gate::shut`], with flags for the blocked submission.
    pub(crate) fn shut_with(card: Card, flags: CsFlags) -> Result<Self, Failure> {
        Self::shut_by(card, |chunks| card.try_submit(chunks, flags))
    }

    fn shut_by(card: Card, submit: impl FnOnce(&[HlCsChunk]) -> (c_int, CsOut)) -> Result<Self, Failure> {
        let program = Program::new()
            .wait_for(Q, FIRST_USER_MONITOR, FIRST_USER_SOB, 1)?
            .sob(FIRST_USER_SOB, SobUpdate::set(0))?;
        let held = Buffer::new(card, program)?;
        let opener = Program::new().sob(FIRST_USER_SOB, SobUpdate::add_signed(1))?;
        let opener = Buffer::new(card, opener)?;
        let (code, output) = submit(&[held.chunk(Q)]);
        ok("hlthunk_command_submission", code)?;
        Ok(Self {
            card,
            opener,
            _held: held,
            seq: Some(output.seq),
        })
    }

    /// As [`Gate::shut_with`], with a timeout in seconds.
    pub(crate) fn shut_timed(card: Card, flags: CsFlags, seconds: u32) -> Result<Self, Failure> {
        Self::shut_by(card, |chunks| {
            let input = submission(chunks, &[], flags);
            let mut output = CsOut::default();
            let hl = card.hl;
            let code = hl.command_submission_timeout(card.fd, Some(&input), Some(&mut output), seconds);
            (code, output)
        })
    }

    /// Returns the sequence number of the blocked submission.
    pub(crate) fn seq(&self) -> u64 {
        // A closed gate has a submission, and 0 is not a valid sequence number.
        self.seq.unwrap_or(0)
    }

    /// Opens the gate and waits for the blocked submission.
    pub(crate) fn open(mut self) -> Verdict {
        self.release()
    }

    fn release(&mut self) -> Verdict {
        let Some(seq) = self.seq.take() else {
            return Ok(());
        };
        let opened = self.opener.submit(OTHER)?;
        self.card.finish(opened)?;
        self.card.finish(seq)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // A failed case must not leave the stream blocked; the bench checks that.
        let _ = self.release();
    }
}

/// Device memory that is read and written with the DMA engine.
#[derive(Debug)]
pub(crate) struct Window {
    card: Card,
    /// The device memory.
    pub(crate) dram: Dram,
    /// The host memory of the copies.
    pub(crate) host: Host,
}

impl Window {
    /// Allocates one page of device memory and `len` bytes of host memory.
    pub(crate) fn new(card: Card, len: usize) -> Result<Self, Failure> {
        Ok(Self {
            card,
            dram: Dram::new(card, 1)?,
            host: Host::new(card, len)?,
        })
    }

    /// Returns the device address of a byte.
    pub(crate) fn at(&self, at: u64) -> DeviceVa {
        offset(self.dram.va(), at)
    }

    /// Copies bytes to device memory.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Verdict {
        self.host.memory.write(0, bytes)?;
        let copy = Program::new().copy(self.at(at), self.host.va, bytes.len() as u32);
        self.card.run(Q, copy)
    }

    /// Copies bytes from device memory.
    pub(crate) fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Failure> {
        self.host.memory.fill(0, len, 0xdd)?;
        let copy = Program::new().copy(self.host.va, self.at(at), len as u32);
        self.card.run(Q, copy)?;
        self.host.bytes(0, len)
    }
}

/// Copies a C string that the library returned.
pub(crate) fn text_at(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the library returned the address of a NUL-terminated string that nothing modifies.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Copies bytes that the library allocated.
pub(crate) fn bytes_at(memory: *const c_void, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; len];
    // SAFETY: `hlthunk_malloc` returned `len` bytes at this address, and nothing else uses them.
    unsafe { ptr::copy_nonoverlapping(memory.cast::<u8>(), bytes.as_mut_ptr(), len) };
    bytes
}
