//! Counters of the driver: waits (`HL_WAIT_CS_FLAGS_INTERRUPT_KERNEL_CQ`) and timestamps
//! (`HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT`).

use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gaudi_seam::{
    CbCreate, CbHandle, CqCounter, DeviceVa, Errno, InterruptId, InterruptWait, InterruptWord, MmapRequest,
    RawMapping, SharedIo, TimestampRegistration, TsHandle, WaitAnswer, WaitStatus,
};
use gaudi_spec::gaudi2::packet::MsgLong;
use gaudi_spec::gaudi2::{DOORBELL_VA, USER_INTERRUPTS, queue};
use gaudi_uapi::cs::CsFlags;
use nix::sys::eventfd::EventFd;

use super::interrupt::rung_meanwhile;
use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Buffer, LONG, PAGE_LEN, Program, finish, offset, submit_with};
use crate::verdict::{Failure, Verdict, equal, holds, invalid, refused};

const FIRST: InterruptId = InterruptId(USER_INTERRUPTS.start);
/// Counters in a page.
const COUNTERS: u64 = PAGE_LEN as u64 / 8;

cases! {
    "wait.counter.reached-already", "common/command_submission.c:_hl_interrupt_wait_ioctl" => reached_already;
    "wait.counter.poll-not-reached", "common/command_submission.c:_hl_interrupt_wait_ioctl" => poll_not_reached;
    "wait.counter.counted-by-the-device", "common/irq.c:handle_user_interrupt_wait_list" => counted;
    "wait.counter.rung-too-early", "common/irq.c:handle_user_interrupt_wait_list" => rung_too_early [Clock];
    "wait.counter.no-such-counter", "common/command_submission.c:_hl_interrupt_wait_ioctl" => no_such_counter;
    "wait.counter.of-a-destroyed-buffer", "common/command_submission.c:_hl_interrupt_wait_ioctl" => destroyed;
    "wait.counter.aborted-by-reset", "common/command_submission.c:_hl_interrupt_wait_ioctl" => aborted [Clock, Reset];
    "timestamp.reached-already", "common/command_submission.c:_hl_interrupt_ts_reg_ioctl" => stamped_at_once;
    "timestamp.written-at-the-interrupt", "common/irq.c:handle_registration_node" => stamped;
    "timestamp.not-before-it-is-reached", "common/irq.c:handle_user_interrupt_ts_list" => not_stamped;
    "timestamp.low-half-of-target", "common/command_submission.c:set_record_cq_info" => low_half;
    "timestamp.dropped-by-reset", "common/command_submission.c:wake_pending_user_interrupt_threads" => dropped_by_reset [Reset];
    "timestamp.registered-anew", "common/command_submission.c:ts_get_and_handle_kernel_record" => anew;
    "timestamp.no-such-counter", "common/command_submission.c:_hl_interrupt_ts_reg_ioctl" => stamp_no_counter;
    "timestamp.no-such-buffer", "common/command_submission.c:_hl_interrupt_ts_reg_ioctl" => stamp_no_buffer;
    "timestamp.no-such-element", "common/command_submission.c:validate_and_get_ts_record" => stamp_no_element;
    "timestamp.no-such-interrupt", "common/command_submission.c:hl_interrupt_wait_ioctl" => stamp_no_interrupt;
}

/// A page of counters mapped to the process and the device.
struct Counters {
    io: SharedIo,
    handle: CbHandle,
    memory: RawMapping,
    va: DeviceVa,
}

impl Counters {
    fn new(io: &SharedIo) -> Result<Self, Failure> {
        let handle = io.cb_create(CbCreate {
            size: PAGE_LEN as u32,
            map_to_device: true,
        })?;
        let memory = io.mmap(MmapRequest {
            offset: handle.0,
            len: PAGE_LEN,
        });
        let va = io
            .cb_info(handle, true)
            .map(|info| info.device_va.unwrap_or(DeviceVa(0)));
        match (memory, va) {
            (Ok(memory), Ok(va)) => Ok(Self {
                io: io.clone(),
                handle,
                memory,
                va,
            }),
            (memory, va) => {
                let _ = io.cb_destroy(handle);
                memory?;
                Err(va.err().map_or_else(
                    || Failure::new("a page of counters", "one", "none"),
                    Failure::from,
                ))
            }
        }
    }

    fn set(&self, nth: usize, value: u64) -> Verdict {
        Ok(self.memory.write(8 * nth, &value.to_le_bytes())?)
    }

    fn at(&self, nth: u64) -> CqCounter {
        CqCounter {
            handle: self.handle,
            offset: nth,
        }
    }

    fn wait(&self, counter: CqCounter, target: u64, timeout: Duration) -> gaudi_seam::Result<WaitAnswer> {
        self.io.wait_interrupt(&InterruptWait {
            interrupt: FIRST,
            word: InterruptWord::KernelCq(counter),
            target,
            timeout,
        })
    }

    /// Returns a program that sets the nth counter and raises the interrupt.
    fn ring(&self, nth: u64, value: u32) -> Program {
        Program::new()
            .long(MsgLong::new(offset(self.va, 8 * nth), value))
            .long(MsgLong::new(DOORBELL_VA, u32::from(FIRST.0)).with_message_barrier(true))
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        let _ = self.io.cb_destroy(self.handle);
    }
}

/// A buffer of timestamps, and its first page.
struct Stamps {
    handle: TsHandle,
    memory: RawMapping,
}

impl Stamps {
    const ELEMENTS: u32 = 16;

    fn new(io: &SharedIo) -> Result<Self, Failure> {
        let handle = io.ts_alloc(Self::ELEMENTS)?;
        let memory = io.mmap(MmapRequest {
            offset: handle.0,
            len: PAGE_LEN,
        })?;
        Ok(Self { handle, memory })
    }

    fn of(&self, counter: CqCounter, target: u64, index: u64) -> TimestampRegistration {
        TimestampRegistration {
            interrupt: FIRST,
            counter,
            target,
            buffer: self.handle,
            index,
        }
    }

    fn read(&self, index: usize) -> Result<u64, Failure> {
        Ok(self.memory.load_u64(8 * index, Ordering::Acquire)?)
    }

    /// Reads a timestamp once it is written. The driver writes it when it handles the interrupt,
    /// which may be after the end of the submission that raised it: they are two interrupts, and
    /// two processors may handle them.
    fn written(&self, index: usize) -> Result<u64, Failure> {
        let begin = Instant::now();
        loop {
            let time = self.read(index)?;
            if time > 0 || begin.elapsed() > LONG {
                return Ok(time);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs a program that sets a counter and raises the interrupt.
fn run_ring(io: &SharedIo, counters: &Counters, nth: u64, value: u32) -> Verdict {
    let buffer = Buffer::new(io, counters.ring(nth, value))?;
    finish(&**io, buffer.submit(queue::PDMA_0_0)?)
}

fn reached_already(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let counters = Counters::new(&io)?;
    counters.set(3, 9)?;
    for (target, timeout) in [(0, Duration::ZERO), (9, LONG)] {
        let answer = counters.wait(counters.at(3), target, timeout)?;
        equal(
            "a wait for a counter that is there",
            answer.status,
            WaitStatus::Completed,
        )?;
        holds(
            "its time is now",
            answer.timestamp_ns.is_some_and(|ns| ns > 0),
            answer,
        )?;
    }
    Ok(())
}

fn poll_not_reached(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let counters = Counters::new(&io)?;
    let answer = counters.wait(counters.at(COUNTERS - 1), 1, Duration::ZERO)?;
    equal("a poll of a counter", answer.status, WaitStatus::Busy)?;
    holds(
        "the poll of a counter returns the time",
        answer.timestamp_ns.is_some(),
        answer,
    )
}

fn counted(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let counters = Counters::new(&io)?;
    let buffer = Buffer::new(&io, counters.ring(5, 7))?;
    let seq = buffer.submit(queue::PDMA_0_0)?;
    let answer = counters.wait(counters.at(5), 7, LONG)?;
    finish(&*io, seq)?;
    equal(
        "a wait for what the device counts",
        answer.status,
        WaitStatus::Completed,
    )?;
    holds(
        "the wait returns the time",
        answer.timestamp_ns.is_some_and(|ns| ns > 0),
        answer,
    )
}

/// An interrupt does not end a wait if the counter is below the target.
fn rung_too_early(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let counters = Counters::new(&io)?;
    let buffer = Buffer::new(&io, counters.ring(0, 7))?;
    let wait = |timeout| Ok(counters.wait(counters.at(0), 8, timeout)?);
    for answer in rung_meanwhile(&io, &buffer, wait)? {
        equal(
            "a wait that an interrupt comes to early",
            (answer.status, answer.timestamp_ns),
            (WaitStatus::Busy, None),
        )?;
    }
    Ok(())
}

fn no_such_counter(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let counters = Counters::new(&io)?;
    let unknown = CqCounter {
        handle: CbHandle(counters.handle.0 + (9 << 12)),
        offset: 0,
    };
    for counter in [counters.at(COUNTERS), counters.at(1 << 20), unknown] {
        invalid(
            &format!("a wait for {counter:x?}"),
            counters.wait(counter, 0, LONG),
        )?;
    }
    Ok(())
}

fn destroyed(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let counters = Counters::new(&io)?;
    io.cb_destroy(counters.handle)?;
    counters.wait(counters.at(0), 0, Duration::ZERO)?;
    // Only the mapping held a reference to it.
    let (handle, at) = (counters.handle, counters.at(0));
    drop(counters);
    let wait = InterruptWait {
        interrupt: FIRST,
        word: InterruptWord::KernelCq(at),
        target: 0,
        timeout: Duration::ZERO,
    };
    invalid(
        &format!("a wait for a counter of {:#x}", handle.0),
        io.wait_interrupt(&wait),
    )
}

fn aborted(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let counters = Counters::new(&io)?;
    let hang = Buffer::new(&io, Program::new().fence(2, 1, 1)?)?;
    submit_with(&*io, &[hang.chunk(queue::PDMA_0_0)], CsFlags::NONE, Some(1))?;
    let answer = counters.wait(counters.at(0), 1, Duration::from_secs(5));
    drop((hang, counters, io));
    bench.reopen()?;
    refused("a wait for a counter that a reset ends", answer, Errno::EIO)
}

fn stamped_at_once(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (counters, stamps) = (Counters::new(&io)?, Stamps::new(&io)?);
    counters.set(1, 4)?;
    io.register_timestamp(&stamps.of(counters.at(1), 4, 2))?;
    let (before, written) = (stamps.read(1)?, stamps.read(2)?);
    holds(
        "the time of what is reached is written at once",
        written > 0,
        written,
    )?;
    equal("the timestamp before it", before, 0)
}

fn stamped(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (counters, stamps) = (Counters::new(&io)?, Stamps::new(&io)?);
    io.register_timestamp(&stamps.of(counters.at(1), 4, 0))?;
    equal("the timestamp before the interrupt", stamps.read(0)?, 0)?;
    run_ring(&io, &counters, 1, 4)?;
    let written = stamps.written(0)?;
    holds("the time of the interrupt is written", written > 0, written)
}

fn not_stamped(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (counters, stamps) = (Counters::new(&io)?, Stamps::new(&io)?);
    io.register_timestamp(&stamps.of(counters.at(1), 4, 0))?;
    // The same interrupt writes this one, which shows that it has been handled.
    io.register_timestamp(&stamps.of(counters.at(1), 3, 1))?;
    run_ring(&io, &counters, 1, 3)?;
    let handled = stamps.written(1)?;
    holds("the timestamp of a counter that is there", handled > 0, handled)?;
    equal("the timestamp of a counter that is not there", stamps.read(0)?, 0)?;
    run_ring(&io, &counters, 1, 9)?;
    let written = stamps.written(0)?;
    holds("the timestamp of a counter that is past it", written > 0, written)
}

/// A reset drops registered timestamps even if it waits for the user to close the device.
fn dropped_by_reset(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let fd = EventFd::new()?;
    io.register_events(fd.as_fd())?;
    let (counters, stamps) = (Counters::new(&io)?, Stamps::new(&io)?);
    let hang = Buffer::new(&io, Program::new().fence(2, 1, 1)?)?;
    let after = MsgLong::new(offset(counters.va, 16), 1).with_message_barrier(true);
    let ring = Buffer::new(&io, counters.ring(1, 1).long(after))?;
    io.register_timestamp(&stamps.of(counters.at(1), 1, 0))?;
    let chunk = hang.chunk(queue::PDMA_0_0);
    let seq = submit_with(&*io, &[chunk], CsFlags::NONE, Some(1))?;
    refused("a submission that hangs", io.wait_cs(seq, LONG), Errno::EIO)?;
    // The driver drops registrations after it has woken the waits of submissions
    // (device.c:hl_abort_waiting_for_completions), and it does not report that.
    std::thread::sleep(Duration::from_secs(1));
    // Its engines continue. Waits are refused from now on, so a mock that works only during waits
    // raises no interrupt.
    ring.submit(queue::PDMA_1_0)?;
    for _ in 0..100 {
        if counters.memory.load_u64(16, Ordering::Acquire)? == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // The interrupt may arrive after the write that shows that it was raised.
    std::thread::sleep(Duration::from_millis(50));
    let written = stamps.read(0)?;
    drop((hang, ring, counters, stamps, io));
    bench.reopen()?;
    equal("a timestamp whose registration a reset dropped", written, 0)
}

fn low_half(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (counters, stamps) = (Counters::new(&io)?, Stamps::new(&io)?);
    io.register_timestamp(&stamps.of(counters.at(0), (1 << 32) + 2, 0))?;
    run_ring(&io, &counters, 0, 2)?;
    holds("2 is as good as 2^32 + 2", stamps.written(0)? > 0, ())
}

fn anew(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (counters, stamps) = (Counters::new(&io)?, Stamps::new(&io)?);
    io.register_timestamp(&stamps.of(counters.at(0), 1, 0))?;
    io.register_timestamp(&stamps.of(counters.at(1), 1, 0))?;
    // The same interrupt writes this one, which shows that it has been handled.
    io.register_timestamp(&stamps.of(counters.at(0), 1, 1))?;
    run_ring(&io, &counters, 0, 1)?;
    let handled = stamps.written(1)?;
    holds("the timestamp of the first counter", handled > 0, handled)?;
    equal("the timestamp that was registered anew", stamps.read(0)?, 0)?;
    run_ring(&io, &counters, 1, 1)?;
    let written = stamps.written(0)?;
    holds("it is written for its new counter", written > 0, written)
}

fn stamp_no_counter(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (counters, stamps) = (Counters::new(&io)?, Stamps::new(&io)?);
    let unknown = CqCounter {
        handle: CbHandle(counters.handle.0 + (9 << 12)),
        offset: 0,
    };
    for counter in [counters.at(COUNTERS), unknown] {
        invalid(
            &format!("a timestamp of {counter:x?}"),
            io.register_timestamp(&stamps.of(counter, 1, 0)),
        )?;
    }
    Ok(())
}

fn stamp_no_buffer(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (counters, stamps) = (Counters::new(&io)?, Stamps::new(&io)?);
    let request = TimestampRegistration {
        buffer: TsHandle(stamps.handle.0 + (9 << 12)),
        ..stamps.of(counters.at(0), 1, 0)
    };
    invalid("a timestamp in no buffer", io.register_timestamp(&request))
}

fn stamp_no_element(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (counters, stamps) = (Counters::new(&io)?, Stamps::new(&io)?);
    for index in [u64::from(Stamps::ELEMENTS), 1 << 20] {
        invalid(
            &format!("timestamp {index} of {}", Stamps::ELEMENTS),
            io.register_timestamp(&stamps.of(counters.at(0), 1, index)),
        )?;
    }
    Ok(())
}

fn stamp_no_interrupt(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let (counters, stamps) = (Counters::new(&io)?, Stamps::new(&io)?);
    let request = TimestampRegistration {
        interrupt: InterruptId(USER_INTERRUPTS.end),
        ..stamps.of(counters.at(0), 1, 0)
    };
    invalid("a timestamp at no interrupt", io.register_timestamp(&request))
}
