//! Memory windows.

use gaudi_seam::{Errno, ErrorKind};
use gaudi_verbs::provider::MwType;
use gaudi_verbs::{Access, Mr, MrAddr, QpInit, RemoteAddr, RemoteRegion, Rkey, WcOpcode, WcStatus};

use crate::bench::*;
use crate::dialect::Answer;
use crate::suite::cases;

fn bindable(end: &End) -> Mr {
    end.pd
        .reg_mapping(end.host.clone(), FULL | Access::MW_BIND)
        .unwrap()
}

fn write(a: &mut End, to: RemoteAddr, status: WcStatus) {
    a.qp.post_send(7).write(&[a.mr.part(0, 8)], to).post().unwrap();
    a.completes(7, status);
}

fn at(region: &RemoteRegion, offset: u64) -> RemoteAddr {
    region.at(offset, 8).unwrap()
}

cases! {
    "windows";

    fn bound_window_key_grants_access(f) [Windows] {
        let (mut a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        let region = b.qp.post_send(1).bind_mw(&mut mw, &mr, 4096, 8192, Access::REMOTE_WRITE).post().unwrap();
        assert_eq!(b.succeeds(1).opcode, WcOpcode::BIND_MW);
        assert_eq!((region.rkey, region.len, mw.remote()), (mw.rkey(), 8192, Some(region)));
        a.put(0, b"windowed");
        write(&mut a, at(&region, 100), WcStatus::SUCCESS);
        same("the region", &b.bytes(4096 + 100, 8), b"windowed");
        mw.close().unwrap();
        mr.close().unwrap();
    }

    fn window_enforces_its_bounds(f) [Windows] {
        for (offset, wrong) in [(8192u64 - 7, true), (0u64.wrapping_sub(1), true), (8184, false)] {
            let (mut a, mut b) = pair(f);
            let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
            let region = b.qp.post_send(1).bind_mw(&mut mw, &mr, 4096, 8192, Access::REMOTE_WRITE).post().unwrap();
            b.succeeds(1);
            let to = RemoteAddr { addr: MrAddr(region.addr.0.wrapping_add(offset)), rkey: region.rkey };
            write(&mut a, to, if wrong { f.dialect.status(Answer::WindowBounds) } else { WcStatus::SUCCESS });
            mw.close().unwrap();
        }
    }

    fn window_enforces_its_access(f) [Windows] {
        let (mut a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        let region = b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_READ).post().unwrap();
        b.succeeds(1);
        a.qp.post_send(2).read(&[a.mr.part(0, 8)], at(&region, 0)).post().unwrap();
        a.succeeds(2);
        write(&mut a, at(&region, 0), WcStatus::REM_ACCESS_ERR);
        mw.close().unwrap();
    }

    fn window_may_exceed_regions_remote_access(f) [Windows] {
        let (mut a, mut b) = pair(f);
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let (mr, mut mw) = (b.pd.reg_mapping(b.host.clone(), access).unwrap(), b.pd.alloc_mw(MwType::Type2).unwrap());
        let region = b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(1);
        write(&mut a, at(&region, 0), WcStatus::SUCCESS);
        write(&mut a, at(&mr.remote(), 0), WcStatus::REM_ACCESS_ERR);
        mw.close().unwrap();
    }

    fn type_2_window_serves_one_connection(f) [Windows] {
        let (mut a, mut b) = pair(f);
        let (mut second, mut other) = (
            a.pd.create_qp(&QpInit::new(&a.cq)).unwrap(),
            b.pd.create_qp(&QpInit::new(&b.cq)).unwrap(),
        );
        join(&mut second, &mut other, &Link::default());
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        let region = b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, FULL - Access::LOCAL_WRITE).post().unwrap();
        b.succeeds(1);
        second.post_send(2).write(&[a.mr.part(0, 8)], at(&region, 0)).post().unwrap();
        a.completes(2, WcStatus::REM_ACCESS_ERR);
        write(&mut a, at(&region, 0), WcStatus::SUCCESS);
        mw.close().unwrap();
    }

    fn a_local_invalidation_kills_the_key(f) [Windows] {
        let (mut a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        let region = b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(1);
        b.qp.post_send(2).local_inv(region.rkey).post().unwrap();
        assert_eq!(b.succeeds(2).opcode, WcOpcode::LOCAL_INV);
        write(&mut a, at(&region, 0), WcStatus::REM_ACCESS_ERR);
        mw.close().unwrap();
        mr.close().unwrap();
    }

    fn a_send_can_invalidate_the_peers_window(f) [Windows] {
        let (mut a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        let region = b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(1);
        b.qp.post_recv(2).post(&[b.mr.part(8192, 8)]).unwrap();
        a.qp.post_send(3).send_inv(&[a.mr.part(0, 8)], region.rkey).post().unwrap();
        a.succeeds(3);
        let wc = b.succeeds(2);
        assert_eq!((wc.invalidated_rkey, wc.imm_data, wc.byte_len), (Some(region.rkey), None, 8));
        write(&mut a, at(&region, 0), WcStatus::REM_ACCESS_ERR);
        mw.close().unwrap();
    }

    fn send_with_invalid_inv_key_fails_receiver(f) [Windows] {
        let (mut a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        let region = b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(1);
        b.qp.post_recv(2).post(&[b.mr.part(8192, 8)]).unwrap();
        a.qp.post_send(3).send_inv(&[a.mr.part(0, 8)], Rkey(region.rkey.0 ^ 0x80)).post().unwrap();
        b.completes(2, WcStatus::REM_INV_REQ_ERR);
        a.succeeds(3);
        mw.close().unwrap();
    }

    fn invalidated_window_rebinds_under_new_key(f) [Windows] {
        let (mut a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        let old = b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(1);
        b.qp.post_send(2).local_inv(old.rkey).post().unwrap();
        let new = b.qp.post_send(3).bind_mw(&mut mw, &mr, 4096, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(2);
        b.succeeds(3);
        assert_ne!(old.rkey, new.rkey);
        assert_eq!(old.rkey.0 >> 8, new.rkey.0 >> 8, "the upper 24 bits are the window's");
        write(&mut a, at(&new, 0), WcStatus::SUCCESS);
        write(&mut a, at(&old, 0), WcStatus::REM_ACCESS_ERR);
        mw.close().unwrap();
    }

    fn bound_type_2_window_cannot_rebind(f) [Windows] {
        let (_a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(1);
        b.qp.post_send(2).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.completes(2, f.dialect.status(Answer::Bind));
        mw.close().unwrap();
    }

    fn region_without_mw_bind_gets_no_window(f) [Windows] {
        let (_a, mut b) = pair(f);
        let mut mw = b.pd.alloc_mw(MwType::Type2).unwrap();
        let mr = b.pd.reg_mapping(b.host.clone(), FULL).unwrap();
        b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.completes(1, f.dialect.status(Answer::Bind));
        mw.close().unwrap();
    }

    fn failed_bind_leaves_window_usable(f) [Windows] {
        let (mut a, mut b) = pair(f);
        let mut mw = b.pd.alloc_mw(MwType::Type2).unwrap();
        let (closed, open) = (b.pd.reg_mapping(b.host.clone(), FULL).unwrap(), bindable(&b));
        let failed = b.qp.post_send(1).bind_mw(&mut mw, &closed, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.completes(1, f.dialect.status(Answer::Bind));
        assert!(mw.take_back(failed.rkey));
        for qp in [&mut a.qp, &mut b.qp] {
            qp.reset().unwrap();
        }
        join(&mut a.qp, &mut b.qp, &Link::default());
        let region = b.qp.post_send(2).bind_mw(&mut mw, &open, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(2);
        write(&mut a, at(&region, 0), WcStatus::SUCCESS);
        mw.close().unwrap();
    }

    fn writable_window_needs_local_write(f) [Windows] {
        let (_a, mut b) = pair(f);
        let mut mw = b.pd.alloc_mw(MwType::Type2).unwrap();
        let mr = b.pd.reg_mapping(b.host.clone(), Access::REMOTE_READ | Access::MW_BIND).unwrap();
        b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.completes(1, f.dialect.status(Answer::Bind));
        mw.close().unwrap();
    }

    fn a_window_cannot_look_past_its_region(f) [Windows] {
        let (_a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        let past = HOST as u64 - 4095;
        b.qp.post_send(1).bind_mw(&mut mw, &mr, past, 4096, Access::REMOTE_READ).post().unwrap();
        b.completes(1, f.dialect.status(Answer::Bind));
        mw.close().unwrap();
    }

    fn window_of_another_pd_cannot_bind(f) [Windows] {
        let (_a, mut b) = pair(f);
        let other = b.context.alloc_pd().unwrap();
        let (mr, mut mw) = (bindable(&b), other.alloc_mw(MwType::Type2).unwrap());
        refused(b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_READ).post(), Errno::EINVAL);
        b.nothing_completes();
        mw.close().unwrap();
    }

    fn window_of_another_nic_cannot_bind(f) [Windows] {
        let (a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&a), a.pd.alloc_mw(MwType::Type2).unwrap());
        refused(b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_READ).post(), Errno::EINVAL);
        b.nothing_completes();
        mw.close().unwrap();
    }

    fn region_of_another_pd_gets_no_window(f) [Windows] {
        let (_a, mut b) = pair(f);
        let other = End::new(&f.b);
        let (mr, mut mw) = (bindable(&other), b.pd.alloc_mw(MwType::Type2).unwrap());
        refused(b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_READ).post(), Errno::EINVAL);
        b.nothing_completes();
        mw.close().unwrap();
    }

    fn closing_a_window_kills_its_key(f) [Windows] {
        let (mut a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        let region = b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(1);
        mw.close().unwrap();
        write(&mut a, at(&region, 0), WcStatus::REM_ACCESS_ERR);
        mr.close().unwrap();
    }

    fn region_under_window_names_it_at_close(f) [Windows] {
        let (_a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(1);
        let (mr, error) = mr.close().unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        assert!(error.to_string().contains(&format!("Mw({})", mw.rkey())), "{error}");
        mw.close().unwrap();
        mr.close().unwrap();
    }

    fn invalidation_of_unknown_key_fails(f) [Windows] {
        let (_a, mut b) = pair(f);
        b.qp.post_send(1).local_inv(Rkey(b.mr.rkey().0 ^ 0x55)).post().unwrap();
        b.completes(1, f.dialect.status(Answer::LocalInvalidate));
    }

    fn atomics_go_through_a_window(f) [Windows, Atomics] {
        let (mut a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type2).unwrap());
        let region = b.qp.post_send(1).bind_mw(&mut mw, &mr, 64, 8, Access::REMOTE_ATOMIC).post().unwrap();
        b.succeeds(1);
        let was = a.mr.part(0, 8);
        a.qp.post_send(2).fetch_add(&was, at(&region, 0), 5).post().unwrap();
        a.succeeds(2);
        assert_eq!(b.word(64), 5);
        mw.close().unwrap();
    }

    fn type_1_window_serves_all_and_moves(f) [Type1Windows] {
        let (mut a, mut b) = pair(f);
        let (mr, mut mw) = (bindable(&b), b.pd.alloc_mw(MwType::Type1).unwrap());
        let first = b.qp.post_send(1).bind_mw(&mut mw, &mr, 0, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(1);
        write(&mut a, at(&first, 0), WcStatus::SUCCESS);
        let second = b.qp.post_send(2).bind_mw(&mut mw, &mr, 8192, 4096, Access::REMOTE_WRITE).post().unwrap();
        b.succeeds(2);
        write(&mut a, at(&second, 0), WcStatus::SUCCESS);
        write(&mut a, at(&first, 0), WcStatus::REM_ACCESS_ERR);
        mw.close().unwrap();
    }
}
