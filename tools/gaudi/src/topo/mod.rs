//! `gaudi topo`: the PCI tree, and which NIC reaches which accelerator's memory.
//!
//! It shows what `gaudi::dmabuf::reach` computes from sysfs. No node is opened: not even a control
//! node.

mod report;
mod text;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use gaudi::dmabuf::reach::{Folder, Manifest, Recorder, Topology, Tree};
use gaudi::{BackendSpec, Error, ErrorKind, KernelSelector, PciAddress};

use crate::common::Common;
use crate::exit::{self, Usage};
use crate::info::chosen;
use crate::output::Output;

/// The most bytes of a captured file: a large server's has about one megabyte.
const LARGEST: u64 = 64 << 20;
/// The operation of errors.
const OPERATION: &str = "topo";

/// A made-up server, as a [`Manifest`]: two Xeons and four switches, each with two cards and a NIC.
const EXAMPLE: &str = include_str!("../../../../dmabuf/tests/reach/fixtures/hls2.tree");
/// The ports of its NICs.
const EXAMPLE_PORTS: &str = include_str!("example.tree");

/// Draw the PCI tree, and show which NIC reaches which accelerator's memory, or why it does
/// not.
#[derive(Debug, Args)]
#[command(
    after_help = "It reads sysfs alone and opens no device. The ACS bits of switches are for root to read.\n\n\
                  Examples:\n  sudo gaudi topo\n  gaudi topo --example\n  sudo gaudi topo --capture server.tree; gaudi topo --sysfs server.tree"
)]
pub(crate) struct Topo {
    /// Show another machine: a file that `--capture` wrote, or a folder with a copy of its `sys`.
    #[arg(long, value_name = "PATH", conflicts_with = "example")]
    sysfs: Option<PathBuf>,
    /// Show a made-up server with eight cards.
    #[arg(long)]
    example: bool,
    /// Write what was read to a file, for `--sysfs` on another machine. It holds PCI addresses,
    /// configuration space and names of interfaces.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Judge this PCI function as if it were an accelerator; may be repeated.
    #[arg(long = "exporter", value_name = "ADDRESS")]
    exporters: Vec<PciAddress>,
    /// Draw every function, not only cards, NICs and what is above them.
    #[arg(long)]
    all: bool,
}

/// A topology, and what to judge in it.
struct Picture {
    /// Where it comes from, in words; `None` for this machine.
    source: Option<String>,
    topology: Topology,
    /// Functions whose memory is judged.
    exporters: Vec<PciAddress>,
}

pub(crate) fn run(common: &Common, arguments: &Topo, output: &mut Output) -> Result<u8> {
    let (source, tree) = source(arguments.example, arguments.sysfs.as_deref())?;
    let recorder = Recorder::new(&*tree);
    let topology = Topology::read(&recorder);
    if let Some(path) = &arguments.capture {
        fs::write(path, recorder.manifest().to_string())
            .with_context(|| format!("cannot write to {}", path.display()))?;
    }
    let exporters = exporters(common, arguments, &topology)?;
    let picture = Picture {
        source,
        topology,
        exporters,
    };
    if output.is_json() {
        output.document("gaudi.topo", &report::document(&picture))?;
    } else {
        text::print(&picture, arguments.all, output)?;
    }
    notes(&picture, output);
    Ok(exit::DONE)
}

/// Prints notes to standard error: problems, and missing cards, NICs or kernel options.
fn notes(picture: &Picture, output: &Output) {
    let topology = &picture.topology;
    for problem in &topology.problems {
        output.note(format!("warning: {problem}"));
    }
    if picture.exporters.is_empty() {
        output.note(match &picture.source {
            None => "no Habana accelerator on this machine's PCI bus".to_owned(),
            Some(source) => format!("no Habana accelerator in {source}"),
        });
        output.note(
            "  help: to see what a machine with cards gives: gaudi topo --example; to judge any function: --exporter ADDRESS",
        );
    } else if topology.importers.is_empty() {
        output.note("no NIC on the PCI bus");
    }
    if topology.kernel.p2pdma.is_none() && !picture.exporters.is_empty() {
        output.note("whether the kernel has CONFIG_PCI_P2PDMA is unknown: the answers assume that it has");
    }
}

/// A tree of files, and where it comes from; `None` for this machine.
type Source = (Option<String>, Box<dyn Tree>);

/// Returns the tree that the options of a command select.
///
/// # Errors
/// The file cannot be read, or is not a capture.
pub(crate) fn source(example: bool, sysfs: Option<&Path>) -> Result<Source> {
    if example {
        let text = format!("{EXAMPLE}\n{EXAMPLE_PORTS}");
        let tree: Manifest = text.parse().map_err(|error| anyhow!("the example: {error}"))?;
        let source = "an example, made up: not this machine".to_owned();
        return Ok((Some(source), Box::new(tree)));
    }
    match sysfs {
        Some(path) => tree_at(path),
        None => Ok((None, Box::new(Folder::new("/")))),
    }
}

/// Reads another machine: a file of `--capture`, or a folder.
fn tree_at(path: &Path) -> Result<Source> {
    let source = Some(path.display().to_string());
    let cannot = || format!("cannot read {}", path.display());
    if fs::metadata(path).with_context(cannot)?.is_dir() {
        return Ok((source, Box::new(Folder::new(root(path)?))));
    }
    let mut text = String::new();
    let file = fs::File::open(path).with_context(cannot)?;
    file.take(LARGEST)
        .read_to_string(&mut text)
        .with_context(cannot)?;
    let shown = path.display();
    let tree: Manifest = text
        .parse()
        .map_err(|error| anyhow!("{shown} was not written by `gaudi topo --capture`: {error}"))?;
    if text.trim().is_empty() {
        return Err(anyhow!(
            "{shown} is empty: `gaudi topo --capture` wrote nothing to it"
        ));
    }
    Ok((source, Box::new(tree)))
}

/// Returns the folder that contains `sys`. `path` may also be the copy of `sys` itself.
fn root(path: &Path) -> Result<&Path> {
    if path.join("sys").is_dir() {
        return Ok(path);
    }
    match path.parent() {
        Some(parent) if path.file_name().is_some_and(|name| name == "sys") => Ok(parent),
        _ => Err(Usage(format!("{} has no folder `sys`", path.display())).into()),
    }
}

/// Returns the functions that `-d` and `--exporter` name, otherwise all accelerators.
fn exporters(common: &Common, arguments: &Topo, topology: &Topology) -> Result<Vec<PciAddress>> {
    let cards = || topology.accelerators().map(|card| card.address);
    let mut exporters = Vec::new();
    if !common.devices.is_empty() {
        for spec in chosen(common)? {
            let not_found = || {
                Error::new(ErrorKind::NotFound, OPERATION)
                    .because(format!("{spec} is not on the PCI bus"))
                    .helped_by("gaudi topo shows all; to see an example: gaudi topo --example")
            };
            let card = match spec.backend {
                BackendSpec::Kernel(KernelSelector::FirstFree) => cards().next(),
                BackendSpec::Kernel(KernelSelector::Index(index)) => card_of_index(topology, index),
                BackendSpec::Kernel(KernelSelector::Bus(bus)) | BackendSpec::Vfio(bus) => {
                    topology.function(bus).map(|card| card.address)
                }
                BackendSpec::Mock(_) => {
                    return Err(Error::unsupported(OPERATION, "a mock has no PCI topology")
                        .helped_by("to see an example: gaudi topo --example")
                        .into());
                }
                _ => {
                    return Err(Usage(format!(
                        "topo takes kernel:N, kernel:BUS and vfio:BUS, not {spec}"
                    ))
                    .into());
                }
            };
            exporters.push(card.ok_or_else(not_found)?);
        }
    } else if arguments.exporters.is_empty() {
        exporters.extend(cards());
    }
    for &exporter in &arguments.exporters {
        let found = topology.function(exporter).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, OPERATION)
                .because(format!("there is no PCI function {exporter}"))
                .helped_by("gaudi topo --all shows every function")
        })?;
        exporters.push(found.address);
    }
    // Each once, as they were named.
    let mut seen = BTreeSet::new();
    exporters.retain(|exporter| seen.insert(*exporter));
    Ok(exporters)
}

/// Returns the card whose node has a number.
pub(crate) fn card_of_index(topology: &Topology, index: u32) -> Option<PciAddress> {
    let named = |name: &String| *name == format!("accel{index}") || *name == format!("hl{index}");
    let mut cards = topology.accelerators();
    Some(cards.find(|card| card.accelerators.iter().any(named))?.address)
}
