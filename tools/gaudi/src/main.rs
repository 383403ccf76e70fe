//! `gaudi`: one command line for Gaudi accelerators.
//!
//! - *Standard output is data only*: a table, or with `--json` one document; errors, notes and logs
//!   go to standard error.
//! - *Information never disturbs*: `list`, `info` and `doctor` open control nodes only, `topo`
//!   none.
//! - *A mock's figure says `mock`*, in every table and document.
//! - *The exit code says what kind of failure it was*: see [`exit`].

mod args;
mod args_rdma;
mod check;
mod columns;
mod common;
mod control;
mod copy;
mod demo;
mod dmabuf;
mod doctor;
mod exit;
mod generate;
mod info;
mod layers;
mod list;
mod nic;
mod nics;
mod output;
mod peer;
mod perf;
mod perf_rdma;
mod progress;
mod saved;
mod table;
mod topo;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command, Dmabuf};
use output::Output;

fn main() -> ExitCode {
    // A defect of ours is told apart from a failure of the device: 125, with the place that broke.
    std::panic::catch_unwind(run).unwrap_or(ExitCode::from(exit::OUR_BUG))
}

fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return print_usage(&error),
    };
    log_to_stderr(cli.common.verbose);
    let mut output = match Output::new(&cli.common) {
        Ok(output) => output,
        Err(error) => return exit::report(&error, None, ""),
    };
    let done = match &cli.command {
        None => list::run(&cli.common, &args::List::default(), &mut output),
        Some(Command::List(list)) => list::run(&cli.common, list, &mut output),
        Some(Command::Info(info)) => info::run(&cli.common, info, &mut output),
        Some(Command::Copy(copy)) => copy::run(&cli.common, copy, &mut output),
        Some(Command::Perf(perf)) => perf::run(&cli.common, perf, &mut output),
        Some(Command::Demo(demo)) => demo::run(&cli.common, demo, &mut output),
        Some(Command::Dmabuf {
            command: Dmabuf::List(list),
        }) => cli
            .common
            .without_layers("dmabuf list", false)
            .map_err(Into::into)
            .and_then(|()| dmabuf::list(list, &mut output)),
        Some(Command::Doctor(doctor)) => doctor::run(&cli.common, doctor, &mut output),
        Some(Command::Check(check)) => check::run(&cli.common, check, &mut output),
        Some(Command::Topo(topo)) => cli
            .common
            .without_layers("topo", true)
            .map_err(Into::into)
            .and_then(|()| topo::run(&cli.common, topo, &mut output)),
        Some(Command::Nics(nics)) => cli
            .common
            .without_layers("nics", false)
            .map_err(Into::into)
            .and_then(|()| nics::run(nics, cli.common.verbose > 0, &mut output)),
        Some(Command::Completions { shell }) => cli
            .common
            .without_layers("completions", false)
            .map_err(Into::into)
            .and_then(|()| generate::completions(*shell, &mut output)),
        Some(Command::Man { folder }) => cli
            .common
            .without_layers("man", false)
            .map_err(Into::into)
            .and_then(|()| generate::man(folder)),
    };
    // What works on a machine without a card, where a device is what is missing.
    let instead = match &cli.command {
        Some(Command::Topo(_)) => "gaudi topo --example",
        Some(Command::Nics(_)) => "gaudi nics --example",
        None | Some(Command::List(_)) => "gaudi list -d mock:gaudi2",
        _ => "-d mock:gaudi2",
    };
    let code = match done.and_then(|code| output.finish().map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => exit::report(&error, Some(&mut output), instead),
    };
    layers::report_unfired(cli.node());
    code
}

/// Prints what the parser returned: help or version, which are results, or what is wrong with the
/// command line.
fn print_usage(error: &clap::Error) -> ExitCode {
    let wanted = common::Color::in_words(std::env::args_os());
    let text = |terminal| match wanted.is_on(terminal) {
        true => error.render().ansi().to_string(),
        false => error.render().to_string(),
    };
    if error.use_stderr() {
        // The reader may be closed.
        let _ = write!(io::stderr(), "{}", text(io::stderr().is_terminal()));
        return ExitCode::from(exit::USAGE);
    }
    let text = text(io::stdout().is_terminal());
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(error) => exit::report(&output::OutputError::from(error).into(), None, ""),
    }
}

fn log_to_stderr(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = match std::env::var("GAUDI_LOG") {
        Ok(text) => EnvFilter::try_new(&text).unwrap_or_else(|error| {
            let _ = writeln!(io::stderr(), "GAUDI_LOG: invalid filter ({error}); ignored");
            EnvFilter::new(level)
        }),
        Err(_) => EnvFilter::new(level),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        // A closed log does not stop the program.
        .log_internal_errors(false)
        .init();
}
