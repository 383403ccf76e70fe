//! Node A: reads the file, copies it to device memory, sends it, and checks node B's reports.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result};
use gaudi::verbs::softnic::{MAX_FRAME_BYTES, SoftNicConfig};
use gaudi::verbs::{Access, RemoteRegion, WorkCompletion};
use gaudi::{DeviceSpec, Error};
use sha2::Digest as _;

use crate::args::{Demo, Stage};
use crate::control::{Control, TIMEOUT, out_of_step};
use crate::demo::node::Node;
use crate::demo::protocol::{Hello, Places, Reply, Request};
use crate::demo::report::{Meter, NodeReport};
use crate::demo::source::Source;
use crate::demo::{CORRUPT_BIT, by_engine, corrupt_at};
use crate::nic::{Nic, NicSpec, checked};
use crate::progress::Progress;

/// The result of node A.
pub(crate) struct Sent {
    pub(crate) node_a: NodeReport,
    pub(crate) node_b: NodeReport,
    /// The stage that changed the data; `Some(None)` if the data differ and no place does.
    pub(crate) wrong: Option<Option<Stage>>,
}

struct Sender {
    node: Node,
    remote: RemoteRegion,
    control: Control,
    source: Source,
    /// Digest of everything up to each chunk that B has not acknowledged.
    promised: VecDeque<(u64, String)>,
    host: Meter,
    up: Meter,
    nic: Meter,
    progress: Progress,
}

pub(crate) fn run(
    spec: &DeviceSpec,
    demo: &Demo,
    nic: &NicSpec,
    source: Source,
    hello: Hello,
    mut control: Control,
    progress: Progress,
) -> Result<Sent> {
    control.send(&hello)?;
    let nic = match nic.is_soft() {
        true => soft(&hello, nic, &control)?,
        false => Nic::open(&nic.name, demo.gid_index)?,
    };
    // The NIC only reads this memory, and only for this node: the region needs no right.
    let mut node = Node::new(spec, nic, Access::empty(), hello)?;
    match control.reply()? {
        Reply::Ready => {}
        other => return Err(out_of_step(&other)),
    }
    let (stream, end) = control.framed();
    node.link.connect(stream, None, end)?;
    let remote = node.link.exchange_regions(stream, end)?;
    let mut sender = Sender {
        node,
        remote,
        control,
        source,
        promised: VecDeque::new(),
        host: Meter::default(),
        up: Meter::default(),
        nic: Meter::default(),
        progress,
    };
    let wrong = sender.send_all();
    let wrong = wrong.map_err(|error| sender.control.explain_by_peer::<Reply>(error))?;
    let (node_a, node_b) = sender.finish(wrong.is_none())?;
    sender.node.close()?;
    Ok(Sent {
        node_a,
        node_b,
        wrong,
    })
}

/// Opens the software NIC, and sends the other end of its cable to node B.
fn soft(hello: &Hello, nic: &NicSpec, control: &Control) -> Result<Nic> {
    let (cable, far_end) = UnixStream::pair().context("making the cable")?;
    control.send_cable(&far_end)?;
    let mut faults = nic.faults.clone();
    if hello.corrupt == Some(Stage::Nic) {
        let byte = corrupt_at(hello.bytes.min(hello.chunk_bytes));
        let frame = u64::from(MAX_FRAME_BYTES);
        // The frames of the first chunk are the first that have payload.
        let line = format!(
            "nic.packet:size=1..:when={}:flip={}",
            byte / frame + 1,
            byte % frame * 8
        );
        faults.rules.push(line.parse()?);
    }
    let config = SoftNicConfig {
        faults,
        ..SoftNicConfig::default()
    };
    Nic::soft("softnic-a", cable.into(), config)
}

impl Sender {
    fn send_all(&mut self) -> Result<Option<Option<Stage>>> {
        let Hello {
            bytes,
            chunk_bytes,
            slots,
            ..
        } = self.node.hello;
        let chunks = bytes.div_ceil(chunk_bytes);
        // The last turns only wait for the chunks that are under way.
        for index in 0..chunks + u64::from(slots) {
            if index >= slots.into() {
                if let Some(wrong) = self.acknowledge()? {
                    return Ok(Some(wrong));
                }
            }
            if index < chunks {
                self.send(index)?;
                self.progress.advance(chunk_bytes);
            }
        }
        self.source.ended()?;
        Ok(None)
    }

    fn send(&mut self, index: u64) -> Result<()> {
        let node = &mut self.node;
        let chunk = node.chunk(index);
        let (start, len) = (chunk.start, chunk.len);
        let corrupt = node.hello.corrupt.filter(|_| index == 0);
        let bytes = &mut node.held[chunk.slot];
        bytes.resize(usize::try_from(len)?, 0);
        self.source.fill(bytes)?;
        node.hasher.update(&bytes);
        let at = corrupt_at(len);
        let flipped = [bytes[usize::try_from(at)?] ^ CORRUPT_BIT];

        self.host.measure(len, || node.pinned.write(start, bytes))?;
        node.cpu_copied += len;
        self.promised.push_back((index, node.digest()));
        if corrupt == Some(Stage::HostA) {
            node.pinned.write(start + at, &flipped)?;
        }
        self.up.measure(len, || node.copy(chunk, true))?;
        if corrupt == Some(Stage::DmaA) {
            node.device.write(&node.memory, start + at, &flipped)?;
        }
        let local = [node.link.mr().sge(start, u32::try_from(len)?)?];
        let to = self.remote.at(start, len)?;
        self.nic.measure(len, || {
            let post = node.link.qps[0].post_send(index).signaled(true);
            post.write_imm(&local, to, chunk.slot as u32).post()?;
            let mut one = [WorkCompletion::EMPTY];
            match node.link.cq.wait(&mut one, TIMEOUT)? {
                0 => Err(Error::timed_out("wait for the NIC")),
                _ => checked(&one[0]),
            }
        })?;
        node.moved += len;
        tracing::info!(chunk = index, bytes = len, "uploaded and sent");
        Ok(())
    }

    /// Waits for B's digest of the oldest chunk; `Some` if the chunk arrived wrong.
    fn acknowledge(&mut self) -> Result<Option<Option<Stage>>> {
        let Some((index, promised)) = self.promised.pop_front() else {
            return Ok(None);
        };
        match self.control.reply()? {
            Reply::Delivered {
                index: delivered,
                digest,
            } if delivered == index => {
                if digest == promised {
                    return Ok(None);
                }
            }
            other => return Err(out_of_step(&other)),
        }
        match self.ask(&Request::Examine { index })? {
            Reply::Places(places) => Ok(Some(self.examine(index, places)?)),
            other => Err(out_of_step(&other)),
        }
    }

    /// Returns B's answer. Chunks that are on their way to B are acknowledged before it.
    fn ask(&mut self, request: &Request) -> Result<Reply> {
        self.control.send(request)?;
        loop {
            match self.control.reply()? {
                Reply::Delivered { .. } => {}
                other => return Ok(other),
            }
        }
    }

    /// Returns the first stage whose bytes differ from those of the stage before.
    fn examine(&self, index: u64, b: Places) -> Result<Option<Stage>> {
        let a = self.node.places(index)?;
        let places = [a.delivered, a.pinned, a.device, b.device, b.pinned, b.delivered];
        let changed = places.windows(2).position(|pair| pair[0] != pair[1]);
        Ok(changed.map(|at| Stage::ALL[at]))
    }

    fn finish(&mut self, whole: bool) -> Result<(NodeReport, NodeReport)> {
        let node_b = match self.ask(&Request::Finish { whole })? {
            Reply::Report(report) => *report,
            other => return Err(out_of_step(&other)),
        };
        let mut node_a = self.node.report();
        let (engine, nic) = (by_engine(&node_a), node_a.nic.clone());
        let dma = "host → device A (LIN_DMA)";
        node_a.stages = vec![
            self.host.row(Stage::HostA, "A", "cpu".to_owned(), "file → host"),
            self.up.row(Stage::DmaA, "A", engine, dma),
            self.nic.row(Stage::Nic, "A → B", nic, "dma-buf → NICs → dma-buf"),
        ];
        Ok((node_a, node_b))
    }
}
