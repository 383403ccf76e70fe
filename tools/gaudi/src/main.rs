//! `gaudi`: one command line for Gaudi accelerators.
//!
//! - *Standard output is data only*: a table, or with `--json` one document; errors, notes and logs
//!   go to standard error.
//! - *Information never disturbs*: `list`, `info` and `doctor` open control nodes only, `topo`
//!   none.
//! - *A mock's figure is marked `mock`*, in every table and document.
//! - *The exit code is the kind of the failure*: see [`exit`].

mod args;
mod args_rdma;
mod caps;
mod check;
mod common;
mod control;
mod copy;
mod decode;
mod demo;
mod diff;
mod dmabuf;
mod doctor;
mod exit;
mod faults;
mod faults_limit;
mod faults_page;
mod faults_program;
mod figures;
mod generate;
mod info;
mod layers;
mod list;
mod machine;
mod nic;
mod nics;
mod operation;
mod output;
mod peer;
mod perf;
mod perf_rdma;
mod picture;
mod progress;
mod report;
mod run;
mod saved;
mod stat;
mod table;
mod topo;
mod trace;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use common::{Common, Takes};
use output::Output;

/// One command line for Gaudi accelerators.
///
/// Without a command it prints the table of devices.
#[derive(Debug, Parser)]
#[command(
    name = "gaudi",
    version = env!("GAUDI_VERSION"),
    after_help = "Exit codes: 0 done; 1 the operation or a check failed; 2 usage; 3 no such device; \
                  4 not permitted; 5 device lost or reset; 6 timed out; 125 a defect of this program.\n\n\
                  Environment:\n  \
                  GAUDI_DEVICE            device spec that stands in for --device\n  \
                  GAUDI_MAPPING_TABLE     addresses of map:N, from gaudi list --mapping-table\n  \
                  HABANA_VISIBLE_DEVICES  accelN that the first free device may be: 0,1 or all\n  \
                  HABANA_VISIBLE_MODULES  its module ids: 0,1 or all\n  \
                  GAUDI_LOG               log filter instead of -v: gaudi::operation=debug\n  \
                  GAUDI_DMABUF_LEAKS      where set, dma-bufs still open at the end are listed\n  \
                  GAUDI_TRACE             trace file of programs on libhl-thunk.so\n  \
                  GAUDI_FAULT             fault plan of programs on libhl-thunk.so\n  \
                  GAUDI_TRACE_LIBRARY     preload library of --backend preload\n  \
                  GAUDI_TRACE_RING        set for traced programs: where they write\n  \
                  COLUMNS                 width of tables, also in a pipe\n  \
                  NO_COLOR                where set, no colour\n  \
                  CLICOLOR_FORCE          where set and NO_COLOR is not, colour in a pipe too\n\n\
                  Examples:\n  gaudi demo --file photo.jpg  # from device to device over RDMA, on two mocks\n  \
                  gaudi info -d mock:gaudi2    # what a device is, on a machine without one"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Makes [`Command`] of one row for each command: its arguments, its function, the common options
/// that it takes, and the hint for a machine without a card.
macro_rules! commands {
    ($($name:ident($arguments:ty), $run:path, $takes:ident, $instead:expr;)*) => {
        #[derive(Debug, Subcommand)]
        pub(crate) enum Command {
            $($name($arguments)),*
        }

        /// What each command takes, in the parser's order.
        const TAKES: &[Takes] = &[$(Takes::$takes),*];

        impl Command {
            fn run(&self, common: &Common, output: &mut Output) -> anyhow::Result<u8> {
                match self {
                    $(Self::$name(arguments) => {
                        common.check(&stringify!($name).to_lowercase(), Takes::$takes)?;
                        $run(common, arguments, output)
                    })*
                }
            }

            /// Returns what works without a card, for the error of a missing device.
            fn instead(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $instead),*
                }
            }
        }
    };
}

/// Replaces a missing card.
const MOCK: &str = "-d mock:gaudi2";

commands! {
    List(list::List), list::run, Layers, "gaudi list -d mock:gaudi2";
    Info(info::Arguments), info::run, Layers, MOCK;
    Caps(caps::Caps), caps::run, Layers, MOCK;
    Copy(args::Copy), copy::run, Layers, MOCK;
    Perf(args::Perf), perf::run, Layers, MOCK;
    Demo(args::Demo), demo::run, Layers, MOCK;
    Dmabuf(dmabuf::Dmabuf), dmabuf::run, Nothing, MOCK;
    Doctor(doctor::Doctor), doctor::run, Layers, MOCK;
    Check(args::Check), check::run, Layers, MOCK;
    Faults(faults::Faults), faults::run, Seed, "";
    Topo(topo::Topo), topo::run, Devices, "gaudi topo --example";
    Nics(nics::Nics), nics::run, Nothing, "gaudi nics --example";
    Trace(trace::Trace), trace::trace, Devices, MOCK;
    Record(trace::Record), trace::record, Nothing, MOCK;
    Decode(decode::Decode), decode::run, Devices, MOCK;
    Run(run::Run), run::run, Layers, MOCK;
    Replay(run::Replay), run::replay, Nothing, MOCK;
    Stat(stat::Stat), stat::run, Devices, MOCK;
    Diff(diff::Diff), diff::run, Devices, MOCK;
    Completions(generate::Completions), generate::completions, Nothing, MOCK;
    Man(generate::Man), generate::man, Nothing, MOCK;
}

impl Cli {
    /// Returns the parser. The help of a command does not list the common options that it rejects.
    pub(crate) fn parser() -> clap::Command {
        let mut parser = Self::command();
        let common: Vec<_> = parser
            .get_arguments()
            .filter(|option| option.is_global_set())
            .cloned()
            .collect();
        for (command, takes) in parser.get_subcommands_mut().zip(TAKES) {
            let rejected = common.iter().filter(|option| takes.rejects(option));
            *command = command
                .clone()
                .args(rejected.map(|option| option.clone().hide(true)));
        }
        parser
    }
}

fn main() -> ExitCode {
    // A panic is a defect of this program: it has its own exit code, and the hook prints its place.
    std::panic::catch_unwind(run).unwrap_or(ExitCode::from(exit::OUR_BUG))
}

fn run() -> ExitCode {
    let parsed = Cli::parser().try_get_matches();
    let mut cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return print_usage(&error),
    };
    if let Some(Command::Record(record)) = &mut cli.command {
        record.prepare(cli.common.output.take());
    }
    let is_quiet = matches!(&cli.command, Some(Command::Faults(faults)) if faults.is_quiet());
    log_to_stderr(cli.common.verbose, is_quiet);
    let mut output = match Output::new(&cli.common) {
        Ok(output) => output,
        Err(error) => return exit::report(&error, None, ""),
    };
    let command = cli
        .command
        .unwrap_or_else(|| Command::List(list::List::default()));
    let done = command.run(&cli.common, &mut output);
    let code = match done.and_then(|code| output.finish().map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => exit::report(&error, Some(&mut output), command.instead()),
    };
    // A command's second process names itself.
    layers::report_unfired(match &command {
        Command::Demo(demo) if demo.node_b => Some("node B"),
        Command::Perf(perf) if perf.of.is_peer() => Some("peer"),
        _ => None,
    });
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
        Err(error) => exit::report(&output::OutputError(error).into(), None, ""),
    }
}

/// Logs warnings, and more if `verbose`. A quiet command has no warnings unless it is verbose.
fn log_to_stderr(verbose: u8, is_quiet: bool) {
    use tracing_subscriber::EnvFilter;
    let level = match verbose {
        0 if is_quiet => "off",
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = match std::env::var("GAUDI_LOG") {
        Ok(text) => EnvFilter::try_new(&text).unwrap_or_else(|error| {
            // The reader may be closed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::parser().debug_assert();
    }

    /// Returns the long options that users of a command see, without those of every command.
    fn options(command: &clap::Command, global: bool) -> Vec<String> {
        let own = command
            .get_arguments()
            .filter(|option| option.is_global_set() == global);
        let shown = own.filter(|option| !option.is_hide_set());
        let names = shown.filter_map(|option| option.get_long().map(str::to_owned));
        names
            .filter(|name| !["help", "version"].contains(&name.as_str()))
            .collect()
    }

    #[test]
    fn reference_page_has_every_option() {
        let page = include_str!("../../../docs/src/reference/cli.md");
        let has = |text: &str, option: &str| {
            // `--size` is not `--sizes`.
            text.match_indices(&format!("--{option}")).any(|(at, found)| {
                let next = text[at + found.len()..].chars().next();
                !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-')
            })
        };
        let mut command = Cli::parser();
        command.build();
        for option in options(&command, true) {
            assert!(has(page, &option), "--{option} is not in the reference page");
        }
        let mut left: Vec<(String, &clap::Command)> = vec![(String::new(), &command)];
        let mut seen = 0;
        while let Some((path, command)) = left.pop() {
            let text: String = page
                .split("\n\n")
                .filter(|paragraph| {
                    // `perf write|read` is a paragraph of both.
                    let head = paragraph.strip_prefix("**`");
                    let Some(head) = head.and_then(|rest| rest.split('`').next()) else {
                        return false;
                    };
                    let mut words = head.split(' ');
                    let mut path = path.split_whitespace();
                    path.all(|name| {
                        words
                            .next()
                            .is_some_and(|word| word.split('|').any(|one| one == name))
                    })
                })
                .collect();
            if !path.is_empty() {
                assert!(
                    !text.is_empty(),
                    "gaudi {path} has no paragraph in the reference page"
                );
            }
            for option in options(command, false) {
                assert!(
                    has(&text, &option),
                    "gaudi {path}: --{option} is not in its paragraph of the reference page"
                );
                seen += 1;
            }
            let below = command
                .get_subcommands()
                .filter(|below| below.get_name() != "help");
            left.extend(below.map(|below| (format!("{path} {}", below.get_name()).trim().to_owned(), below)));
        }
        assert!(seen > 40, "{seen} options were looked for");
    }
}
