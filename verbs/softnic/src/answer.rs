//! What the peer answers to what we asked: the requester's half of receiving.

use std::time::{Duration, Instant};

use gaudi_verbs::provider::QpType;
use gaudi_verbs::{Access, WcStatus};

use crate::core::{Core, Shared};
use crate::qp::State;
use crate::region::Claim;
use crate::rx::Wanted;
use crate::wire::{Header, Kind, NakCode};

/// The longest that a peer can make us wait before we come again.
const MAX_RNR_WAIT: Duration = Duration::from_secs(1);
/// Between two attempts to reach a queue pair that is not connected yet.
const CONNECT_WAIT: Duration = Duration::from_millis(1);

impl Core {
    pub(crate) fn accept_answer(
        &mut self,
        shared: &Shared,
        link: usize,
        header: &Header,
        claim: &mut Claim,
    ) -> Wanted {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        let known = self.qps.get_mut(&qpn).filter(|qp| {
            qp.qp_type == QpType::Rc
                && qp.state == State::ReadyToSend
                && (qp.remote, qp.link) == (header.src_qpn, link)
        });
        let Some(qp) = known else {
            // The queue pair is destroyed, in error, or connected to another peer.
            self.counters.dropped += 1;
            return Wanted::No;
        };
        let requester = &mut qp.requester;
        let base = requester.base;
        if !requester.is_in_window(msn) {
            // The second answer to a repeated request, one of an earlier connection, or a forged one.
            self.counters.dropped += 1;
            return Wanted::No;
        }
        let outcome = match (header.kind, header.nak) {
            (Kind::Ack, _) if requester.has_sent(msn) => self.complete_before(qpn, msn.wrapping_add(1)),
            (Kind::ReadResponse, _) if requester.has_sent(msn) => {
                let outcome = self.complete_before(qpn, msn);
                if outcome == Ok(true) {
                    return self.accept_read_data(shared, header, claim);
                }
                outcome
            }
            (Kind::Nak, Some(NakCode::NotConnected)) if !requester.proven => self.come_again_connecting(qpn),
            (Kind::Nak, Some(NakCode::ReceiverNotReady)) => match self.complete_before(qpn, msn) {
                Ok(true) => self.come_again_receiving(qpn, header.imm),
                outcome => outcome,
            },
            (Kind::Nak, Some(NakCode::Sequence)) => match self.complete_before(qpn, msn) {
                Ok(true) => self.fill_gap(qpn).map(|()| true),
                outcome => outcome,
            },
            (Kind::Nak, Some(NakCode::NoPeer)) => Err(WcStatus::RETRY_EXC_ERR),
            (Kind::Nak, Some(code)) => match self.complete_before(qpn, msn) {
                Ok(true) => Err(match code {
                    NakCode::Access => WcStatus::REM_ACCESS_ERR,
                    NakCode::InvalidRequest => WcStatus::REM_INV_REQ_ERR,
                    NakCode::Operation => WcStatus::REM_OP_ERR,
                    _ => WcStatus::BAD_RESP_ERR,
                }),
                outcome => outcome,
            },
            _ => Err(WcStatus::BAD_RESP_ERR),
        };
        // Refusals with "come again" have limits of their own; all else that is no progress leaves the clock as it was.
        let again = matches!(
            header.nak,
            Some(NakCode::ReceiverNotReady | NakCode::NotConnected)
        );
        if again || self.qps.get(&qpn).is_some_and(|qp| qp.requester.base != base) {
            self.heard(qpn);
        }
        match outcome {
            Ok(_) => {
                self.settle(shared, qpn);
                self.list(qpn);
            }
            Err(status) => self.enter_error(shared, qpn, status),
        }
        Wanted::No
    }

    /// The queue pair's peer has moved on: the time without an answer counts from now.
    fn heard(&mut self, qpn: u32) {
        let qp = self.qps.get_mut(&qpn);
        if let Some(since) = qp.and_then(|qp| qp.requester.waiting_since.as_mut()) {
            *since = Instant::now();
        }
    }

    /// The peer has done everything before `msn`. A read among it is complete only with its data: `Ok(false)` where that was lost and
    /// is asked for again.
    fn complete_before(&mut self, qpn: u32, msn: u64) -> Result<bool, WcStatus> {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return Ok(true);
        };
        qp.requester.proven = true;
        while qp.requester.base < msn && qp.requester.base < qp.requester.sent_until {
            let Some(entry) = qp.requester.queue.front() else {
                return Err(WcStatus::BAD_RESP_ERR);
            };
            if entry.is_read() {
                self.fill_gap(qpn)?;
                return Ok(false);
            }
            qp.complete_oldest(WcStatus::SUCCESS);
        }
        Ok(true)
    }

    fn accept_read_data(&mut self, shared: &Shared, header: &Header, claim: &mut Claim) -> Wanted {
        let qpn = header.dst_qpn;
        let Some(qp) = self.qps.get(&qpn) else {
            return Wanted::No;
        };
        let asked = qp
            .requester
            .queue
            .front()
            .filter(|entry| entry.is_read() && entry.answer_len() == u64::from(header.total));
        let Some(entry) = asked else {
            self.enter_error(shared, qpn, WcStatus::BAD_RESP_ERR);
            return Wanted::No;
        };
        if entry.done != header.offset {
            self.counters.dropped += 1;
            // What comes twice is dropped; what left a gap is asked for again, once all that was to come has.
            if entry.done < header.offset && header.is_last() {
                match self.fill_gap(qpn) {
                    Ok(()) => self.list(qpn),
                    Err(status) => self.enter_error(shared, qpn, status),
                }
            }
            return Wanted::No;
        }
        let sges = entry.sges.as_slice();
        let right = Access::LOCAL_WRITE;
        if self
            .regions
            .claim_part(claim, sges, qp.pd, header.offset, header.payload, right)
        {
            self.heard(qpn);
            return Wanted::Payload;
        }
        self.enter_error(shared, qpn, WcStatus::LOC_PROT_ERR);
        Wanted::No
    }

    pub(crate) fn finish_read(&mut self, shared: &Shared, header: &Header, reachable: bool) {
        let qpn = header.dst_qpn;
        if !reachable {
            return self.enter_error(shared, qpn, WcStatus::LOC_PROT_ERR);
        }
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        if let Some(entry) = qp.requester.queue.front_mut() {
            entry.done = header.offset.saturating_add(header.payload);
        }
        if header.is_last() {
            qp.complete_oldest(WcStatus::SUCCESS);
        }
        self.settle(shared, qpn);
        self.list(qpn);
    }

    /// The peer's queue pair is not connected yet.
    fn come_again_connecting(&mut self, qpn: u32) -> Result<bool, WcStatus> {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return Ok(true);
        };
        let (requester, now) = (&mut qp.requester, Instant::now());
        let since = *requester.unconnected_since.get_or_insert(now);
        let patience = requester.patience;
        let whole = patience
            .answer
            .saturating_mul(u32::from(patience.retry_cnt).saturating_add(1));
        if now.saturating_duration_since(since) > whole {
            return Err(WcStatus::RETRY_EXC_ERR);
        }
        requester.rewind();
        requester.not_before = now.checked_add(CONNECT_WAIT);
        Ok(true)
    }

    /// The peer has no receive posted; `micros` is how long it wants us to wait.
    fn come_again_receiving(&mut self, qpn: u32, micros: u32) -> Result<bool, WcStatus> {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return Ok(true);
        };
        let requester = &mut qp.requester;
        if let Some(limit) = requester.patience.rnr_retry {
            if requester.refused >= limit {
                return Err(WcStatus::RNR_RETRY_EXC_ERR);
            }
            requester.refused += 1;
        }
        requester.rewind();
        let wait = Duration::from_micros(micros.into()).min(MAX_RNR_WAIT);
        requester.not_before = Instant::now().checked_add(wait);
        Ok(true)
    }
}
