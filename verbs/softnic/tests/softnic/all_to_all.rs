//! Four processes, each with a device (mock) and one NIC with a cable to each of the others: device
//! memory to device memory, all to all, while the cables lose, damage, double, delay and reorder
//! frames. Each process reaches itself over a loop.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gaudi_device::{Deadline, Device};
use gaudi_softnic::{SoftNic, SoftNicConfig, lossy_network};
use gaudi_verbs::provider::QpTransition;
use gaudi_verbs::{
    Access, Context, MrAddr, Mtu, Qp, QpAddress, QpInit, RemoteRegion, WcOpcode, WcStatus, WorkCompletion,
};

use crate::node::*;

const PROCESSES: usize = 4;
/// Bytes from each to each.
const SLOT: usize = 300_001;
/// Where slots begin: on no page, on no word.
const STRIDE: usize = 300_017;
/// The parts of a process's device memory: what it sends, what it gets, what it fetches, and a word
/// that all count in.
const PART: usize = PROCESSES * STRIDE;
const COUNTER: usize = (3 * PART).next_multiple_of(8);
const BYTES: usize = COUNTER + 4096;
const ROUNDS: u64 = 25;

/// Set where this program is one of the four: which.
const RANK: &str = "SOFTNIC_TEST_RANK";
const SEED: &str = "SOFTNIC_TEST_SEED";
const NAME: &str = "all_to_all::four_processes_exchange_memory_under_faults";

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn slot(seed: u64, from: usize, to: usize) -> Vec<u8> {
    pattern(SLOT, seed ^ ((from * PROCESSES + to) as u64 * 0x1_0001))
}

fn small(state: &mut u64, limit: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 16) % limit
}

fn join(qp: &mut Qp, own: &QpAddress, remote: &QpAddress) {
    qp.modify(&QpTransition::Init {
        access: FULL | Access::REMOTE_ATOMIC,
    })
    .unwrap();
    qp.modify(&QpTransition::ReadyToReceive {
        remote: *remote,
        path_mtu: Mtu::MTU_4096,
        max_dest_rd_atomic: 8,
        min_rnr_timer: Duration::from_millis(2),
    })
    .unwrap();
    qp.modify(&QpTransition::ReadyToSend {
        sq_psn: own.psn,
        max_rd_atomic: 8,
        timeout: Duration::from_millis(300),
        retry_cnt: 100,
        rnr_retry: 7,
    })
    .unwrap();
}

/// One of the four.
fn member(rank: usize, seed: u64) {
    let control: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut control = UnixStream::from(control);
    control.set_read_timeout(Some(MAX_WAIT)).unwrap();
    let config = SoftNicConfig {
        faults: lossy_network(1, seed ^ rank as u64),
        ..SoftNicConfig::default()
    };
    let nic = SoftNic::unplugged(&format!("softnic-{rank}"), config).unwrap();
    for _ in 1..PROCESSES {
        let (_, mut fds) = gaudi_sys::socket::receive_with_fds(&control, &mut [0; 1]).unwrap();
        nic.plug(fds.pop().unwrap()).unwrap();
    }

    let device = Device::open(&"mock:gaudi2".parse().unwrap()).unwrap();
    let memory = device.alloc_exclusive(BYTES as u64).unwrap();
    let host = device.alloc_host(BYTES).unwrap();
    host.fill(0, BYTES, 0).unwrap();
    for to in 0..PROCESSES {
        host.write((to * STRIDE) as u64, &slot(seed, rank, to)).unwrap();
    }
    device
        .copy(&memory, &host)
        .unwrap()
        .wait(Deadline::NEVER)
        .unwrap();

    let context = Context::open(nic.clone()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(1024).unwrap();
    let window = memory.export(..).unwrap().whole().unwrap();
    let access = FULL | Access::REMOTE_ATOMIC;
    let mr = pd
        .reg_dmabuf_mr(&window, MrAddr::from(memory.address()), access)
        .unwrap();
    let mut qps: Vec<Qp> = (0..PROCESSES)
        .map(|_| {
            let mut init = QpInit::new(&cq);
            init.max_send_wr = 256;
            pd.create_qp(&init).unwrap()
        })
        .collect();
    for qp in &mut qps {
        gaudi_verbs::send(&mut control, &qp.address().unwrap()).unwrap();
        gaudi_verbs::send(&mut control, &mr.remote()).unwrap();
        qp.modify(&QpTransition::Init { access }).unwrap();
        qp.post_recv(1000).post(&[]).unwrap();
    }
    let mut regions: Vec<RemoteRegion> = Vec::new();
    for qp in &mut qps {
        let remote: QpAddress = gaudi_verbs::receive(&mut control).unwrap();
        regions.push(gaudi_verbs::receive(&mut control).unwrap());
        let own = qp.address().unwrap();
        join(qp, &own, &remote);
    }

    // Every slot goes in pieces of any length, and the peer's own is fetched; in between everybody
    // counts in everybody's word.
    let mut random = seed.wrapping_mul(31) + rank as u64 + 1;
    let mut posted = 0;
    for peer in 0..PROCESSES {
        let (mut at, mut fetched) = (0, 0);
        while at < SLOT || fetched < SLOT {
            for (done, from, to, is_write) in [
                (&mut at, peer * STRIDE, PART + rank * STRIDE, true),
                (&mut fetched, 2 * PART + peer * STRIDE, rank * STRIDE, false),
            ] {
                let len = (1 + small(&mut random, 90_000) as usize).min(SLOT - *done);
                if len == 0 {
                    continue;
                }
                let local = [mr.sge((from + *done) as u64, len as u32).unwrap()];
                let remote = regions[peer].at((to + *done) as u64, len as u64).unwrap();
                let post = qps[peer].post_send(1);
                if is_write {
                    post.write(&local, remote)
                } else {
                    post.read(&local, remote)
                }
                .post()
                .unwrap();
                posted += 1;
                *done += len;
            }
        }
        for round in 0..ROUNDS {
            let was = mr
                .sge((COUNTER + 8 + 8 * (round as usize % 8)) as u64, 8)
                .unwrap();
            let to = regions[peer].at(COUNTER as u64, 8).unwrap();
            qps[peer]
                .post_send(2)
                .fetch_add(&was, to, 1 + rank as u64)
                .post()
                .unwrap();
            posted += 1;
        }
        qps[peer]
            .post_send(3)
            .write_imm(&[], regions[peer].at(0, 0).unwrap(), rank as u32)
            .post()
            .unwrap();
        posted += 1;
    }
    let (mut sent, mut heard) = (0, Vec::new());
    let mut wc = [WorkCompletion::EMPTY; 32];
    while sent < posted || heard.len() < PROCESSES {
        let count = cq.wait(&mut wc, MAX_WAIT).expect("all work completes");
        for wc in &wc[..count] {
            assert_eq!(
                wc.status,
                WcStatus::SUCCESS,
                "rank {rank}: {wc:?}, {:?}",
                nic.cable_error()
            );
            match wc.opcode {
                WcOpcode::RECV_RDMA_WITH_IMM => heard.push(wc.imm_data.unwrap()),
                _ => sent += 1,
            }
        }
    }
    heard.sort_unstable();
    assert_eq!(heard, [0, 1, 2, 3], "everybody's last message came once");

    device
        .copy(&host, &memory)
        .unwrap()
        .wait(Deadline::NEVER)
        .unwrap();
    let mut seen = vec![0; BYTES];
    host.read(0, &mut seen).unwrap();
    for peer in 0..PROCESSES {
        let (got, fetched) = (PART + peer * STRIDE, 2 * PART + peer * STRIDE);
        assert!(
            seen[got..got + SLOT] == slot(seed, peer, rank),
            "rank {rank}: what {peer} wrote"
        );
        assert!(
            seen[fetched..fetched + SLOT] == slot(seed, peer, rank),
            "rank {rank}: what was read of {peer}"
        );
        assert!(
            seen[got + SLOT..got + STRIDE].iter().all(|byte| *byte == 0),
            "nothing beside a slot"
        );
    }
    let counted = u64::from_ne_bytes(std::array::from_fn(|at| seen[COUNTER + at]));
    assert_eq!(
        counted,
        ROUNDS * (1 + 2 + 3 + 4),
        "every addition counts once, though messages came twice"
    );
    let counters = nic.counters();
    assert!(counters.faults > 0, "the cables made faults: {counters:?}");
    eprintln!(
        "rank {rank}: {} faults, {} messages sent again",
        counters.faults, counters.retransmissions
    );
    // No process exits before all have their answers.
    gaudi_verbs::send(&mut control, &mr.remote()).unwrap();
    let _go: RemoteRegion = gaudi_verbs::receive(&mut control).unwrap();
}

#[test]
fn four_processes_exchange_memory_under_faults() {
    if let (Some(rank), Some(seed)) = (number(RANK), number(SEED)) {
        return member(rank as usize, seed);
    }
    let seed = gaudi_random::seed();
    println!("seed={seed} ({}={seed} replays it)", gaudi_random::SEED_VARIABLE);
    let mut controls = Vec::new();
    let children: Vec<Child> = (0..PROCESSES)
        .map(|rank| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_read_timeout(Some(MAX_WAIT)).unwrap();
            controls.push(ours);
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", NAME, "--nocapture"])
                .env(RANK, rank.to_string())
                .env(SEED, seed.to_string())
                .stdin(OwnedFd::from(theirs))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for left in 0..PROCESSES {
        for right in left + 1..PROCESSES {
            let (a, b) = UnixStream::pair().unwrap();
            gaudi_sys::socket::send_with_fds(&controls[left], b"c", &[a.as_fd()]).unwrap();
            gaudi_sys::socket::send_with_fds(&controls[right], b"c", &[b.as_fd()]).unwrap();
        }
    }
    // The parent is the switchboard of the set-up, and nothing else.
    let result = (|| -> gaudi_verbs::Result<()> {
        let mut table: Vec<Vec<(QpAddress, RemoteRegion)>> = Vec::new();
        for control in &mut controls {
            let rows = (0..PROCESSES)
                .map(|_| Ok((gaudi_verbs::receive(control)?, gaudi_verbs::receive(control)?)))
                .collect::<gaudi_verbs::Result<_>>()?;
            table.push(rows);
        }
        for (rank, control) in controls.iter_mut().enumerate() {
            for row in &table {
                gaudi_verbs::send(control, &row[rank].0)?;
                gaudi_verbs::send(control, &row[rank].1)?;
            }
        }
        let done = controls
            .iter_mut()
            .map(gaudi_verbs::receive)
            .collect::<gaudi_verbs::Result<Vec<RemoteRegion>>>()?;
        for (control, region) in controls.iter_mut().zip(done) {
            gaudi_verbs::send(control, &region)?;
        }
        Ok(())
    })();
    drop(controls);
    let mut failed = result.is_err();
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        failed |= !output.status.success();
        for text in [&output.stdout, &output.stderr] {
            for line in String::from_utf8_lossy(text)
                .lines()
                .filter(|line| !line.is_empty())
            {
                println!("{rank}: {line}");
            }
        }
    }
    assert!(!failed, "seed={seed}: {result:?}");
}
