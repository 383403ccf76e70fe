//! What a descriptor for a program is made of.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gaudi_sys::Memfd;

/// The file behind a node that [`open_for_program`](crate::open_for_program) opened.
#[derive(Debug)]
pub enum ProgramFile {
    /// The driver's file: a duplicate of the node's descriptor.
    Driver(OwnedFd),
    /// The mock's file of buffers. Handles of the node are offsets in it; nothing lies in its first
    /// page.
    Buffers(Arc<Memfd>),
    /// The node maps nothing: a control node of the mock.
    None,
}

/// For whom a node is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Code above seam 1, which maps through [`KernelIo::mmap`](gaudi_seam::KernelIo::mmap).
    Hal,
    /// The same, for queries that describe the device to a program before it starts.
    Describer,
    /// A program that makes system calls on a descriptor.
    Program,
}
