//! [`Ledger`]: the objects that a program holds, from the operations that passed through the layer.

use std::collections::{BTreeMap, VecDeque};

use gaudi_seam::rules::{self, Condition};
use gaudi_seam::{AnyAnswer, AnyRequest, CbHandle, CsRequest, DeviceVa, MapHost, MemAlloc, Rule};
use gaudi_spec::{ASICS, Asic};
use gaudi_uapi::cs::{CsChunkFlags, HlCsChunk};
use gaudi_uapi::info::{HlInfoHwIpInfo, InfoOp};
use zerocopy::FromBytes as _;

use super::held::{HeldAllocation, HeldBuffer, HeldMapping, Leaks, Mapped};
use super::witness::Witness;

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

/// The objects of a kind by handle or address.
#[derive(Debug)]
pub(super) struct Book<T> {
    pub(super) live: BTreeMap<u64, T>,
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
    pub(super) fn get(&self, name: u64) -> Option<&T> {
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

    pub(super) fn was_destroyed(&self, name: u64) -> bool {
        self.destroyed.contains(&name)
    }
}

/// The records of the layer.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The chips that it may be: all of the table until the program asks for the device's id. A
    /// request is a mistake if each of them refuses it.
    chips: Vec<&'static Asic>,
    pub(super) allocations: Book<HeldAllocation>,
    pub(super) mappings: Book<HeldMapping>,
    pub(super) buffers: Book<HeldBuffer>,
    /// The elements of each timestamps buffer, which lives until the device is closed.
    pub(super) timestamps: Book<u32>,
    pub(super) submitted: Submitted,
}

/// The possible sequence numbers: a submission uses at most one, also if it is rejected.
#[derive(Debug, Default)]
pub(super) struct Submitted {
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
            timestamps: Book::default(),
            submitted: Submitted::default(),
        }
    }
}

impl Ledger {
    /// The mistake in an operation that is about to be performed.
    pub(super) fn check(&self, request: AnyRequest<'_>) -> Option<Misuse> {
        let mut checks = Rule::checks(request.operation());
        let broken = checks.find_map(|&(rule, condition)| self.check_rule(request, rule, condition));
        broken.or_else(|| match request {
            AnyRequest::Submit(request) => self.check_submit(request),
            AnyRequest::MemMapHost(request) => self.check_map_host(request),
            _ => None,
        })
    }

    fn check_rule(
        &self,
        request: AnyRequest<'_>,
        rule: &'static Rule,
        condition: Condition,
    ) -> Option<Misuse> {
        match condition {
            Condition::Early(broken) | Condition::Late(broken) => {
                let mut seen = self.chips.iter().map(|asic| broken(request, asic));
                let first = seen.next()??;
                let by_all = seen.all(|other| other.is_some());
                by_all.then_some(Misuse::Refused(rule, first, true))
            }
            Condition::State(broken) => {
                let witness = Witness::new(self);
                let seen = broken(request, &witness)?;
                witness.judge(rule, seen)
            }
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

    fn count(&mut self, mapping: &HeldMapping, change: impl FnOnce(u32) -> u32) {
        if let Mapped::Device(handle) = mapping.of {
            if let Some(allocation) = self.allocations.live.get_mut(&handle.0) {
                allocation.mappings = change(allocation.mappings);
            }
        }
    }

    /// The mapping that contains all of these bytes.
    pub(super) fn mapping_around(&self, address: DeviceVa, len: u64) -> Option<&HeldMapping> {
        let (_, mapping) = self.mappings.live.range(..=address.0).next_back()?;
        let end = address.0.checked_sub(mapping.address.0)?.checked_add(len)?;
        (end <= mapping.size).then_some(mapping)
    }

    // Command buffers.

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
                let seen = || format!("{handle:#x}, which was released already");
                let misuse = || Misuse::Refused(&rules::submit::UNKNOWN_BUFFER, seen(), false);
                return self.buffers.was_destroyed(handle).then(misuse);
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
    pub(super) fn highest(&self) -> u64 {
        self.last.saturating_add(self.started - self.finished_at_last)
    }
}
