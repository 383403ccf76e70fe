//! A fork child can do nothing with its parent's NIC but drop it, and that neither hangs nor cuts
//! the parent's cable.

#![expect(unsafe_code, reason = "fork(2) is what is tested")]

use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::RawMapping;
use gaudi_softnic::{Fabric, SoftNic};
use gaudi_verbs::{Access, Context, ErrorKind, QpInit, WorkCompletion};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

#[test]
fn fork_child_calls_fail_with_forked() {
    let (a, b) = SoftNic::pair(Default::default()).unwrap();
    check_child(a, b);
}

#[test]
fn fork_child_of_fabric_fails_with_forked() {
    let fabric = Fabric::new(1);
    let [a, b] = ["a", "b"].map(|name| fabric.nic(name, Default::default()).unwrap());
    fabric.join(&a, &b).unwrap();
    check_child(a, b);
}

fn check_child(a: Arc<SoftNic>, b: Arc<SoftNic>) {
    let make = |nic: Arc<SoftNic>| {
        let context = Context::open(nic).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16).unwrap();
        let memory = Arc::new(RawMapping::anonymous(4096, false).unwrap());
        let mr = pd
            .reg_mapping(memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
            .unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        (qp, mr, cq, pd, context)
    };
    let (mut a, mut b) = (make(a), make(b));
    let (at_a, at_b) = (a.0.address().unwrap(), b.0.address().unwrap());
    a.0.connect(&at_b, Access::REMOTE_WRITE).unwrap();
    b.0.connect(&at_a, Access::REMOTE_WRITE).unwrap();
    let local = [a.1.sge(0, 100).unwrap()];
    let to = b.1.remote().at(0, 100).unwrap();
    // SAFETY: the child only makes calls that answer at once, drops, and leaves by _exit.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let (mut qp, mr, cq, pd, context) = a;
            let mut wc = [WorkCompletion::EMPTY];
            let answers = [
                qp.post_send(1).write(&local, to).post(),
                qp.post_recv(1).post(&[]),
                cq.poll(&mut wc).map(drop),
                cq.req_notify(false),
                context.query_port().map(drop),
                context.alloc_pd().map(drop),
                pd.create_qp(&QpInit::new(&cq)).map(drop),
                qp.to_error(),
                mr.close().map_err(gaudi_verbs::Error::from),
            ];
            let forked = answers.iter().filter(|answer| {
                answer
                    .as_ref()
                    .is_err_and(|error| error.kind() == ErrorKind::Forked)
            });
            let count = forked.count();
            drop((qp, cq, pd, context, b));
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { nix::libc::_exit(i32::try_from(count).unwrap_or(99)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(
                waitpid(child, None).unwrap(),
                WaitStatus::Exited(child, 9),
                "all nine calls must answer Forked, and drop must end"
            );
        }
    }
    a.0.post_send(1).write(&local, to).post().unwrap();
    let mut wc = [WorkCompletion::EMPTY];
    a.2.wait(&mut wc, Duration::from_secs(60)).unwrap();
    assert!(wc[0].is_success(), "the parent's connection still works: {wc:?}");
}
