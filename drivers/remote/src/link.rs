//! [`Link`]: registered memory, and queue pairs that are connected to a peer's.

use std::time::Instant;

use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_verbs::{Access, Cq, Framed, Mr, MrAddr, Mtu, Pd, Qp, QpInit, RemoteRegion};

use crate::local::{Allocation, Local};
use crate::nic::Nic;
use crate::registered::Registered;

/// The sizes and rights of a [`Link`].
#[derive(Debug, Clone, Copy)]
pub struct LinkConfig {
    /// Rights of the region, and of the peer's queue pairs.
    pub access: Access,
    /// Number of queue pairs, which share one completion queue.
    pub queue_pairs: u32,
    /// Work requests that each queue pair can send.
    pub max_send_wr: u32,
    /// Receives that each queue pair can hold.
    pub max_recv_wr: u32,
    /// Bytes that should be sent inline; 0 is used if the NIC does not support as many.
    pub max_inline_data: u32,
}

/// Registered memory, and queue pairs that are connected to a peer's.
///
/// The layer below [`Endpoint`](crate::Endpoint): the caller posts work requests and polls their
/// completions. Device memory is registered through its dma-buf or not at all.
#[derive(Debug)]
pub struct Link {
    /// The queue pairs; empty until [`connect`](Self::connect).
    pub qps: Vec<Qp>,
    /// Their completion queue.
    pub cq: Cq,
    region: Registered,
    pd: Pd,
    config: LinkConfig,
}

impl Link {
    /// Registers memory, which must be a whole allocation, and creates the completion queue.
    ///
    /// # Errors
    /// Those of the export and of the registration.
    pub fn new(nic: &Nic, memory: &Local, config: LinkConfig) -> Result<Self> {
        let pd = nic.context().alloc_pd()?;
        let (allocation, _) = memory.allocation();
        let region = match &allocation {
            Allocation::Buffer(buffer) => {
                // The region's addresses are the device's own.
                let mr =
                    pd.reg_dmabuf_mr(&buffer.window(..)?, MrAddr::from(buffer.address()), config.access)?;
                Registered::own(nic, mr, allocation)
            }
            Allocation::Mapping(_) | Allocation::Host(_) => {
                let all = 0..allocation.len();
                Registered::host(nic, &pd, allocation, all, config.access)?
            }
        };
        let entries = config.queue_pairs * (config.max_send_wr + config.max_recv_wr);
        let cq = nic.context().create_cq(entries)?;
        Ok(Self {
            qps: Vec::new(),
            cq,
            region,
            pd,
            config,
        })
    }

    /// Returns the region. Its offset 0 is the first byte of the memory.
    pub fn mr(&self) -> &Mr {
        self.region.mr()
    }

    /// Returns how many bytes the queue pairs send inline.
    pub fn max_inline_data(&self) -> u32 {
        self.config.max_inline_data
    }

    /// Creates the queue pairs and connects them to the peer's; both ends call this at the same
    /// point. `mtu` limits the path MTU, which is returned.
    ///
    /// # Errors
    /// - `InvalidInput`: `mtu` is larger than the port's.
    /// - Those of the NIC and of the stream.
    pub fn connect(&mut self, stream: &mut Framed, mtu: Option<Mtu>, end: Option<Instant>) -> Result<Mtu> {
        let mut init = QpInit {
            max_send_wr: self.config.max_send_wr,
            max_recv_wr: self.config.max_recv_wr,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: self.config.max_inline_data,
            ..QpInit::new(&self.cq)
        };
        for _ in 0..self.config.queue_pairs {
            let qp = match self.pd.create_qp(&init) {
                Err(_) if init.max_inline_data > 0 => {
                    init.max_inline_data = 0;
                    self.pd.create_qp(&init)?
                }
                created => created?,
            };
            self.qps.push(qp);
        }
        self.config.max_inline_data = init.max_inline_data;
        let mut path = None;
        for qp in &mut self.qps {
            let mut local = qp.address()?;
            if let Some(mtu) = mtu {
                if mtu > local.mtu {
                    return Err(Error::new(ErrorKind::InvalidInput, "connect")
                        .because("the port has a smaller MTU")
                        .saw(format!("{mtu} bytes"), format!("at most {}", local.mtu)));
                }
                local.mtu = mtu;
            }
            // A queue pair uses the smaller of its port's and its peer's MTU: both must be lowered.
            let mut remote = stream.exchange(&local, end)?;
            remote.mtu = remote.mtu.min(local.mtu);
            qp.connect(&remote, self.config.access - Access::LOCAL_WRITE)?;
            path = Some(remote.mtu);
        }
        path.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "connect").because("there is no queue pair"))
    }

    /// Sends the region to the peer and receives the peer's; both ends call this at the same point.
    /// The peer can access the region from then on.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn exchange_regions(&self, stream: &mut Framed, end: Option<Instant>) -> Result<RemoteRegion> {
        stream.exchange(&self.mr().remote(), end)
    }

    /// Destroys the queue pairs, then deregisters the memory, then frees the other objects.
    ///
    /// # Errors
    /// Of the first object that does not close.
    pub fn close(self) -> Result<()> {
        for qp in self.qps {
            qp.close()?;
        }
        self.region.close()?;
        self.cq.close()?;
        self.pd.close().map_err(Error::from)
    }
}
