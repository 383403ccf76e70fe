//! The binary and the text form: conversion is lossless, and invalid input returns an error.

mod events;

use std::io::{self, Cursor, Write};

use gaudi_capture::Limits;
use gaudi_capture::decode::Decoder;
use gaudi_capture::gcap::{Compression, HEAD, ReadErrorKind, Reader, Writer};
use gaudi_capture::index::{self, Index};
use gaudi_capture::record::{DeviceNumber, Event, IoctlRecord, LostCause};
use gaudi_capture::text::{self, EventText, TextErrorKind};
use proptest::prelude::*;

fn lost(count: u64) -> Event {
    Event::Lost {
        time_ns: 1,
        count,
        cause: LostCause::Unknown,
    }
}

type Facts = Vec<(String, String)>;

fn written(facts: &Facts, events: &[Event], compression: Compression) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), facts, compression).unwrap();
    for event in events {
        writer.write(event).unwrap();
    }
    writer.finish().unwrap()
}

fn facts() -> impl Strategy<Value = Facts> {
    proptest::collection::vec((".{0,9}", ".{0,9}"), 0..3)
}

fn compression() -> impl Strategy<Value = Compression> {
    prop_oneof![Just(Compression::None), Just(Compression::Deflate)]
}

/// Reads to the end or the first error.
fn read(bytes: &[u8]) -> (Vec<Event>, Option<(ReadErrorKind, u64)>) {
    let reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some((error.kind, error.offset))),
    };
    let mut events = Vec::new();
    for event in reader {
        match event {
            Ok(event) => events.push(event),
            Err(error) => return (events, Some((error.kind, error.offset))),
        }
    }
    (events, None)
}

fn read_text(text: &[u8]) -> Result<(Facts, Vec<Event>), text::TextError> {
    let mut reader = text::Reader::new(text)?;
    let events = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok((reader.facts().to_vec(), events))
}

fn as_text(facts: &Facts, events: &[Event]) -> String {
    let lines = events.iter().map(|event| EventText(event).to_string());
    text::head(facts).to_string() + &lines.collect::<String>()
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn binary_form_is_lossless(facts in facts(), all in events::all(), how in compression()) {
        let bytes = written(&facts, &all, how);
        prop_assert_eq!(read(&bytes), (all.clone(), None));
        let mut reader = Reader::new(&bytes[..]).unwrap();
        prop_assert_eq!(reader.facts(), &facts[..], "facts are there before the first event");
        prop_assert_eq!(reader.by_ref().count(), all.len());
    }

    #[test]
    fn text_form_is_lossless(facts in facts(), all in events::all()) {
        let text = as_text(&facts, &all);
        let (facts_read, events_read) = read_text(text.as_bytes()).unwrap();
        prop_assert_eq!((&facts_read, &events_read), (&facts, &all), "{}", text);
        prop_assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)));
    }

    #[test]
    fn killed_writer_loses_the_last_frame(all in events::all(), how in compression(), cut: prop::sample::Index) {
        let bytes = written(&Facts::new(), &all, how);
        let cut = cut.index(bytes.len());
        let (events, error) = read(&bytes[..cut]);
        prop_assert_eq!(&events[..], &all[..events.len()], "complete frames are read");
        if let Some((kind, offset)) = error {
            let is_truncation = matches!(kind, ReadErrorKind::Truncated | ReadErrorKind::NotACapture);
            prop_assert!(is_truncation, "{:?}", kind);
            prop_assert!(offset <= cut as u64);
        }
        let index = Index::read(Cursor::new(&bytes[..cut.max(HEAD as usize)])).unwrap();
        prop_assert_eq!(index.events as usize, read(&bytes[..cut.max(HEAD as usize)]).0.len());
    }

    #[test]
    fn index_leads_to_events(all in events::all(), how in compression()) {
        let bytes = written(&Facts::new(), &all, how);
        let found = Index::read(Cursor::new(&bytes)).unwrap();
        prop_assert_eq!((found.events as usize, found.is_finished), (all.len(), true));
        for entry in found.entries {
            let rest = index::seek(Cursor::new(&bytes), entry).unwrap();
            let rest: Vec<_> = rest.map(Result::unwrap).collect();
            prop_assert_eq!(&rest[..], &all[entry.event as usize..]);
            prop_assert_eq!(rest[0].time_ns(), entry.time_ns);
        }
    }

    #[test]
    fn mutated_captures_terminate(all in events::all(), how in compression(), at: prop::sample::Index, to: u8) {
        let mut bytes = written(&Facts::new(), &all, how);
        let at = at.index(bytes.len());
        bytes[at] = to;
        let (events, error) = read(&bytes);
        if let Some((_, offset)) = error {
            prop_assert!(offset <= bytes.len() as u64, "the offset is in the file");
        }
        prop_assert!(events.len() <= all.len());
        // An invalid index is an error, never a panic.
        drop(Index::read(Cursor::new(&bytes)));
    }

    #[test]
    fn random_bytes_terminate(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut whole = written(&Facts::new(), &[], Compression::None);
        whole.truncate(HEAD as usize);
        whole.extend(&bytes);
        read(&whole);
        prop_assert_eq!(read(&bytes).1, Some((ReadErrorKind::NotACapture, 0)));
        drop(Index::read(Cursor::new(&whole)));
        drop(read_text(&bytes));
    }

    #[test]
    fn random_payloads_terminate(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 1u8..6) {
        // The frame is valid, but its payload is not.
        let mut whole = written(&Facts::new(), &[], Compression::None);
        whole.truncate(HEAD as usize);
        whole.extend(frame(kind, &bytes));
        let (_, error) = read(&whole);
        if let Some((kind, offset)) = error {
            let is_malformed = matches!(kind, ReadErrorKind::Malformed(_));
            prop_assert!(is_malformed && (HEAD..=whole.len() as u64).contains(&offset), "{:?}", kind);
        }
    }

    #[test]
    fn mutated_texts_terminate(all in events::all(), at: prop::sample::Index, to in "\\PC{0,3}") {
        let mut text = as_text(&Facts::new(), &all).into_bytes();
        let at = at.index(text.len());
        text.splice(at..=at, to.bytes());
        if let Err(error) = read_text(&text) {
            prop_assert!(error.line >= 1 && error.line <= text.iter().filter(|byte| **byte == b'\n').count() + 1);
        }
    }
}

/// Returns a frame as the writer writes it.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_le_bytes().to_vec();
    frame.extend([kind, 0, 0, 0]);
    let mut crc = flate2::Crc::new();
    crc.update(&frame);
    crc.update(payload);
    frame.extend(crc.sum().to_le_bytes());
    frame.extend(payload);
    frame
}

#[test]
fn read_errors_have_offsets() {
    let event = lost(2);
    let good = written(&Facts::new(), &[event.clone(), event.clone()], Compression::None);
    let event_len = 12 + 17;
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        read(&bytes).1
    };
    assert_eq!(with(0, b'x'), Some((ReadErrorKind::NotACapture, 0)));
    assert_eq!(with(8, 9), Some((ReadErrorKind::Version(9), 8)));
    assert_eq!(with(30, 7), Some((ReadErrorKind::Checksum, HEAD)));
    assert_eq!(with(19, 0xff), Some((ReadErrorKind::TooLong, HEAD)));
    let second = HEAD + event_len;
    assert_eq!(
        with(second as usize + 12, 7),
        Some((ReadErrorKind::Checksum, second))
    );
    let cut = &good[..second as usize + 5];
    assert_eq!(read(cut), (vec![event], Some((ReadErrorKind::Truncated, second))));
    let mut bytes = good[..HEAD as usize].to_vec();
    bytes.extend(frame(2, &[99; 40]));
    let unknown = ReadErrorKind::Malformed("unknown event tag");
    assert_eq!(read(&bytes).1, Some((unknown, HEAD + 12)));
}

/// Returns the capture that docs/src/reference/gcap.md shows.
fn example() -> (Facts, Vec<Event>) {
    let facts = vec![("kernel".to_owned(), "6.12.0".to_owned())];
    let unmap = Event::Ioctl(IoctlRecord {
        time_ns: 1_000_000,
        duration_ns: 12_400,
        pid: 42,
        tid: 42,
        fd: 3,
        device: Some(DeviceNumber { major: 261, minor: 0 }),
        request: 0xc028_6444,
        argument: 0x7ffd_1000_0000,
        result: -22,
        input: [
            &0x1001_0018_0000_0000u64.to_le_bytes()[..],
            &[0; 16],
            &[3],
            &[0; 15],
        ]
        .concat(),
        ..IoctlRecord::default()
    });
    let lost = Event::Lost {
        time_ns: 2_000_000,
        count: 1,
        cause: LostCause::BufferFull,
    };
    (facts, vec![unmap, lost])
}

/// Formats bytes like `hexdump -C`, without its last line and without `*` lines.
fn hexdump(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).enumerate().map(|(at, line)| {
        let hex: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown = line.iter().map(|&byte| match byte {
            b' '..=b'~' => char::from(byte),
            _ => '.',
        });
        let (offset, hex, shown) = (at * 16, hex.join(" "), shown.collect::<String>());
        format!("{offset:08x}  {hex:<47}  |{shown}|\n")
    });
    lines.collect()
}

#[test]
fn docs_page_matches_the_writer() {
    let page = include_str!("../../../docs/src/reference/gcap.md");
    let (facts, events) = example();
    let dump = hexdump(&written(&facts, &events, Compression::None));
    assert!(
        page.contains(&dump),
        "docs/src/reference/gcap.md lacks the hexdump:\n{dump}"
    );
    let text = as_text(&facts, &events);
    assert!(
        page.contains(&text),
        "docs/src/reference/gcap.md lacks the text:\n{text}"
    );
    let mut decoder = Decoder::new(Limits::LINE);
    for event in &events {
        let decoded = decoder.decode(event);
        let (line, json) = (decoded.to_string(), decoded.to_json().to_string());
        assert!(
            page.contains(&line),
            "docs/src/reference/gcap.md lacks the line:\n{line}"
        );
        assert!(
            page.contains(&json),
            "docs/src/reference/gcap.md lacks the JSON:\n{json}"
        );
    }
}

#[test]
fn decompression_bomb_is_too_long() {
    let mut deflate = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![0; 1 << 20];
    for _ in 0..40 {
        deflate.write_all(&zeros).unwrap();
    }
    let mut bytes = written(&Facts::new(), &[], Compression::None);
    bytes.truncate(HEAD as usize);
    bytes.extend(frame(3, &deflate.finish().unwrap()));
    assert_eq!(read(&bytes).1, Some((ReadErrorKind::TooLong, HEAD)));
}

#[test]
fn facts_have_a_total_limit() {
    let fact = |len| vec![("name".to_owned(), "x".repeat(len))];
    let mut writer = Writer::new(Vec::new(), &fact(9 << 20), Compression::None).unwrap();
    writer.facts(&fact(1 << 10)).unwrap();
    assert_eq!(read(&writer.finish().unwrap()), (Vec::new(), None));
    let mut writer = Writer::new(Vec::new(), &fact(9 << 20), Compression::None).unwrap();
    let error = writer.facts(&fact(9 << 20)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let mut bytes = writer.finish().unwrap();
    assert_eq!(read(&bytes), (Vec::new(), None), "what was written before stays");
    // A frame begins with the length of its payload; its head has 12 bytes.
    let start = HEAD as usize;
    let len = u32::from_le_bytes(bytes[start..start + 4].try_into().unwrap());
    bytes.truncate(start + 12 + len as usize);
    bytes.extend_from_within(start..);
    let (_, error) = read(&bytes);
    assert_eq!(error.map(|(kind, _)| kind), Some(ReadErrorKind::TooLong));
    let text = format!(
        "{0}{1}{1}",
        as_text(&Vec::new(), &[]),
        format!("fact name {:?}\n", "x".repeat(9 << 20))
    );
    let error = read_text(text.as_bytes()).unwrap_err();
    assert_eq!(error.kind, TextErrorKind::TooLong);
}

#[test]
fn rejected_event_leaves_capture_valid() {
    for how in [Compression::None, Compression::Deflate] {
        let mut writer = Writer::new(Vec::new(), &Facts::new(), how).unwrap();
        let small = lost(1);
        let large = Event::Ioctl(IoctlRecord {
            input: vec![7; 17 << 20],
            ..IoctlRecord::default()
        });
        writer.write(&small).unwrap();
        let error = writer.write(&large).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        writer.write(&small).unwrap();
        let bytes = writer.finish().unwrap();
        assert_eq!(read(&bytes), (vec![small.clone(), small], None));
    }
}

#[test]
fn text_errors_have_kinds() {
    let kind = |text: &str| {
        let text = format!("gcap-text 1\n{text}\n");
        read_text(text.as_bytes()).map_err(|error| (error.kind, error.line))
    };
    let data = |line: &str| kind(&format!("ioctl\n  input\n    {line}"));
    assert_eq!(kind("ioctl fd=3").unwrap().1.len(), 1, "missing fields are 0");
    assert_eq!(read_text(b"ioctl").unwrap_err().kind, TextErrorKind::Head);
    assert_eq!(kind("ioctl fd=3 fd=3"), Err((TextErrorKind::Field, 2)));
    assert_eq!(kind("ioctl color=3"), Err((TextErrorKind::Field, 2)));
    assert_eq!(kind("ioctl fd=x"), Err((TextErrorKind::Value, 2)));
    assert_eq!(
        kind("open path=\"\\xzz\" source=open"),
        Err((TextErrorKind::Value, 2))
    );
    assert_eq!(kind("\nread fd=3"), Err((TextErrorKind::Word, 3)));
    assert_eq!(kind("lost count=1\n  input"), Err((TextErrorKind::Word, 3)));
    assert_eq!(data("0"), Err((TextErrorKind::Value, 4)));
    assert_eq!(data("00*99999999999"), Err((TextErrorKind::TooLong, 4)));
    assert_eq!(data("00*99999999999999999999999"), Err((TextErrorKind::Value, 4)));
    let twice = kind("ioctl\n  input\n    00\n  input");
    assert_eq!(twice, Err((TextErrorKind::Word, 5)));
}

#[test]
fn text_facts_are_known_before_events() {
    let (facts, all) = example();
    let text = as_text(&facts, &all);
    let reader = text::Reader::new(text.as_bytes()).unwrap();
    assert_eq!(reader.facts(), facts);
    assert_eq!(reader.map(Result::unwrap).collect::<Vec<_>>(), all);
    let only = as_text(&facts, &[]);
    let mut reader = text::Reader::new(only.as_bytes()).unwrap();
    assert_eq!(reader.facts(), facts);
    assert_eq!(reader.next(), None);
    let wrong = only + "no event\n";
    let mut reader = text::Reader::new(wrong.as_bytes()).unwrap();
    let error = reader.next().unwrap().unwrap_err();
    assert_eq!(error.line, facts.len() + 2);
    assert!(reader.next().is_none());
}
