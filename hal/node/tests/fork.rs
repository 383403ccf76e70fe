//! The descriptor of a virtual node in a fork child.

#![expect(unsafe_code, reason = "fork(2) is tested")]

mod common;

use std::os::fd::IntoRawFd as _;

use gaudi_seam::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, close, fork};

use common::{Mapped, PAGE, Program, bytes, spec};

/// Runs `child` in a fork child. Its result is the exit status.
fn in_child(child: impl FnOnce() -> bool) -> Pid {
    // SAFETY: the child calls the node, which refuses by an atomic's value, and leaves with _exit.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let status = i32::from(!child());
            // SAFETY: ends the child without the parent's destructors.
            unsafe { nix::libc::_exit(status) }
        }
        ForkResult::Parent { child } => child,
    }
}

fn succeeded(child: Pid) {
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
}

#[test]
fn fork_child_is_refused_and_harmless() {
    let spec = spec("fork");
    let mut program = Program::open(&spec).unwrap();
    let buffer = Mapped::new(&program, PAGE);
    buffer.memory.write(0, b"parent").unwrap();

    // The child's calls fail, and its exit changes nothing.
    succeeded(in_child(|| {
        let calls = [
            program.create(PAGE).map(drop),
            program.destroy(buffer.handle),
            program.usage(buffer.handle).map(drop),
        ];
        calls.into_iter().all(|call| call == Err(Errno::ENODEV)) && !program.node.is_released()
    }));
    assert_eq!(program.usage(buffer.handle), Ok(0));

    // So do its close of the descriptor and its drop of the node.
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

    // The device stays open while a child has the descriptor, also after the parent closed it.
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let child = in_child(|| nix::unistd::read(&reader, &mut [0; 1]).is_ok());
    drop((buffer, data));
    let Program { node, fd } = program;
    drop(fd);
    assert!(!node.is_released(), "the child has it open");
    nix::unistd::write(&writer, b"x").unwrap();
    succeeded(child);
    assert!(node.is_released());
    drop(node);
    Program::open(&spec).expect("the device is free");
}
