//! What every connection does.

use std::time::Duration;

use gaudi_seam::{Errno, ErrorKind};
use gaudi_verbs::{MrAddr, RemoteAddr, Rkey, WcOpcode, WorkCompletion};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::bench::*;
use crate::suite::cases;

/// Offsets and lengths around the places where things are cut: bytes, words, packets, pages.
const ODD: [(u64, u32); 10] = [
    (0, 1),
    (1, 1),
    (7, 9),
    (1023, 2),
    (1, 1024),
    (4095, 2),
    (4096, 4096),
    (123, 5001),
    (8191, 12_289),
    (3, 65_533),
];

cases! {
    "operations";

    fn write_copies_host_memory_to_host_memory(f) {
        let (mut a, b) = pair(f);
        let text = pattern(70_001, 1);
        a.put(5, &text);
        a.qp.post_send(1).write(&[a.mr.part(5, 70_001)], b.mr.far(77, 70_001)).post().unwrap();
        a.succeeds(1);
        same("the target", &b.bytes(77, 70_001), &text);
    }

    fn read_fetches_host_memory_exactly(f) {
        let (mut a, b) = pair(f);
        let text = pattern(70_001, 2);
        b.put(9, &text);
        a.qp.post_send(1).read(&[a.mr.part(3, 70_001)], b.mr.far(9, 70_001)).post().unwrap();
        a.succeeds(1);
        same("the target", &a.bytes(3, 70_001), &text);
    }

    fn write_copies_host_memory_to_dma_buf(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let (memory, mr) = b.device(f, FULL);
        let text = pattern(100_001, 3);
        a.put(1, &text);
        let to = mr.remote().at(4097, 100_001).unwrap();
        a.qp.post_send(1).write(&[a.mr.part(1, 100_001)], to).post().unwrap();
        a.succeeds(1);
        same("the dma-buf", &bytes_of(&memory.view, 4097, 100_001), &text);
    }

    fn write_copies_dma_buf_to_host_memory(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let (memory, mr) = a.device(f, FULL);
        let text = pattern(50_000, 4);
        memory.view.write(333, &text).unwrap();
        a.qp.post_send(1).write(&[mr.sge(333, 50_000).unwrap()], b.mr.far(2, 50_000)).post().unwrap();
        a.succeeds(1);
        same("the target", &b.bytes(2, 50_000), &text);
    }

    fn write_copies_dma_buf_to_dma_buf(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let ((here, from), (there, to)) = (a.device(f, FULL), b.device(f, FULL));
        let text = pattern(DEVICE as usize, 5);
        here.view.write(0, &text).unwrap();
        let all = from.sge(0, DEVICE as u32).unwrap();
        a.qp.post_send(1).write(&[all], to.remote().at(0, DEVICE).unwrap()).post().unwrap();
        a.succeeds(1);
        same("the dma-buf", &bytes_of(&there.view, 0, DEVICE as usize), &text);
    }

    fn read_copies_dma_buf_to_dma_buf(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let ((here, to), (there, from)) = (a.device(f, FULL), b.device(f, FULL));
        let text = pattern(30_001, 6);
        there.view.write(17, &text).unwrap();
        let into = to.sge(12_345, 30_001).unwrap();
        a.qp.post_send(1).read(&[into], from.remote().at(17, 30_001).unwrap()).post().unwrap();
        a.succeeds(1);
        same("the dma-buf", &bytes_of(&here.view, 12_345, 30_001), &text);
    }

    fn a_send_arrives_in_a_dma_buf(f) [DmaBuf] {
        let (mut a, mut b) = pair(f);
        let (memory, mr) = b.device(f, FULL);
        let text = pattern(9000, 7);
        a.put(0, &text);
        b.qp.post_recv(1).post(&[mr.sge(100, 9000).unwrap()]).unwrap();
        a.qp.post_send(2).send(&[a.mr.part(0, 9000)]).post().unwrap();
        b.succeeds(1);
        same("the dma-buf", &bytes_of(&memory.view, 100, 9000), &text);
    }

    fn odd_ranges_are_written_exactly(f) {
        let (mut a, b) = pair(f);
        let text = pattern(80_000, 8);
        a.put(0, &text);
        for (offset, len) in ODD {
            b.host.fill(0, 90_000, 0).unwrap();
            a.qp.post_send(1).write(&[a.mr.part(offset, len)], b.mr.far(offset + 1, len.into())).post().unwrap();
            a.succeeds(1);
            let mut expected = vec![0; 90_000];
            let from = offset as usize;
            expected[from + 1..from + 1 + len as usize].copy_from_slice(&text[from..from + len as usize]);
            same("all around the range", &b.bytes(0, 90_000), &expected);
        }
    }

    fn odd_dma_buf_ranges_are_written_exactly(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let (memory, mr) = b.device(f, FULL);
        let text = pattern(80_000, 9);
        a.put(0, &text);
        for (offset, len) in ODD {
            memory.view.fill(0, 90_000, 0).unwrap();
            let to = mr.remote().at(offset + 1, len.into()).unwrap();
            a.qp.post_send(1).write(&[a.mr.part(offset, len)], to).post().unwrap();
            a.succeeds(1);
            let mut expected = vec![0; 90_000];
            let from = offset as usize;
            expected[from + 1..from + 1 + len as usize].copy_from_slice(&text[from..from + len as usize]);
            same("all around the range", &bytes_of(&memory.view, 0, 90_000), &expected);
        }
    }

    fn odd_ranges_are_read_exactly(f) {
        let (mut a, b) = pair(f);
        let text = pattern(80_000, 10);
        b.put(0, &text);
        for (offset, len) in ODD {
            a.host.fill(0, 90_000, 0).unwrap();
            a.qp.post_send(1).read(&[a.mr.part(offset + 2, len)], b.mr.far(offset, len.into())).post().unwrap();
            a.succeeds(1);
            let mut expected = vec![0; 90_000];
            let from = offset as usize;
            expected[from + 2..from + 2 + len as usize].copy_from_slice(&text[from..from + len as usize]);
            same("all around the range", &a.bytes(0, 90_000), &expected);
        }
    }

    fn a_write_gathers_its_elements_in_order(f) {
        let (mut a, b) = pair(f);
        let text = pattern(30_000, 11);
        a.put(0, &text);
        let parts = [a.mr.part(20_000, 3001), a.mr.part(0, 0), a.mr.part(5, 1), a.mr.part(9000, 4095)];
        a.qp.post_send(1).write(&parts, b.mr.far(1, 7097)).post().unwrap();
        a.succeeds(1);
        let expected = [&text[20_000..23_001], &text[5..6], &text[9000..13_095]].concat();
        same("the elements", &b.bytes(1, 7097), &expected);
    }

    fn read_scatters_over_sges_in_order(f) {
        let (mut a, b) = pair(f);
        let text = pattern(5000, 12);
        b.put(0, &text);
        let parts = [a.mr.part(40_000, 1999), a.mr.part(10, 2), a.mr.part(20_000, 2999)];
        a.qp.post_send(1).read(&parts, b.mr.far(0, 5000)).post().unwrap();
        a.succeeds(1);
        same("the first", &a.bytes(40_000, 1999), &text[..1999]);
        same("the second", &a.bytes(10, 2), &text[1999..2001]);
        same("the third", &a.bytes(20_000, 2999), &text[2001..]);
    }

    fn receive_scatters_over_sges_in_order(f) {
        let (mut a, mut b) = pair(f);
        let text = pattern(5000, 13);
        a.put(0, &text);
        b.qp.post_recv(1).post(&[b.mr.part(9000, 4097), b.mr.part(0, 2000)]).unwrap();
        a.qp.post_send(2).send(&[a.mr.part(0, 5000)]).post().unwrap();
        assert_eq!(b.succeeds(1).byte_len, 5000);
        same("the first", &b.bytes(9000, 4097), &text[..4097]);
        same("the second", &b.bytes(0, 903), &text[4097..]);
    }

    fn zero_length_write_needs_no_key(f) {
        let (mut a, _b) = pair(f);
        let nowhere = RemoteAddr { addr: MrAddr(0), rkey: Rkey(0) };
        a.qp.post_send(1).write(&[], nowhere).post().unwrap();
        a.succeeds(1);
    }

    fn zero_length_read_needs_no_key(f) {
        let (mut a, _b) = pair(f);
        let nowhere = RemoteAddr { addr: MrAddr(0), rkey: Rkey(0) };
        a.qp.post_send(1).read(&[], nowhere).post().unwrap();
        a.succeeds(1);
    }

    fn zero_length_send_consumes_receive(f) {
        let (mut a, mut b) = pair(f);
        b.qp.post_recv(1).post(&[b.mr.part(0, 16)]).unwrap();
        a.qp.post_send(2).send(&[]).post().unwrap();
        assert_eq!(b.succeeds(1).byte_len, 0);
        a.succeeds(2);
    }

    fn receive_reports_length_and_leaves_rest(f) {
        let (mut a, mut b) = pair(f);
        a.put(0, b"message");
        b.put(0, &[0x55; 64]);
        b.qp.post_recv(1).post(&[b.mr.part(0, 64)]).unwrap();
        a.qp.post_send(2).send(&[a.mr.part(0, 7)]).post().unwrap();
        let wc = b.succeeds(1);
        assert_eq!((wc.byte_len, wc.opcode, wc.imm_data), (7, WcOpcode::RECV, None));
        same("the receive", &b.bytes(0, 64), &[b"message".as_slice(), &[0x55; 57]].concat());
    }

    fn a_send_with_immediate_brings_its_number(f) {
        let (mut a, mut b) = pair(f);
        b.qp.post_recv(1).post(&[b.mr.part(0, 64)]).unwrap();
        a.qp.post_send(2).send_imm(&[a.mr.part(0, 7)], 0xdead_beef).post().unwrap();
        let wc = b.succeeds(1);
        assert_eq!((wc.imm_data, wc.opcode), (Some(0xdead_beef), WcOpcode::RECV));
    }

    fn write_with_imm_writes_and_consumes_receive(f) {
        let (mut a, mut b) = pair(f);
        let text = pattern(5001, 14);
        a.put(0, &text);
        b.qp.post_recv(1).post(&[]).unwrap();
        a.qp.post_send(2).write_imm(&[a.mr.part(0, 5001)], b.mr.far(3, 5001), 77).post().unwrap();
        let wc = b.succeeds(1);
        assert_eq!(wc.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
        assert_eq!((wc.imm_data, wc.byte_len), (Some(77), 5001));
        same("the target", &b.bytes(3, 5001), &text);
    }

    fn zero_length_write_with_imm_notifies(f) {
        let (mut a, mut b) = pair(f);
        b.qp.post_recv(1).post(&[]).unwrap();
        a.qp.post_send(2).write_imm(&[], b.mr.far(0, 0), 5).post().unwrap();
        let wc = b.succeeds(1);
        assert_eq!((wc.imm_data, wc.byte_len), (Some(5), 0));
    }

    fn a_message_of_many_packets_arrives_whole(f) {
        let (mut a, mut b) = pair(f);
        let text = pattern(HOST, 15);
        a.put(0, &text);
        b.qp.post_recv(1).post(&[b.mr.part(0, HOST as u32)]).unwrap();
        a.qp.post_send(2).send(&[a.mr.part(0, HOST as u32)]).post().unwrap();
        assert_eq!(b.succeeds(1).byte_len, HOST as u32);
        a.succeeds(2);
        same("the message", &b.bytes(0, HOST), &text);
    }

    fn earlier_writes_are_visible_at_receive(f) {
        let (mut a, mut b) = pair(f);
        let text = pattern(64 * 1024, 16);
        a.put(0, &text);
        b.qp.post_recv(1).post(&[]).unwrap();
        for part in 0..16 {
            let local = [a.mr.part(part * 4096, 4096)];
            a.qp.post_send(part).signaled(false).write(&local, b.mr.far(part * 4096, 4096)).post().unwrap();
        }
        a.qp.post_send(99).send(&[]).post().unwrap();
        b.succeeds(1);
        same("all sixteen", &b.bytes(0, text.len()), &text);
        a.succeeds(99);
    }

    fn fenced_write_follows_earlier_read(f) {
        let (mut a, b) = pair(f);
        let old = pattern(60_000, 17);
        b.put(0, &old);
        a.put(100_000, &pattern(60_000, 18));
        a.qp.post_send(1).read(&[a.mr.part(0, 60_000)], b.mr.far(0, 60_000)).post().unwrap();
        let new = [a.mr.part(100_000, 60_000)];
        a.qp.post_send(2).fence(true).write(&new, b.mr.far(0, 60_000)).post().unwrap();
        a.succeeds(1);
        a.succeeds(2);
        same("what was read", &a.bytes(0, 60_000), &old);
        same("what is there now", &b.bytes(0, 60_000), &a.bytes(100_000, 60_000));
    }

    fn only_signaled_requests_complete_visibly(f) {
        let (mut a, b) = pair(f);
        for wr_id in 0..5 {
            a.qp.post_send(wr_id).signaled(wr_id == 4).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        }
        a.succeeds(4);
        a.nothing_completes();
    }

    fn sq_sig_all_completes_every_request(f) {
        let (mut a, b) = pair_with(f, |init| init.sq_sig_all = true);
        for wr_id in 0..3 {
            a.qp.post_send(wr_id).signaled(false).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        }
        for wr_id in 0..3 {
            a.succeeds(wr_id);
        }
    }

    fn signaled_completion_frees_unsignaled_slots(f) {
        let (mut a, b) = pair_with(f, |init| init.max_send_wr = 8);
        for round in 0..40 {
            for wr_id in 0..8 {
                let signaled = wr_id == 7;
                a.qp.post_send(round * 8 + wr_id)
                    .signaled(signaled)
                    .write(&[a.mr.part(0, 8)], b.mr.far(0, 8))
                    .post()
                    .unwrap();
            }
            a.succeeds(round * 8 + 7);
        }
    }

    fn completions_name_request_qp_and_opcode(f) {
        let (mut a, mut b) = pair(f);
        b.qp.post_recv(u64::MAX).post(&[b.mr.part(0, 64)]).unwrap();
        a.qp.post_send(0).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.qp.post_send(1 << 63).read(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.qp.post_send(7).send(&[a.mr.part(0, 8)]).post().unwrap();
        for (wr_id, opcode) in [(0, WcOpcode::RDMA_WRITE), (1 << 63, WcOpcode::RDMA_READ), (7, WcOpcode::SEND)] {
            let wc = a.succeeds(wr_id);
            assert_eq!((wc.opcode, wc.qp_num), (opcode, a.qp.qpn()));
        }
        assert_eq!(b.succeeds(u64::MAX).qp_num, b.qp.qpn());
    }

    fn poll_fills_its_array_in_order(f) {
        let (mut a, b) = pair(f);
        for wr_id in 0..6 {
            a.qp.post_send(wr_id).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        }
        let mut seen = Vec::new();
        let mut wc = [WorkCompletion::EMPTY; 4];
        while seen.len() < 6 {
            let count = a.cq.wait(&mut wc, MAX_WAIT).unwrap();
            assert!(count <= 4);
            seen.extend(wc[..count].iter().map(|wc| wc.wr_id));
        }
        assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
        assert_eq!(a.cq.poll(&mut []).unwrap(), 0);
    }

    fn waiting_for_nothing_times_out(f) {
        let (a, _b) = pair(f);
        let mut wc = [WorkCompletion::EMPTY];
        let error = a.cq.wait(&mut wc, Duration::from_millis(5)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    fn event_comes_once_per_request(f) {
        let (mut a, b) = pair(f);
        a.qp.post_send(1).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.succeeds(1);
        a.cq.ack_event().unwrap();
        a.cq.req_notify(false).unwrap();
        assert!(!readable(&a, 0), "nothing has completed yet");
        a.qp.post_send(2).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        assert!(readable(&a, 60_000), "a completion event");
        a.cq.ack_event().unwrap();
        a.qp.post_send(3).write(&[a.mr.part(0, 8)], b.mr.far(0, 8)).post().unwrap();
        a.succeeds(2);
        a.succeeds(3);
    }

    fn solicited_wait_ignores_other_completions(f) {
        let (mut a, mut b) = pair(f);
        for wr_id in 0..2 {
            b.qp.post_recv(wr_id).post(&[b.mr.part(0, 8)]).unwrap();
        }
        b.cq.req_notify(true).unwrap();
        a.qp.post_send(1).send(&[a.mr.part(0, 8)]).post().unwrap();
        a.succeeds(1);
        assert!(!readable(&b, 30), "only a solicited completion was asked for");
        a.qp.post_send(2).solicited(true).send(&[a.mr.part(0, 8)]).post().unwrap();
        assert!(readable(&b, 60_000), "a solicited completion event");
        b.succeeds(0);
        b.succeeds(1);
    }

    fn flush_is_a_read_behind_writes(f) {
        let (mut a, b) = pair(f);
        let text = pattern(5000, 19);
        a.put(0, &text);
        a.qp.post_send(1).signaled(false).write(&[a.mr.part(0, 5000)], b.mr.far(0, 5000)).post().unwrap();
        let scratch = a.mr.part(8000, 1);
        a.qp.post_send(2).flush_remote(&scratch, b.mr.far(4999, 1)).post().unwrap();
        assert_eq!(a.succeeds(2).opcode, WcOpcode::RDMA_READ);
        same("what was written", &b.bytes(0, 5000), &text);
        same("what the flush read", &a.bytes(8000, 1), &text[4999..]);
    }

    fn empty_flush_is_rejected(f) {
        let (mut a, b) = pair(f);
        for len in [0, 9] {
            let scratch = a.mr.part(0, len);
            refused(a.qp.post_send(1).flush_remote(&scratch, b.mr.far(0, 16)).post(), Errno::EINVAL);
        }
        a.nothing_completes();
    }

    fn both_ends_write_at_once(f) {
        let (mut a, mut b) = pair(f);
        let (left, right) = (pattern(300_000, 20), pattern(300_000, 21));
        a.put(0, &left);
        b.put(0, &right);
        a.qp.post_send(1).write(&[a.mr.part(0, 300_000)], b.mr.far(500_000, 300_000)).post().unwrap();
        b.qp.post_send(2).write(&[b.mr.part(0, 300_000)], a.mr.far(500_000, 300_000)).post().unwrap();
        a.succeeds(1);
        b.succeeds(2);
        same("there", &b.bytes(500_000, 300_000), &left);
        same("here", &a.bytes(500_000, 300_000), &right);
    }
}

fn readable(end: &End, millis: u16) -> bool {
    let mut fds = [PollFd::new(end.cq.event_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(millis)).unwrap() == 1
}
