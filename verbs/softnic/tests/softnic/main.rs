//! The software NIC over its cable: two in one process, two in two, and hostile bytes.

mod all_to_all;
mod errors;
mod fabric;
mod hostile;
mod node;
mod operations;
mod processes;
