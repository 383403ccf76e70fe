//! Bytes of the program, and transfers that the program abandons.

use std::sync::Arc;
use std::time::Duration;

use gaudi_device::HostBuffer;
use gaudi_remote::{Endpoint, ErrorKind, Local, Rights};

use crate::nodes::{MAX_WAIT, Setup, noise, pair};

/// A call that timed out has left its transfer under way: the next must not write into what the NIC
/// still reads.
#[test]
fn put_after_timeout_arrives_unchanged() {
    const LEN: usize = 256 << 10;
    let (mut a, mut b) = pair("after-timeout", &Setup::direct(), &Setup::direct());
    let memory = [1, 2].map(|_| Arc::new(HostBuffer::new(LEN).expect("host memory")));
    memory[0].write(0, &noise(1, LEN)).expect("filled");
    let [first, second] = memory.each_ref().map(|memory| {
        b.endpoint.offer(memory, Rights::BOTH).expect("offered");
        a.endpoint.receive_offer(MAX_WAIT).expect("received")
    });
    let (mut got, mut back) = (vec![0; LEN], vec![0; LEN]);
    let mut timeouts = 0;
    for round in 0..60 {
        if let Err(error) = a.endpoint.get_bytes(&mut got, &first, Duration::ZERO) {
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            timeouts += 1;
        }
        let bytes = noise(round + 2, LEN);
        a.endpoint.put_bytes(&bytes, &second, MAX_WAIT).expect("put");
        memory[1].read(0, &mut back).expect("read");
        assert!(back == bytes, "round {round}: the peer has what was put");
    }
    assert!(timeouts > 0, "some calls ended before their transfers");
    // Whatever was left to itself has come back by now, and is registered no more.
    for _ in 0..2 {
        a.endpoint
            .put_bytes(&[1], second.at(0..1).expect("in it"), MAX_WAIT)
            .expect("put");
    }
    assert!(
        a.live() <= 3,
        "the messages, and one scratch buffer to put from and to get into"
    );
}

#[test]
fn unclaimed_results_are_kept_and_bounded() {
    let (mut a, mut b) = pair("kept", &Setup::direct(), &Setup::direct());
    let memory = [(); 2].map(|()| Arc::new(HostBuffer::new(4096).expect("host memory")));
    b.endpoint.offer(&memory[0], Rights::BOTH).expect("offered");
    let remote = a.endpoint.receive_offer(MAX_WAIT).expect("received");
    let one = Local::host(&memory[1], 0..1).expect("in it");
    let range = remote.at(0..1).expect("in it");
    let puts: Vec<_> = (0..Endpoint::MOST_TRANSFERS)
        .map(|_| a.endpoint.put(&one, range.clone()).expect("begun"))
        .collect();
    let error = a.endpoint.put(&one, range.clone()).expect_err("one too many");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    assert!(
        error.help().is_some_and(|help| help.contains("wait")),
        "{error:?}"
    );
    // The newest first: the others are over then, and stay.
    for put in puts.into_iter().rev() {
        assert_eq!(
            a.endpoint.wait(put, MAX_WAIT).expect("its result is there").bytes,
            1
        );
    }
    let put = a.endpoint.put(&one, range).expect("there is room again");
    a.endpoint.wait(put, MAX_WAIT).expect("put");
}

/// A program that moves ever new host memory would pin all of it.
#[test]
fn forgotten_host_memory_is_released() {
    let (mut a, mut b) = pair("host-forget", &Setup::direct(), &Setup::direct());
    let theirs = Arc::new(HostBuffer::new(4096).expect("host memory"));
    b.endpoint.offer(&theirs, Rights::BOTH).expect("offered");
    let remote = a.endpoint.receive_offer(MAX_WAIT).expect("received");
    for round in 0..3 {
        let ours = Arc::new(HostBuffer::new(4096).expect("host memory"));
        ours.write(0, &noise(round, 4096)).expect("filled");
        let put = a.endpoint.put(&ours, &remote).expect("begun");
        a.endpoint.wait(put, MAX_WAIT).expect("put");
        assert_eq!(a.live(), 2, "the messages and the memory");
        // A part stands for the whole of it.
        a.endpoint
            .forget(Local::host(&ours, 5..6).expect("in it"))
            .expect("forgotten");
        assert_eq!(a.live(), 1, "the messages");
        assert_eq!(Arc::strong_count(&ours), 1, "and it has one owner");
    }
    let mapping = a.device.alloc_host(4096).expect("host memory");
    a.endpoint.report(&mapping).expect("registered");
    a.endpoint.forget(&mapping).expect("forgotten");
    assert_eq!(a.live(), 1, "the messages");
    // This call also waits for the transfer of the call that timed out.
    let _ = a.endpoint.put_bytes(&[1; 4096], &remote, Duration::ZERO);
    a.endpoint
        .forget(&mapping)
        .expect("nothing is under way for long");
    b.endpoint.forget(&theirs).expect("no more offered");
    let error = a
        .endpoint
        .put_bytes(&[1], remote.at(0..1).expect("in it"), MAX_WAIT);
    assert_eq!(error.expect_err("refused").kind(), ErrorKind::AccessDenied);
}
