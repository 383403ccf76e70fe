//! Payload without a region.

use gaudi_seam::Errno;

use crate::bench::*;
use crate::fixture::Fixture;
use crate::suite::cases;

fn inline_pair(fixture: &Fixture) -> (End, End) {
    pair_with(fixture, |init| init.max_inline_data = 200)
}

cases! {
    "inline";

    fn inline_data_is_copied_at_post(f) [Inline] {
        let (mut a, b) = inline_pair(f);
        for round in 0..50u8 {
            let mut bytes = [round + 1; 100];
            a.qp.post_send(1).write_inline(&bytes, b.mr.far(u64::from(round) * 128, 100)).post().unwrap();
            bytes.fill(0xff);
            std::hint::black_box(&bytes);
        }
        for _ in 0..50 {
            a.succeeds(1);
        }
        for round in 0..50u8 {
            same("a write", &b.bytes(usize::from(round) * 128, 100), &[round + 1; 100]);
        }
    }

    fn an_inline_send_arrives_in_a_receive(f) [Inline] {
        let (mut a, mut b) = inline_pair(f);
        b.qp.post_recv(1).post(&[b.mr.part(3, 64)]).unwrap();
        a.qp.post_send(2).send_inline(b"no region at all").post().unwrap();
        assert_eq!(b.succeeds(1).byte_len, 16);
        a.succeeds(2);
        same("the receive", &b.bytes(3, 16), b"no region at all");
    }

    fn an_inline_send_can_carry_a_number(f) [Inline] {
        let (mut a, mut b) = inline_pair(f);
        b.qp.post_recv(1).post(&[b.mr.part(0, 64)]).unwrap();
        a.qp.post_send(2).send_imm_inline(b"seven", 7).post().unwrap();
        let wc = b.succeeds(1);
        assert_eq!((wc.byte_len, wc.imm_data), (5, Some(7)));
    }

    fn inline_write_with_imm_consumes_receive(f) [Inline] {
        let (mut a, mut b) = inline_pair(f);
        b.qp.post_recv(1).post(&[]).unwrap();
        a.qp.post_send(2).write_imm_inline(b"flag", b.mr.far(40, 4), 9).post().unwrap();
        assert_eq!(b.succeeds(1).imm_data, Some(9));
        same("the target", &b.bytes(40, 4), b"flag");
    }

    fn an_inline_write_reaches_a_dma_buf(f) [Inline, DmaBuf] {
        let (mut a, b) = inline_pair(f);
        let (memory, mr) = b.device(f, FULL);
        a.qp.post_send(1).write_inline(b"ring", mr.remote().at(4095, 4).unwrap()).post().unwrap();
        a.succeeds(1);
        same("the dma-buf", &bytes_of(&memory.view, 4095, 4), b"ring");
    }

    fn max_inline_data_bytes_fit_inline(f) [Inline] {
        let (mut a, b) = inline_pair(f);
        assert!(a.qp.cap().max_inline_data >= 200, "{:?}", a.qp.cap());
        let text = pattern(200, 1);
        a.qp.post_send(1).write_inline(&text, b.mr.far(0, 200)).post().unwrap();
        a.succeeds(1);
        same("the target", &b.bytes(0, 200), &text);
    }

    fn excess_inline_data_fails_the_post(f) [Inline] {
        let (mut a, b) = inline_pair(f);
        let text = vec![1; a.qp.cap().max_inline_data as usize + 1];
        refused(a.qp.post_send(1).write_inline(&text, b.mr.far(0, 1)).post(), Errno::EINVAL);
        a.nothing_completes();
        a.qp.post_send(2).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.succeeds(2);
    }

    fn no_bytes_go_inline_too(f) [Inline] {
        let (mut a, b) = inline_pair(f);
        a.qp.post_send(1).write_inline(&[], b.mr.far(0, 0)).post().unwrap();
        a.succeeds(1);
    }

    fn excess_max_inline_data_fails_creation(f) [Inline] {
        let a = End::new(&f.a);
        let mut init = gaudi_verbs::QpInit::new(&a.cq);
        init.max_inline_data = 1 << 20;
        refused(a.pd.create_qp(&init), Errno::EINVAL);
    }
}
