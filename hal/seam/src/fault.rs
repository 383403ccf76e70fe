//! Faults as data: a [`Plan`] of rules for the driver, the chip and the NIC.
//!
//! - *A [`Rule`] is matcher × schedule × verdict*, and prints as the line that it parses from. The
//!   same line works in a test, a device spec, `--fault` and the process of a peer.
//! - *Data only*: the fault layer injects the faults of operations, the modelled chip and the
//!   software NIC those of their events.
//! - *A pair that cannot meet is an error of parsing*, which names the reason: [`Verdict::meets`].
//!
//! ```text
//! plan    = rule *((";" / newline) rule)          "#" begins a comment, to the end of the line
//! rule    = target *(":" part)                    parts in any order, each once; one verdict
//! target  = OPERATION / "*" / "chip." EVENT / "nic." EVENT
//! part    = filter / schedule / verdict
//! filter  = FIELD "=" FIRST [".." [LAST]]         device, queue, addr, size, id; decimal or 0x
//!         / "flags=" BITS                         all of these bits are set
//! schedule = "when=" first [".." last] ["+" [step]]  which matches, counted from 1
//!         / "while=" STATE / "after=reset"        only matches in this state are counted
//!         / "p=" PERCENT / "seed=" N
//! verdict = see Verdict::KINDS
//! ```
//! `when=3` is the third only, `when=3..5` the third to the fifth, `when=3+` the third and all
//! after it, `when=3+2` the third, the fifth, the seventh; without `when` it is every one. `p=` is
//! the percentage of these that get the fault. Whether the nth does depends on `seed` and n alone,
//! so a rule means the same in every plan and, with one thread, in every run.
//!
//! ```
//! use gaudi_seam::fault::Rule;
//!
//! let rule: Rule = "mem_alloc:size=0x200000..:when=3..9+2:error=ENOMEM:p=50:seed=7".parse()?;
//! assert_eq!(rule.to_string(), "mem_alloc:size=2097152..:when=3..9+2:error=ENOMEM:p=50:seed=7");
//! # Ok::<(), gaudi_seam::fault::PlanError>(())
//! ```

mod armed;
mod filter;
mod meets;
mod piece;
mod plan;
mod schedule;
mod target;
mod verdict;

pub use armed::{ArmedRules, Hit, Met, RuleCount};
pub use filter::{EventFields, Field, FieldRange, Filter};
pub use piece::PlanError;
pub use plan::{Plan, Rule};
pub use schedule::{Schedule, State};
pub use target::{ChipEvent, NicEvent, Target};
pub use verdict::{NicStatus, Resource, Verdict, VerdictKind};
