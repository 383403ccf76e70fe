//! An open node of any device spec behind a real file descriptor, for programs that use the
//! driver's system calls.
//!
//! - *The program owns the descriptor*: it can duplicate, pass, map and close it without calling
//!   this crate. [`VirtualNode::is_released`] reports when all references are closed.
//! - *On the mock it is the buffer file*, reopened, with a lock ([`gaudi_sys::standin`]). A handle
//!   is an offset in that file, so mmap(2) of a handle maps the object.
//! - *On the driver it is a duplicate of the driver's descriptor*, for specs with layers.
//! - *A control node of the mock cannot be mapped*: its descriptor is a socket, on which mmap(2)
//!   fails with `ENODEV` as on the driver's control node.
//!
//! docs/src/reference/program-fds.md lists the differences from the driver.

mod backing;
mod node;

pub use node::VirtualNode;
