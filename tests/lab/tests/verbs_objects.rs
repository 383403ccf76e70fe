//! NICs, ports, domains, queues and events of libibverbs on soft-RoCE.

#[macro_use]
mod ibv;

use std::time::Duration;

use gaudi_ibverbs::{OpenOptions, list};
use gaudi_lab::{kernel, rxe};
use gaudi_seam::ErrorKind;
use gaudi_sys::{Errno, poll};
use gaudi_verbs::provider::{
    Device, MwType, PdHandle, QpCap, QpHandle, QpRequest, QpState, QpTransition, QpType, SrqRequest,
};
use gaudi_verbs::{
    AsyncElement, AsyncEventType, AtomicCap, GidKind, LinkLayer, Payload, PortState, Psn, RecvWr, RemoteAddr,
    Rkey, SendOp, WcStatus, WorkCompletion,
};

use ibv::{ALL, MAX_WAIT, Nic, Queue, any, event_of, is_readable, refused, request, succeeded};

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn list_names_nic_interface_and_function() {
    let _nic = nic!("list_names_nic_interface_and_function");
    let nics = list().expect("libibverbs lists");
    let nic = nics.iter().find(|nic| nic.name == "rxe0").expect("it is there");
    assert_eq!(nic.netdev.as_deref(), Some("eth0"), "the interface below");
    assert_eq!(nic.node_type.to_string(), "channel adapter");
    assert_eq!(nic.transport.to_string(), "InfiniBand");
    assert!(nic.uverbs.starts_with("uverbs"), "its node: {}", nic.uverbs);
    assert_eq!(nic.sysfs, std::path::Path::new("/sys/class/infiniband/rxe0"));
    let pci = nic.pci.as_deref().expect("the interface's function");
    assert!(pci.starts_with("0000:00:"), "on the root bus: {pci}");
    let text = std::fs::read_to_string("/sys/class/infiniband/rxe0/node_guid").expect("sysfs");
    assert_eq!(nic.guid.to_string(), text.trim(), "the GUID, as sysfs prints it");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn unknown_nic_error_lists_others() {
    let _nic = nic!("unknown_nic_error_lists_others");
    let error = OpenOptions::default().open("mlx5_77").expect_err("there is none");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::NotFound, Some(Errno::ENODEV))
    );
    assert!(error.to_string().contains("rxe0"), "what there is: {error}");
    assert!(error.help().is_some(), "and what helps");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn missing_port_is_rejected() {
    let _nic = nic!("missing_port_is_rejected");
    let open = |port| {
        let (port, gid_index) = (Some(port), None);
        OpenOptions { port, gid_index }.open("rxe0")
    };
    for port in [0, 2] {
        refused(open(port), ErrorKind::InvalidInput, Errno::EINVAL);
    }
    open(1).expect("it has one");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn connections_default_to_rocev2_ipv4() {
    let nic = nic!("connections_default_to_rocev2_ipv4");
    let (index, gid) = rxe::gid("rxe0", "10.77.0.1");
    let port = nic.device.query_port().expect("a port");
    assert_eq!((port.gid_index, port.gid.0), (u32::from(index), gid));
    let open = |index| {
        let (port, gid_index) = (None, Some(index));
        OpenOptions { port, gid_index }.open("rxe0").expect("it opens")
    };
    let other = open(0);
    assert_eq!(other.query_port().expect("a port").gid_index, 0, "as asked for");
    let none = open(200);
    let error = none.query_port().expect_err("the table has no such row");
    assert_eq!(error.errno(), Some(Errno::EADDRNOTAVAIL));
    assert!(
        error.to_string().contains("::ffff:10.77.0.1"),
        "the rows are named: {error}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn gid_table_matches_sysfs() {
    let nic = nic!("gid_table_matches_sysfs");
    let rows = nic.device.query_gids().expect("a table");
    assert!(rows.len() >= 2, "link-local and IPv4: {rows:?}");
    for row in rows {
        let read = |what: &str| {
            let path = format!("/sys/class/infiniband/rxe0/ports/1/{what}/{}", row.index);
            std::fs::read_to_string(path).expect("sysfs").trim().to_owned()
        };
        assert_eq!(
            Ok(row.gid.0),
            read("gids").parse().map(|gid: std::net::Ipv6Addr| gid.octets())
        );
        assert_eq!(
            (row.kind, row.kind.name().to_owned()),
            (GidKind::RoceV2, read("gid_attrs/types"))
        );
        assert_eq!(row.netdev, Some(read("gid_attrs/ndevs")));
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn nic_and_port_attributes_are_plausible() {
    let nic = nic!("nic_and_port_attributes_are_plausible");
    let attr = nic.device.query_device().expect("it answers");
    assert_eq!(
        (attr.name.as_str(), attr.provider.as_str()),
        ("rxe0", "libibverbs")
    );
    assert_eq!(attr.guid, nic.device.info().guid, "one GUID, asked in two ways");
    assert_eq!(attr.atomic_cap, AtomicCap::HCA);
    assert!(
        attr.max_qp_wr >= 1 << 14 && attr.max_sge == 32 && attr.max_mr >= 4096,
        "limits: {attr:?}"
    );
    assert!(
        attr.max_srq > 0 && attr.max_mw > 0 && attr.max_ah > 0,
        "all objects: {attr:?}"
    );
    assert!(attr.page_size_cap & 4096 != 0, "pages: {:#x}", attr.page_size_cap);
    let port = nic.device.query_port().expect("a port");
    assert_eq!(
        (port.state, port.port_num, port.link_layer),
        (PortState::ACTIVE, 1, LinkLayer::ETHERNET)
    );
    assert_eq!(port.active_mtu.bytes(), Some(1024), "an Ethernet of 1500 bytes");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn pd_in_use_is_not_deallocated() {
    let nic = nic!("pd_in_use_is_not_deallocated");
    let host = nic.host(4096);
    refused(nic.device.dealloc_pd(nic.pd), ErrorKind::InUse, Errno::EBUSY);
    nic.device.dereg_mr(host.mr.handle).expect("the region ends");
    let queue = nic.queue();
    refused(nic.device.dealloc_pd(nic.pd), ErrorKind::InUse, Errno::EBUSY);
    queue.close();
    nic.device.dealloc_pd(nic.pd).expect("now it is empty");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn destroyed_objects_are_rejected_everywhere() {
    let nic = nic!("destroyed_objects_are_rejected_everywhere");
    let freed = nic.device.alloc_pd().expect("a domain");
    nic.device.dealloc_pd(freed).expect("it ends");
    refused(
        nic.device.dealloc_pd(freed),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    refused(
        nic.device.dealloc_pd(PdHandle(0)),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    refused(
        nic.device.alloc_mw(freed, MwType::Type2),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    refused(
        nic.device.query_qp(QpHandle(u32::MAX)),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    let queue = nic.queue();
    let (post, cq) = (queue.queue.clone(), queue.cq.clone());
    queue.close();
    let sges = [];
    refused(
        post.post_send(&request(1, Payload::Sges(&sges), SendOp::Send)),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    refused(
        post.post_recv(&RecvWr {
            wr_id: 1,
            sges: &sges,
        }),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    let mut one = [WorkCompletion::EMPTY];
    refused(cq.poll(&mut one), ErrorKind::InvalidInput, Errno::EINVAL);
    refused(cq.req_notify(false), ErrorKind::InvalidInput, Errno::EINVAL);
    assert!(!is_readable(cq.event_fd()), "its descriptor is no other's");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn cq_in_use_is_not_destroyed() {
    let nic = nic!("cq_in_use_is_not_destroyed");
    let queue = nic.queue();
    refused(
        nic.device.destroy_cq(queue.cq_handle),
        ErrorKind::InUse,
        Errno::EBUSY,
    );
    assert_eq!(
        queue
            .cq
            .poll(&mut [WorkCompletion::EMPTY])
            .expect("it still works"),
        0
    );
    queue.close();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn queue_pair_follows_its_state_machine() {
    let nic = nic!("queue_pair_follows_its_state_machine");
    let queue = nic.queue();
    let state = || nic.device.query_qp(queue.handle).expect("it answers");
    let to_rts = QpTransition::ReadyToSend {
        sq_psn: Psn(1),
        max_rd_atomic: 1,
        timeout: Duration::from_secs(1),
        retry_cnt: 1,
        rnr_retry: 1,
    };
    assert_eq!(state(), QpState::RESET);
    refused(
        nic.device.modify_qp(queue.handle, &to_rts),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    assert_eq!(state(), QpState::RESET, "a refused transition changes nothing");
    queue.modify(&QpTransition::Init { access: ALL });
    assert_eq!(state(), QpState::INIT);
    queue.modify(&QpTransition::Reset);
    assert_eq!(state(), QpState::RESET);
    queue.connect(&queue.address());
    assert_eq!(state(), QpState::RTS);
    queue.to_error();
    assert_eq!(state(), QpState::ERR);
    queue.modify(&QpTransition::Reset);
    queue.connect(&queue.address());
    assert_eq!(state(), QpState::RTS, "it can be used again");
    queue.close();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn exceeded_limits_return_errno() {
    let nic = nic!("exceeded_limits_return_errno");
    let attr = nic.device.query_device().expect("it answers");
    let error = nic.device.create_cq(attr.max_cqe + 1).expect_err("too deep");
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
    refused(
        nic.device.create_cq(u32::MAX),
        ErrorKind::InvalidInput,
        Errno::EINVAL,
    );
    let (cq, _) = nic.device.create_cq(8).expect("a queue");
    let asked = QpRequest {
        qp_type: QpType::Rc,
        pd: nic.pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: QpCap {
            max_send_wr: attr.max_qp_wr + 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        sq_sig_all: true,
    };
    let error = nic.device.create_qp(&asked).expect_err("too long");
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
    let srq = SrqRequest {
        pd: nic.pd,
        max_wr: attr.max_srq_wr + 1,
        max_sge: 1,
    };
    let error = nic.device.create_srq(&srq).expect_err("too long");
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
    nic.device.destroy_cq(cq).expect("nothing was made of it");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn closed_contexts_leave_no_descriptor() {
    let _nic = nic!("closed_contexts_leave_no_descriptor");
    // In a process of its own: other tests open and close at the same time.
    let test = std::env::args().next().expect("a program");
    let child = std::process::Command::new(test)
        .args([
            "--exact",
            "child_opens_and_closes",
            "--include-ignored",
            "--nocapture",
        ])
        .env("GAUDI_CHILD", "1")
        .output()
        .expect("it runs");
    assert!(
        child.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&child.stdout),
        String::from_utf8_lossy(&child.stderr)
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn child_opens_and_closes() {
    if std::env::var_os("GAUDI_CHILD").is_none() {
        return;
    }
    let turn = || {
        let nic = Nic::named("rxe0");
        let (a, b) = nic.pair();
        let host = nic.host(4096);
        succeeded(
            &a.run(&[host.sge(0, 8)], SendOp::Write(host.remote(8))),
            "it works",
        );
        // Half is destroyed, half goes with the context.
        a.close();
        drop(b);
    };
    turn();
    let before = ibv::descriptors();
    (0..20).for_each(|_| turn());
    assert_eq!(
        ibv::descriptors(),
        before,
        "each context takes its descriptors along"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn cq_event_comes_once_per_request() {
    let nic = nic!("cq_event_comes_once_per_request");
    let host = nic.host(4096);
    let (here, _there) = nic.pair();
    let poll_one = || {
        let mut one = [WorkCompletion::EMPTY];
        while here.cq.poll(&mut one).expect("whole") == 0 {
            std::thread::yield_now();
        }
    };
    here.cq.ack_event().expect("no event is no error, and no wait");
    here.post(1, &[host.sge(0, 8)], SendOp::Write(host.remote(64)))
        .expect("room");
    poll_one();
    assert!(!is_readable(here.cq.event_fd()), "no event was requested");
    here.cq.req_notify(false).expect("it can be asked");
    assert!(!is_readable(here.cq.event_fd()), "nothing happened since");
    for wr_id in 2..4 {
        here.post(wr_id, &[host.sge(0, 8)], SendOp::Write(host.remote(64)))
            .expect("room");
    }
    let ready = poll::readable([here.cq.event_fd()], MAX_WAIT).expect("a descriptor");
    assert!(ready[0], "now there is one");
    poll_one();
    poll_one();
    here.cq.ack_event().expect("it is taken");
    assert!(!is_readable(here.cq.event_fd()), "one for both");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn solicited_wait_ignores_other_completions() {
    let nic = nic!("solicited_wait_ignores_other_completions");
    let host = nic.host(4096);
    let (here, there) = nic.pair();
    there.receive(1, &[host.sge(0, 8)]);
    there.receive(2, &[host.sge(0, 8)]);
    there.cq.req_notify(true).expect("it can be asked");
    succeeded(&here.run(&[host.sge(8, 8)], SendOp::Send), "a plain send");
    let mut one = [WorkCompletion::EMPTY];
    while there.cq.poll(&mut one).expect("whole") == 0 {
        std::thread::yield_now();
    }
    assert!(
        !is_readable(there.cq.event_fd()),
        "an unsolicited completion raises no event"
    );
    let sges = [host.sge(8, 8)];
    let mut send = request(3, Payload::Sges(&sges), SendOp::Send);
    send.solicited = true;
    here.queue.post_send(&send).expect("room");
    let ready = poll::readable([there.cq.event_fd()], MAX_WAIT).expect("a descriptor");
    assert!(ready[0], "a solicited one does");
    there.cq.ack_event().expect("it is taken");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn threads_polling_one_cq_share_completions() {
    let nic = nic!("threads_polling_one_cq_share_completions");
    let host = nic.host(4096);
    let (here, _there) = nic.pair();
    for wr_id in 0..30 {
        here.post(wr_id, &[host.sge(0, 8)], SendOp::Write(host.remote(64)))
            .expect("room");
    }
    let seen = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while seen.lock().expect("no panic").len() < 30 {
                    let mut some = [WorkCompletion::EMPTY; 4];
                    let count = here.cq.poll(&mut some).expect("whole");
                    seen.lock()
                        .expect("no panic")
                        .extend(some[..count].iter().map(|done| done.wr_id));
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
    let mut seen = seen.into_inner().expect("no panic");
    seen.sort_unstable();
    assert_eq!(seen, (0..30).collect::<Vec<_>>(), "all, and each once");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn absent_event_does_not_block() {
    let nic = nic!("absent_event_does_not_block");
    let fd = nic.device.async_fd().expect("libibverbs has events");
    while is_readable(fd) {
        nic.device.get_async_event().expect("it is read");
    }
    assert_eq!(nic.device.get_async_event().expect("no error"), None);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn wrong_peer_key_fails_its_queue_pair() {
    let nic = nic!("wrong_peer_key_fails_its_queue_pair");
    let host = nic.host(4096);
    let (here, there) = nic.pair();
    let wrong = RemoteAddr {
        addr: host.iova,
        rkey: Rkey(host.mr.rkey.0 ^ 0xff),
    };
    let done = here.run(&[host.sge(0, 8)], SendOp::Write(wrong));
    assert_eq!(done.status, WcStatus::REM_ACCESS_ERR);
    if kernel() < (7, 0) {
        // rxe_resp.c raises the event from 7.x on.
        while let Some(event) = nic.device.get_async_event().expect("it answers") {
            assert_ne!(
                event.event_type,
                AsyncEventType::QP_ACCESS_ERR,
                "6.12 raises no event"
            );
        }
    } else {
        let event = event_of(&nic, AsyncEventType::QP_ACCESS_ERR);
        assert_eq!(
            event.element,
            AsyncElement::Qp(there.handle),
            "the queue pair that was accessed"
        );
    }
    assert_eq!(
        nic.device.query_qp(there.handle).expect("it answers"),
        QpState::ERR,
        "which has failed"
    );
    // Acknowledged when it was read: else this would wait for ever.
    there.close();
    here.close();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn cq_overflow_is_permanent() {
    let nic = nic!("cq_overflow_is_permanent");
    let host = nic.host(4096);
    let (cq, shallow) = nic.device.create_cq(1).expect("a queue");
    let new = nic
        .device
        .create_qp(&QpRequest {
            qp_type: QpType::Rc,
            pd: nic.pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: true,
        })
        .expect("a queue pair");
    let peer = nic.queue();
    let here = Queue::of(&nic, new, cq, shallow.clone());
    here.connect(&peer.address());
    peer.connect(&here.address());
    for wr_id in 0..64 {
        here.post(wr_id, &[host.sge(0, 8)], SendOp::Write(host.remote(64)))
            .expect("room");
    }
    let event = event_of(&nic, AsyncEventType::CQ_ERR);
    assert_eq!(event.element, AsyncElement::Cq(cq), "which one");
    let mut some = [WorkCompletion::EMPTY; 64];
    let mut polled = 0;
    let error = loop {
        match shallow.poll(&mut some) {
            Ok(count) => polled += count,
            Err(error) => break error,
        }
        assert!(polled < 64, "some are lost");
    };
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Io, Some(Errno::EOVERFLOW))
    );
    assert!(polled > 0, "what it still held is polled first");
    here.close();
    peer.close();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn port_down_and_up_raise_events() {
    let _nic = nic!("port_down_and_up_raise_events");
    gaudi_lab::modprobe("dummy");
    let _ = gaudi_lab::run(&["ip", "link", "add", "dummy8", "type", "dummy"]);
    let nic = Nic::over(any(), "rxe8", "dummy8", "10.77.8.1");
    let link = |state| {
        let output = gaudi_lab::run(&["ip", "link", "set", "dummy8", state]);
        assert!(output.status.success(), "dummy8 goes {state}");
    };
    link("down");
    assert_eq!(
        event_of(&nic, AsyncEventType::PORT_ERR).element,
        AsyncElement::Port(1)
    );
    link("up");
    assert_eq!(
        event_of(&nic, AsyncEventType::PORT_ACTIVE).element,
        AsyncElement::Port(1)
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fork_child_leaves_the_nic_alone() {
    let nic = nic!("fork_child_leaves_the_nic_alone");
    let host = nic.host(4096);
    let (here, _there) = nic.pair();
    ibv::in_child(|| drop(nic.device.clone()));
    succeeded(
        &here.run(&[host.sge(0, 8)], SendOp::Write(host.remote(64))),
        "after the child exited",
    );
}
