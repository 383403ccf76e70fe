//! Shared receive queues.

use gaudi_seam::{Errno, ErrorKind};
use gaudi_verbs::{AsyncElement, AsyncEventType, Qp, QpInit, Srq, WcStatus};

use crate::bench::*;
use crate::fixture::Fixture;
use crate::suite::cases;

/// Two queue pairs of one end that share a queue of receives, and their peers.
struct Sharing {
    left: [Qp; 2],
    right: [Qp; 2],
    srq: Srq,
    a: End,
    b: End,
}

fn sharing(f: &Fixture, room: u32, link: &Link) -> Sharing {
    let (a, b) = (End::new(&f.a), End::new(&f.b));
    let srq = b.pd.create_srq(room, 2).unwrap();
    let mut left = [0, 1].map(|_| a.pd.create_qp(&QpInit::new(&a.cq)).unwrap());
    let mut right = [0, 1].map(|_| {
        let mut init = QpInit::new(&b.cq);
        init.srq = Some(&srq);
        b.pd.create_qp(&init).unwrap()
    });
    for (left, right) in left.iter_mut().zip(&mut right) {
        join(left, right, link);
    }
    Sharing {
        left,
        right,
        srq,
        a,
        b,
    }
}

cases! {
    "shared receives";

    fn queue_pairs_take_srq_receives_in_turn(f) [Srq] {
        let mut s = sharing(f, 16, &Link::default());
        for wr_id in 0..4 {
            s.srq.post_recv(wr_id).post(&[s.b.mr.part(wr_id * 100, 100)]).unwrap();
        }
        for round in 0..4u64 {
            let sender = (round % 2) as usize;
            s.a.put(0, &[round as u8 + 1; 50]);
            s.left[sender].post_send(round).send(&[s.a.mr.part(0, 50)]).post().unwrap();
            s.a.succeeds(round);
            let wc = s.b.succeeds(round);
            assert_eq!((wc.qp_num, wc.byte_len), (s.right[sender].qpn(), 50));
            same("the receive", &s.b.bytes(round as usize * 100, 50), &[round as u8 + 1; 50]);
        }
    }

    fn qp_receive_beside_srq_is_rejected(f) [Srq] {
        let mut s = sharing(f, 4, &Link::default());
        refused(s.right[0].post_recv(1).post(&[]), Errno::EINVAL);
    }

    fn empty_srq_makes_sender_wait(f) [Srq] {
        let mut s = sharing(f, 4, &Link::default());
        s.left[0].post_send(1).send(&[s.a.mr.part(0, 8)]).post().unwrap();
        std::thread::sleep(QUIET);
        s.a.nothing_completes();
        s.srq.post_recv(2).post(&[s.b.mr.part(0, 8)]).unwrap();
        s.a.succeeds(1);
        s.b.succeeds(2);
    }

    fn empty_srq_exhausts_rnr_retries(f) [Srq] {
        let mut s = sharing(f, 4, &Link { rnr_retry: 1, ..Link::default() });
        s.left[0].post_send(1).send(&[s.a.mr.part(0, 8)]).post().unwrap();
        s.a.completes(1, WcStatus::RNR_RETRY_EXC_ERR);
    }

    fn write_with_imm_consumes_srq_receive(f) [Srq] {
        let mut s = sharing(f, 4, &Link::default());
        s.srq.post_recv(3).post(&[]).unwrap();
        s.left[1].post_send(1).write_imm(&[s.a.mr.part(0, 8)], s.b.mr.far(0, 8), 9).post().unwrap();
        assert_eq!(s.b.succeeds(3).imm_data, Some(9));
    }

    fn srq_limit_event_comes_once(f) [Srq, Events] {
        let mut s = sharing(f, 16, &Link::default());
        for wr_id in 0..6 {
            s.srq.post_recv(wr_id).post(&[s.b.mr.part(0, 8)]).unwrap();
        }
        s.srq.arm_limit(4).unwrap();
        for wr_id in 0..2 {
            s.left[0].post_send(wr_id).send(&[s.a.mr.part(0, 8)]).post().unwrap();
            s.a.succeeds(wr_id);
        }
        no_event(&f.b, AsyncEventType::SRQ_LIMIT_REACHED);
        s.left[0].post_send(2).send(&[s.a.mr.part(0, 8)]).post().unwrap();
        s.a.succeeds(2);
        let event = event(&f.b, AsyncEventType::SRQ_LIMIT_REACHED);
        assert_eq!(event.element, AsyncElement::Srq(s.srq.handle()));
        s.left[0].post_send(3).send(&[s.a.mr.part(0, 8)]).post().unwrap();
        s.a.succeeds(3);
        no_event(&f.b, AsyncEventType::SRQ_LIMIT_REACHED);
    }

    fn srq_limit_of_zero_raises_no_event(f) [Srq, Events] {
        let mut s = sharing(f, 16, &Link::default());
        s.srq.post_recv(0).post(&[s.b.mr.part(0, 8)]).unwrap();
        s.srq.arm_limit(1).unwrap();
        s.srq.arm_limit(0).unwrap();
        s.left[0].post_send(1).send(&[s.a.mr.part(0, 8)]).post().unwrap();
        s.a.succeeds(1);
        no_event(&f.b, AsyncEventType::SRQ_LIMIT_REACHED);
    }

    fn srq_limit_above_device_is_rejected(f) [Srq] {
        let b = End::new(&f.b);
        let mut srq = b.pd.create_srq(8, 1).unwrap();
        refused(srq.arm_limit(f.b.attr().max_srq_wr.saturating_add(1)), Errno::EINVAL);
    }

    fn full_srq_rejects_the_post(f) [Srq] {
        let b = End::new(&f.b);
        let mut srq = b.pd.create_srq(8, 1).unwrap();
        let mut posted = 0;
        let error = loop {
            match srq.post_recv(posted).post(&[]) {
                Ok(()) => posted += 1,
                Err(error) => break error,
            }
            assert!(posted < 100_000, "a queue has an end");
        };
        assert!(posted >= 8, "at least what was asked for, {posted}");
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    }

    fn failed_queue_pair_leaves_srq_receives(f) [Srq] {
        let mut s = sharing(f, 8, &Link::default());
        s.srq.post_recv(1).post(&[s.b.mr.part(0, 8)]).unwrap();
        s.right[0].to_error().unwrap();
        std::thread::sleep(QUIET);
        s.b.nothing_completes();
        s.left[1].post_send(2).send(&[s.a.mr.part(0, 8)]).post().unwrap();
        s.a.succeeds(2);
        s.b.succeeds(1);
    }

    fn failed_queue_pair_raises_last_wqe_reached(f) [Srq, Events] {
        let mut s = sharing(f, 8, &Link::default());
        s.right[0].to_error().unwrap();
        let event = event(&f.b, AsyncEventType::QP_LAST_WQE_REACHED);
        assert_eq!(event.element, AsyncElement::Qp(s.right[0].handle()));
    }

    fn srq_in_use_is_not_destroyed(f) [Srq] {
        let s = sharing(f, 8, &Link::default());
        let (srq, error) = s.srq.close().unwrap_err().into_parts();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::InUse, Some(Errno::EBUSY)));
        let name = format!("Qp({}", s.right[1].qpn());
        assert!(error.to_string().contains(&name), "{error}");
        for qp in s.right {
            qp.close().unwrap();
        }
        srq.close().unwrap();
    }

    fn a_shared_queue_has_limits(f) [Srq] {
        let b = End::new(&f.b);
        refused(b.pd.create_srq(0, 1), Errno::EINVAL);
        refused(b.pd.create_srq(f.b.attr().max_srq_wr.saturating_add(1), 1), Errno::EINVAL);
    }
}
