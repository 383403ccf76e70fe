//! A capture of a session that includes missing data and hostile input.

use gaudi_capture::record::{
    DataRecord, DeviceNumber, Event, FdSource, IoctlRecord, LostCause, MarkKind, MarkRecord, Memory,
    MmapRecord, Moment, OpenRecord, ProcessChange, ProcessRecord, WriteRecord,
};
use gaudi_uapi::cb::{CbFlags, HlCbArgs, HlCbIn};
use gaudi_uapi::cs::{HlCsArgs, HlCsChunk, HlCsIn, HlCsInChunks};
use gaudi_uapi::dmabuf::{DMA_BUF_IOCTL_SYNC, DmaBufSync, DmaBufSyncFlags};
use gaudi_uapi::drm::{DRM_IOCTL_VERSION, DrmVersion};
use gaudi_uapi::info::{HlInfoArgs, HlInfoHwIpInfo, InfoOp};
use gaudi_uapi::ioctl::{ioc, iowr};
use gaudi_uapi::memory::{HlMemArgs, HlMemIn, MemFlags};
use gaudi_uapi::vfio::{VfioDmaMap, VfioDmaMapFlags};
use gaudi_uapi::wait::{HlWaitCsArgs, HlWaitCsIn};
use gaudi_uapi::{Era, Ioctl};
use zerocopy::{FromZeros as _, IntoBytes};

const PID: u32 = 4711;
const ACCEL: i32 = 3;
/// Addresses of the program's structs, and of host memory mapped on the device.
const STACK: u64 = 0x7ffd_1000_0000;
const HOST: u64 = 0x7f32_0000_0000;
const HOST_VA: u64 = 0xfff0_1000_0000_0000;
const DEVICE_VA: u64 = 0x1001_0018_0000_0000;

struct Session {
    now: u64,
    events: Vec<Event>,
}

impl Session {
    fn tick(&mut self) -> u64 {
        self.now += 10_000;
        self.now
    }

    fn open(&mut self, path: &[u8], fd: i64, device: Option<(u32, u32)>, source: FdSource) {
        let time_ns = self.tick();
        self.events.push(Event::Open(OpenRecord {
            time_ns,
            duration_ns: 5_300,
            pid: PID,
            tid: PID,
            source,
            path: path.to_vec(),
            flags: 0x8_0002,
            device: device.map(|(major, minor)| DeviceNumber { major, minor }),
            result: fd,
        }));
    }

    fn process(&mut self, pid: u32, change: ProcessChange) {
        let time_ns = self.tick();
        self.events.push(Event::Process(ProcessRecord {
            time_ns,
            pid,
            tid: pid,
            change,
        }));
    }

    fn ioctl(
        &mut self,
        fd: i32,
        request: u32,
        input: &[u8],
        output: &[u8],
        result: i64,
        memory: Vec<Memory>,
    ) {
        let time_ns = self.tick();
        self.events.push(Event::Ioctl(IoctlRecord {
            time_ns,
            duration_ns: 12_400,
            pid: PID,
            tid: PID,
            fd,
            device: Some(DeviceNumber { major: 261, minor: 0 }),
            request,
            argument: STACK,
            compat: false,
            result,
            input: input.to_vec(),
            output: output.to_vec(),
            memory,
        }));
    }

    fn call(&mut self, call: Ioctl, input: &[u8], output: &[u8], result: i64, memory: Vec<Memory>) {
        let request = Era::AccelDrm.request(call).unwrap();
        self.ioctl(ACCEL, request, input, output, result, memory);
    }

    fn memory(&mut self, request: HlMemIn, answer: u64, result: i64) {
        let mut output = HlMemArgs::from(request);
        if result == 0 {
            output.0[0] = answer;
        }
        self.call(
            Ioctl::Memory,
            HlMemArgs::from(request).as_bytes(),
            output.as_bytes(),
            result,
            Vec::new(),
        );
    }

    fn wait(&mut self, request: HlWaitCsIn, answer: [u64; 3], result: i64, memory: Vec<Memory>) {
        let mut output = HlWaitCsArgs::from(request);
        output.0[..3].copy_from_slice(&answer);
        self.call(
            Ioctl::WaitCs,
            HlWaitCsArgs::from(request).as_bytes(),
            output.as_bytes(),
            result,
            memory,
        );
    }
}

fn piece(address: u64, at: Moment, bytes: &[u8]) -> Memory {
    Memory {
        address,
        at,
        bytes: bytes.to_vec(),
        whole: bytes.len() as u64,
    }
}

/// Returns two packets: NOP, and LIN_DMA of 4 KiB.
fn packets() -> Vec<u8> {
    let words = [
        0,
        0x0a00_0000,
        0x1000,
        0x0900_0000,
        0x3000,
        0xfff0_1000,
        0,
        0x1001_0018,
    ];
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Returns the capture.
pub(crate) fn capture() -> Vec<Event> {
    let mut session = Session {
        now: 1_000_000,
        events: Vec::new(),
    };
    let s = &mut session;
    s.process(
        PID,
        ProcessChange::Start {
            parent: 0,
            shares_files: false,
            name: b"</script>\x1b[31m".to_vec(),
        },
    );
    s.open(b"/dev/accel/accel0", ACCEL.into(), Some((261, 0)), FdSource::Open);
    version(s, ACCEL, b"habanalabs");
    hw_ip_info(s);
    s.memory(HlMemIn::alloc(768 << 20, 0, MemFlags::NONE), 3, 0);
    s.memory(HlMemIn::map_device(3, 0, MemFlags::NONE), DEVICE_VA, 0);
    s.memory(HlMemIn::map_host(HOST, 64 << 10, 0, MemFlags::NONE), HOST_VA, 0);
    command_buffer(s);
    submit(s);
    waits(s);
    export(s);
    others(s);
    s.memory(HlMemIn::free(3), 0, -22);
    s.memory(HlMemIn::unmap(DEVICE_VA), 0, 0);
    s.memory(HlMemIn::free(3), 0, 0);
    s.process(PID + 1, ProcessChange::Exit { status: 9 });
    s.process(PID, ProcessChange::Exit { status: 3 << 8 });
    session.events
}

fn version(s: &mut Session, fd: i32, name: &[u8]) {
    let request = DrmVersion {
        name_len: 64,
        name: STACK + 0x100,
        ..DrmVersion::default()
    };
    let answer = DrmVersion {
        version_major: 1,
        name_len: name.len() as u64,
        ..request
    };
    let memory = vec![piece(STACK + 0x100, Moment::Exit, name)];
    s.ioctl(
        fd,
        DRM_IOCTL_VERSION,
        request.as_bytes(),
        answer.as_bytes(),
        0,
        memory,
    );
}

fn hw_ip_info(s: &mut Session) {
    let mut info = HlInfoHwIpInfo::new_zeroed();
    info.device_id = 0x1020;
    info.dram_size = 96 << 30;
    // A firmware version with terminal control characters.
    info.card_name[..12].copy_from_slice(b"HL-225\x1b]0;x\x07");
    let question = HlInfoArgs::new(InfoOp::HW_IP_INFO, STACK + 0x200, 304, 0);
    // The bpf tracer reads no further than this.
    let memory = Memory {
        whole: 304,
        ..piece(STACK + 0x200, Moment::Exit, &info.as_bytes()[..240])
    };
    s.call(
        Ioctl::Info,
        question.as_bytes(),
        question.as_bytes(),
        0,
        vec![memory],
    );
    let status = HlInfoArgs::new(InfoOp::DEVICE_STATUS, STACK + 0x200, 8, 0);
    s.call(Ioctl::Info, status.as_bytes(), status.as_bytes(), 0, Vec::new());
}

fn command_buffer(s: &mut Session) {
    let request = HlCbIn::create(0x1000, CbFlags::NONE);
    let mut output = HlCbArgs::from(request);
    output.0[0] = 0x4000_0000_0000;
    s.call(
        Ioctl::Cb,
        HlCbArgs::from(request).as_bytes(),
        output.as_bytes(),
        0,
        Vec::new(),
    );
    let time_ns = s.tick();
    s.events.push(Event::Mmap(MmapRecord {
        time_ns,
        duration_ns: 3_000,
        pid: PID,
        tid: PID,
        address: 0,
        length: 0x1000,
        protection: 3,
        flags: 1,
        fd: ACCEL,
        device: Some(DeviceNumber { major: 261, minor: 0 }),
        offset: 0x4000_0000_0000,
        result: 0x7f33_0000_0000,
    }));
}

fn submit(s: &mut Session) {
    let chunks = [
        HlCsChunk::user(0, HOST_VA + 0x2000, 32),
        HlCsChunk::kernel(1, 0x4000_0000_0000, 24),
    ];
    let mut request = HlCsIn::default();
    request.set_chunks(HlCsInChunks {
        chunks_restore: 0,
        chunks_execute: STACK + 0x300,
    });
    request.num_chunks_execute = 2;
    let mut output = HlCsArgs::from(request);
    output.0 = [0; 6];
    output.0[0] = 5;
    let chunks = piece(STACK + 0x300, Moment::Entry, chunks.as_bytes());
    let memory = vec![
        chunks.clone(),
        piece(HOST + 0x2000, Moment::Entry, &packets()),
        // The kernel buffer holds an invalid packet after the first one.
        piece(
            0x7f33_0000_0000,
            Moment::Entry,
            &[&packets()[..8], &[0xff; 16]].concat(),
        ),
    ];
    let input = HlCsArgs::from(request);
    s.call(Ioctl::Cs, input.as_bytes(), output.as_bytes(), 0, memory);
    // The second chunk and all command buffers are missing in the record.
    let cut = Memory {
        bytes: chunks.bytes[..64].to_vec(),
        ..chunks
    };
    s.call(Ioctl::Cs, input.as_bytes(), output.as_bytes(), 0, vec![cut]);
}

fn waits(s: &mut Session) {
    s.wait(HlWaitCsIn::cs(5, 1_000_000), [0, 0, 0], 0, Vec::new());
    s.wait(HlWaitCsIn::cs(6, u64::MAX), [2, 0, 0], -110, Vec::new());
    s.wait(HlWaitCsIn::cs(7, 10), [7, 10, 0], -512, Vec::new());
    let seqs = [5u64, 6];
    let memory = vec![piece(STACK + 0x400, Moment::Entry, seqs.as_bytes())];
    s.wait(HlWaitCsIn::multi_cs(STACK + 0x400, 2, 100), [0, 0, 1], 0, memory);
    s.wait(HlWaitCsIn::interrupt(5, HOST, 9, 100), [0, 0, 0], 0, Vec::new());
    s.wait(
        HlWaitCsIn::interrupt(0xfff, HOST, 9, 100),
        [0, 0, 0],
        0,
        Vec::new(),
    );
}

fn export(s: &mut Session) {
    s.memory(HlMemIn::export_dmabuf_fd(DEVICE_VA, 2 << 20, 0, 0x8_0002), 5, 0);
    let sync = DmaBufSync {
        flags: DmaBufSyncFlags(DmaBufSyncFlags::RW.0 | 0x100),
    };
    s.ioctl(
        5,
        DMA_BUF_IOCTL_SYNC,
        sync.as_bytes(),
        sync.as_bytes(),
        0,
        Vec::new(),
    );
    s.memory(HlMemIn::unmap(DEVICE_VA), 0, -22);
    for (fd, result) in [(5, 9), (ACCEL, 10)] {
        let time_ns = s.tick();
        s.events.push(Event::Dup {
            time_ns,
            pid: PID,
            tid: PID,
            fd,
            result,
        });
    }
    for fd in [5, 9] {
        let time_ns = s.tick();
        s.events.push(Event::Close {
            time_ns,
            pid: PID,
            tid: PID,
            fd,
            result: 0,
        });
    }
}

fn others(s: &mut Session) {
    let clone = |s: &mut Session, shares_files| {
        s.process(
            PID + 1,
            ProcessChange::Start {
                parent: PID,
                shares_files,
                name: b"worker".to_vec(),
            },
        );
    };
    clone(s, false);
    s.process(
        PID + 1,
        ProcessChange::Exec {
            path: b"/usr/bin/worker\xff".to_vec(),
        },
    );
    s.open(b"", 11, None, FdSource::Received);
    s.open(b"/dev/dri/renderD128", 12, Some((226, 128)), FdSource::Open);
    // An ioctl of another driver that has the number of HL_IOCTL_CB.
    let request = Era::AccelDrm.request(Ioctl::Cb).unwrap();
    s.ioctl(12, request, &[1; 24], &[1; 24], 0, Vec::new());
    s.open(b"/dev/accel/accel1", 13, Some((261, 1)), FdSource::Open);
    version(s, 13, b"ivpu");
    s.ioctl(13, request, &[1; 24], &[1; 24], 0, Vec::new());
    s.open(b"/dev/vfio/vfio", 14, Some((10, 196)), FdSource::Open);
    let map = VfioDmaMap {
        argsz: 32,
        flags: VfioDmaMapFlags::READ | VfioDmaMapFlags::WRITE,
        vaddr: 0x7f00_0000_0000,
        iova: 0x1_0000_0000,
        size: 1 << 21,
    };
    // A tracer records the size, then the rest of the struct.
    let (head, rest) = map.as_bytes().split_at(8);
    let rest = vec![piece(STACK + 8, Moment::Entry, rest)];
    s.ioctl(14, ioc(0, b';', 113, 0), head, &[], 0, rest);
    s.ioctl(11, ioc(0, b';', 107, 0), &[], &[], -25, Vec::new());
    // REG_DMABUF_MR with a handle, an offset and a descriptor.
    let verbs = [24u16 + 48, 7, 4, 3];
    let attributes = |handle: u64| [[0, handle], [2, 4096], [5, 9]];
    let [before, after] = [0, 3].map(attributes);
    let memory = vec![
        piece(STACK + 24, Moment::Entry, before.as_bytes()),
        piece(STACK + 24, Moment::Exit, after.as_bytes()),
    ];
    s.ioctl(11, iowr(0x1b, 1, 24), verbs.as_bytes(), &[], 0, memory);
    s.ioctl(0, ioc(2, b'T', 0x13, 8), &[0; 8], &[0; 8], 0, Vec::new());
    s.ioctl(11, iowr(b'd', 0x2d, 12), &[0; 12], &[0; 12], 0, Vec::new());
    // An unreadable struct, a truncated one, and one of a 32-bit program.
    s.call(Ioctl::Memory, &[], &[], -14, Vec::new());
    s.call(
        Ioctl::Memory,
        &HlMemArgs::from(HlMemIn::unmap(DEVICE_VA)).as_bytes()[..20],
        &[],
        -14,
        Vec::new(),
    );
    s.call(
        Ioctl::Cs,
        &[0; 48],
        &[0; 48],
        -4095,
        vec![piece(STACK, Moment::Entry, &[7; 12])],
    );
    if let Some(Event::Ioctl(last)) = s.events.last().cloned().as_ref() {
        let time_ns = s.tick();
        s.events.push(Event::Ioctl(IoctlRecord {
            time_ns,
            compat: true,
            result: -25,
            memory: Vec::new(),
            ..last.clone()
        }));
    }
    let time_ns = s.tick();
    let command = [
        3_u32.to_le_bytes(),
        [4, 0, 1, 0],
        0x9000_u32.to_le_bytes(),
        [0; 4],
    ]
    .concat();
    s.events.push(Event::Write(WriteRecord {
        time_ns,
        duration_ns: 900,
        pid: PID,
        tid: PID,
        fd: 12,
        device: None,
        result: 16,
        memory: vec![
            piece(STACK, Moment::Entry, &command),
            piece(0x9000, Moment::Exit, &[7, 0, 0, 0]),
        ],
    }));
    let time_ns = s.tick();
    s.events.push(Event::Lost {
        time_ns,
        count: 17,
        cause: LostCause::Skipped,
    });
    s.events.push(Event::Mark(MarkRecord {
        time_ns,
        pid: PID,
        tid: PID,
        kind: MarkKind::Fault,
        text: b"wait_cs:errno=EIO\x07".to_vec(),
    }));
    s.events.push(Event::Data(DataRecord {
        time_ns,
        pid: PID,
        tid: PID,
        memory: piece(0x7f33_0000_0000, Moment::Exit, &[0x5a; 40]),
    }));
    s.events.push(Event::Munmap {
        time_ns,
        pid: PID,
        tid: PID,
        address: 0x7f33_0000_0000,
        length: 0x1000,
        result: 0,
    });
}
