//! [`UdQp`]: a datagram queue pair.

use gaudi_seam::{CloseError, Result};

use crate::ah::AddressHandle;
use crate::context::Pd;
use crate::handle::QpHandle;
use crate::invalid;
use crate::post::{RecvPost, SendPost, UdSendPost};
use crate::provider::{QpCap, QpState, QpTransition, QpType};
use crate::qp::queue_pair;
use crate::qp_core::{QpCore, QpInit};
use crate::wr::{QpAddress, Qpn, UdDestination};

/// Bytes before every datagram in its receive: the global route header, or an IPv4 header in the
/// last 20 of them. A receive must have room for them, and `byte_len` counts them.
pub const GRH_BYTES: u32 = 40;

/// A UD queue pair: unacknowledged messages of at most one packet to any peer.
///
/// A datagram without a receive, with another qkey, or longer than its receive is dropped silently.
/// A write to a datagram queue pair does not compile.
#[derive(Debug)]
pub struct UdQp {
    core: QpCore,
}

impl Pd {
    /// Creates a UD queue pair in the state RESET (`ibv_create_qp`).
    ///
    /// # Errors
    /// `InvalidInput` if `init` exceeds a limit of the NIC or names objects of another context.
    pub fn create_ud_qp(&self, init: &QpInit<'_>) -> Result<UdQp> {
        let core = QpCore::create(self, init, QpType::Ud)?;
        Ok(UdQp { core })
    }
}

queue_pair!(UdQp, "It must have [`GRH_BYTES`] more than the message.");

impl UdQp {
    /// Performs one transition (`ibv_modify_qp`).
    ///
    /// # Errors
    /// `EINVAL` if the state or the kind of queue pair does not allow it.
    pub fn modify(&mut self, transition: &QpTransition) -> Result<()> {
        match transition {
            QpTransition::Init { .. }
            | QpTransition::ReadyToReceive { .. }
            | QpTransition::ReadyToSend { .. } => Err(invalid(
                "ibv_modify_qp",
                "a connection's transition of a datagram queue pair",
            )),
            _ => self.core.modify(transition),
        }
    }

    /// Moves it to INIT, RTR and RTS. Received datagrams with another `qkey` are dropped.
    ///
    /// # Errors
    /// `EINVAL` if it is not in RESET.
    pub fn activate(&mut self, qkey: u32) -> Result<()> {
        self.modify(&QpTransition::UdInit { qkey })?;
        self.modify(&QpTransition::UdReadyToReceive)?;
        self.modify(&QpTransition::UdReadyToSend {
            sq_psn: self.core.psn,
        })
    }

    /// Begins a datagram to `qpn` at the end of `to`. `wr_id` is returned in its completion, which
    /// only reports that it was sent.
    pub fn post_send(&mut self, wr_id: u64, to: &AddressHandle, qpn: Qpn, qkey: u32) -> UdSendPost<'_> {
        let is_foreign = !to.pd().is_same(self.core.pd());
        let wrong = is_foreign.then_some("the address handle belongs to another domain");
        let destination = UdDestination {
            ah: to.handle(),
            qpn,
            qkey,
        };
        SendPost::new(&mut self.core, wr_id, Some(destination), wrong)
    }
}
