//! Flushing, retrying and giving up.

use std::time::Duration;

use gaudi_seam::ErrorKind;
use gaudi_verbs::provider::QpState;
use gaudi_verbs::{Gid, Psn, QpAddress, Qpn, RemoteAddr, Rkey, WcStatus};

use crate::bench::*;
use crate::dialect::Answer;
use crate::suite::cases;

cases! {
    "errors";

    fn error_state_flushes_work_in_order(f) {
        let (mut a, b) = pair(f);
        for wr_id in 0..3 {
            a.qp.post_recv(wr_id).post(&[a.mr.part(0, 8)]).unwrap();
        }
        a.qp.to_error().unwrap();
        for wr_id in 0..3 {
            a.completes(wr_id, WcStatus::WR_FLUSH_ERR);
        }
        assert_eq!(a.qp.state().unwrap(), QpState::ERR);
        drop(b);
    }

    fn work_posted_in_error_is_flushed(f) {
        let (mut a, b) = pair(f);
        a.qp.to_error().unwrap();
        a.qp.post_send(1).signaled(false).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.completes(1, WcStatus::WR_FLUSH_ERR);
    }

    fn receives_posted_in_error_are_flushed(f) [ReceiveStates] {
        let (mut a, _b) = pair(f);
        a.qp.to_error().unwrap();
        a.qp.post_recv(2).post(&[a.mr.part(0, 8)]).unwrap();
        a.completes(2, WcStatus::WR_FLUSH_ERR);
    }

    fn failure_completes_unsignaled_work(f) {
        let (mut a, b) = pair(f);
        let bad = RemoteAddr { addr: b.mr.addr(), rkey: Rkey(b.mr.rkey().0 ^ 0x55) };
        a.qp.post_send(1).signaled(false).write(&[a.mr.part(0, 8)], bad).post().unwrap();
        a.completes(1, WcStatus::REM_ACCESS_ERR);
        assert_eq!(a.qp.state().unwrap(), QpState::ERR);
    }

    fn requests_after_a_failure_are_flushed(f) {
        let (mut a, b) = pair(f);
        let bad = RemoteAddr { addr: b.mr.addr(), rkey: Rkey(b.mr.rkey().0 ^ 0x55) };
        a.qp.post_send(0).write(&[a.mr.part(0, 8)], bad).post().unwrap();
        for wr_id in 1..10 {
            a.qp.post_send(wr_id).signaled(false).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        }
        a.completes(0, WcStatus::REM_ACCESS_ERR);
        for wr_id in 1..10 {
            a.completes(wr_id, WcStatus::WR_FLUSH_ERR);
        }
    }

    fn the_refusing_end_fails_too(f) {
        let (mut a, mut b) = pair(f);
        b.qp.post_recv(1).post(&[]).unwrap();
        let bad = RemoteAddr { addr: b.mr.addr(), rkey: Rkey(b.mr.rkey().0 ^ 0x55) };
        a.qp.post_send(2).read(&[a.mr.part(0, 8)], bad).post().unwrap();
        a.completes(2, WcStatus::REM_ACCESS_ERR);
        b.completes(1, WcStatus::WR_FLUSH_ERR);
        assert_eq!(b.qp.state().unwrap(), QpState::ERR);
    }

    fn a_local_failure_leaves_the_peer_connected(f) {
        let (mut a, mut b) = pair(f);
        b.qp.post_recv(1).post(&[]).unwrap();
        let bad = gaudi_verbs::Sge { lkey: gaudi_verbs::Lkey(a.mr.lkey().0 ^ 0x55), ..a.mr.part(0, 8) };
        a.qp.post_send(2).send(&[bad]).post().unwrap();
        a.completes(2, f.dialect.status(Answer::LocalProtection));
        std::thread::sleep(QUIET);
        b.nothing_completes();
        assert_eq!(b.qp.state().unwrap(), QpState::RTS);
    }

    fn other_connections_are_unaffected(f) {
        let (mut a, b) = pair(f);
        let (mut second, mut other) = (
            a.pd.create_qp(&gaudi_verbs::QpInit::new(&a.cq)).unwrap(),
            b.pd.create_qp(&gaudi_verbs::QpInit::new(&b.cq)).unwrap(),
        );
        join(&mut second, &mut other, &Link::default());
        let bad = RemoteAddr { addr: b.mr.addr(), rkey: Rkey(b.mr.rkey().0 ^ 0x55) };
        a.qp.post_send(1).write(&[a.mr.part(0, 8)], bad).post().unwrap();
        a.completes(1, WcStatus::REM_ACCESS_ERR);
        second.post_send(2).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.succeeds(2);
    }

    fn send_waits_for_late_receive(f) {
        let (mut a, mut b) = pair(f);
        a.put(0, b"patience");
        a.qp.post_send(1).send(&[a.mr.part(0, 8)]).post().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        a.nothing_completes();
        b.qp.post_recv(2).post(&[b.mr.part(0, 8)]).unwrap();
        a.succeeds(1);
        b.succeeds(2);
        same("the receive", &b.bytes(0, 8), b"patience");
    }

    fn work_behind_waiting_send_keeps_order(f) {
        let (mut a, mut b) = pair(f);
        a.put(0, &pattern(20_000, 1));
        for round in 0..3 {
            a.qp.post_send(round * 2).send(&[a.mr.part(0, 20_000)]).post().unwrap();
            a.qp.post_send(round * 2 + 1).write(&[a.mr.part(0, 20_000)], b.mr.far(500_000, 20_000)).post().unwrap();
        }
        for round in 0..3 {
            std::thread::sleep(Duration::from_millis(15));
            b.qp.post_recv(round).post(&[b.mr.part(round * 20_000, 20_000)]).unwrap();
        }
        for wr_id in 0..6 {
            a.succeeds(wr_id);
        }
        for round in 0..3 {
            assert_eq!(b.succeeds(round).byte_len, 20_000);
        }
    }

    fn send_without_receive_exhausts_rnr_retries(f) {
        let (mut a, b) = pair_by(f, &Link { rnr_retry: 2, ..Link::default() });
        a.qp.post_send(1).send(&[a.mr.part(0, 8)]).post().unwrap();
        a.qp.post_send(2).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.completes(1, WcStatus::RNR_RETRY_EXC_ERR);
        a.completes(2, WcStatus::WR_FLUSH_ERR);
    }

    fn rnr_retry_zero_fails_at_once(f) {
        let (mut a, _b) = pair_by(f, &Link { rnr_retry: 0, ..Link::default() });
        a.qp.post_send(1).send(&[a.mr.part(0, 8)]).post().unwrap();
        a.completes(1, WcStatus::RNR_RETRY_EXC_ERR);
    }

    fn write_with_imm_waits_for_receive(f) {
        let (mut a, b) = pair_by(f, &Link { rnr_retry: 1, ..Link::default() });
        let to = b.mr.far(0, 8);
        a.qp.post_send(1).write_imm(&[a.mr.part(0, 8)], to, 1).post().unwrap();
        a.completes(1, WcStatus::RNR_RETRY_EXC_ERR);
    }

    fn dead_peer_exhausts_retries(f) {
        let link = Link { timeout: Duration::from_millis(50), retry_cnt: 1, ..Link::default() };
        let (mut a, b) = pair_by(f, &link);
        let to = b.mr.far(0, 8);
        let End { qp, mr, .. } = b;
        qp.close().unwrap();
        a.qp.post_send(1).write(&[a.mr.part(0, 8)], to).post().unwrap();
        a.completes(1, WcStatus::RETRY_EXC_ERR);
        drop(mr);
    }

    fn unknown_queue_pair_exhausts_retries(f) {
        let mut a = End::new(&f.a);
        let own = a.qp.address().unwrap();
        let there = f.b.query_port().unwrap();
        let remote = QpAddress { qpn: Qpn(0xab_cdef), psn: Psn(0), gid: there.gid, mtu: there.active_mtu, ..own };
        let link = Link { timeout: Duration::from_millis(50), retry_cnt: 1, ..Link::default() };
        join_one(&mut a.qp, &own, &remote, &link).unwrap();
        let nowhere = a.mr.far(0, 8);
        a.qp.post_send(1).write(&[a.mr.part(0, 8)], nowhere).post().unwrap();
        a.completes(1, WcStatus::RETRY_EXC_ERR);
    }

    fn unknown_port_fails(f) {
        let mut a = End::new(&f.a);
        let own = a.qp.address().unwrap();
        let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x77, 0x77]);
        let remote = QpAddress { qpn: Qpn(0x1234), gid, ..own };
        let link = Link { timeout: Duration::from_millis(20), retry_cnt: 1, ..Link::default() };
        if join_one(&mut a.qp, &own, &remote, &link).is_ok() {
            let nowhere = a.mr.far(0, 8);
            a.qp.post_send(1).write(&[a.mr.part(0, 8)], nowhere).post().unwrap();
            a.completes(1, WcStatus::RETRY_EXC_ERR);
        }
    }

    fn full_send_queue_rejects_the_post(f) {
        let (mut a, _b) = pair(f);
        // No receive is posted, so that nothing completes.
        let mut posted = 0;
        let error = loop {
            match a.qp.post_send(posted).send(&[a.mr.part(0, 8)]).post() {
                Ok(()) => posted += 1,
                Err(error) => break error,
            }
            assert!(posted < 100_000, "a queue has an end");
        };
        assert!(posted >= 64, "at least what was asked for, {posted}");
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    }

    fn full_receive_queue_rejects_the_post(f) {
        let (mut a, _b) = pair(f);
        let mut posted = 0;
        let error = loop {
            match a.qp.post_recv(posted).post(&[]) {
                Ok(()) => posted += 1,
                Err(error) => break error,
            }
            assert!(posted < 100_000, "a queue has an end");
        };
        assert!(posted >= 64, "at least what was asked for, {posted}");
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    }
}
