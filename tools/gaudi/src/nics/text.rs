//! `gaudi nics` for people: devices, their addresses, and the cards that they reach.

use anyhow::Result;

use super::{Limits, Report};
use crate::output::{Output, grouped};
use crate::table::Layout;

fn or_dash<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "-".to_owned(), T::to_string)
}

pub(super) fn print(report: &Report, details: bool, output: &mut Output) -> Result<()> {
    if let Some(source) = &report.source {
        output.line(format!("source  {source}"))?;
        output.line("")?;
    }
    if report.nics.is_empty() {
        return Ok(());
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
    if details {
        print_limits(report, output)?;
        print_resources(report, output)?;
    }
    Ok(())
}

/// A row for each limit and a column for each NIC, with the names of ibv_devinfo(1).
fn print_limits(report: &Report, output: &mut Output) -> Result<()> {
    let opened: Vec<(&str, &Limits)> = report
        .nics
        .iter()
        .filter_map(|nic| Some((nic.name.as_str(), nic.limits.as_ref()?)))
        .collect();
    output.line("")?;
    if opened.is_empty() {
        return output.line("limits: not reported: no device was opened");
    }
    type Cell = fn(&Limits) -> String;
    let limits: [(&str, Cell); 17] = [
        ("max_qp", |limits| limits.max_qp.to_string()),
        ("max_qp_wr", |limits| limits.max_qp_wr.to_string()),
        ("max_sge", |limits| limits.max_sge.to_string()),
        ("max_cq", |limits| limits.max_cq.to_string()),
        ("max_cqe", |limits| limits.max_cqe.to_string()),
        ("max_mr", |limits| limits.max_mr.to_string()),
        ("max_mr_size[B]", |limits| limits.max_mr_size_bytes.to_string()),
        ("max_pd", |limits| limits.max_pd.to_string()),
        ("max_qp_rd_atom", |limits| limits.max_qp_rd_atom.to_string()),
        ("max_qp_init_rd_atom", |limits| {
            limits.max_qp_init_rd_atom.to_string()
        }),
        ("max_srq", |limits| limits.max_srq.to_string()),
        ("max_srq_wr", |limits| limits.max_srq_wr.to_string()),
        ("max_mw", |limits| limits.max_mw.to_string()),
        ("max_ah", |limits| limits.max_ah.to_string()),
        ("max_msg_sz[B]", |limits| or_dash(&limits.max_message_bytes)),
        ("atomic_cap", |limits| limits.atomic_cap.clone()),
        ("page_size_cap", |limits| limits.page_size_cap.clone()),
    ];
    let header: Vec<&str> = ["limit"]
        .into_iter()
        .chain(opened.iter().map(|(name, _)| *name))
        .collect();
    let rows: Vec<Vec<String>> = limits
        .iter()
        .map(|(name, cell)| {
            let cells = opened.iter().map(|(_, limits)| cell(limits));
            [(*name).to_owned()].into_iter().chain(cells).collect()
        })
        .collect();
    let numbers: Vec<usize> = (1..header.len()).collect();
    let layout = Layout {
        numbers: &numbers,
        repeated: 1,
        ..Layout::default()
    };
    output.table_in(&header, &rows, layout)
}

/// The queue pairs and regions of this machine.
fn print_resources(report: &Report, output: &mut Output) -> Result<()> {
    output.line("")?;
    if let Some(error) = &report.resources_error {
        return output.hanging("queue pairs and regions: ", &format!("< {error} >"));
    }
    let mut rows = Vec::new();
    for nic in &report.nics {
        for one in &nic.queue_pairs {
            rows.push(vec![
                nic.name.clone(),
                one.qpn.to_string(),
                one.kind.clone(),
                one.state.clone(),
                or_dash(&one.remote_qpn),
                one.owner.clone(),
            ]);
        }
    }
    if rows.is_empty() {
        output.line("no queue pair")?;
    } else {
        output.table(
            &["NIC", "QP number", "type", "state", "peer's", "owner"],
            &[1, 4],
            &rows,
        )?;
    }
    output.line("")?;
    let mut rows = Vec::new();
    for nic in &report.nics {
        for one in &nic.regions {
            rows.push(vec![
                nic.name.clone(),
                one.number.to_string(),
                grouped(one.size_bytes),
                or_dash(&one.rkey),
                one.owner.clone(),
            ]);
        }
    }
    if rows.is_empty() {
        return output.line("no memory region");
    }
    output.table(&["NIC", "region", "size[B]", "rkey", "owner"], &[1, 2], &rows)
}
