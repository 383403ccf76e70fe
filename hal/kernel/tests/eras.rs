//! What goes to the driver in each era: the numbers, the bytes where they differ, and what an older
//! driver lacks.
//!
//! The expected numbers and bytes are written out; nothing of gaudi-uapi makes them.
mod everything;
mod machine;
mod recorder;

use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::Duration;

use everything::everything;
use gaudi_kernel::{Kernel, Syscalls};
use gaudi_seam::{
    CbHandle, CqCounter, CsRequest, DeviceVa, Era, Error, ErrorKind, ExportRequest, InfoRequest, InterruptId,
    InterruptWait, InterruptWord, KernelIo, KernelIoExt, MapDevice, MemAlloc, MemHandle, MmapRequest,
    NicRequest, NodeKind, TimestampRegistration, TsHandle, WaitStatus,
};
use gaudi_sys::Errno;
use gaudi_uapi::cs::{CsFlags, EngineCommand};
use gaudi_uapi::info::{
    HlInfoHwIdle, HlInfoHwIpInfo, HlInfoRazwiEvent, HlInfoTimeSync, HlOpenStatsInfo, InfoOp, RazwiFlags,
};
use gaudi_uapi::memory::MemFlags;
use machine::Machine;
use recorder::{Asked, Behind, Reply, open_node, words};
use zerocopy::{FromZeros as _, IntoBytes as _};

/// INFO, CB, CS, WAIT_CS, MEMORY, DEBUG.
const H: [u32; 6] = [
    0xc018_4801,
    0xc018_4802,
    0xc030_4803,
    0xc038_4804,
    0xc028_4805,
    0xc028_4806,
];
const DRM: [u32; 6] = [
    0xc018_6440,
    0xc018_6441,
    0xc030_6442,
    0xc038_6443,
    0xc028_6444,
    0xc028_6445,
];

const ERAS: [(&str, Era, [u32; 6]); 4] = [
    ("hl-6.1.txt", Era::HlMisc, H),
    ("hl-6.5.txt", Era::HlMisc, H),
    ("accel-h.txt", Era::AccelH, H),
    ("drm-7.3.txt", Era::AccelDrm, DRM),
];

/// Node 0 of a machine, open.
fn open(manifest: &str, era: Era, kind: NodeKind) -> (Machine, Kernel<dyn Syscalls>) {
    let machine = Machine::of(manifest, Behind::Driver(era));
    let kernel = open_node(&machine.driver, &machine.recorder, kind);
    assert_eq!(kernel.node().era, era, "{manifest}");
    (machine, kernel)
}

/// The ioctls that were made, by number, with their bytes.
fn ioctls(machine: &Machine) -> Vec<(u32, Vec<u8>)> {
    let ioctl = |asked| match asked {
        Asked::Ioctl { request, args } => (request, args),
        other => panic!("{other:?} is no ioctl"),
    };
    machine.recorder.take().into_iter().map(ioctl).collect()
}

#[test]
fn operations_use_the_numbers_of_their_era() {
    let order = [0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 5];
    for (manifest, era, numbers) in ERAS {
        let (machine, kernel) = open(manifest, era, NodeKind::Compute);
        machine.recorder.reply(order.map(|_| Reply::Args(vec![0; 24])));
        everything(&kernel).expect(manifest);
        let seen: Vec<u32> = ioctls(&machine).into_iter().map(|(request, _)| request).collect();
        assert_eq!(seen, order.map(|ioctl| numbers[ioctl]), "{manifest}");
        assert!(
            machine.recorder.probes().is_empty(),
            "{manifest}: the era is kept, not asked for again"
        );
    }
}

#[test]
fn all_eras_pass_the_same_bytes() {
    let mut first: Option<Vec<Vec<u8>>> = None;
    for (manifest, era, _) in ERAS {
        let (machine, kernel) = open(manifest, era, NodeKind::Compute);
        machine.recorder.reply([0; 18].map(|_| Reply::Args(vec![0; 24])));
        everything(&kernel).expect(manifest);
        let mut seen: Vec<Vec<u8>> = ioctls(&machine).into_iter().map(|(_, args)| args).collect();
        // What is different in every run: addresses on the stack, and a descriptor's number.
        for (i, range) in [(0, 0..8), (1, 16..20), (6, 0..16), (8, 0..8)] {
            seen[i][range].fill(0);
        }
        match &first {
            None => first = Some(seen),
            Some(first) => assert_eq!(&seen, first, "{manifest}"),
        }
    }
}

#[test]
fn handles_are_mmap_offsets_in_every_era() {
    // The type of a handle lies in bits 63:59, for buffers of timestamps in the sign bit of off_t.
    for (manifest, era, _) in ERAS {
        let (machine, kernel) = open(manifest, era, NodeKind::Compute);
        for offset in [
            0x1000_0000_0000_1000,
            0x2000_0000_0000_0000,
            0x8000_0000_0000_2000,
        ] {
            machine.recorder.reply([Reply::Args(vec![])]);
            kernel.mmap(MmapRequest { offset, len: 4096 }).expect(manifest);
            assert_eq!(
                machine.recorder.take(),
                [Asked::Mmap { offset, len: 4096 }],
                "{manifest}"
            );
        }
    }
}

#[test]
fn short_structs_of_linux61_are_zero_extended() {
    let (machine, kernel) = open("hl-6.1.txt", Era::HlMisc, NodeKind::Control);
    let old = |len| Reply::Info(vec![0x11; len], 0);
    machine
        .recorder
        .reply([old(256), old(24), old(16), old(24), old(24)]);
    let hw_ip: HlInfoHwIpInfo = kernel.query().unwrap();
    assert_eq!(
        hw_ip.device_mem_alloc_default_page_size, 0x1111_1111_1111_1111,
        "in 6.1's 256 bytes"
    );
    assert_eq!(
        (hw_ip.revision_id, hw_ip.reserved_dram_size),
        (0, 0),
        "behind them"
    );
    let idle: HlInfoHwIdle = kernel.query().unwrap();
    assert_eq!(
        &idle.busy_engines_mask_ext[1..],
        &[0x1111_1111_1111_1111, 0, 0],
        "two words of four"
    );
    let time: HlInfoTimeSync = kernel.query().unwrap();
    assert_eq!((time.host_time, time.tsc_time), (0x1111_1111_1111_1111, 0));
    let razwi: HlInfoRazwiEvent = kernel.query().unwrap();
    assert_eq!(
        (razwi.addr, razwi.num_of_possible_engines, &razwi.engine_id[..3]),
        (0x1111_1111_1111_1111, 2, &[0x1111, 0x1111, 0][..]),
        "the old record's two engines, in today's form"
    );
    assert_eq!(
        razwi.flags,
        RazwiFlags::NONE,
        "which kind of access the old record does not say"
    );
    let stats: HlOpenStatsInfo = kernel.query().unwrap();
    assert_eq!(stats.compute_ctx_in_release, 0x11);
    let sizes: Vec<u8> = ioctls(&machine).iter().map(|(_, args)| args[8]).collect();
    let ours = [
        HlInfoHwIpInfo::LAYOUT,
        HlInfoHwIdle::LAYOUT,
        HlInfoTimeSync::LAYOUT,
        HlInfoRazwiEvent::LAYOUT,
        HlOpenStatsInfo::LAYOUT,
    ];
    assert_eq!(
        sizes,
        ours.map(|layout| layout.size as u8),
        "our sizes are passed, not the old ones"
    );
}

/// The error of an operation that the driver lacks.
fn lacks(error: &Error, name: &str, interface: &str, since: &str) {
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let wanted = format!("this driver does not have {name} (saw the interface {interface}, wanted {since})");
    assert!(error.to_string().contains(&wanted), "{wanted:?} is in: {error}");
    assert!(error.help().is_some() && error.errno().is_some(), "{error:?}");
}

#[test]
fn missing_info_operation_names_its_header() {
    const V7: &str = "drm/habanalabs_accel.h of Linux 6.12";
    for (manifest, era, _) in ERAS {
        let (machine, kernel) = open(manifest, era, NodeKind::Control);
        let ask = |op: InfoOp| {
            machine.recorder.reply([Reply::Fails(Errno::EINVAL)]);
            kernel.info(InfoRequest::new(op), &mut [0; 8]).unwrap_err()
        };
        let shown = era.to_string();
        let faults = ask(InfoOp::PAGE_FAULT_EVENT);
        if era == Era::AccelDrm {
            assert_eq!(
                faults.kind(),
                ErrorKind::InvalidInput,
                "the header has it: {faults}"
            );
        } else {
            lacks(&faults, "HL_INFO_PAGE_FAULT_EVENT", &shown, V7);
            assert_eq!(faults.errno(), Some(Errno::EINVAL));
        }
        lacks(
            &ask(InfoOp::HABANA_LINK_STATE),
            "HL_INFO_HABANA_LINK_STATE",
            &shown,
            "the Gaudi3 release's header",
        );
        assert_eq!(
            ask(InfoOp::HW_IP_INFO).kind(),
            ErrorKind::InvalidInput,
            "{manifest}: all have it"
        );
        assert_eq!(
            ask(InfoOp(5)).kind(),
            ErrorKind::InvalidInput,
            "{manifest}: none has it"
        );
        assert_eq!(
            ioctls(&machine).len(),
            4,
            "{manifest}: the driver was asked each time"
        );
    }
}

#[test]
fn misread_flags_are_not_sent() {
    for (manifest, era, _) in ERAS {
        let (machine, kernel) = open(manifest, era, NodeKind::Compute);
        let flush = CsRequest {
            flags: CsFlags::FLUSH_PCI_HBW_WRITES,
            ..CsRequest::default()
        };
        if manifest == "hl-6.1.txt" {
            let error = kernel.submit(&flush).unwrap_err();
            let name = "HL_CS_FLAGS_FLUSH_PCI_HBW_WRITES";
            lacks(&error, name, "hl-misc", "drm/habanalabs_accel.h of Linux 6.12");
            assert!(ioctls(&machine).is_empty(), "nothing was sent");
        } else {
            machine.recorder.reply([Reply::Args(vec![])]);
            kernel.submit(&flush).expect(manifest);
        }
    }
}

#[test]
fn the_nic_is_the_gaudi3_release_s() {
    for (manifest, era, _) in ERAS {
        let (machine, kernel) = open(manifest, era, NodeKind::Compute);
        let error = kernel
            .nic(NicRequest {
                op: 0,
                input: &[],
                output: &mut [],
            })
            .unwrap_err();
        lacks(
            &error,
            "HL_IOCTL_NIC",
            &era.to_string(),
            "the Gaudi3 release's header",
        );
        assert_eq!(error.operation(), "HL_IOCTL_NIC");
        assert!(ioctls(&machine).is_empty(), "nothing was sent");
    }
}

const ALLOCATION: u64 = 0x3000_0000;
const MAPPED: u64 = 0x1001_0018_0000_0000;

/// Allocates and maps handle 7.
fn mapped(machine: &Machine, kernel: &Kernel<dyn Syscalls>) {
    machine.recorder.reply([
        Reply::Args(7u64.to_le_bytes().to_vec()),
        Reply::Args(MAPPED.to_le_bytes().to_vec()),
    ]);
    let flags = MemFlags::NONE;
    let handle = kernel.mem_alloc(MemAlloc {
        size: ALLOCATION,
        page_size: 0,
        flags,
    });
    let map = MapDevice {
        handle: handle.unwrap(),
        hint: None,
        flags,
    };
    assert_eq!(kernel.mem_map_device(map).unwrap(), DeviceVa(MAPPED));
    machine.recorder.take();
}

fn export(size: u64, offset: u64) -> ExportRequest {
    ExportRequest {
        address: DeviceVa(MAPPED),
        size,
        offset,
        flags: 0o2_000_002,
    }
}

#[test]
fn exports_use_handle_before_linux_6_3() {
    for (manifest, era, numbers) in ERAS {
        let (machine, kernel) = open(manifest, era, NodeKind::Compute);
        mapped(&machine, &kernel);
        let given = File::open("/dev/null").unwrap().into_raw_fd();
        machine
            .recorder
            .reply([Reply::Args(given.to_le_bytes().to_vec())]);
        let fd = kernel.export_dmabuf(export(ALLOCATION, 0)).expect(manifest);
        assert_eq!(fd.as_raw_fd(), given);
        let by_handle = manifest == "hl-6.1.txt";
        let address = if by_handle { [7, 0] } else { [0, 0x1001_0018] };
        let size = [ALLOCATION as u32, 0];
        let bytes = words(&[&address, &size, &[0, 0, 5, 0o2_000_002, 0, 0][..]].concat());
        assert_eq!(ioctls(&machine), [(numbers[4], bytes)], "{manifest}");
    }
}

#[test]
fn razwi_events_of_new_drivers_pass_unchanged() {
    for (manifest, era, _) in ERAS {
        let (machine, kernel) = open(manifest, era, NodeKind::Compute);
        let bytes: Vec<u8> = (1..=size_of::<HlInfoRazwiEvent>())
            .map(|index| index as u8)
            .collect();
        machine.recorder.reply([Reply::Info(bytes.clone(), 0)]);
        let event: HlInfoRazwiEvent = kernel.query().expect(manifest);
        let is_same = event.as_bytes() == bytes;
        assert_eq!(is_same, manifest != "hl-6.1.txt", "{manifest}: {event:?}");
    }
}

#[test]
fn exports_by_handle_round_to_device_pages() {
    const ROUNDED: u64 = ALLOCATION + (2 << 20);
    for (size, is_sent) in [
        (ROUNDED, true),
        (ROUNDED + (2 << 20), false),
        (ALLOCATION + 4096, false),
    ] {
        let (machine, kernel) = open("hl-6.1.txt", Era::HlMisc, NodeKind::Compute);
        machine
            .recorder
            .reply([Reply::Args(words(&[8, 0])), Reply::Args(words(&[0x5000, 0]))]);
        let flags = MemFlags::NONE;
        let asked = MemAlloc {
            size: ALLOCATION + 1,
            page_size: 0,
            flags,
        };
        let handle = kernel.mem_alloc(asked).unwrap();
        let map = MapDevice {
            handle,
            hint: None,
            flags,
        };
        let address = kernel.mem_map_device(map).unwrap();
        machine.recorder.take();
        let mut hw = HlInfoHwIpInfo::new_zeroed();
        hw.device_id = 0x1020;
        hw.dram_page_size = 2 << 20;
        let given = File::open("/dev/null").unwrap().into_raw_fd();
        machine.recorder.reply([
            Reply::Info(hw.as_bytes().to_vec(), 0),
            Reply::Args(given.to_le_bytes().to_vec()),
        ]);
        let exported = kernel.export_dmabuf(ExportRequest {
            address,
            ..export(size, 0)
        });
        match exported {
            Ok(fd) => assert!(is_sent && fd.as_raw_fd() == given, "{size:#x}"),
            Err(error) => {
                assert!(!is_sent, "{size:#x}: {error}");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            }
        }
    }
}

#[test]
fn unsafe_export_by_handle_is_rejected() {
    let (machine, kernel) = open("hl-6.1.txt", Era::HlMisc, NodeKind::Compute);
    mapped(&machine, &kernel);
    let part = kernel.export_dmabuf(export(0x1000, 0)).unwrap_err();
    assert_eq!(part.kind(), ErrorKind::Unsupported);
    assert!(
        part.to_string()
            .contains("whole allocations only (saw 4096 bytes, wanted 805306368 bytes)"),
        "{part}"
    );
    let offset = kernel
        .export_dmabuf(export(ALLOCATION - 0x1000, 0x1000))
        .unwrap_err();
    let name = "the offset of HL_MEM_OP_EXPORT_DMABUF_FD";
    lacks(&offset, name, "hl-misc", "drm/habanalabs_accel.h of Linux 6.12");
    assert!(ioctls(&machine).is_empty(), "neither was sent");

    // The mapping is removed: the address would be read as a handle, and could hit one.
    machine
        .recorder
        .reply([Reply::Args(vec![]), Reply::Info(words(&[0; 64]), 0)]);
    kernel.mem_unmap(DeviceVa(MAPPED)).unwrap();
    let error = kernel.export_dmabuf(export(ALLOCATION, 0)).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::InvalidInput, Some(Errno::EINVAL))
    );
    assert!(
        error
            .to_string()
            .contains("no mapping of device memory that this file made"),
        "{error}"
    );
    let asked: Vec<u32> = ioctls(&machine).into_iter().map(|(request, _)| request).collect();
    assert_eq!(
        asked,
        [H[4], H[0]],
        "UNMAP, and the question which chip it is; no EXPORT"
    );
}

#[test]
fn allocation_exports_by_handle_after_failed_free() {
    let (machine, kernel) = open("hl-6.1.txt", Era::HlMisc, NodeKind::Compute);
    mapped(&machine, &kernel);
    let given = File::open("/dev/null").unwrap().into_raw_fd();
    machine.recorder.reply([
        Reply::Fails(Errno::EINVAL),
        Reply::Fails(Errno::EINVAL),
        Reply::Args(given.to_le_bytes().to_vec()),
    ]);
    // Both are refused while the memory is mapped and exported; the allocation and the mapping
    // remain.
    assert_eq!(
        kernel.mem_free(MemHandle(7)).unwrap_err().errno(),
        Some(Errno::EINVAL)
    );
    assert_eq!(
        kernel.mem_unmap(DeviceVa(MAPPED)).unwrap_err().errno(),
        Some(Errno::EINVAL)
    );
    let fd = kernel
        .export_dmabuf(export(ALLOCATION, 0))
        .expect("handle 7 is known");
    assert_eq!(fd.as_raw_fd(), given);
    // Once it is freed, its number exports nothing.
    machine.recorder.reply([
        Reply::Args(vec![]),
        Reply::Args(vec![]),
        Reply::Info(words(&[0; 64]), 0),
    ]);
    kernel.mem_unmap(DeviceVa(MAPPED)).unwrap();
    kernel.mem_free(MemHandle(7)).unwrap();
    machine.recorder.take();
    let error = kernel.export_dmabuf(export(ALLOCATION, 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn gaudi_exports_physical_addresses_in_every_era() {
    let (machine, kernel) = open("hl-6.1.txt", Era::HlMisc, NodeKind::Compute);
    let mut gaudi = vec![0; 256];
    gaudi[32..36].copy_from_slice(&0x1000u32.to_le_bytes());
    let given = File::open("/dev/null").unwrap().into_raw_fd();
    machine
        .recorder
        .reply([Reply::Info(gaudi, 0), Reply::Args(given.to_le_bytes().to_vec())]);
    kernel.export_dmabuf(export(0x1000, 0)).unwrap();
    let asked = ioctls(&machine);
    assert_eq!(
        asked[1].1,
        words(&[0, 0x1001_0018, 0x1000, 0, 0, 0, 5, 0o2_000_002, 0, 0])
    );
}

/// A word of 64 bits as the driver reads it.
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

#[test]
fn engine_commands_encode_in_every_era() {
    for (manifest, era, numbers) in ERAS {
        let (machine, kernel) = open(manifest, era, NodeKind::Compute);
        let ids = [3, 90, 7];
        let [low, high] = halves(ids.as_ptr() as u64);
        let sent = |count, command, flag| words(&[low, high, count, command, 0, 0, 0, 0, 0, flag, 0, 0]);

        machine.recorder.reply([Reply::Args(vec![0; 24])]);
        kernel
            .submit(&CsRequest::engine_cores(&ids, EngineCommand::CORE_RUN))
            .expect(manifest);
        assert_eq!(ioctls(&machine), [(numbers[2], sent(3, 2, 0x4000))], "{manifest}");

        machine.recorder.reply([Reply::Args(vec![0; 24])]);
        let answer = kernel.submit(&CsRequest::engines(&ids[..2], EngineCommand::STALL));
        if manifest == "hl-6.1.txt" {
            // That driver would take the flag for none and run a submission without chunks.
            let error = answer.expect_err(manifest);
            let since = "drm/habanalabs_accel.h of Linux 6.12";
            lacks(&error, "HL_CS_FLAGS_ENGINES_COMMAND", "hl-misc", since);
            assert!(ioctls(&machine).is_empty(), "{manifest}: nothing is sent");
            continue;
        }
        answer.expect(manifest);
        assert_eq!(
            ioctls(&machine),
            [(numbers[2], sent(2, 3, 0x1_0000))],
            "{manifest}"
        );
    }
}

#[test]
fn cs_counter_waits_encode_in_every_era() {
    for (manifest, era, numbers) in ERAS {
        let (machine, kernel) = open(manifest, era, NodeKind::Compute);
        let counter = CqCounter {
            handle: CbHandle(0x1000_0000_0000_2000),
            offset: 5,
        };
        let at = [halves(counter.handle.0), halves(0x1_0000_0009)].concat();

        // Completed, with a time.
        machine.recorder.reply([Reply::Args(words(&[0, 2, 77, 0, 0, 0]))]);
        let answer = kernel.wait_interrupt(&InterruptWait {
            interrupt: InterruptId(49),
            word: InterruptWord::KernelCq(counter),
            target: 0x1_0000_0009,
            timeout: Duration::from_millis(2),
        });
        let answer = answer.expect(manifest);
        assert_eq!(
            (answer.status, answer.timestamp_ns),
            (WaitStatus::Completed, Some(77)),
            "{manifest}"
        );
        let sent = [&at[..], &[0, (49 << 20) | 0x12, 2000, 0, 5, 0, 0, 0, 0, 0]].concat();
        assert_eq!(
            ioctls(&machine),
            [(numbers[3], words(&sent))],
            "{manifest}: INTERRUPT | INTERRUPT_KERNEL_CQ, microseconds, the index, no timestamp's place"
        );

        machine.recorder.reply([Reply::Args(vec![0; 24])]);
        let registration = TimestampRegistration {
            interrupt: InterruptId(49),
            counter,
            target: 0x1_0000_0009,
            buffer: TsHandle(0x8000_0000_0000_3000),
            index: 6,
        };
        kernel.register_timestamp(&registration).expect(manifest);
        let sent = [
            &at[..],
            &[0, (49 << 20) | 0x32, 0, 0, 5, 0, 0x3000, 0x8000_0000, 6, 0],
        ]
        .concat();
        assert_eq!(
            ioctls(&machine),
            [(numbers[3], words(&sent))],
            "{manifest}: with REGISTER_INTERRUPT, no time, and the timestamp's place"
        );
    }
}
