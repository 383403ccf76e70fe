//! [`Qp`]: a reliable connection.

use std::time::Duration;

use gaudi_seam::{CloseError, Result};

use crate::access::Access;
use crate::context::Pd;
use crate::handle::QpHandle;
use crate::invalid;
use crate::post::{RecvPost, SendPost};
use crate::provider::{QpCap, QpState, QpTransition, QpType};
use crate::qp_core::{QpCore, QpInit};
use crate::wr::{QpAddress, Qpn};

/// An RC queue pair: in order, acknowledged, one peer.
///
/// A failed work request puts it into the error state: queued work is flushed with `WR_FLUSH_ERR`.
/// Reset and connect it again, or create a new one.
#[derive(Debug)]
pub struct Qp {
    core: QpCore,
}

impl Pd {
    /// Creates an RC queue pair in the state RESET (`ibv_create_qp`).
    ///
    /// # Errors
    /// `InvalidInput` if `init` exceeds a limit of the NIC or names objects of another context.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp> {
        let core = QpCore::create(self, init, QpType::Rc)?;
        Ok(Qp { core })
    }
}

/// Methods of both kinds of queue pair. `$recv` documents their receives.
macro_rules! queue_pair {
    ($name:ident, $recv:literal) => {
        impl $name {
            /// Returns its number on the wire.
            pub fn qpn(&self) -> Qpn {
                self.core.queue.qpn()
            }

            /// Returns the provider's handle, which an [`AsyncEvent`](crate::AsyncEvent) carries.
            pub fn handle(&self) -> QpHandle {
                self.core.object.handle
            }

            /// Returns its capacity, at least the requested one.
            pub fn cap(&self) -> QpCap {
                self.core.cap
            }

            /// Returns the state that the NIC reports (`ibv_query_qp`).
            ///
            /// # Errors
            /// The errno of `ibv_query_qp`; `Forked` in a fork child.
            pub fn state(&self) -> Result<QpState> {
                let device = self.pd().context().device("ibv_query_qp")?;
                device.query_qp(self.handle())
            }

            /// Returns its protection domain.
            pub fn pd(&self) -> &Pd {
                self.core.pd()
            }

            /// Returns what the peer needs to connect: see [`exchange`](crate::exchange).
            ///
            /// # Errors
            /// The errno of `ibv_query_port`; `Forked` in a fork child.
            pub fn address(&self) -> Result<QpAddress> {
                let context = self.pd().context();
                let port = context.query_port()?;
                Ok(QpAddress {
                    qpn: self.qpn(),
                    psn: self.core.psn,
                    gid: port.gid,
                    mtu: port.active_mtu,
                    rd_atom: context.attr().max_qp_rd_atom,
                    lid: port.lid,
                })
            }

            /// Moves it to the error state: queued work completes with `WR_FLUSH_ERR`.
            ///
            /// # Errors
            /// `EINVAL` in the state RESET.
            pub fn to_error(&mut self) -> Result<()> {
                self.modify(&QpTransition::Error)
            }

            /// Moves it to RESET, so that it can be connected again. Queued work is dropped without
            /// completions; existing completions stay. Its [`address`](Self::address) changes,
            /// because its send queue starts at another packet sequence number: send it to the peer
            /// again.
            ///
            /// # Errors
            /// The errno of `ibv_modify_qp`; `Forked` in a fork child.
            pub fn reset(&mut self) -> Result<()> {
                self.modify(&QpTransition::Reset)
            }

            #[doc = concat!("Begins a receive. `wr_id` is returned in its completion. ", $recv)]
            ///
            /// `post` fails with `InvalidInput` if the queue pair has a shared receive queue.
            pub fn post_recv(&mut self, wr_id: u64) -> RecvPost<'_> {
                RecvPost::new(&mut self.core, wr_id)
            }

            /// Destroys it (`ibv_destroy_qp`), or returns it. Outstanding work is dropped without
            /// completions, and accesses no memory afterwards.
            ///
            /// # Errors
            /// The errno of `ibv_destroy_qp`; `Forked` in a fork child.
            pub fn close(mut self) -> Result<(), CloseError<Self>> {
                let destroyed = self.core.object.destroy();
                destroyed.map_err(|error| CloseError::new(self, error))
            }
        }
    };
}

pub(crate) use queue_pair;

queue_pair!(Qp, "It must be as long as the message.");

impl Qp {
    /// Performs one transition (`ibv_modify_qp`).
    ///
    /// # Errors
    /// `EINVAL` if the state or the kind of queue pair does not allow it.
    pub fn modify(&mut self, transition: &QpTransition) -> Result<()> {
        const OPERATION: &str = "ibv_modify_qp";
        match transition {
            QpTransition::Init { access } => access.check_remote(OPERATION)?,
            QpTransition::UdInit { .. }
            | QpTransition::UdReadyToReceive
            | QpTransition::UdReadyToSend { .. } => {
                let cause = "a datagram's transition of a reliable connection";
                return Err(invalid(OPERATION, cause));
            }
            _ => {}
        }
        self.core.modify(transition)
    }

    /// Moves it to INIT, RTR and RTS, with `access` for the peer.
    ///
    /// Reads and atomics wait in the send queue while as many are outstanding as this NIC requests
    /// at a time, or the peer answers ([`QpAddress::rd_atom`], 1 if unknown): more would break the
    /// connection on hardware.
    ///
    /// The peer has 8 times 2 s to answer, and 6 times 100 ms to post a receive that a message
    /// needs.
    ///
    /// # Errors
    /// `EINVAL` if it is not in RESET; `Disconnected` if the port does not reach the peer.
    pub fn connect(&mut self, remote: &QpAddress, access: Access) -> Result<()> {
        let context = self.core.pd().context();
        let max_dest_rd_atomic = context.attr().max_qp_rd_atom;
        let max_rd_atomic = context.attr().max_qp_init_rd_atom.min(remote.rd_atom.max(1));
        let path_mtu = context.query_port()?.active_mtu.min(remote.mtu);
        self.modify(&QpTransition::Init { access })?;
        self.modify(&QpTransition::ReadyToReceive {
            remote: *remote,
            path_mtu,
            max_dest_rd_atomic,
            min_rnr_timer: Duration::from_millis(100),
        })?;
        self.modify(&QpTransition::ReadyToSend {
            sq_psn: self.core.psn,
            max_rd_atomic,
            timeout: Duration::from_secs(2),
            retry_cnt: 7,
            rnr_retry: 6,
        })
    }

    /// Begins a send. `wr_id` is returned in its completion.
    pub fn post_send(&mut self, wr_id: u64) -> SendPost<'_> {
        SendPost::new(&mut self.core, wr_id, None, None)
    }
}
