//! Property tests of code on a device under injected faults, with named invariants.
//!
//! - *Code under test is a closure over a [`Device`](gaudi_device::Device)*: [`check`] runs it for
//!   many inputs and [plans](gaudi_seam::fault::Plan), and shrinks both together. [`Nodes`] runs
//!   one closure for each of several nodes, and [`MemoryNodes`] one for all nodes in memory.
//! - *The world is the mock of `gaudi_mock`, restarted*: no second model, virtual time. A warm run
//!   makes no descriptor, mapping or thread.
//! - *Every [`Invariant`] is checked after every run*, and switched off by name only.
//! - *The same [`Case`] for a seed and a number*: `gaudi faults` runs those of `gaudi_device`,
//!   `gaudi_copy`, `gaudi_verbs` and `gaudi_remote`.
//! - *Deterministic in one thread*: threads that the code starts run as the machine schedules them.
//!
//! ```
//! use gaudi_faults::World;
//!
//! let mut world = World::new(&gaudi_faults::DEVICE.parse()?)?;
//! let plan = "submit:when=2:lose".parse()?;
//! let outcome = world.run(&plan, 0, |device| {
//!     let buffer = device.alloc(4096)?;
//!     device.fill(&buffer, 1)?.wait(std::time::Duration::from_secs(60))?;
//!     device.fill(&buffer, 2)?.wait(std::time::Duration::from_secs(60))
//! })?;
//! assert!(outcome.violations.is_empty(), "the lost copy is reported as hung");
//! assert_eq!(outcome.met.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bytes;
mod case;
mod check;
mod check_nodes;
mod completions;
mod coverage;
mod domains;
mod exports;
mod fabric;
mod invariant;
mod lifetimes;
mod memory_nodes;
mod nodes;
mod op;
mod peers;
mod record;
mod rig;
mod sequence;
/// Strategies of proptest: plans, sequences of operations, devices, topologies.
pub mod strategies;
mod transfers;
mod watch;
mod words;
mod world;

pub use case::{Case, Stack, Where};
pub use check::{Failure, check, check_in, find};
pub use check_nodes::NodesFailure;
pub use coverage::{Coverage, NicPair, Pair, Place};
pub use invariant::{Invariant, Violation};
pub use memory_nodes::MemoryNodes;
pub use nodes::{Code, Node, Nodes, NodesOutcome, Topology};
pub use op::{Kind, OPERATIONS, Op};
pub use record::{DeviceState, Met};
pub use world::{DEVICE, Outcome, World};
