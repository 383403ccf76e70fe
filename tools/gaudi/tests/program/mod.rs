//! The program as a test runs it, and its output without what differs from run to run.

#![allow(dead_code, reason = "each program of tests takes what it needs")]

use std::process::{Command, Output};

/// The environment that the program heeds, which is the caller's own.
pub(crate) const HEEDED: [&str; 5] = [
    "GAUDI_DEVICE",
    "GAUDI_MAPPING_TABLE",
    "GAUDI_LOG",
    "NO_COLOR",
    "CLICOLOR_FORCE",
];

/// The program, with nothing of that.
pub(crate) fn gaudi(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaudi"));
    for name in HEEDED {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

/// What it says and how it ends.
pub(crate) fn run(arguments: &[&str]) -> Output {
    gaudi(arguments).output().expect("the program starts")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// This run's own figures named and columns drawn together: both are as wide as the figures are.
pub(crate) fn settled(text: &str) -> String {
    let mut text = text.to_owned();
    for (pattern, name) in [
        (r"\d+\.\d+", "[TIME]"),
        (r"inode \d+", "inode [INODE]"),
        // Which of the two depends on whether this machine has /dev/udmabuf.
        (r"memfd stand-in \(no dma-buf\)|udmabuf", "[EXPORTER]"),
        (r"key 0x[0-9a-f]+", "key [KEY]"),
        (r"\d+ MiB", "[MEMORY]"),
        (r" {2,}", "  "),
    ] {
        text = regex::Regex::new(pattern)
            .unwrap()
            .replace_all(&text, name)
            .into_owned();
    }
    text
}
