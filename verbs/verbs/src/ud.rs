//! [`UdQp`]: datagrams to any peer.

use gaudi_seam::{Error, Result};

use crate::ah::AddressHandle;
use crate::context::Pd;
use crate::invalid;
use crate::post::{RecvPost, SendReady, request};
use crate::provider::{QpCap, QpHandle, QpState, QpTransition, QpType};
use crate::qp::{QpCore, QpInit};
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

impl UdQp {
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

    /// What a peer must know; the qkey comes by the same way as the rest, from whoever chose it. See [`exchange`](crate::exchange).
    pub fn address(&self) -> Result<QpAddress> {
        self.core.address()
    }

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

    /// Into the error state: everything queued completes with `WR_FLUSH_ERR`.
    pub fn to_error(&mut self) -> Result<()> {
        self.modify(&QpTransition::Error)
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

    /// Begins a work request for the receive queue: [`GRH_BYTES`] more than the message needs.
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
