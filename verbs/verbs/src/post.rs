//! Builders of work requests. A builder borrows its queue pair, so that two cannot be built at once
//! and an incomplete one cannot be posted.

use std::marker::PhantomData;

use gaudi_seam::Result;

use crate::access::Access;
use crate::invalid;
use crate::mr::Mr;
use crate::mw::{BindReady, Mw};
use crate::qp_core::QpCore;
use crate::wr::{MrAddr, Payload, RecvWr, RemoteAddr, Rkey, SendOp, SendWr, Sge, UdDestination, WindowBind};

/// A send request: set options, then choose the operation.
///
/// An unsignaled request occupies the send queue until a later signaled one has completed and was
/// polled. Signal at least every `max_send_wr`-th request, or the queue stays full and every post
/// fails with `WouldBlock`. A failed request, and everything flushed after it, generates a
/// completion even if unsignaled: the completion queue must have room for every outstanding
/// request.
#[derive(Debug)]
#[must_use = "nothing is posted until an operation is chosen and `post` is called"]
pub struct SendPost<'q, K = Connection> {
    core: &'q mut QpCore,
    wr_id: u64,
    ud: Option<UdDestination>,
    signaled: bool,
    solicited: bool,
    fence: bool,
    /// Why the request can never be posted.
    wrong: Option<&'static str>,
    kind: PhantomData<K>,
}

/// The kind of a [`SendPost`] of a connected queue pair.
#[derive(Debug)]
pub enum Connection {}

/// The kind of a [`SendPost`] of a datagram queue pair: a datagram is at most one packet. A longer
/// message is not sent, and completes successfully (IBA C10-93.1.1).
#[derive(Debug)]
pub enum Datagram {}

/// A datagram being built: options first, then the payload.
pub type UdSendPost<'q> = SendPost<'q, Datagram>;

impl<'q, K> SendPost<'q, K> {
    pub(crate) fn new(
        core: &'q mut QpCore,
        wr_id: u64,
        ud: Option<UdDestination>,
        wrong: Option<&'static str>,
    ) -> Self {
        Self {
            core,
            wr_id,
            ud,
            signaled: true,
            solicited: false,
            fence: false,
            wrong,
            kind: PhantomData,
        }
    }

    /// Sets whether success generates a completion (`IBV_SEND_SIGNALED`), which is the default. A
    /// failure always does.
    pub fn signaled(mut self, signaled: bool) -> Self {
        self.signaled = signaled;
        self
    }

    /// Sets whether the peer's completion signals a waiter for solicited ones
    /// (`IBV_SEND_SOLICITED`).
    pub fn solicited(mut self, solicited: bool) -> Self {
        self.solicited = solicited;
        self
    }

    /// Sends local bytes to the peer's next receive.
    pub fn send<'s>(self, local: &'s [Sge]) -> SendReady<'q, 's> {
        self.ready(SendOp::Send, Payload::Sges(local))
    }

    /// Sends local bytes and immediate data to the peer's next receive.
    pub fn send_imm<'s>(self, local: &'s [Sge], imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::SendImm(imm), Payload::Sges(local))
    }

    /// Sends bytes of the caller, which `post` copies, to the peer's next receive.
    pub fn send_inline<'s>(self, bytes: &'s [u8]) -> SendReady<'q, 's> {
        self.ready(SendOp::Send, Payload::Inline(bytes))
    }

    /// As [`send_inline`](Self::send_inline), with immediate data.
    pub fn send_imm_inline<'s>(self, bytes: &'s [u8], imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::SendImm(imm), Payload::Inline(bytes))
    }

    fn ready<'s>(self, op: SendOp, payload: Payload<'s>) -> SendReady<'q, 's> {
        let request = self.request(op, payload);
        SendReady {
            core: self.core,
            request,
            wrong: self.wrong,
        }
    }

    fn request<'s>(&self, op: SendOp, payload: Payload<'s>) -> SendWr<'s> {
        SendWr {
            wr_id: self.wr_id,
            op,
            payload,
            ud: self.ud,
            signaled: self.signaled,
            solicited: self.solicited,
            fence: self.fence,
        }
    }
}

impl<'q> SendPost<'q> {
    /// Sets whether to wait for earlier reads and atomics (`IBV_SEND_FENCE`). Without it a write
    /// may pass them: it can send data that a read replaces, or overwrite data that a read fetches.
    pub fn fence(mut self, fence: bool) -> Self {
        self.fence = fence;
        self
    }

    /// Writes local bytes to the peer's region.
    pub fn write<'s>(self, local: &'s [Sge], to: RemoteAddr) -> SendReady<'q, 's> {
        self.ready(SendOp::Write(to), Payload::Sges(local))
    }

    /// Writes local bytes to the peer's region, and immediate data to its next receive.
    pub fn write_imm<'s>(self, local: &'s [Sge], to: RemoteAddr, imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::WriteImm(to, imm), Payload::Sges(local))
    }

    /// Writes bytes of the caller, which `post` copies, to the peer's region. At most
    /// [`QpCap::max_inline_data`](crate::provider::QpCap::max_inline_data).
    pub fn write_inline<'s>(self, bytes: &'s [u8], to: RemoteAddr) -> SendReady<'q, 's> {
        self.ready(SendOp::Write(to), Payload::Inline(bytes))
    }

    /// As [`write_inline`](Self::write_inline), with immediate data to the peer's next receive.
    pub fn write_imm_inline<'s>(self, bytes: &'s [u8], to: RemoteAddr, imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::WriteImm(to, imm), Payload::Inline(bytes))
    }

    /// Reads from the peer's region into local memory, which needs `LOCAL_WRITE`.
    pub fn read<'s>(self, local: &'s [Sge], from: RemoteAddr) -> SendReady<'q, 's> {
        self.ready(SendOp::Read(from), Payload::Sges(local))
    }

    /// Makes earlier writes of this queue pair visible in the peer's memory: reads some of the last
    /// written bytes. `into` takes 1 to 8 bytes without meaning.
    ///
    /// A write's completion only means that the peer's NIC has the bytes, which may still be on
    /// their way to device memory. A read on the same queue pair cannot pass them. A read of no
    /// bytes flushes nothing: `post` fails with `InvalidInput`.
    pub fn flush_remote<'s>(mut self, into: &'s Sge, last: RemoteAddr) -> SendReady<'q, 's> {
        self.wrong = (!(1..=8).contains(&into.length)).then_some("a flush reads 1 to 8 bytes");
        self.ready(SendOp::Read(last), Payload::Sges(std::slice::from_ref(into)))
    }

    /// Adds to 8 aligned bytes of the peer, which needs `REMOTE_ATOMIC`. `was` receives the old
    /// value, 8 bytes. `post` fails with `InvalidInput` otherwise. Both machines must have the same
    /// byte order.
    pub fn fetch_add<'s>(self, was: &'s Sge, to: RemoteAddr, add: u64) -> SendReady<'q, 's> {
        let op = SendOp::FetchAdd { to, add };
        self.ready(op, Payload::Sges(std::slice::from_ref(was)))
    }

    /// Replaces 8 aligned bytes of the peer by `swap` if they equal `compare`. Otherwise as
    /// [`fetch_add`](Self::fetch_add).
    pub fn compare_swap<'s>(
        self,
        was: &'s Sge,
        to: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> SendReady<'q, 's> {
        let op = SendOp::CompareSwap { to, compare, swap };
        self.ready(op, Payload::Sges(std::slice::from_ref(was)))
    }

    /// Sends local bytes to the peer's next receive, and invalidates the peer's memory window
    /// `key`. A key that names none breaks the connection (`REM_INV_REQ_ERR` at the peer's
    /// receive).
    pub fn send_inv<'s>(self, local: &'s [Sge], key: Rkey) -> SendReady<'q, 's> {
        self.ready(SendOp::SendInv(key), Payload::Sges(local))
    }

    /// Invalidates a bound window of this end: its key is refused from then on. Completes with
    /// `LOC_QP_OP_ERR` if the key names no bound window of type 2.
    pub fn local_inv(self, key: Rkey) -> SendReady<'q, 'static> {
        self.ready(SendOp::LocalInv(key), Payload::Sges(&[]))
    }

    /// Binds a window to the `len` bytes at `offset` of a region. A window of type 2 must not be
    /// bound. The region needs [`Access::MW_BIND`], and `LOCAL_WRITE` if `access` lets peers write.
    /// A bind that the NIC refuses completes with `MW_BIND_ERR` and breaks the connection; call
    /// [`Mw::take_back`] then.
    pub fn bind_mw<'m>(
        self,
        mw: &'m mut Mw,
        mr: &'m Mr,
        offset: u64,
        len: u64,
        access: Access,
    ) -> BindReady<'q, 'm> {
        let own = self.core.pd();
        let wrong = if !mw.pd().is_same(own) {
            Some("the window belongs to another domain")
        } else if !mr.pd().is_same(own) {
            Some("the region belongs to another domain")
        } else {
            None
        };
        let rkey = mw.next_rkey();
        let bind = WindowBind {
            mw: mw.handle(),
            old: mw.rkey(),
            rkey,
            mr: mr.handle(),
            lkey: mr.lkey(),
            addr: MrAddr(mr.addr().0.wrapping_add(offset)),
            length: len,
            access,
        };
        BindReady {
            request: self.request(SendOp::BindMw(bind), Payload::Sges(&[])),
            core: self.core,
            bind,
            mw,
            mr,
            wrong,
        }
    }
}

/// A complete send request.
#[derive(Debug)]
#[must_use = "nothing is posted until `post` is called"]
pub struct SendReady<'q, 's> {
    core: &'q mut QpCore,
    request: SendWr<'s>,
    wrong: Option<&'static str>,
}

impl<'q, 's> SendReady<'q, 's> {
    /// As [`SendPost::signaled`].
    pub fn signaled(mut self, signaled: bool) -> Self {
        self.request.signaled = signaled;
        self
    }

    /// Posts the request (`ibv_post_send`). Its completion reports later failures.
    ///
    /// # Errors
    /// `WouldBlock` (`ENOMEM`) if the queue is full; `InvalidInput` if the request can never be
    /// posted, for example with more elements or inline bytes than
    /// [`QpCap`](crate::provider::QpCap) allows.
    pub fn post(self) -> Result<()> {
        if let Some(wrong) = self.wrong {
            return Err(invalid("ibv_post_send", wrong));
        }
        self.core.post(&self.request)
    }
}

/// A receive request.
#[derive(Debug)]
#[must_use = "nothing is posted until `post` is called"]
pub struct RecvPost<'q> {
    core: &'q mut QpCore,
    wr_id: u64,
}

impl<'q> RecvPost<'q> {
    pub(crate) fn new(core: &'q mut QpCore, wr_id: u64) -> Self {
        Self { core, wr_id }
    }

    /// Posts the receive into local memory, which needs `LOCAL_WRITE` (`ibv_post_recv`). A write
    /// with immediate data needs no element.
    ///
    /// # Errors
    /// `WouldBlock` (`ENOMEM`) if the queue is full; `InvalidInput` for more elements than
    /// [`QpCap`](crate::provider::QpCap) allows.
    pub fn post(self, into: &[Sge]) -> Result<()> {
        self.core.post_recv(&RecvWr {
            wr_id: self.wr_id,
            sges: into,
        })
    }
}
