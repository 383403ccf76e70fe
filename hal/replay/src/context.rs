//! [`Context`]: which recorded call answers the next request.

use std::collections::{HashMap, VecDeque};

use gaudi_seam::ReplayMatch;

use crate::key::Key;
use crate::recording::Call;

/// The position of a node in its session.
#[derive(Debug)]
pub(crate) struct Context {
    how: ReplayMatch,
    /// Whether the program maps the file itself: then no mmap(2) reaches the node.
    maps_itself: bool,
    /// The calls that are not used, by their keys, in order.
    unused: HashMap<Key, VecDeque<usize>>,
    /// The last call used for a key that may repeat.
    last: HashMap<Key, usize>,
    /// The call after the last one used.
    next: usize,
    /// Strict: the first difference was reported, and no later call is answered.
    ended: bool,
}

/// The call that answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// It was not used before.
    New(usize),
    /// It answered an equal request before.
    Again(usize),
    /// No call fits. The number is that of the call that was expected, if one is left.
    Missing(Option<usize>),
}

impl Context {
    pub(crate) fn new(how: ReplayMatch, maps_itself: bool, calls: &[Call]) -> Self {
        let mut unused: HashMap<Key, VecDeque<usize>> = HashMap::new();
        for (number, call) in calls.iter().enumerate() {
            unused.entry(call.key.clone()).or_default().push_back(number);
        }
        Self {
            how,
            maps_itself,
            unused,
            last: HashMap::new(),
            next: 0,
            ended: false,
        }
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.how == ReplayMatch::Strict
    }

    /// Strict: whether the first difference was reported.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The call after the last one used.
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    pub(crate) fn find(&mut self, key: &Key, calls: &[Call]) -> Found {
        match self.how {
            ReplayMatch::Strict => {
                let is_passed = |call: &Call| self.maps_itself && call.key.is_mmap();
                self.next += calls
                    .iter()
                    .skip(self.next)
                    .take_while(|call| is_passed(call))
                    .count();
                let expected = calls.get(self.next).map(|_| self.next);
                match expected.filter(|&number| !self.ended && calls[number].key == *key) {
                    Some(number) => {
                        self.next = number + 1;
                        Found::New(number)
                    }
                    None => {
                        self.ended = true;
                        Found::Missing(expected)
                    }
                }
            }
            ReplayMatch::Best => self.best(key, calls),
        }
    }

    fn best(&mut self, key: &Key, calls: &[Call]) -> Found {
        if let Some(number) = self.unused.get_mut(key).and_then(VecDeque::pop_front) {
            self.next = self.next.max(number + 1);
            if key.is_repeatable() {
                self.last.insert(key.clone(), number);
            }
            return Found::New(number);
        }
        if let Some(&number) = self.last.get(key) {
            return Found::Again(number);
        }
        // The nearest unused call of the same operation shows what differs.
        let left = self.unused.iter().filter(|(other, _)| other.is_like(key));
        let nearest = left.filter_map(|(_, numbers)| numbers.front()).min().copied();
        Found::Missing(nearest.or(calls.get(self.next).map(|_| self.next)))
    }
}
