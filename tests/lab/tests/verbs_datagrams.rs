//! Datagrams, shared receives and windows of libibverbs on soft-RoCE.

#[macro_use]
mod ibv;

use gaudi_lab::nic::pattern;
use gaudi_seam::ErrorKind;
use gaudi_sys::Errno;
use gaudi_verbs::provider::{Device, MwType, QpTransition, QpType, SrqRequest};
use gaudi_verbs::{
    Access, AsyncElement, AsyncEventType, MrAddr, Payload, Psn, RecvWr, RemoteAddr, Rkey, SendOp, SendWr,
    UdDestination, WcOpcode, WcStatus, WindowBind,
};

use ibv::{ALL, Nic, Queue, event_of, refused, request, succeeded, wait};

// Datagrams.

const QKEY: u32 = 0x1111_1111;
/// Before the bytes of every datagram.
const HEADER: usize = 40;

fn datagrams(nic: &Nic) -> Queue {
    let queue = nic.queue_of(QpType::Ud, None, 0);
    queue.modify(&QpTransition::UdInit { qkey: QKEY });
    queue.modify(&QpTransition::UdReadyToReceive);
    queue.modify(&QpTransition::UdReadyToSend { sq_psn: Psn(3) });
    queue
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn datagram_follows_its_header_with_sender() {
    let nic = nic!("datagram_follows_its_header_with_sender");
    let (from, to) = (nic.host(4096), nic.host(4096));
    from.pattern(1);
    let (here, there) = (datagrams(&nic), datagrams(&nic));
    let gid = nic.device.query_port().expect("a port").gid;
    let ah = nic.device.create_ah(nic.pd, &gid, 0).expect("a way");
    there.receive(1, &[to.sge(0, 2000)]);
    let sges = [from.sge(0, 900)];
    let datagram = SendWr {
        ud: Some(UdDestination {
            ah,
            qpn: there.queue.qpn(),
            qkey: QKEY,
        }),
        ..request(2, Payload::Sges(&sges), SendOp::SendImm(77))
    };
    here.queue.post_send(&datagram).expect("room");
    succeeded(&here.wait(), "it left");
    let got = there.wait();
    succeeded(&got, "it came");
    assert_eq!(
        (got.byte_len, got.grh, got.imm_data),
        (940, true, Some(77)),
        "with its header"
    );
    assert_eq!(got.src_qp, Some(here.queue.qpn()), "and its sender");
    assert!(
        to.bytes(HEADER, 900) == pattern(1, 900),
        "the bytes are behind the header"
    );
    // Destroyed under way: an error, no pointer into nothing.
    nic.device.destroy_ah(ah).expect("it ends");
    refused(
        here.queue.post_send(&datagram),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    refused(nic.device.destroy_ah(ah), ErrorKind::InvalidInput, Errno::EINVAL);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn datagram_with_wrong_qkey_is_dropped() {
    let nic = nic!("datagram_with_wrong_qkey_is_dropped");
    let (from, to) = (nic.host(4096), nic.host(4096));
    from.pattern(2);
    let (here, there) = (datagrams(&nic), datagrams(&nic));
    let gid = nic.device.query_port().expect("a port").gid;
    let ah = nic.device.create_ah(nic.pd, &gid, 0).expect("a way");
    there.receive(1, &[to.sge(0, 2000)]);
    for (wr_id, qkey, len) in [(2, QKEY + 1, 10), (3, QKEY, 20)] {
        let sges = [from.sge(0, len)];
        here.queue
            .post_send(&SendWr {
                ud: Some(UdDestination {
                    ah,
                    qpn: there.queue.qpn(),
                    qkey,
                }),
                ..request(wr_id, Payload::Sges(&sges), SendOp::Send)
            })
            .expect("room");
        succeeded(&here.wait(), "a datagram has left, whatever becomes of it");
    }
    assert_eq!(there.wait().byte_len, 60, "the second one took the receive");
    nic.device.destroy_ah(ah).expect("it ends");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn address_handle_keeps_its_pd() {
    let nic = nic!("address_handle_keeps_its_pd");
    let pd = nic.device.alloc_pd().expect("a domain");
    let gid = nic.device.query_port().expect("a port").gid;
    let ah = nic.device.create_ah(pd, &gid, 0).expect("a way");
    refused(nic.device.dealloc_pd(pd), ErrorKind::InUse, Errno::EBUSY);
    nic.device.destroy_ah(ah).expect("it ends");
    nic.device.dealloc_pd(pd).expect("and its domain");
}

// Shared receives.

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_qps_share_one_srq() {
    let nic = nic!("two_qps_share_one_srq");
    let (from, to) = (nic.host(4096), nic.host(4096));
    from.pattern(3);
    let request = SrqRequest {
        pd: nic.pd,
        max_wr: 16,
        max_sge: 2,
    };
    let (srq, shared) = nic.device.create_srq(&request).expect("a shared queue");
    for wr_id in 0..2_u64 {
        let sges = [to.sge(wr_id as usize * 100, 100)];
        shared.post_recv(&RecvWr { wr_id, sges: &sges }).expect("room");
    }
    let mut ends = Vec::new();
    for turn in 0..2 {
        let there = nic.queue_of(QpType::Rc, Some(srq), 0);
        let here = nic.queue();
        here.connect(&there.address());
        there.connect(&here.address());
        succeeded(&here.run(&[from.sge(0, 50 + turn)], SendOp::Send), "a send");
        let got = there.wait();
        assert_eq!(
            (got.wr_id, got.byte_len, got.opcode),
            (turn as u64, 50 + turn as u32, WcOpcode::RECV),
            "the oldest receive, for either queue pair"
        );
        ends.push((here, there));
    }
    refused(nic.device.destroy_srq(srq), ErrorKind::InUse, Errno::EBUSY);
    for (here, there) in ends {
        there.close();
        here.close();
    }
    nic.device.destroy_srq(srq).expect("it is not in use");
    let sges = [to.sge(0, 8)];
    refused(
        shared.post_recv(&RecvWr {
            wr_id: 1,
            sges: &sges,
        }),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn low_srq_raises_one_event() {
    let nic = nic!("low_srq_raises_one_event");
    let host = nic.host(4096);
    let asked = SrqRequest {
        pd: nic.pd,
        max_wr: 16,
        max_sge: 1,
    };
    let (srq, shared) = nic.device.create_srq(&asked).expect("a shared queue");
    for wr_id in 0..6 {
        let sges = [host.sge(0, 8)];
        shared.post_recv(&RecvWr { wr_id, sges: &sges }).expect("room");
    }
    nic.device.arm_srq(srq, 4).expect("it is armed");
    let there = nic.queue_of(QpType::Rc, Some(srq), 0);
    let here = nic.queue();
    here.connect(&there.address());
    there.connect(&here.address());
    for _ in 0..4 {
        succeeded(&here.run(&[host.sge(8, 8)], SendOp::Send), "a send");
    }
    let event = event_of(&nic, AsyncEventType::SRQ_LIMIT_REACHED);
    assert_eq!(event.element, AsyncElement::Srq(srq), "which one");
    refused(
        nic.device.arm_srq(srq, 1000),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    there.close();
    here.close();
    nic.device.destroy_srq(srq).expect("it ends");
}

// Windows.

/// Windows may stand on it.
fn bindable() -> Access {
    ALL | Access::MW_BIND
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn window_grants_part_of_region_until_invalidated() {
    let nic = nic!("window_grants_part_of_region_until_invalidated");
    let from = nic.host(4096);
    from.pattern(4);
    let memory = gaudi_sys::RawMapping::anonymous(8192, true).expect("memory");
    let to = nic.register(memory, bindable());
    let mw = nic.device.alloc_mw(nic.pd, MwType::Type2).expect("a window");
    let rkey = Rkey(mw.rkey.0 & !0xff | mw.rkey.0.wrapping_add(1) & 0xff);
    let bind = SendOp::BindMw(WindowBind {
        mw: mw.handle,
        old: mw.rkey,
        rkey,
        mr: to.mr.handle,
        lkey: to.mr.lkey,
        addr: MrAddr(to.iova.0 + 1000),
        length: 2000,
        access: Access::REMOTE_WRITE,
    });
    // The owner binds on the queue pair that the peer will come through.
    let (here, there) = nic.pair();
    let done = there.run(&[], bind);
    succeeded(&done, "a bind");
    assert_eq!(done.opcode, WcOpcode::BIND_MW);
    let through = |offset: u64| RemoteAddr {
        addr: MrAddr(to.iova.0 + 1000 + offset),
        rkey,
    };
    succeeded(
        &here.run(&[from.sge(0, 2000)], SendOp::Write(through(0))),
        "the whole window",
    );
    assert!(to.bytes(1000, 2000) == pattern(4, 2000), "it lands");
    refused(nic.device.dealloc_pd(nic.pd), ErrorKind::InUse, Errno::EBUSY);
    let done = there.run(&[], SendOp::LocalInv(rkey));
    succeeded(&done, "it is made invalid");
    assert_eq!(done.opcode, WcOpcode::LOCAL_INV);
    let done = here.run(&[from.sge(0, 8)], SendOp::Write(through(0)));
    assert_eq!(done.status, WcStatus::REM_ACCESS_ERR, "then it is refused");
    there.close();
    here.close();
    nic.device.dealloc_mw(mw.handle).expect("it ends");
    refused(
        nic.device.dealloc_mw(mw.handle),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn window_grants_stay_inside_its_region() {
    let nic = nic!("window_grants_stay_inside_its_region");
    let from = nic.host(4096);
    for (what, offset, len, op) in [
        // rxe checks a window's range by that of its region (`check_rkey`, rxe_resp.c): bytes
        // around the window are reached.
        (
            "a byte before the region",
            1001_u64.wrapping_neg(),
            1_usize,
            SendOp::Write as fn(RemoteAddr) -> SendOp,
        ),
        ("a byte after the region", 7192, 1, SendOp::Write),
        ("across the region's end", 7191, 2, SendOp::Write),
        ("a read", 0, 8, SendOp::Read),
    ] {
        let memory = gaudi_sys::RawMapping::anonymous(8192, true).expect("memory");
        let to = nic.register(memory, bindable());
        let mw = nic.device.alloc_mw(nic.pd, MwType::Type2).expect("a window");
        let rkey = Rkey(mw.rkey.0 & !0xff | mw.rkey.0.wrapping_add(1) & 0xff);
        let (here, there) = nic.pair();
        let bind = SendOp::BindMw(WindowBind {
            mw: mw.handle,
            old: mw.rkey,
            rkey,
            mr: to.mr.handle,
            lkey: to.mr.lkey,
            addr: MrAddr(to.iova.0 + 1000),
            length: 2000,
            access: Access::REMOTE_WRITE,
        });
        succeeded(&there.run(&[], bind), "a bind");
        let place = RemoteAddr {
            addr: MrAddr((to.iova.0 + 1000).wrapping_add(offset)),
            rkey,
        };
        let done = here.run(&[from.sge(0, len)], op(place));
        assert_eq!(done.status, WcStatus::REM_ACCESS_ERR, "{what}");
        // Before the queue pair, which rxe would wait for for 50 s.
        nic.device.dealloc_mw(mw.handle).expect("a bound window ends too");
        there.close();
        here.close();
        nic.device.dereg_mr(to.mr.handle).expect("and its region");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn send_can_invalidate_a_peers_window() {
    let nic = nic!("send_can_invalidate_a_peers_window");
    let from = nic.host(4096);
    let memory = gaudi_sys::RawMapping::anonymous(8192, true).expect("memory");
    let to = nic.register(memory, bindable());
    let mw = nic.device.alloc_mw(nic.pd, MwType::Type2).expect("a window");
    let rkey = Rkey(mw.rkey.0 & !0xff | mw.rkey.0.wrapping_add(1) & 0xff);
    let (here, there) = nic.pair();
    let bind = SendOp::BindMw(WindowBind {
        mw: mw.handle,
        old: mw.rkey,
        rkey,
        mr: to.mr.handle,
        lkey: to.mr.lkey,
        addr: to.iova,
        length: 4096,
        access: Access::REMOTE_WRITE,
    });
    succeeded(&there.run(&[], bind), "a bind");
    there.receive(5, &[]);
    succeeded(&here.run(&[], SendOp::SendInv(rkey)), "a send that invalidates");
    let got = there.wait();
    assert_eq!(
        (got.wr_id, got.invalidated_rkey, got.imm_data),
        (5, Some(rkey), None),
        "the receive reports the key"
    );
    let to = RemoteAddr { addr: to.iova, rkey };
    let done = here.run(&[from.sge(0, 8)], SendOp::Write(to));
    assert_eq!(done.status, WcStatus::REM_ACCESS_ERR, "the key is dead");
    there.close();
    here.close();
    nic.device.dealloc_mw(mw.handle).expect("it ends");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn region_without_bind_right_rejects_windows() {
    let nic = nic!("region_without_bind_right_rejects_windows");
    let to = nic.host(4096);
    let mw = nic.device.alloc_mw(nic.pd, MwType::Type2).expect("a window");
    let (_here, there) = nic.pair();
    let bind = SendOp::BindMw(WindowBind {
        mw: mw.handle,
        old: mw.rkey,
        rkey: Rkey(mw.rkey.0 ^ 1),
        mr: to.mr.handle,
        lkey: to.mr.lkey,
        addr: to.iova,
        length: 4096,
        access: Access::REMOTE_WRITE,
    });
    match there.post(1, &[], bind) {
        Err(error) => assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}"),
        Ok(()) => {
            let status = wait(&*there.cq).status;
            assert!(
                [WcStatus::MW_BIND_ERR, WcStatus::WR_FLUSH_ERR].contains(&status),
                "{status}"
            );
        }
    }
    let rebind = SendOp::BindMw(WindowBind {
        mw: gaudi_verbs::MwHandle(u32::MAX),
        old: mw.rkey,
        rkey: Rkey(mw.rkey.0 ^ 1),
        mr: to.mr.handle,
        lkey: to.mr.lkey,
        addr: to.iova,
        length: 4096,
        access: Access::REMOTE_WRITE,
    });
    refused(there.post(2, &[], rebind), ErrorKind::InvalidInput, Errno::EINVAL);
    nic.device.dealloc_mw(mw.handle).expect("it ends");
}
