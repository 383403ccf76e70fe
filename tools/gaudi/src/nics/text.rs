//! `gaudi nics` for people: devices, their addresses, and the cards that they reach.

use anyhow::Result;

use super::Report;
use crate::output::Output;
use crate::table::Layout;

fn or_dash<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "-".to_owned(), T::to_string)
}

pub(super) fn print(report: &Report, output: &mut Output) -> Result<()> {
    if let Some(source) = &report.source {
        output.line(format!("source  {source}"))?;
        output.line("")?;
    }
    let mut rows = Vec::new();
    for nic in &report.nics {
        let head = |port: Option<usize>| {
            if port.unwrap_or(0) == 0 {
                let driver = or_dash(&nic.driver) + if nic.software { " (software)" } else { "" };
                [
                    nic.name.clone(),
                    driver,
                    or_dash(&nic.firmware),
                    or_dash(&nic.function),
                    or_dash(&nic.numa_node),
                    nic.dmabuf.answer.to_owned(),
                ]
            } else {
                std::array::from_fn(|_| String::new())
            }
        };
        if nic.ports.is_empty() {
            rows.push(
                [
                    &head(None)[..],
                    &std::array::from_fn::<_, 5, _>(|_| "-".to_owned()),
                ]
                .concat(),
            );
        }
        for (at, port) in nic.ports.iter().enumerate() {
            let mtu = match (port.mtu_bytes, port.mtu_from) {
                (Some(bytes), Some("interface")) => format!("{bytes}*"),
                (Some(bytes), _) => bytes.to_string(),
                (None, _) => "-".to_owned(),
            };
            let cells = [
                port.number.to_string(),
                or_dash(&port.state),
                or_dash(&port.link_layer),
                or_dash(&port.rate),
                mtu,
            ];
            rows.push([&head(Some(at))[..], &cells].concat());
        }
    }
    let header = [
        "NIC", "driver", "firmware", "PCI", "NUMA", "dma-buf", "port", "state", "link", "rate", "MTU[B]",
    ];
    let layout = Layout {
        numbers: &[4, 6, 10],
        optional: &[2, 4, 8, 1],
        ..Layout::default()
    };
    output.table_in(&header, &rows, layout)?;
    if report
        .nics
        .iter()
        .flat_map(|nic| &nic.ports)
        .any(|port| port.mtu_from == Some("interface"))
    {
        output.line("* as it follows from the interface's")?;
    }
    if report.nics.is_empty() {
        return Ok(());
    }
    output.line("")?;
    let rows: Vec<Vec<String>> = report
        .nics
        .iter()
        .flat_map(|nic| nic.ports.iter().map(move |port| (nic, port)))
        .flat_map(|(nic, port)| {
            port.gids.iter().map(move |row| {
                vec![
                    nic.name.clone(),
                    port.number.to_string(),
                    row.index.to_string(),
                    row.gid.clone(),
                    or_dash(&row.kind),
                    or_dash(&row.netdev),
                ]
            })
        })
        .collect();
    let layout = Layout {
        numbers: &[1, 2],
        optional: &[1],
        ..Layout::default()
    };
    output.table_in(
        &["NIC", "port", "index", "GID", "kind", "interface"],
        &rows,
        layout,
    )?;
    output.line("")?;
    for nic in &report.nics {
        let what = format!(
            "dma-buf {} (by its {}): {}",
            nic.dmabuf.answer, nic.dmabuf.by, nic.dmabuf.why
        );
        output.hanging(&format!("{}: ", nic.name), &what)?;
    }
    let rows: Vec<Vec<String>> = report
        .nics
        .iter()
        .flat_map(|nic| nic.reach.iter().map(move |card| (nic, card)))
        .map(|(nic, card)| {
            vec![
                nic.name.clone(),
                card.accelerator.clone(),
                or_dash(&card.name),
                card.answer.to_owned(),
                card.detail.clone(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        output.line("")?;
        output.table(&["NIC", "card", "node", "memory", "way, or why not"], &[], &rows)?;
    }
    Ok(())
}
