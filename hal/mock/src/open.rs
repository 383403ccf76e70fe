//! Which devices there are, who has one open, and what a close leaves behind.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use gaudi_model::{Chip, ChipConfig, Mode, Reset};
use gaudi_seam::{DeviceId, Era, Errno, Error, ErrorKind, KernelIo, MockSpec, Node, NodeKind, Order, Result};
use gaudi_spec::gaudi2;
use gaudi_uapi::info::DeviceStatus;

use crate::block::Blocks;
use crate::buffer::Buffers;
use crate::captured::{Captured, EventCounts, Notifier};
use crate::debug::Debugging;
use crate::engine;
use crate::interrupt::Interrupts;
use crate::memory::{Allocation, Mapping, VaSpaces};
use crate::node::MockNode;
use crate::pages::PagePool;
use crate::queue::{self, Progress};
use crate::reset::Watchdog;
use crate::signal::{DriverBuffers, Signals};
use crate::submissions::{Drops, Submissions};
use crate::time::Timekeeper;

/// All devices of this process. A device that nobody uses goes away with its memory; one that exports still hold open is kept.
static DEVICES: Mutex<BTreeMap<(String, u32), Entry>> = Mutex::new(BTreeMap::new());

enum Entry {
    /// Somebody has a node open.
    Used(Weak<Device>),
    /// Closed, but an export holds the context: the driver keeps the file open (memory.c:1890).
    Held(Arc<Device>),
}

/// One mock card and its driver.
pub(crate) struct Device {
    pub(crate) spec: MockSpec,
    pub(crate) id: DeviceId,
    state: Mutex<State>,
    /// Signalled when work was done or the device's status changed.
    pub(crate) changed: Condvar,
    /// Counts what `changed` signals.
    pub(crate) progress: Progress,
}

/// What the driver keeps of a device.
pub(crate) struct State {
    pub(crate) chip: Chip,
    /// Command buffers in each queue.
    pub(crate) queued: Box<[u16; gaudi2::queue::COUNT as usize]>,
    pub(crate) interrupts: Interrupts,
    pub(crate) signals: Signals,
    pub(crate) clock: Timekeeper,
    pub(crate) status: DeviceStatus,
    /// Pages of device memory that users may have.
    pub(crate) pages: PagePool,
    /// `hl_vm.phys_pg_pack_handles`: of the device, not of the context.
    pub(crate) allocations: BTreeMap<u32, Allocation>,
    pub(crate) context: Option<Context>,
    /// The user closed its node; exports keep the context.
    pub(crate) closed: bool,
    pub(crate) opens: u64,
    pub(crate) opened_ns: u64,
    pub(crate) closed_ns: Option<(u64, u64)>,
    pub(crate) hard_resets: u32,
    /// Of users that are gone.
    past_drops: Drops,
    pub(crate) captured: Captured,
    pub(crate) events: EventCounts,
    pub(crate) debugging: Debugging,
    /// The reset that waits for the user to go, and when it comes at the latest (device.c:2033).
    pub(crate) watchdog: Option<Watchdog>,
    /// The last slice of work ended before the work did.
    pub(crate) unfinished: bool,
    /// What stopped a stream, newest last, for people: a few.
    pub(crate) stops: VecDeque<String>,
}

/// What the driver keeps of the one user (`struct hl_ctx`).
pub(crate) struct Context {
    pub(crate) va: VaSpaces,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) buffers: Buffers,
    pub(crate) blocks: Blocks,
    pub(crate) driver_buffers: DriverBuffers,
    pub(crate) submissions: Submissions,
    pub(crate) notifier: Notifier,
    pub(crate) dram_bytes: u64,
}

/// What a device's user has not given back. All zero after a careful one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ledger {
    /// Device memory allocations.
    pub allocations: usize,
    /// Bytes of device memory in them.
    pub dram_bytes: u64,
    /// Mappings of device and host memory.
    pub mappings: usize,
    /// Command buffers whose handle is not destroyed, or whose memory is mapped or in use.
    pub command_buffers: usize,
    /// Submissions that are not done.
    pub in_flight: usize,
    /// Whether any export is alive, in any process.
    pub exported: bool,
}

impl Ledger {
    /// Whether everything was given back.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

impl Device {
    fn new(spec: &MockSpec) -> Result<Self> {
        let id = spec.id();
        let mode = match spec.order {
            Order::Running => Mode::Running,
            Order::Stepped => Mode::Stepped { seed: spec.seed },
        };
        let chip = Chip::new(ChipConfig {
            dram_user_bytes: spec.dram,
            mode,
        })
        .map_err(|error| {
            Error::new(ErrorKind::OutOfMemory, "open")
                .on(id)
                .because(format!("the virtual chip cannot be made: {error}"))
                .helped_by("lift the limit on address space (ulimit -v), or ask for less device memory: mock:gaudi2?dram=768MiB")
        })?;
        let pages = usize::try_from(spec.dram / gaudi2::DRAM_PAGE).unwrap_or(0);
        let state = State {
            chip,
            queued: Box::new(queue::untouched()),
            interrupts: Interrupts::default(),
            signals: Signals::default(),
            clock: Timekeeper::new(spec.clock),
            status: DeviceStatus::OPERATIONAL,
            pages: PagePool::new(pages),
            allocations: BTreeMap::new(),
            context: None,
            closed: false,
            opens: 0,
            opened_ns: 0,
            closed_ns: None,
            hard_resets: 0,
            past_drops: Drops::default(),
            captured: Captured::default(),
            events: EventCounts::default(),
            debugging: Debugging::default(),
            watchdog: None,
            unfinished: false,
            stops: VecDeque::new(),
        };
        Ok(Self {
            spec: spec.clone(),
            id,
            state: Mutex::new(state),
            changed: Condvar::new(),
            progress: Progress::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a defect of the mock; its other users still get answers that are as good as the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_compute(&self) -> Result<()> {
        let mut state = self.lock();
        state.settle();
        let busy = |kind, errno, why: &str| {
            Err(Error::new(kind, "open")
                .with_errno(errno)
                .on(self.id)
                .because(why.to_owned()))
        };
        match state.status {
            DeviceStatus::OPERATIONAL => {}
            // habanalabs_drv.c:205
            DeviceStatus::IN_RESET | DeviceStatus::IN_RESET_AFTER_DEVICE_RELEASE => {
                return busy(ErrorKind::InReset, Errno::EAGAIN, "the device is being reset");
            }
            _ => {
                return busy(
                    ErrorKind::PermissionDenied,
                    Errno::EPERM,
                    "the device is not operational",
                );
            }
        }
        if state.context.is_some() {
            // habanalabs_drv.c:233; a dma-buf holds the file and with it the context (memory.c:1883, 1890).
            let why = if state.closed {
                "its last user closed it, but exported dma-bufs still hold it"
            } else {
                "another user has it open"
            };
            return busy(ErrorKind::Busy, Errno::EBUSY, why);
        }
        let context = Context::new(self.id, &mut state.chip)?;
        let doorbell = state.chip.mmu_map_doorbell(gaudi2::DOORBELL_VA);
        debug_assert!(
            doorbell.is_ok(),
            "nothing is mapped where the doorbell goes: {doorbell:?}"
        );
        state.context = Some(context);
        state.closed = false;
        state.opens += 1;
        state.opened_ns = state.clock.now_ns();
        // habanalabs_drv.c:252
        state.captured = Captured::default();
        Ok(())
    }

    /// The user's last descriptor is gone.
    pub(crate) fn close_compute(self: &Arc<Self>) {
        let mut state = self.lock();
        state.closed = true;
        state.settle();
        let held = state.context.is_some();
        drop(state);
        self.changed.notify_all();
        let mut devices = devices();
        let key = (self.spec.name.clone(), self.spec.index);
        if held {
            devices.insert(key, Entry::Held(Arc::clone(self)));
        }
    }

    /// The ledger of this device now.
    pub(crate) fn ledger(&self) -> Ledger {
        let mut state = self.lock();
        state.settle();
        let context = state.context.as_ref();
        Ledger {
            allocations: state.allocations.len(),
            dram_bytes: state.allocations.values().map(Allocation::bytes).sum(),
            mappings: context.map_or(0, |context| context.mappings.len()),
            command_buffers: context.map_or(0, |context| context.buffers.len()),
            in_flight: context.map_or(0, |context| context.submissions.in_flight()),
            exported: state.is_exported(),
        }
    }
}

impl State {
    /// Lets happen what the driver does by itself: a release that waited for the last export, a timeout that has passed.
    pub(crate) fn settle(&mut self) {
        self.expire();
        if self.closed && self.context.is_some() && !self.is_exported() {
            self.release();
        }
    }

    /// Submissions refused since the device was made, its last user's included.
    pub(crate) fn drops(&self) -> Drops {
        let own = self
            .context
            .as_ref()
            .map(|context| context.submissions.drops)
            .unwrap_or_default();
        self.past_drops.plus(own)
    }

    pub(crate) fn reset_engines(&mut self, depth: Reset) {
        *self.queued = queue::untouched();
        self.unfinished = false;
        // hw_queue.c:976
        self.signals = Signals::default();
        if let Err(error) = self.chip.reset(depth) {
            self.keep(format!("the reset could not give memory back: {error}"));
        }
    }

    /// The context goes, and with it all that it still holds (context.c `hl_ctx_fini`); then the driver resets the engines
    /// (`reset_upon_device_release` of Gaudi2).
    fn release(&mut self) {
        let Some(mut context) = self.context.take() else {
            return;
        };
        // A reset that waited for the user comes now (device.c:484). So does one where work that has not ended or signals that stay reserved
        // hold the context that its user has closed (command_submission.c:2043): only a hard reset frees it (device.c:619).
        let in_use = context.submissions.in_flight() > 0
            || self.signals.has_reserved()
            || engine::busy(&self.chip) != 0;
        let ordinary = !self.watchdog.take().is_some_and(|watchdog| watchdog.hard)
            && self.status == DeviceStatus::OPERATIONAL
            && !in_use;
        let depth = if ordinary { Reset::Soft } else { Reset::Hard };
        self.reset_engines(depth);
        self.chip.clear_user_sync();
        for (va, mapping) in std::mem::take(&mut context.mappings) {
            self.drop_mapping(&mut context, va, mapping);
        }
        debug_assert!(context.va.are_whole(), "every mapping was given back");
        // context.c:111
        self.debugging = Debugging::default();
        // What stopped this user's streams is no business of the next one's.
        self.stops.clear();
        self.past_drops = self.past_drops.plus(context.submissions.drops);
        context.buffers.release(&mut self.chip);
        context.driver_buffers.release(&mut self.chip);
        self.chip.mmu_unmap(gaudi2::DOORBELL_VA);
        for (_, allocation) in std::mem::take(&mut self.allocations) {
            self.discard(&allocation);
        }
        let now = self.clock.now_ns();
        self.closed = false;
        self.closed_ns = Some((self.opened_ns, now));
        // device.c:1977: the reset after an ordinary close is not counted.
        if !ordinary {
            // The hard reset that a timeout asked for waited for the user to go (device.c `hl_device_reset`).
            self.hard_resets += 1;
            // gaudi2.c:6812
            self.events.now.fill(0);
            self.status = DeviceStatus::OPERATIONAL;
        }
    }
}

impl Context {
    fn new(id: DeviceId, chip: &mut Chip) -> Result<Self> {
        let (va, pool, drivers) = VaSpaces::new().ok_or(Error::new(ErrorKind::OutOfMemory, "open").on(id))?;
        Ok(Self {
            va,
            mappings: BTreeMap::new(),
            buffers: Buffers::new(id, pool)?,
            blocks: Blocks::default(),
            driver_buffers: DriverBuffers::new(id, chip, drivers)?,
            submissions: Submissions::new(),
            notifier: Notifier::default(),
            dram_bytes: 0,
        })
    }
}

fn devices() -> MutexGuard<'static, BTreeMap<(String, u32), Entry>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device of a spec: the one that is there, or a new one.
fn device(spec: &MockSpec) -> Result<Arc<Device>> {
    let mut devices = devices();
    let key = (spec.name.clone(), spec.index);
    // What only exports held open is anybody's again once they are gone, and goes with its last node.
    for entry in devices.values_mut() {
        if let Entry::Held(device) = entry {
            let mut state = device.lock();
            state.settle();
            if state.context.is_none() {
                let device = Arc::downgrade(device);
                drop(state);
                *entry = Entry::Used(device);
            }
        }
    }
    devices.retain(|_, entry| match entry {
        Entry::Used(device) => device.strong_count() > 0,
        Entry::Held(_) => true,
    });
    let existing = match devices.get(&key) {
        Some(Entry::Used(device)) => device.upgrade(),
        Some(Entry::Held(device)) => Some(Arc::clone(device)),
        None => None,
    };
    if let Some(device) = existing {
        if (device.spec.dram, device.spec.order) != (spec.dram, spec.order) {
            return Err(Error::new(ErrorKind::InvalidInput, "open")
                .on(device.id)
                .because("this process has a mock of that name and index with other memory or order")
                .saw(spec, &device.spec)
                .helped_by("give one of them another name or index"));
        }
        return Ok(device);
    }
    let device = Arc::new(Device::new(spec)?);
    devices.insert(key, Entry::Used(Arc::downgrade(&device)));
    Ok(device)
}

fn node(device: &Arc<Device>, kind: NodeKind) -> Arc<MockNode> {
    let node = Node {
        kind,
        device: device.id,
        era: Era::AccelDrm,
        name: device.spec.to_string(),
    };
    Arc::new(MockNode::new(Arc::clone(device), node))
}

/// Opens the compute node: one user at a time, `Busy` (`EBUSY`) for the second.
pub fn open(spec: &MockSpec) -> Result<Arc<dyn KernelIo>> {
    let device = device(spec)?;
    device.open_compute()?;
    Ok(node(&device, NodeKind::Compute))
}

/// Opens the control node: information only, any number of users, and none of them disturbs the compute node's.
pub fn control(spec: &MockSpec) -> Result<Arc<dyn KernelIo>> {
    Ok(node(&device(spec)?, NodeKind::Control))
}

/// The mocks of this process that somebody uses, by name and index.
pub fn list() -> Vec<MockSpec> {
    let devices = devices();
    let mut specs: Vec<_> = devices
        .values()
        .filter_map(|entry| match entry {
            Entry::Used(device) => device.upgrade().map(|device| device.spec.clone()),
            Entry::Held(device) => Some(device.spec.clone()),
        })
        .collect();
    specs.sort_by(|a, b| (&a.name, a.index).cmp(&(&b.name, b.index)));
    specs
}

/// What the user of a mock has not given back; `None` where this process has no such mock.
pub fn ledger(spec: &MockSpec) -> Option<Ledger> {
    let device = match devices().get(&(spec.name.clone(), spec.index))? {
        Entry::Used(device) => device.upgrade()?,
        Entry::Held(device) => Arc::clone(device),
    };
    Some(device.ledger())
}
