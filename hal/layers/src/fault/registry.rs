//! The fault layers of this process: the node that each wraps, and the counts of its rules.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gaudi_seam::{KernelIo, SharedIo};

use gaudi_seam::fault::RuleCount;

use super::state::{FaultHandle, Shared};

/// The most distinct rules that are counted.
const MOST_RULES: usize = 4096;

#[derive(Default)]
struct Registry {
    layers: Vec<(Weak<dyn KernelIo>, Weak<Shared>)>,
    /// Counts of the rules of closed layers.
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
/// layer closed is not counted.
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
        add(&mut counts, shared.rules());
    }
    counts
}

/// Adds the counts of the rules of a layer that is closing.
pub(super) fn close(rules: Vec<RuleCount>) {
    add(&mut lock().closed, rules);
}

fn add(counts: &mut Vec<RuleCount>, rules: Vec<RuleCount>) {
    for one in rules {
        if let Some(count) = counts.iter_mut().find(|count| count.rule == one.rule) {
            count.seen += one.seen;
            count.fired += one.fired;
        } else if counts.len() < MOST_RULES {
            counts.push(one);
        }
    }
}
