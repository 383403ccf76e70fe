//! The device that cases share, and what must be true of it after each.

use std::time::{Duration, Instant};

use gaudi_seam::{BackendSpec, DeviceSpec, ErrorKind, KernelIoExt as _, SharedIo};
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus, HlInfoDramUsage, HlInfoHwIdle, HlInfoHwIpInfo};

use crate::case::{Failure, Verdict, equal, holds};
use crate::observe::Log;

/// How long a device may take to come back from a reset: the driver answers `EAGAIN` meanwhile, for a second or so.
const COMES_BACK: Duration = Duration::from_secs(60);

/// A device that is open once for many cases: the driver resets the chip at every close, which takes it 0.6 to 1.6 seconds.
pub struct Bench {
    spec: DeviceSpec,
    io: Option<SharedIo>,
    /// Where operations are observed, if they are.
    log: Option<Log>,
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
            control,
        })
    }

    /// The same with every operation of the nodes that cases open observed.
    pub(crate) fn observed(spec: &DeviceSpec, log: &Log) -> gaudi_seam::Result<Self> {
        let bench = Self::new(spec)?;
        Ok(Self {
            log: Some(log.clone()),
            control: log.over(bench.control),
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

    /// The open compute node; opened now if it is not.
    pub(crate) fn io(&mut self) -> Result<SharedIo, Failure> {
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
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One more opener of the compute node, whoever has it.
    pub(crate) fn try_open(&self) -> gaudi_seam::Result<SharedIo> {
        self.note("open", gaudi_hal::open(&self.spec))
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
    pub(crate) fn close(&mut self) {
        self.io = None;
    }

    /// Closes and opens again.
    pub(crate) fn reopen(&mut self) -> Result<SharedIo, Failure> {
        self.close();
        self.io()
    }

    /// What a case must leave behind: nothing.
    pub(crate) fn ledger(&mut self) -> Verdict {
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
