//! The arguments that several files share. Other commands have theirs in their own file.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{bytes, seconds};
use crate::nic::NicSpec;
use clap::{Args, Subcommand, ValueEnum};

/// Copy bytes with the DMA engines, and verify them.
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

/// Measure copies of a device, and RDMA between two nodes.
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

impl Measured {
    /// Whether this process is the peer that a measurement started.
    pub(crate) fn is_peer(&self) -> bool {
        matches!(self, Self::Write(rdma) | Self::Read(rdma) | Self::Send(rdma) | Self::Atomic(rdma) if rdma.serve)
    }
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
    /// Pages of the host memory; if they are missing, smaller ones, which the result reports.
    #[arg(long, value_enum, default_value_t = HostPages::Small, value_name = "KIND")]
    pub(crate) pages: HostPages,
    /// Seconds that one copy may take.
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Print the measured costs as variables of the copy library and of the UCX plugin, for a
    /// shell. It takes two sizes or more.
    #[arg(long)]
    pub(crate) calibrate: bool,
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

/// Send a file from device to device over RDMA, between two processes.
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
    /// RDMA device, as `gaudi nics` names it; `softnic` is a software NIC over a socket, and
    /// `softnic+fault=PLAN` one with faults.
    #[arg(long, value_name = "NAME", default_value = "softnic")]
    pub(crate) nic: NicSpec,
    /// RDMA device of node B; without it the same.
    #[arg(long, value_name = "NAME")]
    pub(crate) peer_nic: Option<NicSpec>,
    /// Row of the port's table of addresses.
    #[arg(long, value_name = "N")]
    pub(crate) gid_index: Option<u32>,
    /// Be node B: the socket to node A is standard input.
    #[arg(long, hide = true)]
    pub(crate) node_b: bool,
}

/// Run conformance cases on a device, and compare its answers with the mock's.
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
