//! A fork child has its parent's objects and none of its rights.

#![expect(unsafe_code, reason = "fork(2)")]

use gaudi_device::{Deadline, Device, DeviceSpec, ErrorKind};
use gaudi_hal::mock_ledger;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// Runs `child` in a fork child; its answer is the number of the first check that failed, 0 where
/// none did.
fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only uses the objects of the test, exits without running the parent's exit
    // handlers, and the C library makes its allocator usable after a fork.
    match unsafe { fork() }.expect("fork works") {
        ForkResult::Child => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
            // SAFETY: ends the child at once.
            unsafe { nix::libc::_exit(code) }
        }
        ForkResult::Parent { child } => match waitpid(child, None).expect("the child ends") {
            WaitStatus::Exited(_, code) => code,
            other => panic!("the child ended by {other:?}"),
        },
    }
}

#[test]
fn fork_child_calls_fail_with_forked() {
    let spec: DeviceSpec = "mock:gaudi2?name=fork".parse().expect("a spec");
    let device = Device::open(&spec).expect("the mock opens");
    let buffer = device.alloc(4096).expect("a buffer");
    let pages = device.alloc_exclusive(4096).expect("pages");
    let host = device.alloc_host(4096).expect("a mapping");
    let sob = device.sob().expect("a sync object");
    let mut queue = device
        .queue(gaudi_spec::gaudi2::queue::PDMA_0_1)
        .expect("a queue");
    host.fill(0, 4096, 0x5a).expect("filled");
    let completion = device.copy(&buffer, &host).expect("submitted");
    completion.wait(Deadline::NEVER).expect("done");
    let before = mock_ledger(&spec);

    let forked = |answer: Result<(), gaudi_device::Error>| {
        answer.map_err(|error| error.kind()) == Err(ErrorKind::Forked)
    };
    let code = in_child(|| {
        let checks = [
            forked(device.alloc(1).map(drop)),
            forked(device.alloc_exclusive(1).map(drop)),
            forked(device.alloc_host(1).map(drop)),
            forked(device.copy(&buffer, &host).map(drop)),
            forked(device.fill(&buffer, 0).map(drop)),
            forked(device.info().map(drop)),
            forked(device.sob().map(drop)),
            forked(device.queue(gaudi_spec::gaudi2::queue::PDMA_0_1).map(drop)),
            forked(queue.try_clone().map(drop)),
            forked(queue.copy(&buffer, &host).map(drop)),
            forked(queue.signal(&sob, 1).map(drop)),
            forked(completion.poll().map(drop)),
            forked(completion.wait(Deadline::NEVER)),
            forked(completion.event_fd().map(drop)),
            forked(host.write(0, b"x")),
            forked(pages.export(..).map(drop)),
            forked(device.drain(Deadline::NEVER)),
            forked(device.clone().close().map_err(gaudi_device::Error::from)),
            forked(buffer.clone().close().map_err(gaudi_device::Error::from)),
            forked(host.clone().close().map_err(gaudi_device::Error::from)),
        ];
        drop((completion.clone(), device.clone(), host.clone()));
        checks
            .iter()
            .position(|&check| !check)
            .map_or(0, |at| i32::try_from(at).unwrap_or(98) + 1)
    });
    assert_eq!(code, 0, "check {code} in the child was not refused as Forked");

    assert_eq!(
        mock_ledger(&spec),
        before,
        "the parent's objects are as they were"
    );
    let mut seen = [0; 4096];
    device
        .read(&buffer, 0, &mut seen)
        .expect("the parent still works");
    assert_eq!(seen, [0x5a; 4096], "and its memory is its own");
}

#[test]
fn fork_childs_drops_spare_the_parent() {
    let spec: DeviceSpec = "mock:gaudi2?name=forkdrop".parse().expect("a spec");
    let device = Device::open(&spec).expect("the mock opens");
    let buffer = device.alloc(4096).expect("a buffer");
    let host = device.alloc_host(4096).expect("a mapping");
    let mut all = Some((device, buffer, host));
    let code = in_child(|| {
        drop(all.take());
        0
    });
    assert_eq!(code, 0, "the child dropped all and ended");
    let (device, buffer, host) = all.expect("the parent's are its own");
    host.fill(0, 4096, 7).expect("filled");
    device
        .copy(&buffer, &host)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("done");
}
