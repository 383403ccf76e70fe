//! A program that holds the descriptor of a virtual node.

#![allow(dead_code, reason = "each test uses only some of these items")]
#![expect(unsafe_code, reason = "an ioctl can map host memory; none here does")]

use std::os::fd::OwnedFd;

use gaudi_codec::OwnMemory;
use gaudi_node::VirtualNode;
use gaudi_seam::{DeviceSpec, DeviceVa, Errno, Error, NodeKind, QueueId};
use gaudi_spec::gaudi2::queue;
use gaudi_sys::RawMapping;
use gaudi_uapi::cb::{CbFlags, HlCbArgs, HlCbIn};
use gaudi_uapi::cs::{HlCsArgs, HlCsChunk, HlCsIn, HlCsInChunks};
use gaudi_uapi::memory::{HlMemArgs, HlMemIn, HlMemOut};
use gaudi_uapi::wait::{HlWaitCsArgs, HlWaitCsIn, HlWaitCsOut, WaitCsStatus};
use gaudi_uapi::{Era, Ioctl};
use zerocopy::IntoBytes as _;

pub(crate) type Outcome<T> = Result<T, Errno>;

pub(crate) const PAGE: usize = 4096;

/// Returns the spec of a mock that is unique to a test, with a small device memory.
pub(crate) fn spec(name: &str) -> DeviceSpec {
    format!("mock:gaudi2?name={name}").parse().expect("a device spec")
}

pub(crate) struct Program {
    pub(crate) node: VirtualNode,
    pub(crate) fd: OwnedFd,
}

impl Program {
    pub(crate) fn open(spec: &DeviceSpec) -> Result<Self, Error> {
        let (node, fd) = VirtualNode::open(spec, NodeKind::Compute)?;
        Ok(Self { node, fd })
    }

    pub(crate) fn new(name: &str) -> Self {
        Self::open(&spec(name)).expect("the mock opens")
    }

    pub(crate) fn create(&self, size: usize) -> Outcome<u64> {
        create(&self.node, size, CbFlags::NONE)
    }

    pub(crate) fn create_mapped(&self, size: usize) -> Outcome<u64> {
        create(&self.node, size, CbFlags::MAP)
    }

    pub(crate) fn destroy(&self, handle: u64) -> Outcome<()> {
        cb(&self.node, HlCbIn::destroy(handle)).map(drop)
    }

    pub(crate) fn usage(&self, handle: u64) -> Outcome<u32> {
        cb(&self.node, HlCbIn::usage(handle)).map(|args| args.answer().usage_cnt())
    }

    pub(crate) fn device_va(&self, handle: u64) -> Outcome<DeviceVa> {
        cb(&self.node, HlCbIn::device_va(handle)).map(|args| DeviceVa(args.answer().device_va()))
    }

    /// Maps the buffer `handle` with mmap(2) on the program's descriptor.
    pub(crate) fn map(&self, handle: u64, len: usize) -> Outcome<RawMapping> {
        RawMapping::of_fd(&self.fd, handle, len)
    }

    pub(crate) fn memory(&self, request: HlMemIn) -> Outcome<HlMemOut> {
        let mut args = HlMemArgs::from(request);
        ioctl(&self.node, Ioctl::Memory, args.as_mut_bytes())?;
        Ok(args.answer())
    }

    pub(crate) fn wait(&self, request: HlWaitCsIn) -> Outcome<HlWaitCsOut> {
        let mut args = HlWaitCsArgs::from(request);
        ioctl(&self.node, Ioctl::WaitCs, args.as_mut_bytes())?;
        Ok(args.answer())
    }

    /// Submits `len` bytes at a device address, and waits until the queue has executed them.
    pub(crate) fn run(&self, queue: QueueId, at: DeviceVa, len: usize) {
        let chunk = HlCsChunk::user(queue.0, at.0, len as u32);
        let mut request = HlCsIn {
            num_chunks_execute: 1,
            ..HlCsIn::default()
        };
        request.set_chunks(HlCsInChunks {
            chunks_restore: 0,
            chunks_execute: (&raw const chunk).expose_provenance() as u64,
        });
        let mut args = HlCsArgs::from(request);
        ioctl(&self.node, Ioctl::Cs, args.as_mut_bytes()).expect("the submission is accepted");
        let answer = self.wait(HlWaitCsIn::cs(args.answer().seq(), 10_000_000));
        assert_eq!(answer.map(|answer| answer.status), Ok(WaitCsStatus::COMPLETED));
    }

    /// Writes packets to the start of a buffer through its mapping, then executes them.
    pub(crate) fn execute(&self, buffer: &Mapped, packets: &[u8]) {
        buffer.memory.write(0, packets).expect("the packets fit");
        self.run(queue::PDMA_0_0, buffer.va, packets.len());
    }
}

/// A command buffer that has a device address and is mapped by the program.
pub(crate) struct Mapped {
    pub(crate) handle: u64,
    pub(crate) va: DeviceVa,
    pub(crate) memory: RawMapping,
}

impl Mapped {
    pub(crate) fn new(program: &Program, size: usize) -> Self {
        let handle = program.create_mapped(size).expect("HL_CB_OP_CREATE succeeds");
        Self {
            handle,
            va: program
                .device_va(handle)
                .expect("the buffer has a device address"),
            memory: program.map(handle, size).expect("mmap(2) of the handle succeeds"),
        }
    }
}

pub(crate) fn bytes<const N: usize>(memory: &RawMapping, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    memory.read(at, &mut bytes).expect("the range is mapped");
    bytes
}

pub(crate) fn ioctl(node: &VirtualNode, ioctl: Ioctl, arg: &mut [u8]) -> Outcome<()> {
    let request = Era::AccelDrm
        .request(ioctl)
        .expect("the newest era has this ioctl");
    // SAFETY: these tests do not map host memory.
    unsafe { node.ioctl(request, arg, &OwnMemory) }
}

fn cb(node: &VirtualNode, request: HlCbIn) -> Outcome<HlCbArgs> {
    let mut args = HlCbArgs::from(request);
    ioctl(node, Ioctl::Cb, args.as_mut_bytes())?;
    Ok(args)
}

pub(crate) fn create(node: &VirtualNode, size: usize, flags: CbFlags) -> Outcome<u64> {
    cb(node, HlCbIn::create(size as u32, flags)).map(|args| args.answer().cb_handle())
}
