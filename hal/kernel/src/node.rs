//! The operations of seam 1 on an open node.

#![expect(
    unsafe_code,
    reason = "ioctls carry addresses that the kernel reads and writes"
)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use gaudi_seam::{
    BlockMapping, CbCreate, CbHandle, CbInfo, CqCounter, CsAnswer, CsRequest, CsSeq, DebugRequest, Error,
    ErrorKind, ExportRequest, InfoRequest, InterruptId, InterruptWait, InterruptWord, KernelIo,
    KernelIoExt as _, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest, MultiWaitAnswer, NicRequest,
    Node, Operation, Result, TimestampRegistration, TsHandle, WaitAnswer, rules,
};
use gaudi_spec::addr::DeviceVa;
use gaudi_sys::{Errno, RawMapping};
use gaudi_uapi::cb::{CbFlags, HlCbArgs, HlCbIn};
use gaudi_uapi::debug::{DebugOp, HlDebugArgs};
use gaudi_uapi::info::{HlUserMapping, InfoOp};
use gaudi_uapi::limits::HL_WAIT_MULTI_CS_LIST_MAX_LEN;
use gaudi_uapi::memory::{HlMemArgs, HlMemIn, HlMemOut, MemFlags};
use gaudi_uapi::wait::HlWaitCsIn;
use gaudi_uapi::{Ioctl, Since};

use crate::dialect::{lacks, lacks_info};
use crate::kernel::{Kernel, address, address_mut};
use crate::system::Syscalls;

impl<S: Syscalls + ?Sized> Kernel<S> {
    fn cb(&self, operation: Operation, request: HlCbIn) -> Result<HlCbArgs> {
        self.admit(operation, false)?;
        let mut args = HlCbArgs::from(request);
        // SAFETY: CB requests carry no address of this process.
        unsafe { self.again(Ioctl::Cb, &mut args) }.map_err(|e| self.failed(operation, e))?;
        Ok(args)
    }

    /// # Safety
    /// - For MAP of host memory, the promise of [`KernelIo::mem_map_host`]. Other requests carry no
    ///   address of this process.
    unsafe fn memory(&self, operation: Operation, request: HlMemIn) -> Result<HlMemOut> {
        self.admit(operation, false)?;
        let mut args = HlMemArgs::from(request);
        // SAFETY: the caller's promise covers the only request with an address.
        unsafe { self.again(Ioctl::Memory, &mut args) }.map_err(|e| self.failed(operation, e))?;
        Ok(args.answer())
    }

    /// Checks that an interrupt's number fits the field of twelve bits.
    fn interrupt_id(&self, operation: Operation, id: InterruptId) -> Result<u16> {
        if id.0 > 0xfff {
            let error = self.refused(operation, &rules::wait::UNKNOWN_INTERRUPT);
            return Err(error.saw(id.0, "0 to 4095"));
        }
        Ok(id.0)
    }

    /// Checks that the driver's arithmetic on the offset of a counter or a timestamp does not wrap:
    /// it would access memory before the buffer's start
    /// (common/command_submission.c:validate_and_get_ts_record).
    fn offset(&self, operation: Operation, offset: u64) -> Result<u64> {
        const MOST: u64 = 1 << 32;
        if offset > MOST {
            let cause = "no buffer of the driver has such an offset";
            return Err(self.invalid(operation, cause, offset as usize, "at most 2^32"));
        }
        Ok(offset)
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
        let flags = if request.map_to_device {
            CbFlags::MAP
        } else {
            CbFlags::NONE
        };
        let args = self.cb(Operation::CbCreate, HlCbIn::create(request.size, flags))?;
        Ok(CbHandle(args.answer().cb_handle()))
    }

    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        self.cb(Operation::CbDestroy, HlCbIn::destroy(handle.0)).map(drop)
    }

    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        let request = if device_va {
            HlCbIn::device_va(handle.0)
        } else {
            HlCbIn::usage(handle.0)
        };
        let answer = self.cb(Operation::CbInfo, request)?.answer();
        Ok(match device_va {
            true => CbInfo {
                usage_count: 0,
                device_va: Some(DeviceVa(answer.device_va())),
            },
            false => CbInfo {
                usage_count: answer.usage_cnt(),
                device_va: None,
            },
        })
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
        let mut list = [0u64; HL_WAIT_MULTI_CS_LIST_MAX_LEN];
        let len = seqs.len();
        if len > list.len() {
            let error = self.refused(OPERATION, &rules::wait::MULTI_TOO_MANY);
            return Err(error.saw(len, "at most 32"));
        }
        list.iter_mut().zip(seqs).for_each(|(slot, seq)| *slot = seq.0);
        let list = &list[..len];
        let request = |us| HlWaitCsIn::multi_cs(address(list), len as u8, us);
        // SAFETY: the driver reads `len` numbers at the address of `list`, which outlives the call.
        unsafe { self.wait_many(OPERATION, timeout, request) }
    }

    fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        const OPERATION: Operation = Operation::WaitInterrupt;
        let id = self.interrupt_id(OPERATION, request.interrupt)?;
        let target = request.target;
        match request.word {
            InterruptWord::User(word) => {
                let wait = |us| HlWaitCsIn::interrupt(id, word.0, target, us);
                // SAFETY: the driver only reads the word at the address, and returns EFAULT if it
                // is not mapped.
                unsafe { self.wait_one(OPERATION, request.timeout, wait) }
            }
            InterruptWord::KernelCq(CqCounter { handle, offset }) => {
                let offset = self.offset(OPERATION, offset)?;
                let wait = |us| HlWaitCsIn::interrupt_on_counter(id, handle.0, offset, target, us);
                // SAFETY: no address of this process.
                unsafe { self.wait_one(OPERATION, request.timeout, wait) }
            }
        }
    }

    fn register_timestamp(&self, request: &TimestampRegistration) -> Result<()> {
        const OPERATION: Operation = Operation::RegisterTimestamp;
        let id = self.interrupt_id(OPERATION, request.interrupt)?;
        let CqCounter { handle, offset } = request.counter;
        let offset = self.offset(OPERATION, offset)?;
        let slot = (request.buffer.0, self.offset(OPERATION, request.index)?);
        let wait = |_| HlWaitCsIn::register_timestamp(id, handle.0, offset, request.target, slot);
        // SAFETY: no address of this process.
        unsafe { self.wait_one(OPERATION, Duration::ZERO, wait) }.map(drop)
    }

    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        let input = HlMemIn::alloc(request.size, request.page_size, request.flags);
        // SAFETY: no address of this process.
        let answer = unsafe { self.memory(Operation::MemAlloc, input) }?;
        let handle = MemHandle(answer.handle());
        self.dialect.allocated(handle, request.size);
        Ok(handle)
    }

    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        // Before the ioctl: the driver may reuse the number at once, for another thread.
        let forgotten = self.dialect.forget_allocation(handle);
        // SAFETY: no address of this process.
        let freed = unsafe { self.memory(Operation::MemFree, HlMemIn::free(handle.0)) };
        if let (Err(_), Some(size)) = (&freed, forgotten) {
            self.dialect.allocated(handle, size);
        }
        freed.map(drop)
    }

    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        const OPERATION: Operation = Operation::MemMapDevice;
        if request.flags.contains(MemFlags::USERPTR) {
            // The driver would map host memory, which only `mem_map_host` may request.
            return Err(Error::from_errno(OPERATION.kernel_name(), Errno::EINVAL)
                .on(self.node.device)
                .because("HL_MEM_USERPTR does not go with device memory"));
        }
        let hint = request.hint.map_or(0, DeviceVa::get);
        let input = HlMemIn::map_device(request.handle.0, hint, request.flags);
        // SAFETY: no address of this process: USERPTR is not set.
        let answer = unsafe { self.memory(OPERATION, input) }?;
        let address = DeviceVa(answer.device_virt_addr());
        self.dialect.mapped(address, request.handle);
        Ok(address)
    }

    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        let hint = request.hint.map_or(0, DeviceVa::get);
        let input = HlMemIn::map_host(request.address.0, request.size, hint, request.flags);
        // SAFETY: the caller's promise is the same.
        let answer = unsafe { self.memory(Operation::MemMapHost, input) }?;
        Ok(DeviceVa(answer.device_virt_addr()))
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        // As in `mem_free`.
        let forgotten = self.dialect.forget_mapping(address);
        // SAFETY: no address of this process.
        let unmapped = unsafe { self.memory(Operation::MemUnmap, HlMemIn::unmap(address.0)) };
        if let (Err(_), Some(handle)) = (&unmapped, forgotten) {
            self.dialect.mapped(address, handle);
        }
        unmapped.map(drop)
    }

    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        // SAFETY: no address of this process.
        let answer = unsafe { self.memory(Operation::TsAlloc, HlMemIn::ts_alloc(elements)) }?;
        Ok(TsHandle(answer.handle()))
    }

    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        // SAFETY: no address of this process: the block's is the device's.
        let answer = unsafe { self.memory(Operation::MapBlock, HlMemIn::map_block(address)) }?;
        let block = answer.block();
        Ok(BlockMapping {
            handle: block.block_handle,
            size: block.block_size,
        })
    }

    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        const OPERATION: Operation = Operation::ExportDmabuf;
        self.admit(OPERATION, false)?;
        let input = self
            .dialect
            .export_input(&self.node, OPERATION, request, || self.query())?;
        // SAFETY: no address of this process: EXPORT's is the device's, whatever bits `flags` has.
        let fd = unsafe { self.memory(OPERATION, input) }?.fd();
        if fd < 0 {
            return Err(Error::new(ErrorKind::Io, OPERATION.kernel_name())
                .on(self.node.device)
                .because("the driver answered success without a file descriptor")
                .saw(fd, "0 or more"));
        }
        // SAFETY: the driver installed the descriptor in this call, for this caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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
        let size = |len: usize| {
            u32::try_from(len)
                .map_err(|_| self.invalid(OPERATION, "a struct is too long", len, "below 4 GiB"))
        };
        let mut args = HlDebugArgs {
            input_ptr: address(request.input),
            output_ptr: address_mut(request.output),
            input_size: size(request.input.len())?,
            output_size: size(request.output.len())?,
            op: request.op,
            reg_idx: request.reg_idx,
            enable: u32::from(request.enable),
            ctx_id: 0,
        };
        // SAFETY: the driver reads `input_size` bytes of `input` and writes `output_size` bytes of
        // `output`, borrowed mutably.
        unsafe { self.again(Ioctl::Debug, &mut args) }.map_err(|e| self.failed(OPERATION, e))
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
