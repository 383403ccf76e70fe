//! Keys, domains, bounds and rights.

use gaudi_verbs::{Access, Lkey, MrAddr, RemoteAddr, Rkey, Sge, WcStatus};

use crate::bench::*;
use crate::dialect::Answer;
use crate::fixture::Fixture;
use crate::suite::cases;

/// A write of four bytes to `to` is refused and what follows is flushed, at both ends.
fn write_is_refused(a: &mut End, b: &mut End, to: RemoteAddr) {
    b.qp.post_recv(50).post(&[]).unwrap();
    let local = [a.mr.part(0, 4)];
    a.qp.post_send(1).write(&local, to).post().unwrap();
    a.completes(1, WcStatus::REM_ACCESS_ERR);
    b.completes(50, WcStatus::WR_FLUSH_ERR);
    a.qp.post_send(2).write(&local, to).post().unwrap();
    a.completes(2, WcStatus::WR_FLUSH_ERR);
}

/// All combinations that registration accepts.
fn combinations() -> Vec<Access> {
    (0..16u32)
        .map(|bits| Access::from_bits_truncate(bits & 7 | (bits & 8)))
        .filter(|access| {
            access.contains(Access::LOCAL_WRITE)
                || !access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        })
        .collect()
}

fn local_error(fixture: &Fixture, a: &mut End, b: &End, sge: Sge) {
    a.qp.post_send(1)
        .write(&[sge], b.mr.far(0, sge.length.into()))
        .post()
        .unwrap();
    a.completes(1, fixture.dialect.status(Answer::LocalProtection));
}

cases! {
    "rights";

    fn write_needs_remote_write_access(f) {
        for access in combinations() {
            let (mut a, b) = pair(f);
            let mr = b.pd.reg_mapping(b.host.clone(), access).unwrap();
            a.qp.post_send(1).write(&[a.mr.part(0, 4)], mr.remote().at(0, 4).unwrap()).post().unwrap();
            let allowed = access.contains(Access::REMOTE_WRITE);
            let status = if allowed { WcStatus::SUCCESS } else { WcStatus::REM_ACCESS_ERR };
            assert_eq!(a.completes(1, status).status, status, "{access:?}");
        }
    }

    fn read_needs_remote_read_access(f) {
        for access in combinations() {
            let (mut a, b) = pair(f);
            let mr = b.pd.reg_mapping(b.host.clone(), access).unwrap();
            a.qp.post_send(1).read(&[a.mr.part(0, 4)], mr.remote().at(0, 4).unwrap()).post().unwrap();
            let allowed = access.contains(Access::REMOTE_READ);
            let status = if allowed { WcStatus::SUCCESS } else { WcStatus::REM_ACCESS_ERR };
            assert_eq!(a.completes(1, status).status, status, "{access:?}");
        }
    }

    fn dma_buf_region_enforces_access(f) [DmaBuf] {
        for access in combinations() {
            let (mut a, b) = pair(f);
            let (_memory, mr) = b.device(f, access);
            a.qp.post_send(1).write(&[a.mr.part(0, 4)], mr.remote().at(0, 4).unwrap()).post().unwrap();
            let allowed = access.contains(Access::REMOTE_WRITE);
            let status = if allowed { WcStatus::SUCCESS } else { WcStatus::REM_ACCESS_ERR };
            assert_eq!(a.completes(1, status).status, status, "{access:?}");
        }
    }

    fn operation_needs_the_qps_access_flag(f) {
        for access in [Access::empty(), Access::REMOTE_READ, Access::REMOTE_WRITE] {
            for is_write in [true, false] {
                let (mut a, b) = pair_by(f, &Link { access, ..Link::default() });
                let (local, remote) = ([a.mr.part(0, 4)], b.mr.far(0, 4));
                let post = a.qp.post_send(1);
                let ready = if is_write { post.write(&local, remote) } else { post.read(&local, remote) };
                ready.post().unwrap();
                let need = if is_write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
                let status = if access.contains(need) { WcStatus::SUCCESS } else { WcStatus::REM_INV_REQ_ERR };
                assert_eq!(a.completes(1, status).status, status, "{access:?}, write {is_write}");
            }
        }
    }

    fn send_needs_no_access_flag(f) {
        let (mut a, mut b) = pair_by(f, &Link { access: Access::empty(), ..Link::default() });
        b.qp.post_recv(1).post(&[b.mr.part(0, 8)]).unwrap();
        a.qp.post_send(2).send(&[a.mr.part(0, 8)]).post().unwrap();
        b.succeeds(1);
        a.succeeds(2);
    }

    fn write_past_region_end_writes_nothing(f) {
        let (mut a, mut b) = pair(f);
        a.put(0, &[1; 4]);
        let to = RemoteAddr { addr: MrAddr(b.mr.addr().0 + HOST as u64 - 3), rkey: b.mr.rkey() };
        write_is_refused(&mut a, &mut b, to);
        same("the last bytes", &b.bytes(HOST - 3, 3), &[0; 3]);
    }

    fn a_write_before_the_start_is_refused(f) {
        let (mut a, mut b) = pair(f);
        let to = RemoteAddr { addr: MrAddr(b.mr.addr().0 - 1), rkey: b.mr.rkey() };
        write_is_refused(&mut a, &mut b, to);
    }

    fn write_at_last_address_is_refused(f) {
        let (mut a, mut b) = pair(f);
        let to = RemoteAddr { addr: MrAddr(u64::MAX - 1), rkey: b.mr.rkey() };
        write_is_refused(&mut a, &mut b, to);
    }

    fn write_past_dma_buf_region_is_refused(f) [DmaBuf] {
        let (mut a, mut b) = pair(f);
        let (_memory, mr) = b.device(f, FULL);
        let to = RemoteAddr { addr: MrAddr(DEVICE_VA + DEVICE - 2), rkey: mr.rkey() };
        write_is_refused(&mut a, &mut b, to);
    }

    fn partial_dma_buf_region_is_bounded(f) [DmaBuf] {
        let (mut a, mut b) = pair(f);
        let memory = f.make_dmabuf(DEVICE);
        let part = memory.window.window(0x3123, 0x5000).unwrap();
        let mr = b.pd.reg_dmabuf_mr(&part, MrAddr(0x7000_0123), FULL).unwrap();
        let text = pattern(0x5000, 1);
        a.put(0, &text);
        a.qp.post_send(1).write(&[a.mr.part(0, 0x5000)], mr.remote().at(0, 0x5000).unwrap()).post().unwrap();
        a.succeeds(1);
        let mut expected = vec![0; 0x9000];
        expected[0x3123..0x8123].copy_from_slice(&text);
        same("the dma-buf", &bytes_of(&memory.view, 0, 0x9000), &expected);
        let to = RemoteAddr { addr: MrAddr(0x7000_0122), rkey: mr.rkey() };
        write_is_refused(&mut a, &mut b, to);
    }

    fn read_past_region_end_reads_nothing(f) {
        let (mut a, b) = pair(f);
        a.put(0, &[0x77; 8]);
        let from = RemoteAddr { addr: MrAddr(b.mr.addr().0 + HOST as u64 - 4), rkey: b.mr.rkey() };
        a.qp.post_send(1).read(&[a.mr.part(0, 8)], from).post().unwrap();
        a.completes(1, WcStatus::REM_ACCESS_ERR);
        same("the target", &a.bytes(0, 8), &[0x77; 8]);
    }

    fn a_key_that_names_nothing_is_refused(f) {
        let (mut a, mut b) = pair(f);
        let to = RemoteAddr { addr: b.mr.addr(), rkey: Rkey(b.mr.rkey().0 ^ 0x55) };
        write_is_refused(&mut a, &mut b, to);
    }

    fn a_region_of_another_domain_is_refused(f) {
        let (mut a, mut b) = pair(f);
        let other = b.context.alloc_pd().unwrap();
        let mr = other.reg_mapping(b.host.clone(), FULL).unwrap();
        write_is_refused(&mut a, &mut b, mr.remote().at(0, 4).unwrap());
    }

    fn closed_region_key_is_dead(f) {
        let (mut a, mut b) = pair(f);
        let mr = b.pd.reg_mapping(b.host.clone(), FULL).unwrap();
        let to = mr.remote().at(0, 4).unwrap();
        a.qp.post_send(9).write(&[a.mr.part(0, 4)], to).post().unwrap();
        a.succeeds(9);
        mr.close().unwrap();
        write_is_refused(&mut a, &mut b, to);
    }

    fn regions_of_one_memory_have_own_keys(f) {
        let (mut a, b) = pair(f);
        let first = b.pd.reg_mapping(b.host.clone(), FULL).unwrap();
        let second = b.pd.reg_mapping(b.host.clone(), FULL).unwrap();
        assert_ne!((first.lkey(), first.rkey()), (second.lkey(), second.rkey()));
        first.close().unwrap();
        a.put(0, b"both");
        a.qp.post_send(1).write(&[a.mr.part(0, 4)], second.remote().at(9, 4).unwrap()).post().unwrap();
        a.succeeds(1);
        same("the memory", &b.bytes(9, 4), b"both");
    }

    fn regions_of_one_dmabuf_have_own_keys(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let memory = f.make_dmabuf(DEVICE);
        let first = b.pd.reg_dmabuf_mr(&memory.window, MrAddr(0), FULL).unwrap();
        let second = b.pd.reg_dmabuf_mr(&memory.window, MrAddr(1 << 40), Access::REMOTE_READ).unwrap();
        memory.view.write(5, b"text").unwrap();
        first.close().unwrap();
        a.qp.post_send(1).read(&[a.mr.part(0, 4)], second.remote().at(5, 4).unwrap()).post().unwrap();
        a.succeeds(1);
        same("what was read", &a.bytes(0, 4), b"text");
    }

    fn wrong_lkey_fails_locally(f) {
        let (mut a, b) = pair(f);
        let sge = Sge { lkey: Lkey(a.mr.lkey().0 ^ 0x55), ..a.mr.part(0, 4) };
        local_error(f, &mut a, &b, sge);
    }

    fn lkey_of_another_pd_fails_locally(f) {
        let (mut a, b) = pair(f);
        let other = a.context.alloc_pd().unwrap();
        let mr = other.reg_mapping(a.host.clone(), FULL).unwrap();
        local_error(f, &mut a, &b, mr.sge(0, 4).unwrap());
    }

    fn sge_past_region_end_fails_locally(f) {
        let (mut a, b) = pair(f);
        let sge = Sge { length: 8, ..a.mr.part(HOST as u64 - 4, 4) };
        local_error(f, &mut a, &b, sge);
    }

    fn read_into_read_only_region_fails_locally(f) {
        let (mut a, b) = pair(f);
        let mr = a.pd.reg_mapping(a.host.clone(), Access::empty()).unwrap();
        a.qp.post_send(1).read(&[mr.sge(0, 4).unwrap()], b.mr.far(0, 4)).post().unwrap();
        // The data cannot be written, which both dialects report in the completion.
        a.completes(1, WcStatus::LOC_PROT_ERR);
    }

    fn a_source_needs_no_right_at_all(f) {
        let (mut a, b) = pair(f);
        let mr = a.pd.reg_mapping(a.host.clone(), Access::empty()).unwrap();
        a.put(0, b"read only");
        a.qp.post_send(1).write(&[mr.sge(0, 9).unwrap()], b.mr.far(0, 9)).post().unwrap();
        a.succeeds(1);
        same("the target", &b.bytes(0, 9), b"read only");
    }

    fn receive_into_read_only_region_fails(f) {
        let (mut a, mut b) = pair(f);
        let mr = b.pd.reg_mapping(b.host.clone(), Access::REMOTE_READ).unwrap();
        b.qp.post_recv(1).post(&[mr.sge(0, 64).unwrap()]).unwrap();
        a.qp.post_send(2).send(&[a.mr.part(0, 5)]).post().unwrap();
        b.completes(1, f.dialect.status(Answer::ReceiveProtection));
        a.completes(2, WcStatus::REM_OP_ERR);
    }

    fn receive_with_wrong_lkey_fails_both_ends(f) {
        let (mut a, mut b) = pair(f);
        let sge = Sge { lkey: Lkey(b.mr.lkey().0 ^ 0x55), ..b.mr.part(0, 64) };
        b.qp.post_recv(1).post(&[sge]).unwrap();
        a.qp.post_send(2).send(&[a.mr.part(0, 5)]).post().unwrap();
        b.completes(1, f.dialect.status(Answer::ReceiveProtection));
        a.completes(2, WcStatus::REM_OP_ERR);
    }

    fn message_longer_than_receive_fails_both_ends(f) {
        let (mut a, mut b) = pair(f);
        b.qp.post_recv(1).post(&[b.mr.part(0, 4)]).unwrap();
        a.qp.post_send(2).send(&[a.mr.part(0, 5)]).post().unwrap();
        b.completes(1, f.dialect.status(Answer::ReceiveLength));
        a.completes(2, f.dialect.status(Answer::SendLength));
    }

    fn refused_write_with_imm_fails_the_receive(f) {
        let (mut a, mut b) = pair(f);
        b.qp.post_recv(1).post(&[]).unwrap();
        let to = RemoteAddr { addr: b.mr.addr(), rkey: Rkey(b.mr.rkey().0 ^ 0x55) };
        a.qp.post_send(2).write_imm(&[a.mr.part(0, 5)], to, 1).post().unwrap();
        b.completes(1, WcStatus::REM_ACCESS_ERR);
        a.completes(2, WcStatus::REM_ACCESS_ERR);
    }

    fn work_before_refused_request_completes(f) {
        let (mut a, b) = pair(f);
        let bad = RemoteAddr { addr: b.mr.addr(), rkey: Rkey(b.mr.rkey().0 ^ 0x55) };
        a.put(0, &pattern(40_000, 1));
        for wr_id in 0..3 {
            a.qp.post_send(wr_id).write(&[a.mr.part(0, 40_000)], b.mr.far(wr_id * 40_000, 40_000)).post().unwrap();
        }
        a.qp.post_send(3).write(&[a.mr.part(0, 4)], bad).post().unwrap();
        for wr_id in 0..3 {
            a.succeeds(wr_id);
        }
        a.completes(3, WcStatus::REM_ACCESS_ERR);
        same("the third", &b.bytes(80_000, 40_000), &a.bytes(0, 40_000));
    }
}
