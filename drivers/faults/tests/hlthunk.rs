//! libhl-thunk under random faults: its functions, called in this process. A failure has the errno
//! of the fault, nothing else changes, and the next user of the card finds it whole.

#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "the functions under test are C's; each call passes memory that the test owns"
)]

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::{null, null_mut};

use gaudi_faults::{Case, Kind, Op};
use gaudi_seam::fault::{Plan, Rule, Target, Verdict};
use gaudi_seam::{Errno, Operation};
use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::packet::LinDma;
use gaudi_spec::gaudi2::{DRAM_PAGE, queue};
use gaudi_sys::RawMapping;
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::DeviceStatus;
use gaudi_uapi::wait::WaitCsStatus;
use hl_thunk::*;

mod common;
mod injected;

use common::cases_and_seed;
use injected::{Injected, descriptors, errnos};

/// The cases of a run without `GAUDI_TEST_CASES`.
const CASES: u64 = 500;
/// Bytes of each mapping of host memory, and of the used part of device memory.
const PAGE: usize = 4096;
/// The most mappings of each kind.
const MOST: usize = 3;
/// Longer than the driver's timeout of a submission, in microseconds.
const LONG: u64 = 60_000_000;
/// `O_RDWR | O_CLOEXEC`, which the driver requires of an export.
const EXPORT: u32 = 0o2_000_002;
/// The most faults of a rule that the same call meets in turn.
const TRIES: usize = 8;

/// What the faults so far leave of the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Card {
    Works,
    /// A completion was lost: its timeout ends in a reset.
    LostWork,
    InReset,
    Removed,
}

/// Bytes that an engine reaches; unknown after a failure.
type Bytes = Option<Vec<u8>>;

struct Host {
    memory: RawMapping,
    address: u64,
    bytes: Bytes,
}

struct Memory {
    handle: u64,
    /// 0 while it is not mapped.
    address: u64,
    bytes: Bytes,
    export: Option<OwnedFd>,
}

struct Work {
    seq: u64,
    buffer: u64,
    /// A compute reset aborted it.
    is_aborted: bool,
}

/// The result of a call that returns `-errno`.
fn number_or_errno(answer: c_int) -> Result<c_int, Errno> {
    if answer < 0 {
        assert_eq!(Errno::last() as c_int, -answer, "errno is set");
        return Err(Errno::from_raw(-answer));
    }
    Ok(answer)
}

/// The result of a call that returns 0 and sets errno.
fn value_or_errno(answer: u64) -> Result<u64, Errno> {
    match answer {
        0 => Err(Errno::last()),
        value => Ok(value),
    }
}

fn open() -> Result<c_int, Errno> {
    match unsafe { hlthunk_open(HlthunkDeviceName::DONT_CARE, null()) } {
        -1 => Err(Errno::last()),
        fd => Ok(fd),
    }
}

fn usage(fd: c_int) -> Result<HlthunkDramUsageInfo, Errno> {
    let mut usage = HlthunkDramUsageInfo {
        dram_free_mem: 0,
        ctx_dram_mem: 0,
    };
    number_or_errno(unsafe { hlthunk_get_dram_usage(fd, &raw mut usage) }).map(|_| usage)
}

fn status(fd: c_int) -> Result<DeviceStatus, Errno> {
    let status = number_or_errno(unsafe { hlthunk_get_device_status_info(fd) })?;
    Ok(DeviceStatus(status as u32))
}

struct Program {
    fd: c_int,
    injected: Injected,
    card: Card,
    host: Vec<Host>,
    memory: Vec<Memory>,
    work: Vec<Work>,
    /// Command buffers that no submission uses.
    buffers: Vec<u64>,
    failures: u64,
}

impl Program {
    fn new(fd: c_int, injected: Injected) -> Self {
        Self {
            fd,
            injected,
            card: Card::Works,
            host: Vec::new(),
            memory: Vec::new(),
            work: Vec::new(),
            buffers: Vec::new(),
            failures: 0,
        }
    }

    /// Checks the answer of a call.
    fn check<T>(&mut self, what: &str, answer: Result<T, Errno>) -> Option<T> {
        let rules = self.injected.take();
        let (is_wait, is_query) = (what == "wait_for_cs", what.starts_with("get"));
        let before = self.card;
        // The library repeats these, where the driver leaves the request as it was.
        let is_repeated = |errno: &Errno| match errno {
            Errno::EAGAIN => is_wait || is_query || what == "command_submission",
            Errno::EINTR => is_wait || is_query,
            _ => false,
        };
        // After an EBUSY the library asks for the state of the card.
        let is_own = |rule: &&Rule| is_query || rule.target != Target::Only(Operation::Info);
        let refusals: Vec<Errno> = rules
            .iter()
            .filter(|rule| matches!(rule.verdict, Verdict::Error(_) | Verdict::Full(_)))
            .filter(is_own)
            .flat_map(|&rule| errnos(rule))
            .filter(|errno| !is_repeated(errno))
            .collect();
        let aborts = |rule: &Rule| rule.verdict == Verdict::ComputeReset;
        let has_compute_reset = rules.iter().any(aborts);
        if has_compute_reset {
            self.work.iter_mut().for_each(|work| work.is_aborted = true);
            self.forget_bytes();
            if self.card == Card::LostWork {
                self.card = Card::Works;
            }
        }
        for rule in rules {
            match rule.verdict {
                Verdict::Remove => self.card = Card::Removed,
                Verdict::Reset | Verdict::FatalEcc | Verdict::Razwi | Verdict::Heartbeat => {
                    self.card = Card::InReset;
                }
                Verdict::Lose if self.card == Card::Works => self.card = Card::LostWork,
                _ => {}
            }
        }
        let is_lost = |card| matches!(card, Card::InReset | Card::Removed);
        let errno = match answer {
            Ok(answer) => {
                assert!(refusals.is_empty(), "{what} succeeds after {refusals:?}");
                assert!(!has_compute_reset, "{what} succeeds in a compute reset");
                assert!(is_query || !is_lost(before), "{what} succeeds on a lost card");
                return Some(answer);
            }
            Err(errno) => errno,
        };
        let mut causes = refusals;
        if has_compute_reset {
            causes.push(Errno::EBUSY);
        }
        let is_refused = !causes.is_empty();
        match self.card {
            _ if is_refused => {}
            Card::Removed => causes.push(Errno::ENODEV),
            Card::InReset | Card::LostWork => causes.push(Errno::EBUSY),
            Card::Works => {}
        }
        if is_wait && !is_refused && matches!(self.card, Card::InReset | Card::LostWork) {
            causes.push(Errno::EIO);
            causes.extend((before == Card::LostWork).then_some(Errno::ETIMEDOUT));
        }
        let is_aborted = is_wait && self.work.first().is_some_and(|work| work.is_aborted);
        if is_aborted {
            causes.push(Errno::EIO);
        }
        assert!(
            causes.contains(&errno),
            "{what}: {errno:?}, expected one of {causes:?}; the card: {before:?}"
        );
        if self.card == Card::LostWork && !is_refused && !is_aborted {
            self.card = Card::InReset;
        }
        self.failures += 1;
        None
    }

    fn forget_bytes(&mut self) {
        self.host.iter_mut().for_each(|host| host.bytes = None);
        self.memory.iter_mut().for_each(|memory| memory.bytes = None);
    }

    fn is_lost(&self) -> bool {
        matches!(self.card, Card::InReset | Card::Removed)
    }

    fn step(&mut self, Op { kind, a, b, c }: Op) {
        let host = usize::from(a).checked_rem(self.host.len());
        let mapped = self.memory.iter().filter(|memory| memory.address != 0);
        let mapped: Vec<u64> = mapped.map(|memory| memory.address).collect();
        let memory = mapped
            .get(usize::from(b).checked_rem(mapped.len()).unwrap_or(0))
            .copied();
        match (kind, host, memory) {
            (Kind::Alloc, ..) => self.alloc(),
            (Kind::AllocHost | Kind::Map, ..) => self.map_host(),
            (Kind::HostWrite, Some(at), _) if self.work.is_empty() => {
                let bytes: Vec<u8> = (0..PAGE).map(|at| (at * 7 + usize::from(c)) as u8).collect();
                self.host[at].memory.write(0, &bytes).expect("inside");
                self.host[at].bytes = Some(bytes);
            }
            (Kind::CopyToDevice | Kind::Write, Some(at), Some(to)) => {
                self.copy(to, self.host[at].address, c);
            }
            (Kind::CopyToHost | Kind::Read, Some(at), Some(from)) => {
                self.copy(self.host[at].address, from, c);
            }
            (Kind::CopyInDevice | Kind::Fill, Some(at), _) => {
                let to = self.host[usize::from(b) % self.host.len()].address;
                self.copy(to, self.host[at].address, c);
            }
            (Kind::Poll | Kind::WaitNot, ..) => {
                self.wait(0);
            }
            (Kind::Wait | Kind::Drain | Kind::Check, ..) => {
                self.drain();
            }
            (Kind::Info, ..) => self.ask(),
            (Kind::DropBuffer | Kind::CloseBuffer, ..) => {
                self.free(usize::from(a));
            }
            (Kind::DropHost | Kind::CloseHost | Kind::DropCached, Some(at), _) => self.unmap_host(at),
            (Kind::Export, _, Some(address)) => self.export(address),
            (Kind::DropExport, ..) => self.memory.iter_mut().for_each(|memory| memory.export = None),
            _ => {}
        }
    }

    fn alloc(&mut self) {
        let unmapped = self.memory.iter().position(|memory| memory.address == 0);
        let at = match unmapped {
            Some(at) => at,
            None if self.memory.len() < MOST => {
                let handle = unsafe { hlthunk_device_memory_alloc(self.fd, PAGE as u64, 0, false, false) };
                let Some(handle) = self.check("device_memory_alloc", value_or_errno(handle)) else {
                    return;
                };
                self.memory.push(Memory {
                    handle,
                    address: 0,
                    bytes: None,
                    export: None,
                });
                self.memory.len() - 1
            }
            None => return,
        };
        let address = unsafe { hlthunk_device_memory_map(self.fd, self.memory[at].handle, 0) };
        if let Some(address) = self.check("device_memory_map", value_or_errno(address)) {
            self.memory[at].address = address;
        }
    }

    fn map_host(&mut self) {
        if self.host.len() == MOST {
            return;
        }
        let memory = RawMapping::anonymous(PAGE, true).expect("a page");
        let start = memory.as_ptr().as_ptr().cast();
        let address = unsafe { hlthunk_host_memory_map(self.fd, start, 0, PAGE as u64) };
        if let Some(address) = self.check("host_memory_map", value_or_errno(address)) {
            let bytes = Some(vec![0; PAGE]);
            self.host.push(Host {
                memory,
                address,
                bytes,
            });
        }
    }

    fn bytes_at(&mut self, address: u64) -> &mut Bytes {
        let host = self.host.iter_mut().map(|host| (host.address, &mut host.bytes));
        let memory = self
            .memory
            .iter_mut()
            .map(|memory| (memory.address, &mut memory.bytes));
        let (_, bytes) = host.chain(memory).find(|&(at, _)| at == address).expect("mapped");
        bytes
    }

    /// Submits a copy of the page from byte `from` on, or of all of it.
    fn copy(&mut self, to: u64, source: u64, from: u16) {
        let from = if from % 2 == 0 {
            0
        } else {
            usize::from(from) % PAGE
        };
        let place = |address: u64| DeviceVa(address + from as u64);
        let packet = LinDma::copy(place(to), place(source), (PAGE - from) as u32).to_bytes();
        let Some((buffer, address)) = self.buffer(&packet) else {
            return;
        };
        let mut chunk = HlCsChunk::user(queue::PDMA_0_0.0, address, packet.len() as u32);
        let mut input = HlthunkCsIn {
            chunks_restore: null_mut(),
            chunks_execute: (&raw mut chunk).cast(),
            num_chunks_restore: 0,
            num_chunks_execute: 1,
            flags: 0,
        };
        let mut out = HlthunkCsOut {
            seq: 0,
            status: 0,
            sob_count_before_submission: 0,
        };
        let answer = unsafe { hlthunk_command_submission(self.fd, &raw mut input, &raw mut out) };
        if self
            .check("command_submission", number_or_errno(answer))
            .is_none()
        {
            self.buffers.push(buffer);
            return;
        }
        self.work.push(Work {
            seq: out.seq,
            buffer,
            is_aborted: false,
        });
        // Of one queue, so that copies happen in this order.
        let source = self.bytes_at(source).clone();
        let to = self.bytes_at(to);
        *to = match (source, to.take()) {
            (Some(source), Some(mut to)) => {
                to[from..].copy_from_slice(&source[from..]);
                Some(to)
            }
            (Some(source), None) if from == 0 => Some(source),
            _ => None,
        };
    }

    /// A mapped command buffer with a packet: its handle and device address.
    fn buffer(&mut self, packet: &[u8]) -> Option<(u64, u64)> {
        let (mut handle, mut address) = (0, 0);
        let answer = unsafe { hlthunk_request_mapped_command_buffer(self.fd, PAGE as u32, &raw mut handle) };
        self.check("request_mapped_command_buffer", number_or_errno(answer))?;
        let answer = unsafe { hlthunk_get_mapped_cb_device_va_by_handle(self.fd, handle, &raw mut address) };
        let asked = self.check("mapped_cb_device_va_by_handle", number_or_errno(answer));
        if asked.is_none() {
            self.buffers.push(handle);
            return None;
        }
        let view = RawMapping::of_fd(unsafe { BorrowedFd::borrow_raw(self.fd) }, handle, PAGE);
        view.expect("a view").write(0, packet).expect("inside");
        Some((handle, address))
    }

    /// Waits for the oldest submission. Returns whether it has ended.
    fn wait(&mut self, timeout: u64) -> bool {
        let Some(seq) = self.work.first().map(|work| work.seq) else {
            return false;
        };
        let mut status = u32::MAX;
        let answer = unsafe { hlthunk_wait_for_cs(self.fd, seq, timeout, &raw mut status) };
        let was_aborted = self.work[0].is_aborted;
        match self.check("wait_for_cs", number_or_errno(answer)) {
            Some(_) if status == WaitCsStatus::BUSY.0 => return false,
            Some(_) => {
                assert_eq!(status, WaitCsStatus::COMPLETED.0);
                assert!(!was_aborted, "a compute reset aborted the submission");
            }
            // A refused wait can be repeated.
            None if !was_aborted || self.is_lost() => return false,
            None => {}
        }
        let work = self.work.remove(0);
        self.buffers.push(work.buffer);
        true
    }

    /// Waits for every submission, and compares the bytes. Returns whether all have ended.
    fn drain(&mut self) -> bool {
        for _ in 0..TRIES {
            while !self.is_lost() && self.wait(LONG) {}
        }
        if !self.work.is_empty() || self.is_lost() {
            return false;
        }
        for host in &self.host {
            let Some(bytes) = &host.bytes else { continue };
            let mut got = vec![0; PAGE];
            host.memory.read(0, &mut got).expect("inside");
            assert!(got == *bytes, "bytes of host memory differ");
        }
        true
    }

    fn ask(&mut self) {
        let used = self.memory.len() as u64 * DRAM_PAGE;
        let usage = usage(self.fd);
        if let Some(usage) = self.check("get_dram_usage", usage) {
            assert_eq!(usage.ctx_dram_mem, used, "bytes of device memory in use");
        }
        let name = unsafe { hlthunk_get_device_name_from_fd(self.fd) };
        let name = match name {
            HlthunkDeviceName::INVALID => Err(Errno::last()),
            name => Ok(name),
        };
        if let Some(name) = self.check("get_device_name_from_fd", name) {
            assert_eq!(name, HlthunkDeviceName::GAUDI2);
        }
        if let Some(&buffer) = self.buffers.first() {
            let mut count = u32::MAX;
            let answer = unsafe { hlthunk_get_cb_usage_count(self.fd, buffer, &raw mut count) };
            if self.check("cb_usage_count", number_or_errno(answer)).is_some() {
                assert_eq!(count, 0, "no submission uses the command buffer");
            }
        }
    }

    fn export(&mut self, address: u64) {
        let answer = unsafe {
            hlthunk_device_mapped_memory_export_dmabuf_fd(self.fd, address, PAGE as u64, 0, EXPORT)
        };
        if let Some(fd) = self.check("export_dmabuf_fd", number_or_errno(answer)) {
            let memory = self.memory.iter_mut().find(|memory| memory.address == address);
            memory.expect("mapped").export = Some(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }

    /// Unmaps and frees device memory. Returns whether both succeed.
    fn free(&mut self, at: usize) -> bool {
        let Some(at) = at.checked_rem(self.memory.len()) else {
            return false;
        };
        self.memory[at].export = None;
        let address = self.memory[at].address;
        if address != 0 {
            if !self.drain() {
                return false;
            }
            let answer = unsafe { hlthunk_memory_unmap(self.fd, address) };
            if self.check("memory_unmap", number_or_errno(answer)).is_none() {
                return false;
            }
            self.memory[at].address = 0;
            self.memory[at].bytes = None;
        }
        if self.is_lost() {
            return false;
        }
        let answer = unsafe { hlthunk_device_memory_free(self.fd, self.memory[at].handle) };
        let is_free = self
            .check("device_memory_free", number_or_errno(answer))
            .is_some();
        if is_free {
            self.memory.swap_remove(at);
        }
        is_free
    }

    fn unmap_host(&mut self, at: usize) {
        if !self.drain() {
            return;
        }
        let answer = unsafe { hlthunk_memory_unmap(self.fd, self.host[at].address) };
        if self.check("memory_unmap", number_or_errno(answer)).is_some() {
            self.host.swap_remove(at);
        }
    }

    /// Releases everything that the faults let it. Returns whether that is all.
    fn release(&mut self) -> bool {
        for _ in 0..TRIES {
            if !self.drain() {
                return false;
            }
            for at in (0..self.memory.len()).rev() {
                self.free(at);
                if self.is_lost() {
                    return false;
                }
            }
            for at in (0..self.host.len()).rev() {
                self.unmap_host(at);
                if self.is_lost() {
                    return false;
                }
            }
            for buffer in std::mem::take(&mut self.buffers) {
                let answer = match self.is_lost() {
                    true => return false,
                    false => unsafe { hlthunk_destroy_command_buffer(self.fd, buffer) },
                };
                if self
                    .check("destroy_command_buffer", number_or_errno(answer))
                    .is_none()
                {
                    self.buffers.push(buffer);
                }
            }
        }
        self.memory.is_empty() && self.host.is_empty() && self.buffers.is_empty()
    }

    /// The card reports what the faults left of it.
    fn check_status(&mut self) {
        let status = status(self.fd);
        let before = self.card;
        let Some(status) = self.check("get_device_status_info", status) else {
            return;
        };
        match before {
            Card::InReset => assert_eq!(status, DeviceStatus::IN_RESET),
            Card::Works if self.card == Card::Works => assert_eq!(status, DeviceStatus::OPERATIONAL),
            _ => {}
        }
    }
}

/// Sets what an open by the library reads: no other thread of this program reads variables.
fn choose(name: &str, value: &str) {
    unsafe { std::env::set_var(name, value) };
}

/// Maps of files of mocks in this process.
fn maps() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// Runs a case on a card. Returns the failed calls.
fn run(case: &Case) -> u64 {
    choose("GAUDI_FAULT", &case.plan.to_string());
    let injected = Injected::of(&case.plan);
    let mut program = Program::new(open().expect("the card is free"), injected);
    for &(_, op) in &case.ops {
        program.step(op);
        // The library kills a process that uses a card in reset for long, as the driver does.
        if program.is_lost() {
            break;
        }
    }
    program.check_status();
    if case.number % 3 == 0 && !program.is_lost() {
        program.release();
    }
    choose("GAUDI_FAULT", "");
    assert_eq!(
        unsafe { hlthunk_close(program.fd) },
        0,
        "close succeeds after faults"
    );
    let is_exported = program.memory.iter().any(|memory| memory.export.is_some());
    if is_exported {
        let refusal = match program.card {
            Card::InReset => &[Errno::EBUSY, Errno::EAGAIN][..],
            _ => &[Errno::EBUSY],
        };
        let refused = open().expect_err("an export holds the card");
        assert!(refusal.contains(&refused), "{refused:?}");
    }
    program.failures
}

/// The next user of a card copies through it, without faults.
fn use_card() {
    let op = |kind, a, c| Op { kind, a, b: 0, c };
    let mut program = Program::new(open().expect("the card is free"), Injected::of(&Plan::default()));
    for op in [
        op(Kind::Info, 0, 0),
        op(Kind::Alloc, 0, 0),
        op(Kind::AllocHost, 0, 0),
        op(Kind::AllocHost, 0, 0),
        op(Kind::HostWrite, 0, 9),
        op(Kind::CopyToDevice, 0, 0),
        op(Kind::CopyToHost, 1, 0),
    ] {
        program.step(op);
    }
    program.check_status();
    assert!(program.release(), "everything is released without faults");
    assert_eq!(unsafe { hlthunk_close(program.fd) }, 0);
    assert_eq!(program.failures, 0);
}

#[test]
fn hl_thunk_fails_with_injected_errnos_only() {
    let (cases, seed) = cases_and_seed(CASES);
    choose(
        "GAUDI_DEVICE",
        "mock:gaudi2?name=hlfaults&dram=3GiB&clock=virtual",
    );
    choose("GAUDI_FAULT", "");
    // Another user's view of the card, which also keeps it from one case to the next.
    let observer = unsafe { hlthunk_open_control(0, null()) };
    assert!(observer >= 0);
    let (mut failures, mut before) = (0, None);
    for number in 0..cases {
        let case = Case::with_descriptors(seed, number);
        // The harness prints it if the case fails.
        println!("seed {seed} case {number}: {}", case.plan);
        let failed = run(&case);
        use_card();
        failures += u64::from(failed > 0);
        let free = usage(observer).expect("the observer's card").dram_free_mem;
        let now = (descriptors(), maps(), free);
        assert_eq!(*before.get_or_insert(now), now, "descriptors, mappings, memory");
        assert_eq!(status(observer), Ok(DeviceStatus::OPERATIONAL));
    }
    println!("seed={seed} cases={cases} with failures={failures}");
    assert!(failures > cases / 3);
    assert_eq!(unsafe { hlthunk_close(observer) }, 0);
}
