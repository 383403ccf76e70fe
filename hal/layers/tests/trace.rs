//! What a trace looks like, what comes back when it is read, and what a full disk does to it.

mod recorder;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gaudi_layers::fault::{FaultLayer, Plan};
use gaudi_layers::time::{Time, VirtualClock};
use gaudi_layers::trace::{
    Call, End, Failure, Fields, Header, OperationRecord, Outcome, Reader, Record, TraceLayer, Value,
};
use gaudi_seam::Operation;
use gaudi_seam::*;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::info::HlInfoDramUsage;
use gaudi_uapi::memory::MemFlags;
use proptest::prelude::*;
use recorder::Recorder;

/// A file in memory that can be full.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Page>>);

#[derive(Default)]
struct Page {
    bytes: Vec<u8>,
    room: Option<usize>,
}

impl Paper {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("unpoisoned").bytes.clone()).expect("JSON is UTF-8")
    }

    fn leave_room(&self, room: Option<usize>) {
        self.0.lock().expect("unpoisoned").room = room;
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut page = self.0.lock().expect("unpoisoned");
        let written = page.room.unwrap_or(usize::MAX).min(bytes.len());
        if written == 0 {
            return Err(io::Error::from_raw_os_error(Errno::ENOSPC as i32));
        }
        page.room = page.room.map(|room| room - written);
        page.bytes.extend_from_slice(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn traced() -> (Arc<Recorder>, Paper, TraceLayer) {
    let (below, paper) = (Recorder::new(), Paper::default());
    let layer = TraceLayer::new(
        below.clone(),
        Box::new(paper.clone()),
        Arc::new(VirtualClock::default()),
    );
    (below, paper, layer)
}

fn read(text: &str) -> Vec<Record> {
    Reader::new(text.as_bytes())
        .map(|record| record.expect("a whole trace"))
        .collect()
}

/// The lines with what differs from run to run made the same.
fn golden(text: &str) -> Vec<String> {
    let number = |line: &str, key: &str| match line.split_once(key) {
        Some((before, after)) => {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{before}{key}N{rest}")
        }
        None => line.to_owned(),
    };
    text.lines()
        .map(|line| {
            let keys = ["\"pid\":", "\"session\":", "\"thread\":"];
            keys.iter().fold(line.to_owned(), |line, key| number(&line, key))
        })
        .collect()
}

#[test]
fn trace_uses_the_kernels_field_names() {
    let time = Arc::new(VirtualClock::default());
    let (below, paper) = (Recorder::new(), Paper::default());
    // A delay below makes durations that are not 0.
    let plan: Plan = "submit:delay=3us;mem_alloc:when=2:error=ENOMEM"
        .parse()
        .expect("a plan");
    let slow = Arc::new(FaultLayer::new(below, &plan, time.clone()));
    let io = TraceLayer::new(slow, Box::new(paper.clone()), time.clone());
    time.pause(Duration::from_nanos(500));

    let handle = recorder::alloc(&io, 4096).expect("answered");
    recorder::map(&io, handle).expect("answered");
    recorder::map_host(&io, 0x7f12_3456_7000, 8192).expect("answered");
    let chunks = [HlCsChunk::user(3, 0xfff0_0002_0000_0000, 64)];
    let request = CsRequest {
        execute: &chunks,
        flags: CsFlags::TIMESTAMP | CsFlags::CUSTOM_TIMEOUT,
        timeout_s: 5,
        ..CsRequest::default()
    };
    let seq = io.submit(&request).expect("answered").seq;
    io.wait_cs(seq, Duration::from_nanos(1_500)).expect("answered");
    io.query::<HlInfoDramUsage>().expect("answered");
    io.mem_alloc(MemAlloc {
        size: 1 << 40,
        page_size: 0,
        flags: MemFlags::CONTIGUOUS | MemFlags(0x8000),
    })
    .expect_err("the plan refuses it");
    drop(io);

    assert_eq!(
        golden(&paper.text()),
        [
            r#"{"record":"header","schema":"gaudi.trace","version":1,"session":N,"backend":"mock","device":"mock0","node":"compute","name":"mock:gaudi2","era":"accel-drm","pid":N,"time_unix_ns":0}"#,
            r#"{"record":"operation","n":1,"session":N,"thread":N,"call":"mem_alloc","op":"HL_MEM_OP_ALLOC","start_ns":500,"duration_ns":0,"request":{"mem_size":4096,"page_size":0,"flags":"0"},"answer":{"handle":1}}"#,
            r#"{"record":"operation","n":2,"session":N,"thread":N,"call":"mem_map_device","op":"HL_MEM_OP_MAP","start_ns":500,"duration_ns":0,"request":{"handle":1,"hint_addr":"0x0","flags":"0"},"answer":{"device_virt_addr":"0x1001000200000000"}}"#,
            r#"{"record":"operation","n":3,"session":N,"thread":N,"call":"mem_map_host","op":"HL_MEM_OP_MAP","start_ns":500,"duration_ns":0,"request":{"host_virt_addr":"0x7f1234567000","mem_size":8192,"hint_addr":"0x0","flags":"USERPTR"},"answer":{"device_virt_addr":"0xfff0000300000000"}}"#,
            r#"{"record":"operation","n":4,"session":N,"thread":N,"call":"submit","op":"HL_IOCTL_CS","start_ns":500,"duration_ns":3000,"request":{"num_chunks_execute":1,"chunks_execute":[{"cb_handle":"0xfff0000200000000","queue_index":3,"cb_size":64,"cs_chunk_flags":"USER_ALLOC_CB","collective_engine_id":0}],"cs_flags":"TIMESTAMP|CUSTOM_TIMEOUT","timeout":5},"answer":{"seq":1,"status":"SUCCESS","sob_base_addr_offset":0,"sob_count_before_submission":0}}"#,
            r#"{"record":"operation","n":5,"session":N,"thread":N,"call":"wait_cs","op":"HL_IOCTL_WAIT_CS","start_ns":3500,"duration_ns":0,"request":{"seq":1,"timeout_us":2},"answer":{"status":"COMPLETED","flags":"0"}}"#,
            r#"{"record":"operation","n":6,"session":N,"thread":N,"call":"info","op":"HL_INFO_DRAM_USAGE","start_ns":3500,"duration_ns":0,"request":{"return_size":16,"arg":0},"answer":{"dram_free_mem":4096,"ctx_dram_mem":0,"arg":0}}"#,
            r#"{"record":"operation","n":7,"session":N,"thread":N,"call":"mem_alloc","op":"HL_MEM_OP_ALLOC","start_ns":3500,"duration_ns":0,"request":{"mem_size":1099511627776,"page_size":0,"flags":"CONTIGUOUS|0x8000"},"error":{"errno":"ENOMEM","kind":"out_of_device_memory","message":"HL_MEM_OP_ALLOC on device mock0: injected by the fault rule mem_alloc:when=2:error=ENOMEM, as if no run of free pages is long enough; or the device has too little free memory; or the kernel has no memory [ENOMEM]"}}"#,
            r#"{"record":"end","session":N,"operations":7,"lost":0}"#,
        ]
    );
}

#[test]
fn every_operation_is_one_readable_line() {
    let (below, paper, io) = traced();
    assert!(
        recorder::call_all(&io).iter().all(|(_, error)| error.is_none()),
        "a trace changes nothing"
    );
    for &operation in Operation::ALL {
        below.refuse(operation, Errno::EINVAL);
    }
    assert!(
        recorder::call_all(&io)
            .iter()
            .all(|(_, error)| error.as_ref().and_then(Error::errno) == Some(Errno::EINVAL)),
        "nor does it change an error"
    );
    drop(io);
    let records = read(&paper.text());
    let calls: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Operation(operation) => Some(operation.call.clone()),
            _ => None,
        })
        .collect();
    let all: Vec<_> = Operation::ALL
        .iter()
        .map(|operation| Call::Known(*operation))
        .collect();
    assert_eq!(calls, [all.clone(), all].concat());
    let Some(Record::End(end)) = records.last() else {
        panic!("the last line ends the trace")
    };
    assert_eq!((end.operations, end.lost), (2 * Operation::ALL.len() as u64, 0));
}

#[test]
fn full_disk_is_counted_and_changes_nothing() {
    let (_, paper, io) = traced();
    recorder::alloc(&io, 1).expect("there is room");
    paper.leave_room(Some(10));
    for _ in 0..3 {
        recorder::alloc(&io, 1).expect("an unwritable trace does not stop the caller");
    }
    paper.leave_room(None);
    recorder::alloc(&io, 1).expect("there is room again");
    drop(io);
    let records: Vec<_> = Reader::new(paper.text().as_bytes()).collect::<Vec<_>>();
    let numbers: Vec<_> = records
        .iter()
        .map(|record| match record {
            Ok(Record::Operation(operation)) => i64::try_from(operation.n).expect("small"),
            Ok(Record::Header(_)) => 0,
            Ok(Record::End(end)) => {
                assert_eq!(
                    (end.operations, end.lost),
                    (5, 3),
                    "the last line counts what is missing"
                );
                -1
            }
            Ok(Record::Unknown(fields)) => panic!("nothing unknown was written: {fields:?}"),
            Err(error) => {
                assert_eq!(error.line, 3, "the torn line is named");
                -2
            }
        })
        .collect();
    assert_eq!(
        numbers,
        [0, 1, -2, 5, -1],
        "numbers 2 to 4 are lost, and the rest is whole"
    );
}

#[test]
fn records_of_one_thread_stay_ordered() {
    let (_, paper, io) = traced();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..100).for_each(|_| drop(recorder::alloc(&io, 1))));
        }
    });
    drop(io);
    let mut last = std::collections::BTreeMap::new();
    let mut count = 0;
    for record in read(&paper.text()) {
        if let Record::Operation(operation) = record {
            count += 1;
            let before = last.insert(operation.thread, operation.n).unwrap_or(0);
            assert!(
                operation.n > before,
                "thread {}: {} after {before}",
                operation.thread,
                operation.n
            );
        }
    }
    assert_eq!((count, last.len()), (400, 4));
}

#[test]
fn unknown_records_are_kept() {
    let unknown = r#"{"record":"weather","sky":["grey",-3,null,true],"wind":{"knots":12}}"#;
    let record = Record::parse(unknown.as_bytes()).expect("JSON");
    assert_eq!(
        record.to_line(),
        format!("{unknown}\n").into_bytes(),
        "a record of another kind"
    );
    let foreign = r#"{"record":"operation","n":1,"session":1,"thread":2,"call":"fly","op":"HL_MEM_OP_FLY","start_ns":0,"duration_ns":1,"request":{"height":"0xffffffffffffffff"},"answer":{}}"#;
    let record = Record::parse(foreign.as_bytes()).expect("JSON");
    assert_eq!(
        record.to_line(),
        format!("{foreign}\n").into_bytes(),
        "an operation of another seam"
    );
    let Record::Operation(operation) = record else {
        panic!("an operation")
    };
    assert_eq!(operation.call, Call::Unknown("fly".to_owned()));
    assert_eq!(operation.request["height"], "0xffffffffffffffff");

    for (text, expected) in [
        (unknown.to_owned(), "not the header of a trace"),
        (header("x", 1), "the schema is \"x\""),
        (header("gaudi.trace", 2), "version 2 is newer"),
        (String::new() + "\n", "not the header of a trace"),
    ] {
        let records: Vec<_> = Reader::new(text.as_bytes()).collect();
        let [Err(error)] = records.as_slice() else {
            panic!("one error was expected, saw {records:?}")
        };
        assert!(
            error.to_string().contains(expected),
            "{text} must say {expected:?}: {error}"
        );
    }
    let long = header("gaudi.trace", 1)
        + &"x".repeat(3 << 20)
        + "\n"
        + r#"{"record":"end","session":1,"operations":0,"lost":0}"#;
    let records: Vec<_> = Reader::new(long.as_bytes()).collect();
    assert_eq!(
        records.len(),
        3,
        "a line without end is skipped: {}",
        records.len()
    );
    assert!(records[1].is_err() && records[2].is_ok());
}

fn header(schema: &str, version: u32) -> String {
    let header = Header {
        schema: schema.to_owned(),
        version,
        session: 1,
        backend: String::new(),
        device: String::new(),
        node: String::new(),
        name: String::new(),
        era: String::new(),
        pid: 0,
        time_unix_ns: 0,
    };
    String::from_utf8(Record::Header(header).to_line()).expect("UTF-8")
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        any::<u64>().prop_map(|number| Value::from(format!("{number:#x}"))),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            fields_of(inner).prop_map(Value::Object),
        ]
    })
}

fn fields_of(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Fields> {
    let field = (any::<String>(), value);
    proptest::collection::vec(field, 0..4).prop_map(Fields::from_iter)
}

fn records() -> impl Strategy<Value = Record> {
    let call = prop_oneof![
        (0..Operation::ALL.len()).prop_map(|index| Call::Known(Operation::ALL[index])),
        "[A-Z]{1,8}".prop_map(Call::Unknown),
    ];
    let failure = (proptest::option::of("E[A-Z]+"), any::<String>(), any::<String>())
        .prop_map(|(errno, kind, message)| Failure { errno, kind, message });
    let outcome = prop_oneof![
        fields_of(values()).prop_map(Outcome::Answer),
        failure.prop_map(Outcome::Error),
    ];
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    prop_oneof![
        (numbers, call, any::<String>(), fields_of(values()), outcome).prop_map(
            |((n, thread, start_ns, duration_ns), call, op, request, outcome)| {
                Record::Operation(OperationRecord {
                    n,
                    session: 1,
                    thread,
                    call,
                    op,
                    start_ns,
                    duration_ns,
                    request,
                    outcome,
                })
            }
        ),
        (any::<u64>(), any::<u64>()).prop_map(|(operations, lost)| Record::End(End {
            session: 3,
            operations,
            lost
        })),
    ]
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn every_record_round_trips(record in records()) {
        let line = record.to_line();
        prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
        let read = Record::parse(&line).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(read, record);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), behind_header in any::<bool>()) {
        let mut input = if behind_header { header("gaudi.trace", 1).into_bytes() } else { Vec::new() };
        input.extend(bytes);
        for record in Reader::new(input.as_slice()) {
            drop(record);
        }
    }

    #[test]
    fn mutated_line_never_panics_the_reader(record in records(), at in any::<usize>(), byte in any::<u8>()) {
        let mut line = record.to_line();
        let at = at % line.len();
        line[at] = byte;
        drop(Record::parse(&line));
    }
}
