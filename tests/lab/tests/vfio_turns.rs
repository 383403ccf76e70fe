//! Tests of one program take turns with the guest's only vfio function: each finds its group closed
//! by the one before.

#![expect(unsafe_code, reason = "a fork child holds its parent's descriptors")]

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gaudi_lab::vfio::{BAR, Exclusive};
use gaudi_lab::{child, run};
use gaudi_sys::PAGE;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn threads_take_turns_with_one_function() {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let function = Exclusive::open();
                    let _view = function.map(BAR, 0, PAGE as usize).expect("vfio maps the BAR");
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..100 {
                assert!(run(&["true"]).status.success(), "a child that execs at once");
            }
        });
    });
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn function_closes_after_a_fork_child_exits() {
    let (opened, is_open) = mpsc::channel();
    let (forked, is_forked) = mpsc::channel();
    let (reopened, is_reopened) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let function = Exclusive::open();
            opened.send(()).expect("the test waits");
            is_forked.recv().expect("the test forks");
            drop(function);
            drop(Exclusive::open());
            reopened.send(()).expect("the test waits");
        });
        is_open.recv().expect("the function opens");
        let life = child();
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        // SAFETY: the child reads from a socket and leaves by _exit.
        let pid = match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                drop(ours);
                let end = (&theirs).read(&mut [0]);
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { nix::libc::_exit(i32::from(end.ok() != Some(0))) }
            }
            ForkResult::Parent { child } => child,
        };
        forked.send(()).expect("the other thread waits");
        // A close that ignores the child lets the next open fail within this time.
        let early = is_reopened.recv_timeout(Duration::from_secs(1));
        assert_eq!(
            early,
            Err(mpsc::RecvTimeoutError::Timeout),
            "the child holds the group"
        );
        drop(ours);
        assert_eq!(waitpid(pid, None).expect("it ends"), WaitStatus::Exited(pid, 0));
        drop(life);
        is_reopened
            .recv_timeout(Duration::from_secs(60))
            .expect("the group is free");
    });
}
