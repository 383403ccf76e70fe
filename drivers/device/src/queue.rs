//! A hardware queue: commands are encoded into a command buffer that the device fetches.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{DeviceVa, Error, QueueId, Result};
use gaudi_spec::asic::QueueEngine;

use crate::asic::{self, Command};
use crate::completion::Completion;
use crate::context::Context;
use crate::location::Location;
use crate::producer::{Hold, Producer};
use crate::sob::Sob;
use crate::transfer::{Direction, Source, Transfer};

/// A producer on a hardware queue.
///
/// Calls chain: `queue.wait(&ready, 1)?.copy(&to, &from)?.signal(&done, 1)?.submit()?`. Commands
/// execute in order, and so do submissions. Each command is encoded into a command buffer of a
/// ring; a submission copies and allocates nothing.
///
/// A queue is `Send` and takes `&mut self`. [`try_clone`](Self::try_clone) creates a separate
/// producer on the same hardware queue. If the ring or the driver is full, a call waits for the
/// oldest own submission, up to its [timeout](Self::set_timeout).
pub struct Queue {
    producer: Arc<Producer>,
    timeout: Duration,
    /// The slot of the open command buffer.
    slot: usize,
    /// Slots from there on that are known to be free. Only a submission uses one.
    free: usize,
    used: usize,
    holds: Vec<Hold>,
    tally: Tally,
}

/// The work in the open command buffer, added to the statistics by the submission.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    packets: u64,
    to_device: u64,
    to_host: u64,
    in_device: u64,
    filled: u64,
}

impl Queue {
    /// # Errors
    /// - `InvalidInput`: the chip has no queue with this number.
    /// - `Unsupported`: the queue is not for users, or its engine is disabled.
    /// - As [`Producer::new`].
    pub(crate) fn new(context: &Arc<Context>, id: QueueId) -> Result<Self> {
        const OP: &str = "Device::queue";
        context.check_process(OP)?;
        let row = (context.asic.queue)(id).ok_or_else(|| {
            context
                .invalid(OP, "no queue has this number")
                .saw(id, format!("below {}", context.asic.queue_count))
        })?;
        let unsupported = |cause| Err(Error::unsupported(OP, cause).on(context.id));
        if !row.user {
            return unsupported(format!("queue {id} does not accept work of users"));
        }
        if !asic::is_enabled(&row, context.edma_mask) {
            return unsupported(format!(
                "internal DMA engine {} of this card is disabled",
                row.instance
            ));
        }
        Ok(Self::on(Producer::new(context, row)?, context.options.timeout))
    }

    fn on(producer: Arc<Producer>, timeout: Duration) -> Self {
        Self {
            producer,
            timeout,
            slot: 0,
            free: 0,
            used: 0,
            holds: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Creates another producer on the same hardware queue, with a ring of its own. Submissions of
    /// the two execute in the order in which the driver accepts them.
    ///
    /// # Errors
    /// As [`Device::queue`](crate::Device::queue).
    pub fn try_clone(&self) -> Result<Self> {
        let producer = Producer::new(self.context(), self.producer.row)?;
        Ok(Self::on(producer, self.timeout))
    }

    fn context(&self) -> &Arc<Context> {
        &self.producer.context
    }

    /// Returns the number of the hardware queue.
    pub fn id(&self) -> QueueId {
        self.producer.row.id
    }

    /// Sets how long a call waits for room in the ring or the driver before it fails with
    /// `TimedOut`. With a timeout of zero it fails with `WouldBlock` at once.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns the bytes of commands that are not submitted.
    pub fn pending(&self) -> usize {
        self.used
    }

    /// Discards the commands that are not submitted.
    pub fn clear(&mut self) {
        self.used = 0;
        self.holds.clear();
        self.tally = Tally::default();
    }

    /// Copies. The ends have the same length and do not overlap.
    ///
    /// # Errors
    /// - `InvalidInput`: the ends are invalid, or the command buffer has no room for all packets
    ///   ([`Device::copy`](crate::Device::copy) accepts any length).
    /// - `Unsupported`: the engine does not copy in this direction.
    /// - `WouldBlock`, `TimedOut`: no command buffer is free.
    /// - `Forked`, or the failure of an earlier submission.
    pub fn copy(&mut self, dst: impl Into<Location>, src: impl Into<Location>) -> Result<&mut Self> {
        let (dst, src) = (dst.into(), src.into());
        self.context().check_process("Queue::copy")?;
        let transfer = Transfer::copy(self.context(), &dst, &src)?;
        self.add_transfer(transfer)?;
        Ok(self.hold_ends([dst, src]))
    }

    /// Fills with a 32-bit pattern, its lowest byte first, from the range's first byte on.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub fn memset(&mut self, dst: impl Into<Location>, pattern: u32) -> Result<&mut Self> {
        let dst = dst.into();
        let transfer = Transfer::fill(self.context(), "Queue::memset", &dst, pattern)?;
        self.add_transfer(transfer)?;
        Ok(self.hold_ends([dst]))
    }

    /// Adds the packets of a transfer. The caller holds its memory.
    fn add_transfer(&mut self, transfer: Transfer<'_>) -> Result<()> {
        self.check_engine(transfer.direction)?;
        let pieces = transfer.pieces(self.context());
        self.room(pieces.clone().count() * self.context().encoder.sizes().transfer)?;
        for (offset, len) in pieces {
            self.put_piece(transfer, offset, len)?;
        }
        Ok(())
    }

    fn hold_ends<const ENDS: usize>(&mut self, ends: [Location; ENDS]) -> &mut Self {
        for end in ends {
            if !end.is_empty() {
                self.holds.push(Hold::Memory(end.into_memory()));
            }
        }
        self
    }

    /// Copies parts of `src` to parts of `dst`: as many of `parts` (offset in `dst`, offset in
    /// `src`, length) as the command buffer has room for. Returns how many were added, which is 0
    /// only if the open command buffer is full: submit it then. Parts that follow each other in
    /// both ranges become one packet. The memory is held once for all parts.
    ///
    /// # Errors
    /// As [`copy`](Self::copy), and `InvalidInput`: a part leaves its range. The parts before it
    /// stay added.
    pub fn copy_parts(&mut self, dst: &Location, src: &Location, parts: &[(u64, u64, u64)]) -> Result<usize> {
        const OP: &str = "Queue::copy_parts";
        self.context().check_process(OP)?;
        // The checks of the memory are the same for every part.
        let transfer = Transfer::between(self.context(), dst, src)?;
        self.check_engine(transfer.direction)?;
        let size = self.context().encoder.sizes().transfer;
        let most = self.context().options.packet_bytes;
        let may_overlap = dst.overlaps(src);
        let (mut added, mut next) = (0, 0);
        while let Some(&(to, from, mut len)) = parts.get(next) {
            let fit = self.bytes_left() / size;
            let mut end = next + 1;
            while let Some(&(more_to, more_from, more)) = parts.get(end) {
                let joined = to.checked_add(len) == Some(more_to) && from.checked_add(len) == Some(more_from);
                let longer = len.saturating_add(more);
                if !joined || longer.div_ceil(most) > fit as u64 {
                    break;
                }
                len = longer;
                end += 1;
            }
            let inside = |offset: u64, whole: u64| offset.checked_add(len).is_some_and(|end| end <= whole);
            if !inside(to, dst.len()) || !inside(from, src.len()) {
                let seen = format!("{len} bytes from {from} to {to}");
                let wanted = format!("within {} and {} bytes", src.len(), dst.len());
                return Err(self
                    .context()
                    .invalid(OP, "a part leaves its range")
                    .saw(seen, wanted));
            }
            if may_overlap && dst.part(to, len).overlaps(&src.part(from, len)) {
                let cause = "the ends of a part overlap, and an engine reads and writes in no fixed order";
                return Err(self.context().invalid(OP, cause));
            }
            if len > 0 {
                let packets = len.div_ceil(most) as usize;
                if self.used > 0 && packets > fit {
                    break;
                }
                self.room(packets * size)?;
                if added == 0 {
                    self.hold_memory(transfer);
                }
                let mut offset = 0;
                while offset < len {
                    let piece = (len - offset).min(most);
                    // `most` is a 32-bit length: `Options::packet_bytes` is at most the chip's.
                    self.put_copy(transfer, to + offset, from + offset, piece as u32)?;
                    offset += piece;
                }
            }
            added += end - next;
            next = end;
        }
        Ok(added)
    }

    /// Returns the bytes of commands that the command buffer has room for, besides what a
    /// submission adds.
    fn bytes_left(&self) -> usize {
        let tail = self.context().encoder.sizes().barrier;
        self.producer.ring.slot_bytes.saturating_sub(self.used + tail)
    }

    /// Delays the commands that follow until all before in this queue have reached memory.
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    pub fn fence(&mut self) -> Result<&mut Self> {
        self.add(Command::Barrier)
    }

    /// Sets a sync object, at most to 32 767, when all commands before have reached memory.
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    pub fn set(&mut self, sob: &Sob, value: u16) -> Result<&mut Self> {
        self.check_value("Queue::set", value)?;
        self.check_sob(sob)?;
        let index = sob.index();
        self.add(Command::Set { sob: index, value })?;
        Ok(self.hold_sob(sob))
    }

    /// Adds to a sync object when all commands before in this queue have reached memory.
    ///
    /// # Errors
    /// - `InvalidInput`: the value is invalid, the sync object belongs to another device, or the
    ///   command buffer has no room.
    /// - `WouldBlock`, `TimedOut`: no command buffer is free.
    /// - `Forked`, or the failure of an earlier submission.
    pub fn signal(&mut self, sob: &Sob, amount: i16) -> Result<&mut Self> {
        self.check_sob(sob)?;
        let index = sob.index();
        self.add(Command::Add { sob: index, amount })?;
        Ok(self.hold_sob(sob))
    }

    /// Blocks the queue until a sync object is at least `value` (1 to 32 767).
    ///
    /// A wait without a signal blocks every producer on this hardware queue, until the driver
    /// aborts the submission (`Hung`) and resets the device.
    ///
    /// The driver has at most 64 submissions of a process in flight, over all queues, and frees
    /// their places in the order of submission (`command_submission.c:allocate_cs`). So behind a
    /// waiting submission it accepts 63 more and then none, not even the one with the signal.
    /// Submit the signal before that, or have the processor or a NIC set the sync object.
    ///
    /// # Errors
    /// - `Busy`: every monitor is in use.
    /// - As [`signal`](Self::signal).
    pub fn wait(&mut self, sob: &Sob, value: u16) -> Result<&mut Self> {
        const OP: &str = "Queue::wait";
        self.context().check_process(OP)?;
        self.check_value(OP, value)?;
        self.check_sob(sob)?;
        self.add(Command::Wait {
            queue: self.producer.row,
            monitor: self.producer.monitor()?,
            sob: sob.index(),
            value,
        })?;
        Ok(self.hold_sob(sob))
    }

    /// Submits the commands to the driver. Without commands, the completion is done.
    ///
    /// On an error the commands stay, to be submitted again or [cleared](Self::clear).
    ///
    /// # Errors
    /// - `TimedOut`: the driver has no room. The error names the submission that must end first.
    /// - `WouldBlock`: the driver has no room, and the timeout is zero.
    /// - `Forked`, the failure of an earlier submission, or the driver's own error.
    pub fn submit(&mut self) -> Result<Completion> {
        self.context().check_process("HL_IOCTL_CS")?;
        let used = self.used;
        if used == 0 {
            return Ok(Completion::done());
        }
        self.put(Command::Barrier)?;
        let answer = self
            .producer
            .submit(self.slot, self.used, &mut self.holds, self.timeout);
        let seq = match answer {
            Ok(seq) => seq,
            Err(error) => {
                self.used = used;
                return Err(error);
            }
        };
        let (stats, tally) = (&self.producer.context.stats, std::mem::take(&mut self.tally));
        stats.lin_dma_packets.add(tally.packets);
        stats.bytes_to_device.add(tally.to_device);
        stats.bytes_to_host.add(tally.to_host);
        stats.bytes_in_device.add(tally.in_device);
        stats.bytes_filled.add(tally.filled);
        (self.slot, self.free) = ((self.slot + 1) % self.producer.ring.slots, self.free - 1);
        self.used = 0;
        Ok(Completion::new(&self.producer, seq))
    }

    /// Holds what other work holds until the open command buffer is done.
    pub(crate) fn hold_other(&mut self, other: Completion) {
        let other = other.into_parts();
        self.holds
            .extend(other.map(|(producer, seq)| Hold::Other(producer, seq)));
    }

    /// Waits until nothing of this producer is in flight.
    ///
    /// # Errors
    /// `TimedOut`, or the failure of an earlier submission.
    pub(crate) fn drain(&self) -> Result<()> {
        use crate::active_queues::ActiveQueue as _;
        self.producer.drain(self.context().options.timeout.into())
    }

    /// Transfers any length, after what is not submitted yet and before what `last` adds: with as
    /// many submissions as needed. The next is built while one runs.
    ///
    /// # Errors
    /// As [`submit`](Self::submit). What is not submitted is cleared.
    pub(crate) fn transfer_all(
        &mut self,
        transfer: Transfer<'_>,
        last: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Completion> {
        self.check_engine(transfer.direction)?;
        let mut pieces = transfer.pieces(self.context());
        let sizes = self.context().encoder.sizes();
        // Room for the barrier of `submit`, and for a wait or a signal of `last`.
        let reserved = sizes.barrier + sizes.wait;
        let mut work = || {
            loop {
                let room = self.producer.ring.slot_bytes - reserved;
                let fit = room.saturating_sub(self.used) / sizes.transfer;
                let most = (self.context().options.packets_per_submission as usize).clamp(1, fit.max(1));
                for (offset, len) in pieces.by_ref().take(most) {
                    self.room(sizes.transfer)?;
                    self.put_piece(transfer, offset, len)?;
                }
                self.hold_memory(transfer);
                if pieces.is_done() {
                    return Ok(());
                }
                // The last submission's completion covers this one.
                let _ = self.submit()?;
            }
        };
        let answer = work().and_then(|()| last(self)).and_then(|()| self.submit());
        if answer.is_err() {
            self.clear();
        }
        answer
    }

    fn put_piece(&mut self, transfer: Transfer<'_>, offset: u64, len: u32) -> Result<()> {
        self.put_copy(transfer, offset, offset, len)
    }

    /// Adds a packet of a transfer, at an offset in each end.
    fn put_copy(&mut self, transfer: Transfer<'_>, to: u64, from: u64, len: u32) -> Result<()> {
        let at = |location: &Location, offset| DeviceVa(location.address().0.wrapping_add(offset));
        let dst = at(transfer.dst, to);
        match transfer.source {
            Source::Memory(src) => self.put(Command::Copy {
                dst,
                src: at(src, from),
                len,
            })?,
            Source::Pattern(pattern) => self.put(Command::Fill { dst, pattern, len })?,
        }
        let tally = &mut self.tally;
        tally.packets += 1;
        *match (transfer.source, transfer.direction) {
            (Source::Pattern(_), _) => &mut tally.filled,
            (_, Direction::ToDevice) => &mut tally.to_device,
            (_, Direction::ToHost) => &mut tally.to_host,
            (_, Direction::InDevice) => &mut tally.in_device,
        } += u64::from(len);
        Ok(())
    }

    fn hold_memory(&mut self, transfer: Transfer<'_>) {
        self.holds.push(Hold::Memory(transfer.dst.memory().clone()));
        if let Source::Memory(src) = transfer.source {
            self.holds.push(Hold::Memory(src.memory().clone()));
        }
    }

    fn hold_sob(&mut self, sob: &Sob) -> &mut Self {
        self.holds.push(Hold::Sob(sob.clone()));
        self
    }

    fn check_value(&self, operation: &'static str, value: u16) -> Result<()> {
        let most = self.context().encoder.sizes().sob_max;
        if u32::from(value) <= most {
            return Ok(());
        }
        Err(self
            .context()
            .invalid(operation, "a sync object has 15 bits")
            .saw(value, format!("at most {most}")))
    }

    fn check_sob(&self, sob: &Sob) -> Result<()> {
        if Arc::ptr_eq(sob.context(), self.context()) {
            return Ok(());
        }
        Err(self
            .context()
            .invalid("Queue", "the sync object belongs to another open device"))
    }

    /// Checks that this queue's engine copies in a direction.
    fn check_engine(&self, direction: Direction) -> Result<()> {
        let engine = self.producer.row.engine;
        if engine == QueueEngine::Pdma || engine == QueueEngine::Edma && direction == Direction::InDevice {
            return Ok(());
        }
        Err(Error::unsupported(
            "Queue::copy",
            format!(
                "queue {} feeds {engine:?}, which does not copy {direction:?}",
                self.id()
            ),
        )
        .on(self.context().id)
        .helped_by("a PDMA queue copies in every direction, an EDMA queue within the device"))
    }

    /// Checks that so many bytes of commands fit, with what a submission adds. Takes a command
    /// buffer if none is open.
    fn room(&mut self, bytes: usize) -> Result<()> {
        // A fork child has no command buffers. It must not write to those of a mock, which its
        // parent would submit.
        self.context().check_process("Queue")?;
        if self.free == 0 {
            self.free = self.producer.free_slots(self.timeout)?;
        }
        let room = self.bytes_left();
        if bytes <= room {
            return Ok(());
        }
        Err(self
            .context()
            .invalid("Queue", "the command buffer has no room for the command")
            .saw(format!("{bytes} bytes"), format!("at most {room}"))
            .helped_by("submit before it, or open the device with larger command buffers"))
    }

    /// Adds a command, if the command buffer has room for it. Inlined, so that the encoder's match
    /// is resolved at compile time.
    #[inline(always)]
    fn add(&mut self, command: Command) -> Result<&mut Self> {
        let encoder = self.context().encoder;
        let put = encoder.encode(command, |bytes| {
            self.room(bytes.len())?;
            self.write(bytes)
        });
        match put {
            Some(Ok(())) => Ok(self),
            Some(Err(error)) => Err(error),
            None => Err(self.no_register()),
        }
    }

    /// Adds a command for which [`room`](Self::room) was checked. Inlined as [`add`](Self::add).
    #[inline(always)]
    fn put(&mut self, command: Command) -> Result<()> {
        let encoder = self.context().encoder;
        let put = encoder.encode(command, |bytes| self.write(bytes));
        put.unwrap_or_else(|| Err(self.no_register()))
    }

    #[cold]
    fn no_register(&self) -> Error {
        self.context()
            .invalid("Queue", "queue, monitor or sync object has no such register")
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.producer.ring.write(self.slot, self.used, bytes);
        written.map_err(|error| error.on(self.context().id))?;
        self.used += bytes.len();
        Ok(())
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} on {})", self.id(), self.context().id)
    }
}
