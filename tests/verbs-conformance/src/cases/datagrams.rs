//! Datagrams.

use std::sync::Arc;

use gaudi_seam::Errno;
use gaudi_sys::RawMapping;
use gaudi_verbs::provider::{QpState, QpTransition};
use gaudi_verbs::{
    AddressHandle, Context, Cq, GRH_BYTES, Lkey, Mr, Pd, QpInit, Qpn, Sge, UdQp, WcOpcode, WcStatus,
    WorkCompletion,
};

use crate::bench::*;
use crate::dialect::Answer;
use crate::fixture::Fixture;
use crate::suite::cases;

const QKEY: u32 = 0x1234_5678;

/// An end with a datagram queue pair and the way to the other end.
struct Post {
    qp: UdQp,
    to: AddressHandle,
    mr: Mr,
    cq: Cq,
    pd: Pd,
    host: Arc<RawMapping>,
}

impl Post {
    fn new(context: &Context, other: &Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(128).unwrap();
        let host = Arc::new(RawMapping::anonymous(HOST, false).unwrap());
        let mr = pd.reg_mapping(host.clone(), FULL).unwrap();
        let mut init = QpInit::new(&cq);
        init.max_inline_data = 64;
        let mut qp = pd.create_ud_qp(&init).unwrap();
        qp.activate(QKEY).unwrap();
        let to = way(&pd, other).unwrap();
        Self {
            qp,
            to,
            mr,
            cq,
            pd,
            host,
        }
    }

    fn send(&mut self, wr_id: u64, qpn: Qpn, len: u32) {
        let local = [self.mr.part(0, len)];
        self.qp
            .post_send(wr_id, &self.to, qpn, QKEY)
            .send(&local)
            .post()
            .unwrap();
        completes(&self.cq, wr_id, WcStatus::SUCCESS);
    }

    fn receive(&mut self, wr_id: u64, offset: u64, len: u32) {
        let into = [self.mr.part(offset, len)];
        self.qp.post_recv(wr_id).post(&into).unwrap();
    }
}

fn posts(f: &Fixture) -> (Post, Post) {
    (Post::new(&f.a, &f.b), Post::new(&f.b, &f.a))
}

fn nothing_arrives(post: &Post) {
    std::thread::sleep(QUIET);
    let mut wc = [WorkCompletion::EMPTY];
    assert_eq!(post.cq.poll(&mut wc).unwrap(), 0, "nothing arrives, but {wc:?}");
}

cases! {
    "datagrams";

    fn a_datagram_arrives_behind_its_route_header(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        let text = pattern(1000, 1);
        a.host.write(0, &text).unwrap();
        b.receive(1, 100, GRH_BYTES + 1000);
        a.send(2, b.qp.qpn(), 1000);
        let wc = completes(&b.cq, 1, WcStatus::SUCCESS);
        assert_eq!((wc.byte_len, wc.opcode, wc.grh), (GRH_BYTES + 1000, WcOpcode::RECV, true));
        assert_eq!((wc.src_qp, wc.qp_num), (Some(a.qp.qpn()), b.qp.qpn()));
        same("the payload", &bytes_of(&b.host, 140, 1000), &text);
    }

    fn reply_uses_the_received_address(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        b.receive(1, 0, 200);
        a.receive(2, 5000, 200);
        a.send(3, b.qp.qpn(), 8);
        let came = completes(&b.cq, 1, WcStatus::SUCCESS);
        b.host.write(0, b"answered").unwrap();
        b.send(4, came.src_qp.unwrap(), 8);
        completes(&a.cq, 2, WcStatus::SUCCESS);
        same("the answer", &bytes_of(&a.host, 5040, 8), b"answered");
    }

    fn empty_datagram_has_only_its_grh(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        b.receive(1, 0, 64);
        a.send(2, b.qp.qpn(), 0);
        assert_eq!(completes(&b.cq, 1, WcStatus::SUCCESS).byte_len, GRH_BYTES);
    }

    fn a_datagram_can_bring_a_number(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        b.receive(1, 0, 64);
        let (qpn, local) = (b.qp.qpn(), [a.mr.part(0, 8)]);
        a.qp.post_send(2, &a.to, qpn, QKEY).send_imm(&local, 0xabcd).post().unwrap();
        completes(&a.cq, 2, WcStatus::SUCCESS);
        assert_eq!(completes(&b.cq, 1, WcStatus::SUCCESS).imm_data, Some(0xabcd));
    }

    fn a_datagram_can_go_inline(f) [Datagrams, Inline] {
        let (mut a, mut b) = posts(f);
        b.receive(1, 0, 100);
        let qpn = b.qp.qpn();
        a.qp.post_send(2, &a.to, qpn, QKEY).send_inline(b"by value").post().unwrap();
        completes(&a.cq, 2, WcStatus::SUCCESS);
        completes(&b.cq, 1, WcStatus::SUCCESS);
        same("the payload", &bytes_of(&b.host, 40, 8), b"by value");
    }

    fn a_datagram_of_a_whole_packet_arrives(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        let mtu = f.a.query_port().unwrap().active_mtu.bytes().unwrap();
        let text = pattern(mtu as usize, 2);
        a.host.write(0, &text).unwrap();
        b.receive(1, 0, GRH_BYTES + mtu);
        a.send(2, b.qp.qpn(), mtu);
        completes(&b.cq, 1, WcStatus::SUCCESS);
        same("the payload", &bytes_of(&b.host, 40, mtu as usize), &text);
    }

    fn oversized_datagram_completes_but_is_dropped(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        let mtu = f.a.query_port().unwrap().active_mtu.bytes().unwrap();
        b.receive(1, 0, GRH_BYTES + mtu + 100);
        a.send(2, b.qp.qpn(), mtu + 1);
        nothing_arrives(&b);
        a.send(3, b.qp.qpn(), 9);
        assert_eq!(completes(&b.cq, 1, WcStatus::SUCCESS).byte_len, GRH_BYTES + 9);
    }

    fn datagram_without_receive_is_dropped(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        let mut witness = Post::new(&f.b, &f.a);
        witness.receive(4, 0, 64);
        a.send(1, b.qp.qpn(), 8);
        // The next datagram to the same port has arrived, so the first has too.
        a.send(5, witness.qp.qpn(), 8);
        completes(&witness.cq, 4, WcStatus::SUCCESS);
        std::thread::sleep(QUIET);
        b.receive(2, 0, 64);
        nothing_arrives(&b);
        a.host.write(0, b"secondly").unwrap();
        a.send(3, b.qp.qpn(), 8);
        completes(&b.cq, 2, WcStatus::SUCCESS);
        same("the payload", &bytes_of(&b.host, 40, 8), b"secondly");
    }

    fn a_datagram_with_another_qkey_is_dropped(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        b.receive(1, 0, 64);
        let (qpn, local) = (b.qp.qpn(), [a.mr.part(0, 8)]);
        a.qp.post_send(2, &a.to, qpn, QKEY ^ 1).send(&local).post().unwrap();
        completes(&a.cq, 2, WcStatus::SUCCESS);
        nothing_arrives(&b);
        a.send(3, qpn, 8);
        completes(&b.cq, 1, WcStatus::SUCCESS);
    }

    fn datagram_longer_than_receive_is_dropped(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        b.receive(1, 0, GRH_BYTES + 8);
        a.send(2, b.qp.qpn(), 9);
        nothing_arrives(&b);
        a.send(3, b.qp.qpn(), 8);
        assert_eq!(completes(&b.cq, 1, WcStatus::SUCCESS).byte_len, GRH_BYTES + 8);
    }

    fn datagram_to_unknown_qp_is_dropped(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        b.receive(1, 0, 64);
        a.send(2, Qpn(0xab_cdef), 8);
        nothing_arrives(&b);
    }

    fn one_queue_pair_sends_to_many(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        let mut others: Vec<Post> = (0..3).map(|_| Post::new(&f.b, &f.a)).collect();
        for (index, other) in (0u64..).zip(&mut others) {
            other.receive(index, 0, 64);
        }
        b.receive(9, 0, 64);
        let local = [a.mr.part(0, 8)];
        for other in others.iter().chain([&b]) {
            a.qp.post_send(5, &a.to, other.qp.qpn(), QKEY).send(&local).post().unwrap();
            completes(&a.cq, 5, WcStatus::SUCCESS);
        }
        for (index, other) in (0u64..).zip(&others) {
            completes(&other.cq, index, WcStatus::SUCCESS);
        }
        completes(&b.cq, 9, WcStatus::SUCCESS);
    }

    fn receive_scatters_grh_and_payload(f) [Datagrams] {
        let (mut a, mut b) = posts(f);
        let text = pattern(300, 3);
        a.host.write(0, &text).unwrap();
        let into = [b.mr.part(0, 40), b.mr.part(1000, 100), b.mr.part(2000, 300)];
        b.qp.post_recv(1).post(&into).unwrap();
        a.send(2, b.qp.qpn(), 300);
        completes(&b.cq, 1, WcStatus::SUCCESS);
        same("the second element", &bytes_of(&b.host, 1000, 100), &text[..100]);
        same("the third", &bytes_of(&b.host, 2000, 200), &text[100..]);
    }

    fn a_datagram_reaches_a_dma_buf(f) [Datagrams, DmaBuf] {
        let (mut a, mut b) = posts(f);
        let memory = f.make_dmabuf(DEVICE);
        let mr = b.pd.reg_dmabuf_mr(&memory.window, gaudi_verbs::MrAddr(0), FULL).unwrap();
        a.host.write(0, b"deviceward").unwrap();
        b.qp.post_recv(1).post(&[mr.sge(60, 100).unwrap()]).unwrap();
        a.send(2, b.qp.qpn(), 10);
        completes(&b.cq, 1, WcStatus::SUCCESS);
        same("the dma-buf", &bytes_of(&memory.view, 100, 10), b"deviceward");
    }

    fn wrong_lkey_fails_datagram_locally(f) [Datagrams] {
        let (mut a, b) = posts(f);
        let sge = Sge { lkey: Lkey(a.mr.lkey().0 ^ 0x55), ..a.mr.part(0, 8) };
        let qpn = b.qp.qpn();
        a.qp.post_send(1, &a.to, qpn, QKEY).send(&[sge]).post().unwrap();
        completes(&a.cq, 1, f.dialect.status(Answer::LocalProtection));
        assert_eq!(a.qp.state().unwrap(), QpState::ERR);
    }

    fn ah_of_another_pd_fails_post(f) [Datagrams] {
        let (mut a, b) = posts(f);
        let other = f.a.alloc_pd().unwrap();
        let to = way(&other, &f.b).unwrap();
        refused(a.qp.post_send(1, &to, b.qp.qpn(), QKEY).send(&[]).post(), Errno::EINVAL);
    }

    fn ud_queue_pair_follows_its_states(f) [Datagrams] {
        let (a, _b) = posts(f);
        let mut qp = a.pd.create_ud_qp(&QpInit::new(&a.cq)).unwrap();
        refused(qp.modify(&QpTransition::UdReadyToReceive), Errno::EINVAL);
        qp.modify(&QpTransition::UdInit { qkey: 1 }).unwrap();
        assert_eq!(qp.state().unwrap(), QpState::INIT);
        qp.modify(&QpTransition::UdReadyToReceive).unwrap();
        assert_eq!(qp.state().unwrap(), QpState::RTR);
        refused(qp.modify(&QpTransition::Init { access: FULL }), Errno::EINVAL);
        qp.to_error().unwrap();
        assert_eq!(qp.state().unwrap(), QpState::ERR);
    }

    fn failed_ud_queue_pair_flushes_receives(f) [Datagrams] {
        let (_a, mut b) = posts(f);
        for wr_id in 0..3 {
            b.receive(wr_id, 0, 64);
        }
        b.qp.to_error().unwrap();
        for wr_id in 0..3 {
            completes(&b.cq, wr_id, WcStatus::WR_FLUSH_ERR);
        }
    }

    fn datagrams_take_from_a_shared_queue(f) [Datagrams, Srq] {
        let (mut a, b) = posts(f);
        let mut srq = b.pd.create_srq(8, 1).unwrap();
        let mut init = QpInit::new(&b.cq);
        init.srq = Some(&srq);
        let mut qp = b.pd.create_ud_qp(&init).unwrap();
        qp.activate(QKEY).unwrap();
        srq.post_recv(4).post(&[b.mr.part(0, 100)]).unwrap();
        a.send(1, qp.qpn(), 20);
        assert_eq!(completes(&b.cq, 4, WcStatus::SUCCESS).byte_len, GRH_BYTES + 20);
    }
}
