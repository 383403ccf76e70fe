//! What a program in C may see of a plan.

use gaudi_hal::layers::fault;
use gaudi_seam::Errno;
use gaudi_seam::fault::{Plan, Resource, Rule, Verdict};

/// The faults of a plan's rules in this process.
pub(crate) struct Injected(Vec<(Rule, u64)>);

impl Injected {
    /// Counts from now.
    pub(crate) fn of(plan: &Plan) -> Self {
        let mut rules: Vec<(Rule, u64)> = plan.rules.iter().map(|&rule| (rule, 0)).collect();
        rules.dedup();
        let mut injected = Self(rules);
        injected.take();
        injected
    }

    /// The rules that injected a fault since the last call.
    pub(crate) fn take(&mut self) -> Vec<Rule> {
        let counts = fault::tally();
        let new = self.0.iter_mut().filter_map(|(rule, before)| {
            let count = counts.iter().find(|count| count.rule == *rule)?;
            let is_new = count.fired > *before;
            *before = count.fired;
            is_new.then_some(*rule)
        });
        new.collect()
    }
}

/// The errnos that a program may see after a fault of a rule.
pub(crate) fn errnos(rule: Rule) -> Vec<Errno> {
    match rule.verdict {
        Verdict::Error(errno) => vec![errno],
        Verdict::Full(Resource::Queue) => vec![Errno::EAGAIN],
        Verdict::Full(Resource::Fds) => vec![Errno::EMFILE],
        Verdict::Full(_) => vec![Errno::ENOMEM],
        Verdict::Eintr => vec![Errno::EINTR],
        Verdict::Lose | Verdict::Timeout => vec![Errno::ETIMEDOUT, Errno::EIO, Errno::EBUSY],
        Verdict::Remove => vec![Errno::ENODEV],
        Verdict::Reset | Verdict::ComputeReset | Verdict::FatalEcc | Verdict::Heartbeat | Verdict::Razwi => {
            vec![Errno::EBUSY, Errno::EIO]
        }
        _ => Vec::new(),
    }
}

pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("readable").count()
}
