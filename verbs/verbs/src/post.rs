//! Posting guards: a work request in the making borrows its queue pair, so that two cannot be built at once and half of one cannot be
//! posted.

use gaudi_seam::Result;

use crate::access::Access;
use crate::invalid;
use crate::mr::Mr;
use crate::mw::{BindReady, Mw};
use crate::qp_core::QpCore;
use crate::wr::{MrAddr, Payload, RecvWr, RemoteAddr, Rkey, SendOp, SendWr, Sge};

pub(crate) fn request(wr_id: u64, op: SendOp, payload: Payload<'_>) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        payload,
        ud: None,
        signaled: true,
        solicited: false,
        fence: false,
    }
}

/// A send being built: options first, then the operation.
///
/// *Room*: a request that is not signaled keeps its place in the send queue until a later signaled one has completed *and was polled*;
/// then all places up to that one are free. Post at least every `max_send_wr`-th request signaled, or the queue fills for good and
/// every post is `WouldBlock`. A request that fails completes visibly, signaled or not, and so does all that is flushed after it: the
/// completion queue must have room for every request that is outstanding, not only for the signaled ones.
#[derive(Debug)]
#[must_use = "nothing is posted until an operation is chosen and `post` is called"]
pub struct SendPost<'q> {
    core: &'q mut QpCore,
    wr_id: u64,
    signaled: bool,
    solicited: bool,
    fence: bool,
}

impl<'q> SendPost<'q> {
    pub(crate) fn new(core: &'q mut QpCore, wr_id: u64) -> Self {
        Self {
            core,
            wr_id,
            signaled: true,
            solicited: false,
            fence: false,
        }
    }

    /// Whether success completes visibly (`IBV_SEND_SIGNALED`); failure always does. On unless turned off.
    ///
    /// The queue has room again only when a later signaled request of it has completed and was polled.
    pub fn signaled(mut self, signaled: bool) -> Self {
        self.signaled = signaled;
        self
    }

    /// Whether the peer's completion wakes who waits for solicited ones only (`IBV_SEND_SOLICITED`).
    pub fn solicited(mut self, solicited: bool) -> Self {
        self.solicited = solicited;
        self
    }

    /// Whether to wait for the reads and atomics posted before (`IBV_SEND_FENCE`). Without it a write may pass them: it can send what a
    /// read was to replace, or change what a read was to fetch.
    pub fn fence(mut self, fence: bool) -> Self {
        self.fence = fence;
        self
    }

    /// Local bytes into the peer's region.
    pub fn write<'s>(self, local: &'s [Sge], to: RemoteAddr) -> SendReady<'q, 's> {
        self.ready(SendOp::Write(to), Payload::Sges(local))
    }

    /// Local bytes into the peer's region, and a number into its next receive's completion.
    pub fn write_imm<'s>(self, local: &'s [Sge], to: RemoteAddr, imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::WriteImm(to, imm), Payload::Sges(local))
    }

    /// Bytes of the caller into the peer's region, copied before `post` returns: no region of our own is needed. At most
    /// [`QpCap::max_inline_data`](crate::provider::QpCap::max_inline_data).
    pub fn write_inline<'s>(self, bytes: &'s [u8], to: RemoteAddr) -> SendReady<'q, 's> {
        self.ready(SendOp::Write(to), Payload::Inline(bytes))
    }

    /// As [`write_inline`](Self::write_inline), and a number into the peer's next receive's completion.
    pub fn write_imm_inline<'s>(self, bytes: &'s [u8], to: RemoteAddr, imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::WriteImm(to, imm), Payload::Inline(bytes))
    }

    /// The peer's bytes into local memory, which needs `LOCAL_WRITE`.
    pub fn read<'s>(self, local: &'s [Sge], from: RemoteAddr) -> SendReady<'q, 's> {
        self.ready(SendOp::Read(from), Payload::Sges(local))
    }

    /// Makes what was written through this queue pair before visible to whoever polls the peer's memory, not only to its NIC: a small
    /// read of what was written last, best of its last bytes. `into` takes 1 to 8 of them and means nothing.
    ///
    /// A write's completion says that the peer's NIC has taken the bytes; on their way to device memory they may still be in flight. A
    /// read on the same queue pair cannot pass them, so that all is in place once the read has completed. A read of no bytes touches no
    /// memory and flushes nothing: `InvalidInput`.
    pub fn flush_remote<'s>(self, into: &'s Sge, last: RemoteAddr) -> SendReady<'q, 's> {
        let wrong = (!(1..=8).contains(&into.length)).then_some("a flush reads 1 to 8 bytes");
        self.checked(
            SendOp::Read(last),
            Payload::Sges(std::slice::from_ref(into)),
            wrong,
        )
    }

    /// Adds to 8 aligned bytes of the peer, which must allow `REMOTE_ATOMIC`; what they were comes into `was`, 8 bytes of local memory.
    /// `InvalidInput` at `post` where either is not so. The number is in the byte order of the machines, which must have the same.
    pub fn fetch_add<'s>(self, was: &'s Sge, to: RemoteAddr, add: u64) -> SendReady<'q, 's> {
        let op = SendOp::FetchAdd { to, add };
        self.ready(op, Payload::Sges(std::slice::from_ref(was)))
    }

    /// Replaces 8 aligned bytes of the peer by `swap` where they are `compare`; what they were comes into `was`. As
    /// [`fetch_add`](Self::fetch_add) otherwise.
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

    /// Local bytes into the peer's next receive.
    pub fn send<'s>(self, local: &'s [Sge]) -> SendReady<'q, 's> {
        self.ready(SendOp::Send, Payload::Sges(local))
    }

    /// Local bytes into the peer's next receive, and a number into its completion.
    pub fn send_imm<'s>(self, local: &'s [Sge], imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::SendImm(imm), Payload::Sges(local))
    }

    /// Bytes of the caller into the peer's next receive, copied before `post` returns.
    pub fn send_inline<'s>(self, bytes: &'s [u8]) -> SendReady<'q, 's> {
        self.ready(SendOp::Send, Payload::Inline(bytes))
    }

    /// As [`send_inline`](Self::send_inline), and a number into the receive's completion.
    pub fn send_imm_inline<'s>(self, bytes: &'s [u8], imm: u32) -> SendReady<'q, 's> {
        self.ready(SendOp::SendImm(imm), Payload::Inline(bytes))
    }

    /// Local bytes into the peer's next receive, and the peer's memory window that `key` names is invalid from its completion on. A key
    /// that names none breaks the connection (`REM_INV_REQ_ERR` at the peer's receive).
    pub fn send_inv<'s>(self, local: &'s [Sge], key: Rkey) -> SendReady<'q, 's> {
        self.ready(SendOp::SendInv(key), Payload::Sges(local))
    }

    /// A window of our own that is bound becomes invalid: peers that use its key are refused. `LOC_QP_OP_ERR` where the key names no
    /// bound window of type 2.
    pub fn local_inv(self, key: Rkey) -> SendReady<'q, 'static> {
        self.ready(SendOp::LocalInv(key), Payload::Sges(&[]))
    }

    /// Gives the `len` bytes at `offset` of a region a key of their own. The window must not be bound (type 2), the region needs
    /// [`Access::MW_BIND`], and `LOCAL_WRITE` where `access` lets peers write. A range that leaves the region, like everything else that
    /// the NIC minds, is `MW_BIND_ERR` and breaks the connection; [`Mw::take_back`] then takes back what this noted.
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
        let op = SendOp::BindMw {
            mw: mw.handle(),
            old: mw.rkey(),
            rkey,
            mr: mr.handle(),
            lkey: mr.lkey(),
            addr: MrAddr(mr.addr().0.wrapping_add(offset)),
            length: len,
            access,
        };
        let mut request = request(self.wr_id, op, Payload::Sges(&[]));
        request.signaled = self.signaled;
        request.fence = self.fence;
        BindReady {
            core: self.core,
            request,
            mw,
            mr,
            access,
            wrong,
        }
    }

    fn ready<'s>(self, op: SendOp, payload: Payload<'s>) -> SendReady<'q, 's> {
        self.checked(op, payload, None)
    }

    fn checked<'s>(self, op: SendOp, payload: Payload<'s>, wrong: Option<&'static str>) -> SendReady<'q, 's> {
        let mut request = request(self.wr_id, op, payload);
        request.signaled = self.signaled;
        request.solicited = self.solicited;
        request.fence = self.fence;
        SendReady::new(self.core, request, wrong)
    }
}

/// A send that can be posted.
#[derive(Debug)]
#[must_use = "nothing is posted until `post` is called"]
pub struct SendReady<'q, 's> {
    core: &'q mut QpCore,
    request: SendWr<'s>,
    wrong: Option<&'static str>,
}

impl<'q, 's> SendReady<'q, 's> {
    pub(crate) fn new(core: &'q mut QpCore, request: SendWr<'s>, wrong: Option<&'static str>) -> Self {
        Self { core, request, wrong }
    }

    /// As [`SendPost::signaled`].
    pub fn signaled(mut self, signaled: bool) -> Self {
        self.request.signaled = signaled;
        self
    }

    /// `ibv_post_send`: `WouldBlock` (`ENOMEM`) where the queue is full; `InvalidInput` where the request can never be posted, as with more
    /// elements or inline bytes than [`QpCap`](crate::provider::QpCap) has. What fails later tells the completion.
    pub fn post(self) -> Result<()> {
        if let Some(wrong) = self.wrong {
            return Err(invalid("ibv_post_send", wrong));
        }
        self.core.post(&self.request)
    }
}

/// A receive being built.
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

    /// `ibv_post_recv` of local memory, which needs `LOCAL_WRITE`. No element at all is right for writes with immediate.
    /// `WouldBlock` (`ENOMEM`) where the queue is full, `InvalidInput` where there are more elements than
    /// [`QpCap`](crate::provider::QpCap) has.
    pub fn post(self, into: &[Sge]) -> Result<()> {
        self.core.post_recv(&RecvWr {
            wr_id: self.wr_id,
            sges: into,
        })
    }
}
