//! The system under test and the expected state: bytes of memory, results of submissions.

mod exports;
mod memory;
mod queues;
mod raw;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use gaudi_device::{Buffer, Completion, Deadline, Device, HostMapping, Options, Queue, Sob};
use gaudi_dmabuf::CpuAttachment;
use gaudi_dmabuf::export::habanalabs::{DeviceRange, Rule};
use gaudi_layers::fault::{ArmedFault, FaultLayer, Plan};
use gaudi_layers::time::VirtualClock;
use gaudi_random::Rng;
use gaudi_seam::Operation;
use gaudi_seam::{
    CbHandle, CloseError, DeviceSpec, DeviceVa, Errno, Error, ErrorKind, MemHandle, Result, SharedIo,
};

use crate::case::{Case, Kind, Op};
use crate::mutant::{Mutant, Mutation, Position};
use crate::watchers::{DriverWatcher, LayerWatcher, Refusal, SharedRecord, is_retried};

/// Returns an occupied slot chosen by `number`; any slot if all are free.
fn held<T>(slots: &[Option<T>], number: usize) -> usize {
    among(slots, number, Option::is_some)
}

/// Returns a free slot chosen by `number`; any slot if all are occupied.
fn vacant<T>(slots: &[Option<T>], number: usize) -> usize {
    among(slots, number, Option::is_none)
}

fn among<T>(slots: &[Option<T>], number: usize, fits: impl Fn(&Option<T>) -> bool) -> usize {
    let fitting = || slots.iter().enumerate().filter(|(_, slot)| fits(slot));
    match fitting().count() {
        0 => number % slots.len(),
        count => fitting().nth(number % count).map_or(0, |(slot, _)| slot),
    }
}

/// The first slots hold buffers in shared pages, the others exclusive buffers.
const PIECES: usize = 5;
const BUFFERS: usize = 7;
const HOSTS: usize = 5;
const QUEUES: usize = 3;
/// Lanes order copies: three of the device, and one for each opened queue.
const LANES: usize = 3 + QUEUES;
/// The size of the exported view, in bytes.
const VIEW: u64 = 1 << 20;
const CANARY: usize = 300;
const NO_DEADLINE: Deadline = Deadline::NEVER;

/// A buffer or mapping with its expected state.
struct Memory<T> {
    object: T,
    id: u64,
    /// The expected bytes, if known.
    content: Option<Vec<u8>>,
    /// Numbers of copies in flight that read it and that write it, by lane.
    reads: [u32; LANES],
    writes: [u32; LANES],
    /// A submission without a completion may still write it.
    untracked: bool,
    /// A failed close has or may have unmapped it. It can only be closed again, and its address may
    /// belong to another mapping.
    unmapped: bool,
}

impl<T> Memory<T> {
    fn is_idle(&self) -> bool {
        !self.untracked && self.reads == [0; LANES] && self.writes == [0; LANES]
    }
}

/// A buffer or a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Buffer(usize),
    Host(usize),
}

/// A submission of the stack whose completion the case holds.
struct Pending {
    completion: Completion,
    lane: usize,
    reads: Option<u64>,
    writes: Option<u64>,
    /// The reported result.
    ended: Option<std::result::Result<(), ErrorKind>>,
}

/// A queue that waits for a sync object.
struct Gate {
    number: usize,
    sob: Sob,
}

/// A reference to an export. The token keeps the export alive in the reference model.
struct HeldExport {
    what: exports::Part,
    token: Arc<()>,
    buffer: Option<u64>,
}

/// Objects created directly at the seam.
#[derive(Default)]
struct Raw {
    allocations: Vec<MemHandle>,
    mappings: Vec<DeviceVa>,
    buffers: Vec<CbHandle>,
    seqs: Vec<u64>,
    signals: Vec<u64>,
    unmapped: Vec<u64>,
    /// A submission may still write to a mapping.
    frozen: bool,
    nop: Option<(CbHandle, DeviceVa)>,
    eventfd: Option<OwnedFd>,
    /// The word of user-interrupt waits, boxed because its address must not change.
    word: Box<u64>,
}

/// The stack, its watchers and the expected state.
pub(crate) struct World {
    pub(crate) record: SharedRecord,
    pub(crate) spec: DeviceSpec,
    /// Keeps the mock and its ledger alive while the device is closed.
    _control: SharedIo,
    mutation: Option<Mutation>,
    plan: Plan,
    armed: Vec<ArmedFault>,
    /// A submission without a completion may still run and hold references to memory.
    untracked_work: bool,
    options: Options,
    rng: Rng,
    next_id: u64,
    buffers: [Option<Memory<Buffer>>; BUFFERS],
    hosts: [Option<Memory<HostMapping>>; HOSTS],
    queues: [Option<Queue>; QUEUES],
    opener: Option<Queue>,
    gates: Vec<Gate>,
    pending: Vec<Pending>,
    held: Vec<HeldExport>,
    raw: Raw,
    sockets: Option<(UnixStream, UnixStream)>,
    canaries: Vec<(Buffer, Vec<u8>)>,
    host_canary: Option<(HostMapping, Vec<u8>)>,
    view: Option<(CpuAttachment, Arc<()>, u64)>,
    device: Option<Device>,
}

impl World {
    /// Creates a mock without opening it.
    pub(crate) fn new(
        case: &Case,
        record: SharedRecord,
        spec: DeviceSpec,
        mutation: Option<Mutation>,
    ) -> Result<Self> {
        let mut options = Options::default();
        options.packet_bytes = case.packet_bytes;
        options.packets_per_submission = case.packets;
        options.command_buffers = case.slots;
        options.command_buffer_bytes = 512;
        options.staging_bytes = 1024;
        Ok(Self {
            record,
            _control: gaudi_hal::control(&spec)?,
            spec,
            mutation,
            plan: case.plan.clone(),
            armed: Vec::new(),
            untracked_work: false,
            options,
            rng: Rng::of_case(case.end, case.number),
            next_id: 1,
            buffers: Default::default(),
            hosts: Default::default(),
            queues: Default::default(),
            opener: None,
            gates: Vec::new(),
            pending: Vec::new(),
            held: Vec::new(),
            raw: Raw::default(),
            sockets: None,
            canaries: Vec::new(),
            host_canary: None,
            view: None,
            device: None,
        })
    }

    fn violated(&self, what: String) {
        self.record.lock().violated(what);
    }

    /// Opens the device and writes the canaries, then arms the plan.
    pub(crate) fn open(&mut self) -> Result<()> {
        let io = gaudi_hal::open(&self.spec)?;
        self.record.lock().open = true;
        let time = Arc::new(VirtualClock::default());
        let mutant = |io: SharedIo, position: Position| match self.mutation {
            Some(mutation) if mutation.position() == Some(position) => Arc::new(Mutant::new(io, mutation)),
            _ => io,
        };
        let io: SharedIo = Arc::new(DriverWatcher {
            inner: mutant(io, Position::Driver),
            record: self.record.clone(),
        });
        let layer = FaultLayer::new(io, &Plan::default(), Arc::clone(&time) as _);
        let faults = layer.handle();
        let io = mutant(Arc::new(layer), Position::Layer);
        let io: SharedIo = Arc::new(LayerWatcher {
            inner: io,
            record: self.record.clone(),
            time: Arc::clone(&time),
        });
        let io = mutant(io, Position::Stack);
        let device = Device::with_options(io, self.options.clone())?;
        self.record.lock().begin(false);
        self.set_up(&device)?;
        self.device = Some(device);
        self.record.lock().plan.arm(&self.plan);
        debug_assert_eq!(time.now_ns(), 0, "no rule is armed yet, so no time passes");
        if self.mutation != Some(Mutation::NoFaults) {
            self.armed = self.plan.rules.iter().map(|&rule| faults.arm(rule)).collect();
        }
        Ok(())
    }

    fn set_up(&mut self, device: &Device) -> Result<()> {
        for _ in 0..2 {
            let bytes = self.bytes(CANARY);
            let canary = device.alloc(CANARY as u64)?;
            device.write(&canary, 0, &bytes)?;
            self.canaries.push((canary, bytes));
        }
        let host = device.alloc_host(CANARY)?;
        let bytes = self.bytes(CANARY);
        host.write(0, &bytes)?;
        self.host_canary = Some((host, bytes));
        let base = self.canaries[0].0.address();
        let memory = DeviceRange::new(Rule::Mapping, base, device.page_bytes())?;
        let view = memory.export(device.io(), 0, VIEW)?.whole()?.attach_cpu("view")?;
        let token = self.token();
        self.view = Some((view, token, base.0));
        self.raw.nop = Some(raw::nop_buffer(device)?);
        Ok(())
    }

    /// Returns the token of the newest export.
    fn token(&self) -> Arc<()> {
        let record = self.record.lock();
        record
            .driver
            .exports
            .last()
            .map(|export| Arc::clone(&export.token))
            .unwrap_or_default()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for part in bytes.chunks_mut(8) {
            let word = self.rng.next_u64().to_ne_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
        bytes
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Whether memory may be compared: no answer reported the end of work that still runs.
    fn trusts(&self) -> bool {
        !self.record.lock().false_end
    }

    /// Performs one operation.
    pub(crate) fn step(&mut self, op: Op) {
        let Some(device) = self.device.clone() else {
            return;
        };
        let raw = matches!(
            op.kind,
            Kind::RawAlloc
                | Kind::RawMap
                | Kind::RawUnmap
                | Kind::RawFree
                | Kind::RawFill
                | Kind::RawNop
                | Kind::RawWrong
                | Kind::Signal
                | Kind::AwaitSignal
                | Kind::RawWait
                | Kind::Interrupt
                | Kind::Register
                | Kind::Unregister
                | Kind::Status
        );
        self.record.lock().begin(raw);
        let (a, b, c) = (usize::from(op.a), usize::from(op.b), op.c);
        let (pieces, own) = self.buffers.split_at(PIECES);
        let (no_piece, no_own, an_own) = (vacant(pieces, a), vacant(own, a), held(own, a));
        let (buffer, other, host) = (
            held(&self.buffers, a),
            held(&self.buffers, b),
            held(&self.hosts, a),
        );
        let (other_host, queue) = (held(&self.hosts, b), held(&self.queues, a));
        match op.kind {
            Kind::Alloc => self.alloc(&device, no_piece, c, op.b),
            Kind::AllocExclusive => self.alloc_exclusive(&device, PIECES + no_own, c),
            Kind::AllocHost => self.alloc_host(&device, vacant(&self.hosts, a), c),
            Kind::HostWrite => self.host_write(host, c),
            Kind::CopyToDevice => self.copy(&device, At::Buffer(buffer), At::Host(other_host), c),
            Kind::CopyToHost => self.copy(&device, At::Host(host), At::Buffer(other), c),
            Kind::CopyInDevice => self.copy(&device, At::Buffer(buffer), At::Buffer(other), c),
            Kind::Fill => {
                let to = match b % 2 {
                    0 => At::Buffer(buffer),
                    _ => At::Host(host),
                };
                self.fill(&device, to, c);
            }
            Kind::Write => self.write(&device, buffer, c),
            Kind::Read => self.read(&device, buffer, c),
            Kind::OpenQueue => self.open_queue(&device, vacant(&self.queues, a), b),
            Kind::QueueCopy => self.queue_copy(queue, other, b, c),
            Kind::Gate => self.gate(&device, queue),
            Kind::OpenGate => self.open_gate(a),
            Kind::Poll => self.poll(a),
            Kind::Wait => self.wait(a, NO_DEADLINE),
            Kind::WaitNot => self.wait(a, Deadline::from(std::time::Duration::ZERO)),
            Kind::Drain => self.drain(&device),
            Kind::DropBuffer => drop(self.buffers[buffer].take()),
            Kind::CloseBuffer => self.close_buffer(&device, buffer),
            Kind::DropHost => drop(self.hosts[host].take()),
            Kind::CloseHost => self.close_host(&device, host),
            Kind::DropQueue => drop(self.queues[queue].take()),
            Kind::Export => self.export(PIECES + an_own, b, c),
            Kind::Pass => self.pass(a, c),
            Kind::DropExport => self.drop_export(a),
            Kind::RawAlloc => self.raw_alloc(&device, c),
            Kind::RawMap => self.raw_map(&device, a),
            Kind::RawUnmap => self.raw_unmap(&device, a, b),
            Kind::RawFree => self.raw_free(&device, a, b),
            Kind::RawFill => self.raw_fill(&device, a, c),
            Kind::RawNop => self.raw_nop(&device, op.a),
            Kind::RawWrong => self.raw_wrong(&device, a, c),
            Kind::Signal => self.signal(&device, a),
            Kind::AwaitSignal => self.await_signal(&device, a, b),
            Kind::RawWait => self.raw_wait(&device, a),
            Kind::Interrupt => self.interrupt(&device, c),
            Kind::Register => self.register(&device),
            Kind::Unregister => self.unregister(&device),
            Kind::Status => self.status(&device),
            Kind::Check => match b % 2 {
                0 => self.check(At::Buffer(buffer)),
                _ => self.check(At::Host(host)),
            },
            Kind::Reopen => {
                drop(device);
                self.close();
                self.reopen();
            }
        }
    }

    fn reopen(&mut self) {
        self.untracked_work = false;
        self.held.clear();
        if let Err(error) = self.open() {
            self.violated(format!("the device cannot be opened again: {error:?}"));
        }
    }

    /// Checks a result of the stack. An error must come from the driver or the plan in this
    /// operation, or have ended the queue earlier. A success must not hide the refusal of an
    /// operation in `needs`.
    fn judge<T>(&self, what: &str, answer: &Result<T>, needs: &[Operation], own: &[ErrorKind]) {
        let mut record = self.record.lock();
        match answer {
            Err(error) => {
                let (kind, errno) = (error.kind(), error.errno());
                let is_cause = |refusal: &Refusal| refusal.kind == kind && refusal.errno == errno;
                if !own.contains(&kind) && !record.refusals.iter().chain(&record.ended).any(is_cause) {
                    let refusals = record.refusals.clone();
                    record.violated(format!(
                        "{what} failed with an error that no call returned: {error:?}; the refusals: {refusals:?}"
                    ));
                }
            }
            Ok(_) => {
                let needed =
                    |refusal: &&Refusal| needs.contains(&refusal.operation) && !may_be_ignored(refusal);
                if let Some(refusal) = record.refusals.iter().find(needed).copied() {
                    record.violated(format!("{what} succeeded despite {refusal:?}"));
                }
            }
        }
    }

    /// Releases everything in an order chosen by the case, closes the device and checks the state.
    pub(crate) fn close(&mut self) {
        let Some(device) = self.device.take() else {
            return;
        };
        self.check_all();
        self.check_counts(&device);
        let view_last = self.rng.percent(20);
        let exports_last = self.rng.percent(30);
        if !exports_last {
            self.held.clear();
        }
        let view = self.view.take().filter(|_| view_last);
        self.record.lock().begin(true);
        self.release_raw(&device);
        self.record.lock().begin(false);
        let mut turns: Vec<u64> = (0..6).collect();
        while !turns.is_empty() {
            let turn = turns.swap_remove(self.rng.below(turns.len() as u64) as usize);
            match turn {
                0 => self.buffers = Default::default(),
                1 => self.hosts = Default::default(),
                2 => self.queues = Default::default(),
                3 => self.pending.clear(),
                4 => {
                    self.gates.clear();
                    self.opener = None;
                }
                _ => {
                    self.canaries.clear();
                    self.host_canary = None;
                }
            }
        }
        if self.rng.percent(70) {
            self.record.lock().begin(false);
            if let Err(CloseError {
                object: device,
                error,
            }) = device.close()
            {
                self.judge_close(&error);
                drop(device);
            }
        } else {
            drop(device);
        }
        self.armed.clear();
        if self.record.lock().open {
            self.violated("the node is still open after everything was dropped".to_owned());
        }
        drop(view);
        self.after_close();
    }

    fn judge_close(&self, error: &Error) {
        let mut record = self.record.lock();
        let reason = record.work_failed
            || !record.refusals.is_empty()
            || record.has_refused_releases()
            || record.driver.exports.iter().any(|export| export.is_alive());
        if error.kind() != ErrorKind::InUse || !reason {
            record.violated(format!("Device::close failed without a reason: {error:?}"));
        }
    }

    /// Checks the closed node: it cannot be opened while an export is alive, and afterwards the
    /// ledger is clean.
    fn after_close(&mut self) {
        let held = self
            .record
            .lock()
            .driver
            .exports
            .iter()
            .any(|export| export.is_alive());
        if held {
            match gaudi_hal::open(&self.spec) {
                Err(error) if error.kind() == ErrorKind::Busy && error.errno() == Some(Errno::EBUSY) => {}
                // A reset that waits for the export is reported first
                // (habanalabs_drv.c:hl_device_open).
                Err(error) if error.kind() == ErrorKind::InReset && self.record.lock().closed_in_reset => {}
                other => self.violated(format!(
                    "open while an export is alive: expected EBUSY, saw {:?}",
                    other.err()
                )),
            }
        }
        self.held.clear();
        // A lookup of devices closes a mock that only an export held open.
        drop(gaudi_hal::control(&self.spec));
        match gaudi_hal::mock_ledger(&self.spec) {
            Some(ledger) if ledger.is_clean() => {}
            other => self.violated(format!(
                "the driver's ledger after the close: expected a clean one, saw {other:?}"
            )),
        }
        self.record.lock().driver.exports.clear();
    }
}

/// Whether the stack may retry, or use another way, without reporting the refusal.
fn may_be_ignored(refusal: &Refusal) -> bool {
    is_retried(refusal) || refusal.kind == ErrorKind::OutOfDeviceMemory
}
