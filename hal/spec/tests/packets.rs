//! Packets against known bytes, and against any bytes.

use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::packet::{
    CpDma, DecodeError, Fence, HEADER, LinDma, MsgBase, MsgLong, MsgShort, Nop, Opcode, Packet, Packets,
    Source,
};
use gaudi_spec::gaudi2::sync::{Compare, MonArm, MonConfig, SobUpdate};
use proptest::prelude::*;

fn bytes_of(packet: Packet<'_>) -> Vec<u8> {
    packet.emit(<[u8]>::to_vec)
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect()
}

#[test]
fn packets_have_the_bits_of_the_header() {
    // Words built by hand from the shifts in the driver's gaudi2_packets.h.
    let short = MsgShort::sob(100, SobUpdate::add_signed(1))
        .expect("in reach")
        .with_message_barrier(true);
    assert_eq!(
        words(&bytes_of(Packet::MsgShort(short))),
        [0x8000_0001, 1 << 31 | 4 << 24 | 1 << 22 | 400],
        "as gaudi2_gen_signal_cb builds it"
    );
    let arm = MsgShort::monitor_arm(5, MonArm::for_sob(8, Compare::AtLeast, 3)).expect("in reach");
    assert_eq!(
        words(&bytes_of(Packet::MsgShort(arm))),
        [3 << 17 | 0xfe << 8 | 1, 4 << 24 | (0x6000 + 20)]
    );
    let config = MsgShort::monitor_config(2047, MonConfig::new()).expect("in reach");
    assert_eq!(
        words(&bytes_of(Packet::MsgShort(config)))[1] & 0xffff,
        0x8000 + 2047 * 4,
        "MON_CONFIG_2047"
    );
    let fence = Fence::new(2, 1, 1).expect("in range").with_message_barrier(true);
    assert_eq!(
        words(&bytes_of(Packet::Fence(fence))),
        [2 << 30 | 1 << 16 | 1, 1 << 31 | 8 << 24]
    );
    let lower = CpDma::new(DeviceVa(0xfff0_0000_0000_2000), 0x40).with_engine_barrier(true);
    assert_eq!(
        words(&bytes_of(Packet::CpDma(lower))),
        [0x40, 1 << 29 | 5 << 24, 0x2000, 0xfff0_0000]
    );
    let copy = LinDma::copy(
        DeviceVa(0x1001_0018_0000_0000),
        DeviceVa(0xfff0_0000_0000_1000),
        0x1234,
    )
    .with_engine_barrier(true)
    .with_write_completion(true);
    assert_eq!(
        words(&bytes_of(Packet::LinDma(copy))),
        [0x1234, 1 << 29 | 9 << 24 | 1, 0x1000, 0xfff0_0000, 0, 0x1001_0018]
    );
    let set = LinDma::memset(DeviceVa(0x1000), 0xdead_beef, 64);
    assert_eq!(
        words(&bytes_of(Packet::LinDma(set))),
        [64, 9 << 24 | 1 << 4, 0xdead_beef, 0, 0x1000, 0]
    );
    let long = MsgLong::new(DeviceVa(0x1_0000_0004), 7);
    assert_eq!(words(&bytes_of(Packet::MsgLong(long))), [7, 3 << 24, 4, 1]);
    assert_eq!(words(&bytes_of(Packet::Nop(Nop::EMPTY))), [0, 0xa << 24]);
}

#[test]
fn oversized_fields_are_refused() {
    assert_eq!(
        MsgShort::sob(8192, SobUpdate::set(1)),
        None,
        "no such sync object"
    );
    assert_eq!(MsgShort::monitor_data(2048, 1), None, "no such monitor");
    assert_eq!(Fence::new(4, 1, 1), None, "four fences");
    assert_eq!(Fence::new(0, 1, 16), None, "four bits of decrement");
}

#[test]
fn a_walk_ends_at_the_first_error() {
    let mut bytes = bytes_of(Packet::Nop(Nop::EMPTY));
    bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0x1f]);
    bytes.extend(bytes_of(Packet::Nop(Nop::EMPTY)));
    let mut walk = Packets::new(&bytes);
    assert!(matches!(walk.next(), Some(Ok((0, Packet::Nop(_))))));
    let unknown = Opcode::of(0x1f00_0000);
    assert_eq!(walk.next(), Some(Err(DecodeError::UnknownOpcode(unknown))));
    assert_eq!(walk.offset(), 8, "the error's place is known");
    assert_eq!(walk.next(), None, "nothing after it can be found");
    // WREG_BULK of two values is 24 bytes; LIN_DMA is known whole or not at all.
    let bulk = [2, 0, 0, 0, 0, 0, 0, 2];
    assert_eq!(
        Packet::decode(&bulk),
        Err(DecodeError::Truncated {
            needed: 24,
            available: 8
        })
    );
    assert_eq!(
        Packet::decode(&[0; 7]),
        Err(DecodeError::Truncated {
            needed: HEADER,
            available: 7
        })
    );
}

fn any_packet() -> impl Strategy<Value = Packet<'static>> {
    let va = || any::<u64>().prop_map(DeviceVa);
    let base = prop_oneof![
        Just(MsgBase::Monitors),
        Just(MsgBase::Sobs),
        Just(MsgBase::Second),
        Just(MsgBase::Third)
    ];
    prop_oneof![
        Just(Packet::Nop(Nop::EMPTY)),
        (va(), any::<u32>()).prop_map(|(at, value)| Packet::MsgLong(MsgLong::new(at, value))),
        (base, any::<u16>(), any::<u32>())
            .prop_map(|(base, offset, value)| Packet::MsgShort(MsgShort::new(base, offset, value))),
        (0..4u8, any::<u8>(), 0..16u8)
            .prop_map(|(id, target, by)| Packet::Fence(Fence::new(id, target, by).expect("in range"))),
        (va(), va(), any::<u32>()).prop_map(|(to, from, size)| Packet::LinDma(LinDma::copy(to, from, size))),
        (va(), any::<u32>(), any::<u32>())
            .prop_map(|(to, pattern, size)| Packet::LinDma(LinDma::memset(to, pattern, size))),
    ]
}

// Bytes that are mostly packets: random words under opcodes that exist, so that walks get far.
fn near_packets() -> impl Strategy<Value = Vec<u8>> {
    let one = (any::<[u8; 24]>(), 0..0x20u8, 0..4usize).prop_map(|(mut bytes, opcode, words)| {
        bytes[7] = bytes[7] & 0xe0 | opcode;
        bytes[1] = 0;
        bytes[0] &= 3;
        bytes[..8 + words.min(2) * 8].to_vec()
    });
    proptest::collection::vec(one, 0..20).prop_map(|packets| packets.concat())
}

proptest! {
    #![proptest_config(gaudi_random::config(2000))]

    #[test]
    fn a_built_packet_is_read_back(packet in any_packet(), eb: bool, mb: bool) {
        let packet = match packet {
            Packet::LinDma(p) => Packet::LinDma(p.with_engine_barrier(eb).with_message_barrier(mb)),
            Packet::Fence(p) => Packet::Fence(p.with_engine_barrier(eb).with_message_barrier(mb)),
            other => other,
        };
        let bytes = bytes_of(packet);
        prop_assert_eq!(Packet::decode(&bytes), Ok(packet), "the packet from its own bytes");
        if let Packet::LinDma(dma) = packet {
            let fills = matches!(dma.source(), Source::Set(_));
            prop_assert_eq!(fills, dma.ctl.memset());
        }
    }

    #[test]
    fn any_bytes_decode_and_encode_back(
        bytes in prop_oneof![near_packets(), proptest::collection::vec(any::<u8>(), 0..400)]
    ) {
        let mut again = Vec::new();
        let mut steps = 0;
        let mut walk = Packets::new(&bytes);
        for item in walk.by_ref() {
            steps += 1;
            prop_assert!(steps <= bytes.len() / HEADER + 1, "each step takes 8 bytes or ends the walk");
            let Ok((offset, packet)) = item else { continue };
            prop_assert_eq!(offset, again.len(), "packets follow one another without gaps");
            prop_assert!(packet.len() >= HEADER);
            packet.emit(|bytes| again.extend_from_slice(bytes));
        }
        prop_assert_eq!(&again[..], &bytes[..again.len()], "every bit comes back, named or not");
        prop_assert_eq!(again.len(), walk.offset());
    }
}
