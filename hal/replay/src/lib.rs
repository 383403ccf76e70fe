//! A recording (`.gcap`) as a device: answers each request as the recorded device did.
//!
//! - *Requests are compared by meaning*: operation and arguments, without addresses of the program,
//!   descriptors and timeouts, which differ between two runs of a program.
//! - *A node replays one open of the recording*: the first that was not replayed in this process.
//! - *Waits do not wait*: time is not replayed.
//! - *Memory is that of the recording, if the capture has it* (`+record=FILE,data`): the bytes that
//!   the device wrote are written at the end of the same operation. Without it, the memory keeps
//!   its content, and buffers of the device read as zeros.
//! - *A capture is untrusted*: it costs bounded memory, and an error names the offset.
#![forbid(unsafe_code)]

mod context;
mod key;
mod memory;
mod node;
mod open;
mod recording;

pub use open::{control, open, open_for_program, queries};
pub use recording::{MOST_BYTES, Recording};
