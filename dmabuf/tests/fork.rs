//! A fork child can do nothing with its parent's buffer but drop it.

#![expect(unsafe_code, reason = "fork(2) is what is tested")]

use gaudi_dmabuf::{DmaBuf, ErrorKind};
use gaudi_sys::{Memfd, standin};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

#[test]
fn fork_child_calls_are_forked() {
    let memory = Memfd::sparse(standin::MEMFD_NAME, 8192).unwrap();
    let range = standin::Window { offset: 0, len: 8192 };
    let buffer = DmaBuf::from_fd(standin::export(&memory, range).unwrap()).unwrap();
    let window = buffer.whole().unwrap();
    let cpu = window.attach_cpu("parent").unwrap();
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    // SAFETY: the child only makes calls that answer at once, drops, and leaves by _exit.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let forked = [
                window.attach("child").map(drop),
                window.attach_cpu("child").map(drop),
                cpu.begin(gaudi_dmabuf::Directions::Read).map(drop),
                gaudi_dmabuf::send(&socket, &window, std::time::Duration::from_secs(60)),
            ]
            .into_iter()
            .filter(|answer| {
                answer
                    .as_ref()
                    .is_err_and(|error| error.kind() == ErrorKind::Forked)
            })
            .count();
            drop((cpu, window, buffer));
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { nix::libc::_exit(i32::try_from(forked).unwrap_or(99)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(
                waitpid(child, None).unwrap(),
                WaitStatus::Exited(child, 4),
                "all four calls must answer Forked"
            );
        }
    }
    cpu.write(0, b"still ours").unwrap();
    assert_eq!(
        buffer.attachments(),
        ["parent"],
        "the child's drop did not reach the parent"
    );
}
