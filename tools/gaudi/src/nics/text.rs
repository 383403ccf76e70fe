//! `gaudi nics` for people: devices, their addresses, and the cards that they reach.

use anyhow::Result;

use super::{Card, DmaBuf, LIMITS, Limits, Nic, Port, QUEUE_PAIRS, REGIONS, Report, Row};
use crate::output::Output;
use crate::report::{Column, columns};
use crate::table::Layout;

/// A row of the table of ports.
struct PortRow<'a> {
    nic: &'a Nic,
    /// `None` for a device without ports.
    port: Option<&'a Port>,
    is_first: bool,
}

impl PortRow<'_> {
    /// Returns a text of the device in its first row, and blanks in the others.
    fn device(&self, text: fn(&Nic) -> Option<String>) -> Option<String> {
        match self.is_first {
            true => text(self.nic),
            false => Some(String::new()),
        }
    }
}

pub(super) fn print(report: &Report, details: bool, output: &mut Output) -> Result<()> {
    if let Some(source) = &report.source {
        output.line(format!("source  {source}"))?;
        output.line("")?;
    }
    if report.nics.is_empty() {
        return Ok(());
    }
    let ports = columns! { PortRow<'_>:
        text "" "NIC" |row| row.device(|nic| Some(nic.name.clone()));
        text "" "driver" [4] |row| row.device(|nic| {
            let driver = nic.driver.as_deref().unwrap_or("-");
            Some(format!("{driver}{}", if nic.software { " (software)" } else { "" }))
        });
        text "" "firmware" [1] |row| row.device(|nic| nic.firmware.clone());
        text "" "PCI" |row| row.device(|nic| nic.function.clone());
        number "" "NUMA" [2] |row| row.device(|nic| Some(nic.numa_node?.to_string()));
        text "" "dma-buf" |row| row.device(|nic| Some(nic.dmabuf.answer.to_owned()));
        number "" "port" |row| row.port?.number;
        text "" "state" |row| row.port?.state;
        text "" "link" [3] |row| row.port?.link_layer;
        text "" "rate" |row| row.port?.rate;
        number "" "MTU[B]" |row| {
            let is_derived = row.port?.mtu_from == Some("interface");
            format!("{}{}", row.port?.mtu_bytes?, if is_derived { "*" } else { "" })
        };
    };
    let mut rows = Vec::new();
    for nic in &report.nics {
        for at in 0..nic.ports.len().max(1) {
            let (port, is_first) = (nic.ports.get(at), at == 0);
            rows.push(PortRow { nic, port, is_first });
        }
    }
    output.rows(&ports, &rows)?;
    let mut ports = rows.iter().filter_map(|row| row.port);
    if ports.any(|port| port.mtu_from == Some("interface")) {
        output.line("* as it follows from the interface's")?;
    }
    output.line("")?;
    let gids = columns! { (&Nic, &Port, &Row):
        text "" "NIC" |(nic, ..)| nic.name;
        number "" "port" [1] |(_, port, _)| port.number;
        number "" "index" |(.., row)| row.index;
        text "" "GID" |(.., row)| row.gid;
        text "" "kind" |(.., row)| row.kind;
        text "" "interface" |(.., row)| row.netdev;
    };
    let ports = rows.iter().filter_map(|row| Some((row.nic, row.port?)));
    let rows = ports.flat_map(|(nic, port)| port.gids.iter().map(move |row| (nic, port, row)));
    output.rows(&gids, rows)?;
    output.line("")?;
    for nic in &report.nics {
        let DmaBuf { answer, by, why } = &nic.dmabuf;
        let what = format!("dma-buf {answer} (by its {by}): {why}");
        output.hanging(&format!("{}: ", nic.name), &what)?;
    }
    let reach = columns! { (&Nic, &Card):
        text "" "NIC" |(nic, _)| nic.name;
        text "" "card" |(_, card)| card.accelerator;
        text "" "node" |(_, card)| card.name;
        text "" "memory" |(_, card)| card.answer;
        text "" "way, or why not" |(_, card)| card.detail;
    };
    let nics = report.nics.iter();
    let rows = nics.flat_map(|nic| nic.reach.iter().map(move |card| (nic, card)));
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        output.line("")?;
        output.rows(&reach, &rows)?;
    }
    if !details {
        return Ok(());
    }
    print_limits(report, output)?;
    output.line("")?;
    if let Some(error) = &report.resources_error {
        return output.hanging("queue pairs and regions: ", &format!("< {error} >"));
    }
    match report.nics.iter().all(|nic| nic.queue_pairs.is_empty()) {
        true => output.line("no queue pair")?,
        false => output.rows(QUEUE_PAIRS, report.nics.iter().flat_map(|nic| &nic.queue_pairs))?,
    }
    output.line("")?;
    match report.nics.iter().all(|nic| nic.regions.is_empty()) {
        true => output.line("no memory region"),
        false => output.rows(REGIONS, report.nics.iter().flat_map(|nic| &nic.regions)),
    }
}

/// Prints the limits: a row for each limit and a column for each NIC.
fn print_limits(report: &Report, output: &mut Output) -> Result<()> {
    let opened = report
        .nics
        .iter()
        .filter_map(|nic| Some((nic.name.as_str(), nic.limits.as_ref()?)));
    let (names, opened): (Vec<&str>, Vec<&Limits>) = opened.unzip();
    output.line("")?;
    if opened.is_empty() {
        return output.line("limits: not reported: no device was opened");
    }
    let header = [&["limit"], &names[..]].concat();
    let row = |limit: &Column<Limits>| {
        let cells = opened.iter().map(|limits| limit.cell(limits));
        [limit.head.to_owned()].into_iter().chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = LIMITS.iter().map(row).collect();
    let numbers: Vec<usize> = (1..header.len()).collect();
    let layout = Layout {
        numbers: &numbers,
        repeated: 1,
        ..Layout::default()
    };
    output.table_in(&header, &rows, layout)
}
