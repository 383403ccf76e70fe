//! A fork child writes nothing into its parent's trace and waits for none of its parent's locks.

#![expect(unsafe_code, reason = "fork is")]

mod recorder;

use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;

use gaudi_layers::Stack;
use gaudi_layers::fault::{FaultLayer, Plan};
use gaudi_layers::time::VirtualClock;
use gaudi_layers::trace::{Reader, Record, TraceLayer};
use gaudi_layers::validate::{Policy, ValidateLayer};
use gaudi_seam::{LayerSpec, SharedIo};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use recorder::Recorder;

#[test]
fn fork_child_does_not_write_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.jsonl");
    let time = Arc::new(VirtualClock::default());
    let plan: Plan = "mem_alloc:when=2:error=ENOMEM".parse().expect("a plan");
    let faulty: SharedIo = Arc::new(FaultLayer::new(Recorder::new(), &plan, time.clone()));
    let file = File::create(&path).expect("a file");
    let traced: SharedIo = Arc::new(TraceLayer::new(faulty, Box::new(file), time));
    let io = ValidateLayer::new(traced, Policy::Refuse);
    recorder::alloc(&io, 4096).expect("the parent's");
    let other = folder.path().join("other.jsonl");
    let layer = LayerSpec {
        name: "trace".to_owned(),
        argument: other.to_str().map(str::to_owned),
    };
    let stack = Stack::prepare(&[layer]).expect("a new file");
    // Another open of the file, as another process has it.
    let lock = || {
        let file = File::open(&other).expect("the file");
        Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok()
    };

    // SAFETY: this is the only test of its binary, and the child uses no lock of the parent's
    // threads: it ends in `_exit`.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Child => {
            // The second for the plan, and misuse for the books; but the layers are the parent's.
            let passed = recorder::alloc(&io, 0).is_ok();
            drop(io);
            drop(stack);
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { nix::libc::_exit(i32::from(!passed)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(
                waitpid(child, None),
                Ok(WaitStatus::Exited(child, 0)),
                "the child passed through"
            );
            assert!(!lock(), "the child's drop leaves the parent's lock");
            drop(stack);
            assert!(lock(), "the parent's drop unlocks the file");
        }
    }
    drop(io);
    let records: Vec<_> = Reader::new(BufReader::new(File::open(&path).expect("the trace")))
        .map(|record| record.expect("a whole trace"))
        .collect();
    assert!(
        matches!(records.as_slice(), [Record::Header(_), Record::Operation(_), Record::End(end)] if end.operations == 1),
        "header, the parent's operation, one end: {records:?}"
    );
}
