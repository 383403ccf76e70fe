//! The card of a memory domain: its control node, and its compute node once it is needed.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use gaudi_device::{Device, DeviceId, DeviceSpec, Error, ErrorKind, Info, Options, Result};
use gaudi_ranges::{RangeMap, Span, Tag};
use gaudi_seam::{BackendSpec, KernelSelector, PciAddress, SharedIo};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::{PerProcess, lock};

use crate::config::Config;
use crate::kind::MemoryType;
use crate::types::memory_types;

const TAG: Tag = [0, 0];

/// Bytes between the first addresses of two cards' memory: more than any card has.
const APART: u64 = 1 << 40;

/// Bytes of a command buffer: room for some hundred packets.
const COMMAND_BUFFER_BYTES: u32 = 16 << 10;

/// Shared by all domains of one target in this process: the compute node has one user at a time.
pub(crate) struct Card {
    pub(crate) target: DeviceSpec,
    pub(crate) config: Config,
    pub(crate) owner: OwnerProcess,
    /// Whether other domains of the target use this card too.
    is_shared: bool,
    /// The lowest number that no other card of this process has.
    number: u64,
    control: OnceLock<SharedIo>,
    bus: OnceLock<Option<PciAddress>>,
    opening: Mutex<()>,
    device: OnceLock<Device>,
    /// The memory of the domain, by address.
    table: RangeMap<Known>,
}

/// Memory in the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) id: u64,
    pub(crate) kind: MemoryType,
}

/// The cards that this process uses. Not its parent's: at the fork a close may hold their lock.
static CARDS: PerProcess<Mutex<Vec<Weak<Card>>>> = PerProcess::new();

/// A number that no other process has: keys of this process carry it.
pub(crate) fn nonce() -> u64 {
    static NONCE: PerProcess<u64> = PerProcess::new();
    // The hasher's keys come from the kernel's random numbers. 0 means no process.
    *NONCE.get_or(|| RandomState::new().hash_one(std::process::id()).max(1))
}

/// The cards that something holds. Removes the others from the list.
fn live(cards: &mut Vec<Weak<Card>>) -> Vec<Arc<Card>> {
    cards.retain(|card| card.strong_count() > 0);
    cards.iter().filter_map(Weak::upgrade).collect()
}

impl Card {
    /// Returns the card of a target: the one that this process uses already, or a new one.
    pub(crate) fn of(target: &DeviceSpec, config: Config) -> Arc<Self> {
        let own = |card: &&Arc<Self>| card.is_shared && card.target == *target;
        let mut cards = lock(CARDS.get());
        let live = live(&mut cards);
        match live.iter().find(own) {
            Some(card) => Arc::clone(card),
            None => Self::list(&mut cards, &live, target, config, true),
        }
    }

    /// Returns a card of its own over an open compute node.
    ///
    /// # Errors
    /// As [`Device::with_options`].
    pub(crate) fn over(
        io: SharedIo,
        target: &DeviceSpec,
        config: Config,
        mut options: Options,
    ) -> Result<Arc<Self>> {
        let mut cards = lock(CARDS.get());
        let live = live(&mut cards);
        let card = Self::list(&mut cards, &live, target, config, false);
        drop((cards, live));
        options.memory_offset = card.memory_offset();
        // No other thread has the card yet.
        let _ = card.device.set(Device::with_options(io, options)?);
        Ok(card)
    }

    /// Makes a card, and adds it to the locked list.
    fn list(
        cards: &mut Vec<Weak<Self>>,
        live: &[Arc<Self>],
        target: &DeviceSpec,
        config: Config,
        is_shared: bool,
    ) -> Arc<Self> {
        let is_used = |number: u64| live.iter().any(|card| card.number == number);
        let number = (0..).find(|&number| !is_used(number)).unwrap_or(0);
        let card = Arc::new(Self {
            target: target.clone(),
            config,
            owner: OwnerProcess::current(),
            is_shared,
            number,
            control: OnceLock::new(),
            bus: OnceLock::new(),
            opening: Mutex::default(),
            device: OnceLock::new(),
            table: RangeMap::new(),
        });
        cards.push(Arc::downgrade(&card));
        card
    }

    fn memory_offset(&self) -> u64 {
        self.number.saturating_mul(APART)
    }

    /// Closes the compute node of a card whose only user is the caller.
    ///
    /// The list of cards is locked: a thread that looks for a card neither holds this one for a
    /// moment nor makes a second one, which could not open the node.
    ///
    /// # Errors
    /// `InUse`: others hold the card. The error of [`Device::close`]; the card keeps its device.
    pub(crate) fn close(card: &mut Arc<Self>, operation: &'static str) -> Result<()> {
        let mut cards = lock(CARDS.get());
        let this = Arc::as_ptr(card);
        cards.retain(|listed| listed.as_ptr() != this);
        let answer = match Arc::get_mut(card) {
            Some(only) => match only.device.take().map(Device::close) {
                None | Some(Ok(())) => return Ok(()),
                Some(Err(failure)) => {
                    let (device, error) = failure.into_parts();
                    only.device = OnceLock::from(device);
                    Err(error)
                }
            },
            None => {
                let others = Arc::strong_count(card).saturating_sub(1);
                Err(Error::new(ErrorKind::InUse, operation)
                    .because(format!(
                        "{others} others hold the domain: memory, transports or handles"
                    ))
                    .helped_by("free the memory and drop the transports first"))
            }
        };
        cards.push(Arc::downgrade(card));
        answer
    }

    /// # Errors
    /// `Forked`: the domain belongs to the parent of this process.
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        if !self.owner.is_foreign() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Forked, operation)
            .because("the memory domain belongs to the parent of this process")
            .helped_by("call exec(3); a child of a process with one thread can create a domain instead"))
    }

    /// Returns the control node, which is opened once.
    ///
    /// # Errors
    /// As [`gaudi_hal::control`].
    pub(crate) fn control(&self) -> Result<&SharedIo> {
        if let Some(io) = self.control.get() {
            return Ok(io);
        }
        let _opening = lock(&self.opening);
        if self.control.get().is_none() {
            let io = gaudi_hal::control(&self.target)?;
            // The lock is held, so no other thread sets it.
            let _ = self.control.set(io);
        }
        match self.control.get() {
            Some(io) => Ok(io),
            None => unreachable!("the control node was set"),
        }
    }

    /// Returns the compute node, which the first call opens.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub(crate) fn device(&self) -> Result<&Device> {
        if let Some(device) = self.device.get() {
            return Ok(device);
        }
        let _opening = lock(&self.opening);
        if self.device.get().is_none() {
            let mut options = Options::default();
            options.command_buffer_bytes = COMMAND_BUFFER_BYTES;
            options.kept_allocations = 1;
            options.memory_offset = self.memory_offset();
            let io = gaudi_hal::open(&self.target)?;
            let device = Device::with_options(io, options)?;
            // The lock is held, so no other thread sets it.
            let _ = self.device.set(device);
        }
        match self.device.get() {
            Some(device) => Ok(device),
            None => unreachable!("the device was set"),
        }
    }

    /// Returns the compute node if it is open.
    pub(crate) fn opened(&self) -> Option<&Device> {
        self.device.get()
    }

    /// Queries the properties: of the compute node if it is open, so that a target such as
    /// `kernel`, which selects a free card, describes the card in use.
    ///
    /// # Errors
    /// As [`gaudi_hal::control`], or the driver's own error.
    pub(crate) fn info(&self) -> Result<Info> {
        match self.opened() {
            Some(device) => device.info(),
            None => Info::query(&**self.control()?),
        }
    }

    /// Returns the PCI address of the open card; `None` for a mock.
    pub(crate) fn bus(&self, id: DeviceId) -> Option<PciAddress> {
        *self.bus.get_or_init(|| match self.target.backend {
            BackendSpec::Kernel(KernelSelector::Bus(bus)) => Some(bus),
            BackendSpec::Mock(_) => None,
            _ => {
                let wanted = BackendSpec::Kernel(KernelSelector::Index(id.index));
                let listed = gaudi_hal::list().into_iter();
                listed
                    .filter(|listed| listed.spec.backend == wanted)
                    .find_map(|listed| listed.bus)
            }
        })
    }

    /// Adds memory to the tables.
    ///
    /// # Errors
    /// `InUse`: another card's memory has the addresses.
    pub(crate) fn add(&self, address: u64, len: u64, known: Known, device: DeviceId) -> Result<()> {
        if known.kind == MemoryType::Device {
            memory_types().insert(address, len, device)?;
        }
        self.register(address, len, known);
        Ok(())
    }

    /// Adds a registration to the domain's table.
    pub(crate) fn register(&self, address: u64, len: u64, known: Known) {
        if let Some(span) = Span::new(address, len) {
            drop(self.table.insert(span, TAG, known));
        }
    }

    /// Removes memory from the tables. Does nothing in a fork child.
    pub(crate) fn remove(&self, address: u64, len: u64, known: Known) {
        self.deregister(address, len, known);
        if known.kind == MemoryType::Device {
            memory_types().remove(address);
        }
    }

    /// Removes a registration from the domain's table.
    pub(crate) fn deregister(&self, address: u64, len: u64, known: Known) {
        if self.owner.is_foreign() {
            return;
        }
        if let Some(span) = Span::new(address, len) {
            drop(self.table.remove(span, |pin| pin.id == known.id));
        }
    }

    /// Returns the memory that contains a range, and its addresses.
    #[inline]
    pub(crate) fn find(&self, span: Span) -> Option<(Span, Known)> {
        self.table.copied(span, TAG)
    }

    /// Returns the memory of any card that contains a range, its addresses and its number.
    pub(crate) fn find_any(span: Span) -> Option<(Span, u64)> {
        // Under the lock, so that a close does not see the cards held.
        let cards = lock(CARDS.get());
        let mut live = cards.iter().filter_map(Weak::upgrade);
        live.find_map(|card| card.find(span).map(|(whole, known)| (whole, known.id)))
    }

    /// Returns the memory that has a part of a range.
    pub(crate) fn find_part(&self, span: Span) -> Option<Span> {
        self.table.overlapping(span).first().map(|pin| pin.span())
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Card({})", self.target)
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "fork(2)")]
    fn fork_child_waits_for_no_close_of_its_parent() {
        let target = "mock:gaudi2?name=cardfork".parse().expect("a spec");
        let parents = Card::of(&target, Config::default());
        let closing = lock(CARDS.get());
        // SAFETY: the child takes no lock that the parent holds, and ends itself.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                // SAFETY: ends a child that waits for the lock.
                unsafe { libc::alarm(20) };
                let is_own = !Arc::ptr_eq(&parents, &Card::of(&target, Config::default()));
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!is_own)) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            }
        }
        drop(closing);
    }
}
