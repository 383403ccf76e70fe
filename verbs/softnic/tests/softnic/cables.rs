//! More than one cable, cables that lose frames, and writes that become visible late.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::ErrorKind;
use gaudi_softnic::{SoftNic, SoftNicConfig, lossy_network};
use gaudi_verbs::{AsyncElement, AsyncEventType, Gid, PortState, QpInit, WcStatus};
use proptest::prelude::*;

use crate::node::*;

fn plug(a: &Arc<SoftNic>, b: &Arc<SoftNic>) {
    let (left, right) = UnixStream::pair().unwrap();
    a.plug(left).unwrap();
    b.plug(right).unwrap();
}

/// Three NICs, each with a cable to both others.
fn triangle() -> [Node; 3] {
    let nics =
        [0, 1, 2].map(|n| SoftNic::unplugged(&format!("softnic{n}"), SoftNicConfig::default()).unwrap());
    plug(&nics[0], &nics[1]);
    plug(&nics[1], &nics[2]);
    plug(&nics[2], &nics[0]);
    nics.map(Node::new)
}

#[test]
fn queue_pair_uses_cable_of_its_peer() {
    let [mut a, mut b, mut c] = triangle();
    let mut second = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    connect(&mut a.qp, &mut b.qp);
    connect(&mut second, &mut c.qp);
    let text = pattern(700_000, 1);
    a.host.write(0, &text).unwrap();
    let local = [a.host_mr.sge(0, 700_000).unwrap()];
    a.qp.post_send(1)
        .write(&local, b.device_mr.remote().at(0, 700_000).unwrap())
        .post()
        .unwrap();
    a.completes(1, WcStatus::SUCCESS);
    second
        .post_send(2)
        .write(&local, c.device_mr.remote().at(9, 700_000).unwrap())
        .post()
        .unwrap();
    a.completes(2, WcStatus::SUCCESS);
    assert!(bytes_of(&b.device, 0, 700_000) == text && bytes_of(&c.device, 9, 700_000) == text);
    assert_eq!(
        (
            b.nic.counters().rx.write.messages,
            c.nic.counters().rx.write.messages
        ),
        (1, 1),
        "each got its own and no more"
    );
}

#[test]
fn port_without_cable_is_refused() {
    let [mut a, _b, _c] = triangle();
    let mut remote = a.qp.address().unwrap();
    remote.gid = Gid([9; 16]);
    let error = a.qp.connect(&remote, FULL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    assert!(error.to_string().contains("no cable"), "{error}");
}

#[test]
fn dead_cable_ends_its_connections_only() {
    let [mut a, mut b, mut c] = triangle();
    let mut second = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    connect(&mut a.qp, &mut b.qp);
    connect(&mut second, &mut c.qp);
    a.qp.post_recv(1).post(&[]).unwrap();
    drop(b);
    a.completes(1, WcStatus::WR_FLUSH_ERR);
    let event = a
        .context
        .get_async_event()
        .unwrap()
        .expect("a dead cable is reported");
    assert_eq!(
        (event.event_type, event.element),
        (AsyncEventType::PORT_ERR, AsyncElement::Port(1))
    );
    let to = c.device_mr.remote().at(0, 8).unwrap();
    second
        .post_send(2)
        .write(&[a.host_mr.sge(0, 8).unwrap()], to)
        .post()
        .unwrap();
    a.completes(2, WcStatus::SUCCESS);
    assert_eq!(
        a.context.query_port().unwrap().state,
        PortState::ACTIVE,
        "one cable is left"
    );
}

#[test]
fn a_nic_without_a_cable_reaches_itself() {
    let nic = SoftNic::unplugged("softnic0", SoftNicConfig::default()).unwrap();
    let mut a = Node::new(nic);
    let mut other = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    connect(&mut a.qp, &mut other);
    let text = pattern(500_000, 2);
    a.host.write(0, &text).unwrap();
    let to = a.device_mr.remote().at(1, 500_000).unwrap();
    a.qp.post_send(1)
        .write(&[a.host_mr.sge(0, 500_000).unwrap()], to)
        .post()
        .unwrap();
    a.completes(1, WcStatus::SUCCESS);
    assert!(bytes_of(&a.device, 1, 500_000) == text);
}

#[test]
fn a_cut_cable_ends_what_is_outstanding() {
    let (mut a, _b) = pair_with(SoftNicConfig {
        faults: "nic.packet:when=4:down".parse().unwrap(),
        ..SoftNicConfig::default()
    });
    let local = [a.host_mr.sge(0, 1 << 20).unwrap()];
    let to = _b.device_mr.remote().at(0, 1 << 20).unwrap();
    for wr_id in 0..5 {
        a.qp.post_send(wr_id).write(&local, to).post().unwrap();
    }
    a.completes(0, WcStatus::RETRY_EXC_ERR);
    for wr_id in 1..5 {
        a.completes(wr_id, WcStatus::WR_FLUSH_ERR);
    }
}

/// What a consumer of device memory sees after a write's completion, with and without a flush in
/// between.
fn seen_after_a_write(seed: u64, flush: bool) -> bool {
    let config = SoftNicConfig {
        late_writes: Some(seed),
        ..SoftNicConfig::default()
    };
    let (mut a, b) = pair_with(config);
    let text = pattern(300_000, seed);
    a.host.write(0, &text).unwrap();
    let to = b.device_mr.remote().at(0, 300_000).unwrap();
    a.qp.post_send(1)
        .write(&[a.host_mr.sge(0, 300_000).unwrap()], to)
        .post()
        .unwrap();
    a.completes(1, WcStatus::SUCCESS);
    if flush {
        let scratch = a.host_mr.sge(1 << 20, 1).unwrap();
        let last = b.device_mr.remote().at(299_999, 1).unwrap();
        a.qp.post_send(2).flush_remote(&scratch, last).post().unwrap();
        a.completes(2, WcStatus::SUCCESS);
    }
    bytes_of(&b.device, 0, 300_000) == text
}

#[test]
fn flush_makes_device_write_visible() {
    for seed in 1..20 {
        assert!(
            seen_after_a_write(seed, true),
            "seed {seed}: a flush makes it visible"
        );
        assert!(
            !seen_after_a_write(seed, false),
            "seed {seed}: without one it is not, or this test shows nothing"
        );
    }
}

#[test]
fn flag_may_precede_data_without_flush() {
    // The trap that a flush avoids: the flag is written after the data, on the same queue pair, and
    // overtakes it.
    let overtaken = (1..40u64).any(|seed| {
        let config = SoftNicConfig {
            late_writes: Some(seed),
            ..SoftNicConfig::default()
        };
        let (mut a, b) = pair_with(config);
        a.host.fill(0, 64, 1).unwrap();
        let remote = b.device_mr.remote();
        for wr_id in 0..6 {
            let to = remote.at(wr_id * 4096, 64).unwrap();
            a.qp.post_send(wr_id)
                .write(&[a.host_mr.sge(0, 64).unwrap()], to)
                .post()
                .unwrap();
            a.completes(wr_id, WcStatus::SUCCESS);
        }
        let seen: Vec<bool> = (0..6)
            .map(|at| bytes_of(&b.device, at * 4096, 1) == [1])
            .collect();
        seen.windows(2).any(|pair| pair == [false, true])
    });
    assert!(overtaken, "some seed shows a later write before an earlier one");
}

proptest! {
    #![proptest_config(gaudi_random::config(6))]

    /// Whatever a cable does to frames, a connection moves exactly the bytes that it was asked to,
    /// in order.
    #[test]
    fn a_lossy_cable_does_not_show(seed in any::<u64>(), percent in 1u8..5, count in 1u64..30) {
        let (a, b) = SoftNic::pair(SoftNicConfig {
            faults: lossy_network(percent, seed),
            ..SoftNicConfig::default()
        }).unwrap();
        let (mut a, mut b) = (Node::new(a), Node::new(b));
        let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
        for (qp, own, remote) in [(&mut a.qp, at_a, at_b), (&mut b.qp, at_b, at_a)] {
            join(qp, &own, &remote, Duration::from_millis(40));
        }
        let text = pattern(60_000, seed);
        a.host.write(0, &text).unwrap();
        b.device.write(1 << 20, &text).unwrap();
        for wr_id in 0..count {
            let offset = wr_id * 1999;
            b.qp.post_recv(wr_id).post(&[b.host_mr.sge(offset, 1999).unwrap()]).unwrap();
            let local = [a.host_mr.sge(offset, 1999).unwrap()];
            let there = b.device_mr.remote().at(offset, 1999).unwrap();
            let from = b.device_mr.remote().at((1 << 20) + offset, 1999).unwrap();
            let into = [a.host_mr.sge((1 << 20) + offset, 1999).unwrap()];
            a.qp.post_send(3 * wr_id).write(&local, there).post().unwrap();
            a.qp.post_send(3 * wr_id + 1).send(&local).post().unwrap();
            a.qp.post_send(3 * wr_id + 2).read(&into, from).post().unwrap();
            // The room of a queue is not what is tested here.
            for done in 0..3 {
                a.completes(3 * wr_id + done, WcStatus::SUCCESS);
            }
        }
        for wr_id in 0..count {
            let wc = b.completes(wr_id, WcStatus::SUCCESS);
            prop_assert_eq!(wc.byte_len, 1999);
        }
        let len = count as usize * 1999;
        prop_assert!(bytes_of(&b.device, 0, len) == text[..len], "writes");
        prop_assert!(bytes_of(&b.host, 0, len) == text[..len], "sends");
        prop_assert!(bytes_of(&a.host, 1 << 20, len) == text[..len], "reads");
    }
}
