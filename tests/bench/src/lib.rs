//! What the stack costs, beside a peer in the same run.
//!
//! - *Ratios, not times*: ours and the peer's blocks alternate in random order in one process;
//!   medians and best blocks are shown, and a goal is missed only where both miss it. No time is
//!   remembered from another run.
//! - *A missing peer is reported as absent*: `PEER_HLTHUNK=path/to/libhl-thunk.so` names
//!   one, and `PEER_UCX` the folder that holds UCX's `usr`.
//! - *A stub kernel answers ioctls*, so that user time is seen alone: this program's own `ioctl`,
//!   which ours and the peer's library both call ([`stub`]).
//! - *Counts hold where times do not*: calls and allocations are counted in ordinary tests,
//!   instructions by valgrind where it is there.

pub mod count;
pub mod faults;
pub mod harness;
pub mod peer;
pub mod regions;
pub mod remote;
pub mod rows;
pub mod stub;
pub mod threads;
pub mod thunk;
pub mod tracing;
pub mod transport;
pub mod types;
pub mod ucx;
