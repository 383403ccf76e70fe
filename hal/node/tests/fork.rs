//! The descriptor of a virtual node in a fork child.

#![expect(unsafe_code, reason = "the test calls fork(2)")]

mod common;

use std::os::fd::IntoRawFd as _;

use gaudi_seam::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, close, fork};

use common::{Mapped, PAGE, Program, bytes, spec};

/// Runs `child` in a fork child. The exit status is 0 if it returns true.
fn in_child(child: impl FnOnce() -> bool) -> Pid {
    // SAFETY: the child calls only the node, which rejects the call after one atomic load, and
    // _exit(2).
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let status = i32::from(!child());
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { nix::libc::_exit(status) }
        }
        ForkResult::Parent { child } => child,
    }
}

fn succeeded(child: Pid) {
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
}

#[test]
fn fork_child_gets_enodev_and_is_harmless() {
    let spec = spec("fork");
    let mut program = Program::open(&spec).unwrap();
    let buffer = Mapped::new(&program, PAGE);
    buffer.memory.write(0, b"parent").unwrap();

    // The child's calls fail, and its exit does not affect the parent.
    succeeded(in_child(|| {
        let calls = [
            program.create(PAGE).map(drop),
            program.destroy(buffer.handle),
            program.usage(buffer.handle).map(drop),
        ];
        calls.into_iter().all(|call| call == Err(Errno::ENODEV)) && !program.node.is_released()
    }));
    assert_eq!(program.usage(buffer.handle), Ok(0));

    // Closing the descriptor and dropping the node in the child do not affect the parent either.
    let mut taken = Some(program);
    succeeded(in_child(|| {
        let Program { node, fd } = taken.take().expect("the child has a copy");
        let closed = close(fd.into_raw_fd()).is_ok();
        drop(node);
        closed
    }));
    program = taken.expect("the parent has its own");
    assert!(!program.node.is_released());
    assert_eq!(&bytes::<6>(&buffer.memory, 0), b"parent");
    let data = Mapped::new(&program, PAGE);
    let store = gaudi_spec::gaudi2::packet::MsgLong::new(data.va, 0x1234_5678);
    program.execute(&buffer, &store.to_bytes());
    assert_eq!(bytes::<4>(&data.memory, 0), 0x1234_5678_u32.to_le_bytes());

    // The device stays open while the child holds the descriptor, even after the parent closed its
    // own.
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let child = in_child(|| nix::unistd::read(&reader, &mut [0; 1]).is_ok());
    drop((buffer, data));
    let Program { node, fd } = program;
    drop(fd);
    assert!(!node.is_released(), "the child holds the descriptor");
    nix::unistd::write(&writer, b"x").unwrap();
    succeeded(child);
    assert!(node.is_released());
    drop(node);
    Program::open(&spec).expect("the device is free");
}
