//! The habanalabs driver as a model over an [`Engine`](gaudi_seam::Engine): seam 1 with no kernel
//! and no card, in this process.
//!
//! - *It answers as the driver does*: the same errno for the same misuse, the same addresses,
//!   handles and life-time rules. Each rule names the driver's file and function (Linux 7.3,
//!   drivers/accel/habanalabs). An operation that it lacks is `Unsupported` by name.
//! - *No constant of a chip*: they come from the engine's row of the table of chips.
//! - *The chip executes the bytes that user code wrote*: a submission is fetched from its command
//!   buffer through the chip's MMU.
//! - *A device is private to its process*: keyed by the spec's name and index, so that a second
//!   opener meets the first.
//! - *Exports are of the memfd that is the device memory*: up to 64 MiB as real dma-bufs if
//!   `/dev/udmabuf` exists, otherwise as stand-ins (see `gaudi_sys::standin`). They hold the device
//!   open in any process, as the driver's dma-bufs do.
//! - *Two clocks*: the machine's, or a virtual one that only a wait moves, so that no test sleeps.
//!
//! Submissions run in the caller's thread until their streams block; a device has one lock, and
//! devices share nothing.

mod address_space;
mod block;
mod buffers;
mod command_buffer;
mod debug;
mod driver_state;
mod engines;
mod error_info;
mod event;
mod export;
mod fault;
mod info;
mod interrupt;
mod layout;
mod memory;
mod mock;
mod node;
mod notifier;
mod open;
mod pages;
mod progress;
mod queue;
mod queue_entries;
mod registry;
mod reset;
mod signal;
mod state;
mod submissions;
mod sync_stream;
mod throttling;
mod time;
mod uaccess;
mod va;
mod wait;
mod wakeups;

pub use mock::Mock;
pub use open::Ledger;
pub use registry::{control, ledger, list, open, open_for_program};
