//! Fetch-and-add and compare-and-swap.

use gaudi_seam::Errno;
use gaudi_verbs::{Access, RemoteAddr, WcOpcode, WcStatus};

use crate::bench::*;
use crate::suite::cases;

fn put_word(end: &End, offset: usize, value: u64) {
    end.put(offset, &value.to_ne_bytes());
}

cases! {
    "atomics";

    fn fetch_and_add_returns_the_old_value(f) [Atomics] {
        let (mut a, b) = pair(f);
        put_word(&b, 64, 41);
        let was = a.mr.part(8, 8);
        a.qp.post_send(1).fetch_add(&was, b.mr.far(64, 8), 100).post().unwrap();
        assert_eq!(a.succeeds(1).opcode, WcOpcode::FETCH_ADD);
        assert_eq!((a.word(8), b.word(64)), (41, 141));
    }

    fn fetch_and_add_wraps(f) [Atomics] {
        let (mut a, b) = pair(f);
        put_word(&b, 0, u64::MAX);
        let was = a.mr.part(0, 8);
        a.qp.post_send(1).fetch_add(&was, b.mr.far(0, 8), 3).post().unwrap();
        a.succeeds(1);
        assert_eq!((a.word(0), b.word(0)), (u64::MAX, 2));
    }

    fn fetch_and_add_changes_eight_bytes_only(f) [Atomics] {
        let (mut a, b) = pair(f);
        b.put(0, &[0xff; 24]);
        let was = a.mr.part(0, 8);
        a.qp.post_send(1).fetch_add(&was, b.mr.far(8, 8), 1).post().unwrap();
        a.succeeds(1);
        same("around", &b.bytes(0, 24), &[[0xff; 8], [0; 8], [0xff; 8]].concat());
    }

    fn compare_and_swap_swaps_equal_values(f) [Atomics] {
        let (mut a, b) = pair(f);
        put_word(&b, 4096, 7);
        let was = a.mr.part(16, 8);
        a.qp.post_send(1).compare_swap(&was, b.mr.far(4096, 8), 7, 1 << 63).post().unwrap();
        assert_eq!(a.succeeds(1).opcode, WcOpcode::COMP_SWAP);
        assert_eq!((a.word(16), b.word(4096)), (7, 1 << 63));
    }

    fn compare_and_swap_returns_unequal_value(f) [Atomics] {
        let (mut a, b) = pair(f);
        put_word(&b, 0, 8);
        let was = a.mr.part(16, 8);
        a.qp.post_send(1).compare_swap(&was, b.mr.far(0, 8), 7, 1).post().unwrap();
        a.succeeds(1);
        assert_eq!((a.word(16), b.word(0)), (8, 8));
    }

    fn atomics_work_on_a_dma_buf(f) [Atomics, DmaBuf] {
        let (mut a, b) = pair(f);
        let (memory, mr) = b.device(f, FULL);
        memory.view.write(4088, &41u64.to_ne_bytes()).unwrap();
        let at = mr.remote().at(4088, 8).unwrap();
        let (first, second) = (a.mr.part(0, 8), a.mr.part(8, 8));
        a.qp.post_send(1).fetch_add(&first, at, 1).post().unwrap();
        a.qp.post_send(2).compare_swap(&second, at, 42, 1000).post().unwrap();
        a.succeeds(1);
        a.succeeds(2);
        assert_eq!((a.word(0), a.word(8)), (41, 42));
        same("the dma-buf", &bytes_of(&memory.view, 4088, 8), &1000u64.to_ne_bytes());
    }

    fn atomic_result_may_be_in_dma_buf(f) [Atomics, DmaBuf] {
        let (mut a, b) = pair(f);
        let (memory, mr) = a.device(f, FULL);
        put_word(&b, 0, 99);
        let was = mr.sge(24, 8).unwrap();
        a.qp.post_send(1).fetch_add(&was, b.mr.far(0, 8), 0).post().unwrap();
        a.succeeds(1);
        same("the dma-buf", &bytes_of(&memory.view, 24, 8), &99u64.to_ne_bytes());
    }

    fn additions_of_two_queue_pairs_lose_none(f) [Atomics] {
        let (mut a, mut b) = pair(f);
        let mut init = gaudi_verbs::QpInit::new(&a.cq);
        init.max_send_wr = 64;
        let (mut second, mut other) =
            (a.pd.create_qp(&init).unwrap(), b.pd.create_qp(&gaudi_verbs::QpInit::new(&b.cq)).unwrap());
        join(&mut second, &mut other, &Link::default());
        put_word(&b, 0, 0);
        let (to, was) = (b.mr.far(0, 8), a.mr.part(0, 8));
        for _ in 0..40 {
            a.qp.post_send(1).fetch_add(&was, to, 1).post().unwrap();
            second.post_send(1).fetch_add(&was, to, 1000).post().unwrap();
        }
        for _ in 0..80 {
            a.succeeds(1);
        }
        assert_eq!(b.word(0), 40 + 40_000);
        b.qp.to_error().unwrap();
    }

    fn unaligned_atomic_fails_the_post(f) [Atomics] {
        let (mut a, b) = pair(f);
        let was = a.mr.part(0, 8);
        for off in [1, 4, 7] {
            refused(a.qp.post_send(1).fetch_add(&was, b.mr.far(off, 8), 1).post(), Errno::EINVAL);
            refused(a.qp.post_send(1).compare_swap(&was, b.mr.far(off, 8), 0, 1).post(), Errno::EINVAL);
        }
        a.nothing_completes();
    }

    fn atomic_result_must_be_eight_bytes(f) [Atomics] {
        let (mut a, b) = pair(f);
        for len in [0, 4, 7, 9, 16] {
            let was = a.mr.part(0, len);
            refused(a.qp.post_send(1).fetch_add(&was, b.mr.far(0, 8), 1).post(), Errno::EINVAL);
        }
    }

    fn a_region_without_the_right_refuses_atomics(f) [Atomics] {
        for access in [
            Access::LOCAL_WRITE,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        ] {
            let (mut a, b) = pair(f);
            put_word(&b, 0, 5);
            let mr = b.pd.reg_mapping(b.host.clone(), access).unwrap();
            let was = a.mr.part(0, 8);
            a.qp.post_send(1).fetch_add(&was, mr.remote().at(0, 8).unwrap(), 1).post().unwrap();
            a.completes(1, WcStatus::REM_ACCESS_ERR);
            assert_eq!(b.word(0), 5);
        }
    }

    fn atomics_need_the_qps_access_flag(f) [Atomics] {
        let access = FULL.difference(Access::REMOTE_ATOMIC);
        let (mut a, b) = pair_by(f, &Link { access, ..Link::default() });
        let was = a.mr.part(0, 8);
        a.qp.post_send(1).fetch_add(&was, b.mr.far(0, 8), 1).post().unwrap();
        a.completes(1, WcStatus::REM_INV_REQ_ERR);
    }

    fn atomic_past_region_end_is_refused(f) [Atomics] {
        let (mut a, b) = pair(f);
        let end = b.mr.far(HOST as u64, 0);
        let to = RemoteAddr { addr: end.addr, ..end };
        let was = a.mr.part(0, 8);
        a.qp.post_send(1).compare_swap(&was, to, 0, 1).post().unwrap();
        a.completes(1, WcStatus::REM_ACCESS_ERR);
    }

    fn atomics_execute_in_queue_order(f) [Atomics] {
        let (mut a, b) = pair(f);
        put_word(&b, 0, 0);
        for step in 0..20 {
            let was = a.mr.part(step * 8, 8);
            a.qp.post_send(step).compare_swap(&was, b.mr.far(0, 8), step, step + 1).post().unwrap();
        }
        for step in 0..20 {
            a.succeeds(step);
        }
        assert_eq!(b.word(0), 20);
        let seen: Vec<u64> = (0..20).map(|step| a.word(step * 8)).collect();
        assert_eq!(seen, (0..20).collect::<Vec<_>>());
    }
}
