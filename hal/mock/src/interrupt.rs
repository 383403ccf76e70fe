//! User interrupts: which vectors wake which waiters (driver common/irq.c, gaudi2.c:3870 `gaudi2_user_interrupt_setup`).

use gaudi_seam::InterruptId;
use gaudi_spec::gaudi2::USER_INTERRUPTS;

/// Decoders, which have the first interrupt numbers (gaudi2P.h `NUMBER_OF_DEC`, gaudi2.c:2801).
const DECODERS: usize = 10;
const CQS: usize = (USER_INTERRUPTS.end - USER_INTERRUPTS.start) as usize;
const ANY_CQ: usize = DECODERS + CQS;
const ANY_DECODER: usize = ANY_CQ + 1;
const LINES: usize = ANY_DECODER + 1;

/// A TPC's assertion (gaudi2P.h `GAUDI2_IRQ_NUM_TPC_ASSERT`).
pub(crate) const TPC_ASSERT: u16 = 46;
/// An overflow of the event queue (gaudi2P.h `GAUDI2_IRQ_NUM_EQ_ERROR`).
const EQ_ERROR: u16 = 47;

/// What waiters can wait for (`struct hl_user_interrupt`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line(usize);

impl Line {
    /// The line of an interrupt number of twelve bits (command_submission.c:3652); `None` where there is none.
    pub(crate) fn of(id: InterruptId) -> Option<Self> {
        let number = id.0;
        Some(Self(match id {
            InterruptId::ANY_CQ => ANY_CQ,
            InterruptId::ANY_DECODER => ANY_DECODER,
            // All decoders of the mock are enabled.
            _ if usize::from(number) < DECODERS => usize::from(number),
            _ if USER_INTERRUPTS.contains(&number) => DECODERS + usize::from(number - USER_INTERRUPTS.start),
            _ => return None,
        }))
    }
}

impl Line {
    /// The lines at which timestamps are written when a vector is raised: a completion queue's own, and the common one (irq.c:429).
    pub(crate) fn stamped_by(vector: u16) -> Option<[Self; 2]> {
        USER_INTERRUPTS.contains(&vector).then(|| {
            [
                Self(DECODERS + usize::from(vector - USER_INTERRUPTS.start)),
                Self(ANY_CQ),
            ]
        })
    }

    /// Whether a reset sends its waiters away: the driver goes through as many lines as there are completion queues, from the first
    /// (a decoder's) on, and so leaves out the last ten queues (command_submission.c:1134).
    pub(crate) fn is_aborted(self) -> bool {
        self.0 < CQS || self.0 >= ANY_CQ
    }
}

/// What a waiter compares, to see that something happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// How often it was raised.
    pub(crate) raised: u64,
    /// When it was raised last; 0 of a line that stands for all of a kind.
    pub(crate) at_ns: u64,
    /// How often its waiters were sent away.
    pub(crate) aborted: u64,
}

/// What a vector means to the driver where it is no user's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// irq.c:396 `handle_tpc_interrupt`.
    TpcAssert,
    /// irq.c:479 `hl_irq_eq_error_interrupt_thread_handler`.
    EventQueue,
}

/// All lines of a device.
#[derive(Debug)]
pub(crate) struct Interrupts {
    marks: [Mark; LINES],
}

impl Default for Interrupts {
    fn default() -> Self {
        Self {
            marks: [Mark::default(); LINES],
        }
    }
}

impl Interrupts {
    pub(crate) fn mark(&self, line: Line) -> Mark {
        self.marks.get(line.0).copied().unwrap_or_default()
    }

    /// A vector was raised (irq.c:423).
    pub(crate) fn raise(&mut self, vector: u16, now: u64) -> Option<Alarm> {
        let lines = match vector {
            // A decoder has two vectors, of which the second tells an error (gaudi2.c:4611, :4636).
            1..=20 if vector % 2 == 1 => [usize::from(vector - 1) / 2, ANY_DECODER],
            TPC_ASSERT => return Some(Alarm::TpcAssert),
            EQ_ERROR => return Some(Alarm::EventQueue),
            _ if USER_INTERRUPTS.contains(&vector) => {
                [DECODERS + usize::from(vector - USER_INTERRUPTS.start), ANY_CQ]
            }
            // Event queue, completions, NICs: the driver looks at its own queues and finds nothing new.
            _ => return None,
        };
        // The handler notes the time of the vector's own line; that of the common one is never set (irq.c:423, :359).
        for (line, at_ns) in lines.into_iter().zip([now, 0]) {
            if let Some(mark) = self.marks.get_mut(line) {
                mark.raised += 1;
                mark.at_ns = at_ns;
            }
        }
        None
    }

    /// A reset sends waiters away.
    pub(crate) fn abort(&mut self) {
        for (line, mark) in self.marks.iter_mut().enumerate() {
            if Line(line).is_aborted() {
                mark.aborted += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_the_driver_knows_have_a_line_each() {
        let known: Vec<u16> = (0..=0xfff)
            .filter(|&number| Line::of(InterruptId(number)).is_some())
            .collect();
        let expected: Vec<u16> = (0..10).chain(48..112).chain([0xffe, 0xfff]).collect();
        assert_eq!(known, expected, "the numbers that can be waited for");
    }

    #[test]
    fn a_vector_wakes_its_line_and_the_common_one() {
        let mut lines = Interrupts::default();
        let mark = |lines: &Interrupts, number| lines.mark(Line::of(InterruptId(number)).unwrap());
        assert_eq!(lines.raise(48, 5), None, "a user's vector is no alarm");
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
            "a reset forgets the last ten queues"
        );
    }
}
