//! Orders of destruction, and the errors of wrong orders.

use gaudi_seam::{Errno, Error, ErrorKind};
use gaudi_verbs::{QpInit, WcStatus};

use crate::bench::*;
use crate::suite::cases;

/// `InUse`, `EBUSY`, and the holder's name.
fn names(error: &Error, holder: &str) {
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::InUse, Some(Errno::EBUSY)),
        "{error}"
    );
    assert!(error.to_string().contains(holder), "{holder} in: {error}");
}

cases! {
    "teardown";

    fn pd_names_regions_that_hold_it(f) {
        let pd = f.a.alloc_pd().unwrap();
        let host = std::sync::Arc::new(gaudi_sys::RawMapping::anonymous(4096, false).unwrap());
        let mr = pd.reg_mapping(host, FULL).unwrap();
        let (pd, error) = pd.close().unwrap_err().into_parts();
        names(&error, &format!("Mr(4096 bytes at {}", mr.addr()));
        mr.close().unwrap();
        pd.close().unwrap();
    }

    fn pd_names_queue_pairs_that_hold_it(f) {
        let pd = f.a.alloc_pd().unwrap();
        let cq = f.a.create_cq(4).unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        let (pd, error) = pd.close().unwrap_err().into_parts();
        names(&error, &format!("Qp({}", qp.qpn()));
        qp.close().unwrap();
        pd.close().unwrap();
        cq.close().unwrap();
    }

    fn pd_names_windows_that_hold_it(f) [Windows] {
        let pd = f.a.alloc_pd().unwrap();
        let mw = pd.alloc_mw(gaudi_verbs::provider::MwType::Type2).unwrap();
        let (pd, error) = pd.close().unwrap_err().into_parts();
        names(&error, &format!("Mw({})", mw.rkey()));
        mw.close().unwrap();
        pd.close().unwrap();
    }

    fn pd_names_address_handles_that_hold_it(f) [Datagrams] {
        let pd = f.a.alloc_pd().unwrap();
        let ah = way(&pd, &f.b).unwrap();
        let (pd, error) = pd.close().unwrap_err().into_parts();
        names(&error, "AddressHandle(");
        ah.close().unwrap();
        pd.close().unwrap();
    }

    fn a_domain_names_its_clones(f) {
        let pd = f.a.alloc_pd().unwrap();
        let clone = pd.clone();
        let (pd, error) = pd.close().unwrap_err().into_parts();
        names(&error, "a clone of it");
        drop(clone);
        pd.close().unwrap();
    }

    fn cq_names_queue_pairs_that_hold_it(f) {
        let pd = f.a.alloc_pd().unwrap();
        let (sends, receives) = (f.a.create_cq(4).unwrap(), f.a.create_cq(4).unwrap());
        let mut init = QpInit::new(&sends);
        init.recv_cq = &receives;
        let qp = pd.create_qp(&init).unwrap();
        let (sends, error) = sends.close().unwrap_err().into_parts();
        names(&error, &format!("the send queue of Qp({}", qp.qpn()));
        let (receives, error) = receives.close().unwrap_err().into_parts();
        names(&error, &format!("the receive queue of Qp({}", qp.qpn()));
        qp.close().unwrap();
        sends.close().unwrap();
        receives.close().unwrap();
    }

    fn context_names_its_open_objects(f) {
        let context = f.a.clone();
        let pd = context.alloc_pd().unwrap();
        let (_context, error) = context.close().unwrap_err().into_parts();
        names(&error, "Pd(");
        pd.close().unwrap();
    }

    fn region_can_close_under_queue_pair(f) {
        let (mut a, b) = pair(f);
        for wr_id in 0..30 {
            a.qp.post_send(wr_id).write(&[a.mr.part(0, 100_000)], b.mr.far(0, 100_000)).post().unwrap();
        }
        let End { mr, qp, host, .. } = b;
        mr.close().unwrap();
        host.fill(0, HOST, 0x33).unwrap();
        let mut refused = false;
        for wr_id in 0..30 {
            let wc = a.completion();
            assert_eq!(wc.wr_id, wr_id);
            match wc.status {
                WcStatus::SUCCESS => assert!(!refused, "nothing succeeds after a refusal"),
                WcStatus::REM_ACCESS_ERR => refused = true,
                status => assert_eq!((status, refused), (WcStatus::WR_FLUSH_ERR, true)),
            }
        }
        same("memory", &bytes_of(&host, 0, HOST), &vec![0x33; HOST]);
        drop(qp);
    }

    fn everything_can_be_dropped_in_any_order(f) {
        for order in 0..6 {
            let (mut a, b) = pair(f);
            a.qp.post_send(1).write(&[a.mr.part(0, 1000)], b.mr.far(0, 1000)).post().unwrap();
            let End { qp, mr, cq, pd, context, host } = a;
            let mut things: Vec<Box<dyn std::any::Any>> =
                vec![Box::new(qp), Box::new(mr), Box::new(cq), Box::new(pd), Box::new(context), Box::new(host)];
            things.rotate_left(order);
            if order % 2 == 1 {
                things.reverse();
            }
            while let Some(thing) = things.pop() {
                drop(thing);
            }
        }
    }

    fn closing_in_order_leaves_nothing(f) {
        let (a, b) = pair(f);
        for end in [a, b] {
            let End { qp, mr, cq, pd, .. } = end;
            qp.close().unwrap();
            mr.close().unwrap();
            pd.close().unwrap();
            cq.close().unwrap();
        }
    }
}
