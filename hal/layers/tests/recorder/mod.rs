//! A [`KernelIo`] that writes down what reaches it and answers as a driver that accepts everything,
//! or as the test sets.

#![expect(unsafe_code, reason = "mem_map_host is unsafe by its contract")]
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
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
    bottom: Bottom,
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
            bottom: Bottom(Node {
                kind,
                device: DeviceId::new(Backend::Mock, 0),
                era: Era::AccelDrm,
                name: "mock:gaudi2".to_owned(),
            }),
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
                .on(self.bottom.0.device)
                .because("the driver says no")),
            None => Ok(self.next.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// A node that serves nothing: the recorder answers before any operation reaches it.
pub(crate) struct Bottom(Node);

impl KernelIo for Bottom {
    fn node(&self) -> &Node {
        &self.0
    }
}

impl Layer for Recorder {
    type Below = Bottom;

    fn below(&self) -> &Bottom {
        &self.bottom
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        _: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let n = self.note(R::OPERATION)?;
        let dram_usage = match request.view() {
            AnyRequest::Info(info) => info.request.op == InfoOp::DRAM_USAGE,
            _ => false,
        };
        match R::OPERATION {
            Operation::Info => request.output().fill(0),
            Operation::Debug => request.output().fill(0xab),
            _ => {}
        }
        if dram_usage {
            request.output()[..8].copy_from_slice(&4096_u64.to_ne_bytes());
        }
        let host_va = DeviceVa(0xfff0_0000_0000_0000 + (n << 32));
        Ok(match request.view() {
            AnyRequest::Info(info) => R::reply(info.request.arg),
            AnyRequest::CbCreate(_) => R::reply(CbHandle((2 << 59) | (n << 12))),
            AnyRequest::CbInfo(query) => {
                let va = DeviceVa(0xfff0_0000_0000_0000 + (query.handle.0 & 0xff_ffff));
                R::reply(CbInfo {
                    usage_count: 0,
                    device_va: query.device_va.then_some(va),
                })
            }
            AnyRequest::Submit(_) => R::reply(CsAnswer {
                seq: CsSeq(self.seqs.fetch_add(1, Ordering::Relaxed)),
                status: CsStatus::SUCCESS,
                sob_base_addr_offset: 0,
                sob_count_before_submission: 0,
            }),
            AnyRequest::WaitCs(_) | AnyRequest::WaitInterrupt(_) => R::reply(done()),
            AnyRequest::WaitMultiCs(wait) => R::reply(MultiWaitAnswer {
                status: WaitStatus::Completed,
                completion_map: u32::try_from((1_u64 << wait.seqs.len().min(32)) - 1).unwrap_or(u32::MAX),
                timestamp_ns: None,
            }),
            AnyRequest::MemAlloc(_) => R::reply(MemHandle(n)),
            AnyRequest::MemMapDevice(_) => R::reply(DeviceVa(0x1001_0000_0000_0000 + (n << 32))),
            AnyRequest::MemMapHost(_) => R::reply(host_va),
            AnyRequest::RegisterDmabuf(_) => R::reply(DeviceVa(n)),
            AnyRequest::TsAlloc(_) => R::reply(TsHandle(n)),
            AnyRequest::MapBlock(_) => R::reply(BlockMapping {
                handle: n,
                size: 4096,
            }),
            AnyRequest::ExportDmabuf(_) => R::reply(OwnedFd::from(
                std::fs::File::open("/dev/null").expect("every Linux has it"),
            )),
            AnyRequest::Mmap(request) => R::reply(
                RawMapping::anonymous(request.len, false)
                    .map_err(|errno| Error::from_errno("mmap", errno))?,
            ),
            _ => R::reply(()),
        })
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
