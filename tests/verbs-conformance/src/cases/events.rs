//! Asynchronous events.

use gaudi_verbs::{
    AsyncElement, AsyncEventType, MrState, QpInit, RemoteAddr, Rkey, WcStatus, WorkCompletion,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::bench::*;
use crate::fixture::Fixture;
use crate::suite::cases;

fn readable(f: &Fixture, millis: u16) -> bool {
    let fd = f.b.async_fd().expect("the NIC has events");
    poll(
        &mut [PollFd::new(fd, PollFlags::POLLIN)],
        PollTimeout::from(millis),
    )
    .unwrap()
        == 1
}

cases! {
    "events";

    fn without_a_cause_there_is_no_event(f) [Events] {
        let (mut a, b) = pair(f);
        a.qp.post_send(1).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.succeeds(1);
        assert!(!readable(f, 0));
        assert_eq!(f.b.get_async_event().unwrap(), None);
    }

    fn wrong_key_raises_qp_access_error(f) [Events, AccessEvents] {
        let (mut a, b) = pair(f);
        let bad = RemoteAddr { addr: b.mr.addr(), rkey: Rkey(b.mr.rkey().0 ^ 0x55) };
        a.qp.post_send(1).write(&[a.mr.part(0, 8)], bad).post().unwrap();
        a.completes(1, WcStatus::REM_ACCESS_ERR);
        assert!(readable(f, 60_000), "an event is pending");
        let event = event(&f.b, AsyncEventType::QP_ACCESS_ERR);
        assert_eq!(event.element, AsyncElement::Qp(b.qp.handle()));
        no_event(&f.b, AsyncEventType::QP_ACCESS_ERR);
        assert!(!readable(f, 0), "the event is taken");
    }

    fn refused_read_raises_event_too(f) [Events, AccessEvents] {
        let (mut a, b) = pair(f);
        let bad = RemoteAddr { addr: b.mr.addr(), rkey: Rkey(b.mr.rkey().0 ^ 0x55) };
        a.qp.post_send(1).read(&[a.mr.part(0, 8)], bad).post().unwrap();
        a.completes(1, WcStatus::REM_ACCESS_ERR);
        event(&f.b, AsyncEventType::QP_ACCESS_ERR);
    }

    fn failed_receive_raises_no_event(f) [Events] {
        let (mut a, mut b) = pair(f);
        b.qp.post_recv(1).post(&[]).unwrap();
        let bad = RemoteAddr { addr: b.mr.addr(), rkey: Rkey(b.mr.rkey().0 ^ 0x55) };
        a.qp.post_send(2).write_imm(&[a.mr.part(0, 8)], bad, 1).post().unwrap();
        b.completes(1, WcStatus::REM_ACCESS_ERR);
        no_event(&f.b, AsyncEventType::QP_ACCESS_ERR);
    }

    fn access_error_taints_dma_bufs_of_pd(f) [Events, AccessEvents, DmaBuf] {
        let (mut a, b) = pair(f);
        let (_m1, mr) = b.device(f, FULL);
        let other = End::new(&f.b);
        let (_m2, elsewhere) = other.device(f, FULL);
        let bad = RemoteAddr { addr: mr.addr(), rkey: Rkey(mr.rkey().0 ^ 0x55) };
        a.qp.post_send(1).write(&[a.mr.part(0, 8)], bad).post().unwrap();
        a.completes(1, WcStatus::REM_ACCESS_ERR);
        assert_eq!(mr.state().unwrap(), MrState::Live, "the event is not read yet");
        event(&f.b, AsyncEventType::QP_ACCESS_ERR);
        assert_eq!(mr.state().unwrap(), MrState::Suspect);
        assert_eq!(elsewhere.state().unwrap(), MrState::Live, "of another domain");
        assert_eq!(b.mr.state().unwrap(), MrState::Live, "host memory is not taken back");
    }

    fn cq_overflow_is_reported_and_keeps_entries(f) [Events, Overflow] {
        let b = End::new(&f.b);
        let mut a = End::with(&f.a, 2, |init| init.max_send_wr = 64);
        let mut peer = b.pd.create_qp(&QpInit::new(&b.cq)).unwrap();
        join(&mut a.qp, &mut peer, &Link::default());
        for wr_id in 0..40 {
            a.qp.post_send(wr_id).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        }
        let event = event(&f.a, AsyncEventType::CQ_ERR);
        assert_eq!(event.element, AsyncElement::Cq(a.cq.handle()));
        let mut wc = [WorkCompletion::EMPTY; 64];
        let kept = a.cq.poll(&mut wc).unwrap();
        assert!((2..40).contains(&kept), "{kept} are kept");
        let ids: Vec<u64> = wc[..kept].iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (0..kept as u64).collect::<Vec<_>>());
    }
}
