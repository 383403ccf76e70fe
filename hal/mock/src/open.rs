//! A device of the mock, and opening and closing its compute node.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_model::{ChipConfig, MemoryKind, Mode, ModelError};
use gaudi_seam::{
    DeviceId, DriverState, Errno, Error, ErrorKind, MockSpec, Operation, Order, Request, Result, Rule, rules,
};
use gaudi_spec::Asic;
use gaudi_sys::Memfd;
use gaudi_uapi::info::DeviceStatus;

use crate::error_info::ErrorInfo;
use crate::state::{Context, State};
use crate::wakeups::Wakeups;

/// One mock card and its driver.
pub(crate) struct Device {
    pub(crate) spec: MockSpec,
    pub(crate) id: DeviceId,
    /// The text of `spec`.
    pub(crate) name: String,
    /// The chip's constants, for use without the lock.
    pub(crate) asic: &'static Asic,
    state: Mutex<State>,
    /// Notified when work completes or the device's status changes.
    pub(crate) wakeups: Wakeups,
}

/// The objects that a device's user has not released.
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
    /// Submissions that have not completed.
    pub in_flight: usize,
    /// Whether an export exists, in any process.
    pub exported: bool,
}

impl Ledger {
    /// Whether everything was released.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

impl Device {
    pub(crate) fn new(spec: &MockSpec, memory: MemoryKind) -> Result<Self> {
        let id = spec.id();
        let mode = match spec.order {
            Order::Running => Mode::Running,
            Order::Stepped => Mode::Stepped { seed: spec.seed },
        };
        let config = ChipConfig {
            dram_user_bytes: spec.dram,
            mode,
            memory,
        };
        let engine = gaudi_model::engine(spec.chip, config).map_err(|error| {
            let cause = format!("the virtual chip cannot be made: {error}");
            if let ModelError::Memory { errno, .. } = error {
                if matches!(errno, Errno::EMFILE | Errno::ENFILE) {
                    return Error::from_errno("open", errno).on(id).because(cause);
                }
            }
            let page = gaudi_spec::asic(spec.chip).map_or(0, |asic| asic.dram_page);
            Error::new(ErrorKind::OutOfMemory, "open")
                .on(id)
                .because(cause)
                .helped_by(format!(
                    "lift the limit on address space (ulimit -v), or ask for less device memory: mock:{}?dram={}MiB",
                    spec.chip,
                    page >> 20
                ))
        })?;
        Ok(Self {
            spec: spec.clone(),
            id,
            name: spec.to_string(),
            asic: engine.asic(),
            state: Mutex::new(State::new(spec, engine, memory)),
            wakeups: Wakeups::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a defect of the mock. Other users continue with the state as it
        // is.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the device for an operation that needs an operational one.
    pub(crate) fn enter(&self, operation: Operation) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        self.operational(&mut state, operation)?;
        Ok(state)
    }

    /// Every operation but information needs an operational device (device.c
    /// `hl_device_operational`).
    pub(crate) fn operational(&self, state: &mut State, operation: Operation) -> Result<()> {
        state.settle();
        if state.status == DeviceStatus::OPERATIONAL && state.context.is_some() && !state.closed {
            return Ok(());
        }
        let rule = match operation {
            Operation::WaitCs
            | Operation::WaitMultiCs
            | Operation::WaitInterrupt
            | Operation::RegisterTimestamp => &rules::wait::NOT_OPERATIONAL,
            _ => &rules::ioctl::NOT_OPERATIONAL,
        };
        Err(self.refuse(operation, rule).showing(state.status))
    }

    /// Locks the device for an operation that needs an operational one, and checks the request by
    /// the rules that have conditions.
    pub(crate) fn admit<R: Request>(&self, request: &R) -> Result<MutexGuard<'_, State>> {
        let state = self.enter(R::OPERATION)?;
        self.check_rules(request, None)?;
        self.check_rules(request, Some(&state))?;
        Ok(state)
    }

    /// Refuses a request by the rules that the driver checks before it looks at its state, or with
    /// the state by the others.
    pub(crate) fn check_rules<R: Request>(&self, request: &R, state: Option<&State>) -> Result<()> {
        let state = state.map(|state| state as &dyn DriverState);
        match Rule::broken_by(request.view(), self.asic, state) {
            Some((rule, seen)) => Err(self.refuse(R::OPERATION, rule).showing(seen)),
            None => Ok(()),
        }
    }

    /// The error of a request that a rule of the driver refuses.
    pub(crate) fn refuse(&self, operation: Operation, rule: &'static Rule) -> Error {
        Error::from_rule(operation, rule).on(self.id)
    }

    /// The error of a request that fails for no rule of the driver.
    pub(crate) fn refusal(&self, operation: Operation, errno: Errno) -> Error {
        Error::from_errno(operation.kernel_name(), errno).on(self.id)
    }

    pub(crate) fn open_compute(&self) -> Result<()> {
        self.open_context().map(drop)
    }

    /// Opens the compute node. Handles are offsets in the file that is returned.
    pub(crate) fn open_compute_for_program(&self) -> Result<Arc<Memfd>> {
        let mut state = self.open_context()?;
        let file = state.context().buffers.hand_out_offsets();
        file.ok_or_else(|| {
            Error::unsupported(
                "open",
                "a mock with private memory has no file that a program can map",
            )
            .on(self.id)
        })
    }

    fn open_context(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        state.settle();
        let refuse = |rule| Err(Error::of_open(rule).on(self.id));
        match state.status {
            DeviceStatus::OPERATIONAL => {}
            // habanalabs_drv.c `hl_device_open`
            DeviceStatus::IN_RESET | DeviceStatus::IN_RESET_AFTER_DEVICE_RELEASE => {
                return refuse(&rules::open::IN_RESET);
            }
            _ => return refuse(&rules::open::NOT_OPERATIONAL),
        }
        if state.context.is_some() {
            // habanalabs_drv.c `hl_device_open`; a dma-buf holds the file and with it the context
            // (memory.c `hl_export_dmabuf_common`).
            let user = match state.closed {
                true => "an exported dma-buf",
                false => "an open node",
            };
            return refuse(&rules::open::IN_USE).map_err(|error| error.showing(user));
        }
        // The user may still map the memory of an earlier context.
        let spare = state.spare.take().filter(|spare| !spare.buffers.are_mapped());
        let context = match spare {
            Some(spare) => spare,
            None => Context::new(self.asic, state.memory).map_err(|error| error.on(self.id))?,
        };
        let mapped = context.driver_buffers.map_to_device(&mut *state.engine);
        mapped.map_err(|error| error.on(self.id))?;
        let opened = state.engine.open_context();
        debug_assert_eq!(opened, Ok(()), "nothing is mapped where the doorbell goes");
        state.context = Some(context);
        state.closed = false;
        state.opens += 1;
        state.opened_ns = state.clock.now_ns();
        // habanalabs_drv.c `hl_device_open`
        state.errors = ErrorInfo::default();
        Ok(state)
    }

    /// Closes the compute node. Returns whether exports hold the context.
    pub(crate) fn release_user(&self) -> bool {
        let mut state = self.lock();
        state.closed = true;
        state.settle();
        let held = state.context.is_some();
        drop(state);
        self.wakeups.wake_all();
        held
    }

    /// Makes the device as a new one, with another seed.
    ///
    /// # Errors
    /// - `InUse`: the compute node is open.
    /// - `OutOfMemory`: the host does not take memory back.
    pub(crate) fn restart(&self, seed: u64) -> Result<()> {
        let mut state = self.lock();
        state.settle();
        if state.context.is_some() {
            return Err(Error::new(ErrorKind::InUse, "restart")
                .on(self.id)
                .because("the compute node is open")
                .helped_by("drop every object of the device first"));
        }
        let order = match self.spec.order {
            Order::Running => None,
            Order::Stepped => Some(seed),
        };
        state.restart(order).map_err(|errno| {
            Error::from_errno("restart", errno)
                .on(self.id)
                .with_kind(ErrorKind::OutOfMemory)
                .because("the host does not take the memory of the chip back")
        })
    }

    /// The ledger of this device now.
    pub(crate) fn ledger(&self) -> Ledger {
        let mut state = self.lock();
        state.settle();
        let exported = state.has_export();
        let context = state.context.as_ref();
        Ledger {
            allocations: state.allocations.len(),
            dram_bytes: state
                .allocations
                .values()
                .map(|allocation| allocation.bytes(self.asic))
                .sum(),
            mappings: context.map_or(0, |context| context.mappings.len()),
            command_buffers: context.map_or(0, |context| context.buffers.len()),
            in_flight: context.map_or(0, |context| context.submissions.in_flight()),
            exported,
        }
    }
}
