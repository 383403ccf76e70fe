//! Host memory over soft-RoCE through libibverbs: every operation, byte for byte.

#[macro_use]
mod ibv;

use gaudi_lab::nic::pattern;
use gaudi_sys::RawMapping;
use gaudi_verbs::provider::Device;
use gaudi_verbs::{MrAddr, Payload, RemoteAddr, Rkey, SendOp, WcOpcode, WcStatus};

use ibv::{ALL, Host, LEN, Nic, memories, request, succeeded, word};

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn write_changes_exactly_its_bytes() {
    let nic = nic!("write_changes_exactly_its_bytes");
    let (from, to) = memories(&nic, 1);
    let (here, _there) = nic.pair();
    let done = here.run(&[from.sge(5, 30_001)], SendOp::Write(to.remote(11)));
    succeeded(&done, "a write");
    assert_eq!(done.opcode, WcOpcode::RDMA_WRITE, "the completion has its opcode");
    assert_eq!(done.qp_num, here.queue.qpn(), "and of which queue pair");
    let mut wanted = vec![0; LEN];
    wanted[11..11 + 30_001].copy_from_slice(&pattern(1, LEN)[5..5 + 30_001]);
    assert!(to.bytes(0, LEN) == wanted, "each byte is in its place");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_write_gathers_its_elements_in_order() {
    let nic = nic!("a_write_gathers_its_elements_in_order");
    let (from, to) = memories(&nic, 2);
    let (here, _there) = nic.pair();
    let parts = [(9000, 3), (1, 4097), (60_000, 1), (77, 2000)];
    let sges = parts.map(|(at, len)| from.sge(at, len));
    succeeded(
        &here.run(&sges, SendOp::Write(to.remote(3))),
        "a write of four parts",
    );
    let all = pattern(2, LEN);
    let wanted: Vec<u8> = parts
        .iter()
        .flat_map(|(at, len)| all[*at..at + len].to_vec())
        .collect();
    assert!(to.bytes(3, wanted.len()) == wanted, "one after the other");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_read_brings_the_peers_bytes() {
    let nic = nic!("a_read_brings_the_peers_bytes");
    let (from, to) = memories(&nic, 3);
    let (here, _there) = nic.pair();
    let done = here.run(&[to.sge(1, 50_000)], SendOp::Read(from.remote(4099)));
    succeeded(&done, "a read");
    assert_eq!(done.opcode, WcOpcode::RDMA_READ, "the completion has its opcode");
    assert!(
        to.bytes(1, 50_000) == pattern(3, LEN)[4099..4099 + 50_000],
        "each byte"
    );
    assert_eq!(
        (to.bytes(0, 1), to.bytes(50_001, 1)),
        (vec![0], vec![0]),
        "and no other"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_read_scatters_over_its_elements() {
    let nic = nic!("a_read_scatters_over_its_elements");
    let (from, to) = memories(&nic, 4);
    let (here, _there) = nic.pair();
    let sges = [to.sge(40_000, 5), to.sge(0, 5000), to.sge(20_001, 333)];
    succeeded(
        &here.run(&sges, SendOp::Read(from.remote(2))),
        "a read into three parts",
    );
    let all = &pattern(4, LEN)[2..];
    assert!(to.bytes(40_000, 5) == all[..5], "the first part");
    assert!(to.bytes(0, 5000) == all[5..5005], "the second");
    assert!(to.bytes(20_001, 333) == all[5005..5338], "the third");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_message_of_four_mebibytes_arrives_whole() {
    let nic = nic!("a_message_of_four_mebibytes_arrives_whole");
    const LONG: usize = 4 << 20;
    let (from, to) = (nic.host(LONG), nic.host(LONG));
    from.pattern(5);
    let (here, _there) = nic.pair();
    succeeded(
        &here.run(&[from.sge(0, LONG)], SendOp::Write(to.remote(0))),
        "a long write",
    );
    assert!(to.bytes(0, LONG) == pattern(5, LONG), "4096 packets in order");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn zero_length_write_completes() {
    let nic = nic!("zero_length_write_completes");
    let (from, to) = memories(&nic, 6);
    let (here, _there) = nic.pair();
    succeeded(&here.run(&[], SendOp::Write(to.remote(0))), "no element");
    succeeded(
        &here.run(&[from.sge(0, 0)], SendOp::Write(to.remote(0))),
        "an empty one",
    );
    assert!(
        to.bytes(0, LEN).iter().all(|byte| *byte == 0),
        "nothing is written"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn write_with_imm_consumes_receive() {
    let nic = nic!("write_with_imm_consumes_receive");
    let (from, to) = memories(&nic, 7);
    let (here, there) = nic.pair();
    there.receive(70, &[]);
    let number = 0x0102_0304;
    succeeded(
        &here.run(&[from.sge(0, 3000)], SendOp::WriteImm(to.remote(9), number)),
        "a write with a number",
    );
    let notified = there.wait();
    succeeded(&notified, "the peer completes");
    assert_eq!(
        (
            notified.wr_id,
            notified.opcode,
            notified.imm_data,
            notified.byte_len
        ),
        (70, WcOpcode::RECV_RDMA_WITH_IMM, Some(number), 3000),
        "receive, kind, number in the order of the sender, and length"
    );
    assert!(to.bytes(9, 3000) == pattern(7, 3000), "and the bytes are there");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_send_fills_the_oldest_receive() {
    let nic = nic!("a_send_fills_the_oldest_receive");
    let (from, to) = memories(&nic, 8);
    let (here, there) = nic.pair();
    there.receive(1, &[to.sge(100, 5000)]);
    there.receive(2, &[to.sge(10_000, 5000)]);
    succeeded(&here.run(&[from.sge(0, 4097)], SendOp::Send), "a send");
    let got = there.wait();
    assert_eq!(
        (got.wr_id, got.opcode, got.byte_len, got.imm_data),
        (1, WcOpcode::RECV, 4097, None),
        "the first receive, and how much came"
    );
    assert_eq!(
        (got.src_qp, got.grh, got.invalidated_rkey),
        (None, false, None),
        "a connection's receive has no header and no sender's number"
    );
    assert!(to.bytes(100, 4097) == pattern(8, 4097), "the bytes");
    assert!(
        to.bytes(10_000, 5000).iter().all(|byte| *byte == 0),
        "the second is untouched"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn send_scatters_over_receive_sges() {
    let nic = nic!("send_scatters_over_receive_sges");
    let (from, to) = memories(&nic, 9);
    let (here, there) = nic.pair();
    there.receive(1, &[to.sge(5, 10), to.sge(3000, 2000), to.sge(9000, 4000)]);
    succeeded(&here.run(&[from.sge(0, 2500)], SendOp::Send), "a send");
    assert_eq!(there.wait().byte_len, 2500);
    let all = pattern(9, 2500);
    assert!(
        to.bytes(5, 10) == all[..10] && to.bytes(3000, 2000) == all[10..2010],
        "two full parts"
    );
    assert!(
        to.bytes(9000, 490) == all[2010..] && to.bytes(9490, 1) == [0],
        "and the rest"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn send_with_imm_delivers_it() {
    let nic = nic!("send_with_imm_delivers_it");
    let (from, to) = memories(&nic, 10);
    let (here, there) = nic.pair();
    there.receive(1, &[to.sge(0, 100)]);
    succeeded(
        &here.run(&[from.sge(0, 8)], SendOp::SendImm(0xfeed_f00d)),
        "a send",
    );
    let got = there.wait();
    assert_eq!((got.opcode, got.imm_data), (WcOpcode::RECV, Some(0xfeed_f00d)));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn zero_length_send_consumes_receive() {
    let nic = nic!("zero_length_send_consumes_receive");
    let (here, there) = nic.pair();
    there.receive(4, &[]);
    succeeded(&here.run(&[], SendOp::Send), "a send");
    let got = there.wait();
    assert_eq!((got.wr_id, got.byte_len, got.status), (4, 0, WcStatus::SUCCESS));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn send_waits_for_receive_with_rnr_retry() {
    let nic = nic!("send_waits_for_receive_with_rnr_retry");
    let (from, to) = memories(&nic, 13);
    let (here, there) = nic.pair();
    here.post(1, &[from.sge(0, 64)], SendOp::Send).expect("room");
    std::thread::sleep(std::time::Duration::from_millis(50));
    there.receive(2, &[to.sge(0, 64)]);
    succeeded(&here.wait(), "it was asked again");
    assert!(to.bytes(0, 64) == pattern(13, 64), "and came");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fetch_and_add_returns_old_value() {
    let nic = nic!("fetch_and_add_returns_old_value");
    let (old, counter) = (nic.host(4096), nic.host(4096));
    counter.memory.write(64, &41_u64.to_ne_bytes()).expect("inside");
    let (here, _there) = nic.pair();
    let add = |add| SendOp::FetchAdd {
        to: counter.remote(64),
        add,
    };
    let done = here.run(&[old.sge(0, 8)], add(1));
    succeeded(&done, "an addition");
    assert_eq!(done.opcode, WcOpcode::FETCH_ADD);
    assert_eq!((word(&old, 0), word(&counter, 64)), (41, 42), "old and new");
    succeeded(&here.run(&[old.sge(8, 8)], add(u64::MAX)), "a sum that wraps");
    assert_eq!((word(&old, 8), word(&counter, 64)), (42, 41), "less one");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn compare_and_swap_needs_equal_value() {
    let nic = nic!("compare_and_swap_needs_equal_value");
    let (old, cell) = (nic.host(4096), nic.host(4096));
    cell.memory.write(8, &7_u64.to_ne_bytes()).expect("inside");
    let (here, _there) = nic.pair();
    let swap = |compare, swap| SendOp::CompareSwap {
        to: cell.remote(8),
        compare,
        swap,
    };
    let done = here.run(&[old.sge(0, 8)], swap(7, 9));
    succeeded(&done, "an equal one");
    assert_eq!(done.opcode, WcOpcode::COMP_SWAP);
    assert_eq!((word(&old, 0), word(&cell, 8)), (7, 9), "it is swapped");
    succeeded(&here.run(&[old.sge(0, 8)], swap(7, 11)), "one that differs");
    assert_eq!(
        (word(&old, 0), word(&cell, 8)),
        (9, 9),
        "it is unchanged and returned"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn inline_data_is_free_after_post() {
    let nic = nic!("inline_data_is_free_after_post");
    let to = nic.host(4096);
    let (here, _there) = nic.pair();
    let mut bytes = *b"these bytes have no region";
    for (turn, start) in [100, 200].into_iter().enumerate() {
        here.queue
            .post_send(&request(
                turn as u64,
                Payload::Inline(&bytes),
                SendOp::Write(to.remote(start)),
            ))
            .expect("room");
        bytes.fill(b'x');
    }
    for _ in 0..2 {
        succeeded(&here.wait(), "an inline write");
    }
    assert_eq!(
        to.bytes(100, 26),
        b"these bytes have no region",
        "as they were posted"
    );
    assert_eq!(to.bytes(200, 26), [b'x'; 26], "and as they were later");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn zero_length_inline_send_completes() {
    let nic = nic!("zero_length_inline_send_completes");
    let (here, there) = nic.pair();
    there.receive(1, &[]);
    here.queue
        .post_send(&request(2, Payload::Inline(&[]), SendOp::Send))
        .expect("room");
    succeeded(&here.wait(), "an inline send of nothing");
    assert_eq!(there.wait().byte_len, 0);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn only_what_asks_for_it_completes_visibly() {
    let nic = nic!("only_what_asks_for_it_completes_visibly");
    let (from, to) = memories(&nic, 14);
    let (here, _there) = nic.pair();
    let sges = [from.sge(0, 16)];
    for wr_id in 0..5 {
        let mut silent = request(wr_id, Payload::Sges(&sges), SendOp::Write(to.remote(0)));
        silent.signaled = wr_id == 4;
        here.queue.post_send(&silent).expect("room");
    }
    assert_eq!(here.wait().wr_id, 4, "the only one to be seen");
    let mut none = [gaudi_verbs::WorkCompletion::EMPTY; 4];
    assert_eq!(here.cq.poll(&mut none).expect("whole"), 0, "and no other");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn region_addresses_start_at_given_iova() {
    let nic = nic!("region_addresses_start_at_given_iova");
    let from = nic.host(LEN);
    from.pattern(23);
    for iova in [0x1001_0000_0000_0000_u64, 0x123] {
        let memory = RawMapping::anonymous(LEN, true).expect("memory");
        let at = ibv::address_of(&memory);
        let at = gaudi_seam::HostVa(at.0 + iova % 4096);
        let len = LEN as u64 - 4096;
        let mr = nic.promise(at, len, MrAddr(iova), ALL);
        let to = RemoteAddr {
            addr: MrAddr(iova + 7),
            rkey: mr.rkey,
        };
        let done = nic.run(&[from.sge(0, 9000)], SendOp::Write(to));
        succeeded(&done, "a write by the region's own addresses");
        let seen = ibv::bytes(&memory, (iova % 4096) as usize + 7, 9000);
        assert!(seen == pattern(23, 9000), "counted from {iova:#x}");
        assert_eq!(
            write_to(&nic, &from, at.0, mr.rkey, 8),
            WcStatus::REM_ACCESS_ERR,
            "the memory's own address is none of the region's"
        );
        nic.device.dereg_mr(mr.handle).expect("it ends before its memory");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fenced_write_waits_for_earlier_reads() {
    let nic = nic!("fenced_write_waits_for_earlier_reads");
    let (peer, here_memory) = (nic.host(LEN), nic.host(LEN));
    let (here, _there) = nic.pair();
    for turn in 1..6 {
        peer.pattern(turn);
        here_memory.clear();
        here.post(1, &[here_memory.sge(0, LEN)], SendOp::Read(peer.remote(0)))
            .expect("room");
        // What the read brings is sent back to another place: without the fence it could be the
        // zeroes of before.
        let sges = [here_memory.sge(0, LEN / 2)];
        let mut write = request(2, Payload::Sges(&sges), SendOp::Write(peer.remote(LEN / 2)));
        write.fence = true;
        here.queue.post_send(&write).expect("room");
        assert_eq!((here.wait().wr_id, here.wait().wr_id), (1, 2), "in order");
        assert!(
            peer.bytes(LEN / 2, LEN / 2) == pattern(turn, LEN / 2),
            "turn {turn}"
        );
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn send_follows_earlier_writes() {
    let nic = nic!("send_follows_earlier_writes");
    let (from, to) = memories(&nic, 24);
    let (here, there) = nic.pair();
    there.receive(1, &[]);
    for half in 0..2 {
        let sges = [from.sge(half * LEN / 2, LEN / 2)];
        let mut write = request(
            half as u64,
            Payload::Sges(&sges),
            SendOp::Write(to.remote(half * LEN / 2)),
        );
        write.signaled = false;
        here.queue.post_send(&write).expect("room");
    }
    here.post(9, &[], SendOp::Send).expect("room");
    succeeded(&there.wait(), "the send");
    assert!(
        to.bytes(0, LEN) == pattern(24, LEN),
        "all writes are there when it is seen"
    );
    succeeded(&here.wait(), "and the sender knows");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_threads_share_one_queue_pair() {
    let nic = nic!("two_threads_share_one_queue_pair");
    const EACH: u64 = 50;
    let (from, to) = memories(&nic, 26);
    let (a, b) = nic.pair();
    std::thread::scope(|scope| {
        for (one, turn) in [(&a, 0), (&b, 1)] {
            let (from, to) = (&from, &to);
            scope.spawn(move || {
                for wr_id in 0..EACH {
                    let at = (turn * EACH + wr_id) as usize * 64;
                    let done = {
                        one.post(wr_id, &[from.sge(at, 64)], SendOp::Write(to.remote(at)))
                            .expect("room");
                        one.wait()
                    };
                    assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::SUCCESS));
                }
            });
        }
    });
    let all = 2 * EACH as usize * 64;
    assert!(to.bytes(0, all) == pattern(26, LEN)[..all], "every write arrived");
}
/// A write of some bytes to a place, on connections of its own.
fn write_to(nic: &Nic, from: &Host, addr: u64, rkey: Rkey, len: usize) -> WcStatus {
    let to = RemoteAddr {
        addr: MrAddr(addr),
        rkey,
    };
    nic.run(&[from.sge(0, len)], SendOp::Write(to)).status
}
