//! The tree and the matrix as a person reads them.

use std::collections::BTreeSet;

use anyhow::Result;
use gaudi::PciAddress;
use gaudi::dmabuf::reach::{Acs, Function, Importer, Parent, Processor, Reach, Speed, Topology, Via};

use super::Picture;
use super::report::{best, kind, vendor};
use crate::output::Output;
use crate::report::columns;
use crate::table::Layout;

const DASH: &str = "-";
/// The legend of a cell's first word.
const LEGEND: &str = "\
switch: the NIC reaches the card's memory inside a switch; the number counts the ports between
root-port: through the root port that both are below
host: up through the root complex, which the kernel trusts; numa is the distance of their nodes
switch?: allowed; inside the switch or through the root complex, as ACS is set
no: refused by the kernel; registering the card's memory with the NIC fails with EPERM
?: something that decides could not be read";

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
    let Some(processor) = topology.processor else {
        return "unknown".to_owned();
    };
    let (_, name) = vendor(processor);
    let family = match processor {
        Processor::X86 { family, .. } => format!(", family {family:#x}"),
        Processor::Other => String::new(),
    };
    let trusted = match processor {
        Processor::X86 { vendor: 2, family } if family >= 0x17 => "its root complexes",
        _ => "the host bridges of its table",
    };
    format!("{name}{family}: the kernel trusts {trusted}")
}

/// Returns cards, NICs, NVMe drives and exporters (or `all` functions), and all bridges above them.
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
    // From the last to the first, as a stack takes them.
    let below = |parent: Parent| {
        let functions = topology.functions.values().rev();
        functions.filter(move |function| function.parent == parent)
    };
    let is_shown = |function: &&Function| shown.contains(&function.address);
    let mut rows = Vec::new();
    for (host, bridge) in topology.host_bridges.iter().enumerate() {
        let roots = below(Parent::Host(host)).filter(is_shown);
        let mut stack: Vec<(usize, &Function)> = roots.map(|root| (1, root)).collect();
        if stack.is_empty() {
            continue;
        }
        let first = topology.root_device(host).ok().and_then(|root| root.device);
        rows.push(Line::Host {
            name: &bridge.name,
            what: match topology.trusts(host) {
                Ok(true) => "host bridge, trusted",
                Ok(false) => "host bridge",
                Err(_) => "host bridge, unknown",
            },
            ids: first.map_or_else(String::new, |(_, vendor, device)| ids(vendor, device)),
        });
        while let Some((depth, function)) = stack.pop() {
            rows.push(Line::Function(depth, function));
            let inside = below(Parent::Bridge(function.address)).filter(is_shown);
            stack.extend(inside.map(|below| (depth + 1, below)));
        }
    }
    let orphans: Vec<_> = below(Parent::Missing).filter(is_shown).collect();
    let orphans = orphans.into_iter().rev();
    rows.extend(orphans.map(|orphan| Line::Function(0, orphan)));
    let columns = columns! { Line<'_>:
        text "" "function" |line| match line {
            Line::Host { name, .. } => (*name).to_owned(),
            Line::Function(depth, function) => format!("{}{}", "  ".repeat(*depth), function.address),
        };
        text "" "what" |line| match line {
            Line::Host { what, .. } => Some((*what).to_owned()),
            Line::Function(_, function) => what(function),
        };
        text "" "ids" [1] |line| match line {
            Line::Host { ids, .. } => Some(ids.clone()),
            Line::Function(_, function) => Some(ids(function.vendor?, function.device?)),
        };
        text "" "driver" [2] |line| line.of(|function| function.driver.clone());
        text "" "link[GT/s]" [5] |line| line.of(link);
        number "" "node" [4] |line| line.of(|function| Some(function.numa_node?.to_string()));
        text "" "IOMMU group" [3] |line| line.of(group);
        text "" "ACS" [6] |line| line.of(acs);
        text "" "names" |line| line.of(names);
    };
    output.rows(&columns, &rows)?;
    let hidden = topology.functions.len() - shown.len();
    if hidden > 0 {
        output.line(format!("other functions: {hidden}; --all shows them"))?;
    }
    Ok(())
}

fn ids(vendor: u16, device: u16) -> String {
    format!("{vendor:04x}:{device:04x}")
}

/// A row of the tree.
enum Line<'a> {
    Host {
        name: &'a str,
        what: &'static str,
        ids: String,
    },
    /// A function and its depth.
    Function(usize, &'a Function),
}

impl Line<'_> {
    /// Returns a text of a function; blank for a host bridge.
    fn of(&self, text: fn(&Function) -> Option<String>) -> Option<String> {
        match self {
            Self::Host { .. } => Some(String::new()),
            Self::Function(_, function) => text(function),
        }
    }
}

fn what(function: &Function) -> Option<String> {
    Some(match kind(function) {
        "nic" => "NIC".to_owned(),
        "nvme" => "NVMe".to_owned(),
        "other" => format!("class {:04x}", function.class? >> 8),
        kind => kind.to_owned(),
    })
}

/// Formats a link as `16 x16`. If it runs below what both ends support, that follows in brackets.
fn link(function: &Function) -> Option<String> {
    let text = |speed: Speed| format!("{} x{}", f64::from(speed.megatransfers) / 1000.0, speed.lanes);
    let current = function.link.current?;
    let max = function.link.max.filter(|max| max.weight() > current.weight());
    let of = max.map_or_else(String::new, |max| format!(" (of {})", text(max)));
    Some(text(current) + &of)
}

fn group(function: &Function) -> Option<String> {
    let group = function.iommu.as_ref()?;
    let kind = group.kind.as_deref().unwrap_or_default(); // an old kernel does not report it
    Some(format!("{} {kind}", group.number).trim_end().to_owned())
}

fn acs(function: &Function) -> Option<String> {
    let acs = &function.config.acs;
    let text = match acs {
        Acs::Absent => return None,
        Acs::Present { .. } if acs.redirects() == Some(true) => "redirects",
        Acs::Present { .. } => "off",
        Acs::Unread(_) => "not read",
    };
    Some(text.to_owned())
}

fn names(function: &Function) -> Option<String> {
    let names = [
        &function.accelerators,
        &function.rdma,
        &function.nets,
        &function.nvme,
    ];
    let names: Vec<&str> = names.into_iter().flatten().map(String::as_str).collect();
    (!names.is_empty()).then(|| names.join(" "))
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
    let named = |&address: &PciAddress| {
        let function = topology.function(address);
        let name = function.and_then(|function| function.accelerators.first());
        name.cloned().unwrap_or_else(|| address.to_string())
    };
    let mut header = vec!["NIC".to_owned(), "on".to_owned()];
    header.extend(picture.exporters.iter().map(named));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for nic in &topology.importers {
        let place = nic.function.map(|function| function.to_string());
        let mut row = vec![nic_name(nic), place.unwrap_or_else(|| DASH.to_owned())];
        let cards = picture.exporters.iter();
        row.extend(cards.map(|&card| cell(topology, card, nic, &mut notes)));
        rows.push(row);
    }
    let best = |&card: &PciAddress| best(topology, card).map_or_else(|| "none".to_owned(), nic_name);
    let mut last = vec!["best".to_owned(), String::new()];
    last.extend(picture.exporters.iter().map(best));
    rows.push(last);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let layout = Layout {
        repeated: 2,
        ..Layout::default()
    };
    output.table_in(&header, &rows, layout)?;
    for (word, meaning) in LEGEND.lines().filter_map(|line| line.split_once(": ")) {
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
            let note = format!("{refusal}\n    remedy: {}", refusal.remedy());
            return format!("no {}", notes.mark(note));
        }
        Reach::Unknown(what) => {
            let note = format!("not read, and it decides: {}", what.join("; "));
            return format!("? {}", notes.mark(note));
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
            let note = "ACS of the ports between is for root to read\n    remedy: sudo gaudi topo".to_owned();
            ("switch?", Some(note))
        }
    };
    let mut cell = format!("{way} {}", route.distance);
    let numa = nic
        .function
        .and_then(|function| topology.numa_distance(card, function));
    if let Some(numa) = numa.filter(|&numa| numa != 10) {
        cell.push_str(&format!(" numa {numa}"));
    }
    for note in note.into_iter().chain(topology.caveat(&route, nic)) {
        cell.push(' ');
        cell.push_str(&notes.mark(note));
    }
    cell
}
