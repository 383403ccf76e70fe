//! An open node of any device spec behind a real file descriptor, for programs that make the
//! driver's system calls.
//!
//! - *The descriptor is the program's*: it may duplicate, pass, map and close it without a call of
//!   this crate. [`VirtualNode::is_released`] reports that nothing of it is left.
//! - *On the mock it is the file of buffers*, opened anew, with a lock ([`gaudi_sys::standin`]). A
//!   handle is an offset in it, so that mmap(2) of a handle maps the object.
//! - *On the driver it is a duplicate of the driver's*, for specs with layers.
//! - *A control node of the mock maps nothing*: its descriptor is a socket, whose mmap fails with
//!   `ENODEV` as the driver's does.
//!
//! What differs from the driver is listed in docs/src/reference/program-fds.md.

mod backing;
mod node;

pub use node::VirtualNode;
