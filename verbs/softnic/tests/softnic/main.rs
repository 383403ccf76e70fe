//! The software NIC over its cable: two in one process, two in two, and hostile bytes.

mod all_to_all;
mod cables;
mod errors;
mod fabric;
mod faults;
mod hostile;
mod hostile_wire;
mod keys;
mod node;
mod operations;
mod peer;
mod processes;
mod responder;
