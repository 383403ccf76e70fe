//! A map from address ranges to values, and a cache on top of it.
//!
//! - [`RangeMap`]: a lookup hits an entry that contains the range, without a lock or an allocation.
//!   A [`Pin`] keeps the entry alive.
//! - [`Cache`]: a [`RangeMap`] with limits, eviction of the least recently used entry, and
//!   statistics. The caches of pinned host memory and of memory regions use it.

mod cache;
mod raw;
mod span;
mod sync;

pub use cache::{Cache, Held, Inserted, Limits, Stats};
pub use raw::{Class, Pin, RangeMap, Tag, prefer_cheap_removals};
pub use span::Span;
