//! Every packet against bytes that a C compiler made from the public header, and back.

use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::packet::{
    ArbPoint, CbList, CpDma, EndianSwap, Fence, LinDma, LoadAndExe, MsgLong, MsgProt, MsgShort, Nop, Opcode,
    Packet, Repeat, SliceSink, Stop, Wait, Wreg32, Wreg64Long, Wreg64Short, WregBulk, WriteArcStream,
};
use gaudi_spec::gaudi2::sync::{Compare, MonArm, MonConfig, SobUpdate};

const TABLE: &str = include_str!("tables/gaudi2_packets.txt");

fn va(address: u64) -> DeviceVa {
    DeviceVa(address)
}

fn packets<'a>(bulk: &'a mut [u8], stream: &'a mut [u8]) -> Option<Vec<(&'static str, Packet<'a>)>> {
    let sram = 0x1000_ffff_fd00_0000;
    let values = [0x1122_3344_5566_7788, 1];
    Some(vec![
        ("nop", Packet::Nop(Nop::new())),
        (
            "nop.eb.mb",
            Packet::Nop(Nop::new().with_engine_barrier(true).with_message_barrier(true)),
        ),
        ("stop", Packet::Stop(Stop::new())),
        ("stop.eb", Packet::Stop(Stop::new().with_engine_barrier(true))),
        ("wreg_32", Packet::Wreg32(Wreg32::new(0xb8c4, 0x1234_5678))),
        (
            "wreg_32.pred.mb",
            Packet::Wreg32(
                Wreg32::new(0xffff, 1)
                    .with_predicate(31)?
                    .with_message_barrier(true),
            ),
        ),
        ("wreg_32.reg", Packet::Wreg32(Wreg32::from_scalar(0xb8c4, 2)?)),
        (
            "msg_long",
            Packet::MsgLong(MsgLong::new(va(0x1000_007f_fc10_a718), 0xcafe)),
        ),
        (
            "msg_long.pred",
            Packet::MsgLong(
                MsgLong::new(va(8), 0xcafe)
                    .with_predicate(10)?
                    .with_engine_barrier(true),
            ),
        ),
        (
            "msg_long.time",
            Packet::MsgLong(MsgLong::time_stamp(va(0x8000_0000_0000_0001))),
        ),
        (
            "msg_prot",
            Packet::MsgProt(MsgProt::new(va(0x10), 0xcafe).with_predicate(1)?),
        ),
        (
            "msg_short.sob.add",
            Packet::MsgShort(MsgShort::sob(416, SobUpdate::add_signed(3))?),
        ),
        (
            "msg_short.sob.long",
            Packet::MsgShort(MsgShort::sob(416, SobUpdate::set(0x7fff).with_long(true))?),
        ),
        (
            "msg_short.arm",
            Packet::MsgShort(
                MsgShort::monitor_arm(289, MonArm::for_sob(416, Compare::Equal, 0x7ffe))?
                    .with_message_barrier(true),
            ),
        ),
        (
            "msg_short.config",
            Packet::MsgShort(MsgShort::monitor_config(
                289,
                MonConfig::for_sob(8191)
                    .with_cq_en(true)
                    .with_lbw_en(true)
                    .with_extra_writes(3),
            )?),
        ),
        (
            "msg_short.config.long",
            Packet::MsgShort(MsgShort::monitor_config(292, MonConfig::for_long_sob(4))?),
        ),
        ("fence", Packet::Fence(Fence::new(3, 255, 15)?)),
        (
            "fence.pred.mb",
            Packet::Fence(Fence::new(2, 1, 1)?.with_predicate(5)?.with_message_barrier(true)),
        ),
        (
            "lin_dma",
            Packet::LinDma(LinDma::copy(
                va(0x1001_0018_0000_0000),
                va(0xfff0_0000_0000_1000),
                0x1000,
            )),
        ),
        (
            "lin_dma.wrcomp.swap8",
            Packet::LinDma(
                LinDma::copy(va(2), va(1), u32::MAX)
                    .with_write_completion(true)
                    .with_swap(EndianSwap::Eight)
                    .with_engine_barrier(true),
            ),
        ),
        (
            "lin_dma.swap2",
            Packet::LinDma(LinDma::copy(va(2), va(1), 2).with_swap(EndianSwap::Two)),
        ),
        (
            "lin_dma.memset",
            Packet::LinDma(LinDma::memset(va(0x1000), 0xdead_beef, 64)),
        ),
        (
            "arb_point.acquire",
            Packet::ArbPoint(ArbPoint::acquire(0xab_cdef)?),
        ),
        (
            "arb_point.release.pred",
            Packet::ArbPoint(ArbPoint::release().with_predicate(7)?),
        ),
        ("repeat", Packet::Repeat(Repeat::new(true, false, 0x1234))),
        (
            "repeat.outer.pred",
            Packet::Repeat(Repeat::new(false, true, 1).with_predicate(2)?),
        ),
        ("wait", Packet::Wait(Wait::new(0xab_cdef, 3, 9)?)),
        (
            "cb_list",
            Packet::CbList(CbList::new(va(sram + 0x1000), va(sram))),
        ),
        (
            "cb_list.pred.mb",
            Packet::CbList(
                CbList::new(va(2), va(1))
                    .with_predicate(3)?
                    .with_message_barrier(true),
            ),
        ),
        (
            "load_and_exe.predicates",
            Packet::LoadAndExe(LoadAndExe::predicates(va(sram + 0x80))),
        ),
        (
            "load_and_exe.bits",
            Packet::LoadAndExe(LoadAndExe::predicate_bits(va(0x80))),
        ),
        (
            "load_and_exe.scalars.exe",
            Packet::LoadAndExe(
                LoadAndExe::scalars(va(0x100))
                    .and_execute(true)
                    .with_predicate(4)?,
            ),
        ),
        ("load_and_exe.exe", Packet::LoadAndExe(LoadAndExe::execute(false))),
        (
            "cp_dma",
            Packet::CpDma(CpDma::new(va(0xfff0_0000_0000_2000), 0x40)),
        ),
        (
            "cp_dma.upper.pred",
            Packet::CpDma(
                CpDma::new(va(8), 8)
                    .on_upper(true)
                    .with_predicate(6)?
                    .with_engine_barrier(true),
            ),
        ),
        (
            "wreg_64_short",
            Packet::Wreg64Short(Wreg64Short::new(0xb8d8, 15, -16)?),
        ),
        (
            "wreg_64_short.pred.mb",
            Packet::Wreg64Short(
                Wreg64Short::new(0xfffc, 1, 16)?
                    .with_predicate(1)?
                    .with_message_barrier(true),
            ),
        ),
        (
            "wreg_64_long",
            Packet::Wreg64Long(Wreg64Long::absolute(0xb8d8, 0x1234_5678_9abc_def0)?),
        ),
        (
            "wreg_64_long.rel.high",
            Packet::Wreg64Long(
                Wreg64Long::relative(0xa900, 3, 1)?
                    .with_halves(false, true)
                    .with_predicate(2)?,
            ),
        ),
        (
            "wreg_bulk",
            Packet::WregBulk(WregBulk::build(bulk, 0xb8d8, &values, 9)?),
        ),
        (
            "write_arc_stream",
            Packet::WriteArcStream(WriteArcStream::build(stream, &[0xfedc_ba98_7654_3210])?),
        ),
    ])
}

fn unhex(text: &str) -> Vec<u8> {
    assert_eq!(text.len() % 2, 0, "two digits a byte in {text}");
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).expect("hexadecimal"))
        .collect()
}

#[test]
fn packets_match_the_header_bytes() {
    let (mut bulk, mut stream) = ([0xff; 24], [0xff; 16]);
    let packets = packets(&mut bulk, &mut stream).expect("every field is in range");
    let rows: Vec<_> = TABLE
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once(' ').expect("a name and bytes"))
        .collect();
    let names = |of: &[&str]| of.join(" ");
    assert_eq!(
        names(&packets.iter().map(|row| row.0).collect::<Vec<_>>()),
        names(&rows.iter().map(|row| row.0).collect::<Vec<_>>()),
        "packets and table have the same rows"
    );
    for ((name, packet), (_, hex)) in packets.iter().zip(rows) {
        let wanted = unhex(hex.trim());
        let mut bytes = vec![0; packet.len()];
        packet
            .emit(&mut SliceSink::new(&mut bytes))
            .expect("the packet's own length");
        assert_eq!(bytes, wanted, "{name} as bytes");
        assert_eq!(Packet::decode(&wanted), Ok(*packet), "{name} from bytes");
    }
}

#[test]
fn sized_opcodes_have_a_table_row() {
    let rows = TABLE
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|row| unhex_opcode(row.1));
    let mut seen: Vec<_> = rows.flatten().map(|opcode| opcode.number()).collect();
    seen.sort_unstable();
    seen.dedup();
    let known: Vec<_> = (0..0x20u8)
        .filter(|&number| {
            let opcode = Opcode::of(u32::from(number) << 24);
            opcode.name().is_some() && opcode != Opcode::LAST_READ_FROM_ARC
        })
        .collect();
    assert_eq!(seen, known, "opcodes by number");
}

fn unhex_opcode(text: &str) -> Option<Opcode> {
    let text = text.trim();
    let ctl = text.get(8..16)?;
    if !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let bytes: [u8; 4] = unhex(ctl).try_into().ok()?;
    Some(Opcode::of(u32::from_le_bytes(bytes)))
}

#[test]
fn fields_out_of_range_are_refused() {
    assert_eq!(MsgLong::new(va(0), 0).with_predicate(32), None);
    assert_eq!(ArbPoint::acquire(1 << 24), None);
    assert_eq!(Wait::new(1 << 24, 0, 0), None);
    assert_eq!(Wait::new(0, 4, 0), None);
    assert_eq!(Wait::new(0, 0, 16), None);
    assert_eq!(Wreg32::from_scalar(0, 4), None);
    assert_eq!(Wreg64Short::new(2, 0, 0), None, "a register is a word");
    assert_eq!(Wreg64Short::new(4, 16, 0), None);
    assert_eq!(Wreg64Long::relative(4, 16, 0), None);
    assert_eq!(
        WregBulk::build(&mut [0; 15], 0, &[1], 0),
        None,
        "sixteen bytes are needed"
    );
    assert_eq!(WregBulk::build(&mut [0; 16], 0, &[1], 32), None);
    let many = vec![0; WregBulk::MAX_VALUES + 1];
    let mut room = vec![0; 8 * many.len() + 8];
    assert_eq!(
        WriteArcStream::build(&mut room, &many),
        None,
        "16 bits count them"
    );
    let built = WregBulk::build(&mut room, 4, &many[1..], 0).expect("the most there can be");
    assert_eq!(built.values().len(), WregBulk::MAX_VALUES);
    assert_eq!(Packet::decode(built.as_bytes()), Ok(Packet::WregBulk(built)));
}
