//! [`World`]: a device in memory that restarts before each run, under a plan of faults.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use gaudi_copy::{Config, MemoryDomain};
use gaudi_device::{Buffer, Device, Options};
use gaudi_hal::Mock;
use gaudi_hal::layers::fault::{ArmedFault, FaultHandle, FaultLayer};
use gaudi_hal::layers::time::Time;
use gaudi_seam::fault::{Plan, Rule, Verdict};
use gaudi_seam::{BackendSpec, DeviceSpec, Error, ErrorKind, MockSpec, Result, SharedIo};
use gaudi_sys::arena::Region;
use gaudi_sys::clock::VirtualClock;

use crate::bytes::Pool;
use crate::invariant::{Invariant, Violation};
use crate::record::{Met, SharedRecord};
use crate::watch::{CodeWatch, DriverWatch};

/// The device of [`check`](crate::check): a small card whose time is virtual.
pub const DEVICE: &str = "mock?dram=3GiB&clock=virtual";
/// Bytes of the buffers that no code under test owns.
const CANARY: u64 = 256;
const PATTERN: u8 = 0xc5;

/// A layer for a test of the checks.
type Wrap = Box<dyn Fn(SharedIo) -> SharedIo>;

/// A device in memory, in virtual time. After the first runs, a run creates no descriptor, thread
/// or mapping.
///
/// During a run, small anonymous mappings of the thread are parts of one region
/// ([`gaudi_sys::arena::Region`]).
pub struct World {
    spec: DeviceSpec,
    make: Make,
    mock: Mock,
    clock: VirtualClock,
    /// The clock, for the layers.
    time: Arc<dyn Time>,
    record: SharedRecord,
    options: Options,
    off: Vec<Invariant>,
    budget: Duration,
    driver_layer: Option<Wrap>,
    code_layer: Option<Wrap>,
    region: Region,
    pool: Pool,
    rules: Rules,
    is_virtual: bool,
    /// Whether runs happen inside of those of another world, which provides the host memory.
    is_inner: bool,
    /// Whether the device is that of a memory domain.
    has_domain: bool,
}

/// The result of one run.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// The broken invariants.
    pub violations: Vec<Violation>,
    /// The newest 4096 faults of operations, with the operation and the state of each. The chip's
    /// own faults are not in it.
    pub met: Vec<Met>,
    /// The armed rules of NIC events that injected a fault, in a run of nodes.
    pub nic_fired: Vec<Rule>,
    /// Whether a rule of the device injected a fault, also one of the chip.
    pub has_device_fault: bool,
    /// The armed rules that injected nothing.
    pub unfired: Vec<Rule>,
    /// Calls of the driver.
    pub calls: u64,
    /// Virtual time of the run.
    pub took: Duration,
}

impl Outcome {
    /// Whether a fault was injected.
    pub fn has_fault(&self) -> bool {
        self.has_device_fault || !self.nic_fired.is_empty()
    }
}

/// What code under test may use in a run.
pub(crate) struct Run<'a> {
    pub(crate) device: &'a Device,
    /// The memory domain of the device, in a world that has one.
    pub(crate) domain: Option<&'a MemoryDomain>,
    pub(crate) record: &'a SharedRecord,
    pub(crate) pool: &'a Pool,
    faults: &'a FaultHandle,
    rules: &'a Rules,
}

/// Makes the mock of a world.
type Make = Arc<dyn Fn(&MockSpec) -> Result<Mock>>;

/// An open device.
struct Opened {
    /// The node. It stays open while an object of the device is held.
    node: Weak<CodeWatch>,
    device: Device,
    faults: FaultHandle,
    domain: Option<MemoryDomain>,
}

/// The rules of a run.
#[derive(Default)]
struct Rules {
    armed: RefCell<Vec<(Rule, ArmedFault)>>,
    /// The rules that were disarmed, and the faults that each had injected.
    disarmed: RefCell<Vec<(Rule, u64)>>,
}

impl Rules {
    /// Forgets the rules of an earlier run, and keeps the storage.
    fn restart(&self) {
        self.armed.borrow_mut().clear();
        self.disarmed.borrow_mut().clear();
    }

    /// Disarms every rule. Its faults stay counted.
    fn disarm(&self) {
        let mut armed = self.armed.borrow_mut();
        let counts = armed.drain(..).map(|(rule, fault)| (rule, fault.fired()));
        self.disarmed.borrow_mut().extend(counts);
    }

    /// Whether a rule of the run has injected a fault.
    fn has_fired(&self) -> bool {
        let is_armed = self.armed.borrow().iter().any(|(_, fault)| fault.fired() > 0);
        is_armed || self.disarmed.borrow().iter().any(|&(_, fired)| fired > 0)
    }

    /// The disarmed rules that injected nothing, each once.
    fn unfired(&self) -> Vec<Rule> {
        let disarmed = self.disarmed.borrow();
        let mut unfired = Vec::new();
        for &(rule, _) in disarmed.iter() {
            let fired = disarmed.iter().any(|&(other, fired)| fired > 0 && other == rule);
            if !fired && !unfired.contains(&rule) {
                unfired.push(rule);
            }
        }
        unfired
    }

    /// The sum of the delays that disarmed rules injected.
    fn delays(&self) -> Duration {
        let disarmed = self.disarmed.borrow();
        let delays = disarmed.iter().map(|&(rule, fired)| match rule.verdict {
            Verdict::Delay(time) => time.saturating_mul(u32::try_from(fired).unwrap_or(u32::MAX)),
            _ => Duration::ZERO,
        });
        delays.fold(Duration::ZERO, Duration::saturating_add)
    }
}

impl World {
    /// Makes a device of a spec: a mock with `clock=virtual`, without layers.
    ///
    /// # Errors
    /// - `InvalidInput`: the spec is not such a mock.
    /// - `OutOfMemory`: the host has no memory for it.
    pub fn new(spec: &DeviceSpec) -> Result<Self> {
        Self::make(spec, Arc::new(Mock::new))
    }

    /// As [`new`](Self::new), with device memory that code may export as real descriptors. Exports
    /// make system calls.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_descriptors(spec: &DeviceSpec) -> Result<Self> {
        Self::make(spec, Arc::new(Mock::with_descriptors))
    }

    /// As [`new`](Self::new), in the time of a clock that other worlds use too. Its owner
    /// restarts it.
    pub(crate) fn on_clock(spec: &DeviceSpec, clock: &VirtualClock) -> Result<Self> {
        let clock = clock.clone();
        Self::make(spec, Arc::new(move |mock| Mock::on_clock(mock, clock.clone())))
    }

    fn make(spec: &DeviceSpec, make: Make) -> Result<Self> {
        let invalid = |why: &str| {
            Error::new(ErrorKind::InvalidInput, "faults")
                .because(why.to_owned())
                .saw(spec, DEVICE)
        };
        let mock = match &spec.backend {
            BackendSpec::Mock(mock) if spec.layers.is_empty() => make(mock)?,
            _ => {
                return Err(invalid(
                    "fault runs need a mock without layers: they add the faults",
                ));
            }
        };
        let clock = mock
            .clock()
            .ok_or_else(|| invalid("fault runs need a mock with clock=virtual"))?;
        // Small, so that copies of a few kilobytes take several packets and submissions.
        let mut options = Options::default();
        options.packet_bytes = 512;
        options.packets_per_submission = 2;
        options.command_buffers = 4;
        options.command_buffer_bytes = 512;
        options.staging_bytes = 1024;
        // Each case removes memory from the device's caches. Without this, each removal would
        // interrupt the other threads that run cases. If the process has used a map before, the
        // removals only take longer.
        let _ = gaudi_ranges::prefer_cheap_removals();
        let region = Region::new().map_err(|errno| Error::from_errno("mmap", errno))?;
        let entered = region.enter();
        // The mock allocates its memory at the first open, and keeps the memory.
        drop((mock.open()?, entered));
        Ok(Self {
            spec: spec.clone(),
            make,
            mock,
            time: Arc::new(clock.clone()),
            clock,
            record: SharedRecord::default(),
            options,
            off: Vec::new(),
            budget: Duration::from_secs(3600),
            driver_layer: None,
            code_layer: None,
            region,
            pool: Pool::default(),
            rules: Rules::default(),
            is_virtual: true,
            is_inner: false,
            has_domain: false,
        })
    }

    /// Makes deadlines of the code use the machine's time: it also waits for other threads. The
    /// device's time stays virtual.
    pub(crate) fn in_real_time(mut self) -> Self {
        self.is_virtual = false;
        self
    }

    /// Leaves the host memory to the world in whose runs those of this one happen.
    pub(crate) fn inside(mut self, is_inner: bool) -> Self {
        self.is_inner = is_inner;
        self
    }

    /// Makes a memory domain of the device for each run.
    pub(crate) fn with_domain(mut self) -> Self {
        self.has_domain = true;
        self
    }

    /// Sets the options of the device.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the budget of virtual time of a run, without the delays of its plan.
    #[must_use]
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Switches an invariant off.
    #[must_use]
    pub fn without(mut self, invariant: Invariant) -> Self {
        self.off.push(invariant);
        self
    }

    /// Puts a layer between the driver and the faults: a driver with a defect.
    #[must_use]
    pub fn with_driver_layer(mut self, wrap: impl Fn(SharedIo) -> SharedIo + 'static) -> Self {
        self.driver_layer = Some(Box::new(wrap));
        self
    }

    /// Puts a layer between the faults and the code under test: a library with a defect.
    #[must_use]
    pub fn with_code_layer(mut self, wrap: impl Fn(SharedIo) -> SharedIo + 'static) -> Self {
        self.code_layer = Some(Box::new(wrap));
        self
    }

    /// Runs code on the device under a plan, and checks the invariants. `seed` orders the chip's
    /// work if the spec has `order=stepped`.
    ///
    /// An error that `code` returns must be one that a fault caused. Beside the code's own, the
    /// device has two buffers whose bytes must not change.
    ///
    /// # Errors
    /// Those of making the device as new and opening it, without faults.
    pub fn run(
        &mut self,
        plan: &Plan,
        seed: u64,
        code: impl FnOnce(&Device) -> Result<()>,
    ) -> Result<Outcome> {
        self.run_with(seed, |run| {
            let canaries = Canaries::new(run.device)?;
            run.arm(plan);
            let answer = catch_unwind(AssertUnwindSafe(|| code(run.device)));
            // The record has no faults of the chip: the chip counts them.
            let has_fired = run.rules.has_fired();
            let mut record = run.record.lock();
            match answer {
                Ok(Ok(())) => {}
                Ok(Err(error)) if record.met.is_empty() && !has_fired => record.violated(
                    Invariant::TruthfulErrors,
                    format!("the code failed, and no fault was injected: {error}"),
                ),
                Ok(Err(_)) => {}
                Err(panic) => record.violated(Invariant::Panics, message(&*panic)),
            }
            let trusts = !record.false_end && !record.work_failed;
            drop(record);
            run.disarm();
            if trusts {
                canaries.check(run);
            }
            Ok(())
        })
    }

    /// As [`run`](Self::run), for code that arms the plan itself.
    pub(crate) fn run_with(
        &mut self,
        seed: u64,
        code: impl FnOnce(&Run<'_>) -> Result<()>,
    ) -> Result<Outcome> {
        hush();
        match self.mock.restart(seed) {
            Err(error) if error.kind() == ErrorKind::InUse => {
                self.renew()?;
                self.mock.restart(seed)?;
            }
            answer => answer?,
        }
        self.record.restart();
        let _clock = self.is_virtual.then(|| self.clock.enter());
        let _region = (!self.is_inner).then(|| self.region.enter());
        let pages = self.region.pages_in_use();
        let begin = self.clock.now_ns();
        let quiet = Quiet::begin();
        let Opened {
            node,
            device,
            faults,
            domain,
        } = self.open()?;
        let rules = &self.rules;
        rules.restart();
        let run = &Run {
            device: &device,
            domain: domain.as_ref(),
            record: &self.record,
            pool: &self.pool,
            faults: &faults,
            rules,
        };
        let ran = catch_unwind(AssertUnwindSafe(|| code(run)));
        let failed = match ran {
            Ok(answer) => answer.err(),
            Err(panic) => {
                self.record.lock().violated(Invariant::Panics, message(&*panic));
                None
            }
        };
        self.record.begin();
        drop(domain);
        let closed = catch_unwind(AssertUnwindSafe(|| self.close(device, &node)));
        if let Err(panic) = closed {
            self.record.lock().violated(Invariant::Panics, message(&*panic));
        }
        if let Some(error) = failed {
            return Err(error);
        }
        rules.disarm();
        let (log, unfired, delays) = (faults.log(), rules.unfired(), rules.delays());
        drop((faults, quiet));
        let mut record = self.record.lock();
        let left = self.region.pages_in_use().saturating_sub(pages);
        if left > 0 && record.violations.is_empty() {
            record.violated(
                Invariant::HostMemory,
                format!("{left} pages of host memory stay mapped"),
            );
        }
        let took = Duration::from_nanos(self.clock.now_ns().saturating_sub(begin));
        if took > self.budget.saturating_add(delays) {
            record.violated(
                Invariant::TimeBudget,
                format!(
                    "the run took {took:?} of virtual time, expected at most {:?}",
                    self.budget
                ),
            );
        }
        drop(record);
        if node.strong_count() == 0 {
            self.check_reset();
        }
        let mut record = self.record.lock();
        let mut violations = std::mem::take(&mut record.violations);
        violations.retain(|violation| !self.off.contains(&violation.invariant));
        // The log has the newest faults only.
        let forgotten = usize::try_from(log.forgotten).unwrap_or(usize::MAX);
        let met = record.met.iter().skip(forgotten).zip(&log.events);
        Ok(Outcome {
            violations,
            met: met
                .filter_map(|(&(operation, state), event)| Some(Met::new(event.rule?, operation, state)))
                .collect(),
            nic_fired: Vec::new(),
            has_device_fault: rules.has_fired(),
            unfired,
            calls: self.record.calls(),
            took,
        })
    }

    /// Makes another device: an object of an earlier run holds the node of this one.
    fn renew(&mut self) -> Result<()> {
        let Self {
            mock,
            clock,
            time,
            record,
            region,
            ..
        } = Self::make(&self.spec, Arc::clone(&self.make))?;
        // The old record is that of the earlier run's layers, the old region that of its memory.
        (self.mock, self.clock, self.time) = (mock, clock, time);
        (self.record, self.region) = (record, region);
        Ok(())
    }

    fn open(&self) -> Result<Opened> {
        let wrap = |layer: &Option<Wrap>, io: SharedIo| match layer {
            Some(wrap) => wrap(io),
            None => io,
        };
        let driver = DriverWatch {
            inner: wrap(&self.driver_layer, self.mock.open()?),
            record: self.record.clone(),
        };
        let inner = FaultLayer::new(Arc::new(driver), &Plan::default(), Arc::clone(&self.time));
        let faults = inner.handle();
        let io = Arc::new(CodeWatch {
            inner,
            record: self.record.clone(),
            faults: faults.clone(),
        });
        let node = Arc::downgrade(&io);
        let (io, options) = (wrap(&self.code_layer, io), self.options.clone());
        let (device, domain) = match self.has_domain {
            false => (Device::with_options(io, options)?, None),
            true => {
                let domain = open_domain(io, options)?;
                (domain.device()?.clone(), Some(domain))
            }
        };
        Ok(Opened {
            node,
            device,
            faults,
            domain,
        })
    }

    /// Closes the device. Only a refusal, or work that may run, excuses that it is held. Neither
    /// excuses that the node stays open.
    fn close(&self, device: Device, node: &Weak<CodeWatch>) {
        let ledger = self.mock.ledger();
        let mut record = self.record.lock();
        let counts = |name: &str, held: usize, known: usize| {
            (held != known).then(|| format!("the driver holds {held} {name}, and {known} are not released"))
        };
        let left = [
            counts("allocations", ledger.allocations, record.allocations.len()),
            counts("mappings", ledger.mappings, record.mappings.len()),
            counts("command buffers", ledger.command_buffers, record.buffers.len()),
        ];
        for what in left.into_iter().flatten() {
            record.violated(Invariant::Leaks, what);
        }
        if ledger.exported {
            record.violated(
                Invariant::Descriptors,
                "an export of device memory is open after the run",
            );
        }
        drop(record);
        let Err(failed) = device.close() else { return };
        let (device, error) = failed.into_parts();
        let record = self.record.lock();
        let is_refused = !record.refused.is_empty() || !record.refusals.is_empty();
        let excused = is_refused || record.work_may_run();
        // The drop of the node locks it.
        drop(record);
        drop(device);
        let mut record = self.record.lock();
        if !excused || node.strong_count() > 0 {
            record.violated(
                Invariant::Leaks,
                format!("the device is still held after the run: {error}"),
            );
        }
    }

    /// After a reset, the next user gets a device that works.
    fn check_reset(&self) {
        if !self.record.lock().was_reset {
            return;
        }
        self.record.lock().is_paused = true;
        let works = self.open().and_then(
            |Opened {
                 device,
                 faults,
                 domain,
                 ..
             }| {
                let buffer = device.alloc(64)?;
                device.fill(&buffer, 1)?.wait(Duration::from_secs(60))?;
                drop((buffer, faults, domain));
                device.close().map_err(Error::from)
            },
        );
        let mut record = self.record.lock();
        record.is_paused = false;
        if let Err(error) = works {
            record.violated(
                Invariant::Reset,
                format!("after a reset and a close the device does not work: {error}"),
            );
        }
    }
}

impl Run<'_> {
    /// Arms the plan: the operations that its schedules count begin here.
    pub(crate) fn arm(&self, plan: &Plan) {
        let armed = plan.rules.iter().map(|&rule| (rule, self.faults.arm(rule)));
        self.rules.armed.borrow_mut().extend(armed);
    }

    pub(crate) fn disarm(&self) {
        self.rules.disarm();
    }

    /// Whether a rule of the run has injected a fault.
    pub(crate) fn has_fired(&self) -> bool {
        self.rules.has_fired()
    }
}

/// Opens a memory domain whose operations take several submissions.
fn open_domain(io: SharedIo, options: Options) -> Result<MemoryDomain> {
    let target = DEVICE.parse().unwrap_or_else(|error| unreachable!("{error}"));
    let mut config = Config::default();
    config.short_bytes = 256;
    config.bcopy_bytes = 2048;
    config.outstanding = 3;
    config.batch = 3;
    MemoryDomain::over(io, &target, config, options)
}

/// Buffers beside those of the code.
pub(crate) struct Canaries([Buffer; 2]);

impl Canaries {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let canaries = [device.alloc(CANARY)?, device.alloc(CANARY)?];
        for canary in &canaries {
            device.fill(canary, PATTERN)?.wait(Duration::from_secs(60))?;
        }
        Ok(Self(canaries))
    }

    pub(crate) fn check(self, run: &Run<'_>) {
        for canary in &self.0 {
            let mut seen = [0; CANARY as usize];
            // In reset it cannot be read.
            if run.device.read(canary, 0, &mut seen).is_ok() && seen != [PATTERN; CANARY as usize] {
                run.record.lock().violated(
                    Invariant::ForeignBytes,
                    format!("bytes of {canary:?} changed, which the code does not own"),
                );
            }
        }
    }
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Panics of this thread are not printed: they are results, and reduction repeats them.
pub(crate) struct Quiet(bool);

impl Quiet {
    pub(crate) fn begin() -> Self {
        Self(IS_QUIET.replace(true))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        IS_QUIET.set(self.0);
    }
}

fn hush() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                print(info);
            }
        }));
    });
}
