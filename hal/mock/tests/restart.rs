//! A mock that restarted answers as a new one: the same random operations are performed on both,
//! after another sequence on the first.

#![expect(unsafe_code, reason = "host memory is pinned by address")]

use std::fmt::Write as _;
use std::time::Duration;

use proptest::prelude::*;

use gaudi_mock::Mock;
use gaudi_seam::{
    CbCreate, CbHandle, Clock, CsRequest, CsSeq, DeviceVa, ErrorKind, ExportRequest, HostVa, InfoRequest,
    KernelIo, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest, MockSpec, Order, QueueId, RawMapping,
    Result,
};
use gaudi_spec::gaudi2::packet::{Fence, LinDma, MsgLong, MsgShort, Packet};
use gaudi_spec::gaudi2::sync::{Compare, MonArm};
use gaudi_spec::gaudi2::{CFG_BASE, DOORBELL_VA, DRAM_PAGE, DRAM_VA, qman, queue, sync};
use gaudi_sys::standin;
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::{InfoOp, MockFault};
use gaudi_uapi::memory::MemFlags;

/// A monitor that users have.
const MONITOR: u32 = sync::FIRST_USER_MONITOR + 8;
/// Bytes of the host memory of a run.
const HOST: usize = 8192;

fn mock(order: Order, seed: u64) -> Mock {
    made_by(Mock::new, order, seed)
}

fn made_by(make: fn(&MockSpec) -> Result<Mock>, order: Order, seed: u64) -> Mock {
    let spec = MockSpec {
        name: "restart".to_owned(),
        dram: 3 * DRAM_PAGE,
        clock: Clock::Virtual,
        order,
        seed,
        ..MockSpec::default()
    };
    make(&spec).expect("made")
}

/// A user of a mock. It releases nothing at its end.
struct User<'a> {
    io: &'a dyn KernelIo,
    host: RawMapping,
    host_va: DeviceVa,
    buffers: Vec<(CbHandle, RawMapping, DeviceVa)>,
    seqs: Vec<CsSeq>,
    seen: String,
}

impl User<'_> {
    fn say(&mut self, what: impl std::fmt::Debug) {
        writeln!(self.seen, "{what:?}").expect("a string takes all");
    }

    fn submit(&mut self, queue: QueueId, packets: &[Packet<'_>]) {
        let bytes: Vec<u8> = packets
            .iter()
            .flat_map(|packet| packet.emit(<[u8]>::to_vec))
            .collect();
        let Some((_, memory, va)) = self.buffers.last() else {
            return;
        };
        memory.write(0, &bytes).expect("a page has room");
        let chunk = HlCsChunk::user(queue.0, va.0, bytes.len() as u32);
        let answer = self.io.submit(&CsRequest {
            execute: &[chunk],
            ..CsRequest::default()
        });
        self.seqs.extend(answer.as_ref().map(|answer| answer.seq));
        self.say(answer);
    }

    fn step(&mut self, (kind, a, b): (u8, u16, u16)) {
        let io = self.io;
        let device = DeviceVa(DRAM_VA.start.0 + u64::from(b) * 16);
        let queues = [
            queue::PDMA_0_0,
            queue::PDMA_0_1,
            queue::PDMA_1_0,
            queue::edma(0, 0).expect("an engine"),
        ];
        let queue = queues[usize::from(a) % queues.len()];
        let object = |offset: u32| (sync::objs_address(0, sync::SOB_OBJ, 1024 + offset)).expect("one");
        match kind {
            0 => self.say(io.mem_alloc(MemAlloc {
                size: u64::from(a % 3) * DRAM_PAGE,
                page_size: 0,
                flags: MemFlags::NONE,
            })),
            1 | 2 => self.say(io.mem_map_device(MapDevice {
                handle: MemHandle(u64::from(a % 4)),
                hint: None,
                flags: MemFlags::NONE,
            })),
            3 => self.say(io.mem_unmap(DeviceVa(DRAM_VA.start.0 + u64::from(a % 2) * DRAM_PAGE))),
            4 => self.say(io.mem_free(MemHandle(u64::from(a % 4)))),
            5 => {
                let created = io.cb_create(CbCreate {
                    size: 4096,
                    map_to_device: true,
                });
                self.say(&created);
                let Ok(handle) = created else { return };
                let memory = io.mmap(MmapRequest {
                    offset: handle.0,
                    len: 4096,
                });
                let va = io
                    .cb_info(handle, true)
                    .expect("it exists")
                    .device_va
                    .expect("mapped");
                let memory = memory.expect("mapped");
                let mut bytes = [0; 4096];
                memory.read(0, &mut bytes).expect("a page");
                self.say((va, bytes.iter().all(|&byte| byte == 0)));
                self.buffers.push((handle, memory, va));
            }
            6 => {
                if let Some((handle, ..)) = self.buffers.pop() {
                    self.say(io.cb_destroy(handle));
                }
            }
            7 | 8 => {
                let fill = LinDma::memset(device, u32::from(a) * 0x1_0001, u32::from(a % 4096) + 1);
                self.submit(queue, &[Packet::LinDma(fill)]);
            }
            9 | 10 => {
                let down = LinDma::copy(self.host_va, device, u32::from(a) % HOST as u32 + 1);
                self.submit(queue, &[Packet::LinDma(down)]);
            }
            11 => {
                // A sync object, and a fence counter of another queue manager.
                let set = MsgLong::new(object(u32::from(b % 64)), u32::from(a % 100));
                let fence = qman::FENCE_RDATA + u32::from(b % 4) * qman::FENCE_STRIDE;
                let qman = queue::row(queue).expect("a queue").qman;
                let count = MsgLong::new(DeviceVa(CFG_BASE.0 + u64::from(qman + fence)), 1);
                self.submit(queue, &[Packet::MsgLong(set), Packet::MsgLong(count)]);
            }
            12 => {
                let fence = Fence::new((b % 4) as u8, 1, 1).expect("a fence");
                self.submit(queue, &[Packet::Fence(fence)]);
            }
            13 => {
                // A monitor that raises an interrupt when an object is at least 1.
                let monitor = MONITOR + u32::from(b % 8);
                let arm = MonArm::for_sob(1024 + u32::from(b % 64), Compare::AtLeast, 1);
                let writes = [
                    MsgShort::monitor_address_low(monitor, DOORBELL_VA),
                    MsgShort::monitor_address_high(monitor, DOORBELL_VA),
                    MsgShort::monitor_data(monitor, 256 + u32::from(a % 4)),
                    MsgShort::monitor_arm(monitor, arm),
                ];
                let writes = writes.map(|write| Packet::MsgShort(write.expect("a user's monitor")));
                self.submit(queue, &writes);
            }
            14 | 15 => {
                if let Some(&seq) = self.seqs.get(usize::from(a) % self.seqs.len().max(1)) {
                    let timeout = Duration::from_secs(u64::from(b % 3) * 20);
                    self.say(io.wait_cs(seq, timeout));
                }
            }
            16 => {
                let fault = [
                    MockFault::NonFatalEvent,
                    MockFault::ThermalEvent,
                    MockFault::FatalEvent,
                ];
                let request = InfoRequest {
                    op: InfoOp::MOCK_FAULT,
                    arg: fault[usize::from(a % 16).min(2)] as u32,
                };
                self.say(io.info(request, &mut []));
            }
            _ => {
                let mut bytes = [0; HOST];
                self.host.read(0, &mut bytes).expect("the host memory");
                self.say(&bytes[..]);
            }
        }
    }
}

/// Performs the operations, closes the node with all that they left, and returns every answer, all
/// information before and after, and the state of the device.
fn transcript(mock: &Mock, steps: &[(u8, u16, u16)]) -> String {
    let io = mock.open().expect("opens");
    let host = RawMapping::anonymous(HOST, true).expect("mapped");
    let request = MapHost {
        address: HostVa(host.as_ptr().as_ptr().expose_provenance() as u64),
        size: HOST as u64,
        hint: None,
        flags: MemFlags::NONE,
    };
    // SAFETY: the memory is unmapped after the node that maps it to the device is closed.
    let host_va = unsafe { io.mem_map_host(request) }.expect("mapped");
    let mut user = User {
        io: &*io,
        host,
        host_va,
        buffers: Vec::new(),
        seqs: Vec::new(),
        seen: String::new(),
    };
    for &step in steps {
        user.step(step);
    }
    let User { host, mut seen, .. } = user;
    let control = mock.control();
    let mut information = |when: &str| {
        for op in 0..40 {
            let mut answer = [0; 6000];
            let answered = control.info(InfoRequest::new(InfoOp(op)), &mut answer);
            let end = answer
                .iter()
                .rposition(|&byte| byte != 0)
                .map_or(0, |last| last + 1);
            let answer = &answer[..end];
            writeln!(seen, "{when} {op}: {answered:?} {answer:?}").expect("a string takes all");
        }
    };
    information("open");
    drop(io);
    information("closed");
    drop(host);
    writeln!(seen, "{:?}", mock.ledger()).expect("a string takes all");
    seen
}

fn steps() -> impl Strategy<Value = Vec<(u8, u16, u16)>> {
    let start = [(0, 1, 0), (1, 1, 0), (5, 0, 0)];
    let step = (0_u8..18, any::<u16>(), 0_u16..200);
    prop::collection::vec(step, 0..24).prop_map(move |more| start.into_iter().chain(more).collect())
}

proptest! {
    #![proptest_config(gaudi_random::config(32))]

    #[test]
    fn restarted_mock_answers_as_new(
        earlier in prop::collection::vec(steps(), 1..3),
        steps in steps(),
        seed in any::<u64>(),
        stepped in any::<bool>(),
        descriptors in any::<bool>(),
    ) {
        let make = if descriptors { Mock::with_descriptors } else { Mock::new };
        let mock = |order, seed| made_by(make, order, seed);
        let order = if stepped { Order::Stepped } else { Order::Running };
        let restarted = mock(order, seed ^ 1);
        for earlier in earlier {
            let _ = transcript(&restarted, &earlier);
        }
        restarted.restart(seed).expect("no node is open");
        let (seen, wanted) = (transcript(&restarted, &steps), transcript(&mock(order, seed), &steps));
        prop_assert!(seen == wanted, "{seen}\nexpected:\n{wanted}");
    }
}

#[test]
fn restart_of_open_mock_is_refused() {
    let mock = mock(Order::Running, 0);
    let io = mock.open().expect("opens");
    assert_eq!(mock.restart(0).expect_err("in use").kind(), ErrorKind::InUse);
    drop(io);
    mock.restart(0).expect("closed");
}

#[test]
fn late_writer_keeps_its_old_memory() {
    let mock = mock(Order::Running, 0);
    let map = |io: &dyn KernelIo| {
        let handle = io
            .cb_create(CbCreate {
                size: 4096,
                map_to_device: true,
            })
            .expect("made");
        let request = MmapRequest {
            offset: handle.0,
            len: 4096,
        };
        io.mmap(request).expect("mapped")
    };
    let late = map(&*mock.open().expect("opens"));
    let io = mock.open().expect("opens again");
    let next = map(&*io);
    late.write(0, b"late").expect("it is mapped");
    let mut seen = [1; 4];
    next.read(0, &mut seen).expect("mapped");
    assert_eq!(
        seen, [0; 4],
        "the mapping of a closed context reaches no later one"
    );
}

/// Maps an export of `len` bytes of a new allocation, with what keeps it allocated.
fn exported(mock: &Mock, len: usize) -> (std::sync::Arc<dyn KernelIo>, MemHandle, DeviceVa, RawMapping) {
    let io = mock.open().expect("opens");
    let handle = io
        .mem_alloc(MemAlloc {
            size: DRAM_PAGE,
            page_size: 0,
            flags: MemFlags::CONTIGUOUS,
        })
        .expect("allocated");
    let address = io
        .mem_map_device(MapDevice {
            handle,
            hint: None,
            flags: MemFlags::NONE,
        })
        .expect("mapped");
    let fd = io
        .export_dmabuf(ExportRequest {
            address,
            size: len as u64,
            offset: 4096,
            flags: 0,
        })
        .expect("exported");
    // A real dma-buf begins with its window.
    let at = standin::window(&fd)
        .expect("read")
        .map_or(0, |window| window.offset);
    let map = RawMapping::of_fd(&fd, at, len).expect("mapped");
    (io, handle, address, map)
}

#[test]
fn writes_through_exports_reach_no_later_owner() {
    // The record lists 1024 pages at most one by one.
    for len in [8192, 8 << 20] {
        for closes in [false, true] {
            let mock = made_by(Mock::with_descriptors, Order::Running, 0);
            let (io, handle, address, map) = exported(&mock, len);
            map.fill(0, len, 7).expect("mapped");
            drop(map);
            if !closes {
                io.mem_unmap(address).expect("unmapped");
                io.mem_free(handle).expect("freed");
            }
            drop(io);
            if closes {
                mock.restart(0).expect("closed");
            }
            let (_io, _, _, map) = exported(&mock, len);
            let mut seen = vec![1; len];
            map.read(0, &mut seen).expect("mapped");
            assert!(seen.iter().all(|&byte| byte == 0), "{len} bytes, {closes}");
        }
    }
}
