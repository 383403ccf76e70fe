//! What is refused, with the completion that rdma-core gives, and what is left afterwards.

use std::time::Duration;

use gaudi_seam::{Errno, ErrorKind};
use gaudi_softnic::SoftNic;
use gaudi_verbs::provider::QpTransition;
use gaudi_verbs::{
    Access, AsyncEventType, Context, Lkey, MrAddr, Mtu, PortState, QpInit, RemoteAddr, Rkey, Sge, WcStatus,
    WorkCompletion,
};

use crate::node::*;

/// One write to `to` fails with `REM_ACCESS_ERR`, whatever follows is flushed, and the peer's queue
/// pair is in error, too.
fn is_refused(a: &mut Node, b: &mut Node, to: RemoteAddr, len: u32) {
    b.qp.post_recv(50).post(&[]).unwrap();
    let local = [a.host_mr.sge(0, len).unwrap()];
    a.qp.post_send(1)
        .signaled(false)
        .write(&local, to)
        .post()
        .unwrap();
    a.qp.post_send(2)
        .signaled(false)
        .write(&local, to)
        .post()
        .unwrap();
    a.completes(1, WcStatus::REM_ACCESS_ERR);
    a.completes(2, WcStatus::WR_FLUSH_ERR);
    b.completes(50, WcStatus::WR_FLUSH_ERR);
    a.qp.post_send(3).write(&local, to).post().unwrap();
    a.completes(3, WcStatus::WR_FLUSH_ERR);
    a.qp.post_recv(4).post(&[]).unwrap();
    a.completes(4, WcStatus::WR_FLUSH_ERR);
}

#[test]
fn write_past_region_end_is_refused() {
    let (mut a, mut b) = pair();
    let region = b.device_mr.remote();
    let to = RemoteAddr {
        addr: MrAddr(region.addr.0 + region.len - 3),
        rkey: region.rkey,
    };
    is_refused(&mut a, &mut b, to, 4);
    assert_eq!(
        bytes_of(&b.device, DEVICE as usize - 3, 3),
        [0; 3],
        "not even a part is written"
    );
}

#[test]
fn write_before_region_start_is_refused() {
    let (mut a, mut b) = pair();
    let region = b.device_mr.remote();
    let to = RemoteAddr {
        addr: MrAddr(region.addr.0 - 1),
        rkey: region.rkey,
    };
    is_refused(&mut a, &mut b, to, 4);
}

#[test]
fn address_at_end_of_space_is_refused() {
    let (mut a, mut b) = pair();
    let to = RemoteAddr {
        addr: MrAddr(u64::MAX - 1),
        rkey: b.device_mr.rkey(),
    };
    is_refused(&mut a, &mut b, to, 4);
    assert!(a.nic.cable_error().is_none() && b.nic.cable_error().is_none());
}

#[test]
fn a_wrong_key_is_refused() {
    let (mut a, mut b) = pair();
    let to = RemoteAddr {
        addr: MrAddr(DEVICE_VA),
        rkey: Rkey(b.device_mr.rkey().0 ^ b.host_mr.rkey().0 ^ 0x5555),
    };
    is_refused(&mut a, &mut b, to, 4);
}

#[test]
fn a_region_of_another_domain_is_refused() {
    let (mut a, mut b) = pair();
    let other = b.context.alloc_pd().unwrap();
    let mr = other.reg_dmabuf_mr(&b.window, MrAddr(0), FULL).unwrap();
    is_refused(&mut a, &mut b, mr.remote().at(0, 4).unwrap(), 4);
}

/// Unlike the one above, this test does not wait if the write succeeds.
#[test]
fn write_to_other_domain_completes_with_error() {
    let (mut a, b) = pair();
    let other = b.context.alloc_pd().unwrap();
    let mr = other.reg_dmabuf_mr(&b.window, MrAddr(0), FULL).unwrap();
    let local = [a.host_mr.sge(0, 4).unwrap()];
    let to = mr.remote().at(0, 4).unwrap();
    a.qp.post_send(1).write(&local, to).post().unwrap();
    a.completes(1, WcStatus::REM_ACCESS_ERR);
}

#[test]
fn a_region_without_the_right_is_refused() {
    for access in [Access::empty(), Access::LOCAL_WRITE, Access::REMOTE_READ] {
        let (mut a, mut b) = pair();
        let mr = b.pd.reg_dmabuf_mr(&b.window, MrAddr(0), access).unwrap();
        is_refused(&mut a, &mut b, mr.remote().at(0, 4).unwrap(), 4);
    }
}

#[test]
fn a_read_without_the_right_is_refused() {
    let (mut a, b) = pair();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = b.pd.reg_dmabuf_mr(&b.window, MrAddr(0), access).unwrap();
    let local = [a.host_mr.sge(0, 4).unwrap()];
    let from = mr.remote().at(0, 4).unwrap();
    a.qp.post_send(1).read(&local, from).post().unwrap();
    a.completes(1, WcStatus::REM_ACCESS_ERR);
}

#[test]
fn queue_pair_without_right_refuses() {
    let (a, b) = SoftNic::pair(Default::default()).unwrap();
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
    a.qp.connect(&at_b, FULL).unwrap();
    b.qp.connect(&at_a, Access::REMOTE_READ).unwrap();
    let to = b.device_mr.remote().at(0, 4).unwrap();
    a.qp.post_send(1)
        .write(&[a.host_mr.sge(0, 4).unwrap()], to)
        .post()
        .unwrap();
    // An operation that the queue pair does not have, as rxe answers too.
    a.completes(1, WcStatus::REM_INV_REQ_ERR);
}

#[test]
fn wrong_lkey_fails_after_earlier_work() {
    let (mut a, b) = pair();
    let good = [a.host_mr.sge(0, 1 << 20).unwrap()];
    let bad = [Sge {
        lkey: Lkey(a.host_mr.lkey().0 ^ 0x5555),
        ..good[0]
    }];
    let to = b.device_mr.remote().at(0, 1 << 20).unwrap();
    for wr_id in 0..3 {
        a.qp.post_send(wr_id).write(&good, to).post().unwrap();
    }
    a.qp.post_send(3).write(&bad, to).post().unwrap();
    a.qp.post_send(4).write(&good, to).post().unwrap();
    for wr_id in 0..3 {
        a.completes(wr_id, WcStatus::SUCCESS);
    }
    a.completes(3, WcStatus::LOC_PROT_ERR);
    a.completes(4, WcStatus::WR_FLUSH_ERR);
}

#[test]
fn read_into_read_only_region_fails_locally() {
    let (mut a, b) = pair();
    let mr = a.pd.reg_mapping(a.host.clone(), Access::empty()).unwrap();
    let from = b.device_mr.remote().at(0, 4).unwrap();
    a.qp.post_send(1)
        .read(&[mr.sge(0, 4).unwrap()], from)
        .post()
        .unwrap();
    a.completes(1, WcStatus::LOC_PROT_ERR);
}

#[test]
fn overlong_message_is_local_length_error() {
    let (mut a, b) = pair();
    let huge = Sge {
        addr: a.host_mr.addr(),
        length: u32::MAX,
        lkey: a.host_mr.lkey(),
    };
    let to = b.device_mr.remote().at(0, 4).unwrap();
    a.qp.post_send(1).write(&[huge], to).post().unwrap();
    a.completes(1, WcStatus::LOC_LEN_ERR);
}

#[test]
fn send_beyond_receive_fails_both_ends() {
    let (mut a, mut b) = pair();
    b.qp.post_recv(1).post(&[b.host_mr.sge(0, 4).unwrap()]).unwrap();
    a.qp.post_send(2)
        .send(&[a.host_mr.sge(0, 5).unwrap()])
        .post()
        .unwrap();
    b.completes(1, WcStatus::LOC_LEN_ERR);
    a.completes(2, WcStatus::REM_INV_REQ_ERR);
}

#[test]
fn receive_with_wrong_lkey_fails_both_ends() {
    let (mut a, mut b) = pair();
    let bad = Sge {
        lkey: Lkey(1),
        ..b.host_mr.sge(0, 64).unwrap()
    };
    b.qp.post_recv(1).post(&[bad]).unwrap();
    a.qp.post_send(2)
        .send(&[a.host_mr.sge(0, 5).unwrap()])
        .post()
        .unwrap();
    b.completes(1, WcStatus::LOC_PROT_ERR);
    a.completes(2, WcStatus::REM_OP_ERR);
}

/// Connected by hand, with a short timeout at the peer.
fn impatient(rnr_retry: u8) -> (Node, Node) {
    let (a, b) = SoftNic::pair(Default::default()).unwrap();
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
    for (qp, own, remote) in [(&mut a.qp, at_a, at_b), (&mut b.qp, at_b, at_a)] {
        qp.modify(&QpTransition::Init { access: FULL }).unwrap();
        qp.modify(&QpTransition::ReadyToReceive {
            remote,
            path_mtu: Mtu::MTU_4096,
            max_dest_rd_atomic: 16,
            min_rnr_timer: Duration::from_millis(2),
        })
        .unwrap();
        qp.modify(&QpTransition::ReadyToSend {
            sq_psn: own.psn,
            max_rd_atomic: 16,
            timeout: Duration::from_millis(500),
            retry_cnt: 1,
            rnr_retry,
        })
        .unwrap();
    }
    (a, b)
}

#[test]
fn send_without_receive_exhausts_retries() {
    let (mut a, b) = impatient(3);
    let local = [a.host_mr.sge(0, 700_000).unwrap()];
    let to = b.device_mr.remote().at(0, 700_000).unwrap();
    a.qp.post_send(1).write(&local, to).post().unwrap();
    a.qp.post_send(2).send(&local).post().unwrap();
    a.qp.post_send(3).write(&local, to).post().unwrap();
    a.completes(1, WcStatus::SUCCESS);
    a.completes(2, WcStatus::RNR_RETRY_EXC_ERR);
    a.completes(3, WcStatus::WR_FLUSH_ERR);
}

#[test]
fn waiting_send_keeps_later_work_ordered() {
    let (mut a, mut b) = impatient(7);
    let text = pattern(700_000, 9);
    a.host.write(0, &text).unwrap();
    b.device.write(0, &text).unwrap();
    let local = [a.host_mr.sge(0, 700_000).unwrap()];
    let other = [a.host_mr.sge(2 << 20, 700_000).unwrap()];
    let place = b.device_mr.remote().at(0, 700_000).unwrap();
    for round in 0..5 {
        a.qp.post_send(round * 3).send(&local).post().unwrap();
        a.qp.post_send(round * 3 + 1).read(&other, place).post().unwrap();
        a.qp.post_send(round * 3 + 2).write(&local, place).post().unwrap();
    }
    for round in 0..5 {
        std::thread::sleep(Duration::from_millis(7));
        let into = b.host_mr.sge(0, 1 << 20).unwrap();
        b.qp.post_recv(round).post(&[into]).unwrap();
    }
    for wr_id in 0..15 {
        a.completes(wr_id, WcStatus::SUCCESS);
    }
    for round in 0..5 {
        let wc = b.completes(round, WcStatus::SUCCESS);
        assert_eq!(wc.byte_len, 700_000);
    }
    assert!(bytes_of(&b.host, 0, 700_000) == text, "the message arrived whole");
    assert!(
        bytes_of(&a.host, 2 << 20, 700_000) == text,
        "the read arrived whole"
    );
}

#[test]
fn late_peer_is_waited_for() {
    let (a, b) = SoftNic::pair(Default::default()).unwrap();
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
    a.qp.connect(&at_b, FULL).unwrap();
    let local = [a.host_mr.sge(0, 900_000).unwrap()];
    let to = b.device_mr.remote().at(0, 900_000).unwrap();
    for wr_id in 0..5 {
        a.qp.post_send(wr_id).write(&local, to).post().unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    a.nothing_completes();
    b.qp.connect(&at_a, FULL).unwrap();
    for wr_id in 0..5 {
        a.completes(wr_id, WcStatus::SUCCESS);
    }
}

#[test]
fn destroyed_peer_leaves_the_cable_up() {
    let (mut a, b) = pair();
    let to = b.host_mr.remote().at(0, 4).unwrap();
    let Node { qp, host_mr, nic, .. } = b;
    qp.close().unwrap();
    a.qp.post_send(1)
        .write(&[a.host_mr.sge(0, 4).unwrap()], to)
        .post()
        .unwrap();
    a.completes(1, WcStatus::RETRY_EXC_ERR);
    assert!(a.nic.cable_error().is_none());
    drop((host_mr, nic));
}

#[test]
fn a_silent_peer_is_given_up() {
    // The other end of the cable stays open and unread.
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut a = Node::new(SoftNic::open("softnic0", ours, Default::default()).unwrap());
    let mut remote = a.qp.address().unwrap();
    remote.gid.0[15] ^= 1;
    a.qp.modify(&QpTransition::Init { access: FULL }).unwrap();
    a.qp.modify(&QpTransition::ReadyToReceive {
        remote,
        path_mtu: Mtu::MTU_4096,
        max_dest_rd_atomic: 1,
        min_rnr_timer: Duration::ZERO,
    })
    .unwrap();
    a.qp.modify(&QpTransition::ReadyToSend {
        sq_psn: remote.psn,
        max_rd_atomic: 1,
        timeout: Duration::from_millis(50),
        retry_cnt: 1,
        rnr_retry: 0,
    })
    .unwrap();
    let to = RemoteAddr {
        addr: MrAddr(0),
        rkey: Rkey(1),
    };
    a.qp.post_send(1)
        .write(&[a.host_mr.sge(0, 4).unwrap()], to)
        .post()
        .unwrap();
    a.qp.post_recv(2).post(&[]).unwrap();
    a.completes(1, WcStatus::RETRY_EXC_ERR);
    a.completes(2, WcStatus::WR_FLUSH_ERR);
}

#[test]
fn closed_cable_ends_all_work() {
    let (mut a, b) = pair();
    a.qp.post_recv(9).post(&[]).unwrap();
    // A send without a receive is not answered, so these are outstanding when the cable closes.
    let local = [a.host_mr.sge(0, 1 << 20).unwrap()];
    a.qp.post_send(1).send(&local).post().unwrap();
    a.qp.post_send(2).send(&local).post().unwrap();
    drop(b);
    // Destroying the peer's queue pair may be noticed before its cable is: both are RETRY_EXC_ERR.
    a.completes(1, WcStatus::RETRY_EXC_ERR);
    a.completes(2, WcStatus::WR_FLUSH_ERR);
    a.completes(9, WcStatus::WR_FLUSH_ERR);
    while a.nic.cable_error().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(a.nic.cable_error().unwrap().kind(), ErrorKind::Disconnected);
    assert_eq!(a.context.query_port().unwrap().state, PortState::DOWN);
    let mut late = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    let mut remote = late.address().unwrap();
    remote.gid.0[15] ^= 1;
    assert_eq!(
        late.connect(&remote, FULL).unwrap_err().kind(),
        ErrorKind::Disconnected
    );
}

#[test]
fn work_before_peer_exit_is_acknowledged() {
    for round in 0..20 {
        let (mut a, mut b) = pair();
        b.qp.post_recv(1).post(&[]).unwrap();
        let local = [a.host_mr.sge(0, 1000).unwrap()];
        let to = b.device_mr.remote().at(0, 1000).unwrap();
        a.qp.post_send(2).write_imm(&local, to, round).post().unwrap();
        b.completes(1, WcStatus::SUCCESS);
        drop(b);
        a.completes(2, WcStatus::SUCCESS);
    }
}

#[test]
fn cq_overflow_is_an_error() {
    let (a, b) = SoftNic::pair(Default::default()).unwrap();
    let (mut a, mut b) = (Node::with_depth(a, 2), Node::new(b));
    connect(&mut a.qp, &mut b.qp);
    let local = [a.host_mr.sge(0, 4).unwrap()];
    let to = b.host_mr.remote().at(0, 4).unwrap();
    for wr_id in 0..5 {
        a.qp.post_send(wr_id).write(&local, to).post().unwrap();
    }
    // Polling would make room.
    has_event(&a, AsyncEventType::CQ_ERR);
    let mut wc = [WorkCompletion::EMPTY; 8];
    assert_eq!(a.cq.poll(&mut wc).unwrap(), 2, "what there was room for is kept");
    let error = a.cq.poll(&mut wc).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Io, Some(Errno::EOVERFLOW))
    );
}

#[test]
fn deregistration_under_traffic_protects_memory() {
    let (mut a, b) = pair();
    let len = 1 << 20;
    let local = [a.host_mr.sge(0, len).unwrap()];
    let to = b.device_mr.remote().at(0, len.into()).unwrap();
    a.host.fill(0, HOST, 0xaa).unwrap();
    for wr_id in 0..64 {
        a.qp.post_send(wr_id).write(&local, to).post().unwrap();
    }
    a.completes(0, WcStatus::SUCCESS);
    let Node {
        device_mr,
        device,
        window,
        qp,
        ..
    } = b;
    device_mr.close().unwrap();
    assert_eq!(
        window.dmabuf().attachments(),
        Vec::<String>::new(),
        "the NIC released the dma-buf"
    );
    device.fill(0, DEVICE as usize, 0x11).unwrap();
    let mut refused = false;
    for wr_id in 1..64 {
        let wc = a.completion();
        assert_eq!(wc.wr_id, wr_id);
        match wc.status {
            WcStatus::SUCCESS => assert!(!refused, "nothing succeeds after a refusal"),
            WcStatus::REM_ACCESS_ERR => refused = true,
            status => assert_eq!((status, refused), (WcStatus::WR_FLUSH_ERR, true)),
        }
    }
    assert!(
        bytes_of(&device, 0, DEVICE as usize)
            .iter()
            .all(|byte| *byte == 0x11),
        "nothing is written after deregistration has returned"
    );
    drop(qp);
}

#[test]
fn destroyed_queue_pair_stays_silent() {
    let (mut a, b) = pair();
    let len = 3 << 20;
    let local = [a.host_mr.sge(0, len).unwrap()];
    let place = b.device_mr.remote().at(0, len.into()).unwrap();
    for wr_id in 0..30 {
        a.qp.post_send(2 * wr_id).read(&local, place).post().unwrap();
        a.qp.post_send(2 * wr_id + 1).write(&local, place).post().unwrap();
    }
    a.completes(0, WcStatus::SUCCESS);
    let Node { qp, cq, host, .. } = a;
    let start = std::time::Instant::now();
    qp.close().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "destroying does not wait for all that was posted"
    );
    let mut wc = [WorkCompletion::EMPTY; 64];
    cq.poll(&mut wc).unwrap();
    host.fill(0, HOST, 0x22).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(cq.poll(&mut wc).unwrap(), 0, "nothing completes afterwards");
    assert!(
        bytes_of(&host, 0, HOST).iter().all(|byte| *byte == 0x22),
        "nothing is written afterwards"
    );
}

#[test]
fn deregistered_source_is_local_error() {
    let (mut a, b) = pair();
    let local = [a.host_mr.sge(0, 1 << 20).unwrap()];
    let to = b.device_mr.remote().at(0, 1 << 20).unwrap();
    for wr_id in 0..60 {
        a.qp.post_send(wr_id).write(&local, to).post().unwrap();
    }
    let Node { host_mr, cq, qp, .. } = a;
    host_mr.close().unwrap();
    let mut statuses = Vec::new();
    let mut wc = [WorkCompletion::EMPTY; 8];
    while statuses.len() < 60 {
        let count = cq.wait(&mut wc, MAX_WAIT).unwrap();
        statuses.extend(wc[..count].iter().map(|wc| wc.status));
    }
    let good = statuses
        .iter()
        .take_while(|status| **status == WcStatus::SUCCESS)
        .count();
    // On a busy machine all writes may be over before the region is.
    if let Some((first, rest)) = statuses[good..].split_first() {
        assert_eq!(*first, WcStatus::LOC_PROT_ERR, "{good} writes succeeded");
        assert!(rest.iter().all(|status| *status == WcStatus::WR_FLUSH_ERR));
    }
    drop((qp, b));
}

#[test]
fn registration_is_checked_before_the_nic() {
    let (a, _b) = pair();
    let refused = |window: &gaudi_dmabuf::Window, iova, access| {
        let error = a.pd.reg_dmabuf_mr(window, MrAddr(iova), access).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
        error.to_string()
    };
    let inner = a.window.window(0x123, 0x5000).unwrap();
    assert!(refused(&inner, 0x124, FULL).contains("within a page"));
    assert!(refused(&a.window, 0, Access::REMOTE_WRITE).contains("LOCAL_WRITE"));
    assert!(refused(&a.window, 0, Access::from_bits_retain(1 << 6)).contains("unknown"));
    assert!(refused(&a.window, u64::MAX - 0xfff, FULL).contains("address space"));
    let mr = a.pd.reg_dmabuf_mr(&inner, MrAddr(0x7000_0123), FULL).unwrap();
    assert_eq!(mr.len(), 0x5000);
    mr.close().unwrap();
    assert_eq!(
        a.window.dmabuf().attachments().len(),
        1,
        "only the node's own region is left"
    );
}

#[test]
fn transitions_out_of_order_are_einval() {
    let (mut a, b) = pair();
    let mut fresh = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    let to = b.host_mr.remote().at(0, 4).unwrap();
    let error = fresh.post_send(1).write(&[], to).post().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
    let error = fresh.post_recv(1).post(&[]).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
    let error = a.qp.modify(&QpTransition::Init { access: FULL }).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
}

#[test]
fn limits_are_refused_with_the_limit() {
    let (a, _b) = pair();
    let error = a.context.create_cq(0).unwrap_err();
    assert!(error.to_string().contains("1 to 65536"), "{error}");
    let mut init = QpInit::new(&a.cq);
    init.max_send_wr = 5000;
    let error = a.pd.create_qp(&init).unwrap_err();
    assert!(error.to_string().contains("1 to 4096"), "{error}");
    let (other, _peer) = SoftNic::pair(Default::default()).unwrap();
    let other = Context::open(other).unwrap();
    let cq = other.create_cq(4).unwrap();
    assert!(
        a.pd.create_qp(&QpInit::new(&cq)).is_err(),
        "a queue of another NIC is refused"
    );
}

#[test]
fn events_come_once_per_request() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let (mut a, mut b) = pair();
    let readable = |node: &Node, millis: u16| {
        let mut fds = [PollFd::new(node.cq.event_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(millis)).unwrap() == 1
    };
    let local = [a.host_mr.sge(0, 4).unwrap()];
    for wr_id in 0..3 {
        b.qp.post_recv(wr_id)
            .post(&[b.host_mr.sge(0, 4).unwrap()])
            .unwrap();
    }
    let mut wc = [WorkCompletion::EMPTY; 4];
    a.qp.post_send(1).send(&local).post().unwrap();
    a.completes(1, WcStatus::SUCCESS);
    assert!(!readable(&b, 0), "no event was requested");
    assert_eq!(b.cq.poll(&mut wc).unwrap(), 1);
    b.cq.req_notify(true).unwrap();
    a.qp.post_send(2).send(&local).post().unwrap();
    a.completes(2, WcStatus::SUCCESS);
    assert!(!readable(&b, 0), "only a solicited completion was asked for");
    a.qp.post_send(3).solicited(true).send(&local).post().unwrap();
    assert!(readable(&b, 60_000), "a solicited completion event");
    b.cq.ack_event().unwrap();
    assert!(!readable(&b, 0), "the event is taken");
    assert_eq!(b.cq.poll(&mut wc).unwrap(), 2);
    let error = b.cq.wait(&mut wc, Duration::from_millis(5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}
