//! Runs cases and reports violations.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gaudi_device::{Buffer, Deadline, Device, HostMapping};
use gaudi_hal::Ledger;
use gaudi_seam::{DeviceSpec, Errno, Error, Result};
use gaudi_sys::event::Event;
use nix::sys::eventfd::EventFd;

use crate::case::Case;
use crate::mutant::Mutation;
use crate::watchers::SharedRecord;
use crate::world::World;

/// Totals over cases.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Cases that ran.
    pub cases: u64,
    /// Cases in which at least one fault was injected.
    pub with_faults: u64,
    /// Operations of the cases.
    pub operations: u64,
    /// Calls to the driver.
    pub calls: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Refusals that the stack received, by errno: from the plans and from the driver.
    pub errnos: BTreeMap<String, u64>,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.cases += other.cases;
        self.with_faults += other.with_faults;
        self.operations += other.operations;
        self.calls += other.calls;
        self.faults += other.faults;
        for (name, count) in &other.errnos {
            *self.errnos.entry(name.clone()).or_default() += count;
        }
    }
}

/// A case that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The case after reduction.
    pub case: Case,
    /// The numbers of the generated operations that remain.
    pub kept: Vec<usize>,
    /// The violations, one sentence each.
    pub violations: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case = &self.case;
        writeln!(f, "seed {} case {} failed:", case.seed, case.number)?;
        for violation in &self.violations {
            writeln!(f, "    {violation}")?;
        }
        writeln!(
            f,
            "  {} order, {} bytes per packet, {} packets per submission, {} command buffers, plan: {}",
            if case.stepped { "stepped" } else { "running" },
            case.packet_bytes,
            case.packets,
            case.slots,
            case.plan
        )?;
        for (number, op) in self.kept.iter().zip(&case.ops) {
            writeln!(f, "    {number:3}  {op}")?;
        }
        let only: Vec<String> = self.kept.iter().map(ToString::to_string).collect();
        write!(
            f,
            "  again: cargo run -p gaudi-sim --release -- --seed {} --case {} --only '{}' --plan '{}'",
            case.seed,
            case.number,
            only.join(","),
            case.plan
        )
    }
}

/// Another device in the same process. No case may change its state.
struct Bystander {
    spec: DeviceSpec,
    ledger: Ledger,
    buffer: Buffer,
    host: HostMapping,
    bytes: Vec<u8>,
}

impl Bystander {
    fn new() -> Result<Self> {
        // Each runner of a process has its own.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let spec: DeviceSpec = format!("mock:gaudi2?name=sim-bystander-{number}&clock=virtual")
            .parse()
            .map_err(|_| Error::new(gaudi_seam::ErrorKind::InvalidInput, "open"))?;
        let device = Device::open(&spec)?;
        let (buffer, host) = (device.alloc(500)?, device.alloc_host(500)?);
        let bytes: Vec<u8> = (0..500_u32).map(|at| (at * 37) as u8).collect();
        host.write(0, &bytes)?;
        device.copy(&buffer, &host)?.wait(Deadline::NEVER)?;
        drop(device);
        let ledger = gaudi_hal::mock_ledger(&spec).unwrap_or_default();
        Ok(Self {
            spec,
            ledger,
            buffer,
            host,
            bytes,
        })
    }

    fn is_untouched(&self) -> bool {
        let mut seen = vec![0; self.bytes.len()];
        let read = self.host.read(0, &mut seen).is_ok();
        read && seen == self.bytes
            && self.buffer.len() == self.bytes.len() as u64
            && gaudi_hal::mock_ledger(&self.spec) == Some(self.ledger)
    }
}

/// Runs cases one after another in this thread.
pub struct Runner {
    bystander: Bystander,
    mutation: Option<Mutation>,
    beat: Arc<AtomicU64>,
    /// What all cases did so far.
    pub counts: Counts,
}

/// Returns the open descriptors and the address space, in pages, of this process.
fn holdings() -> (usize, u64) {
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').next().and_then(|word| word.parse().ok());
    (descriptors, pages.unwrap_or(0))
}

/// Signals an eventfd once: the first signal of a process makes a descriptor that stays open.
fn share_signals() -> std::result::Result<(), Errno> {
    Event::of(EventFd::new()?.into())?.signal()
}

impl Runner {
    /// Makes a runner. A mutation breaks one rule in every case.
    ///
    /// # Errors
    /// The error of making an eventfd or the bystander's mock.
    pub fn new(mutation: Option<Mutation>) -> Result<Self> {
        share_signals().map_err(|errno| Error::from_errno("eventfd", errno))?;
        Ok(Self {
            bystander: Bystander::new()?,
            mutation,
            beat: Arc::default(),
            counts: Counts::default(),
        })
    }

    /// Returns the counter of runs, including those that reduce a case.
    pub fn beat(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.beat)
    }

    /// Runs one case and returns its violations.
    pub fn run(&mut self, case: &Case) -> Vec<String> {
        let (descriptors, pages) = holdings();
        let mut violations = self.run_once(case);
        let after = holdings();
        if after.0 != descriptors {
            violations.push(format!(
                "leak: {} descriptors before the case, {} after it",
                descriptors, after.0
            ));
        }
        if after.1 > pages && violations.is_empty() {
            // The allocator's arena grows sometimes; a leak grows in every run.
            let grows = (0..16).all(|_| {
                let before = holdings().1;
                violations.extend(self.run_once(case));
                holdings().1 > before
            });
            if grows {
                violations.push(format!(
                    "leak: every run of the case leaves address space mapped, {} pages after the first",
                    after.1 - pages
                ));
            }
        }
        if !self.bystander.is_untouched() {
            violations.push("the case changed the state of another device".to_owned());
        }
        violations
    }

    fn run_once(&mut self, case: &Case) -> Vec<String> {
        self.beat.fetch_add(1, Ordering::Relaxed);
        let record = SharedRecord::default();
        let order = match case.stepped {
            true => "&order=stepped",
            false => "",
        };
        let spec = format!(
            "mock:gaudi2?name=sim-{}&dram=3GiB&clock=virtual&seed={}{order}",
            case.number,
            case.seed & 0xffff
        );
        let mutation = self.mutation;
        let mine = record.clone();
        let outcome = catch_unwind(AssertUnwindSafe(move || match spec.parse() {
            Ok(spec) => run_world(case, &mine, spec, mutation),
            Err(error) => mine
                .lock()
                .violated(format!("the spec {spec} does not parse: {error:?}")),
        }));
        let mut record = record.lock();
        if let Err(panic) = outcome {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            record.violated(format!("panic: {message}"));
        }
        self.counts.add(&Counts {
            cases: 1,
            with_faults: u64::from(record.plan.injected > 0),
            operations: case.ops.len() as u64,
            calls: record.all_calls,
            faults: record.plan.injected,
            errnos: std::mem::take(&mut record.errnos),
        });
        std::mem::take(&mut record.violations)
    }
}

fn run_world(case: &Case, record: &SharedRecord, spec: DeviceSpec, mutation: Option<Mutation>) {
    let failed = |what: &str, error: Error| {
        record
            .lock()
            .violated(format!("{what}, and no fault was injected: {error:?}"));
    };
    let mut world = match World::new(case, record.clone(), spec, mutation) {
        Ok(world) => world,
        Err(error) => return failed("the control node cannot be opened", error),
    };
    if let Err(error) = world.open() {
        return failed("the device cannot be opened", error);
    }
    for &op in &case.ops {
        world.step(op);
        // Later violations are mostly consequences of the first.
        if !record.lock().violations.is_empty() {
            break;
        }
    }
    world.close();
}
