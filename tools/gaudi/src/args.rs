//! The arguments of the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{Common, bytes, seconds};
use crate::output::Output;
use clap::{Args, Parser, Subcommand, ValueEnum};

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
                  GAUDI_DEVICE         device spec that stands in for --device\n  \
                  GAUDI_MAPPING_TABLE  addresses of map:N, from gaudi list --mapping-table\n  \
                  GAUDI_LOG            log filter instead of -v: gaudi::operation=debug\n  \
                  GAUDI_DMABUF_LEAKS   where set, dma-bufs still open at the end are listed\n  \
                  COLUMNS              width of tables, also in a pipe\n  \
                  NO_COLOR             where set, no colour\n  \
                  CLICOLOR_FORCE       where set and NO_COLOR is not, colour in a pipe too\n\n\
                  Examples:\n  gaudi demo --file photo.jpg  # from device to device over RDMA, on two mocks\n  \
                  gaudi info -d mock:gaudi2    # what a device is, on a machine without one"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

impl Cli {
    /// The name of this process, if it is the second of a command's two processes.
    pub(crate) fn node(&self) -> Option<&'static str> {
        match &self.command {
            Some(Command::Demo(demo)) if demo.node_b => Some("node B"),
            Some(Command::Perf(perf)) => match &perf.of {
                Measured::Write(rdma)
                | Measured::Read(rdma)
                | Measured::Send(rdma)
                | Measured::Atomic(rdma)
                    if rdma.serve =>
                {
                    Some("peer")
                }
                _ => None,
            },
            _ => None,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the devices, by PCI address.
    List(List),
    /// Show a device's properties and state, through its control node.
    Info(Info),
    /// Copy bytes with the DMA engines, and verify them.
    Copy(Copy),
    /// Measure copies of a device, and RDMA between two nodes.
    Perf(Perf),
    /// Send a file from device to device over RDMA, between two processes.
    Demo(Demo),
    /// Show dma-bufs, of any exporter.
    Dmabuf {
        #[command(subcommand)]
        command: Dmabuf,
    },
    /// Check what prevents a card from working, and print the command that fixes it.
    Doctor(Doctor),
    /// Run conformance cases on a device, and compare its answers with the mock's.
    Check(Check),
    /// Draw the PCI tree, and show which NIC reaches which accelerator's memory, or why it does
    /// not.
    Topo(Topo),
    /// List RDMA devices: ports, addresses, whether they register dma-bufs, and which cards' memory
    /// they reach.
    Nics(crate::args_rdma::Nics),
    /// Print the completion script of a shell.
    #[command(
        after_help = "Examples:\n  gaudi completions bash > ~/.local/share/bash-completion/completions/gaudi\n  gaudi completions zsh > _gaudi"
    )]
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages: one for the program, one for each command.
    #[command(
        after_help = "Examples:\n  gaudi man ~/.local/share/man/man1\n  gaudi man . && ls gaudi-perf-copy.1"
    )]
    Man {
        /// An existing folder.
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

#[derive(Debug, Default, Args)]
pub(crate) struct Again {
    /// Print again every so many seconds, until interrupted.
    #[arg(long = "loop", value_name = "SEC", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = seconds)]
    pub(crate) every: Option<Duration>,
}

impl Again {
    /// Waits for the next time; false where there is none.
    pub(crate) fn pause(&self, output: &mut Output) -> anyhow::Result<bool> {
        let Some(pause) = self.every else {
            return Ok(false);
        };
        output.finish()?;
        std::thread::sleep(pause);
        Ok(true)
    }
}

#[derive(Debug, Default, Args)]
#[command(
    after_help = "Examples:\n  gaudi list -d mock:gaudi2 -d 'mock:gaudi2?index=1' --json\n  \
                        export GAUDI_MAPPING_TABLE=\"$(gaudi list --mapping-table)\""
)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) again: Again,
    /// Print the GAUDI_MAPPING_TABLE in force; where none is set, the one that this machine's
    /// devices make.
    #[arg(long, conflicts_with_all = ["every", "devices"])]
    pub(crate) mapping_table: bool,
    /// Print the device specs of this machine alone, one a line, for scripts; no device is opened.
    #[arg(long, conflicts_with_all = ["every", "devices", "mapping_table", "json"])]
    pub(crate) names: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gaudi info -d mock:gaudi2\n  \
                  gaudi info -d mock:gaudi2 -Q name,temperature.aip,memory.used")]
pub(crate) struct Info {
    #[command(flatten)]
    pub(crate) again: Again,
    /// Print these facts only, as CSV; the names are those of `hl-smi -Q`. A wrong name lists all.
    #[arg(short = 'Q', long, value_name = "FIELD", value_delimiter = ',', hide_possible_values = true,
          value_parser = clap::builder::PossibleValuesParser::new(crate::info::query_names()))]
    pub(crate) query: Vec<String>,
    /// Form of the CSV: csv, and with commas between them noheader and nounits.
    #[arg(
        long,
        value_name = "FORMAT",
        value_delimiter = ',',
        default_value = "csv",
        value_parser = ["csv", "noheader", "nounits"],
        hide_possible_values = true,
        requires = "query"
    )]
    pub(crate) format: Vec<String>,
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
    /// How many: a number of bytes, or with k (KiB), m (MiB), g (GiB): 1.5MiB.
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = bytes)]
    pub(crate) size: u64,
    /// First byte in the source.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    pub(crate) from_offset: u64,
    /// First byte in the destination.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    pub(crate) to_offset: u64,
    /// Seconds that one copy may take.
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Perf {
    #[command(subcommand)]
    pub(crate) of: Measured,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Measured {
    /// How long copies take, by direction and size, beside memcpy in the same run.
    Copy(PerfCopy),
    /// RDMA writes: bytes a second, and the time of one.
    Write(crate::args_rdma::PerfRdma),
    /// RDMA reads.
    Read(crate::args_rdma::PerfRdma),
    /// Messages: sends into receives.
    Send(crate::args_rdma::PerfRdma),
    /// Fetch-and-add of 8 bytes.
    Atomic(crate::args_rdma::PerfRdma),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gaudi perf copy -d mock:gaudi2 --sizes 4KiB,64KiB,1MiB\n  \
                  gaudi perf copy -d mock:gaudi2 host device --iterations 100 --json"
)]
pub(crate) struct PerfCopy {
    /// Where the bytes are; without it every direction is measured.
    #[arg(value_enum, requires = "to")]
    pub(crate) from: Option<Place>,
    /// Where they go.
    #[arg(value_enum)]
    pub(crate) to: Option<Place>,
    /// Sizes to measure, with commas between them.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = bytes,
          default_value = "4KiB,64KiB,1MiB,16MiB,64MiB")]
    pub(crate) sizes: Vec<u64>,
    /// Copies of each row; without it as many as fit in a quarter of a second, 10 to 1000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) iterations: Option<u32>,
    /// Copies of each row before those that count.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) warm_up: u32,
    /// Pages of the host memory; where they are not there, smaller ones, and the result says so.
    #[arg(long, value_enum, default_value_t = HostPages::Small, value_name = "KIND")]
    pub(crate) pages: HostPages,
    /// Seconds that one copy may take.
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostPages {
    /// 4 KiB.
    Small,
    /// 4 KiB, joined to huge ones where the kernel can.
    Transparent,
    /// Reserved ones of 2 MiB.
    #[value(name = "2MiB")]
    Huge2MiB,
    /// Reserved ones of 1 GiB.
    #[value(name = "1GiB")]
    Huge1GiB,
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
    after_help = "A card has one user at a time, so each node needs its own, node A's first:\n  \
                  gaudi demo -d kernel:0 -d kernel:1 --nic NAME\n\n\
                  Examples:\n  gaudi demo --file photo.jpg --save received.jpg\n  gaudi demo --corrupt nic || echo caught"
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
    /// RDMA device, as `gaudi nics` names it; `softnic` is a software NIC over a socket.
    #[arg(long, value_name = "NAME", default_value = "softnic")]
    pub(crate) nic: String,
    /// RDMA device of node B; without it the same.
    #[arg(long, value_name = "NAME")]
    pub(crate) peer_nic: Option<String>,
    /// Row of the port's table of addresses.
    #[arg(long, value_name = "N")]
    pub(crate) gid_index: Option<u32>,
    /// Be node B: the socket to node A is standard input.
    #[arg(long, hide = true)]
    pub(crate) node_b: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dmabuf {
    /// List every dma-buf of this machine with the processes and devices that hold it, and name
    /// what could not be read.
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
    after_help = "Exits with 1 where a line fails. With --nic it opens the device for use: it must be free.\n\n\
                  Examples:\n  gaudi doctor --nic softnic --device mock:gaudi2\n  gaudi doctor --explain EPERM"
)]
pub(crate) struct Doctor {
    /// Try what a transfer between this NIC and a device (--device) needs, and explain failures;
    /// `softnic` is the software NIC.
    #[arg(long, value_name = "NAME", conflicts_with = "root")]
    pub(crate) nic: Option<String>,
    /// Explain an errno of an export or a registration, given by name or number.
    #[arg(long, value_name = "ERRNO", conflicts_with_all = ["nic", "root"], allow_hyphen_values = true)]
    pub(crate) explain: Option<String>,
    /// Look at another root than `/`: a copy of a machine's /proc, /sys, /dev and /boot.
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The device must be free: its compute node is open meanwhile. No case resets the card; \
                  the driver resets the engines when the node is closed, as after every user. \
                  Exits with 1 if a case fails or an answer differs from the mock's.\n\n\
                  Examples:\n  gaudi check -d kernel:0 --report check.json\n  gaudi check -d mock:gaudi2 --cases"
)]
pub(crate) struct Check {
    /// Start no further case after so many seconds.
    #[arg(long, value_name = "SEC", default_value = "270", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Also write the JSON document to a file, to attach to a bug report.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Print every case with its verdict, not only those that failed or differed.
    #[arg(long)]
    pub(crate) cases: bool,
    /// Include what identifies this card: PCI address and serial number, node, host name.
    #[arg(long)]
    pub(crate) identify: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "It reads sysfs alone and opens no device. The ACS bits of switches are for root to read.\n\n\
                  Examples:\n  sudo gaudi topo\n  gaudi topo --example\n  sudo gaudi topo --capture server.tree; gaudi topo --sysfs server.tree"
)]
pub(crate) struct Topo {
    /// Show another machine: a file that `--capture` wrote, or a folder with a copy of its `sys`.
    #[arg(long, value_name = "PATH", conflicts_with = "example")]
    pub(crate) sysfs: Option<PathBuf>,
    /// Show a made-up server with eight cards.
    #[arg(long)]
    pub(crate) example: bool,
    /// Write what was read to a file, for `--sysfs` on another machine. It holds PCI addresses,
    /// configuration space and names of interfaces.
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// Judge this PCI function as if it were an accelerator; may be repeated.
    #[arg(long = "exporter", value_name = "ADDRESS")]
    pub(crate) exporters: Vec<gaudi_seam::PciAddress>,
    /// Draw every function, not only cards, NICs and what is above them.
    #[arg(long)]
    pub(crate) all: bool,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    /// Long options of a command that its users see, without those of every command.
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
        use clap::CommandFactory as _;
        let page = include_str!("../../../docs/src/reference/cli.md");
        let has = |text: &str, option: &str| {
            // `--size` is not `--sizes`.
            text.match_indices(&format!("--{option}")).any(|(at, found)| {
                let next = text[at + found.len()..].chars().next();
                !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-')
            })
        };
        let mut command = Cli::command();
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
