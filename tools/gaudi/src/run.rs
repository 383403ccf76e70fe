//! `gaudi run` and `gaudi replay`: run an unmodified program with devices that a mock, a recording
//! or any other device spec answers.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Args;
use gaudi::{BackendSpec, DeviceSpec};
use gaudi_seam::{ReplayMatch, ReplaySpec};
use gaudi_supervisor::{Error, Supervisor};

use crate::common::Common;
use crate::info::chosen;
use crate::output::Output;
use crate::trace::{Watch, end_as};

/// Run a program with devices of any spec in place of the driver's.
///
/// The program need not be written for this library, and can be static. It finds the first device
/// as /dev/accel/accel0.
#[derive(Debug, Args)]
#[command(
    after_help = "The exit status is the program's.\n\nExamples:\n  gaudi run -d mock:gaudi2 -- ls /dev/accel\n  \
                  gaudi run -d mock:gaudi2 --fault submit:when=3:error=EIO -- ./program"
)]
pub(crate) struct Run {
    /// The program and its arguments.
    #[arg(last = true, value_name = "CMD", required = true)]
    program: Vec<OsString>,
}

/// Run a program with a device that answers from a recording.
#[derive(Debug, Args)]
#[command(
    after_help = "The exit status is the program's.\n\nExamples:\n  gaudi replay run.gcap -- ./program\n  \
                  gaudi replay --strict run.gcap -- ./program"
)]
pub(crate) struct Replay {
    /// The .gcap file.
    #[arg(value_name = "FILE")]
    file: String,
    /// End at the first call that the recording does not have next.
    #[arg(long)]
    strict: bool,
    /// The program and its arguments.
    #[arg(last = true, value_name = "CMD", required = true)]
    program: Vec<OsString>,
}

fn supervise(program: &[OsString], specs: Vec<DeviceSpec>, output: &mut Output) -> Result<u8> {
    // clap requires a program.
    let (name, arguments) = program.split_first().context("no program is given")?;
    let mut command = Command::new(name);
    command.args(arguments);
    // The program handles SIGINT itself.
    let watch = Watch::begin(None)?;
    let supervisor = Supervisor::spawn(command, specs).map_err(|error| match error {
        // The exit code depends on the device's error.
        Error::Device(error) => anyhow::Error::from(error),
        error => anyhow::Error::from(error).context(format!("cannot run {}", name.to_string_lossy())),
    })?;
    let status = supervisor.wait();
    drop(watch);
    end_as(Some(status?), output)
}

pub(crate) fn run(common: &Common, run: &Run, output: &mut Output) -> Result<u8> {
    supervise(&run.program, chosen(common)?, output)
}

pub(crate) fn replay(_: &Common, replay: &Replay, output: &mut Output) -> Result<u8> {
    let how = match replay.strict {
        true => ReplayMatch::Strict,
        false => ReplayMatch::Best,
    };
    let file = replay.file.clone();
    let spec = DeviceSpec::bare(BackendSpec::Replay(ReplaySpec { file, how }));
    supervise(&replay.program, vec![spec], output)
}
