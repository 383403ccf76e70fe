//! States of queue pairs, and ways to connect.

use std::time::Duration;

use gaudi_seam::Errno;
use gaudi_verbs::provider::{QpState, QpTransition};
use gaudi_verbs::{Mtu, QpInit, WcStatus};

use crate::bench::*;
use crate::suite::cases;

cases! {
    "connections";

    fn queue_pair_reports_its_state(f) {
        let (mut a, b) = (End::new(&f.a), End::new(&f.b));
        let remote = b.qp.address().unwrap();
        assert_eq!(a.qp.state().unwrap(), QpState::RESET);
        a.qp.modify(&QpTransition::Init { access: FULL }).unwrap();
        assert_eq!(a.qp.state().unwrap(), QpState::INIT);
        a.qp.modify(&receive_from(remote)).unwrap();
        assert_eq!(a.qp.state().unwrap(), QpState::RTR);
        a.qp.modify(&SEND).unwrap();
        assert_eq!(a.qp.state().unwrap(), QpState::RTS);
        a.qp.modify(&QpTransition::Error).unwrap();
        assert_eq!(a.qp.state().unwrap(), QpState::ERR);
        a.qp.modify(&QpTransition::Reset).unwrap();
        assert_eq!(a.qp.state().unwrap(), QpState::RESET);
    }

    fn no_state_can_be_passed_over(f) {
        let (mut a, b) = (End::new(&f.a), End::new(&f.b));
        let remote = b.qp.address().unwrap();
        refused(a.qp.modify(&receive_from(remote)), Errno::EINVAL);
        refused(a.qp.modify(&SEND), Errno::EINVAL);
        a.qp.modify(&QpTransition::Init { access: FULL }).unwrap();
        refused(a.qp.modify(&SEND), Errno::EINVAL);
        a.qp.modify(&receive_from(remote)).unwrap();
        refused(a.qp.modify(&QpTransition::Init { access: FULL }), Errno::EINVAL);
        a.qp.modify(&SEND).unwrap();
        refused(a.qp.modify(&receive_from(remote)), Errno::EINVAL);
        a.qp.to_error().unwrap();
        refused(a.qp.modify(&SEND), Errno::EINVAL);
    }

    fn every_state_can_move_to_error(f) {
        let (mut a, b) = (End::new(&f.a), End::new(&f.b));
        let remote = b.qp.address().unwrap();
        let steps = [QpTransition::Init { access: FULL }, receive_from(remote), SEND];
        // ib_modify_qp_is_ok() of Linux, whatever the NIC.
        refused(a.qp.to_error(), Errno::EINVAL);
        for count in 1..=steps.len() {
            a.qp.reset().unwrap();
            for step in &steps[..count] {
                a.qp.modify(step).unwrap();
            }
            a.qp.to_error().unwrap();
            assert_eq!(a.qp.state().unwrap(), QpState::ERR, "after {count} steps");
        }
    }

    fn send_before_rts_is_rejected(f) {
        let (mut a, b) = (End::new(&f.a), End::new(&f.b));
        refused(a.qp.post_send(1).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post(), Errno::EINVAL);
    }

    fn receive_in_reset_is_rejected(f) [ReceiveStates] {
        let mut a = End::new(&f.a);
        refused(a.qp.post_recv(1).post(&[]), Errno::EINVAL);
        a.qp.modify(&QpTransition::Init { access: FULL }).unwrap();
        a.qp.post_recv(1).post(&[]).unwrap();
    }

    fn receives_can_be_posted_in_init(f) {
        let (mut a, mut b) = (End::new(&f.a), End::new(&f.b));
        let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
        b.qp.modify(&QpTransition::Init { access: FULL }).unwrap();
        b.qp.post_recv(1).post(&[b.mr.part(0, 8)]).unwrap();
        b.qp.modify(&receive_from(at_a)).unwrap();
        join_one(&mut a.qp, &at_a, &at_b, &Link::default()).unwrap();
        a.put(0, b"earliest");
        a.qp.post_send(2).send(&[a.mr.part(0, 8)]).post().unwrap();
        a.succeeds(2);
        b.succeeds(1);
        same("the receive", &b.bytes(0, 8), b"earliest");
    }

    fn an_end_that_only_receives_answers(f) {
        let (mut a, mut b) = (End::new(&f.a), End::new(&f.b));
        let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
        b.qp.modify(&QpTransition::Init { access: FULL }).unwrap();
        b.qp.modify(&receive_from(at_a)).unwrap();
        join_one(&mut a.qp, &at_a, &at_b, &Link::default()).unwrap();
        a.qp.post_send(1).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.qp.post_send(2).read(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.succeeds(1);
        a.succeeds(2);
    }

    fn late_peer_is_waited_for(f) {
        let link = Link { timeout: Duration::from_millis(500), retry_cnt: 7, ..Link::default() };
        let (mut a, mut b) = (End::new(&f.a), End::new(&f.b));
        let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
        join_one(&mut a.qp, &at_a, &at_b, &link).unwrap();
        a.qp.post_send(1).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        a.nothing_completes();
        join_one(&mut b.qp, &at_b, &at_a, &link).unwrap();
        a.succeeds(1);
    }

    fn failed_queue_pair_can_be_reconnected(f) {
        let (mut a, mut b) = pair(f);
        for qp in [&mut a.qp, &mut b.qp] {
            qp.to_error().unwrap();
            qp.reset().unwrap();
        }
        join(&mut a.qp, &mut b.qp, &Link::default());
        a.put(0, b"once more");
        a.qp.post_send(1).write(&[a.mr.part(0, 9)], b.mr.far(0, 9)).post().unwrap();
        a.succeeds(1);
        same("the target", &b.bytes(0, 9), b"once more");
    }

    fn resetting_drops_what_was_queued_without_completions(f) {
        let (mut a, _b) = pair(f);
        a.qp.post_send(1).send(&[a.mr.part(0, 8)]).post().unwrap();
        a.qp.post_recv(2).post(&[]).unwrap();
        std::thread::sleep(QUIET);
        a.qp.reset().unwrap();
        std::thread::sleep(QUIET);
        a.nothing_completes();
    }

    fn ud_transitions_are_rejected_for_rc(f) {
        let mut a = End::new(&f.a);
        refused(a.qp.modify(&QpTransition::UdInit { qkey: 1 }), Errno::EINVAL);
        refused(a.qp.modify(&QpTransition::UdReadyToReceive), Errno::EINVAL);
    }

    fn a_port_reaches_itself(f) [Loopback] {
        let (mut a, mut b) = (End::new(&f.a), End::new(&f.a));
        join(&mut a.qp, &mut b.qp, &Link::default());
        let text = pattern(100_000, 1);
        a.put(0, &text);
        b.qp.post_recv(1).post(&[b.mr.part(200_000, 100_000)]).unwrap();
        a.qp.post_send(2).write(&[a.mr.part(0, 100_000)], b.mr.far(0, 100_000)).post().unwrap();
        a.qp.post_send(3).send(&[a.mr.part(0, 100_000)]).post().unwrap();
        a.succeeds(2);
        a.succeeds(3);
        b.succeeds(1);
        same("what was written", &b.bytes(0, 100_000), &text);
        same("what was sent", &b.bytes(200_000, 100_000), &text);
    }

    fn queue_pair_can_connect_to_itself(f) [Loopback] {
        let mut a = End::new(&f.a);
        let own = a.qp.address().unwrap();
        join_one(&mut a.qp, &own, &own, &Link::default()).unwrap();
        let text = pattern(5000, 2);
        a.put(0, &text);
        a.qp.post_send(1).write(&[a.mr.part(0, 5000)], a.mr.far(100_000, 5000)).post().unwrap();
        a.qp.post_send(2).read(&[a.mr.part(200_000, 5000)], a.mr.far(100_000, 5000)).post().unwrap();
        a.succeeds(1);
        a.succeeds(2);
        same("what was read back", &a.bytes(200_000, 5000), &text);
    }

    fn many_connections_share_two_ports(f) {
        let (a, b) = (End::new(&f.a), End::new(&f.b));
        let mut pairs: Vec<_> = (0..12)
            .map(|_| {
                let mut left = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
                let mut right = b.pd.create_qp(&QpInit::new(&b.cq)).unwrap();
                join(&mut left, &mut right, &Link::default());
                (left, right)
            })
            .collect();
        let text = pattern(12 * 5000, 3);
        a.put(0, &text);
        for (index, (left, _)) in (0u64..).zip(&mut pairs) {
            left.post_send(index).write(&[a.mr.part(index * 5000, 5000)], b.mr.far(index * 5000, 5000)).post().unwrap();
        }
        let mut seen: Vec<u64> = (0..12)
            .map(|_| {
                let wc = a.completion();
                assert_eq!(wc.status, WcStatus::SUCCESS);
                wc.wr_id
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..12).collect::<Vec<_>>());
        same("all twelve", &b.bytes(0, text.len()), &text);
    }

    fn destroying_queue_pair_ends_its_work(f) {
        let (mut a, b) = pair(f);
        for wr_id in 0..20 {
            a.qp.post_send(wr_id).read(&[a.mr.part(0, 500_000)], b.mr.far(0, 500_000)).post().unwrap();
        }
        a.succeeds(0);
        let End { qp, cq, host, mr, .. } = a;
        qp.close().unwrap();
        let mut wc = [gaudi_verbs::WorkCompletion::EMPTY; 64];
        cq.poll(&mut wc).unwrap();
        host.fill(0, HOST, 0x22).unwrap();
        std::thread::sleep(QUIET);
        assert_eq!(cq.poll(&mut wc).unwrap(), 0, "nothing completes afterwards");
        same("memory", &bytes_of(&host, 0, HOST), &vec![0x22; HOST]);
        drop(mr);
    }
}

fn receive_from(remote: gaudi_verbs::QpAddress) -> QpTransition {
    QpTransition::ReadyToReceive {
        remote,
        path_mtu: Mtu::MTU_1024,
        max_dest_rd_atomic: 4,
        min_rnr_timer: Duration::from_millis(10),
    }
}

const SEND: QpTransition = QpTransition::ReadyToSend {
    sq_psn: gaudi_verbs::Psn(0),
    max_rd_atomic: 4,
    timeout: Duration::from_millis(500),
    retry_cnt: 2,
    rnr_retry: 2,
};
