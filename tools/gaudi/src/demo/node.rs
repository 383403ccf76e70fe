//! What both nodes are made of: a device, its memory exported as a dma-buf, and a NIC that reaches that memory through it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gaudi_device::{Buffer, Device, HostMapping};
use gaudi_dmabuf::DmaBuf;
use gaudi_seam::{DeviceSpec, Error, ErrorKind};
use gaudi_softnic::SoftNic;
use gaudi_verbs::{Access, Cq, Mr, MrAddr, Pd, Qp, QpInit, WorkCompletion};
use sha2::{Digest, Sha256};

use crate::demo::protocol::PATIENCE;
use crate::demo::report::{NodeReport, peak_memory};
use crate::nic::Nic;

/// One node. The fields stand in the order in which they must go: queue pair and region before the dma-buf, that before the memory,
/// that before the device.
pub(crate) struct Node {
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
    pub(crate) cq: Cq,
    pub(crate) pd: Pd,
    /// The NIC in software, which counts for itself.
    softnic: Option<Arc<SoftNic>>,
    /// What tables call the NIC.
    called: String,
    software_nic: bool,
    /// Payload of the work that completed here, both ways.
    pub(crate) moved: u64,
    pub(crate) dmabuf: DmaBuf,
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
        let dmabuf = memory.export(..)?;
        let pd = nic.context.alloc_pd()?;
        let cq = nic.context.create_cq(4 * slots)?;
        // The region's addresses are the device's own: what an engine calls X, the NIC calls X.
        let mr = pd.reg_dmabuf_mr(&dmabuf.whole()?, MrAddr::from(memory.address()), access)?;
        let qp = pd.create_qp(&QpInit::new(&cq))?;
        tracing::info!(
            device = %device.id(),
            nic = nic.context.name(),
            bytes,
            path = mr.path().name(),
            "exported device memory and registered it"
        );
        Ok(Self {
            qp,
            mr,
            cq,
            pd,
            called: match &nic.softnic {
                Some(_) => nic.provider(),
                None => format!("{} ({})", nic.context.name(), nic.provider()),
            },
            software_nic: nic.software_over.is_some(),
            softnic: nic.softnic,
            moved: 0,
            dmabuf,
            memory,
            pinned,
            device,
            cpu_copied: 0,
            chunk_bytes,
        })
    }

    /// Where a slot begins, in device memory, in pinned memory and in the region alike.
    pub(crate) fn start(&self, slot: u64) -> u64 {
        slot * self.chunk_bytes
    }

    /// Waits for one completion and takes it as it is.
    pub(crate) fn completion(&self, timeout: Duration) -> Result<WorkCompletion, Error> {
        let mut one = [WorkCompletion::EMPTY];
        match self.cq.wait(&mut one, timeout)? {
            0 => Err(Error::timed_out("wait for the NIC")),
            _ => checked(one[0]),
        }
    }

    /// Host → device: the engine fills a slot from pinned memory.
    pub(crate) fn upload(&self, slot: u64, len: u64) -> Result<(), Error> {
        let range = self.start(slot)..self.start(slot) + len;
        self.device
            .copy(self.memory.at(range.clone())?, self.pinned.at(range)?)?
            .wait(PATIENCE)
    }

    /// Device → host: the engine empties a slot into pinned memory.
    pub(crate) fn download(&self, slot: u64, len: u64) -> Result<(), Error> {
        let range = self.start(slot)..self.start(slot) + len;
        self.device
            .copy(self.pinned.at(range.clone())?, self.memory.at(range)?)?
            .wait(PATIENCE)
    }

    /// Digest of what pinned memory holds.
    pub(crate) fn digest_pinned(&self, slot: u64, len: u64) -> Result<String> {
        let mut bytes = vec![0; usize::try_from(len)?];
        self.pinned.read(self.start(slot), &mut bytes)?;
        Ok(hex(&Sha256::digest(&bytes)))
    }

    /// Digest of what device memory holds, fetched by the engine.
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
        NodeReport {
            device: self.device.id().to_string(),
            backend: self.device.id().backend.name().to_owned(),
            nic: self.called.clone(),
            software_nic: self.software_nic,
            lin_dma_packets: stats.lin_dma_packets,
            cpu_copied_bytes: self.cpu_copied + stats.cpu_copied_bytes,
            nic_sent_bytes: sent,
            nic_received_bytes: received,
            dmabuf_exporter: self.dmabuf.exporter().to_string(),
            dmabuf_inode: self.dmabuf.identity().file.inode,
            dmabuf_bytes: self.dmabuf.size(),
            lkey: format!("{:#x}", self.mr.lkey().0),
            rkey: format!("{:#x}", self.mr.rkey().0),
            sha256,
            peak_memory_bytes: peak_memory(),
            stages: Vec::new(),
        }
    }

    /// Gives everything back in order, and says what did not go.
    pub(crate) fn close(self) -> Result<()> {
        let Self {
            qp,
            mr,
            cq,
            pd,
            softnic,
            dmabuf,
            memory,
            pinned,
            device,
            ..
        } = self;
        qp.close()
            .map_err(|(_, error)| error)
            .context("closing the queue pair")?;
        mr.close()
            .map_err(|(_, error)| error)
            .context("deregistering the region")?;
        cq.close()
            .map_err(|(_, error)| error)
            .context("closing the completion queue")?;
        pd.close()
            .map_err(|(_, error)| error)
            .context("closing the protection domain")?;
        drop(softnic);
        dmabuf
            .close()
            .map_err(|(_, error)| error)
            .context("closing the dma-buf")?;
        memory
            .close()
            .map_err(|(_, error)| error)
            .context("freeing device memory")?;
        pinned
            .close()
            .map_err(|(_, error)| error)
            .context("unpinning host memory")?;
        device
            .close()
            .map_err(|(_, error)| error)
            .context("closing the device")?;
        Ok(())
    }
}

/// The operation that errors of a work request name.
pub(crate) const RDMA: &str = "RDMA";

/// A completion that is no success is an error with the NIC's own status.
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
