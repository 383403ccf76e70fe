//! The parts of both nodes: a device, its memory exported as a dma-buf, and a NIC that reaches
//! that memory through it.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use gaudi::dmabuf::Window;
use gaudi::remote::{Link, LinkConfig};
use gaudi::verbs::Access;
use gaudi::verbs::softnic::SoftNic;
use gaudi::{Buffer, Device, DeviceSpec, Error, HostMapping};
use sha2::{Digest, Sha256};

use crate::control::TIMEOUT;
use crate::demo::protocol::{Hello, Places};
use crate::demo::report::{NodeReport, peak_memory};
use crate::nic::Nic;

/// One node. The fields are in the order in which they are dropped.
pub(crate) struct Node {
    pub(crate) link: Link,
    /// The software NIC, which counts its own bytes.
    softnic: Option<Arc<SoftNic>>,
    /// The NIC's name in tables.
    nic_name: String,
    software_nic: bool,
    /// Payload of the work that completed here, both ways.
    pub(crate) moved: u64,
    window: Window,
    pub(crate) memory: Buffer,
    pub(crate) pinned: HostMapping,
    pub(crate) device: Device,
    /// Bytes that the processor copied between the file and pinned memory.
    pub(crate) cpu_copied: u64,
    pub(crate) hello: Hello,
    /// The bytes of each slot's chunk outside of pinned memory.
    pub(crate) held: Vec<Vec<u8>>,
    /// Of every chunk so far.
    pub(crate) hasher: Sha256,
}

/// The place of a chunk: at `start` in device memory, in pinned memory and in the region alike.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    pub(crate) slot: usize,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Node {
    /// Opens the device, exports its memory, and registers the export with the NIC.
    pub(crate) fn new(spec: &DeviceSpec, nic: Nic, access: Access, hello: Hello) -> Result<Self> {
        let bytes = hello.chunk_bytes * u64::from(hello.slots);
        let device = Device::open(spec)?;
        let memory = device.alloc_exclusive(bytes)?;
        let pinned = device.alloc_host(usize::try_from(bytes).context("slots larger than memory")?)?;
        let window = memory.window(..)?;
        let config = LinkConfig {
            access,
            queue_pairs: 1,
            max_send_wr: 2 * hello.slots,
            max_recv_wr: 2 * hello.slots,
            max_inline_data: 0,
        };
        let link = Link::new(&gaudi::remote::Nic::new(&nic.context)?, &(&memory).into(), config)?;
        tracing::info!(
            device = %device.id(),
            nic = nic.context.name(),
            bytes,
            path = link.mr().path().name(),
            "exported device memory and registered it"
        );
        Ok(Self {
            link,
            nic_name: match &nic.softnic {
                Some(_) => nic.provider(),
                None => format!("{} ({})", nic.context.name(), nic.provider()),
            },
            software_nic: nic.software_over.is_some(),
            softnic: nic.softnic,
            moved: 0,
            window,
            memory,
            pinned,
            device,
            cpu_copied: 0,
            held: vec![Vec::new(); hello.slots as usize],
            hello,
            hasher: Sha256::new(),
        })
    }

    /// Returns the place of a chunk. A chunk behind the file's end has no bytes.
    pub(crate) fn chunk(&self, index: u64) -> Chunk {
        let Hello {
            bytes,
            chunk_bytes,
            slots,
            ..
        } = self.hello;
        let slot = index % u64::from(slots);
        let before = index.saturating_mul(chunk_bytes);
        Chunk {
            slot: slot as usize,
            start: slot * chunk_bytes,
            len: bytes.saturating_sub(before).min(chunk_bytes),
        }
    }

    /// Copies a chunk by the engine: host → device, or back.
    pub(crate) fn copy(&self, chunk: Chunk, to_device: bool) -> Result<(), Error> {
        let range = chunk.start..chunk.start + chunk.len;
        let (device, host) = (self.memory.at(range.clone())?, self.pinned.at(range)?);
        let copy = match to_device {
            true => self.device.copy(device, host)?,
            false => self.device.copy(host, device)?,
        };
        copy.wait(TIMEOUT)
    }

    /// Returns the digest of a chunk at each place of this node. The engine fetches device memory.
    pub(crate) fn places(&self, index: u64) -> Result<Places> {
        let Chunk { slot, start, .. } = self.chunk(index);
        let held = &self.held[slot];
        let mut bytes = vec![0; held.len()];
        self.pinned.read(start, &mut bytes)?;
        let pinned = hex(&Sha256::digest(&bytes));
        self.device.read(&self.memory, start, &mut bytes)?;
        Ok(Places {
            device: hex(&Sha256::digest(&bytes)),
            pinned,
            delivered: hex(&Sha256::digest(held)),
        })
    }

    /// Returns the digest of every chunk so far.
    pub(crate) fn digest(&self) -> String {
        hex(&self.hasher.clone().finalize())
    }

    /// Returns the report of this node's work.
    pub(crate) fn report(&self) -> NodeReport {
        let stats = self.device.stats();
        let (sent, received) = match &self.softnic {
            Some(nic) => {
                let counters = nic.counters();
                (counters.tx.payload_bytes(), counters.rx.payload_bytes())
            }
            None => (self.moved, self.moved),
        };
        let (mr, dmabuf) = (self.link.mr(), self.window.dmabuf());
        NodeReport {
            device: self.device.id().to_string(),
            backend: self.device.id().backend.name().to_owned(),
            nic: self.nic_name.clone(),
            software_nic: self.software_nic,
            lin_dma_packets: stats.lin_dma_packets,
            cpu_copied_bytes: self.cpu_copied + stats.cpu_copied_bytes,
            nic_sent_bytes: sent,
            nic_received_bytes: received,
            dmabuf_exporter: dmabuf.exporter().to_string(),
            dmabuf_inode: dmabuf.identity().file.inode,
            dmabuf_bytes: dmabuf.size(),
            lkey: format!("{:#x}", mr.lkey().0),
            rkey: format!("{:#x}", mr.rkey().0),
            sha256: self.digest(),
            peak_memory_bytes: peak_memory(),
            stages: Vec::new(),
        }
    }

    /// Closes every object in order.
    pub(crate) fn close(self) -> Result<()> {
        self.link
            .close()
            .context("closing the region and its queue pair")?;
        drop((self.softnic, self.window));
        let memory = self.memory.close().map_err(Error::from);
        memory.context("freeing device memory")?;
        let pinned = self.pinned.close().map_err(Error::from);
        pinned.context("unpinning host memory")?;
        let device = self.device.close().map_err(Error::from);
        device.context("closing the device")
    }
}

pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
