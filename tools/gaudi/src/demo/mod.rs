//! `gaudi demo`: sends a file from host to device A, through dma-bufs and NICs to device B in
//! another process, and to its host.

mod node;
mod node_a;
mod node_b;
mod protocol;
mod report;
mod source;

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use gaudi::{BackendSpec, DeviceSpec, Environment, Error, ErrorKind};

use crate::args::{Demo, Stage};
use crate::common::Common;
use crate::control::Control;
use crate::exit::{self, Usage};
use crate::figures::nanos;
use crate::layers::{around_beside_nic, nic_rules};
use crate::nic::{SOFTNIC, of_one_kind};
use crate::output::Output;
use crate::peer::{Peer, common_of_peer};
use crate::progress::Progress;
use protocol::{Hello, VERSION};
use report::{NodeReport, Report};
use source::Source;

pub(crate) use node::hex;

/// Bytes of a chunk: large enough that its bytes dominate its cost, small enough that two chunks
/// are little memory.
const CHUNK: u64 = 8 << 20;
/// Chunks in flight: one is sent while the one before is checked.
const SLOTS: u32 = 2;
/// The bit that `--corrupt` flips.
const CORRUPT_BIT: u8 = 1;

/// Returns the byte of a chunk in which `--corrupt` flips a bit.
fn corrupt_at(len: u64) -> u64 {
    len / 2
}

/// Returns the name of the engine that performed a stage.
fn by_engine(node: &NodeReport) -> String {
    match node.backend.as_str() {
        "kernel" => "DMA engine".to_owned(),
        backend => format!("DMA engine ({backend})"),
    }
}

pub(crate) fn run(common: &Common, demo: &Demo, output: &mut Output) -> Result<u8> {
    if demo.node_b {
        let spec = match common.devices.as_slice() {
            [spec] => node_spec(spec, demo)?,
            _ => return Err(Usage("node B has one device".to_owned()).into()),
        };
        return node_b::run(&spec, demo);
    }
    let peer_nic = demo.peer_nic.as_ref().unwrap_or(&demo.nic);
    of_one_kind(&demo.nic, peer_nic)?;
    let rules = nic_rules(common)?;
    let peer_nic = peer_nic.clone().with_faults(&rules)?.to_string();
    let nic = demo.nic.clone().with_faults(&rules)?;
    if demo.corrupt == Some(Stage::Nic) && !demo.nic.is_soft() {
        return Err(Usage(format!(
            "no bit flips in {}: only {SOFTNIC} does so when asked",
            demo.nic.name
        ))
        .into());
    }
    distinct(common, demo)?;
    let (spec_a, spec_b) = specs(common, demo)?;
    let of_b = common_of_peer(common, ".node-b");
    if let Some(file) = &of_b.trace {
        output.note(format!("note: node B's trace is {}", file.display()));
    }
    let (spec_a, spec_b) = (
        around_beside_nic(common, spec_a)?,
        around_beside_nic(&of_b, spec_b)?,
    );
    let source = Source::open(demo.file.as_deref())?;
    if demo.corrupt.is_some() && source.bytes == 0 {
        return Err(Usage("there is no bit to flip in a file of no bytes".to_owned()).into());
    }
    let (name, bytes) = (source.name.clone(), source.bytes);
    let hello = Hello {
        version: VERSION,
        bytes,
        chunk_bytes: CHUNK,
        slots: SLOTS,
        corrupt: demo.corrupt,
    };
    let start = Instant::now();
    let (ours, theirs) = UnixStream::pair().context("joining the nodes")?;
    let child = Peer::spawn(theirs, &["demo", "--node-b"], common, |command| {
        command.args(["--device", &spec_b.to_string(), "--nic", &peer_nic]);
        if let Some(path) = &demo.save {
            command.arg("--save").arg(path);
        }
        if let Some(index) = demo.gid_index {
            command.arg("--gid-index").arg(index.to_string());
        }
        // Ctrl-C ends node A. B ends with it, by its socket, and leaves no half of a file.
        command.process_group(0);
    })?;
    let progress = Progress::new("sending", bytes, output.is_quiet());
    let sent = node_a::run(&spec_a, demo, &nic, source, hello, Control::new(ours), progress);
    let sent = child.finish("node B", sent)?;
    let time_ns = nanos(start.elapsed());
    let verified = sent.wrong.is_none() && sent.node_a.sha256 == sent.node_b.sha256;
    // Both nodes have a row of the NICs' stage: A's clock has its start and its end.
    let of_b = sent.node_b.stages.iter().filter(|row| row.stage != Stage::Nic);
    let stages = sent.node_a.stages.iter().chain(of_b).cloned().collect();
    let report = Report {
        file: name,
        size_bytes: bytes,
        chunk_bytes: CHUNK,
        slots: SLOTS,
        stages,
        sha256_source: sent.node_a.sha256.clone(),
        sha256_far_end: sent.node_b.sha256.clone(),
        verified,
        corrupted_by: sent.wrong.flatten(),
        mock: [&sent.node_a, &sent.node_b]
            .iter()
            .any(|node| node.backend == "mock"),
        time_ns,
        node_a: sent.node_a,
        node_b: sent.node_b,
    };
    let printed = report::print(&report, output).and_then(|()| output.finish());
    exit::judged(verified, printed, || {
        let cause = match sent.wrong.flatten() {
            Some(stage) => format!("stage {} changed the data", stage.name()),
            None => "the data changed on the way, at no stage that could be found".to_owned(),
        };
        Error::new(ErrorKind::Corrupt, "demo")
            .because(cause)
            .saw(&report.sha256_far_end, &report.sha256_source)
    })
}

/// Returns the nodes' devices: two mocks, or those of `-d`. The environment is ignored: the demo
/// works on any machine.
fn specs(common: &Common, demo: &Demo) -> Result<(DeviceSpec, DeviceSpec)> {
    Ok(match common.devices.as_slice() {
        [] => (DeviceSpec::mock(), DeviceSpec::mock()),
        [both] => {
            let spec = node_spec(both, demo)?;
            if !is_mock(&spec) {
                return Err(Usage(format!(
                    "a card has one user at a time, and both nodes would open {spec}: name two, such as -d {spec} -d mock:gaudi2"
                ))
                .into());
            }
            (spec.clone(), spec)
        }
        [a, b] => (node_spec(a, demo)?, node_spec(b, demo)?),
        more => {
            return Err(Usage(format!(
                "the demo has two nodes, and {} devices were named",
                more.len()
            ))
            .into());
        }
    })
}

/// Refuses to write results to the file that is sent, and to write two results to one file. The
/// file may be saved over itself: a saved file has its name only once it is complete.
fn distinct(common: &Common, demo: &Demo) -> Result<()> {
    let named = [
        ("--file", &demo.file),
        ("--save", &demo.save),
        ("--output", &common.output),
        ("--trace", &common.trace),
    ];
    let identity = |path: &PathBuf| {
        let there = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        Some((there.dev(), there.ino()))
    };
    for (at, (option, path)) in named.iter().enumerate() {
        let Some(path) = path else { continue };
        let other = named[..at].iter().find(|(first, other)| {
            (*first, *option) != ("--file", "--save")
                && other.as_ref().is_some_and(|other| {
                    other == path || identity(path).is_some_and(|one| identity(other) == Some(one))
                })
        });
        if let Some((other, _)) = other {
            return Err(Usage(format!("{other} and {option} are one file, {}", path.display())).into());
        }
    }
    Ok(())
}

fn is_mock(spec: &DeviceSpec) -> bool {
    matches!(spec.backend, BackendSpec::Mock(_))
}

/// Whether a processor can map the device's dma-bufs: those of a replay are memory too.
fn is_mapped_by_processors(spec: &DeviceSpec) -> bool {
    is_mock(spec) || matches!(spec.backend, BackendSpec::Replay(_))
}

/// Parses a device spec. Rejects a card with the software NIC: no processor maps a card's dma-buf.
fn node_spec(text: &str, demo: &Demo) -> Result<DeviceSpec> {
    let spec = gaudi::choose(Some(text), &Environment::default())?;
    if is_mapped_by_processors(&spec) || !demo.nic.is_soft() {
        return Ok(spec);
    }
    Err(Error::unsupported(
        "demo",
        format!("{SOFTNIC} copies by the processor and cannot reach the memory of {spec}"),
    )
    .helped_by(
        "name a NIC that does: gaudi demo --nic NAME (gaudi nics lists them); or run it on mocks: gaudi demo",
    )
    .into())
}
