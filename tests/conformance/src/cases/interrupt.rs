//! Waits for user interrupts: `HL_WAIT_CS_FLAGS_INTERRUPT`.

use std::time::Duration;

use gaudi_seam::{
    CsRequest, DeviceVa, Errno, ErrorKind, HostVa, InterruptId, InterruptWait, InterruptWord, SharedIo,
    WaitAnswer, WaitStatus,
};
use gaudi_spec::gaudi2::packet::{MsgLong, MsgShort};
use gaudi_spec::gaudi2::sync::{
    CQ_BASE_H, CQ_BASE_L, CQ_LBW_ADDR_H, CQ_LBW_ADDR_L, CQ_LBW_DATA, CQ_PI, CQ_SIZE_LOG2, Compare,
    FIRST_USER_CQ, FIRST_USER_MONITOR, FIRST_USER_SOB, GLBL, MonArm, MonConfig, SobUpdate,
};
use gaudi_spec::gaudi2::{CFG_BASE, DOORBELL_VA, PCIE_MSIX, USER_INTERRUPTS, queue};
use gaudi_uapi::cs::CsFlags;

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Buffer, Gate, Host, LONG, PAGE_LEN, Program, finish, submit_with};
use crate::verdict::{Failure, Verdict, equal, holds, invalid, refused};

const FIRST: u16 = USER_INTERRUPTS.start;

cases! {
    "wait.interrupt.reached-already", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr" => reached_already;
    "wait.interrupt.poll-not-reached", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr" => poll_not_reached;
    "wait.interrupt.time-runs-out", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr" => time_runs_out [Clock];
    "wait.interrupt.doorbell", "common/irq.c:hl_irq_user_interrupt_handler" => doorbell [Clock];
    "wait.interrupt.any-queue", "common/irq.c:hl_irq_user_interrupt_handler" => any_queue [Clock];
    "wait.interrupt.decoder", "common/irq.c:hl_irq_user_interrupt_handler" => decoder [Clock];
    "wait.interrupt.from-another-thread", "common/irq.c:handle_user_interrupt_wait_list" => other_thread [Clock];
    "wait.interrupt.of-another-number", "common/irq.c:hl_irq_user_interrupt_handler" => another_number;
    "wait.interrupt.rung-too-early", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr" => rung_too_early [Clock];
    "wait.interrupt.of-a-completion-queue", "common/irq.c:hl_irq_user_interrupt_handler" => completion_queue [Clock];
    "wait.interrupt.of-the-msix-block", "gaudi2/gaudi2.c:gaudi2_execute_soft_reset" => msix_block [Clock];
    "wait.interrupt.every-user-number", "common/command_submission.c:hl_interrupt_wait_ioctl" => every_number;
    "wait.interrupt.no-such-number", "common/command_submission.c:hl_interrupt_wait_ioctl" => no_such_number;
    "wait.interrupt.no-such-address", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr" => no_such_address;
    "wait.interrupt.aborted-by-reset", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr" => aborted_by_reset [Reset];
    "wait.interrupt.left-out-by-reset", "common/command_submission.c:hl_release_pending_user_interrupts" => left_out_by_reset [Reset];
}

/// A word of host memory mapped to the device.
struct Word {
    host: Host,
}

impl Word {
    fn new(io: &SharedIo) -> Result<Self, Failure> {
        Ok(Self {
            host: Host::new(io, PAGE_LEN)?,
        })
    }

    fn set(&self, value: u64) -> Verdict {
        Ok(self.host.memory.write(0, &value.to_le_bytes())?)
    }

    fn address(&self) -> Result<HostVa, Failure> {
        let start = self.host.memory.at(0, 8)?;
        Ok(HostVa(start.as_ptr().expose_provenance() as u64))
    }

    fn wait(
        &self,
        io: &SharedIo,
        interrupt: u16,
        target: u64,
        timeout: Duration,
    ) -> Result<WaitAnswer, Failure> {
        let address = self.address()?;
        Ok(io.wait_interrupt(&InterruptWait {
            interrupt: InterruptId(interrupt),
            word: InterruptWord::User(address),
            target,
            timeout,
        })?)
    }

    /// Returns a program that sets the word and raises the interrupt.
    fn ring(&self, value: u32, vector: u16) -> Program {
        Program::new()
            .long(MsgLong::new(self.host.va, value))
            .long(MsgLong::new(DOORBELL_VA, vector.into()).with_message_barrier(true))
    }

    /// Waits for a value that a program sets before it raises the interrupt.
    fn rung(&self, io: &SharedIo, interrupt: u16, vector: u16) -> Verdict {
        self.set(0)?;
        let buffer = Buffer::new(io, self.ring(7, vector))?;
        let seq = buffer.submit(queue::PDMA_0_0)?;
        let answer = self.wait(io, interrupt, 7, LONG)?;
        finish(&**io, seq)?;
        equal(
            &format!("the wait for interrupt {interrupt:#x} that vector {vector} raises"),
            answer.status,
            WaitStatus::Completed,
        )?;
        // The driver never sets the time of interrupts that represent all of a kind
        // (common/irq.c:hl_irq_user_interrupt_handler).
        let common = [InterruptId::ANY_CQ.0, InterruptId::ANY_DECODER.0].contains(&interrupt);
        holds(
            "the wait returns the time of the interrupt",
            common || answer.timestamp_ns.is_some_and(|ns| ns > 0),
            answer,
        )
    }
}

fn reached_already(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    word.set(9)?;
    for target in [0, 8, 9] {
        for timeout in [Duration::ZERO, LONG] {
            let answer = word.wait(&io, FIRST, target, timeout)?;
            equal(
                "a wait for what is reached",
                (answer.status, answer.gone),
                (WaitStatus::Completed, false),
            )?;
            holds(
                "no interrupt came, so its time is now",
                answer.timestamp_ns.is_some_and(|ns| ns > 0),
                answer,
            )?;
        }
    }
    Ok(())
}

const BUSY: WaitAnswer = WaitAnswer {
    status: WaitStatus::Busy,
    gone: false,
    timestamp_ns: None,
};

fn poll_not_reached(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    word.set(9)?;
    for target in [10, u64::MAX] {
        equal(
            "a poll for what is not reached",
            word.wait(&io, FIRST, target, Duration::ZERO)?,
            BUSY,
        )?;
    }
    Ok(())
}

fn time_runs_out(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    equal(
        "a wait of 20 ms without an interrupt",
        word.wait(&io, FIRST, 1, Duration::from_millis(20))?,
        BUSY,
    )
}

fn doorbell(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    for vector in [FIRST, FIRST + 1, USER_INTERRUPTS.end - 1] {
        word.rung(&io, vector, vector)?;
    }
    Ok(())
}

fn any_queue(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    word.rung(&io, InterruptId::ANY_CQ.0, FIRST + 5)
}

fn decoder(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    // The first decoder's vector is 1, the second's 3 (gaudi2P.h:402).
    for (number, vector) in [
        (0, 1),
        (1, 3),
        (InterruptId::ANY_DECODER.0, 19),
        (InterruptId::ANY_DECODER.0, 1),
    ] {
        word.rung(&io, number, vector)?;
    }
    Ok(())
}

fn other_thread(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    let gate = Gate::shut(&io, queue::PDMA_0_0)?;
    let ring = Buffer::new(&io, word.ring(3, FIRST))?;
    let seq = ring.submit(queue::PDMA_0_0)?;
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| gate.open().and_then(|()| finish(&*io, seq)));
        let mut answer = word.wait(&io, FIRST, 3, Duration::from_secs(5));
        // On a virtual clock a wait ends at once, so poll without advancing the clock until the
        // other thread ends.
        while answer
            .as_ref()
            .is_ok_and(|answer| answer.status == WaitStatus::Busy)
        {
            let through = opener.is_finished();
            answer = word.wait(&io, FIRST, 3, Duration::ZERO);
            if through {
                break;
            }
            std::thread::yield_now();
        }
        match opener.join() {
            Ok(opened) => opened?,
            Err(_) => return Err(Failure::new("the opener in another thread", "an end", "a panic")),
        }
        equal("the waiter's answer", answer?.status, WaitStatus::Completed)
    })
}

/// An interrupt does not end a wait if the word is below the target.
fn rung_too_early(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    let buffer = Buffer::new(&io, word.ring(7, FIRST))?;
    for answer in rung_meanwhile(&io, &buffer, |timeout| word.wait(&io, FIRST, 8, timeout))? {
        equal(
            "a wait that an interrupt comes to early",
            answer.status,
            WaitStatus::Busy,
        )?;
    }
    Ok(())
}

/// A submission raises the interrupt during two waits: one that performs the submission itself, as
/// in the mock's stepped order, and one that begins before another thread releases the submission,
/// as on the machine's clock (on a virtual clock no wait lasts).
pub(super) fn rung_meanwhile(
    io: &SharedIo,
    ring: &Buffer,
    wait: impl Fn(Duration) -> Result<WaitAnswer, Failure>,
) -> Result<[WaitAnswer; 2], Failure> {
    let seq = ring.submit(queue::PDMA_0_0)?;
    let first = wait(Duration::from_millis(20))?;
    finish(&**io, seq)?;
    let gate = Gate::shut(io, queue::PDMA_0_0)?;
    let seq = ring.submit(queue::PDMA_0_0)?;
    std::thread::scope(|scope| {
        let opener = scope.spawn(move || {
            // The interrupt comes during the wait or before it; neither ends the wait.
            std::thread::sleep(Duration::from_millis(5));
            gate.open().and_then(|()| finish(&**io, seq))
        });
        let answer = wait(Duration::from_millis(40));
        match opener.join() {
            Ok(opened) => opened?,
            Err(_) => return Err(Failure::new("the opener in another thread", "an end", "a panic")),
        }
        Ok([first, answer?])
    })
}

fn another_number(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    let buffer = Buffer::new(
        &io,
        Program::new().long(MsgLong::new(DOORBELL_VA, u32::from(FIRST + 1))),
    )?;
    let seq = buffer.submit(queue::PDMA_0_0)?;
    let answer = word.wait(&io, FIRST, 1, Duration::from_millis(20))?;
    finish(&*io, seq)?;
    equal("a wait that another interrupt does not concern", answer, BUSY)
}

/// A program whose monitor stores `entry` in a completion queue at `word`. The queue then writes
/// `vector` to `doorbell`.
fn into_queue(word: &Word, entry: u32, (doorbell, vector): (DeviceVa, u16)) -> Result<Program, Failure> {
    let (cq, monitor, sob) = (FIRST_USER_CQ, FIRST_USER_MONITOR + 8, FIRST_USER_SOB + 8);
    let register = |table: u32| DeviceVa(CFG_BASE.0 + u64::from(GLBL + table + cq * 4));
    let mut program = Program::new();
    for (table, value) in [
        (CQ_BASE_L, word.host.va.0 as u32),
        (CQ_BASE_H, (word.host.va.0 >> 32) as u32),
        (CQ_SIZE_LOG2, 3),
        (CQ_PI, 0),
        (CQ_LBW_ADDR_L, doorbell.0 as u32),
        (CQ_LBW_ADDR_H, (doorbell.0 >> 32) as u32),
        (CQ_LBW_DATA, vector.into()),
    ] {
        program = program.long(MsgLong::new(register(table), value));
    }
    let config = MonConfig::for_sob(sob).with_cq_en(true).with_lbw_en(true);
    let mut program = program.sob(sob, SobUpdate::set(0))?;
    for packet in [
        MsgShort::monitor_config(monitor, config),
        MsgShort::monitor_address_low(monitor, DeviceVa(u64::from(cq))),
        MsgShort::monitor_address_high(monitor, DeviceVa(0)),
        MsgShort::monitor_data(monitor, entry),
        MsgShort::monitor_arm(monitor, MonArm::for_sob(sob, Compare::AtLeast, 1)),
    ] {
        program = program.short(packet, "monitor", monitor)?;
    }
    program.sob(sob, SobUpdate::add_signed(1))
}

fn queue_rings(io: &SharedIo, doorbell: DeviceVa, vector: u16) -> Verdict {
    let word = Word::new(io)?;
    let buffer = Buffer::new(io, into_queue(&word, 0x55, (doorbell, vector))?)?;
    let seq = buffer.submit(queue::PDMA_0_0)?;
    let answer = word.wait(io, vector, 0x55, LONG)?;
    finish(&**io, seq)?;
    equal(
        &format!("the wait for an entry of a completion queue that rings at {doorbell}"),
        answer.status,
        WaitStatus::Completed,
    )
}

fn completion_queue(bench: &mut Bench) -> Verdict {
    queue_rings(&bench.io()?, DOORBELL_VA, FIRST + 9)
}

/// The driver leaves the chip's MSI-X block open to users, beside the doorbell that it maps.
fn msix_block(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let block = DeviceVa(CFG_BASE.0 + u64::from(PCIE_MSIX));
    queue_rings(&io, block, FIRST + 10)?;
    let word = Word::new(&io)?;
    let ring = MsgLong::new(block, u32::from(FIRST + 11)).with_message_barrier(true);
    let program = Program::new().long(MsgLong::new(word.host.va, 7)).long(ring);
    let buffer = Buffer::new(&io, program)?;
    let seq = buffer.submit(queue::PDMA_0_0)?;
    let answer = word.wait(&io, FIRST + 11, 7, LONG)?;
    finish(&*io, seq)?;
    equal(
        "the wait for an interrupt that a packet raises by the MSI-X block",
        answer.status,
        WaitStatus::Completed,
    )
}

fn every_number(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    word.set(1)?;
    let queues = USER_INTERRUPTS.start..USER_INTERRUPTS.end;
    for number in (0..10).chain(queues) {
        equal(
            &format!("a wait for interrupt {number}"),
            word.wait(&io, number, 1, Duration::ZERO)?.status,
            WaitStatus::Completed,
        )?;
    }
    Ok(())
}

fn no_such_number(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    let address = word.address()?;
    let end = USER_INTERRUPTS.end;
    for interrupt in (10..FIRST).chain([end, 127, 128, 0xffd]) {
        let wait = InterruptWait {
            interrupt: InterruptId(interrupt),
            word: InterruptWord::User(address),
            target: 0,
            timeout: LONG,
        };
        invalid(
            &format!("a wait for interrupt {interrupt}"),
            io.wait_interrupt(&wait),
        )?;
    }
    Ok(())
}

fn no_such_address(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for address in [0, 8, 0xffff_8000_0000_0000, u64::MAX] {
        for timeout in [Duration::ZERO, LONG] {
            let wait = InterruptWait {
                interrupt: InterruptId(FIRST),
                word: InterruptWord::User(HostVa(address)),
                target: 1,
                timeout,
            };
            refused(
                &format!("a wait for a word at {address:#x}"),
                io.wait_interrupt(&wait),
                Errno::EFAULT,
            )?;
        }
    }
    Ok(())
}

/// Waits for an interrupt that never comes while a submission times out, then closes.
fn wait_into_reset(
    bench: &mut Bench,
    interrupt: u16,
) -> Result<Result<WaitAnswer, gaudi_seam::Error>, Failure> {
    let io = bench.io()?;
    let word = Word::new(&io)?;
    let hang = Buffer::new(&io, Program::new().fence(2, 1, 1)?)?;
    submit_with(&*io, &[hang.chunk(queue::PDMA_0_0)], CsFlags::NONE, Some(1))?;
    let address = word.address()?;
    let answer = io.wait_interrupt(&InterruptWait {
        interrupt: InterruptId(interrupt),
        word: InterruptWord::User(address),
        target: 1,
        timeout: Duration::from_secs(5),
    });
    refused(
        "a submission after the reset",
        io.submit(&CsRequest::default()),
        Errno::EBUSY,
    )?;
    drop((hang, word, io));
    bench.reopen()?;
    Ok(answer)
}

fn aborted_by_reset(bench: &mut Bench) -> Verdict {
    for number in [FIRST, InterruptId::ANY_CQ.0] {
        match wait_into_reset(bench, number)? {
            Err(error) if error.kind() == ErrorKind::DeviceLost && error.errno().is_none() => {}
            answer => {
                return Err(Failure::new(
                    format!("the wait for interrupt {number:#x} that a reset ends"),
                    "an aborted wait, by a status and no errno",
                    format!("{answer:?}"),
                ));
            }
        }
    }
    Ok(())
}

fn left_out_by_reset(bench: &mut Bench) -> Verdict {
    let last = USER_INTERRUPTS.end - 1;
    equal(
        "the wait for the last interrupt, which a reset leaves to its time",
        wait_into_reset(bench, last)?.map_err(Failure::from)?,
        BUSY,
    )
}
