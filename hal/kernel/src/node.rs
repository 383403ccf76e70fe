//! The operations of seam 1 on an open node.

#![expect(
    unsafe_code,
    reason = "ioctls carry addresses that the kernel reads and writes"
)]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use gaudi_codec::{Wire, address, interrupt, timestamp};
use gaudi_seam::{
    BlockMapping, CbCreate, CbDestroy, CbHandle, CbInfo, CbQuery, CsAnswer, CsRequest, CsSeq, DebugRequest,
    Error, ErrorKind, ExportRequest, InfoRequest, InterruptId, InterruptWait, InterruptWord, KernelIo,
    KernelIoExt as _, MapBlock, MapDevice, MapHost, MemAlloc, MemFree, MemHandle, MemUnmap, MmapRequest,
    MultiWaitAnswer, NicRequest, Node, Operation, Result, TimestampRegistration, TsAlloc, TsHandle,
    WaitAnswer, rules,
};
use gaudi_spec::addr::DeviceVa;
use gaudi_sys::{Errno, RawMapping};
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::{HlUserMapping, InfoOp};
use gaudi_uapi::limits::HL_WAIT_MULTI_CS_LIST_MAX_LEN;
use gaudi_uapi::memory::{HlMemArgs, MemFlags};
use gaudi_uapi::wait::HlWaitCsIn;
use gaudi_uapi::{Ioctl, Since};

use crate::dialect::{lacks, lacks_info};
use crate::kernel::Kernel;
use crate::system::Syscalls;

impl<S: Syscalls + ?Sized> Kernel<S> {
    /// Any request of a compute node without checks of its own.
    ///
    /// # Safety
    /// - For MAP of host memory, the promise of [`KernelIo::mem_map_host`]. Other requests have the
    ///   addresses of their own slices at most.
    unsafe fn call<R: Wire>(&self, mut request: R) -> Result<R::Answer> {
        self.admit(R::OPERATION, false)?;
        let mut args = request.encode();
        let failed = |errno| self.failed(R::OPERATION, errno);
        // SAFETY: the caller's promise, and the request's slices live in it.
        unsafe { self.again(R::IOCTL, &mut args) }.map_err(failed)?;
        // SAFETY: the ioctl has succeeded.
        unsafe { request.answer(&args) }.map_err(failed)
    }

    /// Checks that an interrupt's number fits the field of twelve bits.
    fn check_interrupt(&self, operation: Operation, id: InterruptId) -> Result<()> {
        if id.0 > 0xfff {
            let error = self.refused(operation, &rules::wait::UNKNOWN_INTERRUPT);
            return Err(error.saw(id.0, "0 to 4095"));
        }
        Ok(())
    }

    /// Checks that the driver's arithmetic on the offset of a counter or a timestamp does not wrap:
    /// it would access memory before the buffer's start
    /// (common/command_submission.c:validate_and_get_ts_record).
    fn check_offset(&self, operation: Operation, offset: u64) -> Result<()> {
        const MOST: u64 = 1 << 32;
        if offset > MOST {
            let cause = "no buffer of the driver has such an offset";
            return Err(self.invalid(operation, cause, offset as usize, "at most 2^32"));
        }
        Ok(())
    }
}

impl<S: Syscalls + ?Sized> KernelIo for Kernel<S> {
    fn node(&self) -> &Node {
        &self.node
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        const OPERATION: Operation = Operation::Info;
        self.admit(OPERATION, true)?;
        let (arg, result) = self.info(request.op, request.arg, answer);
        let Err(errno) = result else {
            self.dialect.modernise(request.op, answer);
            return Ok(arg);
        };
        if let Some(error) = lacks_info(&self.node, OPERATION, request.op, errno) {
            return Err(error);
        }
        let error = self.failed_request(OPERATION, request.op.c_name(), errno);
        if request.op == InfoOp::USER_MAPPINGS && errno == Errno::ENOMEM && arg > 0 {
            let wanted = u64::from(arg) * size_of::<HlUserMapping>() as u64;
            return Err(error
                .with_kind(ErrorKind::InvalidInput)
                .saw(answer.len(), format_args!("{wanted} bytes")));
        }
        Err(error)
    }

    fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        // SAFETY: no address of this process.
        unsafe { self.call(request) }
    }

    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        // SAFETY: no address of this process.
        unsafe { self.call(CbDestroy(handle)) }
    }

    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        // SAFETY: no address of this process.
        unsafe { self.call(CbQuery { handle, device_va }) }
    }

    // Inlined here and in a wait: an idle layer over this type then adds no call.
    #[inline(always)]
    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        self.submit(request)
    }

    #[inline(always)]
    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        const OPERATION: Operation = Operation::WaitCs;
        let request = move |us| HlWaitCsIn::cs(seq.0, us);
        // SAFETY: a wait for one submission carries no address.
        unsafe { self.wait_one(OPERATION, timeout, request) }
    }

    fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        const OPERATION: Operation = Operation::WaitMultiCs;
        let len = seqs.len();
        if len > HL_WAIT_MULTI_CS_LIST_MAX_LEN {
            let error = self.refused(OPERATION, &rules::wait::MULTI_TOO_MANY);
            return Err(error.saw(len, "at most 32"));
        }
        let request = |us| HlWaitCsIn::multi_cs(address(seqs), len as u8, us);
        // SAFETY: the driver reads `len` numbers at the address of `seqs`, which outlives the call.
        unsafe { self.wait_many(OPERATION, timeout, request) }
    }

    fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        const OPERATION: Operation = Operation::WaitInterrupt;
        self.check_interrupt(OPERATION, request.interrupt)?;
        if let InterruptWord::KernelCq(counter) = request.word {
            self.check_offset(OPERATION, counter.offset)?;
        }
        // SAFETY: the driver only reads the word at an address of this process, and returns EFAULT
        // if it is not mapped.
        unsafe { self.wait_one(OPERATION, request.timeout, |us| interrupt(request, us)) }
    }

    fn register_timestamp(&self, request: &TimestampRegistration) -> Result<()> {
        const OPERATION: Operation = Operation::RegisterTimestamp;
        self.check_interrupt(OPERATION, request.interrupt)?;
        self.check_offset(OPERATION, request.counter.offset)?;
        self.check_offset(OPERATION, request.index)?;
        // SAFETY: no address of this process.
        unsafe { self.wait_one(OPERATION, Duration::ZERO, |_| timestamp(request)) }.map(drop)
    }

    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        // SAFETY: no address of this process.
        let handle = unsafe { self.call(request) }?;
        self.dialect.allocated(handle, request.size);
        Ok(handle)
    }

    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        // Before the ioctl: the driver may reuse the number at once, for another thread.
        let forgotten = self.dialect.forget_allocation(handle);
        // SAFETY: no address of this process.
        let freed = unsafe { self.call(MemFree(handle)) };
        if let (Err(_), Some(size)) = (&freed, forgotten) {
            self.dialect.allocated(handle, size);
        }
        freed
    }

    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        const OPERATION: Operation = Operation::MemMapDevice;
        if request.flags.contains(MemFlags::USERPTR) {
            // The driver would map host memory, which only `mem_map_host` may request.
            return Err(Error::from_errno(OPERATION.kernel_name(), Errno::EINVAL)
                .on(self.node.device)
                .because("HL_MEM_USERPTR does not go with device memory"));
        }
        // SAFETY: no address of this process: USERPTR is not set.
        let address = unsafe { self.call(request) }?;
        self.dialect.mapped(address, request.handle);
        Ok(address)
    }

    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.call(request) }
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        // As in `mem_free`.
        let forgotten = self.dialect.forget_mapping(address);
        // SAFETY: no address of this process.
        let unmapped = unsafe { self.call(MemUnmap(address)) };
        if let (Err(_), Some(handle)) = (&unmapped, forgotten) {
            self.dialect.mapped(address, handle);
        }
        unmapped
    }

    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        // SAFETY: no address of this process.
        unsafe { self.call(TsAlloc(elements)) }
    }

    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        // SAFETY: no address of this process: the block's is the device's.
        unsafe { self.call(MapBlock(address)) }
    }

    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        const OPERATION: Operation = Operation::ExportDmabuf;
        self.admit(OPERATION, false)?;
        let input = self
            .dialect
            .export_input(&self.node, OPERATION, request, || self.query())?;
        let mut args = HlMemArgs::from(input);
        // SAFETY: no address of this process: EXPORT's is the device's, whatever bits `flags` has.
        unsafe { self.again(Ioctl::Memory, &mut args) }.map_err(|e| self.failed(OPERATION, e))?;
        // SAFETY: the driver installed the descriptor in this call, for this caller.
        unsafe { request.answer(&args) }.map_err(|_| {
            Error::new(ErrorKind::Io, OPERATION.kernel_name())
                .on(self.node.device)
                .because("the driver answered success without a file descriptor")
                .saw(args.answer().fd(), "0 or more")
        })
    }

    fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::Debug;
        self.admit(OPERATION, false)?;
        // The Gaudi3 driver's own operations take addresses of this process inside their structs.
        // They are not checked here.
        if !(DebugOp::ETR.0..=DebugOp::SET_MODE.0).contains(&request.op.0) {
            return Err(self.invalid(
                OPERATION,
                "no debug operation of the mainline driver",
                request.op.0 as usize,
                "HL_DEBUG_OP_ETR to HL_DEBUG_OP_SET_MODE, 0 to 7",
            ));
        }
        for len in [request.input.len(), request.output.len()] {
            if u32::try_from(len).is_err() {
                return Err(self.invalid(OPERATION, "a struct is too long", len, "below 4 GiB"));
            }
        }
        // SAFETY: the driver reads `input_size` bytes of `input` and writes `output_size` bytes of
        // `output`, borrowed mutably.
        unsafe { self.call(request) }
    }

    fn nic(&self, _: NicRequest<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::Nic;
        self.admit(OPERATION, false)?;
        // Its structs carry addresses that the driver writes to. A safe call may not pass them on
        // unchecked.
        Err(lacks(
            &self.node,
            OPERATION,
            OPERATION.kernel_name(),
            Since::Gaudi3,
        ))
    }

    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        const OPERATION: Operation = Operation::Mmap;
        self.admit(OPERATION, false)?;
        let mapping = self.mmap(request.offset, request.len);
        mapping.map_err(|errno| self.failed(OPERATION, errno))
    }

    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::RegisterEvents;
        self.admit(OPERATION, true)?;
        let Ok(fd) = u32::try_from(eventfd.as_raw_fd()) else {
            return Err(Error::from_errno(OPERATION.kernel_name(), Errno::EBADF).on(self.node.device));
        };
        let (_, result) = self.info(InfoOp::REGISTER_EVENTFD, fd, &mut []);
        result.map_err(|errno| self.failed(OPERATION, errno))
    }

    fn unregister_events(&self) -> Result<()> {
        const OPERATION: Operation = Operation::UnregisterEvents;
        self.admit(OPERATION, true)?;
        let (_, result) = self.info(InfoOp::UNREGISTER_EVENTFD, 0, &mut []);
        result.map_err(|errno| self.failed(OPERATION, errno))
    }
}
