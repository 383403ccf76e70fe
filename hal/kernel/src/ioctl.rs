//! The operations on an open node. Submissions and waits are in [`jobs`](crate::jobs).

#![expect(
    unsafe_code,
    reason = "ioctls carry addresses that the kernel reads and writes"
)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{
    BlockMapping, CbCreate, CbHandle, CbInfo, CqCounter, CsAnswer, CsRequest, CsSeq, DebugRequest, Error,
    ErrorKind, ExportRequest, InfoRequest, InterruptId, InterruptWait, InterruptWord, KernelIo, MapDevice,
    MapHost, MemAlloc, MemHandle, MmapRequest, MultiWaitAnswer, NicRequest, Node, NodeKind, Operation,
    Result, TimestampRegistration, TsHandle, WaitAnswer, rules,
};
use gaudi_spec::addr::DeviceVa;
use gaudi_sys::fork::Birth;
use gaudi_sys::{Errno, RawMapping, SysResult};
use gaudi_uapi::cb::{CbFlags, HlCbArgs, HlCbIn};
use gaudi_uapi::debug::{DebugOp, HlDebugArgs};
use gaudi_uapi::info::{DeviceStatus, HlInfoArgs, HlInfoDeviceStatus, HlUserMapping, InfoOp};
use gaudi_uapi::limits::HL_WAIT_MULTI_CS_LIST_MAX_LEN;
use gaudi_uapi::memory::{HlMemArgs, HlMemIn, HlMemOut, MemFlags};
use gaudi_uapi::wait::HlWaitCsIn;
use gaudi_uapi::{Ioctl, Since};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::dialect::{Dialect, Event};
use crate::system::{Syscalls, System};

/// An open node of the driver. Made by [`Driver::open`](crate::Driver::open).
///
/// Dropping it closes the file. The driver then releases what the context holds and resets the device; while
/// an exported dma-buf lives, the device stays busy.
pub struct Kernel<S: Syscalls + ?Sized = System> {
    node: Node,
    fd: OwnedFd,
    system: Arc<S>,
    birth: Birth,
    /// The process for which more than INFO goes to this file: `birth` of a compute node, none of a control node. One look tells both.
    serves: Birth,
    /// Request numbers in the order of [`Ioctl`]; 0, which no driver knows, for one that the interface does not have.
    requests: [u32; Ioctl::ALL.len()],
    dialect: Dialect,
}

impl<S: Syscalls + ?Sized> std::fmt::Debug for Kernel<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("node", &self.node)
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

/// The address of a value for the kernel; 0 for an empty slice, which the driver takes as "none".
#[inline]
pub(crate) fn address<T>(slice: &[T]) -> u64 {
    if slice.is_empty() {
        0
    } else {
        slice.as_ptr().expose_provenance() as u64
    }
}

fn address_mut(slice: &mut [u8]) -> u64 {
    if slice.is_empty() {
        0
    } else {
        slice.as_mut_ptr().expose_provenance() as u64
    }
}

impl<S: Syscalls + ?Sized> Kernel<S> {
    pub(crate) fn new(node: Node, fd: OwnedFd, system: Arc<S>, dialect: Dialect) -> Self {
        let birth = Birth::here();
        let serves = match node.kind {
            NodeKind::Compute => birth,
            NodeKind::Control => Birth::nowhere(),
        };
        let requests = Ioctl::ALL.map(|ioctl| node.era.request(ioctl).unwrap_or(0));
        Self {
            node,
            fd,
            system,
            birth,
            serves,
            requests,
            dialect,
        }
    }

    #[inline]
    pub(crate) fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    pub(crate) fn node_ref(&self) -> &Node {
        &self.node
    }

    /// Refuses what cannot go to this file: calls of a fork child, and all but INFO on a control node.
    #[inline]
    pub(crate) fn admit(&self, operation: Operation, info: bool) -> Result<()> {
        if self.birth.is_elsewhere() || (!info && self.node.kind == NodeKind::Control) {
            return Err(self.not_admitted(operation));
        }
        Ok(())
    }

    /// Whether more than INFO can go to this file.
    #[inline]
    pub(crate) fn is_served(&self) -> bool {
        !self.serves.is_elsewhere()
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn not_admitted(&self, operation: Operation) -> Error {
        if self.birth.is_elsewhere() {
            return Error::new(ErrorKind::Forked, operation.kernel_name())
                .on(self.node.device)
                .because("the device was opened by the parent of this process")
                .helped_by("open the device in the child");
        }
        Error::unsupported(operation.kernel_name(), "a control node serves HL_IOCTL_INFO only")
            .with_errno(Errno::ENOTTY)
            .on(self.node.device)
    }

    /// One ioctl, once.
    ///
    /// # Safety
    /// - As [`Syscalls::ioctl`].
    #[inline]
    pub(crate) unsafe fn once<A: FromBytes + IntoBytes>(&self, ioctl: Ioctl, args: &mut A) -> SysResult<()> {
        debug_assert_eq!(size_of::<A>(), ioctl.args_size(), "the argument of {ioctl}");
        let request = self.requests[usize::from(ioctl.index())];
        // SAFETY: the caller's promise.
        unsafe { self.system.ioctl(self.fd.as_fd(), request, args.as_mut_bytes()) }
    }

    /// One ioctl, again after each signal: the driver has done nothing when it answers EINTR. The argument is
    /// given afresh each time, because a call that failed leaves anything in it.
    ///
    /// # Safety
    /// - As [`Syscalls::ioctl`].
    #[inline]
    unsafe fn again<A: FromBytes + IntoBytes + Copy>(&self, ioctl: Ioctl, args: &mut A) -> SysResult<()> {
        let asked = *args;
        loop {
            // SAFETY: the caller's promise; the argument is the same each time.
            match unsafe { self.once(ioctl, args) } {
                Err(Errno::EINTR) => *args = asked,
                result => return result,
            }
        }
    }

    fn info_raw(&self, op: InfoOp, arg: u32, answer: &mut [u8]) -> (u32, SysResult<()>) {
        answer.fill(0);
        let size = u32::try_from(answer.len()).unwrap_or(u32::MAX);
        let mut args = HlInfoArgs::new(op, address_mut(answer), size, arg);
        // SAFETY: INFO reads and writes `return_size` bytes at most at `return_pointer`, which is `answer`,
        // ours alone.
        let result = unsafe { self.again(Ioctl::Info, &mut args) };
        (args.arg, result)
    }

    /// How the device says it is; nothing if it does not answer.
    pub(crate) fn status(&self) -> Option<DeviceStatus> {
        let mut answer = HlInfoDeviceStatus::new_zeroed();
        let (_, result) = self.info_raw(InfoOp::DEVICE_STATUS, 0, answer.as_mut_bytes());
        result.ok().map(|()| answer.status)
    }

    fn cb(&self, operation: Operation, request: HlCbIn) -> Result<HlCbArgs> {
        self.admit(operation, false)?;
        let mut args = HlCbArgs::from(request);
        // SAFETY: CB requests carry no address of this process.
        unsafe { self.again(Ioctl::Cb, &mut args) }.map_err(|e| self.failed(operation, e))?;
        Ok(args)
    }

    /// # Safety
    /// - For MAP of host memory, the promise of [`KernelIo::mem_map_host`]. Other requests carry no address
    ///   of this process.
    unsafe fn memory(&self, operation: Operation, request: HlMemIn) -> Result<HlMemOut> {
        self.admit(operation, false)?;
        let mut args = HlMemArgs::from(request);
        // SAFETY: the caller's promise covers the only request with an address.
        unsafe { self.again(Ioctl::Memory, &mut args) }.map_err(|e| self.failed(operation, e))?;
        Ok(args.answer())
    }

    /// An interrupt's number, if it fits the field of twelve bits.
    fn interrupt_id(&self, operation: Operation, id: InterruptId) -> Result<u16> {
        if id.0 > 0xfff {
            let error = self.refuse(operation, &rules::wait::UNKNOWN_INTERRUPT);
            return Err(error.saw(id.0, "0 to 4095"));
        }
        Ok(id.0)
    }

    /// The offset of a counter or a timestamp, if the driver's arithmetic on it does not wrap: it would look
    /// before the buffer's start otherwise (common/command_submission.c:3334, :3234).
    fn offset(&self, operation: Operation, offset: u64) -> Result<u64> {
        const MOST: u64 = 1 << 32;
        if offset > MOST {
            let cause = "no buffer of the driver has such an offset";
            return Err(self.invalid(operation, cause, offset as usize, "at most 2^32"));
        }
        Ok(offset)
    }

    pub(crate) fn invalid(&self, operation: Operation, cause: &str, seen: usize, wanted: &str) -> Error {
        Error::from_errno(operation.kernel_name(), Errno::EINVAL)
            .on(self.node.device)
            .because(cause)
            .saw(seen, wanted)
    }
}

impl<S: Syscalls + ?Sized> KernelIo for Kernel<S> {
    fn node(&self) -> &Node {
        &self.node
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        const OPERATION: Operation = Operation::Info;
        self.admit(OPERATION, true)?;
        let (arg, result) = self.info_raw(request.op, request.arg, answer);
        let Err(errno) = result else {
            self.modernise(request.op, answer);
            return Ok(arg);
        };
        if let Some(error) = self.lacks_info(OPERATION, request.op, errno) {
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
        let args = self.cb(
            Operation::CbCreate,
            HlCbIn::create(request.size, flags),
        )?;
        Ok(CbHandle(args.answer().cb_handle()))
    }

    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        self.cb(Operation::CbDestroy, HlCbIn::destroy(handle.0))
            .map(drop)
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

    // Always, here and for a wait: a layer that knows this type and is off then adds no call.
    #[inline(always)]
    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        self.submit_to_driver(request)
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
            return Err(self.refuse(OPERATION, &rules::wait::MULTI_TOO_MANY).saw(len, "at most 32"));
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
                // SAFETY: the driver only reads the word at the address, and answers EFAULT where there is none.
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
        self.note(Event::Allocated(handle, request.size));
        Ok(handle)
    }

    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        // Before the driver hears of it: it may hand the number out again at once, to another thread.
        let forgotten = self.forget_handle(handle);
        // SAFETY: no address of this process.
        let freed = unsafe { self.memory(Operation::MemFree, HlMemIn::free(handle.0)) };
        if let (Err(_), Some(size)) = (&freed, forgotten) {
            self.note(Event::Allocated(handle, size));
        }
        freed.map(drop)
    }

    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        const OPERATION: Operation = Operation::MemMapDevice;
        if request.flags.contains(MemFlags::USERPTR) {
            // The driver would take the request for one of host memory, which only `mem_map_host` may make.
            return Err(Error::from_errno(OPERATION.kernel_name(), Errno::EINVAL)
                .on(self.node.device)
                .because("HL_MEM_USERPTR does not go with device memory"));
        }
        let hint = request.hint.map_or(0, DeviceVa::get);
        let input = HlMemIn::map_device(request.handle.0, hint, request.flags);
        // SAFETY: no address of this process: USERPTR is not set.
        let answer = unsafe { self.memory(OPERATION, input) }?;
        let address = DeviceVa(answer.device_virt_addr());
        self.note(Event::Mapped(address, request.handle));
        Ok(address)
    }

    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        let hint = request.hint.map_or(0, DeviceVa::get);
        let input = HlMemIn::map_host(request.address.0, request.size, hint, request.flags);
        // SAFETY: the caller's promise is the one that this method asks for.
        let answer = unsafe { self.memory(Operation::MemMapHost, input) }?;
        Ok(DeviceVa(answer.device_virt_addr()))
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        // As in `mem_free`.
        let forgotten = self.forget_mapping(address);
        // SAFETY: no address of this process.
        let unmapped = unsafe { self.memory(Operation::MemUnmap, HlMemIn::unmap(address.0)) };
        if let (Err(_), Some(handle)) = (&unmapped, forgotten) {
            self.note(Event::Mapped(address, handle));
        }
        unmapped.map(drop)
    }

    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        // SAFETY: no address of this process.
        let answer = unsafe {
            self.memory(
                Operation::TsAlloc,
                HlMemIn::ts_alloc(elements),
            )
        }?;
        Ok(TsHandle(answer.handle()))
    }

    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        // SAFETY: no address of this process: the block's is the device's.
        let answer = unsafe {
            self.memory(
                Operation::MapBlock,
                HlMemIn::map_block(address),
            )
        }?;
        let block = answer.block();
        Ok(BlockMapping {
            handle: block.block_handle,
            size: block.block_size,
        })
    }

    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        const OPERATION: Operation = Operation::ExportDmabuf;
        self.admit(OPERATION, false)?;
        let input = self.export_input(OPERATION, request)?;
        // SAFETY: no address of this process: EXPORT's is the device's, whatever bits `flags` has.
        let fd = unsafe { self.memory(OPERATION, input) }?.fd();
        if fd < 0 {
            return Err(Error::new(ErrorKind::Io, OPERATION.kernel_name())
                .on(self.node.device)
                .because("the driver answered success without a file descriptor")
                .saw(fd, "0 or more"));
        }
        // SAFETY: the driver installed the descriptor for this call; nobody else knows its number.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::Debug;
        self.admit(OPERATION, false)?;
        // The Gaudi3 driver's own operations take addresses of this process inside their structs, which nobody here checks.
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
        // SAFETY: the driver reads `input_size` bytes of `input` and writes `output_size` bytes of `output`,
        // ours alone.
        unsafe { self.again(Ioctl::Debug, &mut args) }.map_err(|e| self.failed(OPERATION, e))
    }

    fn nic(&self, _: NicRequest<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::Nic;
        self.admit(OPERATION, false)?;
        // Its structs carry addresses that the driver writes to, which a safe call may not pass on unread.
        Err(self.lacks(OPERATION, OPERATION.kernel_name(), Since::Gaudi3))
    }

    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        const OPERATION: Operation = Operation::Mmap;
        self.admit(OPERATION, false)?;
        let mapping = self.system.mmap(self.fd.as_fd(), request.offset, request.len);
        mapping.map_err(|errno| self.failed(OPERATION, errno))
    }

    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::RegisterEvents;
        self.admit(OPERATION, true)?;
        let Ok(fd) = u32::try_from(eventfd.as_raw_fd()) else {
            return Err(Error::from_errno(OPERATION.kernel_name(), Errno::EBADF).on(self.node.device));
        };
        let (_, result) = self.info_raw(InfoOp::REGISTER_EVENTFD, fd, &mut []);
        result.map_err(|errno| self.failed(OPERATION, errno))
    }

    fn unregister_events(&self) -> Result<()> {
        const OPERATION: Operation = Operation::UnregisterEvents;
        self.admit(OPERATION, true)?;
        let (_, result) = self.info_raw(InfoOp::UNREGISTER_EVENTFD, 0, &mut []);
        result.map_err(|errno| self.failed(OPERATION, errno))
    }
}
