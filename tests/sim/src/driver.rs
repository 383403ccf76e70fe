//! The reference model of the driver: the expected answer to each call. The mock is compared
//! with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{AnyRequest, CsRequest, Errno, ErrorKind, WaitStatus};
use gaudi_seam::{CbDestroy, CbQuery, MemFree, MemUnmap, WaitCs};
use gaudi_spec::asic::QueueType;
use gaudi_spec::gaudi2;
use gaudi_sys::PAGE;
use gaudi_uapi::cs::{CsChunkFlags, CsFlags};
use gaudi_uapi::limits::HL_MAX_CB_SIZE;
use gaudi_uapi::memory::MemFlags;

use crate::observed::Observed;

/// Device memory of the mocks here: four pages.
pub(crate) const DRAM_PAGES: usize = 4;
/// The number of submissions that the driver records.
const PENDING: u64 = 64;

#[derive(Debug)]
struct Allocation {
    pages: Vec<usize>,
    mapped: u32,
}

#[derive(Debug)]
enum Mapping {
    Device { handle: u64, exported: Vec<(u64, u64)> },
    Host,
}

/// An export. It is alive while another reference to `token` exists.
#[derive(Debug)]
pub(crate) struct Exported {
    pub(crate) token: Arc<()>,
    window: (u64, u64),
}

impl Exported {
    pub(crate) fn is_alive(&self) -> bool {
        Arc::strong_count(&self.token) > 1
    }
}

/// The driver's state for its single user.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    taken: [bool; DRAM_PAGES],
    allocations: BTreeMap<u64, Allocation>,
    /// The length and kind of each mapping, by address.
    mappings: BTreeMap<u64, (u64, Mapping)>,
    pub(crate) exports: Vec<Exported>,
    buffers: BTreeMap<u64, u64>,
    next: u64,
    accepted: u64,
    /// The submissions of each queue in order, each with the gate that it waits for.
    queues: BTreeMap<u32, Vec<(u64, Option<usize>)>>,
    /// Whether each gate is open.
    pub(crate) gates: Vec<bool>,
    /// The gate that the next submission waits for.
    pub(crate) next_gate: Option<usize>,
    pub(crate) registered: bool,
    /// The driver is in reset until the node is closed.
    pub(crate) lost: bool,
    /// The driver resets the device after the user closes the node.
    pub(crate) reset_pending: bool,
    /// The stack received a false end of running work and unmapped its host memory. An engine that
    /// accesses that memory stalls with its queue until the driver's timer ends the submission.
    pub(crate) stalled: bool,
}

const EINVAL: Observed = Observed::Refused(ErrorKind::InvalidInput, Some(Errno::EINVAL));
const IN_USE: Observed = Observed::Refused(ErrorKind::InUse, Some(Errno::EINVAL));
const IN_RESET: Observed = Observed::Refused(ErrorKind::DeviceLost, Some(Errno::EBUSY));
const ABORTED: Observed = Observed::Refused(ErrorKind::DeviceLost, Some(Errno::EIO));
const ABORTED_SILENTLY: Observed = Observed::Refused(ErrorKind::DeviceLost, None);
const HUNG: Observed = Observed::Refused(ErrorKind::Hung, Some(Errno::ETIMEDOUT));
const NO_MEMORY: Observed = Observed::Refused(ErrorKind::OutOfDeviceMemory, Some(Errno::ENOMEM));
const QUEUE_FULL: Observed = Observed::Refused(ErrorKind::WouldBlock, Some(Errno::EAGAIN));
const UNSUPPORTED: Observed = Observed::Refused(ErrorKind::Unsupported, Some(Errno::EPERM));
const FAULT: Observed = Observed::Refused(ErrorKind::BadAddress, Some(Errno::EFAULT));
const DONE: Observed = Observed::Wait(WaitStatus::Completed);
const BUSY: Observed = Observed::Wait(WaitStatus::Busy);

/// `Err` describes the expected answer.
type Verdict = Result<(), String>;

fn want(observed: Observed, wanted: Observed) -> Verdict {
    want_one(observed, &[wanted])
}

fn want_one(observed: Observed, wanted: &[Observed]) -> Verdict {
    match wanted.contains(&observed) {
        true => Ok(()),
        false => Err(format!("one of {wanted:?}")),
    }
}

fn want_number(observed: Observed) -> Verdict {
    match observed {
        Observed::Number(_) => Ok(()),
        _ => Err("a number".to_owned()),
    }
}

impl Driver {
    /// Returns the lowest sequence number that no submission has.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next
    }

    /// Whether `va` is the address of a mapping.
    pub(crate) fn is_mapped(&self, va: u64) -> bool {
        self.mappings.contains_key(&va)
    }

    /// Returns the later submissions of the same queue. The end of one implies the end of `seq`.
    pub(crate) fn after(&self, seq: u64) -> Vec<u64> {
        let of = |given: &&Vec<(u64, Option<usize>)>| given.iter().any(|&(other, _)| other == seq);
        let given = self.queues.values().find(of);
        given
            .into_iter()
            .flatten()
            .map(|&(other, _)| other)
            .filter(|&other| other > seq)
            .collect()
    }

    /// Whether a closed gate holds `seq`: its own, or that of an earlier submission of its queue.
    pub(crate) fn is_held(&self, seq: u64) -> bool {
        self.queues.values().any(|given| {
            let at = given.iter().position(|&(other, _)| other == seq);
            at.is_some_and(|at| given[..=at].iter().any(|&(_, gate)| self.is_shut(gate)))
        })
    }

    fn is_shut(&self, gate: Option<usize>) -> bool {
        gate.is_some_and(|gate| !self.gates.get(gate).copied().unwrap_or(true))
    }

    /// Whether a gate holds any submission. The driver's timer may end it and reset the device.
    pub(crate) fn holds_any(&self) -> bool {
        self.queues
            .values()
            .flatten()
            .any(|&(_, gate)| self.is_shut(gate))
    }

    /// Returns every object that is not released.
    pub(crate) fn unreleased(&self) -> Vec<Unreleased> {
        let allocations = self
            .allocations
            .iter()
            .map(|(&handle, allocation)| Unreleased::Allocation {
                handle,
                mapped: allocation.mapped > 0,
            });
        let mappings = self
            .mappings
            .iter()
            .map(|(&va, (_, mapping))| Unreleased::Mapping {
                va,
                host: matches!(mapping, Mapping::Host),
            });
        let buffers = self.buffers.keys().map(|&handle| Unreleased::Buffer { handle });
        allocations.chain(mappings).chain(buffers).collect()
    }

    /// Compares an answer with the expected answer in the state before the call.
    pub(crate) fn judge(&self, request: AnyRequest<'_>, observed: Observed) -> Verdict {
        let waits = matches!(
            request,
            AnyRequest::WaitCs(_) | AnyRequest::WaitMultiCs(_) | AnyRequest::WaitInterrupt(_)
        );
        // mmap does not check the status (device.c:hl_mmap), so it works during a reset.
        let answered_in_reset = matches!(
            request,
            AnyRequest::Info(_) | AnyRequest::UnregisterEvents(_) | AnyRequest::Mmap(_)
        );
        if (self.lost && !answered_in_reset) || (self.reset_pending && waits) {
            return want(observed, IN_RESET);
        }
        // A wait for held work advances the clock, so the driver's timer may have reset the device.
        if observed == IN_RESET && (self.holds_any() || self.stalled) {
            return Ok(());
        }
        match request {
            AnyRequest::Info(_) => want(observed, Observed::Success),
            AnyRequest::MemAlloc(request) => {
                let contiguous = request.flags.contains(MemFlags::CONTIGUOUS);
                match (request.size, self.fit(request.size, contiguous)) {
                    (0, _) => want(observed, EINVAL),
                    (_, None) => want(observed, NO_MEMORY),
                    (_, Some(_)) => want(observed, Observed::Number(self.lowest_handle())),
                }
            }
            AnyRequest::MemFree(MemFree(handle)) => match self.allocations.get(&handle.0) {
                None => want(observed, EINVAL),
                Some(allocation) if allocation.mapped > 0 => want(observed, IN_USE),
                Some(_) => want(observed, Observed::Success),
            },
            AnyRequest::MemMapDevice(request) => match self.allocations.get(&request.handle.0) {
                None => want(observed, EINVAL),
                Some(allocation) => {
                    self.want_free_address(observed, allocation.pages.len() as u64 * gaudi2::DRAM_PAGE)
                }
            },
            AnyRequest::MemMapHost(request) => self.want_free_address(observed, request.size),
            AnyRequest::MemUnmap(MemUnmap(va)) => match self.mappings.get(&va.0) {
                None => want(observed, EINVAL),
                Some((_, mapping)) if self.is_exported(mapping) => want(observed, IN_USE),
                Some(_) => want(observed, Observed::Success),
            },
            AnyRequest::ExportDmabuf(request) => match self.mappings.get(&request.address.0) {
                Some((len, Mapping::Device { .. }))
                    if request.size > 0
                        && request.size % PAGE == 0
                        && request.offset % PAGE == 0
                        && request
                            .offset
                            .checked_add(request.size)
                            .is_some_and(|end| end <= *len) =>
                {
                    want(observed, Observed::Success)
                }
                _ => want(observed, EINVAL),
            },
            AnyRequest::CbCreate(request) if request.size > HL_MAX_CB_SIZE => want(observed, EINVAL),
            AnyRequest::CbCreate(_) => match observed {
                Observed::Number(handle) if self.buffers.contains_key(&handle) => {
                    Err("an unused handle".to_owned())
                }
                _ => want_number(observed),
            },
            AnyRequest::CbDestroy(CbDestroy(handle)) => match self.buffers.contains_key(&handle.0) {
                true => want(observed, Observed::Success),
                false => want(observed, EINVAL),
            },
            // A destroyed buffer still answers while it is mapped.
            AnyRequest::CbInfo(CbQuery { handle, .. }) => match self.buffers.contains_key(&handle.0) {
                true => want(observed, Observed::Success),
                false => want_one(observed, &[EINVAL, Observed::Success]),
            },
            AnyRequest::Mmap(request) => match self.buffers.get(&request.offset) {
                Some(&size) if size == request.len as u64 => want(observed, Observed::Success),
                _ => want(observed, EINVAL),
            },
            AnyRequest::Submit(submission) => self.judge_submission(submission, observed),
            AnyRequest::WaitCs(&WaitCs { seq, timeout }) => self.judge_wait(seq.0, timeout, observed),
            AnyRequest::WaitMultiCs(_) => want(observed, UNSUPPORTED),
            AnyRequest::WaitInterrupt(_) => match self.holds_any() || self.stalled {
                true => want_one(observed, &[DONE, BUSY, ABORTED_SILENTLY]),
                false => want_one(observed, &[DONE, BUSY]),
            },
            AnyRequest::RegisterEvents(_) => want(
                observed,
                if self.registered {
                    EINVAL
                } else {
                    Observed::Success
                },
            ),
            AnyRequest::UnregisterEvents(_) => want(
                observed,
                if self.registered {
                    Observed::Success
                } else {
                    EINVAL
                },
            ),
            _ => Err("an operation that the simulation uses".to_owned()),
        }
    }

    fn judge_submission(&self, submission: &CsRequest<'_>, observed: Observed) -> Verdict {
        let flags = submission.flags;
        if flags.contains(CsFlags::STAGED_SUBMISSION) {
            return want(observed, UNSUPPORTED);
        }
        let Some(chunk) = submission.execute.first() else {
            return want(observed, EINVAL);
        };
        let row = (gaudi2::ASIC.queue)(gaudi_seam::QueueId(chunk.queue_index));
        let Some(row) = row.filter(|row| row.kind == QueueType::Hardware) else {
            return want(observed, EINVAL);
        };
        let signals = flags.contains(CsFlags::SIGNAL) || flags.contains(CsFlags::WAIT);
        if signals && row.engine == gaudi_spec::asic::QueueEngine::Nic {
            return want(observed, EINVAL);
        }
        let user_buffer = chunk.cs_chunk_flags.contains(CsChunkFlags::USER_ALLOC_CB);
        if !signals && (!user_buffer || !row.user) {
            return want(observed, EINVAL);
        }
        if !signals && (chunk.cb_size == 0 || chunk.cb_handle == 0) {
            return want(observed, FAULT);
        }
        match observed {
            QUEUE_FULL if self.accepted >= PENDING => Ok(()),
            Observed::Number(seq) if seq < self.next => {
                Err(format!("an unused sequence number, {} or higher", self.next))
            }
            _ => want_number(observed),
        }
    }

    fn judge_wait(&self, seq: u64, timeout: Duration, observed: Observed) -> Verdict {
        if seq == u64::MAX || seq > self.next + 1000 {
            return want(observed, EINVAL);
        }
        if self.is_held(seq) {
            // Only a gate holds it: the wait ends as busy or after the driver's timeout.
            return match timeout.is_zero() {
                true => want(observed, BUSY),
                false => want_one(observed, &[BUSY, HUNG, ABORTED]),
            };
        }
        match timeout.is_zero() {
            _ if self.stalled => want_one(observed, &[DONE, BUSY, HUNG, ABORTED]),
            true => want_one(observed, &[DONE, BUSY]),
            false => want(observed, DONE),
        }
    }

    /// Updates the state after an answer.
    pub(crate) fn apply(&mut self, request: AnyRequest<'_>, observed: Observed) {
        if observed == IN_RESET {
            self.lost |= !self.reset_pending;
            return;
        }
        if matches!(observed, HUNG | ABORTED | ABORTED_SILENTLY) {
            // A program with an eventfd is notified first, and may query the device before the
            // reset.
            self.lost |= !self.registered;
            self.reset_pending |= self.registered;
            return;
        }
        let number = if let Observed::Number(number) = observed {
            number
        } else {
            0
        };
        if matches!(observed, Observed::Refused(..)) {
            return;
        }
        match request {
            AnyRequest::MemAlloc(request) => {
                let pages = self
                    .fit(request.size, request.flags.contains(MemFlags::CONTIGUOUS))
                    .unwrap_or_default();
                for &page in &pages {
                    self.taken[page] = true;
                }
                self.allocations.insert(number, Allocation { pages, mapped: 0 });
            }
            AnyRequest::MemFree(MemFree(handle)) => {
                let freed = self.allocations.remove(&handle.0);
                for page in freed.map(|allocation| allocation.pages).unwrap_or_default() {
                    self.taken[page] = false;
                }
            }
            AnyRequest::MemMapDevice(request) => {
                if let Some(allocation) = self.allocations.get_mut(&request.handle.0) {
                    allocation.mapped += 1;
                    let len = allocation.pages.len() as u64 * gaudi2::DRAM_PAGE;
                    let mapping = Mapping::Device {
                        handle: request.handle.0,
                        exported: Vec::new(),
                    };
                    self.mappings.insert(number, (len, mapping));
                }
            }
            AnyRequest::MemMapHost(request) => {
                self.mappings.insert(number, (request.size, Mapping::Host));
            }
            AnyRequest::MemUnmap(MemUnmap(va)) => {
                if let Some((_, Mapping::Device { handle, .. })) = self.mappings.remove(&va.0) {
                    if let Some(allocation) = self.allocations.get_mut(&handle) {
                        allocation.mapped -= 1;
                    }
                }
            }
            AnyRequest::ExportDmabuf(request) => {
                let Some((_, Mapping::Device { handle, exported })) =
                    self.mappings.get_mut(&request.address.0)
                else {
                    return;
                };
                let page = self
                    .allocations
                    .get(handle)
                    .and_then(|allocation| allocation.pages.first());
                let start = page.map_or(0, |&page| page as u64 * gaudi2::DRAM_PAGE) + request.offset;
                let window = (start, start + request.size);
                exported.push(window);
                self.exports.retain(Exported::is_alive);
                let token = Arc::new(());
                self.exports.push(Exported { token, window });
            }
            AnyRequest::CbCreate(request) => {
                let size = u64::from(request.size).max(1).next_multiple_of(PAGE);
                self.buffers.insert(number, size);
            }
            AnyRequest::CbDestroy(CbDestroy(handle)) => {
                self.buffers.remove(&handle.0);
            }
            AnyRequest::Submit(submission) if number != u64::MAX => {
                self.accepted += 1;
                self.next = number + 1;
                let gate = self.next_gate.take();
                self.queues
                    .entry(submission.execute.first().map_or(0, |chunk| chunk.queue_index))
                    .or_default()
                    .push((number, gate));
            }
            AnyRequest::RegisterEvents(_) => self.registered = true,
            AnyRequest::UnregisterEvents(_) => self.registered = false,
            _ => {}
        }
    }

    fn lowest_handle(&self) -> u64 {
        (1..)
            .find(|handle| !self.allocations.contains_key(handle))
            .unwrap_or_default()
    }

    /// First fit.
    fn fit(&self, size: u64, contiguous: bool) -> Option<Vec<usize>> {
        let count = usize::try_from(size.div_ceil(gaudi2::DRAM_PAGE)).ok()?;
        if contiguous {
            let first = self
                .taken
                .windows(count.max(1))
                .position(|run| !run.contains(&true))?;
            return Some((first..first + count).collect());
        }
        let free: Vec<usize> = (0..DRAM_PAGES)
            .filter(|&page| !self.taken[page])
            .take(count)
            .collect();
        (free.len() == count).then_some(free)
    }

    fn is_exported(&self, mapping: &Mapping) -> bool {
        let Mapping::Device { exported, .. } = mapping else {
            return false;
        };
        exported.iter().any(|&(start, end)| {
            let shares =
                |export: &&Exported| export.is_alive() && export.window.0 < end && start < export.window.1;
            self.exports.iter().any(|export| shares(&export))
        })
    }

    fn want_free_address(&self, observed: Observed, len: u64) -> Verdict {
        let Observed::Number(va) = observed else {
            return want_number(observed);
        };
        let overlap = self
            .mappings
            .iter()
            .find(|&(&other, &(other_len, _))| va < other + other_len && other < va + len);
        match overlap {
            Some((other, _)) => Err(format!("an address apart from the mapping at {other:#x}")),
            None => Ok(()),
        }
    }
}

/// An object that was not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreleased {
    Allocation { handle: u64, mapped: bool },
    Mapping { va: u64, host: bool },
    Buffer { handle: u64 },
}
