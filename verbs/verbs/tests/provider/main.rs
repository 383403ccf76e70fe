//! What the safe layer asks of a provider, and what it keeps from it.

#![expect(
    unsafe_code,
    reason = "registering host memory is a promise, also to a provider that moves nothing"
)]

mod fake;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, ErrorKind, HostVa, RawMapping, Result};
use gaudi_verbs::provider::{MwType, QpTransition};
use gaudi_verbs::{
    Access, AsyncElement, AsyncEvent, AsyncEventType, CacheLimits, Context, Cq, Mr, MrAddr, MrCache, MrKey,
    MrState, Mtu, Mw, Pd, Qp, QpInit, RegionGroup, Rkey, SendOp, WindowBind, WorkCompletion,
};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use fake::Fake;

const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::MW_BIND);

struct Node {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    context: Context,
    nic: Arc<Fake>,
}

fn region(pd: &Pd) -> Mr {
    let memory = Arc::new(RawMapping::anonymous(4096, false).unwrap());
    pd.reg_mapping(memory, ACCESS).unwrap()
}

fn node_of(nic: Arc<Fake>) -> Node {
    let context = Context::open(nic.clone()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).unwrap();
    Node {
        qp: pd.create_qp(&QpInit::new(&cq)).unwrap(),
        mr: region(&pd),
        cq,
        pd,
        context,
        nic,
    }
}

fn node() -> Node {
    node_of(Fake::new(16, 16))
}

/// The answer of a call that must be refused before the provider hears of it.
fn refused<T>(answer: Result<T>) -> String {
    match answer {
        Ok(_) => panic!("it is refused"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            error.to_string()
        }
    }
}

#[test]
fn bind_needs_its_own_pd() {
    let (mut a, b) = (node(), node());
    let beside = a.context.alloc_pd().unwrap();
    let mut own = a.pd.alloc_mw(MwType::Type2).unwrap();
    for pd in [&b.pd, &beside] {
        let mut window = pd.alloc_mw(MwType::Type2).unwrap();
        let foreign = region(pd);
        let bind =
            a.qp.post_send(1)
                .bind_mw(&mut window, &a.mr, 0, 8, Access::REMOTE_WRITE);
        let error = refused(bind.post());
        assert!(error.contains("window"), "{error}");
        let bind =
            a.qp.post_send(1)
                .bind_mw(&mut own, &foreign, 0, 8, Access::REMOTE_WRITE);
        let error = refused(bind.post());
        assert!(error.contains("region"), "{error}");
        assert_eq!(window.remote(), None, "nothing was bound");
    }
    assert!(a.nic.noted().sends.is_empty(), "the provider heard of none");
    let key = own.rkey();
    let bind =
        a.qp.post_send(1)
            .bind_mw(&mut own, &a.mr, 0, 8, Access::REMOTE_WRITE);
    bind.post().unwrap();
    assert_ne!(own.rkey(), key, "its own is bound");
}

/// Waits for another thread's doing.
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn region_is_listed_until_deregistered() {
    let node = node();
    let group = RegionGroup::new("a device");
    let mr = region(&node.pd);
    let iova = mr.addr();
    group.add(&mr);
    std::thread::scope(|scope| {
        let slow = node.nic.dereg.lock().unwrap();
        scope.spawn(move || drop(mr));
        soon("the drop deregisters", || {
            node.nic.begun.load(Ordering::Acquire) == 1
        });
        let seen = |regions: Vec<gaudi_verbs::RegionInfo>| regions.iter().any(|info| info.iova == iova);
        assert!(seen(group.regions()), "the group sees it");
        assert!(seen(group.blockers().own), "and is reported as a blocker");
        assert!(seen(node.context.regions()), "the context sees it");
        assert_eq!(group.suspect(), 1, "it can be suspected");
        let revoked = scope.spawn(|| group.revoke());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!revoked.is_finished(), "revoking waits for the earlier close");
        drop(slow);
        assert_eq!(revoked.join().unwrap().unwrap(), 1);
    });
    assert_eq!(node.nic.begun.load(Ordering::Acquire), 1, "deregistered once");
    assert!(group.regions().is_empty(), "it has left");
    assert_eq!(node.context.regions().len(), 1, "the other one is there");
    let (
        weak,
        Node {
            qp,
            cq,
            mr,
            pd,
            context,
            ..
        },
    ) = (Arc::downgrade(&node.nic), node);
    drop((qp, cq, mr, pd, context));
    assert!(weak.upgrade().is_none(), "a group keeps no NIC");
}

/// An evicted region is in no table of the cache, and blocks its memory until the NIC has
/// deregistered it.
#[test]
fn invalidation_waits_for_region_being_evicted() {
    let node = node();
    let cache = MrCache::new(
        &node.pd,
        CacheLimits {
            entries: 1,
            bytes: u64::MAX,
        },
    );
    let get = |generation| {
        let memory = Arc::new(RawMapping::anonymous(4096, false).unwrap());
        let key = MrKey {
            generation,
            addr: MrAddr(memory.as_ptr().as_ptr().addr() as u64),
            len: 4096,
            access: ACCESS,
        };
        let cached = cache.get_or_register(&key, |pd, key| pd.reg_mapping(memory, key.access));
        drop(cached.unwrap());
    };
    get(1);
    std::thread::scope(|scope| {
        let slow = node.nic.dereg.lock().unwrap();
        scope.spawn(|| get(2));
        soon("the second region evicts the first", || {
            node.nic.begun.load(Ordering::Acquire) == 1
        });
        let other = cache.invalidate_generation(3);
        assert_eq!(
            (other.closed, other.in_use),
            (0, 0),
            "another allocation does not wait"
        );
        let invalidated = scope.spawn(|| cache.invalidate_generation(1));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!invalidated.is_finished(), "the NIC still reaches the memory");
        drop(slow);
        let done = invalidated.join().unwrap();
        assert_eq!((done.closed, done.in_use), (0, 0), "the eviction deregistered it");
    });
}

#[test]
fn revoked_region_keeps_pd_until_closed() {
    let node = node();
    let group = RegionGroup::new("a device");
    let pd = node.context.alloc_pd().unwrap();
    let mr = region(&pd);
    group.add(&mr);
    let (pd, error) = pd.close().unwrap_err().into_parts();
    assert!(
        !error.to_string().contains("clone"),
        "it is held once, by name: {error}"
    );
    assert_eq!(group.revoke().unwrap(), 1);
    mr.close().unwrap();
    pd.close().unwrap();
}

#[test]
fn fork_child_drops_region_being_deregistered() {
    let node = node();
    let group = RegionGroup::new("a device");
    let regions = [region(&node.pd), region(&node.pd)];
    group.add(&regions[0]);
    let nic = node.nic.clone();
    let slow = nic.dereg.lock().unwrap();
    let revoking = std::thread::spawn({
        let group = group.clone();
        move || group.revoke()
    });
    soon("revoking deregisters", || {
        node.nic.begun.load(Ordering::Acquire) == 1
    });
    // SAFETY: the child only drops, asks for what is answered at once, and leaves by _exit; the
    // alarm ends it where it hangs.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            // SAFETY: as above.
            unsafe { nix::libc::alarm(10) };
            let [revoked, other] = regions;
            drop(revoked);
            let late = other.close_later().poll();
            let forked =
                late.is_some_and(|answer| answer.is_err_and(|error| error.kind() == ErrorKind::Forked));
            let Node {
                qp,
                cq,
                mr,
                pd,
                context,
                ..
            } = node;
            drop((qp, cq, mr, pd, context, group));
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { nix::libc::_exit(i32::from(!forked)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(
                waitpid(child, None),
                Ok(WaitStatus::Exited(child, 0)),
                "every drop ends"
            );
        }
    }
    drop(slow);
    assert_eq!(revoking.join().unwrap().unwrap(), 1, "the parent goes on");
    assert_eq!(node.context.regions().len(), 2, "its other regions are untouched");
    drop(regions);
    assert_eq!(node.context.regions().len(), 1);
}

#[test]
fn connection_lowers_reads_to_capability() {
    // What our NIC answers and asks for, what the peer answers, and what is asked for then.
    for (answers, asks, peer, expected) in [
        (16, 16, 4, 4),
        (4, 16, 16, 16),
        (16, 2, 16, 2),
        (255, 128, 255, 128),
        (16, 16, 0, 1),
        (16, 0, 16, 0),
    ] {
        let mut node = node_of(Fake::new(answers, asks));
        let own = node.qp.address().unwrap();
        assert_eq!(own.rd_atom, answers, "the peer gets what we answer");
        let remote = gaudi_verbs::QpAddress { rd_atom: peer, ..own };
        node.qp.connect(&remote, Access::REMOTE_READ).unwrap();
        let noted = node.nic.noted();
        let depths: Vec<u8> = noted
            .transitions
            .iter()
            .filter_map(|transition| match transition {
                QpTransition::ReadyToReceive {
                    max_dest_rd_atomic, ..
                } => Some(*max_dest_rd_atomic),
                QpTransition::ReadyToSend { max_rd_atomic, .. } => Some(*max_rd_atomic),
                _ => None,
            })
            .collect();
        assert_eq!(
            depths,
            [answers, expected],
            "{answers} answered, {asks} asked, the peer answers {peer}"
        );
    }
}

#[test]
fn excess_sges_are_no_full_queue() {
    let mut node = node();
    let srq = |sges| node.pd.create_srq(8, sges).unwrap();
    let (mut own, shared) = (srq(2), srq(2));
    let mut init = QpInit::new(&node.cq);
    (init.max_send_sge, init.max_recv_sge, init.max_inline_data) = (3, 1, 16);
    let mut qp = node.pd.create_qp(&init).unwrap();
    init.srq = Some(&shared);
    let mut sharing = node.pd.create_qp(&init).unwrap();
    let part = node.mr.sge(0, 8).unwrap();
    let to = node.mr.remote().at(0, 8).unwrap();
    refused(qp.post_send(1).write(&[part; 4], to).post());
    refused(qp.post_send(1).send_inline(&[0; 17]).post());
    refused(qp.post_recv(1).post(&[part; 2]));
    refused(own.post_recv(1).post(&[part; 3]));
    refused(sharing.post_recv(1).post(&[]));
    let noted = |node: &Node| {
        let noted = node.nic.noted();
        (noted.sends.len(), noted.receives)
    };
    assert_eq!(noted(&node), (0, 0), "the provider heard of none");
    qp.post_send(1).write(&[part; 3], to).post().unwrap();
    qp.post_send(1).send_inline(&[0; 16]).post().unwrap();
    qp.post_recv(1).post(&[part]).unwrap();
    own.post_recv(1).post(&[part; 2]).unwrap();
    assert_eq!(noted(&node), (2, 2), "as many as were asked for can be had");
    node.qp.reset().unwrap();
}

#[test]
fn reset_queue_pair_renews_its_psn() {
    let mut node = node();
    let first = node.qp.address().unwrap();
    assert_eq!(node.qp.address().unwrap(), first, "until then it stays");
    node.qp.connect(&first, Access::REMOTE_READ).unwrap();
    node.qp.reset().unwrap();
    let second = node.qp.address().unwrap();
    assert_ne!(second.psn, first.psn);
    assert!(second.psn.0 < 1 << 24, "{second:?}");
    node.qp.connect(&first, Access::REMOTE_READ).unwrap();
    let counted: Vec<_> = (node.nic.noted().transitions.iter())
        .filter_map(|transition| match transition {
            QpTransition::ReadyToSend { sq_psn, .. } => Some(*sq_psn),
            _ => None,
        })
        .collect();
    assert_eq!(counted, [first.psn, second.psn]);
    let mut datagrams = node.pd.create_ud_qp(&QpInit::new(&node.cq)).unwrap();
    let first = datagrams.address().unwrap().psn;
    datagrams.reset().unwrap();
    assert_ne!(datagrams.address().unwrap().psn, first);
}

#[test]
fn failed_bind_is_undone_alone() {
    let mut node = node();
    let mut window = node.pd.alloc_mw(MwType::Type2).unwrap();
    let fresh = window.rkey();
    // More than 256: the eight bits wrap.
    for round in 0..150 {
        let before = (window.rkey(), window.remote());
        let mut bind = || {
            let bind = node
                .qp
                .post_send(1)
                .bind_mw(&mut window, &node.mr, 8, 8, Access::REMOTE_WRITE);
            bind.post().unwrap().rkey
        };
        let (first, second) = (bind(), bind());
        assert!(!window.take_back(Rkey(first.0 ^ 0x100)), "another window's");
        assert_eq!(window.rkey(), second);
        // Both failed, reported in either order.
        let order = if round % 2 == 0 {
            [first, second]
        } else {
            [second, first]
        };
        assert!(window.take_back(order[0]));
        assert_eq!(window.take_back(order[1]), round % 2 == 1);
        assert_eq!(window.rkey(), before.0, "as the NIC has it");
        assert_eq!(window.remote(), before.1, "the binding before them stands");
        assert!(!window.take_back(second) && !window.take_back(first), "once");
        // One that stands.
        let region = node
            .qp
            .post_send(2)
            .bind_mw(&mut window, &node.mr, 0, 8, Access::REMOTE_WRITE)
            .post()
            .unwrap();
        assert_eq!(window.remote(), Some(region));
        let noted = node.nic.noted();
        let Some(SendOp::BindMw(WindowBind { old, rkey, .. })) = noted.sends.last().copied() else {
            panic!("a bind");
        };
        assert_eq!(
            (old, rkey),
            (before.0, region.rkey),
            "the NIC's key is the old one"
        );
    }
    assert_eq!(window.rkey().0 >> 8, fresh.0 >> 8);
}

#[test]
fn failed_binds_leave_the_earlier_region_held() {
    for reverse in [false, true] {
        let mut node = node();
        let mut window = node.pd.alloc_mw(MwType::Type1).unwrap();
        let other = region(&node.pd);
        let mut bind = |mr: &Mr, window: &mut Mw| {
            let bind = node
                .qp
                .post_send(1)
                .bind_mw(window, mr, 0, 8, Access::REMOTE_WRITE);
            bind.post().unwrap()
        };
        let bound = bind(&node.mr, &mut window);
        let mut failed = [(); 3].map(|()| bind(&other, &mut window).rkey);
        if reverse {
            failed.reverse();
        }
        for rkey in failed {
            window.take_back(rkey);
        }
        assert_eq!(window.remote(), Some(bound));
        *node.nic.refuse_dereg.lock().unwrap() = Some(Errno::EINVAL);
        let (mr, error) = node.mr.close().unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        assert!(error.to_string().contains(&bound.rkey.to_string()), "{error}");
        let (other, error) = other.close().unwrap_err().into_parts();
        assert_eq!(
            error.kind(),
            ErrorKind::InvalidInput,
            "no window is bound to it: {error}"
        );
        *node.nic.refuse_dereg.lock().unwrap() = None;
        drop((mr, other));
    }
}

#[test]
fn wait_polls_again_after_requesting_an_event() {
    let node = node();
    let done = WorkCompletion {
        wr_id: 5,
        ..WorkCompletion::EMPTY
    };
    node.nic.late.lock().unwrap().push(done);
    let mut into = [WorkCompletion::EMPTY; 2];
    let started = Instant::now();
    let count = node.cq.wait(&mut into, Duration::from_secs(20));
    assert_eq!(count.expect("a completion"), 1);
    assert_eq!(into[0].wr_id, 5);
    // No event comes for it: a wait that sleeps finds it at its deadline.
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn failed_deregistration_leaves_the_region_live() {
    let node = node();
    *node.nic.refuse_dereg.lock().unwrap() = Some(Errno::EIO);
    let (mr, error) = node.mr.close().unwrap_err().into_parts();
    assert_eq!(error.errno(), Some(Errno::EIO));
    assert_eq!(mr.state().unwrap(), MrState::Live);
    assert_eq!(node.context.regions().len(), 1);
    *node.nic.refuse_dereg.lock().unwrap() = None;
    mr.close().unwrap();
    assert!(node.context.regions().is_empty());
}

#[test]
fn suspicion_is_cleared_and_revocation_is_not() {
    let node = node();
    assert!(!node.mr.clear_suspicion(), "nothing to clear");
    node.mr.mark(MrState::Suspect);
    assert_eq!(node.mr.state().unwrap(), MrState::Suspect);
    assert!(node.mr.clear_suspicion());
    assert_eq!(node.mr.state().unwrap(), MrState::Live);
    node.mr.mark(MrState::Revoked);
    node.mr.mark(MrState::Suspect);
    assert!(!node.mr.clear_suspicion());
    assert_eq!(node.mr.state().unwrap(), MrState::Revoked);
}

#[test]
fn access_error_suspects_no_host_memory() {
    let node = node();
    let event = |event_type, element| {
        node.nic
            .events
            .lock()
            .unwrap()
            .push(AsyncEvent { event_type, element });
        node.context.get_async_event().unwrap().expect("an event");
        node.mr.state().unwrap()
    };
    let qp = AsyncElement::Qp(node.qp.handle());
    assert_eq!(event(AsyncEventType::QP_ACCESS_ERR, qp), MrState::Live);
    assert_eq!(
        event(AsyncEventType::DEVICE_FATAL, AsyncElement::Device),
        MrState::Suspect
    );
}

#[test]
fn connection_uses_the_smaller_mtu() {
    for (peer, used) in [
        (Mtu(1), Mtu(1)),
        (Mtu::MTU_1024, Mtu::MTU_1024),
        (Mtu::MTU_4096, Mtu::MTU_1024),
    ] {
        let mut node = node();
        let remote = gaudi_verbs::QpAddress {
            mtu: peer,
            ..node.qp.address().unwrap()
        };
        node.qp.connect(&remote, Access::empty()).unwrap();
        let noted = node.nic.noted();
        let mtu = noted.transitions.iter().find_map(|transition| match transition {
            QpTransition::ReadyToReceive { path_mtu, .. } => Some(*path_mtu),
            _ => None,
        });
        assert_eq!(mtu, Some(used), "the peer has {peer}");
    }
}

#[test]
fn misaligned_atomics_are_rejected() {
    let mut node = node();
    let (eight, four) = (node.mr.sge(0, 8).unwrap(), node.mr.sge(0, 4).unwrap());
    let remote = node.mr.remote();
    for (was, offset) in [(&eight, 1), (&eight, 4), (&four, 0)] {
        let to = remote.at(offset, 8).unwrap();
        refused(node.qp.post_send(1).fetch_add(was, to, 1).post());
        refused(node.qp.post_send(1).compare_swap(was, to, 0, 1).post());
    }
    assert!(node.nic.noted().sends.is_empty(), "the provider got none");
    let to = remote.at(8, 8).unwrap();
    node.qp.post_send(1).fetch_add(&eight, to, 1).post().unwrap();
}

#[test]
fn flush_reads_one_to_eight_bytes() {
    let mut node = node();
    let to = node.mr.remote().at(0, 8).unwrap();
    for len in [0, 9] {
        let into = node.mr.sge(0, len).unwrap();
        refused(node.qp.post_send(1).flush_remote(&into, to).post());
    }
    for len in [1, 8] {
        let into = node.mr.sge(0, len).unwrap();
        node.qp.post_send(1).flush_remote(&into, to).post().unwrap();
    }
}

#[test]
fn iova_keeps_the_offset_in_its_page() {
    let node = node();
    let memory = RawMapping::anonymous(8192, false).unwrap();
    let address = HostVa(memory.as_ptr().as_ptr().expose_provenance() as u64);
    let at = |offset: u64, iova: u64| {
        let address = address.checked_add(offset).unwrap();
        // SAFETY: the mapping outlives the region, and nothing makes a reference into it.
        unsafe { node.pd.reg_mr(address, 64, MrAddr(iova), Access::LOCAL_WRITE) }
    };
    refused(at(0, 1));
    refused(at(100, 0x7000_0000));
    at(100, 0x7000_0064).unwrap().close().unwrap();
}
