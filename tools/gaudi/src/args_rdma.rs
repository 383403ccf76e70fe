//! Arguments of `perf write|read|send|atomic`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::nic::NicSpec;

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "One machine: without --listen and --connect the peer is started here, as a second process.\n\n\
                  Two machines, the first command on one and the second on the other:\n  \
                  gaudi perf write --listen 0.0.0.0:18515\n  \
                  gaudi perf write --connect HOST:18515\n\
                  The listening end measures what the connecting end asks for; an option that both ends have must agree.\n\n\
                  Examples:\n  gaudi perf write -D 2 --measure bandwidth\n  gaudi perf read --sizes 64k --memory device --json"
)]
pub(crate) struct PerfRdma {
    /// Wait for a peer at this address, and serve it.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "connect")]
    pub(crate) listen: Option<SocketAddr>,
    /// Measure with the peer that listens there.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub(crate) connect: Option<String>,
    /// RDMA device, as `gaudi nics` names it; `softnic` is a software NIC over a socket, and
    /// `softnic+fault=PLAN` one with faults.
    #[arg(long, value_name = "NAME", default_value = "softnic")]
    pub(crate) nic: NicSpec,
    /// RDMA device of the peer that this command starts [default: the same].
    #[arg(long, value_name = "NAME", conflicts_with_all = ["listen", "connect"])]
    pub(crate) peer_nic: Option<NicSpec>,
    /// Index in the port's GID table.
    #[arg(short = 'x', long, value_name = "N")]
    pub(crate) gid_index: Option<u32>,
    /// Sizes to measure, separated by commas; atomics have 8 bytes [default:
    /// 8,4KiB,64KiB,1MiB].
    #[arg(short, long, value_name = "BYTES", value_delimiter = ',', value_parser = crate::common::bytes)]
    pub(crate) sizes: Option<Vec<u64>>,
    /// Memory at both ends [default: host].
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) memory: Option<Memory>,
    /// How the NIC reaches device memory [default: try].
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) dmabuf: Option<Way>,
    /// Bandwidth, latency, or both [default: both].
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) measure: Option<What>,
    /// Operations of each row [default: 1000].
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    pub(crate) iterations: Option<u32>,
    /// Seconds of each row, instead of a number of operations.
    #[arg(short = 'D', long, value_name = "SEC", value_parser = crate::common::seconds, conflicts_with = "iterations")]
    pub(crate) duration: Option<Duration>,
    /// Operations of each row that are not counted, at its start [default: 100].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) warm_up: Option<u32>,
    /// Operations in flight on each queue pair, for bandwidth [default: 128].
    #[arg(short = 't', long, alias = "tx-depth", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) window: Option<u32>,
    /// Signal every Nth operation, for bandwidth [default: 16].
    #[arg(short = 'Q', long, alias = "cq-mod", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) signal: Option<u32>,
    /// Post N operations in a row between polls of the completion queue, for bandwidth
    /// [default: 1].
    #[arg(short = 'l', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) post_list: Option<u32>,
    /// Queue pairs, for bandwidth; latency uses one [default: 1].
    #[arg(long, alias = "qp", alias = "qp-count", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) qps: Option<u32>,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; without it the smaller of the two
    /// ports'.
    #[arg(short, long, value_name = "BYTES", value_parser = mtu)]
    pub(crate) mtu: Option<u32>,
    /// Measure bandwidth in both directions at once.
    #[arg(short, long)]
    pub(crate) bidirectional: bool,
    /// Print the distribution of the latencies too.
    #[arg(short = 'H', long)]
    pub(crate) histogram: bool,
    /// Seconds to wait for the peer: until it connects, and for each of its messages.
    #[arg(long, value_name = "SEC", default_value = "60", value_parser = crate::common::seconds)]
    pub(crate) timeout: Duration,
    /// Be the peer: standard input is the socket to the process that started it.
    #[arg(long, hide = true)]
    pub(crate) serve: bool,
}

/// Parses `HOST:PORT`; an IPv6 address is in brackets.
fn host_and_port(text: &str) -> Result<String, String> {
    let wanted = "wanted HOST:PORT, such as node-b:18515 or [fe80::1]:18515";
    let (host, port) = text.rsplit_once(':').ok_or(wanted)?;
    let is_bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
    if host.is_empty() || (host.contains([':', '[', ']']) && !is_bracketed) {
        return Err(wanted.to_owned());
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(text.to_owned()),
        _ => Err(format!("{port:?} is not a port; {wanted}")),
    }
}

/// Parses a path MTU.
fn mtu(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err("wanted 256, 512, 1024, 2048 or 4096".to_owned()),
    }
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// Bytes a second, with many operations under way.
    Bandwidth,
    /// Time of one operation after the other.
    Latency,
    /// One after the other.
    Both,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_addresses_need_host_and_port() {
        for right in ["node-b:18515", "127.0.0.1:1", "[::1]:65535"] {
            assert_eq!(host_and_port(right).as_deref(), Ok(right));
        }
        for wrong in [
            "127.0.0.1",
            "",
            ":1",
            "host:",
            "host:0",
            "host:65536",
            "host:x",
            "::1",
            "[]:1",
        ] {
            assert!(host_and_port(wrong).is_err(), "{wrong:?} is rejected");
        }
    }
}
