//! Fault plans: each pair of an event and a verdict that the grammar allows has a case here.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gaudi_seam::fault::{NicEvent, NicStatus, Target, Verdict};
use gaudi_seam::{Errno, ErrorKind};
use gaudi_softnic::{Plan, SoftNic, SoftNicConfig};
use gaudi_verbs::provider::{MrState, QpState, QpTransition};
use gaudi_verbs::{AsyncEventType, Mtu, PortState, QpAddress, WcStatus, WorkCompletion};

use crate::node::*;

/// How late an answer may be before a queue pair repeats its request.
const TIMEOUT: Duration = Duration::from_millis(300);

/// A case that shows the pair of `target` and the verdict of form `form`.
struct Case {
    target: &'static str,
    form: &'static str,
    run: fn(),
}

macro_rules! cases {
    ($($target:literal $form:literal $run:ident,)*) => {
        &[$(Case { target: $target, form: $form, run: $run },)*]
    };
}

const CASES: &[Case] = cases! {
    "nic.post" "error=ERRNO" post_error,
    "nic.post" "full=queue" post_full,
    "nic.post" "status=STATUS" post_status,
    "nic.post" "qp_error" post_qp_error,
    "nic.packet" "delay=TIME" packet_delay,
    "nic.packet" "lose" packet_lose,
    "nic.packet" "duplicate" packet_duplicate,
    "nic.packet" "reorder" packet_reorder,
    "nic.packet" "flip=BIT" packet_flip,
    "nic.packet" "damage" packet_damage,
    "nic.packet" "down" packet_down,
    "nic.packet" "qp_error" packet_qp_error,
    "nic.completion" "delay=TIME" completion_delay,
    "nic.completion" "lose" completion_lose,
    "nic.completion" "duplicate" completion_duplicate,
    "nic.completion" "reorder" completion_reorder,
    "nic.region" "revoke" region_revoke,
    "nic.state" "error=ERRNO" state_error,
    "nic.state" "qp_error" state_qp_error,
};

#[test]
fn every_allowed_pair_is_injected() {
    for event in NicEvent::ALL {
        let target = Target::Nic(*event);
        for kind in Verdict::KINDS
            .iter()
            .filter(|kind| kind.example.meets(target).is_ok())
        {
            let is_shown = |case: &&Case| case.target == target.name() && case.form == kind.form;
            let count = CASES.iter().filter(is_shown).count();
            assert_eq!(count, 1, "one case shows {target}:{}", kind.form);
        }
    }
    for case in CASES {
        eprintln!("{}:{}", case.target, case.form);
        (case.run)();
    }
    eprintln!("{} pairs of event and verdict", CASES.len());
}

/// Two NICs joined by a cable: one with a plan, and one without.
fn faulty(plan: &str) -> (Node, Node) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let config = SoftNicConfig {
        faults: plan.parse().unwrap_or_else(|error| panic!("{error}")),
        ..SoftNicConfig::default()
    };
    let a = SoftNic::open("softnic0", ours, config).unwrap();
    let b = SoftNic::open("softnic1", theirs, SoftNicConfig::default()).unwrap();
    (Node::new(a), Node::new(b))
}

fn join(node: &mut Node, own: &QpAddress, remote: &QpAddress, timeout: Duration) {
    let transitions = [
        QpTransition::Init { access: FULL },
        QpTransition::ReadyToReceive {
            remote: *remote,
            path_mtu: Mtu::MTU_4096,
            max_dest_rd_atomic: 16,
            min_rnr_timer: Duration::from_millis(1),
        },
        QpTransition::ReadyToSend {
            sq_psn: own.psn,
            max_rd_atomic: 16,
            timeout,
            retry_cnt: 7,
            rnr_retry: 7,
        },
    ];
    for transition in transitions {
        node.qp.modify(&transition).unwrap();
    }
}

/// The same, connected.
fn connected(plan: &str) -> (Node, Node) {
    connected_with(plan, TIMEOUT)
}

/// The same, with another timeout.
fn connected_with(plan: &str, timeout: Duration) -> (Node, Node) {
    let (mut a, mut b) = faulty(plan);
    let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
    join(&mut a, &at_a, &at_b, timeout);
    join(&mut b, &at_b, &at_a, timeout);
    a.host.write(0, &pattern(1 << 20, 5)).unwrap();
    (a, b)
}

/// Bytes of each write, more than a frame holds.
const LEN: u32 = 300_000;

/// Posts a write of [`LEN`] bytes to the same offset of the peer's window, in units of `LEN`.
fn write(a: &mut Node, b: &Node, wr_id: u64, place: u64) -> gaudi_seam::Result<()> {
    let offset = place * u64::from(LEN);
    let local = [a.host_mr.sge(offset, LEN).unwrap()];
    let to = b.device_mr.remote().at(offset, LEN.into()).unwrap();
    a.qp.post_send(wr_id).write(&local, to).post()
}

/// Whether a write of [`write`] arrived.
fn arrived(a: &Node, b: &Node, place: usize) -> bool {
    let (at, len) = (place * LEN as usize, LEN as usize);
    bytes_of(&b.device, at, len) == bytes_of(&a.host, at, len)
}

fn every_rule_fired(node: &Node) {
    let unfired = node.nic.faults().unfired();
    assert!(unfired.is_empty(), "unfired: {unfired:?}");
}

fn post_error() {
    let (mut a, b) = connected("nic.post:when=2:error=EPERM");
    write(&mut a, &b, 1, 0).unwrap();
    let error = write(&mut a, &b, 2, 1).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EPERM));
    assert!(
        error
            .to_string()
            .contains("the fault rule nic.post:when=2:error=EPERM"),
        "{error}"
    );
    write(&mut a, &b, 3, 2).unwrap();
    a.completes(1, WcStatus::SUCCESS);
    a.completes(3, WcStatus::SUCCESS);
    assert!(
        arrived(&a, &b, 2) && !arrived(&a, &b, 1),
        "the second was not sent"
    );
    every_rule_fired(&a);
}

fn post_full() {
    let (mut a, b) = connected("nic.post:size=1..:full=queue:when=1");
    let error = write(&mut a, &b, 1, 0).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::WouldBlock, Some(Errno::ENOMEM))
    );
    write(&mut a, &b, 2, 0).unwrap();
    a.completes(2, WcStatus::SUCCESS);
    every_rule_fired(&a);
}

fn post_status() {
    for status in NicStatus::ALL {
        let (mut a, b) = connected(&format!("nic.post:when=2:status={}", status.name()));
        for wr_id in 1..=3 {
            write(&mut a, &b, wr_id, wr_id - 1).unwrap();
        }
        a.completes(1, WcStatus::SUCCESS);
        let wc = a.completion();
        assert_eq!(
            (wc.wr_id, wc.status.to_string()),
            (2, status.name().to_owned()),
            "in order"
        );
        a.completes(3, WcStatus::WR_FLUSH_ERR);
        assert_eq!(a.qp.state().unwrap(), QpState::ERR);
        assert!(arrived(&a, &b, 0) && !arrived(&a, &b, 1));
        every_rule_fired(&a);
    }
}

fn post_qp_error() {
    let (mut a, b) = connected("nic.post:qp_error");
    write(&mut a, &b, 1, 0).unwrap();
    a.completes(1, WcStatus::WR_FLUSH_ERR);
    assert_eq!(a.qp.state().unwrap(), QpState::ERR);
    has_event(&a, AsyncEventType::QP_FATAL);
    assert!(!arrived(&a, &b, 0));
    every_rule_fired(&a);
    write(&mut a, &b, 2, 0).unwrap();
    a.completes(2, WcStatus::WR_FLUSH_ERR);
    let counts = a.nic.faults().rules();
    assert_eq!(
        (counts[0].seen, counts[0].fired),
        (2, 1),
        "it is in error already"
    );
}

fn packet_delay() {
    let (mut a, b) = connected("nic.packet:size=1..:when=1:delay=60ms");
    let start = Instant::now();
    write(&mut a, &b, 1, 0).unwrap();
    a.completes(1, WcStatus::SUCCESS);
    assert!(
        start.elapsed() >= Duration::from_millis(60),
        "{:?}",
        start.elapsed()
    );
    assert!(arrived(&a, &b, 0));
    assert_eq!(a.nic.counters().faults, 1);
    every_rule_fired(&a);
}

/// A write whose packet `verdict` disturbs arrives in the end.
fn recovers(verdict: &str) -> (Node, Node) {
    // Packets are repeated because the peer reports a gap, never because it is late.
    let timeout = MAX_WAIT / 2;
    let (mut a, b) = connected_with(&format!("nic.packet:size=1..:{verdict}"), timeout);
    write(&mut a, &b, 1, 0).unwrap();
    a.completes(1, WcStatus::SUCCESS);
    // The third and the fourth packet are the first of these.
    write(&mut a, &b, 2, 1).unwrap();
    write(&mut a, &b, 3, 2).unwrap();
    a.completes(2, WcStatus::SUCCESS);
    a.completes(3, WcStatus::SUCCESS);
    assert!((0..3).all(|place| arrived(&a, &b, place)), "every byte");
    assert_eq!(a.nic.counters().faults, 1);
    every_rule_fired(&a);
    (a, b)
}

fn packet_lose() {
    let (a, b) = recovers("when=3:lose");
    assert!(a.nic.counters().retransmissions > 0);
    assert!(b.nic.counters().dropped > 0, "those behind the gap");
}

fn packet_duplicate() {
    let (a, b) = recovers("when=4:duplicate");
    assert_eq!(a.nic.counters().retransmissions, 0, "nothing is missing");
    assert_eq!(b.nic.counters().dropped, 1, "the copy");
}

fn packet_reorder() {
    let (a, b) = recovers("when=3:reorder");
    assert!(a.nic.counters().retransmissions > 0);
    assert!(b.nic.counters().dropped > 0, "the one before the gap");
}

fn packet_damage() {
    let (a, b) = recovers("when=3:damage");
    assert!(a.nic.counters().retransmissions > 0);
    assert!(
        b.nic.counters().dropped > 1,
        "the damaged one, and those behind it"
    );
}

fn packet_flip() {
    let bit = 8 * 1000 + 3;
    let (mut a, b) = connected(&format!("nic.packet:when=2:flip={bit};nic.packet:size=9:flip=72"));
    write(&mut a, &b, 1, 0).unwrap();
    a.completes(1, WcStatus::SUCCESS);
    let mut wanted = bytes_of(&a.host, 0, LEN as usize);
    wanted[256 * 1024 + 1000] ^= 1 << 3;
    assert!(bytes_of(&b.device, 0, LEN as usize) == wanted, "exactly that bit");
    let local = [a.host_mr.sge(0, 9).unwrap()];
    let to = b.device_mr.remote().at(0, 9).unwrap();
    a.qp.post_send(2).write(&local, to).post().unwrap();
    a.completes(2, WcStatus::SUCCESS);
    assert_eq!(bytes_of(&b.device, 0, 9), bytes_of(&a.host, 0, 9));
    let fired: Vec<_> = a.nic.faults().rules().iter().map(|count| count.fired).collect();
    assert_eq!(fired, [1, 0], "bit 72 is the first after nine bytes");
}

fn packet_down() {
    let (mut a, b) = connected("nic.packet:size=1..:when=2:down");
    write(&mut a, &b, 1, 0).unwrap();
    write(&mut a, &b, 2, 1).unwrap();
    a.completes(1, WcStatus::RETRY_EXC_ERR);
    a.completes(2, WcStatus::WR_FLUSH_ERR);
    has_event(&a, AsyncEventType::PORT_ERR);
    assert_eq!(a.context.query_port().unwrap().state, PortState::DOWN);
    let error = a.nic.cable_error().expect("the cable is down");
    assert!(
        error.to_string().contains("a fault rule took the port down"),
        "{error}"
    );
    every_rule_fired(&a);
}

fn packet_qp_error() {
    let (mut a, mut b) = connected("nic.packet:size=1..:qp_error");
    b.qp.post_recv(9).post(&[b.host_mr.sge(0, 8).unwrap()]).unwrap();
    write(&mut a, &b, 1, 0).unwrap();
    a.completes(1, WcStatus::WR_FLUSH_ERR);
    has_event(&a, AsyncEventType::QP_FATAL);
    assert!(a.nic.cable_error().is_none() && !arrived(&a, &b, 0));
    b.nothing_completes();
    every_rule_fired(&a);
}

fn completion_delay() {
    let (mut a, b) = connected("nic.completion:when=1:delay=80ms");
    let start = Instant::now();
    write(&mut a, &b, 1, 0).unwrap();
    write(&mut a, &b, 2, 1).unwrap();
    while !arrived(&a, &b, 1) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Waits for the event: only the NIC's clock raises it.
    a.completes(1, WcStatus::SUCCESS);
    assert!(
        start.elapsed() >= Duration::from_millis(80),
        "{:?}",
        start.elapsed()
    );
    a.completes(2, WcStatus::SUCCESS);
    every_rule_fired(&a);
}

fn completion_lose() {
    let (mut a, b) = connected("nic.completion:when=1:lose");
    write(&mut a, &b, 1, 0).unwrap();
    write(&mut a, &b, 2, 1).unwrap();
    a.completes(2, WcStatus::SUCCESS);
    a.nothing_completes();
    assert!(arrived(&a, &b, 0), "only its completion is lost");
    every_rule_fired(&a);
}

fn completion_duplicate() {
    let (mut a, b) = connected("nic.completion:when=1:duplicate");
    write(&mut a, &b, 1, 0).unwrap();
    write(&mut a, &b, 2, 1).unwrap();
    for wr_id in [1, 1, 2] {
        a.completes(wr_id, WcStatus::SUCCESS);
    }
    a.nothing_completes();
    every_rule_fired(&a);
}

fn completion_reorder() {
    // A completion is held back for 20 ms at most. On a busy machine the next may come later.
    let (mut a, b) = loop {
        let (mut a, b) = connected("nic.completion:when=1+2:reorder");
        let begin = Instant::now();
        write(&mut a, &b, 1, 0).unwrap();
        write(&mut a, &b, 2, 1).unwrap();
        let order = [a.completion(), a.completion()].map(|wc| (wc.wr_id, wc.status));
        if order == [(2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)] {
            break (a, b);
        }
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(20), "{order:?} after {took:?}");
    };
    // No completion follows the third, which is delivered after the timeout.
    write(&mut a, &b, 3, 2).unwrap();
    a.completes(3, WcStatus::SUCCESS);
    a.nothing_completes();
    every_rule_fired(&a);
}

fn region_revoke() {
    let place = DEVICE_VA + u64::from(LEN);
    let (b, mut a) = connected(&format!("nic.region:addr={place:#x}:size=300000:revoke"));
    a.host.write(0, &pattern(1 << 20, 5)).unwrap();
    write(&mut a, &b, 1, 0).unwrap();
    a.completes(1, WcStatus::SUCCESS);
    assert_eq!(b.device_mr.state().unwrap(), MrState::Live);
    write(&mut a, &b, 2, 1).unwrap();
    a.completes(2, WcStatus::REM_ACCESS_ERR);
    assert!(arrived(&a, &b, 0) && !arrived(&a, &b, 1));
    assert_eq!(b.device_mr.state().unwrap(), MrState::Revoked);
    assert_eq!(b.host_mr.state().unwrap(), MrState::Live, "the other region");
    every_rule_fired(&b);
    for is_read in [false, true] {
        let (b, mut a) = connected("nic.region:revoke");
        let local = [a.host_mr.sge(0, 8).unwrap()];
        let there = b.device_mr.remote().at(0, 8).unwrap();
        let post = a.qp.post_send(1);
        let post = match is_read {
            true => post.read(&local, there),
            false => post.write(&local, there),
        };
        post.post().unwrap();
        a.completes(1, WcStatus::REM_ACCESS_ERR);
        every_rule_fired(&b);
    }
}

fn state_error() {
    let (mut a, mut b) = faulty("nic.state:when=2:error=EINVAL");
    let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
    a.qp.modify(&QpTransition::Init { access: FULL }).unwrap();
    let to_receive = QpTransition::ReadyToReceive {
        remote: at_b,
        path_mtu: Mtu::MTU_4096,
        max_dest_rd_atomic: 16,
        min_rnr_timer: Duration::from_millis(1),
    };
    let error = a.qp.modify(&to_receive).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL));
    assert_eq!(a.qp.state().unwrap(), QpState::INIT, "it was not performed");
    join(&mut a, &at_a, &at_b, TIMEOUT);
    join(&mut b, &at_b, &at_a, TIMEOUT);
    write(&mut a, &b, 1, 0).unwrap();
    a.completes(1, WcStatus::SUCCESS);
    every_rule_fired(&a);
}

fn state_qp_error() {
    let (mut a, mut b) = faulty("nic.state:when=3:qp_error");
    let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
    join(&mut a, &at_a, &at_b, TIMEOUT);
    join(&mut b, &at_b, &at_a, TIMEOUT);
    assert_eq!(a.qp.state().unwrap(), QpState::ERR);
    has_event(&a, AsyncEventType::QP_FATAL);
    write(&mut a, &b, 1, 0).unwrap();
    a.completes(1, WcStatus::WR_FLUSH_ERR);
    every_rule_fired(&a);
}

#[test]
fn rules_of_other_places_are_ignored() {
    let (mut a, b) = connected("submit:lose;chip.dma:stale;nic.packet:queue=1:lose;");
    write(&mut a, &b, 1, 0).unwrap();
    a.completes(1, WcStatus::SUCCESS);
    let faults = a.nic.faults();
    let lines: Vec<_> = faults.unfired().iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["nic.packet:queue=1:lose"], "its own rules, and unfired");
}

#[test]
fn rearmed_plan_starts_again() {
    let (mut a, b) = connected("nic.completion:when=1:lose");
    let faults = a.nic.faults();
    for round in 0..2 {
        write(&mut a, &b, 1, 0).unwrap();
        write(&mut a, &b, 2, 0).unwrap();
        a.completes(2, WcStatus::SUCCESS);
        assert_eq!(faults.rules()[0].fired, 1, "round {round}");
        faults.rearm();
    }
}

/// A delay or a full queue of late completions must not hold the NIC when it closes.
#[test]
fn long_delay_ends_with_the_nic() {
    let start = Instant::now();
    let (mut a, b) = connected("nic.packet:size=1..:delay=3600s;nic.completion:delay=3600s");
    write(&mut a, &b, 1, 0).unwrap();
    while a.nic.faults().rules()[0].fired == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((a, b));
    assert!(start.elapsed() < MAX_WAIT / 2, "{:?}", start.elapsed());
}

#[test]
fn late_completions_count_against_depth() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let faults: Plan = "nic.completion:delay=3600s".parse().unwrap();
    let config = SoftNicConfig {
        faults,
        ..SoftNicConfig::default()
    };
    let mut a = Node::with_depth(SoftNic::open("softnic0", ours, config).unwrap(), 4);
    let mut b = Node::new(SoftNic::open("softnic1", theirs, SoftNicConfig::default()).unwrap());
    let (at_a, at_b) = (a.qp.address().unwrap(), b.qp.address().unwrap());
    join(&mut a, &at_a, &at_b, TIMEOUT);
    join(&mut b, &at_b, &at_a, TIMEOUT);
    for wr_id in 0..5 {
        write(&mut a, &b, wr_id, 0).unwrap();
    }
    let mut wc = [WorkCompletion::EMPTY; 8];
    let error = a.cq.wait(&mut wc, MAX_WAIT).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EOVERFLOW), "{error}");
}
