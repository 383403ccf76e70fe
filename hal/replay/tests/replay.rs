//! Records programs on the mock, and replays them.

#![expect(unsafe_code, reason = "host memory is mapped to the device by address")]

use std::time::Duration;

use gaudi_hal::{DeviceSpec, ErrorKind, SharedIo};
use gaudi_replay::Recording;
use gaudi_seam::{
    CbCreate, CsRequest, DeviceVa, Errno, ExportRequest, HostVa, KernelIoExt as _, MapDevice, MapHost,
    MemAlloc, MemHandle, MmapRequest, RawMapping, WaitStatus,
};
use gaudi_spec::gaudi2::packet::LinDma;
use gaudi_spec::gaudi2::queue;
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::{HlInfoDramUsage, HlInfoHwIpInfo};
use gaudi_uapi::memory::MemFlags;
use proptest::prelude::*;

const PAGE: u64 = 768 << 20;

fn spec(text: &str) -> DeviceSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A folder, and the specs that record to a file in it and replay that file.
fn tape(name: &str, options: &str) -> (tempfile::TempDir, DeviceSpec, DeviceSpec) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.gcap");
    let file = file.to_str().expect("UTF-8");
    let record = spec(&format!(
        "mock:gaudi2?clock=virtual&name={name}+record={file}{options}"
    ));
    let replay = spec(&format!("replay:{file}"));
    (folder, record, replay)
}

fn open(spec: &DeviceSpec) -> SharedIo {
    gaudi_hal::open(spec).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

/// Returns what a program can branch on, and the cause.
fn ended(result: Result<(), gaudi_hal::Error>) -> String {
    let error = result.map_err(|error| (error.kind(), error.errno(), error.cause().map(str::to_owned)));
    format!("{error:?}")
}

/// Copies a pattern to the device and back with two commands of the copy engine, and returns all
/// answers as text. The bytes that came back are the last answer.
fn session(io: &SharedIo) -> Vec<String> {
    let mut seen = Vec::new();
    let mut log = |text: String| seen.push(text);
    let hw: HlInfoHwIpInfo = io.query().unwrap();
    log(format!("{hw:?}"));
    let handle = io
        .mem_alloc(MemAlloc {
            size: PAGE,
            page_size: 0,
            flags: MemFlags::NONE,
        })
        .unwrap();
    log(format!("{handle:?}"));
    let device = io
        .mem_map_device(MapDevice {
            handle,
            hint: None,
            flags: MemFlags::NONE,
        })
        .unwrap();
    log(format!("{device:?}"));
    log(ended(io.mem_free(handle)));
    log(ended(io.mem_free(MemHandle(77))));
    let usage: HlInfoDramUsage = io.query().unwrap();
    log(format!("{usage:?}"));
    let host = RawMapping::anonymous(8192, true).unwrap();
    host.write(0, &[0x5a; 4096]).unwrap();
    let request = MapHost {
        address: HostVa(host.as_ptr().as_ptr().expose_provenance() as u64),
        size: 8192,
        hint: None,
        flags: MemFlags::NONE,
    };
    // SAFETY: the memory is unmapped below, before it is dropped; no reference to it exists.
    let va = unsafe { io.mem_map_host(request) }.unwrap();
    log(format!("{va:?}"));
    let cb = io
        .cb_create(CbCreate {
            size: 4096,
            map_to_device: true,
        })
        .unwrap();
    let at = io.cb_info(cb, true).unwrap().device_va.unwrap();
    log(format!("{cb:?} {at:?}"));
    let buffer = io
        .mmap(MmapRequest {
            offset: cb.0,
            len: 4096,
        })
        .unwrap();
    let mut packets = LinDma::copy(device, va, 4096).to_bytes().to_vec();
    packets.extend(LinDma::copy(DeviceVa(va.0 + 4096), device, 4096).to_bytes());
    buffer.write(0, &packets).unwrap();
    let chunks = [HlCsChunk::user(queue::PDMA_1_0.0, at.0, packets.len() as u32)];
    let submitted = io.submit(&CsRequest::jobs(&chunks)).unwrap();
    log(format!("{submitted:?}"));
    let waited = io.wait_cs(submitted.seq, Duration::from_secs(10)).unwrap();
    assert_eq!(waited.status, WaitStatus::Completed);
    log(format!("{waited:?}"));
    let exported = io.export_dmabuf(ExportRequest {
        address: device,
        size: 4096,
        offset: 0,
        flags: nix::libc::O_CLOEXEC as u32,
    });
    log(format!("export {:?}", exported.as_ref().map(|_| ())));
    drop(exported);
    io.mem_unmap(va).unwrap();
    let mut back = [0; 4096];
    host.read(4096, &mut back).unwrap();
    log(format!("{:02x?}", &back[..8]));
    log(ended(io.cb_destroy(cb)));
    log(ended(io.cb_destroy(cb)));
    seen
}

#[test]
fn recorded_session_gives_the_same_answers() {
    let (_folder, record, replay) = tape("same", ",data");
    let recorded = session(&open(&record));
    for how in ["", "?match=strict"] {
        let spec = spec(&format!("{replay}{how}"));
        assert_eq!(session(&open(&spec)), recorded, "{spec}");
    }
    let counted = Recording::read(std::fs::File::open(file_of(&replay)).unwrap()).unwrap();
    assert_eq!(counted.counts().0, 1, "one node was opened");
}

fn file_of(replay: &DeviceSpec) -> std::path::PathBuf {
    let gaudi_seam::BackendSpec::Replay(replay) = &replay.backend else {
        panic!("{replay} is a replay");
    };
    replay.file.clone().into()
}

#[test]
fn without_data_memory_stays() {
    let (_folder, record, replay) = tape("bare", "");
    let recorded = session(&open(&record));
    let replayed = session(&open(&replay));
    let differing: Vec<_> = recorded
        .iter()
        .zip(&replayed)
        .filter(|(one, other)| one != other)
        .collect();
    let zeros = format!("{:02x?}", [0; 8]);
    let copied = format!("{:02x?}", [0x5a; 8]);
    assert_eq!(
        differing,
        [(&copied, &zeros)],
        "only the bytes that the device wrote differ"
    );
}

#[test]
fn strict_replay_shows_both_sides() {
    let (_folder, record, replay) = tape("strict", "");
    let recorded = open(&record);
    let alloc = |io: &SharedIo, size| {
        io.mem_alloc(MemAlloc {
            size,
            page_size: 0,
            flags: MemFlags::NONE,
        })
    };
    alloc(&recorded, PAGE).unwrap();
    let _: HlInfoDramUsage = recorded.query().unwrap();
    let strict = open(&spec(&format!("{replay}?match=strict")));
    let error = alloc(&strict, 2 * PAGE).expect_err("another size");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    for side in ["mem_size=1610612736", "mem_size=805306368"] {
        assert!(text.contains(side), "{side} is missing: {text}");
    }
    let later = alloc(&strict, PAGE).expect_err("the replay has ended");
    assert_eq!(later.kind(), ErrorKind::Unsupported);
    let best = open(&replay);
    let _: HlInfoDramUsage = best.query().expect("another order");
    let _: HlInfoDramUsage = best.query().expect("queries repeat");
    assert!(alloc(&best, PAGE).is_ok());
    let error = alloc(&best, PAGE).expect_err("used");
    assert!(error.help().is_some(), "{error}");
}

#[test]
fn each_open_replays_the_next() {
    let (_folder, record, replay) = tape("opens", "");
    let first = open(&record);
    let refused = gaudi_hal::open(&record).err().expect("the device is in use");
    let control = gaudi_hal::control(&record).unwrap();
    let hw: HlInfoHwIpInfo = control.query().unwrap();
    drop((first, control));
    drop(open(&record));
    let first = open(&replay);
    assert_eq!(first.node().device.to_string(), "replay0");
    let again = gaudi_hal::open(&replay).err().expect("the recorded open failed");
    assert_eq!((again.kind(), again.errno()), (refused.kind(), refused.errno()));
    let control = gaudi_hal::control(&replay).unwrap();
    assert_eq!(
        format!("{:?}", control.query::<HlInfoHwIpInfo>().unwrap()),
        format!("{hw:?}")
    );
    drop(open(&replay));
    let none = gaudi_hal::open(&replay).err().expect("no open is left");
    assert_eq!(none.kind(), ErrorKind::NotFound);
    let control = gaudi_hal::control(&replay).expect("a control node that was not recorded");
    let _: HlInfoHwIpInfo = control.query().expect("answered from the recorded ones");
}

#[test]
fn recorded_faults_are_replayed_and_marked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.gcap");
    let shown = file.to_str().unwrap();
    let plan = "cb_create:when=2:error=ENOMEM";
    let record = open(&spec(&format!(
        "mock:gaudi2?clock=virtual&name=faults+fault={}+record={shown}",
        plan.replace('=', "%3D")
    )));
    let replay = spec(&format!("replay:{shown}"));
    let create = |io: &SharedIo| {
        let made = io.cb_create(CbCreate {
            size: 4096,
            map_to_device: false,
        });
        made.map_err(|error| (error.kind(), error.errno(), error.to_string().contains(plan)))
    };
    let recorded = [create(&record), create(&record), create(&record)];
    assert_eq!(
        recorded[1],
        Err((ErrorKind::OutOfMemory, Some(Errno::ENOMEM), true))
    );
    let replay = open(&replay);
    assert_eq!([create(&replay), create(&replay), create(&replay)], recorded);
    let events = gaudi_capture::gcap::Reader::new(std::fs::File::open(&file).unwrap()).unwrap();
    let marks = events.filter_map(|event| match event.unwrap() {
        gaudi_capture::record::Event::Mark(mark) => Some((mark.kind, String::from_utf8(mark.text).unwrap())),
        _ => None,
    });
    let faults: Vec<_> = marks
        .filter(|(kind, _)| *kind == gaudi_capture::record::MarkKind::Fault)
        .collect();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].1.contains(plan), "{faults:?}");
}

#[test]
fn hostile_file_gives_an_offset() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.gcap");
    let replay = spec(&format!("replay:{}", file.display()));
    let opened = || gaudi_hal::open(&replay).err().expect("not a recording");
    let missing = opened();
    assert_eq!(
        (missing.kind(), missing.errno()),
        (ErrorKind::InvalidInput, Some(Errno::ENOENT))
    );
    std::fs::write(&file, b"not a capture at all").unwrap();
    assert!(opened().to_string().contains("not a .gcap file"), "{}", opened());
    let (_other, record, good) = tape("bad", "");
    let io = open(&record);
    let _: HlInfoHwIpInfo = io.query().unwrap();
    drop(io);
    let mut bytes = std::fs::read(file_of(&good)).unwrap();
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let error = opened();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("checksum"), "{error}");
    assert!(error.to_string().contains("byte "), "{error}");
}

#[test]
fn text_form_is_replayed() {
    use gaudi_capture::{gcap, text};

    let (folder, record, replay) = tape("text", ",data");
    let recorded = session(&open(&record));
    let reader = gcap::Reader::new(std::fs::File::open(file_of(&replay)).unwrap()).unwrap();
    let mut capture = text::head(reader.facts()).to_string();
    for event in reader {
        capture += &text::EventText(&event.unwrap()).to_string();
    }
    let file = folder.path().join("run.txt");
    std::fs::write(&file, &capture).unwrap();
    let replay = spec(&format!("replay:{}?match=strict", file.display()));
    assert_eq!(session(&open(&replay)), recorded);
    let lines = capture.lines().count();
    std::fs::write(&file, capture + "no event\n").unwrap();
    let replay = spec(&format!("replay:{}", file.display()));
    let error = gaudi_hal::open(&replay).err().expect("a wrong line");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let line = format!("line {}", lines + 1);
    assert!(error.to_string().contains(&line), "{line}: {error}");
}

/// A capture of one node that maps a block with a handle near the end of the replay's file.
#[test]
fn block_near_the_end_is_mapped_or_refused() {
    use gaudi_capture::gcap::{Compression, Writer};
    use gaudi_capture::record::{Event, FdSource, MmapRecord, OpenRecord};

    /// A block's type, and the highest number.
    const LAST_BLOCK: u64 = 0x4 << 59 | 0xffff_ffff << 12;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("block.gcap");
    let mut writer = Writer::new(std::fs::File::create(&file).unwrap(), &[], Compression::None).unwrap();
    let open_record = OpenRecord {
        time_ns: 0,
        duration_ns: 0,
        pid: 1,
        tid: 1,
        source: FdSource::Open,
        path: b"/dev/accel/accel0".to_vec(),
        flags: 0,
        device: None,
        result: 3,
    };
    writer.write(&Event::Open(open_record)).unwrap();
    let lengths = [8192, 1 << 40];
    for length in lengths {
        let mmap = MmapRecord {
            time_ns: 0,
            duration_ns: 0,
            pid: 1,
            tid: 1,
            address: 0,
            length,
            protection: 3,
            flags: 1,
            fd: 3,
            device: None,
            offset: LAST_BLOCK,
            result: 0x7000_0000,
        };
        writer.write(&Event::Mmap(mmap)).unwrap();
    }
    drop(writer.finish().unwrap());
    let io = open(&spec(&format!("replay:{}", file.display())));
    let [small, huge] = lengths.map(|length| {
        io.mmap(MmapRequest {
            offset: LAST_BLOCK,
            len: length as usize,
        })
    });
    let mut last = [1];
    small.unwrap().read(8191, &mut last).unwrap();
    assert_eq!(last, [0]);
    assert_eq!(huge.unwrap_err().errno(), Some(Errno::ENOMEM));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 2000 } else { 1_000_000 }))]

    /// A capture whose bytes were changed is read, or rejected with an error: never a panic.
    #[test]
    fn changed_captures_do_not_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut events = events();
        for (at, value) in &changes {
            let event = at.index(events.len());
            change(&mut events[event], at.index(256), *value);
        }
        let writer = gaudi_capture::gcap::Writer::new(Vec::new(), &[], gaudi_capture::gcap::Compression::None);
        let mut writer = writer.unwrap();
        for event in &events {
            writer.write(event).unwrap();
        }
        let bytes = writer.finish().unwrap();
        let recording = Recording::read(&bytes[..]).unwrap();
        prop_assert!(recording.counts().1 <= events.len());
    }
}

/// The events of a recorded session.
fn events() -> Vec<gaudi_capture::record::Event> {
    static EVENTS: std::sync::OnceLock<Vec<gaudi_capture::record::Event>> = std::sync::OnceLock::new();
    let events = EVENTS.get_or_init(|| {
        let (_folder, record, replay) = tape("fuzz", "");
        session(&open(&record));
        let file = std::fs::File::open(file_of(&replay)).unwrap();
        gaudi_capture::gcap::Reader::new(file)
            .unwrap()
            .map(Result::unwrap)
            .collect()
    });
    events.clone()
}

/// Changes a byte of an ioctl's argument or memory, or its descriptor.
fn change(event: &mut gaudi_capture::record::Event, at: usize, value: u8) {
    let gaudi_capture::record::Event::Ioctl(ioctl) = event else {
        return;
    };
    match at % 4 {
        0 => ioctl.fd = value.into(),
        1 => {
            ioctl.memory.clear();
        }
        _ => {
            let len = ioctl.input.len().max(1);
            if let Some(byte) = ioctl.input.get_mut(at % len) {
                *byte = value;
            }
        }
    }
}
