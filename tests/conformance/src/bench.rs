//! The device that cases share, and what must be true of it after each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_kernel::Driver;
use gaudi_layers::Stack;
use gaudi_layers::time::{Monotonic, Time};
use gaudi_seam::{BackendSpec, DeviceSpec, ErrorKind, KernelIoExt as _, NodeKind, SharedIo};
use gaudi_uapi::info::{
    DeviceStatus, HlInfoDeviceStatus, HlInfoDramUsage, HlInfoHwIdle, HlInfoHwIpInfo, HlInfoResetCount,
};

use crate::case::{Failure, Verdict, equal, holds};
use crate::observe::Log;
use crate::opener::Openers;

/// How long a device may take to come back from a reset: the driver answers `EAGAIN` meanwhile, for a second or so.
const COMES_BACK: Duration = Duration::from_secs(60);
/// How long the driver may take to kill whoever opened a card that it resets: it gives them a second.
const KILLS: Duration = Duration::from_secs(60);

/// A device that is open once for many cases: the driver resets the chip at every close, which takes it 0.6 to 1.6 seconds.
pub struct Bench {
    spec: DeviceSpec,
    io: Option<SharedIo>,
    /// Where operations are observed, if they are.
    log: Option<Log>,
    /// Who opens the real driver's compute node, and is killed for it.
    openers: Arc<Openers>,
    /// What went against the driver's rule whom it kills.
    spared: Verdict,
    /// Kept open, so that a mock's device is the same from the first case to the last.
    control: SharedIo,
}

impl Bench {
    /// A bench on the device of a spec.
    pub fn new(spec: &DeviceSpec) -> gaudi_seam::Result<Self> {
        let control = gaudi_hal::control(spec)?;
        Ok(Self {
            spec: spec.clone(),
            io: None,
            log: None,
            openers: Arc::default(),
            spared: Ok(()),
            control,
        })
    }

    /// The same with every operation of the nodes that cases open observed.
    pub(crate) fn observed(spec: &DeviceSpec, log: &Log) -> gaudi_seam::Result<Self> {
        let bench = Self::new(spec)?;
        let control = log.over(bench.control.clone());
        Ok(Self {
            log: Some(log.clone()),
            control,
            ..bench
        })
    }

    fn note(&self, name: &str, opened: gaudi_seam::Result<SharedIo>) -> gaudi_seam::Result<SharedIo> {
        let Some(log) = &self.log else {
            return opened;
        };
        log.opened(name, opened.as_ref().err());
        opened.map(|io| log.over(io))
    }

    pub(crate) fn is_mock(&self) -> bool {
        matches!(self.spec.backend, BackendSpec::Mock(_))
    }

    /// Returns the open compute node. Opens it if it is closed.
    pub(crate) fn io(&mut self) -> Result<SharedIo, Failure> {
        Ok(self.hold()?)
    }

    /// The same, with the backend's own error.
    pub(crate) fn hold(&mut self) -> gaudi_seam::Result<SharedIo> {
        if let Some(io) = &self.io {
            return Ok(io.clone());
        }
        // A mock's reset takes no time: one that is still in it stays there.
        let patience = if self.is_mock() {
            Duration::ZERO
        } else {
            COMES_BACK
        };
        let give_up = Instant::now() + patience;
        loop {
            match self.try_open() {
                Ok(io) => {
                    self.io = Some(io.clone());
                    return Ok(io);
                }
                Err(error) if error.kind() == ErrorKind::InReset && Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One more opener of the compute node, whoever has it.
    pub(crate) fn try_open(&self) -> gaudi_seam::Result<SharedIo> {
        let opened = match self.spec.backend {
            BackendSpec::Kernel(selector) => Stack::prepare(&self.spec.layers).and_then(|layers| {
                let driver = Driver::at("/", Arc::clone(&self.openers));
                let io = driver.open(selector, NodeKind::Compute)?;
                let time: Arc<dyn Time> = Arc::new(Monotonic::new());
                Ok(layers.over(Arc::new(io), &time))
            }),
            _ => gaudi_hal::open(&self.spec),
        };
        self.note("open", opened)
    }

    /// A new control node.
    pub(crate) fn open_control(&self) -> gaudi_seam::Result<SharedIo> {
        self.note("open(control)", gaudi_hal::control(&self.spec))
    }

    /// The bench's own control node.
    pub(crate) fn control(&self) -> &SharedIo {
        &self.control
    }

    /// Closes the compute node. A case that holds a clone keeps it open.
    ///
    /// Of the real driver in a reset, whose opener is killed first: a user that closed in time would be spared, by luck.
    pub(crate) fn close(&mut self) {
        let by_opener = matches!(self.spec.backend, BackendSpec::Kernel(_));
        if let Some(io) = self.io.take().filter(|_| by_opener) {
            let status = self.control.query::<HlInfoDeviceStatus>();
            let in_reset = status.is_ok_and(|answer| answer.status == DeviceStatus::IN_RESET);
            let killed = !in_reset || self.openers.wait_killed(KILLS);
            drop(io);
            let met = (killed, self.openers.retire());
            let expected = (true, usize::from(in_reset));
            let verdict = equal(
                "the openers of the card that the driver has killed (common/device.c:1443)",
                met,
                expected,
            );
            self.spared = std::mem::replace(&mut self.spared, Ok(())).and(verdict);
        }
    }

    /// How many resets the driver has counted.
    pub(crate) fn resets(&self) -> Result<u32, Failure> {
        Ok(self.control.query::<HlInfoResetCount>()?.hard_reset_cnt)
    }

    /// Closes and opens again.
    pub(crate) fn reopen(&mut self) -> Result<SharedIo, Failure> {
        self.close();
        self.io()
    }

    /// What a case must leave behind: nothing.
    pub(crate) fn ledger(&mut self) -> Verdict {
        std::mem::replace(&mut self.spared, Ok(()))?;
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
        match gaudi_hal::mock_ledger(&self.spec) {
            Some(ledger) if !ledger.is_clean() => Err(Failure::new(
                "what the case left behind",
                "nothing",
                format!("{ledger:?}"),
            )),
            _ => Ok(()),
        }
    }
}
