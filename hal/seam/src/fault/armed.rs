//! [`ArmedRules`]: rules that inject faults, with their counts.

use std::time::Duration;

use super::plan::{Plan, Rule};
use super::verdict::Verdict;

/// Armed rules and the number of matches of each. The fault layer, the software NIC and the
/// modelled chip each hold one, so that a schedule means the same in all of them.
#[derive(Debug, Default)]
pub struct ArmedRules {
    rules: Vec<Armed>,
    next_id: u64,
}

#[derive(Debug)]
struct Armed {
    id: u64,
    count: RuleCount,
}

/// The counts of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleCount {
    /// The rule.
    pub rule: Rule,
    /// Operations or events that it matched.
    pub seen: u64,
    /// Operations or events into which it injected its fault.
    pub fired: u64,
}

/// A match that gets a rule's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hit {
    /// The rule's number in its [`ArmedRules`].
    pub id: u64,
    /// The rule.
    pub rule: Rule,
    /// The number of the operation or event among those that match the rule, from 1.
    pub occurrence: u64,
}

/// The faults of one operation or event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Met {
    /// The sum of the delays.
    pub delay: Duration,
    /// The first verdict that is not a delay.
    pub decided: Option<Hit>,
}

impl Met {
    /// The verdict that is not a delay.
    pub fn verdict(&self) -> Option<Verdict> {
        self.decided.map(|hit| hit.rule.verdict)
    }
}

impl ArmedRules {
    /// Arms the rules of a plan, in order.
    pub fn new(plan: &Plan) -> Self {
        let mut armed = Self::default();
        for &rule in &plan.rules {
            armed.arm(rule);
        }
        armed
    }

    /// Arms a rule after the others, and returns its number.
    pub fn arm(&mut self, rule: Rule) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let (seen, fired) = (0, 0);
        let count = RuleCount { rule, seen, fired };
        self.rules.push(Armed { id, count });
        id
    }

    /// Disarms a rule.
    pub fn disarm(&mut self, id: u64) {
        self.rules.retain(|armed| armed.id != id);
    }

    /// Sets every count to 0: the plan starts again.
    pub fn rearm(&mut self) {
        for armed in &mut self.rules {
            (armed.count.seen, armed.count.fired) = (0, 0);
        }
    }

    /// Whether no rule is armed.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The armed rules, in order.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|armed| &armed.count.rule)
    }

    /// Returns the counts of each rule, in order.
    pub fn counts(&self) -> Vec<RuleCount> {
        self.rules.iter().map(|armed| armed.count).collect()
    }

    /// Returns the counts of a rule. `None` if it is disarmed.
    pub fn count_of(&self, id: u64) -> Option<RuleCount> {
        let armed = self.rules.iter().find(|armed| armed.id == id);
        armed.map(|armed| armed.count)
    }

    /// Counts an operation or event in every rule that `matches`, and returns its faults: delays
    /// add up, and the first other verdict decides.
    ///
    /// Calls `fired` with each fault that happens now, and whether it is the rule's first. A
    /// verdict that `is_late` is not certain yet: the caller counts it with [`fire`](Self::fire)
    /// when its fault happens.
    pub fn meet(
        &mut self,
        matches: impl Fn(&Rule) -> bool,
        is_late: impl Fn(Verdict) -> bool,
        mut fired: impl FnMut(Hit, bool),
    ) -> Met {
        let mut met = Met::default();
        for Armed { id, count } in &mut self.rules {
            if !matches(&count.rule) {
                continue;
            }
            count.seen += 1;
            let hit = Hit {
                id: *id,
                rule: count.rule,
                occurrence: count.seen,
            };
            if !hit.rule.strikes(hit.occurrence) {
                continue;
            }
            match hit.rule.verdict {
                Verdict::Delay(more) => met.delay = met.delay.saturating_add(more),
                _ if met.decided.is_some() => continue,
                _ => met.decided = Some(hit),
            }
            if !is_late(hit.rule.verdict) {
                count.fired += 1;
                fired(hit, count.fired == 1);
            }
        }
        met
    }

    /// Counts that a rule injected its fault. Returns whether it is the rule's first.
    pub fn fire(&mut self, hit: Hit) -> bool {
        let Some(armed) = self.rules.iter_mut().find(|armed| armed.id == hit.id) else {
            return true;
        };
        armed.count.fired += 1;
        armed.count.fired == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(plan: &str) -> ArmedRules {
        ArmedRules::new(&plan.parse().unwrap_or_else(|error| panic!("{error}")))
    }

    fn counts(armed: &ArmedRules) -> Vec<(u64, u64)> {
        let counts = armed.counts().into_iter();
        counts.map(|count| (count.seen, count.fired)).collect()
    }

    #[test]
    fn first_verdict_decides_and_delays_add() {
        let mut armed = armed("*:delay=1ms;*:when=2:error=EIO;*:when=2+:error=EPERM;*:delay=2ms");
        let mut happened = Vec::new();
        let mut meet = |armed: &mut ArmedRules| {
            armed.meet(
                |_| true,
                |_| false,
                |hit, first| happened.push((hit.id, hit.occurrence, first)),
            )
        };
        assert_eq!(meet(&mut armed).verdict(), None);
        let second = meet(&mut armed);
        assert_eq!(
            second.decided.map(|hit| hit.id),
            Some(1),
            "the first rule decides"
        );
        assert_eq!(second.delay, Duration::from_millis(3), "delays after it count");
        assert_eq!(meet(&mut armed).decided.map(|hit| hit.id), Some(2));
        assert_eq!(counts(&armed), [(3, 3), (3, 1), (3, 1), (3, 3)]);
        let first = [(0, 1, true), (3, 1, true)];
        let second = [(0, 2, false), (1, 2, true), (3, 2, false)];
        let third = [(0, 3, false), (2, 3, true), (3, 3, false)];
        assert_eq!(happened, [&first[..], &second, &third].concat());
    }

    #[test]
    fn late_verdict_fires_only_once_counted() {
        let mut armed = armed("submit:lose");
        let late = |verdict| verdict == Verdict::Lose;
        let met = armed.meet(
            |_| true,
            late,
            |_, _| panic!("the submission may still be refused"),
        );
        let hit = met.decided.expect("the rule decides");
        assert_eq!(counts(&armed), [(1, 0)]);
        assert!(armed.fire(hit) && !armed.fire(hit));
        assert_eq!(counts(&armed), [(1, 2)]);
    }

    #[test]
    fn rearmed_plan_counts_from_one() {
        let mut armed = armed("*:when=1:error=EIO");
        let meet = |armed: &mut ArmedRules| armed.meet(|_| true, |_| false, |_, _| ()).verdict().is_some();
        assert!(meet(&mut armed) && !meet(&mut armed));
        armed.rearm();
        assert_eq!(counts(&armed), [(0, 0)]);
        assert!(meet(&mut armed), "the first match again");
        armed.disarm(0);
        assert!(armed.is_empty() && armed.count_of(0).is_none());
        assert_eq!(
            armed.arm(Rule::new(super::super::Target::Any, Verdict::Reset)),
            1,
            "no number twice"
        );
    }
}
