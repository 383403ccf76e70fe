//! Executes the chip's work, and register writes of a driver.

use gaudi_spec::gaudi2::sync::{self, objs_address};
use gaudi_spec::gaudi2::{CFG_BASE, CFG_SIZE};
use gaudi_spec::{DevicePa, QueueId};

use crate::config::Mode;
use crate::gaudi2::chip::Chip;
use crate::gaudi2::registers::UnknownRegister;
use crate::gaudi2::stream::{Cp, Processor};

/// Packets that one stream executes in running mode before the next stream runs.
const TURN: u32 = 32;
/// Monitors executed within a driver's register write; the next run executes the rest.
const SETTLE: u64 = 4096;

/// The reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// Every queue is empty.
    Idle,
    /// The remaining streams wait for a fence, or are halted.
    Blocked,
    /// The budget is used up, and there is more work.
    Budget,
}

impl Chip {
    /// Executes until every stream is idle or blocked, or `budget` packets and monitors were
    /// carried out; 4 KiB that a DMA engine moves count as one more.
    pub fn run(&mut self, budget: u64) -> RunOutcome {
        let mut left = budget;
        loop {
            self.settle(&mut left);
            let Some(cp) = self.choose() else {
                if self.sm.has_fired() {
                    return RunOutcome::Budget;
                }
                return if self.is_idle() {
                    RunOutcome::Idle
                } else {
                    RunOutcome::Blocked
                };
            };
            let turn = if self.mode == Mode::Running { TURN } else { 1 };
            for _ in 0..turn {
                if left == 0 {
                    return RunOutcome::Budget;
                }
                left -= 1;
                self.execute(cp);
                self.charge(&mut left);
                self.settle(&mut left);
                if !self.ready.get(cp) {
                    break;
                }
            }
        }
    }

    // Whether no processor has anything to do. Looking at all of them would cost a short run more
    // than its packets do.
    pub(crate) fn is_idle(&mut self) -> bool {
        while let Some(cp) = self.busy.at_or_after(0) {
            if !self.processor(cp).is_empty() {
                return false;
            }
            self.busy.set(cp, false);
        }
        debug_assert!(
            self.processors.iter().all(Processor::is_empty),
            "every processor with work is marked busy"
        );
        true
    }

    /// Executes one packet of one ready stream, or of the lower command processor on its behalf,
    /// and what it sets off; `None` where nothing is ready.
    pub fn step(&mut self) -> Option<QueueId> {
        self.settle(&mut { SETTLE });
        let cp = self.choose()?;
        let head = self.processor(cp).head();
        let queue = head.map_or(cp.first_queue(), |head| head.queue);
        self.execute(cp);
        self.settle(&mut { SETTLE });
        Some(queue)
    }

    /// Writes to a sync object as a driver does, which fires monitors that wait for it; `None` if
    /// there is no such object.
    pub fn set_sob(&mut self, dcore: u32, sob: u32, update: sync::SobUpdate) -> Option<()> {
        let address = objs_address(dcore, sync::SOB_OBJ, sob)?;
        self.write32(DevicePa(address.get()), update.into_bits()).ok()
    }

    /// Writes a register as a driver does. Monitors that this sets off are carried out at once;
    /// streams continue with the next run.
    ///
    /// # Errors
    /// [`UnknownRegister`] if the model does not have it, or what the word requests.
    pub fn write32(&mut self, register: DevicePa, value: u32) -> Result<(), UnknownRegister> {
        self.write_register(offset(register)?, value)
            .map_err(|_| UnknownRegister(register))?;
        self.settle(&mut { SETTLE });
        Ok(())
    }

    /// Reads a register.
    ///
    /// # Errors
    /// [`UnknownRegister`] if the model does not have it.
    pub fn read32(&mut self, register: DevicePa) -> Result<u32, UnknownRegister> {
        self.read_register(offset(register)?)
            .ok_or(UnknownRegister(register))
    }

    fn choose(&mut self) -> Option<Cp> {
        let cp = match self.mode {
            Mode::Running => self.ready.at_or_after(self.cursor)?,
            Mode::Stepped { .. } => {
                let count = u64::from(self.ready.count());
                let nth =
                    u32::try_from(self.rng.below(count)).unwrap_or_else(|_| unreachable!("below a u32"));
                self.ready.nth(nth)?
            }
        };
        self.cursor = cp.0 + 1;
        Some(cp)
    }
}

fn offset(register: DevicePa) -> Result<u32, UnknownRegister> {
    let offset = register.offset_from(CFG_BASE).filter(|&offset| offset < CFG_SIZE);
    offset
        .map(|offset| offset as u32)
        .ok_or(UnknownRegister(register))
}
