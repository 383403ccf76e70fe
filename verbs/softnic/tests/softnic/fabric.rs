//! [`Fabric`]: the tests of sockets on cables in memory, the order of steps, virtual time.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, ErrorKind};
use gaudi_softnic::{Fabric, FabricStep, SoftNic, SoftNicConfig, lossy_network};
use gaudi_verbs::{Qp, QpInit, WcStatus, WorkCompletion};

use crate::node::*;

const NODES: usize = 3;

#[test]
fn tests_of_sockets_pass_over_memory() {
    let tests = std::env::current_exe().unwrap();
    let mut command = Command::new(tests);
    command.env(FABRIC, "1").args(["--test-threads=2", "--quiet"]);
    command.args(["cables::", "errors::", "faults::", "keys::", "operations::"]);
    // It waits on the descriptor, and nothing steps the fabric meanwhile.
    command.args(["--skip", "events_come_once_per_request"]);
    let output = command.args(["--skip", "throughput"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("test result: ok"), "{text}");
}

/// Three nodes, each with a queue pair to both others, on one completion queue a node.
struct Ring {
    fabric: Fabric,
    // Closed before the nodes.
    qps: Vec<Vec<Qp>>,
    nodes: Vec<Node>,
}

impl Ring {
    fn new(seed: u64, faults: impl Fn(usize) -> SoftNicConfig) -> Self {
        let fabric = Fabric::new(seed);
        let nics = [0, 1, 2].map(|n| fabric.nic(&format!("nic{n}"), faults(n)).unwrap());
        for (a, b) in [(0, 1), (1, 2), (2, 0)] {
            fabric.join(&nics[a], &nics[b]).unwrap();
        }
        let nodes: Vec<Node> = nics.into_iter().map(Node::new).collect();
        let make = |node: &Node| -> Vec<Qp> {
            (1..NODES)
                .map(|_| node.pd.create_qp(&QpInit::new(&node.cq)).unwrap())
                .collect()
        };
        let mut qps: Vec<Vec<Qp>> = nodes.iter().map(make).collect();
        let addresses: Vec<Vec<_>> = (qps.iter())
            .map(|qps| qps.iter().map(|qp| qp.address().unwrap()).collect())
            .collect();
        for (node, qps) in qps.iter_mut().enumerate() {
            for (number, qp) in qps.iter_mut().enumerate() {
                // Its number 0 leads to the next node, its number 1 to the one after that.
                let peer = (node + 1 + number) % NODES;
                let (own, remote) = (&addresses[node][number], &addresses[peer][1 - number]);
                join(qp, own, remote, Duration::from_millis(40));
            }
        }
        Self { fabric, qps, nodes }
    }
}

/// What happened in a run: each step, and each completion with its node.
type Events = (Vec<FabricStep>, Vec<(usize, u64, WcStatus)>, Duration);

/// Each node writes to, reads from and sends to both others, over cables that lose frames.
fn exchange(seed: u64) -> Events {
    let faults = |node: usize| SoftNicConfig {
        faults: lossy_network(3, node as u64),
        ..SoftNicConfig::default()
    };
    let mut ring = Ring::new(seed, faults);
    ring.fabric.record();
    let (len, rounds) = (1500, 6);
    for (node, qps) in ring.qps.iter_mut().enumerate() {
        let own = &ring.nodes[node];
        own.host.fill(0, 1 << 20, node as u8 + 1).unwrap();
        for (number, qp) in qps.iter_mut().enumerate() {
            let peer = &ring.nodes[(node + 1 + number) % NODES];
            for round in 0..rounds {
                let at = (number as u64 * rounds + round) * len;
                let into = own.host_mr.sge((2 << 20) + at, len as u32).unwrap();
                qp.post_recv(100 + at).post(&[into]).unwrap();
                let local = [own.host_mr.sge(at, len as u32).unwrap()];
                let there = peer
                    .device_mr
                    .remote()
                    .at((node as u64 * 64 + round) * len, len)
                    .unwrap();
                qp.post_send(1).write(&local, there).post().unwrap();
                qp.post_send(2).send(&local).post().unwrap();
                let back = [own.host_mr.sge((1 << 20) + at, len as u32).unwrap()];
                qp.post_send(3).read(&back, there).post().unwrap();
            }
        }
    }
    let mut completions = Vec::new();
    let expected = 4 * rounds as usize * (NODES - 1);
    let mut counts = [0; NODES];
    while counts != [expected; NODES] {
        for (node, own) in ring.nodes.iter().enumerate() {
            if counts[node] < expected {
                let wc = own.completion();
                assert_eq!(wc.status, WcStatus::SUCCESS, "seed {seed}: {wc:?}");
                completions.push((node, wc.wr_id, wc.status));
                counts[node] += 1;
            }
        }
    }
    for (node, own) in ring.nodes.iter().enumerate() {
        let all = (2 * rounds * len) as usize;
        assert!(
            bytes_of(&own.host, 1 << 20, all) == vec![node as u8 + 1; all],
            "reads, seed {seed}"
        );
        let half = all / 2;
        let sent = [(node + 1) % NODES, (node + 2) % NODES].map(|peer| vec![peer as u8 + 1; half]);
        assert!(
            bytes_of(&own.host, 2 << 20, all) == sent.concat(),
            "sends, seed {seed}"
        );
    }
    (ring.fabric.take_record(), completions, ring.fabric.now())
}

#[test]
fn one_seed_gives_one_order() {
    let began = Instant::now();
    let first = exchange(7);
    assert!(first.0.len() > 200, "{} steps", first.0.len());
    assert!(first == exchange(7), "two runs with one seed differ");
    let others: Vec<Events> = (8..12).map(exchange).collect();
    assert!(
        others.iter().all(|other| other.0 != first.0),
        "a seed chooses the order of steps"
    );
    assert!(
        others.iter().any(|other| other.1 != first.1),
        "some seed changes the order of completions"
    );
    assert!(
        first.2 > Duration::from_millis(40),
        "a lost frame is sent again: {:?}",
        first.2
    );
    assert!(began.elapsed() < MAX_WAIT, "timeouts take no time of the machine");
}

fn silent_pair(config: SoftNicConfig) -> (Fabric, Node, Node) {
    let fabric = Fabric::new(3);
    let [a, b] = ["a", "b"].map(|name| Node::new(fabric.nic(name, config.clone()).unwrap()));
    fabric.join(&a.nic, &b.nic).unwrap();
    let (mut a, mut b) = (a, b);
    connect(&mut a.qp, &mut b.qp);
    (fabric, a, b)
}

#[test]
fn wait_times_out_in_virtual_time() {
    let (fabric, a, _b) = silent_pair(SoftNicConfig::default());
    let (before, began) = (fabric.now(), Instant::now());
    let hour = Duration::from_secs(3600);
    let error = a.cq.wait(&mut [WorkCompletion::EMPTY], hour).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(fabric.now() - before >= hour, "{:?}", fabric.now());
    assert!(began.elapsed() < MAX_WAIT);
}

#[test]
fn delayed_frames_and_completions_arrive_in_virtual_time() {
    for plan in ["nic.packet:when=1:delay=5s", "nic.completion:delay=5s"] {
        let config = SoftNicConfig {
            faults: plan.parse().unwrap(),
            ..SoftNicConfig::default()
        };
        let (fabric, mut a, b) = silent_pair(config);
        let began = Instant::now();
        let to = b.device_mr.remote().at(0, 8).unwrap();
        let local = [a.host_mr.sge(0, 8).unwrap()];
        a.qp.post_send(1).write(&local, to).post().unwrap();
        a.completes(1, WcStatus::SUCCESS);
        assert!(
            fabric.now() >= Duration::from_secs(5),
            "{plan}: {:?}",
            fabric.now()
        );
        assert!(began.elapsed() < Duration::from_secs(5), "{plan}");
    }
}

#[test]
fn closed_nic_ends_its_peers_connections() {
    let (_fabric, mut a, b) = silent_pair(SoftNicConfig::default());
    a.qp.post_recv(1).post(&[]).unwrap();
    drop(b);
    a.completes(1, WcStatus::WR_FLUSH_ERR);
    let error = a.nic.cable_error().expect("the cable is down");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    let sent = a.qp.post_send(2).send(&[]).post();
    assert!(sent.is_ok(), "{sent:?}");
    a.completes(2, WcStatus::WR_FLUSH_ERR);
}

#[test]
fn fabric_refuses_other_cables() {
    let fabric = Fabric::new(1);
    let make = |fabric: &Fabric| fabric.nic("nic", SoftNicConfig::default()).unwrap();
    let (a, b, foreign) = (make(&fabric), make(&fabric), make(&Fabric::new(2)));
    let errno = |result: gaudi_seam::Result<()>| result.unwrap_err().errno();
    fabric.join(&a, &b).unwrap();
    assert_eq!(
        errno(fabric.join(&b, &a)),
        Some(Errno::EEXIST),
        "one cable joins two NICs"
    );
    assert_eq!(errno(fabric.join(&a, &a)), Some(Errno::EINVAL));
    assert_eq!(errno(fabric.join(&a, &foreign)), Some(Errno::EINVAL));
    let with_threads: Arc<SoftNic> = SoftNic::unplugged("nic", SoftNicConfig::default()).unwrap();
    assert_eq!(errno(fabric.join(&a, &with_threads)), Some(Errno::EINVAL));
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(errno(a.plug(socket)), Some(Errno::EINVAL));
}

#[test]
fn polls_move_frames() {
    let (_fabric, mut a, b) = silent_pair(SoftNicConfig::default());
    let to = b.device_mr.remote().at(0, 8).unwrap();
    a.qp.post_send(1)
        .write(&[a.host_mr.sge(0, 8).unwrap()], to)
        .post()
        .unwrap();
    let mut wc = [WorkCompletion::EMPTY];
    let polled = (0..10).any(|_| a.cq.poll(&mut wc).unwrap() > 0);
    assert!(polled, "polls alone move the frames");
}
