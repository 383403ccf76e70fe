//! The arbiter of a queue manager: it selects the stream that continues after an ARB_POINT.

use gaudi_spec::gaudi2::qman::ArbCfg;
use gaudi_spec::gaudi2::{qman, queue};

const STREAMS: usize = queue::STREAMS as usize;
/// Packets that the other streams of the queue manager may execute before a grant. The chip waits a
/// number of cycles (`ARB_MST_QUIET_PER`) for requests of other streams. The model waits until no
/// other stream can run, or for this many packets.
const QUIET: u32 = 1024;

/// A queue manager's arbiter. All of it is `source: inferred` from hl-thunk's tests, past the
/// layout of its registers.
#[derive(Debug, Default)]
pub(crate) struct Arbiter {
    pub(crate) cfg: ArbCfg,
    weights: [u8; STREAMS],
    /// Cycles between grants, kept to be read.
    pub(crate) quiet: u32,
    holder: Option<usize>,
    // The priority with which a stream asks.
    asks: [Option<u32>; STREAMS],
    // Grants left in this round.
    credits: [u8; STREAMS],
    last: usize,
    waited: u32,
}

impl Arbiter {
    /// Returns the value of a register, by its offset in the queue manager.
    pub(crate) fn read(&self, offset: u32) -> u32 {
        match offset {
            qman::ARB_CFG => self.cfg.into_bits(),
            qman::ARB_MST_QUIET_PER => self.quiet,
            _ => self.weights[(offset - qman::ARB_WRR_WEIGHT) as usize / 4].into(),
        }
    }

    /// Changes its mode. Returns true if it is off now, so that no stream waits for it.
    pub(crate) fn set_cfg(&mut self, cfg: ArbCfg) -> bool {
        self.cfg = cfg;
        if !cfg.enable() {
            (self.holder, self.asks, self.waited) = (None, [None; STREAMS], 0);
        }
        !cfg.enable()
    }

    pub(crate) fn set_weight(&mut self, stream: usize, weight: u8) {
        self.weights[stream] = weight;
        self.credits = self.weights;
    }

    /// Requests the grant for a stream. Returns `true` if it may continue.
    pub(crate) fn acquire(&mut self, stream: usize, priority: u32) -> bool {
        if !self.cfg.enable() || self.holder == Some(stream) {
            return true;
        }
        self.asks[stream] = Some(priority);
        false
    }

    /// Releases a stream's grant, if it has one.
    pub(crate) fn release(&mut self, stream: usize) {
        if self.holder == Some(stream) {
            self.holder = None;
        }
    }

    /// Grants a request if no stream has the grant. Returns the stream that continues.
    /// `others_run`: another stream of the queue manager can execute packets, and may still request
    /// the grant.
    pub(crate) fn decide(&mut self, others_run: bool) -> Option<usize> {
        if self.holder.is_some() || self.asks.iter().all(Option::is_none) {
            return None;
        }
        self.waited += 1;
        if others_run && self.waited < QUIET {
            return None;
        }
        let chosen = if self.cfg.by_weight() {
            self.by_weight()?
        } else {
            self.by_priority()?
        };
        self.asks[chosen] = None;
        (self.holder, self.last, self.waited) = (Some(chosen), chosen, 0);
        Some(chosen)
    }

    // All streams, from the one after the last granted stream on.
    fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let last = self.last;
        (1..=STREAMS).map(move |ahead| (last + ahead) % STREAMS)
    }

    fn by_priority(&self) -> Option<usize> {
        let highest = self.asks.iter().flatten().max()?;
        self.in_turn().find(|&stream| self.asks[stream] == Some(*highest))
    }

    // A stream keeps its turn while it has grants left in the round; a weight of 0 counts as 1.
    fn by_weight(&mut self) -> Option<usize> {
        let mut turns = std::iter::once(self.last).chain(self.in_turn());
        let stream = match turns.find(|&stream| self.asks[stream].is_some() && self.credits[stream] > 0) {
            Some(stream) => stream,
            None => {
                self.credits = self.weights.map(|weight| weight.max(1));
                self.in_turn().find(|&stream| self.asks[stream].is_some())?
            }
        };
        self.credits[stream] = self.credits[stream].saturating_sub(1);
        Some(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arbiter(by_weight: bool) -> Arbiter {
        let mut arbiter = Arbiter::default();
        arbiter.set_cfg(
            ArbCfg::new()
                .with_enable(true)
                .with_is_master(true)
                .with_by_weight(by_weight),
        );
        arbiter
    }

    #[test]
    fn equal_priorities_take_turns() {
        let mut arbiter = arbiter(false);
        for (stream, priority) in [(0, 2), (1, 7), (2, 7), (3, 1)] {
            assert!(!arbiter.acquire(stream, priority), "no stream continues at once");
        }
        let mut order = Vec::new();
        while let Some(stream) = arbiter.decide(false) {
            order.push(stream);
            assert!(arbiter.acquire(stream, 0), "the holder of the grant continues");
            assert_eq!(arbiter.decide(false), None, "one at a time");
            arbiter.release(stream);
        }
        assert_eq!(order, [1, 2, 0, 3]);
    }

    #[test]
    fn weights_are_grants_in_a_round() {
        let mut arbiter = arbiter(true);
        for (stream, weight) in [(0, 2), (1, 1), (2, 0), (3, 0)] {
            arbiter.set_weight(stream, weight);
        }
        let mut order = Vec::new();
        for _ in 0..9 {
            arbiter.acquire(0, 0);
            arbiter.acquire(1, 0);
            let stream = arbiter.decide(false).expect("two ask");
            order.push(stream);
            arbiter.release(stream);
        }
        assert_eq!(order, [0, 0, 1, 0, 0, 1, 0, 0, 1]);
    }

    #[test]
    fn arbiter_waits_a_bounded_time() {
        let mut arbiter = arbiter(false);
        arbiter.acquire(0, 0);
        assert_eq!(arbiter.decide(true), None);
        let granted = (0..QUIET).find_map(|_| arbiter.decide(true));
        assert_eq!(granted, Some(0));
    }

    #[test]
    fn switched_off_it_holds_nobody() {
        let mut arbiter = arbiter(false);
        arbiter.acquire(2, 0);
        assert!(arbiter.set_cfg(ArbCfg::new()), "no stream waits");
        assert!(arbiter.acquire(1, 0));
        assert_eq!(arbiter.decide(false), None);
    }
}
