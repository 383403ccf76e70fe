//! The connection messages: they round-trip, and nothing that a peer sends panics or hangs.

use std::io::{Cursor, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gaudi_verbs::{
    ErrorKind, Gid, MrAddr, Mtu, Psn, QpAddress, Qpn, RemoteRegion, Rkey, exchange, receive, send,
};
use proptest::prelude::*;

const ADDRESS: QpAddress = QpAddress {
    qpn: Qpn(0x1234),
    psn: Psn(0xab_cdef),
    gid: Gid([7; 16]),
    mtu: Mtu::MTU_4096,
    rd_atom: 16,
    lid: 0x201,
};

#[test]
fn the_layout_on_the_wire_is_fixed() {
    let mut bytes = Vec::new();
    send(&mut bytes, &ADDRESS).unwrap();
    let mut wanted = b"gvr\0\x01\0\x10\0\x20\0\0\0\x34\x12\0\0\xef\xcd\xab\0".to_vec();
    wanted.extend([7; 16]);
    wanted.extend([5, 16, 1, 2, 0, 0, 0, 0]);
    assert_eq!(bytes, wanted);
}

#[test]
fn zero_fields_pass_and_versions_fail() {
    let mut bytes = Vec::new();
    send(
        &mut bytes,
        &QpAddress {
            rd_atom: 0,
            lid: 0,
            ..ADDRESS
        },
    )
    .unwrap();
    let heard = receive::<QpAddress>(&mut Cursor::new(&bytes)).unwrap();
    assert_eq!(
        heard,
        QpAddress {
            rd_atom: 0,
            lid: 0,
            ..ADDRESS
        },
        "0 is a value"
    );
    for version in [0, 2] {
        bytes[4] = version;
        let error = receive::<QpAddress>(&mut Cursor::new(&bytes)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("another version"), "{error}");
    }
}

#[test]
fn both_ends_exchange_at_once() {
    let (mut a, mut b) = UnixStream::pair().unwrap();
    let other = QpAddress {
        qpn: Qpn(9),
        ..ADDRESS
    };
    let far = std::thread::spawn(move || exchange(&mut b, &other).unwrap());
    assert_eq!(exchange(&mut a, &ADDRESS).unwrap(), other);
    assert_eq!(far.join().unwrap(), ADDRESS);
}

#[test]
fn closed_silent_and_wrong_peers_differ() {
    let (mut a, b) = UnixStream::pair().unwrap();
    a.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let error = receive::<QpAddress>(&mut a).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    drop(b);
    let error = receive::<QpAddress>(&mut a).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected);
    let (mut a, mut b) = UnixStream::pair().unwrap();
    b.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = receive::<QpAddress>(&mut a).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    let mut bytes = Vec::new();
    send(&mut bytes, &ADDRESS).unwrap();
    let error = receive::<RemoteRegion>(&mut Cursor::new(bytes)).unwrap_err();
    assert!(
        error.to_string().contains("another message"),
        "a queue pair is no region: {error}"
    );
}

#[test]
fn no_access_leaves_a_remote_region() {
    let region = RemoteRegion {
        addr: MrAddr(0x1000),
        len: 100,
        rkey: Rkey(1),
    };
    assert_eq!(region.at(96, 4).unwrap().addr, MrAddr(0x1060));
    for (offset, len) in [(97, 4), (0, 101), (u64::MAX, 2)] {
        assert!(region.at(offset, len).is_err(), "{len} bytes at {offset}");
    }
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn what_is_sent_is_received(qpn in 0u32..1 << 24, psn in 0u32..1 << 24, gid in any::<[u8; 16]>(), mtu in 1u8..6, rd_atom in any::<u8>(), lid in any::<u16>()) {
        let address = QpAddress { qpn: Qpn(qpn), psn: Psn(psn), gid: Gid(gid), mtu: Mtu(mtu), rd_atom, lid };
        let mut bytes = Vec::new();
        send(&mut bytes, &address).unwrap();
        prop_assert_eq!(receive::<QpAddress>(&mut Cursor::new(bytes)).unwrap(), address);
    }

    #[test]
    fn arbitrary_bytes_parse_or_fail(
        start in 0usize..13, noise in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = Vec::new();
        send(&mut bytes, &ADDRESS).unwrap();
        bytes.truncate(start);
        bytes.extend(noise);
        if let Ok(address) = receive::<QpAddress>(&mut Cursor::new(&bytes)) {
            prop_assert!(address.qpn.0 >> 24 == 0 && address.psn.0 >> 24 == 0 && address.mtu.bytes().is_some());
        }
        let region = receive::<RemoteRegion>(&mut Cursor::new(&bytes));
        if let Ok(region) = region {
            prop_assert!(region.addr.checked_add(region.len).is_some());
        }
    }
}
