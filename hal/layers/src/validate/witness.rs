//! [`Witness`]: the ledger as the driver's state, and how far its answers hold.

use std::cell::{Cell, RefCell};

use gaudi_seam::{BufferState, CbHandle, DeviceVa, DriverState, MappingState, MemHandle, Rule, TsHandle};
use gaudi_sys::PAGE;
use gaudi_uapi::info::DeviceStatus;

use super::held::{HeldMapping, Mapped};
use super::ledger::{Book, Ledger, Misuse};

/// Answers the questions of one rule from the ledger.
pub(super) struct Witness<'a> {
    ledger: &'a Ledger,
    /// Whether the last answer holds in any case, or only if the driver refuses the request. `None`
    /// if the ledger does not have what was asked.
    is_certain: Cell<Option<bool>>,
    /// What the ledger has on the object of the last answer, for people.
    remark: RefCell<Option<String>>,
}

impl<'a> Witness<'a> {
    pub(super) fn new(ledger: &'a Ledger) -> Self {
        Self {
            ledger,
            is_certain: Cell::new(Some(true)),
            remark: RefCell::default(),
        }
    }

    /// The misuse of a request that breaks `rule` by the answers of this witness.
    pub(super) fn judge(self, rule: &'static Rule, mut seen: String) -> Option<Misuse> {
        let is_certain = self.is_certain.get()?;
        if let Some(remark) = self.remark.into_inner() {
            seen = format!("{seen}, {remark}");
        }
        Some(Misuse::Refused(rule, seen, is_certain))
    }

    fn note(&self, is_certain: bool, remark: impl Into<String>) {
        self.is_certain.set(Some(is_certain));
        *self.remark.borrow_mut() = Some(remark.into());
    }

    /// Finds an object. Only one that was destroyed here is known not to exist.
    fn find<T>(&self, book: &'a Book<T>, name: u64) -> Option<&'a T> {
        let found = book.get(name);
        match found {
            Some(_) => {}
            None if book.was_destroyed(name) => self.note(true, RELEASED),
            None => self.note(false, "which was not made here"),
        }
        found
    }

    fn unknown<T>(&self, answer: T) -> T {
        self.is_certain.set(None);
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
        let held = self.find(&self.ledger.allocations, handle.0)?;
        let mut mappings = self.ledger.mappings.live.values().filter(|_| held.mappings > 0);
        if let Some(mapping) = mappings.find(|mapping| mapping.of == Mapped::Device(handle)) {
            self.note(true, format!("mapped at {}", mapping.address));
        }
        Some(held.mappings)
    }

    fn allocated(&self, handle: MemHandle) -> Option<u64> {
        let held = self.find(&self.ledger.allocations, handle.0)?;
        Some(held.whole)
    }

    fn mapping(&self, address: DeviceVa) -> Option<MappingState> {
        let Some(held) = self.find(&self.ledger.mappings, address.0) else {
            if let Some(HeldMapping { address, size, .. }) = self.ledger.mapping_around(address, 1) {
                self.note(true, format!("inside the mapping at {address} of {size} bytes"));
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
        self.note(false, format!("exported {exports} times"));
        exports > 0
    }

    /// A destroyed buffer lives, and answers queries, while it is mapped or in use
    /// (memory_mgr.c:hl_mmap_mem_buf_put_handle).
    fn buffer(&self, handle: CbHandle) -> Option<BufferState> {
        let Some(held) = self.find(&self.ledger.buffers, handle.0) else {
            self.is_certain.set(Some(false));
            return None;
        };
        Some(BufferState {
            counters: u64::from(held.size).max(PAGE) / 8,
            has_device_address: held.map_to_device,
        })
    }

    fn is_destroyed(&self, handle: CbHandle) -> bool {
        self.note(true, RELEASED);
        self.ledger.buffers.was_destroyed(handle.0)
    }

    fn mmap_len(&self, offset: u64) -> Option<u64> {
        let buffers = &self.ledger.buffers;
        match buffers.get(offset) {
            Some(held) => Some(held.whole()),
            None if buffers.was_destroyed(offset) => {
                self.note(false, RELEASED);
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
        self.find(&self.ledger.timestamps, handle.0).copied()
    }

    fn last_submission(&self) -> u64 {
        self.ledger.submitted.highest()
    }
}
