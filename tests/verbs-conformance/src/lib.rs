//! One suite for every provider of verbs: what a NIC answers to what, as named cases over two ends.
//!
//! - *A case is a sentence* and asserts exact statuses and errnos; a sweep over parameters is one
//!   case.
//! - *Two contexts that reach each other are all it needs* ([`Fixture`]): two NICs, or one twice;
//!   the software NIC on any machine, rdma_rxe through libibverbs in the lab.
//! - *What a provider lacks is named and counted*, and so is every answer in which rdma_rxe differs
//!   from the architecture: [`DIFFERENCES`] has them all, with the reason.
//!
//! ```
//! use gaudi_verbs_conformance::{Dialect, Fixture, run};
//!
//! fn judge(a: gaudi_verbs::Context, b: gaudi_verbs::Context) {
//!     let report = run(&Fixture::new("rxe0", a, b, Dialect::Rxe));
//!     print!("{report}");
//!     assert!(report.is_good());
//! }
//! ```

mod bench;
pub mod cases;
mod dialect;
mod fixture;
mod suite;

pub use cases::{run, run_where};
pub use dialect::{Answer, DIFFERENCES, Dialect, Difference};
pub use fixture::{DmaBufMemory, Feature, Fixture};
pub use suite::{Case, Outcome, Report, Row, run_case};
