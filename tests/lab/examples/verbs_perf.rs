//! Our provider and Debian's perftest on one soft-RoCE of one guest, turn by turn: ratios, not
//! speeds.
//!
//! ```sh
//! cargo build --release -p gaudi-lab --example verbs_perf
//! cargo xtask lab run target/release/examples/verbs_perf [PAIRS]
//! cargo build --release -p gaudi-cli
//! cargo xtask lab run target/release/examples/verbs_perf 11 target/release/gaudi
//! ```
//!
//! With a second word ours is `gaudi perf` of that program, two processes as perftest's; without it
//! the provider alone, in this one. A third word `latency` leaves bandwidth out.
//!
//! Both move the same bytes between two queue pairs of `rxe0`, with 128 requests outstanding at
//! most and one completion in 100 (the defaults of perftest). Latency is a write of 8 bytes back
//! and forth, seen by polling memory; half of the way there and back.

#[path = "../tests/ibv/mod.rs"]
mod ibv;

use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gaudi_lab::rxe::{self, Build};
use gaudi_verbs::{Payload, SendOp, WorkCompletion};

use ibv::{Host, Nic, Queue, any, request};

const DEPTH: u64 = 128;
const MODERATION: u64 = 100;
const LAT_TURNS: u64 = 500;

/// One row of the answer: how to ask perftest, and how to do it.
struct Case {
    program: &'static str,
    size: usize,
    turns: u64,
    read: bool,
}

const CASES: [Case; 4] = [
    Case {
        program: "ib_write_bw",
        size: 64 << 10,
        turns: 300,
        read: false,
    },
    Case {
        program: "ib_write_bw",
        size: 1 << 20,
        turns: 25,
        read: false,
    },
    Case {
        program: "ib_read_bw",
        size: 64 << 10,
        turns: 300,
        read: true,
    },
    Case {
        program: "ib_read_bw",
        size: 1 << 20,
        turns: 25,
        read: true,
    },
];

fn main() {
    let pairs: usize = std::env::args()
        .nth(1)
        .map_or(11, |text| text.parse().expect("a number of pairs"));
    let tool = std::env::args().nth(2);
    let tool = tool.as_deref();
    let build: Build = any();
    let (index, _) = rxe::device(build, "rxe0", "eth0", "10.77.0.1");
    let version = run("ib_write_bw", &["--version"]);
    let ours = tool.map_or("the provider", |_| "gaudi perf");
    println!(
        "{ours} and perftest {}, {pairs} pairs, {build:?} rxe, load {}",
        version.trim(),
        load()
    );
    let only_latency = std::env::args().nth(3).is_some_and(|word| word == "latency");
    for case in CASES.iter().filter(|_| !only_latency) {
        let mut ratios = Vec::new();
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for pair in 0..pairs {
            let (own, peer) = in_turn(
                pair,
                || match tool {
                    Some(program) => {
                        let op = if case.read { "read" } else { "write" };
                        gaudi(
                            program,
                            op,
                            "bandwidth",
                            case.size,
                            case.turns,
                            "bytes_per_second",
                        ) / f64::from(1 << 20)
                    }
                    None => bandwidth(case),
                },
                || perftest(case.program, index, case.size, case.turns, 3),
            );
            ratios.push(own / peer);
            mine.push(own);
            theirs.push(peer);
        }
        println!(
            "{} {:>4} KiB: ours {:.1} MiB/s, perftest {:.1} MiB/s (medians); pair ratio median {:.3}, best {:.3}",
            case.program,
            case.size >> 10,
            median(&mut mine),
            median(&mut theirs),
            median(&mut ratios),
            ratios.iter().copied().fold(0.0, f64::max),
        );
    }
    let (mut mine, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        let (own, peer) = in_turn(
            pair,
            || match tool {
                Some(program) => gaudi(program, "write", "latency", 8, LAT_TURNS, "median_ns") / 1e3,
                None => latency(),
            },
            || perftest("ib_write_lat", index, 8, LAT_TURNS, 4),
        );
        ratios.push(own / peer);
        mine.push(own);
        theirs.push(peer);
    }
    println!(
        "ib_write_lat 8 B: ours {:.1} us, perftest {:.1} us typical (medians); pair ratio median {:.3}, best {:.3}",
        median(&mut mine),
        median(&mut theirs),
        median(&mut ratios),
        ratios.iter().copied().fold(f64::MAX, f64::min),
    );
}

/// Each is first as often as second.
fn in_turn(pair: usize, own: impl FnOnce() -> f64, peer: impl FnOnce() -> f64) -> (f64, f64) {
    if pair % 2 == 0 {
        let peer = peer();
        (own(), peer)
    } else {
        let own = own();
        (own, peer())
    }
}

/// The guest's, of one minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}

/// A number of the only row of `gaudi perf`, asked as perftest works: its depth, its moderation, no
/// warm-up for bandwidth.
fn gaudi(program: &str, op: &str, measure: &str, size: usize, turns: u64, field: &str) -> f64 {
    let numbers = [size as u64, turns, DEPTH, MODERATION].map(|number| number.to_string());
    let output = Command::new(program)
        .args(["perf", op, "--nic", "rxe0", "--json", "--measure", measure])
        .args(["--sizes", &numbers[0], "--iterations", &numbers[1]])
        .args(["--window", &numbers[2], "--signal", &numbers[3], "--warm-up", "0"])
        .output()
        .expect("gaudi runs");
    let stdout: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("gaudi perf: {}", String::from_utf8_lossy(&output.stderr)));
    let row = &stdout["rows"][0];
    assert_ne!(row["verified"], false, "{row}");
    row[field].as_f64().expect("a number")
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program)
        .args(words)
        .output()
        .expect("the guest has perftest");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A number of perftest's last row: 3 is the average of bandwidth in MiB/s, 4 the typical latency
/// in us.
fn perftest(program: &str, gid: u8, size: usize, turns: u64, column: usize) -> f64 {
    let (gid, size, turns) = (gid.to_string(), size.to_string(), turns.to_string());
    let words = ["-d", "rxe0", "-x", &gid, "-F", "-s", &size, "-n", &turns];
    let start = |more: &[&str]| -> Child {
        Command::new(program)
            .args(words)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("perftest runs")
    };
    let mut server = start(&[]);
    std::thread::sleep(Duration::from_millis(700)); // it listens
    let client: Output = start(&["127.0.0.1"]).wait_with_output().expect("it ends");
    let _ = server.wait();
    let text = String::from_utf8_lossy(&client.stdout);
    let row = text.lines().rev().find(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.first() == Some(&size.as_str()) && words.len() > column
    });
    let row = row.unwrap_or_else(|| {
        panic!(
            "{program} prints no row:\n{text}\n{}",
            String::from_utf8_lossy(&client.stderr)
        )
    });
    let word = row.split_whitespace().nth(column).expect("a column");
    word.parse().unwrap_or_else(|_| panic!("{program} prints {row}"))
}

fn both(nic: &Nic) -> (Queue, Queue) {
    let (here, there) = (nic.deep_queue(), nic.deep_queue());
    here.connect(&there.address());
    there.connect(&here.address());
    (here, there)
}

/// MiB a second.
fn bandwidth(case: &Case) -> f64 {
    let nic = Nic::named("rxe0");
    let (local, remote) = (nic.host(case.size), nic.host(case.size));
    let (here, there) = both(&nic);
    let sges = [local.sge(0, case.size)];
    let op = if case.read {
        SendOp::Read(remote.remote(0))
    } else {
        SendOp::Write(remote.remote(0))
    };
    let (mut posted, mut done) = (0, 0);
    let mut some = [WorkCompletion::EMPTY; 16];
    let begin = Instant::now();
    while done < case.turns {
        while posted < case.turns && posted - done < DEPTH {
            posted += 1;
            let mut write = request(posted, Payload::Sges(&sges), op);
            write.signaled = posted % MODERATION == 0 || posted == case.turns;
            here.queue.post_send(&write).expect("room");
        }
        let count = here.cq.poll(&mut some).expect("whole");
        for completion in &some[..count] {
            assert!(completion.is_success(), "{completion:?}");
            done = completion.wr_id;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    there.close();
    here.close();
    (case.turns * case.size as u64) as f64 / f64::from(1 << 20) / seconds
}

/// Waits until the peer's write is in memory.
fn arrived(host: &Host, turn: u32) {
    while host.memory.load_u32(0, Ordering::Acquire).expect("inside") != turn {
        std::hint::spin_loop();
    }
}

/// Writes the turn's number into the peer's memory, inline, and takes the completion.
fn notify(queue: &Queue, to: &Host, turn: u32) {
    let bytes = u64::from(turn).to_le_bytes();
    queue
        .queue
        .post_send(&request(
            turn.into(),
            Payload::Inline(&bytes),
            SendOp::Write(to.remote(0)),
        ))
        .expect("room");
    let mut one = [WorkCompletion::EMPTY];
    while queue.cq.poll(&mut one).expect("whole") == 0 {
        std::hint::spin_loop();
    }
    assert!(one[0].is_success(), "{:?}", one[0]);
}

/// Half of the way there and back, the median, in us.
fn latency() -> f64 {
    let (client, server) = (Nic::named("rxe0"), Nic::named("rxe0"));
    let (local, remote) = (client.host(4096), server.host(4096));
    let (here, there) = (client.deep_queue(), server.deep_queue());
    here.connect(&there.address());
    there.connect(&here.address());
    let turns = LAT_TURNS as u32;
    let mut times = std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1..=turns {
                arrived(&remote, turn);
                notify(&there, &local, turn);
            }
        });
        (1..=turns)
            .map(|turn| {
                let begin = Instant::now();
                notify(&here, &remote, turn);
                arrived(&local, turn);
                begin.elapsed().as_secs_f64() * 1e6 / 2.0
            })
            .collect::<Vec<_>>()
    });
    there.close();
    here.close();
    median(&mut times)
}
