//! Node B: receives chunks into device memory, brings them to the host, and reports what arrived.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use gaudi::sys::poll::readable;
use gaudi::verbs::softnic::SoftNicConfig;
use gaudi::verbs::{Access, WcOpcode, WorkCompletion};
use gaudi::{DeviceSpec, Error, ErrorKind};
use sha2::Digest as _;

use crate::args::{Demo, Stage};
use crate::control::{Control, Failure, TIMEOUT};
use crate::demo::node::Node;
use crate::demo::protocol::{Hello, Reply, Request, VERSION};
use crate::demo::report::Meter;
use crate::demo::{CORRUPT_BIT, by_engine, corrupt_at};
use crate::nic::{Nic, checked};
use crate::saved::Saved;

/// Runs as node B of the process at the other end of standard input.
pub(crate) fn run(spec: &DeviceSpec, demo: &Demo) -> Result<u8> {
    let mut control = Control::new(crate::peer::stdin_socket("demo")?);
    match serve(spec, demo, &mut control) {
        Ok(()) => Ok(crate::exit::DONE),
        Err(error) => {
            // Node A reports the error, unless it has ended.
            let sent = control.send(&Reply::Failed(Failure::of(&error)));
            tracing::debug!("node B failed: {error:#}; sent to node A: {sent:?}");
            Ok(crate::exit::FAILED)
        }
    }
}

struct Receiver {
    node: Node,
    save: Option<Saved>,
    nic: Meter,
    down: Meter,
    host: Meter,
}

fn serve(spec: &DeviceSpec, demo: &Demo, control: &mut Control) -> Result<()> {
    let hello: Hello = control.receive()?;
    if hello.version != VERSION {
        bail!("node A has protocol version {}, node B {VERSION}", hello.version);
    }
    let (slots, chunk_bytes) = (hello.slots, hello.chunk_bytes);
    if !(1..=16).contains(&slots) || !(1..=64 << 20).contains(&chunk_bytes) {
        bail!("node A asks for {slots} slots of {chunk_bytes} bytes");
    }
    let save = demo.save.as_deref().map(Saved::create).transpose()?;
    let nic = match demo.nic.is_soft() {
        true => {
            let config = SoftNicConfig {
                faults: demo.nic.faults.clone(),
                ..SoftNicConfig::default()
            };
            Nic::soft("softnic-b", control.receive_cable()?, config)?
        }
        false => Nic::open(&demo.nic.name, demo.gid_index)?,
    };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut node = Node::new(spec, nic, access, hello)?;
    control.send(&Reply::Ready)?;
    let (stream, end) = control.framed();
    node.link.connect(stream, None, end)?;
    // Node A cannot send before it knows the region, so the receives are posted first.
    for slot in 0..slots {
        node.link.qps[0].post_recv(u64::from(slot)).post(&[])?;
    }
    node.link.exchange_regions(stream, end)?;
    let mut receiver = Receiver {
        node,
        save,
        nic: Meter::default(),
        down: Meter::default(),
        host: Meter::default(),
    };
    receiver.work(control)
}

impl Receiver {
    fn work(&mut self, control: &mut Control) -> Result<()> {
        let mut index = 0;
        let mut waiting = Instant::now();
        loop {
            let mut one = [WorkCompletion::EMPTY];
            self.node.link.cq.req_notify(false)?;
            if self.node.link.cq.poll(&mut one)? == 1 {
                self.nic.time += waiting.elapsed();
                checked(&one[0])?;
                self.deliver(index, one[0], control)?;
                index += 1;
                waiting = Instant::now();
                continue;
            }
            let fds = [self.node.link.cq.event_fd(), control.as_fd()];
            let ready = readable(fds, TIMEOUT).map_err(|errno| Error::from_errno("poll", errno))?;
            if ready[0] {
                self.node.link.cq.ack_event()?;
            }
            if ready[1] {
                match control.receive()? {
                    Request::Examine { index } => control.send(&Reply::Places(self.node.places(index)?))?,
                    Request::Finish { whole } => return self.finish(whole, control),
                }
            }
            if ready == [false; 2] {
                return Err(Error::timed_out("wait for node A").into());
            }
        }
    }

    fn deliver(&mut self, index: u64, arrived: WorkCompletion, control: &mut Control) -> Result<()> {
        let node = &mut self.node;
        let chunk = node.chunk(index);
        let (slot, start, len) = (chunk.slot, chunk.start, chunk.len);
        let seen = (arrived.opcode, arrived.imm_data, u64::from(arrived.byte_len));
        if seen != (WcOpcode::RECV_RDMA_WITH_IMM, Some(slot as u32), len) || len == 0 {
            return Err(Error::new(ErrorKind::Protocol, "receive a chunk")
                .because("the NIC delivered something else")
                .saw(format!("{arrived:?}"), format!("{len} bytes for slot {slot}"))
                .into());
        }
        node.link.qps[0].post_recv(slot as u64).post(&[])?;
        self.nic.bytes += len;
        node.moved += len;
        self.down.measure(len, || node.copy(chunk, false))?;
        let corrupt = node.hello.corrupt.filter(|_| index == 0);
        if corrupt == Some(Stage::DmaB) {
            let at = start + corrupt_at(len);
            let mut byte = [0];
            node.pinned.read(at, &mut byte)?;
            node.pinned.write(at, &[byte[0] ^ CORRUPT_BIT])?;
        }
        let bytes = &mut node.held[slot];
        bytes.resize(usize::try_from(len)?, 0);
        self.host.measure(len, || node.pinned.read(start, bytes))?;
        node.cpu_copied += len;
        if corrupt == Some(Stage::HostB) {
            bytes[usize::try_from(corrupt_at(len))?] ^= CORRUPT_BIT;
        }
        node.hasher.update(&bytes);
        if let Some(saved) = &mut self.save {
            saved.write_all(bytes).context("cannot write what was received")?;
        }
        let digest = node.digest();
        tracing::info!(chunk = index, bytes = len, "received and downloaded");
        Ok(control.send(&Reply::Delivered { index, digest })?)
    }

    fn finish(&mut self, whole: bool, control: &mut Control) -> Result<()> {
        if let Some(mut saved) = self.save.take().filter(|_| whole) {
            saved.keep()?;
        }
        let mut report = self.node.report();
        let (engine, dma) = (by_engine(&report), "device B → host (LIN_DMA)");
        report.stages = vec![
            self.nic.row(Stage::Nic, "B", String::new(), ""),
            self.down.row(Stage::DmaB, "B", engine, dma),
            self.host
                .row(Stage::HostB, "B", "cpu".to_owned(), "host → result"),
        ];
        Ok(control.send(&Reply::Report(Box::new(report)))?)
    }
}
