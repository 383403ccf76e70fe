//! The device that cases share, and its required state after each case.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_hal::Mock;
use gaudi_kernel::Driver;
use gaudi_layers::Stack;
use gaudi_layers::time::{Monotonic, Time};
use gaudi_seam::{BackendSpec, DeviceSpec, Error, ErrorKind, KernelIoExt as _, NodeKind, SharedIo};
use gaudi_uapi::info::{
    DeviceStatus, HlInfoDeviceStatus, HlInfoDramUsage, HlInfoHwIdle, HlInfoHwIpInfo, HlInfoResetCount,
};

use crate::bytes::over_bytes;
use crate::observe::Log;
use crate::opener::Openers;
use crate::verdict::{Failure, Verdict, equal, holds};

/// The maximum duration of a reset. The driver answers `EAGAIN` meanwhile, usually for a second.
const RESET_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum time until the driver kills the process that opened a card in reset. The driver
/// waits one second for its close.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

/// A device that is opened once for many cases: the driver resets the chip at every close, which
/// takes 0.6 to 1.6 seconds.
pub struct Bench {
    spec: DeviceSpec,
    io: Option<SharedIo>,
    /// Whether nodes are opened by the kernel backend over the codec.
    over_bytes: bool,
    /// The log of observed operations, if any.
    log: Option<Log>,
    /// The processes that open the real driver's compute node, and that the driver kills at a
    /// reset.
    openers: Arc<Openers>,
    /// Whether the driver killed exactly the expected processes.
    kill_check: Verdict,
    /// Open for the bench's lifetime, so that a mock's device outlives each close.
    control: SharedIo,
    /// The device, if it is a mock that restarts before each case.
    restarts: Option<Mock>,
}

impl Bench {
    /// Creates a bench on the device of a spec.
    ///
    /// # Errors
    /// Those of opening the control node.
    pub fn new(spec: &DeviceSpec) -> gaudi_seam::Result<Self> {
        let control = gaudi_hal::control(spec)?;
        Ok(Self {
            spec: spec.clone(),
            io: None,
            over_bytes: false,
            log: None,
            openers: Arc::default(),
            kill_check: Ok(()),
            control,
            restarts: None,
        })
    }

    /// Creates a bench on a mock with private memory, which restarts before each case.
    pub(crate) fn restarted(spec: &DeviceSpec) -> gaudi_seam::Result<Self> {
        let BackendSpec::Mock(mock) = &spec.backend else {
            return Err(Error::unsupported("restart", "only a mock restarts"));
        };
        let mock = Mock::new(mock)?;
        Ok(Self {
            control: mock.control(),
            restarts: Some(mock),
            ..Self::new(spec)?
        })
    }

    /// Makes a mock that restarts as a new one. Leaves the node of every other device open.
    pub(crate) fn restart(&mut self) -> gaudi_seam::Result<()> {
        if self.restarts.is_some() {
            self.close();
        }
        self.restarts.as_ref().map_or(Ok(()), |mock| mock.restart(0))
    }

    /// Creates a bench that logs every operation on the nodes that cases open.
    pub(crate) fn observed(spec: &DeviceSpec, log: &Log) -> gaudi_seam::Result<Self> {
        let bench = Self::new(spec)?;
        let control = log.over(bench.control.clone());
        Ok(Self {
            log: Some(log.clone()),
            control,
            ..bench
        })
    }

    /// Creates a bench whose nodes go through the codec in both directions.
    pub(crate) fn over_bytes(spec: &DeviceSpec) -> gaudi_seam::Result<Self> {
        let bench = Self::new(spec)?;
        let control = over_bytes(bench.control)?;
        Ok(Self {
            over_bytes: true,
            control,
            ..bench
        })
    }

    fn note(&self, name: &str, opened: gaudi_seam::Result<SharedIo>) -> gaudi_seam::Result<SharedIo> {
        let opened = match self.over_bytes {
            true => opened.and_then(over_bytes),
            false => opened,
        };
        let Some(log) = &self.log else {
            return opened;
        };
        log.opened(name, opened.as_ref().err());
        opened.map(|io| log.over(io))
    }

    pub(crate) fn is_mock(&self) -> bool {
        matches!(self.spec.backend, BackendSpec::Mock(_))
    }

    /// Whether errors name their cause: an errno of the driver can have several.
    pub(crate) fn knows_causes(&self) -> bool {
        self.is_mock() && !self.over_bytes
    }

    /// Returns the open compute node. Opens it if it is closed.
    pub(crate) fn io(&mut self) -> Result<SharedIo, Failure> {
        Ok(self.hold()?)
    }

    /// As [`Bench::io`], with the backend's own error.
    pub(crate) fn hold(&mut self) -> gaudi_seam::Result<SharedIo> {
        if let Some(io) = &self.io {
            return Ok(io.clone());
        }
        // A mock's reset takes no time, so waiting would not end it.
        let timeout = if self.is_mock() {
            Duration::ZERO
        } else {
            RESET_TIMEOUT
        };
        let deadline = Instant::now() + timeout;
        loop {
            match self.try_open() {
                Ok(io) => {
                    self.io = Some(io.clone());
                    return Ok(io);
                }
                Err(error) if error.kind() == ErrorKind::InReset && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the compute node, even if it is already open.
    pub(crate) fn try_open(&self) -> gaudi_seam::Result<SharedIo> {
        let opened = match self.spec.backend {
            BackendSpec::Kernel(selector) => Stack::prepare(&self.spec.layers).and_then(|layers| {
                let driver = Driver::at("/", Arc::clone(&self.openers));
                let io = driver.open(selector, NodeKind::Compute)?;
                let time: Arc<dyn Time> = Arc::new(Monotonic::new());
                Ok(layers.over(Arc::new(io), &time))
            }),
            _ => match &self.restarts {
                Some(mock) => mock.open(),
                None => gaudi_hal::open(&self.spec),
            },
        };
        self.note("open", opened)
    }

    /// Opens another control node.
    pub(crate) fn open_control(&self) -> gaudi_seam::Result<SharedIo> {
        let opened = match &self.restarts {
            Some(mock) => Ok(mock.control()),
            None => gaudi_hal::control(&self.spec),
        };
        self.note("open(control)", opened)
    }

    /// Returns the bench's control node.
    pub(crate) fn control(&self) -> &SharedIo {
        &self.control
    }

    /// Closes the compute node, unless a case holds a clone.
    ///
    /// If the real driver is in reset, waits first until it has killed the opener: it is a race
    /// whether a close in time prevents that.
    pub(crate) fn close(&mut self) {
        let by_opener = matches!(self.spec.backend, BackendSpec::Kernel(_));
        if let Some(io) = self.io.take().filter(|_| by_opener) {
            let status = self.control.query::<HlInfoDeviceStatus>();
            let in_reset = status.is_ok_and(|answer| answer.status == DeviceStatus::IN_RESET);
            let killed = !in_reset || self.openers.wait_killed(KILL_TIMEOUT);
            drop(io);
            let seen = (killed, self.openers.retire());
            let expected = (true, usize::from(in_reset));
            let verdict = equal(
                "the killed openers of the card (common/device.c:device_kill_open_processes)",
                seen,
                expected,
            );
            self.kill_check = std::mem::replace(&mut self.kill_check, Ok(())).and(verdict);
        }
    }

    /// Returns the driver's count of resets.
    pub(crate) fn resets(&self) -> Result<u32, Failure> {
        Ok(self.control.query::<HlInfoResetCount>()?.hard_reset_cnt)
    }

    /// Closes and opens again.
    pub(crate) fn reopen(&mut self) -> Result<SharedIo, Failure> {
        self.close();
        self.io()
    }

    /// Checks that a case left no objects and that the device works.
    pub(crate) fn ledger(&mut self) -> Verdict {
        std::mem::replace(&mut self.kill_check, Ok(()))?;
        let io = self.io()?;
        let status = io.query::<HlInfoDeviceStatus>()?.status;
        equal(
            "the device's status after the case",
            status,
            DeviceStatus::OPERATIONAL,
        )?;
        let usage: HlInfoDramUsage = io.query()?;
        let whole = io.query::<HlInfoHwIpInfo>()?.dram_size;
        equal(
            "bytes of device memory that the case left allocated",
            usage.ctx_dram_mem,
            0,
        )?;
        equal("free device memory after the case", usage.dram_free_mem, whole)?;
        let idle: HlInfoHwIdle = io.query()?;
        holds("all engines are idle after the case", idle.is_idle == 1, idle)?;
        let ledger = match &self.restarts {
            Some(mock) => Some(mock.ledger()),
            None => gaudi_hal::mock_ledger(&self.spec),
        };
        match ledger {
            Some(ledger) if !ledger.is_clean() => Err(Failure::new(
                "the objects that the case left",
                "nothing",
                format!("{ledger:?}"),
            )),
            _ => Ok(()),
        }
    }
}
