//! The modelled chip as a PCI function of this process, behind one lock.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gaudi_seam::device::{BARS, within};
use gaudi_seam::fault::{ChipRules, Plan, Rule, RuleCount};
use gaudi_seam::{BarOffset, BarWindow, DeviceIo, Errno, Error, ErrorKind, Event, Iova, RawMapping, Result};
use gaudi_spec::gaudi2::INTERRUPTS;
use gaudi_sys::fd;

use super::chip::{Note, PciChip, PciConfig};
use super::config::CONFIG_SIZE;
use crate::config::ModelError;

/// Packets and monitors that [`ModelDevice::run`] executes before it releases the lock.
const BUDGET: u64 = 1 << 10;

/// A modelled Gaudi2. Its clock is that of this process.
#[derive(Debug)]
pub struct ModelDevice {
    config: PciConfig,
    faults: Option<Arc<ChipRules>>,
    inner: Mutex<Inner>,
    begin: Instant,
}

#[derive(Debug)]
struct Inner {
    chip: PciChip,
    events: Vec<Option<Event>>,
    /// Rules that were armed while the card is used.
    injected: Vec<Arc<ChipRules>>,
}

impl Inner {
    fn new(config: PciConfig, faults: Option<&Arc<ChipRules>>) -> Result<Self> {
        let mut chip = PciChip::new(config).map_err(|error| {
            let kind = match error {
                ModelError::Bar(_) | ModelError::Dram(_) => ErrorKind::InvalidInput,
                _ => ErrorKind::OutOfMemory,
            };
            Error::new(kind, "make a card").because(error.to_string())
        })?;
        if let Some(rules) = faults {
            chip.attach_faults(rules);
        }
        let events = (0..INTERRUPTS).map(|_| None).collect();
        Ok(Self {
            chip,
            events,
            injected: Vec::new(),
        })
    }
}

impl ModelDevice {
    /// Returns a card as after power-on.
    ///
    /// # Errors
    /// - `InvalidInput` if the card cannot have this memory BAR or this amount of HBM.
    /// - `OutOfMemory` if the host cannot provide the card's memory.
    pub fn new(config: PciConfig) -> Result<Self> {
        Self::of(config, None)
    }

    /// As [`new`](Self::new), with fault rules for the chip's events, which outlast power cycles.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_faults(config: PciConfig, faults: Arc<ChipRules>) -> Result<Self> {
        Self::of(config, Some(faults))
    }

    fn of(config: PciConfig, faults: Option<Arc<ChipRules>>) -> Result<Self> {
        Ok(Self {
            config,
            inner: Mutex::new(Inner::new(config, faults.as_ref())?),
            faults,
            begin: Instant::now(),
        })
    }

    /// Replaces the card with a new one as after power-on.
    ///
    /// The new card has memory of its own: a mapping of a BAR made before this call still maps the
    /// old memory, never the new. DMA mappings, interrupt events, counters and notes of the
    /// old card are dropped.
    ///
    /// # Errors
    /// `OutOfMemory` if the host cannot provide the card's memory. The old card then stays.
    pub fn power_cycle(&self) -> Result<()> {
        let new = Inner::new(self.config, self.faults.as_ref())?;
        let old = mem::replace(&mut *self.inner(), new);
        drop(old); // unmaps its memory, after the lock is released
        Ok(())
    }

    /// Arms the plan's rules for the chip's events while the card is used. They outlast resets, but
    /// not power cycles. `log` is called with each rule that injects its first fault.
    pub fn inject(&self, plan: &Plan, log: fn(&Rule)) {
        let rules = Arc::new(ChipRules::new(0, plan, log));
        let mut inner = self.inner();
        inner.chip.attach_faults(&rules);
        inner.injected.push(rules);
    }

    /// Returns the counts of the rules that [`inject`](Self::inject) armed, in order.
    pub fn injected(&self) -> Vec<RuleCount> {
        let inner = self.inner();
        inner.injected.iter().flat_map(|rules| rules.counts()).collect()
    }

    /// Disarms the rules that [`inject`](Self::inject) armed, and forgets their counts.
    pub fn heal(&self) {
        for rules in self.inner().injected.drain(..) {
            rules.close();
        }
    }

    /// Calls `what` with the chip, then signals the interrupts that the chip raised.
    pub fn with<T>(&self, what: impl FnOnce(&mut PciChip) -> T) -> T {
        let mut inner = self.inner();
        // 64 bits last for 584 years.
        let nanoseconds = u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        inner.chip.set_time(nanoseconds);
        let answer = what(&mut inner.chip);
        while let Some(vector) = inner.chip.next_interrupt() {
            let event = inner.events.get(usize::from(vector)).and_then(Option::as_ref);
            // A failed signal cannot be reported: the descriptor is the listener's.
            let _ = event.map(Event::signal);
        }
        answer
    }

    /// Continues work that one access did not finish. Returns whether there is more.
    pub fn run(&self) -> bool {
        self.with(|chip| chip.run(BUDGET))
    }

    /// Whether there was more to do when the chip last worked.
    pub fn is_busy(&self) -> bool {
        self.inner().chip.is_busy()
    }

    /// Takes the oldest note of the chip.
    pub fn next_note(&self) -> Option<Note> {
        self.inner().chip.next_note()
    }

    // A chip is whole between two calls of it, whatever panicked elsewhere.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceIo for ModelDevice {
    fn name(&self) -> String {
        "gaudi2 (model)".to_owned()
    }

    fn config_read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        within("read configuration space", offset, into.len(), CONFIG_SIZE as u64)?;
        self.with(|chip| chip.config_read(offset, into));
        Ok(())
    }

    fn config_write(&self, offset: u64, from: &[u8]) -> Result<()> {
        within(
            "write configuration space",
            offset,
            from.len(),
            CONFIG_SIZE as u64,
        )?;
        self.with(|chip| chip.config_write(offset, from));
        Ok(())
    }

    fn bar_size(&self, bar: u8) -> Result<u64> {
        Ok(self.with(|chip| chip.bar_size(bar)))
    }

    fn bar_window(&self, bar: u8) -> Result<Option<BarWindow>> {
        self.with(|chip| {
            let Some(window) = chip.window(bar) else {
                return Ok(None);
            };
            let file = window.memory.memfd().ok_or(Errno::ENOTSUP);
            let file = file
                .and_then(fd::duplicate)
                .map_err(|errno| Error::from_errno("share a BAR's memory", errno))?;
            Ok(Some(BarWindow {
                at: window.at,
                len: window.len,
                file,
                file_offset: 0,
            }))
        })
    }

    fn bar_read(&self, bar: u8, at: BarOffset, into: &mut [u8]) -> Result<()> {
        let size = if bar < BARS { self.bar_size(bar)? } else { 0 };
        within("read a BAR", at.get(), into.len(), size)?;
        self.with(|chip| chip.bar_read(bar, at, into));
        Ok(())
    }

    fn bar_write(&self, bar: u8, at: BarOffset, from: &[u8]) -> Result<()> {
        let size = if bar < BARS { self.bar_size(bar)? } else { 0 };
        within("write a BAR", at.get(), from.len(), size)?;
        self.with(|chip| chip.bar_write(bar, at, from));
        Ok(())
    }

    fn dma_map(&self, iova: Iova, memory: Arc<RawMapping>) -> Result<()> {
        self.with(|chip| chip.dma_map(iova.get(), memory))
            .map_err(|errno| {
                let error = Error::from_errno("map memory for DMA", errno);
                match errno {
                    Errno::EEXIST => error.with_kind(ErrorKind::Busy),
                    _ => error,
                }
            })
    }

    fn dma_unmap(&self, iova: Iova, len: u64) -> Result<u64> {
        Ok(self.with(|chip| chip.dma_unmap(iova.get(), len)))
    }

    fn interrupts(&self) -> u16 {
        INTERRUPTS
    }

    fn set_interrupt(&self, vector: u16, event: Option<Event>) -> Result<()> {
        let mut inner = self.inner();
        let Some(place) = inner.events.get_mut(usize::from(vector)) else {
            return Err(Error::from_errno("set an interrupt", Errno::EINVAL)
                .saw(vector, format!("below {INTERRUPTS}")));
        };
        *place = event;
        Ok(())
    }

    fn reset(&self) -> Result<()> {
        self.with(PciChip::reset);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};

    #[test]
    fn peer_cannot_seal_a_bar_window() {
        let device = ModelDevice::new(PciConfig::default()).expect("a card");
        let mut windows = 0;
        for bar in 0..BARS {
            let Some(window) = device.bar_window(bar).expect("a card in this process") else {
                continue;
            };
            windows += 1;
            for seal in [SealFlag::F_SEAL_FUTURE_WRITE, SealFlag::F_SEAL_WRITE] {
                let sealed = fcntl(&window.file, FcntlArg::F_ADD_SEALS(seal));
                assert_eq!(sealed, Err(Errno::EPERM), "BAR {bar}, {seal:?}");
            }
            drop(window);
            // As the next peer does.
            let window = device.bar_window(bar).expect("a card").expect("a window");
            let map = RawMapping::of_fd(&window.file, window.file_offset, 4096).expect("it maps");
            map.write(0, b"seen").expect("in the mapping");
            device.reset().expect("a reset");
            let mut bytes = [1; 4];
            map.read(0, &mut bytes).expect("in the mapping");
            assert_eq!(bytes, [0; 4], "BAR {bar} keeps the bytes of the peer before");
        }
        assert_eq!(windows, 2, "SRAM and HBM have a window");
    }
}
