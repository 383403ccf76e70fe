//! `ucp-check [bytes=N] PROTOCOL...`: two processes move data between Gaudi memory and host memory
//! through the UCX that the loader finds, and compare every byte.
//!
//! - `bytes=N`: one message of N bytes, from device to device.
//! - `listen=SOCKET`, `connect=SOCKET`: this is the passive or the active one of two processes.
//! - `kill`: one of two processes is killed during each protocol, and UCX must report it.
//! - `query`: queries of memory are timed.
//!
//! Prints `ok` or `FAIL` and the protocol; `cargo xtask test --step ucx` runs it with packaged
//! releases of UCX. Device memory comes from the plugin the way ucx_perftest gets it.

mod allocator;
mod control;
mod killed;
mod pattern;
mod query;
mod ucp;

use std::path::PathBuf;
use std::process::ExitCode;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use allocator::{Failure, Memory, Place};
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

/// What the arguments ask for.
struct Options {
    protocols: Vec<(&'static str, Protocol)>,
    /// Bytes of the only message, from device to device.
    bytes: Option<usize>,
    role: Role,
}

/// Which of the two processes this is.
enum Role {
    /// It starts the other one.
    Both,
    Passive(PathBuf),
    Active(PathBuf),
    /// It starts both, of which one is killed.
    Kill,
    /// The only process: it times queries of memory.
    Query,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut options = Self {
            protocols: Vec::new(),
            bytes: None,
            role: Role::Both,
        };
        for argument in arguments {
            let protocol = Protocol::ALL.iter().find(|(known, _)| *known == argument);
            match (argument.split_once('='), protocol) {
                (_, Some(row)) => options.protocols.push(*row),
                (None, _) if argument == "kill" => options.role = Role::Kill,
                (None, _) if argument == "query" => options.role = Role::Query,
                (Some(("bytes", bytes)), _) => {
                    let bytes = bytes.parse().map_err(|error| format!("{argument}: {error}"))?;
                    options.bytes = Some(bytes);
                }
                (Some(("listen", path)), _) => options.role = Role::Passive(path.into()),
                (Some(("connect", path)), _) => options.role = Role::Active(path.into()),
                _ => {
                    return Err(format!(
                        "{argument}: not a protocol; they are tag, stream, am, put and get"
                    ));
                }
            }
        }
        Ok(options)
    }

    /// Every transfer of a protocol: seed, bytes, start, places.
    fn transfers(&self) -> Vec<(usize, usize, usize, (Place, Place))> {
        if let Some(bytes) = self.bytes {
            return vec![(0, bytes, 0, WAYS[0])];
        }
        let sizes = SIZES.iter().enumerate();
        let of_size = |(index, &len): (usize, &usize)| {
            let start = if index % 2 == 1 { SHIFT } else { 0 };
            let ways = WAYS.iter().enumerate();
            ways.map(|(way, &places)| (index * WAYS.len() + way, len, start, places))
                .collect::<Vec<_>>()
        };
        sizes.flat_map(of_size).collect()
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(failure) => {
            eprintln!("ucp-check: {failure}");
            return ExitCode::from(2);
        }
    };
    let answer = match &options.role {
        Role::Both => both(&options),
        Role::Kill => killed::run(&options.protocols),
        Role::Query => query::run(),
        Role::Passive(path) => Control::listen(path)
            .map_err(|error| format!("{}: {error}", path.display()))
            .and_then(|control| passive(control, &options))
            .map(|()| true),
        Role::Active(path) => Control::connect(path)
            .map_err(|error| format!("{}: {error}", path.display()))
            .and_then(|control| active(control, &options)),
    };
    match answer {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            println!("FAIL ucp-check: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Both processes: the child is the passive one.
fn both(options: &Options) -> Result<bool, Failure> {
    let (mine, theirs) = Control::pair().map_err(|error| format!("no socket pair: {error}"))?;
    // The child is a process of its own from its first call of UCX on.
    #[expect(unsafe_code, reason = "fork(2)")]
    // SAFETY: the process has one thread.
    match unsafe { fork() }.map_err(|error| format!("fork failed: {error}"))? {
        ForkResult::Child => {
            drop(mine);
            passive(theirs, options).map(|()| true)
        }
        ForkResult::Parent { child } => {
            drop(theirs);
            let done = active(mine, options);
            match (done, waitpid(child, None)) {
                (Ok(all), Ok(WaitStatus::Exited(_, 0))) => Ok(all),
                (Err(failure), ended) => Err(format!("{failure}; the peer: {ended:?}")),
                (_, ended) => Err(format!("the peer: {ended:?}")),
            }
        }
    }
}

/// The process that sends, puts and gets. Returns whether all data matched.
fn active(mut control: Control, options: &Options) -> Result<bool, Failure> {
    let ucp = Ucp::open()?;
    let mut peer = ucp.connect(&mut control, false)?;
    let mut all = true;
    for &(name, protocol) in &options.protocols {
        let mut moved = 0;
        let mut failed = None;
        for (seed, len, start, (from, to)) in options.transfers() {
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
fn passive(mut control: Control, options: &Options) -> Result<(), Failure> {
    let ucp = Ucp::open()?;
    let mut peer = ucp.connect(&mut control, false)?;
    for &(_, protocol) in &options.protocols {
        for (seed, len, start, (from, to)) in options.transfers() {
            receive(&mut peer, &mut control, protocol, (seed, len, start), (from, to))?;
        }
    }
    // The peer's end needs this side's progress. Closing here too would race with it.
    peer.wait_message(&mut control).map(drop)
}

/// The passive part of a transfer.
fn receive(
    peer: &mut Peer<'_>,
    control: &mut Control,
    protocol: Protocol,
    (seed, len, start): Transfer,
    (from, to): (Place, Place),
) -> Result<(), Failure> {
    let wanted = pattern(seed, len);
    let memory = Memory::new(if protocol == Protocol::Get { from } else { to }, start + len)?;
    if protocol == Protocol::Get {
        memory.write(start, &wanted)?;
    }
    let answer = match protocol {
        Protocol::Tag => peer.receive_tag(&memory, start, len),
        Protocol::Stream => peer.receive_stream(&memory, start, len),
        Protocol::Am => peer.receive_am(&memory, start, len),
        Protocol::Put | Protocol::Get => peer.offer(control, &memory, start),
    };
    if protocol == Protocol::Get {
        return answer;
    }
    match answer.and_then(|()| compare(&memory, start, &wanted)) {
        Ok(()) => peer.send_message(control, b"same"),
        Err(failure) => peer.send_message(control, failure.as_bytes()),
    }
}
