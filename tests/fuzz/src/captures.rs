//! Captures in both forms.

use std::io::Cursor;

use gaudi_capture::Limits;
use gaudi_capture::decode::Decoder;
use gaudi_capture::gcap::{Compression, HEAD, Reader, Writer};
use gaudi_capture::index::{self, Index};
use gaudi_capture::record::Event;
use gaudi_capture::text::{self, EventText};
use gaudi_replay::Recording;

/// Decodes events as `gaudi decode` does, and prints them in both forms.
fn decoded(events: &[Event]) {
    let mut decoder = Decoder::new(Limits::LINE);
    for event in events {
        let decoded = decoder.decode(event);
        assert!(!decoded.to_string().is_empty());
        assert!(decoded.to_json().is_object());
    }
}

/// Reads events up to the first error, and at most as many as a case needs.
fn events<E>(reader: impl Iterator<Item = Result<Event, E>>) -> Vec<Event> {
    reader.map_while(Result::ok).take(10_000).collect()
}

pub(crate) fn gcap(bytes: &[u8]) {
    if let Ok(mut reader) = Reader::new(bytes) {
        let all = events(reader.by_ref());
        decoded(&all);
        let mut writer = Writer::new(Vec::new(), reader.facts(), Compression::None).expect("no file");
        for event in &all {
            writer
                .write(event)
                .expect("an event that was read can be written");
        }
        let again = writer.finish().expect("no file");
        let reader = Reader::new(&again[..]).expect("what was written");
        assert_eq!(events(reader), all, "events survive a copy of the file");
    }
    if let Ok(found) = Index::read(Cursor::new(bytes)) {
        for entry in found.entries.into_iter().take(100) {
            if let Ok(rest) = index::seek(Cursor::new(bytes), entry) {
                events(rest);
            }
        }
    }
    if let Ok(recording) = Recording::read(bytes) {
        let (opens, calls) = recording.counts();
        assert!(
            opens + calls <= 64 * bytes.len() + 1,
            "a capture bounds its recording"
        );
    }
}

pub(crate) fn gcap_frame(bytes: &[u8]) {
    let Some((&kind, payload)) = bytes.split_first() else {
        return;
    };
    let writer = Writer::new(Vec::new(), &[], Compression::None).expect("no file");
    let mut whole = writer.finish().expect("no file");
    whole.truncate(HEAD as usize);
    let mut frame = (payload.len() as u32).to_le_bytes().to_vec();
    frame.extend([kind, 0, 0, 0]);
    let mut crc = flate2::Crc::new();
    crc.update(&frame);
    crc.update(payload);
    frame.extend(crc.sum().to_le_bytes());
    frame.extend(payload);
    whole.extend(frame);
    gcap(&whole);
}

pub(crate) fn capture_text(bytes: &[u8]) {
    let Ok(mut reader) = text::Reader::new(bytes) else {
        return;
    };
    let all = events(reader.by_ref());
    decoded(&all);
    let lines = all.iter().map(|event| EventText(event).to_string());
    let printed = text::head(reader.facts()).to_string() + &lines.collect::<String>();
    let mut again = text::Reader::new(printed.as_bytes()).expect("what was written");
    assert_eq!(events(again.by_ref()), all, "events survive a copy of the text");
    assert_eq!(again.facts(), reader.facts(), "facts survive a copy of the text");
}
