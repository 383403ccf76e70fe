//! `ucp-check PROTOCOL...`: two processes move data between Gaudi memory and host memory through
//! the UCX that the loader finds, and compare every byte.
//!
//! Prints `ok PROTOCOL: N transfers` or `FAIL PROTOCOL: ...` a protocol; `cargo xtask test --step
//! ucx` runs it with packaged releases of UCX. Device memory comes from the plugin the way
//! ucx_perftest gets it.

mod allocator;
mod control;
mod pattern;
mod ucp;

use std::process::ExitCode;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use allocator::{Memory, Place};
use control::Control;
use pattern::{compare, pattern};
use ucp::{Peer, Ucp};

/// Bytes of the transfers. Those with an odd index begin at an unaligned address.
const SIZES: [usize; 8] = [8, 1000, 4096, 65_537, 262_144, 1_048_577, 2_500_000, 4_194_304];
/// The unaligned start.
const SHIFT: usize = 13;
/// From and to.
const WAYS: [(Place, Place); 3] = [
    (Place::Device, Place::Device),
    (Place::Host, Place::Device),
    (Place::Device, Place::Host),
];

type Failure = String;

/// A way to move data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tag,
    Stream,
    Am,
    Put,
    Get,
}

impl Protocol {
    const ALL: [(&'static str, Self); 5] = [
        ("tag", Self::Tag),
        ("stream", Self::Stream),
        ("am", Self::Am),
        ("put", Self::Put),
        ("get", Self::Get),
    ];
}

fn main() -> ExitCode {
    let mut protocols = Vec::new();
    for name in std::env::args().skip(1) {
        match Protocol::ALL.iter().find(|(known, _)| *known == name) {
            Some(row) => protocols.push(*row),
            None => {
                eprintln!("ucp-check: {name}: not a protocol; they are tag, stream, am, put and get");
                return ExitCode::from(2);
            }
        }
    }
    let (mine, theirs) = match Control::pair() {
        Ok(pair) => pair,
        Err(error) => {
            eprintln!("ucp-check: no socket pair: {error}");
            return ExitCode::FAILURE;
        }
    };
    // The child is a process of its own from its first call of UCX on.
    #[expect(unsafe_code, reason = "fork(2)")]
    // SAFETY: the process has one thread.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            drop(mine);
            match passive(theirs, &protocols) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => {
                    println!("FAIL peer: {failure}");
                    ExitCode::FAILURE
                }
            }
        }
        Ok(ForkResult::Parent { child }) => {
            drop(theirs);
            let done = active(mine, &protocols);
            let ended = waitpid(child, None);
            match (done, ended) {
                (Ok(true), Ok(WaitStatus::Exited(_, 0))) => ExitCode::SUCCESS,
                (Err(failure), ended) => {
                    println!("FAIL ucp-check: {failure}; the peer: {ended:?}");
                    ExitCode::FAILURE
                }
                (_, ended) => {
                    println!("the peer: {ended:?}");
                    ExitCode::FAILURE
                }
            }
        }
        Err(error) => {
            eprintln!("ucp-check: fork failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Every transfer of a protocol: seed, bytes, start, places.
fn transfers() -> impl Iterator<Item = (usize, usize, usize, (Place, Place))> {
    SIZES.iter().enumerate().flat_map(|(index, &len)| {
        let start = if index % 2 == 1 { SHIFT } else { 0 };
        WAYS.iter()
            .enumerate()
            .map(move |(way, &places)| (index * WAYS.len() + way, len, start, places))
    })
}

/// The process that sends, puts and gets. Returns whether all data matched.
fn active(mut control: Control, protocols: &[(&'static str, Protocol)]) -> Result<bool, Failure> {
    let ucp = Ucp::open()?;
    let mut peer = ucp.connect(&mut control)?;
    let mut all = true;
    for &(name, protocol) in protocols {
        let mut moved = 0;
        let mut failed = None;
        for (seed, len, start, (from, to)) in transfers() {
            let answer = send(&mut peer, &mut control, protocol, (seed, len, start), (from, to));
            match answer {
                Ok(()) => moved += 1,
                Err(failure) => {
                    failed.get_or_insert(format!("{from:?} to {to:?}, {len} bytes from {start}: {failure}"));
                }
            }
        }
        match failed {
            None => println!("ok {name}: {moved} transfers"),
            Some(failure) => {
                all = false;
                println!("FAIL {name}: {failure}");
            }
        }
    }
    peer.close()?;
    peer.send_message(&mut control, b"closed")?;
    Ok(all)
}

type Transfer = (usize, usize, usize);

fn send(
    peer: &mut Peer<'_>,
    control: &mut Control,
    protocol: Protocol,
    (seed, len, start): Transfer,
    (from, to): (Place, Place),
) -> Result<(), Failure> {
    let wanted = pattern(seed, len);
    let memory = Memory::new(if protocol == Protocol::Get { to } else { from }, start + len)?;
    if protocol == Protocol::Get {
        let key = peer.wait_message(control)?;
        peer.get(&memory, start, len, &key)?;
        let compared = compare(&memory, start, &wanted);
        peer.send_message(control, b"done")?;
        return compared;
    }
    memory.write(start, &wanted)?;
    match protocol {
        Protocol::Tag => peer.send_tag(&memory, start, len)?,
        Protocol::Stream => peer.send_stream(&memory, start, len)?,
        Protocol::Am => peer.send_am(&memory, start, len)?,
        Protocol::Put => {
            let key = peer.wait_message(control)?;
            peer.put(&memory, start, len, &key)?;
            peer.send_message(control, b"done")?;
        }
        Protocol::Get => unreachable!("returned above"),
    }
    let answer = peer.wait_message(control)?;
    match answer.as_slice() {
        b"same" => Ok(()),
        other => Err(String::from_utf8_lossy(other).into_owned()),
    }
}

/// The process that receives, and whose memory the other one accesses.
fn passive(mut control: Control, protocols: &[(&'static str, Protocol)]) -> Result<(), Failure> {
    let ucp = Ucp::open()?;
    let mut peer = ucp.connect(&mut control)?;
    for &(_, protocol) in protocols {
        for (seed, len, start, (from, to)) in transfers() {
            let wanted = pattern(seed, len);
            let memory = Memory::new(if protocol == Protocol::Get { from } else { to }, start + len)?;
            if protocol == Protocol::Get {
                memory.write(start, &wanted)?;
            }
            let answer = match protocol {
                Protocol::Tag => peer.receive_tag(&memory, start, len),
                Protocol::Stream => peer.receive_stream(&memory, start, len),
                Protocol::Am => peer.receive_am(&memory, start, len),
                Protocol::Put | Protocol::Get => peer.offer(&mut control, &memory, start),
            };
            if protocol == Protocol::Get {
                answer?;
                continue;
            }
            let answer = answer.and_then(|()| compare(&memory, start, &wanted));
            match answer {
                Ok(()) => peer.send_message(&mut control, b"same")?,
                Err(failure) => peer.send_message(&mut control, failure.as_bytes())?,
            }
        }
    }
    // The peer's end needs this side's progress. Closing here too would race with it.
    peer.wait_message(&mut control).map(drop)
}
