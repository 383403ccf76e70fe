//! What the command line says.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// One command line for Gaudi accelerators.
///
/// Without a command it prints the table of devices.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 done; 1 the operation or a check failed; 2 usage; 3 no such device; 4 not permitted;\n\
                  5 device lost or reset; 6 timed out; 125 a defect of this program.\n\n\
                  Examples:\n  gaudi demo --file photo.jpg        send a file from device to device over RDMA, on two mocks\n  \
                  gaudi info -d mock:gaudi2          what a device is, on a machine without one"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Device: kernel:N, kernel:BUS, kernel?module=N, map:N or mock:gaudi2?key=value&…; may be repeated where a command takes several.
    #[arg(short, long = "device", value_name = "SPEC", global = true)]
    pub(crate) devices: Vec<String>,
    /// Print one JSON document instead of a table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Write the result to a file instead of standard output.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) output: Option<PathBuf>,
    /// Log more: once what happens, twice how, three times everything.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// No notes on standard error.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Colour on a terminal (NO_COLOR and CLICOLOR_FORCE are heeded).
    #[arg(long, value_enum, default_value_t = Color::Auto, value_name = "WHEN", global = true)]
    pub(crate) color: Color,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the devices, by PCI address.
    #[command(
        after_help = "Examples:\n  gaudi list\n  gaudi list -d mock:gaudi2 -d 'mock:gaudi2?index=1' --json"
    )]
    List,
    /// What a device is and how it is, through its control node.
    Info(Info),
    /// Copy bytes with the DMA engines, and check them.
    Copy(Copy),
    /// Send a file from device to device over RDMA, between two processes.
    Demo(Demo),
    /// Look at dma-bufs, of any exporter.
    Dmabuf {
        #[command(subcommand)]
        command: Dmabuf,
    },
    /// Look for what stands between this machine and a working card, with the command that mends it.
    Doctor(Doctor),
    /// Print the completion script of a shell.
    #[command(
        after_help = "Examples:\n  gaudi completions bash > ~/.local/share/bash-completion/completions/gaudi\n  gaudi completions fish | source"
    )]
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages: one for the program, one for each command.
    #[command(
        after_help = "Examples:\n  gaudi man ~/.local/share/man/man1\n  gaudi man . && man ./gaudi-demo.1"
    )]
    Man {
        /// Where to; the folder must be there.
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gaudi info -d mock:gaudi2\n  gaudi info -d kernel:0 --json")]
pub(crate) struct Info {
    /// Print again every so many seconds, until interrupted.
    #[arg(long = "loop", value_name = "SEC", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = seconds)]
    pub(crate) every: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gaudi copy -d mock:gaudi2 --size 64MiB\n  gaudi copy -d mock:gaudi2 host device --size 4097 --to-offset 3"
)]
pub(crate) struct Copy {
    /// Where the bytes are; without it every direction is taken in turn.
    #[arg(value_enum, requires = "to")]
    pub(crate) from: Option<Place>,
    /// Where they go.
    #[arg(value_enum)]
    pub(crate) to: Option<Place>,
    /// How many: a number of bytes, or with KiB, MiB, GiB.
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = bytes)]
    pub(crate) size: u64,
    /// First byte in the source.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    pub(crate) from_offset: u64,
    /// First byte in the destination.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    pub(crate) to_offset: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// Host memory, pinned.
    Host,
    /// Device memory.
    Device,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gaudi demo\n  gaudi demo --file photo.jpg --save received.jpg\n  gaudi demo --corrupt nic"
)]
pub(crate) struct Demo {
    /// The file to send; without it 32 MiB are made up.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Where node B writes what it received.
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Flip one bit at a stage: the demo must fail and name it.
    #[arg(long, value_enum, value_name = "STAGE")]
    pub(crate) corrupt: Option<Stage>,
    /// Be node B: the socket to node A is standard input.
    #[arg(long, hide = true)]
    pub(crate) node_b: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dmabuf {
    /// List every dma-buf of this machine with the processes and devices that hold it, and name what could not be read.
    List(DmabufList),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Root sees every process and the kernel's own list.\n\nExamples:\n  sudo gaudi dmabuf list\n  gaudi dmabuf list --loop=5 --json"
)]
pub(crate) struct DmabufList {
    /// Print again every so many seconds, until interrupted.
    #[arg(long = "loop", value_name = "SEC", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = seconds)]
    pub(crate) every: Option<Duration>,
    /// Look at another root than `/`: a copy of a machine's /proc and /sys.
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 1 where a line fails.\n\nExamples:\n  gaudi doctor\n  gaudi doctor --json"
)]
pub(crate) struct Doctor {
    /// Look at another root than `/`: a copy of a machine's /proc, /sys, /dev and /boot.
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) root: Option<PathBuf>,
}

/// The five stages of the way, in order.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Stage {
    /// File → pinned host memory of node A, by the CPU.
    HostA,
    /// Host → device A, by its DMA engine.
    DmaA,
    /// Device A → device B, by the NICs through dma-bufs.
    Nic,
    /// Device B → pinned host memory of node B, by its DMA engine.
    DmaB,
    /// Host → result, by the CPU.
    HostB,
}

impl Stage {
    pub(crate) const ALL: [Self; 5] = [Self::HostA, Self::DmaA, Self::Nic, Self::DmaB, Self::HostB];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HostA => "host-a",
            Self::DmaA => "dma-a",
            Self::Nic => "nic",
            Self::DmaB => "dma-b",
            Self::HostB => "host-b",
        }
    }
}

/// A pause of a millisecond to a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let wanted = "wanted seconds from 0.001 to 86400";
    let number: f64 = text.parse().map_err(|_| wanted.to_owned())?;
    if (0.001..=86_400.0).contains(&number) {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err(wanted.to_owned())
    }
}

/// A number of bytes, as device specs write it.
fn bytes(text: &str) -> Result<u64, String> {
    gaudi_seam::spec::parse_bytes(text).map_err(|error| format!("{}; {}", error.problem, error.wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn pauses_are_times() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e30", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong:?} is refused");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("4097"), Ok(4097));
        assert_eq!(bytes("16MiB"), Ok(16 << 20));
        for wrong in ["", "MiB", "1MB", "-1", "99999999999GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong:?} is refused");
        }
    }
}
