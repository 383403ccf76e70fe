//! One of two processes is killed during transfers, and the other one learns of it from UCX.

#![allow(unsafe_code, reason = "fork(2)")]

use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::allocator::{Failure, Place};
use crate::control::Control;
use crate::ucp::{Peer, Ucp};
use crate::{Protocol, receive, send};

/// Bytes of a message.
const BYTES: usize = 4 << 20;
/// Calls of progress between the first transfer and the kill: during the second one.
const CALLS: u32 = 100;

/// Kills either process during each protocol. Returns whether every other one learnt of it.
pub(crate) fn run(protocols: &[(&str, Protocol)]) -> Result<bool, Failure> {
    let mut all = true;
    for &(name, protocol) in protocols {
        for is_active in [true, false] {
            let place = if is_active { "passive" } else { "active" };
            match pair(protocol, is_active) {
                Ok(()) => println!("ok kill {name} {place}"),
                Err(failure) => {
                    all = false;
                    println!("FAIL kill {name} {place}: {failure}");
                }
            }
        }
    }
    Ok(all)
}

/// Starts both processes. The survivor is the active one or the passive one.
fn pair(protocol: Protocol, is_active: bool) -> Result<(), Failure> {
    let (mine, theirs) = Control::pair().map_err(|error| format!("no socket pair: {error}"))?;
    let (mine, theirs) = (&mut Some(mine), &mut Some(theirs));
    let victim = child(|| {
        drop(mine.take());
        let control = theirs.take().ok_or("a socket")?;
        transfer(control, protocol, !is_active, None)
    })?;
    drop(theirs.take());
    let survivor = child(|| {
        let control = mine.take().ok_or("a socket")?;
        transfer(control, protocol, is_active, Some(victim))
    })?;
    drop(mine.take());
    // Until the killed process is waited for, UCX's shared memory takes it for alive. It may end
    // after the survivor, whose sockets are closed first.
    let first = waitpid(None::<Pid>, None);
    let second = match first {
        Ok(ended) if ended.pid() == Some(victim) => waitpid(survivor, None),
        Ok(WaitStatus::Exited(_, 0)) => waitpid(victim, None), // the survivor has killed it
        _ => {
            let _ = kill(victim, Signal::SIGKILL); // it may have ended
            waitpid(victim, None)
        }
    };
    let ends = [first, second];
    let expected = [
        Ok(WaitStatus::Signaled(victim, Signal::SIGKILL, false)),
        Ok(WaitStatus::Exited(survivor, 0)),
    ];
    match expected.iter().all(|end| ends.contains(end)) {
        true => Ok(()),
        false => Err(format!("survivor {survivor}, killed process {victim}: {ends:?}")),
    }
}

/// Runs a function in a child, which becomes a process of UCX by itself.
fn child(body: impl FnOnce() -> Result<(), Failure>) -> Result<Pid, Failure> {
    // SAFETY: the process has one thread.
    match unsafe { fork() }.map_err(|error| format!("fork failed: {error}"))? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let code = match body() {
                Ok(()) => 0,
                Err(failure) => {
                    println!("process {}: {failure}", std::process::id());
                    1
                }
            };
            std::process::exit(code);
        }
    }
}

/// Transfers until an operation fails. With a `victim`, that process is killed after the first
/// transfer; UCX must report its end, and then everything is closed.
fn transfer(
    mut control: Control,
    protocol: Protocol,
    is_active: bool,
    victim: Option<Pid>,
) -> Result<(), Failure> {
    let ucp = Ucp::open()?;
    let mut peer = ucp.connect(&mut control, true)?;
    let mut turn = 0;
    let failure = loop {
        let turned = one(&mut peer, &mut control, protocol, is_active, turn);
        match (turned, victim) {
            (Err(failure), _) => break failure,
            (Ok(()), Some(victim)) if turn == 0 => peer.kill_after(victim, CALLS),
            (Ok(()), _) => {}
        }
        turn += 1;
    };
    if victim.is_none() || turn == 0 || peer.will_kill() {
        return Err(failure);
    }
    let begin = Instant::now();
    let status = peer.await_end()?;
    println!(
        "{failure}; {:.1} s later: {status}",
        begin.elapsed().as_secs_f64()
    );
    peer.close_at_once()
}

fn one(
    peer: &mut Peer<'_>,
    control: &mut Control,
    protocol: Protocol,
    is_active: bool,
    turn: usize,
) -> Result<(), Failure> {
    let ends = (Place::Device, Place::Device);
    match is_active {
        true => send(peer, control, protocol, (turn, BYTES, 0), ends),
        false => receive(peer, control, protocol, (turn, BYTES, 0), ends),
    }
}
