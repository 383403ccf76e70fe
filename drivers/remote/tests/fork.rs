//! A fork child: every call on an endpoint of the parent fails with `Forked`, dropping it ends, and
//! the parent's connection works on.

#![expect(unsafe_code, reason = "fork(2) is what is tested")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use gaudi_remote::{ErrorKind, Rights};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

#[path = "remote/nodes.rs"]
#[allow(
    dead_code,
    reason = "shared with the test target `remote`, which uses all of it"
)]
mod nodes;

use nodes::{MAX_WAIT, Node, Setup, noise, pair};

const LEN: u64 = 1 << 20;

/// Runs a block in a child, which may move what it uses, and returns its status. A panic is status
/// 101; the alarm ends a child that hangs.
macro_rules! in_child {
    ($body:block) => {
        // SAFETY: the child runs the block and leaves by _exit.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                // SAFETY: no handler is installed: the signal ends the child.
                unsafe { nix::libc::alarm(30) };
                let code = catch_unwind(AssertUnwindSafe(move || $body)).unwrap_or(101);
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { nix::libc::_exit(code) }
            }
            ForkResult::Parent { child } => waitpid(child, None).expect("the child ends"),
        }
    };
}

fn is_forked<T>(answer: Result<T, gaudi_remote::Error>) -> bool {
    answer.is_err_and(|error| error.kind() == ErrorKind::Forked)
}

#[test]
fn fork_child_drops_an_endpoint_without_effect() {
    for (name, setup) in [
        ("direct", Setup::direct()),
        ("staged", Setup::staged().chunks(64 << 10, 4)),
    ] {
        let (mut a, mut b) = pair(&format!("fork-{name}"), &setup, &setup);
        let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        // Something of everything: a transfer under way, a cached region, scratch memory.
        a.endpoint
            .put_bytes(&[9], remote.at(0..1).expect("in it"), MAX_WAIT)
            .expect("put");
        let put = a.endpoint.put(&from, &remote).expect("begun");
        let status = in_child!({
            drop((a.endpoint, b.endpoint, a.nic, b.nic));
            0
        });
        assert!(matches!(status, WaitStatus::Exited(_, 0)), "{name}: {status:?}");
        a.endpoint
            .wait(put, MAX_WAIT)
            .expect("the parent's transfer completes");
        assert!(b.bytes(&to) == noise(1, LEN as usize), "{name}: put");
        let get = a.endpoint.get(&from, &remote).expect("begun");
        a.endpoint.wait(get, MAX_WAIT).expect("got");
        for Node { endpoint, nic, .. } in [a, b] {
            endpoint.close().expect("closed in order");
            drop(nic);
        }
    }
}

#[test]
fn fork_child_gets_forked_from_every_call() {
    let (mut a, mut b) = pair("fork-calls", &Setup::direct(), &Setup::direct());
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let status = in_child!({
        let end = &mut a.endpoint;
        let byte = remote.at(0..1).expect("in it");
        let answers = [
            is_forked(end.offer(&from, Rights::PUT)),
            is_forked(end.receive_offer(MAX_WAIT)),
            is_forked(end.put(&from, &remote)),
            is_forked(end.get(&from, &remote)),
            is_forked(end.poll(put)),
            is_forked(end.wait(put, MAX_WAIT)),
            is_forked(end.flush_remote(&remote, MAX_WAIT)),
            is_forked(end.report(&from)),
            is_forked(end.put_bytes(&[1], byte.clone(), MAX_WAIT)),
            is_forked(end.get_bytes(&mut [0], byte, MAX_WAIT)),
            is_forked(end.forget(&from)),
            is_forked(end.device_lost()),
            is_forked(a.nic.revoke(a.device.id())),
            is_forked(a.endpoint.close()),
        ];
        i32::try_from(answers.iter().filter(|forked| !**forked).count()).unwrap_or(99)
    });
    assert!(
        matches!(status, WaitStatus::Exited(_, 0)),
        "calls that did not fail: {status:?}"
    );
    a.endpoint
        .wait(put, MAX_WAIT)
        .expect("the parent's transfer completes");
    assert!(b.bytes(&to) == noise(1, LEN as usize));
}
