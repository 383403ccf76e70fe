//! User interrupts: which vectors wake which waiters (irq.c, gaudi2.c
//! `gaudi2_user_interrupt_setup`).

use std::ops::Range;

use gaudi_seam::InterruptId;
use gaudi_spec::Asic;

/// An interrupt that a waiter can wait for (`struct hl_user_interrupt`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    number: usize,
    /// Whether a reset aborts its waiters: the driver goes through as many lines as there are
    /// completion queues, from the first (a decoder's) on, and so leaves out the last queues
    /// (command_submission.c `hl_release_pending_user_interrupts`).
    pub(crate) is_aborted: bool,
}

/// A snapshot of an interrupt that a waiter compares with its current state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The number of times it was raised.
    pub(crate) raised: u64,
    /// The time of the last raise; 0 for the common line of a kind.
    pub(crate) at_ns: u64,
    /// The number of times its waiters were aborted.
    pub(crate) aborted: u64,
}

/// The driver's use of a vector that is not a user interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// irq.c `handle_tpc_interrupt`.
    TpcAssert,
    /// irq.c `hl_irq_eq_error_interrupt_thread_handler`.
    EventQueue,
}

/// All lines of a device: the decoders', the completion queues', then the common one of each kind.
#[derive(Debug)]
pub(crate) struct Interrupts {
    asic: &'static Asic,
    marks: Vec<Mark>,
}

impl Interrupts {
    pub(crate) fn new(asic: &'static Asic) -> Self {
        let lines = usize::from(asic.decoders) + asic.user_interrupts.len() + 2;
        Self {
            asic,
            marks: vec![Mark::default(); lines],
        }
    }

    /// Resets every line to its first state.
    pub(crate) fn restart(&mut self) {
        self.marks.fill(Mark::default());
    }

    fn cqs(&self) -> &'static Range<u16> {
        &self.asic.user_interrupts
    }

    fn at(&self, number: usize) -> Line {
        let any_cq = usize::from(self.asic.decoders) + self.cqs().len();
        Line {
            number,
            is_aborted: number < self.cqs().len() || number >= any_cq,
        }
    }

    fn any_cq(&self) -> Line {
        self.at(self.marks.len() - 2)
    }

    fn any_decoder(&self) -> Line {
        self.at(self.marks.len() - 1)
    }

    fn cq(&self, vector: u16) -> Option<Line> {
        let nth = vector.checked_sub(self.cqs().start)?;
        (vector < self.cqs().end).then(|| self.at(usize::from(self.asic.decoders + nth)))
    }

    /// The line of an interrupt number of twelve bits (command_submission.c
    /// `hl_interrupt_wait_ioctl`); `None` if there is none.
    pub(crate) fn line(&self, id: InterruptId) -> Option<Line> {
        match id {
            InterruptId::ANY_CQ => Some(self.any_cq()),
            InterruptId::ANY_DECODER => Some(self.any_decoder()),
            // All decoders of the mock are enabled.
            InterruptId(number) if number < self.asic.decoders => Some(self.at(usize::from(number))),
            InterruptId(number) => self.cq(number),
        }
    }

    /// The lines at which timestamps are written when a vector is raised: a completion queue's own,
    /// and the common one (irq.c `hl_irq_user_interrupt_handler`).
    pub(crate) fn stamped_by(&self, vector: u16) -> Option<[Line; 2]> {
        Some([self.cq(vector)?, self.any_cq()])
    }

    pub(crate) fn mark(&self, line: Line) -> Mark {
        self.marks[line.number]
    }

    /// A vector was raised (irq.c `hl_irq_user_interrupt_handler`).
    pub(crate) fn raise(&mut self, vector: u16, now: u64) -> Option<Alarm> {
        let lines = match vector {
            // A decoder has two vectors, of which the second reports an error (gaudi2.c
            // `gaudi2_dec_enable_msix`).
            _ if vector % 2 == 1 && vector < 2 * self.asic.decoders => {
                [self.at(usize::from(vector) / 2), self.any_decoder()]
            }
            _ if vector == self.asic.tpc_assert_interrupt => return Some(Alarm::TpcAssert),
            _ if vector == self.asic.eq_error_interrupt => return Some(Alarm::EventQueue),
            // Event queue, completions, NICs: the driver finds no new entry in its own queues.
            _ => self.stamped_by(vector)?,
        };
        // The handler notes the time of the vector's own line; that of the common one is never set.
        for (line, at_ns) in lines.into_iter().zip([now, 0]) {
            let mark = &mut self.marks[line.number];
            mark.raised += 1;
            mark.at_ns = at_ns;
        }
        None
    }

    /// A reset aborts waiters.
    pub(crate) fn abort(&mut self) {
        for number in 0..self.marks.len() {
            if self.at(number).is_aborted {
                self.marks[number].aborted += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupts() -> Interrupts {
        Interrupts::new(gaudi_spec::ASICS[0])
    }

    #[test]
    fn each_known_number_has_a_line() {
        let known: Vec<u16> = (0..=0xfff)
            .filter(|&number| interrupts().line(InterruptId(number)).is_some())
            .collect();
        let expected: Vec<u16> = (0..10).chain(48..112).chain([0xffe, 0xfff]).collect();
        assert_eq!(known, expected, "the numbers that can be waited for");
    }

    #[test]
    fn vector_wakes_own_and_common_line() {
        let mut lines = interrupts();
        let mark = |lines: &Interrupts, number| lines.mark(lines.line(InterruptId(number)).unwrap());
        assert_eq!(lines.raise(48, 5), None, "a user's vector is not an alarm");
        assert_eq!(
            (
                mark(&lines, 48).raised,
                mark(&lines, 0xfff).raised,
                mark(&lines, 49).raised
            ),
            (1, 1, 0),
            "vector 48"
        );
        // The fourth decoder's normal vector, and its error.
        lines.raise(7, 6);
        lines.raise(8, 7);
        assert_eq!(
            (
                mark(&lines, 3).raised,
                mark(&lines, 0xffe).at_ns,
                mark(&lines, 0xfff).raised
            ),
            (1, 0, 1),
            "vector 7, whose time the common line does not have"
        );
        lines.abort();
        assert_eq!(
            (
                mark(&lines, 101).aborted,
                mark(&lines, 102).aborted,
                mark(&lines, 0xffe).aborted
            ),
            (1, 0, 1),
            "a reset does not abort the last ten queues"
        );
    }
}
