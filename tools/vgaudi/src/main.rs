//! `vgaudi`: serves a modelled Gaudi2 to QEMU, and asks a card that is served.
//!
//! Standard output is data only; notes and errors go to standard error. Exit codes are those of `gaudi`.

mod args;

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, bail};
use clap::{CommandFactory as _, Parser as _};
use gaudi_model::pci::PciConfig;
use gaudi_seam::DeviceIo;
use gaudi_vfio::ModelDevice;
use vgaudi::control;
use vgaudi::server::{Gone, Server};
use vgaudi::trace::Traced;

use args::{Ask, Cli, Command, Fault, Serve};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(said) => {
            let _ = said.print(); // nobody may be left to read it
            return ExitCode::from(if said.use_stderr() { USAGE } else { 0 });
        }
    };
    let done = match &cli.command {
        Command::Serve(options) => serve(options),
        Command::Ask(request) => ask(request),
        Command::Man { folder } => man(folder),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn serve(options: &Serve) -> anyhow::Result<ExitCode> {
    let config = PciConfig {
        dram_bar: options.bar4,
        secured: !options.unsecured,
        // A part of the card, as the guest resets it before it looks.
        hang_firmware: options.faults.contains(&Fault::HangFirmware),
    };
    let card = Arc::new(ModelDevice::new(config)?);
    let served: Arc<dyn DeviceIo> = match &options.trace {
        Some(file) => {
            let out = File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
            Arc::new(Traced::new(card.clone(), BufWriter::new(out)))
        }
        None => card.clone(),
    };
    if let Some(path) = &options.control {
        let (listener, card) = (listen(path)?, card.clone());
        thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || control::serve(&card, &listener))
            .context("cannot start a thread")?;
    }
    let listener = listen(&options.socket)?;
    say(&format!(
        "{} listens on {}: a model, no figure of it is hardware's",
        served.name(),
        options.socket.display()
    ));
    loop {
        let (stream, _) = listener.accept().context("cannot take a guest")?;
        let gone = Server::new(&*served, stream).run(|| {
            tell(&card, options.verbose);
            card.is_busy() && card.run()
        });
        tell(&card, options.verbose);
        match gone {
            Gone::Closed => say("the guest is gone"),
            Gone::Protocol(what) => say(&format!("the guest is dropped: {what}")),
            Gone::Socket(error) => say(&format!("the guest is dropped: {error}")),
        }
        if options.once {
            let unknown: Vec<_> = card.with(|chip| chip.unknown_registers().collect());
            for (register, times) in unknown {
                say(&format!(
                    "register {register:#x}, which no row knows, met {times} times"
                ));
            }
            return Ok(ExitCode::SUCCESS);
        }
    }
}

// What the card has to tell; it keeps a bounded number of notes, so they are taken even where nobody wants them.
fn tell(card: &ModelDevice, verbose: bool) {
    while let Some(note) = card.next_note() {
        if verbose {
            say(&note.to_string());
        }
    }
}

fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}"); // nobody may be left to read it
}

/// Listens; a socket that a server before left behind is replaced, any other file is not.
fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    if let Ok(there) = fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            bail!("{} is there and is no socket", path.display());
        }
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))
}

fn ask(request: &Ask) -> anyhow::Result<ExitCode> {
    let path = request.control.display();
    let mut stream = UnixStream::connect(&request.control).with_context(|| {
        format!("cannot reach a card at {path}; is `vgaudi serve --control {path}` running?")
    })?;
    writeln!(stream, "{}", request.request.join(" "))?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer)?;
    let value: serde_json::Value = serde_json::from_str(&answer).context("the card's answer is no JSON")?;
    writeln!(io::stdout(), "{value:#}")?;
    let failed = value.get("error").is_some();
    Ok(ExitCode::from(if failed { FAILED } else { 0 }))
}

fn man(folder: &Path) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("cannot write man pages to {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
