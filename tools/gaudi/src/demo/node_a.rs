//! Node A: reads the file, takes it to device memory, and sends it on; then checks what node B says
//! of it.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gaudi::verbs::softnic::{FaultRule, SoftNicConfig};
use gaudi::verbs::{Access, RemoteRegion};
use gaudi::{DeviceSpec, Error, ErrorKind};
use sha2::{Digest, Sha256};

use crate::args::{Demo, Stage};
use crate::control::{Control, TIMEOUT};
use crate::demo::node::{Node, RDMA, hex};
use crate::demo::protocol::{Hello, Places, Reply, Request};
use crate::demo::report::{Meter, NodeReport};
use crate::demo::source::Source;
use crate::demo::{CORRUPT_BIT, by_engine, corrupt_at};
use crate::nic::{Nic, SOFTNIC};
use crate::progress::Progress;

/// The operation that an error of the other node names.
const NODE_B: &str = "node B";
/// How long to listen for the reason of a node that went.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What node A found.
pub(crate) struct Sent {
    pub(crate) node_a: NodeReport,
    pub(crate) node_b: NodeReport,
    /// The stage that changed the data; `Some(None)` where the data differ and no place does.
    pub(crate) wrong: Option<Option<Stage>>,
}

struct Sender<'a> {
    node: Node,
    remote: RemoteRegion,
    control: &'a mut Control,
    hello: Hello,
    source: Source,
    /// What was read, a slot each: the truth while a chunk is on its way.
    read: Vec<Vec<u8>>,
    hasher: Sha256,
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
    source: Source,
    hello: Hello,
    control: &mut Control,
    progress: Progress,
) -> Result<Sent> {
    control.send(&hello)?;
    let nic = match demo.nic == SOFTNIC {
        true => soft(&source, &hello, control)?,
        false => Nic::open(&demo.nic, demo.gid_index)?,
    };
    // The NIC only reads this memory, and only for us: the narrowest region there is.
    let slots = (hello.chunk_bytes, hello.slots);
    let mut node = Node::new(spec, nic, Access::empty(), slots)?;
    match reply(control)? {
        Reply::Ready => {}
        other => return Err(out_of_step(&other)),
    }
    let (stream, end) = control.framed();
    node.link.connect(stream, None, end)?;
    let remote = node.link.exchange_regions(stream, end)?;
    let mut sender = Sender {
        read: vec![Vec::new(); hello.slots as usize],
        node,
        remote,
        control,
        hello,
        source,
        hasher: Sha256::new(),
        promised: VecDeque::new(),
        host: Meter::default(),
        up: Meter::default(),
        nic: Meter::default(),
        progress,
    };
    let wrong = sender
        .send_all()
        .map_err(|error| node_bs_reason(sender.control, error))?;
    let (node_a, node_b) = sender.finish(wrong.is_none())?;
    sender.node.close()?;
    Ok(Sent {
        node_a,
        node_b,
        wrong,
    })
}

/// The software NIC; node B gets the other end of its cable.
fn soft(source: &Source, hello: &Hello, control: &mut Control) -> Result<Nic> {
    let (cable, far_end) = UnixStream::pair().context("making the cable")?;
    control.send_cable(&far_end)?;
    let fault = match hello.corrupt {
        Some(Stage::Nic) => {
            let byte = corrupt_at(source.bytes.min(hello.chunk_bytes));
            Some(FaultRule::FlipPayloadBit { byte, bit: 0 })
        }
        _ => None,
    };
    let config = SoftNicConfig {
        fault,
        ..SoftNicConfig::default()
    };
    Nic::soft("softnic-a", cable.into(), config)
}

/// A NIC that lost its peer says little. What node B said before it went says more.
fn node_bs_reason(control: &mut Control, error: anyhow::Error) -> anyhow::Error {
    if error
        .downcast_ref::<Error>()
        .is_none_or(|error| error.operation() != RDMA)
    {
        return error;
    }
    control.set_timeout(LAST_WORDS);
    loop {
        match reply(control) {
            Ok(_) => {}
            Err(reason)
                if reason
                    .downcast_ref::<Error>()
                    .is_some_and(|reason| reason.operation() == NODE_B) =>
            {
                return reason;
            }
            Err(_) => return error,
        }
    }
}

impl Sender<'_> {
    fn send_all(&mut self) -> Result<Option<Option<Stage>>> {
        let chunks = self.source.bytes.div_ceil(self.hello.chunk_bytes);
        for index in 0..chunks {
            if self.promised.len() == self.hello.slots as usize {
                if let Some(wrong) = self.acknowledge()? {
                    return Ok(Some(wrong));
                }
            }
            self.send(index)?;
            self.progress.advance(self.hello.chunk_bytes);
        }
        while !self.promised.is_empty() {
            if let Some(wrong) = self.acknowledge()? {
                return Ok(Some(wrong));
            }
        }
        self.source.ended()?;
        Ok(None)
    }

    fn len(&self, index: u64) -> u64 {
        (self.source.bytes - index * self.hello.chunk_bytes).min(self.hello.chunk_bytes)
    }

    fn send(&mut self, index: u64) -> Result<()> {
        let slot = index % u64::from(self.hello.slots);
        let len = self.len(index);
        let start = self.node.start(slot);
        let corrupt = self.hello.corrupt.filter(|_| index == 0);
        let bytes = &mut self.read[usize::try_from(slot)?];
        bytes.resize(usize::try_from(len)?, 0);
        self.source.fill(bytes)?;
        self.hasher.update(&bytes);
        self.promised
            .push_back((index, hex(&self.hasher.clone().finalize())));
        let at = corrupt_at(len);
        let flipped = [bytes[usize::try_from(at)?] ^ CORRUPT_BIT];

        self.host.measure(len, || self.node.pinned.write(start, bytes))?;
        self.node.cpu_copied += len;
        if corrupt == Some(Stage::HostA) {
            self.node.pinned.write(start + at, &flipped)?;
        }
        self.up.measure(len, || self.node.upload(slot, len))?;
        if corrupt == Some(Stage::DmaA) {
            self.node.device.write(&self.node.memory, start + at, &flipped)?;
        }
        let local = [self.node.link.mr().sge(start, u32::try_from(len)?)?];
        let to = self.remote.at(start, len)?;
        let imm = u32::try_from(slot)?;
        let node = &mut self.node;
        self.nic.measure(len, || {
            node.link.qps[0]
                .post_send(index)
                .signaled(true)
                .write_imm(&local, to, imm)
                .post()?;
            node.completion(TIMEOUT)
        })?;
        self.node.moved += len;
        tracing::info!(chunk = index, bytes = len, "uploaded and sent");
        Ok(())
    }

    /// Waits for B's word on the oldest chunk; `Some` where it arrived wrong.
    fn acknowledge(&mut self) -> Result<Option<Option<Stage>>> {
        let Some((index, promised)) = self.promised.pop_front() else {
            return Ok(None);
        };
        match reply(self.control)? {
            Reply::Delivered { index: said, digest } if said == index => {
                if digest == promised {
                    return Ok(None);
                }
            }
            other => return Err(out_of_step(&other)),
        }
        // Chunks that are on their way to B are acknowledged before its answer.
        self.control.send(&Request::Examine { index })?;
        loop {
            match reply(self.control)? {
                Reply::Delivered { .. } => {}
                Reply::Places(places) => return Ok(Some(self.examine(index, &places)?)),
                other => return Err(out_of_step(&other)),
            }
        }
    }

    /// The first place on the way whose bytes are not those of the place before.
    fn examine(&self, index: u64, b: &Places) -> Result<Option<Stage>> {
        let slot = index % u64::from(self.hello.slots);
        let len = self.len(index);
        let places = [
            hex(&Sha256::digest(&self.read[usize::try_from(slot)?])),
            self.node.digest_pinned(slot, len)?,
            self.node.digest_device(slot, len)?,
            b.device.clone(),
            b.pinned.clone(),
            b.delivered.clone(),
        ];
        let changed = places.windows(2).position(|pair| pair[0] != pair[1]);
        Ok(changed.map(|at| Stage::ALL[at]))
    }

    fn finish(&mut self, whole: bool) -> Result<(NodeReport, NodeReport)> {
        self.control.send(&Request::Finish { whole })?;
        let node_b = loop {
            match reply(self.control)? {
                Reply::Report(report) => break *report,
                Reply::Delivered { .. } => {}
                other => return Err(out_of_step(&other)),
            }
        };
        let mut node_a = self.node.report(hex(&self.hasher.clone().finalize()));
        let engine = by_engine(&node_a);
        node_a.stages = vec![
            self.host.row(Stage::HostA, "A", "cpu".to_owned(), "file → host"),
            self.up.row(Stage::DmaA, "A", engine, "host → device A (LIN_DMA)"),
            self.nic.row(
                Stage::Nic,
                "A → B",
                node_a.nic.clone(),
                "dma-buf → NICs → dma-buf",
            ),
        ];
        Ok((node_a, node_b))
    }
}

/// The next word of node B; its failure is ours.
fn reply(control: &mut Control) -> Result<Reply> {
    match control.receive()? {
        Reply::Failed(failure) => Err(failure.into_error(NODE_B).into()),
        reply => Ok(reply),
    }
}

fn out_of_step(reply: &Reply) -> anyhow::Error {
    Error::new(ErrorKind::Protocol, "receive from node B")
        .because(format!("an answer out of step: {reply:?}"))
        .into()
}
