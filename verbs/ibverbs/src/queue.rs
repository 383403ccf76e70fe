//! Queues: posting and polling.

#![expect(
    unsafe_code,
    reason = "posting and polling are calls through the provider's table, with structs on our stack"
)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::IgnorePoison;
use gaudi_verbs::provider::{CompletionQueue, QueuePair, SharedReceiveQueue};
use gaudi_verbs::{
    Payload, Qpn, RecvWr, RemoteAddr, Rkey, SendOp, SendWr, Sge, WcOpcode, WcStatus, WindowBind,
    WorkCompletion,
};
use gaudi_verbs_sys::consts::*;
use gaudi_verbs_sys::inline::*;
use gaudi_verbs_sys::types::*;

use crate::context::Opened;
use crate::errors::{check, check_post, last, missing};
use crate::gate::{Gate, Inside};
use crate::objects::{Ah, Mr, Mw, Object};
use crate::table::Table;

/// The kernel's `IB_WC_WITH_INVALIDATE` (rdma/ib_verbs.h), which rxe gives to user space as it is
/// (rxe_resp.c). libibverbs calls this bit
/// [`IBV_WC_IP_CSUM_OK`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html), which rxe never
/// sets, and has another one for keys.
const RXE_WITH_INV: u32 = 1 << 2;

/// Limit of elements per work request, which [`IbvDevice`](crate::IbvDevice) reports even if the
/// NIC has a higher one.
pub(crate) const MAX_SGE: usize = 32;
/// Completions per call into the library.
const BATCH: usize = 16;

/// Numbers of the NIC's datagram queue pairs. A completion does not have the type, and some drivers
/// mark every receive as a datagram's.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    any: AtomicBool,
    numbers: RwLock<Vec<u32>>,
}

impl Datagrams {
    pub(crate) fn add(&self, number: u32) {
        self.numbers.write().ignore_poison().push(number);
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn remove(&self, number: u32) {
        let mut numbers = self.numbers.write().ignore_poison();
        if let Some(at) = numbers.iter().position(|other| *other == number) {
            numbers.swap_remove(at);
        }
    }

    #[inline]
    fn has(&self, number: u32) -> bool {
        self.any.load(Ordering::Acquire) && self.numbers.read().ignore_poison().contains(&number)
    }
}

/// Local elements in the library's format.
struct Elements([MaybeUninit<ibv_sge>; MAX_SGE]);

impl Elements {
    #[inline]
    fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; MAX_SGE])
    }

    /// Converts the elements. Returns their number.
    #[inline]
    fn fill(&mut self, operation: &'static str, sges: &[Sge]) -> Result<i32> {
        if sges.len() > MAX_SGE {
            return Err(Error::from_errno(operation, Errno::EINVAL)
                .because("too many elements")
                .saw(sges.len(), format!("at most {MAX_SGE}")));
        }
        for (place, sge) in self.0.iter_mut().zip(sges) {
            place.write(ibv_sge {
                addr: sge.addr.0,
                length: sge.length,
                lkey: sge.lkey.0,
            });
        }
        Ok(sges.len() as i32) // at most 32
    }

    #[inline]
    fn as_mut_ptr(&mut self) -> *mut ibv_sge {
        self.0.as_mut_ptr().cast()
    }
}

/// Enters the gate of an object, unless the object is destroyed.
#[inline]
fn enter<'a>(gate: &'a Gate, operation: &'static str) -> Result<Inside<'a>> {
    gate.enter().ok_or_else(|| missing(operation))
}

/// Shuts the gates of an object and destroys it by `call`. On an error it stays usable.
fn destroy(operation: &'static str, gates: &[&Gate], call: impl FnOnce() -> c_int) -> Result<()> {
    for (index, gate) in gates.iter().enumerate() {
        // All gates are shut together, so the first one decides.
        if !gate.shut() && index == 0 {
            return Err(missing(operation));
        }
    }
    check(operation, call()).inspect_err(|_| gates.iter().rev().for_each(|gate| gate.reopen()))
}

/// Returns the descriptor of a channel.
fn descriptor(channel: &Object<ibv_comp_channel>) -> BorrowedFd<'_> {
    // SAFETY: the channel is live.
    let fd = unsafe { (*channel.as_ptr()).fd };
    // SAFETY: the channel owns it and closes it with itself.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Fills `into` by batches of `poll`, which gets a count and a place, and returns as `ibv_poll_cq`
/// does. The error is its negative return value, unless it returned completions before.
#[inline]
fn drain(
    into: &mut [WorkCompletion],
    mut poll: impl FnMut(c_int, *mut ibv_wc) -> c_int,
    convert: impl Fn(&ibv_wc) -> WorkCompletion,
) -> std::result::Result<usize, c_int> {
    let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
    let mut done = 0;
    while done < into.len() {
        let wanted = (into.len() - done).min(BATCH);
        let answer = poll(wanted as c_int, batch.as_mut_ptr().cast());
        let Ok(count) = usize::try_from(answer) else {
            // Return the completions first. The next call fails again.
            return if done > 0 { Ok(done) } else { Err(answer) };
        };
        // A provider may report more than there was room for.
        let count = count.min(wanted);
        for (place, wc) in into[done..].iter_mut().zip(&batch[..count]) {
            // SAFETY: the library filled `count` places.
            *place = convert(unsafe { wc.assume_init_ref() });
        }
        done += count;
        if count < wanted {
            break;
        }
    }
    Ok(done)
}

/// A completion queue with a channel of its own.
#[derive(Debug)]
pub(crate) struct IbvCq {
    cq: Object<ibv_cq>,
    channel: Object<ibv_comp_channel>,
    gate: Gate,
    overrun: AtomicBool,
    /// Flags of a completion that invalidated a key.
    with_inv: u32,
    datagrams: Arc<Datagrams>,
    opened: Arc<Opened>,
}

impl IbvCq {
    /// Creates the queue. Its events carry `number`.
    pub(crate) fn create(
        opened: Arc<Opened>,
        datagrams: Arc<Datagrams>,
        depth: i32,
        number: u32,
    ) -> Result<Self> {
        let symbols = opened.library.symbols();
        // SAFETY: the context is live.
        let channel = unsafe { (symbols.ibv_create_comp_channel)(opened.context()) };
        let channel = Object::new("ibv_create_comp_channel", channel)?;
        let created = crate::context::set_nonblocking(descriptor(&channel))
            .map_err(|errno| Error::from_errno("ibv_create_comp_channel", errno))
            .and_then(|()| {
                let context = std::ptr::without_provenance_mut(number as usize);
                // SAFETY: context and channel are live. The queue's own context is a number, never
                // followed.
                let cq =
                    unsafe { (symbols.ibv_create_cq)(opened.context(), depth, context, channel.as_ptr(), 0) };
                Object::new("ibv_create_cq", cq)
            });
        let cq = created.inspect_err(|_| {
            // Fails only if a queue uses the channel, and no queue does.
            // SAFETY: nothing uses the channel.
            let _ = unsafe { (symbols.ibv_destroy_comp_channel)(channel.as_ptr()) };
        })?;
        let rxe = if opened.nic.is_rxe() { RXE_WITH_INV } else { 0 };
        Ok(Self {
            cq,
            channel,
            gate: Gate::default(),
            overrun: AtomicBool::new(false),
            with_inv: IBV_WC_WITH_INV | rxe,
            datagrams,
            opened,
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// Records `IBV_EVENT_CQ_ERR`.
    pub(crate) fn set_overrun(&self) {
        self.overrun.store(true, Ordering::Release);
    }

    pub(crate) fn destroy(&self) -> Result<()> {
        // `event_fd` may still be borrowed, so the channel is destroyed on drop.
        destroy("ibv_destroy_cq", &[&self.gate], || {
            // SAFETY: the queue is live, and no thread is inside its gate.
            unsafe { (self.opened.library.symbols().ibv_destroy_cq)(self.cq.as_ptr()) }
        })
    }

    #[inline]
    fn completion(&self, wc: &ibv_wc) -> WorkCompletion {
        let succeeded = wc.status == WcStatus::SUCCESS.0;
        let has = |flag| succeeded && wc.wc_flags & flag != 0;
        let datagram = succeeded && wc.opcode & IBV_WC_RECV != 0 && self.datagrams.has(wc.qp_num);
        WorkCompletion {
            wr_id: wc.wr_id,
            status: WcStatus(wc.status),
            opcode: WcOpcode(wc.opcode),
            byte_len: wc.byte_len,
            imm_data: has(IBV_WC_WITH_IMM).then(|| u32::from_be(wc.imm_data_or_invalidated_rkey)),
            qp_num: Qpn(wc.qp_num),
            src_qp: datagram.then_some(Qpn(wc.src_qp)),
            grh: datagram && has(IBV_WC_GRH),
            invalidated_rkey: has(self.with_inv).then_some(Rkey(wc.imm_data_or_invalidated_rkey)),
            vendor_err: wc.vendor_err,
        }
    }
}

impl CompletionQueue for IbvCq {
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize> {
        const OPERATION: &str = "ibv_poll_cq";
        let _inside = enter(&self.gate, OPERATION)?;
        let done = drain(
            into,
            // SAFETY: the queue is live while we are inside, and the place has room for
            // `wanted` completions.
            |wanted, batch| unsafe { ibv_poll_cq(self.cq.as_ptr(), wanted, batch) },
            |wc| self.completion(wc),
        )
        .or_else(|answer| check(OPERATION, answer).map(|()| 0))?;
        if done == 0 && self.overrun.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Io, OPERATION)
                .with_errno(Errno::EOVERFLOW)
                .because("more work completed than the queue has room for: completions are lost")
                .helped_by("make the queue as deep as all queues that complete in it together"));
        }
        Ok(done)
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        const OPERATION: &str = "ibv_req_notify_cq";
        let _inside = enter(&self.gate, OPERATION)?;
        // SAFETY: the queue is live while we are inside.
        check(OPERATION, unsafe {
            ibv_req_notify_cq(self.cq.as_ptr(), solicited_only.into())
        })
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        descriptor(&self.channel)
    }

    fn ack_event(&self) -> Result<()> {
        const OPERATION: &str = "ibv_get_cq_event";
        let _inside = enter(&self.gate, OPERATION)?;
        let symbols = self.opened.library.symbols();
        loop {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is live; its descriptor does not block.
            let answer =
                unsafe { (symbols.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut context) };
            if answer != 0 {
                let error = last(OPERATION);
                return match error.errno() {
                    Some(Errno::EAGAIN) => Ok(()),
                    _ => Err(error),
                };
            }
            // SAFETY: the event is of our queue, the channel's only one, which is live while we are
            // inside.
            unsafe { (symbols.ibv_ack_cq_events)(self.cq.as_ptr(), 1) };
        }
    }
}

impl Drop for IbvCq {
    fn drop(&mut self) {
        if self.opened.is_foreign() {
            // The parent of this fork child uses it. A thread inside the gate at the fork never
            // leaves it here.
            return;
        }
        if self.gate.shut() {
            // The queue was never destroyed: closing the context frees both.
            return;
        }
        // SAFETY: the queue is destroyed, and no borrow of the descriptor exists.
        let answer =
            unsafe { (self.opened.library.symbols().ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        if let Err(error) = check("ibv_destroy_comp_channel", answer) {
            tracing::error!(%error, nic = self.opened.nic.name, "a completion channel did not close");
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct IbvQp {
    pub(crate) qp: Object<ibv_qp>,
    pub(crate) number: u32,
    pub(crate) sends: Gate,
    pub(crate) receives: Gate,
    pub(crate) ahs: Arc<Table<Ah>>,
    pub(crate) mws: Arc<Table<Mw>>,
    pub(crate) mrs: Arc<Table<Mr>>,
    pub(crate) opened: Arc<Opened>,
}

impl IbvQp {
    pub(crate) fn destroy(&self) -> Result<()> {
        destroy("ibv_destroy_qp", &[&self.sends, &self.receives], || {
            // SAFETY: the queue pair is live, and no thread is inside its gates.
            unsafe { (self.opened.library.symbols().ibv_destroy_qp)(self.qp.as_ptr()) }
        })
    }

    /// Fills all but the elements of a request, and posts it.
    fn post(&self, operation: &'static str, request: &SendWr<'_>, wr: &mut ibv_send_wr) -> Result<()> {
        let rdma = |to: &RemoteAddr| ibv_send_wr_wr {
            rdma: ibv_wr_rdma {
                remote_addr: to.addr.0,
                rkey: to.rkey.0,
            },
        };
        let atomic = |to: &RemoteAddr, compare_add, swap| ibv_send_wr_wr {
            atomic: ibv_wr_atomic {
                remote_addr: to.addr.0,
                compare_add,
                swap,
                rkey: to.rkey.0,
            },
        };
        match &request.op {
            SendOp::Write(to) => (wr.opcode, wr.wr) = (IBV_WR_RDMA_WRITE, rdma(to)),
            SendOp::WriteImm(to, imm) => {
                (wr.opcode, wr.wr) = (IBV_WR_RDMA_WRITE_WITH_IMM, rdma(to));
                wr.imm_data_or_invalidate_rkey = imm.to_be();
            }
            SendOp::Read(from) => (wr.opcode, wr.wr) = (IBV_WR_RDMA_READ, rdma(from)),
            SendOp::Send => wr.opcode = IBV_WR_SEND,
            SendOp::SendImm(imm) => {
                wr.opcode = IBV_WR_SEND_WITH_IMM;
                wr.imm_data_or_invalidate_rkey = imm.to_be();
            }
            SendOp::SendInv(rkey) => {
                wr.opcode = IBV_WR_SEND_WITH_INV;
                wr.imm_data_or_invalidate_rkey = rkey.0;
            }
            SendOp::FetchAdd { to, add } => {
                (wr.opcode, wr.wr) = (IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(to, *add, 0));
            }
            SendOp::CompareSwap { to, compare, swap } => {
                (wr.opcode, wr.wr) = (IBV_WR_ATOMIC_CMP_AND_SWP, atomic(to, *compare, *swap));
            }
            SendOp::LocalInv(rkey) => {
                wr.opcode = IBV_WR_LOCAL_INV;
                wr.imm_data_or_invalidate_rkey = rkey.0;
            }
            SendOp::BindMw(bind) => return self.bind(operation, bind, wr),
            other => {
                return Err(Error::unsupported(
                    operation,
                    format!("this provider does not support {other:?}"),
                ));
            }
        }
        let Some(to) = &request.ud else {
            return self.submit(operation, wr);
        };
        // Under the table's lock: the address handle lives until the library has read it.
        self.ahs.with(operation, to.ah.0, |ah| {
            wr.wr.ud = ibv_wr_ud {
                ah: ah.object.as_ptr(),
                remote_qpn: to.qpn.0,
                remote_qkey: to.qkey,
            };
            self.submit(operation, wr)
        })?
    }

    #[cold]
    fn bind(&self, operation: &'static str, bind: &WindowBind, wr: &mut ibv_send_wr) -> Result<()> {
        // Under the tables' locks: window and region live until the library has read them.
        self.mws.with(operation, bind.mw.0, |mw| {
            self.mrs.with(operation, bind.mr.0, |mr| {
                // Two queue pairs may bind one window at the same time.
                let _posting = gaudi_sys::lock(&mw.posting);
                let mw = mw.object.as_ptr();
                // SAFETY: the window is live. The application keeps the key of type 2 (man 3
                // ibv_post_send), and the library reads it in this post. Other threads read and
                // write it only under the lock that this thread holds.
                unsafe { (*mw).rkey = bind.old.0 };
                wr.opcode = IBV_WR_BIND_MW;
                wr.bind_mw = ibv_wr_bind_mw {
                    mw,
                    rkey: bind.rkey.0,
                    bind_info: ibv_mw_bind_info {
                        mr: mr.object.as_ptr(),
                        addr: bind.addr.0,
                        length: bind.length,
                        mw_access_flags: bind.access.bits(),
                    },
                };
                self.submit(operation, wr)
            })
        })??
    }

    #[inline]
    fn submit(&self, operation: &'static str, wr: &mut ibv_send_wr) -> Result<()> {
        let _inside = enter(&self.sends, operation)?;
        let mut bad = null_mut();
        // SAFETY: the queue pair is live while we are inside; the request and its elements live
        // until the call returns, and no longer need to; the NIC checks memory
        // by its keys.
        check_post(operation, unsafe {
            ibv_post_send(self.qp.as_ptr(), wr, &raw mut bad)
        })
    }
}

impl QueuePair for IbvQp {
    fn qpn(&self) -> Qpn {
        Qpn(self.number)
    }

    fn post_send(&self, request: &SendWr<'_>) -> Result<()> {
        const OPERATION: &str = "ibv_post_send";
        let mut elements = Elements::new();
        let mut wr = ibv_send_wr::zeroed();
        wr.wr_id = request.wr_id;
        for (flag, wanted) in [
            (IBV_SEND_SIGNALED, request.signaled),
            (IBV_SEND_SOLICITED, request.solicited),
            (IBV_SEND_FENCE, request.fence),
        ] {
            if wanted {
                wr.send_flags |= flag;
            }
        }
        match request.payload {
            Payload::Sges(sges) => wr.num_sge = elements.fill(OPERATION, sges)?,
            Payload::Inline(bytes) => {
                wr.send_flags |= IBV_SEND_INLINE;
                let length = u32::try_from(bytes.len()).map_err(|_| {
                    Error::from_errno(OPERATION, Errno::EINVAL).because("inline data of 4 GiB and more")
                })?;
                elements.0[0].write(ibv_sge {
                    addr: bytes.as_ptr().expose_provenance() as u64,
                    length,
                    lkey: 0,
                });
                wr.num_sge = i32::from(length > 0);
            }
        }
        wr.sg_list = elements.as_mut_ptr();
        self.post(OPERATION, request, &mut wr)
    }

    fn post_recv(&self, request: &RecvWr<'_>) -> Result<()> {
        const OPERATION: &str = "ibv_post_recv";
        // SAFETY: the queue pair is live while its gate is held, and the request lives until the
        // call returns.
        post_receive(OPERATION, &self.receives, request, |wr, bad| unsafe {
            ibv_post_recv(self.qp.as_ptr(), wr, bad)
        })
    }
}

/// Posts a receive by `post`, which gets the request and a place for a bad one, inside the gate.
#[inline]
fn post_receive(
    operation: &'static str,
    gate: &Gate,
    request: &RecvWr<'_>,
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> Result<()> {
    let mut elements = Elements::new();
    let num_sge = elements.fill(operation, request.sges)?;
    let mut wr = ibv_recv_wr {
        wr_id: request.wr_id,
        next: null_mut(),
        sg_list: elements.as_mut_ptr(),
        num_sge,
    };
    let _inside = enter(gate, operation)?;
    let mut bad = null_mut();
    check_post(operation, post(&raw mut wr, &raw mut bad))
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct IbvSrq {
    pub(crate) srq: Object<ibv_srq>,
    pub(crate) gate: Gate,
    pub(crate) opened: Arc<Opened>,
}

impl IbvSrq {
    pub(crate) fn destroy(&self) -> Result<()> {
        destroy("ibv_destroy_srq", &[&self.gate], || {
            // SAFETY: the queue is live, and no thread is inside its gate.
            unsafe { (self.opened.library.symbols().ibv_destroy_srq)(self.srq.as_ptr()) }
        })
    }
}

impl SharedReceiveQueue for IbvSrq {
    fn post_recv(&self, request: &RecvWr<'_>) -> Result<()> {
        const OPERATION: &str = "ibv_post_srq_recv";
        // SAFETY: the queue is live while its gate is held, and the request lives until the call
        // returns.
        post_receive(OPERATION, &self.gate, request, |wr, bad| unsafe {
            ibv_post_srq_recv(self.srq.as_ptr(), wr, bad)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls `room` places from a queue of `there` completions, which reports `more` than it
    /// returns. Returns the result, the identifiers, and the number of calls.
    fn polled(room: usize, there: u64, more: c_int) -> (std::result::Result<usize, c_int>, Vec<u64>, usize) {
        let mut into = vec![WorkCompletion::EMPTY; room];
        let (mut next, mut asked) = (0, 0);
        let poll = |wanted: c_int, batch: *mut ibv_wc| {
            asked += 1;
            let count = (there - next).min(wanted as u64);
            for place in 0..count as usize {
                let wc = ibv_wc {
                    wr_id: next,
                    ..ibv_wc::zeroed()
                };
                // SAFETY: there is room for as many as are wanted.
                unsafe { batch.wrapping_add(place).write(wc) };
                next += 1;
            }
            count as c_int + more
        };
        let convert = |wc: &ibv_wc| WorkCompletion {
            wr_id: wc.wr_id,
            ..WorkCompletion::EMPTY
        };
        let answer = drain(&mut into, poll, convert);
        let came = into.iter().take(answer.unwrap_or(0)).map(|wc| wc.wr_id).collect();
        (answer, came, asked)
    }

    #[test]
    fn poll_returns_completions_in_order() {
        for (room, there, asked) in [
            (0, 5, 0),
            (1, 5, 1),
            (40, 5, 1),
            (40, 16, 2),
            (16, 40, 1),
            (40, 100, 3),
        ] {
            let count = room.min(there as usize);
            let expected: Vec<u64> = (0..count as u64).collect();
            assert_eq!(
                polled(room, there, 0),
                (Ok(count), expected, asked),
                "{there} into {room}"
            );
        }
    }

    #[test]
    fn poll_bounds_count_of_provider() {
        for room in [1, BATCH, BATCH + 1, 3 * BATCH] {
            let (answer, came, _) = polled(room, 1000, 1);
            assert_eq!(answer, Ok(room));
            assert_eq!(came, (0..room as u64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn poll_returns_completions_before_failure() {
        let mut answers = [16, -5].into_iter();
        let mut poll = |_: c_int, batch: *mut ibv_wc| {
            for place in 0..BATCH {
                // SAFETY: there is room for as many as are wanted, which is a batch.
                unsafe { batch.wrapping_add(place).write(ibv_wc::zeroed()) };
            }
            answers.next().unwrap_or(-5)
        };
        let mut into = [WorkCompletion::EMPTY; 2 * BATCH];
        assert_eq!(drain(&mut into, &mut poll, |_| WorkCompletion::EMPTY), Ok(BATCH));
        assert_eq!(drain(&mut into, &mut poll, |_| WorkCompletion::EMPTY), Err(-5));
    }
}
