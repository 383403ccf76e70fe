//! Operations that would have blocked, in order, until there is room.

use std::collections::VecDeque;
use std::fmt;

/// An operation to try again.
pub(crate) type Work<T, E> = Box<dyn FnMut(&mut T) -> Result<(), E> + Send>;

/// A queue of operations to try again. `T` is what an operation works on.
pub(crate) struct Pending<T, E> {
    waiting: VecDeque<Work<T, E>>,
}

impl<T, E> Default for Pending<T, E> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
        }
    }
}

impl<T, E> Pending<T, E> {
    pub(crate) fn add(&mut self, work: Work<T, E>) {
        self.waiting.push_back(work);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn clear(&mut self) -> usize {
        let count = self.waiting.len();
        self.waiting.clear();
        count
    }

    /// Tries operations, oldest first, until one would block again: `is_blocked` recognizes that
    /// error. An operation that succeeds or fails leaves the queue. Also returns their number.
    pub(crate) fn run(mut self, on: &mut T, is_blocked: impl Fn(&E) -> bool) -> (Self, usize) {
        let mut left = 0;
        while let Some(work) = self.waiting.front_mut() {
            if work(on).is_err_and(|error| is_blocked(&error)) {
                break;
            }
            self.waiting.pop_front();
            left += 1;
        }
        (self, left)
    }

    /// Appends what was added while this queue ran.
    pub(crate) fn append(&mut self, mut later: Self) {
        self.waiting.append(&mut later.waiting);
    }
}

impl<T, E> fmt::Debug for Pending<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_until_one_blocks() {
        let mut pending = Pending::<Vec<u32>, &str>::default();
        for number in 0..5 {
            let mut tries = 0;
            pending.add(Box::new(move |seen| {
                tries += 1;
                if number == 2 && tries == 1 {
                    return Err("full");
                }
                seen.push(number);
                if number == 3 { Err("broken") } else { Ok(()) }
            }));
        }
        let mut seen = Vec::new();
        let (pending, left) = pending.run(&mut seen, |&error| error == "full");
        assert_eq!(
            (left, &*seen),
            (2, &[0, 1][..]),
            "the third blocks those behind it"
        );
        let (mut pending, left) = pending.run(&mut seen, |&error| error == "full");
        assert_eq!(
            (left, &*seen),
            (3, &[0, 1, 2, 3, 4][..]),
            "a failure leaves the queue"
        );
        assert_eq!(pending.clear(), 0);
    }

    /// Every queue of three operations of which each blocks up to two times and then succeeds or
    /// fails, while another is added between any two runs. The queue has one owner (`&mut`), so
    /// these are all its states.
    #[test]
    fn every_order_of_blocks_keeps_the_order() {
        const EACH: usize = 6;
        for case in 0..EACH.pow(3) * 4 {
            let mut pending = Pending::<Vec<usize>, &str>::default();
            let add = |pending: &mut Pending<Vec<usize>, &'static str>, number: usize, way: usize| {
                let (mut blocks, fails) = (way % 3, way / 3 == 1);
                pending.add(Box::new(move |seen: &mut Vec<usize>| {
                    if blocks > 0 {
                        blocks -= 1;
                        return Err("full");
                    }
                    seen.push(number);
                    if fails { Err("broken") } else { Ok(()) }
                }));
            };
            for number in 0..3 {
                add(&mut pending, number, case / EACH.pow(number as u32) % EACH);
            }
            let (mut seen, mut left, added) = (Vec::new(), 0, case / EACH.pow(3));
            for turn in 0..12 {
                let waiting = pending.len();
                let (rest, ended) = pending.run(&mut seen, |&error| error == "full");
                assert_eq!(rest.len() + ended, waiting, "case {case}: none is lost");
                pending = rest;
                left += ended;
                if turn == added {
                    let mut later = Pending::default();
                    add(&mut later, 3, 1);
                    pending.append(later);
                }
            }
            assert_eq!((left, pending.len()), (4, 0), "case {case}: each ends once");
            assert_eq!(seen, [0, 1, 2, 3], "case {case}: in order");
        }
    }
}
