//! The one map from address ranges to values, and the cache on it.
//!
//! - [`RangeMap`]: any range inside an entry's is a hit, without a lock and without an allocation;
//!   a [`Pin`] keeps what was hit.
//! - [`Cache`]: the same with limits, eviction of what was longest unused, and statistics. What
//!   pins host memory and what registers memory regions stand on it.

mod cache;
mod raw;
mod span;
mod sync;

pub use cache::{Cache, Held, Inserted, Limits, Stats};
pub use raw::{Pin, RangeMap, Tag};
pub use span::Span;
