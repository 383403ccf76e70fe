//! `gaudi nics`: RDMA devices, their ports and addresses, whether they register dma-bufs, and which
//! cards they reach.

mod sysfs;
mod text;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use gaudi::dmabuf::reach::{Importer, Reach, Topology, Tree};
use gaudi::verbs::nldev::{self, ForeignQp as QueuePair, ForeignRegion as Region};
use gaudi::verbs::{Context, DeviceAttr, DmaBufSupport};
use gaudi::{Error, ErrorKind};
use serde::{Serialize, Serializer};

use crate::common::Common;
use crate::exit;
use crate::output::Output;
use crate::report::{Column, Record, columns, records};
use crate::topo;

pub(crate) use sysfs::WITH_DMABUF;

/// List RDMA devices: ports, addresses, whether they register dma-bufs, and which cards' memory
/// they reach.
#[derive(Debug, Args)]
#[command(
    after_help = "The data comes from sysfs and, if it is installed, libibverbs. No accelerator is opened.\n\n\
                  With -v it also prints the limits of each device, and the queue pairs and memory regions of every process.\n\n\
                  Examples:\n  gaudi nics -v\n  gaudi nics --example"
)]
pub(crate) struct Nics {
    /// Show another machine: a file in the form of `gaudi topo --capture`, or a folder with a copy
    /// of its `sys`.
    #[arg(long, value_name = "PATH", conflicts_with = "example")]
    sysfs: Option<PathBuf>,
    /// Show a made-up server with eight cards and four NICs.
    #[arg(long)]
    example: bool,
    /// Only these devices; may be repeated.
    #[arg(long = "nic", value_name = "NAME")]
    nics: Vec<String>,
    /// Read only sysfs: open no device.
    #[arg(long)]
    no_open: bool,
    /// Print only the names, one on each line, for scripts; no device is opened.
    #[arg(long, conflicts_with = "json")]
    names: bool,
}

#[derive(Serialize)]
struct Report {
    /// `None` for this machine.
    source: Option<String>,
    nics: Vec<Nic>,
    /// Why queue pairs and regions are missing.
    resources_error: Option<String>,
}

/// One RDMA device.
#[derive(Debug, Serialize)]
struct Nic {
    name: String,
    /// Its kernel driver.
    driver: Option<String>,
    node_type: Option<String>,
    guid: Option<String>,
    firmware: Option<String>,
    function: Option<String>,
    numa_node: Option<u32>,
    /// Whether the processor performs its transfers.
    software: bool,
    ports: Vec<Port>,
    dmabuf: DmaBuf,
    reach: Vec<Card>,
    /// `None` if the device was not opened.
    #[serde(serialize_with = "limits")]
    limits: Option<Limits>,
    /// Of every process of this machine.
    #[serde(serialize_with = "queue_pairs")]
    queue_pairs: Vec<QueuePair>,
    /// Of every process of this machine.
    #[serde(serialize_with = "regions")]
    regions: Vec<Region>,
}

/// The limits of an open device.
#[derive(Debug)]
struct Limits {
    attr: DeviceAttr,
    max_msg_sz: Option<u32>,
}

/// The limits, with the names of ibv_devinfo(1).
const LIMITS: &[Column<Limits>] = &columns! { Limits:
    number "max_qp" "max_qp" |limits| limits.attr.max_qp;
    number "max_qp_wr" "max_qp_wr" |limits| limits.attr.max_qp_wr;
    number "max_sge" "max_sge" |limits| limits.attr.max_sge;
    number "max_cq" "max_cq" |limits| limits.attr.max_cq;
    number "max_cqe" "max_cqe" |limits| limits.attr.max_cqe;
    number "max_mr" "max_mr" |limits| limits.attr.max_mr;
    number "max_mr_size_bytes" "max_mr_size[B]" |limits| limits.attr.max_mr_size;
    number "max_pd" "max_pd" |limits| limits.attr.max_pd;
    number "max_qp_rd_atom" "max_qp_rd_atom" |limits| limits.attr.max_qp_rd_atom;
    number "max_qp_init_rd_atom" "max_qp_init_rd_atom" |limits| limits.attr.max_qp_init_rd_atom;
    number "max_srq" "max_srq" |limits| limits.attr.max_srq;
    number "max_srq_wr" "max_srq_wr" |limits| limits.attr.max_srq_wr;
    number "max_mw" "max_mw" |limits| limits.attr.max_mw;
    number "max_ah" "max_ah" |limits| limits.attr.max_ah;
    number "max_message_bytes" "max_msg_sz[B]" |limits| limits.max_msg_sz;
    text "atomic_cap" "atomic_cap" |limits| format!("{:?}", limits.attr.atomic_cap);
    text "page_size_cap" "page_size_cap" |limits| format!("{:#x}", limits.attr.page_size_cap);
};

const QUEUE_PAIRS: &[Column<QueuePair>] = &columns! { QueuePair:
    text "" "NIC" |one| one.nic;
    number "qpn" "QP number" |one| one.qpn;
    text "type" "type" |one| one.kind_name();
    text "state" "state" |one| one.state_name();
    number "remote_qpn" "peer's" |one| one.remote_qpn;
    text "owner" "owner" |one| owner(one.pid, one.kernel_user.as_deref());
    text "pid" "" |one| one.pid;
};

const REGIONS: &[Column<Region>] = &columns! { Region:
    text "" "NIC" |one| one.nic;
    number "number" "region" |one| one.mrn;
    grouped "size_bytes" "size[B]" |one| one.len;
    // Visible to root only.
    text "rkey" "rkey" |one| format!("{:#x}", one.rkey?.0);
    text "owner" "owner" |one| owner(one.pid, one.kernel_user.as_deref());
    text "pid" "" |one| one.pid;
};

fn limits<S: Serializer>(limits: &Option<Limits>, serializer: S) -> Result<S::Ok, S::Error> {
    limits
        .as_ref()
        .map(|limits| Record(LIMITS, limits))
        .serialize(serializer)
}

fn queue_pairs<S: Serializer>(rows: &[QueuePair], serializer: S) -> Result<S::Ok, S::Error> {
    records(QUEUE_PAIRS, rows).serialize(serializer)
}

fn regions<S: Serializer>(rows: &[Region], serializer: S) -> Result<S::Ok, S::Error> {
    records(REGIONS, rows).serialize(serializer)
}

/// Returns the process or the part of the kernel that owns an object.
fn owner(pid: Option<u32>, kernel_user: Option<&str>) -> String {
    match (pid, kernel_user) {
        (Some(pid), _) => {
            // A process that ended has no name.
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{pid} {}", name.trim()).trim_end().to_owned()
        }
        (None, Some(user)) => format!("kernel ({user})"),
        (None, None) => "unknown".to_owned(),
    }
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

/// Whether a device registers dma-bufs.
#[derive(Debug, Serialize)]
struct DmaBuf {
    /// `yes`, `no`, or `likely` and `unlikely` if only the driver's name is known.
    answer: &'static str,
    /// `provider` if the device was opened, otherwise `driver`.
    by: &'static str,
    why: String,
}

/// An accelerator, and whether the kernel lets this device access its memory.
#[derive(Debug, Serialize)]
struct Card {
    accelerator: String,
    name: Option<String>,
    /// `reachable`, `refused` or `unknown`.
    answer: &'static str,
    detail: String,
}

pub(crate) fn run(common: &Common, arguments: &Nics, output: &mut Output) -> Result<u8> {
    // Adds limits, queue pairs and regions to the text.
    let details = common.verbose > 0;
    let (source, tree) = topo::source(arguments.example, arguments.sysfs.as_deref())?;
    if arguments.names {
        let nics = sysfs::read(&*tree).into_iter().map(|nic| nic.name);
        for name in nics.filter(|name| arguments.nics.is_empty() || arguments.nics.contains(name)) {
            output.line(name)?;
        }
        return Ok(exit::DONE);
    }
    let here = source.is_none() && !arguments.no_open;
    let mut nics = collect(&*tree, here.then_some(&gaudi::verbs::open));
    for wanted in &arguments.nics {
        if !nics.iter().any(|nic| nic.name == *wanted) {
            let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
            let has = match names.as_slice() {
                [] => "none".to_owned(),
                names => names.join(", "),
            };
            return Err(Error::new(ErrorKind::NotFound, "nics")
                .because(format!("no RDMA device {wanted}: this machine has {has}"))
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
fn resources(nics: &mut [Nic]) -> gaudi::Result<()> {
    for one in nldev::queue_pairs()? {
        if let Some(nic) = nics.iter_mut().find(|nic| nic.name == one.nic) {
            nic.queue_pairs.push(one);
        }
    }
    for one in nldev::regions()? {
        if let Some(nic) = nics.iter_mut().find(|nic| nic.name == one.nic) {
            nic.regions.push(one);
        }
    }
    Ok(())
}

/// Returns the devices of a tree, with what each reports when it is opened. `None` if none may be
/// opened.
fn collect<O: Fn(&str) -> gaudi::Result<Context>>(tree: &dyn Tree, open: Option<&O>) -> Vec<Nic> {
    let topology = Topology::read(tree);
    let mut nics = sysfs::read(tree);
    for nic in &mut nics {
        let mut importers = topology.importers.iter();
        if let Some(importer) = importers.find(|importer| importer.rdma.contains(&nic.name)) {
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
            ask(nic, open(&nic.name));
        }
    }
    nics
}

fn cards(topology: &Topology, importer: &Importer) -> Vec<Card> {
    let cards = topology.accelerators().map(|card| {
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
    });
    cards.collect()
}

/// Adds what a device reports when it is opened. If it cannot be opened, what sysfs has stays, with
/// the reason.
fn ask(nic: &mut Nic, opened: gaudi::Result<Context>) {
    let context = match opened {
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
    nic.limits = Some(Limits {
        attr: context.attr().clone(),
        max_msg_sz: port.as_ref().ok().map(|port| port.max_msg_sz),
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

    fn example() -> Box<dyn Tree> {
        topo::source(true, None).unwrap().1
    }

    #[test]
    fn opened_device_overrides_sysfs() {
        let (nic, _other) = gaudi::verbs::software_pair().unwrap();
        let open = |_: &str| Ok(nic.clone());
        let nics = collect(&*example(), Some(&open));
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
        let open = |_: &str| -> gaudi::Result<Context> {
            Err(Error::from_errno("ibv_open_device", gaudi::Errno::EACCES))
        };
        let nics = collect(&*example(), Some(&open));
        assert_eq!((nics[0].dmabuf.answer, nics[0].dmabuf.by), ("likely", "driver"));
        assert!(nics[0].dmabuf.why.contains("EACCES"), "{:?}", nics[0].dmabuf);
    }

    #[test]
    fn each_card_is_judged_for_each_device() {
        let nics = collect(&*example(), None::<&fn(&str) -> gaudi::Result<Context>>);
        assert_eq!(nics.len(), 4);
        for nic in &nics {
            assert_eq!(nic.reach.len(), 8, "{}", nic.name);
            let near = nic.reach.iter().filter(|card| card.detail.starts_with("switch"));
            assert_eq!(near.count(), 2, "two cards stand below its switch: {nic:?}");
        }
    }
}
