//! One command line for Gaudi accelerators.

fn main() {}
