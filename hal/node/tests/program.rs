//! A program's view of its descriptor on the mock.

mod common;

use std::os::fd::AsFd as _;
use std::thread;

use gaudi_node::VirtualNode;
use gaudi_seam::{Errno, ErrorKind, NodeKind, QueueId};
use gaudi_spec::gaudi2::packet::{LinDma, MsgLong};
use gaudi_spec::gaudi2::{DOORBELL_VA, queue};
use gaudi_sys::RawMapping;
use gaudi_sys::fd::{duplicate, file_id};
use gaudi_uapi::Ioctl;
use gaudi_uapi::info::{HlInfoArgs, HlInfoHwIpInfo, InfoOp};
use gaudi_uapi::memory::HlMemIn;
use gaudi_uapi::wait::{HlWaitCsIn, WaitCsStatus};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use zerocopy::{FromZeros as _, IntoBytes as _};

use common::{Mapped, PAGE, Program, bytes, create, ioctl, spec};

/// The first user interrupt.
const INTERRUPT: u16 = 48;

/// Returns the device address of the memory of ARC `nth`.
fn dccm(nth: u32) -> u64 {
    let block = (gaudi_spec::ASICS[0].blocks.block)(nth);
    block.expect("the chip has blocks").address.0
}

#[test]
fn descriptor_is_close_on_exec_and_writable() {
    let program = Program::new("flags");
    let flags = fcntl(&program.fd, FcntlArg::F_GETFD).unwrap();
    assert!(FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC));
    let status = OFlag::from_bits_retain(fcntl(&program.fd, FcntlArg::F_GETFL).unwrap());
    assert_eq!(status & OFlag::O_ACCMODE, OFlag::O_RDWR);
    let twin = duplicate(&program.fd).unwrap();
    for fd in [program.fd.as_fd(), twin.as_fd()] {
        let id = file_id(fd).unwrap();
        assert_eq!((id.device, id.inode), program.node.identity());
    }
}

#[test]
fn chip_and_program_share_buffers() {
    let program = Program::new("shared");
    let (code, data) = (Mapped::new(&program, PAGE), Mapped::new(&program, 3 * PAGE));
    data.memory.write(5, b"from the program").unwrap();
    let copy = LinDma::copy(offset(data.va, 8190), offset(data.va, 5), 16);
    program.execute(&code, &copy.to_bytes());
    assert_eq!(&bytes::<16>(&data.memory, 8190), b"from the program");
    // A second mapping shows the same bytes.
    drop(data.memory);
    let again = program.map(data.handle, 3 * PAGE).unwrap();
    assert_eq!(&bytes::<16>(&again, 8190), b"from the program");
}

fn offset(at: gaudi_seam::DeviceVa, by: u64) -> gaudi_seam::DeviceVa {
    gaudi_seam::DeviceVa(at.0 + by)
}

#[test]
fn handles_are_offsets_of_the_file() {
    let program = Program::new("handles");
    let stamps = |elements| program.memory(HlMemIn::ts_alloc(elements)).unwrap().handle();
    let block = |nth| {
        let answer = program.memory(HlMemIn::map_block(dccm(nth)));
        answer.unwrap().block().block_handle
    };
    let all = [
        program.create(1).unwrap(),
        program.create_mapped(2 * PAGE).unwrap(),
        stamps(16),
        stamps(1 << 20),
        stamps(1),
        block(0),
        block(1),
    ];
    for handle in all {
        assert!(
            handle != 0 && handle % PAGE as u64 == 0 && handle < 1 << 63,
            "{handle:#x}"
        );
    }
    let memory = all.map(|handle| program.map(handle, PAGE).unwrap());
    for (nth, memory) in memory.iter().enumerate() {
        memory.fill(0, PAGE, nth as u8 + 1).unwrap();
    }
    for (nth, memory) in memory.iter().enumerate() {
        assert_eq!(bytes::<1>(memory, 7), [nth as u8 + 1], "{all:x?}");
    }
}

#[test]
fn unknown_handles_are_einval() {
    let program = Program::new("unknown");
    let live = program.create(2 * PAGE).unwrap();
    for handle in [0, live + PAGE as u64, 0x2 << 59, u64::MAX] {
        assert_eq!(program.destroy(handle), Err(Errno::EINVAL), "{handle:#x}");
        assert_eq!(program.usage(handle), Err(Errno::EINVAL), "{handle:#x}");
        let wait = HlWaitCsIn::interrupt_on_counter(INTERRUPT, handle, 0, 1, 0);
        assert_eq!(program.wait(wait).map(drop), Err(Errno::EINVAL), "{handle:#x}");
    }
    assert_eq!(program.destroy(live), Ok(()));
    assert_eq!(program.destroy(live), Err(Errno::EINVAL));
    assert_eq!(
        program.usage(live),
        Err(Errno::EINVAL),
        "the buffer is destroyed and not mapped"
    );
}

#[test]
fn timestamps_are_written_to_the_mapping() {
    let program = Program::new("timestamps");
    let counters = Mapped::new(&program, PAGE);
    let code = Mapped::new(&program, PAGE);
    let stamps = program.memory(HlMemIn::ts_alloc(16)).unwrap().handle();
    let memory = program.map(stamps, PAGE).unwrap();
    let slot = (stamps, 3);
    let register = HlWaitCsIn::register_timestamp(INTERRUPT, counters.handle, 2, 7, slot);
    program.wait(register).expect("registered");
    assert_eq!(bytes::<8>(&memory, 24), [0; 8], "the target is not reached");
    let packets = [
        MsgLong::new(offset(counters.va, 16), 7).to_bytes().as_slice(),
        MsgLong::new(DOORBELL_VA, u32::from(INTERRUPT))
            .with_message_barrier(true)
            .to_bytes()
            .as_slice(),
    ]
    .concat();
    program.execute(&code, &packets);
    let wait = HlWaitCsIn::interrupt_on_counter(INTERRUPT, counters.handle, 2, 7, 10_000_000);
    assert_eq!(program.wait(wait).unwrap().status, WaitCsStatus::COMPLETED);
    assert_ne!(bytes::<8>(&memory, 24), [0; 8], "the time is written");
    assert_eq!(bytes::<8>(&memory, 32), [0; 8], "the next timestamp is unchanged");
}

#[test]
fn arc_memory_maps_and_registers_do_not() {
    let program = Program::new("blocks");
    let block = program.memory(HlMemIn::map_block(dccm(0))).unwrap().block();
    let memory = program
        .map(block.block_handle, block.block_size as usize)
        .unwrap();
    memory.write(0, b"kept").unwrap();
    drop(memory);
    let again = program.map(block.block_handle, PAGE).unwrap();
    assert_eq!(&bytes::<4>(&again, 0), b"kept");
    let registers = gaudi_spec::ASICS[0].blocks.block;
    let registers = (0..)
        .map_while(registers)
        .find(|block| block.number > 76)
        .unwrap();
    let block = program
        .memory(HlMemIn::map_block(registers.address.0))
        .unwrap()
        .block();
    let refused = program.map(block.block_handle, block.block_size as usize);
    assert_eq!(
        refused.map(drop),
        Err(Errno::EOVERFLOW),
        "{:#x}",
        block.block_handle
    );
}

#[test]
fn destroyed_buffer_keeps_mapped_memory() {
    const SIZE: usize = 1 << 20;
    let program = Program::new("destroyed");
    let kept = Mapped::new(&program, SIZE);
    kept.memory.fill(0, SIZE, 0x5a).unwrap();
    program.destroy(kept.handle).unwrap();
    assert_eq!(
        program.usage(kept.handle),
        Ok(0),
        "the buffer is destroyed but still mapped"
    );
    let mut seen = std::collections::BTreeSet::new();
    // Five times the amount of destroyed memory after which the mock reads the mappings.
    for round in 0..160 {
        let handle = program.create_mapped(SIZE).unwrap();
        assert_ne!(handle, kept.handle, "round {round}");
        let memory = program.map(handle, SIZE).unwrap();
        assert_eq!(
            bytes::<8>(&memory, 0),
            [0; 8],
            "a new buffer is zeroed, round {round}"
        );
        memory.fill(0, SIZE, 0xee).unwrap();
        drop(memory);
        program.destroy(handle).unwrap();
        seen.insert(handle);
    }
    assert!(
        seen.len() < 40,
        "offsets of destroyed buffers are reused: {}",
        seen.len()
    );
    for at in [0, SIZE - 8] {
        assert_eq!(bytes::<8>(&kept.memory, at), [0x5a; 8], "at {at}");
    }
    drop(kept.memory);
    assert_eq!(program.usage(kept.handle), Err(Errno::EINVAL), "no longer mapped");
    let reused = (0..160).any(|_| {
        let handle = program.create_mapped(SIZE).unwrap();
        program.destroy(handle).unwrap();
        handle == kept.handle
    });
    assert!(reused, "the offset is reused");
}

#[test]
fn partly_mapped_buffer_keeps_memory() {
    const SIZE: usize = 2 * PAGE;
    let program = Program::new("partly");
    let handle = program.create(SIZE).unwrap();
    let tail = program.map(handle + PAGE as u64, PAGE).unwrap();
    tail.write(0, b"tail").unwrap();
    program.destroy(handle).unwrap();
    for _ in 0..2 * (32 << 20) / SIZE {
        let other = program.create(SIZE).unwrap();
        assert_ne!(other, handle);
        program.destroy(other).unwrap();
    }
    assert_eq!(&bytes::<4>(&tail, 0), b"tail");
}

#[test]
fn device_addresses_do_not_run_out() {
    const SIZE: usize = (2 << 20) - 4096;
    let program = Program::new("scarce");
    let mut live = Vec::new();
    while let Ok(handle) = program.create_mapped(SIZE) {
        live.push(handle);
    }
    assert!(live.len() > 2000, "{} buffers of 2 MiB in 4 GiB", live.len());
    // Less than the amount of destroyed memory after which the mock reads the mappings.
    let last = live.pop().unwrap();
    for _ in 0..3 {
        program.destroy(last).unwrap();
        assert_eq!(program.create_mapped(SIZE), Ok(last));
    }
}

#[test]
fn second_open_is_ebusy_until_release() {
    let spec = spec("twice");
    let program = Program::open(&spec).unwrap();
    let busy = || {
        let error = Program::open(&spec).err().expect("the second open fails");
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::Busy, Some(Errno::EBUSY))
        );
    };
    busy();
    let Program { node, fd } = program;
    let twin = duplicate(&fd).unwrap();
    drop(fd);
    assert!(!node.is_released(), "a duplicate is still open");
    busy();
    let handle = create(&node, PAGE, gaudi_uapi::cb::CbFlags::NONE).unwrap();
    let memory = RawMapping::of_fd(&twin, handle, PAGE).unwrap();
    drop(twin);
    assert!(!node.is_released(), "a buffer is still mapped");
    memory.write(0, b"after close").unwrap();
    drop(memory);
    assert!(node.is_released());
    drop(node);
    Program::open(&spec).expect("the device is free");
}

#[test]
fn control_node_serves_information_only() {
    let spec = spec("control");
    let compute = Program::open(&spec).unwrap();
    let (node, fd) = VirtualNode::open(&spec, NodeKind::Control).unwrap();
    let (second, _fd) = VirtualNode::open(&spec, NodeKind::Control).unwrap();
    assert_ne!(node.identity(), second.identity());
    let mut answer = HlInfoHwIpInfo::new_zeroed();
    let address = (&raw mut answer).expose_provenance() as u64;
    let mut args = HlInfoArgs::new(InfoOp::HW_IP_INFO, address, size_of_val(&answer) as u32, 0);
    ioctl(&node, Ioctl::Info, args.as_mut_bytes()).unwrap();
    assert_ne!(answer.dram_size, 0);
    let refused = create(&node, PAGE, gaudi_uapi::cb::CbFlags::NONE);
    assert_eq!(refused, Err(Errno::ENOTTY));
    assert_eq!(RawMapping::of_fd(&fd, 0, PAGE).map(drop), Err(Errno::ENODEV));
    let twin = duplicate(&fd).unwrap();
    drop(fd);
    assert!(!node.is_released());
    drop(twin);
    assert!(node.is_released() && !second.is_released() && !compute.node.is_released());
}

#[test]
fn layers_wrap_the_node() {
    let spec = "mock:gaudi2?name=layers+fault=cb_create:when=2:error=EIO"
        .parse()
        .unwrap();
    let program = Program::open(&spec).unwrap();
    let buffer = Mapped::new(&program, PAGE);
    buffer.memory.write(0, b"x").unwrap();
    assert_eq!(program.create(PAGE), Err(Errno::EIO));
    program.create(PAGE).expect("the third create succeeds");
}

#[test]
fn threads_share_a_node() {
    const QUEUES: [QueueId; 2] = [queue::PDMA_0_0, queue::PDMA_1_0];
    let program = Program::new("threads");
    thread::scope(|scope| {
        for (nth, queue) in QUEUES.into_iter().enumerate() {
            let program = &program;
            scope.spawn(move || {
                for round in 0..200_u32 {
                    let code = Mapped::new(program, PAGE);
                    // Together three times the amount of destroyed memory after which the mock
                    // reads the mappings.
                    let data = Mapped::new(program, 64 * PAGE);
                    let value = round << 8 | nth as u32;
                    let packet = MsgLong::new(offset(data.va, 64), value).to_bytes();
                    code.memory.write(0, &packet).unwrap();
                    program.run(queue, code.va, packet.len());
                    assert_eq!(bytes::<4>(&data.memory, 64), value.to_le_bytes());
                    for one in [code, data] {
                        program.destroy(one.handle).unwrap();
                    }
                }
            });
        }
    });
}
