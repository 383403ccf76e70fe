//! Every operation, byte for byte.

use std::time::Instant;

use gaudi_seam::ErrorKind;
use gaudi_softnic::{MAX_FRAME_BYTES, SoftNicConfig};
use gaudi_verbs::{MrState, PortState, Sge, WcOpcode, WcStatus};
use proptest::prelude::*;

use crate::node::*;

#[test]
fn write_reaches_peers_device_memory() {
    let (mut a, b) = pair();
    let sent = pattern(1 << 20, 1);
    a.host.write(13, &sent).unwrap();
    let local = a.host_mr.sge(13, 1 << 20).unwrap();
    let to = b.device_mr.remote().at(4093, 1 << 20).unwrap();
    a.qp.post_send(7).write(&[local], to).post().unwrap();
    let wc = a.completes(7, WcStatus::SUCCESS);
    assert_eq!(wc.opcode, WcOpcode::RDMA_WRITE);
    assert_eq!(bytes_of(&b.device, 4093, 1 << 20), sent, "the bytes arrived");
    assert_eq!(bytes_of(&b.device, 4092, 1), [0], "nothing before them");
    assert_eq!(
        bytes_of(&b.device, 4093 + (1 << 20), 1),
        [0],
        "nothing after them"
    );
    b.nothing_completes();
    let (tx, rx) = (a.nic.counters().tx, b.nic.counters().rx);
    assert_eq!((tx.write.messages, tx.write.bytes), (1, 1 << 20));
    assert_eq!(tx.write, rx.write, "both ends count the same");
}

#[test]
fn read_fetches_peers_device_memory() {
    let (mut a, b) = pair();
    let there = pattern(1_000_001, 2);
    b.device.write(1, &there).unwrap();
    let local = a.device_mr.sge(3, 1_000_001).unwrap();
    let from = b.device_mr.remote().at(1, 1_000_001).unwrap();
    a.qp.post_send(8).read(&[local], from).post().unwrap();
    let wc = a.completes(8, WcStatus::SUCCESS);
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RDMA_READ, 1_000_001));
    assert_eq!(bytes_of(&a.device, 3, 1_000_001), there);
    assert_eq!(b.nic.counters().tx.read.bytes, 1_000_001);
}

#[test]
fn sends_complete_in_order_at_receiver() {
    let (mut a, mut b) = pair();
    for wr_id in 0..4 {
        let into = b.host_mr.sge(wr_id * 4096, 4096).unwrap();
        b.qp.post_recv(wr_id).post(&[into]).unwrap();
    }
    a.host.write(0, b"hello").unwrap();
    let five = [a.host_mr.sge(0, 5).unwrap()];
    let to = b.device_mr.remote().at(100, 5).unwrap();
    a.qp.post_send(1).send(&five).post().unwrap();
    a.qp.post_send(2).send_imm(&five, 0xfeed).post().unwrap();
    a.qp.post_send(3).write_imm(&five, to, 0xbeef).post().unwrap();
    a.qp.post_send(4).send(&[]).post().unwrap();
    for wr_id in 1..=4 {
        a.completes(wr_id, WcStatus::SUCCESS);
    }
    let seen: Vec<_> = (0..4)
        .map(|wr_id| {
            let wc = b.completes(wr_id, WcStatus::SUCCESS);
            (wc.opcode, wc.byte_len, wc.imm_data)
        })
        .collect();
    assert_eq!(
        seen,
        [
            (WcOpcode::RECV, 5, None),
            (WcOpcode::RECV, 5, Some(0xfeed)),
            (WcOpcode::RECV_RDMA_WITH_IMM, 5, Some(0xbeef)),
            (WcOpcode::RECV, 0, None),
        ]
    );
    assert_eq!(bytes_of(&b.host, 4096, 5), b"hello");
    assert_eq!(
        bytes_of(&b.host, 8192, 5),
        [0; 5],
        "a write with immediate leaves the receive's memory alone"
    );
    assert_eq!(bytes_of(&b.device, 100, 5), b"hello");
}

#[test]
fn unsignaled_work_completes_without_cqe() {
    let (mut a, b) = pair();
    let local = [a.host_mr.sge(0, 64).unwrap()];
    let to = b.host_mr.remote().at(0, 64).unwrap();
    a.qp.post_send(1)
        .signaled(false)
        .write(&local, to)
        .post()
        .unwrap();
    a.qp.post_send(2).write(&local, to).post().unwrap();
    a.completes(2, WcStatus::SUCCESS);
    a.nothing_completes();
}

#[test]
fn full_queue_would_block_until_completions() {
    let (mut a, b) = pair();
    let local = [a.host_mr.sge(0, 1 << 20).unwrap()];
    let to = b.host_mr.remote().at(0, 1 << 20).unwrap();
    let mut posted = 0;
    let error = loop {
        match a.qp.post_send(posted).write(&local, to).post() {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        assert!(posted < 10_000, "a queue of 64 must fill");
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_eq!(error.errno(), Some(gaudi_seam::Errno::ENOMEM));
    assert!(
        posted >= 64,
        "the queue has the room that was asked for: {posted}"
    );
    for wr_id in 0..posted {
        a.completes(wr_id, WcStatus::SUCCESS);
    }
    a.qp.post_send(99).write(&local, to).post().unwrap();
    a.completes(99, WcStatus::SUCCESS);
}

#[test]
fn both_ends_transfer_at_once() {
    let (mut a, mut b) = pair();
    let len = 1_500_000;
    let (at_a, at_b) = (a.device_mr.remote(), b.device_mr.remote());
    for round in 0..8 {
        for (from, to) in [(&mut a, at_b), (&mut b, at_a)] {
            let local = [from.host_mr.sge(0, len).unwrap()];
            let other = [from.host_mr.sge(2 << 20, len).unwrap()];
            let remote = to.at(0, len.into()).unwrap();
            from.qp.post_send(round).write(&local, remote).post().unwrap();
            from.qp
                .post_send(round + 100)
                .read(&other, remote)
                .post()
                .unwrap();
        }
    }
    for node in [&a, &b] {
        for round in 0..8 {
            node.completes(round, WcStatus::SUCCESS);
            node.completes(round + 100, WcStatus::SUCCESS);
        }
    }
}

#[test]
fn many_queue_pairs_share_one_cable() {
    let (mut a, mut b) = pair();
    let init = gaudi_verbs::QpInit::new(&a.cq);
    let mut more: Vec<_> = (0..10).map(|_| a.pd.create_qp(&init).unwrap()).collect();
    let init = gaudi_verbs::QpInit::new(&b.cq);
    let mut peers: Vec<_> = (0..10).map(|_| b.pd.create_qp(&init).unwrap()).collect();
    for (ours, theirs) in more.iter_mut().zip(&mut peers) {
        connect(ours, theirs);
    }
    more.push(std::mem::replace(
        &mut a.qp,
        a.pd.create_qp(&gaudi_verbs::QpInit::new(&a.cq)).unwrap(),
    ));
    peers.push(std::mem::replace(
        &mut b.qp,
        b.pd.create_qp(&gaudi_verbs::QpInit::new(&b.cq)).unwrap(),
    ));
    for (index, qp) in (0u64..).zip(&mut more) {
        let value = [index as u8 + 1; 1000];
        a.host.write(index as usize * 1000, &value).unwrap();
        let local = [a.host_mr.sge(index * 1000, 1000).unwrap()];
        let to = b.host_mr.remote().at(index * 1000, 1000).unwrap();
        qp.post_send(index).write(&local, to).post().unwrap();
    }
    let mut done: Vec<_> = more.iter().map(|_| a.completion().wr_id).collect();
    done.sort_unstable();
    assert_eq!(done, (0..11).collect::<Vec<_>>());
    for index in 0..11 {
        assert_eq!(
            bytes_of(&b.host, index * 1000, 1000),
            [index as u8 + 1; 1000],
            "queue pair {index}"
        );
    }
}

#[test]
fn fault_rule_flips_one_wire_bit() {
    let config = SoftNicConfig {
        // Byte 300 000, in the second frame.
        faults: format!("nic.packet:when=2:flip={}", (300_000 - MAX_FRAME_BYTES) * 8 + 3)
            .parse()
            .unwrap(),
        ..SoftNicConfig::default()
    };
    let (mut a, b) = pair_with(config);
    let sent = pattern(500_000, 3);
    a.host.write(0, &sent).unwrap();
    let local = [
        a.host_mr.sge(0, 299_999).unwrap(),
        a.host_mr.sge(299_999, 200_001).unwrap(),
    ];
    let to = b.device_mr.remote().at(0, 500_000).unwrap();
    a.qp.post_send(1).write(&local, to).post().unwrap();
    a.completes(1, WcStatus::SUCCESS);
    let mut wanted = sent.clone();
    wanted[300_000] ^= 8;
    assert!(
        bytes_of(&b.device, 0, 500_000) == wanted,
        "exactly the named bit differs"
    );
    assert!(bytes_of(&a.host, 0, 500_000) == sent, "the source is unchanged");
    a.qp.post_send(2).write(&local, to).post().unwrap();
    a.completes(2, WcStatus::SUCCESS);
    assert!(bytes_of(&b.device, 0, 500_000) == sent, "the rule applies once");
}

#[test]
fn names_say_that_it_is_software() {
    let (a, _b) = pair();
    assert_eq!(a.context.attr().provider, "softnic (software)");
    assert!(format!("{:?}", a.nic).starts_with("softnic (software)"));
    assert!(
        a.window.dmabuf().attachments()[0].contains("softnic (software)"),
        "the dma-buf lists its attachments: {:?}",
        a.window.dmabuf().attachments()
    );
    assert_eq!(a.context.query_port().unwrap().state, PortState::ACTIVE);
    assert_eq!(a.device_mr.state().unwrap(), MrState::Live);
}

#[test]
fn ordered_teardown_releases_the_dma_buf() {
    let (a, _b) = pair();
    let Node {
        qp,
        host_mr,
        device_mr,
        cq,
        pd,
        window,
        memory,
        ..
    } = a;
    let whole = gaudi_sys::standin::Window {
        offset: 0,
        len: memory.len(),
    };
    let dmabuf = window.dmabuf().clone();
    drop(window);
    let (dmabuf, error) = dmabuf.close().expect_err("a region stands on it").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("softnic0: region"), "{error}");
    let (pd, error) = pd
        .close()
        .expect_err("regions and a queue pair stand on it")
        .into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse);
    let (cq, error) = cq.close().expect_err("a queue pair completes in it").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse);
    qp.close().unwrap();
    cq.close().unwrap();
    device_mr.close().unwrap();
    host_mr.close().unwrap();
    pd.close().unwrap();
    assert_eq!(gaudi_sys::standin::is_exported(&memory, whole), Ok(true));
    dmabuf.close().unwrap();
    assert_eq!(
        gaudi_sys::standin::is_exported(&memory, whole),
        Ok(false),
        "the export is closed"
    );
}

#[test]
fn throughput_is_printed() {
    let (mut a, b) = pair();
    let local = [a.host_mr.sge(0, 2 << 20).unwrap()];
    let to = b.device_mr.remote().at(0, 2 << 20).unwrap();
    let start = Instant::now();
    for wr_id in 0..32 {
        a.qp.post_send(wr_id).write(&local, to).post().unwrap();
    }
    for wr_id in 0..32 {
        a.completes(wr_id, WcStatus::SUCCESS);
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "softnic (software): 64 MiB of writes in {seconds:.3} s, {:.0} MiB/s",
        64.0 / seconds
    );
}

/// One random operation: which, how long, where at the source and at the target, in how many
/// elements.
fn operation() -> impl Strategy<Value = (u8, u32, u32, u32, u8)> {
    let len = prop_oneof![0u32..9000, 260_000u32..800_000];
    (0u8..5, len, 0u32..1_000_000, 0u32..1_000_000, 1u8..5)
}

/// Cuts a range into elements of odd sizes.
fn cut(mr: &gaudi_verbs::Mr, at: u32, len: u32, parts: u8) -> Vec<Sge> {
    let mut sges = Vec::new();
    let (mut at, mut left) = (at, len);
    for part in (1..=u32::from(parts)).rev() {
        let length = if part == 1 { left } else { left / (part + 1) };
        sges.push(mr.sge(at.into(), length).unwrap());
        at += length;
        left -= length;
    }
    sges
}

proptest! {
    #![proptest_config(gaudi_random::config(24))]

    /// Any sequence of operations between host memory here and device memory there leaves exactly
    /// what a model of two byte vectors does.
    #[test]
    fn any_sequence_moves_exactly_its_bytes(
        operations in prop::collection::vec(operation(), 1..12),
        seed in any::<u64>(),
    ) {
        let (mut a, mut b) = pair();
        let mut here = pattern(2_000_000, seed);
        let mut there = pattern(2_000_000, !seed);
        a.host.write(0, &here).unwrap();
        b.device.write(0, &there).unwrap();
        let mut receives = 0;
        for (index, (kind, len, from, to, parts)) in (0u64..).zip(&operations) {
            let local = cut(&a.host_mr, *from, *len, *parts);
            let remote = b.device_mr.remote().at((*to).into(), (*len).into()).unwrap();
            let (source, target) = (*from as usize..(from + len) as usize, *to as usize..(to + len) as usize);
            if *kind >= 2 {
                // A receive for the sends takes the same place.
                let into = cut(&b.device_mr, *to, *len, 5 - parts);
                if *kind != 4 {
                    b.qp.post_recv(receives).post(&into).unwrap();
                    receives += 1;
                }
            }
            let post = a.qp.post_send(index).fence(true);
            match kind {
                0 => post.write(&local, remote),
                1 => post.signaled(true).write(&local, remote),
                2 => post.send(&local),
                3 => post.write_imm(&local, remote, 5),
                _ => post.read(&local, remote),
            }
            .post()
            .unwrap();
            if *kind == 4 {
                here[source].copy_from_slice(&there[target]);
            } else {
                there[target].copy_from_slice(&here[source]);
            }
        }
        for index in 0..operations.len() as u64 {
            a.completes(index, WcStatus::SUCCESS);
        }
        for index in 0..receives {
            b.completes(index, WcStatus::SUCCESS);
        }
        prop_assert!(bytes_of(&a.host, 0, here.len()) == here, "our memory differs from the model");
        prop_assert!(bytes_of(&b.device, 0, there.len()) == there, "the peer's memory differs from the model");
    }
}
