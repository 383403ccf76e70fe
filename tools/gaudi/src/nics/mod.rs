//! `gaudi nics`: RDMA devices, their ports and addresses, whether they register dma-bufs, and which
//! cards they reach.

mod sysfs;
mod text;

use anyhow::{Result, anyhow};
use gaudi_dmabuf::reach::{Folder, Importer, Manifest, Reach, Topology, Tree};
use gaudi_seam::{Error, ErrorKind};
use gaudi_verbs::{Context, DmaBufSupport};
use serde::Serialize;

use crate::args_rdma::Nics;
use crate::exit;
use crate::output::Output;
use crate::topo;

/// A made-up server, as a [`Manifest`]: two Xeons and four switches, each with two cards and a NIC.
pub(crate) const EXAMPLE: &str = include_str!("../../../../dmabuf/tests/reach/fixtures/hls2.tree");
/// The ports of its NICs.
pub(crate) const EXAMPLE_PORTS: &str = include_str!("example.tree");
const OPERATION: &str = "nics";

#[derive(Serialize)]
struct Report {
    /// Nothing for this machine.
    source: Option<String>,
    nics: Vec<Nic>,
    /// Why queue pairs and regions are missing.
    resources_error: Option<String>,
}

/// One RDMA device.
#[derive(Debug, Serialize)]
struct Nic {
    name: String,
    /// Who drives it in the kernel.
    driver: Option<String>,
    node_type: Option<String>,
    guid: Option<String>,
    firmware: Option<String>,
    function: Option<String>,
    numa_node: Option<u32>,
    /// Its transfers are the processor's.
    software: bool,
    ports: Vec<Port>,
    dmabuf: DmaBuf,
    reach: Vec<Card>,
    /// `None` if the device was not opened.
    limits: Option<Limits>,
    queue_pairs: Vec<QueuePair>,
    regions: Vec<Region>,
}

/// The limits of a device, with the names of ibv_devinfo(1).
#[derive(Debug, Serialize)]
struct Limits {
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u32,
    max_cq: u32,
    max_cqe: u32,
    max_mr: u32,
    max_mr_size_bytes: u64,
    max_pd: u32,
    max_qp_rd_atom: u8,
    max_qp_init_rd_atom: u8,
    max_srq: u32,
    max_srq_wr: u32,
    max_mw: u32,
    max_ah: u32,
    max_message_bytes: Option<u32>,
    atomic_cap: String,
    page_size_cap: String,
}

/// A queue pair of any process of this machine.
#[derive(Debug, Serialize)]
struct QueuePair {
    qpn: u32,
    remote_qpn: Option<u32>,
    #[serde(rename = "type")]
    kind: String,
    state: String,
    owner: String,
    pid: Option<u32>,
}

/// A memory region of any process of this machine.
#[derive(Debug, Serialize)]
struct Region {
    number: u32,
    size_bytes: u64,
    /// Visible to root only.
    rkey: Option<String>,
    owner: String,
    pid: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Port {
    number: u32,
    state: Option<String>,
    phys_state: Option<String>,
    link_layer: Option<String>,
    rate: Option<String>,
    /// Bytes a packet.
    mtu_bytes: Option<u32>,
    /// `provider`, or `interface` where it follows from the interface's.
    mtu_from: Option<&'static str>,
    gids: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    index: u32,
    gid: String,
    kind: Option<String>,
    netdev: Option<String>,
}

/// Whether it registers dma-bufs.
#[derive(Debug, Serialize)]
struct DmaBuf {
    /// `yes`, `no`, or `likely` and `unlikely` where only the driver's name was looked at.
    answer: &'static str,
    /// `provider` where it was opened and asked, else `driver`.
    by: &'static str,
    why: String,
}

/// An accelerator, and whether the kernel lets this device at its memory.
#[derive(Debug, Serialize)]
struct Card {
    accelerator: String,
    name: Option<String>,
    /// `reachable`, `refused` or `unknown`.
    answer: &'static str,
    detail: String,
}

/// Opens a device; nothing where none may be opened.
type Open<'a> = Option<&'a dyn Fn(&str) -> gaudi_seam::Result<Context>>;

/// `details` adds limits, queue pairs and regions to the text.
pub(crate) fn run(arguments: &Nics, details: bool, output: &mut Output) -> Result<u8> {
    let (source, tree) = tree(arguments)?;
    if arguments.names {
        let nics = sysfs::read(&*tree).into_iter().map(|nic| nic.name);
        for name in nics.filter(|name| arguments.nics.is_empty() || arguments.nics.contains(name)) {
            output.line(name)?;
        }
        return Ok(exit::DONE);
    }
    let open = |name: &str| Context::open(gaudi_ibverbs::open(name)?);
    let here = source.is_none() && !arguments.no_open;
    let mut nics = collect(&*tree, if here { Some(&open) } else { None });
    for wanted in &arguments.nics {
        if !nics.iter().any(|nic| nic.name == *wanted) {
            let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
            let cause = match names.as_slice() {
                [] => format!("no RDMA device {wanted}: this machine has none"),
                _ => format!("no RDMA device {wanted}: this machine has {}", names.join(", ")),
            };
            return Err(Error::new(ErrorKind::NotFound, OPERATION)
                .because(cause)
                .helped_by("gaudi nics --example shows a machine with some")
                .into());
        }
    }
    if !arguments.nics.is_empty() {
        nics.retain(|nic| arguments.nics.contains(&nic.name));
    }
    let empty = nics.is_empty();
    let wanted = source.is_none() && !empty && (details || output.is_json());
    let resources = if wanted { resources(&mut nics) } else { Ok(()) };
    let report = Report {
        source,
        nics,
        resources_error: resources.err().map(|error| error.to_string()),
    };
    if output.is_json() {
        output.document("gaudi.nics", &report)?;
    } else {
        text::print(&report, details, output)?;
    }
    if empty {
        output.note("no RDMA device on this machine");
        output.note(
            "  help: to see what a machine with some gives: gaudi nics --example; a software one: rdma link add rxe0 type rxe netdev eth0",
        );
    }
    Ok(exit::DONE)
}

/// Adds the queue pairs and regions that the kernel lists, of every process.
fn resources(nics: &mut [Nic]) -> gaudi_seam::Result<()> {
    let owner = |pid: Option<u32>, kernel_user: &Option<String>| match (pid, kernel_user) {
        (Some(pid), _) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{pid} {}", name.trim()).trim_end().to_owned()
        }
        (None, Some(user)) => format!("kernel ({user})"),
        (None, None) => "unknown".to_owned(),
    };
    for one in gaudi_verbs::nldev::queue_pairs()? {
        if let Some(nic) = nics.iter_mut().find(|nic| nic.name == one.nic) {
            nic.queue_pairs.push(QueuePair {
                qpn: one.qpn,
                remote_qpn: one.remote_qpn,
                kind: one.kind_name(),
                state: one.state_name(),
                owner: owner(one.pid, &one.kernel_user),
                pid: one.pid,
            });
        }
    }
    for one in gaudi_verbs::nldev::regions()? {
        if let Some(nic) = nics.iter_mut().find(|nic| nic.name == one.nic) {
            nic.regions.push(Region {
                number: one.mrn,
                size_bytes: one.len,
                rkey: one.rkey.map(|rkey| format!("{:#x}", rkey.0)),
                owner: owner(one.pid, &one.kernel_user),
                pid: one.pid,
            });
        }
    }
    Ok(())
}

fn tree(arguments: &Nics) -> Result<(Option<String>, Box<dyn Tree>)> {
    if arguments.example {
        let text = format!("{EXAMPLE}\n{EXAMPLE_PORTS}");
        let tree: Manifest = text.parse().map_err(|error| anyhow!("the example: {error}"))?;
        return Ok((
            Some("an example, made up: not this machine".to_owned()),
            Box::new(tree),
        ));
    }
    match &arguments.sysfs {
        Some(path) => topo::tree_at(path),
        None => Ok((None, Box::new(Folder::new("/")))),
    }
}

/// Everything that the tree tells, and what the devices themselves do.
fn collect(tree: &dyn Tree, open: Open<'_>) -> Vec<Nic> {
    let topology = Topology::read(tree);
    let mut nics = sysfs::read(tree);
    for nic in &mut nics {
        let importer = topology
            .importers
            .iter()
            .find(|importer| importer.rdma.contains(&nic.name));
        if let Some(importer) = importer {
            nic.function = importer.function.map(|function| function.to_string());
            nic.software |= importer.software;
            let function = importer.function.and_then(|address| topology.function(address));
            nic.numa_node = function.and_then(|function| function.numa_node);
            // Of software, the function is the interface's.
            if !nic.software {
                nic.driver = function.and_then(|function| function.driver.clone());
                nic.dmabuf = sysfs::likely(nic.driver.as_deref());
            }
            nic.reach = cards(&topology, importer);
        }
        if let Some(open) = open {
            ask(nic, open);
        }
    }
    nics
}

fn cards(topology: &Topology, importer: &Importer) -> Vec<Card> {
    topology
        .accelerators()
        .map(|card| {
            let (answer, detail) = match topology.reach(card.address, importer) {
                Reach::Reachable(route) => ("reachable", route.to_string()),
                Reach::Refused(refusal) => ("refused", refusal.to_string()),
                Reach::Unknown(what) => ("unknown", format!("not read: {}", what.join(", "))),
            };
            Card {
                accelerator: card.address.to_string(),
                name: card.accelerators.first().cloned(),
                answer,
                detail,
            }
        })
        .collect()
}

/// What the device says when it is opened. Where it cannot be, sysfs' word stays, with the reason.
fn ask(nic: &mut Nic, open: &dyn Fn(&str) -> gaudi_seam::Result<Context>) {
    let context = match open(&nic.name) {
        Ok(context) => context,
        Err(error) => {
            nic.dmabuf.why = format!("{}; not asked: {error}", nic.dmabuf.why);
            return;
        }
    };
    let (answer, why) = match &context.attr().dmabuf {
        DmaBufSupport::Yes => ("yes", "it looked for the dma-buf of a bad descriptor".to_owned()),
        DmaBufSupport::No(why) => ("no", why.clone()),
    };
    nic.dmabuf = DmaBuf {
        answer,
        by: "provider",
        why,
    };
    let port = context.query_port();
    let attr = context.attr();
    nic.limits = Some(Limits {
        max_qp: attr.max_qp,
        max_qp_wr: attr.max_qp_wr,
        max_sge: attr.max_sge,
        max_cq: attr.max_cq,
        max_cqe: attr.max_cqe,
        max_mr: attr.max_mr,
        max_mr_size_bytes: attr.max_mr_size,
        max_pd: attr.max_pd,
        max_qp_rd_atom: attr.max_qp_rd_atom,
        max_qp_init_rd_atom: attr.max_qp_init_rd_atom,
        max_srq: attr.max_srq,
        max_srq_wr: attr.max_srq_wr,
        max_mw: attr.max_mw,
        max_ah: attr.max_ah,
        max_message_bytes: port.as_ref().ok().map(|port| port.max_msg_sz),
        atomic_cap: format!("{:?}", attr.atomic_cap),
        page_size_cap: format!("{:#x}", attr.page_size_cap),
    });
    if let Ok(port) = port {
        let number = u32::from(port.port_num);
        if let Some(row) = nic.ports.iter_mut().find(|row| row.number == number) {
            row.mtu_bytes = port.active_mtu.bytes();
            row.mtu_from = row.mtu_bytes.map(|_| "provider");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_softnic::{SoftNic, SoftNicConfig};

    fn example() -> Manifest {
        format!("{EXAMPLE}\n{EXAMPLE_PORTS}").parse().unwrap()
    }

    #[test]
    fn opened_device_overrides_sysfs() {
        let (nic, _other) = SoftNic::pair(SoftNicConfig::default()).unwrap();
        let open = |_: &str| Context::open(nic.clone());
        let nics = collect(&example(), Some(&open));
        for nic in &nics {
            assert_eq!((nic.dmabuf.answer, nic.dmabuf.by), ("yes", "provider"), "{nic:?}");
            assert_eq!(
                (nic.ports[0].mtu_bytes, nic.ports[0].mtu_from),
                (Some(4096), Some("provider"))
            );
        }
    }

    #[test]
    fn unopened_device_keeps_sysfs_and_reason() {
        let open = |_: &str| -> gaudi_seam::Result<Context> {
            Err(Error::from_errno("ibv_open_device", gaudi_seam::Errno::EACCES))
        };
        let nics = collect(&example(), Some(&open));
        assert_eq!((nics[0].dmabuf.answer, nics[0].dmabuf.by), ("likely", "driver"));
        assert!(nics[0].dmabuf.why.contains("EACCES"), "{:?}", nics[0].dmabuf);
    }

    #[test]
    fn each_card_is_judged_for_each_device() {
        let nics = collect(&example(), None);
        assert_eq!(nics.len(), 4);
        for nic in &nics {
            assert_eq!(nic.reach.len(), 8, "{}", nic.name);
            let near = nic.reach.iter().filter(|card| card.detail.starts_with("switch"));
            assert_eq!(near.count(), 2, "two cards stand below its switch: {nic:?}");
        }
    }
}
