//! A producer on a hardware queue: commands go straight into a command buffer that the device sees.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{DeviceVa, Error, QueueId, Result};
use gaudi_spec::asic::QueueEngine;
use gaudi_spec::gaudi2::packet::{Fence, LinDma, MsgShort, Nop};
use gaudi_spec::gaudi2::qman::fence_address;
use gaudi_spec::gaudi2::sync::{Compare, MonArm, MonConfig, SOB_MAX, SobUpdate};

use crate::completion::Completion;
use crate::context::Context;
use crate::lane::Lane;
use crate::location::{Keep, Location};
use crate::sync::Sob;

/// What [`Queue::submit`] adds to every command buffer.
const TAIL: usize = Nop::LEN;
/// What a large transfer leaves free in a command buffer, for a wait or a signal at its end.
const RESERVE: usize = 5 * MsgShort::LEN + Fence::LEN;
/// The fence counter that waits use; the driver's own signal-and-wait submissions use another (gaudi2.c:11446).
const FENCE: u8 = 0;

/// A producer on a hardware queue.
///
/// Reads as a sentence: `queue.wait(&ready, 1)?.copy(&to, &from)?.signal(&done, 1)?.submit()?`. Commands execute in order, and so do
/// submissions. Every command goes straight into a command buffer of a ring; submitting copies and allocates nothing.
///
/// A queue is `Send` and takes `&mut self`; [`try_clone`](Self::try_clone) makes a separate producer on the same hardware queue. When
/// ring or driver are full, a call waits for the oldest own submission, for as long as its [patience](Self::set_patience).
pub struct Queue {
    lane: Arc<Lane>,
    patience: Duration,
    slot: Option<usize>,
    used: usize,
    keeps: Vec<Keep>,
    tally: Tally,
}

/// What the open command buffer will do, counted when it is submitted.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    packets: u64,
    to_device: u64,
    to_host: u64,
    in_device: u64,
    filled: u64,
}

/// Between which memories a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    ToDevice,
    ToHost,
    InDevice,
}

impl Direction {
    /// Checks both ends of a copy. `Unsupported` between host and host.
    pub(crate) fn of(context: &Arc<Context>, dst: &Location, src: &Location) -> Result<Self> {
        const OP: &str = "copy";
        for end in [dst, src] {
            if !Arc::ptr_eq(end.context(), context) {
                return Err(context.wrong(OP, "an end of the copy is memory of another open device"));
            }
            still_mapped(context, OP, end)?;
        }
        if dst.len() != src.len() {
            return Err(context.wrong(OP, "the two ends have different lengths").saw(
                format!("destination {}, source {}", dst.len(), src.len()),
                "the same",
            ));
        }
        let direction = match (dst.is_host(), src.is_host()) {
            (false, true) => Self::ToDevice,
            (true, false) => Self::ToHost,
            (false, false) => Self::InDevice,
            (true, true) => {
                return Err(Error::unsupported(
                    OP,
                    "host memory to host memory crosses the bus twice to do what the processor does better",
                )
                .on(context.id)
                .helped_by("copy with the processor; in the library, HostMapping::copy_on_cpu does it"));
            }
        };
        if dst.overlaps(src) && !dst.is_empty() {
            return Err(context
                .wrong(
                    OP,
                    "the ends overlap, and an engine reads and writes in no fixed order",
                )
                .saw(
                    format!("{} and {} + {:#x}", dst.address(), src.address(), dst.len()),
                    "disjoint ranges",
                ));
        }
        Ok(direction)
    }
}

/// An engine that meets memory which a close has unmapped faults, and the driver resets the device: refused before.
pub(crate) fn still_mapped(context: &Context, operation: &'static str, end: &Location) -> Result<()> {
    if end.is_mapped() {
        return Ok(());
    }
    Err(context
        .wrong(operation, "the device does not reach the memory any more")
        .helped_by("its close unmapped it and failed afterwards; close it again"))
}

/// The packets of one transfer: `(offset, length)`. After the first, all start on a cache line of the destination.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    offset: u64,
    len: u64,
    first: u64,
    most: u64,
}

impl Pieces {
    /// `most` is a multiple of `line` and larger.
    pub(crate) fn new(start: DeviceVa, len: u64, most: u64, line: u64) -> Self {
        Self {
            offset: 0,
            len,
            first: most - start.0 % line.max(1),
            most,
        }
    }
}

impl Pieces {
    fn is_done(&self) -> bool {
        self.offset == self.len
    }
}

impl Iterator for Pieces {
    type Item = (u64, u32);

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.len - self.offset;
        if left == 0 {
            return None;
        }
        let most = if self.offset == 0 { self.first } else { self.most };
        let len = u32::try_from(left.min(most)).unwrap_or(u32::MAX);
        let offset = self.offset;
        self.offset += u64::from(len);
        Some((offset, len))
    }
}

impl Queue {
    pub(crate) fn new(context: &Arc<Context>, id: QueueId) -> Result<Self> {
        const OP: &str = "Device::queue";
        let row = (context.asic.queue)(id).ok_or_else(|| {
            context
                .wrong(OP, "no queue has this number")
                .saw(id, format!("below {}", context.asic.queue_count))
        })?;
        if !row.user {
            return Err(Error::unsupported(OP, format!("queue {id} takes no work of users")).on(context.id));
        }
        let dead = row.engine == QueueEngine::Edma
            && context.edma_mask & 1_u32.wrapping_shl(row.instance.into()) == 0;
        if dead {
            return Err(Error::unsupported(
                OP,
                format!("internal DMA engine {} of this card does not work", row.instance),
            )
            .on(context.id));
        }
        Ok(Self::on(Lane::new(context, row)?, context.options.patience))
    }

    fn on(lane: Arc<Lane>, patience: Duration) -> Self {
        Self {
            lane,
            patience,
            slot: None,
            used: 0,
            keeps: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Another producer on the same hardware queue, with a ring of its own. What the two submit is ordered only by who came first.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self::on(
            Lane::new(&self.lane.context, self.lane.row)?,
            self.patience,
        ))
    }

    /// The hardware queue.
    pub fn id(&self) -> QueueId {
        self.lane.row.id
    }

    /// How long a call waits when ring or driver are full, before `TimedOut`. Zero waits never and answers `WouldBlock`.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Bytes of commands that are not submitted.
    pub fn pending(&self) -> usize {
        self.used
    }

    /// Forgets the commands that are not submitted.
    pub fn clear(&mut self) {
        self.used = 0;
        self.keeps.clear();
        self.tally = Tally::default();
    }

    /// Copies. The ends have the same length and do not overlap. `InvalidInput` where the command buffer has no room for all of it;
    /// [`Device::copy`](crate::Device::copy) takes any length.
    pub fn copy(&mut self, dst: impl Into<Location>, src: impl Into<Location>) -> Result<&mut Self> {
        let (dst, src) = (dst.into(), src.into());
        self.lane.context.here("Queue::copy")?;
        let direction = Direction::of(&self.lane.context, &dst, &src)?;
        self.can(direction)?;
        let pieces = self.pieces(&dst);
        self.room(pieces.clone().count() * LinDma::LEN)?;
        for (offset, len) in pieces {
            self.copy_piece(direction, &dst, &src, offset, len)?;
        }
        if !dst.is_empty() {
            self.hold(&dst, &src);
        }
        Ok(self)
    }

    /// Fills with a 32-bit pattern, its lowest byte first, from the range's first byte on.
    pub fn memset(&mut self, dst: impl Into<Location>, pattern: u32) -> Result<&mut Self> {
        let dst = dst.into();
        self.own(&dst)?;
        self.can(if dst.is_host() {
            Direction::ToHost
        } else {
            Direction::InDevice
        })?;
        let pieces = self.fill_pieces(&dst);
        self.room(pieces.clone().count() * LinDma::LEN)?;
        for (offset, len) in pieces {
            self.fill_piece(&dst, pattern, offset, len)?;
        }
        if !dst.is_empty() {
            self.keeps.push(dst.keep());
        }
        Ok(self)
    }

    /// What follows begins when everything before in this queue has reached memory.
    pub fn fence(&mut self) -> Result<&mut Self> {
        self.room(Nop::LEN)?;
        self.put(&barrier().to_bytes())?;
        Ok(self)
    }

    /// Gives a sync object a value, when everything before has reached memory. At most 32 767.
    pub fn set(&mut self, sob: &Sob, value: u16) -> Result<&mut Self> {
        self.value("Queue::set", value)?;
        self.update(sob, SobUpdate::set(value))
    }

    /// Adds to a sync object when everything before in this queue has reached memory.
    pub fn signal(&mut self, sob: &Sob, amount: i16) -> Result<&mut Self> {
        self.update(sob, SobUpdate::add_signed(amount))
    }

    /// Holds the queue until a sync object is at least `value` (1 to 32 767).
    ///
    /// A wait without a signal holds up every producer on this hardware queue, until the driver aborts the submission (`Hung`) and
    /// resets the device.
    ///
    /// The driver has at most 64 submissions of a process in flight, over all queues, and frees their places in the order of submission
    /// (`command_submission.c:allocate_cs`). So behind a waiting submission it accepts 63 more and then none, not even the one with the
    /// signal. Submit the signal before that, or have the processor or a NIC set the sync object.
    pub fn wait(&mut self, sob: &Sob, value: u16) -> Result<&mut Self> {
        const OP: &str = "Queue::wait";
        self.lane.context.here(OP)?;
        self.value(OP, value)?;
        self.own_sob(sob)?;
        let context = &self.lane.context;
        let (monitor, index) = (self.lane.monitor()?, sob.index());
        let unreachable = || context.wrong(OP, "queue, monitor or sync object has no such register");
        let address = fence_address(&self.lane.row, FENCE.into()).ok_or_else(unreachable)?;
        let packets = [
            MsgShort::monitor_config(monitor, MonConfig::for_sob(index)),
            MsgShort::monitor_address_low(monitor, address),
            MsgShort::monitor_address_high(monitor, address),
            MsgShort::monitor_data(monitor, 1),
            MsgShort::monitor_arm(monitor, MonArm::for_sob(index, Compare::AtLeast, value)),
        ];
        let fence = Fence::new(FENCE, 1, 1)
            .ok_or_else(unreachable)?
            .with_message_barrier(true);
        if packets.iter().any(Option::is_none) {
            return Err(unreachable());
        }
        self.room(packets.len() * MsgShort::LEN + Fence::LEN)?;
        for packet in packets.into_iter().flatten() {
            self.put(&packet.to_bytes())?;
        }
        self.put(&fence.to_bytes())?;
        self.keeps.push(Keep::Sob { sob: sob.clone() });
        Ok(self)
    }

    /// Hands the commands to the driver. With none, there is nothing to wait for.
    ///
    /// On an error the commands stay, to be submitted again or [cleared](Self::clear). `TimedOut` names the submission that must end
    /// before the driver accepts another.
    pub fn submit(&mut self) -> Result<Completion> {
        self.lane.context.here("HL_IOCTL_CS")?;
        if self.used == 0 {
            return Ok(Completion::done());
        }
        let used = self.used;
        self.put(&barrier().to_bytes())?;
        let answer = self.lane.submit(self.used, &mut self.keeps, self.patience);
        let seq = match answer {
            Ok(seq) => seq,
            Err(error) => {
                self.used = used;
                return Err(error);
            }
        };
        let (stats, tally) = (&self.lane.context.stats, std::mem::take(&mut self.tally));
        stats.lin_dma_packets.add(tally.packets);
        stats.bytes_to_device.add(tally.to_device);
        stats.bytes_to_host.add(tally.to_host);
        stats.bytes_in_device.add(tally.in_device);
        stats.bytes_filled.add(tally.filled);
        (self.slot, self.used) = (None, 0);
        Ok(Completion::new(&self.lane, seq))
    }

    /// Copies any length, after what is not submitted yet and before what `last` adds: as many submissions as it takes, the next built
    /// while the ones before run.
    pub(crate) fn copy_all(
        &mut self,
        direction: Direction,
        dst: &Location,
        src: &Location,
        last: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Completion> {
        self.can(direction)?;
        let pieces = self.pieces(dst);
        self.in_submissions(
            pieces,
            |queue, (offset, len)| queue.copy_piece(direction, dst, src, offset, len),
            |queue| queue.hold(dst, src),
            last,
        )
    }

    /// What was submitted is held until the open command buffer is done.
    pub(crate) fn hold_other(&mut self, other: Completion) {
        self.keeps.push(Keep::Other(other));
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Fills any length.
    pub(crate) fn fill_all(&mut self, dst: &Location, pattern: u32) -> Result<Completion> {
        let pieces = self.fill_pieces(dst);
        self.in_submissions(
            pieces,
            |queue, (offset, len)| queue.fill_piece(dst, pattern, offset, len),
            |queue| queue.keeps.push(dst.keep()),
            |_| Ok(()),
        )
    }

    /// As many submissions as it takes; `last` adds to the last of them. On an error what is not submitted is cleared.
    fn in_submissions(
        &mut self,
        mut pieces: Pieces,
        mut put: impl FnMut(&mut Self, (u64, u32)) -> Result<()>,
        mut hold: impl FnMut(&mut Self),
        last: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Completion> {
        let mut work = || {
            loop {
                let room = self.lane.ring.slot_bytes - TAIL - RESERVE;
                let fit = room.saturating_sub(self.used) / LinDma::LEN;
                let most = (self.lane.context.options.packets_per_submission as usize).clamp(1, fit.max(1));
                for piece in pieces.by_ref().take(most) {
                    self.room(LinDma::LEN)?;
                    put(self, piece)?;
                }
                hold(self);
                if pieces.is_done() {
                    return Ok(());
                }
                self.submit()?;
            }
        };
        let answer = work().and_then(|()| last(self)).and_then(|()| self.submit());
        if answer.is_err() {
            self.clear();
        }
        answer
    }

    fn pieces(&self, dst: &Location) -> Pieces {
        let context = &self.lane.context;
        Pieces::new(
            dst.address(),
            dst.len(),
            context.options.packet_bytes,
            context.asic.cache_line.into(),
        )
    }

    /// A pattern starts anew with each packet, so packets are whole patterns and not aligned.
    fn fill_pieces(&self, dst: &Location) -> Pieces {
        Pieces::new(DeviceVa(0), dst.len(), self.lane.context.options.packet_bytes, 1)
    }

    fn copy_piece(
        &mut self,
        direction: Direction,
        dst: &Location,
        src: &Location,
        offset: u64,
        len: u32,
    ) -> Result<()> {
        let at = |location: &Location| DeviceVa(location.address().0.wrapping_add(offset));
        self.put(&LinDma::copy(at(dst), at(src), len).to_bytes())?;
        let tally = &mut self.tally;
        tally.packets += 1;
        match direction {
            Direction::ToDevice => tally.to_device += u64::from(len),
            Direction::ToHost => tally.to_host += u64::from(len),
            Direction::InDevice => tally.in_device += u64::from(len),
        }
        Ok(())
    }

    fn fill_piece(&mut self, dst: &Location, pattern: u32, offset: u64, len: u32) -> Result<()> {
        let at = DeviceVa(dst.address().0.wrapping_add(offset));
        self.put(&LinDma::memset(at, pattern, len).to_bytes())?;
        self.tally.packets += 1;
        self.tally.filled += u64::from(len);
        Ok(())
    }

    fn hold(&mut self, dst: &Location, src: &Location) {
        self.keeps.push(dst.keep());
        self.keeps.push(src.keep());
    }

    fn update(&mut self, sob: &Sob, update: SobUpdate) -> Result<&mut Self> {
        self.own_sob(sob)?;
        let packet = MsgShort::sob(sob.index(), update)
            .ok_or_else(|| {
                self.lane
                    .context
                    .wrong("Queue::signal", "the sync object is out of reach")
            })?
            .with_engine_barrier(true)
            .with_message_barrier(true);
        self.room(MsgShort::LEN)?;
        self.put(&packet.to_bytes())?;
        self.keeps.push(Keep::Sob { sob: sob.clone() });
        Ok(self)
    }

    fn value(&self, operation: &'static str, value: u16) -> Result<()> {
        if u32::from(value) <= SOB_MAX {
            return Ok(());
        }
        Err(self
            .lane
            .context
            .wrong(operation, "a sync object has 15 bits")
            .saw(value, format!("at most {SOB_MAX}")))
    }

    fn own(&self, location: &Location) -> Result<()> {
        if Arc::ptr_eq(location.context(), &self.lane.context) {
            return still_mapped(&self.lane.context, "Queue::memset", location);
        }
        Err(self
            .lane
            .context
            .wrong("Queue::memset", "the memory is of another open device"))
    }

    fn own_sob(&self, sob: &Sob) -> Result<()> {
        if Arc::ptr_eq(sob.context(), &self.lane.context) {
            return Ok(());
        }
        Err(self
            .lane
            .context
            .wrong("Queue", "the sync object is of another open device"))
    }

    /// Whether this queue's engine moves memory that way.
    fn can(&self, direction: Direction) -> Result<()> {
        let engine = self.lane.row.engine;
        let able = match engine {
            QueueEngine::Pdma => true,
            QueueEngine::Edma => direction == Direction::InDevice,
            _ => false,
        };
        if able {
            return Ok(());
        }
        Err(Error::unsupported(
            "Queue::copy",
            format!(
                "queue {} feeds {engine:?}, which does not copy {direction:?}",
                self.id()
            ),
        )
        .on(self.lane.context.id)
        .helped_by("a PDMA queue copies in every direction, an EDMA queue within the device"))
    }

    /// Makes sure that so many bytes of commands fit, with what a submission adds.
    fn room(&mut self, bytes: usize) -> Result<()> {
        // A fork child has no command buffers, and what it writes to a mock's the parent would submit.
        self.lane.context.here("Queue")?;
        if self.slot.is_none() {
            self.slot = Some(self.lane.slot(self.patience)?);
            self.used = 0;
        }
        let room = self.lane.ring.slot_bytes.saturating_sub(self.used + TAIL);
        if bytes <= room {
            return Ok(());
        }
        Err(self
            .lane
            .context
            .wrong("Queue", "the command buffer has no room for the command")
            .saw(format!("{bytes} bytes"), format!("at most {room}"))
            .helped_by("submit before it, or open the device with larger command buffers"))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let ring = &self.lane.ring;
        let at = self.slot.unwrap_or(0) * ring.slot_bytes + self.used;
        ring.map
            .write(at, bytes)
            .map_err(|errno| Error::from_errno("Queue", errno).on(self.lane.context.id))?;
        self.used += bytes.len();
        Ok(())
    }
}

/// Goes on when the engine has finished what came before and its messages have arrived. It ends every command buffer.
// guess: no public text says whether a queue entry counts as done before its last transfer is; waiting for the engine is right either
// way, and costs a gap between two submissions.
fn barrier() -> Nop {
    Nop::new().with_engine_barrier(true).with_message_barrier(true)
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} on {})", self.id(), self.lane.context.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(gaudi_random::config(256))]

        /// Pieces cover the transfer without gap or overlap, none is empty or too long, and all but the first start on a line.
        #[test]
        fn pieces_cover_a_transfer(start in 0_u64..1 << 40, len in 0_u64..100_000, lines in 2_u64..40) {
            let most = lines * 128;
            let mut next = 0;
            for (offset, piece) in Pieces::new(DeviceVa(start), len, most, 128) {
                prop_assert_eq!(offset, next, "no gap and no overlap");
                prop_assert!(piece > 0 && u64::from(piece) <= most, "{} is a length", piece);
                prop_assert!(offset == 0 || (start + offset) % 128 == 0, "{} starts on a line", offset);
                next += u64::from(piece);
            }
            prop_assert_eq!(next, len, "all of it");
        }
    }

    #[test]
    fn no_packet_is_longer_than_its_size_field() {
        let most = gaudi_spec::gaudi2::MAX_DMA / 128 * 128;
        let pieces: Vec<_> = Pieces::new(DeviceVa(7), 10 << 30, most, 128).collect();
        assert_eq!(pieces.len(), 3, "10 GiB are three packets: {pieces:?}");
        assert_eq!(
            pieces.iter().map(|&(_, len)| u64::from(len)).sum::<u64>(),
            10 << 30
        );
    }
}
