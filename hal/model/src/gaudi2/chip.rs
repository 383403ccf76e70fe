//! The chip: it owns all parts, and the caller drives it.

use std::collections::VecDeque;

use gaudi_seam::engine::{PushError, Reset};
use gaudi_spec::QueueId;
use gaudi_spec::gaudi2::qman::ArbCfg;
use gaudi_spec::gaudi2::{self, queue};
use gaudi_sys::random::SplitMix64;
use gaudi_sys::{Errno, standin};

use crate::config::{ChipConfig, Mode, ModelError};

use crate::gaudi2::bus::Bus;
use crate::gaudi2::counters::Counters;
use crate::gaudi2::event::Event;
use crate::gaudi2::manager::Manager;
use crate::gaudi2::registers::Registers;
use crate::gaudi2::sm::SyncManager;
use crate::gaudi2::stream::{Cb, Cp, Entry, Held, PROCESSORS, Processor, Processors};
use crate::memory::DeviceMemory;
use crate::mmu::RangeMmu;

/// The longest queue of monitor faults; further faults are counted only.
const MAX_MONITOR_FAULTS: u32 = 64;

/// A Gaudi2.
#[derive(Debug)]
pub struct Chip {
    pub(crate) bus: Bus,
    pub(crate) sm: SyncManager,
    pub(crate) registers: Registers,
    pub(crate) processors: Vec<Processor>,
    pub(crate) managers: Vec<Manager>,
    /// Processors that can execute a packet.
    pub(crate) ready: Processors,
    /// Processors with work, and some without.
    pub(crate) busy: Processors,
    /// Processors that may differ from their state after power-on, and queue managers by their
    /// first queue. A reset passes over all others.
    touched: Processors,
    touched_managers: Processors,
    pub(crate) counters: Counters,
    /// Bytes that transfers moved, and how many of them were taken off a budget; both count round
    /// their end.
    pub(crate) moved: u64,
    pub(crate) charged: u64,
    events: VecDeque<Event>,
    // Vectors raised and not taken, a bit each; and monitors' events not taken.
    pending: u128,
    monitor_events: u32,
    pub(crate) mode: Mode,
    pub(crate) rng: SplitMix64,
    pub(crate) cursor: u32,
}

impl Chip {
    /// Makes a chip with its memory.
    ///
    /// # Errors
    /// - [`ModelError::DramSize`] if the chip has no such size.
    /// - [`ModelError::Memory`] if the host cannot provide the memory.
    pub fn new(config: ChipConfig) -> Result<Self, ModelError> {
        let (page, most) = (gaudi2::DRAM_PAGE, gaudi2::ASIC.dram_user_size());
        let asked = config.dram_user_bytes;
        if asked == 0 || asked % page != 0 || asked > most {
            let below = (asked / page * page).clamp(page, most);
            let above = if asked % page == 0 {
                below
            } else {
                (below + page).min(most)
            };
            return Err(ModelError::DramSize {
                page,
                asked,
                below,
                above,
            });
        }
        let dram = DeviceMemory::new(
            standin::MEMFD_NAME,
            gaudi2::DRAM_PHYS_BASE,
            asked + gaudi2::DRAM_RESERVED,
            config.memory,
        )?;
        let sram = DeviceMemory::new(
            c"gaudi2-sram",
            gaudi2::SRAM_BASE,
            gaudi2::SRAM_SIZE,
            config.memory,
        )?;
        Ok(Self {
            bus: Bus {
                dram,
                sram,
                mmu: RangeMmu::default(),
                pci: None,
                faults: None,
            },
            sm: SyncManager::new(),
            registers: Registers::new(),
            processors: processors(),
            managers: managers(),
            ready: Processors::default(),
            busy: Processors::default(),
            touched: Processors::default(),
            touched_managers: Processors::default(),
            counters: Counters::default(),
            moved: 0,
            charged: 0,
            events: VecDeque::new(),
            pending: 0,
            monitor_events: 0,
            mode: config.mode,
            rng: random(config.mode),
            cursor: 0,
        })
    }

    /// Puts the chip into the state of a new one, with another order of work. Its memory reads as
    /// zeros.
    ///
    /// # Errors
    /// As [`reset`](Self::reset).
    pub fn restart(&mut self, mode: Mode) -> Result<(), Errno> {
        (self.mode, self.rng) = (mode, random(mode));
        self.counters = Counters::default();
        (self.moved, self.charged) = (0, 0);
        self.bus.faults = None;
        self.reset(Reset::Hard)
    }

    /// The HBM, the driver's part included.
    pub fn dram(&self) -> &DeviceMemory {
        &self.bus.dram
    }

    /// The SRAM.
    pub fn sram(&self) -> &DeviceMemory {
        &self.bus.sram
    }

    /// Returns the counters of the chip's work.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Queues a command buffer. Nothing executes before the next run.
    ///
    /// # Errors
    /// - `NoSuchQueue` and `Disabled` if no command buffer can be pushed to the queue.
    /// - `Full` if the queue holds as many command buffers as it can.
    pub fn push_cb(&mut self, queue: QueueId, cb: Cb) -> Result<(), PushError> {
        if queue.0 >= queue::COUNT {
            return Err(PushError::NoSuchQueue);
        }
        let cp = Cp::of(queue);
        let processor = self.processor(cp);
        processor.push(Entry { cb, queue })?;
        let ready = processor.is_ready();
        self.ready.set(cp, ready);
        self.busy.set(cp, true);
        Ok(())
    }

    /// Removes the command buffer that was queued last.
    pub(crate) fn take_back(&mut self, queue: QueueId) {
        let processor = self.processor(Cp::of(queue));
        processor.take_back();
        let ready = processor.is_ready();
        self.ready.set(Cp::of(queue), ready);
    }

    /// Takes the oldest event.
    pub fn next_event(&mut self) -> Option<Event> {
        if self.bus.faults.is_some() {
            let has_others = !self.events.is_empty();
            if let Some(event) = self.next_by_rules(has_others) {
                return Some(event);
            }
        }
        let event = self.events.pop_front()?;
        match event {
            Event::CbDone { queue, .. } => self.processor(Cp::of(queue)).give_credit(),
            Event::Interrupt { vector } => self.pending &= !(1 << u32::from(vector)),
            Event::MonitorFault { .. } | Event::Unsupported { .. } => self.monitor_events -= 1,
            Event::Stop(_) | Event::PageFault(_) | Event::Razwi { .. } => {}
            Event::DoneTwice { .. } | Event::Injected(_) => {}
        }
        Some(event)
    }

    /// Whether everything pushed to a queue was executed. True of a number that no queue has.
    pub fn queue_is_idle(&self, queue: QueueId) -> bool {
        queue.0 >= queue::COUNT || self.processors[Cp::of(queue).index()].is_empty()
    }

    /// Returns what holds a queue's stream, or where it only waits for the lower command processor,
    /// what holds that; `None` if there is no such queue.
    pub fn held(&self, queue: QueueId) -> Option<Held> {
        let cp = Some(Cp::of(queue)).filter(|_| queue.0 < queue::COUNT)?;
        let processor = &self.processors[cp.index()];
        let waits = match processor.held() {
            Held::Below | Held::Room => true,
            Held::No => !processor.is_ready() && processor.waits_below(),
            _ => false,
        };
        let working = if waits { cp.lower() } else { cp };
        Some(self.processors[working.index()].held())
    }

    /// What the driver clears between two contexts: the users' sync objects, monitors and
    /// completion queues, all fence counters, and the arbiters' modes (driver
    /// gaudi2.c:gaudi2_scrub_device_mem and :10945).
    pub fn clear_user_sync(&mut self) {
        self.sm.clear_user();
        for cp in self.touched.all() {
            self.processors[cp.index()].clear_fences();
        }
        for cp in self.touched_managers.all() {
            self.managers[cp.qman()].arbiter.set_cfg(ArbCfg::new());
        }
    }

    /// Resets the chip.
    ///
    /// # Errors
    /// Those of [`DeviceMemory::discard`]; old bytes may stay then.
    pub fn reset(&mut self, depth: Reset) -> Result<(), Errno> {
        self.sm.reset();
        for cp in std::mem::take(&mut self.touched).all() {
            self.processors[cp.index()].reset();
        }
        for cp in std::mem::take(&mut self.touched_managers).all() {
            self.managers[cp.qman()] = Manager::new(cp.first_queue());
        }
        self.ready = Processors::default();
        self.busy = Processors::default();
        self.events.clear();
        if let Some(faults) = &mut self.bus.faults {
            faults.get_mut().reset();
        }
        (self.pending, self.monitor_events, self.cursor) = (0, 0, 0);
        if depth == Reset::Hard {
            self.bus.mmu.clear();
            for memory in [&self.bus.dram, &self.bus.sram] {
                memory.discard(memory.base(), memory.len())?;
            }
        }
        Ok(())
    }

    pub(crate) fn processor(&mut self, cp: Cp) -> &mut Processor {
        self.touched.set(cp, true);
        &mut self.processors[cp.index()]
    }

    /// Whether the next reset restores the processor's state after power-on.
    pub(crate) fn is_touched(&self, cp: Cp) -> bool {
        self.touched.get(cp)
    }

    pub(crate) fn manager(&mut self, first: QueueId) -> &mut Manager {
        let cp = Cp::of(first);
        self.touched_managers.set(Cp::of(cp.first_queue()), true);
        &mut self.managers[cp.qman()]
    }

    /// Lets a processor continue if `by` accepts what holds it.
    pub(crate) fn wake(&mut self, cp: Cp, by: impl Fn(Held) -> bool) {
        let processor = self.processor(cp);
        if by(processor.held()) {
            processor.hold(Held::No);
            let ready = processor.is_ready();
            self.ready.set(cp, ready);
        }
    }

    /// Lets the streams of a queue manager continue that `by` holds.
    pub(crate) fn wake_streams(&mut self, first: QueueId, by: Held) {
        for stream in 0..queue::STREAMS {
            self.wake(Cp::in_qman(first, stream), |held| held == by);
        }
    }

    // Every event comes through here, and each kind has a bound: finished command buffers by the
    // queues' credit, faults and stops by one a stream until a reset, interrupts by one a vector,
    // monitors by a count.
    pub(crate) fn report(&mut self, event: Event) {
        match event {
            Event::CbDone { .. } => self.counters.command_buffers += 1,
            Event::Stop(_) => self.counters.stops += 1,
            Event::PageFault(_) => self.counters.page_faults += 1,
            Event::Interrupt { vector } => {
                self.counters.interrupts += 1;
                let bit = 1 << u32::from(vector);
                if self.pending & bit != 0 {
                    return;
                }
                self.pending |= bit;
            }
            Event::Razwi { .. } | Event::DoneTwice { .. } | Event::Injected(_) => {}
            Event::MonitorFault { .. } | Event::Unsupported { .. } => {
                if self.monitor_events == MAX_MONITOR_FAULTS {
                    self.counters.events_dropped += 1;
                    return;
                }
                self.monitor_events += 1;
            }
        }
        self.events.push_back(event);
    }
}

fn random(mode: Mode) -> SplitMix64 {
    SplitMix64::new(match mode {
        Mode::Stepped { seed } => seed,
        Mode::Running => 0,
    })
}

fn processors() -> Vec<Processor> {
    (0..PROCESSORS).map(|cp| Processor::new(Cp(cp))).collect()
}

fn managers() -> Vec<Manager> {
    (0..queue::COUNT)
        .step_by(queue::STREAMS as usize)
        .map(|first| Manager::new(QueueId(first)))
        .collect()
}
