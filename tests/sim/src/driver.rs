//! The reference: what the driver must answer to each call, kept as simple as can be. The mock is compared with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{Errno, ErrorKind, WaitStatus};
use gaudi_spec::asic::QueueType;
use gaudi_spec::gaudi2;
use gaudi_sys::PAGE;
use gaudi_uapi::cs::{CsChunkFlags, CsFlags};
use gaudi_uapi::limits::HL_MAX_CB_SIZE;
use gaudi_uapi::memory::MemFlags;

use crate::call::{Call, Submission, Told};

/// Device memory of the mocks here: four pages.
pub(crate) const DRAM_PAGES: usize = 4;
/// Submissions that the driver keeps a record of.
const PENDING: u64 = 64;

#[derive(Debug)]
struct Allocation {
    pages: Vec<usize>,
    mapped: u32,
}

#[derive(Debug)]
enum Mapping {
    Device { handle: u64, noted: Vec<(u64, u64)> },
    Host,
}

/// An export, alive as long as anybody else holds the token.
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

/// What the driver keeps of its one user.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    taken: [bool; DRAM_PAGES],
    allocations: BTreeMap<u64, Allocation>,
    /// By address, with the length.
    mappings: BTreeMap<u64, (u64, Mapping)>,
    pub(crate) exports: Vec<Exported>,
    buffers: BTreeMap<u64, u64>,
    next: u64,
    accepted: u64,
    /// What each queue was given, in its order, and the gate that holds it.
    queues: BTreeMap<u32, Vec<(u64, Option<usize>)>>,
    /// Whether each is open.
    pub(crate) gates: Vec<bool>,
    /// The gate that the next submission waits at.
    pub(crate) next_gate: Option<usize>,
    pub(crate) registered: bool,
    /// The driver is in reset until the node is closed.
    pub(crate) lost: bool,
    /// A reset comes once the user has gone.
    pub(crate) doomed: bool,
    /// The stack was told that work had ended that goes on, and took its host memory back: an engine that met none of it stands still,
    /// and what comes after in its queue, until the driver's timer ends it.
    pub(crate) deserted: bool,
}

const EINVAL: Told = Told::Refused(ErrorKind::InvalidInput, Some(Errno::EINVAL));
const IN_USE: Told = Told::Refused(ErrorKind::InUse, Some(Errno::EINVAL));
const GONE: Told = Told::Refused(ErrorKind::DeviceLost, Some(Errno::EBUSY));
const ABORTED: Told = Told::Refused(ErrorKind::DeviceLost, Some(Errno::EIO));
const ABORTED_SILENTLY: Told = Told::Refused(ErrorKind::DeviceLost, None);
const HUNG: Told = Told::Refused(ErrorKind::Hung, Some(Errno::ETIMEDOUT));
const FULL: Told = Told::Refused(ErrorKind::OutOfDeviceMemory, Some(Errno::ENOMEM));
const NO_ROOM: Told = Told::Refused(ErrorKind::WouldBlock, Some(Errno::EAGAIN));
const NEVER: Told = Told::Refused(ErrorKind::Unsupported, Some(Errno::EPERM));
const FAULT: Told = Told::Refused(ErrorKind::BadAddress, Some(Errno::EFAULT));
const DONE: Told = Told::Wait(WaitStatus::Completed);
const BUSY: Told = Told::Wait(WaitStatus::Busy);

/// What is wrong with an answer: what was wanted instead.
type Verdict = Result<(), String>;

fn want(told: Told, wanted: Told) -> Verdict {
    want_one(told, &[wanted])
}

fn want_one(told: Told, wanted: &[Told]) -> Verdict {
    match wanted.contains(&told) {
        true => Ok(()),
        false => Err(format!("one of {wanted:?}")),
    }
}

fn want_number(told: Told) -> Verdict {
    match told {
        Told::Number(_) => Ok(()),
        _ => Err("a number".to_owned()),
    }
}

impl Driver {
    /// No submission has this number or a higher one.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next
    }

    /// Whether MAP gave this address to anybody.
    pub(crate) fn is_mapped(&self, va: u64) -> bool {
        self.mappings.contains_key(&va)
    }

    /// What came after a submission in its queue: the end of one of these tells its end, too.
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

    /// Whether a submission is held by a gate that is shut, its own or one before it in its queue.
    pub(crate) fn is_held(&self, seq: u64) -> bool {
        self.queues.values().any(|given| {
            let at = given.iter().position(|&(other, _)| other == seq);
            at.is_some_and(|at| given[..=at].iter().any(|&(_, gate)| self.is_shut(gate)))
        })
    }

    fn is_shut(&self, gate: Option<usize>) -> bool {
        gate.is_some_and(|gate| !self.gates.get(gate).copied().unwrap_or(true))
    }

    /// Whether any submission is held: the driver's timer may end it, and the device with it.
    pub(crate) fn holds_any(&self) -> bool {
        self.queues
            .values()
            .flatten()
            .any(|&(_, gate)| self.is_shut(gate))
    }

    /// What is not given back, in words, with what it is called in a release.
    pub(crate) fn left(&self) -> Vec<Left> {
        let allocations = self
            .allocations
            .iter()
            .map(|(&handle, allocation)| Left::Allocation {
                handle,
                mapped: allocation.mapped > 0,
            });
        let mappings = self.mappings.iter().map(|(&va, (_, mapping))| Left::Mapping {
            va,
            host: matches!(mapping, Mapping::Host),
        });
        let buffers = self.buffers.keys().map(|&handle| Left::Buffer { handle });
        allocations.chain(mappings).chain(buffers).collect()
    }

    /// Compares an answer with what the state before the call says.
    pub(crate) fn judge(&self, call: &Call, told: Told) -> Verdict {
        let waits = matches!(
            call,
            Call::WaitCs(..) | Call::WaitMultiCs | Call::WaitInterrupt(_)
        );
        // mmap looks at no status (device.c:650): what a user has can be mapped in a reset too.
        let answered_in_reset = matches!(call, Call::Info(_) | Call::UnregisterEvents | Call::Mmap(_));
        if (self.lost && !answered_in_reset) || (self.doomed && waits) {
            return want(told, GONE);
        }
        // Time passes in waits for what is held, and the driver's timer with it: from then on everything answers this.
        if told == GONE && (self.holds_any() || self.deserted) {
            return Ok(());
        }
        match *call {
            Call::Info(_) => want(told, Told::Nothing),
            Call::MemAlloc(request) => {
                let contiguous = request.flags.contains(MemFlags::CONTIGUOUS);
                match (request.size, self.fit(request.size, contiguous)) {
                    (0, _) => want(told, EINVAL),
                    (_, None) => want(told, FULL),
                    (_, Some(_)) => want(told, Told::Number(self.lowest_handle())),
                }
            }
            Call::MemFree(handle) => match self.allocations.get(&handle.0) {
                None => want(told, EINVAL),
                Some(allocation) if allocation.mapped > 0 => want(told, IN_USE),
                Some(_) => want(told, Told::Nothing),
            },
            Call::MemMapDevice(request) => match self.allocations.get(&request.handle.0) {
                None => want(told, EINVAL),
                Some(allocation) => {
                    self.want_free_address(told, allocation.pages.len() as u64 * gaudi2::DRAM_PAGE)
                }
            },
            Call::MemMapHost(request) => self.want_free_address(told, request.size),
            Call::MemUnmap(va) => match self.mappings.get(&va.0) {
                None => want(told, EINVAL),
                Some((_, mapping)) if self.is_exported(mapping) => want(told, IN_USE),
                Some(_) => want(told, Told::Nothing),
            },
            Call::ExportDmabuf(request) => match self.mappings.get(&request.address.0) {
                Some((len, Mapping::Device { .. }))
                    if request.size > 0
                        && request.size % PAGE == 0
                        && request.offset % PAGE == 0
                        && request
                            .offset
                            .checked_add(request.size)
                            .is_some_and(|end| end <= *len) =>
                {
                    want(told, Told::Nothing)
                }
                _ => want(told, EINVAL),
            },
            Call::CbCreate(request) if request.size > HL_MAX_CB_SIZE => want(told, EINVAL),
            Call::CbCreate(_) => match told {
                Told::Number(handle) if self.buffers.contains_key(&handle) => {
                    Err("a handle that nobody has".to_owned())
                }
                _ => want_number(told),
            },
            Call::CbDestroy(handle) => match self.buffers.contains_key(&handle.0) {
                true => want(told, Told::Nothing),
                false => want(told, EINVAL),
            },
            // A destroyed buffer is found for as long as it is mapped.
            Call::CbInfo(handle, _) => match self.buffers.contains_key(&handle.0) {
                true => want(told, Told::Nothing),
                false => want_one(told, &[EINVAL, Told::Nothing]),
            },
            Call::Mmap(request) => match self.buffers.get(&request.offset) {
                Some(&size) if size == request.len as u64 => want(told, Told::Nothing),
                _ => want(told, EINVAL),
            },
            Call::Submit(submission) => self.judge_submission(&submission, told),
            Call::WaitCs(seq, timeout) => self.judge_wait(seq.0, timeout, told),
            Call::WaitMultiCs => want(told, NEVER),
            Call::WaitInterrupt(_) => match self.holds_any() || self.deserted {
                true => want_one(told, &[DONE, BUSY, ABORTED_SILENTLY]),
                false => want_one(told, &[DONE, BUSY]),
            },
            Call::RegisterEvents => want(told, if self.registered { EINVAL } else { Told::Nothing }),
            Call::UnregisterEvents => want(told, if self.registered { Told::Nothing } else { EINVAL }),
        }
    }

    fn judge_submission(&self, submission: &Submission, told: Told) -> Verdict {
        let flags = CsFlags(submission.flags);
        if flags.contains(CsFlags::STAGED_SUBMISSION) {
            return want(told, NEVER);
        }
        if submission.chunks == 0 {
            return want(told, EINVAL);
        }
        let chunk = &submission.chunk;
        let row = (gaudi2::ASIC.queue)(gaudi_seam::QueueId(chunk.queue_index));
        let Some(row) = row.filter(|row| row.kind == QueueType::Hardware) else {
            return want(told, EINVAL);
        };
        let signals = flags.contains(CsFlags::SIGNAL) || flags.contains(CsFlags::WAIT);
        if signals && row.engine == gaudi_spec::asic::QueueEngine::Nic {
            return want(told, EINVAL);
        }
        let user_buffer = chunk.cs_chunk_flags.contains(CsChunkFlags::USER_ALLOC_CB);
        if !signals && (!user_buffer || !row.user) {
            return want(told, EINVAL);
        }
        if !signals && (chunk.cb_size == 0 || chunk.cb_handle == 0) {
            return want(told, FAULT);
        }
        match told {
            NO_ROOM if self.accepted >= PENDING => Ok(()),
            Told::Number(seq) if seq < self.next => Err(format!("a number from {} on, each once", self.next)),
            _ => want_number(told),
        }
    }

    fn judge_wait(&self, seq: u64, timeout: Duration, told: Told) -> Verdict {
        if seq == u64::MAX || seq > self.next + 1000 {
            return want(told, EINVAL);
        }
        if self.is_held(seq) {
            // Nothing is in its way but a gate: it is busy, or its time is over.
            return match timeout.is_zero() {
                true => want(told, BUSY),
                false => want_one(told, &[BUSY, HUNG, ABORTED]),
            };
        }
        match timeout.is_zero() {
            _ if self.deserted => want_one(told, &[DONE, BUSY, HUNG, ABORTED]),
            true => want_one(told, &[DONE, BUSY]),
            false => want(told, DONE),
        }
    }

    /// Books what an answer did.
    pub(crate) fn apply(&mut self, call: &Call, told: Told) {
        if told == GONE {
            self.lost |= !self.doomed;
            return;
        }
        if matches!(told, HUNG | ABORTED | ABORTED_SILENTLY) {
            // Who asked to be told of events is told, and may look before the reset comes.
            self.lost |= !self.registered;
            self.doomed |= self.registered;
            return;
        }
        let number = if let Told::Number(number) = told {
            number
        } else {
            0
        };
        if matches!(told, Told::Refused(..)) {
            return;
        }
        match *call {
            Call::MemAlloc(request) => {
                let pages = self
                    .fit(request.size, request.flags.contains(MemFlags::CONTIGUOUS))
                    .unwrap_or_default();
                for &page in &pages {
                    self.taken[page] = true;
                }
                self.allocations.insert(number, Allocation { pages, mapped: 0 });
            }
            Call::MemFree(handle) => {
                let gone = self.allocations.remove(&handle.0);
                for page in gone.map(|gone| gone.pages).unwrap_or_default() {
                    self.taken[page] = false;
                }
            }
            Call::MemMapDevice(request) => {
                if let Some(allocation) = self.allocations.get_mut(&request.handle.0) {
                    allocation.mapped += 1;
                    let len = allocation.pages.len() as u64 * gaudi2::DRAM_PAGE;
                    let mapping = Mapping::Device {
                        handle: request.handle.0,
                        noted: Vec::new(),
                    };
                    self.mappings.insert(number, (len, mapping));
                }
            }
            Call::MemMapHost(request) => {
                self.mappings.insert(number, (request.size, Mapping::Host));
            }
            Call::MemUnmap(va) => {
                if let Some((_, Mapping::Device { handle, .. })) = self.mappings.remove(&va.0) {
                    if let Some(allocation) = self.allocations.get_mut(&handle) {
                        allocation.mapped -= 1;
                    }
                }
            }
            Call::ExportDmabuf(request) => {
                let Some((_, Mapping::Device { handle, noted })) = self.mappings.get_mut(&request.address.0)
                else {
                    return;
                };
                let page = self
                    .allocations
                    .get(handle)
                    .and_then(|allocation| allocation.pages.first());
                let start = page.map_or(0, |&page| page as u64 * gaudi2::DRAM_PAGE) + request.offset;
                let window = (start, start + request.size);
                noted.push(window);
                self.exports.retain(Exported::is_alive);
                let token = Arc::new(());
                self.exports.push(Exported { token, window });
            }
            Call::CbCreate(request) => {
                let size = u64::from(request.size).max(1).next_multiple_of(PAGE);
                self.buffers.insert(number, size);
            }
            Call::CbDestroy(handle) => {
                self.buffers.remove(&handle.0);
            }
            Call::Submit(submission) if number != u64::MAX => {
                self.accepted += 1;
                self.next = number + 1;
                let gate = self.next_gate.take();
                self.queues
                    .entry(submission.chunk.queue_index)
                    .or_default()
                    .push((number, gate));
            }
            Call::RegisterEvents => self.registered = true,
            Call::UnregisterEvents => self.registered = false,
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
        let Mapping::Device { noted, .. } = mapping else {
            return false;
        };
        noted.iter().any(|&(start, end)| {
            let shares =
                |export: &&Exported| export.is_alive() && export.window.0 < end && start < export.window.1;
            self.exports.iter().any(|export| shares(&export))
        })
    }

    fn want_free_address(&self, told: Told, len: u64) -> Verdict {
        let Told::Number(va) = told else {
            return want_number(told);
        };
        let met = self
            .mappings
            .iter()
            .find(|&(&other, &(other_len, _))| va < other + other_len && other < va + len);
        match met {
            Some((other, _)) => Err(format!("an address apart from the mapping at {other:#x}")),
            None => Ok(()),
        }
    }
}

/// Something that was not given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Allocation { handle: u64, mapped: bool },
    Mapping { va: u64, host: bool },
    Buffer { handle: u64 },
}
