//! Memory regions and queue pairs of all processes on this machine, from RDMA netlink
//! (`RDMA_NLDEV_CMD_RES_MR_GET`, `RDMA_NLDEV_CMD_RES_QP_GET`).
//!
//! The kernel reports the NIC, the owner's pid, the length and a number of each region, and its
//! keys to a caller with `CAP_NET_ADMIN`. It does not report the region's memory: a region of
//! another process is only a candidate for what holds a dma-buf.
//!
//! Numbers are those of rdma/rdma_netlink.h. Replies are foreign input and never panic.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NlasIterator, parse_i32, parse_string, parse_u8, parse_u32,
    parse_u64,
};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::wr::Rkey;

const OPERATION: &str = "RDMA netlink";
/// `RDMA_NL_NLDEV`, in the bits of a message's type above bit 10.
const NLDEV: u16 = 5;
/// `RDMA_NLDEV_CMD_GET`.
const CMD_GET: u16 = 1;
/// `RDMA_NLDEV_CMD_RES_QP_GET`.
const CMD_RES_QP_GET: u16 = 10;
/// `RDMA_NLDEV_CMD_RES_MR_GET`.
const CMD_RES_MR_GET: u16 = 13;

/// `enum rdma_nldev_attr`.
mod attr {
    pub(super) const DEV_INDEX: u16 = 1;
    pub(super) const DEV_NAME: u16 = 2;
    pub(super) const RES_QP: u16 = 19;
    pub(super) const RES_QP_ENTRY: u16 = 20;
    pub(super) const RES_LQPN: u16 = 21;
    pub(super) const RES_RQPN: u16 = 22;
    pub(super) const RES_TYPE: u16 = 26;
    pub(super) const RES_STATE: u16 = 27;
    pub(super) const RES_PID: u16 = 28;
    pub(super) const RES_KERN_NAME: u16 = 29;
    pub(super) const RES_MR: u16 = 40;
    pub(super) const RES_MR_ENTRY: u16 = 41;
    pub(super) const RES_RKEY: u16 = 42;
    pub(super) const RES_MRLEN: u16 = 45;
    pub(super) const RES_MRN: u16 = 62;
}

/// linux/netlink.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
/// The kernel's largest dump message.
const REPLY: usize = 64 * 1024;
/// The kernel answers a dump at once. A receive that takes longer never ends.
const TIMEOUT_SECONDS: i64 = 5;

/// A memory region as the kernel lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForeignRegion {
    /// The NIC.
    pub nic: String,
    /// The process that registered it; `None` for the kernel's own.
    pub pid: Option<u32>,
    /// The kernel module that created it, if one did.
    pub kernel_user: Option<String>,
    /// Length in bytes.
    pub len: u64,
    /// Its number among the NIC's regions, as rdma(8) shows it.
    pub mrn: u32,
    /// Its remote key, if the caller may see it.
    pub rkey: Option<Rkey>,
}

impl fmt::Display for ForeignRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.pid, &self.kernel_user) {
            (Some(pid), _) => write!(f, "pid {pid}")?,
            (None, Some(user)) => write!(f, "kernel ({user})")?,
            (None, None) => f.write_str("an unknown owner")?,
        }
        write!(f, ": {} bytes on {}, mrn {}", self.len, self.nic, self.mrn)
    }
}

/// Returns every region of every NIC in this network namespace.
///
/// # Errors
/// `Unsupported` if the kernel has no RDMA netlink.
pub fn regions() -> Result<Vec<ForeignRegion>> {
    list(CMD_RES_MR_GET, parse_regions)
}

/// A queue pair as the kernel lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForeignQp {
    /// The NIC.
    pub nic: String,
    /// The process that created it; `None` for the kernel's own.
    pub pid: Option<u32>,
    /// The kernel module that created it, if one did.
    pub kernel_user: Option<String>,
    /// Its number.
    pub qpn: u32,
    /// The number of the peer's queue pair, if it is connected.
    pub remote_qpn: Option<u32>,
    /// `enum ib_qp_type`.
    pub kind: u8,
    /// `enum ib_qp_state`.
    pub state: u8,
}

impl ForeignQp {
    /// Returns the name of its type: `RC`.
    pub fn kind_name(&self) -> String {
        match self.kind {
            0 => "SMI".to_owned(),
            1 => "GSI".to_owned(),
            2 => "RC".to_owned(),
            3 => "UC".to_owned(),
            4 => "UD".to_owned(),
            8 => "RAW_PACKET".to_owned(),
            9 => "XRC_INI".to_owned(),
            10 => "XRC_TGT".to_owned(),
            255 => "DRIVER".to_owned(),
            other => format!("type {other}"),
        }
    }

    /// Returns the name of its state: `RTS`.
    pub fn state_name(&self) -> String {
        let names = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
        let name = names.get(usize::from(self.state));
        name.map_or_else(|| format!("state {}", self.state), |name| (*name).to_owned())
    }
}

/// Returns every queue pair of every NIC in this network namespace.
///
/// # Errors
/// `Unsupported` if the kernel has no RDMA netlink.
pub fn queue_pairs() -> Result<Vec<ForeignQp>> {
    list(CMD_RES_QP_GET, parse_queue_pairs)
}

/// Dumps one kind of resource of every NIC. `parse` gets each message with the NIC's name.
fn list<T>(command: u16, parse: fn(&str, &[u8], &mut Vec<T>)) -> Result<Vec<T>> {
    let socket = open()?;
    let (mut nics, mut listed) = (Vec::new(), Vec::new());
    dump(&socket, CMD_GET, &[], &mut |message| {
        nics.extend(parse_device(message));
    })?;
    for (index, name) in nics {
        let mut request = Vec::with_capacity(8);
        request.extend(8u16.to_ne_bytes());
        request.extend(attr::DEV_INDEX.to_ne_bytes());
        request.extend(index.to_ne_bytes());
        let parse = &mut |message: &[u8]| parse(&name, message, &mut listed);
        match dump(&socket, command, &request, parse) {
            // The NIC was removed meanwhile.
            Err(error) if matches!(error.errno(), Some(Errno::EINVAL | Errno::ENODEV | Errno::ENOENT)) => {}
            other => other?,
        }
    }
    Ok(listed)
}

/// Returns [`regions`] without those of this process and of the kernel.
///
/// # Errors
/// As [`regions`].
pub fn foreign_regions() -> Result<Vec<ForeignRegion>> {
    let own = std::process::id();
    let mut regions = regions()?;
    regions.retain(|region| region.pid.is_some_and(|pid| pid != own && pid != 0));
    Ok(regions)
}

fn failed(errno: Errno) -> Error {
    let error = Error::from_errno(OPERATION, errno);
    match errno {
        // ECONNREFUSED: the family is known, but its module is not loaded.
        Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT | Errno::ECONNREFUSED => error
            .with_kind(ErrorKind::Unsupported)
            .because("this kernel has no RDMA netlink, or its RDMA core is not loaded")
            .helped_by("modprobe ib_core"),
        _ => error,
    }
}

fn open() -> Result<OwnedFd> {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    let socket = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkRDMA).map_err(failed)?;
    let timeout = TimeVal::seconds(TIMEOUT_SECONDS);
    setsockopt(&socket, sockopt::ReceiveTimeout, &timeout).map_err(failed)?;
    Ok(socket)
}

/// Requests a dump and passes the attributes of every message to a callback.
fn dump(socket: &OwnedFd, command: u16, attributes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<()> {
    let mut request = vec![0; HEADER];
    request.extend(attributes);
    let mut header = NetlinkBuffer::new(&mut request);
    // At most one attribute of 8 bytes. Sequence number and port stay 0: there is one request at a
    // time.
    header.set_length((HEADER + attributes.len()) as u32);
    header.set_message_type(NLDEV << 10 | command);
    header.set_flags(NLM_F_REQUEST | NLM_F_DUMP);
    send(socket.as_raw_fd(), &request, MsgFlags::empty()).map_err(failed)?;
    let mut reply = vec![0; REPLY];
    loop {
        let count = match recv(socket.as_raw_fd(), &mut reply, MsgFlags::empty()) {
            Ok(0) => return Err(protocol("an empty reply")),
            Ok(count) => count,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(failed(errno)),
        };
        if parse_messages(&reply[..count], each)? {
            return Ok(());
        }
    }
}

fn protocol(cause: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, OPERATION).because(cause.into())
}

/// Splits a datagram into netlink messages. Returns whether the dump ends with it.
fn parse_messages(mut bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<bool> {
    while !bytes.is_empty() {
        let message = NetlinkBuffer::new_checked(bytes).map_err(|error| protocol(error.to_string()))?;
        let body = message.payload();
        match message.message_type() {
            kind @ (NLMSG_DONE | NLMSG_ERROR) => {
                // A dump that fails in the middle ends with an errno in its last message. An
                // acknowledgement, and a message without a number, is an end without one.
                let errno = body.get(..4).map_or(Ok(0), parse_i32).unwrap_or(0);
                let is_failure = errno < 0 || (kind == NLMSG_ERROR && errno != 0);
                let refusal = Error::from_errno(OPERATION, Errno::from_raw(errno.saturating_neg()));
                return if is_failure { Err(refusal) } else { Ok(true) };
            }
            _ => each(body),
        }
        let next = (message.length() as usize).next_multiple_of(4);
        // The last message may lack its padding.
        bytes = bytes.get(next..).unwrap_or_default();
    }
    Ok(false)
}

/// Returns the attributes of a message, up to the first malformed one.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(|attribute| {
        let attribute = attribute.ok()?;
        let (kind, len) = (attribute.kind(), usize::from(attribute.length()));
        Some((kind, attribute.into_inner().get(4..len)?))
    })
}

/// Returns the entries of a table in a message.
fn entries(message: &[u8], table: u16, entry: u16) -> impl Iterator<Item = &[u8]> {
    let tables = attributes(message).filter(move |(kind, _)| *kind == table);
    let entries = tables.flat_map(|(_, table)| attributes(table));
    entries
        .filter(move |(kind, _)| *kind == entry)
        .map(|(_, entry)| entry)
}

fn parse_device(message: &[u8]) -> Option<(u32, String)> {
    let (mut index, mut name) = (None, None);
    for (kind, value) in attributes(message) {
        match kind {
            attr::DEV_INDEX => index = parse_u32(value).ok(),
            attr::DEV_NAME => name = parse_string(value).ok(),
            _ => {}
        }
    }
    Some((index?, name?))
}

fn parse_regions(nic: &str, message: &[u8], into: &mut Vec<ForeignRegion>) {
    for entry in entries(message, attr::RES_MR, attr::RES_MR_ENTRY) {
        let mut region = ForeignRegion {
            nic: nic.to_owned(),
            ..ForeignRegion::default()
        };
        for (kind, value) in attributes(entry) {
            match kind {
                attr::RES_PID => region.pid = parse_u32(value).ok(),
                attr::RES_KERN_NAME => region.kernel_user = parse_string(value).ok(),
                attr::RES_RKEY => region.rkey = parse_u32(value).ok().map(Rkey),
                // A malformed number is shown like a missing one.
                attr::RES_MRN => region.mrn = parse_u32(value).unwrap_or(0),
                attr::RES_MRLEN => region.len = parse_u64(value).unwrap_or(0),
                _ => {}
            }
        }
        into.push(region);
    }
}

fn parse_queue_pairs(nic: &str, message: &[u8], into: &mut Vec<ForeignQp>) {
    for entry in entries(message, attr::RES_QP, attr::RES_QP_ENTRY) {
        let mut qp = ForeignQp {
            nic: nic.to_owned(),
            kind: u8::MAX,
            state: u8::MAX,
            ..ForeignQp::default()
        };
        for (kind, value) in attributes(entry) {
            match kind {
                attr::RES_PID => qp.pid = parse_u32(value).ok(),
                attr::RES_KERN_NAME => qp.kernel_user = parse_string(value).ok(),
                // A malformed number is shown like a missing one.
                attr::RES_LQPN => qp.qpn = parse_u32(value).unwrap_or(0),
                attr::RES_RQPN => qp.remote_qpn = parse_u32(value).ok().filter(|qpn| *qpn != 0),
                attr::RES_TYPE => qp.kind = parse_u8(value).unwrap_or(u8::MAX),
                attr::RES_STATE => qp.state = parse_u8(value).unwrap_or(u8::MAX),
                _ => {}
            }
        }
        into.push(qp);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((4 + value.len() as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((HEADER as u32 + body.len() as u32).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    /// The reply of Linux 7.3 for two regions, one of a process and one of its own
    /// (fill_res_mr_entry, drivers/infiniband/core/nldev.c).
    fn fixture() -> Vec<u8> {
        let user = [
            attribute(attr::RES_RKEY, &0x3a6u32.to_ne_bytes()),
            attribute(43, &0x3a6u32.to_ne_bytes()),
            attribute(attr::RES_MRLEN, &(64u64 << 20).to_ne_bytes()),
            attribute(attr::RES_MRN, &7u32.to_ne_bytes()),
            attribute(60, &3u32.to_ne_bytes()),
            attribute(attr::RES_PID, &4242u32.to_ne_bytes()),
        ]
        .concat();
        let kernel = [
            attribute(attr::RES_MRLEN, &4096u64.to_ne_bytes()),
            attribute(attr::RES_MRN, &1u32.to_ne_bytes()),
            attribute(attr::RES_KERN_NAME, b"ib_core\0"),
        ]
        .concat();
        let table = [
            attribute(attr::RES_MR_ENTRY, &user),
            attribute(attr::RES_MR_ENTRY | 0x8000, &kernel),
        ]
        .concat();
        let body = [
            attribute(attr::DEV_INDEX, &0u32.to_ne_bytes()),
            attribute(attr::DEV_NAME, b"rxe0\0"),
            attribute(attr::RES_MR, &table),
        ]
        .concat();
        [
            message(NLDEV << 10 | CMD_RES_MR_GET, &body),
            message(NLMSG_DONE, &0u32.to_ne_bytes()),
        ]
        .concat()
    }

    fn parse(bytes: &[u8]) -> (Result<bool>, Vec<ForeignRegion>) {
        let mut regions = Vec::new();
        let answer = parse_messages(bytes, &mut |body| {
            let _ = parse_device(body);
            parse_regions("rxe0", body, &mut regions);
        });
        (answer, regions)
    }

    #[test]
    fn dump_lists_regions() {
        let (answer, regions) = parse(&fixture());
        assert!(answer.unwrap(), "the dump is at its end");
        let shown: Vec<_> = regions.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "pid 4242: 67108864 bytes on rxe0, mrn 7",
                "kernel (ib_core): 4096 bytes on rxe0, mrn 1"
            ]
        );
        assert_eq!(regions[0].rkey, Some(Rkey(0x3a6)));
    }

    /// The reply of Linux 7.3 for a connected queue pair of a process and for its own
    /// (fill_res_qp_entry of drivers/infiniband/core/nldev.c).
    fn queue_pair_fixture() -> Vec<u8> {
        let user = [
            attribute(attr::RES_LQPN, &17u32.to_ne_bytes()),
            attribute(attr::RES_RQPN, &18u32.to_ne_bytes()),
            attribute(attr::RES_TYPE, &[2]),
            attribute(attr::RES_STATE, &[3]),
            attribute(attr::RES_PID, &4242u32.to_ne_bytes()),
        ]
        .concat();
        let kernel = [
            attribute(attr::RES_LQPN, &1u32.to_ne_bytes()),
            attribute(attr::RES_TYPE, &[1]),
            attribute(attr::RES_STATE, &[77]),
            attribute(attr::RES_KERN_NAME, b"ib_core\0"),
        ]
        .concat();
        let table = [
            attribute(attr::RES_QP_ENTRY, &user),
            attribute(attr::RES_QP_ENTRY, &kernel),
        ]
        .concat();
        [
            message(
                NLDEV << 10 | CMD_RES_QP_GET,
                &attribute(attr::RES_QP | 0x8000, &table),
            ),
            message(NLMSG_DONE, &0u32.to_ne_bytes()),
        ]
        .concat()
    }

    #[test]
    fn dump_lists_queue_pairs() {
        let mut listed = Vec::new();
        let ended = parse_messages(&queue_pair_fixture(), &mut |body| {
            parse_queue_pairs("rxe0", body, &mut listed);
        });
        assert!(ended.unwrap(), "the dump is at its end");
        let [user, kernel] = &listed[..] else {
            panic!("two: {listed:?}")
        };
        assert_eq!((user.pid, user.qpn, user.remote_qpn), (Some(4242), 17, Some(18)));
        assert_eq!(
            (user.kind_name(), user.state_name()),
            ("RC".to_owned(), "RTS".to_owned())
        );
        assert_eq!(
            (kernel.kernel_user.as_deref(), kernel.remote_qpn),
            (Some("ib_core"), None)
        );
        assert_eq!(kernel.state_name(), "state 77");
    }

    #[test]
    fn refusal_keeps_its_errno() {
        let refused = message(NLMSG_ERROR, &(-22i32).to_ne_bytes());
        let error = parse(&refused).0.unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EINVAL));
    }

    #[test]
    fn kernel_lists_regions_or_names_reason() {
        match regions() {
            Ok(regions) => println!("{} regions", regions.len()),
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied),
                "{error}"
            ),
        }
    }

    proptest! {
        #![proptest_config(gaudi_random::config(256))]

        #[test]
        fn malformed_replies_never_panic(cuts in 0usize..400, flips in proptest::collection::vec((0usize..400, any::<u8>()), 0..6)) {
            let mut bytes = [fixture(), queue_pair_fixture()][cuts % 2].clone();
            bytes.truncate(cuts.min(bytes.len()));
            for (at, value) in flips {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            let _ = parse(&bytes);
            let _ = parse_messages(&bytes, &mut |body| parse_queue_pairs("rxe0", body, &mut Vec::new()));
        }
    }
}
