//! Signals between streams through the driver (command_submission.c:2194 `cs_ioctl_signal_wait`): a sync object a queue, which one
//! submission raises and another waits for, with command buffers of the driver's own.

use std::collections::BTreeMap;

use gaudi_model::{Chip, HostRange};
use gaudi_seam::{
    CsAnswer, CsRequest, CsSeq, DeviceId, DeviceVa, Errno, Error, ErrorKind, Order, QueueId, RawMapping,
    Result,
};
use gaudi_spec::asic::QueueType;
use gaudi_spec::gaudi2::packet::{Fence, MsgShort};
use gaudi_spec::gaudi2::sync::{Compare, FIRST_USER_MONITOR, FIRST_USER_SOB, MonArm, SobUpdate};
use gaudi_spec::gaudi2::{self, qman};
use gaudi_uapi::cs::{CsFlags, CsStatus, HlCsChunk};

use crate::open::{Device, State};
use crate::queue::Submissions;
use crate::user;

const OP: &str = "HL_IOCTL_CS";
/// Queues that take part: all but the NICs' and the management processor's (gaudi2.c:2777).
const QUEUES: u32 = 164;
/// Sync objects a queue (habanalabs.h `HL_RSVD_SOBS`); monitors there is one.
const SOBS: u32 = 2;
/// Where a sync object's value ends (habanalabs.h `HL_MAX_SOB_VAL`).
const MAX_VALUE: u32 = 1 << 15;
/// Bytes for the driver's own command buffer of one submission: the longest has five packets of 8 bytes.
const SLOT: usize = 64;
/// What the driver answers where no submission was made.
const NO_SEQ: CsSeq = CsSeq(u64::MAX);

/// A queue's place among those that take part.
fn place(queue: u32) -> Option<u32> {
    match queue {
        0..156 => Some(queue),
        252..260 => Some(queue - 96),
        _ => None,
    }
}

/// One of a queue's two sync objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sob {
    place: u32,
    which: u8,
}

impl Sob {
    fn number(self) -> u32 {
        FIRST_USER_SOB - QUEUES * SOBS + self.place * SOBS + u32::from(self.which)
    }
}

/// `struct hl_sync_stream_properties`
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// What the next signal makes of the current object.
    next: u32,
    current: u8,
    /// Who holds each object, its being current included.
    holders: [u32; 2],
    need_reset: [bool; 2],
}

impl Stream {
    const NEW: Self = Self {
        next: 1,
        current: 0,
        holders: [1, 1],
        need_reset: [false, false],
    };

    /// One holder less; true where none is left and the object starts anew.
    fn put(&mut self, which: u8) -> bool {
        let which = usize::from(which % 2);
        self.holders[which] = self.holders[which].saturating_sub(1);
        let anew = self.holders[which] == 0;
        if anew {
            (self.holders[which], self.need_reset[which]) = (1, false);
        }
        anew
    }

    /// command_submission.c:1799: takes so many values, of the other object where this one's do not reach. `None` where the other is
    /// still in use; else whether the other object starts anew.
    fn take(&mut self, count: u32, reserved: bool) -> Option<bool> {
        let old = usize::from(self.current);
        if self.next.saturating_add(count) < MAX_VALUE {
            self.holders[old] += 1;
            self.next += count;
            return Some(false);
        }
        let other = self.current ^ 1;
        if self.holders[usize::from(other)] != 1 {
            return None;
        }
        self.next = if reserved { count + 1 } else { count };
        self.current = other;
        let anew = self.need_reset[usize::from(other)] && self.put(other);
        if reserved {
            self.need_reset[old] = true;
            self.holders[usize::from(other)] += 1;
        }
        Some(anew)
    }
}

/// Signals that were reserved (`struct hl_cs_encaps_sig_handle`).
#[derive(Debug, Clone, Copy)]
struct Reservation {
    place: u32,
    before: u32,
    count: u32,
}

/// What the driver keeps of signals.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Box<[Stream; QUEUES as usize]>,
    reserved: BTreeMap<u32, Reservation>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            streams: Box::new([Stream::NEW; QUEUES as usize]),
            reserved: BTreeMap::new(),
        }
    }
}

impl Signals {
    /// Whether signals are reserved that nobody used or gave back; each reservation holds the context (command_submission.c:2049).
    pub(crate) fn has_reserved(&self) -> bool {
        !self.reserved.is_empty()
    }

    fn stream(&mut self, place: u32) -> Option<&mut Stream> {
        self.streams.get_mut(place as usize)
    }
}

/// The driver's own command buffers, one a submission that can be in flight (`internal_cb_pool`, gaudi2.c:11161).
#[derive(Debug)]
pub(crate) struct DriverBuffers {
    memory: RawMapping,
    va: DeviceVa,
}

impl DriverBuffers {
    #[expect(
        unsafe_code,
        reason = "the chip reads the driver's command buffers where they lie"
    )]
    pub(crate) fn new(id: DeviceId, chip: &mut Chip, va: DeviceVa) -> Result<Self> {
        let failed = || {
            Error::new(ErrorKind::OutOfMemory, "open")
                .on(id)
                .because("no memory for the driver's command buffers")
        };
        let len = SLOT * gaudi2::MAX_PENDING_CS as usize;
        let memory = RawMapping::anonymous(len, true).map_err(|_| failed())?;
        let start = memory.at(0, len).map_err(|_| failed())?;
        // SAFETY: the bytes are `memory`'s, to which nobody has a reference; `release` takes the range off the chip before it goes.
        let range = unsafe { HostRange::new(start, len) };
        chip.mmu_map_host(va, range).map_err(|_| failed())?;
        Ok(Self { memory, va })
    }

    pub(crate) fn release(&self, chip: &mut Chip) {
        chip.mmu_unmap(self.va);
    }

    /// Puts packets into a submission's slot.
    fn write(&self, seq: u64, packets: &Packets) -> std::result::Result<HlCsChunk, Errno> {
        let slot = Submissions::slot(seq) * SLOT;
        let packets = packets.all.get(..packets.count).unwrap_or_default();
        for (packet, at) in packets.iter().zip((slot..).step_by(MsgShort::LEN)) {
            self.memory.write(at, packet)?;
        }
        let len = packets.len() * MsgShort::LEN;
        let va = self.va.0 + slot as u64;
        Ok(HlCsChunk::user(0, va, u32::try_from(len).unwrap_or(0)))
    }
}

/// The packets of a driver's command buffer.
struct Packets {
    all: [[u8; MsgShort::LEN]; 5],
    count: usize,
}

impl Packets {
    fn of(packets: &[[u8; MsgShort::LEN]]) -> Self {
        let mut all = [[0; MsgShort::LEN]; 5];
        all.iter_mut().zip(packets).for_each(|(to, from)| *to = *from);
        Self {
            all,
            count: packets.len(),
        }
    }
}

impl Device {
    /// Signals and waits: one chunk, whose queue is what counts of it.
    pub(crate) fn submit_signal_or_wait(
        &self,
        state: &mut State,
        request: &CsRequest<'_>,
    ) -> Result<CsAnswer> {
        let [chunk] = request.execute else {
            // command_submission.c:1394
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a signal or a wait for one has one chunk")
                .saw(request.execute.len(), 1));
        };
        let queue = QueueId(chunk.queue_index);
        let Some(place) = place(queue.0).filter(|_| !request.flags.contains(CsFlags::COLLECTIVE_WAIT)) else {
            // command_submission.c:2227, :2243, :2253: no queue of this chip is a collective's master.
            return Err(self.invalid(
                state,
                format!("queue {queue} does not take this kind of submission"),
            ));
        };
        let waits_for = match request.flags.contains(CsFlags::WAIT) {
            true => match self.signal_of(state, request, chunk)? {
                Some(signal) => Some(signal),
                None => return Ok(answer(NO_SEQ, 0)),
            },
            false => None,
        };
        let Some(row) = (gaudi2::ASIC.queue)(queue).filter(|row| row.kind == QueueType::Hardware && row.user)
        else {
            return Err(
                Error::unsupported(OP, format!("queue {queue} belongs to the chip's processors")).on(self.id),
            );
        };
        let seq = self.begin(state, request, 1)?;
        // hw_queue.c `hl_hw_queue_schedule_cs`: a full queue refuses before the sync object counts.
        self.has_room(state, seq, queue)?;
        let (packets, count) = match waits_for {
            Some((sob, value)) => {
                if let Some(stream) = state.signals.stream(sob.place) {
                    stream.holders[usize::from(sob.which)] += 1;
                }
                state.note_sob(seq, sob, value);
                (wait_packets(place, sob, value, qman::fence_address(&row, 2)), 0)
            }
            None => {
                let (sob, value, count) = self.next_signal(state, seq, place)?;
                state.note_sob(seq, sob, value);
                let packet = MsgShort::sob(sob.number(), SobUpdate::add_signed(1)).map(|packet| {
                    packet
                        .with_engine_barrier(true)
                        .with_message_barrier(true)
                        .to_bytes()
                });
                (packet.map(|packet| Packets::of(&[packet])), count)
            }
        };
        let written = match (&packets, &state.context) {
            (Some(packets), Some(context)) => context.driver_buffers.write(seq, packets).ok(),
            _ => None,
        };
        let Some(mut job) = written else {
            return Err(self.give_up(state, seq, self.refusal(OP, Errno::EFAULT)));
        };
        job.queue_index = queue.0;
        self.queue(state, seq, &[job])?;
        Ok(answer(CsSeq(seq), count))
    }

    /// What a wait waits for; `None` where that is done. Told by a sequence number in this process's memory.
    fn signal_of(
        &self,
        state: &mut State,
        request: &CsRequest<'_>,
        chunk: &HlCsChunk,
    ) -> Result<Option<(Sob, u32)>> {
        if request.cs_flags().contains(CsFlags::ENCAP_SIGNALS) {
            // command_submission.c:2290: a reservation is found by the staged submission that uses it, of which this chip has none.
            return match chunk.cb_handle {
                u64::MAX if !state.signals.reserved.is_empty() => {
                    Err(self.invalid(state, "no submission uses the reserved signals".to_owned()))
                }
                _ => Ok(None),
            };
        }
        if chunk.cb_size != 1 {
            // command_submission.c:1873
            return Err(self.invalid(
                state,
                format!("a wait is for one signal and not for {}", chunk.cb_size),
            ));
        }
        let Ok(signal) = user::read_u64(gaudi_seam::HostVa(chunk.cb_handle)) else {
            // command_submission.c:1896
            let _ = self.invalid(state, String::new());
            return Err(self
                .refusal(OP, Errno::EFAULT)
                .because(format!("no number can be read at {:#x}", chunk.cb_handle)));
        };
        let Some(context) = state.context.as_mut() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        if signal >= context.submissions.next {
            return Err(self.invalid(state, format!("no submission {signal} has been made yet")));
        }
        match context
            .submissions
            .record(signal)
            .map(|record| (record.sob, record.done))
        {
            None | Some((Some(_), true)) => Ok(None),
            Some((Some((sob, value)), false)) if context.submissions.is_signal(signal) => {
                Ok(Some((sob, value)))
            }
            // command_submission.c:2339
            Some(_) => Err(self.invalid(state, format!("submission {signal} is no signal"))),
        }
    }

    /// hw_queue.c:410: object and value of the next signal, and the count that the answer tells.
    fn next_signal(&self, state: &mut State, seq: u64, place: u32) -> Result<(Sob, u32, u16)> {
        let Some(stream) = state.signals.stream(place) else {
            return Err(self.refusal(OP, Errno::EINVAL));
        };
        let (which, value) = (stream.current, stream.next);
        let taken = stream.take(1, false);
        let (count, current) = (stream.next - 1, stream.current);
        match taken {
            None => {
                let error = self
                    .refusal(OP, Errno::EINVAL)
                    .because("both sync objects of the queue are in use");
                Err(self.give_up(state, seq, error))
            }
            Some(anew) => {
                if anew {
                    state.clear_sob(Sob {
                        place,
                        which: current,
                    });
                }
                Ok((
                    Sob { place, which },
                    value,
                    u16::try_from(count).unwrap_or(u16::MAX),
                ))
            }
        }
    }

    /// `HL_CS_FLAGS_RESERVE_SIGNALS_ONLY` (command_submission.c:2001).
    pub(crate) fn reserve_signals(&self, state: &mut State, word: u64) -> Result<CsAnswer> {
        let (count, queue) = (word as u32, (word >> 32) as u32);
        let refuse = |why: String| Err(self.refusal(OP, Errno::EINVAL).because(why));
        if count >= MAX_VALUE {
            return refuse(format!("{count} signals are more than a sync object counts"));
        }
        let Some(place) = place(queue) else {
            return refuse(format!("queue {queue} takes no signals"));
        };
        let Some(stream) = state.signals.stream(place) else {
            return refuse(format!("queue {queue} takes no signals"));
        };
        let Some(anew) = stream.take(count, true) else {
            return refuse(format!("both sync objects of queue {queue} are in use"));
        };
        let (which, next) = (stream.current, stream.next);
        let handle = (1..)
            .find(|handle| !state.signals.reserved.contains_key(handle))
            .unwrap_or(u32::MAX);
        let reservation = Reservation {
            place,
            before: next - count,
            count,
        };
        state.signals.reserved.insert(handle, reservation);
        if anew {
            state.clear_sob(Sob { place, which });
        }
        // The answer's word is the handle, and the count above it.
        Ok(answer(CsSeq(u64::from(handle) | u64::from(next) << 32), 0))
    }

    /// `HL_CS_FLAGS_UNRESERVE_SIGNALS_ONLY` (command_submission.c:2121).
    pub(crate) fn unreserve_signals(&self, state: &mut State, word: u64) -> Result<CsAnswer> {
        let handle = word as u32;
        let refuse = |why: String| Err(self.refusal(OP, Errno::EINVAL).because(why));
        let Some(reservation) = state.signals.reserved.get(&handle).copied() else {
            return refuse(format!("no signals were reserved as {handle}"));
        };
        let Some(stream) = state.signals.stream(reservation.place) else {
            return refuse(format!("no signals were reserved as {handle}"));
        };
        // command_submission.c:2156; both objects have the address 0 on this chip (gaudi2.c:11815), so a switch goes unseen.
        if reservation.before + reservation.count != stream.next {
            return refuse(format!("signals were taken since {handle} was reserved"));
        }
        stream.next -= reservation.count;
        let current = stream.current;
        let anew = stream.put(current);
        state.signals.reserved.remove(&handle);
        if anew {
            state.clear_sob(Sob {
                place: reservation.place,
                which: current,
            });
        }
        Ok(answer(NO_SEQ, 0))
    }

    /// A refusal that counts as one of a bad request.
    fn invalid(&self, state: &mut State, why: String) -> Error {
        if let Some(context) = state.context.as_mut() {
            context.submissions.drops.validation += 1;
        }
        self.refusal(OP, Errno::EINVAL).because(why)
    }

    /// Runs what a stepped mock leaves to waits.
    pub(crate) fn set_off(&self, state: &mut State) {
        if self.spec.order == Order::Running {
            state.advance();
            self.wake();
        }
    }
}

impl State {
    /// A signal or a wait has ended: it no longer holds its sync object (command_submission.c:159).
    pub(crate) fn put_sob(&mut self, sob: Sob) {
        let anew = self
            .signals
            .stream(sob.place)
            .is_some_and(|stream| stream.put(sob.which));
        if anew {
            self.clear_sob(sob);
        }
    }

    fn clear_sob(&mut self, sob: Sob) {
        // gaudi2.c:11469; the object exists, or the table of places would be wrong.
        let cleared = self.chip.set_sob(0, sob.number(), SobUpdate::set(0));
        debug_assert!(cleared.is_some(), "{sob:?} is no sync object");
    }

    fn note_sob(&mut self, seq: u64, sob: Sob, value: u32) {
        if let Some(record) = self
            .context
            .as_mut()
            .and_then(|context| context.submissions.record(seq))
        {
            record.sob = Some((sob, value));
        }
    }
}

/// gaudi2.c:11417 `gaudi2_gen_wait_cb`
fn wait_packets(place: u32, sob: Sob, value: u32, fence: Option<DeviceVa>) -> Option<Packets> {
    let monitor = FIRST_USER_MONITOR - QUEUES + place;
    let arm = MonArm::for_sob(sob.number(), Compare::AtLeast, u16::try_from(value).ok()?);
    let fence = fence?;
    Some(Packets::of(&[
        MsgShort::monitor_address_low(monitor, fence)?.to_bytes(),
        MsgShort::monitor_address_high(monitor, fence)?.to_bytes(),
        MsgShort::monitor_data(monitor, 1)?.to_bytes(),
        MsgShort::monitor_arm(monitor, arm)?
            .with_message_barrier(true)
            .to_bytes(),
        Fence::new(2, 1, 1)?.to_bytes(),
    ]))
}

/// The address of a sync object, which this chip's driver answers as 0 (gaudi2.c:11815), and a count.
fn answer(seq: CsSeq, count: u16) -> CsAnswer {
    CsAnswer {
        seq,
        status: CsStatus::SUCCESS,
        sob_base_addr_offset: 0,
        sob_count_before_submission: count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_lie_between_the_chips_and_the_users() {
        let number = |queue, which| {
            Sob {
                place: place(queue).unwrap(),
                which,
            }
            .number()
        };
        assert_eq!(number(0, 0), 85, "after those that are reserved for the chip");
        assert_eq!(number(259, 1) + 1, FIRST_USER_SOB, "the last one before a user's");
        assert_eq!(
            (place(156), place(251), place(260)),
            (None, None, None),
            "NICs have none"
        );
    }

    #[test]
    fn a_queue_changes_its_object_when_the_values_end() {
        let mut stream = Stream::NEW;
        for value in 1..MAX_VALUE - 1 {
            assert_eq!((stream.next, stream.current), (value, 0), "before signal {value}");
            assert_eq!(stream.take(1, false), Some(false));
        }
        assert_eq!(
            stream.take(1, false),
            Some(false),
            "the last value ends the object"
        );
        assert_eq!((stream.next, stream.current), (1, 1), "the other one is next");
        let holders = stream.holders[0];
        assert!(
            (1..holders).all(|_| !stream.put(0)),
            "as long as a signal holds it, it stays"
        );
        assert!(stream.put(0), "with its last signal it starts anew");
        // While the first is held again, there is no way back to it.
        stream.holders[0] = 2;
        stream.next = MAX_VALUE - 1;
        assert_eq!(stream.take(1, false), None, "both are in use");
    }
}
