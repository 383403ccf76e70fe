//! What the command line says of RDMA devices and of measuring them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(
    after_help = "It reads sysfs and, where libibverbs is installed, asks it whether a device registers dma-bufs; no accelerator is opened.\n\n\
                  With -v it also prints the limits of each device, and the queue pairs and memory regions of every process.\n\n\
                  Examples:\n  gaudi nics -v\n  gaudi nics --example"
)]
pub(crate) struct Nics {
    /// Look at another machine: a file in the form of `gaudi topo --capture`, or a folder in which a copy of its `sys` lies.
    #[arg(long, value_name = "PATH", conflicts_with = "example")]
    pub(crate) sysfs: Option<PathBuf>,
    /// Look at a made-up server with eight cards and four NICs.
    #[arg(long)]
    pub(crate) example: bool,
    /// Only these devices; may be repeated.
    #[arg(long = "nic", value_name = "NAME")]
    pub(crate) nics: Vec<String>,
    /// Read sysfs alone: open no device.
    #[arg(long)]
    pub(crate) no_open: bool,
    /// Print the names alone, one a line, for scripts; no device is opened.
    #[arg(long, conflicts_with = "json")]
    pub(crate) names: bool,
}

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "One machine: without --listen and --connect the peer is started here, as a second process.\n\
                  Two machines: gaudi perf write --listen 0.0.0.0:18515 on one, --connect HOST:18515 on the other, same options.\n\n\
                  Examples:\n  gaudi perf write\n  gaudi perf read --sizes 64KiB --memory device --json"
)]
pub(crate) struct PerfRdma {
    /// Wait for a peer here, and serve it.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "connect")]
    pub(crate) listen: Option<SocketAddr>,
    /// Measure against the peer that listens there.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) connect: Option<String>,
    /// RDMA device, as `gaudi nics` names it; `softnic` is a software NIC over a socket.
    #[arg(long, value_name = "NAME", default_value = "softnic")]
    pub(crate) nic: String,
    /// RDMA device of the peer that is started here; without it the same.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["listen", "connect"])]
    pub(crate) peer_nic: Option<String>,
    /// Row of the port's table of addresses.
    #[arg(long, value_name = "N")]
    pub(crate) gid_index: Option<u32>,
    /// Sizes to measure, with commas between them; atomics have 8 bytes.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = crate::args::bytes,
          default_value = "8,4KiB,64KiB,1MiB")]
    pub(crate) sizes: Vec<u64>,
    /// What memory, at both ends.
    #[arg(long, value_enum, default_value_t = Memory::Host, value_name = "KIND")]
    pub(crate) memory: Memory,
    /// How device memory is reached.
    #[arg(long, value_enum, default_value_t = Way::Try, value_name = "HOW")]
    pub(crate) dmabuf: Way,
    /// Bandwidth, latency, or both.
    #[arg(long, value_enum, default_value_t = What::Both, value_name = "WHAT")]
    pub(crate) measure: What,
    /// Operations of each row.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    pub(crate) iterations: u32,
    /// Operations of each row before those that count.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) warm_up: u32,
    /// Operations under way at a time, where bandwidth is measured.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) window: u32,
    /// Every so many of them tell their completion.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) signal: u32,
    /// Seconds that the peer may be silent.
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = crate::args::seconds)]
    pub(crate) timeout: Duration,
    /// Be the peer: standard input is the socket to who started it.
    #[arg(long, hide = true)]
    pub(crate) serve: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Memory {
    /// Of the host.
    Host,
    /// Of a device (-d; without it a mock).
    Device,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// By its dma-buf where that can be, else staged.
    Try,
    /// By its dma-buf or not at all.
    Require,
    /// Staged.
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Bytes a second, with many operations under way.
    Bandwidth,
    /// Time of one operation after the other.
    Latency,
    /// One after the other.
    Both,
}
