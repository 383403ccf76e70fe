//! `gaudi perf write|read|send|atomic`: RDMA between two nodes, as perftest measures it.
//!
//! One process measures, the other serves. They talk over one socket; what is measured goes through the NICs alone.

mod loops;
mod node;
mod report;
mod staged;
mod wire;

use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use gaudi_seam::{DeviceSpec, Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::args::Common;
use crate::args_rdma::{Memory, PerfRdma, Way, What};
use crate::demo::protocol::{Control, Failure};
use crate::exit::{self, Judged, Usage};
use crate::nic::SOFTNIC;
use crate::output::Output;
use crate::progress::Progress;
use node::{Node, Side};
use report::{Report, Row};
use wire::Wire;

/// Raised when a message changes.
const VERSION: u32 = 1;
const OPERATION: &str = "perf";
/// What errors of the peer are called.
const PEER: &str = "the peer";
/// The most bytes of one operation.
const MOST: u64 = 1 << 30;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    Write,
    Read,
    Send,
    Atomic,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::Atomic => "atomic",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Measure {
    Bandwidth,
    Latency,
}

/// From who measures, before anything else.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Hello {
    version: u32,
    op: Op,
    memory: Memory,
    dmabuf: Way,
    /// Of the largest row.
    bytes: u64,
    /// Both NICs are software, over a cable of their own.
    softnic: bool,
    /// Work requests of a queue.
    depth: u32,
}

/// From who measures.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Request {
    /// One row: so many operations of so many bytes.
    Row {
        measure: Measure,
        bytes: u64,
        count: u32,
        /// Ends watch their memory for what arrives; otherwise they wait for completions.
        by_memory: bool,
    },
    /// The bytes that were written to, or that are read: what are they?
    Digest { incoming: bool, bytes: u64 },
    /// That was all.
    Finish,
}

/// From who serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Reply {
    /// Its NIC and memory are ready.
    Open(Side),
    /// A row may begin.
    Ready,
    /// A row is over.
    Done,
    Digest(String),
    /// It cannot go on.
    Failed(Failure),
}

pub(crate) fn run(common: &Common, perf: &PerfRdma, op: Op, output: &mut Output) -> Result<u8> {
    if perf.serve {
        let stdin = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .context("standard input")?;
        return serve(common, perf, Wire::Unix(UnixStream::from(stdin)), None);
    }
    let sizes = sizes(perf, op)?;
    if perf.memory == Memory::Host {
        common.without_layers(&format!("perf {} --memory host", op.name()), true)?;
    }
    if let Some(address) = perf.listen {
        let listener = TcpListener::bind(address).with_context(|| format!("listening at {address}"))?;
        output.note(format!("waiting at {}", listener.local_addr()?));
        let (stream, _) = listener.accept().context("accepting")?;
        stream.set_nodelay(true)?;
        return serve(common, perf, Wire::Tcp(stream), Some(&listener));
    }
    match &perf.connect {
        Some(address) => {
            let wire = Wire::connect(address)?;
            measure(common, perf, op, &sizes, wire, output)
        }
        None => {
            let (ours, theirs) = UnixStream::pair().context("joining the nodes")?;
            let mut peer = Peer::spawn(common, perf, op, theirs)?;
            let done = measure(common, perf, op, &sizes, Wire::Unix(ours), output);
            let ended = peer.wait();
            done.map_err(|error| match ended {
                Some(how) => error.context(format!("the peer ended ({how})")),
                None => error,
            })
        }
    }
}

fn sizes(perf: &PerfRdma, op: Op) -> Result<Vec<u64>> {
    if op == Op::Atomic {
        return Ok(vec![8]);
    }
    for &size in &perf.sizes {
        if size == 0 || size > MOST {
            return Err(Usage(format!("an operation has 1 byte to 1 GiB, not {size}")).into());
        }
    }
    Ok(perf.sizes.clone())
}

/// The device of the peer that is started here, with layers of its own: it is another process.
fn of_peer(common: &Common) -> Result<DeviceSpec> {
    let trace = common.trace.as_ref().map(|file| {
        let mut name = file.clone().into_os_string();
        name.push(".peer");
        PathBuf::from(name)
    });
    let devices = common.devices.get(1).or(common.devices.first()).cloned();
    node::device_spec(&Common {
        trace,
        devices: devices.into_iter().collect(),
        ..common.clone()
    })
}

/// The process that serves; it ends when its socket does.
struct Peer(Child);

impl Peer {
    fn spawn(common: &Common, perf: &PerfRdma, op: Op, socket: UnixStream) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program to start the peer")?;
        let mut command = Command::new(program);
        command.args(["perf", op.name(), "--serve", "--nic"]);
        command.arg(perf.peer_nic.as_ref().unwrap_or(&perf.nic));
        if let Some(index) = perf.gid_index {
            command.arg("--gid-index").arg(index.to_string());
        }
        command
            .arg("--timeout")
            .arg(perf.timeout.as_secs_f64().to_string());
        if perf.memory == Memory::Device {
            command.arg("--device").arg(of_peer(common)?.to_string());
            if common.on_hardware {
                command.arg("--on-hardware");
            }
        }
        command
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)))
            .stdout(Stdio::null());
        Ok(Self(command.spawn().context("starting the peer")?))
    }

    /// How it ended, where that was not well.
    fn wait(&mut self) -> Option<String> {
        match self.0.wait() {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// The next word of the peer; its failure is ours.
fn reply(control: &mut Control) -> Result<Reply> {
    match control.receive()? {
        Reply::Failed(failure) => Err(failure.into_error(PEER).into()),
        reply => Ok(reply),
    }
}

fn out_of_step(reply: &Reply) -> anyhow::Error {
    Error::new(ErrorKind::Protocol, OPERATION)
        .because(format!("an answer out of step: {reply:?}"))
        .into()
}

fn measure(
    common: &Common,
    perf: &PerfRdma,
    op: Op,
    sizes: &[u64],
    wire: Wire,
    output: &mut Output,
) -> Result<u8> {
    let mut control = Control::new(wire.duplicate()?)?;
    control.set_patience(perf.timeout);
    let hello = Hello {
        version: VERSION,
        op,
        memory: perf.memory,
        dmabuf: perf.dmabuf,
        bytes: sizes.iter().copied().max().unwrap_or(1),
        softnic: perf.nic == SOFTNIC,
        depth: perf.window + 16,
    };
    control.send(&hello)?;
    let cable = if hello.softnic {
        Some(wire.cable(&mut control)?)
    } else {
        None
    };
    let mut node = Node::open(common, perf, &hello, cable)?;
    let theirs = match reply(&mut control)? {
        Reply::Open(side) => side,
        other => return Err(out_of_step(&other)),
    };
    let ours = node.side();
    let rows = if ours.staged() || theirs.staged() {
        staged::measure(&mut node, perf, op, sizes, &wire, &mut control, output)?
    } else {
        node.join(&mut control)?;
        let mut rows = Vec::new();
        let mut progress = Progress::new("measuring", sizes.len() as u64, output.is_quiet());
        for &bytes in sizes {
            for kind in kinds(perf.measure) {
                rows.push(row(&mut node, perf, op, kind, bytes, &theirs, &mut control)?);
            }
            progress.advance(1);
        }
        rows
    };
    control.send(&Request::Finish)?;
    let failed = rows.iter().any(|row| row.verified == Some(false));
    let report = Report::new(op, perf, ours, theirs, rows);
    node.close()?;
    let printed = report::print(&report, output).and_then(|()| output.finish());
    if failed {
        let error = Error::new(ErrorKind::Corrupt, OPERATION).because("what arrived is not what was sent");
        return Err(Judged(error).into());
    }
    printed?;
    Ok(exit::DONE)
}

fn kinds(what: What) -> Vec<Measure> {
    match what {
        What::Bandwidth => vec![Measure::Bandwidth],
        What::Latency => vec![Measure::Latency],
        What::Both => vec![Measure::Bandwidth, Measure::Latency],
    }
}

fn row(
    node: &mut Node,
    perf: &PerfRdma,
    op: Op,
    measure: Measure,
    bytes: u64,
    theirs: &Side,
    control: &mut Control,
) -> Result<Row> {
    // Writes are seen where they arrive, if a processor can look there.
    let by_memory =
        op == Op::Write && measure == Measure::Latency && node.side().is_host() && theirs.is_host();
    let (warm, count) = (perf.warm_up, perf.iterations);
    if measure == Measure::Latency && op == Op::Send {
        node.prepare_receives()?;
    }
    if by_memory {
        node.clear_incoming(bytes)?;
    }
    control.send(&Request::Row {
        measure,
        bytes,
        count: warm + count,
        by_memory,
    })?;
    match reply(control)? {
        Reply::Ready => {}
        other => return Err(out_of_step(&other)),
    }
    let taken = match measure {
        Measure::Bandwidth => {
            let bandwidth = loops::Bandwidth {
                window: perf.window,
                signal: perf.signal,
                timeout: perf.timeout,
            };
            if warm > 0 {
                bandwidth.run(node, op, bytes, warm)?;
            }
            bandwidth.run(node, op, bytes, count)?
        }
        Measure::Latency => loops::latency(node, op, bytes, (warm, count), by_memory, perf.timeout)?,
    };
    match reply(control)? {
        Reply::Done => {}
        other => return Err(out_of_step(&other)),
    }
    let verified = match (measure, op) {
        (Measure::Bandwidth, Op::Write | Op::Send | Op::Read) => {
            // A read brings the peer's outgoing bytes here, everything else ours there.
            let incoming = op != Op::Read;
            control.send(&Request::Digest { incoming, bytes })?;
            match reply(control)? {
                Reply::Digest(digest) => Some(digest == node.digest(!incoming, bytes)?),
                other => return Err(out_of_step(&other)),
            }
        }
        _ => None,
    };
    Ok(Row::new(op, measure, bytes, warm, taken, by_memory, verified))
}

fn serve(common: &Common, perf: &PerfRdma, wire: Wire, listener: Option<&TcpListener>) -> Result<u8> {
    let mut control = Control::new(wire.duplicate()?)
        .context("standard input is no socket: the peer is started by gaudi perf, not by hand")?;
    control.set_patience(perf.timeout);
    match answer(common, perf, &wire, listener, &mut control) {
        Ok(()) => Ok(exit::DONE),
        Err(error) => {
            // Who measures tells the story; it cannot be told where that one is gone.
            let _ = control.send(&Reply::Failed(Failure::of(&error)));
            if perf.serve { Ok(exit::FAILED) } else { Err(error) }
        }
    }
}

fn answer(
    common: &Common,
    perf: &PerfRdma,
    wire: &Wire,
    listener: Option<&TcpListener>,
    control: &mut Control,
) -> Result<()> {
    let hello: Hello = control.receive()?;
    if hello.version != VERSION {
        return Err(Error::new(ErrorKind::Protocol, OPERATION)
            .because("the other end is another version")
            .saw(hello.version, VERSION)
            .into());
    }
    let softnic = perf.nic == SOFTNIC;
    if hello.bytes == 0 || hello.bytes > MOST || hello.depth > 4096 {
        return Err(Error::new(ErrorKind::Protocol, OPERATION)
            .because("the other end asks for what this one has not")
            .saw(
                format!("{} bytes, {} requests", hello.bytes, hello.depth),
                format!("1 to {MOST} bytes, at most 4096 requests"),
            )
            .into());
    }
    if hello.softnic != softnic {
        return Err(Error::new(ErrorKind::InvalidInput, OPERATION)
            .because("both ends need a NIC of one kind: two software ones, or two of libibverbs")
            .saw(
                format!("softnic: {}", hello.softnic),
                format!("softnic: {softnic}"),
            )
            .into());
    }
    let cable = if softnic {
        Some(wire.take_cable(listener, control, perf.timeout)?)
    } else {
        None
    };
    let mut node = Node::open(common, perf, &hello, cable)?;
    control.send(&Reply::Open(node.side()))?;
    if node.wants_endpoint(control)? {
        staged::serve(&mut node, wire, control)?;
        return node.close();
    }
    node.join_as_server(control)?;
    loop {
        match control.receive()? {
            Request::Row {
                measure,
                bytes,
                count,
                by_memory,
            } => {
                if bytes > hello.bytes {
                    return Err(Error::new(ErrorKind::Protocol, OPERATION)
                        .because("a row is larger than what was said")
                        .into());
                }
                let receives = hello.op == Op::Send;
                if receives {
                    node.prepare_receives()?;
                }
                if by_memory {
                    node.clear_incoming(bytes)?;
                }
                control.send(&Reply::Ready)?;
                match measure {
                    Measure::Bandwidth if receives => loops::receive(&mut node, count, perf.timeout)?,
                    Measure::Latency if receives || by_memory => {
                        loops::echo(&mut node, bytes, count, by_memory, perf.timeout)?;
                    }
                    // The NIC serves alone.
                    _ => {}
                }
                control.send(&Reply::Done)?;
            }
            Request::Digest { incoming, bytes } => {
                let digest = node.digest(incoming, bytes.min(hello.bytes))?;
                control.send(&Reply::Digest(digest))?;
            }
            Request::Finish => return node.close(),
        }
    }
}
