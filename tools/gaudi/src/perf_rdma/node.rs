//! One end: NIC, memory, queue pair.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use gaudi::remote::{Link, LinkConfig};
use gaudi::sys::random::SplitMix64;
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
use crate::copy::pieces;
use crate::demo::hex;
use crate::info::chosen;
use crate::layers::{around_beside_nic, nic_rules};
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
    /// The buffer is dropped before its device.
    Device(Buffer, Device),
}

/// The fields are in the order in which they must be dropped.
pub(crate) struct Node {
    /// `None` if the memory is staged.
    link: Option<Link>,
    memory: NodeMemory,
    pub(super) nic: remote::Nic,
    pub(super) side: Side,
    /// Bytes of each half, the outgoing and the incoming.
    pub(super) half: u64,
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
            Some(cable) => {
                let spec = perf.nic.clone().with_faults(&nic_rules(common)?)?;
                let config = SoftNicConfig {
                    faults: spec.faults,
                    ..SoftNicConfig::default()
                };
                Nic::soft(SOFTNIC, cable, config)?
            }
            None => Nic::open(&perf.nic.name, perf.gid_index)?,
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
        let memory = match plan.memory {
            Memory::Host => NodeMemory::Host(Arc::new(HostBuffer::new(usize::try_from(2 * half)?)?)),
            Memory::Device => {
                let device = Device::open(&device_spec(common)?)?;
                let buffer = device.alloc_exclusive(2 * half)?;
                side.memory = device.id().to_string();
                side.device_backend = Some(device.id().backend.name().to_owned());
                NodeMemory::Device(buffer, device)
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
        let linked = match &memory {
            NodeMemory::Host(buffer) => Link::new(&nic, &buffer.into(), config),
            NodeMemory::Device(..) if plan.dmabuf == Way::Never => {
                Err(Error::unsupported("dma-buf region", "not tried: --dmabuf never"))
            }
            NodeMemory::Device(buffer, _) => Link::new(&nic, &buffer.into(), config),
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

    /// Returns the memory if it is a device's.
    pub(super) fn in_device(&self) -> Option<(&Buffer, &Device)> {
        match &self.memory {
            NodeMemory::Device(buffer, device) => Some((buffer, device)),
            NodeMemory::Host(_) => None,
        }
    }

    /// Returns the region and its queue pairs.
    #[inline]
    pub(super) fn link(&mut self) -> Result<&mut Link> {
        self.link.as_mut().context("the memory has no region")
    }

    /// Returns the most bytes of an inline send.
    pub(super) fn inline(&self) -> u32 {
        self.link.as_ref().map_or(0, Link::max_inline_data)
    }

    /// Fills the outgoing half with bytes that differ from the incoming half's.
    fn fill(&self) -> gaudi::Result<()> {
        let mut noise = SplitMix64::default();
        pieces(self.half, |at, piece| {
            noise.fill(piece);
            self.write(at, piece)
        })
    }

    fn write(&self, at: u64, bytes: &[u8]) -> gaudi::Result<()> {
        match &self.memory {
            NodeMemory::Host(buffer) => buffer.write(at as usize, bytes),
            NodeMemory::Device(buffer, device) => device.write(buffer, at, bytes),
        }
    }

    /// Returns the SHA-256 of the first bytes of a half.
    pub(super) fn digest(&self, incoming: bool, bytes: u64) -> Result<String> {
        let mut held = vec![0; usize::try_from(bytes)?];
        let at = if incoming { self.half } else { 0 };
        match &self.memory {
            NodeMemory::Host(buffer) => buffer.read(at as usize, &mut held)?,
            NodeMemory::Device(buffer, device) => device.read(buffer, at, &mut held)?,
        }
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

    /// Returns the queue pair of latencies.
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

    /// Returns the outgoing bytes, for the NIC.
    pub(super) fn outgoing(&self, bytes: u64) -> Result<Sge> {
        self.sge(0, bytes)
    }

    /// Returns the incoming half, for the NIC.
    pub(super) fn incoming(&self, bytes: u64) -> Result<Sge> {
        self.sge(self.half, bytes)
    }

    fn sge(&self, at: u64, bytes: u64) -> Result<Sge> {
        let link = self.link.as_ref().context("the memory has no region")?;
        Ok(link.mr().sge(at, u32::try_from(bytes)?)?)
    }

    /// Returns the peer's incoming half, or its outgoing one.
    pub(super) fn theirs(&self, incoming: bool, bytes: u64) -> Result<RemoteAddr> {
        let remote = self.remote.as_ref().context("the peer has no region")?;
        Ok(remote.at(if incoming { self.half } else { 0 }, bytes)?)
    }

    /// Prepares a row: fills the receive queue, where each receive has room for the largest
    /// message, and clears the byte in which a write is observed.
    pub(super) fn prepare(&mut self, receives: bool, by_memory: bool, bytes: u64) -> Result<()> {
        if by_memory {
            self.write(self.half + bytes - 1, &[0])?;
        }
        if !receives {
            return Ok(());
        }
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
            link, memory, nic, ..
        } = self;
        link.map_or(Ok(()), Link::close)?;
        // Its thread may hold the device for a moment.
        drop(nic);
        if let NodeMemory::Device(buffer, device) = memory {
            buffer.close()?;
            device.close()?;
        }
        Ok(())
    }
}

/// Returns the same error for another operation.
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

/// Returns the device whose memory is measured, with its layers: the named one, otherwise a mock.
pub(super) fn device_spec(common: &Common) -> Result<DeviceSpec> {
    if common.devices.is_empty() {
        return around_beside_nic(common, DeviceSpec::mock());
    }
    let first = Common {
        devices: common.devices.iter().take(1).cloned().collect(),
        ..common.clone()
    };
    chosen(&first)?.into_iter().next().context("no device was chosen")
}
