//! The tree and the matrix as a person reads them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Result;
use gaudi::dmabuf::reach::{Acs, Function, Importer, Parent, Processor, Reach, Topology, Via};
use gaudi_seam::PciAddress;

use super::Picture;
use super::report::{best, kind};
use crate::output::Output;
use crate::table::Layout;

const DASH: &str = "-";
/// What a cell's first word means.
const LEGEND: [(&str, &str); 6] = [
    (
        "switch",
        "the NIC reaches the card's memory inside a switch; the number counts the ports between",
    ),
    ("root-port", "through the root port that both are below"),
    (
        "host",
        "up through the root complex, which the kernel trusts; numa is the distance of their nodes",
    ),
    (
        "switch?",
        "allowed; inside the switch or through the root complex, as ACS is set",
    ),
    (
        "no",
        "refused by the kernel; registering the card's memory with the NIC fails with EPERM",
    ),
    ("?", "something that decides could not be read"),
];

pub(super) fn print(picture: &Picture, all: bool, output: &mut Output) -> Result<()> {
    let topology = &picture.topology;
    if let Some(source) = &picture.source {
        output.hanging("machine  ", source)?;
    }
    output.hanging("kernel   ", &kernel(topology))?;
    output.hanging("cpu      ", &processor(topology))?;
    if topology.functions.is_empty() {
        return output.line("no function on the PCI bus");
    }
    output.line("")?;
    tree(picture, all, output)?;
    if !picture.exporters.is_empty() && !topology.importers.is_empty() {
        output.line("")?;
        matrix(picture, output)?;
    }
    Ok(())
}

fn kernel(topology: &Topology) -> String {
    let release = topology.kernel.release.as_deref().unwrap_or("unknown");
    let p2pdma = match topology.kernel.p2pdma {
        Some(true) => "with CONFIG_PCI_P2PDMA",
        Some(false) => "without CONFIG_PCI_P2PDMA",
        None => "CONFIG_PCI_P2PDMA unknown",
    };
    format!("{release}, {p2pdma}; answers are by the rule of Linux 7.3")
}

fn processor(topology: &Topology) -> String {
    match topology.processor {
        Some(Processor::X86 { vendor: 2, family }) if family >= 0x17 => {
            format!("AMD, family {family:#x}: the kernel trusts its root complexes")
        }
        Some(Processor::X86 { vendor, family }) => {
            let vendor = match vendor {
                0 => "Intel",
                2 => "AMD",
                9 => "Hygon",
                _ => "x86",
            };
            format!("{vendor}, family {family:#x}: the kernel trusts the host bridges of its table")
        }
        Some(Processor::Other) => "not x86: the kernel trusts the host bridges of its table".to_owned(),
        None => "unknown".to_owned(),
    }
}

/// Functions that a reader looks for, and all bridges above them.
fn shown(picture: &Picture, all: bool) -> BTreeSet<PciAddress> {
    let topology = &picture.topology;
    let wanted = |function: &&Function| {
        all || function.is_accelerator()
            || function.is_nic()
            || !function.nvme.is_empty()
            || picture.exporters.contains(&function.address)
    };
    let mut shown = BTreeSet::new();
    for function in topology.functions.values().filter(wanted) {
        let mut next = Some(function);
        while let Some(function) = next {
            // Above what is shown already everything is.
            if !shown.insert(function.address) {
                break;
            }
            next = match function.parent {
                Parent::Bridge(bridge) => topology.function(bridge),
                _ => None,
            };
        }
    }
    shown
}

fn tree(picture: &Picture, all: bool, output: &mut Output) -> Result<()> {
    let topology = &picture.topology;
    let shown = shown(picture, all);
    let mut rows = Vec::new();
    for (host, bridge) in topology.host_bridges.iter().enumerate() {
        let roots: Vec<&Function> = topology.below_host(host).collect();
        let mut stack: Vec<(usize, &Function)> = Vec::new();
        stack.extend(
            roots
                .into_iter()
                .rev()
                .filter(|root| shown.contains(&root.address))
                .map(|root| (1, root)),
        );
        if stack.is_empty() {
            continue;
        }
        let first = topology.root_device(host).ok().and_then(|root| root.device);
        rows.push(vec![
            bridge.name.clone(),
            match topology.trusts(host) {
                Ok(true) => "host bridge, trusted".to_owned(),
                Ok(false) => "host bridge".to_owned(),
                Err(_) => "host bridge, unknown".to_owned(),
            },
            first.map_or_else(String::new, |(_, vendor, device)| {
                format!("{vendor:04x}:{device:04x}")
            }),
        ]);
        while let Some((depth, function)) = stack.pop() {
            rows.push(row(depth, function));
            let below = topology.functions.values().rev();
            let below = below.filter(|below| below.parent == Parent::Bridge(function.address));
            stack.extend(
                below
                    .filter(|below| shown.contains(&below.address))
                    .map(|below| (depth + 1, below)),
            );
        }
    }
    let orphans = topology.functions.values();
    for orphan in orphans.filter(|orphan| orphan.parent == Parent::Missing && shown.contains(&orphan.address))
    {
        rows.push(row(0, orphan));
    }
    for row in &mut rows {
        row.resize(9, String::new());
    }
    let header = [
        "function",
        "what",
        "ids",
        "driver",
        "link[GT/s]",
        "node",
        "IOMMU group",
        "ACS",
        "names",
    ];
    let layout = Layout {
        numbers: &[5],
        optional: &[2, 3, 6, 5, 4, 7],
        ..Layout::default()
    };
    output.table_in(&header, &rows, layout)?;
    let hidden = topology.functions.len() - shown.len();
    if hidden > 0 {
        output.line(format!("other functions: {hidden}; --all shows them"))?;
    }
    Ok(())
}

fn row(depth: usize, function: &Function) -> Vec<String> {
    let dash = || DASH.to_owned();
    let ids = function.vendor.zip(function.device);
    let group = function.iommu.as_ref().map(|group| match &group.kind {
        Some(kind) => format!("{} {kind}", group.number),
        None => group.number.to_string(),
    });
    let names = [
        &function.accelerators,
        &function.rdma,
        &function.nets,
        &function.nvme,
    ];
    let names: Vec<&str> = names.into_iter().flatten().map(String::as_str).collect();
    vec![
        format!("{}{}", "  ".repeat(depth), function.address),
        match kind(function) {
            "nic" => "NIC".to_owned(),
            "nvme" => "NVMe".to_owned(),
            "other" => function
                .class
                .map_or_else(dash, |class| format!("class {:04x}", class >> 8)),
            kind => kind.to_owned(),
        },
        ids.map_or_else(dash, |(vendor, device)| format!("{vendor:04x}:{device:04x}")),
        function.driver.clone().unwrap_or_else(dash),
        link(function),
        function.numa_node.map_or_else(dash, |node| node.to_string()),
        group.unwrap_or_else(dash),
        match &function.config.acs {
            Acs::Absent => dash(),
            Acs::Present { .. } if function.config.acs.redirects() == Some(true) => "redirects".to_owned(),
            Acs::Present { .. } => "off".to_owned(),
            Acs::Unread(_) => "not read".to_owned(),
        },
        if names.is_empty() { dash() } else { names.join(" ") },
    ]
}

/// `16 x16`, and in brackets what both ends could do where they run below it.
fn link(function: &Function) -> String {
    let text = |speed: gaudi::dmabuf::reach::Speed| {
        format!("{} x{}", f64::from(speed.megatransfers) / 1000.0, speed.lanes)
    };
    match (function.link.current, function.link.max) {
        (None, _) => DASH.to_owned(),
        (Some(current), Some(max)) if max.weight() > current.weight() => {
            format!("{} (of {})", text(current), text(max))
        }
        (Some(current), _) => text(current),
    }
}

/// Numbered notes: a text that several cells share stands once.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn mark(&mut self, text: String) -> String {
        let at = self.0.iter().position(|note| *note == text).unwrap_or_else(|| {
            self.0.push(text);
            self.0.len() - 1
        });
        format!("[{}]", at + 1)
    }
}

fn matrix(picture: &Picture, output: &mut Output) -> Result<()> {
    let topology = &picture.topology;
    let mut notes = Notes::default();
    let named = |address: &PciAddress| {
        let function = topology.function(*address);
        let name = function.and_then(|function| function.accelerators.first());
        name.cloned().unwrap_or_else(|| address.to_string())
    };
    let header: Vec<String> = ["NIC".to_owned(), "on".to_owned()]
        .into_iter()
        .chain(picture.exporters.iter().map(named))
        .collect();
    let mut rows: Vec<Vec<String>> = topology
        .importers
        .iter()
        .map(|nic| {
            let place = nic
                .function
                .map_or_else(|| DASH.to_owned(), |function| function.to_string());
            let mut row = vec![nic_name(nic), place];
            row.extend(
                picture
                    .exporters
                    .iter()
                    .map(|&card| cell(topology, card, nic, &mut notes)),
            );
            row
        })
        .collect();
    let mut last = vec!["best".to_owned(), String::new()];
    let none = || "none".to_owned();
    last.extend(
        picture
            .exporters
            .iter()
            .map(|&card| best(topology, card).map_or_else(none, nic_name)),
    );
    rows.push(last);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let layout = Layout {
        repeated: 2,
        ..Layout::default()
    };
    output.table_in(&header, &rows, layout)?;
    for (word, meaning) in LEGEND {
        let is_used = |cell: &String| cell.split(' ').next() == Some(word);
        if rows.iter().flat_map(|row| row.iter().skip(2)).any(is_used) {
            output.hanging(&format!("{word}: "), meaning)?;
        }
    }
    if topology.importers.iter().any(|nic| nic.is_up == Some(false)) {
        output.hanging(
            "DOWN: ",
            "no port of the NIC is active; it is best only if no other NIC reaches the card",
        )?;
    }
    for (number, note) in notes.0.iter().enumerate() {
        let mut first = format!("[{}] ", number + 1);
        for line in note.lines() {
            output.hanging(&first, line.trim_start())?;
            first = "    ".to_owned();
        }
    }
    Ok(())
}

fn nic_name(nic: &Importer) -> String {
    let software = if nic.software { " (software)" } else { "" };
    let plain = if nic.rdma.is_empty() { " (no RDMA)" } else { "" };
    let down = if nic.is_up == Some(false) { " (DOWN)" } else { "" };
    format!("{}{software}{plain}{down}", nic.name())
}

fn cell(topology: &Topology, card: PciAddress, nic: &Importer, notes: &mut Notes) -> String {
    let joined = |ports: &[PciAddress], by: &str| {
        let ports: Vec<String> = ports.iter().map(PciAddress::to_string).collect();
        ports.join(by)
    };
    let route = match topology.reach(card, nic) {
        Reach::Reachable(route) => route,
        Reach::Refused(refusal) => {
            return format!(
                "no {}",
                notes.mark(format!("{refusal}\n    mend: {}", refusal.mend()))
            );
        }
        Reach::Unknown(what) => {
            return format!(
                "? {}",
                notes.mark(format!("not read, and it decides: {}", what.join("; ")))
            );
        }
    };
    let (way, note) = match &route.via {
        Via::SameFunction => ("itself", None),
        Via::SameSwitch(_) => ("switch", None),
        Via::RootPort(_) => ("root-port", None),
        Via::WhitelistedHostBridge { redirects, .. } if redirects.is_empty() => ("host", None),
        Via::WhitelistedHostBridge { redirects, .. } => {
            let note = format!(
                "ACS of {} sends packets up to the root complex\n    to keep them in the switch: boot with \
                 pci=disable_acs_redir={} (the devices below then share an IOMMU group and are not isolated)",
                joined(redirects, ", "),
                joined(redirects, ";")
            );
            ("host", Some(note))
        }
        Via::Undetermined { .. } => {
            let note = "ACS of the ports between is for root to read\n    mend: sudo gaudi topo".to_owned();
            ("switch?", Some(note))
        }
    };
    let mut cell = format!("{way} {}", route.distance);
    let numa = nic
        .function
        .and_then(|function| topology.numa_distance(card, function));
    if let Some(numa) = numa.filter(|&numa| numa != 10) {
        let _ = write!(cell, " numa {numa}");
    }
    for note in note.into_iter().chain(topology.caveat(&route, nic)) {
        cell.push(' ');
        cell.push_str(&notes.mark(note));
    }
    cell
}
