//! One end: NIC, memory, queue pair.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use gaudi::remote::{Link, LinkConfig, Local};
use gaudi::verbs::softnic::SoftNicConfig;
use gaudi::verbs::{Access, Mtu, Qp, RemoteAddr, RemoteRegion, Sge};
use gaudi::{Buffer, Device, DeviceSpec, Error, ErrorKind, HostBuffer, remote};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::op::{Op, RECEIVED};
use super::plan::Plan;
use crate::args_rdma::{Memory, PerfRdma, Way};
use crate::common::Common;
use crate::control::Control;
use crate::demo::{Noise, hex};
use crate::info::chosen;
use crate::layers::around;
use crate::nic::{Nic, SOFTNIC};

/// Bytes that are sent inline if the NIC allows as many, as in perftest.
const INLINE: u32 = 220;
/// Posted receives.
pub(super) const RECEIVES: u32 = 512;
const PAGE: u64 = 4096;

/// One end's NIC and memory, as it reports them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Side {
    pub(crate) nic: String,
    /// Provider of the NIC; names a software NIC as such.
    pub(crate) provider: String,
    /// A processor performs its transfers, in the kernel or in this process.
    pub(crate) software: bool,
    pub(crate) mtu_bytes: Option<u32>,
    /// `host`, or the device.
    pub(crate) memory: String,
    /// The backend of the device; `None` for host memory.
    pub(crate) device_backend: Option<String>,
    /// How the NIC reaches it.
    pub(crate) path: String,
    /// Why a better path is not used, if there is one.
    pub(crate) why: Option<String>,
}

pub(super) const STAGED: &str = "staged";

impl Side {
    pub(super) fn staged(&self) -> bool {
        self.path == STAGED
    }

    pub(super) fn is_host(&self) -> bool {
        self.device_backend.is_none()
    }
}

enum NodeMemory {
    Host(Arc<HostBuffer>),
    Device(Buffer),
}

impl NodeMemory {
    fn local(&self) -> Local {
        match self {
            Self::Host(buffer) => buffer.into(),
            Self::Device(buffer) => buffer.into(),
        }
    }
}

/// The fields are in the order in which they must be dropped.
pub(crate) struct Node {
    /// `None` if the memory is staged.
    link: Option<Link>,
    memory: NodeMemory,
    pub(super) device: Option<Device>,
    pub(super) nic: remote::Nic,
    side: Side,
    /// Bytes of each half, the outgoing and the incoming.
    half: u64,
    remote: Option<RemoteRegion>,
    /// Posted receives of each queue pair.
    receives: u32,
    /// The path MTU of the queue pairs; `None` before they are connected.
    pub(super) path_mtu_bytes: Option<u32>,
}

impl Node {
    pub(super) fn open(
        common: &Common,
        perf: &PerfRdma,
        plan: &Plan,
        cable: Option<OwnedFd>,
    ) -> Result<Self> {
        let nic = match cable {
            Some(cable) => Nic::soft(SOFTNIC, cable, SoftNicConfig::default())?,
            None => Nic::open(&perf.nic, perf.gid_index)?,
        };
        let provider = nic.provider();
        let Nic {
            context,
            software_over,
            ..
        } = nic;
        let half = plan.most_bytes().next_multiple_of(PAGE);
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // A NIC without atomics refuses the right to them.
        if plan.op == Op::Atomic {
            access |= Access::REMOTE_ATOMIC;
        }
        let mut side = Side {
            nic: context.name().to_owned(),
            provider,
            software: software_over.is_some(),
            mtu_bytes: context.query_port()?.active_mtu.bytes(),
            memory: "host".to_owned(),
            device_backend: None,
            path: STAGED.to_owned(),
            why: None,
        };
        let (device, memory) = match plan.memory {
            Memory::Host => {
                let buffer = HostBuffer::new(usize::try_from(2 * half)?)?;
                (None, NodeMemory::Host(Arc::new(buffer)))
            }
            Memory::Device => {
                let device = Device::open(&device_spec(common)?)?;
                let buffer = device.alloc_exclusive(2 * half)?;
                side.memory = device.id().to_string();
                side.device_backend = Some(device.id().backend.name().to_owned());
                (Some(device), NodeMemory::Device(buffer))
            }
        };
        let nic = remote::Nic::new(&context)?;
        let config = LinkConfig {
            access,
            queue_pairs: plan.qps,
            max_send_wr: plan.depth(),
            max_recv_wr: RECEIVES,
            max_inline_data: INLINE,
        };
        let may_stage = plan.memory == Memory::Device && plan.dmabuf != Way::Require;
        let linked = match plan.memory == Memory::Device && plan.dmabuf == Way::Never {
            true => Err(Error::unsupported("dma-buf region", "not tried: --dmabuf never")),
            false => Link::new(&nic, &memory.local(), config),
        };
        let link = match linked {
            Ok(link) => {
                link.mr().path().name().clone_into(&mut side.path);
                Some(link)
            }
            Err(error) if may_stage => {
                side.why = Some(error.to_string());
                None
            }
            Err(error) => return Err(error.into()),
        };
        let node = Self {
            link,
            memory,
            device,
            nic,
            side,
            half,
            remote: None,
            receives: 0,
            path_mtu_bytes: None,
        };
        node.fill()?;
        tracing::info!(
            nic = node.side.nic,
            memory = node.side.memory,
            path = node.side.path,
            "opened"
        );
        Ok(node)
    }

    pub(super) fn side(&self) -> Side {
        self.side.clone()
    }

    pub(super) fn buffer(&self) -> Option<&Buffer> {
        match &self.memory {
            NodeMemory::Device(buffer) => Some(buffer),
            NodeMemory::Host(_) => None,
        }
    }

    /// The region and its queue pairs.
    #[inline]
    pub(super) fn link(&mut self) -> Result<&mut Link> {
        self.link.as_mut().context("the memory has no region")
    }

    /// Bytes of each half.
    pub(super) fn half(&self) -> u64 {
        self.half
    }

    /// Bytes that a send may have to be inline.
    pub(super) fn inline(&self) -> u32 {
        self.link.as_ref().map_or(0, Link::max_inline_data)
    }

    /// Fills the outgoing half with bytes that differ from the incoming half's.
    fn fill(&self) -> Result<()> {
        let mut noise = Noise::default();
        let mut piece = vec![0; usize::try_from(self.half.min(1 << 20))?];
        let mut at = 0;
        while at < self.half {
            let len = usize::try_from((self.half - at).min(piece.len() as u64))?;
            noise.fill(&mut piece[..len]);
            self.write(at, &piece[..len])?;
            at += len as u64;
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        match (&self.memory, &self.device) {
            (NodeMemory::Host(buffer), _) => buffer.write(usize::try_from(at)?, bytes)?,
            (NodeMemory::Device(buffer), Some(device)) => device.write(buffer, at, bytes)?,
            (NodeMemory::Device(_), None) => unreachable!("a buffer has a device"),
        }
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        match (&self.memory, &self.device) {
            (NodeMemory::Host(buffer), _) => buffer.read(usize::try_from(at)?, bytes)?,
            (NodeMemory::Device(buffer), Some(device)) => device.read(buffer, at, bytes)?,
            (NodeMemory::Device(_), None) => unreachable!("a buffer has a device"),
        }
        Ok(())
    }

    /// SHA-256 of the first bytes of a half.
    pub(super) fn digest(&self, incoming: bool, bytes: u64) -> Result<String> {
        let mut held = vec![0; usize::try_from(bytes)?];
        self.read(if incoming { self.half } else { 0 }, &mut held)?;
        Ok(hex(&Sha256::digest(&held)))
    }

    /// Reads the last incoming byte. Host memory only.
    #[inline]
    pub(super) fn last_byte(&self, bytes: u64) -> u8 {
        let mut byte = [0];
        if let NodeMemory::Host(mapping) = &self.memory {
            // The buffer has room for it.
            let _ = mapping.read((self.half + bytes - 1) as usize, &mut byte);
        }
        byte[0]
    }

    /// Sets the last outgoing byte. Host memory only.
    #[inline]
    pub(super) fn set_last_byte(&self, bytes: u64, value: u8) {
        if let NodeMemory::Host(mapping) = &self.memory {
            // The buffer has room for it.
            let _ = mapping.write((bytes - 1) as usize, &[value]);
        }
    }

    pub(super) fn clear_incoming(&self, bytes: u64) -> Result<()> {
        self.write(self.half + bytes - 1, &[0])
    }

    /// The queue pair of latencies.
    #[inline]
    pub(super) fn first(&mut self) -> Result<&mut Qp> {
        self.link()?.qps.first_mut().context("there is no queue pair")
    }

    /// Connects the queue pairs of the two ends. Both call it at the same point.
    ///
    /// # Errors
    /// `InvalidInput`: the requested MTU is larger than a port's.
    pub(super) fn join(&mut self, control: &mut Control, mtu_bytes: Option<u32>) -> Result<()> {
        // 256 to 4096 bytes are 1 to 5 (`enum ibv_mtu`).
        let wanted = mtu_bytes.map(|bytes| Mtu((bytes / 128).ilog2() as u8));
        let (stream, end) = control.framed();
        let link = self.link()?;
        let path = link
            .connect(stream, wanted, end)
            .map_err(|error| match error.kind() {
                // The option that was given, in place of the operation.
                ErrorKind::InvalidInput if wanted.is_some() => with_operation(&error, "perf --mtu"),
                _ => error,
            })?;
        let remote = link.exchange_regions(stream, end)?;
        self.path_mtu_bytes = path.bytes();
        self.remote = Some(remote);
        Ok(())
    }

    /// The outgoing bytes, for the NIC.
    pub(super) fn outgoing(&self, bytes: u64) -> Result<Sge> {
        let link = self.link.as_ref().context("the memory has no region")?;
        Ok(link.mr().sge(0, u32::try_from(bytes)?)?)
    }

    /// The incoming half, for the NIC.
    pub(super) fn incoming(&self, bytes: u64) -> Result<Sge> {
        let link = self.link.as_ref().context("the memory has no region")?;
        Ok(link.mr().sge(self.half, u32::try_from(bytes)?)?)
    }

    /// The peer's incoming half, or its outgoing one.
    pub(super) fn theirs(&self, incoming: bool, bytes: u64) -> Result<RemoteAddr> {
        let remote = self.remote.as_ref().context("the peer has no region")?;
        Ok(remote.at(if incoming { self.half } else { 0 }, bytes)?)
    }

    /// Fills the receive queue; each receive has room for the largest message.
    pub(super) fn prepare_receives(&mut self) -> Result<()> {
        let place = [self.incoming(self.half)?];
        while self.receives < RECEIVES {
            for (at, qp) in self.link()?.qps.iter_mut().enumerate() {
                qp.post_recv(RECEIVED | at as u64).post(&place)?;
            }
            self.receives += 1;
        }
        Ok(())
    }

    /// Closes every object in order.
    ///
    /// # Errors
    /// Of the first object that does not close.
    pub(super) fn close(self) -> Result<()> {
        let Self {
            link,
            memory,
            device,
            nic,
            ..
        } = self;
        link.map_or(Ok(()), Link::close)?;
        // Its thread may hold the device for a moment.
        drop(nic);
        if let NodeMemory::Device(buffer) = memory {
            buffer.close().map_err(|(_, error)| error)?;
        }
        if let Some(device) = device {
            device.close().map_err(|(_, error)| error)?;
        }
        Ok(())
    }
}

/// The same error of another operation.
fn with_operation(error: &Error, operation: &'static str) -> Error {
    let mut other = Error::new(error.kind(), operation);
    if let Some(evidence) = error.evidence() {
        other = other.because(evidence.cause.as_str());
        if let (Some(seen), Some(wanted)) = (&evidence.seen, &evidence.wanted) {
            other = other.saw(seen, wanted);
        }
    }
    other
}

/// The device whose memory is measured, with its layers: the one that was named, otherwise a mock.
pub(super) fn device_spec(common: &Common) -> Result<DeviceSpec> {
    if common.devices.is_empty() {
        return around(common, DeviceSpec::mock());
    }
    let first = Common {
        devices: common.devices.iter().take(1).cloned().collect(),
        ..common.clone()
    };
    chosen(&first)?.into_iter().next().context("no device was chosen")
}
