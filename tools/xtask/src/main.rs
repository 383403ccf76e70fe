//! Test, lint and package the workspace.

fn main() {}
