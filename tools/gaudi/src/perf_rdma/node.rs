//! One end: NIC, memory, queue pair.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use gaudi_device::{Buffer, Device};
use gaudi_seam::{DeviceSpec, Error, ErrorKind};
use gaudi_softnic::SoftNicConfig;
use gaudi_sys::RawMapping;
use gaudi_verbs::{Access, Context, Cq, Mr, MrAddr, Mtu, Pd, Qp, QpInit, RemoteAddr, RemoteRegion, Sge};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Op;
use super::loops::RECEIVED;
use super::plan::Plan;
use crate::args::Common;
use crate::args_rdma::{Memory, PerfRdma, Way};
use crate::demo::hex;
use crate::demo::protocol::Control;
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

enum Place {
    Host(Arc<RawMapping>),
    Device(Buffer),
}

/// The fields are in the order in which they must be dropped.
pub(crate) struct Node {
    /// Empty until the ends are joined.
    pub(super) qps: Vec<Qp>,
    pub(super) cq: Cq,
    pub(super) mr: Option<Mr>,
    pd: Pd,
    place: Place,
    pub(super) device: Option<Device>,
    pub(super) context: Context,
    side: Side,
    /// Bytes of each half, the outgoing and the incoming.
    half: u64,
    pub(super) remote: Option<RemoteRegion>,
    /// Posted receives of each queue pair.
    receives: u32,
    pub(super) inline: u32,
    depth: u32,
    wanted_qps: u32,
    atomics: bool,
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
        let pd = context.alloc_pd()?;
        let half = plan.most_bytes().next_multiple_of(PAGE);
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        if plan.op == Op::Atomic {
            access |= Access::REMOTE_ATOMIC;
        }
        let cq = context.create_cq(plan.qps * (plan.depth() + RECEIVES))?;
        let mut side = Side {
            nic: context.name().to_owned(),
            provider,
            software: software_over.is_some(),
            mtu_bytes: context.query_port()?.active_mtu.bytes(),
            memory: "host".to_owned(),
            device_backend: None,
            path: String::new(),
            why: None,
        };
        let (mut device, place, mr) = match plan.memory {
            Memory::Host => {
                let mapping = RawMapping::anonymous(usize::try_from(2 * half)?, true)
                    .map_err(|errno| Error::from_errno("mmap", errno))?;
                let mapping = Arc::new(mapping);
                let mr = pd.reg_mapping(Arc::clone(&mapping), access)?;
                (None, Place::Host(mapping), Some(mr))
            }
            Memory::Device => {
                let device = Device::open(&device_spec(common)?)?;
                let buffer = device.alloc_exclusive(2 * half)?;
                side.memory = device.id().to_string();
                side.device_backend = Some(device.id().backend.name().to_owned());
                let mr = match region(&pd, &buffer, access, plan.dmabuf) {
                    Ok(mr) => Some(mr),
                    Err(error) if plan.dmabuf == Way::Require => return Err(error.into()),
                    Err(error) => {
                        side.why = Some(error.to_string());
                        None
                    }
                };
                (Some(device), Place::Device(buffer), mr)
            }
        };
        side.path = mr.as_ref().map_or(STAGED, |mr| mr.path().name()).to_owned();
        let noise = crate::demo::Noise::default();
        let mut node = Self {
            qps: Vec::new(),
            cq,
            mr,
            pd,
            place,
            device: device.take(),
            context,
            side,
            half,
            remote: None,
            receives: 0,
            inline: 0,
            depth: plan.depth(),
            wanted_qps: plan.qps,
            atomics: plan.op == Op::Atomic,
            path_mtu_bytes: None,
        };
        node.fill(noise)?;
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
        match &self.place {
            Place::Device(buffer) => Some(buffer),
            Place::Host(_) => None,
        }
    }

    /// Bytes of each half.
    pub(super) fn half(&self) -> u64 {
        self.half
    }

    /// Fills the outgoing half with bytes that differ from the incoming half's.
    fn fill(&mut self, mut noise: crate::demo::Noise) -> Result<()> {
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
        match &self.place {
            Place::Host(mapping) => mapping
                .write(usize::try_from(at)?, bytes)
                .map_err(|errno| Error::from_errno("write to host memory", errno))?,
            Place::Device(buffer) => match &self.device {
                Some(device) => device.write(buffer, at, bytes)?,
                None => unreachable!("a buffer has a device"),
            },
        }
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        match &self.place {
            Place::Host(mapping) => mapping
                .read(usize::try_from(at)?, bytes)
                .map_err(|errno| Error::from_errno("read from host memory", errno))?,
            Place::Device(buffer) => match &self.device {
                Some(device) => device.read(buffer, at, bytes)?,
                None => unreachable!("a buffer has a device"),
            },
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
        if let Place::Host(mapping) = &self.place {
            // The range was made for it.
            let _ = mapping.read((self.half + bytes - 1) as usize, &mut byte);
        }
        byte[0]
    }

    /// Sets the last outgoing byte. Host memory only.
    #[inline]
    pub(super) fn set_last_byte(&self, bytes: u64, value: u8) {
        if let Place::Host(mapping) = &self.place {
            let _ = mapping.write((bytes - 1) as usize, &[value]);
        }
    }

    pub(super) fn clear_incoming(&self, bytes: u64) -> Result<()> {
        self.write(self.half + bytes - 1, &[0])
    }

    fn create(&mut self) -> Result<()> {
        let init = |inline| QpInit {
            max_send_wr: self.depth,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline,
            ..QpInit::new(&self.cq)
        };
        // Not every NIC takes so many.
        let (first, inline) = match self.pd.create_qp(&init(INLINE)) {
            Ok(qp) => (qp, INLINE),
            Err(_) => (self.pd.create_qp(&init(0))?, 0),
        };
        let mut qps = vec![first];
        for _ in 1..self.wanted_qps {
            qps.push(self.pd.create_qp(&init(inline))?);
        }
        self.qps = qps;
        self.inline = inline;
        Ok(())
    }

    /// The queue pair of latencies.
    #[inline]
    pub(super) fn first(&mut self) -> Result<&mut Qp> {
        self.qps.first_mut().context("there is no queue pair")
    }

    fn region(&self) -> Result<RemoteRegion> {
        Ok(self.mr.as_ref().context("the memory has no region")?.remote())
    }

    /// Connects the queue pairs of the two ends. Both call it at the same point.
    ///
    /// # Errors
    /// `InvalidInput`: the requested MTU is larger than a port's.
    pub(super) fn join(&mut self, control: &mut Control, mtu_bytes: Option<u32>) -> Result<()> {
        self.create()?;
        let mut access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        // A NIC without atomics refuses the right to them.
        if self.atomics {
            access |= Access::REMOTE_ATOMIC;
        }
        // 256 to 4096 bytes are 1 to 5 (`enum ibv_mtu`).
        let wanted = mtu_bytes.map(|bytes| Mtu((bytes / 128).ilog2() as u8));
        for qp in &mut self.qps {
            let mut ours = qp.address()?;
            if let Some(wanted) = wanted {
                if wanted > ours.mtu {
                    return Err(Error::new(ErrorKind::InvalidInput, "perf --mtu")
                        .because("the port has a smaller MTU")
                        .saw(format!("{wanted} bytes"), format!("at most {}", ours.mtu))
                        .into());
                }
                ours.mtu = wanted;
            }
            // A queue pair uses the smaller of its port's and its peer's MTU: both must be lowered.
            let mut theirs = gaudi_verbs::exchange(&mut control.stream(), &ours)?;
            theirs.mtu = theirs.mtu.min(ours.mtu);
            qp.connect(&theirs, access)?;
            self.path_mtu_bytes = theirs.mtu.bytes();
        }
        let region = self.region()?;
        self.remote = Some(gaudi_verbs::exchange(&mut control.stream(), &region)?);
        Ok(())
    }

    /// The outgoing bytes, for the NIC.
    pub(super) fn outgoing(&self, bytes: u64) -> Result<Sge> {
        let mr = self.mr.as_ref().context("the memory has no region")?;
        Ok(mr.sge(0, u32::try_from(bytes)?)?)
    }

    /// The incoming half, for the NIC.
    pub(super) fn incoming(&self, bytes: u64) -> Result<Sge> {
        let mr = self.mr.as_ref().context("the memory has no region")?;
        Ok(mr.sge(self.half, u32::try_from(bytes)?)?)
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
            for (at, qp) in self.qps.iter_mut().enumerate() {
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
            qps,
            cq,
            mr,
            pd,
            place,
            device,
            ..
        } = self;
        for qp in qps {
            qp.close().map_err(|(_, error)| error)?;
        }
        if let Some(mr) = mr {
            mr.close().map_err(|(_, error)| error)?;
        }
        cq.close().map_err(|(_, error)| error)?;
        pd.close().map_err(|(_, error)| error)?;
        if let Place::Device(buffer) = place {
            buffer.close().map_err(|(_, error)| error)?;
        }
        if let Some(device) = device {
            device.close().map_err(|(_, error)| error)?;
        }
        Ok(())
    }
}

fn region(pd: &Pd, buffer: &Buffer, access: Access, way: Way) -> gaudi_seam::Result<Mr> {
    if way == Way::Never {
        return Err(Error::unsupported("dma-buf region", "not tried: --dmabuf never"));
    }
    pd.reg_dmabuf_mr(&buffer.window(..)?, MrAddr::from(buffer.address()), access)
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
