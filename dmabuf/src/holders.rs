//! [`Holder`]: an attachment as its buffer records it.

/// How an importer uses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hold {
    /// A mapping for the CPU.
    Mapping,
    /// A memory region of a NIC.
    Region,
    /// A mapping in a device's address space.
    DeviceMap,
    /// Any other use.
    Other,
}

/// An importer that is attached to a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// How it uses the buffer.
    pub hold: Hold,
    /// The name that it attached with.
    pub name: String,
}

/// The attachments of one buffer in this process, oldest first.
#[derive(Default)]
pub(crate) struct Holders {
    next: u64,
    list: Vec<(u64, Holder)>,
}

impl Holders {
    /// Adds an attachment. Returns the ticket that [`remove`](Self::remove) takes.
    pub(crate) fn add(&mut self, hold: Hold, name: String) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.list.push((ticket, Holder { hold, name }));
        ticket
    }

    pub(crate) fn remove(&mut self, ticket: u64) {
        self.list.retain(|(held, _)| *held != ticket);
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Holder> {
        self.list.iter().map(|(_, holder)| holder)
    }
}
