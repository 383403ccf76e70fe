//! [`Ledger`]: the objects that a program holds, from the operations that passed through the layer.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use gaudi_seam::{
    AnyAnswer, AnyRequest, CbCreate, CbHandle, CsRequest, CsSeq, DeviceVa, Errno, ErrorKind, ExportRequest,
    MapHost, MemAlloc, MemHandle, MmapRequest,
};
use gaudi_spec::addr::DevicePa;
use gaudi_spec::gaudi2;
use gaudi_uapi::cs::{CsChunkFlags, CsFlags, HlCsChunk};
use gaudi_uapi::limits::{HL_MAX_CB_SIZE, HL_MAX_JOBS_PER_CS, HL_WAIT_MULTI_CS_LIST_MAX_LEN};

use super::held::{HeldAllocation, HeldBuffer, HeldMapping, Leaks, Mapped, PAGE};

/// Destroyed objects that are remembered, to distinguish a second destroy from an unknown handle.
const DESTROYED: usize = 1024;

/// A mistake in an operation, certain or only if the driver rejects it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Misuse {
    /// The driver's errno. `None` if it accepts the operation.
    pub(super) errno: Option<Errno>,
    pub(super) kind: ErrorKind,
    /// Whether it is a mistake even if the driver accepts it.
    pub(super) certain: bool,
    pub(super) sentence: String,
    pub(super) seen: Option<(String, String)>,
    pub(super) help: Option<&'static str>,
}

impl Misuse {
    /// The driver returns `EINVAL`.
    pub(super) fn invalid(sentence: String) -> Self {
        Self {
            errno: Some(Errno::EINVAL),
            kind: ErrorKind::InvalidInput,
            certain: true,
            sentence,
            seen: None,
            help: None,
        }
    }

    /// The driver accepts it.
    fn accepted(sentence: String) -> Self {
        Self {
            errno: None,
            ..Self::invalid(sentence)
        }
    }

    fn in_use(self) -> Self {
        Self {
            kind: ErrorKind::InUse,
            ..self
        }
    }

    pub(super) fn if_refused(self) -> Self {
        Self {
            certain: false,
            ..self
        }
    }

    pub(super) fn saw(self, seen: impl fmt::Display, wanted: impl fmt::Display) -> Self {
        Self {
            seen: Some((seen.to_string(), wanted.to_string())),
            ..self
        }
    }

    pub(super) fn helped_by(self, help: &'static str) -> Self {
        Self {
            help: Some(help),
            ..self
        }
    }
}

/// The kind of a destroyed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectKind {
    Allocation,
    Mapping,
    Buffer,
}

/// The records of the layer.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    allocations: BTreeMap<u64, Allocation>,
    mappings: BTreeMap<u64, HeldMapping>,
    buffers: BTreeMap<u64, HeldBuffer>,
    /// The elements of each timestamps buffer.
    pub(super) timestamps: BTreeMap<u64, u32>,
    destroyed: VecDeque<(ObjectKind, u64)>,
    submitted: Submitted,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Allocation {
    held: HeldAllocation,
    /// Bytes, rounded up to the page if it is known.
    whole: u64,
}

/// The possible sequence numbers: a submission uses at most one, also if it is rejected.
#[derive(Debug, Default)]
struct Submitted {
    last: u64,
    started: u64,
    finished: u64,
    finished_at_last: u64,
}

/// An object whose release has begun. It returns to the ledger if the release fails.
#[derive(Debug)]
pub(super) enum Released {
    Allocation(Allocation),
    Mapping(HeldMapping),
    Buffer(HeldBuffer),
}

impl Ledger {
    /// The mistake in an operation that is about to be performed.
    pub(super) fn check(&self, request: AnyRequest<'_>) -> Option<Misuse> {
        match request {
            AnyRequest::CbCreate(request) => Self::check_cb_create(request),
            AnyRequest::CbDestroy(request) => self.check_cb_destroy(request.0),
            AnyRequest::CbInfo(request) => self.check_cb(request.handle, request.device_va),
            AnyRequest::Submit(request) => self.check_submit(request),
            AnyRequest::WaitCs(request) => self.check_wait(&[request.seq]),
            AnyRequest::WaitMultiCs(request) => self.check_wait(request.seqs),
            AnyRequest::WaitInterrupt(request) => self.check_wait_interrupt(request),
            AnyRequest::RegisterTimestamp(request) => self.check_register_timestamp(request),
            AnyRequest::MemAlloc(request) => Self::check_alloc(request),
            AnyRequest::MemFree(request) => self.check_free(request.0),
            AnyRequest::MemMapDevice(request) => self.check_handle(request.handle),
            AnyRequest::MemMapHost(request) => self.check_map_host(request),
            AnyRequest::MemUnmap(request) => self.check_unmap(request.0),
            AnyRequest::TsAlloc(request) => Self::check_ts_alloc(request.0),
            AnyRequest::ExportDmabuf(request) => self.check_export(request),
            AnyRequest::Mmap(request) => self.check_mmap(request),
            _ => None,
        }
    }

    /// Begins an operation. An object that it releases leaves the ledger now: the driver may reuse
    /// its handle before the operation returns.
    pub(super) fn begin(&mut self, request: AnyRequest<'_>) -> Option<Released> {
        match request {
            AnyRequest::CbDestroy(request) => self.cb_destroy(request.0).map(Released::Buffer),
            AnyRequest::MemFree(request) => self.free(request.0).map(Released::Allocation),
            AnyRequest::MemUnmap(request) => self.unmap(request.0).map(Released::Mapping),
            AnyRequest::Submit(_) => {
                self.submitted.started += 1;
                None
            }
            _ => None,
        }
    }

    /// Ends an operation, with its answer unless it failed.
    pub(super) fn end(
        &mut self,
        request: AnyRequest<'_>,
        released: Option<Released>,
        answer: Option<AnyAnswer<'_>>,
    ) {
        if let AnyRequest::Submit(request) = request {
            return self.submit_ends(request, answer);
        }
        let Some(answer) = answer else {
            return self.restore(released);
        };
        match (request, answer) {
            (AnyRequest::CbCreate(request), AnyAnswer::CbHandle(handle)) => self.cb_create(request, *handle),
            (AnyRequest::CbInfo(request), AnyAnswer::CbInfo(info)) => {
                if let Some(va) = info.device_va {
                    self.cb_va(request.handle, va);
                }
            }
            (AnyRequest::MemAlloc(request), AnyAnswer::MemHandle(handle)) => self.alloc(request, *handle),
            (AnyRequest::MemMapDevice(request), AnyAnswer::DeviceVa(address)) => {
                self.map_device(request.handle, *address);
            }
            (AnyRequest::MemMapHost(request), AnyAnswer::DeviceVa(address)) => {
                self.map(*address, request.size, Mapped::Host(request.address));
            }
            (AnyRequest::RegisterDmabuf(request), AnyAnswer::DeviceVa(address)) => {
                self.map(*address, request.len, Mapped::Import);
            }
            (AnyRequest::TsAlloc(request), AnyAnswer::TsHandle(handle)) => self.ts_alloc(request.0, *handle),
            (AnyRequest::ExportDmabuf(request), _) => self.export(request.address),
            _ => {}
        }
    }

    /// Returns an object whose release failed.
    fn restore(&mut self, released: Option<Released>) {
        match released {
            Some(Released::Allocation(allocation)) => {
                let handle = allocation.held.handle.0;
                self.created(ObjectKind::Allocation, handle);
                self.allocations.insert(handle, allocation);
            }
            Some(Released::Mapping(mapping)) => {
                self.created(ObjectKind::Mapping, mapping.address.0);
                self.count(&mapping, |mappings| mappings.saturating_add(1));
                self.mappings.insert(mapping.address.0, mapping);
            }
            Some(Released::Buffer(buffer)) => {
                self.created(ObjectKind::Buffer, buffer.handle.0);
                self.buffers.insert(buffer.handle.0, buffer);
            }
            None => {}
        }
    }

    fn was_destroyed(&self, kind: ObjectKind, name: u64) -> bool {
        self.destroyed.contains(&(kind, name))
    }

    fn destroyed(&mut self, kind: ObjectKind, name: u64) {
        if self.destroyed.len() == DESTROYED {
            self.destroyed.pop_front();
        }
        self.destroyed.push_back((kind, name));
    }

    fn created(&mut self, kind: ObjectKind, name: u64) {
        self.destroyed.retain(|old| *old != (kind, name));
    }

    pub(super) fn leaks(&self) -> Leaks {
        Leaks {
            allocations: self
                .allocations
                .values()
                .map(|allocation| allocation.held)
                .collect(),
            mappings: self.mappings.values().copied().collect(),
            buffers: self.buffers.values().copied().collect(),
        }
    }

    // Device memory.

    fn check_alloc(request: &MemAlloc) -> Option<Misuse> {
        (request.size == 0).then(|| Misuse::invalid("device memory of 0 bytes is asked for".to_owned()))
    }

    fn alloc(&mut self, request: &MemAlloc, handle: MemHandle) {
        self.created(ObjectKind::Allocation, handle.0);
        let page = match request.page_size {
            0 => gaudi2::DRAM_PAGE,
            page => page.max(gaudi2::DRAM_PAGE),
        };
        let whole = request
            .size
            .checked_next_multiple_of(page)
            .unwrap_or(request.size);
        let held = HeldAllocation {
            handle,
            size: request.size,
            mappings: 0,
        };
        self.allocations.insert(handle.0, Allocation { held, whole });
    }

    /// Checks a handle that the program uses.
    fn check_handle(&self, handle: MemHandle) -> Option<Misuse> {
        match self.allocations.get(&handle.0) {
            Some(_) => None,
            None if self.was_destroyed(ObjectKind::Allocation, handle.0) => Some(Misuse::invalid(format!(
                "device memory {} was freed already",
                handle.0
            ))),
            // Shared memory of another context has a handle that this layer did not see.
            None => {
                Some(Misuse::invalid(format!("handle {} was never given out here", handle.0)).if_refused())
            }
        }
    }

    fn check_free(&self, handle: MemHandle) -> Option<Misuse> {
        let mapped = self
            .allocations
            .get(&handle.0)
            .is_some_and(|allocation| allocation.held.mappings > 0);
        let mut mappings = self.mappings.values();
        let mapping = mappings.find(|mapping| mapped && mapping.of == Mapped::Device(handle));
        match mapping {
            Some(mapping) => Some(
                Misuse::invalid(format!(
                    "device memory {} is freed while it is mapped at {}",
                    handle.0, mapping.address
                ))
                .in_use()
                .helped_by("unmap it first"),
            ),
            None => self.check_handle(handle),
        }
    }

    fn free(&mut self, handle: MemHandle) -> Option<Allocation> {
        let allocation = self.allocations.remove(&handle.0)?;
        self.destroyed(ObjectKind::Allocation, handle.0);
        Some(allocation)
    }

    // Mappings.

    fn map_device(&mut self, handle: MemHandle, address: DeviceVa) {
        let size = match self.allocations.get_mut(&handle.0) {
            Some(allocation) => {
                allocation.held.mappings += 1;
                allocation.whole
            }
            None => 0,
        };
        self.map(address, size, Mapped::Device(handle));
    }

    fn map(&mut self, address: DeviceVa, size: u64, of: Mapped) {
        self.created(ObjectKind::Mapping, address.0);
        let mapping = HeldMapping {
            address,
            size,
            of,
            exports: 0,
        };
        self.mappings.insert(address.0, mapping);
    }

    fn check_map_host(&self, request: &MapHost) -> Option<Misuse> {
        let (start, size) = (request.address, request.size);
        let Some(end) = start.checked_add(size).filter(|_| size > 0) else {
            return Some(
                Misuse::invalid("host memory that is mapped needs bytes and must not wrap round".to_owned())
                    .saw(format!("{start} + {size}"), "at least 1 byte"),
            );
        };
        let overlaps = |mapping: &&HeldMapping| match mapping.of {
            Mapped::Host(other) => other < end && start.0 < other.0.saturating_add(mapping.size),
            Mapped::Device(_) | Mapped::Import => false,
        };
        let other = self.mappings.values().find(overlaps)?;
        let Mapped::Host(address) = other.of else {
            return None;
        };
        Some(
            Misuse::accepted(format!(
                "host memory {start} + {size} overlaps {address} + {}, which is mapped at {}: its pages are pinned twice",
                other.size, other.address
            ))
            .helped_by("map it once and share the mapping"),
        )
    }

    fn check_unmap(&self, address: DeviceVa) -> Option<Misuse> {
        match self.mappings.get(&address.0) {
            // The layer does not see when exports end, here or in another process.
            Some(mapping) if mapping.exports > 0 => Some(
                Misuse::invalid(format!(
                    "{address} is unmapped while a dma-buf of it is alive ({} were made)",
                    mapping.exports
                ))
                .in_use()
                .if_refused()
                .helped_by("deregister its memory regions and close its dma-bufs, in every process, first"),
            ),
            Some(_) => None,
            None if self.was_destroyed(ObjectKind::Mapping, address.0) => {
                Some(Misuse::invalid(format!("{address} was unmapped already")))
            }
            None => Some(match self.mapping_around(address, 1) {
                Some(mapping) => Misuse::invalid(format!(
                    "{address} lies inside the mapping at {}, which is {} bytes long",
                    mapping.address, mapping.size
                ))
                .helped_by("pass the address that MAP returned"),
                None => Misuse::invalid(format!("no mapping made here starts at {address}")).if_refused(),
            }),
        }
    }

    fn unmap(&mut self, address: DeviceVa) -> Option<HeldMapping> {
        let mapping = self.mappings.remove(&address.0)?;
        self.destroyed(ObjectKind::Mapping, address.0);
        self.count(&mapping, |mappings| mappings.saturating_sub(1));
        Some(mapping)
    }

    fn count(&mut self, mapping: &HeldMapping, change: impl FnOnce(u32) -> u32) {
        if let Mapped::Device(handle) = mapping.of {
            if let Some(allocation) = self.allocations.get_mut(&handle.0) {
                allocation.held.mappings = change(allocation.held.mappings);
            }
        }
    }

    /// The mapping that contains all of these bytes.
    fn mapping_around(&self, address: DeviceVa, len: u64) -> Option<&HeldMapping> {
        let (_, mapping) = self.mappings.range(..=address.0).next_back()?;
        let end = address.0.checked_sub(mapping.address.0)?.checked_add(len)?;
        (end <= mapping.size).then_some(mapping)
    }

    fn check_export(&self, request: &ExportRequest) -> Option<Misuse> {
        let address = request.address;
        let Some(mapping) = self.mappings.get(&address.0) else {
            return Some(match self.mapping_around(address, 1) {
                Some(mapping) => Misuse::invalid(format!(
                    "{address} lies inside the mapping at {}: an export begins at the mapping's start",
                    mapping.address
                ))
                .helped_by("pass the mapping's start, and the distance as the offset"),
                // The first Gaudi takes a physical address.
                None => Misuse::invalid(format!("no mapping made here starts at {address}")).if_refused(),
            });
        };
        let (what, help) = match mapping.of {
            Mapped::Device(_) => (String::new(), ""),
            Mapped::Host(host) => (
                format!("host memory {host}"),
                "export host memory from a memfd through udmabuf",
            ),
            Mapped::Import => ("an imported dma-buf".to_owned(), "pass the dma-buf itself on"),
        };
        if !what.is_empty() {
            return Some(
                Misuse::invalid(format!(
                    "{address} maps {what}, and only device memory is exported"
                ))
                .helped_by(help),
            );
        }
        let aligned = |bytes: u64| bytes % PAGE == 0;
        if request.size == 0 || !aligned(request.size) || !aligned(request.offset) {
            return Some(
                Misuse::invalid(
                    "an export has whole pages, and the driver does not say so when it refuses".to_owned(),
                )
                .saw(
                    format!("{} bytes at offset {}", request.size, request.offset),
                    "multiples of 4096, at least one",
                ),
            );
        }
        let inside = request
            .offset
            .checked_add(request.size)
            .is_some_and(|end| end <= mapping.size);
        (!inside).then(|| {
            Misuse::invalid(format!("the export leaves the mapping at {address}")).saw(
                format!("offset {} + {}", request.offset, request.size),
                format!("at most {}", mapping.size),
            )
        })
    }

    fn export(&mut self, address: DeviceVa) {
        if let Some(mapping) = self.mappings.get_mut(&address.0) {
            mapping.exports = mapping.exports.saturating_add(1);
        }
    }

    // Command buffers.

    fn check_cb_create(request: &CbCreate) -> Option<Misuse> {
        (request.size > HL_MAX_CB_SIZE).then(|| {
            Misuse::invalid("a command buffer cannot be that large".to_owned())
                .saw(request.size, format!("at most {HL_MAX_CB_SIZE}"))
        })
    }

    fn cb_create(&mut self, request: &CbCreate, handle: CbHandle) {
        self.created(ObjectKind::Buffer, handle.0);
        let buffer = HeldBuffer {
            handle,
            size: request.size,
            map_to_device: request.map_to_device,
            device_va: None,
        };
        self.buffers.insert(handle.0, buffer);
    }

    pub(super) fn check_cb(&self, handle: CbHandle, device_va: bool) -> Option<Misuse> {
        match self.buffers.get(&handle.0) {
            Some(buffer) if device_va && !buffer.map_to_device => Some(
                Misuse::invalid(format!(
                    "the device does not see command buffer {:#x}: it was made without HL_CB_FLAGS_MAP",
                    handle.0
                ))
                .helped_by("create it with HL_CB_FLAGS_MAP"),
            ),
            Some(_) => None,
            // It lives, and answers queries, while it is mapped or in use
            // (memory_mgr.c:hl_mmap_mem_buf_put_handle).
            None => self.check_cb_destroy(handle).map(Misuse::if_refused),
        }
    }

    fn check_cb_destroy(&self, handle: CbHandle) -> Option<Misuse> {
        if self.buffers.contains_key(&handle.0) {
            return None;
        }
        Some(if self.was_destroyed(ObjectKind::Buffer, handle.0) {
            Misuse::invalid(format!("command buffer {:#x} was destroyed already", handle.0))
        } else {
            Misuse::invalid(format!("no command buffer {:#x} was made here", handle.0)).if_refused()
        })
    }

    /// Allocated bytes of a command buffer.
    pub(super) fn whole_buffer(&self, handle: CbHandle) -> Option<u64> {
        self.buffers.get(&handle.0).map(HeldBuffer::whole)
    }

    pub(super) fn cb_va(&mut self, handle: CbHandle, va: DeviceVa) {
        if let Some(buffer) = self.buffers.get_mut(&handle.0) {
            buffer.device_va = Some(va);
        }
    }

    /// Command buffers whose device address was not queried.
    pub(super) fn unplaced(&self) -> Vec<CbHandle> {
        let unplaced = |buffer: &&HeldBuffer| buffer.map_to_device && buffer.device_va.is_none();
        self.buffers
            .values()
            .filter(unplaced)
            .map(|buffer| buffer.handle)
            .collect()
    }

    fn cb_destroy(&mut self, handle: CbHandle) -> Option<HeldBuffer> {
        let buffer = self.buffers.remove(&handle.0)?;
        self.destroyed(ObjectKind::Buffer, handle.0);
        Some(buffer)
    }

    fn check_mmap(&self, request: &MmapRequest) -> Option<Misuse> {
        if self.was_destroyed(ObjectKind::Buffer, request.offset) {
            return self.check_cb(CbHandle(request.offset), false);
        }
        let buffer = self.buffers.get(&request.offset)?;
        (request.len as u64 != buffer.whole()).then(|| {
            Misuse::invalid(format!(
                "command buffer {:#x} is mapped whole or not at all",
                request.offset
            ))
            .saw(request.len, buffer.whole())
        })
    }

    // Submissions.

    /// Whether a chunk names memory that no known mapping covers: a reason to query the addresses
    /// of command buffers.
    pub(super) fn has_stray_chunk(&self, request: &CsRequest<'_>) -> bool {
        request
            .execute
            .iter()
            .chain(request.restore)
            .any(|chunk| !self.covers(chunk))
    }

    fn covers(&self, chunk: &HlCsChunk) -> bool {
        if !chunk.cs_chunk_flags.contains(CsChunkFlags::USER_ALLOC_CB) {
            return true;
        }
        let (va, len) = (DeviceVa(chunk.cb_handle), u64::from(chunk.cb_size));
        let in_buffer = |buffer: &HeldBuffer| {
            let distance = buffer.device_va.and_then(|start| va.offset_from(start));
            distance
                .and_then(|distance| distance.checked_add(len))
                .is_some_and(|end| end <= buffer.whole())
        };
        self.mapping_around(va, len).is_some()
            || unmapped_memory(va, len)
            || self.buffers.values().any(in_buffer)
    }

    fn check_submit(&self, request: &CsRequest<'_>) -> Option<Misuse> {
        let kinds = [
            (CsFlags::SIGNAL, "SIGNAL"),
            (CsFlags::WAIT, "WAIT"),
            (CsFlags::COLLECTIVE_WAIT, "COLLECTIVE_WAIT"),
            (CsFlags::RESERVE_SIGNALS_ONLY, "RESERVE_SIGNALS_ONLY"),
            (CsFlags::UNRESERVE_SIGNALS_ONLY, "UNRESERVE_SIGNALS_ONLY"),
            (CsFlags::ENGINE_CORE_COMMAND, "ENGINE_CORE_COMMAND"),
            (CsFlags::ENGINES_COMMAND, "ENGINES_COMMAND"),
            (CsFlags::FLUSH_PCI_HBW_WRITES, "FLUSH_PCI_HBW_WRITES"),
        ];
        let mut asked = kinds
            .iter()
            .filter(|(flag, _)| request.cs_flags().contains(*flag))
            .map(|(_, name)| *name);
        match (asked.next(), asked.next()) {
            (Some(one), Some(other)) => {
                return Some(Misuse::invalid(format!(
                    "a submission is {one} or {other}, not both"
                )));
            }
            // Commands without jobs, or with chunks of another form.
            (Some(_), None) => return Self::check_engines(request.argument),
            (None, _) => {}
        }
        if request.execute.is_empty() || request.execute.len() > HL_MAX_JOBS_PER_CS as usize {
            return Some(
                Misuse::invalid("a submission has 1 to 512 chunks".to_owned())
                    .saw(request.execute.len(), "1 to 512"),
            );
        }
        let chunks = request.execute.iter().chain(request.restore);
        for (index, chunk) in chunks.enumerate() {
            if !chunk.cs_chunk_flags.contains(CsChunkFlags::USER_ALLOC_CB) {
                let destroyed = self.was_destroyed(ObjectKind::Buffer, chunk.cb_handle);
                if destroyed {
                    return self.check_cb(CbHandle(chunk.cb_handle), false);
                }
                continue;
            }
            if !self.covers(chunk) {
                return Some(
                    Misuse::accepted(format!(
                        "chunk {index} has its {} bytes of commands at {}, which no mapping made here covers: the device will fault on it",
                        chunk.cb_size,
                        DeviceVa(chunk.cb_handle)
                    ))
                    .helped_by("keep the command buffer mapped until its submission has completed"),
                );
            }
        }
        None
    }

    fn submit_ends(&mut self, request: &CsRequest<'_>, answer: Option<AnyAnswer<'_>>) {
        let submitted = &mut self.submitted;
        submitted.finished += 1;
        if let Some(AnyAnswer::Cs(answer)) = answer {
            if request.is_numbered() && answer.seq.0 > submitted.last {
                submitted.last = answer.seq.0;
                submitted.finished_at_last = submitted.finished;
            }
        }
    }

    fn check_wait(&self, seqs: &[CsSeq]) -> Option<Misuse> {
        if seqs.len() > HL_WAIT_MULTI_CS_LIST_MAX_LEN {
            return Some(
                Misuse::invalid("a wait is for 32 submissions at most".to_owned())
                    .saw(seqs.len(), "at most 32"),
            );
        }
        let highest = self.submitted.highest();
        let unknown = seqs.iter().find(|seq| seq.0 > highest)?;
        Some(
            Misuse::invalid(format!("no submission has the number {} yet", unknown.0))
                .saw(unknown.0, format!("at most {highest}")),
        )
    }
}

impl Submitted {
    /// The highest number that can be in use: submissions in progress, and those rejected since,
    /// may have numbers above the last one returned.
    fn highest(&self) -> u64 {
        self.last.saturating_add(self.started - self.finished_at_last)
    }
}

/// Whether the chip accesses this range without a mapping (gaudi2.c:gaudi2_validate_cb_address).
fn unmapped_memory(va: DeviceVa, len: u64) -> bool {
    let inside = |base: DevicePa, size: u64| {
        va.0.checked_sub(base.0)
            .and_then(|distance| distance.checked_add(len))
            .is_some_and(|end| end <= size)
    };
    inside(gaudi2::SRAM_BASE, gaudi2::SRAM_SIZE)
        || inside(gaudi2::ASIC.dram_user_base(), gaudi2::ASIC.dram_user_size())
}
