//! A NIC's attributes and limits, and requests above them.

use gaudi_seam::Errno;
use gaudi_verbs::{Guid, PortState, QpInit};

use crate::bench::*;
use crate::suite::cases;

/// Asks for so much of one thing.
type Change = fn(&mut QpInit<'_>, u32);

cases! {
    "limits";

    fn device_reports_its_limits(f) {
        for context in [&f.a, &f.b] {
            let attr = context.attr();
            assert!(!attr.name.is_empty() && !attr.provider.is_empty());
            for (what, limit) in [
                ("max_qp", attr.max_qp),
                ("max_qp_wr", attr.max_qp_wr),
                ("max_sge", attr.max_sge),
                ("max_cq", attr.max_cq),
                ("max_cqe", attr.max_cqe),
                ("max_mr", attr.max_mr),
                ("max_pd", attr.max_pd),
            ] {
                assert!(limit > 0, "{what} of {}", attr.name);
            }
            assert!(attr.max_mr_size >= HOST as u64);
            assert_ne!(attr.guid, Guid(0));
        }
    }

    fn port_is_active_with_mtu(f) {
        for context in [&f.a, &f.b] {
            let port = context.query_port().unwrap();
            assert_eq!(port.state, PortState::ACTIVE);
            assert!(port.active_mtu.bytes().is_some(), "{}", port.active_mtu);
            assert!(port.max_msg_sz >= 1 << 20);
            assert_eq!(port.port_num, 1);
        }
    }

    fn connection_gid_is_in_the_table(f) {
        for context in [&f.a, &f.b] {
            let port = context.query_port().unwrap();
            let gids = context.gids().unwrap();
            let row = gids.iter().find(|row| row.index == port.gid_index).expect("its row is there");
            assert_eq!(row.gid, port.gid);
        }
    }

    fn cq_depth_has_bounds(f) {
        refused(f.a.create_cq(0), Errno::EINVAL);
        refused(f.a.create_cq(f.a.attr().max_cqe.saturating_add(1)), Errno::EINVAL);
        f.a.create_cq(1).unwrap().close().unwrap();
    }

    fn a_queue_pair_has_limits(f) {
        let a = End::new(&f.a);
        let attr = f.a.attr();
        let changes: [(&str, Change, u32); 4] = [
            ("max_send_wr", |init, value| init.max_send_wr = value, attr.max_qp_wr),
            ("max_recv_wr", |init, value| init.max_recv_wr = value, attr.max_qp_wr),
            ("max_send_sge", |init, value| init.max_send_sge = value, attr.max_sge),
            ("max_recv_sge", |init, value| init.max_recv_sge = value, attr.max_sge),
        ];
        for (what, change, limit) in changes {
            let mut init = QpInit::new(&a.cq);
            change(&mut init, limit.saturating_add(1));
            let error = refused(a.pd.create_qp(&init), Errno::EINVAL);
            assert!(error.to_string().contains(&limit.to_string()), "{what}: {error}");
        }
    }

    fn queue_pair_has_requested_capacity(f) {
        let a = End::new(&f.a);
        let mut init = QpInit::new(&a.cq);
        (init.max_send_wr, init.max_recv_wr, init.max_send_sge, init.max_recv_sge) = (33, 17, 3, 5);
        let cap = a.pd.create_qp(&init).unwrap().cap();
        assert!(cap.max_send_wr >= 33 && cap.max_recv_wr >= 17, "{cap:?}");
        assert!(cap.max_send_sge >= 3 && cap.max_recv_sge >= 5, "{cap:?}");
    }

    fn excess_sges_fail_the_post(f) {
        let (mut a, b) = pair(f);
        let many = vec![a.mr.part(0, 1); f.a.attr().max_sge as usize + 1];
        refused(a.qp.post_send(1).write(&many, b.mr.far(0, 1)).post(), Errno::EINVAL);
        refused(a.qp.post_recv(1).post(&many), Errno::EINVAL);
        a.nothing_completes();
    }

    fn cq_of_another_context_is_rejected(f) {
        let (a, b) = (End::new(&f.a), End::new(&f.b));
        refused(a.pd.create_qp(&QpInit::new(&b.cq)), Errno::EINVAL);
    }
}
