//! libibverbs between two processes, and between two network namespaces, on one kernel.

#![expect(unsafe_code, reason = "unshare(2) makes the other network")]

mod common;
mod ibv;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use common::{Other, alone, udmabuf};
use gaudi_lab::nic::pattern;
use gaudi_lab::rxe::{self, Build};
use gaudi_sys::{Memfd, PAGE, RawMapping};
use gaudi_verbs::provider::Device;
use gaudi_verbs::{Gid, MrAddr, Mtu, Psn, QpAddress, Qpn, RemoteAddr, Rkey, SendOp, WcStatus};

use ibv::{ALL, Host, Nic, Queue, any, bytes, skips, succeeded};

const LEN: usize = 16 * PAGE as usize;

/// What one end must know of the other: queue pair, GID, and a region.
fn offer(queue: &Queue, addr: u64, rkey: Rkey) -> [u8; 32] {
    let address = queue.address();
    let mut message = [0; 32];
    message[..16].copy_from_slice(&address.gid.0);
    message[16..20].copy_from_slice(&address.qpn.0.to_be_bytes());
    message[20..28].copy_from_slice(&addr.to_be_bytes());
    message[28..].copy_from_slice(&rkey.0.to_be_bytes());
    message
}

fn exchange(mut socket: &UnixStream, mine: &[u8; 32]) -> (QpAddress, RemoteAddr) {
    socket.write_all(mine).expect("the peer listens");
    let mut theirs = [0; 32];
    socket.read_exact(&mut theirs).expect("the peer answers");
    let number = |at: usize| u32::from_be_bytes(theirs[at..at + 4].try_into().expect("four bytes"));
    let address = QpAddress {
        gid: Gid(theirs[..16].try_into().expect("sixteen bytes")),
        qpn: Qpn(number(16)),
        psn: Psn(7),
        mtu: Mtu::MTU_1024,
        rd_atom: 16,
        lid: 0,
    };
    let addr = u64::from_be_bytes(theirs[20..28].try_into().expect("eight bytes"));
    let remote = RemoteAddr {
        addr: MrAddr(addr),
        rkey: Rkey(number(28)),
    };
    (address, remote)
}

/// Both have come so far.
fn meet(mut socket: &UnixStream) {
    socket.write_all(b"x").expect("the peer listens");
    socket.read_exact(&mut [0]).expect("the peer answers");
}

/// The end that writes, reads, adds and sends, all into the peer's region.
fn asks(nic: &Nic, socket: &UnixStream) -> bool {
    let host = nic.host(LEN);
    host.pattern(41);
    let queue = nic.queue();
    let (peer, to) = exchange(socket, &offer(&queue, 0, Rkey(0)));
    queue.connect(&peer);
    meet(socket);
    let at = |offset: u64| RemoteAddr {
        addr: MrAddr(to.addr.0 + offset),
        ..to
    };
    succeeded(
        &queue.run(&[host.sge(0, LEN / 2)], SendOp::Write(at(0))),
        "a write",
    );
    let back = nic.host(LEN);
    succeeded(&queue.run(&[back.sge(0, LEN / 2)], SendOp::Read(at(0))), "a read");
    let add = SendOp::FetchAdd {
        to: at(LEN as u64 - 8),
        add: 5,
    };
    succeeded(&queue.run(&[back.sge(LEN - 8, 8)], add), "an addition");
    succeeded(&queue.run(&[host.sge(100, 200)], SendOp::SendImm(9)), "a send");
    let same = back.bytes(0, LEN / 2) == pattern(41, LEN)[..LEN / 2];
    meet(socket);
    same
}

/// The end whose memory is used: checks what the peer must have done to it.
fn answers(nic: &Nic, socket: &UnixStream, view: &RawMapping, addr: u64, rkey: Rkey) {
    let inbox = nic.host(4096);
    let queue = nic.queue();
    let (peer, _) = exchange(socket, &offer(&queue, addr, rkey));
    queue.connect(&peer);
    queue.receive(1, &[inbox.sge(0, 4096)]);
    meet(socket);
    let got = queue.wait();
    succeeded(&got, "a receive");
    assert_eq!((got.byte_len, got.imm_data), (200, Some(9)));
    assert!(inbox.bytes(0, 200) == pattern(41, LEN)[100..300], "the message");
    meet(socket);
    assert!(
        bytes(view, 0, LEN / 2) == pattern(41, LEN)[..LEN / 2],
        "the write"
    );
    assert_eq!(bytes(view, LEN - 8, 8), 5_u64.to_ne_bytes(), "the addition");
    queue.close();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_processes_work_on_host_memory() {
    let _alone = alone();
    if rxe::skips_verbs("two_processes_work_on_host_memory") {
        return;
    }
    rxe::device(any(), "rxe0", "eth0", "10.77.0.1");
    let other = Other::new(|socket| asks(&Nic::named("rxe0"), socket));
    let nic = Nic::named("rxe0");
    let Host { mr, memory, iova } = nic.host(LEN);
    answers(&nic, &other.socket, &memory, iova.0, mr.rkey);
    other.agrees();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_processes_work_on_a_dmabuf() {
    let _alone = alone();
    if skips("two_processes_work_on_a_dmabuf") {
        return;
    }
    rxe::device(Build::Patched, "rxe0", "eth0", "10.77.0.1");
    let other = Other::new(|socket| asks(&Nic::named("rxe0"), socket));
    let nic = Nic::named("rxe0");
    let memory = Memfd::sparse(c"lab", LEN as u64).expect("a memory file");
    let view = RawMapping::of_fd(&memory, 0, LEN).expect("it can be mapped");
    let buffer = udmabuf().export(&memory, 0, LEN as u64).expect("a udmabuf");
    let mr = nic.dmabuf(&buffer);
    answers(&nic, &other.socket, &view, 0, mr.rkey);
    other.agrees();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn next_write_detects_dead_peer() {
    let _alone = alone();
    if rxe::skips_verbs("next_write_detects_dead_peer") {
        return;
    }
    rxe::device(any(), "rxe0", "eth0", "10.77.0.1");
    let other = Other::new(|socket| {
        let nic = Nic::named("rxe0");
        let host = nic.host(LEN);
        let queue = nic.queue();
        let (peer, _) = exchange(socket, &offer(&queue, host.iova.0, host.mr.rkey));
        queue.connect(&peer);
        meet(socket);
        meet(socket);
        true // and dies, with nothing ended
    });
    let nic = Nic::named("rxe0");
    let host = nic.host(4096);
    let queue = nic.queue();
    let (peer, to) = exchange(&other.socket, &offer(&queue, 0, Rkey(0)));
    queue.connect(&peer);
    meet(&other.socket);
    succeeded(&queue.run(&[host.sge(0, 8)], SendOp::Write(to)), "while it lives");
    meet(&other.socket);
    other.agrees();
    let done = queue.run(&[host.sge(0, 8)], SendOp::Write(to));
    // rxe retries for ever if the count is seven.
    assert_eq!(done.status, WcStatus::RETRY_EXC_ERR, "no answer comes: {done:?}");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn regions_of_dead_process_are_unreachable() {
    let _alone = alone();
    if rxe::skips_verbs("regions_of_dead_process_are_unreachable") {
        return;
    }
    rxe::device(any(), "rxe0", "eth0", "10.77.0.1");
    let other = Other::new(|socket| {
        let nic = Nic::named("rxe0");
        let host = nic.host(LEN);
        let queue = nic.queue();
        let _ = exchange(socket, &offer(&queue, host.iova.0, host.mr.rkey));
        true
    });
    let nic = Nic::named("rxe0");
    let host = nic.host(4096);
    let queue = nic.queue();
    let (_, to) = exchange(&other.socket, &offer(&queue, 0, Rkey(0)));
    other.agrees();
    let done = nic.run(&[host.sge(0, 8)], SendOp::Write(to));
    assert_eq!(
        done.status,
        WcStatus::REM_ACCESS_ERR,
        "its key is unknown: {done:?}"
    );
}

/// This thread, and so a child that has no other, sees a network of its own from now on.
fn leave_for_another_network() {
    // SAFETY: changes which network this thread sees, and nothing else.
    let left = unsafe { nix::libc::unshare(nix::libc::CLONE_NEWNET) };
    assert_eq!(left, 0, "another network");
}

/// iproute2's, which the guest has beside busybox's.
fn ip(words: &[&str]) {
    let all: Vec<_> = ["/usr/bin/ip"].iter().chain(words).copied().collect();
    let output = gaudi_lab::run(&all);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", all.join(" "));
}

/// An rxe over one end of the cable, in the network of the caller. /sys shows the first network
/// only, so it is not asked.
fn rxe_over(name: &str, end: &str, address: &str) {
    ip(&["addr", "add", &format!("{address}/24"), "dev", end]);
    ip(&["link", "set", end, "up"]);
    rxe::link(name, end).expect("an rxe in this network");
    rxe::gid(name, address);
}

/// The child is in a network of its own, with one end of a cable; each end has an rxe. What the
/// first one does is `work`.
fn two_networks(work: impl FnOnce(&Nic, &UnixStream)) {
    rxe::load(Build::Patched);
    gaudi_lab::modprobe("veth");
    let other = Other::new(|socket| {
        leave_for_another_network();
        meet(socket); // the parent moves the end of the cable
        meet(socket);
        rxe_over("rxevb", "vb", "10.99.0.2");
        meet(socket);
        asks(&Nic::named("rxevb"), socket)
    });
    meet(&other.socket);
    ip(&["link", "add", "va", "type", "veth", "peer", "name", "vb"]);
    ip(&["link", "set", "vb", "netns", &other.pid.to_string()]);
    meet(&other.socket);
    rxe_over("rxeva", "va", "10.99.0.1");
    meet(&other.socket);
    work(&Nic::named("rxeva"), &other.socket);
    other.agrees();
    // The child's network goes with it, and takes its end of the cable and so the whole along, and
    // the rxe over each end.
    let begin = std::time::Instant::now();
    while ["net/va", "infiniband/rxeva", "infiniband/rxevb"]
        .iter()
        .any(|name| std::path::Path::new("/sys/class").join(name).exists())
    {
        assert!(begin.elapsed() < ibv::MAX_WAIT, "the cable goes");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_network_namespaces_share_host_memory() {
    let _alone = alone();
    let name = "two_network_namespaces_share_host_memory";
    if skips(name) || rxe::skips_networks(name) {
        return;
    }
    two_networks(|nic, socket| {
        let Host { mr, memory, iova } = nic.host(LEN);
        answers(nic, socket, &memory, iova.0, mr.rkey);
    });
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn dmabuf_is_written_across_network_namespaces() {
    let _alone = alone();
    let name = "dmabuf_is_written_across_network_namespaces";
    if skips(name) || rxe::skips_networks(name) {
        return;
    }
    two_networks(|nic, socket| {
        let memory = Memfd::sparse(c"lab", LEN as u64).expect("a memory file");
        let view = RawMapping::of_fd(&memory, 0, LEN).expect("it can be mapped");
        let buffer = udmabuf().export(&memory, 0, LEN as u64).expect("a udmabuf");
        let mr = nic
            .window(&buffer.whole().expect("a window"), 0, ALL)
            .expect("a region");
        answers(nic, socket, &view, 0, mr.rkey);
        nic.device.dereg_mr(mr.handle).expect("it ends");
    });
}
