//! Answers of the peer: the requester's half of receiving.

use std::time::{Duration, Instant};

use gaudi_verbs::provider::QpType;
use gaudi_verbs::{Access, WcStatus};

use crate::core::{Core, Shared};
use crate::error::defect;
use crate::qp::{SendEntry, State};
use crate::region::Claim;
use crate::rx::Wanted;
use crate::wire::{Header, Kind, NakCode};

/// The longest wait that a peer can request before a message is sent again.
const MAX_RNR_WAIT: Duration = Duration::from_secs(1);
/// Time between two attempts to reach a queue pair that is not connected yet.
const CONNECT_WAIT: Duration = Duration::from_millis(1);

impl Core {
    pub(crate) fn accept_answer(
        &mut self,
        shared: &Shared,
        link: usize,
        header: &Header,
        claim: &mut Claim,
    ) -> Option<Wanted> {
        let (qpn, msn) = (header.dst_qpn, header.msn);
        let now = shared.clock.now();
        let requester = self.qps.rows.get_mut(&qpn).filter(|qp| {
            qp.qp_type == QpType::Rc
                && qp.state == State::ReadyToSend
                && (qp.remote, qp.link) == (header.src_qpn, link)
        });
        let Some(qp) = requester else {
            // The queue pair is destroyed, in error, or connected to another peer.
            self.counters.dropped += 1;
            return None;
        };
        let requester = &mut qp.requester;
        let base = requester.base;
        if !requester.is_in_window(msn) {
            // The second answer to a repeated request, one of an earlier connection, or a forged
            // one.
            self.counters.dropped += 1;
            return None;
        }
        let outcome = match (header.kind, header.nak) {
            (Kind::Ack, _) if requester.has_sent(msn) => self.complete_before(qpn, msn.wrapping_add(1), now),
            (Kind::ReadResponse, _) if requester.has_sent(msn) => {
                let outcome = self.complete_before(qpn, msn, now);
                if outcome == Ok(true) {
                    return self.accept_read_data(shared, header, claim, now);
                }
                outcome
            }
            (Kind::Nak, Some(NakCode::NotConnected)) if !requester.proven => self.retry_connecting(qpn, now),
            (Kind::Nak, Some(NakCode::NoPeer)) => Err(WcStatus::RETRY_EXC_ERR),
            (Kind::Nak, Some(code)) => match (self.complete_before(qpn, msn, now), code) {
                (Ok(true), NakCode::ReceiverNotReady) => self.retry_receiving(qpn, header.imm, now),
                (Ok(true), NakCode::Sequence) => self.fill_gap(qpn, now).map(|()| true),
                (Ok(true), NakCode::Access) => Err(WcStatus::REM_ACCESS_ERR),
                (Ok(true), NakCode::InvalidRequest) => Err(WcStatus::REM_INV_REQ_ERR),
                (Ok(true), NakCode::Operation) => Err(WcStatus::REM_OP_ERR),
                (Ok(true), _) => Err(WcStatus::BAD_RESP_ERR),
                (outcome, _) => outcome,
            },
            _ => Err(WcStatus::BAD_RESP_ERR),
        };
        // Refusals that ask for a retry have limits of their own. Any other answer without progress
        // must not extend the timeout.
        let again = [Some(NakCode::ReceiverNotReady), Some(NakCode::NotConnected)].contains(&header.nak);
        if again
            || self
                .qps
                .rows
                .get(&qpn)
                .is_some_and(|qp| qp.requester.base != base)
        {
            self.restart_timeout(qpn, now);
        }
        match outcome {
            Ok(_) => {
                self.settle(shared, qpn);
                self.list(qpn);
            }
            Err(status) => self.enter_error(shared, qpn, status),
        }
        None
    }

    /// Restarts the timeout for an answer.
    fn restart_timeout(&mut self, qpn: u32, now: Instant) {
        let qp = self.qps.known(qpn);
        if let Some(since) = qp.and_then(|qp| qp.requester.waiting_since.as_mut()) {
            *since = now;
        }
    }

    /// Completes every request before `msn`. Returns false if a read among them has no data yet,
    /// which is requested again.
    fn complete_before(&mut self, qpn: u32, msn: u64, now: Instant) -> Result<bool, WcStatus> {
        let qp = self.qps.known(qpn).ok_or(WcStatus::GENERAL_ERR)?;
        qp.requester.proven = true;
        while qp.requester.base < msn && qp.requester.base < qp.requester.sent_until {
            let Some(entry) = qp.requester.queue.front() else {
                return Err(WcStatus::BAD_RESP_ERR);
            };
            if entry.is_read() {
                self.fill_gap(qpn, now)?;
                return Ok(false);
            }
            qp.complete_oldest(WcStatus::SUCCESS);
        }
        Ok(true)
    }

    fn accept_read_data(
        &mut self,
        shared: &Shared,
        header: &Header,
        claim: &mut Claim,
        now: Instant,
    ) -> Option<Wanted> {
        let qpn = header.dst_qpn;
        let qp = self.qps.known(qpn)?;
        let oldest = qp.requester.queue.front();
        let is_asked = |entry: &&SendEntry| entry.is_read() && entry.sges.total == u64::from(header.total);
        let Some(entry) = oldest.filter(is_asked) else {
            self.enter_error(shared, qpn, WcStatus::BAD_RESP_ERR);
            return None;
        };
        if entry.done != header.offset {
            self.counters.dropped += 1;
            // A duplicate is dropped. A gap is requested again once the last frame is here.
            if entry.done < header.offset && header.is_last() {
                match self.fill_gap(qpn, now) {
                    Ok(()) => self.list(qpn),
                    Err(status) => self.enter_error(shared, qpn, status),
                }
            }
            return None;
        }
        let (sges, right) = (entry.sges.as_slice(), Access::LOCAL_WRITE);
        let part = header.offset..header.offset + header.payload;
        if self.regions.claim_part(claim, sges, qp.pd, part, right) {
            self.restart_timeout(qpn, now);
            return Some(Wanted::Payload);
        }
        self.enter_error(shared, qpn, WcStatus::LOC_PROT_ERR);
        None
    }

    pub(crate) fn finish_read(&mut self, shared: &Shared, header: &Header, reachable: bool) {
        let qpn = header.dst_qpn;
        if !reachable {
            return self.enter_error(shared, qpn, WcStatus::LOC_PROT_ERR);
        }
        let Some(qp) = self.qps.known(qpn) else {
            return;
        };
        match qp.requester.queue.front_mut() {
            Some(entry) => entry.done = header.offset.saturating_add(header.payload),
            None => defect("a read completed while its data was received"),
        }
        if header.is_last() {
            qp.complete_oldest(WcStatus::SUCCESS);
        }
        self.settle(shared, qpn);
        self.list(qpn);
    }

    /// Schedules a retry: the peer's queue pair is not connected yet.
    fn retry_connecting(&mut self, qpn: u32, now: Instant) -> Result<bool, WcStatus> {
        let qp = self.qps.known(qpn).ok_or(WcStatus::GENERAL_ERR)?;
        let requester = &mut qp.requester;
        let since = *requester.unconnected_since.get_or_insert(now);
        let attempts = u32::from(requester.retry.count) + 1;
        let whole = requester.retry.timeout.saturating_mul(attempts);
        if now.saturating_duration_since(since) > whole {
            return Err(WcStatus::RETRY_EXC_ERR);
        }
        requester.rewind();
        requester.not_before = now.checked_add(CONNECT_WAIT);
        Ok(true)
    }

    /// Schedules a retry: the peer has no receive posted and asks for a wait of `micros`.
    fn retry_receiving(&mut self, qpn: u32, micros: u32, now: Instant) -> Result<bool, WcStatus> {
        let qp = self.qps.known(qpn).ok_or(WcStatus::GENERAL_ERR)?;
        let requester = &mut qp.requester;
        if let Some(limit) = requester.retry.rnr_count {
            if requester.refused >= limit {
                return Err(WcStatus::RNR_RETRY_EXC_ERR);
            }
            requester.refused += 1;
        }
        requester.rewind();
        let wait = Duration::from_micros(micros.into()).min(MAX_RNR_WAIT);
        requester.not_before = now.checked_add(wait);
        Ok(true)
    }
}
