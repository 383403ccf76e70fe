//! Random events of every kind.

use gaudi_capture::record::{
    DataRecord, DeviceNumber, Event, FdSource, IoctlRecord, LostCause, MarkKind, MarkRecord, Memory,
    MmapRecord, Moment, OpenRecord, ProcessChange, ProcessRecord, WriteRecord,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..70),
        (any::<u8>(), 0..99usize).prop_map(|(byte, len)| vec![byte; len]),
        vec(prop_oneof![Just(0), Just(0), any::<u8>()], 0..70),
    ]
}

fn device() -> impl Strategy<Value = Option<DeviceNumber>> {
    any::<Option<(u32, u32)>>().prop_map(|device| device.map(|(major, minor)| DeviceNumber { major, minor }))
}

fn memory() -> impl Strategy<Value = Memory> {
    (any::<u64>(), any::<bool>(), bytes(), any::<u64>()).prop_map(|(address, exit, bytes, whole)| Memory {
        address,
        at: if exit { Moment::Exit } else { Moment::Entry },
        bytes,
        whole,
    })
}

type Head = (u64, u32, u32);

fn ioctl((time_ns, pid, tid): Head) -> impl Strategy<Value = Event> {
    let words = (
        any::<u64>(),
        any::<i32>(),
        device(),
        any::<u32>(),
        any::<u64>(),
        any::<bool>(),
        any::<i64>(),
    );
    (words, bytes(), bytes(), vec(memory(), 0..3)).prop_map(move |(words, input, output, memory)| {
        let (duration_ns, fd, device, request, argument, compat, result) = words;
        Event::Ioctl(IoctlRecord {
            time_ns,
            duration_ns,
            pid,
            tid,
            fd,
            device,
            request,
            argument,
            compat,
            result,
            input,
            output,
            memory,
        })
    })
}

fn open((time_ns, pid, tid): Head) -> impl Strategy<Value = Event> {
    use FdSource::{Created, Inherited, Open, Received, Taken};
    let source = prop::sample::select(vec![Open, Inherited, Received, Taken, Created]);
    (
        any::<u64>(),
        source,
        bytes(),
        any::<u32>(),
        device(),
        any::<i64>(),
    )
        .prop_map(move |row| {
            let (duration_ns, source, path, flags, device, result) = row;
            Event::Open(OpenRecord {
                time_ns,
                duration_ns,
                pid,
                tid,
                source,
                path,
                flags,
                device,
                result,
            })
        })
}

fn mmap((time_ns, pid, tid): Head) -> impl Strategy<Value = Event> {
    (
        any::<[u64; 4]>(),
        any::<[u32; 2]>(),
        any::<i32>(),
        device(),
        any::<i64>(),
    )
        .prop_map(move |row| {
            let ([duration_ns, address, length, offset], [protection, flags], fd, device, result) = row;
            Event::Mmap(MmapRecord {
                time_ns,
                duration_ns,
                pid,
                tid,
                address,
                length,
                protection,
                flags,
                fd,
                device,
                offset,
                result,
            })
        })
}

fn process((time_ns, pid, tid): Head) -> impl Strategy<Value = Event> {
    let change = prop_oneof![
        (any::<u32>(), any::<bool>(), bytes()).prop_map(|(parent, shares_files, name)| {
            ProcessChange::Start {
                parent,
                shares_files,
                name,
            }
        }),
        bytes().prop_map(|path| ProcessChange::Exec { path }),
        any::<u32>().prop_map(|status| ProcessChange::Exit { status }),
    ];
    change.prop_map(move |change| {
        Event::Process(ProcessRecord {
            time_ns,
            pid,
            tid,
            change,
        })
    })
}

fn mark((time_ns, pid, tid): Head) -> impl Strategy<Value = Event> {
    use MarkKind::{DeviceLost, Fault, Note, Reset};
    let kind = prop::sample::select(vec![Fault, DeviceLost, Reset, Note]);
    (kind, bytes()).prop_map(move |(kind, text)| {
        Event::Mark(MarkRecord {
            time_ns,
            pid,
            tid,
            kind,
            text,
        })
    })
}

fn data((time_ns, pid, tid): Head) -> impl Strategy<Value = Event> {
    memory().prop_map(move |memory| {
        Event::Data(DataRecord {
            time_ns,
            pid,
            tid,
            memory,
        })
    })
}

fn write((time_ns, pid, tid): Head) -> impl Strategy<Value = Event> {
    (any::<(u64, i32, i64)>(), vec(memory(), 0..3)).prop_map(move |((duration_ns, fd, result), memory)| {
        Event::Write(WriteRecord {
            time_ns,
            duration_ns,
            pid,
            tid,
            fd,
            device: None,
            result,
            memory,
        })
    })
}

fn small((time_ns, pid, tid): Head) -> impl Strategy<Value = Event> {
    (0..4, any::<i32>(), any::<u64>(), any::<u64>(), any::<i64>()).prop_map(
        move |(which, fd, address, length, result)| match which {
            0 => Event::Close {
                time_ns,
                pid,
                tid,
                fd,
                result,
            },
            1 => Event::Dup {
                time_ns,
                pid,
                tid,
                fd,
                result,
            },
            2 => Event::Munmap {
                time_ns,
                pid,
                tid,
                address,
                length,
                result,
            },
            _ => Event::Lost {
                time_ns,
                count: length,
                cause: LostCause::ALL[fd as usize % LostCause::ALL.len()],
            },
        },
    )
}

/// Returns events of any kind with any content.
pub(crate) fn all() -> impl Strategy<Value = Vec<Event>> {
    let head = (any::<u64>(), any::<u32>(), any::<u32>());
    let event = head.prop_flat_map(|head| {
        prop_oneof![
            ioctl(head),
            open(head),
            mmap(head),
            write(head),
            process(head),
            mark(head),
            data(head),
            small(head)
        ]
    });
    vec(event, 0..6)
}
