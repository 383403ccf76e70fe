//! `vgaudi`: serves a modelled Gaudi2 to QEMU, and sends requests to a served card.
//!
//! Standard output is data only; notes and errors go to standard error. Exit codes are those of
//! `gaudi`.

mod args;
mod sockets;

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};
use gaudi_model::pci::ModelDevice;
use gaudi_model::pci::PciConfig;
use gaudi_seam::DeviceIo as _;
use gaudi_seam::fault::{ChipRules, Plan};
use nix::sys::signal::{SigSet, Signal};
use vgaudi::control;
use vgaudi::server::{Disconnect, Server};
use vgaudi::trace::Trace;

use args::{Ask, Cli, Command, Serve};
use sockets::Sockets;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const TIMED_OUT: u8 = 6;
/// Time that `ask` waits for an answer, and the largest answer in bytes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER: u64 = 4 << 20;

/// A failure with its own exit code and next step.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Refused {
    code: u8,
    what: String,
    help: String,
}

/// An error of the command line.
fn usage(what: impl Into<String>, help: impl Into<String>) -> anyhow::Error {
    let (what, help) = (what.into(), help.into());
    Refused {
        code: USAGE,
        what,
        help,
    }
    .into()
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            let _ = error.print(); // standard error may be closed
            return ExitCode::from(USAGE);
        }
        // Help and version are results.
        Err(help) => return report(printed(help.print()).map(|()| ExitCode::SUCCESS)),
    };
    report(match &cli.command {
        Command::Serve(options) => serve(options),
        Command::Ask(request) => ask(request),
        Command::Man { folder } => man(folder),
    })
}

fn report(done: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match done {
        Ok(code) => return code,
        Err(error) => error,
    };
    log(&format!("error: {error:#}"));
    let refused = error.downcast_ref::<Refused>();
    if let Some(refused) = refused {
        log(&format!("  help: {}", refused.help));
    }
    ExitCode::from(refused.map_or(FAILED, |refused| refused.code))
}

/// The result of printing: a closed pipe is not a failure, a full disk is.
fn printed(done: io::Result<()>) -> anyhow::Result<()> {
    match done.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

fn serve(options: &Serve) -> anyhow::Result<ExitCode> {
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGINT);
    ends.add(Signal::SIGTERM);
    // Before another thread starts: threads inherit the mask, so only the waiting thread receives
    // these signals.
    ends.thread_block().context("cannot block signals")?;
    let config = PciConfig {
        dram_bar: options.bar4,
        dram: options.dram,
        secured: !options.unsecured,
    };
    let plan = Plan {
        rules: options
            .faults
            .iter()
            .flat_map(|plan| &plan.rules)
            .copied()
            .collect(),
    };
    let rules = Arc::new(ChipRules::new(0, &plan, |rule| {
        log(&format!("fault injected by rule {rule}"));
    }));
    let card = match plan.rules.is_empty() {
        true => ModelDevice::new(config),
        false => ModelDevice::with_faults(config, Arc::clone(&rules)),
    };
    let card = Arc::new(card.map_err(|error| match error.kind() {
        gaudi_seam::ErrorKind::InvalidInput => usage(
            error.to_string(),
            "`vgaudi serve --help` lists the sizes that a card can have",
        ),
        _ => error.into(),
    })?);
    if let Some(control) = &options.control {
        if sockets::is_same(&options.socket, control) {
            return Err(usage(
                format!("{} cannot be both sockets", control.display()),
                "give --control another path",
            ));
        }
    }
    let places = Arc::new(Sockets::default());
    let listener = listen(&places, &options.socket)?;
    let control = options.control.as_deref();
    let control = control.map(|path| listen(&places, path)).transpose()?;
    let trace = match &options.trace {
        Some(path) => {
            let file = File::create(path).map_err(|error| {
                usage(
                    format!("cannot write {}: {error}", path.display()),
                    "give --trace a file in a folder that you may write to",
                )
            })?;
            Some(Arc::new(Trace::new(BufWriter::new(file))))
        }
        None => None,
    };
    let observe = |sign, bar, at, bytes: &[u8]| {
        if let Some(trace) = &trace {
            trace.line(sign, bar, at, bytes);
        }
    };
    if let Some(listener) = control {
        let card = card.clone();
        thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || control::serve(&card, &listener))
            .context("cannot start a thread")?;
    }
    let (to_flush, to_remove, at_end) = (trace.clone(), places.clone(), Arc::clone(&rules));
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            // An interrupt is the normal end.
            if ends.wait().is_ok() {
                report_unfired(&at_end);
                flush(to_flush.as_deref());
                to_remove.remove();
                std::process::exit(0);
            }
        })
        .context("cannot start a thread")?;
    log(&format!(
        "{} listens on {}: a model; its figures are not those of hardware",
        card.name(),
        options.socket.display()
    ));
    loop {
        let (stream, _) = listener.accept().context("cannot accept a connection")?;
        let server = Server::new(&*card, stream)
            .observed_by(&observe)
            .with_mappings(!options.no_mmap);
        let end = server.run(|| {
            print_notes(&card, options.verbose);
            card.is_busy() && card.run()
        });
        print_notes(&card, options.verbose);
        flush(trace.as_deref());
        match end {
            Disconnect::Closed => log("the guest disconnected"),
            Disconnect::Protocol(what) => log(&format!("the guest is dropped: {what}")),
            Disconnect::TimedOut => log("the guest is dropped: a message or an answer timed out"),
            Disconnect::Socket(error) => log(&format!("the guest is dropped: {error}")),
        }
        if options.once {
            let unknown: Vec<_> = card.with(|chip| chip.unknown_registers().collect());
            for (register, times) in unknown {
                log(&format!("unknown register {register:#x}, accessed {times} times"));
            }
            report_unfired(&rules);
            places.remove();
            return Ok(ExitCode::SUCCESS);
        }
        // The guest may still have the BARs' memory mapped, so the next guest gets new memory.
        card.power_cycle()?;
    }
}

/// Warns of each fault rule that injected nothing.
fn report_unfired(rules: &ChipRules) {
    for count in rules.counts().into_iter().filter(|count| count.fired == 0) {
        let (rule, event, seen) = (count.rule, count.rule.target, count.seen);
        log(&format!(
            "warning: the fault rule {rule} never fired: {event} matched {seen} times"
        ));
    }
}

fn flush(trace: Option<&Trace<BufWriter<File>>>) {
    if let Some(Err(error)) = trace.map(Trace::flush) {
        log(&format!("the trace is incomplete: {error}"));
    }
}

// Prints the card's notes. The card holds a bounded number, so they are drained in any case.
fn print_notes(card: &ModelDevice, verbose: bool) {
    while let Some(note) = card.next_note() {
        if verbose {
            log(&note.to_string());
        }
    }
}

fn log(line: &str) {
    let _ = writeln!(io::stderr(), "{line}"); // standard error may be closed
}

fn listen(places: &Sockets, path: &Path) -> anyhow::Result<UnixListener> {
    places.listen(path).map_err(|error| {
        let help = match &error {
            sockets::Error::Taken => "stop the server that uses it, or choose another path",
            sockets::Error::NotASocket => "choose another path: only a socket can be replaced",
            sockets::Error::Io(_) => "choose a path of less than 108 bytes in a folder that you may write to",
        };
        usage(format!("cannot listen on {}: {error}", path.display()), help)
    })
}

fn ask(request: &Ask) -> anyhow::Result<ExitCode> {
    let line = request.request.join(" ");
    if line.contains('\n') {
        return Err(usage("a request is one line", "send each of them by itself"));
    }
    let path = request.control.display();
    let mut stream = UnixStream::connect(&request.control).with_context(|| {
        format!("cannot reach a card at {path}; is `vgaudi serve --control {path}` running?")
    })?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let silent = |error: io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Refused {
            code: TIMED_OUT,
            what: format!(
                "the card at {path} did not answer within {} s",
                ANSWER_TIMEOUT.as_secs()
            ),
            help: "read the server's messages, or restart it".to_owned(),
        }
        .into(),
        _ => anyhow::Error::from(error).context(format!("the card at {path} closed the connection")),
    };
    // A card with too many clients answers with an error and disconnects before it reads.
    let sent = writeln!(stream, "{line}");
    let mut answer = String::new();
    BufReader::new(&stream)
        .take(ANSWER)
        .read_line(&mut answer)
        .map_err(silent)?;
    if answer.is_empty() {
        sent.map_err(silent)?;
    }
    let value: serde_json::Value = serde_json::from_str(&answer).context("the card's answer is not JSON")?;
    printed(writeln!(io::stdout(), "{value:#}"))?;
    let failed = value.get("error").is_some();
    Ok(ExitCode::from(if failed { FAILED } else { 0 }))
}

fn man(folder: &Path) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(Cli::command(), folder).map_err(|error| {
        usage(
            format!("cannot write man pages to {}: {error}", folder.display()),
            "name an existing folder that you may write to",
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
