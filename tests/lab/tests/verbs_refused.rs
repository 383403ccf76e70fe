//! Host memory over soft-RoCE through libibverbs: every refusal.

#[macro_use]
mod ibv;

use gaudi_seam::{ErrorKind, HostVa};
use gaudi_sys::{Errno, RawMapping};
use gaudi_verbs::provider::{Device, QpState};
use gaudi_verbs::{Access, MrAddr, Payload, RecvWr, RemoteAddr, Rkey, SendOp, Sge, WcStatus};

use ibv::{ALL, Host, LEN, NOBODYS, Nic, memories, refused, request, succeeded, word};

/// A write of some bytes to a place, on connections of its own.
fn write_to(nic: &Nic, from: &Host, addr: u64, rkey: Rkey, len: usize) -> WcStatus {
    let to = RemoteAddr {
        addr: MrAddr(addr),
        rkey,
    };
    nic.run(&[from.sge(0, len)], SendOp::Write(to)).status
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn send_beyond_receive_fails_both_ends() {
    let nic = nic!("send_beyond_receive_fails_both_ends");
    let (from, to) = memories(&nic, 11);
    let (here, there) = nic.pair();
    there.receive(1, &[to.sge(0, 99)]);
    let done = here.run(&[from.sge(0, 100)], SendOp::Send);
    // The specification wants the first; rxe answers with the second.
    let wanted = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR];
    assert!(wanted.contains(&done.status), "the sender: {done:?}");
    // The specification wants LOC_LEN_ERR (rxe_mr.c, copy_data: too many bytes are EINVAL, which
    // counts as a malformed receive).
    assert_eq!(there.wait().status, WcStatus::LOC_QP_OP_ERR, "the receiver");
    assert!(to.bytes(99, 1) == [0], "nothing behind the receive is touched");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn send_without_receive_exhausts_rnr_retries() {
    let nic = nic!("send_without_receive_exhausts_rnr_retries");
    let (from, _) = memories(&nic, 12);
    let (here, there) = (nic.queue(), nic.queue());
    here.connect_with(&there.address(), ALL, 1);
    there.connect(&here.address());
    let done = here.run(&[from.sge(0, 8)], SendOp::Send);
    assert_eq!(done.status, WcStatus::RNR_RETRY_EXC_ERR, "{done:?}");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn unaligned_atomic_is_rejected() {
    let nic = nic!("unaligned_atomic_is_rejected");
    let (old, cell) = (nic.host(4096), nic.host(4096));
    let to = cell.remote(4);
    let (here, _there) = nic.pair();
    // By librxe, before it is posted; another library leaves it to the peer.
    match here.post(1, &[old.sge(0, 8)], SendOp::FetchAdd { to, add: 1 }) {
        Err(error) => assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}"),
        Ok(()) => assert_eq!(here.wait().status, WcStatus::REM_INV_REQ_ERR),
    }
    assert_eq!(word(&cell, 0), 0, "and nothing is added");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn excess_inline_data_fails_the_post() {
    let nic = nic!("excess_inline_data_fails_the_post");
    let to = nic.host(4096);
    let (here, _there) = nic.pair();
    let bytes = vec![1; here.cap.max_inline_data as usize + 1];
    let post = here
        .queue
        .post_send(&request(1, Payload::Inline(&bytes), SendOp::Write(to.remote(0))));
    refused(post, ErrorKind::InvalidInput, Errno::EINVAL);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn full_send_queue_would_block_until_polled() {
    let nic = nic!("full_send_queue_would_block_until_polled");
    let (from, _) = memories(&nic, 15);
    let (here, there) = nic.pair();
    // No receive is there, so nothing leaves the queue.
    let mut posted = 0;
    let full = loop {
        match here.post(posted, &[from.sge(0, 8)], SendOp::Send) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        assert!(posted <= 100_000, "a queue has an end");
    };
    assert_eq!(
        (full.kind(), full.errno()),
        (ErrorKind::WouldBlock, Some(Errno::ENOMEM))
    );
    assert!(posted >= 32, "it has what was asked for, and no less: {posted}");
    for _ in 0..4 {
        there.receive(1, &[from.sge(0, 8)]);
    }
    succeeded(&here.wait(), "one leaves");
    here.post(posted, &[from.sge(0, 8)], SendOp::Send)
        .expect("room again");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_full_receive_queue_would_block() {
    let nic = nic!("a_full_receive_queue_would_block");
    let host = nic.host(4096);
    let (here, _there) = nic.pair();
    let sges = [host.sge(0, 8)];
    let full = (0..100_000).find_map(|wr_id| here.queue.post_recv(&RecvWr { wr_id, sges: &sges }).err());
    let full = full.expect("a queue has an end");
    assert_eq!(
        (full.kind(), full.errno()),
        (ErrorKind::WouldBlock, Some(Errno::ENOMEM))
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn excess_sges_fail_the_post() {
    let nic = nic!("excess_sges_fail_the_post");
    let (from, to) = memories(&nic, 16);
    let (here, _there) = nic.pair();
    let of_queue = vec![from.sge(0, 1); here.cap.max_send_sge as usize + 1];
    refused(
        here.post(1, &of_queue, SendOp::Write(to.remote(0))),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    let of_any = vec![from.sge(0, 1); 1000];
    refused(
        here.post(1, &of_any, SendOp::Write(to.remote(0))),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    refused(
        here.queue.post_recv(&RecvWr {
            wr_id: 1,
            sges: &of_any,
        }),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn unknown_rkey_is_refused() {
    let nic = nic!("unknown_rkey_is_refused");
    let (from, to) = memories(&nic, 17);
    let wrong = Rkey(to.mr.rkey.0 ^ 0xff);
    assert_eq!(
        write_to(&nic, &from, to.iova.0, wrong, 8),
        WcStatus::REM_ACCESS_ERR
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn bytes_outside_of_a_region_are_refused() {
    let nic = nic!("bytes_outside_of_a_region_are_refused");
    let (from, to) = memories(&nic, 18);
    let (start, end) = (to.iova.0, to.iova.0 + LEN as u64);
    for (what, addr, len) in [
        ("the byte before", start - 1, 1),
        ("across the beginning", start - 1, 2),
        ("the byte after", end, 1),
        ("across the end", end - 1, 2),
        ("across the end of all numbers", u64::MAX, 2),
    ] {
        assert_eq!(
            write_to(&nic, &from, addr, to.mr.rkey, len),
            WcStatus::REM_ACCESS_ERR,
            "{what}"
        );
    }
    assert!(
        to.bytes(0, LEN).iter().all(|byte| *byte == 0),
        "nothing is written"
    );
    assert_eq!(
        write_to(&nic, &from, end - 1, to.mr.rkey, 1),
        WcStatus::SUCCESS,
        "the last byte"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn region_enforces_its_access() {
    let nic = nic!("region_enforces_its_access");
    let from = nic.host(4096);
    type Right = (&'static str, Access, fn(RemoteAddr) -> SendOp);
    let ops: [Right; 3] = [
        ("write", Access::REMOTE_WRITE, SendOp::Write),
        ("read", Access::REMOTE_READ, SendOp::Read),
        ("atomic", Access::REMOTE_ATOMIC, |to| SendOp::FetchAdd {
            to,
            add: 1,
        }),
    ];
    for (right, _, _) in ops {
        for (name, need, op) in ops {
            let access = ops.iter().find(|(other, ..)| *other == right).expect("a row").1;
            let memory = RawMapping::anonymous(4096, true).expect("memory");
            let to = nic.register(memory, Access::LOCAL_WRITE | access);
            let status = nic.run(&[from.sge(0, 8)], op(to.remote(0))).status;
            let wanted = if access.contains(need) {
                WcStatus::SUCCESS
            } else {
                WcStatus::REM_ACCESS_ERR
            };
            assert_eq!(status, wanted, "{name} of a region for {right}");
        }
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn queue_pair_enforces_its_access() {
    let nic = nic!("queue_pair_enforces_its_access");
    let (from, to) = memories(&nic, 19);
    let (here, there) = (nic.queue(), nic.queue());
    here.connect(&there.address());
    there.connect_with(&here.address(), Access::REMOTE_READ, 7);
    succeeded(&here.run(&[from.sge(0, 8)], SendOp::Read(to.remote(0))), "a read");
    let done = here.run(&[from.sge(0, 8)], SendOp::Write(to.remote(0)));
    assert!(
        [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_ACCESS_ERR].contains(&done.status),
        "a write is refused: {done:?}"
    );
    assert_eq!(to.bytes(0, 8), [0; 8], "and not done");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn unknown_lkey_fails_locally() {
    let nic = nic!("unknown_lkey_fails_locally");
    let (from, to) = memories(&nic, 20);
    let (here, _there) = nic.pair();
    let wrong = Sge {
        lkey: NOBODYS,
        ..from.sge(0, 8)
    };
    // librxe, or rxe: by the post, or by a completion. rxe flushes a request whose source it
    // refuses (rxe_comp.c).
    match here.post(1, &[wrong], SendOp::Write(to.remote(0))) {
        Err(error) => assert_eq!(error.errno(), Some(Errno::EINVAL)),
        Ok(()) => {
            let status = here.wait().status;
            assert!(
                [WcStatus::LOC_PROT_ERR, WcStatus::WR_FLUSH_ERR].contains(&status),
                "{status}"
            );
        }
    }
    assert_eq!(to.bytes(0, 8), [0; 8], "nothing is sent");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn read_into_read_only_region_fails() {
    let nic = nic!("read_into_read_only_region_fails");
    let from = nic.host(4096);
    let memory = RawMapping::anonymous(4096, true).expect("memory");
    let narrow = nic.register(memory, Access::empty());
    let done = nic.run(&[narrow.sge(0, 8)], SendOp::Read(from.remote(0)));
    assert_eq!(done.status, WcStatus::LOC_PROT_ERR, "a read into it: {done:?}");
    let status = nic.run(&[narrow.sge(0, 8)], SendOp::Write(from.remote(0))).status;
    assert_eq!(status, WcStatus::SUCCESS, "as a source it needs no right");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn keys_die_with_their_region() {
    let nic = nic!("keys_die_with_their_region");
    let (from, to) = memories(&nic, 21);
    nic.device.dereg_mr(to.mr.handle).expect("it ends");
    assert_eq!(
        write_to(&nic, &from, to.iova.0, to.mr.rkey, 8),
        WcStatus::REM_ACCESS_ERR,
        "its key is refused"
    );
    assert_eq!(to.bytes(0, 8), [0; 8], "and its memory is not touched");
    refused(
        nic.device.dereg_mr(to.mr.handle),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_key_of_another_domain_is_refused() {
    let nic = nic!("a_key_of_another_domain_is_refused");
    let (from, _) = memories(&nic, 22);
    let other = Nic {
        device: nic.device.clone(),
        pd: nic.device.alloc_pd().expect("a second domain"),
    };
    let to = other.host(4096);
    assert_eq!(
        write_to(&nic, &from, to.iova.0, to.mr.rkey, 8),
        WcStatus::REM_ACCESS_ERR,
        "queue pair and region are of two domains"
    );
    nic.device.dereg_mr(to.mr.handle).expect("it ends");
    nic.device.dealloc_pd(other.pd).expect("and its domain");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn unmapped_memory_is_not_registered() {
    let nic = nic!("unmapped_memory_is_not_registered");
    // Below what the kernel lets anybody map (vm.mmap_min_addr); whatever else is free another
    // test's thread may map.
    let free = HostVa(0x1000);
    let error = nic
        .try_promise(free, 4096, free.into(), ALL)
        .expect_err("it is unmapped");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::BadAddress, Some(Errno::EFAULT)),
        "{error}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn queue_pair_in_error_flushes_everything() {
    let nic = nic!("queue_pair_in_error_flushes_everything");
    let (from, to) = memories(&nic, 25);
    let (here, _there) = nic.pair();
    here.receive(1, &[to.sge(0, 8)]);
    here.receive(2, &[to.sge(0, 8)]);
    here.to_error();
    let flushed = [here.wait(), here.wait()];
    assert!(
        flushed.iter().all(|done| done.status == WcStatus::WR_FLUSH_ERR),
        "what was queued: {flushed:?}"
    );
    assert_eq!(flushed.map(|done| done.wr_id), [1, 2], "in order");
    let _ = here.post(3, &[from.sge(0, 8)], SendOp::Write(to.remote(0)));
    assert_eq!(here.wait().status, WcStatus::WR_FLUSH_ERR, "what comes later");
    assert_eq!(
        nic.device.query_qp(here.handle).expect("it answers"),
        QpState::ERR,
        "and it stays so"
    );
}
