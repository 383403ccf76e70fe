//! [`Qp`]: a reliable connection.

use std::time::Duration;

use gaudi_seam::{Error, Result};

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
/// Any error of a work request puts it into the error state: what is queued is flushed with `WR_FLUSH_ERR`, and it must be made anew,
/// or reset and connected again.
#[derive(Debug)]
pub struct Qp {
    core: QpCore,
}

impl Pd {
    /// `ibv_create_qp`: an RC queue pair in the state RESET.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp> {
        let core = QpCore::create(self, init, QpType::Rc)?;
        Ok(Qp { core })
    }
}

/// What both kinds of queue pair can do, with `$recv` said of their receives.
macro_rules! queue_pair {
    ($name:ident, $recv:literal) => {
        impl $name {
            /// Its number on the wire.
            pub fn qpn(&self) -> Qpn {
                self.core.qpn()
            }

            /// As the provider names it: what an [`AsyncEvent`](crate::AsyncEvent) is about.
            pub fn handle(&self) -> QpHandle {
                self.core.handle()
            }

            /// What it has: at least what was asked for.
            pub fn cap(&self) -> QpCap {
                self.core.cap()
            }

            /// `ibv_query_qp`: its state, as the NIC says.
            pub fn state(&self) -> Result<QpState> {
                self.core.state()
            }

            /// Its domain.
            pub fn pd(&self) -> &Pd {
                self.core.pd()
            }

            /// What the other end must know: see [`exchange`](crate::exchange).
            pub fn address(&self) -> Result<QpAddress> {
                self.core.address()
            }

            /// Into the error state: everything queued completes with `WR_FLUSH_ERR`. `EINVAL` in the state RESET, where nothing is.
            pub fn to_error(&mut self) -> Result<()> {
                self.modify(&QpTransition::Error)
            }

            /// Back to RESET: what is queued is dropped without completions, and the queue pair can be led to RTS again. Completions
            /// that are already queued stay. Its [`address`](Self::address) is another one then, which the peer must be told anew: its send
            /// queue starts to count elsewhere.
            pub fn reset(&mut self) -> Result<()> {
                self.modify(&QpTransition::Reset)
            }

            #[doc = concat!("Begins a work request for the receive queue; `wr_id` comes back in its completion. ", $recv)]
            ///
            /// `InvalidInput` at `post` where the queue pair has a shared receive queue.
            pub fn post_recv(&mut self, wr_id: u64) -> RecvPost<'_> {
                RecvPost::new(&mut self.core, wr_id)
            }

            /// `ibv_destroy_qp`: what is outstanding is dropped without completions; nothing of it touches memory afterwards.
            pub fn close(mut self) -> Result<(), (Self, Error)> {
                match self.core.destroy() {
                    Ok(()) => Ok(()),
                    Err(error) => Err((self, error)),
                }
            }
        }
    };
}

pub(crate) use queue_pair;

queue_pair!(Qp, "It must be as long as the message.");

impl Qp {
    /// `ibv_modify_qp`: one transition.
    pub fn modify(&mut self, transition: &QpTransition) -> Result<()> {
        const OPERATION: &str = "ibv_modify_qp";
        match transition {
            QpTransition::Init { access } => access.check_remote(OPERATION)?,
            QpTransition::UdInit { .. }
            | QpTransition::UdReadyToReceive
            | QpTransition::UdReadyToSend { .. } => {
                return Err(invalid(
                    OPERATION,
                    "a datagram's transition of a reliable connection",
                ));
            }
            _ => {}
        }
        self.core.modify(transition)
    }

    /// INIT, RTR and RTS in one go, with `access` for the peer.
    ///
    /// Reads and atomics wait for their turn in the send queue once as many are on their way as this NIC asks for at a time, or as the
    /// peer answers ([`QpAddress::rd_atom`]; 1 where it did not say): more would break the connection on hardware.
    ///
    /// The peer has 8 times 2 s to answer anything at all, and 6 times 100 ms to post a receive that a message waits for.
    pub fn connect(&mut self, remote: &QpAddress, access: Access) -> Result<()> {
        let context = self.core.pd().context();
        let attr = context.attr();
        let (answers, asks) = (
            attr.max_qp_rd_atom,
            attr.max_qp_init_rd_atom.min(remote.rd_atom.max(1)),
        );
        let path_mtu = context.query_port()?.active_mtu.min(remote.mtu);
        self.modify(&QpTransition::Init { access })?;
        self.modify(&QpTransition::ReadyToReceive {
            remote: *remote,
            path_mtu,
            max_dest_rd_atomic: answers,
            min_rnr_timer: Duration::from_millis(100),
        })?;
        self.modify(&QpTransition::ReadyToSend {
            sq_psn: self.core.psn(),
            max_rd_atomic: asks,
            timeout: Duration::from_secs(2),
            retry_cnt: 7,
            rnr_retry: 6,
        })
    }

    /// Begins a work request for the send queue; `wr_id` comes back in its completion.
    pub fn post_send(&mut self, wr_id: u64) -> SendPost<'_> {
        SendPost::new(&mut self.core, wr_id)
    }
}
