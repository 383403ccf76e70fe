//! The fault layers of this process: the node that each wraps, and the counts of its rules.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gaudi_seam::{KernelIo, SharedIo};

use gaudi_seam::fault::RuleCount;

use super::state::{FaultHandle, Shared};

/// The most distinct rules of closed layers that are counted: those that closed last.
const MOST_RULES: usize = 4096;

#[derive(Default)]
struct Registry {
    layers: Vec<(Weak<dyn KernelIo>, Weak<Shared>)>,
    /// Counts of the rules of closed layers, in the order in which their last layer closed.
    closed: Vec<RuleCount>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    layers: Vec::new(),
    closed: Vec::new(),
});

fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that the layers with these handles wrap `io`.
pub(crate) fn record(io: &SharedIo, handles: &[FaultHandle]) {
    if handles.is_empty() {
        return;
    }
    let mut registry = lock();
    registry.layers.retain(|(_, shared)| shared.strong_count() > 0);
    for handle in handles {
        handle.0.record();
        registry
            .layers
            .push((Arc::downgrade(io), Arc::downgrade(&handle.0)));
    }
}

/// Returns the handles of the fault layers of a [`Stack`](crate::Stack) around a node, the
/// innermost first.
///
/// Empty for a node without such a layer, and for a node that another layer wraps: pass the node
/// that was opened.
pub fn handles(io: &SharedIo) -> Vec<FaultHandle> {
    let address = Arc::as_ptr(io).cast::<()>();
    let registry = lock();
    let own = registry.layers.iter().filter(|(node, shared)| {
        // The node of a closed layer may have had the same address.
        shared.strong_count() > 0 && std::ptr::eq(node.as_ptr().cast::<()>(), address)
    });
    own.filter_map(|(_, shared)| shared.upgrade().map(FaultHandle))
        .collect()
}

/// Returns the counts of each rule in this process: the sum over every layer of a
/// [`Stack`](crate::Stack) with that rule, open or closed. A rule that was disarmed before its
/// layer closed is not counted. Of closed layers, the newest 4096 rules are counted.
pub fn tally() -> Vec<RuleCount> {
    let registry = lock();
    let open: Vec<Arc<Shared>> = registry
        .layers
        .iter()
        .filter_map(|(_, shared)| shared.upgrade())
        .collect();
    let mut counts = registry.closed.clone();
    // Dropping the last reference to a layer, which `open` may hold, locks the registry.
    drop(registry);
    for shared in open {
        for one in shared.rules() {
            match counts.iter_mut().find(|count| count.rule == one.rule) {
                Some(count) => add(count, &one),
                None => counts.push(one),
            }
        }
    }
    counts
}

/// Adds the counts of the rules of a layer that is closing.
pub(super) fn close(rules: Vec<RuleCount>) {
    add_newest(&mut lock().closed, rules);
}

/// Moves rules to the end of `counts`, and drops the oldest ones if there are too many.
fn add_newest(counts: &mut Vec<RuleCount>, rules: Vec<RuleCount>) {
    for mut one in rules {
        if let Some(at) = counts.iter().position(|count| count.rule == one.rule) {
            add(&mut one, &counts.remove(at));
        }
        counts.push(one);
    }
    counts.drain(..counts.len().saturating_sub(MOST_RULES));
}

fn add(count: &mut RuleCount, other: &RuleCount) {
    count.seen += other.seen;
    count.fired += other.fired;
}

#[cfg(test)]
mod tests {
    use gaudi_seam::fault::ArmedRules;

    use super::*;

    #[test]
    fn newest_rules_are_counted() {
        let rule = |nth: usize| {
            let plan = format!("submit:when={nth}:lose").parse().expect("a plan");
            let mut count = ArmedRules::new(&plan).counts()[0];
            count.fired = 1;
            count
        };
        let mut counts = Vec::new();
        for nth in 1..=MOST_RULES {
            add_newest(&mut counts, vec![rule(nth)]);
        }
        // The oldest one is used again, and then a new one.
        add_newest(&mut counts, vec![rule(1), rule(MOST_RULES + 1)]);
        let fired = |nth| {
            let found = counts.iter().find(|count| count.rule == rule(nth).rule);
            found.map(|count| count.fired)
        };
        assert_eq!(counts.len(), MOST_RULES);
        assert_eq!(fired(1), Some(2));
        assert_eq!(fired(2), None);
        assert_eq!(fired(MOST_RULES + 1), Some(1));
    }
}
