//! The mock's life from open to reset, through seam 1 alone.

#![expect(unsafe_code, reason = "host memory is pinned by address")]

use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use proptest::prelude::*;

use gaudi_seam::{
    CbCreate, Clock, CsRequest, DeviceVa, Errno, ErrorKind, ExportRequest, HostVa, InfoRequest, KernelIo,
    KernelIoExt, MapDevice, MapHost, MemAlloc, MmapRequest, MockSpec, Order, QueueId, RawMapping, WaitStatus,
};
use gaudi_spec::gaudi2::packet::{Encoder, Fence, LinDma, MsgLong, MsgShort, Nop, Packet, SliceSink};
use gaudi_spec::gaudi2::sync::{Compare, MonArm};
use gaudi_spec::gaudi2::{DOORBELL_VA, DRAM_PAGE, DRAM_VA, queue, sync};
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::info::{
    DeviceStatus, HlInfoDeviceStatus, HlInfoDramUsage, HlInfoHwIpInfo, HlInfoResetCount, InfoOp,
};
use gaudi_uapi::memory::MemFlags;

fn spec(name: &str) -> MockSpec {
    MockSpec {
        name: name.to_owned(),
        dram: 4 * DRAM_PAGE,
        clock: Clock::Virtual,
        ..MockSpec::default()
    }
}

#[test]
fn errors_name_the_mock_that_failed() {
    let nodes = ["errors-a", "errors-b"].map(|name| gaudi_mock::open(&spec(name)).unwrap());
    for (node, name) in nodes.iter().zip(["errors-a", "errors-b"]) {
        let error = gaudi_mock::open(&spec(name)).err().expect("one user at a time");
        assert_eq!(error.device(), Some(node.node().device));
        let text = error.to_string();
        assert!(text.contains(&format!("device mock0?name={name}:")), "{text}");
    }
    assert_ne!(nodes[0].node().device, nodes[1].node().device);
}

fn alloc_and_map(io: &dyn KernelIo, size: u64) -> (gaudi_seam::MemHandle, DeviceVa) {
    let handle = io
        .mem_alloc(MemAlloc {
            size,
            page_size: 0,
            flags: MemFlags::NONE,
        })
        .unwrap();
    (
        handle,
        io.mem_map_device(MapDevice {
            handle,
            hint: None,
            flags: MemFlags::NONE,
        })
        .unwrap(),
    )
}

/// Host memory that the device sees, unmapped before it goes.
struct Pinned<'a> {
    io: &'a dyn KernelIo,
    memory: RawMapping,
    va: DeviceVa,
}

impl<'a> Pinned<'a> {
    fn new(io: &'a dyn KernelIo, len: usize) -> Self {
        let memory = RawMapping::anonymous(len, false).unwrap();
        let address = HostVa(memory.as_ptr().as_ptr().expose_provenance() as u64);
        let request = MapHost {
            address,
            size: len as u64,
            hint: None,
            flags: MemFlags::NONE,
        };
        // SAFETY: the mapping lives in `self`, nothing borrows it, and `drop` unmaps it first.
        let va = unsafe { io.mem_map_host(request) }.unwrap();
        Self { io, memory, va }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let _ = self.io.mem_unmap(self.va);
    }
}

/// Makes a command buffer that the device sees, with these packets in it.
fn command_buffer(io: &dyn KernelIo, packets: &[Packet<'_>]) -> (DeviceVa, u32) {
    let cb = io
        .cb_create(CbCreate {
            size: 4096,
            map_to_device: true,
        })
        .unwrap();
    let memory = io
        .mmap(MmapRequest {
            offset: cb.0,
            len: 4096,
        })
        .unwrap();
    let mut bytes = [0; 4096];
    let mut encoder = Encoder::new(SliceSink::new(&mut bytes));
    for packet in packets {
        encoder.packet(packet).unwrap();
    }
    let len = encoder.len();
    memory.write(0, &bytes[..len]).unwrap();
    (
        io.cb_info(cb, true).unwrap().device_va.unwrap(),
        u32::try_from(len).unwrap(),
    )
}

fn run(io: &dyn KernelIo, queue: QueueId, packets: &[Packet<'_>]) -> gaudi_seam::Result<WaitStatus> {
    let (va, len) = command_buffer(io, packets);
    let chunk = HlCsChunk::user(queue.0, va.0, len);
    let answer = io.submit(&CsRequest {
        execute: &[chunk],
        ..CsRequest::default()
    })?;
    Ok(io.wait_cs(answer.seq, Duration::from_secs(1))?.status)
}

#[test]
fn bytes_round_trip_through_dma_engines() {
    for order in [Order::Running, Order::Stepped] {
        let io = gaudi_mock::open(&MockSpec {
            order,
            seed: 3,
            ..spec("up-and-down")
        })
        .unwrap();
        let (handle, device) = alloc_and_map(&*io, 1);
        assert_eq!(
            (handle.0, device),
            (1, DRAM_VA.start),
            "first handle and first address are the driver's"
        );
        {
            let host = Pinned::new(&*io, 3 * 4096);
            host.memory.write(5, b"through the device").unwrap();
            let up = LinDma::copy(DeviceVa(device.0 + 77), DeviceVa(host.va.0 + 5), 18);
            let down = LinDma::copy(DeviceVa(host.va.0 + 8190), DeviceVa(device.0 + 77), 18);
            assert_eq!(
                run(&*io, queue::PDMA_0_0, &[Packet::LinDma(up)]),
                Ok(WaitStatus::Completed)
            );
            assert_eq!(
                run(&*io, queue::PDMA_1_0, &[Packet::LinDma(down)]),
                Ok(WaitStatus::Completed)
            );
            let mut got = [0; 18];
            host.memory.read(8190, &mut got).unwrap();
            assert_eq!(&got, b"through the device", "{order:?}");
        }
        io.mem_unmap(device).unwrap();
        io.mem_free(handle).unwrap();
        let ledger = gaudi_mock::ledger(&spec("up-and-down")).unwrap();
        assert_eq!(
            (ledger.mappings, ledger.allocations, ledger.in_flight),
            (0, 0, 0),
            "{ledger:?}"
        );
    }
}

#[test]
fn identity_is_the_cards_with_mock_figures() {
    let io = gaudi_mock::control(&MockSpec {
        name: "identity".into(),
        ..MockSpec::default()
    })
    .unwrap();
    let info: HlInfoHwIpInfo = io.query().unwrap();
    assert_eq!(
        (info.device_id, info.dram_size >> 20, info.sram_size >> 20),
        (0x1020, 97_536, 48)
    );
    assert_eq!(info.dram_base_address, 0x1001_0018_0000_0000);
    assert!(info.card_name.starts_with(b"HL225\0") && info.cpucp_version.starts_with(b"mock"));
    let usage: HlInfoDramUsage = io.query().unwrap();
    assert_eq!((usage.dram_free_mem >> 20, usage.ctx_dram_mem), (97_536, 0));
}

#[test]
fn export_keeps_the_device_busy() {
    let spec = spec("one-user");
    let io = gaudi_mock::open(&spec).unwrap();
    let error = gaudi_mock::open(&spec).err().expect("a second user is refused");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Busy, Some(Errno::EBUSY))
    );
    let (_, device) = alloc_and_map(&*io, 1);
    let export = ExportRequest {
        address: device,
        size: 8192,
        offset: 4096,
        flags: 0,
    };
    let fd = io.export_dmabuf(export).unwrap();
    assert_eq!(
        io.mem_unmap(device).unwrap_err().errno(),
        Some(Errno::EINVAL),
        "exported memory stays mapped"
    );
    drop(io);
    let error = gaudi_mock::open(&spec)
        .err()
        .expect("the export holds the device");
    assert_eq!(error.errno(), Some(Errno::EBUSY));
    drop(fd);
    let io = gaudi_mock::open(&spec).unwrap();
    assert!(
        gaudi_mock::ledger(&spec).unwrap().is_clean(),
        "the last user's objects are freed"
    );
    let again = alloc_and_map(&*io, 1);
    assert_eq!(again.0.0, 1, "handles start again");
}

#[test]
fn hung_submission_is_aborted_and_device_recovers() {
    let spec = spec("never-ends");
    let io = gaudi_mock::open(&spec).unwrap();
    let stuck = Packet::Fence(Fence::new(0, 1, 1).unwrap());
    let (va, len) = command_buffer(&*io, &[stuck]);
    let chunk = HlCsChunk::user(queue::PDMA_0_0.0, va.0, len);
    let request = CsRequest {
        execute: &[chunk],
        flags: CsFlags::CUSTOM_TIMEOUT,
        timeout_s: 2,
        ..CsRequest::default()
    };
    let seq = io.submit(&request).unwrap().seq;
    let early = io.wait_cs(seq, Duration::from_secs(1)).unwrap();
    assert_eq!(
        early.status,
        WaitStatus::Busy,
        "a second is not enough to give it up"
    );
    let error = io.wait_cs(seq, Duration::from_secs(60)).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Hung, Some(Errno::ETIMEDOUT))
    );
    let error = io.submit(&request).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::DeviceLost, Some(Errno::EBUSY))
    );
    let control = gaudi_mock::control(&spec).unwrap();
    assert_eq!(
        control.query::<HlInfoDeviceStatus>().unwrap().status,
        DeviceStatus::IN_RESET
    );
    drop(io);
    let io = gaudi_mock::open(&spec).expect("after its user exits the device is reset and works");
    assert_eq!(
        run(&*io, queue::PDMA_0_0, &[Packet::Nop(Nop::new())]),
        Ok(WaitStatus::Completed)
    );
}

#[test]
fn sixty_fifth_submission_would_block() {
    let io = gaudi_mock::open(&spec("sixty-four")).unwrap();
    let (va, len) = command_buffer(&*io, &[Packet::Fence(Fence::new(0, 1, 1).unwrap())]);
    let chunk = HlCsChunk::user(queue::PDMA_0_0.0, va.0, len);
    let request = CsRequest {
        execute: &[chunk],
        ..CsRequest::default()
    };
    for number in 1..=64 {
        assert_eq!(io.submit(&request).map(|answer| answer.seq.0), Ok(number));
    }
    let error = io.submit(&request).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::WouldBlock, Some(Errno::EAGAIN))
    );
    assert!(error.evidence().is_none(), "a full queue costs no allocation");
}

/// The driver keeps 256 outcomes (habanalabs.h `HL_CS_OUTCOME_HISTORY_LEN`).
#[test]
fn oldest_of_257_outcomes_is_dropped() {
    let io = gaudi_mock::open(&spec("outcomes")).unwrap();
    let (va, len) = command_buffer(&*io, &[Packet::Nop(Nop::new())]);
    let chunk = HlCsChunk::user(queue::PDMA_0_0.0, va.0, len);
    let request = CsRequest {
        execute: &[chunk],
        flags: CsFlags::TIMESTAMP,
        ..CsRequest::default()
    };
    let seqs: Vec<_> = (0..257).map(|_| io.submit(&request).unwrap().seq).collect();
    let is_dropped = |nth: usize| {
        let answer = io.wait_cs(seqs[nth], Duration::ZERO).unwrap();
        assert_eq!(answer.status, WaitStatus::Completed, "submission {nth}");
        answer.gone
    };
    assert!(
        is_dropped(0),
        "the outcome of the oldest is dropped for that of the newest"
    );
    assert!(
        !is_dropped(1),
        "the second oldest is the oldest of the 256 that are kept"
    );
    assert!(!is_dropped(256), "the newest is kept");
}

/// A word of `HL_INFO_HW_EVENTS` or `HL_INFO_HW_EVENTS_AGGREGATE`.
fn event_count(io: &dyn KernelIo, op: InfoOp, event: usize) -> u32 {
    let mut counts = [0; 1329 * 4];
    io.info(InfoRequest::new(op), &mut counts).unwrap();
    u32::from_le_bytes(*counts[event * 4..].first_chunk().unwrap())
}

#[test]
fn hard_reset_clears_hw_events() {
    /// `GAUDI2_EVENT_PDMA0_QM`
    const PDMA0_QM: usize = 1244;
    let spec = spec("hw-events");
    let io = gaudi_mock::open(&spec).unwrap();
    let (va, _) = command_buffer(&*io, &[Packet::Fence(Fence::new(0, 1, 1).unwrap())]);
    let control = gaudi_mock::control(&spec).unwrap();
    let counts =
        || [InfoOp::HW_EVENTS, InfoOp::HW_EVENTS_AGGREGATE].map(|op| event_count(&*control, op, PDMA0_QM));
    // Half a packet: the queue manager stops at it, and the driver resets the device.
    let chunk = HlCsChunk::user(queue::PDMA_0_0.0, va.0, 4);
    io.submit(&CsRequest {
        execute: &[chunk],
        ..CsRequest::default()
    })
    .unwrap();
    assert_eq!(counts(), [1, 1], "the error is counted");
    drop(io);
    let io = gaudi_mock::open(&spec).unwrap();
    assert_eq!(
        counts(),
        [0, 1],
        "a hard reset clears the counts since the last one alone"
    );
    drop(io);
}

/// Raises vectors while an eventfd is registered, closes the device, and returns the number of hard
/// resets.
fn hard_resets_after(name: &str, vectors: &[u32]) -> u32 {
    let spec = spec(name);
    let io = gaudi_mock::open(&spec).unwrap();
    let eventfd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
    io.register_events(eventfd.as_fd()).unwrap();
    let packets: Vec<_> = vectors
        .iter()
        .map(|&vector| Packet::MsgLong(MsgLong::new(DOORBELL_VA, vector)))
        .collect();
    let _ = run(&*io, queue::PDMA_0_0, &packets);
    let control = gaudi_mock::control(&spec).unwrap();
    let hard_resets = || control.query::<HlInfoResetCount>().unwrap().hard_reset_cnt;
    assert_eq!(
        hard_resets(),
        0,
        "the reset waits for the user to close the device"
    );
    drop(io);
    let io = gaudi_mock::open(&spec).unwrap();
    assert_eq!(
        run(&*io, queue::PDMA_0_0, &[Packet::Nop(Nop::new())]),
        Ok(WaitStatus::Completed)
    );
    hard_resets()
}

#[test]
fn delayed_reset_keeps_its_hardest_cause() {
    /// `GAUDI2_IRQ_NUM_TPC_ASSERT`: the driver does not request a hard reset for it.
    const TPC_ASSERT: u32 = 46;
    /// `GAUDI2_IRQ_NUM_EQ_ERROR`: the driver requests a hard reset for it.
    const EQ_ERROR: u32 = 47;
    assert_eq!(hard_resets_after("soft", &[TPC_ASSERT]), 0);
    assert_eq!(hard_resets_after("hard", &[EQ_ERROR]), 1);
    assert_eq!(hard_resets_after("soft-hard", &[TPC_ASSERT, EQ_ERROR]), 1);
    assert_eq!(hard_resets_after("hard-soft", &[EQ_ERROR, TPC_ASSERT]), 1);
}

/// A monitor that writes its own arming register: each time it fires it arms itself again, and
/// never comes to an end.
fn endless() -> Vec<Packet<'static>> {
    let monitor = sync::FIRST_USER_MONITOR;
    let arm = MonArm::for_sob(sync::FIRST_USER_SOB, Compare::AtLeast, 0);
    let target = sync::objs_address(0, sync::MON_ARM, monitor).expect("a monitor that users have");
    let short = |packet: Option<MsgShort>| Packet::MsgShort(packet.expect("a monitor that users have"));
    vec![
        short(MsgShort::monitor_address_low(monitor, target)),
        short(MsgShort::monitor_address_high(monitor, target)),
        short(MsgShort::monitor_data(monitor, arm.into_bits())),
        short(MsgShort::monitor_arm(monitor, arm)),
    ]
}

#[test]
fn endless_program_meets_the_drivers_timeout() {
    let spec = spec("endless");
    let io = gaudi_mock::open(&spec).unwrap();
    let (va, len) = command_buffer(&*io, &endless());
    let chunk = HlCsChunk::user(queue::PDMA_0_0.0, va.0, len);
    let request = CsRequest {
        execute: &[chunk],
        ..CsRequest::default()
    };
    let seq = io
        .submit(&request)
        .expect("submitting ends, whatever the program does")
        .seq;
    // The packets themselves come to an end; what they set off does not.
    let _ = io.wait_cs(seq, Duration::from_secs(100));
    let (stuck, len) = command_buffer(&*io, &[Packet::Fence(Fence::new(0, 1, 1).unwrap())]);
    let chunk = HlCsChunk::user(queue::PDMA_0_0.0, stuck.0, len);
    let request = CsRequest {
        execute: &[chunk],
        ..CsRequest::default()
    };
    let seq = io.submit(&request).expect("others still have their turn").seq;
    let error = io.wait_cs(seq, Duration::from_secs(100)).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Hung,
        "time passes beside a program without an end: {error}"
    );
    drop(io);
    let io = gaudi_mock::open(&spec).expect("the reset ended it");
    assert_eq!(
        run(&*io, queue::PDMA_0_0, &[Packet::Nop(Nop::new())]),
        Ok(WaitStatus::Completed)
    );
}

/// Command buffers as anybody could write them: bytes, or packets whose fields are anything.
fn any_command_buffer() -> impl Strategy<Value = Vec<u8>> {
    let packet = (
        prop::sample::select(&[3_u32, 4, 5, 7, 8, 9, 10, 11, 12][..]),
        any::<[u32; 5]>(),
        any::<bool>(),
    )
        .prop_map(|(opcode, words, small)| {
            // Small numbers reach sync objects, monitors and mapped memory far more often than any
            // numbers do.
            let word = |n: usize| if small { words[n] % 0x1_0000 } else { words[n] };
            let ctl = (words[1] & 0xe0ff_ffff) | opcode << 24;
            let len = match opcode {
                3 | 5 | 7 => 4,
                9 => 6,
                _ => 2,
            };
            let all = [word(0), ctl, word(2), word(3), word(4), words[0]];
            all[..len]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<u8>>()
        });
    prop_oneof![
        prop::collection::vec(any::<u8>(), 8..256),
        prop::collection::vec(packet, 1..24).prop_map(|packets| packets.concat()),
    ]
}

proptest! {
    #![proptest_config(gaudi_random::config(192))]

    /// Whatever a command buffer holds, submitting and waiting come to an end, and the device works
    /// for its next user.
    #[test]
    fn any_command_buffer_ends_and_leaves_nothing(bytes in any_command_buffer(), stepped in any::<bool>(), seed in any::<u64>()) {
        let order = if stepped { Order::Stepped } else { Order::Running };
        let name = format!("any-{order:?}-{seed}");
        let spec = MockSpec { order, seed, ..spec(&name) };
        let io = gaudi_mock::open(&spec).unwrap();
        let control = gaudi_mock::control(&spec).unwrap();
        {
            let _device = alloc_and_map(&*io, 1);
            let host = Pinned::new(&*io, 8192);
            let (va, _) = command_buffer(&*io, &[]);
            let cb = io.cb_create(CbCreate { size: 4096, map_to_device: true }).unwrap();
            let memory = io.mmap(MmapRequest { offset: cb.0, len: 4096 }).unwrap();
            memory.write(0, &bytes).unwrap();
            let at = io.cb_info(cb, true).unwrap().device_va.unwrap();
            prop_assert_ne!(at, va);
            let chunk = HlCsChunk::user(queue::PDMA_0_0.0, at.0, u32::try_from(bytes.len()).unwrap());
            let seq = io.submit(&CsRequest { execute: &[chunk], ..CsRequest::default() }).unwrap().seq;
            // A third of the driver's own time at a time: the fourth wait is past it.
            let ended = (0..4).map(|_| io.wait_cs(seq, Duration::from_secs(10))).find(|answer| {
                !matches!(answer, Ok(answer) if answer.status == WaitStatus::Busy)
            });
            match ended {
                Some(Ok(_)) => {}
                Some(Err(error)) => prop_assert!(matches!(error.kind(), ErrorKind::Hung | ErrorKind::DeviceLost), "{:?}", error),
                None => prop_assert!(false, "neither done nor aborted after 40 s"),
            }
            drop(host);
        }
        drop(io);
        let io = gaudi_mock::open(&spec).expect("the device has its next user");
        prop_assert!(gaudi_mock::ledger(&spec).unwrap().is_clean(), "nothing of the last one is left");
        prop_assert_eq!(run(&*io, queue::PDMA_0_0, &[Packet::Nop(Nop::new())]), Ok(WaitStatus::Completed));
        drop(control);
    }
}

/// Eight pages of another exporter's memory: a real dma-buf where this machine makes them, else a
/// stand-in.
fn foreign() -> (gaudi_sys::Memfd, std::os::fd::OwnedFd, u64) {
    use gaudi_sys::{Memfd, dmabuf, standin};
    let size = 8 * 4096;
    let memory = Memfd::sparse(standin::MEMFD_NAME, 4 * size).unwrap();
    let window = standin::Window {
        offset: size,
        len: size,
    };
    let fd = match dmabuf::udmabuf_open() {
        Ok(device) => dmabuf::udmabuf_create(device, &memory, window.offset, size).unwrap(),
        Err(_) => standin::export(&memory, window).unwrap(),
    };
    (memory, fd, size)
}

/// A file of 8192 bytes that is no dma-buf.
fn tempfile() -> std::os::fd::OwnedFd {
    let memory = nix::sys::memfd::memfd_create(c"plain", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&memory, 8192).unwrap();
    memory
}

#[test]
fn engines_access_imported_dma_buf() {
    let spec = MockSpec {
        import: true,
        ..spec("import")
    };
    let io = gaudi_mock::open(&spec).unwrap();
    let (memory, fd, size) = foreign();
    let request = |len| gaudi_seam::RegisterDmabuf {
        dmabuf: fd.as_fd(),
        len,
    };
    for wrong in [0, size - 4096, size + 4096] {
        let error = io.register_dmabuf(request(wrong)).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EINVAL), "{wrong} bytes: {error}");
    }
    // dma_buf_get(): only a dma-buf is one. Of a file that can shrink the chip would die with a
    // SIGBUS.
    let plain = tempfile();
    let refused = io.register_dmabuf(gaudi_seam::RegisterDmabuf {
        dmabuf: plain.as_fd(),
        len: 8192,
    });
    assert_eq!(refused.unwrap_err().errno(), Some(Errno::EINVAL));
    let va = io.register_dmabuf(request(size)).unwrap();
    let view = RawMapping::of_fd(&memory, size, size as usize).unwrap();
    view.write(5, b"of another exporter").unwrap();
    {
        let host = Pinned::new(&*io, 4096);
        let down = LinDma::copy(host.va, DeviceVa(va.0 + 5), 19);
        let up = LinDma::copy(DeviceVa(va.0 + size - 19), host.va, 19);
        for packet in [down, up] {
            assert_eq!(
                run(&*io, queue::PDMA_0_0, &[Packet::LinDma(packet)]),
                Ok(WaitStatus::Completed)
            );
        }
    }
    let mut seen = [0; 19];
    view.read(size as usize - 19, &mut seen).unwrap();
    assert_eq!(&seen, b"of another exporter");
    drop(fd);
    io.mem_unmap(va).unwrap();
    assert_eq!(gaudi_mock::ledger(&spec).unwrap().mappings, 0);
}

#[test]
fn a_mainline_mock_imports_nothing() {
    let io = gaudi_mock::open(&spec("no-import")).unwrap();
    let (_memory, fd, size) = foreign();
    let request = gaudi_seam::RegisterDmabuf {
        dmabuf: fd.as_fd(),
        len: size,
    };
    let error = io.register_dmabuf(request).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.help().is_some_and(|help| help.contains("import=1")),
        "{error:?}"
    );
}
