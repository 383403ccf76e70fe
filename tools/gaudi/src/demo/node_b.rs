//! Node B: receives chunks into device memory, brings them to the host, and says what arrived.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use gaudi::verbs::softnic::SoftNicConfig;
use gaudi::verbs::{Access, WcOpcode, WorkCompletion};
use gaudi::{DeviceSpec, Error, ErrorKind};
use sha2::{Digest, Sha256};

use crate::args::{Demo, Stage};
use crate::control::{Control, Failure, TIMEOUT};
use crate::demo::node::{Node, checked, hex};
use crate::demo::protocol::{Hello, Places, Reply, Request, VERSION};
use crate::demo::report::Meter;
use crate::demo::{CORRUPT_BIT, by_engine, corrupt_at};
use crate::nic::{Nic, SOFTNIC};
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
    hello: Hello,
    /// What the CPU took out of pinned memory, a slot each.
    delivered: Vec<Vec<u8>>,
    hasher: Sha256,
    save: Option<Saved>,
    nic: Meter,
    down: Meter,
    host: Meter,
}

fn serve(spec: &DeviceSpec, demo: &Demo, control: &mut Control) -> Result<()> {
    let hello: Hello = control.receive()?;
    if hello.version != VERSION {
        bail!("node A speaks version {}, node B {VERSION}", hello.version);
    }
    if hello.slots == 0 || hello.slots > 16 || hello.chunk_bytes == 0 || hello.chunk_bytes > 64 << 20 {
        bail!(
            "node A asks for {} slots of {} bytes",
            hello.slots,
            hello.chunk_bytes
        );
    }
    let save = demo.save.as_deref().map(Saved::create).transpose()?;
    let nic = match demo.nic == SOFTNIC {
        true => Nic::soft("softnic-b", control.receive_cable()?, SoftNicConfig::default())?,
        false => Nic::open(&demo.nic, demo.gid_index)?,
    };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let slots = (hello.chunk_bytes, hello.slots);
    let mut node = Node::new(spec, nic, access, slots)?;
    control.send(&Reply::Ready)?;
    let (stream, end) = control.framed();
    node.link.connect(stream, None, end)?;
    // Node A cannot send before it knows the region, so the receives are posted first.
    for slot in 0..hello.slots {
        node.link.qps[0].post_recv(u64::from(slot)).post(&[])?;
    }
    node.link.exchange_regions(stream, end)?;
    let mut receiver = Receiver {
        delivered: vec![Vec::new(); hello.slots as usize],
        node,
        hello,
        hasher: Sha256::new(),
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
                let arrived = checked(one[0])?;
                self.deliver(index, arrived, control)?;
                index += 1;
                waiting = Instant::now();
                continue;
            }
            let fds = [self.node.link.cq.event_fd(), control.as_fd()];
            let ready =
                gaudi_sys::poll::readable(fds, TIMEOUT).map_err(|errno| Error::from_errno("poll", errno))?;
            if ready[0] {
                self.node.link.cq.ack_event()?;
            }
            if ready[1] {
                match control.receive()? {
                    Request::Examine { index } => {
                        let places = self.places(index)?;
                        control.send(&Reply::Places(places))?;
                    }
                    Request::Finish { whole } => return self.finish(whole, control),
                }
            }
            if ready == [false; 2] {
                return Err(Error::timed_out("wait for node A").into());
            }
        }
    }

    /// Bytes of a chunk.
    fn len(&self, index: u64) -> u64 {
        let start = index.saturating_mul(self.hello.chunk_bytes);
        self.hello.bytes.saturating_sub(start).min(self.hello.chunk_bytes)
    }

    fn deliver(&mut self, index: u64, arrived: WorkCompletion, control: &mut Control) -> Result<()> {
        let slot = index % u64::from(self.hello.slots);
        let len = self.len(index);
        let wanted = (
            WcOpcode::RECV_RDMA_WITH_IMM,
            Some(u32::try_from(slot)?),
            u64::from(arrived.byte_len),
        );
        if (arrived.opcode, arrived.imm_data, len) != wanted || len == 0 {
            return Err(Error::new(ErrorKind::Protocol, "receive a chunk")
                .because("the NIC delivered something else")
                .saw(format!("{arrived:?}"), format!("{len} bytes for slot {slot}"))
                .into());
        }
        self.node.link.qps[0].post_recv(slot).post(&[])?;
        self.nic.bytes += len;
        self.node.moved += len;
        self.down.measure(len, || self.node.download(slot, len))?;
        let start = self.node.start(slot);
        if index == 0 && self.hello.corrupt == Some(Stage::DmaB) {
            let at = start + corrupt_at(len);
            let mut byte = [0];
            self.node.pinned.read(at, &mut byte)?;
            self.node.pinned.write(at, &[byte[0] ^ CORRUPT_BIT])?;
        }
        let bytes = &mut self.delivered[usize::try_from(slot)?];
        bytes.resize(usize::try_from(len)?, 0);
        self.host.measure(len, || self.node.pinned.read(start, bytes))?;
        self.node.cpu_copied += len;
        if index == 0 && self.hello.corrupt == Some(Stage::HostB) {
            bytes[usize::try_from(corrupt_at(len))?] ^= CORRUPT_BIT;
        }
        self.hasher.update(&bytes);
        if let Some(saved) = &mut self.save {
            let cannot = || "cannot write what was received";
            saved.write_all(bytes).with_context(cannot)?;
        }
        let digest = hex(&self.hasher.clone().finalize());
        tracing::info!(chunk = index, bytes = len, "received and downloaded");
        control.send(&Reply::Delivered { index, digest })?;
        Ok(())
    }

    fn places(&self, index: u64) -> Result<Places> {
        let slot = index % u64::from(self.hello.slots);
        let len = self.len(index);
        Ok(Places {
            device: self.node.digest_device(slot, len)?,
            pinned: self.node.digest_pinned(slot, len)?,
            delivered: hex(&Sha256::digest(&self.delivered[usize::try_from(slot)?])),
        })
    }

    fn finish(&mut self, whole: bool, control: &mut Control) -> Result<()> {
        if let Some(mut saved) = self.save.take().filter(|_| whole) {
            saved.keep()?;
        }
        let mut report = self.node.report(hex(&self.hasher.clone().finalize()));
        let engine = by_engine(&report);
        report.stages = vec![
            self.nic.row(Stage::Nic, "B", String::new(), ""),
            self.down
                .row(Stage::DmaB, "B", engine, "device B → host (LIN_DMA)"),
            self.host
                .row(Stage::HostB, "B", "cpu".to_owned(), "host → result"),
        ];
        control.send(&Reply::Report(Box::new(report)))?;
        Ok(())
    }
}
