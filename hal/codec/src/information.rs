//! INFO, DEBUG and NIC requests and dma-buf import: the requests that have buffers or descriptors.

#![expect(unsafe_code, reason = "see `Wire::answer`")]

use std::os::fd::{AsFd as _, AsRawFd as _};

use gaudi_seam::{
    AnyRequest, DebugRequest, DeviceVa, Errno, Info, InfoRequest, NicRequest, RegisterDmabuf, RegisterEvents,
    UnregisterEvents,
};
use gaudi_sys::fd::duplicate_number;
use gaudi_uapi::Ioctl;
use gaudi_uapi::debug::{
    DebugOp, HlDebugArgs, HlDebugParamsBmon, HlDebugParamsEtf, HlDebugParamsEtr, HlDebugParamsSpmu,
    HlDebugParamsStm,
};
use gaudi_uapi::info::{HlInfoArgs, HlInfoTimeSync, HlUserMapping, InfoOp};
use gaudi_uapi::memory::{HlMemArgs, HlMemIn, HlMemInRegDmabufFd, MemOp};
use gaudi_uapi::nic::{HlNicArgs, NicOp};
use zerocopy::FromZeros as _;

use crate::answer::{Reply as _, front};
use crate::memory::UserMemory;
use crate::wire::{Visitor, Wire, address, address_mut};

/// Converts a buffer's length to the driver's `u32`. No struct of the driver reaches 4 GiB.
fn len_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// INFO and DEBUG requests return their answer in a buffer, if at all.
macro_rules! silent {
    ($args:ty, $ioctl:ident) => {
        type Args = $args;
        const IOCTL: Ioctl = Ioctl::$ioctl;

        unsafe fn answer(&self, _: &$args) -> Result<(), Errno> {
            Ok(())
        }

        fn set_answer(&self, (): (), _: &mut $args) {}
    };
}

impl Wire for Info<'_> {
    type Args = HlInfoArgs;
    const IOCTL: Ioctl = Ioctl::Info;

    fn encode(&mut self) -> HlInfoArgs {
        let size = len_of(self.answer);
        HlInfoArgs::new(self.request.op, address_mut(self.answer), size, self.request.arg)
    }

    unsafe fn answer(&self, args: &HlInfoArgs) -> Result<u32, Errno> {
        Ok(args.arg)
    }

    fn set_answer(&self, answer: u32, args: &mut HlInfoArgs) {
        args.arg = answer;
    }
}

impl Wire for RegisterEvents<'_> {
    silent!(HlInfoArgs, Info);

    fn encode(&mut self) -> HlInfoArgs {
        let number = self.0.as_raw_fd() as u32;
        HlInfoArgs::new(InfoOp::REGISTER_EVENTFD, 0, 0, number)
    }
}

impl Wire for UnregisterEvents {
    silent!(HlInfoArgs, Info);

    fn encode(&mut self) -> HlInfoArgs {
        HlInfoArgs::new(InfoOp::UNREGISTER_EVENTFD, 0, 0, 0)
    }
}

/// Size of `struct cpucp_hbm_row_replaced_rows_info` in bytes: a count of 8 bytes and 32 rows of 8
/// bytes (linux/habanalabs/cpucp_if.h).
const REPLACED_ROWS: usize = 8 + 32 * 8;
/// Limit of an engine status and of a generic firmware request, plus 1 byte. The driver rejects a
/// longer buffer, so this length is rejected as well.
const TEXT: usize = (1 << 20) + 1;
/// Limit of the answer to `USER_MAPPINGS` in bytes: 2^20 mappings.
const MAPPINGS: usize = size_of::<HlUserMapping>() << 20;
/// Limit of the counters of a chip's events or links in bytes.
const COUNTERS: usize = 1 << 16;

/// Returns the maximum number of bytes that the driver writes for an INFO operation. Bytes of the
/// answer buffer past this limit stay unchanged.
pub(crate) fn most_of(op: InfoOp) -> usize {
    match op {
        InfoOp::GET_EVENTS => size_of::<u64>(),
        InfoOp::DRAM_PENDING_ROWS => size_of::<u32>(),
        InfoOp::DRAM_REPLACED_ROWS => REPLACED_ROWS,
        InfoOp::TIME_SYNC_PER_DIE => size_of::<HlInfoTimeSync>(),
        InfoOp::ENGINE_STATUS | InfoOp::FW_GENERIC_REQ => TEXT,
        InfoOp::USER_MAPPINGS => MAPPINGS,
        InfoOp::HW_EVENTS | InfoOp::HW_EVENTS_AGGREGATE | InfoOp::HABANA_LINK_COUNTERS => COUNTERS,
        // The driver rejects an unknown operation.
        op => op.answer().map_or(size_of::<u64>(), |answer| answer.size),
    }
}

/// common/habanalabs_ioctl.c:_hl_info_ioctl. Descriptor numbers are those of this process.
pub(crate) fn decode_info<V: Visitor>(input: HlInfoArgs, visitor: V) -> Result<V::Output, Errno> {
    if input.pad != 0 {
        return Err(Errno::EINVAL);
    }
    match input.op {
        InfoOp::REGISTER_EVENTFD => {
            let eventfd = duplicate_number(input.arg)?;
            Ok(visitor.visit(RegisterEvents(eventfd.as_fd())))
        }
        InfoOp::UNREGISTER_EVENTFD => Ok(visitor.visit(UnregisterEvents)),
        op => {
            // The driver treats a null pointer as a missing buffer.
            let room = if input.return_pointer == 0 {
                0
            } else {
                input.return_size as usize
            };
            let mut answer = vec![0; room.min(most_of(op))];
            Ok(visitor.visit(Info {
                request: InfoRequest { op, arg: input.arg },
                answer: &mut answer,
            }))
        }
    }
}

impl Wire for DebugRequest<'_> {
    silent!(HlDebugArgs, Debug);

    fn encode(&mut self) -> HlDebugArgs {
        HlDebugArgs {
            input_ptr: address(self.input),
            output_ptr: address_mut(self.output),
            input_size: len_of(self.input),
            output_size: len_of(self.output),
            op: self.op,
            reg_idx: self.reg_idx,
            enable: u32::from(self.enable),
            ctx_id: 0,
        }
    }
}

/// Returns how many bytes of the input the driver reads: `hl_debug_struct_size` in
/// common/habanalabs_ioctl.c.
fn input_size(op: DebugOp) -> usize {
    match op {
        DebugOp::ETR => size_of::<HlDebugParamsEtr>(),
        DebugOp::ETF => size_of::<HlDebugParamsEtf>(),
        DebugOp::STM => size_of::<HlDebugParamsStm>(),
        DebugOp::BMON => size_of::<HlDebugParamsBmon>(),
        DebugOp::SPMU => size_of::<HlDebugParamsSpmu>(),
        _ => 0,
    }
}

/// One byte more than the driver can allocate (`KMALLOC_MAX_SIZE`). The driver rejects an output of
/// this size.
const MOST_OUTPUT: usize = (4 << 20) + 1;

/// Allocates a zeroed buffer of `size` bytes, at most `most`; an empty one if `pointer` is null.
fn buffer(pointer: u64, size: u32, most: usize) -> Vec<u8> {
    let size = if pointer == 0 {
        0
    } else {
        (size as usize).min(most)
    };
    vec![0; size]
}

/// common/habanalabs_ioctl.c:hl_debug_ioctl, debug_coresight
pub(crate) fn decode_debug<V: Visitor>(
    args: HlDebugArgs,
    memory: &dyn UserMemory,
    visitor: V,
) -> Result<V::Output, Errno> {
    let mut input = buffer(args.input_ptr, args.input_size, input_size(args.op));
    if !input.is_empty() {
        memory.read(args.input_ptr, &mut input)?;
    }
    let has_output = args.op.0 < DebugOp::SET_MODE.0;
    let mut output = buffer(
        args.output_ptr,
        args.output_size,
        if has_output { MOST_OUTPUT } else { 0 },
    );
    Ok(visitor.visit(DebugRequest {
        op: args.op,
        reg_idx: args.reg_idx,
        enable: args.enable != 0,
        input: &input,
        output: &mut output,
    }))
}

impl Wire for NicRequest<'_> {
    silent!(HlNicArgs, Nic);

    fn encode(&mut self) -> HlNicArgs {
        let mut args = HlNicArgs::new_zeroed();
        (args.input_ptr, args.input_size) = (address(self.input), len_of(self.input));
        (args.output_ptr, args.output_size) = (address_mut(self.output), len_of(self.output));
        args.op = NicOp(self.op);
        args
    }
}

/// Limit of an input or output in bytes, above the size of every struct of a NIC operation.
const MOST_NIC: usize = 1 << 16;

pub(crate) fn decode_nic<V: Visitor>(
    args: HlNicArgs,
    memory: &dyn UserMemory,
    visitor: V,
) -> Result<V::Output, Errno> {
    let mut input = buffer(args.input_ptr, args.input_size, MOST_NIC);
    if !input.is_empty() {
        memory.read(args.input_ptr, &mut input)?;
    }
    let mut output = buffer(args.output_ptr, args.output_size, MOST_NIC);
    Ok(visitor.visit(NicRequest {
        op: args.op.0,
        input: &input,
        output: &mut output,
    }))
}

impl Wire for RegisterDmabuf<'_> {
    type Args = HlMemArgs;
    const IOCTL: Ioctl = Ioctl::Memory;

    fn encode(&mut self) -> HlMemArgs {
        let view = HlMemInRegDmabufFd {
            fd: self.dmabuf.as_raw_fd() as u64,
            length: self.len,
        };
        HlMemArgs::from(HlMemIn {
            arg: front(&[view.fd, view.length]),
            op: MemOp::REG_DMABUF_FD,
            ..HlMemIn::default()
        })
    }

    unsafe fn answer(&self, args: &HlMemArgs) -> Result<DeviceVa, Errno> {
        // SAFETY: the caller's promise is the same.
        unsafe { DeviceVa::read(&args.0, AnyRequest::RegisterDmabuf(self)) }
    }

    fn set_answer(&self, answer: DeviceVa, args: &mut HlMemArgs) {
        answer.write(&mut args.0, AnyRequest::RegisterDmabuf(self));
    }
}

/// Descriptor numbers are those of this process.
pub(crate) fn decode_import<V: Visitor>(input: HlMemIn, visitor: V) -> Result<V::Output, Errno> {
    let HlMemInRegDmabufFd { fd, length: len } = front(input.arg.as_slice());
    let dmabuf = duplicate_number(u32::try_from(fd).map_err(|_| Errno::EBADF)?)?;
    Ok(visitor.visit(RegisterDmabuf {
        dmabuf: dmabuf.as_fd(),
        len,
    }))
}
