//! [`Witness`]: the ledger as the driver's state, and how far its answers hold.

use std::cell::{Cell, RefCell};

use gaudi_seam::{BufferState, CbHandle, DeviceVa, DriverState, MappingState, MemHandle, Rule, TsHandle};
use gaudi_sys::PAGE;
use gaudi_uapi::info::DeviceStatus;

use super::held::Mapped;
use super::ledger::{Book, Ledger, Misuse};

/// How far an answer holds.
#[derive(Debug, Clone, Copy)]
enum Trust {
    Certain,
    /// If the driver refuses the request.
    IfRefused,
    /// The ledger does not have what was asked.
    Unknown,
}

/// Answers the questions of one rule from the ledger.
pub(super) struct Witness<'a> {
    ledger: &'a Ledger,
    trust: Cell<Trust>,
    /// What the ledger has on the object of the last answer, for people.
    remark: RefCell<Option<String>>,
}

impl<'a> Witness<'a> {
    pub(super) fn new(ledger: &'a Ledger) -> Self {
        Self {
            ledger,
            trust: Cell::new(Trust::Certain),
            remark: RefCell::default(),
        }
    }

    /// The misuse of a request that breaks `rule` by the answers of this witness.
    pub(super) fn judge(self, rule: &'static Rule, seen: String) -> Option<Misuse> {
        let seen = match self.remark.into_inner() {
            Some(remark) => format!("{seen}, {remark}"),
            None => seen,
        };
        match self.trust.get() {
            Trust::Certain => Some(Misuse::Refused(rule, seen, true)),
            Trust::IfRefused => Some(Misuse::Refused(rule, seen, false)),
            Trust::Unknown => None,
        }
    }

    fn note(&self, trust: Trust, remark: impl Into<String>) {
        self.trust.set(trust);
        *self.remark.borrow_mut() = Some(remark.into());
    }

    /// Notes an object that is not in the ledger: only one that was destroyed here is known not to
    /// exist.
    fn missing<T>(&self, book: &Book<T>, name: u64) {
        match book.was_destroyed(name) {
            true => self.note(Trust::Certain, RELEASED),
            false => self.note(Trust::IfRefused, "which was not made here"),
        }
    }

    fn unknown<T>(&self, answer: T) -> T {
        self.trust.set(Trust::Unknown);
        answer
    }
}

const RELEASED: &str = "which was released already";

impl DriverState for Witness<'_> {
    fn status(&self) -> DeviceStatus {
        self.unknown(DeviceStatus::OPERATIONAL)
    }

    fn has_eventfd(&self) -> bool {
        self.unknown(false)
    }

    fn is_debugged(&self) -> bool {
        self.unknown(false)
    }

    /// Shared memory of another context has a handle that the layer did not see.
    fn mappings(&self, handle: MemHandle) -> Option<u32> {
        let Some(held) = self.ledger.allocations.get(handle.0) else {
            self.missing(&self.ledger.allocations, handle.0);
            return None;
        };
        let mut mappings = self.ledger.mappings.live.values();
        if let Some(mapping) = mappings.find(|mapping| mapping.of == Mapped::Device(handle)) {
            self.note(Trust::Certain, format!("mapped at {}", mapping.address));
        }
        Some(held.mappings)
    }

    fn mapping(&self, address: DeviceVa) -> Option<MappingState> {
        let Some(held) = self.ledger.mappings.get(address.0) else {
            match self.ledger.mapping_around(address, 1) {
                Some(around) => {
                    let (start, size) = (around.address, around.size);
                    let remark = format!("inside the mapping at {start} of {size} bytes");
                    self.note(Trust::Certain, remark);
                }
                None => self.missing(&self.ledger.mappings, address.0),
            }
            return None;
        };
        Some(MappingState {
            size: held.size,
            is_device_memory: matches!(held.of, Mapped::Device(_)),
        })
    }

    /// The layer does not see when exports end, here or in another process.
    fn is_exported(&self, address: DeviceVa) -> bool {
        let exports = self.ledger.mappings.get(address.0).map_or(0, |held| held.exports);
        self.note(Trust::IfRefused, format!("exported {exports} times"));
        exports > 0
    }

    /// A destroyed buffer lives, and answers queries, while it is mapped or in use
    /// (memory_mgr.c:hl_mmap_mem_buf_put_handle).
    fn buffer(&self, handle: CbHandle) -> Option<BufferState> {
        let Some(held) = self.ledger.buffers.get(handle.0) else {
            self.missing(&self.ledger.buffers, handle.0);
            self.trust.set(Trust::IfRefused);
            return None;
        };
        Some(BufferState {
            counters: u64::from(held.size).max(PAGE) / 8,
            has_device_address: held.map_to_device,
        })
    }

    fn is_destroyed(&self, handle: CbHandle) -> bool {
        self.note(Trust::Certain, RELEASED);
        self.ledger.buffers.was_destroyed(handle.0)
    }

    fn mmap_len(&self, offset: u64) -> Option<u64> {
        let buffers = &self.ledger.buffers;
        match buffers.get(offset) {
            Some(held) => Some(held.whole()),
            None if buffers.was_destroyed(offset) => {
                self.note(Trust::IfRefused, RELEASED);
                None
            }
            // Of a block, perhaps.
            None => self.unknown(None),
        }
    }

    fn is_mmapped(&self, _: u64) -> bool {
        self.unknown(false)
    }

    fn timestamps(&self, handle: TsHandle) -> Option<u32> {
        let elements = self.ledger.timestamps.get(&handle.0).copied();
        if elements.is_none() {
            self.note(Trust::IfRefused, "which was not made here");
        }
        elements
    }

    fn last_submission(&self) -> u64 {
        self.ledger.submitted.highest()
    }
}
