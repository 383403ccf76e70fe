//! What both nodes are made of: a device, its memory exported as a dma-buf, and a NIC that reaches
//! that memory through it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gaudi::dmabuf::Window;
use gaudi::remote::{Link, LinkConfig};
use gaudi::verbs::softnic::SoftNic;
use gaudi::verbs::{Access, WorkCompletion};
use gaudi::{Buffer, Device, DeviceSpec, Error, ErrorKind, HostMapping};
use sha2::{Digest, Sha256};

use crate::control::TIMEOUT;
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
    pub(crate) chunk_bytes: u64,
}

impl Node {
    /// Opens the device, exports its memory, and registers the export with the NIC.
    pub(crate) fn new(
        spec: &DeviceSpec,
        nic: Nic,
        access: Access,
        (chunk_bytes, slots): (u64, u32),
    ) -> Result<Self> {
        let bytes = chunk_bytes * u64::from(slots);
        let device = Device::open(spec)?;
        let memory = device.alloc_exclusive(bytes)?;
        let pinned = device.alloc_host(usize::try_from(bytes).context("slots larger than memory")?)?;
        let window = memory.window(..)?;
        let config = LinkConfig {
            access,
            queue_pairs: 1,
            max_send_wr: 2 * slots,
            max_recv_wr: 2 * slots,
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
            chunk_bytes,
        })
    }

    /// Offset of a slot, in device memory, in pinned memory and in the region alike.
    pub(crate) fn start(&self, slot: u64) -> u64 {
        slot * self.chunk_bytes
    }

    /// Waits for one completion.
    pub(crate) fn completion(&self, timeout: Duration) -> Result<WorkCompletion, Error> {
        let mut one = [WorkCompletion::EMPTY];
        match self.link.cq.wait(&mut one, timeout)? {
            0 => Err(Error::timed_out("wait for the NIC")),
            _ => checked(one[0]),
        }
    }

    /// Host → device: the engine fills a slot from pinned memory.
    pub(crate) fn upload(&self, slot: u64, len: u64) -> Result<(), Error> {
        let range = self.start(slot)..self.start(slot) + len;
        self.device
            .copy(self.memory.at(range.clone())?, self.pinned.at(range)?)?
            .wait(TIMEOUT)
    }

    /// Device → host: the engine empties a slot into pinned memory.
    pub(crate) fn download(&self, slot: u64, len: u64) -> Result<(), Error> {
        let range = self.start(slot)..self.start(slot) + len;
        self.device
            .copy(self.pinned.at(range.clone())?, self.memory.at(range)?)?
            .wait(TIMEOUT)
    }

    /// SHA-256 of a slot in pinned memory.
    pub(crate) fn digest_pinned(&self, slot: u64, len: u64) -> Result<String> {
        let mut bytes = vec![0; usize::try_from(len)?];
        self.pinned.read(self.start(slot), &mut bytes)?;
        Ok(hex(&Sha256::digest(&bytes)))
    }

    /// SHA-256 of a slot in device memory, which the engine fetches.
    pub(crate) fn digest_device(&self, slot: u64, len: u64) -> Result<String> {
        let mut bytes = vec![0; usize::try_from(len)?];
        self.device.read(&self.memory, self.start(slot), &mut bytes)?;
        Ok(hex(&Sha256::digest(&bytes)))
    }

    /// What this node did.
    pub(crate) fn report(&self, sha256: String) -> NodeReport {
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
            sha256,
            peak_memory_bytes: peak_memory(),
            stages: Vec::new(),
        }
    }

    /// Closes every object in order.
    pub(crate) fn close(self) -> Result<()> {
        let Self {
            link,
            softnic,
            window,
            memory,
            pinned,
            device,
            ..
        } = self;
        link.close().context("closing the region and its queue pair")?;
        drop((softnic, window));
        let error = |(_, error)| error;
        memory
            .close()
            .map_err(|(_, error)| error)
            .context("freeing device memory")?;
        pinned
            .close()
            .map_err(|(_, error)| error)
            .context("unpinning host memory")?;
        device.close().map_err(error).context("closing the device")
    }
}

/// The operation of an error that a completion reports.
pub(crate) const RDMA: &str = "RDMA";

/// Returns the NIC's status as an error if the completion is not a success.
pub(crate) fn checked(completion: WorkCompletion) -> Result<WorkCompletion, Error> {
    if completion.is_success() {
        return Ok(completion);
    }
    Err(Error::new(ErrorKind::Io, RDMA).because(format!(
        "work request {} ended with {}",
        completion.wr_id, completion.status
    )))
}

pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
