//! Signals between queues (command_submission.c `cs_ioctl_signal_wait`): a submission increments a
//! sync object of its queue, and another waits for the value.

use std::fmt;

use gaudi_seam::{CsAnswer, CsRequest, CsSeq, Errno, Error, Operation, QueueId, Result, Rule, rules};
use gaudi_spec::asic::QueueType;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};

use crate::open::Device;
use crate::pages::lowest_free;
use crate::state::State;
use crate::sync_stream::{NO_SEQ, Reservation, Sob, answer};
use crate::uaccess;

const OP: Operation = Operation::Submit;

impl Device {
    /// Submits a signal or a wait: one chunk, of which only the queue matters.
    pub(crate) fn submit_signal_or_wait(
        &self,
        state: &mut State,
        request: &CsRequest<'_>,
    ) -> Result<CsAnswer> {
        let [chunk] = request.execute else {
            unreachable!("the rules of arguments allow one chunk");
        };
        let queue = QueueId(chunk.queue_index);
        let row = &self.asic.sync_stream;
        let stream = (row.stream)(queue).filter(|_| !request.flags.contains(CsFlags::COLLECTIVE_WAIT));
        let Some(stream) = stream else {
            // command_submission.c `cs_ioctl_signal_wait`: no queue of this chip is a collective's
            // master.
            let rule = if request.flags.contains(CsFlags::COLLECTIVE_WAIT) {
                &rules::signal::COLLECTIVE_MASTER
            } else if (self.asic.queue)(queue).is_none() {
                &rules::signal::UNKNOWN_QUEUE
            } else {
                &rules::signal::QUEUE
            };
            return Err(self.invalid(state, rule, queue));
        };
        let waits_for = match request.flags.contains(CsFlags::WAIT) {
            true => match self.signal_of(state, request, chunk)? {
                Some(signal) => Some(signal),
                None => return Ok(answer(NO_SEQ, 0)),
            },
            false => None,
        };
        let Some(queue_row) =
            (self.asic.queue)(queue).filter(|row| row.kind == QueueType::Hardware && row.user)
        else {
            return Err(Error::unsupported(
                OP.kernel_name(),
                format!("queue {queue} belongs to the chip's processors"),
            )
            .on(self.id));
        };
        let seq = self.begin(state, request, 1)?;
        // hw_queue.c `hl_hw_queue_schedule_cs`: a full queue refuses before the sync object counts.
        self.has_room(state, seq, queue)?;
        let (commands, count) = match waits_for {
            Some((sob, value)) => {
                state.signals.stream(sob.stream).holders[usize::from(sob.which)] += 1;
                note_sob(state, seq, sob, value);
                ((row.wait)(&queue_row, stream, sob.number(row), value), 0)
            }
            None => {
                let (sob, value, count) = self.next_signal(state, seq, stream)?;
                note_sob(state, seq, sob, value);
                ((row.signal)(sob.number(row)), count)
            }
        };
        let written = match (&commands, &state.context) {
            (Some(commands), Some(context)) => {
                let slot = context.submissions.slot(seq);
                context.driver_buffers.write(slot, commands).ok()
            }
            _ => None,
        };
        let Some(mut job) = written else {
            return Err(self.abandon(state, seq, self.refusal(OP, Errno::EFAULT)));
        };
        job.queue_index = queue.0;
        self.queue(state, seq, &[job])?;
        Ok(answer(CsSeq(seq), count))
    }

    /// The object and value that a wait waits for, which the chunk names by the address of a
    /// sequence number; `None` if it is reached.
    fn signal_of(
        &self,
        state: &mut State,
        request: &CsRequest<'_>,
        chunk: &HlCsChunk,
    ) -> Result<Option<(Sob, u32)>> {
        if request.cs_flags().contains(CsFlags::ENCAP_SIGNALS) {
            // command_submission.c `cs_ioctl_signal_wait`: a reservation is found by the staged
            // submission that uses it, of which this chip has none.
            return match chunk.cb_handle {
                u64::MAX if state.signals.has_reserved() => {
                    Err(self.invalid(state, &rules::signal::RESERVATION_UNUSED, u64::MAX))
                }
                _ => Ok(None),
            };
        }
        if chunk.cb_size != 1 {
            // command_submission.c `cs_ioctl_extract_signal_seq`
            return Err(self.invalid(state, &rules::signal::SEVERAL, chunk.cb_size));
        }
        let Ok(signal) = uaccess::read_u64(gaudi_seam::HostVa(chunk.cb_handle)) else {
            // command_submission.c `cs_ioctl_extract_signal_seq`
            let address = format!("{:#x}", chunk.cb_handle);
            return Err(self.invalid(state, &rules::signal::NUMBER_ADDRESS, address));
        };
        let context = state.context();
        if signal >= context.submissions.next {
            return Err(self.invalid(state, &rules::signal::FUTURE, signal));
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
            // command_submission.c `cs_ioctl_signal_wait`
            Some(_) => Err(self.invalid(state, &rules::signal::NOT_A_SIGNAL, signal)),
        }
    }

    /// Returns object and value of the next signal, and the count in the answer (hw_queue.c
    /// `init_signal_cs`).
    fn next_signal(&self, state: &mut State, seq: u64, stream: u32) -> Result<(Sob, u32, u16)> {
        let signals = state.signals.stream(stream);
        let (which, value) = (signals.current, signals.next);
        let taken = signals.take(1, false);
        let (count, current) = (signals.next - 1, signals.current);
        let Some(anew) = taken else {
            return Err(self.abandon(state, seq, self.refuse(OP, &rules::signal::OBJECTS_IN_USE)));
        };
        if anew {
            state.clear_sob(Sob {
                stream,
                which: current,
            });
        }
        // Values are below 2^15.
        Ok((Sob { stream, which }, value, count as u16))
    }

    /// `HL_CS_FLAGS_RESERVE_SIGNALS_ONLY` (command_submission.c `cs_ioctl_reserve_signals`).
    pub(crate) fn reserve_signals(&self, state: &mut State, word: u64) -> Result<CsAnswer> {
        let (count, queue) = (word as u32, QueueId((word >> 32) as u32));
        let Some(number) = (self.asic.sync_stream.stream)(queue) else {
            unreachable!("the rules of arguments allow queues that signal, and not {queue}");
        };
        let stream = state.signals.stream(number);
        let Some(anew) = stream.take(count, true) else {
            let error = self.refuse(OP, &rules::signal::RESERVE_OBJECTS_IN_USE);
            return Err(error.showing(queue));
        };
        let (which, next) = (stream.current, stream.next);
        let handle = lowest_free(|handle| state.signals.reserved.contains_key(&handle));
        let reservation = Reservation {
            stream: number,
            before: next - count,
            count,
        };
        state.signals.reserved.insert(handle, reservation);
        if anew {
            state.clear_sob(Sob {
                stream: number,
                which,
            });
        }
        // The answer's word has the handle in its lower and the count in its upper bits.
        Ok(answer(CsSeq(u64::from(handle) | u64::from(next) << 32), 0))
    }

    /// `HL_CS_FLAGS_UNRESERVE_SIGNALS_ONLY` (command_submission.c `cs_ioctl_unreserve_signals`).
    pub(crate) fn unreserve_signals(&self, state: &mut State, word: u64) -> Result<CsAnswer> {
        let handle = word as u32;
        let refuse = |rule| Err(self.refuse(OP, rule).showing(handle));
        let Some(reservation) = state.signals.reserved.get(&handle).copied() else {
            return refuse(&rules::signal::UNRESERVE_UNKNOWN);
        };
        let stream = state.signals.stream(reservation.stream);
        // command_submission.c `cs_ioctl_unreserve_signals`; both objects have the address 0 on
        // this chip (gaudi2.c `gaudi2_get_sob_addr`), so a switch goes unseen.
        if reservation.before + reservation.count != stream.next {
            return refuse(&rules::signal::UNRESERVE_TAKEN);
        }
        stream.next -= reservation.count;
        let current = stream.current;
        let anew = stream.put(current);
        state.signals.reserved.remove(&handle);
        if anew {
            state.clear_sob(Sob {
                stream: reservation.stream,
                which: current,
            });
        }
        Ok(answer(NO_SEQ, 0))
    }

    /// A refusal that counts as a failed validation.
    fn invalid(&self, state: &mut State, rule: &'static Rule, seen: impl fmt::Display) -> Error {
        state.context().submissions.drops.validation += 1;
        self.refuse(OP, rule).showing(seen)
    }
}

fn note_sob(state: &mut State, seq: u64, sob: Sob, value: u32) {
    let record = state.context().submissions.record(seq);
    record.expect("`begin` made the record").sob = Some((sob, value));
}
