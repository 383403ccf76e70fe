//! Completions and man pages, made from the command line's own definition.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit;
use crate::output::Output;

/// `gaudi completions SHELL`: the script for a shell, to standard output.
pub(crate) fn completions(shell: Shell, output: &mut Output) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gaudi", &mut script);
    output.bytes(&script)?;
    Ok(exit::DONE)
}

/// `gaudi man FOLDER`: a page for the program and one for each command.
pub(crate) fn man(folder: &Path) -> Result<u8> {
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("cannot write man pages to {}", folder.display()))?;
    Ok(exit::DONE)
}
