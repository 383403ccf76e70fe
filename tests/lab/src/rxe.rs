//! Soft-RoCE in the guest: the stock module or the lab's patched build, and a device over a network
//! interface.
//!
//! One at a time: both are named `rdma_rxe`. `/sys/module/rdma_rxe/version` distinguishes them,
//! since only ours has one.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gaudi_sys::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};

use crate::{modprobe, run, skip};

const PATCHED: &str = "/lab/modules/rdma_rxe.ko";
const NEED: &str = "/lab/modules/rdma_rxe.need";
const VERSION: &str = "/sys/module/rdma_rxe/version";

/// Which `rdma_rxe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// The kernel's own: no dma-buf regions.
    Stock,
    /// The lab's, with dma-buf regions (`tests/lab/rxe-dmabuf`).
    Patched,
}

/// Why this guest has no patched build, if so: what the machine that built its root lacks.
pub fn need() -> Option<String> {
    (!Path::new(PATCHED).exists())
        .then(|| fs::read_to_string(NEED).unwrap_or_else(|_| "a lab that builds its own rdma_rxe".to_owned()))
}

/// Whether a test must be skipped, since this guest has no patched build; counts it, with the
/// reason.
pub fn skips(test: &str) -> bool {
    need().is_some_and(|need| skip(test, &need))
}

/// Whether a test must be skipped, since this guest has no libibverbs; counts it, with the reason.
pub fn skips_verbs(test: &str) -> bool {
    let need = fs::read_to_string("/lab/verbs.need").ok();
    need.is_some_and(|need| skip(test, &need))
}

/// Whether a test must be skipped, since soft-RoCE of this kernel serves the first network
/// namespace alone; counts it, with the reason.
pub fn skips_networks(test: &str) -> bool {
    crate::kernel() < (7, 0)
        && skip(
            test,
            "Linux 7.0 or newer, whose soft-RoCE has a socket for each network namespace (rxe_ns.c)",
        )
}

/// Loads a build, in the place of the other one.
///
/// # Panics
/// Where it does not load, or a process still uses the other one.
pub fn load(build: Build) {
    let loaded = || crate::is_loaded("rdma_rxe").then(|| Path::new(VERSION).exists());
    let wanted = build == Build::Patched;
    if loaded() == Some(wanted) {
        return;
    }
    // The stock module brings what both depend on.
    modprobe("ib_uverbs");
    modprobe("rdma_rxe");
    if loaded() != Some(wanted) {
        succeed(&["rmmod", "rdma_rxe"]);
        match build {
            Build::Patched => succeed(&["insmod", PATCHED]),
            Build::Stock => modprobe("rdma_rxe"),
        }
    }
    assert_eq!(
        loaded(),
        Some(wanted),
        "{build:?} is loaded; the other one has no version"
    );
}

/// Brings an interface up with an IPv4 address of 24 bits, or an IPv6 one of 64. Twice is no error.
///
/// # Panics
/// Where there is no such interface.
pub fn address(interface: &str, address: &str) {
    if interface.starts_with("eth") {
        modprobe("virtio_net");
    }
    wait_for(&format!("{interface} to appear"), || {
        Path::new("/sys/class/net").join(interface).exists()
    });
    if address.contains(':') {
        // Busybox's ip has no `nodad`; no other interface has such an address here.
        let words = [
            "/usr/bin/ip",
            "addr",
            "add",
            &format!("{address}/64"),
            "dev",
            interface,
            "nodad",
        ];
        let _ = run(&words); // it may have it
    } else {
        // so may this
        let _ = run(&["ip", "addr", "add", &format!("{address}/24"), "dev", interface]);
    }
    succeed(&["ip", "link", "set", interface, "up"]);
}

/// Makes an rxe device over an interface, as `rdma link add NAME type rxe netdev INTERFACE` does.
///
/// # Errors
/// What the kernel answered: `EEXIST` where the interface has one.
pub fn link(name: &str, interface: &str) -> Result<(), Errno> {
    // RDMA_NLDEV_CMD_NEWLINK with the attributes DEV_NAME, LINK_TYPE, NDEV_NAME
    // (rdma/rdma_netlink.h).
    let mut message = Vec::new();
    for (id, text) in [(2_u16, name), (65, "rxe"), (51, interface)] {
        let length = 4 + text.len() as u16 + 1;
        message.extend(length.to_ne_bytes());
        message.extend(id.to_ne_bytes());
        message.extend(text.as_bytes());
        message.push(0);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    const NEWLINK: u16 = 5 << 10 | 3;
    const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
    let mut packet = Vec::new();
    packet.extend((16 + message.len() as u32).to_ne_bytes());
    packet.extend(NEWLINK.to_ne_bytes());
    packet.extend(REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    packet.extend([0; 8]);
    packet.extend(message);
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRDMA,
    )?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    send(socket.as_raw_fd(), &packet, MsgFlags::empty())?;
    let mut answer = [0; 4096];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    if length < 20 {
        return Err(Errno::EPROTO);
    }
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(()),
        error => Err(Errno::from_raw(-error)),
    }
}

/// The index and bytes of a device's RoCE v2 GID of an IP address; it appears a little after the
/// address.
///
/// # Panics
/// Where it does not.
pub fn gid(device: &str, address: &str) -> (u8, [u8; 16]) {
    let wanted = match address.parse().expect("an IP address") {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped(),
        std::net::IpAddr::V6(address) => address,
    };
    let folder = format!("/sys/class/infiniband/{device}/ports/1");
    let find = || {
        (0..16_u8).find(|index| {
            let read =
                |what: &str| fs::read_to_string(format!("{folder}/{what}/{index}")).unwrap_or_default();
            read("gid_attrs/types").trim() == "RoCE v2" && read("gids").trim().parse() == Ok(wanted)
        })
    };
    wait_for(&format!("{device} to have the GID of {address}"), || {
        find().is_some()
    });
    (find().expect("it was there"), wanted.octets())
}

/// A device of a build over an interface with an address; what it takes to have one. Calls after
/// the first find it there.
///
/// # Panics
/// Where a step fails.
pub fn device(build: Build, name: &str, interface: &str, at: &str) -> (u8, [u8; 16]) {
    // Tests of one program run at the same time, and a module is loaded once.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    load(build);
    address(interface, at);
    match link(name, interface) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => panic!("an rxe device over {interface}: {errno}"),
    }
    gid(name, at)
}

fn succeed(words: &[&str]) {
    let output = run(words);
    let stdout = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} must succeed, it stdout: {stdout}",
        words.join(" ")
    );
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "timed out waiting for {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
