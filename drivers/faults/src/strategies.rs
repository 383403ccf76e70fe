//! Strategies of proptest: plans, sequences of operations, devices, topologies.

use gaudi_seam::DeviceSpec;
use gaudi_seam::fault::{Plan, Rule};
use proptest::collection::{SizeRange, vec};
use proptest::prelude::*;

use crate::nodes::Topology;
use crate::op::{OP, Op};
use crate::words::{self, RULE, Vocabulary};

/// A rule for an operation of code that copies. It shrinks to `submit:when=1:error=EIO`.
pub fn rule() -> impl Strategy<Value = Rule> + Clone {
    any::<[u16; RULE]>().prop_map(|words| words::rule(words, Vocabulary::IN_MEMORY))
}

/// Up to `most` rules. It shrinks to fewer and simpler ones.
pub fn plans(most: usize) -> impl Strategy<Value = Plan> + Clone {
    vec(rule(), 0..=most).prop_map(|rules| Plan { rules })
}

/// A rule for an event of a software NIC.
pub fn nic_rule() -> impl Strategy<Value = Rule> + Clone {
    any::<[u16; RULE]>().prop_map(words::nic_rule)
}

/// A plan for each of `nodes` nodes, with up to `most` rules for its cards and NICs.
pub fn node_plans(nodes: usize, most: usize) -> impl Strategy<Value = Vec<Plan>> + Clone {
    let rules = vec(prop_oneof![rule(), nic_rule()], 0..=most);
    vec(rules.prop_map(|rules| Plan { rules }), nodes)
}

/// One to three nodes, each with one or two cards and NICs. It shrinks to one of each.
pub fn topologies() -> impl Strategy<Value = Topology> + Clone {
    let counts = (1_usize..=3, 1_usize..=2, 1_usize..=2);
    counts.prop_map(|(nodes, cards, nics)| Topology { nodes, cards, nics })
}

/// An operation of `gaudi_device`.
pub fn operation() -> impl Strategy<Value = Op> + Clone {
    any::<[u16; OP]>().prop_map(Op::of)
}

/// A sequence of operations of `gaudi_device`.
pub fn sequences(len: impl Into<SizeRange>) -> impl Strategy<Value = Vec<Op>> + Clone {
    vec(operation(), len)
}

/// A device for a [`World`](crate::World): memory of one to four pages, and either order of the
/// chip's work. Each order of work needs a world of its own.
pub fn devices() -> impl Strategy<Value = DeviceSpec> + Clone {
    (1_u32..=4, any::<bool>()).prop_map(|(pages, stepped)| {
        let order = if stepped { "&order=stepped" } else { "" };
        let spec = format!("mock?dram={}MiB&clock=virtual{order}", pages * 768);
        spec.parse()
            .unwrap_or_else(|error| unreachable!("{spec}: {error}"))
    })
}
