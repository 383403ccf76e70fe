//! [`decode`]: decodes an ioctl's argument into its request.

use gaudi_seam::Errno;
use gaudi_uapi::Ioctl;
use gaudi_uapi::cb::HlCbArgs;
use gaudi_uapi::cs::HlCsArgs;
use gaudi_uapi::debug::HlDebugArgs;
use gaudi_uapi::info::HlInfoArgs;
use gaudi_uapi::memory::{HlMemArgs, MemOp};
use gaudi_uapi::nic::HlNicArgs;
use gaudi_uapi::wait::HlWaitCsArgs;
use zerocopy::{FromBytes, IntoBytes};

use crate::information::{decode_debug, decode_import, decode_info, decode_nic};
use crate::memory::UserMemory;
use crate::rows::{decode_cb, decode_memory, decode_wait};
use crate::submit::{decode_cs, decode_multi, is_multi};
use crate::wire::Visitor;

/// Reads an argument's struct. Pads a short argument with zeros, as DRM's copy does
/// (drivers/gpu/drm/drm_ioctl.c:drm_ioctl).
pub(crate) fn args_of<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut args = T::new_zeroed();
    let to = args.as_mut_bytes().iter_mut();
    to.zip(bytes).for_each(|(to, from)| *to = *from);
    args
}

/// Calls `visitor` with the request in an argument of `ioctl`. Reads lists from `memory`. Answer
/// buffers are zeroed and are not written back.
///
/// [`Ioctl::of_request`] returns the ioctl for a request number of any era.
///
/// # Errors
/// - `EINVAL`: the operation is unknown, or padding is not zero.
/// - `EFAULT`: a list cannot be read.
/// - `EBADF`: the argument contains a file descriptor that is not open.
pub fn decode<V: Visitor>(
    ioctl: Ioctl,
    args: &[u8],
    memory: &dyn UserMemory,
    visitor: V,
) -> Result<V::Output, Errno> {
    match ioctl {
        Ioctl::Info => decode_info(args_of::<HlInfoArgs>(args), visitor),
        Ioctl::Cb => decode_cb(args_of::<HlCbArgs>(args).request(), visitor),
        Ioctl::Cs => decode_cs(args_of::<HlCsArgs>(args).request(), memory, visitor),
        Ioctl::WaitCs => match args_of::<HlWaitCsArgs>(args).request() {
            input if is_multi(&input) => decode_multi(input, memory, visitor),
            input => decode_wait(input, visitor),
        },
        Ioctl::Memory => match args_of::<HlMemArgs>(args).request() {
            input if input.op == MemOp::REG_DMABUF_FD => decode_import(input, visitor),
            input => decode_memory(input, visitor),
        },
        Ioctl::Debug => decode_debug(args_of::<HlDebugArgs>(args), memory, visitor),
        Ioctl::Nic => decode_nic(args_of::<HlNicArgs>(args), memory, visitor),
    }
}
