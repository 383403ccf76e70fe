//! The argument of any operation as the bytes of its ioctl, for records and replays.

#![expect(unsafe_code, reason = "see `Wire::answer`")]

use std::marker::PhantomData;
use std::os::fd::AsRawFd as _;

use gaudi_seam::{Answer, AnyAnswer, AnyRequest, Errno};
use gaudi_uapi::Ioctl;
use gaudi_uapi::debug::HlDebugArgs;
use gaudi_uapi::info::HlInfoArgs;
use gaudi_uapi::nic::{HlNicArgs, NicOp};
use zerocopy::{FromZeros as _, IntoBytes as _};

use crate::decode::args_of;
use crate::wire::{Visitor, Wire, address};

/// Calls `visitor` with a copy of the request. `None` for a request with a buffer, which has no
/// copy, and for mmap(2).
fn visit<V: Visitor>(request: AnyRequest<'_>, visitor: V) -> Option<V::Output> {
    use AnyRequest as Any;
    Some(match request {
        Any::CbCreate(request) => visitor.visit(*request),
        Any::CbDestroy(request) => visitor.visit(*request),
        Any::CbInfo(request) => visitor.visit(*request),
        Any::Submit(request) => visitor.visit(*request),
        Any::WaitCs(request) => visitor.visit(*request),
        Any::WaitMultiCs(request) => visitor.visit(*request),
        Any::WaitInterrupt(request) => visitor.visit(*request),
        Any::RegisterTimestamp(request) => visitor.visit(*request),
        Any::MemAlloc(request) => visitor.visit(*request),
        Any::MemFree(request) => visitor.visit(*request),
        Any::MemMapDevice(request) => visitor.visit(*request),
        Any::MemMapHost(request) => visitor.visit(*request),
        Any::MemUnmap(request) => visitor.visit(*request),
        Any::TsAlloc(request) => visitor.visit(*request),
        Any::MapBlock(request) => visitor.visit(*request),
        Any::ExportDmabuf(request) => visitor.visit(*request),
        Any::RegisterDmabuf(request) => visitor.visit(*request),
        Any::RegisterEvents(request) => visitor.visit(*request),
        Any::UnregisterEvents(request) => visitor.visit(*request),
        Any::Info(_) | Any::Debug(_) | Any::Nic(_) | Any::Mmap(_) => return None,
    })
}

struct Encode;

impl Visitor for Encode {
    type Output = (Ioctl, Vec<u8>);

    fn visit<R: Wire>(self, mut request: R) -> Self::Output {
        (R::IOCTL, request.encode().as_bytes().to_vec())
    }
}

/// A buffer's length as the driver's `u32`.
fn size_of_buffer(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Returns the ioctl of a request and its argument, with the addresses of the request's lists and
/// buffers. `None` for mmap(2).
pub fn encode(request: AnyRequest<'_>) -> Option<(Ioctl, Vec<u8>)> {
    match request {
        AnyRequest::Info(info) => {
            let (at, size) = (address(info.answer), size_of_buffer(info.answer));
            let args = HlInfoArgs::new(info.request.op, at, size, info.request.arg);
            Some((Ioctl::Info, args.as_bytes().to_vec()))
        }
        AnyRequest::Debug(debug) => {
            let args = HlDebugArgs {
                input_ptr: address(debug.input),
                output_ptr: address(debug.output),
                input_size: size_of_buffer(debug.input),
                output_size: size_of_buffer(debug.output),
                op: debug.op,
                reg_idx: debug.reg_idx,
                enable: u32::from(debug.enable),
                ctx_id: 0,
            };
            Some((Ioctl::Debug, args.as_bytes().to_vec()))
        }
        AnyRequest::Nic(nic) => {
            let mut args = HlNicArgs::new_zeroed();
            (args.input_ptr, args.input_size) = (address(nic.input), size_of_buffer(nic.input));
            (args.output_ptr, args.output_size) = (address(nic.output), size_of_buffer(nic.output));
            args.op = NicOp(nic.op);
            Some((Ioctl::Nic, args.as_bytes().to_vec()))
        }
        request => visit(request, Encode),
    }
}

/// Converts an answer to the type of an operation. `None` for a descriptor or a mapping, and for
/// the answer of another operation.
fn own<A: Answer>(answer: AnyAnswer<'_>) -> Option<A> {
    match answer {
        AnyAnswer::None => A::of(()),
        AnyAnswer::Word(value) => A::of(*value),
        AnyAnswer::CbHandle(value) => A::of(*value),
        AnyAnswer::CbInfo(value) => A::of(*value),
        AnyAnswer::Cs(value) => A::of(*value),
        AnyAnswer::Wait(value) => A::of(*value),
        AnyAnswer::MultiWait(value) => A::of(*value),
        AnyAnswer::MemHandle(value) => A::of(*value),
        AnyAnswer::DeviceVa(value) => A::of(*value),
        AnyAnswer::TsHandle(value) => A::of(*value),
        AnyAnswer::Block(value) => A::of(*value),
        AnyAnswer::Dmabuf(_) | AnyAnswer::Mapping(_) => None,
    }
}

struct SetResult<'a> {
    result: Result<AnyAnswer<'a>, Errno>,
    args: &'a mut [u8],
}

impl Visitor for SetResult<'_> {
    type Output = Result<(), Errno>;

    fn visit<R: Wire>(self, request: R) -> Self::Output {
        let mut args: R::Args = args_of(self.args);
        let done = match self.result {
            Ok(answer) => {
                if let Some(answer) = own(answer) {
                    request.set_answer(answer, &mut args);
                }
                Ok(())
            }
            Err(errno) => request.set_failure(errno, &mut args),
        };
        let bytes = self.args.iter_mut().zip(args.as_bytes());
        bytes.for_each(|(to, from)| *to = *from);
        done
    }
}

/// Writes into an argument what the driver leaves there. `args` is what [`encode`] returned for the
/// request.
///
/// # Errors
/// The errno of the ioctl. A failure that the driver reports as a status is a success.
pub fn set_result(
    request: AnyRequest<'_>,
    result: Result<AnyAnswer<'_>, Errno>,
    args: &mut [u8],
) -> Result<(), Errno> {
    match (request, result) {
        (AnyRequest::Info(_), Ok(AnyAnswer::Word(word))) => {
            let mut info: HlInfoArgs = args_of(args);
            info.arg = *word;
            args.copy_from_slice(info.as_bytes());
            Ok(())
        }
        (AnyRequest::ExportDmabuf(_), Ok(AnyAnswer::Dmabuf(fd))) => {
            args.fill(0);
            args[..4].copy_from_slice(&fd.as_raw_fd().to_le_bytes());
            Ok(())
        }
        (request, result) => {
            let failed = result.map(|_| ());
            visit(request, SetResult { result, args }).unwrap_or(failed)
        }
    }
}

struct ReadAnswer<'a, A>(&'a [u8], PhantomData<A>);

impl<A: Answer> Visitor for ReadAnswer<'_, A> {
    type Output = Result<Option<A>, Errno>;

    fn visit<R: Wire>(self, request: R) -> Self::Output {
        // SAFETY: a descriptor is the only answer with a contract, and `answer` excludes it.
        let answer = unsafe { request.answer(&args_of(self.0)) }?;
        Ok(A::of(answer))
    }
}

/// Returns the answer that a driver left in an argument after success. `None` for an answer that is
/// not in the argument: a descriptor or a mapping.
///
/// # Errors
/// `ETIMEDOUT`, `EIO`: the driver reported the end of a wait as a status.
pub fn answer<A: Answer>(request: AnyRequest<'_>, args: &[u8]) -> Result<Option<A>, Errno> {
    match request {
        AnyRequest::ExportDmabuf(_) | AnyRequest::Mmap(_) => Ok(None),
        AnyRequest::Info(_) => Ok(A::of(args_of::<HlInfoArgs>(args).arg)),
        AnyRequest::Debug(_) | AnyRequest::Nic(_) => Ok(A::of(())),
        request => visit(request, ReadAnswer(args, PhantomData)).unwrap_or(Ok(None)),
    }
}
