//! A [`KernelIo`] that writes down what reaches it and answers as a driver that accepts everything, or as it is told.

#![expect(unsafe_code, reason = "mem_map_host is unsafe by its contract")]
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gaudi_seam::Operation;
use gaudi_seam::*;
use gaudi_uapi::cs::CsStatus;
use gaudi_uapi::info::InfoOp;
use gaudi_uapi::memory::MemFlags;

/// The fake at the bottom of a stack.
pub(crate) struct Recorder {
    node: Node,
    seen: Mutex<Vec<Operation>>,
    refusals: Mutex<BTreeMap<Operation, Errno>>,
    next: AtomicU64,
    seqs: AtomicU64,
}

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_node(NodeKind::Compute)
    }

    pub(crate) fn with_node(kind: NodeKind) -> Arc<Self> {
        Arc::new(Self {
            node: Node {
                kind,
                device: DeviceId::new(Backend::Mock, 0),
                era: Era::AccelDrm,
                name: "mock:gaudi2".to_owned(),
            },
            seen: Mutex::default(),
            refusals: Mutex::default(),
            next: AtomicU64::new(1),
            seqs: AtomicU64::new(1),
        })
    }

    /// What reached it, in order.
    pub(crate) fn seen(&self) -> Vec<Operation> {
        self.seen.lock().expect("no test panics with the lock").clone()
    }

    /// From now on it refuses this operation.
    pub(crate) fn refuse(&self, operation: Operation, errno: Errno) {
        self.refusals.lock().expect("as above").insert(operation, errno);
    }

    fn note(&self, operation: Operation) -> Result<u64> {
        self.seen.lock().expect("as above").push(operation);
        match self.refusals.lock().expect("as above").get(&operation) {
            Some(errno) => Err(Error::from_errno(operation.kernel_name(), *errno)
                .on(self.node.device)
                .because("the driver says no")),
            None => Ok(self.next.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

impl KernelIo for Recorder {
    fn node(&self) -> &Node {
        &self.node
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        self.note(Operation::Info)?;
        answer.fill(0);
        if request.op == InfoOp::DRAM_USAGE {
            answer[..8].copy_from_slice(&4096_u64.to_ne_bytes());
        }
        Ok(request.arg)
    }

    fn cb_create(&self, _: CbCreate) -> Result<CbHandle> {
        let n = self.note(Operation::CbCreate)?;
        Ok(CbHandle((2 << 59) | (n << 12)))
    }

    fn cb_destroy(&self, _: CbHandle) -> Result<()> {
        self.note(Operation::CbDestroy).map(drop)
    }

    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        self.note(Operation::CbInfo)?;
        Ok(CbInfo {
            usage_count: 0,
            device_va: device_va.then_some(DeviceVa(0xfff0_0000_0000_0000 + (handle.0 & 0xff_ffff))),
        })
    }

    fn submit(&self, _: &CsRequest<'_>) -> Result<CsAnswer> {
        self.note(Operation::Submit)?;
        Ok(CsAnswer {
            seq: CsSeq(self.seqs.fetch_add(1, Ordering::Relaxed)),
            status: CsStatus::SUCCESS,
            sob_base_addr_offset: 0,
            sob_count_before_submission: 0,
        })
    }

    fn wait_cs(&self, _: CsSeq, _: Duration) -> Result<WaitAnswer> {
        self.note(Operation::WaitCs)?;
        Ok(done())
    }

    fn wait_multi_cs(&self, seqs: &[CsSeq], _: Duration) -> Result<MultiWaitAnswer> {
        self.note(Operation::WaitMultiCs)?;
        Ok(MultiWaitAnswer {
            status: WaitStatus::Completed,
            completion_map: u32::try_from((1_u64 << seqs.len().min(32)) - 1).unwrap_or(u32::MAX),
            timestamp_ns: None,
        })
    }

    fn wait_interrupt(&self, _: &InterruptWait) -> Result<WaitAnswer> {
        self.note(Operation::WaitInterrupt)?;
        Ok(done())
    }

    fn register_timestamp(&self, _: &TimestampRegistration) -> Result<()> {
        self.note(Operation::RegisterTimestamp).map(drop)
    }

    fn mem_alloc(&self, _: MemAlloc) -> Result<MemHandle> {
        self.note(Operation::MemAlloc).map(MemHandle)
    }

    fn mem_free(&self, _: MemHandle) -> Result<()> {
        self.note(Operation::MemFree).map(drop)
    }

    fn mem_map_device(&self, _: MapDevice) -> Result<DeviceVa> {
        let n = self.note(Operation::MemMapDevice)?;
        Ok(DeviceVa(0x1001_0000_0000_0000 + (n << 32)))
    }

    unsafe fn mem_map_host(&self, _: MapHost) -> Result<DeviceVa> {
        let n = self.note(Operation::MemMapHost)?;
        Ok(DeviceVa(0xfff0_0000_0000_0000 + (n << 32)))
    }

    fn mem_unmap(&self, _: DeviceVa) -> Result<()> {
        self.note(Operation::MemUnmap).map(drop)
    }

    fn ts_alloc(&self, _: u32) -> Result<TsHandle> {
        self.note(Operation::TsAlloc).map(TsHandle)
    }

    fn map_block(&self, _: u64) -> Result<BlockMapping> {
        let handle = self.note(Operation::MapBlock)?;
        Ok(BlockMapping { handle, size: 4096 })
    }

    fn export_dmabuf(&self, _: ExportRequest) -> Result<OwnedFd> {
        self.note(Operation::ExportDmabuf)?;
        let file = std::fs::File::open("/dev/null").expect("every Linux has it");
        Ok(file.into())
    }

    fn register_dmabuf(&self, _: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        self.note(Operation::RegisterDmabuf).map(DeviceVa)
    }

    fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        self.note(Operation::Debug)?;
        request.output.fill(0xab);
        Ok(())
    }

    fn nic(&self, _: NicRequest<'_>) -> Result<()> {
        self.note(Operation::Nic).map(drop)
    }

    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        self.note(Operation::Mmap)?;
        RawMapping::anonymous(request.len, false).map_err(|errno| Error::from_errno("mmap", errno))
    }

    fn register_events(&self, _: BorrowedFd<'_>) -> Result<()> {
        self.note(Operation::RegisterEvents).map(drop)
    }

    fn unregister_events(&self) -> Result<()> {
        self.note(Operation::UnregisterEvents).map(drop)
    }
}

fn done() -> WaitAnswer {
    WaitAnswer {
        status: WaitStatus::Completed,
        gone: false,
        timestamp_ns: None,
    }
}

/// Asks for device memory.
pub(crate) fn alloc(io: &dyn KernelIo, size: u64) -> Result<MemHandle> {
    io.mem_alloc(MemAlloc {
        size,
        page_size: 0,
        flags: MemFlags::NONE,
    })
}

/// Maps device memory.
pub(crate) fn map(io: &dyn KernelIo, handle: MemHandle) -> Result<DeviceVa> {
    io.mem_map_device(MapDevice {
        handle,
        hint: None,
        flags: MemFlags::NONE,
    })
}

/// Maps host memory that nothing ever touches.
pub(crate) fn map_host(io: &dyn KernelIo, address: u64, size: u64) -> Result<DeviceVa> {
    let request = MapHost {
        address: HostVa(address),
        size,
        hint: None,
        flags: MemFlags::NONE,
    };
    // SAFETY: the recorder does not look at the range.
    unsafe { io.mem_map_host(request) }
}

/// Calls every method of the seam once, in the order of [`Operation::ALL`], and gives their errnos.
pub(crate) fn call_all(io: &dyn KernelIo) -> Vec<(Operation, Option<Error>)> {
    let eventfd = std::fs::File::open("/dev/null").expect("every Linux has it");
    let eventfd = std::os::fd::AsFd::as_fd(&eventfd);
    let mut output = [0; 4];
    let call = |operation, io: &dyn KernelIo, output: &mut [u8]| match operation {
        Operation::Info => io.info(InfoRequest::new(InfoOp::DRAM_USAGE), &mut [0; 16]).err(),
        Operation::CbCreate => io
            .cb_create(CbCreate {
                size: 4096,
                map_to_device: true,
            })
            .err(),
        Operation::CbDestroy => io.cb_destroy(CbHandle(0x1000)).err(),
        Operation::CbInfo => io.cb_info(CbHandle(0x1000), true).err(),
        Operation::Submit => io.submit(&CsRequest::default()).err(),
        Operation::WaitCs => io.wait_cs(CsSeq(1), Duration::from_millis(1)).err(),
        Operation::WaitMultiCs => io.wait_multi_cs(&[CsSeq(1)], Duration::from_millis(1)).err(),
        Operation::WaitInterrupt => io
            .wait_interrupt(&InterruptWait {
                interrupt: InterruptId(1),
                word: InterruptWord::User(HostVa(0x7000)),
                target: 3,
                timeout: Duration::from_millis(1),
            })
            .err(),
        Operation::RegisterTimestamp => io
            .register_timestamp(&TimestampRegistration {
                interrupt: InterruptId::ANY_CQ,
                counter: CqCounter {
                    handle: CbHandle(0x1000),
                    offset: 2,
                },
                target: 3,
                buffer: TsHandle(0x2000),
                index: 4,
            })
            .err(),
        Operation::MemAlloc => alloc(io, 4096).err(),
        Operation::MemFree => io.mem_free(MemHandle(1)).err(),
        Operation::MemMapDevice => map(io, MemHandle(1)).err(),
        Operation::MemMapHost => map_host(io, 0x7000, 4096).err(),
        Operation::MemUnmap => io.mem_unmap(DeviceVa(0x1000)).err(),
        Operation::TsAlloc => io.ts_alloc(3).err(),
        Operation::MapBlock => io.map_block(0x1000_0000).err(),
        Operation::ExportDmabuf => io
            .export_dmabuf(ExportRequest {
                address: DeviceVa(0x1000),
                size: 4096,
                offset: 0,
                flags: 0,
            })
            .err(),
        Operation::RegisterDmabuf => {
            let null = std::fs::File::open("/dev/null").expect("every Linux has it");
            let dmabuf = std::os::fd::AsFd::as_fd(&null);
            io.register_dmabuf(RegisterDmabuf { dmabuf, len: 4096 }).err()
        }
        Operation::Debug => io
            .debug(DebugRequest {
                op: gaudi_uapi::debug::DebugOp::STM,
                reg_idx: 1,
                enable: true,
                input: &[1; 24],
                output,
            })
            .err(),
        Operation::Nic => io
            .nic(NicRequest {
                op: 1,
                input: &[1, 2],
                output,
            })
            .err(),
        Operation::Mmap => io
            .mmap(MmapRequest {
                offset: 0x1000,
                len: 4096,
            })
            .err(),
        Operation::RegisterEvents => io.register_events(eventfd).err(),
        Operation::UnregisterEvents => io.unregister_events().err(),
    };
    Operation::ALL
        .iter()
        .map(|&operation| (operation, call(operation, io, &mut output)))
        .collect()
}
