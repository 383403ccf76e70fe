//! `gaudi nics` for people: devices, their addresses, and the cards that they reach.

use anyhow::Result;

use super::{Card, LIMITS, Limits, Nic, Port, QUEUE_PAIRS, REGIONS, Report, Row};
use crate::output::Output;
use crate::report::{Column, columns, shown};
use crate::table::Layout;

pub(super) fn print(report: &Report, details: bool, output: &mut Output) -> Result<()> {
    if let Some(source) = &report.source {
        output.line(format!("source  {source}"))?;
        output.line("")?;
    }
    if report.nics.is_empty() {
        return Ok(());
    }
    print_ports(report, output)?;
    output.line("")?;
    let gids = columns! { (&Port, &Row):
        number "" "port" [1] |(port, _)| port.number;
        number "" "index" |(_, row)| row.index;
        text "" "GID" |(_, row)| row.gid;
        text "" "kind" |(_, row)| row.kind;
        text "" "interface" |(_, row)| row.netdev;
    };
    let ports = report
        .nics
        .iter()
        .flat_map(|nic| nic.ports.iter().map(move |port| (nic, port)));
    let rows = ports.flat_map(|(nic, port)| port.gids.iter().map(move |row| (nic.name.clone(), (port, row))));
    let rows: Vec<_> = rows.collect();
    output.rows_after(
        &["NIC"],
        &gids,
        rows.iter().map(|(nic, row)| ([nic.clone()], row)),
    )?;
    output.line("")?;
    for nic in &report.nics {
        let what = format!(
            "dma-buf {} (by its {}): {}",
            nic.dmabuf.answer, nic.dmabuf.by, nic.dmabuf.why
        );
        output.hanging(&format!("{}: ", nic.name), &what)?;
    }
    let reach = columns! { Card:
        text "" "card" |card| card.accelerator;
        text "" "node" |card| card.name;
        text "" "memory" |card| card.answer;
        text "" "way, or why not" |card| card.detail;
    };
    if report.nics.iter().any(|nic| !nic.reach.is_empty()) {
        output.line("")?;
        output.rows_after(&["NIC"], &reach, of_each(report, |nic| &nic.reach))?;
    }
    if details {
        print_limits(report, output)?;
        output.line("")?;
        if let Some(error) = &report.resources_error {
            return output.hanging("queue pairs and regions: ", &format!("< {error} >"));
        }
        match report.nics.iter().all(|nic| nic.queue_pairs.is_empty()) {
            true => output.line("no queue pair")?,
            false => output.rows_after(&["NIC"], QUEUE_PAIRS, of_each(report, |nic| &nic.queue_pairs))?,
        }
        output.line("")?;
        match report.nics.iter().all(|nic| nic.regions.is_empty()) {
            true => output.line("no memory region")?,
            false => output.rows_after(&["NIC"], REGIONS, of_each(report, |nic| &nic.regions))?,
        }
    }
    Ok(())
}

/// The rows of every NIC, each with the NIC's name.
fn of_each<'a, T: 'a>(
    report: &'a Report,
    rows: impl Fn(&'a Nic) -> &'a [T],
) -> impl Iterator<Item = ([String; 1], &'a T)> {
    let of_nic = move |nic: &'a Nic| rows(nic).iter().map(|row| ([nic.name.clone()], row));
    report.nics.iter().flat_map(of_nic)
}

/// A row for each port. The columns of a device are blank but in its first row.
fn print_ports(report: &Report, output: &mut Output) -> Result<()> {
    let device = columns! { Nic:
        text "" "NIC" |nic| nic.name;
        text "" "driver" |nic| format!("{}{}", nic.driver.as_deref().unwrap_or("-"), if nic.software { " (software)" } else { "" });
        text "" "firmware" |nic| nic.firmware;
        text "" "PCI" |nic| nic.function;
        text "" "NUMA" |nic| nic.numa_node;
        text "" "dma-buf" |nic| nic.dmabuf.answer;
    };
    let port = columns! { Port:
        text "" "port" |port| port.number;
        text "" "state" |port| port.state;
        text "" "link" |port| port.link_layer;
        text "" "rate" |port| port.rate;
        text "" "MTU[B]" |port| format!("{}{}", port.mtu_bytes?, if port.mtu_from == Some("interface") { "*" } else { "" });
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for nic in &report.nics {
        for at in 0..nic.ports.len().max(1) {
            let of_device = device.iter().map(|column| match at {
                0 => column.cell(nic),
                _ => String::new(),
            });
            let own = nic.ports.get(at);
            let of_port = port
                .iter()
                .map(|column| own.map_or_else(|| "-".to_owned(), |own| column.cell(own)));
            rows.push(of_device.chain(of_port).collect());
        }
    }
    let header: Vec<&str> = shown(&device).map(|column| column.head).collect();
    let header = [header, shown(&port).map(|column| column.head).collect()].concat();
    let layout = Layout {
        numbers: &[4, 6, 10],
        optional: &[2, 4, 8, 1],
        repeated: 0,
    };
    output.table_in(&header, &rows, layout)?;
    let mut ports = report.nics.iter().flat_map(|nic| &nic.ports);
    if ports.any(|port| port.mtu_from == Some("interface")) {
        output.line("* as it follows from the interface's")?;
    }
    Ok(())
}

/// A row for each limit and a column for each NIC.
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
    let rows: Vec<Vec<String>> = shown(LIMITS).map(row).collect();
    let numbers: Vec<usize> = (1..header.len()).collect();
    let layout = Layout {
        numbers: &numbers,
        repeated: 1,
        ..Layout::default()
    };
    output.table_in(&header, &rows, layout)
}
