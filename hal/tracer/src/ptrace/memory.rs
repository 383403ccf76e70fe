//! Memory of another process, and the memory that an ioctl's argument refers to.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::offset_of;

use gaudi_capture::record::{Memory, Moment};
use gaudi_uapi::cs::{CsChunkFlags, CsFlags, HlCsChunk, HlCsIn};
use gaudi_uapi::ioctl::Parts;
use gaudi_uapi::memory::{HlMemIn, HlMemInMapHost, MemFlags, MemOp};
use gaudi_uapi::{Era, Ioctl};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::recorder::piece;
use gaudi_capture::pointers::{Field, Row, is_vfio, of_vfio};

/// Minimum page size. Reads are split at pages, because the kernel reads each range completely or
/// not at all.
const PAGE: usize = 4096;
/// Maximum length of one piece, and of all pieces of a call, in bytes.
const MAX_PIECE: usize = 1 << 20;
const MAX_CALL: usize = 4 << 20;
/// Maximum number of tracked host memory mappings.
const MAX_KNOWN: usize = 1 << 16;
/// Maximum number of pages in one process_vm_readv(2) (`UIO_MAXIOV`).
const MAX_VECTORS: usize = 1024;

/// Reads up to `length` bytes of a process. Stops at the first byte that cannot be read.
pub(crate) fn read(tid: u32, address: u64, length: usize) -> Vec<u8> {
    let (Ok(pid), Ok(mut at)) = (i32::try_from(tid), usize::try_from(address)) else {
        return Vec::new();
    };
    let length = length.min(MAX_VECTORS * PAGE - PAGE);
    let mut bytes = vec![0; length];
    let mut remote = Vec::new();
    let mut left = length;
    while left > 0 {
        let len = left.min(PAGE - at % PAGE);
        remote.push(RemoteIoVec { base: at, len });
        left -= len;
        match at.checked_add(len) {
            Some(next) => at = next,
            None => break,
        }
    }
    let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(&mut bytes)], &remote);
    bytes.truncate(read.unwrap_or(0));
    bytes
}

/// The number of bytes that the pieces of one call may still use.
#[derive(Debug)]
pub(crate) struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(MAX_CALL)
    }
}

impl Budget {
    fn piece(&mut self, tid: u32, target: (u64, u64), at: Moment, limit: usize) -> Memory {
        let memory = piece(target, at, limit.min(self.0), |address, length| {
            read(tid, address, length)
        });
        self.0 -= memory.bytes.len();
        memory
    }
}

/// Reads the memory that the pointers of `argument` refer to at moment `at`, one level deep.
pub(crate) fn follow(
    table: &[Row],
    tid: u32,
    request: u32,
    base: u64,
    argument: &[u8],
    at: Moment,
    budget: &mut Budget,
) -> Vec<Memory> {
    let vfio;
    let size = Parts::of(request).size;
    let row = table
        .iter()
        .find(|row| row.selector == request as u16 && size >= row.size);
    let pointers: &[_] = match row {
        Some(row) => &row.pointers,
        None if is_vfio(request) => {
            vfio = of_vfio();
            &vfio
        }
        None => &[],
    };
    let pointers = pointers.iter().filter(|pointer| pointer.at == at);
    let targets = pointers.filter_map(|pointer| pointer.target(base, argument));
    targets
        .map(|target| budget.piece(tid, target, at, MAX_PIECE))
        .collect()
}

fn driver_ioctl(request: u32) -> Option<Ioctl> {
    let era = |era: Era| era.ioctl(request);
    era(Era::AccelDrm).or_else(|| era(Era::HlMisc))
}

const fn field(offset: usize, width: usize) -> Field {
    Field { offset, width }
}

/// The addresses of a process's command buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    /// Kernel command buffers, by the mmap(2) offset of their mapping, which is their handle.
    kernel: BTreeMap<u64, (u64, u64)>,
    /// Mapped host memory, by device address: host address and length.
    host: BTreeMap<u64, (u64, u64)>,
}

impl Buffers {
    /// Records the mapping of a file.
    pub(crate) fn mapped(&mut self, offset: u64, address: u64, length: u64) {
        if self.kernel.len() < MAX_KNOWN {
            self.kernel.insert(offset, (address, length));
        }
    }

    /// Records an munmap(2).
    pub(crate) fn unmapped(&mut self, address: u64, length: u64) {
        let end = address.saturating_add(length);
        self.kernel
            .retain(|_, &mut (start, bytes)| start.saturating_add(bytes) <= address || end <= start);
    }

    /// Records a successful ioctl. Tracks mappings of host memory.
    pub(crate) fn completed(&mut self, request: u32, input: &[u8], output: &[u8]) {
        if driver_ioctl(request) != Some(Ioctl::Memory) {
            return;
        }
        let word = |offset, width| field(offset, width).of(input);
        let operation = word(offset_of!(HlMemIn, op), 4);
        let arg = offset_of!(HlMemIn, arg);
        if operation == Some(u64::from(MemOp::MAP.0)) {
            let flags = word(offset_of!(HlMemIn, flags), 4).unwrap_or(0);
            let address = word(arg + offset_of!(HlMemInMapHost, host_virt_addr), 8);
            let size = word(arg + offset_of!(HlMemInMapHost, mem_size), 8);
            let device = field(0, 8).of(output);
            if let (Some(address), Some(size), Some(device)) = (address, size, device) {
                if flags & u64::from(MemFlags::USERPTR.0) != 0 && self.host.len() < MAX_KNOWN {
                    self.host.insert(device, (address, size));
                }
            }
        } else if operation == Some(u64::from(MemOp::UNMAP.0)) {
            if let Some(device) = word(arg, 8) {
                self.host.remove(&device);
            }
        }
    }

    /// Returns the host address of `bytes` bytes at a device address.
    fn of_device(&self, device: u64, bytes: u64) -> Option<u64> {
        let (start, &(address, size)) = self.host.range(..=device).next_back()?;
        let into = device - start;
        (into.checked_add(bytes)? <= size)
            .then(|| address.checked_add(into))
            .flatten()
    }

    /// Reads the memory that the chunks of a submission refer to: the sequence numbers of signals
    /// to wait for, and command buffers of up to `limit` bytes each.
    pub(crate) fn of_chunks(
        &self,
        tid: u32,
        request: u32,
        argument: &[u8],
        arrays: &[Memory],
        limit: Option<u64>,
        budget: &mut Budget,
    ) -> Vec<Memory> {
        if driver_ioctl(request) != Some(Ioctl::Cs) {
            return Vec::new();
        }
        let flags = field(offset_of!(HlCsIn, cs_flags), 4).of(argument).unwrap_or(0) as u32;
        let has = |flag: CsFlags| flags & flag.0 != 0;
        if has(CsFlags::ENGINE_CORE_COMMAND) || has(CsFlags::ENGINES_COMMAND) {
            return Vec::new();
        }
        let waits = has(CsFlags::WAIT) || has(CsFlags::COLLECTIVE_WAIT);
        let mut found = Vec::new();
        for chunk in arrays
            .iter()
            .flat_map(|array| array.bytes.chunks_exact(size_of::<HlCsChunk>()))
        {
            let word = |offset, width| field(offset, width).of(chunk).unwrap_or(0);
            let handle = word(offset_of!(HlCsChunk, cb_handle), 8);
            let size = word(offset_of!(HlCsChunk, cb_size), 4);
            let user =
                word(offset_of!(HlCsChunk, cs_chunk_flags), 4) as u32 & CsChunkFlags::USER_ALLOC_CB.0 != 0;
            let target = if waits {
                // With encapsulated signals the field is a number, not an address.
                let is_list = !has(CsFlags::ENCAP_SIGNALS);
                is_list.then(|| (handle, size.saturating_mul(8)))
            } else if limit.is_none() {
                None
            } else if user {
                self.of_device(handle, size).map(|address| (address, size))
            } else {
                self.kernel
                    .get(&handle)
                    .map(|&(address, length)| (address, size.min(length)))
            };
            let limit = limit.filter(|_| !waits).unwrap_or(MAX_PIECE as u64);
            let limit = usize::try_from(limit).unwrap_or(MAX_PIECE).min(MAX_PIECE);
            if let Some(target) = target.filter(|&(address, length)| address != 0 && length != 0) {
                found.push(budget.piece(tid, target, Moment::Entry, limit));
            }
        }
        found
    }
}

/// Reads the data that the attributes of an RDMA ioctl refer to (`struct ib_uverbs_attr`: id,
/// length, flags, data). Data of up to 8 bytes is stored in the attribute itself.
pub(crate) fn of_attributes(
    tid: u32,
    request: u32,
    arrays: &[Memory],
    at: Moment,
    budget: &mut Budget,
) -> Vec<Memory> {
    const ATTRIBUTE: usize = 16;
    if request as u16 != u16::from_be_bytes([0x1b, 1]) {
        return Vec::new();
    }
    let attributes = arrays.iter().filter(|array| array.at == at);
    let attributes = attributes.flat_map(|array| array.bytes.chunks_exact(ATTRIBUTE));
    let targets: Vec<(u64, u64)> = attributes
        .map(|bytes| {
            (
                field(8, 8).of(bytes).unwrap_or(0),
                field(2, 2).of(bytes).unwrap_or(0),
            )
        })
        .filter(|&(address, length)| address != 0 && length > 8)
        .collect();
    targets
        .into_iter()
        .map(|target| budget.piece(tid, target, at, MAX_PIECE))
        .collect()
}
