//! The driver's state of a device and of its user.

use std::collections::{BTreeMap, VecDeque};

use gaudi_model::MemoryKind;
use gaudi_seam::engine::Reset;
use gaudi_seam::{DeviceVa, Engine, Errno, Error, ErrorKind, MockSpec, Result};
use gaudi_spec::Asic;
use gaudi_sys::standin::Window;
use gaudi_uapi::info::{DeviceStatus, NotifierEvents};

use crate::address_space::{Allocation, Exported, Mapping, VaSpaces, page_address};
use crate::buffers::Buffers;
use crate::debug::Debugging;
use crate::error_info::{ErrorInfo, EventCounts};
use crate::interrupt::Interrupts;
use crate::notifier::Notifier;
use crate::pages::PagePool;
use crate::queue_entries::QueueEntries;
use crate::submissions::{Drops, Submissions};
use crate::sync_stream::{DriverBuffers, Signals, Sob};
use crate::throttling::Throttling;
use crate::time::Timekeeper;

/// The panic message if the context is missing, which is a defect of the mock.
pub(crate) const NO_CONTEXT: &str = "an operational device has a context";
/// The number of stop texts in the history.
const STOPS: usize = 16;

/// The driver's state of a device (`struct hl_device`).
pub(crate) struct State {
    pub(crate) asic: &'static Asic,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) memory: MemoryKind,
    pub(crate) entries: QueueEntries,
    pub(crate) interrupts: Interrupts,
    pub(crate) signals: Signals,
    pub(crate) clock: Timekeeper,
    pub(crate) status: DeviceStatus,
    /// Pages of device memory that users may have.
    pub(crate) pages: PagePool,
    /// `hl_vm.phys_pg_pack_handles`: of the device, not of the context.
    pub(crate) allocations: BTreeMap<u32, Allocation>,
    pub(crate) context: Option<Context>,
    /// The user closed its node; exports hold the context.
    pub(crate) closed: bool,
    /// Whether an export may exist: of the calls, only exports make one.
    may_be_exported: bool,
    pub(crate) opens: u64,
    pub(crate) opened_ns: u64,
    pub(crate) closed_ns: Option<(u64, u64)>,
    pub(crate) hard_resets: u32,
    /// Of earlier users.
    pub(crate) past_drops: Drops,
    pub(crate) errors: ErrorInfo,
    pub(crate) events: EventCounts,
    pub(crate) throttling: Throttling,
    pub(crate) debugging: Debugging,
    pub(crate) watchdog: Option<Watchdog>,
    /// The last slice of work left work to do.
    pub(crate) unfinished: bool,
    /// Texts of the last stops of streams, the newest last.
    pub(crate) stops: VecDeque<String>,
    /// A released context as a new one, for the next user of a device with private command buffers.
    pub(crate) spare: Option<Context>,
}

/// The driver's state of the device's user (`struct hl_ctx`).
pub(crate) struct Context {
    pub(crate) va: VaSpaces,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) buffers: Buffers,
    pub(crate) driver_buffers: DriverBuffers,
    pub(crate) submissions: Submissions,
    pub(crate) notifier: Notifier,
    pub(crate) dram_bytes: u64,
}

/// A reset that waits for the user to close the device (device.c `hl_device_cond_reset`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watchdog {
    /// The time of the latest reset, which is hard then.
    pub(crate) at_ns: u64,
    /// Whether the reset is hard if the user closes the device earlier.
    pub(crate) hard: bool,
}

impl Context {
    pub(crate) fn new(asic: &Asic, memory: MemoryKind) -> Result<Self> {
        let (va, pool, drivers) = VaSpaces::new(asic).ok_or(Error::new(ErrorKind::OutOfMemory, "open"))?;
        Ok(Self {
            va,
            mappings: BTreeMap::new(),
            buffers: match memory {
                MemoryKind::Shared => Buffers::shared(pool)?,
                MemoryKind::Recorded | MemoryKind::Private => Buffers::private(pool)?,
            },
            driver_buffers: DriverBuffers::new(asic, drivers)?,
            submissions: Submissions::new(asic),
            notifier: Notifier::default(),
            dram_bytes: 0,
        })
    }

    /// Makes a released context as a new one; the memory stays allocated.
    pub(crate) fn restart(&mut self) {
        // Every field, so that a new one is not forgotten.
        let Self {
            va: _,
            mappings,
            buffers,
            driver_buffers: _,
            submissions,
            notifier,
            dram_bytes,
        } = self;
        debug_assert!(mappings.is_empty(), "a release unmaps every mapping");
        buffers.restart();
        submissions.restart();
        *notifier = Notifier::default();
        *dram_bytes = 0;
    }
}

impl State {
    pub(crate) fn new(spec: &MockSpec, engine: Box<dyn Engine>, memory: MemoryKind) -> Self {
        let asic = engine.asic();
        Self {
            asic,
            memory,
            entries: QueueEntries::new(asic),
            interrupts: Interrupts::new(asic),
            signals: Signals::new(&asic.sync_stream),
            clock: Timekeeper::new(spec.clock),
            status: DeviceStatus::OPERATIONAL,
            pages: PagePool::new((spec.dram / asic.dram_page) as usize),
            allocations: BTreeMap::new(),
            context: None,
            closed: false,
            may_be_exported: false,
            opens: 0,
            opened_ns: 0,
            closed_ns: None,
            hard_resets: 0,
            past_drops: Drops::default(),
            errors: ErrorInfo::default(),
            events: EventCounts::new(asic),
            throttling: Throttling::default(),
            debugging: Debugging::new(asic),
            watchdog: None,
            unfinished: false,
            stops: VecDeque::new(),
            spare: None,
            engine,
        }
    }

    /// Makes everything as [`new`](Self::new) does; the memory stays allocated. No context is open.
    ///
    /// # Errors
    /// The errno of the host if it does not take memory back.
    pub(crate) fn restart(&mut self, order: Option<u64>) -> std::result::Result<(), Errno> {
        // Every field, so that a new one is not forgotten.
        let Self {
            asic: _,
            engine,
            memory: _,
            entries,
            interrupts,
            signals,
            clock,
            status,
            pages,
            allocations,
            context,
            closed,
            may_be_exported,
            opens,
            opened_ns,
            closed_ns,
            hard_resets,
            past_drops,
            errors,
            events,
            throttling,
            debugging,
            watchdog,
            unfinished,
            stops,
            spare: _,
        } = self;
        debug_assert!(context.is_none(), "the caller checks that no context is open");
        engine.restart(order)?;
        entries.restart();
        interrupts.restart();
        signals.restart();
        clock.restart();
        *status = DeviceStatus::OPERATIONAL;
        pages.restart();
        allocations.clear();
        (*closed, *unfinished, *may_be_exported) = (false, false, false);
        (*opens, *opened_ns, *closed_ns, *hard_resets) = (0, 0, None, 0);
        *past_drops = Drops::default();
        *errors = ErrorInfo::default();
        events.restart();
        *throttling = Throttling::default();
        debugging.restart();
        *watchdog = None;
        stops.clear();
        Ok(())
    }

    /// The context of an operational device.
    pub(crate) fn context(&mut self) -> &mut Context {
        self.parts().0
    }

    /// The context of an operational device, and the engine.
    pub(crate) fn parts(&mut self) -> (&mut Context, &mut dyn Engine) {
        match &mut self.context {
            Some(context) => (context, &mut *self.engine),
            None => unreachable!("{NO_CONTEXT}"),
        }
    }

    /// An allocation that has a mapping.
    pub(crate) fn mapped(&self, handle: u32) -> &Allocation {
        match self.allocations.get(&handle) {
            Some(allocation) => allocation,
            None => unreachable!("allocation {handle} is mapped, so it cannot be freed"),
        }
    }

    /// Submissions refused since the device was made, its last user's included.
    pub(crate) fn drops(&self) -> Drops {
        let own = self.context.as_ref().map(|context| context.submissions.drops);
        own.map_or(self.past_drops, |own| self.past_drops.plus(own))
    }

    /// When the driver's next timer runs out.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.context.as_ref()?.submissions.next_deadline()
    }

    /// Notifies the user, if there is one (device.c `hl_notifier_event_send`).
    pub(crate) fn notify(&mut self, mask: NotifierEvents) {
        if let Some(context) = self.context.as_mut().filter(|_| mask != NotifierEvents::NONE) {
            context.notifier.send(mask);
        }
    }

    /// Records the text of a stop.
    pub(crate) fn note(&mut self, stop: String) {
        if self.stops.len() == STOPS {
            self.stops.pop_front();
        }
        self.stops.push_back(stop);
    }

    pub(crate) fn reset_engine(&mut self, depth: Reset) {
        self.entries.restart();
        self.unfinished = false;
        // hw_queue.c `sync_stream_queue_reset`
        self.signals.restart();
        if let Err(error) = self.engine.reset(depth) {
            self.note(format!("the reset could not give memory back: {error}"));
        }
    }

    /// Unmaps what MAP mapped at an address, and frees the addresses.
    pub(crate) fn unmap(&mut self, address: DeviceVa) {
        let (context, engine) = match &mut self.context {
            Some(context) => (context, &mut self.engine),
            None => unreachable!("{NO_CONTEXT}"),
        };
        match context.mappings.remove(&address.0) {
            Some(Mapping::Device { handle, .. }) => {
                let Some(allocation) = self.allocations.get_mut(&handle) else {
                    unreachable!("allocation {handle} is mapped, so it cannot be freed");
                };
                let pages = allocation.pages.len() as u64;
                allocation.mapped -= 1;
                for index in 0..pages {
                    engine.unmap(DeviceVa(address.0 + index * self.asic.dram_page));
                }
                context.va.dram.give(address, pages * self.asic.dram_page);
            }
            Some(Mapping::Host {
                block,
                size,
                imported,
                ..
            }) => {
                engine.unmap(block);
                // After the chip's unmap: the chip accessed it until then.
                drop(imported);
                let huge = self.asic.host_huge_va.contains(block, size);
                let space = if huge {
                    &mut context.va.huge
                } else {
                    &mut context.va.host
                };
                space.give(block, size);
            }
            None => unreachable!("the caller found the mapping at {address}"),
        }
    }

    /// Frees an allocation's pages and their host memory; they read as zeros afterwards.
    pub(crate) fn discard(&mut self, allocation: &Allocation) {
        for &page in &allocation.pages {
            let discarded = self
                .engine
                .discard(page_address(self.asic, page), self.asic.dram_page);
            // A process cannot cause this: the memory's seals are fixed, and a range of it can
            // always be zeroed.
            debug_assert_eq!(discarded, Ok(()), "page {page} is outside of device memory");
        }
        self.pages.give(&allocation.pages);
    }

    /// Whether an export lives, in any process.
    pub(crate) fn has_export(&mut self) -> bool {
        self.may_be_exported = self.may_be_exported && self.has_held_export();
        self.may_be_exported
    }

    fn has_held_export(&self) -> bool {
        let Some(memory) = self.engine.memory_file() else {
            return false;
        };
        let whole = Window {
            offset: 0,
            len: memory.len(),
        };
        let mappings = self.context.iter().flat_map(|context| context.mappings.values());
        let mut exports = mappings.flat_map(|mapping| match mapping {
            Mapping::Device { exports, .. } => exports.as_slice(),
            Mapping::Host { .. } => &[],
        });
        Exported::StandIn(whole).is_held(Some(memory))
            || exports.any(|export| matches!(export, Exported::Real(_)) && export.is_held(Some(memory)))
    }

    /// Records that a part of a mapping was exported, and drops the records of closed exports.
    pub(crate) fn note_export(&mut self, address: DeviceVa, export: Exported) {
        self.may_be_exported = true;
        let memory = self.engine.memory_file();
        let Some(context) = &mut self.context else {
            unreachable!("{NO_CONTEXT}");
        };
        // Of every mapping: the mock's descriptor of a real dma-buf pins its pages after the others
        // are closed.
        for (at, mapping) in &mut context.mappings {
            let Mapping::Device { exports, .. } = mapping else {
                continue;
            };
            let same = |known: &Exported| match export {
                Exported::StandIn(window) => *at == address.0 && known.is_window(window),
                Exported::Real(_) => false,
            };
            exports.retain(|known| !same(known) && known.is_held(memory));
        }
        match context.mappings.get_mut(&address.0) {
            Some(Mapping::Device { exports, .. }) => exports.push(export),
            _ => unreachable!("the caller found a mapping of device memory at {address}"),
        }
    }

    /// A signal or a wait has ended: it no longer holds its sync object (command_submission.c
    /// `hw_sob_put`).
    pub(crate) fn put_sob(&mut self, sob: Sob) {
        if self.signals.stream(sob.stream).put(sob.which) {
            self.clear_sob(sob);
        }
    }

    /// gaudi2.c `gaudi2_reset_sob`
    pub(crate) fn clear_sob(&mut self, sob: Sob) {
        let cleared = self.engine.clear_sob(sob.number(&self.asic.sync_stream));
        debug_assert_eq!(cleared, Ok(()), "{sob:?} is in the chip's table");
    }
}
