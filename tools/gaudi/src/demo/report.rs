//! The report of the demo.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::args::Stage;
use crate::figures::{nanos, note_software};
use crate::output::{Output, grouped};
use crate::report::{Column, columns};

/// One stage of one node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StageRow {
    pub(crate) stage: Stage,
    /// `A`, `B`, or both.
    pub(crate) node: String,
    /// What performed it; a mock is named as such.
    pub(crate) by: String,
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) time_ns: u64,
}

/// The work of one node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct NodeReport {
    pub(crate) device: String,
    pub(crate) backend: String,
    pub(crate) nic: String,
    /// A processor performs its transfers, in the kernel or in this process.
    pub(crate) software_nic: bool,
    pub(crate) lin_dma_packets: u64,
    pub(crate) cpu_copied_bytes: u64,
    pub(crate) nic_sent_bytes: u64,
    pub(crate) nic_received_bytes: u64,
    pub(crate) dmabuf_exporter: String,
    pub(crate) dmabuf_inode: u64,
    pub(crate) dmabuf_bytes: u64,
    pub(crate) lkey: String,
    pub(crate) rkey: String,
    pub(crate) sha256: String,
    /// `VmHWM` of the process.
    pub(crate) peak_memory_bytes: u64,
    pub(crate) stages: Vec<StageRow>,
}

/// The whole demo.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) file: String,
    pub(crate) size_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) slots: u32,
    pub(crate) stages: Vec<StageRow>,
    pub(crate) node_a: NodeReport,
    pub(crate) node_b: NodeReport,
    pub(crate) sha256_source: String,
    pub(crate) sha256_far_end: String,
    pub(crate) verified: bool,
    /// The stage that changed the data, if one did.
    pub(crate) corrupted_by: Option<Stage>,
    /// A device is a mock.
    pub(crate) mock: bool,
    pub(crate) time_ns: u64,
}

/// Time and bytes of one stage, summed over chunks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Meter {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
}

impl Meter {
    /// Adds the time of `work`, and its bytes if it succeeds.
    pub(crate) fn measure<T, E>(&mut self, bytes: u64, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = std::time::Instant::now();
        let done = work();
        self.time += start.elapsed();
        if done.is_ok() {
            self.bytes += bytes;
        }
        done
    }

    pub(crate) fn row(&self, stage: Stage, node: &str, by: String, path: &str) -> StageRow {
        StageRow {
            stage,
            node: node.to_owned(),
            by,
            path: path.to_owned(),
            bytes: self.bytes,
            time_ns: nanos(self.time),
        }
    }
}

/// Returns `VmHWM` of this process in bytes; 0 if `/proc` does not have it.
pub(crate) fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

pub(crate) fn print(report: &Report, output: &mut Output) -> Result<()> {
    if output.is_json() {
        return output.document("gaudi.demo", report);
    }
    let columns = columns! { StageRow:
        text "" "stage" |row| row.stage.name();
        text "" "done by" |row| row.by;
        text "" "path" |row| row.path;
        grouped "" "bytes" |row| row.bytes;
        number "" "time[ms]" |row| format!("{:.1}", row.time_ns as f64 / 1e6);
    };
    output.rows(&columns, &report.stages)?;
    output.line("")?;
    let (a, b) = (&report.node_a, &report.node_b);
    // A row for each of these, and a column for each node.
    let of_each = columns! { NodeReport:
        text "" "device" |node| format!("{} ({})", node.device, node.backend);
        text "" "NIC" |node| node.nic;
        text "" "LIN_DMA packets" |node| format!("{} ({})", grouped(node.lin_dma_packets), node.backend);
        grouped "" "CPU-copied bytes" |node| node.cpu_copied_bytes;
        text "" "exporter" |node| node.dmabuf_exporter;
        text "" "dma-buf" |node| format!("inode {}", node.dmabuf_inode);
        text "" "" |node| format!("{} bytes", grouped(node.dmabuf_bytes));
        text "" "region" |node| format!("lkey {}", node.lkey);
        text "" "" |node| format!("rkey {}", node.rkey);
        text "" "peak memory" |node| format!("{} MiB", grouped(node.peak_memory_bytes.div_ceil(1 << 20)));
    };
    let row = |of: &Column<NodeReport>| vec![of.head.to_owned(), of.cell(a), of.cell(b)];
    let mut rows: Vec<Vec<String>> = of_each.iter().map(row).collect();
    let sent = format!("{} sent", grouped(a.nic_sent_bytes));
    let received = format!("{} received", grouped(b.nic_received_bytes));
    // Below the packets: node A sends and node B receives.
    rows.insert(3, vec!["NIC bytes".to_owned(), sent, received]);
    output.table(&["", "node A", "node B"], &[], &rows)?;
    output.line("")?;
    output.line(format!("SHA-256 sent  {}", report.sha256_source))?;
    output.line(format!("SHA-256 got   {}", report.sha256_far_end))?;
    if !report.verified {
        return Ok(());
    }
    let what = format!(
        "{}: {} bytes went from device A to device B and are the same",
        report.file,
        grouped(report.size_bytes)
    );
    output.hanging("", &what)?;
    let mock = report.mock.then_some("a device");
    note_software(output, mock, a.software_nic || b.software_nic)
}
