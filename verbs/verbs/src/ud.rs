//! [`UdQp`]: datagrams to any peer.

use gaudi_seam::{Error, Result};

use crate::ah::AddressHandle;
use crate::context::Pd;
use crate::handle::QpHandle;
use crate::invalid;
use crate::post::{RecvPost, SendReady, request};
use crate::provider::{QpCap, QpState, QpTransition, QpType};
use crate::qp::queue_pair;
use crate::qp_core::{QpCore, QpInit};
use crate::wr::{Payload, QpAddress, Qpn, SendOp, Sge, UdDestination};

/// Bytes in front of every datagram in its receive: the global route header, or for IPv4 the last 20 of them. A receive must have room
/// for them, and `byte_len` counts them.
pub const GRH_BYTES: u32 = 40;

/// A UD queue pair: messages of at most one packet, to any peer, none of them acknowledged.
///
/// What finds no receive, carries another qkey, or is longer than its receive is dropped without a word. What only a connection can do
/// is not here: a write to a datagram queue pair does not compile.
#[derive(Debug)]
pub struct UdQp {
    core: QpCore,
}

impl Pd {
    /// `ibv_create_qp`: a UD queue pair in the state RESET.
    pub fn create_ud_qp(&self, init: &QpInit<'_>) -> Result<UdQp> {
        let core = QpCore::create(self, init, QpType::Ud)?;
        Ok(UdQp { core })
    }
}

queue_pair!(UdQp, "It must have [`GRH_BYTES`] more than the message.");

impl UdQp {
    /// `ibv_modify_qp`: one transition.
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

    /// INIT, RTR and RTS in one go. Datagrams that carry another `qkey` are dropped.
    pub fn activate(&mut self, qkey: u32) -> Result<()> {
        self.modify(&QpTransition::UdInit { qkey })?;
        self.modify(&QpTransition::UdReadyToReceive)?;
        self.modify(&QpTransition::UdReadyToSend {
            sq_psn: self.core.psn(),
        })
    }

    /// Begins a datagram to `qpn` at the end of `to`; `wr_id` comes back in its completion, which says that it has left and no more.
    pub fn post_send(&mut self, wr_id: u64, to: &AddressHandle, qpn: Qpn, qkey: u32) -> UdSendPost<'_> {
        UdSendPost {
            foreign: !to.pd().is_same(self.core.pd()),
            destination: UdDestination {
                ah: to.handle(),
                qpn,
                qkey,
            },
            core: &mut self.core,
            wr_id,
            signaled: true,
            solicited: false,
        }
    }
}

/// A datagram being built: options first, then the payload.
#[derive(Debug)]
#[must_use = "nothing is posted until a payload is chosen and `post` is called"]
pub struct UdSendPost<'q> {
    core: &'q mut QpCore,
    wr_id: u64,
    destination: UdDestination,
    foreign: bool,
    signaled: bool,
    solicited: bool,
}

impl<'q> UdSendPost<'q> {
    /// As [`SendPost::signaled`](crate::SendPost::signaled).
    pub fn signaled(mut self, signaled: bool) -> Self {
        self.signaled = signaled;
        self
    }

    /// As [`SendPost::solicited`](crate::SendPost::solicited).
    pub fn solicited(mut self, solicited: bool) -> Self {
        self.solicited = solicited;
        self
    }

    /// Local bytes: at most one packet's. What is longer is not sent, and completes all the same (IBA C10-93.1.1).
    pub fn send<'s>(self, local: &'s [Sge]) -> SendReady<'q, 's> {
        self.ready(SendOp::Send, Payload::Sges(local))
    }

    /// Local bytes, and a number into the receiver's completion.
    pub fn send_imm<'s>(self, local: &'s [Sge], imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::SendImm(imm), Payload::Sges(local))
    }

    /// Bytes of the caller, copied before `post` returns.
    pub fn send_inline<'s>(self, bytes: &'s [u8]) -> SendReady<'q, 's> {
        self.ready(SendOp::Send, Payload::Inline(bytes))
    }

    /// Bytes of the caller, copied before `post` returns, and a number into the receiver's completion.
    pub fn send_imm_inline<'s>(self, bytes: &'s [u8], imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::SendImm(imm), Payload::Inline(bytes))
    }

    fn ready<'s>(self, op: SendOp, payload: Payload<'s>) -> SendReady<'q, 's> {
        let mut request = request(self.wr_id, op, payload);
        request.ud = Some(self.destination);
        request.signaled = self.signaled;
        request.solicited = self.solicited;
        SendReady::new(
            self.core,
            request,
            self.foreign
                .then_some("the address handle belongs to another domain"),
        )
    }
}
