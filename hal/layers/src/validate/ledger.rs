//! [`Ledger`]: the objects that a program holds, from the operations that passed through the layer.

use std::collections::{BTreeMap, VecDeque};

use gaudi_seam::rules::{self, When};
use gaudi_seam::{
    AnyAnswer, AnyRequest, CbHandle, CqCounter, CsRequest, CsSeq, DeviceVa, ExportRequest, InterruptWord,
    MapHost, MemAlloc, MemHandle, MmapRequest, Rule, TimestampRegistration,
};
use gaudi_spec::{ASICS, Asic};
use gaudi_sys::PAGE;
use gaudi_uapi::cs::{CsChunkFlags, HlCsChunk};
use gaudi_uapi::info::{HlInfoHwIpInfo, InfoOp};
use zerocopy::FromBytes as _;

use super::held::{HeldAllocation, HeldBuffer, HeldMapping, Leaks, Mapped};

/// Destroyed objects that are remembered, to distinguish a second destroy from an unknown handle.
const DESTROYED: usize = 1024;

/// A mistake in an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Misuse {
    /// The driver refuses it by a rule. The value seen; and whether it is a mistake even if the
    /// driver accepts it.
    Refused(&'static Rule, String, bool),
    /// The driver accepts it: what happens, and what to do instead.
    Accepted(String, &'static str),
}

impl Misuse {
    fn certain(rule: &'static Rule, seen: impl Into<String>) -> Option<Self> {
        Some(Self::Refused(rule, seen.into(), true))
    }

    fn if_refused(rule: &'static Rule, seen: impl Into<String>) -> Option<Self> {
        Some(Self::Refused(rule, seen.into(), false))
    }
}

/// The objects of a kind by handle or address.
#[derive(Debug)]
struct Book<T> {
    live: BTreeMap<u64, T>,
    destroyed: VecDeque<u64>,
}

impl<T> Default for Book<T> {
    fn default() -> Self {
        Self {
            live: BTreeMap::new(),
            destroyed: VecDeque::new(),
        }
    }
}

impl<T> Book<T> {
    fn get(&self, name: u64) -> Option<&T> {
        self.live.get(&name)
    }

    fn insert(&mut self, name: u64, object: T) {
        self.destroyed.retain(|old| *old != name);
        self.live.insert(name, object);
    }

    fn remove(&mut self, name: u64) -> Option<T> {
        let object = self.live.remove(&name)?;
        if self.destroyed.len() == DESTROYED {
            self.destroyed.pop_front();
        }
        self.destroyed.push_back(name);
        Some(object)
    }

    /// The misuse of an object that is not live: certain if it was destroyed here.
    fn missing(&self, name: u64, shown: String, rule: &'static Rule) -> Option<Misuse> {
        if self.live.contains_key(&name) {
            None
        } else if self.destroyed.contains(&name) {
            Misuse::certain(rule, format!("{shown}, which was released already"))
        } else {
            Misuse::if_refused(rule, format!("{shown}, which was not made here"))
        }
    }
}

/// The records of the layer.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The chips that it may be: all of the table until the program asks for the device's id. A
    /// request is a mistake if each of them refuses it.
    chips: Vec<&'static Asic>,
    allocations: Book<HeldAllocation>,
    mappings: Book<HeldMapping>,
    buffers: Book<HeldBuffer>,
    /// The elements of each timestamps buffer, which lives until the device is closed.
    timestamps: BTreeMap<u64, u32>,
    submitted: Submitted,
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
    Allocation(HeldAllocation),
    Mapping(HeldMapping),
    Buffer(HeldBuffer),
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            chips: ASICS.to_vec(),
            allocations: Book::default(),
            mappings: Book::default(),
            buffers: Book::default(),
            timestamps: BTreeMap::new(),
            submitted: Submitted::default(),
        }
    }
}

impl Ledger {
    /// The mistake in an operation that is about to be performed.
    pub(super) fn check(&self, request: AnyRequest<'_>) -> Option<Misuse> {
        let arguments = |when| {
            let mut broken = self.chips.iter().map(|asic| Rule::broken_by(request, asic, when));
            let (rule, seen) = broken.next()??;
            let refused = Misuse::Refused(rule, seen, true);
            broken.all(|other| other.is_some()).then_some(refused)
        };
        let early = arguments(When::Early);
        early
            .or_else(|| self.check_objects(request))
            .or_else(|| arguments(When::Late))
    }

    fn check_objects(&self, request: AnyRequest<'_>) -> Option<Misuse> {
        match request {
            AnyRequest::CbDestroy(request) => {
                let misuse = self.check_buffer(request.0, &rules::buffer::UNKNOWN)?;
                match misuse {
                    Misuse::Refused(_, seen, true) => Misuse::certain(&rules::buffer::DESTROYED, seen),
                    unknown => Some(unknown),
                }
            }
            AnyRequest::CbInfo(request) => match self.buffers.get(request.handle.0) {
                Some(buffer) if request.device_va && !buffer.map_to_device => {
                    Misuse::certain(&rules::buffer::NOT_MAPPED, format!("{:#x}", buffer.handle.0))
                }
                _ => self.check_held(request.handle, &rules::buffer::UNKNOWN),
            },
            AnyRequest::Submit(request) => self.check_submit(request),
            AnyRequest::WaitCs(request) => self.check_wait(&[request.seq]),
            AnyRequest::WaitMultiCs(request) => self.check_wait(request.seqs),
            AnyRequest::WaitInterrupt(request) => match request.word {
                InterruptWord::User(_) => None,
                InterruptWord::KernelCq(counter) => {
                    let rules = [&rules::wait::UNKNOWN_COUNTERS, &rules::wait::COUNTER_INDEX];
                    self.check_counter(counter, rules)
                }
            },
            AnyRequest::RegisterTimestamp(request) => self.check_timestamp(request),
            AnyRequest::MemFree(request) => self.check_free(request.0),
            AnyRequest::MemMapDevice(request) => self.check_allocation(request.handle, &rules::map::UNKNOWN),
            AnyRequest::MemMapHost(request) => self.check_map_host(request),
            AnyRequest::MemUnmap(request) => self.check_unmap(request.0),
            AnyRequest::ExportDmabuf(request) => self.check_export(request),
            AnyRequest::Mmap(request) => self.check_mmap(request),
            _ => None,
        }
    }

    /// Begins an operation. An object that it releases leaves the ledger now: the driver may reuse
    /// its handle before the operation returns.
    pub(super) fn begin(&mut self, request: AnyRequest<'_>) -> Option<Released> {
        match request {
            AnyRequest::CbDestroy(request) => self.buffers.remove(request.0.0).map(Released::Buffer),
            AnyRequest::MemFree(request) => self.allocations.remove(request.0.0).map(Released::Allocation),
            AnyRequest::MemUnmap(request) => {
                let mapping = self.mappings.remove(request.0.0)?;
                self.count(&mapping, |mappings| mappings.saturating_sub(1));
                Some(Released::Mapping(mapping))
            }
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
            return self.submitted.end(request, answer);
        }
        let Some(answer) = answer else {
            return self.restore(released);
        };
        match (request, answer) {
            (AnyRequest::CbCreate(request), AnyAnswer::CbHandle(handle)) => {
                let buffer = HeldBuffer {
                    handle: *handle,
                    size: request.size,
                    map_to_device: request.map_to_device,
                    device_va: None,
                };
                self.buffers.insert(handle.0, buffer);
            }
            (AnyRequest::Info(info), _) if info.request.op == InfoOp::HW_IP_INFO => {
                if let Ok((found, _)) = HlInfoHwIpInfo::read_from_prefix(info.answer) {
                    self.chips
                        .retain(|asic| u32::from(asic.device) == found.device_id);
                }
            }
            (AnyRequest::CbInfo(request), AnyAnswer::CbInfo(info)) => {
                if let Some(va) = info.device_va {
                    self.cb_va(request.handle, va);
                }
            }
            (AnyRequest::MemAlloc(request), AnyAnswer::MemHandle(handle)) => {
                let held = HeldAllocation {
                    handle: *handle,
                    size: request.size,
                    whole: self.whole(request),
                    mappings: 0,
                };
                self.allocations.insert(handle.0, held);
            }
            (AnyRequest::MemMapDevice(request), AnyAnswer::DeviceVa(address)) => {
                let allocation = self.allocations.get(request.handle.0);
                let whole = allocation.map_or(0, |allocation| allocation.whole);
                self.map(*address, whole, Mapped::Device(request.handle));
            }
            (AnyRequest::MemMapHost(request), AnyAnswer::DeviceVa(address)) => {
                self.map(*address, request.size, Mapped::Host(request.address));
            }
            (AnyRequest::RegisterDmabuf(request), AnyAnswer::DeviceVa(address)) => {
                self.map(*address, request.len, Mapped::Import);
            }
            (AnyRequest::TsAlloc(request), AnyAnswer::TsHandle(handle)) => {
                self.timestamps.insert(handle.0, request.0);
            }
            (AnyRequest::ExportDmabuf(request), _) => {
                if let Some(mapping) = self.mappings.live.get_mut(&request.address.0) {
                    mapping.exports = mapping.exports.saturating_add(1);
                }
            }
            _ => {}
        }
    }

    /// Returns an object whose release failed.
    fn restore(&mut self, released: Option<Released>) {
        match released {
            Some(Released::Allocation(allocation)) => {
                self.allocations.insert(allocation.handle.0, allocation);
            }
            Some(Released::Mapping(mapping)) => {
                self.count(&mapping, |mappings| mappings.saturating_add(1));
                self.mappings.insert(mapping.address.0, mapping);
            }
            Some(Released::Buffer(buffer)) => self.buffers.insert(buffer.handle.0, buffer),
            None => {}
        }
    }

    pub(super) fn leaks(&self) -> Leaks {
        Leaks {
            allocations: self.allocations.live.values().copied().collect(),
            mappings: self.mappings.live.values().copied().collect(),
            buffers: self.buffers.live.values().copied().collect(),
        }
    }

    // Device memory and mappings.

    /// Bytes of an allocation, rounded up to the page if it is known.
    fn whole(&self, request: &MemAlloc) -> u64 {
        let pages = self.chips.iter().map(|asic| asic.dram_page);
        let page = pages.max().map_or(1, |page| page.max(request.page_size));
        // A size that wraps was refused.
        request
            .size
            .checked_next_multiple_of(page)
            .unwrap_or(request.size)
    }

    /// Checks a handle that the program uses. Shared memory of another context has a handle that
    /// this layer did not see.
    fn check_allocation(&self, handle: MemHandle, rule: &'static Rule) -> Option<Misuse> {
        self.allocations.missing(handle.0, handle.0.to_string(), rule)
    }

    fn check_free(&self, handle: MemHandle) -> Option<Misuse> {
        let mapped = self.allocations.get(handle.0).filter(|held| held.mappings > 0);
        let mut mappings = self.mappings.live.values();
        match mapped.and_then(|_| mappings.find(|mapping| mapping.of == Mapped::Device(handle))) {
            Some(mapping) => Misuse::certain(
                &rules::map::FREE_MAPPED,
                format!("{}, mapped at {}", handle.0, mapping.address),
            ),
            None => self.check_allocation(handle, &rules::map::FREE_UNKNOWN),
        }
    }

    fn map(&mut self, address: DeviceVa, size: u64, of: Mapped) {
        let mapping = HeldMapping {
            address,
            size,
            of,
            exports: 0,
        };
        self.count(&mapping, |mappings| mappings.saturating_add(1));
        self.mappings.insert(address.0, mapping);
    }

    fn check_map_host(&self, request: &MapHost) -> Option<Misuse> {
        let (start, size) = (request.address, request.size);
        let end = start.0.saturating_add(size);
        let overlap = self.mappings.live.values().find_map(|mapping| match mapping.of {
            Mapped::Host(other) if other.0 < end && start.0 < other.0.saturating_add(mapping.size) => {
                Some((other, mapping))
            }
            _ => None,
        });
        let (other, mapping) = overlap?;
        Some(Misuse::Accepted(
            format!(
                "host memory {start} + {size} overlaps {other} + {}, which is mapped at {}: its pages are pinned twice",
                mapping.size, mapping.address
            ),
            "map it once and share the mapping",
        ))
    }

    /// An address at which no mapping starts.
    fn check_mapping(&self, address: DeviceVa, rule: &'static Rule) -> Option<Misuse> {
        let missing = self.mappings.missing(address.0, address.to_string(), rule)?;
        match (missing, self.mapping_around(address, 1)) {
            (Misuse::Refused(_, _, false), Some(mapping)) => {
                let (start, size) = (mapping.address, mapping.size);
                Misuse::certain(
                    rule,
                    format!("{address}, inside the mapping at {start} of {size} bytes"),
                )
            }
            (missing, _) => Some(missing),
        }
    }

    fn check_unmap(&self, address: DeviceVa) -> Option<Misuse> {
        match self.mappings.get(address.0) {
            // The layer does not see when exports end, here or in another process.
            Some(HeldMapping { exports, .. }) if *exports > 0 => Misuse::if_refused(
                &rules::map::UNMAP_EXPORTED,
                format!("{address}, exported {exports} times"),
            ),
            _ => self.check_mapping(address, &rules::map::UNMAP_UNKNOWN),
        }
    }

    fn count(&mut self, mapping: &HeldMapping, change: impl FnOnce(u32) -> u32) {
        if let Mapped::Device(handle) = mapping.of {
            if let Some(allocation) = self.allocations.live.get_mut(&handle.0) {
                allocation.mappings = change(allocation.mappings);
            }
        }
    }

    /// The mapping that contains all of these bytes.
    fn mapping_around(&self, address: DeviceVa, len: u64) -> Option<&HeldMapping> {
        let (_, mapping) = self.mappings.live.range(..=address.0).next_back()?;
        let end = address.0.checked_sub(mapping.address.0)?.checked_add(len)?;
        (end <= mapping.size).then_some(mapping)
    }

    fn check_export(&self, request: &ExportRequest) -> Option<Misuse> {
        let address = request.address;
        let Some(mapping) = self.mappings.get(address.0) else {
            // The first Gaudi takes a physical address.
            return match self.check_mapping(address, &rules::export::UNKNOWN_ADDRESS)? {
                Misuse::Refused(rule, seen, _) if self.mapping_around(address, 1).is_none() => {
                    Misuse::if_refused(rule, seen)
                }
                inside => Some(inside),
            };
        };
        match mapping.of {
            Mapped::Device(_) => {}
            Mapped::Host(host) => {
                return Misuse::certain(&rules::export::HOST_MEMORY, format!("{address} of {host}"));
            }
            Mapped::Import => {
                let seen = format!("{address} of an imported dma-buf");
                return Misuse::certain(&rules::export::HOST_MEMORY, seen);
            }
        }
        let (offset, size) = (request.offset, request.size);
        let is_inside = offset.checked_add(size).is_some_and(|end| end <= mapping.size);
        // The driver looks at the alignment first.
        let is_aligned = size > 0 && size % PAGE == 0 && offset % PAGE == 0;
        (is_aligned && !is_inside)
            .then(|| format!("offset {offset} + {size} of {} bytes", mapping.size))
            .and_then(|seen| Misuse::certain(&rules::export::PAST_THE_END, seen))
    }

    // Command buffers and timestamps.

    fn check_buffer(&self, handle: CbHandle, rule: &'static Rule) -> Option<Misuse> {
        self.buffers.missing(handle.0, format!("{:#x}", handle.0), rule)
    }

    /// Checks a use of a buffer. It lives, and answers queries, while it is mapped or in use
    /// (memory_mgr.c:hl_mmap_mem_buf_put_handle).
    fn check_held(&self, handle: CbHandle, rule: &'static Rule) -> Option<Misuse> {
        match self.check_buffer(handle, rule)? {
            Misuse::Refused(rule, seen, _) => Misuse::if_refused(rule, seen),
            accepted => Some(accepted),
        }
    }

    pub(super) fn cb_va(&mut self, handle: CbHandle, va: DeviceVa) {
        if let Some(buffer) = self.buffers.live.get_mut(&handle.0) {
            buffer.device_va = Some(va);
        }
    }

    /// Command buffers whose device address was not queried.
    pub(super) fn unplaced(&self) -> Vec<CbHandle> {
        let buffers = self.buffers.live.values();
        let unplaced = buffers.filter(|buffer| buffer.map_to_device && buffer.device_va.is_none());
        unplaced.map(|buffer| buffer.handle).collect()
    }

    fn check_mmap(&self, request: &MmapRequest) -> Option<Misuse> {
        let handle = CbHandle(request.offset);
        match self.buffers.get(handle.0) {
            Some(buffer) if request.len as u64 != buffer.whole() => Misuse::certain(
                &rules::mmap::LENGTH,
                format!("{} of {} bytes", request.len, buffer.whole()),
            ),
            None if self.buffers.destroyed.contains(&handle.0) => {
                self.check_held(handle, &rules::mmap::UNKNOWN)
            }
            _ => None,
        }
    }

    /// Checks a counter, by the rules on its handle and on its index.
    fn check_counter(&self, counter: CqCounter, [unknown, index]: [&'static Rule; 2]) -> Option<Misuse> {
        match self.buffers.get(counter.handle.0) {
            None => self.check_held(counter.handle, unknown),
            Some(buffer) => check_index(counter.offset, buffer.whole() / 8, index),
        }
    }

    fn check_timestamp(&self, request: &TimestampRegistration) -> Option<Misuse> {
        use rules::wait;
        let counters = [&wait::TIMESTAMP_COUNTERS, &wait::TIMESTAMP_COUNTER_INDEX];
        let counter = self.check_counter(request.counter, counters);
        counter.or_else(|| match self.timestamps.get(&request.buffer.0) {
            Some(&elements) => check_index(request.index, elements.into(), &wait::TIMESTAMP_INDEX),
            None => Misuse::if_refused(
                &wait::TIMESTAMP_BUFFER,
                format!("{:#x}, which was not made here", request.buffer.0),
            ),
        })
    }

    // Submissions.

    /// Whether a chunk names memory that no known mapping covers: a reason to query the addresses
    /// of command buffers.
    pub(super) fn has_stray_chunk(&self, request: &CsRequest<'_>) -> bool {
        request.chunks().any(|chunk| !self.covers(chunk))
    }

    fn covers(&self, chunk: &HlCsChunk) -> bool {
        if !chunk.cs_chunk_flags.contains(CsChunkFlags::USER_ALLOC_CB) {
            return true;
        }
        let (va, len) = (DeviceVa(chunk.cb_handle), u64::from(chunk.cb_size));
        let inside = |start: u64, size: u64| {
            va.0.checked_sub(start)
                .and_then(|distance| distance.checked_add(len))
                .is_some_and(|end| end <= size)
        };
        // Memory that the chip accesses without a mapping (gaudi2.c:gaudi2_validate_cb_address).
        let physical = |asic: &&Asic| {
            inside(asic.sram_base.0, asic.sram_size) || inside(asic.dram_user_base().0, asic.dram_user_size())
        };
        let is_physical = self.chips.is_empty() || self.chips.iter().any(physical);
        let mut buffers = self.buffers.live.values();
        is_physical
            || self.mapping_around(va, len).is_some()
            || buffers.any(|buffer| {
                buffer
                    .device_va
                    .is_some_and(|start| inside(start.0, buffer.whole()))
            })
    }

    fn check_submit(&self, request: &CsRequest<'_>) -> Option<Misuse> {
        // Commands without jobs have no chunks, or chunks of another form.
        let chunks = request.chunks().enumerate().filter(|_| request.types() == 0);
        chunks.into_iter().find_map(|(index, chunk)| {
            let (handle, size) = (chunk.cb_handle, chunk.cb_size);
            if !chunk.cs_chunk_flags.contains(CsChunkFlags::USER_ALLOC_CB) {
                let destroyed = self.buffers.destroyed.contains(&handle);
                return self
                    .check_held(CbHandle(handle), &rules::submit::UNKNOWN_BUFFER)
                    .filter(|_| destroyed);
            }
            let accepted = || {
                Misuse::Accepted(
                    format!(
                        "chunk {index} has its {size} bytes of commands at {}, which no mapping made here covers: the device will fault on it",
                        DeviceVa(handle)
                    ),
                    "keep the command buffer mapped until its submission has completed",
                )
            };
            (!self.covers(chunk)).then(accepted)
        })
    }

    fn check_wait(&self, seqs: &[CsSeq]) -> Option<Misuse> {
        let highest = self.submitted.highest();
        let unknown = seqs.iter().find(|seq| seq.0 > highest)?;
        Misuse::certain(&rules::wait::FUTURE, format!("{} of {highest}", unknown.0))
    }
}

/// An index behind the end of a buffer.
fn check_index(index: u64, len: u64, rule: &'static Rule) -> Option<Misuse> {
    (index >= len).then(|| Misuse::Refused(rule, format!("{index} of {len}"), true))
}

impl Submitted {
    fn end(&mut self, request: &CsRequest<'_>, answer: Option<AnyAnswer<'_>>) {
        self.finished += 1;
        if let Some(AnyAnswer::Cs(answer)) = answer {
            if request.is_numbered() && answer.seq.0 > self.last {
                self.last = answer.seq.0;
                self.finished_at_last = self.finished;
            }
        }
    }

    /// The highest number that can be in use: submissions in progress, and those rejected since,
    /// may have numbers above the last one returned.
    fn highest(&self) -> u64 {
        self.last.saturating_add(self.started - self.finished_at_last)
    }
}
