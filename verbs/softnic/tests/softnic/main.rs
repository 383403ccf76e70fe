//! The software NIC over its cable: two in one process, two in two, and hostile bytes.

mod errors;
mod hostile;
mod node;
mod operations;
mod processes;
